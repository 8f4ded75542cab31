//! RFC 2544's tests of a device between two ports: throughput (26.1), latency (26.2), loss by rate (26.3), and back-to-back
//! frames (26.4), at several lengths of frames.
//!
//! [`measure`] decides which trials there are and what follows from them. It sends nothing itself: whoever calls it runs each
//! [`Trial`] and says what it came to, DPDK's ports in the program and a made-up device in tests. A trial whose polling thread
//! had to wait for its CPU tells nothing of the device; it is repeated, and if that does not help, the figure is not given.

mod report;
mod search;

use report::Values;
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
    /// Those that came back more than once: that often more
    pub duplicates: u64,
    /// Those that came back behind a later one of their queue pair
    pub reordered: u64,
    /// Frames that were lost on this side of the wire: by our ports, or before them
    pub lost_here: u64,
    /// Frames a second that left
    pub sent_per_s: f64,
    /// Whether all that was to be offered was, at the rate that was asked for
    pub offered: bool,
    /// Whether what was counted adds up
    pub adds_up: bool,
    /// Part of the time that the polling thread was on a CPU
    pub on_cpu: f64,
    /// Part of the time that it did not have to wait for one
    pub core: f64,
    /// The longest time, in nanoseconds, in which it did not look after its ports
    pub away_ns: u64,
    /// Frames that come in such a time at this rate
    pub away_frames: u64,
    /// Frames that a port's queue holds until somebody looks
    pub held: u64,
    /// From sending to receiving
    pub latency: Option<Times>,
}

impl Outcome {
    /// The part that was lost
    pub fn loss(&self) -> f64 {
        self.sent.saturating_sub(self.received) as f64 / self.sent.max(1) as f64
    }

    /// Why a trial of it did not pass; the generator's part first, because what it lost itself is no fault of the device's.
    fn limit(&self) -> Option<Limit> {
        if !self.offered || self.lost_here > 0 || self.sent == 0 {
            Some(Limit::Generator)
        } else if self.received < self.sent {
            Some(Limit::Loss)
        } else {
            (self.duplicates > 0).then_some(Limit::Duplicates)
        }
    }

    /// Why it says nothing of the device, if it does not.
    fn thrown(&self, test: Test, min_core: f64) -> Option<Thrown> {
        let lost = self.received < self.sent;
        if self.core < min_core {
            Some(Thrown::LostCore)
        } else if test != Test::Most && lost && self.away_frames > self.held {
            Some(Thrown::Away)
        } else if matches!(test, Test::Loss | Test::Latency) && lost && self.lost_here > 0 {
            Some(Thrown::LostHere)
        } else {
            None
        }
    }
}

/// Why a trial says nothing of the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Thrown {
    /// The polling thread had to wait for its CPU for too much of the time
    LostCore,
    /// It was away once for so long that the ports' queues could not hold what came meanwhile, and frames were lost
    Away,
    /// Frames were lost on this side
    LostHere,
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
    /// Whether it counts
    pub counts: bool,
    /// Why not
    pub thrown: Option<Thrown>,
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

/// What came of trials that belong to one figure; none, if one of them said nothing of the device.
type Kept<V> = Option<V>;

impl<T: Tester> Bench<'_, T> {
    /// Runs a trial until it says something of the device.
    fn run(&mut self, trial: Trial) -> Result<Kept<Outcome>, T::Error> {
        for _ in 0..ATTEMPTS {
            let outcome = self.tester.run(&trial)?;
            let thrown = outcome.thrown(trial.test, self.settings.min_core);
            self.done.push(Done { trial, outcome, counts: thrown.is_none(), thrown });
            if thrown.is_none() {
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
        let mut values = Values::after(self.done.len());
        for _ in 0..self.settings.repeats {
            values.push(one(self)?);
        }
        Ok(values.figure(&self.done))
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
            let failed = outcome.limit();
            limit = failed.unwrap_or(limit);
            search.tell(rate, failed.is_none());
        }
        limits.push(limit);
        Ok(Some(search.found() as f64))
    }

    /// Loss from the most downwards, until nothing is lost at two rates in turn.
    fn loss_curve(&mut self, frame: u32, most: u64, curve: &mut Vec<Loss>) -> Result<(), T::Error> {
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
        Ok(())
    }

    /// What frames that came took, and how many did not.
    fn latency(
        &mut self,
        frame: u32,
        most: u64,
        throughput: f64,
        all: &mut Vec<Latency>,
    ) -> Result<(), T::Error> {
        for part in LATENCY_AT {
            let rate = ((throughput * part) as u64).max(1);
            let from = self.done.len();
            let mut outcomes = Vec::new();
            for _ in 0..self.settings.repeats {
                let trial = self.trial(Test::Latency, frame, most, Load::PacketsPerS(rate));
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

    /// The longest burst of which every frame came back.
    fn back_to_back(&mut self, frame: u32, most: u64) -> Result<BackToBack, T::Error> {
        let longest = ((most as f64 * self.settings.burst_s) as u64).max(1);
        let mut limits = Vec::new();
        let frames = self.figure(|bench| {
            let mut search = Search::new(longest, bench.resolution(longest));
            let mut limit = Limit::Most;
            while let Some(length) = search.next() {
                let trial = bench.trial(Test::BackToBack, frame, most, Load::Burst(length));
                let Some(outcome) = bench.run(trial)? else { return Ok(None) };
                let failed = outcome.limit().or((outcome.sent != length).then_some(Limit::Generator));
                limit = failed.unwrap_or(limit);
                search.tell(length, failed.is_none());
            }
            limits.push(limit);
            Ok(Some(search.found() as f64))
        })?;
        Ok(BackToBack { longest, limit: first(limits).filter(|_| frames.median.is_some()), frames })
    }

    /// Fills the report of a length, as far as it comes.
    fn frame(&mut self, report: &mut FrameReport) -> Result<(), T::Error> {
        let frame = report.frame;
        report.most = self.most(frame)?;
        let Some(most) = report.most else {
            // Nothing was measured, because of this.
            report.throughput = Values::after(0).figure(&self.done[self.done.len() - ATTEMPTS..]);
            return Ok(());
        };
        let mut limits = Vec::new();
        let throughput = self.figure(|bench| bench.throughput(frame, most, &mut limits))?;
        report.limit = first(limits).filter(|_| throughput.median.is_some());
        report.throughput = throughput;
        self.loss_curve(frame, most, &mut report.loss)?;
        if let Some(median) = throughput.median.filter(|median| *median > 0.0) {
            self.latency(frame, most, median, &mut report.latency)?;
        }
        report.back_to_back = Some(self.back_to_back(frame, most)?);
        Ok(())
    }
}

/// What held the repeats of a figure back: what says most against the generator.
fn first(mut limits: Vec<Limit>) -> Option<Limit> {
    limits.sort();
    limits.first().copied()
}

/// Runs all tests: what was measured, and why that is not all, if the tester could not go on.
pub fn measure<T: Tester>(settings: &Settings, tester: &mut T) -> (Report, Option<T::Error>) {
    let mut bench = Bench { settings, tester, done: Vec::new() };
    let (mut frames, mut wrong) = (Vec::new(), None);
    for &frame in &settings.frames {
        let mut report = FrameReport::new(frame);
        wrong = bench.frame(&mut report).err();
        frames.push(report);
        if wrong.is_some() {
            break;
        }
    }
    (Report::new(settings.clone(), frames, bench.done, wrong.is_none()), wrong)
}

#[cfg(test)]
mod tests;
