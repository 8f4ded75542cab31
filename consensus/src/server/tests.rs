//! Servers whose NICs are connected by links without delay: time advances between frames only where a test
//! lets it.

mod connections;
mod replication;
mod through;

use crate::{Config, Decided, Layout, Membership, ProposeError, Server, SnapshotError};
use core::net::IpAddr;
use rnic::cm::{Conn, Event, PortSpace};
use rnic::{Interface, Rnic};
use rocev2::ethernet::MacAddr;
use switch::Nanos;

const HEARTBEAT: Nanos = Nanos::from_micros(100);

/// A received request for a connection.
struct Request {
    at: Nanos,
    conn: Conn,
    from: IpAddr,
    private_data: Vec<u8>,
}

struct Net {
    now: Nanos,
    nics: Vec<Rnic>,
    servers: Vec<Server>,
    config: Config,
    /// Servers that are partitioned: no frame reaches or leaves them
    partitioned: Vec<u8>,
    /// Results returned to each server's application in this incarnation
    delivered: Vec<Vec<Decided>>,
    restarts: u64,
    /// Requests that arrived at a NIC without a server ([`add_nic`](Self::add_nic))
    requests: Vec<Request>,
}

const fn heartbeats(count: u64) -> Nanos {
    Nanos(HEARTBEAT.0 * count)
}

fn ip(server: u8) -> IpAddr {
    [10, 0, 0, server + 1].into()
}

impl Net {
    /// Creates blank servers.
    fn new(servers: u8, tune: impl FnOnce(&mut Config)) -> Self {
        let mut config = Config {
            id: 0,
            servers: (0..servers).map(ip).collect(),
            port: 7000,
            layout: Layout::new(8, 48, 1000),
            heartbeat: HEARTBEAT,
            window: 4,
            ack_timeout: 5,
            retry_count: 6,
            switch: None,
            incarnation: 0,
            secret: None,
            bug: None,
        };
        tune(&mut config);
        let mut net = Self {
            now: Nanos::ZERO,
            nics: Vec::new(),
            servers: Vec::new(),
            config,
            partitioned: Vec::new(),
            delivered: Vec::new(),
            restarts: 0,
            requests: Vec::new(),
        };
        for n in 0..servers {
            let (nic, server) = net.start(n);
            net.nics.push(nic);
            net.servers.push(server);
            net.delivered.push(Vec::new());
        }
        net
    }

    /// Creates three servers, all members, of which the first one leads.
    fn begun(tune: impl FnOnce(&mut Config)) -> Self {
        let mut net = Self::new(3, tune);
        net.run_heartbeats(3);
        assert_eq!(net.servers[0].bootstrap(), Ok(()));
        net.run_heartbeats(60);
        assert!(net.servers[0].is_leader());
        assert!(net.servers.iter().all(|server| server.membership() == Membership::Member));
        net
    }

    /// Creates a new incarnation of a server.
    fn start(&mut self, n: u8) -> (Rnic, Server) {
        self.restarts += 1;
        let interface = Interface::new(MacAddr([2, 0, 0, 0, 1, n]), ip(n), 24);
        let mut nic = Rnic::new(rnic::Config { seed: self.restarts, ..rnic::Config::new(interface) });
        let mut server = Server::new(Config { id: n, incarnation: self.restarts, ..self.config.clone() });
        server.start(&mut nic, self.now).unwrap();
        (nic, server)
    }

    /// Restarts a server with empty memory.
    fn restart(&mut self, n: u8) {
        let at = usize::from(n);
        (self.nics[at], self.servers[at]) = self.start(n);
        self.delivered[at].clear();
    }

    /// Adds a NIC without a server, which collects the requests for connections.
    fn add_nic(&mut self, n: u8, port: u16) {
        let interface = Interface::new(MacAddr([2, 0, 0, 0, 1, n]), ip(n), 24);
        let mut nic = Rnic::new(rnic::Config { seed: 99, ..rnic::Config::new(interface) });
        nic.listen(PortSpace::Tcp, port).unwrap();
        self.nics.push(nic);
    }

    fn collect_requests(&mut self, at: usize) {
        while let Some(event) = self.nics[at].poll_cm_event() {
            if let Event::Requested { conn, request, .. } = event {
                let (from, private_data) = (request.addresses.remote, request.private_data);
                self.requests.push(Request { at: self.now, conn, from, private_data });
            }
        }
    }

    fn run_server(&mut self, at: usize) {
        if at >= self.servers.len() {
            return self.collect_requests(at);
        }
        self.servers[at].run(&mut self.nics[at], self.now);
        while let Some(decided) = self.servers[at].poll_decided() {
            self.delivered[at].push(decided);
        }
    }

    /// Delivers one frame, if there is one.
    fn deliver(&mut self) -> bool {
        let mut frame = Vec::new();
        let now = self.now;
        let Some(from) = self.nics.iter_mut().position(|nic| nic.poll_transmit(now, &mut frame)) else {
            return false;
        };
        let is_partitioned = |at: usize| self.partitioned.contains(&(at as u8));
        let receivers: Vec<_> = (0..self.nics.len())
            .filter(|to| *to != from && !is_partitioned(from) && !is_partitioned(*to))
            .collect();
        for to in receivers {
            self.nics[to].on_frame(&frame, now);
            self.run_server(to);
        }
        self.run_server(from);
        true
    }

    /// Delivers all frames without advancing time.
    fn deliver_all(&mut self) {
        while self.deliver() {}
    }

    /// Delivers a frame, or advances time to the next timer. Returns false if that is after `end`.
    fn step(&mut self, end: Nanos) -> bool {
        if self.deliver() {
            return true;
        }
        let nics = self.nics.iter().filter_map(Rnic::next_timer);
        let next = nics.chain(self.servers.iter().map(Server::next_timer)).min().unwrap_or(end);
        if next > end {
            return false;
        }
        self.now = self.now.max(next);
        for at in 0..self.nics.len() {
            self.nics[at].on_timer(self.now);
            self.run_server(at);
        }
        true
    }

    /// Runs until a condition is true.
    fn run_until(&mut self, what: &str, condition: impl Fn(&Self) -> bool) {
        let end = self.now + heartbeats(200);
        while !condition(self) {
            assert!(self.step(end), "not {what} after 200 heartbeats");
        }
    }

    /// Runs for `count` heartbeats.
    fn run_heartbeats(&mut self, count: u64) {
        self.run_for(heartbeats(count));
    }

    fn run_for(&mut self, span: Nanos) {
        let end = self.now + span;
        while self.step(end) {}
        self.now = end;
    }

    fn propose(&mut self, server: usize, value: &[u8]) -> Result<u64, ProposeError> {
        self.servers[server].propose(&mut self.nics[server], value)
    }

    /// Proposes `count` values of `len` bytes at the first server, each after the previous one was decided.
    fn propose_and_decide(&mut self, count: u8, len: usize) {
        for n in 0..count {
            self.propose(0, &vec![n; len]).unwrap();
            self.deliver_all();
        }
    }

    fn give_snapshot(&mut self, state: &[u8]) -> Result<(), SnapshotError> {
        self.servers[0].provide_snapshot(&mut self.nics[0], state, self.now)
    }
}

/// Returns five servers: server 0 is gone, server 1 lacks more than a log holds, and server 2 leads.
fn one_is_behind() -> Net {
    let mut net = Net::new(5, |config| config.window = 100);
    net.run_heartbeats(3);
    net.servers[0].bootstrap().unwrap();
    net.run_heartbeats(40);
    net.partitioned = vec![1];
    net.run_heartbeats(15);
    for n in 0..8 {
        net.propose(0, &[n]).unwrap();
    }
    net.run_heartbeats(3);
    // Only server 2 gets the entry that overwrites the first one.
    net.partitioned = vec![1, 3, 4];
    net.propose(0, b"the ninth").unwrap();
    net.deliver_all();
    net.partitioned = vec![0];
    net.run_heartbeats(200);
    assert_eq!((net.servers[1].is_leader(), net.servers[2].is_leader()), (false, true));
    assert_eq!(net.servers[1].membership(), Membership::Behind);
    net
}
