//! Decisions against a model of the network, in which registers and barriers rise at random, links that were
//! cut return, and nodes die.

use super::*;
use crate::graph::tests::fabric;
use switch::Rng;

/// Seeds in `cargo test`; `FROM=1000 SEEDS=5000` runs others
const SEEDS: u64 = 500;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Bug {
    /// The minimum over the cut
    Minimum,
    /// Registers rise after they were reported
    NoFreeze,
    /// A link that returned is believed at once
    PendingIsRelied,
    /// Barriers of processes that are held do not count
    HeldNotCounted,
}

struct Model {
    graph: Graph,
    rng: Rng,
    counted: BTreeSet<LinkId>,
    /// By link: register, and the value from which it counts
    raw: BTreeMap<LinkId, u64>,
    floor: BTreeMap<LinkId, u64>,
    /// By node: barrier sent; for a process the barrier that it has
    out: BTreeMap<NodeId, u64>,
    /// By process: what it has announced
    announced: BTreeMap<NodeId, u64>,
    dead: BTreeSet<NodeId>,
    cut: BTreeSet<LinkId>,
    stands: Fence,
}

fn value<K: Ord + Copy>(of: &BTreeMap<K, u64>, key: K) -> u64 {
    of.get(&key).copied().unwrap_or(0)
}

impl Model {
    fn new(seed: u64) -> Self {
        let mut rng = Rng::new(seed);
        let mut draw = |below: u64| rng.below(below);
        let racks: Vec<_> = (0..=draw(3)).map(|_| 1 + draw(3) as usize).collect();
        let spines = if racks.len() > 1 { 1 + draw(2) as usize } else { 0 };
        let graph = Graph::new(&fabric(&racks, spines));
        let counted = graph.counted(|_| true, |_| false);
        Self {
            graph,
            rng,
            counted,
            raw: BTreeMap::new(),
            floor: BTreeMap::new(),
            out: BTreeMap::new(),
            announced: BTreeMap::new(),
            dead: BTreeSet::new(),
            cut: BTreeSet::new(),
            stands: Fence::default(),
        }
    }

    fn draw(&mut self, below: usize) -> usize {
        self.rng.below(below as u64) as usize
    }

    fn caught(&self, link: LinkId) -> bool {
        value(&self.raw, link) >= value(&self.floor, link)
    }

    /// A process announces more, or a link carries its sender's barrier.
    fn step(&mut self) {
        let links = self.graph.links().count();
        let link = LinkId(self.draw(links) as u32);
        let crate::graph::Link { from, to } = self.graph.ends(link);
        if self.dead.contains(&from) {
            return;
        }
        let rises = 1 + self.draw(20) as u64;
        let sent = if matches!(self.graph.at(from), Node::Process(_)) {
            let announced = self.announced.entry(from).or_default();
            *announced += rises;
            *announced
        } else {
            value(&self.out, from)
        };
        let still = self.stands.frozen.contains(&link) || self.stands.muted.contains(&link);
        if self.dead.contains(&to) || self.cut.contains(&link) || still || !self.counted.contains(&link) {
            return;
        }
        let raw = self.raw.entry(link).or_default();
        *raw = (*raw).max(sent);
        let held = |id| self.stands.held.contains(&id);
        let inputs = || self.graph.inputs(to).iter().filter(|link| self.counted.contains(link));
        let rises = match self.graph.at(to) {
            Node::Process(id) => !held(id),
            _ => inputs().all(|&link| self.caught(link)),
        };
        if rises {
            let least = inputs().map(|&link| value(&self.raw, link)).min().expect("the link itself");
            let out = self.out.entry(to).or_default();
            *out = (*out).max(least);
        }
    }

    fn steps(&mut self, below: usize) {
        for _ in 0..self.draw(below) {
            self.step();
        }
    }

    /// Some links are away for a while; the barriers behind them rise without them.
    fn links_leave_and_return(&mut self) {
        let core: Vec<_> = (0..self.graph.switches().len() as u16)
            .flat_map(|switch| self.graph.switch(switch).ports.iter().flatten().copied().collect::<Vec<_>>())
            .filter(|port| self.graph.at(self.graph.ends(port.input).from).switch().is_some())
            .map(|port| port.input)
            .collect();
        let ids: Vec<_> = self.graph.processes().map(|(id, _)| id).collect();
        let mut absent = BTreeSet::new();
        for link in core {
            absent.insert(link);
            if self.draw(3) > 0 || self.graph.unconnected_pair(&ids, |link| !absent.contains(&link)).is_some()
            {
                absent.remove(&link);
            }
        }
        self.counted = self.graph.counted(|_| true, |link| absent.contains(&link));
        self.steps(800);
        for link in absent {
            self.floor.insert(link, value(&self.out, self.graph.ends(link).to));
        }
        self.counted = self.graph.counted(|_| true, |_| false);
        self.steps(60);
    }

    /// Something dies or is cut. Returns the suspected nodes.
    fn fail(&mut self) -> BTreeSet<NodeId> {
        let places: Vec<_> = self.graph.processes().map(|(_, place)| place).collect();
        let place = places[self.draw(places.len())];
        let switch = self.draw(self.graph.switches().len()) as u16;
        match self.draw(4) {
            0 => {
                self.cut.insert(place.up);
                BTreeSet::from([place.node])
            }
            1 => {
                self.cut.insert(place.down);
                BTreeSet::from([place.node])
            }
            2 => {
                self.dead.insert(place.node);
                BTreeSet::from([place.node])
            }
            _ => {
                let crate::graph::Switch { up, down, .. } = *self.graph.switch(switch);
                self.dead.extend([up, down]);
                let below = places.iter().filter(|place| place.switch == switch);
                below.map(|place| place.node).chain([up, down]).collect()
            }
        }
    }

    /// Nodes that live take up the fence one after the other, and acknowledge it.
    fn fence(&mut self, fence: &Fence, bug: Option<Bug>) -> Acknowledged {
        let mut acknowledged = Acknowledged::default();
        let mut nodes: Vec<_> = (0..self.graph.switches().len() as u16)
            .map(|switch| vec![self.graph.switch(switch).up, self.graph.switch(switch).down])
            .chain(self.graph.processes().map(|(_, place)| vec![place.node]))
            .collect();
        while !nodes.is_empty() {
            self.steps(30);
            let at = self.draw(nodes.len());
            for node in nodes.swap_remove(at) {
                if !self.dead.contains(&node) {
                    self.acknowledge(node, fence, &mut acknowledged, bug);
                }
            }
        }
        acknowledged
    }

    fn acknowledge(&mut self, node: NodeId, fence: &Fence, to: &mut Acknowledged, bug: Option<Bug>) {
        for &link in self.graph.inputs(node).iter().filter(|link| fence.frozen.contains(link)) {
            to.frozen.insert(link, value(&self.raw, link));
            if bug != Some(Bug::NoFreeze) {
                self.stands.frozen.insert(link);
            }
        }
        for &link in self.graph.outputs(node).iter().filter(|link| fence.muted.contains(link)) {
            to.muted.insert(link, value(&self.out, node));
            self.stands.muted.insert(link);
        }
        if let Node::Process(id) = self.graph.at(node)
            && fence.held.contains(&id)
        {
            to.held.insert(id, value(&self.out, node));
            self.stands.held.insert(id);
        }
    }

    fn barriers(&self) -> impl Iterator<Item = (ProcessId, u64)> + '_ {
        self.graph.processes().map(|(id, place)| (id, value(&self.out, place.node)))
    }
}

/// Runs a random network in which something fails once. An error is what went wrong.
fn run(seed: u64, bug: Option<Bug>) -> Result<usize, String> {
    let mut model = Model::new(seed);
    model.steps(400);
    if model.draw(2) == 0 {
        model.links_leave_and_return();
    }
    let relied: BTreeSet<_> = model
        .counted
        .iter()
        .copied()
        .filter(|&link| bug == Some(Bug::PendingIsRelied) || model.caught(link))
        .collect();
    let suspects = model.fail();
    model.steps(200);
    let fence = Fence::around(&model.graph, &model.counted, &suspects);
    let acknowledged = model.fence(&fence, bug);
    let graph = model.graph.clone();
    let combine = if bug == Some(Bug::Minimum) { u64::min } else { u64::max };
    let decision = Decision { graph: &graph, relied: &relied, acknowledged: &acknowledged, combine };
    let ids: Vec<_> = graph.processes().map(|(id, _)| id).collect();
    let dead = |node: &NodeId| model.dead.contains(node);
    let live = |link: LinkId| {
        let ends = graph.ends(link);
        !dead(&ends.from) && !dead(&ends.to) && !model.cut.contains(&link)
    };
    let failed = graph.failed(&ids, live);
    let mut counting = acknowledged.clone();
    if bug == Some(Bug::HeldNotCounted) {
        counting.held.clear();
    }
    let counting = Decision { acknowledged: &counting, ..decision };
    let times: Vec<_> = failed.iter().map(|&id| (id, counting.time(id, 0, 0, &[]))).collect();
    let announced = |id| value(&model.announced, graph.place(id).expect("there").node);
    for &(id, time) in &times {
        if time > announced(id) {
            return Err(format!("{id} announced {}, its time is {time}", announced(id)));
        }
    }
    let bounds: Vec<_> = ids.iter().map(|&id| decision.delivered(id)).collect();
    for _ in 0..300 {
        model.step();
    }
    for (receiver, barrier) in model.barriers() {
        // What is above a pending link has no relied path, and the controller decides nothing about it then.
        for &(id, time) in times.iter().filter(|(id, _)| decision.is_fenced(receiver, *id)) {
            if barrier > time {
                return Err(format!("{receiver} has {barrier}, {id} counts up to {time}"));
            }
        }
        let bound = bounds[ids.iter().position(|&id| id == receiver).expect("one of all")];
        if bound.is_some_and(|bound| failed.contains(&receiver) && barrier > bound) {
            return Err(format!("{receiver} failed with {bound:?}, and has {barrier}"));
        }
        let decides = relied == model.counted && !failed.contains(&receiver);
        if let Some((id, _)) = times.iter().find(|(id, _)| decides && !decision.is_fenced(receiver, *id)) {
            return Err(format!("{receiver} is not fenced against {id}"));
        }
    }
    Ok(times.len())
}

#[test]
fn times_are_what_was_announced_and_no_barrier_passes_them() {
    let mut failures = 0;
    let number = |name, default| std::env::var(name).map_or(default, |text| text.parse().expect("a number"));
    let (from, seeds) = (number("FROM", 0), number("SEEDS", SEEDS));
    for seed in from..from + seeds {
        match run(seed, None) {
            Ok(failed) => failures += failed,
            Err(error) => panic!("seed {seed}: {error}"),
        }
    }
    assert!(failures > seeds as usize / 2 || seeds < SEEDS, "most seeds have failures: {failures}");
}

#[test]
fn planted_bugs_are_found() {
    for bug in [Bug::Minimum, Bug::NoFreeze, Bug::PendingIsRelied, Bug::HeldNotCounted] {
        let found = (0..4_000).find(|&seed| run(seed, Some(bug)).is_err());
        assert!(found.is_some(), "{bug:?} is found by no seed");
    }
}

#[test]
fn what_an_earlier_failed_receiver_may_have_delivered_counts() {
    let graph = Graph::new(&fabric(&[2], 0));
    let relied: BTreeSet<_> = graph.links().collect();
    let acknowledged = Acknowledged::default();
    let decision =
        Decision { graph: &graph, relied: &relied, acknowledged: &acknowledged, combine: u64::max };
    let earlier = [Earlier { case: 5, delivered: 100 }];
    assert_eq!(decision.time(ProcessId(1), 7, 5, &earlier), 100);
    assert_eq!(decision.time(ProcessId(1), 7, 6, &earlier), 7, "it joined after that failure");
    assert_eq!(decision.time(ProcessId(1), 107, 5, &earlier), 107);
}

#[test]
fn registers_of_another_process_do_not_count() {
    let graph = Graph::new(&fabric(&[2], 0));
    let relied: BTreeSet<_> = graph.links().collect();
    let other = graph.place(ProcessId(2)).expect("it is there").up;
    let acknowledged = Acknowledged { frozen: BTreeMap::from([(other, 100)]), ..Acknowledged::default() };
    let decision =
        Decision { graph: &graph, relied: &relied, acknowledged: &acknowledged, combine: u64::max };
    assert_eq!(decision.time(ProcessId(1), 7, 1, &[]), 7);
    assert_eq!(decision.time(ProcessId(2), 7, 1, &[]), 100);
    assert!(
        !decision.is_fenced(ProcessId(1), ProcessId(1)) && decision.is_fenced(ProcessId(1), ProcessId(2))
    );
}
