//! Savings of a leader with the switch; a failover must not take longer with the switch. Times are virtual,
//! so the results are the same on any machine.

use switch::Nanos;
use workloads::consensus::costs::{Failure, pause, rates};

const RATE: u64 = 10_000_000_000;

#[test]
fn with_the_switch_a_leader_sends_and_receives_one_packet_per_value() {
    for replicas in [2, 4] {
        let through_switch = rates(replicas, 64, true, RATE).unwrap();
        // The remainder is heartbeats.
        assert!((1.0..1.02).contains(&through_switch.packets_out), "{through_switch:?}");
        assert!((1.0..1.02).contains(&through_switch.packets_in), "{through_switch:?}");
    }
    let directly = rates(2, 64, false, RATE).unwrap();
    assert!((2.0..2.04).contains(&directly.packets_out) && (2.0..2.04).contains(&directly.packets_in));
}

#[test]
fn goodput_with_the_switch_grows_with_the_number_of_replicas() {
    let ratio = |replicas, size| {
        let goodput = |through_switch| rates(replicas, size, through_switch, RATE).unwrap().goodput_bps;
        goodput(true) / goodput(false)
    };
    assert!(ratio(2, 512) >= 1.95);
    assert!(ratio(4, 512) >= 3.9);
}

#[test]
fn a_failover_takes_no_longer_with_the_switch() {
    for failure in Failure::ALL {
        let (directly, _) = pause(failure, false, 2, 1, 1).unwrap();
        let (through_switch, _) = pause(failure, true, 2, 1, 1).unwrap();
        // A difference of one packet is tolerated.
        let most = directly.0 * 11 / 10 + Nanos::from_micros(1).0;
        assert!(
            through_switch.0 <= most,
            "{failure:?}: {through_switch:?} through the switch, {directly:?} without it"
        );
    }
}
