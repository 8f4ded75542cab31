//! Changes of the rules during a run: the control plane prepares all that an instance needs, which then adopts
//! it between two bursts, without allocating or freeing.

use super::config::{Action, Config, Rule};
use super::counters::{RemovedCounters, RuleCounters};
use super::held::Held;
use super::{ActiveRule, Flows, Impair};
use crate::table::Salt;
use core::mem::{discriminant, swap};
use std::collections::BTreeMap;
use std::sync::Arc;

/// New rules for the instance of one worker.
#[derive(Debug)]
pub struct Command(pub(super) Box<Change>);

/// An instance has adopted its new rules. Contains what it no longer uses, which the control plane frees.
#[derive(Debug)]
pub struct Adopted(pub(super) Box<Change>);

/// A change of one instance. Adopting it swaps its parts with those of the instance.
#[derive(Debug)]
pub(super) struct Change {
    version: u64,
    rules: Box<[ActiveRule]>,
    /// The earlier rule that each rule continues
    continued: Box<[Option<Continued>]>,
    /// Slots for held frames, for an instance that had none
    held: Option<Held>,
    /// Whether the instance gets `flows`, or keeps its own
    sets_flows: bool,
    flows: Option<Flows>,
}

/// How a rule continues an earlier one with the same name.
#[derive(Clone, Copy, Debug)]
struct Continued {
    /// Position among the earlier rules
    index: usize,
    /// Whether the counts for `skip` and `times` are reset
    restarts_limits: bool,
    /// Whether the counters continue, because the action is of the same kind
    keeps_counters: bool,
}

impl Adopted {
    /// Returns the number of the change: changes are numbered from 1.
    pub fn version(&self) -> u64 {
        self.0.version
    }
}

impl Impair {
    /// Adopts new rules. Frames that are held back stay so: each leaves at the time, or behind the count of
    /// frames, that was determined when it was held, whatever becomes of the rule that held it.
    #[cold]
    pub(super) fn adopt(&mut self, Command(mut change): Command) {
        #[cfg(test)]
        if self.loses_held_frames {
            self.held = self.held.emptied();
        }
        for (rule, continued) in change.rules.iter_mut().zip(&change.continued) {
            if let Some(continued) = continued {
                let earlier = &self.rules[continued.index];
                rule.choice_rng = earlier.choice_rng.clone();
                rule.action_rng = earlier.action_rng.clone();
                if !continued.restarts_limits {
                    (rule.matched, rule.acted) = (earlier.matched, earlier.acted);
                }
            }
        }
        swap(&mut self.rules, &mut change.rules);
        if let Some(held) = &mut change.held {
            swap(&mut self.held, held);
        }
        if change.sets_flows {
            swap(&mut self.flows, &mut change.flows);
        }
        self.adopted = Some(Adopted(change));
    }
}

/// The control plane's view of the rules of all workers.
#[derive(Debug)]
pub struct Rules {
    /// Configuration, with the current rules
    config: Config,
    /// Salt of the tables of flows
    salt: Option<u64>,
    /// Counters of each rule, by worker
    counters: Vec<Vec<Arc<RuleCounters>>>,
    workers: usize,
    version: u64,
    has_slots: bool,
    has_flows: bool,
    removed: BTreeMap<&'static str, RemovedCounters>,
}

impl Rules {
    /// Returns the rules of instances that were created from `config`, one for each worker.
    pub fn of(config: &Config, instances: &[Impair]) -> Self {
        let of_rule = |index: usize| {
            let counters = |instance: &Impair| Arc::clone(&instance.rules[index].counters);
            instances.iter().map(counters).collect()
        };
        Self {
            counters: (0..config.rules.len()).map(of_rule).collect(),
            config: config.clone(),
            salt: None,
            workers: instances.len(),
            version: 0,
            has_slots: config.holds_frames(),
            has_flows: config.needs_flows(),
            removed: BTreeMap::new(),
        }
    }

    /// Salts tables of flows that a change creates, as [`Impair::salted`] does.
    #[must_use]
    pub fn salted(self, salt: u64) -> Self {
        Self { salt: Some(salt), ..self }
    }

    /// Returns the configuration, with the current rules.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Returns the rules, each with its counters by worker.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&Rule, &[Arc<RuleCounters>])> {
        self.config.rules.iter().zip(self.counters.iter().map(Vec::as_slice))
    }

    /// Returns the count of workers.
    pub fn workers(&self) -> usize {
        self.workers
    }

    /// Returns the number of changes.
    pub fn version(&self) -> u64 {
        self.version
    }

    /// Returns the counts of rules that are gone, by their actions. They are complete when all instances have
    /// adopted the latest change.
    pub fn removed(&self) -> impl Iterator<Item = (&'static str, &RemovedCounters)> {
        self.removed.iter().map(|(action, counters)| (*action, counters))
    }

    /// Replaces the rules. Returns a command for each worker, which has to be delivered after those of earlier
    /// changes. A rule with the name of an earlier one continues its random choices; it also continues its
    /// counters if the kind of action is the same, and the counts for `skip` and `times` if both have the same
    /// values and `restart` does not list it. Names of `rules` have to be unique.
    pub fn replace(&mut self, rules: Vec<Rule>, restart: &[String]) -> Vec<Command> {
        self.version += 1;
        let earlier = |rule: &Rule| {
            let index = self.config.rules.iter().position(|other| other.name == rule.name)?;
            let other = &self.config.rules[index];
            let limits_differ = (rule.skip, rule.times) != (other.skip, other.times);
            Some(Continued {
                index,
                restarts_limits: limits_differ || restart.contains(&rule.name),
                keeps_counters: discriminant(&rule.action) == discriminant(&other.action),
            })
        };
        let continued: Box<[_]> = rules.iter().map(earlier).collect();
        let counters = |continued: &Option<Continued>| match continued {
            Some(Continued { index, keeps_counters: true, .. }) => self.counters[*index].clone(),
            _ => (0..self.workers).map(|_| Arc::default()).collect(),
        };
        self.counters = continued.iter().map(counters).collect();
        self.config.rules = rules;
        let (needs_slots, needs_flows) = (self.config.holds_frames(), self.config.needs_flows());
        let (adds_slots, sets_flows) = (needs_slots && !self.has_slots, needs_flows != self.has_flows);
        // Slots stay: frames may be held in them.
        self.has_slots |= needs_slots;
        self.has_flows = needs_flows;
        let config = &self.config;
        let change = |worker| Change {
            version: self.version,
            rules: config.active_rules(worker, |rule| Arc::clone(&self.counters[rule][worker])),
            continued: continued.clone(),
            held: adds_slots.then(|| Held::new(config.held, config.frame_len, config.ports)),
            sets_flows,
            flows: (sets_flows && needs_flows).then(|| {
                let mut flows = Flows::new(config.flows);
                flows.set_salt(self.salt.map(Salt::new));
                flows
            }),
        };
        (0..self.workers).map(|worker| Command(Box::new(change(worker)))).collect()
    }

    /// Frees what an instance no longer uses, and adds the counts of its rules that are gone to
    /// [`removed`](Self::removed).
    pub fn retire(&mut self, Adopted(change): Adopted) {
        for (index, earlier) in change.rules.iter().enumerate() {
            let keeps = |continued: &Continued| continued.index == index && continued.keeps_counters;
            if !change.continued.iter().flatten().any(keeps) {
                let removed = self.removed.entry(earlier.rule.action.name()).or_default();
                removed.matched += earlier.counters.matched.get();
                removed.acted += earlier.counters.acted.get();
                removed.unable += earlier.counters.unable.get();
            }
        }
    }
}

impl Config {
    /// Returns whether a rule holds frames back.
    pub(super) fn holds_frames(&self) -> bool {
        let holds = |rule: &Rule| matches!(rule.action, Action::Delay { .. } | Action::Reorder { .. });
        self.rules.iter().any(holds)
    }

    /// Returns whether a rule needs the first PSN of flows.
    pub(super) fn needs_flows(&self) -> bool {
        self.rules.iter().any(|rule| rule.matching.psn_offset.is_some())
    }

    /// Returns the rules as one worker's instance runs them. `counters` returns those of a rule.
    pub(super) fn active_rules(
        &self,
        worker: usize,
        counters: impl Fn(usize) -> Arc<RuleCounters>,
    ) -> Box<[ActiveRule]> {
        let active = |(index, rule)| ActiveRule::new(rule, self.seed, worker, counters(index));
        self.rules.iter().enumerate().map(active).collect()
    }
}
