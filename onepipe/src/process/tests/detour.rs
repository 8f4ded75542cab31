//! Beacons of a process whose own host represents its switch.

use super::*;
use rocev2::ethernet::Ethernet;
use switch::tunnel;

/// Returns the first beacon of a process whose beacons take `detour`, and its configuration.
fn beacon_of(v6: bool, detour: Vec<IpAddr>) -> (Vec<u8>, Config) {
    let mut config = config(1, 2, v6);
    config.tor.detour = detour;
    let mut process = Process::new(config.clone()).unwrap();
    process.on_timer(Nanos(5));
    let mut frame = Vec::new();
    assert!(process.poll_transmit(Nanos(5), &mut frame));
    assert_eq!(process.counters().beacons_sent.get(), 1);
    (frame, config)
}

#[test]
fn beacon_remains_after_the_switch_removes_the_tunnel_header() {
    for v6 in [false, true] {
        let end = ip(v6, 200);
        let (plain, config) = beacon_of(v6, Vec::new());
        let (frame, _) = beacon_of(v6, vec![end]);
        let outer = if v6 { 40 } else { 20 };
        assert_eq!(frame.len(), plain.len() + outer);
        assert!(Packet::parse(&frame).is_none(), "not recognised as a beacon on the way");
        let header = &frame[Ethernet::LEN..Ethernet::LEN + outer];
        let wanted =
            tunnel::encapsulation_headers(&[(config.own.address, end)], &plain[Ethernet::LEN..]).unwrap();
        assert_eq!(header, wanted, "from the process to the switch");
        let inner = [&frame[..Ethernet::LEN], &frame[Ethernet::LEN + outer..]].concat();
        assert_eq!(inner, plain, "the inner packet is the beacon without a detour");
        assert!(Packet::parse(&inner).expect("a beacon").verify_icrc());
    }
}

#[test]
fn detour_of_two_ip_versions_is_refused() {
    let mut config = config(1, 2, false);
    config.tor.detour = vec![ip(true, 200)];
    let why = Process::new(config).err();
    assert!(matches!(why, Some(ConfigError::Detour(_))), "{why:?}");
}
