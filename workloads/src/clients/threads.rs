//! Client machine: threads, each with its own connection to the server and one operation at a time.

use super::account::SharedAccount;
use super::region::Region;
use super::verbs::{Posted, Stopped, Verbs};
use core::future::Future;
use core::net::IpAddr;
use core::pin::Pin;
use core::task::{Context, Poll, Waker};
use core::{fmt, mem};
use rnic::cm::{Conn, Event as CmEvent, PortSpace, service_id_of};
use rnic::{
    Access, App, Buffer, Completion, ConnParam, Cq, Data, Mr, Operation, Pd, QpError, QpInit, Rnic,
    SendRequest, Sge, Status,
};
use rocev2::Qpn;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use switch::Nanos;

/// Virtual address of the landing zone, where fetched bytes arrive
const LANDING_VA: u64 = 0x5000_0000_0000;
/// Maximum number of requests of a thread that are posted to the NIC and not complete
const MAX_SEND: usize = 128;

/// A thread's future. Only the completions of its requests and timers advance it.
pub type Thread = Pin<Box<dyn Future<Output = Result<(), Stopped>> + Send>>;

/// Initial state of a thread.
#[derive(Debug)]
pub struct Start {
    /// Number of the thread on its machine, from 0
    pub number: usize,
    /// Incarnation: number of earlier starts, after each of which the connection was lost
    pub incarnation: u32,
    /// Connection
    pub verbs: Verbs,
    /// Memory of the server
    pub regions: Vec<Region>,
}

/// Program of a client machine's threads.
pub trait Program: Send + 'static {
    /// Returns the future of a thread that has a connection.
    fn thread(&mut self, start: Start) -> Thread;
}

impl<F: FnMut(Start) -> Thread + Send + 'static> Program for F {
    fn thread(&mut self, start: Start) -> Thread {
        self(start)
    }
}

/// Method by which threads get their connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConnectMode {
    /// Through the communication manager, with this server address and port (TCP port space).
    Cm(IpAddr, u16),
    /// Out of band, as most RDMA programs do: QPNs, PSNs and regions are exchanged elsewhere, and set by
    /// [`Threads::prepare`] and [`Threads::begin`].
    OutOfBand,
}

/// Configuration of a client machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ThreadsConfig {
    /// Number of threads
    pub threads: usize,
    /// Method by which they get their connections
    pub connect: ConnectMode,
    /// Exponent `n` of the NIC's acknowledgement timeout of 4.096 us times 2^n
    pub ack_timeout: u8,
    /// Number of retries of a request; [`rnic::ReadyToSend::NO_LIMIT`] for no limit
    pub retry_count: u8,
    /// Landing zone of a thread in bytes: the maximum that its outstanding READs and atomics fetch together,
    /// and so that of one READ
    pub landing_len: u32,
    /// Delay after which a thread that lost its connection starts again; `None` for never
    pub reconnect_after: Option<Nanos>,
}

impl ThreadsConfig {
    /// Returns a configuration with the timeouts that most programs use: seven retries, 67 ms each.
    pub const fn new(threads: usize, connect: ConnectMode) -> Self {
        let (ack_timeout, retry_count) = (14, 7);
        Self { threads, connect, ack_timeout, retry_count, landing_len: 16 << 10, reconnect_after: None }
    }
}

enum State {
    /// Waits to be connected: out of band, or at this time.
    Waiting(Option<Nanos>),
    Connecting,
    Running(Thread),
    Ended(Result<(), Stopped>),
}

/// A request that was posted to the NIC and has not completed.
#[derive(Debug)]
struct Outstanding {
    id: u64,
    operation: Operation,
    /// Offset in the thread's part of the landing zone, and length, in bytes
    landing: (u32, u32),
}

struct Worker {
    state: State,
    incarnation: u32,
    verbs: Verbs,
    qpn: Option<Qpn>,
    conn: Option<Conn>,
    outstanding: VecDeque<Outstanding>,
    /// Outstanding READs and atomics, and bytes of the landing zone used since there was none
    fetching: usize,
    landing_used: u32,
}

#[derive(Clone, Copy)]
struct Resources {
    pd: Pd,
    cq: Cq,
    landing: (Buffer, Mr),
}

/// Client machine with its threads.
pub struct Threads<P> {
    config: ThreadsConfig,
    program: P,
    account: SharedAccount,
    resources: Option<Resources>,
    workers: Vec<Worker>,
    by_qpn: BTreeMap<u32, usize>,
    by_conn: BTreeMap<Conn, usize>,
    /// Connections that are being closed, and their queue pairs
    closing: BTreeMap<Conn, Qpn>,
    /// Timers of threads; a thread may have been woken before
    wakes: BTreeSet<(Nanos, usize)>,
    /// Threads that have to be polled
    ready: BTreeSet<usize>,
}

impl<P: Program> Threads<P> {
    /// Returns a machine whose threads run `program`, and count their operations in `account`.
    pub fn new(config: ThreadsConfig, program: P, account: SharedAccount) -> Self {
        let worker = |_| Worker {
            state: State::Waiting(None),
            incarnation: 0,
            verbs: Verbs::new(account.clone()),
            qpn: None,
            conn: None,
            outstanding: VecDeque::new(),
            fetching: 0,
            landing_used: 0,
        };
        Self {
            workers: (0..config.threads).map(worker).collect(),
            config,
            program,
            account,
            resources: None,
            by_qpn: BTreeMap::new(),
            by_conn: BTreeMap::new(),
            closing: BTreeMap::new(),
            wakes: BTreeSet::new(),
            ready: BTreeSet::new(),
        }
    }

    /// Returns the number of threads.
    pub fn threads(&self) -> usize {
        self.workers.len()
    }

    /// Returns the number of threads that have a connection and have not ended.
    pub fn running(&self) -> usize {
        self.workers.iter().filter(|worker| matches!(worker.state, State::Running(_))).count()
    }

    /// Returns the number of threads that have completed their program.
    pub fn done(&self) -> usize {
        self.workers.iter().filter(|worker| matches!(worker.state, State::Ended(Ok(())))).count()
    }

    /// Returns the threads that ended early, with the reason.
    pub fn stopped(&self) -> impl Iterator<Item = (usize, Stopped)> {
        self.workers.iter().enumerate().filter_map(|(number, worker)| match worker.state {
            State::Ended(Err(why)) => Some((number, why)),
            _ => None,
        })
    }

    /// Creates a queue pair for a thread whose peer is exchanged out of band. It is in the reset state; the
    /// caller moves it to RTS and calls [`begin`](Self::begin).
    ///
    /// # Errors
    /// There is no room for it, or the machine has not started.
    pub fn prepare(&mut self, nic: &mut Rnic, number: usize) -> Result<Qpn, QpError> {
        let resources = self.resources.ok_or(QpError::Queue)?;
        let qpn = nic.create_qp(QpInit::rc(resources.pd, resources.cq, MAX_SEND, 1))?;
        self.workers[number].qpn = Some(qpn);
        self.by_qpn.insert(qpn.get(), number);
        Ok(qpn)
    }

    /// Starts a thread whose queue pair is in RTS.
    pub fn begin(&mut self, nic: &mut Rnic, number: usize, regions: Vec<Region>, now: Nanos) {
        let verbs = Verbs::new(self.account.clone());
        verbs.mailbox().now = now;
        let worker = &mut self.workers[number];
        worker.verbs = verbs.clone();
        worker.outstanding.clear();
        (worker.fetching, worker.landing_used) = (0, 0);
        let start = Start { number, incarnation: worker.incarnation, verbs, regions };
        worker.incarnation += 1;
        worker.state = State::Running(self.program.thread(start));
        self.poll_thread(nic, number, now);
    }

    fn connect(&mut self, nic: &mut Rnic, number: usize, now: Nanos) {
        let ConnectMode::Cm(server, port) = self.config.connect else {
            self.workers[number].state = State::Waiting(None);
            return;
        };
        let param = ConnParam {
            // A port for each thread, since each has its own UDP source port
            src_port: number as u16,
            ack_timeout: self.config.ack_timeout,
            retry_count: self.config.retry_count,
            ..ConnParam::default()
        };
        let service = service_id_of(PortSpace::Tcp, port);
        let conn =
            self.prepare(nic, number).ok().and_then(|qpn| nic.connect(qpn, server, service, param, now).ok());
        let Some(conn) = conn else {
            self.end(nic, number, Err(Stopped::Disconnected), now);
            return;
        };
        self.by_conn.insert(conn, number);
        let worker = &mut self.workers[number];
        (worker.conn, worker.state) = (Some(conn), State::Connecting);
    }

    fn on_cm(&mut self, nic: &mut Rnic, event: &CmEvent, now: Nanos) {
        let conn = event.conn();
        if event.is_last()
            && let Some(qpn) = self.closing.remove(&conn)
        {
            _ = nic.destroy_qp(qpn);
            return;
        }
        let Some(number) = self.by_conn.get(&conn).copied() else { return };
        match event {
            CmEvent::Replied { reply, .. } => match Region::list_from_bytes(&reply.private_data) {
                Some(regions) => self.begin(nic, number, regions, now),
                None => self.end(nic, number, Err(Stopped::Regions), now),
            },
            event if event.is_last() => {
                self.by_conn.remove(&conn);
                self.workers[number].conn = None;
                self.stop(nic, number, Stopped::Disconnected, now);
            }
            CmEvent::Disconnecting { .. } => self.stop(nic, number, Stopped::Disconnected, now),
            _ => {}
        }
    }

    /// Ends a thread's connection for a reason that the thread gets as an error.
    fn stop(&mut self, nic: &mut Rnic, number: usize, why: Stopped, now: Nanos) {
        let worker = &self.workers[number];
        worker.verbs.mailbox().stop(why);
        match worker.state {
            State::Running(_) => self.poll_thread(nic, number, now),
            State::Connecting => self.end(nic, number, Err(why), now),
            State::Waiting(_) | State::Ended(_) => {}
        }
    }

    fn on_completion(&mut self, nic: &Rnic, done: &Completion) {
        let (Some(number), Some(resources)) = (self.by_qpn.get(&done.qpn.get()).copied(), self.resources)
        else {
            return;
        };
        let worker = &mut self.workers[number];
        let mut mailbox = worker.verbs.mailbox();
        self.ready.insert(number);
        if done.status != Status::Success {
            mailbox.stop(Stopped::Failed(done.status));
            return;
        }
        let landing = &nic.bytes(resources.landing.0)[number * self.config.landing_len as usize..];
        // Unsignaled requests complete with the next signaled one.
        while let Some(outstanding) = worker.outstanding.pop_front() {
            let (at, len) = outstanding.landing;
            let fetched = &landing[at as usize..][..len as usize];
            let tally = &mut self.account.lock().tally;
            match outstanding.operation {
                Operation::Read(_) => tally.reads += 1,
                Operation::CompareSwap { compare, .. } => {
                    let swapped = fetched == compare.to_le_bytes();
                    *(if swapped { &mut tally.cas_succeeded } else { &mut tally.cas_failed }) += 1;
                }
                Operation::FetchAdd { .. } => tally.fetch_adds += 1,
                _ => tally.writes += 1,
            }
            worker.fetching -= usize::from(len > 0);
            mailbox.end(outstanding.id, fetched);
            if outstanding.id == done.id {
                break;
            }
        }
        if worker.fetching == 0 {
            worker.landing_used = 0;
        }
    }

    /// Posts as many of a thread's requests as the NIC accepts.
    fn post(&mut self, nic: &mut Rnic, number: usize) {
        let worker = &mut self.workers[number];
        let (Some(qpn), Some(resources)) = (worker.qpn, self.resources) else { return };
        let mut mailbox = worker.verbs.mailbox();
        while let Some(Posted { id, operation, bytes, fetches, signaled }) = mailbox.posted.pop_front() {
            let at = worker.landing_used;
            // Words stay aligned.
            let used = at.saturating_add(fetches.next_multiple_of(8));
            let landing = Sge {
                mr: resources.landing.1,
                va: LANDING_VA + number as u64 * u64::from(self.config.landing_len) + u64::from(at),
                len: fetches,
            };
            let has_room = used <= self.config.landing_len;
            let data = if fetches > 0 { Data::Memory(landing) } else { Data::Inline(bytes.clone()) };
            let request = SendRequest { signaled, ..SendRequest::new(id, operation, data) };
            match if has_room { nic.post_send(qpn, request) } else { Err(QpError::Full) } {
                Ok(()) => {
                    worker.outstanding.push_back(Outstanding { id, operation, landing: (at, fetches) });
                    worker.fetching += usize::from(fetches > 0);
                    worker.landing_used = used;
                }
                Err(QpError::Full) if !worker.outstanding.is_empty() => {
                    mailbox.posted.push_front(Posted { id, operation, bytes, fetches, signaled });
                    return;
                }
                Err(error) => {
                    mailbox.stop(if has_room { error.into() } else { QpError::Length.into() });
                    return;
                }
            }
        }
    }

    /// Polls a thread and posts its requests.
    fn poll_thread(&mut self, nic: &mut Rnic, number: usize, now: Nanos) {
        let mut notified = false;
        loop {
            let worker = &mut self.workers[number];
            let State::Running(thread) = &mut worker.state else { return };
            let verbs = worker.verbs.clone();
            {
                let mut mailbox = verbs.mailbox();
                (mailbox.now, mailbox.wake_at) = (now, None);
            }
            if let Poll::Ready(result) = thread.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
                self.end(nic, number, result, now);
                return;
            }
            self.post(nic, number);
            let (stopped, wake_at) = {
                let mailbox = verbs.mailbox();
                (mailbox.stopped(), mailbox.wake_at)
            };
            match stopped {
                // Polls the thread once more, so that it gets the error.
                Some(_) if !notified => notified = true,
                Some(why) => return self.end(nic, number, Err(why), now),
                None => {
                    self.wakes.extend(wake_at.map(|at| (at, number)));
                    return;
                }
            }
        }
    }

    /// Ends a thread that is complete, or whose connection is lost.
    fn end(&mut self, nic: &mut Rnic, number: usize, result: Result<(), Stopped>, now: Nanos) {
        let worker = &mut self.workers[number];
        worker.state = match (&result, self.config.reconnect_after) {
            (Err(Stopped::Failed(_) | Stopped::Post(_) | Stopped::Disconnected), Some(span)) => {
                self.wakes.insert((now + span, number));
                State::Waiting(Some(now + span))
            }
            _ => State::Ended(result),
        };
        let (qpn, conn) = (worker.qpn.take(), worker.conn.take());
        let Some(qpn) = qpn else { return };
        self.by_qpn.remove(&qpn.get());
        if let Some(conn) = conn {
            self.by_conn.remove(&conn);
        }
        match conn.filter(|conn| nic.disconnect(*conn, &[], now).is_ok()) {
            Some(conn) => _ = self.closing.insert(conn, qpn),
            None => _ = nic.destroy_qp(qpn),
        }
    }
}

impl<P: Program> App for Threads<P> {
    fn start(&mut self, nic: &mut Rnic, now: Nanos) {
        let threads = self.config.threads;
        let pd = nic.alloc_pd();
        let landing =
            nic.register_new(pd, threads * self.config.landing_len as usize, LANDING_VA, Access::LOCAL_WRITE);
        let cq = nic.create_cq(threads * MAX_SEND + 1);
        self.resources = cq.ok().zip(landing.ok()).map(|(cq, landing)| Resources { pd, cq, landing });
        // The restarted NIC has none of the previous resources.
        (self.by_qpn, self.by_conn, self.closing) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        (self.wakes, self.ready) = (BTreeSet::new(), BTreeSet::new());
        for number in 0..threads {
            let worker = &mut self.workers[number];
            (worker.qpn, worker.conn) = (None, None);
            if !matches!(worker.state, State::Ended(_)) {
                worker.state = State::Waiting(None);
                self.connect(nic, number, now);
            }
        }
    }

    fn run(&mut self, nic: &mut Rnic, now: Nanos) {
        while let Some(event) = nic.poll_cm_event() {
            self.on_cm(nic, &event, now);
        }
        while nic.poll_event().is_some() {}
        if let Some(resources) = self.resources {
            while let Some(done) = nic.poll_cq(resources.cq) {
                self.on_completion(nic, &done);
            }
        }
        while let Some((at, number)) = self.wakes.first().copied()
            && at <= now
        {
            self.wakes.pop_first();
            match self.workers[number].state {
                State::Waiting(Some(until)) if until <= now => self.connect(nic, number, now),
                _ => _ = self.ready.insert(number),
            }
        }
        for number in mem::take(&mut self.ready) {
            self.poll_thread(nic, number, now);
        }
    }

    fn next_timer(&self) -> Option<Nanos> {
        self.wakes.first().map(|(at, _)| *at)
    }
}

impl<P> fmt::Debug for Threads<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Threads").field("config", &self.config).finish_non_exhaustive()
    }
}
