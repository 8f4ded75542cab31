//! A rack of disaggregated memory: a memory server, client machines, and a switch between them, which may
//! interpret the traffic further than switches usually do. The same clients run over any switch; the
//! difference shows the benefit of a switch.
//!
//! ```text
//!   machine 0: threads --+
//!   machine 1: threads --+-- switch -- memory server, whose NIC takes time to execute
//!   ...                  |
//! ```

pub mod costs;
pub mod steering;

use crate::clients::{
    Account, ConnectMode, Kind, Program, Server, ServerMemory, SharedAccount, Tally, Threads, ThreadsConfig,
};
use core::fmt;
use core::net::IpAddr;
use rnic::{Access, Interface, Modify, Path, PathMtu, ReadyToReceive, ReadyToSend, Rnic};
use rocev2::aeth::RnrTimer;
use rocev2::ethernet::MacAddr;
use rocev2::{Psn, Qpn};
use sim::{
    Clock, Costs, Forger, ForgerConfig, Host, Link, LinkId, Node, NodeId, OVERHEAD, Switch, World,
    draws_forgetful,
};
use switch::forward::{Config as ForwardConfig, Forward};
use switch::{Nanos, Probability, Rng};

/// Port on which the server accepts connections
pub const PORT: u16 = 18_515;
/// Switch port of the server; machine `n` is at port `n + 1`
pub const SERVER_PORT: u16 = 0;

/// Parameters of a rack.
#[derive(Clone, Debug)]
pub struct RackConfig {
    /// Seed of everything that is drawn
    pub seed: u64,
    /// Number of client machines
    pub machines: usize,
    /// Threads of each machine, each with a connection of its own
    pub threads: usize,
    /// Execution times of the server's NIC; `None` for none
    pub costs: Option<Costs>,
    /// Link of each host to the switch
    pub link: Link,
    /// [`Link::reorder_by`] of the machines' links; `None` for that of [`link`](Self::link)
    pub machine_reorder_by: Option<Nanos>,
    /// Path MTU
    pub mtu: PathMtu,
    /// First PSN of both ends of a connection that is set up without the communication manager; random if
    /// `None`
    pub first_psn: Option<Psn>,
    /// Whether the communication manager sets up the connections; if not, the simulator exchanges QPNs and
    /// PSNs
    pub cm: bool,
    /// Share of hosts whose NICs keep no results of old READs and atomics, as soft-RoCE does not
    pub forgetful: Probability,
    /// ACK timeout of the clients' NICs: 4.096 us * 2^`ack_timeout`
    pub ack_timeout: u8,
    /// Retry limit of the clients' NICs; [`ReadyToSend::NO_LIMIT`] for none
    pub retry_count: u8,
    /// Time after which a thread reconnects when it has lost its connection; `None` for never
    pub reconnect_after: Option<Nanos>,
    /// Whether the server's regions have the same R_Keys after a restart
    pub same_keys_after_restart: bool,
    /// Whether the server's memory survives a restart; otherwise it has its initial contents again
    pub keeps_memory: bool,
    /// Rounds of forged packets of an outsider, which is connected to one more port of the switch
    pub forged_rounds: u32,
    /// First virtual address of the forged requests, and the number of words from there
    pub forged_words: (u64, u64),
}

impl Default for RackConfig {
    /// Eight machines with a thread each, links of 100 Gb/s, a server as fast as its link.
    fn default() -> Self {
        Self {
            seed: 1,
            machines: 8,
            threads: 1,
            costs: None,
            link: Link::default(),
            machine_reorder_by: None,
            first_psn: None,
            mtu: PathMtu::B1024,
            cm: true,
            forgetful: Probability::NEVER,
            ack_timeout: 14,
            retry_count: 7,
            reconnect_after: None,
            same_keys_after_restart: false,
            keeps_memory: false,
            forged_rounds: 0,
            forged_words: (0, 1),
        }
    }
}

/// A memory server, client machines, and a switch.
#[derive(Debug)]
pub struct Rack<P> {
    /// The network
    pub world: World,
    /// The switch
    pub switch: NodeId,
    /// The memory server
    pub server: NodeId,
    /// Client machines
    pub machines: Vec<NodeId>,
    /// Links of the machines to the switch, and of the server
    pub links: (Vec<LinkId>, LinkId),
    /// Totals of all threads
    pub account: SharedAccount,
    config: RackConfig,
    program: core::marker::PhantomData<fn() -> P>,
}

/// Returns the IP address of the server (`None`), or of a machine.
pub fn ip(machine: Option<usize>) -> IpAddr {
    let host = machine.map_or(1, |machine| machine as u16 + 256);
    let [high, low] = host.to_be_bytes();
    [10, 0, high, low].into()
}

/// Returns the MAC address of the server (`None`), or of a machine.
pub fn mac(machine: Option<usize>) -> MacAddr {
    let host = machine.map_or(1, |machine| machine as u16 + 256);
    let [high, low] = host.to_be_bytes();
    MacAddr([2, 0, 0, 0, high, low])
}

/// Returns a switch that forwards by MAC addresses and does not interpret RDMA.
pub fn forward(machines: usize) -> Switch<Forward> {
    let config = ForwardConfig::bridge(machines as u16 + 1, 2 * machines + 2);
    Switch::new(move || Forward::new(&config))
}

impl<P: Program> Rack<P> {
    /// Creates a rack. The server provides `memory`, and each machine runs the program that `program` makes.
    pub fn new(
        config: RackConfig,
        memory: Vec<ServerMemory>,
        switch: impl Node,
        mut program: impl FnMut(usize) -> P,
    ) -> Self {
        let mut world = World::new(config.seed);
        let account = SharedAccount::default();
        let nic = |machine: Option<usize>| {
            let interface = Interface::new(mac(machine), ip(machine), 16);
            let seed = config.seed ^ (machine.map_or(0, |machine| machine as u64 + 1)) << 16;
            let host = machine.map_or(0, |machine| machine as u64 + 1);
            let forgetful = draws_forgetful(config.seed, host, config.forgetful);
            let mtu = config.mtu;
            // Capacity for every thread of a rack, and for connections that are being closed
            let key_seed = (machine.is_none() && config.same_keys_after_restart).then_some(seed);
            let config = rnic::Config { seed, key_seed, mtu, forgetful, ..rnic::Config::new(interface) };
            sim::nic(rnic::Config { max_qps: 4096, ..config })
        };
        let switch = world.add("switch", switch, Clock::default());
        let mut host = Host::new(nic(None), Server::new(PORT, memory).keeping_memory(config.keeps_memory));
        if let Some(costs) = &config.costs {
            host = host.with_costs(costs.clone());
        }
        let server = world.add("server", host, Clock::default());
        let server_link = world.connect(server, switch, config.link);
        let (mut machines, mut links) = (Vec::new(), Vec::new());
        for machine in 0..config.machines {
            let connect = if config.cm { ConnectMode::Cm(ip(None), PORT) } else { ConnectMode::OutOfBand };
            let threads = ThreadsConfig {
                ack_timeout: config.ack_timeout,
                retry_count: config.retry_count,
                reconnect_after: config.reconnect_after,
                ..ThreadsConfig::new(config.threads, connect)
            };
            let app = Threads::new(threads, program(machine), account.clone());
            let node = world.add(
                &format!("machine {machine}"),
                Host::new(nic(Some(machine)), app),
                Clock::default(),
            );
            let reorder_by = config.machine_reorder_by.unwrap_or(config.link.reorder_by);
            links.push(world.connect(node, switch, Link { reorder_by, ..config.link }));
            machines.push(node);
        }
        if config.forged_rounds > 0 {
            let address = |machine| (ip(machine), mac(machine));
            let forger = Forger::new(ForgerConfig {
                seed: config.seed,
                own: address(Some(config.machines)),
                targets: vec![address(None)],
                switch: None,
                impersonated: (0..config.machines).map(|machine| address(Some(machine))).collect(),
                words: config.forged_words,
                by_cm: config.cm,
                rounds: config.forged_rounds,
                from: Nanos::from_micros(1),
            });
            let forger = world.add("forger", forger, Clock::default());
            world.connect(forger, switch, config.link);
        }
        let program = core::marker::PhantomData;
        let mut rack =
            Self { world, switch, server, machines, links: (links, server_link), account, config, program };
        if !rack.config.cm {
            rack.connect();
        }
        rack
    }

    /// Connects every thread without the communication manager.
    fn connect(&mut self) {
        let mut rng = Rng::stream(self.config.seed, 0x7261_636b);
        for (machine, node) in self.machines.clone().into_iter().enumerate() {
            for thread in 0..self.config.threads {
                let drawn = [(); 2].map(|()| Psn::new(rng.bits() as u32));
                let psns = self.config.first_psn.map_or(drawn, |first| [first; 2]);
                let own = self.world.with::<Host<Threads<P>>, _>(node, |host, _| {
                    host.app.prepare(&mut host.nic, thread).expect("the NIC has room for every thread")
                });
                let (qpn, regions) = self.world.with::<Host<Server>, _>(self.server, |host, _| {
                    (
                        host.app.prepare(&mut host.nic).expect("the NIC has room for every client"),
                        host.app.regions(),
                    )
                });
                let config = &self.config;
                self.world.with::<Host<Server>, _>(self.server, |host, _| {
                    let path = Path::new(ip(None), ip(Some(machine)));
                    ready(&mut host.nic, qpn, path, own, [psns[1], psns[0]], config);
                });
                self.world.with::<Host<Threads<P>>, _>(node, |host, now| {
                    let path = Path::new(ip(Some(machine)), ip(None));
                    ready(&mut host.nic, own, path, qpn, psns, config);
                    host.app.begin(&mut host.nic, thread, regions, now);
                });
            }
        }
    }

    /// Returns the threads of a machine.
    pub fn threads(&self, machine: usize) -> &Threads<P> {
        &self.world.node::<Host<Threads<P>>>(self.machines[machine]).app
    }

    /// Returns the number of threads of all machines that have finished.
    pub fn done(&self) -> usize {
        (0..self.machines.len()).map(|machine| self.threads(machine).done()).sum()
    }

    /// Returns the server.
    pub fn server(&self) -> &Host<Server> {
        self.world.node(self.server)
    }

    /// Returns the contents of a region of the server's memory.
    pub fn memory(&self, region: usize) -> &[u8] {
        let host = self.server();
        host.app.buffer(region).map_or(&[], |buffer| host.nic.bytes(buffer))
    }

    /// Checks that no thread has ended before it finished.
    ///
    /// # Errors
    /// The first thread that has, and why.
    pub fn check(&self) -> Result<(), String> {
        for machine in 0..self.machines.len() {
            if let Some((thread, why)) = self.threads(machine).stopped().next() {
                return Err(format!("thread {thread} of machine {machine}: {why}"));
            }
        }
        Ok(())
    }

    /// Runs until all threads have finished.
    ///
    /// # Errors
    /// If a thread ends before, or not all have finished after `within`.
    pub fn finish(&mut self, within: Nanos) -> Result<(), String> {
        let (until, all) = (self.world.now() + within, self.config.machines * self.config.threads);
        while self.done() < all {
            self.check()?;
            // Polling every thread takes longer than a step.
            let next = self.world.now() + Nanos::from_micros(100);
            self.world.run_until(next.min(until));
            if self.world.now() >= until && self.done() < all {
                return Err(format!("{} of {all} threads have finished after {within:?}", self.done()));
            }
        }
        Ok(())
    }

    /// Returns the bytes on the machines' links and on the server's so far, in both directions, including
    /// Ethernet's overhead.
    fn wire_bytes(&self) -> (u64, u64) {
        let of = |link: LinkId| -> u64 {
            let counters = self.world.counters(link);
            counters.iter().map(|counters| counters.bytes + counters.sent * OVERHEAD as u64).sum()
        };
        (self.links.0.iter().copied().map(of).sum(), of(self.links.1))
    }

    /// Runs for `warm_up`, then measures for `span`.
    ///
    /// # Errors
    /// If a thread has ended.
    pub fn measure(&mut self, warm_up: Nanos, span: Nanos) -> Result<Outcome, String> {
        self.world.run_until(self.world.now() + warm_up);
        self.account.lock().clear();
        let before = self.wire_bytes();
        self.world.run_until(self.world.now() + span);
        self.check()?;
        let after = self.wire_bytes();
        let account = self.account.lock();
        let operations = [Kind::Lock, Kind::Read, Kind::Write, Kind::Scan]
            .map(|kind| account.operations(kind))
            .iter()
            .sum::<u64>();
        let each = |bytes: u64| bytes as f64 / operations.max(1) as f64;
        Ok(Outcome {
            operations,
            operations_per_s: operations as f64 * 1e9 / span.0 as f64,
            tally: account.tally,
            bytes_per_operation: each(after.0 - before.0),
            server_bytes_per_operation: each(after.1 - before.1),
            latencies: Kind::ALL.map(|kind| Latency::of(&account, kind)),
        })
    }
}

/// Brings a queue pair to RTS. `psns` are the first PSN that it sends and the first that it receives.
fn ready(nic: &mut Rnic, qpn: Qpn, path: Path, dest_qp: Qpn, psns: [Psn; 2], config: &RackConfig) {
    let rtr = ReadyToReceive {
        path,
        dest_qp,
        mtu: config.mtu,
        rq_psn: psns[1],
        max_dest_rd_atomic: 16,
        min_rnr_timer: RnrTimer(1),
    };
    let rts = ReadyToSend {
        sq_psn: psns[0],
        max_rd_atomic: 16,
        timeout: config.ack_timeout,
        retry_count: config.retry_count,
        rnr_retry: 7,
        flow_control: false,
    };
    for modify in [Modify::Init { access: Access::ALL, qkey: 0 }, Modify::Rtr(rtr), Modify::Rts(rts)] {
        nic.modify_qp(qpn, modify).expect("a new queue pair with a path from this host can be connected");
    }
}

/// Latencies of one kind of operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Latency {
    /// Number of operations
    pub operations: u64,
    /// Median
    pub p50: Nanos,
    /// 99th percentile
    pub p99: Nanos,
    /// Maximum
    pub max: Nanos,
}

impl Latency {
    fn of(account: &Account, kind: Kind) -> Self {
        let histogram = account.latency_ns(kind);
        Self {
            operations: histogram.len(),
            p50: Nanos(histogram.value_at_quantile(0.5)),
            p99: Nanos(histogram.value_at_quantile(0.99)),
            max: Nanos(histogram.max()),
        }
    }
}

/// Results of a measurement.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Outcome {
    /// Locks taken, and keys read, written and scanned
    pub operations: u64,
    /// Operations per second
    pub operations_per_s: f64,
    /// Requests, and how many of them succeeded
    pub tally: Tally,
    /// Bytes per operation on the machines' links, in both directions, with Ethernet's preamble and gap
    pub bytes_per_operation: f64,
    /// Bytes per operation on the server's link
    pub server_bytes_per_operation: f64,
    latencies: [Latency; Kind::ALL.len()],
}

impl Outcome {
    /// Returns the latencies of one kind of operations.
    pub fn latency(&self, kind: Kind) -> Latency {
        self.latencies[kind as usize]
    }
}

impl fmt::Display for Outcome {
    /// Writes the results in one line.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:.0} op/s, {:.1} % of tries and {:.1} % of CAS succeed, {:.2} requests and {:.0} bytes an operation",
            self.operations_per_s,
            100.0 * self.tally.hit_share(),
            100.0 * self.tally.cas_share(),
            self.tally.requests() as f64 / self.operations.max(1) as f64,
            self.bytes_per_operation,
        )?;
        for kind in Kind::ALL {
            let Latency { operations, p50, p99, .. } = self.latency(kind);
            if operations > 0 {
                let us = |span: Nanos| span.0 as f64 / 1000.0;
                write!(f, ", {} {:.1} us, 99 % {:.1} us", kind.name(), us(p50), us(p99))?;
            }
        }
        Ok(())
    }
}
