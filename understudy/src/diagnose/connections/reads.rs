//! READs and atomics whose responses have not been seen completely.

use rocev2::Psn;

/// A READ or an atomic.
#[derive(Clone, Copy, Debug)]
struct Read {
    from: Psn,
    /// Length of the response in bytes
    bytes: u32,
    /// PSN behind the latest of the response
    expected: Psn,
    done: bool,
    /// Next PSN of the response to the latest repetition
    awaited: Option<Psn>,
}

/// READs and atomics that are remembered of one flow
const MAX_READS: usize = 32;

/// The latest READs and atomics of one flow.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Reads {
    ring: [Option<Read>; MAX_READS],
    /// Whether any was sent
    any: bool,
}

/// Returns the PSNs that a READ of `bytes` takes with this path MTU.
pub(super) fn span(bytes: u32, mtu: u32) -> u32 {
    bytes.div_ceil(mtu).max(1)
}

impl Reads {
    /// Remembers a request. One that is not `new` repeats another, or a part of it; the responses to the first
    /// one may still arrive.
    pub(super) fn request(&mut self, psn: Psn, bytes: u32, new: bool) {
        self.any = true;
        if !new {
            let repeated = self.ring.iter_mut().flatten().filter(|read| psn.distance(read.from) >= 0);
            if let Some(read) = repeated.min_by_key(|read| psn.distance(read.from)) {
                read.awaited = Some(psn);
            }
            return;
        }
        self.ring.rotate_left(1);
        self.ring[MAX_READS - 1] = Some(Read { from: psn, bytes, expected: psn, done: false, awaited: None });
    }

    /// Records that a response with this PSN was seen; `ends` if it is the last of its message. `mtu` is the
    /// smallest path MTU that the connection may have. Returns the first PSN of which the response is
    /// missing, and how many are.
    pub(super) fn response(&mut self, psn: Psn, of_read: bool, ends: bool, mtu: u32) -> Option<(Psn, u32)> {
        if !self.any {
            return None;
        }
        let mut missing: Option<(Psn, u32)> = None;
        for read in self.ring.iter_mut().flatten().filter(|read| read.awaited == Some(psn)) {
            read.awaited = (!ends).then(|| psn.add(1));
        }
        let starts = self.ring.map(|read| read.map(|read| read.from));
        for (slot, read) in self.ring.iter_mut().enumerate() {
            let Some(read) = read.as_mut().filter(|read| !read.done) else { continue };
            // The next READ bounds this one, if the path MTU is not known.
            let bound = starts.get(slot + 1).copied().flatten().map(|next| next.distance(read.from));
            let len = (span(read.bytes, mtu) as i32).min(bound.filter(|&len| len > 0).unwrap_or(i32::MAX));
            let at = psn.distance(read.from);
            let lost = if at >= len {
                read.done = true;
                len - read.expected.distance(read.from)
            } else if at >= 0 && of_read {
                let lost = psn.distance(read.expected);
                read.expected = read.expected.later(psn.add(1));
                read.done = ends;
                lost
            } else {
                0
            };
            if lost > 0 {
                let first = if at >= len { read.expected } else { psn.sub(lost as u32) };
                missing = Some(missing.map_or((first, lost as u32), |(first, n)| (first, n + lost as u32)));
            }
        }
        missing
    }

    /// Returns whether a response with this PSN has been asked for again, and has not been seen since.
    pub(super) fn awaits(&self, psn: Psn) -> bool {
        let before = self.ring.iter().flatten().filter(|read| psn.distance(read.from) >= 0);
        let read = before.min_by_key(|read| psn.distance(read.from));
        read.and_then(|read| read.awaited).is_some_and(|awaited| psn.distance(awaited) >= 0)
    }
}
