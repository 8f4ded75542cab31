//! An oracle of barriers that looks at a tree from outside: at the frames on the hosts' links, at the faults
//! that were drawn, and at what representatives report to their control planes. It answers whether any
//! barrier was too high, and whether a link was removed without a reason.

use super::outages::{Failing, Outage, Part, Removal, Wiring};
use super::{BEACON_INTERVAL, DEAD_AFTER_INTERVALS, Host, Network, Tree};
use core::ops::Range;
use representative::{Event, LinkId, Representative};
use sim::Switch;
use std::collections::{BTreeMap, BTreeSet};
use switch::{Nanos, Probability};

/// Time after which a link is dead, with the interval in which it died and the one in which that is noticed
const SILENCE: Nanos = Nanos(BEACON_INTERVAL.0 * (DEAD_AFTER_INTERVALS as u64 + 2));
/// Shortest outage in that time by which all beacons may be lost: an unchanged barrier is repeated every
/// other interval
const LEAST_OUTAGE: Nanos = Nanos(BEACON_INTERVAL.0 * 3);
/// Time for which an announcement that nothing follows is under way, while a host behind it returns
const ANNOUNCED_WITHIN: Nanos = Nanos::from_micros(60);

/// Messages of one host to another of which some are delivered, even where links lose frames
const MANY: usize = 8;

/// What happened at a representative.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChangeKind {
    /// A link was removed for silence
    Dead(LinkId),
    /// A link was removed because nothing follows on it
    Left(LinkId),
    /// A link was removed because it was too far behind
    Evicted(LinkId),
    /// A link takes part again
    Joined(LinkId),
    /// The representative restarted: all of its links take part, and it waits for each
    Restarted,
}

/// Change of the links of a representative.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Change {
    /// Time of the world
    pub at: Nanos,
    /// Number of the representative
    pub keeper: usize,
    /// What changed
    pub kind: ChangeKind,
}

impl Change {
    /// Returns whether a link takes part from now on; `None` if the change is none of that link.
    fn takes_part(&self, link: LinkId) -> Option<bool> {
        match self.kind {
            ChangeKind::Restarted => Some(true),
            ChangeKind::Joined(other) => (other == link).then_some(true),
            ChangeKind::Dead(other) | ChangeKind::Left(other) | ChangeKind::Evicted(other) => {
                (other == link).then_some(false)
            }
        }
    }
}

/// Changes of links, commands of the operator and outages of a network.
#[derive(Debug, Default)]
pub struct Record {
    /// Changes, in order
    pub changes: Vec<Change>,
    /// Commands of the operator
    pub removals: Vec<Removal>,
    /// Outages
    pub outages: Vec<Outage>,
    /// Events of commit registers that no [`Controller`](super::Controller) has taken, with the
    /// representative
    pub(super) commits: Vec<(usize, Event)>,
    /// Whether each representative is down
    down: Vec<bool>,
}

impl Record {
    pub(super) fn remove(&mut self, removal: Removal) {
        self.removals.push(removal);
    }

    fn of(&self, keeper: usize) -> impl Iterator<Item = &Change> {
        self.changes.iter().filter(move |change| change.keeper == keeper)
    }

    /// Returns whether a link took part in the barrier of a representative at a time.
    fn takes_part(&self, keeper: usize, link: LinkId, at: Nanos) -> bool {
        let before = self.of(keeper).take_while(|change| change.at <= at);
        before.filter_map(|change| change.takes_part(link)).last().unwrap_or(true)
    }

    /// Returns whether a link was out of the barrier at any time of a span, or took part again for less than
    /// `settled` at its beginning.
    fn was_out(&self, keeper: usize, link: LinkId, span: &Range<Nanos>, settled: Nanos) -> bool {
        let of_link = self.of(keeper).filter_map(|change| Some((change.at, change.takes_part(link)?)));
        let mut out = false;
        for (at, takes_part) in of_link.take_while(|&(at, _)| at <= span.end) {
            if !takes_part && at >= span.start {
                return true;
            }
            out = if takes_part { out && at + settled > span.start } else { true };
        }
        out
    }
}

/// Packets that arrived at hosts, and those of them whose path has no link that was removed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Eligible {
    /// Packets of messages that arrived
    pub arrivals: usize,
    /// Those that no removed link excuses
    pub eligible: usize,
    /// Those that arrived late, and are excused
    pub excused: usize,
}

impl Eligible {
    /// Adds the counts of another run.
    pub fn add(&mut self, other: &Self) {
        self.arrivals += other.arrivals;
        self.eligible += other.eligible;
        self.excused += other.excused;
    }
}

impl Tree {
    /// Returns the level of a switch.
    pub(super) fn level_of(&self, switch: usize) -> u32 {
        (0..self.levels).rfind(|&level| self.first_of(level) <= switch).unwrap_or_default()
    }

    /// Returns the hosts below a switch.
    pub(super) fn hosts_below(&self, switch: usize) -> Range<usize> {
        let level = self.level_of(switch);
        let (each, index) = (self.fanout.pow(level + 1), switch - self.first_of(level));
        index * each..(index + 1) * each
    }

    /// Returns the hosts whose messages and announcements arrive on a link of a switch. On a link from above
    /// that includes the hosts below, because the neighbour's barrier covers them.
    pub(super) fn hosts_behind(&self, switch: usize, link: LinkId) -> Range<usize> {
        let number = usize::from(link.0);
        if number >= self.fanout {
            return 0..self.hosts();
        }
        let Range { start, end } = self.hosts_below(switch);
        let each = (end - start) / self.fanout;
        start + number * each..start + (number + 1) * each
    }

    /// Returns the input links that a message passes: at each switch, the number of the switch and the link
    /// on which the message arrives.
    pub fn path(&self, from: usize, to: usize) -> Vec<(usize, LinkId)> {
        let ancestor = |host: usize, level: u32| self.first_of(level) + host / self.fanout.pow(level + 1);
        let top = (0..self.levels).find(|&level| ancestor(from, level) == ancestor(to, level));
        let top = top.unwrap_or(self.levels - 1);
        let up = (0..=top).map(|level| {
            let link = from / self.fanout.pow(level) % self.fanout;
            (ancestor(from, level), LinkId(link as u16))
        });
        let down = (0..top).rev().map(|level| (ancestor(to, level), LinkId(self.fanout as u16)));
        up.chain(down).collect()
    }

    /// Returns the nodes and links between the neighbour at a link and the representative, which beacons of
    /// the neighbour pass: nodes without the representative itself, and each link with the node that sends
    /// on it.
    pub(super) fn way(&self, switch: usize, link: LinkId) -> (Vec<Part>, Vec<(Wiring, Part)>) {
        let (level, number) = (self.level_of(switch), usize::from(link.0));
        let mut nodes = vec![Part::Switch(switch)];
        let mut wires = vec![(Wiring::Beside(switch), Part::Switch(switch))];
        if number >= self.fanout {
            let parent = self.parent(level, switch).map_or(switch, |(parent, _)| parent);
            nodes.extend([Part::Switch(parent), Part::Keeper(parent)]);
            wires.extend([
                (Wiring::Uplink(switch), Part::Switch(parent)),
                (Wiring::Beside(parent), Part::Keeper(parent)),
            ]);
        } else if level == 0 {
            let host = switch * self.fanout + number;
            nodes.push(Part::Host(host));
            wires.push((Wiring::Access(host), Part::Host(host)));
        } else {
            let child = self.first_of(level - 1) + (switch - self.first_of(level)) * self.fanout + number;
            nodes.extend([Part::Switch(child), Part::Keeper(child)]);
            wires.extend([
                (Wiring::Uplink(child), Part::Switch(child)),
                (Wiring::Beside(child), Part::Keeper(child)),
            ]);
        }
        (nodes, wires)
    }

    /// Returns the links that feed the half of the neighbour whose barrier arrives on a link, with the number
    /// of the neighbour; `None` if it is a host.
    fn inputs_of_neighbour(&self, switch: usize, link: LinkId) -> Option<(usize, Range<u16>)> {
        let (level, number, fanout) = (self.level_of(switch), usize::from(link.0), self.fanout as u16);
        if number >= self.fanout {
            let (parent, _) = self.parent(level, switch)?;
            let has_above = self.parent(level + 1, parent).is_some();
            return Some((parent, 0..fanout + u16::from(has_above)));
        }
        let below = level.checked_sub(1)?;
        let child = self.first_of(below) + (switch - self.first_of(level)) * self.fanout + number;
        Some((child, 0..fanout))
    }
}

impl Network {
    /// Advances the world, and records the changes that representatives report.
    pub fn run_until(&mut self, until: Nanos) {
        self.record.down.resize(self.representatives.len(), false);
        while self.world.step(until) {
            let at = self.world.now();
            for (keeper, &node) in self.representatives.iter().enumerate() {
                let is_down = self.world.is_down(node);
                if core::mem::replace(&mut self.record.down[keeper], is_down) && !is_down {
                    self.record.changes.push(Change { at, keeper, kind: ChangeKind::Restarted });
                }
                let switch: &mut Switch<Representative> = self.world.node_mut(node);
                for event in switch.events.drain(..) {
                    let kind = match event {
                        Event::Dead(link) => ChangeKind::Dead(link),
                        Event::Left(link) => ChangeKind::Left(link),
                        Event::Evicted(link) => ChangeKind::Evicted(link),
                        Event::Joined(link) => ChangeKind::Joined(link),
                        event @ (Event::Configured(_) | Event::Commit(_)) => {
                            self.record.commits.push((keeper, event));
                            continue;
                        }
                        Event::Learned(_) => continue,
                    };
                    self.record.changes.push(Change { at, keeper, kind });
                }
            }
        }
        self.world.run_until(until);
    }

    /// Checks that no barrier was too high: no packet arrived below the barrier of its receiver's link,
    /// unless a link on its path was out of the barrier while the packet was under way, or took part again
    /// for less than `settled` when it was sent. Packets of hosts in `excused` do not count.
    ///
    /// Hosts have to [record](super::Behaviour::records) packets.
    ///
    /// # Errors
    /// The first violation.
    pub fn check_late(&self, tree: &Tree, settled: Nanos, excused: &[usize]) -> Result<Eligible, String> {
        let mut sent_at = BTreeMap::new();
        for sender in self.each_host() {
            for packet in sender.traffic.iter().flat_map(|traffic| &traffic.sent) {
                let at = self.world.when(self.hosts[sender.number()], packet.at);
                sent_at.insert((sender.number(), packet.to, packet.psn.get()), at);
            }
        }
        let mut eligible = Eligible::default();
        for receiver in self.each_host() {
            let to = receiver.number();
            for arrival in receiver.arrivals.iter().filter(|arrival| !excused.contains(&arrival.from)) {
                let key = (arrival.from, to, arrival.psn.get());
                let Some(&from) = sent_at.get(&key) else { continue };
                let at = self.world.when(self.hosts[to], arrival.at);
                let path = tree.path(arrival.from, to);
                let is_out = |&(keeper, link): &_| self.record.was_out(keeper, link, &(from..at), settled);
                let excuse = path.iter().any(is_out);
                eligible.arrivals += 1;
                eligible.eligible += usize::from(!excuse);
                eligible.excused += usize::from(excuse && arrival.late);
                if arrival.late && !excuse {
                    return Err(format!(
                        "barrier too high: a packet of host {} to {to}, sent at {} ns, arrived at {} ns below the \
                         barrier, and no link of {path:?} was removed",
                        arrival.from, from.0, at.0
                    ));
                }
            }
        }
        Ok(eligible)
    }

    /// Checks that links were removed for a reason. A link that was removed for silence was silent: an
    /// outage that was drawn kept beacons from it, or its neighbour had no live link itself and so nothing
    /// to say. A link that was removed because it was behind has a host behind it whose clock is wrong.
    ///
    /// Where links delay single frames for longer than a silent link lives, one death needs no other reason:
    /// all of a neighbour's beacons of that time may have been delayed, which happens about once in a million
    /// of such times.
    ///
    /// # Errors
    /// The first violation.
    pub fn check_removed(&self, tree: &Tree) -> Result<(), String> {
        let delays = tree.link.reorder != Probability::NEVER && tree.link.reorder_by >= SILENCE;
        let mut unexplained = usize::from(delays);
        for &Change { at, keeper, kind } in &self.record.changes {
            let link = match kind {
                ChangeKind::Dead(link) => link,
                ChangeKind::Evicted(link) => {
                    let is_wrong =
                        |(host, by): (usize, i64)| by < 0 && tree.hosts_behind(keeper, link).contains(&host);
                    if tree.wrong_host.is_some_and(is_wrong) {
                        continue;
                    }
                    return Err(format!(
                        "keeper {keeper} removed link {} at {} ns because it was behind, but no clock of a host \
                         behind it is slow",
                        link.0, at.0
                    ));
                }
                ChangeKind::Left(_) | ChangeKind::Joined(_) | ChangeKind::Restarted => continue,
            };
            let span = Nanos(at.0.saturating_sub(SILENCE.0))..at;
            if !self.was_silent(tree, keeper, link, &span) && !self.was_lost(tree, keeper, link, &span) {
                if unexplained > 0 {
                    unexplained -= 1;
                    continue;
                }
                return Err(format!(
                    "keeper {keeper} removed link {} for silence at {} ns, but nothing kept beacons from it",
                    link.0, at.0
                ));
            }
        }
        Ok(())
    }

    /// Returns whether outages kept a neighbour's beacons from a representative for a good part of a span.
    fn was_silent(&self, tree: &Tree, keeper: usize, link: LinkId, span: &Range<Nanos>) -> bool {
        let (nodes, wires) = tree.way(keeper, link);
        let same = |part: Part, other: Part| self.node_of(part) == self.node_of(other);
        let own = Part::Keeper(keeper);
        let stops = |what: Failing| match what {
            // A representative that has restarted has heard no link, and waits for each.
            Failing::Crash(part) | Failing::Pause(part) => {
                !same(part, own) && nodes.iter().any(|&node| same(node, part))
            }
            Failing::Cut(cut) => wires.iter().any(|&(wire, _)| wire == cut),
            Failing::Mute(part, muted) => {
                wires.iter().any(|&(wire, sender)| wire == muted && same(part, sender))
            }
        };
        let outages = self.record.outages.iter().filter(|outage| stops(outage.what));
        let within = outages.map(|outage| outage.until.min(span.end).since(outage.from.max(span.start)));
        Nanos(within.map(|Nanos(ns)| ns).sum()) >= LEAST_OUTAGE
    }

    /// Returns whether no link took part in the neighbour's half at a time of a span.
    fn was_lost(&self, tree: &Tree, keeper: usize, link: LinkId, span: &Range<Nanos>) -> bool {
        let Some((neighbour, inputs)) = tree.inputs_of_neighbour(keeper, link) else { return false };
        let within = self.record.of(neighbour).map(|change| change.at).filter(|at| span.contains(at));
        let mut times = within.chain([span.start, span.end]);
        times.any(|at| inputs.clone().all(|input| !self.record.takes_part(neighbour, LinkId(input), at)))
    }

    /// Checks that nothing follows where that was announced: if a representative counts a link as left, all
    /// hosts behind the link have left, or the operator has removed the link. No beacon with such an
    /// announcement reaches a host while another one has not left.
    ///
    /// # Errors
    /// The first violation.
    pub fn check_left(&self, tree: &Tree) -> Result<(), String> {
        for &Change { at, keeper, kind } in &self.record.changes {
            let ChangeKind::Left(link) = kind else { continue };
            let span = Nanos(at.0.saturating_sub(ANNOUNCED_WITHIN.0))..at;
            let is_ordered = self.record.removals.iter().any(|removal| {
                (removal.keeper, removal.link) == (keeper, link)
                    && removal.at <= at
                    && span.contains(&removal.at)
            });
            let staying = tree.hosts_behind(keeper, link).find(|&host| !self.has_left(tree, host, &span));
            if let (false, Some(host)) = (is_ordered, staying) {
                return Err(format!(
                    "keeper {keeper} counts link {} as left at {} ns, but host {host} has not left",
                    link.0, at.0
                ));
            }
        }
        for host in self.each_host() {
            for &at in &host.nothing_follows {
                let at = self.world.when(self.hosts[host.number()], at);
                let span = Nanos(at.0.saturating_sub(ANNOUNCED_WITHIN.0))..at;
                if let Some(staying) = (0..self.hosts.len()).find(|&other| !self.has_left(tree, other, &span))
                {
                    return Err(format!(
                        "a beacon announces to host {} at {} ns that nothing follows, but host {staying} has not left",
                        host.number(),
                        at.0
                    ));
                }
            }
        }
        Ok(())
    }

    /// Returns whether a host had left at a time of a span, or was behind a link that the operator had
    /// removed.
    fn has_left(&self, tree: &Tree, number: usize, span: &Range<Nanos>) -> bool {
        let host: &Host = self.world.node(self.hosts[number]);
        let when = |local: Nanos| self.world.when(self.hosts[number], local);
        let incarnations = host.incarnations();
        let left = incarnations.iter().enumerate().any(|(n, incarnation)| {
            let next = incarnations.get(n + 1);
            incarnation.left.is_some_and(|left| when(left) <= span.end)
                && next.is_none_or(|next| when(next.started) >= span.start)
        });
        let behind = |removal: &Removal| {
            let Removal { at, keeper, link } = *removal;
            let is_behind = if usize::from(link.0) < tree.fanout {
                tree.hosts_behind(keeper, link).contains(&number)
            } else {
                !tree.hosts_below(keeper).contains(&number)
            };
            // The command takes effect with the representative's next event.
            is_behind && at <= span.end && self.record.was_out(keeper, link, span, Nanos::ZERO)
        };
        left || self.record.removals.iter().any(behind)
    }

    /// Checks that the network has recovered: of the messages between two hosts that are up and have not
    /// left, which were sent since `from`, some are delivered; if links lose nothing, all are. Hosts in
    /// `excused` do not count. Where links reorder or duplicate, a large message is late, and lost, with a
    /// probability of more than one half, and several of a pair in a row are: there, some of all messages that
    /// a host sends to others have to be delivered, and some of those that it gets from others.
    ///
    /// # Errors
    /// The first violation.
    pub fn check_recovered(&self, tree: &Tree, from: Nanos, excused: &[usize]) -> Result<usize, String> {
        let is_up = |host: &Host| {
            !host.has_left()
                && !self.world.is_down(self.hosts[host.number()])
                && !excused.contains(&host.number())
        };
        let late = Self::time(from);
        let delivered: BTreeSet<_> = self
            .each_host()
            .flat_map(|host| host.delivered.iter().map(|&(_, from, message)| (from, message)))
            .collect();
        let mut counts: BTreeMap<(usize, usize), (usize, usize)> = BTreeMap::new();
        for sender in self.each_host().filter(|host| is_up(host)) {
            for (message, sent) in (0..).zip(&sender.sent) {
                let receiver: &Host = self.world.node(self.hosts[sent.to]);
                if is_up(receiver) && sent.timestamp.is_some_and(|time| time >= late) {
                    let (count, arrived) = counts.entry((sender.number(), sent.to)).or_default();
                    *count += 1;
                    *arrived += usize::from(delivered.contains(&(sender.number(), message)));
                }
            }
        }
        let total = counts.values().map(|(count, _)| count).sum();
        let link = &tree.link;
        if [link.duplicate, link.reorder] != [Probability::NEVER; 2] {
            return check_each_host(&counts, from).map(|()| total);
        }
        let is_lossless = link.loss == Probability::NEVER;
        for (&(sender, receiver), &(count, arrived)) in &counts {
            if is_lossless && arrived < count || count >= MANY && arrived == 0 {
                return Err(format!(
                    "{arrived} of {count} messages of host {sender} to {receiver} that were sent after {} ns were \
                     delivered, although all faults had ended",
                    from.0
                ));
            }
        }
        Ok(total)
    }
}

/// Checks that some of the messages that each host has sent to others, and some of those to it, were
/// delivered. `counts` has the number of messages and of deliveries of each sender and receiver.
fn check_each_host(counts: &BTreeMap<(usize, usize), (usize, usize)>, from: Nanos) -> Result<(), String> {
    let mut of_host: BTreeMap<(usize, &str), (usize, usize)> = BTreeMap::new();
    let others = counts.iter().filter(|((sender, receiver), _)| sender != receiver);
    for (&(sender, receiver), &(count, arrived)) in others {
        for host in [(sender, "from"), (receiver, "to")] {
            let (all, delivered) = of_host.entry(host).or_default();
            (*all, *delivered) = (*all + count, *delivered + arrived);
        }
    }
    let stuck = of_host.iter().find(|&(_, &(count, arrived))| count >= MANY && arrived == 0);
    stuck.map_or(Ok(()), |((host, direction), (count, _))| {
        Err(format!(
            "0 of {count} messages {direction} host {host} that were sent after {} ns were delivered, although \
             all faults had ended",
            from.0
        ))
    })
}
