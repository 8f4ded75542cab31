//! Rights that clients have proven by successful requests. A proof expires, because the switch does not see
//! when a server revokes a right.

use crate::flow::{Flow, right};
use switch::Nanos;

/// Number of periods for which a proof is valid
const VALID: u16 = 4;
/// Stamps of a right that was never proven, and of one whose proof has expired
const NEVER: u16 = 0;
const EXPIRED: u16 = 1;

/// Current quarter of a proof's lifetime, as a number that wraps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Period {
    now: u16,
    /// Number of periods that were skipped, and the period in which the last skip happened
    skipped: u16,
    skipped_in: Option<u64>,
    number: u64,
}

impl Period {
    pub(crate) fn advance(&mut self, now: Nanos, proof: Nanos) {
        self.number = now.0 / (proof.0 / u64::from(VALID)).max(1);
        self.now = (self.number as u16).wrapping_add(self.skipped);
    }

    /// Expires all proofs after a right was revoked. Has an effect at most once per period, so that a client
    /// that has rights and provokes refusals cannot keep other clients from sharing.
    pub(crate) fn skip(&mut self) {
        if self.skipped_in != Some(self.number) {
            self.skipped_in = Some(self.number);
            self.skipped = self.skipped.wrapping_add(VALID);
            self.now = self.now.wrapping_add(VALID);
        }
    }

    /// Returns the stamp of a proof in this period. Reserved stamps are replaced by the preceding number.
    const fn stamp(self) -> u16 {
        if self.now <= EXPIRED { u16::MAX } else { self.now }
    }

    const fn is_valid(self, stamp: u16) -> bool {
        stamp > EXPIRED && self.now.wrapping_sub(stamp) < VALID
    }
}

/// Rights that a client has proven with one key, by the period in which the proving request left.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(crate) struct Proof {
    pub rkey: u32,
    write: u16,
    atomic: u16,
}

impl Proof {
    /// Proof of no right
    pub(crate) const NONE: Self = Self { rkey: 0, write: NEVER, atomic: NEVER };

    /// Returns the proof by a request with `rkey` that uses `rights` and leaves now.
    pub(crate) const fn new(rkey: u32, rights: u8, period: Period) -> Self {
        let stamp = period.stamp();
        Self {
            rkey,
            write: if rights & right::WRITE == 0 { NEVER } else { stamp },
            atomic: if rights & right::ATOMIC == 0 { NEVER } else { stamp },
        }
    }

    /// Returns whether a request with this key and these rights proves all of this.
    pub(crate) fn is_proven_by(self, rkey: u32, rights: u8) -> bool {
        let needed = |stamp, right| stamp == NEVER || rights & right != 0;
        self.rkey == rkey && needed(self.write, right::WRITE) && needed(self.atomic, right::ATOMIC)
    }

    #[inline]
    const fn stamp_of(self, rights: u8) -> u16 {
        if rights == right::WRITE { self.write } else { self.atomic }
    }
}

impl Flow {
    /// Returns whether the client has a valid proof of one right with this key.
    #[inline]
    pub(crate) fn has_proven(&self, rkey: u32, rights: u8, period: Period) -> bool {
        self.proofs.iter().any(|proof| proof.rkey == rkey && period.is_valid(proof.stamp_of(rights)))
    }

    /// Returns whether the client has ever proven one right with this key. On a shared QP, each
    /// acknowledgement shows that the server still accepts the key.
    #[inline]
    pub(crate) fn has_ever_proven(&self, rkey: u32, rights: u8) -> bool {
        self.proofs.iter().any(|proof| proof.rkey == rkey && proof.stamp_of(rights) != NEVER)
    }

    /// Returns whether the client has a valid proof of any right.
    pub(crate) fn has_rights(&self, period: Period) -> bool {
        self.proofs.iter().any(|proof| period.is_valid(proof.write) || period.is_valid(proof.atomic))
    }

    /// Notes that the last request sent proves `proof` when it completes.
    pub(crate) fn begin_proof(&mut self, proof: Proof) {
        let is_known = |own: &Proof| {
            own.rkey == proof.rkey
                && (proof.write == NEVER || own.write == proof.write)
                && (proof.atomic == NEVER || own.atomic == proof.atomic)
        };
        if self.pending_proof.is_none() && self.is_psn_unique() && !self.proofs.iter().any(is_known) {
            self.pending_proof = Some((self.sent, proof));
        }
    }

    /// Stores the pending proof if everything before `acked` includes its request. Returns whether it does.
    pub(crate) fn apply_pending_proof(&mut self) -> bool {
        let Some((psn, proof)) = self.pending_proof else { return false };
        if self.acked.precedes(psn) {
            return false;
        }
        self.pending_proof = None;
        let known = self.proofs.iter_mut().find(|own| own.rkey == proof.rkey && **own != Proof::NONE);
        if let Some(own) = known {
            for (own, new) in [(&mut own.write, proof.write), (&mut own.atomic, proof.atomic)] {
                if new != NEVER {
                    *own = new;
                }
            }
        } else {
            self.proofs.rotate_right(1);
            self.proofs[0] = proof;
        }
        true
    }

    /// Marks expired proofs before the period numbers wrap.
    pub(crate) fn expire(&mut self, period: Period) {
        for proof in &mut self.proofs {
            for stamp in [&mut proof.write, &mut proof.atomic] {
                if *stamp > EXPIRED && !period.is_valid(*stamp) {
                    *stamp = EXPIRED;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PROOF: Nanos = Nanos::from_secs(4);

    fn at(seconds: u64) -> Period {
        let mut period = Period::default();
        period.advance(Nanos::from_secs(seconds), PROOF);
        period
    }

    /// Completes a request with this proof.
    fn proven(flow: &mut Flow, proof: Proof) {
        flow.begin_proof(proof);
        flow.apply_pending_proof();
    }

    #[test]
    fn a_proof_is_valid_for_at_most_its_lifetime_and_at_least_half_of_it() {
        for begin in [0, 1, 2, 3, 1000, 65_534, 65_535, 65_536, 65_537, 70_000] {
            let mut flow = Flow::new(0);
            proven(&mut flow, Proof::new(7, right::WRITE, at(begin)));
            for later in 0..200_000 {
                flow.expire(at(begin + later));
                let counts = flow.has_proven(7, right::WRITE, at(begin + later));
                assert!(!counts || later < 4, "from {begin}: after {later} s");
                assert!(counts || later > 1, "from {begin}: after {later} s");
            }
            assert!(flow.has_ever_proven(7, right::WRITE) && !flow.has_ever_proven(7, right::ATOMIC));
        }
    }

    #[test]
    fn a_right_that_is_used_again_is_proven_again() {
        let mut flow = Flow::new(0);
        for second in 10..100 {
            proven(&mut flow, Proof::new(7, right::ATOMIC, at(second)));
            assert!(flow.has_proven(7, right::ATOMIC, at(second + 3)));
            assert!(!flow.has_proven(7, right::WRITE, at(second)));
        }
    }

    #[test]
    fn a_revocation_expires_all_proofs_once_per_period() {
        let mut flow = Flow::new(0);
        let mut period = at(10);
        proven(&mut flow, Proof::new(7, right::WRITE, period));
        period.skip();
        assert!(!flow.has_proven(7, right::WRITE, period));
        proven(&mut flow, Proof::new(7, right::WRITE, period));
        period.skip();
        assert!(flow.has_proven(7, right::WRITE, period));
        period.advance(Nanos::from_secs(11), PROOF);
        assert!(flow.has_proven(7, right::WRITE, period));
        period.skip();
        assert!(!flow.has_proven(7, right::WRITE, period));
    }
}
