//! Looking at a running instance from outside: a Unix socket for `understudy top` and `understudy trace`, and metrics for
//! Prometheus.
//!
//! The sockets are threads of their own. They ask the control thread, which answers within a turn of its loop from counters
//! that workers keep anyway; a worker notices nothing.

mod client;
mod metrics;
mod snapshot;
mod socket;

pub(crate) use client::{Client, Lost, Target};
pub(crate) use snapshot::{Instance, Latency, Row, Snapshot, Table, Told};

use crate::config::Config;
use crossbeam_channel::{Receiver, Sender};
use dataplane::Live;
use miette::Report;
use std::sync::Arc;
use std::time::Instant;

/// Questions that wait for the control thread at most
const QUESTIONS: usize = 64;

/// What is asked of the control thread, and where the answer goes.
enum Question {
    Snapshot(Sender<Arc<Snapshot>>),
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
}

/// The control thread's side.
pub(crate) struct Observer {
    instance: Instance,
    began: Instant,
    questions: Receiver<Question>,
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
        Ok(Some(Self { instance, began, questions, _socket: socket }))
    }

    /// Answers what was asked since the last time. `told` is what the function says of itself.
    pub(crate) fn answer(&mut self, live: &Live<'_>, told: impl FnOnce() -> Told) {
        if self.questions.is_empty() {
            return;
        }
        let uptime_s = self.began.elapsed().as_secs_f64();
        let snapshot = Arc::new(Snapshot::of(live, &self.instance, uptime_s, told()));
        for question in self.questions.try_iter().take(QUESTIONS) {
            match question {
                // Who does not wait any more needs no answer.
                Question::Snapshot(answer) => drop(answer.send(Arc::clone(&snapshot))),
            }
        }
    }
}
