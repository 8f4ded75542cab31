//! Brings everything up, runs it, takes it down.

use crate::config::Config;
use crate::config::Idle;
use crate::control::{Control, ControlOutput, Down, Up};
use crate::counters::WorkerCounters;
use crate::eal::{self, Eal, Log};
use crate::error::Error;
use crate::idle::{self, Idler};
use crate::memif::{Channels, Runs, Signal, park_interrupts};
use crate::port::{Port, PortInfo, Ports};
use crate::time::{self, Clock};
use crate::tx::{Exit, Handoff, Queue, Stock, Tx};
use crate::users::Users;
use crate::worker::{RxQueue, Worker};
use core::cell::RefCell;
use core::sync::atomic::{AtomicBool, Ordering};
use crossbeam_channel::Sender;
use rtrb::{Consumer, Producer, RingBuffer};
use std::sync::Arc;
use std::thread;
use std::time::Duration;
use switch::{Function, PortId};

/// How long the control plane sleeps when there is nothing to do. It polls rather than waits, because waking a thread
/// would cost a worker a system call.
const TICK: Duration = Duration::from_millis(1);

/// How long workers wait for the servers of memif clients, before they begin without
const SERVERS_MAY_TAKE: Duration = Duration::from_millis(100);

/// DPDK, up, with its ports started. Dropping it closes the ports and frees all.
#[derive(Debug)]
pub struct Runtime {
    // In the order in which they go down.
    ports: Ports,
    channels: RefCell<Channels>,
    config: Config,
    _eal: Eal,
}

/// A wish to end the run, which may come from a signal handler.
#[derive(Clone, Debug, Default)]
pub struct Stop(Arc<AtomicBool>);

impl Stop {
    /// Nobody wishes it yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// The flag itself, for a signal handler to set.
    pub fn flag(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.0)
    }

    /// Ends the run soon.
    pub fn stop(&self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// A running instance, as the control plane sees it.
pub struct Live<'a> {
    runtime: &'a Runtime,
    workers: &'a [Arc<WorkerCounters>],
}

impl Live<'_> {
    /// What each worker has counted
    pub fn workers(&self) -> &[Arc<WorkerCounters>] {
        self.workers
    }

    /// The ports, in the order of the configuration
    pub fn ports(&self) -> impl Iterator<Item = &PortInfo> {
        self.runtime.ports()
    }

    /// Time stamp counter cycles a second
    pub fn tsc_hz(&self) -> u64 {
        time::hz()
    }

    /// Whether each port has a link, as its device says now. That of a memif port has one as long as it has a peer.
    pub fn links(&self) -> Vec<bool> {
        self.runtime.ports.iter().map(Port::link_is_up).collect()
    }

    /// What each port's device has counted: frames lost before we saw them, and errors
    pub fn device_counters(&self) -> Vec<DeviceCounters> {
        self.runtime.device_counters()
    }
}

/// What a port's device has counted by itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeviceCounters {
    /// Frames lost because nobody fetched them in time
    pub missed: u64,
    /// Frames received with an error
    pub rx_errors: u64,
    /// Frames lost because no packet buffer was free
    pub no_buffer: u64,
    /// Frames that could not be sent
    pub tx_errors: u64,
    /// Frames that it says it gave us
    pub rx_frames: u64,
    /// Frames that it says it sent
    pub tx_frames: u64,
    /// Bytes of the frames that it says it gave us; 0 from drivers that count only frames (null, ring)
    pub rx_bytes: u64,
    /// Bytes of the frames that it says it sent; 0 from drivers that count only frames (null, ring)
    pub tx_bytes: u64,
}

impl DeviceCounters {
    /// Frames that were lost on this side, in one way or another.
    pub const fn lost(&self) -> u64 {
        self.missed + self.rx_errors + self.no_buffer + self.tx_errors
    }

    /// Of these, what has to do with sending: all that there is to say of a port that nobody fetches frames from.
    #[must_use]
    pub fn sending(self) -> Self {
        Self {
            tx_errors: self.tx_errors,
            tx_frames: self.tx_frames,
            tx_bytes: self.tx_bytes,
            ..Self::default()
        }
    }
}

/// What a run came to.
#[derive(Debug)]
pub struct Outcome {
    /// What each worker counted
    pub workers: Vec<Arc<WorkerCounters>>,
    /// What each port's device counted, since it was started
    pub devices: Vec<DeviceCounters>,
    /// What it had counted when this run began
    pub devices_before: Vec<DeviceCounters>,
    /// Time stamp counter cycles a second
    pub tsc_hz: u64,
}

impl Runtime {
    /// Starts DPDK and the ports. Once a process.
    pub fn start(config: Config) -> Result<Self, Error> {
        let channels = Channels::open(&config)?;
        let eal = Eal::start(&config, &channels)?;
        let log = Log::capture();
        let ports = Ports::start(&config);
        let log = log.finish();
        // On failure the ports are gone before the EAL, which is declared earlier.
        let ports = ports.map_err(|error| error.with_log(log))?;
        Ok(Self { ports, channels: channels.into(), config, _eal: eal })
    }

    /// DPDK's version, such as `DPDK 22.11.11`
    pub fn version() -> String {
        eal::version()
    }

    /// The ports, in the order of the configuration
    pub fn ports(&self) -> impl Iterator<Item = &PortInfo> {
        self.ports.iter().map(|port| &port.info)
    }

    fn device_counters(&self) -> Vec<DeviceCounters> {
        let counters = |port: &Port| {
            let stats = port.stats();
            DeviceCounters {
                missed: stats.imissed,
                rx_errors: stats.ierrors,
                no_buffer: stats.rx_nombuf,
                tx_errors: stats.oerrors,
                rx_frames: stats.ipackets,
                tx_frames: stats.opackets,
                rx_bytes: stats.ibytes,
                tx_bytes: stats.obytes,
            }
        };
        self.ports.iter().map(counters).collect()
    }

    /// Runs a function on each worker, and the control plane on the calling thread, until `stop` or until the control
    /// plane ends it. Returns when the workers have drained.
    ///
    /// # Panics
    /// If `functions` are not as many as the configuration has workers, or a worker panicked.
    pub fn run<F, C>(&mut self, functions: Vec<F>, control: &mut C, stop: &Stop) -> Outcome
    where
        F: Function + Send,
        C: Control<F>,
    {
        let count = self.config.workers.cpus.len();
        assert_eq!(functions.len(), count, "a function a worker");
        let counters: Vec<_> = (0..count).map(|_| Arc::new(WorkerCounters::new(self.ports.len()))).collect();
        let (up, from_workers) = crossbeam_channel::bounded(self.config.workers.control_queue);
        let (down, commands): (Vec<_>, Vec<_>) =
            (0..count).map(|_| crossbeam_channel::bounded(self.config.workers.control_queue)).unzip();
        let (producers, consumers) = handoff_rings(count, self.config.workers.handoff_ring);

        let parts = functions.into_iter().zip(commands).zip(producers).zip(consumers).enumerate();
        let workers: Vec<_> = parts
            .map(|(index, (((function, down), handoffs_out), handoffs_in))| {
                let mut rx = self.rx_queues_of(index, count);
                // Copies come from the pool of a port that the worker polls, which lies on its NUMA node.
                let pool = &self.ports[rx.first().map_or(0, |rx| rx.port.index())].pool;
                let pool = pool.raw();
                // These have no peer yet.
                let channels = self.channels.borrow();
                let mut away = Vec::with_capacity(rx.len());
                rx.retain(|rx| function.receives_from(rx.port));
                away.extend(rx.extract_if(.., |rx| channels.has(rx.port.index())));
                Worker {
                    index,
                    function,
                    tx: Tx {
                        exits: self.exits_of(index),
                        handoffs: handoffs_out,
                        share_from: self.ports.iter().map(|port| port.share_from).collect(),
                        pool,
                        stock: Stock::new(),
                        counters: Arc::clone(&counters[index]),
                    },
                    rx,
                    away,
                    handoffs: handoffs_in,
                    up: up.clone(),
                    down,
                    clock: Clock::start(),
                    watch: None,
                    idler: Idler::new(self.config.workers.idle),
                }
            })
            .collect();
        drop(up);

        let live = Live { runtime: self, workers: &counters };
        let devices_before = self.device_counters();
        let devices: Vec<_> = self.ports.iter().map(|port| port.id).collect();
        let mut channels = self.channels.borrow_mut();
        channels.begin(count);
        let (quit, running) = (AtomicBool::new(false), Users::new(count));
        let mut out =
            ControlOutput { down: &down, pool: self.ports[0].pool.raw(), ports: self.ports.len() as u16 };
        // What workers say first should not be lost because a server that is there needs some milliseconds to answer.
        for _ in 0..SERVERS_MAY_TAKE.as_millis() / TICK.as_millis() {
            if !channels.is_calling() {
                break;
            }
            if !channels.tick(&devices, &mut Peers { down: &down, ports: &self.ports, control }) {
                thread::sleep(TICK);
            }
        }
        let sleeps = self.config.workers.idle == Idle::Sleep;
        thread::scope(|scope| {
            for (worker, &cpu) in workers.into_iter().zip(&self.config.workers.cpus) {
                let (quit, running) = (&quit, &running);
                thread::Builder::new()
                    .name(format!("worker-{}", worker.index))
                    .spawn_scoped(scope, move || run_worker(worker, cpu, sleeps, quit, running))
                    .expect("the system has a thread left");
            }
            // Also when the control plane panics, or the scope would wait for ever.
            let _quit_when_done = SetOnDrop(&quit);
            loop {
                let mut idle = true;
                for message in from_workers.try_iter().take(self.config.workers.control_queue) {
                    idle = false;
                    deliver(control, message, &mut out);
                }
                if !channels.is_empty() {
                    let mut runs = Peers { down: &down, ports: &self.ports, control };
                    idle &= !channels.tick(&devices, &mut runs);
                }
                // A worker that has gone before it was told to has panicked.
                let all_there = running.count() == count;
                if !control.on_tick(&live, &mut out) || stop.0.load(Ordering::Relaxed) || !all_there {
                    break;
                }
                if idle {
                    thread::sleep(TICK);
                }
            }
        });
        channels.end();
        for message in from_workers.try_iter() {
            deliver(control, message, &mut out);
        }
        Outcome { devices: self.device_counters(), devices_before, workers: counters, tsc_hz: time::hz() }
    }

    /// Receive queues go round the workers.
    fn rx_queues_of(&self, worker: usize, workers: usize) -> Vec<RxQueue> {
        let all = self.ports.iter().enumerate().flat_map(|(index, port)| {
            (0..port.rx_queues).map(move |queue| RxQueue {
                device: port.id,
                queue,
                port: PortId(index as u16),
            })
        });
        all.enumerate().filter(|(n, _)| n % workers == worker).map(|(_, rx)| rx).collect()
    }

    /// A worker sends through its own queue of a port, or through the worker whose queue it is.
    fn exits_of(&self, worker: usize) -> Vec<Exit> {
        let channels = self.channels.borrow();
        let exit = |(index, port): (usize, &Port)| match worker % usize::from(port.tx_queues) {
            owner if owner == worker => {
                let queue = Queue::new(port.id, owner as u16);
                if channels.has(index) { Exit::Away(queue) } else { Exit::Queue(queue) }
            }
            owner => Exit::Worker(owner),
        };
        self.ports.iter().enumerate().map(exit).collect()
    }
}

/// What the channels of memif ports have to do with.
struct Peers<'a, F: Function, C> {
    down: &'a [Sender<Down<F>>],
    ports: &'a [Port],
    control: &'a mut C,
}

impl<F: Function, C: Control<F>> Runs for Peers<'_, F, C> {
    fn workers(&self) -> usize {
        self.down.len()
    }

    fn tell(&mut self, worker: usize, signal: Signal) -> bool {
        self.down[worker].try_send(Down::Port(signal)).is_ok()
    }

    fn link(&mut self, port: usize, up: bool) {
        self.control.on_link(&self.ports[port].info, up);
    }

    fn refused(&mut self, port: usize, why: &str) {
        self.control.on_refused(&self.ports[port].info, why);
    }
}

impl Drop for Runtime {
    fn drop(&mut self) {
        if !self.channels.borrow().is_empty() {
            park_interrupts();
        }
    }
}

fn deliver<F: Function, C: Control<F>>(control: &mut C, message: Up<F>, out: &mut ControlOutput<'_, F>) {
    match message {
        Up::Event { worker, event } => control.on_event(worker, event, out),
        Up::Punt { worker, frame, port } => control.on_punt(worker, frame, port, out),
        Up::Watch(watch) => drop(watch),
    }
}

/// A ring from each worker to each other: senders by origin and target, receivers by target.
type Rings = (Vec<Vec<Option<Producer<Handoff>>>>, Vec<Vec<Consumer<Handoff>>>);

fn handoff_rings(workers: usize, len: usize) -> Rings {
    let mut consumers: Vec<Vec<_>> = (0..workers).map(|_| Vec::new()).collect();
    let producers = (0..workers)
        .map(|from| {
            let to_each = |(to, consumers): (usize, &mut Vec<_>)| {
                (to != from).then(|| {
                    let (producer, consumer) = RingBuffer::new(len);
                    consumers.push(consumer);
                    producer
                })
            };
            consumers.iter_mut().enumerate().map(to_each).collect()
        })
        .collect();
    (producers, consumers)
}

struct SetOnDrop<'a>(&'a AtomicBool);

impl Drop for SetOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Counts a worker out when it panics; one that ends in order counts itself out.
struct CountPanic<'a>(&'a Users);

impl Drop for CountPanic<'_> {
    fn drop(&mut self) {
        if thread::panicking() {
            self.0.leave(|| {});
        }
    }
}

fn run_worker<F: Function>(
    worker: Worker<F>,
    cpu: Option<usize>,
    sleeps: bool,
    quit: &AtomicBool,
    running: &Users,
) {
    let _count_panic = CountPanic(running);
    if sleeps {
        idle::wake_on_time();
    }
    if let Some(id) = cpu {
        // A CPU that went away meanwhile costs speed, not correctness.
        core_affinity::set_for_current(core_affinity::CoreId { id });
    }
    let _registered = Registered::new();
    worker.run(quit, running);
}

/// Registration of a thread with the EAL. A worker that panics gives it up too, or the buffers in the thread's caches would be
/// out of reach of the next run's.
struct Registered(bool);

impl Registered {
    /// Gives the thread a cache in each pool, unless the EAL has too many threads.
    fn new() -> Self {
        // SAFETY: the EAL is up, and the thread is not registered.
        Self(unsafe { dpdk_sys::rte_thread_register() } == 0)
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        if self.0 {
            // SAFETY: the thread is registered, and has given up everything of DPDK's.
            unsafe { dpdk_sys::rte_thread_unregister() };
        }
    }
}
