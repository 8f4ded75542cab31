//! Exhaustive search of the smallest worlds: three real processes with their members, the real controller, a
//! switch as a model, two scatterings, and one failure.
//!
//! Queues have an order of urgency. The front of the most urgent one that is not empty is delivered, and time
//! passes when all are empty. From the moment at which the scatterings are sent, the search visits every run
//! in which, at any step, the queue whose turn it is stands still for four intervals, and is the least urgent
//! one after that; and in which, at any step, a process dies, or the controller, or one after the other.
//! States are compared in every fourth step, and none is continued twice. Time-outs of live nodes are not
//! among the choices: they expire only when nothing is to be delivered. A dead link is silent at any time.

mod cell;
mod oracle;
mod part;

use super::super::number;
use cell::{Bugs, Cell, IDS};
use std::collections::HashSet;

/// A queue stands still once, and one kind of death is searched, two before or after that of a controller;
/// `DEPTH=2` searches all kinds, `DEPTH=3` two queues that stand still, and one where the controller dies
const DEPTH: u64 = 1;
/// Steps after which a state is compared with those that were visited
const LOOKS_EVERY: u64 = 4;
/// Intervals within which everything has to be settled
const SETTLES_WITHIN: u64 = 120;

/// What may still happen in a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Budget {
    deferrals: u64,
    deaths: u64,
    restarts: u64,
    /// Number of kinds of deaths that are searched
    kinds: usize,
}

/// What a search has visited.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Visited {
    states: u64,
    ends: u64,
    /// Ends with a failure
    failed: u64,
    /// Scatterings that were committed, and that were recalled, at these ends
    committed: u64,
    recalled: u64,
}

/// A state that is to be visited, and how it was reached.
#[derive(Clone)]
struct Next {
    cell: Cell,
    budget: Budget,
    path: Vec<String>,
    /// Intervals since the last fault
    waited: u64,
    /// Steps since the last interval
    steps: u64,
}

/// Returns the world in which all have joined, and two scatterings are about to leave.
fn start(bugs: Bugs) -> Result<Cell, String> {
    let mut cell = Cell::new(bugs);
    // Links count as silent without delay after that.
    while cell.now().0 < 200_000 {
        match cell.next() {
            Some(event) => cell.happen(event)?,
            None => cell.pass_time()?,
        }
    }
    if !cell.is_settled() {
        return Err("not all have joined".into());
    }
    cell.send(1, &[2, 3], 1);
    cell.send(2, &[1, 3], 2);
    cell.pass_time()?;
    Ok(cell)
}

impl Next {
    /// Goes on by one step, without a fault.
    fn step(&mut self) -> Result<(), String> {
        if let Some(event) = self.cell.next() {
            self.steps += 1;
            return self.cell.happen(event);
        }
        self.waited += 1;
        self.steps = 0;
        self.cell.pass_time()
    }

    fn fault(
        &self,
        what: String,
        change: impl FnOnce(&mut Self) -> Result<(), String>,
    ) -> Result<Self, String> {
        let mut next = self.clone();
        next.path.push(what);
        next.waited = 0;
        change(&mut next).map(|()| next)
    }

    /// Returns the states that other choices than the next step lead to.
    fn choices(&self) -> Result<Vec<Self>, String> {
        let mut choices = Vec::new();
        let event = self.cell.next();
        if let Some(event) = event.filter(|_| self.budget.deferrals > 0) {
            let mut next = self.clone();
            next.cell.defer(event);
            next.budget.deferrals -= 1;
            next.path.push(format!("{event:?} deferred at {:?}", next.cell.now()));
            choices.push(next);
        }
        // Faults between two intervals are those before the next event.
        if event.is_none() {
            return Ok(choices);
        }
        if self.budget.restarts > 0 {
            choices.push(self.fault(format!("controller restarts before {event:?}"), |next| {
                next.budget.restarts -= 1;
                next.cell.restart_controller()
            })?);
        }
        if self.budget.deaths > 0 {
            for &(id, lost) in &DEATHS[..self.budget.kinds] {
                choices.push(self.fault(format!("{id} dies before {event:?}, {lost:?}"), |next| {
                    next.budget.deaths -= 1;
                    next.cell.kill(id, lost);
                    Ok(())
                })?);
            }
        }
        Ok(choices)
    }
}

/// Kinds of deaths: the process that dies, and those to which its last frames are lost
const DEATHS: [(u32, &[u32]); 7] =
    [(3, &[]), (1, &[2]), (1, &[]), (1, &[3]), (1, &[2, 3]), (2, &[1]), (3, &IDS)];

/// Searches all runs with a budget.
///
/// # Errors
/// The first violation, with the choices that lead to it.
fn search(budget: Budget, bugs: Bugs) -> Result<Visited, String> {
    let mut seen = HashSet::new();
    let mut visited = Visited::default();
    let mut open = vec![Next { cell: start(bugs)?, budget, path: Vec::new(), waited: 0, steps: 0 }];
    while let Some(mut next) = open.pop() {
        // Runs that do the same in another order meet after the same number of steps.
        while !next.steps.is_multiple_of(LOOKS_EVERY)
            || seen.insert(part::digest(&(next.cell.digest(), next.budget)))
        {
            visited.states += 1;
            if next.cell.next().is_none() && !next.cell.holds() && next.cell.is_settled() {
                next.cell.check_end().map_err(|error| format!("{error}\n{:?}", next.path))?;
                visited.count(&next.cell);
                break;
            }
            if next.waited > SETTLES_WITHIN {
                return Err(format!("not settled\n{:?}", next.path));
            }
            let at = |error| format!("{error}\n{:?}", next.path);
            open.extend(next.choices().map_err(at)?);
            let path = next.path.clone();
            next.step().map_err(|error| format!("{error}\n{path:?}"))?;
        }
    }
    Ok(visited)
}

impl Visited {
    fn count(&mut self, cell: &Cell) {
        use super::host::Fate;
        self.ends += 1;
        self.failed += u64::from(!cell.image().cases.is_empty());
        let fates = cell.hosts().flat_map(|host| host.sent.values()).map(|(_, sent)| sent.fate);
        self.committed += fates.clone().filter(|fate| *fate == Fate::Committed).count() as u64;
        self.recalled += fates.filter(|fate| *fate == Fate::Recalled).count() as u64;
    }
}

/// Searches, and prints what was visited.
fn search_all(budget: Budget) {
    let visited = search(budget, Bugs::default()).unwrap_or_else(|error| panic!("{budget:?}: {error}"));
    println!("{budget:?}: {visited:?}");
    assert!(visited.ends > 20 && visited.failed > 20, "{visited:?}");
    assert!(visited.committed > 20 && visited.recalled > 20, "{visited:?}");
}

#[test]
fn no_order_and_no_death_breaks_the_smallest_worlds() {
    let depth = number("DEPTH", DEPTH);
    let kinds = if depth > DEPTH { DEATHS.len() } else { 1 };
    search_all(Budget { deferrals: 1.max(depth.saturating_sub(1)), deaths: 1, restarts: 0, kinds });
}

#[test]
fn no_death_before_or_after_that_of_a_controller_breaks_the_smallest_worlds() {
    let depth = number("DEPTH", DEPTH);
    let kinds = if depth > DEPTH { DEATHS.len() } else { 1 };
    search_all(Budget { deferrals: depth.saturating_sub(2), deaths: 1, restarts: 1, kinds });
}

#[test]
#[cfg(debug_assertions)]
fn planted_bugs_are_found_by_the_search() {
    use crate::machine::Bug;
    use onepipe::process::Bug as OfProcess;
    let controller = [Bug::NoFreeze, Bug::MinimumForT, Bug::ResumeBeforeCallback];
    let controller = controller.map(|bug| Bugs { controller: Some(bug), ..Bugs::default() });
    let process = [OfProcess::CompletedEarly, OfProcess::CommitBeforeLastAck];
    let process = process.map(|bug| Bugs { process: Some(bug), ..Bugs::default() });
    for bugs in controller.into_iter().chain(process) {
        let found = search(Budget { deferrals: 1, deaths: 1, restarts: 0, kinds: 1 }, bugs).err();
        println!("{bugs:?}: {found:?}");
        assert!(found.is_some(), "{bugs:?} is not found");
    }
}
