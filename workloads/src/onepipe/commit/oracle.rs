//! An oracle of commit barriers that looks at what hosts send and receive, and at what the controller orders
//! and is answered.

use super::controller::{Bound, Controller, Still};
use super::{Commits, Seen};
use crate::onepipe::{Host, Network, Tree};
use core::ops::Range;
use onepipe::control::LOOPBACK;
use representative::LinkId;
use switch::Nanos;

/// What is checked against.
struct Oracle<'a> {
    network: &'a Network,
    tree: &'a Tree,
    controller: &'a Controller,
    /// By host that is or was a member: the queue pair, the time of the world and the value of each commit
    /// barrier that it sent, if its queue pair was named, with the time at which it was
    sent: Vec<(usize, Vec<(Nanos, u64)>)>,
}

impl Tree {
    /// Returns the hosts whose commit barriers reach an input of a switch.
    pub(super) fn hosts_at(&self, switch: usize, link: u16) -> Range<usize> {
        if link == LOOPBACK { self.hosts_below(switch) } else { self.hosts_behind(switch, LinkId(link)) }
    }
}

impl Network {
    /// Checks the commit barriers that hosts have received: none is above what an incarnation of a member that
    /// was named had sent before, above a value at which a representative reported that something stands
    /// still, before the controller let it go, below the floor of the representative's incarnation, or below an
    /// earlier one; and at the end they are at most `behind` old at all hosts that have not left, and no link
    /// of a member is reported as silent or not caught up. Returns their number.
    ///
    /// # Errors
    /// The first violation.
    pub fn check_commit(&self, tree: &Tree, controller: &Controller, behind: Nanos) -> Result<usize, String> {
        let oracle = Oracle::new(self, tree, controller);
        let mut count = 0;
        for host in self.each_host() {
            let number = host.number();
            let mut before = 0;
            for seen in host.commits.iter().flat_map(|commits| &commits.received) {
                let at = self.world.when(self.hosts[number], seen.at);
                let what = format!("commit barrier {} at host {number} at {} ns", seen.commit, at.0);
                oracle.check(number, seen, at).map_err(|why| format!("{what}: {why}"))?;
                if seen.commit < before {
                    return Err(format!("{what}: went back from {before}"));
                }
                before = seen.commit;
                count += 1;
            }
            let expected = Self::time(self.world.now()) - behind.0;
            if before < expected && controller.members() > 0 && !host.has_left() {
                return Err(format!("the commit barrier of host {number} stands still at {before}"));
            }
        }
        controller.check_reports(tree)?;
        Ok(count)
    }
}

impl<'a> Oracle<'a> {
    fn new(network: &'a Network, tree: &'a Tree, controller: &'a Controller) -> Self {
        let removed = controller.removed.iter().map(|&(_, host)| host);
        let members = controller.members.iter().copied().chain(removed);
        let sent = |host: usize| {
            let node: &Host = network.world.node(network.hosts[host]);
            let commits = node.commits.iter().flat_map(|commits: &Commits| &commits.sent);
            let named = |seen: &Seen| {
                let named = controller.named.iter().find(|(_, qpn)| *qpn == seen.qpn)?.0;
                Some((network.world.when(network.hosts[host], seen.at).max(named), seen.commit))
            };
            (host, commits.filter_map(named).collect())
        };
        Self { network, tree, controller, sent: members.map(sent).collect() }
    }

    fn is_member(&self, host: usize, at: Nanos) -> bool {
        let removed = self.controller.removed.iter().any(|&(when, other)| other == host && when > at);
        self.controller.members.contains(&host) || removed
    }

    /// Checks a commit barrier that a host received at a time of the world.
    fn check(&self, host: usize, seen: &Seen, at: Nanos) -> Result<(), String> {
        let term = self.controller.term_of(seen.qpn).ok_or("of no incarnation of a representative")?;
        if term.keeper != host / self.tree.fanout {
            return Err(format!("of representative {}", term.keeper));
        }
        if seen.commit < term.floors[1] {
            return Err(format!("below the floor {} of its incarnation", term.floors[1]));
        }
        for (member, sent) in self.sent.iter().filter(|(member, _)| self.is_member(*member, at)) {
            let known = sent.iter().filter(|&&(when, _)| when <= at);
            let last = known.map(|&(_, commit)| commit).max();
            if last.is_none_or(|last| last < seen.commit) {
                return Err(format!("above that of member {member}: {last:?}"));
            }
        }
        let bounds = self.controller.bounds.iter();
        match bounds.filter(|bound| self.holds(bound, host, at)).find(|bound| seen.commit > bound.value) {
            Some(bound) => Err(format!("above a value that stands still: {bound:?}")),
            None => Ok(()),
        }
    }

    /// Returns whether a value bounds what a host receives at a time.
    fn holds(&self, bound: &Bound, host: usize, at: Nanos) -> bool {
        let &Bound { keeper, what, since, .. } = bound;
        let mut released = self.controller.released.iter();
        let until = released.find(|&&(when, k, other)| when >= since && (k, other) == (keeper, what));
        if until.is_some_and(|&(until, ..)| until <= at) {
            return false;
        }
        let (below, all) = (self.tree.hosts_below(keeper), 0..self.network.hosts.len());
        let is_below = |link: u16| link != LOOPBACK && usize::from(link) < self.tree.fanout;
        // Members whose commit barriers pass, and the hosts that receive them
        let (members, receivers) = match what {
            Still::Frozen(link) if is_below(link) => (self.tree.hosts_at(keeper, link), all),
            Still::Frozen(link) => (self.tree.hosts_at(keeper, link), below),
            Still::Muted(link) if is_below(link) => (all, self.tree.hosts_at(keeper, link)),
            Still::Muted(_) => (below, all),
        };
        receivers.contains(&host) && members.into_iter().any(|member| self.is_member(member, at))
    }
}
