//! Templates of a stream's messages, packet by packet, ready to be copied.

use crate::profile::{STAMP_LEN, Stream, Verb};
use crate::template::{Template, acknowledging};
use onepipe::OnePipe;
use rocev2::atomic::AtomicEth;
use rocev2::deth::Deth;
use rocev2::icrc::Weight;
use rocev2::opcode::Headers;
use rocev2::repr::Extended;
use rocev2::reth::Reth;
use rocev2::template::Fields;
use rocev2::{Opcode, Qpn};
use switch::Nanos;

/// A packet of a message.
pub(crate) struct PacketTemplate {
    pub(crate) template: Template,
    /// Offset of the time stamp in the frame
    pub(crate) stamp: Option<usize>,
    /// Time stamp that the template holds now
    last_stamp: u64,
    pub(crate) va: Va,
}

/// How a packet carries the virtual address of its request.
#[derive(Clone, Copy)]
pub(crate) enum Va {
    /// No address, or always the same one
    Fixed,
    /// All addresses have the upper half in common: offset of the lower half
    Low(usize, Weight),
    /// Offset of the whole address
    Whole(usize),
}

/// Templates of a message of one size.
pub(crate) struct Message {
    pub(crate) packets: u32,
    pub(crate) first: PacketTemplate,
    pub(crate) middle: Option<PacketTemplate>,
    pub(crate) last: Option<PacketTemplate>,
}

impl PacketTemplate {
    /// Sets the time stamp of all further copies.
    #[inline]
    pub(crate) fn stamp(&mut self, now: Nanos) {
        if let Some(at) = self.stamp
            && self.last_stamp != now.0
        {
            self.template.change_u64(at, self.last_stamp, now.0);
            self.last_stamp = now.0;
        }
    }

    #[inline]
    pub(crate) fn write_va(&self, fields: &mut Fields<'_>, va: u64) {
        match self.va {
            Va::Fixed => {}
            Va::Low(at, weight) => fields.set_u32_weighted(at, va as u32, weight),
            Va::Whole(at) => fields.set_u64(at, va),
        }
    }
}

/// Returns the templates of every message that the stream sends, one for each size.
pub(crate) fn messages(stream: &Stream) -> Box<[Message]> {
    let stamp_end = stream.stamp_end();
    let header_len = if stream.verb.is_onepipe() { OnePipe::LEN } else { 0 };
    let first = stream.memory.va;
    let last = first.wrapping_add(u64::from(stream.memory.slots - 1) * stream.slot_len());
    let upper = (first >> 32 == last >> 32).then_some(first >> 32 << 32);
    let template_of = |opcode: Opcode, extended: Extended, payload: usize| {
        let stamped = stream.stamp && payload >= stamp_end;
        let zeros = if stamped { stamp_end } else { header_len };
        let template = Template::new(stream.src, stream.dst, opcode, extended, payload, zeros);
        let stamp = stamped.then(|| template.payload + stamp_end - STAMP_LEN);
        // RETH and AtomicETH begin with the virtual address.
        let at = template.extended();
        let va = if !names_memory(opcode) || stream.memory.slots == 1 {
            Va::Fixed
        } else if upper.is_some() {
            Va::Low(at + 4, template.zeroed.weight(at + 4))
        } else {
            Va::Whole(at)
        };
        PacketTemplate { template, stamp, last_stamp: 0, va }
    };
    // Upper half of all packets' virtual addresses, or the only address
    let common = if stream.memory.slots == 1 { first } else { upper.unwrap_or(0) };
    let single = |opcode, extended, payload| Message {
        packets: 1,
        first: template_of(opcode, extended, payload),
        middle: None,
        last: None,
    };
    let reth = |size: u32| Extended {
        reth: Reth { va: common.into(), rkey: stream.memory.rkey.into(), len: size.into() },
        ..Extended::default()
    };
    let split = |size: u32, [only, first, middle, last]: [Opcode; 4], extended: Extended| {
        let (packets, mtu) = (stream.packets_of(size), usize::from(stream.mtu));
        if packets == 1 {
            return single(only, extended, size as usize);
        }
        let rest = size as usize - (packets as usize - 1) * mtu;
        Message {
            packets,
            first: template_of(first, extended, mtu),
            middle: (packets > 2).then(|| template_of(middle, Extended::default(), mtu)),
            last: Some(template_of(last, Extended::default(), rest)),
        }
    };
    let writes =
        [Opcode::RC_WRITE_ONLY, Opcode::RC_WRITE_FIRST, Opcode::RC_WRITE_MIDDLE, Opcode::RC_WRITE_LAST];
    let sends = [Opcode::RC_SEND_ONLY, Opcode::RC_SEND_FIRST, Opcode::RC_SEND_MIDDLE, Opcode::RC_SEND_LAST];
    let atomic = |swap_or_add: u64| Extended {
        atomic: AtomicEth {
            va: common.into(),
            rkey: stream.memory.rkey.into(),
            swap_or_add: swap_or_add.into(),
            ..AtomicEth::default()
        },
        ..Extended::default()
    };
    let datagram = Extended { deth: Deth::new(OnePipe::QKEY, Qpn::default()), ..Extended::default() };
    let sizes = stream.sizes.iter();
    match stream.verb {
        Verb::Write => sizes.map(|&size| split(size, writes, reth(size))).collect(),
        Verb::Send => sizes.map(|&size| split(size, sends, Extended::default())).collect(),
        Verb::Read => sizes.map(|&size| single(Opcode::RC_READ_REQUEST, reth(size), 0)).collect(),
        Verb::CompareSwap => [single(Opcode::RC_COMPARE_SWAP, atomic(0), 0)].into(),
        Verb::FetchAdd => [single(Opcode::RC_FETCH_ADD, atomic(1), 0)].into(),
        Verb::Ack { .. } => [single(Opcode::RC_ACKNOWLEDGE, acknowledging(), 0)].into(),
        Verb::OnePipeMessage => {
            let message = |&size: &u32| single(Opcode::UD_SEND_ONLY, datagram, OnePipe::LEN + size as usize);
            sizes.map(message).collect()
        }
        Verb::OnePipeBeacon => [single(Opcode::UD_SEND_ONLY, datagram, OnePipe::LEN)].into(),
    }
}

/// Returns whether packets of this opcode carry a virtual address.
fn names_memory(opcode: Opcode) -> bool {
    let headers = opcode.headers();
    headers.contains(Headers::RETH) || headers.contains(Headers::ATOMIC)
}
