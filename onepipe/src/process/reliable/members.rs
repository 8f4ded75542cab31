//! Members of the reliable service, as the controller has announced them.

use super::super::config::Config;
use super::super::types::ProcessId;
use super::types::{Member, MemberError};

/// Members by the index of the peer.
#[derive(Clone, Debug)]
pub(super) struct Members {
    present: Box<[Option<Member>]>,
    /// Whether the member at this index is leaving, so that nothing more may be sent to it
    leaving: Box<[bool]>,
    /// Latest incarnation of each peer that was a member
    latest: Box<[Option<u32>]>,
    /// Bytes that this process grants to itself
    own_grant: u32,
}

impl Members {
    pub(super) fn new(config: &Config) -> Self {
        let count = config.peers.len();
        Self {
            present: vec![None; count].into(),
            leaving: vec![false; count].into(),
            latest: vec![None; count].into(),
            own_grant: config.reliable_grant() as u32,
        }
    }

    /// Returns the member that is the peer's present incarnation.
    #[inline]
    pub(super) fn get(&self, peer: u32) -> Option<&Member> {
        self.present[peer as usize].as_ref()
    }

    /// Returns the peer's present incarnation if messages may be sent to it.
    pub(super) fn get_receiver(&self, peer: u32) -> Option<&Member> {
        self.get(peer).filter(|_| !self.leaving[peer as usize])
    }

    /// Records that a member is leaving. One that is not known yet is refused from now on: it has not been admitted.
    pub(super) fn set_leaving(&mut self, peer: u32, incarnation: u32) {
        if self.get(peer).is_some_and(|member| member.incarnation == incarnation) {
            self.leaving[peer as usize] = true;
        } else {
            let latest = &mut self.latest[peer as usize];
            *latest = (*latest).max(Some(incarnation));
        }
    }

    /// Returns the bytes that a receiver grants; the one behind the peers is this process itself.
    pub(super) fn grant_of(&self, peer: u32) -> u32 {
        self.present
            .get(peer as usize)
            .map_or(self.own_grant, |member| member.map_or(0, |member| member.grant))
    }

    /// Returns whether the member is known already, and has not failed.
    ///
    /// # Errors
    /// Its incarnation is not later than one that is known.
    pub(super) fn is_known(&self, peer: u32, member: &Member) -> Result<bool, MemberError> {
        let Member { id, incarnation, .. } = *member;
        if self.get(peer).is_some_and(|known| known == member) {
            return Ok(true);
        }
        match self.latest[peer as usize] {
            Some(latest) if incarnation <= latest => Err(MemberError::Old { process: id, incarnation }),
            _ => Ok(false),
        }
    }

    /// Adds a member.
    pub(super) fn add(&mut self, peer: u32, member: Member) {
        self.latest[peer as usize] = Some(member.incarnation);
        self.leaving[peer as usize] = false;
        self.present[peer as usize] = Some(member);
    }

    /// Removes a peer's incarnation and all earlier ones. Returns whether it was the present member.
    pub(super) fn remove(&mut self, peer: u32, incarnation: u32) -> bool {
        let latest = &mut self.latest[peer as usize];
        *latest = (*latest).max(Some(incarnation));
        let is_present = self.get(peer).is_some_and(|member| member.incarnation == incarnation);
        if is_present {
            self.present[peer as usize] = None;
        }
        is_present
    }

    /// Returns the numbers of all members to which messages may be sent.
    pub(super) fn ids(&self) -> impl Iterator<Item = ProcessId> {
        let present = self.present.iter().zip(&self.leaving).filter(|(_, is_leaving)| !**is_leaving);
        present.filter_map(|(member, _)| Some(member.as_ref()?.id))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rocev2::Qpn;

    #[test]
    fn incarnations_only_rise() {
        let mut members = Members::new(&super::super::tests::config(0, 3));
        let member = |incarnation| Member { id: ProcessId(2), incarnation, qpn: Qpn::new(9), grant: 77 };
        assert_eq!(members.is_known(1, &member(4)), Ok(false));
        members.add(1, member(4));
        assert_eq!(
            (members.is_known(1, &member(4)), members.grant_of(1), members.grant_of(0)),
            (Ok(true), 77, 0)
        );
        assert!(members.is_known(1, &member(3)).is_err());
        assert!(!members.remove(1, 3) && members.remove(1, 4) && members.get(1).is_none());
        assert!(members.is_known(1, &member(4)).is_err(), "it has failed");
        assert!(!members.remove(1, 6), "a notice that overtakes the announcement");
        assert!(members.is_known(1, &member(5)).is_err() && members.is_known(1, &member(7)) == Ok(false));
        assert_eq!(members.ids().count(), 0);
    }

    #[test]
    fn nothing_is_sent_to_a_member_that_leaves_or_to_one_that_is_announced_later() {
        let mut members = Members::new(&super::super::tests::config(0, 3));
        let member = |incarnation| Member { id: ProcessId(2), incarnation, qpn: Qpn::new(9), grant: 77 };
        members.add(1, member(4));
        members.set_leaving(1, 4);
        assert!(members.get(1).is_some() && members.get_receiver(1).is_none() && members.ids().count() == 0);
        assert_eq!(members.is_known(1, &member(4)), Ok(true), "its announcement is repeated");
        assert!(members.get_receiver(1).is_none());
        members.set_leaving(1, 6);
        assert!(members.is_known(1, &member(6)).is_err(), "its announcement comes late");
        members.add(1, member(7));
        assert_eq!((members.get_receiver(1), members.ids().count()), (Some(&member(7)), 1));
    }
}
