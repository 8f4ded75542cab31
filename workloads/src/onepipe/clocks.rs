//! Delays and clocks of networks whose clocks are wrong, in the time of the world.

use super::host::{Host, true_time, unwrap};
use super::variation::drawn_error;
use super::{CLOCK, FatTree, Network, Sent};
use onepipe::ClockSample;
use representative::Command;
use sim::{EPOCH, NodeId};
use switch::Nanos;

/// Readings of a host's clock, and what its process's clock has shown.
#[derive(Clone, Debug, Default)]
pub(super) struct Clocked {
    /// When each message was passed to the process
    pub(super) sent_at: Vec<Nanos>,
    /// When each delivered message was delivered
    pub(super) delivered_at: Vec<Nanos>,
    /// Last time that the process has shown, unwrapped
    last: u64,
    /// Number of times at which it has shown an earlier one than before
    back: u64,
}

impl Clocked {
    /// Notes a time that the process shows.
    pub(super) fn show(&mut self, clock: u64) {
        self.back += u64::from(core::mem::replace(&mut self.last, clock) > clock);
    }

    /// Forgets what the previous incarnation has shown.
    pub(super) fn forget(&mut self) {
        self.last = 0;
    }
}

impl Network {
    /// Returns 1Pipe's time, unwrapped as in [`Message`](super::Message)s, when the world has this age.
    pub fn time(age: Nanos) -> u64 {
        true_time(EPOCH + age)
    }

    /// Returns the command that gives a representative a sample of its clock, off by `by_ns` nanoseconds. It
    /// believes the median of three.
    pub fn clock_off_by(&self, representative: usize, by_ns: i64) -> Command {
        let now = self.world.clock(self.representatives[representative]);
        Command::Clock(ClockSample::at(CLOCK.add(now.0.wrapping_add_signed(by_ns)), now))
    }

    /// Returns the delays (ns) of the messages that were sent to another host within a span of the world's time, from
    /// the call to the delivery, in order.
    pub fn delays_ns(&self, from: Nanos, to: Nanos) -> Vec<u64> {
        let mut delays = Vec::new();
        for (&node, host) in self.hosts.iter().zip(self.each_host()) {
            for (&(_, sender, message), &at) in host.delivered.iter().zip(&host.clocked.delivered_at) {
                let origin = self.hosts[sender];
                let sent_at = self.world.node::<Host>(origin).clocked.sent_at[message as usize];
                let sent = self.world.when(origin, sent_at);
                if sender != host.number() && (from..to).contains(&sent) {
                    delays.push(self.world.when(node, at).since(sent).0);
                }
            }
        }
        delays.sort_unstable();
        delays
    }

    /// Returns the number of messages that were passed to processes for other hosts within a span of the world's time.
    pub fn sent_to_others(&self, from: Nanos, to: Nanos) -> usize {
        let of = |(&node, host): (&NodeId, &Host)| {
            let sent = host.sent.iter().zip(&host.clocked.sent_at);
            let counts = |&(sent, &at): &(&Sent, &Nanos)| {
                sent.to != host.number() && (from..to).contains(&self.world.when(node, at))
            };
            sent.filter(counts).count()
        };
        self.hosts.iter().zip(self.each_host()).map(of).sum()
    }

    /// Returns by how many nanoseconds the clock of each host's process is ahead of the world's time.
    pub fn clock_errors(&mut self) -> Vec<i64> {
        let (now, nodes) = (self.world.now(), self.hosts.clone());
        let right = Self::time(now).cast_signed();
        let error = |node| {
            let shown =
                self.world.with(node, |host: &mut Host, local| unwrap(host.process.timestamp(local), local));
            shown.cast_signed() - right
        };
        nodes.into_iter().map(error).collect()
    }

    /// Checks that no process has shown an earlier time than before.
    ///
    /// # Errors
    /// The first host whose process has.
    pub fn check_clocks(&self) -> Result<(), String> {
        match self.each_host().find(|host| host.clocked.back > 0) {
            Some(host) => Err(format!("host {}: its clock went back", host.number())),
            None => Ok(()),
        }
    }
}

/// What wrong clocks that follow clock beacons cost: delays less those of the same network with perfect clocks.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ClockCost {
    /// Number of deliveries that were measured
    pub deliveries: usize,
    /// Mean delay with perfect clocks (ns)
    pub perfect_ns: f64,
    /// Difference of the mean delays (ns)
    pub mean_ns: f64,
    /// Difference of the medians (ns)
    pub p50_ns: f64,
    /// Difference of the 99th percentiles (ns)
    pub p99_ns: f64,
    /// Largest difference between the clocks of two processes at the end (ns)
    pub spread_ns: i64,
    /// Largest difference between the clocks of two machines at the start (ns)
    pub machines_ns: i64,
}

/// Time in which clocks converge, as they are given a time after 2 ms
const CONVERGES_WITHIN: Nanos = Nanos::from_micros(3_200);

impl ClockCost {
    /// Runs a nearly idle tree with perfect clocks, and with machines' clocks that are wrong by up to `error` ns and
    /// drift by up to `drift` ppb, and compares the delays of the messages that are sent within `lasts`.
    ///
    /// # Errors
    /// A violation of the order of deliveries, of a barrier, or of a clock.
    pub fn measure(
        tree: &FatTree,
        (error, drift): (u64, u64),
        lasts: Nanos,
        seed: u64,
    ) -> Result<Self, String> {
        let mut tree = *tree;
        tree.every = Nanos::from_micros(40);
        tree.lasts = CONVERGES_WITHIN + lasts;
        let run = |tree: &FatTree| {
            let mut network = tree.build(seed);
            network.world.run_until(tree.lasts + Nanos::from_micros(120));
            network.check(None)?;
            network.check_clocks()?;
            let delays = network.delays_ns(CONVERGES_WITHIN, tree.lasts);
            if delays.is_empty() { Err("no message was delivered".to_owned()) } else { Ok((delays, network)) }
        };
        let (perfect, _) = run(&tree)?;
        (tree.beacon_clocks, tree.drift_ppb) = (Some((seed, error)), drift);
        let (delays, mut network) = run(&tree)?;
        let mean = |delays: &[u64]| delays.iter().sum::<u64>() as f64 / delays.len() as f64;
        let quantile = |delays: &[u64], percent: usize| delays[delays.len() * percent / 100] as f64;
        let range = |of: &[i64]| of.iter().max().unwrap_or(&0) - of.iter().min().unwrap_or(&0);
        let machines: Vec<i64> = (0..tree.all_hosts()).map(|n| drawn_error(seed, error, n as u64)).collect();
        Ok(Self {
            deliveries: delays.len(),
            perfect_ns: mean(&perfect),
            mean_ns: mean(&delays) - mean(&perfect),
            p50_ns: quantile(&delays, 50) - quantile(&perfect, 50),
            p99_ns: quantile(&delays, 99) - quantile(&perfect, 99),
            spread_ns: range(&network.clock_errors()),
            machines_ns: range(&machines),
        })
    }
}
