//! A host that has no connection to any server, and sends what it likes: as itself, and as any client or server. It guesses
//! queue pairs, which are small numbers, and neither PSNs nor keys.

use super::cluster::{Wiring, address, mac};
use super::{Config, TABLE_VA};
use crate::{Node, Ports};
use core::net::IpAddr;
use rocev2::atomic::AtomicEth;
use rocev2::cm::{self, Dreq, Kind, MAD_LEN, MadHeader, Rep, Req};
use rocev2::deth::Deth;
use rocev2::ethernet::MacAddr;
use rocev2::reth::Reth;
use rocev2::route::{Ends, Route};
use rocev2::{Bth, Opcode, Psn, Qpn};
use switch::memory::MemoryFrame;
use switch::{Chance, Nanos, Output, PortId};
use zerocopy::{FromZeros, IntoBytes};

/// Queue pairs' numbers begin there
const FIRST_QPN: u64 = 16;

/// The host.
#[derive(Debug)]
pub(super) struct Liar {
    servers: Vec<IpAddr>,
    clients: Vec<IpAddr>,
    own: (IpAddr, MacAddr),
    table: u64,
    chance: Chance,
    /// Kinds of lies. Where hosts use the communication manager, they believe what is said in its name: a REQ of a queue pair
    /// that is in use ends its connection, whatever is between them
    kinds: u64,
    left: u32,
    next: Nanos,
}

impl Liar {
    pub(super) fn new(config: &Config, wiring: &Wiring) -> Self {
        let number = config.servers + config.clients;
        Self {
            servers: wiring.servers.clone(),
            clients: wiring.clients.clone(),
            own: (address(config, number).0, mac(number)),
            table: config.table_size() as u64,
            chance: Chance::stream(config.seed, 0x6c69_6172),
            kinds: if config.by_cm { 6 } else { 8 },
            left: config.lies,
            next: Nanos::from_micros(1),
        }
    }

    fn qpn(&mut self) -> Qpn {
        Qpn::new((FIRST_QPN + self.chance.below(64)) as u32)
    }

    fn psn(&mut self) -> Psn {
        Psn::new(self.chance.bits() as u32)
    }

    /// A packet as from one host to another, which must be a server or a client.
    fn packet(&mut self, from: IpAddr, to: IpAddr, bth: Bth, extended: &[&[u8]], payload: &[u8]) -> Vec<u8> {
        let hosts = self.servers.iter().chain(&self.clients);
        let number = hosts.clone().position(|host| *host == to).unwrap_or(0);
        let ends = Ends {
            // Otherwise a bridge would send to it what is the other's.
            src_mac: self.own.1,
            dst_mac: mac(number as u16),
            vlan: None,
            src: from,
            dst: to,
            traffic_class: 0,
            hop_limit: 64,
            src_port: self.chance.bits() as u16 | 0xc000,
        };
        let mut frame = Vec::new();
        if let Some(mut route) = Route::new(&ends) {
            route.emit(&mut frame, bth, extended, payload);
        }
        frame
    }

    fn datagram<T: IntoBytes + zerocopy::Immutable>(
        &mut self,
        from: IpAddr,
        to: IpAddr,
        kind: Kind,
        body: &T,
    ) -> Vec<u8> {
        let mut mad = [0; MAD_LEN];
        cm::emit(&MadHeader::new(kind, self.chance.bits()), body, &mut mad);
        let bth = Bth::new(Opcode::UD_SEND_ONLY, Qpn::GSI, Psn::ZERO);
        self.packet(from, to, bth, &[Deth::new(Deth::GSI_QKEY, Qpn::GSI).as_bytes()], &mad)
    }

    /// A request of a kind that writes to a word, with a key that is not known.
    fn request(&mut self, from: IpAddr, server: IpAddr) -> Vec<u8> {
        let va = TABLE_VA + self.chance.below(self.table / 8) * 8;
        let (qpn, psn, rkey) = (self.qpn(), self.psn(), self.chance.bits() as u32);
        let bth = |opcode| Bth::new(opcode, qpn, psn);
        let reth = |va: u64, len: u32| Reth { va: va.into(), rkey: rkey.into(), len: len.into() };
        match self.chance.below(4) {
            0 => {
                let atomic =
                    AtomicEth { va: va.into(), rkey: rkey.into(), swap_or_add: 1.into(), compare: 0.into() };
                self.packet(from, server, bth(Opcode::RC_COMPARE_SWAP), &[atomic.as_bytes()], &[])
            }
            1 => {
                let reth = reth(va, 8);
                self.packet(from, server, bth(Opcode::RC_WRITE_ONLY), &[reth.as_bytes()], &[7; 8])
            }
            2 => {
                let reth = reth(0, u32::MAX);
                self.packet(from, server, bth(Opcode::RC_WRITE_FIRST), &[reth.as_bytes()], &[7; 1024])
            }
            _ => self.packet(from, server, bth(Opcode::RC_SEND_ONLY), &[], &[7; 8]),
        }
    }

    fn lie(&mut self) -> Vec<Vec<u8>> {
        let server = self.servers[self.chance.below(self.servers.len() as u64) as usize];
        let client = self.clients[self.chance.below(self.clients.len() as u64) as usize];
        let own = self.own.0;
        match self.chance.below(self.kinds) {
            0..3 => vec![self.request(client, server)],
            3..5 => vec![self.request(own, server)],
            5 => {
                let bth = Bth::new(Opcode(0xc4), self.qpn(), self.psn());
                vec![self.packet(own, server, bth, &[], &[7; 16])]
            }
            6 => {
                let comm_id = self.chance.bits() as u32;
                let mut req = Req::new_zeroed();
                req.local_comm_id = comm_id.into();
                req.set_qpn(self.qpn());
                req.set_starting_psn(self.psn());
                let mut rep = Rep::new_zeroed();
                rep.remote_comm_id = comm_id.into();
                rep.set_qpn(self.qpn());
                rep.set_starting_psn(self.psn());
                vec![
                    self.datagram(client, server, Kind::Req, &req),
                    self.datagram(server, client, Kind::Rep, &rep),
                ]
            }
            _ => {
                let mut dreq = Dreq::new_zeroed();
                dreq.set_remote_qpn(self.qpn());
                dreq.local_comm_id = (self.chance.bits() as u32).into();
                dreq.remote_comm_id = (self.chance.bits() as u32).into();
                vec![self.datagram(client, server, Kind::Dreq, &dreq)]
            }
        }
    }
}

impl Node for Liar {
    fn on_frame(&mut self, _frame: MemoryFrame, _port: PortId, _now: Nanos, _out: &mut Ports<'_>) {}

    fn on_timer(&mut self, now: Nanos, out: &mut Ports<'_>) {
        while self.left > 0 && self.next <= now {
            self.left -= 1;
            self.next = now + Nanos(self.chance.below(20_000));
            for frame in self.lie() {
                _ = out.send(MemoryFrame::new(frame), PortId(0));
            }
        }
    }

    fn next_timer(&self) -> Option<Nanos> {
        (self.left > 0).then_some(self.next)
    }

    fn start(&mut self, _now: Nanos, _out: &mut Ports<'_>) {}
}
