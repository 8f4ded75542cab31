//! Beacons with a detour: three IP headers, two of which switches remove.

use super::*;
use switch::forward::Forward;
use switch::tunnel::{self, InnerForwarding, Tunnel};

const SWITCHES: [MacAddr; 2] = [MacAddr([2, 0, 0, 0, 2, 1]), MacAddr([2, 0, 0, 0, 2, 2])];

/// Tunnel address of switch `n`.
fn tunnel_end(v6: bool, n: u8) -> IpAddr {
    ip(v6, 200 + n)
}

/// Returns a representative whose only link has this detour.
fn representative_with(detour: Vec<IpAddr>, address: IpAddr) -> Representative {
    let mut config = config(Incarnation::Host);
    for link in &mut config.links {
        (link.port, link.beacon) = (PortId(0), BeaconForm::Write { va: VA, rkey: RKEY });
    }
    config.links.truncate(1);
    config.links[0] = Link { mac: SWITCHES[0], address, detour, ..config.links[0].clone() };
    Representative::new(config).unwrap()
}

/// Returns the one beacon that the representative sends at first.
fn first_beacon(function: &mut Representative) -> Vec<u8> {
    let mut out = FrameCollector::with_room(8);
    function.on_timer(Nanos(0), &mut out);
    assert_eq!(out.frames.len(), 1);
    out.frames.pop().unwrap().0.into_bytes()
}

/// Returns the frame as switch `n`, which accepts tunnels from `source`, forwards it to `next`.
fn pass_switch(frame: &[u8], n: u8, source: IpAddr, next: (IpAddr, MacAddr)) -> Vec<u8> {
    let own = SWITCHES[usize::from(n) - 1];
    let (ends, sources) = (vec![tunnel_end(true, n), tunnel_end(false, n)], vec![source]);
    let config = tunnel::Config {
        mac: own,
        endpoints: ends,
        sources,
        inner_forwarding: InnerForwarding::NextHops(vec![next]),
    };
    let mut bridge = forward::Config::bridge(2, 4);
    if let ForwardingMode::Mac(table) = &mut bridge.mode {
        table.fixed = vec![(next.1, PortId(1))];
    }
    let mut tunnel = Tunnel::new(&config, Forward::new(&bridge));
    let (verdict, mut frames) = run_frame(&mut tunnel, frame, PortId(0), Nanos(0));
    assert_eq!((verdict, tunnel.counters().terminated.frames.get()), (Verdict::Forward(PortId(1)), 1));
    frames.pop().unwrap().0
}

#[test]
fn beacon_leaves_its_detour_unchanged() {
    for (v6, outer) in [(false, false), (true, true), (false, true), (true, false)] {
        let to = ip(v6, 0);
        let detour = vec![tunnel_end(outer, 1), tunnel_end(outer, 2)];
        let frame = first_beacon(&mut representative_with(detour, to));
        let plain = first_beacon(&mut representative_with(Vec::new(), to));
        assert_eq!(frame.len(), plain.len() + 2 * if outer { 40 } else { 20 });
        assert!(Packet::parse(&frame).is_none(), "not recognised as a beacon on the way");
        let class = |frame: &[u8]| if outer { frame[14] << 4 | frame[15] >> 4 } else { frame[15] };
        assert_eq!(class(&frame), 0x6a, "the DSCP of the beacon without a detour");
        let frame = pass_switch(&frame, 1, ip(outer, 254), (tunnel_end(outer, 2), SWITCHES[1]));
        assert_eq!(class(&frame), 0x6a);
        let frame = pass_switch(&frame, 2, tunnel_end(outer, 1), (to, mac(0)));
        let packet = Packet::parse(&frame).expect("a beacon");
        assert!(packet.verify_icrc());
        assert_eq!(
            (packet.src(), packet.dst()),
            (ip(v6, 254), to),
            "from the representative to its neighbour"
        );
        let l4 = if v6 { 14 + 40 } else { 14 + 20 };
        assert_eq!((&frame[l4..], frame[13]), (&plain[l4..], plain[13]));
    }
}

#[test]
fn one_tunnel_suffices_where_the_link_ends_at_a_host() {
    let frame = first_beacon(&mut representative_with(vec![tunnel_end(false, 1)], ip(false, 0)));
    let frame = pass_switch(&frame, 1, ip(false, 254), (ip(false, 0), mac(0)));
    assert_eq!(Packet::parse(&frame).map(|packet| packet.dst()), Some(ip(false, 0)));
}

/// Each beacon of a detour carries the current barrier; the outer headers do not change.
#[test]
fn every_beacon_takes_the_detour() {
    let mut function = representative_with(vec![tunnel_end(false, 1), tunnel_end(false, 2)], ip(false, 0));
    let first = first_beacon(&mut function);
    verdict(&mut function, &write(0, 0, at(2 * T), |_| ()), 0, 2 * T);
    let mut out = FrameCollector::with_room(8);
    function.on_timer(Nanos(2 * T), &mut out);
    let second = out.frames.pop().unwrap().0.into_bytes();
    assert_eq!((first[..14 + 60].to_vec(), first.len()), (second[..14 + 60].to_vec(), second.len()));
    let plain = [&second[..14], &second[14 + 40..]].concat();
    let packet = Packet::parse(&plain).expect("a beacon");
    assert!(packet.verify_icrc());
    assert_eq!(
        OnePipe::of(&packet).map(|header| (header.barrier(), header.psn())),
        Some((Some(at(2 * T)), Psn::new(1)))
    );
}

#[test]
fn invalid_detours_are_refused() {
    let detour = |incarnation, detour: &[IpAddr]| {
        let mut config = config(incarnation);
        config.links[1].detour = detour.to_vec();
        Representative::new(config).err()
    };
    let [one, two, other] = [tunnel_end(false, 1), tunnel_end(false, 2), tunnel_end(true, 2)];
    assert_eq!(detour(Incarnation::Host, &[one, two]), None);
    assert_eq!(detour(Incarnation::Chip, &[one, two]), Some(ConfigError::NeedlessDetour(1)));
    assert_eq!(detour(Incarnation::SwitchCpu, &[one]), Some(ConfigError::NeedlessDetour(1)));
    assert_eq!(detour(Incarnation::Host, &[one, two, one]), Some(ConfigError::LongDetour(1, 3)));
    let versions = tunnel::EncapsulationError::Versions(one, other);
    assert_eq!(detour(Incarnation::Host, &[one, other]), Some(ConfigError::Detour(1, versions)));
    let mut config = config(Incarnation::Host);
    config.addresses.truncate(1);
    config.links[1].detour = vec![other];
    assert_eq!(Representative::new(config).err(), Some(ConfigError::NoOwnAddress(1)));
}

/// The beacon that `tests/e2e/detour.py` sends through Linux routers, from the same hexadecimal file.
#[test]
fn beacon_equals_the_one_of_the_end_to_end_test() {
    let hex = include_str!("../../../../tests/e2e/detour_beacon.hex").replace('\n', "");
    let byte = |at: usize| u8::from_str_radix(&hex[at..at + 2], 16).unwrap();
    let written: Vec<_> = (0..hex.len()).step_by(2).map(byte).collect();
    let mut config = config(Incarnation::Host);
    config.mac = MacAddr([2, 0, 0, 0, 0, 1]);
    config.addresses = vec![Ipv4Addr::new(10, 0, 1, 1).into()];
    let detour = [Ipv4Addr::new(10, 255, 0, 1), Ipv4Addr::new(10, 255, 0, 2)].map(IpAddr::from);
    config.links = vec![Link {
        mac: MacAddr([2, 0, 0, 1, 0, 1]),
        address: Ipv4Addr::new(10, 0, 2, 1).into(),
        detour: detour.into(),
        beacon: BeaconForm::Write { va: VA, rkey: RKEY },
        ..link(0, Side::Above)
    }];
    assert_eq!(first_beacon(&mut Representative::new(config).unwrap()), written);
}
