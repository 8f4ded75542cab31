//! Frames with messages: the next packet to send, and the stamping of scatterings.

use crate::header::{OnePipe, OnePipeOpcode, Timestamp};
use switch::Nanos;

use super::super::clock::Clock;
use super::super::config::cost;
use super::super::peers::Peers;
use super::super::receiver::Receiver;
use super::Sender;
use super::outbound::{InFlight, PartOf};
use super::scattering::{Piece, RunId, State};
use super::schedule::Finishing;

impl Sender {
    /// Writes the next packet of a message. Scatterings that are ready take turns with packets of runs that
    /// are not. Messages of this process to itself are passed to `own`. Returns false if there is no packet
    /// to send.
    pub(in super::super) fn send_data(
        &mut self,
        own: &mut Receiver,
        clock: &mut Clock,
        peers: &mut Peers,
        now: Nanos,
        frame: &mut Vec<u8>,
    ) -> bool {
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

    /// Stamps a scattering. The messages for this process itself enter the reorder buffer at that moment:
    /// sending the others may take a while, in which a later message could be delivered.
    fn stamp(&mut self, index: u32, own: &mut Receiver, clock: &mut Clock, now: Nanos) {
        let time = clock.stamp(now);
        let entry = self.scatterings.get_mut(index);
        entry.stamp(time);
        self.schedule.begin(index, time);
        // Runs are sorted by receiver, and this process's index is the highest.
        let run = entry.runs() - 1;
        let (peer, state) = (entry.receiver(run), entry.state(run));
        let own_index = self.own_index();
        if peer == Some(own_index) && state == State::Ready {
            self.receivers[own_index as usize].as_mut().expect("it has a queue").pop();
            self.send_to_self((index, run), time, own, clock, now);
            self.advance(own_index, now);
        }
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
        outbound.set_in_round(false);
        let Some((index, run)) = outbound.first() else { return false };
        let entry = self.scatterings.get(index);
        let piece = entry.piece(run, self.settings.fragment);
        let fits = entry.left(run) > 1 && outbound.has_room(cost(piece.range.len()));
        if fits {
            self.send_piece(peer, (index, run), &piece, clock.issue(now), peers, now, frame);
            self.timers.arm(peer, now + self.settings.timeout);
        }
        self.advance(peer, now);
        fits
    }

    /// Writes the last packet of a run of the scattering that is being sent, unless the run has failed.
    fn send_last(&mut self, next: Finishing, peers: &mut Peers, now: Nanos, frame: &mut Vec<u8>) -> bool {
        let Finishing { index, run, time } = next;
        let entry = self.scatterings.get_mut(index);
        let Some(peer) = entry.receiver(run) else {
            self.schedule.end();
            self.unsent -= entry.forget_bytes();
            entry.end_sending();
            self.remove_if_settled(index);
            return false;
        };
        if entry.state(run) != State::Ready {
            return false;
        }
        self.counters.sent.add(entry.messages_of(run).into());
        let piece = entry.piece(run, self.settings.fragment);
        self.receivers[peer as usize].as_mut().expect("it has a queue").pop();
        self.send_piece(peer, (index, run), &piece, time, peers, now, frame);
        let entry = self.scatterings.get_mut(index);
        entry.set_sent(run);
        if let (Some(outbound), Some((first, last))) =
            (&mut self.receivers[peer as usize], entry.sent_packets(run))
        {
            let part_of = PartOf::Scattering((index, run));
            outbound.add_in_flight(InFlight { first, last, sent_at: now, part_of });
        }
        self.timers.arm(peer, now + self.settings.timeout);
        self.advance(peer, now);
        true
    }

    #[expect(clippy::too_many_arguments, reason = "parts of the process and of the packet")]
    fn send_piece(
        &mut self,
        peer: u32,
        (index, run): RunId,
        piece: &Piece,
        time: u64,
        peers: &mut Peers,
        now: Nanos,
        frame: &mut Vec<u8>,
    ) {
        let entry = self.scatterings.get_mut(index);
        let outbound = self.receivers[peer as usize].as_mut().expect("it has a queue");
        let psn = outbound.send(cost(piece.range.len()), now);
        let mut header = OnePipe::new(OnePipeOpcode::DATA, Timestamp::new(time), psn);
        header.set_first(piece.first);
        header.set_end_of_message(piece.end);
        header.set_timestamp_follows(entry.left(run) > 1);
        peers.route(peer).emit(frame, &header, &entry.bytes()[piece.range.clone()]);
        entry.sent(run, piece, psn);
        self.counters.packets_sent.add(1);
    }

    /// Puts a run for this process itself into the reorder buffer, where it waits for its turn like any other
    /// run.
    fn send_to_self(
        &mut self,
        (index, run): RunId,
        time: u64,
        own: &mut Receiver,
        clock: &mut Clock,
        now: Nanos,
    ) {
        let entry = self.scatterings.get(index);
        let (bytes, ends) = entry.messages_in(run);
        self.counters.sent.add(entry.messages_of(run).into());
        let own_id = (self.own_index(), self.settings.own);
        let result = own.take_own(own_id, time, (bytes, ends.collect()), clock, now);
        self.settle((index, run), result);
    }
}
