//! Scatterings accepted by a process and not settled yet (1Pipe, sections 2.1 and 6.1).

use core::ops::Range;
use rocev2::Psn;

use super::super::config::cost;
use super::super::types::{ProcessId, Scattering};

/// Run, as the index of its scattering and its index in the scattering
pub(super) type RunId = (u32, u32);

/// Run: the messages of a scattering for one receiver, at least one, which are sent and accepted as a whole.
#[derive(Clone, Debug)]
struct Run {
    /// Index of the receiver among the peers
    peer: u32,
    /// Its messages, as indices in the scattering's parts
    parts: Range<u32>,
    state: State,
    /// Number of packets sent, and of those not sent
    sent: u32,
    left: u32,
    /// Part that the next packet is of, and the packet's offset in the part
    part: u32,
    offset: u32,
    /// First and last of its packets that were sent
    first: Psn,
    last: Psn,
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
struct Part {
    /// Its range in the scattering's bytes
    start: u32,
    end: u32,
    /// Index of the message in the call
    number: u32,
}

/// A scattering.
#[derive(Clone, Debug, Default)]
pub(super) struct Entry {
    number: u64,
    /// All messages, by receiver
    bytes: Vec<u8>,
    parts: Vec<Part>,
    runs: Vec<Run>,
    /// Number of runs that are not ready
    waiting: u32,
    /// Number of runs that are not settled
    unsettled: u32,
    /// Number of messages that have failed
    failed: u32,
    /// Timestamp, unwrapped, once it has been stamped
    time: Option<u64>,
    /// Whether all of its runs are ready, and it has not been sent yet.
    is_ready: bool,
}

/// Next packet of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Piece {
    /// Its data, as a range of the scattering's bytes
    pub(super) range: Range<usize>,
    pub(super) first: bool,
    /// Whether a message ends with this packet
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

    /// Discards the bytes, which were sent or will not be. Returns their number.
    pub(super) fn forget_bytes(&mut self) -> usize {
        let count = self.bytes.len();
        self.bytes.clear();
        self.bytes.shrink_to(1 << 12);
        count
    }

    /// Returns the scattering's number.
    pub(super) const fn number(&self) -> Scattering {
        Scattering(self.number)
    }

    /// Returns the timestamp, unwrapped, once the scattering has been stamped.
    pub(super) const fn time(&self) -> Option<u64> {
        self.time
    }

    /// Stamps the scattering.
    pub(super) const fn stamp(&mut self, time: u64) {
        self.time = Some(time);
    }

    /// Returns the bytes of all messages.
    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Returns the number of messages.
    pub(super) const fn messages(&self) -> usize {
        self.parts.len()
    }

    /// Returns the number of messages that have failed.
    pub(super) const fn failed(&self) -> u32 {
        self.failed
    }

    /// Returns the number of runs.
    pub(super) const fn runs(&self) -> u32 {
        self.runs.len() as u32
    }

    /// Returns the receiver of a run, as its index among the peers, or `None` if there is no such run.
    pub(super) fn receiver(&self, run: u32) -> Option<u32> {
        self.runs.get(run as usize).map(|run| run.peer)
    }

    /// Returns the number of messages of a run.
    pub(super) fn messages_of(&self, run: u32) -> u32 {
        let parts = &self.runs[run as usize].parts;
        parts.end - parts.start
    }

    /// Returns the indices of a run's messages in the call.
    pub(super) fn numbers_of(&self, run: u32) -> impl Iterator<Item = u32> {
        self.parts_of(run).iter().map(|part| part.number)
    }

    fn parts_of(&self, run: u32) -> &[Part] {
        let parts = &self.runs[run as usize].parts;
        &self.parts[parts.start as usize..parts.end as usize]
    }

    /// Returns the bytes of a run's messages, and the end of each but the last.
    pub(super) fn messages_in(&self, run: u32) -> (&[u8], impl Iterator<Item = u32>) {
        let parts = self.parts_of(run);
        let (start, end) = (parts[0].start, parts[parts.len() - 1].end);
        let ends = parts[..parts.len() - 1].iter().map(move |part| part.end - start);
        (&self.bytes[start as usize..end as usize], ends)
    }

    /// Returns the progress of a run.
    pub(super) fn state(&self, run: u32) -> State {
        self.runs[run as usize].state
    }

    /// Returns the number of a run's packets that have not been sent.
    #[inline]
    pub(super) fn left(&self, run: u32) -> u32 {
        self.runs[run as usize].left
    }

    /// Returns the first and the last of a run's packets that were sent, or `None` if none was.
    pub(super) fn sent_packets(&self, run: u32) -> Option<(Psn, Psn)> {
        let run = &self.runs[run as usize];
        (run.sent > 0).then_some((run.first, run.last))
    }

    /// Returns whether `psn` is one of the run's packets that were sent.
    pub(super) fn has_sent(&self, run: u32, psn: Psn) -> bool {
        self.sent_packets(run)
            .is_some_and(|(first, last)| psn.distance(first) >= 0 && last.distance(psn) >= 0)
    }

    /// Marks a run that waits as ready. Returns whether the scattering can be sent now.
    pub(super) fn make_ready(&mut self, run: u32) -> bool {
        self.runs[run as usize].state = State::Ready;
        self.end_waiting()
    }

    /// Marks a run as no longer waiting. Returns whether the scattering can be sent now.
    fn end_waiting(&mut self) -> bool {
        self.waiting -= 1;
        self.is_ready |= self.waiting == 0;
        self.waiting == 0
    }

    /// Marks a run as sent.
    pub(super) fn set_sent(&mut self, run: u32) {
        self.runs[run as usize].state = State::Sent;
    }

    /// Marks the scattering as sent, or as not to be sent.
    pub(super) const fn end_sending(&mut self) {
        self.is_ready = false;
    }

    /// Marks a run as settled. Returns its progress before, and whether the scattering can be sent now.
    pub(super) fn settle(&mut self, run: u32, failed: bool) -> (State, bool) {
        let before = core::mem::replace(&mut self.runs[run as usize].state, State::Settled);
        self.unsettled -= 1;
        if failed {
            self.failed += self.messages_of(run);
        }
        (before, before == State::Waiting && self.unsettled > 0 && self.end_waiting())
    }

    /// Returns whether all runs are settled, and the scattering is not to be sent.
    pub(super) const fn is_settled(&self) -> bool {
        self.unsettled == 0 && !self.is_ready
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
#[derive(Clone, Debug, Default)]
pub(super) struct Scatterings {
    entries: Vec<Entry>,
    free: Vec<u32>,
    /// Number of the next scattering
    next: u64,
}

impl Scatterings {
    /// Returns the number of a new scattering; numbers start from 0.
    #[inline]
    pub(super) const fn next_number(&mut self) -> Scattering {
        let number = self.next;
        self.next += 1;
        Scattering(number)
    }

    /// Returns the index of a cleared entry.
    pub(super) fn add(&mut self) -> u32 {
        self.free.pop().unwrap_or_else(|| {
            self.entries.push(Entry::default());
            self.entries.len() as u32 - 1
        })
    }

    /// Clears an entry for another scattering.
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
