//! The Unix socket: a line of JSON asks, lines of JSON answer.

use super::guests::{GUESTS, PATIENCE, receive};
use super::{Asking, trace};
use miette::{IntoDiagnostic as _, MietteDiagnostic, Report, WrapErr as _};
use rustix::fs::Mode;
use serde::{Deserialize, Serialize};
use socket2::{Domain, SockAddr, Socket as Socket2, Type};
use std::fs::{self, File};
use std::io::{self, BufRead as _, BufReader, BufWriter, ErrorKind, Read as _};
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

/// Bytes of a question at most
const LONGEST: u64 = 4096;
/// Who may wait to be received
const WAITING: i32 = 128;
/// How long a guest may ask nothing
const SILENCE: Duration = Duration::from_secs(600);

/// What is asked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "ask")]
pub(super) enum Ask {
    /// The instance as it is now, as one line
    Snapshot,
    /// Packets as they come and leave: a line says that it begins, a line a packet, a line when it is over
    Trace(trace::Asked),
}

/// Why there is no answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Refusal {
    pub(super) error: String,
    /// The same in a word, for programs
    #[serde(default)]
    pub(super) reason: String,
}

/// The socket in the file system; removed when dropped, unless somebody else's is there by then.
pub(super) struct Socket {
    path: PathBuf,
    /// Device and inode
    is: (u64, u64),
}

/// How long another process may take to make a socket in the same folder, and how often it is looked whether it has
const PATIENCE_MS: u64 = 2_000;
const LOOK_MS: u64 = 10;
/// What to look at when there can be no socket
const WRITABLE: &str = "does its folder exist, and may you write there?";

impl Socket {
    /// Listens there, for this user alone. A socket that nobody listens on is replaced.
    pub(super) fn open(path: &Path, asking: &Asking) -> Result<Self, Report> {
        let refused = |what: &str, help: &str| -> Report {
            let what = format!("[observe] cannot have the socket {}: {what}", path.display());
            MietteDiagnostic::new(what).with_help(help.to_owned()).into()
        };
        // Two that start at once must not each take the other's new socket for an old one. The folder is what they have in
        // common, and its lock ends with the process.
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let folder =
            lock(folder, PATIENCE_MS).map_err(|error| refused(&format!("its folder: {error}"), WRITABLE))?;
        let stale = match fs::symlink_metadata(path) {
            Ok(there) if !there.file_type().is_socket() => {
                return Err(refused(
                    "something else is there",
                    "name another path, or move what is there away",
                ));
            }
            Ok(_) => match UnixStream::connect(path) {
                Ok(_) => {
                    return Err(refused(
                        "another process listens there",
                        "end that one first, or give each instance a `socket` of its own",
                    ));
                }
                // Nobody listens there any more.
                Err(error) if error.kind() == ErrorKind::ConnectionRefused => true,
                Err(error) => return Err(refused(&error.to_string(), "whose is it? name another path")),
            },
            Err(_) => false,
        };
        let made = || -> io::Result<_> {
            if stale {
                fs::remove_file(path)?;
            }
            let listener = listen(path)?;
            let there = fs::symlink_metadata(path)?;
            Ok((listener, (there.dev(), there.ino())))
        };
        let (listener, is) = made().map_err(|error| refused(&error.to_string(), WRITABLE))?;
        drop(folder);
        let asking = asking.clone();
        thread::Builder::new()
            .name("observe".into())
            .spawn(move || {
                let turn_away =
                    |stream: &UnixStream| refuse(stream, "too_many", format!("{GUESTS} look on already"));
                receive(listener.incoming(), move |stream| serve(stream, &asking), turn_away);
            })
            .into_diagnostic()
            .wrap_err("no thread for the socket of [observe]")?;
        Ok(Self { path: path.to_owned(), is })
    }
}

/// Locks a folder, for as long as what this returns is there. Anybody who may read it may hold its lock, so it is not waited for
/// without end; where there are no locks, there is none.
#[allow(clippy::disallowed_methods, reason = "another instance, which starts as well, is waited for")]
fn lock(folder: &Path, patience_ms: u64) -> io::Result<File> {
    let folder = File::open(folder)?;
    for _ in 0..patience_ms / LOOK_MS {
        match folder.try_lock() {
            Err(fs::TryLockError::WouldBlock) => thread::sleep(Duration::from_millis(LOOK_MS)),
            Err(fs::TryLockError::Error(error)) if error.kind() != ErrorKind::Unsupported => {
                return Err(error);
            }
            Ok(()) | Err(fs::TryLockError::Error(_)) => return Ok(folder),
        }
    }
    Err(io::Error::other("another process has it locked"))
}

/// A socket there, for this user alone from the first moment on: the kernel takes the mode of the new entry from the
/// socket's own, which can be set while it has no name yet. So nothing has to be made elsewhere and moved, and the path may
/// have all the bytes that an address has.
fn listen(path: &Path) -> io::Result<UnixListener> {
    let socket = Socket2::new(Domain::UNIX, Type::STREAM, None)?;
    rustix::fs::fchmod(&socket, Mode::RUSR | Mode::WUSR)?;
    socket.bind(&SockAddr::unix(path)?)?;
    socket.listen(WAITING)?;
    Ok(socket.into())
}

impl Drop for Socket {
    fn drop(&mut self) {
        if fs::symlink_metadata(&self.path).is_ok_and(|there| (there.dev(), there.ino()) == self.is) {
            _ = fs::remove_file(&self.path);
        }
    }
}

fn refuse(stream: &UnixStream, reason: &str, error: String) -> io::Result<()> {
    answer(&mut BufWriter::new(stream), &Refusal { error, reason: reason.into() })
}

/// A line of JSON.
fn answer(to: &mut impl io::Write, what: &impl Serialize) -> io::Result<()> {
    serde_json::to_writer(&mut *to, what)?;
    writeln!(to)?;
    to.flush()
}

/// Answers one question after the other.
fn serve(stream: &UnixStream, asking: &Asking) -> io::Result<()> {
    stream.set_write_timeout(Some(PATIENCE))?;
    stream.set_read_timeout(Some(SILENCE))?;
    let mut lines = BufReader::new(stream);
    let mut to = BufWriter::new(stream);
    loop {
        let mut line = String::new();
        if (&mut lines).take(LONGEST).read_line(&mut line)? == 0 {
            return Ok(());
        }
        match serde_json::from_str(&line) {
            Ok(Ask::Snapshot) => match asking.snapshot() {
                Some(snapshot) => answer(&mut to, &*snapshot)?,
                None => return Ok(()),
            },
            Ok(Ask::Trace(asked)) => match asking.trace(asked) {
                Ok(tracing) => return tracing.tell(stream, |line| answer(&mut to, line)),
                Err(why) => return refuse(stream, why.name(), why.to_string()),
            },
            Err(error) => return refuse(stream, "no_question", format!("that is no question: {error}")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_that_stays_locked_is_not_waited_for_without_end() {
        let dir = tempfile::tempdir().unwrap();
        let patience_ms = 3 * LOOK_MS;
        let first = lock(dir.path(), patience_ms).unwrap();
        let error = lock(dir.path(), patience_ms).unwrap_err();
        assert_eq!(error.to_string(), "another process has it locked");
        drop(first);
        lock(dir.path(), patience_ms).unwrap();
    }
}
