//! Representatives with their keepers: one or two for each switch.

use super::{STEP, System, TOPOLOGY};
use crate::onepipe::Network;
use controller::machine::NodeKey;
use onepipe::control::{Envelope, Message};
use representative::config::Config;
use representative::{Keeper, Representative, keeper};
use sim::{Fault, NodeId, Switch};
use std::collections::BTreeMap;
use switch::Nanos;

/// A switch, and the seat of one of its representatives
pub(super) type SeatId = (u16, u8);

/// Time after which a program that was retired is started again, at the earliest
const STARTS_AGAIN: Nanos = Nanos::from_micros(20);

/// Keeper of a switch's links, which lives and ends with its worker.
#[derive(Debug)]
pub(super) struct Site {
    pub(super) keeper: Keeper,
    /// Its worker
    pub(super) worker: NodeId,
    at: SeatId,
    config: Config,
    /// Number of starts
    starts: u16,
    is_down: bool,
    /// Latest state that it has answered
    answered: u64,
}

impl Site {
    fn new(at: SeatId, worker: NodeId, config: Config, starts: u16) -> Self {
        let keeper = Keeper::new(keeper_config(at, starts), config.clone());
        Self { keeper, worker, at, config, starts, is_down: false, answered: 0 }
    }

    /// Starts the program again: it knows nothing.
    fn restart(&mut self) {
        *self = Self::new(self.at, self.worker, self.config.clone(), self.starts + 1);
    }

    /// Looks at what the keeper sends.
    fn see_answer(&mut self, envelope: &Envelope) -> Result<(), String> {
        if let Message::Configured { version, .. } = envelope.message {
            if version < self.answered {
                return Err(format!("{:?} answers state {version} after {}", self.at, self.answered));
            }
            self.answered = version;
        }
        Ok(())
    }
}

fn keeper_config((switch, seat): SeatId, starts: u16) -> keeper::Config {
    let [low, high] = starts.to_le_bytes();
    let mut boot = [switch as u8; 16];
    (boot[0], boot[1], boot[2]) = (low, high, seat);
    keeper::Config { switch, seat, boot, topology: TOPOLOGY, retry_after: Nanos::from_micros(50) }
}

/// Returns the representatives of a network, with these configurations of the first and the second one of each switch.
pub(super) fn sites(
    network: &Network,
    first: Vec<Config>,
    second: BTreeMap<usize, Config>,
) -> BTreeMap<SeatId, Site> {
    let first = network.representatives.iter().zip(first).enumerate();
    let first = first.map(|(switch, (&worker, config))| ((switch as u16, 0), worker, config));
    let second = second.into_iter();
    let second = second.map(|(switch, config)| ((switch as u16, 1), network.standbys[&switch], config));
    first.chain(second).map(|(at, worker, config)| (at, Site::new(at, worker, config, 0))).collect()
}

impl System {
    /// Runs the keepers, and replaces those whose workers have restarted.
    ///
    /// # Errors
    /// A keeper answers an earlier state after a later one.
    pub(super) fn see_representatives(&mut self) -> Result<(), String> {
        let seats: Vec<_> = self.sites.keys().copied().collect();
        seats.into_iter().try_for_each(|seat| self.see_representative(seat))
    }

    fn see_representative(&mut self, at: SeatId) -> Result<(), String> {
        let (now, node) = (self.now(), NodeKey::Rep(at.0, at.1));
        let Some(site) = self.sites.get_mut(&at) else { return Ok(()) };
        if self.network.world.is_down(site.worker) {
            if !core::mem::replace(&mut site.is_down, true) {
                self.disconnect(node);
            }
            return Ok(());
        }
        if site.is_down {
            site.restart();
        }
        let worker: &mut Switch<Representative> = self.network.world.node_mut(site.worker);
        for event in worker.events.drain(..) {
            site.keeper.on_event(event, now);
        }
        if site.keeper.next_timer().is_some_and(|at| at <= now) {
            site.keeper.on_timer(now);
        }
        self.pass_commands(at);
        let Some(site) = self.sites.get_mut(&at) else { return Ok(()) };
        let sent: Vec<_> = core::iter::from_fn(|| site.keeper.poll_envelope()).collect();
        sent.iter().try_for_each(|envelope| site.see_answer(envelope))?;
        let is_retired = site.keeper.status().retired;
        self.send_to_controllers(node, sent);
        if is_retired {
            self.end_retired(at);
        }
        Ok(())
    }

    /// Passes what a keeper wants to its worker.
    pub(super) fn pass_commands(&mut self, seat: SeatId) {
        let Some(site) = self.sites.get_mut(&seat) else { return };
        let worker = site.worker;
        while let Some(command) = site.keeper.poll_command() {
            self.network
                .world
                .with(worker, |worker: &mut Switch<Representative>, _| worker.command(0, command));
        }
    }

    /// The program of a representative ends that was retired. Its operator starts it again.
    fn end_retired(&mut self, seat: SeatId) {
        let worker = self.sites[&seat].worker;
        let at = self.now() + STEP;
        let again = at + STARTS_AGAIN + Nanos(self.rng.below(100_000));
        self.network.world.schedule(at, Fault::Crash(worker));
        self.network.world.schedule(again, Fault::Restart(worker));
    }
}
