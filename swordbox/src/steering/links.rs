//! Pending nodes: nodes whose CAS has no response, or whose predecessor is pending itself.
//!
//! A steered CAS targets the last node that the switch has *forwarded* a CAS for. That node's own CAS may
//! still be in flight, or be lost; then the new node is linked to a node that is not part of the structure.
//! The switch withholds all responses that depend on such a node until it is linked, so that clients do not
//! see it before.
//!
//! ```text
//!   first <- A <- B       CAS(A -> B) is in flight
//!                 `- C    CAS(B -> C) is complete: its response waits for that of B
//! ```

use super::Append;
use crate::{Id, NONE};
use rocev2::Psn;
use switch::table::{Index, Key, Salt, mix};
use switch::{Full, Nanos};

/// Reference to a node that was pending when the ticket was issued. The node is linked when no pending entry
/// has the ticket any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ticket {
    id: Id,
    generation: u32,
}

impl Ticket {
    /// Ticket of no node
    pub(crate) const NONE: Self = Self { id: NONE, generation: 0 };
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct NodeKey {
    server: u8,
    node: u64,
}

impl Key for NodeKey {
    #[inline]
    fn hash(&self) -> u64 {
        mix(self.node ^ u64::from(self.server) << 56)
    }

    #[inline]
    fn salted(&self, salt: Salt) -> u64 {
        salt.hash(u128::from(self.server) << 64 | u128::from(self.node), 0)
    }
}

/// State of a pending node's CAS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// No response yet.
    Sent,
    /// The node is linked to its predecessor, which may be pending.
    Done,
    /// The CAS failed. Other nodes may be linked to this one; its client will retry.
    Failed,
    /// The result will not be known, or is no longer waited for.
    Lost,
}

/// A pending node.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Link {
    pub append: Append,
    pub server: u8,
    /// Index of the structure
    pub structure: u8,
    pub state: State,
    /// Flow of the CAS; `NONE` if its connection is over
    pub flow: Id,
    /// The server's PSN of the CAS
    pub psn: Psn,
    /// Predecessor, if that was pending when the CAS was forwarded
    pub parent: Ticket,
    /// Whether a request was steered to this node, so other responses depend on it
    pub has_dependents: bool,
    /// Time of the first and of the latest transmission
    pub began: Nanos,
    pub sent: Nanos,
    pub tries: u8,
    generation: u32,
    /// First node that is linked to this one
    child: Id,
    /// Next node that is linked to the same predecessor
    sibling: Id,
}

/// All pending nodes.
#[derive(Debug)]
#[expect(clippy::struct_field_names, reason = "the field holds the links")]
pub(crate) struct Links {
    index: Index<NodeKey>,
    links: Vec<Link>,
    /// Number of pending nodes, by server
    counts: Vec<u32>,
    generations: u32,
    capacity: usize,
    /// Stack of the tree traversals
    stack: Vec<Id>,
}

impl Links {
    pub(crate) fn with_capacity(capacity: usize, servers: usize) -> Self {
        Self {
            counts: vec![0; servers],
            index: Index::with_capacity(capacity),
            links: Vec::with_capacity(capacity),
            generations: 0,
            capacity,
            stack: Vec::with_capacity(capacity),
        }
    }

    /// Salts the hashes of the table.
    pub(super) fn set_salt(&mut self, salt: Salt) {
        self.index.set_salt(salt);
    }

    /// Returns the memory in bytes for `capacity` nodes.
    pub(crate) fn bytes(capacity: usize) -> usize {
        Index::<NodeKey>::bytes(capacity) + capacity * (size_of::<Link>() + size_of::<Id>())
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.index.is_empty()
    }

    /// Returns whether a node of this server is pending.
    pub(crate) fn has_any(&self, server: u8) -> bool {
        self.counts[usize::from(server)] > 0
    }

    /// Returns the upper bound of the indices in use.
    pub(crate) fn ids(&self) -> Id {
        self.index.ids()
    }

    /// Returns the pending node with this index.
    pub(crate) fn get(&self, id: Id) -> Option<&Link> {
        self.index.key(id)?;
        self.links.get(id as usize)
    }

    pub(crate) fn get_mut(&mut self, id: Id) -> Option<&mut Link> {
        self.index.key(id)?;
        self.links.get_mut(id as usize)
    }

    pub(crate) fn ticket(&self, id: Id) -> Ticket {
        Ticket { id, generation: self.links[id as usize].generation }
    }

    /// Returns the pending node of a ticket, until it is linked or removed.
    pub(crate) fn open(&self, ticket: Ticket) -> Option<(Id, &Link)> {
        let link = self.get(ticket.id)?;
        (link.generation == ticket.generation).then_some((ticket.id, link))
    }

    /// Returns the index of a node, if it is pending.
    pub(crate) fn of_node(&self, server: u8, node: u64) -> Option<Id> {
        if self.index.is_empty() {
            return None;
        }
        self.index.get(&NodeKey { server, node })
    }

    /// Notes that a request is steered to a node. Returns the ticket that its response has to wait for, if
    /// the node is pending.
    pub(crate) fn depend_on(&mut self, server: u8, node: u64) -> Ticket {
        let Some(id) = self.of_node(server, node) else { return Ticket::NONE };
        self.links[id as usize].has_dependents = true;
        self.ticket(id)
    }

    /// Returns whether the CAS of a node can be tracked: there is room, and no other CAS of the node is in
    /// flight. The value states whether other nodes are already linked to it, behind a CAS that failed.
    pub(crate) fn can_begin(&self, server: u8, node: u64) -> Option<bool> {
        match self.of_node(server, node) {
            None => (self.index.len() < self.capacity).then_some(false),
            Some(id) => {
                let link = &self.links[id as usize];
                (link.state == State::Failed).then_some(link.has_dependents)
            }
        }
    }

    /// Adds the CAS that appends a node. Its predecessor is pending if `parent` is open.
    ///
    /// # Errors
    ///
    /// There is no room for another node.
    pub(crate) fn begin(
        &mut self,
        (server, structure): (u8, u8),
        append: Append,
        parent: Ticket,
        (flow, psn): (Id, Psn),
        now: Nanos,
    ) -> Result<Ticket, Full> {
        let known = self.of_node(server, append.node);
        let id = match known {
            Some(id) => id,
            None => self.index.get_or_insert(NodeKey { server, node: append.node })?,
        };
        let (generation, has_dependents, child) = if known.is_some() {
            self.unlink(id);
            let link = &self.links[id as usize];
            (link.generation, link.has_dependents, link.child)
        } else {
            self.counts[usize::from(server)] += 1;
            self.generations = self.generations.wrapping_add(1);
            (self.generations, false, NONE)
        };
        let mut link = Link {
            append,
            server,
            structure,
            state: State::Sent,
            flow,
            psn,
            parent,
            has_dependents,
            began: now,
            sent: now,
            tries: 0,
            generation,
            child,
            sibling: NONE,
        };
        match self.open(parent).map(|(id, _)| id) {
            Some(parent) => {
                let above = &mut self.links[parent as usize];
                link.sibling = core::mem::replace(&mut above.child, id);
            }
            None => link.parent = Ticket::NONE,
        }
        crate::lines::put(&mut self.links, id, link, link);
        Ok(self.ticket(id))
    }

    /// Detaches a node from its predecessor.
    fn unlink(&mut self, id: Id) {
        let Link { parent, sibling, .. } = self.links[id as usize];
        self.links[id as usize].parent = Ticket::NONE;
        self.links[id as usize].sibling = NONE;
        let Some((above, link)) = self.open(parent) else { return };
        let mut at = link.child;
        if at == id {
            self.links[above as usize].child = sibling;
            return;
        }
        while at != NONE {
            let next = self.links[at as usize].sibling;
            if next == id {
                self.links[at as usize].sibling = sibling;
                return;
            }
            at = next;
        }
    }

    /// Removes a node, which invalidates its tickets. Nodes linked to it have no pending predecessor any
    /// more.
    fn remove(&mut self, id: Id) {
        self.unlink(id);
        let mut at = core::mem::replace(&mut self.links[id as usize].child, NONE);
        while at != NONE {
            let below = &mut self.links[at as usize];
            below.parent = Ticket::NONE;
            at = core::mem::replace(&mut below.sibling, NONE);
        }
        if let Some(key) = self.index.key(id).copied() {
            self.index.remove(&key);
            self.counts[usize::from(key.server)] -= 1;
        }
        self.generations = self.generations.wrapping_add(1);
        self.links[id as usize].generation = self.generations;
    }

    /// Notes that a CAS succeeded. Calls `linked` for every node that is thereby part of the structure,
    /// predecessors first, with whether other nodes are linked to it.
    pub(crate) fn succeed(&mut self, id: Id, mut linked: impl FnMut(&Link, bool)) {
        self.links[id as usize].state = State::Done;
        if self.open(self.links[id as usize].parent).is_some() {
            return;
        }
        self.stack.clear();
        self.stack.push(id);
        while let Some(id) = self.stack.pop() {
            let link = self.links[id as usize];
            match link.state {
                State::Done => {
                    linked(&link, link.child != NONE);
                    let mut at = link.child;
                    while at != NONE {
                        self.stack.push(at);
                        at = self.links[at as usize].sibling;
                    }
                    self.remove(id);
                }
                // Its response may be released, and nothing depends on the node.
                State::Failed if !link.has_dependents => self.remove(id),
                _ => {}
            }
        }
    }

    /// Notes that a CAS failed. The node is removed unless other nodes depend on it, or the response has to
    /// wait for the predecessor.
    pub(crate) fn fail(&mut self, id: Id) {
        let link = &mut self.links[id as usize];
        link.state = State::Failed;
        let waits = link.has_dependents || self.open(self.links[id as usize].parent).is_some();
        if !waits {
            self.remove(id);
        }
    }

    /// Detaches a flow that is over from its pending nodes. Calls `on_unknown` for each one whose result will
    /// stay unknown.
    pub(crate) fn orphan(&mut self, flow: Id, mut on_unknown: impl FnMut(&Link)) {
        for id in 0..self.index.ids() {
            let Some(link) = self.get_mut(id).filter(|link| link.flow == flow) else { continue };
            link.flow = NONE;
            match link.state {
                State::Sent => {
                    on_unknown(link);
                    if !link.has_dependents {
                        self.remove(id);
                    }
                }
                State::Failed if !link.has_dependents => self.remove(id),
                _ => {}
            }
        }
    }

    /// Marks a node and all nodes linked to it as lost.
    pub(crate) fn lose(&mut self, id: Id) {
        self.stack.clear();
        self.stack.push(id);
        while let Some(id) = self.stack.pop() {
            if core::mem::replace(&mut self.links[id as usize].state, State::Lost) == State::Lost {
                continue;
            }
            let mut at = self.links[id as usize].child;
            while at != NONE {
                self.stack.push(at);
                at = self.links[at as usize].sibling;
            }
        }
    }

    /// Removes all lost nodes. No ticket of them may be in use.
    pub(crate) fn remove_lost(&mut self, mut on_unknown: impl FnMut(&Link)) {
        for id in 0..self.index.ids() {
            if let Some(link) = self.get(id).filter(|link| link.state == State::Lost) {
                on_unknown(link);
                self.remove(id);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn append(to: u64, node: u64) -> Append {
        Append { va: to, to, node, key: 1, rkey: 2, steered: true }
    }

    fn begin(links: &mut Links, to: u64, node: u64, flow: Id) -> Ticket {
        assert!(links.can_begin(0, node).is_some());
        let parent = links.depend_on(0, to);
        links.begin((0, 0), append(to, node), parent, (flow, Psn::new(node as u32)), Nanos(5)).unwrap()
    }

    fn succeed(links: &mut Links, ticket: Ticket) -> Vec<(u64, bool)> {
        let mut linked = Vec::new();
        let id = links.open(ticket).unwrap().0;
        links.succeed(id, |link, followed| linked.push((link.append.node, followed)));
        linked
    }

    #[test]
    fn a_node_is_published_after_its_predecessor() {
        let mut links = Links::with_capacity(8, 1);
        let [b, c, d] = [(1, 2), (2, 3), (3, 4)].map(|(to, node)| begin(&mut links, to, node, 7));
        assert_eq!(succeed(&mut links, d), []);
        assert_eq!(succeed(&mut links, c), []);
        assert!([b, c, d].iter().all(|ticket| links.open(*ticket).is_some()));
        assert_eq!(succeed(&mut links, b), [(2, true), (3, true), (4, false)]);
        assert!(links.is_empty() && [b, c, d].iter().all(|ticket| links.open(*ticket).is_none()));
        assert!(!links.has_any(0));
        // Slots are reused, tickets are not.
        let other = begin(&mut links, 1, 9, 7);
        assert!(links.open(b).is_none() && links.open(d).is_none() && links.open(other).is_some());
        assert!(links.has_any(0));
    }

    #[test]
    fn nodes_behind_a_failed_node_are_published_when_that_is_appended_again() {
        let mut links = Links::with_capacity(8, 1);
        let [b, c, d] = [(1, 2), (2, 3), (2, 4)].map(|(to, node)| begin(&mut links, to, node, 7));
        assert_eq!(succeed(&mut links, c), []);
        let (b_id, d_id) = (links.open(b).unwrap().0, links.open(d).unwrap().0);
        links.fail(b_id);
        links.fail(d_id);
        assert_eq!(links.open(b).unwrap().1.state, State::Failed);
        assert_eq!(links.can_begin(0, 2), Some(true));
        assert_eq!(links.can_begin(0, 3), None, "the node is linked already");
        let again = begin(&mut links, 8, 2, 7);
        assert_eq!(again, b, "the ticket refers to the same node");
        assert_eq!(succeed(&mut links, again), [(2, true), (3, false)]);
        assert!(links.is_empty(), "{links:?}");
    }

    #[test]
    fn a_failed_node_without_dependents_is_removed() {
        let mut links = Links::with_capacity(1, 1);
        let b = begin(&mut links, 1, 2, 7);
        assert_eq!(links.can_begin(0, 3), None, "the table is full");
        links.fail(links.open(b).unwrap().0);
        assert!(links.is_empty());
    }

    #[test]
    fn a_failed_node_can_be_appended_to_another_predecessor() {
        let mut links = Links::with_capacity(8, 1);
        let tickets = [(1, 2), (2, 3), (2, 4), (2, 5)].map(|(to, node)| begin(&mut links, to, node, 7));
        let [b, c, d, e] = tickets;
        for ticket in [c, d, e] {
            links.depend_on(0, links.open(ticket).unwrap().1.append.node);
            links.fail(links.open(ticket).unwrap().0);
        }
        begin(&mut links, 1, 4, 7);
        begin(&mut links, 4, 3, 7);
        assert_eq!(succeed(&mut links, c), []);
        assert_eq!(succeed(&mut links, d), [(4, true), (3, false)]);
        assert_eq!(succeed(&mut links, b), [(2, true)]);
        assert!(links.open(e).is_some() && links.index.len() == 1);
    }

    #[test]
    fn losing_a_node_loses_all_nodes_behind_it() {
        let mut links = Links::with_capacity(8, 1);
        let [b, _, d] = [(1, 2), (2, 3), (3, 4)].map(|(to, node)| begin(&mut links, to, node, node as Id));
        let alone = begin(&mut links, 1, 9, 9);
        let mut on_unknown = Vec::new();
        for flow in [2, 9] {
            links.orphan(flow, |link| on_unknown.push(link.append.node));
        }
        assert_eq!(on_unknown, [2, 9]);
        assert!(links.open(alone).is_none() && links.open(b).is_some());
        links.lose(links.open(b).unwrap().0);
        assert_eq!(links.open(d).unwrap().1.state, State::Lost);
        links.remove_lost(|link| on_unknown.push(link.append.node));
        on_unknown[2..].sort_unstable();
        assert!(links.is_empty() && on_unknown[2..] == [2, 3, 4], "{on_unknown:?}");
    }
}
