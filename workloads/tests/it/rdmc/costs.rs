//! Durations of transfers, simulated packet by packet, and their agreement with the model.

use rdmc::model::{Network, Object, run};
use rdmc::{Algorithm, Racks, Schedule};
use workloads::rdmc::costs::{TransferCosts, transfer, wide};

const RATE: u64 = 40_000_000_000;
const BLOCK: u32 = 256 << 10;
const BYTES: u32 = 16 * BLOCK;

fn measured(algorithm: Algorithm, hosts: u16) -> TransferCosts {
    transfer(algorithm, hosts, BYTES, BLOCK, wide(RATE), &[]).unwrap()
}

/// Share of a packet's bytes on the wire that are payload: 4,096. The remainder is Ethernet with preamble and
/// gap, IP, UDP, BTH and ICRC.
const PAYLOAD: f64 = 4096.0 / (4096.0 + 14.0 + 20.0 + 8.0 + 12.0 + 4.0 + 24.0);

fn modelled(algorithm: Algorithm, hosts: u16) -> f64 {
    modelled_with(algorithm, hosts, None)
}

/// Returns the duration with one host whose link has half the rate.
fn modelled_with(algorithm: Algorithm, hosts: u16, slow: Option<u16>) -> f64 {
    // Two links of 1 us each, and the switch, which stores and forwards a packet
    let latency = 2e-6 + 4178.0 * 8.0 / RATE as f64;
    let mut network = Network::new(hosts.into(), RATE as f64 * PAYLOAD, latency);
    if let Some(slow) = slow {
        let others = (0..usize::from(hosts)).filter(|host| *host != usize::from(slow));
        network.slow = others.map(|other| (slow.into(), other, network.rate_bps / 2.0)).collect();
    }
    let object = Object {
        schedule: Schedule::new(algorithm, hosts.into(), BYTES.div_ceil(BLOCK)).unwrap(),
        members: (0..usize::from(hosts)).collect(),
        bytes: BYTES.into(),
        block: BLOCK.into(),
        at: 0.0,
    };
    run(&network, &[object])[0].complete[1..].iter().copied().fold(0.0, f64::max)
}

#[test]
fn packets_take_as_long_as_the_model_predicts() {
    for hosts in [2, 3, 4, 5, 8] {
        let racks = Racks::new(&(0..hosts).map(|host| host / 2).collect::<Vec<_>>()).unwrap();
        let all = [
            Algorithm::Sequential,
            Algorithm::Chain,
            Algorithm::Tree,
            Algorithm::Pipeline,
            Algorithm::InNetwork,
        ];
        for algorithm in all.into_iter().chain([Algorithm::Hybrid(racks)]) {
            let (packets, model) =
                (measured(algorithm.clone(), hosts).time, modelled(algorithm.clone(), hosts));
            println!(
                "{} of {hosts}: {packets:.7} s, model {model:.7}: {:.4}",
                algorithm.name(),
                packets / model
            );
            let expected = model * 0.98..model * 1.02;
            let name = algorithm.name();
            assert!(expected.contains(&packets), "{name} of {hosts}: {packets} s, {model}");
        }
    }
}

/// One host's link has half the rate, which costs a pipeline as much as the model predicts. The first relay
/// of a chain announces later that it is ready: its words wait behind the blocks that leave on the same link.
#[test]
fn a_slow_link_costs_about_as_much_as_the_model_predicts() {
    for (algorithm, hosts) in [(Algorithm::Chain, 4), (Algorithm::Pipeline, 4), (Algorithm::Pipeline, 8)] {
        let name = algorithm.name();
        let even = measured(algorithm.clone(), hosts).time;
        for slow in [1, hosts - 1] {
            let link = [(slow, wide(RATE / 2))];
            let packets = transfer(algorithm.clone(), hosts, BYTES, BLOCK, wide(RATE), &link).unwrap().time;
            let model = modelled_with(algorithm.clone(), hosts, Some(slow));
            println!("{name} of {hosts}, {slow} is slow: {packets:.7} s, model {model:.7}, even {even:.7}");
            let most = if algorithm == Algorithm::Chain { 1.08 } else { 1.02 };
            assert!((model * 0.98..model * most).contains(&packets), "{name} of {hosts}: {packets} {model}");
            assert!(packets > even * 1.05, "{name} of {hosts}: {packets} {even}");
        }
    }
}

/// A request for a P4CE group names up to 12 members. For more members, the root requests several groups, and
/// sends each block once to each group.
#[test]
fn a_large_group_uses_several_switch_groups() {
    let (packets, model) = (measured(Algorithm::InNetwork, 14), modelled(Algorithm::InNetwork, 14));
    println!("{packets:?}, model {model}");
    assert!((model * 0.98..model * 1.02).contains(&packets.time), "{packets:?} {model}");
    let one = measured(Algorithm::InNetwork, 13);
    let twice = packets.root_out as f64 / one.root_out as f64;
    assert!((1.99..2.01).contains(&twice), "{twice}");
}

/// The root of a group whose blocks a switch copies sends each of them once. That is at most half of what the
/// root sends in a sequential send or a tree, a little less than in a pipeline, and as much as in a chain: a
/// root cannot send less. All hosts together send an (n - 1)-th of what they send with any other algorithm.
#[test]
fn a_copying_switch_saves_the_hosts_bytes() {
    for hosts in [4, 8, 13] {
        let all = [Algorithm::Sequential, Algorithm::Tree, Algorithm::Pipeline, Algorithm::Chain];
        let by_switch = measured(Algorithm::InNetwork, hosts);
        let share = |other: TransferCosts| by_switch.root_out as f64 / other.root_out as f64;
        let all = all.map(|algorithm| measured(algorithm, hosts));
        let [sequential, tree, pipeline, chain] = all.map(share);
        println!("{hosts}: root's bytes: {sequential:.3} {tree:.3} {pipeline:.3} {chain:.3}");
        assert!(sequential < 1.02 / f64::from(hosts - 1), "{sequential}");
        assert!(tree < 1.02 / f64::from(hosts).log2().ceil(), "{tree}");
        // The root sends its last block once for each dimension except one.
        let blocks = f64::from(BYTES / BLOCK);
        let expected = blocks / (blocks + f64::from(hosts.ilog2()) - 1.0);
        assert!((pipeline - expected).abs() < 0.01 && (chain - 1.0).abs() < 0.01, "{pipeline} {chain}");
        for other in all {
            let hosts_share = by_switch.hosts_out as f64 / other.hosts_out as f64;
            println!("{hosts}: all hosts' bytes: {hosts_share:.3}");
            assert!(hosts_share < 1.1 / f64::from(hosts - 1), "{hosts_share}");
            assert!(by_switch.time < other.time * 1.001, "{by_switch:?} {other:?}");
        }
    }
}
