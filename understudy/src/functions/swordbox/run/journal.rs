//! The file to which connections are written before their two sides may differ.
//!
//! It is a text file: a heading, then a line for each connection that was added (`+ SERVER QPN CLIENT QPN`)
//! or removed (`-`). Lines are only ever appended, and an added connection is on the disk before it is used.
//! When at least half of the lines are obsolete, and at every start, the file is rewritten under another name
//! and renamed into place.

use super::writer::Order;
use core::fmt;
use core::net::IpAddr;
use core::str::FromStr as _;
use rocev2::Qpn;
use std::collections::BTreeSet;
use std::fs::{File, Metadata, OpenOptions, TryLockError};
use std::io::{self, ErrorKind, Read as _, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use swordbox::Connection;
use tracing::{error, info};

const HEADING: &str =
    "# Connections of understudy's Swordbox whose two sides differ. Leave it to the program.\n";
/// Number of lines below which a file is not rewritten
const MIN_REWRITE_LINES: usize = 1024;

/// Permissions of a new journal: for this user only
const MODE: u32 = 0o600;

/// A journal of connections.
pub(crate) struct Journal {
    path: PathBuf,
    file: File,
    live: BTreeSet<Connection>,
    /// Lines in the file
    lines: usize,
    /// The file may end with a partial line, so it is rewritten before anything is appended
    torn: bool,
    /// Last write error that was reported
    last_error: Option<ErrorKind>,
}

/// A line that adds or removes a connection.
struct Line<'a>(char, &'a Connection);

impl fmt::Display for Line<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Connection { server, client } = self.1;
        let ((server, at), (client, from)) = (server, client);
        writeln!(f, "{} {server} {:#x} {client} {:#x}", self.0, at.get(), from.get())
    }
}

/// Parses a line. Returns whether the connection was added, and the connection.
fn parse_line(line: &str) -> Option<(bool, Connection)> {
    let qpn = |word: &str| {
        let number = u32::from_str_radix(word.strip_prefix("0x")?, 16).ok()?;
        (number < 1 << 24).then(|| Qpn::new(number))
    };
    let host = |word: &str| IpAddr::from_str(word).ok();
    let words: Vec<_> = line.split(' ').collect();
    let [sign, server, at, client, from] = words[..] else { return None };
    let added = match sign {
        "+" => true,
        "-" => false,
        _ => return None,
    };
    Some((added, Connection { server: (host(server)?, qpn(at)?), client: (host(client)?, qpn(from)?) }))
}

/// Returns the connections in a journal. A last line without an end was never used, so it is ignored; any
/// other invalid line is an error, which is its number.
fn read(text: &str) -> Result<BTreeSet<Connection>, usize> {
    let mut live = BTreeSet::new();
    let whole = text.rfind('\n').map_or("", |end| &text[..end]);
    for (number, line) in (1..).zip(whole.lines()) {
        if number == 1 && line == HEADING.trim_end() {
            continue;
        }
        match parse_line(line).filter(|_| number > 1) {
            Some((true, connection)) => _ = live.insert(connection),
            Some((false, connection)) => _ = live.remove(&connection),
            None => return Err(number),
        }
    }
    // A text without a complete heading is a journal only if it is a prefix of the heading.
    if whole.is_empty() && !HEADING.starts_with(text) { Err(1) } else { Ok(live) }
}

impl Journal {
    /// Opens or creates a journal, locks it, and rewrites it.
    ///
    /// # Errors
    /// Returns a text if the file cannot be read or written, is not a journal, or is in use by another
    /// process.
    pub(crate) fn open(path: &Path) -> Result<Self, String> {
        let shown = path.display();
        let failed = |error: io::Error| format!("cannot use the journal {shown}: {error}");
        let mut options = OpenOptions::new();
        let mut file = options.read(true).append(true).create(true).mode(MODE).open(path).map_err(failed)?;
        lock(&file, path).map_err(failed)?;
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes).map_err(failed)?;
        let text = String::from_utf8_lossy(&bytes);
        let live = read(&text).map_err(|line| {
            format!("{shown} is not a journal of Swordbox: line {line} is not a connection")
        })?;
        let mut journal = Self { path: path.to_owned(), file, live, lines: 0, torn: true, last_error: None };
        journal.rewrite().map_err(failed)?;
        Ok(journal)
    }

    /// Returns the connections that were added and not removed.
    pub(crate) fn live(&self) -> impl Iterator<Item = Connection> {
        self.live.iter().copied()
    }

    /// Writes the current connections to a new file beside the journal, and renames it into place.
    fn rewrite(&mut self) -> io::Result<()> {
        let mut new_path = self.path.clone().into_os_string();
        new_path.push(".new");
        // A file at this name, left by a crash or created by another user, is removed. It is not followed if
        // it is a link, and never written to.
        match std::fs::remove_file(&new_path) {
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let mut file = OpenOptions::new().append(true).create_new(true).mode(MODE).open(&new_path)?;
        lock(&file, Path::new(&new_path))?;
        let lines: String = self.live.iter().map(|connection| Line('+', connection).to_string()).collect();
        file.write_all((HEADING.to_owned() + &lines).as_bytes())?;
        file.sync_all()?;
        std::fs::rename(&new_path, &self.path)?;
        let folder = self.path.parent().filter(|folder| !folder.as_os_str().is_empty());
        File::open(folder.unwrap_or(Path::new(".")))?.sync_all()?;
        self.file = file;
        self.lines = self.live.len();
        self.torn = false;
        Ok(())
    }

    fn append(&mut self, sign: char, connection: &Connection) -> io::Result<()> {
        if self.torn || (self.lines >= MIN_REWRITE_LINES && self.lines >= 2 * self.live.len()) {
            self.torn = true;
            self.rewrite()?;
        }
        self.lines += 1;
        self.torn = true;
        self.file.write_all(Line(sign, connection).to_string().as_bytes())?;
        self.torn = false;
        Ok(())
    }

    /// Appends orders, and syncs once if any of them adds a connection.
    ///
    /// # Errors
    /// Fails if any of the orders may not have been written. None of the connections then counts as added.
    pub(crate) fn write(&mut self, orders: &[Order]) -> io::Result<()> {
        let mut fresh = Vec::new();
        let result = self.try_write(orders, &mut fresh);
        if result.is_err() {
            for connection in fresh {
                self.live.remove(&connection);
            }
        }
        self.report_error(&result);
        result
    }

    /// Appends orders, and collects the connections that are new in `fresh`.
    fn try_write(&mut self, orders: &[Order], fresh: &mut Vec<Connection>) -> io::Result<()> {
        let adds = orders.iter().any(|order| matches!(order, Order::Add(_)));
        // If the file was removed, appended lines would not survive a restart, so the journal is rewritten.
        self.torn |= adds && !is_at_path(&self.file, &self.path);
        let mut written = Ok(());
        for order in orders {
            let result = match order {
                Order::Add(connection) => {
                    if self.live.insert(*connection) {
                        fresh.push(*connection);
                    }
                    self.append('+', connection)
                }
                Order::Remove(connection) if self.live.remove(connection) => self.append('-', connection),
                Order::Remove(_) => Ok(()),
            };
            written = written.and(result);
        }
        written?;
        if adds {
            self.torn = true;
            self.file.sync_data()?;
            self.torn = false;
        }
        Ok(())
    }

    /// Emits a changed error, and that writing works again.
    fn report_error(&mut self, result: &io::Result<()>) {
        let kind = result.as_ref().err().map(io::Error::kind);
        if kind != self.last_error {
            let path = self.path.display();
            if let Err(error) = result {
                error!(
                    "Cannot write the journal {path}: {error}. New connections pass unchanged, and are not shared."
                );
            } else {
                info!("The journal {path} is writable again.");
            }
        }
        self.last_error = kind;
    }
}

/// Returns whether `path` still refers to this file.
fn is_at_path(file: &File, path: &Path) -> bool {
    let number = |metadata: io::Result<Metadata>| metadata.map(|file| (file.dev(), file.ino())).ok();
    number(file.metadata()).is_some_and(|own| number(path.metadata()) == Some(own))
}

/// Locks a file, and checks that `path` still refers to it.
fn lock(file: &File, path: &Path) -> io::Result<()> {
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => {
            return Err(io::Error::new(ErrorKind::ResourceBusy, "another process uses it"));
        }
        Err(TryLockError::Error(error)) => return Err(error),
    }
    if !is_at_path(file, path) {
        return Err(io::Error::new(ErrorKind::ResourceBusy, "another process has just rewritten it"));
    }
    Ok(())
}
