//! Upper bounds of the memory that a Swordbox allocates. Everything on the path of a packet has a fixed
//! bound.

use crate::config::Config;
use crate::connections::Connections;
use crate::handshakes::Handshakes;
use crate::held::Held;
use crate::lines::Lines;
use crate::shared_qps::SharedQp;
use crate::source::Sources;
use crate::steering::Steering;

/// Maximum memory in bytes, by purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryBounds {
    /// Connections, and the records of their READs and atomics
    pub connections: usize,
    /// Operations outstanding on shared QPs
    pub in_flight: usize,
    /// Cached lines
    pub lines: usize,
    /// Held frames
    pub held: usize,
    /// Cached state of data structures, pending nodes, and withheld responses
    pub structures: usize,
}

impl Config {
    /// Returns the maximum memory of a Swordbox on `workers` workers with this configuration, without its bridge.
    pub fn memory(&self, workers: usize) -> MemoryBounds {
        let of_workers =
            (0..workers).map(|worker| self.clone().of_worker(worker, workers).memory_of_worker());
        let none = MemoryBounds { connections: 0, in_flight: 0, lines: 0, held: 0, structures: 0 };
        of_workers.fold(none, |sum, of_worker| MemoryBounds {
            connections: sum.connections + of_worker.connections,
            in_flight: sum.in_flight + of_worker.in_flight,
            lines: sum.lines + of_worker.lines,
            held: sum.held + of_worker.held,
            structures: sum.structures + of_worker.structures,
        })
    }

    fn memory_of_worker(&self) -> MemoryBounds {
        let shared_qps = self.shared_qps();
        MemoryBounds {
            connections: Connections::bytes(self) + Sources::bytes(self.connections * 2) + Handshakes::BYTES,
            in_flight: shared_qps * SharedQp::bytes(self.in_flight),
            lines: Lines::bytes(self.lines),
            held: Held::bytes(self.held),
            structures: Steering::bytes(
                self.servers.iter().flat_map(|server| &server.structures),
                self.appends,
                self.withheld,
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::{Config, Server};
    use switch::drop::FaultSet;
    use switch::forward;
    use switch::forward::config::ForwardingMode;

    #[test]
    fn each_bound_is_proportional_to_its_setting() {
        let forward = forward::Config {
            ports: 2,
            mode: ForwardingMode::Pairs(Vec::new()),
            drop: FaultSet::NONE,
            verify_icrc: false,
            verify_udp_checksum: false,
            counted_qps: 0,
            health: false,
        };
        let mut config = Config::new(forward);
        config.servers = vec![Server::new([10, 0, 0, 1].into())];
        let once = config.memory(1);
        config.connections *= 2;
        config.in_flight *= 2;
        config.lines *= 2;
        config.held *= 2;
        let twice = config.memory(1);
        for (once, twice) in [
            (once.connections, twice.connections),
            (once.in_flight, twice.in_flight),
            (once.lines, twice.lines),
            (once.held, twice.held),
        ] {
            assert!(once > 0 && (1.9..=2.0).contains(&(twice as f64 / once as f64)), "{once}, {twice}");
        }
    }
}
