//! Both sides of ucmatose: the server sends messages on each connection, the client sends as many back, and
//! the server disconnects. The contents of the messages do not matter.

use super::session::{Session, SessionQp, Step};
use rnic::{Completion, CompletionOpcode, Data, Operation, Rnic, SendRequest};

/// Returns the session, the bytes of memory that it needs, and the depth of its queues.
pub(super) fn session(client: bool, messages: u32, size: u32) -> (Box<dyn Session>, usize, usize) {
    let session = Ucmatose { client, messages, size, sent: 0, received: 0 };
    (Box::new(session), 2 * size as usize, messages.max(1) as usize)
}

struct Ucmatose {
    client: bool,
    messages: u32,
    size: u32,
    sent: u32,
    received: u32,
}

impl Ucmatose {
    fn send(&self, nic: &mut Rnic, qp: &SessionQp) {
        for id in 0..self.messages {
            let data = match self.size {
                0 => Data::None,
                size => Data::Memory(qp.sge(size.into(), size)),
            };
            // A connection that has ended meanwhile is reported by an event of its own.
            _ = nic.post_send(qp.qpn, SendRequest::new(id.into(), Operation::Send, data));
        }
    }

    fn step(&self) -> Step {
        if self.may_end() { Step::Done } else { Step::Wait }
    }
}

impl Session for Ucmatose {
    fn disconnects(&self) -> bool {
        !self.client
    }

    fn prepare(&mut self, nic: &mut Rnic, qp: &SessionQp) {
        for _ in 0..self.messages {
            qp.receive(nic, 0, self.size);
        }
    }

    fn start(&mut self, nic: &mut Rnic, qp: &SessionQp) -> Step {
        if !self.client {
            self.send(nic, qp);
        }
        self.step()
    }

    fn on_completion(&mut self, nic: &mut Rnic, qp: &SessionQp, completion: &Completion) -> Step {
        match completion.opcode {
            CompletionOpcode::Recv => {
                self.received += 1;
                if completion.len != self.size {
                    return Step::Failed(format!(
                        "received a message of {} bytes instead of {}",
                        completion.len, self.size
                    ));
                }
                if self.client && self.received == self.messages {
                    self.send(nic, qp);
                }
            }
            CompletionOpcode::Send => self.sent += 1,
            _ => {}
        }
        self.step()
    }

    fn may_end(&self) -> bool {
        // The last acknowledgement may be lost, but a server that disconnects has received every message.
        self.received == self.messages && (self.client || self.sent == self.messages)
    }
}
