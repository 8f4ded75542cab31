//! The control plane of a replica, between the threads of clients and the worker.
//!
//! The control thread passes requests to the worker as commands, and results back to the requesters. So the
//! worker neither waits for a thread nor wakes one: it polls a queue, and writes to another one that always
//! has room.

use crate::command::Command;
use crate::replica::{Replica, Response, Ticket};
use crossbeam_channel::{Receiver, Sender, bounded};
use dataplane::{ControlHandler, ControlOutput, LinkChange, Live, Mbuf, PortInfo, QueueFull};
use rnic::{HostCall, HostFunction};
use std::collections::BTreeMap;
use switch::PortId;
use tracing::{info, warn};

/// Requests that are in progress at once. More wait in the channel.
const MAX_IN_PROGRESS: usize = 4096;

/// A request of a client thread.
pub(crate) enum ReplicaRequest {
    Command(Command),
    Info,
    Bootstrap,
}

/// Handle by which client threads submit requests.
#[derive(Clone)]
pub(crate) struct RequestSender(Sender<(ReplicaRequest, Sender<Response>)>);

impl RequestSender {
    /// Submits a request. The result arrives on the returned channel, which is closed if the server ends.
    pub(crate) fn submit(&self, request: ReplicaRequest) -> Receiver<Response> {
        let (response, received) = bounded(1);
        // If the control plane has ended, the channel is closed without a result.
        _ = self.0.send((request, response));
        received
    }
}

/// The control plane of a replica.
pub(crate) struct ReplicaControl {
    requests: Receiver<(ReplicaRequest, Sender<Response>)>,
    responses: Receiver<(Ticket, Response)>,
    /// Requesters that wait for results
    requesters: BTreeMap<Ticket, Sender<Response>>,
    next: Ticket,
    /// A call for which the worker's queue had no room
    blocked_call: Option<HostCall<Replica>>,
}

impl ReplicaControl {
    /// Returns the control plane, a handle for requests, and the channel for the replica's results.
    pub(crate) fn new() -> (Self, RequestSender, Sender<(Ticket, Response)>) {
        let (request_sender, requests) = bounded(MAX_IN_PROGRESS);
        let (replica, responses) = bounded(MAX_IN_PROGRESS);
        let control = Self { requests, responses, requesters: BTreeMap::new(), next: 0, blocked_call: None };
        (control, RequestSender(request_sender), replica)
    }

    fn next_call(&mut self) -> Option<HostCall<Replica>> {
        if self.requesters.len() >= MAX_IN_PROGRESS {
            return None;
        }
        let (request, response) = self.requests.try_recv().ok()?;
        let ticket = self.next;
        self.next += 1;
        self.requesters.insert(ticket, response);
        Some(match request {
            ReplicaRequest::Command(command) => {
                Box::new(move |replica, _, _| replica.submit(ticket, command))
            }
            ReplicaRequest::Info => Box::new(move |replica, _, _| replica.request_info(ticket)),
            ReplicaRequest::Bootstrap => Box::new(move |replica, _, _| replica.bootstrap(ticket)),
        })
    }
}

impl ControlHandler<HostFunction<Replica>> for ReplicaControl {
    fn on_event(&mut self, _worker: usize, (): (), _out: &mut ControlOutput<'_, HostFunction<Replica>>) {}

    fn on_punt(
        &mut self,
        _worker: usize,
        _frame: Mbuf,
        _port: PortId,
        _out: &mut ControlOutput<'_, HostFunction<Replica>>,
    ) {
    }

    fn on_tick(&mut self, _live: &Live<'_>, out: &mut ControlOutput<'_, HostFunction<Replica>>) -> bool {
        while let Ok((ticket, response)) = self.responses.try_recv() {
            if let Some(requester) = self.requesters.remove(&ticket) {
                // The client may have disconnected.
                _ = requester.try_send(response);
            }
        }
        while let Some(call) = self.blocked_call.take().or_else(|| self.next_call()) {
            if let Err(QueueFull(call)) = out.command(0, call) {
                self.blocked_call = Some(call);
                break;
            }
        }
        true
    }

    fn on_link(&mut self, port: &PortInfo, up: bool) {
        if up {
            info!("Port {} is connected to its peer.", port.name);
        } else {
            warn!("Port {} has lost its peer.", port.name);
        }
    }

    fn on_link_change(&mut self, port: &PortInfo, change: &LinkChange) {
        match change {
            LinkChange::Now(link) if link.is_up() => info!("Port {} is up.", port.name),
            LinkChange::Now(link) => warn!("Port {} has no link: {}.", port.name, link.name()),
            LinkChange::Recreated => warn!("Restart this process to use the new interface of {}.", port.name),
        }
    }

    fn on_peer_refused(&mut self, port: &PortInfo, why: &str) {
        warn!("Port {} refuses a peer: {why}.", port.name);
    }
}
