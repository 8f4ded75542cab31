//! Control thread: starts and stops DPDK, passes the machine's clock to the polling thread, answers ARP and
//! neighbour discovery, and passes on the application's requests.

use super::InitError;
use crate::config::{Clock, Config};
use crate::function::{Command, ProcessFunction, ProcessLeft, Rings, Shared};
use core::sync::atomic::Ordering;
use crossbeam_channel::Receiver;
use dataplane::{ControlHandler, ControlOutput, Live, Mbuf, PortInfo, Runtime, Stop};
use onepipe::process::{Counters, Process, ProcessId};
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
/// stamp counter, which is off by microseconds at most after this time
const CLOCK_INTERVAL: Duration = Duration::from_millis(10);
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
}

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
            _ = out.command(0, Command::Clock(self.clock.now()));
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

    fn on_link(&mut self, _port: &PortInfo, _up: bool) {}
}

/// Starts the control thread, which starts everything else. Returns when the polling thread is about to
/// start.
pub(super) fn start(
    config: Config,
    rings: Rings,
    shared: Arc<Shared>,
    requests: Receiver<Request>,
) -> Result<(JoinHandle<()>, Arc<Counters>), InitError> {
    let (result_tx, result_rx) = crossbeam_channel::bounded(1);
    let run = move || {
        // Tells the application that the thread has ended, for whatever reason.
        let _ended = Ended(Arc::clone(&shared));
        match start_runtime(config, rings, shared, requests) {
            Ok((mut runtime, host, mut plane, counters)) => {
                if result_tx.send(Ok(counters)).is_ok() {
                    runtime.run(vec![host], &mut plane, &Stop::new());
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
type Started = (Runtime, ProcessFunction, Plane, Arc<Counters>);

fn start_runtime(
    config: Config,
    rings: Rings,
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
    shared.clock.store(process.timestamp(runtime.now()).nanos(), Ordering::Release);
    let counters = process.counters();
    let host = ProcessFunction::new(process, settings.tell_settled, rings, shared);
    let plane = Plane {
        clock: settings.clock,
        clock_sent_at: None,
        neighbours: rnic::Endpoint::new(interface, cm::Config::default(), seed),
        frame: Vec::new(),
        requests,
        commands: VecDeque::new(),
        leaving_since: None,
        has_left: false,
    };
    Ok((runtime, host, plane, counters))
}
