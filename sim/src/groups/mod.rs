//! A workload for P4CE's groups: leaders open groups through the switch and write; whenever one is acknowledged, the
//! memory of the replicas is looked at. What it checks:
//!
//! * operations of a leader complete in their order;
//! * what a leader takes for done is held by a quorum, at that moment; a replica that crashed held what it had then;
//! * a replica's memory is what its leader wrote, up to some byte, and nothing behind it;
//! * in the end each replica that is still in a group holds what the switch takes it to hold;
//! * messages come to each replica in order, each at most once.

pub mod audit;
mod leader;
mod replica;

pub use leader::{LeaderApp, Outcome};
pub use replica::{Answers, ReplicaApp};

use crate::Host;
use core::net::IpAddr;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use p4ce::{Control, P4ce};
use rnic::PathMtu;
use std::sync::{Arc, OnceLock};
use switch::Chance;

/// The port at which the switch is asked for groups
pub const SWITCH_PORT: u16 = 18_515;
/// The number of the list that the switch has of all replicas
pub const LIST: u32 = 1;
/// The port at which replicas listen
pub const REPLICA_PORT: u16 = 7_000;

/// What the groups do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Groups {
    /// Groups of each leader
    pub groups: u32,
    /// Operations of each group
    pub operations: u32,
    /// Operations outstanding at once
    pub depth: u32,
    /// The longest (bytes)
    pub max_size: u32,
    /// Path MTU
    pub mtu: PathMtu,
    /// ACK time-out of the leaders: 4.096 us times two to this
    pub timeout: u8,
    /// Their tries; [`rnic::ReadyToSend::NO_LIMIT`] for no limit
    pub retry_count: u8,
    /// Replicas that have to acknowledge; 0 for a majority
    pub quorum: u8,
    /// Whether a quorum outvotes the others
    pub outvote: bool,
    /// Receive requests that a replica posts for each group
    pub receives: u32,
    /// Of so many operations, one is a SEND or a WRITE with immediate; 0 for none
    pub messages: u32,
    /// Of so many groups, the first is asked for in another version of the protocol; 0 for none
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

/// An operation of a leader's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Op {
    pub(crate) kind: Kind,
    /// Where in the memory it is written to; every byte is written to once
    pub(crate) at: u64,
    pub(crate) len: u32,
    /// Messages before it
    pub(crate) messages: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Write,
    WriteImm,
    Send,
}

impl Groups {
    /// What a group of this number does, which its replicas know as well.
    pub(crate) fn script(&self, seed: u64) -> Vec<Op> {
        let mut chance = Chance::stream(seed, 0x6772_6f75);
        let (mut at, mut messages) = (0, 0);
        (0..self.operations)
            .map(|_| {
                let kind = match chance.below(u64::from(self.messages.max(1))) {
                    0 if self.messages > 0 => [Kind::WriteImm, Kind::Send][chance.below(2) as usize],
                    _ => Kind::Write,
                };
                // As likely short as long
                let bits = chance.between(0, u64::from(u32::BITS - self.max_size.leading_zeros()));
                let len = chance.below((1u64 << bits).min(u64::from(self.max_size) + 1)) as u32;
                let op = Op { kind, at, len, messages };
                at += if kind == Kind::Send { 0 } else { u64::from(len) };
                messages += u32::from(kind != Kind::Write);
                op
            })
            .collect()
    }

    /// Bytes of memory that every replica has for a group
    pub(crate) fn memory(&self, seed: u64) -> u64 {
        let written = self.script(seed).last().map_or(0, |op| op.at + u64::from(op.len));
        written.max(1)
    }
}

/// Bytes that a group writes: never zero, which stands for nothing.
pub(crate) fn pattern(seed: u64, at: u64, len: usize) -> Vec<u8> {
    (at..at + len as u64).map(|at| (switch::table::mix(seed ^ (at << 1)) as u8).max(1)).collect()
}

/// What a group is to all that have to do with it.
pub(crate) fn seed_of(seed: u64, leader: IpAddr, port: u16) -> u64 {
    let bits = match leader {
        IpAddr::V4(ip) => u64::from(ip.to_bits()),
        IpAddr::V6(ip) => ip.to_bits() as u64,
    };
    switch::table::mix(seed ^ bits << 20 ^ u64::from(port))
}

/// What all hosts of a workload share.
#[derive(Debug, Default)]
pub struct SharedGroups {
    /// A leader has taken something for done, or something is wrong, since this was looked at
    news: AtomicBool,
    wrong: OnceLock<String>,
    /// Groups that have nothing left to do, and groups
    done: AtomicU64,
    pub(crate) groups: AtomicU64,
}

impl SharedGroups {
    /// Whether a leader has taken something for done, or something is wrong, since this was asked last.
    pub fn take_news(&self) -> bool {
        self.news.swap(false, Relaxed)
    }

    /// Everything is done.
    pub fn is_done(&self) -> bool {
        self.done.load(Relaxed) == self.groups.load(Relaxed)
    }

    /// Notes what a host saw and must not be, if it is the first thing.
    pub(crate) fn note(&self, wrong: String) {
        _ = self.wrong.set(wrong);
        self.news.store(true, Relaxed);
    }

    /// The first thing that a host saw and that must not be
    pub fn wrong(&self) -> Option<&str> {
        self.wrong.get().map(String::as_str)
    }
}

/// Says what a replica does not hold of what the switch takes it to hold, in any group that is open. `replicas` are all that
/// the leaders name, in their order.
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

/// Makes a leader of groups of these replicas.
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
