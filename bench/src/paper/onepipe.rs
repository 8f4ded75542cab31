//! 1Pipe: the figures of its section 7.

mod reliable;

use super::figure::{Axis, Distribution, Figure, Outcome, Paper, Series, Settings, Unit};
use super::shape;
use crate::onepipe::demo::failures;
use crate::onepipe::simulated::{
    HOSTS_PER_RACK, LOSSES, RATE_BPS, Scale, cost_of_ordering, lossy, name, scale,
};
use hdrhistogram::Histogram;
use miette::{Report, miette};
use representative::Incarnation;
use switch::Nanos;
use workloads::onepipe::{BEACON_INTERVAL, ClockCost, FatTree, Span};

const DRAWING: &str = "a drawing of the design, not a measurement";
const APPLICATION: &str = "the application and the systems that it is compared with (FaRM, locks, OCC) are not implemented here, and \
                           its throughput is limited by the CPUs of 32 servers";

pub(super) const FIGURES: &[Figure] = &[
    Figure::omitted((Paper::OnePipe, "fig1", "1Pipe abstraction"), "", DRAWING),
    Figure::omitted(
        (Paper::OnePipe, "table1", "Programming API"),
        "",
        "an interface, not a measurement (crate `onepipe-host`)",
    ),
    Figure::omitted((Paper::OnePipe, "fig2", "Ordering hazards"), "", DRAWING),
    Figure::omitted((Paper::OnePipe, "fig3", "Routing topology of a data center"), "", DRAWING),
    Figure::omitted((Paper::OnePipe, "fig4", "Architecture of a switch"), "", DRAWING),
    Figure::omitted((Paper::OnePipe, "fig5", "Hierarchical aggregation of barriers"), "", DRAWING),
    Figure::omitted((Paper::OnePipe, "fig6", "Two-phase commit in reliable 1Pipe"), "", DRAWING),
    Figure::omitted((Paper::OnePipe, "fig7", "Failure recovery in reliable 1Pipe"), "", DRAWING),
    Figure::omitted(
        (Paper::OnePipe, "fig8a", "Throughput of total order broadcast"),
        "5 million messages a second and process, linear to 512 processes; 25 % less with reliable delivery; sequencers and tokens saturate.",
        "limited by the CPUs and NICs of 32 servers; `understudy bench onepipe` measures one process with DPDK on an idle machine. The \
         other systems are not implemented here",
    ),
    Figure::omitted(
        (Paper::OnePipe, "fig8b", "Latency of total order broadcast"),
        "The latency of sequencers rises steeply when they saturate.",
        "the sequencers, the token and the Lamport timestamps that 1Pipe is compared with are not implemented here",
    ),
    Figure::measured(
        (Paper::OnePipe, "fig9a", "Latency of delivery on an idle testbed"),
        "Ordering costs 1.7 to 2.3 us on average: half a beacon interval (3 us) plus clock skew (0.3 us), for any number of processes \
         and layers; representatives on hosts add about 2 us per hop. Reliable 1Pipe adds a round trip.",
        "Best effort in virtual time on the paper's fat tree (links of 100 Gb/s and 500 ns, clocks off by up to 0.3 us), almost idle. \
         A process is a host here, and software takes no time. The cost of ordering is the mean time from arrival to delivery over the \
         longest path: section 4.2 has it for paths with the same delay, and a message over a shorter one also waits for barriers from \
         farther hosts. The beacon interval, the skew and the link delays, from which it follows, are inputs.",
        idle,
    ),
    Figure::measured(
        (Paper::OnePipe, "fig9a-reliable", "Latency of reliable delivery on an idle testbed"),
        "Reliable 1Pipe adds a round trip to best effort: 2 to 10 us.",
        "Both services of the same processes in virtual time, half of the messages each, on the fat tree of fig9a. A host takes \
         200 ns for each frame. A round trip is twice the mean time in which a message arrives.",
        reliable::idle,
    )
    .in_part(
        "with one hop, the service costs 0.86 to 0.88 round trips: a message that is sent early in a beacon interval waits for the \
         next beacon in any case, which hides a part of the round trip. The authors' own latencies are up to 1.18 round trips apart",
        "compare with the latencies that the paper states, for each number of hops, instead of with a round trip",
    ),
    Figure::measured(
        (Paper::OnePipe, "fig9b", "Latency by packet loss"),
        "Flat up to a loss of 1e-5, then rising: best effort with barriers on hosts takes 15.97 us without loss, 16.46 at 1e-5, 19.71 \
         at 1e-3, 27.19 at 1e-1. Reliable 1Pipe is more sensitive.",
        "Best effort in virtual time on the fat tree with 512 hosts (--quick: 32). Each packet is lost on each link with this \
         probability (the authors drop packets at hosts). A measurement lasts 200 us: below 1e-4 it contains hardly any loss.",
        loss,
    )
    .in_part(
        "the authors drop packets in receivers; here each packet is lost on each link, and a beacon passes three links from one \
         representative to the next. So the latency grows by more at a loss of 1e-1. With the 32 hosts of --quick, few beacons are \
         lost at 1e-3",
        "lose packets at hosts and representatives only. Tried with 512 hosts: the latency grows 1.95 times at 1e-1 (paper: 1.70), \
         but 1.07 times at 1e-3 (paper: 1.23), so what else the paper's receivers lost has to be found",
    ),
    Figure::measured(
        (Paper::OnePipe, "fig9b-reliable", "Latency of reliable delivery by packet loss"),
        "With barriers on hosts, reliable 1Pipe takes 26.71 us without loss, 30.54 at 1e-5, 44.16 at 1e-3, 79.05 at 1e-1.",
        "The testbed of 32 hosts in virtual time. As in the paper, hosts lose packets when these arrive: messages, acknowledgements \
         and beacons alike. A host takes 200 ns for each frame.",
        reliable::loss,
    )
    .in_part(
        "the paper has 512 processes, each of which may lose something for which all wait; here are 32, so a loss of 1e-3 hardly \
         shows. At 1e-1 several repetitions of a message or of its acknowledgement are lost in a row, and their time-outs double",
        "measure 512 processes, for which the simulation of their joins has to become faster; double time-outs only after several \
         losses of the same packet",
    ),
    Figure::measured(
        (Paper::OnePipe, "fig10", "Recovery from failures"),
        "Reliable 1Pipe with 32 hosts recovers in 124 us from a host's failure, and in 458 us from a ToR switch's; 30 us of it, \
         10 beacon intervals, are detection.",
        "The longest time for which barriers do not rise at the surviving hosts when a host, its link or a ToR switch fails, in virtual \
         time. Best effort: detection only, which is local, so it takes as long for any part (section 7.2); the paper's times are \
         of reliable 1Pipe (fig10-reliable).",
        detection,
    ),
    Figure::measured(
        (Paper::OnePipe, "fig10-reliable", "Recovery from failures, reliable delivery"),
        "With 32 hosts, commit barriers stand still for 124 us (host), 458 us (ToR switch), 70 us (core link) and 171 us (core \
         switch); 3 to 15 us for each added host.",
        "Real processes, representatives and a controller in virtual time, with barriers on hosts. The time is the mean, over the \
         surviving processes, of the longest time in which the commit barrier does not rise. A host and the controller take 200 ns \
         for each message; the controller is 1 to 5 us away; callbacks return at once; routes avoid a dead core switch or link 10 us after its \
         failure. The store's writes take no time, then 1 ms. The cost of an added host compares 16 hosts with 32.",
        reliable::recovery,
    )
    .in_part(
        "the paper's times hold. With a store whose writes take 1 ms, which the paper does not measure, the goal is two writes for the \
         failure of processes; there are three, one after the other: the decision, the recalls, and the end of the callbacks",
        "store the recalls together with the end of the callbacks, if the order of commits remains proved",
    ),
    Figure::measured(
        (Paper::OnePipe, "fig11", "Reorder overhead on a host"),
        "The rate falls from 6.1 to 4.3 million messages a second as messages wait up to 125 us; memory is rate times delay.",
        "8 hosts, each of which sends as many reliable messages of 64 B as it can to the next, in virtual time. A host takes 200 ns for \
         each frame, however many messages wait: what a larger reorder queue costs a CPU is not part of this. The delay is that of links.",
        reliable::reorder,
    )
    .in_part(
        "the greatest memory of any host at any moment is compared with the mean rate times the mean delay, and is a third above it. \
         Without the first time-outs, before a round trip is known, it is nearly the same (1.31 instead of 1.33)",
        "record the memory over time as well, and find what fills it for a moment",
    ),
    Figure::omitted(
        (Paper::OnePipe, "fig12", "Queuing delay by background flows"),
        "10 background flows per host add 30 us (best effort) and 50 us (reliable).",
        "needs TCP flows and PFC on 32 servers; the simulator has neither",
    ),
    Figure::omitted(
        (Paper::OnePipe, "fig13a", "CPU cores for a switch's beacons"),
        "One host core sustains an interval of 3 us for 32 ports (5 cores at 1 us and 0.5 at 10 us in the authors' data).",
        "the rate of one core, which needs an idle machine with DPDK: `understudy bench onepipe` measures it for 8 to 1,024 links",
    ),
    Figure::measured(
        (Paper::OnePipe, "fig13b", "Bandwidth that beacons take"),
        "0.3 % of 100 Gb/s at 3 us, for any size of the network.",
        "Beacons that switches send in fat trees, counted in virtual time, with an interval of 3 us and links of 10 to 100 Gb/s (the \
         paper varies the interval). The interval and the length of a beacon are inputs, from which their share of a link follows.",
        bandwidth,
    ),
    Figure::measured(
        (Paper::OnePipe, "scale", "Larger networks (section 7.2)"),
        "Delays grow with the layers of the network, that is, with the logarithm of the number of hosts; beacons take the same share at \
         any size. With 32,768 hosts and a loss of 1e-8, reliable 1Pipe takes 0 to 3 us longer than without loss.",
        "Best effort without loss in fat trees of three layers and up to 8,192 hosts (--quick: 256) with barriers in the switches, in \
         virtual time. The cost of ordering is that of messages over the longest path.",
        larger,
    ),
    Figure::measured(
        (Paper::OnePipe, "beacon-clocks", "Clocks from beacons alone"),
        "The paper synchronises clocks by PTP, with an average skew of 0.3 us; the authors propose clocks from beacons, without a \
         figure.",
        "The fat trees of fig9a in virtual time, almost idle: machines' clocks are wrong by up to 1 s and drift by up to 100 ppm, and \
         nodes exchange clock beacons. The delay is compared with that of the same network with perfect clocks; the goal is 1 us.",
        beacon_clocks,
    ),
    Figure::omitted(
        (Paper::OnePipe, "fig14", "Transactional key-value store"),
        "90 % of the throughput of the store without transactions.",
        APPLICATION,
    ),
    Figure::omitted(
        (Paper::OnePipe, "fig15", "TPC-C"),
        "71 % of the throughput of the system without transactions, 10 times that of locks, 17 times that of OCC.",
        APPLICATION,
    ),
    Figure::omitted(
        (Paper::OnePipe, "fig16", "Replicated remote hash table"),
        "1.9 times the insertions (3.4 times with 3 replicas), 10 % fewer lookups.",
        APPLICATION,
    ),
];

const BOTH: [Incarnation; 2] = [Incarnation::Chip, Incarnation::Host];

fn idle(settings: &Settings) -> Result<Outcome, Report> {
    // Number of processes, and hops between two of them
    let sizes: &[(usize, u32)] = &[(8, 1), (16, 3), (32, 5), (512, 5)];
    let mut outcome = Outcome::default();
    let (mut arrival, mut cost) = (Series::ours("unordered", []), Series::ours("", []));
    let mut curves = Vec::new();
    for incarnation in BOTH {
        let (mut mean, mut tail) =
            (Series::ours(name(incarnation), []), Series::ours(format!("{}, 99 %", name(incarnation)), []));
        for &(hosts, hops) in sizes {
            let mut tree = FatTree::of_hops(incarnation, hops);
            tree.skew_ns = 300;
            if hosts == 512 {
                tree.hosts = hosts / 4;
                tree.behaviour.partners = 32;
            }
            // Few hosts send few messages, so they are measured for longer.
            let lasts = settings.choose(500, 2_000) * if hosts == 512 { 1 } else { 4 };
            let span = Span::new(Nanos::from_micros(lasts));
            let tree = tree.losing(0.0);
            let measured = tree.latency(span, settings.seed);
            let (latency, made) =
                measured.map_err(|what| miette!("{hosts} hosts, {}: {what}", name(incarnation)))?;
            mean.points.push((hosts as f64, latency.mean_ns / 1e3));
            tail.points.push((hosts as f64, latency.p99.0 as f64 / 1e3));
            if incarnation == Incarnation::Chip {
                arrival.points.push((hosts as f64, latency.arrival_ns / 1e3));
                cost.points.push((hosts as f64, cost_of_ordering(&tree, &made, span) / 1e3));
            }
            outcome.histograms.push(Distribution {
                name: format!("{}-{hosts}-hosts", name(incarnation)),
                counts: counts(&made.latencies_ns(span.warm_up, span.warm_up + span.lasts)),
            });
        }
        curves.extend([mean, tail]);
    }
    let half = BEACON_INTERVAL.0 as f64 / 2e3;
    for ((hosts, us), paper) in cost.points.iter().zip(["2.30", "1.69", "1.78", "2.02"]) {
        outcome.value(format!("cost of ordering, chip, {hosts} processes (us)"), Some(paper), *us);
        let mean =
            curves[0].at(*hosts).zip(arrival.at(*hosts)).map_or(f64::NAN, |(chip, arrival)| chip - arrival);
        outcome.value(format!("mean over all paths, chip, {hosts} processes (us)"), None, mean);
        outcome.checks.push(shape::within(
            format!("{hosts} processes: ordering costs half a beacon interval plus the clock skew (us)"),
            *us,
            half..=half + 0.8,
        ));
    }
    outcome.checks.push(shape::flat(
        "the cost of ordering hardly depends on the number of processes and layers",
        &cost,
        1.5,
    ));
    let (chip, host) = (&curves[0], &curves[2]);
    outcome.checks.push(shape::above(
        "latency is higher with barriers on hosts than in the chip",
        chip,
        host,
        1.0,
    ));
    let detour = |hosts: f64| Some(host.at(hosts)? - chip.at(hosts)?);
    if let (Some(near), Some(far)) = (detour(8.0), detour(32.0)) {
        outcome.value("delay added by host representatives, 5 hops / 1 hop", Some("about 5"), far / near);
        outcome.checks.push(shape::within(
            "the delay added by host representatives grows with the hops (5 hops / 1 hop)",
            far / near,
            4.0..=6.0,
        ));
    }
    let paper = |name: &str, us: [f64; 4]| Series::paper(name, [8.0, 16.0, 32.0, 512.0].into_iter().zip(us));
    curves.push(arrival);
    curves.extend([
        paper("paper, unordered", [2.2, 3.98, 5.25, 5.35]),
        paper("paper, chip", [4.5, 5.67, 7.03, 7.37]),
        paper("paper, host", [5.84, 10.23, 14.58, 15.97]),
    ]);
    outcome.plot(
        "Latency, best effort",
        Axis::log("processes", Unit::Number),
        Axis::linear("latency", Unit::Us),
        curves,
    );
    Ok(outcome)
}

/// Largest error of machines' clocks (ns), and largest drift in parts per billion, where clocks follow beacons
const WRONG_CLOCKS: (u64, u64) = (1_000_000_000, 100_000);

/// Clocks from beacons alone, which are no figure of the paper.
fn beacon_clocks(settings: &Settings) -> Result<Outcome, Report> {
    let mut outcome = Outcome::default();
    for incarnation in BOTH {
        for (hosts, hops) in [(8, 1), (16, 3), (32, 5)] {
            let lasts = Nanos::from_micros(settings.choose(8_000, 32_000) * 2 / hosts);
            let tree = FatTree::of_hops(incarnation, hops);
            let cost = ClockCost::measure(&tree, WRONG_CLOCKS, lasts, settings.seed)
                .map_err(|what| miette!("{hosts} hosts, {}: {what}", name(incarnation)))?;
            let what =
                format!("{}, {hops} hops: clock from beacons: delay minus perfect clocks", name(incarnation));
            outcome.value(format!("{what} (us)"), None, cost.mean_ns / 1e3);
            outcome.value(format!("{what}, 99 % (us)"), None, cost.p99_ns / 1e3);
            let worst = cost.mean_ns.abs().max(cost.p99_ns.abs()) / 1e3;
            outcome.checks.push(shape::within(format!("{what}, at most 1 us"), worst, 0.0..=1.0));
        }
    }
    Ok(outcome)
}

/// Returns the counts of the latencies, to three digits.
fn counts(took: &[u64]) -> Vec<(u64, u64)> {
    let mut histogram = Histogram::<u64>::new(3).expect("a valid number of digits");
    for &ns in took {
        histogram.record(ns).expect("an auto-resizing histogram takes any value");
    }
    histogram.iter_recorded().map(|step| (step.value_iterated_to(), step.count_at_value())).collect()
}

/// Position of "no loss" on a logarithmic axis
const NO_LOSS: f64 = 1e-9;

/// Returns the axis of a loss probability.
fn loss_axis() -> Axis {
    Axis::log("loss", Unit::Number).with_zero_at(NO_LOSS)
}

fn loss(settings: &Settings) -> Result<Outcome, Report> {
    let hosts_per_rack = settings.choose(8, HOSTS_PER_RACK);
    let mut outcome = Outcome::default();
    let mut curves = Vec::new();
    for incarnation in BOTH {
        let mut curve = Series::ours(name(incarnation), []);
        for (loss, _) in LOSSES {
            let latency = lossy(incarnation, loss, hosts_per_rack, settings.seed)?;
            curve.points.push((loss.max(NO_LOSS), latency.mean_ns / 1e3));
        }
        let lossless = curve.points[0].1;
        let part = |keep: fn(f64) -> bool| {
            Series::ours("", curve.points.iter().copied().filter(move |point| keep(point.0)))
        };
        outcome.checks.push(shape::flat(
            format!("{}: latency is flat up to a loss of 1e-5", name(incarnation)),
            &part(|loss| loss <= 1.1e-5),
            1.05,
        ));
        outcome.checks.push(shape::rises(
            format!("{}: latency grows from a loss of 1e-3 on", name(incarnation)),
            &part(|loss| loss >= 0.9e-3),
            0.0,
        ));
        let grown = curve.last() / lossless;
        let paper = (incarnation == Incarnation::Host).then_some("1.70");
        outcome.value(
            format!("latency at a loss of 1e-1 / without loss, {}", name(incarnation)),
            paper,
            grown,
        );
        if incarnation == Incarnation::Host {
            let at = |loss: f64| curve.points.iter().find(|point| (point.0 / loss - 1.0).abs() < 0.1);
            let at_1e3 = at(1e-3).map_or(f64::NAN, |point| point.1 / lossless);
            outcome.value("latency at a loss of 1e-3 / without loss, host", Some("1.23"), at_1e3);
            outcome.checks.push(shape::within(
                "host: latency at a loss of 1e-3 / without loss, as in the paper",
                at_1e3,
                1.1..=1.4,
            ));
            outcome.checks.push(shape::within(
                "host: latency at a loss of 1e-1 / without loss, as in the paper",
                grown,
                1.4..=2.1,
            ));
        }
        curves.push(curve);
    }
    let paper = LOSSES.iter().filter_map(|(loss, us)| Some((loss.max(NO_LOSS), (*us)?)));
    curves.push(Series::paper("paper, host", paper));
    outcome.plot("Latency, best effort", loss_axis(), Axis::linear("latency", Unit::Us), curves);
    Ok(outcome)
}

fn detection(settings: &Settings) -> Result<Outcome, Report> {
    let mut outcome = Outcome::default();
    for incarnation in BOTH {
        let all = failures(incarnation, settings.seed)?;
        let stall =
            |what: &str| all.iter().find(|failed| failed.what == what).map(|failed| failed.stall.0 as f64);
        if let (Some(host), Some(switch)) = (stall("host"), stall("ToR switch")) {
            outcome.checks.push(shape::within(
                format!(
                    "{}: a ToR switch's failure stalls for as long as a host's (ratio)",
                    name(incarnation)
                ),
                switch / host,
                0.9..=1.1,
            ));
        }
        for failed in all {
            let us = failed.stall.0 as f64 / 1e3;
            let what = format!("{}, {} fails", name(incarnation), failed.what);
            let paper = match failed.what {
                "nothing" => None,
                _ => Some("30 (detection; without skew and delays)"),
            };
            outcome.value(format!("longest time in which a barrier does not rise, {what} (us)"), paper, us);
            let intervals = us * 1e3 / BEACON_INTERVAL.0 as f64;
            let bounds = if failed.what == "nothing" { 0.5..=4.0 } else { 9.0..=12.0 };
            outcome.checks.push(shape::within(
                format!("{what}: longest time in which a barrier does not rise (beacon intervals)"),
                intervals,
                bounds,
            ));
            let delivered = failed.delivered as f64;
            outcome.checks.push(shape::within(
                format!("{what}: the surviving hosts continue (messages delivered)"),
                delivered,
                1_000.0..=f64::INFINITY,
            ));
        }
    }
    Ok(outcome)
}

fn bandwidth(settings: &Settings) -> Result<Outcome, Report> {
    let mut outcome = Outcome::default();
    let mut sizes = Series::ours("by hosts", []);
    for &hosts in settings.choose(&[8, 32, 256][..], &[8, 32, 256, 2048][..]) {
        sizes.points.push((hosts as f64, scale(hosts, RATE_BPS, settings.seed)?.beacons_percent));
    }
    let mut rates = Series::ours("ours", []);
    for gbps in [10, 25, 40, 100] {
        let share = scale(32, gbps * 1_000_000_000, settings.seed)?.beacons_percent;
        rates.points.push((gbps as f64, share));
    }
    outcome.value("share of a 100 Gb/s link at an interval of 3 us (%)", Some("0.3"), rates.last());
    outcome.checks = vec![
        shape::within(
            "beacons take about 0.3 % of a 100 Gb/s link at an interval of 3 us, or less",
            rates.last(),
            0.1..=0.35,
        ),
        shape::flat("the share is the same at any size of the network", &sizes, 1.15),
        shape::falls("the share falls with the rate of the link", &rates, 0.0),
        shape::within(
            "the share at a tenth of the rate is ten times as large",
            rates.points[0].1 / rates.last(),
            9.0..=11.0,
        ),
    ];
    outcome.plot(
        "Share of a link",
        Axis::log("rate of the link", Unit::Gbps),
        Axis::log("share of the link", Unit::Percent),
        vec![rates, Series::paper("paper", [(100.0, 0.3)])],
    );
    outcome.plot(
        "Share of a link of 100 Gb/s",
        Axis::log("hosts", Unit::Number),
        Axis::linear("share of the link", Unit::Percent),
        vec![sizes],
    );
    Ok(outcome)
}

fn larger(settings: &Settings) -> Result<Outcome, Report> {
    let sizes: &[usize] = settings.choose(&[32, 256], &[32, 256, 2048, 8192]);
    let (mut mean, mut overhead) = (Series::ours("delivery", []), Series::ours("cost of ordering", []));
    for &hosts in sizes {
        let Scale { latency, ordering_ns, .. } = scale(hosts, RATE_BPS, settings.seed)?;
        mean.points.push((hosts as f64, latency.mean_ns / 1e3));
        overhead.points.push((hosts as f64, ordering_ns / 1e3));
    }
    let mut outcome = Outcome::default();
    let more = mean.last() - mean.points[0].1;
    outcome.value(
        format!("latency with {} hosts minus latency with 32 (us)", sizes[sizes.len() - 1]),
        None,
        more,
    );
    outcome.checks = vec![
        shape::flat("latency is the same in trees with the same number of layers", &mean, 1.3),
        shape::flat("the cost of ordering is the same at any size of the network", &overhead, 1.25),
    ];
    outcome.plot(
        "Latency, best effort",
        Axis::log("hosts", Unit::Number),
        Axis::linear("latency", Unit::Us),
        vec![mean, overhead],
    );
    Ok(outcome)
}
