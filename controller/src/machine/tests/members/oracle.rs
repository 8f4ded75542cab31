//! What has to hold, asked of what applications have seen and of what is stored.

use super::host::{Fate, Host, Sent};
use super::network::Network;
use crate::record::{MemberState, Stage};
use onepipe::ProcessId;
use onepipe::control::Incarnation;
use std::collections::{BTreeMap, BTreeSet};

impl Network {
    /// Applies what was stored since.
    ///
    /// # Errors
    /// An incarnation has two times.
    pub(super) fn see_writes(&mut self) -> Result<(), String> {
        let log = self.store.log();
        for (_, changes) in &log[self.applied..] {
            let before = self.failed();
            self.image.apply(changes);
            let now = self.failed();
            if let Some((key, time)) =
                before.iter().find(|(key, time)| now.get(key).is_some_and(|now| now != *time))
            {
                return Err(format!("{key:?} failed at {time} and at {}", now[key]));
            }
        }
        self.applied = log.len();
        let unfenced = self.image.cases.values().flat_map(|case| &case.unfenced);
        self.unfenced.extend(unfenced.map(|id| id.0));
        Ok(())
    }

    /// Returns the time of each incarnation that has failed.
    fn failed(&self) -> BTreeMap<(u32, u32), u64> {
        let failed = self.image.cases.values().flat_map(|case| &case.failed);
        failed.map(|failed| ((failed.id.0, failed.incarnation.0), failed.time)).collect()
    }

    /// Returns the incarnations that failed in a case in which not all receivers could be stopped: the operator is
    /// alarmed, because their messages may be delivered by some receivers alone.
    fn unsound(&self) -> BTreeSet<(u32, u32)> {
        let cases = self.image.cases.values().filter(|case| !case.unfenced.is_empty());
        cases.flat_map(|case| &case.failed).map(|failed| (failed.id.0, failed.incarnation.0)).collect()
    }

    /// Returns whether no case is open and all present processes are members.
    pub(super) fn is_closed(&self) -> bool {
        let is_member = |id: u32| {
            let member = self.image.member(ProcessId(id));
            member.is_some_and(|(incarnation, record)| {
                record.state == MemberState::Member && self.host(id).admitted == Some(incarnation.0)
            })
        };
        self.image.cases.values().all(|case| case.stage == Stage::Resumed)
            && self.current.keys().all(|&id| is_member(id))
            && !self.is_undecided()
    }

    /// Returns the numbers of scatterings committed and recalled, of incarnations that have failed, of recalls
    /// stored, of recoveries, of frames that controllers have carried, of terms, and of processes that have left.
    pub(super) fn totals(&self) -> [u64; super::TOTALS] {
        let of = |fate| {
            let sent = self.hosts.iter().flat_map(|host| host.sent.values());
            sent.filter(|(_, sent)| sent.fate == fate).count() as u64
        };
        let sum = |count: &dyn Fn(&Host) -> u64| self.hosts.iter().map(count).sum::<u64>();
        let recovered = sum(&|host| host.member.counters().recoveries.get());
        let carried = sum(&|host| host.process.counters().relays_taken.get());
        let stored = self.stored_recalls();
        let failed = self.failed().len() as u64;
        let left = self.hosts.iter().filter(|host| host.left.is_some()).count() as u64;
        [of(Fate::Committed), of(Fate::Recalled), failed, stored, recovered, carried, self.terms, left]
    }

    fn stored_recalls(&self) -> u64 {
        let mut image = crate::record::Image::default();
        let mut seen = BTreeSet::new();
        for (_, changes) in self.store.log() {
            image.apply(&changes);
            for (to, recalls) in &image.recalls {
                seen.extend(recalls.keys().map(|&from| (*to, from)));
            }
        }
        seen.len() as u64
    }

    /// Checks the run as a whole.
    pub(super) fn check(&self) -> Result<(), String> {
        let unsound = self.unsound();
        let mut sound = self.failed();
        sound.retain(|key, _| !unsound.contains(key));
        let failed = self.failed();
        if !self.plan.has_faults && !failed.is_empty() {
            return Err(format!("{failed:?} have failed without a fault"));
        }
        for host in &self.hosts {
            if let Some(left) = host.left.filter(|&left| failed.contains_key(&(host.id, left))) {
                return Err(format!("{} has left and failed as {left}", host.id));
            }
            check_order(host)?;
            check_incarnations(host)?;
            if !self.unfenced.contains(&host.id) {
                check_times(host, &sound)?;
            }
        }
        let mut delivered: BTreeMap<u32, BTreeSet<(u32, u32)>> = BTreeMap::new();
        for delivery in self.hosts.iter().flat_map(|host| &host.delivered) {
            delivered.entry(delivery.body.serial).or_default().insert(delivery.body.dst);
        }
        for host in &self.hosts {
            for (serial, sent) in host.sent.values().filter(|(_, sent)| !unsound.contains(&sent.src)) {
                let none = BTreeSet::new();
                let by = delivered.get(serial).unwrap_or(&none);
                self.check_scattering(*serial, sent, by, &failed)?;
            }
        }
        Ok(())
    }

    /// All receivers that have not lost their memory deliver a scattering, or none does, as its sender knows.
    fn check_scattering(
        &self,
        serial: u32,
        sent: &Sent,
        by: &BTreeSet<(u32, u32)>,
        failed: &BTreeMap<(u32, u32), u64>,
    ) -> Result<(), String> {
        let is_lost = |&(id, incarnation): &(u32, u32)| {
            let lost = self.hosts.iter().any(|host| host.id == id && host.lost.contains(&incarnation));
            let had = self.hosts.iter().any(|host| host.id == id && host.incarnations.contains(&incarnation));
            lost || !had || self.unfenced.contains(&id)
        };
        let receivers: Vec<_> = sent.receivers.iter().filter(|receiver| !is_lost(receiver)).collect();
        let count = receivers.iter().filter(|receiver| by.contains(receiver)).count();
        if count != 0 && count != receivers.len() {
            return Err(format!("{serial}: {receivers:?} differ, {by:?} deliver {sent:?}"));
        }
        match sent.fate {
            Fate::Recalled if !by.is_empty() => Err(format!("{serial} was recalled, and {by:?} deliver it")),
            Fate::Committed if count != receivers.len() => {
                Err(format!("{serial} was committed, and {by:?} alone deliver {sent:?}"))
            }
            Fate::Unknown if !failed.contains_key(&sent.src) && self.lives(sent.src) => {
                Err(format!("{serial} has no result: {sent:?}"))
            }
            Fate::Recalled if failed.is_empty() => Err(format!("{serial} was recalled without a failure")),
            _ => Ok(()),
        }
    }

    fn lives(&self, (id, incarnation): (u32, u32)) -> bool {
        let member = self.image.member(ProcessId(id));
        member.is_some_and(|(present, _)| present == Incarnation(incarnation)) && !self.host(id).is_dead
    }
}

/// One order, and nothing twice.
fn check_order(host: &Host) -> Result<(), String> {
    for pair in host.delivered.windows(2) {
        let position = |n: usize| (pair[n].time, pair[n].body.src.0);
        if position(0) >= position(1) {
            return Err(format!("{} receives {:?} before {:?}", host.id, pair[0], pair[1]));
        }
    }
    Ok(())
}

/// Nothing is delivered above the time of its sender's failure.
fn check_times(host: &Host, failed: &BTreeMap<(u32, u32), u64>) -> Result<(), String> {
    for delivery in &host.delivered {
        if let Some(&time) = failed.get(&delivery.body.src)
            && delivery.time > time
        {
            return Err(format!("{} receives {delivery:?}, whose sender failed at {time}", host.id));
        }
    }
    Ok(())
}

/// Messages reach the incarnation for which they are, and come from one that was a member.
fn check_incarnations(host: &Host) -> Result<(), String> {
    for delivery in &host.delivered {
        let (id, incarnation) = delivery.body.dst;
        if id != host.id || !host.incarnations.contains(&incarnation) {
            return Err(format!("{} has {:?}, and receives {delivery:?}", host.id, host.incarnations));
        }
    }
    Ok(())
}
