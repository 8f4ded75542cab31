//! The other end of the socket, for `top` and `trace`.

use super::socket::{Ask, Refusal};
use super::{Snapshot, TraceAsked, TraceLine};
use crate::config;
use crate::output::printable_json;
use serde::de::DeserializeOwned;
use std::io::{self, BufRead as _, BufReader, ErrorKind, Write as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// How long an instance may take to answer
const PATIENCE: Duration = Duration::from_secs(5);
/// How long a trace is waited for, before signals are looked at
const MOMENT: Duration = Duration::from_millis(100);

/// Where an instance is found.
#[derive(Clone, Debug)]
pub(crate) struct Target {
    /// Its socket
    pub(crate) socket: PathBuf,
}

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Lost {
    /// Nobody listens
    #[error("nobody listens at {}: is the instance running?", .0.display())]
    Nobody(PathBuf),
    /// It has ended, or the connection broke
    #[error("the instance does not answer any more: {0}")]
    Gone(io::Error),
    /// It says why not
    #[error("{0}")]
    Refused(String),
    /// Another version, or something else
    #[error("what came back is not understood: {0}; is the instance of another version?")]
    Strange(serde_json::Error),
}

impl From<io::Error> for Lost {
    fn from(error: io::Error) -> Self {
        Self::Gone(error)
    }
}

impl Target {
    /// A socket, or that of a configuration. The error is for people.
    pub(crate) fn of(path: &Path) -> Result<Self, String> {
        if !path.is_file() {
            // A socket, or one that will be.
            return if path.extension().is_some_and(|extension| extension == "toml") {
                Err(format!("{}: there is no such file", path.display()))
            } else {
                Ok(Self { socket: path.to_owned() })
            };
        }
        let config = config::load(path).map_err(|report| report.render())?;
        config.observe.socket.map(|socket| Self { socket }).ok_or_else(|| {
            format!(
                "{} has no socket to look through: add\n\n[observe]\nsocket = \"/run/understudy/observe.sock\"\n\nand start the \
                 instance anew",
                path.display()
            )
        })
    }
}

/// A connection to an instance.
pub(crate) struct Client {
    stream: BufReader<UnixStream>,
    /// What has come of a line
    line: String,
}

impl Client {
    pub(crate) fn connect(target: &Target) -> Result<Self, Lost> {
        let stream = UnixStream::connect(&target.socket).map_err(|error| match error.kind() {
            ErrorKind::NotFound | ErrorKind::ConnectionRefused => Lost::Nobody(target.socket.clone()),
            _ => Lost::Gone(error),
        })?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        Ok(Self { stream: BufReader::new(stream), line: String::new() })
    }

    /// The instance as it is now.
    pub(crate) fn snapshot(&mut self) -> Result<Snapshot, Lost> {
        self.ask(&Ask::Snapshot)?;
        self.read()
    }

    /// Packets from now on, by [`Self::next_line`].
    pub(crate) fn trace(&mut self, asked: TraceAsked) -> Result<(), Lost> {
        self.ask(&Ask::Trace(asked))?;
        // Nothing may come for long.
        Ok(self.stream.get_ref().set_read_timeout(Some(MOMENT))?)
    }

    /// Asks for the end of a trace.
    pub(crate) fn end(&mut self) -> Result<(), Lost> {
        Ok(self.stream.get_mut().write_all(b"\n")?)
    }

    /// The next line of a trace, if one comes within a moment.
    pub(crate) fn next_line(&mut self) -> Result<Option<TraceLine>, Lost> {
        match self.read() {
            Ok(line) => Ok(Some(line)),
            Err(Lost::Gone(error)) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                Ok(None)
            }
            Err(lost) => Err(lost),
        }
    }

    fn ask(&mut self, what: &Ask) -> Result<(), Lost> {
        let mut line = serde_json::to_vec(what).map_err(Lost::Strange)?;
        line.push(b'\n');
        Ok(self.stream.get_mut().write_all(&line)?)
    }

    /// The next line.
    fn read<T: DeserializeOwned>(&mut self) -> Result<T, Lost> {
        // What has come of a line stays there, should the rest not come in time.
        self.stream.read_line(&mut self.line)?;
        if !self.line.ends_with('\n') {
            return Err(Lost::Gone(ErrorKind::UnexpectedEof.into()));
        }
        let line = printable_json(&core::mem::take(&mut self.line));
        serde_json::from_str(&line).map_err(|error| match serde_json::from_str(&line) {
            Ok(Refusal { error, .. }) => Lost::Refused(error),
            Err(_) => Lost::Strange(error),
        })
    }
}
