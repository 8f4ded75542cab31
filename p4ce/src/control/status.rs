//! What can be seen of a control plane: what it has counted, and its groups.

use super::{Control, Stage};
use crate::group::GroupId;
use core::net::IpAddr;
use rocev2::Qpn;

/// What the control plane counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ControlCounters {
    /// Groups that leaders asked for
    pub requested: u64,
    /// Groups that were opened
    pub opened: u64,
    /// Groups that were refused
    pub refused: u64,
    /// Of these, those of leaders that may not ask, or not for so many
    pub limited: u64,
    /// Groups that have ended
    pub closed: u64,
    /// Replicas excluded from a group that went on
    pub excluded: u64,
}

/// A group as the control plane shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupStatus {
    /// Its number
    pub id: GroupId,
    /// Its leader
    pub leader: IpAddr,
    /// Its replicas, and whether they are written to
    pub replicas: Vec<(IpAddr, bool)>,
    /// How many have to acknowledge
    pub quorum: usize,
    /// Packets go through it
    pub open: bool,
    /// The switch's queue pairs: the leader's first, then the replicas'
    pub own: Vec<Qpn>,
    /// The queue pairs at their other ends, as far as they are known
    pub peers: Vec<(IpAddr, Qpn)>,
}

impl Control {
    /// What it has counted
    pub fn counters(&self) -> ControlCounters {
        self.counters
    }

    /// The groups there are, those included that are being made
    pub fn groups(&self) -> impl Iterator<Item = GroupStatus> + '_ {
        self.groups.iter().map(|(id, group)| GroupStatus {
            id: *id,
            leader: group.request.peer.remote,
            replicas: group.members.iter().map(|member| (member.ip, member.in_group)).collect(),
            quorum: group.quorum,
            open: group.stage == Stage::Open,
            own: [group.local_qp]
                .into_iter()
                .chain(group.members.iter().map(|member| member.local_qp))
                .collect(),
            peers: [(group.request.peer.remote, group.request.qpn)]
                .into_iter()
                .chain(
                    group
                        .members
                        .iter()
                        .filter_map(|member| Some((member.ip, member.answer.as_ref()?.0.qpn))),
                )
                .collect(),
        })
    }
}
