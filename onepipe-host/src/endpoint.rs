//! The application's interface to a process that runs in threads of its own (1Pipe, Table 1 and section 6.1).

mod control;
mod management;
mod reliable;
mod types;
mod wait;

use crate::config::Config;
use crate::function::{ORIGIN, ProcessFunction, Rings, Shared, decode_origin};
use crate::ring::{MAX_INLINE, Reader, Writer, ring};
use crate::service::Inbox;
use crate::submit::{self, Limits};
use control::Request;
use core::fmt;
use core::sync::atomic::Ordering;
use core::time::Duration;
use onepipe::Process;
use onepipe::Timestamp;
use onepipe::process::{
    self, ConfigError, Counters, Event, Message, ProcessId, Scattering, SendError, member,
};
use rtrb::{Consumer, RingBuffer};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

pub use types::{Failed, Stall};

/// Maximum number of events waiting for the application; further ones stay with the process, and count there
/// as not settled
const MAX_EVENTS: usize = 4096;
/// Maximum number of requests waiting for the control thread, which polls every millisecond
const MAX_REQUESTS: usize = 1024;
/// Maximum number of reports of stalls that are kept for the application
const MAX_STALLS: usize = 2;
/// Reason why an endpoint did not start.
#[derive(Debug, thiserror::Error)]
pub enum InitError {
    /// DPDK or the port failed to start
    #[error("{what}; {remedy}")]
    Dataplane {
        /// What is wrong
        what: String,
        /// What to do about it
        remedy: String,
        /// DPDK's log output
        log: String,
    },
    /// The process's configuration is invalid
    #[error("invalid process configuration: {0}")]
    Process(#[from] ConfigError),
    /// The configuration does not have exactly one port and one worker
    #[error("{ports} ports and {workers} workers are configured; a process needs exactly one of each")]
    Shape {
        /// Number of configured ports
        ports: usize,
        /// Number of configured workers
        workers: usize,
    },
    /// The controllers cannot be reached as configured
    #[error("[controller]: {0}")]
    Controller(String),
    /// The control thread did not start, or panicked
    #[error("the control thread failed: {0}")]
    Thread(String),
}

/// Counters of a process, and those of its membership if there is a controller
type AllCounters = (Arc<Counters>, Option<Arc<member::Counters>>);

/// Threads of an endpoint, and the state that all handles share.
struct Running {
    shared: Arc<Shared>,
    counters: Arc<Counters>,
    own: ProcessId,
    peers: Vec<ProcessId>,
    requests: crossbeam_channel::Sender<Request>,
    has_controller: bool,
    member_counters: Option<Arc<member::Counters>>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Running {
    /// Leaves, and waits until the process has left, whichever thread initiated that.
    fn end(&self) {
        self.shared.closing.store(true, Ordering::Relaxed);
        let mut thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(thread) = thread.take() {
            // If the queue is full, the control thread empties it; if the thread has ended, no request is
            // needed.
            _ = self.requests.send(Request::Leave);
            // A panic there was printed, and cannot be handled here.
            drop(thread.join());
        }
        // For an endpoint without a thread, which ends here.
        self.shared.closed.store(true, Ordering::Release);
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.end();
    }
}

/// Handle of an endpoint, for any thread. Cheap to clone. The endpoint runs as long as a handle, sender or
/// receiver of it exists, or until [`exit`](Self::exit).
#[derive(Clone)]
pub struct Handle(Arc<Running>);

impl Handle {
    /// Returns 1Pipe's time (1Pipe, Table 1, `onepipe_get_timestamp`) as last published by the polling
    /// thread, at most a beacon interval ago. It never goes back. It is later than every message received,
    /// and every message sent afterwards has the same or a later timestamp. 0 while the process waits for the time of
    /// its network (`clock_from = "beacons"`).
    pub fn timestamp(&self) -> Timestamp {
        Timestamp::new(self.0.shared.clock.load(Ordering::Acquire))
    }

    /// Returns the best-effort and the commit barrier of the process's link, if they are known.
    pub fn barriers(&self) -> (Option<Timestamp>, Option<Timestamp>) {
        let shared = &self.0.shared;
        let timestamp = |barrier: u64| (barrier != Shared::NONE).then(|| Timestamp::new(barrier));
        (timestamp(shared.barrier.load(Ordering::Relaxed)), timestamp(shared.commit.load(Ordering::Relaxed)))
    }

    /// Returns whether the process has received a barrier and accepts messages that are stamped now; see
    /// [`Process::is_open`](onepipe::Process::is_open). Messages to processes that are not open yet fail as
    /// [`NotAcknowledged`](crate::Failure::NotAcknowledged).
    pub fn is_open(&self) -> bool {
        self.0.shared.open.load(Ordering::Relaxed)
    }

    /// Returns the process's counters, which stay up to date.
    pub fn counters(&self) -> &Counters {
        &self.0.counters
    }

    /// Returns the number of this process.
    pub fn id(&self) -> ProcessId {
        self.0.own
    }

    /// Returns the peers, in the order of the configuration.
    pub fn peers(&self) -> &[ProcessId] {
        &self.0.peers
    }

    /// Sets whether a process is alive, as the control plane has determined. From now on messages to a dead
    /// process are refused; those in flight to it fail within milliseconds. Returns false if the process is
    /// not in the table of peers, or if this endpoint has ended.
    pub fn set_alive(&self, id: ProcessId, alive: bool) -> bool {
        let Some(index) = self.0.peers.iter().position(|peer| *peer == id) else { return false };
        self.0.shared.dead[index].store(!alive, Ordering::Relaxed);
        self.0.requests.send(Request::Alive(id, alive)).is_ok()
    }

    /// Returns whether the endpoint's threads run, and it has not been requested to leave.
    pub fn is_running(&self) -> bool {
        !self.0.shared.closing.load(Ordering::Relaxed)
    }

    /// Returns whether the process has left, or its threads have ended: messages delivered before can still
    /// be received, and no more will be delivered. While the process leaves, some may. (For an endpoint
    /// [without threads](Endpoint::without_threads), returns whether the application's side has ended.)
    pub fn has_ended(&self) -> bool {
        self.0.shared.closed.load(Ordering::Acquire)
    }

    /// Returns whether the threads have ended because the port lost its link, which ends them if
    /// [`Config::runtime`] has [`OnLinkLoss::Exit`](dataplane::config::OnLinkLoss::Exit), or because its card is
    /// to be unplugged.
    pub fn has_lost_link(&self) -> bool {
        self.has_ended() && self.0.shared.lost_link.load(Ordering::Relaxed)
    }

    /// Leaves (1Pipe, Table 1, `onepipe_exit`): waits some timeouts for messages to be acknowledged; then
    /// beacons announce that nothing follows, so that no receiver waits for this process; then its threads
    /// end. Returns when they have. Dropping all handles, senders and receivers of the endpoint does the
    /// same. Messages delivered, and failures, before that can still be received and are called back;
    /// messages that another thread sends meanwhile may be lost without an event.
    pub fn exit(&self) {
        self.0.end();
    }
}

impl fmt::Debug for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Handle").field("id", &self.0.own).field("running", &self.is_running()).finish()
    }
}

/// Sending half of an endpoint.
pub struct Sender {
    ring: Writer<0>,
    limits: Limits,
    reliable_limits: Limits,
    /// Number of scatterings accepted
    accepted: u64,
    /// Buffer for records that are passed on as a vector
    long_record: Vec<u8>,
    handle: Handle,
}

impl Sender {
    /// Sends messages to any processes, this one included, as one scattering with one timestamp (1Pipe, Table
    /// 1, `onepipe_unreliable_send`). Several messages for one process arrive in their order, all or none.
    /// The bytes are copied; the call does not block. See
    /// [`Process::unreliable_send`](onepipe::Process::unreliable_send).
    ///
    /// # Errors
    /// Nothing of the scattering is sent. [`SendError::Full`] is temporary, as long as the
    /// application receives; the others are not. If a receiver is set dead before the polling thread has read
    /// the scattering, all of it fails as [`Failure::Dead`](crate::Failure::Dead).
    #[inline]
    pub fn unreliable_send(&mut self, messages: &[(ProcessId, &[u8])]) -> Result<Scattering, SendError> {
        let shared = &self.handle.0.shared;
        if shared.closing.load(Ordering::Relaxed) {
            return Err(SendError::Left);
        }
        self.limits.check(messages, |index| shared.dead[index].load(Ordering::Relaxed))?;
        self.submit(messages, false)
    }

    /// Passes a scattering to the polling thread.
    #[inline]
    fn submit(
        &mut self,
        messages: &[(ProcessId, &[u8])],
        is_reliable: bool,
    ) -> Result<Scattering, SendError> {
        let mark = |record: &mut [u8]| {
            if is_reliable {
                submit::mark_reliable(record);
            }
        };
        let len = submit::len(messages);
        let written = if len <= MAX_INLINE {
            let write = |record: &mut Vec<u8>| {
                let start = record.len();
                submit::write(messages, record);
                mark(&mut record[start..]);
            };
            self.ring.begin([], len).map(write).is_ok()
        } else {
            let mut record = core::mem::take(&mut self.long_record);
            record.clear();
            submit::write(messages, &mut record);
            mark(&mut record);
            self.ring.write_owned([], record).map_err(|record| self.long_record = record).is_ok()
        };
        self.ring.publish();
        if !written {
            return Err(SendError::Full);
        }
        self.accepted += 1;
        Ok(Scattering(self.accepted - 1))
    }

    /// Returns the handle.
    pub const fn handle(&self) -> &Handle {
        &self.handle
    }
}

/// Callback for messages that failed
type FailCallback = Box<dyn FnMut(Failed) + Send>;
/// Callback for a barrier that stands still or rises again
type StallCallback = Box<dyn FnMut(Stall) + Send>;

/// Receiving half of an endpoint, for messages and events.
pub struct Receiver {
    ring: Reader<ORIGIN>,
    events: Consumer<Event>,
    callback: Option<FailCallback>,
    stall_callback: Option<StallCallback>,
    /// Reports of stalls for `poll_event`, at most [`MAX_STALLS`]
    stalls: VecDeque<Event>,
    /// Reliable service, if there is a controller
    inbox: Option<Inbox>,
    handle: Handle,
}

impl Receiver {
    /// Returns the next message in the order of timestamp and sender, if there is one (1Pipe, Table 1,
    /// `onepipe_unreliable_recv`). Calls the callback for messages that have failed.
    #[inline]
    pub fn unreliable_recv(&mut self) -> Option<Message> {
        self.call_back();
        let mut message = None;
        self.ring.next(|head, body| {
            let (timestamp, src) = decode_origin(head);
            message = Some(Message { timestamp, src, payload: body.into_vec() });
            true
        });
        message
    }

    /// Passes the next message to `read` without copying it, and returns the result of `read`; `None` if
    /// there is no message. Calls the callback for messages that have failed.
    pub fn unreliable_recv_with<R>(
        &mut self,
        read: impl FnOnce(Timestamp, ProcessId, &[u8]) -> R,
    ) -> Option<R> {
        self.call_back();
        let mut result = None;
        self.ring.next(|head, body| {
            let (timestamp, src) = decode_origin(head);
            result = Some(read(timestamp, src, body.bytes()));
            true
        });
        result
    }

    /// Sets the callback for messages that fail (1Pipe, Table 1, `onepipe_send_fail_callback`), replacing an
    /// earlier one. It is called in the thread that receives or [polls events](Self::poll_event), during that
    /// call.
    pub fn send_fail_callback(&mut self, callback: impl FnMut(Failed) + Send + 'static) {
        self.callback = Some(Box::new(callback));
    }

    /// Sets the callback for a barrier that stands still, and for one that rises again, replacing an earlier
    /// one. It is called where [`send_fail_callback`](Self::send_fail_callback)'s is.
    pub fn stall_callback(&mut self, callback: impl FnMut(Stall) + Send + 'static) {
        self.stall_callback = Some(Box::new(callback));
    }

    /// Returns the next event: messages that failed, and a barrier that stands still or rises again, unless
    /// there is a callback for them, which is called; and scatterings that are settled, if
    /// [configured](crate::Settings::settled_events).
    #[inline]
    pub fn poll_event(&mut self) -> Option<Event> {
        self.call_back();
        if let Some(inbox) = &mut self.inbox {
            inbox.call_back();
        }
        self.stalls.pop_front().or_else(|| self.events.pop().ok())
    }

    /// Calls the callbacks for messages that have failed, and for stalls, up to the next event of another kind,
    /// which stays in the queue.
    #[inline]
    fn call_back(&mut self) {
        if self.callback.is_some() || self.stall_callback.is_some() {
            self.call_back_each();
        }
    }

    /// Calls the callbacks. Without one for stalls, these are kept for `poll_event`, so that they delay no failure;
    /// only the last two.
    fn call_back_each(&mut self) {
        while let Ok(event) = self.events.peek() {
            match (*event, Stall::of(event), &mut self.callback, &mut self.stall_callback) {
                (Event::SendFailed { scattering, timestamp, dst, part, why }, _, Some(callback), _) => {
                    callback(Failed { scattering, timestamp, dst, part, why });
                }
                (_, Some(stall), _, Some(callback)) => callback(stall),
                (event, Some(_), _, None) => {
                    if self.stalls.len() == MAX_STALLS {
                        self.stalls.pop_front();
                    }
                    self.stalls.push_back(event);
                }
                _ => break,
            }
            _ = self.events.pop();
        }
    }

    /// Returns the handle.
    pub const fn handle(&self) -> &Handle {
        &self.handle
    }
}

/// The application's ends of its rings, and the state shared with the process
struct AppEnds {
    shared: Arc<Shared>,
    sends: Writer<0>,
    deliveries: Reader<ORIGIN>,
    events: Consumer<Event>,
}

/// Creates the rings of an endpoint, and returns both ends.
fn create_rings(config: &process::Config) -> (AppEnds, Rings) {
    let (sends, to_process) = ring();
    let (from_process, deliveries) = ring();
    let (to_events, events) = RingBuffer::new(MAX_EVENTS);
    let shared = Arc::new(Shared::new(config.peers.len()));
    (AppEnds { shared, sends, deliveries, events }, (to_process, from_process, to_events))
}

/// Process of 1Pipe: both halves of an endpoint. See the [crate documentation](crate).
pub struct Endpoint {
    sender: Sender,
    receiver: Receiver,
}

impl Endpoint {
    /// Starts DPDK, the process's port, its polling thread and its control thread (1Pipe, Table 1,
    /// `onepipe_init`). Works once per program.
    ///
    /// # Errors
    /// The configuration is invalid, or DPDK, the port or the control thread did not start.
    pub fn init(config: Config) -> Result<Self, InitError> {
        let (ports, workers) = (config.runtime.ports.len(), config.runtime.workers.cpus.len());
        if (ports, workers) != (1, 1) {
            return Err(InitError::Shape { ports, workers });
        }
        let settings = config.process.clone();
        let (requests, requests_rx) = crossbeam_channel::bounded(MAX_REQUESTS);
        let (app, polling) = create_rings(&settings.process);
        let shared = Arc::clone(&app.shared);
        let (inbox, ends) = settings.controller.as_ref().map(reliable::create_rings).unzip();
        let (thread, (counters, member)) = control::start(config, (polling, ends), shared, requests_rx)?;
        Ok(Self::new((app, inbox), &settings.process, (counters, member), requests, Some(thread)))
    }

    /// Creates an endpoint without threads, and the switch function that runs its process on port 0. For
    /// measurements and simulations. [`Handle::exit`] and [`Handle::set_alive`] do not reach the process,
    /// because there is no control thread.
    ///
    /// # Errors
    /// The configuration is invalid.
    pub fn without_threads(
        config: &process::Config,
        settled_events: bool,
    ) -> Result<(Self, ProcessFunction), ConfigError> {
        let (app, polling) = create_rings(config);
        let shared = Arc::clone(&app.shared);
        let process = Process::new(config.clone())?;
        let counters = process.counters();
        let host = ProcessFunction::new(process, settled_events, polling, shared);
        let (requests, _) = crossbeam_channel::bounded(0);
        Ok((Self::new((app, None), config, (counters, None), requests, None), host))
    }

    fn new(
        (app, inbox): (AppEnds, Option<Inbox>),
        config: &process::Config,
        (counters, member_counters): AllCounters,
        requests: crossbeam_channel::Sender<Request>,
        thread: Option<JoinHandle<()>>,
    ) -> Self {
        let peers = config.peers.iter().map(|peer| peer.id).collect();
        let AppEnds { shared, sends, deliveries, events } = app;
        let thread = Mutex::new(thread);
        let handle = Handle(Arc::new(Running {
            shared,
            counters,
            own: config.own.id,
            peers,
            requests,
            has_controller: inbox.is_some(),
            member_counters,
            thread,
        }));
        let (limits, reliable_limits) = (Limits::of(config), Limits::of_reliable(config));
        let sender = Sender {
            ring: sends,
            limits,
            reliable_limits,
            accepted: 0,
            long_record: Vec::new(),
            handle: handle.clone(),
        };
        let receiver = Receiver {
            ring: deliveries,
            events,
            callback: None,
            stall_callback: None,
            stalls: VecDeque::new(),
            inbox,
            handle,
        };
        Self { sender, receiver }
    }

    /// Returns both halves, for two threads.
    pub fn split(self) -> (Sender, Receiver) {
        (self.sender, self.receiver)
    }

    /// Returns the handle.
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
    /// Nothing of the scattering is sent.
    #[inline]
    pub fn unreliable_send(&mut self, messages: &[(ProcessId, &[u8])]) -> Result<Scattering, SendError> {
        self.sender.unreliable_send(messages)
    }

    /// See [`Receiver::unreliable_recv`].
    #[inline]
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

    /// See [`Receiver::stall_callback`].
    pub fn stall_callback(&mut self, callback: impl FnMut(Stall) + Send + 'static) {
        self.receiver.stall_callback(callback);
    }

    /// See [`Receiver::poll_event`].
    #[inline]
    pub fn poll_event(&mut self) -> Option<Event> {
        self.receiver.poll_event()
    }

    /// Leaves; see [`Handle::exit`]. Then calls the callback for messages that have failed until then.
    pub fn exit(mut self) {
        self.handle().exit();
        while self.receiver.poll_event().is_some() {}
    }
}
