//! Test network: two or more clients, a server, and a Swordbox in between.

use rocev2::aeth::{Aeth, Credit, Syndrome};
use rocev2::atomic::{AtomicAckEth, AtomicEth};
use rocev2::cm::{self, Dreq, Kind, MAD_LEN, MadHeader};
use rocev2::deth::Deth;
use rocev2::ethernet::{Ethernet, MacAddr, ethertype};
use rocev2::ipv4::Ipv4;
use rocev2::repr::{Ip, Repr};
use rocev2::reth::Reth;
use rocev2::{Bth, Msn, Opcode, Packet, Psn, Qpn};
use switch::drop::FaultSet;
use switch::forward::Config as ForwardConfig;
use switch::forward::config::ForwardingMode;
use switch::memory::{FrameCollector, run_frame};
use switch::metrics::Metrics as _;
use switch::{Function, Nanos, PortId, Verdict};
use swordbox::{Command, Config, Event, Layers, Server, Swordbox, WordTable};
use zerocopy::{FromZeros, IntoBytes};

pub(crate) const SERVER: [u8; 4] = [10, 0, 0, 1];
pub(crate) const TABLE: u64 = 0x10_0000;
pub(crate) const KEY: u32 = 7;
pub(crate) const CLIENTS: PortId = PortId(0);
pub(crate) const SERVERS: PortId = PortId(1);

/// Queue pair of a client, and the server's queue pair that it is connected to
#[derive(Clone, Copy)]
pub(crate) struct Client {
    pub(crate) ip: [u8; 4],
    pub(crate) qpn: u32,
    pub(crate) server_qpn: u32,
    pub(crate) port: u16,
    pub(crate) psn: u32,
    /// TOS byte of the server's responses
    pub(crate) tos: u8,
}

pub(crate) fn new_client(n: u8) -> Client {
    let number = u32::from(n);
    Client {
        ip: [10, 0, 1, n],
        qpn: 0x100 + number,
        server_qpn: 0x200 + number,
        port: 0xc000 + u16::from(n),
        psn: 0x10_0000 * number,
        tos: 0,
    }
}

pub(crate) fn set_tos(repr: &mut Repr<'_>, tos: u8) {
    if let Ip::V4(ip, _) = &mut repr.ip {
        ip.tos = tos;
    }
}

pub(crate) fn frame(
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

impl Client {
    pub(crate) fn request(
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

    pub(crate) fn cas(&self, psn: u32, va: u64, compare: u64, swap: u64) -> Vec<u8> {
        let atomic =
            AtomicEth { va: va.into(), rkey: KEY.into(), swap_or_add: swap.into(), compare: compare.into() };
        self.request(Opcode::RC_COMPARE_SWAP, psn, |repr| repr.extended.atomic = atomic, &[])
    }

    pub(crate) fn write(&self, psn: u32, va: u64, payload: &[u8]) -> Vec<u8> {
        let reth = Reth { va: va.into(), rkey: KEY.into(), len: (payload.len() as u32).into() };
        self.request(Opcode::RC_WRITE_ONLY, psn, |repr| repr.extended.reth = reth, payload)
    }

    /// Returns a response of the server on this connection.
    pub(crate) fn response(&self, psn: u32, syndrome: Syndrome, found: Option<u64>) -> Vec<u8> {
        let opcode = if found.is_some() { Opcode::RC_ATOMIC_ACKNOWLEDGE } else { Opcode::RC_ACKNOWLEDGE };
        let bth = Bth::new(opcode, Qpn::new(self.qpn), Psn::new(psn));
        let change = |repr: &mut Repr<'_>| {
            repr.extended.aeth.copy_from_slice(Aeth::new(syndrome, Msn::new(psn)).as_bytes());
            repr.extended.atomic_ack = AtomicAckEth { original: found.unwrap_or(0).into() };
            set_tos(repr, self.tos);
        };
        frame(SERVER, self.ip, 0xd000 + self.port % 100, bth, change, &[])
    }

    pub(crate) fn ack(&self, psn: u32) -> Vec<u8> {
        self.response(psn, Syndrome::Ack(Credit(0x1f)), None)
    }
}

pub(crate) struct Net {
    pub(crate) swordbox: Swordbox,
    pub(crate) now: Nanos,
    pub(crate) events: Vec<Event>,
}

pub(crate) type Frames = Vec<(Vec<u8>, PortId)>;

impl Net {
    pub(crate) fn new(change: impl FnOnce(&mut Config)) -> Self {
        let mut config = Config::new(ForwardConfig {
            ports: 2,
            mode: ForwardingMode::Pairs(vec![(CLIENTS, SERVERS)]),
            drop: FaultSet::NONE,
            verify_icrc: false,
            verify_udp_checksum: false,
            counted_qps: 0,
            health: false,
        });
        let table = WordTable { rkey: None, range: TABLE..TABLE + 4096, stride: 8, writable: true };
        config.servers = vec![Server { tables: vec![table], rd_atomic: 4, ..Server::new(SERVER.into()) }];
        config.layers = Layers::CAS_TO_WRITE;
        config.connections = 64;
        change(&mut config);
        Self { swordbox: Swordbox::new(config), now: Nanos::from_millis(1), events: Vec::new() }
    }

    pub(crate) fn run(&mut self, bytes: &[u8], port: PortId) -> (Verdict, Frames) {
        self.now = self.now + Nanos(1000);
        let result = run_frame(&mut self.swordbox, bytes, port, self.now);
        self.permit();
        result
    }

    pub(crate) fn permit(&mut self) {
        while let Some(event) = self.swordbox.poll_event() {
            if let Event::TranslationRequested(connection) = event {
                self.swordbox.on_command(Command::PermitTranslation(connection), self.now);
            }
            self.events.push(event);
        }
    }

    pub(crate) fn up(&mut self, bytes: &[u8]) -> Frames {
        self.run(bytes, CLIENTS).1
    }

    pub(crate) fn down(&mut self, bytes: &[u8]) -> Frames {
        self.run(bytes, SERVERS).1
    }

    /// Advances the time. Returns the frames sent by timers.
    pub(crate) fn advance_time(&mut self, time: Nanos) -> Frames {
        let end = self.now + time;
        let mut sent = FrameCollector::with_room(usize::MAX);
        while let Some(next) = self.swordbox.next_timer().filter(|next| *next <= end) {
            self.now = self.now.max(next);
            self.swordbox.on_timer(self.now, &mut sent);
        }
        self.now = end;
        self.permit();
        sent.frames.into_iter().map(|(frame, port)| (frame.into_bytes(), port)).collect()
    }

    /// Makes a connection translated, with proven rights.
    pub(crate) fn connect(&mut self, end: &mut Client) {
        for _ in 0..6 {
            assert_eq!(self.up(&end.write(end.psn, 0x8000_0000, &[0; 8])).len(), 1);
            assert_eq!(self.down(&end.ack(end.psn)).len(), 1);
            end.psn += 1;
        }
        let cas = end.cas(end.psn, TABLE + 2048, 1, 0);
        assert!(self.up(&cas) == [(cas, SERVERS)], "the request is forwarded unchanged");
        self.down(&end.response(end.psn, Syndrome::Ack(Credit(0x1f)), Some(0)));
        end.psn += 1;
        assert!(self.events.iter().any(
            |event| matches!(event, Event::TranslationRequested(new) if new.client.1 == Qpn::new(end.qpn))
        ));
    }

    /// Sends an atomic that is not resolved and whose response shows that the word is 0.
    pub(crate) fn learn_word(&mut self, end: &mut Client, owner: &mut Client, va: u64) {
        self.advance_time(Nanos::from_millis(50));
        let sent = self.up(&end.cas(end.psn, va, 1, 1));
        assert_eq!(opcode(&sent[0].0), Opcode::RC_COMPARE_SWAP);
        let psn = psn(&sent[0].0);
        let owner = if owner.server_qpn == dest(&sent[0].0) { *owner } else { *end };
        self.down(&owner.response(psn, Syndrome::Ack(Credit(0x1f)), Some(0)));
        end.psn += 1;
    }

    pub(crate) fn count(&self, name: &str) -> u64 {
        self.swordbox.counters().reported().find(|(other, _)| *other == name).unwrap().1
    }
}

pub(crate) fn opcode(frame: &[u8]) -> Opcode {
    Packet::parse(frame).unwrap().bth().opcode()
}

pub(crate) fn psn(frame: &[u8]) -> u32 {
    Packet::parse(frame).unwrap().bth().psn().get()
}

pub(crate) fn dest(frame: &[u8]) -> u32 {
    Packet::parse(frame).unwrap().bth().dest_qp().get()
}

/// Returns two connections. The first one is shared, and the word at `TABLE` is known to be 0.
pub(crate) fn two_clients(change: impl FnOnce(&mut Config)) -> (Net, Client, Client) {
    let net = Net::new(|config| {
        config.servers[0].client_owned_qps = 1;
        change(config);
    });
    with_learnt_word(net, new_client(1), new_client(2))
}

/// Prepares two given connections like [`two_clients`].
pub(crate) fn with_learnt_word(mut net: Net, mut a: Client, mut b: Client) -> (Net, Client, Client) {
    net.connect(&mut a);
    net.connect(&mut b);
    // The first atomic adds a line, which learns nothing for some time.
    let sent = net.up(&a.cas(a.psn, TABLE, 1, 1));
    assert_eq!(dest(&sent[0].0), a.server_qpn);
    net.down(&a.response(psn(&sent[0].0), Syndrome::Ack(Credit(0x1f)), Some(0)));
    a.psn += 1;
    let mut owner = a;
    net.learn_word(&mut a, &mut owner, TABLE);
    assert_eq!(net.count("learnt"), 1);
    (net, a, b)
}

/// Returns three clients, of which the first two own a shared QP each, and the address of a word on each QP.
pub(crate) fn two_shared_qps() -> (Net, [Client; 3], [u64; 2]) {
    let mut net = Net::new(|config| config.servers[0].client_owned_qps = 2);
    let mut ends = [new_client(1), new_client(2), new_client(3)];
    for end in &mut ends {
        net.connect(end);
    }
    let [mut a, mut b, c] = ends;
    let mut words = [None; 2];
    // Each connection becomes shared when its client first uses a shared QP; words are spread over both.
    for word in 0..64 {
        let va = TABLE + 64 * (word % 32);
        let client = if word % 2 == 0 { &mut a } else { &mut b };
        let sent = net.up(&client.cas(client.psn, va, 1, 1));
        client.psn += 1;
        let (psn, qpn) = (psn(&sent[0].0), dest(&sent[0].0));
        let owner = [a, b].into_iter().find(|end| end.server_qpn == qpn).unwrap();
        net.down(&owner.response(psn, Syndrome::Ack(Credit(0x1f)), Some(0)));
        words[usize::from(owner.qpn == b.qpn)] = Some(va);
    }
    (net, [a, b, c], words.map(Option::unwrap))
}

/// Makes the values of words on the shared QPs of `a` and `b` known, by atomics of `a`.
pub(crate) fn learn_words(net: &mut Net, a: &mut Client, b: &Client, words: [u64; 2]) {
    net.advance_time(Nanos::from_millis(50));
    for va in words {
        let sent = net.up(&a.cas(a.psn, va, 1, 1));
        assert_eq!(opcode(&sent[0].0), Opcode::RC_COMPARE_SWAP);
        let qpn = dest(&sent[0].0);
        let owner = [*a, *b].into_iter().find(|end| end.server_qpn == qpn).unwrap();
        net.down(&owner.response(psn(&sent[0].0), Syndrome::Ack(Credit(0x1f)), Some(0)));
        a.psn += 1;
    }
}

/// Sends a CAS that is resolved and leaves on the shared QP. Returns the frames after its acknowledgement.
pub(crate) fn resolve_cas(
    net: &mut Net,
    whose: &mut Client,
    owner: &Client,
    compare: u64,
    swap: u64,
) -> Frames {
    let sent = net.up(&whose.cas(whose.psn, TABLE, compare, swap));
    assert_eq!((opcode(&sent[0].0), dest(&sent[0].0)), (Opcode::RC_WRITE_ONLY, owner.server_qpn));
    whose.psn += 1;
    net.down(&owner.ack(psn(&sent[0].0)))
}

pub(crate) fn dreq(src: [u8; 4], dst: [u8; 4], remote: u32) -> Vec<u8> {
    let mut body = Dreq::new_zeroed();
    body.set_remote_qpn(Qpn::new(remote));
    let mut mad = [0; MAD_LEN];
    cm::emit(&MadHeader::new(Kind::Dreq, 1), &body, &mut mad);
    let bth = Bth::new(Opcode::UD_SEND_ONLY, Qpn::GSI, Psn::ZERO);
    let change = |repr: &mut Repr<'_>| repr.extended.deth = Deth::new(Deth::GSI_QKEY, Qpn::GSI);
    frame(src, dst, 0xc123, bth, change, &mad)
}

/// Sends a CAS of `b`, and its response on the connection of `owner`. Returns whether the CAS was resolved.
pub(crate) fn is_resolved(net: &mut Net, b: &mut Client, owner: &Client) -> bool {
    let sent = net.up(&b.cas(b.psn, TABLE, 9, 9));
    b.psn += 1;
    let resolved = opcode(&sent[0].0) == Opcode::RC_WRITE_ONLY;
    let syndrome = Syndrome::Ack(Credit(0x1f));
    net.down(&owner.response(psn(&sent[0].0), syndrome, (!resolved).then_some(0)));
    resolved
}
