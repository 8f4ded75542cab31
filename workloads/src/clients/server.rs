//! Memory server: gives clients regions of its memory, and does nothing else.

use super::region::Region;
use core::fmt;
use rnic::cm::{Conn, Event as CmEvent, PortSpace};
use rnic::{Access, App, Buffer, ConnParam, Cq, Pd, QpError, QpInit, Rnic};
use rocev2::Qpn;
use rocev2::cm::RejReason;
use std::collections::BTreeMap;
use switch::Nanos;

type Image = Box<dyn Fn(&mut [u8]) + Send>;

/// Memory region of a server, and its initial contents.
pub struct ServerMemory {
    /// Virtual address of the first byte
    pub va: u64,
    /// Length in bytes
    pub len: usize,
    image: Image,
}

impl ServerMemory {
    /// Returns memory that is initially zero.
    pub fn zeroed(va: u64, len: usize) -> Self {
        Self::filled(va, len, |_| {})
    }

    /// Returns memory that `image` fills at each start of the server; a restart discards its contents.
    pub fn filled(va: u64, len: usize, image: impl Fn(&mut [u8]) + Send + 'static) -> Self {
        Self { va, len, image: Box::new(image) }
    }

    /// Fills zeroed memory of this length with the initial contents.
    pub fn fill(&self, bytes: &mut [u8]) {
        (self.image)(bytes);
    }
}

impl fmt::Debug for ServerMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ServerMemory({:#x}, {} bytes)", self.va, self.len)
    }
}

/// A memory server.
#[derive(Debug)]
pub struct Server {
    port: u16,
    memory: Vec<ServerMemory>,
    resources: Option<(Pd, Cq)>,
    regions: Vec<(Buffer, Region)>,
    /// Contents at the last crash, if the memory is persistent
    kept: Option<Vec<Vec<u8>>>,
    keeps_memory: bool,
    clients: BTreeMap<Conn, Qpn>,
}

impl Server {
    /// Returns a server that listens on a port (TCP port space) and gives this memory.
    pub fn new(port: u16, memory: Vec<ServerMemory>) -> Self {
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

    /// Makes the memory outlive its process: after a restart it has its previous contents.
    #[must_use]
    pub fn keeping_memory(self, keeps_memory: bool) -> Self {
        Self { keeps_memory, ..self }
    }

    /// Returns the regions, once the server has started.
    pub fn regions(&self) -> Vec<Region> {
        self.regions.iter().map(|(_, region)| *region).collect()
    }

    /// Returns the memory of a region, whose contents are [`Rnic::bytes`].
    pub fn buffer(&self, region: usize) -> Option<Buffer> {
        self.regions.get(region).map(|(buffer, _)| *buffer)
    }

    /// Returns the number of clients connected through the communication manager.
    pub fn clients(&self) -> usize {
        self.clients.len()
    }

    /// Creates a queue pair for a client whose QPN and PSN are exchanged out of band. It is in the reset
    /// state; the caller moves it on.
    ///
    /// # Errors
    /// There is no room for it, or the server has not started.
    pub fn prepare(&self, nic: &mut Rnic) -> Result<Qpn, QpError> {
        nic.create_qp(self.queue_pair().ok_or(QpError::Queue)?)
    }

    /// Returns the attributes of a client's queue pair: the server sends no requests and receives no
    /// messages.
    fn queue_pair(&self) -> Option<QpInit> {
        self.resources.map(|(pd, cq)| QpInit::rc(pd, cq, 1, 1))
    }

    fn on_cm(&mut self, nic: &mut Rnic, event: &CmEvent, now: Nanos) {
        let conn = event.conn();
        match event {
            CmEvent::Requested { .. } => {
                let param = ConnParam {
                    private_data: Region::list_to_bytes(&self.regions()),
                    ..ConnParam::default()
                };
                let init = self.queue_pair();
                match init.and_then(|init| nic.accept_new(conn, init, param, now).ok()) {
                    Some(qpn) => _ = self.clients.insert(conn, qpn),
                    None => _ = nic.reject(conn, RejReason::CONSUMER, &[], now),
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
        // Only errors generate completions at a server.
        self.resources = nic.create_cq(1 << 10).ok().map(|cq| (pd, cq));
        let mut kept = self.kept.take().unwrap_or_default().into_iter();
        let give = |memory: &ServerMemory| {
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
        // No other listener exists yet.
        _ = nic.listen(PortSpace::Tcp, self.port);
    }

    fn crash(&mut self, nic: &Rnic) {
        // A second crash may happen before the restart: the stored contents are those of the first one.
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
        // A failed queue pair belongs to a connection that is ending, or to the caller of `prepare`.
        while nic.poll_event().is_some() {}
    }
}
