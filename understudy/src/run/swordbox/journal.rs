//! The file in which connections are written down before their two sides may differ.
//!
//! A text: a heading, then a line for each connection that was added (`+ SERVER QPN CLIENT QPN`) or removed (`-`). Lines are
//! only ever added; what was added is on the disk before it is used. When half of the lines and more say nothing any more,
//! and at every start, the file is written anew beside itself and put in its place.

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

const HEADING: &str =
    "# Connections of understudy's Swordbox whose two sides differ. Leave it to the program.\n";
/// A file of fewer lines is not worth to be written anew
const WORTH: usize = 1024;

/// Permissions of a new journal: this user's alone
const MODE: u32 = 0o600;

/// Connections that are written down.
pub(crate) struct Journal {
    path: PathBuf,
    file: File,
    live: BTreeSet<Connection>,
    /// Lines in the file
    lines: usize,
    /// The file's end is not known to be right: it is written anew before anything is added
    torn: bool,
    /// What was said last about writing that failed
    said: Option<ErrorKind>,
}

/// A connection as a line has it.
struct Line<'a>(char, &'a Connection);

impl fmt::Display for Line<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Connection { server, client } = self.1;
        let ((server, at), (client, from)) = (server, client);
        writeln!(f, "{} {server} {:#x} {client} {:#x}", self.0, at.get(), from.get())
    }
}

/// What a line says: whether the connection was added, and which it is.
fn parsed(line: &str) -> Option<(bool, Connection)> {
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

/// What stands in a journal. A last line without an end was never used; anything else that is no line is an error.
fn read(text: &str) -> Result<BTreeSet<Connection>, usize> {
    let mut live = BTreeSet::new();
    let whole = text.rfind('\n').map_or("", |end| &text[..end]);
    for (number, line) in (1..).zip(whole.lines()) {
        if number == 1 && line == HEADING.trim_end() {
            continue;
        }
        match parsed(line).filter(|_| number > 1) {
            Some((true, connection)) => _ = live.insert(connection),
            Some((false, connection)) => _ = live.remove(&connection),
            None => return Err(number),
        }
    }
    // Not even a whole heading: something else, if it does not begin like one.
    if whole.is_empty() && !HEADING.starts_with(text) { Err(1) } else { Ok(live) }
}

impl Journal {
    /// Opens a journal, or begins one, and locks it.
    ///
    /// # Errors
    /// In words, if it cannot be read or written, is no journal, or is another process's.
    pub(crate) fn open(path: &Path) -> Result<Self, String> {
        let shown = path.display();
        let failed = |error: io::Error| format!("the journal {shown} cannot be used: {error}");
        let mut options = OpenOptions::new();
        let mut file = options.read(true).append(true).create(true).mode(MODE).open(path).map_err(failed)?;
        lock(&file, path).map_err(failed)?;
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes).map_err(failed)?;
        let text = String::from_utf8_lossy(&bytes);
        let live = read(&text).map_err(|line| {
            format!("{shown} is not a journal of Swordbox: line {line} names no connection")
        })?;
        let mut journal = Self { path: path.to_owned(), file, live, lines: 0, torn: true, said: None };
        journal.rewrite().map_err(failed)?;
        Ok(journal)
    }

    /// Connections of which it is not known that they are over
    pub(crate) fn live(&self) -> impl Iterator<Item = Connection> {
        self.live.iter().copied()
    }

    /// Writes the file anew, beside the one there is, and puts it in its place.
    fn rewrite(&mut self) -> io::Result<()> {
        let mut beside = self.path.clone().into_os_string();
        beside.push(".new");
        // What a crash has left there, or somebody has put there: it is not followed, and never written to.
        match std::fs::remove_file(&beside) {
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let mut file = OpenOptions::new().append(true).create_new(true).mode(MODE).open(&beside)?;
        lock(&file, Path::new(&beside))?;
        let lines: String = self.live.iter().map(|connection| Line('+', connection).to_string()).collect();
        file.write_all((HEADING.to_owned() + &lines).as_bytes())?;
        file.sync_all()?;
        std::fs::rename(&beside, &self.path)?;
        let folder = self.path.parent().filter(|folder| !folder.as_os_str().is_empty());
        File::open(folder.unwrap_or(Path::new(".")))?.sync_all()?;
        self.file = file;
        self.lines = self.live.len();
        self.torn = false;
        Ok(())
    }

    fn append(&mut self, sign: char, connection: &Connection) -> io::Result<()> {
        if self.torn || (self.lines >= WORTH && self.lines >= 2 * self.live.len()) {
            self.torn = true;
            self.rewrite()?;
        }
        self.lines += 1;
        self.torn = true;
        self.file.write_all(Line(sign, connection).to_string().as_bytes())?;
        self.torn = false;
        Ok(())
    }

    /// Writes orders down, and syncs once if some add connections.
    ///
    /// # Errors
    /// If one could not be written for sure: then no connection counts as added by these orders.
    pub(crate) fn write(&mut self, orders: &[Order]) -> io::Result<()> {
        let mut fresh = Vec::new();
        let result = self.try_write(orders, &mut fresh);
        if result.is_err() {
            for connection in fresh {
                self.live.remove(&connection);
            }
        }
        self.tell(&result);
        result
    }

    /// Also says which connections are new.
    fn try_write(&mut self, orders: &[Order], fresh: &mut Vec<Connection>) -> io::Result<()> {
        let adds = orders.iter().any(|order| matches!(order, Order::Add(_)));
        // Somebody may have removed the file: what is written into it then is not there after a restart.
        self.torn |= adds && !is_at(&self.file, &self.path);
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

    /// Says that writing failed, if it did not the last time, or otherwise; and that it works again.
    fn tell(&mut self, result: &io::Result<()>) {
        let kind = result.as_ref().err().map(io::Error::kind);
        if kind != self.said {
            let path = self.path.display();
            match result {
                Err(error) => eprintln!(
                    "The journal {path} cannot be written: {error}. New connections pass, and are not shared."
                ),
                Ok(()) => eprintln!("The journal {path} can be written again."),
            }
        }
        self.said = kind;
    }
}

/// Whether a file is still the one that has this name.
fn is_at(file: &File, path: &Path) -> bool {
    let number = |metadata: io::Result<Metadata>| metadata.map(|file| (file.dev(), file.ino())).ok();
    number(file.metadata()).is_some_and(|own| number(path.metadata()) == Some(own))
}

/// Locks a file, and makes sure that it is the one that has this name.
fn lock(file: &File, path: &Path) -> io::Result<()> {
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => {
            return Err(io::Error::new(ErrorKind::ResourceBusy, "another process uses it"));
        }
        Err(TryLockError::Error(error)) => return Err(error),
    }
    if !is_at(file, path) {
        return Err(io::Error::new(ErrorKind::ResourceBusy, "another process has just written it anew"));
    }
    Ok(())
}
