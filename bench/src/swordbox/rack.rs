//! Clients and a memory server in memory, with a Swordbox between them: brings the Swordbox into the state
//! from which the measured traffic starts.

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
use switch::forward::config::ForwardingMode;
use switch::memory::run_frame;
use switch::{Function as _, Nanos, PortId};
use swordbox::{Command, Config, Event, Layers, Server, Swordbox, WordTable};

/// Shared connections
pub(super) const SHARED_QPS: usize = 4;
/// Remote key of the server's region
const RKEY: u32 = 0x77;
/// Address of the words that clients contend for
const TABLE: u64 = 0x1000_0000;
/// Address of memory that is not shared
const UNSHARED: u64 = 0x2000_0000;
/// Machines on which the clients run
const MACHINES: u32 = 64;
const SERVER_MAC: MacAddr = MacAddr([2, 0, 0, 0, 0, 1]);
/// Lines at the beginning of the table that are not measured
const UNMEASURED: u64 = 64;

/// Returns the address of line `n`.
const fn line_address(n: u64) -> u64 {
    TABLE + (UNMEASURED + n) * 64
}

/// Returns the address of a worker's server.
const fn server_of(worker: u8) -> [u8; 4] {
    [10, 0, 0, 1 + worker]
}

/// Returns the server's queue pair for client `n`, and the client's own.
const fn qpns(n: u32) -> (Qpn, Qpn) {
    (Qpn::new(0x10_0000 + n), Qpn::new(0x100 + n))
}

const fn client_of(server: Qpn) -> u32 {
    server.get() - 0x10_0000
}

/// A request.
#[derive(Clone, Copy, Debug)]
pub(super) enum Request {
    Cas {
        va: u64,
        compare: u64,
        swap: u64,
    },
    /// WRITE of 64 bytes
    Write {
        va: u64,
    },
}

/// Returns a frame between client `n` and a worker's server, in either direction.
fn frame(worker: u8, n: u32, to_server: bool, bth: Bth, extended: Extended, payload: &[u8]) -> Vec<u8> {
    let machine = (n % MACHINES) as u8;
    let client = ([10, 0, 1, machine], MacAddr([2, 0, 0, 0, 1, machine]));
    let server = (server_of(worker), SERVER_MAC);
    let ((src, src_mac), (dst, dst_mac)) = if to_server { (client, server) } else { (server, client) };
    let ethernet = Ethernet { dst: dst_mac, src: src_mac, ethertype: ethertype::IPV4.into() };
    let ip = Ip::V4(Ipv4 { src, dst, ..Ipv4::default() }, &[]);
    let mut repr = Repr { extended, payload, ..Repr::new(ethernet, ip, bth) };
    repr.udp.src_port = (0xc000 | (n & 0x3fff) as u16).into();
    repr.udp.dst_port = rocev2::UDP_PORT.into();
    let mut frame = vec![0; repr.frame_len()];
    repr.build(&mut frame).expect("a frame of the right length");
    frame
}

/// Returns a request of client `n` to a worker's server.
pub(super) fn request_frame(worker: u8, n: u32, psn: Psn, request: Request) -> Vec<u8> {
    let (server, _) = qpns(n);
    let (opcode, mut extended, payload) = (
        match request {
            Request::Cas { .. } => Opcode::RC_COMPARE_SWAP,
            Request::Write { .. } => Opcode::RC_WRITE_ONLY,
        },
        Extended::default(),
        [n as u8; 64],
    );
    match request {
        Request::Cas { va, compare, swap } => {
            extended.atomic = AtomicEth {
                va: va.into(),
                rkey: RKEY.into(),
                swap_or_add: swap.into(),
                compare: compare.into(),
            };
        }
        Request::Write { va } => extended.reth = Reth { va: va.into(), rkey: RKEY.into(), len: 64.into() },
    }
    let mut bth = Bth::new(opcode, server, psn);
    bth.set_ack_req(true);
    frame(
        worker,
        n,
        true,
        bth,
        extended,
        if matches!(request, Request::Write { .. }) { &payload } else { &[] },
    )
}

/// Returns the server's response to client `n`; to an atomic, with the original value.
pub(super) fn response_frame(worker: u8, n: u32, psn: Psn, msn: Msn, original: Option<u64>) -> Vec<u8> {
    let aeth = zerocopy::transmute!(Aeth::new(Syndrome::Ack(Credit::UNLIMITED), msn));
    let mut extended = Extended { aeth, ..Extended::default() };
    let opcode = match original {
        Some(original) => {
            extended.atomic_ack = AtomicAckEth { original: original.into() };
            Opcode::RC_ATOMIC_ACKNOWLEDGE
        }
        None => Opcode::RC_ACKNOWLEDGE,
    };
    frame(worker, n, false, Bth::new(opcode, qpns(n).1, psn), extended, &[])
}

/// Returns the two messages with which the connection manager establishes a connection, both with the
/// starting PSN `psn`.
fn handshake(worker: u8, n: u32, psn: Psn) -> [Vec<u8>; 2] {
    let (server, client) = qpns(n);
    let (mut req, mut rep) = (cm::Req::zeroed(), cm::Rep::zeroed());
    req.local_comm_id = (n + 1).into();
    req.set_qpn(client);
    req.set_starting_psn(psn);
    // Path MTU of 1,024 bytes
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
        frame(worker, n, to_server, Bth::new(Opcode::UD_SEND_ONLY, Qpn::GSI, Psn::ZERO), extended, mad)
    };
    [datagram(true, &mads[0]), datagram(false, &mads[1])]
}

/// The server's state of a queue pair.
#[derive(Clone, Copy, Debug)]
struct QueuePair {
    expected: Psn,
    done: Msn,
}

/// Clients, a Swordbox and a server. Frames pass through without delay.
pub(super) struct Rack {
    worker: u8,
    pub(super) function: Swordbox,
    pub(super) now: Nanos,
    queue_pairs: Vec<QueuePair>,
    memory: HashMap<u64, u64>,
    /// Next PSN of each client
    next_psn: Vec<Psn>,
    /// Clients whose connections are shared, in the order in which they were shared
    pub(super) owners: Vec<u32>,
    /// Addresses of lines, by shared connection
    pub(super) lines: Vec<Vec<u64>>,
}

impl Rack {
    /// Creates a rack of a worker, one of `workers`, with `clients` clients of the worker's server, all of which are connected and have used the server's memory on
    /// their own connections. There are `lines` lines on each shared connection, whose words' values are
    /// cached, and additional clients whose connections are shared. The next request of each client, and the
    /// next on each shared connection, has PSN 0.
    pub(super) fn new((worker, workers): (u8, u8), clients: u32, lines: usize) -> Self {
        // A first run counts the requests that it takes; the second starts at the PSNs from which they end at
        // 0.
        let first =
            Self::begin((worker, workers), clients, lines, &vec![Psn::ZERO; clients as usize + SHARED_QPS]);
        let begin: Vec<_> = first.queue_pairs.iter().map(|qp| Psn::ZERO.sub(qp.expected.get())).collect();
        Self::begin((worker, workers), clients, lines, &begin)
    }

    fn begin((worker, workers): (u8, u8), clients: u32, lines: usize, first: &[Psn]) -> Self {
        let all = clients + SHARED_QPS as u32;
        let config = config(workers, all, lines * SHARED_QPS);
        let settle = config.settle;
        let mut rack = Self {
            worker,
            function: Swordbox::of_worker(config, worker.into(), workers.into()),
            now: Nanos::ZERO,
            queue_pairs: first.iter().map(|psn| QueuePair { expected: *psn, done: Msn::ZERO }).collect(),
            memory: HashMap::new(),
            next_psn: first.to_vec(),
            owners: Vec::new(),
            lines: vec![Vec::new(); SHARED_QPS],
        };
        // A connection shares only connections that were made before it: the server of a later one may have
        // restarted meanwhile.
        for n in (clients..all).rev().chain(0..clients) {
            for frame in handshake(worker, n, first[n as usize]) {
                rack.relay(&frame);
            }
            // These requests prove that the client has the key. The second addresses a word that may be
            // contended for, so the Swordbox requests permission to let the connection's sides differ.
            rack.execute(n, Request::Write { va: UNSHARED });
            rack.execute(n, Request::Cas { va: TABLE, compare: 0, swap: 0 });
        }
        for shared_qp in 0..SHARED_QPS as u32 {
            let va = TABLE + u64::from(1 + shared_qp) * 64;
            rack.execute(clients + shared_qp, Request::Cas { va, compare: 0, swap: 0 });
        }
        let shared = rack.function.usage()[1];
        assert_eq!(shared, SHARED_QPS, "all shared connections exist");
        rack.owners = (clients..all).collect();
        for n in 0.. {
            if rack.lines.iter().all(|own| own.len() == lines) {
                break;
            }
            let owner = rack.execute(clients, Request::Cas { va: line_address(n), compare: 0, swap: 0 });
            let shared_qp =
                rack.owners.iter().position(|candidate| *candidate == owner).expect("a shared connection");
            if rack.lines[shared_qp].len() < lines {
                rack.lines[shared_qp].push(line_address(n));
            }
        }
        // After the settling time, no earlier request can be in flight to the lines.
        rack.now = rack.now + settle + settle;
        for va in rack.lines.concat() {
            rack.execute(clients, Request::Cas { va, compare: 0, swap: 0 });
        }
        rack
    }

    /// Sends a request of a client and passes the response to it. Returns the client whose connection it went
    /// over.
    fn execute(&mut self, n: u32, request: Request) -> u32 {
        let psn = self.next_psn[n as usize];
        self.next_psn[n as usize] = psn.add(1);
        let to_server = self.relay(&request_frame(self.worker, n, psn, request));
        let [request] = &to_server[..] else { panic!("{} frames for a request", to_server.len()) };
        let (owner, response) = self.serve(request);
        let to_client = self.relay(&response);
        let [response] = &to_client[..] else { panic!("{} frames for a response", to_client.len()) };
        let packet = Packet::parse(response).expect("a response");
        assert_eq!(
            (packet.bth().dest_qp(), packet.bth().psn()),
            (qpns(n).1, psn),
            "the response of the request"
        );
        owner
    }

    /// Passes a frame through the Swordbox. The control plane grants every requested permission. Returns the
    /// frames that the Swordbox sends.
    pub(super) fn relay(&mut self, frame: &[u8]) -> Vec<Vec<u8>> {
        self.now = self.now + Nanos(10);
        let (_, frames) = run_frame(&mut self.function, frame, PortId(0), self.now);
        while let Some(event) = self.function.poll_event() {
            if let Event::TranslationRequested(connection) = event {
                self.function.on_command(Command::PermitTranslation(connection), self.now);
            }
        }
        frames.into_iter().map(|(frame, _)| frame).collect()
    }

    /// Executes a request at the server. Returns the client whose connection it arrived on, and the response.
    fn serve(&mut self, frame: &[u8]) -> (u32, Vec<u8>) {
        let packet = Packet::parse(frame).expect("a request");
        assert!(packet.verify_icrc(), "the ICRC is valid");
        let n = client_of(packet.bth().dest_qp());
        let qp = &mut self.queue_pairs[n as usize];
        assert_eq!(packet.bth().psn(), qp.expected, "a request in order");
        let psn = qp.expected;
        *qp = QueuePair { expected: psn.add(1), done: qp.done.add(1) };
        let original = packet.atomic().map(|atomic| {
            let word = self.memory.entry(atomic.va.get()).or_default();
            let original = *word;
            if original == atomic.compare.get() {
                *word = atomic.swap_or_add.get();
            }
            original
        });
        (n, response_frame(self.worker, n, psn, qp.done, original))
    }
}

/// Returns the default configuration, with a server for each worker, and room for this many connections and lines.
fn config(workers: u8, connections: u32, lines: usize) -> Config {
    let forward = ForwardConfig {
        mode: ForwardingMode::Pairs(vec![(PortId(0), PortId(0))]),
        ..ForwardConfig::bridge(1, 16)
    };
    let base = Config::new(forward);
    let table = WordTable { rkey: None, range: TABLE..UNSHARED, stride: 8, writable: true };
    let server = |worker| Server {
        tables: vec![table.clone()],
        client_owned_qps: SHARED_QPS,
        ..Server::new(server_of(worker).into())
    };
    Config {
        connections: base.connections.max(connections as usize),
        lines: base.lines.max(4 * lines),
        servers: (0..workers).map(server).collect(),
        layers: Layers::CAS_TO_WRITE,
        ..base
    }
}
