//! What one host may ask of the switch: a request for a group has the switch send a REQ to each of up to 12 hosts, so it is a
//! way to have others asked by the dozen, and to take all places.

use super::ControlConfig;
use crate::wire::Refusal;
use core::net::IpAddr;
use std::collections::{BTreeMap, BTreeSet};
use switch::Nanos;
use switch::forward::config::Prefix;

/// Limits of requests for groups.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Hosts that may ask for a group; all if there is none
    pub leaders: Vec<Prefix>,
    /// Hosts that a request may list as replicas, beside those of [`ControlConfig::lists`]; all if there is none
    pub replicas: Vec<Prefix>,
    /// Groups that a leader may have at once, those included that are being made
    pub groups_per_leader: usize,
    /// Requests of one leader within [`window`](Self::window) that replicas are asked for. One that replicas have not answered
    /// yet counts for as long as that takes.
    pub requests_per_leader: usize,
    /// The same for all leaders together
    pub requests: usize,
    /// For how long a request counts at least
    pub window: Nanos,
    /// A planted bug, to see whether it is found
    #[cfg(debug_assertions)]
    pub bug: Option<crate::Bug>,
}

impl Default for Limits {
    /// Any host; 16 requests a second of a leader's, 64 of all.
    fn default() -> Self {
        Self {
            leaders: Vec::new(),
            replicas: Vec::new(),
            groups_per_leader: usize::MAX,
            requests_per_leader: 16,
            requests: 64,
            window: Nanos::from_secs(1),
            #[cfg(debug_assertions)]
            bug: None,
        }
    }
}

fn may(list: &[Prefix], ip: IpAddr) -> bool {
    list.is_empty() || list.iter().any(|prefix| prefix.contains(ip))
}

impl ControlConfig {
    /// Whether a host may be a replica of a group.
    pub(super) fn may_be_replica(&self, ip: IpAddr) -> bool {
        may(&self.limits.replicas, ip) || self.lists.values().any(|list| list.contains(&ip))
    }
}

/// What counts for a leader.
#[derive(Clone, Copy, Debug, Default)]
struct Count {
    groups: usize,
    requests: usize,
}

/// Counts requests and groups by leader. Its size is bounded by the limits: a leader has an entry only while something counts
/// for it.
#[derive(Debug, Default)]
pub(super) struct Admission {
    leaders: BTreeMap<IpAddr, Count>,
    requests: usize,
    /// Requests that replicas have answered, and that count until then: with a number that tells them from each other
    answered: BTreeSet<(Nanos, u64, IpAddr)>,
    numbers: u64,
}

impl Admission {
    /// Admits a request, which counts from now on until [`answer`](Self::answer) and [`end`](Self::end).
    ///
    /// # Errors
    /// If the leader is none that may ask, or has asked for too much.
    pub(super) fn begin(&mut self, leader: IpAddr, limits: &Limits, now: Nanos) -> Result<(), Refusal> {
        if !may(&limits.leaders, leader) {
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
        #[cfg(debug_assertions)]
        let is_beyond = is_beyond && limits.bug != Some(crate::Bug::AnyRequest);
        if is_beyond {
            return Err(Refusal::Busy);
        }
        self.change(leader, |count| (count.groups, count.requests) = (count.groups + 1, count.requests + 1));
        self.requests += 1;
        Ok(())
    }

    /// A request was admitted, and no replica is asked for it.
    pub(super) fn withdraw(&mut self, leader: IpAddr) {
        self.requests -= 1;
        self.change(leader, |count| (count.groups, count.requests) = (count.groups - 1, count.requests - 1));
    }

    /// Replicas have answered a request that began at this time, or are no longer waited for.
    pub(super) fn answer(&mut self, leader: IpAddr, began: Nanos, limits: &Limits) {
        self.numbers += 1;
        self.answered.insert((began + limits.window, self.numbers, leader));
    }

    /// A group is over.
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
        assert_eq!(admission.begin(LEADER, &limits, at(200)), Err(Refusal::Busy), "its own limit");
        assert_eq!(admission.begin(OTHER, &limits, at(200)), Ok(()));
        assert_eq!(admission.begin(OTHER, &limits, at(200)), Err(Refusal::Busy), "that of all");
        // The second one is answered at once, and counts all the same; the first one never is.
        admission.answer(LEADER, at(100), &limits);
        admission.end(LEADER);
        assert_eq!(admission.begin(LEADER, &limits, at(1099)), Err(Refusal::Busy));
        assert_eq!(admission.begin(LEADER, &limits, at(1100)), Ok(()));
        assert_eq!(admission.begin(LEADER, &limits, at(9000)), Err(Refusal::Busy));
        for began in [at(0), at(1100)] {
            admission.answer(LEADER, began, &limits);
            admission.end(LEADER);
        }
        admission.answer(OTHER, at(200), &limits);
        admission.end(OTHER);
        assert_eq!(admission.begin(LEADER, &limits, at(9000)), Ok(()));
        admission.answer(LEADER, at(9000), &limits);
        admission.end(LEADER);
        _ = admission.begin(OTHER, &limits, at(9000) + SECOND);
        assert_eq!(admission.leaders.len(), 1, "nothing is kept of a leader without requests and groups");
        assert_eq!(admission.requests, 1);
    }

    #[test]
    fn a_leader_has_so_many_groups_at_once() {
        let limits = Limits { groups_per_leader: 1, ..Limits::default() };
        let mut admission = Admission::default();
        assert_eq!(admission.begin(LEADER, &limits, Nanos::ZERO), Ok(()));
        admission.answer(LEADER, Nanos::ZERO, &limits);
        assert_eq!(admission.begin(LEADER, &limits, SECOND + SECOND), Err(Refusal::Busy));
        assert_eq!(admission.begin(OTHER, &limits, SECOND + SECOND), Ok(()));
        admission.end(LEADER);
        assert_eq!(admission.begin(LEADER, &limits, SECOND + SECOND), Ok(()));
    }

    #[test]
    fn hosts_that_are_not_named_may_not_ask() {
        let limits =
            Limits { leaders: vec![Prefix::new(LEADER, 32).expect("a prefix")], ..Limits::default() };
        let mut admission = Admission::default();
        assert_eq!(admission.begin(LEADER, &limits, Nanos::ZERO), Ok(()));
        assert_eq!(admission.begin(OTHER, &limits, Nanos::ZERO), Err(Refusal::NotALeader));
        assert!(!may(&limits.leaders, "fd00::1".parse().expect("an address")));
    }
}
