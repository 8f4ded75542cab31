//! Rights that clients have proven by successful requests. A proof expires, because the switch does not see
//! when a server revokes a right.

use crate::op::Kind;
use switch::Nanos;

/// Number of keys whose proofs are kept
const PROOFS: usize = 4;
/// Number of periods for which a proof is valid
const VALID: u16 = 4;
/// Stamps of a right that was never proven, and of one whose proof has expired
const NEVER: u16 = 0;
const EXPIRED: u16 = 1;

/// Bits of the rights that clients prove.
pub(crate) mod right {
    pub(crate) const WRITE: u8 = 1;
    pub(crate) const ATOMIC: u8 = 4;
}

/// Returns the rights that a request needs for its memory; 0 if it needs none that are tracked.
pub(crate) const fn rights_of(kind: Kind) -> u8 {
    match kind {
        Kind::Write => right::WRITE,
        Kind::Atomic => right::ATOMIC,
        _ => 0,
    }
}

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

/// Rights that a client has proven, by key: the latest.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Proofs([Proof; PROOFS]);

impl Proofs {
    /// Proofs of no right
    pub(crate) const NONE: Self = Self([Proof::NONE; PROOFS]);

    /// Returns whether the client has a valid proof of one right with this key.
    #[inline]
    pub(crate) fn has(&self, rkey: u32, rights: u8, period: Period) -> bool {
        self.0.iter().any(|proof| proof.rkey == rkey && period.is_valid(proof.stamp_of(rights)))
    }

    /// Returns whether the client has ever proven one right with this key. On a shared QP, each
    /// acknowledgement shows that the server still accepts the key.
    #[inline]
    pub(crate) fn had(&self, rkey: u32, rights: u8) -> bool {
        self.0.iter().any(|proof| proof.rkey == rkey && proof.stamp_of(rights) != NEVER)
    }

    /// Returns whether the client has a valid proof of any right.
    pub(crate) fn has_any(&self, period: Period) -> bool {
        self.0.iter().any(|proof| period.is_valid(proof.write) || period.is_valid(proof.atomic))
    }

    /// Returns whether a proof would add nothing.
    pub(crate) fn includes(&self, proof: Proof) -> bool {
        self.0.iter().any(|own| {
            own.rkey == proof.rkey
                && (proof.write == NEVER || own.write == proof.write)
                && (proof.atomic == NEVER || own.atomic == proof.atomic)
        })
    }

    /// Adds a proof, in place of the oldest key if its key is new.
    pub(crate) fn add(&mut self, proof: Proof) {
        let known = self.0.iter_mut().find(|own| own.rkey == proof.rkey && **own != Proof::NONE);
        if let Some(own) = known {
            for (own, new) in [(&mut own.write, proof.write), (&mut own.atomic, proof.atomic)] {
                if new != NEVER {
                    *own = new;
                }
            }
        } else {
            self.0.rotate_right(1);
            self.0[0] = proof;
        }
    }

    /// Marks expired proofs before the period numbers wrap.
    pub(crate) fn expire(&mut self, period: Period) {
        for proof in &mut self.0 {
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
    fn proven(proofs: &mut Proofs, proof: Proof) {
        if !proofs.includes(proof) {
            proofs.add(proof);
        }
    }

    #[test]
    fn a_proof_is_valid_for_at_most_its_lifetime_and_at_least_half_of_it() {
        for begin in [0, 1, 2, 3, 1000, 65_534, 65_535, 65_536, 65_537, 70_000] {
            let mut proofs = Proofs::NONE;
            proven(&mut proofs, Proof::new(7, right::WRITE, at(begin)));
            for later in 0..200_000 {
                proofs.expire(at(begin + later));
                let counts = proofs.has(7, right::WRITE, at(begin + later));
                assert!(!counts || later < 4, "from {begin}: after {later} s");
                assert!(counts || later > 1, "from {begin}: after {later} s");
            }
            assert!(proofs.had(7, right::WRITE) && !proofs.had(7, right::ATOMIC));
        }
    }

    #[test]
    fn a_right_that_is_used_again_is_proven_again() {
        let mut proofs = Proofs::NONE;
        for second in 10..100 {
            proven(&mut proofs, Proof::new(7, right::ATOMIC, at(second)));
            assert!(proofs.has(7, right::ATOMIC, at(second + 3)));
            assert!(!proofs.has(7, right::WRITE, at(second)));
        }
    }

    #[test]
    fn a_revocation_expires_all_proofs_once_per_period() {
        let mut proofs = Proofs::NONE;
        let mut period = at(10);
        proven(&mut proofs, Proof::new(7, right::WRITE, period));
        period.skip();
        assert!(!proofs.has(7, right::WRITE, period));
        proven(&mut proofs, Proof::new(7, right::WRITE, period));
        period.skip();
        assert!(proofs.has(7, right::WRITE, period));
        period.advance(Nanos::from_secs(11), PROOF);
        assert!(proofs.has(7, right::WRITE, period));
        period.skip();
        assert!(!proofs.has(7, right::WRITE, period));
    }
}
