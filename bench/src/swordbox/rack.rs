//! Clients and a memory server in memory, and a Swordbox between them: what leads to the traffic that is measured.

use rocev2::aeth::{Aeth, Credit, Syndrome};
use rocev2::atomic::{AtomicAckEth, AtomicEth};
use rocev2::cm::{self, MAD_LEN, MadHeader};
use rocev2::deth::Deth;
use rocev2::ethernet::{Ethernet, MacAddr, ethertype};
use rocev2::ipv4::Ipv4;
use rocev2::repr::{Extended, Ip, Repr};
use rocev2::reth::Reth;
use rocev2::{Bth, Msn, Opcode, Packet, Psn, Qpn};
use std::collections::HashMap;
use switch::forward::Config as ForwardConfig;
use switch::forward::config::Topology;
use switch::memory::run_frame;
use switch::{Function as _, Nanos, PortId};
use swordbox::{Command, Config, Event, Layers, Server, Swordbox, Table};

/// Shared connections
pub(super) const LANES: usize = 4;
/// The key of the server's region
const RKEY: u32 = 0x77;
/// Where words lie that clients contend for
const TABLE: u64 = 0x1000_0000;
/// Where nothing lies that is shared
const ELSEWHERE: u64 = 0x2000_0000;
/// Machines on which the clients run
const MACHINES: u32 = 64;
const SERVER: [u8; 4] = [10, 0, 0, 1];
const SERVER_MAC: MacAddr = MacAddr([2, 0, 0, 0, 0, 1]);
/// Lines of the table that are not measured, in front of those that are
const UNMEASURED: u64 = 64;

/// Where line `n` begins
const fn line(n: u64) -> u64 {
    TABLE + (UNMEASURED + n) * 64
}

/// The server's queue pair for client `n`, and the client's own
const fn qpns(n: u32) -> (Qpn, Qpn) {
    (Qpn::new(0x10_0000 + n), Qpn::new(0x100 + n))
}

const fn client_of(server: Qpn) -> u32 {
    server.get() - 0x10_0000
}

/// What a request asks for.
#[derive(Clone, Copy, Debug)]
pub(super) enum Ask {
    Cas {
        va: u64,
        compare: u64,
        swap: u64,
    },
    /// Of 64 bytes
    Write {
        va: u64,
    },
}

/// A frame between client `n` and the server, in either direction.
fn frame(n: u32, to_server: bool, bth: Bth, extended: Extended, payload: &[u8]) -> Vec<u8> {
    let machine = (n % MACHINES) as u8;
    let client = ([10, 0, 1, machine], MacAddr([2, 0, 0, 0, 1, machine]));
    let ((src, src_mac), (dst, dst_mac)) =
        if to_server { (client, (SERVER, SERVER_MAC)) } else { ((SERVER, SERVER_MAC), client) };
    let ethernet = Ethernet { dst: dst_mac, src: src_mac, ethertype: ethertype::IPV4.into() };
    let ip = Ip::V4(Ipv4 { src, dst, ..Ipv4::default() }, &[]);
    let mut repr = Repr { extended, payload, ..Repr::new(ethernet, ip, bth) };
    repr.udp.src_port = (0xc000 | (n & 0x3fff) as u16).into();
    repr.udp.dst_port = rocev2::UDP_PORT.into();
    let mut frame = vec![0; repr.frame_len()];
    repr.build(&mut frame).expect("a frame of the right length");
    frame
}

/// A request of client `n`.
pub(super) fn request(n: u32, psn: Psn, ask: Ask) -> Vec<u8> {
    let (server, _) = qpns(n);
    let (opcode, mut extended, payload) = (
        match ask {
            Ask::Cas { .. } => Opcode::RC_COMPARE_SWAP,
            Ask::Write { .. } => Opcode::RC_WRITE_ONLY,
        },
        Extended::default(),
        [n as u8; 64],
    );
    match ask {
        Ask::Cas { va, compare, swap } => {
            extended.atomic = AtomicEth {
                va: va.into(),
                rkey: RKEY.into(),
                swap_or_add: swap.into(),
                compare: compare.into(),
            };
        }
        Ask::Write { va } => extended.reth = Reth { va: va.into(), rkey: RKEY.into(), len: 64.into() },
    }
    let mut bth = Bth::new(opcode, server, psn);
    bth.set_ack_req(true);
    frame(n, true, bth, extended, if matches!(ask, Ask::Write { .. }) { &payload } else { &[] })
}

/// The server's answer to client `n`; to an atomic, with what it found.
pub(super) fn answer(n: u32, psn: Psn, msn: Msn, found: Option<u64>) -> Vec<u8> {
    let aeth = zerocopy::transmute!(Aeth::new(Syndrome::Ack(Credit::UNLIMITED), msn));
    let mut extended = Extended { aeth, ..Extended::default() };
    let opcode = match found {
        Some(found) => {
            extended.atomic_ack = AtomicAckEth { original: found.into() };
            Opcode::RC_ATOMIC_ACKNOWLEDGE
        }
        None => Opcode::RC_ACKNOWLEDGE,
    };
    frame(n, false, Bth::new(opcode, qpns(n).1, psn), extended, &[])
}

/// The two messages with which the connection manager makes a connection, both PSNs being `psn`.
fn handshake(n: u32, psn: Psn) -> [Vec<u8>; 2] {
    let (server, client) = qpns(n);
    let (mut req, mut rep) = (cm::Req::zeroed(), cm::Rep::zeroed());
    req.local_comm_id = (n + 1).into();
    req.set_qpn(client);
    req.set_starting_psn(psn);
    // 1,024 bytes
    req.mtu_rnr = 3 << 4;
    rep.local_comm_id = (n + 1).into();
    rep.remote_comm_id = (n + 1).into();
    rep.set_qpn(server);
    rep.set_starting_psn(psn);
    rep.responder_resources = 16;
    let mut mads = [[0; MAD_LEN]; 2];
    cm::emit(&MadHeader::new(cm::Kind::Req, u64::from(n) + 1), &req, &mut mads[0]);
    cm::emit(&MadHeader::new(cm::Kind::Rep, u64::from(n) + 1), &rep, &mut mads[1]);
    let datagram = |to_server: bool, mad: &[u8]| {
        let extended = Extended { deth: Deth::new(Deth::GSI_QKEY, Qpn::GSI), ..Extended::default() };
        frame(n, to_server, Bth::new(Opcode::UD_SEND_ONLY, Qpn::GSI, Psn::ZERO), extended, mad)
    };
    [datagram(true, &mads[0]), datagram(false, &mads[1])]
}

/// What the server knows of a queue pair.
#[derive(Clone, Copy, Debug)]
struct QueuePair {
    expected: Psn,
    done: Msn,
}

/// Clients, a Swordbox, a server: frames go through at once.
pub(super) struct Rack {
    pub(super) function: Swordbox,
    pub(super) now: Nanos,
    queue_pairs: Vec<QueuePair>,
    memory: HashMap<u64, u64>,
    /// The next PSN of each client
    next: Vec<Psn>,
    /// Whose connections are shared, in the order in which they came to be
    pub(super) owners: Vec<u32>,
    /// Lines by shared connection
    pub(super) lines: Vec<Vec<u64>>,
}

impl Rack {
    /// A rack of `clients`, all of which are connected and have used the server's memory on their own connections; `lines`
    /// lines on each shared connection, whose words are known; and beside them the clients whose connections are shared. The
    /// next request of each client, and the next on each shared connection, has PSN 0.
    pub(super) fn new(clients: u32, lines: usize) -> Self {
        // How many requests it takes until all is so is seen in a first run.
        let first = Self::begin(clients, lines, &vec![Psn::ZERO; clients as usize + LANES]);
        let begin: Vec<_> = first.queue_pairs.iter().map(|qp| Psn::ZERO.sub(qp.expected.get())).collect();
        Self::begin(clients, lines, &begin)
    }

    fn begin(clients: u32, lines: usize, first: &[Psn]) -> Self {
        let all = clients + LANES as u32;
        let config = config(all, lines * LANES);
        let settle = config.settle;
        let mut rack = Self {
            function: Swordbox::new(config),
            now: Nanos::ZERO,
            queue_pairs: first.iter().map(|psn| QueuePair { expected: *psn, done: Msn::ZERO }).collect(),
            memory: HashMap::new(),
            next: first.to_vec(),
            owners: Vec::new(),
            lines: vec![Vec::new(); LANES],
        };
        // Each shares connections of those before it: a later one may be to a server that has restarted since.
        for n in (clients..all).rev().chain(0..clients) {
            for frame in handshake(n, first[n as usize]) {
                rack.pass(&frame);
            }
            // With these it shows that it has the key. The second is on a word that may be contended for, so the Swordbox asks
            // whether the connection's sides may differ from then on.
            rack.ask(n, Ask::Write { va: ELSEWHERE });
            rack.ask(n, Ask::Cas { va: TABLE, compare: 0, swap: 0 });
        }
        for lane in 0..LANES as u32 {
            let va = TABLE + u64::from(1 + lane) * 64;
            rack.ask(clients + lane, Ask::Cas { va, compare: 0, swap: 0 });
        }
        let shared = rack.function.usage()[1];
        assert_eq!(shared, LANES, "connections are shared");
        rack.owners = (clients..all).collect();
        for n in 0.. {
            if rack.lines.iter().all(|own| own.len() == lines) {
                break;
            }
            let asked = rack.ask(clients, Ask::Cas { va: line(n), compare: 0, swap: 0 });
            let lane = rack.owners.iter().position(|owner| *owner == asked).expect("a shared connection");
            if rack.lines[lane].len() < lines {
                rack.lines[lane].push(line(n));
            }
        }
        // From now on it is known that nothing else is on its way to the lines.
        rack.now = rack.now + settle + settle;
        for va in rack.lines.concat() {
            rack.ask(clients, Ask::Cas { va, compare: 0, swap: 0 });
        }
        rack
    }

    /// A client asks for something and gets its answer; whose connection it went over.
    fn ask(&mut self, n: u32, ask: Ask) -> u32 {
        let psn = self.next[n as usize];
        self.next[n as usize] = psn.add(1);
        let to_server = self.pass(&request(n, psn, ask));
        let [request] = &to_server[..] else { panic!("{} frames for a request", to_server.len()) };
        let (whose, answer) = self.serve(request);
        let to_client = self.pass(&answer);
        let [answer] = &to_client[..] else { panic!("{} frames for an answer", to_client.len()) };
        let packet = Packet::parse(answer).expect("an answer");
        assert_eq!((packet.bth().dest_qp(), packet.bth().psn()), (qpns(n).1, psn), "its answer");
        whose
    }

    /// A frame goes through the Swordbox: what comes out. The control plane permits what it is asked for.
    pub(super) fn pass(&mut self, frame: &[u8]) -> Vec<Vec<u8>> {
        self.now = self.now + Nanos(10);
        let (_, frames) = run_frame(&mut self.function, frame, PortId(0), self.now);
        while let Some(event) = self.function.poll_event() {
            if let Event::TranslationRequested(connection) = event {
                self.function.on_command(Command::PermitTranslation(connection), self.now);
            }
        }
        frames.into_iter().map(|(frame, _)| frame).collect()
    }

    /// The server does what it is asked for: on whose connection, and its answer.
    fn serve(&mut self, frame: &[u8]) -> (u32, Vec<u8>) {
        let packet = Packet::parse(frame).expect("a request");
        assert!(packet.verify_icrc(), "its ICRC");
        let n = client_of(packet.bth().dest_qp());
        let qp = &mut self.queue_pairs[n as usize];
        assert_eq!(packet.bth().psn(), qp.expected, "a request in order");
        let psn = qp.expected;
        *qp = QueuePair { expected: psn.add(1), done: qp.done.add(1) };
        let found = packet.atomic().map(|atomic| {
            let word = self.memory.entry(atomic.va.get()).or_default();
            let found = *word;
            if found == atomic.compare.get() {
                *word = atomic.swap_or_add.get();
            }
            found
        });
        (n, answer(n, psn, qp.done, found))
    }
}

/// As users have it, with room for as many connections as there are.
fn config(connections: u32, lines: usize) -> Config {
    let forward = ForwardConfig {
        topology: Topology::Pairs(vec![(PortId(0), PortId(0))]),
        ..ForwardConfig::bridge(1, 16)
    };
    let base = Config::new(forward);
    let table = Table { rkey: None, range: TABLE..ELSEWHERE, stride: 8, writable: true };
    Config {
        connections: base.connections.max(connections as usize),
        lines: base.lines.max(4 * lines),
        servers: vec![Server { tables: vec![table], client_owned_qps: LANES, ..Server::new(SERVER.into()) }],
        layers: Layers::CAS_TO_WRITE,
        ..base
    }
}
