//! Limits of the neighbour table, and hosts that try to fill it.

use super::pair::*;
use crate::*;
use core::net::Ipv4Addr;
use switch::Nanos;

/// More hosts than the table has entries
const HOSTS: u32 = 5000;

/// Returns an ARP request from `ip` for the address of NIC 0.
fn arp_request(ip: Ipv4Addr) -> Vec<u8> {
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

/// Returns a NIC that received ARP requests from [`HOSTS`] hosts of the network `net`.
fn nic_requested_by_hosts(mut config: Config, net: Ipv4Addr, prefix: u8) -> Rnic {
    config.interface.addresses[0].1 = prefix;
    let mut nic = Rnic::new(config);
    let mut out = Vec::new();
    for n in 0..HOSTS {
        nic.on_frame(&arp_request(Ipv4Addr::from_bits(net.to_bits() + 256 + n)), Nanos(u64::from(n)));
        while nic.poll_transmit(Nanos(u64::from(n)), &mut out) {}
    }
    nic
}

/// Returns whether the NIC resolves the address of NIC 1.
fn resolves_nic_1(nic: &mut Rnic, now: Nanos) -> bool {
    let (mut other, mut frame) = (Rnic::new(config(1)), Vec::new());
    assert_eq!(nic.resolve(address(1), now), None);
    if nic.poll_transmit(now, &mut frame) {
        other.on_frame(&frame, now);
        assert!(other.poll_transmit(now, &mut frame), "a reply");
        nic.on_frame(&frame, now);
    }
    nic.resolve(address(1), now) == Some(config(1).interface.mac)
}

#[test]
fn hosts_outside_of_the_network_do_not_fill_the_table() {
    let mut nic = nic_requested_by_hosts(config(0), Ipv4Addr::new(172, 16, 0, 0), 24);
    assert!(resolves_nic_1(&mut nic, Nanos(u64::from(HOSTS))));
    assert_eq!(nic.endpoint().neighbours().len(), 1, "no frame is ever sent to them");
}

#[test]
fn a_host_that_is_requested_gets_an_entry_in_a_full_table() {
    let mut nic = nic_requested_by_hosts(config(0), Ipv4Addr::new(10, 0, 0, 0), 8);
    assert_eq!(nic.endpoint().neighbours().len(), 4096);
    assert!(resolves_nic_1(&mut nic, Nanos(u64::from(HOSTS))));
    // The oldest entry was removed.
    assert_eq!(nic.resolve(Ipv4Addr::new(10, 0, 1, 0).into(), Nanos(1)), None);
    assert!(nic.resolve(Ipv4Addr::new(10, 0, 1, 2).into(), Nanos(1)).is_some());
}

#[test]
fn expired_entries_are_replaced_by_new_ones() {
    let mut nic = nic_requested_by_hosts(config(0), Ipv4Addr::new(10, 0, 0, 0), 8);
    let new_host = Ipv4Addr::new(10, 9, 0, 1);
    nic.on_frame(&arp_request(new_host), Nanos::from_secs(1));
    assert_eq!(nic.resolve(new_host.into(), Nanos::from_secs(1)), None, "no entry has expired");
    let new_host = Ipv4Addr::new(10, 9, 0, 2);
    nic.on_frame(&arp_request(new_host), Nanos::from_secs(61));
    assert!(nic.resolve(new_host.into(), Nanos::from_secs(61)).is_some());
    assert!(nic.endpoint().neighbours().len() <= 4096);
}

#[test]
fn the_cost_of_a_frame_is_bounded_with_a_full_table() {
    let mut nic = nic_requested_by_hosts(config(0), Ipv4Addr::new(10, 0, 0, 0), 8);
    let examined = nic.endpoint().neighbours().examined();
    for n in 0..100 {
        // While no entry has expired, new hosts are refused. Later each new host replaces an expired entry.
        nic.on_frame(&arp_request(Ipv4Addr::from_bits(0x0a09_0000 + n)), Nanos::from_secs(1));
        nic.on_frame(&arp_request(Ipv4Addr::from_bits(0x0a09_0000 + n)), Nanos::from_secs(90));
    }
    let each = (nic.endpoint().neighbours().examined() - examined) / 200;
    assert!(each <= 2, "{each} neighbours examined for each frame");
}

#[test]
fn outstanding_requests_cost_no_search_in_the_timer() {
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
    let (mut timers, before) = (0, nic.endpoint().neighbours().examined());
    while let Some(at) = nic.next_timer().filter(|at| *at < Nanos::from_secs(1)) {
        nic.on_timer(at);
        while nic.poll_transmit(at, &mut frame) {}
        timers += 1;
    }
    let each = (nic.endpoint().neighbours().examined() - before) / timers;
    assert!(timers >= 4000 && each <= 2, "{each} neighbours examined in each of {timers} timers");
}

#[test]
fn a_gateway_outside_of_the_network_is_learned() {
    let gateway = Ipv4Addr::new(192, 168, 0, 1);
    let mut config = config(0);
    config.interface.gateways.push(gateway.into());
    let mut nic = Rnic::new(config);
    nic.on_frame(&arp_request(gateway), Nanos(1));
    assert!(nic.resolve(Ipv4Addr::new(8, 8, 8, 8).into(), Nanos(1)).is_some());
}
