//! The receive side of the responder: checks, executes and acknowledges requests (IB 9.7.4, 9.8.2).

use super::{Executed, Message, Response, SPARE_RESPONSES};
use crate::config::Bug;
use crate::memory::{Access, Mr, Region, Span};
use crate::path::packets_of;
use crate::qp::{MAX_MESSAGE, QpContext, State};
use crate::queue::{Completion, CompletionOpcode, Remote, Status};
use rocev2::aeth::{NakCode, Syndrome};
use rocev2::{Opcode, Packet, Psn};
use switch::Nanos;

/// Limit of the distance by which a UC packet counts as late, in packets. It is more than a network reorders.
/// After a loss that is so long that the next packet seems late, a connection loses at most this number of packets more.
const LATE_WINDOW: i32 = 4096;

/// Why a request is not executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Refusal {
    /// No receive is posted: the requester retries later
    NotReady,
    /// The request is invalid; the queue pair goes into the error state
    Nak(NakCode),
}

const INVALID: Refusal = Refusal::Nak(NakCode::INVALID_REQUEST);
const ACCESS: Refusal = Refusal::Nak(NakCode::REMOTE_ACCESS_ERROR);
const OPERATIONAL: Refusal = Refusal::Nak(NakCode::REMOTE_OPERATIONAL_ERROR);

/// Packet type of an opcode, without its transport service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PacketKind {
    Send { begins: bool, ends: bool },
    Write { begins: bool, ends: bool, immediate: bool },
    Read,
    CompareSwap,
    FetchAdd,
    Unsupported,
}

impl PacketKind {
    fn of(opcode: Opcode) -> Self {
        let write = |begins, ends, immediate| Self::Write { begins, ends, immediate };
        match opcode.0 & 0x1f {
            0x00 => Self::Send { begins: true, ends: false },
            0x01 => Self::Send { begins: false, ends: false },
            0x02 | 0x03 | 0x16 => Self::Send { begins: false, ends: true },
            0x04 | 0x05 | 0x17 => Self::Send { begins: true, ends: true },
            0x06 => write(true, false, false),
            0x07 => write(false, false, false),
            0x08 => write(false, true, false),
            0x09 => write(false, true, true),
            0x0a => write(true, true, false),
            0x0b => write(true, true, true),
            0x0c => Self::Read,
            0x13 => Self::CompareSwap,
            0x14 => Self::FetchAdd,
            _ => Self::Unsupported,
        }
    }

    const fn begins(self) -> bool {
        match self {
            Self::Send { begins, .. } | Self::Write { begins, .. } => begins,
            _ => true,
        }
    }

    const fn ends(self) -> bool {
        match self {
            Self::Send { ends, .. } | Self::Write { ends, .. } => ends,
            _ => true,
        }
    }
}

/// Returns the memory and the length that a RETH names; the length is at most that of a message
/// (IB 9.7.4.1.6).
fn reth_target(packet: &Packet<'_>) -> Result<(Remote, u32), Refusal> {
    let reth = packet.reth().filter(|reth| reth.len.get() as usize <= MAX_MESSAGE).ok_or(INVALID)?;
    Ok((Remote { va: reth.va.get(), rkey: reth.rkey.get() }, reth.len.get()))
}

impl QpContext<'_> {
    /// Processes a request on a reliable connection.
    pub(crate) fn on_request(&mut self, packet: &Packet<'_>, now: Nanos) {
        let psn = packet.bth().psn();
        let ahead = self.psns_ahead(psn);
        if ahead > 0 {
            self.counters.out_of_sequence += 1;
            if !self.qp.resp.nak_sent {
                self.qp.resp.nak_sent = true;
                self.nak(Syndrome::Nak(NakCode::PSN_SEQUENCE_ERROR));
            }
            return;
        }
        if ahead < 0 {
            self.counters.duplicates += 1;
            self.on_duplicate(packet, psn);
            return;
        }
        self.qp.resp.nak_sent = false;
        match self.execute(packet) {
            Ok(psns) => {
                self.qp.resp.advance_epsn(psn.add(psns));
                if !matches!(
                    PacketKind::of(packet.bth().opcode()),
                    PacketKind::Read | PacketKind::CompareSwap | PacketKind::FetchAdd
                ) {
                    let (ack_req, policy) = (packet.bth().ack_req(), self.config.ack);
                    self.qp.resp.on_request(ack_req, policy, self.ack_psn(psn), now);
                }
            }
            Err(Refusal::NotReady) => {
                // Later requests are dropped silently until this request is retransmitted (IB 9.7.5.2.8).
                self.qp.resp.nak_sent = true;
                self.counters.rnr_naks_sent += 1;
                self.nak(Syndrome::RnrNak(self.qp.resp.min_rnr_timer));
            }
            Err(Refusal::Nak(code)) => {
                self.nak(Syndrome::Nak(code));
                self.enter_error();
                self.report_error();
            }
        }
    }

    /// Returns how far a request is ahead of the expected PSN; negative for a duplicate.
    fn psns_ahead(&self, psn: Psn) -> i32 {
        if self.has_bug(Bug::WrongWrap) {
            return psn.get() as i32 - self.qp.resp.epsn.get() as i32;
        }
        psn.distance(self.qp.resp.epsn)
    }

    /// Returns the PSN that an acknowledgement of `psn` carries.
    fn ack_psn(&self, psn: Psn) -> Psn {
        if self.has_bug(Bug::AckTooFar) {
            return psn.add(1);
        }
        psn
    }

    fn nak(&mut self, syndrome: Syndrome) {
        self.counters.naks_sent += 1;
        let expected = self.qp.resp.epsn;
        self.qp.resp.owe_nak(expected, syndrome);
    }

    /// Processes a duplicate request: SENDs and WRITEs are acknowledged again, READs executed again, and
    /// atomics answered from the remembered result (IB 9.7.5.1.4). A READ or atomic that is no longer
    /// remembered is dropped.
    fn on_duplicate(&mut self, packet: &Packet<'_>, psn: Psn) {
        if self.has_bug(Bug::NoDuplicateCheck) && packet.layout().opcode() == Opcode::RC_SEND_ONLY {
            _ = self.execute(packet);
        }
        let room = self.qp.resp.responses.len() < self.qp.resp.max_rd_atomic + SPARE_RESPONSES;
        match PacketKind::of(packet.bth().opcode()) {
            PacketKind::Read => {
                let Ok((from, len)) = reth_target(packet) else { return };
                let psns = packets_of(len as usize, self.qp.mtu.bytes());
                let known = psn.add(psns).distance(self.qp.resp.epsn) <= 0;
                if !known {
                    return;
                }
                if self.config.forgetful && !self.qp.resp.recalls_read(psn, from, len) {
                    self.counters.forgotten += 1;
                    return;
                }
                // Access is checked when the response is sent.
                let (msn, end) = (self.qp.resp.msn, psn.add(psns));
                let read = Response::Read { psn, from, len, sent: 0, msn, duplicate: true };
                self.qp.resp.owe_duplicate_read(read, end, self.qp.mtu.bytes(), room);
            }
            PacketKind::CompareSwap | PacketKind::FetchAdd => {
                if self.has_bug(Bug::AtomicTwice) {
                    _ = self.execute(packet);
                    return;
                }
                let Some((original, msn)) = self.qp.resp.recall_atomic(psn) else {
                    self.counters.forgotten += 1;
                    return;
                };
                let owed = self.qp.resp.responses.iter().any(|response| response.psn() == psn);
                if room && !owed {
                    self.qp.resp.owe_duplicate(Response::Atomic { psn, original, msn, duplicate: true });
                }
            }
            PacketKind::Send { .. } | PacketKind::Write { .. } | PacketKind::Unsupported => {
                // An acknowledgement of the newest request covers the duplicate.
                let newest = self.qp.resp.epsn.sub(1);
                self.qp.resp.owe_ack(newest);
            }
        }
    }

    /// Executes the expected request. Returns the number of PSNs that it takes.
    fn execute(&mut self, packet: &Packet<'_>) -> Result<u32, Refusal> {
        let kind = PacketKind::of(packet.bth().opcode());
        self.check_sequence(kind, packet)?;
        match kind {
            PacketKind::Send { .. } => self.execute_send(kind, packet).map(|()| 1),
            PacketKind::Write { immediate, .. } => self.execute_write(kind, immediate, packet).map(|()| 1),
            PacketKind::Read => self.execute_read(packet),
            PacketKind::CompareSwap | PacketKind::FetchAdd => self.execute_atomic(kind, packet).map(|()| 1),
            PacketKind::Unsupported => Err(INVALID),
        }
    }

    /// Checks the order of First, Middle, Last and Only, and the payload length: all packets except the last
    /// carry a full MTU (IB 9.7.4.1.2, 9.7.4.1.6).
    fn check_sequence(&self, kind: PacketKind, packet: &Packet<'_>) -> Result<(), Refusal> {
        let fits = match (self.qp.resp.message, kind) {
            (None | Some(Message::Broken), _) => kind.begins(),
            (Some(Message::Send { .. }), PacketKind::Send { begins, .. })
            | (Some(Message::Write { .. }), PacketKind::Write { begins, .. }) => !begins,
            _ => false,
        };
        let (len, mtu) = (packet.payload().len(), self.qp.mtu.bytes());
        let whole = match (kind.begins(), kind.ends()) {
            (_, false) => len == mtu,
            (false, true) => len > 0 && len <= mtu,
            (true, true) => len <= mtu,
        };
        if fits && whole { Ok(()) } else { Err(INVALID) }
    }

    fn execute_send(&mut self, kind: PacketKind, packet: &Packet<'_>) -> Result<(), Refusal> {
        let payload = packet.payload();
        let begun = match self.qp.resp.message.take() {
            Some(Message::Send { recv, len }) => Some((recv, len)),
            _ => None,
        };
        let (recv, len) = match begun {
            Some(begun) => begun,
            None => (self.take_recv().ok_or(Refusal::NotReady)?, 0),
        };
        let id = recv.id;
        // Access is checked for each packet: the region may have been deregistered since the last one.
        let into = recv.data.map(|sge| self.local(&sge, Access::LOCAL_WRITE).ok_or(sge)).transpose();
        let Ok(into) = into else {
            self.fail_receive(id, Status::LocalProtection);
            return Err(OPERATIONAL);
        };
        let room = recv.data.map_or(0, |sge| sge.len);
        if payload.len() > (room - len) as usize {
            self.fail_receive(id, Status::LocalLength);
            return Err(INVALID);
        }
        if let Some(into) = into {
            self.memory.write(into.skip(len as usize), payload);
        }
        let len = len + payload.len() as u32;
        if !kind.ends() {
            self.qp.resp.message = Some(Message::Send { recv, len });
            return Ok(());
        }
        if let Some(ieth) = packet.ieth() {
            let mr = Mr(ieth.rkey.get());
            let may_go = |region: &Region| {
                region.pd == self.qp.init.pd && region.access.contains(Access::REMOTE_INVALIDATE)
            };
            if !self.memory.region(mr).is_some_and(may_go) || self.memory.deregister(mr).is_err() {
                self.fail_receive(id, Status::LocalProtection);
                return Err(ACCESS);
            }
        }
        let completion = self.recv_completion(id, len, Some(packet));
        self.complete_recv(completion);
        self.qp.resp.msn = self.qp.resp.msn.add(1);
        Ok(())
    }

    fn fail_receive(&mut self, id: u64, status: Status) {
        let completion = self.recv_completion(id, 0, None);
        self.complete_recv(Completion { status, ..completion });
    }

    fn execute_write(
        &mut self,
        kind: PacketKind,
        immediate: bool,
        packet: &Packet<'_>,
    ) -> Result<(), Refusal> {
        let payload = packet.payload();
        let (into, left, len) = if let Some(Message::Write { into, left, len }) = self.qp.resp.message {
            (into, left, len)
        } else {
            let (into, len) = reth_target(packet)?;
            self.remote(into, len.into(), Access::REMOTE_WRITE).map_err(Refusal::Nak)?;
            (into, len, len)
        };
        let fits = payload.len() as u64 <= u64::from(left);
        if !fits || (kind.ends() && payload.len() as u32 != left) {
            return Err(INVALID);
        }
        // Access is checked for each packet: the region may have been deregistered since the first one.
        let span = self.remote(into, payload.len() as u64, Access::REMOTE_WRITE).map_err(Refusal::Nak)?;
        if immediate && self.next_recv().is_none() {
            return Err(Refusal::NotReady);
        }
        if let Some(span) = span {
            self.memory.write(span, payload);
        }
        if !kind.ends() {
            let (into, left) = (into.skip(payload.len()), left - payload.len() as u32);
            self.qp.resp.message = Some(Message::Write { into, left, len });
            return Ok(());
        }
        self.qp.resp.message = None;
        if immediate && let Some(recv) = self.take_recv() {
            let completion = self.recv_completion(recv.id, len, Some(packet));
            self.complete_recv(Completion { opcode: CompletionOpcode::RecvWriteImm, ..completion });
        }
        self.qp.resp.msn = self.qp.resp.msn.add(1);
        Ok(())
    }

    /// Returns whether the queue pair's access flags allow this access.
    fn allows(&self, access: Access) -> bool {
        if self.has_bug(Bug::AnyAccess) {
            return true;
        }
        self.qp.access.contains(access)
    }

    /// Returns the span of memory that the remote side names, if it may access it so. Returns `None` for 0
    /// bytes, which need no valid key (IB 9.7.4.1.5).
    pub(crate) fn remote(&self, from: Remote, len: u64, access: Access) -> Result<Option<Span>, NakCode> {
        if !self.allows(access) {
            return Err(NakCode::INVALID_REQUEST);
        }
        if len == 0 {
            return Ok(None);
        }
        let span = self.memory.check(self.qp.init.pd, from.rkey, from.va, len, access);
        span.map(Some).map_err(|_| NakCode::REMOTE_ACCESS_ERROR)
    }

    fn execute_read(&mut self, packet: &Packet<'_>) -> Result<u32, Refusal> {
        if self.qp.resp.fetches_owed() >= self.qp.resp.max_rd_atomic {
            return Err(INVALID);
        }
        let (from, len) = reth_target(packet)?;
        self.remote(from, len.into(), Access::REMOTE_READ).map_err(Refusal::Nak)?;
        self.qp.resp.msn = self.qp.resp.msn.add(1);
        let (psn, msn) = (packet.bth().psn(), self.qp.resp.msn);
        self.qp.resp.responses.push_back(Response::Read { psn, from, len, sent: 0, msn, duplicate: false });
        self.clear_held_acks();
        let psns = packets_of(len as usize, self.qp.mtu.bytes());
        if self.config.forgetful {
            self.qp.resp.remember(Executed::Read { psn, end: psn.add(psns), from, len });
        }
        Ok(psns)
    }

    fn execute_atomic(&mut self, kind: PacketKind, packet: &Packet<'_>) -> Result<(), Refusal> {
        let atomic = packet.atomic().ok_or(INVALID)?;
        let va = atomic.va.get();
        if !self.allows(Access::REMOTE_ATOMIC)
            || va % 8 != 0
            || self.qp.resp.fetches_owed() >= self.qp.resp.max_rd_atomic
        {
            return Err(INVALID);
        }
        let span = self.memory.check(self.qp.init.pd, atomic.rkey.get(), va, 8, Access::REMOTE_ATOMIC);
        let span = span.map_err(|_| ACCESS)?;
        let word = self.memory.bytes(span, 8).first_chunk().ok_or(OPERATIONAL)?;
        // Memory holds words in little-endian byte order.
        let original = u64::from_le_bytes(*word);
        let word = match kind {
            PacketKind::FetchAdd => original.wrapping_add(atomic.swap_or_add.get()),
            _ if original == atomic.compare.get() => atomic.swap_or_add.get(),
            _ => original,
        };
        self.memory.write(span, &word.to_le_bytes());
        self.qp.resp.msn = self.qp.resp.msn.add(1);
        let (psn, msn) = (packet.bth().psn(), self.qp.resp.msn);
        self.qp.resp.remember(Executed::Atomic { psn, original, msn });
        self.qp.resp.responses.push_back(Response::Atomic { psn, original, msn, duplicate: false });
        self.clear_held_acks();
        Ok(())
    }

    /// Clears held-back acknowledgements: a response acknowledges all requests before it.
    fn clear_held_acks(&mut self) {
        (self.qp.resp.held_acks, self.qp.resp.ack_deadline) = (0, None);
    }

    /// Processes a packet on an unreliable connection. A packet that is out of sequence is dropped together
    /// with its message (IB 9.8.2.2). A duplicate or late packet is dropped alone if it is at most
    /// [`LATE_WINDOW`] behind; a packet further behind counts as ahead, because a gap may have any length.
    pub(crate) fn on_unreliable(&mut self, packet: &Packet<'_>) {
        let kind = PacketKind::of(packet.bth().opcode());
        let psn = packet.bth().psn();
        if (-LATE_WINDOW..0).contains(&self.psns_ahead(psn)) {
            self.counters.duplicates += 1;
            return;
        }
        let expected = core::mem::replace(&mut self.qp.resp.epsn, psn.add(1));
        if !matches!(kind, PacketKind::Send { .. } | PacketKind::Write { .. }) {
            self.break_message();
            return;
        }
        let gap = psn != expected;
        if gap || kind.begins() {
            // A started message cannot be completed any more.
            let begun = self.qp.resp.message.is_some_and(|message| message != Message::Broken);
            if begun {
                self.break_message();
            }
        }
        if kind.begins() {
            self.qp.resp.message = None;
        } else if gap || matches!(self.qp.resp.message, None | Some(Message::Broken)) {
            self.counters.unreliable_dropped += 1;
            self.qp.resp.message = Some(Message::Broken);
            return;
        }
        if self.execute(packet).is_err() {
            self.break_message();
        }
    }

    /// Gives up the message in progress. The next message gets its receive request.
    fn break_message(&mut self) {
        self.counters.unreliable_dropped += 1;
        if let Some(Message::Send { recv, .. }) = self.qp.resp.message.replace(Message::Broken)
            && let Some(queue) = self.recv_queue()
        {
            queue.put_back(recv);
        }
    }

    /// Flushes all posted requests.
    pub(crate) fn flush(&mut self) {
        while let Some(wqe) = self.qp.req.pop() {
            self.complete_send(wqe, Status::Flushed);
        }
        while let Some(recv) = self.qp.recv.pop() {
            self.fail_receive(recv.id, Status::Flushed);
        }
    }

    /// Moves the queue pair to the error state: all posted requests are flushed in order (IB 10.3.1.6). Owed
    /// responses still leave.
    pub(crate) fn enter_error(&mut self) {
        self.qp.state = State::Error;
        if let Some(Message::Send { recv, .. }) = self.qp.resp.message.take() {
            self.fail_receive(recv.id, Status::Flushed);
        }
        self.flush();
        self.qp.req.stop_timers();
        if self.qp.resp.held_acks > 0 {
            // Acknowledges what was received before the queue pair stops responding.
            self.qp.resp.owe_ack(self.qp.resp.epsn.sub(1));
        }
    }
}
