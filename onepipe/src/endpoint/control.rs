//! Control thread: starts and stops DPDK, passes the machine's clock to the polling thread, answers ARP and
//! neighbour discovery, and passes on the application's requests.

use super::InitError;
use crate::config::{Clock, Config};
use crate::function::{Command, Gone, Host, Rings, Shared};
use core::sync::atomic::Ordering;
use crossbeam_channel::Receiver;
use dataplane::{Control, ControlOutput, Live, Mbuf, PortInfo, Runtime, Stop};
use representative::process::{Counters, Process, ProcessId};
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
const CLOCK_EVERY: Duration = Duration::from_millis(10);
/// Maximum time that a polling thread may take to leave, which includes waiting for some time-outs of
/// messages
const LEAVING_MAY_TAKE: Duration = Duration::from_secs(10);

/// Request of the application.
pub(super) enum Ask {
    Alive(ProcessId, bool),
    Leave,
}

struct Plane {
    clock: Clock,
    began: Instant,
    clock_told: Option<Instant>,
    /// Answers ARP and neighbour discovery, and rejects connection requests
    neighbours: rnic::Endpoint,
    frame: Vec<u8>,
    asked: Receiver<Ask>,
    /// Commands for which the polling thread's queue had no room
    commands: VecDeque<Command>,
    leaves_since: Option<Instant>,
    gone: bool,
}

#[allow(clippy::disallowed_methods, reason = "the control plane reads the clock, the process does not")]
fn now() -> Instant {
    Instant::now()
}

impl Plane {
    fn nanos(&self) -> Nanos {
        Nanos(self.began.elapsed().as_nanos() as u64)
    }
}

impl Control<Host> for Plane {
    fn on_event(&mut self, _worker: usize, _event: Gone, _out: &mut ControlOutput<'_, Host>) {
        self.gone = true;
    }

    fn on_punt(&mut self, _worker: usize, frame: Mbuf, port: PortId, out: &mut ControlOutput<'_, Host>) {
        let now = self.nanos();
        self.neighbours.on_frame(frame.bytes(), now);
        while self.neighbours.poll_transmit(now, &mut self.frame) {
            // A frame without room is lost, as in a network: the peer retries.
            if let Ok(frame) = out.make(&self.frame) {
                drop(out.send(0, frame, port));
            }
        }
    }

    fn on_tick(&mut self, _live: &Live<'_>, out: &mut ControlOutput<'_, Host>) -> bool {
        let now = now();
        for ask in self.asked.try_iter() {
            self.commands.push_back(match ask {
                Ask::Alive(id, alive) => Command::Alive(id, alive),
                Ask::Leave => {
                    self.leaves_since.get_or_insert(now);
                    Command::Leave
                }
            });
        }
        if self.clock_told.is_none_or(|told| now.duration_since(told) >= CLOCK_EVERY) {
            self.clock_told = Some(now);
            let nanos = self.nanos();
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
        let stuck = self.leaves_since.is_some_and(|since| now.duration_since(since) > LEAVING_MAY_TAKE);
        !self.gone && !stuck
    }

    fn on_link(&mut self, _port: &PortInfo, _up: bool) {}
}

/// Starts the control thread, which starts everything else. Returns when the polling thread is about to
/// start.
pub(super) fn start(
    config: Config,
    rings: Rings,
    shared: Arc<Shared>,
    asked: Receiver<Ask>,
) -> Result<(JoinHandle<()>, Arc<Counters>), InitError> {
    let (tell, told) = crossbeam_channel::bounded(1);
    let run = move || {
        // Tells the application that the thread has ended, for whatever reason.
        let _ended = Ended(Arc::clone(&shared));
        match begin(config, rings, shared, asked) {
            Ok((mut runtime, host, mut plane, counters)) => {
                if tell.send(Ok(counters)).is_ok() {
                    runtime.run(vec![host], &mut plane, &Stop::new());
                }
            }
            Err(error) => drop(tell.send(Err(error))),
        }
    };
    let thread = std::thread::Builder::new().name("onepipe".into()).spawn(run);
    let thread = thread.map_err(|error| InitError::Thread(error.to_string()))?;
    match told.recv() {
        Ok(Ok(counters)) => Ok((thread, counters)),
        Ok(Err(error)) => {
            drop(thread.join());
            Err(error)
        }
        Err(_) => {
            drop(thread.join());
            Err(InitError::Thread("it panicked".into()))
        }
    }
}

struct Ended(Arc<Shared>);

impl Drop for Ended {
    fn drop(&mut self) {
        self.0.ended.store(true, Ordering::Relaxed);
        self.0.gone.store(true, Ordering::Release);
    }
}

/// Everything that the control thread runs
type Begun = (Runtime, Host, Plane, Arc<Counters>);

fn begin(
    config: Config,
    rings: Rings,
    shared: Arc<Shared>,
    asked: Receiver<Ask>,
) -> Result<Begun, InitError> {
    let Config { runtime, process: settings } = config;
    // Validates the process's configuration before DPDK, which can be started only once.
    Process::new(settings.process([0; 6]))?;
    let runtime = Runtime::start(runtime).map_err(|error| InitError::Dataplane {
        what: error.what,
        remedy: error.remedy,
        log: error.log,
    })?;
    let port_mac = runtime.ports().next().map_or([0; 6], |port| port.mac);
    let seed = RandomState::new().build_hasher().finish();
    let mut config = settings.process(port_mac);
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
    shared.clock.store(process.timestamp(Nanos::ZERO).nanos(), Ordering::Release);
    let counters = process.counters();
    let host = Host::new(process, settings.tell_settled, rings, shared);
    let plane = Plane {
        clock: settings.clock,
        began: now(),
        clock_told: None,
        neighbours: rnic::Endpoint::new(interface, cm::Config::default(), seed),
        frame: Vec::new(),
        asked,
        commands: VecDeque::new(),
        leaves_since: None,
        gone: false,
    };
    Ok((runtime, host, plane, counters))
}
