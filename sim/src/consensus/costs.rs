//! What consensus costs with and without the switch, in virtual time: the same run gives the same numbers, on any machine.

use super::{Cluster, ClusterConfig};
use crate::{Fault, Link};
use switch::Nanos;

/// For how long a switch is down at least
pub const OUTAGE: Nanos = Nanos::from_millis(5);
/// By when a group stands, and everybody has found their pace: with heartbeats of [`PACE`]
const WARM_UP: Nanos = Nanos::from_millis(25);
const PACE: Nanos = Nanos::from_micros(250);
/// The same, with heartbeats of 100 us
const BEFORE: Nanos = Nanos::from_millis(10);

/// A leader at work.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    /// Packets that the leader sent for each entry that was decided, heartbeats included
    pub packets_out: f64,
    /// Packets that it received
    pub packets_in: f64,
    /// Values decided a second
    pub entries_per_s: f64,
    /// Values decided (bits a second)
    pub goodput_bps: f64,
    /// Mean time from a value's proposal until the leader knows that it is decided (seconds)
    pub latency_s: f64,
}

/// What a leader has to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Load {
    /// Replicas beside it
    pub replicas: u8,
    /// Bytes of a value
    pub size: usize,
    /// Whether the switch replicates
    pub through: bool,
    /// Bits a second of every link
    pub rate_bps: u64,
    /// Values that are proposed and not decided at once; as many as keep the link busy, if it is not said
    pub window: Option<u64>,
    /// For everything that is drawn
    pub seed: u64,
}

impl Load {
    /// What the link and its way there and back hold, and more, so that the link is the limit.
    const fn most(&self) -> u64 {
        (1 << 18) / (self.size as u64 + 128)
    }

    fn config(&self) -> ClusterConfig {
        ClusterConfig {
            seed: self.seed,
            servers: self.replicas + 1,
            through: self.through,
            // A leader learns by heartbeats what others have taken out of their logs.
            slots: 4 * self.most(),
            window: self.window.unwrap_or(self.most()),
            sizes: (self.size, self.size),
            heartbeat: PACE,
            // Above the time that the window spends in the link's queue
            ack_timeout: 9,
            link: Link { rate_bps: self.rate_bps, queue: 1 << 24, ..Link::default() },
            ..ClusterConfig::default()
        }
    }

    /// A cluster whose leader replicates as it should.
    fn begun(&self, config: &ClusterConfig) -> Result<Cluster, String> {
        let mut cluster = Cluster::new(config);
        cluster.world.run_until(WARM_UP);
        let leader = cluster.app(0).server();
        if !leader.leads() || leader.replicates_through() != self.through {
            return Err(format!("after {WARM_UP:?} the leader has not begun"));
        }
        Ok(cluster)
    }

    /// How the leader fares.
    ///
    /// # Errors
    /// What was wrong with the run.
    pub fn pace(&self) -> Result<Pace, String> {
        let mut cluster = self.begun(&self.config())?;
        let look = |cluster: &Cluster| {
            let counters = cluster.nic_counters(0);
            let app = cluster.app(0);
            (app.server().decided(), counters.sent, counters.received, app.latencies())
        };
        let before = look(&cluster);
        let span = Nanos::from_millis(4);
        cluster.world.run_until(WARM_UP + span);
        cluster.check()?;
        let after = look(&cluster);
        let entries = (after.0 - before.0) as f64;
        let entries_per_s = entries / (span.0 as f64 / 1e9);
        Ok(Pace {
            packets_out: (after.1 - before.1) as f64 / entries,
            packets_in: (after.2 - before.2) as f64 / entries,
            entries_per_s,
            goodput_bps: entries_per_s * self.size as f64 * 8.0,
            latency_s: after.3.mean_since(before.3),
        })
    }

    /// How long it takes from when so many values are proposed at once until the leader knows that all are decided.
    ///
    /// # Errors
    /// What was wrong with the run.
    pub fn burst(&self, values: u64) -> Result<Nanos, String> {
        let mut cluster = self.begun(&ClusterConfig { wanted: 0, ..self.config() })?;
        let decided = |cluster: &Cluster| cluster.app(0).server().decided();
        let all = decided(&cluster) + values;
        let begun = cluster.world.now();
        cluster.want(values);
        while decided(&cluster) < all {
            if !cluster.world.step(begun + Nanos::from_millis(10)) {
                return Err(format!("{} of {values} values are not decided", all - decided(&cluster)));
            }
        }
        cluster.check()?;
        Ok(cluster.world.now().since(begun))
    }
}

/// How a leader fares with so many replicas and values of so many bytes.
///
/// # Errors
/// What was wrong with the run.
pub fn pace(replicas: u8, size: usize, through: bool, rate_bps: u64) -> Result<Pace, String> {
    Load { replicas, size, through, rate_bps, window: None, seed: 1 }.pace()
}

/// What goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// A replica crashes, for good.
    Replica,
    /// The leader crashes, for good.
    Leader,
    /// The switch crashes, and begins anew after [`OUTAGE`] or somewhat more. Nobody reaches anybody meanwhile.
    Switch,
}

impl Failure {
    /// Every failure
    pub const ALL: [Self; 3] = [Self::Replica, Self::Leader, Self::Switch];

    /// Its name
    pub const fn name(self) -> &'static str {
        match self {
            Self::Replica => "replica",
            Self::Leader => "leader",
            Self::Switch => "switch",
        }
    }
}

/// By how much longer than before nothing is decided at most when something fails (heartbeats of 100 us): the median over
/// so many moments at which it happens, and the longest. Each moment has a run of its own, drawn from the seed and its number.
///
/// # Errors
/// What was wrong with a run.
pub fn pause(
    failure: Failure,
    through: bool,
    replicas: u8,
    moments: u64,
    seed: u64,
) -> Result<(Nanos, Nanos), String> {
    let mut pauses = Vec::new();
    for moment in 0..moments {
        pauses.push(pause_at(failure, through, replicas, moment, seed)?);
    }
    pauses.sort_unstable();
    Ok((pauses[pauses.len() / 2], pauses[pauses.len() - 1]))
}

fn pause_at(failure: Failure, through: bool, replicas: u8, moment: u64, seed: u64) -> Result<Nanos, String> {
    let config = ClusterConfig {
        // The first seed's are the moments' numbers alone.
        seed: seed.wrapping_sub(1) << 32 ^ moment,
        servers: replicas + 1,
        through,
        // More than are written before a crashed replica is noticed
        slots: 4096,
        ..ClusterConfig::default()
    };
    let mut cluster = Cluster::new(&config);
    // Not in step with heartbeats
    let at = BEFORE + Nanos::from_micros(200) + Nanos(moment * 37_919);
    let node = match failure {
        Failure::Replica => cluster.servers[usize::from(replicas)],
        Failure::Leader => cluster.servers[0],
        Failure::Switch => cluster.switch,
    };
    cluster.world.schedule(at, Fault::Crash(node));
    if failure == Failure::Switch {
        cluster.world.schedule(at + OUTAGE + Nanos(moment * 91_193), Fault::Restart(node));
    }
    cluster.world.run_until(BEFORE);
    let end = at + Nanos::from_millis(15);
    let (mut entries, mut since) = (cluster.entries(), BEFORE);
    let (mut usual, mut longest) = (Nanos::ZERO, Nanos::ZERO);
    while cluster.world.step(end) {
        if cluster.entries() > entries {
            entries = cluster.entries();
            let now = cluster.world.now();
            let gap = if now < at { &mut usual } else { &mut longest };
            *gap = (*gap).max(now.since(since));
            since = now;
        }
    }
    cluster.check()?;
    if end.since(since) > Nanos::from_millis(1) {
        return Err(format!("nothing is decided any more after the {} has crashed", failure.name()));
    }
    Ok(longest.since(usual))
}
