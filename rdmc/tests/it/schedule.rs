//! Schedules, checked by an oracle that executes them step by step and relies on nothing but their sends and
//! receives.

use proptest::prelude::*;
use rdmc::{Algorithm, Racks, Receive, Schedule, Send, To};
use std::collections::{HashMap, HashSet};

/// Totals of an execution.
#[derive(Debug, Default, PartialEq, Eq)]
struct Executed {
    transfers: u64,
    /// Blocks that the root sent.
    root_sends: u64,
    /// Last step at which any node received a block, plus one.
    busy_steps: u64,
}

/// Executes a schedule step by step. Returns the totals, or the first error.
fn execute(schedule: &Schedule) -> Result<Executed, String> {
    let (n, k) = (schedule.nodes(), schedule.blocks());
    let mut has = vec![vec![false; k as usize]; n as usize];
    has[0].fill(true);
    let mut done = Executed::default();
    for step in 0..schedule.steps() {
        // All sends of this step, by receiver. A second send to the same receiver is an error.
        let mut in_flight = HashMap::new();
        for node in 0..n {
            let Some(Send { to, block }) = schedule.send(node, step) else { continue };
            let is_held = has[node as usize].get(block as usize).copied();
            if !is_held.ok_or(format!("step {step}: {node} sends block {block}, which does not exist"))? {
                return Err(format!("step {step}: {node} sends block {block}, which it does not have"));
            }
            done.root_sends += u64::from(node == 0);
            let to = match to {
                To::Node(to) => to..to + 1,
                To::All => 1..n,
            };
            for to in to {
                if in_flight.insert(to, Receive { from: node, block }).is_some() {
                    return Err(format!("step {step}: two nodes send to {to}"));
                }
            }
        }
        for node in 0..n {
            let (received, expected) = (in_flight.remove(&node), schedule.receive(node, step));
            if received != expected {
                return Err(format!("step {step}: {node} expects {expected:?} and receives {received:?}"));
            }
            let Some(Receive { block, .. }) = received else { continue };
            if std::mem::replace(&mut has[node as usize][block as usize], true) {
                return Err(format!("step {step}: {node} receives block {block} twice"));
            }
            done.transfers += 1;
            done.busy_steps = step + 1;
        }
        if let Some((to, _)) = in_flight.iter().next() {
            return Err(format!("step {step}: a block is sent to {to}, which does not exist"));
        }
    }
    for (node, blocks) in has.iter().enumerate() {
        if let Some(block) = blocks.iter().position(|has| !has) {
            return Err(format!("{node} never receives block {block}"));
        }
    }
    Ok(done)
}

fn ceil_log2(n: u32) -> u64 {
    n.next_power_of_two().trailing_zeros().into()
}

fn check(algorithm: &Algorithm, n: u32, k: u32) {
    let schedule = Schedule::new(algorithm.clone(), n, k).unwrap();
    let context = format!("{} {n} {k}", algorithm.name());
    let done = execute(&schedule).unwrap_or_else(|wrong| panic!("{context}: {wrong}"));
    let (wide_n, wide_k) = (u64::from(n), u64::from(k));
    // Number of steps by the paper's formulas, restated independently of the implementation.
    let steps = match algorithm {
        Algorithm::Sequential => wide_k * (wide_n - 1),
        Algorithm::Chain => wide_k + wide_n - 2,
        Algorithm::Tree => wide_k * ceil_log2(n),
        Algorithm::Pipeline => wide_k + ceil_log2(n) - 1,
        Algorithm::InNetwork => wide_k,
        Algorithm::Hybrid(racks) => {
            let pipeline = |n: u32| if n > 1 { wide_k + ceil_log2(n) - 1 } else { 0 };
            let mut sizes = HashMap::new();
            for node in 0..n {
                *sizes.entry(racks.rack(node)).or_insert(0_u32) += 1;
            }
            pipeline(sizes.len() as u32) + sizes.values().map(|size| pipeline(*size)).max().unwrap()
        }
    };
    assert_eq!(schedule.steps(), steps, "{context}");
    assert_eq!(done.busy_steps, steps, "{context}: last busy step");
    assert_eq!(done.transfers, (wide_n - 1) * wide_k, "{context}");
    for node in [0, n, n + 1] {
        assert_eq!(schedule.receives(node).next(), None, "{context}: {node} receives");
    }
    assert_eq!(schedule.sends(n).next(), None);
    assert_eq!((schedule.send(0, steps), schedule.receive(n - 1, steps)), (None, None), "{context}");
}

fn racks_of(n: u32, racks: u32, seed: u64) -> Racks {
    let mut rng = switch::Rng::new(seed);
    let of: Vec<u64> = (0..n).map(|_| rng.below(racks.into())).collect();
    Racks::new(&of).unwrap()
}

#[test]
fn every_small_schedule_is_correct() {
    for n in 2..=40 {
        for k in (1..=9).chain([20, 33]) {
            check(&Algorithm::Sequential, n, k);
            check(&Algorithm::Chain, n, k);
            check(&Algorithm::Tree, n, k);
            check(&Algorithm::Pipeline, n, k);
            check(&Algorithm::InNetwork, n, k);
            check(&Algorithm::Hybrid(racks_of(n, 1 + k % 7, k.into())), n, k);
        }
    }
}

/// Every number of nodes up to 600: an error at a power of two would show.
#[test]
fn pipeline_is_correct_for_every_number_of_nodes() {
    for n in 2..=600 {
        for k in [1, 2, 3, 1 + n % 13] {
            check(&Algorithm::Pipeline, n, k);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    #[test]
    fn pipelines_are_correct(n in 2_u32..=600, k in 1_u32..=300) {
        check(&Algorithm::Pipeline, n, k);
    }

    #[test]
    fn chains_are_correct(n in 2_u32..=600, k in 1_u32..=300) {
        check(&Algorithm::Chain, n, k);
    }

    #[test]
    fn trees_are_correct(n in 2_u32..=600, k in 1_u32..=300) {
        check(&Algorithm::Tree, n, k);
    }

    #[test]
    fn hybrids_are_correct(n in 2_u32..=600, k in 1_u32..=300, racks in 1_u32..=40, seed: u64) {
        check(&Algorithm::Hybrid(racks_of(n, racks, seed)), n, k);
    }

    #[test]
    fn in_network_schedules_are_correct(n in 2_u32..=600, k in 1_u32..=300) {
        check(&Algorithm::InNetwork, n, k);
    }

    /// A sequential schedule has many steps, so these cases are smaller.
    #[test]
    fn sequential_schedules_are_correct(n in 2_u32..=100, k in 1_u32..=100) {
        check(&Algorithm::Sequential, n, k);
    }

    /// For any number of blocks, the first block comes from one of the few senders that are known in advance.
    #[test]
    fn first_sender_is_known_in_advance(n in 2_u32..=600, k in 1_u32..=300, racks in 1_u32..=40, seed: u64) {
        let hybrid = Algorithm::Hybrid(racks_of(n, racks, seed));
        for algorithm in [Algorithm::Chain, Algorithm::Tree, Algorithm::Pipeline, hybrid, Algorithm::InNetwork] {
            let schedule = Schedule::new(algorithm.clone(), n, k).unwrap();
            let node = 1 + seed as u32 % (n - 1);
            let senders = Schedule::first_senders(&algorithm, n, node);
            let (_, first) = schedule.receives(node).next().unwrap();
            let neighbours = Schedule::neighbours(&algorithm, n, node);
            let is_no_neighbour = |other: u32| neighbours.binary_search(&other).is_err();
            prop_assert!(!schedule.receives(node).any(|(_, one)| is_no_neighbour(one.from)));
            prop_assert!(!schedule.sends(node).any(|(_, one)| matches!(one.to, To::Node(to) if is_no_neighbour(to))));
            prop_assert!(senders.len() <= 2 && senders.contains(&first.from), "{algorithm:?} {node} {senders:?} {first:?}");
        }
    }
}

#[test]
fn largest_schedules_are_correct() {
    check(&Algorithm::Sequential, 600, 20);
    check(&Algorithm::Tree, 600, 300);
    check(&Algorithm::Pipeline, 600, 300);
    check(&Algorithm::Hybrid(racks_of(600, 24, 3)), 600, 300);
}

/// RDMC, figure 3, left: 0 to 1; 0 to 2 and 1 to 3; 0 to 4, 1 to 5, 2 to 6 and 3 to 7.
#[test]
fn tree_matches_figure_3() {
    let schedule = Schedule::new(Algorithm::Tree, 8, 1).unwrap();
    let sends = |step| -> Vec<(u32, To)> {
        (0..8).filter_map(|node| Some((node, schedule.send(node, step)?.to))).collect()
    };
    assert_eq!(sends(0), [(0, To::Node(1))]);
    assert_eq!(sends(1), [(0, To::Node(2)), (1, To::Node(3))]);
    assert_eq!(sends(2), [(0, To::Node(4)), (1, To::Node(5)), (2, To::Node(6)), (3, To::Node(7))]);
}

/// RDMC, figure 3, centre and right: three blocks, eight nodes, five steps. The first three steps distribute
/// the blocks. Then the root continues to send the last block, and the other nodes exchange the highest
/// blocks that they have.
#[test]
fn pipeline_matches_figure_3() {
    let schedule = Schedule::new(Algorithm::Pipeline, 8, 3).unwrap();
    assert_eq!(schedule.steps(), 5);
    let sends = |step| -> Vec<(u32, To, u32)> {
        let sends = (0..8).filter_map(|node| Some((node, schedule.send(node, step)?)));
        sends.map(|(node, send)| (node, send.to, send.block)).collect()
    };
    assert_eq!(sends(0), [(0, To::Node(1), 0)]);
    assert_eq!(sends(1), [(0, To::Node(2), 1), (1, To::Node(3), 0)]);
    let third = [(0, To::Node(4), 2), (1, To::Node(5), 0), (2, To::Node(6), 1), (3, To::Node(7), 0)];
    assert_eq!(sends(2), third);
    for step in [3, 4] {
        let all = sends(step);
        assert_eq!(all.len(), 7, "all nodes send, except the one whose neighbour is the root");
        assert!(all.contains(&(0, To::Node(1 << (step % 3)), 2)), "the root sends the last block");
    }
}

/// RDMC, section 4.5.3: in every steady step the slack, averaged over the senders, is 2 (1 - (l - 1) / (n -
/// 2)). The root is excluded, since it has all blocks from the beginning.
#[test]
fn average_slack_is_that_of_the_paper() {
    for l in 2_u64..=9 {
        let (n, k) = (1_u32 << l, 40_u32);
        let schedule = Schedule::new(Algorithm::Pipeline, n, k).unwrap();
        let mut received_at = HashMap::new();
        for step in 0..u64::from(k) {
            let mut slack = Vec::new();
            for node in 1..n {
                if let Some(send) = schedule.send(node, step) {
                    slack.push(step - received_at[&(node, send.block)]);
                }
            }
            for node in 1..n {
                if let Some(receive) = schedule.receive(node, step) {
                    received_at.insert((node, receive.block), step);
                }
            }
            if step >= l {
                let average = slack.iter().sum::<u64>() as f64 / slack.len() as f64;
                let paper = 2.0 * (1.0 - (l - 1) as f64 / f64::from(n - 2));
                assert!((average - paper).abs() < 1e-12, "n {n}, step {step}: {average}, not {paper}");
            }
        }
    }
}

/// A block crosses between racks once for each rack but the root's. In a pipeline over all nodes, most
/// transfers cross.
#[test]
fn hybrid_sends_each_block_once_between_racks() {
    let of: Vec<u32> = (0..64).map(|node| node / 8).collect();
    let racks = Racks::new(&of).unwrap();
    let crossings = |algorithm| {
        let schedule = Schedule::new(algorithm, 64, 50).unwrap();
        let all = (0..64).flat_map(|node| schedule.sends(node).map(move |(_, send)| (node, send)));
        all.filter(|(node, send)| matches!(send.to, To::Node(to) if of[*node as usize] != of[to as usize]))
            .count()
    };
    assert_eq!(crossings(Algorithm::Hybrid(racks)), 7 * 50);
    assert!(crossings(Algorithm::Pipeline) > 4 * 7 * 50);
}

/// A node has few neighbours, and thus needs few connections.
#[test]
fn nodes_have_few_neighbours() {
    for n in [2_u32, 3, 5, 8, 100, 511, 512, 600] {
        let schedule = Schedule::new(Algorithm::Pipeline, n, 64).unwrap();
        for node in 0..n {
            let to = schedule.sends(node).filter_map(|(_, send)| match send.to {
                To::Node(to) => Some(to),
                To::All => None,
            });
            let all: HashSet<u32> =
                to.chain(schedule.receives(node).map(|(_, receive)| receive.from)).collect();
            let most = if n.is_power_of_two() { n.ilog2() } else { 2 * n.ilog2() + 1 };
            assert!(all.len() <= most as usize, "{node} of {n} has {} neighbours", all.len());
        }
    }
}

#[test]
fn invalid_schedules_are_refused() {
    use rdmc::ScheduleError::{Blocks, Nodes, Racks as OtherRacks, TooManyNodes};
    let new = |algorithm, n, k| Schedule::new(algorithm, n, k).unwrap_err();
    assert_eq!(new(Algorithm::Pipeline, 0, 1), Nodes(0));
    assert_eq!(new(Algorithm::Chain, 1, 1), Nodes(1));
    assert_eq!(new(Algorithm::Chain, 2, 0), Blocks);
    assert_eq!(new(Algorithm::Tree, Schedule::MAX_NODES + 1, 1), TooManyNodes(Schedule::MAX_NODES + 1));
    let racks = Racks::new(&[1, 1, 2]).unwrap();
    assert_eq!(new(Algorithm::Hybrid(racks), 4, 1), OtherRacks { racks: 3, nodes: 4 });
    assert_eq!(Racks::new(&["a"]), Err(Nodes(1)));
}
