//! Client of the observation socket, for the commands that observe and steer.

use super::socket::{Refusal, Request};
use super::steer::{RatesRequest, RatesState, RulesRequest, RulesState};
use super::{Snapshot, TraceLine, TraceRequest};
use crate::output::printable_json;
use serde::de::DeserializeOwned;
use std::fs;
use std::io::{self, BufRead as _, BufReader, ErrorKind, Write as _};
use std::os::unix::fs::MetadataExt as _;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Time within which an instance has to respond
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(5);
/// Time to wait for a trace line before signals are checked
const LINE_TIMEOUT: Duration = Duration::from_millis(100);

/// Address of an instance.
#[derive(Clone, Debug)]
pub(crate) struct Target {
    /// Path of its socket
    pub(crate) socket: PathBuf,
}

/// Reason why there is no response.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ClientError {
    /// No process listens at the socket
    #[error("no instance listens at {}; start it, or check `socket` in [observe]", .0.display())]
    NotListening(PathBuf),
    /// The socket is accessible to another user alone
    #[error("you may not connect to {}: it is for {owner} alone; run this command as that user", .socket.display())]
    Forbidden { socket: PathBuf, owner: String },
    /// The instance has not responded in time
    #[error("the instance has not responded within {} s; check whether its process is stopped", RESPONSE_TIMEOUT.as_secs())]
    Late,
    /// The instance has ended, or the connection broke
    #[error("the instance stopped responding: {0}")]
    Disconnected(io::Error),
    /// The instance refused the request, for this reason
    #[error("{0}")]
    Refused(String),
    /// Response that cannot be parsed, such as one of another version
    #[error("cannot parse the response: {0}; use the version of understudy that the instance runs")]
    Invalid(serde_json::Error),
}

impl From<io::Error> for ClientError {
    fn from(error: io::Error) -> Self {
        Self::Disconnected(error)
    }
}

fn is_timeout(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut)
}

/// Returns the owner of a socket, as far as this user may know.
fn owner(socket: &Path) -> String {
    fs::metadata(socket)
        .map_or_else(|_| "another user".into(), |socket| format!("the user with ID {}", socket.uid()))
}

/// A connection to an instance.
pub(crate) struct Client {
    stream: BufReader<UnixStream>,
    /// Received part of the current line
    line: String,
}

impl Client {
    pub(crate) fn connect(target: &Target) -> Result<Self, ClientError> {
        let stream = UnixStream::connect(&target.socket).map_err(|error| match error.kind() {
            ErrorKind::NotFound | ErrorKind::ConnectionRefused => {
                ClientError::NotListening(target.socket.clone())
            }
            ErrorKind::PermissionDenied => {
                ClientError::Forbidden { socket: target.socket.clone(), owner: owner(&target.socket) }
            }
            _ => ClientError::Disconnected(error),
        })?;
        stream.set_read_timeout(Some(RESPONSE_TIMEOUT))?;
        stream.set_write_timeout(Some(RESPONSE_TIMEOUT))?;
        Ok(Self { stream: BufReader::new(stream), line: String::new() })
    }

    /// Requests the current state of the instance.
    pub(crate) fn snapshot(&mut self) -> Result<Snapshot, ClientError> {
        self.ask(&Request::Snapshot)
    }

    /// Lists or changes the rules of `[impair]`.
    pub(crate) fn rules(&mut self, request: RulesRequest) -> Result<RulesState, ClientError> {
        self.ask(&Request::Impair(request))
    }

    /// Lists or changes the rates of `[pktgen]`.
    pub(crate) fn rates(&mut self, request: RatesRequest) -> Result<RatesState, ClientError> {
        self.ask(&Request::Rate(request))
    }

    /// Sends a request, and returns the response.
    fn ask<T: DeserializeOwned>(&mut self, request: &Request) -> Result<T, ClientError> {
        self.send(request)?;
        self.read().map_err(|error| match error {
            ClientError::Disconnected(error) if is_timeout(&error) => ClientError::Late,
            error => error,
        })
    }

    /// Starts a trace; [`Self::next_line`] returns its packets.
    pub(crate) fn trace(&mut self, request: TraceRequest) -> Result<(), ClientError> {
        self.send(&Request::Trace(request))?;
        // A trace may be idle for a long time.
        Ok(self.stream.get_ref().set_read_timeout(Some(LINE_TIMEOUT))?)
    }

    /// Requests the end of a trace.
    pub(crate) fn end_trace(&mut self) -> Result<(), ClientError> {
        Ok(self.stream.get_mut().write_all(b"\n")?)
    }

    /// Returns the next line of a trace, or `None` if none arrives within [`LINE_TIMEOUT`].
    pub(crate) fn next_line(&mut self) -> Result<Option<TraceLine>, ClientError> {
        match self.read() {
            Ok(line) => Ok(Some(line)),
            Err(ClientError::Disconnected(error)) if is_timeout(&error) => Ok(None),
            Err(other) => Err(other),
        }
    }

    fn send(&mut self, request: &Request) -> Result<(), ClientError> {
        let mut line = serde_json::to_vec(request).map_err(ClientError::Invalid)?;
        line.push(b'\n');
        Ok(self.stream.get_mut().write_all(&line)?)
    }

    /// Reads the next line.
    fn read<T: DeserializeOwned>(&mut self) -> Result<T, ClientError> {
        // A partial line stays in the buffer if its rest does not arrive in time.
        self.stream.read_line(&mut self.line)?;
        if !self.line.ends_with('\n') {
            return Err(ClientError::Disconnected(ErrorKind::UnexpectedEof.into()));
        }
        let line = printable_json(&core::mem::take(&mut self.line));
        serde_json::from_str(&line).map_err(|error| match serde_json::from_str(&line) {
            Ok(Refusal { error, .. }) => ClientError::Refused(error),
            Err(_) => ClientError::Invalid(error),
        })
    }
}
