//! Tests with simulated devices of known capacity.

use super::*;

/// A device that forwards `capacity` frames a second, and buffers a burst.
struct Device {
    capacity: f64,
    buffer: f64,
    /// Highest rate of the generator, in frames a second
    generator: f64,
    /// One trial in `noise` loses a frame at random
    noise: u64,
    /// In one trial of `preemptions`, the polling thread is preempted
    preemptions: u64,
    /// Longest time in each trial in which the polling thread did not poll, in milliseconds
    poll_gap_ms: f64,
    /// Fraction of frames that are duplicated
    duplicated: f64,
    /// Fraction of frames that the local port loses
    lost_locally: f64,
    /// Number of trials after which the run is interrupted
    interrupted_after: u64,
    rng_state: u64,
    trials: u64,
}

impl Device {
    fn new(capacity: f64) -> Self {
        Self {
            capacity,
            buffer: 1_000.0,
            generator: 1e7,
            noise: 0,
            preemptions: 0,
            poll_gap_ms: 0.0,
            duplicated: 0.0,
            lost_locally: 0.0,
            interrupted_after: u64::MAX,
            rng_state: 1,
            trials: 0,
        }
    }

    fn one_in(&mut self, n: u64) -> bool {
        self.rng_state =
            self.rng_state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        n > 0 && (self.rng_state >> 33).is_multiple_of(n)
    }
}

#[derive(Debug, PartialEq)]
struct Interrupted;

impl Tester for Device {
    type Error = Interrupted;

    fn run(&mut self, trial: &Trial) -> Result<Outcome, Self::Error> {
        self.trials += 1;
        assert!(self.trials < 100_000, "the tests have to end");
        if self.trials > self.interrupted_after {
            return Err(Interrupted);
        }
        let requested = match trial.load {
            Load::Fastest => self.generator,
            Load::PacketsPerS(rate) => rate as f64,
            Load::Burst(_) => trial.max_rate.unwrap() as f64,
        };
        let rate = requested.min(self.generator);
        let sent = match trial.load {
            Load::Burst(frames) => frames as f64,
            _ => rate * trial.seconds,
        };
        let seconds = sent / rate;
        let mut lost = (sent - self.capacity * seconds - self.buffer).max(0.0).min(sent).ceil() as u64;
        if self.one_in(self.noise) {
            lost += 1;
        }
        let (sent, core) = (sent as u64, if self.one_in(self.preemptions) { 0.5 } else { 1.0 });
        let lost_locally = (sent as f64 * self.lost_locally) as u64;
        let lost = (lost + lost_locally).min(sent);
        Ok(Outcome {
            duplicates: (sent as f64 * self.duplicated) as u64,
            reordered: 0,
            lost_locally,
            poll_gap_ns: (self.poll_gap_ms * 1e6) as u64,
            poll_gap_frames: (rate * self.poll_gap_ms / 1e3) as u64,
            rx_queue_frames: 1_024,
            sent,
            received: sent - lost,
            lost: lost / 2,
            unseen: lost - lost / 2,
            sent_per_s: rate,
            offered: rate >= requested,
            adds_up: true,
            on_cpu: 0.99 * core,
            core,
            latency: Some(Times { p50_ns: 500, p99_ns: 900, p999_ns: 950, max_ns: rate as u64 }),
        })
    }
}

fn settings() -> Settings {
    Settings {
        frames: vec![128, 1518],
        max_rate: Some(MaxRate::PacketsPerS(5_000_000)),
        resolution: 0.01,
        loss_step: 0.1,
        trial_s: 1.0,
        latency_trial_s: 2.0,
        burst_s: 2.0,
        repeats: 3,
        min_core: 0.9,
    }
}

fn run(settings: &Settings, mut device: Device) -> Report {
    let (report, error) = measure(settings, &mut device);
    assert!(report.adds_up && report.complete && error.is_none());
    assert_eq!(report.frames.len(), settings.frames.len());
    report
}

#[test]
fn a_known_capacity_is_found() {
    let report = run(&settings(), Device::new(2_345_678.0));
    for frame in &report.frames {
        // In a trial of a second, a burst more than the capacity passes.
        let found = frame.throughput.median.unwrap();
        assert!((2_345_678.0 - 50_000.0..=2_346_678.0).contains(&found), "{found}");
        assert_eq!((frame.limit, frame.throughput.repeats), (Some(Limit::Loss), 3));
        let rates: Vec<_> = frame.latency.iter().map(|l| l.max_ns.median.unwrap()).collect();
        assert_eq!(rates, [0.1, 0.5, 0.9].map(|part| (found * part).floor()));
        // From 100 % down to two rates without loss: 40 % and 30 %
        let lost: Vec<_> = frame.loss.iter().map(|l| l.loss.median.unwrap()).collect();
        assert_eq!(lost.len(), 8, "{lost:?}");
        assert!((lost[0] - (1.0 - 2_346_678.0 / 5e6)).abs() < 1e-6, "{lost:?}");
        assert!(lost.windows(2).all(|two| two[0] >= two[1]) && lost[5] > 0.0 && lost[6] == 0.0, "{lost:?}");
        // A burst at 5 M a second fills the buffer after 1,000 / (1 - 0.469) frames.
        let burst = frame.back_to_back.as_ref().unwrap();
        assert_eq!(burst.longest, 10_000_000);
        assert!(burst.frames.median.unwrap() <= 1_000.0 / (1.0 - 2.345_678 / 5.0));
    }
    let text = report.text();
    for words in ["Throughput without loss", "limited by", "Back-to-back", "90 % of it", "0.0000 %"] {
        assert!(text.contains(words), "{words} in\n{text}");
    }
    assert!(!text.contains("preempted") && report.missing().is_none(), "{text}");
}

#[test]
fn a_lossless_device_is_limited_by_the_offered_maximum() {
    let report = run(&settings(), Device::new(1e12));
    let frame = &report.frames[0];
    assert_eq!((frame.throughput.median, frame.limit), (Some(5e6), Some(Limit::MaxRate)));
    assert_eq!(frame.loss.len(), 2, "two rates without loss end the curve");
    assert_eq!(frame.back_to_back.as_ref().unwrap().frames.median, Some(1e7));
}

#[test]
fn a_device_that_always_loses_has_no_throughput() {
    let mut device = Device::new(0.0);
    (device.buffer, device.noise) = (0.0, 1);
    let report = run(&settings(), device);
    let frame = &report.frames[0];
    assert_eq!((frame.throughput.median, frame.limit), (Some(0.0), Some(Limit::Loss)));
    assert!(frame.latency.is_empty(), "no rate to measure at");
    assert_eq!(frame.loss.len(), 10);
    assert!(frame.loss.iter().all(|loss| loss.loss.median == Some(1.0)));
    assert_eq!(frame.back_to_back.as_ref().unwrap().frames.median, Some(0.0));
}

#[test]
fn a_slow_generator_is_reported_as_the_limit() {
    let mut device = Device::new(1e12);
    device.generator = 3e6;
    let report = run(&settings(), device);
    let frame = &report.frames[0];
    assert_eq!(frame.limit, Some(Limit::Generator));
    let found = frame.throughput.median.unwrap();
    assert!((2.95e6..=3e6).contains(&found), "{found}");
    assert!(!frame.loss[0].offered && report.text().contains("the generator"));

    // Without a configured maximum, the generator's rate is the maximum.
    let mut device = Device::new(1e12);
    device.generator = 3e6;
    let report = run(&Settings { max_rate: None, ..settings() }, device);
    assert_eq!(report.frames[0].max_rate, Some(3_000_000));
    assert_eq!(report.frames[0].limit, Some(Limit::MaxRate));
}

#[test]
fn noise_lowers_the_result_and_widens_the_range() {
    let mut device = Device::new(2e6);
    device.noise = 4;
    let report = run(&Settings { repeats: 9, ..settings() }, device);
    for frame in &report.frames {
        let figure = frame.throughput;
        assert!(figure.most.unwrap() <= 2.001e6, "noise never raises the result: {figure:?}");
        assert!(figure.least <= figure.median && figure.median <= figure.most && figure.least < figure.most);
    }
}

#[test]
fn a_figure_is_missing_if_the_thread_was_preempted_in_all_its_trials() {
    let mut device = Device::new(2e6);
    device.preemptions = 1;
    let report = run(&settings(), device);
    assert_eq!(report.frames[0].throughput.median, None);
    assert!(report.trials.iter().all(|done| !done.counts));
    let text = report.text();
    assert!(text.contains("preempted") && !text.contains("Latency"), "no empty table: {text}");
    let missing = report.missing().unwrap();
    assert!(text.contains(&missing) && missing.contains("as little as 50 % of a CPU"), "{missing}");
    assert!(missing.ends_with("or accept less by `min_core`, which is 0.9"), "{missing}");

    // Occasional preemptions are compensated by repeated trials.
    let mut device = Device::new(2e6);
    device.preemptions = 5;
    let report = run(&settings(), device);
    let figure = report.frames[0].throughput;
    assert!(figure.discarded > 0 && figure.on_cpu == Some(0.99), "{figure:?}");
    assert!((figure.median.unwrap() - 2e6).abs() < 5e4, "{figure:?}");
}

#[test]
fn the_rate_of_a_wire_includes_preamble_and_gap() {
    assert_eq!(MaxRate::BitsPerS(10_000_000_000).packets_per_s(64), 14_880_952);
    assert_eq!(MaxRate::BitsPerS(10_000_000_000).packets_per_s(1518), 812_743);
}

#[test]
fn losses_of_the_generator_are_not_attributed_to_the_device() {
    let mut device = Device::new(1e12);
    device.lost_locally = 0.01;
    let report = run(&settings(), device);
    let frame = &report.frames[0];
    assert_eq!(frame.limit, Some(Limit::Generator));
    assert!(frame.loss.iter().all(|loss| loss.loss.median.is_none()), "{:?}", frame.loss);
    assert!(report.text().contains("local loss"), "{}", report.text());

    // A missed rate is checked before losses, which may be its consequence.
    let outcome = Outcome { sent: 10, received: 5, offered: false, ..Outcome::default() };
    assert_eq!(outcome.limit(), Some(Limit::Generator));
    assert_eq!(Outcome { offered: true, ..outcome }.limit(), Some(Limit::Loss));
    assert_eq!(Outcome { offered: true, received: 10, ..outcome }.limit(), None);
}

#[test]
fn a_burst_below_the_requested_rate_is_limited_by_the_generator() {
    let mut device = Device::new(1e12);
    device.generator = 3e6;
    let report = run(&settings(), device);
    let burst = report.frames[0].back_to_back.as_ref().unwrap();
    assert_eq!((burst.frames.median, burst.limit), (Some(0.0), Some(Limit::Generator)));
    let report = run(&settings(), Device::new(1e12));
    let burst = report.frames[0].back_to_back.as_ref().unwrap();
    assert_eq!((burst.frames.median, burst.limit), (Some(1e7), Some(Limit::MaxRate)));
}

#[test]
fn a_loss_while_polling_is_stalled_is_discarded() {
    // 1 ms, in which 5,000 frames arrive at the maximum, and 1,000 at a fifth of it
    let mut device = Device::new(2e6);
    device.poll_gap_ms = 1.0;
    let report = run(&settings(), device);
    let frame = &report.frames[0];
    assert_eq!(
        (frame.throughput.median, frame.throughput.discard_reason),
        (None, Some(DiscardReason::PollingStalled))
    );
    let text = report.text();
    assert!(
        text.contains("did not poll its ports for up to 1.00 ms, in which 5000 frames arrive at 5.0000 Mpps"),
        "{text}"
    );
    assert!(text.contains("a port's queue holds 1024"), "{text}");

    // A trial without loss counts although polling stalled, and so does a stall that the queue bridges.
    let mut device = Device::new(1e12);
    device.poll_gap_ms = 1.0;
    assert_eq!(run(&settings(), device).frames[0].throughput.median, Some(5e6));
    let mut device = Device::new(2e6);
    device.poll_gap_ms = 0.2;
    assert!(run(&settings(), device).frames[0].throughput.median.is_some());
}

#[test]
fn duplicates_limit_the_throughput() {
    let mut device = Device::new(1e12);
    device.duplicated = 0.001;
    let report = run(&settings(), device);
    assert_eq!(report.frames[0].limit, Some(Limit::Duplicates));
    // 0.1 % of fewer than 1,000 frames rounds to none.
    assert!(report.frames[0].throughput.median.unwrap() < 1e5);
    assert!(report.text().contains("were received more than once"));
}

#[test]
fn latency_is_reported_with_the_loss() {
    struct Lossy(Device);
    impl Tester for Lossy {
        type Error = Interrupted;
        fn run(&mut self, trial: &Trial) -> Result<Outcome, Interrupted> {
            let mut outcome = self.0.run(trial)?;
            if trial.test == Test::Latency {
                (outcome.received, outcome.lost) = (outcome.sent - outcome.sent / 4, outcome.sent / 4);
            }
            Ok(outcome)
        }
    }
    let (report, _) = measure(&settings(), &mut Lossy(Device::new(1e12)));
    let latency = &report.frames[0].latency[0];
    assert_eq!((latency.loss.median, latency.offered), (Some(0.25), true));
    assert!(report.text().contains("25.0000 %"), "{}", report.text());
}

#[test]
fn an_interrupted_run_reports_what_was_measured() {
    // Three trials find the throughput at once, and two rates without loss take three each: nine trials
    // before latency
    let mut device = Device::new(1e12);
    device.interrupted_after = 12;
    let (report, error) = measure(&settings(), &mut device);
    assert_eq!((error, report.complete, report.trials.len()), (Some(Interrupted), false, 12));
    let frame = &report.frames[0];
    assert_eq!((frame.throughput.median, frame.loss.len(), frame.latency.len()), (Some(5e6), 2, 1));
    assert_eq!((frame.back_to_back.is_none(), report.frames.len()), (true, 1));
    assert!(report.text().contains("ENDED EARLY"), "{}", report.text());
}
