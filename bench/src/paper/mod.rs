//! `understudy bench paper`: reproduces the figures and tables of the four papers, as far as software can,
//! and writes one report.
//!
//! For each figure, a file for each paper has what the paper reports, how it is measured here, and what is
//! checked. All measurements are in virtual time, so the results are the same on any machine.

pub mod figure;
mod machine;
mod onepipe;
mod p4ce;
mod rdmc;
mod report;
pub mod results;
pub mod shape;
mod swordbox;
#[cfg(test)]
mod tests;

use clap::{Args, ValueEnum};
use figure::{Figure, NumberSource, Paper, Reproduction, Settings};
use machine::Machine;
use miette::{IntoDiagnostic as _, Report, miette};
use results::{Record, Store};
use rustix::time::{ClockId, clock_gettime};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use tracing::{error, info};

/// Reproduce the papers' figures and tables, as far as software can, and write a report (simulated; some
/// minutes)
#[derive(Args)]
pub struct PaperArgs {
    /// Papers to reproduce
    #[arg(value_enum, default_value = "all")]
    papers: Vec<PaperSelection>,
    /// Only these figures, such as fig5 (see --list)
    #[arg(long, value_delimiter = ',', value_name = "FIGURE")]
    only: Vec<String>,
    /// Run shorter experiments, with fewer points
    #[arg(long)]
    quick: bool,
    /// Folder of results and the report: results that it has are not measured again
    #[arg(long, value_name = "FOLDER", default_value = "results")]
    results: PathBuf,
    /// Measure again what the folder already has
    #[arg(long)]
    fresh: bool,
    /// Seed of all random choices; --list names the figures that have none
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Number of concurrent experiments [default: the number of CPUs]
    #[arg(long, value_name = "N")]
    jobs: Option<usize>,
    /// Only list the figures, with the reason why some cannot be shown
    #[arg(long)]
    list: bool,
    /// Commit to name in the report [default: that of the work tree that contains the program]
    #[arg(long)]
    commit: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum PaperSelection {
    #[value(name = "1pipe")]
    OnePipe,
    P4ce,
    Swordbox,
    Rdmc,
    All,
}

impl PaperSelection {
    const fn has(self, paper: Paper) -> bool {
        matches!(
            (self, paper),
            (Self::All, _)
                | (Self::OnePipe, Paper::OnePipe)
                | (Self::P4ce, Paper::P4ce)
                | (Self::Swordbox, Paper::Swordbox)
                | (Self::Rdmc, Paper::Rdmc)
        )
    }
}

/// Returns the figures of all papers, in the papers' order.
pub fn figures() -> impl Iterator<Item = &'static Figure> {
    [onepipe::FIGURES, p4ce::FIGURES, swordbox::FIGURES, rdmc::FIGURES].into_iter().flatten()
}

/// Returns the selected figures.
fn selected(papers: &[PaperSelection], only: &[String]) -> Result<Vec<&'static Figure>, Report> {
    let of_papers = || figures().filter(|figure| papers.iter().any(|which| which.has(figure.paper)));
    if let Some(unknown) = only.iter().find(|only| !of_papers().any(|figure| figure.id == **only)) {
        let ids: Vec<_> = of_papers().map(|figure| figure.id).collect();
        return Err(miette!(help = format!("use one of {}", ids.join(", ")), "there is no figure {unknown}"));
    }
    Ok(of_papers().filter(|figure| only.is_empty() || only.iter().any(|only| only == figure.id)).collect())
}

/// Runs the selected experiments, and writes the report. `own` is the path of the program itself; `dpdk` is
/// the version of DPDK that it uses.
///
/// # Errors
/// An experiment failed, or a file cannot be written.
pub fn run(args: &PaperArgs, own: &Path, dpdk: &str) -> Result<(), Report> {
    let figures = selected(&args.papers, &args.only)?;
    if args.list {
        return list(&figures);
    }
    // Reasons are only printed for figures that were selected by name.
    if !args.only.is_empty() {
        for why in reasons_not_shown(&figures)? {
            info!("{why}");
        }
    }
    let settings = Settings { quick: args.quick, seed: args.seed };
    let machine = Machine::detect(own, dpdk, args.commit.as_deref())?;
    let store = Store::open(&args.results, &machine.program)?;
    let jobs = args.jobs.unwrap_or_else(|| std::thread::available_parallelism().map_or(1, usize::from));
    let failed = measure(&figures, &settings, &store, &machine, args.fresh, jobs)?;
    let written = report::write(self::figures(), &store, &settings, &machine, &failed)?;
    writeln!(std::io::stdout(), "{written}").into_diagnostic()?;
    match failed.first() {
        None => Ok(()),
        Some((figure, why)) => {
            Err(miette!("{} of {} experiments failed, {figure} first: {why}", failed.len(), figures.len()))
        }
    }
}

/// Returns the reasons why some of these figures are not shown. Fails if none of them can be.
fn reasons_not_shown(figures: &[&Figure]) -> Result<Vec<String>, Report> {
    let why = |figure: &&Figure| match figure.reproduction {
        Reproduction::Omitted(why) => Some(format!("{figure} is not shown: {why}")),
        Reproduction::Measured { .. } => None,
    };
    let not: Vec<_> = figures.iter().filter_map(why).collect();
    if not.len() < figures.len() {
        return Ok(not);
    }
    Err(miette!(
        help = "run with `--list` to see what can be measured",
        "none of the selected figures can be measured: {}",
        not.join("; ")
    ))
}

fn list(figures: &[&Figure]) -> Result<(), Report> {
    let mut out = std::io::stdout().lock();
    figures.iter().try_for_each(|figure| writeln!(out, "{}", row(figure))).into_diagnostic()
}

/// Returns the figure's line in the list.
fn row(figure: &Figure) -> String {
    let note = match figure.reproduction {
        Reproduction::Measured { source: NumberSource::Packets, .. } => String::new(),
        Reproduction::Measured { random: false, .. } => " [computed: the same with any seed]".into(),
        Reproduction::Measured { source: NumberSource::Model, .. } => " [computed]".into(),
        Reproduction::Omitted(why) => format!(" [not shown: {why}]"),
    };
    format!("{:<9} {:<16} {}{note}", figure.paper.key(), figure.id, figure.title)
}

/// Measures the figures that have no result yet, several at a time. Returns those that failed.
fn measure(
    figures: &[&'static Figure],
    settings: &Settings,
    store: &Store,
    machine: &Machine,
    fresh: bool,
    jobs: usize,
) -> Result<Vec<report::Failed>, Report> {
    let mut pending = Vec::new();
    for figure in figures.iter().filter(|figure| matches!(figure.reproduction, Reproduction::Measured { .. }))
    {
        if fresh {
            store.remove(figure, settings)?;
        }
        if store.load(figure, settings).is_none() {
            pending.push(*figure);
        }
    }
    let all =
        figures.iter().filter(|figure| matches!(figure.reproduction, Reproduction::Measured { .. })).count();
    if pending.len() < all {
        info!("{} of {all} experiments already have results", all - pending.len());
    }
    let (next, failed) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..jobs.clamp(1, pending.len().max(1)) {
            scope.spawn(|| {
                while let Some(figure) = pending.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let position =
                        pending.iter().position(|other| core::ptr::eq(*other, *figure)).map_or(0, |n| n + 1);
                    let position = format!("[{position}/{}]", pending.len());
                    info!("{position} {figure}: {} ...", figure.title);
                    match run_one(figure, settings, store, machine) {
                        Ok(verdict) => info!("{position} {figure}: {verdict}"),
                        Err(error) => {
                            error!("{position} {figure}: failed: {error}");
                            let mut failed = failed.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
                            failed.push((*figure, error.to_string()));
                        }
                    }
                }
            });
        }
    });
    Ok(failed.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner))
}

/// Runs an experiment and stores its result. Returns a line for the terminal.
fn run_one(figure: &Figure, settings: &Settings, store: &Store, machine: &Machine) -> Result<String, Report> {
    let Reproduction::Measured { run, .. } = figure.reproduction else { return Ok(String::new()) };
    let began = cpu_s();
    let outcome = run(settings)?;
    let seconds = cpu_s() - began;
    let verdict = outcome.verdict().name();
    let record = Record {
        program: machine.program.clone(),
        commit: machine.commit.clone(),
        settings: *settings,
        command: figure.fresh_command(settings),
        cpu_seconds: (seconds * 10.0).round() / 10.0,
        outcome,
    };
    store.save(figure, &record)?;
    Ok(format!("{verdict} ({seconds:.1} s of CPU)"))
}

/// Returns the CPU time of this thread so far, in seconds. Wall-clock time would include other programs on
/// the machine.
fn cpu_s() -> f64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}
