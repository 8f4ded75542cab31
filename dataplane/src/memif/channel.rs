//! Control channel of a memif port: messages between a peer and the driver.

use super::audit::Audit;
use super::socket::{Message, receive};
use socket2::Socket;
use std::io;

/// A control channel: the sockets to the peer and to the driver
pub(super) struct ControlChannel {
    pub(super) outer: Socket,
    pub(super) inner: Socket,
}

impl ControlChannel {
    /// Forwards the driver's messages to the peer. Returns whether there were any.
    pub(super) fn pass_out(&self) -> io::Result<bool> {
        pass(&self.inner, &self.outer)
    }

    /// Validates the peer's messages and forwards them to the driver. Returns whether there were any.
    pub(super) fn pass_in(&self, audit: &mut Audit) -> Result<bool, HandshakeError> {
        let mut passed = false;
        while let Some(message) = receive(&self.outer)? {
            if let Err(why) = audit.check(&message) {
                // The peer may have disconnected already.
                drop(Message::disconnect(&why).send(&self.outer));
                return Err(HandshakeError::Refused(why));
            }
            message.send(&self.inner)?;
            passed = true;
        }
        Ok(passed)
    }

    /// Returns whether the peer has disconnected. Once joined, the only message that it may send is
    /// DISCONNECT.
    pub(super) fn is_disconnected(&self) -> bool {
        !matches!(receive(&self.outer), Ok(None))
    }
}

/// The reason why a handshake ended.
pub(super) enum HandshakeError {
    Disconnected,
    Refused(String),
}

impl From<io::Error> for HandshakeError {
    fn from(_: io::Error) -> Self {
        Self::Disconnected
    }
}

fn pass(from: &Socket, to: &Socket) -> io::Result<bool> {
    let mut passed = false;
    while let Some(message) = receive(from)? {
        message.send(to)?;
        passed = true;
    }
    Ok(passed)
}
