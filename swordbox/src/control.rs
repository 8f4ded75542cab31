//! The control plane: it writes down which connections' sides differ before they do, so that after a restart, with empty
//! tables, nothing of them passes that the server would take for something else.

use crate::config::{Config, Connection};
use crate::connect::{ConnectCounters, Connector};
use crate::function::{Command, Event, Swordbox};
use std::collections::VecDeque;
use switch::{Egress, Nanos, PortId};

/// Where connections are written down. What is written is there after a restart.
pub trait Journal {
    /// Writes down that the two sides of a connection may differ.
    ///
    /// # Errors
    /// If it could not be written for sure; then they do not.
    fn add(&mut self, connection: Connection) -> std::io::Result<()>;

    /// A connection is over. It does no harm if this is lost.
    fn remove(&mut self, connection: Connection);
}

/// The control plane of a [`Swordbox`].
pub struct Control {
    journal: Box<dyn Journal + Send>,
    commands: VecDeque<Command>,
    failed: u64,
    /// For lanes of the switch's own
    connector: Option<Connector>,
}

impl Control {
    /// One that writes to `journal`.
    pub fn new(journal: Box<dyn Journal + Send>) -> Self {
        Self { journal, commands: VecDeque::new(), failed: 0, connector: None }
    }

    /// One that connects lanes of the switch's own as well, wherever `config` has them. `seed` is another one after each start.
    #[must_use]
    pub fn with_lanes(mut self, config: &Config, seed: u64) -> Self {
        self.connector = Connector::of(config, seed);
        self
    }

    /// What became of attempts to connect lanes of the switch's own
    pub fn lanes(&self) -> ConnectCounters {
        self.connector.as_ref().map_or_else(ConnectCounters::default, Connector::counters)
    }

    /// Wants other layers.
    pub fn set_layers(&mut self, layers: crate::Layers) {
        self.commands.push_back(Command::Layers(layers));
    }

    /// Connections that could not be written down
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
            Event::Diverging(connection) => match self.journal.add(connection) {
                Ok(()) => self.commands.push_back(Command::Permit(connection)),
                // It goes on as it is: its packets pass.
                Err(_) => self.failed += 1,
            },
            Event::Over(connection) => self.journal.remove(connection),
            Event::LaneOpened { .. } | Event::LaneLost { .. } => {
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

    fn poll_command(&mut self) -> Option<Command> {
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
