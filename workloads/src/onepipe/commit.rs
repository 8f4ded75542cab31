//! Commit barriers before there is a reliable service: hosts write them into their beacons, and the harness
//! plays the controller, which admits links, and handles deaths, returns and departures (1Pipe, section 5.2).

use super::host::unwrap;
use super::{ChangeKind, Host, Network, Tree};
use onepipe::{OnePipe, OnePipeOpcode, Timestamp};
use representative::{Command, LinkId};
use rocev2::Packet;
use std::collections::BTreeSet;
use switch::{Nanos, Rng};

/// Commit barriers of a host, unwrapped, each with the host's time.
#[derive(Debug)]
pub(super) struct Commits {
    lag: Nanos,
    rng: Rng,
    /// Those that it has sent
    sent: Vec<(Nanos, u64)>,
    /// Those that it has received
    received: Vec<(Nanos, u64)>,
}

impl Commits {
    pub(super) fn new(lag: Nanos, rng: Rng) -> Self {
        Self { lag, rng, sent: Vec::new(), received: Vec::new() }
    }

    /// Writes a commit barrier into a beacon that the host sends: its clock minus a drawn time, never back.
    pub(super) fn write(&mut self, frame: &mut [u8], clock: u64, now: Nanos) {
        let Some(packet) = Packet::parse(frame) else { return };
        let Some(&header) = OnePipe::of(&packet) else { return };
        if header.opcode() != OnePipeOpcode::BEACON || header.nothing_follows() {
            return;
        }
        let layout = packet.layout();
        let last = self.sent.last().map_or(0, |&(_, commit)| commit);
        let commit = (clock - self.rng.below(self.lag.0 + 1)).max(last);
        self.sent.push((now, commit));
        onepipe::stamp(frame, layout, header.barrier(), Some(Timestamp::new(commit)))
            .expect("a beacon has barriers");
    }

    /// Records the commit barrier in a beacon.
    pub(super) fn on_received(&mut self, header: &OnePipe, now: Nanos) {
        if let Some(commit) = header.commit() {
            self.received.push((now, unwrap(commit, now)));
        }
    }
}

/// What the controller does at a time.
#[derive(Clone, Copy, Debug)]
enum Order {
    /// Gives a representative a command
    Command(usize, Command),
    /// Removes a host from the members
    Remove(usize),
}

/// Controller of the reliable service.
#[derive(Debug)]
pub struct Controller {
    rng: Rng,
    members: BTreeSet<usize>,
    orders: Vec<(Nanos, Order)>,
    /// Number of the changes that it has handled
    seen: usize,
    /// Hosts that it removed, with the time
    removed: Vec<(Nanos, usize)>,
    /// Links whose registers may rise again, with the time
    thawed: Vec<(Nanos, usize, LinkId)>,
}

/// Interval at which the controller looks at events
const POLL_INTERVAL: Nanos = Nanos(500);
/// Longest time that the controller takes for a decision
const DECIDES_WITHIN: u64 = 20_000;

impl Controller {
    /// Creates a controller with half of the hosts as members, which admits their links to each
    /// representative from `from` on.
    pub fn new(tree: &Tree, seed: u64, from: Nanos) -> Self {
        let mut rng = Rng::stream(seed, 0x636f_6d6d_6974);
        let first = rng.below(tree.hosts() as u64) as usize;
        let members = (0..tree.hosts()).filter(|&host| host == first || rng.below(2) == 0).collect();
        let mut controller =
            Self { rng, members, orders: Vec::new(), seen: 0, removed: Vec::new(), thawed: Vec::new() };
        (0..tree.switches()).for_each(|keeper| controller.admit(tree, keeper, from));
        controller
    }

    /// Returns whether a link of a representative is a member: what the members behind it have committed
    /// arrives there.
    fn is_member(&self, tree: &Tree, keeper: usize, link: usize) -> bool {
        tree.hosts_behind(keeper, LinkId(link as u16)).any(|host| self.members.contains(&host))
    }

    /// Admits the links of a representative that has just started, one after the other.
    fn admit(&mut self, tree: &Tree, keeper: usize, from: Nanos) {
        self.orders.retain(|(_, order)| !matches!(order, Order::Command(other, _) if *other == keeper));
        let mut at = from;
        let links = 0..tree.links_of(keeper);
        let members: Vec<_> = links.filter(|&link| self.is_member(tree, keeper, link)).collect();
        for link in members {
            at = at + Nanos(self.rng.below(DECIDES_WITHIN));
            let command = Command::AddCommit(LinkId(link as u16));
            self.orders.push((at, Order::Command(keeper, command)));
        }
        at = at + Nanos(self.rng.below(DECIDES_WITHIN));
        self.orders.push((at, Order::Command(keeper, Command::OpenCommit)));
    }

    /// Advances the world, and handles what representatives report.
    pub fn run(&mut self, network: &mut Network, tree: &Tree, until: Nanos) {
        while network.world.now() < until {
            network.run_until((network.world.now() + POLL_INTERVAL).min(until));
            let now = network.world.now();
            while let Some(&change) = network.record.changes.get(self.seen) {
                self.seen += 1;
                self.handle(tree, change.keeper, change.kind, now);
            }
            self.orders.sort_by_key(|&(at, _)| at);
            while let Some(&(at, order)) = self.orders.first().filter(|(at, _)| *at <= now) {
                self.orders.remove(0);
                self.execute(network, tree, order, at.max(now));
            }
        }
    }

    fn handle(&mut self, tree: &Tree, keeper: usize, kind: ChangeKind, now: Nanos) {
        let at = now + Nanos(self.rng.below(DECIDES_WITHIN));
        let host_at = |link: LinkId| {
            let mut behind = tree.hosts_behind(keeper, link);
            behind.next().filter(|_| behind.next().is_none())
        };
        match kind {
            ChangeKind::Restarted => self.admit(tree, keeper, now),
            ChangeKind::Joined(link) => {
                self.orders.push((at, Order::Command(keeper, Command::ThawCommit(link))));
            }
            ChangeKind::Left(link) => {
                self.orders.extend(host_at(link).map(|host| (at, Order::Remove(host))));
            }
            // The process has failed for good, in some of the cases.
            ChangeKind::Dead(link) if self.rng.below(4) == 0 && self.members.len() > 1 => {
                self.orders.extend(host_at(link).map(|host| (at, Order::Remove(host))));
            }
            ChangeKind::Dead(_) | ChangeKind::Evicted(_) => {}
        }
    }

    fn execute(&mut self, network: &mut Network, tree: &Tree, order: Order, now: Nanos) {
        match order {
            // What was ordered of a representative's incarnation ends with it: a part of the members would
            // be taken for all of them.
            Order::Command(keeper, _) if network.world.is_down(network.representatives[keeper]) => {}
            Order::Command(keeper, command) => {
                if let Command::ThawCommit(link) = command {
                    self.thawed.push((now, keeper, link));
                }
                network.command(keeper, command);
            }
            Order::Remove(host) => {
                let links = |keeper| (0..tree.links_of(keeper)).map(move |link| (keeper, link));
                let all: Vec<_> = (0..tree.switches()).flat_map(links).collect();
                let before: Vec<_> =
                    all.into_iter().filter(|&(n, link)| self.is_member(tree, n, link)).collect();
                if !self.members.remove(&host) {
                    return;
                }
                self.removed.push((now, host));
                for (keeper, link) in before {
                    if !self.is_member(tree, keeper, link) {
                        self.withdraw(network, keeper, LinkId(link as u16));
                    }
                }
            }
        }
    }

    /// Removes a link from the members of a representative.
    fn withdraw(&mut self, network: &mut Network, keeper: usize, link: LinkId) {
        let adds = |order: &Order| matches!(order, Order::Command(n, Command::AddCommit(other)) if (*n, *other) == (keeper, link));
        self.orders.retain(|(_, order)| !adds(order));
        network.command(keeper, Command::RemoveCommit(link));
    }

    /// Returns the number of members.
    pub fn members(&self) -> usize {
        self.members.len()
    }
}

impl Network {
    /// Checks the commit barriers that hosts have received: none is above what a member had sent before, nor
    /// above what a representative had reported of a link when the link died, until the controller let the
    /// link go on; and at the end they are at most `behind` old at all hosts that have not left. Returns their
    /// number.
    ///
    /// # Errors
    /// The first violation.
    pub fn check_commit(&self, tree: &Tree, controller: &Controller, behind: Nanos) -> Result<usize, String> {
        let mut count = 0;
        for host in self.each_host() {
            let number = host.number();
            let received = host.commits.iter().flat_map(|commits| &commits.received);
            for &(local, commit) in received {
                let at = self.world.when(self.hosts[number], local);
                let what = format!("commit barrier {commit} at host {number} at {} ns", at.0);
                self.check_members(tree, controller, commit, at).map_err(|why| format!("{what}: {why}"))?;
                self.check_frozen(tree, controller, commit, at).map_err(|why| format!("{what}: {why}"))?;
                count += 1;
            }
            let last = host.commits.as_ref().and_then(|commits| commits.received.last());
            let expected = Self::time(self.world.now()) - behind.0;
            let stands = last.is_none_or(|&(_, commit)| commit < expected);
            if stands && !controller.members.is_empty() && !host.has_left() {
                return Err(format!("the commit barrier of host {number} stands still at {last:?}"));
            }
        }
        Ok(count)
    }

    /// Checks a commit barrier that arrived at a time against what members had sent.
    fn check_members(
        &self,
        tree: &Tree,
        controller: &Controller,
        commit: u64,
        at: Nanos,
    ) -> Result<(), String> {
        let removed =
            |host: usize| controller.removed.iter().any(|&(when, other)| other == host && when <= at);
        let is_member = |host: usize| {
            controller.members.contains(&host) || controller.removed.iter().any(|&(_, other)| other == host)
        };
        for number in (0..tree.hosts()).filter(|&host| is_member(host) && !removed(host)) {
            let host: &Host = self.world.node(self.hosts[number]);
            let sent = host.commits.as_ref().map_or(&[][..], |commits| &commits.sent);
            let before = sent.partition_point(|&(local, _)| self.world.when(self.hosts[number], local) <= at);
            let last = before.checked_sub(1).map(|last| sent[last].1);
            if last.is_none_or(|last| last < commit) {
                return Err(format!("above that of member {number}: {last:?}"));
            }
        }
        Ok(())
    }

    /// Checks a commit barrier that arrived at a time against what was reported of links that died.
    fn check_frozen(
        &self,
        tree: &Tree,
        controller: &Controller,
        commit: u64,
        at: Nanos,
    ) -> Result<(), String> {
        for &(died, keeper, link, committed) in &self.record.frozen {
            let has_thawed = controller
                .thawed
                .iter()
                .any(|&(when, n, other)| (n, other) == (keeper, link) && (died..=at).contains(&when));
            let has_restarted = self.record.changes.iter().any(|change| {
                (change.keeper, change.kind) == (keeper, ChangeKind::Restarted)
                    && (died..=at).contains(&change.at)
            });
            let is_removed =
                |host: usize| controller.removed.iter().any(|&(when, other)| other == host && when <= at);
            let has_member = tree.hosts_behind(keeper, link).any(|host| {
                (controller.members.contains(&host) && !is_removed(host))
                    || controller.removed.iter().any(|&(when, other)| other == host && when > at)
            });
            let is_below = usize::from(link.0) < tree.fanout;
            let bound = committed.filter(|_| died <= at && is_below && has_member);
            if bound.is_some_and(|bound| commit > bound) && !has_thawed && !has_restarted {
                return Err(format!(
                    "above the register of keeper {keeper}'s link {} when it died at {} ns: {committed:?}",
                    link.0, died.0
                ));
            }
        }
        Ok(())
    }
}
