//! Frames made by copying a template: between two hosts, with the offsets of the fields that differ from
//! packet to packet. [`rocev2::template`] has their ICRC.

use crate::profile::HostAddress;
use rocev2::aeth::{Aeth, Credit, Syndrome};
use rocev2::ethernet::Ethernet;
use rocev2::icrc::{Changes, Weight};
use rocev2::opcode::Headers;
use rocev2::repr::{Extended, Ip, Repr};
use rocev2::template::{self, Fields};
use rocev2::udp::Udp;
use rocev2::{Bth, Class, Layout, Msn, Opcode, Psn, Qpn, classify};
use zerocopy::IntoBytes as _;

/// Offset in the BTH of the word with the PSN
const PSN_WORD: usize = 8;
/// First UDP source port of the range that RoCEv2 uses; the lower 14 bits tell flows apart
const SRC_PORTS: u32 = 0xc000;

/// Bytes between the UDP header's first word and the word with the queue pair number
const FLOW_TO_QPN: usize = Udp::LEN;

/// Destination of packets: a queue pair number, the source port of its flow, and their contribution to the
/// ICRC.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Address {
    qpn: u32,
    effect: u32,
}

impl Address {
    #[inline]
    pub(crate) fn new(qpn: u32) -> Self {
        // Shifted to the word with the queue pair number, so that both contribute as one word from there on
        let mut flow = Changes::new();
        flow.add_word((Self::flow(qpn) << 16).swap_bytes(), FLOW_TO_QPN);
        Self { qpn, effect: flow.effect() ^ qpn.swap_bytes() }
    }

    /// Returns the queue pair number.
    #[inline]
    pub(crate) const fn qpn(self) -> u32 {
        self.qpn
    }

    /// Returns the UDP source port of packets to the queue pair.
    #[inline]
    pub(crate) const fn src_port(self) -> u16 {
        (SRC_PORTS | Self::flow(self.qpn)) as u16
    }

    /// Returns 14 bits that differ between queue pairs.
    #[inline]
    const fn flow(qpn: u32) -> u32 {
        qpn.wrapping_mul(0x9e37_79b1) >> 18
    }
}

/// A frame of one kind, ready to be copied.
#[derive(Clone, Debug)]
pub(crate) struct Template {
    pub(crate) bytes: Box<[u8]>,
    /// Offset of the UDP header
    udp: usize,
    /// Offset of the payload
    pub(crate) payload: usize,
    /// The frame with all fields to be overwritten set to 0
    pub(crate) zeroed: template::Template,
    has_aeth: bool,
    /// Weights of the words with the queue pair number and with the PSN
    qpn_weight: Weight,
    psn_weight: Weight,
}

impl Template {
    /// Creates the template of a frame between two hosts. The payload counts up, but for its first `zeros`
    /// bytes, which are to be overwritten.
    pub(crate) fn new(
        from: HostAddress,
        to: HostAddress,
        opcode: Opcode,
        extended: Extended,
        payload: usize,
        zeros: usize,
    ) -> Self {
        let payload: Vec<u8> = (0..payload).map(|at| if at < zeros { 0 } else { at as u8 }).collect();
        let ip = Ip::between(from.ip, to.ip, 0);
        let ethernet = Ethernet { dst: to.mac, src: from.mac, ethertype: ip.ethertype().into() };
        let mut repr = Repr::new(ethernet, ip, Bth::new(opcode, Qpn::default(), Psn::ZERO));
        repr.extended = extended;
        repr.payload = &payload;
        // With the padding of the payload
        let mut bytes = vec![0; repr.frame_len() + payload.len().wrapping_neg() % 4];
        repr.build(&mut bytes)
            .expect("the buffer has the length of the frame, which fits the IP length field");
        let layout = layout(&bytes);
        let zeroed = template::Template::new(&bytes, &layout);
        Self {
            bytes: bytes.into(),
            udp: layout.udp(),
            payload: layout.payload(),
            zeroed,
            has_aeth: opcode.headers().contains(Headers::AETH),
            qpn_weight: zeroed.weight(layout.bth() + Bth::DEST_QP_WORD),
            psn_weight: zeroed.weight(layout.bth() + PSN_WORD),
        }
    }

    /// Begins to overwrite a copy: sets the queue pair, the PSN, and the AckReq bit.
    #[inline]
    pub(crate) fn begin<'a>(&self, bytes: &'a mut [u8], to: Address, psn: u32, ack_req: bool) -> Fields<'a> {
        let mut fields = self.zeroed.begin(bytes);
        let psn = psn | u32::from(ack_req) << 31;
        self.write_head(fields.bytes_mut(), to.qpn, psn);
        fields.add_weighted(to.effect, self.qpn_weight);
        fields.add_weighted(psn.swap_bytes(), self.psn_weight);
        fields
    }

    /// Returns what a destination contributes to the ICRC of copies.
    pub(crate) fn effect_of_address(&self, to: Address) -> u32 {
        let mut changes = Changes::new();
        changes.add_weighted(to.effect, self.qpn_weight);
        changes.effect()
    }

    #[inline]
    fn write_head(&self, bytes: &mut [u8], qpn: u32, psn: u32) {
        let head = bytes[self.udp..].first_chunk_mut::<{ Udp::LEN + Bth::LEN }>();
        let head = head.expect("a copy is as long as the template");
        head[..2].copy_from_slice(&((SRC_PORTS | Address::flow(qpn)) as u16).to_be_bytes());
        // The first byte of the word is one that the ICRC excludes, and stays 0.
        head[Udp::LEN + Bth::DEST_QP_WORD..][..4].copy_from_slice(&qpn.to_be_bytes());
        head[Udp::LEN + PSN_WORD..][..4].copy_from_slice(&psn.to_be_bytes());
    }

    /// Returns the weight of the word with the PSN.
    pub(crate) const fn psn_weight(&self) -> Weight {
        self.psn_weight
    }

    /// Replaces eight bytes of the template: all further copies have the new ones.
    #[inline]
    pub(crate) fn change_u64(&mut self, at: usize, old: u64, new: u64) {
        self.zeroed.add_effect(self.zeroed.effect_of_u64(at, old ^ new));
        self.bytes[at..at + 8].copy_from_slice(&new.to_be_bytes());
    }

    /// Returns whether the frame has an AETH, whose MSN is to be overwritten.
    pub(crate) const fn has_aeth(&self) -> bool {
        self.has_aeth
    }

    /// Returns the offset of the headers behind the BTH.
    pub(crate) const fn extended(&self) -> usize {
        self.udp + Udp::LEN + Bth::LEN
    }
}

/// Returns the layout of a frame that was built here.
pub(crate) fn layout(frame: &[u8]) -> Layout {
    match classify(frame) {
        Class::Roce(layout) => layout,
        other => unreachable!("what was built parses: {other:?}"),
    }
}

/// Returns an acknowledgement's AETH before the MSN is written: unlimited credits.
pub(crate) fn acknowledging() -> Extended {
    let aeth = Aeth::new(Syndrome::Ack(Credit::UNLIMITED), Msn::ZERO);
    let mut extended = Extended::default();
    extended.aeth.copy_from_slice(aeth.as_bytes());
    extended
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use rocev2::Packet;

    proptest! {
        #[test]
        fn an_overwritten_copy_has_its_fields_and_a_valid_icrc(
            v6: bool,
            opcode in prop::sample::select(vec![Opcode::RC_WRITE_ONLY, Opcode::RC_SEND_MIDDLE, Opcode::RC_COMPARE_SWAP, Opcode::RC_ACKNOWLEDGE]),
            payload in 24usize..1500,
            qpn in 0u32..1 << 24,
            psn in 0u32..1 << 24,
            ack: bool,
            long: u64,
            time: u64,
            low in 0u32..1 << 24,
        ) {
            let ip = |n: u8| if v6 { format!("fd00::{n}") } else { format!("10.0.0.{n}") }.parse().unwrap();
            let host = |n: u8| HostAddress { mac: rocev2::ethernet::MacAddr([2, 0, 0, 0, 0, n]), ip: ip(n) };
            let payload = if opcode.info().unwrap().payload { payload } else { 0 };
            let mut template = Template::new(host(1), host(2), opcode, acknowledging(), payload, 24);
            prop_assert!(Packet::parse(&template.bytes).unwrap().verify_icrc(), "the unchanged template");
            if payload > 0 {
                // Twice, as in two consecutive turns
                template.change_u64(template.payload + 8, 0, long);
                template.change_u64(template.payload + 8, long, time);
            }
            let mut frame = template.bytes.to_vec();
            let to = Address::new(qpn);
            let mut fields = template.begin(&mut frame, to, psn, ack);
            if payload > 0 {
                fields.set_u64(template.payload, long);
                let at = template.payload + 16;
                fields.set_words(at, &long.to_le_bytes()[..4]);
                fields.set_u32_weighted(at + 4, low, template.zeroed.weight(at + 4));
            }
            if opcode == Opcode::RC_ACKNOWLEDGE {
                fields.set_u24(template.extended(), low);
            }
            fields.finish();
            let packet = Packet::parse(&frame).unwrap();
            prop_assert!(packet.verify_icrc());
            let bth = packet.bth();
            prop_assert_eq!((bth.dest_qp().get(), bth.psn().get(), bth.ack_req()), (qpn, psn, ack));
            prop_assert!(packet.udp().src_port.get() >= 0xc000);
            prop_assert_eq!(packet.payload().len(), payload);
            if let Some(aeth) = packet.aeth() {
                prop_assert_eq!((aeth.kind(), aeth.msn().get()), (Syndrome::Ack(Credit::UNLIMITED), low));
            }
        }
    }
}
