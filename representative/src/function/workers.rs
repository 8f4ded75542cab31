//! One worker of several: its links update the barrier of the worker, and that of the switch follows it and those of
//! the other workers.

use super::{LOOPBACK, Representative};
use crate::barrier::{Barrier, Inputs, UpdateResult};
use crate::bug::Bug;
use crate::config::Incarnation;
use crate::counters::Refusal;
use crate::half::{DOWN, Half, UP};
use crate::workers::{Admission, Workers};
use onepipe::{OnePipe, OnePipeOpcode, Timestamp};
use rocev2::{Class, Opcode, Packet, classify};
use switch::{Nanos, PortId};

impl Representative {
    /// Returns the barrier of the links of a half that this worker receives from.
    #[inline]
    pub(super) fn registers(&self, half: usize) -> &Barrier {
        self.workers.as_ref().map_or(&self.halves[half].barrier, |workers| &workers.locals[half])
    }

    /// Returns the barrier of the links of a half that this worker receives from.
    #[inline]
    pub(super) fn registers_mut(&mut self, half: usize) -> &mut Barrier {
        match &mut self.workers {
            None => &mut self.halves[half].barrier,
            Some(workers) => &mut workers.locals[half],
        }
    }

    /// Returns whether this worker sends through a link.
    #[inline]
    pub(super) fn sends_at(&self, link: usize) -> bool {
        !self.links[link].is_foreign || self.config.has_bug(Bug::TwoSenders)
    }

    /// Passes the barrier of this worker's links on to that of the switch, if there are several workers.
    #[inline]
    pub(super) fn pass_on(&mut self, half: usize) {
        if let Some(workers) = &self.workers {
            pass_on(workers, &mut self.halves, half);
        }
    }

    /// Updates the register of a link of this worker, where there are several.
    #[inline(never)]
    pub(super) fn update_own(
        &mut self,
        link: usize,
        barrier: Option<Timestamp>,
        now: Nanos,
    ) -> Result<(), Refusal> {
        let (half, input) = self.links[link].input;
        let (tick, bug) = (self.ticks, self.config.bug.filter(|_| cfg!(debug_assertions)));
        let own_output = self.halves[half].barrier.best_effort();
        let Some(workers) = &mut self.workers else { return Ok(()) };
        if let Some(barrier) = barrier
            && !workers.locals[half].is_live(input)
            && bug != Some(Bug::JoinWithoutHold)
            && workers.admit(half, own_output, barrier, tick) == Admission::Held
        {
            pass_on(workers, &mut self.halves, half);
            self.propagate(half, now);
            return Ok(());
        }
        let local = &mut workers.locals[half];
        let before = local.position();
        let result = local.update(input, barrier);
        if result == UpdateResult::Raised && local.position() == before {
            // Most updates change no output.
            return Ok(());
        }
        if bug == Some(Bug::PublishBeforePush) {
            workers.publish();
        }
        pass_on(workers, &mut self.halves, half);
        match result {
            UpdateResult::Raised
            | UpdateResult::Unchanged
            | UpdateResult::Behind
            | UpdateResult::NoBarrier => {}
            UpdateResult::Joined => self.joined(link),
            UpdateResult::Stale => return Err(Refusal::Stale),
            UpdateResult::TooFarBehind => return Err(Refusal::TooFarBehind),
        }
        self.propagate(half, now);
        Ok(())
    }

    /// Writes the barrier of a link into a message that another worker has forwarded there. That worker has checked it.
    #[inline]
    pub(super) fn stamp_handed(&mut self, frame: &mut [u8], port: PortId) {
        if self.config.incarnation != Incarnation::Chip {
            return;
        }
        let Some(link) = self.link_at(port) else { return };
        let Class::Roce(layout) = classify(frame) else { return };
        let packet = Packet::new(frame, layout);
        let is_ours = || packet.deth().is_some_and(|deth| deth.qkey.get() == self.config.qkey);
        if layout.opcode() != Opcode::UD_SEND_ONLY || !is_ours() {
            return;
        }
        let Some(header) = OnePipe::of(&packet) else { return };
        // A flooded message has none, as its neighbours do not all read it.
        let has_barrier = header.barrier().is_some();
        if has_barrier && header.version == OnePipe::VERSION && header.opcode() == OnePipeOpcode::DATA {
            let timestamp = header.timestamp();
            self.stamp_for(link, frame, layout, timestamp);
        }
    }

    /// Raises the barriers of the switch to what the last snapshot has read: all frames that it bounds are queued.
    #[inline]
    pub(super) fn adopt_others(&mut self, now: Nanos) {
        let Some(workers) = &mut self.workers else { return };
        let halves = &mut self.halves;
        let any = workers.adopt(|worker, half, state| {
            use crate::workers::Published::{Awaited, Hold, Left, Live, Lost};
            let (barrier, input) = (&mut halves[half].barrier, Workers::input_of(half, worker));
            match state {
                Live(at) => _ = barrier.update(input, Some(at)),
                Left => _ = barrier.leave(input),
                Lost => _ = barrier.lose(input),
                Awaited | Hold(_) => barrier.wait_for(input),
            }
        });
        if any {
            self.propagate(UP, now);
            let outputs = [UP, DOWN].map(|half| self.halves[half].barrier.best_effort());
            if let Some(workers) = &self.workers {
                workers.answer(outputs);
            }
        }
    }

    /// Counts an interval for the barriers of the switch, exchanges what links have carried, and ends holds.
    pub(super) fn tick_workers(&mut self, now: Nanos) {
        let latest =
            self.workers.as_ref().map_or(self.epoch_max, |workers| workers.share_clock(self.epoch_max));
        if latest != self.epoch_max {
            self.epoch_max = latest;
            self.take_lowered(now);
        }
        let clock = self.reference_clock(now);
        let has_begun = self.halves.iter().all(|half| half.barrier.position() > 0);
        let Some(workers) = &mut self.workers else { return };
        let links = &self.links;
        let upper = &self.halves[UP].barrier;
        let upper = if upper.inputs() == Inputs::Live { upper.best_effort() } else { None };
        if workers.exchange(self.ticks, has_begun, upper, |link| links[usize::from(link)].input) {
            let carried = workers.carried_from_above();
            self.halves[DOWN].barrier.set_others(carried, false);
            for (number, link) in self.links.iter().enumerate().filter(|(_, link)| !link.is_foreign) {
                let recent =
                    link.lowered.filter(|&(_, tick)| tick + super::incoming::LOWERED_FOR >= self.ticks);
                workers.note_lowered(number, recent.map(|(barrier, _)| barrier));
            }
        }
        workers.end_holds(self.ticks);
        for half in [UP, DOWN] {
            self.halves[half].barrier.tick(clock);
        }
        let outputs = [UP, DOWN].map(|half| self.halves[half].barrier.best_effort());
        workers.announce(outputs);
    }

    /// Returns whether a link of this worker holds the barrier of the upper half.
    pub(super) fn holds_upper_half(&self) -> bool {
        let Some(workers) = &self.workers else { return true };
        match (workers.locals[UP].best_effort(), self.halves[UP].barrier.best_effort()) {
            (Some(own), Some(all)) => workers.locals[UP].live() > 0 && own.distance(all) <= 0,
            (None, _) => true,
            (Some(_), None) => false,
        }
    }
}

/// Passes the barrier of this worker's links on to that of the switch.
fn pass_on(workers: &Workers, halves: &mut [Half; 2], half: usize) {
    let (local, input) = (&workers.locals[half], workers.own_input(half));
    let barrier = &mut halves[half].barrier;
    match local.inputs() {
        _ if workers.holds(half) => barrier.wait_for(input),
        Inputs::Live => match local.best_effort() {
            Some(at) => _ = barrier.update(input, Some(at)),
            None => barrier.wait_for(input),
        },
        Inputs::Left => _ = barrier.leave(input),
        Inputs::Lost => _ = barrier.lose(input),
    }
}

/// The lower half of a switch has the path from the upper one before its workers.
const _: () = assert!(LOOPBACK == 0 && Workers::input_of(DOWN, 0) == 1);
