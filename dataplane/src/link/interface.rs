//! The kernel's interface behind a port (`af_packet`, `af_xdp`, `tap`): what DPDK's drivers do not report.
//!
//! - Frames that the kernel loses because the ring of an `AF_PACKET` socket is full are counted at that
//!   socket only, which reports and resets the count when it is read (`PACKET_STATISTICS`). DPDK's driver
//!   does not read it. Therefore each port has duplicates of its driver's sockets, and the control thread
//!   is their only reader.
//! - Frames for which the ring of an `AF_XDP` socket has no room are counted by that socket; the driver reads
//!   only its other counts (`XDP_STATISTICS`).
//! - Frames for which the queue of a tap interface has no room are counted by the interface.
//! - The drivers know the state of the link only at the start.

use super::Link;
use super::netlink::{Description, Requests};
use crate::config::Device;
use core::cell::{Cell, RefCell};
use core::mem::size_of;
use netlink_packet_route::link::Stats64;
use socket2::{Domain, SockFilter, SockRef, Socket};
use std::collections::HashSet;
use std::fs;
use std::os::fd::{AsRawFd as _, BorrowedFd, RawFd};
use std::path::PathBuf;
use std::rc::Rc;

/// Filter of a socket that gets no frame: `BPF_RET | BPF_K` with the value 0
const ACCEPT_NOTHING: SockFilter = SockFilter::new(6, 0, 0, 0);
/// Command of `membarrier` that waits for a grace period of RCU
const MEMBARRIER_GLOBAL: libc::c_int = 1;

/// Interface of a port. Used by the control thread only.
#[derive(Debug)]
pub(crate) struct Interface {
    index: u32,
    name: RefCell<String>,
    kind: Kind,
    /// Duplicates of the driver's `AF_PACKET` or `AF_XDP` sockets
    sockets: Vec<Socket>,
    requests: Rc<Requests>,
    link: Cell<Link>,
    /// Counters of the interface when the port was started
    initial: Stats64,
    counts: Cell<KernelCounts>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    AfPacket,
    AfXdp,
    Tap,
}

/// Frames that the kernel counted since the port was started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct KernelCounts {
    /// Frames that the kernel passed to the port, including those that had no room; 0 if it does not count
    /// them (`af_xdp`)
    pub(crate) offered: u64,
    /// Frames of these that had no room
    pub(crate) lost: u64,
    /// Frames that the kernel dropped before it could pass them to the port
    pub(crate) rx_dropped: u64,
    /// Frames that the port had sent and the kernel dropped
    pub(crate) tx_dropped: u64,
}

impl Interface {
    /// Returns the interface of `device`, or `None` if it has none. Its driver is started; `earlier` are the
    /// `AF_XDP` sockets from before its driver set up its queues.
    pub(crate) fn of(device: &Device, requests: Option<&Rc<Requests>>, earlier: &XdpSockets) -> Option<Self> {
        let (name, kind) = match device {
            Device::AfPacket { interface } => (interface, Kind::AfPacket),
            Device::AfXdp { interface, .. } => (interface, Kind::AfXdp),
            Device::Tap { interface } => (interface, Kind::Tap),
            _ => return None,
        };
        let requests = Rc::clone(requests?);
        let found = requests.interface_by_name(name).ok()??;
        let sockets = match kind {
            Kind::AfPacket => packet_sockets(found.index),
            Kind::AfXdp => earlier.later_ones(),
            Kind::Tap => Vec::new(),
        };
        Some(Self {
            index: found.index,
            name: name.clone().into(),
            kind,
            sockets,
            requests,
            link: Cell::new(found.link),
            initial: found.counters,
            counts: Cell::default(),
        })
    }

    /// Discards what the sockets received before the port is used. An `AF_PACKET` socket receives from all
    /// interfaces until the driver binds it, and counts frames that the driver's setup of the ring discards.
    /// `drain` receives and frees all frames.
    ///
    /// Afterwards the ring is empty and all counters are zero, so that every later frame is counted once.
    pub(crate) fn discard_early_frames(&self, drain: impl FnOnce()) {
        if self.kind != Kind::AfPacket || self.sockets.is_empty() {
            return;
        }
        for socket in &self.sockets {
            // If there is no filter, frames that arrive at this moment may be counted twice or not at all.
            _ = socket.attach_filter(&[ACCEPT_NOTHING]);
        }
        wait_for_receive_paths();
        drain();
        for socket in &self.sockets {
            _ = packet_statistics(socket);
            _ = socket.detach_filter();
        }
    }

    pub(crate) fn index(&self) -> u32 {
        self.index
    }

    pub(crate) fn name(&self) -> String {
        self.name.borrow().clone()
    }

    pub(crate) fn link(&self) -> Link {
        self.link.get()
    }

    /// Sets the state of the link, unless the interface is gone: what removed it also closed the way to the
    /// driver's sockets, even if there is an interface with the same name again. Returns the state if it has
    /// changed.
    pub(crate) fn set_link(&self, link: Link) -> Option<Link> {
        let before = self.link.get();
        (before != Link::Gone && before != link).then(|| {
            self.link.set(link);
            link
        })
    }

    /// Reads the current state of the link. Returns it if it has changed.
    pub(crate) fn refresh_link(&self) -> Option<Link> {
        match self.requests.interface(self.index) {
            Ok(Some(found)) => self.apply(&found),
            Ok(None) => self.set_link(Link::Gone),
            Err(_) => None,
        }
    }

    /// Clears the error that the sockets got when the interface was set down. Otherwise the driver takes it for
    /// the result of its next request to send, and counts frames as errors that are sent.
    pub(crate) fn clear_errors(&self) {
        for socket in &self.sockets {
            _ = socket.take_error();
        }
    }

    /// Applies a description of the interface. Returns the state of the link if it has changed.
    pub(crate) fn apply(&self, found: &Description) -> Option<Link> {
        if !found.name.is_empty() {
            self.name.borrow_mut().clone_from(&found.name);
        }
        self.set_link(found.link)
    }

    /// Returns the kernel's counts. Has to be called at least every few minutes, because a socket counts in
    /// 32 bits.
    pub(crate) fn counts(&self) -> KernelCounts {
        let mut counts = self.counts.get();
        // A later interface may have the same index.
        let is_gone = self.link.get() == Link::Gone;
        if !is_gone && let Ok(Some(found)) = self.requests.interface(self.index) {
            counts.read_interface(self.kind, &self.initial, &found.counters);
        }
        match self.kind {
            Kind::AfPacket => {
                for stats in self.sockets.iter().filter_map(packet_statistics) {
                    counts.offered += u64::from(stats.tp_packets);
                    counts.lost += u64::from(stats.tp_drops);
                }
            }
            Kind::AfXdp => {
                let full = self.sockets.iter().filter_map(xdp_statistics).map(|stats| stats.rx_ring_full);
                counts.lost = full.sum();
            }
            Kind::Tap => {}
        }
        self.counts.set(counts);
        counts
    }
}

impl KernelCounts {
    /// Sets what the interface counted since the port was started.
    fn read_interface(&mut self, kind: Kind, initial: &Stats64, now: &Stats64) {
        let since = |of: fn(&Stats64) -> u64| of(now).saturating_sub(of(initial));
        match kind {
            // What the kernel sends through a tap interface is received by the port. What the port sends
            // enters the kernel, whose own reasons to drop it are not losses of the port.
            Kind::Tap => {
                self.lost = since(|stats| stats.tx_dropped);
                self.offered = since(|stats| stats.tx_packets) + self.lost;
            }
            Kind::AfPacket | Kind::AfXdp => {
                // With AF_XDP, some drivers count here what the socket counts as well.
                let dropped = if kind == Kind::AfXdp { 0 } else { since(|stats| stats.rx_dropped) };
                self.rx_dropped = dropped + since(|stats| stats.rx_missed_errors);
                self.tx_dropped = since(|stats| stats.tx_dropped);
            }
        }
    }
}

/// Names of the `AF_XDP` sockets of this process, such as `socket:[1234]`. Their addresses do not tell to
/// which interface they are bound.
#[derive(Debug)]
pub(crate) struct XdpSockets(HashSet<PathBuf>);

impl XdpSockets {
    /// Returns the present sockets.
    pub(crate) fn present() -> Self {
        Self(sockets(Domain::from(libc::AF_XDP)).map(|(name, _)| name).collect())
    }

    /// Returns duplicates of the sockets that have been opened since.
    fn later_ones(&self) -> Vec<Socket> {
        let all = sockets(Domain::from(libc::AF_XDP));
        all.filter(|(name, _)| !self.0.contains(name)).map(|(_, socket)| socket).collect()
    }
}

/// Returns duplicates of the `AF_PACKET` sockets of this process that are bound to an interface.
fn packet_sockets(index: u32) -> Vec<Socket> {
    let all = sockets(Domain::PACKET).map(|(_, socket)| socket);
    all.filter(|socket| bound_interface(socket) == Some(index)).collect()
}

/// Returns the name and a duplicate of each socket of this process in a domain.
fn sockets(domain: Domain) -> impl Iterator<Item = (PathBuf, Socket)> {
    let entries = fs::read_dir("/proc/self/fd").into_iter().flatten();
    entries.filter_map(move |entry| {
        let path = entry.ok()?.path();
        let name = fs::read_link(&path).ok()?;
        let fd: RawFd = path.file_name()?.to_str()?.parse().ok()?;
        // SAFETY: the descriptor is used only to be duplicated, which fails if it has been closed meanwhile.
        // If it has been replaced meanwhile, the check below applies to what replaced it.
        let socket = SockRef::from(&unsafe { BorrowedFd::borrow_raw(fd) }).try_clone().ok()?;
        (socket.domain().ok()? == domain).then_some((name, socket))
    })
}

/// Returns the index of the interface to which an `AF_PACKET` socket is bound.
fn bound_interface(socket: &Socket) -> Option<u32> {
    let address = socket.local_addr().ok()?;
    if (address.len() as usize) < core::mem::offset_of!(libc::sockaddr_ll, sll_hatype) {
        return None;
    }
    // SAFETY: the storage of an address is larger than `sockaddr_ll`, initialized, and aligned for it.
    let address = unsafe { &*address.as_ptr().cast::<libc::sockaddr_ll>() };
    u32::try_from(address.sll_ifindex).ok()
}

/// Returns the counts of frames that an `AF_PACKET` socket received, including lost ones, and of those that it
/// lost, since this was called last.
fn packet_statistics(socket: &Socket) -> Option<libc::tpacket_stats> {
    let mut stats = libc::tpacket_stats { tp_packets: 0, tp_drops: 0 };
    let mut len = size_of::<libc::tpacket_stats>() as libc::socklen_t;
    let fd = socket.as_raw_fd();
    let (level, name, at) = (libc::SOL_PACKET, libc::PACKET_STATISTICS, (&raw mut stats).cast());
    // SAFETY: `stats` has room for `len` bytes, and any bytes are valid in it.
    (unsafe { libc::getsockopt(fd, level, name, at, &raw mut len) } == 0).then_some(stats)
}

/// Returns what an `AF_XDP` socket has counted since it was opened.
fn xdp_statistics(socket: &Socket) -> Option<libc::xdp_statistics> {
    let mut stats = libc::xdp_statistics {
        rx_dropped: 0,
        rx_invalid_descs: 0,
        tx_invalid_descs: 0,
        rx_ring_full: 0,
        rx_fill_ring_empty_descs: 0,
        tx_ring_empty_descs: 0,
    };
    let mut len = size_of::<libc::xdp_statistics>() as libc::socklen_t;
    let fd = socket.as_raw_fd();
    let (level, name, at) = (libc::SOL_XDP, libc::XDP_STATISTICS, (&raw mut stats).cast());
    // SAFETY: `stats` has room for `len` bytes, and any bytes are valid in it.
    (unsafe { libc::getsockopt(fd, level, name, at, &raw mut len) } == 0).then_some(stats)
}

/// Waits until no CPU is in a receive path of the kernel that it entered before (an RCU grace period).
fn wait_for_receive_paths() {
    // SAFETY: the call takes numbers only. A kernel without it refuses it.
    unsafe { libc::syscall(libc::SYS_membarrier, MEMBARRIER_GLOBAL, 0, 0) };
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stats(rx_dropped: u64, rx_missed_errors: u64, tx_packets: u64, tx_dropped: u64) -> Stats64 {
        let mut stats = Stats64::default();
        (stats.rx_dropped, stats.rx_missed_errors) = (rx_dropped, rx_missed_errors);
        (stats.tx_packets, stats.tx_dropped) = (tx_packets, tx_dropped);
        stats
    }

    #[test]
    fn frames_that_a_tap_interface_drops_were_offered_to_the_port() {
        let mut counts = KernelCounts::default();
        counts.read_interface(Kind::Tap, &stats(1, 0, 100, 10), &stats(9, 0, 150, 17));
        assert_eq!(counts, KernelCounts { offered: 57, lost: 7, rx_dropped: 0, tx_dropped: 0 });
    }

    #[test]
    fn drops_of_an_interface_are_counted_from_the_start_of_its_port() {
        let socket = KernelCounts { offered: 5, lost: 2, ..KernelCounts::default() };
        for (kind, rx_dropped) in [(Kind::AfPacket, 30), (Kind::AfXdp, 20)] {
            let mut counts = socket;
            counts.read_interface(kind, &stats(1, 2, 3, 4), &stats(11, 22, 33, 44));
            assert_eq!(counts, KernelCounts { rx_dropped, tx_dropped: 40, ..socket });
        }
    }
}
