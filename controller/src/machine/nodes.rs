//! Desired states of nodes, their versions and answers.

use super::{Bug, Leader, Machine, NodeKey};
use crate::decide::Fence;
use crate::graph::{LinkId, Node, NodeId};
use crate::record::{LinkState, MemberRecord, MemberState, RepState, Stage};
use onepipe::control::{LOOPBACK, LinkSetting, LinkValue, Message, SEATS, Source};
use onepipe::{ProcessId, Timestamp};
use rocev2::Qpn;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use switch::Nanos;

/// Largest age in nanoseconds of a floor on the wire, whose 48 bits reach back for 39 hours
const FLOOR_AGE_MAX: u64 = 1 << 46;

/// State that a node has to have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Desired {
    Rep { epoch: u32, floors: [u64; 2], links: Vec<LinkSetting> },
    Process { held: bool, sources: Vec<Source> },
}

/// A state that a node has, with its values at the moment at which the state took effect.
#[derive(Clone, Debug)]
pub(super) struct Acked {
    version: u64,
    pub(super) desired: Desired,
    /// Of the upper and the lower node
    pub(super) outputs: [u64; 2],
    /// Of a representative's inputs
    pub(super) raws: BTreeMap<LinkId, u64>,
    /// Of a process
    pub(super) barrier: u64,
}

impl Acked {
    /// Returns what of it stands still also in a later state, which may have taken effect: what was let go in
    /// between has moved, although it stands still again.
    fn still_in(mut self, later: &Desired) -> Self {
        match (&mut self.desired, later) {
            (Desired::Process { held, .. }, Desired::Process { held: later, .. }) => *held &= *later,
            (Desired::Rep { links, .. }, Desired::Rep { links: later, .. }) => {
                for setting in links {
                    let later = later.iter().find(|later| later.link == setting.link);
                    setting.frozen &= later.is_some_and(|later| later.frozen);
                    setting.muted &= later.is_some_and(|later| later.muted);
                }
            }
            _ => {}
        }
        self
    }
}

/// Returns whether a process in this state has not failed: it is a member or joins.
fn is_unfailed(state: MemberState) -> bool {
    matches!(state, MemberState::Member | MemberState::Joining)
}

#[derive(Clone, Debug)]
pub(super) struct NodeState {
    version: u64,
    desired: Desired,
    /// Time since which the answer is missing
    pub(super) since: Nanos,
    pub(super) acked: Option<Acked>,
}

impl NodeState {
    /// Gives the state another version, so that the node has to answer again.
    pub(super) fn renew(&mut self, version: u64, now: Nanos) {
        (self.version, self.since) = (version, now);
    }

    /// Returns whether the node has the state that it has to have.
    pub(super) fn is_settled(&self) -> bool {
        self.acked.as_ref().is_some_and(|acked| acked.version == self.version)
    }
}

/// A link at its keeper with this seat.
pub(super) type At = (LinkId, u8);

/// What its keeper says about a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(super) struct LinkStatus {
    pub(super) silent: bool,
    pub(super) caught: bool,
    /// Ends whose source is not heard, as bits
    pub(super) quiet: u8,
    /// Register, of a representative
    pub(super) raw: u64,
}

impl Leader {
    pub(super) fn is_settled(&self, node: NodeKey) -> bool {
        self.nodes.get(&node).is_some_and(NodeState::is_settled)
    }

    /// Takes what a link's keeper says about it.
    fn set_status(&mut self, link: At, status: LinkStatus) {
        self.links.insert(link, status);
        if !status.silent {
            self.silent.remove(&link);
            self.unheard.remove(&link);
        } else if !self.silent.contains(&link) {
            self.unheard.insert(link);
        }
    }

    /// Notes the links whose keeper has to listen to a new sender, as its state says. The first
    /// state that this leader sends to a keeper is one of another sender only where the link is not relied.
    fn introduce(&mut self, links: impl Iterator<Item = (At, bool)>, is_first: bool, now: Nanos) {
        for (link, is_known) in links {
            let relied = self.image.links.get(&link.0.0) == Some(&LinkState::Relied);
            if !(is_known || is_first && relied) {
                self.introduced.insert(link, now);
            }
        }
    }

    pub(super) fn relied(&self) -> BTreeSet<LinkId> {
        let relied = self.image.links.iter().filter(|(_, state)| **state == LinkState::Relied);
        relied.map(|(&link, _)| LinkId(link)).collect()
    }

    /// Returns the processes whose present incarnation has not failed: members and joining ones.
    pub(super) fn unfailed(&self) -> Vec<ProcessId> {
        let members = self.image.last_members();
        members.filter(|(_, record)| is_unfailed(record.state)).map(|(id, _)| id).collect()
    }

    pub(super) fn is_unfailed(&self, id: ProcessId) -> bool {
        self.state(id).is_some_and(is_unfailed)
    }

    pub(super) fn members(&self) -> Vec<ProcessId> {
        let members = self.image.last_members();
        members.filter(|(_, record)| record.state == MemberState::Member).map(|(id, _)| id).collect()
    }

    pub(super) fn state(&self, id: ProcessId) -> Option<MemberState> {
        self.image.member(id).map(|(_, record)| record.state)
    }

    /// Returns whether a process's link counts: also that of a failed process, until its case is completed.
    pub(super) fn takes_part(&self, id: ProcessId) -> bool {
        let Some((_, record)) = self.image.member(id) else { return false };
        let decided = || self.image.cases.get(&record.case).is_some_and(|case| case.stage == Stage::Decided);
        match record.state {
            MemberState::Joining | MemberState::Member => true,
            MemberState::Failed => decided(),
            MemberState::Gone | MemberState::Left => false,
        }
    }
}

impl Machine {
    /// Returns the links that count for commit.
    pub(super) fn counted(&self) -> Arc<BTreeSet<LinkId>> {
        Arc::clone(&self.leader().derived.counted)
    }

    /// Returns what has to stand still, for the suspicion and for decided cases.
    pub(super) fn fence(&self) -> Fence {
        let leader = self.leader();
        let suspicion =
            leader.suspicion.as_ref().map(|suspicion| suspicion.fence.clone()).unwrap_or_default();
        if self.has(Bug::FenceForgotten) {
            return suspicion;
        }
        suspicion.union(&leader.derived.fence)
    }

    /// Returns the nodes that keep the graph's node: a process, or those representatives of a switch that have a state.
    pub(super) fn keys(&self, node: NodeId) -> Vec<NodeKey> {
        match self.graph.at(node) {
            Node::Process(id) => vec![NodeKey::Process(id)],
            Node::Up(switch) | Node::Down(switch) => {
                self.leader().serving(switch).map(|seat| NodeKey::Rep(switch, seat)).collect()
            }
        }
    }

    /// Returns whether all keepers of a link hear nothing.
    pub(super) fn is_silent(&self, link: LinkId) -> bool {
        let leader = self.leader();
        let is_silent = |seat: u8| leader.silent.contains(&(link, seat));
        match self.graph.at(self.graph.ends(link).to).switch() {
            None => is_silent(0),
            Some(switch) => {
                let mut seats = leader.serving(switch).peekable();
                seats.peek().is_some() && seats.all(is_silent)
            }
        }
    }

    /// Returns the input of a switch with this number.
    pub(super) fn input(&self, switch: u16, number: u16) -> Option<LinkId> {
        let switch = self.graph.switch(switch);
        if number == LOOPBACK {
            return Some(switch.loopback);
        }
        switch.ports.get(usize::from(number)).copied().flatten().map(|port| port.input)
    }

    /// Returns the senders of a link's beacons.
    pub(super) fn sources(&self, link: LinkId) -> Vec<Source> {
        match self.graph.at(self.graph.ends(link).from) {
            Node::Process(id) => {
                let member = self.leader().image.member(id).map(|(_, member)| member);
                let member = member.filter(|member| member.state.is_present());
                let source = |member: &MemberRecord| Source { address: member.address, qpn: member.qpn };
                member.map(source).into_iter().collect()
            }
            Node::Up(switch) | Node::Down(switch) => {
                (0..SEATS).filter_map(|seat| self.source(link, switch, seat)).collect()
            }
        }
    }

    /// Returns the sender of a switch's beacons on a link, if the switch has a representative there that does not
    /// leave.
    fn source(&self, link: LinkId, switch: u16, seat: u8) -> Option<Source> {
        let (_, rep) = self.leader().image.rep(switch, seat)?;
        if matches!(rep.state, RepState::Leaving | RepState::Retired) {
            return None;
        }
        let ports = &self.graph.switch(switch).ports;
        let at = ports.iter().position(|port| port.is_some_and(|port| port.output == link))?;
        Some(Source { address: rep.address, qpn: Qpn::new(rep.first_qp.get() + at as u32) })
    }

    /// Returns whether a process must not get a commit barrier.
    fn is_cut(&self, id: ProcessId) -> bool {
        !self.leader().is_unfailed(id)
    }

    /// Returns whether the receiver of an output knows the incarnation of this sender. A switch takes best-effort
    /// barriers from any queue pair, a process from that of its file and those that it has been given.
    fn is_introduced(&self, output: LinkId, switch: u16, seat: u8) -> bool {
        let Node::Process(id) = self.graph.at(self.graph.ends(output).to) else { return true };
        let leader = self.leader();
        let is_given = match leader.given.get(&id) {
            Some(given) => self.source(output, switch, seat).is_some_and(|source| given.contains(&source)),
            // An earlier leader has given it to a member.
            None => leader.state(id) == Some(MemberState::Member),
        };
        leader.is_unfailed(id) && is_given
    }

    fn want_rep(
        &self,
        (switch, seat): (u16, u8),
        counted: &BTreeSet<LinkId>,
        fence: &Fence,
    ) -> Option<Desired> {
        let leader = self.leader();
        let (_, rep) = leader.image.rep(switch, seat)?;
        if !matches!(rep.state, RepState::Configuring | RepState::Active) {
            return None;
        }
        let node = self.graph.switch(switch);
        let setting = |number: u16, input: LinkId, muted: bool, introduced: bool| LinkSetting {
            link: number,
            counted: counted.contains(&input),
            frozen: fence.frozen.contains(&input),
            muted,
            introduced,
            sources: self.sources(input),
        };
        let muted = |output: LinkId| {
            let to = self.graph.at(self.graph.ends(output).to);
            // A link that does not count carries nothing: a process behind it may have failed without knowing it.
            fence.muted.contains(&output)
                || !counted.contains(&output)
                || matches!(to, Node::Process(id) if self.is_cut(id))
                || matches!(to, Node::Down(below) if self.is_leaky(below))
        };
        let ports = node.ports.iter().enumerate().filter_map(|(number, port)| {
            let port = (*port)?;
            let introduced = self.is_introduced(port.output, switch, seat);
            Some(setting(number as u16, port.input, muted(port.output), introduced))
        });
        let mut links: Vec<_> = ports.collect();
        links.push(LinkSetting { sources: Vec::new(), ..setting(LOOPBACK, node.loopback, false, false) });
        Some(Desired::Rep { epoch: leader.epoch, floors: [rep.up, rep.down], links })
    }

    fn want_process(&self, id: ProcessId, fence: &Fence) -> Option<Desired> {
        let state = self.leader().state(id)?;
        if !state.is_present() {
            return None;
        }
        let place = self.graph.place(id)?;
        let held = state == MemberState::Failed || fence.held.contains(&id);
        Some(Desired::Process { held, sources: self.sources(place.down) })
    }

    /// Sends each node the state that it has to have, if that has changed.
    pub(super) fn refresh(&mut self) {
        let (counted, fence) = (self.counted(), self.fence());
        // The desired states are a function of these.
        let leader = self.leader_mut();
        let from = (leader.derived.revision, leader.epoch, fence.clone());
        if leader.refreshed.as_ref() == Some(&from) {
            return;
        }
        leader.refreshed = Some(from);
        let reps = self.seats().filter_map(|at @ (switch, seat)| {
            Some((NodeKey::Rep(switch, seat), self.want_rep(at, &counted, &fence)?))
        });
        let processes = self
            .graph
            .processes()
            .filter_map(|(id, _)| Some((NodeKey::Process(id), self.want_process(id, &fence)?)));
        let wanted: Vec<_> = reps.chain(processes).collect();
        let now = self.now;
        for (node, desired) in wanted {
            let leader = self.leader_mut();
            if leader.nodes.get(&node).is_some_and(|state| state.desired == desired) {
                continue;
            }
            let before = leader.nodes.get(&node).map(|state| state.desired.clone());
            let links = self.listening(node, before.as_ref(), &desired);
            let leader = self.leader_mut();
            leader.introduce(links.into_iter(), before.is_none(), now);
            leader.versions += 1;
            let version = u64::from(leader.term.0) << 32 | leader.versions;
            let acked = leader.nodes.remove(&node).and_then(|state| state.acked);
            let acked = acked.map(|acked| acked.still_in(&desired));
            leader.nodes.insert(node, NodeState { version, desired, since: now, acked });
            self.send_desired(node);
        }
    }

    /// Returns the links to which a keeper has to listen, and whether it has to listen to no other senders than in
    /// an earlier state.
    fn listening(&self, node: NodeKey, before: Option<&Desired>, desired: &Desired) -> Vec<(At, bool)> {
        let are_in = |now: &[Source], before: &[Source]| now.iter().all(|source| before.contains(source));
        match (node, desired) {
            (NodeKey::Process(id), Desired::Process { sources, .. }) => {
                let is_known = |before: &Desired| matches!(before, Desired::Process { sources: of, .. } if are_in(sources, of));
                let place = self.graph.place(id);
                place.map(|place| ((place.down, 0), before.is_some_and(is_known))).into_iter().collect()
            }
            (NodeKey::Rep(switch, seat), Desired::Rep { links, .. }) => {
                let before = match before {
                    Some(Desired::Rep { links, .. }) => &links[..],
                    _ => &[],
                };
                let is_known = |setting: &LinkSetting| {
                    let mut same = before.iter().filter(|before| before.link == setting.link);
                    same.any(|before| before.counted && are_in(&setting.sources, &before.sources))
                };
                let counted = links.iter().filter(|setting| setting.counted);
                counted
                    .filter_map(|setting| {
                        Some(((self.input(switch, setting.link)?, seat), is_known(setting)))
                    })
                    .collect()
            }
            _ => Vec::new(),
        }
    }

    /// Counts those links as silent whose senders have had the time to become audible: a new incarnation has to
    /// be given to its node, while its neighbours wait for it already.
    pub(super) fn hear_links(&mut self) {
        let leader = self.leader();
        if leader.unheard.is_empty() {
            return;
        }
        let is_due = |link: &At| leader.introduced.get(link).is_none_or(|&since| self.is_late(since));
        let due: Vec<_> = leader.unheard.iter().copied().filter(is_due).collect();
        let leader = self.leader_mut();
        for link in due {
            leader.unheard.remove(&link);
            leader.silent.insert(link);
        }
    }

    /// Sends a node its desired state.
    pub(super) fn send_desired(&mut self, node: NodeKey) {
        let Some(state) = self.leader.as_ref().and_then(|leader| leader.nodes.get(&node)) else { return };
        let version = state.version;
        let message = match state.desired.clone() {
            Desired::Rep { floors, links, .. } => {
                // A floor of two days ago would be a time of the future; every later one is a floor as well.
                let oldest = self.clock.saturating_sub(FLOOR_AGE_MAX);
                let floors = floors.map(|floor| if floor == 0 { 0 } else { floor.max(oldest) });
                Message::Configure { version, floors: floors.map(Self::timestamp), links }
            }
            Desired::Process { held, sources } => Message::Desired { version, held, sources },
        };
        self.send(node, message);
    }

    /// Sends a node that has connected everything that it may have missed.
    pub(super) fn resend(&mut self, node: NodeKey) {
        if self.leader.is_none() {
            return;
        }
        if self.leader().nodes.contains_key(&node) && !self.leader().is_settled(node) {
            let now = self.now;
            self.leader_mut().nodes.get_mut(&node).expect("it is there").since = now;
        }
        if let NodeKey::Process(id) = node {
            self.resend_member(id);
            self.resend_notices(id);
        }
        if let NodeKey::Rep(switch, seat) = node {
            self.send_retirement(switch, seat);
        }
        self.send_desired(node);
    }

    /// Forgets what an earlier incarnation of a node has answered.
    pub(super) fn forget_node(&mut self, node: NodeKey) {
        let (place, seat) = match node {
            NodeKey::Process(id) => (Node::Process(id), 0),
            NodeKey::Rep(switch, seat) => (Node::Up(switch), seat),
        };
        let is_kept = |&link: &LinkId| {
            let to = self.graph.at(self.graph.ends(link).to);
            to == place || to.switch().is_some() && to.switch() == place.switch()
        };
        let kept: BTreeSet<_> = self.graph.links().filter(is_kept).map(|link| (link, seat)).collect();
        let leader = self.leader_mut();
        leader.nodes.remove(&node);
        leader.ahead.remove(&node);
        if let NodeKey::Process(id) = node {
            leader.given.remove(&id);
        }
        leader.refreshed = None;
        leader.links.retain(|link, _| !kept.contains(link));
        leader.silent.retain(|link| !kept.contains(link));
        leader.unheard.retain(|link| !kept.contains(link));
    }

    pub(super) fn configured(
        &mut self,
        (switch, seat): (u16, u8),
        version: u64,
        outputs: [Option<Timestamp>; 2],
        links: &[LinkValue],
    ) {
        let node = NodeKey::Rep(switch, seat);
        let outputs = outputs.map(|output| self.time(output));
        let values: BTreeMap<_, _> = links
            .iter()
            .filter_map(|value| Some((self.input(switch, value.link)?, (self.time(value.raw), value))))
            .collect();
        if !self.plausible(node, outputs.into_iter().chain(values.values().map(|&(raw, _)| raw))) {
            return;
        }
        let raws = values.iter().map(|(&link, &(raw, _))| (link, raw)).collect();
        if !self.acknowledge(node, version, outputs, raws, 0) {
            return;
        }
        for (link, (raw, value)) in values {
            let status = LinkStatus { silent: value.silent, caught: value.caught, quiet: value.quiet, raw };
            self.leader_mut().set_status((link, seat), status);
        }
        if self.leader().image.members.values().any(|member| member.state == MemberState::Failed) {
            // What it has muted decides what others may send to it.
            self.leader_mut().refreshed = None;
        }
    }

    pub(super) fn desired_ack(
        &mut self,
        id: ProcessId,
        version: u64,
        barrier: Option<Timestamp>,
        (silent, quiet): (bool, u8),
    ) {
        let node = NodeKey::Process(id);
        let barrier = self.time(barrier);
        if !self.plausible(node, [barrier])
            || !self.acknowledge(node, version, [0; 2], BTreeMap::new(), barrier)
        {
            return;
        }
        self.note_given(id);
        if let Some(place) = self.graph.place(id) {
            let status = LinkStatus { silent, caught: true, quiet, raw: 0 };
            self.leader_mut().set_status((place.down, 0), status);
        }
    }

    /// Notes the sources of its link that a process has acknowledged.
    fn note_given(&mut self, id: ProcessId) {
        let leader = self.leader_mut();
        let Some(Desired::Process { sources, .. }) =
            leader.nodes.get(&NodeKey::Process(id)).map(|state| &state.desired)
        else {
            return;
        };
        let sources = sources.clone();
        if leader.given.insert(id, sources.clone()) != Some(sources) {
            leader.refreshed = None;
        }
    }

    fn acknowledge(
        &mut self,
        node: NodeKey,
        version: u64,
        outputs: [u64; 2],
        raws: BTreeMap<LinkId, u64>,
        barrier: u64,
    ) -> bool {
        let state = self.leader_mut().nodes.get_mut(&node);
        let Some(state) = state.filter(|state| state.version == version) else {
            self.counts.ignored += 1;
            return false;
        };
        // The first answer counts: later ones repeat it.
        if !state.is_settled() {
            state.acked = Some(Acked { version, desired: state.desired.clone(), outputs, raws, barrier });
        }
        true
    }

    /// Takes a keeper's report. It is acknowledged when it describes the state that the keeper has to have.
    pub(super) fn report(&mut self, node: NodeKey, number: u32, links: &[LinkValue]) {
        if !self.leader().is_settled(node) {
            return;
        }
        for value in links {
            let (link, seat) = match node {
                NodeKey::Rep(switch, seat) => (self.input(switch, value.link), seat),
                NodeKey::Process(id) => (self.graph.place(id).map(|place| place.down), 0),
            };
            if let Some(link) = link {
                let (silent, caught, raw) = (value.silent, value.caught, self.time(value.raw));
                let status = LinkStatus { silent, caught, quiet: value.quiet, raw };
                self.leader_mut().set_status((link, seat), status);
            }
        }
        self.send(node, Message::ReportAck { number });
    }

    /// Returns whether all representatives that send on a link have acknowledged that the link carries no commit
    /// barrier.
    pub(super) fn has_muted(&self, output: LinkId) -> bool {
        let Some(switch) = self.graph.at(self.graph.ends(output).from).switch() else { return false };
        let ports = &self.graph.switch(switch).ports;
        let Some(at) = ports.iter().position(|port| port.is_some_and(|port| port.output == output)) else {
            return false;
        };
        let leader = self.leader();
        let has_muted = |seat: u8| {
            let state = leader.nodes.get(&NodeKey::Rep(switch, seat));
            match state.and_then(|state| state.acked.as_ref()).map(|acked| &acked.desired) {
                Some(Desired::Rep { links, .. }) => {
                    links.iter().any(|setting| usize::from(setting.link) == at && setting.muted)
                }
                _ => false,
            }
        };
        let mut seats = leader.serving(switch).peekable();
        seats.peek().is_some() && seats.all(has_muted)
    }
}
