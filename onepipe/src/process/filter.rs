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
    /// Expected headers of datagrams without options
    expected: Expected,
    /// The same, to the queue pair of this process's incarnation
    expected_by_member: Expected,
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
        Self { expected, expected_by_member: expected, own, member_qpn: own.qpn, qkey, is_lax }
    }

    /// Sets the queue pair of this process's incarnation: frames of the reliable service to another one are
    /// refused.
    pub(super) fn set_member(&mut self, qpn: Qpn) {
        self.member_qpn = qpn;
        self.expected_by_member = Expected::new(self.own.mac, self.own.address, qpn, self.qkey);
    }

    /// Returns whether the incarnation has the queue pair of the configuration.
    #[inline]
    pub(super) fn has_one_queue_pair(&self) -> bool {
        self.member_qpn == self.own.qpn
    }

    /// Reads a datagram without options for this process. Returns `None` if the frame has to be
    /// [read otherwise](Self::read_other).
    #[inline]
    pub(super) fn read<'a>(&self, frame: &'a [u8]) -> Option<Datagram<'a>> {
        self.expected.read(frame)
    }

    /// Reads a datagram to the queue pair of this process's incarnation, or with options; or returns why it is
    /// refused. The flag tells whether it is for the incarnation.
    #[inline(never)]
    pub(super) fn read_other<'a>(&self, frame: &'a [u8]) -> Result<(Datagram<'a>, bool), Refusal> {
        match self.expected_by_member.read(frame) {
            Some(datagram) => Ok((datagram, true)),
            None => self.parse(frame),
        }
    }

    /// Parses a datagram with options, extension headers or tags; or returns why it is refused. The flag tells
    /// whether it is for this process's incarnation.
    #[cold]
    fn parse<'a>(&self, frame: &'a [u8]) -> Result<(Datagram<'a>, bool), Refusal> {
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
        let datagram =
            Datagram { src: packet.src(), src_qp: deth.src_qp(), ecn: packet.ecn(), header, payload };
        Ok((datagram, to == self.member_qpn))
    }
}
