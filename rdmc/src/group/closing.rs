//! Closing: the root announces how many messages it has sent, each member reports when it has all of them, and the
//! root announces that all members have.

use super::{Group, Outcome};
use crate::config::Failure;
use crate::wire::Message;

impl Group {
    /// Handles the root's `Close`: it has sent `messages` messages, and sends no more.
    pub(crate) fn on_close(&mut self, member: u32, messages: u64) -> Result<(), Failure> {
        if member != 0 || self.total_messages.is_some() || messages < self.messages {
            return Err(Failure::Violation(self.ip(member)));
        }
        self.total_messages = Some(messages);
        Ok(())
    }

    /// Handles a member's `Received`: it has all messages.
    pub(crate) fn on_received(&mut self, member: u32, messages: u64) -> Result<(), Failure> {
        if !self.is_root() || !self.close_reported || messages != self.messages {
            return Err(Failure::Violation(self.ip(member)));
        }
        self.member_states[member as usize].received = true;
        Ok(())
    }

    /// Handles the root's `Done`: all members have all messages.
    pub(crate) fn on_done(&self, member: u32) -> Result<(), Failure> {
        if member == 0 && self.close_reported { Ok(()) } else { Err(Failure::Violation(self.ip(member))) }
    }

    /// Returns whether only the end of closing is outstanding. Members that already have it destroy their
    /// queue pairs, so connections may break.
    pub(crate) fn is_only_closing(&self) -> bool {
        self.close_reported
    }

    /// Sends the messages of closing that are due.
    pub(super) fn advance_closing(&mut self, out: &mut Outcome) -> Result<(), Failure> {
        if self.transfer.is_some() {
            return Ok(());
        }
        if self.is_root() {
            if !self.closing || !self.queue.is_empty() {
                return Ok(());
            }
            if !self.close_reported {
                self.close_reported = true;
                out.send_to_all(self, Message::Close { messages: self.messages });
            }
            if self.other_members().all(|member| self.member_states[member as usize].received) {
                out.send_to_all(self, Message::Done);
                out.closed = true;
            }
        } else if let Some(messages) = self.total_messages {
            if self.messages > messages {
                return Err(Failure::Violation(self.ip(0)));
            }
            if self.messages == messages && !self.close_reported {
                self.close_reported = true;
                out.to_send.push((0, Message::Received { messages }));
            }
        }
        Ok(())
    }
}
