//! What the tests came to: as tables for people, as JSON for programs.

use super::{Done, Settings};
use serde::Serialize;
use std::fmt::Write as _;

/// A median, and between what the repeats lay. Nothing, if one of them lost its core.
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
    /// Trials that were thrown away because their polling thread had to wait for its CPU
    pub lost_core: usize,
    /// Least part of the time that the polling thread was on a CPU, of the trials that count
    pub on_cpu: Option<f64>,
}

impl Figure {
    pub(super) fn new(values: &[Option<f64>], trials: &[Done]) -> Self {
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
            lost_core: trials.iter().filter(|done| !done.counts).count(),
            on_cpu: counted.reduce(f64::min),
        }
    }

    fn text(&self, unit: impl Fn(f64) -> String) -> String {
        match (self.median, self.least, self.most) {
            (Some(median), Some(least), Some(most)) if least < most => {
                format!("{} ({} to {})", unit(median), unit(least), unit(most))
            }
            (Some(median), ..) => unit(median),
            _ => "lost its core".into(),
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
    /// The device lost frames
    Loss,
    /// The generator did not send as much as it was asked for, or could not
    Generator,
    /// It is the most that is offered
    Most,
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
    pub(super) fn lost(frame: u32) -> Self {
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
}

impl Report {
    pub(super) fn new(settings: Settings, frames: Vec<FrameReport>, trials: Vec<Done>) -> Self {
        let adds_up = |done: &Done| {
            let o = &done.outcome;
            o.adds_up && o.sent == o.received + o.lost + o.unseen
        };
        Self { settings, frames, adds_up: trials.iter().all(adds_up), trials }
    }

    /// For people.
    pub fn text(&self) -> String {
        let mut text = String::new();
        let rate = |n: f64| format!("{:.4} Mpps", n / 1e6);
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
                match f.limit {
                    Some(Limit::Loss) => "loss",
                    Some(Limit::Generator) => "the generator",
                    Some(Limit::Most) => "what is offered",
                    None => "",
                }
                .into(),
                f.throughput.on_cpu_text(),
                f.throughput.lost_core.to_string(),
            ]);
        }
        _ = writeln!(text, "Throughput without loss (RFC 2544, 26.1)\n{throughput}\n");
        let mut latency = table(&["frame", "at", "50 %", "99 %", "99.9 %", "most", "on CPU", "thrown away"]);
        for (f, l) in self.frames.iter().flat_map(|f| f.latency.iter().map(move |l| (f, l))) {
            let us = |ns: f64| format!("{:.2} us", ns / 1e3);
            latency.add_row([
                format!("{} B", f.frame),
                format!("{:.0} % of it", l.part_of_throughput * 100.0),
                l.p50_ns.text(us),
                l.p99_ns.text(us),
                l.p999_ns.text(us),
                l.max_ns.text(us),
                l.p50_ns.on_cpu_text(),
                l.p50_ns.lost_core.to_string(),
            ]);
        }
        _ = writeln!(text, "Latency (26.2)\n{latency}\n");
        let mut loss = table(&["frame", "offered", "", "lost", "on CPU", "thrown away"]);
        for (f, l) in self.frames.iter().flat_map(|f| f.loss.iter().map(move |l| (f, l))) {
            loss.add_row([
                format!("{} B", f.frame),
                format!("{:.0} %", l.part_of_most * 100.0),
                if l.offered { rate(l.packets_per_s as f64) } else { "not reached".into() },
                l.loss.text(|part| format!("{:.4} %", part * 100.0)),
                l.loss.on_cpu_text(),
                l.loss.lost_core.to_string(),
            ]);
        }
        _ = writeln!(text, "Loss (26.3)\n{loss}\n");
        let mut bursts = table(&["frame", "longest burst", "longest tried", "on CPU", "thrown away"]);
        for (f, b) in self.frames.iter().filter_map(|f| Some((f, f.back_to_back.as_ref()?))) {
            bursts.add_row([
                format!("{} B", f.frame),
                b.frames.text(|frames| format!("{frames:.0} frames")),
                b.longest.to_string(),
                b.frames.on_cpu_text(),
                b.frames.lost_core.to_string(),
            ]);
        }
        _ = writeln!(text, "Back-to-back frames (26.4)\n{bursts}\n");
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
