//! Runs a program under measurement: starts it, samples its counters, and stops it.

use crate::telemetry::{CountedFrames, Telemetry};
use rustix::process::{Pid, Signal, kill_process};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// Longest time from the start of a program to its first frames
const START_LIMIT: Duration = Duration::from_secs(15);
/// Time that a program then runs before it is measured
const WARM_UP: Duration = Duration::from_millis(500);
/// Longest time that a program takes to end before it is killed
const STOP_LIMIT: Duration = Duration::from_secs(5);

/// For a program whose only polling thread has an unknown name: the thread that used the most CPU time
pub(crate) const BUSIEST: &[&str] = &[];

/// Prefix of the line in which a program reports the nanoseconds per frame of its function, without the
/// drivers
pub const OWN_TIME: &str = "own nanoseconds a frame: ";

/// A DPDK program that forwards with one polling thread, or several.
pub(crate) struct Program {
    pub(crate) command: Command,
    pub(crate) file_prefix: String,
    /// Possible names of its polling threads
    pub(crate) thread_names: &'static [&'static str],
}

/// An observer of the program under measurement.
pub(crate) trait Observer {
    /// Stops observing.
    ///
    /// # Errors
    ///
    /// The observer failed; the measurement is invalid.
    fn stop(self: Box<Self>) -> io::Result<()>;
}

/// Result of a measurement.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sample {
    /// Frames per second of CPU time of each of the polling threads
    pub(crate) per_cpu_second: f64,
    /// Fraction of the time that the polling threads were on their CPUs
    pub(crate) on_cpu: f64,
    /// Nanoseconds per frame of its function, without the drivers, if the program reports them
    pub(crate) own_ns: Option<f64>,
}

struct Running(Child);

impl Running {
    /// Stops the program. Returns its exit code, unless it was ended by a signal.
    fn stop(&mut self) -> Option<i32> {
        // SIGINT first: DPDK then removes its files.
        _ = kill_process(Pid::from_child(&self.0), Signal::INT);
        let started = now();
        while now().duration_since(started) < STOP_LIMIT {
            if let Ok(Some(status)) = self.0.try_wait() {
                return status.code();
            }
            sleep(Duration::from_millis(20));
        }
        _ = self.0.kill();
        _ = self.0.wait();
        None
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Ok(None) = self.0.try_wait() {
            self.stop();
        }
    }
}

/// Starts the program, lets it warm up, and measures it for `length`. The observer that `start_observer`
/// starts is present from before the warm-up on.
pub(crate) fn measure(
    mut program: Program,
    counts: CountedFrames,
    length: Duration,
    log: &Path,
    start_observer: impl FnOnce() -> io::Result<Option<Box<dyn Observer>>>,
) -> io::Result<Sample> {
    let name = program.command.get_program().to_string_lossy().into_owned();
    let failed = |what: String| {
        let log = fs::read_to_string(log).unwrap_or_default();
        let tail: Vec<_> = log.lines().rev().take(5).collect();
        io::Error::other(format!("{name}: {what}\n{}", tail.into_iter().rev().collect::<Vec<_>>().join("\n")))
    };
    let file = fs::File::create(log)?;
    // Benchmarks read the program's events at level info.
    for variable in ["UNDERSTUDY_LOG", "NOTIFY_SOCKET", "WATCHDOG_USEC", "JOURNAL_STREAM"] {
        program.command.env_remove(variable);
    }
    // Standard input stays open: testpmd ends when it is closed.
    let child = program.command.stdin(Stdio::piped()).stdout(file.try_clone()?).stderr(file).spawn();
    let mut running = Running(child.map_err(|error| failed(format!("cannot be started: {error}")))?);
    let started = now();
    let (mut telemetry, threads) = loop {
        if let Some(status) = running.0.try_wait()? {
            return Err(failed(format!("ended by itself with {status}")));
        }
        if now().duration_since(started) > START_LIMIT {
            let threads = program.thread_names.join(" or ");
            let which =
                if threads.is_empty() { String::new() } else { format!(" in a thread called {threads}") };
            return Err(failed(format!("handled no frames{which}")));
        }
        sleep(Duration::from_millis(50));
        let Ok(mut telemetry) = Telemetry::connect(&program.file_prefix) else { continue };
        // A port that plays a capture also counts the frames that it reads in advance.
        let threads = threads_of(running.0.id(), program.thread_names);
        if !threads.is_empty() && telemetry.frames(counts).is_ok_and(|frames| frames > 1000) {
            break (telemetry, threads);
        }
    };
    let observer =
        start_observer().map_err(|error| failed(format!("its observers cannot start: {error}")))?;
    sleep(WARM_UP);
    let (frames, on_cpu, at) = (telemetry.frames(counts)?, on_cpu_nanos(&threads)?, now());
    sleep(length);
    let (frames, on_cpu, wall) =
        (telemetry.frames(counts)? - frames, on_cpu_nanos(&threads)? - on_cpu, now().duration_since(at));
    if let Some(observer) = observer {
        observer.stop().map_err(|error| failed(format!("an observer failed: {error}")))?;
    }
    // The program fails if it did not handle the traffic as intended.
    if let Some(code @ 1..) = running.stop() {
        return Err(failed(format!("ended with code {code}")));
    }
    let output = fs::read_to_string(log).unwrap_or_default();
    Ok(Sample {
        own_ns: output.lines().find_map(|line| line.strip_prefix(OWN_TIME)?.parse().ok()),
        per_cpu_second: frames as f64 * 1e9 / (on_cpu.max(1) as f64 / threads.len() as f64),
        on_cpu: on_cpu as f64 / (wall.as_nanos() as f64 * threads.len() as f64),
    })
}

/// Returns the folders in /proc of the threads that have one of these names, or of the [busiest](BUSIEST).
fn threads_of(process: u32, names: &[&str]) -> Vec<PathBuf> {
    let Ok(threads) = fs::read_dir(format!("/proc/{process}/task")) else { return Vec::new() };
    let threads = threads.flatten().map(|entry| entry.path());
    if names.is_empty() {
        return threads.max_by_key(|thread| on_cpu_nanos_of(thread).unwrap_or(0)).into_iter().collect();
    }
    let has_name = |thread: &PathBuf| {
        let name = fs::read_to_string(thread.join("comm")).unwrap_or_default();
        names.iter().any(|wanted| name.trim() == *wanted)
    };
    threads.filter(has_name).collect()
}

/// Returns the CPU time of all these threads, in nanoseconds.
fn on_cpu_nanos(threads: &[PathBuf]) -> io::Result<u64> {
    threads.iter().map(|thread| on_cpu_nanos_of(thread)).sum()
}

/// Returns the CPU time of the thread, in nanoseconds.
fn on_cpu_nanos_of(thread: &Path) -> io::Result<u64> {
    let text = fs::read_to_string(thread.join("schedstat"))?;
    let first = text.split_whitespace().next().and_then(|word| word.parse().ok());
    first.ok_or_else(|| io::Error::other("the kernel gives no on-CPU time (schedstat)"))
}

#[allow(clippy::disallowed_methods, reason = "a benchmark reads the clock")]
fn now() -> Instant {
    Instant::now()
}
