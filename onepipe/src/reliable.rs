//! Bodies of the packets of the reliable service, behind the [header](crate::OnePipe) (1Pipe, section 5).
//!
//! The paper names these packets and gives no layout; this project chose the layout. None of them carries a
//! barrier.

use rocev2::Psn;
use zerocopy::byteorder::network_endian::{U32, U128};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Body of a RELIABLE_ACK, 32 bytes: the complete state of a receiver. The header has the highest PSN received
/// and the latest timestamp of a run.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, Default, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
)]
#[repr(C)]
pub struct ReliableAckBody {
    /// Bit n: the packet n + 1 behind [`next`](Self::next) is held, or need not be sent again
    pub held: U128,
    /// Number of packets received, duplicates included
    pub packets: U32,
    /// Number of received packets that a switch had marked "congestion experienced"
    pub marked: U32,
    /// Receive window from [`next`](Self::next) on, in bytes as the sender counts them
    pub window: U32,
    next: [u8; 3],
    reserved: u8,
}

impl ReliableAckBody {
    /// Length on the wire, in bytes
    pub const LEN: usize = size_of::<Self>();
    /// Number of packets that [`held`](Self::held) covers
    pub const HISTORY: usize = u128::BITS as usize;

    /// Returns the PSN before which all packets are acknowledged: their runs are complete, or recalled.
    pub const fn next(&self) -> Psn {
        Psn::from_wire(self.next)
    }

    /// Sets the PSN before which all packets are acknowledged.
    pub const fn set_next(&mut self, psn: Psn) {
        self.next = psn.to_wire();
    }
}

/// What a receiver did on a recall.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecallResult {
    /// Dropped packets of the run
    Dropped,
    /// Had none of its packets, or has dropped them before
    WasNotThere,
    /// The run had been delivered: a commit barrier was too high
    Delivered,
}

/// Body of a RECALL and of a RECALL_ACK, 8 bytes: the packets of a run that are recalled. The PSN of the
/// header is the last of them, by which an answer is recognised; the timestamp is that of the run, or 0 if it
/// has none.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, Default, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
)]
#[repr(C)]
pub struct RecallBody {
    first: [u8; 3],
    /// RECALL: 1 if the run was not stamped. RECALL_ACK: number of a [`RecallResult`]
    code: u8,
    last: [u8; 3],
    reserved: u8,
}

impl RecallBody {
    /// Length on the wire, in bytes
    pub const LEN: usize = size_of::<Self>();
    const NOT_STAMPED: u8 = 1;

    /// Returns the body of a RECALL of the packets from `first` to `last`.
    pub fn recall(first: Psn, last: Psn, stamped: bool) -> Self {
        let code = if stamped { 0 } else { Self::NOT_STAMPED };
        Self { first: first.to_wire(), code, last: last.to_wire(), reserved: 0 }
    }

    /// Returns the body of the answer.
    #[must_use]
    pub const fn answer(self, result: RecallResult) -> Self {
        Self { code: result as u8, ..self }
    }

    /// Returns the first and the last PSN.
    pub const fn packets(&self) -> (Psn, Psn) {
        (Psn::from_wire(self.first), Psn::from_wire(self.last))
    }

    /// Returns, of a RECALL, whether the run has a timestamp, or `None` if the code is undefined.
    pub const fn is_stamped(&self) -> Option<bool> {
        match self.code {
            0 => Some(true),
            Self::NOT_STAMPED => Some(false),
            _ => None,
        }
    }

    /// Returns, of a RECALL_ACK, what the receiver did, or `None` if the code is undefined.
    pub const fn result(&self) -> Option<RecallResult> {
        match self.code {
            0 => Some(RecallResult::Dropped),
            1 => Some(RecallResult::WasNotThere),
            2 => Some(RecallResult::Delivered),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bodies_have_the_documented_layout() {
        let mut ack = ReliableAckBody::default();
        (ack.held, ack.packets, ack.marked) = (1.into(), 2.into(), 3.into());
        ack.window = 4.into();
        ack.set_next(Psn::new(0x05_0607));
        let wire =
            [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0, 4, 5, 6, 7, 0];
        assert_eq!((ack.as_bytes(), ack.next()), (&wire[..], Psn::new(0x05_0607)));
        let recall = RecallBody::recall(Psn::new(0x01_0203), Psn::new(0x04_0506), false);
        assert_eq!(recall.as_bytes(), [1, 2, 3, 1, 4, 5, 6, 0]);
        assert_eq!((recall.is_stamped(), recall.packets().1), (Some(false), Psn::new(0x04_0506)));
        let answer = recall.answer(RecallResult::Delivered);
        assert_eq!((answer.as_bytes()[3], answer.result()), (2, Some(RecallResult::Delivered)));
        let undefined = RecallBody::read_from_bytes(&[0, 0, 0, 9, 0, 0, 0, 0]).unwrap();
        assert_eq!((undefined.is_stamped(), undefined.result()), (None, None));
    }
}
