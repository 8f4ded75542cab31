//! Nodes that do what the controller wants, with the model of the commit barriers.

use crate::graph::{Graph, LinkId, Node};
use onepipe::control::{
    Address, Envelope, Failed, Incarnation, LOOPBACK, LinkValue, Message, Peer, Source, StoredRecall,
};
use onepipe::{ProcessId, Timestamp};
use rocev2::Qpn;
use std::collections::{BTreeMap, BTreeSet};

pub(super) const NETWORK: u64 = 77;

pub(super) fn time(timestamp: Option<Timestamp>) -> u64 {
    timestamp.map_or(0, Timestamp::nanos)
}

pub(super) fn stamp(time: u64) -> Option<Timestamp> {
    (time != 0).then(|| Timestamp::new(time))
}

/// Whether a node takes a message, by its term and incarnation.
#[derive(Clone, Debug, Default)]
pub(super) struct Terms {
    pub(super) incarnation: Incarnation,
    pub(super) seen: u64,
    version: u64,
    pub(super) obeys_old: bool,
}

impl Terms {
    pub(super) fn takes(&mut self, envelope: &Envelope) -> bool {
        let welcome = matches!(envelope.message, Message::Welcome { .. } | Message::WelcomeRep { .. });
        if envelope.term < self.seen && !self.obeys_old {
            return false;
        }
        self.seen = self.seen.max(envelope.term);
        welcome || envelope.incarnation == self.incarnation
    }

    /// Returns whether a state is to be applied; an older one is refused.
    fn applies(&mut self, version: u64) -> bool {
        if version < self.version && !self.obeys_old {
            return false;
        }
        self.version = version;
        true
    }
}

#[derive(Clone, Debug, Default)]
#[allow(clippy::struct_excessive_bools, reason = "each is a state of its own")]
pub(super) struct Input {
    pub(super) counted: bool,
    frozen: bool,
    caught: bool,
    floor: u64,
    pub(super) raw: u64,
    /// Ends of the link whose source is not heard, as bits
    pub(super) quiet: u8,
    /// Whether it counts since its last beacon: its silence begins now
    pub(super) fresh: bool,
    sources: Vec<Source>,
}

/// Returns the end of a link at which a source is, as a bit: representatives have their seats as addresses.
fn end(address: Address) -> u8 {
    1 << (address[0] & 1)
}

impl Input {
    /// Returns the ends with a source, as bits.
    pub(super) fn named(&self) -> u8 {
        self.sources.iter().fold(0, |ends, source| ends | end(source.address))
    }

    fn is_silent(&self) -> bool {
        self.named() != 0 && self.named() & !self.quiet == 0
    }
}

#[derive(Clone, Debug, Default)]
pub(super) struct Rep {
    pub(super) terms: Terms,
    pub(super) boot: u8,
    pub(super) address: Address,
    pub(super) first_qp: u32,
    configured: bool,
    /// By number among the switch's links
    pub(super) inputs: BTreeMap<u16, Input>,
    muted: BTreeSet<u16>,
    introduced: BTreeSet<u16>,
    pub(super) outputs: [u64; 2],
    report: u32,
    unreported: BTreeSet<u16>,
}

impl Rep {
    /// Returns whether beacons on an output to the representative at a seat carry a commit barrier, where switches have two: a source
    /// there is named.
    pub(super) fn feeds(&self, number: u16, seat: u8) -> bool {
        self.inputs.get(&number).is_none_or(|input| input.named() & (1 << seat) != 0)
    }

    /// Returns what the switch sends on its output with this number, and from which queue pair.
    pub(super) fn sends(&self, number: u16, lower: bool) -> Option<(u64, u32)> {
        let sent = self.outputs[usize::from(lower)];
        let sends = self.configured && sent != 0 && !self.muted.contains(&number);
        sends.then_some((sent, self.queue_pair(number).unwrap_or(0)))
    }

    /// Returns the queue pair of this incarnation from which beacons on an output leave, if its receiver knows it.
    pub(super) fn queue_pair(&self, number: u16) -> Option<u32> {
        self.introduced.contains(&number).then_some(self.first_qp + u32::from(number))
    }

    fn half(graph: &Graph, switch: u16, number: u16) -> usize {
        let switch = graph.switch(switch);
        let link = if number == LOOPBACK {
            Some(switch.loopback)
        } else {
            switch.ports[usize::from(number)].map(|port| port.input)
        };
        let to = link.map(|link| graph.at(graph.ends(link).to));
        usize::from(matches!(to, Some(Node::Down(_))))
    }

    /// Hears a beacon of an input: one that does not count is not silent from then on. Returns whether its sender is a
    /// source of the input.
    pub(super) fn hear(&mut self, number: u16, qpn: Option<u32>) -> bool {
        let Some(input) = self.inputs.get(&number) else { return false };
        let Some(qpn) = qpn else { return true };
        let source = input.sources.iter().find(|source| source.qpn.get() == qpn);
        let Some(at) = source.map(|source| end(source.address)) else { return false };
        if !input.counted && number != LOOPBACK {
            self.set_quiet(number, at, false);
        }
        true
    }

    /// Takes a commit barrier from an input.
    pub(super) fn accept(&mut self, graph: &Graph, switch: u16, number: u16, sent: u64, qpn: Option<u32>) {
        let is_known = self.hear(number, qpn);
        let Some(input) = self.inputs.get_mut(&number) else { return };
        if !is_known || !input.counted || input.frozen {
            return;
        }
        input.raw = input.raw.max(sent);
        if !input.caught && input.raw >= input.floor {
            input.caught = true;
            self.report += 1;
            self.unreported.insert(number);
        }
        self.rise(graph, switch);
    }

    fn rise(&mut self, graph: &Graph, switch: u16) {
        for half in 0..2 {
            let of_half =
                self.inputs.iter().filter(|(number, _)| Self::half(graph, switch, **number) == half);
            let counted: Vec<_> = of_half.map(|(_, input)| input).filter(|input| input.counted).collect();
            if counted.iter().all(|input| input.caught)
                && let Some(least) = counted.iter().map(|input| input.raw).min()
            {
                self.outputs[half] = self.outputs[half].max(least);
            }
        }
    }

    /// Notes whether the source at an end is heard.
    pub(super) fn set_quiet(&mut self, number: u16, end: u8, is_quiet: bool) {
        if let Some(input) = self.inputs.get_mut(&number)
            && (input.quiet & end != 0) != is_quiet
            && input.named() & end != 0
        {
            input.quiet ^= end;
            self.report += 1;
            self.unreported.insert(number);
        }
    }

    fn value(&self, number: u16) -> LinkValue {
        let input = &self.inputs[&number];
        LinkValue {
            link: number,
            caught: input.counted && input.caught,
            silent: input.is_silent(),
            quiet: input.quiet & input.named(),
            raw: stamp(input.raw),
        }
    }

    /// Returns a report of what has changed and was not acknowledged.
    pub(super) fn report(&mut self) -> Option<Message> {
        if self.unreported.is_empty() || !self.configured {
            return None;
        }
        let links = self.unreported.iter().map(|&number| self.value(number)).collect();
        Some(Message::Report { number: self.report, links })
    }

    pub(super) fn on(&mut self, graph: &Graph, switch: u16, message: Message) -> Option<Message> {
        match message {
            Message::Configure { version, floors, links } => {
                if !self.terms.applies(version) {
                    return None;
                }
                for setting in links {
                    let half = Self::half(graph, switch, setting.link);
                    let input = self.inputs.entry(setting.link).or_default();
                    if setting.counted && !input.counted {
                        input.floor = time(floors[half]).max(self.outputs[half]);
                        input.caught = input.raw >= input.floor;
                        (input.fresh, input.quiet) = (true, 0);
                    }
                    let new = setting.sources.iter().filter(|source| !input.sources.contains(source));
                    let new = new.fold(0, |ends, source| ends | end(source.address));
                    if !setting.counted || input.is_silent() {
                        input.quiet |= new;
                    } else {
                        input.quiet &= !new;
                    }
                    (input.counted, input.frozen, input.sources) =
                        (setting.counted, setting.frozen, setting.sources);
                    if setting.introduced {
                        self.introduced.insert(setting.link);
                    } else {
                        self.introduced.remove(&setting.link);
                    }
                    if setting.muted {
                        self.muted.insert(setting.link);
                    } else {
                        self.muted.remove(&setting.link);
                    }
                }
                self.configured = true;
                self.rise(graph, switch);
                let links = self.inputs.keys().map(|&number| self.value(number)).collect();
                Some(Message::Configured { version, outputs: self.outputs.map(stamp), links })
            }
            Message::WelcomeRep { boot, incarnation, first_qp } => {
                if boot == [self.boot; 16] {
                    (self.terms.incarnation, self.first_qp) = (incarnation, first_qp.get());
                }
                None
            }
            Message::ReportAck { number } => {
                if number == self.report {
                    self.unreported.clear();
                }
                None
            }
            Message::Ping { number } => Some(Message::Pong { number }),
            _ => None,
        }
    }

    pub(super) fn register(&self, switch: u16) -> Message {
        let address = self.address;
        Message::RegisterRep {
            switch,
            seat: self.address[0],
            boot: [self.boot; 16],
            address,
            topology: NETWORK,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Answer {
    Noticed,
    Recalled,
    Completed,
}

#[derive(Clone, Debug, Default)]
#[allow(clippy::struct_excessive_bools, reason = "each is a state of its own")]
pub(super) struct Process {
    pub(super) terms: Terms,
    pub(super) boot: u8,
    pub(super) qpn: u32,
    pub(super) announced: u64,
    /// By how many nanoseconds its clock is ahead of the right time
    pub(super) clock_error: i64,
    pub(super) admitted: bool,
    pub(super) joined: u64,
    pub(super) failed: bool,
    pub(super) barrier: u64,
    held: bool,
    sources: Vec<Source>,
    pub(super) silent: bool,
    /// Ends of its link whose source is not heard, as bits
    pub(super) quiet: u8,
    /// Whether its link was heard in this incarnation
    pub(super) was_heard: bool,
    /// What the last acknowledged report and the last report say
    reported: Option<(bool, u8)>,
    reports: (bool, u8),
    report: u32,
    /// By case: the highest answer
    pub(super) cases: BTreeMap<u64, (Answer, Vec<Failed>)>,
    /// Cases whose recalls are stored
    stored: BTreeSet<u64>,
    /// Number of callbacks by failed incarnation
    pub(super) callbacks: BTreeMap<(ProcessId, Incarnation), u32>,
    /// Members, as it knows them
    members: BTreeMap<ProcessId, Incarnation>,
    /// Member of whose failure it was not notified before it got to know the next incarnation
    pub(super) missed: Option<(ProcessId, Incarnation)>,
}

impl Process {
    /// Returns what the process sends: no message of it will be at or below.
    pub(super) fn sends(&mut self, clock: u64) -> Option<(u64, u32)> {
        if self.failed || self.terms.incarnation == Incarnation(0) {
            return None;
        }
        // Switches lower what is far ahead.
        let error = self.clock_error.min(500_000);
        self.announced = self.announced.max(clock.saturating_add_signed(error));
        Some((self.announced, self.qpn))
    }

    /// Returns the ends of its link with a source, as bits.
    pub(super) fn named(&self) -> u8 {
        self.sources.iter().fold(0, |ends, source| ends | end(source.address))
    }

    /// Hears a beacon. Returns whether its sender is a source of the link.
    pub(super) fn hear(&mut self, qpn: u32) -> bool {
        let is_known = self.sources.iter().any(|source| source.qpn == Qpn::new(qpn));
        self.was_heard |= is_known;
        is_known
    }

    pub(super) fn accept(&mut self, sent: u64, qpn: u32) -> bool {
        let known = self.hear(qpn);
        if known && !self.held && !self.failed {
            self.barrier = self.barrier.max(sent);
        }
        known
    }

    pub(super) fn report(&mut self) -> Option<Message> {
        let state = (self.silent, self.quiet & self.named());
        if self.reported == Some(state) || self.terms.incarnation == Incarnation(0) {
            return None;
        }
        (self.report, self.reports) = (self.report + 1, state);
        let value = LinkValue {
            link: 0,
            caught: true,
            silent: self.silent,
            quiet: self.quiet & self.named(),
            raw: None,
        };
        Some(Message::Report { number: self.report, links: vec![value] })
    }

    pub(super) fn register(&self, id: ProcessId) -> Message {
        Message::Register { id, boot: [self.boot; 16], address: [2; 16], topology: NETWORK, clock: None }
    }

    /// Returns whether the recalls of a case are stored.
    pub(super) fn has_stored(&self, case: u64) -> bool {
        self.stored.contains(&case)
    }

    /// Reports a recall for each failed process of a case.
    pub(super) fn recall(&mut self, case: u64) -> Option<Message> {
        let (_, failed) = self.cases.get(&case)?;
        let recall = |failed: &Failed| StoredRecall {
            to: failed.id,
            incarnation: failed.incarnation,
            time: None,
            first: 0,
            last: 1,
        };
        Some(Message::StoreRecalls { batch: case as u32, recalls: failed.iter().map(recall).collect() })
    }

    /// Goes on with a notice: recalls, then the callback.
    pub(super) fn go_on(&mut self, case: u64) -> Option<Message> {
        let (answer, failed) = self.cases.get_mut(&case)?;
        match answer {
            Answer::Noticed => {
                *answer = Answer::Recalled;
                Some(Message::Recalled { case })
            }
            Answer::Recalled => {
                *answer = Answer::Completed;
                for failed in failed {
                    *self.callbacks.entry((failed.id, failed.incarnation)).or_default() += 1;
                }
                Some(Message::Completed { case })
            }
            Answer::Completed => None,
        }
    }

    /// Gets to know a member.
    fn meet(&mut self, peer: &Peer) {
        let known = self.members.entry(peer.id).or_insert(peer.incarnation);
        if *known < peer.incarnation {
            self.missed = Some((peer.id, *known));
            *known = peer.incarnation;
        }
    }

    pub(super) fn on(&mut self, message: Message) -> Option<Message> {
        let barrier = stamp(self.barrier);
        match message {
            Message::Welcome { boot, incarnation, qpn, members } => {
                if boot == [self.boot; 16] && self.terms.incarnation == Incarnation(0) {
                    (self.terms.incarnation, self.qpn) = (incarnation, qpn.get());
                    self.silent = true;
                    self.members.clear();
                }
                for peer in &members {
                    self.meet(peer);
                }
                None
            }
            Message::Admitted { after } => {
                (self.admitted, self.joined) = (true, after.map_or(0, Timestamp::nanos));
                None
            }
            Message::MemberUp { peer } => {
                self.meet(&peer);
                Some(Message::MemberAck { id: peer.id, incarnation: peer.incarnation, barrier })
            }
            Message::Desired { version, held, sources } => {
                if !self.terms.applies(version) {
                    return None;
                }
                (self.held, self.sources) = (held, sources);
                let quiet = self.quiet & self.named();
                Some(Message::DesiredAck { version, barrier, silent: self.silent, quiet })
            }
            Message::ReportAck { number } => {
                if number == self.report {
                    self.reported = Some(self.reports);
                }
                None
            }
            Message::Notice { case, failed } => {
                let is_failed = |id: &ProcessId, incarnation: &mut Incarnation| {
                    failed.iter().any(|failed| (failed.id, failed.incarnation) == (*id, *incarnation))
                };
                self.members.extract_if(.., is_failed).for_each(drop);
                let (answer, _) = self.cases.entry(case).or_insert((Answer::Noticed, failed));
                Some(match answer {
                    Answer::Noticed => Message::Noticed { case },
                    Answer::Recalled => Message::Recalled { case },
                    Answer::Completed => Message::Completed { case },
                })
            }
            Message::RecallsStored { batch } => {
                self.stored.insert(batch.into());
                None
            }
            Message::YouFailed { .. } => {
                self.failed = true;
                None
            }
            Message::Progress {} => Some(Message::ProgressReply { barrier, waits: Vec::new() }),
            Message::Ping { number } => Some(Message::Pong { number }),
            _ => None,
        }
    }
}

/// Returns the switch that keeps a link, and the link's number there.
pub(super) fn keeper(graph: &Graph, link: LinkId) -> Option<(u16, u16)> {
    let number = graph.at(graph.ends(link).to).switch()?;
    let switch = graph.switch(number);
    if switch.loopback == link {
        return Some((number, LOOPBACK));
    }
    let at = switch.ports.iter().position(|port| port.is_some_and(|port| port.input == link))?;
    Some((number, at as u16))
}

/// Returns the switch that sends on a link, and the link's number there.
pub(super) fn sender(graph: &Graph, link: LinkId) -> Option<(u16, u16)> {
    let number = graph.at(graph.ends(link).from).switch()?;
    let at =
        graph.switch(number).ports.iter().position(|port| port.is_some_and(|port| port.output == link))?;
    Some((number, at as u16))
}
