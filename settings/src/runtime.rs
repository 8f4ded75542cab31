//! The `[runtime]` table: memory, workers, and when to stop.

use crate::declare::{boolean, millis, other, power_of_two, special, whole, words};
use crate::machine::{Machine, cpu_list};
use crate::report::Problem;
use crate::tree::{Problems, Table, Value};
use core::ops::Range;
use core::time::Duration;
use dataplane::config::{Idle, OnLinkLoss};
use switch::Nanos;
use toml::Spanned;

/// Default memory for virtual devices, in MB; more if the ports need it
pub const ORDINARY_MB: u32 = 64;
/// Default memory with huge pages, in MB; more if the ports need it
pub const HUGEPAGES_MB: u32 = 512;
/// Maximum count of workers: the count of lcores that DPDK supports
const MAX_WORKERS: usize = 128;
/// One day, in milliseconds; a longer time is taken for a mistake
const MAX_IDLE_MS: u64 = 86_400_000;

/// `[runtime]` as read. Values that depend on the ports are computed when the ports are known.
pub struct Runtime {
    /// CPU of each worker, `None` for any; not empty
    pub cpus: Vec<Option<usize>>,
    /// Byte range of the list of workers
    workers: Option<Range<usize>>,
    /// Idle strategy of the workers
    pub idle: Idle,
    /// Memory for packets, in MB
    pub memory_mb: Option<Spanned<u64>>,
    /// Whether to use huge pages
    pub hugepages: bool,
    /// Prefix of the names of this instance's shared files
    pub file_prefix: Option<String>,
    /// Whether DPDK's telemetry socket is enabled
    pub telemetry: bool,
    /// Capacity of a ring between two workers, in frames
    pub handoff_ring: usize,
    /// Capacity of a queue to or from the control plane
    pub control_queue: usize,
    /// What the loss of a port's link does
    pub on_link_loss: OnLinkLoss,
    /// Time without received frames after which the program stops
    pub stop_when_idle: Option<Duration>,
}

crate::table! {
    /// Workers, memory, and when to stop
    pub(crate) enum Keys "[runtime]";
    /// One element for each worker, a thread that polls ports: the CPU to pin it to, or `"any"`
    workers: () = special("list of CPU numbers and `\"any\"`") => optional("one worker that the kernel places") example([1]);
    /// What a worker does in turns without work: `spin` polls on, `yield` offers its CPU to other threads, `sleep` waits up to 100 us
    idle: Idle = words(&[("spin", Idle::Spin), ("yield", Idle::Yield), ("sleep", Idle::Sleep)]) => default("spin");
    /// Memory for packets; devices on PCI need huge pages
    memory_mb: u64 = whole(4..=1 << 20).unit("MB") => optional("as much as the ports need, at least 64, or 512 with huge pages") example(64);
    /// Whether to use huge pages, which devices on PCI need
    hugepages: bool = boolean() => default(false);
    /// Name of DPDK's shared files of this instance, to which secondary processes such as `dpdk-dumpcap` attach
    file_prefix: String = other("up to 32 letters, digits, `-` and `_`", file_prefix) => optional("no shared files") example("understudy");
    /// Whether DPDK's telemetry socket exists; it needs `file_prefix`
    telemetry: bool = boolean() => default(false);
    /// Frames that wait in a ring to another worker, which has the port's queue or the state that they need; a power of two
    handoff_ring: usize = power_of_two(2..=1 << 20).unit("frames") => default(1024);
    /// Messages that wait between a worker and the control plane
    control_queue: usize = whole(1..=1 << 20) => default(1024);
    /// What the loss of a port's link does: `wait` goes on, and uses the port again when its link is up; `exit` ends the program as Ctrl-C does, and `run`, `host`, `pktgen`, `process` and `rdmc` exit with 3. A memif port loses its link when its peer disconnects. A card that the system requests, to unplug it, ends the program with 3 in any case
    on_link_loss: OnLinkLoss = words(&[("wait", OnLinkLoss::Wait), ("exit", OnLinkLoss::Exit)]) => default("wait");
    /// Time without received frames after which the program stops
    stop_when_idle_ms: Nanos = millis(1..=MAX_IDLE_MS) => optional("it runs until it is interrupted") example(300);
}

/// Reads the table.
pub fn read(root: &Table<'_>, machine: &Machine) -> Runtime {
    let table = root.section(&Keys::TABLE).unwrap_or_else(|| Table::absent(&Keys::TABLE, root.problems()));
    let listed = table.value(Keys::workers);
    let cpus = listed.as_ref().and_then(|value| workers(value, machine)).unwrap_or(vec![None]);
    let runtime = Runtime {
        cpus,
        workers: listed.map(|value| value.span()),
        idle: table.read(Keys::idle),
        memory_mb: table.spanned(Keys::memory_mb),
        hugepages: table.read(Keys::hugepages),
        file_prefix: table.read(Keys::file_prefix),
        telemetry: table.read(Keys::telemetry),
        handoff_ring: table.read(Keys::handoff_ring),
        control_queue: table.read(Keys::control_queue),
        on_link_loss: table.read(Keys::on_link_loss),
        stop_when_idle: table.read(Keys::stop_when_idle_ms).map(|time| Duration::from_nanos(time.0)),
    };
    let (prefix, telemetry) = (table.value(Keys::file_prefix), table.value(Keys::telemetry));
    if let (true, Some(telemetry), None) = (runtime.telemetry, &telemetry, &prefix) {
        // Without a prefix, all instances would use the socket of the prefix `rte` and could not be
        // distinguished.
        let problem = Problem::at(telemetry.key_span(), "`telemetry` needs a `file_prefix`")
            .label("the socket would have the default name of all instances");
        telemetry.add(problem.help(
            "add `file_prefix = \"understudy\"`: then the socket is /var/run/dpdk/understudy/dpdk_telemetry.v2, \
             and `dpdk-telemetry.py -f understudy` finds it",
        ));
    }
    table.finish();
    runtime
}

impl Runtime {
    /// Reports several workers, for a function that supports only one. `why` is the message.
    pub fn check_one_worker(&self, why: &str, problems: &Problems) {
        if self.cpus.len() > 1 {
            let help = "write `workers = [1]`, or leave the key out";
            self.reject_workers(why, "several workers", help, problems);
        }
    }

    /// Reports the number of workers, if the file states it.
    pub fn reject_workers(&self, why: &str, label: &str, help: &str, problems: &Problems) {
        if let Some(at) = &self.workers {
            problems.add(Problem::at(at.clone(), why).label(label).help(help));
        }
    }

    /// Reports `stop_when_idle_ms`, for programs that do not stop when idle; `remedy` states what stops them.
    pub fn reject_stop_when_idle(&self, table: &str, remedy: &str, problems: &Problems) {
        if self.stop_when_idle.is_some() {
            let problem = Problem::of_file(format!("`stop_when_idle_ms` is not valid with {table}"));
            problems.add(problem.help(format!("remove it: {remedy}")));
        }
    }
}

/// Reads the CPU of each worker.
fn workers(value: &Value<'_>, machine: &Machine) -> Option<Vec<Option<usize>>> {
    let Some(elements) = value.list_if_any() else {
        let problem = value.problem("`workers` has to be a list: one element for each worker");
        value.add(problem.label("not a list").help(
            "write `workers = [1]` for a worker on CPU 1, or `workers = [\"any\", \"any\"]` for two that the \
             kernel places",
        ));
        return None;
    };
    if elements.is_empty() || elements.len() > MAX_WORKERS {
        let problem = value.problem(format!("`workers` lists {} workers", elements.len()));
        value.add(problem.label("too few or too many").help(format!(
            "list 1 to {MAX_WORKERS}: `workers = [1]`, or leave the key out for one that the kernel places"
        )));
        return None;
    }
    let online = machine.online_cpus();
    let mut used: Vec<(usize, Range<usize>)> = Vec::new();
    let mut cpus = Vec::new();
    for element in elements {
        match element.text_if_any() {
            Some("any") => {
                cpus.push(None);
                continue;
            }
            Some(_) => {
                let problem = element.problem("a worker's CPU has to be a number or `\"any\"`");
                element.add(problem.label("neither").help("write `workers = [1]`, or `workers = [\"any\"]`"));
                continue;
            }
            None => {}
        }
        let Some(cpu) = element.whole_in(0..=u64::from(u16::MAX), "1").map(|cpu| cpu as usize) else {
            continue;
        };
        if let Some((_, first)) = used.iter().find(|(other, _)| *other == cpu) {
            let problem = element.problem(format!("CPU {cpu} is listed twice"));
            element.add(problem.label("again").also(first.clone(), "first here").help(
                "give each worker a CPU of its own: two workers that poll on one CPU slow each other down",
            ));
        } else if let Some(online) = online.as_ref().filter(|online| !online.contains(&cpu)) {
            let problem = element.problem(format!("this machine has no CPU {cpu}"));
            element.add(problem.label("no such CPU").help(format!(
                "its CPUs are {}; `\"any\"` in place of a number lets the kernel place the worker",
                cpu_list(online)
            )));
        }
        used.push((cpu, element.span()));
        cpus.push(Some(cpu));
    }
    (!cpus.is_empty()).then_some(cpus)
}

/// Reads a prefix that is valid in a path.
fn file_prefix(value: &Value<'_>) -> Option<String> {
    let text = value.text()?;
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_');
    if text.len() > 32 || !text.chars().all(plain) {
        let problem = value.problem("`file_prefix` cannot be used in file names");
        value.add(
            problem
                .label("not valid in a file name")
                .help("write up to 32 letters, digits, `-` and `_`, such as `file_prefix = \"understudy\"`"),
        );
        return None;
    }
    Some(text.to_owned())
}
