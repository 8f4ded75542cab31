//! A Swordbox driven frame by frame: what no simulated host would send, or would send only after ten minutes.

use rocev2::aeth::{Aeth, Credit, NakCode, Syndrome};
use rocev2::atomic::{AtomicAckEth, AtomicEth};
use rocev2::cm::{self, Dreq, Kind, MAD_LEN, MadHeader};
use rocev2::deth::Deth;
use rocev2::ethernet::{Ethernet, MacAddr, ethertype};
use rocev2::ipv4::Ipv4;
use rocev2::repr::{Ip, Repr};
use rocev2::reth::Reth;
use rocev2::{Bth, Msn, Opcode, Packet, Psn, Qpn};
use std::net::IpAddr;
use switch::drop::FaultSet;
use switch::forward::Config as ForwardConfig;
use switch::forward::config::Topology;
use switch::memory::{MemoryFrame, Sent, run_frame};
use switch::{Chance, Function, Nanos, PortId, Verdict};
use swordbox::{Command, Config, Connection, Event, FailedCas, Layers, Server, Swordbox, Table};
use zerocopy::{FromZeros, IntoBytes};

const SERVER: [u8; 4] = [10, 0, 0, 1];
const TABLE: u64 = 0x10_0000;
const KEY: u32 = 7;
const CLIENTS: PortId = PortId(0);
const SERVERS: PortId = PortId(1);

/// A client's queue pair, and the server's that it is connected to
#[derive(Clone, Copy)]
struct End {
    ip: [u8; 4],
    qpn: u32,
    server_qpn: u32,
    port: u16,
    psn: u32,
}

fn end(n: u8) -> End {
    let number = u32::from(n);
    End {
        ip: [10, 0, 1, n],
        qpn: 0x100 + number,
        server_qpn: 0x200 + number,
        port: 0xc000 + u16::from(n),
        psn: 0x10_0000 * number,
    }
}

fn frame(
    src: [u8; 4],
    dst: [u8; 4],
    port: u16,
    bth: Bth,
    change: impl FnOnce(&mut Repr<'_>),
    payload: &[u8],
) -> Vec<u8> {
    let mac = |ip: [u8; 4]| MacAddr([2, 0, ip[0], ip[1], ip[2], ip[3]]);
    let ethernet = Ethernet { dst: mac(dst), src: mac(src), ethertype: ethertype::IPV4.into() };
    let ip = Ipv4 {
        version_ihl: 0x45,
        tos: 0,
        total_len: 0.into(),
        id: 0.into(),
        flags_fragment: 0x4000.into(),
        ttl: 64,
        protocol: 17,
        checksum: 0.into(),
        src,
        dst,
    };
    let mut repr = Repr::new(ethernet, Ip::V4(ip, &[]), bth);
    repr.udp.src_port = port.into();
    repr.payload = payload;
    change(&mut repr);
    let mut bytes = vec![0; 8192];
    let len = repr.build(&mut bytes).unwrap();
    bytes.truncate(len);
    bytes
}

impl End {
    fn request(
        &self,
        opcode: Opcode,
        psn: u32,
        change: impl FnOnce(&mut Repr<'_>),
        payload: &[u8],
    ) -> Vec<u8> {
        let mut bth = Bth::new(opcode, Qpn::new(self.server_qpn), Psn::new(psn));
        bth.set_ack_req(true);
        frame(self.ip, SERVER, self.port, bth, change, payload)
    }

    fn cas(&self, psn: u32, va: u64, compare: u64, swap: u64) -> Vec<u8> {
        let atomic =
            AtomicEth { va: va.into(), rkey: KEY.into(), swap_or_add: swap.into(), compare: compare.into() };
        self.request(Opcode::RC_COMPARE_SWAP, psn, |repr| repr.extended.atomic = atomic, &[])
    }

    fn write(&self, psn: u32, va: u64, payload: &[u8]) -> Vec<u8> {
        let reth = Reth { va: va.into(), rkey: KEY.into(), len: (payload.len() as u32).into() };
        self.request(Opcode::RC_WRITE_ONLY, psn, |repr| repr.extended.reth = reth, payload)
    }

    /// The server's answer on this connection
    fn answer(&self, psn: u32, syndrome: Syndrome, found: Option<u64>) -> Vec<u8> {
        let opcode = if found.is_some() { Opcode::RC_ATOMIC_ACKNOWLEDGE } else { Opcode::RC_ACKNOWLEDGE };
        let bth = Bth::new(opcode, Qpn::new(self.qpn), Psn::new(psn));
        let change = |repr: &mut Repr<'_>| {
            repr.extended.aeth.copy_from_slice(Aeth::new(syndrome, Msn::new(psn)).as_bytes());
            repr.extended.atomic_ack = AtomicAckEth { original: found.unwrap_or(0).into() };
        };
        frame(SERVER, self.ip, 0xd000 + self.port % 100, bth, change, &[])
    }

    fn ack(&self, psn: u32) -> Vec<u8> {
        self.answer(psn, Syndrome::Ack(Credit(0x1f)), None)
    }
}

struct Net {
    swordbox: Swordbox,
    now: Nanos,
    events: Vec<Event>,
}

type Frames = Vec<(Vec<u8>, PortId)>;

impl Net {
    fn new(change: impl FnOnce(&mut Config)) -> Self {
        let mut config = Config::new(ForwardConfig {
            ports: 2,
            topology: Topology::Pairs(vec![(CLIENTS, SERVERS)]),
            drop: FaultSet::NONE,
            verify_icrc: false,
            verify_udp_checksum: false,
            counted_qps: 0,
        });
        let table = Table { rkey: None, range: TABLE..TABLE + 4096, stride: 8, writable: true };
        config.servers = vec![Server { tables: vec![table], rd_atomic: 4, ..Server::new(SERVER.into()) }];
        config.layers = Layers::CAS_TO_WRITE;
        config.connections = 64;
        change(&mut config);
        Self { swordbox: Swordbox::new(config), now: Nanos::from_millis(1), events: Vec::new() }
    }

    fn run(&mut self, bytes: &[u8], port: PortId) -> (Verdict, Frames) {
        self.now = self.now + Nanos(1000);
        let result = run_frame(&mut self.swordbox, bytes, port, self.now);
        self.permit();
        result
    }

    fn permit(&mut self) {
        while let Some(event) = self.swordbox.poll_event() {
            if let Event::Diverging(connection) = event {
                self.swordbox.on_command(Command::Permit(connection), self.now);
            }
            self.events.push(event);
        }
    }

    fn up(&mut self, bytes: &[u8]) -> Frames {
        self.run(bytes, CLIENTS).1
    }

    fn down(&mut self, bytes: &[u8]) -> Frames {
        self.run(bytes, SERVERS).1
    }

    /// Time passes; what timers send.
    fn pass(&mut self, time: Nanos) -> Frames {
        let end = self.now + time;
        let mut sent = Sent::with_room(usize::MAX);
        while let Some(next) = self.swordbox.next_timer().filter(|next| *next <= end) {
            self.now = self.now.max(next);
            self.swordbox.on_timer(self.now, &mut sent);
        }
        self.now = end;
        self.permit();
        sent.frames.into_iter().map(|(frame, port)| (frame.into_bytes(), port)).collect()
    }

    /// Makes a connection one whose sides may differ, whose keys are proven.
    fn connect(&mut self, end: &mut End) {
        for _ in 0..6 {
            assert_eq!(self.up(&end.write(end.psn, 0x8000_0000, &[0; 8])).len(), 1);
            assert_eq!(self.down(&end.ack(end.psn)).len(), 1);
            end.psn += 1;
        }
        let cas = end.cas(end.psn, TABLE + 2048, 1, 0);
        assert!(self.up(&cas) == [(cas, SERVERS)], "it goes as it is");
        self.down(&end.answer(end.psn, Syndrome::Ack(Credit(0x1f)), Some(0)));
        end.psn += 1;
        assert!(
            self.events
                .iter()
                .any(|event| matches!(event, Event::Diverging(new) if new.client.1 == Qpn::new(end.qpn)))
        );
    }

    /// An atomic goes as one, and teaches that the word holds 0.
    fn teach(&mut self, end: &mut End, owner: &mut End, va: u64) {
        self.pass(Nanos::from_millis(50));
        let sent = self.up(&end.cas(end.psn, va, 1, 1));
        assert_eq!(opcode(&sent[0].0), Opcode::RC_COMPARE_SWAP);
        let psn = psn(&sent[0].0);
        let owner = if owner.server_qpn == dest(&sent[0].0) { *owner } else { *end };
        self.down(&owner.answer(psn, Syndrome::Ack(Credit(0x1f)), Some(0)));
        end.psn += 1;
    }

    fn count(&self, name: &str) -> u64 {
        self.swordbox.counters().all().find(|(other, _)| *other == name).unwrap().1
    }
}

fn opcode(frame: &[u8]) -> Opcode {
    Packet::parse(frame).unwrap().bth().opcode()
}

fn psn(frame: &[u8]) -> u32 {
    Packet::parse(frame).unwrap().bth().psn().get()
}

fn dest(frame: &[u8]) -> u32 {
    Packet::parse(frame).unwrap().bth().dest_qp().get()
}

/// Two connections; the first owns the lane, the word at `TABLE` is known to hold 0.
fn two(change: impl FnOnce(&mut Config)) -> (Net, End, End) {
    let mut net = Net::new(|config| {
        config.servers[0].lanes = 1;
        change(config);
    });
    let (mut a, mut b) = (end(1), end(2));
    net.connect(&mut a);
    net.connect(&mut b);
    // The first atomic makes a line, which keeps quiet for a while.
    let sent = net.up(&a.cas(a.psn, TABLE, 1, 1));
    assert_eq!(dest(&sent[0].0), a.server_qpn);
    net.down(&a.answer(psn(&sent[0].0), Syndrome::Ack(Credit(0x1f)), Some(0)));
    a.psn += 1;
    let mut owner = a;
    net.teach(&mut a, &mut owner, TABLE);
    assert_eq!(net.count("learnt"), 1);
    (net, a, b)
}

/// A CAS leaves as a WRITE on the lane; its answer.
fn locked(net: &mut Net, whose: &mut End, owner: &End, compare: u64, swap: u64) -> Frames {
    let sent = net.up(&whose.cas(whose.psn, TABLE, compare, swap));
    assert_eq!((opcode(&sent[0].0), dest(&sent[0].0)), (Opcode::RC_WRITE_ONLY, owner.server_qpn));
    whose.psn += 1;
    net.down(&owner.ack(psn(&sent[0].0)))
}

#[test]
fn a_lock_works() {
    let (mut net, mut a, mut b) = two(|_| {});
    let owner = a;
    let sent = locked(&mut net, &mut b, &owner, 0, 5);
    assert_eq!((opcode(&sent[0].0), dest(&sent[0].0)), (Opcode::RC_ATOMIC_ACKNOWLEDGE, b.qpn));
    let sent = locked(&mut net, &mut a, &owner, 0, 6);
    let found = Packet::parse(&sent[0].0).unwrap().atomic_ack().unwrap().original.get();
    assert_eq!(found, 5);
}

/// A client whose requests all take another's connection never gets a frame on its own: it is not silent for that.
#[test]
fn a_client_that_only_takes_a_lane_is_not_forgotten() {
    let (mut net, a, mut b) = two(|config| config.ageing = Nanos::from_secs(1));
    let owner = a;
    for n in 0..40 {
        net.pass(Nanos::from_millis(100));
        let sent = locked(&mut net, &mut b, &owner, n, n + 1);
        assert_eq!((sent.len(), dest(&sent[0].0)), (1, b.qpn), "round {n}");
    }
}

/// Nor is the owner of a lane that others use.
#[test]
fn an_owner_that_is_silent_does_not_take_others_with_it() {
    let (mut net, a, mut b) = two(|config| config.ageing = Nanos::from_secs(1));
    let owner = a;
    for n in 0..40 {
        let sent = net.up(&b.cas(b.psn, TABLE, n, n + 1));
        assert_eq!(sent.len(), 1, "round {n}");
        // It is still under way when connections are looked through.
        net.pass(Nanos::from_millis(100));
        b.psn += 1;
        let answers = net.down(&owner.ack(psn(&sent[0].0)));
        assert_eq!(answers.len(), 1, "round {n}");
    }
}

/// A request to a client's queue pair, as from another queue pair of the server
#[test]
fn a_stray_request_to_a_client_does_not_take_its_end_away() {
    let (mut net, a, b) = two(|_| {});
    let bth = Bth::new(Opcode::RC_SEND_ONLY, Qpn::new(b.qpn), Psn::new(1));
    net.down(&frame(SERVER, b.ip, 0xffff, bth, |_| {}, &[0; 8]));
    let sent = net.up(&b.cas(b.psn, TABLE, 0, 5));
    for (sent, _) in sent {
        net.down(&a.ack(psn(&sent)));
    }
}

#[test]
fn a_write_to_the_last_bytes_there_are() {
    let (mut net, mut a, _) = two(|_| {});
    for (va, len) in [(u64::MAX - 63, 64), (u64::MAX, 1), (u64::MAX - 7, 8)] {
        assert_eq!(net.up(&a.write(a.psn, va, &vec![1; len])).len(), 1);
        net.down(&a.ack(a.psn));
        a.psn += 1;
    }
}

/// What is not understood takes a PSN at the server that nobody here knows of.
#[test]
fn an_opcode_that_is_not_known_does_not_reach_a_strict_connection() {
    let (mut net, a, _) = two(|_| {});
    let mut bytes = a.write(a.psn, TABLE, &[1; 8]);
    bytes[14 + 20 + 8] = 0x15;
    let sent = net.up(&bytes);
    assert_eq!(sent.len(), 0, "it would be taken for one of those that were promised");
}

/// To another connection it passes, and may have done anything.
#[test]
fn an_opcode_that_is_not_known_makes_everything_doubtful() {
    let (mut net, a, _) = two(|_| {});
    let mut bytes = end(9).write(0, TABLE, &[1; 8]);
    bytes[14 + 20 + 8] = 0x15;
    assert_eq!(net.up(&bytes).len(), 1);
    let sent = net.up(&a.cas(a.psn, TABLE, 0, 5));
    assert_eq!(opcode(&sent[0].0), Opcode::RC_COMPARE_SWAP);
}

/// A message's later packets may come long after the first.
#[test]
fn the_rest_of_a_message_is_a_detour_too() {
    let (mut net, mut a, mut b) = two(|_| {});
    let owner = a;
    // It begins in memory before the word, and the second packet covers it.
    let reth = Reth { va: (TABLE - 1024).into(), rkey: KEY.into(), len: 2048.into() };
    let first = b.request(Opcode::RC_WRITE_FIRST, b.psn, |repr| repr.extended.reth = reth, &[9; 1024]);
    assert_eq!(net.up(&first).len(), 1);
    net.down(&b.ack(b.psn));
    b.psn += 1;
    let mut owner_now = owner;
    net.teach(&mut a, &mut owner_now, TABLE);
    assert_eq!(net.count("learnt"), 2);
    let last = b.request(Opcode::RC_WRITE_LAST, b.psn, |_| {}, &[9; 1024]);
    assert_eq!(net.up(&last).len(), 1);
    net.down(&b.ack(b.psn));
    let sent = net.up(&a.cas(a.psn, TABLE, 0, 5));
    assert_eq!(opcode(&sent[0].0), Opcode::RC_COMPARE_SWAP, "the word holds something else now");
}

/// So may one that was lost behind here, of a connection that is only followed.
#[test]
fn the_rest_of_a_message_that_is_repeated_is_a_detour_too() {
    let (mut net, mut a, _) = two(|_| {});
    let (mut owner, mut c) = (a, end(3));
    let reth = Reth { va: (TABLE - 1024).into(), rkey: KEY.into(), len: 2048.into() };
    let first = c.request(Opcode::RC_WRITE_FIRST, c.psn, |repr| repr.extended.reth = reth, &[9; 1024]);
    assert_eq!(net.up(&first).len(), 1);
    c.psn += 1;
    let last = c.request(Opcode::RC_WRITE_LAST, c.psn, |_| {}, &[9; 1024]);
    assert_eq!(net.up(&last).len(), 1);
    net.teach(&mut a, &mut owner, TABLE);
    assert_eq!(net.count("learnt"), 2);
    assert_eq!(net.up(&last).len(), 1);
    let sent = net.up(&a.cas(a.psn, TABLE, 0, 5));
    assert_eq!(opcode(&sent[0].0), Opcode::RC_COMPARE_SWAP, "the word holds something else now");
}

/// What came too early in the middle of a message does not keep the rest of it from coming, though the server says nothing.
#[test]
fn a_message_with_a_hole_goes_on() {
    let (mut net, _, b) = two(|_| {});
    let reth = Reth { va: 0x9000_0000.into(), rkey: KEY.into(), len: 3072.into() };
    let first = b.request(Opcode::RC_WRITE_FIRST, b.psn, |repr| repr.extended.reth = reth, &[9; 1024]);
    let middle = b.request(Opcode::RC_WRITE_MIDDLE, b.psn + 1, |_| {}, &[9; 1024]);
    let last = b.request(Opcode::RC_WRITE_LAST, b.psn + 2, |_| {}, &[9; 1024]);
    let passed = [&first, &last, &first, &middle, &last].map(|frame| net.up(frame).len());
    assert_eq!(passed, [1, 0, 1, 1, 1]);
}

/// No buffer when the turn of a request that waits has come: it has another turn.
#[test]
fn a_request_that_waits_outlives_a_shortage_of_buffers() {
    let (mut net, owner, b) = two(|_| {});
    // A WRITE of its own, and behind it an operation that has to wait for it
    assert_eq!(net.up(&b.write(b.psn, 0x8000_0000, &[0; 8])).len(), 1);
    assert_eq!(net.up(&b.cas(b.psn + 1, TABLE, 0, 5)).len(), 0);
    let mut none = Sent::with_room(0);
    let mut ack = MemoryFrame::new(b.ack(b.psn));
    net.now = net.now + Nanos(1000);
    net.swordbox.on_frame(&mut ack, SERVERS, net.now, &mut none);
    let sent = net.pass(Nanos::from_millis(100));
    assert!(sent.iter().any(|(sent, _)| dest(sent) == owner.server_qpn), "{} frames", sent.len());
}

/// A lane fails; a client of it owns another lane, on which others have operations under way.
#[test]
fn a_lane_that_fails_does_not_take_other_lanes_with_it() {
    let mut net = Net::new(|config| config.servers[0].lanes = 2);
    let mut ends = [end(1), end(2), end(3)];
    for end in &mut ends {
        net.connect(end);
    }
    let [mut a, mut b, c] = ends;
    let mut lanes = [None; 2];
    // Each makes a lane of its own connection when it first takes one; words are spread over both.
    for word in 0..64 {
        let va = TABLE + 64 * (word % 32);
        let who = if word % 2 == 0 { &mut a } else { &mut b };
        let sent = net.up(&who.cas(who.psn, va, 1, 1));
        who.psn += 1;
        let (psn, qpn) = (psn(&sent[0].0), dest(&sent[0].0));
        let owner = [a, b].into_iter().find(|end| end.server_qpn == qpn).unwrap();
        net.down(&owner.answer(psn, Syndrome::Ack(Credit(0x1f)), Some(0)));
        lanes[usize::from(owner.qpn == b.qpn)] = Some(va);
    }
    let [on_a, on_b] = lanes.map(Option::unwrap);
    // B has something under way on A's connection, where something is refused.
    let sent = net.up(&b.cas(b.psn, on_a, 1, 1));
    assert_eq!(dest(&sent[0].0), a.server_qpn);
    net.down(&a.answer(psn(&sent[0].0), Syndrome::Nak(NakCode::REMOTE_ACCESS_ERROR), None));
    // C takes B's, or one of its own when that is no lane any more.
    let mut sent = net.up(&c.cas(c.psn, on_b, 1, 1));
    if sent.is_empty() {
        sent = net.pass(Nanos::from_millis(20));
    }
    let lane = dest(&sent[0].0);
    let owner = [a, b, c].into_iter().find(|end| end.server_qpn == lane).unwrap();
    let answers = net.down(&owner.answer(psn(&sent[0].0), Syndrome::Ack(Credit(0x1f)), Some(0)));
    assert_eq!(answers.len(), 1, "C is answered");
    net.pass(Nanos::from_secs(5));
    assert_eq!(net.count("lanes_lost"), 1);
}

/// The owner of a lane sends more than can wait here, while others go on and on.
#[test]
fn an_owner_has_its_turn() {
    let (mut net, a, mut b) = two(|_| {});
    let owner = a;
    let page = [7; 1024];
    let mut value = 0;
    let mut under_way = net.up(&b.cas(b.psn, TABLE, value, value + 1));
    b.psn += 1;
    for round in 0..20 {
        // The page comes while something of B is under way, and as soon as that is done, B has the next.
        let passed = net.up(&a.write(a.psn, 0x9000_0000, &page));
        if !passed.is_empty() {
            return;
        }
        value += 1;
        net.down(&owner.ack(psn(&under_way[0].0)));
        under_way = net.up(&b.cas(b.psn, TABLE, value, value + 1));
        b.psn += 1;
        if under_way.is_empty() {
            assert_eq!(net.up(&a.write(a.psn, 0x9000_0000, &page)).len(), 1, "round {round}");
            return;
        }
    }
    panic!("{} NAKs and no turn", net.count("naks"));
}

/// What went on its own connection gets lost, and comes again while others use the word all the time: it has its turn.
#[test]
fn what_is_repeated_has_its_turn() {
    let (mut net, mut a, b) = two(|_| {});
    let mut owner = a;
    // Too long for a lane, and the second half of it covers the word
    let page = b.write(b.psn, TABLE - 64, &[7; 128]);
    assert_eq!(net.up(&page).len(), 1);
    net.teach(&mut a, &mut owner, TABLE);
    let decided = net.up(&a.cas(a.psn, TABLE, 0, 5));
    assert_eq!(opcode(&decided[0].0), Opcode::RC_WRITE_ONLY);
    a.psn += 1;
    assert_eq!(net.up(&page).len(), 0, "what is decided would not be true any more");
    net.down(&owner.ack(psn(&decided[0].0)));
    for _ in 0..5 {
        net.pass(Nanos::from_millis(100));
        let sent = net.up(&a.cas(a.psn, TABLE, 5, 5));
        assert_eq!(opcode(&sent[0].0), Opcode::RC_COMPARE_SWAP, "nothing more is decided meanwhile");
        net.down(&owner.answer(psn(&sent[0].0), Syndrome::Ack(Credit(0x1f)), Some(5)));
        a.psn += 1;
    }
    assert_eq!(net.up(&page).len(), 1);
    assert_eq!(net.count("delayed"), 1);
    // It may not have been sent again at all.
    net.pass(Nanos::from_secs(2));
    net.teach(&mut a, &mut owner, TABLE);
    let sent = net.up(&a.cas(a.psn, TABLE, 0, 6));
    assert_eq!(opcode(&sent[0].0), Opcode::RC_WRITE_ONLY);
}

/// A client's first atomic on a word has a key that the server refuses.
#[test]
fn a_key_that_is_refused_does_not_keep_a_word_from_others() {
    let mut net = Net::new(|_| {});
    let (mut a, mut b) = (end(1), end(2));
    net.connect(&mut a);
    net.connect(&mut b);
    // A key that it was never given
    let atomic = AtomicEth { va: TABLE.into(), rkey: 0xbad.into(), swap_or_add: 1.into(), compare: 0.into() };
    net.up(&b.request(Opcode::RC_COMPARE_SWAP, b.psn, |repr| repr.extended.atomic = atomic, &[]));
    net.down(&b.answer(b.psn, Syndrome::Nak(NakCode::REMOTE_ACCESS_ERROR), None));
    for _ in 0..3 {
        net.pass(Nanos::from_millis(50));
        let sent = net.up(&a.cas(a.psn, TABLE, 1, 1));
        let found = (opcode(&sent[0].0) == Opcode::RC_COMPARE_SWAP).then_some(0);
        net.down(&a.answer(psn(&sent[0].0), Syndrome::Ack(Credit(0x1f)), found));
        a.psn += 1;
    }
    assert!(net.count("decided") > 0);
}

/// A WRITE that says that it is long is looked at in no more time than any other.
#[test]
fn long_ranges_take_no_time() {
    let (mut net, a, _) = two(|_| {});
    let reth = Reth { va: 0x10_0000_0000.into(), rkey: KEY.into(), len: u32::MAX.into() };
    // With a look at each line that it may cover, these would take longer than a test may.
    for _ in 0..20_000 {
        // Repeated by its client
        net.up(&a.request(Opcode::RC_WRITE_FIRST, a.psn, |repr| repr.extended.reth = reth, &[9; 1024]));
    }
}

fn dreq(src: [u8; 4], dst: [u8; 4], remote: u32) -> Vec<u8> {
    let mut body = Dreq::new_zeroed();
    body.set_remote_qpn(Qpn::new(remote));
    let mut mad = [0; MAD_LEN];
    cm::emit(&MadHeader::new(Kind::Dreq, 1), &body, &mut mad);
    let bth = Bth::new(Opcode::UD_SEND_ONLY, Qpn::GSI, Psn::ZERO);
    let change = |repr: &mut Repr<'_>| repr.extended.deth = Deth::new(Deth::GSI_QKEY, Qpn::GSI);
    frame(src, dst, 0xc123, bth, change, &mad)
}

/// What is disconnected need not be written down for ever.
#[test]
fn a_disconnected_connection_is_over() {
    let (mut net, _, b) = two(|config| config.ageing = Nanos::from_secs(1));
    assert_eq!(net.up(&dreq(b.ip, SERVER, b.server_qpn)).len(), 1);
    // What comes late goes nowhere.
    assert_eq!(net.up(&b.write(b.psn, 0x8000_0000, &[1; 8])).len(), 0);
    net.pass(Nanos::from_secs(3));
    let over = |event: &Event| matches!(event, Event::Over(old) if old.client.1 == Qpn::new(b.qpn));
    assert_eq!(net.events.iter().filter(|event| over(event)).count(), 1);
}

/// Nobody but its client and its server ends a connection.
#[test]
fn a_disconnection_from_elsewhere_ends_nothing() {
    let (mut net, a, mut b) = two(|_| {});
    net.up(&dreq(a.ip, SERVER, b.server_qpn));
    assert_eq!(locked(&mut net, &mut b, &a, 0, 5).len(), 1);
}

/// A server that begins anew gives its memory another key.
#[test]
fn a_word_is_known_by_its_new_key() {
    let (mut net, _, _) = two(|config| config.servers[0].lanes = 2);
    let mut c = end(3);
    let cas = |end: &End, va: u64, compare: u64| {
        let atomic =
            AtomicEth { va: va.into(), rkey: 8.into(), swap_or_add: 1.into(), compare: compare.into() };
        end.request(Opcode::RC_COMPARE_SWAP, end.psn, |repr| repr.extended.atomic = atomic, &[])
    };
    for _ in 0..6 {
        net.up(&c.write(c.psn, 0x8000_0000, &[0; 8]));
        net.down(&c.ack(c.psn));
        c.psn += 1;
    }
    for _ in 0..4 {
        net.pass(Nanos::from_millis(50));
        let sent = net.up(&cas(&c, TABLE, 1));
        net.down(&c.answer(psn(&sent[0].0), Syndrome::Ack(Credit(0x1f)), Some(0)));
        c.psn += 1;
    }
    let sent = net.up(&cas(&c, TABLE, 0));
    assert_eq!(opcode(&sent[0].0), Opcode::RC_WRITE_ONLY);
}

/// A packet has the partition key of the connection that it travels on.
#[test]
fn each_connection_has_its_partition() {
    let (mut net, a, b) = two(|_| {});
    let cas = b.cas(b.psn, TABLE, 0, 5);
    let mut repr = Repr::parse(&cas).unwrap();
    repr.bth.pkey = 0x8001.into();
    let mut other = vec![0; cas.len()];
    repr.build(&mut other).unwrap();
    let sent = net.up(&other);
    let bth = *Packet::parse(&sent[0].0).unwrap().bth();
    assert_eq!((bth.dest_qp().get(), bth.pkey.get()), (a.server_qpn, 0xffff));
}

/// While a client is silent, somebody else sends to its server's queue pair.
#[test]
fn a_queue_pair_that_somebody_took_over_is_not_its_clients_any_more() {
    let (mut net, mut a, b) = two(|_| {});
    let owner = a;
    // The server expects another PSN of A than A will use.
    net.pass(Nanos::from_millis(1));
    let mut b = b;
    locked(&mut net, &mut b, &owner, 0, 5);
    net.pass(Nanos::from_secs(3));
    let liar = End { server_qpn: a.server_qpn, ..end(4) };
    net.up(&liar.write(77, 0x8000_0000, &[0; 8]));
    assert_eq!(net.up(&a.write(a.psn, 0x8000_0000, &[0; 8])).len(), 0);
    a.psn += 1;
    net.pass(Nanos::from_secs(3));
    assert_eq!(net.up(&a.write(a.psn, 0x8000_0000, &[0; 8])).len(), 0);
}

/// Client and server have made queue pairs with the same numbers as before.
#[test]
fn what_a_new_queue_pair_writes_is_not_acknowledged_unless_it_is_done() {
    let (mut net, a, _) = two(|_| {});
    let sent = net.up(&a.write(a.psn.wrapping_sub(0x40_0000) & 0xff_ffff, 0x8000_0000, &[1; 8]));
    assert!(sent.is_empty() || sent[0].1 == SERVERS, "acknowledged, not done");
}

/// A lane fails whose owner has something under way on another.
#[test]
fn an_owner_whose_lane_fails_may_be_elsewhere() {
    let mut net = Net::new(|config| config.servers[0].lanes = 2);
    let mut ends = [end(1), end(2)];
    for end in &mut ends {
        net.connect(end);
    }
    let [mut a, mut b] = ends;
    let mut lanes = [None; 2];
    for word in 0..64 {
        let va = TABLE + 64 * (word % 32);
        let who = if word % 2 == 0 { &mut a } else { &mut b };
        let sent = net.up(&who.cas(who.psn, va, 1, 1));
        who.psn += 1;
        let on_b = dest(&sent[0].0) == b.server_qpn;
        let owner = if on_b { b } else { a };
        net.down(&owner.answer(psn(&sent[0].0), Syndrome::Ack(Credit(0x1f)), Some(0)));
        lanes[usize::from(on_b)] = Some(va);
    }
    let [on_a, on_b] = lanes.map(Option::unwrap);
    let elsewhere = net.up(&a.cas(a.psn, on_b, 1, 1));
    let refused = net.up(&b.cas(b.psn, on_a, 1, 1));
    net.down(&a.answer(psn(&refused[0].0), Syndrome::Nak(NakCode::REMOTE_ACCESS_ERROR), None));
    net.down(&b.answer(psn(&elsewhere[0].0), Syndrome::Ack(Credit(0x1f)), Some(0)));
}

/// The table is full, and answers go on.
#[test]
fn answers_are_counted_as_long_as_it_may_take() {
    let mut net = Net::new(|config| config.connections = 2);
    let mut a = end(1);
    for n in 0..300 {
        if n == 1 {
            (2..6).for_each(|n| drop(net.up(&end(n).write(0, 0x8000_0000, &[0; 8]))));
        }
        net.up(&a.write(a.psn, 0x8000_0000, &[0; 8]));
        net.down(&a.ack(a.psn));
        a.psn += 1;
    }
}

/// Anything at all, in any order: nothing panics, nothing overflows.
#[test]
#[expect(clippy::too_many_lines, reason = "a list of what may come")]
fn whatever_comes() {
    let seeds = std::env::var("SEEDS").ok().and_then(|seeds| seeds.parse().ok()).unwrap_or(40);
    let mut sum = std::collections::BTreeMap::<&str, u64>::new();
    for seed in 0..seeds {
        let mut chance = Chance::new(seed);
        let (mut net, a, b) = two(|config| {
            config.servers.push(Server::new([10, 0, 1, 3].into()));
            config.servers[0].lanes = 1 + (seed % 3) as usize;
            config.servers[0].detect = (seed % 4) as u32;
            config.connections = 256;
            config.held = 8;
            config.in_flight = 16;
            config.rd_atomic = 4;
            config.lines = 4;
            config.ageing = Nanos::from_millis(80);
            config.settle = Nanos::from_micros(20);
            config.dead_after = Nanos::from_millis(5);
            config.failed_cas = if seed % 2 == 0 { FailedCas::Write } else { FailedCas::Answer };
        });
        let mut ends = [a, b, end(3), end(4), end(5)];
        let mut out = Sent::with_room(usize::MAX);
        // The PSN of the last frame that each server's queue pair got, and what is not answered
        let mut lasts = [0u32; 5];
        let mut open = std::collections::VecDeque::<(usize, Opcode, u32)>::new();
        let mut next_qpn = 0x300;
        for _ in 0..4000 {
            let who = chance.below(5) as usize;
            if chance.below(200) == 0 {
                // It has made a new queue pair, sometimes with an old number.
                next_qpn += 1;
                let [client, server] = [0, 1].map(|_| chance.below(3) > 0);
                let old = ends[who];
                ends[who] = End {
                    qpn: if client { next_qpn } else { old.qpn },
                    server_qpn: if server { next_qpn } else { old.server_qpn },
                    port: if chance.below(4) > 0 { 0xc000 + chance.below(999) as u16 } else { old.port },
                    psn: if chance.below(8) > 0 { chance.below(1 << 24) as u32 } else { 0xff_fff0 },
                    ..old
                };
            }
            let psn = match chance.below(8) {
                0 if chance.below(3) == 0 => {
                    ends[who].psn.wrapping_add(chance.below(6) as u32).wrapping_sub(3) & 0xff_ffff
                }
                1 if chance.below(100) == 0 => chance.below(1 << 24) as u32,
                _ => {
                    ends[who].psn = (ends[who].psn + 1) & 0xff_ffff;
                    ends[who].psn.wrapping_sub(1) & 0xff_ffff
                }
            };
            let end: End = ends[who];
            let at = match chance.below(12) {
                0 => u64::MAX - chance.below(70),
                1 => chance.bits(),
                _ => TABLE + 8 * chance.below(64),
            };
            let len = [0, 1, 7, 8, 64, 300, 1024][chance.below(7) as usize];
            let bytes = vec![1; len];
            let says = if chance.below(10) == 0 { chance.bits() as u32 } else { len as u32 };
            let reth = Reth { va: at.into(), rkey: KEY.into(), len: says.into() };
            let answer =
                (lasts[who] + chance.below(3) as u32).wrapping_sub(chance.below(3) as u32) & 0xff_ffff;
            let kind = chance.below(75);
            if kind > 40
                && let Some((who, opcode, psn)) = open.pop_front()
            {
                let end: End = ends[who];
                let syndrome = Syndrome::Ack(Credit(0x1f));
                let bytes = match opcode {
                    Opcode::RC_COMPARE_SWAP => end.answer(psn, syndrome, Some(chance.below(3))),
                    Opcode::RC_READ_REQUEST | Opcode::RC_FLUSH | Opcode::RC_ATOMIC_WRITE => {
                        let bth = Bth::new(Opcode::RC_READ_RESPONSE_ONLY, Qpn::new(end.qpn), Psn::new(psn));
                        frame(SERVER, end.ip, 0xd000 + end.port % 100, bth, |_| {}, &[0; 8])
                    }
                    _ => end.ack(psn),
                };
                net.now = net.now + Nanos(chance.below(5000));
                let mut frame = MemoryFrame::new(bytes);
                out.room = usize::MAX;
                let verdict = net.swordbox.on_frame(&mut frame, SERVERS, net.now, &mut out);
                if let Verdict::Forward(port) = verdict {
                    out.frames.push((frame, port));
                }
                net.permit();
                let told = out.frames.drain(..).filter(|(_, port)| *port == CLIENTS);
                for (told, _) in told.map(|(frame, port)| (frame.into_bytes(), port)) {
                    let packet = Packet::parse(&told).unwrap();
                    let nak = packet.aeth().is_some_and(|aeth| !matches!(aeth.kind(), Syndrome::Ack(_)));
                    let end = ends.iter_mut().find(|end| end.qpn == packet.bth().dest_qp().get());
                    if let Some(end) = end.filter(|_| nak) {
                        end.psn = packet.bth().psn().get();
                    }
                }
                continue;
            }
            let kind = if kind > 40 { kind % 10 } else { kind };
            let (frame, port) = match kind {
                0..3 => (end.cas(psn, at, chance.below(3), chance.below(3)), CLIENTS),
                8..12 => (end.write(psn, at, &bytes), CLIENTS),
                5..8 => (end.write(psn, TABLE + 8 * chance.below(4), &[1; 8]), CLIENTS),
                12..15 => {
                    let opcodes = [
                        Opcode::RC_READ_REQUEST,
                        Opcode::RC_WRITE_FIRST,
                        Opcode::RC_WRITE_MIDDLE,
                        Opcode::RC_WRITE_LAST,
                        Opcode::RC_SEND_ONLY_INVALIDATE,
                        Opcode::RC_FLUSH,
                        Opcode::RC_ATOMIC_WRITE,
                        Opcode::RC_WRITE_ONLY_IMM,
                        Opcode::RC_SEND_FIRST,
                        Opcode::UC_WRITE_FIRST,
                    ];
                    let opcode = opcodes[chance.below(10) as usize];
                    let data = !matches!(opcode, Opcode::RC_READ_REQUEST | Opcode::RC_FLUSH);
                    let bytes = if data { &bytes[..] } else { &[] };
                    (end.request(opcode, psn, |repr| repr.extended.reth = reth, bytes), CLIENTS)
                }
                15 => {
                    let mut bytes = end.write(psn, at, &bytes);
                    let at = chance.below(bytes.len() as u64) as usize;
                    bytes[at] = chance.bits() as u8;
                    (bytes, PortId(chance.below(2) as u16))
                }
                16 if chance.below(10) == 0 => (dreq(end.ip, SERVER, end.server_qpn), CLIENTS),
                17 if chance.below(30) == 0 => (dreq(SERVER, end.ip, end.qpn), SERVERS),
                18 if chance.below(20) == 0 => {
                    ends[who].port ^= 1;
                    (ends[who].ack(answer), SERVERS)
                }
                19 if chance.below(10) == 0 => {
                    let bth = Bth::new(Opcode::RC_SEND_ONLY, Qpn::new(end.qpn), Psn::new(psn));
                    let port = 0xc000 + chance.below(4) as u16;
                    (frame(SERVER, end.ip, port, bth, |_| {}, &[]), SERVERS)
                }
                20 => {
                    let bth = Bth::new(Opcode::CNP, Qpn::new(end.qpn), Psn::ZERO);
                    (frame(SERVER, end.ip, 0xd000 + end.port % 100, bth, |_| {}, &[]), SERVERS)
                }
                21 if chance.below(4) == 0 => {
                    let nak = match chance.below(12) {
                        0 => Syndrome::Nak(NakCode::REMOTE_ACCESS_ERROR),
                        1 => Syndrome::from_wire(chance.bits() as u8),
                        _ => Syndrome::Nak(NakCode::PSN_SEQUENCE_ERROR),
                    };
                    (end.answer(answer, nak, None), SERVERS)
                }
                22..24 => {
                    let opcodes = [
                        Opcode::RC_READ_RESPONSE_ONLY,
                        Opcode::RC_READ_RESPONSE_FIRST,
                        Opcode::RC_READ_RESPONSE_MIDDLE,
                        Opcode::RC_READ_RESPONSE_LAST,
                    ];
                    let opcode = opcodes[chance.below(4) as usize];
                    let bth = Bth::new(opcode, Qpn::new(end.qpn), Psn::new(answer));
                    (frame(SERVER, end.ip, 0xd000 + end.port % 100, bth, |_| {}, &bytes), SERVERS)
                }
                24..26 => (end.answer(answer, Syndrome::Ack(Credit(3)), Some(chance.below(3))), SERVERS),
                30 if chance.below(10) == 0 => {
                    net.now = net.now + Nanos(chance.below(60_000_000));
                    continue;
                }
                31 => {
                    net.now = net.now + Nanos(chance.below(200_000));
                    out.room = if chance.below(3) == 0 { 1 } else { usize::MAX };
                    out.frames.clear();
                    net.swordbox.on_timer(net.now, &mut out);
                    net.permit();
                    continue;
                }
                32 if chance.below(10) == 0 => {
                    let remap = chance.below(3) > 0;
                    let layers = Layers { remap, cas_to_write: chance.below(3) > 0, ..Layers::PASS };
                    net.swordbox.on_command(Command::Layers(layers), net.now);
                    continue;
                }
                33 => (end.ack(answer), SERVERS),
                _ => (end.cas(psn, TABLE + 8 * chance.below(4), chance.below(3), chance.below(3)), CLIENTS),
            };
            net.now = net.now + Nanos(chance.below(5000));
            out.room = if chance.below(10) == 0 { chance.below(3) as usize } else { usize::MAX };
            out.frames.clear();
            let mut frame = MemoryFrame::new(frame);
            let verdict = net.swordbox.on_frame(&mut frame, port, net.now, &mut out);
            if let Verdict::Forward(port) = verdict {
                out.frames.push((frame, port));
            }
            net.permit();
            for (frame, port) in out.frames.drain(..) {
                let bytes = frame.into_bytes();
                // What a client has to send again
                if let Some(packet) = Packet::parse(&bytes).filter(|_| port == CLIENTS)
                    && let Some(aeth) = packet.aeth()
                    && aeth.kind() == Syndrome::Nak(NakCode::PSN_SEQUENCE_ERROR)
                    && let Some(end) = ends.iter_mut().find(|end| end.qpn == packet.bth().dest_qp().get())
                {
                    end.psn = packet.bth().psn().get();
                }
                if let Some(packet) = Packet::parse(&bytes).filter(|_| port == SERVERS) {
                    let to = packet.bth().dest_qp().get();
                    if let Some(who) = ends.iter().position(|end| end.server_qpn == to) {
                        lasts[who] = packet.bth().psn().get();
                        open.push_back((who, packet.bth().opcode(), lasts[who]));
                    }
                }
            }
        }
        // Silence: nothing is left.
        net.pass(Nanos::from_secs(1));
        let [connections, lanes, _, held] = net.swordbox.usage();
        assert!([connections, lanes, held] == [0; 3], "seed {seed}: {connections} {lanes} {held}");
        net.swordbox.counters().all().for_each(|(name, count)| *sum.entry(name).or_default() += count);
    }
    println!("{sum:?}");
    assert!(["decided", "lanes_lost", "resent", "forgotten"].iter().all(|name| sum[name] > 100));
}

/// A host with many connections that the connection manager did not make
#[test]
fn a_hundred_connections_between_two_hosts_are_paired() {
    let mut net = Net::new(|config| config.connections = 256);
    let mut ends: Vec<End> = (0..100)
        .map(|n| End {
            qpn: 0x1000 + n,
            server_qpn: 0x2000 + n,
            port: 0xc000 + n as u16,
            psn: n * 0x2_0000,
            ..end(1)
        })
        .collect();
    for _ in 0..8 {
        for end in &ends {
            net.up(&end.write(end.psn, 0x8000_0000, &[0; 8]));
        }
        for end in &mut ends {
            net.down(&end.ack(end.psn));
            end.psn += 1;
        }
    }
    assert_eq!(net.count("paired"), 100);
}

/// The table was full once.
#[test]
fn connections_are_paired_after_the_table_was_full() {
    let mut net = Net::new(|config| {
        config.connections = 4;
        config.ageing = Nanos::from_secs(1);
    });
    (10..20).for_each(|n| drop(net.up(&end(n).write(0, 0x8000_0000, &[0; 8]))));
    net.pass(Nanos::from_secs(5));
    assert_eq!(net.swordbox.usage()[0], 0);
    let mut a = end(1);
    for _ in 0..6 {
        net.up(&a.write(a.psn, 0x8000_0000, &[0; 8]));
        net.down(&a.ack(a.psn));
        a.psn += 1;
    }
    assert_eq!(net.count("paired"), 1);
}

/// A server gives a queue pair's number again, to the same host, long after its connection was last heard of.
#[test]
fn a_number_that_was_silent_for_long_is_used_again() {
    let (mut net, a, _) = two(|config| config.ageing = Nanos::from_secs(1));
    net.pass(Nanos::from_secs(5));
    let new = End { qpn: 0x777, port: 0xc777, psn: 0x12_3456, ..a };
    assert_eq!(net.up(&new.write(new.psn, 0x8000_0000, &[0; 8])).len(), 1);
}

/// The server answers late, after a restart, to what others had under way on a client's connection.
#[test]
fn late_answers_do_not_reach_clients_whose_connections_ended_with_an_earlier_life() {
    let a = end(1);
    let (server, client) =
        ((IpAddr::from(SERVER), Qpn::new(a.server_qpn)), (IpAddr::from(a.ip), Qpn::new(a.qpn)));
    let mut net = Net::new(|config| config.ended = vec![Connection { server, client }]);
    assert_eq!(net.down(&a.ack(a.psn)).len(), 0);
    let other = end(2);
    assert_eq!(net.down(&other.ack(other.psn)).len(), 1);
}
