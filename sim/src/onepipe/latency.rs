//! What ordered delivery takes, and how much of it the network alone needs: idle, with packets that are lost, and in networks of any
//! size (section 7.2, figure 9).

use super::{FatTree, Made};
use switch::{Nanos, Share};

/// What deliveries took, of messages between two hosts that were sent within a stretch of time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Latency {
    /// Messages that were delivered
    pub deliveries: usize,
    /// Of those that were sent, the share that was not
    pub lost: f64,
    /// From the timestamp to the delivery, on average, in nanoseconds
    pub mean_ns: f64,
    /// Half of the messages took no longer
    pub p50: Nanos,
    /// and of a hundred 99
    pub p99: Nanos,
    /// From the timestamp to the arrival, on average, in nanoseconds: what an unordered network would have taken
    pub arrival_ns: f64,
}

impl Latency {
    /// What order costs: from the arrival to the delivery, on average, in nanoseconds
    pub fn overhead_ns(&self) -> f64 {
        self.mean_ns - self.arrival_ns
    }
}

/// When something is measured, in the world's time from its beginning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// For so long nothing is: barriers have to come down for the first time
    pub warm_up: Nanos,
    /// Then what is sent for so long,
    pub lasts: Nanos,
    /// which then has so long to come
    pub settles: Nanos,
}

impl Span {
    /// A stretch of this length, after 20 intervals and before 40, which is enough where one packet in ten is lost.
    pub const fn new(lasts: Nanos) -> Self {
        Self { warm_up: Nanos::from_micros(60), lasts, settles: Nanos::from_micros(120) }
    }
}

impl FatTree {
    /// The same tree, nearly idle (a host scatters every 40 us, so that beacons carry barriers), in which each packet is lost
    /// on each link with this probability: messages, acknowledgements and beacons alike. (The authors drop at hosts, section 7.2;
    /// a beacon that a switch loses is as bad.)
    #[must_use]
    pub fn losing(mut self, loss: f64) -> Self {
        self.link.loss = Share::new(loss).expect("a probability");
        self.every = Nanos::from_micros(40);
        self
    }

    /// Builds it, and measures.
    ///
    /// # Errors
    /// What was wrong with the order of deliveries, or with a barrier.
    pub fn latency(mut self, span: Span, seed: u64) -> Result<(Latency, Made), String> {
        self.lasts = span.warm_up + span.lasts;
        let mut made = self.build(seed);
        made.world.run_until(self.lasts + span.settles);
        made.check(None)?;
        let latency = made.latency(span.warm_up, self.lasts)?;
        Ok((latency, made))
    }
}

impl Made {
    /// How long each message took, in nanoseconds, that was delivered to another host and was sent within a stretch of the world's
    /// time, from its beginning.
    pub fn took(&self, from: Nanos, to: Nanos) -> Vec<u64> {
        let stretch = Self::time(from)..Self::time(to);
        let of = |host: &super::Host| {
            let delivered = host.delivered.iter().zip(&host.took);
            let delivered =
                delivered.filter(|((at, from, _), _)| *from != host.number() && stretch.contains(at));
            delivered.map(|(_, &took)| took).collect::<Vec<_>>()
        };
        self.each_host().flat_map(of).collect()
    }

    /// What messages took that were sent within a stretch of the world's time, from its beginning.
    ///
    /// # Errors
    /// There are none.
    pub fn latency(&self, from: Nanos, to: Nanos) -> Result<Latency, String> {
        let stretch = Self::time(from)..Self::time(to);
        let (mut took, mut sent, mut arrived, mut arrived_ns) = (self.took(from, to), 0, 0_u64, 0);
        for host in self.each_host() {
            let own = host.number();
            let stamped = host.sent.iter().filter(|sent| sent.to != own);
            sent += stamped.filter(|sent| sent.timestamp.is_some_and(|at| stretch.contains(&at))).count();
            for &(_, took) in host.arrived.iter().filter(|(at, _)| stretch.contains(at)) {
                arrived += 1;
                arrived_ns += took;
            }
        }
        took.sort_unstable();
        let deliveries = took.len();
        if deliveries == 0 {
            return Err("nothing was delivered".into());
        }
        let quantile = |percent: usize| Nanos(took[(deliveries * percent / 100).min(deliveries - 1)]);
        Ok(Latency {
            deliveries,
            lost: 1.0 - deliveries as f64 / sent.max(deliveries) as f64,
            mean_ns: took.iter().sum::<u64>() as f64 / deliveries as f64,
            p50: quantile(50),
            p99: quantile(99),
            arrival_ns: arrived_ns as f64 / arrived.max(1) as f64,
        })
    }
}
