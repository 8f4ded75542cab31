//! What goes to one receiver: the order of sending, and how much may be under way (1Pipe, section 6.1).

use rocev2::Psn;
use rocev2::onepipe::Arrivals;
use std::collections::VecDeque;
use switch::Nanos;

use super::config::Config;
use super::congestion::{Answered, Dctcp};
use super::counters::Refusal;
use super::inbound::cost;

/// A run: the place of its scattering, and its number there
pub(super) type RunId = (u32, u32);

/// A run that was sent to its end and is not settled.
#[derive(Clone, Copy, Debug)]
pub(super) struct InFlight {
    /// Its packets
    pub(super) first: Psn,
    pub(super) last: Psn,
    /// When the last one was sent
    pub(super) sent_at: Nanos,
    pub(super) part_of: PartOf,
}

/// What a run that was sent is part of.
#[derive(Clone, Copy, Debug)]
pub(super) enum PartOf {
    /// A scattering that is kept until all of it is settled
    Scattering(RunId),
    /// It is all of its scattering, and one message: all that has to be known is its number and its timestamp
    Alone { number: u64, time: u64 },
}

impl InFlight {
    /// Whether this is one of its packets
    pub(super) fn has(&self, psn: Psn) -> bool {
        psn.distance(self.first) >= 0 && self.last.distance(psn) >= 0
    }
}

/// So far behind what is presumed is what a receiver has said, at most
const TOLD_WITHIN: i32 = 1 << 22;

/// A receiver, seen from its sender.
#[derive(Debug)]
pub(super) struct Outbound {
    /// Runs that were not sent to their end, in the order in which they will be. The first one holds what it has of the windows
    /// while it waits for other parts of its scattering.
    pub(super) queue: VecDeque<RunId>,
    /// Runs that were, and are not settled
    pub(super) in_flight: VecDeque<InFlight>,
    next: Psn,
    /// Everything before this has left the network
    arrived: Psn,
    /// Everything before this is decided at the receiver
    decided: Psn,
    /// What packets from there on took, all of them, and those that have not left the network
    costs: VecDeque<u32>,
    undecided: usize,
    under_way: usize,
    /// What the last packet of the first run in the queue will take
    reserved: usize,
    congestion: Dctcp,
    /// What the receiver has room for, from `decided` on
    window: usize,
    /// What it has said to be decided: not what was presumed since
    told: Psn,
    /// What it had counted when it was last heard, and in which of its lives
    packets: u32,
    marked: u32,
    life: Option<u8>,
    /// The first run in the queue is ready.
    pub(super) is_ready: bool,
    /// It stands in the round of those that have something to send.
    pub(super) in_round: bool,
    /// Windows keep something from being sent.
    pub(super) is_blocked: bool,
    /// When something was last sent, heard, or presumed
    last: Nanos,
}

impl Outbound {
    pub(super) fn new(first: Psn, config: &Config) -> Self {
        let packet = cost(config.fragment()) as u32;
        Self {
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
            told: first,
            packets: 0,
            marked: 0,
            life: None,
            is_ready: false,
            in_round: false,
            is_blocked: false,
            last: Nanos::ZERO,
        }
    }

    /// Whether a packet that takes so much fits into both windows. One alone always fits into that of congestion.
    #[inline]
    pub(super) fn has_room(&mut self, cost: usize) -> bool {
        let before = self.under_way + self.reserved;
        let congested = before > 0 && before + cost > self.congestion.window() as usize;
        let full = self.undecided + self.reserved + cost > self.window;
        self.is_blocked = congested || full;
        !self.is_blocked
    }

    /// The first run in the queue is ready: its last packet has this of the windows.
    pub(super) fn reserve(&mut self, cost: usize) {
        (self.is_ready, self.reserved) = (true, cost);
    }

    /// It is not in the queue any more.
    pub(super) fn release(&mut self) {
        (self.is_ready, self.reserved) = (false, 0);
    }

    /// A packet is sent that takes so much: its PSN.
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

    /// The receiver says what it has, up to this PSN. Whether it has begun anew since it was last heard: then it may have
    /// delivered what it knows nothing of.
    pub(super) fn answer(&mut self, highest: Psn, arrivals: &Arrivals, now: Nanos) -> Result<bool, Refusal> {
        let next = arrivals.next();
        let upto = highest.add(1);
        let begun_anew = self.life.is_some_and(|life| life != arrivals.life);
        if upto.distance(self.decided) > self.costs.len() as i32
            || upto.precedes(next)
            || upto.precedes(self.arrived)
            || next.precedes(self.told) && !begun_anew
        {
            // Of what was never sent, or older than what is known
            return Err(Refusal::Answer);
        }
        let limited = self.is_blocked || 2 * self.under_way >= self.congestion.window() as usize;
        let bytes = self.leave(upto);
        self.decide(next);
        (self.told, self.life) = (next, Some(arrivals.life));
        self.window = arrivals.window.get() as usize;
        // Who has begun anew counts from 0. ACKs may overtake one another.
        let counted = |now: u32, before: u32| {
            if begun_anew { now } else { (now.wrapping_sub(before) as i32).max(0) as u32 }
        };
        let (packets, marked) = (arrivals.packets.get(), arrivals.marked.get());
        self.congestion.on_answer(Answered {
            arrived: upto,
            next: self.next,
            bytes: bytes as u32,
            packets: counted(packets, self.packets),
            marked: counted(marked, self.marked),
            limited,
        });
        (self.packets, self.marked, self.last) = (packets, marked, now);
        Ok(begun_anew)
    }

    /// Everything before this PSN has left the network. Bytes that were not known to have
    fn leave(&mut self, upto: Psn) -> usize {
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

    /// Nothing was heard of everything up to this packet: it counts as gone.
    pub(super) fn presume_gone(&mut self, last: Psn) {
        self.leave(last.add(1));
        self.decide(last.add(1));
        // PSNs can be compared as long as they are not too far apart.
        if self.decided.distance(self.told) > TOLD_WITHIN {
            self.told = self.decided.sub(TOLD_WITHIN as u32);
        }
    }

    /// Nor of anything else
    pub(super) fn presume_all_gone(&mut self) {
        self.presume_gone(self.next.sub(1));
    }

    /// A receiver that had no room was silent for long. That it has some may have been said and lost: one packet is tried, and
    /// its answer says how much.
    pub(super) fn presume_room(&mut self, packet: usize, now: Nanos) {
        self.window = self.window.max(self.undecided + packet);
        self.last = now;
    }

    pub(super) fn lost(&mut self) {
        self.congestion.on_loss();
    }

    pub(super) fn silent(&mut self) {
        self.congestion.on_silence();
    }

    /// Whether packets may be in the network of which nothing was heard
    pub(super) const fn is_under_way(&self) -> bool {
        self.under_way > 0
    }

    /// When something was last sent, heard, or presumed
    pub(super) const fn last(&self) -> Nanos {
        self.last
    }

    /// Bytes that may be under way
    pub(super) const fn congestion_window(&self) -> u32 {
        self.congestion.window()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::config::{Beacons, Peer};
    use crate::process::{PACKET_COST, ProcessId};
    use rocev2::Qpn;
    use rocev2::ethernet::MacAddr;
    use rocev2::onepipe::OnePipe;

    const FIRST: Psn = Psn::new(0xff_fffe);

    fn outbound() -> Outbound {
        let (mac, address, qpn) = (MacAddr::default(), [10, 0, 0, 1].into(), Qpn::new(17));
        let own = Peer { id: ProcessId(0), mac, address, qpn };
        let mut config = Config::new(own, Beacons { mac, address, qpn, detour: Vec::new() });
        (config.receive_window, config.initial_window) = (5000, 4000);
        Outbound::new(FIRST, &config)
    }

    fn arrivals(next: Psn, packets: u32, window: u32) -> Arrivals {
        let mut arrivals = Arrivals::default();
        (arrivals.packets, arrivals.window) = (packets.into(), window.into());
        arrivals.set_next(next);
        arrivals
    }

    #[test]
    fn windows_open_with_answers() {
        let mut outbound = outbound();
        for n in 0..4 {
            assert!(outbound.has_room(1000));
            assert_eq!(outbound.send(1000, Nanos(n)), FIRST.add(n as u32));
        }
        assert!(!outbound.has_room(1000) && outbound.is_blocked, "congestion window");
        // Two have left the network, and one of them is missing.
        assert_eq!(outbound.answer(FIRST.add(1), &arrivals(FIRST, 1, 5000), Nanos(9)), Ok(false));
        assert!(outbound.has_room(1000), "one more until the receiver's window is full");
        assert!(!outbound.has_room(1001));
        assert_eq!(outbound.answer(FIRST.add(3), &arrivals(FIRST.add(4), 3, 500), Nanos(9)), Ok(false));
        assert!(outbound.has_room(500) && !outbound.has_room(501) && !outbound.is_under_way());
    }

    #[test]
    fn answers_to_nothing_move_nothing() {
        let mut outbound = outbound();
        for _ in 0..3 {
            outbound.send(PACKET_COST, Nanos(0));
        }
        let wrong = [
            (FIRST.add(3), FIRST.add(1), "never sent"),
            (FIRST.add(1), FIRST.add(3), "decided beyond what has come"),
        ];
        for (highest, next, why) in wrong {
            assert_eq!(
                outbound.answer(highest, &arrivals(next, 1, 9), Nanos(0)),
                Err(Refusal::Answer),
                "{why}"
            );
        }
        assert_eq!(outbound.answer(FIRST.add(2), &arrivals(FIRST.add(2), 3, 9), Nanos(0)), Ok(false));
        for (highest, next) in [(1, 2), (2, 1)] {
            let late = outbound.answer(FIRST.add(highest), &arrivals(FIRST.add(next), 2, 9), Nanos(0));
            assert_eq!(late, Err(Refusal::Answer), "older than what is known: {highest} {next}");
        }
    }

    /// What was presumed lost may not be: the receiver decides it when it does, and until then says what is behind it.
    #[test]
    fn an_answer_that_knows_less_than_was_presumed_is_heard() {
        let mut outbound = outbound();
        for _ in 0..4 {
            outbound.send(1000, Nanos(0));
        }
        outbound.presume_gone(FIRST.add(1));
        assert_eq!(outbound.answer(FIRST.add(3), &arrivals(FIRST.add(1), 3, 700), Nanos(1)), Ok(false));
        assert!(!outbound.is_under_way());
        outbound.presume_all_gone();
        assert!(outbound.has_room(700) && !outbound.has_room(701), "the window is what the receiver said");
        // Somebody else answers from there.
        let mut other = arrivals(FIRST.add(4), 1, 5000);
        other.life = 9;
        outbound.send(1000, Nanos(2));
        assert_eq!(outbound.answer(FIRST.add(4), &other, Nanos(3)), Ok(true));
        assert_eq!(outbound.answer(FIRST.add(4), &other, Nanos(3)), Ok(false));
    }

    /// A receiver without room may have said that it has some, and that was lost.
    #[test]
    fn one_packet_at_a_time_is_tried() {
        let mut outbound = outbound();
        let packet = cost(1024 - OnePipe::LEN);
        assert_eq!(outbound.send(1000, Nanos(0)), FIRST);
        assert_eq!(outbound.answer(FIRST, &arrivals(FIRST, 1, 1000), Nanos(1)), Ok(false));
        assert!(!outbound.has_room(1) && outbound.is_blocked);
        outbound.presume_room(packet, Nanos(2));
        assert!(outbound.has_room(packet) && !outbound.has_room(packet + 1));
    }

    #[test]
    fn silence_is_taken_for_loss() {
        let mut outbound = outbound();
        for _ in 0..4 {
            outbound.send(1000, Nanos(0));
        }
        outbound.presume_gone(FIRST.add(1));
        assert!(outbound.has_room(1000) && outbound.is_under_way());
        outbound.presume_all_gone();
        outbound.silent();
        assert!(!outbound.is_under_way() && outbound.has_room(2000), "one alone always fits");
        outbound.send(1000, Nanos(0));
        assert!(!outbound.has_room(1000), "the window is a packet");
    }
}
