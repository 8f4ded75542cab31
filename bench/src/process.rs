//! A program under measurement: started, watched, stopped.

use crate::compare::Bench;
use crate::telemetry::Telemetry;
use rustix::process::{Pid, Signal, kill_process};
use std::fs;
use std::io;
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// Time that a program gets to handle its first frames
const START_LIMIT: Duration = Duration::from_secs(15);
/// Time that it then runs before it is measured
const WARM_UP: Duration = Duration::from_millis(500);
/// Time that it gets to end
const STOP_LIMIT: Duration = Duration::from_secs(5);

/// For a program of which it is not known what it calls its polling thread: that which had most of a CPU
pub(crate) const BUSIEST: &[&str] = &[];

/// How the line begins in which a program says how many nanoseconds a frame takes its function, without the drivers
pub const OWN_TIME: &str = "own nanoseconds a frame: ";

/// A DPDK program that forwards with one polling thread.
pub(crate) struct Program {
    pub(crate) command: Command,
    pub(crate) file_prefix: String,
    /// Beginnings of the names that its polling thread may have
    pub(crate) thread_names: &'static [&'static str],
}

/// Who is there while a program is measured.
pub(crate) trait Guest {
    /// Ends what it does. Says what went wrong with it, if something did: the measurement is none then.
    fn leave(self: Box<Self>) -> io::Result<()>;
}

/// Invites one, to a program that is running.
pub(crate) type Company = Box<dyn Fn(&Bench) -> io::Result<Box<dyn Guest>>>;

/// Which frames count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Counts {
    /// Those that it has sent
    Sent,
    /// Those that it has received
    Received,
}

/// What a measurement came to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sample {
    /// Frames a second of the polling thread's time on the CPU
    pub(crate) per_cpu_second: f64,
    /// The part of the time that the polling thread was on the CPU
    pub(crate) on_cpu: f64,
    /// Nanoseconds a frame that its function takes, without the drivers, if it says so
    pub(crate) own_ns: Option<f64>,
}

struct Running(Child);

impl Running {
    /// Ends it; the code with which it ended, unless a signal did.
    fn stop(&mut self) -> Option<i32> {
        // Asks first: DPDK removes its files when it is asked.
        _ = kill_process(Pid::from_child(&self.0), Signal::INT);
        let began = now();
        while now().duration_since(began) < STOP_LIMIT {
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

/// Starts the program, lets it warm up, and measures it for this long. A guest is there from before the warm-up on.
pub(crate) fn measure(
    mut program: Program,
    counts: Counts,
    length: Duration,
    log: &std::path::Path,
    invite: impl FnOnce() -> io::Result<Option<Box<dyn Guest>>>,
) -> io::Result<Sample> {
    let name = program.command.get_program().to_string_lossy().into_owned();
    let failed = |what: String| {
        let log = fs::read_to_string(log).unwrap_or_default();
        let tail: Vec<_> = log.lines().rev().take(5).collect();
        io::Error::other(format!("{name}: {what}\n{}", tail.into_iter().rev().collect::<Vec<_>>().join("\n")))
    };
    let file = fs::File::create(log)?;
    // Standard input stays open: testpmd ends when it is closed.
    let child = program.command.stdin(Stdio::piped()).stdout(file.try_clone()?).stderr(file).spawn();
    let mut running = Running(child.map_err(|error| failed(format!("cannot be started: {error}")))?);
    let began = now();
    let (mut telemetry, thread) = loop {
        if let Some(status) = running.0.try_wait()? {
            return Err(failed(format!("ended by itself with {status}")));
        }
        if now().duration_since(began) > START_LIMIT {
            let threads = program.thread_names.join(" or ");
            let which =
                if threads.is_empty() { String::new() } else { format!(" in a thread called {threads}") };
            return Err(failed(format!("handled no frames{which}")));
        }
        sleep(Duration::from_millis(50));
        let Ok(mut telemetry) = Telemetry::connect(&program.file_prefix) else { continue };
        // A port that plays a capture counts the frames that it reads beforehand, too.
        let thread = thread_of(running.0.id(), program.thread_names);
        if let (Some(thread), true) = (thread, telemetry.frames(counts).is_ok_and(|frames| frames > 1000)) {
            break (telemetry, thread);
        }
    };
    let guest = invite().map_err(|error| failed(format!("nobody can look at it: {error}")))?;
    sleep(WARM_UP);
    let (frames, on_cpu, at) = (telemetry.frames(counts)?, on_cpu_nanos(&thread)?, now());
    sleep(length);
    let (frames, on_cpu, wall) =
        (telemetry.frames(counts)? - frames, on_cpu_nanos(&thread)? - on_cpu, now().duration_since(at));
    if let Some(guest) = guest {
        guest.leave().map_err(|error| failed(format!("looking at it failed: {error}")))?;
    }
    // It may have found that it did not do what was to be measured.
    if let Some(code @ 1..) = running.stop() {
        return Err(failed(format!("ended with code {code}")));
    }
    let said = fs::read_to_string(log).unwrap_or_default();
    Ok(Sample {
        own_ns: said.lines().find_map(|line| line.strip_prefix(OWN_TIME)?.parse().ok()),
        per_cpu_second: frames as f64 * 1e9 / on_cpu.max(1) as f64,
        on_cpu: on_cpu as f64 / wall.as_nanos() as f64,
    })
}

/// Folder in /proc of the first thread that has one of these names, or of the [busiest](BUSIEST).
fn thread_of(process: u32, names: &[&str]) -> Option<std::path::PathBuf> {
    let mut threads = fs::read_dir(format!("/proc/{process}/task")).ok()?.flatten().map(|entry| entry.path());
    if names.is_empty() {
        return threads.max_by_key(|thread| on_cpu_nanos(thread).unwrap_or(0));
    }
    threads.find(|thread| {
        let name = fs::read_to_string(thread.join("comm")).unwrap_or_default();
        names.iter().any(|wanted| name.trim() == *wanted)
    })
}

/// Nanoseconds that the thread was on a CPU.
fn on_cpu_nanos(thread: &std::path::Path) -> io::Result<u64> {
    let text = fs::read_to_string(thread.join("schedstat"))?;
    let first = text.split_whitespace().next().and_then(|word| word.parse().ok());
    first.ok_or_else(|| io::Error::other("the kernel gives no on-CPU time (schedstat)"))
}

#[allow(clippy::disallowed_methods, reason = "a benchmark reads the clock")]
fn now() -> Instant {
    Instant::now()
}
