//! A host without connections that forges packets, from its own address and from other hosts' addresses. It
//! guesses queue pair numbers, which are small, but cannot guess PSNs or keys.

use crate::{Node, Ports};
use core::net::IpAddr;
use rocev2::aeth::{Aeth, NakCode, Syndrome};
use rocev2::atomic::{AtomicAckEth, AtomicEth};
use rocev2::cm::{self, Dreq, Kind, MAD_LEN, MadHeader, Rep, Req};
use rocev2::deth::Deth;
use rocev2::ethernet::MacAddr;
use rocev2::path_headers::{PathHeaderFields, PathHeaders};
use rocev2::reth::Reth;
use rocev2::{Bth, Msn, Opcode, Psn, Qpn};
use switch::memory::MemoryFrame;
use switch::{Nanos, Output, PortId, Rng};
use zerocopy::{FromZeros, IntoBytes};

/// First queue pair number of a host
const FIRST_QPN: u64 = 16;
/// How many queue pair numbers it tries; drawn per seed
const QPN_COUNTS: [u64; 3] = [4, 16, 64];

/// IP and MAC address of an interface
pub type Address = (IpAddr, MacAddr);

/// Returns a packet from an IP address, sent by a MAC address, to an interface. Empty if one IP address is
/// IPv4 and the other IPv6.
pub fn forged_packet(
    (src, src_mac, (dst, dst_mac)): (IpAddr, MacAddr, Address),
    src_port: u16,
    bth: Bth,
    extended: &[&[u8]],
    payload: &[u8],
) -> Vec<u8> {
    let ends = PathHeaderFields {
        src_mac,
        dst_mac,
        vlan: None,
        src,
        dst,
        traffic_class: 0,
        hop_limit: 64,
        src_port: src_port | 0xc000,
    };
    let mut frame = Vec::new();
    if let Some(mut headers) = PathHeaders::new(&ends) {
        headers.emit(&mut frame, bth, extended, payload);
    }
    frame
}

/// Configuration of a [`Forger`].
#[derive(Clone, Debug)]
pub struct ForgerConfig {
    /// Seed of everything that is drawn
    pub seed: u64,
    /// Its own interface
    pub own: Address,
    /// Hosts that it sends requests to
    pub targets: Vec<Address>,
    /// A P4CE switch, which is one more target, and its number of queue pairs
    pub switch: Option<(Address, usize)>,
    /// Hosts whose addresses it forges, and to which it sends responses
    pub impersonated: Vec<Address>,
    /// First virtual address of its requests, and the number of words from there
    pub words: (u64, u64),
    /// Whether hosts connect by the communication manager. It trusts the source address of its messages: a
    /// forged REQ for a queue pair in use ends that connection, whatever switch is between the hosts. In that
    /// case, no messages of the communication manager are forged
    pub by_cm: bool,
    /// Number of rounds; each sends one or two packets
    pub rounds: u32,
    /// Time of the first round
    pub from: Nanos,
}

/// The host that forges packets.
#[derive(Debug)]
pub struct Forger {
    config: ForgerConfig,
    rng: Rng,
    qpn_count: u64,
    remaining: u32,
    next: Nanos,
}

impl Forger {
    /// Creates a host that forges packets.
    pub fn new(config: ForgerConfig) -> Self {
        Self {
            rng: Rng::stream(config.seed, 0x6c69_6172),
            qpn_count: *Rng::stream(config.seed, 0x7170_6e73).pick(&QPN_COUNTS),
            remaining: config.rounds,
            next: config.from,
            config,
        }
    }

    fn qpn(&mut self, of: Address) -> Qpn {
        let first = match self.config.switch {
            // The lowest number that is not reserved and belongs to slot 0 of the switch's queue pairs
            Some((switch, queue_pairs)) if switch == of => (queue_pairs as u64).max(FIRST_QPN),
            _ => FIRST_QPN,
        };
        Qpn::new((first + self.rng.below(self.qpn_count)) as u32)
    }

    fn psn(&mut self) -> Psn {
        Psn::new(self.rng.bits() as u32)
    }

    /// Returns a packet with the source IP address of one host, to another host.
    fn packet(
        &mut self,
        from: Address,
        to: Address,
        bth: Bth,
        extended: &[&[u8]],
        payload: &[u8],
    ) -> Vec<u8> {
        // With the forged MAC address, a bridge would learn it and send this host the other host's frames.
        let ends = (from.0, self.config.own.1, to);
        forged_packet(ends, self.rng.bits() as u16, bth, extended, payload)
    }

    fn datagram<T: IntoBytes + zerocopy::Immutable>(
        &mut self,
        from: Address,
        to: Address,
        kind: Kind,
        body: &T,
    ) -> Vec<u8> {
        let mut mad = [0; MAD_LEN];
        cm::emit(&MadHeader::new(kind, self.rng.bits()), body, &mut mad);
        let bth = Bth::new(Opcode::UD_SEND_ONLY, Qpn::GSI, Psn::ZERO);
        self.packet(from, to, bth, &[Deth::new(Deth::GSI_QKEY, Qpn::GSI).as_bytes()], &mad)
    }

    /// Returns a request that writes, if it is accepted, with a random key.
    fn request(&mut self, from: Address, target: Address) -> Vec<u8> {
        let (first, words) = self.config.words;
        let va = first + self.rng.below(words) * 8;
        let (qpn, psn, rkey) = (self.qpn(target), self.psn(), self.rng.bits() as u32);
        let bth = |opcode| Bth::new(opcode, qpn, psn);
        let reth = |va: u64, len: u32| Reth { va: va.into(), rkey: rkey.into(), len: len.into() };
        match self.rng.below(4) {
            0 => {
                let atomic =
                    AtomicEth { va: va.into(), rkey: rkey.into(), swap_or_add: 1.into(), compare: 0.into() };
                self.packet(from, target, bth(Opcode::RC_COMPARE_SWAP), &[atomic.as_bytes()], &[])
            }
            1 => {
                let reth = reth(va, 8);
                self.packet(from, target, bth(Opcode::RC_WRITE_ONLY), &[reth.as_bytes()], &[7; 8])
            }
            2 => {
                let reth = reth(0, u32::MAX);
                self.packet(from, target, bth(Opcode::RC_WRITE_FIRST), &[reth.as_bytes()], &[7; 1024])
            }
            _ => self.packet(from, target, bth(Opcode::RC_SEND_ONLY), &[], &[7; 8]),
        }
    }

    /// Returns a response to a request that was never sent, or a CNP.
    fn response(&mut self, from: Address, to: Address) -> Vec<u8> {
        let (qpn, psn, msn) = (self.qpn(to), self.psn(), Msn::new(self.rng.bits() as u32));
        let aeth = |syndrome| Aeth::new(syndrome, msn);
        let ack = Syndrome::from_wire(31);
        let bth = |opcode| Bth::new(opcode, qpn, psn);
        match self.rng.below(5) {
            0 => self.packet(from, to, bth(Opcode::RC_ACKNOWLEDGE), &[aeth(ack).as_bytes()], &[]),
            1 => {
                let code = NakCode(self.rng.below(5) as u8);
                let nak = aeth(Syndrome::Nak(code));
                self.packet(from, to, bth(Opcode::RC_ACKNOWLEDGE), &[nak.as_bytes()], &[])
            }
            2 => {
                let original = AtomicAckEth { original: 7.into() };
                let extended = [aeth(ack).as_bytes(), original.as_bytes()].concat();
                self.packet(from, to, bth(Opcode::RC_ATOMIC_ACKNOWLEDGE), &[&extended], &[])
            }
            3 => self.packet(from, to, bth(Opcode::RC_READ_RESPONSE_ONLY), &[aeth(ack).as_bytes()], &[7; 8]),
            _ => {
                let bth = Bth::new(Opcode::CNP, qpn, Psn::ZERO);
                self.packet(from, to, bth, &[], &[0; 16])
            }
        }
    }

    fn forge(&mut self) -> Vec<Vec<u8>> {
        let switch = self.config.switch.iter().map(|(switch, _)| switch);
        let targets: Vec<_> = self.config.targets.iter().chain(switch).copied().collect();
        let target = *self.rng.pick(&targets);
        let candidates: Vec<_> =
            self.config.impersonated.iter().filter(|victim| **victim != target).copied().collect();
        let victim = *self.rng.pick(&candidates);
        let own = self.config.own;
        let kinds = if self.config.by_cm { 6 } else { 8 };
        match self.rng.below(kinds) {
            0..3 => {
                let request = self.request(victim, target);
                vec![request, self.response(target, victim)]
            }
            3..5 => vec![self.request(own, target)],
            5 => {
                let bth = Bth::new(Opcode(0xc4), self.qpn(target), self.psn());
                vec![self.packet(own, target, bth, &[], &[7; 16])]
            }
            6 => {
                let comm_id = self.rng.bits() as u32;
                let mut req = Req::new_zeroed();
                req.local_comm_id = comm_id.into();
                req.set_qpn(self.qpn(victim));
                req.set_starting_psn(self.psn());
                let mut rep = Rep::new_zeroed();
                rep.remote_comm_id = comm_id.into();
                rep.set_qpn(self.qpn(target));
                rep.set_starting_psn(self.psn());
                vec![
                    self.datagram(victim, target, Kind::Req, &req),
                    self.datagram(target, victim, Kind::Rep, &rep),
                ]
            }
            _ => {
                let mut dreq = Dreq::new_zeroed();
                dreq.set_remote_qpn(self.qpn(target));
                dreq.local_comm_id = (self.rng.bits() as u32).into();
                dreq.remote_comm_id = (self.rng.bits() as u32).into();
                vec![self.datagram(victim, target, Kind::Dreq, &dreq)]
            }
        }
    }
}

impl Node for Forger {
    fn on_frame(&mut self, _frame: MemoryFrame, _port: PortId, _now: Nanos, _out: &mut Ports<'_>) {}

    fn on_timer(&mut self, now: Nanos, out: &mut Ports<'_>) {
        while self.remaining > 0 && self.next <= now {
            self.remaining -= 1;
            self.next = now + Nanos(self.rng.below(20_000));
            // Frames between an IPv4 and an IPv6 address are empty.
            for frame in self.forge().into_iter().filter(|frame| !frame.is_empty()) {
                _ = out.send(MemoryFrame::new(frame), PortId(0));
            }
        }
    }

    fn next_timer(&self) -> Option<Nanos> {
        (self.remaining > 0).then_some(self.next)
    }

    fn start(&mut self, _now: Nanos, _out: &mut Ports<'_>) {}
}
