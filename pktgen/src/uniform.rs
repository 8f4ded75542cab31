//! Fast path for a stream whose packets differ only in queue pair, PSN, slot and time. It writes the fields
//! without [`Fields`](rocev2::template::Fields): constant offsets need one bounds check a packet, and the
//! contribution of the destination is that of its queue pair in the only template, computed once.

use crate::message::{PacketTemplate, Va};
use crate::template::{Address, Template};
use rocev2::Psn;
use rocev2::icrc::{Changes, Weight};
use switch::{Output, PortId};

/// AckReq bit, in the word with the PSN
const ACK_REQ: u32 = 1 << 31;

/// State of a queue pair.
#[derive(Clone, Copy)]
pub(crate) struct Qp {
    /// Next position: a PSN that does not wrap at 24 bits, so that the number of wraps is known
    pub(crate) position: u32,
    pub(crate) address: Address,
    /// Contribution of its address to the ICRC of the only template, if all packets are alike
    pub(crate) effect: u32,
}

impl Qp {
    /// Returns the PSN of its next packet.
    #[inline]
    pub(crate) const fn psn(&self) -> Psn {
        Psn::new(self.position)
    }
}

/// Parameters of the packets of a burst. Everything that is the same in all of them is read once a burst.
pub(crate) struct UniformBurst<'a> {
    pub(crate) template: &'a Template,
    pub(crate) queue_pairs: &'a mut [Qp],
    /// Messages since the last AckReq, by queue pair; empty if all messages request acknowledgements, or none
    /// does
    pub(crate) since_ack_req: &'a mut [u32],
    pub(crate) ack_every: u32,
    pub(crate) step: u32,
    pub(crate) address_field: AddressField,
}

/// How the lower half of the virtual address differs. It is the second word behind the BTH. In a packet
/// without an address, or always with the same one, the template's word is kept.
#[derive(Clone, Copy)]
pub(crate) struct AddressField {
    /// Lower half of the first slot's address
    first: u32,
    /// Bytes from one slot to the next
    slot_len: u32,
    weight: Weight,
}

impl AddressField {
    /// Returns `None` if more than four bytes differ, or the packet has no such word.
    pub(crate) fn of(packet_template: &PacketTemplate, va: u64, slot_len: u64) -> Option<Self> {
        let at = packet_template.template.extended() + 4;
        match packet_template.va {
            // The word has to be in front of the ICRC.
            Va::Fixed if at + 8 <= packet_template.template.bytes.len() => {
                Some(Self { first: 0, slot_len: 0, weight: Weight::NONE })
            }
            Va::Low(offset, weight) if offset == at => {
                Some(Self { first: va as u32, slot_len: slot_len as u32, weight })
            }
            _ => None,
        }
    }

    /// Returns whether addresses differ.
    pub(crate) const fn differs(self) -> bool {
        self.slot_len != 0
    }
}

impl UniformBurst<'_> {
    /// Sends `count` packets, or fewer if buffers run out. Returns the packets sent. `choose` returns the
    /// next queue pair and slot. The UDP header begins at `UDP`, and the virtual address ends at `HEAD`.
    #[inline]
    pub(crate) fn send<const UDP: usize, const HEAD: usize, O: Output>(
        &mut self,
        count: u64,
        port: PortId,
        out: &mut O,
        mut choose: impl FnMut() -> (u32, u32),
    ) -> u64 {
        let AddressField { first, slot_len, weight } = self.address_field;
        let (bytes, icrc, psn_weight) =
            (&*self.template.bytes, self.template.zeroed.icrc(), self.template.psn_weight());
        let in_template = bytes[..HEAD].last_chunk().expect("HEAD is at least 4");
        let first = if slot_len == 0 { u32::from_be_bytes(*in_template) } else { first };
        let ack_bit = if self.ack_every > 0 { ACK_REQ } else { 0 };
        let step = self.step;
        let (queue_pairs, since_ack_req, ack_every) =
            (&mut *self.queue_pairs, &mut *self.since_ack_req, self.ack_every);
        let all_or_none = since_ack_req.is_empty();
        out.send_copies(bytes, count as usize, port, |copy| {
            let (n, slot) = choose();
            let qp = &mut queue_pairs[n as usize];
            let ack_req = if all_or_none || requests_ack(since_ack_req, n, ack_every) { ack_bit } else { 0 };
            let psn = qp.psn().get() | ack_req;
            let va = first.wrapping_add(slot.wrapping_mul(slot_len));
            qp.position = qp.position.wrapping_add(step);
            let mut changes = Changes::new();
            changes.add_weighted(psn.swap_bytes(), psn_weight);
            changes.add_weighted(va.swap_bytes(), weight);
            let icrc = icrc ^ qp.effect ^ changes.effect();
            let to = qp.address;
            let head = copy.first_chunk_mut::<HEAD>().expect("a copy is as long as the template");
            // In the word with the queue pair, the first byte is one that the ICRC excludes, and stays 0.
            let words = u64::from(to.qpn()) << 32 | u64::from(psn);
            head[UDP..UDP + 2].copy_from_slice(&to.src_port().to_be_bytes());
            head[HEAD - 16..HEAD - 8].copy_from_slice(&words.to_be_bytes());
            head[HEAD - 4..].copy_from_slice(&va.to_be_bytes());
            *copy.last_chunk_mut().expect("a copy is as long as the template") = icrc.to_le_bytes();
        }) as u64
    }
}

/// Returns whether this message of a queue pair requests an acknowledgement, and counts it.
#[inline]
pub(crate) fn requests_ack(since_ack_req: &mut [u32], qp: u32, every: u32) -> bool {
    let Some(since_ack_req) = since_ack_req.get_mut(qp as usize) else { return true };
    *since_ack_req += 1;
    if *since_ack_req < every {
        return false;
    }
    *since_ack_req = 0;
    true
}
