//! A memory server: gives clients regions of its memory, and does nothing else.

use super::region::Region;
use core::fmt;
use rnic::cm::{Conn, Event as CmEvent, PortSpace};
use rnic::{Access, App, Buffer, ConnParam, Cq, Pd, QpError, QpInit, Rnic, Transport};
use rocev2::Qpn;
use rocev2::cm::RejReason;
use std::collections::BTreeMap;
use switch::Nanos;

type Image = Box<dyn Fn(&mut [u8]) + Send>;

/// Memory that a server gives, and what stands in it when the server begins.
pub struct Memory {
    /// The virtual address of its first byte
    pub va: u64,
    /// Bytes
    pub len: usize,
    image: Image,
}

impl Memory {
    /// Memory of zeros.
    pub fn zeroed(va: u64, len: usize) -> Self {
        Self::filled(va, len, |_| {})
    }

    /// Memory that `image` writes to when the server begins, and when it begins anew: what it held is lost then.
    pub fn filled(va: u64, len: usize, image: impl Fn(&mut [u8]) + Send + 'static) -> Self {
        Self { va, len, image: Box::new(image) }
    }

    /// Writes what stands in it at the beginning to memory of zeros of this length.
    pub fn fill(&self, bytes: &mut [u8]) {
        (self.image)(bytes);
    }
}

impl fmt::Debug for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Memory({:#x}, {} bytes)", self.va, self.len)
    }
}

/// A memory server.
#[derive(Debug)]
pub struct Server {
    port: u16,
    memory: Vec<Memory>,
    resources: Option<(Pd, Cq)>,
    regions: Vec<(Buffer, Region)>,
    /// Contents of the memory at its last crash, if it keeps them
    kept: Option<Vec<Vec<u8>>>,
    keeps_memory: bool,
    clients: BTreeMap<Conn, Qpn>,
}

impl Server {
    /// A server that listens at a port (TCP port space) and gives this memory.
    pub fn new(port: u16, memory: Vec<Memory>) -> Self {
        Self {
            port,
            memory,
            resources: None,
            regions: Vec::new(),
            kept: None,
            keeps_memory: false,
            clients: BTreeMap::new(),
        }
    }

    /// The same server, whose memory outlives its process: after a restart it has the contents that it had.
    #[must_use]
    pub fn keeping_memory(self, keeps_memory: bool) -> Self {
        Self { keeps_memory, ..self }
    }

    /// What it gives, once it has begun
    pub fn regions(&self) -> Vec<Region> {
        self.regions.iter().map(|(_, region)| *region).collect()
    }

    /// The memory behind a region: what it holds is [`Rnic::bytes`]
    pub fn buffer(&self, region: usize) -> Option<Buffer> {
        self.regions.get(region).map(|(buffer, _)| *buffer)
    }

    /// Clients that are connected by the communication manager
    pub fn clients(&self) -> usize {
        self.clients.len()
    }

    /// A queue pair for a client whose number and PSN are learnt by other means than the communication manager. It is in
    /// the reset state: whoever knows the other side leads it on.
    ///
    /// # Errors
    /// There is no room for it, or the server has not begun.
    pub fn prepare(&self, nic: &mut Rnic) -> Result<Qpn, QpError> {
        let (pd, cq) = self.resources.ok_or(QpError::Queue)?;
        // It asks for nothing and receives no messages.
        nic.create_qp(QpInit {
            transport: Transport::Rc,
            pd,
            send_cq: cq,
            recv_cq: cq,
            srq: None,
            max_send: 1,
            max_recv: 1,
        })
    }

    fn on_cm(&mut self, nic: &mut Rnic, event: &CmEvent, now: Nanos) {
        let conn = event.conn();
        match event {
            CmEvent::Requested { .. } => {
                let param = ConnParam {
                    private_data: Region::list_to_bytes(&self.regions()),
                    ..ConnParam::default()
                };
                let qpn = self.prepare(nic).ok();
                if let Some(qpn) = qpn
                    && nic.accept(conn, qpn, param, now).is_ok()
                {
                    self.clients.insert(conn, qpn);
                } else {
                    _ = qpn.map(|qpn| nic.destroy_qp(qpn));
                    _ = nic.reject(conn, RejReason::CONSUMER, &[], now);
                }
            }
            event if event.is_last() => {
                if let Some(qpn) = self.clients.remove(&conn) {
                    _ = nic.destroy_qp(qpn);
                }
            }
            _ => {}
        }
    }
}

impl App for Server {
    fn start(&mut self, nic: &mut Rnic, _now: Nanos) {
        self.clients.clear();
        let pd = nic.alloc_pd();
        // Nothing completes at a server but by failing.
        self.resources = nic.create_cq(1 << 10).ok().map(|cq| (pd, cq));
        let mut kept = self.kept.take().unwrap_or_default().into_iter();
        let give = |memory: &Memory| {
            let bytes = kept.next().unwrap_or_else(|| {
                let mut bytes = vec![0; memory.len];
                memory.fill(&mut bytes);
                bytes
            });
            let buffer = nic.alloc(bytes).ok()?;
            let mr = nic.register(pd, buffer, 0..memory.len, memory.va, Access::ALL).ok()?;
            Some((buffer, Region { va: memory.va, len: memory.len as u64, rkey: mr.0 }))
        };
        self.regions = self.memory.iter().filter_map(give).collect();
        // Nobody listens yet.
        _ = nic.listen(PortSpace::Tcp, self.port);
    }

    fn crash(&mut self, nic: &Rnic) {
        // A second crash may come before the restart: the regions are those of the first one.
        if self.keeps_memory && self.kept.is_none() {
            self.kept = Some(self.regions.iter().map(|(buffer, _)| nic.bytes(*buffer).to_vec()).collect());
        }
    }

    fn run(&mut self, nic: &mut Rnic, now: Nanos) {
        while let Some(event) = nic.poll_cm_event() {
            self.on_cm(nic, &event, now);
        }
        if let Some((_, cq)) = self.resources {
            while nic.poll_cq(cq).is_some() {}
        }
        // A queue pair that has failed belongs to a connection that ends, or to somebody who looks after it.
        while nic.poll_event().is_some() {}
    }
}
