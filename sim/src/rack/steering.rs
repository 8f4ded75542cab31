//! A rack whose switch is a Swordbox that steers, and what that is worth for the store of lists: the experiments of
//! Swordbox's paper on Clover (success, bandwidth, tail latency, and how many keys have to be tracked).

use super::costs::{NODES_VA, Run, clover};
use super::{Outcome, forward, ip};
use crate::Controlled;
use core::fmt;
use std::collections::BTreeSet;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use switch::Nanos;
use switch::forward::Config as ForwardConfig;
use swordbox::clients::Kind;
use swordbox::clients::clover::{Layout, Options};
use swordbox::clients::ycsb::Mix;
use swordbox::steering::{ListsConfig, Structure};
use swordbox::{Config, Connection, Control, Journal, Layers, Server, Swordbox};

/// What a Swordbox has written down, which outlives it.
#[derive(Clone, Debug, Default)]
pub struct Written(Arc<Mutex<BTreeSet<Connection>>>);

impl Journal for Written {
    fn add(&mut self, connection: Connection) -> io::Result<()> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(connection);
        Ok(())
    }

    fn remove(&mut self, connection: Connection) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(&connection);
    }
}

/// A Swordbox with this configuration, whose journal outlives its crashes.
pub fn swordbox(config: Config) -> Controlled<Control> {
    let written = Written::default();
    let journal = written.clone();
    Controlled::new(
        move || {
            let ended = written.0.lock().unwrap_or_else(PoisonError::into_inner).iter().copied().collect();
            Swordbox::new(Config { ended, ..config.clone() })
        },
        move |_| Control::new(Box::new(journal.clone())),
    )
}

/// The configuration of one for a rack with so many machines, whose server has these structures.
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

/// One that steers in the lists of [`clover`], of which it keeps so many keys.
pub fn steer(run: &Run, layout: Layout, tracked: usize, layers: Layers) -> Controlled<Control> {
    // More than any run here writes
    let nodes = NODES_VA..NODES_VA + (layout.node_len as u64 * (1 << 24));
    let lists = ListsConfig { tracked, remembered: 1 << 22, ..ListsConfig::new(layout, nodes) };
    swordbox(config(run.machines, layers, vec![Structure::Lists(lists)]))
}

/// A row of the comparison.
#[derive(Clone, Debug)]
pub struct Row {
    /// What is compared
    pub name: String,
    /// How it fared
    pub outcome: Outcome,
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:<34} {}", self.name, self.outcome)
    }
}

/// Threads that read and update lists, without Swordbox and with it: alone, all together, layer by layer, and with fewer and
/// fewer keys tracked. `tell` gets each row when it is there.
///
/// # Errors
/// What went wrong with a run.
pub fn compare(run: &Run, mix: Mix, mut tell: impl FnMut(&Row)) -> Result<Vec<Row>, String> {
    let layout = Layout { keys: 1024, node_len: 128 };
    let keys = layout.keys as usize;
    let alone = Run { threads: 1, machines: 1, ..*run };
    let writes = Layers { steer_reads: false, ..Layers::STEER };
    let runs = [
        ("alone, without", &alone, 0.99, None),
        ("alone, steered", &alone, 0.99, Some((keys, Layers::STEER))),
        ("together, without", run, 0.99, None),
        ("together, WRITEs steered", run, 0.99, Some((keys, writes))),
        ("together, WRITEs and READs steered", run, 0.99, Some((keys, Layers::STEER))),
        ("Zipf 1.5, without", run, 1.5, None),
        ("Zipf 1.5, 8 keys", run, 1.5, Some((8, Layers::STEER))),
        ("Zipf 1.5, 64 keys", run, 1.5, Some((64, Layers::STEER))),
        ("Zipf 1.5, all keys", run, 1.5, Some((keys, Layers::STEER))),
    ];
    let mut rows = Vec::new();
    for (name, run, theta, steered) in runs {
        let options = Options::default();
        let outcome = match steered {
            None => clover(run, mix, layout, theta, options, forward(run.machines))?,
            Some((tracked, layers)) => {
                clover(run, mix, layout, theta, options, steer(run, layout, tracked, layers))?
            }
        };
        let row = Row { name: name.into(), outcome };
        tell(&row);
        rows.push(row);
    }
    Ok(rows)
}

/// The slowest percent of reads and updates, as multiples of the median
pub fn tails(outcome: &Outcome) -> [f64; 2] {
    [Kind::Read, Kind::Write].map(|kind| {
        let latency = outcome.latency(kind);
        latency.p99.0 as f64 / latency.p50.0.max(1) as f64
    })
}
