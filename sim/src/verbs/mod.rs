//! A workload that uses every verb, and checks that each does what it is for: completions exactly once and in order,
//! messages as they were sent, memory as a model has it, READs that see what was there, atomics in one order that
//! explains them all (linearizable).
//!
//! Both ends of a connection know from the seed what the other will do ([`Stream`](stream::Stream)), so that a receiver
//! knows what comes next. What an end writes to lies in memory that only its connection writes to; words for atomics are
//! shared by all connections to a host.

mod app;
mod end;
mod stream;
mod unreliable;

pub use app::VerbsApp;

use crate::host::Host;
use crate::words::linear::{self, Rules};
use crate::world::{NodeId, World};
use core::net::IpAddr;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
pub(crate) use end::WORDS_VA;
use end::{Connection, PeerMemory};
use rnic::{Access, Modify, Path, PathMtu, ReadyToReceive, ReadyToSend, Rnic, Transport};
use rocev2::aeth::RnrTimer;
use rocev2::{Psn, Qpn};
use std::sync::Arc;
use switch::Chance;

/// What the connections do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verbs {
    /// Reliable connections between each two hosts
    pub connections: u32,
    /// Unreliable ones (UC), beside them
    pub unreliable: u32,
    /// Operations of each end of a connection
    pub operations: u32,
    /// Requests outstanding at once
    pub depth: u32,
    /// The longest message; a length is as likely to be short as to be long (bytes)
    pub max_size: u32,
    /// How often each verb is used, in the order of [`Verb::ALL`]
    pub mix: [u32; Verb::ALL.len()],
    /// Path MTU
    pub mtu: PathMtu,
    /// ACK time-out: 4.096 us times two to this
    pub timeout: u8,
    /// [`ReadyToSend::NO_LIMIT`] for no limit: then no operation may fail
    pub retry_count: u8,
    /// Receive requests that each end posts at once
    pub receives: u32,
    /// The time after which a receive request that was used is posted again, at most; makes receivers that are not ready
    pub repost_us: u32,
    /// For how long a sender waits for such a receiver (IB table 45)
    pub rnr_timer: u8,
    /// READs and atomics outstanding at once
    pub max_rd_atomic: u8,
    /// Words for atomics at each host
    pub words: u32,
    /// Whether the ends of a host share one receive queue
    pub srq: bool,
    /// Credits
    pub flow_control: bool,
    /// Whether one end of each connection keeps READs under way until the other end has done everything
    pub background_reads: bool,
    /// Each host takes the rights of one of its connections away within so long (microseconds); 0 for never
    pub revoke_us: u32,
}

impl Default for Verbs {
    fn default() -> Self {
        Self {
            connections: 1,
            unreliable: 0,
            operations: 20,
            depth: 8,
            max_size: 65536,
            mix: [1; Verb::ALL.len()],
            mtu: PathMtu::B1024,
            timeout: 8,
            retry_count: ReadyToSend::NO_LIMIT,
            receives: 8,
            repost_us: 0,
            rnr_timer: 1,
            max_rd_atomic: 4,
            words: 2,
            srq: false,
            flow_control: false,
            background_reads: false,
            revoke_us: 0,
        }
    }
}

/// A verb.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Verb {
    /// RDMA WRITE
    Write,
    /// RDMA WRITE with immediate
    WriteImm,
    /// SEND
    Send,
    /// SEND with immediate
    SendImm,
    /// RDMA READ
    Read,
    /// `CmpSwap`
    CompareSwap,
    /// `FetchAdd`
    FetchAdd,
}

impl Verb {
    /// Every verb.
    pub const ALL: [Self; 7] = [
        Self::Write,
        Self::WriteImm,
        Self::Send,
        Self::SendImm,
        Self::Read,
        Self::CompareSwap,
        Self::FetchAdd,
    ];

    /// Its name in scenarios
    pub const fn name(self) -> &'static str {
        match self {
            Self::Write => "write",
            Self::WriteImm => "write_imm",
            Self::Send => "send",
            Self::SendImm => "send_imm",
            Self::Read => "read",
            Self::CompareSwap => "compare_swap",
            Self::FetchAdd => "fetch_add",
        }
    }

    /// Whether it takes a receive request of the other side.
    const fn takes_receive(self) -> bool {
        matches!(self, Self::WriteImm | Self::Send | Self::SendImm)
    }
}

/// What all hosts of a workload share.
#[derive(Debug, Default)]
pub struct Shared {
    /// Counts what happens, in the order in which it happens
    ticks: AtomicU64,
    wrong: AtomicBool,
    /// Ends that have nothing left to do
    done: AtomicU64,
    ends: AtomicU64,
}

impl Shared {
    fn tick(&self) -> u64 {
        self.ticks.fetch_add(1, Relaxed)
    }

    /// Something is wrong: the run may end.
    pub fn is_wrong(&self) -> bool {
        self.wrong.load(Relaxed)
    }

    /// Everything is done.
    pub fn is_done(&self) -> bool {
        self.done.load(Relaxed) == self.ends.load(Relaxed)
    }
}

/// What stands in the memory that messages are taken from: the same at every host.
fn pattern(seed: u64, len: usize) -> Arc<[u8]> {
    let mut chance = Chance::stream(seed, 0x7061_7474);
    let mut bytes = Vec::with_capacity(len + 8);
    while bytes.len() < len {
        bytes.extend(chance.bits().to_le_bytes());
    }
    bytes.truncate(len);
    bytes.into()
}

/// Makes the applications of a workload, one a host.
pub fn apps(verbs: &Verbs, seed: u64, hosts: usize, may_fail: bool) -> (Vec<VerbsApp>, Arc<Shared>) {
    let shared = Arc::new(Shared::default());
    let pattern = pattern(seed, verbs.max_size as usize + stream::SPREAD as usize);
    let apps =
        (0..hosts).map(|host| VerbsApp::new(verbs, seed, host, pattern.clone(), shared.clone(), may_fail));
    (apps.collect(), shared)
}

/// Connects every two hosts, as if their numbers had been exchanged by another way.
pub fn connect(world: &mut World, hosts: &[(NodeId, IpAddr)], verbs: &Verbs, seed: u64) {
    let mut chance = Chance::stream(seed, 0x636f_6e6e);
    let mut number = 0;
    for (transport, count) in [(Transport::Rc, verbs.connections), (Transport::Uc, verbs.unreliable)] {
        for first in 0..hosts.len() {
            for second in first + 1..hosts.len() {
                for _ in 0..count {
                    let pair = Pair { transport, hosts: [first, second], number };
                    connect_two(world, hosts, &pair, verbs, seed, &mut chance);
                    number += 1;
                }
            }
        }
    }
}

/// A connection to be made.
struct Pair {
    transport: Transport,
    hosts: [usize; 2],
    number: u64,
}

/// A PSN to begin with: often just before the end of all PSNs, where things break.
fn first_psn(chance: &mut Chance) -> Psn {
    if chance.below(2) == 0 {
        Psn::new((0u32).wrapping_sub(chance.between(1, 64) as u32))
    } else {
        Psn::new(chance.bits() as u32)
    }
}

fn connect_two(
    world: &mut World,
    hosts: &[(NodeId, IpAddr)],
    &Pair { transport, hosts: pair, number }: &Pair,
    verbs: &Verbs,
    seed: u64,
    chance: &mut Chance,
) {
    let psns = [first_psn(chance), first_psn(chance)];
    let broken = Arc::new(AtomicBool::new(false));
    let finished = [(); 2].map(|()| Arc::new(AtomicBool::new(false)));
    let made: [(Qpn, PeerMemory); 2] = [0, 1].map(|side| {
        let from_seed = switch::table::mix(seed ^ switch::table::mix(number * 2 + side as u64 + 1));
        let to_seed = switch::table::mix(seed ^ switch::table::mix(number * 2 + (1 - side) as u64 + 1));
        let (seeds, broken, peer_host) = ([from_seed, to_seed], broken.clone(), pair[1 - side]);
        let [own, other] = [side, 1 - side].map(|side| finished[side].clone());
        let reads_until = (verbs.background_reads && side == 1).then_some(other);
        let connection = Connection { number, peer_host, seeds, broken, finished: own, reads_until };
        world.with(hosts[pair[side]].0, |host: &mut Host<VerbsApp>, _| match transport {
            Transport::Uc => host.app.add_unreliable(&mut host.nic, seeds),
            _ => host.app.add_end(&mut host.nic, connection),
        })
    });
    for side in [0, 1] {
        let (host, address) = hosts[pair[side]];
        let (other, memory) = made[1 - side];
        let ready_to_receive = ReadyToReceive {
            path: Path::new(address, hosts[pair[1 - side]].1),
            dest_qp: other,
            mtu: verbs.mtu,
            rq_psn: psns[1 - side],
            max_dest_rd_atomic: verbs.max_rd_atomic,
            min_rnr_timer: RnrTimer(verbs.rnr_timer),
        };
        let ready_to_send = ReadyToSend {
            sq_psn: psns[side],
            max_rd_atomic: verbs.max_rd_atomic,
            timeout: verbs.timeout,
            retry_count: verbs.retry_count,
            rnr_retry: 7,
            flow_control: verbs.flow_control,
        };
        world.with(host, |host: &mut Host<VerbsApp>, _| {
            let qpn = made[side].0;
            for modify in [Modify::Rtr(ready_to_receive), Modify::Rts(ready_to_send)] {
                host.nic.modify_qp(qpn, modify).expect("a queue pair that was just made");
            }
            host.app.connected(qpn, memory);
        });
    }
}

/// Lets the applications begin.
pub fn begin(world: &mut World, hosts: &[(NodeId, IpAddr)]) {
    for (host, _) in hosts {
        world.with(*host, |host: &mut Host<VerbsApp>, now| host.app.begin(&mut host.nic, now));
    }
}

/// What is wrong at the end, if anything: what the applications saw, and what memory and the atomics tell.
pub fn check(world: &World, hosts: &[(NodeId, IpAddr)]) -> Option<String> {
    let apps: Vec<&Host<VerbsApp>> = hosts.iter().map(|(host, _)| world.node(*host)).collect();
    if let Some(wrong) = apps.iter().find_map(|host| host.app.wrong()) {
        return Some(wrong.to_owned());
    }
    for (number, host) in apps.iter().enumerate() {
        // What the memory of a host that restarted held is forgotten. What was seen of it is not.
        let remembers = host.lives == 1;
        if let Some(wrong) = host.app.check_failures(&apps) {
            return Some(wrong);
        }
        if remembers && let Some(wrong) = check_host(&apps, number) {
            return Some(wrong);
        }
        for word in 0..host.app.words() {
            let atomics = apps.iter().flat_map(|other| other.app.atomics_of(number));
            let ops: Vec<_> = atomics.filter(|atomic| atomic.word == word).map(|atomic| atomic.op).collect();
            let last = remembers.then(|| host.app.word(&host.nic, word));
            if let Err(wrong) = linear::check(&ops, 0, last, Rules::default()) {
                return Some(format!("word {word} of host {number}: {wrong}"));
            }
        }
    }
    None
}

/// Returns what is wrong with what a host received, and with what it wrote to others.
fn check_host(apps: &[&Host<VerbsApp>], number: usize) -> Option<String> {
    let host = apps[number];
    let wrong = host.app.check_left_over(&host.nic).or(host.app.check_revoked(&host.nic));
    let wrong_memory = |end: &end::End| {
        let other = apps[end.peer_host];
        let intact = !end.is_broken() && other.lives == 1;
        intact.then(|| end.check_memory(&other.nic, &other.app, number)).flatten()
    };
    wrong.or_else(|| host.app.ends().iter().find_map(wrong_memory))
}

/// A buffer and a region on all of it.
fn memory(nic: &mut Rnic, pd: rnic::Pd, bytes: Vec<u8>, va: u64) -> (rnic::Buffer, rnic::Mr) {
    let len = bytes.len();
    let buffer = nic.alloc(bytes).expect("room for a buffer");
    (buffer, nic.register(pd, buffer, 0..len, va, Access::ALL).expect("room for a region"))
}
