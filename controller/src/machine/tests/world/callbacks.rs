//! What has to stand still while members call their applications back, also if something else fails then.

use super::{Answer, Planted, World};
use crate::graph::LinkId;
use crate::machine::NodeKey;
use crate::record::MemberState;
use onepipe::ProcessId;
use onepipe::control::Incarnation;
use switch::Rng;

/// Runs a network in which something else fails while members call back for a failure: links or all of the same rack, or
/// a link without which all are still connected. No barrier passes before the callbacks have returned.
pub(in super::super) fn run_during_callbacks(seed: u64, planted: Option<Planted>) -> Result<(), String> {
    let mut draws = Rng::stream(seed, 6);
    let mut world = World::new(seed, &[2, 1, 1], 2, planted);
    world.steps(8_000)?;
    world.check_settled()?;
    world.pauses = 3;
    world.kill_process(1);
    while world.failed_at(1).is_none() {
        world.step()?;
    }
    world.steps(draws.below(400) as usize)?;
    match draws.below(3) {
        0 => world.cut_rack(0, true),
        1 => world.kill_process(2),
        _ => {
            let core: Vec<_> = world.graph.links().filter(|&link| world.is_core(link)).collect();
            world.cut.insert(core[draws.below(core.len() as u64) as usize]);
        }
    }
    world.steps(12_000)?;
    world.check_callbacks()?;
    world.repair();
    world.steps(12_000)?;
    world.check_settled()
}

impl World {
    /// Returns whether a link connects two switches.
    pub(super) fn is_core(&self, link: LinkId) -> bool {
        let ends = self.graph.ends(link);
        let switches = [ends.from, ends.to].map(|node| self.graph.at(node).switch());
        switches[0].is_some() && switches[1].is_some() && switches[0] != switches[1]
    }

    /// No barrier passes the time of a failed process before all members have called back.
    pub(super) fn check_barrier(&self, id: ProcessId) -> Result<(), String> {
        let process = &self.processes[&id];
        let key = (id, process.terms.incarnation);
        for (case, decided) in &self.decided {
            let unfenced = decided.record.unfenced.contains(&id);
            // One that has not been admitted receives nothing, whatever its barrier.
            if !process.admitted {
                continue;
            }
            if !decided.audience.contains(&key) || unfenced {
                continue;
            }
            let done = |&(id, incarnation): &(ProcessId, Incarnation)| {
                let process = &self.processes[&id];
                let completed =
                    process.cases.get(case).is_some_and(|(answer, _)| *answer == Answer::Completed);
                // One that has not been admitted has sent nothing, either.
                let is_present = process.terms.incarnation == incarnation && process.admitted;
                completed || !is_present || self.is_out(id, incarnation)
            };
            if decided.audience.iter().all(done) {
                continue;
            }
            for failed in &decided.record.failed {
                if process.barrier > failed.time {
                    return Err(format!("case {case}: {id} has {}, {failed:?}", process.barrier));
                }
            }
        }
        Ok(())
    }

    /// Returns whether an incarnation has failed, or is about to.
    pub(super) fn is_out(&self, id: ProcessId, incarnation: Incarnation) -> bool {
        let record = self.image.members.get(&(id, incarnation));
        self.dead.contains(&NodeKey::Process(id))
            || record.is_none_or(|record| !matches!(record.state, MemberState::Joining | MemberState::Member))
    }
}
