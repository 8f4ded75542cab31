//! Packets of a stream that are all alike but for their queue pair, PSN, place and time: how they are made.

use crate::message::{Part, Va};
use crate::template::{Address, Template};
use rocev2::Psn;
use rocev2::icrc::{Changes, Weight};
use switch::{Output, PortId};

/// In the word with the PSN: an acknowledgement is asked for
const ACK_REQ: u32 = 1 << 31;

/// A queue pair.
#[derive(Clone, Copy)]
pub(crate) struct Qp {
    /// The next PSN; it does not wrap with 24 bits, so that it is known how often that has
    pub(crate) position: u32,
    pub(crate) address: Address,
    /// If all packets are alike: what its address changes the one template by
    pub(crate) effect: u32,
}

impl Qp {
    /// The PSN that its next packet has.
    #[inline]
    pub(crate) const fn psn(&self) -> Psn {
        Psn::new(self.position)
    }
}

/// What packets of one kind are made of. Everything is asked once a burst that is the same in all of its packets.
pub(crate) struct Alike<'a> {
    pub(crate) template: &'a Template,
    pub(crate) queue_pairs: &'a mut [Qp],
    /// Empty, if all ask for acknowledgements, or none does
    pub(crate) unasked: &'a mut [u32],
    pub(crate) ack_every: u32,
    pub(crate) step: u32,
    pub(crate) place: Place,
}

/// The lower half of an address in memory, which stands behind the BTH's first word after it: in a packet that names no place, or
/// always the same, what the template has there.
#[derive(Clone, Copy)]
pub(crate) struct Place {
    /// Of the first place
    first: u32,
    /// From one to the next
    len: u32,
    weight: Weight,
}

impl Place {
    /// None, if more than four bytes differ, or there is nothing at that place.
    pub(crate) fn of(part: &Part, va: u64, slot_len: u64) -> Option<Self> {
        let at = part.template.extended() + 4;
        match part.va {
            // What stands there is not the ICRC.
            Va::Fixed if at + 8 <= part.template.bytes.len() => {
                Some(Self { first: 0, len: 0, weight: Weight::NONE })
            }
            Va::Low(place, weight) if place == at => {
                Some(Self { first: va as u32, len: slot_len as u32, weight })
            }
            _ => None,
        }
    }

    /// Whether there are several.
    pub(crate) const fn differs(self) -> bool {
        self.len != 0
    }
}

impl Alike<'_> {
    /// Sends so many, unless buffers run out; how many it were. `choose` says the next queue pair, and place. The UDP header begins
    /// at `UDP`, and the place in memory ends at `HEAD`.
    #[inline]
    pub(crate) fn send<const UDP: usize, const HEAD: usize, O: Output>(
        &mut self,
        most: u64,
        port: PortId,
        out: &mut O,
        mut choose: impl FnMut() -> (u32, u32),
    ) -> u64 {
        let Place { first, len, weight } = self.place;
        let (bytes, icrc, psn_weight) =
            (&*self.template.bytes, self.template.icrc(), self.template.psn_weight());
        let as_it_is = bytes[..HEAD].last_chunk().expect("four bytes of some");
        let first = if len == 0 { u32::from_be_bytes(*as_it_is) } else { first };
        let always = if self.ack_every > 0 { ACK_REQ } else { 0 };
        let step = self.step;
        let (queue_pairs, unasked, ack_every) = (&mut *self.queue_pairs, &mut *self.unasked, self.ack_every);
        let all_alike = unasked.is_empty();
        out.send_copies(bytes, most as usize, port, |copy| {
            let (n, slot) = choose();
            let qp = &mut queue_pairs[n as usize];
            let ack_req = if all_alike || asks(unasked, n, ack_every) { always } else { 0 };
            let psn = qp.psn().get() | ack_req;
            let va = first.wrapping_add(slot.wrapping_mul(len));
            qp.position = qp.position.wrapping_add(step);
            let mut changes = Changes::new();
            changes.add_weighted(psn.swap_bytes(), psn_weight);
            changes.add_weighted(va.swap_bytes(), weight);
            let icrc = icrc ^ qp.effect ^ changes.effect();
            let to = qp.address;
            let head = copy.first_chunk_mut::<HEAD>().expect("a copy is as long as the template");
            // In the word with the queue pair, the first byte is one that the ICRC leaves out, and stays 0.
            let words = u64::from(to.qpn()) << 32 | u64::from(psn);
            head[UDP..UDP + 2].copy_from_slice(&to.src_port().to_be_bytes());
            head[HEAD - 16..HEAD - 8].copy_from_slice(&words.to_be_bytes());
            head[HEAD - 4..].copy_from_slice(&va.to_be_bytes());
            *copy.last_chunk_mut().expect("a copy is as long as the template") = icrc.to_le_bytes();
        }) as u64
    }
}

/// Whether this message of a queue pair is to be acknowledged.
#[inline]
pub(crate) fn asks(unasked: &mut [u32], qp: u32, every: u32) -> bool {
    let Some(unasked) = unasked.get_mut(qp as usize) else { return true };
    *unasked += 1;
    if *unasked < every {
        return false;
    }
    *unasked = 0;
    true
}
