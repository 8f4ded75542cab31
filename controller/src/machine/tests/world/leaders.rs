//! Controllers that want to lead, and their stores.

use super::*;

impl World {
    /// Returns whether a controller leads in the present term, and knows it.
    pub(super) fn has_leader(&self) -> bool {
        let leads = |controller: &Controller| controller.store.leads() && controller.machine.term().is_some();
        self.controllers.iter().any(leads)
    }

    pub(super) fn campaign(&mut self, n: usize) {
        let controller = &mut self.controllers[n];
        controller.campaigns = false;
        controller.writes.clear();
        controller.results.clear();
        if let Ok(Some((term, records))) = controller.store.campaign(Duration::ZERO) {
            self.input(n, Input::Led(term, records));
            self.nodes()
                .into_iter()
                .filter(|node| !self.dead.contains(node) && !self.controllers[n].away.contains_key(node))
                .collect::<Vec<_>>()
                .into_iter()
                .for_each(|node| self.input(n, Input::Up(node)));
        }
    }

    pub(super) fn store_step(&mut self, n: usize) -> Result<(), String> {
        let controller = &mut self.controllers[n];
        if let Some((id, result)) = controller.results.pop_front() {
            self.input(n, Input::Written(id, result));
        } else if let Some((_, id, changes)) = controller.writes.pop_front_if(|(at, ..)| *at <= self.now) {
            let term = controller.machine.term().unwrap_or(Term(0));
            let result = controller.store.write(term, &changes);
            controller.results.push_back((id, result));
            return self.see_writes();
        }
        Ok(())
    }
}
