//! Explanations of failed messages: a frame that the network dropped, a packet that arrived late, or an ACK
//! that did not arrive in time. Uses the frames on the hosts' links and the losses that the world records,
//! not the state of processes.

use super::host::unwrap;
use super::traffic::{DataReceived, DataSent, Response, Run, Traffic, host_of};
use super::{Host, Network};
use onepipe::process::Failure;
use onepipe::{OnePipe, OnePipeOpcode, Timestamp};
use rocev2::{Packet, Psn};
use std::collections::{BTreeMap, BTreeSet};
use switch::Nanos;

/// Time within which a receiver responds to a packet: its `ack_delay` of 3 us, and full frames in its send
/// queue at 10 Gb/s
const ACK_WITHIN: Nanos = Nanos::from_micros(15);

/// Longest time for which a message that is sent at once waits for the link: a full frame at 10 Gb/s
const LINK_WAIT: Nanos = Nanos::from_micros(2);

/// Adverse conditions that were drawn for a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Conditions {
    /// Age of the world from which on packets may arrive below the barrier
    pub late_from: Option<Nanos>,
    /// Whether receivers have small buffers
    pub small: bool,
    /// Whether hosts are paused
    pub pauses: bool,
}

/// Counts of failed runs by cause. A run consists of the packets of one scattering to one receiver.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Explained {
    /// A packet was dropped or damaged
    pub dropped: u64,
    /// A packet arrived below the barrier, or a later packet overtook it before the receiver knew its sender
    pub late: u64,
    /// The receiver's buffer was full
    pub no_room: u64,
    /// Every ACK that was sent in time was dropped or damaged
    pub unanswered: u64,
    /// The ACK arrived after the timeout
    pub slow: u64,
    /// The receiver crashed before its ACK arrived, or had just started
    pub restarted: u64,
    /// The sender or the receiver had left
    pub left: u64,
}

/// Packets that the world records as dropped or damaged
#[derive(Default)]
struct Dropped {
    data: BTreeSet<(usize, usize, u32)>,
    responses: BTreeMap<(usize, usize), Vec<Response>>,
}

impl Dropped {
    fn read(frames: &[Vec<u8>]) -> Self {
        let mut dropped = Self::default();
        for packet in frames.iter().filter_map(|frame| Packet::parse(frame)) {
            let Some(header) = OnePipe::of(&packet) else { continue };
            let (Some(from), Some(to)) = (host_of(packet.src()), host_of(packet.dst())) else { continue };
            if header.opcode() == OnePipeOpcode::DATA {
                dropped.data.insert((from, to, header.psn().get()));
            } else if let Some(response) =
                Response::read(header, &packet.payload()[OnePipe::LEN..], Nanos::ZERO)
            {
                dropped.responses.entry((from, to)).or_default().push(response);
            }
        }
        dropped
    }
}

impl Network {
    /// Checks that each packet arrived or was dropped by a link or a node that was down, and that each failed
    /// run has a cause that was drawn. Hosts have to [record](super::Behaviour::records) packets, and the world
    /// [losses](sim::World::record_losses).
    pub fn check_losses(&self, drawn: &Conditions) -> Result<Explained, String> {
        let check = LossCheck { network: self, dropped: Dropped::read(self.world.losses()), drawn };
        let mut explained = Explained::default();
        for sender in self.each_host() {
            let Some(traffic) = sender.traffic.as_ref() else { continue };
            check.arrivals(sender.number(), traffic)?;
            let runs = traffic.runs(|message| sender.scattering_of(message));
            let failed =
                sender.sent.iter().filter_map(|sent| Some(((sent.to, sent.scattering), sent.fate?.err()?)));
            for ((to, scattering), why) in failed.collect::<BTreeMap<_, _>>() {
                let run = runs.get(&(to, scattering)).cloned().unwrap_or_default();
                let cause = check.explain(sender.number(), to, &run, why).map_err(|wrong| {
                    let from = sender.number();
                    format!("scattering {scattering} of host {from} to {to} has failed ({why}): {wrong}")
                })?;
                *explained.count(cause) += 1;
            }
        }
        Ok(explained)
    }
}

/// Cause of a failure
#[derive(Clone, Copy, Debug)]
enum Cause {
    Dropped,
    Late,
    NoRoom,
    Unanswered,
    Slow,
    Restarted,
    Left,
}

impl Explained {
    fn count(&mut self, cause: Cause) -> &mut u64 {
        match cause {
            Cause::Dropped => &mut self.dropped,
            Cause::Late => &mut self.late,
            Cause::NoRoom => &mut self.no_room,
            Cause::Unanswered => &mut self.unanswered,
            Cause::Slow => &mut self.slow,
            Cause::Restarted => &mut self.restarted,
            Cause::Left => &mut self.left,
        }
    }

    /// Adds the counts of another run of the simulator.
    pub fn add(&mut self, other: &Self) {
        let causes = [Cause::Dropped, Cause::Late, Cause::NoRoom, Cause::Unanswered];
        for cause in causes.into_iter().chain([Cause::Slow, Cause::Restarted, Cause::Left]) {
            *self.count(cause) += *other.clone().count(cause);
        }
    }
}

struct LossCheck<'a> {
    network: &'a Network,
    dropped: Dropped,
    drawn: &'a Conditions,
}

impl LossCheck<'_> {
    fn host(&self, number: usize) -> &Host {
        self.network.world.node(self.network.hosts[number])
    }

    fn received(&self, from: usize, to: usize, psn: Psn) -> Option<&DataReceived> {
        self.host(to).traffic.as_ref()?.received.get(&(from, psn.get()))
    }

    /// Checks that each packet that a host sent has arrived or was dropped.
    fn arrivals(&self, from: usize, traffic: &Traffic) -> Result<(), String> {
        let vanished = |packet: &&DataSent| {
            self.received(from, packet.to, packet.psn).is_none()
                && !self.dropped.data.contains(&(from, packet.to, packet.psn.get()))
        };
        match traffic.sent.iter().find(vanished) {
            Some(DataSent { to, psn, .. }) => {
                Err(format!("packet {psn:?} of host {from} to {to} did not arrive, and no link dropped it"))
            }
            None => Ok(()),
        }
    }

    /// Returns the cause of a run's failure.
    fn explain(&self, from: usize, to: usize, run: &Run, why: Failure) -> Result<Cause, String> {
        if why == Failure::Left {
            let has_left = [from, to].iter().any(|&host| self.host(host).has_ever_left());
            return if has_left { Ok(Cause::Left) } else { Err("neither of them has left".into()) };
        }
        let packets: Vec<_> = run.packets.iter().map(|(psn, _)| *psn).collect();
        if self.drawn.small && (why == Failure::NoRoom && from == to || self.has_no_room(from, to, &packets))
        {
            return Ok(Cause::NoRoom);
        }
        let received: Vec<_> = packets.iter().map(|psn| self.received(from, to, *psn)).collect();
        if received.iter().any(Option::is_none) {
            return Ok(Cause::Dropped);
        }
        let may_be_late = |received: &&DataReceived| {
            // Hosts' clocks are off by some microseconds.
            let age = (received.at + Nanos::from_micros(5)).since(sim::EPOCH);
            self.drawn.late_from.is_some_and(|from| age >= from) && (received.late || received.overtaken)
        };
        if received.iter().flatten().any(may_be_late) {
            return Ok(Cause::Late);
        }
        if self.met_restart(from, to, run, &received) {
            return Ok(Cause::Restarted);
        }
        // A run is complete with the packet that arrives last, whichever was sent last.
        let completed_by = received.into_iter().flatten().max_by_key(|received| received.at);
        match (why, completed_by, run.packets.last()) {
            (Failure::NotAcknowledged, Some(received), Some(&(_, sent_at))) => {
                self.explain_no_ack(from, to, run, received, sent_at)
            }
            _ => Err("all of its packets arrived in time".into()),
        }
    }

    /// Returns whether the receiver crashed between the arrival of a run's first packet and the timeout, or
    /// had just started: a process accepts what was sent later than its first barrier by the largest
    /// difference between two clocks.
    fn met_restart(&self, from: usize, to: usize, run: &Run, arrivals: &[Option<&DataReceived>]) -> bool {
        let (sender, receiver) = (self.host(from), self.host(to));
        let Some(first) = arrivals.iter().flatten().map(|packet| packet.at).min() else { return false };
        let last = run.packets.last().map_or(Nanos::ZERO, |&(_, at)| at);
        let timeout = last + sender.timeout() + receiver.clock_error();
        let crashed = receiver.incarnations().iter().filter_map(|incarnation| incarnation.crashed);
        let is_early =
            |packet: &DataReceived| receiver.is_before_start(unwrap(packet.time, packet.at), packet.at);
        crashed.into_iter().any(|at| (first..timeout).contains(&at))
            || arrivals.iter().flatten().any(|packet| is_early(packet))
    }

    /// Returns whether the receiver has refused one of a sender's packets because its buffer was full.
    fn has_no_room(&self, from: usize, to: usize, packets: &[Psn]) -> bool {
        let responses = self.host(to).traffic.iter().flat_map(|traffic| &traffic.responses_sent);
        responses.filter(|(peer, _)| *peer == from).any(|(_, response)| response.has_no_room(packets))
    }

    /// Returns whether a run of several packets waits for the barrier because an earlier packet was dropped
    /// or is late. Until the barrier passes, the receiver does not know whether it will accept the run.
    fn was_behind_a_gap(&self, from: usize, to: usize, run: &Run, barrier: Option<Timestamp>) -> bool {
        let [(first, _), _, ..] = run.packets[..] else { return false };
        let Some(traffic) = self.host(from).traffic.as_ref() else { return false };
        let (before, mut decided) = (traffic.sent.iter().rev().filter(|packet| packet.to == to), false);
        for packet in before.skip_while(|packet| packet.psn != first) {
            match self.received(from, to, packet.psn) {
                // A packet after the gap was already below the barrier, so the receiver had given up the gap.
                _ if decided => return false,
                None | Some(DataReceived { late: true, .. }) => return true,
                // A refused packet leaves the gap as it is.
                Some(_) if self.has_no_room(from, to, &[packet.psn]) => {}
                Some(received) => decided = barrier.is_some_and(|barrier| received.time.precedes(barrier)),
            }
        }
        false
    }

    /// Returns why a sender received no ACK in time for a run that arrived in time.
    fn explain_no_ack(
        &self,
        from: usize,
        to: usize,
        run: &Run,
        data: &DataReceived,
        sent_at: Nanos,
    ) -> Result<Cause, String> {
        let (sender, receiver) = (self.host(from), self.host(to));
        // Earlier ACKs are of PSNs that an incarnation of the sender before a crash has used.
        let of = |responses: &[(usize, Response)], peer: usize, not_before: Nanos| {
            let responses = responses.iter().filter(|(with, response)| {
                *with == peer && response.at >= not_before && response.acknowledges(run)
            });
            responses.map(|(_, response)| response.at).min()
        };
        let first_sent_at = run.packets.first().map_or(Nanos::ZERO, |&(_, at)| at);
        let ack_received_at =
            sender.traffic.as_ref().and_then(|traffic| of(&traffic.responses_received, to, first_sent_at));
        if let Some(at) = ack_received_at.filter(|&at| at + LINK_WAIT < sent_at + sender.timeout()) {
            return Err(format!("its ACK arrived {} ns after it was sent", at.since(sent_at).0));
        }
        let dropped = self.dropped.responses.get(&(to, from));
        let was_dropped =
            dropped.is_some_and(|responses| responses.iter().any(|response| response.acknowledges(run)));
        let acked_at =
            receiver.traffic.as_ref().and_then(|traffic| of(&traffic.responses_sent, from, data.at));
        if self.was_behind_a_gap(from, to, run, data.barrier) {
            return Ok(Cause::Unanswered);
        }
        match acked_at {
            None => Err("its receiver sent no ACK".into()),
            Some(at) if at > data.at + ACK_WITHIN && !self.drawn.pauses => {
                Err(format!("its receiver sent no ACK for {} ns", at.since(data.at).0))
            }
            Some(_) if was_dropped => Ok(Cause::Unanswered),
            Some(_) if ack_received_at.is_none() => {
                Err("its ACK did not arrive, and no link dropped it".into())
            }
            Some(_) => Ok(Cause::Slow),
        }
    }
}
