//! Report of the tests: as tables and as JSON.

use super::trial::{DiscardReason, Limit, Settings, TrialResult};
use serde::Serialize;
use std::fmt::Write as _;

/// A median with the range of its repeats; `None` if a repeat was no evidence about the device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Figure {
    /// Median of all repeats
    pub median: Option<f64>,
    /// Least of the repeats
    pub least: Option<f64>,
    /// Greatest of the repeats
    pub most: Option<f64>,
    /// Number of repeats
    pub repeats: usize,
    /// Number of discarded trials
    #[serde(rename = "thrown")]
    pub discarded: usize,
    /// Reason for the last discarded trial
    #[serde(rename = "why")]
    pub discard_reason: Option<DiscardReason>,
    /// Smallest fraction of the time that the polling thread was on a CPU, in the trials that count
    pub on_cpu: Option<f64>,
}

/// Values of a figure's repeats.
pub(super) struct Values {
    values: Vec<Option<f64>>,
    /// Index of its first trial
    from: usize,
}

impl Values {
    /// Creates an empty list; trials from the index `from` on belong to it.
    pub(super) const fn after(from: usize) -> Self {
        Self { values: Vec::new(), from }
    }

    pub(super) fn push(&mut self, value: Option<f64>) {
        self.values.push(value);
    }

    /// Returns the figure, from these trials.
    pub(super) fn figure(&self, trials: &[TrialResult]) -> Figure {
        Figure::new(&self.values, &trials[self.from..])
    }
}

impl Figure {
    fn new(values: &[Option<f64>], trials: &[TrialResult]) -> Self {
        let counted = trials.iter().filter(|done| done.counts).map(|done| done.outcome.on_cpu);
        let all: Option<Vec<f64>> = values.iter().copied().collect();
        let [median, least, most] = match all.and_then(|all| crate::compare::median(all.into_iter())) {
            Some(three) => three.map(Some),
            None => [None; 3],
        };
        Self {
            median,
            least,
            most,
            repeats: values.len(),
            discarded: trials.iter().filter(|done| !done.counts).count(),
            discard_reason: trials.iter().rev().find_map(|done| done.discarded),
            on_cpu: counted.reduce(f64::min),
        }
    }

    fn text(&self, unit: impl Fn(f64) -> String) -> String {
        match (self.median, self.least, self.most) {
            (Some(median), Some(least), Some(most)) if least < most => {
                format!("{} ({} to {})", unit(median), unit(least), unit(most))
            }
            (Some(median), ..) => unit(median),
            _ => match self.discard_reason {
                Some(DiscardReason::Preempted) => "preempted",
                Some(DiscardReason::PollingStalled) => "polling stalled",
                Some(DiscardReason::LocalLoss) => "local loss",
                None => "not measured",
            }
            .into(),
        }
    }

    fn on_cpu_text(&self) -> String {
        self.on_cpu.map_or_else(String::new, |part| format!("{part:.2}"))
    }
}

/// Results for one frame length.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct FrameReport {
    /// Length of a frame in bytes, with its check sequence
    pub frame: u32,
    /// Highest rate that was offered, in frames a second; `None` if the thread of the generator's trial was
    /// preempted
    #[serde(rename = "most")]
    pub max_rate: Option<u64>,
    /// Throughput (26.1): the greatest rate without loss, in frames a second
    pub throughput: Figure,
    /// Reason why the throughput is not greater
    pub limit: Option<Limit>,
    /// Frame loss rate (26.3), from the highest rate downwards
    pub loss: Vec<Loss>,
    /// Latency (26.2); empty if there is no throughput to measure at
    pub latency: Vec<Latency>,
    /// Back-to-back frames (26.4)
    pub back_to_back: Option<BackToBack>,
}

impl FrameReport {
    /// Returns an empty report for a frame length.
    pub(super) fn new(frame: u32) -> Self {
        Self {
            frame,
            max_rate: None,
            throughput: Figure::default(),
            limit: None,
            loss: Vec::new(),
            latency: Vec::new(),
            back_to_back: None,
        }
    }
}

/// Loss at one rate.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Loss {
    /// Rate as a fraction of the maximum
    pub part_of_most: f64,
    /// Rate in frames a second
    pub packets_per_s: u64,
    /// Whether the generator sent at this rate
    pub offered: bool,
    /// Fraction of the frames that were lost
    pub loss: Figure,
}

/// Latency at one rate, in nanoseconds.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Latency {
    /// Rate as a fraction of the throughput
    pub part_of_throughput: f64,
    /// Rate in frames a second
    pub packets_per_s: u64,
    /// Whether the generator sent at this rate
    pub offered: bool,
    /// Fraction of the frames that were lost; they have no latency
    pub loss: Figure,
    /// Median
    pub p50_ns: Figure,
    /// 99th percentile
    pub p99_ns: Figure,
    /// 99.9th percentile
    pub p999_ns: Figure,
    /// Longest
    pub max_ns: Figure,
}

/// The longest burst.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct BackToBack {
    /// Longest burst that was tried, in frames
    pub longest: u64,
    /// Longest burst without loss, in frames
    pub frames: Figure,
    /// Reason why it is not longer
    pub limit: Option<Limit>,
}

/// Appends a table with its title, unless it is empty.
fn append(text: &mut String, title: &str, table: &comfy_table::Table) {
    if !table.is_empty() {
        _ = writeln!(text, "{title}\n{table}\n");
    }
}

/// Results of all tests.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Report {
    /// Options of the tests
    pub settings: Settings,
    /// Results by frame length
    pub frames: Vec<FrameReport>,
    /// Every trial, in order
    pub trials: Vec<TrialResult>,
    /// Whether sent = received + lost + unseen in each trial
    pub adds_up: bool,
    /// Whether all tests were completed
    pub complete: bool,
}

impl Report {
    pub(super) fn new(
        settings: Settings,
        frames: Vec<FrameReport>,
        trials: Vec<TrialResult>,
        complete: bool,
    ) -> Self {
        let adds_up = |done: &TrialResult| {
            let o = &done.outcome;
            o.adds_up && o.sent == o.received + o.lost + o.unseen
        };
        Self { settings, frames, adds_up: trials.iter().all(adds_up), trials, complete }
    }

    /// Reports duplicates, and trials that lost frames while the polling thread was stalled.
    fn anomalies(&self, text: &mut String) {
        let twice: u64 = self.trials.iter().map(|done| done.outcome.duplicates).sum();
        if twice > 0 {
            _ = writeln!(text, "{twice} frames were received more than once, in all trials together.");
        }
        let stalled =
            || self.trials.iter().filter(|done| done.discarded == Some(DiscardReason::PollingStalled));
        if let Some(TrialResult { outcome: o, .. }) =
            stalled().max_by_key(|done| done.outcome.poll_gap_frames)
        {
            _ = writeln!(
                text,
                "{} trials lost frames and were discarded: the polling thread did not poll its ports for up to {:.2} ms, in which {} frames arrive at \
                 {:.4} Mpps; a port's queue holds {}.",
                stalled().count(),
                o.poll_gap_ns as f64 / 1e6,
                o.poll_gap_frames,
                o.sent_per_s / 1e6,
                o.rx_queue_frames
            );
        }
    }

    /// Returns what was not measured because the polling thread was preempted or stalled, or frames were lost
    /// locally, with the remedy; `None` if every figure was measured.
    pub fn missing(&self) -> Option<String> {
        let figures = |f: &FrameReport| {
            let bursts = f.back_to_back.as_ref().map(|b| b.frames);
            let latency = f.latency.iter().map(|l| l.p50_ns);
            [f.throughput]
                .into_iter()
                .chain(f.loss.iter().map(|l| l.loss))
                .chain(latency)
                .chain(bursts)
                .collect()
        };
        let all: Vec<Figure> = self.frames.iter().flat_map(|f| -> Vec<Figure> { figures(f) }).collect();
        let missing: Vec<_> = all.iter().filter(|figure| figure.median.is_none()).collect();
        let reason = missing.iter().find_map(|figure| figure.discard_reason)?;
        let discarded = || self.trials.iter().filter(|done| done.discarded.is_some());
        let least = discarded().map(|done| done.outcome.core).fold(1.0, f64::min);
        let (cause, remedy) = match reason {
            DiscardReason::Preempted => (
                format!("the polling thread had as little as {:.0} % of a CPU", least * 100.0),
                format!(
                    "give it a CPU of its own (`workers = [CPU]`, with nothing else on it), or accept less by `min_core`, which is \
                     {}",
                    self.settings.min_core
                ),
            ),
            DiscardReason::PollingStalled => (
                "the polling thread did not poll its ports for longer than a port's queue lasts".to_owned(),
                "give it a CPU of its own (`workers = [CPU]`, with nothing else on it), or raise `descriptors`".to_owned(),
            ),
            DiscardReason::LocalLoss => (
                "this program's own ports lost frames".to_owned(),
                "lower `packets_per_s`, or raise `descriptors` and `buffers`".to_owned(),
            ),
        };
        Some(format!(
            "{} of {} figures were not measured, and {} of {} trials were discarded: {cause}; {remedy}",
            missing.len(),
            all.len(),
            discarded().count(),
            self.trials.len(),
        ))
    }

    /// Returns the report as tables of text.
    pub fn text(&self) -> String {
        let mut text = String::new();
        let rate = |n: f64| format!("{:.4} Mpps", n / 1e6);
        let percent = |part: f64| format!("{:.4} %", part * 100.0);
        let table = |head: &[&str]| {
            let mut table = comfy_table::Table::new();
            table.load_style(comfy_table::presets::NOTHING);
            table.set_header(head);
            table
        };
        let mut throughput =
            table(&["frame", "throughput", "of the maximum", "limited by", "on CPU", "discarded"]);
        for f in &self.frames {
            let part = f.throughput.median.zip(f.max_rate).map(|(found, max)| found / max as f64 * 100.0);
            throughput.add_row([
                format!("{} B", f.frame),
                f.throughput.text(rate),
                part.map_or_else(String::new, |part| format!("{part:.1} %")),
                f.limit.map_or("", Limit::text).into(),
                f.throughput.on_cpu_text(),
                f.throughput.discarded.to_string(),
            ]);
        }
        append(&mut text, "Throughput without loss (RFC 2544, 26.1)", &throughput);
        let mut latency =
            table(&["frame", "at", "50 %", "99 %", "99.9 %", "most", "lost", "on CPU", "discarded"]);
        for (f, l) in self.frames.iter().flat_map(|f| f.latency.iter().map(move |l| (f, l))) {
            let us = |ns: f64| format!("{:.2} us", ns / 1e3);
            latency.add_row([
                format!("{} B", f.frame),
                format!(
                    "{:.0} % of it{}",
                    l.part_of_throughput * 100.0,
                    if l.offered { "" } else { ", not reached" }
                ),
                l.p50_ns.text(us),
                l.p99_ns.text(us),
                l.p999_ns.text(us),
                l.max_ns.text(us),
                l.loss.text(percent),
                l.p50_ns.on_cpu_text(),
                l.p50_ns.discarded.to_string(),
            ]);
        }
        append(&mut text, "Latency (26.2)", &latency);
        let mut loss = table(&["frame", "offered", "", "lost", "on CPU", "discarded"]);
        for (f, l) in self.frames.iter().flat_map(|f| f.loss.iter().map(move |l| (f, l))) {
            loss.add_row([
                format!("{} B", f.frame),
                format!("{:.0} %", l.part_of_most * 100.0),
                if l.offered { rate(l.packets_per_s as f64) } else { "not reached".into() },
                l.loss.text(percent),
                l.loss.on_cpu_text(),
                l.loss.discarded.to_string(),
            ]);
        }
        append(&mut text, "Loss (26.3)", &loss);
        let mut bursts =
            table(&["frame", "longest burst", "longest tried", "limited by", "on CPU", "discarded"]);
        for (f, b) in self.frames.iter().filter_map(|f| Some((f, f.back_to_back.as_ref()?))) {
            bursts.add_row([
                format!("{} B", f.frame),
                b.frames.text(|frames| format!("{frames:.0} frames")),
                b.longest.to_string(),
                b.limit.map_or("", Limit::text).into(),
                b.frames.on_cpu_text(),
                b.frames.discarded.to_string(),
            ]);
        }
        append(&mut text, "Back-to-back frames (26.4)", &bursts);
        self.anomalies(&mut text);
        if let Some(missing) = self.missing() {
            _ = writeln!(text, "NOT MEASURED: {missing}.");
        }
        if !self.complete {
            text += "ENDED EARLY: not all tests were completed.\n";
        }
        if !self.adds_up {
            text += "THE COUNTERS DO NOT ADD UP: this is a bug.\n";
        }
        _ = write!(
            text,
            "{} trials; medians of {}, with the range in brackets",
            self.trials.len(),
            self.settings.repeats
        );
        text
    }
}
