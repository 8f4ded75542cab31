//! Groups of the data plane: they are opened and closed, their hosts move to other ports, and replicas without
//! progress are excluded.

use super::{Config, Counters, Event, LEADER, P4ce, Slot, UNUSED_SLOT};
use crate::group::{Group, GroupId};
use rocev2::Packet;
use switch::forward::Forward;
use switch::{Nanos, PortId};

impl P4ce {
    /// Updates the port of a leader whose packet arrived on another port.
    #[cold]
    pub(super) fn follow_leader(
        forward: &mut Forward,
        counters: &Counters,
        config: &Config,
        group: &mut Group,
        packet: &Packet<'_>,
        (port, now): (PortId, Nanos),
    ) {
        let is_fixed = config.has_bug(crate::Bug::FixedPorts);
        if !is_fixed && group.move_leader(packet, port) {
            counters.moved.add(1);
            forward.observe(packet.ethernet().src, port, now);
        }
    }

    /// Updates the port of a replica whose response arrived on another port.
    #[cold]
    pub(super) fn follow_replica(
        forward: &mut Forward,
        counters: &Counters,
        config: &Config,
        group: &mut Group,
        (member, packet): (usize, &Packet<'_>),
        (port, now): (PortId, Nanos),
    ) {
        let is_fixed = config.has_bug(crate::Bug::FixedPorts);
        if !is_fixed && group.move_member(member, packet, port) {
            counters.moved.add(1);
            // The bridge's entry is never older than the group's.
            forward.observe(packet.ethernet().src, port, now);
        }
    }

    /// Updates the ports of a group's replicas from the bridge's table: when the group is opened, and when
    /// its leader retransmits. A replica that has moved may have sent other frames only.
    #[cold]
    pub(super) fn find_replicas(forward: &Forward, counters: &Counters, config: &Config, group: &mut Group) {
        let is_fixed = config.has_bug(crate::Bug::FixedPorts);
        if !is_fixed {
            counters.moved.add(group.find_members(|mac| forward.find_station(mac)));
        }
    }

    pub(super) fn open(&mut self, group: Box<Group>) {
        let config = group.config();
        let id = config.id;
        let qpns = config.replicas.iter().map(|replica| replica.peer.local_qp).zip(0..);
        let qpns: Vec<_> = qpns.chain([(config.leader.local_qp, LEADER)]).collect();
        let free = self.groups.get(id.0 as usize).is_some_and(Option::is_none)
            && qpns.iter().all(|(qpn, _)| self.slots[self.slot_of(*qpn)].qpn == UNUSED_SLOT.qpn);
        if free {
            for (qpn, member) in qpns {
                let at = self.slot_of(qpn);
                self.slots[at] = Slot { qpn: qpn.get(), group: id.0, member };
            }
            self.counters.opened.add(1);
            // A replica may have moved since the control plane learned its port.
            let mut group = group;
            Self::find_replicas(&self.forward, &self.counters, &self.config, &mut group);
            group.plant(self.config.bug);
            self.groups[id.0 as usize] = Some(group);
        }
        self.events.push_back(Event::Opened(id, free));
    }

    pub(super) fn close(&mut self, id: GroupId) {
        let group = self.groups.get_mut(id.0 as usize).and_then(Option::take);
        if let Some(group) = &group {
            let config = group.config();
            let replicas = config.replicas.iter().map(|replica| replica.peer.local_qp);
            for qpn in replicas.chain([config.leader.local_qp]) {
                let at = self.slot_of(qpn);
                self.slots[at] = UNUSED_SLOT;
            }
            self.counters.closed.add(1);
        }
        self.events.push_back(Event::Closed(id, group));
    }

    pub(super) fn group_mut(&mut self, id: GroupId) -> Option<&mut Group> {
        self.groups.get_mut(id.0 as usize)?.as_deref_mut()
    }

    pub(super) fn exclude_stalled(&mut self, now: Nanos) {
        for (number, group) in self.groups.iter_mut().enumerate() {
            let Some(group) = group else { continue };
            while let Some(member) = group.gather.find_stalled(now, self.config.silent_after) {
                group.exclude(member);
                self.counters.excluded.add(1);
                self.events.push_back(Event::Excluded(GroupId(number as u32), member));
            }
        }
    }

    /// Returns the interval between two searches for replicas without progress.
    pub(super) fn check_interval(&self) -> Nanos {
        Nanos((self.config.silent_after.0 / 4).max(1))
    }
}
