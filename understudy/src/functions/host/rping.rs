//! Both sides of rping, the program of librdmacm that uses SEND, READ and WRITE in turn. For each ping, the
//! server READs the client's data and WRITEs it to a second buffer of the client. Messages announce buffers
//! and completion.
//!
//! A message is the address of memory (8 bytes), its key (4) and its length (4), in network byte order. Only
//! the fact that the server's messages arrive matters, not their contents.

use super::session::{Session, SessionQp, Step, VA};
use rnic::{Completion, CompletionOpcode, Data, Operation, Remote, Rnic, SendRequest};

/// Length of a message, in bytes
const MESSAGE_LEN: u32 = 16;
/// Receives posted at once
const RECEIVES: u64 = 2;
/// Depth of the send and receive queues
const DEPTH: usize = 16;

/// Contents of a message.
#[derive(Clone, Copy)]
struct Info {
    memory: Remote,
    len: u32,
}

impl Info {
    fn parse(bytes: &[u8]) -> Self {
        let word = |at: usize| bytes[at..].first_chunk().map_or(0, |word| u32::from_be_bytes(*word));
        let va = u64::from(word(0)) << 32 | u64::from(word(4));
        Self { memory: Remote { va, rkey: word(8) }, len: word(12) }
    }

    fn to_bytes(self) -> Vec<u8> {
        let Self { memory: Remote { va, rkey }, len } = self;
        [&va.to_be_bytes()[..], &rkey.to_be_bytes(), &len.to_be_bytes()].concat()
    }
}

/// Session, bytes of memory that it needs, and depth of its queues
type NewSession = (Box<dyn Session>, usize, usize);

/// Slots in which messages are received, behind the data
struct MessageSlots {
    offset: u64,
}

impl MessageSlots {
    fn prepare(&self, nic: &mut Rnic, qp: &SessionQp) {
        for slot in 0..RECEIVES {
            qp.receive(nic, self.offset + slot * u64::from(MESSAGE_LEN), MESSAGE_LEN);
        }
    }
}

/// Returns the received message and posts its slot again.
fn take_message(nic: &mut Rnic, qp: &SessionQp, completion: &Completion) -> Result<Info, Step> {
    if completion.len != MESSAGE_LEN {
        return Err(Step::Failed(format!(
            "received a message of {} bytes, but rping's have 16",
            completion.len
        )));
    }
    let info = Info::parse(&nic.bytes(qp.buffer)[completion.id as usize..][..MESSAGE_LEN as usize]);
    if qp.receive(nic, completion.id, MESSAGE_LEN) { Ok(info) } else { Err(Step::Wait) }
}

/// Posts a request. A connection that has ended meanwhile is reported by an event of its own.
fn post(nic: &mut Rnic, qp: &SessionQp, operation: Operation, data: Data) {
    _ = nic.post_send(qp.qpn, SendRequest::new(0, operation, data));
}

fn send_info(nic: &mut Rnic, qp: &SessionQp, info: Info) {
    post(nic, qp, Operation::Send, Data::Inline(info.to_bytes()));
}

const PROCEED: Info = Info { memory: Remote { va: 0, rkey: 0 }, len: 0 };

pub(super) fn server(size: u32) -> NewSession {
    let session = Server { size, slots: MessageSlots { offset: size.into() }, ping_len: None };
    let bytes = size as usize + RECEIVES as usize * MESSAGE_LEN as usize;
    (Box::new(session), bytes, DEPTH)
}

struct Server {
    /// Largest ping, in bytes
    size: u32,
    slots: MessageSlots,
    /// Length of the ping whose data the server has read, in bytes
    ping_len: Option<u32>,
}

impl Session for Server {
    fn disconnects(&self) -> bool {
        false
    }

    fn prepare(&mut self, nic: &mut Rnic, qp: &SessionQp) {
        self.slots.prepare(nic, qp);
    }

    fn start(&mut self, _nic: &mut Rnic, _qp: &SessionQp) -> Step {
        Step::Wait
    }

    fn on_completion(&mut self, nic: &mut Rnic, qp: &SessionQp, completion: &Completion) -> Step {
        match completion.opcode {
            CompletionOpcode::Recv => {
                let info = match take_message(nic, qp, completion) {
                    Ok(info) => info,
                    Err(step) => return step,
                };
                if info.len > self.size {
                    return Step::Failed(format!(
                        "received a ping of {} bytes, but size is {}; raise size",
                        info.len, self.size
                    ));
                }
                match self.ping_len.take() {
                    None => {
                        self.ping_len = Some(info.len);
                        post(nic, qp, Operation::Read(info.memory), Data::Memory(qp.sge(0, info.len)));
                    }
                    Some(len) => {
                        let len = len.min(info.len);
                        post(nic, qp, Operation::Write(info.memory), Data::Memory(qp.sge(0, len)));
                        send_info(nic, qp, PROCEED);
                    }
                }
            }
            CompletionOpcode::Read => send_info(nic, qp, PROCEED),
            _ => {}
        }
        Step::Wait
    }

    fn may_end(&self) -> bool {
        // rping's client disconnects as soon as it has its data.
        self.ping_len.is_none()
    }
}

pub(super) fn client(count: u32, size: u32) -> NewSession {
    let session = Client {
        count,
        size,
        slots: MessageSlots { offset: u64::from(size) * 2 },
        ping: 0,
        was_read: false,
        returned: 0,
    };
    let bytes = size as usize * 2 + RECEIVES as usize * MESSAGE_LEN as usize;
    (Box::new(session), bytes, DEPTH)
}

struct Client {
    /// Number of pings; 0 for no limit
    count: u32,
    size: u32,
    slots: MessageSlots,
    /// Number of the current ping
    ping: u32,
    /// Whether the server has read the current ping
    was_read: bool,
    /// Bytes of a ping that has come back and is not counted yet
    returned: u64,
}

impl Client {
    /// Returns the data of the current ping: as in rping, a text that shifts with each ping.
    fn data(&self) -> Vec<u8> {
        let mut data = format!("rdma-ping-{}: ", self.ping).into_bytes();
        data.truncate(self.size as usize);
        let letters = (b'A'..=b'z').cycle().skip(self.ping as usize % 58);
        data.extend(letters.take(self.size as usize - data.len()));
        if let Some(last) = data.last_mut() {
            *last = 0;
        }
        data
    }

    fn send_ping(&mut self, nic: &mut Rnic, qp: &SessionQp) {
        let (data, size) = (self.data(), self.size as usize);
        let buffer = nic.bytes_mut(qp.buffer);
        buffer[..size].copy_from_slice(&data);
        buffer[size..2 * size].fill(0);
        self.was_read = false;
        send_info(nic, qp, Info { memory: Remote { va: VA, rkey: qp.mr.0 }, len: self.size });
    }
}

impl Session for Client {
    fn disconnects(&self) -> bool {
        true
    }

    fn prepare(&mut self, nic: &mut Rnic, qp: &SessionQp) {
        self.slots.prepare(nic, qp);
    }

    fn start(&mut self, nic: &mut Rnic, qp: &SessionQp) -> Step {
        self.send_ping(nic, qp);
        Step::Wait
    }

    fn on_completion(&mut self, nic: &mut Rnic, qp: &SessionQp, completion: &Completion) -> Step {
        if completion.opcode != CompletionOpcode::Recv {
            return Step::Wait;
        }
        if let Err(step) = take_message(nic, qp, completion) {
            return step;
        }
        if !self.was_read {
            self.was_read = true;
            let sink = Remote { va: VA + u64::from(self.size), rkey: qp.mr.0 };
            send_info(nic, qp, Info { memory: sink, len: self.size });
            return Step::Wait;
        }
        let data = nic.bytes(qp.buffer);
        // The data that the server has read, and the copy that it has written
        let (sent, received) = data.split_at(self.size as usize);
        if sent != &received[..sent.len()] {
            return Step::Failed(format!("the data of ping {} came back altered", self.ping));
        }
        self.ping += 1;
        self.returned = self.size.into();
        if self.ping == self.count {
            return Step::Done;
        }
        self.send_ping(nic, qp);
        Step::Wait
    }

    /// The server reads and writes the data, so this side completes nothing but short messages.
    fn completed_bytes(&mut self, _completion: &Completion) -> u64 {
        core::mem::take(&mut self.returned)
    }

    fn may_end(&self) -> bool {
        self.ping == self.count && self.count > 0
    }
}
