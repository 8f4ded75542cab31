//! The tests on devices whose capacity is known.

use super::*;

/// A device that takes so many frames a second, and holds a burst beside.
struct Device {
    capacity: f64,
    buffer: f64,
    /// What the generator can send
    generator: f64,
    /// One trial in so many loses a frame for no reason
    noise: u64,
    /// One trial in so many loses its core
    steals: u64,
    chance: u64,
    trials: u64,
}

impl Device {
    fn new(capacity: f64) -> Self {
        Self { capacity, buffer: 1_000.0, generator: 1e7, noise: 0, steals: 0, chance: 1, trials: 0 }
    }

    fn one_in(&mut self, n: u64) -> bool {
        self.chance =
            self.chance.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        n > 0 && (self.chance >> 33).is_multiple_of(n)
    }
}

impl Tester for Device {
    type Error = core::convert::Infallible;

    fn run(&mut self, trial: &Trial) -> Result<Outcome, Self::Error> {
        self.trials += 1;
        assert!(self.trials < 100_000, "it ends");
        let asked = match trial.load {
            Load::Fastest => self.generator,
            Load::PacketsPerS(rate) => rate as f64,
            Load::Burst(_) => trial.most.unwrap() as f64,
        };
        let rate = asked.min(self.generator);
        let sent = match trial.load {
            Load::Burst(frames) => frames as f64,
            _ => rate * trial.seconds,
        };
        let seconds = sent / rate;
        let mut lost = (sent - self.capacity * seconds - self.buffer).max(0.0).min(sent).ceil() as u64;
        if self.one_in(self.noise) {
            lost += 1;
        }
        let (sent, core) = (sent as u64, if self.one_in(self.steals) { 0.5 } else { 1.0 });
        let lost = lost.min(sent);
        Ok(Outcome {
            sent,
            received: sent - lost,
            lost: lost / 2,
            unseen: lost - lost / 2,
            sent_per_s: rate,
            offered: rate >= asked,
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
        most: Some(Most::PacketsPerS(5_000_000)),
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
    let Ok(report) = measure(settings, &mut device);
    assert!(report.adds_up);
    assert_eq!(report.frames.len(), settings.frames.len());
    report
}

#[test]
fn a_known_capacity_is_found() {
    let report = run(&settings(), Device::new(2_345_678.0));
    for frame in &report.frames {
        // A burst more than the capacity passes in a trial of a second.
        let found = frame.throughput.median.unwrap();
        assert!((2_345_678.0 - 50_000.0..=2_346_678.0).contains(&found), "{found}");
        assert_eq!((frame.limit, frame.throughput.repeats), (Some(Limit::Loss), 3));
        let rates: Vec<_> = frame.latency.iter().map(|l| l.max_ns.median.unwrap()).collect();
        assert_eq!(rates, [0.1, 0.5, 0.9].map(|part| (found * part).floor()));
        // From 100 % down to two rates at which nothing is lost: 40 % and 30 %
        let lost: Vec<_> = frame.loss.iter().map(|l| l.loss.median.unwrap()).collect();
        assert_eq!(lost.len(), 8, "{lost:?}");
        assert!((lost[0] - (1.0 - 2_346_678.0 / 5e6)).abs() < 1e-6, "{lost:?}");
        assert!(lost.windows(2).all(|two| two[0] >= two[1]) && lost[5] > 0.0 && lost[6] == 0.0, "{lost:?}");
        // A burst of n at 5 M a second finds the buffer full after 1,000 / (1 - 0.469) frames.
        let burst = frame.back_to_back.as_ref().unwrap();
        assert_eq!(burst.longest, 10_000_000);
        assert!(burst.frames.median.unwrap() <= 1_000.0 / (1.0 - 2.345_678 / 5.0));
    }
    let text = report.text();
    for words in ["Throughput without loss", "limited by", "Back-to-back", "90 % of it", "0.0000 %"] {
        assert!(text.contains(words), "{words} in\n{text}");
    }
    assert!(!text.contains("lost its core"), "{text}");
}

#[test]
fn one_that_never_loses_is_limited_by_what_is_offered() {
    let report = run(&settings(), Device::new(1e12));
    let frame = &report.frames[0];
    assert_eq!((frame.throughput.median, frame.limit), (Some(5e6), Some(Limit::Most)));
    assert_eq!(frame.loss.len(), 2, "nothing is lost at two rates");
    assert_eq!(frame.back_to_back.as_ref().unwrap().frames.median, Some(1e7));
}

#[test]
fn one_that_always_loses_has_no_throughput() {
    let mut device = Device::new(0.0);
    (device.buffer, device.noise) = (0.0, 1);
    let report = run(&settings(), device);
    let frame = &report.frames[0];
    assert_eq!((frame.throughput.median, frame.limit), (Some(0.0), Some(Limit::Loss)));
    assert!(frame.latency.is_empty(), "there is no rate to measure at");
    assert_eq!(frame.loss.len(), 10);
    assert!(frame.loss.iter().all(|loss| loss.loss.median == Some(1.0)));
    assert_eq!(frame.back_to_back.as_ref().unwrap().frames.median, Some(0.0));
}

#[test]
fn a_generator_that_is_too_slow_is_named() {
    let mut device = Device::new(1e12);
    device.generator = 3e6;
    let report = run(&settings(), device);
    let frame = &report.frames[0];
    assert_eq!(frame.limit, Some(Limit::Generator));
    let found = frame.throughput.median.unwrap();
    assert!((2.95e6..=3e6).contains(&found), "{found}");
    assert!(!frame.loss[0].offered && report.text().contains("the generator"));

    // Asked what it can send, it is the most.
    let mut device = Device::new(1e12);
    device.generator = 3e6;
    let report = run(&Settings { most: None, ..settings() }, device);
    assert_eq!(report.frames[0].most, Some(3_000_000));
    assert_eq!(report.frames[0].limit, Some(Limit::Most));
}

#[test]
fn noise_makes_it_less_and_is_seen_in_the_spread() {
    let mut device = Device::new(2e6);
    device.noise = 4;
    let report = run(&Settings { repeats: 9, ..settings() }, device);
    for frame in &report.frames {
        let figure = frame.throughput;
        assert!(figure.most.unwrap() <= 2.001e6, "noise never adds: {figure:?}");
        assert!(figure.least <= figure.median && figure.median <= figure.most && figure.least < figure.most);
    }
}

#[test]
fn a_figure_whose_core_was_lost_is_named_and_not_given() {
    let mut device = Device::new(2e6);
    device.steals = 1;
    let report = run(&settings(), device);
    assert_eq!(report.frames[0].throughput.median, None);
    assert!(report.trials.iter().all(|done| !done.counts));
    assert!(report.text().contains("lost its core"));

    // Now and then is made up for.
    let mut device = Device::new(2e6);
    device.steals = 5;
    let report = run(&settings(), device);
    let figure = report.frames[0].throughput;
    assert!(figure.lost_core > 0 && figure.on_cpu == Some(0.99), "{figure:?}");
    assert!((figure.median.unwrap() - 2e6).abs() < 5e4, "{figure:?}");
}

#[test]
fn a_wire_takes_more_than_its_frames() {
    assert_eq!(Most::BitsPerS(10_000_000_000).packets_per_s(64), 14_880_952);
    assert_eq!(Most::BitsPerS(10_000_000_000).packets_per_s(1518), 812_743);
}
