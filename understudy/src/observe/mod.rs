//! Observation of a running instance: a Unix socket for `understudy top` and `understudy trace`, and metrics
//! for Prometheus.
//!
//! Sockets are served by threads of their own. They send requests to the control thread, which responds
//! within one iteration of its loop, from counters that workers maintain anyway. Observation does not slow
//! down the workers.

mod client;
mod config;
mod configuration;
mod connections;
mod metrics;
mod queue_pairs;
mod snapshot;
mod socket;
pub(crate) mod steer;
mod trace;
mod values;

pub(crate) use client::{Client, ClientError, Target};
pub(crate) use config::{Keys, ObserveConfig, read as read_config};
pub(crate) use configuration::ConfigState;
pub(crate) use queue_pairs::{CountedQp, queue_pairs};
pub(crate) use snapshot::{FunctionMetrics, Instance, Latency, Port, Row, Snapshot, Table, busiest};
#[cfg(test)]
pub(crate) use trace::Hex;
pub(crate) use trace::{Line as TraceLine, Part, Request as TraceRequest, TraceError, TraceRecord};
pub(crate) use values::{Values, headings};

use crate::system::now;
use core::net::IpAddr;
use crossbeam_channel::{Receiver, Sender};
use dataplane::{ControlOutput, Live};
use miette::Report;
use std::sync::Arc;
use std::time::Instant;
use steer::{SteerError, Steering};
use switch::Function;
use trace::{RunningTrace, TraceControl};

/// Capacity of the queue of requests to the control thread
const MAX_REQUESTS: usize = 64;

/// A queue pair: its host, if known, and its QPN
pub(crate) type QueuePair = (Option<IpAddr>, u32);

/// A request to the control thread, with the channel for the response.
enum ControlRequest {
    Snapshot(Sender<Arc<Snapshot>>),
    Trace(trace::Request, Sender<Result<RunningTrace, TraceError>>),
}

/// Handle through which the threads of sockets send requests.
#[derive(Clone)]
struct RequestSender {
    control: Sender<ControlRequest>,
    steering: Sender<Steering>,
}

impl RequestSender {
    /// Returns the current state of the instance; `None` if it is shutting down.
    fn snapshot(&self) -> Option<Arc<Snapshot>> {
        let (response, received) = crossbeam_channel::bounded(1);
        self.control.send(ControlRequest::Snapshot(response)).ok()?;
        received.recv().ok()
    }

    /// Starts the requested trace.
    fn trace(&self, trace_request: trace::Request) -> Result<RunningTrace, TraceError> {
        let (response, received) = crossbeam_channel::bounded(1);
        let request = ControlRequest::Trace(trace_request, response);
        self.control.send(request).map_err(|_| TraceError::Ending)?;
        received.recv().map_err(|_| TraceError::Ending)?
    }

    /// Passes a request to the function, and returns its response.
    fn steer<T>(
        &self,
        request: impl FnOnce(Sender<Result<T, SteerError>>) -> Steering,
    ) -> Result<T, SteerError> {
        let (response, received) = crossbeam_channel::bounded(1);
        self.steering.send(request(response)).map_err(|_| SteerError::Ending)?;
        received.recv().map_err(|_| SteerError::Ending)?
    }
}

/// The control thread's side of observation.
pub(crate) struct Observer {
    instance: Instance,
    began: Instant,
    requests: Receiver<ControlRequest>,
    traces: TraceControl,
    /// Removes the socket from the file system when dropped
    _socket: Option<socket::Socket>,
}

impl Observer {
    /// Starts what `[observe]` configures; returns `None` if that is nothing. DPDK has to be initialised,
    /// because it measures the TSC frequency, unless the instance has no ports. Requests that change the function
    /// go into the queue `steering`.
    pub(crate) fn start(
        observe: &ObserveConfig,
        instance: Instance,
        steering: &Sender<Steering>,
    ) -> Result<Option<Self>, Report> {
        if observe.socket.is_none() && observe.prometheus.is_none() {
            return Ok(None);
        }
        let (control, requests) = crossbeam_channel::bounded(MAX_REQUESTS);
        let sender = RequestSender { control, steering: steering.clone() };
        let socket = observe.socket.as_deref().map(|path| socket::Socket::open(path, &sender)).transpose()?;
        if let Some(address) = observe.prometheus {
            metrics::serve(address, sender)?;
        }
        Ok(Some(Self { instance, began: now(), requests, traces: TraceControl::default(), _socket: socket }))
    }

    /// Responds to the requests since the last call, for an instance without ports and workers.
    pub(crate) fn serve_without_ports(&mut self, metrics: impl Fn() -> FunctionMetrics) {
        for request in self.requests.try_iter().take(MAX_REQUESTS) {
            // A requester that has given up needs no response.
            match request {
                ControlRequest::Snapshot(response) => {
                    let uptime_s = self.began.elapsed().as_secs_f64();
                    let snapshot = Snapshot::without_ports(&self.instance, uptime_s, metrics());
                    drop(response.send(Arc::new(snapshot)));
                }
                ControlRequest::Trace(_, response) => drop(response.send(Err(TraceError::NoPorts))),
            }
        }
    }

    /// Responds to the requests since the last call. `metrics` returns the function's own metrics, and
    /// `group` the queue pairs of one of its groups.
    pub(crate) fn serve_requests<F: Function>(
        &mut self,
        live: &Live<'_>,
        out: &mut ControlOutput<'_, F>,
        metrics: impl Fn() -> FunctionMetrics,
        group: impl Fn(u32) -> Result<Vec<QueuePair>, TraceError>,
    ) {
        self.traces.send_pending(out);
        let mut snapshot = None;
        for request in self.requests.try_iter().take(MAX_REQUESTS) {
            match request {
                // A requester that has given up needs no response.
                ControlRequest::Snapshot(response) => {
                    let snapshot = snapshot.get_or_insert_with(|| {
                        let uptime_s = self.began.elapsed().as_secs_f64();
                        Arc::new(Snapshot::of(live, &self.instance, uptime_s, metrics()))
                    });
                    drop(response.send(Arc::clone(snapshot)));
                }
                ControlRequest::Trace(trace_request, response) => {
                    let trace = self.traces.start(&trace_request, live, &group);
                    // Workers are notified first, so that every packet after the response is traced.
                    self.traces.send_pending(out);
                    drop(response.send(trace));
                }
            }
        }
    }
}

/// Group lookup for functions that have no groups.
pub(crate) fn no_groups(id: u32) -> Result<Vec<QueuePair>, TraceError> {
    Err(TraceError::NoSuchGroup { requested: id, existing: Vec::new() })
}
