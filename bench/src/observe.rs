//! `understudy bench observe`: the cost to a worker of monitoring its instance with Prometheus and
//! `understudy top`.
//!
//! The same instance forwards the same packets, with `[observe]` on: without any monitoring, with both
//! polling once a second, and with both polling ten times a second. The cost to the control thread, and to
//! the monitoring programs, is not counted: the worker has a core of its own.

use crate::compare::{Bench, CompareArgs, Entry, Figures, Launch, Ratio, Room};
use crate::process::{Company, Counts, Program};
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
const LEFT: f64 = 0.99;
/// Longest time for a response
const PATIENCE: Duration = Duration::from_secs(5);
/// Prefix of the line in which an instance reports the address of its metrics
const METRICS_AT: &str = "Metrics for Prometheus are at http://";

/// Measure the cost to a worker of monitoring its instance with `top` and Prometheus
#[derive(Args)]
pub struct ObserveArgs {
    #[command(flatten)]
    compare: CompareArgs,
}

/// Name of each case, and its polls a second
const LOOKS: [(&str, u32); 3] = [("nobody looks", 0), ("a look a second", 1), ("ten looks a second", 10)];

fn called(qps: u32) -> String {
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
        for (program, looks) in LOOKS {
            entries.push(Entry {
                program: program.into(),
                traffic: called(qps),
                capture: capture.clone(),
                launch: observed(qps),
                help: "check that `understudy run` works without the benchmark",
                counts: Counts::Sent,
                company: (looks > 0).then(|| looking(Duration::from_secs(1) / looks)),
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
        let room = Room::for_frames(qps as usize);
        let config = bench.runtime(capture, &file_prefix, 1500, room)
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
fn looking(every: Duration) -> Company {
    Box::new(move |bench| {
        let said = std::fs::read_to_string(bench.log())?;
        let metrics = metrics_at(&said)
            .ok_or_else(|| io::Error::other("the instance did not report the address of its metrics"))?;
        let socket = socket(bench);
        let mut top = None;
        let ways: [Box<dyn FnMut() -> io::Result<()> + Send>; 2] =
            [Box::new(move || scrape(metrics)), Box::new(move || ask(&socket, &mut top))];
        Ok(Box::new(Lookers::new(every, ways)))
    })
}

/// Returns the address of the metrics from the instance's log.
fn metrics_at(said: &str) -> Option<SocketAddr> {
    said.lines().find_map(|line| line.strip_prefix(METRICS_AT)?.strip_suffix("/metrics.")?.parse().ok())
}

/// Scrapes the metrics as Prometheus does.
fn scrape(metrics: SocketAddr) -> io::Result<()> {
    let mut stream = TcpStream::connect_timeout(&metrics, PATIENCE)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: understudy\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    let whole = answer.starts_with("HTTP/1.1 200 ") && answer.contains("\nunderstudy_uptime_seconds ");
    if whole { Ok(()) } else { Err(io::Error::other("the scraped page has no metrics")) }
}

/// Requests a snapshot as `understudy top` does, over a connection that is kept open.
fn ask(socket: &Path, top: &mut Option<BufReader<UnixStream>>) -> io::Result<()> {
    let stream = if let Some(stream) = top {
        stream
    } else {
        let stream = UnixStream::connect(socket)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        top.insert(BufReader::new(stream))
    };
    stream.get_mut().write_all(b"{\"ask\":\"snapshot\"}\n")?;
    let mut answer = String::new();
    stream.read_line(&mut answer)?;
    let whole = answer.starts_with("{\"instance\":") && answer.ends_with("}\n");
    if whole { Ok(()) } else { Err(io::Error::other("the response is not a snapshot")) }
}

/// Threads that poll until they are stopped.
struct Lookers {
    ends: Vec<Sender<()>>,
    threads: Vec<JoinHandle<io::Result<u64>>>,
}

impl Lookers {
    fn new<const N: usize>(every: Duration, ways: [Box<dyn FnMut() -> io::Result<()> + Send>; N]) -> Self {
        let looker = |mut look: Box<dyn FnMut() -> io::Result<()> + Send>| {
            let (end, ended) = channel();
            let thread = thread::spawn(move || {
                let mut looks = 0;
                loop {
                    look()?;
                    looks += 1;
                    if ended.recv_timeout(every) != Err(RecvTimeoutError::Timeout) {
                        return Ok(looks);
                    }
                }
            });
            (end, thread)
        };
        let (ends, threads) = ways.map(looker).into_iter().unzip();
        Self { ends, threads }
    }
}

impl crate::process::Guest for Lookers {
    fn leave(self: Box<Self>) -> io::Result<()> {
        let Self { ends, threads } = *self;
        drop(ends);
        for thread in threads {
            thread.join().map_err(|_| io::Error::other("a polling thread has panicked"))??;
        }
        Ok(())
    }
}

fn ratios(figures: &Figures) -> Vec<Ratio> {
    let [(nobody, _), (once, _), (often, _)] = LOOKS;
    let ratio = |qps, with: &str, at_least| Ratio {
        what: format!("{}: {with} / {nobody}", called(qps)),
        value: figures.ratio(with, nobody, &called(qps)),
        at_least,
    };
    QPS.into_iter().flat_map(|qps| [ratio(qps, once, LEFT), ratio(qps, often, 0.0)]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::Guest as _;
    use std::net::TcpListener;
    use std::os::unix::net::UnixListener;

    #[test]
    fn the_metrics_address_is_found_in_the_log() {
        let said = "EAL: something\nMetrics for Prometheus are at http://127.0.0.1:40123/metrics.\nunderstudy is ready\n";
        assert_eq!(metrics_at(said), Some(([127, 0, 0, 1], 40_123).into()));
        assert_eq!(metrics_at("understudy is ready\n"), None);
    }

    /// Serves these responses, one per connection.
    fn serve(answers: &'static [&'static str]) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let at = listener.local_addr().unwrap();
        thread::spawn(move || {
            for answer in answers {
                let (mut stream, _) = listener.accept().unwrap();
                let mut request = [0; 1024];
                assert!(stream.read(&mut request).unwrap() > 0);
                stream.write_all(answer.as_bytes()).unwrap();
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
            let mut questions = BufReader::new(stream);
            for answer in ["{\"instance\":{}}\n", "{\"instance\":{}}\n", "{\"error\":\"no\"}\n"] {
                let mut question = String::new();
                questions.read_line(&mut question).unwrap();
                assert_eq!(question, "{\"ask\":\"snapshot\"}\n");
                questions.get_mut().write_all(answer.as_bytes()).unwrap();
            }
        });
        let mut top = None;
        ask(&path, &mut top).unwrap();
        ask(&path, &mut top).unwrap();
        assert!(ask(&path, &mut top).unwrap_err().to_string().contains("not a snapshot"));
    }

    #[test]
    fn pollers_run_until_stopped_and_report_errors() {
        let (looked, looks) = channel();
        let every = Duration::from_millis(1);
        let way = move || looked.send(()).map_err(io::Error::other);
        let lookers = Lookers::new(every, [Box::new(way)]);
        for _ in 0..3 {
            looks.recv().unwrap();
        }
        Box::new(lookers).leave().unwrap();
        // All polling threads have ended.
        while looks.try_recv().is_ok() {}
        assert!(looks.recv().is_err());

        let lookers = Lookers::new(every, [Box::new(|| Err(io::Error::other("connection refused")))]);
        assert!(Box::new(lookers).leave().unwrap_err().to_string().contains("connection refused"));
    }
}
