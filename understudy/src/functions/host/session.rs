//! Protocol on one connection of a service, and the queue pair that it has.

use rnic::{Access, Buffer, Completion, Cq, Modify, Mr, Pd, QpInit, RecvRequest, Rnic, Sge, Transport};
use rocev2::Qpn;

/// Result of a session's step.
pub(super) enum Step {
    /// The session waits for a completion.
    Wait,
    /// The session is done: the connection may end.
    Done,
    /// The session failed, for this reason.
    Failed(String),
}

/// Protocol on one connection.
pub(super) trait Session: Send {
    /// Returns whether this side disconnects when all is done.
    fn disconnects(&self) -> bool;

    /// Posts the receives that are needed before the connection is established.
    fn prepare(&mut self, nic: &mut Rnic, qp: &SessionQp);

    /// Starts the protocol on the established connection.
    fn start(&mut self, nic: &mut Rnic, qp: &SessionQp) -> Step;

    /// Processes a successful completion.
    fn on_completion(&mut self, nic: &mut Rnic, qp: &SessionQp, completion: &Completion) -> Step;

    /// Returns the bytes of data that a completion stands for, after [`Self::on_completion`].
    fn completed_bytes(&mut self, completion: &Completion) -> u64 {
        completion.len.into()
    }

    /// Returns whether the connection may end now, as far as this side can tell.
    fn may_end(&self) -> bool;
}

/// NIC resources of one session: a queue pair and its memory.
#[derive(Clone, Copy, Debug)]
pub(super) struct SessionQp {
    pub(super) qpn: Qpn,
    /// Buffer, and the memory region that covers it
    pub(super) buffer: Buffer,
    pub(super) mr: Mr,
}

/// Virtual address of the first byte of every region
pub(super) const VA: u64 = 0x10_0000;

impl SessionQp {
    /// Creates a queue pair with all access rights, and its memory.
    pub(super) fn new(
        nic: &mut Rnic,
        pd: Pd,
        cq: Cq,
        transport: Transport,
        bytes: usize,
        depth: usize,
    ) -> Result<Self, String> {
        let text = |error: &dyn core::fmt::Display| error.to_string();
        let (buffer, mr) =
            nic.register_new(pd, bytes.max(1), VA, Access::ALL).map_err(|error| text(&error))?;
        let init =
            QpInit { transport, pd, send_cq: cq, recv_cq: cq, srq: None, max_send: depth, max_recv: depth };
        match nic.create_qp(init) {
            Ok(qpn) => {
                let ready = Modify::Init { access: Access::ALL, qkey: 0 };
                nic.modify_qp(qpn, ready).map_err(|error| text(&error))?;
                Ok(Self { qpn, buffer, mr })
            }
            Err(error) => {
                _ = nic.deregister(mr);
                _ = nic.free(buffer);
                Err(text(&error))
            }
        }
    }

    pub(super) fn destroy(&self, nic: &mut Rnic) {
        // Resources that are already gone are ignored.
        _ = nic.destroy_qp(self.qpn);
        _ = nic.deregister(self.mr);
        _ = nic.free(self.buffer);
    }

    pub(super) fn sge(&self, offset: u64, len: u32) -> Sge {
        Sge { mr: self.mr, va: VA + offset, len }
    }

    /// Posts a receive of `len` bytes at offset `offset`. Returns `false` if the queue pair does not accept
    /// it. On a failed queue pair, the receive is flushed.
    pub(super) fn receive(&self, nic: &mut Rnic, offset: u64, len: u32) -> bool {
        let data = (len > 0).then(|| self.sge(offset, len));
        nic.post_recv(self.qpn, RecvRequest { id: offset, data }).is_ok()
    }
}
