//! Offloads of an interface, by the requests of ethtool that each have one flag as result.

use std::io;
use std::os::fd::AsRawFd as _;
use std::os::unix::net::UnixDatagram;

/// Numbers of the requests (`linux/ethtool.h`)
const TX_CHECKSUM: u32 = 0x16;
const TSO: u32 = 0x1e;
const GSO: u32 = 0x23;
const FLAGS: u32 = 0x25;
const GRO: u32 = 0x2b;
/// LRO in the result of [`FLAGS`]
const FLAG_LRO: u32 = 1 << 15;

/// Offloads that are on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(clippy::struct_excessive_bools, reason = "each is a setting of ethtool")]
pub struct Offloads {
    /// The device completes checksums: a frame that only passes through memory has none
    pub tx_checksum: bool,
    /// The device divides TCP segments (TSO)
    pub tso: bool,
    /// The kernel divides segments for the device as late as possible (GSO)
    pub gso: bool,
    /// The kernel merges received segments (GRO)
    pub gro: bool,
    /// The device merges received segments (LRO)
    pub lro: bool,
}

/// Argument of the requests, `struct ethtool_value`.
#[repr(C)]
struct EthtoolValue {
    cmd: u32,
    data: u32,
}

impl Offloads {
    /// Asks the kernel for the offloads of an interface in the network namespace of the calling thread.
    pub(super) fn query(interface: &str) -> io::Result<Self> {
        let socket = UnixDatagram::unbound()?;
        let get = |cmd| get(&socket, interface, cmd);
        Ok(Self {
            tx_checksum: get(TX_CHECKSUM)? != 0,
            tso: get(TSO)? != 0,
            gso: get(GSO)? != 0,
            gro: get(GRO)? != 0,
            lro: get(FLAGS)? & FLAG_LRO != 0,
        })
    }
}

/// Returns the result of a request; 0 if the driver does not know it.
fn get(socket: &UnixDatagram, interface: &str, cmd: u32) -> io::Result<u32> {
    let mut value = EthtoolValue { cmd, data: 0 };
    let mut name = [0; libc::IFNAMSIZ];
    if interface.len() >= name.len() {
        return Err(io::Error::from_raw_os_error(libc::ENODEV));
    }
    for (to, from) in name.iter_mut().zip(interface.bytes()) {
        *to = from as libc::c_char;
    }
    let ifr_ifru = libc::__c_anonymous_ifr_ifru { ifru_data: (&raw mut value).cast() };
    let mut request = libc::ifreq { ifr_name: name, ifr_ifru };
    // SAFETY: `request` has a name that ends with a zero byte, and the address of `value`; both are live and
    // writable during the call. The kernel reads and writes no more than `EthtoolValue` for these requests.
    let result = unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCETHTOOL, &raw mut request) };
    if result == 0 {
        return Ok(value.data);
    }
    let error = io::Error::last_os_error();
    if error.raw_os_error() == Some(libc::EOPNOTSUPP) { Ok(0) } else { Err(error) }
}
