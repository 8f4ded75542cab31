//! A wire that does to RoCE packets what networks do to them, as rules say: drops, delays, duplicates, reorders, damages
//! and marks them. Of hardware's traffic, too, to which a kernel's queueing disciplines do not get.
//!
//! A packet meets the rules in their order. It may be marked, damaged and duplicated by several; the first that drops or
//! holds it is the last that it meets. Frames that are no RoCE packets pass. Everything is decided by the seed, for each
//! rule by a source of chance of its own: a rule more or less changes nothing for the others.

pub mod config;
mod held;
#[cfg(test)]
mod tests;

pub use config::{Action, Config, Match, Network, OpcodeSet, Part, Rule};

use crate::counters::Counter;
use crate::forward::counters::HostQp;
use crate::forward::{self, Forward};
use crate::table::Index;
use crate::{Chance, DropReason, Frame, Function, Nanos, Output, PortId, Verdict};
use held::Held;
use rocev2::packet::ICRC_LEN;
use rocev2::{Bth, Class, Layout, Packet, Psn, classify, ecn};
use std::sync::Arc;

/// Queue pairs whose first PSN is remembered, for rules that count from it
const FLOWS: usize = 4096;

/// The impairing function.
pub struct Impair {
    forward: Forward,
    rules: Vec<RuleState>,
    held: Held,
    flows: Option<Flows>,
    counters: Arc<Counters>,
}

/// What an instance has counted: written by its worker, read by anyone.
#[derive(Debug)]
pub struct Counters {
    /// By rule
    pub rules: Box<[RuleCounters]>,
    /// Frames that should have been held, and found no room
    pub not_held: Counter,
}

/// What a rule has done.
#[derive(Debug, Default)]
pub struct RuleCounters {
    /// Packets that it is for
    pub matched: Counter,
    /// Packets that it did something to
    pub acted: Counter,
}

struct RuleState {
    rule: Rule,
    chance: Chance,
    matched: u64,
    acted: u64,
}

/// First PSNs, by the queue pair that they are for.
struct Flows {
    index: Index<HostQp>,
    first: Vec<Psn>,
}

impl Flows {
    /// How far a packet is from the first to the same queue pair; `None` if there are too many of them.
    fn offset(&mut self, packet: &Packet<'_>) -> Option<u32> {
        let psn = packet.bth().psn();
        let qp = HostQp::destination_of(packet);
        let id = self.index.get_or_insert(qp).ok()? as usize;
        if id == self.first.len() {
            self.first.push(psn);
        }
        Some(psn.get().wrapping_sub(self.first.get(id)?.get()) & 0x00ff_ffff)
    }
}

impl Match {
    #[inline]
    fn matches(&self, packet: &Packet<'_>, port: PortId, offset: Option<u32>) -> bool {
        let within = |psn: Psn, (first, last): (Psn, Psn)| {
            psn.get().wrapping_sub(first.get()) & 0x00ff_ffff
                <= last.get().wrapping_sub(first.get()) & 0x00ff_ffff
        };
        self.port.is_none_or(|own| own == port)
            && self.opcodes.is_none_or(|set| set.has(packet.layout().opcode()))
            && self.qpn.is_none_or(|qpn| qpn == packet.bth().dest_qp())
            && self.psn.is_none_or(|range| within(packet.bth().psn(), range))
            && self
                .psn_offset
                .is_none_or(|(first, last)| offset.is_some_and(|at| (first..=last).contains(&at)))
            && self.src.is_none_or(|network| network.has(packet.src()))
            && self.dst.is_none_or(|network| network.has(packet.dst()))
    }
}

impl RuleState {
    /// Whether it is to act on a packet that it is for.
    fn acts(&mut self) -> bool {
        self.matched += 1;
        // Drawn for each, so that what is skipped does not change what follows.
        let happens = self.chance.happens(self.rule.share);
        let acts = self.matched > self.rule.skip
            && self.rule.times.is_none_or(|times| self.acted < times)
            && happens;
        self.acted += u64::from(acts);
        acts
    }
}

impl Impair {
    /// A function of this configuration.
    ///
    /// # Panics
    /// As [`Forward::new`].
    pub fn new(config: &Config) -> Self {
        let counts_from_first = config.rules.iter().any(|rule| rule.of.psn_offset.is_some());
        let state = |(number, rule): (usize, &Rule)| RuleState {
            rule: rule.clone(),
            chance: Chance::stream(config.seed, number as u64),
            matched: 0,
            acted: 0,
        };
        Self {
            forward: Forward::new(&config.forward),
            rules: config.rules.iter().enumerate().map(state).collect(),
            held: Held::new(config.held, config.max_frame),
            flows: counts_from_first
                .then(|| Flows { index: Index::with_capacity(FLOWS), first: Vec::with_capacity(FLOWS) }),
            counters: Arc::new(Counters {
                rules: config.rules.iter().map(|_| RuleCounters::default()).collect(),
                not_held: Counter::default(),
            }),
        }
    }

    /// What came in, as the forwarding function counts it
    pub fn forward_counters(&self) -> Arc<forward::Counters> {
        self.forward.counters()
    }

    /// What the rules have done
    pub fn counters(&self) -> Arc<Counters> {
        self.counters.clone()
    }

    /// Frames that are held back now
    pub fn held(&self) -> usize {
        self.held.len()
    }

    /// Runs the rules on a packet that is to leave through `to`. What becomes of it.
    fn impair<O: Output>(
        &mut self,
        frame: &mut O::Frame,
        layout: Layout,
        ports: (PortId, PortId),
        now: Nanos,
        out: &mut O,
    ) -> Verdict {
        let (from, to) = ports;
        let offset = self.flows.as_mut().and_then(|flows| flows.offset(&Packet::new(frame.bytes(), layout)));
        for number in 0..self.rules.len() {
            let state = &mut self.rules[number];
            if !state.rule.of.matches(&Packet::new(frame.bytes(), layout), from, offset) {
                continue;
            }
            let counters = &self.counters.rules[number];
            counters.matched.add(1);
            if !state.acts() {
                continue;
            }
            counters.acted.add(1);
            match state.rule.action {
                Action::Drop => return Verdict::Drop(DropReason::Impaired),
                Action::Delay { base, jitter } => {
                    let until = now + base + Nanos(state.chance.below(jitter.0.saturating_add(1)));
                    if self.hold(frame, to, until, 0) {
                        return Verdict::Consume;
                    }
                }
                Action::Reorder { behind, at_most } => {
                    if self.hold(frame, to, now + at_most, behind) {
                        return Verdict::Consume;
                    }
                }
                Action::Duplicate { copies } => {
                    for _ in 0..copies {
                        // Without room there is no copy, and the port has its hands full anyway.
                        if let Ok(copy) = out.copy(frame) {
                            _ = out.send(copy, to);
                        }
                    }
                }
                Action::Corrupt(part) => damage(frame.bytes_mut(), layout, part, &mut state.chance),
                Action::Mark { force } => {
                    ecn::mark(&mut frame.bytes_mut()[layout.l3()..], force);
                }
            }
        }
        Verdict::Forward(to)
    }

    /// False if there is no room.
    fn hold<F: Frame>(&mut self, frame: &F, to: PortId, until: Nanos, behind: u32) -> bool {
        let held = self.held.keep(frame.bytes(), to, until, behind).is_ok();
        if !held {
            self.counters.not_held.add(1);
        }
        held
    }
}

/// Flips a bit.
fn damage(frame: &mut [u8], layout: Layout, part: Part, chance: &mut Chance) {
    let packet = Packet::new(frame, layout);
    let end = layout.end();
    let (payload, bth) = (packet.payload().len(), layout.bth());
    let (at, len) = match part {
        Part::Payload if payload > 0 => {
            let pad = usize::from(packet.bth().pad_count());
            (end - ICRC_LEN - pad - payload, payload)
        }
        Part::Payload | Part::Icrc => (end - ICRC_LEN, ICRC_LEN),
        Part::Header => (bth, Bth::LEN),
    };
    let bit = chance.below(len as u64 * 8) as usize;
    frame[at + bit / 8] ^= 1 << (bit % 8);
}

impl Function for Impair {
    type Command = forward::Command;
    type Event = forward::Event;

    fn on_frame<O: Output>(
        &mut self,
        frame: &mut O::Frame,
        port: PortId,
        now: Nanos,
        out: &mut O,
    ) -> Verdict {
        let to = match self.forward.on_frame(frame, port, now, out) {
            Verdict::Forward(to) => to,
            verdict => return verdict,
        };
        let verdict = match classify(frame.bytes()) {
            Class::Roce(layout) if frame.is_whole() => self.impair(frame, layout, (port, to), now, out),
            _ => Verdict::Forward(to),
        };
        if let Verdict::Forward(to) = verdict
            && self.held.passes(to)
            && let Ok(copy) = out.copy(frame)
        {
            // Those that it overtakes leave behind it.
            _ = out.send(copy, to);
            self.held.release_overtaken(out);
            return Verdict::Consume;
        }
        verdict
    }

    fn on_timer<O: Output>(&mut self, now: Nanos, out: &mut O) {
        self.held.release_due(now, out);
    }

    fn next_timer(&self) -> Option<Nanos> {
        self.held.next_timer()
    }

    fn on_command(&mut self, command: forward::Command, now: Nanos) {
        self.forward.on_command(command, now);
    }

    fn poll_event(&mut self) -> Option<forward::Event> {
        self.forward.poll_event()
    }
}
