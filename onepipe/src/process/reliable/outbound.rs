//! Sender state of one receiver's incarnation: packets are repeated until they are acknowledged or recalled
//! (1Pipe, section 5.1).

use rocev2::Psn;
use std::collections::VecDeque;
use switch::Nanos;

use super::super::bug::Bug;
use super::super::config::{Config, cost};
use super::super::counters::Refusal;
use super::super::relay::UNANSWERED;
use super::super::sender::congestion::{AckProgress, Dctcp};
use super::inbound::psn_of;
use super::scattering::RunId;
use super::windows::SendWindow;
use crate::reliable::ReliableAckBody;

/// A packet is lost if this many later ones have arrived (RFC 5681, duplicate ACKs).
const REORDERED: u32 = 3;
/// Maximum time between repetitions, unless round trips take longer
const MAX_RTO: Nanos = Nanos::from_millis(1);

/// State of a packet that was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Status {
    InNetwork,
    /// To be sent again
    Lost,
    /// Arrived, behind a gap
    Held,
    /// Part of a run that is being recalled
    Void,
}

/// Packet that was sent, and is not acknowledged together with all before it.
#[derive(Clone, Copy, Debug)]
struct Sent {
    run: RunId,
    /// Index in the run
    index: u32,
    is_last: bool,
    cost: u32,
    status: Status,
    at: Nanos,
    /// Whether it was sent again, so that its round trip cannot be measured.
    is_repeated: bool,
    /// Whether later packets have revealed its loss before.
    was_overtaken: bool,
}

/// Recall that is not answered.
#[derive(Clone, Copy, Debug)]
pub(super) struct Recall {
    /// Positions of its packets
    pub(super) first: u64,
    pub(super) last: u64,
    /// Timestamp of the run, unwrapped, if it has one
    pub(super) time: Option<u64>,
    pub(super) run: RunId,
    /// Time at which it was last sent
    sent_at: Option<Nanos>,
    /// Number of times that it was sent
    times: u32,
}

/// What an ACK says about a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Arrived {
    pub(super) run: RunId,
    /// Whether the packet had not been reported before.
    pub(super) is_new: bool,
    /// Whether the whole run is acknowledged, and everything before it.
    pub(super) is_complete: bool,
}

/// What is due when a timer has expired.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(super) struct Due {
    /// A recall or a probe is to be sent.
    pub(super) control: bool,
    /// Packets are to be sent again.
    pub(super) resend: bool,
}

/// Whether the receiver is in the rounds of those with a new packet, a packet to be repeated, or a recall.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Rounds {
    pub(super) new: bool,
    pub(super) resends: bool,
    pub(super) control: bool,
}

/// Whether a receiver answers.
#[derive(Clone, Debug)]
struct Answers {
    /// Number of timeouts since the last answer
    missing: u32,
    /// Whether enough are missing that frames go through the controller, too, until the receiver answers directly
    are_missing: bool,
    /// Whether the controller carries frames to it
    is_relayed: bool,
}

/// Sender state of a receiver.
#[derive(Clone, Debug)]
pub(super) struct Outbound {
    /// Incarnation of the receiver
    pub(super) incarnation: u32,
    /// Runs of which not all packets were sent, in the order of sending
    pub(super) queue: VecDeque<RunId>,
    /// Packets from the first one that is not acknowledged on, and that packet's position
    packets: VecDeque<Sent>,
    base: u64,
    /// Sum of the costs of `packets`, and of those in the network
    outstanding: usize,
    in_network: usize,
    /// Number of packets that are lost
    lost: usize,
    /// Cost of the last packet of the first run in the queue, once the run is ready
    reserved: Option<usize>,
    pub(super) rounds: Rounds,
    /// Whether the receiver's window keeps a packet from being sent.
    is_blocked: bool,
    is_probe_due: bool,
    window: SendWindow,
    congestion: Dctcp,
    recalls: VecDeque<Recall>,
    /// Average round trip; 0 before the first ACK
    round_trip: u64,
    min_rto: u64,
    /// Whether recalls are repeated; false if that bug is planted.
    repeats_recalls: bool,
    /// Number of consecutive timeouts, or of all before a round trip is known
    timeouts: u32,
    answers: Answers,
    /// Time of the last progress
    last: Nanos,
    /// Counts in the receiver's last ACK
    received: u32,
    marked: u32,
}

impl Outbound {
    pub(super) fn new(incarnation: u32, config: &Config) -> Self {
        let packet = cost(config.fragment()) as u32;
        Self {
            incarnation,
            queue: VecDeque::new(),
            packets: VecDeque::new(),
            base: 0,
            outstanding: 0,
            in_network: 0,
            lost: 0,
            reserved: None,
            rounds: Rounds::default(),
            is_blocked: false,
            is_probe_due: false,
            window: SendWindow::default(),
            congestion: Dctcp::new(config.initial_window, packet, config.reliable_grant() as u32, Psn::ZERO),
            recalls: VecDeque::new(),
            round_trip: 0,
            min_rto: 3 * config.beacon_interval.0,
            repeats_recalls: !config.has_bug(Bug::RecallOnce),
            timeouts: 0,
            answers: Answers { missing: 0, are_missing: false, is_relayed: true },
            last: Nanos::ZERO,
            received: 0,
            marked: 0,
        }
    }

    /// Removes and returns the first run in the queue, and cancels its reservation.
    pub(super) fn pop(&mut self) -> Option<RunId> {
        self.reserved = None;
        self.queue.pop_front()
    }

    /// Removes a run from the queue.
    pub(super) fn remove(&mut self, run: RunId) {
        if self.queue.front() == Some(&run) {
            self.pop();
        } else {
            self.queue.retain(|&other| other != run);
        }
    }

    /// Returns whether nothing keeps the first run in the queue from being advanced: it is not ready, and its
    /// next packet does not wait for its turn.
    pub(super) const fn can_advance(&self) -> bool {
        self.reserved.is_none() && !self.rounds.new
    }

    /// Marks the first run in the queue as ready, and reserves the cost of its last packet.
    pub(super) const fn reserve(&mut self, cost: usize) {
        self.reserved = Some(cost);
    }

    /// Returns whether both windows have room for a new packet. A single packet always fits into the
    /// congestion window.
    #[inline]
    pub(super) fn has_room(&mut self, cost: usize, now: Nanos) -> bool {
        let fits = self.window.fits(self.outstanding + self.reserved.unwrap_or(0) + cost);
        if !fits && !self.is_blocked {
            self.last = self.last.max(now);
            // The receiver grants a window to a probe.
            self.is_probe_due |= !self.window.is_known();
        }
        self.is_blocked = !fits;
        fits && self.fits_into_network(cost)
    }

    /// Returns whether both windows have room for a packet, which does not wait if they have not.
    #[inline]
    pub(super) fn would_fit(&self, cost: usize) -> bool {
        !self.is_blocked && self.window.fits(self.outstanding + cost) && self.fits_into_network(cost)
    }

    #[inline]
    fn fits_into_network(&self, cost: usize) -> bool {
        let before = self.in_network + self.reserved.unwrap_or(0);
        before == 0 || before + cost <= self.congestion.window() as usize
    }

    /// Records that no packet waits for the window.
    pub(super) const fn unblock(&mut self) {
        self.is_blocked = false;
    }

    /// Accounts for a new packet. Returns its position.
    #[inline]
    pub(super) fn send(&mut self, run: RunId, index: u32, is_last: bool, cost: usize, now: Nanos) -> u64 {
        if self.in_network == 0 {
            self.last = now;
        }
        self.outstanding += cost;
        self.in_network += cost;
        let position = self.base + self.packets.len() as u64;
        self.packets.push_back(Sent {
            run,
            index,
            is_last,
            cost: cost as u32,
            status: Status::InNetwork,
            at: now,
            is_repeated: false,
            was_overtaken: false,
        });
        position
    }

    /// Returns whether a packet is to be repeated and the congestion window has room.
    pub(super) fn can_resend(&self) -> bool {
        self.lost > 0 && (self.in_network == 0 || self.in_network < self.congestion.window() as usize)
    }

    /// Returns the next packet to be repeated: its run, its index in the run, and its PSN.
    pub(super) fn resend(&mut self, now: Nanos) -> Option<(RunId, u32, Psn)> {
        let at = self.packets.iter().position(|sent| sent.status == Status::Lost)?;
        let sent = &mut self.packets[at];
        (sent.status, sent.at, sent.is_repeated) = (Status::InNetwork, now, true);
        self.lost -= 1;
        self.in_network += sent.cost as usize;
        self.last = now;
        Some((sent.run, sent.index, psn_of(self.base + at as u64)))
    }

    /// Handles an ACK, which reports packets up to `highest`. Appends what it says about each packet.
    pub(super) fn on_ack(
        &mut self,
        highest: Psn,
        body: &ReliableAckBody,
        now: Nanos,
        arrived: &mut Vec<Arrived>,
    ) -> Result<(), Refusal> {
        let end = self.base + self.packets.len() as u64;
        self.answers.missing = 0;
        let position = |psn: Psn| self.base.checked_add_signed(psn.distance(psn_of(self.base)).into());
        // Older than the last ACK, or of packets that were never sent
        let next =
            position(body.next()).filter(|&next| next >= self.base && next <= end).ok_or(Refusal::Answer)?;
        let upto = position(highest.add(1)).filter(|&upto| upto <= end).ok_or(Refusal::Answer)?;
        let limited = self.is_blocked || 2 * self.in_network >= self.congestion.window() as usize;
        let before = self.in_network;
        let progress = next > self.base;
        // The ACKs of the packets before the last one may have been lost.
        let mut sent_at = None;
        while self.base < next {
            sent_at = self.acknowledge_first(arrived).or(sent_at);
        }
        if let Some(at) = sent_at {
            self.round_trip = average(self.round_trip, now.since(at).0);
        }
        let has_news = self.mark_held(body.held.get(), arrived);
        let bytes = before - self.in_network;
        if self.mark_lost() {
            self.congestion.on_loss();
        }
        self.window.update(next, body.window.get());
        let counted = |now: u32, before: u32| (now.wrapping_sub(before) as i32).max(0) as u32;
        let (received, marked) = (body.packets.get(), body.marked.get());
        self.congestion.on_ack(AckProgress {
            arrived: psn_of(upto.max(next)),
            next: psn_of(end),
            bytes: bytes as u32,
            packets: counted(received, self.received),
            marked: counted(marked, self.marked),
            limited,
        });
        if counted(received, self.received) > 0 {
            (self.received, self.marked) = (received, marked);
        }
        if progress || has_news {
            self.last = now;
            // Before a round trip is known, it may be longer than the shortest timeout, and then no packet would ever
            // be acknowledged without having been repeated (RFC 6298, section 5).
            if self.round_trip > 0 {
                self.timeouts = 0;
            }
        }
        Ok(())
    }

    /// Removes the first packet. Returns the time at which it was sent, if its ACK shows a round trip
    /// (RFC 6298, section 3).
    fn acknowledge_first(&mut self, arrived: &mut Vec<Arrived>) -> Option<Nanos> {
        let sent = self.packets.pop_front()?;
        self.base += 1;
        self.outstanding -= sent.cost as usize;
        self.leave_network(sent.status, sent.cost);
        let is_new = matches!(sent.status, Status::InNetwork | Status::Lost);
        let is_complete = sent.is_last && sent.status != Status::Void;
        if is_new || is_complete {
            arrived.push(Arrived { run: sent.run, is_new, is_complete });
        }
        (sent.status == Status::InNetwork && !sent.is_repeated).then_some(sent.at)
    }

    fn leave_network(&mut self, status: Status, cost: u32) {
        match status {
            Status::InNetwork => self.in_network -= cost as usize,
            Status::Lost => self.lost -= 1,
            Status::Held | Status::Void => {}
        }
    }

    /// Marks the packets that are held behind the first missing one. Returns whether there are new ones.
    fn mark_held(&mut self, held: u128, arrived: &mut Vec<Arrived>) -> bool {
        let (mut rest, before) = (held, arrived.len());
        while rest != 0 {
            let index = rest.trailing_zeros() as usize + 1;
            rest &= rest - 1;
            let Some(sent) = self.packets.get_mut(index) else { break };
            let status = sent.status;
            if matches!(status, Status::InNetwork | Status::Lost) {
                sent.status = Status::Held;
                let (run, cost) = (sent.run, sent.cost);
                arrived.push(Arrived { run, is_new: true, is_complete: false });
                self.leave_network(status, cost);
            }
        }
        arrived.len() > before
    }

    /// Marks packets as lost that were overtaken. Returns whether there are any.
    fn mark_lost(&mut self) -> bool {
        let behind = self.packets.iter().take(ReliableAckBody::HISTORY + 1);
        let mut held = behind.filter(|sent| sent.status == Status::Held).count() as u32;
        let mut any = false;
        for sent in &mut self.packets {
            if held < REORDERED {
                break;
            }
            held -= u32::from(sent.status == Status::Held);
            if sent.status == Status::InNetwork && !sent.was_overtaken {
                (sent.status, sent.was_overtaken, any) = (Status::Lost, true, true);
                self.in_network -= sent.cost as usize;
                self.lost += 1;
            }
        }
        any
    }

    /// Recalls a run's packets, which are not repeated any more.
    pub(super) fn recall(&mut self, run: RunId, (first, last): (u64, u64), time: Option<u64>) {
        for position in first.max(self.base)..=last {
            let Some(sent) = self.packets.get_mut((position - self.base) as usize) else { break };
            let (status, cost) = (core::mem::replace(&mut sent.status, Status::Void), sent.cost);
            self.leave_network(status, cost);
        }
        self.recalls.push_back(Recall { first, last, time, run, sent_at: None, times: 0 });
    }

    /// Removes and returns the recall of these packets.
    pub(super) fn take_recall(&mut self, first: Psn, last: Psn) -> Option<Recall> {
        let matches = |recall: &Recall| (psn_of(recall.first), psn_of(recall.last)) == (first, last);
        self.recalls.remove(self.recalls.iter().position(matches)?)
    }

    /// Returns the next recall to be sent, or sent again.
    pub(super) fn next_recall(&mut self, now: Nanos) -> Option<Recall> {
        let at = self
            .recalls
            .iter()
            .position(|recall| recall.sent_at.is_none() || self.is_overdue(recall, now))?;
        let recall = &mut self.recalls[at];
        (recall.sent_at, recall.times) = (Some(now), recall.times + 1);
        let recall = *recall;
        if recall.times > 1 {
            self.count_unanswered();
        }
        Some(recall)
    }

    /// Returns whether a recall that was sent is to be repeated.
    fn is_overdue(&self, recall: &Recall, now: Nanos) -> bool {
        self.repeats_recalls && self.due_at(recall).is_some_and(|at| at <= now)
    }

    /// Returns the time at which a recall that was sent is to be repeated.
    fn due_at(&self, recall: &Recall) -> Option<Nanos> {
        Some(recall.sent_at? + Nanos(self.rto_after(recall.times.saturating_sub(1))))
    }

    /// Forgets the recalls of a scattering (a planted bug).
    pub(super) fn forget_recalls(&mut self, index: u32) {
        self.recalls.retain(|recall| recall.run.0 != index);
    }

    /// Returns whether a probe for the window is to be sent, which counts as sent then.
    pub(super) const fn take_probe(&mut self) -> bool {
        core::mem::replace(&mut self.is_probe_due, false)
    }

    /// Returns whether a recall or a probe is to be sent.
    pub(super) fn has_control(&self) -> bool {
        self.is_probe_due || self.recalls.iter().any(|recall| recall.sent_at.is_none())
    }

    /// Returns whether the receiver does not answer.
    #[inline]
    pub(super) const fn is_unanswered(&self) -> bool {
        self.answers.are_missing
    }

    /// Records an answer that came directly.
    pub(super) const fn on_direct_answer(&mut self) {
        (self.answers.missing, self.answers.are_missing) = (0, false);
    }

    const fn count_unanswered(&mut self) {
        self.answers.missing += 1;
        self.answers.are_missing |= self.answers.missing >= UNANSWERED && self.answers.is_relayed;
    }

    /// Records that the controller carries no frames to the receiver, as it is no member.
    pub(super) const fn stop_relaying(&mut self) {
        (self.answers.is_relayed, self.answers.are_missing) = (false, false);
    }

    /// Returns the PSN of the next new packet.
    pub(super) fn next_psn(&self) -> Psn {
        psn_of(self.base + self.packets.len() as u64)
    }

    /// Returns the time after which a packet is repeated, in nanoseconds.
    fn rto(&self) -> u64 {
        self.rto_after(self.timeouts)
    }

    /// Returns that time after this number of timeouts.
    fn rto_after(&self, timeouts: u32) -> u64 {
        let base = (4 * self.round_trip).max(self.min_rto);
        (base << timeouts.min(16)).min(base.max(MAX_RTO.0))
    }

    const fn has_unacknowledged(&self) -> bool {
        self.in_network > 0 || self.lost > 0
    }

    /// Returns the time of the next timeout.
    pub(super) fn deadline(&self) -> Option<Nanos> {
        let waits = self.has_unacknowledged() || self.is_blocked;
        let timeout = waits.then(|| self.last + Nanos(self.rto()));
        if self.recalls.is_empty() {
            return timeout;
        }
        let recalls = self.recalls.iter().filter_map(|recall| self.due_at(recall));
        let recall = recalls.min().filter(|_| self.repeats_recalls);
        [timeout, recall].into_iter().flatten().min()
    }

    /// Handles a timeout: all packets in the network are presumed lost, or the window is probed.
    pub(super) fn on_timeout(&mut self, now: Nanos) -> Due {
        let rto = self.rto();
        let control = self.recalls.iter().any(|recall| self.is_overdue(recall, now));
        let mut due = Due { control, resend: false };
        if now.0 < self.last.0 + rto {
            return due;
        }
        if self.has_unacknowledged() {
            for sent in &mut self.packets {
                if sent.status == Status::InNetwork {
                    (sent.status, sent.was_overtaken) = (Status::Lost, false);
                    self.lost += 1;
                }
            }
            self.in_network = 0;
            self.congestion.on_timeout();
            due.resend = true;
        } else if self.is_blocked {
            self.is_probe_due = true;
            due.control = true;
        } else {
            return due;
        }
        self.timeouts += 1;
        self.count_unanswered();
        self.last = now;
        due
    }
}

/// Returns the average round trip after a sample. A much shorter sample halves it: one that was too long, because
/// ACKs were lost, makes timeouts long, and few packets give a sample then.
const fn average(round_trip: u64, sample: u64) -> u64 {
    if round_trip == 0 {
        sample
    } else if sample < round_trip / 4 {
        round_trip / 2
    } else {
        (7 * round_trip + sample) / 8
    }
}

#[cfg(test)]
mod tests;
