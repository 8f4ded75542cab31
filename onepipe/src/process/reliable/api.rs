//! Interface of a [`Process`] to the reliable service: for the application, and for the messages of the
//! controller.

use crate::header::{OnePipe, Timestamp};
use core::net::IpAddr;
use rocev2::Qpn;
use switch::Nanos;
use zerocopy::FromBytes;

use super::super::Process;
use super::super::bug::Bug;
use super::super::config::BeaconPeer;
use super::super::counters::Refusal;
use super::super::relay::Relayed;
use super::super::types::{Message, ProcessId, Scattering, SendError};
use super::merge::{Heads, Service as ServiceName};
use super::types::{Error, Event, Failed, Failure, Member, MemberError, StoredRecall, ToController};
use super::{Service, Stage};

/// For the application (1Pipe, Table 1).
impl Process {
    /// Sends messages to any members, this process included, as one scattering: all receivers that do not fail
    /// deliver it, or none does (1Pipe, Table 1, `onepipe_reliable_send`). Otherwise as
    /// [`unreliable_send`](Self::unreliable_send); [`poll_reliable_event`](Self::poll_reliable_event) reports
    /// the result.
    ///
    /// # Errors
    /// Nothing of the scattering is sent. [`SendError::Full`] is temporary.
    pub fn reliable_send(
        &mut self,
        now: Nanos,
        messages: &[(ProcessId, &[u8])],
    ) -> Result<Scattering, Error> {
        let service = self.reliable.0.as_mut().ok_or(Error::NotAdmitted)?;
        match service.stage {
            Stage::Joining => return Err(Error::NotAdmitted),
            Stage::Draining => return Err(SendError::Left.into()),
            Stage::Excluded if self.sender.has_left() => return Err(SendError::Left.into()),
            Stage::Excluded => return Err(Error::Fenced),
            Stage::Member => {}
        }
        let Service { members, sender, receiver, .. } = &mut **service;
        sender.send(|| self.sender.next_number(), messages, (members, receiver), &self.peers, now)
    }

    /// Returns the next reliable message (1Pipe, Table 1, `onepipe_reliable_recv`). Until then, it occupies its
    /// sender's window. `None` if there is none, or if the process has not joined.
    pub fn reliable_recv(&mut self) -> Option<Message> {
        let service = self.reliable.0.as_mut()?;
        let (message, is_own) = service.receiver.pop_message()?;
        if is_own {
            service.sender.advance_own(&mut service.receiver);
        }
        Some(message)
    }

    /// Returns the next message of either service, in one order: by timestamp, then by sender. A best-effort
    /// message waits until the commit barrier has reached its timestamp. Not to be mixed with
    /// [`unreliable_recv`](Self::unreliable_recv) and [`reliable_recv`](Self::reliable_recv), which keep the
    /// order of their service only.
    ///
    /// # Errors
    /// The process has not joined: its best-effort messages would wait for a commit barrier that never comes.
    pub fn recv(&mut self) -> Result<Option<Message>, Error> {
        let service = self.reliable.0.as_ref().ok_or(Error::NotAdmitted)?;
        let commit = service.receiver.commit();
        let heads = Heads {
            best_effort: self.receiver.head(),
            reliable: service.receiver.head(),
            barrier: self.receiver.barriers().0,
            commit: (commit > 0).then(|| Timestamp::new(commit)),
            is_unmerged: self.config.has_bug(Bug::UnmergedReads),
        };
        Ok(match heads.next() {
            Some(ServiceName::BestEffort) => self.unreliable_recv(),
            Some(ServiceName::Reliable) => self.reliable_recv(),
            None => None,
        })
    }

    /// Returns the next event of the reliable service.
    #[inline]
    pub fn poll_reliable_event(&mut self) -> Option<Event> {
        self.reliable.0.as_mut()?.sender.events.pop_front()
    }

    /// Returns the memory of a received reliable payload for reuse. Optional.
    #[inline]
    pub fn reuse_reliable_buffer(&mut self, payload: Vec<u8>) {
        if let Some(service) = &mut self.reliable.0 {
            service.receiver.reuse_buffer(payload);
        }
    }

    /// Returns the number of reliable messages accepted for sending whose result was not reported.
    pub fn unsettled_reliable(&self) -> usize {
        self.reliable.0.as_ref().map_or(0, |service| service.sender.unsettled())
    }

    /// Returns the bytes held of reliable messages that the application has not taken.
    pub fn held_reliable(&self) -> usize {
        self.reliable.0.as_ref().map_or(0, |service| service.receiver.held())
    }

    /// Returns the commit barrier up to which reliable messages are delivered, or `None` before there is one.
    pub fn delivered_up_to(&self) -> Option<Timestamp> {
        let commit = self.reliable.0.as_ref()?.receiver.commit();
        (commit > 0).then(|| Timestamp::new(commit))
    }

    /// Accepts no more reliable messages. When [`unsettled_reliable`](Self::unsettled_reliable) is 0, the process
    /// can leave the service without a failure; until the controller agrees, it receives and acknowledges.
    /// From now on callbacks for failed processes count as returned, as soon as they are due: other processes must
    /// not wait for an application that ends. Returns whether it takes part, and did not drain already.
    pub fn drain(&mut self) -> bool {
        let may_drain = |service: &&mut Box<Service>| matches!(service.stage, Stage::Joining | Stage::Member);
        let Some(service) = self.reliable.0.as_mut().filter(may_drain) else { return false };
        service.stage = Stage::Draining;
        service.sender.drain();
        true
    }

    /// Returns whether this process has delivered every message that it has acknowledged.
    pub fn has_delivered_all(&self) -> bool {
        let waits = |service: &Service| service.receiver.latest_waiting() != 0;
        !self.reliable.0.as_deref().is_some_and(waits)
    }

    /// Records that the application's callback for a failed process has returned. Returns whether it was
    /// called for this case.
    pub fn callback_done(&mut self, case: u64, process: ProcessId) -> bool {
        self.reliable.0.as_mut().is_some_and(|service| service.sender.on_callback_done(case, process))
    }
}

/// For the messages of the controller.
impl Process {
    /// Joins as this incarnation, whose queue pair is that of the configuration: beacons carry a commit value
    /// from now on, and messages of `members` are accepted. [`admit`](Self::admit) follows.
    ///
    /// # Errors
    /// The process has joined before, its configuration does not allow for the service, or a member is refused;
    /// nothing is changed then.
    pub fn join(&mut self, incarnation: u32, members: &[Member], now: Nanos) -> Result<(), MemberError> {
        self.join_as(incarnation, self.config.own.qpn, members, now)
    }

    /// Joins as [`join`](Self::join) does, with a queue pair: beacons and reliable frames leave from it, and
    /// reliable frames to another one are refused. The best-effort service keeps the configured queue pair. A
    /// process that was [fenced](Self::fence) and has [recovered](Self::recover) joins again so; what it has
    /// delivered can still be received.
    ///
    /// # Errors
    /// As for `join`; or the process was fenced and has not recovered.
    pub fn join_as(
        &mut self,
        incarnation: u32,
        qpn: Qpn,
        members: &[Member],
        now: Nanos,
    ) -> Result<(), MemberError> {
        let may_join = self.reliable.0.is_none() || self.is_recovered();
        if !may_join || self.sender.has_left() {
            return Err(MemberError::State);
        }
        self.config.check_reliable()?;
        for member in members {
            let peer = self.peers.find(member.id).ok_or(MemberError::Unknown(member.id))?;
            if !self.peers.is_free(peer, member.qpn) {
                return Err(MemberError::QueuePair { process: member.id, qpn: member.qpn });
            }
        }
        let own = self.config.own.id;
        let is_set = self.peers.set_own_queue_pair(qpn, &self.config)
            && self.beacons.set_queue_pair(qpn, &self.config);
        if !is_set {
            return Err(MemberError::QueuePair { process: own, qpn });
        }
        self.filter.set_member(qpn);
        let mut service = Box::new(Service::new(&self.config, &self.counters, incarnation, now));
        for &member in members {
            service.add_member(member, &mut self.peers, &self.config)?;
        }
        if let Some(mut before) = self.reliable.0.take() {
            service.receiver.inherit(before.receiver.take_inbox());
            service.sender.events = core::mem::take(&mut before.sender.events);
        }
        self.reliable.0 = Some(service);
        Ok(())
    }

    /// Admits this process, which may send from now on. No message of its earlier incarnations, and no commit
    /// barrier, is later than `after`: its own messages are.
    ///
    /// # Errors
    /// The process has not joined.
    pub fn admit(&mut self, after: Timestamp, now: Nanos) -> Result<(), MemberError> {
        let service = self.reliable.0.as_mut().ok_or(MemberError::State)?;
        if service.stage == Stage::Joining {
            service.stage = Stage::Member;
            service.risen_at = now;
            self.clock.stamp_after(after, now);
            service.sender.events.push_back(Event::Admitted { incarnation: service.incarnation });
        }
        Ok(())
    }

    /// Accepts a member that has joined. Its frames are accepted from now on, and messages may be sent to it;
    /// those of its earlier incarnations are refused. Returns whether it is new.
    ///
    /// # Errors
    /// This process has not joined, or the member is refused.
    pub fn member_up(&mut self, member: Member) -> Result<bool, MemberError> {
        let service = self.reliable.0.as_mut().ok_or(MemberError::State)?;
        service.add_member(member, &mut self.peers, &self.config)
    }

    /// Records that a member is leaving: messages to it are refused. Returns whether every scattering to it is
    /// decided; to be asked until it is. A member that is not the present one has nothing undecided.
    ///
    /// # Errors
    /// This process has not joined, or the member is unknown.
    pub fn member_leaving(&mut self, id: ProcessId, incarnation: u32) -> Result<bool, MemberError> {
        let peer = self.peers.find(id).ok_or(MemberError::Unknown(id))?;
        let service = self.reliable.0.as_mut().ok_or(MemberError::State)?;
        service.members.set_leaving(peer, incarnation);
        Ok(service.sender.is_decided_for(peer, incarnation))
    }

    /// Records that a member has left: its frames are refused from now on. What it has sent is delivered.
    ///
    /// # Errors
    /// This process has not joined, or the member is unknown.
    pub fn member_left(&mut self, id: ProcessId, incarnation: u32) -> Result<(), MemberError> {
        let peer = self.peers.find(id).ok_or(MemberError::Unknown(id))?;
        let service = self.reliable.0.as_mut().ok_or(MemberError::State)?;
        if service.members.remove(peer, incarnation) {
            service.receiver.remove_sender(peer);
            service.sender.remove_receiver(peer);
        }
        Ok(())
    }

    /// Handles the notice that processes have failed (1Pipe, section 5.2), all of one case: discards the messages
    /// of each above its T_P, aborts the scatterings that it has not acknowledged, and recalls them.
    /// [`poll_to_controller`](Self::poll_to_controller) has the answers. A notice that is known gets the latest
    /// answer again. For a process that is not in the table of peers only the application is called back.
    ///
    /// # Errors
    /// This process has not joined.
    pub fn notice_failed(&mut self, failed: &[Failed], now: Nanos) -> Result<(), MemberError> {
        let service = self.reliable.0.as_mut().ok_or(MemberError::State)?;
        let Some(&Failed { case, .. }) = failed.first() else { return Ok(()) };
        service.on_failed(case, failed, &self.peers, &self.clock, now);
        self.request_beacon(now);
        Ok(())
    }

    /// Records that the controller has stored a recall. Returns whether it was awaited.
    pub fn recall_stored(&mut self, recall: &StoredRecall, now: Nanos) -> bool {
        let Some(service) = &mut self.reliable.0 else { return false };
        let is_awaited = service.sender.on_recall_stored(recall);
        self.request_beacon(now);
        is_awaited
    }

    /// Sets whether the commit barrier must not rise here, because a switch in front of this process may have
    /// failed. Returns the barrier, for the controller.
    pub fn hold(&mut self, is_on_hold: bool) -> Option<Timestamp> {
        self.reliable.0.as_mut()?.receiver.hold(is_on_hold);
        self.delivered_up_to()
    }

    /// Handles the notice that this incarnation has failed: it sends no more, its beacons carry no commit
    /// value, and what it has not reported fails. Returns the latest timestamp of a message that it holds and
    /// has not delivered, for [`recover`](Self::recover); `None` if it has not joined.
    pub fn fence(&mut self, timestamp: Timestamp) -> Option<Timestamp> {
        let service = self.reliable.0.as_mut()?;
        if service.stage != Stage::Excluded {
            service.exclude(Failure::Fenced);
            service.sender.events.push_back(Event::Fenced { timestamp });
        }
        Some(Timestamp::new(service.receiver.latest_waiting()))
    }

    /// Recovers as a receiver that was [fenced](Self::fence): drops what failed senders have sent above their
    /// T_P, this process itself included, and what was recalled, and delivers the rest up to `commit`, which all
    /// other members have reached, or all of it if there is no other member (1Pipe, section 5.2, receiver
    /// recovery). Returns whether it was fenced. It may [join again](Self::join_as) then.
    pub fn recover(
        &mut self,
        commit: Option<Timestamp>,
        failed: &[Failed],
        recalls: &[StoredRecall],
        now: Nanos,
    ) -> bool {
        let Some(service) = self.reliable.0.as_mut().filter(|service| service.stage == Stage::Excluded)
        else {
            return false;
        };
        let unwrap = |time: Timestamp| self.clock.unwrap_timestamp(time, now);
        // The queue may have messages of the incarnations after those whose failures were noticed or were before
        // this process has joined.
        for failed in failed.iter().filter(|failed| !service.sender.knows(failed.case)) {
            let after = unwrap(failed.timestamp);
            if failed.process == self.config.own.id && failed.incarnation == service.incarnation {
                service.receiver.discard_own(after);
            } else if let Some(peer) = self.peers.find(failed.process)
                && service.members.get(peer).is_some_and(|member| member.incarnation == failed.incarnation)
            {
                service.receiver.discard(peer, failed.process, after);
            }
        }
        for recall in recalls {
            if let Some(peer) = self.peers.find(recall.sender) {
                let time = unwrap(Timestamp::new(recall.timestamp));
                service.receiver.recall_stored(peer, recall.sender, time);
            }
        }
        let commit = commit.map_or(service.receiver.latest_waiting(), unwrap);
        service.receiver.recover(commit, &mut self.clock, now);
        service.is_recovered = true;
        true
    }

    /// Returns whether it was fenced, and has delivered everything up to the barrier with which it has recovered:
    /// messages wait for this process's own clock, too.
    pub fn is_recovered(&self) -> bool {
        let is_recovered = |service: &Service| service.is_recovered && !service.receiver.waits_for_clock();
        self.reliable.0.as_deref().is_some_and(is_recovered)
    }

    /// Drops the messages that it holds and has not delivered, as the controller has no record any more of what
    /// became of them: this process was [fenced](Self::fence), and may [join again](Self::join_as) then. Returns
    /// whether it was fenced.
    pub fn abandon(&mut self) -> bool {
        let Some(service) = self.reliable.0.as_mut().filter(|service| service.stage == Stage::Excluded)
        else {
            return false;
        };
        service.is_recovered = true;
        true
    }

    /// Returns the greatest number of a case up to which this process has completed all that it knows, or 0.
    pub fn cases_completed(&self) -> u64 {
        self.reliable.0.as_ref().map_or(0, |service| service.sender.completed_up_to())
    }

    /// Returns the address of a process in the table of peers.
    pub fn peer_address(&self, id: ProcessId) -> Option<IpAddr> {
        self.peers.find(id).map(|peer| self.peers.address(peer))
    }

    /// Records that the controller does not carry frames to this incarnation, as it is no member. Returns whether
    /// it is known.
    pub fn stop_relaying(&mut self, id: ProcessId, incarnation: u32) -> bool {
        let Some(peer) = self.peers.find(id) else { return false };
        let service = self.reliable.0.as_mut();
        service.is_some_and(|service| service.sender.stop_relaying(peer, incarnation))
    }

    /// Returns the members that have not answered for some time-outs.
    pub fn unanswered(&self) -> Vec<ProcessId> {
        self.reliable.0.as_ref().map_or_else(Vec::new, |service| service.sender.unanswered().collect())
    }

    /// Sets the sources of the commit barrier: those in other beacons do not count from now on. Of two
    /// representatives of the switch, one at which there is no source gets no commit value. Returns whether the
    /// sources have changed.
    pub fn set_commit_sources(&mut self, sources: Vec<(IpAddr, Qpn)>) -> bool {
        let is_new = self.sources.set(sources);
        self.beacons.mute(self.commit_ends());
        is_new
    }

    /// Returns the number of beacons that have come from the [sources](Self::set_commit_sources) of the commit
    /// barrier, by end of the link: the switch's representative, and its standby.
    pub const fn commit_beacons(&self) -> [u64; 2] {
        self.sources.heard()
    }

    /// Returns the ends of the link that have a source of the commit barrier: bit 0 for the switch's representative,
    /// bit 1 for its standby.
    pub fn commit_ends(&self) -> u8 {
        let has = |end: Option<&BeaconPeer>| end.is_some_and(|end| self.sources.is_at(end.address));
        u8::from(has(Some(&self.config.tor))) | u8::from(has(self.config.standby.as_ref())) << 1
    }

    /// Returns the next frame for a member that does not answer, for the controller to carry (1Pipe, section 5.2,
    /// controller forwarding). A bounded number waits.
    pub fn poll_relayed(&mut self) -> Option<Relayed> {
        let (added, lost) = self.peers.relay().take_counts();
        self.counters.relayed.add(added);
        self.counters.relays_lost.add(lost);
        let service = self.reliable.0.as_ref()?;
        loop {
            let (peer, frame) = self.peers.relay().pop()?;
            if let Some(member) = service.members.get(peer) {
                return Some(Relayed { to: member.id, incarnation: member.incarnation, frame });
            }
        }
    }

    /// Handles a reliable frame that the controller has carried.
    ///
    /// # Errors
    /// The frame was refused, and is counted.
    pub fn on_relayed(
        &mut self,
        from: ProcessId,
        incarnation: u32,
        frame: &[u8],
        now: Nanos,
    ) -> Result<(), Refusal> {
        let result = self.receive_relayed(from, incarnation, frame, now);
        match result {
            Ok(()) => self.counters.relays_taken.add(1),
            Err(why) => self.counters.refuse(why),
        }
        result
    }

    fn receive_relayed(
        &mut self,
        from: ProcessId,
        incarnation: u32,
        frame: &[u8],
        now: Nanos,
    ) -> Result<(), Refusal> {
        let (header, payload) = OnePipe::ref_from_prefix(frame).map_err(|_| Refusal::NoHeader)?;
        if header.version != OnePipe::VERSION {
            return Err(Refusal::OtherVersion);
        }
        let peer = self.peers.find(from).ok_or(Refusal::UnknownSource)?;
        let service = self.reliable.0.as_ref().ok_or(Refusal::NotAdmitted)?;
        if service.members.get(peer).is_none_or(|member| member.incarnation != incarnation) {
            return Err(Refusal::OtherIncarnation);
        }
        self.peers.relay().on_carried(peer, now);
        if self.reliable.on_frame((peer, from), (0, header, payload), &self.clock, now)? {
            self.beacons.request();
        }
        Ok(())
    }

    /// Returns the next message for the controller.
    pub fn poll_to_controller(&mut self) -> Option<ToController> {
        self.reliable.0.as_mut()?.sender.to_controller.pop_front()
    }

    /// Returns the numbers of all members but this process, without those that are leaving.
    pub fn members(&self) -> Vec<ProcessId> {
        self.reliable.0.as_ref().map_or_else(Vec::new, |service| service.members.ids().collect())
    }

    /// Lets a beacon leave if the commit value has risen and the pace allows it.
    fn request_beacon(&mut self, now: Nanos) {
        if self.reliable.0.as_mut().is_some_and(|service| service.wants_beacon(now)) {
            self.beacons.request();
        }
    }
}
