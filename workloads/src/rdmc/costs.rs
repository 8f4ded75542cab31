//! Costs of a transfer, packet by packet, in virtual time: the same run gives the same numbers on any
//! machine.

use super::{Cluster, GroupState, Setup};
use ::rdmc::{Algorithm, GroupConfig};
use rnic::PathMtu;
use sim::{Fault, Link};
use switch::Nanos;

/// Costs of a transfer.
#[derive(Clone, Copy, Debug)]
pub struct TransferCosts {
    /// Time from the call of `send` until the last member has received everything (seconds)
    pub time: f64,
    /// Bytes that the root put on its link, including headers and acknowledgements
    pub root_out: u64,
    /// Bytes that all hosts together put on their links
    pub hosts_out: u64,
}

/// Returns a link like those of the experiments, with packets of 4,096 bytes.
pub fn wide(rate_bps: u64) -> Link {
    Link { rate_bps, mtu: 4200, queue: 1 << 24, ..Link::default() }
}

/// A pause of a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pause {
    /// Host that pauses
    pub host: u16,
    /// Time from the call of `send` to the pause
    pub after: Nanos,
    /// Duration
    pub lasts: Nanos,
}

/// An object that is sent to all hosts.
#[derive(Clone, Debug)]
pub struct Transfer {
    /// Order in which blocks are sent
    pub algorithm: Algorithm,
    /// Number of hosts, including the root
    pub hosts: u16,
    /// Size of the object (bytes)
    pub bytes: u32,
    /// Size of a block (bytes)
    pub block_bytes: u32,
    /// Link of each host
    pub link: Link,
    /// Hosts with links of their own
    pub others: Vec<(u16, Link)>,
    /// A host that pauses during the transfer, if any
    pub pause: Option<Pause>,
    /// Seed of everything that is drawn
    pub seed: u64,
}

/// Sends an object to all hosts, of which `others` have links of their own.
///
/// # Errors
/// What went wrong in the run.
pub fn transfer(
    algorithm: Algorithm,
    hosts: u16,
    bytes: u32,
    block_bytes: u32,
    link: Link,
    others: &[(u16, Link)],
) -> Result<TransferCosts, String> {
    let others = others.to_vec();
    Transfer { algorithm, hosts, bytes, block_bytes, link, others, pause: None, seed: 1 }.run()
}

impl Transfer {
    /// Runs the transfer.
    ///
    /// # Errors
    /// What went wrong in the run.
    pub fn run(&self) -> Result<TransferCosts, String> {
        let &Self { hosts, bytes, block_bytes, link, pause, seed, .. } = self;
        let (algorithm, links) = (self.algorithm.clone(), self.others.clone());
        let setup =
            Setup { seed, hosts, link, links, mtu: PathMtu::B4096, ack_timeout: 12, ..Setup::default() };
        let mut cluster = Cluster::new(&setup);
        let all: Vec<u16> = (0..hosts).collect();
        let config = GroupConfig { algorithm, block_bytes, ..GroupConfig::new(1, Vec::new()) };
        cluster.create(&config, &all).map_err(|error| error.to_string())?;
        let end = Nanos::from_secs(60);
        let open =
            |cluster: &Cluster| all.iter().all(|host| cluster.group_state(*host, 1) == GroupState::Open);
        if !cluster.run_while(end, |cluster| !open(cluster)) {
            return Err("the group does not open within 60 s".into());
        }
        // Lets the receivers' initial announcements arrive.
        let begun = cluster.world.now() + Nanos::from_micros(50);
        cluster.world.run_until(begun);
        let out = |cluster: &Cluster, host: u16| {
            let link =
                cluster.world.links().nth(host.into()).map(|link| cluster.world.counters(link)[0].bytes);
            link.unwrap_or_default()
        };
        let before: Vec<u64> = all.iter().map(|host| out(&cluster, *host)).collect();
        if let Some(Pause { host, after, lasts }) = pause {
            let node = cluster.hosts[usize::from(host)];
            cluster.world.schedule(begun + after, Fault::Pause(node));
            cluster.world.schedule(begun + after + lasts, Fault::Resume(node));
        }
        cluster.send(0, 1, bytes).map_err(|error| error.to_string())?;
        let complete = |cluster: &Cluster| all[1..].iter().all(|host| cluster.member(*host).messages(1) == 1);
        if !cluster.run_while(end, |cluster| !complete(cluster)) {
            return Err("the object does not arrive within 60 s".into());
        }
        let time = (cluster.world.now().0 - begun.0) as f64 / 1e9;
        cluster.world.run_until(cluster.world.now() + Nanos::from_micros(100));
        cluster.check()?;
        let sent: Vec<u64> =
            all.iter().zip(before).map(|(host, before)| out(&cluster, *host) - before).collect();
        Ok(TransferCosts { time, root_out: sent[0], hosts_out: sent.iter().sum() })
    }
}
