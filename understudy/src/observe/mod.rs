//! Observation of a running instance: a Unix socket for `understudy top` and `understudy trace`, and metrics
//! for Prometheus.
//!
//! Sockets are served by threads of their own. They send requests to the control thread, which responds
//! within one iteration of its loop, from counters that workers maintain anyway. Observation does not slow
//! down the workers.

mod client;
mod guests;
mod metrics;
mod snapshot;
mod socket;
mod trace;

pub(crate) use client::{Client, Lost, Target};
pub(crate) use snapshot::{Instance, Latency, Port, Row, Snapshot, Table, Told, busiest};
pub(crate) use trace::{Asked as TraceAsked, Line as TraceLine, NoTrace, Occasion, Part};

use crate::config::Config;
use core::net::IpAddr;
use crossbeam_channel::{Receiver, Sender};
use dataplane::{ControlOutput, Live};
use miette::Report;
use std::sync::Arc;
use std::time::Instant;
use switch::Function;
use trace::{Traces, Tracing};

/// Capacity of the queue of requests to the control thread
const QUESTIONS: usize = 64;

/// A queue pair: its host, if known, and its QPN
pub(crate) type QueuePair = (Option<IpAddr>, u32);

/// A request to the control thread, with the channel for the response.
enum Question {
    Snapshot(Sender<Arc<Snapshot>>),
    Trace(trace::Asked, Sender<Result<Tracing, NoTrace>>),
}

/// Handle through which the threads of sockets send requests.
#[derive(Clone)]
struct Asking(Sender<Question>);

impl Asking {
    /// Returns the current state of the instance; `None` if it is shutting down.
    fn snapshot(&self) -> Option<Arc<Snapshot>> {
        let (answer, answered) = crossbeam_channel::bounded(1);
        self.0.send(Question::Snapshot(answer)).ok()?;
        answered.recv().ok()
    }

    /// Starts the requested trace.
    fn trace(&self, asked: trace::Asked) -> Result<Tracing, NoTrace> {
        let (answer, answered) = crossbeam_channel::bounded(1);
        self.0.send(Question::Trace(asked, answer)).map_err(|_| NoTrace::Ending)?;
        answered.recv().map_err(|_| NoTrace::Ending)?
    }
}

/// The control thread's side of observation.
pub(crate) struct Observer {
    instance: Instance,
    began: Instant,
    questions: Receiver<Question>,
    traces: Traces,
    /// Removes the socket from the file system when dropped
    _socket: Option<socket::Socket>,
}

impl Observer {
    /// Starts what `[observe]` configures; returns `None` if that is nothing. DPDK has to be initialised,
    /// because it measures the TSC frequency.
    pub(crate) fn start(config: &Config) -> Result<Option<Self>, Report> {
        let observe = &config.observe;
        if observe.socket.is_none() && observe.prometheus.is_none() {
            return Ok(None);
        }
        let (asking, questions) = crossbeam_channel::bounded(QUESTIONS);
        let asking = Asking(asking);
        let socket = observe.socket.as_deref().map(|path| socket::Socket::open(path, &asking)).transpose()?;
        if let Some(address) = observe.prometheus {
            metrics::serve(address, asking)?;
        }
        let (instance, began) = (Instance::of(config), crate::run::now());
        Ok(Some(Self { instance, began, questions, traces: Traces::default(), _socket: socket }))
    }

    /// Responds to the requests since the last call. `told` returns the function's own metrics, and `group`
    /// the queue pairs of one of its groups.
    pub(crate) fn attend<F: Function>(
        &mut self,
        live: &Live<'_>,
        out: &mut ControlOutput<'_, F>,
        told: impl Fn() -> Told,
        group: impl Fn(u32) -> Result<Vec<QueuePair>, NoTrace>,
    ) {
        self.traces.attend(out);
        let mut snapshot = None;
        for question in self.questions.try_iter().take(QUESTIONS) {
            match question {
                // A requester that has given up needs no response.
                Question::Snapshot(answer) => {
                    let snapshot = snapshot.get_or_insert_with(|| {
                        let uptime_s = self.began.elapsed().as_secs_f64();
                        Arc::new(Snapshot::of(live, &self.instance, uptime_s, told()))
                    });
                    drop(answer.send(Arc::clone(snapshot)));
                }
                Question::Trace(asked, answer) => {
                    let begun = self.traces.begin(&asked, live, &group);
                    // Workers are notified first, so that every packet after the response is traced.
                    self.traces.attend(out);
                    drop(answer.send(begun));
                }
            }
        }
    }
}

/// Group lookup for functions that have no groups.
pub(crate) fn no_groups(asked: u32) -> Result<Vec<QueuePair>, NoTrace> {
    Err(NoTrace::NoSuchGroup { asked, there: Vec::new() })
}
