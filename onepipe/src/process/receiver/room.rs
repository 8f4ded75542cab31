//! Room for received messages: bytes buffered until the application has taken them.

use super::super::config::{Config, PACKET_COST};

/// Bytes buffered for all senders, and their limits.
#[derive(Clone, Debug)]
pub(super) struct Room {
    held: usize,
    /// Maximum number of bytes for all senders
    buffer: usize,
    /// Maximum number of bytes for one sender
    window: usize,
}

impl Room {
    pub(super) const fn new(config: &Config) -> Self {
        Self { held: 0, buffer: config.receive_buffer, window: config.receive_window as usize }
    }

    /// Returns the bytes buffered for all senders.
    pub(super) const fn held(&self) -> usize {
        self.held
    }

    /// Returns whether there is room for a packet of this cost, of a sender for which `held` bytes are
    /// buffered, in addition to `entries` entries of the reorder buffer.
    #[inline]
    pub(super) const fn has(&self, cost: usize, held: usize, entries: usize) -> bool {
        held + cost <= self.window && self.has_for_all(cost) && entries < self.buffer / PACKET_COST
    }

    /// Returns whether the buffer for all senders has room for this cost.
    #[inline]
    pub(super) const fn has_for_all(&self, cost: usize) -> bool {
        self.held + cost <= self.buffer
    }

    /// Accounts for a packet of this cost.
    #[inline]
    pub(super) const fn take(&mut self, cost: usize) {
        self.held += cost;
    }

    /// Accounts for bytes that are no longer buffered.
    #[inline]
    pub(super) const fn release(&mut self, cost: usize) {
        self.held -= cost;
    }

    /// Accounts for a sender for which `after` bytes are buffered instead of `before`.
    #[inline]
    pub(super) const fn update(&mut self, before: usize, after: usize) {
        self.held = self.held + after - before;
    }

    /// Returns the bytes left of the window of a sender for which `held` bytes are buffered.
    #[inline]
    pub(super) const fn left_of_window(&self, held: usize) -> usize {
        self.window.saturating_sub(held)
    }

    /// Returns the bytes left of the buffer for all senders.
    pub(super) const fn left_of_buffer(&self) -> usize {
        self.buffer.saturating_sub(self.held)
    }

    /// Returns whether a sender with this window waits for an update: it is less than a quarter of the
    /// largest.
    pub(super) const fn is_small(&self, window: u32) -> bool {
        (window as usize) < self.window / 4
    }

    /// Returns the size of a sender's window.
    pub(super) const fn window(&self) -> usize {
        self.window
    }

    /// Returns the maximum window that is ever advertised.
    pub(super) fn max_window(&self) -> usize {
        self.buffer.min(self.window)
    }
}
