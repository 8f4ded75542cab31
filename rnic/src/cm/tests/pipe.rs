//! Two managers with their owners, and a channel that drops, duplicates and reorders.

use super::*;
use core::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use switch::random::{Probability, Rng};

/// A scheduled action of an owner or of the channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Action {
    /// Deliver the message with this index to this side
    Deliver(usize, usize),
    Connect(u32),
    Accept(Conn),
    Confirm(Conn),
    Disconnect(Conn),
}

/// Events and calls that an owner has seen of a connection.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools)]
struct Observed {
    qpn: u32,
    confirmed: bool,
    established: bool,
    rejected_by_us: bool,
    disconnect_called: bool,
    disconnecting: bool,
    last: Option<&'static str>,
}

struct World {
    cms: [Cm; 2],
    seen: [BTreeMap<Conn, Observed>; 2],
    agenda: BinaryHeap<Reverse<(Nanos, u64, usize, Action)>>,
    mads: Vec<(AddressPair, [u8; MAD_LEN])>,
    rng: Rng,
    loss: Probability,
    now: Nanos,
    order: u64,
}

impl World {
    fn new(seed: u64, loss_percent: u64) -> Self {
        let config = Config { capacity: 64, ..Config::default() };
        let mut cms = [Cm::new(config, seed), Cm::new(config, seed + 1_000_000)];
        cms[0].listen(SERVICE).unwrap();
        cms[1].listen(SERVICE).unwrap();
        Self {
            cms,
            seen: Default::default(),
            agenda: BinaryHeap::new(),
            mads: Vec::new(),
            rng: Rng::new(seed),
            loss: Probability::percent(loss_percent),
            now: T0,
            order: 0,
        }
    }

    fn schedule(&mut self, side: usize, after: Nanos, action: Action) {
        self.order += 1;
        self.agenda.push(Reverse((self.now + after, self.order, side, action)));
    }

    /// Returns a random time below `most` milliseconds.
    fn random_ms(&mut self, most: u64) -> Nanos {
        Nanos::from_millis(self.rng.below(most))
    }

    fn transmit(&mut self, side: usize) {
        while let Some((addresses, mad)) = self.cms[side].poll_transmit() {
            let copies = 1 + usize::from(self.rng.happens(Probability::percent(10)));
            for _ in 0..copies {
                if self.rng.happens(self.loss) {
                    continue;
                }
                self.mads.push((reversed(addresses), mad));
                let at = self.mads.len() - 1;
                // Some messages arrive seconds later, when the connection may be closed.
                let most = if self.rng.happens(Probability::percent(5)) { 9000 } else { 50 };
                let after = self.random_ms(most);
                self.schedule(side, after, Action::Deliver(1 - side, at));
            }
        }
    }

    fn process_events(&mut self, side: usize) {
        while let Some(event) = self.cms[side].poll_event() {
            let conn = event.conn();
            let now = self.now;
            let seen = self.seen[side].entry(conn).or_default();
            assert_eq!(seen.last, None, "{event:?} after the last event");
            assert!(!seen.rejected_by_us, "{event:?} after it was rejected");
            match &event {
                Event::Requested { request, .. } => {
                    seen.qpn = request.qpn.get();
                    match self.rng.below(10) {
                        0 => {
                            seen.rejected_by_us = true;
                            self.cms[side].reject(conn, RejReason::CONSUMER, b"no", now).unwrap();
                        }
                        1 | 2 => {
                            self.cms[side].delay(conn, 20).unwrap();
                            let after = self.random_ms(9000);
                            self.schedule(side, after, Action::Accept(conn));
                        }
                        _ => self.schedule(side, T0, Action::Accept(conn)),
                    }
                }
                Event::Replied { .. } => match self.rng.below(10) {
                    0 => {
                        seen.rejected_by_us = true;
                        self.cms[side].reject(conn, RejReason::CONSUMER, b"no", now).unwrap();
                    }
                    1 | 2 => {
                        self.cms[side].delay(conn, 20).unwrap();
                        let after = self.random_ms(9000);
                        self.schedule(side, after, Action::Confirm(conn));
                    }
                    _ => self.schedule(side, T0, Action::Confirm(conn)),
                },
                Event::Established { .. } => {
                    assert!(!seen.established);
                    seen.established = true;
                    // The first side to act closes the connection; if nothing arrives, each closes it by
                    // itself.
                    let after = self.random_ms(60_000);
                    self.schedule(side, after, Action::Disconnect(conn));
                }
                Event::Disconnecting { .. } => {
                    assert!(!seen.disconnecting && !seen.disconnect_called);
                    seen.disconnecting = true;
                }
                Event::Rejected { .. } => seen.last = Some("rejected"),
                Event::Disconnected { .. } => seen.last = Some("disconnected"),
                Event::Unreachable { .. } => seen.last = Some("unreachable"),
            }
            assert_eq!(event.is_last(), self.seen[side][&conn].last.is_some());
        }
        self.transmit(side);
    }

    fn act(&mut self, side: usize, action: Action) {
        let now = self.now;
        match action {
            Action::Deliver(to, at) => {
                let (addresses, mad) = self.mads[at];
                self.cms[to].on_mad(addresses, &mad, now);
                self.process_events(to);
            }
            Action::Connect(qpn) => {
                let addresses = if side == 0 { A_TO_B } else { B_TO_A };
                let conn =
                    self.cms[side].connect(&ConnectRequest { addresses, ..request(qpn) }, now).unwrap();
                self.seen[side].insert(conn, Observed { qpn, ..Observed::default() });
            }
            // The connection may have ended meanwhile.
            Action::Accept(conn) => {
                _ = self.cms[side].accept(conn, &answer(1000 + conn.comm_id() % 65536), now);
            }
            Action::Confirm(conn) => {
                if self.cms[side].confirm(conn, &[]).is_ok() {
                    self.seen[side].get_mut(&conn).unwrap().confirmed = true;
                    let after = self.random_ms(40_000);
                    self.schedule(side, after, Action::Disconnect(conn));
                }
            }
            Action::Disconnect(conn) => {
                if self.cms[side].disconnect(conn, b"bye", now).is_ok() {
                    self.seen[side].get_mut(&conn).unwrap().disconnect_called = true;
                }
            }
        }
        self.process_events(side);
    }

    fn run(&mut self) {
        loop {
            let timers = [self.cms[0].next_timer(), self.cms[1].next_timer()];
            let next = self.agenda.peek().map(|&Reverse((at, ..))| at);
            let Some(at) = timers.into_iter().chain([next]).flatten().min() else { return };
            assert!(at < Nanos::from_secs(3600), "the run does not end");
            self.now = self.now.max(at);
            if next == Some(at) {
                let Reverse((_, _, side, action)) = self.agenda.pop().unwrap();
                self.act(side, action);
            } else {
                let side = usize::from(timers[0] != Some(at));
                self.cms[side].on_timer(self.now);
                self.process_events(side);
            }
        }
    }
}

/// Simulates connections and returns everything that happened, in a form that can be compared.
fn simulate(seed: u64, loss_percent: u64) -> String {
    let mut world = World::new(seed, loss_percent);
    for n in 0..8u32 {
        let after = world.random_ms(15_000);
        world.schedule(n as usize % 2, after, Action::Connect(0x100 + n));
    }
    world.run();
    for side in 0..2 {
        assert!(world.cms[side].is_empty(), "seed {seed}, {loss_percent} % loss: a connection is left");
        for (conn, seen) in &world.seen[side] {
            // Every connection ended: a final event was reported once, or its owner had rejected it.
            assert_eq!(seen.last.is_some(), !seen.rejected_by_us, "seed {seed}: {conn:?} {seen:?}");
            let others: Vec<_> =
                world.seen[1 - side].values().filter(|other| other.qpn == seen.qpn).collect();
            if seen.established {
                assert!(
                    others.iter().any(|other| other.confirmed),
                    "seed {seed}: {seen:?}, but the active side did not confirm: {others:?}"
                );
            }
            if loss_percent == 0 && seen.confirmed {
                let was_notified = others.iter().any(|other| other.established || other.disconnecting);
                assert!(was_notified, "seed {seed}: {seen:?}, but the passive side got no event: {others:?}");
                assert_eq!(seen.last, Some("disconnected"), "seed {seed}");
            }
        }
    }
    assert!(world.seen[0].len() >= 4 && world.seen[1].len() >= 4);
    format!("{:?} {:?} {} {:?}", world.seen, world.now, world.mads.len(), world.mads.last())
}

#[test]
fn every_connection_ends_on_both_sides() {
    for seed in 0..200 {
        for loss_percent in [0, 10, 40] {
            simulate(seed, loss_percent);
        }
    }
    // Also with hardly any message arriving.
    for seed in 0..50 {
        simulate(seed, 90);
        simulate(seed, 100);
    }
}

#[test]
fn the_same_seed_gives_the_same_run() {
    for seed in 0..10 {
        assert_eq!(simulate(seed, 30), simulate(seed, 30));
    }
    assert_ne!(simulate(1, 30), simulate(2, 30));
}

#[test]
fn most_requests_succeed_despite_loss() {
    let mut count = BTreeMap::new();
    for seed in 0..40 {
        let mut world = World::new(seed, 30);
        for n in 0..8u32 {
            world.schedule(0, T0, Action::Connect(0x100 + n));
        }
        world.run();
        for seen in world.seen[0].values() {
            *count
                .entry(if seen.confirmed { "confirmed" } else { seen.last.unwrap_or("rejected by us") })
                .or_insert(0) += 1;
        }
    }
    // 320 requests; each of the two owners rejects about one in ten.
    assert!(count["confirmed"] > 230 && count["rejected"] > 15, "{count:?}");
}
