//! Scatterings accepted by a process and not settled yet (1Pipe, sections 2.1 and 6.1).

use core::ops::Range;
use rocev2::Psn;

use super::inbound::cost;
use super::{ProcessId, Scattering};

/// Run: the messages of a scattering for one receiver, at least one, which are sent and accepted as a whole.
#[derive(Debug)]
pub(super) struct Run {
    /// Index of the receiver among the peers
    pub(super) peer: u32,
    /// Its messages, as indices in the scattering's parts
    pub(super) parts: Range<u32>,
    pub(super) state: State,
    /// Number of packets sent, and of those not sent
    pub(super) sent: u32,
    pub(super) left: u32,
    /// Part that the next packet is of, and the packet's offset in the part
    part: u32,
    offset: u32,
    /// First and last of its packets that were sent
    pub(super) first: Psn,
    pub(super) last: Psn,
}

impl Run {
    /// Returns whether `psn` is one of the run's packets that were sent.
    pub(super) fn has(&self, psn: Psn) -> bool {
        self.sent > 0 && psn.distance(self.first) >= 0 && self.last.distance(psn) >= 0
    }
}

/// Progress of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// The run waits for other runs to the same receiver, or for windows, with a packet that is not its last.
    Waiting,
    /// Only the run's last packet is left, and the windows have room for it.
    Ready,
    /// The run was sent, and has a timestamp.
    Sent,
    /// The run was acknowledged, or has failed.
    Settled,
}

/// A message.
#[derive(Clone, Copy, Debug)]
pub(super) struct Part {
    /// Its range in the scattering's bytes
    pub(super) start: u32,
    pub(super) end: u32,
    /// Index of the message in the call
    pub(super) number: u32,
}

/// A scattering.
#[derive(Debug, Default)]
pub(super) struct Entry {
    pub(super) number: u64,
    /// All messages, by receiver
    pub(super) bytes: Vec<u8>,
    pub(super) parts: Vec<Part>,
    pub(super) runs: Vec<Run>,
    /// Number of runs that are not ready
    pub(super) waiting: u32,
    /// Number of runs that are not settled
    pub(super) unsettled: u32,
    /// Number of messages that have failed
    pub(super) failed: u32,
    /// Timestamp, unwrapped, once it has been stamped
    pub(super) time: Option<u64>,
    /// All of its runs are ready, and it has not been sent yet.
    pub(super) is_ready: bool,
}

/// Next packet of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Piece {
    /// Its data, as a range of the scattering's bytes
    pub(super) range: Range<usize>,
    pub(super) first: bool,
    /// A message ends with this packet
    pub(super) end: bool,
}

/// Returns the number of packets of a message of `len` bytes.
pub(super) const fn packets(len: usize, fragment: usize) -> usize {
    // An empty message takes a packet, too.
    if len == 0 { 1 } else { len.div_ceil(fragment) }
}

/// Returns the bytes that a message takes of windows.
pub(super) const fn cost_of(len: usize, fragment: usize) -> usize {
    len + packets(len, fragment) * cost(0)
}

impl Entry {
    /// Fills the entry with a scattering. `order` has (peer, index in `messages`), sorted by receiver.
    pub(super) fn fill(
        &mut self,
        Scattering(number): Scattering,
        messages: &[(ProcessId, &[u8])],
        order: &[(u32, u32)],
        fragment: usize,
    ) {
        self.number = number;
        for &(peer, n) in order {
            let (_, message) = messages[n as usize];
            let start = self.bytes.len() as u32;
            self.bytes.extend_from_slice(message);
            let part = self.parts.len() as u32;
            self.parts.push(Part { start, end: self.bytes.len() as u32, number: n });
            if self.runs.last().is_none_or(|run| run.peer != peer) {
                self.runs.push(Run {
                    peer,
                    parts: part..part,
                    state: State::Waiting,
                    sent: 0,
                    left: 0,
                    part,
                    offset: 0,
                    first: Psn::ZERO,
                    last: Psn::ZERO,
                });
            }
            let run = self.runs.last_mut().expect("one was pushed");
            run.parts.end = part + 1;
            run.left += packets(message.len(), fragment) as u32;
        }
        self.waiting = self.runs.len() as u32;
        self.unsettled = self.waiting;
    }

    /// Clears the entry for the next scattering; keeps its memory if it is small.
    fn clear(&mut self) {
        self.forget_bytes();
        self.parts.clear();
        self.runs.clear();
        (self.failed, self.time, self.is_ready) = (0, None, false);
    }

    /// Discards the bytes, which were sent or will not be.
    pub(super) fn forget_bytes(&mut self) {
        self.bytes.clear();
        self.bytes.shrink_to(1 << 12);
    }

    /// Returns the next packet of a run that has not been sent.
    pub(super) fn piece(&self, run: u32, fragment: usize) -> Piece {
        let run = &self.runs[run as usize];
        let part = self.parts[run.part as usize];
        let start = (part.start + run.offset) as usize;
        let end = (start + fragment).min(part.end as usize);
        let first = run.part == run.parts.start && run.offset == 0;
        Piece { range: start..end, first, end: end == part.end as usize }
    }

    /// Advances a run after the packet `piece` was sent with this PSN.
    pub(super) fn sent(&mut self, run: u32, piece: &Piece, psn: Psn) {
        let run = &mut self.runs[run as usize];
        if piece.first {
            run.first = psn;
        }
        run.last = psn;
        run.sent += 1;
        run.left -= 1;
        if piece.end {
            (run.part, run.offset) = (run.part + 1, 0);
        } else {
            run.offset += piece.range.len() as u32;
        }
    }
}

/// All scatterings, by index.
#[derive(Debug, Default)]
pub(super) struct Scatterings {
    entries: Vec<Entry>,
    free: Vec<u32>,
}

impl Scatterings {
    /// Returns the index of a cleared entry.
    pub(super) fn add(&mut self) -> u32 {
        self.free.pop().unwrap_or_else(|| {
            self.entries.push(Entry::default());
            self.entries.len() as u32 - 1
        })
    }

    pub(super) fn remove(&mut self, index: u32) {
        self.entries[index as usize].clear();
        self.free.push(index);
    }

    #[inline]
    pub(super) fn get(&self, index: u32) -> &Entry {
        &self.entries[index as usize]
    }

    #[inline]
    pub(super) fn get_mut(&mut self, index: u32) -> &mut Entry {
        &mut self.entries[index as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_fragmented_by_receiver() {
        let mut entry = Entry::default();
        let [a, b] = [ProcessId(1), ProcessId(2)];
        let messages: [(_, &[u8]); 4] = [(a, &[1; 25]), (b, &[]), (a, &[2; 10]), (b, &[3; 11])];
        entry.fill(Scattering(4), &messages, &[(0, 0), (0, 2), (1, 1), (1, 3)], 10);
        assert_eq!((entry.waiting, entry.runs.len()), (2, 2));
        let mut cut = Vec::new();
        for run in 0..2 {
            let mut psn = Psn::new(7);
            while entry.runs[run as usize].left > 0 {
                let piece = entry.piece(run, 10);
                cut.push((run, piece.range.len(), piece.first, piece.end));
                entry.sent(run, &piece, psn);
                psn = psn.add(1);
            }
        }
        let wanted = [
            (0, 10, true, false),
            (0, 10, false, false),
            (0, 5, false, true),
            (0, 10, false, true),
            (1, 0, true, true),
            (1, 10, false, false),
            (1, 1, false, true),
        ];
        assert_eq!(cut, wanted);
        assert_eq!((entry.runs[0].first, entry.runs[0].last), (Psn::new(7), Psn::new(10)));
        assert_eq!(
            (packets(0, 10), packets(10, 10), packets(11, 10), cost_of(11, 10)),
            (1, 1, 2, 11 + 2 * 64)
        );
    }
}
