//! Receiving: packets are checked, reassembled, buffered until the barrier has passed them, delivered, and
//! acknowledged (1Pipe, sections 4.1 and 6.1).

use rocev2::datagram::Datagram;
use rocev2::onepipe::{AckBody, NakBody, OnePipe, OnePipeOpcode, Timestamp};
use rocev2::{Opcode, Packet, Psn};
use switch::Nanos;
use zerocopy::IntoBytes;

use super::config::PACKET_COST;
use super::counters::Refusal;
use super::inbound::{self, Inbound, RunFlags, cost};
use super::reorder::{DeliveryKey, Waiting};
use super::{ABANDONED_AFTER, MAX_ANSWERS, Message, Process, Source};

/// "Congestion experienced" (RFC 3168)
const MARKED: u8 = 3;
/// Number of unacknowledged packets after which the contents of an ACK are saved, before its history is too
/// short for them
const SAVE_ACK_AFTER: u32 = AckBody::HISTORY - 32;

impl Process {
    /// Handles a received frame. Returns the reason why the frame, or the barrier in it, was refused: that is
    /// counted, and needs no action.
    pub fn on_frame(&mut self, frame: &[u8], now: Nanos) -> Result<(), Refusal> {
        let result = self.receive_datagram(frame, now);
        if let Err(why) = result {
            self.counters.refuse(why);
        }
        result
    }

    #[inline]
    fn receive_datagram(&mut self, frame: &[u8], now: Nanos) -> Result<(), Refusal> {
        let datagram = match self.expected.read(frame) {
            Some(datagram) => datagram,
            None => self.parse_datagram(frame)?,
        };
        let Datagram { src, src_qp, ecn, header, payload } = datagram;
        if header.version != OnePipe::VERSION {
            return Err(Refusal::OtherVersion);
        }
        if header.opcode() == OnePipeOpcode::BEACON {
            return self.on_beacon(&datagram, now);
        }
        let peer = self.by_source.get(&Source(src, src_qp)).ok_or(Refusal::UnknownSource)?;
        match header.opcode() {
            #[cfg(debug_assertions)]
            OnePipeOpcode::DATA if self.gave_up.take_if(|of| *of != peer).is_some() => Err(Refusal::Late),
            OnePipeOpcode::DATA => self.on_data(peer, header, ecn == MARKED, payload, now),
            OnePipeOpcode::ACK => self.on_ack(peer, header, payload, now),
            OnePipeOpcode::NAK => self.on_nak(peer, header, payload, now),
            // Opcodes of the reliable service, and undefined ones
            _ => Err(Refusal::Opcode),
        }
    }

    /// Parses a datagram with options, extension headers or tags; or returns why it is refused.
    #[cold]
    fn parse_datagram<'a>(&self, frame: &'a [u8]) -> Result<Datagram<'a>, Refusal> {
        let packet = Packet::parse(frame).ok_or(Refusal::NotOurs)?;
        let own = &self.config.own;
        if packet.layout().opcode() != Opcode::UD_SEND_ONLY
            || packet.bth().dest_qp() != own.qpn
            || packet.ethernet().dst != own.mac
            || packet.dst() != own.address
        {
            return Err(Refusal::NotOurs);
        }
        let deth = packet.deth().ok_or(Refusal::NotOurs)?;
        if deth.qkey.get() != self.config.qkey {
            return Err(Refusal::WrongKey);
        }
        if !packet.verify_icrc() {
            return Err(Refusal::Damaged);
        }
        let header = packet.onepipe().ok_or(Refusal::NoHeader)?;
        let payload = &packet.payload()[OnePipe::LEN..];
        Ok(Datagram { src: packet.src(), src_qp: deth.src_qp(), ecn: packet.ecn(), header, payload })
    }

    fn on_beacon(&mut self, beacon: &Datagram<'_>, now: Nanos) -> Result<(), Refusal> {
        let tor = &self.config.tor;
        if (beacon.src, beacon.src_qp) != (tor.address, tor.qpn) {
            return Err(Refusal::WrongSource);
        }
        let is_final = beacon.header.nothing_follows();
        let time = self.clock.unwrap_timestamp(beacon.header.timestamp(), now);
        if is_final && self.is_ahead(time, now) {
            return Err(Refusal::Ahead);
        }
        // A late or repeated announcement has no barrier by which that could be detected, and would raise
        // this process's barrier above timestamps that still arrive.
        let old = time.saturating_add(self.config.ahead_max.0) < self.clock.without_setbacks(now);
        if is_final && (old || time < self.last_tor_beacon) {
            return Err(Refusal::Stale);
        }
        let result = self.update_barriers(beacon.header, now);
        if result.is_ok() {
            self.last_tor_beacon = self.last_tor_beacon.max(time + u64::from(is_final));
        }
        if is_final && result.is_ok() {
            // No sender is left to wait for. One that returns is later, or its messages are refused.
            self.barrier = self.barrier.max(self.clock.read(now));
        }
        self.deliver(now);
        result.inspect(|()| self.counters.beacons_taken.add(1))
    }

    fn is_ahead(&self, time: u64, now: Nanos) -> bool {
        time > self.clock.without_setbacks(now).saturating_add(self.config.ahead_max.0)
    }

    /// Updates the barriers by those that the link's other end has sent.
    fn update_barriers(&mut self, header: &OnePipe, now: Nanos) -> Result<(), Refusal> {
        let unwrap =
            |value: Option<Timestamp>| value.map_or(0, |value| self.clock.unwrap_timestamp(value, now));
        let (barrier, commit) = (unwrap(header.barrier()), unwrap(header.commit()));
        if self.is_ahead(barrier, now) || self.is_ahead(commit, now) {
            return Err(Refusal::Ahead);
        }
        self.commit = self.commit.max(commit);
        if barrier != 0 && barrier < self.barrier {
            return Err(Refusal::Stale);
        }
        self.barrier = self.barrier.max(barrier);
        Ok(())
    }

    #[inline]
    fn on_data(
        &mut self,
        peer: u32,
        header: &OnePipe,
        marked: bool,
        payload: &[u8],
        now: Nanos,
    ) -> Result<(), Refusal> {
        let time = self.clock.unwrap_timestamp(header.timestamp(), now);
        if self.is_ahead(time, now) {
            return Err(Refusal::Ahead);
        }
        let last = !header.timestamp_follows();
        let flags = RunFlags { first: header.first(), end: header.end_of_message() || last, last };
        let packet = inbound::Packet { psn: header.psn(), time, flags, marked, payload };
        let result = self.take_packet(peer, packet, now);
        // The packet's own barrier covers what follows the packet, so the packet is handled first.
        let barriers =
            if self.config.barriers_in_messages { self.update_barriers(header, now) } else { Ok(()) };
        self.deliver(now);
        result.and(barriers)
    }

    #[inline]
    fn take_packet(&mut self, peer: u32, packet: inbound::Packet<'_>, now: Nanos) -> Result<(), Refusal> {
        let cost = cost(packet.payload.len());
        let has_room = |held: usize| {
            held + cost <= self.config.receive_window as usize
                && self.held + cost <= self.config.receive_buffer
                && self.reorder.len() < self.config.receive_buffer / PACKET_COST
        };
        if packet.time >= self.barrier
            && let Some(inbound) = &mut self.inbound[peer as usize]
            && has_room(inbound.held)
            && let Some(position) = inbound.accept_in_order(&packet)
        {
            inbound.last_received_at = now;
            self.held += cost;
            let mut data = self.outcome.spare.pop().unwrap_or_default();
            data.clear();
            data.extend_from_slice(packet.payload);
            let run = inbound::Run { time: packet.time, position, data, ends: Vec::new(), cost };
            self.reorder.push(
                DeliveryKey::new(packet.time, self.peers[peer as usize].id, position),
                peer,
                Some(run),
            );
            self.schedule_ack(peer, now);
            self.counters.packets_taken.add(1);
            self.counters.marked.add(packet.marked.into());
            return Ok(());
        }
        // A copy, so that the compiler can keep the fields of the original in registers.
        self.take_any_packet(peer, &{ packet }, now)
    }

    /// Handles a packet other than a single-packet run that arrives in order.
    #[inline(never)]
    fn take_any_packet(
        &mut self,
        peer: u32,
        packet: &inbound::Packet<'_>,
        now: Nanos,
    ) -> Result<(), Refusal> {
        let cost = cost(packet.payload.len());
        let window = self.config.receive_window as usize;
        let inbound = self.inbound[peer as usize].get_or_insert_with(|| Box::new(Inbound::new(packet.psn)));
        let before = inbound.held;
        if inbound.is_after_restart(packet) {
            inbound.restart(packet.psn, &mut self.outcome);
            self.counters.restarts.add(1);
        }
        inbound.last_received_at = now;
        let admission = if packet.time < self.barrier {
            Err(Refusal::Late)
        } else if inbound.held + cost > window
            || self.held + cost > self.config.receive_buffer
            || self.reorder.len() >= self.config.receive_buffer / PACKET_COST
        {
            Err(Refusal::NoRoom)
        } else {
            Ok(())
        };
        let result = inbound.accept(packet, admission, &mut self.outcome);
        self.held = self.held + inbound.held - before;
        self.schedule_ack(peer, now);
        self.counters.packets_taken.add(result.is_ok().into());
        self.counters.marked.add(packet.marked.into());
        self.take_outcome(peer);
        if let Some(position) = result? {
            let id = self.peers[peer as usize].id;
            self.reorder.push(DeliveryKey::new(packet.time, id, position), peer, None);
        }
        Ok(())
    }

    /// Schedules an ACK after a packet of a sender was received.
    #[inline]
    fn schedule_ack(&mut self, peer: u32, now: Nanos) {
        let Some(Some(inbound)) = self.inbound.get_mut(peer as usize) else { return };
        inbound.unacknowledged += 1;
        if inbound.unacknowledged >= SAVE_ACK_AFTER && self.saved_acks.len() < MAX_ANSWERS {
            // No ACK could be sent for long, because the port was busy or was not polled: a later ACK's
            // history would not reach back to these packets.
            inbound.unacknowledged = 0;
            let ack_contents = inbound.ack_contents();
            self.saved_acks.push_back((peer, ack_contents));
        } else if inbound.unacknowledged >= self.config.ack_every {
            self.queue_ack(peer);
        } else if inbound.ack_at.is_none() {
            let at = now + self.config.ack_delay;
            inbound.ack_at = Some(at);
            self.arm(2 * peer + 1, at);
        }
    }

    /// Consumes the outcome of a call to a sender's state.
    fn take_outcome(&mut self, peer: u32) {
        let id = self.peers[peer as usize].id;
        if let [_] = self.outcome.runs[..]
            && let Some(run) = self.outcome.runs.pop()
        {
            self.reorder.push(DeliveryKey::new(run.time, id, run.position), peer, Some(run));
        }
        if self.outcome.is_empty() {
            return;
        }
        for run in self.outcome.runs.drain(..) {
            self.reorder.push(DeliveryKey::new(run.time, id, run.position), peer, Some(run));
        }
        for (psn, reason) in self.outcome.naks.drain(..) {
            if self.naks.len() < MAX_ANSWERS {
                self.naks.push_back((peer, psn, reason));
            } else {
                self.counters.naks_lost.add(1);
            }
        }
        for _ in 0..core::mem::take(&mut self.outcome.incomplete) {
            self.counters.refuse(Refusal::Incomplete);
        }
    }

    /// Delivers the messages below the barrier and below this process's own clock, so that whatever it sends
    /// afterwards is later than what was delivered (causality; 1Pipe, section 4.1). The barrier is below the
    /// clock, unless this link was removed from it.
    #[inline]
    pub(super) fn deliver(&mut self, now: Nanos) {
        self.wake_at = None;
        if self.reorder.has_before(self.barrier) {
            self.deliver_all(now);
        }
    }

    fn deliver_all(&mut self, now: Nanos) {
        let due = self.barrier.min(self.clock.read(now));
        while let Some(Waiting { key, peer, run }) = self.reorder.pop_before(due) {
            self.clock.issue(now);
            if let Some(Some(inbound)) = self.inbound.get_mut(peer as usize) {
                let before = inbound.held;
                if inbound.settle(key.position, &mut self.outcome) {
                    self.held = self.held + inbound.held - before;
                    self.take_outcome(peer);
                    self.queue_ack(peer);
                    #[cfg(debug_assertions)]
                    {
                        self.gave_up = (self.config.bug == Some(crate::Bug::SharedGap)).then_some(peer);
                    }
                }
            }
            if let Some(run) = run {
                self.deliver_run(peer, key, run);
            }
        }
        if let Some(key) = self.reorder.first()
            && key.time < self.barrier
        {
            self.wake_at = Some(self.clock.when_past(key.time, now));
        }
    }

    #[inline]
    fn deliver_run(&mut self, peer: u32, key: DeliveryKey, run: inbound::Run) {
        let timestamp = Timestamp::new(run.time);
        self.counters.delivered.add(run.ends.len() as u64 + 1);
        let inbound::Run { mut data, ends, cost, .. } = run;
        if !ends.is_empty() {
            let mut start = 0;
            // The run's last message frees the window's bytes for all messages of the run.
            for end in ends {
                let mut payload = self.outcome.spare.pop().unwrap_or_default();
                payload.clear();
                payload.extend_from_slice(&data[start..end as usize]);
                self.inbox.push_back((Message { timestamp, src: key.sender, payload }, peer, 0));
                start = end as usize;
            }
            // An application that keeps the last message should not keep the memory of the ones before it.
            if start > 0 {
                data = data.split_off(start);
            }
        }
        self.inbox.push_back((Message { timestamp, src: key.sender, payload: data }, peer, cost));
    }

    /// Checks one peer for an incomplete run that its sender has abandoned.
    pub(super) fn sweep(&mut self, now: Nanos) {
        self.sweep = if self.sweep + 1 < self.peers.len() as u32 { self.sweep + 1 } else { 0 };
        let after = self.config.timeout.0.saturating_mul(ABANDONED_AFTER);
        let Some(Some(inbound)) = self.inbound.get_mut(self.sweep as usize) else { return };
        if now.since(inbound.last_received_at).0 > after {
            let before = inbound.held;
            if inbound.abandon() {
                self.counters.refuse(Refusal::Incomplete);
            }
            self.held = self.held + inbound.held - before;
        }
    }

    /// Queues an ACK for a sender.
    pub(super) fn queue_ack(&mut self, peer: u32) {
        let Some(Some(inbound)) = self.inbound.get_mut(peer as usize) else { return };
        if !inbound.is_ack_queued {
            inbound.is_ack_queued = true;
            self.acks.push_back(peer);
        }
    }

    /// Queues window updates for senders whose windows were limited by the bytes buffered for other peers,
    /// once there is room again.
    #[cold]
    pub(super) fn update_limited_windows(&mut self) {
        let free = self.config.receive_buffer.saturating_sub(self.held);
        if free < self.max_window() / 2 {
            return;
        }
        for peer in core::mem::take(&mut self.window_limited) {
            if let Some(Some(inbound)) = self.inbound.get_mut(peer as usize) {
                inbound.is_window_limited = false;
                self.queue_ack(peer);
            }
        }
    }

    /// Returns the maximum window that is ever advertised.
    fn max_window(&self) -> usize {
        self.config.receive_buffer.min(self.config.receive_window as usize)
    }

    /// Returns whether an ACK or NAK is to be sent with the next frames of
    /// [`poll_transmit`](Self::poll_transmit): no other timer announces these.
    #[inline]
    pub fn has_acks_to_send(&self) -> bool {
        !(self.naks.is_empty() && self.saved_acks.is_empty() && self.acks.is_empty())
    }

    /// Writes the next NAK or ACK. Returns false if there is none.
    pub(super) fn send_ack_or_nak(&mut self, now: Nanos, frame: &mut Vec<u8>) -> bool {
        if let Some((peer, psn, reason)) = self.naks.pop_front() {
            let clock = Timestamp::new(self.clock.read(now));
            let header = ack_or_nak_header(OnePipeOpcode::NAK, clock, psn);
            let remote = &mut self.peers[peer as usize];
            remote.route.emit(frame, &header, NakBody::new(reason).as_bytes());
            self.counters.naks_sent.add(1);
            return true;
        }
        let (peer, ack_contents) = if let Some(ack_contents) = self.saved_acks.pop_front() {
            ack_contents
        } else {
            let Some(peer) = self.acks.pop_front() else { return false };
            let Some(Some(inbound)) = self.inbound.get_mut(peer as usize) else { return false };
            (inbound.is_ack_queued, inbound.unacknowledged, inbound.ack_at) = (false, 0, None);
            self.timers.remove(2 * peer + 1);
            (peer, inbound.ack_contents())
        };
        let max_window = self.max_window();
        let Some(Some(inbound)) = self.inbound.get_mut(peer as usize) else { return false };
        let of_sender = (self.config.receive_window as usize).saturating_sub(inbound.held);
        let of_all = self.config.receive_buffer.saturating_sub(self.held);
        let window = of_sender.min(of_all) as u32;
        inbound.advertised_window = window;
        if of_all < of_sender && of_all < max_window / 4 && !inbound.is_window_limited {
            inbound.is_window_limited = true;
            self.window_limited.push(peer);
        }
        let (latest, highest, mut arrivals) = ack_contents;
        arrivals.window = window.into();
        arrivals.incarnation = self.incarnation;
        let header = ack_or_nak_header(OnePipeOpcode::ACK, Timestamp::new(latest), highest);
        let remote = &mut self.peers[peer as usize];
        remote.route.emit(frame, &header, arrivals.as_bytes());
        self.counters.acks_sent.add(1);
        true
    }
}

/// Returns a header without barriers, which switches leave unchanged.
fn ack_or_nak_header(opcode: OnePipeOpcode, time: Timestamp, psn: Psn) -> OnePipe {
    let mut header = OnePipe::new(opcode, time, psn);
    header.set_barrier(None);
    header
}
