//! A client: finds the leader, follows it when it changes, and asks again until there is an answer.
//!
//! Each command of [`Client::call`] has a number. A server that has applied it already answers the same again, so asking
//! again is harmless whatever became of the first time.

use crate::resp::{self, Value};
use crate::server::by_chance;
use core::net::SocketAddr;
use core::time::Duration;
use std::io::{self, Read as _, Write as _};
use std::net::TcpStream;
use std::thread;
use std::time::Instant;

/// How long a server may take to answer before another one is asked
const ANSWERS_IN: Duration = Duration::from_secs(1);
/// How long a client waits when nobody leads
const PAUSE: Duration = Duration::from_millis(10);

/// A client of all servers.
pub(crate) struct Client {
    servers: Vec<SocketAddr>,
    /// Whom it asks
    at: usize,
    stream: Option<TcpStream>,
    id: u64,
    number: u64,
    /// How long it tries
    patience: Duration,
}

impl Client {
    pub(crate) fn new(servers: Vec<SocketAddr>, patience: Duration) -> Self {
        Self { servers, at: 0, stream: None, id: by_chance() | 1, number: 0, patience }
    }

    /// Has a command applied exactly once. Returns the leader's answer, which may be an error; `None` if there was none in
    /// time: then the command may have been applied or not, or may be later.
    pub(crate) fn call(&mut self, words: &[&[u8]]) -> Option<Value> {
        self.number += 1;
        let (id, number) = (self.id.to_string(), self.number.to_string());
        self.try_until(&[&[b"ONCE", id.as_bytes(), number.as_bytes()], words].concat(), true)
    }

    /// Has a command without a number applied at most once: sends it again only if a server said that it did nothing.
    /// Returns the leader's answer; `None` if the command may have been applied or not, or may be later.
    pub(crate) fn call_at_most_once(&mut self, words: &[&[u8]]) -> Option<Value> {
        self.try_until(words, false)
    }

    /// Asks one server after the other. `again`: also after an attempt whose outcome is unknown.
    fn try_until(&mut self, words: &[&[u8]], again: bool) -> Option<Value> {
        let mut command = Vec::new();
        resp::encode_command(words, &mut command);
        let began = now();
        while began.elapsed() < self.patience {
            if self.connect().is_err() {
                thread::sleep(PAUSE);
                self.ask_another();
                continue;
            }
            match self.ask(&command) {
                Ok(Value::Error(error)) if error.starts_with("MOVED ") => {
                    let leader = error.rsplit(' ').next().and_then(|address| address.parse().ok());
                    let place = self.servers.iter().position(|server| Some(*server) == leader);
                    // It may have said so of one that has just died.
                    let place = place.filter(|place| *place != self.at).unwrap_or(self.at + 1);
                    (self.stream, self.at) = (None, place % self.servers.len());
                    thread::sleep(PAUSE / 10);
                }
                Ok(Value::Error(error)) if error.starts_with("UNKNOWN ") => {
                    if !again {
                        return None;
                    }
                }
                Ok(Value::Error(error)) if error.starts_with("NOLEADER ") => {
                    thread::sleep(PAUSE);
                    self.ask_another();
                }
                Ok(value) => return Some(value),
                Err(_) => {
                    thread::sleep(PAUSE);
                    self.ask_another();
                    if !again {
                        return None;
                    }
                }
            }
        }
        None
    }

    fn ask_another(&mut self) {
        (self.stream, self.at) = (None, (self.at + 1) % self.servers.len());
    }

    /// Connects to the server whose turn it is, unless there is a connection.
    fn connect(&mut self) -> io::Result<()> {
        if self.stream.is_none() {
            self.stream = Some(connect(self.servers[self.at])?);
        }
        Ok(())
    }

    /// Sends a command on the connection. An error ends the connection.
    fn ask(&mut self, command: &[u8]) -> io::Result<Value> {
        let stream = self.stream.take().ok_or(io::ErrorKind::NotConnected)?;
        let value = ask(&stream, command)?;
        self.stream = Some(stream);
        Ok(value)
    }
}

fn connect(server: SocketAddr) -> io::Result<TcpStream> {
    let stream = TcpStream::connect_timeout(&server, ANSWERS_IN)?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(ANSWERS_IN))?;
    Ok(stream)
}

fn ask(mut stream: &TcpStream, command: &[u8]) -> io::Result<Value> {
    stream.write_all(command)?;
    let (mut input, mut chunk) = (Vec::new(), [0; 4096]);
    loop {
        match stream.read(&mut chunk)? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            len => input.extend(&chunk[..len]),
        }
        match Value::decode(&input) {
            Ok(Some((value, _))) => return Ok(value),
            Ok(None) => {}
            Err(error) => return Err(io::Error::new(io::ErrorKind::InvalidData, error)),
        }
    }
}

/// Has a server begin the group: what it answers.
pub(crate) fn bootstrap(server: SocketAddr) -> io::Result<Value> {
    ask(&connect(server)?, b"BOOTSTRAP\r\n")
}

/// Asks one server how it is.
pub(crate) fn info(server: SocketAddr) -> io::Result<String> {
    match ask(&connect(server)?, b"INFO\r\n")? {
        Value::Bulk(Some(text)) => Ok(String::from_utf8_lossy(&text).into_owned()),
        _ => Err(io::ErrorKind::InvalidData.into()),
    }
}

/// The clock of clients
#[allow(clippy::disallowed_methods, reason = "programs that wait read a clock; the replica does not")]
pub(crate) fn now() -> Instant {
    Instant::now()
}
