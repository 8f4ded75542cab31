//! What has to hold in the smallest worlds.

use super::cell::Cell;
use crate::machine::tests::members::host::{Fate, Host};
use crate::record::{Image, MemberState, Stage};
use onepipe::{ProcessId, Timestamp};
use std::collections::{BTreeMap, BTreeSet};

type Failures = BTreeMap<(u32, u32), u64>;

/// Returns the time of each incarnation that has failed.
pub(super) fn failed(image: &Image) -> Failures {
    let failed = image.cases.values().flat_map(|case| &case.failed);
    failed.map(|failed| ((failed.id.0, failed.incarnation.0), failed.time)).collect()
}

/// One time for each incarnation, and no process fails that lives.
pub(super) fn check_written(before: &Failures, image: &Image) -> Result<(), String> {
    let now = failed(image);
    match before.iter().find(|(key, time)| now.get(key) != Some(time)) {
        Some((key, time)) => Err(format!("{key:?} failed at {time} and at {:?}", now.get(key))),
        None => Ok(()),
    }
}

/// One order, and nothing above the time at which its sender failed.
pub(super) fn check_delivered(host: &Host, image: &Image) -> Result<(), String> {
    let position = |n: usize| (host.delivered[n].time, host.delivered[n].body.src.0);
    if let Some(n) = (1..host.delivered.len()).find(|&n| position(n - 1) >= position(n)) {
        return Err(format!("{} receives {:?} too late", host.id, host.delivered[n]));
    }
    let failed = failed(image);
    let is_above = |body: (u32, u32), time| failed.get(&body).is_some_and(|&of| time > of);
    match host.delivered.iter().find(|delivery| is_above(delivery.body.src, delivery.time)) {
        Some(delivery) => Err(format!("{} receives {delivery:?}; failed: {failed:?}", host.id)),
        None => Ok(()),
    }
}

impl Cell {
    /// Returns whether nothing is left to be decided, delivered or called back.
    pub(super) fn is_settled(&self) -> bool {
        let is_member = |&id: &u32| {
            let member = self.image().member(ProcessId(id));
            let incarnation = self.host(id).admitted;
            self.host(id).is_idle()
                && member.is_some_and(|(of, record)| {
                    record.state == MemberState::Member && incarnation == Some(of.0)
                })
        };
        let living = self.living();
        let is_decided = |host: &Host| {
            let failed = self.image().cases.values().flat_map(|case| &case.failed);
            host.admitted.is_none() || failed.into_iter().any(|failed| failed.id.0 == host.id)
        };
        !self.suspects()
            && !self.is_undecided()
            && self.image().cases.values().all(|case| case.stage == Stage::Resumed)
            && living.iter().all(is_member)
            && self.hosts().filter(|host| host.is_dead).all(is_decided)
    }

    /// Checks that no barrier passes the time of a failure before all callbacks have returned.
    pub(super) fn check_barrier(&self, id: u32) -> Result<(), String> {
        let Some(barrier) = self.host(id).process.delivered_up_to() else { return Ok(()) };
        for (&case, record) in &self.image().cases {
            for failed in &record.failed {
                let key = (case, failed.id.0);
                let is_open = self.hosts().any(|host| !host.is_dead && !host.returned.contains(&key));
                if is_open && Timestamp::new(failed.time).precedes(barrier) {
                    return Err(format!("{id} has {barrier} before all are called back for {failed:?}"));
                }
            }
        }
        Ok(())
    }

    /// Checks the end of a run: all or none, as the sender knows; callbacks once, with the stored time.
    pub(super) fn check_end(&self) -> Result<(), String> {
        let failed = failed(self.image());
        let living = self.living();
        if let Some((key, _)) = failed.iter().find(|((id, _), _)| living.contains(id)) {
            return Err(format!("{key:?} failed, and lives"));
        }
        for host in self.hosts() {
            for (serial, sent) in host.sent.values() {
                let receivers: BTreeSet<_> = sent
                    .receivers
                    .iter()
                    .map(|receiver| receiver.0)
                    .filter(|id| living.contains(id))
                    .collect();
                let delivers = |id: &u32| {
                    self.host(*id).delivered.iter().any(|delivery| delivery.body.serial == *serial)
                };
                let count = receivers.iter().filter(|id| delivers(id)).count();
                let is_right = match sent.fate {
                    Fate::Committed => count == receivers.len(),
                    Fate::Recalled => count == 0 && !failed.is_empty(),
                    Fate::Unknown => host.is_dead && (count == 0 || count == receivers.len()),
                };
                if !is_right {
                    return Err(format!("{count} of {receivers:?} deliver {serial}, {sent:?}"));
                }
            }
        }
        self.check_callbacks(&living)
    }

    /// Checks that living processes have been called back for each failure.
    fn check_callbacks(&self, living: &[u32]) -> Result<(), String> {
        let cases = self.image().cases.iter();
        let expected: BTreeSet<_> =
            cases.flat_map(|(&case, record)| record.failed.iter().map(move |of| (case, of.id.0))).collect();
        for &id in living {
            if self.host(id).returned != expected {
                return Err(format!(
                    "{id} is called back for {:?}, not {expected:?}",
                    self.host(id).returned
                ));
            }
        }
        Ok(())
    }
}
