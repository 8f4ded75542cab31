//! A client machine: threads, each with a connection of its own to the server and one thing to do at a time.

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
    SendRequest, Sge, Status, Transport,
};
use rocev2::Qpn;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use switch::Nanos;

/// Where what is fetched lands
const LANDING_VA: u64 = 0x5000_0000_0000;
/// Requests of a thread that its NIC knows at once
const MAX_SEND: usize = 128;

/// What a thread does: a future that nothing but the completion of its requests, and time, brings on.
pub type Thread = Pin<Box<dyn Future<Output = Result<(), Stopped>> + Send>>;

/// What a thread begins with.
#[derive(Debug)]
pub struct Start {
    /// Its number among those of the machine, from 0
    pub number: usize,
    /// How often it has begun before, and lost its connection
    pub life: u32,
    /// Its connection
    pub verbs: Verbs,
    /// The server's memory
    pub regions: Vec<Region>,
}

/// What threads do.
pub trait Program: Send + 'static {
    /// A thread has a connection.
    fn thread(&mut self, start: Start) -> Thread;
}

impl<F: FnMut(Start) -> Thread + Send + 'static> Program for F {
    fn thread(&mut self, start: Start) -> Thread {
        self(start)
    }
}

/// How threads get their connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Connect {
    /// The communication manager asks the server, at this port (TCP port space).
    Cm(IpAddr, u16),
    /// QPNs, PSNs and regions are exchanged by other means, as most users do: by [`Threads::prepare`] and
    /// [`Threads::begin`].
    Elsewhere,
}

/// A client machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ThreadsConfig {
    /// How many threads
    pub threads: usize,
    /// How they get their connections
    pub connect: Connect,
    /// How long their NIC waits for an acknowledgement: 4.096 us times two to this
    pub ack_timeout: u8,
    /// How often a request is tried again; [`rnic::ReadyToSend::NO_LIMIT`] for no limit
    pub retry_count: u8,
    /// What a thread's READs and atomics under way may fetch together (bytes), and so one READ at most
    pub landing_len: u32,
    /// A thread that lost its connection begins anew after so long; never, if there is no such time
    pub reconnect_after: Option<Nanos>,
}

impl ThreadsConfig {
    /// So many threads, with the time-outs that most programs use: seven tries, 67 ms each.
    pub const fn new(threads: usize, connect: Connect) -> Self {
        let (ack_timeout, retry_count) = (14, 7);
        Self { threads, connect, ack_timeout, retry_count, landing_len: 16 << 10, reconnect_after: None }
    }
}

enum State {
    /// It is to be connected, by others or at this time.
    Waits(Option<Nanos>),
    Connecting,
    Runs(Thread),
    Over(Result<(), Stopped>),
}

/// A request that the NIC has.
#[derive(Debug)]
struct Outstanding {
    id: u64,
    operation: Operation,
    /// Where in the thread's part of the landing zone it fetches to, and how much (bytes)
    landing: (u32, u32),
}

struct Worker {
    state: State,
    life: u32,
    verbs: Verbs,
    qpn: Option<Qpn>,
    conn: Option<Conn>,
    outstanding: VecDeque<Outstanding>,
    /// READs and atomics among them, and the landing zone used since there was none (bytes)
    fetching: usize,
    landing_used: u32,
}

#[derive(Clone, Copy)]
struct Resources {
    pd: Pd,
    cq: Cq,
    landing: (Buffer, Mr),
}

/// A client machine with its threads.
pub struct Threads<P> {
    config: ThreadsConfig,
    program: P,
    account: SharedAccount,
    resources: Option<Resources>,
    workers: Vec<Worker>,
    by_qpn: BTreeMap<u32, usize>,
    by_conn: BTreeMap<Conn, usize>,
    /// Connections that are being ended, and their queue pairs
    leaving: BTreeMap<Conn, Qpn>,
    /// Threads that want to go on at a time; some may have been woken before
    wakes: BTreeSet<(Nanos, usize)>,
    /// Threads that something has happened to
    ready: BTreeSet<usize>,
}

impl<P: Program> Threads<P> {
    /// A machine whose threads run this program, and count what they do there.
    pub fn new(config: ThreadsConfig, program: P, account: SharedAccount) -> Self {
        let worker = |_| Worker {
            state: State::Waits(None),
            life: 0,
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
            leaving: BTreeMap::new(),
            wakes: BTreeSet::new(),
            ready: BTreeSet::new(),
        }
    }

    /// How many there are
    pub fn threads(&self) -> usize {
        self.workers.len()
    }

    /// Threads that have a connection and are not done
    pub fn running(&self) -> usize {
        self.workers.iter().filter(|worker| matches!(worker.state, State::Runs(_))).count()
    }

    /// Threads that are done
    pub fn done(&self) -> usize {
        self.workers.iter().filter(|worker| matches!(worker.state, State::Over(Ok(())))).count()
    }

    /// Why threads have ended that were not done, by their numbers
    pub fn stopped(&self) -> impl Iterator<Item = (usize, Stopped)> {
        self.workers.iter().enumerate().filter_map(|(number, worker)| match worker.state {
            State::Over(Err(why)) => Some((number, why)),
            _ => None,
        })
    }

    /// A queue pair for a thread whose other side is learnt by other means than the communication manager. It is in the
    /// reset state: whoever knows the other side leads it to RTS, then calls [`begin`](Self::begin).
    ///
    /// # Errors
    /// There is no room for it, or the machine has not begun.
    pub fn prepare(&mut self, nic: &mut Rnic, number: usize) -> Result<Qpn, QpError> {
        let resources = self.resources.ok_or(QpError::Queue)?;
        let qpn = nic.create_qp(QpInit {
            transport: Transport::Rc,
            pd: resources.pd,
            send_cq: resources.cq,
            recv_cq: resources.cq,
            srq: None,
            max_send: MAX_SEND,
            max_recv: 1,
        })?;
        self.workers[number].qpn = Some(qpn);
        self.by_qpn.insert(qpn.get(), number);
        Ok(qpn)
    }

    /// A thread begins: its queue pair can send.
    pub fn begin(&mut self, nic: &mut Rnic, number: usize, regions: Vec<Region>, now: Nanos) {
        let verbs = Verbs::new(self.account.clone());
        verbs.mailbox().now = now;
        let worker = &mut self.workers[number];
        worker.verbs = verbs.clone();
        worker.outstanding.clear();
        (worker.fetching, worker.landing_used) = (0, 0);
        let start = Start { number, life: worker.life, verbs, regions };
        worker.life += 1;
        worker.state = State::Runs(self.program.thread(start));
        self.turn(nic, number, now);
    }

    fn connect(&mut self, nic: &mut Rnic, number: usize, now: Nanos) {
        let Connect::Cm(server, port) = self.config.connect else {
            self.workers[number].state = State::Waits(None);
            return;
        };
        let param = ConnParam {
            // A port of its own for each, as each has its own UDP source port on the wire
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
            && let Some(qpn) = self.leaving.remove(&conn)
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

    /// A thread's connection is of no more use.
    fn stop(&mut self, nic: &mut Rnic, number: usize, why: Stopped, now: Nanos) {
        let worker = &self.workers[number];
        worker.verbs.mailbox().stop(why);
        match worker.state {
            State::Runs(_) => self.turn(nic, number, now),
            State::Connecting => self.end(nic, number, Err(why), now),
            State::Waits(_) | State::Over(_) => {}
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
        // What asked for no completion is done when what follows it is.
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

    /// Gives a thread's requests to its NIC, as many as it takes.
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

    /// Lets a thread go on.
    fn turn(&mut self, nic: &mut Rnic, number: usize, now: Nanos) {
        let mut told = false;
        loop {
            let worker = &mut self.workers[number];
            let State::Runs(thread) = &mut worker.state else { return };
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
                // It hears of it.
                Some(_) if !told => told = true,
                Some(why) => return self.end(nic, number, Err(why), now),
                None => {
                    self.wakes.extend(wake_at.map(|at| (at, number)));
                    return;
                }
            }
        }
    }

    /// A thread is done, or can do nothing more over this connection.
    fn end(&mut self, nic: &mut Rnic, number: usize, result: Result<(), Stopped>, now: Nanos) {
        let worker = &mut self.workers[number];
        worker.state = match (&result, self.config.reconnect_after) {
            (Err(Stopped::Failed(_) | Stopped::Post(_) | Stopped::Disconnected), Some(span)) => {
                self.wakes.insert((now + span, number));
                State::Waits(Some(now + span))
            }
            _ => State::Over(result),
        };
        let (qpn, conn) = (worker.qpn.take(), worker.conn.take());
        let Some(qpn) = qpn else { return };
        self.by_qpn.remove(&qpn.get());
        if let Some(conn) = conn {
            self.by_conn.remove(&conn);
        }
        match conn.filter(|conn| nic.disconnect(*conn, &[], now).is_ok()) {
            Some(conn) => _ = self.leaving.insert(conn, qpn),
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
        // What there was went with the NIC.
        (self.by_qpn, self.by_conn, self.leaving) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        (self.wakes, self.ready) = (BTreeSet::new(), BTreeSet::new());
        for number in 0..threads {
            let worker = &mut self.workers[number];
            (worker.qpn, worker.conn) = (None, None);
            if !matches!(worker.state, State::Over(_)) {
                worker.state = State::Waits(None);
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
                State::Waits(Some(until)) if until <= now => self.connect(nic, number, now),
                _ => _ = self.ready.insert(number),
            }
        }
        for number in mem::take(&mut self.ready) {
            self.turn(nic, number, now);
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
