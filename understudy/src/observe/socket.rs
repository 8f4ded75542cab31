//! The observation socket: each request and each response is a line of JSON.

use super::connections::{IO_TIMEOUT, MAX_CONNECTIONS, accept_all};
use super::steer::{self, Steering};
use super::{RequestSender, trace};
use dataplane::unix_socket::{ListenError, ListeningSocket};
use miette::{IntoDiagnostic as _, MietteDiagnostic, Report, WrapErr as _};
use serde::{Deserialize, Serialize};
use socket2::{Domain, Socket as Socket2, Type};
use std::io::{self, BufRead as _, BufReader, BufWriter, Read as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::thread;
use std::time::Duration;

/// Longest request, in bytes: a file with many rules
const MAX_REQUEST_LEN: u64 = 1 << 20;
/// Idle time after which a connection is closed
const IDLE_TIMEOUT: Duration = Duration::from_secs(600);

/// A request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "ask")]
pub(super) enum Request {
    /// The current state of the instance, as one line
    Snapshot,
    /// Packets as they are received and sent: a line that the trace has begun, a line per packet, and a line
    /// at its end
    Trace(trace::Request),
    /// The rules of `[impair]`, to be listed or changed; the response is a line
    Impair(steer::RulesRequest),
    /// The rates of `[pktgen]`, to be listed or changed; the response is a line
    Rate(steer::RatesRequest),
}

/// A refused request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Refusal {
    pub(super) error: String,
    /// The reason as one word, for programs
    #[serde(default)]
    pub(super) reason: String,
}

/// The socket's name in the file system, which is removed when this is dropped.
pub(super) struct Socket {
    _place: ListeningSocket,
}

/// Help for errors of the file system
const WRITABLE: &str = "check that its folder exists and that you may write there";

impl Socket {
    /// Listens at `path`, with access for this user only. An unused socket at this path is replaced.
    pub(super) fn open(path: &Path, sender: &RequestSender) -> Result<Self, Report> {
        let open_error = |what: &str, help: &str| -> Report {
            let what = format!("[observe] cannot create the socket {}: {what}", path.display());
            MietteDiagnostic::new(what).with_help(help.to_owned()).into()
        };
        let made = Socket2::new(Domain::UNIX, Type::STREAM, None).map_err(ListenError::Other);
        let made = made
            .and_then(|socket| ListeningSocket::listen(&socket, path, false).map(|place| (socket, place)));
        let (socket, place) = made.map_err(|error| {
            let help = match error {
                ListenError::Taken => "use another path, or move the existing file away",
                ListenError::InUse => "end the other instance first, or give each instance its own `socket`",
                ListenError::Folder(_) | ListenError::Other(_) => WRITABLE,
            };
            open_error(&error.to_string(), help)
        })?;
        let listener = UnixListener::from(socket);
        let sender = sender.clone();
        thread::Builder::new()
            .name("observe".into())
            .spawn(move || {
                let turn_away = |stream: &UnixStream| {
                    refuse(
                        stream,
                        "too_many",
                        format!("{MAX_CONNECTIONS} clients are connected already; close one"),
                    )
                };
                accept_all(listener.incoming(), move |stream| serve(stream, &sender), turn_away);
            })
            .into_diagnostic()
            .wrap_err("cannot start the thread for the socket of [observe]")?;
        Ok(Self { _place: place })
    }
}

fn refuse(stream: &UnixStream, reason: &str, error: String) -> io::Result<()> {
    respond(&mut BufWriter::new(stream), &Refusal { error, reason: reason.into() })
}

/// Writes a line of JSON.
fn respond(to: &mut impl io::Write, what: &impl Serialize) -> io::Result<()> {
    serde_json::to_writer(&mut *to, what)?;
    writeln!(to)?;
    to.flush()
}

/// Responds to the requests of one connection, one after the other.
fn serve(stream: &UnixStream, sender: &RequestSender) -> io::Result<()> {
    stream.set_write_timeout(Some(IO_TIMEOUT))?;
    stream.set_read_timeout(Some(IDLE_TIMEOUT))?;
    let mut lines = BufReader::new(stream);
    let mut to = BufWriter::new(stream);
    loop {
        let mut line = String::new();
        if (&mut lines).take(MAX_REQUEST_LEN).read_line(&mut line)? == 0 {
            return Ok(());
        }
        match serde_json::from_str(&line) {
            Ok(Request::Snapshot) => match sender.snapshot() {
                Some(snapshot) => respond(&mut to, &*snapshot)?,
                None => return Ok(()),
            },
            Ok(Request::Trace(request)) => match sender.trace(request) {
                Ok(tracing) => return tracing.write(stream, |line| respond(&mut to, line)),
                Err(why) => return refuse(stream, why.name(), why.to_string()),
            },
            Ok(Request::Impair(request)) => {
                match sender.steer(|response| Steering::Rules(request, response)) {
                    Ok(state) => respond(&mut to, &state)?,
                    Err(why) => return refuse(stream, why.name(), why.to_string()),
                }
            }
            Ok(Request::Rate(request)) => match sender.steer(|response| Steering::Rates(request, response)) {
                Ok(state) => respond(&mut to, &state)?,
                Err(why) => return refuse(stream, why.name(), why.to_string()),
            },
            Err(_) if line.len() as u64 == MAX_REQUEST_LEN => {
                let error = format!("the request is too long; at most {MAX_REQUEST_LEN} bytes are read");
                return refuse(stream, "too_long", error);
            }
            Err(error) => return refuse(stream, "no_question", format!("invalid request: {error}")),
        }
    }
}
