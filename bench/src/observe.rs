//! `understudy bench observe`: the cost to a worker of monitoring its instance with Prometheus and
//! `understudy top`.
//!
//! The same instance forwards the same packets, with `[observe]` on: without any monitoring, with both
//! polling once a second, and with both polling ten times a second. The cost to the control thread, and to
//! the monitoring programs, is not counted: the worker has a core of its own.

use crate::compare::{Bench, Capacity, CompareArgs, Entry, Figures, Launch, Ratio, StartObserver};
use crate::process::Program;
use crate::telemetry::CountedFrames;
use crate::traffic;
use clap::Args;
use miette::{IntoDiagnostic as _, Report};
use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::Duration;

/// Queue pairs in the traffic, each of which is counted: the default number, and the number that fits into 16
/// bits
const QPS: [u32; 2] = [1_024, 65_536];
/// Default length of a sample in seconds: one second would have only a poll or two
const SECONDS: f64 = 5.0;
/// Fraction of the rate that has to remain when both poll once a second
const MIN_RATE: f64 = 0.99;
/// Longest time for a response
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(5);
/// Prefix of the line in which an instance reports the address of its metrics
const METRICS_AT: &str = "Metrics for Prometheus are at http://";

/// Measure the cost to a worker of monitoring its instance with `top` and Prometheus
#[derive(Args)]
pub struct ObserveArgs {
    #[command(flatten)]
    compare: CompareArgs,
}

/// Name of each case, and its polls a second
const CASES: [(&str, u32); 3] = [("no observer", 0), ("1 request/s", 1), ("10 requests/s", 10)];

fn traffic_name(qps: u32) -> String {
    format!("{qps} queue pairs")
}

/// Runs the comparison and prints it. `understudy` is the path of the program itself.
pub fn run(args: &ObserveArgs, understudy: &Path) -> Result<(), Report> {
    let mut compare = args.compare.clone();
    compare.seconds.get_or_insert(SECONDS);
    let bench = Bench::new(&compare, understudy)?;
    let mut entries = Vec::new();
    for qps in QPS {
        let capture = bench.dir.path().join(format!("write-{qps}.pcap"));
        traffic::write(&capture, (0..qps).map(|n| traffic::write_only(n, 64))).into_diagnostic()?;
        for (program, polls) in CASES {
            entries.push(Entry {
                program: program.into(),
                traffic: traffic_name(qps),
                capture: capture.clone(),
                launch: observed(qps),
                help: "check that `understudy run` works without the benchmark",
                counts: CountedFrames::Sent,
                observer: (polls > 0).then(|| polling(Duration::from_secs(1) / polls)),
            });
        }
    }
    bench.compare(&compare, &entries, ratios)
}

fn socket(bench: &Bench) -> PathBuf {
    bench.dir.path().join("observe.sock")
}

/// Launches the instance, with the same configuration with and without monitoring.
fn observed(qps: u32) -> Launch {
    Box::new(move |bench, capture, file_prefix| {
        let path = bench.dir.path().join("observe.toml");
        let capacity = Capacity::for_frames(qps as usize);
        let config = bench.runtime(capture, &file_prefix, 1500, capacity)
            + &format!(
                "[forward]\npairs = [[\"loop\", \"loop\"]]\ncounted_qps = {qps}\n\
                 [observe]\nsocket = \"{}\"\nprometheus = \"127.0.0.1:0\"\n",
                socket(bench).display()
            );
        std::fs::write(&path, config).into_diagnostic()?;
        let mut command = Command::new(&bench.understudy);
        command.arg("run").arg(path);
        Ok(Program { command, file_prefix, thread_names: &["worker-0"] })
    })
}

/// Returns observers that act as Prometheus and as `top`, and poll at this interval.
fn polling(every: Duration) -> StartObserver {
    Box::new(move |bench| {
        let log = std::fs::read_to_string(bench.log())?;
        let metrics = metrics_at(&log)
            .ok_or_else(|| io::Error::other("the instance did not report the address of its metrics"))?;
        let socket = socket(bench);
        let mut top = None;
        let poll_functions: [Box<dyn FnMut() -> io::Result<()> + Send>; 2] =
            [Box::new(move || scrape(metrics)), Box::new(move || request_snapshot(&socket, &mut top))];
        Ok(Box::new(Pollers::new(every, poll_functions)))
    })
}

/// Returns the address of the metrics from the instance's log.
fn metrics_at(log: &str) -> Option<SocketAddr> {
    log.lines().find_map(|line| line.split_once(METRICS_AT)?.1.strip_suffix("/metrics.")?.parse().ok())
}

/// Scrapes the metrics as Prometheus does.
fn scrape(metrics: SocketAddr) -> io::Result<()> {
    let mut stream = TcpStream::connect_timeout(&metrics, RESPONSE_TIMEOUT)?;
    stream.set_read_timeout(Some(RESPONSE_TIMEOUT))?;
    stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: understudy\r\n\r\n")?;
    let mut response = String::new();
    stream.read_to_string(&mut response)?;
    let whole = response.starts_with("HTTP/1.1 200 ") && response.contains("\nunderstudy_uptime_seconds ");
    if whole { Ok(()) } else { Err(io::Error::other("the scraped page has no metrics")) }
}

/// Requests a snapshot as `understudy top` does, over a connection that is kept open.
fn request_snapshot(socket: &Path, top: &mut Option<BufReader<UnixStream>>) -> io::Result<()> {
    let stream = if let Some(stream) = top {
        stream
    } else {
        let stream = UnixStream::connect(socket)?;
        stream.set_read_timeout(Some(RESPONSE_TIMEOUT))?;
        top.insert(BufReader::new(stream))
    };
    stream.get_mut().write_all(b"{\"ask\":\"snapshot\"}\n")?;
    let mut response = String::new();
    stream.read_line(&mut response)?;
    let whole = response.starts_with("{\"instance\":") && response.ends_with("}\n");
    if whole { Ok(()) } else { Err(io::Error::other("the response is not a snapshot")) }
}

/// Threads that poll until they are stopped.
struct Pollers {
    stop_senders: Vec<Sender<()>>,
    threads: Vec<JoinHandle<io::Result<u64>>>,
}

impl Pollers {
    fn new<const N: usize>(
        every: Duration,
        poll_functions: [Box<dyn FnMut() -> io::Result<()> + Send>; N],
    ) -> Self {
        let poller = |mut poll: Box<dyn FnMut() -> io::Result<()> + Send>| {
            let (stop_sender, stop_receiver) = channel();
            let thread = thread::spawn(move || {
                let mut polls = 0;
                loop {
                    poll()?;
                    polls += 1;
                    if stop_receiver.recv_timeout(every) != Err(RecvTimeoutError::Timeout) {
                        return Ok(polls);
                    }
                }
            });
            (stop_sender, thread)
        };
        let (stop_senders, threads) = poll_functions.map(poller).into_iter().unzip();
        Self { stop_senders, threads }
    }
}

impl crate::process::Observer for Pollers {
    fn stop(self: Box<Self>) -> io::Result<()> {
        let Self { stop_senders, threads } = *self;
        drop(stop_senders);
        for thread in threads {
            thread.join().map_err(|_| io::Error::other("a polling thread has panicked"))??;
        }
        Ok(())
    }
}

fn ratios(figures: &Figures) -> Vec<Ratio> {
    let [(unmonitored, _), (once, _), (often, _)] = CASES;
    let ratio = |qps, with: &str, at_least| Ratio {
        what: format!("{}: {with} / {unmonitored}", traffic_name(qps)),
        value: figures.ratio(with, unmonitored, &traffic_name(qps)),
        at_least,
    };
    QPS.into_iter().flat_map(|qps| [ratio(qps, once, MIN_RATE), ratio(qps, often, 0.0)]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::Observer as _;
    use std::net::TcpListener;
    use std::os::unix::net::UnixListener;

    #[test]
    fn the_metrics_address_is_found_in_the_log() {
        let log = "EAL: something\n2026-01-31T12:00:00.000000Z Metrics for Prometheus are at http://127.0.0.1:40123/metrics.\nunderstudy is ready\n";
        assert_eq!(metrics_at(log), Some(([127, 0, 0, 1], 40_123).into()));
        assert_eq!(metrics_at("understudy is ready\n"), None);
    }

    /// Serves these responses, one per connection.
    fn serve(responses: &'static [&'static str]) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let at = listener.local_addr().unwrap();
        thread::spawn(move || {
            for response in responses {
                let (mut stream, _) = listener.accept().unwrap();
                let mut request = [0; 1024];
                assert!(stream.read(&mut request).unwrap() > 0);
                stream.write_all(response.as_bytes()).unwrap();
            }
        });
        at
    }

    #[test]
    fn invalid_responses_are_errors() {
        let metrics = serve(&[
            "HTTP/1.1 200 OK\r\n\r\n# HELP\nunderstudy_uptime_seconds 1\n",
            "HTTP/1.1 503 No\r\n\r\n",
        ]);
        scrape(metrics).unwrap();
        assert!(scrape(metrics).unwrap_err().to_string().contains("no metrics"));

        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("s");
        let listener = UnixListener::bind(&path).unwrap();
        thread::spawn(move || {
            let (stream, _) = listener.accept().unwrap();
            let mut requests = BufReader::new(stream);
            for response in ["{\"instance\":{}}\n", "{\"instance\":{}}\n", "{\"error\":\"no\"}\n"] {
                let mut request = String::new();
                requests.read_line(&mut request).unwrap();
                assert_eq!(request, "{\"ask\":\"snapshot\"}\n");
                requests.get_mut().write_all(response.as_bytes()).unwrap();
            }
        });
        let mut top = None;
        request_snapshot(&path, &mut top).unwrap();
        request_snapshot(&path, &mut top).unwrap();
        assert!(request_snapshot(&path, &mut top).unwrap_err().to_string().contains("not a snapshot"));
    }

    #[test]
    fn pollers_run_until_stopped_and_report_errors() {
        let (poll_sender, polls) = channel();
        let every = Duration::from_millis(1);
        let poll_function = move || poll_sender.send(()).map_err(io::Error::other);
        let pollers = Pollers::new(every, [Box::new(poll_function)]);
        for _ in 0..3 {
            polls.recv().unwrap();
        }
        Box::new(pollers).stop().unwrap();
        // All polling threads have ended.
        while polls.try_recv().is_ok() {}
        assert!(polls.recv().is_err());

        let pollers = Pollers::new(every, [Box::new(|| Err(io::Error::other("connection refused")))]);
        assert!(Box::new(pollers).stop().unwrap_err().to_string().contains("connection refused"));
    }
}
