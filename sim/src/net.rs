//! Links between nodes: queues, loss and damage of frames, and the event queue.

use crate::frame::{Digest, bit_to_flip, fits, is_between, is_checked, is_from_to, mark};
use crate::link::{Counters, Link};
use crate::pcap::Capture;
use core::cmp::Reverse;
use rocev2::ethernet::MacAddr;
use std::collections::{BinaryHeap, VecDeque};
use switch::{Full, Nanos, PortId, Rng};

/// An entry of the event queue. Small, because the heap moves entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Event {
    /// The frame in this slot of the store arrives at the end of this direction
    Arrive { direction: u32, frame: u32 },
    /// This direction has finished sending a frame
    Sent { direction: u32 },
    /// The timer of this node is due
    Timer { node: u32 },
    /// A fault, by its index
    Fault { number: u32 },
}

/// One direction of a link.
#[derive(Debug)]
pub(crate) struct Direction {
    pub(crate) link: Link,
    /// Index of the link that this is a direction of
    link_number: usize,
    pub(crate) from: (usize, PortId),
    pub(crate) to: (usize, PortId),
    pub(crate) counters: Counters,
    /// Faults that cut this direction and have not ended
    pub(crate) cuts: u32,
    queue: VecDeque<Vec<u8>>,
    queued: usize,
    busy: bool,
    /// Latest arrival of a frame that was not reordered
    last_arrival: Nanos,
    damage: DamageRngs,
}

/// One random stream for each kind of damage, so that changing one kind's share does not change the others.
#[derive(Debug)]
struct DamageRngs {
    loss: Rng,
    duplicate: Rng,
    reorder: Rng,
    corrupt: Rng,
    jitter: Rng,
    ecn: Rng,
}

impl DamageRngs {
    fn new(seed: u64, direction: u64) -> Self {
        let stream = |n| Rng::stream(seed, direction << 8 | n);
        Self {
            loss: stream(1),
            duplicate: stream(2),
            reorder: stream(3),
            corrupt: stream(4),
            jitter: stream(5),
            ecn: stream(6),
        }
    }
}

/// All links, and the event queue.
#[derive(Debug)]
pub(crate) struct Net {
    pub(crate) now: Nanos,
    seed: u64,
    pub(crate) directions: Vec<Direction>,
    /// Outgoing directions by node and port
    ports: Vec<Vec<usize>>,
    event_queue: BinaryHeap<Reverse<(Nanos, u64, Event)>>,
    sequence: u64,
    frames: Vec<Vec<u8>>,
    free_slots: Vec<u32>,
    spare_buffers: Vec<Vec<u8>>,
    /// Pairs of interfaces between which no frame passes
    pub(crate) partitioned: Vec<[MacAddr; 2]>,
    /// Pairs of interfaces of which no frame passes from the first to the second
    pub(crate) muted: Vec<[MacAddr; 2]>,
    pub(crate) digest: Digest,
    pub(crate) captures: Vec<Option<Capture>>,
    /// Number of frames that arrived at a node, which [`World::events`](crate::World::events) reports
    pub(crate) arrivals: u64,
    /// Frames that were lost or damaged, if the world records them
    pub(crate) losses: Option<Vec<Vec<u8>>>,
}

impl Net {
    pub(crate) fn new(seed: u64) -> Self {
        Self {
            now: Nanos::ZERO,
            seed,
            directions: Vec::new(),
            ports: Vec::new(),
            event_queue: BinaryHeap::new(),
            sequence: 0,
            frames: Vec::new(),
            free_slots: Vec::new(),
            spare_buffers: Vec::new(),
            partitioned: Vec::new(),
            muted: Vec::new(),
            digest: Digest::new(),
            captures: Vec::new(),
            arrivals: 0,
            losses: None,
        }
    }

    /// Exchanges the ports of two links at the node at the second end of both. Frames in flight arrive at the
    /// new port.
    pub(crate) fn swap(&mut self, [a, from_a]: [usize; 2], [b, from_b]: [usize; 2]) {
        let (at_a, at_b) = (self.directions[a].to, self.directions[b].to);
        for (direction, back, at) in [(a, from_a, at_b), (b, from_b, at_a)] {
            self.directions[direction].to = at;
            self.directions[back].from = at;
            self.ports[at.0][at.1.index()] = back;
        }
    }

    pub(crate) fn add_node(&mut self) -> usize {
        self.ports.push(Vec::new());
        self.ports.len() - 1
    }

    pub(crate) fn ports_of(&self, node: usize) -> usize {
        self.ports[node].len()
    }

    pub(crate) fn direction_of(&self, node: usize, port: usize) -> usize {
        self.ports[node][port]
    }

    /// Connects the next free ports of two nodes. Returns the link's number.
    pub(crate) fn join(&mut self, a: usize, b: usize, link: Link) -> usize {
        let number = self.captures.len();
        self.captures.push(None);
        let port_a = PortId(self.ports[a].len() as u16);
        let port_b = PortId(self.ports[b].len() as u16 + u16::from(a == b));
        for (from, to) in [((a, port_a), (b, port_b)), ((b, port_b), (a, port_a))] {
            let direction = self.directions.len();
            self.ports[from.0].push(direction);
            self.directions.push(Direction {
                link,
                link_number: number,
                from,
                to,
                counters: Counters::default(),
                cuts: 0,
                queue: VecDeque::new(),
                queued: 0,
                busy: false,
                last_arrival: Nanos::ZERO,
                damage: DamageRngs::new(self.seed, direction as u64),
            });
        }
        number
    }

    pub(crate) fn schedule(&mut self, at: Nanos, event: Event) {
        self.sequence += 1;
        self.event_queue.push(Reverse((at.max(self.now), self.sequence, event)));
    }

    /// Removes and returns the next event if it is due by `until`, and advances the time to it.
    pub(crate) fn next(&mut self, until: Nanos) -> Option<Event> {
        let &Reverse((at, _, event)) = self.event_queue.peek()?;
        if at > until {
            return None;
        }
        self.event_queue.pop();
        self.now = at;
        Some(event)
    }

    /// Returns when the next event is due.
    pub(crate) fn peek(&self) -> Option<Nanos> {
        self.event_queue.peek().map(|Reverse((at, ..))| *at)
    }

    pub(crate) fn take_frame(&mut self, frame: u32) -> Vec<u8> {
        self.free_slots.push(frame);
        core::mem::take(&mut self.frames[frame as usize])
    }

    fn store_frame(&mut self, frame: Vec<u8>) -> u32 {
        if let Some(slot) = self.free_slots.pop() {
            self.frames[slot as usize] = frame;
            return slot;
        }
        self.frames.push(frame);
        self.frames.len() as u32 - 1
    }

    /// Returns an empty vector, with capacity if one was recycled.
    #[inline]
    pub(crate) fn spare(&mut self) -> Vec<u8> {
        self.spare_buffers.pop().unwrap_or_default()
    }

    /// Keeps a frame's memory for reuse.
    #[inline]
    pub(crate) fn recycle(&mut self, mut frame: Vec<u8>) {
        if self.spare_buffers.len() < 4096 {
            frame.clear();
            self.spare_buffers.push(frame);
        }
    }

    /// Records a lost frame if the world records losses; otherwise recycles its memory.
    pub(crate) fn lose(&mut self, frame: Vec<u8>) {
        match &mut self.losses {
            Some(losses) => losses.push(frame),
            None => self.recycle(frame),
        }
    }

    /// Returns whether a frame could be sent at once: nothing is being sent, and the queue is empty.
    #[inline]
    pub(crate) fn is_idle(&self, direction: usize) -> bool {
        let direction = &self.directions[direction];
        !direction.busy && direction.queue.is_empty()
    }

    pub(crate) fn room(&self, node: usize, port: PortId) -> usize {
        let Some(&direction) = self.ports[node].get(port.index()) else { return 0 };
        let direction = &self.directions[direction];
        let largest = direction.link.mtu + 18;
        (direction.link.queue.saturating_sub(direction.queued) / largest).max(usize::from(!direction.busy))
    }

    /// Sends a frame of a node: at once if the link is idle, otherwise after the queue.
    pub(crate) fn send(&mut self, node: usize, port: PortId, mut frame: Vec<u8>) -> Result<(), Full> {
        let Some(&number) = self.ports[node].get(port.index()) else { return Err(Full) };
        let direction = &mut self.directions[number];
        if !direction.busy {
            self.transmit(number, frame);
            return Ok(());
        }
        direction.counters.offered += 1;
        if !fits(&frame, direction.link.mtu) {
            direction.counters.too_long += 1;
            self.lose(frame);
            return Ok(());
        }
        if direction.queued + frame.len() > direction.link.queue {
            direction.counters.queue_full += 1;
            self.lose(frame);
            return Err(Full);
        }
        if let Some(ecn) = &direction.link.ecn
            && ecn.marks(direction.queued, &mut direction.damage.ecn)
            && mark(&mut frame)
        {
            direction.counters.marked += 1;
        }
        direction.queued += frame.len();
        direction.counters.longest_queue = direction.counters.longest_queue.max(direction.queued as u64);
        direction.queue.push_back(frame);
        Ok(())
    }

    /// Puts a frame on an idle link.
    pub(crate) fn transmit(&mut self, number: usize, frame: Vec<u8>) {
        let direction = &mut self.directions[number];
        direction.counters.offered += 1;
        if fits(&frame, direction.link.mtu) {
            self.put(number, frame);
        } else {
            direction.counters.too_long += 1;
            self.lose(frame);
        }
    }

    /// Ends the sending of a frame, and starts that of the next one in the queue.
    pub(crate) fn sent(&mut self, number: usize) {
        let direction = &mut self.directions[number];
        direction.busy = false;
        if let Some(frame) = direction.queue.pop_front() {
            direction.queued -= frame.len();
            self.put(number, frame);
        }
    }

    fn put(&mut self, number: usize, mut frame: Vec<u8>) {
        let now = self.now;
        self.digest.number(now.0);
        self.digest.number(number as u64);
        self.digest.bytes(&frame);
        let is_partitioned = self.partitioned.iter().any(|pair| is_between(&frame, *pair))
            || self.muted.iter().any(|pair| is_from_to(&frame, *pair));
        let direction = &mut self.directions[number];
        let link = &direction.link;
        direction.counters.sent += 1;
        direction.counters.bytes += frame.len() as u64;
        if let Some(capture) = &mut self.captures[direction.link_number] {
            capture.record(now, &frame);
        }
        let transmission_time = link.transmission_time(frame.len());
        if transmission_time > Nanos::ZERO {
            direction.busy = true;
        }
        // All of them are drawn for every frame, so that changing one share does not change the other kinds
        // of damage.
        let damage = &mut direction.damage;
        let lost = damage.loss.happens(link.loss);
        let twice = damage.duplicate.happens(link.duplicate);
        let reordered = damage.reorder.happens(link.reorder);
        let damaged = damage.corrupt.happens(link.corrupt);
        let first_bit = damage.corrupt.bits();
        let span = damage.reorder.between(1, link.reorder_by.0.max(1));
        let jitter = damage.jitter.below(link.jitter.0.saturating_add(1));
        let mut arrival = now + transmission_time + link.delay + Nanos(jitter);
        let is_cut = direction.cuts > 0 || is_partitioned;
        let bit = damaged.then(|| bit_to_flip(&frame, first_bit, self.seed.is_multiple_of(2))).flatten();
        // No checksum in the frame covers this byte. On a real link, the frame check sequence would, and the
        // frame would be dropped; simulated frames have none.
        let lost = lost || bit.is_some_and(|bit| !is_checked(&frame, bit / 8));
        let dropped = is_cut || lost;
        if is_cut {
            direction.counters.cut += 1;
        } else if lost {
            direction.counters.lost += 1;
        } else {
            if let Some(bit) = bit {
                direction.counters.corrupted += 1;
                self.losses.iter_mut().for_each(|losses| losses.push(frame.clone()));
                frame[bit / 8] ^= 1 << (bit % 8);
            }
            if reordered {
                direction.counters.reordered += 1;
                arrival = arrival + Nanos(span);
            } else {
                arrival = arrival.max(direction.last_arrival);
                direction.last_arrival = arrival;
            }
            direction.counters.duplicated += u64::from(twice);
        }
        if transmission_time > Nanos::ZERO {
            self.schedule(now + transmission_time, Event::Sent { direction: number as u32 });
        }
        if dropped {
            self.lose(frame);
            return;
        }
        if twice {
            let mut copy = self.spare();
            copy.extend_from_slice(&frame);
            let slot = self.store_frame(copy);
            self.schedule(arrival + Nanos(span), Event::Arrive { direction: number as u32, frame: slot });
        }
        let slot = self.store_frame(frame);
        self.schedule(arrival, Event::Arrive { direction: number as u32, frame: slot });
    }

    /// Drops the frames in the send queues of a node that went down.
    pub(crate) fn clear_queues(&mut self, node: usize) {
        for number in self.ports[node].clone() {
            while let Some(frame) = self.directions[number].queue.pop_front() {
                self.directions[number].counters.cut += 1;
                self.lose(frame);
            }
            self.directions[number].queued = 0;
        }
    }
}
