//! A representative's side of the controller's protocol (1Pipe, section 5.2), without I/O: the *keeper* of a
//! switch's links.
//!
//! It runs beside the [`Representative`](crate::Representative), on the control thread: it registers, passes
//! the states that the controller wants to the worker as commands, and answers and reports by the worker's
//! events. Registers, floors and silence are the worker's alone (`commit.rs`), so a state takes effect
//! between two frames, as a whole, and the values in the answer are those of that moment.
//!
//! Nothing of an earlier incarnation reaches the next one: a keeper lives and ends with its worker, draws a
//! number at its start by which alone it takes an incarnation, and refuses messages of other incarnations, of
//! earlier terms, and states that are older than the one that it has.

mod retry;
#[cfg(test)]
mod tests;

use crate::beacon::Templates;
use crate::bug::Bug;
use crate::commit::{Configuration, Setting};
use crate::config::{self, Link};
use crate::function::{Command, Event};
use core::net::IpAddr;
use onepipe::Timestamp;
use onepipe::control::{
    Address, Boot, Envelope, Incarnation, LOOPBACK, LinkSetting, LinkValue, Message, Reason,
};
use retry::Retry;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use switch::Nanos;

/// Identity of a switch's representative.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// Number of the switch in the topology
    pub switch: u16,
    /// Which of the switch's representatives this is: 0, or 1 for the standby
    pub seat: u8,
    /// Number drawn at the start: each start needs another one
    pub boot: Boot,
    /// Hash of the topology ([`Topology::hash`](crate::plan::Topology::hash))
    pub topology: u64,
    /// Time after which what is not answered is sent again; it is doubled up to 64 times this
    pub retry_after: Nanos,
}

/// Messages that were refused since the start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Refused {
    /// Of an earlier term than the latest one
    pub old_term: u64,
    /// Of another incarnation of this representative
    pub other_incarnation: u64,
    /// States that are older than the one that the switch has
    pub old_version: u64,
    /// States of links that the switch does not have
    pub unknown_link: u64,
    /// Messages that are not for a representative
    pub unexpected: u64,
}

/// What an operator sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Status {
    /// Incarnation; 0 before the controller has given one
    pub incarnation: Incarnation,
    /// Latest term
    pub term: u64,
    /// Version of the state that has taken effect; 0 if there was none
    pub version: u64,
    /// Inputs that count for the commit barrier
    pub counted: usize,
    /// Counted inputs whose registers stand still
    pub frozen: usize,
    /// Outputs without a commit barrier
    pub muted: usize,
    /// Counted inputs that have not reached their floor
    pub catching_up: usize,
    /// Silent inputs
    pub silent: usize,
    /// Reason for which the controller does not give an incarnation
    pub waits: Option<Reason>,
    /// Whether the switch's other representative serves alone: this one has to end
    pub retired: bool,
}

/// Keeper of a switch's links.
#[derive(Debug)]
pub struct Keeper {
    config: Config,
    /// Of the representative
    representative: config::Config,
    term: u64,
    incarnation: Incarnation,
    /// Latest version of a state
    version: u64,
    /// Latest values of the links that the controller has named
    values: BTreeMap<u16, LinkValue>,
    /// Links that count, by the state that has taken effect
    counted: BTreeSet<u16>,
    /// Links of which the controller does not know the value
    unreported: BTreeSet<u16>,
    /// Number of the latest report
    report: u32,
    retry: Retry,
    envelopes: VecDeque<Envelope>,
    /// Beacons of the incarnation, for the worker
    introduction: Option<Box<Templates>>,
    /// State for the worker
    configuration: Option<Box<Configuration>>,
    /// State that follows when the worker has answered, with a planted bug
    rest: Option<Box<Configuration>>,
    status: Status,
    refused: Refused,
}

impl Keeper {
    /// Creates the keeper of a representative that has just started with this configuration.
    pub fn new(config: Config, representative: config::Config) -> Self {
        Self {
            config,
            representative,
            term: 0,
            incarnation: Incarnation::default(),
            version: 0,
            values: BTreeMap::new(),
            counted: BTreeSet::new(),
            unreported: BTreeSet::new(),
            report: 0,
            retry: Retry::new(config.retry_after),
            envelopes: VecDeque::new(),
            introduction: None,
            configuration: None,
            rest: None,
            status: Status::default(),
            refused: Refused::default(),
        }
    }

    fn has_bug(&self, bug: Bug) -> bool {
        self.representative.has_bug(bug)
    }

    fn is_registered(&self) -> bool {
        self.incarnation != Incarnation::default()
    }

    /// Returns what an operator sees.
    pub fn status(&self) -> Status {
        let has_caught = |link: &u16| self.values.get(link).is_some_and(|value| value.caught);
        Status {
            incarnation: self.incarnation,
            term: self.term,
            counted: self.counted.len(),
            catching_up: self.counted.iter().filter(|link| !has_caught(link)).count(),
            silent: self.values.values().filter(|value| value.silent).count(),
            ..self.status
        }
    }

    /// Returns how many messages were refused.
    pub fn refused(&self) -> Refused {
        self.refused
    }

    /// A connection to a controller has come up: what is not answered is sent again.
    pub fn on_connected(&mut self, now: Nanos) {
        self.retry.restart();
        self.send_unanswered(now);
    }

    /// Sends again what is not answered.
    pub fn on_timer(&mut self, now: Nanos) {
        if self.retry.is_due(now) {
            self.send_unanswered(now);
        }
    }

    /// Returns when to call [`on_timer`](Self::on_timer).
    pub fn next_timer(&self) -> Option<Nanos> {
        self.retry.due()
    }

    /// Returns the next message to all connected controllers.
    pub fn poll_envelope(&mut self) -> Option<Envelope> {
        self.envelopes.pop_front()
    }

    /// Returns the next command for the worker. Commands have to reach it in this order.
    pub fn poll_command(&mut self) -> Option<Command> {
        if let Some(templates) = self.introduction.take() {
            return Some(Command::Introduce(templates));
        }
        self.configuration.take().map(Command::Configure)
    }

    /// Handles a message of a controller.
    pub fn on_envelope(&mut self, envelope: Envelope, now: Nanos) {
        let Envelope { term, incarnation, message } = envelope;
        if term < self.term && !self.has_bug(Bug::OldVersionObeyed) {
            self.refused.old_term += 1;
            return;
        }
        self.term = self.term.max(term);
        match message {
            Message::WelcomeRep { boot, incarnation, first_qp } => {
                self.welcome(boot, incarnation, first_qp);
            }
            Message::Wait { reason, .. } | Message::Refused { reason } if !self.is_registered() => {
                self.status.waits = Some(reason);
            }
            _ if incarnation != self.incarnation || !self.is_registered() => {
                self.refused.other_incarnation += 1;
            }
            Message::Configure { version, floors, links } => self.configure(version, floors, links),
            Message::ReportAck { number } if number == self.report => {
                self.unreported.clear();
                self.retry.stop();
            }
            Message::ReportAck { .. } => {}
            Message::Retire {} => self.status.retired = true,
            Message::Ping { number } => self.send(Message::Pong { number }),
            _ => self.refused.unexpected += 1,
        }
        self.arm(now);
    }

    /// Handles an event of the worker. Others than those of the commit registers are ignored.
    pub fn on_event(&mut self, event: Event, now: Nanos) {
        match event {
            Event::Configured(state) => self.configured(*state),
            Event::Commit(value) => {
                self.unreported.insert(value.link);
                self.values.insert(value.link, value);
                self.report += 1;
                self.retry.restart();
                self.send_unanswered(now);
            }
            Event::Dead(_) | Event::Evicted(_) | Event::Left(_) | Event::Joined(_) | Event::Learned(_) => {}
        }
    }

    fn send(&mut self, message: Message) {
        self.envelopes.push_back(Envelope { term: self.term, incarnation: self.incarnation, message });
    }

    /// Sends the registration or report that is not answered, and schedules its repetition.
    fn send_unanswered(&mut self, now: Nanos) {
        if !self.is_registered() {
            let Config { switch, seat, boot, topology, .. } = self.config;
            let address = self.representative.addresses.first().copied().map_or([0; 16], address);
            self.send(Message::RegisterRep { switch, seat, boot, address, topology });
        } else if self.unreported.is_empty() {
            return self.retry.stop();
        } else {
            let links = self.unreported.iter().map(|link| self.values[link].clone()).collect();
            self.send(Message::Report { number: self.report, links });
        }
        self.retry.schedule(now);
    }

    /// Schedules what has to be repeated, if nothing is scheduled.
    fn arm(&mut self, now: Nanos) {
        if self.retry.due().is_none() && (!self.is_registered() || !self.unreported.is_empty()) {
            self.retry.schedule(now);
        }
    }

    fn welcome(&mut self, boot: Boot, incarnation: Incarnation, first_qp: rocev2::Qpn) {
        // What repeats the incarnation changes nothing, and a worker has one incarnation at most.
        let is_other = self.is_registered() && incarnation != self.incarnation;
        let last_qp = first_qp.get() as usize + self.representative.links.len();
        if boot != self.config.boot
            || is_other
            || incarnation == Incarnation::default()
            || last_qp > 0xff_ffff
        {
            self.refused.other_incarnation += 1;
            return;
        }
        if !self.is_registered() {
            self.incarnation = incarnation;
            self.status.waits = None;
            self.introduction = Some(Box::new(Templates::new(&self.representative, first_qp)));
            self.retry.stop();
        }
    }

    /// Passes a state on to the worker.
    fn configure(&mut self, version: u64, floors: [Option<Timestamp>; 2], links: Vec<LinkSetting>) {
        if version < self.version && !self.has_bug(Bug::OldVersionObeyed) {
            self.refused.old_version += 1;
            return;
        }
        let count = self.representative.links.len();
        if links.iter().any(|setting| setting.link != LOOPBACK && usize::from(setting.link) >= count) {
            self.refused.unknown_link += 1;
            return;
        }
        self.version = version;
        let links: Vec<_> = links.into_iter().map(|setting| self.setting(setting)).collect();
        let values = Vec::with_capacity(links.len());
        let whole = Configuration { version, floors, links, outputs: [None; 2], values };
        // A state that the worker has not got yet is of no use any more: each state names all links.
        if self.has_bug(Bug::PartialConfiguration) {
            let mut part = whole.clone();
            part.links.truncate(whole.links.len() / 2);
            self.configuration = Some(part.into());
            self.rest = Some(whole.into());
        } else {
            self.configuration = Some(whole.into());
        }
    }

    /// Returns a setting with the queue pairs of those sources that are at the link's neighbour. Of two ends, one at
    /// which there is no source gets no commit barrier: so a representative that does not serve any more, and does
    /// not know it, states no later one.
    fn setting(&self, setting: LinkSetting) -> Setting {
        let LinkSetting { link, counted, frozen, muted, introduced, sources } = setting;
        let at = self.representative.links.get(usize::from(link));
        let ends = at.map_or([None; 2], Link::ends);
        let end_of = |of: Address| ends.iter().position(|&end| end.is_some_and(|end| address(end) == of));
        let sources =
            sources.into_iter().filter_map(|source| Some((end_of(source.address)? as u8, source.qpn)));
        let sources: Vec<(u8, rocev2::Qpn)> = sources.collect();
        let is_named = |end: u8| sources.iter().any(|&(of, _)| of == end);
        let has_standby = ends[1].is_some() && !self.has_bug(Bug::RetiredFed);
        let muted = [0, 1].map(|end| muted || has_standby && !is_named(end));
        Setting { link, counted, frozen, muted, introduced, sources }
    }

    /// Answers the controller with the values at the moment at which a state took effect.
    fn configured(&mut self, state: Configuration) {
        let Configuration { version, links, outputs, values, .. } = state;
        self.values.extend(values.iter().map(|value| (value.link, value.clone())));
        if let Some(rest) = self.rest.take() {
            self.configuration = Some(rest);
        }
        self.counted = links.iter().filter(|link| link.counted).map(|link| link.link).collect();
        let frozen = links.iter().filter(|link| link.counted && link.frozen).count();
        let muted = links.iter().filter(|link| link.muted[0] && link.muted[1]).count();
        self.status = Status { version, frozen, muted, ..self.status };
        self.send(Message::Configured { version, outputs, links: values });
    }
}

/// Returns an address as the protocol has it.
pub fn address(ip: IpAddr) -> Address {
    match ip {
        IpAddr::V4(ip) => ip.to_ipv6_mapped().octets(),
        IpAddr::V6(ip) => ip.octets(),
    }
}
