//! The impairing function's control plane: changes the rules on request, on all workers.

use super::rules::{self, RuleText};
use super::summary;
use crate::observe::steer::{ADOPTION_TIMEOUT, RuleState, RulesRequest, RulesState, SteerError, Steering};
use crate::system::now;
use crossbeam_channel::{Receiver, Sender};
use dataplane::{ControlHandler, ControlOutput, Live, Mbuf};
use settings::port::Ports;
use settings::words::{all_of, closest};
use std::collections::VecDeque;
use std::time::Instant;
use switch::PortId;
use switch::impair::counters::RuleCounters;
use switch::impair::{Adopted, Command, Impair, Rule, Rules};

type Response = Sender<Result<RulesState, SteerError>>;

/// The control plane.
pub(super) struct ImpairControl {
    pub(super) rules: Rules,
    ports: Ports,
    port_names: Vec<String>,
    requests: Option<Receiver<Steering>>,
    /// Requests that wait until all workers have adopted the change before, each with its deadline
    waiting: VecDeque<(RulesRequest, Response, Instant)>,
    /// Latest change, until all workers have adopted it
    change: Option<Change>,
    /// Number of the next rule that is added without a name
    next_number: usize,
}

/// A change that some workers have not adopted yet.
struct Change {
    /// Commands for which there was no room in a worker's queue
    unsent: Vec<Option<Command>>,
    adopted: Vec<bool>,
    /// Requester, until it gets its response, and deadline of it
    requester: Option<(Response, Instant)>,
}

impl Change {
    fn missing(&self) -> Vec<usize> {
        self.adopted.iter().enumerate().filter(|(_, adopted)| !**adopted).map(|(worker, _)| worker).collect()
    }
}

impl ImpairControl {
    pub(super) fn new(
        rules: Rules,
        ports: &[dataplane::config::Port],
        requests: Option<Receiver<Steering>>,
    ) -> Self {
        Self {
            next_number: rules.config().rules.len() + 1,
            rules,
            ports: Ports::of(ports),
            port_names: ports.iter().map(|port| port.name.clone()).collect(),
            requests,
            waiting: VecDeque::new(),
            change: None,
        }
    }

    /// Handles requests and time-outs. `send` sends a command to a worker, or returns it if there is no room.
    fn poll(&mut self, now: Instant, mut send: impl FnMut(usize, Command) -> Result<(), Command>) {
        let requests: Vec<_> = self.requests.iter().flat_map(Receiver::try_iter).collect();
        for request in requests {
            match request {
                Steering::Rules(RulesRequest::List, response) => drop(response.send(Ok(self.state()))),
                Steering::Rules(request, response) => {
                    self.waiting.push_back((request, response, now + ADOPTION_TIMEOUT));
                }
                other @ (Steering::Rates(..) | Steering::Layers(..)) => other.refuse("impair"),
            }
        }
        self.continue_change(now, &mut send);
        while self.change.is_none()
            && let Some((request, response, deadline)) = self.waiting.pop_front()
        {
            match self.begin(request) {
                Ok(commands) => {
                    self.change = Some(Change {
                        adopted: vec![false; commands.len()],
                        unsent: commands.into_iter().map(Some).collect(),
                        requester: Some((response, deadline)),
                    });
                    self.continue_change(now, &mut send);
                }
                Err(why) => drop(response.send(Err(SteerError::Invalid(why)))),
            }
        }
        if let Some(waiting) = self.change.as_ref().map(Change::missing) {
            while self.waiting.front().is_some_and(|(_, _, deadline)| *deadline <= now) {
                let Some((_, response, _)) = self.waiting.pop_front() else { break };
                drop(response.send(Err(SteerError::Busy { waiting: waiting.clone() })));
            }
        }
    }

    /// Sends what has not been sent of the change, and ends it if all workers have adopted it.
    fn continue_change(
        &mut self,
        now: Instant,
        send: &mut impl FnMut(usize, Command) -> Result<(), Command>,
    ) {
        let Some(change) = &mut self.change else { return };
        for (worker, unsent) in change.unsent.iter_mut().enumerate() {
            *unsent = unsent.take().and_then(|command| send(worker, command).err());
        }
        let waiting = change.missing();
        if waiting.is_empty() {
            let requester = self.change.take().and_then(|change| change.requester);
            if let Some((response, _)) = requester {
                // A requester that has given up needs no response.
                drop(response.send(Ok(self.state())));
            }
        } else if let Some((response, _)) = change.requester.take_if(|(_, deadline)| *deadline <= now) {
            drop(response.send(Err(SteerError::Late { waiting })));
        }
    }

    /// Frees what a worker no longer uses, and notes that it has adopted the change.
    fn adopted(&mut self, worker: usize, adopted: Adopted) {
        if adopted.version() == self.rules.version()
            && let Some(change) = &mut self.change
        {
            change.adopted[worker] = true;
        }
        self.rules.retire(adopted);
    }

    /// Begins a change. Returns the commands for the workers, or why it is not valid, as a text for users.
    fn begin(&mut self, request: RulesRequest) -> Result<Vec<Command>, String> {
        let mut rules = self.rules.config().rules.clone();
        let mut restart = Vec::new();
        match request {
            RulesRequest::List => {}
            RulesRequest::Add { keys, before } => {
                let at = before.map_or(Ok(rules.len()), |name| find(&rules, &name))?;
                let rule = self.new_rule(&keys)?;
                if rules.iter().any(|other| other.name == rule.name) {
                    let name = rule.name;
                    return Err(format!(
                        "there is a rule `{name}` already; use `set`, or give the new one another `name`"
                    ));
                }
                rules.insert(at, rule);
            }
            RulesRequest::Set { rule, keys } => {
                let at = find(&rules, &rule)?;
                if keys.iter().any(|(key, _)| key == "name") {
                    return Err("the name of a rule cannot be changed, as it seeds the rule's choices; add a rule and remove this one".into());
                }
                if keys.iter().any(|(key, _)| key == "skip" || key == "times") {
                    restart.push(rule);
                }
                let mut text = RuleText::of(&rules[at], &self.port_names);
                text.set(&keys);
                rules[at] = text.read(&self.ports)?;
            }
            RulesRequest::Remove { rules: names } => {
                for name in names {
                    rules.remove(find(&rules, &name)?);
                }
            }
            RulesRequest::Apply { origin, text } => rules = rules::read(&origin, &text, &self.ports)?,
        }
        Ok(self.rules.replace(rules, &restart))
    }

    /// Returns a rule with these keys. Without a name, it gets one that no rule had before.
    fn new_rule(&mut self, keys: &[(String, String)]) -> Result<Rule, String> {
        let mut text = RuleText::default();
        text.set(keys);
        if keys.iter().all(|(key, _)| key != "name") {
            let taken =
                |number: &usize| self.rules.iter().any(|(rule, _)| rule.name == default_name(*number));
            while taken(&self.next_number) {
                self.next_number += 1;
            }
            text.set(&[("name".into(), default_name(self.next_number))]);
        }
        let rule = text.read(&self.ports)?;
        self.next_number += usize::from(rule.name == default_name(self.next_number));
        Ok(rule)
    }

    fn state(&self) -> RulesState {
        let rule = |(rule, counters): (&Rule, &[_])| {
            let sum = |count: fn(&RuleCounters) -> u64| {
                counters.iter().map(|counters: &std::sync::Arc<RuleCounters>| count(counters)).sum()
            };
            RuleState {
                name: rule.name.clone(),
                text: summary::line(rule),
                toml: RuleText::of(rule, &self.port_names).toml(),
                matched: sum(|counters| counters.matched.get()),
                acted: sum(|counters| counters.acted.get()),
                unable: sum(|counters| counters.unable.get()),
            }
        };
        RulesState {
            rules: self.rules.iter().map(rule).collect(),
            workers: self.rules.workers(),
            waiting: self.change.as_ref().map(Change::missing).unwrap_or_default(),
        }
    }
}

fn default_name(number: usize) -> String {
    format!("rule {number}")
}

/// Returns the position of a rule, or a text that there is none.
fn find(rules: &[Rule], name: &str) -> Result<usize, String> {
    let names = || rules.iter().map(|rule| rule.name.as_str());
    names().position(|other| other == name).ok_or_else(|| {
        let meant =
            closest(name, names()).map(|close| format!("did you mean `{close}`? ")).unwrap_or_default();
        let all = if rules.is_empty() {
            "there are none".into()
        } else {
            format!("the rules are {}", all_of(names()))
        };
        format!("there is no rule `{name}`; {meant}{all}")
    })
}

impl ControlHandler<Impair> for ImpairControl {
    fn on_event(&mut self, worker: usize, event: Adopted, _out: &mut ControlOutput<'_, Impair>) {
        self.adopted(worker, event);
    }

    fn on_punt(&mut self, _worker: usize, _frame: Mbuf, _port: PortId, _out: &mut ControlOutput<'_, Impair>) {
    }

    fn on_tick(&mut self, _live: &Live<'_>, out: &mut ControlOutput<'_, Impair>) -> bool {
        self.poll(now(), |worker, command| out.command(worker, command).map_err(|full| full.0));
        true
    }
}

#[cfg(test)]
mod tests;
