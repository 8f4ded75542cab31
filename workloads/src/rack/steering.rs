//! A rack whose switch is a Swordbox that steers, and the benefit of that for Clover, the store of lists: the
//! experiments of Swordbox's paper on Clover (success rate, bandwidth, tail latency, and the number of keys
//! to track).

use super::costs::{NODES_VA, Run, clover};
use super::{Outcome, forward, ip};
use crate::clients::Kind;
use crate::clients::clover::{Layout, Options};
use crate::clients::ycsb::Mix;
use core::fmt;
use sim::{Controlled, Workers};
use std::collections::BTreeSet;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use switch::Nanos;
use switch::forward::Config as ForwardConfig;
use swordbox::steering::{ListsConfig, Structure};
use swordbox::{Config, Connection, Control, Journal, Layers, Server, Swordbox};

/// Journal of a Swordbox in memory, which survives crashes of the Swordbox.
#[derive(Clone, Debug, Default)]
pub struct MemoryJournal(Arc<Mutex<BTreeSet<Connection>>>);

impl Journal for MemoryJournal {
    fn add(&mut self, connection: Connection) -> io::Result<()> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(connection);
        Ok(())
    }

    fn remove(&mut self, connection: Connection) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(&connection);
    }
}

/// Returns a Swordbox with one worker and this configuration, whose journal survives its crashes.
pub fn swordbox(config: Config) -> Controlled<Control> {
    swordbox_on(Workers::ONE, config)
}

/// Returns a Swordbox with these workers and this configuration, whose journal survives its crashes.
pub fn swordbox_on(workers: Workers, config: Config) -> Controlled<Control> {
    let written = MemoryJournal::default();
    let journal = written.clone();
    let of_control = config.clone();
    Controlled::with_workers(
        workers,
        move |worker| {
            let ended = written.0.lock().unwrap_or_else(PoisonError::into_inner).iter().copied().collect();
            Swordbox::of_worker(Config { ended, ..config.clone() }, worker, workers.count)
        },
        move |_| Control::new(Box::new(journal.clone()), &of_control, workers.count),
    )
}

/// Returns the configuration of a Swordbox for a rack with this number of machines, whose server has these
/// structures.
pub fn config(machines: usize, layers: Layers, structures: Vec<Structure>) -> Config {
    let server = Server { structures, rd_atomic: 16, ..Server::new(ip(None)) };
    Config {
        servers: vec![server],
        layers,
        connections: 2048,
        settle: Nanos::from_micros(500),
        ..Config::new(ForwardConfig::bridge(machines as u16 + 1, 2 * machines + 2))
    }
}

/// Returns a configuration for the lists of [`clover`] that tracks `tracked_keys` keys and caches the keys of
/// `cached_nodes` nodes.
pub fn lists(layout: Layout, tracked_keys: usize, cached_nodes: usize) -> ListsConfig {
    // More nodes than any run here writes
    let nodes = NODES_VA..NODES_VA + (layout.node_len as u64 * (1 << 24));
    ListsConfig { tracked_keys, cached_nodes, ..ListsConfig::new(layout.keys, layout.node_len, nodes) }
}

/// Returns a Swordbox that steers in these lists.
pub fn steer(run: &Run, lists: ListsConfig, layers: Layers) -> Controlled<Control> {
    swordbox(config(run.machines, layers, vec![Structure::Lists(lists)]))
}

/// A row of the comparison.
#[derive(Clone, Debug)]
pub struct Row {
    /// Variant
    pub name: String,
    /// Results of the variant
    pub outcome: Outcome,
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:<36}{}", self.name, self.outcome)
    }
}

/// Compares threads that read and update lists, without Swordbox and with it: a single thread, all threads,
/// layer by layer, and with fewer tracked keys. Calls `on_row` for each row when it is measured.
///
/// # Errors
/// What went wrong in a run.
pub fn compare(run: &Run, mix: Mix, mut on_row: impl FnMut(&Row)) -> Result<Vec<Row>, String> {
    let layout = Layout { keys: 1024, node_len: 128 };
    let keys = layout.keys as usize;
    let single = Run { threads: 1, machines: 1, ..*run };
    let writes = Layers { steer_reads: false, ..Layers::STEER };
    // All nodes that any thread may still assume to be the last one of a list; and the paper's number
    let (many, few) = (256 * keys, 3 * keys);
    let runs = [
        ("1 thread, no Swordbox", &single, 0.99, None),
        ("1 thread, steered", &single, 0.99, Some((keys, many, Layers::STEER))),
        ("all threads, no Swordbox", run, 0.99, None),
        ("all threads, CAS steered", run, 0.99, Some((keys, many, writes))),
        ("all threads, CAS and READs steered", run, 0.99, Some((keys, many, Layers::STEER))),
        ("the same, 3 cached nodes per key", run, 0.99, Some((keys, few, Layers::STEER))),
        ("Zipf 1.5, no Swordbox", run, 1.5, None),
        ("Zipf 1.5, 8 tracked keys", run, 1.5, Some((8, many, Layers::STEER))),
        ("Zipf 1.5, 64 tracked keys", run, 1.5, Some((64, many, Layers::STEER))),
        ("Zipf 1.5, all keys tracked", run, 1.5, Some((keys, many, Layers::STEER))),
    ];
    let mut rows = Vec::new();
    for (name, run, theta, steered) in runs {
        let options = Options::default();
        let outcome = match steered {
            None => clover(run, mix, layout, theta, options, forward(run.machines))?,
            Some((tracked, cached, layers)) => {
                let switch = steer(run, lists(layout, tracked, cached), layers);
                clover(run, mix, layout, theta, options, switch)?
            }
        };
        let row = Row { name: name.into(), outcome };
        on_row(&row);
        rows.push(row);
    }
    Ok(rows)
}

/// Returns the 99th percentiles of reads and updates as multiples of their medians.
pub fn tails(outcome: &Outcome) -> [f64; 2] {
    [Kind::Read, Kind::Write].map(|kind| {
        let latency = outcome.latency(kind);
        latency.p99.0 as f64 / latency.p50.0.max(1) as f64
    })
}
