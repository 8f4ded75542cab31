//! The switch's control plane (P4CE, section IV-A). A leader requests a connection to the switch and lists
//! the replicas. The switch connects to each of them, lets the data plane open the group, and only then
//! accepts the leader's connection. A failed setup leaves nothing behind, and the leader receives the reason.
//!
//! ```text
//! leader          switch                replicas
//!   | --- REQ ---> | ------ REQ ----------> |   each one's own
//!   |  (MRA, slow) | <----- REP ----------- |   address, key and size of its memory
//!   |              | (data plane opens)     |
//!   | <-- REP ---- | ------ RTU ----------> |   address 0, the group's key, size
//!   | --- RTU ---> |                        |
//! ```
//!
//! A replica that disconnects is excluded. When a quorum is impossible, or the leader disconnects, the group
//! is closed.
//!
//! This file dispatches events; `setup` opens groups, `close` closes them.

mod close;
mod limits;
mod numbers;
mod setup;
mod status;

pub use limits::Limits;
pub use status::{ControlCounters, GroupStatus};

use crate::function::{Command, Event, P4ce};
use crate::group::GroupId;
use crate::secret::Secret;
use crate::wire::Region;
use core::net::IpAddr;
use limits::Admission;
use numbers::{NumberPool, QueuePairs, Stations};
use rnic::cm::{self, Conn, Event as CmEvent, PortSpace, RemoteReply, RemoteRequest, service_id_of};
use rnic::{Endpoint, Interface};
use rocev2::{Psn, Qpn};
use std::collections::{BTreeMap, VecDeque};
use switch::{Egress, Nanos, PortId, Rng};

/// Configuration of a control plane.
#[derive(Clone, Debug)]
pub struct ControlConfig {
    /// Addresses of the switch
    pub interface: Interface,
    /// Port on which leaders request groups, in `rdma_cm`'s TCP port space
    pub port: u16,
    /// Limit of groups, as for the data plane
    pub groups: usize,
    /// Limit of queue pairs, as for the data plane
    pub queue_pairs: usize,
    /// Number of workers, as for the data plane. A new group gets queue pairs of the worker with the fewest groups
    pub workers: usize,
    /// Limit of replicas in a group, up to [`MAX_MEMBERS`](crate::gather::MAX_MEMBERS)
    pub max_replicas: usize,
    /// Lists of replicas to which requests can refer by number
    pub lists: BTreeMap<u32, Vec<IpAddr>>,
    /// Limits of requests
    pub limits: Limits,
    /// Secret with which leaders authenticate to the switch, and the switch to replicas
    pub secret: Option<Secret>,
    /// Limit of the time in which replicas have to respond
    pub setup_timeout: Nanos,
    /// Limit of packets that a replica may be behind a quorum before it is excluded, at most
    /// [`MAX_LAG`](crate::gather::MAX_LAG)
    pub max_lag: u32,
    /// Seed of keys and initial PSNs
    pub seed: u64,
    /// Initial PSN of leaders, for tests of PSN wrap-around; random if `None`
    pub first_psn: Option<Psn>,
}

/// Role of a connection in its group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    Leader,
    Replica(usize),
}

/// Stage of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// REQs were sent to the replicas.
    Connecting,
    /// All replicas have replied; the data plane is opening the group.
    Opening,
    /// The leader's connection was accepted.
    Open,
    /// The data plane is closing the group.
    Closing,
}

/// A replica of a group.
#[derive(Debug)]
struct Member {
    ip: IpAddr,
    conn: Conn,
    local_qp: Qpn,
    reply: Option<(Box<RemoteReply>, Region)>,
    /// Whether it is written to
    in_group: bool,
}

/// A group, from the leader's request to its end.
#[derive(Debug)]
struct GroupState {
    stage: Stage,
    /// Worker whose instance of the data plane has the group
    worker: usize,
    leader: Conn,
    request: Box<RemoteRequest>,
    local_qp: Qpn,
    /// PSN of the leader's first request
    first: Psn,
    rkey: u32,
    quorum: usize,
    outvote: bool,
    members: Vec<Member>,
    since: Nanos,
    /// Whether the replicas have responded or are no longer waited for, so that the request counts as
    /// answered.
    setup_done: bool,
    /// Whether an MRA was sent to the leader.
    delayed: bool,
}

/// The control plane: a [`switch::Control`].
#[derive(Debug)]
pub struct Control {
    config: ControlConfig,
    endpoint: Endpoint,
    rng: Rng,
    stations: Stations,
    queue_pairs: QueuePairs,
    ids: NumberPool,
    groups: BTreeMap<GroupId, GroupState>,
    roles: BTreeMap<Conn, (GroupId, Role)>,
    admission: Admission,
    commands: VecDeque<(usize, Command)>,
    check_at: Option<Nanos>,
    counters: ControlCounters,
}

impl Control {
    /// Creates a control plane without groups.
    pub fn new(config: ControlConfig) -> Self {
        let cm = cm::Config { capacity: 2 * config.queue_pairs, ..cm::Config::default() };
        let mut endpoint = Endpoint::new(config.interface.clone(), cm, config.seed);
        // There is no other listener yet, so this does not fail.
        _ = endpoint.cm_mut().listen(service_id_of(PortSpace::Tcp, config.port));
        Self {
            endpoint,
            rng: Rng::stream(config.seed, 2),
            stations: Stations::default(),
            queue_pairs: QueuePairs::new(config.queue_pairs, config.workers),
            ids: NumberPool::new(config.groups, config.groups),
            groups: BTreeMap::new(),
            roles: BTreeMap::new(),
            admission: Admission::default(),
            commands: VecDeque::new(),
            check_at: None,
            counters: ControlCounters::default(),
            config,
        }
    }

    fn process_cm_events(&mut self, now: Nanos) {
        while let Some(event) = self.endpoint.cm_mut().poll_event() {
            self.on_cm_event(event, now);
        }
    }

    fn on_cm_event(&mut self, event: CmEvent, now: Nanos) {
        let conn = event.conn();
        let event = match event {
            CmEvent::Requested { request, .. } => return self.on_requested(conn, request, now),
            event => event,
        };
        let Some((id, role)) = self.roles.get(&conn).copied() else { return };
        if event.is_last() {
            self.roles.remove(&conn);
        }
        match (role, event) {
            (Role::Replica(member), CmEvent::Replied { reply, .. }) => {
                self.on_replied(id, member, reply, now);
            }
            (Role::Replica(member), CmEvent::Rejected { reason, .. }) => {
                self.on_replica_gone(id, member, Some(reason), now);
            }
            (
                Role::Replica(member),
                CmEvent::Disconnecting { .. } | CmEvent::Disconnected { .. } | CmEvent::Unreachable { .. },
            ) => self.on_replica_gone(id, member, None, now),
            (
                Role::Leader,
                CmEvent::Rejected { .. }
                | CmEvent::Disconnecting { .. }
                | CmEvent::Disconnected { .. }
                | CmEvent::Unreachable { .. },
            ) => self.close_group(id, None, now),
            (Role::Leader, CmEvent::Established { .. } | CmEvent::Replied { .. })
            | (Role::Replica(_), CmEvent::Established { .. })
            | (_, CmEvent::Requested { .. }) => {}
        }
    }
}

impl switch::Control for Control {
    type Function = P4ce;

    fn on_punt(&mut self, frame: &[u8], port: PortId, now: Nanos) {
        self.stations.learn(frame, port, now);
        self.endpoint.on_frame(frame, now);
        self.process_cm_events(now);
    }

    fn on_event(&mut self, event: Event, now: Nanos) {
        match event {
            Event::Learned(mac, port, seen) if !self.config.limits.has_bug(crate::Bug::UnsharedStations) => {
                let learn = |worker| (worker, Command::Learn(mac, port, seen));
                self.commands.extend((0..self.config.workers).map(learn));
            }
            Event::Learned(..) => {}
            Event::Opened(id, opened) => self.on_opened(id, opened, now),
            Event::Closed(id, _) => self.forget(id),
            Event::Excluded(id, member) => self.on_excluded(id, member, now),
        }
        self.process_cm_events(now);
    }

    fn on_timer(&mut self, now: Nanos) {
        if self.endpoint.next_timer().is_some_and(|at| at <= now) {
            self.endpoint.on_timer(now);
        }
        self.process_cm_events(now);
        if self.check_at.is_some_and(|at| at <= now) {
            self.check_setups(now);
        }
    }

    fn next_timer(&self) -> Option<Nanos> {
        [self.endpoint.next_timer(), self.check_at].into_iter().flatten().min()
    }

    fn poll_command(&mut self) -> Option<(usize, Command)> {
        self.commands.pop_front()
    }

    fn poll_transmit(&mut self, now: Nanos, frame: &mut Vec<u8>) -> Option<Egress> {
        self.endpoint.poll_transmit(now, frame).then(|| self.stations.egress(frame, now))
    }
}
