//! `[runtime]` and `[[port]]` together: what DPDK is started with.

use crate::machine::Machine;
use crate::memory;
use crate::port::{self, Ports};
use crate::runtime::{self, Runtime};
use crate::tree::Table;
use dataplane::config::{Eal, Memory, Workers};
use std::path::Path;

/// DPDK's part of a file, as it was read.
pub struct Dpdk {
    /// `[runtime]`
    pub runtime: Runtime,
    /// The ports, for functions that name them
    pub ports: Ports,
    /// Packet buffers of ports that do not say how many
    buffers: Vec<u64>,
    memory: Memory,
}

impl Dpdk {
    /// Reads both, and checks them against each other and the machine. Relative paths begin in `folder`.
    pub fn read(root: &Table<'_>, folder: &Path, machine: &Machine) -> Self {
        let problems = root.problems();
        let runtime = runtime::read(root, machine);
        let ports = port::read(root, folder);
        memory::check_hugepages(&runtime, &ports.list, problems);
        let buffers = memory::buffers(&ports.list, runtime.cpus.len(), problems);
        let memory = memory::reserve(&runtime, &ports.list, &buffers, problems);
        Self { runtime, ports, buffers, memory }
    }

    /// What DPDK is to be started with, if nothing of it is wrong
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
        })
    }
}
