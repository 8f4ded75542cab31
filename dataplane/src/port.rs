//! Ethernet ports: found, configured, started, closed.

use crate::config::{Config, Device, FRAME_OVERHEAD, Port as PortConfig, af_packet_ring};
use crate::eal::{errno, error_text};
use crate::error::Error;
use crate::memif::Channels;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicBool, Ordering};
use dpdk_sys::{rte_eth_conf, rte_eth_dev_info, rte_eth_stats, rte_mempool};
use std::ffi::CString;
use std::fmt::Write as _;
use std::path::Path;

/// Buffers that a worker keeps for itself
const POOL_CACHE: u32 = 256;

/// From here on it is faster to share a payload than to copy it (`understudy bench p4ce`, ADR 4).
const SHARE_FROM: usize = 3072;

/// How the EAL gets to know a device.
pub(crate) enum Allow {
    /// A PCI address with arguments
    Pci(String),
    /// A virtual device with arguments
    Virtual(String),
}

/// The name under which DPDK knows the device.
fn device_name(index: usize, device: &Device) -> String {
    match device {
        Device::Pci { address, .. } => address.clone(),
        Device::AfPacket { .. } => format!("net_af_packet{index}"),
        Device::AfXdp { .. } => format!("net_af_xdp{index}"),
        Device::Tap { .. } => format!("net_tap{index}"),
        Device::Memif { .. } => format!("net_memif{index}"),
        Device::Vhost { .. } => format!("net_vhost{index}"),
        Device::Ring => format!("net_ring{index}"),
        Device::Pcap { .. } => format!("net_pcap{index}"),
        Device::Null { .. } => format!("net_null{index}"),
    }
}

/// Receive queues of a port: as many as asked for, or what suits its device.
pub(crate) fn rx_queues(port: &PortConfig, workers: usize) -> u16 {
    match (&port.device, port.rx_queues) {
        (Device::Pcap { rx, .. }, _) => rx.len().max(1) as u16,
        (Device::Pci { .. }, 0) => workers as u16,
        (_, 0) => 1,
        (_, queues) => queues,
    }
}

/// What the EAL is told about the port.
pub(crate) fn allow(index: usize, port: &PortConfig, channels: &Channels) -> Result<Allow, Error> {
    let name = device_name(index, &port.device);
    let queues = port.rx_queues.max(1);
    let path = |path: &Path| -> Result<String, Error> {
        let text = path.to_str().filter(|text| !text.contains([',', '=', '[', ']']));
        text.map(str::to_owned).ok_or_else(|| {
            Error::new(
                format!("DPDK cannot take the path `{}`", path.display()),
                "use one without commas, equals signs and brackets",
            )
        })
    };
    let device = match &port.device {
        Device::Pci { address, devargs } => {
            return Ok(Allow::Pci([std::slice::from_ref(address), devargs].concat().join(",")));
        }
        Device::AfPacket { interface } => {
            let (block, frame) = af_packet_ring(port.mtu);
            format!(
                "{name},iface={interface},qpairs={queues},blocksz={block},framesz={frame},framecnt={}",
                port.descriptors
            )
        }
        Device::AfXdp { interface, start_queue } => {
            format!("{name},iface={interface},start_queue={start_queue},queue_count={queues}")
        }
        Device::Tap { interface } => format!("{name},iface={interface}"),
        Device::Memif { .. } => {
            format!("{name},{}", channels.arguments(index).expect("each memif port has a channel"))
        }
        Device::Vhost { socket, client } => {
            format!("{name},iface={},queues={queues},client={}", path(socket)?, u8::from(*client))
        }
        Device::Ring => name,
        Device::Pcap { rx, tx, infinite } => {
            let mut text = name;
            for file in rx {
                _ = write!(text, ",rx_pcap={}", path(file)?);
            }
            if let Some(file) = tx {
                _ = write!(text, ",tx_pcap={}", path(file)?);
            }
            text + if *infinite { ",infinite_rx=1" } else { "" }
        }
        Device::Null { size, copy } => format!("{name},size={size},copy={}", u8::from(*copy)),
    };
    Ok(Allow::Virtual(device))
}

/// DPDK's number of the port, if its device is there.
pub(crate) fn find(index: usize, port: &PortConfig) -> Option<u16> {
    let name = CString::new(device_name(index, &port.device)).ok()?;
    let mut id = 0;
    // SAFETY: a C string and an address to write to.
    (unsafe { dpdk_sys::rte_eth_dev_get_port_by_name(name.as_ptr(), &raw mut id) } == 0).then_some(id)
}

/// Why the device of `port` is not there, as well as the log tells.
pub(crate) fn missing(port: &PortConfig, log: &str) -> Error {
    let name = &port.name;
    if let Device::AfPacket { interface } | Device::AfXdp { interface, .. } = &port.device
        && !Path::new("/sys/class/net").join(interface).exists()
    {
        return Error::new(
            format!("port `{name}`: there is no interface `{interface}`"),
            "`ip link` lists those there are; correct the name, or make it: ip link add ...",
        );
    }
    // The AF_PACKET driver does not log why it got no socket; there is hardly another reason.
    let denied = ["ermission denied", "ot permitted", "not open AF_PACKET socket"]
        .iter()
        .any(|words| log.contains(words));
    if denied {
        return Error::new(
            format!("port `{name}`: permission denied"),
            "run as root, or give the program the capabilities CAP_NET_RAW and CAP_NET_ADMIN",
        );
    }
    // The driver numbers its fanout group by process id XOR interface index, and groups belong to a network namespace.
    if log.contains("could not set PACKET_FANOUT") {
        return Error::new(
            format!("port `{name}`: another DPDK process has AF_PACKET sockets with the same group number"),
            "start this one again: the number follows from its process id",
        );
    }
    match &port.device {
        Device::Pci { address, .. } => Error::new(
            format!("port `{name}`: no DPDK driver took the PCI device {address}"),
            format!(
                "bind it: dpdk-devbind.py -b vfio-pci {address} (an NVIDIA NIC needs its kernel driver instead, and \
                     the package with DPDK's mlx5 driver); `understudy doctor` lists the devices"
            ),
        ),
        Device::AfPacket { interface } | Device::AfXdp { interface, .. } => Error::new(
            format!("port `{name}`: DPDK could not open the interface `{interface}`"),
            "the log below says why; is another program using it?",
        ),
        Device::Tap { interface } => Error::new(
            format!("port `{name}`: the interface `{interface}` could not be made"),
            "is /dev/net/tun there (modprobe tun), and the name free?",
        ),
        Device::Memif { .. } => Error::new(
            format!("port `{name}`: DPDK did not make the memif interface"),
            "the log below says why; is DPDK's memif driver installed?",
        ),
        Device::Vhost { socket, .. } => Error::new(
            format!("port `{name}`: the socket {} could not be opened", socket.display()),
            "its folder has to exist and to be writable; a socket left by a crashed process has to be removed",
        ),
        Device::Pcap { .. } => Error::new(
            format!("port `{name}`: a capture file could not be opened"),
            "files to play have to be Ethernet captures in pcap format; the folder of the file to record to has to exist",
        ),
        Device::Ring | Device::Null { .. } => {
            Error::new(format!("port `{name}`: DPDK did not make the device"), "the log below says why")
        }
    }
}

/// A pool of packet buffers. Dropping it frees it, unless a buffer is still out: then its memory stays until the process
/// ends, and so does the EAL ([`is_all_back`]).
#[derive(Debug)]
pub(crate) struct Pool(NonNull<rte_mempool>);

impl Pool {
    fn new(index: usize, port: &PortConfig, socket: i32) -> Result<Self, Error> {
        let name = CString::new(format!("port-{index}")).expect("no zero byte in a number");
        let data_room = port.device.data_room(port.mtu) + dpdk_sys::RTE_PKTMBUF_HEADROOM;
        let cache = POOL_CACHE.min(port.buffers / 2);
        // SAFETY: the EAL is up; the name is a C string.
        let pool = unsafe {
            dpdk_sys::rte_pktmbuf_pool_create(name.as_ptr(), port.buffers, cache, 0, data_room as u16, socket)
        };
        NonNull::new(pool).map(Self).ok_or_else(|| {
            let mb = u64::from(port.buffers) * u64::from(data_room + 256) / 1_000_000 + 1;
            Error::new(
                format!(
                    "port `{}`: no memory for {} packet buffers of {data_room} bytes ({})",
                    port.name,
                    port.buffers,
                    error_text(errno())
                ),
                format!("give `memory_mb` some {} more, or ask for fewer `buffers`", mb + 8),
            )
        })
    }

    pub(crate) fn raw(&self) -> NonNull<rte_mempool> {
        self.0
    }
}

/// A pool was not freed, because a buffer of it was still out.
static LEFT: AtomicBool = AtomicBool::new(false);

/// Whether every buffer was back when its pool was dropped. If not, the memory must stay: a control plane may hold the
/// buffer, or a driver may have kept it when it was closed, as that of `ring` does.
pub(crate) fn is_all_back() -> bool {
    !LEFT.load(Ordering::SeqCst)
}

impl Drop for Pool {
    fn drop(&mut self) {
        // SAFETY: the pool is there until this frees it. All ports were closed before: their drivers have given back what
        // they give back, of this pool and of others.
        unsafe {
            let pool = self.0.as_ptr();
            if dpdk_sys::rte_mempool_avail_count(pool) == (*pool).size {
                dpdk_sys::rte_mempool_free(pool);
            } else {
                LEFT.store(true, Ordering::SeqCst);
            }
        }
    }
}

/// All ports of the process. A port's send ring may hold buffers of another port's pool, so all are closed before the
/// first pool is freed.
#[derive(Debug)]
pub(crate) struct Ports(Vec<Port>);

impl Ports {
    /// Sets up and starts the ports of `config`, whose devices the EAL has made.
    pub(crate) fn start(config: &Config) -> Result<Self, Error> {
        let mut ports = Self(Vec::with_capacity(config.ports.len()));
        for index in 0..config.ports.len() {
            ports.0.push(Port::start(index, config)?);
        }
        Ok(ports)
    }
}

impl core::ops::Deref for Ports {
    type Target = [Port];

    fn deref(&self) -> &[Port] {
        &self.0
    }
}

impl Drop for Ports {
    fn drop(&mut self) {
        for port in &mut self.0 {
            port.close();
        }
    }
}

/// A port, started unless it is a memif client; stopped and closed when dropped.
#[derive(Debug)]
pub(crate) struct Port {
    pub(crate) id: u16,
    pub(crate) rx_queues: u16,
    pub(crate) tx_queues: u16,
    pub(crate) share_from: usize,
    pub(crate) info: PortInfo,
    /// The kernel's interface that frames go through
    interface: Option<String>,
    is_open: bool,
    // Freed after `drop` has closed the port.
    pub(crate) pool: Pool,
}

/// What is known of a started port.
#[derive(Clone, Debug)]
pub struct PortInfo {
    /// Its name in the configuration
    pub name: String,
    /// Its driver
    pub driver: String,
    /// Its MAC address
    pub mac: [u8; 6],
}

impl Port {
    pub(crate) fn start(index: usize, config: &Config) -> Result<Self, Error> {
        let port = &config.ports[index];
        let id = find(index, port).ok_or_else(|| missing(port, ""))?;
        let failed = |what: &str, result: i32| {
            Error::new(
                format!("port `{}`: {what}: {}", port.name, error_text(result)),
                "the log below says more; fewer queues or descriptors may help",
            )
        };
        let check = |what: &str, result: i32| if result < 0 { Err(failed(what, result)) } else { Ok(()) };

        let mut dev = rte_eth_dev_info::default();
        // SAFETY: the port exists, and `dev` can be written to.
        check("it does not say what it can", unsafe { dpdk_sys::rte_eth_dev_info_get(id, &raw mut dev) })?;
        let workers = config.workers.cpus.len();
        let rx_queues = rx_queues(port, workers).min(dev.max_rx_queues.max(1));
        let most = (workers as u16).min(dev.max_tx_queues.max(1));
        let tx_queues = match port.device {
            // As many as receive queues: for the one's driver, and for the other's peer, whose queues have to fit.
            Device::Tap { .. } | Device::Memif { .. } => rx_queues,
            // Its sockets are made for both directions.
            Device::AfPacket { .. } | Device::AfXdp { .. } | Device::Vhost { .. } => most.min(rx_queues),
            // One file to record to.
            Device::Pcap { .. } => 1,
            _ => most,
        };
        let conf = eth_conf(port, &dev, rx_queues)?;
        // SAFETY: the port exists; `conf` is valid for the call.
        let result = unsafe { dpdk_sys::rte_eth_dev_configure(id, rx_queues, tx_queues, &raw const conf) };
        check("its queues could not be set up", result)?;
        let (mut rx_descriptors, mut tx_descriptors) = (port.descriptors, port.descriptors);
        // SAFETY: the port is configured; both numbers can be written to.
        check("it does not take this number of descriptors", unsafe {
            dpdk_sys::rte_eth_dev_adjust_nb_rx_tx_desc(id, &raw mut rx_descriptors, &raw mut tx_descriptors)
        })?;
        // SAFETY: the port exists.
        let socket = unsafe { dpdk_sys::rte_eth_dev_socket_id(id) };
        let mut mac = dpdk_sys::rte_ether_addr::default();
        // SAFETY: the port exists, and `mac` can be written to. Failure leaves zeros.
        unsafe { dpdk_sys::rte_eth_macaddr_get(id, &raw mut mac) };
        let info = PortInfo { name: port.name.clone(), driver: driver_name(&dev), mac: mac.addr_bytes };
        let segments = dev.tx_offload_capa & dpdk_sys::UNDERSTUDY_TX_OFFLOAD_MULTI_SEGS != 0;
        let share_from = port.share_from.unwrap_or(if segments { SHARE_FROM } else { usize::MAX });
        let interface = match &port.device {
            Device::AfPacket { interface } | Device::AfXdp { interface, .. } => Some(interface.clone()),
            _ => None,
        };
        let pool = Pool::new(index, port, socket)?;
        // From here on the driver may hold buffers: a failure closes the port before the pool goes.
        let started = Self { id, rx_queues, tx_queues, share_from, info, interface, is_open: true, pool };
        for queue in 0..rx_queues {
            // SAFETY: the port is configured and not started; no configuration means the driver's default.
            check("a receive queue could not be set up", unsafe {
                let socket = socket as u32;
                dpdk_sys::rte_eth_rx_queue_setup(
                    id,
                    queue,
                    rx_descriptors,
                    socket,
                    std::ptr::null(),
                    started.pool.0.as_ptr(),
                )
            })?;
        }
        for queue in 0..tx_queues {
            // SAFETY: as above.
            check("a send queue could not be set up", unsafe {
                dpdk_sys::rte_eth_tx_queue_setup(id, queue, tx_descriptors, socket as u32, std::ptr::null())
            })?;
        }
        // A memif client's server may not be there yet: it is started when it is.
        if !matches!(port.device, Device::Memif { server: false, .. }) {
            // SAFETY: the port is configured.
            check("it could not be started", unsafe { dpdk_sys::rte_eth_dev_start(id) })?;
        }
        // A wire lets everything through. Devices that cannot be told so (rings, files) do anyway.
        // SAFETY: the port is started.
        unsafe { dpdk_sys::rte_eth_promiscuous_enable(id) };
        Ok(started)
    }

    /// Whether frames can come and go. The drivers of kernel interfaces do not look after the start: those are asked themselves.
    pub(crate) fn link_is_up(&self) -> bool {
        let Some(interface) = &self.interface else { return link_is_up(self.id) };
        // It cannot be read while the interface is down, and there is none when it has gone.
        let carrier = Path::new("/sys/class/net").join(interface).join("carrier");
        std::fs::read_to_string(carrier).is_ok_and(|text| text.trim() == "1")
    }

    /// What the device itself has counted.
    pub(crate) fn stats(&self) -> rte_eth_stats {
        let mut stats = rte_eth_stats::default();
        // SAFETY: the port exists, and `stats` can be written to. Failure leaves zeros.
        unsafe { dpdk_sys::rte_eth_stats_get(self.id, &raw mut stats) };
        stats
    }
}

impl Port {
    /// Stops and closes the port, once. Its pool stays.
    fn close(&mut self) {
        if core::mem::take(&mut self.is_open) {
            // SAFETY: the port is configured, and no worker uses it any more.
            unsafe {
                dpdk_sys::rte_eth_dev_stop(self.id);
                dpdk_sys::rte_eth_dev_close(self.id);
            }
        }
    }
}

impl Drop for Port {
    fn drop(&mut self) {
        self.close();
    }
}

/// Starts a port that was set up before; whether it could be started.
pub(crate) fn start(device: u16) -> bool {
    // SAFETY: the port is configured; DPDK refuses numbers that are no port's.
    unsafe { dpdk_sys::rte_eth_dev_start(device) == 0 }
}

/// Stops a port that no worker uses.
pub(crate) fn stop(device: u16) {
    // SAFETY: as for `start`; the caller knows that no worker is in a burst of it.
    unsafe { dpdk_sys::rte_eth_dev_stop(device) };
}

/// Whether the port has a peer.
pub(crate) fn link_is_up(device: u16) -> bool {
    let mut link = dpdk_sys::rte_eth_link::default();
    // SAFETY: the port exists, and `link` can be written to. Failure leaves zeros, which is down.
    unsafe { dpdk_sys::rte_eth_link_get_nowait(device, &raw mut link) };
    u32::from(link.link_status()) == dpdk_sys::RTE_ETH_LINK_UP
}

fn driver_name(dev: &rte_eth_dev_info) -> String {
    if dev.driver_name.is_null() {
        return String::new();
    }
    // SAFETY: the driver's name is a constant string.
    unsafe { std::ffi::CStr::from_ptr(dev.driver_name) }.to_string_lossy().into_owned()
}

/// The device's configuration: MTU, RSS where there are several queues to spread frames over.
fn eth_conf(port: &PortConfig, dev: &rte_eth_dev_info, rx_queues: u16) -> Result<rte_eth_conf, Error> {
    let mut conf = rte_eth_conf::default();
    // Drivers name the largest packet, the largest frame, both or neither.
    let overhead = match (dev.max_rx_pktlen, u32::from(dev.max_mtu)) {
        (frame, mtu) if dev.max_mtu != u16::MAX && frame > mtu => frame - mtu,
        _ => FRAME_OVERHEAD,
    };
    let largest = u32::from(dev.max_mtu).min(dev.max_rx_pktlen.saturating_sub(overhead)).max(68);
    if matches!(port.device, Device::Pci { .. }) && u32::from(port.mtu) > largest {
        return Err(Error::new(
            format!("port `{}`: its hardware takes no MTU above {largest}", port.name),
            format!("set `mtu = {largest}`"),
        ));
    }
    // Virtual devices state limits that they do not keep: their buffers decide, and are made for the MTU asked for.
    conf.rxmode.mtu = u32::from(port.mtu).min(largest);
    // For copies that share a payload
    conf.txmode.offloads = dev.tx_offload_capa & dpdk_sys::UNDERSTUDY_TX_OFFLOAD_MULTI_SEGS;
    if rx_queues > 1 && dev.flow_type_rss_offloads & dpdk_sys::UNDERSTUDY_RSS_IP_UDP != 0 {
        conf.rxmode.mq_mode = dpdk_sys::rte_eth_rx_mq_mode_RTE_ETH_MQ_RX_RSS;
        conf.rx_adv_conf.rss_conf.rss_hf = dev.flow_type_rss_offloads & dpdk_sys::UNDERSTUDY_RSS_IP_UDP;
    }
    Ok(conf)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn number_of_a_fanout_group_that_is_taken_is_named() {
        let port = PortConfig {
            name: "a".into(),
            device: Device::AfPacket { interface: "lo".into() },
            mtu: 1500,
            rx_queues: 1,
            descriptors: 512,
            buffers: 4096,
            share_from: None,
        };
        let log = "net_af_packet0: could not set PACKET_FANOUT on AF_PACKET socket for lo:Invalid argument";
        let error = missing(&port, log);
        assert!(error.what.contains("the same group number") && error.remedy.contains("again"), "{error}");
    }
}
