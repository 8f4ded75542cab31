//! The paper's statements on transfer times, checked with schedules that are executed block by block.

use rdmc::model::{Network, Object, TransferTimes, run};
use rdmc::{Algorithm, Racks, Schedule};

const GIGA: f64 = 1e9;
const MB: u64 = 1 << 20;

fn object(algorithm: Algorithm, n: u32, bytes: u64, block: u64) -> Object {
    let blocks = bytes.div_ceil(block) as u32;
    Object {
        schedule: Schedule::new(algorithm, n, blocks).unwrap(),
        members: (0..n as usize).collect(),
        bytes,
        block,
        at: 0.0,
    }
}

fn run_object(network: &Network, object: Object) -> TransferTimes {
    run(network, &[object]).pop().unwrap()
}

/// Without latency and with all hosts in step, the time is the number of steps.
#[test]
fn transfer_times_are_the_number_of_steps() {
    let all =
        [Algorithm::Sequential, Algorithm::Chain, Algorithm::Tree, Algorithm::Pipeline, Algorithm::InNetwork];
    for n in [2, 3, 5, 8, 12, 16, 33] {
        let racks = Racks::new(&(0..n).map(|node| node / 4).collect::<Vec<_>>()).unwrap();
        for algorithm in all.clone().into_iter().chain([Algorithm::Hybrid(racks)]) {
            for k in [1, 2, 3, 10, 64] {
                let object = object(algorithm.clone(), n, k * 1000, 1000);
                // A switch copies to twelve receivers at once. For more, the root sends each block several
                // times.
                let times = if algorithm == Algorithm::InNetwork { (n - 1).div_ceil(12) } else { 1 };
                let steps = object.schedule.steps() as f64 * f64::from(times);
                let duration = run_object(&Network::new(n as usize, 8000.0, 0.0), object).last();
                // Asynchronous execution is never slower than the steps. It is faster where a node is idle.
                assert!(duration <= steps + 1e-9, "{algorithm:?} {n} {k}: {duration} of {steps}");
                if !matches!(algorithm, Algorithm::Hybrid(_)) && (n.is_power_of_two() || k > 8) {
                    assert!(duration >= steps - 1.0 - 1e-9, "{algorithm:?} {n} {k}: {duration} of {steps}");
                }
            }
        }
    }
}

/// RDMC, section 4.5.2: with one link of rate T' among links of rate T, the pipeline has l T' / (T + (l - 1)
/// T') of its bandwidth, and a chain T' / T.
#[test]
fn slow_link_reduces_bandwidth_as_the_paper_predicts() {
    let k = 256;
    for l in [2_u32, 3, 4, 6] {
        let n = 1 << l;
        let fast = Network::new(n as usize, 8000.0, 0.0);
        let time =
            |network: &Network, algorithm| run_object(network, object(algorithm, n, k * 1000, 1000)).last();
        let paper = f64::from(l) * 0.5 / (1.0 + f64::from(l - 1) * 0.5);
        for (a, b) in [(0, 1), (0, n / 2), (n / 2, n / 2 + 1), (n - 1, n - 2)] {
            let slow = Network { slow: vec![(a as usize, b as usize, 4000.0)], ..fast.clone() };
            let share = time(&fast, Algorithm::Pipeline) / time(&slow, Algorithm::Pipeline);
            println!("l {l}, link {a}-{b}: {share:.4}, by the paper {paper:.4}");
            assert!(share > paper * 0.995, "l {l}, link {a}-{b}: {share}, not {paper}");
        }
        let slow = Network { slow: vec![(1, 2, 4000.0)], ..fast.clone() };
        let share = time(&fast, Algorithm::Chain) / time(&slow, Algorithm::Chain);
        // The first block takes time to reach the end of the chain, whatever the rate of one link.
        let (blocks, hops) = (k as f64, f64::from(n - 2));
        let expected = (blocks + hops) / (2.0 * blocks + hops);
        assert!((share - expected).abs() < 0.005, "{share}, not {expected}");
    }
}

/// RDMC, figure 8: 256 MB in blocks of 1 MB at Sierra's 40 Gb/s. The time has to stay below 1.03 times steps
/// x block, and the times of 256 and 512 hosts below 1.1 times that of 128.
#[test]
fn hundreds_of_copies_take_hardly_longer_than_few() {
    let time = |n: u32| {
        let network = Network::new(n as usize, 40.0 * GIGA, 1.5e-6);
        let object = object(Algorithm::Pipeline, n, 256 * MB, MB);
        let bound = object.schedule.steps() as f64 * MB as f64 * 8.0 / (40.0 * GIGA);
        let duration = run_object(&network, object).last();
        println!(
            "{n} hosts: {:.2} ms, {:.2} % over the bound",
            duration * 1e3,
            (duration / bound - 1.0) * 100.0
        );
        assert!(duration < bound * 1.03, "{n} hosts: {duration} s where the bound is {bound} s");
        duration
    };
    for n in [4, 5, 8, 12, 16, 32, 48, 64, 100] {
        time(n);
    }
    let copies = [time(128), time(256), time(512)];
    assert!(copies[2] < copies[0] * 1.1 && copies[1] < copies[0] * 1.1, "{copies:?}");
}

/// RDMC, figure 4: sequential send and the tree fall behind as groups grow. The chain keeps up with the
/// pipeline for large objects, and falls behind for small objects in large groups.
#[test]
fn algorithms_have_the_order_of_figure_4() {
    let time = |algorithm, n: u32, bytes| {
        run_object(&Network::new(n as usize, 100.0 * GIGA, 1e-6), object(algorithm, n, bytes, MB)).last()
    };
    for n in [3, 4, 6, 8, 10, 12, 14, 16] {
        for mb in [256, 8] {
            let all = [Algorithm::Sequential, Algorithm::Tree, Algorithm::Chain, Algorithm::Pipeline];
            let [sequential, tree, chain, pipeline] = all.map(|algorithm| time(algorithm, n, mb * MB));
            println!("{n} hosts, {mb} MB: {sequential:.5} {tree:.5} {chain:.5} {pipeline:.5}");
            assert!(sequential >= tree * 0.999 && tree > pipeline * 1.3, "{n} hosts, {mb} MB");
            if mb == 256 {
                assert!((chain / pipeline - 1.0).abs() < 0.06, "{n} hosts");
            } else if n >= 12 {
                assert!(chain > pipeline * 1.25, "{n} hosts");
            }
        }
    }
}

/// RDMC, section 4.5.1: a delay of one block delays the whole transfer by no more than itself.
#[test]
fn delay_of_a_block_delays_the_transfer_by_no_more() {
    for n in [4, 8, 13, 16] {
        let network = Network::new(n as usize, 8000.0, 0.0);
        let base = object(Algorithm::Pipeline, n, 40_000, 1000);
        let duration = run_object(&network, base.clone()).last();
        // A block of another object, of half the size, shares one port for a while.
        for (from, to) in [(0, 1), (1, 2), (2, 3), (3, 1)] {
            for begins in [0, 7, 20, 39] {
                let other = Object {
                    schedule: Schedule::new(Algorithm::Chain, 2, 1).unwrap(),
                    members: vec![from, to],
                    bytes: 500,
                    block: 500,
                    at: f64::from(begins),
                };
                let late = run(&network, &[base.clone(), other])[0].last() - duration;
                // It shares two ports, and delays the block at each of them by at most half a block.
                assert!(late <= 1.0 + 1e-9, "n {n}, {from} to {to} at {begins}: {late}");
            }
        }
    }
}
