//! Ethernet ports: found, configured, started, closed.

use crate::config::{Config, Device, FRAME_OVERHEAD, Port as PortConfig, af_packet_ring};
use crate::error::{Error, errno, error_text};
use crate::link::{self, Interface, Link, Requests, XdpSockets};
use crate::missing;
use crate::tx::rx_burst;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicBool, Ordering};
use dpdk_sys::{rte_eth_conf, rte_eth_dev_info, rte_eth_stats, rte_mbuf, rte_mempool};
use std::ffi::CString;
use std::fmt::Write as _;
use std::path::Path;
use std::rc::Rc;

/// Number of buffers in a worker's cache of the pool
const POOL_CACHE: u32 = 256;

/// Payload length from which on sharing is faster than copying, in bytes (`understudy bench p4ce`,
/// docs/adr/0004)
const SHARE_FROM: usize = 3072;

/// EAL argument by which a device is added.
pub(crate) enum DeviceArgument {
    /// PCI address with driver arguments
    Pci(String),
    /// Virtual device with driver arguments
    Virtual(String),
}

/// Returns DPDK's name of the device.
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

/// Returns the number of receive queues of a port: the configured one, or one suitable for the device.
pub(crate) fn rx_queues(port: &PortConfig, workers: usize) -> u16 {
    match (&port.device, port.rx_queues) {
        (Device::Pcap { rx, .. }, _) => rx.len().max(1) as u16,
        (Device::Pci { .. }, 0) => workers as u16,
        (_, 0) => 1,
        (_, queues) => queues,
    }
}

/// Returns the EAL argument for a port. `memif` is the memif driver's part of it, if the port is a memif port.
pub(crate) fn device_argument(
    index: usize,
    port: &PortConfig,
    memif: Option<String>,
) -> Result<DeviceArgument, Error> {
    let name = device_name(index, &port.device);
    let queues = port.rx_queues.max(1);
    let path = |path: &Path| -> Result<String, Error> {
        let text = path.to_str().filter(|text| !text.contains([',', '=', '[', ']']));
        text.map(str::to_owned).ok_or_else(|| {
            Error::new(
                format!("DPDK does not accept the path `{}`", path.display()),
                "use a path without commas, equals signs and brackets",
            )
        })
    };
    let device = match &port.device {
        Device::Pci { address, devargs } => {
            return Ok(DeviceArgument::Pci([std::slice::from_ref(address), devargs].concat().join(",")));
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
            format!("{name},{}", memif.expect("each memif port has a channel"))
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
    Ok(DeviceArgument::Virtual(device))
}

/// Returns DPDK's port ID, if the device exists.
pub(crate) fn find(index: usize, port: &PortConfig) -> Option<u16> {
    let name = CString::new(device_name(index, &port.device)).ok()?;
    let mut id = 0;
    // SAFETY: passes a C string and an address to write to.
    (unsafe { dpdk_sys::rte_eth_dev_get_port_by_name(name.as_ptr(), &raw mut id) } == 0).then_some(id)
}

/// A pool of packet buffers. Dropping it frees it, unless one of its buffers is in use: then its memory stays
/// allocated until the process ends, and the EAL is not cleaned up ([`all_buffers_returned`]).
#[derive(Debug)]
pub(crate) struct Pool(NonNull<rte_mempool>);

impl Pool {
    fn new(index: usize, port: &PortConfig, socket: i32) -> Result<Self, Error> {
        let name = CString::new(format!("port-{index}")).expect("a number contains no zero byte");
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
                format!("increase `memory_mb` by about {}, or reduce `buffers`", mb + 8),
            )
        })
    }

    pub(crate) fn raw(&self) -> NonNull<rte_mempool> {
        self.0
    }
}

/// Set if a pool was not freed because one of its buffers was in use
static BUFFERS_IN_USE: AtomicBool = AtomicBool::new(false);

/// Returns whether every buffer had been returned when its pool was dropped. If not, the memory must stay: a
/// control plane may hold the buffer, or a driver may have kept it when it was closed, as that of `ring`
/// does.
pub(crate) fn all_buffers_returned() -> bool {
    !BUFFERS_IN_USE.load(Ordering::SeqCst)
}

impl Drop for Pool {
    fn drop(&mut self) {
        // SAFETY: the pool exists until this frees it. All ports were closed before: their drivers have
        // returned all buffers that they return, of this pool and of others.
        unsafe {
            let pool = self.0.as_ptr();
            if dpdk_sys::rte_mempool_avail_count(pool) == (*pool).size {
                dpdk_sys::rte_mempool_free(pool);
            } else {
                BUFFERS_IN_USE.store(true, Ordering::SeqCst);
            }
        }
    }
}

/// All ports of the process. A port's send ring may contain buffers of another port's pool, so all ports are
/// closed before the first pool is freed.
#[derive(Debug)]
pub(crate) struct Ports(Vec<Port>);

impl Ports {
    /// Configures and starts the ports of `config`, whose devices the EAL has created.
    pub(crate) fn start(config: &Config) -> Result<Self, Error> {
        let mut ports = Self(Vec::with_capacity(config.ports.len()));
        // Without it, ports have what their drivers report.
        let kernel = Requests::open().ok().map(Rc::new);
        for index in 0..config.ports.len() {
            ports.0.push(Port::start(index, config, kernel.as_ref())?);
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

/// A configured port, which is started unless it is a memif client. It is stopped and closed when dropped.
#[derive(Debug)]
pub(crate) struct Port {
    pub(crate) id: u16,
    pub(crate) rx_queues: u16,
    pub(crate) tx_queues: u16,
    pub(crate) share_from: usize,
    pub(crate) info: PortInfo,
    /// Kernel interface of the port, if it has one
    interface: Option<Interface>,
    /// State of the link if the driver reports that it is not up
    link_if_down: Link,
    /// Frames received before the port was used, which are discarded
    early_frames: u64,
    /// Whether the port is a device on PCI
    is_hardware: bool,
    is_open: bool,
    // Freed after `drop` has closed the port.
    pub(crate) pool: Pool,
}

/// Properties of a started port.
#[derive(Clone, Debug)]
pub struct PortInfo {
    /// Name in the configuration
    pub name: String,
    /// Name of the driver
    pub driver: String,
    /// MAC address
    pub mac: [u8; 6],
    /// Name of the kernel's interface, if the port has one
    pub interface: Option<String>,
}

impl Port {
    fn start(index: usize, config: &Config, kernel: Option<&Rc<Requests>>) -> Result<Self, Error> {
        let port = &config.ports[index];
        let id = find(index, port).ok_or_else(|| missing::explain(port, ""))?;
        let failed = |what: &str, result: i32| {
            let help = match &port.device {
                // libxdp loads its program only for drivers that have XDP.
                Device::AfXdp { interface, .. } => format!(
                    "see the log below; it needs CAP_SYS_ADMIN, `rx_queues` as the interface has queues \
                     (`ethtool -l {interface}`), and a driver with XDP. With any other driver, first: \
                     xdp-loader load -m skb {interface} /usr/lib/x86_64-linux-gnu/bpf/xsk_def_xdp_prog.o \
                     (Debian: package xdp-tools)"
                ),
                Device::AfPacket { .. } if -result == libc::EPERM => {
                    "give the program the capabilities CAP_NET_RAW and CAP_NET_ADMIN, or run as root".into()
                }
                _ => "see the log below; fewer queues or descriptors may help".into(),
            };
            Error::new(format!("port `{}`: {what}: {}", port.name, error_text(result)), help)
        };
        let check = |what: &str, result: i32| if result < 0 { Err(failed(what, result)) } else { Ok(()) };

        let mut dev = rte_eth_dev_info::default();
        // SAFETY: the port exists, and `dev` is writable.
        check("cannot query its capabilities", unsafe { dpdk_sys::rte_eth_dev_info_get(id, &raw mut dev) })?;
        let workers = config.workers.cpus.len();
        let rx_queues = rx_queues(port, workers).min(dev.max_rx_queues.max(1));
        let max_queues = (workers as u16).min(dev.max_tx_queues.max(1));
        let tx_queues = match port.device {
            // Equal to the number of receive queues: the drivers require it, and so does memif's peer, whose
            // queues have to match.
            Device::Tap { .. } | Device::AfXdp { .. } | Device::Memif { .. } => rx_queues,
            // Their sockets are used in both directions; what a ring's send queue gets arrives at the receive queue of the
            // same number.
            Device::AfPacket { .. } | Device::Vhost { .. } | Device::Ring => max_queues.min(rx_queues),
            // One file to record to; a port that records nothing discards in as many queues as it plays captures
            Device::Pcap { tx: Some(_), .. } => 1,
            _ => max_queues,
        };
        let conf = eth_conf(port, &dev, rx_queues)?;
        // SAFETY: the port exists; `conf` is valid during the call.
        let result = unsafe { dpdk_sys::rte_eth_dev_configure(id, rx_queues, tx_queues, &raw const conf) };
        check("cannot configure its queues", result)?;
        let (mut rx_descriptors, mut tx_descriptors) = (port.descriptors, port.descriptors);
        // SAFETY: the port is configured; both numbers are writable.
        check("it does not support this count of descriptors", unsafe {
            dpdk_sys::rte_eth_dev_adjust_nb_rx_tx_desc(id, &raw mut rx_descriptors, &raw mut tx_descriptors)
        })?;
        // SAFETY: the port exists.
        let socket = unsafe { dpdk_sys::rte_eth_dev_socket_id(id) };
        let mut mac = dpdk_sys::rte_ether_addr::default();
        // SAFETY: the port exists, and `mac` is writable. Failure leaves zeros.
        unsafe { dpdk_sys::rte_eth_macaddr_get(id, &raw mut mac) };
        let interface = match &port.device {
            Device::AfPacket { interface } | Device::AfXdp { interface, .. } | Device::Tap { interface } => {
                Some(interface.clone())
            }
            _ => None,
        };
        let info =
            PortInfo { name: port.name.clone(), driver: driver_name(&dev), mac: mac.addr_bytes, interface };
        let segments = dev.tx_offload_capa & dpdk_sys::UNDERSTUDY_TX_OFFLOAD_MULTI_SEGS != 0;
        let share_from = port.share_from.unwrap_or(if segments { SHARE_FROM } else { usize::MAX });
        let link_if_down = match &port.device {
            Device::Memif { .. } | Device::Vhost { .. } => Link::NoPeer,
            _ => Link::NoCarrier,
        };
        let is_hardware = matches!(port.device, Device::Pci { .. });
        let pool = Pool::new(index, port, socket)?;
        // From here on the driver may hold buffers: on failure the port is closed before the pool is freed.
        let mut started = Self {
            id,
            rx_queues,
            tx_queues,
            share_from,
            info,
            interface: None,
            link_if_down,
            early_frames: 0,
            is_hardware,
            is_open: true,
            pool,
        };
        let earlier_sockets = XdpSockets::present();
        for queue in 0..rx_queues {
            // SAFETY: the port is configured and not started; a null configuration means the driver's
            // default.
            check("cannot set up a receive queue", unsafe {
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
            check("cannot set up a send queue", unsafe {
                dpdk_sys::rte_eth_tx_queue_setup(id, queue, tx_descriptors, socket as u32, std::ptr::null())
            })?;
        }
        // A memif client is started later, when its server is running.
        if !matches!(port.device, Device::Memif { server: false, .. }) {
            // SAFETY: the port is configured.
            check("cannot start it", unsafe { dpdk_sys::rte_eth_dev_start(id) })?;
        }
        // A wire forwards all frames. Devices without promiscuous mode (rings, files) receive all frames
        // anyway.
        // SAFETY: the port is started.
        unsafe { dpdk_sys::rte_eth_promiscuous_enable(id) };
        started.interface = Interface::of(&port.device, kernel, &earlier_sockets);
        link::watch_removal(&device_name(index, &port.device), id);
        if let Some(interface) = &started.interface {
            interface.discard_early_frames(|| started.drain());
            started.early_frames = started.stats().ipackets;
        }
        Ok(started)
    }

    /// Receives and frees the frames in all receive queues, which no worker polls yet.
    fn drain(&self) {
        let mut burst = [core::ptr::null_mut::<rte_mbuf>(); 32];
        for queue in 0..self.rx_queues {
            loop {
                // SAFETY: the port is started, and only this thread uses it; the burst is owned here.
                let received = unsafe { rx_burst(self.id, queue, burst.as_mut_ptr(), burst.len() as u16) };
                if received == 0 {
                    break;
                }
                // SAFETY: the first `received` frames are owned here, and not used again.
                unsafe { dpdk_sys::rte_pktmbuf_free_bulk(burst.as_mut_ptr(), u32::from(received)) };
            }
        }
    }

    /// Returns the kernel's interface of the port, if it has one.
    pub(crate) fn interface(&self) -> Option<&Interface> {
        self.interface.as_ref()
    }

    /// Returns the state of the link. The drivers of kernel interfaces read it only at start, so that of an
    /// interface is from the kernel.
    pub(crate) fn link(&self) -> Link {
        match &self.interface {
            Some(interface) => interface.link(),
            None if link::is_requested(self.id) => Link::Gone,
            None if link_is_up(self.id) => Link::Up,
            None => self.link_if_down,
        }
    }

    /// Returns the rate of the link in bits a second, if it has one. Drivers of kernel interfaces and of virtual
    /// devices state a constant, so it is read from the kernel for the former and is unknown for the latter.
    pub(crate) fn link_rate(&self) -> Option<u64> {
        let megabits = match &self.info.interface {
            // A tap states a constant.
            Some(_) if self.info.driver == "net_tap" => return None,
            Some(interface) => {
                let speed = Path::new("/sys/class/net").join(interface).join("speed");
                // The file cannot be read, or has -1, if the interface is down or has no speed.
                std::fs::read_to_string(speed).ok()?.trim().parse().ok()?
            }
            None if self.is_hardware => u64::from(link(self.id).link_speed),
            None => return None,
        };
        let is_known = megabits > 0 && megabits != u64::from(u32::MAX);
        is_known.then(|| megabits.saturating_mul(1_000_000))
    }

    /// Returns the device's own statistics.
    pub(crate) fn stats(&self) -> rte_eth_stats {
        let mut stats = rte_eth_stats::default();
        // SAFETY: the port exists, and `stats` is writable. Failure leaves zeros.
        unsafe { dpdk_sys::rte_eth_stats_get(self.id, &raw mut stats) };
        stats.ipackets = stats.ipackets.saturating_sub(self.early_frames);
        stats
    }
}

impl Port {
    /// Stops and closes the port, once. Its pool stays allocated.
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

/// Starts a port that is configured. Returns whether that succeeded.
pub(crate) fn start(device: u16) -> bool {
    // SAFETY: the port is configured; DPDK refuses invalid port IDs.
    unsafe { dpdk_sys::rte_eth_dev_start(device) == 0 }
}

/// Stops a port that no worker uses.
pub(crate) fn stop(device: u16) {
    // SAFETY: as for `start`; the caller ensures that no worker is in a burst on the port.
    unsafe { dpdk_sys::rte_eth_dev_stop(device) };
}

/// Returns whether the link is up; for a memif port, whether it has a peer.
pub(crate) fn link_is_up(device: u16) -> bool {
    u32::from(link(device).link_status()) == dpdk_sys::RTE_ETH_LINK_UP
}

/// Returns the state of a port's link.
fn link(device: u16) -> dpdk_sys::rte_eth_link {
    let mut link = dpdk_sys::rte_eth_link::default();
    // SAFETY: the port exists, and `link` is writable. Failure leaves zeros, which means down.
    unsafe { dpdk_sys::rte_eth_link_get_nowait(device, &raw mut link) };
    link
}

fn driver_name(dev: &rte_eth_dev_info) -> String {
    if dev.driver_name.is_null() {
        return String::new();
    }
    // SAFETY: the driver's name is a constant string.
    unsafe { std::ffi::CStr::from_ptr(dev.driver_name) }.to_string_lossy().into_owned()
}

/// Returns the device's configuration: MTU, and RSS if there are several receive queues.
fn eth_conf(port: &PortConfig, dev: &rte_eth_dev_info, rx_queues: u16) -> Result<rte_eth_conf, Error> {
    let mut conf = rte_eth_conf::default();
    // Drivers announce the maximum MTU, the maximum frame length, both or neither.
    let overhead = match (dev.max_rx_pktlen, u32::from(dev.max_mtu)) {
        (frame, mtu) if dev.max_mtu != u16::MAX && frame > mtu => frame - mtu,
        _ => FRAME_OVERHEAD,
    };
    let largest = u32::from(dev.max_mtu).min(dev.max_rx_pktlen.saturating_sub(overhead)).max(68);
    if matches!(port.device, Device::Pci { .. }) && u32::from(port.mtu) > largest {
        return Err(Error::new(
            format!("port `{}`: its hardware supports no MTU above {largest}", port.name),
            format!("set `mtu = {largest}`"),
        ));
    }
    // Virtual devices announce limits that they do not enforce: their buffers are the limit, and are sized
    // for the configured MTU.
    conf.rxmode.mtu = u32::from(port.mtu).min(largest);
    // For copies that share a payload
    conf.txmode.offloads = dev.tx_offload_capa & dpdk_sys::UNDERSTUDY_TX_OFFLOAD_MULTI_SEGS;
    if rx_queues > 1 && dev.flow_type_rss_offloads & dpdk_sys::UNDERSTUDY_RSS_IP_UDP != 0 {
        conf.rxmode.mq_mode = dpdk_sys::rte_eth_rx_mq_mode_RTE_ETH_MQ_RX_RSS;
        conf.rx_adv_conf.rss_conf.rss_hf = dev.flow_type_rss_offloads & dpdk_sys::UNDERSTUDY_RSS_IP_UDP;
    }
    Ok(conf)
}
