//! Hosts that send objects to groups of each other by RDMC ([`rdmc::Node`]), around a switch that forwards as
//! a bridge, and replicates for roots that request it. The checks:
//!
//! * each complete message is bit-exact, and is delivered once and in the order of sending;
//! * when a group closes, all members have received all messages;
//! * when a member fails, every surviving member is notified.

pub mod costs;
pub mod delivery;
mod member;

pub use member::{GroupState, Member, Observations, len_of};

use ::rdmc::{CallError, Config, Failure, GroupConfig, SwitchAddress};
use core::net::IpAddr;
use p4ce::{Control, ControlConfig, P4ce};
use rnic::{Interface, PathMtu, Rnic};
use rocev2::Psn;
use rocev2::ethernet::MacAddr;
use sim::{Clock, Controlled, Forger, ForgerConfig, Host, Link, NicCounters, NodeId, Queues, World};
use switch::Nanos;
use switch::forward::Config as ForwardConfig;

const SWITCH_PORT: u16 = 18_515;

/// Parameters of the hosts and the switch.
#[derive(Clone, Debug)]
pub struct Setup {
    /// Seed of everything that is drawn
    pub seed: u64,
    /// Number of hosts
    pub hosts: u16,
    /// Link of each host to the switch
    pub link: Link,
    /// Path MTU of all hosts
    pub mtu: PathMtu,
    /// ACK timeout of the NICs: 4.096 us * 2^`ack_timeout`
    pub ack_timeout: u8,
    /// Queues between the switch's function and its control plane
    pub queues: Queues,
    /// Approximate number of groups that a host has resources for
    pub groups: usize,
    /// Time within which all members of a group have to connect
    pub create_timeout: Nanos,
    /// Address at which roots expect the switch that replicates
    pub switch_address: IpAddr,
    /// Hosts with links of their own
    pub links: Vec<(u16, Link)>,
    /// Pairs of hosts that cannot reach each other: each has a wrong MAC address for the other
    pub unreachable_pairs: Vec<(u16, u16)>,
    /// Longest message that a member provides memory for (bytes)
    pub max_message_bytes: u32,
    /// Rounds of forged packets of a host that is in no group
    pub forged_rounds: u32,
    /// Whether NICs give memory the same keys after a restart
    pub same_keys_after_restart: bool,
    /// Queue pairs that the switch has capacity for
    pub queue_pairs: usize,
    /// First PSN of the switch's connections; random if `None`
    pub first_psn: Option<Psn>,
    /// Bug to plant in all nodes
    pub bug: Option<::rdmc::Bug>,
}

impl Default for Setup {
    /// Four hosts with fast links.
    fn default() -> Self {
        Self {
            seed: 1,
            hosts: 4,
            link: Link::default(),
            mtu: PathMtu::B1024,
            ack_timeout: 8,
            queues: Queues::USUAL,
            groups: 4,
            create_timeout: Nanos::from_millis(200),
            switch_address: switch_ip(),
            links: Vec::new(),
            unreachable_pairs: Vec::new(),
            max_message_bytes: u32::MAX,
            forged_rounds: 0,
            same_keys_after_restart: false,
            queue_pairs: 256,
            first_psn: None,
            bug: None,
        }
    }
}

impl Setup {
    /// Returns the address of the switch that replicates.
    pub fn switch_address(&self) -> SwitchAddress {
        SwitchAddress { address: self.switch_address, port: SWITCH_PORT }
    }

    /// Returns the link of a host.
    pub fn link(&self, host: u16) -> Link {
        self.links.iter().find(|(other, _)| *other == host).map_or(self.link, |(_, link)| *link)
    }
}

/// Returns the address of a host.
pub fn ip(host: u16) -> IpAddr {
    let [high, low] = host.to_be_bytes();
    [10, 0, 1 + high, low].into()
}

fn switch_ip() -> IpAddr {
    [10, 0, 0, 254].into()
}

/// Returns the configuration of a host's node, with failure detection within 30 ms.
pub fn node_config(setup: &Setup, host: u16) -> Config {
    Config {
        connections: setup.groups * 32,
        links: 1024,
        ack_timeout: setup.ack_timeout,
        create_timeout: setup.create_timeout,
        probe_every: Nanos::from_millis(5),
        dead_after: Nanos::from_millis(30),
        attempt: Nanos::from_millis(2),
        seed: setup.seed ^ u64::from(host) << 20,
        bug: setup.bug,
        ..Config::new(ip(host))
    }
}

/// Returns the MAC address of a host.
pub const fn mac(host: u16) -> MacAddr {
    let [high, low] = host.to_be_bytes();
    MacAddr([2, 0, 0, 2, high, low])
}

/// MAC address of the switch
pub const SWITCH_MAC: MacAddr = MacAddr([2, 0, 0, 1, 0, 254]);

/// Returns a factory of a host's NIC, with another seed in each incarnation.
fn nic(setup: &Setup, host: u16) -> impl FnMut() -> Rnic + Send + use<> {
    let both = setup.unreachable_pairs.iter().flat_map(|(a, b)| [(*a, *b), (*b, *a)]);
    let apart = both.filter(|(own, _)| *own == host).map(|(_, other)| other);
    let mut interface = Interface::new(mac(host), ip(host), 16);
    let wrong_mac = MacAddr([2, 0, 0, 3, 0, 0]);
    interface.neighbours.extend(apart.map(|other| (ip(other), wrong_mac)));
    let seed = setup.seed ^ u64::from(host) << 8;
    sim::nic(rnic::Config {
        seed,
        key_seed: setup.same_keys_after_restart.then_some(seed),
        mtu: setup.mtu,
        max_qps: setup.groups * 32 + 128,
        max_regions: setup.groups * 32 + 512,
        ..rnic::Config::new(interface)
    })
}

fn switch(setup: &Setup) -> Controlled<Control> {
    let config = p4ce::Config {
        forward: ForwardConfig::bridge(setup.hosts + 1, 4 * usize::from(setup.hosts) + 16),
        mac: SWITCH_MAC,
        addresses: vec![switch_ip()],
        groups: 16,
        queue_pairs: setup.queue_pairs,
        workers: 1,
        silent_after: Nanos::from_millis(30),
        bug: None,
    };
    let Setup { seed, create_timeout: setup_timeout, queue_pairs, first_psn, .. } = *setup;
    let control = move |incarnation| {
        Control::new(ControlConfig {
            interface: Interface::new(SWITCH_MAC, switch_ip(), 16),
            port: SWITCH_PORT,
            groups: 16,
            queue_pairs,
            workers: 1,
            max_replicas: 16,
            secret: None,
            lists: [].into(),
            limits: p4ce::Limits::default(),
            setup_timeout,
            max_lag: p4ce::gather::MAX_LAG,
            seed: seed ^ 0x7377 ^ incarnation << 32,
            first_psn,
        })
    };
    Controlled::new(move || P4ce::new(config.clone()), control).with_queues(setup.queues)
}

/// Hosts around a switch.
#[derive(Debug)]
pub struct Cluster {
    /// The network
    pub world: World,
    /// Hosts, by number
    pub hosts: Vec<NodeId>,
    /// The switch
    pub switch: NodeId,
    switch_address: SwitchAddress,
}

impl Cluster {
    /// Creates the hosts and the switch, without groups.
    pub fn new(setup: &Setup) -> Self {
        let mut world = World::new(setup.seed);
        let switch = world.add("switch", switch(setup), Clock::default());
        let host = |host: u16| {
            let member = Member::new(node_config(setup, host), setup.max_message_bytes);
            world.add(&format!("host {host}"), Host::new(nic(setup, host), member), Clock::default())
        };
        let hosts: Vec<_> = (0..setup.hosts).map(host).collect();
        for (host, node) in (0..).zip(&hosts) {
            world.connect(*node, switch, setup.link(host));
        }
        if setup.forged_rounds > 0 {
            let all: Vec<_> = (0..setup.hosts).map(|host| (ip(host), mac(host))).collect();
            let config = ForgerConfig {
                seed: setup.seed,
                own: (ip(setup.hosts), mac(setup.hosts)),
                targets: all.clone(),
                switch: Some(((switch_ip(), SWITCH_MAC), setup.queue_pairs)),
                impersonated: all,
                words: (0, 1 << 20),
                by_cm: true,
                rounds: setup.forged_rounds,
                from: Nanos::from_micros(1),
            };
            let forger = world.add("forger", Forger::new(config), Clock::default());
            world.connect(forger, switch, Link::default());
        }
        Self { world, hosts, switch, switch_address: setup.switch_address() }
    }

    /// Returns the application of a host.
    pub fn member(&self, host: u16) -> &Member {
        &self.world.node::<Host<Member>>(self.hosts[usize::from(host)]).app
    }

    /// Returns why a group failed at a host, and when (time of the world).
    pub fn failure(&self, host: u16, group: u32) -> Option<(Failure, Nanos)> {
        let (failure, at) = self.member(host).failure(group)?;
        Some((failure, self.world.when(self.hosts[usize::from(host)], at)))
    }

    /// Returns the counters of a host's NIC since its last start.
    pub fn nic(&self, host: u16) -> &NicCounters {
        self.world.node::<Host<Member>>(self.hosts[usize::from(host)]).nic.counters()
    }

    /// Calls a host's application from outside.
    pub fn with<R>(&mut self, host: u16, act: impl FnOnce(&mut Member, &mut Rnic, Nanos) -> R) -> R {
        let node = self.hosts[usize::from(host)];
        self.world.with::<Host<Member>, _>(node, |host, now| act(&mut host.app, &mut host.nic, now))
    }

    /// Makes all members create a group; the first host is the root.
    ///
    /// # Errors
    /// The error of the first member that refuses.
    pub fn create(&mut self, config: &GroupConfig, hosts: &[u16]) -> Result<(), CallError> {
        let members = hosts.iter().map(|host| ip(*host)).collect();
        let config = GroupConfig { members, switch: Some(self.switch_address), ..config.clone() };
        for host in hosts {
            self.with(*host, |member, nic, now| member.create(nic, config.clone(), now))?;
        }
        Ok(())
    }

    /// Makes the root send the next message of a group.
    ///
    /// # Errors
    /// The error of the root's node.
    pub fn send(&mut self, root: u16, group: u32, len: u32) -> Result<(), CallError> {
        self.with(root, |member, nic, _| member.send(nic, group, len))
    }

    /// Makes all hosts close a group.
    pub fn destroy(&mut self, group: u32, hosts: &[u16]) {
        for host in hosts {
            // If the group has failed at this host, the host reports that in another way, too.
            self.with(*host, |member, _, _| _ = member.destroy(group));
        }
    }

    /// Returns the state of a group at a host.
    pub fn group_state(&self, host: u16, group: u32) -> GroupState {
        self.member(host).group_state(group)
    }

    /// Runs while `continues` returns true. Returns false if it still does at `until`, or when no event is
    /// left.
    pub fn run_while(&mut self, until: Nanos, mut continues: impl FnMut(&Self) -> bool) -> bool {
        while continues(self) {
            if !self.world.step(until) {
                return !continues(self);
            }
        }
        true
    }

    /// Runs until the group is closed or failed at all of these hosts. Returns false if it is not by `until`.
    pub fn run_until_ended(&mut self, until: Nanos, group: u32, hosts: &[u16]) -> bool {
        let ended = |cluster: &Self| {
            hosts.iter().all(|host| {
                matches!(cluster.group_state(*host, group), GroupState::Closed | GroupState::Failed(_))
            })
        };
        self.run_while(until, |cluster| !ended(cluster))
    }

    /// Checks the end of a group whose root was to send `messages` messages. If the group is closed at any
    /// member, every member has received everything, including members that have crashed since; and at every
    /// host that has not crashed the group is closed or failed.
    ///
    /// # Errors
    /// The first violation.
    pub fn check_end(
        &self,
        group: u32,
        hosts: &[u16],
        crashed: &[u16],
        messages: usize,
    ) -> Result<(), String> {
        self.check()?;
        let has = |host: &u16| self.member(*host).messages(group);
        let closed = hosts.iter().find(|host| self.group_state(**host, group) == GroupState::Closed);
        let incomplete = hosts.iter().find(|host| has(host) < messages);
        if let (Some(closed), Some(incomplete)) = (closed, incomplete) {
            let had = has(incomplete);
            return Err(format!(
                "closed at host {closed}, but host {incomplete} received only {had} of {messages} messages"
            ));
        }
        for host in hosts.iter().filter(|host| !crashed.contains(host)) {
            let now = self.group_state(*host, group);
            if !matches!(now, GroupState::Closed | GroupState::Failed(_)) {
                return Err(format!("the group is neither closed nor failed at host {host}: {now:?}"));
            }
        }
        Ok(())
    }

    /// Checks that these hosts have released the NIC resources of all groups, which have to have ended:
    /// memory of messages and of first blocks, queue pairs, and words in which members announce that they are
    /// ready.
    ///
    /// # Errors
    /// The first host that has not.
    pub fn check_memory(&self, hosts: &[u16]) -> Result<(), String> {
        for host in hosts {
            let (member, node) = (self.member(*host), self.hosts[usize::from(*host)]);
            let (held, expected) =
                (self.world.node::<Host<Member>>(node).nic.resource_counts(), member.node.resource_counts());
            let (buffers, words) = (member.buffers(), member.node.ready_words_in_use());
            if (buffers, words) != (0, 0) || held != expected {
                return Err(format!(
                    "host {host} holds {buffers} messages, {words} words, {held:?} instead of {expected:?}"
                ));
            }
        }
        Ok(())
    }

    /// Checks everything that was observed so far. A block that arrived before its receive request was posted
    /// is a violation, too.
    ///
    /// # Errors
    /// The first violation.
    pub fn check(&self) -> Result<(), String> {
        for host in 0..self.hosts.len() as u16 {
            if let Some(wrong) = self.member(host).wrong() {
                return Err(format!("host {host}: {wrong}"));
            }
            let unready = self.nic(host).rnr_naks_sent;
            if unready > 0 {
                return Err(format!(
                    "host {host} sent {unready} RNR NAKs: receive requests were posted late"
                ));
            }
        }
        Ok(())
    }
}
