//! RFC 2544 tests of a device between two ports: throughput (section 26.1), latency (26.2), frame loss rate
//! (26.3), and back-to-back frames (26.4), at several frame lengths.
//!
//! [`measure`] decides which trials to run and computes the figures from their outcomes. It sends nothing
//! itself: its [`Tester`] runs each [`Trial`], with DPDK's ports in the program and on a simulated device in
//! tests. A trial whose polling thread had to wait for its CPU is no evidence about the device; it is
//! repeated a few times, after which the figure is missing.

mod report;
mod search;
mod trial;

use report::Values;
pub use report::{BackToBack, Figure, FrameReport, Latency, Loss, Report};
pub use search::Search;
pub use trial::{DiscardReason, Limit, Load, MaxRate, Outcome, Settings, Test, Times, Trial, TrialResult};

/// Attempts at a trial whose polling thread is not preempted
const ATTEMPTS: usize = 4;
/// Fractions of the throughput at which latency is measured (26.2 requires the whole, at which any delay of
/// ours would cause a loss)
const LATENCY_AT: [f64; 3] = [0.1, 0.5, 0.9];

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
            let discarded = outcome.discard_reason(trial.test, self.settings.min_core);
            self.done.push(TrialResult { trial, outcome, counts: discarded.is_none(), discarded });
            if discarded.is_none() {
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

/// Returns the limit of a figure's repeats: the first in the order of [`Limit`], in which the generator comes
/// first.
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
