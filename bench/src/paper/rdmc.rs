//! RDMC: the figures and the table of its section 5.
#![allow(clippy::unnecessary_wraps, reason = "an experiment may fail; a model does not")]

use super::figure::{Axis, Figure, Outcome, Paper, Series, Settings, Unit};
use super::shape;
use crate::consensus::simulation_error;
use miette::Report;
use rdmc::model::{Network, Object, TransferTimes, run};
use rdmc::{Algorithm, Schedule, cosmos};
use switch::Nanos;
use workloads::rdmc::costs::{Pause, Transfer, wide};

const KB: u64 = 1 << 10;
const MB: u64 = 1 << 20;
/// Rate and assumed latency of Fractus, 100 Gb/s, and of Sierra, 40 Gb/s
const FRACTUS: (f64, f64) = (100e9, 1e-6);
const SIERRA: (f64, f64) = (40e9, 1.5e-6);
/// Stampede's unicast rate, as measured by the authors, in bits a second
const STAMPEDE_BPS: u64 = 40_000_000_000;
/// Block bytes per byte on the wire: 4,096 of a packet; the rest is Ethernet with preamble and gap, IP, UDP,
/// BTH, ICRC.
const PAYLOAD: f64 = 4096.0 / (4096.0 + 14.0 + 20.0 + 8.0 + 12.0 + 4.0 + 24.0);

pub(super) const FIGURES: &[Figure] = &[
    Figure::omitted(
        (Paper::Rdmc, "fig1", "RDMC library interface"),
        "",
        "an interface, not a measurement (crate `rdmc`)",
    ),
    Figure::omitted(
        (Paper::Rdmc, "fig2", "RDMC with a sender and two receivers"),
        "",
        "a drawing of the design, not a measurement",
    ),
    Figure::omitted(
        (Paper::Rdmc, "fig3", "Binomial tree and binomial pipeline"),
        "",
        "a drawing of schedules, not a measurement; `understudy rdmc schedule` draws them for any group",
    ),
    Figure::computed(
        (Paper::Rdmc, "fig4a", "256 MB to groups of 3 to 16"),
        "Sequential send and binomial tree scale poorly with the group size; chain send is competitive with the binomial pipeline; \
         MVAPICH takes 1.03 to 3 times as long as the pipeline.",
        "Schedules executed block by block (`rdmc::model`, which agrees with the simulation of packets within 2 %), blocks of 1 MB, \
         100 Gb/s. MVAPICH is not measured.",
        large_groups,
    ),
    Figure::computed(
        (Paper::Rdmc, "fig4b", "8 MB to groups of 3 to 16"),
        "As figure 4a, but the pipeline is faster than the chain for small transfers to many nodes.",
        "As figure 4a, with 8 blocks.",
        small_objects,
    ),
    Figure::measured(
        (Paper::Rdmc, "fig5", "A delay of 100 us at a relay"),
        "A delay of about 100 us on the relay, probably caused by its OS, makes the sender wait in the following step, because its \
         target is not ready yet. (The rest of the figure is table 1, step by step.)",
        "A group of 4 sends 64 blocks of 1 MB, packet by packet in virtual time. The first receiver pauses for 100 us at several times, \
         and the transfer's time is compared with that without a pause.",
        delayed,
    ),
    Figure::measured(
        (Paper::Rdmc, "table1", "Where the time of a transfer goes"),
        "256 MB in blocks of 1 MB to a group of 4 at 40 Gb/s: 62,084 us in total, 61,405 of them in block transfers (99 %), 449 \
         waiting, 215 copying, 15 setting up.",
        "The same transfer packet by packet in virtual time (--quick: 32 MB). The time of block transfers is computed from the \
         schedule's steps and the rate of the link; the rest of the measured total is waiting. Software takes no time here, so \
         copying and setting up are not measured.",
        breakdown,
    ),
    Figure::computed(
        (Paper::Rdmc, "fig6", "Bandwidth by block size, groups of 4"),
        "Bandwidth first rises with the block size, then reaches a peak: each block has latency, and the pipeline's start and end take \
         as long as blocks do. Messages of 16 KB to 128 MB.",
        "Schedules executed block by block (`rdmc::model`), 100 Gb/s, 1 us from host to host.",
        block_sizes,
    ),
    Figure::measured(
        (Paper::Rdmc, "fig7", "Messages of one byte a second"),
        "Rate of one-byte messages by the binomial pipeline (values only in the picture): a measure of overheads.",
        "One byte is sent packet by packet in virtual time, one message after the other. Software takes no time here, so the rate \
         reflects the number of steps.",
        tiny_messages,
    ),
    Figure::computed(
        (Paper::Rdmc, "fig8", "256 MB to hundreds of hosts"),
        "Sequential send scales linearly with the number of receivers, the pipeline sub-linearly: 127, 255 or 511 copies take almost \
         the same time.",
        "Schedules executed block by block (`rdmc::model`) at Sierra's 40 Gb/s, blocks of 1 MB.",
        hundreds,
    ),
    Figure::computed_from_random(
        (Paper::Rdmc, "fig9", "Latencies of a load like Cosmos'"),
        "The pipeline is almost twice as fast as the binomial tree and about three times as fast as sequential send; about 93 Gb/s \
         replicated, a petabyte a day.",
        "Objects drawn from a log-normal distribution with the trace's median (12 MB) and mean (29 MB), to 3 of 15 hosts at 100 \
         Gb/s, by `rdmc::model`. The trace itself is not public.",
        like_cosmos,
    ),
    Figure::computed(
        (Paper::Rdmc, "fig10a", "Concurrent multicasts in overlapping groups (Fractus)"),
        "With all, half or one of the members sending 100 MB, 1 MB or 10 KB, aggregate bandwidth nearly reaches the network's \
         (values only in the picture).",
        "As many groups as there are senders, with the same members, send 100 MB at the same time (`rdmc::model`). Bandwidth is the \
         bytes of all objects divided by the time until all members have all of them.",
        overlapping,
    ),
    Figure::omitted(
        (Paper::Rdmc, "fig10b", "Concurrent multicasts in overlapping groups (Apt)"),
        "Apt's top-of-rack network is oversubscribed, and degrades to about 16 Gb/s per link; the protocols adapt.",
        "needs racks with shared uplinks; `rdmc::model` has contention at hosts' ports only",
    ),
    Figure::omitted(
        (Paper::Rdmc, "fig11", "Polling and interrupts"),
        "With interrupts only, CPU load falls from 100 % to 10 % (100 MB) and 50 % (1 MB), with hardly any loss of bandwidth.",
        "needs a NIC's interrupts; in virtual time software takes no CPU time",
    ),
    Figure::omitted(
        (Paper::Rdmc, "fig12", "CORE-Direct"),
        "A chain send of 100 MB with CORE-Direct's work requests is 5 % faster.",
        "needs a Mellanox NIC with cross-channel work requests",
    ),
];

fn sent((rate, latency): (f64, f64), algorithm: Algorithm, n: u32, bytes: u64, block: u64) -> TransferTimes {
    let schedule =
        Schedule::new(algorithm, n, bytes.div_ceil(block) as u32).expect("at least one node and one block");
    let object = Object { schedule, members: (0..n as usize).collect(), bytes, block, at: 0.0 };
    run(&Network::new(n as usize, rate, latency), &[object]).pop().expect("one result for each object")
}

fn large_groups(settings: &Settings) -> Result<Outcome, Report> {
    Ok(groups(settings, 256 * MB))
}

fn small_objects(settings: &Settings) -> Result<Outcome, Report> {
    Ok(groups(settings, 8 * MB))
}

fn groups(_settings: &Settings, bytes: u64) -> Outcome {
    let sizes = [3, 4, 6, 8, 10, 12, 14, 16];
    let ms = |algorithm: Algorithm| {
        let name = algorithm.name();
        let time = |n: u32| sent(FRACTUS, algorithm.clone(), n, bytes, MB).last() * 1e3;
        Series::ours(name, sizes.map(|n| (f64::from(n), time(n))))
    };
    let all = [Algorithm::Sequential, Algorithm::Tree, Algorithm::Chain, Algorithm::Pipeline];
    let [sequential, tree, chain, pipeline] = all.map(ms);
    let checks = vec![
        shape::rises("the time of sequential send grows with the group", &sequential, 0.0),
        shape::above("sequential send is at least as slow as the tree", &tree, &sequential, 0.999),
        shape::above("the tree is slower than the pipeline", &pipeline, &tree, 1.3),
    ];
    let mut outcome = Outcome { checks, ..Outcome::default() };
    let large = Series::ours("", chain.points.iter().copied().filter(|point| point.0 >= 12.0));
    if bytes > 100 * MB {
        outcome.checks.push(shape::ratio(
            "the chain is as fast as the pipeline",
            &pipeline,
            &chain,
            0.94..=1.06,
        ));
    } else {
        outcome.checks.push(shape::above(
            "the pipeline is faster than the chain in groups of 12 or more",
            &pipeline,
            &large,
            1.25,
        ));
    }
    let last = |series: &Series| series.last() / pipeline.last();
    for series in [&sequential, &tree, &chain] {
        outcome.value(
            format!("time relative to the pipeline, {}, 16 nodes", series.name),
            None,
            last(series),
        );
    }
    outcome.plot(
        "Time of a transfer",
        Axis::linear("group size", Unit::Number),
        Axis::log("time", Unit::Ms),
        vec![sequential, tree, chain, pipeline],
    );
    outcome
}

/// Returns the transfer of an object of `bytes` bytes by the pipeline, in blocks of 1 MB.
fn pipeline(hosts: u16, bytes: u32, rate_bps: u64, settings: &Settings) -> Transfer {
    Transfer {
        algorithm: Algorithm::Pipeline,
        hosts,
        bytes,
        block_bytes: MB as u32,
        link: wide(rate_bps),
        others: Vec::new(),
        pause: None,
        seed: settings.seed,
    }
}

fn delayed(settings: &Settings) -> Result<Outcome, Report> {
    const LASTS: Nanos = Nanos::from_micros(100);
    let blocks = settings.choose(16, 64);
    let (block, link) = (MB as u32, FRACTUS.0 as u64);
    let time = |pause| {
        Transfer { pause, ..pipeline(4, blocks * block, link, settings) }.run().map_err(simulation_error)
    };
    let usual = time(None)?.time;
    let mut added = Series::ours("added", []);
    for after in settings.choose(&[100, 600][..], &[100, 900, 1_700, 2_500, 3_300, 4_100, 4_900][..]) {
        let after = Nanos::from_micros(*after);
        let took = time(Some(Pause { host: 1, after, lasts: LASTS }))?.time;
        added.points.push((after.0 as f64 / 1e3, (took - usual) * 1e6));
    }
    let most = added.points.iter().map(|point| point.1).fold(0.0, f64::max);
    let mut outcome = Outcome::default();
    outcome.value("time that a pause of 100 us adds at most (us)", None, most);
    // The paused receiver catches up; a round trip is lost.
    outcome.checks.push(shape::within(
        "a pause of 100 us adds little more than 100 us (us)",
        most,
        1.0..=110.0,
    ));
    outcome.plot(
        "Time added",
        Axis::linear("beginning of the pause", Unit::Us),
        Axis::linear("time added", Unit::Us),
        vec![added],
    );
    Ok(outcome)
}

fn breakdown(settings: &Settings) -> Result<Outcome, Report> {
    let blocks: u32 = settings.choose(32, 256);
    let took = pipeline(4, blocks * MB as u32, STAMPEDE_BPS, settings).run().map_err(simulation_error)?;
    // l + k - 1 steps, in each of which each host's link carries one block
    let step = MB as f64 * 8.0 / (STAMPEDE_BPS as f64 * PAYLOAD);
    let transfers = f64::from(2 + blocks - 1) * step;
    let mut outcome = Outcome::default();
    let of_paper = |us: &'static str| (blocks == 256).then_some(us);
    outcome.value("total time (us, measured)", of_paper("62084"), took.time * 1e6);
    outcome.value(
        "time of block transfers (us, computed: steps times the link's time for a block)",
        of_paper("61405"),
        transfers * 1e6,
    );
    outcome.value("waiting time (us, the difference)", of_paper("449"), (took.time - transfers) * 1e6);
    outcome.value("share of the time in block transfers (%)", Some("99"), 100.0 * transfers / took.time);
    outcome.checks.push(shape::within(
        "nearly all of the time is spent in block transfers (%)",
        100.0 * transfers / took.time,
        97.0..=100.0,
    ));
    Ok(outcome)
}

fn block_sizes(settings: &Settings) -> Result<Outcome, Report> {
    let mut outcome = Outcome::default();
    let messages: &[u64] =
        settings.choose(&[KB * 256, MB * 8, MB * 128], &[KB * 16, KB * 256, MB, MB * 8, MB * 32, MB * 128]);
    let (mut all, mut best) = (Vec::new(), Series::ours("", []));
    for &bytes in messages {
        let blocks =
            (12..=24).map(|power| 1_u64 << power).filter(|block| *block <= bytes && bytes / block <= 1 << 13);
        let rate = |block: u64| {
            let took = sent(FRACTUS, Algorithm::Pipeline, 4, bytes, block).last();
            (block as f64 / 1024.0, bytes as f64 * 8.0 / took / 1e9)
        };
        let name = if bytes < MB { format!("{} KB", bytes / KB) } else { format!("{} MB", bytes / MB) };
        let series = Series::ours(name, blocks.map(rate));
        if let Some(point) = shape::best(&series) {
            best.points.push((bytes as f64, series.points[point].0));
        }
        if bytes >= 8 * MB {
            outcome.checks.push(shape::peaks_inside(
                format!("{}: neither the smallest nor the largest block is best", series.name),
                &series,
            ));
        }
        all.push(series);
    }
    outcome.checks.push(shape::rises("the best block size grows with the message size", &best, 0.0));
    outcome.value(
        "best block size, messages of 128 MB (KB)",
        Some("about 1000 (the authors' README)"),
        best.last(),
    );
    outcome.plot("Bandwidth", Axis::log("block size", Unit::KiB), Axis::linear("bandwidth", Unit::Gbps), all);
    Ok(outcome)
}

fn tiny_messages(settings: &Settings) -> Result<Outcome, Report> {
    let mut rates = Series::ours("pipeline", []);
    for &hosts in settings.choose(&[2, 4, 16][..], &[2, 3, 4, 6, 8, 12, 16][..]) {
        let took = pipeline(hosts, 1, FRACTUS.0 as u64, settings).run().map_err(simulation_error)?;
        rates.points.push((f64::from(hosts), 1.0 / took.time));
    }
    let mut outcome = Outcome::default();
    outcome.checks.push(shape::falls("the message rate falls with the size of the group", &rates, 0.02));
    let slower = rates.points[0].1 / rates.last();
    outcome.value("message rate in a group of 2 (1 step) / of 16 (4 steps)", None, slower);
    // A step takes at least a one-way delay, and a round trip where a host relays, because it waits for an
    // acknowledgement first.
    outcome.checks.push(shape::within(
        "the rate falls with the logarithm of the group's size: 4 steps, or 4 round trips at most",
        slower,
        4.0..=8.0,
    ));
    outcome.plot(
        "Messages of one byte",
        Axis::linear("group size", Unit::Number),
        Axis::linear("messages a second", Unit::Number),
        vec![rates],
    );
    Ok(outcome)
}

fn hundreds(_settings: &Settings) -> Result<Outcome, Report> {
    let sizes: [u32; 8] = [4, 8, 16, 32, 64, 128, 256, 512];
    let time = |algorithm: Algorithm| {
        let name = algorithm.name();
        let one = |n: u32| (f64::from(n), sent(SIERRA, algorithm.clone(), n, 256 * MB, MB).last());
        Series::ours(name, sizes.map(one))
    };
    let (sequential, pipeline) = (time(Algorithm::Sequential), time(Algorithm::Pipeline));
    let copies = Series::ours("", pipeline.points.iter().copied().filter(|point| point.0 >= 128.0));
    let each = Series::ours("", sequential.points.iter().map(|(n, time)| (*n, time / (n - 1.0))));
    let checks = vec![
        shape::flat("127, 255 and 511 copies take almost the same time", &copies, 1.1),
        shape::flat("sequential send takes the same time per copy for any number of copies", &each, 1.1),
        shape::above("the pipeline is never slower", &pipeline, &sequential, 1.0),
    ];
    let mut outcome = Outcome { checks, ..Outcome::default() };
    outcome.value("time of 511 copies / time of 127", Some("almost 1"), pipeline.last() / copies.points[0].1);
    outcome.value(
        "time of sequential send / of the pipeline, 512 nodes",
        Some("orders of magnitude"),
        sequential.last() / pipeline.last(),
    );
    outcome.plot(
        "Time until all members have the object",
        Axis::log("nodes", Unit::Number),
        Axis::log("time", Unit::S),
        vec![sequential, pipeline],
    );
    Ok(outcome)
}

fn quantile(sorted: &[f64], share: f64) -> f64 {
    sorted[((sorted.len() - 1) as f64 * share).round() as usize]
}

fn like_cosmos(settings: &Settings) -> Result<Outcome, Report> {
    let (sizes, groups) = (cosmos::sizes(settings.choose(1_000, 4_000), settings.seed), cosmos::groups());
    let all = [Algorithm::Pipeline, Algorithm::Tree, Algorithm::Sequential];
    let latencies = all.clone().map(|algorithm| cosmos::latencies(&algorithm, &sizes, &groups));
    let total = |latencies: &[f64]| latencies.iter().sum::<f64>();
    let mut outcome = Outcome::default();
    let gbps = sizes.iter().sum::<u64>() as f64 * 8.0 / total(&latencies[0]) / 1e9;
    outcome.value("data replicated by the pipeline (Gb/s)", Some("93"), gbps);
    outcome.checks.push(shape::within("the network is nearly full (Gb/s)", gbps, 85.0..=100.0));
    for (n, paper, bounds) in [(1, "almost 2", 1.6..=2.1), (2, "around 3", 2.4..=3.2)] {
        let times = total(&latencies[n]) / total(&latencies[0]);
        let name = all[n].name();
        outcome.value(format!("time relative to the pipeline, {name}"), Some(paper), times);
        outcome.checks.push(shape::within(format!("{name}: time relative to the pipeline"), times, bounds));
    }
    let mut curves = Vec::new();
    for (algorithm, mut latencies) in all.iter().zip(latencies) {
        latencies.sort_unstable_by(f64::total_cmp);
        let points = (1..=50)
            .map(|n| f64::from(n) / 50.0)
            .map(|share| (quantile(&latencies, share) * 1e3, 100.0 * share));
        curves.push(Series::ours(algorithm.name(), points));
    }
    outcome.plot("Latencies", Axis::log("latency", Unit::Ms), Axis::linear("objects", Unit::Percent), curves);
    Ok(outcome)
}

/// Returns the number of senders in a group of the given size.
type Senders = fn(usize) -> usize;

fn overlapping(settings: &Settings) -> Result<Outcome, Report> {
    let sizes: &[usize] = settings.choose(&[4, 8, 16], &[2, 4, 6, 8, 10, 12, 14, 16]);
    let bytes = 100 * MB;
    let gbps = |n: usize, senders: usize| {
        let object = |root: usize| Object {
            schedule: Schedule::new(Algorithm::Pipeline, n as u32, (bytes / MB) as u32)
                .expect("at least one node and one block"),
            members: (0..n).map(|member| (root + member) % n).collect(),
            bytes,
            block: MB,
            at: 0.0,
        };
        let objects: Vec<_> = (0..senders).map(object).collect();
        let network = Network::new(n, FRACTUS.0, FRACTUS.1);
        let last = run(&network, &objects).iter().map(TransferTimes::last).fold(0.0, f64::max);
        senders as f64 * bytes as f64 * 8.0 / last / 1e9
    };
    let kinds: [(&str, Senders); 3] =
        [("all send", |n| n), ("half send", |n| n.div_ceil(2)), ("one sends", |_| 1)];
    let [all, half, one] = kinds
        .map(|(name, senders)| Series::ours(name, sizes.iter().map(|&n| (n as f64, gbps(n, senders(n))))));
    // Each of n ports has to take n - 1 objects for each that every member sends.
    let bound =
        Series::ours("", sizes.iter().map(|&n| (n as f64, FRACTUS.0 / 1e9 * n as f64 / (n - 1) as f64)));
    let share = shape::ratios(&bound, &all).iter().map(|point| point.1).fold(f64::INFINITY, f64::min);
    let mut outcome = Outcome::default();
    outcome.value("lowest share of the ports' rate when all members send", Some("nearly full"), share);
    outcome.checks = vec![
        shape::within("ports are nearly fully used when all members send", share, 0.8..=1.0),
        shape::above(
            "overlapping groups reach at least the bandwidth of one group in total",
            &one,
            &all,
            0.95,
        ),
        shape::flat("bandwidth hardly depends on the size of the group", &one, 1.35),
    ];
    outcome.plot(
        "Aggregate bandwidth, 100 MB",
        Axis::linear("group size", Unit::Number),
        Axis::linear("bandwidth", Unit::Gbps),
        vec![all, half, one],
    );
    Ok(outcome)
}
