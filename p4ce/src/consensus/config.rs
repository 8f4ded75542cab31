//! What a server is told, and what it tells.

use super::log::Layout;
use super::through::Through;
use crate::secret::{Envelope, Secret};
use core::net::IpAddr;
use rnic::{MemoryError, QpError};
use switch::Nanos;

/// What a server is told about itself and the others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Its number
    pub id: u8,
    /// The addresses of all servers, by their numbers
    pub servers: Vec<IpAddr>,
    /// Where they listen, in `rdma_cm`'s TCP port space
    pub port: u16,
    /// Their logs
    pub layout: Layout,
    /// The time between two heartbeats, and between two looks at the others'
    pub heartbeat: Nanos,
    /// Values that are proposed and not decided at once
    pub window: u64,
    /// How long a NIC waits for an acknowledgement: 4.096 us times two to this
    pub ack_timeout: u8,
    /// And how often it tries again
    pub retry_count: u8,
    /// The switch that replicates, if there is one
    pub through: Option<Through>,
    /// Names this life of the server: another number whenever it begins anew with empty memory (a random one will do)
    pub incarnation: u64,
    /// What a requester of a connection has to know, and the switch, if there is one. The same at all servers
    pub secret: Option<Secret>,
    /// A planted bug
    #[cfg(debug_assertions)]
    pub bug: Option<Bug>,
}

/// Bugs of consensus that the simulator has to find.
#[cfg(debug_assertions)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bug {
    /// The hash of an entry is not looked at: a torn one is taken for whole.
    TornEntry,
    /// A server gives permission in a term that is not later than the one it has promised.
    ForgottenPromise,
    /// A server that sees all others without memory begins without the operator's word.
    BeginsByItself,
    /// The address that a request comes from is not looked at.
    AnySource,
    /// A leader does not ask a server again that it has lost.
    LosesFollower,
    /// A leader counts a server that has lost its memory towards a majority at once.
    CountsBlank,
    /// A leader counts an entry of an earlier term as held, and does not write its own term there.
    OldTermByCount,
    /// A leader does not write the entry behind a snapshot.
    SnapshotGap,
    /// A leader leaves out a part of a snapshot.
    SnapshotHole,
    /// A group begins over what an earlier one has written.
    BeginsOverEntries,
}

#[cfg(debug_assertions)]
impl Bug {
    /// All of them
    pub const ALL: [Self; 10] = [
        Self::TornEntry,
        Self::ForgottenPromise,
        Self::BeginsByItself,
        Self::AnySource,
        Self::LosesFollower,
        Self::CountsBlank,
        Self::OldTermByCount,
        Self::SnapshotGap,
        Self::SnapshotHole,
        Self::BeginsOverEntries,
    ];
}

impl Config {
    /// Servers that have to hold an entry beside the leader: f of 2f + 1
    pub fn quorum(&self) -> usize {
        self.servers.len() / 2
    }

    /// Returns what all servers of a group have in common, hashed for a purpose: addresses and port, the sizes of the
    /// log, and the secret.
    fn derive(&self, purpose: &str) -> [u8; 32] {
        let mut hasher = blake3::Hasher::new_derive_key(purpose);
        let sizes = [self.layout.slots(), self.layout.max_value() as u64, self.layout.max_snapshot() as u64];
        for word in [self.port.into(), self.servers.len() as u64].iter().chain(&sizes) {
            hasher.update(&word.to_le_bytes());
        }
        for server in &self.servers {
            let ip = match server {
                IpAddr::V4(ip) => ip.to_ipv6_mapped(),
                IpAddr::V6(ip) => *ip,
            };
            hasher.update(&ip.octets());
        }
        hasher.update(self.secret.as_ref().map_or(&[], |secret| &secret.bytes()[..]));
        *hasher.finalize().as_bytes()
    }

    /// Returns the key of the hashes in the logs of this group.
    pub(super) fn log_key(&self) -> [u8; 32] {
        self.derive("understudy p4ce 2026-11 consensus log")
    }

    /// Returns a number that servers have in common if they share their configuration.
    pub fn group(&self) -> u64 {
        super::log::word(&self.derive("understudy p4ce 2026-11 consensus group"), 0)
    }

    /// Returns this server's address.
    pub(super) fn own(&self) -> Option<IpAddr> {
        self.servers.get(usize::from(self.id)).copied()
    }

    /// Returns what a request from this server to another host has to carry.
    pub(super) fn to(&self, to: IpAddr) -> Option<Envelope<'_>> {
        Some(Envelope { secret: self.secret.as_ref(), from: self.own()?, to })
    }

    /// Returns what a request from another host to this server has to carry.
    pub(super) fn from(&self, from: IpAddr) -> Option<Envelope<'_>> {
        Some(Envelope { secret: self.secret.as_ref(), from, to: self.own()? })
    }
}

/// What the application is told, in the order of the entries.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decided {
    /// A value is decided.
    Entry {
        /// Its place, counted from 0
        index: u64,
        /// What was proposed
        value: Vec<u8>,
    },
    /// This server lacked too much: its state is now what another one's was.
    Snapshot {
        /// Entries below are in it: the next one has this place.
        next: u64,
        /// What an application gave with [`Server::give_snapshot`]
        state: Vec<u8>,
    },
}

/// Why a value is not proposed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProposeError {
    /// Another server leads, or none does yet
    #[error("this server does not lead")]
    NotLeader,
    /// As many as the window allows are under way
    #[error("too many values are under way")]
    Busy,
    /// Longer than an entry can be
    #[error("the value is too long")]
    TooLong,
}

/// Why a group is not begun.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BootstrapError {
    /// This server has memory that counts
    #[error("this server is a member already")]
    Member,
    /// Another one has: its leader will make this server a member
    #[error("server {0} is a member already: this one waits for the leader to make it a member, too")]
    Begun(u8),
    /// A server is not there, or was not seen for long enough
    #[error("server {0} has not been seen: all servers have to run when the group begins")]
    Unseen(u8),
    /// A server has given a leader that is gone permission to write, and may hold what that one wrote.
    #[error("server {0} may hold entries of a group that is lost: restart it before the group begins")]
    Written(u8),
}

/// Why a server counts for nothing yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Waiting {
    /// All servers run with empty memory: the operator has to say that the group begins, empty
    /// ([`Server::bootstrap`](super::Server::bootstrap)).
    Bootstrap,
    /// No server is a member, and this one has given a leader that is gone permission to write: it has to restart before the
    /// group begins.
    Restart(u8),
    /// This server is a member: when it leads, or another one does, this one becomes a member again.
    Admission(u8),
    /// This server was not seen.
    Server(u8),
    /// This server refuses requests: it has other `servers`, sizes or another secret.
    Refused(u8),
}

impl core::fmt::Display for Waiting {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::Bootstrap => f.write_str("all servers run, and none has begun: bootstrap the group"),
            Self::Restart(server) => {
                write!(
                    f,
                    "server {server} may hold entries of a group that is lost: restart it, then bootstrap the group"
                )
            }
            Self::Admission(server) => {
                write!(f, "server {server} is a member; a leader has to admit this one")
            }
            Self::Server(server) => write!(f, "server {server} has not been seen"),
            Self::Refused(server) => {
                write!(f, "server {server} refuses requests: compare servers, sizes and secret with its own")
            }
        }
    }
}

/// Why a server does not start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StartError {
    /// No room for a queue
    #[error(transparent)]
    Queue(#[from] QpError),
    /// No room for memory
    #[error(transparent)]
    Memory(#[from] MemoryError),
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(tune: impl FnOnce(&mut Config)) -> Config {
        let mut config = Config {
            id: 0,
            servers: (1..=3).map(|n| IpAddr::from([10, 0, 0, n])).collect(),
            port: 7000,
            layout: Layout::new(64, 48, 1000),
            heartbeat: Nanos::from_micros(100),
            window: 8,
            ack_timeout: 5,
            retry_count: 6,
            through: None,
            incarnation: 1,
            secret: None,
            #[cfg(debug_assertions)]
            bug: None,
        };
        tune(&mut config);
        config
    }

    /// What servers of one group agree on, under both names
    fn names(tune: impl FnOnce(&mut Config)) -> (u64, [u8; 32]) {
        let config = config(tune);
        (config.group(), config.log_key())
    }

    #[test]
    fn servers_of_one_group_differ_in_number_and_incarnation_alone() {
        let group = names(|_| {});
        assert_eq!(names(|config| (config.id, config.incarnation) = (2, 77)), group);
        let others = [
            names(|config| config.port += 1),
            names(|config| config.servers.swap(0, 1)),
            names(|config| _ = config.servers.pop()),
            names(|config| config.layout = Layout::new(65, 48, 1000)),
            names(|config| config.layout = Layout::new(64, 56, 1000)),
            names(|config| config.layout = Layout::new(64, 48, 1001)),
            names(|config| config.secret = Some(Secret::new("a secret"))),
            names(|config| config.secret = Some(Secret::new("another secret"))),
        ];
        for (at, other) in others.iter().enumerate() {
            assert!(other.0 != group.0 && other.1 != group.1, "change {at} is of the same group");
        }
        assert_ne!(others[6], others[7], "of one group with two secrets");
    }

    #[test]
    fn a_majority_is_the_leader_and_a_quorum() {
        for (servers, quorum) in [(1, 0), (2, 1), (3, 1), (4, 2), (5, 2), (7, 3)] {
            let servers = (1..=servers).map(|n| IpAddr::from([10, 0, 0, n])).collect();
            assert_eq!(config(|config| config.servers = servers).quorum(), quorum);
        }
    }

    #[test]
    fn an_operator_reads_which_server_is_waited_for() {
        let reasons = [Waiting::Restart(3), Waiting::Admission(3), Waiting::Server(3), Waiting::Refused(3)]
            .map(|waiting| waiting.to_string());
        for (at, reason) in reasons.iter().enumerate() {
            assert!(reason.contains("server 3 "), "{reason}");
            assert!(!reasons[..at].contains(reason), "{reason}");
        }
        assert!(Waiting::Bootstrap.to_string().contains("bootstrap"));
    }
}
