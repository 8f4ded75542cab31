//! The control plane of a replica, between the threads of clients and the worker.
//!
//! The control thread passes requests to the worker as commands, and results back to the requesters. So the
//! worker neither waits for a thread nor wakes one: it polls a queue, and writes to another one that always
//! has room.

use crate::command::Command;
use crate::replica::{Answer, Replica, Ticket};
use crossbeam_channel::{Receiver, Sender, bounded};
use dataplane::{Control, ControlOutput, Live, Mbuf, PortInfo, QueueFull};
use rnic::{Call, Station};
use std::collections::BTreeMap;
use switch::PortId;

/// Requests that are in progress at once. More wait in the channel.
const UNDER_WAY: usize = 4096;

/// A request of a client thread.
pub(crate) enum Ask {
    Command(Command),
    Info,
    Bootstrap,
}

/// Handle by which client threads submit requests.
#[derive(Clone)]
pub(crate) struct Counter(Sender<(Ask, Sender<Answer>)>);

impl Counter {
    /// Submits a request. The result arrives on the returned channel, which is closed if the server ends.
    pub(crate) fn ask(&self, ask: Ask) -> Receiver<Answer> {
        let (answer, answered) = bounded(1);
        // If the control plane has ended, the channel is closed without a result.
        _ = self.0.send((ask, answer));
        answered
    }
}

/// The control plane of a replica.
pub(crate) struct Desk {
    requests: Receiver<(Ask, Sender<Answer>)>,
    answers: Receiver<(Ticket, Answer)>,
    /// Requesters that wait for results
    asked: BTreeMap<Ticket, Sender<Answer>>,
    next: Ticket,
    /// A call for which the worker's queue had no room
    stuck: Option<Call<Replica>>,
}

impl Desk {
    /// Returns the control plane, a handle for requests, and the channel for the replica's results.
    pub(crate) fn new() -> (Self, Counter, Sender<(Ticket, Answer)>) {
        let (counter, requests) = bounded(UNDER_WAY);
        let (replica, answers) = bounded(UNDER_WAY);
        let desk = Self { requests, answers, asked: BTreeMap::new(), next: 0, stuck: None };
        (desk, Counter(counter), replica)
    }

    fn next_call(&mut self) -> Option<Call<Replica>> {
        if self.asked.len() >= UNDER_WAY {
            return None;
        }
        let (ask, answer) = self.requests.try_recv().ok()?;
        let ticket = self.next;
        self.next += 1;
        self.asked.insert(ticket, answer);
        Some(match ask {
            Ask::Command(command) => Box::new(move |replica, _, _| replica.ask(ticket, command)),
            Ask::Info => Box::new(move |replica, _, _| replica.ask_info(ticket)),
            Ask::Bootstrap => Box::new(move |replica, _, _| replica.bootstrap(ticket)),
        })
    }
}

impl Control<Station<Replica>> for Desk {
    fn on_event(&mut self, _worker: usize, (): (), _out: &mut ControlOutput<'_, Station<Replica>>) {}

    fn on_punt(
        &mut self,
        _worker: usize,
        _frame: Mbuf,
        _port: PortId,
        _out: &mut ControlOutput<'_, Station<Replica>>,
    ) {
    }

    fn on_tick(&mut self, _live: &Live<'_>, out: &mut ControlOutput<'_, Station<Replica>>) -> bool {
        while let Ok((ticket, answer)) = self.answers.try_recv() {
            if let Some(asked) = self.asked.remove(&ticket) {
                // The client may have disconnected.
                _ = asked.try_send(answer);
            }
        }
        while let Some(call) = self.stuck.take().or_else(|| self.next_call()) {
            if let Err(QueueFull(call)) = out.command(0, call) {
                self.stuck = Some(call);
                break;
            }
        }
        true
    }

    fn on_link(&mut self, port: &PortInfo, up: bool) {
        eprintln!("Port {} {} its peer.", port.name, if up { "has" } else { "has lost" });
    }

    fn on_refused(&mut self, port: &PortInfo, why: &str) {
        eprintln!("Port {} refuses a peer: {why}.", port.name);
    }
}
