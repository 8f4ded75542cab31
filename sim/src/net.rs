//! Links between nodes: queues, the fate of frames, and the event queue.

use crate::frame::{Digest, bit_to_flip, fits, is_between, is_checked, mark};
use crate::link::{Counters, Link};
use crate::pcap::Capture;
use core::cmp::Reverse;
use rocev2::ethernet::MacAddr;
use std::collections::{BinaryHeap, VecDeque};
use switch::{Chance, Full, Nanos, PortId};

/// An event of the agenda. Small, because the heap moves entries about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum What {
    /// The frame in this slot of the store arrives at the end of this direction
    Arrive { lane: u32, frame: u32 },
    /// This direction has finished sending a frame
    Free { lane: u32 },
    /// The timer of this node is due
    Timer { node: u32 },
    /// A fault, by its index
    Fault { number: u32 },
}

/// One direction of a link.
#[derive(Debug)]
pub(crate) struct Lane {
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
    fate: Fate,
}

/// One random stream for each kind of damage, so that changing one kind's share does not change the others.
#[derive(Debug)]
struct Fate {
    loss: Chance,
    duplicate: Chance,
    reorder: Chance,
    corrupt: Chance,
    jitter: Chance,
    ecn: Chance,
}

impl Fate {
    fn new(seed: u64, lane: u64) -> Self {
        let stream = |n| Chance::stream(seed, lane << 8 | n);
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
    pub(crate) lanes: Vec<Lane>,
    /// Outgoing directions by node and port
    ports: Vec<Vec<usize>>,
    agenda: BinaryHeap<Reverse<(Nanos, u64, What)>>,
    order: u64,
    store: Vec<Vec<u8>>,
    vacant: Vec<u32>,
    spares: Vec<Vec<u8>>,
    /// Pairs of interfaces between which no frame passes
    pub(crate) parted: Vec<[MacAddr; 2]>,
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
            lanes: Vec::new(),
            ports: Vec::new(),
            agenda: BinaryHeap::new(),
            order: 0,
            store: Vec::new(),
            vacant: Vec::new(),
            spares: Vec::new(),
            parted: Vec::new(),
            digest: Digest::new(),
            captures: Vec::new(),
            arrivals: 0,
            losses: None,
        }
    }

    /// Exchanges the ports of two links at the node at the second end of both. Frames in flight arrive at the
    /// new port.
    pub(crate) fn swap(&mut self, [a, from_a]: [usize; 2], [b, from_b]: [usize; 2]) {
        let (at_a, at_b) = (self.lanes[a].to, self.lanes[b].to);
        for (lane, back, at) in [(a, from_a, at_b), (b, from_b, at_a)] {
            self.lanes[lane].to = at;
            self.lanes[back].from = at;
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

    pub(crate) fn lane_of(&self, node: usize, port: usize) -> usize {
        self.ports[node][port]
    }

    /// Connects the next free ports of two nodes. Returns the link's number.
    pub(crate) fn join(&mut self, a: usize, b: usize, link: Link) -> usize {
        let number = self.captures.len();
        self.captures.push(None);
        let port_a = PortId(self.ports[a].len() as u16);
        let port_b = PortId(self.ports[b].len() as u16 + u16::from(a == b));
        for (from, to) in [((a, port_a), (b, port_b)), ((b, port_b), (a, port_a))] {
            let lane = self.lanes.len();
            self.ports[from.0].push(lane);
            self.lanes.push(Lane {
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
                fate: Fate::new(self.seed, lane as u64),
            });
        }
        number
    }

    pub(crate) fn schedule(&mut self, at: Nanos, what: What) {
        self.order += 1;
        self.agenda.push(Reverse((at.max(self.now), self.order, what)));
    }

    /// Removes and returns the next event if it is due by `until`, and advances the time to it.
    pub(crate) fn next(&mut self, until: Nanos) -> Option<What> {
        let &Reverse((at, _, what)) = self.agenda.peek()?;
        if at > until {
            return None;
        }
        self.agenda.pop();
        self.now = at;
        Some(what)
    }

    /// Returns when the next event is due.
    pub(crate) fn peek(&self) -> Option<Nanos> {
        self.agenda.peek().map(|Reverse((at, ..))| *at)
    }

    pub(crate) fn take(&mut self, frame: u32) -> Vec<u8> {
        self.vacant.push(frame);
        core::mem::take(&mut self.store[frame as usize])
    }

    fn keep(&mut self, frame: Vec<u8>) -> u32 {
        if let Some(place) = self.vacant.pop() {
            self.store[place as usize] = frame;
            return place;
        }
        self.store.push(frame);
        self.store.len() as u32 - 1
    }

    /// Returns an empty vector, with capacity if one was recycled.
    #[inline]
    pub(crate) fn spare(&mut self) -> Vec<u8> {
        self.spares.pop().unwrap_or_default()
    }

    /// Keeps a frame's memory for reuse.
    #[inline]
    pub(crate) fn recycle(&mut self, mut frame: Vec<u8>) {
        if self.spares.len() < 4096 {
            frame.clear();
            self.spares.push(frame);
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
    pub(crate) fn is_idle(&self, lane: usize) -> bool {
        let lane = &self.lanes[lane];
        !lane.busy && lane.queue.is_empty()
    }

    pub(crate) fn room(&self, node: usize, port: PortId) -> usize {
        let Some(&lane) = self.ports[node].get(port.index()) else { return 0 };
        let lane = &self.lanes[lane];
        let largest = lane.link.mtu + 18;
        (lane.link.queue.saturating_sub(lane.queued) / largest).max(usize::from(!lane.busy))
    }

    /// Sends a frame of a node: at once if the link is idle, otherwise after the queue.
    pub(crate) fn send(&mut self, node: usize, port: PortId, mut frame: Vec<u8>) -> Result<(), Full> {
        let Some(&number) = self.ports[node].get(port.index()) else { return Err(Full) };
        let lane = &mut self.lanes[number];
        if !lane.busy {
            self.transmit(number, frame);
            return Ok(());
        }
        lane.counters.offered += 1;
        if !fits(&frame, lane.link.mtu) {
            lane.counters.too_long += 1;
            self.lose(frame);
            return Ok(());
        }
        if lane.queued + frame.len() > lane.link.queue {
            lane.counters.queue_full += 1;
            self.lose(frame);
            return Err(Full);
        }
        if let Some(ecn) = &lane.link.ecn
            && ecn.marks(lane.queued, &mut lane.fate.ecn)
            && mark(&mut frame)
        {
            lane.counters.marked += 1;
        }
        lane.queued += frame.len();
        lane.counters.longest_queue = lane.counters.longest_queue.max(lane.queued as u64);
        lane.queue.push_back(frame);
        Ok(())
    }

    /// Puts a frame on an idle link.
    pub(crate) fn transmit(&mut self, number: usize, frame: Vec<u8>) {
        let lane = &mut self.lanes[number];
        lane.counters.offered += 1;
        if fits(&frame, lane.link.mtu) {
            self.put(number, frame);
        } else {
            lane.counters.too_long += 1;
            self.lose(frame);
        }
    }

    /// Ends the sending of a frame, and starts that of the next one in the queue.
    pub(crate) fn sent(&mut self, number: usize) {
        let lane = &mut self.lanes[number];
        lane.busy = false;
        if let Some(frame) = lane.queue.pop_front() {
            lane.queued -= frame.len();
            self.put(number, frame);
        }
    }

    fn put(&mut self, number: usize, mut frame: Vec<u8>) {
        let now = self.now;
        self.digest.number(now.0);
        self.digest.number(number as u64);
        self.digest.bytes(&frame);
        let is_parted = self.parted.iter().any(|pair| is_between(&frame, *pair));
        let lane = &mut self.lanes[number];
        let link = &lane.link;
        lane.counters.sent += 1;
        lane.counters.bytes += frame.len() as u64;
        if let Some(capture) = &mut self.captures[lane.link_number] {
            capture.record(now, &frame);
        }
        let occupied = link.occupied(frame.len());
        if occupied > Nanos::ZERO {
            lane.busy = true;
        }
        // All of them are drawn for every frame, so that changing one share does not change the other kinds
        // of damage.
        let fate = &mut lane.fate;
        let lost = fate.loss.happens(link.loss);
        let twice = fate.duplicate.happens(link.duplicate);
        let overtaken = fate.reorder.happens(link.reorder);
        let damaged = fate.corrupt.happens(link.corrupt);
        let damage = fate.corrupt.bits();
        let span = fate.reorder.between(1, link.reorder_by.0.max(1));
        let jitter = fate.jitter.below(link.jitter.0.saturating_add(1));
        let mut arrival = now + occupied + link.delay + Nanos(jitter);
        let is_cut = lane.cuts > 0 || is_parted;
        let bit = damaged.then(|| bit_to_flip(&frame, damage, self.seed.is_multiple_of(2))).flatten();
        // No checksum in the frame covers this byte. On a real link the frame check sequence, which frames
        // have not here, does, and the frame is dropped.
        let lost = lost || bit.is_some_and(|bit| !is_checked(&frame, bit / 8));
        let gone = is_cut || lost;
        if is_cut {
            lane.counters.cut += 1;
        } else if lost {
            lane.counters.lost += 1;
        } else {
            if let Some(bit) = bit {
                lane.counters.corrupted += 1;
                self.losses.iter_mut().for_each(|losses| losses.push(frame.clone()));
                frame[bit / 8] ^= 1 << (bit % 8);
            }
            if overtaken {
                lane.counters.reordered += 1;
                arrival = arrival + Nanos(span);
            } else {
                arrival = arrival.max(lane.last_arrival);
                lane.last_arrival = arrival;
            }
            lane.counters.duplicated += u64::from(twice);
        }
        if occupied > Nanos::ZERO {
            self.schedule(now + occupied, What::Free { lane: number as u32 });
        }
        if gone {
            self.lose(frame);
            return;
        }
        if twice {
            let mut copy = self.spare();
            copy.extend_from_slice(&frame);
            let place = self.keep(copy);
            self.schedule(arrival + Nanos(span), What::Arrive { lane: number as u32, frame: place });
        }
        let place = self.keep(frame);
        self.schedule(arrival, What::Arrive { lane: number as u32, frame: place });
    }

    /// Drops the frames in the send queues of a node that went down.
    pub(crate) fn clear_queues(&mut self, node: usize) {
        for number in self.ports[node].clone() {
            while let Some(frame) = self.lanes[number].queue.pop_front() {
                self.lanes[number].counters.cut += 1;
                self.lose(frame);
            }
            self.lanes[number].queued = 0;
        }
    }
}
