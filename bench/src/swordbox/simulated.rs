//! The gain of a Swordbox in virtual time: contended locks on a server whose atomics take as long as the
//! authors of the paper measured. The numbers are the same on any machine.

use clap::Args;
use comfy_table::{Cell, CellAlignment, Table as Text, presets};
use miette::{IntoDiagnostic as _, Report, miette};
use serde_json::{Value, json};
use sim::Controlled;
use std::io::Write as _;
use switch::Nanos;
use switch::forward::Config as ForwardConfig;
use swordbox::{Config, Connection, Control, Journal, Layers, Server, Swordbox, WordTable};
use workloads::clients::Kind;
use workloads::clients::lock::Unlock;
use workloads::rack::costs::{LOCKS_LEN, LOCKS_VA, Run, locks};
use workloads::rack::{self, Outcome};

/// Clients that contend for one lock
const CLIENTS: usize = 240;
/// Longer than any packet is in flight in this rack, whose round trips take microseconds
const SETTLE: Nanos = Nanos::from_millis(1);

/// The switch between clients and server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SwitchKind {
    /// A switch that only forwards
    Forward,
    /// A Swordbox with these layers
    Swordbox(Layers),
}

impl SwitchKind {
    /// All switches, each with one more layer
    pub const ALL: [Self; 4] = [
        Self::Forward,
        Self::Swordbox(Layers::PASS),
        Self::Swordbox(Layers { remap: true, ..Layers::PASS }),
        Self::Swordbox(Layers::CAS_TO_WRITE),
    ];

    /// Returns the name in tables.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Forward => "without",
            Self::Swordbox(Layers { cas_to_write: true, .. }) => "CAS to WRITE",
            Self::Swordbox(Layers { remap: true, .. }) => "remap",
            Self::Swordbox(_) => "pass-through",
        }
    }
}

/// A journal that stores nothing, because the simulation has no restart.
struct NullJournal;

impl Journal for NullJournal {
    fn add(&mut self, _connection: Connection) -> std::io::Result<()> {
        Ok(())
    }

    fn remove(&mut self, _connection: Connection) {}
}

/// Creates a Swordbox between the machines and the server of a rack.
fn swordbox(machines: usize, layers: Layers) -> Controlled<Control> {
    let table =
        WordTable { rkey: None, range: LOCKS_VA..LOCKS_VA + LOCKS_LEN as u64, stride: 8, writable: true };
    let config = Config {
        connections: 1024,
        servers: vec![Server { tables: vec![table], ..Server::new(rack::ip(None)) }],
        layers,
        settle: SETTLE,
        ..Config::new(ForwardConfig::bridge(machines as u16 + 1, 2 * machines + 2))
    };
    let of_control = config.clone();
    Controlled::new(
        move || Swordbox::new(config.clone()),
        move |_| Control::new(Box::new(NullJournal), &of_control, 1),
    )
}

/// Workload of clients that take and release locks.
#[derive(Clone, Copy, Debug)]
pub struct Contention {
    /// Number of clients, each with a connection
    pub clients: usize,
    /// Number of locks, chosen uniformly
    pub locks: usize,
    /// Whether locks are in the memory of the server's NIC, whose atomics are faster
    pub device: bool,
    /// Duration of the measurement
    pub span: Nanos,
    /// Seed of all random choices
    pub seed: u64,
}

impl Contention {
    /// Returns a workload of one lock, for 5 ms.
    pub const fn new(clients: usize, device: bool) -> Self {
        Self { clients, locks: 1, device, span: Nanos::from_millis(5), seed: 1 }
    }

    /// Runs the workload over a switch.
    ///
    /// # Errors
    /// The simulation's error.
    pub fn measure(&self, switch: SwitchKind) -> Result<Outcome, Report> {
        // A Swordbox resolves nothing before no earlier request can be in flight past it (`settle`). And each
        // client takes the lock once on its own connection, past the Swordbox, to prove that it may write.
        let warm_up = SETTLE + SETTLE + Nanos::from_micros(200 * self.clients as u64);
        let Self { device, span, seed, .. } = *self;
        let run = Run { seed, device, warm_up, span, ..Run::new(self.clients) };
        let outcome = match switch {
            SwitchKind::Forward => locks(&run, self.locks, 0.0, Unlock::Write, rack::forward(run.machines)),
            SwitchKind::Swordbox(layers) => {
                locks(&run, self.locks, 0.0, Unlock::Write, swordbox(run.machines, layers))
            }
        };
        outcome.map_err(|error| miette!("{error}"))
    }

    /// Returns the operations on locks a second, successful or not. The server's NIC is their bottleneck.
    pub fn requests_per_s(&self, outcome: &Outcome) -> f64 {
        outcome.tally.requests() as f64 * 1e9 / self.span.0 as f64
    }
}

fn row(contention: &Contention, switch: SwitchKind, outcome: &Outcome) -> Value {
    let lock = outcome.latency(Kind::Lock);
    let us = |span: Nanos| rounded(span.0 as f64 / 1000.0, 1);
    json!({
        "memory": if contention.device { "NIC" } else { "host" },
        "clients": contention.clients,
        "locks": contention.locks,
        "switch": switch.name(),
        "requests_per_s": contention.requests_per_s(outcome).round() as u64,
        "locks_per_s": outcome.operations_per_s.round() as u64,
        "cas_succeed_percent": rounded(100.0 * outcome.tally.cas_share(), 1),
        "bytes_per_lock": outcome.bytes_per_operation.round() as u64,
        "p50_us": us(lock.p50),
        "p99_us": us(lock.p99),
    })
}

fn rounded(value: f64, digits: i32) -> f64 {
    let unit = 10f64.powi(digits);
    (value * unit).round() / unit
}

/// Runs the simulation and prints it.
pub(super) fn run(as_json: bool) -> Result<(), Report> {
    let mut layers = Vec::new();
    let mut gains = Vec::new();
    for device in [true, false] {
        let contention = Contention::new(CLIENTS, device);
        let outcomes = SwitchKind::ALL.map(|switch| contention.measure(switch));
        let mut rates = Vec::new();
        for (switch, outcome) in SwitchKind::ALL.into_iter().zip(outcomes) {
            let outcome = outcome?;
            rates.push((contention.requests_per_s(&outcome), outcome.operations_per_s));
            layers.push(row(&contention, switch, &outcome));
        }
        let gain = rates.last().zip(rates.first());
        let (tries, taken) =
            gain.map_or((0.0, 0.0), |(with, without)| (with.0 / without.0, with.1 / without.1));
        gains.push((device, rounded(tries, 2), rounded(taken, 2)));
    }
    let mut scan = Vec::new();
    let contentions = [1, 8, 16, 64, 128].map(|clients| Contention::new(clients, false)).into_iter();
    let spread = [16, 1024].map(|locks| Contention { locks, ..Contention::new(64, false) });
    for contention in contentions.chain(spread) {
        for switch in [SwitchKind::ALL[0], SwitchKind::ALL[3]] {
            scan.push(row(&contention, switch, &contention.measure(switch)?));
        }
    }
    let mut out = std::io::stdout().lock();
    if as_json {
        let gains: Vec<_> = gains
            .iter()
            .map(|(device, tries, taken)| json!({ "device": device, "requests": tries, "locks": taken }))
            .collect();
        return writeln!(out, "{}", json!({ "layers": layers, "gains": gains, "scan": scan }))
            .into_diagnostic();
    }
    let columns = [
        "memory",
        "clients",
        "locks",
        "switch",
        "requests_per_s",
        "locks_per_s",
        "cas_succeed_percent",
        "bytes_per_lock",
        "p50_us",
        "p99_us",
    ];
    writeln!(
        out,
        "\nLocks on a server whose atomics take as long as the paper measured (virtual time):\n{}",
        table(&layers, &columns)
    )
    .into_diagnostic()?;
    for (device, gain, taken) in gains {
        let (what, goal) = if device { ("NIC", 2.4) } else { ("host", 5.5) };
        let verdict = if gain >= goal { "reached" } else { "missed" };
        writeln!(out, "{gain:.2}  operations on a lock a second with Swordbox / without, in the {what}'s memory (goal {goal}: {verdict}); taken: {taken:.2}")
            .into_diagnostic()?;
    }
    writeln!(out, "\nOther numbers of clients and locks:\n{}", table(&scan, &columns)).into_diagnostic()
}

fn table(rows: &[Value], columns: &[&str]) -> String {
    let mut table = Text::new();
    table.load_style(presets::NOTHING);
    let cell = |text: String| Cell::new(text).set_alignment(CellAlignment::Right);
    table.set_header(columns.iter().map(|column| cell(column.replace('_', " "))));
    for row in rows {
        let text = |value: &Value| value.as_str().map_or_else(|| value.to_string(), Into::into);
        table.add_row(columns.iter().map(|column| cell(text(&row[column]))));
    }
    table.lines().map(|line| line.trim_end().to_owned()).collect::<Vec<_>>().join("\n")
}

/// Show contended locks with Swordbox and without, side by side (simulated)
#[derive(Args)]
pub struct DemoArgs {
    /// Halve the duration
    #[arg(long)]
    quick: bool,
    /// Print a line of JSON for each run instead
    #[arg(long)]
    json: bool,
}

/// Prints the demonstration, a line for each run. Fails if Swordbox gains nothing where clients contend.
///
/// # Errors
/// Swordbox gains less than a factor of 2 with 64 clients or more, or a run failed.
pub fn demo(args: &DemoArgs) -> Result<(), Report> {
    let clients: &[usize] = if args.quick { &[1, 16, 64] } else { &[1, 4, 16, 64, 240] };
    let span = Nanos::from_millis(if args.quick { 2 } else { 5 });
    let mut out = std::io::stdout().lock();
    if !args.json {
        writeln!(
            out,
"Clients take and release one lock in a memory server, by CAS and WRITE, in virtual time. The server's NIC takes as long\n\
             for them as the paper measured. For each number of clients: a switch that only forwards, and Swordbox.\n\n\
             {:>7}  {:<12} {:>10} {:>12} {:>10} {:>9} {:>9}",
            "clients", "switch", "locks/s", "CAS succeed", "bytes/lock", "p50 us", "p99 us"
        )
        .into_diagnostic()?;
    }
    let (mut result, mut headline) = (Ok(()), String::new());
    for &clients in clients {
        let contention = Contention { span, ..Contention::new(clients, false) };
        let (mut rates, mut latest) = (Vec::new(), Vec::new());
        for switch in [SwitchKind::ALL[0], SwitchKind::ALL[3]] {
            let outcome = contention.measure(switch)?;
            rates.push(outcome.operations_per_s);
            latest.push(outcome.latency(Kind::Lock).p99);
            let row = row(&contention, switch, &outcome);
            if args.json {
                writeln!(out, "{row}").into_diagnostic()?;
                continue;
            }
            let number = |key: &str| row[key].to_string();
            let gain = match rates[..] {
                [without, with] => format!("   {:.1} times", with / without),
                _ => String::new(),
            };
            let name = if switch == SwitchKind::Forward { "without" } else { "Swordbox" };
            writeln!(
                out,
                "{clients:>7}  {name:<12} {:>10} {:>10} % {:>10} {:>9} {:>9}{gain}",
                number("locks_per_s"),
                number("cas_succeed_percent"),
                number("bytes_per_lock"),
                number("p50_us"),
                number("p99_us")
            )
            .into_diagnostic()?;
            out.flush().into_diagnostic()?;
        }
        headline = format!(
            "One lock, {clients} clients: {:.1} times the locks a second with Swordbox, and a 99th percentile of {:.0} us instead of \
             {:.0} us",
            rates[1] / rates[0],
            latest[1].0 as f64 / 1e3,
            latest[0].0 as f64 / 1e3
        );
        if clients >= 64 && rates[1] < 2.0 * rates[0] {
            result = Err(miette!(
                "{clients} clients take {:.0} locks/s with Swordbox, and {:.0} without: expected at least twice as many",
                rates[1],
                rates[0]
            ));
        }
    }
    if !args.json {
        writeln!(out, "\n{headline}").into_diagnostic()?;
    }
    result
}
