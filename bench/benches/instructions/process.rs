//! Messages through a 1Pipe process and through the host library, in bursts.

use crate::paths::{Pool, Prepared};
use core::net::IpAddr;
use onepipe::Process;
use onepipe::process::reliable::{Event as ReliableEvent, Member};
use onepipe::process::{BeaconPeer, Config, Message, Peer, ProcessId};
use onepipe_host::{Endpoint, Event, ProcessFunction};
use rocev2::Qpn;
use rocev2::ethernet::MacAddr;
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use switch::{Function as _, Nanos, PortId};

/// Messages per turn, turns that are counted, and turns before them, in which memory is allocated
const BURST: usize = 32;
const TURNS: usize = 128;
const WARM_UP_TURNS: usize = 64;
/// Nanoseconds from one turn to the next: five million messages per second
const TURN_NS: u64 = 6_400;
const PAYLOAD: [u8; 64] = [0x5a; 64];
/// The same as in `bench onepipe`
const ACK_EVERY: u32 = 64;

/// Service whose messages are counted
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Service {
    BestEffort,
    Reliable,
}

fn peer(id: u32, host: u8) -> Peer {
    Peer {
        id: ProcessId(id),
        mac: MacAddr([2, 0, 0, 0, 0, host]),
        address: IpAddr::from([10, 0, 0, host]),
        qpn: Qpn::new(0x11),
    }
}

/// Returns the configuration of a process with one peer, whose switch is at `tor`.
fn config(own: Peer, other: Peer, tor: Peer) -> Config {
    let Peer { mac, address, qpn, .. } = tor;
    let mut config = Config::new(own, BeaconPeer { mac, address, qpn, detour: Vec::new() });
    config.peers = vec![other];
    config.clock_error = Nanos::ZERO;
    // Barriers in beacons only
    config.declares = false;
    config.ack_every = ACK_EVERY;
    config.ack_delay = Nanos::from_micros(100);
    config.timeout = Nanos::from_millis(1000);
    config.initial_window = 1 << 20;
    config
}

fn at(turn: usize) -> Nanos {
    Nanos(1 + turn as u64 * TURN_NS)
}

/// Returns two processes, each of which is the other's switch. For the reliable service they are members, whose
/// queue pairs are not those of best effort, as with a controller.
fn process_pair(service: Service) -> [Process; 2] {
    let [a, b] = [peer(1, 1), peer(2, 2)];
    let mut pair =
        [config(a, b, b), config(b, a, a)].map(|config| Process::new(config).expect("a valid configuration"));
    if service == Service::Reliable {
        for (process, other) in pair.iter_mut().zip([b, a]) {
            let qpn = |id: ProcessId| Qpn::new(0x100 + id.0);
            let own = qpn(process.config().own.id);
            let grant = process.config().reliable_grant() as u32;
            let member = Member { id: other.id, incarnation: 1, qpn: qpn(other.id), grant };
            process.join_as(1, own, &[member], Nanos::ZERO).expect("it joins");
            process.set_commit_sources(vec![(other.address, qpn(other.id))]);
            process.admit(process.config().clock, Nanos::ZERO).expect("it is admitted");
        }
    }
    pair
}

/// Collects the frames that a process has to send, in vectors from `spare`.
fn transmit(process: &mut Process, now: Nanos, frames: &mut Vec<Vec<u8>>, spare: &mut Vec<Vec<u8>>) {
    loop {
        let mut frame = spare.pop().expect("enough spare vectors");
        if !process.poll_transmit(now, &mut frame) {
            spare.push(frame);
            return;
        }
        frames.push(frame);
    }
}

/// Runs a turn of the sender: it sends what is waiting and a burst of messages, immediately where possible,
/// and handles events. Returns how many messages have settled without failure.
fn send(
    process: &mut Process,
    service: Service,
    now: Nanos,
    frames: &mut Vec<Vec<u8>>,
    spare: &mut Vec<Vec<u8>>,
) -> usize {
    if process.next_timer().is_some_and(|at| at <= now) {
        process.on_timer(now);
    }
    transmit(process, now, frames, spare);
    let dst = process.config().peers[0].id;
    for _ in 0..BURST {
        let mut frame = spare.pop().expect("enough spare vectors");
        let at_once = match service {
            Service::BestEffort => process.send_at_once(now, dst, &PAYLOAD, &mut frame),
            Service::Reliable => process.reliable_send_at_once(now, dst, &PAYLOAD, &mut frame),
        };
        if at_once.is_some() {
            frames.push(frame);
            continue;
        }
        spare.push(frame);
        match service {
            Service::BestEffort => _ = process.unreliable_send(now, &[(dst, &PAYLOAD)]).expect("room"),
            Service::Reliable => _ = process.reliable_send(now, &[(dst, &PAYLOAD)]).expect("room"),
        }
    }
    transmit(process, now, frames, spare);
    count_settled(process, service)
}

/// Takes all events. Returns how many messages have settled without failure.
fn count_settled(process: &mut Process, service: Service) -> usize {
    match service {
        Service::BestEffort => {
            let settled = |event: &Event| matches!(event, Event::Settled { failed: 0, .. });
            core::iter::from_fn(|| process.poll_event()).filter(settled).count()
        }
        Service::Reliable => {
            let settled = |event: &ReliableEvent| matches!(event, ReliableEvent::Settled { failed: 0, .. });
            core::iter::from_fn(|| process.poll_reliable_event()).filter(settled).count()
        }
    }
}

/// Returns the next message.
fn next(process: &mut Process, service: Service) -> Option<Message> {
    match service {
        Service::BestEffort => process.unreliable_recv(),
        Service::Reliable => process.reliable_recv(),
    }
}

/// Runs a turn of the receiver. Returns how many messages were delivered.
fn receive(process: &mut Process, service: Service, now: Nanos, frames: &[Vec<u8>]) -> usize {
    for frame in frames {
        process.on_frame(frame, now).expect("the frame is accepted");
    }
    if process.next_timer().is_some_and(|at| at <= now) {
        process.on_timer(now);
    }
    let mut received = 0;
    while let Some(message) = next(process, service) {
        received += usize::from(message.payload == PAYLOAD);
        match service {
            Service::BestEffort => process.reuse_buffer(message.payload),
            Service::Reliable => process.reuse_reliable_buffer(message.payload),
        }
    }
    received
}

/// Runs both processes for `turns` turns. Returns the frames that each of them received in each turn, and how
/// many messages were delivered.
fn record(service: Service, turns: usize) -> ([Vec<Vec<Vec<u8>>>; 2], usize) {
    let [mut a, mut b] = process_pair(service);
    let mut spare: Vec<_> = (0..turns * (BURST + 8)).map(|_| Vec::with_capacity(256)).collect();
    let mut to_a: Vec<Vec<Vec<u8>>> = vec![Vec::new()];
    let mut to_b = Vec::new();
    let mut received = 0;
    for turn in 0..turns {
        for frame in to_a.last().expect("a vector was pushed") {
            a.on_frame(frame, at(turn)).expect("the frame is accepted");
        }
        let mut frames = Vec::new();
        send(&mut a, service, at(turn), &mut frames, &mut spare);
        received += receive(&mut b, service, at(turn), &frames);
        to_b.push(frames);
        let mut frames = Vec::new();
        transmit(&mut b, at(turn), &mut frames, &mut spare);
        to_a.push(frames);
    }
    ([to_a, to_b], received)
}

fn check_count(done: usize, wanted: usize, what: &str) -> Result<(), String> {
    if done >= wanted { Ok(()) } else { Err(format!("only {done} of {wanted} messages were {what}")) }
}

/// Sends messages, and handles the ACKs for earlier ones.
pub(crate) fn send_path(service: Service) -> Prepared {
    let turns = WARM_UP_TURNS + TURNS;
    let ([to_a, _], _) = record(service, turns);
    let [mut a, _] = process_pair(service);
    let mut spare: Vec<_> = (0..turns * (BURST + 8)).map(|_| Vec::with_capacity(256)).collect();
    let mut frames = Vec::with_capacity(spare.len());
    let mut turn = move |n: usize| {
        for frame in &to_a[n] {
            a.on_frame(frame, at(n)).expect("the frame is accepted");
        }
        send(&mut a, service, at(n), &mut frames, &mut spare)
    };
    (0..WARM_UP_TURNS).for_each(|n| _ = turn(n));
    let settled = Rc::new(Cell::new(0));
    let sum = Rc::clone(&settled);
    let work = move |n: usize| sum.set(sum.get() + turn(WARM_UP_TURNS + n));
    let wanted = (TURNS - 4) * BURST;
    let check = move || check_count(settled.get(), wanted, "settled");
    Prepared { work: Box::new(work), times: TURNS, units: TURNS * BURST, check: Box::new(check) }
}

/// Receives messages, and beacons by which they are delivered, and sends ACKs.
pub(crate) fn receive_path(service: Service) -> Prepared {
    let turns = WARM_UP_TURNS + TURNS;
    let ([_, to_b], received) = record(service, turns);
    assert!(received + 4 * BURST > turns * BURST, "only {received} messages were received");
    let [_, mut b] = process_pair(service);
    let mut spare: Vec<_> = (0..turns * 8).map(|_| Vec::with_capacity(256)).collect();
    let mut frames = Vec::with_capacity(spare.len());
    let mut turn = move |n: usize| {
        let received = receive(&mut b, service, at(n), &to_b[n]);
        transmit(&mut b, at(n), &mut frames, &mut spare);
        received
    };
    (0..WARM_UP_TURNS).for_each(|n| _ = turn(n));
    let received = Rc::new(Cell::new(0));
    let sum = Rc::clone(&received);
    let work = move |n: usize| sum.set(sum.get() + turn(WARM_UP_TURNS + n));
    let check = move || check_count(received.get(), (TURNS - 4) * BURST, "received");
    Prepared { work: Box::new(work), times: TURNS, units: TURNS * BURST, check: Box::new(check) }
}

/// Returns the host library's function, for a port that loops frames back: the process is its own peer, by
/// another number, and its own switch.
fn loopback() -> (Endpoint, ProcessFunction) {
    let own = peer(1, 1);
    Endpoint::without_threads(&config(own, peer(2, 1), own), true).expect("a valid configuration")
}

fn send_messages(endpoint: &mut Endpoint, messages: usize) {
    for _ in 0..messages {
        endpoint.unreliable_send(&[(ProcessId(2), &PAYLOAD)]).expect("room in the ring");
    }
}

/// Runs a turn of the polling thread: frames that were sent before are received, and a burst is sent.
fn turn(
    host: &mut ProcessFunction,
    n: usize,
    pool: &mut Pool,
    arrived: &mut Vec<switch::memory::MemoryFrame>,
) {
    core::mem::swap(&mut pool.sent, arrived);
    for frame in &mut *arrived {
        host.on_frame(frame, PortId(0), at(n), pool);
    }
    if host.next_timer().is_some_and(|due| due <= at(n)) {
        host.on_timer(at(n), pool);
    }
    pool.free.append(arrived);
}

/// Runs the turns of the polling thread, which sends and receives.
pub(crate) fn poll() -> Prepared {
    let (mut endpoint, mut host) = loopback();
    // With buffers for what was sent and what is received, a burst and some more frames leave in a turn.
    let mut pool = Pool::new(2 * BURST);
    let mut arrived = Vec::with_capacity(2 * BURST);
    send_messages(&mut endpoint, 2 * BURST * WARM_UP_TURNS);
    for n in 0..2 * WARM_UP_TURNS {
        turn(&mut host, n, &mut pool, &mut arrived);
        while endpoint.unreliable_recv().is_some() {}
        while endpoint.poll_event().is_some() {}
    }
    send_messages(&mut endpoint, TURNS * BURST);
    let before = endpoint.counters().delivered.get();
    let endpoint = Rc::new(endpoint);
    let counted = Rc::clone(&endpoint);
    let work = move |n: usize| turn(&mut host, 2 * WARM_UP_TURNS + n, &mut pool, &mut arrived);
    let check = move || {
        let delivered = counted.counters().delivered.get() - before;
        check_count(delivered as usize, TURNS * BURST, "delivered")
    };
    // Some beacons and ACKs are sent as well, so more turns are needed.
    Prepared { work: Box::new(work), times: TURNS * 5 / 4, units: TURNS * BURST, check: Box::new(check) }
}

/// Runs the work of the application's thread: it sends, receives and takes events.
pub(crate) fn application() -> Prepared {
    let (mut endpoint, mut host) = loopback();
    let mut pool = Pool::new(8 * TURNS * BURST);
    let mut arrived = Vec::with_capacity(8 * TURNS * BURST);
    send_messages(&mut endpoint, TURNS * BURST);
    for n in 0..4 * TURNS {
        turn(&mut host, n, &mut pool, &mut arrived);
    }
    let received = Rc::new(RefCell::new((0, 0)));
    let counted = Rc::clone(&received);
    let work = move |_: usize| {
        let mut counted = counted.borrow_mut();
        send_messages(&mut endpoint, BURST);
        for _ in 0..BURST {
            counted.0 += usize::from(endpoint.unreliable_recv().is_some());
            counted.1 += usize::from(endpoint.poll_event().is_some());
        }
    };
    let check = move || {
        let (messages, events) = *received.borrow();
        // Events that do not fit into their ring have to wait.
        check_count(messages, TURNS * BURST, "received").and_then(|()| check_count(events, 4096, "settled"))
    };
    Prepared { work: Box::new(work), times: TURNS, units: TURNS * BURST, check: Box::new(check) }
}
