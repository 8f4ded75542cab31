//! Scatterings that were given to a process and of which it is not settled what became (1Pipe, sections 2.1 and 6.1).

use core::ops::Range;
use rocev2::Psn;

use super::inbound::cost;
use super::{ProcessId, Scattering};

/// What a scattering has for one receiver: one message or more, sent and taken as a whole.
#[derive(Debug)]
pub(super) struct Run {
    /// The receiver's place among the peers
    pub(super) peer: u32,
    /// Which of the scattering's parts
    pub(super) parts: Range<u32>,
    pub(super) state: State,
    /// Packets that were sent, and that were not
    pub(super) sent: u32,
    pub(super) left: u32,
    /// The part of which the next packet is, and where in it that begins
    part: u32,
    offset: u32,
    /// Its packets that were sent
    pub(super) first: Psn,
    pub(super) last: Psn,
}

impl Run {
    /// Whether this is one of the packets that were sent
    pub(super) fn has(&self, psn: Psn) -> bool {
        self.sent > 0 && psn.distance(self.first) >= 0 && self.last.distance(psn) >= 0
    }
}

/// How far a run is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// It waits for others to the same receiver, or for windows, with any but its last packet.
    Waiting,
    /// There is room for its last packet, which is all that is left.
    Ready,
    /// It was sent, and has a timestamp.
    Sent,
    /// It was acknowledged, or has failed.
    Settled,
}

/// A message.
#[derive(Clone, Copy, Debug)]
pub(super) struct Part {
    /// Where it stands in the bytes
    pub(super) start: u32,
    pub(super) end: u32,
    /// Which one it was in the call
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
    /// Runs that are not ready
    pub(super) waiting: u32,
    /// Runs that are not settled
    pub(super) unsettled: u32,
    /// Messages that have failed
    pub(super) failed: u32,
    /// On the line, once it has one
    pub(super) time: Option<u64>,
    /// All of its runs are ready, and it was not sent yet.
    pub(super) is_ready: bool,
}

/// The next packet of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Piece {
    /// Its data, in the scattering's bytes
    pub(super) range: Range<usize>,
    pub(super) first: bool,
    /// A message ends with it
    pub(super) end: bool,
}

/// Packets of a message
pub(super) const fn packets(len: usize, fragment: usize) -> usize {
    // An empty message is a packet, too.
    if len == 0 { 1 } else { len.div_ceil(fragment) }
}

/// What a message takes of windows.
pub(super) const fn cost_of(len: usize, fragment: usize) -> usize {
    len + packets(len, fragment) * cost(0)
}

impl Entry {
    /// Takes a scattering in. `order` is the numbers of its messages, by receiver.
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

    /// For the next scattering at this place; its memory is kept, if it is not much.
    fn clear(&mut self) {
        self.forget_bytes();
        self.parts.clear();
        self.runs.clear();
        (self.failed, self.time, self.is_ready) = (0, None, false);
    }

    /// They were sent, or will not be.
    pub(super) fn forget_bytes(&mut self) {
        self.bytes.clear();
        self.bytes.shrink_to(1 << 12);
    }

    /// The next packet of a run that was not sent.
    pub(super) fn piece(&self, run: u32, fragment: usize) -> Piece {
        let run = &self.runs[run as usize];
        let part = self.parts[run.part as usize];
        let start = (part.start + run.offset) as usize;
        let end = (start + fragment).min(part.end as usize);
        let first = run.part == run.parts.start && run.offset == 0;
        Piece { range: start..end, first, end: end == part.end as usize }
    }

    /// That packet was sent.
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

/// All of them, by place.
#[derive(Debug, Default)]
pub(super) struct Scatterings {
    entries: Vec<Entry>,
    free: Vec<u32>,
}

impl Scatterings {
    /// A place for one.
    pub(super) fn add(&mut self) -> u32 {
        self.free.pop().unwrap_or_else(|| {
            self.entries.push(Entry::default());
            self.entries.len() as u32 - 1
        })
    }

    pub(super) fn remove(&mut self, place: u32) {
        self.entries[place as usize].clear();
        self.free.push(place);
    }

    #[inline]
    pub(super) fn get(&self, place: u32) -> &Entry {
        &self.entries[place as usize]
    }

    #[inline]
    pub(super) fn get_mut(&mut self, place: u32) -> &mut Entry {
        &mut self.entries[place as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_cut_by_receiver() {
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
