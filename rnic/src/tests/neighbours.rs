//! The table of neighbours, and those who would fill it.

use super::pair::*;
use crate::*;
use core::net::Ipv4Addr;
use switch::Nanos;

/// More than the table holds
const MANY: u32 = 5000;

/// An ARP request for the address of NIC 0, from `ip`
fn question(ip: Ipv4Addr) -> Vec<u8> {
    let [.., high, low] = ip.octets();
    let mac = [2, 0, 0, 9, high, low];
    let mut frame = vec![0xff; 6];
    frame.extend(mac);
    frame.extend([8, 6, 0, 1, 8, 0, 6, 4, 0, 1]);
    frame.extend(mac);
    frame.extend(ip.octets());
    frame.extend([0, 0, 0, 0, 0, 0, 10, 0, 0, 1]);
    frame.resize(60, 0);
    frame
}

/// A NIC that so many hosts of the network `net` have asked for its address
fn asked(mut config: Config, net: Ipv4Addr, prefix: u8) -> Rnic {
    config.interface.addresses[0].1 = prefix;
    let mut nic = Rnic::new(config);
    let mut out = Vec::new();
    for n in 0..MANY {
        nic.on_frame(&question(Ipv4Addr::from_bits(net.to_bits() + 256 + n)), Nanos(u64::from(n)));
        while nic.poll_transmit(Nanos(u64::from(n)), &mut out) {}
    }
    nic
}

/// Whether the NIC asks for NIC 1, and hears the answer
fn finds_the_other(nic: &mut Rnic, now: Nanos) -> bool {
    let (mut other, mut frame) = (Rnic::new(config(1)), Vec::new());
    assert_eq!(nic.resolve(address(1), now), None);
    if nic.poll_transmit(now, &mut frame) {
        other.on_frame(&frame, now);
        assert!(other.poll_transmit(now, &mut frame), "an answer");
        nic.on_frame(&frame, now);
    }
    nic.resolve(address(1), now) == Some(config(1).interface.mac)
}

#[test]
fn strangers_do_not_fill_the_table() {
    let mut nic = asked(config(0), Ipv4Addr::new(172, 16, 0, 0), 24);
    assert!(finds_the_other(&mut nic, Nanos(u64::from(MANY))));
    assert_eq!(nic.endpoint.neighbours.len(), 1, "nothing is ever sent to them");
}

#[test]
fn a_network_larger_than_the_table_leaves_room_for_who_is_asked() {
    let mut nic = asked(config(0), Ipv4Addr::new(10, 0, 0, 0), 8);
    assert_eq!(nic.endpoint.neighbours.len(), 4096);
    assert!(finds_the_other(&mut nic, Nanos(u64::from(MANY))));
    // Who came first made room.
    assert_eq!(nic.resolve(Ipv4Addr::new(10, 0, 1, 0).into(), Nanos(1)), None);
    assert!(nic.resolve(Ipv4Addr::new(10, 0, 1, 2).into(), Nanos(1)).is_some());
}

#[test]
fn old_entries_make_room_for_new_ones() {
    let mut nic = asked(config(0), Ipv4Addr::new(10, 0, 0, 0), 8);
    let newcomer = Ipv4Addr::new(10, 9, 0, 1);
    nic.on_frame(&question(newcomer), Nanos::from_secs(1));
    assert_eq!(nic.resolve(newcomer.into(), Nanos::from_secs(1)), None, "all others are fresh");
    let newcomer = Ipv4Addr::new(10, 9, 0, 2);
    nic.on_frame(&question(newcomer), Nanos::from_secs(61));
    assert!(nic.resolve(newcomer.into(), Nanos::from_secs(61)).is_some());
    assert!(nic.endpoint.neighbours.len() <= 4096);
}

#[test]
fn a_frame_costs_as_much_at_a_full_table() {
    let mut nic = asked(config(0), Ipv4Addr::new(10, 0, 0, 0), 8);
    let examined = nic.endpoint.neighbours.examined;
    for n in 0..100 {
        // All others are fresh: refused. Then all are old: each newcomer takes the place of one.
        nic.on_frame(&question(Ipv4Addr::from_bits(0x0a09_0000 + n)), Nanos::from_secs(1));
        nic.on_frame(&question(Ipv4Addr::from_bits(0x0a09_0000 + n)), Nanos::from_secs(90));
    }
    let each = (nic.endpoint.neighbours.examined - examined) / 200;
    assert!(each <= 2, "{each} neighbours looked at for each frame");
}

#[test]
fn hosts_that_are_asked_for_cost_no_search_each() {
    let mut nic = Rnic::new(Config {
        interface: Interface { addresses: vec![(address(0), 8)], ..config(0).interface },
        ..config(0)
    });
    let mut frame = Vec::new();
    for n in 0..4000 {
        let now = Nanos::from_micros(n);
        assert_eq!(nic.resolve(Ipv4Addr::from_bits(0x0a09_0000 + n as u32).into(), now), None);
        while nic.poll_transmit(now, &mut frame) {}
    }
    let (mut timers, before) = (0, nic.endpoint.neighbours.examined);
    while let Some(at) = nic.next_timer().filter(|at| *at < Nanos::from_secs(1)) {
        nic.on_timer(at);
        while nic.poll_transmit(at, &mut frame) {}
        timers += 1;
    }
    let each = (nic.endpoint.neighbours.examined - before) / timers;
    assert!(timers >= 4000 && each <= 2, "{each} neighbours looked at in each of {timers} timers");
}

#[test]
fn a_gateway_of_another_network_is_heard() {
    let gateway = Ipv4Addr::new(192, 168, 0, 1);
    let mut config = config(0);
    config.interface.gateways.push(gateway.into());
    let mut nic = Rnic::new(config);
    nic.on_frame(&question(gateway), Nanos(1));
    assert!(nic.resolve(Ipv4Addr::new(8, 8, 8, 8).into(), Nanos(1)).is_some());
}
