//! Savings of a leader with the switch; a failover must not take longer with the switch. Times are virtual,
//! so the results are the same on any machine.

use switch::Nanos;
use workloads::consensus::costs::{Failure, pace, pause};

const RATE: u64 = 10_000_000_000;

#[test]
fn with_the_switch_a_value_is_one_packet_out_and_one_in() {
    for replicas in [2, 4] {
        let through = pace(replicas, 64, true, RATE).unwrap();
        // The remainder is heartbeats.
        assert!((1.0..1.02).contains(&through.packets_out), "{through:?}");
        assert!((1.0..1.02).contains(&through.packets_in), "{through:?}");
    }
    let directly = pace(2, 64, false, RATE).unwrap();
    assert!((2.0..2.04).contains(&directly.packets_out) && (2.0..2.04).contains(&directly.packets_in));
}

#[test]
fn goodput_with_the_switch_grows_with_the_number_of_replicas() {
    let ratio = |replicas, size| {
        let goodput = |through| pace(replicas, size, through, RATE).unwrap().goodput_bps;
        goodput(true) / goodput(false)
    };
    assert!(ratio(2, 512) >= 1.95);
    assert!(ratio(4, 512) >= 3.9);
}

#[test]
fn a_failover_takes_no_longer_with_the_switch() {
    for failure in Failure::ALL {
        let (directly, _) = pause(failure, false, 2, 1, 1).unwrap();
        let (through, _) = pause(failure, true, 2, 1, 1).unwrap();
        // A difference of one packet is tolerated.
        let most = directly.0 * 11 / 10 + Nanos::from_micros(1).0;
        assert!(through.0 <= most, "{failure:?}: {through:?} through the switch, {directly:?} without it");
    }
}
