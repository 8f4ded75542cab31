//! Hosts that deliver an object of any length to each other ([`rdmc::delivery`]), and what is right about it.

use super::{Setup, ip, node_config};
use crate::{App, Clock, Host, NodeId, World};
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
    /// It is not there.
    Absent,
}

/// A host's part.
#[derive(Debug)]
pub enum Courier {
    /// The root, and how many segments it has read
    Root(Box<Give>, u64),
    /// A receiver: what it is like, what it has written, and how often it was asked
    Receiver(Box<Take>, Habit, Vec<u8>, u32),
}

impl App for Courier {
    fn start(&mut self, nic: &mut Rnic, now: Nanos) {
        match self {
            // Both can fail only if the NIC has no room, which the outcome would not tell.
            Self::Root(give, _) => give.start(nic, now).expect("room for a node"),
            Self::Receiver(_, Habit::Absent, ..) => {}
            Self::Receiver(take, ..) => take.start(nic, now).expect("room for a node"),
        }
    }

    fn run(&mut self, nic: &mut Rnic, now: Nanos) {
        match self {
            Self::Root(give, read) => {
                give.run(nic, now);
                while let Some(wanted) = give.wants() {
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
            Self::Receiver(take, habit, written, asked) => {
                take.run(nic, now);
                if take.offered().is_some() {
                    if *habit == Habit::Full {
                        take.refuse(nic, Refusal::NoSpace);
                    } else {
                        take.accept(nic, now);
                    }
                }
                *asked += 1;
                let ready = !matches!(habit, Habit::Slow(every) if *asked % *every > 0);
                while ready && let Some(bytes) = take.poll_segment() {
                    written.extend_from_slice(&bytes);
                    if *habit == Habit::Careless && written.len() == bytes.len() {
                        written[0] ^= 1;
                    }
                    take.written(nic);
                }
                if let Some(expected) = take.wants_comparison() {
                    take.compared(nic, digest(written) == expected);
                }
            }
        }
    }

    fn next_timer(&self) -> Option<Nanos> {
        match self {
            Self::Root(give, _) => give.next_timer(),
            Self::Receiver(_, Habit::Absent, ..) => None,
            Self::Receiver(take, ..) => take.next_timer(),
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
            ..GiveConfig::new(others, "an object".into(), len)
        };
        change(&mut give);
        let len = give.len;
        let patience = give.patience;
        let root = Courier::Root(Box::new(Give::new(node_config(setup, 0), give)?), 0);
        let receiver = |(host, habit): (u16, &Habit)| {
            let take = Take::new(node_config(setup, host), TakeConfig { from: ip(0), patience });
            Courier::Receiver(Box::new(take), *habit, Vec::new(), 0)
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
        for node in &hosts {
            world.connect(*node, switch, setup.link);
        }
        Ok(Self { world, hosts, switch, len })
    }

    fn courier(&self, host: u16) -> &Courier {
        &self.world.node::<Host<Courier>>(self.hosts[usize::from(host)]).app
    }

    /// What became of it at the root
    pub fn given(&self) -> Option<&Result<Given, GiveError>> {
        match self.courier(0) {
            Courier::Root(give, _) => give.outcome(),
            Courier::Receiver(..) => None,
        }
    }

    /// Segments that the root has read: again after a failure
    pub fn read(&self) -> u64 {
        match self.courier(0) {
            Courier::Root(_, read) => *read,
            Courier::Receiver(..) => 0,
        }
    }

    /// What became of it at a receiver
    pub fn taken(&self, host: u16) -> Option<&Result<(), TakeError>> {
        match self.courier(host) {
            Courier::Receiver(take, ..) => take.outcome(),
            Courier::Root(..) => None,
        }
    }

    /// Segments that a receiver has
    pub fn received(&self, host: u16) -> u64 {
        match self.courier(host) {
            Courier::Receiver(take, ..) => take.received(),
            Courier::Root(..) => 0,
        }
    }

    /// Whether what a receiver has written is the object.
    pub fn is_right(&self, host: u16) -> bool {
        let Courier::Receiver(_, _, written, _) = self.courier(host) else { return false };
        let Courier::Root(give, _) = self.courier(0) else { return false };
        let object = (0..give.segments()).flat_map(|n| segment(n, give.segment_len(n) as usize));
        written.len() as u64 == self.len && object.eq(written.iter().copied())
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
