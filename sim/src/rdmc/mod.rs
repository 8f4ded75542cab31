//! Hosts that send objects to groups of each other by RDMC ([`rdmc::Node`]), around a switch that bridges, and copies for
//! those who ask it to. What is checked:
//!
//! * what is complete is bit-exact, and comes once, in the order in which it was sent;
//! * a group that closes has brought everything to everyone;
//! * when a member fails, every survivor learns of it.

pub mod costs;
pub mod courier;
mod member;

pub use member::{Member, Now, Seen, len_of};

use crate::{Clock, Controlled, Host, Liar, LiarConfig, Link, NicCounters, NodeId, Queues, World};
use ::rdmc::{CallError, Config, Failure, GroupConfig, Through};
use core::net::IpAddr;
use p4ce::{Control, ControlConfig, P4ce};
use rnic::{Interface, PathMtu, Rnic};
use rocev2::Psn;
use rocev2::ethernet::MacAddr;
use switch::Nanos;
use switch::forward::Config as ForwardConfig;

const SWITCH_PORT: u16 = 18_515;

/// Hosts to be made.
#[derive(Clone, Debug)]
pub struct Setup {
    /// For everything that is drawn
    pub seed: u64,
    /// How many hosts
    pub hosts: u16,
    /// Each host's to the switch
    pub link: Link,
    /// The path MTU of all
    pub mtu: PathMtu,
    /// How long NICs wait for an acknowledgement: 4.096 us times two to this
    pub ack_timeout: u8,
    /// Between the switch's function and its control plane
    pub queues: Queues,
    /// Groups that a host may be in, about: how much it has room for
    pub groups: usize,
    /// How long members have to come together
    pub create_timeout: Nanos,
    /// Where roots look for the switch that copies
    pub copies_at: IpAddr,
    /// Hosts whose links are others than the rest's
    pub links: Vec<(u16, Link)>,
    /// Hosts that cannot reach each other: each takes somebody else for the other one
    pub apart: Vec<(u16, u16)>,
    /// What a member says when a message begins: whether it has memory for so many bytes
    pub room: u32,
    /// Packets of a host that is in no group
    pub lies: u32,
    /// Whether NICs give memory the same keys after a restart
    pub keys_again: bool,
    /// Queue pairs that the switch has room for
    pub queue_pairs: usize,
    /// The first PSN of the switch's connections; random if not said
    pub first_psn: Option<Psn>,
    /// A planted bug, at all hosts
    #[cfg(debug_assertions)]
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
            copies_at: switch_ip(),
            links: Vec::new(),
            apart: Vec::new(),
            room: u32::MAX,
            lies: 0,
            keys_again: false,
            queue_pairs: 256,
            first_psn: None,
            #[cfg(debug_assertions)]
            bug: None,
        }
    }
}

impl Setup {
    /// The switch that copies
    pub fn through(&self) -> Through {
        Through { address: self.copies_at, port: SWITCH_PORT }
    }

    /// The link of a host
    pub fn link(&self, host: u16) -> Link {
        self.links.iter().find(|(other, _)| *other == host).map_or(self.link, |(_, link)| *link)
    }
}

/// The address of a host
pub fn ip(host: u16) -> IpAddr {
    let [high, low] = host.to_be_bytes();
    [10, 0, 1 + high, low].into()
}

fn switch_ip() -> IpAddr {
    [10, 0, 0, 254].into()
}

/// A node as these hosts have: failures are found within 30 ms.
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
        #[cfg(debug_assertions)]
        bug: setup.bug,
        ..Config::new(ip(host))
    }
}

/// A host's MAC address
pub const fn mac(host: u16) -> MacAddr {
    let [high, low] = host.to_be_bytes();
    MacAddr([2, 0, 0, 2, high, low])
}

/// The switch's MAC address
pub const SWITCH_MAC: MacAddr = MacAddr([2, 0, 0, 1, 0, 254]);

/// What makes a host's NIC, another one in each life
fn nic(setup: &Setup, host: u16) -> impl FnMut() -> Rnic + Send + use<> {
    let both = setup.apart.iter().flat_map(|(a, b)| [(*a, *b), (*b, *a)]);
    let apart = both.filter(|(own, _)| *own == host).map(|(_, other)| other);
    let mut interface = Interface::new(mac(host), ip(host), 16);
    let nobody = MacAddr([2, 0, 0, 3, 0, 0]);
    interface.neighbours.extend(apart.map(|other| (ip(other), nobody)));
    let seed = setup.seed ^ u64::from(host) << 8;
    crate::nic(rnic::Config {
        seed,
        key_seed: setup.keys_again.then_some(seed),
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
        silent_after: Nanos::from_millis(30),
        #[cfg(debug_assertions)]
        bug: None,
    };
    let Setup { seed, create_timeout: setup_timeout, queue_pairs, first_psn, .. } = *setup;
    let control = move |life| {
        Control::new(ControlConfig {
            interface: Interface::new(SWITCH_MAC, switch_ip(), 16),
            port: SWITCH_PORT,
            groups: 16,
            queue_pairs,
            max_replicas: 16,
            secret: None,
            lists: [].into(),
            limits: p4ce::Limits::default(),
            setup_timeout,
            max_lag: p4ce::gather::MAX_LAG,
            seed: seed ^ 0x7377 ^ life << 32,
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
    /// By their numbers
    pub hosts: Vec<NodeId>,
    /// The switch
    pub switch: NodeId,
    through: Through,
}

impl Cluster {
    /// Hosts without groups.
    pub fn new(setup: &Setup) -> Self {
        let mut world = World::new(setup.seed);
        let switch = world.add("switch", switch(setup), Clock::default());
        let host = |host: u16| {
            let member = Member::new(node_config(setup, host), setup.room);
            world.add(&format!("host {host}"), Host::new(nic(setup, host), member), Clock::default())
        };
        let hosts: Vec<_> = (0..setup.hosts).map(host).collect();
        for (host, node) in (0..).zip(&hosts) {
            world.connect(*node, switch, setup.link(host));
        }
        if setup.lies > 0 {
            let all: Vec<_> = (0..setup.hosts).map(|host| (ip(host), mac(host))).collect();
            let config = LiarConfig {
                seed: setup.seed,
                own: (ip(setup.hosts), mac(setup.hosts)),
                targets: all.clone(),
                switch: Some(((switch_ip(), SWITCH_MAC), setup.queue_pairs)),
                claims: all,
                words: (0, 1 << 20),
                by_cm: true,
                lies: setup.lies,
                from: Nanos::from_micros(1),
            };
            let liar = world.add("liar", Liar::new(config), Clock::default());
            world.connect(liar, switch, Link::default());
        }
        Self { world, hosts, switch, through: setup.through() }
    }

    /// The application of a host
    pub fn member(&self, host: u16) -> &Member {
        &self.world.node::<Host<Member>>(self.hosts[usize::from(host)]).app
    }

    /// Returns why a group failed at a host, and when (time of the world).
    pub fn failure(&self, host: u16, group: u32) -> Option<(Failure, Nanos)> {
        let (failure, at) = self.member(host).failure(group)?;
        Some((failure, self.world.when(self.hosts[usize::from(host)], at)))
    }

    /// What a host's NIC has counted in this life
    pub fn nic(&self, host: u16) -> &NicCounters {
        self.world.node::<Host<Member>>(self.hosts[usize::from(host)]).nic.counters()
    }

    /// Does something with a host's application.
    pub fn with<R>(&mut self, host: u16, act: impl FnOnce(&mut Member, &mut Rnic, Nanos) -> R) -> R {
        let node = self.hosts[usize::from(host)];
        self.world.with::<Host<Member>, _>(node, |host, now| act(&mut host.app, &mut host.nic, now))
    }

    /// Has all members create a group; the first host is the root.
    ///
    /// # Errors
    /// What a member says to it.
    pub fn create(&mut self, config: &GroupConfig, hosts: &[u16]) -> Result<(), CallError> {
        let members = hosts.iter().map(|host| ip(*host)).collect();
        let config = GroupConfig { members, through: Some(self.through), ..config.clone() };
        for host in hosts {
            self.with(*host, |member, nic, now| member.create(nic, config.clone(), now))?;
        }
        Ok(())
    }

    /// Has the root send the next message of a group.
    ///
    /// # Errors
    /// What it says to it.
    pub fn send(&mut self, root: u16, group: u32, len: u32) -> Result<(), CallError> {
        self.with(root, |member, nic, _| member.send(nic, group, len))
    }

    /// Has everybody close a group.
    pub fn destroy(&mut self, group: u32, hosts: &[u16]) {
        for host in hosts {
            // Where it has failed, that is told otherwise, too.
            self.with(*host, |member, _, _| _ = member.destroy(group));
        }
    }

    /// What a group is at a host
    pub fn now(&self, host: u16, group: u32) -> Now {
        self.member(host).now(group)
    }

    /// Lets the world go on until something is so. False if it is not by then.
    pub fn run_while(&mut self, until: Nanos, mut goes_on: impl FnMut(&Self) -> bool) -> bool {
        while goes_on(self) {
            if !self.world.step(until) {
                return !goes_on(self);
            }
        }
        true
    }

    /// Lets the world go on until none of these hosts waits for the group to close or to fail. False if one still does.
    pub fn settle(&mut self, until: Nanos, group: u32, hosts: &[u16]) -> bool {
        let ended = |cluster: &Self| {
            hosts.iter().all(|host| matches!(cluster.now(*host, group), Now::Closed | Now::Failed(_)))
        };
        self.run_while(until, |cluster| !ended(cluster))
    }

    /// Says what is wrong with the end of a group in which its root was to send so many messages: if any member has heard
    /// that it was closed, everybody had everything, also who has crashed since; who has not crashed has heard how it
    /// ended.
    ///
    /// # Errors
    /// The first thing that must not be.
    pub fn check_end(
        &self,
        group: u32,
        hosts: &[u16],
        crashed: &[u16],
        messages: usize,
    ) -> Result<(), String> {
        self.check()?;
        let has = |host: &u16| self.member(*host).messages(group);
        let closed = hosts.iter().find(|host| self.now(**host, group) == Now::Closed);
        let lacking = hosts.iter().find(|host| has(host) < messages);
        if let (Some(closed), Some(lacking)) = (closed, lacking) {
            let had = has(lacking);
            return Err(format!("{closed} has closed, and {lacking} had {had} of {messages} messages"));
        }
        for host in hosts.iter().filter(|host| !crashed.contains(host)) {
            let now = self.now(*host, group);
            if !matches!(now, Now::Closed | Now::Failed(_)) {
                return Err(format!("host {host} has not heard how it ended: {now:?}"));
            }
        }
        Ok(())
    }

    /// Says which of these hosts has not got back what groups have taken of its NIC, when all groups have ended: memory of
    /// messages and of first blocks, queue pairs, and words by which members say that they are ready.
    ///
    /// # Errors
    /// The first one.
    pub fn check_memory(&self, hosts: &[u16]) -> Result<(), String> {
        for host in hosts {
            let (member, node) = (self.member(*host), self.hosts[usize::from(*host)]);
            let (held, expected) = (self.world.node::<Host<Member>>(node).nic.held(), member.node.held());
            let (buffers, words) = (member.buffers(), member.node.words());
            if (buffers, words) != (0, 0) || held != expected {
                return Err(format!(
                    "host {host} has {buffers} messages, {words} words, and {held:?} instead of {expected:?}"
                ));
            }
        }
        Ok(())
    }

    /// Says what is wrong, if anything ever was. A block that came before its receive was posted is, too.
    ///
    /// # Errors
    /// The first thing that a member saw and that must not be.
    pub fn check(&self) -> Result<(), String> {
        for host in 0..self.hosts.len() as u16 {
            if let Some(wrong) = self.member(host).wrong() {
                return Err(format!("host {host}: {wrong}"));
            }
            let unready = self.nic(host).rnr_naks_sent;
            if unready > 0 {
                return Err(format!("host {host} was not ready {unready} times"));
            }
        }
        Ok(())
    }
}
