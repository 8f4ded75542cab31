//! The impairing function: a wire that drops, delays, duplicates, reorders, corrupts and ECN-marks RoCEv2
//! packets by rules and a seed, and counts its actions. All other frames pass unchanged, malformed ones
//! included.
//!
//! The rules are applied in order. A rule acts on the packet or ignores it, and the packet continues with the
//! next rule until one drops it or holds it back: a packet can be marked, then duplicated, then delayed. All
//! rules match the packet as received. A copy has the changes of the rules before the one that copies; it is
//! sent immediately, and no further rule applies to it. Nor do further rules apply to a packet that was held
//! back.
//!
//! Each instance counts, skips and chooses independently: with several workers, a rule with `times` acts that
//! many times on each of them. Frames still held back when a run ends are lost.
//!
//! [`Rules`] is the control plane's view, which changes the rules during a run by a [`Command`] to each instance.

mod change;
pub mod config;
pub mod counters;
mod held;
pub mod matching;

pub use change::{Adopted, Command, Rules};
pub use config::{Action, Config, Field, Rule};
pub use counters::Counters;
pub use matching::{IpPrefix, Match, Operations, PsnRange};

use crate::drop::FaultSet;
use crate::forward::config::ForwardingMode;
use crate::forward::counters::HostQp;
use crate::forward::{self, Forward};
use crate::table::{Index, Salt, mix};
use crate::{DropReason, Frame, Full, Function, Nanos, Output, PortId, Rng, Verdict};
use counters::RuleCounters;
use held::{Held, Release};
use matching::{PacketFields, is_response};
use rocev2::rewrite::Rewriter;
use rocev2::{Bth, Layout, Opcode, Packet, Psn};
use std::sync::Arc;

/// ECN codepoints (RFC 3168)
const NOT_ECT: u8 = 0;
const CE: u8 = 3;

/// The impairing function.
pub struct Impair {
    /// Parses and counts frames
    forward: Forward,
    /// The other port of each port's pair
    peers: Box<[PortId]>,
    rules: Box<[ActiveRule]>,
    held: Held,
    flows: Option<Flows>,
    counters: Arc<Counters>,
    /// Latest change of the rules, until the control plane gets it back
    adopted: Option<Adopted>,
    /// Whether adopting new rules loses the held frames, as a planted bug
    #[cfg(test)]
    loses_held_frames: bool,
}

/// A rule and its state.
#[derive(Debug)]
struct ActiveRule {
    rule: Rule,
    /// Random numbers that decide whether to act, one for each matching packet
    choice_rng: Rng,
    /// Random numbers for the action itself; separate, so that an action's draws do not change which packets
    /// are chosen
    action_rng: Rng,
    /// Packets that matched and packets acted on, for `skip` and `times`
    matched: u64,
    acted: u64,
    counters: Arc<RuleCounters>,
}

/// Result of an action.
enum Effect {
    /// The packet continues with the next rule.
    Continue,
    /// The action was not possible; the packet continues with the next rule.
    Unable,
    /// The packet was held back.
    Held,
    /// The packet is dropped.
    Dropped,
}

impl Impair {
    /// Creates an instance for one of several workers; each worker draws different random numbers. Other
    /// threads can read [`counters`](Self::counters).
    ///
    /// # Panics
    /// If a port in `config` is not below `config.ports`.
    pub fn new(config: &Config, worker: usize) -> Self {
        let forward = Forward::new(&forward::Config {
            ports: config.ports,
            mode: ForwardingMode::Pairs(Vec::new()),
            drop: FaultSet::NONE,
            verify_icrc: false,
            verify_udp_checksum: false,
            counted_qps: config.counted_qps,
            health: config.health,
        });
        let mut peers: Box<[_]> = (0..config.ports).map(PortId).collect();
        for &(a, b) in &config.pairs {
            peers[a.index()] = b;
            peers[b.index()] = a;
        }
        let slots = if config.holds_frames() { config.held } else { 0 };
        let counters = Counters::new(forward.counters());
        Self {
            forward,
            peers,
            rules: config.active_rules(worker, |_| Arc::default()),
            held: Held::new(slots, config.frame_len, config.ports),
            flows: config.needs_flows().then(|| Flows::new(config.flows)),
            counters: Arc::new(counters),
            adopted: None,
            #[cfg(test)]
            loses_held_frames: false,
        }
    }

    /// Salts the tables of queue pairs, as [`Forward::salted`] does.
    #[must_use]
    pub fn salted(mut self, seed: u64) -> Self {
        self.forward = self.forward.salted(seed);
        if let Some(flows) = &mut self.flows {
            flows.set_salt(Some(Salt::new(seed)));
        }
        self
    }

    /// Returns the counters of this instance, which it continues to update.
    pub fn counters(&self) -> Arc<Counters> {
        Arc::clone(&self.counters)
    }

    /// Returns the counters of the current rules, in their order. Those of [`Rules::iter`] follow changes.
    pub fn rule_counters(&self) -> impl ExactSizeIterator<Item = &RuleCounters> {
        self.rules.iter().map(|active| &*active.counters)
    }

    /// Applies the rules to a packet.
    #[inline]
    fn impair<O: Output>(
        &mut self,
        frame: &mut O::Frame,
        layout: Layout,
        port: PortId,
        now: Nanos,
        out: &mut O,
    ) -> Verdict {
        let to = self.peers[port.index()];
        let packet = Packet::new(frame.bytes(), layout);
        let offset = match self.flows.as_mut().map(|flows| flows.offset(&packet)) {
            Some(Ok(offset)) => offset,
            Some(Err(Full)) => {
                self.counters.flows_full.add(1);
                None
            }
            None => None,
        };
        let fields = PacketFields::of(&packet, port, offset);
        for active in &mut self.rules {
            if !active.selects(&fields) {
                continue;
            }
            let effect = match active.rule.action {
                Action::Drop => Effect::Dropped,
                Action::Delay { by, jitter } => {
                    let span = by + Nanos(active.action_rng.between(0, jitter.0));
                    hold(&mut self.held, frame, to, Release { due: now + span, behind: None })
                }
                Action::Reorder { behind, at_most } => {
                    hold(&mut self.held, frame, to, Release { due: now + at_most, behind: Some(behind) })
                }
                Action::Duplicate { copies } => duplicate(frame, to, copies, out),
                Action::Corrupt(field) => corrupt(frame.bytes_mut(), layout, field, &mut active.action_rng),
                Action::Mark { force } => mark(frame.bytes_mut(), layout, force),
            };
            if matches!(effect, Effect::Unable) {
                active.counters.unable.add(1);
                if matches!(active.rule.action, Action::Delay { .. } | Action::Reorder { .. }) {
                    self.counters.held_full.add(1);
                }
                continue;
            }
            active.counters.acted.add(1);
            active.acted += 1;
            match effect {
                Effect::Dropped => return Verdict::Drop(DropReason::Impaired),
                Effect::Held => {
                    self.counters.count_held();
                    return Verdict::Consume;
                }
                Effect::Continue | Effect::Unable => {}
            }
        }
        self.held.pass(to, now);
        Verdict::Forward(to)
    }
}

impl ActiveRule {
    fn new(rule: &Rule, seed: u64, worker: usize, counters: Arc<RuleCounters>) -> Self {
        let stream =
            rule.name.bytes().fold(worker as u64, |hash, byte| mix(hash ^ u64::from(byte)).wrapping_add(1));
        Self {
            rule: rule.clone(),
            choice_rng: Rng::stream(seed, stream),
            action_rng: Rng::stream(seed, !stream),
            matched: 0,
            acted: 0,
            counters,
        }
    }

    /// Returns whether the rule matches this packet and chooses to act on it.
    #[inline]
    fn selects(&mut self, fields: &PacketFields) -> bool {
        if !self.rule.matching.has(fields) {
            return false;
        }
        self.counters.matched.add(1);
        self.matched += 1;
        self.matched > self.rule.skip
            && self.choice_rng.happens(self.rule.share)
            && self.acted < self.rule.times
    }
}

fn hold(held: &mut Held, frame: &impl Frame, to: PortId, release: Release) -> Effect {
    // A copy would lack the further segments of a frame in several buffers.
    if frame.is_whole() && held.hold(frame.bytes(), to, release).is_ok() {
        Effect::Held
    } else {
        Effect::Unable
    }
}

/// Sends copies. Sends none if the port has no room for all copies and the packet itself, and fewer if
/// buffers run out.
fn duplicate<O: Output>(frame: &O::Frame, to: PortId, copies: u32, out: &mut O) -> Effect {
    if out.room(to) <= copies as usize {
        return Effect::Unable;
    }
    for _ in 0..copies {
        let Ok(copy) = out.copy(frame) else { return Effect::Unable };
        // `room` was checked above; if the port still refuses the frame, the runner counts it.
        _ = out.send(copy, to);
    }
    Effect::Continue
}

fn corrupt(bytes: &mut [u8], layout: Layout, field: Field, rng: &mut Rng) -> Effect {
    let (first, len) = match field {
        Field::Payload => (layout.payload(), Packet::new(bytes, layout).payload().len()),
        Field::Header => (layout.bth(), Bth::LEN - 1),
        Field::Icrc => (layout.icrc(), layout.end() - layout.icrc()),
    };
    if len == 0 {
        return Effect::Unable;
    }
    let bit = rng.below(len as u64 * 8) as usize;
    let mut at = bit / 8;
    if field == Field::Header && at >= Bth::MASKED_BYTE {
        at += 1;
    }
    bytes[first + at] ^= 1 << (bit % 8);
    Effect::Continue
}

fn mark(bytes: &mut [u8], layout: Layout, force: bool) -> Effect {
    match Packet::new(bytes, layout).ecn() {
        CE => return Effect::Unable,
        NOT_ECT if !force => return Effect::Unable,
        _ => {}
    }
    let mut rewriter = Rewriter::new(bytes, layout);
    rewriter.set_ecn(CE);
    rewriter.finish();
    Effect::Continue
}

/// First PSN of each flow.
#[derive(Debug)]
struct Flows {
    index: Index<HostQp>,
    /// First PSN of the requests and of the responses to each queue pair
    first: Box<[[Option<Psn>; 2]]>,
}

impl Flows {
    fn new(capacity: usize) -> Self {
        Self { index: Index::with_capacity(capacity), first: vec![[None; 2]; capacity].into() }
    }

    /// Salts the empty table, unless there is no salt.
    fn set_salt(&mut self, salt: Option<Salt>) {
        if let Some(salt) = salt {
            self.index.set_salt(salt);
        }
    }

    /// Returns the distance of the packet's PSN from the first PSN of its flow, or `None` for a CNP.
    #[inline]
    fn offset(&mut self, packet: &Packet<'_>) -> Result<Option<Psn>, Full> {
        let bth = packet.bth();
        if bth.opcode() == Opcode::CNP {
            return Ok(None);
        }
        let id = self.index.get_or_insert(HostQp::destination_of(packet))?;
        let first = &mut self.first[id as usize][usize::from(is_response(bth.opcode()))];
        Ok(Some(bth.psn().sub(first.get_or_insert(bth.psn()).get())))
    }
}

impl Function for Impair {
    type Command = Command;
    type Event = Adopted;

    #[inline]
    fn on_frame<O: Output>(
        &mut self,
        frame: &mut O::Frame,
        port: PortId,
        now: Nanos,
        out: &mut O,
    ) -> Verdict {
        let to = self.peers[port.index()];
        // Due frames leave before this frame, so that a reordered frame is overtaken by no more than the
        // configured count of frames.
        let released = self.held.release(to, now, out);
        self.counters.released.add(released);
        match self.forward.admit(frame, port, now) {
            Ok(Some(layout)) => self.impair(frame, layout, port, now, out),
            Ok(None) => Verdict::Forward(to),
            Err(verdict) => verdict,
        }
    }

    fn on_timer<O: Output>(&mut self, now: Nanos, out: &mut O) {
        let released = self.held.release_all(now, out);
        self.counters.released.add(released);
    }

    fn next_timer(&self) -> Option<Nanos> {
        self.held.next()
    }

    fn on_command(&mut self, command: Self::Command, _now: Nanos) {
        self.adopt(command);
    }

    fn poll_event(&mut self) -> Option<Self::Event> {
        self.adopted.take()
    }
}

#[cfg(test)]
mod tests;
