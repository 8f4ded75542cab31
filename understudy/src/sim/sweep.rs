//! Runs of many seeds on all CPUs. The result does not depend on the number of threads.

use crate::system::now;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};
use indicatif::{ProgressBar, ProgressStyle};
use std::sync::mpsc;
use std::time::Duration;
use workloads::scenario::{Outcome, Planted, Scenario, run as run_one};

/// Seeds to run.
#[derive(Clone, Copy)]
pub(super) enum Seeds {
    Count { from: u64, count: u64 },
    For { from: u64, seconds: u64 },
}

/// Result of many seeds.
#[derive(Default)]
pub(super) struct Summary {
    pub(super) from: u64,
    /// Seeds without a violation
    pub(super) passed: u64,
    /// The first seed with a violation; later ones are not reported
    pub(super) failed: Option<Outcome>,
    pub(super) events: u64,
    pub(super) packets: u64,
    pub(super) operations: u64,
    pub(super) broken: u64,
    /// Combination of the digests of all runs
    pub(super) digest: u64,
    pub(super) time: Duration,
}

pub(super) fn run(scenario: &Scenario, seeds: Seeds, threads: Option<usize>, planted: Planted) -> Summary {
    let began = now();
    let (from, until, bar) = match seeds {
        Seeds::Count { from, count } => (from, from.saturating_add(count), ProgressBar::new(count)),
        Seeds::For { from, .. } => (from, u64::MAX, ProgressBar::new_spinner()),
    };
    let style = "{elapsed_precise} {wide_bar} {pos}/{len} seeds, {per_sec}, {eta} left";
    if let (Seeds::Count { .. }, Ok(style)) = (seeds, ProgressStyle::with_template(style)) {
        bar.set_style(style);
    }
    let deadline = match seeds {
        Seeds::Count { .. } => None,
        Seeds::For { seconds, .. } => Some(began + Duration::from_secs(seconds)),
    };
    let next = AtomicU64::new(from);
    // Seeds from this one on need not be run, because an earlier one has failed.
    let end = AtomicU64::new(until);
    let threads = threads.or(std::thread::available_parallelism().ok().map(usize::from)).unwrap_or(1).max(1);
    let mut summary = Summary { from, ..Summary::default() };
    std::thread::scope(|scope| {
        let (report, reports) = mpsc::channel();
        for _ in 0..threads {
            let (report, next, end) = (report.clone(), &next, &end);
            scope.spawn(move || {
                while deadline.is_none_or(|deadline| now() < deadline) {
                    let seed = next.fetch_add(1, Relaxed);
                    if seed >= end.load(Relaxed) {
                        break;
                    }
                    let outcome = run_one(scenario, seed, planted, Vec::new());
                    if outcome.violation.is_some() {
                        end.fetch_min(seed, Relaxed);
                    }
                    if report.send(outcome).is_err() {
                        break;
                    }
                }
            });
        }
        drop(report);
        for outcome in reports {
            bar.inc(1);
            summary.add(outcome);
        }
    });
    bar.finish_and_clear();
    summary.time = now().duration_since(began);
    summary
}

impl Summary {
    fn add(&mut self, outcome: Outcome) {
        self.events += outcome.events;
        self.packets += outcome.packets;
        self.operations += outcome.operations_in_all();
        self.broken += outcome.broken;
        // The combination does not depend on the order of the outcomes.
        self.digest = self.digest.wrapping_add(switch::table::mix(outcome.seed ^ outcome.digest));
        if outcome.violation.is_none() {
            self.passed += 1;
        } else if self.failed.as_ref().is_none_or(|failed| outcome.seed < failed.seed) {
            self.failed = Some(outcome);
        }
    }
}
