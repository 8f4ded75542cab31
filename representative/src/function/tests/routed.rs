//! A switch that routes by IP: its MAC address is every neighbour's next hop.

use super::*;
use switch::forward::config::{NextHop, Route, RouteTable, Ttl};

fn router(incarnation: Incarnation) -> Representative {
    let mut config = config(incarnation);
    let via = |n: u8| vec![NextHop { port: PortId(n.into()), mac: Some(mac(n)) }];
    let to = |to: &str, n| Route { to: to.parse().unwrap(), via: via(n) };
    // Packets of these tests go to address 77.
    let routes = vec![to("10.0.0.77/32", 2), to("10.0.0.0/24", 0), to("fd00::/16", 2)];
    config.forward.topology = Topology::Routes(RouteTable { mac: OWN, ttl: Ttl::Decrement, seed: 1, routes });
    Representative::new(config).unwrap()
}

fn routed(from: u8, ns: u64) -> Vec<u8> {
    message(from, OWN, header(OnePipeOpcode::DATA, at(ns), Some(at(ns))))
}

/// Sets a frame's destination address to the router's.
fn to_router(frame: &[u8]) -> Vec<u8> {
    let mut repr = Repr::parse(frame).unwrap();
    match &mut repr.ip {
        Ip::V4(ip, _) => ip.dst = [10, 0, 0, 254],
        Ip::V6(..) => unreachable!("IPv4"),
    }
    let mut frame = vec![0; repr.frame_len()];
    repr.build(&mut frame).unwrap();
    frame
}

#[test]
fn messages_to_the_next_hop_are_routed_with_a_barrier() {
    let mut function = router(Incarnation::Chip);
    for n in 0..2 {
        verdict(&mut function, &to_router(&beacon(n, None)), n.into(), 50);
    }
    let (_, port) = forwarded(&mut function, &routed(0, 100), 0, 100);
    assert_eq!(port, PortId(2));
    let before = routed(1, 150);
    let (frame, _) = forwarded(&mut function, &before, 1, 150);
    assert_eq!(header_of(&frame).barrier(), Some(at(100)));
    assert_eq!(frame[..12], [mac(2).0, OWN.0].concat());
    assert_eq!(frame[22] + 1, before[22], "the TTL");
    assert_eq!(refused(&function), []);
    // A message from above does not go up again.
    let verdict = verdict(&mut function, &routed(3, 150), 3, 150);
    assert_eq!(verdict, Verdict::Drop(DropReason::Unexpected));
    assert_eq!(refused(&function), [("valley", 1)]);
}

#[test]
fn router_consumes_beacons_and_routes_other_traffic() {
    for incarnation in [Incarnation::Chip, Incarnation::SwitchCpu] {
        let mut function = router(incarnation);
        for n in 0..4 {
            assert_eq!(
                verdict(&mut function, &to_router(&beacon(n, Some(at(100)))), n.into(), 100),
                Verdict::Consume
            );
        }
        let register = to_router(&write(1, 1, at(200), |_| ()));
        assert_eq!(verdict(&mut function, &register, 1, 200), Verdict::Consume);
        assert_eq!(function.barriers(Side::Above).0, Some(at(100)));
        // A WRITE for another station, and a packet that is not RDMA
        let other = write(1, 1, at(300), |_| ());
        assert_eq!(forwarded(&mut function, &other, 1, 300).1, PortId(2));
        let mut tcp = packet((false, 1, OWN), Opcode::RC_SEND_ONLY, Qpn::new(5), b"", |_| ());
        (tcp[23], tcp[24], tcp[25]) = (6, 0, 0);
        let sum = rocev2::checksum::Sum::default().add(&tcp[14..34]).checksum();
        tcp[24..26].copy_from_slice(&sum.to_be_bytes());
        assert_eq!(forwarded(&mut function, &tcp, 1, 300).1, PortId(2));
        assert_eq!(
            verdict(
                &mut function,
                &to_router(&packet((false, 1, OWN), Opcode::RC_SEND_ONLY, Qpn::new(5), b"", |_| ())),
                1,
                300
            ),
            Verdict::Punt
        );
        assert_eq!(refused(&function), []);
    }
}
