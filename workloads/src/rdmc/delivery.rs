//! Hosts that deliver an object of any length to each other ([`rdmc::delivery`]), and checks of what is
//! delivered.

use super::{Setup, ip, node_config};
use ::rdmc::Config;
use ::rdmc::delivery::{
    DIGEST, DeliveryReport, ObjectReceiver, ObjectSender, ReceiverConfig, ReceiverError, Refusal,
    SenderConfig, SenderError,
};
use rnic::Rnic;
use sim::{App, Clock, Host, NodeId, World};
use switch::Nanos;
use switch::table::mix;

/// Returns the contents of a segment.
fn segment(number: u64, len: usize) -> Vec<u8> {
    (0..len).map(|at| (mix(number << 32 | (at / 8) as u64) >> (at % 8 * 8)) as u8).collect()
}

/// Returns a digest, which is not cryptographic.
fn digest(bytes: &[u8]) -> [u8; DIGEST] {
    let mut sums = [0_u64; 4];
    for (at, byte) in bytes.iter().enumerate() {
        sums[at % 4] = mix(sums[at % 4] ^ u64::from(*byte) ^ (at as u64) << 8);
    }
    let mut digest = [0; DIGEST];
    for (chunk, sum) in digest.chunks_mut(8).zip(sums) {
        chunk.copy_from_slice(&sum.to_be_bytes());
    }
    digest
}

/// Behaviour of a receiver, which may be faulty
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReceiverBehaviour {
    /// No fault
    Correct,
    /// The disk has no space: the receiver refuses the object
    NoSpace,
    /// Changes a bit of the first segment
    Corrupts,
    /// Writes segments at every n-th call only
    WritesEveryNthCall(u32),
    /// Takes this time to write a segment
    WriteTime(Nanos),
    /// Writes this number of segments, then none
    StopsAfter(u64),
    /// Takes this time to create the file
    CreateTime(Nanos),
    /// Has this amount of memory for segments (bytes)
    MemoryLimit(u64),
    /// Is not running
    Absent,
}

/// The root of a delivery.
#[derive(Debug)]
pub struct Root {
    delivery: Box<ObjectSender>,
    /// Number of segments read
    read: u64,
    read_limit: u64,
}

/// A receiver.
#[derive(Debug)]
pub struct Receiver {
    delivery: Box<ObjectReceiver>,
    configs: Box<(Config, ReceiverConfig)>,
    behaviour: ReceiverBehaviour,
    written: Vec<u8>,
    /// Object whose digest matched; it stays on the disk when the receiver crashes
    stored: Vec<u8>,
    segments: u64,
    polls: u32,
    /// For [`ReceiverBehaviour::WriteTime`]: end of the write in progress
    writing_until: Option<Nanos>,
    /// Time at which the receiver accepts or refuses, once an object was offered
    begins_at: Option<Nanos>,
    begun: bool,
    /// Largest number of segments that had arrived and were not yet written
    max_unwritten: u64,
}

impl Receiver {
    fn new(configs: Box<(Config, ReceiverConfig)>, behaviour: ReceiverBehaviour) -> Self {
        let delivery = Box::new(ObjectReceiver::new(configs.0.clone(), configs.1.clone()));
        Self {
            delivery,
            configs,
            behaviour,
            written: Vec::new(),
            stored: Vec::new(),
            segments: 0,
            polls: 0,
            writing_until: None,
            begins_at: None,
            begun: false,
            max_unwritten: 0,
        }
    }

    /// Returns whether the receiver can write a segment now.
    fn writes(&mut self, now: Nanos) -> bool {
        match self.behaviour {
            ReceiverBehaviour::WritesEveryNthCall(every) => self.polls.is_multiple_of(every),
            ReceiverBehaviour::StopsAfter(after) => self.segments < after,
            ReceiverBehaviour::WriteTime(_) => self.writing_until.is_none_or(|until| until <= now),
            _ => true,
        }
    }

    fn run(&mut self, nic: &mut Rnic, now: Nanos) {
        self.delivery.run(nic, now);
        if self.delivery.offered().is_some() && self.begins_at.is_none() {
            let duration = if let ReceiverBehaviour::CreateTime(duration) = self.behaviour {
                duration
            } else {
                Nanos::ZERO
            };
            self.begins_at = Some(now + duration);
        }
        if self.begins_at.is_some_and(|at| at <= now) && !self.begun {
            self.begun = true;
            if self.behaviour == ReceiverBehaviour::NoSpace {
                self.delivery.refuse(nic, Refusal::NoSpace, now);
            } else {
                self.delivery.accept(nic, now);
            }
        }
        self.max_unwritten = self.max_unwritten.max(self.delivery.unwritten());
        self.polls += 1;
        // The disk has finished its write.
        if self.writing_until.take_if(|until| *until <= now).is_some() {
            self.delivery.segment_written(nic);
        }
        while self.writes(now)
            && let Some(bytes) = self.delivery.poll_segment()
        {
            self.written.extend_from_slice(&bytes);
            self.segments += 1;
            if self.behaviour == ReceiverBehaviour::Corrupts && self.segments == 1 {
                self.written[0] ^= 1;
            }
            match self.behaviour {
                ReceiverBehaviour::WriteTime(duration) => self.writing_until = Some(now + duration),
                _ => self.delivery.segment_written(nic),
            }
        }
        if let Some(expected) = self.delivery.digest_to_compare() {
            let is_whole = digest(&self.written) == expected;
            if is_whole {
                self.stored.clone_from(&self.written);
            }
            self.delivery.report_comparison(nic, is_whole);
        }
    }
}

/// Role of a host.
#[derive(Debug)]
pub enum Role {
    /// Sends
    Root(Root),
    /// Receives
    Receiver(Receiver),
}

impl App for Role {
    fn start(&mut self, nic: &mut Rnic, now: Nanos) {
        match self {
            // Both fail only if the NIC lacks resources, which no outcome would report.
            Self::Root(root) => root.delivery.start(nic, now).expect("the NIC has room for a node"),
            Self::Receiver(Receiver { behaviour: ReceiverBehaviour::Absent, .. }) => {}
            Self::Receiver(receiver) => {
                receiver.delivery.start(nic, now).expect("the NIC has room for a node");
            }
        }
    }

    fn run(&mut self, nic: &mut Rnic, now: Nanos) {
        match self {
            Self::Root(Root { delivery, read, read_limit }) => {
                delivery.run(nic, now);
                while *read < *read_limit
                    && let Some(wanted) = delivery.next_segment()
                {
                    *read += 1;
                    let bytes = segment(wanted, delivery.segment_len(wanted) as usize);
                    delivery.send_segment(nic, bytes);
                    delivery.run(nic, now);
                }
                if delivery.needs_digest() {
                    let all =
                        (0..delivery.segments()).flat_map(|n| segment(n, delivery.segment_len(n) as usize));
                    delivery.send_digest(nic, digest(&all.collect::<Vec<u8>>()));
                    delivery.run(nic, now);
                }
            }
            Self::Receiver(receiver) => receiver.run(nic, now),
        }
    }

    fn crash(&mut self, _nic: &Rnic) {
        // The operator starts the receiver again.
        if let Self::Receiver(receiver) = self {
            let stored = core::mem::take(&mut receiver.stored);
            *receiver = Receiver { stored, ..Receiver::new(receiver.configs.clone(), receiver.behaviour) };
        }
    }

    fn next_timer(&self) -> Option<Nanos> {
        match self {
            Self::Root(root) => root.delivery.next_timer(),
            Self::Receiver(Receiver { behaviour: ReceiverBehaviour::Absent, .. }) => None,
            Self::Receiver(Receiver { delivery, writing_until, begins_at, begun, .. }) => {
                [delivery.next_timer(), *writing_until, begins_at.filter(|_| !begun)]
                    .into_iter()
                    .flatten()
                    .min()
            }
        }
    }
}

/// A delivery from host 0 to all other hosts.
#[derive(Debug)]
pub struct Delivery {
    /// The network
    pub world: World,
    /// Hosts, by number
    pub hosts: Vec<NodeId>,
    /// The switch
    pub switch: NodeId,
    len: u64,
}

impl Delivery {
    /// Creates the hosts. `receivers` gives the behaviour of each receiver; `change` may change the
    /// configuration of the delivery.
    ///
    /// # Errors
    /// If the configuration is invalid.
    pub fn new(
        setup: &Setup,
        len: u64,
        receivers: &[ReceiverBehaviour],
        change: impl FnOnce(&mut SenderConfig),
    ) -> Result<Self, SenderError> {
        let mut world = World::new(setup.seed);
        let switch = world.add("switch", super::switch(setup), Clock::default());
        let others = (1..=receivers.len() as u16).map(ip).collect();
        let mut config = SenderConfig {
            segment_bytes: 40_000,
            block_bytes: 3000,
            patience: Nanos::from_millis(300),
            switch: Some(setup.switch_address()),
            ..SenderConfig::new(others, "an object".into(), len)
        };
        change(&mut config);
        let len = config.len;
        let patience = config.patience;
        let delivery = Box::new(ObjectSender::new(node_config(setup, 0), config)?);
        let root = Role::Root(Root { delivery, read: 0, read_limit: u64::MAX });
        let receiver = |(host, behaviour): (u16, &ReceiverBehaviour)| {
            let max_memory = if let ReceiverBehaviour::MemoryLimit(bytes) = behaviour {
                *bytes
            } else {
                ReceiverConfig::MEMORY
            };
            let configs = (node_config(setup, host), ReceiverConfig { from: ip(0), patience, max_memory });
            Role::Receiver(Receiver::new(Box::new(configs), *behaviour))
        };
        let all = core::iter::once(root).chain((1..).zip(receivers).map(receiver));
        let hosts: Vec<_> = (0..)
            .zip(all)
            .map(|(host, role)| {
                world.add(&format!("host {host}"), Host::new(super::nic(setup, host), role), Clock::default())
            })
            .collect();
        for (host, node) in (0..).zip(&hosts) {
            world.connect(*node, switch, setup.link(host));
        }
        Ok(Self { world, hosts, switch, len })
    }

    fn role(&self, host: u16) -> &Role {
        &self.world.node::<Host<Role>>(self.hosts[usize::from(host)]).app
    }

    /// Returns the outcome at the root, once there is one.
    pub fn root_outcome(&self) -> Option<&Result<DeliveryReport, SenderError>> {
        match self.role(0) {
            Role::Root(root) => root.delivery.outcome(),
            Role::Receiver(_) => None,
        }
    }

    /// Returns the number of segments that the root has read; it reads segments again after a failure.
    pub fn read(&self) -> u64 {
        match self.role(0) {
            Role::Root(root) => root.read,
            Role::Receiver(_) => 0,
        }
    }

    /// Makes the application of a host stop the delivery.
    pub fn stop(&mut self, host: u16) {
        let node = self.hosts[usize::from(host)];
        self.world.with::<Host<Role>, _>(node, |host, now| match &mut host.app {
            Role::Root(root) => root.delivery.stop(&mut host.nic, now),
            Role::Receiver(receiver) => receiver.delivery.refuse(&mut host.nic, Refusal::Stopped, now),
        });
    }

    /// Makes the root stop reading after this number of segments.
    pub fn read_at_most(&mut self, segments: u64) {
        let node = self.hosts[0];
        self.world.with::<Host<Role>, _>(node, |host, _| {
            if let Role::Root(root) = &mut host.app {
                root.read_limit = segments;
            }
        });
    }

    /// Returns the outcome at a receiver, once there is one.
    pub fn receiver_outcome(&self, host: u16) -> Option<&Result<(), ReceiverError>> {
        match self.role(host) {
            Role::Receiver(receiver) => receiver.delivery.outcome(),
            Role::Root(_) => None,
        }
    }

    /// Returns the largest number of segments that a receiver had received and not yet written.
    pub fn max_unwritten(&self, host: u16) -> u64 {
        match self.role(host) {
            Role::Receiver(receiver) => receiver.max_unwritten,
            Role::Root(_) => 0,
        }
    }

    /// Returns whether a receiver has stored exactly the object.
    pub fn has_stored_object(&self, host: u16) -> bool {
        let Role::Receiver(Receiver { stored, .. }) = self.role(host) else { return false };
        let Role::Root(Root { delivery, .. }) = self.role(0) else { return false };
        let object = (0..delivery.segments()).flat_map(|n| segment(n, delivery.segment_len(n) as usize));
        stored.len() as u64 == self.len && object.eq(stored.iter().copied())
    }

    /// Runs until the root and these receivers have an outcome. Returns false if one has none by `until`.
    pub fn run_until_outcome(&mut self, until: Nanos, receivers: &[u16]) -> bool {
        loop {
            if self.root_outcome().is_some()
                && receivers.iter().all(|host| self.receiver_outcome(*host).is_some())
            {
                return true;
            }
            if !self.world.step(until) {
                return false;
            }
        }
    }
}
