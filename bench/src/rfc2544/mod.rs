//! RFC 2544 tests of a device between two ports: throughput (section 26.1), latency (26.2), frame loss rate
//! (26.3), and back-to-back frames (26.4), at several frame lengths.
//!
//! [`measure`] decides which trials to run and computes the figures from their outcomes. It sends nothing
//! itself: its [`Tester`] runs each [`Trial`], with DPDK's ports in the program and on a simulated device in
//! tests. A trial whose polling thread had to wait for its CPU is no evidence about the device; it is
//! repeated, and if that does not help, the figure is missing.

mod report;
mod search;

use report::Values;
pub use report::{BackToBack, Figure, FrameReport, Latency, Limit, Loss, Report};
pub use search::Search;

use serde::Serialize;

/// Attempts at a trial that keeps its core
const ATTEMPTS: usize = 4;
/// Fractions of the throughput at which latency is measured (26.2 requires the whole, at which any delay of
/// ours would cause a loss)
const LATENCY_AT: [f64; 3] = [0.1, 0.5, 0.9];

/// Options of the tests.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Settings {
    /// Frame lengths in bytes, with check sequences, as the RFC counts them
    pub frames: Vec<u32>,
    /// Highest rate that is offered; `None` for what the generator can send
    #[serde(rename = "most")]
    pub max_rate: Option<MaxRate>,
    /// Resolution of rates and bursts, as a fraction of the maximum
    pub resolution: f64,
    /// Step of the loss curve, as a fraction of the maximum
    pub loss_step: f64,
    /// Duration of a throughput or loss trial, in seconds
    pub trial_s: f64,
    /// Duration of a latency trial, in seconds
    pub latency_trial_s: f64,
    /// Longest duration of a burst, in seconds
    pub burst_s: f64,
    /// Number of measurements of each figure
    pub repeats: u32,
    /// Smallest fraction of the time that the polling thread must have had its CPU when it was runnable
    pub min_core: f64,
}

/// The highest rate that is offered.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum MaxRate {
    /// Rate of the wire in bits a second: each frame takes 20 bytes more
    BitsPerS(u64),
    /// Frames a second of any length
    PacketsPerS(u64),
}

impl MaxRate {
    /// Returns the rate in frames of this length a second.
    pub fn packets_per_s(self, frame: u32) -> u64 {
        match self {
            Self::PacketsPerS(packets) => packets,
            // Preamble and gap; the length of a frame includes the check sequence
            Self::BitsPerS(bits) => bits / ((u64::from(frame) + 20) * 8),
        }
    }
}

/// Purpose of a trial.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Test {
    /// Find what the generator can send
    #[serde(rename = "most")]
    MaxRate,
    /// Throughput (26.1)
    Throughput,
    /// Latency (26.2)
    Latency,
    /// Frame loss rate (26.3)
    Loss,
    /// Back-to-back frames (26.4)
    BackToBack,
}

/// Load of a trial.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Load {
    /// As fast as the port takes frames
    Fastest,
    /// Frames a second
    PacketsPerS(u64),
    /// Number of frames of a burst
    Burst(u64),
}

/// A trial to run.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Trial {
    /// Purpose
    pub test: Test,
    /// Length of its frames in bytes, with check sequences
    pub frame: u32,
    /// Load
    pub load: Load,
    /// Duration in seconds; approximate for a burst
    pub seconds: f64,
    /// Highest rate in frames a second
    #[serde(rename = "most")]
    pub max_rate: Option<u64>,
}

/// Outcome of a trial.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Outcome {
    /// Frames sent
    pub sent: u64,
    /// Frames received, each counted once
    pub received: u64,
    /// Frames not received although a later one of their queue pair was
    pub lost: u64,
    /// Frames behind which none was received
    pub unseen: u64,
    /// Repeated receptions of the same frame
    pub duplicates: u64,
    /// Frames received after a later one of their queue pair
    pub reordered: u64,
    /// Frames lost on this side: by our ports, or before them
    pub lost_here: u64,
    /// Frames sent per second
    pub sent_per_s: f64,
    /// Whether the full load was offered at the requested rate
    pub offered: bool,
    /// Whether the counters add up
    pub adds_up: bool,
    /// Fraction of the time that the polling thread was on a CPU
    pub on_cpu: f64,
    /// Fraction of the time that the polling thread did not wait for a CPU
    pub core: f64,
    /// Longest time in which the polling thread did not poll its ports, in nanoseconds
    pub away_ns: u64,
    /// Frames that arrive in such a time at this rate
    pub away_frames: u64,
    /// Capacity of a port's receive queue, in frames
    pub held: u64,
    /// Times from sending to receiving
    pub latency: Option<Times>,
}

impl Outcome {
    /// Returns the fraction of frames that were lost.
    pub fn loss(&self) -> f64 {
        self.sent.saturating_sub(self.received) as f64 / self.sent.max(1) as f64
    }

    /// Returns why a trial failed. The generator comes first, because the device is not responsible for the
    /// generator's losses.
    fn limit(&self) -> Option<Limit> {
        if !self.offered || self.lost_here > 0 || self.sent == 0 {
            Some(Limit::Generator)
        } else if self.received < self.sent {
            Some(Limit::Loss)
        } else {
            (self.duplicates > 0).then_some(Limit::Duplicates)
        }
    }

    /// Returns why the trial is no evidence about the device.
    fn discard_reason(&self, test: Test, min_core: f64) -> Option<DiscardReason> {
        let lost = self.received < self.sent;
        if self.core < min_core {
            Some(DiscardReason::LostCore)
        } else if test != Test::MaxRate && lost && self.away_frames > self.held {
            Some(DiscardReason::Away)
        } else if matches!(test, Test::Loss | Test::Latency) && lost && self.lost_here > 0 {
            Some(DiscardReason::LostHere)
        } else {
            None
        }
    }
}

/// Reason why a trial is no evidence about the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum DiscardReason {
    /// The polling thread waited for its CPU for too much of the time
    LostCore,
    /// The polling thread was away for so long that the ports' queues could not hold what arrived meanwhile,
    /// and frames were lost
    Away,
    /// Frames were lost on this side
    LostHere,
}

/// Latency in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Times {
    /// Median
    pub p50_ns: u64,
    /// 99th percentile
    pub p99_ns: u64,
    /// 99.9th percentile
    pub p999_ns: u64,
    /// Longest
    pub max_ns: u64,
}

/// A trial with its outcome.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct TrialResult {
    /// The trial
    #[serde(flatten)]
    pub trial: Trial,
    /// Its outcome
    #[serde(flatten)]
    pub outcome: Outcome,
    /// Whether it counts
    pub counts: bool,
    /// Why it does not count
    pub thrown: Option<DiscardReason>,
}

/// Runs trials.
pub trait Tester {
    /// Error that ends the tests
    type Error;

    /// Runs a trial.
    ///
    /// # Errors
    /// The device disappeared, or the run was interrupted.
    fn run(&mut self, trial: &Trial) -> Result<Outcome, Self::Error>;
}

/// Trials so far, with the tester.
struct Bench<'a, T> {
    settings: &'a Settings,
    tester: &'a mut T,
    done: Vec<TrialResult>,
}

/// Result of the trials of one figure; `None` if one of them was no evidence about the device.
type Valid<V> = Option<V>;

impl<T: Tester> Bench<'_, T> {
    /// Runs a trial until it counts, for [`ATTEMPTS`] attempts at most.
    fn run(&mut self, trial: Trial) -> Result<Valid<Outcome>, T::Error> {
        for _ in 0..ATTEMPTS {
            let outcome = self.tester.run(&trial)?;
            let thrown = outcome.discard_reason(trial.test, self.settings.min_core);
            self.done.push(TrialResult { trial, outcome, counts: thrown.is_none(), thrown });
            if thrown.is_none() {
                return Ok(Some(outcome));
            }
        }
        Ok(None)
    }

    /// Measures a figure as often as `repeats` requires.
    fn figure(
        &mut self,
        mut one: impl FnMut(&mut Self) -> Result<Valid<f64>, T::Error>,
    ) -> Result<Figure, T::Error> {
        let mut values = Values::after(self.done.len());
        for _ in 0..self.settings.repeats {
            values.push(one(self)?);
        }
        Ok(values.figure(&self.done))
    }

    fn resolution(&self, max_rate: u64) -> u64 {
        (max_rate as f64 * self.settings.resolution) as u64
    }

    /// Returns the highest rate to offer in frames a second: from the settings, or measured.
    fn max_rate(&mut self, frame: u32) -> Result<Valid<u64>, T::Error> {
        if let Some(max_rate) = self.settings.max_rate {
            return Ok(Some(max_rate.packets_per_s(frame).max(1)));
        }
        let seconds = self.settings.trial_s;
        let trial = Trial { test: Test::MaxRate, frame, load: Load::Fastest, seconds, max_rate: None };
        Ok(self.run(trial)?.map(|outcome| (outcome.sent_per_s as u64).max(1)))
    }

    fn trial(&self, test: Test, frame: u32, max_rate: u64, load: Load) -> Trial {
        let settings = self.settings;
        let seconds = match (test, load) {
            (Test::Latency, _) => settings.latency_trial_s,
            (_, Load::Burst(frames)) => frames as f64 / max_rate as f64,
            _ => settings.trial_s,
        };
        Trial { test, frame, load, seconds, max_rate: Some(max_rate) }
    }

    /// Searches the greatest rate without loss. Adds the reason why it is not greater to `limits`.
    fn throughput(
        &mut self,
        frame: u32,
        max_rate: u64,
        limits: &mut Vec<Limit>,
    ) -> Result<Valid<f64>, T::Error> {
        let mut search = Search::new(max_rate, self.resolution(max_rate));
        let mut limit = Limit::MaxRate;
        while let Some(rate) = search.next() {
            let trial = self.trial(Test::Throughput, frame, max_rate, Load::PacketsPerS(rate));
            let Some(outcome) = self.run(trial)? else { return Ok(None) };
            let failed = outcome.limit();
            limit = failed.unwrap_or(limit);
            search.report(rate, failed.is_none());
        }
        limits.push(limit);
        Ok(Some(search.found() as f64))
    }

    /// Measures loss from the highest rate downwards, until two consecutive rates have none.
    fn loss_curve(&mut self, frame: u32, max_rate: u64, curve: &mut Vec<Loss>) -> Result<(), T::Error> {
        for step in 0.. {
            let part = 1.0 - self.settings.loss_step * f64::from(step);
            let clean = curve.iter().rev().take(2).filter(|loss| loss.loss.median == Some(0.0)).count();
            if part < 1e-9 || clean == 2 {
                break;
            }
            let rate = ((max_rate as f64 * part) as u64).max(1);
            let mut offered = true;
            let loss = self.figure(|bench| {
                let trial = bench.trial(Test::Loss, frame, max_rate, Load::PacketsPerS(rate));
                let outcome = bench.run(trial)?;
                offered &= outcome.is_none_or(|outcome| outcome.offered);
                Ok(outcome.map(|outcome| outcome.loss()))
            })?;
            curve.push(Loss { part_of_most: part, packets_per_s: rate, offered, loss });
        }
        Ok(())
    }

    /// Measures the latency of received frames, and the fraction of lost ones.
    fn latency(
        &mut self,
        frame: u32,
        max_rate: u64,
        throughput: f64,
        all: &mut Vec<Latency>,
    ) -> Result<(), T::Error> {
        for part in LATENCY_AT {
            let rate = ((throughput * part) as u64).max(1);
            let from = self.done.len();
            let mut outcomes = Vec::new();
            for _ in 0..self.settings.repeats {
                let trial = self.trial(Test::Latency, frame, max_rate, Load::PacketsPerS(rate));
                outcomes.push(self.run(trial)?);
            }
            let of_each = |value: &dyn Fn(&Outcome) -> Option<f64>| {
                let mut values = Values::after(from);
                for outcome in &outcomes {
                    values.push(outcome.as_ref().and_then(value));
                }
                values.figure(&self.done)
            };
            let figure = |of: fn(&Times) -> u64| {
                of_each(&|outcome| outcome.latency.as_ref().map(|times| of(times) as f64))
            };
            all.push(Latency {
                part_of_throughput: part,
                packets_per_s: rate,
                offered: outcomes.iter().flatten().all(|outcome| outcome.offered),
                loss: of_each(&|outcome| Some(outcome.loss())),
                p50_ns: figure(|times| times.p50_ns),
                p99_ns: figure(|times| times.p99_ns),
                p999_ns: figure(|times| times.p999_ns),
                max_ns: figure(|times| times.max_ns),
            });
        }
        Ok(())
    }

    /// Searches the longest burst without loss.
    fn back_to_back(&mut self, frame: u32, max_rate: u64) -> Result<BackToBack, T::Error> {
        let longest = ((max_rate as f64 * self.settings.burst_s) as u64).max(1);
        let mut limits = Vec::new();
        let frames = self.figure(|bench| {
            let mut search = Search::new(longest, bench.resolution(longest));
            let mut limit = Limit::MaxRate;
            while let Some(length) = search.next() {
                let trial = bench.trial(Test::BackToBack, frame, max_rate, Load::Burst(length));
                let Some(outcome) = bench.run(trial)? else { return Ok(None) };
                let failed = outcome.limit().or((outcome.sent != length).then_some(Limit::Generator));
                limit = failed.unwrap_or(limit);
                search.report(length, failed.is_none());
            }
            limits.push(limit);
            Ok(Some(search.found() as f64))
        })?;
        Ok(BackToBack { longest, limit: main_limit(limits).filter(|_| frames.median.is_some()), frames })
    }

    /// Measures everything for one frame length. If the tester fails, the report has what was measured
    /// before.
    fn frame(&mut self, report: &mut FrameReport) -> Result<(), T::Error> {
        let frame = report.frame;
        report.max_rate = self.max_rate(frame)?;
        let Some(max_rate) = report.max_rate else {
            // Nothing was measured, because the maximum is unknown.
            report.throughput = Values::after(0).figure(&self.done[self.done.len() - ATTEMPTS..]);
            return Ok(());
        };
        let mut limits = Vec::new();
        let throughput = self.figure(|bench| bench.throughput(frame, max_rate, &mut limits))?;
        report.limit = main_limit(limits).filter(|_| throughput.median.is_some());
        report.throughput = throughput;
        self.loss_curve(frame, max_rate, &mut report.loss)?;
        if let Some(median) = throughput.median.filter(|median| *median > 0.0) {
            self.latency(frame, max_rate, median, &mut report.latency)?;
        }
        report.back_to_back = Some(self.back_to_back(frame, max_rate)?);
        Ok(())
    }
}

/// Returns the limit of a figure's repeats: the one that blames the generator most.
fn main_limit(mut limits: Vec<Limit>) -> Option<Limit> {
    limits.sort();
    limits.first().copied()
}

/// Runs all tests. Returns what was measured, and the error of the tester if it ended them early.
pub fn measure<T: Tester>(settings: &Settings, tester: &mut T) -> (Report, Option<T::Error>) {
    let mut bench = Bench { settings, tester, done: Vec::new() };
    let (mut frames, mut error) = (Vec::new(), None);
    for &frame in &settings.frames {
        let mut report = FrameReport::new(frame);
        error = bench.frame(&mut report).err();
        frames.push(report);
        if error.is_some() {
            break;
        }
    }
    (Report::new(settings.clone(), frames, bench.done, error.is_none()), error)
}

#[cfg(test)]
mod tests;
