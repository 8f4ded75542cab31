//! Hosts whose NICs have several parts, with notices that are late and peers that restart.

use super::pair::{VA, address, config};
use crate::cm::{Conn, Event as CmEvent, PortSpace, service_id_of};
use crate::part::{Notice, SETTLED_AFTER, owner};
use crate::*;
use core::cmp::Reverse;
use proptest::prelude::*;
use rocev2::Qpn;
use rocev2::cm::RejReason;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap, VecDeque};
use switch::{Nanos, Rng};

const PORT: u16 = 7174;
const SECOND: Nanos = Nanos::from_secs(1);

/// A connection as its application sees it.
#[derive(Clone, Copy, Debug)]
struct Open {
    qpn: Qpn,
    cq: Cq,
    buffer: Buffer,
    mr: Mr,
    established: bool,
}

/// A host, and the application on its parts, which accepts all connections.
struct Host {
    parts: Vec<Rnic>,
    open: BTreeMap<(usize, Conn), Open>,
    /// Ended connections, by how they ended
    rejected: usize,
    ended: usize,
}

impl Host {
    fn new(number: usize, parts: usize, seed: u64) -> Self {
        let part = |index| {
            let part = Part { index: index as u32, count: parts as u32 };
            let seed = seed.wrapping_mul(31) + index as u64;
            let mut nic = Rnic::new(Config { part, seed, max_qps: 64, max_regions: 64, ..config(number) });
            nic.listen(PortSpace::Tcp, PORT).unwrap();
            nic
        };
        Self { parts: (0..parts).map(part).collect(), open: BTreeMap::new(), rejected: 0, ended: 0 }
    }

    /// Returns a queue pair of a part, with 64 bytes of memory.
    fn create(&mut self, part: usize) -> Open {
        let nic = &mut self.parts[part];
        let pd = nic.alloc_pd();
        let cq = nic.create_cq(8).unwrap();
        let (buffer, mr) = nic.register_new(pd, 64, VA, Access::ALL).unwrap();
        let qpn = nic.create_qp(QpInit::rc(pd, cq, 4, 4)).unwrap();
        Open { qpn, cq, buffer, mr, established: false }
    }

    fn destroy(&mut self, part: usize, open: Open) {
        let nic = &mut self.parts[part];
        nic.destroy_qp(open.qpn).unwrap();
        nic.destroy_cq(open.cq).unwrap();
        nic.deregister(open.mr).unwrap();
        nic.free(open.buffer).unwrap();
    }

    fn on_event(&mut self, part: usize, event: &CmEvent, now: Nanos) {
        let key = (part, event.conn());
        match event {
            CmEvent::Requested { conn, .. } => {
                let open = self.create(part);
                let accepted = self.parts[part].accept(*conn, open.qpn, ConnParam::default(), now);
                accepted.unwrap();
                self.open.insert(key, open);
            }
            CmEvent::Replied { .. } | CmEvent::Established { .. } => {
                if let Some(open) = self.open.get_mut(&key) {
                    open.established = true;
                }
            }
            CmEvent::Disconnecting { .. } => {}
            CmEvent::Rejected { .. } | CmEvent::Disconnected { .. } | CmEvent::Unreachable { .. } => {
                let Some(open) = self.open.remove(&key) else { return };
                self.rejected += usize::from(matches!(event, CmEvent::Rejected { .. }));
                self.ended += 1;
                self.destroy(part, open);
            }
        }
    }

    /// Returns the remote queue pairs of all established connections.
    fn remote_qps(&self) -> Vec<Qpn> {
        let established = self.open.iter().filter(|(_, open)| open.established);
        established.filter_map(|((part, _), open)| Some(self.parts[*part].qp_peer(open.qpn)?.1)).collect()
    }
}

/// Latencies in a world.
#[derive(Clone, Copy, Debug)]
struct Latency {
    /// Longest time in the ring between two workers
    ring: u64,
    /// Longest time of a notice
    notice: u64,
}

/// What arrives
#[derive(PartialEq, Eq, PartialOrd, Ord)]
enum Item {
    Frame(Vec<u8>),
    Notice(usize),
}

/// Time, order, host, part
type Arrival = (Nanos, u64, usize, usize, Item);

/// Two hosts and the link between them.
struct World {
    hosts: [Host; 2],
    now: Nanos,
    rng: Rng,
    latency: Latency,
    arrivals: BinaryHeap<Reverse<Arrival>>,
    order: u64,
    notices: Vec<Notice>,
    /// Time of the last frame in each ring, by host and part
    last: [Vec<Nanos>; 2],
    /// Frames that are lost, by their order from now on
    lose: VecDeque<bool>,
    /// Hosts that no frame reaches
    unreachable: [bool; 2],
}

impl World {
    fn new(seed: u64, parts: [usize; 2], latency: Latency) -> Self {
        Self {
            hosts: [0, 1].map(|n| Host::new(n, parts[n], seed + n as u64)),
            now: Nanos::ZERO,
            rng: Rng::new(seed),
            latency,
            arrivals: BinaryHeap::new(),
            order: 0,
            notices: Vec::new(),
            last: parts.map(|parts| vec![Nanos::ZERO; parts]),
            lose: VecDeque::new(),
            unreachable: [false; 2],
        }
    }

    fn push(&mut self, at: Nanos, host: usize, part: usize, item: Item) {
        self.order += 1;
        self.arrivals.push(Reverse((at, self.order, host, part, item)));
    }

    /// Puts everything on its way that the hosts send, and lets the applications handle events.
    fn collect(&mut self) {
        for host in [0, 1] {
            for part in 0..self.hosts[host].parts.len() {
                while let Some(event) = self.hosts[host].parts[part].poll_cm_event() {
                    self.hosts[host].on_event(part, &event, self.now);
                }
                let mut frame = Vec::new();
                while self.hosts[host].parts[part].poll_transmit(self.now, &mut frame) {
                    self.send(1 - host, frame.clone());
                }
                while let Some(notice) = self.hosts[host].parts[part].poll_notice() {
                    self.notices.push(notice);
                    for other in (0..self.hosts[host].parts.len()).filter(|other| *other != part) {
                        let at = self.now + Nanos(self.rng.below(self.latency.notice + 1));
                        self.push(at, host, other, Item::Notice(self.notices.len() - 1));
                    }
                }
            }
        }
    }

    fn send(&mut self, to: usize, frame: Vec<u8>) {
        if self.lose.pop_front() == Some(true) || self.unreachable[to] {
            return;
        }
        let parts = self.hosts[to].parts.len() as u32;
        let part = owner(&frame, parts).unwrap_or(0) as usize;
        let delay = 1_000 + self.rng.below(self.latency.ring + 1);
        let at = (self.now + Nanos(delay)).max(self.last[to][part]);
        self.last[to][part] = at;
        self.push(at, to, part, Item::Frame(frame));
    }

    /// Runs for a time.
    fn run(&mut self, span: Nanos) {
        let until = self.now + span;
        loop {
            self.collect();
            let timers = self.hosts.iter().flat_map(|host| &host.parts).filter_map(Rnic::next_timer);
            let arrival = self.arrivals.peek().map(|Reverse((at, ..))| *at);
            let Some(next) = timers.chain(arrival).min().filter(|at| *at <= until) else { break };
            self.now = self.now.max(next);
            for nic in self.hosts.iter_mut().flat_map(|host| &mut host.parts) {
                if nic.next_timer().is_some_and(|at| at <= self.now) {
                    nic.on_timer(self.now);
                }
            }
            while self.arrivals.peek().is_some_and(|Reverse((at, ..))| *at <= self.now) {
                let Some(Reverse((_, _, host, part, item))) = self.arrivals.pop() else { break };
                let nic = &mut self.hosts[host].parts[part];
                match item {
                    Item::Frame(frame) => nic.on_frame(&frame, self.now),
                    Item::Notice(number) => nic.on_notice(self.notices[number], self.now),
                }
                self.collect();
            }
        }
        self.now = until;
    }

    /// Requests a connection of a part of a host to the other host.
    fn connect(&mut self, from: usize, part: usize) -> Conn {
        let host = &mut self.hosts[from];
        let open = host.create(part);
        let service = service_id_of(PortSpace::Tcp, PORT);
        let to = address(1 - from);
        let conn = host.parts[part].connect(open.qpn, to, service, ConnParam::default(), self.now).unwrap();
        host.open.insert((part, conn), open);
        conn
    }

    /// Replaces a host by one that knows nothing, and uses the same numbers again if `seed` is the same.
    fn restart(&mut self, number: usize, seed: u64) {
        let parts = self.hosts[number].parts.len();
        self.hosts[number] = Host::new(number, parts, seed);
        // Notices end with their process.
        self.arrivals
            .retain(|Reverse((_, _, host, _, item))| *host != number || matches!(item, Item::Frame(_)));
    }

    /// Returns the numbers of established connections.
    fn established(&self) -> [usize; 2] {
        [0, 1].map(|n| self.hosts[n].open.values().filter(|open| open.established).count())
    }

    /// Checks that no host has two connections to the same queue pair.
    fn check_remote_qps(&self) {
        for (number, host) in self.hosts.iter().enumerate() {
            let all = host.remote_qps();
            let different: BTreeSet<_> = all.iter().collect();
            assert_eq!(all.len(), different.len(), "host {number} is connected twice: {all:?}");
        }
    }

    /// Writes through each connection whose sides know each other.
    fn check_data(&mut self) -> usize {
        let mut pairs = Vec::new();
        for (&(part, _), open) in self.hosts[0].open.iter().filter(|(_, open)| open.established) {
            let Some((_, remote)) = self.hosts[0].parts[part].qp_peer(open.qpn) else { continue };
            let other = self.hosts[1].open.iter().find(|(_, other)| other.qpn == remote && other.established);
            if let Some((&(other_part, _), other)) = other
                && self.hosts[1].parts[other_part].qp_peer(other.qpn).is_some_and(|(_, qpn)| qpn == open.qpn)
            {
                pairs.push([(0, part, *open), (1, other_part, *other)]);
            }
        }
        for [(_, part, own), (_, _, other)] in &pairs {
            let operation = Operation::Write(Remote { va: VA, rkey: other.mr.0 });
            let request = SendRequest::new(1, operation, Data::Inline(own.qpn.get().to_be_bytes().to_vec()));
            self.hosts[0].parts[*part].post_send(own.qpn, request).unwrap();
        }
        self.run(SECOND);
        for [(_, _, own), (_, other_part, other)] in &pairs {
            let bytes = self.hosts[1].parts[*other_part].bytes(other.buffer);
            assert_eq!(bytes[..4], own.qpn.get().to_be_bytes(), "a WRITE has not arrived");
        }
        pairs.len()
    }
}

fn latency() -> impl Strategy<Value = Latency> {
    let (ring, notice) =
        (prop_oneof![Just(0u64), 0..3_000_000u64], prop_oneof![Just(0u64), 0..400_000_000u64]);
    (ring, notice).prop_map(|(ring, notice)| Latency { ring, notice })
}

proptest! {
    #[test]
    fn connections_of_all_parts_carry_data_and_end(
        seed in 0u64..1 << 32,
        parts in [1usize..6, 1..6],
        latency in latency(),
        froms in proptest::collection::vec((0usize..2, 0usize..60), 1..20),
        lost in proptest::collection::vec(proptest::bool::weighted(0.1), 0..200),
    ) {
        let mut world = World::new(seed, parts, latency);
        world.lose = lost.into();
        for &(from, part) in &froms {
            world.connect(from, part % parts[from]);
        }
        world.run(Nanos::from_secs(100));
        prop_assert_eq!(world.established(), [froms.len(); 2]);
        for (host, parts) in world.hosts.iter().zip(parts) {
            for ((part, conn), open) in &host.open {
                let numbers = [conn.comm_id(), open.qpn.get() - 16];
                prop_assert_eq!(numbers.map(|number| number as usize % parts), [*part; 2]);
                let with_state = host.parts.iter().filter(|nic| nic.endpoint().cm().state(*conn).is_some());
                prop_assert_eq!(with_state.count(), 1);
            }
        }
        world.check_remote_qps();
        prop_assert_eq!(world.check_data(), froms.len());
        let open: Vec<_> = world.hosts[0].open.keys().copied().collect();
        for (part, conn) in open {
            world.hosts[0].parts[part].disconnect(conn, &[], world.now).unwrap();
        }
        world.run(Nanos::from_secs(100));
        for host in &world.hosts {
            prop_assert_eq!((host.ended, host.rejected), (froms.len(), 0));
            for nic in &host.parts {
                prop_assert_eq!(nic.resource_counts(), ResourceCounts::default());
            }
        }
    }

    #[test]
    fn a_host_that_restarts_leaves_no_second_connection_to_a_queue_pair(
        seed in 0u64..1 << 32,
        parts in [1usize..6, 1..6],
        latency in latency(),
        before in proptest::collection::vec((0usize..2, 0usize..60), 1..12),
        after in proptest::collection::vec((0usize..2, 0usize..60), 1..12),
        same_numbers in any::<bool>(),
    ) {
        let mut world = World::new(seed, parts, latency);
        for (from, part) in before {
            world.connect(from, part % parts[from]);
        }
        world.run(Nanos::from_secs(5));
        world.restart(1, if same_numbers { seed + 1 } else { seed + 77 });
        for (from, part) in after {
            world.connect(from, part % parts[from]);
            world.run(Nanos(seed % 2_000_000_000));
        }
        // Stale connections are closed by requests that are retransmitted for 69 s.
        world.run(Nanos::from_secs(300));
        world.check_remote_qps();
        let pairs = world.check_data();
        prop_assert_eq!(world.established()[1], pairs, "a connection of the new host has no other end");
    }

    #[test]
    fn a_request_that_is_given_up_ends_at_its_part(
        seed in 0u64..1 << 32,
        parts in [1usize..6, 1..6],
        latency in latency(),
        part in 0usize..60,
    ) {
        let mut world = World::new(seed, parts, latency);
        let part = part % parts[0];
        // So that the neighbours are known
        world.connect(0, part);
        world.run(SECOND);
        let conn = world.connect(0, part);
        // Linux ignores replies to a request that it has given up.
        world.unreachable[0] = true;
        world.run(Nanos::from_millis(10));
        world.hosts[0].parts[part].reject(conn, RejReason::TIMEOUT, &[], world.now).unwrap();
        let open = world.hosts[0].open.remove(&(part, conn)).unwrap();
        world.hosts[0].destroy(part, open);
        world.run(Nanos::from_millis(500));
        prop_assert_eq!(world.established(), [1, 1]);
        prop_assert_eq!((world.hosts[1].open.len(), world.hosts[1].rejected), (1, 1));
    }
}

/// Returns a connection of part 0 of host 1, and a later notice of another connection to the same queue pair.
fn connected_with_notice() -> (World, Notice) {
    let mut world = World::new(1, [1, 2], Latency { ring: 0, notice: 0 });
    world.connect(1, 0);
    world.run(Nanos::from_millis(10));
    let (_, remote) =
        world.hosts[1].parts[0].qp_peer(world.hosts[1].open.values().next().unwrap().qpn).unwrap();
    let notice = Notice::Connected { host: address(0), qpn: remote, comm_id: 7, at: world.now };
    (world, notice)
}

#[test]
fn a_late_notice_closes_no_newer_connection() {
    let (mut world, notice) = connected_with_notice();
    let Notice::Connected { host, qpn, comm_id, .. } = notice else { unreachable!() };
    let now = world.now;
    world.hosts[1].parts[0].on_notice(Notice::Connected { host, qpn, comm_id, at: Nanos(1) }, now);
    world.run(SECOND);
    assert_eq!(world.established(), [1, 1], "the connection is newer than what the notice is about");
    world.hosts[1].parts[0].on_notice(notice, now);
    let event = world.hosts[1].parts[0].poll_cm_event().expect("the application gets the event at once");
    world.hosts[1].on_event(0, &event, now);
    world.run(SECOND);
    assert_eq!(world.established(), [0, 0]);
}

#[test]
fn a_whole_nic_has_no_notices() {
    let mut world = World::new(1, [1, 1], Latency { ring: 0, notice: 0 });
    world.connect(0, 0);
    world.run(SETTLED_AFTER + SETTLED_AFTER);
    assert_eq!((world.established(), world.notices.len()), ([1, 1], 0));
}

#[test]
fn all_parts_learn_from_announcements_without_a_request() {
    let mut world = World::new(1, [1, 3], Latency { ring: 0, notice: 0 });
    for part in 0..3 {
        world.connect(1, part);
    }
    world.run(Nanos::from_millis(10));
    // A gratuitous ARP request, as after a failover
    let mac = [2, 0, 0, 0, 9, 9];
    let arp = [
        &[0xff; 6][..],
        &mac,
        &[8, 6, 0, 1, 8, 0, 6, 4, 0, 1],
        &mac,
        &[10, 0, 0, 1],
        &[0; 6],
        &[10, 0, 0, 1],
    ];
    world.send(1, arp.concat());
    world.run(Nanos::from_millis(10));
    for part in 0..3 {
        let (nic, now) = (&mut world.hosts[1].parts[part], world.now);
        assert_eq!(nic.resolve(address(0), now).map(|mac| mac.0), Some(mac), "part {part}");
    }
}

#[test]
fn a_part_without_replies_of_its_own_keeps_a_silent_neighbour() {
    for part in 0..2 {
        let mut world = World::new(1, [1, 2], Latency { ring: 0, notice: 0 });
        let part_of_host = &mut world.hosts[1].parts[part];
        part_of_host.on_notice(
            Notice::Neighbour { ip: address(0), mac: config(0).interface.mac, create: true },
            Nanos::ZERO,
        );
        // The neighbour is asked again after a minute, and does not answer.
        let mut now = Nanos::from_secs(61);
        assert!(part_of_host.resolve(address(0), now).is_some());
        for _ in 0..20 {
            now = now + Nanos::from_millis(500);
            part_of_host.on_timer(now);
        }
        assert_eq!(part_of_host.endpoint().neighbours().len(), part, "part {part}");
    }
}

#[test]
fn a_connection_that_ended_soon_is_not_announced() {
    let mut world = World::new(1, [2, 1], Latency { ring: 0, notice: 0 });
    let conn = world.connect(0, 1);
    world.run(Nanos::from_millis(500));
    world.hosts[0].parts[1].disconnect(conn, &[], world.now).unwrap();
    world.run(Nanos::from_secs(5));
    let is_connected = |notice: &Notice| matches!(notice, Notice::Connected { .. });
    assert_eq!(world.notices.iter().filter(|notice| is_connected(notice)).count(), 0);
}

#[test]
fn a_request_for_a_connected_queue_pair_reaches_the_part_of_its_connection() {
    // The owner of the request of queue pair 16 + `number` of a host that has not started before
    let owner_of_request = |seed: u64, number: usize, parts: u32| {
        let mut host = Host::new(0, 1, seed);
        let mac = config(1).interface.mac;
        host.parts[0].on_notice(Notice::Neighbour { ip: address(1), mac, create: true }, Nanos::ZERO);
        let open = (0..=number).map(|_| host.create(0)).last().unwrap();
        let service = service_id_of(PortSpace::Tcp, PORT);
        let nic = &mut host.parts[0];
        nic.connect(open.qpn, address(1), service, ConnParam::default(), Nanos::ZERO).unwrap();
        let mut frame = Vec::new();
        assert!(nic.poll_transmit(Nanos::ZERO, &mut frame));
        owner(&frame, parts).unwrap()
    };
    for parts in 1..8 {
        let first = owner_of_request(1, 0, parts);
        assert!((2..20).all(|seed| owner_of_request(seed, 0, parts) == first), "{parts} parts");
        let next: Vec<_> = (1..9).map(|number| owner_of_request(3, number, parts)).collect();
        let wanted: Vec<_> = (1..9).map(|number| (first + number) % parts).collect();
        assert_eq!(next, wanted, "queue pairs are spread evenly");
    }
}

#[test]
fn announcements_of_a_neighbour_become_one_notice() {
    let mut host = Host::new(1, 2, 1);
    let arp = |operation: u8, mac: u8, target: [u8; 4]| {
        let mac = [2, 0, 0, 0, 0, mac];
        let head = [0, 1, 8, 0, 6, 4, 0, operation];
        [&[0xff; 6][..], &mac, &[8, 6], &head, &mac, &[10, 0, 0, 1], &[0; 6], &target].concat()
    };
    host.parts[0].on_frame(&arp(2, 7, [10, 0, 0, 2]), Nanos(1));
    host.parts[0].on_frame(&arp(1, 8, [10, 0, 0, 1]), Nanos(2));
    let mac = rocev2::ethernet::MacAddr([2, 0, 0, 0, 0, 8]);
    let notice = Notice::Neighbour { ip: address(0), mac, create: true };
    assert_eq!([0, 1].map(|_| host.parts[0].poll_notice()), [Some(notice), None]);
}
