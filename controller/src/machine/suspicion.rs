//! Suspicions: registers and barriers stand still around what is silent or does not answer, until everything
//! speaks again or a case is decided. Nothing of it is stored; it can be undone at any time.

use super::writes::Then;
use super::{Bug, Leader, Machine, NodeKey};
use crate::decide::{Decision, Earlier, Fence};
use crate::graph::{LinkId, Node, NodeId};
use crate::operator;
use crate::record::{CaseRecord, FailedMember, Key, MemberState, RepState, Stage, Value};
use onepipe::ProcessId;
use onepipe::control::SEATS;
use std::collections::BTreeSet;
use switch::Nanos;

/// A failure that is not decided yet.
#[derive(Clone, Debug)]
pub(super) struct Suspicion {
    /// Links whose keepers have reported silence
    links: BTreeSet<LinkId>,
    /// Nodes that did not answer, or that the operator declared failed
    nodes: BTreeSet<NodeKey>,
    /// Lower nodes of switches below which a failed process has to be stopped, and both nodes of switches whose
    /// representatives register and cannot be waited for
    more: BTreeSet<NodeId>,
    /// Nodes that are not waited for any more
    late: BTreeSet<NodeKey>,
    phase: Phase,
    /// Start of the phase or of its present round
    since: Nanos,
    /// What has to stand still
    pub(super) fence: Fence,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Further reports may follow
    Gathering,
    /// Waiting for acknowledgements
    Fencing,
    /// No process failed, but some members are connected only by links that have not caught up yet
    AwaitingPath,
    /// The decision is being stored
    Writing(u64),
}

/// What is left of the network, as far as it is known.
struct Rest {
    failed: Vec<ProcessId>,
    dead: BTreeSet<LinkId>,
}

impl Suspicion {
    /// Returns whether it is being stored as this case.
    pub(super) fn is_writing(&self, case: u64) -> bool {
        self.phase == Phase::Writing(case)
    }

    /// Returns the end of the time in which further reports join it, if that is not over.
    pub(super) fn gathers_until(&self, gather: Nanos) -> Option<Nanos> {
        (self.phase == Phase::Gathering).then_some(self.since + gather)
    }

    /// Returns the progress, for operators.
    pub(super) fn phase(&self) -> operator::Phase {
        match self.phase {
            Phase::Gathering => operator::Phase::Gathering,
            Phase::Fencing => operator::Phase::Fencing,
            Phase::AwaitingPath => operator::Phase::AwaitingPath,
            Phase::Writing(_) => operator::Phase::Writing,
        }
    }

    /// Returns whether a node did not answer.
    pub(super) fn has(&self, node: NodeKey) -> bool {
        self.nodes.contains(&node)
    }

    /// Returns the nodes that did not answer, or that the operator declared failed.
    pub(super) fn suspects(&self) -> Vec<NodeKey> {
        self.nodes.iter().copied().collect()
    }
}

impl Leader {
    pub(super) fn suspicion_is_writing(&self) -> bool {
        self.suspicion.as_ref().is_some_and(|suspicion| matches!(suspicion.phase, Phase::Writing(_)))
    }
}

impl Machine {
    fn suspicion(&mut self) -> &mut Suspicion {
        let since = self.now;
        self.leader_mut().suspicion.get_or_insert_with(|| Suspicion {
            links: BTreeSet::new(),
            nodes: BTreeSet::new(),
            more: BTreeSet::new(),
            late: BTreeSet::new(),
            phase: Phase::Gathering,
            since,
            fence: Fence::default(),
        })
    }

    /// Suspects a node that did not answer. One of two representatives is retired instead.
    pub(super) fn suspect_node(&mut self, node: NodeKey) {
        if self.without_retired(vec![node]).is_empty() {
            return;
        }
        let living = match node {
            NodeKey::Process(id) => self.leader().is_unfailed(id),
            NodeKey::Rep(..) => true,
        };
        if living && !self.leader().suspicion_is_writing() {
            let suspicion = self.suspicion();
            if suspicion.nodes.insert(node) {
                suspicion.late.insert(node);
                self.new_round();
            }
        }
    }

    /// Suspects a process that the operator declared failed; if a decision is being written, after that.
    pub(super) fn declare_failed(&mut self, process: ProcessId) {
        let Some(incarnation) = self.incarnation(NodeKey::Process(process)) else { return };
        if !self.leader().is_unfailed(process) {
            return;
        }
        if self.leader().suspicion_is_writing() {
            if !self.has(Bug::DeclaredForgotten) {
                self.leader_mut().declared.insert((process, incarnation));
            }
        } else if self.suspicion().nodes.insert(NodeKey::Process(process)) {
            self.new_round();
        }
    }

    /// Suspects the processes that were declared failed while a decision was being written.
    pub(super) fn take_declared(&mut self) {
        if self.leader().declared.is_empty() || self.leader().suspicion_is_writing() {
            return;
        }
        for (process, incarnation) in core::mem::take(&mut self.leader_mut().declared) {
            if self.incarnation(NodeKey::Process(process)) == Some(incarnation) {
                self.declare_failed(process);
            }
        }
    }

    /// Adds silent links to the suspicion.
    pub(super) fn scan_links(&mut self) {
        let leader = self.leader();
        if leader.suspicion_is_writing() || leader.silent.is_empty() {
            return;
        }
        let counted = self.counted();
        let handled: BTreeSet<_> = leader
            .derived
            .open
            .iter()
            .flat_map(|case| leader.image.cases[case].dead.iter().copied().map(LinkId))
            .collect();
        let of_failed =
            |node: NodeId| matches!(self.graph.at(node), Node::Process(id) if !leader.is_unfailed(id));
        let is_new = |link: &LinkId| {
            let ends = self.graph.ends(*link);
            let known = leader.suspicion.as_ref().is_some_and(|suspicion| suspicion.links.contains(link));
            !known && !handled.contains(link) && !of_failed(ends.from) && !of_failed(ends.to)
        };
        let silent = leader.silent.iter().map(|&(link, _)| link).filter(|link| counted.contains(link));
        let silent: Vec<_> = silent.filter(is_new).filter(|&link| self.is_silent(link)).collect();
        if !silent.is_empty() {
            self.suspicion().links.extend(silent);
            self.new_round();
        }
    }

    /// Recomputes what has to stand still; answers are waited for again.
    fn new_round(&mut self) {
        let now = self.now;
        let suspects = self.suspects_of();
        let fence = Fence::around(&self.graph, &self.counted(), &suspects);
        let fence_late = self.has(Bug::NoFreeze);
        let suspicion = self.suspicion();
        suspicion.fence = if fence_late { Fence::default() } else { fence };
        if suspicion.phase != Phase::Gathering {
            (suspicion.phase, suspicion.since) = (Phase::Fencing, now);
        }
    }

    /// Returns the nodes around which everything has to stand still.
    fn suspects_of(&self) -> BTreeSet<NodeId> {
        let Some(suspicion) = &self.leader().suspicion else { return BTreeSet::new() };
        let mut suspects = suspicion.more.clone();
        for &link in &suspicion.links {
            let ends = self.graph.ends(link);
            if !matches!(self.graph.at(ends.to), Node::Process(_)) {
                suspects.insert(ends.from);
                continue;
            }
            // A process that does not hear its switch suspects itself, and the switch if it is not the only one.
            suspects.insert(ends.to);
            let silent = self.graph.outputs(ends.from).iter().filter(|link| suspicion.links.contains(link));
            if silent.count() > 1 {
                suspects.insert(ends.from);
            }
        }
        for &node in &suspicion.nodes {
            match node {
                NodeKey::Process(id) => suspects.extend(self.graph.place(id).map(|place| place.node)),
                NodeKey::Rep(switch, _) => {
                    let switch = self.graph.switch(switch);
                    suspects.extend([switch.up, switch.down]);
                }
            }
        }
        suspects
    }

    /// Takes the suspicion to its next phase.
    pub(super) fn advance_suspicion(&mut self) {
        let Some(suspicion) = &self.leader().suspicion else { return };
        let (phase, since) = (suspicion.phase, suspicion.since);
        match phase {
            Phase::Gathering => {
                if self.since(since) >= self.config.gather {
                    let now = self.now;
                    let suspicion = self.suspicion();
                    (suspicion.phase, suspicion.since) = (Phase::Fencing, now);
                    self.refresh();
                    self.fence_stands();
                }
            }
            Phase::Fencing => {
                self.refresh();
                self.fence_stands();
            }
            Phase::AwaitingPath => self.decide_links(),
            Phase::Writing(_) => {}
        }
    }

    /// Returns the nodes whose acknowledgement is missing and was not given up.
    pub(super) fn unsettled(&self) -> Vec<NodeKey> {
        let leader = self.leader();
        let late =
            |node: &NodeKey| leader.suspicion.as_ref().is_some_and(|suspicion| suspicion.late.contains(node));
        let nodes = leader.nodes.iter().filter(|(_, state)| !state.is_settled()).map(|(&node, _)| node);
        // One that registers has no state yet, and one that leaves has none any more.
        let new = leader.derived.changing.iter().filter(|&&switch| !self.is_fenced_around(switch));
        let new = new.flat_map(|&switch| self.changing_reps(switch));
        let new = new.filter(|node| !leader.nodes.contains_key(node));
        let is_needed = |node: &NodeKey| match node {
            NodeKey::Rep(switch, _) => self.is_needed(*switch) || self.keeps_fence(*switch),
            NodeKey::Process(_) => true,
        };
        let is_enough = |node: &NodeKey| match *node {
            NodeKey::Rep(switch, seat) if self.has(Bug::FrozenAtOneSeat) => {
                leader.is_settled(NodeKey::Rep(switch, (seat + 1) % SEATS))
            }
            _ => false,
        };
        nodes.chain(new).filter(|node| is_needed(node) && !late(node) && !is_enough(node)).collect()
    }

    /// Returns the representatives of a switch that register or leave.
    fn changing_reps(&self, switch: u16) -> Vec<NodeKey> {
        let changes = |state| matches!(state, RepState::Registering | RepState::Leaving);
        let states = self.leader().rep_states(switch).filter(|&(_, state)| changes(state));
        states.map(|(seat, _)| NodeKey::Rep(switch, seat)).collect()
    }

    /// Returns whether something that has to stand still is kept by a switch's representative.
    fn keeps_fence(&self, switch: u16) -> bool {
        let fence = self.fence();
        let ports = self.graph.switch(switch).ports.iter().flatten();
        ports.into_iter().any(|port| fence.frozen.contains(&port.input) || fence.muted.contains(&port.output))
    }

    /// Returns whether a switch's representative is not waited for, because its floors wait for suspected nodes.
    fn is_fenced_around(&self, switch: u16) -> bool {
        let suspicion = self.leader().suspicion.as_ref();
        suspicion.is_some_and(|suspicion| suspicion.more.contains(&self.graph.switch(switch).up))
    }

    /// Has everything stand still around the switches whose representatives register, if their floors wait for
    /// suspected nodes only: those answer never, and the floors are known after the decision. Returns whether that
    /// is new.
    fn fence_around_registering(&mut self) -> bool {
        let waited_for = self.floors_wait_for();
        let suspects = self.suspects_of();
        let is_suspected = |node: &NodeKey| match *node {
            NodeKey::Process(id) => self.graph.place(id).is_some_and(|place| suspects.contains(&place.node)),
            NodeKey::Rep(number, _) => {
                let switch = self.graph.switch(number);
                suspects.contains(&switch.up) && suspects.contains(&switch.down)
            }
        };
        if waited_for.is_empty() || !waited_for.iter().all(is_suspected) || self.has(Bug::RegisteringIsLost) {
            return false;
        }
        let changing = self.leader().derived.changing.iter().map(|&switch| self.graph.switch(switch));
        let nodes: Vec<_> = changing.flat_map(|switch| [switch.up, switch.down]).collect();
        let suspicion = self.suspicion();
        let before = suspicion.more.len();
        suspicion.more.extend(nodes);
        let is_new = suspicion.more.len() > before;
        if is_new {
            self.new_round();
            self.refresh();
        }
        is_new
    }

    /// Returns whether a time is over that began at `then`, and each node has had as much time since it got its
    /// present state, and the time to connect.
    fn is_over(&self, then: Nanos) -> bool {
        self.is_late(then) && self.unsettled().iter().all(|&node| self.is_overdue(node, then))
    }

    /// Returns whether a node has not answered in time, which began at `then` at the earliest.
    pub(super) fn is_overdue(&self, node: NodeKey, then: Nanos) -> bool {
        let since = self.leader().nodes.get(&node).map_or(then, |state| state.since.max(then));
        // One whose values are refused has answered.
        let since = self.answered_ahead(node).map_or(since, |at| since.max(at));
        self.is_late(since) && !self.may_connect(node)
    }

    /// Decides if all answers that the decision needs are there.
    fn fence_stands(&mut self) {
        if self.fence_around_registering() {
            return;
        }
        let Some(suspicion) = self.leader().suspicion.clone() else { return };
        let suspects = self.suspects_of();
        let suspected = |switch: u16| {
            let switch = self.graph.switch(switch);
            suspects.contains(&switch.up) || suspects.contains(&switch.down)
        };
        let unsettled = self.unsettled();
        // A suspected node is waited for only as far as the outcome depends on it.
        let required =
            unsettled.iter().filter(|node| matches!(node, NodeKey::Rep(switch, _) if !suspected(*switch)));
        let required: Vec<_> = required.copied().collect();
        if !required.is_empty() && !self.has(Bug::NoFreeze) {
            return self.give_up(&required, suspicion.since);
        }
        if suspicion.nodes.is_empty() && suspicion.links.iter().all(|&link| !self.is_silent(link)) {
            self.counts.thawed += 1;
            self.leader_mut().suspicion = None;
            return self.refresh();
        }
        if !self.leader().writes.is_idle() || self.distrusts_clock() {
            // A process may be about to become a member: the decision has to know.
            return;
        }
        let (best, worst) = (self.rest(&[]), self.rest(&unsettled));
        if best.failed != worst.failed && !self.has(Bug::NoFreeze) {
            return self.give_up(&unsettled, suspicion.since);
        }
        if best.failed.is_empty() {
            return self.decide_links();
        }
        let late = self.is_over(suspicion.since);
        self.decide_processes(&best, &unsettled, late);
    }

    /// Suspects those nodes that did not answer in time.
    fn give_up(&mut self, nodes: &[NodeKey], since: Nanos) {
        if self.distrusts_clock() {
            return;
        }
        // The floors of one that registers or leaves wait for other nodes, which are given up for themselves.
        let other_serves = |switch| self.leader().serving(switch).next().is_some();
        let waits = |node: &NodeKey| {
            matches!(*node, NodeKey::Rep(switch, _)
            if !self.leader().nodes.contains_key(node) && other_serves(switch))
        };
        let nodes = nodes.iter().copied().filter(|node| !waits(node) && self.is_overdue(*node, since));
        let nodes = self.without_retired(nodes.collect());
        if nodes.is_empty() {
            return;
        }
        let suspicion = self.suspicion();
        suspicion.nodes.extend(nodes.iter().copied());
        suspicion.late.extend(nodes);
        self.new_round();
        self.refresh();
    }

    /// Returns what is left of the network if `missing` nodes are lost, too.
    fn rest(&self, missing: &[NodeKey]) -> Rest {
        let leader = self.leader();
        let suspicion = leader.suspicion.as_ref().expect("a suspicion is being decided");
        let lost = |node: NodeId| {
            let is_lost = |key: &NodeKey| suspicion.nodes.contains(key) || missing.contains(key);
            match self.graph.at(node) {
                Node::Process(id) => is_lost(&NodeKey::Process(id)),
                Node::Up(switch) | Node::Down(switch) => {
                    (0..SEATS).any(|seat| is_lost(&NodeKey::Rep(switch, seat)))
                }
            }
        };
        let counted = self.counted();
        let is_dead = |link: &LinkId| {
            let ends = self.graph.ends(*link);
            self.is_silent(*link) || lost(ends.from) || lost(ends.to)
        };
        let dead: BTreeSet<_> = counted.iter().copied().filter(is_dead).collect();
        let relied_only = suspicion.phase == Phase::AwaitingPath && self.is_over(suspicion.since);
        let usable = |link: LinkId| {
            let pending = !leader.image.links.contains_key(&link.0);
            counted.contains(&link) && !dead.contains(&link) && !(relied_only && pending)
        };
        // One whose link does not count yet is not connected, and takes no part.
        let mut processes = leader.unfailed();
        processes.retain(|&id| suspicion.nodes.contains(&NodeKey::Process(id)) || !self.is_listening(id));
        Rest { failed: self.graph.failed(&processes, usable), dead }
    }

    /// Removes dead links, if no process fails by that.
    fn decide_links(&mut self) {
        if !self.leader().writes.is_idle() || self.distrusts_clock() {
            return;
        }
        let rest = self.rest(&[]);
        if !rest.failed.is_empty() {
            let unsettled = self.unsettled();
            let since = self.suspicion().since;
            let late = self.is_over(since);
            return self.decide_processes(&rest, &unsettled, late);
        }
        if rest.dead.is_empty() {
            // What was suspected has answered after all.
            self.leader_mut().suspicion = None;
            return self.refresh();
        }
        if self.has_uncompleted_case() && !self.has(Bug::LinksLeaveApart) {
            // What leaves could be all that keeps a member's barrier below the time of a failure, and members still
            // call their applications back. The time for paths begins after that.
            let now = self.now;
            let suspicion = self.suspicion();
            (suspicion.phase, suspicion.since) = (Phase::AwaitingPath, now);
            return;
        }
        if !self.paths_without(&rest.dead, &[]) {
            let suspicion = self.suspicion();
            if suspicion.phase != Phase::AwaitingPath {
                suspicion.phase = Phase::AwaitingPath;
            }
            return;
        }
        let record = CaseRecord {
            stage: Stage::Completed,
            failed: Vec::new(),
            dead: rest.dead.iter().map(|link| link.0).collect(),
            fence: self.suspicion().fence.record(),
            unfenced: Vec::new(),
            at: self.clock,
        };
        let (case, next) = self.leader_mut().writes.case();
        let mut changes = self.departures(&rest.dead, &[]);
        changes.extend([record.put_at(Key::Case(case)), next]);
        self.write_last(case, changes, Then::Completed(case));
        self.suspicion().phase = Phase::Writing(case);
    }

    /// Decides who failed and until when, and stores it.
    fn decide_processes(&mut self, rest: &Rest, unsettled: &[NodeKey], late: bool) {
        let acknowledged = self.acknowledged();
        let relied = self.leader().relied();
        let combine = if self.has(Bug::MinimumForT) { u64::min } else { u64::max };
        let graph = self.graph.clone();
        let decision = Decision { graph: &graph, relied: &relied, acknowledged: &acknowledged, combine };
        let (unfenced, unstopped) = self.unfenced(&decision, &rest.failed);
        if !unfenced.is_empty() && !self.has(Bug::NoFreeze) {
            let fenced = &self.leader().suspicion.as_ref().expect("a suspicion is being decided").fence;
            let helps = |node: &&NodeKey| match node {
                NodeKey::Process(id) => fenced.held.contains(id),
                NodeKey::Rep(..) => true,
            };
            let missing: Vec<_> = unsettled.iter().filter(helps).copied().collect();
            if !missing.is_empty() && !late {
                return;
            }
            let count = missing.len();
            let missing = self.without_retired(missing);
            if missing.len() < count {
                // What those have stated is known when they are retired.
                return;
            }
            if self.widen(missing, &unstopped) {
                return;
            }
        }
        let failed: Vec<_> = rest.failed.iter().map(|&id| self.fail(&decision, id)).collect();
        let (case, next) = self.leader_mut().writes.case();
        let record = CaseRecord {
            stage: Stage::Decided,
            failed,
            dead: rest.dead.iter().map(|link| link.0).collect(),
            fence: self.suspicion().fence.record(),
            unfenced,
            at: self.clock,
        };
        if self.has(Bug::SendBeforeStore) {
            self.notify(case, &record);
        }
        // One record decides: the members' states follow from it.
        let changes = vec![record.put_at(Key::Case(case)), next];
        self.leader_mut().writes.add(changes, Then::Decided(case));
        self.suspicion().phase = Phase::Writing(case);
    }

    /// Returns the receivers that may get messages above a failed process's time, and the failed ones among
    /// them that may go on delivering.
    fn unfenced(&self, decision: &Decision<'_>, failed: &[ProcessId]) -> (Vec<ProcessId>, Vec<ProcessId>) {
        let members = self.leader().members();
        // A process that has not been admitted has sent and received nothing.
        let failed: Vec<_> = failed.iter().copied().filter(|id| members.contains(id)).collect();
        let unstopped: Vec<_> =
            failed.iter().copied().filter(|&id| decision.delivered(id).is_none()).collect();
        let behind: Vec<_> = failed.iter().map(|&id| decision.behind_fence(id)).collect();
        let is_fenced =
            |&receiver: &ProcessId| behind.iter().all(|behind| decision.fenced_in(receiver, behind));
        let unfenced = members.iter().copied().filter(|id| unstopped.contains(id) || !is_fenced(id));
        (unfenced.collect(), unstopped)
    }

    /// Extends the fence so that it stops more. Returns whether that changes anything.
    fn widen(&mut self, missing: Vec<NodeKey>, unstopped: &[ProcessId]) -> bool {
        let place = |id: &ProcessId| self.graph.place(*id).expect("a process of the graph");
        let down: Vec<_> = unstopped.iter().map(|id| self.graph.ends(place(id).down).from).collect();
        let before = self.fence();
        let suspicion = self.suspicion();
        let mut changed = !missing.is_empty();
        suspicion.late.extend(missing.iter().copied());
        suspicion.nodes.extend(missing);
        for node in down {
            changed |= suspicion.more.insert(node);
        }
        if changed {
            self.new_round();
            self.refresh();
        }
        changed && (before != self.fence() || !self.unsettled().is_empty())
    }

    /// Returns the failure of a process.
    fn fail(&self, decision: &Decision<'_>, id: ProcessId) -> FailedMember {
        let image = &self.leader().image;
        let (incarnation, record) = image.member(id).expect("a failed process was a member or joined");
        let earlier: Vec<_> = image
            .members
            .values()
            .filter(|member| matches!(member.state, MemberState::Failed | MemberState::Left))
            .map(|member| Earlier { case: member.case, delivered: member.delivered })
            .collect();
        let time = match record.state {
            // It has sent nothing.
            MemberState::Joining => record.joined.max(self.recent()),
            _ => decision.time(id, record.joined, record.since, &earlier),
        };
        let delivered = match record.state {
            // It delivers nothing before it is admitted.
            MemberState::Joining => 0,
            _ => decision.delivered(id).unwrap_or(time),
        };
        FailedMember { id, incarnation, time, delivered }
    }
}
