//! Status of the control plane: its counters and groups.

use super::{Control, Stage};
use crate::group::GroupId;
use core::net::IpAddr;
use rocev2::Qpn;
use switch::metrics;

metrics! {
    /// Counters of the control plane.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct ControlCounters {
        /// Groups requested by leaders
        pub requested: u64 [groups as requested / groups_requested],
        /// Groups opened
        pub opened: u64 [groups as opened / groups_opened],
        /// Groups refused
        pub refused: u64 [groups as refused / groups_refused],
        /// Refused groups of leaders that are not allowed or exceeded a limit
        pub limited: u64 [groups as limited / groups_limited],
        /// Groups that have ended
        pub closed: u64 [groups as closed / groups_closed],
        /// Replicas excluded from a group that continued
        pub excluded: u64 [replicas as excluded / replicas_excluded],
    }
}

/// Status of a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupStatus {
    /// Identifier
    pub id: GroupId,
    /// Worker whose instance of the data plane has the group
    pub worker: usize,
    /// Address of the leader
    pub leader: IpAddr,
    /// Addresses of the replicas, and whether they are written to
    pub replicas: Vec<(IpAddr, bool)>,
    /// Number of replicas that have to acknowledge
    pub quorum: usize,
    /// Whether the leader's connection was accepted
    pub open: bool,
    /// The switch's queue pairs: the leader's first, then the replicas'
    pub own: Vec<Qpn>,
    /// The remote queue pairs, as far as they are known
    pub peers: Vec<(IpAddr, Qpn)>,
}

impl Control {
    /// Returns the counters.
    pub fn counters(&self) -> ControlCounters {
        self.counters
    }

    /// Returns the status of all groups, including those that are being opened.
    pub fn groups(&self) -> impl Iterator<Item = GroupStatus> + '_ {
        self.groups.iter().map(|(id, group)| GroupStatus {
            id: *id,
            worker: group.worker,
            leader: group.request.addresses.remote,
            replicas: group.members.iter().map(|member| (member.ip, member.in_group)).collect(),
            quorum: group.quorum,
            open: group.stage == Stage::Open,
            own: [group.local_qp]
                .into_iter()
                .chain(group.members.iter().map(|member| member.local_qp))
                .collect(),
            peers: [(group.request.addresses.remote, group.request.qpn)]
                .into_iter()
                .chain(
                    group.members.iter().filter_map(|member| Some((member.ip, member.reply.as_ref()?.0.qpn))),
                )
                .collect(),
        })
    }
}
