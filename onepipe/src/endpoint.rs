//! The application's side: the handle of a process that runs in threads of its own (1Pipe, Table 1 and section 6.1).

mod control;

use crate::config::Config;
use crate::function::{Host, ORIGIN, Rings, Shared, origin};
use crate::ring::{INLINE, Reader, Writer, ring};
use crate::submit::{self, Limits};
use control::Ask;
use core::fmt;
use core::sync::atomic::Ordering;
use core::time::Duration;
use representative::Process;
use representative::process::{
    self, ConfigError, Counters, Event, Failure, Message, ProcessId, Scattering, SendError,
};
use rocev2::onepipe::Timestamp;
use rtrb::{Consumer, RingBuffer};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Instant;

/// Events that wait for the application at most; what is more waits with the process, and counts there as not settled
const EVENTS: usize = 4096;
/// Things that the control thread is asked at once at most; it looks every millisecond
const ASKS: usize = 1024;
/// Who waits for a message looks so often before it lets others have the CPU, and so often before it sleeps
const SPINS: u32 = 256;
const YIELDS: u32 = 1024;
/// For so long
const NAP: Duration = Duration::from_micros(50);

/// Why an endpoint did not start.
#[derive(Debug, thiserror::Error)]
pub enum InitError {
    /// DPDK, or the port
    #[error("{what}; {remedy}")]
    Dataplane {
        /// What is wrong
        what: String,
        /// What to do about it
        remedy: String,
        /// What DPDK logged meanwhile
        log: String,
    },
    /// The process cannot be
    #[error("the process cannot be: {0}")]
    Process(#[from] ConfigError),
    /// A process has one port and one polling thread
    #[error("a process has one port and one worker, not {ports} and {workers}")]
    Shape {
        /// Ports of the configuration
        ports: usize,
        /// Its workers
        workers: usize,
    },
    /// The control thread did not start, or ended at once
    #[error("the control thread: {0}")]
    Thread(String),
}

/// A message that failed (Table 1, what `onepipe_send_fail_callback` is called with).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Failed {
    /// The scattering that it was part of
    pub scattering: Scattering,
    /// The scattering's timestamp, if it got one
    pub timestamp: Option<Timestamp>,
    /// The receiver
    pub dst: ProcessId,
    /// Which one it was in the call
    pub part: u32,
    /// Why
    pub why: Failure,
}

/// The threads of an endpoint, and what everybody may ask of it.
struct Running {
    shared: Arc<Shared>,
    counters: Arc<Counters>,
    own: ProcessId,
    peers: Vec<ProcessId>,
    asks: crossbeam_channel::Sender<Ask>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Running {
    /// Leaves, and waits until it has, whoever else does.
    fn end(&self) {
        self.shared.ended.store(true, Ordering::Relaxed);
        let mut thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(thread) = thread.take() {
            // Where the queue is full, the thread takes from it; where the thread is gone, nobody has to be asked.
            _ = self.asks.send(Ask::Leave);
            // A panic there was printed, and cannot be made good here.
            drop(thread.join());
        }
        // One that never had a thread ends with this.
        self.shared.gone.store(true, Ordering::Release);
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.end();
    }
}

/// What any thread may ask of an endpoint. Cheap to clone; the endpoint runs as long as a handle, a sender or a receiver of it is
/// there, or until [`exit`](Self::exit).
#[derive(Clone)]
pub struct Handle(Arc<Running>);

impl Handle {
    /// 1Pipe's clock (Table 1, `onepipe_get_timestamp`), as the polling thread told it last, a beacon interval ago at most. Never goes
    /// back. It is past every message that was received, and whatever is sent afterwards has a later timestamp, or the same.
    pub fn timestamp(&self) -> Timestamp {
        Timestamp::new(self.0.shared.clock.load(Ordering::Acquire))
    }

    /// The best-effort and the commit barrier of its link, as far as they are known.
    pub fn barriers(&self) -> (Option<Timestamp>, Option<Timestamp>) {
        let shared = &self.0.shared;
        let shown = |barrier: u64| (barrier != Shared::NONE).then(|| Timestamp::new(barrier));
        (shown(shared.barrier.load(Ordering::Relaxed)), shown(shared.commit.load(Ordering::Relaxed)))
    }

    /// What the process has counted so far, and goes on to count
    pub fn counters(&self) -> &Counters {
        &self.0.counters
    }

    /// Its number
    pub fn id(&self) -> ProcessId {
        self.0.own
    }

    /// Its peers, in the order of the configuration
    pub fn peers(&self) -> &[ProcessId] {
        &self.0.peers
    }

    /// Says whether a process is there, as the control plane knows. From now on nothing is taken for one that is not, and what is
    /// under way to it fails within milliseconds. False if it is not in the table, or if this endpoint has ended.
    pub fn set_alive(&self, id: ProcessId, alive: bool) -> bool {
        let Some(place) = self.0.peers.iter().position(|peer| *peer == id) else { return false };
        self.0.shared.dead[place].store(!alive, Ordering::Relaxed);
        self.0.asks.send(Ask::Alive(id, alive)).is_ok()
    }

    /// Whether its threads run, and it has not been told to leave.
    pub fn is_running(&self) -> bool {
        !self.0.shared.ended.load(Ordering::Relaxed)
    }

    /// Whether it has left, or its threads have ended: what was delivered until then is there, and nothing more will come. While it
    /// leaves, something may. (Of one [without threads](Endpoint::without_threads) it says that this end is gone.)
    pub fn has_ended(&self) -> bool {
        self.0.shared.gone.load(Ordering::Acquire)
    }

    /// Leaves (Table 1, `onepipe_exit`): what was sent is given some time-outs to be acknowledged, then beacons say that nobody has
    /// to wait for this process, then its threads end. Returns when they have. The same happens when everything of the
    /// endpoint is dropped. What was delivered and what failed until then can still be received and is called back; what another
    /// thread sends meanwhile may be lost without a word.
    pub fn exit(&self) {
        self.0.end();
    }
}

impl fmt::Debug for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Handle").field("id", &self.0.own).field("running", &self.is_running()).finish()
    }
}

/// The half of an endpoint that sends.
pub struct Sender {
    ring: Writer<0>,
    limits: Limits,
    /// Scatterings that were taken
    given: u64,
    /// Memory for a record that is passed on as a vector
    long: Vec<u8>,
    handle: Handle,
}

impl Sender {
    /// Sends messages to any processes, itself included, all at one time (Table 1, `onepipe_unreliable_send`). Several may go to one
    /// process, and arrive in their order, all or none. The bytes are copied; nothing is waited for. See
    /// [`Process::unreliable_send`](representative::Process::unreliable_send).
    ///
    /// # Errors
    /// Nothing of it is sent. [`SendError::Full`] goes away by itself, as long as the application receives; others do not. A
    /// receiver that fails before the polling thread has looked fails all of the scattering as [`Failure::Dead`].
    pub fn unreliable_send(&mut self, messages: &[(ProcessId, &[u8])]) -> Result<Scattering, SendError> {
        let shared = &self.handle.0.shared;
        if shared.ended.load(Ordering::Relaxed) {
            return Err(SendError::Left);
        }
        self.limits.check(messages, |place| shared.dead[place].load(Ordering::Relaxed))?;
        let len = submit::len(messages);
        let written = if len <= INLINE {
            self.ring.begin([], len).map(|record| submit::write(messages, record)).is_ok()
        } else {
            let mut record = core::mem::take(&mut self.long);
            record.clear();
            submit::write(messages, &mut record);
            self.ring.write_owned([], record).map_err(|record| self.long = record).is_ok()
        };
        self.ring.publish();
        if !written {
            return Err(SendError::Full);
        }
        self.given += 1;
        Ok(Scattering(self.given - 1))
    }

    /// What any thread may ask
    pub const fn handle(&self) -> &Handle {
        &self.handle
    }
}

/// What is called of messages that failed
type FailCallback = Box<dyn FnMut(Failed) + Send>;

/// The half of an endpoint that receives messages and events.
pub struct Receiver {
    ring: Reader<ORIGIN>,
    events: Consumer<Event>,
    callback: Option<FailCallback>,
    handle: Handle,
}

impl Receiver {
    /// The next message in the order of timestamp and sender (Table 1, `onepipe_unreliable_recv`), if one is there. Calls back of what
    /// has failed.
    pub fn unreliable_recv(&mut self) -> Option<Message> {
        self.call_back();
        let mut message = None;
        self.ring.next(|head, body| {
            let (timestamp, src) = origin(head);
            message = Some(Message { timestamp, src, payload: body.into_vec() });
            true
        });
        message
    }

    /// The same, which shows the message where it lies and copies nothing. What `read` says of it; `None` if there is none.
    pub fn unreliable_recv_with<R>(
        &mut self,
        read: impl FnOnce(Timestamp, ProcessId, &[u8]) -> R,
    ) -> Option<R> {
        self.call_back();
        let mut result = None;
        self.ring.next(|head, body| {
            let (timestamp, src) = origin(head);
            result = Some(read(timestamp, src, body.bytes()));
            true
        });
        result
    }

    /// The next message, which is waited for, if none is there, for so long, and no longer than until the endpoint [has
    /// ended](Handle::has_ended). Calls back of what fails meanwhile.
    pub fn recv_timeout(&mut self, timeout: Duration) -> Option<Message> {
        let mut began = None;
        for looks in 0u32.. {
            // Asked before: what was delivered until it ended is still taken.
            let has_ended = self.handle.has_ended();
            if let Some(message) = self.unreliable_recv() {
                return Some(message);
            }
            if has_ended {
                return None;
            }
            match looks {
                ..SPINS => core::hint::spin_loop(),
                SPINS..YIELDS => std::thread::yield_now(),
                _ => std::thread::sleep(NAP.min(timeout)),
            }
            let time = now();
            if time.duration_since(*began.get_or_insert(time)) >= timeout {
                return self.unreliable_recv();
            }
        }
        None
    }

    /// Has `callback` called of each message that fails (Table 1, `onepipe_send_fail_callback`), in the thread that receives or
    /// [polls events](Self::poll_event), and while it does. It takes the place of the one before.
    pub fn send_fail_callback(&mut self, callback: impl FnMut(Failed) + Send + 'static) {
        self.callback = Some(Box::new(callback));
    }

    /// The next event: messages that failed, unless there is a callback, which is called; and scatterings that are settled, if
    /// [the configuration](crate::Settings::tell_settled) asks for those.
    pub fn poll_event(&mut self) -> Option<Event> {
        loop {
            match (self.events.pop().ok()?, &mut self.callback) {
                (Event::SendFailed { scattering, timestamp, dst, part, why }, Some(callback)) => {
                    callback(Failed { scattering, timestamp, dst, part, why });
                }
                (event, _) => return Some(event),
            }
        }
    }

    /// Calls back of what has failed; other events stay where they are.
    fn call_back(&mut self) {
        let Some(callback) = &mut self.callback else { return };
        while let Ok(&Event::SendFailed { scattering, timestamp, dst, part, why }) = self.events.peek() {
            _ = self.events.pop();
            callback(Failed { scattering, timestamp, dst, part, why });
        }
    }

    /// What any thread may ask
    pub const fn handle(&self) -> &Handle {
        &self.handle
    }
}

#[allow(
    clippy::disallowed_methods,
    reason = "the application's thread waits, and nothing of the protocol depends on it"
)]
fn now() -> Instant {
    Instant::now()
}

/// The application's ends of its rings, and what it reads of the process
struct Near {
    shared: Arc<Shared>,
    sends: Writer<0>,
    deliveries: Reader<ORIGIN>,
    events: Consumer<Event>,
}

/// Both ends of an endpoint's rings.
fn ends(config: &process::Config) -> (Near, Rings) {
    let (sends, to_process) = ring();
    let (from_process, deliveries) = ring();
    let (to_events, events) = RingBuffer::new(EVENTS);
    let shared = Arc::new(Shared::new(config.peers.len()));
    (Near { shared, sends, deliveries, events }, (to_process, from_process, to_events))
}

/// A process of 1Pipe: both halves. See the [crate's page](crate).
pub struct Endpoint {
    sender: Sender,
    receiver: Receiver,
}

impl Endpoint {
    /// Starts DPDK, the process's port, its polling thread and its control thread (Table 1, `onepipe_init`). Once in a program.
    pub fn init(config: Config) -> Result<Self, InitError> {
        let (ports, workers) = (config.runtime.ports.len(), config.runtime.workers.cpus.len());
        if (ports, workers) != (1, 1) {
            return Err(InitError::Shape { ports, workers });
        }
        let settings = config.process.clone();
        let (asks, asked) = crossbeam_channel::bounded(ASKS);
        let (near, far) = ends(&settings.process);
        let shared = Arc::clone(&near.shared);
        let (thread, counters) = control::start(config, far, shared, asked)?;
        Ok(Self::new(near, &settings.process, counters, asks, Some(thread)))
    }

    /// An endpoint without threads: whoever has the other half runs it, as a switch function on port 0. For programs that are
    /// measured or simulated; what is asked of its handle beyond what is shared, nobody hears.
    pub fn without_threads(
        config: &process::Config,
        tell_settled: bool,
    ) -> Result<(Self, Host), ConfigError> {
        let (near, far) = ends(config);
        let shared = Arc::clone(&near.shared);
        let process = Process::new(config.clone())?;
        let counters = process.counters();
        let host = Host::new(process, tell_settled, far, shared);
        let (asks, _) = crossbeam_channel::bounded(0);
        Ok((Self::new(near, config, counters, asks, None), host))
    }

    fn new(
        near: Near,
        config: &process::Config,
        counters: Arc<Counters>,
        asks: crossbeam_channel::Sender<Ask>,
        thread: Option<JoinHandle<()>>,
    ) -> Self {
        let peers = config.peers.iter().map(|peer| peer.id).collect();
        let Near { shared, sends, deliveries, events } = near;
        let thread = Mutex::new(thread);
        let handle = Handle(Arc::new(Running { shared, counters, own: config.own.id, peers, asks, thread }));
        let limits = Limits::of(config);
        let sender = Sender { ring: sends, limits, given: 0, long: Vec::new(), handle: handle.clone() };
        let receiver = Receiver { ring: deliveries, events, callback: None, handle };
        Self { sender, receiver }
    }

    /// Both halves, for two threads.
    pub fn split(self) -> (Sender, Receiver) {
        (self.sender, self.receiver)
    }

    /// What any thread may ask
    pub const fn handle(&self) -> &Handle {
        self.sender.handle()
    }

    /// See [`Handle::timestamp`].
    pub fn timestamp(&self) -> Timestamp {
        self.handle().timestamp()
    }

    /// See [`Handle::barriers`].
    pub fn barriers(&self) -> (Option<Timestamp>, Option<Timestamp>) {
        self.handle().barriers()
    }

    /// See [`Handle::counters`].
    pub fn counters(&self) -> &Counters {
        self.handle().counters()
    }

    /// See [`Handle::set_alive`].
    pub fn set_alive(&self, id: ProcessId, alive: bool) -> bool {
        self.handle().set_alive(id, alive)
    }

    /// See [`Sender::unreliable_send`].
    ///
    /// # Errors
    /// Nothing of it is sent.
    pub fn unreliable_send(&mut self, messages: &[(ProcessId, &[u8])]) -> Result<Scattering, SendError> {
        self.sender.unreliable_send(messages)
    }

    /// See [`Receiver::unreliable_recv`].
    pub fn unreliable_recv(&mut self) -> Option<Message> {
        self.receiver.unreliable_recv()
    }

    /// See [`Receiver::unreliable_recv_with`].
    pub fn unreliable_recv_with<R>(
        &mut self,
        read: impl FnOnce(Timestamp, ProcessId, &[u8]) -> R,
    ) -> Option<R> {
        self.receiver.unreliable_recv_with(read)
    }

    /// See [`Receiver::recv_timeout`].
    pub fn recv_timeout(&mut self, timeout: Duration) -> Option<Message> {
        self.receiver.recv_timeout(timeout)
    }

    /// See [`Receiver::send_fail_callback`].
    pub fn send_fail_callback(&mut self, callback: impl FnMut(Failed) + Send + 'static) {
        self.receiver.send_fail_callback(callback);
    }

    /// See [`Receiver::poll_event`].
    pub fn poll_event(&mut self) -> Option<Event> {
        self.receiver.poll_event()
    }

    /// See [`Handle::exit`]. Calls back of what has failed by then.
    pub fn exit(mut self) {
        self.handle().exit();
        while self.receiver.poll_event().is_some() {}
    }
}
