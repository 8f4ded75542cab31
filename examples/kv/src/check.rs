//! `kv check`: several clients read and write at once while servers may fail. In the end, checks that
//! everything acknowledged is present, that no command was executed twice, and that what the clients observed
//! of the keys that they share is linearizable.

use crate::client::{Client, now};
use crate::history::{History, Operation, Span};
use crate::resp::Value;
use crate::server::random_u64;
use clap::Args;
use core::net::SocketAddr;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use core::time::Duration;
use miette::IntoDiagnostic as _;
use std::collections::BTreeMap;
use std::process::ExitCode;
use std::sync::Arc;
use std::thread;
use std::time::Instant;
use tracing::{info, warn};

/// Read and write from several connections; verify that nothing acknowledged is lost or executed twice, and
/// that shared keys are linearizable
///
/// Every second connection sends its commands on shared keys without a number, so that their outcome is
/// unknown when a server fails. All operations on shared keys are kept in memory until the end, 48 bytes
/// each.
#[derive(Args)]
pub(crate) struct CheckArgs {
    /// Client addresses of all servers
    #[arg(long, value_name = "IP:PORT,...", value_delimiter = ',', required = true)]
    tcp: Vec<SocketAddr>,
    /// Duration of the writes; until Ctrl-C if omitted
    #[arg(long, value_name = "S")]
    seconds: Option<f64>,
    /// Number of clients that write at the same time
    #[arg(long, value_name = "COUNT", default_value_t = 4)]
    connections: usize,
    /// Number of keys per client, which are written in turn
    #[arg(long, value_name = "COUNT", default_value_t = 1000)]
    keys: u64,
    /// Number of registers, and of counters, that all connections read and write
    #[arg(long, value_name = "COUNT", default_value_t = 4)]
    shared_keys: u64,
    /// Report pauses without an acknowledgement from this duration on
    #[arg(long, value_name = "MS", default_value_t = 50)]
    pause_ms: u64,
}

/// Timeout of a write. If no server responds for this long, the check fails.
const WRITE_TIMEOUT: Duration = Duration::from_secs(60);

/// Tracks the time of the last acknowledgement
struct AckMonitor {
    began: Instant,
    last_us: AtomicU64,
    longest_us: AtomicU64,
    report_us: u64,
}

impl AckMonitor {
    /// Records that a write was acknowledged, and reports the pause before it if it was long.
    fn record_ack(&self) {
        let now = self.began.elapsed().as_micros() as u64;
        let before = self.last_us.fetch_max(now, Ordering::SeqCst);
        let pause = now.saturating_sub(before);
        self.longest_us.fetch_max(pause, Ordering::SeqCst);
        if pause >= self.report_us {
            warn!(
                "Nothing was acknowledged for {:.0} ms, until {:.1} s.",
                pause as f64 / 1e3,
                now as f64 / 1e6
            );
        }
    }
}

/// One of the clients that read and write.
struct Writer {
    client: Client,
    name: String,
    keys: u64,
    /// Number of acknowledged rounds: the n-th stored n under key n modulo `keys`, and incremented a counter.
    acknowledged: u64,
    shared: Shared,
}

/// Operations of a client on the keys that all clients share.
struct Shared {
    /// Number of the client, from 0
    number: u64,
    /// Prefix of the names of all shared keys
    name: String,
    /// Number of registers, and of counters
    keys: u64,
    /// Whether its commands are numbered and so may be retried, or are sent at most once
    is_numbered: bool,
    /// Number of SETs sent
    writes: u64,
    began: Instant,
    registers: BTreeMap<u64, History>,
    counters: BTreeMap<u64, History>,
}

/// Results of a check
#[derive(Debug, Default, PartialEq, Eq)]
struct Findings {
    acknowledged: u64,
    lost: u64,
    executed_twice: u64,
}

/// Distance between the values of two clients: a power of ten, so that decimal digits show the client.
const VALUE_STRIDE: u64 = 1_000_000_000_000;

impl Shared {
    /// Executes a random operation on a random key.
    fn step(&mut self, client: &mut Client) -> Result<(), String> {
        let random = random_u64();
        let key = (random >> 8) % self.keys;
        match random % 8 {
            0..=1 => self.write(client, key),
            2..=4 => self.read(client, key),
            5..=6 => self.increment(client, key),
            _ => self.count(client, key),
        }
    }

    fn register(&self, key: u64) -> String {
        format!("{}:register:{key}", self.name)
    }

    fn counter(&self, key: u64) -> String {
        format!("{}:counter:{key}", self.name)
    }

    fn now(&self) -> u64 {
        self.began.elapsed().as_nanos() as u64
    }

    /// Sends a command. Returns the response, if any, and the time span of the command.
    fn call(&self, client: &mut Client, words: &[&[u8]]) -> (Option<Value>, Span) {
        let began = self.now();
        let value = if self.is_numbered { client.call(words) } else { client.call_at_most_once(words) };
        let ended = value.is_some().then(|| self.now());
        (value, Span { began, ended })
    }

    fn write(&mut self, client: &mut Client, key: u64) -> Result<(), String> {
        self.writes += 1;
        let value = (self.number + 1) * VALUE_STRIDE + self.writes;
        let (register, text) = (self.register(key), value.to_string());
        match self.call(client, &[b"SET", register.as_bytes(), text.as_bytes()]) {
            (Some(Value::Simple("OK")) | None, span) => {
                self.registers.entry(key).or_default().add(Operation::Write(value), span);
                Ok(())
            }
            (other, _) => Err(format!("SET {register}: {other:?}")),
        }
    }

    fn increment(&mut self, client: &mut Client, key: u64) -> Result<(), String> {
        let counter = self.counter(key);
        let (made, span) = match self.call(client, &[b"INCR", counter.as_bytes()]) {
            (Some(Value::Number(number)), span) => (Some(number.unsigned_abs()), span),
            (None, span) => (None, span),
            (other, _) => return Err(format!("INCR {counter}: {other:?}")),
        };
        self.counters.entry(key).or_default().add(Operation::Increment(made), span);
        Ok(())
    }

    fn read(&mut self, client: &mut Client, key: u64) -> Result<(), String> {
        if let Some((value, span)) = self.get(client, &self.register(key))? {
            self.registers.entry(key).or_default().add(Operation::Read(value), span);
        }
        Ok(())
    }

    fn count(&mut self, client: &mut Client, key: u64) -> Result<(), String> {
        if let Some((value, span)) = self.get(client, &self.counter(key))? {
            self.counters.entry(key).or_default().add(Operation::Count(value), span);
        }
        Ok(())
    }

    /// Reads a number, which is 0 if there is no such key. Returns `None` if there was no response.
    fn get(&self, client: &mut Client, key: &str) -> Result<Option<(u64, Span)>, String> {
        let (value, span) = self.call(client, &[b"GET", key.as_bytes()]);
        let value = match value {
            None => return Ok(None),
            Some(Value::Bulk(None)) => Some(0),
            Some(Value::Bulk(Some(ref text))) => {
                // 0 stands for a missing key, and is never written.
                str::from_utf8(text).ok().and_then(|text| text.parse().ok()).filter(|value| *value > 0)
            }
            Some(_) => None,
        };
        value
            .map(|number| Some((number, span)))
            .ok_or_else(|| format!("GET {key}: the response is a value that was never written"))
    }
}

impl Writer {
    fn new(args: &CheckArgs, name: &str, number: usize, began: Instant) -> Self {
        let shared = Shared {
            number: number as u64,
            name: name.to_owned(),
            keys: args.shared_keys.max(1),
            is_numbered: number.is_multiple_of(2),
            writes: 0,
            began,
            registers: BTreeMap::new(),
            counters: BTreeMap::new(),
        };
        Self {
            client: Client::new(args.tcp.clone(), WRITE_TIMEOUT),
            name: format!("{name}:{number}"),
            keys: args.keys.max(1),
            acknowledged: 0,
            shared,
        }
    }

    fn key(&self, number: u64) -> String {
        format!("{}:{}", self.name, number % self.keys)
    }

    /// Reads and writes until `over` is set, or until a command fails. Returns its error.
    fn write(&mut self, over: &AtomicBool, ack_monitor: &AckMonitor) -> Result<(), String> {
        let counter = self.name.clone();
        while !over.load(Ordering::SeqCst) {
            let number = self.acknowledged + 1;
            let (key, value) = (self.key(number), number.to_string());
            match self.client.call(&[b"SET", key.as_bytes(), value.as_bytes()]) {
                Some(Value::Simple("OK")) => {}
                other => return Err(format!("SET: {other:?}")),
            }
            match self.client.call(&[b"INCR", counter.as_bytes()]) {
                // The final check finds an increment that was executed twice.
                Some(Value::Number(_)) => {}
                other => return Err(format!("INCR: {other:?}")),
            }
            self.acknowledged = number;
            ack_monitor.record_ack();
            self.shared.step(&mut self.client)?;
        }
        Ok(())
    }

    /// Reads all keys again, and compares them with what was acknowledged.
    fn verify(&mut self) -> Result<Findings, String> {
        let mut findings = Findings { acknowledged: self.acknowledged, ..Findings::default() };
        let first = self.acknowledged.saturating_sub(self.keys) + 1;
        for number in first..=self.acknowledged {
            let key = self.key(number);
            let found = self.client.call(&[b"GET", key.as_bytes()]).ok_or("GET: no response")?;
            findings.lost += u64::from(found != Value::Bulk(Some(number.to_string().into())));
        }
        let counter = self.name.clone();
        let found = match self.client.call(&[b"GET", counter.as_bytes()]) {
            Some(Value::Bulk(Some(text))) => String::from_utf8_lossy(&text).parse().unwrap_or(0),
            Some(Value::Bulk(None)) => 0,
            other => return Err(format!("GET: {other:?}")),
        };
        findings.lost += self.acknowledged.saturating_sub(found);
        findings.executed_twice += found.saturating_sub(self.acknowledged);
        for key in 0..self.shared.keys {
            self.shared.read(&mut self.client, key)?;
            self.shared.count(&mut self.client, key)?;
        }
        Ok(findings)
    }
}

/// Report of a check
#[derive(Debug, Default)]
struct Report {
    seconds: f64,
    longest_pause_ms: f64,
    findings: Findings,
    /// Number of operations on shared keys
    shared: usize,
    /// Number of these whose outcome is unknown
    unknown: usize,
    /// Descriptions of violations of linearizability: a line for each key with one
    not_linearizable: Vec<String>,
    /// Commands that failed
    failed: Vec<String>,
}

impl Report {
    fn passes(&self) -> bool {
        let Findings { acknowledged, lost, executed_twice } = self.findings;
        self.failed.is_empty()
            && self.not_linearizable.is_empty()
            && lost == 0
            && executed_twice == 0
            && acknowledged > 0
    }

    fn print(&self) {
        let Findings { acknowledged, lost, executed_twice } = self.findings;
        println!("acknowledged writes: {} in {:.1} s", 2 * acknowledged, self.seconds);
        println!(
            "longest pause: {:.0} ms\nlost: {lost}\nexecuted twice: {executed_twice}",
            self.longest_pause_ms
        );
        println!("operations on shared keys: {}, {} with unknown outcome", self.shared, self.unknown);
        println!("shared keys that are not linearizable: {}", self.not_linearizable.len());
        for wrong in &self.not_linearizable {
            eprintln!("Not linearizable: {wrong}");
        }
        for wrong in &self.failed {
            eprintln!("A command failed: {wrong}");
        }
    }

    /// Checks what all clients observed of the shared keys.
    fn check_shared(&mut self, writers: Vec<Writer>) {
        let mut histories = BTreeMap::<String, History>::new();
        for Writer { shared, .. } in writers {
            let names: BTreeMap<_, _> =
                (0..shared.keys).map(|key| (key, (shared.register(key), shared.counter(key)))).collect();
            for (key, history) in shared.registers {
                histories.entry(names[&key].0.clone()).or_default().extend(history);
            }
            for (key, history) in shared.counters {
                histories.entry(names[&key].1.clone()).or_default().extend(history);
            }
        }
        for (name, history) in histories {
            self.shared += history.len();
            self.unknown += history.unknown();
            self.not_linearizable.extend(history.check().err().map(|wrong| format!("{name}: {wrong}")));
        }
    }
}

/// Runs a function for each writer, each on its own thread. Returns the results.
fn on_all<T: Send>(writers: &mut [Writer], each: impl Fn(&mut Writer) -> T + Sync) -> Vec<T> {
    thread::scope(|scope| {
        let threads: Vec<_> = writers.iter_mut().map(|writer| scope.spawn(|| each(writer))).collect();
        threads.into_iter().map(|thread| thread.join().expect("writers do not panic")).collect()
    })
}

/// Reads and writes until `over` is set or the configured duration has passed, then checks what was observed.
///
/// # Errors
/// If no leader responds in time, or a command of the final check fails.
fn check(args: &CheckArgs, over: &AtomicBool) -> miette::Result<Report> {
    let name = format!("check-{:08x}", random_u64() as u32);
    // The time until there is a leader does not count as a pause.
    let leads = Client::new(args.tcp.clone(), WRITE_TIMEOUT).call(&[b"GET", name.as_bytes()]);
    leads.ok_or_else(|| miette::miette!("no leader responded within 60 s; check --tcp and run kv info"))?;
    let began = now();
    let mut writers: Vec<_> = (0..args.connections).map(|n| Writer::new(args, &name, n, began)).collect();
    let ack_monitor = AckMonitor {
        began,
        last_us: AtomicU64::new(0),
        longest_us: AtomicU64::new(0),
        report_us: args.pause_ms * 1000,
    };
    info!("Writing to {name}:*.");
    let results = thread::scope(|scope| {
        let (ack_monitor, writers) = (&ack_monitor, &mut writers);
        let all = scope.spawn(move || {
            on_all(writers, |writer| {
                let result = writer.write(over, ack_monitor);
                over.fetch_or(result.is_err(), Ordering::SeqCst);
                result
            })
        });
        let limit = args.seconds.unwrap_or(f64::INFINITY);
        while !over.load(Ordering::SeqCst) && began.elapsed().as_secs_f64() < limit {
            thread::sleep(Duration::from_millis(10));
        }
        over.store(true, Ordering::SeqCst);
        all.join().expect("writers do not panic")
    });
    let mut report = Report {
        seconds: began.elapsed().as_secs_f64(),
        longest_pause_ms: ack_monitor.longest_us.load(Ordering::SeqCst) as f64 / 1e3,
        failed: results.into_iter().filter_map(Result::err).collect(),
        ..Report::default()
    };
    if report.failed.is_empty() {
        for result in on_all(&mut writers, Writer::verify) {
            let Findings { acknowledged, lost, executed_twice } =
                result.map_err(|wrong| miette::miette!("{wrong}"))?;
            report.findings.acknowledged += acknowledged;
            report.findings.lost += lost;
            report.findings.executed_twice += executed_twice;
        }
    }
    report.check_shared(writers);
    Ok(report)
}

pub(crate) fn run(args: &CheckArgs) -> miette::Result<ExitCode> {
    let over = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
        signal_hook::flag::register(signal, Arc::clone(&over)).into_diagnostic()?;
    }
    let report = check(args, &over)?;
    report.print();
    Ok(if report.passes() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

#[cfg(test)]
mod tests;
