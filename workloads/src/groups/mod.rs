//! A workload for P4CE's groups: leaders open groups through the switch and write. After each acknowledgement
//! the memory of the replicas is inspected. The checks:
//!
//! * the operations of a leader complete in order;
//! * a quorum holds each operation at the moment at which its leader receives the acknowledgement; a replica
//!   that crashed counts with what it held then;
//! * a replica's memory is what its leader wrote up to some byte, and zero after it;
//! * at the end each replica that is still in a group holds what the switch takes it to hold;
//! * messages arrive at each replica in order, each at most once.

pub mod audit;
mod leader;
mod replica;

pub use leader::{LeaderApp, Outcome};
pub use replica::{JoinReply, ReplicaApp};

use core::net::IpAddr;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use p4ce::{Control, P4ce};
use rnic::PathMtu;
use sim::Host;
use std::sync::{Arc, OnceLock};
use switch::Rng;

/// Port on which the switch accepts requests for groups
pub const SWITCH_PORT: u16 = 18_515;
/// Number of the switch's configured list of all replicas
pub const LIST: u32 = 1;
/// Port on which replicas accept connections
pub const REPLICA_PORT: u16 = 7_000;

/// Parameters of the workload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Groups {
    /// Groups of each leader
    pub groups: u32,
    /// Operations of each group
    pub operations: u32,
    /// Outstanding operations of each group
    pub depth: u32,
    /// Longest operation (bytes)
    pub max_size: u32,
    /// Path MTU
    pub mtu: PathMtu,
    /// ACK timeout of the leaders: 4.096 us * 2^`timeout`
    pub timeout: u8,
    /// Retry limit of the leaders; [`rnic::ReadyToSend::NO_LIMIT`] for none
    pub retry_count: u8,
    /// Replicas that have to acknowledge; 0 for a majority
    pub quorum: u8,
    /// Whether a quorum outvotes the other replicas' NAKs
    pub outvote: bool,
    /// Receive requests that a replica posts for each group
    pub receives: u32,
    /// Average number of operations per SEND or WRITE with immediate data; 0 for none of these
    pub messages: u32,
    /// The request for every n-th group names another version of the protocol, from the first group on; 0 for
    /// none
    pub other_versions: u32,
}

impl Default for Groups {
    fn default() -> Self {
        Self {
            groups: 1,
            operations: 50,
            depth: 8,
            max_size: 4096,
            mtu: PathMtu::B1024,
            timeout: 8,
            retry_count: rnic::ReadyToSend::NO_LIMIT,
            quorum: 0,
            outvote: false,
            receives: 16,
            messages: 4,
            other_versions: 0,
        }
    }
}

/// An operation of a leader.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Op {
    pub(crate) kind: Kind,
    /// Offset in the memory; every byte is written once
    pub(crate) at: u64,
    pub(crate) len: u32,
    /// Number of messages before it
    pub(crate) messages: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Write,
    WriteImm,
    Send,
}

impl Groups {
    /// Returns the operations of the group with this seed; its replicas derive the same.
    pub(crate) fn script(&self, seed: u64) -> Vec<Op> {
        let mut rng = Rng::stream(seed, 0x6772_6f75);
        let (mut at, mut messages) = (0, 0);
        (0..self.operations)
            .map(|_| {
                let kind = match rng.below(u64::from(self.messages.max(1))) {
                    0 if self.messages > 0 => [Kind::WriteImm, Kind::Send][rng.below(2) as usize],
                    _ => Kind::Write,
                };
                // All powers of two are equally likely.
                let bits = rng.between(0, u64::from(u32::BITS - self.max_size.leading_zeros()));
                let len = rng.below((1u64 << bits).min(u64::from(self.max_size) + 1)) as u32;
                let op = Op { kind, at, len, messages };
                at += if kind == Kind::Send { 0 } else { u64::from(len) };
                messages += u32::from(kind != Kind::Write);
                op
            })
            .collect()
    }

    /// Returns the bytes of memory that each replica has for a group.
    pub(crate) fn memory(&self, seed: u64) -> u64 {
        let written = self.script(seed).last().map_or(0, |op| op.at + u64::from(op.len));
        written.max(1)
    }
}

/// Returns the bytes that a group writes at an offset. They are never zero, because zero means not written.
pub(crate) fn pattern(seed: u64, at: u64, len: usize) -> Vec<u8> {
    (at..at + len as u64).map(|at| (switch::table::mix(seed ^ (at << 1)) as u8).max(1)).collect()
}

/// Returns the seed of a group, which its leader and its replicas derive from the same numbers.
pub(crate) fn seed_of(seed: u64, leader: IpAddr, port: u16) -> u64 {
    let bits = match leader {
        IpAddr::V4(ip) => u64::from(ip.to_bits()),
        IpAddr::V6(ip) => ip.to_bits() as u64,
    };
    switch::table::mix(seed ^ bits << 20 ^ u64::from(port))
}

/// State that all hosts of a workload share.
#[derive(Debug, Default)]
pub struct SharedGroups {
    /// Set when a leader received an acknowledgement or a check failed; reset by
    /// [`take_check_needed`](Self::take_check_needed)
    check_needed: AtomicBool,
    wrong: OnceLock<String>,
    /// Number of groups that have finished, and of all groups
    done: AtomicU64,
    pub(crate) groups: AtomicU64,
}

impl SharedGroups {
    /// Returns whether a leader received an acknowledgement or a check failed since the last call.
    pub fn take_check_needed(&self) -> bool {
        self.check_needed.swap(false, Relaxed)
    }

    /// Returns whether all groups have finished.
    pub fn is_done(&self) -> bool {
        self.done.load(Relaxed) == self.groups.load(Relaxed)
    }

    /// Records a violation that a host found, if it is the first.
    pub(crate) fn report(&self, wrong: String) {
        _ = self.wrong.set(wrong);
        self.check_needed.store(true, Relaxed);
    }

    /// Returns the first violation that a host found.
    pub fn wrong(&self) -> Option<&str> {
        self.wrong.get().map(String::as_str)
    }
}

/// Reports an operation that a replica of an open group lacks although the switch counts it as held there.
/// `replicas` are all replicas that the leaders name, in this order.
pub fn check_open(
    control: &Control,
    function: &P4ce,
    leaders: &[&Host<LeaderApp>],
    replicas: &[&Host<ReplicaApp>],
) -> Option<String> {
    control.groups().filter_map(|status| function.group(status.id)).find_map(|group| {
        let leader = leaders.iter().find(|leader| leader.app.leads(group))?;
        leader.app.check_group(group, replicas)
    })
}

/// Creates the application of a leader whose groups have these replicas.
pub fn leader(
    groups: &Groups,
    seed: u64,
    own: IpAddr,
    switch: IpAddr,
    replicas: &[IpAddr],
    shared: &Arc<SharedGroups>,
) -> LeaderApp {
    shared.groups.fetch_add(groups.groups.into(), Relaxed);
    LeaderApp::new(groups.clone(), seed, own, switch, replicas.to_vec(), shared.clone())
}
