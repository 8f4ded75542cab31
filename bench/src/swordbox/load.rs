//! Synthetic traffic through a Swordbox that can be played repeatedly.
//!
//! A capture that is played in a loop repeats its PSNs, and a Swordbox takes a request that it has seen
//! before for a repeated one. So each connection has a power of two of requests in the capture, from PSN 0
//! on, and [`Replay`] changes the higher bits of each frame's PSN before the function gets the frame. It
//! flips the same bits in all frames of a pass through the capture, which also flips the same bits of the
//! ICRC. That is two XORs a frame, and they count as the function's work. Thereby every pass has new
//! operations of existing connections, as in a rack.

use super::rack::{Rack, Request, SHARED_QPS, request_frame, response_frame};
use clap::ValueEnum;
use rocev2::ICRC_LEN;
use rocev2::icrc::Changes;
use rocev2::{Class, Msn, Psn, classify};
use std::sync::Arc;
use switch::{Frame, Function, Nanos, Output, PortId, Verdict};
use swordbox::{Counters, Swordbox};

/// Outstanding operations on all shared connections
const WINDOW: usize = 64 * SHARED_QPS;

/// Verb of the clients' requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Verb {
    /// CAS of a word whose value is cached: each succeeds
    Cas,
    /// WRITEs of 64 bytes
    Write,
}

/// Traffic of a measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Load {
    /// Verb of the requests
    pub verb: Verb,
    /// Number of connections besides the shared ones; a power of two
    pub connections: u32,
    /// Requests of each connection in the capture; a power of two
    pub requests: u32,
    /// Cached lines on each shared connection; a power of two. At least twice as many requests go to each
    /// shared connection
    pub lines: usize,
    /// Requests that an acknowledgement of the server covers; a power of two
    pub covered: usize,
}

impl Load {
    /// Returns the number of requests in the capture.
    pub const fn operations(&self) -> usize {
        self.connections as usize * self.requests as usize
    }

    /// Returns the number of frames in the capture: requests, and the server's acknowledgements.
    pub const fn frames(&self) -> usize {
        self.operations() + self.operations() / self.covered
    }

    /// Returns the operations per frame.
    pub fn operations_per_frame(&self) -> f64 {
        self.operations() as f64 / self.frames() as f64
    }

    /// Returns the capture, and the function in the state that the capture starts from.
    pub fn make(&self) -> (Vec<Vec<u8>>, Replay) {
        self.make_for(0, 1)
    }

    /// Returns the capture and the function of a worker, one of `workers`, each of which has a server of its own with
    /// this load.
    pub fn make_for(&self, worker: u8, workers: u8) -> (Vec<Vec<u8>>, Replay) {
        let rack = Rack::new((worker, workers), self.connections, self.lines);
        let frames = self.play(worker, &rack);
        let shared_qp = self.operations() / SHARED_QPS;
        let acknowledgement = frames.last().map_or(0, Vec::len);
        let of = |frame: &[u8], shift| Patch::new(frame, shift);
        let replay = Replay {
            requests: of(&frames[0], self.requests.trailing_zeros()),
            acknowledgements: of(&frames[frames.len() - 1], shared_qp.trailing_zeros()),
            acknowledgement,
            function: rack.function,
            at: 0,
            len: frames.len(),
            pass: 0,
        };
        (frames, replay)
    }

    /// Returns the requests, of one client after the other, and the server's acknowledgements, each one
    /// window of requests later.
    fn play(&self, worker: u8, rack: &Rack) -> Vec<Vec<u8>> {
        let clients = self.connections as usize;
        // Each client waits for its response before its next request.
        let window = WINDOW.min(clients / 2);
        let mut frames = Vec::with_capacity(self.frames());
        let mut sent = [0usize; SHARED_QPS];
        let mut done = [0usize; SHARED_QPS];
        let mut values = std::collections::HashMap::new();
        let mut acknowledge = |n: usize, frames: &mut Vec<Vec<u8>>| {
            let shared_qp = self.shared_qp_of(n);
            done[shared_qp] += 1;
            if done[shared_qp].is_multiple_of(self.covered) {
                let psn = Psn::new(done[shared_qp] as u32 - 1);
                frames.push(response_frame(worker, rack.owners[shared_qp], psn, Msn::ZERO, None));
            }
        };
        for n in 0..self.operations() {
            let shared_qp = self.shared_qp_of(n);
            let va = rack.lines[shared_qp][sent[shared_qp] % self.lines];
            sent[shared_qp] += 1;
            let operation = match self.verb {
                Verb::Cas => {
                    let value = values.entry(va).or_insert(0u64);
                    let compare = core::mem::replace(value, *value ^ 1);
                    Request::Cas { va, compare, swap: *value }
                }
                Verb::Write => Request::Write { va },
            };
            let psn = Psn::new((n / clients) as u32);
            frames.push(request_frame(worker, (n % clients) as u32, psn, operation));
            if n >= window {
                acknowledge(n - window, &mut frames);
            }
        }
        let rest = self.operations().saturating_sub(window);
        (rest..self.operations()).for_each(|n| acknowledge(n, &mut frames));
        assert!(
            values.values().all(|value| *value == 0),
            "memory has its initial values at the end of the capture"
        );
        frames
    }

    /// Returns the shared connection of request `n`.
    const fn shared_qp_of(&self, n: usize) -> usize {
        (n + n / self.connections as usize) % SHARED_QPS
    }
}

/// Changes of the frames of one length in a pass.
#[derive(Clone, Copy, Debug)]
struct Patch {
    /// Offsets of the word with the PSN, and of the ICRC
    psn: usize,
    icrc: usize,
    shift: u32,
    /// Bits to flip in the PSN's word and in the ICRC
    bits: [u8; 4],
    effect: [u8; 4],
}

impl Patch {
    fn new(frame: &[u8], shift: u32) -> Self {
        let Class::Roce(layout) = classify(frame) else { unreachable!("a well-formed RoCEv2 frame") };
        Self { psn: layout.bth() + 8, icrc: layout.icrc(), shift, bits: [0; 4], effect: [0; 4] }
    }

    fn pass(&mut self, pass: u32) {
        self.bits = Psn::new(pass << self.shift).get().to_be_bytes();
        let mut changes = Changes::new();
        changes.add_word(u32::from_le_bytes(self.bits), self.icrc - self.psn - 4);
        self.effect = changes.effect().to_le_bytes();
    }

    #[inline]
    fn apply(&self, frame: &mut [u8]) {
        for (at, with) in [(self.psn, self.bits), (self.icrc, self.effect)] {
            let Some(word) = frame[at..].first_chunk_mut::<ICRC_LEN>() else { return };
            *word = (u32::from_ne_bytes(*word) ^ u32::from_ne_bytes(with)).to_ne_bytes();
        }
    }
}

/// Counts of what a replay did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Operations that left on a shared connection
    pub remapped: u64,
    /// Atomics that left as WRITEs
    pub decided: u64,
    /// Responses to clients
    pub acks: u64,
    /// Operations sent again, because the worker lost its CPU for a while
    pub resent: u64,
    /// Unexpected events: repeated requests, those out of order, stale or spoofed responses, packets that
    /// waited, NAKs
    pub wrong: u64,
}

impl core::iter::Sum for Tally {
    fn sum<I: Iterator<Item = Self>>(all: I) -> Self {
        all.fold(Self::default(), |sum, tally| Self {
            remapped: sum.remapped + tally.remapped,
            decided: sum.decided + tally.decided,
            acks: sum.acks + tally.acks,
            resent: sum.resent + tally.resent,
            wrong: sum.wrong + tally.wrong,
        })
    }
}

impl Tally {
    fn of(counters: &Counters) -> Self {
        let wrong = [
            &counters.repeated,
            &counters.out_of_order,
            &counters.stale,
            &counters.spoofed,
            &counters.waited,
            &counters.naks,
            &counters.shared_qps_lost,
            &counters.detours,
            &counters.unproven,
        ];
        Self {
            remapped: counters.remapped.get(),
            decided: counters.decided.get(),
            acks: counters.acks.get(),
            resent: counters.resent.get(),
            wrong: wrong.iter().map(|counter| counter.get()).sum(),
        }
    }

    /// Checks that the counts of `workers` workers together match `frames` frames of the load. The error describes the
    /// first difference.
    pub fn check(&self, load: &Load, workers: u8, frames: u64) -> Result<(), String> {
        // The run may have ended in the middle of a pass, with outstanding operations.
        let slack = load.frames() as f64 * f64::from(workers);
        let operations = frames as f64 * load.operations_per_frame();
        let decided = if load.verb == Verb::Cas { operations } else { 0.0 };
        let counts = [
            ("remapped", self.remapped, operations),
            ("decided", self.decided, decided),
            ("answered", self.acks, operations),
            ("wrong", self.wrong, 0.0),
        ];
        for (what, found, expected) in counts {
            if (found as f64 - expected).abs() > slack * f64::from(u8::from(what != "wrong")) {
                return Err(format!("{found} {what} of {frames} frames, {expected:.0} expected"));
            }
        }
        // A worker that loses its CPU for a moment finds operations without an acknowledgement for long.
        if self.resent as f64 > operations / 20.0 {
            return Err(format!("{} of {operations:.0} operations sent again", self.resent));
        }
        Ok(())
    }
}

/// Counts of a replay since the creation of this value.
#[derive(Debug)]
pub struct Watch {
    counters: Arc<Counters>,
    before: Tally,
}

impl Watch {
    /// Returns the counts so far.
    pub fn tally(&self) -> Tally {
        let (now, before) = (Tally::of(&self.counters), self.before);
        Tally {
            remapped: now.remapped - before.remapped,
            decided: now.decided - before.decided,
            acks: now.acks - before.acks,
            resent: now.resent - before.resent,
            wrong: now.wrong - before.wrong,
        }
    }
}

/// A Swordbox that receives a capture repeatedly.
#[derive(Debug)]
pub struct Replay {
    function: Swordbox,
    requests: Patch,
    acknowledgements: Patch,
    /// Length of an acknowledgement frame in bytes
    acknowledgement: usize,
    at: usize,
    len: usize,
    pass: u32,
}

impl Replay {
    /// Starts counting.
    pub fn watch(&self) -> Watch {
        let counters = self.function.counters();
        Watch { before: Tally::of(&counters), counters }
    }

    #[cold]
    fn pass(&mut self) {
        self.at = 0;
        self.pass = self.pass.wrapping_add(1);
        self.requests.pass(self.pass);
        self.acknowledgements.pass(self.pass);
    }
}

impl Function for Replay {
    type Command = swordbox::Command;
    type Event = swordbox::Event;
    const HAS_OWNERS: bool = Swordbox::HAS_OWNERS;

    #[inline]
    fn owner(&self, frame: &impl Frame, port: PortId) -> Option<usize> {
        self.function.owner(frame, port)
    }

    #[inline]
    fn on_frame<O: Output>(
        &mut self,
        frame: &mut O::Frame,
        port: PortId,
        now: Nanos,
        out: &mut O,
    ) -> Verdict {
        let bytes = frame.bytes_mut();
        let patch = if bytes.len() == self.acknowledgement { &self.acknowledgements } else { &self.requests };
        patch.apply(bytes);
        self.at += 1;
        if self.at == self.len {
            self.pass();
        }
        self.function.on_frame(frame, port, now, out)
    }

    #[inline]
    fn prefetch_table(&self, frame: &impl Frame, fetch: impl Fn(*const u8)) {
        self.function.prefetch_table(frame, fetch);
    }

    #[inline]
    fn prefetch_state(&self, frame: &impl Frame, fetch: impl Fn(*const u8)) {
        self.function.prefetch_state(frame, fetch);
    }

    fn on_timer<O: Output>(&mut self, now: Nanos, out: &mut O) {
        self.function.on_timer(now, out);
    }

    fn next_timer(&self) -> Option<Nanos> {
        self.function.next_timer()
    }

    fn on_command(&mut self, command: swordbox::Command, now: Nanos) {
        self.function.on_command(command, now);
    }

    fn poll_event(&mut self) -> Option<swordbox::Event> {
        self.function.poll_event()
    }
}

#[cfg(test)]
mod tests;
