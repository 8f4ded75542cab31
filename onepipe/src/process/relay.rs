//! Frames that the controller carries, to peers that do not answer (1Pipe, section 5.2, controller forwarding).
//!
//! A sender whose receiver does not answer passes copies of its frames to the controller, and still sends
//! them: so both notice when the path works again. A receiver answers through the controller where it receives
//! through it, and directly only while it receives directly, too: a direct answer means that both directions
//! work.

use super::types::ProcessId;
use crate::header::OnePipe;
use std::collections::VecDeque;
use switch::Nanos;
use zerocopy::IntoBytes;

/// Number of time-outs without an answer after which frames go through the controller, too
pub(super) const UNANSWERED: u32 = 4;
/// Maximum number of bytes that wait for the controller
const MAX_BYTES: usize = 32 << 10;
/// Time for which a frame counts as a sign that its path works
const RECENT: Nanos = Nanos::from_millis(4);

/// Frame for a peer, to be carried by the controller: the payload of a datagram.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Relayed {
    /// Receiver
    pub to: ProcessId,
    /// Its incarnation
    pub incarnation: u32,
    /// 1Pipe header and what follows it
    pub frame: Vec<u8>,
}

/// Path of the answers to a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
enum Route {
    #[default]
    Direct,
    Both,
    Carried,
}

/// What was received of a peer.
#[derive(Clone, Copy, Debug, Default)]
struct Path {
    answers: Route,
    /// Times of the last frames that the controller has carried and that came directly
    carried_at: Option<Nanos>,
    direct_at: Option<Nanos>,
}

/// Frames for the controller, and the paths of answers, by the index of the peer.
#[derive(Clone, Debug)]
pub(super) struct Relay {
    paths: Box<[Path]>,
    waiting: VecDeque<(u32, Vec<u8>)>,
    bytes: usize,
    /// Numbers of frames that were added and that were discarded since they were last taken
    counts: (u64, u64),
}

fn is_recent(at: Option<Nanos>, now: Nanos) -> bool {
    at.is_some_and(|at| now.since(at) <= RECENT)
}

impl Relay {
    pub(super) fn new(peers: usize) -> Self {
        Self {
            paths: vec![Path::default(); peers].into(),
            waiting: VecDeque::new(),
            bytes: 0,
            counts: (0, 0),
        }
    }

    /// Records a frame that came directly.
    #[inline]
    pub(super) fn on_direct(&mut self, peer: u32, now: Nanos) {
        let path = &mut self.paths[peer as usize];
        path.direct_at = Some(now);
        if path.answers != Route::Direct {
            path.answers = if is_recent(path.carried_at, now) { Route::Both } else { Route::Direct };
        }
    }

    /// Records a frame that the controller has carried.
    pub(super) fn on_carried(&mut self, peer: u32, now: Nanos) {
        let path = &mut self.paths[peer as usize];
        path.carried_at = Some(now);
        path.answers = if is_recent(path.direct_at, now) { Route::Both } else { Route::Carried };
    }

    /// Returns whether answers to a peer leave directly, and whether they are carried.
    #[inline]
    pub(super) fn answers(&self, peer: u32) -> (bool, bool) {
        let route = self.paths[peer as usize].answers;
        (route != Route::Carried, route != Route::Direct)
    }

    /// Adds a frame for the controller, unless too many wait.
    #[cold]
    pub(super) fn add(&mut self, peer: u32, header: &OnePipe, payload: &[u8]) {
        if self.bytes >= MAX_BYTES {
            self.counts.1 += 1;
            return;
        }
        let frame = [header.as_bytes(), payload].concat();
        self.bytes += frame.len();
        self.counts.0 += 1;
        self.waiting.push_back((peer, frame));
    }

    /// Removes and returns the next frame.
    pub(super) fn pop(&mut self) -> Option<(u32, Vec<u8>)> {
        let (peer, frame) = self.waiting.pop_front()?;
        self.bytes -= frame.len();
        Some((peer, frame))
    }

    /// Forgets a peer's incarnation.
    pub(super) fn forget(&mut self, peer: u32) {
        self.paths[peer as usize] = Path::default();
        self.waiting.retain(|&(of, _)| of != peer);
        self.bytes = self.waiting.iter().map(|(_, frame)| frame.len()).sum();
    }

    /// Returns the numbers of frames added and discarded since the last call.
    pub(super) fn take_counts(&mut self) -> (u64, u64) {
        core::mem::take(&mut self.counts)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::header::{OnePipeOpcode, Timestamp};
    use rocev2::Psn;

    #[test]
    fn answers_take_the_paths_on_which_frames_arrive() {
        let mut relay = Relay::new(2);
        let ms = Nanos::from_millis;
        relay.on_direct(0, ms(1));
        assert_eq!(relay.answers(0), (true, false));
        relay.on_carried(0, ms(3));
        assert_eq!(relay.answers(0), (true, true), "the other direction may be cut");
        relay.on_carried(0, ms(9));
        assert_eq!(relay.answers(0), (false, true), "a direct answer would mean that this direction works");
        assert_eq!(relay.answers(1), (true, false));
        relay.on_direct(0, ms(10));
        assert_eq!(relay.answers(0), (true, true));
        relay.on_direct(0, ms(20));
        assert_eq!(relay.answers(0), (true, false));
    }

    #[test]
    fn a_bounded_number_of_bytes_waits() {
        let mut relay = Relay::new(2);
        let header = OnePipe::new(OnePipeOpcode::RELIABLE_DATA, Timestamp::new(5), Psn::ZERO);
        for n in 0..100 {
            relay.add(n % 2, &header, &[0; 1000]);
        }
        let kept = MAX_BYTES.div_ceil(1000 + OnePipe::LEN);
        assert_eq!(relay.take_counts(), (kept as u64, 100 - kept as u64));
        let (peer, frame) = relay.pop().expect("many wait");
        assert_eq!((peer, frame.len(), &frame[..OnePipe::LEN]), (0, 1000 + OnePipe::LEN, header.as_bytes()));
        relay.forget(0);
        let rest: Vec<_> = core::iter::from_fn(|| relay.pop()).collect();
        assert!(rest.len() == kept / 2 && rest.iter().all(|(peer, _)| *peer == 1));
        assert_eq!((relay.bytes, relay.take_counts()), (0, (0, 0)));
    }
}
