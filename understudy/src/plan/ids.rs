//! Numbers of processes: written into a topology, and compared with those of files that were written before.

use crate::config::{self, Network};
use onepipe::ProcessId;
use settings::{Problem, Report, file};
use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

/// Ending of the name of a process's file, behind the host's name
const ENDING: &str = ".process.toml";

/// Gives a number to each host in a file that has none. Returns their count.
///
/// # Errors
/// The file has another problem than missing numbers, or cannot be written.
pub(super) fn number(path: &Path) -> Result<usize, Report> {
    let text = file::text_of(path)?;
    let mut network = config::load_topology(path)?;
    let numbers = network.topology.numbering();
    let new = numbered(&text, &network, &numbers);
    for &(host, id) in &numbers {
        network.topology.hosts[host].id = Some(id);
    }
    let reread = config::parse_plan(path, &new)?;
    if reread.topology != network.topology {
        let problem = Problem::of_file("the numbers of hosts cannot be inserted into this file").help(
            "write each host as a table [[host]] with its `name` on a line of its own, or write `id` by hand",
        );
        return Err(Report::new(path, &text, vec![problem]));
    }
    if !numbers.is_empty() {
        replace(path, &new).map_err(|error| {
            let problem = Problem::of_file(format!("cannot write the numbers: {error}"));
            Report::new(path, &text, vec![problem.help("make the file and its folder writable")])
        })?;
    }
    Ok(numbers.len())
}

/// Returns a file's text with these numbers, each on a line after its host's name.
fn numbered(text: &str, network: &Network, numbers: &[(usize, ProcessId)]) -> String {
    let mut new = text.to_owned();
    // From the end, so that earlier positions remain valid.
    let mut numbers = numbers.to_vec();
    numbers.sort_by_key(|&(host, _)| core::cmp::Reverse(network.names[host].start));
    for (host, id) in numbers {
        let name = &network.names[host];
        let indent = text[..name.start].rfind('\n').map_or(0, |end| end + 1);
        let indent: String =
            text[indent..].chars().take_while(|letter| [' ', '\t'].contains(letter)).collect();
        match text[name.end..].find('\n') {
            Some(end) => {
                let at = name.end + end;
                let line_end = if text[..at].ends_with('\r') { "\r\n" } else { "\n" };
                new.insert_str(at + 1, &format!("{indent}id = {id}{line_end}"));
            }
            None => new.insert_str(text.len(), &format!("\n{indent}id = {id}\n")),
        }
    }
    new
}

/// Replaces a file's content. After a crash the file has either content.
fn replace(path: &Path, content: &str) -> io::Result<()> {
    // A symbolic link remains one.
    let path = path.canonicalize()?;
    let mut new_path = path.clone().into_os_string();
    new_path.push(".new");
    let mut new = fs::File::create(&new_path)?;
    new.write_all(content.as_bytes())?;
    new.set_permissions(fs::metadata(&path)?.permissions())?;
    new.sync_all()?;
    fs::rename(&new_path, &path)
}

/// A process's file of an earlier plan.
struct Written {
    path: PathBuf,
    /// Name of its host
    host: String,
    /// Number of the process, or why it is unknown
    id: Result<ProcessId, String>,
}

/// Differences between a topology and the processes' files in the folder of an earlier plan.
#[derive(Default)]
pub(super) struct Changes {
    /// Changes that are not made silently
    problems: Vec<Problem>,
    /// Files of hosts that are gone, whose number has another host now
    pub(super) stale: Vec<PathBuf>,
    /// Hosts that are gone, and whose number is free
    pub(super) gone: Vec<String>,
}

impl Changes {
    /// Compares a topology with the files in a folder, which need not exist.
    pub(super) fn find(network: &Network, folder: &Path) -> Result<Self, Report> {
        let written = written(folder).map_err(|error| {
            let problem = Problem::of_file(format!("cannot read the files of an earlier plan: {error}"));
            Report::new(
                folder,
                "",
                vec![problem.help("make the folder readable, or name another with `--out`")],
            )
        })?;
        let hosts = || network.topology.senders();
        let by_name: BTreeMap<&str, usize> = hosts().map(|(at, host)| (&host.name[..], at)).collect();
        let by_id: BTreeMap<ProcessId, usize> =
            hosts().filter_map(|(at, host)| Some((host.id?, at))).collect();
        let mut changes = Self::default();
        for Written { path, host, id } in written {
            let shown = path.display();
            let id = match id {
                Ok(id) => id,
                Err(why) => {
                    let problem =
                        Problem::of_file(format!("{shown} does not show the number of its process: {why}"));
                    changes.problems.push(problem.help(HELP));
                    continue;
                }
            };
            let name_of = |at: usize| &network.topology.hosts[at].name;
            let (at, message) = match (by_name.get(&host[..]), by_id.get(&id)) {
                (Some(own), Some(now)) if own == now => continue,
                (Some(&own), None) => {
                    let now = network.topology.hosts[own].id.unwrap_or_default();
                    (own, format!("host `{host}` is process {id} in {shown}, but {now} here"))
                }
                (_, Some(&now)) => {
                    (now, format!("process {id} is host `{host}` in {shown}, but `{}` here", name_of(now)))
                }
                (None, None) => {
                    changes.gone.push(host);
                    continue;
                }
            };
            if !by_name.contains_key(&host[..]) {
                changes.stale.push(path);
            }
            let problem = Problem::at(network.names[at].clone(), message).label("here");
            changes.problems.push(problem.help(HELP));
        }
        Ok(changes)
    }

    /// Returns an error if the number of a process has changed.
    pub(super) fn check(&mut self, topology: &Path) -> Result<(), Report> {
        if self.problems.is_empty() {
            return Ok(());
        }
        let text = file::text_of(topology)?;
        Err(Report::new(topology, &text, core::mem::take(&mut self.problems)))
    }
}

const HELP: &str =
    "numbers must not change while processes run: restore it, or stop all processes and pass `--renumber`";

/// Returns the processes' files in a folder, sorted by name.
fn written(folder: &Path) -> io::Result<Vec<Written>> {
    let entries = match fs::read_dir(folder) {
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
            return Ok(Vec::new());
        }
        entries => entries?,
    };
    let mut written = Vec::new();
    for entry in entries {
        let path = entry?.path();
        let name = path.file_name().and_then(|name| name.to_str());
        if let Some(host) = name.and_then(|name| name.strip_suffix(ENDING)).map(String::from) {
            written.push(Written { id: id_in(&path), path, host });
        }
    }
    written.sort_by(|one, other| one.host.cmp(&other.host));
    Ok(written)
}

/// Returns the number of the process in a file.
fn id_in(path: &Path) -> Result<ProcessId, String> {
    let text = fs::read_to_string(path).map_err(|error| error.to_string())?;
    let table: toml::Table = text.parse().map_err(|error: toml::de::Error| error.message().to_owned())?;
    let id = table.get("process").and_then(|process| process.get("id")).and_then(toml::Value::as_integer);
    let id = id.ok_or("there is no `id` in [process]")?;
    id.try_into().map(ProcessId).map_err(|_| format!("`id` is {id}"))
}
