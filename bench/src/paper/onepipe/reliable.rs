//! 1Pipe: the figures of the reliable service, with goals of their own beside the paper's numbers.
//!
//! All are measured with the real processes, representatives and controllers, in virtual time, in which hosts
//! take 200 ns for each frame and the controller as long for each message. A missed goal is a check that fails.

use super::{BOTH, NO_LOSS, loss_axis};
use crate::onepipe::simulated::name;
use crate::paper::figure::{Axis, Outcome, Series, Settings, Unit};
use crate::paper::shape;
use miette::{Report, miette};
use representative::Incarnation;
use switch::{Nanos, Probability};
use workloads::onepipe::FatTree;
use workloads::onepipe::reliable::{Broken, Load, Recovery, Testbed};

/// Clock error of the hosts (1Pipe, section 7.1)
const SKEW_NS: u64 = 300;
/// Mean time between two scatterings of a host on an almost idle network
const IDLE: Nanos = Nanos::from_micros(40);
/// The same where a part fails
const LOADED: Nanos = Nanos::from_micros(20);

fn testbed(mut tree: FatTree, every: Nanos, seed: u64) -> Result<Testbed, Report> {
    (tree.skew_ns, tree.every) = (SKEW_NS, every);
    Testbed::new(&tree, &Load::light(), seed).map_err(|what| miette!("{what}"))
}

/// Figure 9a: the reliable service costs a round trip more.
pub(super) fn idle(settings: &Settings) -> Result<Outcome, Report> {
    // Latencies of unordered messages, of best effort and of reliable delivery in the paper, by the number of hops
    const UNORDERED: [f64; 3] = [2.2, 3.98, 5.25];
    const PAPER: [(&str, [f64; 3], [f64; 3]); 2] = [
        ("paper, chip", [4.5, 5.67, 7.03], [9.64, 14.14, 17.67]),
        ("paper, host", [5.84, 10.23, 14.58], [11.03, 18.65, 25.11]),
    ];
    let mut outcome = Outcome::default();
    let mut curves = Vec::new();
    for (incarnation, (_, paper_best_effort, paper_reliable)) in BOTH.into_iter().zip(PAPER) {
        let mut reliable = Series::ours(format!("{}, reliable", name(incarnation)), []);
        let mut best_effort = Series::ours(format!("{}, best effort", name(incarnation)), []);
        for (n, (hosts, hops)) in [(8, 1), (16, 3), (32, 5)].into_iter().enumerate() {
            let mut bed = testbed(FatTree::of_hops(incarnation, hops), IDLE, settings.seed)?;
            // Few hosts send few messages, so they are measured for longer.
            let time = Nanos::from_micros(settings.choose(32_000, 128_000) / hosts);
            let measured = bed.latencies(time).map_err(|what| miette!("{hosts} hosts: {what}"))?;
            let added = (measured.reliable_ns - measured.best_effort_ns) / (2.0 * measured.arrival_ns);
            let what = format!("{}, {hops} hops: reliable less best effort", name(incarnation));
            let paper = (paper_reliable[n] - paper_best_effort[n]) / (2.0 * UNORDERED[n]);
            outcome.value(format!("{what} (round trips)"), Some(&format!("{paper:.2}")), added);
            outcome.checks.push(shape::within(
                format!("{what}: a round trip, within 10 %"),
                added,
                0.9..=1.1,
            ));
            reliable.points.push((hosts as f64, measured.reliable_ns / 1e3));
            best_effort.points.push((hosts as f64, measured.best_effort_ns / 1e3));
        }
        curves.extend([reliable, best_effort]);
    }
    for (name, _, us) in PAPER {
        curves.push(Series::paper(format!("{name}, reliable"), [8.0, 16.0, 32.0].into_iter().zip(us)));
    }
    outcome.plot(
        "Latency, both services",
        Axis::log("processes", Unit::Number),
        Axis::linear("latency", Unit::Us),
        curves,
    );
    Ok(outcome)
}

/// Figure 9b: latency of the reliable service where hosts lose packets.
pub(super) fn loss(settings: &Settings) -> Result<Outcome, Report> {
    // With the paper's latencies; 26.71 us without loss
    const LOSSES: [(f64, Option<f64>); 5] =
        [(0.0, Some(26.71)), (1e-5, Some(30.54)), (1e-3, Some(44.16)), (1e-2, None), (1e-1, Some(79.05))];
    let mut outcome = Outcome::default();
    let mut curve = Series::ours("host", []);
    for (loss, _) in LOSSES {
        let mut bed = testbed(FatTree::testbed(Incarnation::Host), IDLE, settings.seed)?;
        bed.lose(Probability::new(loss).expect("a probability"));
        let measured = bed.latencies(Nanos::from_micros(settings.choose(2_000, 8_000)));
        let measured = measured.map_err(|what| miette!("a loss of {loss:e}: {what}"))?;
        curve.points.push((loss.max(NO_LOSS), measured.reliable_ns / 1e3));
    }
    let lossless = curve.points[0].1;
    for (at, goal, text) in [(2, 1.65, "1e-3"), (4, 2.96, "1e-1")] {
        let times = curve.points[at].1 / lossless;
        outcome.value(
            format!("latency at a loss of {text} / without loss"),
            Some(&format!("{goal:.2}")),
            times,
        );
        outcome.checks.push(shape::within(
            format!("latency at a loss of {text} / without loss: the paper's, within 20 %"),
            times,
            goal * 0.8..=goal * 1.2,
        ));
    }
    outcome.checks.push(shape::rises("latency grows with the loss", &curve, 0.05));
    let paper = LOSSES.iter().filter_map(|(loss, us)| Some((loss.max(NO_LOSS), (*us)?)));
    let curves = vec![curve, Series::paper("paper, host", paper)];
    outcome.plot("Latency, reliable", loss_axis(), Axis::linear("latency", Unit::Us), curves);
    Ok(outcome)
}

/// Returns the names of a failed part, and the goal: the paper's time in microseconds.
const PARTS: [(Broken, &str, f64); 4] = [
    (Broken::Host, "host", 124.0),
    (Broken::Tor, "ToR switch", 458.0),
    (Broken::CoreLink, "core link", 70.0),
    (Broken::CoreSwitch, "core switch", 171.0),
];

fn recover(hosts_per_rack: usize, broken: Broken, store: Nanos, seed: u64) -> Result<Recovery, Report> {
    let tree = FatTree { hosts: hosts_per_rack, ..FatTree::testbed(Incarnation::Host) };
    let mut bed = testbed(tree, LOADED, seed)?;
    bed.break_part(broken, store).map_err(|what| miette!("{broken:?}: {what}"))
}

fn add_steps(outcome: &mut Outcome, what: &str, recovery: &Recovery) {
    let steps = recovery.steps;
    let all = [
        ("detect", steps.detect),
        ("gather further reports", steps.gather),
        ("freeze and determine", steps.freeze),
        ("store", steps.store),
        ("broadcast, discard and recall", steps.broadcast),
        ("callback, and store that", steps.callback),
        ("resume", steps.resume),
    ];
    for (step, ns) in all {
        outcome.value(format!("{what}: {step} (us)"), None, ns as f64 / 1e3);
    }
}

/// Figure 10: recovery from failures.
pub(super) fn recovery(settings: &Settings) -> Result<Outcome, Report> {
    let mut outcome = Outcome::default();
    let (mut of_host, mut of_tor) = (f64::NAN, f64::NAN);
    for (broken, part, goal) in PARTS {
        for store_ms in [0, 1] {
            let recovery = recover(8, broken, Nanos::from_millis(store_ms), settings.seed)?;
            let what = format!("{part}, a write takes {store_ms} ms");
            let us = recovery.stall_ns / 1e3;
            let paper = (store_ms == 0).then(|| format!("{goal:.0}"));
            outcome.value(format!("{what}: commit barriers stand still (us)"), paper.as_deref(), us);
            add_steps(&mut outcome, &what, &recovery);
            let writes = if recovery.failed > 0 { 2.0 } else { 1.0 };
            let most = goal + 1000.0 * writes * store_ms as f64;
            let expected = format!("{what}: at most the paper's time, and that of the writes (us)");
            outcome.checks.push(shape::within(expected, us, 0.0..=most));
            let failed = match broken {
                Broken::Host => 1.0,
                Broken::Tor => 8.0,
                Broken::CoreLink | Broken::CoreSwitch => 0.0,
            };
            let expected = format!("{what}: processes that fail");
            outcome.checks.push(shape::within(expected, recovery.failed as f64, failed..=failed));
            match broken {
                Broken::Host if store_ms == 0 => of_host = us,
                Broken::Tor if store_ms == 0 => of_tor = us,
                _ => {}
            }
        }
    }
    outcome.checks.push(shape::near(
        "commit barriers stand still when a ToR switch fails / when a host fails",
        of_tor / of_host,
        458.0 / 124.0,
    ));
    let few = recover(4, Broken::Host, Nanos::ZERO, settings.seed)?.stall_ns / 1e3;
    let per_host = (of_host - few) / 16.0;
    outcome.value("recovery from a host's failure, per added host (us)", Some("3 to 15"), per_host);
    outcome.checks.push(shape::within("each added host costs at most 15 us", per_host, -15.0..=15.0));
    Ok(outcome)
}

/// Figure 11: throughput and memory where messages wait for long.
pub(super) fn reorder(settings: &Settings) -> Result<Outcome, Report> {
    // Delay of a link, of which a message passes two; the last one is that of the paper's 125 us
    let delays: &[u64] = settings.choose(&[500, 62_500], &[500, 12_500, 31_250, 62_500]);
    let mut outcome = Outcome::default();
    let (mut rate, mut memory) = (Series::ours("ours", []), Series::ours("measured", []));
    let mut product = Series::ours("rate times delay", []);
    for &delay in delays {
        let mut tree = FatTree::of_hops(Incarnation::Chip, 1);
        tree.link.delay = Nanos(delay);
        // As many messages as can be under way at 2.5 million a second, in some round trips
        let window = 75 + 20 * delay as usize / 1000;
        let load = Load { window, grant: 1 << 20, ..Load::light() };
        let bed = Testbed::new(&tree, &load, settings.seed);
        let measured = bed.and_then(|mut bed| bed.throughput(Nanos::from_millis(settings.choose(1, 3))));
        let measured = measured.map_err(|what| miette!("{delay} ns: {what}"))?;
        let us = 2.0 * delay as f64 / 1e3;
        rate.points.push((us, measured.rate / 1e6));
        memory.points.push((us, measured.held as f64));
        let bytes = (load.payload + onepipe::process::PACKET_COST) as f64;
        product.points.push((us, measured.rate * measured.delay_ns / 1e9 * bytes));
    }
    let share = rate.last() / rate.points[0].1;
    outcome.value("rate at a one-way delay of 125 us / at 1 us", Some("0.70"), share);
    outcome.checks.push(shape::within("at a delay of 125 us, at least 0.7 of the rate", share, 0.7..=1.2));
    let used = memory.last() / product.last();
    outcome.value("greatest memory at 125 us / rate times delay", Some("1"), used);
    outcome.checks.push(shape::within("memory is rate times delay, within 30 %", used, 0.7..=1.3));
    outcome.plot(
        "Reliable messages of a host",
        Axis::log("one-way delay", Unit::Us),
        Axis::linear("messages a second", Unit::Millions),
        vec![rate],
    );
    outcome.plot(
        "Buffered messages",
        Axis::log("one-way delay", Unit::Us),
        Axis::log("buffered", Unit::Bytes),
        vec![memory, product],
    );
    Ok(outcome)
}
