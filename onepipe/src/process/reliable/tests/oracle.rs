//! What has to hold of a run, asked of what the applications have seen.

use super::super::super::{Message, Refusal};
use super::network::{Host, Life, Network, unwrap};
use std::collections::{BTreeMap, BTreeSet};

/// Message that an application has received.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Delivery {
    time: u64,
    src: u8,
    incarnation: u32,
    serial: u32,
    part: u8,
    is_reliable: bool,
}

impl Delivery {
    const HEADER: usize = 11;

    /// Returns the start of a message's payload, by which it is recognised.
    pub(super) fn header(src: u8, incarnation: u32, is_reliable: bool, serial: u32, part: u8) -> Vec<u8> {
        let mut payload = vec![src, part, is_reliable.into()];
        payload.extend_from_slice(&incarnation.to_be_bytes());
        payload.extend_from_slice(&serial.to_be_bytes());
        payload
    }

    pub(super) fn of(message: &Message) -> Self {
        let payload = &message.payload;
        let number = |at: usize| u32::from_be_bytes(payload[at..at + 4].try_into().unwrap());
        let [src, part, is_reliable] = payload[..3] else { unreachable!("a header") };
        assert_eq!(message.src.0, u32::from(src));
        assert!(payload[Self::HEADER..].iter().all(|&byte| byte == part), "the payload was changed");
        let (incarnation, serial) = (number(3), number(7));
        let time = unwrap(message.timestamp);
        Self { time, src, incarnation, serial, part, is_reliable: is_reliable == 1 }
    }
}

/// Result of a scattering that was reported to its sender.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    Unknown,
    Committed,
    Recalled,
}

/// Reliable scattering that was accepted.
#[derive(Debug)]
pub(super) struct Sent {
    /// (process, incarnation) of the receiver of each message
    pub(super) receivers: Vec<(u8, u32)>,
    pub(super) fate: Fate,
    pub(super) time: Option<u64>,
    /// Number of times that it was reported as settled
    pub(super) reports: u32,
}

impl Network {
    /// Returns the number of scatterings committed and recalled, of packets sent again, of recalls stored, and of
    /// processes that have recovered and joined again.
    pub(super) fn totals(&self) -> [u64; 6] {
        let of = |fate| {
            let sent = self.hosts.iter().flat_map(|host| host.sent.values());
            sent.filter(|sent| sent.fate == fate).count() as u64
        };
        let repeated = self.hosts.iter().map(|host| host.process.counters().repeated.get()).sum();
        let recovered = self.hosts.iter().filter(|host| host.life == Life::Recovered).count() as u64;
        let joined = self.hosts.iter().filter(|host| host.incarnation > 1).count() as u64;
        [of(Fate::Committed), of(Fate::Recalled), repeated, self.controller.stored(), recovered, joined]
    }

    /// Checks the run as a whole.
    pub(super) fn check(&self) -> Result<(), String> {
        for host in &self.hosts {
            check_order(host)?;
        }
        self.check_counters()?;
        self.check_timestamps()?;
        for host in &self.hosts {
            for (&serial, sent) in &host.sent {
                self.check_scattering(host, serial, sent)?;
            }
        }
        Ok(())
    }

    /// No receiver has refused what its sender was granted, or what the commit barrier has passed.
    pub(super) fn check_counters(&self) -> Result<(), String> {
        self.hosts.iter().try_for_each(check_counters)
    }

    /// Nobody delivers a message of a failed process above its T_P.
    fn check_timestamps(&self) -> Result<(), String> {
        let failed: BTreeMap<_, _> = self.controller.timestamps().collect();
        for host in &self.hosts {
            for delivery in host.delivered.iter().filter(|delivery| delivery.is_reliable) {
                let limit = failed.get(&(delivery.src, delivery.incarnation));
                if limit.is_some_and(|&limit| delivery.time > limit) {
                    return Err(format!("{} delivered {delivery:?} above {limit:?}", host.id));
                }
            }
        }
        Ok(())
    }

    /// Returns whether a receiver has delivered a scattering: all of its messages, or none.
    fn has_delivered(
        &self,
        (id, incarnation): (u8, u32),
        sender: &Host,
        serial: u32,
        count: usize,
    ) -> Result<bool, String> {
        let host = self.hosts.iter().find(|host| (host.id, host.incarnation) == (id, incarnation)).unwrap();
        let is_of = |delivery: &&Delivery| {
            (delivery.src, delivery.incarnation, delivery.serial) == (sender.id, sender.incarnation, serial)
        };
        let delivered = host.delivered.iter().filter(is_of).count();
        // A killed process may have been reading the messages.
        if delivered > 0 && delivered < count && host.life != Life::Killed {
            return Err(format!("{id} delivered {delivered} of {count} messages of {serial}"));
        }
        Ok(delivered > 0)
    }

    fn check_scattering(&self, sender: &Host, serial: u32, sent: &Sent) -> Result<(), String> {
        let what = |problem: &str| Err(format!("scattering {serial} of {}, {sent:?}: {problem}", sender.id));
        let mut by_receiver: BTreeMap<(u8, u32), usize> = BTreeMap::new();
        for receiver in &sent.receivers {
            *by_receiver.entry(*receiver).or_default() += 1;
        }
        let mut correct = BTreeSet::new();
        let mut who = Vec::new();
        for (&receiver, &count) in &by_receiver {
            let delivered = self.has_delivered(receiver, sender, serial, count)?;
            if delivered && sent.fate == Fate::Recalled {
                return what(&format!("recalled, and delivered by {receiver:?}"));
            }
            let host = self.hosts.iter().find(|host| (host.id, host.incarnation) == receiver).unwrap();
            if matches!(host.life, Life::Live | Life::Recovered) {
                correct.insert(delivered);
                who.push((receiver, host.life, delivered));
            }
        }
        if correct.len() > 1 {
            return what(&format!("delivered by some receivers only: {who:?}"));
        }
        if sent.fate == Fate::Committed && correct.contains(&false) {
            return what("committed, and not delivered");
        }
        if sender.life == Life::Live && (sent.fate == Fate::Unknown || sent.reports != 1) {
            return what("no fate, or several");
        }
        if sent.fate == Fate::Recalled && !self.controller.has_failures() {
            return what("recalled without a failure");
        }
        Ok(())
    }
}

/// One order, and nothing twice.
fn check_order(host: &Host) -> Result<(), String> {
    let position = |delivery: &Delivery| (delivery.time, delivery.src, delivery.part);
    for pair in host.delivered.windows(2) {
        if position(&pair[0]) >= position(&pair[1]) {
            return Err(format!("{} delivered {:?} before {:?}", host.id, pair[0], pair[1]));
        }
    }
    Ok(())
}

fn check_counters(host: &Host) -> Result<(), String> {
    let counters = host.process.counters();
    for why in [Refusal::Window, Refusal::BelowCommit, Refusal::Recall] {
        if counters.refused(why) > 0 {
            return Err(format!("{} refused packets: {why}", host.id));
        }
    }
    if counters.recalled_late.get() > 0 {
        return Err(format!("{} recalled what was delivered", host.id));
    }
    Ok(())
}
