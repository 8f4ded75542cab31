//! Loss of replicas, and the end of a group: all connections are closed, the data plane closes the group, and
//! its numbers are released.

use super::{Control, GroupState, Stage};
use crate::function::Command;
use crate::group::GroupId;
use crate::wire::Refusal;
use rnic::cm::Conn;
use rocev2::cm::RejReason;
use switch::Nanos;

impl Control {
    /// Closes a group: leader and replicas are disconnected.
    pub fn close(&mut self, id: GroupId, now: Nanos) {
        self.close_group(id, None, now);
    }

    /// Handles a replica that rejected the connection, did not respond, or disconnected.
    pub(super) fn on_replica_gone(
        &mut self,
        id: GroupId,
        number: usize,
        reason: Option<RejReason>,
        now: Nanos,
    ) {
        let Some(group) = self.groups.get_mut(&id) else { return };
        let replica = group.members[number].ip;
        let refusal = match reason {
            Some(reason) => Refusal::Rejected { replica, reason },
            None => Refusal::Unreachable(replica),
        };
        match group.stage {
            Stage::Connecting | Stage::Opening => self.close_group(id, Some(refusal), now),
            Stage::Open => {
                if group.members[number].in_group {
                    group.members[number].in_group = false;
                    self.commands.push_back((group.worker, Command::Exclude(id, number)));
                    self.counters.excluded += 1;
                }
                self.close_if_impossible(id, now);
            }
            Stage::Closing => {}
        }
    }

    /// Handles a replica that the data plane excluded.
    pub(super) fn on_excluded(&mut self, id: GroupId, number: usize, now: Nanos) {
        let Some(group) = self.groups.get_mut(&id) else { return };
        let Some(member) = group.members.get_mut(number) else { return };
        if core::mem::replace(&mut member.in_group, false) {
            self.counters.excluded += 1;
        }
        let conn = member.conn;
        self.drop_connection(conn, now);
        self.close_if_impossible(id, now);
    }

    fn close_if_impossible(&mut self, id: GroupId, now: Nanos) {
        let members = |group: &GroupState| group.members.iter().filter(|member| member.in_group).count();
        if self.groups.get(&id).is_some_and(|group| members(group) < group.quorum) {
            self.close_group(id, None, now);
        }
    }

    /// Closes a group in any stage. A leader whose request is pending receives the refusal.
    pub(super) fn close_group(&mut self, id: GroupId, refusal: Option<Refusal>, now: Nanos) {
        let Some(group) = self.groups.get_mut(&id).filter(|group| group.stage != Stage::Closing) else {
            return;
        };
        let stage = core::mem::replace(&mut group.stage, Stage::Closing);
        let (leader, worker) = (group.leader, group.worker);
        self.finish_setup(id);
        let Some(group) = self.groups.get(&id) else { return };
        let conns: Vec<_> = group.members.iter().map(|member| member.conn).collect();
        if let (Stage::Connecting | Stage::Opening, Some(refusal)) = (stage, refusal) {
            self.counters.refused += 1;
            // The leader may have given up.
            _ = self.endpoint.cm_mut().reject(leader, RejReason::CONSUMER, &refusal.to_bytes(), now);
            self.roles.remove(&leader);
        } else {
            self.drop_connection(leader, now);
        }
        for conn in conns {
            self.drop_connection(conn, now);
        }
        if stage == Stage::Connecting {
            self.forget(id);
        } else {
            self.commands.push_back((worker, Command::Close(id)));
        }
    }

    /// Closes a connection in any state.
    fn drop_connection(&mut self, conn: Conn, now: Nanos) {
        let cm = self.endpoint.cm_mut();
        if cm.disconnect(conn, &[], now).is_err() {
            // The connection is not established yet, or no longer.
            _ = cm.reject(conn, RejReason::CONSUMER, &[], now);
            self.roles.remove(&conn);
        }
    }

    /// Marks a request as answered: the replicas have responded, or are no longer waited for.
    pub(super) fn finish_setup(&mut self, id: GroupId) {
        let Self { groups, admission, config, .. } = self;
        let Some(group) = groups.get_mut(&id) else { return };
        if !core::mem::replace(&mut group.setup_done, true) {
            admission.on_answered(group.request.addresses.remote, group.since, &config.limits);
        }
    }

    /// Forgets a closed group and releases its numbers.
    pub(super) fn forget(&mut self, id: GroupId) {
        let Some(group) = self.groups.remove(&id) else { return };
        for qpn in group.members.iter().map(|member| member.local_qp).chain([group.local_qp]) {
            self.queue_pairs.free(qpn);
        }
        self.queue_pairs.end_group(group.worker);
        self.ids.free(id.0);
        self.admission.end(group.request.addresses.remote);
        self.counters.closed += 1;
    }
}
