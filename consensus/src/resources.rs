//! NIC resources of a server: its memory regions, its queue pairs by purpose, and the connections that it
//! has requested.

use super::config::Config;
use p4ce::wire::Region;
use rnic::{Buffer, Cq, Mr, Pd, QpInit};
use rocev2::Qpn;
use switch::Nanos;

/// Virtual address of the control words
pub(super) const CONTROL_VA: u64 = 0x1000_0000;
/// Virtual address of the log
pub(super) const LOG_VA: u64 = 0x2000_0000;
/// Virtual address of the memory into which control words and logs of other servers are read
pub(super) const SCRATCH_VA: u64 = 0x3000_0000;
/// A connection that this server has requested.
#[derive(Clone, Copy, Debug)]
pub(super) struct Outgoing {
    pub(super) qpn: Qpn,
    pub(super) remote: Option<Region>,
    pub(super) since: Nanos,
}

impl Outgoing {
    /// Returns whether it was requested more than `span` ago.
    pub(super) fn is_older_than(&self, now: Nanos, span: Nanos) -> bool {
        now.since(self.since) > span
    }
}

/// Purpose of a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum QpRole {
    /// We read this server's control words.
    Watch(u8),
    /// We write this server's log.
    Write(u8),
    /// The switch writes the logs of our group's members.
    Group,
    /// The switch writes our log.
    Joined,
    /// Another server reads our control words.
    Watched,
    /// Another server writes our log.
    Written,
}

/// NIC resources of a server.
#[derive(Debug)]
pub(super) struct Resources {
    pub(super) pd: Pd,
    pub(super) cq: Cq,
    pub(super) control: (Buffer, Mr),
    /// The log; the key is for reading it locally, to send entries
    pub(super) log: (Buffer, Mr),
    pub(super) scratch: (Buffer, Mr),
}

/// Control words: heartbeat, promised term, decided, applied, incarnation, membership; then the incarnations
/// of all servers at bootstrap
pub(super) const WORDS: usize = 6;

/// Returns the length of the control words in bytes.
pub(super) const fn control_len(servers: usize) -> usize {
    (WORDS + servers) * 8
}

pub(super) fn queue_pair(resources: &Resources, depth: usize) -> QpInit {
    QpInit::rc(resources.pd, resources.cq, depth, 1)
}

pub(super) fn log_scratch_va(config: &Config, server: u8) -> u64 {
    let count = config.servers.len();
    SCRATCH_VA + (count * control_len(count) + usize::from(server) * config.layout.log_len()) as u64
}

pub(super) fn log_scratch<'a>(config: &Config, scratch: &'a [u8], server: u8) -> &'a [u8] {
    let at = (log_scratch_va(config, server) - SCRATCH_VA) as usize;
    &scratch[at..at + config.layout.log_len()]
}
