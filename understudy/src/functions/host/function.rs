//! The host as a switch function: passes frames to the NIC and its services, and sends theirs.

use super::HostConfig;
use super::perftest::Servers;
use super::service::Service;
use super::status::HostStatus;
use super::tcp;
use rnic::cm::{Event as CmEvent, PortSpace, service_id_of};
use rnic::part::{self, Notice, Part};
use rnic::{Cq, Outbox, Rnic};
use rocev2::cm::RejReason;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use switch::table::mix;
use switch::{Frame, Function, Nanos, Output, PortId, Verdict};

/// Capacity of the completion queue
const CQ_LEN: usize = 1 << 16;

/// Event for the control plane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    /// All clients of a worker have finished their work.
    Done { worker: usize },
    /// A worker's part of the NIC has a notice for all others.
    Notice { worker: usize, notice: Notice },
}

/// A worker's part of a host on a port.
pub(crate) struct Host {
    worker: usize,
    /// Workers of the host
    workers: usize,
    nic: Rnic,
    cq: Cq,
    services: Vec<Service>,
    perftest: Option<Servers>,
    started: bool,
    done_reported: bool,
    events: VecDeque<Event>,
    outbox: Outbox,
    status: Arc<Mutex<HostStatus>>,
    /// Time at which `status` was last refreshed
    published_at: Nanos,
}

/// Interval at which `status` is refreshed
const PUBLISH_INTERVAL: Nanos = Nanos::from_millis(10);

impl Host {
    /// Creates the part of a worker, on a port with this MAC address.
    pub(super) fn new(config: &HostConfig, worker: usize, port_mac: [u8; 6]) -> Result<Self, String> {
        let part = Part { index: worker as u32, count: config.workers as u32 };
        let mut nic = Rnic::new(rnic::Config { part, ..config.nic(port_mac) });
        let pd = nic.alloc_pd();
        let cq = nic.create_cq(CQ_LEN).map_err(|error| error.to_string())?;
        let services: Vec<_> =
            config.services.iter().map(|service| Service::new(service.clone(), pd, cq)).collect();
        for service in services.iter().filter(|service| service.is_server()) {
            nic.listen(PortSpace::Tcp, service.port()).map_err(|error| error.to_string())?;
        }
        let perftest = Servers::new(&config.perftests, &nic, pd, cq)?;
        Ok(Self {
            worker,
            workers: config.workers,
            nic,
            cq,
            services,
            perftest,
            started: false,
            done_reported: false,
            events: VecDeque::new(),
            outbox: Outbox::default(),
            status: Arc::default(),
            published_at: Nanos::ZERO,
        })
    }

    /// Returns the state that other threads may read.
    pub(crate) fn status(&self) -> Arc<Mutex<HostStatus>> {
        self.status.clone()
    }

    /// Returns whether there is a client, and all clients are done.
    fn is_done(&self) -> bool {
        let mut clients = self.services.iter().filter(|service| !service.is_server()).peekable();
        clients.peek().is_some() && clients.all(Service::is_done)
    }

    fn serve(&mut self, now: Nanos) {
        if !self.started {
            self.started = true;
            for service in &mut self.services {
                service.open_connections(&mut self.nic, now);
            }
        }
        loop {
            // Connection events first: a completion belongs to a connection that has to be known.
            if let Some(event) = self.nic.poll_cm_event() {
                self.on_cm(&event, now);
            } else if let Some(completion) = self.nic.poll_cq(self.cq) {
                if let Some(service) = self.services.iter_mut().find(|service| service.owns(completion.qpn)) {
                    service.on_completion(&mut self.nic, &completion, now);
                } else if let Some(perftest) = &mut self.perftest {
                    perftest.on_completion(&mut self.nic, &completion);
                }
            } else {
                break;
            }
        }
        while self.nic.poll_event().is_some() {}
        if let Some(perftest) = &mut self.perftest {
            perftest.serve(&mut self.nic, now);
        }
        if !self.done_reported && self.is_done() {
            self.done_reported = true;
            self.events.push_back(Event::Done { worker: self.worker });
            self.publish(now);
        } else if now.since(self.published_at) >= PUBLISH_INTERVAL {
            self.publish(now);
        }
    }

    fn on_cm(&mut self, event: &CmEvent, now: Nanos) {
        let conn = event.conn();
        if let CmEvent::Requested { listener, .. } = event {
            let is_requested = |service: &&mut Service| {
                service.is_server() && service_id_of(PortSpace::Tcp, service.port()) == listener.service_id()
            };
            match self.services.iter_mut().find(is_requested) {
                Some(service) => service.on_request(&mut self.nic, conn, now),
                None => _ = self.nic.reject(conn, RejReason::INVALID_SERVICE_ID, &[], now),
            }
            return;
        }
        if let Some(service) = self.services.iter_mut().find(|service| service.has_connection(conn)) {
            service.on_cm(&mut self.nic, conn, event, now);
        }
    }

    fn publish(&mut self, now: Nanos) {
        self.published_at = now;
        // A worker does not wait for a lock: while another thread reads, that thread sees the previous state.
        if let Ok(mut status) = self.status.try_lock() {
            self.write_status(&mut status);
        }
    }

    fn write_status(&self, status: &mut HostStatus) {
        status.counters = *self.nic.counters();
        status.control_dropped = self.nic.control_dropped();
        status.tcp_dropped = self.perftest.as_ref().map_or(0, Servers::tcp_dropped);
        let perftest = self.perftest.iter().flat_map(Servers::rows);
        status.services = self.services.iter().map(Service::row).chain(perftest).cloned().collect();
    }

    /// Sends as much as the port takes. Sending completes requests, which may cause further frames.
    fn transmit<O: Output>(&mut self, now: Nanos, out: &mut O) {
        loop {
            let before = self.nic.counters().completions;
            let Self { outbox, nic, perftest, .. } = self;
            outbox.send(out, |frame| {
                perftest.as_mut().is_some_and(|perftest| perftest.poll_transmit(frame))
                    || nic.poll_transmit(now, frame)
            });
            if self.nic.counters().completions == before {
                return;
            }
            self.serve(now);
        }
    }
}

/// Returns the worker that processes a frame: that of its queue pair or connection, or of its TCP connection. Worker 0
/// processes all others: ARP, neighbour discovery and echo requests.
#[inline]
fn owner(frame: &[u8], workers: u32) -> usize {
    match part::owner(frame, workers) {
        Some(worker) => worker as usize,
        None => tcp::peer_of(frame).map_or(0, |(host, ports)| {
            (part::hash(host, mix(ports.into()) as u32) % u64::from(workers)) as usize
        }),
    }
}

impl Drop for Host {
    /// Publishes the last state, for the closing report.
    fn drop(&mut self) {
        if !std::thread::panicking() {
            self.write_status(&mut self.status.lock().unwrap_or_else(PoisonError::into_inner));
        }
    }
}

impl Function for Host {
    type Command = Notice;
    type Event = Event;

    const HAS_OWNERS: bool = true;

    #[inline]
    fn owner(&self, frame: &impl Frame, _port: PortId) -> Option<usize> {
        Some(owner(frame.bytes(), self.workers as u32))
    }

    fn on_frame<O: Output>(
        &mut self,
        frame: &mut O::Frame,
        _port: PortId,
        now: Nanos,
        out: &mut O,
    ) -> Verdict {
        let perftest = self.perftest.as_mut();
        if !perftest.is_some_and(|perftest| perftest.on_frame(frame.bytes())) {
            self.nic.on_frame(frame.bytes(), now);
        }
        self.serve(now);
        self.transmit(now, out);
        Verdict::Consume
    }

    fn on_timer<O: Output>(&mut self, now: Nanos, out: &mut O) {
        if self.nic.next_timer().is_some_and(|at| at <= now) {
            self.nic.on_timer(now);
        }
        self.serve(now);
        self.transmit(now, out);
    }

    fn next_timer(&self) -> Option<Nanos> {
        let tcp_waits = self.perftest.as_ref().is_some_and(Servers::wants_to_transmit);
        if self.outbox.is_waiting() || !self.started || tcp_waits || self.nic.wants_to_transmit() {
            return Some(Nanos::ZERO);
        }
        let perftest = self.perftest.as_ref().and_then(Servers::next_timer);
        [self.nic.next_timer(), perftest, Some(self.published_at + PUBLISH_INTERVAL)]
            .into_iter()
            .flatten()
            .min()
    }

    fn on_command(&mut self, notice: Notice, now: Nanos) {
        self.nic.on_notice(notice, now);
        self.serve(now);
    }

    fn poll_event(&mut self) -> Option<Event> {
        // While the control plane's queue is full, notices stay in the NIC, which bounds them.
        let notice = |notice| Event::Notice { worker: self.worker, notice };
        self.events.pop_front().or_else(|| self.nic.poll_notice().map(notice))
    }
}
