//! Hosts that deliver an object of any length to each other ([`rdmc::delivery`]), and what is right about it.

use super::{Setup, ip, node_config};
use crate::{App, Clock, Host, NodeId, World};
use ::rdmc::Config;
use ::rdmc::delivery::{DIGEST, Give, GiveConfig, GiveError, Given, Refusal, Take, TakeConfig, TakeError};
use rnic::Rnic;
use switch::Nanos;
use switch::table::mix;

/// The bytes of a segment
fn segment(number: u64, len: usize) -> Vec<u8> {
    (0..len).map(|at| (mix(number << 32 | (at / 8) as u64) >> (at % 8 * 8)) as u8).collect()
}

/// A digest, of no strength
fn digest(bytes: &[u8]) -> [u8; DIGEST] {
    let mut sums = [0_u64; 4];
    for (at, byte) in bytes.iter().enumerate() {
        sums[at % 4] = mix(sums[at % 4] ^ u64::from(*byte) ^ (at as u64) << 8);
    }
    let mut digest = [0; DIGEST];
    for (place, sum) in digest.chunks_mut(8).zip(sums) {
        place.copy_from_slice(&sum.to_be_bytes());
    }
    digest
}

/// What is wrong with a receiver, on purpose
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Habit {
    /// Nothing
    Sound,
    /// It has no space.
    Full,
    /// It writes something else.
    Careless,
    /// It writes a segment each time it is asked so often.
    Slow(u32),
    /// Its disk takes so long for a segment.
    Disk(Nanos),
    /// It writes so many segments, and then none.
    Stuck(u64),
    /// Its disk takes so long to begin.
    Begins(Nanos),
    /// The receiver's memory for segments, in bytes.
    Small(u64),
    /// It is not there.
    Absent,
}

/// The root.
#[derive(Debug)]
pub struct Root {
    give: Box<Give>,
    /// Segments that it has read, and that it can read
    read: u64,
    most: u64,
}

/// A receiver.
#[derive(Debug)]
pub struct Receiver {
    take: Box<Take>,
    made_with: Box<(Config, TakeConfig)>,
    habit: Habit,
    written: Vec<u8>,
    /// Object whose digest was right: it stays on the disk when the receiver crashes
    stored: Vec<u8>,
    segments: u64,
    asked: u32,
    /// For [`Habit::Disk`]: a segment is being written until then
    busy: Option<Nanos>,
    /// It begins until then, if something was offered
    begins: Option<Nanos>,
    begun: bool,
    /// Segments that had come and were not written, at most
    most_unwritten: u64,
}

impl Receiver {
    fn new(made_with: Box<(Config, TakeConfig)>, habit: Habit) -> Self {
        let take = Box::new(Take::new(made_with.0.clone(), made_with.1.clone()));
        Self {
            take,
            made_with,
            habit,
            written: Vec::new(),
            stored: Vec::new(),
            segments: 0,
            asked: 0,
            busy: None,
            begins: None,
            begun: false,
            most_unwritten: 0,
        }
    }

    /// Whether it writes a segment now.
    fn writes(&mut self, now: Nanos) -> bool {
        match self.habit {
            Habit::Slow(every) => self.asked.is_multiple_of(every),
            Habit::Stuck(after) => self.segments < after,
            Habit::Disk(_) => self.busy.is_none_or(|until| until <= now),
            _ => true,
        }
    }

    fn run(&mut self, nic: &mut Rnic, now: Nanos) {
        self.take.run(nic, now);
        if self.take.offered().is_some() && self.begins.is_none() {
            let takes = if let Habit::Begins(takes) = self.habit { takes } else { Nanos::ZERO };
            self.begins = Some(now + takes);
        }
        if self.begins.is_some_and(|at| at <= now) && !self.begun {
            self.begun = true;
            if self.habit == Habit::Full {
                self.take.refuse(nic, Refusal::NoSpace, now);
            } else {
                self.take.accept(nic, now);
            }
        }
        self.most_unwritten = self.most_unwritten.max(self.take.unwritten());
        self.asked += 1;
        // What the disk had to do is done.
        if self.busy.take_if(|until| *until <= now).is_some() {
            self.take.written(nic);
        }
        while self.writes(now)
            && let Some(bytes) = self.take.poll_segment()
        {
            self.written.extend_from_slice(&bytes);
            self.segments += 1;
            if self.habit == Habit::Careless && self.segments == 1 {
                self.written[0] ^= 1;
            }
            match self.habit {
                Habit::Disk(takes) => self.busy = Some(now + takes),
                _ => self.take.written(nic),
            }
        }
        if let Some(expected) = self.take.wants_comparison() {
            let is_whole = digest(&self.written) == expected;
            if is_whole {
                self.stored.clone_from(&self.written);
            }
            self.take.compared(nic, is_whole);
        }
    }
}

/// A host's part.
#[derive(Debug)]
pub enum Courier {
    /// It sends
    Root(Root),
    /// It receives
    Receiver(Receiver),
}

impl App for Courier {
    fn start(&mut self, nic: &mut Rnic, now: Nanos) {
        match self {
            // Both can fail only if the NIC has no room, which the outcome would not tell.
            Self::Root(root) => root.give.start(nic, now).expect("room for a node"),
            Self::Receiver(Receiver { habit: Habit::Absent, .. }) => {}
            Self::Receiver(receiver) => receiver.take.start(nic, now).expect("room for a node"),
        }
    }

    fn run(&mut self, nic: &mut Rnic, now: Nanos) {
        match self {
            Self::Root(Root { give, read, most }) => {
                give.run(nic, now);
                while *read < *most
                    && let Some(wanted) = give.wants()
                {
                    *read += 1;
                    let bytes = segment(wanted, give.segment_len(wanted) as usize);
                    give.give(nic, bytes);
                    give.run(nic, now);
                }
                if give.wants_digest() {
                    let all = (0..give.segments()).flat_map(|n| segment(n, give.segment_len(n) as usize));
                    give.finish(nic, digest(&all.collect::<Vec<u8>>()));
                    give.run(nic, now);
                }
            }
            Self::Receiver(receiver) => receiver.run(nic, now),
        }
    }

    fn crash(&mut self, _nic: &Rnic) {
        // Its operator starts it anew.
        if let Self::Receiver(receiver) = self {
            let stored = core::mem::take(&mut receiver.stored);
            *receiver = Receiver { stored, ..Receiver::new(receiver.made_with.clone(), receiver.habit) };
        }
    }

    fn next_timer(&self) -> Option<Nanos> {
        match self {
            Self::Root(root) => root.give.next_timer(),
            Self::Receiver(Receiver { habit: Habit::Absent, .. }) => None,
            Self::Receiver(Receiver { take, busy, begins, begun, .. }) => {
                [take.next_timer(), *busy, begins.filter(|_| !begun)].into_iter().flatten().min()
            }
        }
    }
}

/// A delivery from host 0 to all others.
#[derive(Debug)]
pub struct Delivery {
    /// The network
    pub world: World,
    /// By their numbers
    pub hosts: Vec<NodeId>,
    /// The switch
    pub switch: NodeId,
    len: u64,
}

impl Delivery {
    /// Hosts that are about to begin. `receivers` says what each is like; `change` may change what is delivered.
    ///
    /// # Errors
    /// If the delivery cannot be.
    pub fn new(
        setup: &Setup,
        len: u64,
        receivers: &[Habit],
        change: impl FnOnce(&mut GiveConfig),
    ) -> Result<Self, GiveError> {
        let mut world = World::new(setup.seed);
        let switch = world.add("switch", super::switch(setup), Clock::default());
        let others = (1..=receivers.len() as u16).map(ip).collect();
        let mut give = GiveConfig {
            segment_bytes: 40_000,
            block_bytes: 3000,
            patience: Nanos::from_millis(300),
            through: Some(setup.through()),
            ..GiveConfig::new(others, "an object".into(), len)
        };
        change(&mut give);
        let len = give.len;
        let patience = give.patience;
        let give = Box::new(Give::new(node_config(setup, 0), give)?);
        let root = Courier::Root(Root { give, read: 0, most: u64::MAX });
        let receiver = |(host, habit): (u16, &Habit)| {
            let max_memory = if let Habit::Small(bytes) = habit { *bytes } else { TakeConfig::MEMORY };
            let made_with = (node_config(setup, host), TakeConfig { from: ip(0), patience, max_memory });
            Courier::Receiver(Receiver::new(Box::new(made_with), *habit))
        };
        let all = core::iter::once(root).chain((1..).zip(receivers).map(receiver));
        let hosts: Vec<_> = (0..)
            .zip(all)
            .map(|(host, courier)| {
                world.add(
                    &format!("host {host}"),
                    Host::new(super::nic(setup, host), courier),
                    Clock::default(),
                )
            })
            .collect();
        for (host, node) in (0..).zip(&hosts) {
            world.connect(*node, switch, setup.link(host));
        }
        Ok(Self { world, hosts, switch, len })
    }

    fn courier(&self, host: u16) -> &Courier {
        &self.world.node::<Host<Courier>>(self.hosts[usize::from(host)]).app
    }

    /// What became of it at the root
    pub fn given(&self) -> Option<&Result<Given, GiveError>> {
        match self.courier(0) {
            Courier::Root(root) => root.give.outcome(),
            Courier::Receiver(_) => None,
        }
    }

    /// Segments that the root has read: again after a failure
    pub fn read(&self) -> u64 {
        match self.courier(0) {
            Courier::Root(root) => root.read,
            Courier::Receiver(_) => 0,
        }
    }

    /// The application of a host gives up.
    pub fn stop(&mut self, host: u16) {
        let node = self.hosts[usize::from(host)];
        self.world.with::<Host<Courier>, _>(node, |host, now| match &mut host.app {
            Courier::Root(root) => root.give.stop(&mut host.nic, now),
            Courier::Receiver(receiver) => receiver.take.refuse(&mut host.nic, Refusal::Stopped, now),
        });
    }

    /// The root reads so many segments, and then none.
    pub fn read_at_most(&mut self, segments: u64) {
        let node = self.hosts[0];
        self.world.with::<Host<Courier>, _>(node, |host, _| {
            if let Courier::Root(root) = &mut host.app {
                root.most = segments;
            }
        });
    }

    /// What became of it at a receiver
    pub fn taken(&self, host: u16) -> Option<&Result<(), TakeError>> {
        match self.courier(host) {
            Courier::Receiver(receiver) => receiver.take.outcome(),
            Courier::Root(_) => None,
        }
    }

    /// Segments that a receiver had and had not written, at most
    pub fn most_unwritten(&self, host: u16) -> u64 {
        match self.courier(host) {
            Courier::Receiver(receiver) => receiver.most_unwritten,
            Courier::Root(_) => 0,
        }
    }

    /// Whether what a receiver has stored is the object.
    pub fn is_right(&self, host: u16) -> bool {
        let Courier::Receiver(Receiver { stored, .. }) = self.courier(host) else { return false };
        let Courier::Root(Root { give, .. }) = self.courier(0) else { return false };
        let object = (0..give.segments()).flat_map(|n| segment(n, give.segment_len(n) as usize));
        stored.len() as u64 == self.len && object.eq(stored.iter().copied())
    }

    /// Lets the world go on until the root and these receivers know how it ended. False if one does not by then.
    pub fn settle(&mut self, until: Nanos, receivers: &[u16]) -> bool {
        loop {
            if self.given().is_some() && receivers.iter().all(|host| self.taken(*host).is_some()) {
                return true;
            }
            if !self.world.step(until) {
                return false;
            }
        }
    }
}
