//! The NIC: its tables, and the verbs by which an application uses it.

use crate::congestion::Dcqcn;
use crate::counters::Counters;
use crate::endpoint::Endpoint;
use crate::gsi::{Gsi, cm_config};
use crate::memory::{Access, Buffer, Memory, MemoryError, Mr, Pd, Region};
use crate::neighbour::Interface;
use crate::qp::{Modify, Path, PathMtu, Qp, QpError, QpInit, State, Transport};
use crate::queue::{Completion, CompletionQueue, Cq, ReceiveQueue, RecvRequest, SendRequest, Sge, Srq};
use crate::responder::AckPolicy;
use crate::timers::Timers;
use core::ops::Range;
use rocev2::ethernet::MacAddr;
use rocev2::{Msn, Qpn};
use std::collections::VecDeque;
use switch::table::DenseTable;
use switch::{Nanos, Rng};

/// Configuration of a NIC.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Port and addresses
    pub interface: Interface,
    /// Limit of queue pairs
    pub max_qps: usize,
    /// Limit of memory regions, and of buffers
    pub max_regions: usize,
    /// Largest path MTU of connections that the communication manager makes
    pub mtu: PathMtu,
    /// Limit of packets in flight on a connection; clamped to 1..=2^22
    pub window: u32,
    /// When the responder acknowledges requests
    pub ack: AckPolicy,
    /// Whether responders announce credits; soft-RoCE does not
    pub credits: bool,
    /// Whether a responder remembers only the last `max_dest_rd_atomic` READs and atomics of a connection,
    /// counted together, and drops an older duplicate without a response, as soft-RoCE does. Otherwise it
    /// executes a duplicate READ again however old it is, and remembers the last `max_dest_rd_atomic`
    /// atomics.
    pub forgetful: bool,
    /// DCQCN; without it, packets are sent as not ECN-capable
    pub congestion: Option<Dcqcn>,
    /// Seed of all random values: keys, initial PSNs, communication and transaction IDs
    pub seed: u64,
    /// Seed of the `L_Key`s and `R_Key`s, if it differs from `seed`: a NIC may assign the same keys again
    /// after a restart
    pub key_seed: Option<u64>,
    /// A planted bug, to check that tests find it
    #[cfg(debug_assertions)]
    pub bug: Option<crate::Bug>,
}

impl Config {
    /// Returns the default configuration of a port: 1,024 queue pairs and regions, MTU 1,024, window 256, no
    /// DCQCN.
    pub fn new(interface: Interface) -> Self {
        Self {
            interface,
            max_qps: 1024,
            max_regions: 1024,
            mtu: PathMtu::B1024,
            window: 256,
            ack: AckPolicy::OnRequest,
            credits: false,
            forgetful: false,
            congestion: None,
            seed: 0,
            key_seed: None,
            #[cfg(debug_assertions)]
            bug: None,
        }
    }
}

/// Resources of a NIC that applications have allocated and not freed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct ResourceCounts {
    /// Queue pairs
    pub queue_pairs: usize,
    /// Memory regions
    pub regions: usize,
    /// Buffers
    pub buffers: usize,
}

/// Asynchronous events of a NIC.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A queue pair went into the error state because of an error.
    QpError(Qpn),
    /// A queue pair in state SQD has no requests in flight any more.
    Drained(Qpn),
    /// A packet arrived on a connection before its handshake was complete (IB 11.6.3.1, communication
    /// established).
    Established(Qpn),
}

/// Queue pair numbers below this one are not assigned to applications.
pub(crate) const FIRST_QPN: u32 = 16;

/// A slot for a queue pair, and the number that the next queue pair in it gets.
#[derive(Debug)]
struct Slot {
    qpn: u32,
    /// Whether the slot is in the round-robin queue. It stays set when another queue pair takes the slot.
    scheduled: bool,
    qp: Option<Box<Qp>>,
}

/// A software RDMA NIC. The input is frames and time ([`on_frame`](Self::on_frame),
/// [`on_timer`](Self::on_timer)), the output is frames, completions and events
/// ([`poll_transmit`](Self::poll_transmit), [`poll_cq`](Self::poll_cq), [`poll_event`](Self::poll_event)).
/// The crate documentation describes the call order.
#[derive(Debug)]
pub struct Rnic {
    pub(crate) config: Config,
    pub(crate) memory: Memory,
    slots: Vec<Slot>,
    free: VecDeque<u32>,
    pub(crate) cqs: DenseTable<CompletionQueue>,
    pub(crate) srqs: DenseTable<ReceiveQueue>,
    pub(crate) endpoint: Endpoint,
    pub(crate) gsi: Gsi,
    pub(crate) timers: Timers,
    /// Slots of queue pairs that may have something to send, in round-robin order
    pub(crate) ready_slots: VecDeque<u32>,
    pub(crate) events: VecDeque<Event>,
    /// A completion queue has overrun, and its queue pairs have to be moved to the error state
    pub(crate) overrun: bool,
    pub(crate) counters: Counters,
    pub(crate) rng: Rng,
}

impl Rnic {
    /// Creates a NIC.
    pub fn new(config: Config) -> Self {
        let queues = config.max_qps.max(16) * 2;
        Self {
            memory: Memory::new(config.max_regions, Rng::stream(config.key_seed.unwrap_or(config.seed), 0)),
            slots: Vec::new(),
            free: VecDeque::new(),
            cqs: DenseTable::with_capacity(queues),
            srqs: DenseTable::with_capacity(queues),
            endpoint: Endpoint::new(config.interface.clone(), cm_config(&config), config.seed ^ 0x6373_6d00),
            gsi: Gsi::default(),
            timers: Timers::new(config.max_qps),
            ready_slots: VecDeque::new(),
            events: VecDeque::new(),
            overrun: false,
            counters: Counters::default(),
            rng: Rng::stream(config.seed, 1),
            config,
        }
    }

    /// Returns the configuration.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Changes the UDP source ports of all packets sent from now on, so that they take other ECMP paths.
    pub fn set_path_salt(&mut self, salt: u16) {
        self.endpoint.path_salt = salt;
    }

    /// Returns the counters.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Returns the number of communication manager messages and of neighbour discovery frames that were
    /// dropped because too many waited.
    pub fn control_dropped(&self) -> u64 {
        self.endpoint.dropped()
    }

    /// Returns the numbers of allocated resources.
    pub fn resource_counts(&self) -> ResourceCounts {
        let (regions, buffers) = self.memory.counts();
        let queue_pairs = self.slots.iter().filter(|slot| slot.qp.is_some()).count();
        ResourceCounts { queue_pairs, regions, buffers }
    }

    // Memory

    /// Allocates a protection domain.
    pub fn alloc_pd(&mut self) -> Pd {
        self.memory.alloc_pd()
    }

    /// Gives a buffer to the NIC. Fails with [`MemoryError::Full`] at the limit [`Config::max_regions`].
    pub fn alloc(&mut self, bytes: Vec<u8>) -> Result<Buffer, MemoryError> {
        self.memory.alloc(bytes)
    }

    /// Takes a buffer back. Fails with [`MemoryError::Busy`] while regions map it.
    pub fn free(&mut self, buffer: Buffer) -> Result<Vec<u8>, MemoryError> {
        self.memory.free(buffer)
    }

    /// Returns the contents of a buffer; empty if it does not exist.
    pub fn bytes(&self, buffer: Buffer) -> &[u8] {
        self.memory.buffer(buffer)
    }

    /// Returns the contents of a buffer for writing; empty if it does not exist.
    pub fn bytes_mut(&mut self, buffer: Buffer) -> &mut [u8] {
        self.memory.buffer_mut(buffer)
    }

    /// Registers a range of a buffer as a memory region whose first byte has the virtual address `va`.
    pub fn register(
        &mut self,
        pd: Pd,
        buffer: Buffer,
        range: Range<usize>,
        va: u64,
        access: Access,
    ) -> Result<Mr, MemoryError> {
        self.memory.register(pd, buffer, range, va, access)
    }

    /// Allocates a zeroed buffer of `len` bytes and registers a region that maps all of it.
    pub fn register_new(
        &mut self,
        pd: Pd,
        len: usize,
        va: u64,
        access: Access,
    ) -> Result<(Buffer, Mr), MemoryError> {
        let buffer = self.memory.alloc(vec![0; len])?;
        match self.memory.register(pd, buffer, 0..len, va, access) {
            Ok(mr) => Ok((buffer, mr)),
            Err(error) => {
                // No region maps it yet, so this does not fail.
                _ = self.memory.free(buffer);
                Err(error)
            }
        }
    }

    /// Changes the access flags of a region, from the next packet on.
    pub fn reregister(&mut self, mr: Mr, access: Access) -> Result<(), MemoryError> {
        self.memory.reregister(mr, access)
    }

    /// Removes a region.
    pub fn deregister(&mut self, mr: Mr) -> Result<(), MemoryError> {
        self.memory.deregister(mr).map(|_| ())
    }

    /// Returns a region's location and access flags.
    pub fn region(&self, mr: Mr) -> Option<&Region> {
        self.memory.region(mr)
    }

    // Queues

    /// Creates a completion queue for `capacity` completions.
    pub fn create_cq(&mut self, capacity: usize) -> Result<Cq, QpError> {
        self.cqs.insert(CompletionQueue::new(capacity)).map(Cq).map_err(|switch::Full| QpError::Full)
    }

    /// Removes a completion queue that no queue pair uses; completions in it are lost.
    pub fn destroy_cq(&mut self, cq: Cq) -> Result<(), QpError> {
        match self.cqs.get(cq.0) {
            None => Err(QpError::Queue),
            Some(queue) if queue.users > 0 => Err(QpError::Busy),
            Some(_) => {
                self.cqs.remove(cq.0);
                Ok(())
            }
        }
    }

    /// Removes and returns the oldest completion.
    pub fn poll_cq(&mut self, cq: Cq) -> Option<Completion> {
        self.cqs.get_mut(cq.0)?.pop()
    }

    /// Returns whether the queue has overrun and lost completions.
    pub fn cq_overrun(&self, cq: Cq) -> bool {
        self.cqs.get(cq.0).is_some_and(|cq| cq.overrun)
    }

    /// Returns whether the queue holds a completion.
    pub fn cq_has_completions(&self, cq: Cq) -> bool {
        self.cqs.get(cq.0).is_some_and(|cq| !cq.is_empty())
    }

    /// Creates a shared receive queue for `capacity` requests.
    pub fn create_srq(&mut self, capacity: usize) -> Result<Srq, QpError> {
        let queue = ReceiveQueue { capacity, ..ReceiveQueue::default() };
        self.srqs.insert(queue).map(Srq).map_err(|switch::Full| QpError::Full)
    }

    /// Removes a shared receive queue that no queue pair uses.
    pub fn destroy_srq(&mut self, srq: Srq) -> Result<(), QpError> {
        match self.srqs.get(srq.0) {
            None => Err(QpError::Queue),
            Some(queue) if queue.users > 0 => Err(QpError::Busy),
            Some(_) => {
                self.srqs.remove(srq.0);
                Ok(())
            }
        }
    }

    /// Posts a receive request to a shared receive queue. Fails with [`QpError::Full`] at its capacity.
    pub fn post_srq_recv(&mut self, srq: Srq, request: RecvRequest) -> Result<(), QpError> {
        let queue = self.srqs.get_mut(srq.0).ok_or(QpError::Queue)?;
        if queue.queue.len() >= queue.capacity {
            return Err(QpError::Full);
        }
        queue.queue.push_back(request);
        Ok(())
    }

    // Queue pairs

    /// Creates a queue pair in the reset state. Fails with [`QpError::Queue`] if one of its queues does not
    /// exist, and with [`QpError::Full`] at the limit [`Config::max_qps`].
    pub fn create_qp(&mut self, init: QpInit) -> Result<Qpn, QpError> {
        let queues = self.cqs.get(init.send_cq.0).is_some() && self.cqs.get(init.recv_cq.0).is_some();
        if !queues || init.srq.is_some_and(|srq| self.srqs.get(srq.0).is_none()) {
            return Err(QpError::Queue);
        }
        let slot = match self.free.pop_front() {
            Some(slot) => slot,
            None if self.slots.len() < self.config.max_qps => {
                self.slots.push(Slot {
                    qpn: FIRST_QPN + self.slots.len() as u32,
                    scheduled: false,
                    qp: None,
                });
                self.slots.len() as u32 - 1
            }
            None => return Err(QpError::Full),
        };
        let entry = &mut self.slots[slot as usize];
        let qpn = Qpn::new(entry.qpn);
        entry.qp = Some(Box::new(Qp::new(qpn, init)));
        self.count_user(&init, |users| *users += 1);
        Ok(qpn)
    }

    /// Applies `count` to the user counts of the queues of a queue pair.
    fn count_user(&mut self, init: &QpInit, count: impl Fn(&mut u32)) {
        for cq in [init.send_cq, init.recv_cq] {
            if let Some(queue) = self.cqs.get_mut(cq.0) {
                count(&mut queue.users);
            }
        }
        if let Some(queue) = init.srq.and_then(|srq| self.srqs.get_mut(srq.0)) {
            count(&mut queue.users);
        }
    }

    /// Removes a queue pair. Its requests end without completions, and its connection without an event. To
    /// notify the remote side, call [`disconnect`](Self::disconnect) first.
    pub fn destroy_qp(&mut self, qpn: Qpn) -> Result<(), QpError> {
        let slot = self.slot(qpn).ok_or(QpError::Unknown)?;
        self.release_connection(qpn);
        // The next queue pair in this slot gets another number, so that late packets do not reach it.
        let stride = self.stride();
        let entry = &mut self.slots[slot as usize];
        let qp = entry.qp.take();
        entry.qpn += stride;
        if entry.qpn >= 1 << 24 {
            entry.qpn = FIRST_QPN + slot;
        }
        if let Some(qp) = qp {
            self.count_user(&qp.init, |users| *users -= 1);
        }
        self.free.push_back(slot);
        Ok(())
    }

    /// Returns the difference between consecutive queue pair numbers of the same slot.
    fn stride(&self) -> u32 {
        (self.config.max_qps.next_power_of_two() as u32).min(1 << 23)
    }

    /// Returns the slot of the queue pair with this number.
    #[inline]
    pub(crate) fn slot(&self, qpn: Qpn) -> Option<u32> {
        let slot = qpn.get().checked_sub(FIRST_QPN)? & (self.stride() - 1);
        let entry = self.slots.get(slot as usize)?;
        (entry.qpn == qpn.get() && entry.qp.is_some()).then_some(slot)
    }

    #[inline]
    pub(crate) fn qp(&self, qpn: Qpn) -> Option<&Qp> {
        self.slots[self.slot(qpn)? as usize].qp.as_deref()
    }

    /// Returns the queue pair in a slot, if there still is one.
    #[inline]
    pub(crate) fn qp_at(&mut self, slot: u32) -> Option<&mut Qp> {
        self.slots.get_mut(slot as usize)?.qp.as_deref_mut()
    }

    /// Returns the queue pair in a slot together with everything that its packets access.
    #[inline]
    pub(crate) fn context(&mut self, slot: u32) -> Option<QpContext<'_>> {
        Some(QpContext {
            qp: self.slots.get_mut(slot as usize)?.qp.as_deref_mut()?,
            memory: &mut self.memory,
            cqs: &mut self.cqs,
            srqs: &mut self.srqs,
            events: &mut self.events,
            counters: &mut self.counters,
            overrun: &mut self.overrun,
            config: &self.config,
        })
    }

    /// Appends a queue pair to the round-robin queue, unless it is in it already or waits for its neighbour.
    pub(crate) fn schedule(&mut self, slot: u32) {
        let Some(entry) = self.slots.get_mut(slot as usize) else { return };
        if !entry.scheduled && entry.qp.as_ref().is_some_and(|qp| !qp.unresolved) {
            entry.scheduled = true;
            self.ready_slots.push_back(slot);
        }
    }

    /// Removes the next slot from the round-robin queue. The slot may be empty by now.
    pub(crate) fn next_scheduled(&mut self) -> Option<u32> {
        let slot = self.ready_slots.pop_front()?;
        if let Some(entry) = self.slots.get_mut(slot as usize) {
            entry.scheduled = false;
        }
        Some(slot)
    }

    /// Returns the number of slots.
    pub(crate) fn slots(&self) -> u32 {
        self.slots.len() as u32
    }

    /// Returns the state of a queue pair.
    pub fn qp_state(&self, qpn: Qpn) -> Option<State> {
        self.qp(qpn).map(|qp| qp.state)
    }

    /// Returns the attributes with which a queue pair was created.
    pub fn qp_init(&self, qpn: Qpn) -> Option<QpInit> {
        self.qp(qpn).map(|qp| qp.init)
    }

    /// Returns the rate in bit/s to which DCQCN limits a queue pair; `None` if it does not.
    pub fn qp_rate_bps(&self, qpn: Qpn) -> Option<u64> {
        self.qp(qpn)?.req.pacer.bps()
    }

    /// Returns the path and the remote queue pair number of a connected queue pair.
    pub fn qp_peer(&self, qpn: Qpn) -> Option<(Path, Qpn)> {
        let qp = self.qp(qpn)?;
        Some((qp.path?, qp.peer_qpn))
    }

    /// Returns the number of send requests that have not completed.
    pub fn pending_sends(&self, qpn: Qpn) -> usize {
        self.qp(qpn).map_or(0, |qp| qp.req.queue.len())
    }

    /// Changes the state or the attributes of a queue pair. Fails with [`QpError::State`] if the state does
    /// not allow the transition (see [`State::leads_to`]), and with [`QpError::Path`] if the path's source
    /// address is not local.
    pub fn modify_qp(&mut self, qpn: Qpn, modify: Modify) -> Result<(), QpError> {
        let slot = self.slot(qpn).ok_or(QpError::Unknown)?;
        let state = self.qp_at(slot).map_or(State::Reset, |qp| qp.state);
        let target = match modify {
            Modify::Init { .. } => State::Init,
            Modify::Rtr(_) => State::Rtr,
            Modify::Rts(_) | Modify::Resume => State::Rts,
            Modify::Sqd => State::Sqd,
            Modify::Error => State::Error,
            Modify::Reset => State::Reset,
            Modify::Access(_) => state,
        };
        let allowed = match modify {
            Modify::Resume => state == State::Sqd,
            Modify::Access(_) => !matches!(state, State::Reset | State::Error),
            _ => state.leads_to(target),
        };
        if !allowed {
            return Err(QpError::State(state));
        }
        if let Modify::Rtr(ready) = &modify
            && self.qp(qpn).is_some_and(|qp| qp.init.transport != Transport::Ud)
            && !self.is_local_path(&ready.path)
        {
            return Err(QpError::Path);
        }
        let Some(mut ctx) = self.context(slot) else { return Err(QpError::Unknown) };
        let qp = &mut *ctx.qp;
        match modify {
            Modify::Init { access, qkey } => (qp.access, qp.qkey, qp.state) = (access, qkey, State::Init),
            Modify::Access(access) => qp.access = access,
            Modify::Rtr(ready) => {
                (qp.state, qp.event_reported) = (State::Rtr, false);
                (qp.path, qp.route) = (Some(ready.path), None);
                (qp.peer_qpn, qp.mtu) = (ready.dest_qp, ready.mtu);
                (qp.resp.epsn, qp.resp.msn) = (ready.rq_psn, Msn::ZERO);
                qp.resp.max_rd_atomic = ready.max_dest_rd_atomic.into();
                qp.resp.min_rnr_timer = ready.min_rnr_timer;
            }
            Modify::Rts(ready) => {
                if state == State::Rtr {
                    (qp.req.next_psn, qp.req.una, qp.req.top) = (ready.sq_psn, ready.sq_psn, ready.sq_psn);
                    qp.req.credit_limit = (ready.flow_control).then_some(Msn::ZERO);
                }
                qp.req.max_rd_atomic = ready.max_rd_atomic.into();
                (qp.req.timeout, qp.req.retry_count) = (ready.timeout.min(31), ready.retry_count);
                (qp.req.rnr_retry, qp.req.flow_control) = (ready.rnr_retry, ready.flow_control);
                (qp.req.retries_left, qp.req.rnr_retries_left) = (ready.retry_count, ready.rnr_retry);
                qp.state = State::Rts;
            }
            Modify::Resume => qp.state = State::Rts,
            Modify::Sqd => {
                (qp.state, qp.event_reported) = (State::Sqd, false);
            }
            Modify::Error => ctx.enter_error(),
            Modify::Reset => {
                // The round-robin queue and the timer heap may still hold the slot; both check it when its
                // turn comes.
                *qp = Qp::new(qpn, qp.init);
            }
        }
        self.update_schedule(slot);
        self.handle_overrun();
        Ok(())
    }

    /// Returns whether a path starts at a local address, and both of its addresses are of the same family.
    fn is_local_path(&self, path: &Path) -> bool {
        self.config.interface.has(path.src) && path.src.is_ipv4() == path.dst.is_ipv4()
    }

    /// Posts a request to a send queue. In the error state it completes at once with
    /// [`Status::Flushed`](crate::Status).
    pub fn post_send(&mut self, qpn: Qpn, request: SendRequest) -> Result<(), QpError> {
        let slot = self.slot(qpn).ok_or(QpError::Unknown)?;
        if request.to.is_some_and(|to| !self.is_local_path(&to.path)) {
            return Err(QpError::Path);
        }
        self.qp_at(slot).ok_or(QpError::Unknown)?.post_send(request)?;
        self.update_schedule(slot);
        self.flush_late(slot);
        Ok(())
    }

    /// Posts a request to a receive queue. In the error state it completes at once with
    /// [`Status::Flushed`](crate::Status).
    pub fn post_recv(&mut self, qpn: Qpn, request: RecvRequest) -> Result<(), QpError> {
        let slot = self.slot(qpn).ok_or(QpError::Unknown)?;
        let Some(ctx) = self.context(slot) else { return Err(QpError::Unknown) };
        let qp = ctx.qp;
        if qp.init.srq.is_some() {
            return Err(QpError::Queue);
        }
        match qp.state {
            State::Reset => return Err(QpError::State(qp.state)),
            _ if qp.recv.queue.len() >= qp.recv.capacity => return Err(QpError::Full),
            _ => qp.recv.queue.push_back(request),
        }
        if qp.resp.sent_zero_credits && ctx.config.credits && qp.state.receives() {
            // The requester has no credits, and would find out only by sending a message without one
            // (IB 9.7.7.2.5).
            let psn = qp.resp.epsn.sub(1);
            qp.resp.owe_ack(psn);
            self.schedule(slot);
        }
        self.flush_late(slot);
        Ok(())
    }

    /// Flushes requests that were posted in the error state, after all others: an application that waits for
    /// such a request has seen all earlier completions (IB 10.3.1.6).
    fn flush_late(&mut self, slot: u32) {
        if let Some(mut ctx) = self.context(slot).filter(|ctx| ctx.qp.state == State::Error) {
            ctx.flush();
            self.handle_overrun();
        }
    }

    /// Returns the next event.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// Returns the MAC address of the next hop to `ip`. If it is not known, sends an ARP request or neighbour
    /// solicitation and returns `None`; the caller tries again later.
    pub fn resolve(&mut self, ip: core::net::IpAddr, now: Nanos) -> Option<MacAddr> {
        self.endpoint.resolve(ip, now)
    }
}

/// A queue pair and everything else that its packets access.
pub(crate) struct QpContext<'a> {
    pub(crate) qp: &'a mut Qp,
    pub(crate) memory: &'a mut Memory,
    pub(crate) cqs: &'a mut DenseTable<CompletionQueue>,
    pub(crate) srqs: &'a mut DenseTable<ReceiveQueue>,
    pub(crate) events: &'a mut VecDeque<Event>,
    pub(crate) counters: &'a mut Counters,
    pub(crate) overrun: &'a mut bool,
    pub(crate) config: &'a Config,
}

impl QpContext<'_> {
    /// Puts a completion into a completion queue.
    pub(crate) fn complete(&mut self, cq: Cq, completion: Completion) {
        if let Some(queue) = self.cqs.get_mut(cq.0) {
            self.counters.completions += 1;
            queue.push(completion);
            *self.overrun |= queue.overrun;
        }
    }

    /// Returns the span of a local scatter/gather element if `access` is allowed.
    pub(crate) fn local(&self, sge: &Sge, access: Access) -> Option<crate::memory::Span> {
        self.memory.check(self.qp.init.pd, sge.mr.0, sge.va, sge.len.into(), access).ok()
    }

    #[cfg(debug_assertions)]
    pub(crate) fn has_bug(&self, bug: crate::Bug) -> bool {
        self.config.bug == Some(bug)
    }
}
