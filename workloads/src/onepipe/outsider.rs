//! A host that takes no part in 1Pipe and sends forged datagrams to all hosts and switches: from its own
//! address, and from other addresses where its position in the network reveals the forgery.

use super::addresses::{Addresses, CLOCK, FIRST_QP, HOST_QP, REGISTERS};
use core::net::Ipv4Addr;
use onepipe::{AckBody, OnePipe, OnePipeOpcode, Timestamp};
use rocev2::deth::Deth;
use rocev2::ethernet::MacAddr;
use rocev2::reth::Reth;
use rocev2::{Bth, Opcode, Psn, Qpn};
use sim::{Node, Ports, forged_packet};
use switch::memory::MemoryFrame;
use switch::{Nanos, Output, PortId, Rng};
use zerocopy::IntoBytes;

/// Position of the host, and what it sends.
#[derive(Clone, Copy, Debug)]
pub struct Outsider {
    /// Number of the switch that it is connected to
    pub switch: usize,
    /// Number of forged packets
    pub forged_packets: u32,
    /// Whether all of them are messages to one host, which refuses them
    pub floods: bool,
}

/// Addresses of its own interface
pub(super) const OWN: Addresses =
    Addresses { mac: MacAddr([2, 0, 0, 2, 0, 0]), ip: Ipv4Addr::new(10, 2, 0, 0), qpn: HOST_QP };

/// The host that forges packets.
pub(super) struct Forger {
    pub(super) rng: Rng,
    pub(super) left: u32,
    /// Number of the switch that it is connected to
    pub(super) switch: usize,
    pub(super) next: Nanos,
    /// Addresses of all hosts, then of all representatives with their first queue pair
    pub(super) all: Vec<Addresses>,
    pub(super) hosts: usize,
    /// For each entry of `all`, whether the node or its switch sees the port that a frame came through, and
    /// so refuses forged beacons
    pub(super) sees_ports: Vec<bool>,
    /// Host that receives all messages, one per microsecond on average, if it floods
    pub(super) flooded: Option<usize>,
}

impl Forger {
    /// Returns a random header that would do harm: with a time near the present, or any time.
    fn header(&mut self, now: Nanos) -> OnePipe {
        let opcodes = [OnePipeOpcode::BEACON, OnePipeOpcode::DATA, OnePipeOpcode::ACK, OnePipeOpcode::NAK];
        let opcode = match self.rng.below(8) {
            0..4 => OnePipeOpcode::BEACON,
            4..7 => *self.rng.pick(&opcodes),
            _ => OnePipeOpcode(self.rng.below(8) as u8),
        };
        let near = CLOCK.nanos() + now.0 + self.rng.below(200_000);
        let time = if self.rng.below(2) == 0 { near - 100_000 } else { self.rng.bits() };
        let mut header = OnePipe::new(opcode, Timestamp::new(time), Psn::new(self.rng.bits() as u32));
        if self.rng.below(16) == 0 {
            header.version = self.rng.bits() as u8;
        }
        header.set_commit((self.rng.below(2) == 0).then(|| Timestamp::new(time)));
        header.set_nothing_follows(self.rng.below(4) == 0);
        header.set_first(self.rng.below(4) != 0);
        header.set_end_of_message(self.rng.below(4) != 0);
        header
    }

    /// Returns a message that its receiver refuses, because the sender is unknown or because of its ICRC.
    fn refused_message(&mut self, now: Nanos, to: Addresses) -> Vec<u8> {
        let time = Timestamp::new(CLOCK.nanos() + now.0);
        let header = OnePipe::new(OnePipeOpcode::DATA, time, Psn::new(self.rng.bits() as u32));
        let payload = [header.as_bytes(), &[7; 8]].concat();
        let bth = Bth::new(Opcode::UD_SEND_ONLY, to.qpn, Psn::ZERO);
        let deth = Deth::new(OnePipe::QKEY, OWN.qpn);
        let mut frame = self.packet(OWN, to, bth, deth.as_bytes(), &payload);
        if self.rng.below(2) == 0
            && let Some(last) = frame.last_mut()
        {
            *last ^= 1;
        }
        frame
    }

    fn forge(&mut self, now: Nanos) -> Vec<u8> {
        if let Some(host) = self.flooded {
            return self.refused_message(now, self.all[host]);
        }
        let nth = self.rng.below(self.all.len() as u64) as usize;
        let (mut to, is_keeper) = (self.all[nth], nth >= self.hosts);
        if is_keeper {
            to.qpn = Qpn::new(to.qpn.get() + self.rng.below(8) as u32);
        }
        let mut from = OWN;
        let sees_ports = self.sees_ports[nth];
        if sees_ports && self.rng.below(4) == 0 {
            // A keeper, with its queue pair; in half of the cases the keeper of the switch that the frame
            // passes first
            let any = self.rng.below((self.all.len() - self.hosts) as u64) as usize;
            let keeper = if self.rng.below(2) == 0 { self.switch } else { any };
            from.ip = self.all[self.hosts + keeper].ip;
            from.qpn = Qpn::new(FIRST_QP.get() + self.rng.below(4) as u32);
        } else if (sees_ports || !is_keeper) && self.rng.below(2) == 0 {
            from.ip = self.rng.pick(&self.all).ip;
            // With the right queue pair, hosts would accept it.
            from.qpn = Qpn::new(HOST_QP.get() + 0x1000);
        }
        let header = self.header(now);
        let psn = Psn::new(self.rng.bits() as u32);
        let mut payload = header.as_bytes().to_vec();
        if is_keeper && self.rng.below(3) == 0 {
            let link = to.qpn.get().saturating_sub(FIRST_QP.get()) as u16;
            let reth = Reth {
                va: REGISTERS.va_of(link).into(),
                rkey: REGISTERS.rkey.into(),
                len: (OnePipe::LEN as u32).into(),
            };
            let bth = Bth::new(Opcode::UC_WRITE_ONLY, to.qpn, psn);
            return self.packet(from, to, bth, reth.as_bytes(), &payload);
        }
        payload.resize(OnePipe::LEN + AckBody::LEN + self.rng.below(100) as usize, 7);
        let qkey = if self.rng.below(8) == 0 { self.rng.bits() as u32 } else { OnePipe::QKEY };
        let bth = Bth::new(Opcode::UD_SEND_ONLY, to.qpn, psn);
        self.packet(from, to, bth, Deth::new(qkey, from.qpn).as_bytes(), &payload)
    }

    fn packet(
        &mut self,
        from: Addresses,
        mut to: Addresses,
        bth: Bth,
        extended: &[u8],
        payload: &[u8],
    ) -> Vec<u8> {
        if self.rng.below(16) == 0 {
            // An unknown MAC address, to which bridges flood
            to.mac.0[4] = 0x77;
        }
        let ends = (from.ip.into(), OWN.mac, (to.ip.into(), to.mac));
        forged_packet(ends, self.rng.bits() as u16, bth, &[extended], payload)
    }
}

impl Node for Forger {
    fn on_frame(&mut self, _frame: MemoryFrame, _port: PortId, _now: Nanos, _out: &mut Ports<'_>) {}

    fn on_timer(&mut self, now: Nanos, out: &mut Ports<'_>) {
        while self.left > 0 && self.next <= now {
            self.left -= 1;
            let most = if self.flooded.is_some() { 2000 } else { 4000 };
            self.next = now + Nanos(self.rng.below(most));
            let frame = self.forge(now);
            _ = out.send(MemoryFrame::new(frame), PortId(0));
        }
    }

    fn next_timer(&self) -> Option<Nanos> {
        (self.left > 0).then_some(self.next)
    }

    fn start(&mut self, _now: Nanos, _out: &mut Ports<'_>) {}
}
