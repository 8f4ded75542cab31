//! Costs of consensus with and without the switch, in virtual time: the same run gives the same numbers on
//! any machine.

use super::{Cluster, ClusterConfig};
use sim::{Fault, Link};
use switch::Nanos;

/// Shortest outage of a switch
pub const OUTAGE: Nanos = Nanos::from_millis(5);
/// Time until a group is open and the leader's rate is stable, with heartbeats of [`HEARTBEAT`]
const WARM_UP: Nanos = Nanos::from_millis(25);
const HEARTBEAT: Nanos = Nanos::from_micros(250);
/// As [`WARM_UP`], with heartbeats of 100 us
const WARM_UP_FAST: Nanos = Nanos::from_millis(10);

/// Rates and latency of a leader.
#[derive(Clone, Copy, Debug)]
pub struct LeaderRates {
    /// Packets that the leader sent per decided entry, heartbeats included
    pub packets_out: f64,
    /// Packets that the leader received per decided entry
    pub packets_in: f64,
    /// Values decided per second
    pub entries_per_s: f64,
    /// Values decided, in bits per second
    pub goodput_bps: f64,
    /// Mean time from the proposal of a value until the leader learns of its decision (seconds)
    pub latency_s: f64,
}

/// Load of a leader.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Load {
    /// Replicas besides the leader
    pub replicas: u8,
    /// Size of a value (bytes)
    pub size: usize,
    /// Whether the switch replicates
    pub through_switch: bool,
    /// Rate of every link, in bits per second
    pub rate_bps: u64,
    /// Undecided values that the leader proposes at once; `None` for as many as keep the link busy
    pub window: Option<u64>,
    /// Seed of everything that is drawn
    pub seed: u64,
}

impl Load {
    /// Returns a number of values that exceeds the bandwidth-delay product, so that the link is the
    /// bottleneck.
    const fn max_window(&self) -> u64 {
        (1 << 18) / (self.size as u64 + 128)
    }

    fn config(&self) -> ClusterConfig {
        ClusterConfig {
            seed: self.seed,
            servers: self.replicas + 1,
            through_switch: self.through_switch,
            // A leader learns only from heartbeats what the other servers have removed from their logs.
            slots: 4 * self.max_window(),
            window: self.window.unwrap_or(self.max_window()),
            sizes: (self.size, self.size),
            heartbeat: HEARTBEAT,
            // Longer than the time that a full window spends in the link's queue
            ack_timeout: 9,
            link: Link { rate_bps: self.rate_bps, queue: 1 << 24, ..Link::default() },
            ..ClusterConfig::default()
        }
    }

    /// Creates a cluster, and runs it until its leader replicates as configured.
    fn warmed_up(&self, config: &ClusterConfig) -> Result<Cluster, String> {
        let mut cluster = Cluster::new(config);
        cluster.world.run_until(WARM_UP);
        let leader = cluster.app(0).server();
        if !leader.is_leader() || leader.replicates_through_switch() != self.through_switch {
            return Err(format!("after {WARM_UP:?} the leader does not replicate as configured"));
        }
        Ok(cluster)
    }

    /// Measures the rates and the latency of the leader.
    ///
    /// # Errors
    /// What went wrong in the run.
    pub fn rates(&self) -> Result<LeaderRates, String> {
        let mut cluster = self.warmed_up(&self.config())?;
        let sample = |cluster: &Cluster| {
            let counters = cluster.nic_counters(0);
            let app = cluster.app(0);
            (app.server().decided(), counters.sent, counters.received, app.latencies())
        };
        let before = sample(&cluster);
        let span = Nanos::from_millis(4);
        cluster.world.run_until(WARM_UP + span);
        cluster.check()?;
        let after = sample(&cluster);
        let entries = (after.0 - before.0) as f64;
        let entries_per_s = entries / (span.0 as f64 / 1e9);
        Ok(LeaderRates {
            packets_out: (after.1 - before.1) as f64 / entries,
            packets_in: (after.2 - before.2) as f64 / entries,
            entries_per_s,
            goodput_bps: entries_per_s * self.size as f64 * 8.0,
            latency_s: after.3.mean_since(before.3),
        })
    }

    /// Measures the time from when `values` values are proposed at once until the leader learns that all are
    /// decided.
    ///
    /// # Errors
    /// What went wrong in the run.
    pub fn burst(&self, values: u64) -> Result<Nanos, String> {
        let mut cluster = self.warmed_up(&ClusterConfig { max_proposals: 0, ..self.config() })?;
        let decided = |cluster: &Cluster| cluster.app(0).server().decided();
        let all = decided(&cluster) + values;
        let warmed_up = cluster.world.now();
        cluster.propose_more(values);
        while decided(&cluster) < all {
            if !cluster.world.step(warmed_up + Nanos::from_millis(10)) {
                return Err(format!(
                    "{} of {values} values are not decided after 10 ms",
                    all - decided(&cluster)
                ));
            }
        }
        cluster.check()?;
        Ok(cluster.world.now().since(warmed_up))
    }
}

/// Measures the rates and the latency of a leader with this number of replicas and values of this size.
///
/// # Errors
/// What went wrong in the run.
pub fn rates(replicas: u8, size: usize, through_switch: bool, rate_bps: u64) -> Result<LeaderRates, String> {
    Load { replicas, size, through_switch, rate_bps, window: None, seed: 1 }.rates()
}

/// Part of the cluster that fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// A replica crashes and does not restart
    Replica,
    /// The leader crashes and does not restart
    Leader,
    /// The switch crashes, and restarts after [`OUTAGE`] or somewhat later. Meanwhile no host reaches another
    Switch,
}

impl Failure {
    /// All kinds of failures
    pub const ALL: [Self; 3] = [Self::Replica, Self::Leader, Self::Switch];

    /// Returns the name of the failed part.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Replica => "replica",
            Self::Leader => "leader",
            Self::Switch => "switch",
        }
    }
}

/// Measures by how much a failure prolongs the longest pause between two decisions (heartbeats of 100 us).
/// Returns the median and the maximum over `moments` moments of the failure. Each moment has a run of its
/// own, seeded by `seed` and the moment's number.
///
/// # Errors
/// What went wrong in a run.
pub fn pause(
    failure: Failure,
    through_switch: bool,
    replicas: u8,
    moments: u64,
    seed: u64,
) -> Result<(Nanos, Nanos), String> {
    let mut pauses = Vec::new();
    for moment in 0..moments {
        pauses.push(pause_at(failure, through_switch, replicas, moment, seed)?);
    }
    pauses.sort_unstable();
    Ok((pauses[pauses.len() / 2], pauses[pauses.len() - 1]))
}

fn pause_at(
    failure: Failure,
    through_switch: bool,
    replicas: u8,
    moment: u64,
    seed: u64,
) -> Result<Nanos, String> {
    let config = ClusterConfig {
        // For `seed` 1, the runs' seeds are the moments' numbers.
        seed: seed.wrapping_sub(1) << 32 ^ moment,
        servers: replicas + 1,
        through_switch,
        // More entries than the leader writes before it detects the crash of a replica
        slots: 4096,
        ..ClusterConfig::default()
    };
    let mut cluster = Cluster::new(&config);
    // Spread over the heartbeat interval
    let at = WARM_UP_FAST + Nanos::from_micros(200) + Nanos(moment * 37_919);
    let node = match failure {
        Failure::Replica => cluster.servers[usize::from(replicas)],
        Failure::Leader => cluster.servers[0],
        Failure::Switch => cluster.switch,
    };
    cluster.world.schedule(at, Fault::Crash(node));
    if failure == Failure::Switch {
        cluster.world.schedule(at + OUTAGE + Nanos(moment * 91_193), Fault::Restart(node));
    }
    cluster.world.run_until(WARM_UP_FAST);
    let end = at + Nanos::from_millis(15);
    let (mut entries, mut since) = (cluster.entries(), WARM_UP_FAST);
    let (mut longest_before, mut longest_after) = (Nanos::ZERO, Nanos::ZERO);
    while cluster.world.step(end) {
        if cluster.entries() > entries {
            entries = cluster.entries();
            let now = cluster.world.now();
            let gap = if now < at { &mut longest_before } else { &mut longest_after };
            *gap = (*gap).max(now.since(since));
            since = now;
        }
    }
    cluster.check()?;
    if end.since(since) > Nanos::from_millis(1) {
        return Err(format!("no entry is decided any more after the {} has crashed", failure.name()));
    }
    Ok(longest_after.since(longest_before))
}
