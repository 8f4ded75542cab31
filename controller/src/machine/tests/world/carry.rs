//! The links between the nodes.

use super::*;
use crate::graph::Node;
use crate::machine::tests::nodes::{keeper, sender};

impl World {
    fn lives(&self, way: Way) -> bool {
        let (link, from, to) = way;
        let ends = self.graph.ends(link);
        let key = |node, seat| match self.graph.at(node) {
            Node::Process(id) => NodeKey::Process(id),
            Node::Up(switch) | Node::Down(switch) => NodeKey::Rep(switch, seat),
        };
        !self.cut.contains(&link)
            && !self.cut_seats.contains(&way)
            && !self.dead.contains(&key(ends.from, from))
            && !self.dead.contains(&key(ends.to, to))
    }

    /// Draws a representative of each end of a link.
    fn draw_way(&mut self, link: LinkId) -> Way {
        let ends = self.graph.ends(link);
        let seat = |world: &mut Self, node| {
            let Some(switch) = world.graph.at(node).switch() else { return 0 };
            let seats: Vec<_> = world.reps.keys().filter(|key| key.0 == switch).map(|key| key.1).collect();
            if seats.len() > 1 { world.pick(&seats).expect("two") } else { seats[0] }
        };
        let from = seat(self, ends.from);
        let is_loopback = self.graph.at(ends.from).switch() == self.graph.at(ends.to).switch();
        (link, from, if is_loopback { from } else { seat(self, ends.to) })
    }

    /// A link carries its sender's barrier, or its keeper finds it silent.
    pub(super) fn carry(&mut self, link: LinkId) -> Result<(), String> {
        let way = self.draw_way(link);
        let (_, from, to) = way;
        let ends = self.graph.ends(link);
        let clock = self.clock();
        let lives = self.lives(way);
        let loopback =
            keeper(&self.graph, link).is_some_and(|(_, number)| number == onepipe::control::LOOPBACK);
        let sent = match self.graph.at(ends.from) {
            Node::Process(id) => {
                self.processes.get_mut(&id).expect("there").sends(clock).map(|(sent, qpn)| (sent, Some(qpn)))
            }
            Node::Up(switch) if loopback => {
                let sent = self.reps[&(switch, from)].outputs[0];
                (sent != 0).then_some((sent, None))
            }
            node => {
                let (switch, number) = sender(&self.graph, link).expect("a switch sends");
                let sent = self.reps[&(switch, from)].sends(number, matches!(node, Node::Down(_)));
                sent.map(|(sent, qpn)| (sent, Some(qpn)))
            }
        };
        // Beacons without a commit barrier are heard, too.
        let source = match self.graph.at(ends.from) {
            Node::Process(id) => Some(self.processes[&id].qpn),
            _ => sender(&self.graph, link)
                .and_then(|(switch, number)| self.reps[&(switch, from)].queue_pair(number)),
        };
        // A restarted process is silent until it has an incarnation.
        let mute = matches!(self.graph.at(ends.from), Node::Process(_)) && sent.is_none();
        let speaks = lives && !mute;
        let sent = sent.filter(|_| loopback || self.feeds(way));
        let heard = self.heard.entry(way).or_insert(self.now);
        if speaks {
            *heard = self.now;
        }
        let silent = self.now - *heard > SILENT_AFTER;
        match (self.graph.at(ends.to), keeper(&self.graph, link)) {
            (Node::Process(id), _) => {
                if self.dead.contains(&NodeKey::Process(id)) {
                    return Ok(());
                }
                let process = self.processes.get_mut(&id).expect("there");
                if process.terms.incarnation == Incarnation(0) {
                    self.heard.remove(&way);
                } else {
                    if speaks && let Some(qpn) = source {
                        process.hear(qpn);
                    }
                    let end = 1 << from;
                    process.quiet = process.quiet & !end | if silent { end } else { 0 };
                    let is_silent = process.named() & !process.quiet == 0;
                    process.silent = is_silent || !process.was_heard;
                }
                if let Some((sent, Some(qpn))) = sent.filter(|_| speaks) {
                    process.accept(sent, qpn);
                    return self.check_barrier(id);
                }
            }
            (_, Some((switch, number))) if !self.dead.contains(&NodeKey::Rep(switch, to)) => {
                let rep = self.reps.get_mut(&(switch, to)).expect("there");
                if speaks && source.is_some() {
                    rep.hear(number, source);
                }
                let input = rep.inputs.get_mut(&number);
                let fresh = input.map(|input| core::mem::take(&mut input.fresh) || !input.counted);
                if fresh != Some(false) {
                    self.heard.retain(|of, _| (of.0, of.2) != (link, to));
                } else if !loopback {
                    rep.set_quiet(number, 1 << from, silent);
                }
                if let Some((sent, qpn)) = sent.filter(|_| speaks) {
                    rep.accept(&self.graph, switch, number, sent, qpn);
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// Returns whether a beacon from one representative to another carries a commit barrier: the receiver is a source
    /// of the link in the other direction, where switches have two.
    fn feeds(&self, (link, from, to): Way) -> bool {
        let ends = self.graph.ends(link);
        if !self.has_standbys || self.graph.at(ends.to).switch().is_none() {
            return true;
        }
        match (self.graph.at(ends.from), sender(&self.graph, link)) {
            (Node::Process(id), _) => {
                let process = &self.processes[&id];
                process.named() == 0 || process.named() & (1 << to) != 0
            }
            (_, Some((switch, number))) => self.reps[&(switch, from)].feeds(number, to),
            _ => true,
        }
    }

    /// A representative has to end; its program starts again.
    pub(super) fn end_retired(&mut self, node: NodeKey) {
        self.kill(node);
        self.boot(node);
    }
}
