//! `kv check`: writes for as long as it is wanted, through whatever happens to the servers, and then looks whether all is
//! there that was acknowledged, and nothing was done twice.

use crate::client::{Client, now};
use crate::resp::Value;
use crate::server::by_chance;
use clap::Args;
use core::net::SocketAddr;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use core::time::Duration;
use miette::IntoDiagnostic as _;
use std::process::ExitCode;
use std::sync::Arc;
use std::thread;
use std::time::Instant;

/// Write numbered keys from several connections, and verify that nothing acknowledged is lost or done twice
#[derive(Args)]
pub(crate) struct CheckArgs {
    /// Where all servers serve clients
    #[arg(long, value_name = "IP:PORT,...", value_delimiter = ',', required = true)]
    tcp: Vec<SocketAddr>,
    /// For how long it writes; without it, until Ctrl-C
    #[arg(long, value_name = "S")]
    seconds: Option<f64>,
    /// Clients that write at the same time
    #[arg(long, value_name = "COUNT", default_value_t = 4)]
    connections: usize,
    /// Keys of each, which are written one after the other, again and again
    #[arg(long, value_name = "COUNT", default_value_t = 1000)]
    keys: u64,
    /// Say so when nothing was acknowledged for so long
    #[arg(long, value_name = "MS", default_value_t = 50)]
    pause_ms: u64,
}

/// How long a write is tried: if all servers are gone for so long, something is wrong.
const PATIENCE: Duration = Duration::from_secs(60);

/// When anything was acknowledged last
struct Pulse {
    began: Instant,
    last_us: AtomicU64,
    longest_us: AtomicU64,
    report_us: u64,
}

impl Pulse {
    /// A write was acknowledged.
    fn beat(&self) {
        let now = self.began.elapsed().as_micros() as u64;
        let before = self.last_us.fetch_max(now, Ordering::SeqCst);
        let pause = now.saturating_sub(before);
        self.longest_us.fetch_max(pause, Ordering::SeqCst);
        if pause >= self.report_us {
            eprintln!(
                "Nothing was acknowledged for {:.0} ms, until {:.1} s.",
                pause as f64 / 1e3,
                now as f64 / 1e6
            );
        }
    }
}

/// One of the clients that write.
struct Writer {
    client: Client,
    name: String,
    keys: u64,
    /// Rounds that were acknowledged: the n-th put n into key n modulo `keys`, and counted up a counter.
    acknowledged: u64,
}

/// What has become of it
#[derive(Debug, Default)]
struct Findings {
    acknowledged: u64,
    lost: u64,
    twice: u64,
}

impl Writer {
    fn key(&self, number: u64) -> String {
        format!("{}:{}", self.name, number % self.keys)
    }

    /// Writes until it is over, or until a write comes to nothing: how then.
    fn write(&mut self, over: &AtomicBool, pulse: &Pulse) -> Result<(), String> {
        let counter = self.name.clone();
        while !over.load(Ordering::SeqCst) {
            let number = self.acknowledged + 1;
            let (key, value) = (self.key(number), number.to_string());
            match self.client.call(&[b"SET", key.as_bytes(), value.as_bytes()]) {
                Some(Value::Simple("OK")) => {}
                other => return Err(format!("SET: {other:?}")),
            }
            match self.client.call(&[b"INCR", counter.as_bytes()]) {
                // One too many is found in the end.
                Some(Value::Number(_)) => {}
                other => return Err(format!("INCR: {other:?}")),
            }
            self.acknowledged = number;
            pulse.beat();
        }
        Ok(())
    }

    /// Reads everything again.
    fn verify(&mut self) -> Result<Findings, String> {
        let mut findings = Findings { acknowledged: self.acknowledged, ..Findings::default() };
        let first = self.acknowledged.saturating_sub(self.keys) + 1;
        for number in first..=self.acknowledged {
            let key = self.key(number);
            let found = self.client.call(&[b"GET", key.as_bytes()]).ok_or("GET: no answer")?;
            findings.lost += u64::from(found != Value::Bulk(Some(number.to_string().into())));
        }
        let counter = self.name.clone();
        let found = match self.client.call(&[b"GET", counter.as_bytes()]) {
            Some(Value::Bulk(Some(text))) => String::from_utf8_lossy(&text).parse().unwrap_or(0),
            Some(Value::Bulk(None)) => 0,
            other => return Err(format!("GET: {other:?}")),
        };
        findings.lost += self.acknowledged.saturating_sub(found);
        findings.twice += found.saturating_sub(self.acknowledged);
        Ok(findings)
    }
}

pub(crate) fn run(args: &CheckArgs) -> miette::Result<ExitCode> {
    let over = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
        signal_hook::flag::register(signal, Arc::clone(&over)).into_diagnostic()?;
    }
    let name = format!("check-{:08x}", by_chance() as u32);
    let mut writers: Vec<_> = (0..args.connections)
        .map(|n| Writer {
            client: Client::new(args.tcp.clone(), PATIENCE),
            name: format!("{name}:{n}"),
            keys: args.keys.max(1),
            acknowledged: 0,
        })
        .collect();
    // Until somebody leads is not a pause.
    let leads = Client::new(args.tcp.clone(), PATIENCE).call(&[b"GET", name.as_bytes()]);
    leads.ok_or_else(|| miette::miette!("nobody leads"))?;
    let began = now();
    let pulse = Pulse {
        began,
        last_us: AtomicU64::new(0),
        longest_us: AtomicU64::new(0),
        report_us: args.pause_ms * 1000,
    };
    eprintln!("Writing to {name}:*.");
    let wrong: Vec<String> = thread::scope(|scope| {
        let threads: Vec<_> = writers
            .iter_mut()
            .map(|writer| {
                scope.spawn(|| {
                    let result = writer.write(&over, &pulse);
                    over.fetch_or(result.is_err(), Ordering::SeqCst);
                    result
                })
            })
            .collect();
        while !over.load(Ordering::SeqCst)
            && args.seconds.is_none_or(|limit| began.elapsed().as_secs_f64() < limit)
        {
            thread::sleep(Duration::from_millis(10));
        }
        over.store(true, Ordering::SeqCst);
        let results = threads.into_iter().map(|thread| thread.join().expect("writers do not panic"));
        results.filter_map(Result::err).collect()
    });
    let seconds = began.elapsed().as_secs_f64();
    let mut sum = Findings::default();
    if wrong.is_empty() {
        let all = thread::scope(|scope| {
            let threads: Vec<_> =
                writers.iter_mut().map(|writer| scope.spawn(move || writer.verify())).collect();
            let all = threads.into_iter().map(|thread| thread.join().expect("writers do not panic"));
            all.collect::<Result<Vec<_>, _>>()
        });
        for Findings { acknowledged, lost, twice } in all.map_err(|wrong| miette::miette!("{wrong}"))? {
            sum.acknowledged += acknowledged;
            sum.lost += lost;
            sum.twice += twice;
        }
    }
    println!(
        "acknowledged writes: {} in {seconds:.1} s\nlongest pause: {:.0} ms\nlost: {}\ndone twice: {}",
        2 * sum.acknowledged,
        pulse.longest_us.load(Ordering::SeqCst) as f64 / 1e3,
        sum.lost,
        sum.twice
    );
    for wrong in &wrong {
        eprintln!("A write came to nothing: {wrong}");
    }
    let well = wrong.is_empty() && sum.lost == 0 && sum.twice == 0 && sum.acknowledged > 0;
    Ok(if well { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
