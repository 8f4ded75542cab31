//! A connection and its socket, which does not block.

use crate::connection::Connection;
use crate::poller::Poller;
use crate::{Event, Reason};
use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpStream;
use switch::Nanos;

/// Bytes that are read at once, so that one peer does not keep the thread from the others
pub(crate) const READ: usize = 64 << 10;

#[derive(Debug)]
pub(crate) struct Stream {
    socket: TcpStream,
    token: u64,
    pub(crate) connection: Connection,
    /// Whether the poller waits until the socket takes bytes
    waits_to_write: bool,
}

impl Stream {
    /// Adds the socket to the poller.
    pub(crate) fn new(
        socket: TcpStream,
        token: u64,
        connection: Connection,
        poller: &Poller,
    ) -> io::Result<Self> {
        poller.add(&socket, token, true, true)?;
        Ok(Self { socket, token, connection, waits_to_write: true })
    }

    /// Returns the error of the socket, if there is one.
    pub(crate) fn check(&self) -> Result<(), Reason> {
        match self.socket.take_error() {
            Ok(None) => Ok(()),
            Ok(Some(error)) | Err(error) => Err(Reason::Io(error.kind())),
        }
    }

    /// Reads once.
    pub(crate) fn read(&mut self, buffer: &mut [u8], now: Nanos) -> Result<(), Reason> {
        match self.socket.read(buffer) {
            Ok(0) => Err(Reason::Closed),
            Ok(count) => self.connection.on_bytes(&buffer[..count], now),
            Err(error) if is_temporary(&error) => Ok(()),
            Err(error) => Err(Reason::Io(error.kind())),
        }
    }

    /// Sends as much as the socket takes, and lets the poller wait for the rest.
    pub(crate) fn flush(&mut self, poller: &Poller) -> Result<(), Reason> {
        self.write()?;
        let waits = !self.connection.output().is_empty();
        if waits != self.waits_to_write {
            poller.change(&self.socket, self.token, true, waits).map_err(|error| Reason::Io(error.kind()))?;
            self.waits_to_write = waits;
        }
        Ok(())
    }

    fn write(&mut self) -> Result<(), Reason> {
        while !self.connection.output().is_empty() {
            match self.socket.write(self.connection.output()) {
                Ok(0) => return Err(Reason::Closed),
                Ok(count) => self.connection.consume(count),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if is_temporary(&error) => break,
                Err(error) => return Err(Reason::Io(error.kind())),
            }
        }
        Ok(())
    }

    /// Ends the connection, and sends the reason if the socket takes it. Returns what has arrived before.
    pub(crate) fn end(mut self, reason: Reason) -> Vec<Event> {
        self.connection.close(reason);
        _ = self.write();
        std::iter::from_fn(|| self.connection.poll_event()).collect()
    }
}

fn is_temporary(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted)
}
