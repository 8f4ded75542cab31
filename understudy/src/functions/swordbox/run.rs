//! Swordbox: the data plane on a worker; on the control thread, the control plane with the journal and the
//! layers that change; and its part of the report.

mod journal;
#[cfg(test)]
mod tests;
mod writer;

use super::SwordboxConfig;
use super::report::SwordboxReport;
use crate::functions::launch::Launch;
use crate::functions::report::Report;
use crate::observe::steer::Steering;
use crate::observe::{FunctionMetrics, Values};
use crate::system::random_u64;
use core::fmt::Write as _;
use crossbeam_channel::Receiver;
use dataplane::{ControlOutput, ControlPlane, Live, Mbuf, PortInfo};
use journal::Journal;
use std::io;
use std::sync::Arc;
use switch::PortId;
use swordbox::{Connection, Control, Counters, Event, Layers, MemoryBounds, Swordbox};
use tracing::info;
use writer::Writer;

switch::metrics! {
    /// Counters of the journal.
    #[derive(Default)]
    pub(super) struct JournalCounters {
        /// Connections that could not be written to the journal
        unwritten: u64 [connections],
    }
}

/// State that is prepared before the runtime starts.
struct Prepared {
    /// Connections of an earlier run, which are refused until they are established again
    ended: Vec<Connection>,
    writer: Option<Writer>,
}

/// Journal of a configuration without one: adds no connection
struct NoJournal;

impl swordbox::Journal for NoJournal {
    fn add(&mut self, _connection: Connection) -> io::Result<()> {
        Err(io::Error::other("no journal is configured"))
    }

    fn remove(&mut self, _connection: Connection) {}
}

/// Journal of the control plane if the writer thread has already written the connections
struct AlreadyWritten;

impl swordbox::Journal for AlreadyWritten {
    fn add(&mut self, _connection: Connection) -> io::Result<()> {
        Ok(())
    }

    fn remove(&mut self, _connection: Connection) {}
}

impl Prepared {
    /// Opens the journal.
    fn of(config: &SwordboxConfig) -> Result<Self, miette::Report> {
        let journal = config.journal.as_deref().map(Journal::open).transpose();
        let journal = journal.map_err(|error| miette::miette!("{error}"))?;
        let ended = journal.iter().flat_map(Journal::live).collect();
        let writer = journal.map(|mut journal| Writer::start(move |orders| journal.write(orders).is_ok()));
        let writer = writer
            .transpose()
            .map_err(|error| miette::miette!("cannot start the journal's thread: {error}"))?;
        Ok(Self { ended, writer })
    }
}

/// Describes the capacities of the tables, and the memory that they take.
fn memory_text(config: &swordbox::Config, workers: usize, memory: MemoryBounds) -> String {
    let MemoryBounds { connections, in_flight, lines, held, structures } = memory;
    let lanes = config.shared_qps();
    let each = if workers > 1 { " at each worker" } else { "" };
    format!(
        "Swordbox keeps{each} up to {} connections in {connections} bytes, {} outstanding operations on each of {lanes} shared \
         connections in {in_flight}, the words of {} lines in {lines}, {} held frames in {held}, and the state of data structures \
         in {structures}.",
        config.connections, config.in_flight, config.lines, config.held
    )
}

/// Returns the names of the layers, as in the configuration file.
pub(super) fn layers_text(layers: Layers) -> String {
    let Layers { remap, cas_to_write, steer_writes, steer_reads } = layers;
    let all = [
        (remap, "remap"),
        (cas_to_write, "cas_to_write"),
        (steer_writes, "steer_writes"),
        (steer_reads, "steer_reads"),
    ];
    let on: Vec<_> = all.iter().filter(|(on, _)| *on).map(|(_, name)| *name).collect();
    if on.is_empty() { "none".into() } else { on.join(", ") }
}

/// The control plane. It receives events about connections when they are in the journal, and changes the layers on
/// request.
struct SwordboxControl {
    plane: ControlPlane<Control>,
    /// The journal's thread, if there is a journal
    writer: Option<Writer>,
    /// Counters of the journal's thread
    journal: JournalCounters,
    requests: Option<Receiver<Steering>>,
    layers: Layers,
}

impl SwordboxControl {
    /// Carries out the requests since the last call.
    fn poll_requests(&mut self) {
        for request in self.requests.iter().flat_map(Receiver::try_iter) {
            match request {
                Steering::Layers(layers, response) => {
                    self.layers = layers;
                    self.plane.control.set_layers(layers);
                    // A requester that has given up needs no response.
                    drop(response.send(Ok(layers)));
                }
                other @ (Steering::Rules(..) | Steering::Rates(..)) => other.refuse("swordbox"),
            }
        }
    }
}

impl dataplane::ControlHandler<Swordbox> for SwordboxControl {
    fn on_event(&mut self, worker: usize, event: Event, out: &mut ControlOutput<'_, Swordbox>) {
        let Some(writer) = &mut self.writer else { return self.plane.on_event(worker, event, out) };
        match event {
            Event::TranslationRequested(connection) => {
                self.journal.unwritten += u64::from(!writer.add(connection));
            }
            Event::ConnectionEnded(connection) => {
                writer.remove(connection);
                self.plane.on_event(worker, event, out);
            }
            Event::SharedQpOpened { .. } | Event::SharedQpLost { .. } | Event::Bridge(_) => {
                self.plane.on_event(worker, event, out);
            }
        }
    }

    fn on_punt(&mut self, worker: usize, frame: Mbuf, port: PortId, out: &mut ControlOutput<'_, Swordbox>) {
        self.plane.on_punt(worker, frame, port, out);
    }

    fn on_tick(&mut self, live: &Live<'_>, out: &mut ControlOutput<'_, Swordbox>) -> bool {
        self.poll_requests();
        while let Some((connection, written)) = self.writer.as_mut().and_then(Writer::poll) {
            if written {
                self.plane.on_event(0, Event::TranslationRequested(connection), out);
            } else {
                // The connection stays as it is: its packets pass unchanged.
                self.journal.unwritten += 1;
            }
        }
        self.plane.on_tick(live, out)
    }

    fn on_link(&mut self, port: &PortInfo, up: bool) {
        self.plane.on_link(port, up);
    }
}

pub(super) fn run(config: &SwordboxConfig, launch: Launch<'_>) -> Result<Report, miette::Report> {
    let Prepared { ended, writer } = Prepared::of(config)?;
    let mut run = launch.start()?;
    let mut switch = swordbox::Config { ended, ..config.switch.clone() };
    if let Some(interface) = switch.interface.as_mut().filter(|_| config.uses_port_mac) {
        interface.mac = run.port_mac();
    }
    let memory = switch.memory(run.workers);
    let mut text = memory_text(&switch, run.workers, memory);
    if !switch.ended.is_empty() {
        let count = switch.ended.len();
        _ = write!(
            text,
            " Connections of an earlier run, refused until they are established again: {count}."
        );
    }
    info!("{text}");
    let counted_qps = switch.forward.counted_qps;
    let layers = switch.layers;
    let function = |worker| Swordbox::of_worker(switch.clone(), worker, run.workers).salted(random_u64());
    let functions: Vec<_> = (0..run.workers).map(function).collect();
    let counters: Vec<_> = functions.iter().map(Swordbox::counters).collect();
    let bridged: Vec<_> = functions.iter().map(Swordbox::forward_counters).collect();
    let journal: Box<dyn swordbox::Journal + Send> = match writer {
        Some(_) => Box::new(AlreadyWritten),
        None => Box::new(NoJournal),
    };
    let control = Control::new(journal, &switch, run.workers).with_switch_owned_qps(&switch, random_u64());
    let plane = ControlPlane::new(control);
    let mut control = SwordboxControl {
        plane,
        writer,
        journal: JournalCounters::default(),
        requests: run.take_steering(),
        layers,
    };
    let metrics = |control: &SwordboxControl| {
        FunctionMetrics::forwarded(&bridged).values(&counts(&counters, control)).values(&usage(&counters))
    };
    let (outcome, seconds) = run.run(workers::swordbox, functions, &mut control, metrics);
    let report = Report::of(&run.runtime, &outcome, &bridged, counted_qps, seconds);
    let MemoryBounds { connections, in_flight, lines, held, structures } = memory;
    let swordbox = SwordboxReport {
        layers: layers_text(control.layers),
        counts: counts(&counters, &control),
        usage: usage(&counters),
        memory_bytes: [
            ("connections", connections),
            ("in_flight", in_flight),
            ("lines", lines),
            ("held", held),
            ("structures", structures),
        ]
        .into(),
        counters,
    };
    Ok(report.with(&swordbox))
}

/// Returns the counters of the data plane, of the control plane and of the journal.
fn counts(counters: &[Arc<Counters>], control: &SwordboxControl) -> Values {
    let plane = &control.plane.control;
    let journal = JournalCounters { unwritten: control.journal.unwritten + plane.failed() };
    let data_plane = Values::total(counters.iter().map(Arc::as_ref));
    data_plane.and(Values::of(&plane.connect_counters())).and(Values::of(&journal))
}

/// Returns the table entries in use on all workers.
fn usage(counters: &[Arc<Counters>]) -> Values {
    Values::total(counters.iter().map(|counters| &counters.usage))
}
