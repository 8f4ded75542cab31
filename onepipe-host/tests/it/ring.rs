//! An endpoint on a ring device, which returns what it sends. Its peer is itself by another number, and its
//! switch is itself as well: the barrier of its link is the one that it has promised.

use core::net::IpAddr;
use core::time::Duration;
use dataplane::config::{Device, Eal, Idle, Memory, OnLinkLoss, Port, Workers};
use onepipe::process::{self, BeaconPeer, Peer};
use onepipe_host::{
    Clock, Config, Endpoint, Event, Failure, InitError, ProcessId, SendError, Settings, Stall,
};
use rocev2::Qpn;
use rocev2::ethernet::MacAddr;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use switch::Function as _;
use switch::memory::FrameCollector;
use understudy_tests::alone;

const LONG: Duration = Duration::from_secs(60);
pub(crate) const OWN: ProcessId = ProcessId(1);
/// The endpoint itself
const TWIN: ProcessId = ProcessId(2);
/// A process that does not exist
pub(crate) const UNREACHABLE: ProcessId = ProcessId(3);

pub(crate) fn config() -> Config {
    let (mac, address, qpn) = (MacAddr([2, 0, 0, 0, 0, 1]), IpAddr::from([10, 0, 0, 1]), Qpn::new(0x11));
    let own = Peer { id: OWN, mac, address, qpn };
    let mut process = process::Config::new(own, BeaconPeer { mac, address, qpn, detour: Vec::new() });
    let unreachable = Peer { id: UNREACHABLE, address: IpAddr::from([10, 0, 0, 3]), ..own };
    process.peers = vec![Peer { id: TWIN, ..own }, unreachable];
    // The machine may be busy with other work for a while.
    process.timeout = switch::Nanos::from_millis(200);
    process.beacon_interval = switch::Nanos::from_micros(50);
    process.clock_error = switch::Nanos::ZERO;
    process.stall_after = switch::Nanos::ZERO;
    let port = Port {
        name: "ring".into(),
        device: Device::Ring,
        mtu: 1500,
        rx_queues: 1,
        descriptors: 512,
        buffers: 4096,
        share_from: None,
    };
    let eal =
        Eal { memory: Memory::Ordinary { mb: 64 }, file_prefix: None, telemetry: false, extra: Vec::new() };
    let workers = Workers { cpus: vec![None], idle: Idle::Sleep, handoff_ring: 64, control_queue: 64 };
    Config {
        runtime: dataplane::Config { eal, ports: vec![port], workers, on_link_loss: OnLinkLoss::Wait },
        process: Settings {
            process,
            mac: Some(mac),
            prefix: 24,
            switch: "itself".into(),
            clock: Clock::Realtime,
            settled_events: true,
            controller: None,
        },
    }
}

/// Waits for an event that must happen.
#[allow(clippy::disallowed_methods, reason = "bounds the time that a test waits")]
pub(crate) fn wait_for<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let began = std::time::Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(began.elapsed() < LONG, "timed out waiting for {what}");
        std::thread::sleep(Duration::from_micros(100));
    }
}

#[test]
fn scatterings_arrive_in_order_and_are_settled() {
    alone!();
    let mut endpoint = Endpoint::init(config()).unwrap();
    let mut sent = Vec::new();
    let mut seen = endpoint.timestamp();
    for n in 0..2000u32 {
        let (to_own, to_twin) = (n.to_be_bytes(), vec![n as u8; n as usize * 7 % 6000]);
        let before = endpoint.timestamp();
        assert!(!before.precedes(seen), "the clock does not go back");
        let scattering = wait_for("room", || {
            match endpoint.unreliable_send(&[(OWN, &to_own), (TWIN, &to_twin), (TWIN, b"end")]) {
                Ok(scattering) => Some(scattering),
                Err(SendError::Full) => None,
                Err(error) => panic!("{error}"),
            }
        });
        assert_eq!(scattering.0, u64::from(n));
        sent.push((before, to_twin));
        if n % 100 < 99 {
            continue;
        }
        for (before, to_twin) in sent.drain(..) {
            let messages: Vec<_> =
                (0..3).map(|_| endpoint.recv_timeout(LONG).expect("the message is delivered")).collect();
            let [own, twin, end] = messages.try_into().unwrap();
            assert!(own.timestamp == twin.timestamp && twin.timestamp == end.timestamp);
            assert_eq!(
                (own.src, twin.src, end.src),
                (OWN, TWIN, TWIN),
                "equal timestamps in the order of senders"
            );
            assert_eq!((&twin.payload, &end.payload[..]), (&to_twin, &b"end"[..]));
            assert!(!own.timestamp.precedes(before), "stamped after the call");
            seen = endpoint.timestamp();
            assert!(own.timestamp.precedes(seen), "the clock is later than the message");
        }
        for _ in 0..100 {
            let event = wait_for("the result", || endpoint.poll_event());
            assert!(matches!(event, Event::Settled { failed: 0, .. }), "{event:?}");
        }
    }
    let counters = endpoint.counters();
    assert_eq!((counters.sent.get(), counters.delivered.get(), counters.failed.get()), (6000, 6000, 0));
    assert!(endpoint.barriers().0.is_some());
    endpoint.exit();
}

#[test]
fn failed_messages_are_called_back() {
    alone!();
    let mut endpoint = Endpoint::init(config()).unwrap();
    let failed = Arc::new(Mutex::new(Vec::new()));
    let callback_failed = Arc::clone(&failed);
    endpoint.send_fail_callback(move |message| callback_failed.lock().unwrap().push(message));
    let scattering = endpoint.unreliable_send(&[(UNREACHABLE, b"hello"), (TWIN, b"hello")]).unwrap();
    let message = endpoint.recv_timeout(LONG).expect("the message to the twin is delivered");
    assert_eq!((message.src, &message.payload[..]), (TWIN, &b"hello"[..]));
    let message = wait_for("the callback", || {
        assert!(endpoint.unreliable_recv().is_none());
        failed.lock().unwrap().pop()
    });
    assert_eq!((message.scattering, message.dst, message.part), (scattering, UNREACHABLE, 0));
    assert_eq!((message.why, message.timestamp.is_some()), (Failure::NotAcknowledged, true));
    let event = wait_for("the event", || endpoint.poll_event());
    assert!(matches!(event, Event::Settled { failed: 1, .. }), "{event:?}");

    assert!(endpoint.set_alive(UNREACHABLE, false) && !endpoint.set_alive(ProcessId(9), false));
    assert_eq!(
        endpoint.unreliable_send(&[(TWIN, b""), (UNREACHABLE, b"")]),
        Err(SendError::Dead(UNREACHABLE))
    );
    assert_eq!(endpoint.unreliable_send(&[(ProcessId(9), b"")]), Err(SendError::Unknown(ProcessId(9))));
    assert!(endpoint.set_alive(UNREACHABLE, true));
    assert!(endpoint.unreliable_send(&[(UNREACHABLE, b"")]).is_ok());
}

/// One thread sends and another receives, more slowly: nothing is lost, and the sender is stopped.
#[test]
fn receiver_that_does_not_receive_stops_the_sender() {
    alone!();
    let mut config = config();
    config.process.settled_events = false;
    config.process.process.max_unsettled = 512;
    // The rings and the window have room for less than is sent, however fast the polling thread is; and the
    // timeout is so long that no zero window is probed.
    config.process.process.receive_window = 1 << 20;
    config.process.process.timeout = switch::Nanos::from_millis(60_000);
    let (mut sender, mut receiver) = Endpoint::init(config).unwrap().split();
    let fulls = AtomicU32::new(0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for n in 0..20_000u32 {
                wait_for("room", || {
                    match sender.unreliable_send(&[(TWIN, &[n.to_be_bytes(); 150].concat())]) {
                        Ok(_) => Some(()),
                        Err(SendError::Full) => {
                            fulls.fetch_add(1, Ordering::Relaxed);
                            None
                        }
                        Err(error) => panic!("{error}"),
                    }
                });
            }
        });
        // Receiving starts only after the sender has been stopped.
        wait_for("a sender that is stopped", || (fulls.load(Ordering::Relaxed) > 0).then_some(()));
        for n in 0..20_000u32 {
            let message = receiver.recv_timeout(LONG).expect("the message is delivered");
            assert_eq!(message.payload, [n.to_be_bytes(); 150].concat());
        }
    });
    assert_eq!(receiver.handle().counters().failed.get(), 0);
}

#[test]
fn exit_waits_for_acknowledgements_and_keeps_deliveries() {
    alone!();
    let (mut sender, mut receiver) = Endpoint::init(config()).unwrap().split();
    let handle = receiver.handle().clone();
    for n in 0..50u8 {
        sender.unreliable_send(&[(TWIN, &[n])]).unwrap();
    }
    handle.exit();
    assert_eq!(sender.unreliable_send(&[(TWIN, b"")]), Err(SendError::Left));
    let counters = handle.counters();
    assert_eq!(
        (counters.acknowledged.get(), counters.failed.get()),
        (50, 0),
        "leaving waits for acknowledgements"
    );
    assert!(!handle.is_running() && counters.beacons_sent.get() > 3);
    // Messages delivered before that are not lost.
    for n in 0..counters.delivered.get() {
        assert_eq!(receiver.unreliable_recv().unwrap().payload, [n as u8]);
    }
    assert!(receiver.recv_timeout(LONG).is_none(), "no more messages follow, so the call does not wait");
    drop((sender, receiver, handle));
    let again = Endpoint::init(config());
    assert!(matches!(again, Err(InitError::Dataplane { .. })), "DPDK starts once per program");
}

/// Returns the names of this program's threads.
fn threads() -> Vec<String> {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    // A thread may end while it is read.
    tasks.filter_map(|task| std::fs::read_to_string(task.unwrap().path().join("comm")).ok()).collect()
}

/// Without a call to leave, dropping the last part of the endpoint makes it leave.
#[test]
fn dropped_endpoint_leaves() {
    alone!();
    let runs = || threads().iter().any(|name| name.trim() == "onepipe");
    let mut endpoint = Endpoint::init(config()).unwrap();
    assert!(runs());
    let (failed_tx, failed_rx) = std::sync::mpsc::channel();
    endpoint.send_fail_callback(move |failed| failed_tx.send(failed).unwrap());
    endpoint.unreliable_send(&[(UNREACHABLE, b"x")]).unwrap();
    let (sender, receiver) = endpoint.split();
    let handle = sender.handle().clone();
    drop(sender);
    drop(receiver);
    assert!(runs() && handle.is_running() && !handle.has_ended(), "a handle keeps the endpoint running");
    drop(handle);
    assert!(!runs(), "the threads end before the drop returns");
    assert!(failed_rx.recv().is_err(), "the callback was dropped");
}

/// A thread that receives while the endpoint leaves gets all messages that are delivered until it has left,
/// and then returns at once.
#[test]
fn receiver_gets_everything_while_the_endpoint_leaves() {
    alone!();
    let mut config = config();
    config.process.settled_events = false;
    let (mut sender, mut receiver) = Endpoint::init(config).unwrap().split();
    let handle = receiver.handle().clone();
    let (sent, taken) = std::thread::scope(|scope| {
        // It goes on sending until it gets `Left`.
        let sending = scope.spawn(|| {
            let mut sent = 0u32;
            loop {
                match sender.unreliable_send(&[(TWIN, &sent.to_be_bytes())]) {
                    Ok(_) => sent += 1,
                    Err(SendError::Full) => std::thread::yield_now(),
                    Err(SendError::Left) => return sent,
                    Err(error) => panic!("{error}"),
                }
            }
        });
        let receiving = scope.spawn(|| {
            let mut taken = 0u32;
            while let Some(message) = receiver.recv_timeout(LONG) {
                assert_eq!(message.payload, taken.to_be_bytes());
                taken += 1;
            }
            taken
        });
        wait_for("deliveries", || (handle.counters().delivered.get() > 1000).then_some(()));
        // Two threads end it, and each returns when it has left.
        let exits = [0; 2].map(|_| {
            let handle = handle.clone();
            scope.spawn(move || {
                handle.exit();
                assert!(handle.has_ended() && !handle.is_running());
            })
        });
        for exit in exits {
            exit.join().unwrap();
        }
        let (sent, taken) = (sending.join().unwrap(), receiving.join().unwrap());
        assert_eq!(u64::from(taken), handle.counters().delivered.get());
        (sent, taken)
    });
    assert!(taken > 1000 && taken <= sent, "{taken} of {sent}");
    // Calls that are still valid afterwards
    assert!(receiver.unreliable_recv().is_none() && receiver.poll_event().is_none());
    assert!(!handle.set_alive(TWIN, false), "the endpoint has ended");
    assert_eq!(sender.unreliable_send(&[(TWIN, b"")]), Err(SendError::Left));
    assert_eq!(handle.timestamp(), handle.timestamp());
    handle.exit();
}

/// A message in flight to a process that does not exist fails after the timeout, which is called back before
/// the endpoint is gone.
#[test]
fn exit_calls_back_for_messages_that_have_failed() {
    alone!();
    let mut endpoint = Endpoint::init(config()).unwrap();
    let failed = Arc::new(Mutex::new(Vec::new()));
    let callback_failed = Arc::clone(&failed);
    endpoint
        .send_fail_callback(move |message| callback_failed.lock().unwrap().push((message.part, message.why)));
    for _ in 0..3 {
        endpoint.unreliable_send(&[(TWIN, b"a"), (UNREACHABLE, b"b")]).unwrap();
    }
    endpoint.exit();
    // If the machine is busy enough, even the messages to the twin may fail.
    let to_unreachable: Vec<_> =
        failed.lock().unwrap().iter().copied().filter(|(part, _)| *part == 1).collect();
    assert_eq!(to_unreachable, [(1, Failure::NotAcknowledged); 3]);
}

/// More messages than the rings and the window have room for, none of which is received
#[test]
fn exit_does_not_wait_for_a_receiver_that_never_receives() {
    alone!();
    let mut config = config();
    config.process.settled_events = false;
    config.process.process.timeout = switch::Nanos::from_millis(20);
    config.process.process.receive_window = 1 << 16;
    let (mut sender, mut receiver) = Endpoint::init(config).unwrap().split();
    let text = [7; 600];
    let mut sent = 0u64;
    while sender.unreliable_send(&[(TWIN, &text)]).is_ok() {
        sent += 1;
    }
    let handle = receiver.handle().clone();
    handle.exit();
    let counters = handle.counters();
    let mut taken = 0;
    while let Some(message) = receiver.unreliable_recv() {
        assert_eq!(message.payload, text);
        taken += 1;
    }
    assert!((1..=sent).contains(&taken) && taken <= counters.delivered.get(), "{taken} of {sent}");
    assert!(!handle.is_running());
}

/// One half of an endpoint is dropped: the other goes on.
#[test]
fn sender_works_after_its_receiver_is_dropped() {
    alone!();
    let mut config = config();
    config.process.process.timeout = switch::Nanos::from_millis(30_000);
    config.process.process.receive_window = 1 << 16;
    config.process.process.max_unsettled = 512;
    let (mut sender, receiver) = Endpoint::init(config).unwrap().split();
    let handle = receiver.handle().clone();
    drop(receiver);
    // Many times what windows and rings have room for
    for _ in 0..10_000 {
        wait_for("room", || match sender.unreliable_send(&[(TWIN, &[1; 300])]) {
            Ok(_) => Some(()),
            Err(SendError::Full) => None,
            Err(error) => panic!("{error}"),
        });
    }
    handle.exit();
    assert_eq!((handle.counters().acknowledged.get(), handle.counters().failed.get()), (10_000, 0));
}

#[test]
fn receiver_works_after_its_sender_is_dropped() {
    alone!();
    let (mut sender, mut receiver) = Endpoint::init(config()).unwrap().split();
    for n in 0..100u8 {
        sender.unreliable_send(&[(TWIN, &[n])]).unwrap();
    }
    drop(sender);
    for n in 0..100u8 {
        assert_eq!(receiver.recv_timeout(LONG).unwrap().payload, [n]);
    }
    assert!(receiver.handle().is_running());
}

#[test]
fn invalid_configurations_are_refused_before_dpdk_starts() {
    alone!();
    let mut wrong = config();
    wrong.process.process.mtu = 1;
    assert!(matches!(Endpoint::init(wrong), Err(InitError::Process(_))));
    let mut wrong = config();
    wrong.runtime.workers.cpus.push(None);
    assert!(matches!(Endpoint::init(wrong), Err(InitError::Shape { ports: 1, workers: 2 })));
    assert!(Endpoint::init(config()).is_ok());
}

/// The first barrier that the endpoint gets is its own first beacon's, so an endpoint whose switch is another
/// one gets none.
#[test]
fn failure_callbacks_pass_a_stall() {
    alone!();
    for has_callback in [true, false] {
        let mut config = config();
        config.process.process.stall_after = switch::Nanos::from_micros(100);
        config.process.process.timeout = switch::Nanos::from_millis(20);
        config.process.process.tor.qpn = Qpn::new(0x12);
        let (mut endpoint, mut function) = Endpoint::without_threads(&config.process.process, false).unwrap();
        let (failed, stalls) = (Arc::new(AtomicU32::new(0)), Arc::new(Mutex::new(Vec::new())));
        let (failed_there, stalls_there) = (Arc::clone(&failed), Arc::clone(&stalls));
        endpoint.send_fail_callback(move |_| _ = failed_there.fetch_add(1, Ordering::Relaxed));
        if has_callback {
            endpoint.stall_callback(move |stall| stalls_there.lock().unwrap().push(stall));
        }
        endpoint.unreliable_send(&[(UNREACHABLE, b"hello")]).unwrap();
        for us in (0..30_000).step_by(10) {
            let mut out = FrameCollector::with_room(32);
            function.on_timer(switch::Nanos::from_micros(us), &mut out);
        }
        assert!(endpoint.unreliable_recv().is_none());
        assert_eq!(failed.load(Ordering::Relaxed), 1, "the stall came first, and does not hold it back");
        let expected = Stall::Stalled { barrier: None };
        if has_callback {
            assert_eq!(*stalls.lock().unwrap(), [expected]);
        } else {
            assert_eq!(endpoint.poll_event(), Some(Event::Stalled { barrier: None }));
        }
        assert_eq!(endpoint.poll_event(), None);
    }
}
