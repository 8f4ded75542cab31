//! Two clients and a memory server around a Swordbox. The input selects their packets: requests in order,
//! repeated and ahead of their turn; responses that are lost, late or forged; and bytes that are not packets.
//! The Swordbox does not panic, and its packets have correct checksums. No client gets an acknowledgement for
//! a request that it has not sent. No response is forged or stale with respect to the history of the server's
//! memory: an atomic or READ returns what the word held at a moment between its request and its response, an
//! atomic that changed the word did so once, in that interval, and a WRITE that is acknowledged was executed.
//!
//! In builds with debug assertions, the variable BUG names a bug to plant (`swordbox::Bug`).

use rocev2::aeth::Syndrome;
use rocev2::{Bth, Opcode, Packet, Psn, Qpn, icrc};
use std::collections::{HashMap, VecDeque};
use switch::memory::{FrameCollector, run_frame};
use switch::{Frame as _, Function as _, Nanos, PortId};
use swordbox::{Command, Config, Event, Layers, Server, Swordbox, WordTable};

const WORDS: u64 = 0x1000;
const RKEY: u32 = 7;
const SERVER: u8 = 9;
/// QPN of client 0 and of its peer queue pair at the server
const QPN: u32 = 0x10;
const FIRST: Psn = Psn::new(0xff_fff0);
/// Connections, and tracked words, of a large table
const LARGE_TABLE: usize = 1024;
/// Longest time that a request may take to the server
const SETTLE: Nanos = Nanos::from_micros(5);
/// Queue pairs to which one step of the input sends a packet, from a host without a connection
const FLOOD: u32 = 256;

/// Returns a packet from one host to another's queue pair, with correct checksums. `after_bth` follows the
/// BTH.
fn packet(from: u8, to: u8, qpn: u32, opcode: Opcode, psn: Psn, after_bth: &[u8]) -> Vec<u8> {
    let mut bth = bytes_of(opcode, qpn, psn);
    let padded = after_bth.len().next_multiple_of(4);
    bth[1] |= ((padded - after_bth.len()) as u8) << 4;
    let udp_len = (8 + Bth::LEN + padded + 4) as u16;
    let mut frame = [&[2, 0, 0, 0, 0, to][..], &[2, 0, 0, 0, 0, from], &[8, 0, 0x45, 0]].concat();
    frame.extend((udp_len + 20).to_be_bytes());
    frame.extend([0, 0, 0x40, 0, 64, 17, 0, 0, 10, 0, 0, from, 10, 0, 0, to]);
    let sum = rocev2::checksum::Sum::default().add(&frame[14..34]).checksum();
    frame[24..26].copy_from_slice(&sum.to_be_bytes());
    frame.extend([0xc0, from, 0x12, 0xb7]);
    frame.extend(udp_len.to_be_bytes());
    frame.extend([0, 0]);
    frame.extend(bth);
    frame.extend(after_bth);
    frame.resize(frame.len() + padded - after_bth.len(), 0);
    let icrc = icrc::compute_for(&frame[14..], false, 20);
    frame.extend(icrc.to_le_bytes());
    frame
}

fn bytes_of(opcode: Opcode, qpn: u32, psn: Psn) -> [u8; Bth::LEN] {
    let mut bth = Bth::new(opcode, Qpn::new(qpn), psn);
    bth.set_ack_req(true);
    let mut bytes = [0; Bth::LEN];
    bytes.copy_from_slice(zerocopy::IntoBytes::as_bytes(&bth));
    bytes
}

fn atomic(word: u64, swap: u64, compare: u64) -> Vec<u8> {
    [&(WORDS + word * 8).to_be_bytes()[..], &RKEY.to_be_bytes(), &swap.to_be_bytes(), &compare.to_be_bytes()]
        .concat()
}

fn reth(word: u64, len: u32) -> Vec<u8> {
    [&(WORDS + word * 8).to_be_bytes()[..], &RKEY.to_be_bytes(), &len.to_be_bytes()].concat()
}

/// A change of a word: its moment, and the values before and after
#[derive(Clone, Copy, Debug)]
struct Change {
    at: u64,
    old: u64,
    new: u64,
}

/// A memory server: an RC responder that keeps all results.
#[derive(Default)]
struct Memory {
    words: HashMap<u64, u64>,
    /// All changes of each word, in order
    changes: HashMap<u64, Vec<Change>>,
    /// Logical clock, which counts requests of clients and requests that the server has received
    clock: u64,
    expected: HashMap<u32, Psn>,
    msn: HashMap<u32, u32>,
    atomic_results: HashMap<(u32, u32), u64>,
}

impl Memory {
    fn put(&mut self, va: u64, value: u64) {
        let old = self.words.insert(va, value).unwrap_or(0);
        self.changes.entry(va).or_default().push(Change { at: self.clock, old, new: value });
    }

    fn changes(&self, va: u64) -> &[Change] {
        self.changes.get(&va).map_or(&[], Vec::as_slice)
    }

    /// Returns whether a word has held `value` at any moment from `since` on.
    fn has_held(&self, va: u64, value: u64, since: u64) -> bool {
        let changes = self.changes(va);
        let later = changes.partition_point(|change| change.at < since);
        let before = later.checked_sub(1).map_or(0, |last| changes[last].new);
        before == value || changes[later..].iter().any(|change| change.new == value)
    }

    /// Returns whether a word was changed from `old` to `new` at any moment from `since` on.
    fn was_changed(&self, va: u64, old: Option<u64>, new: u64, since: u64) -> bool {
        let matches = |change: &&Change| old.is_none_or(|old| old == change.old) && change.new == new;
        self.changes(va).iter().rev().take_while(|change| change.at >= since).any(|change| matches(&change))
    }

    /// Returns the response to a request to queue pair `qpn`, which is connected to the client of the same
    /// number.
    fn execute(&mut self, packet: &Packet<'_>) -> Option<Vec<u8>> {
        let bth = packet.bth();
        let (qpn, psn) = (bth.dest_qp().get(), bth.psn());
        if !(QPN + 1..=QPN + 2).contains(&qpn) {
            return None;
        }
        let expected = *self.expected.entry(qpn).or_insert(FIRST);
        let ahead = psn.distance(expected);
        let client = (qpn - QPN) as u8;
        // A connected queue pair accepts requests only from its peer's address (IB 9.6.1.2).
        if packet.src() != core::net::IpAddr::from([10, 0, 0, client]) {
            return None;
        }
        self.clock += 1;
        let respond = |opcode, psn, syndrome: u8, msn: u32, more: &[u8]| {
            let after_bth = [&[syndrome][..], &msn.to_be_bytes()[1..], more].concat();
            Some(self::packet(SERVER, client, qpn, opcode, psn, &after_bth))
        };
        let msn = self.msn.entry(qpn).or_default();
        if ahead > 0 {
            return respond(Opcode::RC_ACKNOWLEDGE, expected, 0x60, *msn, &[]);
        }
        let fresh = ahead == 0;
        if fresh {
            self.expected.insert(qpn, expected.add(1));
            *msn += 1;
        }
        let msn = *msn;
        match bth.opcode() {
            Opcode::RC_COMPARE_SWAP | Opcode::RC_FETCH_ADD => {
                let eth = packet.atomic()?;
                let va = eth.va.get();
                if fresh {
                    let old = self.words.get(&va).copied().unwrap_or(0);
                    let new = if bth.opcode() == Opcode::RC_FETCH_ADD {
                        old.wrapping_add(eth.swap_or_add.get())
                    } else if old == eth.compare.get() {
                        eth.swap_or_add.get()
                    } else {
                        old
                    };
                    self.put(va, new);
                    self.atomic_results.insert((qpn, psn.get()), old);
                }
                let old = self.atomic_results.get(&(qpn, psn.get()))?.to_be_bytes();
                respond(Opcode::RC_ATOMIC_ACKNOWLEDGE, psn, 0x1f, msn, &old)
            }
            Opcode::RC_WRITE_ONLY => {
                if fresh && let Some(word) = packet.payload().first_chunk() {
                    self.put(packet.reth()?.va.get(), u64::from_le_bytes(*word));
                }
                respond(Opcode::RC_ACKNOWLEDGE, if fresh { psn } else { expected.sub(1) }, 0x1f, msn, &[])
            }
            Opcode::RC_READ_REQUEST => {
                let word = self.words.get(&packet.reth()?.va.get()).copied().unwrap_or(0).to_le_bytes();
                respond(Opcode::RC_READ_RESPONSE_ONLY, psn, 0x1f, msn, &word)
            }
            _ => respond(Opcode::RC_ACKNOWLEDGE, psn, 0x1f, msn, &[]),
        }
    }
}

/// Returns the bug that the variable BUG names.
///
/// Panics if there is no such bug.
fn planted() -> Option<swordbox::Bug> {
    let name = std::env::var("BUG").ok()?;
    let bug = swordbox::Bug::ALL.into_iter().find(|bug| format!("{bug:?}") == name);
    Some(bug.expect("BUG has to name a variant of swordbox::Bug"))
}

struct Net {
    function: Swordbox,
    memory: Memory,
    /// Requests of each client, by PSN
    sent: [Vec<Vec<u8>>; 2],
    /// The moment of each of these requests, and how many of them were acknowledged
    requested_at: [Vec<u64>; 2],
    acknowledged: [usize; 2],
    /// Frames in flight to the server, with the time at which each was sent, and to the clients
    to_server: VecDeque<(Nanos, Vec<u8>)>,
    to_clients: VecDeque<Vec<u8>>,
    now: Nanos,
    /// Number of unknown queue pairs to which packets were sent
    flood: u32,
    connections: usize,
}

impl Net {
    fn new(how: u8) -> Self {
        let table = WordTable { rkey: None, range: WORDS..WORDS + 64, stride: 8, writable: how & 1 != 0 };
        let server = Server {
            tables: vec![table],
            rd_atomic: 1 + (how >> 1 & 3),
            ..Server::new([10, 0, 0, SERVER].into())
        };
        let function = Swordbox::new(Config {
            servers: vec![server],
            layers: if how & 8 == 0 {
                Layers::CAS_TO_WRITE
            } else {
                Layers { cas_to_write: false, ..Layers::CAS_TO_WRITE }
            },
            // Small tables are full at once; large ones are filled by `flood`.
            connections: if how & 32 == 0 { 4 } else { LARGE_TABLE },
            per_host: if how & 32 == 0 { 16_384 } else { LARGE_TABLE },
            in_flight: 16,
            lines: if how & 32 == 0 { 8 } else { LARGE_TABLE },
            held: 8,
            settle: SETTLE,
            bug: planted(),
            ageing: if how & 32 == 0 { Nanos::from_secs(600) } else { Nanos::from_millis(2) },
            failed_cas: if how & 16 == 0 { swordbox::FailedCas::Write } else { swordbox::FailedCas::Respond },
            ..Config::new(switch::forward::Config::bridge(3, 8))
        });
        Self {
            function,
            memory: Memory::default(),
            sent: [Vec::new(), Vec::new()],
            requested_at: [Vec::new(), Vec::new()],
            acknowledged: [0; 2],
            to_server: VecDeque::new(),
            to_clients: VecDeque::new(),
            now: Nanos::ZERO,
            flood: 0,
            connections: if how & 32 == 0 { 4 } else { LARGE_TABLE },
        }
    }

    /// Sends packets to unknown queue pairs: from a host to the server or, with `responses`, to a client in the
    /// server's name.
    fn flood(&mut self, responses: bool) {
        let after_bth = if responses { &[0, 0, 0, 1][..] } else { &[0; 8] };
        let (from, to, port) = if responses { (SERVER, 1, 0) } else { (3, SERVER, 2) };
        let opcode = if responses { Opcode::RC_ACKNOWLEDGE } else { Opcode::RC_SEND_ONLY };
        for _ in 0..FLOOD {
            self.flood += 1;
            let frame =
                packet(from, to, 0x1000 + self.flood % 0x1000, opcode, Psn::new(self.flood), after_bth);
            self.put(&frame, port);
        }
    }

    fn put(&mut self, frame: &[u8], port: u16) {
        let (verdict, frames) = run_frame(&mut self.function, frame, PortId(port), self.now);
        let _ = verdict;
        self.check_sent(frames.into_iter().map(|(frame, _)| frame));
    }

    /// Checks the frames that the Swordbox sent, and queues those to the server.
    fn check_sent(&mut self, frames: impl Iterator<Item = Vec<u8>>) {
        for frame in frames {
            let Some(packet) = Packet::parse(&frame) else { continue };
            if packet.dst() == core::net::IpAddr::from([10, 0, 0, SERVER]) {
                if packet.verify_icrc() && self.to_server.len() < 64 {
                    self.to_server.push_back((self.now, frame));
                }
                continue;
            }
            if packet.src() != core::net::IpAddr::from([10, 0, 0, SERVER]) {
                continue;
            }
            let client = packet.bth().dest_qp().get();
            if !(QPN + 1..=QPN + 2).contains(&client) || !packet.verify_icrc() {
                continue;
            }
            let sent = &self.sent[(client - QPN) as usize - 1];
            let number = packet.bth().psn().distance(FIRST);
            let acknowledges = packet.aeth().is_some_and(|aeth| matches!(aeth.kind(), Syndrome::Ack(_)));
            assert!(
                !acknowledges || number < sent.len() as i32,
                "client {client} got an ACK for request {number}, which it has not sent"
            );
            let Ok(number) = usize::try_from(number) else { continue };
            if number < sent.len() && acknowledges {
                self.check(client, number, &packet);
            }
        }
    }

    /// Checks a response, and the WRITEs before it that it acknowledges, against the history of the memory.
    fn check(&mut self, client: u32, number: usize, response: &Packet<'_>) {
        let side = (client - QPN) as usize - 1;
        let (memory, requested_at) = (&self.memory, &self.requested_at[side]);
        let request = |number: usize| Packet::parse(&self.sent[side][number]).expect("clients send packets");
        let since = self.acknowledged[side];
        for (number, requested_at) in (since..=number).zip(&requested_at[since..]) {
            let request = request(number);
            if request.bth().opcode() == Opcode::RC_WRITE_ONLY
                && let (Some(reth), Some(word)) = (request.reth(), request.payload().first_chunk())
            {
                let (va, value) = (reth.va.get(), u64::from_le_bytes(*word));
                let is_done = memory.was_changed(va, None, value, *requested_at);
                assert!(
                    is_done,
                    "client {client} got an ACK for a WRITE of {value:#x} to {va:#x} that was not executed"
                );
            }
        }
        self.acknowledged[side] = self.acknowledged[side].max(number + 1);
        let (request, requested_at) = (request(number), requested_at[number]);
        if let (Some(found), Some(atomic)) = (response.atomic_ack(), request.atomic()) {
            let (va, old) = (atomic.va.get(), found.original.get());
            let new = match request.bth().opcode() {
                Opcode::RC_FETCH_ADD => old.wrapping_add(atomic.swap_or_add.get()),
                _ if old == atomic.compare.get() => atomic.swap_or_add.get(),
                _ => old,
            };
            let is_right = if new == old {
                memory.has_held(va, old, requested_at)
            } else {
                memory.was_changed(va, Some(old), new, requested_at)
            };
            let changes = memory.changes(va);
            assert!(
                is_right,
                "client {client}: {va:#x} did not change from {old:#x} to {new:#x}: {changes:x?}"
            );
        }
        if response.bth().opcode() == Opcode::RC_READ_RESPONSE_ONLY
            && request.bth().opcode() == Opcode::RC_READ_REQUEST
            && let (Some(reth), Some(word)) = (request.reth(), response.payload().first_chunk())
        {
            let (va, value) = (reth.va.get(), u64::from_le_bytes(*word));
            assert!(
                memory.has_held(va, value, requested_at),
                "client {client} read a stale value {value:#x} at {va:#x}"
            );
        }
    }

    /// Drops frames that would take longer to the server than allowed.
    fn drop_late(&mut self) {
        while self.to_server.front().is_some_and(|(since, _)| *since + SETTLE <= self.now) {
            self.to_server.pop_front();
        }
    }

    fn serve(&mut self) {
        let Some((_, frame)) = self.to_server.pop_front() else { return };
        if let Some(packet) = Packet::parse(&frame)
            && let Some(response) = self.memory.execute(&packet)
            && self.to_clients.len() < 64
        {
            self.to_clients.push_back(response);
        }
    }

    fn request(&mut self, client: usize, kind: u8, word: u64) {
        let (from, sent) = (client as u8 + 1, self.sent[client].len() as u32);
        if sent > 400 {
            return;
        }
        let unique = (u64::from(from) << 32) | (u64::from(sent) + 1);
        let (opcode, after_bth) = match kind & 7 {
            0..3 => (
                Opcode::RC_COMPARE_SWAP,
                atomic(word, unique, self.memory.words.get(&(WORDS + word * 8)).copied().unwrap_or(0)),
            ),
            3 => (Opcode::RC_FETCH_ADD, atomic(word, 1, 0)),
            4 => (Opcode::RC_WRITE_ONLY, [reth(word, 8), unique.to_le_bytes().to_vec()].concat()),
            5 => (Opcode::RC_READ_REQUEST, reth(word, 8)),
            6 => (Opcode::RC_SEND_ONLY, unique.to_le_bytes().to_vec()),
            _ => (Opcode::RC_WRITE_ONLY, [reth(100 + word, 8), unique.to_le_bytes().to_vec()].concat()),
        };
        let frame = packet(from, SERVER, QPN + u32::from(from), opcode, FIRST.add(sent), &after_bth);
        self.memory.clock += 1;
        self.sent[client].push(frame.clone());
        self.requested_at[client].push(self.memory.clock);
        self.put(&frame, from.into());
    }
}

/// Runs one input.
pub(crate) fn run(input: &[u8]) {
    let Some((&how, mut rest)) = input.split_first() else { return };
    let mut net = Net::new(how);
    while let Some((&[what, more], after)) = rest.split_first_chunk() {
        rest = after;
        let client = usize::from(what >> 7);
        match what & 15 {
            0..5 => net.request(client, more, u64::from(more >> 5)),
            5..8 => net.serve(),
            8..10 => {
                if let Some(frame) = net.to_clients.pop_front() {
                    net.put(&frame, 0);
                }
            }
            // Retransmits from one of the last requests on.
            10 => {
                let from = net.sent[client].len().saturating_sub(usize::from(more & 7) + 1);
                for at in from..net.sent[client].len() {
                    let frame = net.sent[client][at].clone();
                    net.put(&frame, client as u16 + 1);
                }
            }
            11 => _ = net.to_server.pop_front(),
            12 => _ = net.to_clients.pop_front(),
            13 => {
                net.now = net.now + Nanos(u64::from(more) << 12);
                let mut out = FrameCollector::with_room(64);
                let counters = net.function.counters();
                let before = counters.forgotten.get();
                net.function.on_timer(net.now, &mut out);
                // A tick examines 64 connection ends, and with each the other end of its connection.
                let forgotten = counters.forgotten.get() - before;
                assert!(forgotten <= 128, "{forgotten} ends were removed in one tick");
                net.check_sent(out.frames.into_iter().map(|(frame, _)| frame.bytes().to_vec()));
                // Ageing takes longer than any packet is in flight, and longer than Swordbox retransmits.
                if forgotten > 0 {
                    net.to_server.clear();
                    net.to_clients.clear();
                }
            }
            14 => {
                // Forged packets that a receiver can detect: a response from another host, or to a request
                // that was not sent; a request of another host on this connection
                let psn = FIRST.add(u32::from(more));
                let syndrome = (more & 3) << 5;
                let (frame, port) = match more >> 6 {
                    0 => (packet(3, 1, QPN + 1, Opcode::RC_ACKNOWLEDGE, psn, &[syndrome, 0, 0, 1]), 2),
                    1 => (
                        packet(SERVER, 1, QPN + 1, Opcode::RC_ACKNOWLEDGE, psn.add(5000), &[0x60, 0, 0, 1]),
                        0,
                    ),
                    2 => {
                        net.flood(more & 1 != 0);
                        continue;
                    }
                    _ => (packet(3, SERVER, QPN + 1, Opcode::RC_COMPARE_SWAP, psn, &atomic(1, 0, 0)), 2),
                };
                net.put(&frame, port);
            }
            _ => {
                let len = usize::from(more).min(rest.len());
                let (frame, after) = rest.split_at(len);
                rest = after;
                net.put(frame, u16::from(what >> 6 & 1));
            }
        }
        while let Some(event) = net.function.poll_event() {
            if let Event::TranslationRequested(connection) = event {
                net.function.on_command(Command::PermitTranslation(connection), net.now);
            }
        }
        let [used, ..] = net.function.usage();
        assert!(used <= net.connections, "{used} connections in a table of {}", net.connections);
        net.now = net.now + Nanos(100);
        net.drop_late();
    }
}
