//! Processes that reach the controller, and whose link is dead.

use super::{Planted, RECONNECT_WITHIN, World};
use crate::machine::NodeKey;
use crate::record::MemberState;
use onepipe::ProcessId;
use switch::Rng;

/// Steps in which a barrier rises, without a fault
const RISES_WITHIN: usize = 1_000;

/// Runs a network in which a process's link dies in one direction or both, and not its connection with the controller.
/// It fails once, also if its program, its switch's representative or the controller starts again, and joins when the
/// link is mended; meanwhile it stops no other process.
pub(in super::super) fn run_unheard(seed: u64, planted: Option<Planted>) -> Result<(), String> {
    let mut draws = Rng::stream(seed, 5);
    let racks: Vec<_> = (0..=draws.below(2)).map(|_| 1 + draws.below(3) as usize).collect();
    let mut world = World::new(seed, &[&[2], &racks[..]].concat(), 1, planted);
    world.steps(8_000)?;
    world.check_settled()?;
    let at = draws.below(world.processes.len() as u64) as usize;
    let id = *world.processes.keys().nth(at).expect("drawn");
    let place = world.graph.place(id).expect("there");
    let dead = [[place.up; 2], [place.down; 2], [place.up, place.down]];
    world.cut.extend(dead[draws.below(3) as usize]);
    world.steps(6_000)?;
    let failed: Vec<_> = world.failures().into_iter().map(|(id, _)| id).collect();
    if failed != [id] {
        return Err(format!("the link of {id} is dead, and {failed:?} have failed"));
    }
    match draws.below(5) {
        0 => world.restart(id.0),
        1 => world.boot(NodeKey::Rep(place.switch, 0)),
        2 => world.replace_controller(),
        // The direction in which it is heard is never both.
        3 => {
            world.cut =
                dead[..2].iter().flatten().copied().filter(|link| !world.cut.contains(link)).collect();
        }
        _ => {}
    }
    world.steps(6_000)?;
    if draws.below(2) == 0 {
        another_fails(&mut world, id, &mut draws)?;
    }
    stops_no_other(&mut world, id)?;
    world.cut.clear();
    world.steps(4_000)?;
    world.check_settled()
}

/// Another process fails, and the one that is not heard dies, starts again or loses its connection when it may have got
/// the notice of that. The other one is a member again before it is back.
fn another_fails(world: &mut World, id: ProcessId, draws: &mut Rng) -> Result<(), String> {
    let others: Vec<_> = world.processes.keys().copied().filter(|&other| other != id).collect();
    let other = others[draws.below(others.len() as u64) as usize];
    world.kill_process(other.0);
    world.steps(draws.below(1_500) as usize)?;
    let dies = draws.below(2) == 0;
    if dies {
        world.kill_process(id.0);
    } else if draws.below(2) == 0 {
        world.restart(id.0);
    } else {
        world.part(NodeKey::Process(id), world.now + draws.below(RECONNECT_WITHIN));
    }
    world.steps(8_000)?;
    world.restart(other.0);
    world.steps(8_000)?;
    if world.member(other.0).1 != MemberState::Member {
        return Err(format!("{other} is no member again: {:?}", world.member(other.0)));
    }
    if dies {
        world.restart(id.0);
        world.steps(6_000)?;
    }
    Ok(())
}

/// Checks that no process fails, and that the barriers of all but one rise.
fn stops_no_other(world: &mut World, id: ProcessId) -> Result<(), String> {
    let (failures, cases) = (world.failures(), world.image.cases.len());
    let others: Vec<_> = world.processes.keys().filter(|&&other| other != id).map(|other| other.0).collect();
    for _ in 0..8 {
        let before: Vec<_> = others.iter().map(|&other| world.barrier(other)).collect();
        world.steps(RISES_WITHIN)?;
        let stands = others.iter().zip(before).find(|&(&other, before)| world.barrier(other) <= before);
        if let Some((other, _)) = stands {
            return Err(format!("the barrier of {other} stands still"));
        }
    }
    let failed: Vec<_> = world.failures().into_iter().filter(|failed| !failures.contains(failed)).collect();
    if !failed.is_empty() || world.image.cases.len() > cases {
        return Err(format!(
            "{} cases follow {cases}, in which {failed:?} have failed",
            world.image.cases.len()
        ));
    }
    Ok(())
}
