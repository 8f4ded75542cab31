//! P4CE: the figures of its section V.

use super::figure::{Axis, Figure, Outcome, Paper, Series, Settings, Unit};
use super::shape;
use crate::consensus::{PauseComparison, RATE, RateComparison, simulation_error};
use miette::Report;
use workloads::consensus::costs::{Failure, Load};

const DRAWING: &str = "a drawing of the design, not a measurement";
const REPLICAS: [u8; 2] = [2, 4];

pub(super) const FIGURES: &[Figure] = &[
    Figure::omitted(
        (Paper::P4ce, "table1", "Metadata contained in an RDMA packet"),
        "A list of header fields.",
        DRAWING,
    ),
    Figure::omitted((Paper::P4ce, "fig1", "Portable switch architecture pipeline"), "", DRAWING),
    Figure::omitted((Paper::P4ce, "fig2", "Communications in Mu and in P4CE"), "", DRAWING),
    Figure::omitted((Paper::P4ce, "fig3", "Communication pattern used for consensus"), "", DRAWING),
    Figure::omitted((Paper::P4ce, "table2", "Multicast metadata"), "A list of the switch's fields.", DRAWING),
    Figure::omitted(
        (Paper::P4ce, "table3", "Connection structure"),
        "A list of the switch's fields.",
        DRAWING,
    ),
    Figure::omitted((Paper::P4ce, "fig4", "Principle of packet duplication"), "", DRAWING),
    Figure::measured(
        (Paper::P4ce, "fig5", "Goodput by the size of values"),
        "The goodput of Mu times 2 with 2 replicas, and times 4 with 4. Link speed from 500 B on: 11 GB/s of goodput, 12.5 GB/s in \
         total, on links of 100 Gb/s.",
        "A leader proposes values as fast as its link allows, in virtual time on links of 10 Gb/s; goodput is given as a share of the \
         link.",
        goodput,
    ),
    Figure::measured(
        (Paper::P4ce, "consensus-rate", "Packets of a consensus with values of 64 B (section V-C)"),
        "2.3 million decisions a second, 1.9 times as many as Mu with 2 replicas and about 3.8 times with 4: the leader's CPU creates \
         fewer packets (half, a quarter) and gathers no ACKs.",
        "The leader's packets for each decision are counted in virtual time, heartbeats included. This is the work of its CPU, without \
         the time that it takes.",
        packets,
    ),
    Figure::measured(
        (Paper::P4ce, "fig6", "Latency by throughput with values of 64 B"),
        "Below 700,000 decisions a second (2 replicas; 400,000 with 4) latency is 10 % lower than Mu's. Mu saturates at 1.2 million \
         (600,000), P4CE at 2.3 million with either number of replicas.",
        "Closed loop in virtual time, with a fixed number of values outstanding, from 1 up. A value's latency is the time from its \
         proposal until the leader learns that it is decided. The leader's bottleneck here is its link of 10 Gb/s, not its CPU.",
        latency,
    )
    .in_part(
        "the 10 % are work of the leader's CPU: fewer requests, and no ACKs to gather (section V-D). Software takes no time here, so the \
         switch saves only time on the leader's link, which is 0 with 2 replicas and 4 % with 4",
        "let the leader's CPU take as long for each request that it posts and for each completion as measured on a machine; \
         consensus-rate has the numbers of both",
    ),
    Figure::measured(
        (Paper::P4ce, "fig7", "Latency of bursts of values of 64 B"),
        "Mu is limited by its CPU for more than 10 values at once; for bursts of 100, P4CE's latency is half of Mu's.",
        "Values are proposed at once to an idle cluster of 3 in virtual time. Latency ends when the leader learns that all of them are \
         decided. The leader's bottleneck is its link of 10 Gb/s.",
        bursts,
    ),
    Figure::measured(
        (Paper::P4ce, "table4", "Average fail-over times"),
        "Replica: 0.1 ms with Mu, 40.1 ms with P4CE. Leader: 0.9 and 40.9 ms. Switch: 60 ms with both. The 40 ms are the switch's \
         reconfiguration; with an asynchronous one, the authors expect the times of Mu.",
        "The additional time without decisions when a replica, the leader or the switch crashes, in virtual time with heartbeats of \
         100 us; the median over several crash times. Reconfiguration is asynchronous here. The switch is down for 5 ms, and there \
         is no other route.",
        fail_over,
    )
    .in_part(
        "the 40 ms are the time for which the authors' leader waits for the switch. Here it replicates by itself meanwhile, as they \
         propose (section V-E, lesson 3), so fail-over is as fast as without the switch, and the table's rows cannot hold",
        "add a leader that waits, and a switch that needs 40 ms, to the simulation, to repeat the table as printed beside ours",
    ),
];

/// Returns the names of the curves without the switch and with it.
fn names(replicas: u8) -> (String, String) {
    (format!("{replicas} replicas, direct"), format!("{replicas} replicas, switch"))
}

fn goodput(settings: &Settings) -> Result<Outcome, Report> {
    let sizes: &[usize] =
        settings.choose(&[64, 512, 2048, 8192], &[64, 128, 256, 512, 1024, 2048, 4096, 8192]);
    let mut outcome = Outcome::default();
    let mut all = Vec::new();
    for replicas in REPLICAS {
        let (direct, switch) = names(replicas);
        let mut series = [Series::ours(direct, []), Series::ours(switch, [])];
        for &size in sizes {
            let rates = RateComparison::measure(replicas, size, settings.seed)?;
            let share =
                |rates: workloads::consensus::costs::LeaderRates| 100.0 * rates.goodput_bps / RATE as f64;
            series[0].points.push((size as f64, share(rates.without_switch)));
            series[1].points.push((size as f64, share(rates.with_switch)));
        }
        let [direct, switch] = series;
        let times = f64::from(replicas);
        outcome.checks.push(shape::ratio(
            format!("{replicas} replicas: the switch multiplies goodput by {replicas}, at every size"),
            &direct,
            &switch,
            0.9 * times..=1.1 * times,
        ));
        outcome.checks.push(shape::rises(
            format!("{replicas} replicas: goodput with the switch rises with the size"),
            &switch,
            0.0,
        ));
        let long = shape::ratios(&direct, &switch).last().map_or(f64::NAN, |last| last.1);
        outcome.value(
            format!("goodput with the switch / without, {replicas} replicas, 8 KiB"),
            Some(&replicas.to_string()),
            long,
        );
        if let Some(share) = switch.at(512.0) {
            outcome.value(
                format!("goodput with the switch, {replicas} replicas, 512 B (% of the link)"),
                Some("88"),
                share,
            );
            outcome.checks.push(shape::within(
                format!("{replicas} replicas: values of 512 B fill the link (%)"),
                share,
                75.0..=100.0,
            ));
        }
        all.extend([direct, switch]);
    }
    all.push(Series::paper("paper, switch, from 500 B on", [(512.0, 88.0), (8192.0, 88.0)]));
    outcome.plot(
        "Goodput",
        Axis::log("size of a value", Unit::Bytes),
        Axis::linear("goodput, of the link", Unit::Percent),
        all,
    );
    Ok(outcome)
}

fn packets(settings: &Settings) -> Result<Outcome, Report> {
    let mut outcome = Outcome::default();
    let (mut out, mut into) = (Series::ours("direct, out", []), Series::ours("switch, out", []));
    for (replicas, paper) in [(2, Some("2")), (4, Some("4")), (8, None)] {
        let rates = RateComparison::measure(replicas, 64, settings.seed)?;
        let n = f64::from(replicas);
        let times = rates.without_switch.packets_out / rates.with_switch.packets_out;
        out.points.push((n, rates.without_switch.packets_out));
        into.points.push((n, rates.with_switch.packets_out));
        outcome.value(
            format!("packets out per value without the switch / with it, {replicas} replicas"),
            paper,
            times,
        );
        outcome.value(
            format!("packets out per value with the switch, {replicas} replicas"),
            Some("1"),
            rates.with_switch.packets_out,
        );
        outcome.value(
            format!("packets in per value with the switch, {replicas} replicas"),
            Some("1"),
            rates.with_switch.packets_in,
        );
        outcome.checks.push(shape::within(
            format!("{replicas} replicas: direct replication sends {replicas} times the packets"),
            times,
            0.95 * n..=1.05 * n,
        ));
        outcome.checks.push(shape::within(
            format!("{replicas} replicas: the leader receives one packet per value with the switch"),
            rates.with_switch.packets_in,
            1.0..=1.05,
        ));
    }
    let series = vec![out, into];
    outcome.plot(
        "Packets that the leader sends for a value",
        Axis::linear("replicas", Unit::Number),
        Axis::linear("packets", Unit::Number),
        series,
    );
    Ok(outcome)
}

fn latency(settings: &Settings) -> Result<Outcome, Report> {
    let windows: &[u64] =
        settings.choose(&[1, 4, 16, 64, 256], &[1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 128, 256]);
    let mut outcome = Outcome::default();
    for replicas in REPLICAS {
        let (direct, switch) = names(replicas);
        let mut series = [Series::ours(direct, []), Series::ours(switch, [])];
        for (series, through_switch) in series.iter_mut().zip([false, true]) {
            for &window in windows {
                let (rate_bps, seed) = (RATE, settings.seed);
                let load = Load { replicas, size: 64, through_switch, rate_bps, window: Some(window), seed };
                let rates = load.rates().map_err(simulation_error)?;
                series.points.push((rates.entries_per_s / 1e6, rates.latency_s * 1e6));
            }
        }
        let [direct, switch] = series;
        let most = |series: &Series| series.points.iter().map(|point| point.0).fold(0.0, f64::max);
        let (end, end_switch) = (most(&direct), most(&switch));
        let paper = if replicas == 2 { "1.9" } else { "3.8" };
        outcome.value(
            format!("highest rate with the switch / without, {replicas} replicas"),
            Some(paper),
            end_switch / end,
        );
        outcome.checks.push(shape::within(
            format!("{replicas} replicas: the highest rate with the switch is {replicas} times that without"),
            end_switch / end,
            0.9 * f64::from(replicas)..=1.1 * f64::from(replicas),
        ));
        let idle = switch.points[0].1 / direct.points[0].1;
        outcome.value(
            format!("latency with the switch / without, one value at a time, {replicas} replicas"),
            Some("0.9"),
            idle,
        );
        outcome.checks.push(shape::within(
            format!("{replicas} replicas: the latency of one value at a time is 10 % lower with the switch"),
            idle,
            0.85..=0.95,
        ));
        outcome.checks.push(shape::rises(
            format!("{replicas} replicas: latency without the switch rises with the load"),
            &Series::ours("", direct.points.iter().copied()),
            0.05,
        ));
        outcome.plot(
            &format!("Latency, {replicas} replicas"),
            Axis::linear("decisions a second", Unit::Millions),
            Axis::log("latency", Unit::Us),
            vec![direct, switch],
        );
    }
    Ok(outcome)
}

fn bursts(settings: &Settings) -> Result<Outcome, Report> {
    let sizes: &[u64] = settings.choose(&[1, 10, 100], &[1, 2, 5, 10, 20, 50, 100, 200]);
    let mut series = [Series::ours("direct", []), Series::ours("switch", [])];
    for (series, through_switch) in series.iter_mut().zip([false, true]) {
        for &size in sizes {
            let (rate_bps, seed) = (RATE, settings.seed);
            let load = Load { replicas: 2, size: 64, through_switch, rate_bps, window: None, seed };
            let took = load.burst(size).map_err(simulation_error)?;
            series.points.push((size as f64, took.0 as f64 / 1000.0));
        }
    }
    let [direct, switch] = series;
    let mut outcome = Outcome::default();
    let saved = Series::ours("", shape::ratios(&direct, &switch));
    let at = |values: f64| saved.at(values).unwrap_or(f64::NAN);
    outcome.value("latency with the switch / without, bursts of 100", Some("0.5"), at(100.0));
    outcome.value("latency with the switch / without, one value", Some("0.9"), at(1.0));
    outcome.checks.push(shape::within(
        "the switch about halves the latency of bursts of 100",
        at(100.0),
        0.4..=0.65,
    ));
    outcome.checks.push(shape::falls(
        "the latency saved by the switch grows with the length of the burst",
        &saved,
        0.02,
    ));
    outcome.checks.push(shape::rises("latency grows with the length of the burst", &direct, 0.0));
    outcome.plot(
        "Latency of a burst",
        Axis::log("values proposed at once", Unit::Number),
        Axis::log("latency", Unit::Us),
        vec![direct, switch],
    );
    Ok(outcome)
}

fn fail_over(settings: &Settings) -> Result<Outcome, Report> {
    let moments = settings.choose(3, 9);
    let mut outcome = Outcome::default();
    let mut all = Vec::new();
    for (failure, mu, p4ce) in [
        (Failure::Replica, "0.1", "40.1; 0.1 expected if asynchronous"),
        (Failure::Leader, "0.9", "40.9; 0.9 expected if asynchronous"),
        (Failure::Switch, "60", "60"),
    ] {
        let pauses = PauseComparison::measure(2, failure, moments, settings.seed)?;
        let ms = |span: switch::Nanos| span.0 as f64 / 1e6;
        let (direct, switch) = (ms(pauses.without_switch), ms(pauses.with_switch));
        outcome.value(
            format!("time without decisions, the {} crashes, direct (ms)", failure.name()),
            Some(mu),
            direct,
        );
        outcome.value(
            format!("time without decisions, the {} crashes, switch (ms)", failure.name()),
            Some(p4ce),
            switch,
        );
        if failure != Failure::Switch {
            outcome.checks.push(shape::within(
                format!(
                    "{}: fail-over takes 40 ms longer with the switch, as in the paper's table (ms)",
                    failure.name()
                ),
                switch - direct,
                30.0..=50.0,
            ));
        }
        // A packet more or less, within 10 % and 1 us, is not a longer fail-over.
        outcome.checks.push(shape::within(
            format!(
                "{}: fail-over takes no longer with the switch, as the authors expect with asynchronous reconfiguration (ms)",
                failure.name()
            ),
            switch,
            0.0..=1.1 * direct + 0.001,
        ));
        all.push((failure as u8 as f64, direct));
    }
    outcome.checks.push(shape::rises(
        "fail-over takes longer for the leader than for a replica, and longest for the switch (ms)",
        &Series::ours("", all),
        0.0,
    ));
    Ok(outcome)
}
