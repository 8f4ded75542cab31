//! Representatives that an operator has leave, while the other one of their switch serves or fails.

use super::{Planted, World};
use crate::machine::{Drain, Input, NodeKey, NotReady};
use crate::record::RepState;
use onepipe::control::Incarnation;
use switch::Rng;

/// What is wrong with the representative that would be the only one of its switch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Successor {
    Sound,
    /// One of its neighbours has heard nothing of it for some time
    Mute,
    /// It starts, and one of its neighbours hears nothing of it
    MuteFromStart,
    /// It starts when the operator asks
    Starts,
}

impl World {
    /// Returns the incarnation of a switch that was given first, of those that serve.
    fn oldest(&self, switch: u16) -> Option<Incarnation> {
        let serves = |state| matches!(state, RepState::Configuring | RepState::Active | RepState::Leaving);
        let reps = self.image.reps.iter().filter(|((of, ..), rep)| *of == switch && serves(rep.state));
        reps.map(|(&(.., incarnation), _)| incarnation).min()
    }

    /// The operator asks for the end of a representative.
    fn ask_for_drain(&mut self, switch: u16, incarnation: Incarnation) -> Result<Drain, NotReady> {
        let answer = self.controllers[0].machine.drained(switch, incarnation);
        if let Ok(Drain::Ready(seat)) = answer {
            self.input(0, Input::Drain(switch, seat));
        }
        answer
    }

    /// Runs while the operator asks for the end of a representative every 50 steps, and the leader is replaced after some
    /// of them. Returns whether the representative has left.
    fn drain(&mut self, switch: u16, incarnation: Incarnation, replaced_at: usize) -> Result<bool, String> {
        let mut drained = false;
        for step in 0..10_000 {
            if step == replaced_at {
                self.replace_controller();
            }
            if step % 50 == 0 && !drained {
                drained = self.ask_for_drain(switch, incarnation) == Ok(Drain::Retired);
            }
            self.step()?;
        }
        Ok(drained)
    }

    /// Nothing of a representative arrives at one of its neighbours any more.
    fn mute(&mut self, switch: u16, seat: u8) {
        let ports: Vec<_> = self.graph.switch(switch).ports.iter().flatten().copied().collect();
        let output = self.pick(&ports).expect("a link").output;
        self.cut_seats.extend([(output, seat, 0), (output, seat, 1)]);
    }
}

/// Runs a network whose switches are drained in turn, while representatives that become the only one may be mute towards
/// a neighbour: such a switch is not drained. No process fails, no case is opened, and no barrier stands still. The
/// leader may be replaced at any moment.
pub(in super::super) fn run_drain(seed: u64, planted: Option<Planted>) -> Result<(), String> {
    let mut draws = Rng::stream(seed, 8);
    let mut world = World::doubled(seed, &mut draws, planted);
    world.steps(10_000)?;
    world.check_settled()?;
    // Links may have been silent for long while representatives joined.
    let cases = world.image.cases.len();
    for switch in 0..world.graph.switches().len() as u16 {
        let oldest = world.oldest(switch).ok_or("no representative")?;
        let seat = (0..2).find(|&seat| world.image.reps.contains_key(&(switch, seat, oldest)));
        let other = 1 - seat.expect("it is there");
        let successor = match draws.below(6) {
            0 => Successor::Mute,
            1 => Successor::MuteFromStart,
            2 => Successor::Starts,
            _ => Successor::Sound,
        };
        if matches!(successor, Successor::MuteFromStart | Successor::Starts) {
            world.kill(NodeKey::Rep(switch, other));
            world.boot(NodeKey::Rep(switch, other));
        }
        let is_mute = matches!(successor, Successor::Mute | Successor::MuteFromStart);
        if is_mute {
            world.mute(switch, other);
        }
        if successor == Successor::Mute {
            world.check_unharmed(1)?;
        }
        // Often never.
        let drained = world.drain(switch, oldest, draws.below(8_000) as usize * draws.below(3) as usize)?;
        if drained == is_mute || is_mute && world.oldest(switch) != Some(oldest) {
            return Err(format!("switch {switch}: drained is {drained}, and the other one is {successor:?}"));
        }
        world.cut_seats.clear();
        world.check_unharmed(4)?;
    }
    if world.image.cases.len() > cases {
        return Err(format!("cases: {:?}", world.image.cases));
    }
    world.check_settled()
}

/// Runs a network in which an operator drains drawn switches while representatives and everything else fail.
pub(in super::super) fn run_drain_among_faults(seed: u64, planted: Option<Planted>) -> Result<(), String> {
    let mut draws = Rng::stream(seed, 10);
    let mut world = World::doubled(seed, &mut draws, planted);
    world.steps(4_000)?;
    world.reconnects_late = draws.below(2) == 0;
    for _ in 0..=draws.below(5) {
        let switch = draws.below(world.graph.switches().len() as u64) as u16;
        let oldest = world.oldest(switch);
        for step in 0..[200, 1_500, 6_000][draws.below(3) as usize] {
            if let (Some(oldest), 0) = (oldest, step % 20) {
                let _is_repeated = world.ask_for_drain(switch, oldest);
            }
            match draws.below(4_000) {
                0..5 => world.seat_fault(),
                5 | 6 => world.fault()?,
                7 | 8 => world.replace_controller(),
                _ => {}
            }
            world.step()?;
        }
        world.check_callbacks()?;
    }
    world.cut_seats.clear();
    world.repair();
    world.steps(20_000)?;
    world.check_callbacks()?;
    world.check_settled()
}
