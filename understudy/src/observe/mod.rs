//! Looking at a running instance from outside: a Unix socket for `understudy top` and `understudy trace`, and metrics for
//! Prometheus.
//!
//! The sockets are threads of their own. They ask the control thread, which answers within a turn of its loop from counters
//! that workers keep anyway; a worker notices nothing.

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

/// Questions that wait for the control thread at most
const QUESTIONS: usize = 64;

/// A queue pair: its host, if it is known, and its number
pub(crate) type QueuePair = (Option<IpAddr>, u32);

/// What is asked of the control thread, and where the answer goes.
enum Question {
    Snapshot(Sender<Arc<Snapshot>>),
    Trace(trace::Asked, Sender<Result<Tracing, NoTrace>>),
}

/// How threads of sockets ask.
#[derive(Clone)]
struct Asking(Sender<Question>);

impl Asking {
    /// The instance as it is now; `None` if it is ending.
    fn snapshot(&self) -> Option<Arc<Snapshot>> {
        let (answer, answered) = crossbeam_channel::bounded(1);
        self.0.send(Question::Snapshot(answer)).ok()?;
        answered.recv().ok()
    }

    /// A watch on what was asked for.
    fn trace(&self, asked: trace::Asked) -> Result<Tracing, NoTrace> {
        let (answer, answered) = crossbeam_channel::bounded(1);
        self.0.send(Question::Trace(asked, answer)).map_err(|_| NoTrace::Ending)?;
        answered.recv().map_err(|_| NoTrace::Ending)?
    }
}

/// The control thread's side.
pub(crate) struct Observer {
    instance: Instance,
    began: Instant,
    questions: Receiver<Question>,
    traces: Traces,
    /// Removes the socket from the file system
    _socket: Option<socket::Socket>,
}

impl Observer {
    /// Opens what `[observe]` asks for; `None` if that is nothing. DPDK has to be up, which measures the clock.
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

    /// Answers what was asked since the last time. `told` is what the function says of itself, `group` the queue pairs of one of
    /// its groups.
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
                // Who does not wait any more needs no answer.
                Question::Snapshot(answer) => {
                    let snapshot = snapshot.get_or_insert_with(|| {
                        let uptime_s = self.began.elapsed().as_secs_f64();
                        Arc::new(Snapshot::of(live, &self.instance, uptime_s, told()))
                    });
                    drop(answer.send(Arc::clone(snapshot)));
                }
                Question::Trace(asked, answer) => {
                    let begun = self.traces.begin(&asked, live, &group);
                    // Workers are told first: what comes when the answer is known is seen.
                    self.traces.attend(out);
                    drop(answer.send(begun));
                }
            }
        }
    }
}

/// For functions that have no groups
pub(crate) fn no_groups(asked: u32) -> Result<Vec<QueuePair>, NoTrace> {
    Err(NoTrace::NoSuchGroup { asked, there: Vec::new() })
}
