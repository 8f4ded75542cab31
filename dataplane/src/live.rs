//! A running instance: the control plane's view of its ports and workers.

use crate::counters::WorkerCounters;
use crate::port::{Port, PortInfo};
use crate::time::hz;
use std::sync::Arc;
use switch::metrics;

/// A running instance, for the control plane.
pub struct Live<'a> {
    ports: &'a [Port],
    workers: &'a [Arc<WorkerCounters>],
}

impl<'a> Live<'a> {
    pub(crate) fn new(ports: &'a [Port], workers: &'a [Arc<WorkerCounters>]) -> Self {
        Self { ports, workers }
    }

    /// Returns the counters of each worker.
    pub fn workers(&self) -> &[Arc<WorkerCounters>] {
        self.workers
    }

    /// Returns the ports, in the order of the configuration.
    pub fn ports(&self) -> impl Iterator<Item = &PortInfo> {
        self.ports.iter().map(|port| &port.info)
    }

    /// Returns the TSC frequency, in Hz.
    pub fn tsc_hz(&self) -> u64 {
        hz()
    }

    /// Returns whether the link of each port is up at present. The link of a memif port is up while it has a
    /// peer.
    pub fn links(&self) -> Vec<bool> {
        self.ports.iter().map(Port::link_is_up).collect()
    }

    /// Returns the rate of each port's link in bits a second, or `None` where there is none: a virtual device, or
    /// a link that is down.
    pub fn link_rates(&self) -> Vec<Option<u64>> {
        self.ports.iter().map(Port::link_rate).collect()
    }

    /// Returns the counters of each port's device.
    pub fn device_counters(&self) -> Vec<DeviceCounters> {
        self.ports.iter().map(DeviceCounters::of).collect()
    }
}

metrics! {
    /// Counters of a port's device.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct DeviceCounters of port by [port] {
        /// Frames lost in the device because no worker received them in time (`imissed`)
        pub missed: u64 [frames as missed / missed_frames],
        /// Frames that the device received with an error (`ierrors`)
        pub rx_errors: u64 [frames as rx_errors / receive_errors],
        /// Receive attempts of the device that found no free packet buffer (`rx_nombuf`); raise `buffers`
        pub no_buffer: u64 [times],
        /// Frames that the device could not send (`oerrors`)
        pub tx_errors: u64 [frames as tx_errors / send_errors],
        /// Received frames, as counted by the device (`ipackets`)
        pub rx_frames: u64,
        /// Sent frames, as counted by the device (`opackets`)
        pub tx_frames: u64,
        /// Total length of received frames in bytes (`ibytes`); 0 from drivers that count only frames (null,
        /// ring)
        pub rx_bytes: u64,
        /// Total length of sent frames in bytes (`obytes`); 0 from drivers that count only frames (null, ring)
        pub tx_bytes: u64,
    }
}

impl DeviceCounters {
    pub(crate) fn of(port: &Port) -> Self {
        let stats = port.stats();
        Self {
            missed: stats.imissed,
            rx_errors: stats.ierrors,
            no_buffer: stats.rx_nombuf,
            tx_errors: stats.oerrors,
            rx_frames: stats.ipackets,
            tx_frames: stats.opackets,
            rx_bytes: stats.ibytes,
            tx_bytes: stats.obytes,
        }
    }

    /// Returns the number of frames lost on this side, for any reason.
    pub const fn lost(&self) -> u64 {
        self.missed + self.rx_errors + self.no_buffer + self.tx_errors
    }

    /// Returns the counters of sending only, for a port from which no frames are received.
    #[must_use]
    pub fn sending(self) -> Self {
        Self {
            tx_errors: self.tx_errors,
            tx_frames: self.tx_frames,
            tx_bytes: self.tx_bytes,
            ..Self::default()
        }
    }
}
