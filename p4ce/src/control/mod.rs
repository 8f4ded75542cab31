//! The switch's control plane (paper IV-A): a leader asks the switch for a connection and names the replicas; the switch
//! connects to each of them, has the data plane open the group, and only then answers the leader. What goes wrong on the
//! way leaves nothing behind, and the leader is told why.
//!
//! ```text
//! leader          switch                replicas
//!   | --- REQ ---> | ------ REQ ----------> |   each its own
//!   |  (MRA, slow) | <----- REP ----------- |   address, key and size of its memory
//!   |              | (data plane opens)     |
//!   | <-- REP ---- | ------ RTU ----------> |   address 0, the group's key, size
//!   | --- RTU ---> |                        |
//! ```
//!
//! A replica that goes away is excluded; when a quorum is impossible, or the leader goes away, the group is over.
//!
//! What comes from outside is sorted here; `setup` makes groups, `end` ends them.

mod end;
mod limits;
mod places;
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
use places::{Places, Stations};
use rnic::cm::{self, Conn, Event as CmEvent, PortSpace, RemoteReply, RemoteRequest, service_id_of};
use rnic::{Endpoint, Interface};
use rocev2::{Psn, Qpn};
use std::collections::{BTreeMap, VecDeque};
use switch::{Chance, Egress, Nanos, PortId};

/// What a control plane is made with.
#[derive(Clone, Debug)]
pub struct ControlConfig {
    /// The switch's addresses
    pub interface: Interface,
    /// The port at which leaders ask for groups, in `rdma_cm`'s TCP port space
    pub port: u16,
    /// As for the data plane
    pub groups: usize,
    /// As for the data plane
    pub queue_pairs: usize,
    /// Replicas of a group at most, up to [`MAX_MEMBERS`](crate::gather::MAX_MEMBERS)
    pub max_replicas: usize,
    /// Lists that requests can name by a number
    pub lists: BTreeMap<u32, Vec<IpAddr>>,
    /// What a host may ask for
    pub limits: Limits,
    /// What a leader has to know, and replicas are shown, if there is a secret
    pub secret: Option<Secret>,
    /// How long replicas may take to answer
    pub setup_timeout: Nanos,
    /// Packets that a replica may be behind a quorum before it is excluded: [`MAX_LAG`](crate::gather::MAX_LAG) at most
    pub max_lag: u32,
    /// For keys, first PSNs and the like
    pub seed: u64,
    /// The first PSN of leaders, for tests of what happens at the end of all PSNs; otherwise by chance
    pub first_psn: Option<Psn>,
}

/// What a connection is to the group that it belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    Leader,
    Replica(usize),
}

/// Where a group stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// Replicas have been asked.
    Connecting,
    /// All have answered; the data plane is opening it.
    Opening,
    /// The leader has been answered.
    Open,
    /// The data plane is closing it.
    Closing,
}

/// A replica, as far as it is known.
#[derive(Debug)]
struct Member {
    ip: IpAddr,
    conn: Conn,
    local_qp: Qpn,
    answer: Option<(Box<RemoteReply>, Region)>,
    /// It is written to
    in_group: bool,
}

/// A group, from the leader's request to its end.
#[derive(Debug)]
struct Pending {
    stage: Stage,
    leader: Conn,
    request: Box<RemoteRequest>,
    local_qp: Qpn,
    /// The leader's first PSN
    first: Psn,
    rkey: u32,
    quorum: usize,
    outvote: bool,
    members: Vec<Member>,
    since: Nanos,
    /// Replicas have answered, or are no longer waited for: it counts as a request that was answered.
    answered: bool,
    /// The leader was asked to wait.
    delayed: bool,
}

/// The control plane.
#[derive(Debug)]
pub struct Control {
    config: ControlConfig,
    endpoint: Endpoint,
    chance: Chance,
    stations: Stations,
    qpns: Places,
    ids: Places,
    groups: BTreeMap<GroupId, Pending>,
    roles: BTreeMap<Conn, (GroupId, Role)>,
    admission: Admission,
    commands: VecDeque<Command>,
    look_at: Option<Nanos>,
    counters: ControlCounters,
}

impl Control {
    /// A control plane without groups.
    pub fn new(config: ControlConfig) -> Self {
        let cm = cm::Config { capacity: 2 * config.queue_pairs, ..cm::Config::default() };
        let mut endpoint = Endpoint::new(config.interface.clone(), cm, config.seed);
        // Nobody listens yet.
        _ = endpoint.cm_mut().listen(service_id_of(PortSpace::Tcp, config.port));
        Self {
            endpoint,
            chance: Chance::stream(config.seed, 2),
            stations: Stations::default(),
            qpns: Places::new(config.queue_pairs, 1 << 24),
            ids: Places::new(config.groups, config.groups),
            groups: BTreeMap::new(),
            roles: BTreeMap::new(),
            admission: Admission::default(),
            commands: VecDeque::new(),
            look_at: None,
            counters: ControlCounters::default(),
            config,
        }
    }

    fn follow(&mut self, now: Nanos) {
        while let Some(event) = self.endpoint.cm_mut().poll_event() {
            self.on_cm(event, now);
        }
    }

    fn on_cm(&mut self, event: CmEvent, now: Nanos) {
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
            ) => self.end(id, None, now),
            (Role::Leader, CmEvent::Established { .. } | CmEvent::Replied { .. })
            | (Role::Replica(_), CmEvent::Established { .. })
            | (_, CmEvent::Requested { .. }) => {}
        }
    }
}

impl switch::Control for Control {
    type Function = P4ce;

    fn on_punt(&mut self, frame: &[u8], port: PortId, now: Nanos) {
        self.stations.hear(frame, port, now);
        self.endpoint.on_frame(frame, now);
        self.follow(now);
    }

    fn on_event(&mut self, event: Event, now: Nanos) {
        match event {
            Event::Opened(id, opened) => self.on_opened(id, opened, now),
            Event::Closed(id, _) => self.forget(id),
            Event::Excluded(id, member) => self.on_excluded(id, member, now),
        }
        self.follow(now);
    }

    fn on_timer(&mut self, now: Nanos) {
        if self.endpoint.next_timer().is_some_and(|at| at <= now) {
            self.endpoint.on_timer(now);
        }
        self.follow(now);
        if self.look_at.is_some_and(|at| at <= now) {
            self.look(now);
        }
    }

    fn next_timer(&self) -> Option<Nanos> {
        [self.endpoint.next_timer(), self.look_at].into_iter().flatten().min()
    }

    fn poll_command(&mut self) -> Option<Command> {
        self.commands.pop_front()
    }

    fn poll_transmit(&mut self, now: Nanos, frame: &mut Vec<u8>) -> Option<Egress> {
        self.endpoint.poll_transmit(now, frame).then(|| self.stations.egress(frame, now))
    }
}
