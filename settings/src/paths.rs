//! Paths of files and sockets.

use crate::tree::Value;
use std::path::{Path, PathBuf};

/// Maximum length of a socket path: the size of `sun_path` without the terminating zero
const MAX_SOCKET: usize = 107;

/// Reads a path; relative ones are relative to `folder`. DPDK splits its arguments at commas and equals
/// signs.
pub(crate) fn path(value: &Value<'_>, folder: &Path) -> Option<PathBuf> {
    let text = value.text()?;
    let path = folder.join(text);
    if path.to_string_lossy().contains([',', '=', '[', ']']) {
        let problem = value.problem(format!("DPDK does not accept the path `{}`", path.display()));
        value.add(
            problem
                .label("has a character at which DPDK splits arguments")
                .help("use a path without commas, equals signs and brackets"),
        );
        return None;
    }
    Some(path)
}

/// Reads the path of a Unix socket.
pub fn socket_path(value: &Value<'_>, folder: &Path) -> Option<PathBuf> {
    let path = path(value, folder)?;
    // DPDK's memif driver requires an absolute path.
    let path = std::path::absolute(&path).unwrap_or(path);
    let len = path.as_os_str().len();
    if len > MAX_SOCKET {
        let problem =
            value.problem(format!("a socket has a path of {MAX_SOCKET} bytes at most, and this has {len}"));
        value.add(problem.label("too long").help("use a shorter path, such as one in /run/understudy"));
        return None;
    }
    Some(path)
}

/// Returns the canonical path of a file, which need not exist yet.
pub(crate) fn canonical(path: &Path) -> PathBuf {
    let folder = |path: &Path| match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent.to_owned(),
        _ => PathBuf::from("."),
    };
    let beside = || Some(folder(path).canonicalize().ok()?.join(path.file_name()?));
    path.canonicalize().ok().or_else(beside).unwrap_or_else(|| path.to_owned())
}
