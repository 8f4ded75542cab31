//! An attacker between nodes and controllers of the management network: everything that leaves an end is
//! recorded, and is carried, changed, cut, repeated, reordered, reflected, or given to another connection. All
//! ends share a secret, which the attacker does not have. No end panics or buffers more than a frame before it
//! is open. A controller opens at most once for each node, only after that node has seen it, and what an end
//! delivers are the messages of one end of the other side, from the first on, in order.

use management::{Bug, Connection, Event, Identity, MAX_QUEUED, Peer, Secret};
use std::collections::BTreeSet;
use switch::Nanos;

/// Ends that exist at a time: even ones are nodes, odd ones are controllers
const ENDS: usize = 4;
/// Bytes that are recorded of an end
const RECORDED: usize = 1 << 16;

struct End {
    connection: Connection,
    /// Number of the end; those of nodes are the numbers of their processes
    number: u32,
    /// What has left the end, and where parts of that begin
    recorded: Vec<u8>,
    parts: Vec<usize>,
    /// What of this has been carried to the other end
    carried: usize,
    /// Messages sent
    sent: u32,
    /// The other end whose messages it delivers, and how many
    delivered: Option<(u32, u32)>,
}

impl End {
    fn new(number: u32, now: Nanos, bug: Option<Bug>) -> Self {
        let secret = Secret::new(b"not known to the attacker").ok();
        let own = Identity { secret, topology: 7 };
        let mut random = [0; 32];
        random[..4].copy_from_slice(&number.to_be_bytes());
        let mut connection = if number.is_multiple_of(2) {
            Connection::node(own, Peer::Process(number), random, now)
        } else {
            Connection::controller(own, random, now)
        };
        if let Some(bug) = bug {
            connection.plant(bug);
        }
        Self {
            connection,
            number,
            recorded: Vec::new(),
            parts: Vec::new(),
            carried: 0,
            sent: 0,
            delivered: None,
        }
    }

    fn record(&mut self) {
        let bytes = self.connection.output().to_vec();
        assert!(bytes.len() <= MAX_QUEUED + 100);
        self.connection.consume(bytes.len());
        if !bytes.is_empty() && self.recorded.len() + bytes.len() <= RECORDED {
            self.parts.push(self.recorded.len());
            self.recorded.extend(bytes);
        }
    }

    /// Sends a message that no other end sends.
    fn send(&mut self, more: u8, now: Nanos) {
        if self.connection.is_open() {
            let mut message = [self.number.to_be_bytes(), self.sent.to_be_bytes()].concat();
            message.resize(8 + usize::from(more), more);
            if self.connection.send(&message, now).is_ok() {
                self.sent += 1;
            }
        }
    }
}

struct World {
    ends: Vec<End>,
    /// Number of the next end
    next: u32,
    now: Nanos,
    bug: Option<Bug>,
    /// Nodes for which a controller has opened
    opened: BTreeSet<u32>,
    /// Ends whose messages were delivered
    heard: BTreeSet<u32>,
}

impl World {
    fn new(bug: Option<Bug>) -> Self {
        let ends = (0..ENDS as u32).map(|number| End::new(number, Nanos(0), bug)).collect();
        let (opened, heard) = (BTreeSet::new(), BTreeSet::new());
        Self { ends, next: ENDS as u32, now: Nanos(0), bug, opened, heard }
    }

    fn feed(&mut self, to: usize, bytes: &[u8]) {
        _ = self.ends[to].connection.on_bytes(bytes, self.now);
    }

    /// Returns a part of what an end has sent.
    fn part(&self, of: usize, which: u8, count: u8) -> Vec<u8> {
        let End { recorded, parts, .. } = &self.ends[of];
        let Some(last) = parts.len().checked_sub(1) else { return Vec::new() };
        let first = last.saturating_sub(usize::from(which));
        let end = parts.get(first + 1 + usize::from(count)).copied().unwrap_or(recorded.len());
        recorded[parts[first]..end].to_vec()
    }

    fn step(&mut self, [kind, a, b, c]: [u8; 4]) {
        let (end, other) = (usize::from(a) % ENDS, usize::from(b) % ENDS);
        match kind % 16 {
            // Carries what waits to the other end of the connection, mostly all of it.
            0..=6 => {
                let from = &mut self.ends[end];
                let waiting = from.recorded[from.carried..].to_vec();
                let count = if b < 200 { waiting.len() } else { waiting.len().min(usize::from(c)) };
                from.carried += count;
                let mut bytes = waiting[..count].to_vec();
                match (kind % 16, bytes.get_mut(usize::from(c))) {
                    (5, Some(byte)) if b & 1 == 0 => *byte ^= 1 << (b >> 1 & 7),
                    (6, _) if b.is_multiple_of(4) => return,
                    _ => {}
                }
                self.feed(end ^ 1, &bytes);
            }
            7 | 8 => self.ends[end].send(c, self.now),
            9 | 10 => {
                let bytes = self.part(other, c & 15, c >> 6);
                self.feed(end, &bytes);
            }
            // Everything that an end has sent so far, to another one
            11 => {
                let bytes = self.ends[other].recorded.clone();
                self.feed(end, &bytes);
            }
            12 => self.feed(end, &[kind, a, b, c]),
            13 => self.now = self.now + Nanos(u64::from(b) << (c % 26)),
            14 => {
                // The next number of the same side
                let number = self.next + (self.next + end as u32) % 2;
                self.next = number + 1;
                let recorded = std::mem::take(&mut self.ends[end].recorded);
                let parts = std::mem::take(&mut self.ends[end].parts);
                let carried = recorded.len();
                self.ends[end] = End { recorded, parts, carried, ..End::new(number, self.now, self.bug) };
            }
            _ => _ = self.ends[end].connection.on_timer(self.now),
        }
    }

    /// Returns what an end has done that it must not do.
    fn check(&mut self) -> Result<(), String> {
        for end in &mut self.ends {
            let is_node = end.number.is_multiple_of(2);
            while let Some(event) = end.connection.poll_event() {
                let message = match event {
                    Event::Open(Peer::Process(node)) if is_node => {
                        assert_eq!(node, end.number);
                        continue;
                    }
                    Event::Open(Peer::Process(node)) => {
                        if !self.opened.insert(node) {
                            return Err(format!("a second controller has opened for node {node}"));
                        }
                        continue;
                    }
                    Event::Open(peer) => return Err(format!("{peer:?} does not exist")),
                    Event::Message(message) => message,
                };
                let number = |at: usize| u32::from_be_bytes(*message[at..].first_chunk().expect("8 bytes"));
                let (from, count) = (number(0), number(4));
                if from.is_multiple_of(2) == is_node {
                    return Err(format!("end {} delivers a message of its own side", end.number));
                }
                let new = end.delivered.is_none();
                let (of, next) = *end.delivered.get_or_insert((from, 0));
                if (from, count) != (of, next) {
                    return Err(format!("message {count} of {from} is delivered in place of {next} of {of}"));
                }
                if new && !self.heard.insert(from) {
                    return Err(format!("two ends deliver messages of {from}"));
                }
                end.delivered = Some((of, next + 1));
            }
            end.record();
        }
        Ok(())
    }
}

/// Runs an input with a planted bug. Returns what the bug has led to.
pub(crate) fn run_with(input: &[u8], bug: Option<Bug>) -> Result<(), String> {
    let mut world = World::new(bug);
    world.check()?;
    for step in input.chunks_exact(4) {
        world.step(step.try_into().expect("four bytes"));
        world.check()?;
    }
    Ok(())
}

/// Runs one input.
pub(crate) fn run(input: &[u8]) {
    run_with(input, None).unwrap();
}

#[cfg(test)]
mod tests {
    use super::*;
    use switch::Rng;

    /// Returns an input of drawn steps, of which most carry and send, because an attack ends a connection.
    fn drawn(seed: u64) -> Vec<u8> {
        let mut rng = Rng::new(seed);
        let attacks = rng.between(1, 10);
        let step = |_| {
            let [_, a, b, c, ..] = rng.bits().to_be_bytes();
            match rng.below(100) {
                roll if roll < attacks => [9 + a % 4, a, b, c],
                roll if roll < 2 * attacks => [rng.bits() as u8, a, b, c],
                roll if roll < 2 * attacks + 2 => [14, a, b, c],
                0..=80 => [0, a, 0, 0],
                _ => [7, a, b, c],
            }
        };
        (0..150).flat_map(step).collect()
    }

    #[test]
    fn a_drawn_attacker_achieves_nothing() {
        let mut open = 0;
        for seed in 0..2_000 {
            let mut world = World::new(None);
            world.check().unwrap();
            for step in drawn(seed).chunks_exact(4) {
                world.step(step.try_into().unwrap());
                world.check().unwrap_or_else(|error| panic!("seed {seed}: {error}"));
            }
            open += usize::from(!world.heard.is_empty());
        }
        assert!(open > 500, "messages are delivered in many runs: {open}");
    }

    #[test]
    fn planted_bugs_of_connections_are_found() {
        for bug in Bug::ALL {
            let found = (0..5_000).find_map(|seed| run_with(&drawn(seed), Some(bug)).err());
            assert!(found.is_some(), "{bug:?} is found by no seed");
        }
    }
}
