//! Swordbox: the figures of the draft, and those of the authors' artefact that the draft mentions or lacks.
//!
//! The server's NIC takes as long for requests as the authors measured (`sim::Costs::connect_x5`), and one
//! parameter of the clients is fitted to the success rate without Swordbox. So the comparison is between two
//! switches under the same clients.

use super::figure::{Axis, Figure, Outcome, Paper, Series, Settings, Unit};
use super::shape;
use crate::consensus::simulation_error;
use crate::swordbox::simulated::{Contention, SwitchKind};
use miette::Report;
use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use switch::Nanos;
use swordbox::Layers;
use workloads::clients::Kind;
use workloads::clients::clover::{Layout, Options};
use workloads::clients::ycsb::Mix;
use workloads::rack::costs::{Run, clover};
use workloads::rack::steering::{lists, steer};
use workloads::rack::{Outcome as Rack, forward};

const DRAWING: &str = "a drawing of the design, not a measurement";
const LIST_STORE: &str = "Threads on 8 machines read and update 1,024 keys of a list-based store like Clover, through a switch that only forwards and \
                     through a Swordbox that steers, in virtual time. The server's NIC takes as long as the authors measured.";
const KEYS: u64 = 1024;
const SHARE_TAILS: &str = "let the threads of a machine share the nodes that they find, as Clover's do, and fit when they read the shortcut to 5 % and 50 % \
                           updates together: sharing alone lets 5.3 % succeed in figure 4, not 3.7 %";
/// Nodes for which a thread may still have a stale tail pointer
const STALE_NODES: usize = 1 << 18;

pub(super) const FIGURES: &[Figure] = &[
    Figure::omitted(
        (Paper::Swordbox, "fig1", "Reordering of requests in the NIC"),
        "97 % of requests keep their order; the rest are overtaken by up to 15 requests.",
        "needs a ConnectX and its PCIe bus; the authors' measurement is an input of the simulated NIC",
    ),
    Figure::omitted(
        (Paper::Swordbox, "fig2", "Verbs on independent addresses"),
        "With 360 outstanding requests: 103.6 M WRITEs, 84.5 M READs and 50.6 M CAS a second; 2.7 M CAS per queue pair.",
        "needs a ConnectX-5; the authors' measurement is an input of the simulated NIC",
    ),
    Figure::measured(
        (Paper::Swordbox, "fig3", "CAS and WRITE on one address"),
        "On one address WRITEs are 6.2 times as fast as CAS in the host's memory (18.26 and 2.93 M a second), and 2.5 times in the \
         NIC's (22.14 and 8.97 M). This is the possible gain of a switch that resolves CAS and sends WRITEs.",
        "240 clients take and release one lock in virtual time, without Swordbox and with each of its layers (--quick: with all \
         layers only). The NIC's rates are inputs; the rates with Swordbox are measured.",
        cas_and_write,
    ),
    Figure::measured(
        (Paper::Swordbox, "fig4", "Operations that succeed, by the number of threads"),
        "Half reads, half updates, Zipf 0.99: 32.3 % with 6 threads, less than 4 % with 240.",
        "Threads on 8 machines read and update 1,024 keys of a list-based store like Clover, in virtual time. The time for which \
         clients remember where a list ends is fitted to the authors' curve; its decline is not. Nothing is fitted with steering.",
        success,
    )
    .in_part(
        "--quick measures 1 ms, in which 4.1 % succeed; in the 10 ms of a full run it is less than 4 %",
        "none: a full run holds",
    ),
    Figure::omitted((Paper::Swordbox, "fig5", "RoCEv2 headers"), "", DRAWING),
    Figure::omitted((Paper::Swordbox, "fig6", "Queue pair mapping data structure"), "", DRAWING),
    Figure::measured(
        (Paper::Swordbox, "throughput", "Throughput by the number of threads (artefact)"),
        "Half updates at 280 threads: from 0.87 to 28.1 M operations a second with Swordbox; 5 % updates at 392: from 12.4 to 35.3 M; \
         updates only at 392: from 0.55 to 17.6 M; reads only reach about 40 M.",
        LIST_STORE,
        throughput,
    )
    .in_part(
        "a thread knows only the nodes that it found itself here, so without Swordbox it follows many nodes of a key that it \
         reads rarely. That option is fitted to figure 4, with half updates. If the threads of a machine share what they \
         find, 240 threads reach 15.7 instead of 6.9 million operations a second with 5 % updates",
        SHARE_TAILS,
    ),
    Figure::measured(
        (Paper::Swordbox, "bandwidth", "Bytes of an operation (bandwidth_reduction)"),
        "With 5, 50 and 100 % updates: 284, 1,888 and 1,860 bytes per operation, and 113, 117 and 129 with Swordbox: 2.5 to 16 times \
         fewer.",
        LIST_STORE,
        bandwidth,
    )
    .in_part(
        "a thread knows only the nodes that it found itself here, so without Swordbox it follows many nodes of a key that it \
         reads rarely. That option is fitted to figure 4, with half updates. If the threads of a machine share what they \
         find, an operation takes 738 instead of 2,110 bytes with 5 % updates",
        SHARE_TAILS,
    ),
    Figure::measured(
        (Paper::Swordbox, "tail-latency", "Latency of the slowest percent (tail_latency)"),
        "READs take 70 us with 5 % updates and 2,559 us with 50 %, and 8.9 and 8.5 us with Swordbox (301 times less); updates take \
         0.37, 8.4 and 10.5 ms, and 21, 44 and 42 us with Swordbox.",
        LIST_STORE,
        tails,
    )
    .in_part(
        "a thread knows only the nodes that it found itself here, so without Swordbox it follows many nodes of a key that it \
         reads rarely. That option is fitted to figure 4, with half updates: 1 % of the READs take more than 225 us with 5 % \
         updates, and more than 66 us if tails are shared (paper: 70). With 50 % updates a READ reads the shortcut after 64 \
         nodes, so that time is 0.4 ms (paper: 2.6); without the shortcut it is 1.8 ms",
        SHARE_TAILS,
    ),
    Figure::measured(
        (Paper::Swordbox, "partial-steering", "Some keys steered (artefact)"),
        "Zipf 1.5: 126,000 operations a second without steering, 1.20 M with 8 steered keys (9.5 times), 3.43 M with 64 (27 times), 3.99 M with 128.",
        LIST_STORE,
        partial,
    )
    .in_part(
        "--quick measures the third ms, in which steering 8 keys gains 21 times; in the 10 ms of a full run it is 15 times",
        "none: a full run holds",
    ),
    Figure::measured(
        (Paper::Swordbox, "contention", "Throughput by Zipf's parameter (artefact)"),
        "From Zipf 0 to 1.5: 28.4 to 20.0 M operations a second with Swordbox, 3.64 to 0.41 M without.",
        LIST_STORE,
        contention,
    )
    .in_part(
        "a thread's first access to a key reads the index, too, and without skew many accesses in these few ms are first ones. \
         If the threads of a machine share the nodes that they find, throughput is 31.5, 31.4 and 30.9 million a second at Zipf \
         0, 0.99 and 1.5. The paper's falls by 30 %, for a reason that is not known",
        SHARE_TAILS,
    ),
    Figure::measured(
        (Paper::Swordbox, "payload", "Throughput by the size of values (artefact)"),
        "128, 256, 512 and 1,024 bytes: 27.0, 26.3, 18.9 and 11.5 M operations a second with Swordbox; 1.16, 1.08, 0.92 and 0.66 M without.",
        LIST_STORE,
        payload,
    )
    .in_part(
        "with nodes of 1,024 bytes the server's link to the switch is full. Half of the READs return a node that is no longer the \
         last one, and their threads follow the list: 1.8 further READs for each operation (none with 128 bytes). Whether Swordbox \
         does not steer them or the server executes them late is not known yet",
        "trace such READs: whether they are steered, and whether the server reads the node when its response leaves, after a later \
         CAS; then withhold that CAS",
    ),
    Figure::omitted(
        (Paper::Swordbox, "cas-to-write", "CAS to WRITE in the DPDK prototype (artefact)"),
        "At most 2.8 M CAS a second on one core (2.46 M without Swordbox).",
        "the packet rate of one core, which needs an idle machine with DPDK: `understudy bench swordbox` compares it with testpmd",
    ),
    Figure::omitted(
        (Paper::Swordbox, "resources", "Resources of the Tofino (artefact)"),
        "8 stages; read steering takes 18.6 % of SRAM.",
        "needs a Tofino and its compiler",
    ),
];

fn cas_and_write(settings: &Settings) -> Result<Outcome, Report> {
    let mut outcome = Outcome::default();
    for (device, memory, paper, bounds) in
        [(false, "host", "6.2", 4.5..=6.8), (true, "NIC", "2.5", 2.0..=2.8)]
    {
        let span = Nanos::from_millis(settings.choose(2, 5));
        let contention = Contention { span, seed: settings.seed, ..Contention::new(240, device) };
        let mut rates = Series::ours("", []);
        let ends = [SwitchKind::ALL[0], SwitchKind::ALL[3]];
        let layers = settings.choose(&ends[..], &SwitchKind::ALL[..]);
        for (n, &switch) in layers.iter().enumerate() {
            let rack = contention.measure(switch)?;
            let rate = contention.requests_per_s(&rack) / 1e6;
            outcome.value(
                format!("operations on the lock, {memory} memory, {} (M/s)", switch.name()),
                None,
                rate,
            );
            rates.points.push((n as f64, rate));
        }
        let gain = rates.last() / rates.points[0].1;
        outcome.value(
            format!("operations on the lock with Swordbox / without, {memory} memory"),
            Some(paper),
            gain,
        );
        outcome.checks.push(shape::within(
            format!("{memory} memory: replacing CAS by WRITEs gains what the authors measured in the NIC"),
            gain,
            bounds,
        ));
    }
    let gain = |what: &str| {
        outcome.values.iter().find(|value| value.what.contains(what)).map_or(f64::NAN, |value| value.ours)
    };
    let more = gain("without, host memory") / gain("without, NIC memory");
    outcome.checks.push(shape::within(
        "the gain is larger for a lock in host memory than in NIC memory",
        more,
        1.5..=4.0,
    ));
    Ok(outcome)
}

/// Parameters of a run on the list-based store
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct ListRun {
    threads: usize,
    /// Updates, in percent of operations
    updates: u8,
    /// Zipf's parameter, in hundredths
    theta: u32,
    node_len: usize,
    /// Number of keys that a Swordbox steers; 0 for a switch that only forwards
    tracked: usize,
    settings: (bool, u64),
}

/// Results of runs: several figures show the same runs.
static RESULTS: Mutex<Option<HashMap<ListRun, Rack>>> = Mutex::new(None);

impl ListRun {
    fn new(settings: &Settings) -> Self {
        let settings = (settings.quick, settings.seed);
        Self { threads: 240, updates: 50, theta: 99, node_len: 128, tracked: 0, settings }
    }

    fn steered(self) -> Self {
        Self { tracked: KEYS as usize, ..self }
    }

    fn run(self) -> Result<Rack, Report> {
        let results = || RESULTS.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(rack) = results().as_ref().and_then(|results| results.get(&self).copied()) {
            return Ok(rack);
        }
        let (quick, seed) = self.settings;
        let theta = f64::from(self.theta) / 100.0;
        // Long enough that each key has been appended to, or, with a high skew, each frequent key
        let warm_up = Nanos::from_millis(if theta > 1.0 { 2 } else { 5 });
        let span = Nanos::from_millis(if quick { 1 } else { 10 });
        let run = Run { seed, warm_up, span, ..Run::new(self.threads) };
        let layout = Layout { keys: KEYS, node_len: self.node_len };
        let (mix, options) = (Mix::Reads(100 - self.updates), Options::default());
        let rack = if self.tracked > 0 {
            let switch = steer(&run, lists(layout, self.tracked, STALE_NODES), Layers::STEER);
            clover(&run, mix, layout, theta, options, switch)
        } else {
            clover(&run, mix, layout, theta, options, forward(run.machines))
        };
        let rack = rack.map_err(simulation_error)?;
        results().get_or_insert_default().insert(self, rack);
        Ok(rack)
    }
}

fn success(settings: &Settings) -> Result<Outcome, Report> {
    let paper =
        [(6, 32.3), (12, 25.8), (24, 18.0), (48, 11.3), (96, 7.6), (144, 5.4), (192, 4.3), (240, 3.7)];
    let shown = |threads: usize| !settings.quick || [6, 24, 96, 240].contains(&threads);
    let (mut without, mut with) = (Series::ours("without", []), Series::ours("Swordbox", []));
    for &(threads, _) in paper.iter().filter(|(threads, _)| shown(*threads)) {
        let list_run = ListRun { threads, ..ListRun::new(settings) };
        let share = |rack: Rack| 100.0 * rack.tally.hit_share();
        without.points.push((threads as f64, share(list_run.run()?)));
        with.points.push((threads as f64, share(list_run.steered().run()?)));
    }
    let paper = Series::paper("paper, without", paper.map(|(threads, share)| (threads as f64, share)));
    let mut outcome = Outcome::default();
    for (threads, share) in &without.points {
        let paper_text = paper.at(*threads).map(shape::text);
        outcome.value(
            format!("operations that succeed, {threads} threads, without (%)"),
            paper_text.as_deref(),
            *share,
        );
    }
    outcome.value("operations that succeed, 240 threads, Swordbox (%)", Some("100"), with.last());
    outcome.checks = vec![
        shape::falls("without Swordbox, the success rate falls with the number of threads", &without, 0.0),
        shape::within("without Swordbox, 240 threads: less than 4 % succeed", without.last(), 0.1..=4.0),
        shape::ratio(
            "without Swordbox, the success rate is within a factor of 1.5 of the paper's",
            &paper,
            &without,
            1.0 / 1.5..=1.5,
        ),
        shape::within("with Swordbox, nearly all succeed (%)", with.last(), 99.9..=100.0),
    ];
    outcome.plot(
        "Operations that succeed",
        Axis::linear("threads", Unit::Number),
        Axis::log("operations that succeed", Unit::Percent),
        vec![without, with, paper],
    );
    Ok(outcome)
}

fn throughput(settings: &Settings) -> Result<Outcome, Report> {
    let threads: &[usize] = settings.choose(&[8, 48, 240], &[8, 24, 48, 96, 144, 240, 280, 392]);
    let mut outcome = Outcome::default();
    for (updates, title, paper, times) in [
        (50, "half updates", "32 to 35 (280 threads)", 32.0),
        (5, "5 % updates", "2.8 (392 threads)", 2.8),
        (100, "updates only", "31 to 32 (392 threads)", 31.0),
        (0, "reads only", "1", 1.0),
    ] {
        let (mut without, mut with) = (Series::ours("without", []), Series::ours("Swordbox", []));
        for &threads in threads {
            let list_run = ListRun { threads, updates, ..ListRun::new(settings) };
            without.points.push((threads as f64, list_run.run()?.operations_per_s / 1e6));
            with.points.push((threads as f64, list_run.steered().run()?.operations_per_s / 1e6));
        }
        let gain = with.last() / without.last();
        outcome.value(
            format!("throughput with Swordbox / without, {title}, {} threads", threads[threads.len() - 1]),
            Some(paper),
            gain,
        );
        outcome.checks.push(shape::rises(
            format!("{title}: throughput with Swordbox grows with the number of threads"),
            &with,
            0.1,
        ));
        if updates == 0 {
            outcome.checks.push(shape::ratio(
                "reads only: Swordbox costs no throughput",
                &without,
                &with,
                0.9..=1.1,
            ));
        } else {
            outcome.checks.push(shape::near(
                format!("{title}: throughput with Swordbox / without"),
                gain,
                times,
            ));
        }
        let mut series = vec![without, with];
        let (x, y) = match updates {
            50 => (280.0, [0.87, 28.1]),
            5 => (392.0, [12.4, 35.3]),
            100 => (392.0, [0.55, 17.6]),
            _ => (392.0, [f64::NAN; 2]),
        };
        if y[0].is_finite() {
            series.push(Series::paper("paper, without", [(x, y[0])]));
            series.push(Series::paper("paper, Swordbox", [(x, y[1])]));
        }
        outcome.plot(
            title,
            Axis::linear("threads", Unit::Number),
            Axis::log("operations a second", Unit::Millions),
            series,
        );
    }
    Ok(outcome)
}

/// Updates, in percent of operations
const UPDATES: [u8; 3] = [5, 50, 100];

fn bandwidth(settings: &Settings) -> Result<Outcome, Report> {
    let (mut without, mut with) = (Series::ours("without", []), Series::ours("Swordbox", []));
    for updates in UPDATES {
        let list_run = ListRun { updates, ..ListRun::new(settings) };
        without.points.push((f64::from(updates), list_run.run()?.bytes_per_operation));
        with.points.push((f64::from(updates), list_run.steered().run()?.bytes_per_operation));
    }
    let mut outcome = Outcome::default();
    for ((updates, times), paper) in shape::ratios(&with, &without).into_iter().zip([2.5, 16.0, 14.0]) {
        let paper_text = shape::text(paper);
        outcome.value(
            format!("bytes without Swordbox / with it, {updates} % updates"),
            Some(&paper_text),
            times,
        );
        outcome.checks.push(shape::near(
            format!("{updates} % updates: bytes without Swordbox / with it"),
            times,
            paper,
        ));
    }
    let paper = [[284.0, 1888.0, 1860.0], [113.0, 117.0, 129.0]];
    let [before, after] = paper.map(|bytes| UPDATES.map(f64::from).into_iter().zip(bytes));
    // An update has a WRITE and a CAS, a read only a READ.
    outcome.checks.push(shape::flat(
        "with Swordbox, bytes per operation hardly depend on the share of updates",
        &with,
        3.0,
    ));
    outcome.plot(
        "Bytes of an operation",
        Axis::linear("updates", Unit::Percent),
        Axis::log("bytes of an operation", Unit::Bytes),
        vec![without, with, Series::paper("paper, without", before), Series::paper("paper, Swordbox", after)],
    );
    Ok(outcome)
}

fn tails(settings: &Settings) -> Result<Outcome, Report> {
    let mut outcome = Outcome::default();
    let p99 = |rack: &Rack, kind: Kind| rack.latency(kind).p99.0 as f64 / 1e3;
    for (kind, name, paper, which) in [
        (Kind::Read, "READ", [[70.343, 2558.888, f64::NAN], [8.887, 8.499, f64::NAN]], &UPDATES[..2]),
        (Kind::Write, "update", [[373.384, 8439.914, 10_522.757], [21.361, 44.432, 41.735]], &UPDATES[..]),
    ] {
        let (mut without, mut with) = (Series::ours("without", []), Series::ours("Swordbox", []));
        for (n, &updates) in which.iter().enumerate() {
            let list_run = ListRun { updates, ..ListRun::new(settings) };
            let (plain, steered) = (p99(&list_run.run()?, kind), p99(&list_run.steered().run()?, kind));
            without.points.push((f64::from(updates), plain));
            with.points.push((f64::from(updates), steered));
            let times = paper[0][n] / paper[1][n];
            let paper_text = shape::text(times.round());
            outcome.value(
                format!("99th percentile without Swordbox / with it, {name}, {updates} % updates"),
                Some(&paper_text),
                plain / steered,
            );
            outcome.checks.push(shape::near(
                format!("{name}, {updates} % updates: 99th percentile without Swordbox / with it"),
                plain / steered,
                times,
            ));
        }
        let [before, after] = paper.map(|us| which.iter().map(|n| f64::from(*n)).zip(us).collect::<Vec<_>>());
        outcome.plot(
            &format!("99th percentile of {name}s"),
            Axis::linear("updates", Unit::Percent),
            Axis::log("latency", Unit::Us),
            vec![
                without,
                with,
                Series::paper("paper, without", before),
                Series::paper("paper, Swordbox", after),
            ],
        );
    }
    Ok(outcome)
}

fn partial(settings: &Settings) -> Result<Outcome, Report> {
    let list_run = ListRun { theta: 150, ..ListRun::new(settings) };
    let mut rates = Series::ours("ours", [(0.0, list_run.run()?.operations_per_s / 1e6)]);
    for tracked in [8, 64, 128, KEYS as usize] {
        rates.points.push((tracked as f64, ListRun { tracked, ..list_run }.run()?.operations_per_s / 1e6));
    }
    let without = rates.points[0].1;
    let mut outcome = Outcome::default();
    for ((keys, rate), paper) in rates.points[1..].iter().zip([Some("9.5"), Some("27"), Some("32"), None]) {
        outcome.value(
            format!("throughput with steering / without, {keys} keys steered"),
            paper,
            rate / without,
        );
    }
    outcome.checks = vec![
        shape::rises("throughput rises with the number of steered keys", &rates, 0.02),
        shape::near(
            "8 of 1,024 keys steered: throughput with steering / without",
            rates.points[1].1 / without,
            9.5,
        ),
        shape::near("64 keys steered: throughput with steering / without", rates.points[2].1 / without, 27.0),
        shape::within(
            "steering all keys gains little over steering 128 (ratio)",
            rates.points[4].1 / rates.points[3].1,
            0.95..=2.0,
        ),
    ];
    let paper = [(0.0, 0.126), (8.0, 1.20), (64.0, 3.43), (128.0, 3.99)];
    outcome.plot(
        "Throughput, Zipf 1.5",
        Axis::linear("keys steered", Unit::Number),
        Axis::log("operations a second", Unit::Millions),
        vec![rates, Series::paper("paper", paper)],
    );
    Ok(outcome)
}

fn contention(settings: &Settings) -> Result<Outcome, Report> {
    let thetas: &[u32] = settings.choose(&[0, 99, 150], &[0, 50, 75, 99, 125, 150]);
    let (mut without, mut with) = (Series::ours("without", []), Series::ours("Swordbox", []));
    for &theta in thetas {
        let list_run = ListRun { theta, ..ListRun::new(settings) };
        let x = f64::from(theta) / 100.0;
        without.points.push((x, list_run.run()?.operations_per_s / 1e6));
        with.points.push((x, list_run.steered().run()?.operations_per_s / 1e6));
    }
    let mut outcome = Outcome::default();
    let kept = |series: &Series| series.last() / series.points[0].1;
    outcome.value("throughput at Zipf 1.5 / at Zipf 0, without", Some("0.11"), kept(&without));
    outcome.value("throughput at Zipf 1.5 / at Zipf 0, Swordbox", Some("0.70"), kept(&with));
    outcome.checks = vec![
        shape::falls("without Swordbox, throughput falls with skew", &without, 0.05),
        shape::above("Swordbox is faster at every skew", &without, &with, 1.0),
        shape::within(
            "skew costs less throughput with Swordbox (ratio of what remains)",
            kept(&with) / kept(&without),
            2.0..=f64::INFINITY,
        ),
        shape::falls("with Swordbox, throughput falls with skew, too", &with, 0.05),
    ];
    let paper = |name: &str, ends: [f64; 2]| Series::paper(name, [0.0, 1.5].into_iter().zip(ends));
    outcome.plot(
        "Throughput, half updates",
        Axis::linear("Zipf's parameter", Unit::Number),
        Axis::log("operations a second", Unit::Millions),
        vec![without, with, paper("paper, without", [3.64, 0.41]), paper("paper, Swordbox", [28.4, 20.0])],
    );
    Ok(outcome)
}

fn payload(settings: &Settings) -> Result<Outcome, Report> {
    let lens: &[usize] = settings.choose(&[128, 1024], &[128, 256, 512, 1024]);
    let (mut without, mut with) = (Series::ours("without", []), Series::ours("Swordbox", []));
    for &node_len in lens {
        let list_run = ListRun { node_len, ..ListRun::new(settings) };
        without.points.push((node_len as f64, list_run.run()?.operations_per_s / 1e6));
        with.points.push((node_len as f64, list_run.steered().run()?.operations_per_s / 1e6));
    }
    let mut outcome = Outcome::default();
    for (len, times) in shape::ratios(&without, &with) {
        let what = format!("throughput with Swordbox / without, nodes of {len} bytes");
        let paper = [(128, 23.0), (256, 24.0), (512, 21.0), (1024, 17.0)];
        let paper = paper.iter().find(|(at, _)| *at == len as usize).map_or(f64::NAN, |(_, times)| *times);
        outcome.value(what.clone(), Some(&shape::text(paper)), times);
        outcome.checks.push(shape::near(what, times, paper));
    }
    outcome.checks.push(shape::falls("with Swordbox, throughput falls with the size of values", &with, 0.05));
    let sizes = [128.0, 256.0, 512.0, 1024.0];
    let paper = |name: &str, values: [f64; 4]| Series::paper(name, sizes.into_iter().zip(values));
    outcome.plot(
        "Throughput, half updates",
        Axis::log("size of a node", Unit::Bytes),
        Axis::log("operations a second", Unit::Millions),
        vec![
            without,
            with,
            paper("paper, without", [1.16, 1.08, 0.92, 0.66]),
            paper("paper, Swordbox", [27.0, 26.3, 18.9, 11.5]),
        ],
    );
    Ok(outcome)
}
