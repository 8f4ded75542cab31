//! Frames of messages, recalls and probes: what is sent next, and the stamping of scatterings.

use crate::header::{OnePipe, OnePipeOpcode, Timestamp};
use crate::reliable::RecallBody;
use rocev2::Psn;
use switch::Nanos;
use zerocopy::IntoBytes;

use super::super::super::clock::Clock;
use super::super::super::peers::Peers;
use super::super::super::receiver::inbound::Run as OwnRun;
use super::super::super::sender::schedule::Finishing;
use super::super::inbound::psn_of;
use super::super::receiver::{Receiver, header};
use super::super::scattering::{Phase, Run, RunId, State};
use super::Sender;

impl Sender {
    /// Writes the next frame: recalls and probes first, then repeated packets, then new ones. Returns false if
    /// there is none.
    pub(in super::super) fn poll(
        &mut self,
        own: &mut Receiver,
        clock: &mut Clock,
        peers: &mut Peers,
        now: Nanos,
        frame: &mut Vec<u8>,
    ) -> bool {
        if self.send_control(peers, now, frame) || self.resend(clock, peers, now, frame) {
            return true;
        }
        loop {
            if let Some(next) = self.schedule.next_run() {
                if self.send_last(next, peers, now, frame) {
                    return true;
                }
            } else if let Some(peer) = self.schedule.pop_round() {
                if self.send_in_round(peer, clock, peers, now, frame) {
                    return true;
                }
            } else if let Some(index) = self.schedule.pop_ready() {
                self.stamp(index, own, clock, now);
            } else {
                return false;
            }
        }
    }

    fn send_control(&mut self, peers: &mut Peers, now: Nanos, frame: &mut Vec<u8>) -> bool {
        while let Some(&peer) = self.control.front() {
            let Some(outbound) = &mut self.receivers[peer as usize] else {
                self.control.pop_front();
                continue;
            };
            if let Some(recall) = outbound.next_recall(now) {
                let is_unanswered = outbound.is_unanswered();
                let (first, last) = (psn_of(recall.first), psn_of(recall.last));
                let header = header(OnePipeOpcode::RECALL, Timestamp::new(recall.time.unwrap_or(0)), last);
                let body = RecallBody::recall(first, last, recall.time.is_some());
                peers.emit(peer, is_unanswered, &header, body.as_bytes(), frame);
                self.counters.recalls_sent.add(1);
                self.arm(peer);
                return true;
            }
            outbound.rounds.control = false;
            self.control.pop_front();
            if outbound.take_probe() {
                let header = header(OnePipeOpcode::RELIABLE_PROBE, Timestamp::default(), outbound.next_psn());
                peers.emit(peer, outbound.is_unanswered(), &header, &[], frame);
                return true;
            }
        }
        false
    }

    fn resend(&mut self, clock: &mut Clock, peers: &mut Peers, now: Nanos, frame: &mut Vec<u8>) -> bool {
        while let Some(peer) = self.resends.pop_front() {
            let Some(outbound) = &mut self.receivers[peer as usize] else { continue };
            outbound.rounds.resends = false;
            if !outbound.can_resend() {
                continue;
            }
            let Some((run, index, psn)) = outbound.resend(now) else { continue };
            self.emit(peer, run, index, psn, clock, peers, now, frame);
            self.counters.repeated.add(1);
            self.add_resends(peer);
            self.arm(peer);
            return true;
        }
        false
    }

    /// Stamps a scattering. Its messages for this process itself enter the queue at that moment.
    fn stamp(&mut self, index: u32, own: &mut Receiver, clock: &mut Clock, now: Nanos) {
        let entry = self.scatterings.get_mut(index);
        if entry.phase != Phase::Sending {
            entry.is_scheduled = false;
            self.remove_if_done(index);
            return;
        }
        let time = clock.stamp(now);
        entry.time = Some(time);
        self.undecided.push(time, index);
        self.schedule.begin(index, time);
        // Runs are sorted by receiver, and this process's index is the highest.
        let run = entry.runs.len() as u32 - 1;
        if entry.run(run).peer != self.receivers.len() as u32 {
            return;
        }
        self.own_queue.pop_front();
        self.is_own_ready = false;
        let (messages, ends) = entry.messages_in(run);
        let data = messages.to_vec();
        own.take_own(OwnRun { time, position: 0, data, ends, cost: entry.cost(run) });
        self.counters.sent.add(entry.messages_of(run));
        self.acknowledge((index, run));
        self.advance_own(own);
    }

    /// Writes a packet that is not its run's last, if the windows still have room.
    fn send_in_round(
        &mut self,
        peer: u32,
        clock: &mut Clock,
        peers: &mut Peers,
        now: Nanos,
        frame: &mut Vec<u8>,
    ) -> bool {
        let Some(outbound) = &mut self.receivers[peer as usize] else { return false };
        outbound.rounds.new = false;
        let Some(&(index, run)) = outbound.queue.front() else { return false };
        let entry = self.scatterings.get(index);
        let (piece, is_last) = entry.piece(run, entry.run(run).sent);
        let fits = !is_last && outbound.has_room(piece.cost(), now);
        if fits {
            self.send_piece(peer, (index, run), clock, peers, now, frame);
        }
        self.advance(peer, now);
        fits
    }

    /// Writes the last packet of a run of the scattering that was stamped last, unless it was aborted.
    fn send_last(&mut self, next: Finishing, peers: &mut Peers, now: Nanos, frame: &mut Vec<u8>) -> bool {
        let Finishing { index, run, time } = next;
        let entry = self.scatterings.get_mut(index);
        let Some(&Run { peer, state, .. }) = entry.runs.get(run as usize) else {
            self.schedule.end();
            entry.is_scheduled = false;
            self.remove_if_done(index);
            return false;
        };
        if state != State::Ready {
            return false;
        }
        entry.run_mut(run).state = State::Sent;
        self.counters.sent.add(entry.messages_of(run));
        self.receivers[peer as usize].as_mut().expect("a run that is ready has a receiver").pop();
        // The clock has issued the timestamp; the packet carries that.
        debug_assert_eq!(self.scatterings.get(index).time, Some(time));
        self.send_last_piece(peer, (index, run), peers, now, frame);
        self.advance(peer, now);
        true
    }

    fn send_last_piece(&mut self, peer: u32, run: RunId, peers: &mut Peers, now: Nanos, frame: &mut Vec<u8>) {
        let (index, psn) = self.next_packet(peer, run, now);
        let header = self.data_header(run, index, psn, 0);
        self.write(peer, run, index, &header, peers, frame);
    }

    fn send_piece(
        &mut self,
        peer: u32,
        run: RunId,
        clock: &mut Clock,
        peers: &mut Peers,
        now: Nanos,
        frame: &mut Vec<u8>,
    ) {
        let (index, psn) = self.next_packet(peer, run, now);
        self.emit(peer, run, index, psn, clock, peers, now, frame);
    }

    /// Accounts for the next packet of a run. Returns its index in the run and its PSN.
    fn next_packet(&mut self, peer: u32, run: RunId, now: Nanos) -> (u32, Psn) {
        let entry = self.scatterings.get_mut(run.0);
        let index = entry.run(run.1).sent;
        let (piece, is_last) = entry.piece(run.1, index);
        let outbound = self.receivers[peer as usize].as_mut().expect("a run in a queue has a receiver");
        let position = outbound.send(run, index, is_last, piece.cost(), now);
        let to = entry.run_mut(run.1);
        if index == 0 {
            to.first = position;
        }
        to.sent += 1;
        self.arm(peer);
        (index, psn_of(position))
    }

    #[expect(clippy::too_many_arguments, reason = "parts of the process and of the packet")]
    fn emit(
        &mut self,
        peer: u32,
        run: RunId,
        index: u32,
        psn: Psn,
        clock: &mut Clock,
        peers: &mut Peers,
        now: Nanos,
        frame: &mut Vec<u8>,
    ) {
        let header = self.data_header(run, index, psn, clock.issue(now));
        self.write(peer, run, index, &header, peers, frame);
    }

    /// Returns the header of a packet. A packet that is not its run's last carries the clock.
    fn data_header(&self, (index, run): RunId, packet: u32, psn: Psn, clock: u64) -> OnePipe {
        let entry = self.scatterings.get(index);
        let (piece, is_last) = entry.piece(run, packet);
        let time = if is_last { entry.time.unwrap_or(0) } else { clock };
        let mut header = header(OnePipeOpcode::RELIABLE_DATA, Timestamp::new(time), psn);
        header.set_first(packet == 0);
        header.set_end_of_message(piece.ends_message);
        header.set_timestamp_follows(!is_last);
        header
    }

    fn write(
        &self,
        peer: u32,
        (index, run): RunId,
        packet: u32,
        header: &OnePipe,
        peers: &mut Peers,
        frame: &mut Vec<u8>,
    ) {
        let entry = self.scatterings.get(index);
        let (piece, _) = entry.piece(run, packet);
        let is_unanswered = self.receivers[peer as usize].as_ref().is_some_and(|to| to.is_unanswered());
        peers.emit(peer, is_unanswered, header, entry.data(piece), frame);
        self.counters.packets_sent.add(1);
    }
}
