//! `understudy plan`: assigns a representative to each switch of a 1Pipe network, and writes what hosts and
//! switches need for it.

mod files;
mod ids;
mod rules;
mod tables;
mod units;

use crate::config::{self, Network};
use crate::output::{print, print_error};
use core::fmt::Write as _;
use ids::Changes;
use miette::MietteDiagnostic;
use settings::Report;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Plan the representatives of a network's switches for 1Pipe, and their beacons' detours
///
/// Prints the representative of each switch, the beacons that need a detour, and the rules by which switches
/// end their tunnels.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Topology of the network
    #[arg(value_name = "TOPOLOGY.toml")]
    topology: PathBuf,
    /// Write the configurations of representatives and hosts, the switches' rules, and what installs them as services into
    /// this folder
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// First write a number (`id`) into TOPOLOGY.toml for each host that has none
    #[arg(long)]
    number: bool,
    /// Let numbers differ from those in the files in DIR, which is safe only while no process runs
    #[arg(long, requires = "out")]
    renumber: bool,
}

/// File of the plan.
struct File {
    name: String,
    content: String,
}

pub(crate) fn run(args: &Args) -> ExitCode {
    match plan(args) {
        Ok(code) => code,
        Err(report) => {
            print_error(report.render());
            ExitCode::from(config::EXIT_CODE)
        }
    }
}

/// Prints or writes the plan. Returns an error if the topology, or what it changes, is invalid.
fn plan(args: &Args) -> Result<ExitCode, Report> {
    let numbered = if args.number { ids::number(&args.topology)? } else { 0 };
    let network = config::load_plan(&args.topology)?;
    let mut text = summary(&args.topology, &network);
    if args.number {
        _ = writeln!(text, "\nWrote the numbers of {numbered} hosts into {}.", args.topology.display());
    }
    let rules = rules::all(&network);
    let Some(folder) = &args.out else {
        for File { name, content } in &rules {
            _ = write!(text, "\n{name}:\n\n{}", indented(content));
        }
        let files = files::all(&network).len() + usize::from(network.controller.is_some());
        _ = writeln!(
            text,
            "\n`--out DIR` writes these, {files} configurations of representatives and hosts, and a script that installs those \
             of a host as services."
        );
        return Ok(print(&text, ExitCode::SUCCESS));
    };
    let mut changes = Changes::find(&network, folder)?;
    if !args.renumber {
        changes.check(&args.topology)?;
    }
    let controller = files::controller(&network, &args.topology)?;
    let all = files::all(&network).into_iter().chain(controller).chain(rules).chain(units::all(&network));
    let all: Vec<_> = all.collect();
    let written = all.iter().try_for_each(|file| write(folder, file));
    Ok(match written.and_then(|()| changes.stale.iter().try_for_each(|path| remove(path))) {
        Ok(()) => {
            if !changes.gone.is_empty() {
                let gone = changes.gone.join(", ");
                _ = writeln!(text, "\nNote: {} has files of hosts that are gone: {gone}.", folder.display());
            }
            _ = writeln!(
                text,
                "\nWrote {} files to {}. `sh install.sh HOST` there, as root on a host, runs its representatives as services.",
                all.len(),
                folder.display()
            );
            print(&text, ExitCode::SUCCESS)
        }
        Err(report) => {
            print_error(format_args!("{report:?}"));
            ExitCode::FAILURE
        }
    })
}

/// Returns the plan as text.
pub(crate) fn summary(path: &Path, network: &Network) -> String {
    let topology = &network.topology;
    format!(
        "{}: {} hosts, {} switches, {} links between switches\n\n{}\n{}{}",
        path.display(),
        topology.hosts.len(),
        topology.switches.len(),
        topology.links.len(),
        tables::switches(network),
        tables::beacons(network),
        tables::notes(network)
    )
}

fn indented(content: &str) -> String {
    content.lines().flat_map(|line| ["    ", line, "\n"]).collect()
}

fn write(folder: &Path, file: &File) -> Result<(), miette::Report> {
    let path = folder.join(&file.name);
    std::fs::create_dir_all(folder).and_then(|()| std::fs::write(&path, &file.content)).map_err(|error| {
        let what = MietteDiagnostic::new(format!("{}: {error}", path.display()));
        what.with_help("name a writable folder with `--out`").into()
    })
}

fn remove(path: &Path) -> Result<(), miette::Report> {
    std::fs::remove_file(path).map_err(|error| {
        let what = MietteDiagnostic::new(format!("{}: {error}", path.display()));
        what.with_help("remove it: the number of its process belongs to another host now").into()
    })
}

#[cfg(test)]
mod tests;
