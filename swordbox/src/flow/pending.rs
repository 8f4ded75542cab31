//! What requests without an acknowledgement will show when they complete.

use super::RemoteRange;
use crate::proof::Proof;
use rocev2::Psn;

/// Pending proof and memory of one connection, and the requests that show neither.
#[derive(Clone, Debug)]
pub(crate) struct Pending {
    /// Proof of a right, valid when everything before this PSN is complete
    proof: Option<(Psn, Proof)>,
    /// Memory that is known to exist when everything before this PSN is complete
    memory: Option<(Psn, RemoteRange)>,
    /// End of the PSNs that the server may have assigned to READ responses: an acknowledgement of an earlier
    /// PSN shows nothing
    read_psns_end: Option<Psn>,
    /// PSN of the last request on the client's own connection whose right was not proven, or whose memory may
    /// not exist
    unproven_request: Option<Psn>,
}

impl Pending {
    pub(super) const NONE: Self =
        Self { proof: None, memory: None, read_psns_end: None, unproven_request: None };

    /// Returns whether a proof is pending.
    pub(super) fn has_proof(&self) -> bool {
        self.proof.is_some()
    }

    /// Notes that the last request before `sent` proves `proof`. None may be pending.
    pub(super) fn begin_proof(&mut self, sent: Psn, proof: Proof) {
        self.proof = Some((sent, proof));
    }

    /// Returns the pending proof if everything before `acked` includes its request.
    pub(super) fn take_proof(&mut self, acked: Psn) -> Option<Proof> {
        self.proof.take_if(|(psn, _)| !acked.precedes(*psn)).map(|(_, proof)| proof)
    }

    /// Returns whether memory is pending.
    pub(crate) fn has_memory(&self) -> bool {
        self.memory.is_some()
    }

    /// Notes that the last request before `sent` accesses memory. None may be pending.
    pub(crate) fn begin_memory(&mut self, sent: Psn, memory: RemoteRange) {
        self.memory = Some((sent, memory));
    }

    /// Returns memory that is now known to exist, since everything before `acked` is complete.
    pub(crate) fn take_memory(&mut self, acked: Psn) -> Option<RemoteRange> {
        self.memory.take_if(|(psn, _)| !acked.precedes(*psn)).map(|(_, memory)| memory)
    }

    /// Discards everything that is pending.
    pub(crate) fn clear(&mut self) {
        (self.proof, self.memory) = (None, None);
    }

    /// Discards what a request shows whose PSN another packet has as well (`takes`, for the PSN behind the
    /// request), unless that packet shows the same.
    pub(crate) fn discard(
        &mut self,
        takes: impl Fn(Psn) -> bool,
        shows_proof: impl Fn(Proof) -> bool,
        shows_memory: impl Fn(RemoteRange) -> bool,
    ) {
        self.proof.take_if(|(behind, proof)| takes(*behind) && !shows_proof(*proof));
        self.memory.take_if(|(behind, memory)| takes(*behind) && !shows_memory(*memory));
    }

    /// Extends the PSNs of READ responses to those before `end`.
    pub(super) fn extend_read_psns(&mut self, end: Psn) {
        self.read_psns_end = Some(self.read_psns_end.map_or(end, |known| known.later(end)));
    }

    /// Returns whether a request's PSN is beyond all PSNs that READ responses may have taken.
    pub(super) fn is_behind_reads(&mut self, psn: Psn) -> bool {
        // Cleared as soon as it is passed, because PSNs wrap.
        self.read_psns_end.take_if(|end| !psn.precedes(*end));
        self.read_psns_end.is_none()
    }

    /// Notes a request whose right is not proven, or whose memory may not exist.
    pub(crate) fn note_unproven(&mut self, psn: Psn) {
        self.unproven_request = Some(psn);
    }

    /// Returns whether this is the last such request.
    pub(crate) fn is_unproven(&self, psn: Psn) -> bool {
        self.unproven_request == Some(psn)
    }
}
