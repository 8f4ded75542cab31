//! Windows: how many bytes a receiver holds of each sender's messages. What it grants to all senders together
//! is at most its buffer, so no packet that was granted is ever refused for lack of room (1Pipe, section 6.1).

use super::super::config::{Config, PACKET_COST};

/// Bytes held for each sender, and the bytes granted to each.
#[derive(Clone, Debug)]
pub(super) struct Grants {
    grant: usize,
    /// Bytes held of each peer's messages, of all of its incarnations, until the application has taken them
    held: Box<[usize]>,
    total: usize,
}

impl Grants {
    /// Creates the grants to all peers, and to this process itself.
    pub(super) fn new(config: &Config) -> Self {
        let peers = config.peers.len() + 1;
        Self { grant: config.reliable_grant(), held: vec![0; peers].into(), total: 0 }
    }

    /// Returns the maximum number of packets in flight from one sender.
    pub(super) const fn packets(&self) -> usize {
        self.grant / PACKET_COST
    }

    /// Returns the bytes held for all senders.
    pub(super) const fn total(&self) -> usize {
        self.total
    }

    /// Returns whether a sender was granted `cost` more bytes.
    #[inline]
    pub(super) fn fits(&self, peer: u32, cost: usize) -> bool {
        self.held[peer as usize] + cost <= self.grant
    }

    /// Accounts for bytes that are held.
    #[inline]
    pub(super) fn take(&mut self, peer: u32, cost: usize) {
        self.held[peer as usize] += cost;
        self.total += cost;
    }

    /// Accounts for bytes that are no longer held.
    #[inline]
    pub(super) fn release(&mut self, peer: u32, cost: usize) {
        self.held[peer as usize] -= cost;
        self.total -= cost;
    }

    /// Returns the window of a sender from the first missing packet on. The `ahead` bytes behind that packet
    /// are held, and are part of the window.
    #[inline]
    pub(super) fn window(&self, peer: u32, ahead: usize) -> u32 {
        (self.grant + ahead - self.held[peer as usize]) as u32
    }

    /// Returns whether a sender with this window waits for an update.
    #[inline]
    pub(super) const fn is_small(&self, window: u32) -> bool {
        (window as usize) < self.grant / 2
    }
}

/// Window of a receiver, as its sender knows it. It is none until the receiver has granted one.
#[derive(Clone, Debug, Default)]
pub(super) struct SendWindow {
    /// Bytes granted from `from` on
    window: usize,
    /// Position of the first packet that is not acknowledged
    from: u64,
    is_known: bool,
}

impl SendWindow {
    /// Returns whether the receiver has granted a window.
    pub(super) const fn is_known(&self) -> bool {
        self.is_known
    }

    /// Returns whether the receiver has granted this many bytes, from the first packet that is not
    /// acknowledged on.
    #[inline]
    pub(super) const fn fits(&self, bytes: usize) -> bool {
        self.is_known && bytes <= self.window
    }

    /// Updates the window to the one that the receiver has granted from the position `from` on. ACKs may
    /// overtake one another: at one position a receiver frees bytes only, so the larger window is the later.
    pub(super) fn update(&mut self, from: u64, window: u32) {
        let window = window as usize;
        if from > self.from || !self.is_known {
            (self.from, self.window, self.is_known) = (from, window, true);
        } else if from == self.from {
            self.window = self.window.max(window);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_are_not_lowered_by_acks_that_were_overtaken() {
        let mut window = SendWindow::default();
        assert!(!window.fits(0) && !window.is_known());
        window.update(0, 500);
        window.update(7, 300);
        window.update(0, 900);
        window.update(7, 200);
        assert!(window.fits(300) && !window.fits(301));
        window.update(7, 400);
        assert!(window.fits(400));
        window.update(8, 0);
        assert!(window.fits(0) && !window.fits(1));
    }

    #[test]
    fn grants_to_all_members_are_at_most_the_buffer() {
        let mut config = super::super::tests::config(0, 3);
        (config.reliable_buffer, config.max_members) = (1 << 20, 4);
        let mut grants = Grants::new(&config);
        let all = (0..3).map(|peer| grants.window(peer, 0) as usize).sum::<usize>();
        assert!(all <= config.reliable_buffer, "{all}");
        grants.take(1, 1000);
        assert_eq!(grants.window(1, 400), (1 << 18) - 600);
        assert!(grants.fits(1, (1 << 18) - 1000) && !grants.fits(1, (1 << 18) - 999));
        grants.release(1, 1000);
        assert_eq!(grants.total(), 0);
    }
}
