//! What the hosts of a scenario do.

use super::Between;
use crate::groups::Groups;
use crate::verbs::{Verb, Verbs};
use rnic::{PathMtu, ReadyToSend};
use switch::Chance;

/// What the hosts do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Work {
    /// Each two of them use every verb.
    Verbs(VerbsSpec),
    /// Some lead groups, of which the others are the replicas.
    Groups(GroupsSpec),
}

/// See [`Verbs`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VerbsSpec {
    /// Reliable connections between each two hosts
    pub connections: Between,
    /// Unreliable ones
    pub unreliable: Between,
    /// Operations of each end
    pub operations: Between,
    /// Requests outstanding
    pub depth: Between,
    /// Longest message
    pub max_size: Between,
    /// Verbs in use
    pub verbs: Vec<Verb>,
    /// Binary logarithm of the path MTU
    pub mtu_log2: Between,
    /// ACK time-out, as an exponent
    pub timeout: Between,
    /// Retries; [`ReadyToSend::NO_LIMIT`] for no limit
    pub retry_count: Between,
    /// Receive requests posted at once
    pub receives: Between,
    /// Microseconds until a used receive request is posted again, at most
    pub repost_us: Between,
    /// RNR timer, a code of IB table 45
    pub rnr_timer: Between,
    /// READs and atomics outstanding
    pub max_rd_atomic: Between,
    /// Words for atomics at a host
    pub words: Between,
    /// Whether ends share a receive queue
    pub srq: Between,
    /// Credits
    pub flow_control: Between,
}

impl Default for VerbsSpec {
    fn default() -> Self {
        Self {
            connections: Between::just(1),
            unreliable: Between::just(0),
            operations: Between::just(20),
            depth: Between::just(8),
            max_size: Between::just(65536),
            verbs: Verb::ALL.to_vec(),
            mtu_log2: Between::just(10),
            timeout: Between::just(8),
            retry_count: Between::just(ReadyToSend::NO_LIMIT.into()),
            receives: Between::just(8),
            repost_us: Between::just(0),
            rnr_timer: Between::just(1),
            max_rd_atomic: Between::just(4),
            words: Between::just(2),
            srq: Between::just(0),
            flow_control: Between::just(0),
        }
    }
}

impl VerbsSpec {
    fn draw(&mut self, chance: &mut Chance) {
        for number in [
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
        ] {
            number.draw(chance);
        }
    }

    /// The workload, once it is drawn.
    pub fn workload(&self) -> Verbs {
        Verbs {
            connections: self.connections.value() as u32,
            unreliable: self.unreliable.value() as u32,
            operations: self.operations.value() as u32,
            depth: self.depth.value() as u32,
            max_size: self.max_size.value() as u32,
            mix: Verb::ALL.map(|verb| u32::from(self.verbs.contains(&verb))),
            mtu: PathMtu::of_bytes(1 << self.mtu_log2.value()).unwrap_or(PathMtu::B1024),
            timeout: self.timeout.value() as u8,
            retry_count: self.retry_count.value() as u8,
            receives: self.receives.value() as u32,
            repost_us: self.repost_us.value() as u32,
            rnr_timer: self.rnr_timer.value() as u8,
            max_rd_atomic: self.max_rd_atomic.value() as u8,
            words: self.words.value() as u32,
            srq: self.srq.is_true(),
            flow_control: self.flow_control.is_true(),
        }
    }
}

/// See [`Groups`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupsSpec {
    /// Names of the hosts that lead; the others are replicas
    pub leaders: Vec<String>,
    /// Groups of each leader
    pub groups: Between,
    /// Operations of each group
    pub operations: Between,
    /// Requests outstanding
    pub depth: Between,
    /// Longest message
    pub max_size: Between,
    /// Binary logarithm of the path MTU
    pub mtu_log2: Between,
    /// ACK time-out of leaders, as an exponent
    pub timeout: Between,
    /// Their retries; [`ReadyToSend::NO_LIMIT`] for no limit
    pub retry_count: Between,
    /// Replicas that have to acknowledge; 0 for a majority
    pub quorum: Between,
    /// Whether a quorum outvotes the others
    pub outvote: Between,
    /// Receive requests posted at once
    pub receives: Between,
    /// Of so many operations, one is a message; 0 for none
    pub messages: Between,
}

impl Work {
    pub(super) fn draw(&mut self, chance: &mut Chance) {
        match self {
            Self::Verbs(verbs) => verbs.draw(chance),
            Self::Groups(groups) => groups.draw(chance),
        }
    }

    /// Whether ends try for ever.
    pub(super) fn never_gives_up(&self) -> bool {
        let retry_count = match self {
            Self::Verbs(verbs) => verbs.retry_count,
            Self::Groups(groups) => groups.retry_count,
        };
        retry_count.low == i64::from(ReadyToSend::NO_LIMIT)
    }
}

impl GroupsSpec {
    /// Groups of these leaders, as [`Groups::default`] says.
    pub fn new(leaders: Vec<String>) -> Self {
        let plain = Groups::default();
        Self {
            leaders,
            groups: Between::just(plain.groups.into()),
            operations: Between::just(plain.operations.into()),
            depth: Between::just(plain.depth.into()),
            max_size: Between::just(plain.max_size.into()),
            mtu_log2: Between::just(10),
            timeout: Between::just(plain.timeout.into()),
            retry_count: Between::just(plain.retry_count.into()),
            quorum: Between::just(plain.quorum.into()),
            outvote: Between::just(plain.outvote.into()),
            receives: Between::just(plain.receives.into()),
            messages: Between::just(plain.messages.into()),
        }
    }

    fn draw(&mut self, chance: &mut Chance) {
        for number in [
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
        ] {
            number.draw(chance);
        }
    }

    /// The workload, once it is drawn.
    pub fn workload(&self) -> Groups {
        Groups {
            groups: self.groups.value() as u32,
            operations: self.operations.value() as u32,
            depth: self.depth.value() as u32,
            max_size: self.max_size.value() as u32,
            mtu: PathMtu::of_bytes(1 << self.mtu_log2.value()).unwrap_or(PathMtu::B1024),
            timeout: self.timeout.value() as u8,
            retry_count: self.retry_count.value() as u8,
            quorum: self.quorum.value() as u8,
            outvote: self.outvote.is_true(),
            receives: self.receives.value() as u32,
            messages: self.messages.value() as u32,
        }
    }
}
