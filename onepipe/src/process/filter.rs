//! Check of received frames: datagrams for this process, with the right key and checksums.

use crate::datagram::{Datagram, Expected};
use crate::header::OnePipe;
use rocev2::{Opcode, Packet};

use super::config::{Config, Peer};
use super::counters::Refusal;

/// Headers that a datagram for this process has to match.
#[derive(Debug)]
pub(super) struct Filter {
    /// Expected headers of datagrams without options
    expected: Expected,
    own: Peer,
    qkey: u32,
}

impl Filter {
    pub(super) fn new(config: &Config) -> Self {
        let (own, qkey) = (config.own, config.qkey);
        Self { expected: Expected::new(own.mac, own.address, own.qpn, qkey), own, qkey }
    }

    /// Reads a datagram without options for this process. Returns `None` if the frame has to be
    /// [parsed](Self::parse).
    #[inline]
    pub(super) fn read<'a>(&self, frame: &'a [u8]) -> Option<Datagram<'a>> {
        self.expected.read(frame)
    }

    /// Parses a datagram with options, extension headers or tags; or returns why it is refused.
    #[cold]
    pub(super) fn parse<'a>(&self, frame: &'a [u8]) -> Result<Datagram<'a>, Refusal> {
        let packet = Packet::parse(frame).ok_or(Refusal::NotOurs)?;
        if packet.layout().opcode() != Opcode::UD_SEND_ONLY
            || packet.bth().dest_qp() != self.own.qpn
            || packet.ethernet().dst != self.own.mac
            || packet.dst() != self.own.address
        {
            return Err(Refusal::NotOurs);
        }
        let deth = packet.deth().ok_or(Refusal::NotOurs)?;
        if deth.qkey.get() != self.qkey {
            return Err(Refusal::WrongKey);
        }
        if !packet.verify_icrc() {
            return Err(Refusal::Damaged);
        }
        let header = OnePipe::of(&packet).ok_or(Refusal::NoHeader)?;
        let payload = &packet.payload()[OnePipe::LEN..];
        Ok(Datagram { src: packet.src(), src_qp: deth.src_qp(), ecn: packet.ecn(), header, payload })
    }
}
