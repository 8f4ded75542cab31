//! Memory service: each client gets a region of its own that it may read, write and use for atomics.

use super::session::{Session, SessionQp, Step, VA};
use rnic::{Completion, Mr, Rnic};

/// Returns the session, the bytes of memory that it needs, and the depth of its queues.
pub(super) fn session(size: u64) -> (Box<dyn Session>, usize, usize) {
    (Box::new(Memory), size as usize, 1)
}

/// Returns the private data of the connection reply: address (8 bytes), key (4), zero (4) and length (8), in
/// network byte order.
pub(super) fn advertisement(mr: Mr, size: u64) -> Vec<u8> {
    [&VA.to_be_bytes()[..], &mr.0.to_be_bytes(), &[0; 4], &size.to_be_bytes()].concat()
}

struct Memory;

impl Session for Memory {
    fn disconnects(&self) -> bool {
        false
    }

    fn prepare(&mut self, _nic: &mut Rnic, _qp: &SessionQp) {}

    fn start(&mut self, _nic: &mut Rnic, _qp: &SessionQp) -> Step {
        Step::Wait
    }

    fn on_completion(&mut self, _nic: &mut Rnic, _qp: &SessionQp, _completion: &Completion) -> Step {
        Step::Wait
    }

    fn may_end(&self) -> bool {
        true
    }
}
