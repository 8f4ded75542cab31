//! Control thread: starts and stops DPDK, passes the machine's clock to the polling thread, answers ARP and
//! neighbour discovery, and passes on the application's requests.

use super::management::Management;
use super::reliable::ControlEnds;
use super::{AllCounters, InitError};
use crate::config::{Clock, Config, Controller};
use crate::function::{Command, ProcessFunction, ProcessLeft, Rings, Shared};
use crate::membership::{Ends, Membership};
use core::sync::atomic::Ordering;
use crossbeam_channel::Receiver;
use dataplane::{ControlHandler, ControlOutput, LinkChange, Live, Mbuf, PortInfo, Runtime, Stop, log};
use onepipe::process::{Member, Process, ProcessId, member};
use rnic::{Interface, cm};
use rocev2::ethernet::MacAddr;
use std::collections::VecDeque;
use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher as _, Hasher as _};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use switch::{Frame as _, Nanos, PortId};

/// Interval at which the polling thread gets the machine's clock. In between, it extrapolates by the time
/// stamp counter, which is off by some 100 ns at most after this time
const CLOCK_INTERVAL: Duration = Duration::from_millis(1);
/// Maximum time that a polling thread may take to leave, which includes waiting for some timeouts of
/// messages
const MAX_LEAVE_TIME: Duration = Duration::from_secs(10);

/// Request of the application.
pub(super) enum Request {
    Alive(ProcessId, bool),
    Leave,
}

struct Plane {
    clock: Clock,
    clock_sent_at: Option<Instant>,
    /// Answers ARP and neighbour discovery, and rejects connection requests
    neighbours: rnic::Endpoint,
    frame: Vec<u8>,
    requests: Receiver<Request>,
    /// Commands for which the polling thread's queue had no room
    commands: VecDeque<Command>,
    leaving_since: Option<Instant>,
    has_left: bool,
    /// Connections to the controllers, if there are any
    management: Option<Management>,
}

/// The polling thread's ends of the rings, those of the reliable service included
type AllRings = (Rings, Option<(Ends, ControlEnds)>);

#[allow(clippy::disallowed_methods, reason = "the control plane reads the clock, the process does not")]
fn now() -> Instant {
    Instant::now()
}

impl ControlHandler<ProcessFunction> for Plane {
    fn on_event(
        &mut self,
        _worker: usize,
        _event: ProcessLeft,
        _out: &mut ControlOutput<'_, ProcessFunction>,
    ) {
        self.has_left = true;
    }

    fn on_punt(
        &mut self,
        _worker: usize,
        frame: Mbuf,
        port: PortId,
        out: &mut ControlOutput<'_, ProcessFunction>,
    ) {
        let now = out.now();
        self.neighbours.on_frame(frame.bytes(), now);
        while self.neighbours.poll_transmit(now, &mut self.frame) {
            // A frame without room is lost, as in a network: the peer retries.
            if let Ok(frame) = out.make(&self.frame) {
                drop(out.send(0, frame, port));
            }
        }
    }

    fn on_tick(&mut self, _live: &Live<'_>, out: &mut ControlOutput<'_, ProcessFunction>) -> bool {
        let now = now();
        if let Some(management) = &self.management {
            management.poll();
        }
        for request in self.requests.try_iter() {
            self.commands.push_back(match request {
                Request::Alive(id, alive) => Command::Alive(id, alive),
                Request::Leave => {
                    self.leaving_since.get_or_insert(now);
                    Command::Leave
                }
            });
        }
        if self.clock_sent_at.is_none_or(|at| now.duration_since(at) >= CLOCK_INTERVAL) {
            self.clock_sent_at = Some(now);
            let nanos = out.now();
            if self.neighbours.next_timer().is_some_and(|at| at <= nanos) {
                self.neighbours.on_timer(nanos);
            }
            // If the queue has no room, the clock is sent the next time.
            _ = out.command(0, Command::Clock(self.clock.sample(|| out.now())));
        }
        while let Some(command) = self.commands.pop_front() {
            if let Err(full) = out.command(0, command) {
                self.commands.push_front(full.0);
                break;
            }
        }
        let stuck = self.leaving_since.is_some_and(|since| now.duration_since(since) > MAX_LEAVE_TIME);
        !self.has_left && !stuck
    }

    fn on_link(&mut self, port: &PortInfo, up: bool) {
        log::peer(port, up);
    }

    fn on_link_change(&mut self, port: &PortInfo, change: &LinkChange) {
        log::link(port, change);
    }

    fn on_peer_awaited(&mut self, port: &PortInfo) {
        log::awaited_peer(port);
    }

    fn on_peer_refused(&mut self, port: &PortInfo, why: &str) {
        log::refused_peer(port, why);
    }
}

/// Starts the control thread, which starts everything else. Returns when the polling thread is about to
/// start.
pub(super) fn start(
    config: Config,
    rings: AllRings,
    shared: Arc<Shared>,
    requests: Receiver<Request>,
) -> Result<(JoinHandle<()>, AllCounters), InitError> {
    let (result_tx, result_rx) = crossbeam_channel::bounded(1);
    let run = move || {
        // Tells the application that the thread has ended, for whatever reason.
        let _ended = Ended(Arc::clone(&shared));
        match start_runtime(config, rings, Arc::clone(&shared), requests) {
            Ok((mut runtime, host, mut plane, counters)) => {
                if result_tx.send(Ok(counters)).is_ok() {
                    let outcome = runtime.run(vec![host], &mut plane, &Stop::new());
                    shared.lost_link.store(outcome.lost_link.is_some(), Ordering::Relaxed);
                }
            }
            Err(error) => drop(result_tx.send(Err(error))),
        }
    };
    let thread = std::thread::Builder::new().name("onepipe".into()).spawn(run);
    let thread = thread.map_err(|error| InitError::Thread(error.to_string()))?;
    match result_rx.recv() {
        Ok(Ok(counters)) => Ok((thread, counters)),
        Ok(Err(error)) => {
            drop(thread.join());
            Err(error)
        }
        Err(_) => {
            drop(thread.join());
            Err(InitError::Thread("it panicked; see its message on stderr".into()))
        }
    }
}

struct Ended(Arc<Shared>);

impl Drop for Ended {
    fn drop(&mut self) {
        self.0.closing.store(true, Ordering::Relaxed);
        self.0.closed.store(true, Ordering::Release);
    }
}

/// Everything that the control thread runs
type Started = (Runtime, ProcessFunction, Plane, AllCounters);

fn start_runtime(
    config: Config,
    (rings, ends): AllRings,
    shared: Arc<Shared>,
    requests: Receiver<Request>,
) -> Result<Started, InitError> {
    let Config { runtime, process: settings } = config;
    // Validates the process's configuration before DPDK, which can be started only once.
    Process::new(settings.process([0; 6], || Nanos::ZERO))?;
    let runtime = Runtime::start(runtime).map_err(|error| InitError::Dataplane {
        what: error.what,
        remedy: error.remedy,
        log: error.log,
    })?;
    let port_mac = runtime.ports().next().map_or([0; 6], |port| port.mac);
    let seed = RandomState::new().build_hasher().finish();
    let mut config = settings.process(port_mac, || runtime.now());
    if config.seed == 0 {
        config.seed = seed;
    }
    let interface = Interface {
        mac: MacAddr(config.own.mac.0),
        addresses: vec![settings.address()],
        gateways: Vec::new(),
        vlan: None,
        neighbours: Vec::new(),
    };
    let mut process = Process::new(config)?;
    // Published before the polling thread's first turn, so that `timestamp` never goes back.
    if !process.is_waiting() {
        shared.clock.store(process.timestamp(runtime.now()).nanos(), Ordering::Release);
    }
    let counters = process.counters();
    let membership = match (&settings.controller, ends) {
        (Some(controller), Some(ends)) => {
            Some(start_membership(&process, controller, settings.settled_events, ends, &shared)?)
        }
        _ => None,
    };
    let mut host = ProcessFunction::new(process, settings.settled_events, rings, shared);
    let member_counters = membership.as_ref().map(|(membership, _)| membership.counters());
    let management = membership.map(|(membership, management)| {
        host.set_membership(membership);
        management
    });
    let plane = Plane {
        clock: settings.clock,
        clock_sent_at: None,
        neighbours: rnic::Endpoint::new(interface, cm::Config::default(), seed),
        frame: Vec::new(),
        requests,
        commands: VecDeque::new(),
        leaving_since: None,
        has_left: false,
        management,
    };
    Ok((runtime, host, plane, (counters, member_counters)))
}

/// Starts to connect to the controllers.
fn start_membership(
    process: &Process,
    controller: &Controller,
    settled_events: bool,
    (ends, control): (Ends, ControlEnds),
    shared: &Arc<Shared>,
) -> Result<(Membership, Management), InitError> {
    let random = || RandomState::new().build_hasher().finish().to_ne_bytes();
    let mut boot = [0; 16];
    boot[..8].copy_from_slice(&random());
    boot[8..].copy_from_slice(&random());
    let mut config = member::Config::new(boot, controller.controllers.topology);
    config.fail_after = controller.fail_after;
    let member = Member::new(config, process)?;
    let modes = (controller.is_merged, settled_events);
    let membership = Membership::new(member, ends, modes, Arc::clone(shared));
    let management = Management::start(controller, process.config().own.id, control, Arc::clone(shared))?;
    Ok((membership, management))
}
