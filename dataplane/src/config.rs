//! Configuration of the runtime, as plain values. They may come from a file or from a test.

use std::path::PathBuf;

/// Everything that is fixed at start: EAL, ports and workers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// DPDK's environment abstraction layer
    pub eal: Eal,
    /// Ports; the index of a port here is its [`PortId`](switch::PortId)
    pub ports: Vec<Port>,
    /// Workers, at least one
    pub workers: Workers,
    /// What the loss of a port's link does
    pub on_link_loss: OnLinkLoss,
}

/// What the loss of a port's link does to a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnLinkLoss {
    /// The run goes on, and uses the port again when its link is up again
    #[default]
    Wait,
    /// The run ends
    Exit,
}

/// DPDK's environment abstraction layer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Eal {
    /// Memory for packets
    pub memory: Memory,
    /// Prefix of the names of this instance's shared files; required only if other DPDK processes attach, or
    /// for telemetry. Without a prefix, the instance leaves no files behind.
    pub file_prefix: Option<String>,
    /// Whether DPDK's telemetry socket is enabled
    pub telemetry: bool,
    /// Further EAL arguments, as they would be on the command line of a DPDK program
    pub extra: Vec<String>,
}

/// Memory for packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Memory {
    /// Ordinary pages, for virtual devices; requires neither preparation nor privileges
    Ordinary {
        /// Memory to reserve at start, in MB
        mb: u32,
    },
    /// Huge pages, which hardware requires
    HugePages {
        /// Memory to reserve at start, in MB
        mb: u32,
    },
}

/// Poll-mode workers and the queues between them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Workers {
    /// CPU to which each worker is pinned; `None` lets the kernel place it
    pub cpus: Vec<Option<usize>>,
    /// Idle strategy of each worker
    pub idle: Idle,
    /// Capacity of a ring between two workers, in frames; a power of two
    pub handoff_ring: usize,
    /// Capacity of a queue to or from the control plane, in frames, events and commands
    pub control_queue: usize,
}

/// Idle strategy: what a worker does in a loop iteration that had no work.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Idle {
    /// Polls again immediately: the lowest latency, for a worker with a CPU of its own
    #[default]
    Spin,
    /// Yields the CPU after some empty iterations: for more workers than CPUs
    Yield,
    /// Yields, and after a while sleeps, for at most 100 us and never past the next timer: for a machine with
    /// other work
    Sleep,
}

/// An Ethernet port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Port {
    /// Name in configuration and reports
    pub name: String,
    /// Device of the port
    pub device: Device,
    /// MTU: largest IP packet, in bytes
    pub mtu: u16,
    /// Number of receive queues, over which RSS spreads the frames if the device supports it; 0 for one queue
    /// per worker, limited by the device
    pub rx_queues: u16,
    /// Number of descriptors of each queue; a power of two
    pub descriptors: u16,
    /// Number of packet buffers in the port's pool
    pub buffers: u32,
    /// Payload length, in bytes, from which on copies share the payload instead of copying it; `None` for the
    /// length from which on sharing is faster, if the driver can send multi-segment frames
    pub share_from: Option<usize>,
}

/// Device of a port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Device {
    /// Hardware at a PCI address, bound to the kernel driver that DPDK requires (`vfio-pci`); an NVIDIA NIC
    /// (mlx5) stays bound to its own kernel driver
    Pci {
        /// PCI address, such as `0000:3b:00.0`
        address: String,
        /// Driver arguments, such as `mprq_en=1`
        devargs: Vec<String>,
    },
    /// A kernel interface through an `AF_PACKET` socket
    AfPacket {
        /// Interface name
        interface: String,
    },
    /// A kernel interface through an `AF_XDP` socket
    AfXdp {
        /// Interface name
        interface: String,
        /// First queue of the interface to use
        start_queue: u16,
    },
    /// A kernel interface that DPDK creates for this port
    Tap {
        /// Name of the interface to create
        interface: String,
    },
    /// Shared memory with another process (memif)
    Memif {
        /// Path of the control socket
        socket: PathBuf,
        /// Interface number on that socket
        id: u32,
        /// Whether this side listens on the socket
        server: bool,
        /// A user whose processes may be the peer, in addition to this user and root
        peer_uid: Option<u32>,
    },
    /// The virtio-net device of a virtual machine (vhost-user)
    Vhost {
        /// Path of the vhost-user socket
        socket: PathBuf,
        /// Whether to connect to the hypervisor's socket instead of listening
        client: bool,
    },
    /// A queue that returns the frames sent to it
    Ring,
    /// Capture files
    Pcap {
        /// Files to play, one for each receive queue
        rx: Vec<PathBuf>,
        /// File to record to; without one, sent frames are counted and dropped
        tx: Option<PathBuf>,
        /// Whether to play the files repeatedly
        infinite: bool,
    },
    /// A source of zeroed frames and a sink
    Null {
        /// Length of a frame, in bytes
        size: u16,
        /// Whether to copy each frame, as hardware would
        copy: bool,
    },
}

/// Frame length beyond the MTU, in bytes: Ethernet header, VLAN tags, and what drivers may append
pub(crate) const FRAME_OVERHEAD: u32 = 14 + 3 * 4 + 4;
/// Minimum buffer size, in bytes: many drivers assume that a standard frame fits
const MIN_DATA_ROOM: u32 = 2048;

impl Device {
    /// Returns the space for a frame in a packet buffer of a port with this MTU, in bytes, without the
    /// headroom.
    pub fn data_room(&self, mtu: u16) -> u32 {
        let frame = (u32::from(mtu) + FRAME_OVERHEAD).max(MIN_DATA_ROOM);
        match self {
            // The driver requires space for a whole frame of the ring, even if little of it is used.
            Self::AfPacket { .. } => frame.max(af_packet_ring(mtu).1),
            _ => frame,
        }
    }
}

/// Returns the block and frame size, in bytes, of an `AF_PACKET` ring for IP packets of `mtu` bytes. The
/// driver treats the ring as one array of frames, so a block has to be a multiple of a frame; the kernel
/// requires whole pages.
pub(crate) fn af_packet_ring(mtu: u16) -> (u32, u32) {
    /// Length of TPACKET2's header and address, rounded up, as the driver subtracts it
    const HEADER: u32 = 80;
    let frame = (u32::from(mtu) + FRAME_OVERHEAD + HEADER).next_power_of_two().max(2048);
    (frame.max(4096), frame)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn af_packet_frames_hold_the_mtu() {
        for mtu in [68, 1500, 1900, 2000, 4200, 9600] {
            let (block, frame) = af_packet_ring(mtu);
            assert!(
                frame >= u32::from(mtu) + FRAME_OVERHEAD && block % frame == 0 && block % 4096 == 0,
                "{mtu}"
            );
            let device = Device::AfPacket { interface: "eth0".into() };
            assert!(device.data_room(mtu) >= frame && Device::Ring.data_room(mtu) >= u32::from(mtu), "{mtu}");
        }
        assert_eq!(af_packet_ring(1500), (4096, 2048));
    }
}
