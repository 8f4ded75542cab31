//! Memif ports: without a peer, with one, and after a reconnect.

use crate::common;
use crate::common::{config, port};
use dataplane::config::{Config, Device, Idle};
use dataplane::{ControlHandler, ControlOutput, Live, Mbuf, PortInfo, Runtime, Stop};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use rustix::io::pwrite;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use socket2::{Domain, SockAddr, Socket, Type};
use std::io::Read as _;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::sync::mpsc;
use switch::drop::FaultSet;
use switch::forward::config::ForwardingMode;
use switch::forward::{Config as ForwardConfig, Forward};
use switch::{DropReason, Function, PortId};
use understudy_tests::alone;

/// Ends the run when a number of frames has been received from a port.
struct Until<'a> {
    frames: u64,
    port: usize,
    seen: &'a mut Vec<(String, bool)>,
    refused: &'a mut Vec<String>,
}

impl<F: Function> ControlHandler<F> for Until<'_> {
    fn on_event(&mut self, _: usize, _: F::Event, _: &mut ControlOutput<'_, F>) {}

    fn on_punt(&mut self, _: usize, _: Mbuf, _: PortId, _: &mut ControlOutput<'_, F>) {}

    fn on_tick(&mut self, live: &Live<'_>, _: &mut ControlOutput<'_, F>) -> bool {
        live.workers().iter().map(|worker| worker.ports[self.port].rx.frames.get()).sum::<u64>() < self.frames
    }

    fn on_link(&mut self, port: &PortInfo, up: bool) {
        self.seen.push((port.name.clone(), up));
    }

    fn on_peer_refused(&mut self, _: &PortInfo, why: &str) {
        self.refused.push(why.to_owned());
    }
}

fn memif(folder: &Path, server: bool) -> Device {
    Device::Memif { socket: folder.join("m.sock"), id: 9, server, peer_uid: None }
}

fn wires(ports: u16, pairs: &[(u16, u16)]) -> ForwardConfig {
    ForwardConfig {
        ports,
        mode: ForwardingMode::Pairs(pairs.iter().map(|&(a, b)| (PortId(a), PortId(b))).collect()),
        drop: FaultSet::NONE,
        verify_icrc: false,
        verify_udp_checksum: false,
        counted_qps: 0,
        health: false,
    }
}

#[test]
fn both_ends_of_a_memif_work_in_one_process() {
    alone!();
    let folder = tempfile::tempdir().unwrap();
    let ports = vec![
        port("source", Device::Null { size: 64, copy: false }),
        port("client", memif(folder.path(), false)),
        port("server", memif(folder.path(), true)),
        port("ring", Device::Ring),
    ];
    let mut runtime = Runtime::start(config(ports, 2)).unwrap();
    let function = wires(4, &[(0, 1), (2, 3)]);
    let (mut seen, mut refused) = (Vec::new(), Vec::new());
    for run in 1..=2 {
        let functions = vec![Forward::new(&function), Forward::new(&function)];
        let mut until = Until { frames: 10_000, port: 1, seen: &mut seen, refused: &mut refused };
        let outcome = runtime.run(functions, &mut until, &Stop::new());
        // In its first iteration no worker has been notified of the peer.
        let down: u64 = outcome.workers.iter().map(|w| w.drops[DropReason::LinkDown.index()].get()).sum();
        assert!(down > 0, "run {run}");
        // And in the reverse direction: the ring returns the frames.
        for port in [0, 3] {
            let sent: u64 = outcome.workers.iter().map(|w| w.ports[port].tx.frames.get()).sum();
            assert!(sent >= 1000, "run {run}, port {port}: {sent}");
        }
    }
    seen.sort();
    assert_eq!(seen, [("client".to_owned(), true), ("server".to_owned(), true)]);
    drop(runtime);
    assert!(!folder.path().join("m.sock").exists());
}

/// Returns this process's abstract Unix sockets in this network namespace.
fn abstract_sockets() -> Vec<String> {
    let all = std::fs::read_to_string("/proc/net/unix").unwrap();
    let pid = std::process::id().to_string();
    let own = all.lines().filter(|line| line.contains("@understudy") && line.contains(&pid));
    own.map(str::to_owned).collect()
}

#[test]
fn other_users_cannot_reach_the_sockets_of_a_driver() {
    alone!();
    let folder = tempfile::tempdir().unwrap();
    let ports = vec![port("server", memif(folder.path(), true)), port("client", memif(folder.path(), false))];
    let runtime = Runtime::start(config(ports, 1)).unwrap();
    // Any user may connect to an abstract socket.
    assert_eq!(abstract_sockets(), Vec::<String>::new());
    let mode = folder.path().join("m.sock").metadata().unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    drop(runtime);
}

#[test]
fn socket_in_a_locked_folder_is_reported_as_an_error() {
    alone!();
    let folder = tempfile::tempdir().unwrap();
    // Any user with read permission for the folder can hold its lock.
    let held = std::fs::File::open(folder.path()).unwrap();
    held.lock().unwrap();
    let error = Runtime::start(config(vec![port("server", memif(folder.path(), true))], 1)).unwrap_err();
    assert!(error.what.ends_with("another process holds its lock"), "{error}");
}

/// A minimal memif client that encodes its messages itself.
struct Peer(Socket);

impl Peer {
    /// Connects, receives HELLO, and requests the interface of [`memif`].
    fn connect(socket: &Path) -> Self {
        let peer = Socket::new(Domain::UNIX, Type::SEQPACKET, None).unwrap();
        peer.connect(&SockAddr::unix(socket).unwrap()).unwrap();
        let peer = Self(peer);
        assert!(peer.receive().is_some(), "the server sends HELLO");
        peer.send(3, &[(2, &0x0200_u16.to_ne_bytes()), (4, &9_u32.to_ne_bytes())], None);
        peer
    }

    /// Sends a message of this type with fields at these offsets, and a descriptor.
    fn send(&self, kind: u16, fields: &[(usize, &[u8])], file: Option<BorrowedFd<'_>>) {
        let mut message = [0; 128];
        message[..2].copy_from_slice(&kind.to_ne_bytes());
        for (at, field) in fields {
            message[*at..at + field.len()].copy_from_slice(field);
        }
        let mut space = [core::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut rights = SendAncillaryBuffer::new(&mut space);
        let files: Vec<_> = file.into_iter().collect();
        if !files.is_empty() {
            assert!(rights.push(SendAncillaryMessage::ScmRights(&files)));
        }
        let parts = [std::io::IoSlice::new(&message)];
        sendmsg(&self.0, &parts, &mut rights, SendFlags::empty()).unwrap();
    }

    /// Returns the server's next message, or `None` if it has disconnected.
    fn receive(&self) -> Option<[u8; 128]> {
        let mut message = [0; 128];
        (&self.0).read(&mut message).is_ok_and(|len| len == 128).then_some(message)
    }

    /// Announces a ring in each direction, and no buffer for the server's frames. Sends one frame when the
    /// server has agreed. Returns the shared memory.
    fn join(&self) -> OwnedFd {
        const BYTES: u32 = 1 << 20;
        let region = memfd_create("region", MemfdFlags::ALLOW_SEALING | MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&region, BYTES.into()).unwrap();
        fcntl_add_seals(&region, SealFlags::SHRINK).unwrap();
        self.send(4, &[(4, &u64::from(BYTES).to_ne_bytes())], Some(region.as_fd()));
        let event = std::io::pipe().unwrap().0;
        let write = |at: u32, bytes: &[u8]| assert_eq!(pwrite(&region, bytes, at.into()), Ok(bytes.len()));
        let (to_client, from_client) = (0, BYTES / 2);
        for (flags, offset) in [(1_u16, from_client), (0, to_client)] {
            // A ring begins with memif's cookie.
            write(offset, &0x03e3_1f20_u32.to_ne_bytes());
            let fields: [(usize, &[u8]); 3] =
                [(2, &flags.to_ne_bytes()), (8, &offset.to_ne_bytes()), (12, &[10])];
            self.send(5, &fields, Some(event.as_fd()));
        }
        self.send(6, &[], None);
        while self.receive().expect("the server agrees")[..2] != 7_u16.to_ne_bytes() {}
        // The first descriptor is for 64 bytes in the last quarter; then the head of the ring is advanced to
        // publish it.
        write(from_client + 132, &64_u32.to_ne_bytes());
        write(from_client + 136, &(BYTES / 4 * 3).to_ne_bytes());
        write(from_client + 6, &1_u16.to_ne_bytes());
        region
    }
}

/// Announces an unsealed region. Returns the reason in the server's DISCONNECT.
fn announce_unsealed_region(socket: &Path) -> String {
    let peer = Peer::connect(socket);
    let region = tempfile::tempfile().unwrap();
    region.set_len(4096).unwrap();
    peer.send(4, &[(4, &4096_u64.to_ne_bytes())], Some(region.as_fd()));
    // The server acknowledges the first message, and disconnects because of the second.
    let mut reason = String::new();
    while let Some(message) = peer.receive() {
        let text = message[6..].split(|byte| *byte == 0).next().unwrap();
        reason = String::from_utf8_lossy(text).into_owned();
    }
    reason
}

#[test]
fn peer_with_an_unsealed_region_is_refused_with_the_reason() {
    alone!();
    let folder = tempfile::tempdir().unwrap();
    let mut runtime = Runtime::start(config(vec![port("server", memif(folder.path(), true))], 1)).unwrap();
    let (stop, socket) = (Stop::new(), folder.path().join("m.sock"));
    let stops = stop.clone();
    let peer = std::thread::spawn(move || {
        let output = announce_unsealed_region(&socket);
        stops.stop();
        output
    });
    let (mut seen, mut refused) = (Vec::new(), Vec::new());
    let mut until = Until { frames: 1, port: 0, seen: &mut seen, refused: &mut refused };
    runtime.run(vec![Forward::new(&wires(1, &[(0, 0)]))], &mut until, &stop);
    let why = "region 0 is not sealed against shrinking (F_SEAL_SHRINK)";
    assert_eq!((peer.join().unwrap().as_str(), refused), (why, vec![why.to_owned()]));
    assert!(seen.is_empty(), "a peer has joined: {seen:?}");
}

/// Sends frames to a peer that accepts none, and makes it disconnect when one of its frames was received;
/// then sends a frame to a ring, which returns it.
struct DisconnectPeer {
    /// Whether there is a peer, and the number of ticks since that changed
    link: (bool, u32),
    /// Dropped to make the peer disconnect
    stay: Option<mpsc::Sender<()>>,
    moments: u32,
}

impl DisconnectPeer {
    const FRAMES: u64 = 20;
    /// With the peer's frame, which the ring has returned, and the last frame
    const LOST: u64 = Self::FRAMES + 2;
}

impl<F: Function> ControlHandler<F> for DisconnectPeer {
    fn on_event(&mut self, _: usize, _: F::Event, _: &mut ControlOutput<'_, F>) {}

    fn on_punt(&mut self, _: usize, _: Mbuf, _: PortId, _: &mut ControlOutput<'_, F>) {}

    fn on_tick(&mut self, live: &Live<'_>, out: &mut ControlOutput<'_, F>) -> bool {
        self.link.1 += 1;
        let worker = &live.workers()[0];
        let mut send = |port| {
            let frame = out.make(&[0; 64]).unwrap();
            assert!(out.send(0, frame, PortId(port)).is_ok(), "the worker's queue has room");
        };
        // The worker is notified of the link between the first tick and the second.
        match self.link {
            (true, 2..) if self.stay.is_some() && worker.ports[0].rx.frames.get() > 0 => {
                (0..Self::FRAMES).for_each(|_| send(0));
                self.stay = None;
            }
            (false, 2) if self.stay.is_none() => send(1),
            _ => {}
        }
        self.moments += 1;
        assert!(self.moments < 10_000, "frames are missing, or were not counted");
        worker.drops[DropReason::LinkDown.index()].get() < Self::LOST
    }

    fn on_link(&mut self, _: &PortInfo, up: bool) {
        self.link = (up, 0);
    }
}

#[test]
fn frames_are_lost_with_their_peer_and_other_ports_are_still_polled() {
    alone!();
    let folder = tempfile::tempdir().unwrap();
    let ports = vec![port("server", memif(folder.path(), true)), port("ring", Device::Ring)];
    let mut runtime = Runtime::start(config(ports, 1)).unwrap();
    let socket = folder.path().join("m.sock");
    let (stay, goes) = mpsc::channel();
    let peer = std::thread::spawn(move || {
        let peer = Peer::connect(&socket);
        let _region = peer.join();
        goes.recv().unwrap_err();
    });
    let mut control = DisconnectPeer { link: (false, 0), stay: Some(stay), moments: 0 };
    let outcome = runtime.run(vec![Forward::new(&wires(2, &[(0, 1)]))], &mut control, &Stop::new());
    peer.join().unwrap();
    let worker = &outcome.workers[0];
    let lost: Vec<_> = worker.drops.iter().map(switch::counters::Counter::get).filter(|n| *n > 0).collect();
    assert_eq!(lost, [DisconnectPeer::LOST]);
    assert_eq!((worker.ports[0].rx.frames.get(), worker.ports[0].tx.frames.get()), (1, 0));
    assert_eq!(worker.ports[1].rx.frames.get(), 2);
}

#[test]
fn file_at_the_path_of_the_socket_is_left_alone() {
    alone!();
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("m.sock"), "a file").unwrap();
    let error = Runtime::start(config(vec![port("server", memif(folder.path(), true))], 1)).unwrap_err();
    assert!(error.what.contains("m.sock: the path exists"), "{error}");
    assert!(folder.path().join("m.sock").exists());
}

/// Runs an idle worker with this strategy. Returns its number of iterations, and the time in microseconds.
fn idle_turns(idle: Idle) -> (u64, u64) {
    let mut config: Config = config(vec![port("ring", Device::Ring)], 1);
    config.workers.idle = idle;
    let mut runtime = Runtime::start(config).unwrap();
    #[allow(clippy::disallowed_methods, reason = "a test of time that passes")]
    let began = std::time::Instant::now();
    let functions = vec![Forward::new(&wires(1, &[(0, 0)]))];
    let outcome = runtime.run(functions, &mut common::Ticks(100), &Stop::new());
    (outcome.workers[0].turns.get(), began.elapsed().as_micros() as u64)
}

#[test]
fn worker_that_sleeps_makes_few_iterations() {
    alone!();
    let (turns, us) = idle_turns(Idle::Sleep);
    // Awake for the first 50 us; then each iteration takes at least 12 us.
    assert!(turns > 0 && turns < 2_000 + us / 12, "{turns} iterations in {us} us");
}

#[test]
fn worker_that_yields_does_its_work() {
    alone!();
    let mut config =
        config(vec![port("in", Device::Null { size: 64, copy: false }), port("out", Device::Ring)], 1);
    config.workers.idle = Idle::Yield;
    let mut runtime = Runtime::start(config).unwrap();
    let (mut seen, mut refused) = (Vec::new(), Vec::new());
    let mut until = Until { frames: 10_000, port: 0, seen: &mut seen, refused: &mut refused };
    let outcome = runtime.run(vec![Forward::new(&wires(2, &[(0, 1)]))], &mut until, &Stop::new());
    assert!(outcome.workers[0].ports[1].tx.frames.get() > 0);
}

#[test]
fn failed_port_ends_the_start_in_order() {
    alone!();
    let folder = tempfile::tempdir().unwrap();
    let nothing = Device::Pcap { rx: vec![], tx: None, infinite: false };
    let ports = vec![
        port("server", memif(folder.path(), true)),
        port("client", memif(folder.path(), false)),
        port("none", nothing),
    ];
    let before = threads();
    assert!(Runtime::start(config(ports, 1)).is_err());
    assert!(!folder.path().join("m.sock").exists());
    // DPDK's interrupt thread, which polled the drivers' sockets, cannot be joined. It is parked for good.
    let left: Vec<_> = threads().into_iter().filter(|thread| !before.contains(thread)).collect();
    assert_eq!(left.iter().map(|(_, name)| name.as_str()).collect::<Vec<_>>(), ["eal-intr-thread"]);
    assert_eq!(call_of(left[0].0), libc::SYS_futex, "the thread waits for no file");
}

/// Returns the threads of this process: their IDs and names.
fn threads() -> Vec<(u32, String)> {
    let all = std::fs::read_dir("/proc/self/task").unwrap().map(|thread| thread.unwrap());
    let named = all.filter_map(|thread| {
        let name = std::fs::read_to_string(thread.path().join("comm")).ok()?;
        Some((thread.file_name().to_str()?.parse().ok()?, name.trim_end().to_owned()))
    });
    named.collect()
}

/// Waits until a thread of this process sleeps. Returns the number of its system call.
fn call_of(thread: u32) -> i64 {
    loop {
        // "running", or the number and its arguments (proc_pid_syscall(5))
        let output = std::fs::read_to_string(format!("/proc/self/task/{thread}/syscall")).unwrap();
        if let Some(Ok(number)) = output.split_whitespace().next().map(str::parse) {
            return number;
        }
        std::thread::yield_now();
    }
}
