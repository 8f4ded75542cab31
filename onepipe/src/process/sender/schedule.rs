//! Order of sending: scatterings that are ready take turns with packets of runs that are not.

use std::collections::VecDeque;

/// Scattering whose last packets are being sent.
#[derive(Clone, Copy, Debug)]
pub(in super::super) struct Finishing {
    /// Index of the scattering
    pub(in super::super) index: u32,
    /// Next run to be sent
    pub(in super::super) run: u32,
    /// Timestamp, unwrapped
    pub(in super::super) time: u64,
}

/// What is to be sent next.
#[derive(Clone, Debug, Default)]
pub(in super::super) struct Schedule {
    /// Scatterings that are ready to be stamped
    ready: VecDeque<u32>,
    finishing: Option<Finishing>,
    /// Peers for which a packet that is not its run's last can be sent
    round: VecDeque<u32>,
    /// Whether the next packet is one of `round`, even if a scattering is ready
    is_round_next: bool,
}

impl Schedule {
    /// Returns whether there is nothing to send.
    #[inline]
    pub(in super::super) fn is_empty(&self) -> bool {
        self.finishing.is_none() && self.ready.is_empty() && self.round.is_empty()
    }

    /// Adds a scattering that is ready to be stamped.
    pub(in super::super) fn add_ready(&mut self, index: u32) {
        self.ready.push_back(index);
    }

    /// Adds a peer for which a packet that is not its run's last can be sent.
    pub(in super::super) fn add_to_round(&mut self, peer: u32) {
        self.round.push_back(peer);
    }

    /// Removes and returns the next scattering to be stamped. The round is next, then.
    pub(in super::super) fn pop_ready(&mut self) -> Option<u32> {
        let index = self.ready.pop_front()?;
        self.is_round_next = true;
        Some(index)
    }

    /// Removes and returns the next peer of the round, unless a scattering is to be sent first.
    pub(in super::super) fn pop_round(&mut self) -> Option<u32> {
        if !self.is_round_next && !self.ready.is_empty() {
            return None;
        }
        let peer = self.round.pop_front()?;
        self.is_round_next = false;
        Some(peer)
    }

    /// Records that a scattering was sent without having been ready: the round is next.
    #[inline]
    pub(in super::super) const fn on_sent(&mut self) {
        self.is_round_next = true;
    }

    /// Starts to send the last packets of a scattering.
    pub(in super::super) const fn begin(&mut self, index: u32, time: u64) {
        self.finishing = Some(Finishing { index, run: 0, time });
    }

    /// Returns the scattering whose last packets are being sent, and the next run, which counts as sent then.
    #[inline]
    pub(in super::super) const fn next_run(&mut self) -> Option<Finishing> {
        let Some(finishing) = &mut self.finishing else { return None };
        let next = *finishing;
        finishing.run += 1;
        Some(next)
    }

    /// Returns the scattering whose last packets are being sent.
    #[inline]
    pub(in super::super) const fn finishing(&self) -> Option<Finishing> {
        self.finishing
    }

    /// Records that all packets of the scattering have been sent.
    pub(in super::super) const fn end(&mut self) {
        self.finishing = None;
    }

    /// Removes and returns all scatterings, the one that is being sent first.
    pub(in super::super) fn take_scatterings(&mut self) -> Vec<u32> {
        let finishing = self.finishing.take().map(|finishing| finishing.index);
        finishing.into_iter().chain(self.ready.drain(..)).collect()
    }
}
