//! A drawn controller: it lets representatives count the links of its members, freezes, mutes and thaws links
//! at random, names the sources of links, and excludes members. The connections to it lose, repeat, delay and
//! reorder messages, and what was sent to an earlier incarnation arrives at a later one.

use super::queue_pair_of;
use crate::onepipe::addresses::{host_addresses, switch_addresses};
use crate::onepipe::host::unwrap;
use crate::onepipe::{ChangeKind, Host, Network, Tree};
use onepipe::Timestamp;
use onepipe::control::{Envelope, Incarnation, LOOPBACK, LinkSetting, LinkValue, Message, Source};
use representative::{Event, Keeper, LinkId, keeper};
use rocev2::Qpn;
use sim::EPOCH;
use std::collections::{BTreeMap, BTreeSet};
use switch::{Nanos, Rng};

/// Interval at which messages are delivered
const POLL_INTERVAL: Nanos = Nanos(500);
/// Longest time that the controller takes for a decision
const DECIDES_WITHIN: u64 = 20_000;
/// Longest time for which a copy of a message is late
const LATE: u64 = 60_000;
/// Time after which a connection that has lost a message is up again
const RECONNECTS_AFTER: Nanos = Nanos(4_000);
/// Time after which a state that is not answered is sent again
const REPEATED_AFTER: Nanos = Nanos(10_000);
/// Term of the controller; copies of states of the term before are drawn
const TERM: u64 = 2;
/// Topology of all nodes
const TOPOLOGY: u64 = 7;
/// First queue pair of the first incarnation of a representative, and number of those of each
const FIRST_QP: u32 = 0x10_0000;
const QPS: u32 = 64;

/// Incarnation that a representative was given.
#[derive(Clone, Copy, Debug)]
pub(super) struct Granted {
    /// Number of the representative
    pub(super) keeper: usize,
    /// Time below which its outputs to above and to below carry no commit barrier, unwrapped
    pub(super) floors: [u64; 2],
}

/// What stands still.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Still {
    /// The register of an input
    Frozen(u16),
    /// What is sent on an output
    Muted(u16),
}

/// A value at which something was reported to stand still.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bound {
    pub(super) keeper: usize,
    pub(super) what: Still,
    /// When the controller ordered the state that was reported
    pub(super) since: Nanos,
    /// Highest commit barrier that may pass, unwrapped
    pub(super) value: u64,
}

/// A state that was sent.
#[derive(Clone, Debug)]
struct State {
    ordered: Nanos,
    still: BTreeSet<Still>,
    counted: BTreeSet<u16>,
}

/// A representative as the controller sees it.
#[derive(Debug)]
struct Site {
    keeper: Keeper,
    boot: u8,
    /// 0 before it has registered
    incarnation: u32,
    still: BTreeSet<Still>,
    /// Queue pairs of the incarnations of hosts that are named, by link
    named: BTreeMap<u16, Qpn>,
    version: u64,
    answered: u64,
    sent_at: Nanos,
    /// Time at which its last message arrives: one connection keeps their order
    arrives_at: Nanos,
    states: BTreeMap<u64, State>,
    /// What it has last reported of its links
    values: BTreeMap<u16, LinkValue>,
}

impl Site {
    /// Returns whether it has answered the last state.
    fn is_settled(&self) -> bool {
        self.answered == self.version
    }
}

/// A message on its way.
#[derive(Clone, Debug)]
enum Mail {
    ToKeeper(usize, Envelope),
    FromKeeper(usize, Envelope),
    /// A connection that has lost a message comes up again
    Connected(usize),
}

/// What the controller does at a time.
#[derive(Clone, Copy, Debug)]
enum Order {
    Stop(usize, Still),
    LetGo(usize, Still),
    /// Names the present incarnation of a host as the source of its link
    Name(usize),
    /// Excludes a host
    Exclude(usize),
}

/// Numbers of what happened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Reports of registers and outputs that stand still
    pub bounds: usize,
    /// Reports of silent links
    pub silent: usize,
    /// Incarnations of representatives
    pub incarnations: usize,
    /// Messages that keepers refused: old terms, other incarnations, old versions
    pub refused: [u64; 3],
}

impl Counts {
    /// Adds those of another run.
    pub fn add(&mut self, other: &Self) {
        self.bounds += other.bounds;
        self.silent += other.silent;
        self.incarnations += other.incarnations;
        self.refused.iter_mut().zip(other.refused).for_each(|(sum, more)| *sum += more);
    }
}

/// Controller of the reliable service.
#[derive(Debug)]
pub struct Controller {
    rng: Rng,
    fanout: usize,
    pub(super) members: BTreeSet<usize>,
    sites: Vec<Site>,
    /// Incarnations of representatives, by number
    granted: BTreeMap<u32, Granted>,
    orders: Vec<(Nanos, Order)>,
    mail: Vec<(Nanos, Mail)>,
    versions: u64,
    /// Number of the changes that it has handled
    seen: usize,
    /// Number of incarnations of each host that it has seen
    hosts: Vec<usize>,
    /// Hosts that it excluded, with the time
    pub(super) removed: Vec<(Nanos, usize)>,
    /// Incarnations of hosts that it named, with the time
    pub(super) named: Vec<(Nanos, Qpn)>,
    pub(super) bounds: Vec<Bound>,
    /// What it let go, with the time
    pub(super) released: Vec<(Nanos, usize, Still)>,
    counts: Counts,
}

impl Controller {
    /// Creates a controller with half of the hosts as members. It stops links until `until`.
    pub fn new(tree: &Tree, seed: u64, from: Nanos, until: Nanos) -> Self {
        let mut rng = Rng::stream(seed, 0x636f_6d6d_6974);
        let first = rng.below(tree.hosts() as u64) as usize;
        let members = (0..tree.hosts()).filter(|&host| host == first || rng.below(2) == 0).collect();
        let mut controller = Self {
            rng,
            fanout: tree.fanout,
            members,
            sites: Vec::new(),
            granted: BTreeMap::new(),
            orders: Vec::new(),
            mail: Vec::new(),
            versions: TERM << 32,
            seen: 0,
            hosts: vec![0; tree.hosts()],
            removed: Vec::new(),
            named: Vec::new(),
            bounds: Vec::new(),
            released: Vec::new(),
            counts: Counts::default(),
        };
        for keeper in 0..tree.switches() {
            let site = Self::site(tree, keeper, 0);
            controller.sites.push(site);
        }
        controller.draw_orders(tree, from, until);
        controller
    }

    /// Returns a representative that has just started.
    fn site(tree: &Tree, keeper: usize, boot: u8) -> Site {
        let config = keeper::Config {
            switch: keeper as u16,
            seat: 0,
            boot: [boot; 16],
            topology: TOPOLOGY,
            retry_after: Nanos::from_micros(5),
        };
        let level = tree.level_of(keeper);
        let mut keeper = Keeper::new(config, tree.config(level, keeper));
        keeper.on_connected(Nanos::ZERO);
        Site {
            keeper,
            boot,
            incarnation: 0,
            still: BTreeSet::new(),
            named: BTreeMap::new(),
            version: 0,
            answered: 0,
            sent_at: Nanos::ZERO,
            arrives_at: Nanos::ZERO,
            states: BTreeMap::new(),
            values: BTreeMap::new(),
        }
    }

    fn draw_orders(&mut self, tree: &Tree, from: Nanos, until: Nanos) {
        for _ in 0..self.rng.below(8) {
            let keeper = self.rng.below(tree.switches() as u64) as usize;
            let link = self.rng.below(tree.links_of(keeper) as u64) as u16;
            let what = match self.rng.below(3) {
                0 => Still::Muted(link),
                1 => Still::Frozen(link),
                _ => Still::Frozen(*self.rng.pick(&[link, LOOPBACK])),
            };
            let begin = Nanos(self.rng.between(from.0, until.0 - 1));
            let end = Nanos(self.rng.between(begin.0, until.0));
            self.orders.push((begin, Order::Stop(keeper, what)));
            self.orders.push((end, Order::LetGo(keeper, what)));
        }
    }

    /// Returns the number of members.
    pub fn members(&self) -> usize {
        self.members.len()
    }

    /// Returns what happened.
    pub fn counts(&self) -> Counts {
        let mut counts =
            Counts { bounds: self.bounds.len(), incarnations: self.granted.len(), ..self.counts };
        for site in &self.sites {
            add_refused(&mut counts, &site.keeper);
        }
        counts
    }

    /// Returns whether a link of a representative counts: what a member has committed arrives there.
    fn counts_at(&self, tree: &Tree, keeper: usize, link: u16) -> bool {
        tree.hosts_at(keeper, link).any(|host| self.members.contains(&host))
    }

    /// Checks what representatives have reported last of the links that count.
    pub(super) fn check_reports(&self, tree: &Tree) -> Result<(), String> {
        for (keeper, site) in self.sites.iter().enumerate() {
            if !site.is_settled() {
                return Err(format!("representative {keeper} has not answered the last state"));
            }
            let links = (0..tree.links_of(keeper) as u16).chain([LOOPBACK]);
            for link in links.filter(|&link| self.counts_at(tree, keeper, link)) {
                let value = site.values.get(&link);
                if !value.is_some_and(|value| value.caught && !value.silent) {
                    return Err(format!("representative {keeper} reported last: {value:?}"));
                }
            }
        }
        Ok(())
    }

    /// Advances the world, and what representatives and the controller do.
    pub fn run(&mut self, network: &mut Network, tree: &Tree, until: Nanos) {
        while network.world.now() < until {
            network.run_until((network.world.now() + POLL_INTERVAL).min(until));
            let now = network.world.now();
            while let Some(&change) = network.record.changes.get(self.seen) {
                self.seen += 1;
                self.handle(tree, change.keeper, change.kind, now);
            }
            self.see_hosts(network, now);
            for (keeper, event) in core::mem::take(&mut network.record.commits) {
                self.on_event(keeper, event, now);
            }
            self.orders.sort_by_key(|&(at, _)| at);
            let due = self.orders.partition_point(|&(at, _)| at <= now);
            for (_, order) in self.orders.drain(..due).collect::<Vec<_>>() {
                self.execute(network, tree, order, now);
            }
            self.deliver(tree, now);
            (0..self.sites.len()).for_each(|keeper| self.turn(network, tree, keeper, now));
        }
    }

    fn on_event(&mut self, keeper: usize, event: Event, now: Nanos) {
        if let Event::Commit(value) = &event {
            self.counts.silent += usize::from(value.silent);
        }
        self.sites[keeper].keeper.on_event(event, now);
    }

    fn handle(&mut self, tree: &Tree, keeper: usize, kind: ChangeKind, now: Nanos) {
        let at = now + Nanos(self.rng.below(DECIDES_WITHIN));
        let host_at = |link: LinkId| {
            let mut behind = tree.hosts_behind(keeper, link);
            behind.next().filter(|_| behind.next().is_none())
        };
        match kind {
            ChangeKind::Restarted => {
                let Site { boot, still, named, .. } = &self.sites[keeper];
                let (still, named) = (still.clone(), named.clone());
                let next = Site { still, named, ..Self::site(tree, keeper, boot + 1) };
                let before = core::mem::replace(&mut self.sites[keeper], next);
                add_refused(&mut self.counts, &before.keeper);
            }
            ChangeKind::Left(link) => {
                self.orders.extend(host_at(link).map(|host| (at, Order::Exclude(host))));
            }
            // The process has failed for good, in some of the cases.
            ChangeKind::Dead(link) if self.rng.below(4) == 0 && self.members.len() > 1 => {
                self.orders.extend(host_at(link).map(|host| (at, Order::Exclude(host))));
            }
            ChangeKind::Joined(_) | ChangeKind::Dead(_) | ChangeKind::Evicted(_) => {}
        }
    }

    /// Names the incarnations of hosts that have started.
    fn see_hosts(&mut self, network: &Network, now: Nanos) {
        for host in network.each_host() {
            let (number, count) = (host.number(), host.incarnations().len());
            if core::mem::replace(&mut self.hosts[number], count) != count {
                let at = now + Nanos(self.rng.below(DECIDES_WITHIN));
                self.orders.push((at, Order::Name(number)));
            }
        }
    }

    fn execute(&mut self, network: &Network, tree: &Tree, order: Order, now: Nanos) {
        match order {
            Order::Stop(keeper, what) => {
                self.sites[keeper].still.insert(what);
                self.order_state(tree, keeper, now);
            }
            Order::LetGo(keeper, what) => {
                self.released.push((now, keeper, what));
                self.sites[keeper].still.remove(&what);
                self.order_state(tree, keeper, now);
            }
            Order::Name(host) => {
                let incarnation = network.world.node::<Host>(network.hosts[host]).incarnations();
                let qpn = queue_pair_of(host, incarnation.len());
                self.named.push((now, qpn));
                let keeper = host / tree.fanout;
                self.sites[keeper].named.insert((host % tree.fanout) as u16, qpn);
                self.order_state(tree, keeper, now);
            }
            Order::Exclude(host) => {
                if self.members.remove(&host) {
                    self.removed.push((now, host));
                    (0..self.sites.len()).for_each(|keeper| self.order_state(tree, keeper, now));
                }
            }
        }
    }

    /// Returns the source of a link's beacons, if it is known.
    fn source(&self, tree: &Tree, keeper: usize, link: u16) -> Option<Source> {
        let level = tree.level_of(keeper);
        let source = |ip: core::net::Ipv4Addr, qpn| Source { address: keeper::address(ip.into()), qpn };
        let of_switch = |(other, at): (usize, usize)| {
            let first = Self::first_qp(self.sites[other].incarnation)?;
            Some(source(switch_addresses(other, 0).ip, Qpn::new(first.get() + at as u32)))
        };
        let index = (keeper - tree.first_of(level)) * tree.fanout + usize::from(link);
        match level.checked_sub(1) {
            _ if usize::from(link) == tree.fanout => of_switch(tree.parent(level, keeper)?),
            Some(below) => of_switch((tree.first_of(below) + index, tree.fanout)),
            None => Some(source(host_addresses(index).ip, *self.sites[keeper].named.get(&link)?)),
        }
    }

    fn first_qp(incarnation: u32) -> Option<Qpn> {
        (incarnation > 0).then(|| Qpn::new(FIRST_QP + QPS * incarnation))
    }

    /// Returns the incarnation that a queue pair of a representative is of.
    pub(super) fn term_of(&self, qpn: Qpn) -> Option<&Granted> {
        self.granted.get(&(qpn.get().checked_sub(FIRST_QP)? / QPS))
    }

    /// Orders a new state of a representative.
    fn order_state(&mut self, tree: &Tree, keeper: usize, now: Nanos) {
        if self.sites[keeper].incarnation == 0 {
            return;
        }
        self.versions += 1;
        let links = (0..tree.links_of(keeper) as u16).chain([LOOPBACK]);
        let counted = links.filter(|&link| self.counts_at(tree, keeper, link)).collect();
        let site = &mut self.sites[keeper];
        site.version = self.versions;
        let state = State { ordered: now, still: site.still.clone(), counted };
        site.states.insert(self.versions, state);
        self.send_state(tree, keeper, now);
    }

    fn state(&self, tree: &Tree, keeper: usize) -> Message {
        let site = &self.sites[keeper];
        let state = &site.states[&site.version];
        let setting = |link: u16| LinkSetting {
            link,
            counted: state.counted.contains(&link),
            frozen: state.still.contains(&Still::Frozen(link)),
            muted: state.still.contains(&Still::Muted(link)),
            introduced: true,
            sources: if link == LOOPBACK { None } else { self.source(tree, keeper, link) }
                .into_iter()
                .collect(),
        };
        let links = (0..tree.links_of(keeper) as u16).chain([LOOPBACK]).map(setting).collect();
        let floors = self.granted[&site.incarnation].floors.map(|floor| Some(Timestamp::new(floor)));
        Message::Configure { version: site.version, floors, links }
    }

    fn send_state(&mut self, tree: &Tree, keeper: usize, now: Nanos) {
        let message = self.state(tree, keeper);
        self.sites[keeper].sent_at = now;
        self.send(keeper, TERM, message.clone(), now);
        // What a controller of the term before wants, if this one has been heard: everything goes on.
        let Message::Configure { version, floors, mut links } = message else { return };
        if self.sites[keeper].answered > 0 && self.rng.below(3) == 0 {
            for link in &mut links {
                (link.frozen, link.muted) = (false, false);
            }
            let version = version + self.rng.below(2) * 1000;
            self.send(keeper, TERM - 1, Message::Configure { version, floors, links }, now);
        }
    }

    /// Sends a message to a representative: some are lost, some arrive twice, some late.
    fn send(&mut self, keeper: usize, term: u64, message: Message, now: Nanos) {
        let incarnation = Incarnation(self.sites[keeper].incarnation);
        let envelope = Envelope { term, incarnation, message };
        let copies = *self.rng.pick(&[0, 1, 1, 1, 2, 3]);
        if copies == 0 {
            self.mail.push((now + RECONNECTS_AFTER, Mail::Connected(keeper)));
        }
        for _ in 0..copies {
            let most = *self.rng.pick(&[2_000, 2_000, LATE]);
            let at = now + Nanos(self.rng.below(most));
            self.mail.push((at, Mail::ToKeeper(keeper, envelope.clone())));
        }
    }

    /// Delivers what is due, in a drawn order.
    fn deliver(&mut self, tree: &Tree, now: Nanos) {
        let (due, later) = core::mem::take(&mut self.mail).into_iter().partition(|&(at, _)| at <= now);
        self.mail = later;
        for (_, mail) in due {
            match mail {
                Mail::ToKeeper(keeper, envelope) => self.sites[keeper].keeper.on_envelope(envelope, now),
                Mail::Connected(keeper) => self.sites[keeper].keeper.on_connected(now),
                Mail::FromKeeper(keeper, envelope) => self.on_envelope(tree, keeper, envelope, now),
            }
        }
    }

    /// A keeper sends what it has to send.
    fn turn(&mut self, network: &mut Network, tree: &Tree, keeper: usize, now: Nanos) {
        if network.world.is_down(network.representatives[keeper]) {
            return;
        }
        let site = &mut self.sites[keeper];
        if site.keeper.next_timer().is_some_and(|at| at <= now) {
            site.keeper.on_timer(now);
        }
        while let Some(command) = site.keeper.poll_command() {
            network.command(keeper, command);
        }
        while let Some(envelope) = site.keeper.poll_envelope() {
            if self.rng.below(4) == 0 {
                self.mail.push((now + RECONNECTS_AFTER, Mail::Connected(keeper)));
            } else {
                site.arrives_at = site.arrives_at.max(now + Nanos(self.rng.below(2_000)));
                self.mail.push((site.arrives_at, Mail::FromKeeper(keeper, envelope)));
            }
        }
        if !site.is_settled() && now.since(site.sent_at) >= REPEATED_AFTER {
            self.send_state(tree, keeper, now);
        }
    }

    fn on_envelope(&mut self, tree: &Tree, keeper: usize, envelope: Envelope, now: Nanos) {
        let Envelope { incarnation, message, .. } = envelope;
        if let Message::RegisterRep { boot, .. } = message {
            if boot == [self.sites[keeper].boot; 16] {
                self.welcome(tree, keeper, now);
            }
            return;
        }
        if incarnation != Incarnation(self.sites[keeper].incarnation) {
            return;
        }
        match message {
            Message::Configured { version, outputs, links } => {
                self.configured(keeper, version, outputs, links, now);
            }
            // What is reported of another state than the wanted one is reported again.
            Message::Report { number, links } if self.sites[keeper].is_settled() => {
                self.sites[keeper].values.extend(links.into_iter().map(|value| (value.link, value)));
                self.send(keeper, TERM, Message::ReportAck { number }, now);
            }
            _ => {}
        }
    }

    /// Gives a representative an incarnation, with floors that are above what earlier ones have sent.
    fn welcome(&mut self, tree: &Tree, keeper: usize, now: Nanos) {
        let is_new = self.sites[keeper].incarnation == 0;
        if is_new {
            let incarnation = self.granted.len() as u32 + 1;
            // Hosts' clocks are off by 2 us at most.
            let floor = |rng: &mut Rng| Network::time(now) + 3_000 + rng.below(10_000);
            let floors = [floor(&mut self.rng), floor(&mut self.rng)];
            self.granted.insert(incarnation, Granted { keeper, floors });
            self.sites[keeper].incarnation = incarnation;
        }
        let Site { boot, incarnation, .. } = self.sites[keeper];
        let first_qp = Self::first_qp(incarnation).expect("it has one");
        let incarnation = Incarnation(incarnation);
        self.send(keeper, TERM, Message::WelcomeRep { boot: [boot; 16], incarnation, first_qp }, now);
        if is_new {
            // Its neighbours have to know its queue pairs.
            (0..self.sites.len()).for_each(|keeper| self.order_state(tree, keeper, now));
        } else {
            self.send_state(tree, keeper, now);
        }
    }

    /// Takes an answer: what stands still does so at these values.
    fn configured(
        &mut self,
        keeper: usize,
        version: u64,
        outputs: [Option<Timestamp>; 2],
        links: Vec<LinkValue>,
        now: Nanos,
    ) {
        let site = &self.sites[keeper];
        let floors = self.granted[&site.incarnation].floors;
        let time = |value: Option<Timestamp>| value.map_or(0, |value| unwrap(value, EPOCH + now));
        let outputs = outputs.map(time);
        let Some(state) = site.states.get(&version).cloned() else { return };
        for &what in &state.still {
            let (link, value) = match what {
                Still::Muted(link) => (link, 0),
                Still::Frozen(link) => {
                    let raw = links.iter().find(|value| value.link == link).and_then(|value| value.raw);
                    (link, time(raw))
                }
            };
            let is_below = link != LOOPBACK && usize::from(link) < self.fanout;
            // The half that the link feeds, or that feeds it
            let half = match what {
                Still::Frozen(_) => usize::from(!is_below),
                Still::Muted(_) => usize::from(is_below),
            };
            let counts = matches!(what, Still::Muted(_)) || state.counted.contains(&link);
            if counts {
                // The floor is above what earlier incarnations have sent.
                let value = value.max(outputs[half]).max(floors[half]);
                self.bounds.push(Bound { keeper, what, since: state.ordered, value });
            }
        }
        let site = &mut self.sites[keeper];
        if version == site.version {
            site.answered = version;
            site.values.extend(links.into_iter().map(|value| (value.link, value)));
        }
    }
}

/// Adds what a keeper has refused.
fn add_refused(counts: &mut Counts, keeper: &Keeper) {
    let keeper::Refused { old_term, other_incarnation, old_version, .. } = keeper.refused();
    let refused = [old_term, other_incarnation, old_version];
    counts.refused.iter_mut().zip(refused).for_each(|(sum, more)| *sum += more);
}
