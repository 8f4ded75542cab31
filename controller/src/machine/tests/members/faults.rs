//! Faults at drawn moments, and their repair.

use super::network::{Network, STEP};
use crate::machine::NodeKey;
use crate::store::Fault;
use onepipe::ProcessId;

impl Network {
    /// Has something fail, return or be repaired, if it is time.
    pub(super) fn draw_fault(&mut self) {
        if !self.plan.has_faults || self.now.0 < self.next_fault {
            return;
        }
        let gap = *self.rng.pick(&[20, 150, 1_500]);
        self.next_fault = self.now.0 + (1 + self.rng.below(gap)) * STEP;
        let ids: Vec<_> = self.current.keys().copied().collect();
        let (id, other) = (*self.rng.pick(&ids), *self.rng.pick(&ids));
        match self.rng.below(16) {
            0 => self.kill_process(id),
            1 | 2 => {
                let dead: Vec<_> = ids.into_iter().filter(|&id| self.host(id).is_dead).collect();
                if !dead.is_empty() {
                    let id = *self.rng.pick(&dead);
                    self.boot_process(id);
                }
            }
            3..6 => {
                let place = self.graph.place(ProcessId(id)).expect("a process of the graph");
                let (up, down) = *self.rng.pick(&[(true, true), (true, false), (false, true)]);
                self.cut.extend(up.then_some(place.up));
                self.cut.extend(down.then_some(place.down));
            }
            6 => {
                self.cut.clear();
                self.cut_pairs.clear();
            }
            7 | 8 => {
                self.cut_pairs.insert((id, other));
            }
            9 => self.replace_controller(),
            10 | 11 => {
                let stall = self.rng.below(600) * STEP;
                self.take_over(stall);
            }
            12 => {
                let fault = *self.rng.pick(&Fault::ALL);
                self.store.inject([Some(fault)]);
            }
            13 => {
                for n in 0..self.controllers() {
                    self.connect(n, NodeKey::Process(ProcessId(id)));
                }
            }
            14 => self.fail(id),
            _ => self.fail_rep(),
        }
    }

    /// Has a process leave, or start again, if it is time. One that has left may start again at once.
    pub(super) fn draw_departure(&mut self) {
        if self.now.0 < self.next_departure {
            return;
        }
        let gap = *self.rng.pick(&[50, 500, 3_000]);
        self.next_departure = self.now.0 + (1 + self.rng.below(gap)) * STEP;
        let ids: Vec<_> = self.current.keys().copied().collect();
        let left: Vec<_> = ids.iter().copied().filter(|&id| self.host(id).left.is_some()).collect();
        if !left.is_empty() && self.rng.below(3) > 0 {
            let id = *self.rng.pick(&left);
            return self.boot_process(id);
        }
        let (id, now) = (*self.rng.pick(&ids), self.now);
        self.host_mut(id).leave(now);
    }

    fn kill_process(&mut self, id: u32) {
        let host = self.host_mut(id);
        if host.is_dead {
            return;
        }
        host.is_dead = true;
        host.lost.extend(host.member.last_incarnation());
        (0..self.controllers()).for_each(|n| self.disconnect(n, NodeKey::Process(ProcessId(id))));
    }

    /// A representative dies, or returns.
    fn fail_rep(&mut self) {
        if let Some(&switch) = self.dead_reps.first() {
            return self.boot_rep(switch);
        }
        let switch = self.rng.below(self.reps.len() as u64) as u16;
        self.dead_reps.insert(switch);
        (0..self.controllers()).for_each(|n| self.disconnect(n, NodeKey::Rep(switch, 0)));
    }

    /// Repairs everything.
    pub(super) fn repair(&mut self) {
        self.cut.clear();
        self.cut_pairs.clear();
        if self.controllers() > 1 {
            self.replace_controller();
        }
        while let Some(&switch) = self.dead_reps.first() {
            self.boot_rep(switch);
        }
    }

    pub(super) fn boot_dead(&mut self) {
        let dead: Vec<_> = self.current.keys().copied().filter(|&id| self.host(id).is_dead).collect();
        for id in dead {
            self.boot_process(id);
        }
    }
}
