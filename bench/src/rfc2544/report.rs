//! What the tests came to: as tables for people, as JSON for programs.

use super::{Done, Settings, Thrown};
use serde::Serialize;
use std::fmt::Write as _;

/// A median, and between what the repeats lay. Nothing, if one of them said nothing of the device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Figure {
    /// Of all repeats
    pub median: Option<f64>,
    /// The least of them
    pub least: Option<f64>,
    /// The most
    pub most: Option<f64>,
    /// How often it was measured
    pub repeats: usize,
    /// Trials that were thrown away
    pub thrown: usize,
    /// Why, the last one
    pub why: Option<Thrown>,
    /// Least part of the time that the polling thread was on a CPU, of the trials that count
    pub on_cpu: Option<f64>,
}

/// What the repeats of a figure came to.
pub(super) struct Values {
    values: Vec<Option<f64>>,
    /// The first of its trials
    from: usize,
}

impl Values {
    /// Of trials from there on.
    pub(super) const fn after(from: usize) -> Self {
        Self { values: Vec::new(), from }
    }

    pub(super) fn push(&mut self, value: Option<f64>) {
        self.values.push(value);
    }

    /// The figure, out of these trials.
    pub(super) fn figure(&self, trials: &[Done]) -> Figure {
        Figure::new(&self.values, &trials[self.from..])
    }
}

impl Figure {
    fn new(values: &[Option<f64>], trials: &[Done]) -> Self {
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
            thrown: trials.iter().filter(|done| !done.counts).count(),
            why: trials.iter().rev().find_map(|done| done.thrown),
            on_cpu: counted.reduce(f64::min),
        }
    }

    fn text(&self, unit: impl Fn(f64) -> String) -> String {
        match (self.median, self.least, self.most) {
            (Some(median), Some(least), Some(most)) if least < most => {
                format!("{} ({} to {})", unit(median), unit(least), unit(most))
            }
            (Some(median), ..) => unit(median),
            _ => match self.why {
                Some(Thrown::LostCore) => "lost its core",
                Some(Thrown::Away) => "was away",
                Some(Thrown::LostHere) => "lost frames here",
                None => "not measured",
            }
            .into(),
        }
    }

    fn on_cpu_text(&self) -> String {
        self.on_cpu.map_or_else(String::new, |part| format!("{part:.2}"))
    }
}

/// Why no greater rate was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Limit {
    /// The generator did not send as much as it was asked for, or lost frames itself
    Generator,
    /// The device lost frames
    Loss,
    /// The device sent frames twice
    Duplicates,
    /// It is the most that is offered
    Most,
}

impl Limit {
    const fn text(self) -> &'static str {
        match self {
            Self::Generator => "the generator",
            Self::Loss => "loss",
            Self::Duplicates => "frames that came twice",
            Self::Most => "what is offered",
        }
    }
}

/// The tests at one length.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct FrameReport {
    /// Bytes of a frame, with its check sequence
    pub frame: u32,
    /// The most that was offered, in frames a second; `None` if the generator's trial lost its core
    pub most: Option<u64>,
    /// 26.1: the greatest rate without loss, in frames a second
    pub throughput: Figure,
    /// Why no greater one is it
    pub limit: Option<Limit>,
    /// 26.3, from the most downwards
    pub loss: Vec<Loss>,
    /// 26.2; empty if there is no throughput to measure at
    pub latency: Vec<Latency>,
    /// 26.4
    pub back_to_back: Option<BackToBack>,
}

impl FrameReport {
    /// Nothing is known yet.
    pub(super) fn new(frame: u32) -> Self {
        Self {
            frame,
            most: None,
            throughput: Figure::default(),
            limit: None,
            loss: Vec::new(),
            latency: Vec::new(),
            back_to_back: None,
        }
    }
}

/// Loss at a rate.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Loss {
    /// Of the most that is offered
    pub part_of_most: f64,
    /// The same in frames a second
    pub packets_per_s: u64,
    /// Whether the generator sent as much
    pub offered: bool,
    /// Part of the frames that did not come back
    pub loss: Figure,
}

/// Latency at a rate, in nanoseconds.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Latency {
    /// Of the throughput
    pub part_of_throughput: f64,
    /// The same in frames a second
    pub packets_per_s: u64,
    /// Whether the generator sent as much
    pub offered: bool,
    /// Part of the frames that did not come back: latency is that of the others
    pub loss: Figure,
    /// Half of all frames took longer
    pub p50_ns: Figure,
    /// One in a hundred
    pub p99_ns: Figure,
    /// One in a thousand
    pub p999_ns: Figure,
    /// The longest
    pub max_ns: Figure,
}

/// The longest burst.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct BackToBack {
    /// The longest that is tried
    pub longest: u64,
    /// Of which every frame came back
    pub frames: Figure,
    /// Why no longer one is it
    pub limit: Option<Limit>,
}

/// All tests.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Report {
    /// As they were made
    pub settings: Settings,
    /// By length
    pub frames: Vec<FrameReport>,
    /// Every trial, in order
    pub trials: Vec<Done>,
    /// Whether sent = received + lost + unseen in each trial
    pub adds_up: bool,
    /// Whether all tests were done
    pub complete: bool,
}

impl Report {
    pub(super) fn new(
        settings: Settings,
        frames: Vec<FrameReport>,
        trials: Vec<Done>,
        complete: bool,
    ) -> Self {
        let adds_up = |done: &Done| {
            let o = &done.outcome;
            o.adds_up && o.sent == o.received + o.lost + o.unseen
        };
        Self { settings, frames, adds_up: trials.iter().all(adds_up), trials, complete }
    }

    /// What came twice, and what was lost because nobody looked after the ports.
    fn robberies(&self, text: &mut String) {
        let twice: u64 = self.trials.iter().map(|done| done.outcome.duplicates).sum();
        if twice > 0 {
            _ = writeln!(text, "{twice} frames came back more than once, in all trials together.");
        }
        let away = || self.trials.iter().filter(|done| done.thrown == Some(Thrown::Away));
        if let Some(Done { outcome: o, .. }) = away().max_by_key(|done| done.outcome.away_frames) {
            _ = writeln!(
                text,
                "{} trials lost frames, and say nothing: the polling thread was away for up to {:.2} ms, in which {} frames come at \
                 {:.4} Mpps, and a port's queue holds {}.",
                away().count(),
                o.away_ns as f64 / 1e6,
                o.away_frames,
                o.sent_per_s / 1e6,
                o.held
            );
        }
    }

    /// For people.
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
            table(&["frame", "throughput", "of what is offered", "limited by", "on CPU", "thrown away"]);
        for f in &self.frames {
            let part = f.throughput.median.zip(f.most).map(|(found, most)| found / most as f64 * 100.0);
            throughput.add_row([
                format!("{} B", f.frame),
                f.throughput.text(rate),
                part.map_or_else(String::new, |part| format!("{part:.1} %")),
                f.limit.map_or("", Limit::text).into(),
                f.throughput.on_cpu_text(),
                f.throughput.thrown.to_string(),
            ]);
        }
        _ = writeln!(text, "Throughput without loss (RFC 2544, 26.1)\n{throughput}\n");
        let mut latency =
            table(&["frame", "at", "50 %", "99 %", "99.9 %", "most", "lost", "on CPU", "thrown away"]);
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
                l.p50_ns.thrown.to_string(),
            ]);
        }
        _ = writeln!(text, "Latency (26.2)\n{latency}\n");
        let mut loss = table(&["frame", "offered", "", "lost", "on CPU", "thrown away"]);
        for (f, l) in self.frames.iter().flat_map(|f| f.loss.iter().map(move |l| (f, l))) {
            loss.add_row([
                format!("{} B", f.frame),
                format!("{:.0} %", l.part_of_most * 100.0),
                if l.offered { rate(l.packets_per_s as f64) } else { "not reached".into() },
                l.loss.text(percent),
                l.loss.on_cpu_text(),
                l.loss.thrown.to_string(),
            ]);
        }
        _ = writeln!(text, "Loss (26.3)\n{loss}\n");
        let mut bursts =
            table(&["frame", "longest burst", "longest tried", "limited by", "on CPU", "thrown away"]);
        for (f, b) in self.frames.iter().filter_map(|f| Some((f, f.back_to_back.as_ref()?))) {
            bursts.add_row([
                format!("{} B", f.frame),
                b.frames.text(|frames| format!("{frames:.0} frames")),
                b.longest.to_string(),
                b.limit.map_or("", Limit::text).into(),
                b.frames.on_cpu_text(),
                b.frames.thrown.to_string(),
            ]);
        }
        _ = writeln!(text, "Back-to-back frames (26.4)\n{bursts}\n");
        self.robberies(&mut text);
        if !self.complete {
            text += "ENDED EARLY: not all tests were done.\n";
        }
        if !self.adds_up {
            text += "THE COUNTERS DO NOT ADD UP: this is a bug.\n";
        }
        _ = write!(
            text,
            "{} trials; medians of {}, and in brackets between what they lay",
            self.trials.len(),
            self.settings.repeats
        );
        text
    }
}
