//! RFC 2544's tests of a device between two ports: throughput (26.1), latency (26.2), loss by rate (26.3), and back-to-back
//! frames (26.4), at several lengths of frames.
//!
//! [`measure`] decides which trials there are and what follows from them. It sends nothing itself: whoever calls it runs each
//! [`Trial`] and says what it came to, DPDK's ports in the program and a made-up device in tests. A trial whose polling thread
//! had to wait for its CPU tells nothing of the device; it is repeated, and if that does not help, the figure is not given.

mod report;
mod search;

pub use report::{BackToBack, Figure, FrameReport, Latency, Limit, Loss, Report};
pub use search::Search;

use serde::Serialize;

/// Attempts at a trial that keeps its core
const ATTEMPTS: usize = 4;
/// Parts of the throughput at which latency is measured (26.2 asks for the whole, which any delay of ours would turn into a loss)
const LATENCY_AT: [f64; 3] = [0.1, 0.5, 0.9];

/// How the tests are made.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Settings {
    /// Lengths of frames, with their check sequences, as the RFC counts them
    pub frames: Vec<u32>,
    /// The most that is offered; `None` for what the generator can send
    pub most: Option<Most>,
    /// Part of the most to which rates and bursts are known
    pub resolution: f64,
    /// Part of the most by which the loss curve goes down
    pub loss_step: f64,
    /// Seconds of a trial of throughput and loss
    pub trial_s: f64,
    /// Seconds of a trial of latency
    pub latency_trial_s: f64,
    /// Seconds that the longest burst takes at the most
    pub burst_s: f64,
    /// How often each figure is measured
    pub repeats: u32,
    /// Part of the time that the polling thread must have had its CPU when it wanted it
    pub min_core: f64,
}

/// The most that is offered.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Most {
    /// The rate of the wire: each frame takes 20 bytes more
    BitsPerS(u64),
    /// Whatever the length
    PacketsPerS(u64),
}

impl Most {
    /// Frames of this length a second
    pub fn packets_per_s(self, frame: u32) -> u64 {
        match self {
            Self::PacketsPerS(packets) => packets,
            // Preamble and gap; the check sequence is the frame's
            Self::BitsPerS(bits) => bits / ((u64::from(frame) + 20) * 8),
        }
    }
}

/// What a trial is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Test {
    /// What the generator can send
    Most,
    /// 26.1
    Throughput,
    /// 26.2
    Latency,
    /// 26.3
    Loss,
    /// 26.4
    BackToBack,
}

/// What is sent.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Load {
    /// As fast as the port takes it
    Fastest,
    /// Frames a second
    PacketsPerS(u64),
    /// So many frames at the most
    Burst(u64),
}

/// A trial that is to be run.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Trial {
    /// What it is for
    pub test: Test,
    /// Length of its frames, with their check sequences
    pub frame: u32,
    /// What is sent
    pub load: Load,
    /// For so long; for a burst, about
    pub seconds: f64,
    /// The most frames a second
    pub most: Option<u64>,
}

/// What a trial came to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Outcome {
    /// Frames that left
    pub sent: u64,
    /// Those of them that came back, each counted once
    pub received: u64,
    /// Those that did not, though a later one of their queue pair did
    pub lost: u64,
    /// Those behind which none came
    pub unseen: u64,
    /// Frames a second that left
    pub sent_per_s: f64,
    /// Whether all that was to be offered was
    pub offered: bool,
    /// Whether what was counted adds up
    pub adds_up: bool,
    /// Part of the time that the polling thread was on a CPU
    pub on_cpu: f64,
    /// Part of the time that it did not have to wait for one
    pub core: f64,
    /// From sending to receiving
    pub latency: Option<Times>,
}

impl Outcome {
    /// The part that was lost
    pub fn loss(&self) -> f64 {
        self.sent.saturating_sub(self.received) as f64 / self.sent.max(1) as f64
    }

    fn all_came(&self) -> bool {
        self.sent > 0 && self.received == self.sent
    }
}

/// Latency in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Times {
    /// Half of all frames took longer
    pub p50_ns: u64,
    /// One in a hundred
    pub p99_ns: u64,
    /// One in a thousand
    pub p999_ns: u64,
    /// The longest
    pub max_ns: u64,
}

/// A trial, and what it came to.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Done {
    /// What was to be
    #[serde(flatten)]
    pub trial: Trial,
    /// What was
    #[serde(flatten)]
    pub outcome: Outcome,
    /// Whether it counts: its polling thread kept its core
    pub counts: bool,
}

/// Runs trials.
pub trait Tester {
    /// Why it cannot go on
    type Error;

    /// Runs one.
    ///
    /// # Errors
    /// The device has gone, or the run was ended.
    fn run(&mut self, trial: &Trial) -> Result<Outcome, Self::Error>;
}

/// Trials that were run, and who runs them.
struct Bench<'a, T> {
    settings: &'a Settings,
    tester: &'a mut T,
    done: Vec<Done>,
}

/// What came of trials that belong to one figure; none, if one of them lost its core.
type Kept<V> = Option<V>;

impl<T: Tester> Bench<'_, T> {
    /// Runs a trial until it keeps its core.
    fn run(&mut self, trial: Trial) -> Result<Kept<Outcome>, T::Error> {
        for _ in 0..ATTEMPTS {
            let outcome = self.tester.run(&trial)?;
            let counts = outcome.core >= self.settings.min_core;
            self.done.push(Done { trial, outcome, counts });
            if counts {
                return Ok(Some(outcome));
            }
        }
        Ok(None)
    }

    /// A figure of as many values as there are repeats.
    fn figure(
        &mut self,
        mut one: impl FnMut(&mut Self) -> Result<Kept<f64>, T::Error>,
    ) -> Result<Figure, T::Error> {
        let from = self.done.len();
        let mut values = Vec::new();
        for _ in 0..self.settings.repeats {
            values.push(one(self)?);
        }
        Ok(Figure::new(&values, &self.done[from..]))
    }

    fn resolution(&self, most: u64) -> u64 {
        (most as f64 * self.settings.resolution) as u64
    }

    /// The most frames a second, and whether the generator says so.
    fn most(&mut self, frame: u32) -> Result<Kept<u64>, T::Error> {
        if let Some(most) = self.settings.most {
            return Ok(Some(most.packets_per_s(frame).max(1)));
        }
        let seconds = self.settings.trial_s;
        let trial = Trial { test: Test::Most, frame, load: Load::Fastest, seconds, most: None };
        Ok(self.run(trial)?.map(|outcome| (outcome.sent_per_s as u64).max(1)))
    }

    fn trial(&self, test: Test, frame: u32, most: u64, load: Load) -> Trial {
        let settings = self.settings;
        let seconds = match (test, load) {
            (Test::Latency, _) => settings.latency_trial_s,
            (_, Load::Burst(frames)) => frames as f64 / most as f64,
            _ => settings.trial_s,
        };
        Trial { test, frame, load, seconds, most: Some(most) }
    }

    /// The greatest rate at which every frame came back; why no greater one is it goes to `limits`.
    fn throughput(&mut self, frame: u32, most: u64, limits: &mut Vec<Limit>) -> Result<Kept<f64>, T::Error> {
        let mut search = Search::new(most, self.resolution(most));
        let mut limit = Limit::Most;
        while let Some(rate) = search.next() {
            let trial = self.trial(Test::Throughput, frame, most, Load::PacketsPerS(rate));
            let Some(outcome) = self.run(trial)? else { return Ok(None) };
            let passed = outcome.offered && outcome.all_came();
            if !passed {
                limit = if outcome.all_came() { Limit::Generator } else { Limit::Loss };
            }
            search.tell(rate, passed);
        }
        limits.push(limit);
        Ok(Some(search.found() as f64))
    }

    /// Loss from the most downwards, until nothing is lost at two rates in turn.
    fn loss_curve(&mut self, frame: u32, most: u64) -> Result<Vec<Loss>, T::Error> {
        let mut curve: Vec<Loss> = Vec::new();
        for step in 0.. {
            let part = 1.0 - self.settings.loss_step * f64::from(step);
            let clean = curve.iter().rev().take(2).filter(|loss| loss.loss.median == Some(0.0)).count();
            if part < 1e-9 || clean == 2 {
                break;
            }
            let rate = ((most as f64 * part) as u64).max(1);
            let mut offered = true;
            let loss = self.figure(|bench| {
                let trial = bench.trial(Test::Loss, frame, most, Load::PacketsPerS(rate));
                let outcome = bench.run(trial)?;
                offered &= outcome.is_none_or(|outcome| outcome.offered);
                Ok(outcome.map(|outcome| outcome.loss()))
            })?;
            curve.push(Loss { part_of_most: part, packets_per_s: rate, offered, loss });
        }
        Ok(curve)
    }

    fn latency(&mut self, frame: u32, most: u64, throughput: f64) -> Result<Vec<Latency>, T::Error> {
        let mut all = Vec::new();
        for part in LATENCY_AT {
            let rate = ((throughput * part) as u64).max(1);
            let from = self.done.len();
            let mut times = Vec::new();
            for _ in 0..self.settings.repeats {
                let trial = self.trial(Test::Latency, frame, most, Load::PacketsPerS(rate));
                times.push(self.run(trial)?.and_then(|outcome| outcome.latency));
            }
            let done = &self.done[from..];
            let figure = |of: fn(&Times) -> u64| {
                let values: Vec<_> = times.iter().map(|times| Some(of(times.as_ref()?) as f64)).collect();
                Figure::new(&values, done)
            };
            all.push(Latency {
                part_of_throughput: part,
                packets_per_s: rate,
                p50_ns: figure(|times| times.p50_ns),
                p99_ns: figure(|times| times.p99_ns),
                p999_ns: figure(|times| times.p999_ns),
                max_ns: figure(|times| times.max_ns),
            });
        }
        Ok(all)
    }

    /// The longest burst of which every frame came back.
    fn back_to_back(&mut self, frame: u32, most: u64) -> Result<BackToBack, T::Error> {
        let longest = ((most as f64 * self.settings.burst_s) as u64).max(1);
        let frames = self.figure(|bench| {
            let mut search = Search::new(longest, bench.resolution(longest));
            while let Some(length) = search.next() {
                let trial = bench.trial(Test::BackToBack, frame, most, Load::Burst(length));
                let Some(outcome) = bench.run(trial)? else { return Ok(None) };
                search.tell(length, outcome.sent == length && outcome.all_came());
            }
            Ok(Some(search.found() as f64))
        })?;
        Ok(BackToBack { longest, frames })
    }

    fn frame(&mut self, frame: u32) -> Result<FrameReport, T::Error> {
        let Some(most) = self.most(frame)? else { return Ok(FrameReport::lost(frame)) };
        let mut limits = Vec::new();
        let throughput = self.figure(|bench| bench.throughput(frame, most, &mut limits))?;
        let loss = self.loss_curve(frame, most)?;
        let latency = match throughput.median {
            Some(median) if median > 0.0 => self.latency(frame, most, median)?,
            _ => Vec::new(),
        };
        let back_to_back = self.back_to_back(frame, most)?;
        limits.sort();
        Ok(FrameReport {
            frame,
            most: Some(most),
            limit: limits.first().copied().filter(|_| throughput.median.is_some()),
            throughput,
            loss,
            latency,
            back_to_back: Some(back_to_back),
        })
    }
}

/// Runs all tests.
///
/// # Errors
/// Those of the tester.
pub fn measure<T: Tester>(settings: &Settings, tester: &mut T) -> Result<Report, T::Error> {
    let mut bench = Bench { settings, tester, done: Vec::new() };
    let mut frames = Vec::new();
    for &frame in &settings.frames {
        frames.push(bench.frame(frame)?);
    }
    Ok(Report::new(settings.clone(), frames, bench.done))
}

#[cfg(test)]
mod tests;
