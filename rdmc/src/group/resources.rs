//! What a node shares among its groups.

use core::net::IpAddr;
use rnic::{Buffer, Cq, Mr, Pd, QpInit, Rnic, Transport};
use std::collections::BTreeMap;
use switch::Rng;

/// What a node shares among its groups.
#[derive(Debug)]
pub(crate) struct Resources {
    pub(crate) pd: Pd,
    pub(crate) cq: Cq,
    /// Words in which others write how many blocks they are ready for
    pub(crate) ready: (Buffer, Mr),
    pub(crate) free_words: Vec<u32>,
    pub(crate) chance: Rng,
    /// What the queue pairs for blocks are for: the group, and the neighbour or the switch
    pub(crate) uses: BTreeMap<u32, (u32, Use)>,
    pub(crate) ack_timeout: u8,
    pub(crate) retry_count: u8,
    pub(crate) own: IpAddr,
    #[cfg(debug_assertions)]
    pub(crate) bug: Option<crate::Bug>,
}

/// What a queue pair of a group is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Use {
    /// Blocks between this member and a neighbour, by its place
    Neighbour(usize),
    /// The root: a switch copies what is sent here, by its place
    Lane(usize),
    /// A switch sends here what the root sent to it
    Feed,
}

/// The virtual address of the first word
pub(crate) const READY_VA: u64 = 0x5244_0000_0000;
/// Bytes of a word
pub(crate) const WORD: usize = 8;

/// Requests that may wait at a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Depth {
    pub(crate) send: usize,
    pub(crate) recv: usize,
}

impl Depth {
    /// Words that say that we are ready: two for each block at most
    pub(crate) const fn words(ahead: usize) -> usize {
        3 * ahead + 7
    }

    /// Between two members that exchange blocks
    pub(crate) const fn blocks(ahead: usize) -> Self {
        Self { send: Self::words(ahead) + ahead + 1, recv: ahead + 2 }
    }

    /// From the root to a switch that copies
    pub(crate) const fn lane(ahead: usize) -> Self {
        Self { send: ahead + 1, recv: 1 }
    }

    /// From there to a member
    pub(crate) const fn feed(ahead: usize) -> Self {
        Self { send: 1, recv: ahead + 2 }
    }

    /// Completions that can come of them all
    pub(crate) const fn completions(self) -> usize {
        self.send + self.recv
    }
}

impl Resources {
    pub(crate) fn word(&self, nic: &Rnic, word: u32) -> u64 {
        let at = word as usize * WORD;
        let bytes = nic.bytes(self.ready.0).get(at..at + WORD).and_then(|bytes| bytes.try_into().ok());
        bytes.map_or(0, u64::from_be_bytes)
    }

    pub(crate) fn queue_pair(&self, depth: Depth) -> QpInit {
        QpInit {
            transport: Transport::Rc,
            pd: self.pd,
            send_cq: self.cq,
            recv_cq: self.cq,
            srq: None,
            max_send: depth.send,
            max_recv: depth.recv,
        }
    }
}
