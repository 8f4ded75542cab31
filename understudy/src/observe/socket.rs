//! The observation socket: each request and each response is a line of JSON.

use super::guests::{GUESTS, PATIENCE, receive};
use super::{Asking, trace};
use dataplane::place::{Place, PlaceError};
use miette::{IntoDiagnostic as _, MietteDiagnostic, Report, WrapErr as _};
use serde::{Deserialize, Serialize};
use socket2::{Domain, Socket as Socket2, Type};
use std::io::{self, BufRead as _, BufReader, BufWriter, Read as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::thread;
use std::time::Duration;

/// Longest request, in bytes
const LONGEST: u64 = 4096;
/// Idle time after which a connection is closed
const SILENCE: Duration = Duration::from_secs(600);

/// A request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "ask")]
pub(super) enum Ask {
    /// The current state of the instance, as one line
    Snapshot,
    /// Packets as they are received and sent: a line that the trace has begun, a line per packet, and a line
    /// at its end
    Trace(trace::Asked),
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
    _place: Place,
}

/// Help for errors of the file system
const WRITABLE: &str = "check that its folder exists and that you may write there";

impl Socket {
    /// Listens at `path`, with access for this user only. An unused socket at this path is replaced.
    pub(super) fn open(path: &Path, asking: &Asking) -> Result<Self, Report> {
        let refused = |what: &str, help: &str| -> Report {
            let what = format!("[observe] cannot create the socket {}: {what}", path.display());
            MietteDiagnostic::new(what).with_help(help.to_owned()).into()
        };
        let made = Socket2::new(Domain::UNIX, Type::STREAM, None).map_err(PlaceError::Other);
        let made = made.and_then(|socket| Place::listen(&socket, path, false).map(|place| (socket, place)));
        let (socket, place) = made.map_err(|error| {
            let help = match error {
                PlaceError::Taken => "use another path, or move the existing file away",
                PlaceError::InUse => "end the other instance first, or give each instance its own `socket`",
                PlaceError::Folder(_) | PlaceError::Other(_) => WRITABLE,
            };
            refused(&error.to_string(), help)
        })?;
        let listener = UnixListener::from(socket);
        let asking = asking.clone();
        thread::Builder::new()
            .name("observe".into())
            .spawn(move || {
                let turn_away = |stream: &UnixStream| {
                    refuse(stream, "too_many", format!("{GUESTS} clients are connected already; close one"))
                };
                receive(listener.incoming(), move |stream| serve(stream, &asking), turn_away);
            })
            .into_diagnostic()
            .wrap_err("cannot start the thread for the socket of [observe]")?;
        Ok(Self { _place: place })
    }
}

fn refuse(stream: &UnixStream, reason: &str, error: String) -> io::Result<()> {
    answer(&mut BufWriter::new(stream), &Refusal { error, reason: reason.into() })
}

/// Writes a line of JSON.
fn answer(to: &mut impl io::Write, what: &impl Serialize) -> io::Result<()> {
    serde_json::to_writer(&mut *to, what)?;
    writeln!(to)?;
    to.flush()
}

/// Responds to the requests of one connection, one after the other.
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
            Err(error) => return refuse(stream, "no_question", format!("invalid request: {error}")),
        }
    }
}
