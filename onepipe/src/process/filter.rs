//! Check of received frames: datagrams for this process, with the right key and checksums.
//!
//! A process has the queue pair of its configuration, and as a member of the reliable service that of its
//! incarnation.

use crate::datagram::{Datagram, Expected};
use crate::header::OnePipe;
use rocev2::{Opcode, Packet, Qpn};

use super::bug::Bug;
use super::config::{Config, Peer};
use super::counters::Refusal;

/// Headers that a datagram for this process has to match.
#[derive(Clone, Debug)]
pub(super) struct Filter {
    /// Expected headers of datagrams without options, to either queue pair
    expected: Expected,
    own: Peer,
    /// Queue pair of this process's incarnation; that of the configuration before it has one
    member_qpn: Qpn,
    qkey: u32,
    /// Planted bug: any queue pair is this process's
    is_lax: bool,
}

impl Filter {
    pub(super) fn new(config: &Config) -> Self {
        let (own, qkey) = (config.own, config.qkey);
        let expected = Expected::new(own.mac, own.address, own.qpn, qkey);
        let is_lax = config.has_bug(Bug::OtherIncarnation);
        Self { expected, own, member_qpn: own.qpn, qkey, is_lax }
    }

    /// Sets the queue pair of this process's incarnation: frames of the reliable service to another one are
    /// refused.
    pub(super) fn set_member(&mut self, qpn: Qpn) {
        self.member_qpn = qpn;
        self.expected.set_other(qpn);
    }

    /// Returns whether a datagram is for this process's incarnation.
    #[inline]
    pub(super) fn is_to_member(&self, datagram: &Datagram<'_>) -> bool {
        datagram.dest_qp == self.member_qpn
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
        let to = packet.bth().dest_qp();
        if packet.layout().opcode() != Opcode::UD_SEND_ONLY
            || to != self.own.qpn && to != self.member_qpn && !self.is_lax
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
        let (src, src_qp, ecn) = (packet.src(), deth.src_qp(), packet.ecn());
        Ok(Datagram { src, src_qp, dest_qp: to, ecn, header, payload })
    }
}
