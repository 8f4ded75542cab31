//! Sender state of one receiver: the order of sending, and how much may be in flight (1Pipe, section 6.1).

use crate::header::AckBody;
use rocev2::Psn;
use std::collections::VecDeque;
use switch::Nanos;

use super::super::config::{Config, cost};
use super::super::counters::Refusal;
use super::super::types::{Failure, ProcessId};
use super::congestion::{AckProgress, Dctcp};
use super::scattering::RunId;

/// Run of which all packets were sent, and that is not settled.
#[derive(Clone, Copy, Debug)]
pub(super) struct InFlight {
    /// First and last of its packets
    pub(super) first: Psn,
    pub(super) last: Psn,
    /// Time at which the last packet was sent
    pub(super) sent_at: Nanos,
    pub(super) part_of: PartOf,
}

/// Scattering of a run that was sent.
#[derive(Clone, Copy, Debug)]
pub(super) enum PartOf {
    /// A scattering that is kept until all of it is settled
    Scattering(RunId),
    /// A scattering of this one message of one packet, of which only number and timestamp are kept
    Alone { number: u64, time: u64 },
}

impl InFlight {
    /// Returns whether `psn` is one of the run's packets.
    fn has(&self, psn: Psn) -> bool {
        psn.distance(self.first) >= 0 && self.last.distance(psn) >= 0
    }
}

/// Arrivals that an accepted ACK reports.
#[derive(Clone, Copy, Debug)]
pub(super) struct Report {
    highest: Psn,
    /// Bit n: the packet n before the highest ended a run that was accepted
    accepted: u128,
    /// All packets before this PSN are decided
    next: Psn,
    /// Number of packets, up to the highest, that the receiver's incarnation has received, as far as the
    /// history reaches: packets sent earlier may have been delivered by its previous incarnation
    reported: u32,
    has_restarted: bool,
}

impl Report {
    /// Returns the report in an ACK. The receiver may have restarted since the one before.
    pub(super) fn new(highest: Psn, arrivals: &AckBody, has_restarted: bool) -> Self {
        Self {
            highest,
            accepted: arrivals.accepted.get(),
            next: arrivals.next(),
            reported: arrivals.packets.get().min(AckBody::HISTORY),
            has_restarted,
        }
    }
}

/// Maximum distance of the receiver's last report behind what is presumed
const MAX_REPORT_LAG: i32 = 1 << 22;

/// Sender state of a receiver.
#[derive(Clone, Debug)]
pub(super) struct Outbound {
    /// Number of the receiver
    dst: ProcessId,
    /// Runs of which not all packets were sent, in the order of sending. The first one keeps its share of the
    /// windows while it waits for other runs of its scattering.
    queue: VecDeque<RunId>,
    /// Runs that were sent, and are not settled
    in_flight: VecDeque<InFlight>,
    next: Psn,
    /// All packets before this PSN have left the network
    arrived: Psn,
    /// All packets before this PSN are decided at the receiver
    decided: Psn,
    /// Costs of the packets from `decided` on, their sum, and the sum of those that have not left the network
    costs: VecDeque<u32>,
    undecided: usize,
    under_way: usize,
    /// Cost of the last packet of the first run in the queue, once it is ready
    reserved: usize,
    congestion: Dctcp,
    /// Window that the receiver advertised, from `decided` on
    window: usize,
    /// PSN up to which the receiver has reported packets as decided, without those presumed since
    reported: Psn,
    /// Counts in the receiver's last ACK, and its incarnation number
    packets: u32,
    marked: u32,
    incarnation: Option<u8>,
    /// Whether the first run in the queue is ready.
    is_ready: bool,
    /// Whether the receiver is in the process's round of peers with something to send.
    in_round: bool,
    /// Whether windows keep a packet from being sent.
    is_blocked: bool,
    /// Time of the last packet sent, ACK received, or presumption
    last: Nanos,
}

impl Outbound {
    /// Creates the state of a receiver; its first packet has the PSN `first`.
    pub(super) fn new(dst: ProcessId, first: Psn, config: &Config) -> Self {
        let packet = cost(config.fragment()) as u32;
        Self {
            dst,
            queue: VecDeque::new(),
            in_flight: VecDeque::new(),
            next: first,
            arrived: first,
            decided: first,
            costs: VecDeque::new(),
            undecided: 0,
            under_way: 0,
            reserved: 0,
            congestion: Dctcp::new(config.initial_window, packet, config.receive_window, first),
            window: config.receive_window as usize,
            reported: first,
            packets: 0,
            marked: 0,
            incarnation: None,
            is_ready: false,
            in_round: false,
            is_blocked: false,
            last: Nanos::ZERO,
        }
    }

    /// Returns the number of the receiver.
    pub(super) const fn dst(&self) -> ProcessId {
        self.dst
    }

    /// Appends a run to the queue. Returns whether it is the first one.
    pub(super) fn push(&mut self, run: RunId) -> bool {
        self.queue.push_back(run);
        self.queue.len() == 1
    }

    /// Returns the first run in the queue.
    #[inline]
    pub(super) fn first(&self) -> Option<RunId> {
        self.queue.front().copied()
    }

    /// Removes and returns the first run in the queue, and cancels its reservation.
    pub(super) fn pop(&mut self) -> Option<RunId> {
        (self.is_ready, self.reserved) = (false, 0);
        self.queue.pop_front()
    }

    /// Marks a run as sent, and not settled.
    #[inline]
    pub(super) fn add_in_flight(&mut self, run: InFlight) {
        self.in_flight.push_back(run);
    }

    /// Returns the first run that was sent, and is not settled.
    pub(super) fn oldest(&self) -> Option<&InFlight> {
        self.in_flight.front()
    }

    /// Removes and returns the first run that was sent, and is not settled.
    pub(super) fn pop_oldest(&mut self) -> Option<InFlight> {
        self.in_flight.pop_front()
    }

    /// Returns the run in flight at this index, and its result if an ACK reports one. `None` if the ACK does
    /// not reach to the run.
    #[inline]
    pub(super) fn reported(
        &self,
        at: usize,
        report: &Report,
    ) -> Option<(PartOf, Option<Result<(), Failure>>)> {
        let &InFlight { last, part_of, .. } = self.in_flight.get(at)?;
        let before = u32::try_from(report.highest.distance(last)).ok()?;
        let result = if report.accepted.checked_shr(before).unwrap_or(0) & 1 == 1 {
            Some(Ok(()))
        } else if !last.precedes(report.next) {
            None
        } else if before < report.reported && !report.has_restarted {
            Some(Err(Failure::Lost))
        } else {
            Some(Err(Failure::NotAcknowledged))
        };
        Some((part_of, result))
    }

    /// Removes the run in flight at this index.
    #[inline]
    pub(super) fn remove(&mut self, at: usize) {
        if at == 0 {
            self.in_flight.pop_front();
        } else {
            self.in_flight.remove(at);
        }
    }

    /// Removes and returns the run in flight with the packet `psn`.
    pub(super) fn take_with(&mut self, psn: Psn) -> Option<PartOf> {
        // Runs in flight are in the order of their PSNs.
        let at = self.in_flight.partition_point(|sent| sent.last.precedes(psn));
        self.in_flight.get(at).filter(|sent| sent.has(psn))?;
        self.in_flight.remove(at).map(|sent| sent.part_of)
    }

    /// Returns whether nothing keeps the first run in the queue from being advanced: it is not ready yet, and
    /// the receiver is not in the round.
    pub(super) const fn can_advance(&self) -> bool {
        !self.is_ready && !self.in_round
    }

    /// Records whether the receiver is in the process's round of peers with something to send.
    pub(super) const fn set_in_round(&mut self, in_round: bool) {
        self.in_round = in_round;
    }

    /// Records that nothing waits for windows.
    pub(super) const fn unblock(&mut self) {
        self.is_blocked = false;
    }

    /// Returns whether windows keep a packet from being sent.
    pub(super) const fn is_blocked(&self) -> bool {
        self.is_blocked
    }

    /// Returns whether a packet of this cost fits into both windows. A single packet always fits into the
    /// congestion window.
    #[inline]
    pub(super) fn has_room(&mut self, cost: usize) -> bool {
        let before = self.under_way + self.reserved;
        let congested = before > 0 && before + cost > self.congestion.window() as usize;
        let full = self.undecided + self.reserved + cost > self.window;
        self.is_blocked = congested || full;
        !self.is_blocked
    }

    /// Marks the first run in the queue as ready, and reserves the cost of its last packet.
    pub(super) fn reserve(&mut self, cost: usize) {
        (self.is_ready, self.reserved) = (true, cost);
    }

    /// Accounts for a packet of this cost. Returns its PSN.
    #[inline]
    pub(super) fn send(&mut self, cost: usize, now: Nanos) -> Psn {
        self.costs.push_back(cost as u32);
        self.undecided += cost;
        self.under_way += cost;
        self.last = now;
        let psn = self.next;
        self.next = psn.add(1);
        psn
    }

    /// Handles an ACK, which reports arrivals up to `highest`. Returns whether the receiver has restarted
    /// since the last ACK: then its previous incarnation may have delivered packets that it does not report.
    pub(super) fn on_ack(&mut self, highest: Psn, arrivals: &AckBody, now: Nanos) -> Result<bool, Refusal> {
        let next = arrivals.next();
        let upto = highest.add(1);
        let has_restarted = self.incarnation.is_some_and(|incarnation| incarnation != arrivals.incarnation);
        if upto.distance(self.decided) > self.costs.len() as i32
            || upto.precedes(next)
            || upto.precedes(self.arrived)
            || next.precedes(self.reported) && !has_restarted
        {
            // Of a packet that was never sent, or older than the last one
            return Err(Refusal::Answer);
        }
        let limited = self.is_blocked || 2 * self.under_way >= self.congestion.window() as usize;
        let bytes = self.leave_network(upto);
        self.decide(next);
        (self.reported, self.incarnation) = (next, Some(arrivals.incarnation));
        self.window = arrivals.window.get() as usize;
        // A receiver that has restarted counts from 0. ACKs may overtake one another.
        let counted = |now: u32, before: u32| {
            if has_restarted { now } else { (now.wrapping_sub(before) as i32).max(0) as u32 }
        };
        let (packets, marked) = (arrivals.packets.get(), arrivals.marked.get());
        self.congestion.on_ack(AckProgress {
            arrived: upto,
            next: self.next,
            bytes: bytes as u32,
            packets: counted(packets, self.packets),
            marked: counted(marked, self.marked),
            limited,
        });
        (self.packets, self.marked, self.last) = (packets, marked, now);
        Ok(has_restarted)
    }

    /// Marks all packets before this PSN as having left the network. Returns the bytes of those that were not
    /// marked before.
    fn leave_network(&mut self, upto: Psn) -> usize {
        let [from, to] = [self.arrived, upto].map(|psn| psn.distance(self.decided).max(0) as usize);
        if from >= to {
            return 0;
        }
        let bytes = self.costs.range(from..to).map(|&cost| cost as usize).sum();
        self.under_way -= bytes;
        self.arrived = upto;
        bytes
    }

    fn decide(&mut self, upto: Psn) {
        while self.decided.precedes(upto)
            && let Some(cost) = self.costs.pop_front()
        {
            self.undecided -= cost as usize;
            self.decided = self.decided.add(1);
        }
    }

    /// Presumes all packets up to this one to be lost, as no ACK has reported them in time.
    pub(super) fn presume_gone(&mut self, last: Psn) {
        self.leave_network(last.add(1));
        self.decide(last.add(1));
        // PSNs can be compared only as long as they are not too far apart.
        if self.decided.distance(self.reported) > MAX_REPORT_LAG {
            self.reported = self.decided.sub(MAX_REPORT_LAG as u32);
        }
    }

    /// Presumes all packets sent to be lost.
    pub(super) fn presume_all_gone(&mut self) {
        self.presume_gone(self.next.sub(1));
    }

    /// Presumes room for one packet at a receiver that had none and has been silent for long. Its window
    /// update may have been lost: one packet is sent as a probe, and its ACK advertises the window.
    pub(super) fn presume_room(&mut self, packet: usize, now: Nanos) {
        self.window = self.window.max(self.undecided + packet);
        self.last = now;
    }

    pub(super) fn on_loss(&mut self) {
        self.congestion.on_loss();
    }

    pub(super) fn on_timeout(&mut self) {
        self.congestion.on_timeout();
    }

    /// Returns whether unacknowledged packets may be in the network.
    pub(super) const fn is_under_way(&self) -> bool {
        self.under_way > 0
    }

    /// Returns the time of the last packet sent, ACK received, or presumption.
    pub(super) const fn last(&self) -> Nanos {
        self.last
    }

    /// Returns the congestion window, in bytes.
    pub(super) const fn congestion_window(&self) -> u32 {
        self.congestion.window()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::header::OnePipe;
    use crate::process::config::{BeaconPeer, PACKET_COST, Peer};
    use rocev2::Qpn;
    use rocev2::ethernet::MacAddr;

    const FIRST: Psn = Psn::new(0xff_fffe);

    fn outbound() -> Outbound {
        let (mac, address, qpn) = (MacAddr::default(), [10, 0, 0, 1].into(), Qpn::new(17));
        let own = Peer { id: ProcessId(0), mac, address, qpn };
        let mut config = Config::new(own, BeaconPeer { mac, address, qpn, detour: Vec::new() });
        (config.receive_window, config.initial_window) = (5000, 4000);
        Outbound::new(ProcessId(1), FIRST, &config)
    }

    fn arrivals(next: Psn, packets: u32, window: u32) -> AckBody {
        let mut arrivals = AckBody::default();
        (arrivals.packets, arrivals.window) = (packets.into(), window.into());
        arrivals.set_next(next);
        arrivals
    }

    #[test]
    fn acks_open_the_windows() {
        let mut outbound = outbound();
        for n in 0..4 {
            assert!(outbound.has_room(1000));
            assert_eq!(outbound.send(1000, Nanos(n)), FIRST.add(n as u32));
        }
        assert!(!outbound.has_room(1000) && outbound.is_blocked, "congestion window");
        // Two packets have left the network, and one of them is missing.
        assert_eq!(outbound.on_ack(FIRST.add(1), &arrivals(FIRST, 1, 5000), Nanos(9)), Ok(false));
        assert!(outbound.has_room(1000), "one more until the receiver's window is full");
        assert!(!outbound.has_room(1001));
        assert_eq!(outbound.on_ack(FIRST.add(3), &arrivals(FIRST.add(4), 3, 500), Nanos(9)), Ok(false));
        assert!(outbound.has_room(500) && !outbound.has_room(501) && !outbound.is_under_way());
    }

    #[test]
    fn acks_that_match_nothing_are_refused() {
        let mut outbound = outbound();
        for _ in 0..3 {
            outbound.send(PACKET_COST, Nanos(0));
        }
        let wrong = [
            (FIRST.add(3), FIRST.add(1), "never sent"),
            (FIRST.add(1), FIRST.add(3), "decided beyond what has arrived"),
        ];
        for (highest, next, why) in wrong {
            assert_eq!(
                outbound.on_ack(highest, &arrivals(next, 1, 9), Nanos(0)),
                Err(Refusal::Answer),
                "{why}"
            );
        }
        assert_eq!(outbound.on_ack(FIRST.add(2), &arrivals(FIRST.add(2), 3, 9), Nanos(0)), Ok(false));
        for (highest, next) in [(1, 2), (2, 1)] {
            let late = outbound.on_ack(FIRST.add(highest), &arrivals(FIRST.add(next), 2, 9), Nanos(0));
            assert_eq!(late, Err(Refusal::Answer), "older than the last ACK: {highest} {next}");
        }
    }

    /// A packet that was presumed lost may not be: the receiver decides it later, and until then reports the
    /// packets behind it.
    #[test]
    fn ack_that_reports_less_than_was_presumed_is_accepted() {
        let mut outbound = outbound();
        for _ in 0..4 {
            outbound.send(1000, Nanos(0));
        }
        outbound.presume_gone(FIRST.add(1));
        assert_eq!(outbound.on_ack(FIRST.add(3), &arrivals(FIRST.add(1), 3, 700), Nanos(1)), Ok(false));
        assert!(!outbound.is_under_way());
        outbound.presume_all_gone();
        assert!(outbound.has_room(700) && !outbound.has_room(701), "the window that the receiver advertised");
        // A new incarnation of the receiver acknowledges from there on.
        let mut other = arrivals(FIRST.add(4), 1, 5000);
        other.incarnation = 9;
        outbound.send(1000, Nanos(2));
        assert_eq!(outbound.on_ack(FIRST.add(4), &other, Nanos(3)), Ok(true));
        assert_eq!(outbound.on_ack(FIRST.add(4), &other, Nanos(3)), Ok(false));
    }

    /// A receiver without room may have sent a window update that was lost.
    #[test]
    fn zero_window_is_probed_with_one_packet() {
        let mut outbound = outbound();
        let packet = cost(1024 - OnePipe::LEN);
        assert_eq!(outbound.send(1000, Nanos(0)), FIRST);
        assert_eq!(outbound.on_ack(FIRST, &arrivals(FIRST, 1, 1000), Nanos(1)), Ok(false));
        assert!(!outbound.has_room(1) && outbound.is_blocked);
        outbound.presume_room(packet, Nanos(2));
        assert!(outbound.has_room(packet) && !outbound.has_room(packet + 1));
    }

    #[test]
    fn silence_is_presumed_to_be_loss() {
        let mut outbound = outbound();
        for _ in 0..4 {
            outbound.send(1000, Nanos(0));
        }
        outbound.presume_gone(FIRST.add(1));
        assert!(outbound.has_room(1000) && outbound.is_under_way());
        outbound.presume_all_gone();
        outbound.on_timeout();
        assert!(!outbound.is_under_way() && outbound.has_room(2000), "a single packet always fits");
        outbound.send(1000, Nanos(0));
        assert!(!outbound.has_room(1000), "the congestion window is a packet");
    }
}
