//! What has to hold, asked of what applications have seen and of what was stored.

use super::System;
use super::host::{Call, Delivery, Fate, Host, Life, Sent};
use super::message::{Endpoint, Service};
use controller::record::{MemberState, Stage};
use onepipe::{ProcessId, Timestamp};
use std::collections::{BTreeMap, BTreeSet};
use switch::Nanos;

/// Time in nanoseconds by which a process's best-effort barrier may be behind its clock
const BARRIER_LAG: i64 = 100_000;

/// What a run had.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Reliable scatterings that were committed
    pub committed: u64,
    /// Reliable scatterings that were recalled
    pub recalled: u64,
    /// Messages of the best-effort service that were delivered
    pub best_effort: u64,
    /// Incarnations of processes that failed
    pub failed: u64,
    /// Processes that recovered as receivers
    pub recovered: u64,
    /// Frames that controllers carried
    pub carried: u64,
    /// Terms of controllers
    pub terms: u64,
    /// Incarnations of representatives
    pub representatives: u64,
}

impl Totals {
    /// Adds those of another run.
    pub fn add(&mut self, other: &Self) {
        self.committed += other.committed;
        self.recalled += other.recalled;
        self.best_effort += other.best_effort;
        self.failed += other.failed;
        self.recovered += other.recovered;
        self.carried += other.carried;
        self.terms += other.terms;
        self.representatives += other.representatives;
    }
}

impl System {
    /// Applies what was stored since.
    ///
    /// # Errors
    /// An incarnation has two times.
    pub(super) fn see_writes(&mut self) -> Result<(), String> {
        let (log, at) = (self.store.log(), self.now());
        for (_, changes) in &log[self.applied..] {
            let (before, left) = (self.failed(), self.left());
            let known: BTreeSet<_> = self.image.cases.keys().copied().collect();
            self.image.apply(changes);
            for (&case, record) in self.image.cases.iter().filter(|(case, _)| !known.contains(case)) {
                record.unfenced.iter().try_for_each(|&id| self.check_unfenced(case, id))?;
            }
            let new = self.image.cases.keys().filter(|case| !known.contains(case));
            self.decided.extend(new.map(|&case| (case, at)));
            self.left().difference(&left).try_for_each(|&left| self.check_departure(left))?;
            let now = self.failed();
            let differs = |(key, time): &(&Endpoint, &u64)| now.get(*key).is_some_and(|now| now != *time);
            if let Some((key, time)) = before.iter().find(differs) {
                return Err(format!("{key:?} failed at {time} and at {}", now[key]));
            }
        }
        self.applied = log.len();
        let unfenced = self.image.cases.values().flat_map(|case| &case.unfenced);
        self.unfenced.extend(unfenced.map(|id| id.0));
        Ok(())
    }

    /// Returns the time of each incarnation that has failed.
    fn failed(&self) -> BTreeMap<Endpoint, u64> {
        let failed = self.image.cases.values().flat_map(|case| &case.failed);
        failed.map(|failed| ((failed.id.0, failed.incarnation.0), failed.time)).collect()
    }

    /// Returns the incarnations that have left, as far as they are stored.
    fn left(&self) -> BTreeSet<Endpoint> {
        let left = self.image.members.iter().filter(|(_, member)| member.state == MemberState::Left);
        left.map(|(&(id, incarnation), _)| (id.0, incarnation.0)).collect()
    }

    /// When it is stored that a process has left, it has delivered all scatterings to it that are not recalled. (A sender
    /// learns that a scattering is committed when its own barrier has passed.)
    fn check_departure(&self, left: Endpoint) -> Result<(), String> {
        let leaver = self.host(left.0 as usize);
        if leaver.process.held_reliable() > 0 {
            // What it reads in one order waits for the best-effort barrier.
            return Ok(());
        }
        let delivered = leaver.lives.iter().flat_map(|life| &life.delivered);
        let delivered: BTreeSet<_> =
            delivered.map(|delivery| (delivery.body.src, delivery.body.serial)).collect();
        let failed = self.failed();
        let has_failed = |host: &Host, incarnation| failed.contains_key(&(host.id, incarnation));
        let lives = self.hosts().filter_map(|host| Some((host, host.lives.last()?)));
        let mut present = lives.filter(|(host, _)| host.admitted.is_some_and(|of| !has_failed(host, of)));
        let is_open = |host: &Host, sent: &Sent| {
            sent.fate == Fate::Unknown
                && Some(sent.src.1) == host.admitted
                && sent.receivers.contains(&left)
                && !delivered.contains(&(sent.src, sent.serial))
        };
        match present.find_map(|(host, life)| life.sent.values().find(|sent| is_open(host, sent))) {
            Some(sent) => Err(format!("{left:?} has left, and has not delivered {sent:?}")),
            None => Ok(()),
        }
    }

    /// Returns the processes that have failed, each with its incarnation and T_P, in their order.
    pub fn failures(&self) -> Vec<(u32, u32, u64)> {
        self.failed().into_iter().map(|((id, incarnation), time)| (id, incarnation, time)).collect()
    }

    /// Returns the number of cases.
    pub fn cases(&self) -> usize {
        self.image.cases.len()
    }

    /// Returns the incarnations that failed in a case in which not all receivers could be stopped: the operator
    /// is alarmed, because their messages may be delivered by some receivers alone.
    fn unsound(&self) -> BTreeSet<Endpoint> {
        let cases = self.image.cases.values().filter(|case| !case.unfenced.is_empty());
        cases.flat_map(|case| &case.failed).map(|failed| (failed.id.0, failed.incarnation.0)).collect()
    }

    /// Returns whether all processes are members, no case is open, and all scatterings have a result.
    pub fn is_settled(&self) -> bool {
        let is_member = |host: &Host| {
            let member = self.image.member(ProcessId(host.id));
            member.is_some_and(|(incarnation, record)| {
                record.state == MemberState::Member && host.admitted == Some(incarnation.0)
            })
        };
        let is_unmanaged = |host: &Host| self.plan.unmanaged == Some(host.id as usize);
        let leader = self.leader();
        leader.is_some_and(|leader| !leader.suspects())
            && self.image.cases.values().all(|case| case.stage == Stage::Resumed)
            && self.hosts().all(|host| (is_unmanaged(host) || is_member(host)) && host.is_idle())
            && self.hosts().all(|host| !host.departure.has_begun() && !host.process.is_waiting())
    }

    /// Returns what is not settled.
    pub(super) fn describe(&self) -> String {
        let host = |host: &Host| {
            let process = &host.process;
            format!(
                "\n{}: incarnation {:?}, {} unsettled, {} held, {} unsettled of best effort, barriers {:?}, commit {:?}, waits for {:?}, stored {:?}",
                host.id,
                host.admitted,
                process.unsettled_reliable(),
                process.held_reliable(),
                process.unsettled(),
                process.barriers(),
                process.delivered_up_to(),
                process.unanswered(),
                self.image.member(ProcessId(host.id)),
            )
        };
        let hosts: String = self.hosts().map(host).collect();
        let keeper = |site: &super::Site| format!("\n{:?}", site.keeper.status());
        let keepers: String = self.sites.values().map(keeper).collect();
        let controller = |controller: &super::Controller| {
            format!("\nleads {}, suspects {}", controller.leads(), controller.suspects())
        };
        let controllers: String = self.controllers.iter().map(controller).collect();
        format!("{hosts}{keepers}{controllers}\n{:?}", self.image.cases)
    }

    fn lives(&self) -> impl Iterator<Item = (u32, &Life)> {
        self.hosts().flat_map(|host| host.lives.iter().map(|life| (host.id, life)))
    }

    /// Returns what the run had.
    pub fn totals(&self) -> Totals {
        let of = |fate| {
            let sent = self.lives().flat_map(|(_, life)| life.sent.values());
            sent.filter(|sent| sent.fate == fate).count() as u64
        };
        let sum = |count: &dyn Fn(&Host) -> u64| self.hosts().map(count).sum::<u64>();
        Totals {
            committed: of(Fate::Committed),
            recalled: of(Fate::Recalled),
            best_effort: self.delivered_between(Service::BestEffort, Nanos::ZERO, Nanos(u64::MAX)),
            failed: self.failed().len() as u64,
            recovered: sum(&|host| host.member.counters().recoveries.get()),
            carried: sum(&|host| host.process.counters().relays_taken.get()),
            terms: self.terms,
            representatives: self.image.reps.len() as u64,
        }
    }

    /// Returns the number of messages of a service that were delivered in a span of the world's time.
    fn delivered_between(&self, service: Service, from: Nanos, until: Nanos) -> u64 {
        let count = |host: &Host| {
            let node = self.network.hosts[host.id as usize];
            let within = |delivery: &&Delivery| {
                let at = self.network.world.when(node, delivery.at);
                delivery.body.service == service && from <= at && at < until
            };
            host.lives.iter().flat_map(|life| &life.delivered).filter(within).count() as u64
        };
        self.hosts().map(count).sum()
    }

    /// Returns the numbers of best-effort and of reliable messages that were delivered in a span.
    pub fn delivered(&self, from: Nanos, until: Nanos) -> [u64; 2] {
        [Service::BestEffort, Service::Reliable].map(|service| self.delivered_between(service, from, until))
    }

    /// Checks the run as a whole.
    ///
    /// # Errors
    /// The first violation.
    pub fn check(&self) -> Result<(), String> {
        self.check_all().map_err(|error| format!("{error}\n{:?}", self.image.cases))
    }

    fn check_all(&self) -> Result<(), String> {
        let (unsound, failed) = (self.unsound(), self.failed());
        let mut sound = failed.clone();
        sound.retain(|key, _| !unsound.contains(key));
        for host in self.hosts() {
            check_once(host)?;
            self.check_barrier(host)?;
            for life in &host.lives {
                check_order(host.id, life)?;
                check_incarnations(host.id, life)?;
                self.check_callbacks(host.id, life)?;
                check_left(host.id, life, &failed)?;
                if !self.unfenced.contains(&host.id) {
                    check_times(host.id, life, &sound)?;
                }
            }
        }
        let mut delivered: BTreeMap<(Endpoint, u32), BTreeSet<Endpoint>> = BTreeMap::new();
        for (_, life) in self.lives() {
            for body in life.delivered.iter().map(|delivery| delivery.body) {
                if body.service == Service::Reliable {
                    delivered.entry((body.src, body.serial)).or_default().insert(body.dst);
                }
            }
        }
        for (_, life) in self.lives() {
            for sent in life.sent.values().filter(|sent| !unsound.contains(&sent.src)) {
                let by = delivered.remove(&(sent.src, sent.serial)).unwrap_or_default();
                self.check_scattering(sent, &by, &failed)?;
            }
        }
        self.check_resumed(&unsound)?;
        self.check_clocks()?;
        delivered.retain(|(src, _), _| !unsound.contains(src));
        match delivered.first_key_value() {
            Some((message, by)) => Err(format!("{message:?} was never sent, and {by:?} deliver it")),
            None => Ok(()),
        }
    }

    /// The best-effort barrier of each process follows the clock when all faults have ended.
    fn check_barrier(&self, host: &Host) -> Result<(), String> {
        let (barrier, _) = host.process.barriers();
        let clock_off = match self.plan.clocks {
            Some(_) => self.clocks_apart(),
            None => self.plan.clock_off_by(),
        };
        let lag = barrier.map(|barrier| Timestamp::new(self.time_of(host)).distance(barrier));
        if lag.is_some_and(|lag| lag < BARRIER_LAG + clock_off as i64) {
            return Ok(());
        }
        Err(format!("the best-effort barrier of {} is behind its clock by {lag:?} ns", host.id))
    }

    /// All receivers that have not lost their memory deliver a scattering, or none does, as its sender knows.
    fn check_scattering(
        &self,
        sent: &Sent,
        by: &BTreeSet<Endpoint>,
        failed: &BTreeMap<Endpoint, u64>,
    ) -> Result<(), String> {
        let is_lost = |&(id, incarnation): &Endpoint| {
            let of = || self.lives().filter(move |&(of, _)| of == id).map(|(_, life)| life);
            let lost = of().any(|life| life.lost.contains(&incarnation));
            let had = of().any(|life| life.incarnations.contains(&incarnation));
            lost || !had || self.unfenced.contains(&id)
        };
        let receivers: Vec<_> = sent.receivers.iter().filter(|receiver| !is_lost(receiver)).collect();
        let count = receivers.iter().filter(|receiver| by.contains(receiver)).count();
        if count != 0 && count != receivers.len() {
            return Err(format!("{receivers:?} differ, {by:?} deliver {sent:?}"));
        }
        match sent.fate {
            Fate::Recalled if !by.is_empty() => Err(format!("{sent:?} was recalled, and {by:?} deliver it")),
            Fate::Committed if count != receivers.len() => {
                Err(format!("{sent:?} was committed, and {by:?} alone deliver it"))
            }
            Fate::Unknown if !failed.contains_key(&sent.src) && self.is_present(sent.src) => {
                Err(format!("{sent:?} has no result"))
            }
            Fate::Recalled if failed.is_empty() => Err(format!("{sent:?} was recalled without a failure")),
            _ => Ok(()),
        }
    }

    /// Returns whether an incarnation is the present one of its process.
    fn is_present(&self, (id, incarnation): Endpoint) -> bool {
        self.host(id as usize).admitted == Some(incarnation)
    }

    /// Nothing above the time of a failure is delivered before the callbacks for it have returned at all members that
    /// have not failed.
    fn check_resumed(&self, unsound: &BTreeSet<Endpoint>) -> Result<(), String> {
        let failed = self.failed();
        let was_admitted = |(id, incarnation): Endpoint| {
            self.host(id as usize).lives.iter().any(|life| life.admitted.contains(&incarnation))
        };
        for (&case, record) in &self.image.cases {
            let sound = |failed: &Endpoint| was_admitted(*failed) && !unsound.contains(failed);
            let of_case = record.failed.iter().map(|failed| (failed.id.0, failed.incarnation.0));
            for of in of_case.filter(sound) {
                let returned = self.hosts().flat_map(|host| {
                    let calls = host.lives.iter().filter_map(|life| life.called.get(&(case, of.0)));
                    let calls =
                        calls.filter(|call| call.is_member && !failed.contains_key(&(host.id, call.by)));
                    calls.filter_map(|call| Some((self.when(host, call.returned?), host.id)))
                });
                let Some((last, by)) = returned.max() else { continue };
                self.check_stands_still(case, failed[&of], last, by)?;
            }
        }
        Ok(())
    }

    /// Checks that nothing above `time` is delivered after the decision and before `until`, when `by` has returned from
    /// its callback.
    fn check_stands_still(&self, case: u64, time: u64, until: Nanos, by: u32) -> Result<(), String> {
        for host in self.hosts().filter(|host| !self.unfenced.contains(&host.id)) {
            let delivered = host.lives.iter().flat_map(|life| &life.delivered);
            let mut reliable = delivered.filter(|delivery| delivery.body.service == Service::Reliable);
            let is_early = |delivery: &&Delivery| {
                let at = self.when(host, delivery.at);
                delivery.time > time && self.decided[&case] < at && at < until
            };
            if let Some(delivery) = reliable.find(is_early) {
                return Err(format!(
                    "{} receives {delivery:?} above {time} at {} ns, and {by} returns from its callback in case {case} at {} ns",
                    host.id,
                    self.when(host, delivery.at).0,
                    until.0,
                ));
            }
        }
        Ok(())
    }

    /// Returns the time of the world at which a host's clock showed a time.
    pub(super) fn when(&self, host: &Host, at: Nanos) -> Nanos {
        self.network.world.when(self.network.hosts[host.id as usize], at)
    }

    /// Applications are called back with the time that was stored.
    fn check_callbacks(&self, id: u32, life: &Life) -> Result<(), String> {
        for (&(case, process), &Call { time, .. }) in &life.called {
            let failed = self.image.cases.get(&case).map(|case| &case.failed);
            let stored = failed.and_then(|failed| failed.iter().find(|failed| failed.id.0 == process));
            if stored.is_none_or(|stored| stored.time != time) {
                return Err(format!(
                    "{id} is called back in case {case} for {process} and {time}; stored is {stored:?}"
                ));
            }
        }
        Ok(())
    }
}

/// No process that has left has failed.
fn check_left(id: u32, life: &Life, failed: &BTreeMap<Endpoint, u64>) -> Result<(), String> {
    match life.left.and_then(|left| failed.get_key_value(&(id, left))) {
        Some(failed) => Err(format!("{failed:?} has left, and failed")),
        None => Ok(()),
    }
}

/// One order, within each service, and of both if they are received together.
fn check_order(id: u32, life: &Life) -> Result<(), String> {
    let mut last: BTreeMap<Service, &Delivery> = BTreeMap::new();
    let mut before: Option<&Delivery> = None;
    let position = |delivery: &Delivery| (delivery.time, delivery.body.src.0);
    for delivery in &life.delivered {
        let of_service = last.insert(delivery.body.service, delivery);
        let of_both = before.replace(delivery).filter(|_| life.merges);
        if of_service.is_some_and(|last| position(last) >= position(delivery))
            || of_both.is_some_and(|last| position(last) > position(delivery))
        {
            return Err(format!("{id} receives {delivery:?} after {of_service:?} and {of_both:?}"));
        }
    }
    Ok(())
}

/// Nothing twice, also after a restart.
fn check_once(host: &Host) -> Result<(), String> {
    let mut seen = BTreeSet::new();
    for delivery in host.lives.iter().flat_map(|life| &life.delivered) {
        let body = delivery.body;
        if !seen.insert((body.service, body.src.0, body.serial)) {
            return Err(format!("{} receives {delivery:?} twice", host.id));
        }
    }
    Ok(())
}

/// Nothing is delivered above the time of its sender's failure.
fn check_times(id: u32, life: &Life, failed: &BTreeMap<Endpoint, u64>) -> Result<(), String> {
    let reliable = life.delivered.iter().filter(|delivery| delivery.body.service == Service::Reliable);
    for delivery in reliable {
        if let Some(&time) = failed.get(&delivery.body.src)
            && delivery.time > time
        {
            return Err(format!("{id} receives {delivery:?}, whose sender failed at {time}"));
        }
    }
    Ok(())
}

/// Messages reach the incarnation for which they are.
fn check_incarnations(id: u32, life: &Life) -> Result<(), String> {
    for delivery in &life.delivered {
        let (to, incarnation) = delivery.body.dst;
        let is_reliable = delivery.body.service == Service::Reliable;
        if to != id || is_reliable && !life.incarnations.contains(&incarnation) {
            return Err(format!("{id} has had {:?}, and receives {delivery:?}", life.incarnations));
        }
    }
    Ok(())
}
