//! What a transfer costs, packet by packet, in virtual time: the same run gives the same numbers on any machine.

use super::{Cluster, Now, Setup};
use crate::{Fault, Link};
use ::rdmc::{Algorithm, GroupConfig};
use rnic::PathMtu;
use switch::Nanos;

/// A transfer.
#[derive(Clone, Copy, Debug)]
pub struct Took {
    /// From the call of `send` until the last member had everything (seconds)
    pub time: f64,
    /// Bytes that the root put on its wire, headers and acknowledgements among them
    pub root_out: u64,
    /// The same of all hosts together
    pub hosts_out: u64,
}

/// Links as wide as the experiments': 4,096 bytes in a packet
pub fn wide(rate_bps: u64) -> Link {
    Link { rate_bps, mtu: 4200, queue: 1 << 24, ..Link::default() }
}

/// A host that stands still for a while.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pause {
    /// Which one
    pub host: u16,
    /// So long after the call of `send`
    pub after: Nanos,
    /// For so long
    pub lasts: Nanos,
}

/// An object that is sent to all hosts.
#[derive(Clone, Debug)]
pub struct Transfer {
    /// In which order blocks go
    pub algorithm: Algorithm,
    /// Hosts, the root among them
    pub hosts: u16,
    /// Bytes of the object
    pub bytes: u32,
    /// Bytes of a block
    pub block_bytes: u32,
    /// Everybody's link
    pub link: Link,
    /// Hosts that have another
    pub others: Vec<(u16, Link)>,
    /// A host that stands still meanwhile
    pub pause: Option<Pause>,
    /// For everything that is drawn
    pub seed: u64,
}

/// Sends an object of so many bytes to all hosts, of which some have other links.
///
/// # Errors
/// What was wrong with the run.
pub fn transfer(
    algorithm: Algorithm,
    hosts: u16,
    bytes: u32,
    block_bytes: u32,
    link: Link,
    others: &[(u16, Link)],
) -> Result<Took, String> {
    let others = others.to_vec();
    Transfer { algorithm, hosts, bytes, block_bytes, link, others, pause: None, seed: 1 }.run()
}

impl Transfer {
    /// Does it.
    ///
    /// # Errors
    /// What was wrong with the run.
    pub fn run(&self) -> Result<Took, String> {
        let &Self { hosts, bytes, block_bytes, link, pause, seed, .. } = self;
        let (algorithm, links) = (self.algorithm.clone(), self.others.clone());
        let setup =
            Setup { seed, hosts, link, links, mtu: PathMtu::B4096, ack_timeout: 12, ..Setup::default() };
        let mut cluster = Cluster::new(&setup);
        let all: Vec<u16> = (0..hosts).collect();
        let config = GroupConfig { algorithm, block_bytes, ..GroupConfig::new(1, Vec::new()) };
        cluster.create(&config, &all).map_err(|error| error.to_string())?;
        let end = Nanos::from_secs(60);
        let open = |cluster: &Cluster| all.iter().all(|host| cluster.now(*host, 1) == Now::Open);
        if !cluster.run_while(end, |cluster| !open(cluster)) {
            return Err("the group does not open".into());
        }
        // What receivers say beforehand has been heard.
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
            return Err("the object does not arrive".into());
        }
        let time = (cluster.world.now().0 - begun.0) as f64 / 1e9;
        cluster.world.run_until(cluster.world.now() + Nanos::from_micros(100));
        cluster.check()?;
        let sent: Vec<u64> =
            all.iter().zip(before).map(|(host, before)| out(&cluster, *host) - before).collect();
        Ok(Took { time, root_out: sent[0], hosts_out: sent.iter().sum() })
    }
}
