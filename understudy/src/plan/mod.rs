//! `understudy plan`: assigns a representative to each switch of a 1Pipe network, and writes what hosts and
//! switches need for it.

mod files;
mod rules;
mod tables;

use crate::config::{self, Network};
use crate::output::{print, print_error};
use core::fmt::Write as _;
use miette::MietteDiagnostic;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Plan the representatives of a network's switches for 1Pipe, and their beacons' detours
///
/// Prints the representative of each switch, the beacons that need a detour, and the rules by which switches
/// end their tunnels. The exit status is 2 if the file is invalid, for example because of a loop or a link
/// without a representative.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Topology of the network
    #[arg(value_name = "TOPOLOGY.toml")]
    topology: PathBuf,
    /// Write the configurations of representatives and hosts, and the switches' rules, into this folder
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
}

/// File of the plan.
struct File {
    name: String,
    content: String,
}

pub(crate) fn run(args: &Args) -> ExitCode {
    let network = match config::load_topology(&args.topology) {
        Ok(network) => network,
        Err(report) => {
            print_error(report.render());
            return ExitCode::from(config::EXIT_CODE);
        }
    };
    let mut text = summary(&args.topology, &network);
    let rules = rules::all(&network);
    let Some(folder) = &args.out else {
        for File { name, content } in &rules {
            _ = write!(text, "\n{name}:\n\n{}", indented(content));
        }
        let files = files::all(&network).len();
        _ = writeln!(
            text,
            "\n`--out DIR` writes these, and {files} configurations of representatives and hosts."
        );
        return print(&text, ExitCode::SUCCESS);
    };
    let all: Vec<_> = files::all(&network).into_iter().chain(rules).collect();
    match all.iter().try_for_each(|file| write(folder, file)) {
        Ok(()) => {
            _ = writeln!(text, "\nWrote {} files to {}.", all.len(), folder.display());
            print(&text, ExitCode::SUCCESS)
        }
        Err(report) => {
            print_error(format_args!("{report:?}"));
            ExitCode::FAILURE
        }
    }
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

#[cfg(test)]
mod tests;
