//! What the runtime is asked for, as plain values. Where they come from (a file, a test) is not its concern.

use std::path::PathBuf;

/// Everything that is fixed at start: the EAL, the ports, the workers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// DPDK's environment
    pub eal: Eal,
    /// The ports; a port's index here is its [`PortId`](switch::PortId)
    pub ports: Vec<Port>,
    /// The workers, at least one
    pub workers: Workers,
}

/// DPDK's environment abstraction layer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Eal {
    /// Memory for packets
    pub memory: Memory,
    /// Name of the shared files of this instance; needed only where other DPDK processes attach, or for telemetry.
    /// Without it nothing is left in the file system.
    pub file_prefix: Option<String>,
    /// Leave DPDK's telemetry socket on
    pub telemetry: bool,
    /// Further EAL arguments, as typed behind `--`
    pub extra: Vec<String>,
}

/// Where packets lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Memory {
    /// Ordinary pages: for virtual devices, without preparation or privilege
    Ordinary {
        /// Megabytes reserved at start
        mb: u32,
    },
    /// Huge pages: what hardware wants
    HugePages {
        /// Megabytes reserved at start
        mb: u32,
    },
}

/// Poll-mode workers and what they share.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Workers {
    /// The CPU each worker is pinned to; `None` leaves it to the kernel
    pub cpus: Vec<Option<usize>>,
    /// What each does while there is nothing to do
    pub idle: Idle,
    /// Frames that a hand-off ring between two workers holds; a power of two
    pub handoff_ring: usize,
    /// Frames, events and commands that a queue to or from the control plane holds
    pub control_queue: usize,
}

/// What a worker does in a turn in which there was nothing to do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Idle {
    /// Polls again at once: the least delay, for a CPU that is the worker's alone
    #[default]
    Spin,
    /// Lets others have the CPU, after some empty turns: for more workers than CPUs
    Yield,
    /// Yields, and after a while sleeps, up to 100 us and never past what is due: for a machine that has other things to do
    Sleep,
}

/// An Ethernet port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Port {
    /// What it is called in configuration and reports
    pub name: String,
    /// What it is
    pub device: Device,
    /// Largest IP packet in bytes
    pub mtu: u16,
    /// Receive queues, spread over the workers by RSS where the device can; 0 asks for one a worker, as far as the
    /// device has them
    pub rx_queues: u16,
    /// Descriptors of each queue; a power of two
    pub descriptors: u16,
    /// Packet buffers of the port's pool
    pub buffers: u32,
    /// From how many bytes on a payload is shared between copies rather than copied. Unless said, that is where it becomes
    /// faster, if the driver sends frames in segments
    pub share_from: Option<usize>,
}

/// What a port is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Device {
    /// Hardware, by PCI address, bound to the driver that DPDK wants (`vfio-pci`), or an NVIDIA NIC (mlx5), which
    /// stays with its kernel driver
    Pci {
        /// Such as `0000:3b:00.0`
        address: String,
        /// Arguments of the driver, such as `mprq_en=1`
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
        /// First queue of the interface to take
        start_queue: u16,
    },
    /// A kernel interface that is made for this port
    Tap {
        /// Name of the interface to make
        interface: String,
    },
    /// Shared memory with another process
    Memif {
        /// Path of the control socket
        socket: PathBuf,
        /// Interface number on that socket
        id: u32,
        /// Whether this side owns the socket
        server: bool,
        /// A user whose processes may be the peer, besides this user's and root's
        peer_uid: Option<u32>,
    },
    /// A virtual machine's virtio-net
    Vhost {
        /// Path of the vhost-user socket
        socket: PathBuf,
        /// Whether to connect to a socket of the hypervisor's rather than to make it
        client: bool,
    },
    /// A queue that gives back what it is given
    Ring,
    /// Capture files
    Pcap {
        /// Files to play, one a receive queue
        rx: Vec<PathBuf>,
        /// File to record to; without one, what is sent is counted and forgotten
        tx: Option<PathBuf>,
        /// Play the files over and over
        infinite: bool,
    },
    /// A source of zeroed frames and a sink
    Null {
        /// Bytes of a frame
        size: u16,
        /// Copy each frame, as hardware would
        copy: bool,
    },
}

/// Ethernet header, tags, and what drivers may add behind: bytes of a frame beyond the MTU
pub(crate) const FRAME_OVERHEAD: u32 = 14 + 3 * 4 + 4;
/// Smallest buffers worth having: many drivers expect that a standard frame fits
const MIN_DATA_ROOM: u32 = 2048;

impl Device {
    /// Bytes for a frame in a packet buffer of a port with this MTU, without the head room.
    pub fn data_room(&self, mtu: u16) -> u32 {
        let frame = (u32::from(mtu) + FRAME_OVERHEAD).max(MIN_DATA_ROOM);
        match self {
            // The driver wants room for all of a ring's frame, however little of it is used.
            Self::AfPacket { .. } => frame.max(af_packet_ring(mtu).1),
            _ => frame,
        }
    }
}

/// Bytes of a block and of a frame of an `AF_PACKET` ring, in which an IP packet of `mtu` bytes fits. The driver takes the
/// ring for one array of frames, so a block has to be a multiple of a frame, and the kernel wants whole pages.
pub(crate) fn af_packet_ring(mtu: u16) -> (u32, u32) {
    /// TPACKET2's header and address, rounded up, as the driver subtracts them
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
