//! Workloads of scenarios.

use super::number::NumberRange;
use crate::groups::Groups;
use crate::verbs::{Verb, Verbs};
use rnic::{PathMtu, ReadyToSend};
use switch::Rng;

/// Workload of the hosts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Work {
    /// Each two hosts use every verb
    Verbs(VerbsSpec),
    /// Some hosts lead groups, of which the others are the replicas
    Groups(GroupsSpec),
}

/// See [`Verbs`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VerbsSpec {
    /// Reliable connections between each two hosts
    pub connections: NumberRange,
    /// Unreliable connections between each two hosts
    pub unreliable: NumberRange,
    /// Operations of each end
    pub operations: NumberRange,
    /// Outstanding requests of each end
    pub depth: NumberRange,
    /// Longest message (bytes)
    pub max_size: NumberRange,
    /// Verbs in use
    pub verbs: Vec<Verb>,
    /// Binary logarithm of the path MTU
    pub mtu_log2: NumberRange,
    /// ACK timeout: 4.096 us * 2^`timeout`
    pub timeout: NumberRange,
    /// Retry limit; [`ReadyToSend::NO_LIMIT`] for none
    pub retry_count: NumberRange,
    /// Receive requests that each end keeps posted
    pub receives: NumberRange,
    /// Upper bound of the time until a used receive request is posted again (us)
    pub repost_us: NumberRange,
    /// Minimum RNR NAK timer, as encoded (IB table 45)
    pub rnr_timer: NumberRange,
    /// Outstanding READs and atomics of each end
    pub max_rd_atomic: NumberRange,
    /// Words for atomics at each host
    pub words: NumberRange,
    /// Whether all ends of a host share one receive queue
    pub srq: NumberRange,
    /// Whether end-to-end credits are used
    pub flow_control: NumberRange,
    /// Whether one end of each connection reads until the other end has finished
    pub background_reads: NumberRange,
    /// Time within which each host revokes the rights of one connection (us); 0 for never
    pub revoke_us: NumberRange,
}

impl Default for VerbsSpec {
    /// Values of [`Verbs::default`].
    fn default() -> Self {
        let defaults = Verbs::default();
        Self {
            connections: NumberRange::fixed(defaults.connections.into()),
            unreliable: NumberRange::fixed(defaults.unreliable.into()),
            operations: NumberRange::fixed(defaults.operations.into()),
            depth: NumberRange::fixed(defaults.depth.into()),
            max_size: NumberRange::fixed(defaults.max_size.into()),
            verbs: Verb::ALL.to_vec(),
            mtu_log2: NumberRange::fixed(defaults.mtu.bytes().ilog2().into()),
            timeout: NumberRange::fixed(defaults.timeout.into()),
            retry_count: NumberRange::fixed(defaults.retry_count.into()),
            receives: NumberRange::fixed(defaults.receives.into()),
            repost_us: NumberRange::fixed(defaults.repost_us.into()),
            rnr_timer: NumberRange::fixed(defaults.rnr_timer.into()),
            max_rd_atomic: NumberRange::fixed(defaults.max_rd_atomic.into()),
            words: NumberRange::fixed(defaults.words.into()),
            srq: NumberRange::fixed(defaults.srq.into()),
            flow_control: NumberRange::fixed(defaults.flow_control.into()),
            background_reads: NumberRange::fixed(defaults.background_reads.into()),
            revoke_us: NumberRange::fixed(defaults.revoke_us.into()),
        }
    }
}

impl VerbsSpec {
    /// Returns the numbers in the order in which they are drawn.
    fn numbers(&mut self) -> Vec<&mut NumberRange> {
        vec![
            &mut self.connections,
            &mut self.operations,
            &mut self.depth,
            &mut self.max_size,
            &mut self.mtu_log2,
            &mut self.timeout,
            &mut self.retry_count,
            &mut self.receives,
            &mut self.repost_us,
            &mut self.rnr_timer,
            &mut self.max_rd_atomic,
            &mut self.words,
            &mut self.srq,
            &mut self.flow_control,
            &mut self.unreliable,
            &mut self.background_reads,
            &mut self.revoke_us,
        ]
    }

    /// Returns the workload, once the numbers are drawn.
    pub fn workload(&self) -> Verbs {
        Verbs {
            connections: self.connections.value() as u32,
            unreliable: self.unreliable.value() as u32,
            operations: self.operations.value() as u32,
            depth: self.depth.value() as u32,
            max_size: self.max_size.value() as u32,
            mix: Verb::ALL.map(|verb| u32::from(self.verbs.contains(&verb))),
            mtu: path_mtu(self.mtu_log2),
            timeout: self.timeout.value() as u8,
            retry_count: self.retry_count.value() as u8,
            receives: self.receives.value() as u32,
            repost_us: self.repost_us.value() as u32,
            rnr_timer: self.rnr_timer.value() as u8,
            max_rd_atomic: self.max_rd_atomic.value() as u8,
            words: self.words.value() as u32,
            srq: self.srq.is_true(),
            flow_control: self.flow_control.is_true(),
            background_reads: self.background_reads.is_true(),
            revoke_us: self.revoke_us.value() as u32,
        }
    }
}

/// See [`Groups`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupsSpec {
    /// Names of the leaders; all other hosts are replicas
    pub leaders: Vec<String>,
    /// Groups of each leader
    pub groups: NumberRange,
    /// Operations of each group
    pub operations: NumberRange,
    /// Outstanding operations of each group
    pub depth: NumberRange,
    /// Longest operation (bytes)
    pub max_size: NumberRange,
    /// Binary logarithm of the path MTU
    pub mtu_log2: NumberRange,
    /// ACK timeout of the leaders: 4.096 us * 2^`timeout`
    pub timeout: NumberRange,
    /// Retry limit of the leaders; [`ReadyToSend::NO_LIMIT`] for none
    pub retry_count: NumberRange,
    /// Replicas that have to acknowledge; 0 for a majority
    pub quorum: NumberRange,
    /// Whether a quorum outvotes the other replicas' NAKs
    pub outvote: NumberRange,
    /// Receive requests that a replica posts for each group
    pub receives: NumberRange,
    /// Average number of operations per message; 0 for no messages
    pub messages: NumberRange,
}

impl Work {
    pub(super) fn draw(&mut self, rng: &mut Rng) {
        let numbers = match self {
            Self::Verbs(verbs) => verbs.numbers(),
            Self::Groups(groups) => groups.numbers(),
        };
        for number in numbers {
            number.draw(rng);
        }
    }

    /// Returns whether access rights are revoked.
    pub(super) fn revokes(&self) -> bool {
        matches!(self, Self::Verbs(verbs) if verbs.revoke_us.high > 0)
    }

    /// Returns whether retries are unlimited.
    pub(super) fn never_gives_up(&self) -> bool {
        let retry_count = match self {
            Self::Verbs(verbs) => verbs.retry_count,
            Self::Groups(groups) => groups.retry_count,
        };
        retry_count.low == i64::from(ReadyToSend::NO_LIMIT)
    }
}

impl GroupsSpec {
    /// Returns groups of these leaders, with the values of [`Groups::default`].
    pub fn new(leaders: Vec<String>) -> Self {
        let defaults = Groups::default();
        Self {
            leaders,
            groups: NumberRange::fixed(defaults.groups.into()),
            operations: NumberRange::fixed(defaults.operations.into()),
            depth: NumberRange::fixed(defaults.depth.into()),
            max_size: NumberRange::fixed(defaults.max_size.into()),
            mtu_log2: NumberRange::fixed(defaults.mtu.bytes().ilog2().into()),
            timeout: NumberRange::fixed(defaults.timeout.into()),
            retry_count: NumberRange::fixed(defaults.retry_count.into()),
            quorum: NumberRange::fixed(defaults.quorum.into()),
            outvote: NumberRange::fixed(defaults.outvote.into()),
            receives: NumberRange::fixed(defaults.receives.into()),
            messages: NumberRange::fixed(defaults.messages.into()),
        }
    }

    /// Returns the numbers in the order in which they are drawn.
    fn numbers(&mut self) -> Vec<&mut NumberRange> {
        vec![
            &mut self.groups,
            &mut self.operations,
            &mut self.depth,
            &mut self.max_size,
            &mut self.mtu_log2,
            &mut self.timeout,
            &mut self.retry_count,
            &mut self.quorum,
            &mut self.outvote,
            &mut self.receives,
            &mut self.messages,
        ]
    }

    /// Returns the workload, once the numbers are drawn.
    pub fn workload(&self) -> Groups {
        Groups {
            groups: self.groups.value() as u32,
            operations: self.operations.value() as u32,
            depth: self.depth.value() as u32,
            max_size: self.max_size.value() as u32,
            mtu: path_mtu(self.mtu_log2),
            timeout: self.timeout.value() as u8,
            retry_count: self.retry_count.value() as u8,
            quorum: self.quorum.value() as u8,
            outvote: self.outvote.is_true(),
            receives: self.receives.value() as u32,
            messages: self.messages.value() as u32,
            ..Groups::default()
        }
    }
}

/// Returns the path MTU of a drawn binary logarithm.
fn path_mtu(log2: NumberRange) -> PathMtu {
    PathMtu::of_bytes(1 << log2.value()).unwrap_or(PathMtu::B1024)
}
