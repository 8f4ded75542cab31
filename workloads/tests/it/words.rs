//! Clients that contend for words of remote memory, through a plain bridge.

use crate::environment;
use rocev2::{Class, Opcode, Packet, classify};
use sim::{Clock, Fault, Link, Switch};
use switch::Nanos;
use switch::forward::{Config as ForwardConfig, Forward};
use switch::{Frame, Function, Output, PortId, Probability, Rng, Verdict};
use workloads::words::{Cluster, Config, Sides, Totals, Verb};

use crate::drawn::{drawn, drift, may_fail, schedule_faults};

const LIMIT: Nanos = Nanos::from_secs(100);
/// Seeds of each test in `make test`; `make soak` runs others.
const SEEDS: u64 = 20;

/// Draws the capacity of the bridge's MAC table in a quarter of the seeds: one to four addresses. Frames to
/// other addresses are flooded.
fn small_mac_table(seed: u64) -> Option<usize> {
    let mut rng = Rng::stream(seed, 0x7374_6174);
    (rng.below(4) == 0).then(|| rng.between(1, 4) as usize)
}

fn forward(config: &Config) -> Forward {
    Forward::new(&ForwardConfig::bridge(config.ports(), small_mac_table(config.seed).unwrap_or(1024)))
}

/// Share of NICs that do not keep the results of old READs and atomics, as soft-RoCE does not
const FORGETFUL: Probability = Probability::percent(50);

/// Builds a cluster around a plain bridge.
fn bridge(config: &Config) -> Cluster {
    Cluster::new(config, |world, _| {
        let config = config.clone();
        world.add("switch", Switch::new(move || forward(&config)), Clock::default())
    })
}

/// Runs a seed. Returns the totals of its clients, and how many packets the first server refused because it
/// has no such queue pair connected to their sender. These packets were forged.
fn run(config: &Config, prepare: impl FnOnce(&mut Cluster)) -> (Totals, u64) {
    let mut net = bridge(config);
    drift(&mut net);
    prepare(&mut net);
    net.run(LIMIT).unwrap_or_else(|wrong| panic!("seed {}: {wrong}\n{config:?}", config.seed));
    (net.totals(), net.server_counters(0).no_qp)
}

#[test]
fn a_seed_determines_the_whole_run() {
    let digest = |seed| {
        let (config, mut rng) = drawn(seed, FORGETFUL);
        let mut net = bridge(&Config { may_fail: true, retry_count: 7, timeout: 6, ..config });
        drift(&mut net);
        schedule_faults(&mut net, &mut rng);
        net.run(LIMIT).unwrap();
        (net.world.digest(), net.totals())
    };
    for seed in 1..10 {
        assert_eq!(digest(seed), digest(seed), "seed {seed}");
    }
}

#[test]
fn contended_words_and_locks_are_consistent_without_faults() {
    let (totals, _) = run(&Config { operations: 200, sections: 20, depth: 3, ..Config::default() }, |_| {});
    assert_eq!((totals.broken, totals.unknown), (0, 0));
    for (verb, count) in Verb::ALL.into_iter().zip(totals.operations) {
        assert!(count > 10, "{verb:?}: {count}");
    }
    assert!(totals.swapped > 10 && totals.sections > 40, "{totals:?}");
}

#[test]
fn clients_and_servers_work_with_a_switch_each() {
    let config = Config { clients: 6, servers: 2, ..Config::default() };
    let mut net = Cluster::new(&config, |world, wiring| {
        assert_eq!((wiring.ports, wiring.servers.len(), wiring.clients.len()), (8, 2, 6));
        let [clients, servers] = ["rack", "memory"].map(|name| {
            let config = config.clone();
            world.add(name, Switch::new(move || forward(&config)), Clock::default())
        });
        world.connect(clients, servers, Link::default());
        Sides { clients, servers }
    });
    net.run(LIMIT).unwrap();
    assert!(net.totals().operations.iter().sum::<u64>() == 6 * 2 * 40, "{:?}", net.totals());
}

#[test]
fn lossy_links_break_no_connection() {
    let (mut all, mut forged) = (Totals::default(), 0);
    for seed in environment::seeds("words", SEEDS) {
        let (config, _) = drawn(seed, FORGETFUL);
        let (totals, refused) = run(&config, |_| {});
        forged += refused;
        assert_eq!((totals.broken, totals.unknown), (0, 0), "seed {seed}");
        all.add(&totals);
    }
    println!("{all:?}, {forged} forged");
    // A single seed that is run again need not cover everything.
    assert!(
        !environment::selects_default_seeds() || all.swapped.min(all.sections) > 160 && forged > 30,
        "{all:?}, {forged} forged"
    );
}

#[test]
fn crashes_leave_words_consistent() {
    let mut all = Totals::default();
    for seed in environment::seeds("words", SEEDS) {
        let (config, mut rng) = drawn(seed, FORGETFUL);
        let config = may_fail(&config, &mut rng);
        all.add(&run(&config, |net| schedule_faults(net, &mut rng)).0);
    }
    println!("{all:?}");
    assert!(!environment::selects_default_seeds() || all.broken.min(all.unknown) > 120, "{all:?}");
}

/// An error of a switch that responds for a server. It occurs for some packets, at random.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Forgery {
    /// The response to an atomic carries the previous atomic's original value: a stale cached word.
    StaleAtomic,
    /// A READ of a word returns what the previous READ returned.
    StaleRead,
    /// A WRITE of a word writes what the previous WRITE wrote.
    StaleWrite,
    /// A `FetchAdd` adds twice its operand.
    AddTwice,
    /// The response to a `CmpSwap` that failed reports success.
    FalseSuccess,
    /// A page keeps its old contents: bytes of a long WRITE are lost.
    LostPage,
    /// The response to an atomic goes to a queue pair that does not exist.
    LostAtomicResponse,
    /// An acknowledgement becomes a NAK with a remote access error.
    ForgedNak,
}

/// A bridge that forges packets.
struct Forger {
    bridge: Forward,
    forgery: Forgery,
    rng: Rng,
    previous: [u8; 8],
    /// The value that the last `CmpSwap` compared with
    compared: [u8; 8],
}

impl Forger {
    fn new(config: &Config, forgery: Forgery) -> Self {
        let rng = Rng::new(config.seed);
        Self { bridge: forward(config), forgery, rng, previous: [0; 8], compared: [0; 8] }
    }

    /// Returns the offset of the eight bytes of a packet that are forged, and their new value.
    fn forgery(&mut self, packet: &Packet<'_>) -> Option<(usize, [u8; 8])> {
        let (opcode, at) = (packet.bth().opcode(), packet.layout().payload());
        let bytes = |at: usize| *packet.bytes()[at..].first_chunk().unwrap();
        let is_word = packet.payload().len() == 8;
        let at = match self.forgery {
            Forgery::StaleAtomic | Forgery::FalseSuccess if opcode == Opcode::RC_ATOMIC_ACKNOWLEDGE => at - 8,
            Forgery::StaleRead if opcode == Opcode::RC_READ_RESPONSE_ONLY && is_word => at,
            Forgery::StaleWrite if opcode == Opcode::RC_WRITE_ONLY && is_word => at,
            Forgery::AddTwice if opcode == Opcode::RC_FETCH_ADD => at - 16,
            Forgery::LostPage if opcode == Opcode::RC_WRITE_FIRST => at,
            Forgery::LostAtomicResponse if opcode == Opcode::RC_ATOMIC_ACKNOWLEDGE => at - 20,
            Forgery::ForgedNak if opcode == Opcode::RC_ACKNOWLEDGE => at - 4,
            Forgery::FalseSuccess if opcode == Opcode::RC_COMPARE_SWAP => {
                self.compared = bytes(at - 8);
                return None;
            }
            _ => return None,
        };
        let now = bytes(at);
        let forged = match self.forgery {
            Forgery::AddTwice => (u64::from_be_bytes(now) * 2).to_be_bytes(),
            Forgery::FalseSuccess => self.compared,
            Forgery::LostPage => [0; 8],
            // Reserved byte and destination QPN, followed by the A bit and the PSN
            Forgery::LostAtomicResponse => {
                [[0, 0xff, 0xff, 0xff], [now[4], now[5], now[6], now[7]]].concat().try_into().unwrap()
            }
            Forgery::ForgedNak => [0x62, now[1], now[2], now[3], now[4], now[5], now[6], now[7]],
            _ => self.previous,
        };
        self.previous = now;
        (self.rng.below(8) == 0).then_some((at, forged))
    }
}

impl Function for Forger {
    type Command = <Forward as Function>::Command;
    type Event = <Forward as Function>::Event;

    fn on_frame<O: Output>(
        &mut self,
        frame: &mut O::Frame,
        port: PortId,
        now: Nanos,
        out: &mut O,
    ) -> Verdict {
        if let Class::Roce(layout) = classify(frame.bytes())
            && let Some((at, forged)) = self.forgery(&Packet::new(frame.bytes(), layout))
        {
            let bytes = frame.bytes_mut();
            bytes[at..at + 8].copy_from_slice(&forged);
            let icrc = rocev2::icrc::compute(bytes, &layout).to_le_bytes();
            bytes[layout.icrc()..layout.icrc() + 4].copy_from_slice(&icrc);
        }
        self.bridge.on_frame(frame, port, now, out)
    }

    fn on_timer<O: Output>(&mut self, now: Nanos, out: &mut O) {
        self.bridge.on_timer(now, out);
    }

    fn next_timer(&self) -> Option<Nanos> {
        self.bridge.next_timer()
    }

    fn on_command(&mut self, command: Self::Command, now: Nanos) {
        self.bridge.on_command(command, now);
    }

    fn poll_event(&mut self) -> Option<Self::Event> {
        self.bridge.poll_event()
    }
}

#[test]
fn forged_packets_are_found() {
    let forgeries = [
        Forgery::StaleAtomic,
        Forgery::StaleRead,
        Forgery::StaleWrite,
        Forgery::AddTwice,
        Forgery::FalseSuccess,
        Forgery::LostPage,
    ];
    for forgery in forgeries {
        let mut found = 0;
        for seed in 1..=20 {
            let config = Config { seed, sections: 10, ..Config::default() };
            let mut net = Cluster::new(&config, |world, _| {
                let config = config.clone();
                let forger = move || Forger::new(&config, forgery);
                world.add("switch", Switch::new(forger), Clock::default())
            });
            found += u32::from(net.run(LIMIT).is_err());
        }
        assert!(found >= 18, "{forgery:?} was found in {found} of 20 seeds");
    }
}

/// Returns the violation that is found where a switch forges packets and connections may break. The only
/// fault is a short pause of one client.
fn violation_with(forgery: Forgery, shares_fate: bool) -> String {
    let plain = Config { operations: 400, sections: 0, ..Config::default() };
    let config = Config { may_fail: true, retry_count: 0, timeout: 5, shares_fate, ..plain };
    let mut net = Cluster::new(&config, |world, _| {
        let config = config.clone();
        world.add("switch", Switch::new(move || Forger::new(&config, forgery)), Clock::default())
    });
    net.schedule(Nanos(1), Fault::Pause(net.clients[0]));
    net.schedule(Nanos(2), Fault::Resume(net.clients[0]));
    net.run(LIMIT).unwrap_err()
}

#[test]
fn connection_failures_without_a_cause_are_found() {
    let wrong = violation_with(Forgery::LostAtomicResponse, false);
    assert!(wrong.contains("RetryExceeded") && wrong.contains("nothing that happened"), "{wrong}");
    let wrong = violation_with(Forgery::ForgedNak, true);
    assert!(wrong.contains("RemoteAccess") && wrong.contains("nothing that happened"), "{wrong}");
    // One fault explains only one failure of a connection.
    let wrong = violation_with(Forgery::LostAtomicResponse, true);
    assert!(wrong.contains("broke 2 times in use") && wrong.contains("1 faults"), "{wrong}");
}

#[cfg(debug_assertions)]
#[test]
fn planted_bugs_are_found() {
    // Servers send no requests of their own that could starve, and revoke no rights. `tests/it/verbs.rs`
    // finds these bugs.
    let elsewhere = [rnic::Bug::ResponsesFirst, rnic::Bug::PaceExcuses, rnic::Bug::AnyAccess];
    for bug in rnic::Bug::ALL.into_iter().filter(|bug| !elsewhere.contains(bug)) {
        let wrong = |seed, bug| {
            let mut net = bridge(&Config { bug, ..drawn(seed, FORGETFUL).0 });
            drift(&mut net);
            // Where a client waits forever, the others repeat requests until the end.
            net.run(Nanos::from_secs(1)).err()
        };
        let found = environment::find_bug("words", &bug, 1..1001, |seed| {
            wrong(seed, Some(bug)).filter(|_| wrong(seed, None).is_none())
        });
        let (seed, wrong) = found.unwrap_or_else(|| panic!("{bug:?} was not found"));
        println!("{bug:?}: seed {seed}: {wrong}");
    }
}
