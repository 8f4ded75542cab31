//! Switches with two representatives: drawn faults of each, and what one of them is enough for.

use super::{Planted, RECONNECT_WITHIN, RESPOND_WITHIN, STEP, Way, World};
use crate::machine::NodeKey;
use onepipe::ProcessId;
use switch::Rng;

/// Steps in which a barrier rises, without a fault
const RISES_WITHIN: usize = 2_500;

impl World {
    /// Creates a drawn network whose switches have two representatives each.
    pub(super) fn doubled(seed: u64, draws: &mut Rng, planted: Option<Planted>) -> Self {
        let racks: Vec<_> = (0..=draws.below(2)).map(|_| 1 + draws.below(2) as usize).collect();
        Self::with_seats(seed, &racks, 1 + draws.below(2) as usize, &[0, 1], planted)
    }

    fn draw_rep(&mut self) -> (u16, u8) {
        let reps: Vec<_> = self.reps.keys().copied().collect();
        self.pick(&reps).expect("there are some")
    }

    /// Draws a link of a representative with another node, from or to it.
    fn draw_way_of(&mut self, (switch, seat): (u16, u8)) -> Way {
        let ports: Vec<_> = self.graph.switch(switch).ports.iter().flatten().copied().collect();
        let port = self.pick(&ports).expect("a link");
        let (other, is_input) = (self.draw(2) as u8, self.draw(2) == 0);
        let seat_of = |node| if self.graph.at(node).switch().is_some() { other } else { 0 };
        if is_input {
            let from = seat_of(self.graph.ends(port.input).from);
            (port.input, from, seat)
        } else {
            let to = seat_of(self.graph.ends(port.output).to);
            (port.output, seat, to)
        }
    }

    /// A representative fails in a drawn way.
    pub(super) fn seat_fault(&mut self) {
        let (switch, seat) = self.draw_rep();
        let node = NodeKey::Rep(switch, seat);
        match self.draw(6) {
            0 => self.kill(node),
            1 | 2 => {
                // It starts again with empty registers.
                self.kill(node);
                self.boot(node);
            }
            3 => {
                let way = self.draw_way_of((switch, seat));
                self.cut_seats.insert(way);
            }
            // It loses its connection with the controllers, and goes on.
            4 => {
                let for_steps = self.draw(2 * (RECONNECT_WITHIN / STEP) as usize) as u64;
                self.part(node, self.now + for_steps * STEP);
            }
            // It dies with a process.
            _ => {
                let ids: Vec<_> = self.processes.keys().copied().collect();
                let id = self.pick(&ids).expect("there are some");
                self.kill(NodeKey::Process(id));
                self.kill(node);
            }
        }
    }

    /// Checks that no case is opened and that all barriers rise for some time.
    pub(super) fn check_unharmed(&mut self, rounds: usize) -> Result<(), String> {
        let cases = self.image.cases.len();
        let ids: Vec<ProcessId> = self.processes.keys().copied().collect();
        for _ in 0..rounds {
            let before: Vec<_> = ids.iter().map(|id| self.barrier(id.0)).collect();
            self.steps(RISES_WITHIN)?;
            if let Some((id, _)) = ids.iter().zip(before).find(|&(id, before)| self.barrier(id.0) <= before) {
                return Err(format!("the barrier of {id} stands still"));
            }
        }
        if self.image.cases.len() > cases {
            return Err(format!("a case follows: {:?}", self.image.cases.values().next_back()));
        }
        Ok(())
    }
}

/// Runs a network with drawn faults of representatives and everything else. Returns the number of cases.
pub(in super::super) fn run_seats(seed: u64, planted: Option<Planted>) -> Result<usize, String> {
    let mut draws = Rng::stream(seed, 6);
    let mut world = World::doubled(seed, &mut draws, planted);
    world.steps(4_000)?;
    world.reconnects_late = draws.below(2) == 0;
    for _ in 0..draws.below(8) {
        if draws.below(3) == 0 {
            world.fault()?;
        } else {
            world.seat_fault();
        }
        let steps = [20, 150, 1_000, 4_000][draws.below(4) as usize];
        world.steps(draws.below(steps) as usize)?;
        world.check_callbacks()?;
    }
    world.cut_seats.clear();
    world.repair();
    world.steps(20_000)?;
    world.check_callbacks()?;
    world.check_settled()?;
    Ok(world.cases())
}

/// Runs a network in which one representative of a switch fails, and the other one lives: no process fails, no case is
/// opened, and no barrier stands still. A leader may be replaced, and a process may join meanwhile.
pub(in super::super) fn run_unseat(seed: u64, planted: Option<Planted>) -> Result<(), String> {
    let mut draws = Rng::stream(seed, 7);
    let mut world = World::doubled(seed, &mut draws, planted);
    world.steps(10_000)?;
    world.check_settled()?;
    for _ in 0..3 {
        let (switch, seat) = world.draw_rep();
        let node = NodeKey::Rep(switch, seat);
        match draws.below(4) {
            0 => world.kill(node),
            1 => {
                world.kill(node);
                world.steps(draws.below(300) as usize)?;
                world.boot(node);
            }
            2 => {
                let way = world.draw_way_of((switch, seat));
                world.cut_seats.insert(way);
            }
            _ => world.part(node, world.now + draws.below(RECONNECT_WITHIN * 2)),
        }
        world.check_unharmed(3)?;
        if draws.below(3) == 0 {
            world.replace_controller();
            world.check_unharmed(2)?;
        }
        world.check_unharmed(
            2 + (RECONNECT_WITHIN + RESPOND_WITHIN) as usize / STEP as usize / RISES_WITHIN,
        )?;
        world.cut_seats.clear();
        for node in world.dead.clone() {
            world.boot(node);
        }
        world.check_unharmed(6)?;
    }
    world.check_settled()
}

/// Runs a network in which one representative of a switch hears a process later than the other one, and the faster one
/// dies, and then that process: what it has stated last is known to its neighbours only. No other process fails. Returns the
/// number of cases.
pub(in super::super) fn run_ahead(seed: u64, planted: Option<Planted>) -> Result<usize, String> {
    let mut draws = Rng::stream(seed, 9);
    let racks: Vec<_> = (0..=draws.below(2)).map(|_| 1 + draws.below(2) as usize).collect();
    let mut world = World::with_seats(seed, &[&[2], &racks[..]].concat(), 1, &[0, 1], planted);
    world.steps(10_000)?;
    world.check_settled()?;
    world.keeps_memory = true;
    let at = draws.below(world.processes.len() as u64) as usize;
    let id = *world.processes.keys().nth(at).expect("drawn");
    let place = world.graph.place(id).expect("there");
    let faster = draws.below(2) as u8;
    // For less than the time after which a deaf one is retired.
    world.cut_seats.insert((place.up, 0, 1 - faster));
    world.steps(400 + draws.below(RESPOND_WITHIN / STEP) as usize)?;
    world.kill(NodeKey::Rep(place.switch, faster));
    // Often until its neighbours, that process included, have acknowledged that it is gone.
    world.steps(draws.below(3 * RESPOND_WITHIN / STEP) as usize)?;
    world.kill_process(id.0);
    world.cut_seats.clear();
    world.steps(12_000)?;
    let failed: Vec<_> = world.failures().into_iter().map(|(id, _)| id).collect();
    if failed != [id] {
        return Err(format!("{id} has died, and {failed:?} have failed"));
    }
    world.keeps_memory = false;
    world.repair();
    world.steps(8_000)?;
    world.check_callbacks()?;
    world.check_settled()?;
    Ok(world.cases())
}
