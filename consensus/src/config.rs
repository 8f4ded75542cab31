//! Configuration of a server, its results and its errors.

use super::log::Layout;
use core::net::IpAddr;
use p4ce::SwitchAddress;
use p4ce::secret::{Envelope, Secret};
use rnic::{MemoryError, QpError};
use switch::Nanos;

/// Configuration of a server and its group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Number of this server, the index of its address in `servers`
    pub id: u8,
    /// Addresses of all servers, by number
    pub servers: Vec<IpAddr>,
    /// Port on which the servers listen, in `rdma_cm`'s TCP port space
    pub port: u16,
    /// Layout of the logs
    pub layout: Layout,
    /// Interval between two heartbeats, and between two reads of the other servers' heartbeats
    pub heartbeat: Nanos,
    /// Limit of values that are proposed and not decided yet
    pub window: u64,
    /// Acknowledgement timeout of the connections: 4.096 us times 2^`ack_timeout`
    pub ack_timeout: u8,
    /// Retries of the connections after an acknowledgement timeout
    pub retry_count: u8,
    /// The switch through which entries are replicated, if there is one
    pub switch: Option<SwitchAddress>,
    /// Incarnation of the server: a different number after every restart with empty memory (a random number
    /// suffices)
    pub incarnation: u64,
    /// Secret with which requesters of a connection authenticate, and servers to the switch; the same on all
    /// servers
    pub secret: Option<Secret>,
    /// Planted bug, to check that tests find it; has no effect without debug assertions
    pub bug: Option<Bug>,
}

/// Bugs in the consensus protocol that the simulator has to find.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bug {
    /// The hash of an entry is not checked: a torn entry counts as complete.
    TornEntry,
    /// A server grants permission in a term that is not later than the promised one.
    ForgottenPromise,
    /// A server that finds all servers blank bootstraps the group without the operator's command.
    BootstrapsByItself,
    /// The source address of a request is not checked.
    AnySource,
    /// A leader does not reconnect to a follower that it lost.
    LosesFollower,
    /// A leader counts a blank server towards a majority at once.
    CountsBlank,
    /// A leader counts an entry of an earlier term as held, without writing its own term to it.
    OldTermByCount,
    /// A leader does not write the entry that follows a snapshot.
    SnapshotGap,
    /// A leader omits part of a snapshot.
    SnapshotHole,
    /// A group is bootstrapped although a lost leader has written entries.
    BootstrapsOverEntries,
}

impl Bug {
    /// Every bug.
    pub const ALL: [Self; 10] = [
        Self::TornEntry,
        Self::ForgottenPromise,
        Self::BootstrapsByItself,
        Self::AnySource,
        Self::LosesFollower,
        Self::CountsBlank,
        Self::OldTermByCount,
        Self::SnapshotGap,
        Self::SnapshotHole,
        Self::BootstrapsOverEntries,
    ];
}

impl Config {
    /// Returns whether this bug was planted. Release builds have no bugs.
    #[inline]
    pub(super) fn has_bug(&self, bug: Bug) -> bool {
        cfg!(debug_assertions) && self.bug == Some(bug)
    }

    /// Returns the number of servers other than the leader that have to hold an entry: f of 2f + 1.
    pub fn quorum(&self) -> usize {
        self.servers.len() / 2
    }

    /// Returns a hash of everything that all servers of a group have in common, for a purpose: addresses and
    /// port, the sizes of the log, and the secret.
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

    /// Returns a number that is the same on servers with the same group configuration.
    pub fn group(&self) -> u64 {
        super::log::word(&self.derive("understudy p4ce 2026-11 consensus group"), 0)
    }

    /// Returns this server's address.
    pub(super) fn own(&self) -> Option<IpAddr> {
        self.servers.get(usize::from(self.id)).copied()
    }

    /// Returns the envelope of requests from this server to another host.
    pub(super) fn to(&self, to: IpAddr) -> Option<Envelope<'_>> {
        Some(Envelope { secret: self.secret.as_ref(), from: self.own()?, to })
    }

    /// Returns the envelope of requests from another host to this server.
    pub(super) fn from(&self, from: IpAddr) -> Option<Envelope<'_>> {
        Some(Envelope { secret: self.secret.as_ref(), from, to: self.own()? })
    }
}

/// A result of consensus for the application, in the order of the entries.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decided {
    /// A value was decided.
    Entry {
        /// Index of the entry, counted from 0
        index: u64,
        /// The proposed value
        value: Vec<u8>,
    },
    /// This server lacked more entries than a log holds: the application's state is replaced by that of
    /// another server.
    Snapshot {
        /// Number of entries that the state includes: the index of the next entry
        next: u64,
        /// State that an application passed to [`Server::provide_snapshot`](super::Server::provide_snapshot)
        state: Vec<u8>,
    },
}

/// Why a value is not proposed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProposeError {
    /// Another server leads, or none does yet
    #[error("this server is not the leader; propose at the leader")]
    NotLeader,
    /// The window or the log is full, or no majority follows
    #[error("the window or the log is full, or no majority follows; retry later")]
    Busy,
    /// The value exceeds the layout's limit
    #[error("the value is too long; raise the layout's max_value")]
    TooLong,
}

/// Why a group is not bootstrapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BootstrapError {
    /// This server is a member
    #[error("this server is a member already; the group has been bootstrapped")]
    Member,
    /// Another server is a member: its leader will make this server a member
    #[error("server {0} is a member already; wait until the leader admits this server")]
    OtherMember(u8),
    /// A server does not run, or was not seen for long enough
    #[error("server {0} has not been seen; start all servers before bootstrap")]
    Unseen(u8),
    /// A server has granted permission to a leader that is gone, and may hold entries of that leader.
    #[error("server {0} may hold entries of a group that is lost; restart it before bootstrap")]
    MayHoldEntries(u8),
}

/// What a blank server waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitReason {
    /// All servers run with empty memory: the operator has to bootstrap the group, empty
    /// ([`Server::bootstrap`](super::Server::bootstrap)).
    Bootstrap,
    /// No server is a member, and this one has granted permission to a leader that is gone: it has to restart
    /// before bootstrap.
    Restart(u8),
    /// This server is a member: a leader has to admit the waiting server.
    Admission(u8),
    /// This server has not been seen.
    Server(u8),
    /// This server rejects requests: its `servers`, port, sizes or secret differ.
    Refused(u8),
}

impl core::fmt::Display for WaitReason {
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
    /// The NIC cannot allocate a queue
    #[error(transparent)]
    Queue(#[from] QpError),
    /// The NIC cannot allocate memory
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
            switch: None,
            incarnation: 1,
            secret: None,
            bug: None,
        };
        tune(&mut config);
        config
    }

    /// Returns the group number and the log key.
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
            assert!(other.0 != group.0 && other.1 != group.1, "change {at} gives the same group");
        }
        assert_ne!(others[6], others[7], "two secrets give the same group");
    }

    #[test]
    fn a_quorum_and_the_leader_are_a_majority() {
        for (servers, quorum) in [(1, 0), (2, 1), (3, 1), (4, 2), (5, 2), (7, 3)] {
            let servers = (1..=servers).map(|n| IpAddr::from([10, 0, 0, n])).collect();
            assert_eq!(config(|config| config.servers = servers).quorum(), quorum);
        }
    }

    #[test]
    fn waiting_reasons_name_the_server() {
        let reasons =
            [WaitReason::Restart(3), WaitReason::Admission(3), WaitReason::Server(3), WaitReason::Refused(3)]
                .map(|waiting| waiting.to_string());
        for (at, reason) in reasons.iter().enumerate() {
            assert!(reason.contains("server 3 "), "{reason}");
            assert!(!reasons[..at].contains(reason), "{reason}");
        }
        assert!(WaitReason::Bootstrap.to_string().contains("bootstrap"));
    }
}
