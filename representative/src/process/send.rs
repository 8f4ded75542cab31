//! Sending: scatterings are accepted, wait for windows, are fragmented, stamped, sent, and settled (1Pipe,
//! section 6.1).

use rocev2::Psn;
use rocev2::onepipe::{AckBody, NakBody, OnePipe, OnePipeOpcode, Timestamp};
use switch::Nanos;
use zerocopy::FromBytes;

use super::config::MAX_MESSAGE;
use super::counters::Refusal;
use super::inbound::{self, cost};
use super::outbound::{InFlight, Outbound, PartOf, RunId};
use super::reorder::DeliveryKey;
use super::scattering::{Piece, State, cost_of};
use super::{Event, Failure, Pending, Process, ProcessId, Scattering, SendError};

impl Process {
    /// Sends messages to any processes, this one included, as one scattering, which has one timestamp (1Pipe,
    /// Table 1, `onepipe_unreliable_send`). Several messages for one process arrive in their order, all or
    /// none. The bytes are copied.
    ///
    /// The scattering is sent as soon as the windows of all receivers have room; meanwhile scatterings to
    /// other receivers may overtake it, those to the same ones may not. [`Event`]s report the result.
    ///
    /// # Errors
    /// Nothing of the scattering is sent. [`SendError::Full`] is temporary; the other errors are not.
    pub fn unreliable_send(
        &mut self,
        now: Nanos,
        messages: &[(ProcessId, &[u8])],
    ) -> Result<Scattering, SendError> {
        let bytes = self.sort(messages)?;
        if self.unsent + bytes > self.config.send_buffer
            || self.unsettled + self.events.len() + messages.len() > self.config.max_unsettled
        {
            return Err(SendError::Full);
        }
        let scattering = Scattering(self.scatterings_given);
        self.scatterings_given += 1;
        self.unsent += bytes;
        self.unsettled += messages.len();
        let index = self.scatterings.add();
        let entry = self.scatterings.get_mut(index);
        entry.fill(scattering, messages, &self.order, self.config.fragment());
        for run in 0..entry.runs.len() as u32 {
            let peer = self.scatterings.get(index).runs[run as usize].peer;
            let outbound = self.outbound[peer as usize].get_or_insert_with(|| {
                let first = Psn::new(self.rng.below(1 << 24) as u32);
                Box::new(Outbound::new(first, &self.config))
            });
            outbound.queue.push_back((index, run));
            if outbound.queue.len() == 1 {
                self.advance(peer, now);
            }
        }
        Ok(scattering)
    }

    /// Sends one message to another process at once, if nothing waits before it: writes its frame, which has
    /// to leave behind all frames that [`poll_transmit`](Self::poll_transmit) has written. The effect is that
    /// of [`unreliable_send`](Self::unreliable_send) and `poll_transmit`, but nothing is buffered in between.
    ///
    /// Returns `None` if anything is waiting that has to be sent first, if the windows have no room, if the
    /// message is longer than a packet or the first one to its receiver, or if it is invalid. Call
    /// `unreliable_send` then, which accepts the message or returns the error.
    pub fn send_at_once(
        &mut self,
        now: Nanos,
        dst: ProcessId,
        message: &[u8],
        frame: &mut Vec<u8>,
    ) -> Option<Scattering> {
        let is_first = self.finishing.is_none()
            && self.ready.is_empty()
            && self.round.is_empty()
            && self.beacon == Pending::None
            && !self.has_acks_to_send();
        let has_room = message.len() <= self.config.fragment()
            && self.unsent + message.len() <= self.config.send_buffer
            && self.unsettled + self.events.len() < self.config.max_unsettled;
        if !is_first || !has_room || self.has_left {
            return None;
        }
        let peer = self.by_id.get(&dst)?;
        let remote = &mut self.peers[peer as usize];
        let outbound = self.outbound[peer as usize].as_deref_mut()?;
        let cost = cost(message.len());
        if remote.dead || !outbound.queue.is_empty() || !outbound.has_room(cost) {
            return None;
        }
        let number = self.scatterings_given;
        self.scatterings_given += 1;
        self.unsettled += 1;
        self.is_round_next = true;
        let time = self.clock.stamp(now);
        let psn = outbound.send(cost, now);
        let part_of = PartOf::Alone { number, time };
        outbound.in_flight.push_back(InFlight { first: psn, last: psn, sent_at: now, part_of });
        let mut header = OnePipe::new(OnePipeOpcode::DATA, Timestamp::new(time), psn);
        header.set_first(true);
        header.set_end_of_message(true);
        remote.route.emit(frame, &header, message);
        self.counters.sent.add(1);
        self.counters.packets_sent.add(1);
        self.arm(2 * peer, now + self.config.timeout);
        Some(Scattering(number))
    }

    /// Validates a scattering, and sorts the indices of its messages by receiver. Returns the sum of its
    /// bytes.
    fn sort(&mut self, messages: &[(ProcessId, &[u8])]) -> Result<usize, SendError> {
        if self.has_left {
            return Err(SendError::Left);
        }
        if messages.is_empty() {
            return Err(SendError::Empty);
        }
        self.order.clear();
        for (n, &(dst, _)) in (0..).zip(messages) {
            let peer = if dst == self.config.own.id {
                self.own_index()
            } else {
                let peer = self.by_id.get(&dst).ok_or(SendError::Unknown(dst))?;
                if self.peers[peer as usize].dead {
                    return Err(SendError::Dead(dst));
                }
                peer
            };
            self.order.push((peer, n));
        }
        self.order.sort_unstable();
        let fragment = self.config.fragment();
        let window = self.config.receive_window as usize;
        let (mut bytes, mut run_cost, mut before) = (0, 0, None);
        for &(peer, n) in &self.order {
            let (dst, message) = messages[n as usize];
            if message.len() > MAX_MESSAGE {
                return Err(SendError::TooLong { dst, len: message.len() });
            }
            run_cost = if before == Some(peer) { run_cost } else { 0 } + cost_of(message.len(), fragment);
            before = Some(peer);
            bytes += message.len();
            if run_cost > window {
                return Err(SendError::TooLarge { dst, cost: run_cost, window });
            }
        }
        // Offsets of messages have 32 bits.
        if bytes > self.config.send_buffer.min(u32::MAX as usize)
            || messages.len() > self.config.max_unsettled
        {
            return Err(SendError::TooMuch { bytes, messages: messages.len() });
        }
        Ok(bytes)
    }

    /// Advances the first run in a peer's queue as far as the windows allow.
    fn advance(&mut self, peer: u32, now: Nanos) {
        let Some(outbound) = &mut self.outbound[peer as usize] else { return };
        let Some(&(index, run)) = outbound.queue.front() else {
            outbound.is_blocked = false;
            return;
        };
        if outbound.is_ready || outbound.in_round {
            return;
        }
        let entry = self.scatterings.get_mut(index);
        if peer == self.peers.len() as u32 {
            // These messages do not leave the host.
            outbound.reserve(0);
            entry.runs[run as usize].state = State::Ready;
            self.on_run_ready(index);
            return;
        }
        let cost = cost(entry.piece(run, self.config.fragment()).range.len());
        if !outbound.has_room(cost) {
            let at = outbound.last().max(now) + self.config.timeout;
            self.arm(2 * peer, at);
            return;
        }
        if entry.runs[run as usize].left > 1 {
            outbound.in_round = true;
            self.round.push_back(peer);
            return;
        }
        outbound.reserve(cost);
        entry.runs[run as usize].state = State::Ready;
        self.on_run_ready(index);
    }

    /// Returns the index of this process itself, behind its peers.
    const fn own_index(&self) -> u32 {
        self.peers.len() as u32
    }

    fn on_run_ready(&mut self, index: u32) {
        let entry = self.scatterings.get_mut(index);
        entry.waiting -= 1;
        if entry.waiting == 0 {
            entry.is_ready = true;
            self.ready.push_back(index);
        }
    }

    /// Writes the next packet of a message. Scatterings that are ready take turns with packets of runs that
    /// are not.
    pub(super) fn send_data(&mut self, now: Nanos, frame: &mut Vec<u8>) -> bool {
        loop {
            if let Some((index, run, time)) = self.finishing {
                if self.send_last(index, run, time, now, frame) {
                    return true;
                }
                continue;
            }
            if (self.is_round_next || self.ready.is_empty())
                && let Some(peer) = self.round.pop_front()
            {
                self.is_round_next = false;
                if self.send_in_round(peer, now, frame) {
                    return true;
                }
                continue;
            }
            let Some(index) = self.ready.pop_front() else { return false };
            self.is_round_next = true;
            self.stamp(index, now);
        }
    }

    /// Stamps a scattering. The messages for this process itself enter the reorder buffer at that moment:
    /// sending the others may take a while, in which a later message could be delivered.
    fn stamp(&mut self, index: u32, now: Nanos) {
        let time = self.clock.stamp(now);
        self.scatterings.get_mut(index).time = Some(time);
        self.finishing = Some((index, 0, time));
        let own = self.own_index();
        let entry = self.scatterings.get(index);
        // Runs are sorted by receiver, and this process's index is the highest.
        let run = entry.runs.len() - 1;
        if entry.runs[run].peer == own && entry.runs[run].state == State::Ready {
            let outbound = self.outbound[own as usize].as_mut().expect("it has a queue");
            outbound.queue.pop_front();
            outbound.release();
            self.send_to_self(index, run as u32, time, now);
            self.advance(own, now);
        }
    }

    /// Writes a packet that is not its run's last, if the windows still have room.
    fn send_in_round(&mut self, peer: u32, now: Nanos, frame: &mut Vec<u8>) -> bool {
        let Some(outbound) = &mut self.outbound[peer as usize] else { return false };
        outbound.in_round = false;
        let Some(&(index, run)) = outbound.queue.front() else { return false };
        let entry = self.scatterings.get(index);
        let piece = entry.piece(run, self.config.fragment());
        let fits = entry.runs[run as usize].left > 1 && outbound.has_room(cost(piece.range.len()));
        if fits {
            let time = self.clock.issue(now);
            self.send_piece(peer, (index, run), &piece, time, now, frame);
            self.arm(2 * peer, now + self.config.timeout);
        }
        self.advance(peer, now);
        fits
    }

    /// Writes the last packet of a run of the scattering that is being sent, unless the run has failed.
    fn send_last(&mut self, index: u32, run: u32, time: u64, now: Nanos, frame: &mut Vec<u8>) -> bool {
        let entry = self.scatterings.get_mut(index);
        let Some(of) = entry.runs.get(run as usize) else {
            self.finishing = None;
            if self.beacon == Pending::AfterScattering {
                self.beacon = Pending::Now;
            }
            self.unsent -= entry.bytes.len();
            entry.forget_bytes();
            entry.is_ready = false;
            self.remove_if_settled(index);
            return false;
        };
        self.finishing = Some((index, run + 1, time));
        let (peer, parts) = (of.peer, of.parts.len() as u64);
        if of.state != State::Ready {
            return false;
        }
        self.counters.sent.add(parts);
        let outbound = self.outbound[peer as usize].as_mut().expect("it has a queue");
        outbound.queue.pop_front();
        outbound.release();
        let piece = self.scatterings.get(index).piece(run, self.config.fragment());
        self.send_piece(peer, (index, run), &piece, time, now, frame);
        let of = &mut self.scatterings.get_mut(index).runs[run as usize];
        of.state = State::Sent;
        let part_of = PartOf::Scattering((index, run));
        let sent = InFlight { first: of.first, last: of.last, sent_at: now, part_of };
        if let Some(outbound) = &mut self.outbound[peer as usize] {
            outbound.in_flight.push_back(sent);
        }
        self.arm(2 * peer, now + self.config.timeout);
        self.advance(peer, now);
        true
    }

    fn send_piece(
        &mut self,
        peer: u32,
        (index, run): RunId,
        piece: &Piece,
        time: u64,
        now: Nanos,
        frame: &mut Vec<u8>,
    ) {
        let entry = self.scatterings.get_mut(index);
        let outbound = self.outbound[peer as usize].as_mut().expect("it has a queue");
        let psn = outbound.send(cost(piece.range.len()), now);
        let mut header = OnePipe::new(OnePipeOpcode::DATA, Timestamp::new(time), psn);
        header.set_first(piece.first);
        header.set_end_of_message(piece.end);
        header.set_timestamp_follows(entry.runs[run as usize].left > 1);
        let remote = &mut self.peers[peer as usize];
        remote.route.emit(frame, &header, &entry.bytes[piece.range.clone()]);
        entry.sent(run, piece, psn);
        self.counters.packets_sent.add(1);
    }

    /// Puts a run for this process itself into the reorder buffer, where it waits for its turn like any other
    /// run.
    fn send_to_self(&mut self, index: u32, run: u32, time: u64, now: Nanos) {
        let own = self.own_index();
        let entry = self.scatterings.get(index);
        let parts = entry.runs[run as usize].parts.clone();
        let parts = &entry.parts[parts.start as usize..parts.end as usize];
        let (start, end) = (parts[0].start, parts[parts.len() - 1].end);
        let cost = (end - start) as usize + parts.len() * cost(0);
        self.counters.sent.add(parts.len() as u64);
        if self.held + cost > self.config.receive_buffer {
            self.settle((index, run), Err(Failure::NoRoom));
            return;
        }
        let ends = parts[..parts.len() - 1].iter().map(|part| part.end - start).collect();
        let data = entry.bytes[start as usize..end as usize].to_vec();
        self.held += cost;
        let run_of_own = inbound::Run { time, position: 0, data, ends, cost };
        self.reorder.push(DeliveryKey::new(time, self.config.own.id, 0), own, Some(run_of_own));
        self.settle((index, run), Ok(()));
        self.deliver(now);
    }

    /// Settles a run that was sent, or one that will not be.
    #[inline(never)]
    fn settle_sent(&mut self, peer: u32, part_of: PartOf, result: Result<(), Failure>) {
        let (number, time) = match part_of {
            PartOf::Scattering(id) => return self.settle(id, result),
            PartOf::Alone { number, time } => (number, time),
        };
        let (scattering, timestamp) = (Scattering(number), Some(Timestamp::new(time)));
        match result {
            Ok(()) => self.counters.acknowledged.add(1),
            Err(why) => {
                self.counters.failed.add(1);
                let dst = self.peers[peer as usize].id;
                self.events.push_back(Event::SendFailed { scattering, timestamp, dst, part: 0, why });
            }
        }
        self.unsettled -= 1;
        self.events.push_back(Event::Settled { scattering, timestamp, failed: result.is_err().into() });
    }

    /// Settles a run of a scattering, which was sent or will not be.
    fn settle(&mut self, (index, run): RunId, result: Result<(), Failure>) {
        let entry = self.scatterings.get_mut(index);
        let of = &mut entry.runs[run as usize];
        let before = core::mem::replace(&mut of.state, State::Settled);
        let parts = of.parts.clone();
        let count = parts.len() as u64;
        entry.unsettled -= 1;
        match result {
            Ok(()) => self.counters.acknowledged.add(count),
            Err(why) => {
                self.counters.failed.add(count);
                entry.failed += count as u32;
                let dst = self.peers.get(of.peer as usize).map_or(self.config.own.id, |peer| peer.id);
                let timestamp = entry.time.filter(|_| before == State::Sent).map(Timestamp::new);
                for part in &entry.parts[parts.start as usize..parts.end as usize] {
                    let scattering = Scattering(entry.number);
                    self.events.push_back(Event::SendFailed {
                        scattering,
                        timestamp,
                        dst,
                        part: part.number,
                        why,
                    });
                }
            }
        }
        if before == State::Waiting && entry.unsettled > 0 {
            self.on_run_ready(index);
        }
        self.remove_if_settled(index);
    }

    fn remove_if_settled(&mut self, index: u32) {
        let entry = self.scatterings.get_mut(index);
        if entry.unsettled > 0 || entry.is_ready {
            return;
        }
        self.unsent -= entry.bytes.len();
        self.unsettled -= entry.parts.len();
        self.events.push_back(Event::Settled {
            scattering: Scattering(entry.number),
            timestamp: entry.time.map(Timestamp::new),
            failed: entry.failed,
        });
        self.scatterings.remove(index);
    }

    /// Handles an ACK.
    pub(super) fn on_ack(
        &mut self,
        peer: u32,
        header: &OnePipe,
        payload: &[u8],
        now: Nanos,
    ) -> Result<(), Refusal> {
        let (arrivals, _) = AckBody::read_from_prefix(payload).map_err(|_| Refusal::NoHeader)?;
        let outbound = self.outbound[peer as usize].as_mut().ok_or(Refusal::Answer)?;
        let (highest, taken) = (header.psn(), arrivals.accepted.get());
        let has_restarted = outbound.on_ack(highest, &arrivals, now)?;
        // The receiver's incarnation has received this many packets: what was sent earlier, its previous
        // incarnation may have delivered.
        let reported = arrivals.packets.get().min(AckBody::HISTORY);
        self.counters.acks_taken.add(1);
        let (mut at, mut acknowledged) = (0, 0);
        while let Some(outbound) = &mut self.outbound[peer as usize]
            && let Some(&InFlight { last, part_of, .. }) = outbound.in_flight.get(at)
        {
            let Ok(before) = u32::try_from(highest.distance(last)) else { break };
            let result = if taken.checked_shr(before).unwrap_or(0) & 1 == 1 {
                Ok(())
            } else if !last.precedes(arrivals.next()) {
                at += 1;
                continue;
            } else if before < reported && !has_restarted {
                outbound.on_loss();
                Err(Failure::Lost)
            } else {
                Err(Failure::NotAcknowledged)
            };
            if at == 0 {
                outbound.in_flight.pop_front();
            } else {
                outbound.in_flight.remove(at);
            }
            if let (Ok(()), PartOf::Alone { number, time }) = (result, part_of) {
                let (scattering, timestamp) = (Scattering(number), Some(Timestamp::new(time)));
                self.events.push_back(Event::Settled { scattering, timestamp, failed: 0 });
                acknowledged += 1;
                continue;
            }
            self.settle_sent(peer, part_of, result);
        }
        self.unsettled -= acknowledged;
        self.counters.acknowledged.add(acknowledged as u64);
        self.advance(peer, now);
        Ok(())
    }

    /// Handles a NAK.
    pub(super) fn on_nak(
        &mut self,
        peer: u32,
        header: &OnePipe,
        payload: &[u8],
        now: Nanos,
    ) -> Result<(), Refusal> {
        let (refused, _) = NakBody::read_from_prefix(payload).map_err(|_| Refusal::NoHeader)?;
        let psn = header.psn();
        let outbound = self.outbound[peer as usize].as_mut().ok_or(Refusal::Answer)?;
        let run = |&(index, run): &RunId| &self.scatterings.get(index).runs[run as usize];
        // Runs in flight are in the order of their PSNs.
        let at = outbound.in_flight.partition_point(|sent| sent.last.precedes(psn));
        let why = match refused.reason {
            NakBody::LATE => Failure::Late,
            NakBody::NO_ROOM => Failure::NoRoom,
            _ => Failure::Lost,
        };
        let part_of = if outbound.in_flight.get(at).is_some_and(|sent| sent.has(psn)) {
            outbound.in_flight.remove(at).expect("it is there").part_of
        } else if let Some(&id) = outbound.queue.front()
            && run(&id).has(psn)
        {
            // The rest of the run would be of no use.
            outbound.release();
            outbound.queue.pop_front();
            PartOf::Scattering(id)
        } else {
            return Err(Refusal::Answer);
        };
        if why == Failure::Lost {
            outbound.on_loss();
        }
        self.counters.naks_taken.add(1);
        self.settle_sent(peer, part_of, Err(why));
        self.advance(peer, now);
        Ok(())
    }

    /// Handles the time-out of a receiver: settles runs that were not acknowledged in time.
    pub(super) fn on_timeout(&mut self, peer: u32, now: Nanos) {
        let timeout = self.config.timeout;
        let mut silent = false;
        while let Some(outbound) = &mut self.outbound[peer as usize] {
            let due = |at: Nanos| at + timeout <= now;
            if let Some(&InFlight { last, sent_at, part_of, .. }) = outbound.in_flight.front() {
                if !due(sent_at) {
                    self.arm(2 * peer, sent_at + timeout);
                    break;
                }
                outbound.presume_gone(last);
                outbound.in_flight.pop_front();
                self.settle_sent(peer, part_of, Err(Failure::NotAcknowledged));
                silent = true;
                continue;
            }
            if !outbound.is_under_way() && !outbound.is_blocked {
                break;
            }
            if !due(outbound.last()) {
                let at = outbound.last() + timeout;
                self.arm(2 * peer, at);
                break;
            }
            if !outbound.is_under_way() {
                outbound.presume_room(cost(self.config.fragment()), now);
                break;
            }
            outbound.presume_all_gone();
            silent = true;
            let has_begun = |&(index, run): &RunId| self.scatterings.get(index).runs[run as usize].sent > 0;
            if outbound.queue.front().is_some_and(has_begun) {
                outbound.release();
                let run = outbound.queue.pop_front().expect("it is there");
                self.settle(run, Err(Failure::NotAcknowledged));
            }
        }
        if let Some(outbound) = &mut self.outbound[peer as usize]
            && silent
        {
            outbound.on_timeout();
        }
        self.advance(peer, now);
    }

    /// Sets whether a process is alive, as the control plane has determined. Messages in flight to a dead
    /// process fail, and so do messages sent to it. Returns false if the process is not in the table of
    /// peers.
    pub fn set_alive(&mut self, id: ProcessId, alive: bool, now: Nanos) -> bool {
        let Some(peer) = self.by_id.get(&id) else { return false };
        self.peers[peer as usize].dead = !alive;
        if !alive {
            self.fail_all(peer, Failure::Dead);
            self.advance(peer, now);
        }
        true
    }

    /// Leaves (1Pipe, Table 1, `onepipe_exit`): messages that were not sent fail, only ACKs and NAKs are sent
    /// from now on, and beacons announce that nothing follows, so that no receiver waits for this process.
    pub fn leave(&mut self) {
        self.has_left = true;
        self.beacon = Pending::Now;
        for peer in 0..self.outbound.len() as u32 {
            self.fail_all(peer, Failure::Left);
        }
        let finishing = self.finishing.take().map(|(index, ..)| index);
        let ready: Vec<_> = finishing.into_iter().chain(self.ready.drain(..)).collect();
        for index in ready {
            self.scatterings.get_mut(index).is_ready = false;
            self.remove_if_settled(index);
        }
    }

    fn fail_all(&mut self, peer: u32, why: Failure) {
        while let Some(outbound) = &mut self.outbound[peer as usize] {
            outbound.release();
            let sent = outbound.in_flight.pop_front().map(|sent| sent.part_of);
            let Some(next) = sent.or_else(|| outbound.queue.pop_front().map(PartOf::Scattering)) else {
                outbound.presume_all_gone();
                return;
            };
            self.settle_sent(peer, next, Err(why));
        }
    }
}
