//! Latency of ordered delivery, and the part of it that the network alone needs: idle, with losses, and in
//! networks of any size (1Pipe, section 7.2, figure 9).

use super::{FatTree, Network};
use switch::{Nanos, Probability};

/// Latencies of messages between different hosts that were sent within a span of time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Latency {
    /// Number of delivered messages
    pub deliveries: usize,
    /// Share of sent messages that were not delivered
    pub lost: f64,
    /// Mean time from the timestamp to the delivery (ns)
    pub mean_ns: f64,
    /// Median of that time
    pub p50: Nanos,
    /// 99th percentile of that time
    pub p99: Nanos,
    /// Mean time from the timestamp to the arrival (ns): the latency of an unordered network
    pub arrival_ns: f64,
}

impl Latency {
    /// Returns the mean cost of ordering: the time from arrival to delivery (ns).
    pub fn overhead_ns(&self) -> f64 {
        self.mean_ns - self.arrival_ns
    }
}

/// Schedule of a measurement, in the world's time from its beginning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// Time without measurement, in which the first barriers reach the hosts
    pub warm_up: Nanos,
    /// Time after that, from which sent messages are measured
    pub lasts: Nanos,
    /// Time after that in which messages may still be delivered
    pub settles: Nanos,
}

impl Span {
    /// Returns a schedule with 60 us (20 beacon intervals) before and 120 us (40) after the measured span,
    /// which is enough for a loss of 10 %.
    pub const fn new(lasts: Nanos) -> Self {
        Self { warm_up: Nanos::from_micros(60), lasts, settles: Nanos::from_micros(120) }
    }
}

impl FatTree {
    /// Returns the same tree, nearly idle (a host scatters every 40 us on average, so that beacons carry the
    /// barriers), with this loss probability of every packet on every link: messages, acknowledgements and
    /// beacons alike. The authors drop at hosts (1Pipe, section 7.2); the loss of a beacon at a switch has
    /// the same effect.
    #[must_use]
    pub fn losing(mut self, loss: f64) -> Self {
        self.link.loss = Probability::new(loss).expect("the loss is between 0 and 1");
        self.every = Nanos::from_micros(40);
        self
    }

    /// Builds the network, and measures.
    ///
    /// # Errors
    /// A violation of the order of deliveries, or of a barrier.
    pub fn latency(mut self, span: Span, seed: u64) -> Result<(Latency, Network), String> {
        self.lasts = span.warm_up + span.lasts;
        let mut network = self.build(seed);
        network.world.run_until(self.lasts + span.settles);
        network.check(None)?;
        let latency = network.latency(span.warm_up, self.lasts)?;
        Ok((latency, network))
    }
}

impl Network {
    /// Returns the latencies (ns) of the messages that were delivered to another host and sent within a span
    /// of the world's time.
    pub fn latencies_ns(&self, from: Nanos, to: Nanos) -> Vec<u64> {
        let stretch = Self::time(from)..Self::time(to);
        let of = |host: &super::Host| {
            let delivered = host.delivered.iter().zip(&host.latencies_ns);
            let delivered =
                delivered.filter(|((at, from, _), _)| *from != host.number() && stretch.contains(at));
            delivered.map(|(_, &latency)| latency).collect::<Vec<_>>()
        };
        self.each_host().flat_map(of).collect()
    }

    /// Returns statistics of the messages that were sent within a span of the world's time.
    ///
    /// # Errors
    /// If no message was delivered.
    pub fn latency(&self, from: Nanos, to: Nanos) -> Result<Latency, String> {
        let stretch = Self::time(from)..Self::time(to);
        let (mut latencies, mut sent, mut arrived, mut arrived_ns) =
            (self.latencies_ns(from, to), 0, 0_u64, 0);
        for host in self.each_host() {
            let own = host.number();
            let to_others = host.sent.iter().filter(|sent| sent.to != own);
            sent += to_others.filter(|sent| sent.timestamp.is_some_and(|at| stretch.contains(&at))).count();
            for &(_, latency) in host.arrived.iter().filter(|(at, _)| stretch.contains(at)) {
                arrived += 1;
                arrived_ns += latency;
            }
        }
        latencies.sort_unstable();
        let deliveries = latencies.len();
        if deliveries == 0 {
            return Err("no message was delivered".into());
        }
        let quantile = |percent: usize| Nanos(latencies[(deliveries * percent / 100).min(deliveries - 1)]);
        Ok(Latency {
            deliveries,
            lost: 1.0 - deliveries as f64 / sent.max(deliveries) as f64,
            mean_ns: latencies.iter().sum::<u64>() as f64 / deliveries as f64,
            p50: quantile(50),
            p99: quantile(99),
            arrival_ns: arrived_ns as f64 / arrived.max(1) as f64,
        })
    }
}

impl Network {
    /// Returns the mean time from sending to delivery over all messages, in nanoseconds.
    pub fn mean_delay_ns(&self) -> f64 {
        let sums =
            self.each_host().map(|host| (host.latencies_ns.iter().sum::<u64>(), host.latencies_ns.len()));
        let (total_ns, count) =
            sums.fold((0, 0), |(ns, count), (more_ns, more)| (ns + more_ns, count + more));
        total_ns as f64 / count as f64
    }
}
