//! The NIC: its tables, and the verbs by which an application uses it.

mod connect;
mod receive;
mod table;
mod transmit;

use crate::config::Config;
use crate::connections::{Connections, cm_config};
use crate::counters::Counters;
use crate::endpoint::Endpoint;
use crate::memory::{Access, Buffer, Memory, MemoryError, Mr, Pd, Region};
use crate::part::Notice;
use crate::path::Path;
use crate::qp::{Event, Modify, Qp, QpContext, QpError, QpInit, State};
use crate::queue::{Completion, CompletionQueue, Cq, ReceiveQueue, RecvRequest, SendRequest, Srq};
use core::ops::Range;
use rocev2::Qpn;
use rocev2::ethernet::MacAddr;
use std::collections::{BTreeSet, VecDeque};
use switch::table::DenseTable;
use switch::timers::Timers;
use switch::{Full, Nanos, Rng};
use table::QpTable;

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

/// A software RDMA NIC. The input is frames and time ([`on_frame`](Self::on_frame),
/// [`on_timer`](Self::on_timer)), the output is frames, completions and events
/// ([`poll_transmit`](Self::poll_transmit), [`poll_cq`](Self::poll_cq), [`poll_event`](Self::poll_event)).
/// The crate documentation describes the call order.
#[derive(Debug)]
pub struct Rnic {
    config: Config,
    memory: Memory,
    qps: QpTable,
    cqs: DenseTable<CompletionQueue>,
    srqs: DenseTable<ReceiveQueue>,
    endpoint: Endpoint,
    connections: Connections,
    timers: Timers,
    /// Slots of queue pairs that wait for their neighbour's MAC address
    unresolved: BTreeSet<u32>,
    events: VecDeque<Event>,
    /// Whether a completion queue has overrun, so that its queue pairs have to be moved to the error state
    overrun: bool,
    counters: Counters,
    rng: Rng,
}

impl Rnic {
    /// Creates a NIC.
    pub fn new(config: Config) -> Self {
        let queues = config.max_qps.max(16) * 2;
        Self {
            memory: Memory::new(config.max_regions, Rng::stream(config.key_seed.unwrap_or(config.seed), 0)),
            qps: QpTable::new(config.max_qps, config.part),
            cqs: DenseTable::with_capacity(queues),
            srqs: DenseTable::with_capacity(queues),
            endpoint: Endpoint::new(config.interface.clone(), cm_config(&config), config.seed ^ 0x6373_6d00)
                .of_part(config.part),
            connections: Connections::default(),
            timers: Timers::new(config.max_qps),
            unresolved: BTreeSet::new(),
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
        self.endpoint.set_path_salt(salt);
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
        ResourceCounts { queue_pairs: self.qps.count(), regions, buffers }
    }

    // Memory

    /// Allocates a protection domain.
    pub fn alloc_pd(&mut self) -> Pd {
        self.memory.alloc_pd()
    }

    /// Gives a buffer to the NIC.
    ///
    /// # Errors
    /// [`MemoryError::Full`] at the limit [`Config::max_regions`].
    pub fn alloc(&mut self, bytes: Vec<u8>) -> Result<Buffer, MemoryError> {
        self.memory.alloc(bytes)
    }

    /// Takes a buffer back.
    ///
    /// # Errors
    /// [`MemoryError::Busy`] while regions map it, and [`MemoryError::Unknown`] if it does not exist.
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
    ///
    /// # Errors
    /// [`MemoryError::Unknown`] if the buffer does not exist, [`MemoryError::Bounds`] if the range exceeds
    /// the buffer or the address space, and [`MemoryError::Full`] at the limit [`Config::max_regions`].
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
    ///
    /// # Errors
    /// [`MemoryError::Bounds`] if the range exceeds the address space, and [`MemoryError::Full`] at the limit
    /// [`Config::max_regions`]. Then neither the buffer nor the region exists.
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
    ///
    /// # Errors
    /// [`MemoryError::Unknown`] if the region does not exist.
    pub fn reregister(&mut self, mr: Mr, access: Access) -> Result<(), MemoryError> {
        self.memory.reregister(mr, access)
    }

    /// Removes a region.
    ///
    /// # Errors
    /// [`MemoryError::Unknown`] if the region does not exist.
    pub fn deregister(&mut self, mr: Mr) -> Result<(), MemoryError> {
        self.memory.deregister(mr).map(|_| ())
    }

    /// Returns a region's location and access flags.
    pub fn region(&self, mr: Mr) -> Option<&Region> {
        self.memory.region(mr)
    }

    // Queues

    /// Creates a completion queue for `capacity` completions.
    ///
    /// # Errors
    /// [`QpError::Full`] at the limit: twice [`Config::max_qps`], but at least 32.
    pub fn create_cq(&mut self, capacity: usize) -> Result<Cq, QpError> {
        self.cqs.insert(CompletionQueue::new(capacity)).map(Cq).map_err(|Full| QpError::Full)
    }

    /// Removes a completion queue that no queue pair uses; completions in it are lost.
    ///
    /// # Errors
    /// [`QpError::Queue`] if it does not exist, and [`QpError::Busy`] while a queue pair uses it.
    pub fn destroy_cq(&mut self, cq: Cq) -> Result<(), QpError> {
        let queue = self.cqs.get(cq.0).ok_or(QpError::Queue)?;
        if queue.users > 0 {
            return Err(QpError::Busy);
        }
        self.cqs.remove(cq.0);
        Ok(())
    }

    /// Removes and returns the oldest completion.
    #[inline]
    pub fn poll_cq(&mut self, cq: Cq) -> Option<Completion> {
        self.cqs.get_mut(cq.0)?.pop()
    }

    /// Returns whether the queue has overrun and lost completions.
    pub fn cq_overrun(&self, cq: Cq) -> bool {
        self.cqs.get(cq.0).is_some_and(CompletionQueue::has_overrun)
    }

    /// Returns whether the queue holds a completion.
    pub fn cq_has_completions(&self, cq: Cq) -> bool {
        self.cqs.get(cq.0).is_some_and(|cq| !cq.is_empty())
    }

    /// Creates a shared receive queue for `capacity` requests.
    ///
    /// # Errors
    /// [`QpError::Full`] at the limit: twice [`Config::max_qps`], but at least 32.
    pub fn create_srq(&mut self, capacity: usize) -> Result<Srq, QpError> {
        self.srqs.insert(ReceiveQueue::new(capacity)).map(Srq).map_err(|Full| QpError::Full)
    }

    /// Removes a shared receive queue that no queue pair uses.
    ///
    /// # Errors
    /// [`QpError::Queue`] if it does not exist, and [`QpError::Busy`] while a queue pair uses it.
    pub fn destroy_srq(&mut self, srq: Srq) -> Result<(), QpError> {
        let queue = self.srqs.get(srq.0).ok_or(QpError::Queue)?;
        if queue.users > 0 {
            return Err(QpError::Busy);
        }
        self.srqs.remove(srq.0);
        Ok(())
    }

    /// Posts a receive request to a shared receive queue.
    ///
    /// # Errors
    /// [`QpError::Queue`] if the queue does not exist, and [`QpError::Full`] at its capacity.
    pub fn post_srq_recv(&mut self, srq: Srq, request: RecvRequest) -> Result<(), QpError> {
        let queue = self.srqs.get_mut(srq.0).ok_or(QpError::Queue)?;
        queue.push(request).map_err(|Full| QpError::Full)
    }

    // Queue pairs

    /// Creates a queue pair in the reset state.
    ///
    /// # Errors
    /// [`QpError::Queue`] if one of its queues does not exist, and [`QpError::Full`] at the limit
    /// [`Config::max_qps`].
    pub fn create_qp(&mut self, init: QpInit) -> Result<Qpn, QpError> {
        let queues = self.cqs.get(init.send_cq.0).is_some() && self.cqs.get(init.recv_cq.0).is_some();
        if !queues || init.srq.is_some_and(|srq| self.srqs.get(srq.0).is_none()) {
            return Err(QpError::Queue);
        }
        let qpn = self.qps.create(init).map_err(|Full| QpError::Full)?;
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
    ///
    /// # Errors
    /// [`QpError::Unknown`] if it does not exist.
    pub fn destroy_qp(&mut self, qpn: Qpn) -> Result<(), QpError> {
        let slot = self.qps.slot(qpn).ok_or(QpError::Unknown)?;
        self.release_connection(qpn);
        if let Some(qp) = self.qps.remove(slot) {
            self.count_user(qp.init(), |users| *users -= 1);
        }
        Ok(())
    }

    /// Returns the queue pair in a slot together with everything that its packets access.
    #[inline]
    fn context(&mut self, slot: u32) -> Option<QpContext<'_>> {
        Some(QpContext {
            qp: self.qps.at(slot)?,
            memory: &mut self.memory,
            cqs: &mut self.cqs,
            srqs: &mut self.srqs,
            events: &mut self.events,
            counters: &mut self.counters,
            overrun: &mut self.overrun,
            config: &self.config,
        })
    }

    /// Returns the state of a queue pair.
    pub fn qp_state(&self, qpn: Qpn) -> Option<State> {
        self.qps.find(qpn).map(Qp::state)
    }

    /// Returns the attributes with which a queue pair was created.
    pub fn qp_init(&self, qpn: Qpn) -> Option<QpInit> {
        self.qps.find(qpn).map(|qp| *qp.init())
    }

    /// Returns the rate in bit/s to which DCQCN limits a queue pair; `None` if it does not.
    pub fn qp_rate_bps(&self, qpn: Qpn) -> Option<u64> {
        self.qps.find(qpn)?.rate_bps()
    }

    /// Returns the path and the remote queue pair number of a connected queue pair.
    pub fn qp_peer(&self, qpn: Qpn) -> Option<(Path, Qpn)> {
        self.qps.find(qpn)?.peer()
    }

    /// Returns the number of send requests that have not completed.
    pub fn pending_sends(&self, qpn: Qpn) -> usize {
        self.qps.find(qpn).map_or(0, Qp::pending_sends)
    }

    /// Changes the state or the attributes of a queue pair.
    ///
    /// # Errors
    /// [`QpError::Unknown`] if it does not exist, [`QpError::State`] if its state does not allow the change
    /// (see [`State::leads_to`]), and [`QpError::Path`] if the source address of a connected transport
    /// service's path is not local.
    pub fn modify_qp(&mut self, qpn: Qpn, modify: Modify) -> Result<(), QpError> {
        let slot = self.qps.slot(qpn).ok_or(QpError::Unknown)?;
        self.context(slot).ok_or(QpError::Unknown)?.modify(modify)?;
        self.update_schedule(slot);
        self.handle_overrun();
        Ok(())
    }

    /// Posts a request to a send queue. In the error state it completes at once with
    /// [`Status::Flushed`](crate::Status).
    ///
    /// # Errors
    /// [`QpError::Unknown`] if the queue pair does not exist, [`QpError::State`] before the state RTS,
    /// [`QpError::Full`] at its `max_send`, [`QpError::Transport`] if the transport service does not support
    /// the operation, [`QpError::Destination`] if a UD request has no destination or another request has one,
    /// [`QpError::Path`] if the source address to the destination is not local, [`QpError::NoFetches`] for a
    /// READ or an atomic if `max_rd_atomic` is 0, and [`QpError::Length`] if the message is too long, an
    /// atomic does not fetch 8 bytes, or a READ or an atomic has inline data.
    pub fn post_send(&mut self, qpn: Qpn, request: SendRequest) -> Result<(), QpError> {
        let slot = self.qps.slot(qpn).ok_or(QpError::Unknown)?;
        if request.to.is_some_and(|to| !self.config.interface.is_local(&to.path)) {
            return Err(QpError::Path);
        }
        self.qps.at(slot).ok_or(QpError::Unknown)?.post_send(request)?;
        self.update_schedule(slot);
        self.flush_late(slot);
        Ok(())
    }

    /// Posts a request to a receive queue. In the error state it completes at once with
    /// [`Status::Flushed`](crate::Status).
    ///
    /// # Errors
    /// [`QpError::Unknown`] if the queue pair does not exist, [`QpError::Queue`] if it has a shared receive
    /// queue, [`QpError::State`] in the reset state, and [`QpError::Full`] at the capacity of its receive
    /// queue.
    pub fn post_recv(&mut self, qpn: Qpn, request: RecvRequest) -> Result<(), QpError> {
        let slot = self.qps.slot(qpn).ok_or(QpError::Unknown)?;
        if self.context(slot).ok_or(QpError::Unknown)?.post_recv(request)? {
            self.qps.schedule(slot);
        }
        self.flush_late(slot);
        Ok(())
    }

    /// Flushes requests that were posted in the error state, after all others: an application that waits for
    /// such a request has seen all earlier completions (IB 10.3.1.6).
    fn flush_late(&mut self, slot: u32) {
        if let Some(mut ctx) = self.context(slot).filter(|ctx| ctx.qp.state() == State::Error) {
            ctx.flush();
            self.handle_overrun();
        }
    }

    /// Returns the next event.
    #[inline]
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// Returns the next notice for all other parts of the NIC.
    pub fn poll_notice(&mut self) -> Option<Notice> {
        self.endpoint.poll_notice()
    }

    /// Processes a notice of another part.
    pub fn on_notice(&mut self, notice: Notice, now: Nanos) {
        if self.endpoint.on_notice(notice, now) {
            self.wake_unresolved();
        }
        self.process_cm_events(now);
    }

    /// Returns the MAC address of the next hop to `ip`. If it is not known, sends an ARP request or neighbour
    /// solicitation and returns `None`; the caller tries again later.
    pub fn resolve(&mut self, ip: core::net::IpAddr, now: Nanos) -> Option<MacAddr> {
        self.endpoint.resolve(ip, now)
    }
}

#[cfg(test)]
impl Rnic {
    /// Returns the endpoint.
    pub(crate) fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    /// Returns the lengths of the round-robin queue and of the timer heap.
    pub(crate) fn scheduled(&self) -> (usize, usize) {
        (self.qps.ready(), self.timers.len())
    }

    /// Returns a queue pair.
    pub(crate) fn qp_mut(&mut self, qpn: Qpn) -> &mut Qp {
        let slot = self.qps.slot(qpn).unwrap();
        self.qps.at(slot).unwrap()
    }
}
