//! The keeper of a switch's links, its worker, and the connections to the controllers.

#[cfg(test)]
mod tests;

use super::controller::ControllerConfig;
use crate::system::random_u64;
use dataplane::{ControlOutput, QueueFull};
use management::{Client, ClientConfig, ClientEvent, Peer, Secret};
use miette::Report;
use onepipe::control::Envelope;
use representative::keeper::{Config, Status};
use representative::{Command, Event, Keeper};
use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::mpsc::{Receiver, sync_channel};
use switch::{Function, Nanos};
use tracing::{info, warn};

/// Time after which what a controller has not answered is sent again; it is doubled up to 64 times this
const RETRY_AFTER: Nanos = Nanos::from_millis(20);
/// Events of the connections that wait for the control thread
const QUEUED: usize = 1024;

/// What the report shows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct KeeperStatus {
    /// Controllers that are connected
    pub(super) connected: usize,
    pub(super) status: Status,
    /// Messages that were refused, for any reason
    pub(super) refused: u64,
}

/// Connects a keeper with its worker and with the controllers.
pub(super) struct KeeperDriver {
    keeper: Keeper,
    /// Command that found the worker's queue full
    waiting: Option<Command>,
    connected: BTreeSet<SocketAddr>,
    /// Messages that could not be read
    malformed: u64,
    // Dropped before the client: its thread does not wait for room then.
    events: Receiver<ClientEvent>,
    client: Client,
}

impl KeeperDriver {
    /// Starts to connect, for a representative that has just been created.
    pub(super) fn start(
        config: &ControllerConfig,
        representative: representative::Config,
    ) -> Result<Self, Report> {
        let &ControllerConfig { ref controllers, switch, seat } = config;
        let secret = controllers.secret_file.as_deref().map(Secret::read).transpose();
        let secret = secret.map_err(|error| miette::miette!("[controller]: {error}"))?;
        let topology = controllers.topology;
        let connections = ClientConfig {
            controllers: controllers.addresses.clone(),
            secret,
            peer: Peer::Switch(switch, seat),
            topology,
        };
        let (sender, events) = sync_channel(QUEUED);
        // The receiver is gone at the end only.
        let client = Client::start(connections, move |event| drop(sender.send(event)));
        let client = client.map_err(|error| miette::miette!("[controller]: {error}"))?;
        let mut boot = [0; 16];
        boot[..8].copy_from_slice(&random_u64().to_be_bytes());
        boot[8..].copy_from_slice(&random_u64().to_be_bytes());
        let keeper = Config { switch, seat, boot, topology, retry_after: RETRY_AFTER };
        Ok(Self {
            keeper: Keeper::new(keeper, representative),
            waiting: None,
            connected: BTreeSet::new(),
            malformed: 0,
            events,
            client,
        })
    }

    /// Returns what the report shows.
    pub(super) fn status(&self) -> KeeperStatus {
        let refused = self.keeper.refused();
        let refused = refused.old_term
            + refused.other_incarnation
            + refused.old_version
            + refused.unknown_link
            + refused.unexpected
            + self.malformed;
        KeeperStatus { connected: self.connected.len(), status: self.keeper.status(), refused }
    }

    /// Returns whether the other representative of the switch serves alone, so that this program ends.
    pub(super) fn is_retired(&self) -> bool {
        self.keeper.status().retired
    }

    /// Passes an event of the worker on.
    pub(super) fn on_event(&mut self, event: Event, now: Nanos) {
        self.keeper.on_event(event, now);
        self.send();
    }

    /// Handles what has come from the controllers, and gives the worker its commands.
    pub(super) fn turn<F: Function<Command = Command>>(&mut self, out: &mut ControlOutput<'_, F>) {
        self.receive(out.now());
        while let Some(command) = self.waiting.take().or_else(|| self.keeper.poll_command()) {
            if let Err(QueueFull(command)) = out.command(0, command) {
                self.waiting = Some(command);
                break;
            }
        }
    }

    /// Handles what has come from the controllers, and the timer.
    fn receive(&mut self, now: Nanos) {
        while let Ok(event) = self.events.try_recv() {
            self.on_connection(event, now);
        }
        if self.keeper.next_timer().is_some_and(|at| at <= now) {
            self.keeper.on_timer(now);
        }
        self.send();
    }

    fn on_connection(&mut self, event: ClientEvent, now: Nanos) {
        match event {
            ClientEvent::Connected(address) => {
                info!("Connected to controller {address}.");
                self.connected.insert(address);
                self.keeper.on_connected(now);
            }
            ClientEvent::Disconnected(address, why) => {
                warn!("Controller {address}: {why}");
                self.connected.remove(&address);
            }
            ClientEvent::Message(bytes) => match Envelope::decode(&bytes) {
                Ok(envelope) => {
                    let before = self.keeper.status();
                    self.keeper.on_envelope(envelope, now);
                    self.tell(before);
                }
                Err(why) => {
                    self.malformed += 1;
                    if self.malformed == 1 {
                        warn!("A message of a controller cannot be read: {why}. More are counted.");
                    }
                }
            },
        }
    }

    /// Logs a new incarnation, or the reason for which there is none.
    fn tell(&self, before: Status) {
        let status = self.keeper.status();
        if status.incarnation != before.incarnation {
            info!("This switch is incarnation {} of its representatives.", status.incarnation);
        }
        if status.retired && !before.retired {
            info!("The controller has retired this representative: the switch's other one serves alone.");
        }
        if let Some(why) = status.waits.filter(|_| status.waits != before.waits) {
            warn!("The controller gives this switch no incarnation: {why:?}. It is asked again.");
        }
    }

    /// Sends what the keeper has to send.
    fn send(&mut self) {
        while let Some(envelope) = self.keeper.poll_envelope() {
            match envelope.encode() {
                Ok(bytes) => self.client.send(&bytes),
                Err(why) => warn!("A message to the controller is left out: {why}"),
            }
        }
    }
}
