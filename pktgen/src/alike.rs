//! Packets of a stream that are all alike but for their queue pair, PSN, place and time: how they are made.

use crate::message::{Part, Va};
use crate::template::Address;
use rocev2::Psn;
use switch::{Frame as _, Output, PortId};

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

/// What packets of one kind are made of.
pub(crate) struct Alike<'a> {
    pub(crate) piece: &'a Part,
    pub(crate) queue_pairs: &'a mut [Qp],
    pub(crate) unasked: &'a mut [u32],
    pub(crate) ack_every: u32,
    pub(crate) step: u32,
    pub(crate) va: u64,
    pub(crate) slot_len: u64,
}

impl Alike<'_> {
    /// Sends so many, unless buffers run out; how many it were. `choose` says the next queue pair and, if it is asked for, place.
    #[inline]
    pub(crate) fn send<O: Output>(
        &mut self,
        most: u64,
        port: PortId,
        out: &mut O,
        mut choose: impl FnMut(bool) -> (u32, u32),
    ) -> u64 {
        let piece = self.piece;
        let names_slot = !matches!(piece.va, Va::Fixed);
        for sent in 0..most {
            let Ok(mut frame) = out.make_from(&piece.template.bytes) else { return sent };
            let (n, slot) = choose(names_slot);
            let qp = &mut self.queue_pairs[n as usize];
            let asks = self.ack_every > 0 && asks(self.unasked, n, self.ack_every);
            let to = (qp.address, qp.effect);
            let mut patch = piece.template.begin_known(frame.bytes_mut(), to, qp.psn().get(), asks);
            qp.position = qp.position.wrapping_add(self.step);
            if names_slot {
                piece.write_va(&mut patch, self.va.wrapping_add(u64::from(slot) * self.slot_len));
            }
            piece.write_stamp(&mut patch);
            patch.finish();
            // What is not taken is counted by the runner, and is lost like what others lose.
            _ = out.send(frame, port);
        }
        most
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
