//! A running instance: the control plane's view of its ports and workers.

use crate::counters::WorkerCounters;
use crate::link::{Interface, KernelCounts, Link};
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
        self.ports.iter().map(|port| port.link().is_up()).collect()
    }

    /// Returns the counters of each port's device, and the state of each port.
    pub fn devices(&self) -> Devices {
        self.ports.iter().map(read).unzip()
    }

    /// Returns the rate of each port's link in bits a second, or `None` where there is none: a virtual device, or
    /// a link that is down.
    pub fn link_rates(&self) -> Vec<Option<u64>> {
        self.ports.iter().map(Port::link_rate).collect()
    }

    /// Returns the counters of each port's device.
    pub fn device_counters(&self) -> Vec<DeviceCounters> {
        self.devices().0
    }
}

/// Counters of each port's device, and the state of each port
pub type Devices = (Vec<DeviceCounters>, Vec<PortState>);

metrics! {
    /// Counters of a port's device.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct DeviceCounters of port by [port] {
        /// Frames lost in the device, or in the ring of the kernel's socket or tap interface, because no worker received them in time; raise `descriptors`
        pub missed: u64 [frames as missed / missed_frames],
        /// Frames that the device received with an error (`ierrors`)
        pub rx_errors: u64 [frames as rx_errors / receive_errors],
        /// Receive attempts of the device that found no free packet buffer (`rx_nombuf`); raise `buffers`
        pub no_buffer: u64 [times],
        /// Frames that the device could not send (`oerrors`)
        pub tx_errors: u64 [frames as tx_errors / send_errors],
        /// Frames that the kernel dropped at the interface before they reached the port's socket (`rx_dropped`, `rx_missed_errors`)
        pub kernel_rx_dropped: u64 [frames as kernel_rx_dropped / kernel_receive_dropped_frames],
        /// Frames that the port had sent and the kernel dropped at the interface (`tx_dropped`)
        pub kernel_tx_dropped: u64 [frames as kernel_tx_dropped / kernel_send_dropped_frames],
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

metrics! {
    /// State of a port: its link, and the frames offered to it.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct PortState of port by [port] {
        /// State of the link
        pub link: Link,
        /// Frames that the kernel or the device offered to the port: those received, lost, refused and waiting
        pub offered: u64 [frames as offered / offered_frames],
        /// Offered frames that no worker has received yet
        pub waiting: u64,
    }
    also {
        /// Offered frames that no worker has received yet, or had not when the run ended
        Gauge waiting [frames as waiting / waiting_frames] = |state| state.waiting,
        /// Whether the link is up (1) or not (0)
        Gauge up [link] = |state| state.link.is_up().into(),
    }
}

/// Reads the counters and the state of a port. Frames that arrive meanwhile are counted as offered, or not at
/// all.
fn read(port: &Port) -> (DeviceCounters, PortState) {
    // The kernel counts a frame before it can be received, so this order never shows more received frames than
    // offered ones.
    let stats = port.stats();
    let kernel = port.interface().map(Interface::counts);
    let KernelCounts { offered, lost, rx_dropped, tx_dropped } = kernel.unwrap_or_default();
    let device = DeviceCounters {
        missed: stats.imissed + lost,
        rx_errors: stats.ierrors,
        no_buffer: stats.rx_nombuf,
        tx_errors: stats.oerrors,
        kernel_rx_dropped: rx_dropped,
        kernel_tx_dropped: tx_dropped,
        rx_frames: stats.ipackets,
        tx_frames: stats.opackets,
        rx_bytes: stats.ibytes,
        tx_bytes: stats.obytes,
    };
    let accounted = device.rx_frames + device.missed + device.rx_errors;
    // A device without an interface counts what it loses, and what waits in it is not known.
    let offered = offered.max(accounted);
    (device, PortState { link: port.link(), offered, waiting: offered - accounted })
}

impl DeviceCounters {
    /// Returns the number of frames lost on this side, for any reason.
    pub const fn lost(&self) -> u64 {
        let kernel = self.kernel_rx_dropped + self.kernel_tx_dropped;
        self.missed + self.rx_errors + self.no_buffer + self.tx_errors + kernel
    }

    /// Returns the counters of sending only, for a port from which no frames are received.
    #[must_use]
    pub fn sending(self) -> Self {
        Self {
            tx_errors: self.tx_errors,
            kernel_tx_dropped: self.kernel_tx_dropped,
            tx_frames: self.tx_frames,
            tx_bytes: self.tx_bytes,
            ..Self::default()
        }
    }
}
