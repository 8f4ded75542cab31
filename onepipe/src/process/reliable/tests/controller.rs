//! The controller, played by the test: faults, cases, joins and recoveries. Its messages take a drawn time and
//! are repeated.

use super::super::super::ProcessId;
use super::super::{Failed, Member, StoredRecall, ToController};
use super::network::{Life, Network, Plan, Register, start, unwrap};
use crate::header::Timestamp;
use std::collections::BTreeSet;
use switch::Rng;

/// Fault of a process, at a time.
#[derive(Clone, Copy, Debug)]
struct Fault {
    at: u64,
    id: u8,
    life: Life,
    /// Time until it is detected
    detected_after: u64,
    /// Whether a new incarnation joins.
    restarts: bool,
}

/// Failure that was decided.
#[derive(Clone, Debug)]
struct Case {
    number: u64,
    /// Index of the host that has failed
    host: usize,
    /// T_P, unwrapped
    time: u64,
    /// Hosts that have to answer, those that have discarded, and those that have completed
    needed: BTreeSet<usize>,
    noticed: BTreeSet<usize>,
    completed: BTreeSet<usize>,
    is_resumed: bool,
    restarts: bool,
}

/// Message to or from a host.
#[derive(Clone, Copy, Debug)]
enum Mail {
    Notice(Failed),
    Fence(Timestamp),
    MemberUp(Member),
    Stored(StoredRecall),
    FromHost(ToController),
}

#[derive(Debug)]
pub(super) struct Controller {
    faults: Vec<Fault>,
    undetected: Vec<(u64, usize, bool)>,
    cases: Vec<Case>,
    /// (time of arrival, host, message)
    mail: Vec<(u64, usize, Mail)>,
    stored: Vec<StoredRecall>,
    /// Hosts that join, and the hosts that have not heard of it
    joins: Vec<(usize, BTreeSet<usize>)>,
}

impl Controller {
    /// Draws the faults; at least two processes stay correct.
    pub(super) fn new(count: u8, plan: Plan, rng: &mut Rng) -> Self {
        let failures = if plan.has_failures { rng.between(1, u64::from(count) - 2) } else { 0 };
        let mut faults = Vec::new();
        for id in 0..failures as u8 {
            let life = *rng.pick(&[Life::Killed, Life::Isolated]);
            let at = rng.between(100_000, 500_000);
            let detected_after = *rng.pick(&[2_000, 20_000, 100_000]);
            faults.push(Fault { at, id, life, detected_after, restarts: rng.below(2) == 0 });
        }
        let (undetected, cases, mail, stored, joins) = Default::default();
        Self { faults, undetected, cases, mail, stored, joins }
    }

    pub(super) fn has_failures(&self) -> bool {
        !self.cases.is_empty()
    }

    /// Returns the number of recalls stored.
    pub(super) const fn stored(&self) -> u64 {
        self.stored.len() as u64
    }

    /// Returns the T_P of each (process, incarnation) that has failed.
    pub(super) fn timestamps(&self) -> impl Iterator<Item = ((u8, u32), u64)> {
        self.cases.iter().map(|case| ((case.host as u8, 1), case.time))
    }

    pub(super) fn is_settled(&self, network: &Network) -> bool {
        self.faults.is_empty()
            && self.undetected.is_empty()
            && self.mail.is_empty()
            && self.joins.is_empty()
            && self.cases.iter().all(|case| case.is_resumed)
            && network.hosts.iter().all(|host| host.life != Life::Isolated)
    }
}

impl Network {
    /// Sends a message of the management network, which may be repeated.
    fn mail(&mut self, host: usize, mail: Mail) {
        let repeats = matches!(mail, Mail::Notice(_) | Mail::MemberUp(_)) && self.rng.below(3) == 0;
        for _ in 0..=u32::from(repeats) {
            let at = self.now.0 + self.rng.between(1000, 50_000);
            self.controller.mail.push((at, host, mail));
        }
    }

    pub(super) fn run_controller(&mut self) {
        let now = self.now.0;
        for fault in self.controller.faults.extract_if(.., |fault| fault.at <= now).collect::<Vec<_>>() {
            let host = self.current[usize::from(fault.id)];
            self.hosts[host].life = fault.life;
            self.controller.undetected.push((now + fault.detected_after, host, fault.restarts));
        }
        let detected = self.controller.undetected.extract_if(.., |fault| fault.0 <= now);
        for (_, host, restarts) in detected.collect::<Vec<_>>() {
            self.decide(host, restarts);
        }
        for host in 0..self.hosts.len() {
            while self.hosts[host].life != Life::Killed
                && let Some(message) = self.hosts[host].process.poll_to_controller()
            {
                self.mail(host, Mail::FromHost(message));
            }
        }
        for (_, host, mail) in self.controller.mail.extract_if(.., |mail| mail.0 <= now).collect::<Vec<_>>() {
            self.on_mail(host, mail);
        }
        self.admit();
        self.resume();
        self.recover();
    }

    /// Decides that a host has failed: its register is frozen, and no barrier reaches it any more.
    fn decide(&mut self, host: usize, restarts: bool) {
        let id = self.hosts[host].id;
        let register = &mut self.registers[usize::from(id)];
        (register.is_frozen, register.is_alive) = (true, false);
        let time = register.commit.unwrap_or(start());
        self.hosts[host].is_failed = true;
        for case in &mut self.controller.cases {
            case.needed.remove(&host);
        }
        for (_, waiting) in &mut self.controller.joins {
            waiting.remove(&host);
        }
        let needed: BTreeSet<_> = self.live().into_iter().collect();
        let number = self.controller.cases.len() as u64;
        let incarnation = self.hosts[host].incarnation;
        let timestamp = Timestamp::new(time);
        let failed = Failed { case: number, process: ProcessId(id.into()), incarnation, timestamp };
        for &to in &needed {
            self.mail(to, Mail::Notice(failed));
        }
        if self.hosts[host].life == Life::Isolated {
            self.mail(host, Mail::Fence(timestamp));
        }
        let (noticed, completed) = Default::default();
        let case = Case { number, host, time, needed, noticed, completed, is_resumed: false, restarts };
        self.controller.cases.push(case);
    }

    fn on_mail(&mut self, host: usize, mail: Mail) {
        let now = self.now;
        let state = &mut self.hosts[host];
        if state.life == Life::Killed {
            return;
        }
        match mail {
            Mail::Notice(failed) => state.process.notice_failed(&[failed], now).unwrap(),
            Mail::Fence(timestamp) => state.held = state.process.fence(timestamp),
            Mail::Stored(recall) => _ = state.process.recall_stored(&recall, now),
            Mail::MemberUp(member) => {
                state.process.member_up(member).unwrap();
                for (joining, waiting) in &mut self.controller.joins {
                    if self.hosts[*joining].id == member.id.0 as u8 {
                        waiting.remove(&host);
                    }
                }
            }
            Mail::FromHost(_) if state.is_failed => {}
            Mail::FromHost(ToController::StoreRecall(recall)) => {
                self.controller.stored.push(recall);
                self.mail(host, Mail::Stored(recall));
            }
            Mail::FromHost(ToController::Noticed { case }) => {
                self.controller.cases[case as usize].noticed.insert(host);
            }
            Mail::FromHost(ToController::Recalled { .. }) => {}
            Mail::FromHost(ToController::Completed { case }) => {
                self.controller.cases[case as usize].completed.insert(host);
            }
        }
    }

    /// Admits hosts of which all members have heard. No barrier and no message of an earlier incarnation is
    /// later than the time after which they may stamp.
    fn admit(&mut self) {
        let heard = self.controller.joins.extract_if(.., |(_, waiting)| waiting.is_empty());
        for (host, _) in heard.collect::<Vec<_>>() {
            let times = self.controller.cases.iter().map(|case| case.time);
            let after = times.chain([self.commit]).max().unwrap();
            self.hosts[host].process.admit(Timestamp::new(after), self.now).unwrap();
        }
    }

    /// Removes the links of failed hosts from the commit barrier, once every member has called back and no
    /// other case waits for a discard.
    fn resume(&mut self) {
        let is_noticed = |case: &Case| case.needed.is_subset(&case.noticed);
        if !self.controller.undetected.is_empty() || !self.controller.cases.iter().all(is_noticed) {
            return;
        }
        for n in 0..self.controller.cases.len() {
            let case = &mut self.controller.cases[n];
            if case.is_resumed || !case.needed.is_subset(&case.completed) {
                continue;
            }
            case.is_resumed = true;
            let (id, restarts) = (self.hosts[case.host].id, case.restarts);
            self.registers[usize::from(id)].is_counted = false;
            if restarts && self.controller.cases.iter().all(|case| case.is_resumed) {
                self.restart(id);
            }
        }
    }

    fn restart(&mut self, id: u8) {
        let host = self.host(id, 2);
        let index = self.hosts.len();
        self.hosts.push(host);
        let members: Vec<_> = self.live().into_iter().map(|host| self.member(host)).collect();
        self.current[usize::from(id)] = index;
        self.registers[usize::from(id)] =
            Register { is_alive: true, is_counted: true, ..Register::default() };
        let now = self.now;
        self.hosts[index].process.join(2, &members, now).unwrap();
        let others: BTreeSet<_> = self.live().into_iter().filter(|&host| host != index).collect();
        let member = self.member(index);
        for &other in &others {
            self.mail(other, Mail::MemberUp(member));
        }
        self.controller.joins.push((index, others));
    }

    /// Lets fenced hosts deliver what they had received, once all members have passed it.
    fn recover(&mut self) {
        let members = self.live();
        let least =
            members.iter().filter_map(|&host| self.hosts[host].process.delivered_up_to().map(unwrap)).min();
        let Some(least) = least.filter(|_| self.controller.undetected.is_empty()) else { return };
        let failed = self.controller.cases.iter().map(|case| {
            let process = ProcessId(self.hosts[case.host].id.into());
            Failed { case: case.number, process, incarnation: 1, timestamp: Timestamp::new(case.time) }
        });
        let failed = failed.collect::<Vec<_>>();
        for host in &mut self.hosts {
            let is_ready = host.life == Life::Isolated
                && host.held.is_some_and(|held| held == Timestamp::default() || unwrap(held) <= least);
            if !is_ready {
                continue;
            }
            let is_its = |recall: &&StoredRecall| {
                (recall.receiver.0, recall.incarnation) == (u32::from(host.id), host.incarnation)
            };
            let recalls: Vec<_> = self.controller.stored.iter().filter(is_its).copied().collect();
            assert!(host.process.recover(Some(Timestamp::new(least)), &failed, &recalls, self.now));
            host.life = Life::Recovered;
        }
    }
}
