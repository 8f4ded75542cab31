//! Rounds of a delivery: offers to the remaining receivers, the group of each round, and the removal of
//! receivers that failed.

use super::{ObjectSender, ReceiverState, SenderError, Stage};
use crate::config::{GroupConfig, MessageMemory};
use crate::delivery::LossReason;
use crate::delivery::note::{NAME_PART_LEN, Note, Terms, algorithm_number};
use crate::delivery::send::DeliveryReport;
use crate::schedule::{Algorithm, Racks};
use core::net::IpAddr;
use p4ce::SwitchAddress;
use rnic::Rnic;
use std::collections::BTreeSet;
use std::sync::{Arc, PoisonError};
use switch::Nanos;

impl ObjectSender {
    /// Removes receivers, and begins the next round with the others, or ends if none is left.
    pub(super) fn drop_receivers(&mut self, nic: &mut Rnic, lost: &[(IpAddr, LossReason)], now: Nanos) {
        // All at once, so that this takes only one more round.
        for (ip, why) in lost {
            if self.receivers.get(ip).is_some_and(|receiver| !receiver.stored) {
                self.receivers.remove(ip);
                self.lost.push((*ip, *why));
                self.node.release_link(*ip);
            }
        }
        self.start_next_round(nic, now);
    }

    /// Begins the next round, or ends if no receiver is left for it.
    pub(super) fn start_next_round(&mut self, nic: &mut Rnic, now: Nanos) {
        if self.receivers.is_empty() {
            self.end(Err(SenderError::AllReceiversLost(self.lost.clone())));
        } else if self.unfinished().next().is_none() {
            self.conclude();
        } else {
            self.offer(nic, now);
        }
    }

    /// Returns the receivers to be left out because they cannot reach others, as few as possible: repeatedly
    /// the one with the most unreachable peers.
    fn unreachable_receivers(&self) -> Vec<(IpAddr, LossReason)> {
        let is_left = |ip: &IpAddr| self.receivers.contains_key(ip);
        let mut unreachable_pairs = self.unreachable_pairs.clone().unwrap_or_default();
        unreachable_pairs.retain(|(one, other)| is_left(one) && is_left(other));
        let mut lost = Vec::new();
        while let Some((one, other)) = unreachable_pairs.first().copied() {
            let of = |ip: IpAddr| move |pair: &&(IpAddr, IpAddr)| pair.0 == ip || pair.1 == ip;
            let count = |ip: &IpAddr| unreachable_pairs.iter().filter(of(*ip)).count();
            let all: BTreeSet<IpAddr> =
                unreachable_pairs.iter().flat_map(|(one, other)| [*one, *other]).collect();
            let worst = all.into_iter().max_by_key(count).unwrap_or(other);
            let from = unreachable_pairs
                .iter()
                .find(of(worst))
                .map_or(one, |(a, b)| if *a == worst { *b } else { *a });
            lost.push((worst, LossReason::Unreachable(from)));
            unreachable_pairs.retain(|pair| pair.0 != worst && pair.1 != worst);
        }
        lost
    }

    /// Removes a receiver.
    pub(super) fn drop_receiver(&mut self, nic: &mut Rnic, ip: IpAddr, why: LossReason, now: Nanos) {
        let is_stored = |receiver: &ReceiverState| receiver.stored;
        if self.stage == Stage::Over || self.receivers.get(&ip).is_none_or(is_stored) {
            return;
        }
        self.receivers.remove(&ip);
        self.lost.push((ip, why));
        self.node.release_link(ip);
        if self.receivers.is_empty() {
            return self.end(Err(SenderError::AllReceiversLost(self.lost.clone())));
        }
        match self.stage {
            Stage::Connecting(_) => self.offer_if_all_are_reached(nic, now),
            Stage::Offering(_) => self.start_next_round(nic, now),
            // The failure of the group is reported by an event; if the receiver is no member, the group is
            // not affected.
            Stage::Sending => _ = self.node.abandon_group(nic, self.round, now),
            Stage::Storing => self.conclude(),
            Stage::Over => {}
        }
    }

    pub(super) fn offer_if_all_are_reached(&mut self, nic: &mut Rnic, now: Nanos) {
        let all = self.receivers.values().all(|receiver| receiver.reached);
        if all && matches!(self.stage, Stage::Connecting(_)) {
            self.offer(nic, now);
        }
    }

    /// Returns the switch that copies this round's blocks, if any.
    fn switch(&self) -> Option<SwitchAddress> {
        self.config.switch.filter(|_| self.config.algorithm == Algorithm::InNetwork)
    }

    fn rack(&self, ip: IpAddr) -> u32 {
        self.racks.get(&ip).copied().unwrap_or_default()
    }

    /// Begins a round: offers the object to all remaining receivers, and sends them the list of members.
    fn offer(&mut self, nic: &mut Rnic, now: Nanos) {
        let max_rounds = 2 * self.config.receivers.len() as u32 + 4;
        if self.round >= max_rounds {
            return self.end(Err(SenderError::Rounds(self.round)));
        }
        self.round += 1;
        self.stage = Stage::Offering(now + self.config.patience);
        (self.open, self.finished) = (false, false);
        let name = self.config.name.as_bytes();
        let members = self.members();
        // The racks of the remaining members.
        let racks: Vec<u32> = members.iter().map(|ip| self.rack(*ip)).collect();
        if let Algorithm::Hybrid(of) = &mut self.config.algorithm
            && let Ok(left) = Racks::new(&racks)
        {
            *of = left;
        }
        let terms = Terms {
            round: self.round,
            members: members.len() as u32,
            len: self.config.len,
            segment: self.config.segment_bytes,
            block: self.config.block_bytes,
            window: self.config.window,
            algorithm: algorithm_number(&self.config.algorithm),
            name_len: name.len() as u8,
        };
        // A name has at most 255 bytes, so the offsets of its parts are below 256.
        let parts = name.chunks(NAME_PART_LEN).enumerate().map(|(n, bytes)| {
            let mut part = [0; NAME_PART_LEN];
            part[..bytes.len()].copy_from_slice(bytes);
            Note::Name { at: (n * NAME_PART_LEN) as u8, len: bytes.len() as u8, part }
        });
        let member_notes = (0..).zip(members.iter().zip(racks));
        let member_notes =
            member_notes.map(|(index, (ip, rack))| Note::Member { round: terms.round, index, rack, ip: *ip });
        let switch = self.switch().map(|switch| Note::Switch { round: terms.round, switch });
        let switch = switch.filter(|_| !self.node.has_bug(crate::Bug::SwitchNoteOmitted));
        let notes: Vec<_> = parts.chain([Note::Offer(terms)]).chain(switch).chain(member_notes).collect();
        for (ip, receiver) in self.receivers.iter_mut().filter(|(_, receiver)| !receiver.stored) {
            receiver.have = None;
            for note in &notes {
                self.node.send_note(nic, *ip, note.to_bytes());
            }
        }
    }

    /// Starts the round's group at the lowest number of segments, if all receivers have reported theirs.
    pub(super) fn begin(&mut self, nic: &mut Rnic, now: Nanos) {
        let have = self.unfinished().map(|(_, receiver)| receiver.have);
        let Some(first) = have.collect::<Option<Vec<u64>>>().and_then(|all| all.into_iter().min()) else {
            return;
        };
        let unreachable = self.unreachable_receivers();
        if !unreachable.is_empty() {
            return self.drop_receivers(nic, &unreachable, now);
        }
        (self.next, self.stage, self.last_progress) = (first, Stage::Sending, now);
        for ip in &self.members()[1..] {
            self.node.send_note(nic, *ip, Note::Start { round: self.round, first }.to_bytes());
        }
        let group = GroupConfig {
            algorithm: self.config.algorithm.clone(),
            block_bytes: self.config.block_bytes,
            switch: self.switch(),
            ..GroupConfig::new(self.round, self.members())
        };
        let complete = Arc::clone(&self.complete);
        let done = move |_: &mut Rnic, memory: MessageMemory, _: u32| {
            complete.lock().unwrap_or_else(PoisonError::into_inner).push(memory);
        };
        let made = self.node.create_group(nic, group, Box::new(|_, _| None), Box::new(done), now);
        if let Err(error) = made {
            self.end(Err(error.into()));
        }
    }

    /// Ends the delivery if all remaining receivers have stored the object.
    pub(super) fn conclude(&mut self) {
        let all = self.receivers.values().all(|receiver| receiver.stored);
        if all && matches!(self.stage, Stage::Offering(_) | Stage::Storing) {
            let stored = self.receivers.keys().copied().collect();
            let algorithm = self.config.algorithm.clone();
            self.end(Ok(DeliveryReport { stored, lost: self.lost.clone(), rounds: self.round, algorithm }));
        }
    }
}
