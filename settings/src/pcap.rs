//! Ports that play captures and record one.

use crate::capture;
use crate::declare::{boolean, special};
use crate::paths::{canonical, path};
use crate::report::Problem;
use crate::tree::{Table, Value};
use dataplane::config::Device;
use std::path::{Path, PathBuf};

crate::table! {
    /// Captures; at least one of `rx` and `tx`
    pub(crate) enum PcapKeys "`pcap`";
    /// Capture to play, or a list of them: the port has a receive queue for each
    rx: () = special("path, or list of paths") => optional("no frame is received") example("in.pcap");
    /// Capture to record what is sent; it is overwritten
    tx: () = special("path") => optional("what is sent is counted and dropped") example("out.pcap");
    /// Whether the captures are played over and over, at the highest rate
    infinite: bool = boolean() => default(false);
}

/// Reads the captures to play and the capture to record.
pub(crate) fn read(table: &Table<'_>, folder: &Path) -> (Option<Device>, Option<capture::Size>) {
    let (rx, tx) = (table.value(PcapKeys::rx), table.value(PcapKeys::tx));
    let infinite_value = table.value(PcapKeys::infinite);
    let infinite = table.read(PcapKeys::infinite);
    check_keys(table, rx.as_ref(), tx.as_ref(), infinite_value.as_ref().filter(|_| infinite));
    let files = rx.as_ref().map(|value| value.list_if_any().unwrap_or_else(|| vec![value.clone()]));
    let played: Vec<_> =
        files.unwrap_or_default().into_iter().map(|value| (path(&value, folder), value)).collect();
    if let (Some(rx), true) = (&rx, played.is_empty()) {
        rx.add(
            rx.problem("`rx` names no file").label("empty").help("write `rx = \"in.pcap\"`, or leave it out"),
        );
    }
    let mut size = capture::Size::default();
    for (path, value) in &played {
        let Some(path) = path else { continue };
        match capture::examine(path, infinite) {
            Ok(other) => size.add(other),
            Err(flaw) => value.add(value.problem(flaw.message).label(flaw.label).help(flaw.remedy)),
        }
    }
    let recorded = tx.as_ref().and_then(|value| Some((path(value, folder)?, value)));
    if let Some((path, value)) = &recorded {
        check_recorded(path, value, &played);
    }
    let wrong = played.iter().any(|(path, _)| path.is_none()) || (tx.is_some() && recorded.is_none());
    let rx = played.into_iter().filter_map(|(path, _)| path).collect();
    let device = Device::Pcap { rx, tx: recorded.map(|(path, _)| path), infinite };
    ((!wrong).then_some(device), infinite.then_some(size))
}

/// Checks that the port plays or records, and does not do both if it plays endlessly; `infinite_value` is `infinite
/// = true`.
fn check_keys(
    table: &Table<'_>,
    rx: Option<&Value<'_>>,
    tx: Option<&Value<'_>>,
    infinite_value: Option<&Value<'_>>,
) {
    let problem = match (rx, tx, infinite_value) {
        (None, None, _) => table
            .problem("`pcap` names no file")
            .label("neither `rx` nor `tx`")
            .help("add `rx = \"in.pcap\"` to play a capture, `tx = \"out.pcap\"` to record one, or both"),
        (None, Some(_), Some(infinite_value)) => {
            Problem::at(infinite_value.key_span(), "`infinite` needs a capture to play")
                .label("plays endlessly")
                .help("add `rx = \"in.pcap\"` in place of `tx`, or remove `infinite`")
        }
        (Some(_), Some(tx), Some(infinite_value)) => {
            Problem::at(infinite_value.key_span(), "a port that plays endlessly cannot record")
                .label("plays endlessly")
                .also(tx.key_span(), "records")
                .help("remove `tx` or `infinite`; sent frames are counted in either case")
        }
        _ => return,
    };
    table.problems().add(problem);
}

/// Checks that a file can be recorded to, and is not one of those played.
fn check_recorded(path: &Path, value: &Value<'_>, played: &[(Option<PathBuf>, Value<'_>)]) {
    let folder = path.parent().unwrap_or(Path::new("/"));
    if !folder.as_os_str().is_empty() && !folder.is_dir() {
        let problem =
            value.problem(format!("the folder `{}` to record into does not exist", folder.display()));
        value.add(
            problem
                .label("folder does not exist")
                .help(format!("create it: `mkdir -p {}`", folder.display())),
        );
    } else if path.is_dir() {
        let problem = value.problem(format!("`{}` is a folder", path.display())).label("not a file");
        value.add(problem.help("name the file to record to: `tx = \"out.pcap\"`"));
    }
    let same = |(played, _): &&(Option<PathBuf>, Value<'_>)| {
        played.as_ref().is_some_and(|played| canonical(played) == canonical(path))
    };
    if let Some((_, same)) = played.iter().find(same) {
        let problem = value.problem("the capture that is played would be overwritten").label("records to it");
        value
            .add(problem.also(same.span(), "plays this").help("record to another file: `tx = \"out.pcap\"`"));
    }
}
