//! Limits of the requests for groups. For each request the switch sends a REQ to each of up to 12 hosts.
//! Without limits a host could use the switch to flood other hosts with REQs, and could occupy all groups.

use super::ControlConfig;
use crate::wire::Refusal;
use core::net::IpAddr;
use std::collections::{BTreeMap, BTreeSet};
use switch::Nanos;
use switch::forward::config::Prefix;

/// Limits of requests for groups.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Hosts that may request a group; empty allows all
    pub leaders: Vec<Prefix>,
    /// Hosts that a request may list as replicas, in addition to those of [`ControlConfig::lists`]; empty
    /// allows all
    pub replicas: Vec<Prefix>,
    /// Limit of groups of one leader, including those that are being opened
    pub groups_per_leader: usize,
    /// Limit of requests of one leader within [`window`](Self::window). A request to which the replicas have
    /// not responded yet counts until they have.
    pub requests_per_leader: usize,
    /// Limit of requests of all leaders within [`window`](Self::window)
    pub requests: usize,
    /// Time for which a request counts at least
    pub window: Nanos,
    /// Planted bug, to check that tests find it; has no effect without debug assertions
    pub bug: Option<crate::Bug>,
}

impl Default for Limits {
    /// Allows any host, 16 requests per second of one leader, and 64 of all leaders.
    fn default() -> Self {
        Self {
            leaders: Vec::new(),
            replicas: Vec::new(),
            groups_per_leader: usize::MAX,
            requests_per_leader: 16,
            requests: 64,
            window: Nanos::from_secs(1),
            bug: None,
        }
    }
}

impl Limits {
    /// Returns whether this bug was planted. Release builds have no bugs.
    #[inline]
    pub(super) fn has_bug(&self, bug: crate::Bug) -> bool {
        cfg!(debug_assertions) && self.bug == Some(bug)
    }
}

fn allows(list: &[Prefix], ip: IpAddr) -> bool {
    list.is_empty() || list.iter().any(|prefix| prefix.contains(ip))
}

impl ControlConfig {
    /// Returns whether a host may be a replica of a group.
    pub(super) fn may_be_replica(&self, ip: IpAddr) -> bool {
        allows(&self.limits.replicas, ip) || self.lists.values().any(|list| list.contains(&ip))
    }
}

/// Groups and requests that count for a leader.
#[derive(Clone, Copy, Debug, Default)]
struct Count {
    groups: usize,
    requests: usize,
}

/// Counts requests and groups by leader. The limits bound its size: a leader has an entry only while
/// something counts for it.
#[derive(Debug, Default)]
pub(super) struct Admission {
    leaders: BTreeMap<IpAddr, Count>,
    requests: usize,
    /// Answered requests and the time until which they count, with a number that distinguishes them
    answered: BTreeSet<(Nanos, u64, IpAddr)>,
    next_number: u64,
}

impl Admission {
    /// Admits a request, which counts until [`on_answered`](Self::on_answered) and [`end`](Self::end).
    ///
    /// # Errors
    /// If the leader is not allowed, or a limit is reached.
    pub(super) fn begin(&mut self, leader: IpAddr, limits: &Limits, now: Nanos) -> Result<(), Refusal> {
        if !allows(&limits.leaders, leader) {
            return Err(Refusal::NotALeader);
        }
        while let Some((at, _, leader)) = self.answered.first().copied()
            && at <= now
        {
            self.answered.pop_first();
            self.change(leader, |count| count.requests -= 1);
            self.requests -= 1;
        }
        let count = self.leaders.get(&leader).copied().unwrap_or_default();
        let is_beyond = count.groups >= limits.groups_per_leader
            || count.requests >= limits.requests_per_leader
            || self.requests >= limits.requests;
        let is_beyond = is_beyond && !limits.has_bug(crate::Bug::UnlimitedRequests);
        if is_beyond {
            return Err(Refusal::Busy);
        }
        self.change(leader, |count| (count.groups, count.requests) = (count.groups + 1, count.requests + 1));
        self.requests += 1;
        Ok(())
    }

    /// Withdraws an admitted request for which no replica was contacted.
    pub(super) fn withdraw(&mut self, leader: IpAddr) {
        self.requests -= 1;
        self.change(leader, |count| (count.groups, count.requests) = (count.groups - 1, count.requests - 1));
    }

    /// Ends the setup of a request that began at `began`: replicas have responded, or are no longer waited
    /// for.
    pub(super) fn on_answered(&mut self, leader: IpAddr, began: Nanos, limits: &Limits) {
        self.next_number += 1;
        self.answered.insert((began + limits.window, self.next_number, leader));
    }

    /// Removes a group that has ended.
    pub(super) fn end(&mut self, leader: IpAddr) {
        self.change(leader, |count| count.groups -= 1);
    }

    fn change(&mut self, leader: IpAddr, change: impl FnOnce(&mut Count)) {
        let count = self.leaders.entry(leader).or_default();
        change(count);
        if (count.groups, count.requests) == (0, 0) {
            self.leaders.remove(&leader);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEADER: IpAddr = IpAddr::V4(core::net::Ipv4Addr::new(10, 0, 0, 1));
    const OTHER: IpAddr = IpAddr::V4(core::net::Ipv4Addr::new(10, 0, 0, 2));
    const SECOND: Nanos = Nanos::from_secs(1);

    #[test]
    fn requests_count_until_the_window_is_over_and_replicas_have_answered() {
        let limits = Limits { requests_per_leader: 2, requests: 3, ..Limits::default() };
        let mut admission = Admission::default();
        let at = |ms| Nanos::from_millis(ms);
        assert_eq!(admission.begin(LEADER, &limits, at(0)), Ok(()));
        assert_eq!(admission.begin(LEADER, &limits, at(100)), Ok(()));
        assert_eq!(admission.begin(LEADER, &limits, at(200)), Err(Refusal::Busy), "the leader's limit");
        assert_eq!(admission.begin(OTHER, &limits, at(200)), Ok(()));
        assert_eq!(admission.begin(OTHER, &limits, at(200)), Err(Refusal::Busy), "the limit of all leaders");
        // The second request is answered at once and still counts; the first one is never answered.
        admission.on_answered(LEADER, at(100), &limits);
        admission.end(LEADER);
        assert_eq!(admission.begin(LEADER, &limits, at(1099)), Err(Refusal::Busy));
        assert_eq!(admission.begin(LEADER, &limits, at(1100)), Ok(()));
        assert_eq!(admission.begin(LEADER, &limits, at(9000)), Err(Refusal::Busy));
        for began in [at(0), at(1100)] {
            admission.on_answered(LEADER, began, &limits);
            admission.end(LEADER);
        }
        admission.on_answered(OTHER, at(200), &limits);
        admission.end(OTHER);
        assert_eq!(admission.begin(LEADER, &limits, at(9000)), Ok(()));
        admission.on_answered(LEADER, at(9000), &limits);
        admission.end(LEADER);
        _ = admission.begin(OTHER, &limits, at(9000) + SECOND);
        assert_eq!(admission.leaders.len(), 1, "a leader without requests and groups has no entry");
        assert_eq!(admission.requests, 1);
    }

    #[test]
    fn the_groups_of_a_leader_are_limited() {
        let limits = Limits { groups_per_leader: 1, ..Limits::default() };
        let mut admission = Admission::default();
        assert_eq!(admission.begin(LEADER, &limits, Nanos::ZERO), Ok(()));
        admission.on_answered(LEADER, Nanos::ZERO, &limits);
        assert_eq!(admission.begin(LEADER, &limits, SECOND + SECOND), Err(Refusal::Busy));
        assert_eq!(admission.begin(OTHER, &limits, SECOND + SECOND), Ok(()));
        admission.end(LEADER);
        assert_eq!(admission.begin(LEADER, &limits, SECOND + SECOND), Ok(()));
    }

    #[test]
    fn hosts_that_are_not_listed_are_refused() {
        let limits =
            Limits { leaders: vec![Prefix::new(LEADER, 32).expect("a prefix")], ..Limits::default() };
        let mut admission = Admission::default();
        assert_eq!(admission.begin(LEADER, &limits, Nanos::ZERO), Ok(()));
        assert_eq!(admission.begin(OTHER, &limits, Nanos::ZERO), Err(Refusal::NotALeader));
        assert!(!allows(&limits.leaders, "fd00::1".parse().expect("an address")));
    }
}
