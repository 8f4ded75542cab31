//! Options of the tests, their trials, and the outcomes of trials.

use serde::Serialize;

/// Options of the tests.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
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
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
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
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
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
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
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
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
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
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
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
    /// Frames lost locally: by this program's ports, or before them
    #[serde(rename = "lost_here")]
    pub lost_locally: u64,
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
    #[serde(rename = "away_ns")]
    pub poll_gap_ns: u64,
    /// Frames that arrive in such a time at this rate
    #[serde(rename = "away_frames")]
    pub poll_gap_frames: u64,
    /// Capacity of a port's receive queue, in frames
    #[serde(rename = "held")]
    pub rx_queue_frames: u64,
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
    pub(super) fn limit(&self) -> Option<Limit> {
        if !self.offered || self.lost_locally > 0 || self.sent == 0 {
            Some(Limit::Generator)
        } else if self.received < self.sent {
            Some(Limit::Loss)
        } else {
            (self.duplicates > 0).then_some(Limit::Duplicates)
        }
    }

    /// Returns why the trial is no evidence about the device.
    pub(super) fn discard_reason(&self, test: Test, min_core: f64) -> Option<DiscardReason> {
        let lost = self.received < self.sent;
        if self.core < min_core {
            Some(DiscardReason::Preempted)
        } else if test != Test::MaxRate && lost && self.poll_gap_frames > self.rx_queue_frames {
            Some(DiscardReason::PollingStalled)
        } else if matches!(test, Test::Loss | Test::Latency) && lost && self.lost_locally > 0 {
            Some(DiscardReason::LocalLoss)
        } else {
            None
        }
    }
}

/// Reason why no greater rate was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Limit {
    /// The generator did not send the requested load, or lost frames itself
    Generator,
    /// The device lost frames
    Loss,
    /// The device duplicated frames
    Duplicates,
    /// The highest rate that is offered was reached
    #[serde(rename = "most")]
    MaxRate,
}

impl Limit {
    pub(super) const fn text(self) -> &'static str {
        match self {
            Self::Generator => "the generator",
            Self::Loss => "loss",
            Self::Duplicates => "duplicate frames",
            Self::MaxRate => "the offered maximum",
        }
    }
}

/// Reason why a trial is no evidence about the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum DiscardReason {
    /// The polling thread waited for its CPU for too much of the time
    #[serde(rename = "lost_core")]
    Preempted,
    /// The polling thread did not poll for so long that the ports' queues could not hold what arrived
    /// meanwhile, and frames were lost
    #[serde(rename = "away")]
    PollingStalled,
    /// Frames were lost locally: by this program's ports, or before them
    #[serde(rename = "lost_here")]
    LocalLoss,
}

/// Latency in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
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
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
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
    #[serde(rename = "thrown")]
    pub discarded: Option<DiscardReason>,
}
