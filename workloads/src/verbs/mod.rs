//! A workload that uses every verb, and checks the effect of each: completions exactly once and in order,
//! messages as they were sent, memory as in a model, READs that return the modelled contents, and atomics in
//! one order that explains all results (linearizable).
//!
//! Both ends of a connection derive from the seed what the other end does (`stream.rs`), so a
//! receiver expects particular messages. Each end writes to memory of its own that no other connection writes
//! to; words for atomics are shared by all connections to a host.

mod app;
mod end;
mod stream;
mod unreliable;
mod workload;

pub use app::VerbsApp;
pub use workload::{Shared, Verb, Verbs};

use crate::words::linear::{self, Rules};
use core::net::IpAddr;
use core::sync::atomic::AtomicBool;
pub(crate) use end::WORDS_VA;
use end::{Connection, PeerMemory};
use rnic::{Modify, Path, ReadyToReceive, ReadyToSend, Transport};
use rocev2::aeth::RnrTimer;
use rocev2::{Psn, Qpn};
use sim::{Host, NodeId, World};
use std::sync::Arc;
use switch::Rng;

/// Returns the contents of the memory that messages are sent from; the same at every host.
fn pattern(seed: u64, len: usize) -> Arc<[u8]> {
    let mut rng = Rng::stream(seed, 0x7061_7474);
    let mut bytes = Vec::with_capacity(len + 8);
    while bytes.len() < len {
        bytes.extend(rng.bits().to_le_bytes());
    }
    bytes.truncate(len);
    bytes.into()
}

/// Creates the applications of a workload, one per host. `may_fail` allows operations to fail.
pub fn apps(verbs: &Verbs, seed: u64, hosts: usize, may_fail: bool) -> (Vec<VerbsApp>, Arc<Shared>) {
    let shared = Arc::new(Shared::default());
    let pattern = pattern(seed, verbs.max_size as usize + stream::SOURCE_OFFSETS as usize);
    let apps =
        (0..hosts).map(|host| VerbsApp::new(verbs, seed, host, pattern.clone(), shared.clone(), may_fail));
    (apps.collect(), shared)
}

/// Connects every two hosts with given queue pair numbers and PSNs, without the communication manager.
pub fn connect(world: &mut World, hosts: &[(NodeId, IpAddr)], verbs: &Verbs, seed: u64) {
    let mut rng = Rng::stream(seed, 0x636f_6e6e);
    let mut number = 0;
    for (transport, count) in [(Transport::Rc, verbs.connections), (Transport::Uc, verbs.unreliable)] {
        for first in 0..hosts.len() {
            for second in first + 1..hosts.len() {
                for _ in 0..count {
                    let pair = Pair { transport, hosts: [first, second], number };
                    connect_two(world, hosts, &pair, verbs, seed, &mut rng);
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

/// Draws an initial PSN: in half of the cases just below 2^24, so that it wraps around soon.
fn first_psn(rng: &mut Rng) -> Psn {
    if rng.below(2) == 0 {
        Psn::new((0u32).wrapping_sub(rng.between(1, 64) as u32))
    } else {
        Psn::new(rng.bits() as u32)
    }
}

fn connect_two(
    world: &mut World,
    hosts: &[(NodeId, IpAddr)],
    &Pair { transport, hosts: pair, number }: &Pair,
    verbs: &Verbs,
    seed: u64,
    rng: &mut Rng,
) {
    let psns = [first_psn(rng), first_psn(rng)];
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
                host.nic.modify_qp(qpn, modify).expect("a new queue pair can be connected");
            }
            host.app.connected(qpn, memory);
        });
    }
}

/// Starts the applications.
pub fn begin(world: &mut World, hosts: &[(NodeId, IpAddr)]) {
    for (host, _) in hosts {
        world.with(*host, |host: &mut Host<VerbsApp>, now| host.app.begin(&mut host.nic, now));
    }
}

/// Returns the first violation: what the applications found, then memory and the order of the atomics.
pub fn check(world: &World, hosts: &[(NodeId, IpAddr)]) -> Option<String> {
    let apps: Vec<&Host<VerbsApp>> = hosts.iter().map(|(host, _)| world.node(*host)).collect();
    if let Some(wrong) = apps.iter().find_map(|host| host.app.wrong()) {
        return Some(wrong.to_owned());
    }
    for (number, host) in apps.iter().enumerate() {
        // The memory of a host that restarted is lost. Results of atomics on it remain.
        let kept_memory = host.starts == 1;
        if let Some(wrong) = host.app.check_failures(&apps) {
            return Some(wrong);
        }
        if kept_memory && let Some(wrong) = check_host(&apps, number) {
            return Some(wrong);
        }
        for word in 0..host.app.words() {
            let atomics = apps.iter().flat_map(|other| other.app.atomics_of(number));
            let ops: Vec<_> = atomics.filter(|atomic| atomic.word == word).map(|atomic| atomic.op).collect();
            let last = kept_memory.then(|| host.app.word(&host.nic, word));
            if let Err(wrong) = linear::check(&ops, 0, last, Rules::default()) {
                return Some(format!("word {word} of host {number}: {wrong}"));
            }
        }
    }
    None
}

/// Returns what is wrong with what a host received, or with what it wrote to other hosts.
fn check_host(apps: &[&Host<VerbsApp>], number: usize) -> Option<String> {
    let host = apps[number];
    let wrong = host.app.check_left_over(&host.nic).or(host.app.check_revoked(&host.nic));
    let wrong_memory = |end: &end::End| {
        let other = apps[end.peer_host];
        let intact = !end.is_broken() && other.starts == 1;
        intact.then(|| end.check_memory(&other.nic, &other.app, number)).flatten()
    };
    wrong.or_else(|| host.app.ends().iter().find_map(wrong_memory))
}
