//! Control plane: records each connection in a journal before it is translated. After a restart, the PSN
//! translation is lost, and packets of such a connection have to be dropped, because the server might take a
//! new request for a duplicate.

use crate::config::{Config, Connection};
use crate::connect::{ConnectCounters, Connector};
use crate::event::{Command, Event};
use crate::function::Swordbox;
use crate::owners::Owners;
use std::collections::VecDeque;
use switch::{Egress, Nanos, PortId, forward};

/// Persistent set of translated connections. An added connection has to be there after a restart.
pub trait Journal {
    /// Adds a connection that is about to be translated.
    ///
    /// # Errors
    /// The connection may not have been stored. It is not translated then.
    fn add(&mut self, connection: Connection) -> std::io::Result<()>;

    /// Removes a connection that is over. Losing a removal is harmless.
    fn remove(&mut self, connection: Connection);
}

/// Control plane of a [`Swordbox`].
pub struct Control {
    journal: Box<dyn Journal + Send>,
    owners: Owners,
    /// Commands, each with its worker
    commands: VecDeque<(usize, Command)>,
    failed: u64,
    /// Connects switch-owned QPs, if configured
    connector: Option<Connector>,
}

impl Control {
    /// Returns the control plane of a Swordbox on `workers` workers, which writes to `journal`. `config` is that of the
    /// Swordbox.
    pub fn new(journal: Box<dyn Journal + Send>, config: &Config, workers: usize) -> Self {
        let owners = Owners::new(config, workers);
        Self { journal, owners, commands: VecDeque::new(), failed: 0, connector: None }
    }

    /// Adds the connection of switch-owned QPs, as configured in `config`. `seed` has to differ after each
    /// start.
    #[must_use]
    pub fn with_switch_owned_qps(mut self, config: &Config, seed: u64) -> Self {
        self.connector = Connector::of(config, self.owners.workers(), seed);
        self
    }

    /// Returns the counters of connection attempts of switch-owned QPs.
    pub fn connect_counters(&self) -> ConnectCounters {
        self.connector.as_ref().map_or_else(ConnectCounters::default, Connector::counters)
    }

    /// Replaces the enabled layers.
    pub fn set_layers(&mut self, layers: crate::Layers) {
        self.send_to_all(&Command::Layers(layers));
    }

    fn send_to_all(&mut self, command: &Command) {
        self.commands.extend((0..self.owners.workers()).map(|worker| (worker, command.clone())));
    }

    /// Returns the number of connections that could not be written to the journal.
    pub fn failed(&self) -> u64 {
        self.failed
    }
}

impl switch::Control for Control {
    type Function = Swordbox;

    fn on_punt(&mut self, frame: &[u8], port: PortId, now: Nanos) {
        if let Some(connector) = &mut self.connector {
            connector.on_punt(frame, port, now);
        }
    }

    fn on_event(&mut self, event: Event, now: Nanos) {
        match event {
            Event::TranslationRequested(connection) => match self.journal.add(connection) {
                Ok(()) => {
                    let owner = self.owners.worker_of_server(connection.server.0).unwrap_or(0);
                    self.commands.push_back((owner, Command::PermitTranslation(connection)));
                }
                // The connection stays untranslated; its packets are forwarded unchanged.
                Err(_) => self.failed += 1,
            },
            Event::ConnectionEnded(connection) => self.journal.remove(connection),
            Event::Bridge(forward::Event::Learned(mac, port, seen)) => {
                self.send_to_all(&Command::Bridge(forward::Command::Learn(mac, port, seen)));
            }
            Event::SharedQpOpened { .. } | Event::SharedQpLost { .. } => {
                if let Some(connector) = &mut self.connector {
                    connector.on_event(event, now);
                }
            }
        }
    }

    fn on_timer(&mut self, now: Nanos) {
        if let Some(connector) = &mut self.connector {
            connector.on_timer(now);
        }
    }

    fn next_timer(&self) -> Option<Nanos> {
        self.connector.as_ref()?.next_timer()
    }

    fn poll_command(&mut self) -> Option<(usize, Command)> {
        self.commands.pop_front().or_else(|| self.connector.as_mut()?.poll_command())
    }

    fn poll_transmit(&mut self, now: Nanos, frame: &mut Vec<u8>) -> Option<Egress> {
        self.connector.as_mut()?.poll_transmit(now, frame)
    }
}

impl core::fmt::Debug for Control {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Control").field("failed", &self.failed).finish_non_exhaustive()
    }
}
