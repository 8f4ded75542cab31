//! Cost bounds of operations on a full table. The tests count the endpoints that are read, and measure no
//! time.

use super::Swordbox;
use crate::config::{Config, Server};
use crate::{Id, NONE};
use switch::forward;
use switch::forward::counters::HostQp;
use switch::memory::FrameCollector;
use switch::{Function, Nanos};

const SERVER: [u8; 4] = [10, 0, 0, 1];
/// Index of no endpoint: reading that endpoint panics, or ends a list traversal
const BROKEN: Id = Id::MAX - 1;

/// Returns a Swordbox with `count` unpaired endpoints between one client and the server, and their indices,
/// oldest first.
fn with_unpaired(count: u32) -> (Swordbox, Vec<Id>) {
    let mut swordbox = Swordbox::new(Config {
        connections: count as usize,
        per_host: count as usize * 2,
        ageing: Nanos::from_secs(1),
        servers: vec![Server::new(SERVER.into())],
        ..Config::new(forward::Config::bridge(2, 4))
    });
    let ids = (0..count).map(|qpn| {
        let id = swordbox
            .connections
            .add(HostQp::new(SERVER.into(), rocev2::Qpn::new(qpn)))
            .expect("the table has room");
        swordbox.connections.endpoint_mut(id).from = 0xffff_0a00_0002;
        swordbox.connections.add_unpaired(id);
        id
    });
    let ids = ids.collect();
    (swordbox, ids)
}

#[test]
fn forgetting_an_unpaired_endpoint_reads_only_its_two_neighbours() {
    for at in [1, 500, 998, 0] {
        let (mut swordbox, ids) = with_unpaired(1000);
        // The newest is the first in the list.
        let (before, next) = (ids[at + 1], at.checked_sub(1).map_or(NONE, |older| ids[older]));
        for &id in ids.iter().filter(|id| ![ids[at], before, next].contains(id)) {
            *swordbox.connections.neighbours_mut(id) = [BROKEN; 2];
        }
        swordbox.forget(ids[at]);
        assert_eq!(swordbox.connections.neighbours_mut(before)[1], next, "endpoint {at}");
        if next != NONE {
            assert_eq!(swordbox.connections.neighbours_mut(next)[0], before, "endpoint {at}");
        }
        assert_eq!(swordbox.counters().forgotten.get(), 1);
    }
}

#[test]
fn a_tick_ages_64_endpoints_of_a_table_of_any_size() {
    for count in [100, 1000, 50_000] {
        let (mut swordbox, _) = with_unpaired(count);
        let forgotten = swordbox.counters();
        let mut now = Nanos::from_secs(2);
        for tick in 1..=3 {
            swordbox.on_timer(now, &mut FrameCollector::with_room(64));
            let expected = (tick * 64).min(u64::from(count));
            assert_eq!(forgotten.forgotten.get(), expected, "{count} endpoints, tick {tick}");
            now = swordbox.next_timer().expect("the next tick");
        }
    }
}
