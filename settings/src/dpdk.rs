//! `[runtime]` and `[[port]]`: the configuration with which DPDK is started.

use crate::declare::TableSpec;
use crate::machine::Machine;
use crate::memory;
use crate::port::{self, Ports};
use crate::runtime::{self, Runtime};
use crate::tree::Table;
use dataplane::config::{Eal, Memory, Workers};
use std::path::Path;

/// Tables of DPDK's part of a file
pub const TABLES: [&TableSpec; 2] = [&runtime::Keys::TABLE, &port::Keys::TABLE];

/// DPDK's part of a file.
pub struct Dpdk {
    /// `[runtime]`
    pub runtime: Runtime,
    /// Ports, which functions refer to by name
    pub ports: Ports,
    /// Default count of packet buffers of each port
    buffers: Vec<u64>,
    memory: Memory,
}

impl Dpdk {
    /// Reads `[runtime]` and `[[port]]`, and checks them against each other and the machine. Relative paths
    /// are relative to `folder`.
    pub fn read(root: &Table<'_>, folder: &Path, machine: &Machine) -> Self {
        let problems = root.problems();
        let runtime = runtime::read(root, machine);
        let ports = port::read(root, folder);
        memory::check_hugepages(&runtime, &ports.list, problems);
        let buffers = memory::buffers(&ports.list, runtime.cpus.len(), problems);
        let memory = memory::reserve(&runtime, &ports.list, &buffers, problems);
        Self { runtime, ports, buffers, memory }
    }

    /// Returns the configuration for DPDK, or `None` if a port has problems.
    pub fn build(self) -> Option<dataplane::Config> {
        let Self { runtime, ports, buffers, memory } = self;
        let ports: Option<Vec<_>> =
            ports.list.into_iter().zip(buffers).map(|(port, buffers)| port.build(buffers)).collect();
        Some(dataplane::Config {
            eal: Eal {
                memory,
                file_prefix: runtime.file_prefix,
                telemetry: runtime.telemetry,
                extra: Vec::new(),
            },
            ports: ports?,
            workers: Workers {
                cpus: runtime.cpus,
                idle: runtime.idle,
                handoff_ring: runtime.handoff_ring,
                control_queue: runtime.control_queue,
            },
            on_link_loss: runtime.on_link_loss,
        })
    }
}
