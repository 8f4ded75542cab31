//! Faults of one of the two representatives of a switch, and their end on an operator's request.

use super::super::System;
use super::super::seats::SeatId;
use controller::machine::{Drain, Input, NodeKey};
use controller::record::RepState;
use onepipe::control::SEATS;
use rocev2::ethernet::MacAddr;
use sim::Fault;
use switch::Nanos;

/// What happens to one of two representatives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Trouble {
    /// It dies, and starts again with empty registers
    Restarts,
    /// It stands still, and takes later what has arrived meanwhile
    Late,
    /// It and the nodes at one of its links do not hear each other, in one direction or in both
    Deaf,
    /// It reaches no controller
    CutOff,
    /// Nothing but what an operator asks for
    Nothing,
}

/// Longest time in which both representatives of each switch serve again
const SERVES_WITHIN: Nanos = Nanos::from_millis(12);
/// Time within which the controller knows that a representative is not heard
const NOTICED_WITHIN: Nanos = Nanos::from_micros(150);
/// Time for which an operator asks
const ASKS_FOR: Nanos = Nanos::from_millis(6);

impl System {
    /// Lets one representative after another fail, or leave on an operator's request, or both of it at one switch, from
    /// a time on. Each time, the other one of its switch lives, and both serve again before the next one fails.
    ///
    /// # Errors
    /// A violation that a step shows; or a switch has no two representatives that serve for a long time.
    pub fn run_with_seat_faults(&mut self, from: Nanos, until: Nanos) -> Result<(), String> {
        self.run_until(from)?;
        self.run_until_doubled()?;
        self.forget_stalls();
        while self.now() < until {
            let seat = self.draw_seat();
            let of = [Trouble::Restarts, Trouble::Late, Trouble::Deaf, Trouble::CutOff, Trouble::Nothing];
            let trouble = *self.rng.pick(&of);
            let lasts = *self.rng.pick(&[20_000, 300_000, 4_000_000]);
            let time = Nanos(3_000 + self.rng.below(lasts));
            self.trouble(seat, trouble, time);
            if trouble == Trouble::Nothing || self.rng.below(3) == 0 {
                // Before silence is noticed, nothing shows that the other one cannot serve alone.
                let begun = self.now() + Nanos(self.rng.below(time.0)).max(NOTICED_WITHIN);
                self.run_until(begun)?;
                self.ask_for_drain((seat.0, (seat.1 + 1) % SEATS), self.now() + ASKS_FOR);
            }
            while self.now() < self.faults.last_end || !self.faults.moments.drains.is_empty() {
                self.run_until(self.now() + Nanos::from_micros(2))?;
                self.see_moments();
            }
            self.run_until_doubled()?;
            let rests = self.now() + Nanos(self.rng.below(400_000));
            self.run_until(rests)?;
        }
        Ok(())
    }

    /// Has an operator ask for the end of a representative until it has left.
    ///
    /// # Errors
    /// A violation that a step shows, or it has not left in time.
    pub(in super::super) fn drain(&mut self, seat: SeatId, until: Nanos) -> Result<(), String> {
        let before = self.drained;
        self.ask_for_drain(seat, until);
        while !self.faults.moments.drains.is_empty() {
            self.run_until(self.now() + Nanos::from_micros(2))?;
            self.ask_for_drains();
        }
        if self.drained == before {
            return Err(format!("{seat:?} does not leave: {:?}", self.image.reps));
        }
        Ok(())
    }

    /// Ends a representative until all faults end.
    pub fn end_seat(&mut self, switch: u16, seat: u8) {
        let worker = self.sites[&(switch, seat)].worker;
        self.network.world.schedule(self.now(), Fault::Crash(worker));
        self.faults.ends.push(Fault::Restart(worker));
    }

    /// Runs until both representatives of each switch serve.
    fn run_until_doubled(&mut self) -> Result<(), String> {
        let last = self.now() + SERVES_WITHIN;
        while !self.are_doubled() {
            if self.now() > last {
                return Err(format!(
                    "representatives do not serve: {}{:?}",
                    self.describe(),
                    self.image.reps
                ));
            }
            self.run_until(self.now() + Nanos::from_micros(10))?;
        }
        Ok(())
    }

    fn are_doubled(&self) -> bool {
        let serves = |(&(switch, seat), site): (&SeatId, &super::super::seats::Site)| {
            let stored = self.image.rep(switch, seat);
            let present = site.keeper.status().incarnation;
            stored.is_some_and(|(of, rep)| of == present && rep.state == RepState::Active)
        };
        self.sites.iter().all(serves)
    }

    fn draw_seat(&mut self) -> SeatId {
        let seats: Vec<_> = self.sites.keys().copied().collect();
        *self.rng.pick(&seats)
    }

    /// Draws a fault of a representative.
    pub(super) fn draw_seat_fault(&mut self) {
        let seat = self.draw_seat();
        let trouble = *self.rng.pick(&[
            Trouble::Restarts,
            Trouble::Restarts,
            Trouble::Late,
            Trouble::Deaf,
            Trouble::CutOff,
        ]);
        let lasts = *self.rng.pick(&[20_000, 300_000, 2_500_000]);
        let time = Nanos(3_000 + self.rng.below(lasts));
        self.trouble(seat, trouble, time);
    }

    /// Draws a representative, for whose end an operator asks.
    pub(super) fn draw_drain(&mut self) {
        let (seat, time) = (self.draw_seat(), Nanos(self.rng.below(3_000_000)));
        self.ask_for_drain(seat, self.now() + time);
    }

    /// Lets a representative fail for a time.
    fn trouble(&mut self, seat: SeatId, trouble: Trouble, time: Nanos) {
        let (now, until) = (self.now(), self.now() + time);
        let worker = self.sites[&seat].worker;
        match trouble {
            Trouble::Restarts if self.network.world.is_down(worker) => {}
            Trouble::Restarts => {
                self.network.world.schedule(now, Fault::Crash(worker));
                self.end_at(until, Fault::Restart(worker));
            }
            Trouble::Late => {
                self.network.world.schedule(now, Fault::Pause(worker));
                self.end_at(until, Fault::Resume(worker));
            }
            Trouble::Deaf => self.deafen(seat, until),
            Trouble::CutOff => {
                let node = NodeKey::Rep(seat.0, seat.1);
                self.cut_off(node, true);
                self.faults.moments.isolated.push((until, node));
                self.faults.last_end = self.faults.last_end.max(until);
            }
            Trouble::Nothing => {}
        }
    }

    /// Separates a representative from the nodes at one of its links, or from one of them.
    fn deafen(&mut self, (switch, seat): SeatId, until: Nanos) {
        let own = self.network.seat(switch.into(), seat == 1).mac;
        let mut links = self.plan.tree.interfaces_at(switch.into());
        let mut others: Vec<MacAddr> = links.swap_remove(self.rng.below(links.len() as u64) as usize);
        if others.len() > 1 && self.rng.below(3) == 0 {
            others.swap_remove(self.rng.below(2) as usize);
        }
        let way = self.rng.below(3);
        for other in others {
            let (begin, end) = match way {
                0 => (Fault::PartitionPair(own, other), Fault::HealPair(own, other)),
                1 => (Fault::MutePair(own, other), Fault::UnmutePair(own, other)),
                _ => (Fault::MutePair(other, own), Fault::UnmutePair(other, own)),
            };
            self.network.world.schedule(self.now(), begin);
            self.end_at(until, end);
        }
    }

    fn ask_for_drain(&mut self, (switch, seat): SeatId, until: Nanos) {
        if let Some((incarnation, _)) = self.image.rep(switch, seat) {
            self.faults.moments.drains.push((until, switch, incarnation));
        }
    }

    /// An operator asks the leader again for the end of representatives, until they have left.
    pub(super) fn ask_for_drains(&mut self) {
        let (now, Some(n)) = (self.now(), self.leader_number()) else { return };
        let mut drains = core::mem::take(&mut self.faults.moments.drains);
        drains.retain(|&(until, switch, incarnation)| {
            let answer = self.controllers[n].machine().drained(switch, incarnation);
            if let Ok(Drain::Ready(seat)) = answer {
                self.input_one(n, Input::Drain(switch, seat));
            }
            self.drained += u64::from(answer == Ok(Drain::Retired));
            until > now && answer != Ok(Drain::Retired)
        });
        self.faults.moments.drains = drains;
    }

    /// Returns how many representatives have left on an operator's request.
    pub const fn drained(&self) -> u64 {
        self.drained
    }
}
