//! Resources that a node shares among its groups.

use crate::depth::Depth;
use core::net::IpAddr;
use rnic::{Buffer, Cq, Mr, Pd, QpInit, Rnic};
use std::collections::BTreeMap;
use switch::Rng;

/// Resources that a node shares among its groups.
#[derive(Debug)]
pub(crate) struct Resources {
    pub(crate) pd: Pd,
    pub(crate) cq: Cq,
    /// Ready words, which other members write by RDMA.
    pub(crate) ready_words: (Buffer, Mr),
    pub(crate) free_ready_words: Vec<u32>,
    pub(crate) rng: Rng,
    /// By queue pair number: the group to which the queue pair belongs, and its use there.
    pub(crate) uses: BTreeMap<u32, (u32, QpUse)>,
    pub(crate) ack_timeout: u8,
    pub(crate) retry_count: u8,
    pub(crate) own: IpAddr,
    /// Planted bug
    pub(crate) bug: Option<crate::Bug>,
}

/// Use of a group's queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum QpUse {
    /// Exchanges blocks with the neighbour at this index.
    Neighbour(usize),
    /// At the root: sends blocks to a switch that copies them, by index of the P4CE group.
    ToSwitch(usize),
    /// Receives the root's blocks from a switch.
    FromSwitch,
}

/// Virtual address of the first ready word.
pub(crate) const READY_VA: u64 = 0x5244_0000_0000;
/// Bytes of a ready word.
pub(crate) const READY_WORD_LEN: usize = 8;

impl Resources {
    /// Returns whether this bug was planted. Release builds have no bugs.
    #[inline]
    pub(crate) fn has_bug(&self, bug: crate::Bug) -> bool {
        cfg!(debug_assertions) && self.bug == Some(bug)
    }

    pub(crate) fn ready_word(&self, nic: &Rnic, index: u32) -> u64 {
        let at = index as usize * READY_WORD_LEN;
        let bytes = nic
            .bytes(self.ready_words.0)
            .get(at..at + READY_WORD_LEN)
            .and_then(|bytes| bytes.try_into().ok());
        bytes.map_or(0, u64::from_be_bytes)
    }

    pub(crate) fn queue_pair(&self, depth: Depth) -> QpInit {
        QpInit::rc(self.pd, self.cq, depth.send, depth.recv)
    }
}
