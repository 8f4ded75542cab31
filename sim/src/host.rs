//! A host of the network: a NIC, and the application that uses it.

use crate::node::{Node, Ports};
use crate::responder::{Costs, Executed, Responder};
use rnic::{App, Rnic};
use switch::memory::MemoryFrame;
use switch::{Nanos, PortId, Probability, Rng};

/// Draws whether the NIC of a host is forgetful ([`rnic::Config::forgetful`]); `share` of the hosts are.
pub fn draws_forgetful(seed: u64, host: u64, share: Probability) -> bool {
    Rng::stream(seed ^ host << 32, 0x666f_7267).happens(share)
}

/// Returns a factory of a host's NIC for [`Host::new`]. Each incarnation has another seed. If a restarted NIC
/// repeated its PSNs and keys, it would accept packets of connections from before its crash, which no switch
/// can distinguish from packets of new connections.
pub fn nic(config: rnic::Config) -> impl FnMut() -> Rnic + Send + 'static {
    let mut incarnation = 0;
    move || {
        let seed = config.seed ^ incarnation << 48;
        incarnation += 1;
        Rnic::new(rnic::Config { seed, ..config.clone() })
    }
}

/// NIC with an application. Its only port is port 0.
pub struct Host<A> {
    /// The NIC; replaced by a new one at a restart
    pub nic: Rnic,
    /// The application. It outlives crashes; it has to discard in [`App::start`] what a crash would destroy
    pub app: A,
    make: Box<dyn FnMut() -> Rnic + Send>,
    /// Number of starts, including the first
    pub starts: u32,
    /// Requests that arrived and are not executed yet, if the NIC takes time to execute
    responder: Option<Box<(Costs, Responder)>>,
}

impl<A: App> Host<A> {
    /// Creates a host. `make` makes its NIC: at the beginning, and at each restart.
    pub fn new(mut make: impl FnMut() -> Rnic + Send + 'static, app: A) -> Self {
        Self { nic: make(), app, make: Box::new(make), starts: 0, responder: None }
    }

    /// Returns this host with a NIC that takes time to execute requests.
    #[must_use]
    pub fn with_costs(mut self, costs: Costs) -> Self {
        self.responder = Some(Box::new((costs.clone(), Responder::new(costs))));
        self
    }

    /// Returns what the NIC has executed since its last start, if it takes time to execute.
    pub fn executed(&self) -> Option<Executed> {
        self.responder.as_ref().map(|responder| responder.1.executed())
    }

    /// Passes the requests that are executed by now to the NIC.
    fn execute(&mut self, now: Nanos, out: &mut Ports<'_>) {
        let Some(responder) = &mut self.responder else { return };
        while let Some(frame) = responder.1.poll(now) {
            self.nic.on_frame(&frame, now);
            out.net.recycle(frame);
        }
    }
}

impl<A: App> Node for Host<A> {
    fn on_frame(&mut self, frame: MemoryFrame, _port: PortId, now: Nanos, out: &mut Ports<'_>) {
        let mut frame = Some(frame.into_bytes());
        if let Some(responder) = &mut self.responder {
            frame = frame.and_then(|frame| responder.1.admit(frame, now).err());
            self.execute(now, out);
        }
        if let Some(frame) = frame {
            self.nic.on_frame(&frame, now);
            out.net.recycle(frame);
        }
        self.app.run(&mut self.nic, now);
    }

    fn on_timer(&mut self, now: Nanos, out: &mut Ports<'_>) {
        self.execute(now, out);
        self.nic.on_timer(now);
        self.app.run(&mut self.nic, now);
    }

    fn next_timer(&self) -> Option<Nanos> {
        let executed = self.responder.as_ref().and_then(|responder| responder.1.next_timer());
        [self.nic.next_timer(), self.app.next_timer(), executed].into_iter().flatten().min()
    }

    fn poll_transmit(&mut self, _port: PortId, now: Nanos, frame: &mut Vec<u8>) -> bool {
        let before = self.nic.counters().completions;
        let sent = self.nic.poll_transmit(now, frame);
        if self.nic.counters().completions != before {
            self.app.run(&mut self.nic, now);
        }
        sent
    }

    fn crash(&mut self) {
        self.app.crash(&self.nic);
    }

    fn rehash(&mut self, salt: u16) {
        self.nic.set_path_salt(salt);
    }

    fn start(&mut self, now: Nanos, _out: &mut Ports<'_>) {
        if self.starts > 0 {
            self.nic = (self.make)();
            if let Some(responder) = &mut self.responder {
                responder.1 = Responder::new(responder.0.clone());
            }
        }
        self.starts += 1;
        self.app.start(&mut self.nic, now);
        self.app.run(&mut self.nic, now);
    }
}

impl<A> core::fmt::Debug for Host<A> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Host").field("starts", &self.starts).finish_non_exhaustive()
    }
}
