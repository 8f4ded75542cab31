//! A client: finds the leader, follows changes of leader, and retries until there is a response.
//!
//! Each command of [`Client::call`] is numbered. A server that has already applied it returns the same result
//! again, so a retry is safe whatever the outcome of the first attempt.

use crate::resp::{self, Value};
use crate::server::random_u64;
use core::net::SocketAddr;
use core::time::Duration;
use std::io::{self, Read as _, Write as _};
use std::net::TcpStream;
use std::thread;
use std::time::Instant;

/// Response timeout of a server, after which another one is tried
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(1);
/// Pause before another attempt if there is no leader
const PAUSE: Duration = Duration::from_millis(10);

/// A client of all servers.
pub(crate) struct Client {
    servers: Vec<SocketAddr>,
    /// Index of the server that is used
    current: usize,
    stream: Option<TcpStream>,
    id: u64,
    number: u64,
    /// Time after which a command is given up
    timeout: Duration,
}

impl Client {
    pub(crate) fn new(servers: Vec<SocketAddr>, timeout: Duration) -> Self {
        Self { servers, current: 0, stream: None, id: random_u64() | 1, number: 0, timeout }
    }

    /// Executes a command exactly once. Returns the leader's response, which may be an error, or `None` if
    /// there was none in time. Then the command may or may not have been applied, or may be applied later.
    pub(crate) fn call(&mut self, words: &[&[u8]]) -> Option<Value> {
        self.number += 1;
        let (id, number) = (self.id.to_string(), self.number.to_string());
        self.try_until(&[&[b"ONCE", id.as_bytes(), number.as_bytes()], words].concat(), true)
    }

    /// Executes a command without a number at most once: retries only if a server reported that it did not
    /// execute the command. Returns the leader's response, or `None` if the command may or may not have been
    /// applied, or may be applied later.
    pub(crate) fn call_at_most_once(&mut self, words: &[&[u8]]) -> Option<Value> {
        self.try_until(words, false)
    }

    /// Tries one server after another. With `retry_unknown`, retries also after an attempt whose outcome is
    /// unknown.
    fn try_until(&mut self, words: &[&[u8]], retry_unknown: bool) -> Option<Value> {
        let mut command = Vec::new();
        resp::encode_command(words, &mut command);
        let began = now();
        while began.elapsed() < self.timeout {
            if self.connect().is_err() {
                thread::sleep(PAUSE);
                self.use_next_server();
                continue;
            }
            match self.send_command(&command) {
                Ok(Value::Error(error)) if error.starts_with("MOVED ") => {
                    let leader = error.rsplit(' ').next().and_then(|address| address.parse().ok());
                    let index = self.servers.iter().position(|server| Some(*server) == leader);
                    // The address may be that of a leader that has just failed.
                    let index = index.filter(|index| *index != self.current).unwrap_or(self.current + 1);
                    (self.stream, self.current) = (None, index % self.servers.len());
                    thread::sleep(PAUSE / 10);
                }
                Ok(Value::Error(error)) if error.starts_with("UNKNOWN ") => {
                    if !retry_unknown {
                        return None;
                    }
                }
                Ok(Value::Error(error)) if error.starts_with("NOLEADER ") => {
                    thread::sleep(PAUSE);
                    self.use_next_server();
                }
                Ok(value) => return Some(value),
                Err(_) => {
                    thread::sleep(PAUSE);
                    self.use_next_server();
                    if !retry_unknown {
                        return None;
                    }
                }
            }
        }
        None
    }

    fn use_next_server(&mut self) {
        (self.stream, self.current) = (None, (self.current + 1) % self.servers.len());
    }

    /// Connects to the current server, unless there is a connection.
    fn connect(&mut self) -> io::Result<()> {
        if self.stream.is_none() {
            self.stream = Some(connect(self.servers[self.current])?);
        }
        Ok(())
    }

    /// Sends a command on the connection, and waits for the response. An error ends the connection.
    fn send_command(&mut self, command: &[u8]) -> io::Result<Value> {
        let stream = self.stream.take().ok_or(io::ErrorKind::NotConnected)?;
        let value = send_command(&stream, command)?;
        self.stream = Some(stream);
        Ok(value)
    }
}

fn connect(server: SocketAddr) -> io::Result<TcpStream> {
    let stream = TcpStream::connect_timeout(&server, RESPONSE_TIMEOUT)?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(RESPONSE_TIMEOUT))?;
    Ok(stream)
}

fn send_command(mut stream: &TcpStream, command: &[u8]) -> io::Result<Value> {
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

/// Requests that a server bootstrap the group. Returns its response.
pub(crate) fn bootstrap(server: SocketAddr) -> io::Result<Value> {
    send_command(&connect(server)?, b"BOOTSTRAP\r\n")
}

/// Returns the status of one server, as text.
pub(crate) fn info(server: SocketAddr) -> io::Result<String> {
    match send_command(&connect(server)?, b"INFO\r\n")? {
        Value::Bulk(Some(text)) => Ok(String::from_utf8_lossy(&text).into_owned()),
        _ => Err(io::ErrorKind::InvalidData.into()),
    }
}

/// Returns the clients' clock.
#[allow(clippy::disallowed_methods, reason = "clients measure timeouts; the replica reads no clock")]
pub(crate) fn now() -> Instant {
    Instant::now()
}
