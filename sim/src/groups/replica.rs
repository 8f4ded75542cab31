//! A replica: memory for each group that the switch asks it to join, and receives for its messages.

use super::{Groups, Kind, Op, REPLICA_PORT, SharedGroups, pattern, seed_of};
use crate::App;
use p4ce::wire::{MemberRequest, Region};
use rnic::cm::{Conn, Event as CmEvent, PortSpace};
use rnic::{
    Access, Buffer, Completion, ConnParam, Cq, Event, Modify, Mr, Pd, QpInit, RecvRequest, Rnic, Sge, Status,
    Transport,
};
use rocev2::Qpn;
use rocev2::cm::RejReason;
use std::collections::BTreeMap;
use std::sync::Arc;
use switch::Nanos;

const MEMORY_VA: u64 = 0x7000_0000_0000;
const RECEIVE_VA: u64 = 0x1000;

/// How a replica answers the switch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Answers {
    /// It joins.
    #[default]
    Joins,
    /// It refuses.
    Refuses,
    /// It joins, and tells of no memory.
    Nothing,
    /// It joins, and has a byte more than the others.
    More,
}

/// Its part in a group.
#[derive(Debug)]
struct Joined {
    qpn: Qpn,
    /// Which group of which leader it is
    seed: u64,
    memory: Buffer,
    receives: (Buffer, Mr),
    script: Vec<Op>,
    /// Messages that came
    messages: u32,
    /// Bytes of the memory that were written, from its beginning on
    written: u64,
    /// The connection stands, or is to
    open: bool,
    /// The right to write was taken away: `written` was all that may ever be.
    revoked: bool,
}

/// A replica.
#[derive(Debug)]
pub struct ReplicaApp {
    groups: Groups,
    seed: u64,
    shared: Arc<SharedGroups>,
    resources: Option<(Pd, Cq)>,
    joined: BTreeMap<Conn, Joined>,
    /// What it was part of, and held, when it crashed
    former: Vec<Joined>,
    /// How it answers
    pub answers: Answers,
    /// Takes the right to write away from one group, when that has written so many bytes
    pub revoke_after: Option<u64>,
}

impl ReplicaApp {
    /// A replica of any group.
    pub fn new(groups: Groups, seed: u64, shared: Arc<SharedGroups>) -> Self {
        Self {
            groups,
            seed,
            shared,
            resources: None,
            joined: BTreeMap::new(),
            former: Vec::new(),
            answers: Answers::Joins,
            revoke_after: None,
        }
    }

    /// Whether it has taken the right to write to its memory away from the group of this number of this leader.
    pub(super) fn has_revoked(&self, seed: u64) -> bool {
        self.joined.values().chain(&self.former).any(|joined| joined.seed == seed && joined.revoked)
    }

    /// Takes the right to write away from a group that has written enough.
    fn revoke(&mut self, nic: &mut Rnic) {
        let Some(after) = self.revoke_after else { return };
        let Some(joined) = self.joined.values_mut().find(|joined| joined.open && joined.written >= after)
        else {
            return;
        };
        self.revoke_after = None;
        joined.revoked = nic.modify_qp(joined.qpn, Modify::Access(Access::LOCAL_READ)).is_ok();
    }

    /// A queue pair has failed: the switch is told, in case it has lost the NAK that says why.
    fn on_event(&mut self, nic: &mut Rnic, event: &Event, now: Nanos) {
        let Event::QpError(qpn) = event else { return };
        let of = |(_, joined): &(&Conn, &Joined)| joined.qpn == *qpn && joined.revoked;
        let conn = self.joined.iter().find(of).map(|(conn, _)| *conn);
        // Without an RTU it does not stand yet, or it is over.
        if let Some(conn) = conn.filter(|conn| nic.disconnect(*conn, &[], now).is_err()) {
            _ = nic.reject(conn, RejReason::CONSUMER, &[], now);
        }
    }

    /// Groups that it is in
    pub fn open(&self) -> usize {
        self.joined.values().filter(|joined| joined.open).count()
    }

    fn on_cm(&mut self, nic: &mut Rnic, event: &CmEvent, now: Nanos) {
        let conn = event.conn();
        match event {
            CmEvent::Requested { request, .. } => {
                let member = MemberRequest::from_bytes(&request.private_data);
                let member = member.filter(|_| self.answers != Answers::Refuses);
                let joined = member.and_then(|member| self.join(nic, conn, member, now));
                if joined.is_none() {
                    _ = nic.reject(conn, RejReason::CONSUMER, &[], now);
                }
            }
            _ if event.is_last() => {
                if let Some(joined) = self.joined.get_mut(&conn) {
                    joined.open = false;
                    _ = nic.destroy_qp(joined.qpn);
                }
            }
            _ => {}
        }
    }

    fn join(&mut self, nic: &mut Rnic, conn: Conn, member: MemberRequest, now: Nanos) -> Option<()> {
        let (pd, cq) = self.resources?;
        let seed = seed_of(self.seed, member.leader, member.port);
        let size = self.groups.memory(seed) + u64::from(self.answers == Answers::More);
        let (memory, mr) = nic.register_new(pd, size as usize, MEMORY_VA, Access::ALL).ok()?;
        let (count, each) = (self.groups.receives, self.groups.max_size.max(1));
        let receives = nic.register_new(pd, (count * each) as usize, RECEIVE_VA, Access::ALL).ok()?;
        let init = QpInit {
            transport: Transport::Rc,
            pd,
            send_cq: cq,
            recv_cq: cq,
            srq: None,
            max_send: 1,
            max_recv: count.max(1) as usize,
        };
        let qpn = nic.create_qp(init).ok()?;
        let script = self.groups.script(seed);
        let joined = Joined {
            qpn,
            seed,
            memory,
            receives,
            script,
            messages: 0,
            written: 0,
            open: true,
            revoked: false,
        };
        let told = if self.answers == Answers::Nothing { 0 } else { size };
        let param = ConnParam {
            private_data: Region::new(MEMORY_VA, mr.0, told).to_bytes(),
            min_rnr_timer: rocev2::aeth::RnrTimer(1),
            flow_control: true,
            ..ConnParam::default()
        };
        nic.accept(conn, qpn, param, now).ok()?;
        for slot in 0..count {
            self.post(nic, &joined, slot.into());
        }
        self.joined.insert(conn, joined);
        Some(())
    }

    fn post(&self, nic: &mut Rnic, joined: &Joined, slot: u64) {
        let each = self.groups.max_size.max(1);
        let data = Sge { mr: joined.receives.1, va: RECEIVE_VA + slot * u64::from(each), len: each };
        // A queue pair that has failed takes none.
        _ = nic.post_recv(joined.qpn, RecvRequest { id: slot, data: Some(data) });
    }

    fn on_completion(&mut self, nic: &mut Rnic, done: &Completion) {
        let each = self.groups.max_size.max(1) as usize;
        let Some(joined) = self.joined.values_mut().find(|joined| joined.qpn == done.qpn) else { return };
        if done.status != Status::Success {
            return;
        }
        // Messages come in the order of the script.
        let op = joined.script.iter().filter(|op| op.kind != Kind::Write).nth(joined.messages as usize);
        joined.messages += 1;
        let bytes = &nic.bytes(joined.receives.0)[done.id as usize * each..];
        let right = op.is_some_and(|op| match op.kind {
            Kind::Send => {
                done.len == op.len
                    && bytes[..op.len as usize] == pattern(!joined.seed, op.messages.into(), op.len as usize)
            }
            Kind::WriteImm | Kind::Write => done.immediate == Some(op.messages),
        });
        if !right {
            let wrong = format!("message {} is {op:?}, and came as {done:?}", joined.messages - 1);
            self.shared.note(wrong);
            return;
        }
        let qpn = done.qpn;
        if let Some(joined) = self.joined.values().find(|joined| joined.qpn == qpn) {
            self.post(nic, joined, done.id);
        }
    }

    /// Whether it holds an operation of a group, or held it when it crashed: if it is a message, with all messages before it.
    /// `qpn` says at which end, if that matters: it may have joined more than once, if the switch forgot that it had.
    pub(super) fn holds(&self, seed: u64, qpn: Option<Qpn>, op: &Op) -> bool {
        let all = self.joined.values().chain(&self.former);
        all.filter(|joined| joined.seed == seed && qpn.is_none_or(|qpn| joined.qpn == qpn)).any(|joined| {
            let written = joined.written >= op.at + u64::from(op.len);
            match op.kind {
                Kind::Write => written,
                Kind::WriteImm => written && joined.messages > op.messages,
                Kind::Send => joined.messages > op.messages,
            }
        })
    }

    /// Says which byte of its memory is not what it has to be.
    pub fn check_memory(&self, nic: &Rnic) -> Option<String> {
        self.joined.values().find_map(|joined| {
            let at = differs(nic.bytes(joined.memory), joined.seed, joined.written as usize)?;
            Some(format!("queue pair {}: byte {at} of the memory is not what was written", joined.qpn))
        })
    }
}

/// Returns the first byte of a group's memory that is wrong: the first so many are what was written, all behind are zero.
fn differs(memory: &[u8], seed: u64, written: usize) -> Option<usize> {
    let right = pattern(seed, 0, written).into_iter().chain(core::iter::repeat(0));
    memory.iter().zip(right).position(|(is, right)| *is != right)
}

impl App for ReplicaApp {
    fn start(&mut self, nic: &mut Rnic, _now: Nanos) {
        let pd = nic.alloc_pd();
        self.resources = nic.create_cq(1 << 12).ok().map(|cq| (pd, cq));
        self.former.extend(core::mem::take(&mut self.joined).into_values());
        // Nobody listens yet.
        _ = nic.listen(PortSpace::Tcp, REPLICA_PORT);
    }

    fn run(&mut self, nic: &mut Rnic, now: Nanos) {
        while let Some(event) = nic.poll_cm_event() {
            self.on_cm(nic, &event, now);
        }
        if let Some((_, cq)) = self.resources {
            while let Some(done) = nic.poll_cq(cq) {
                self.on_completion(nic, &done);
            }
        }
        while let Some(event) = nic.poll_event() {
            self.on_event(nic, &event, now);
        }
        for joined in self.joined.values_mut().filter(|joined| !joined.revoked) {
            let rest = &nic.bytes(joined.memory)[joined.written as usize..];
            joined.written += rest.iter().take_while(|byte| **byte != 0).count() as u64;
        }
        self.revoke(nic);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_with_a_hole_or_another_byte_is_wrong() {
        let whole = pattern(7, 0, 100);
        let with = |at: usize, byte: u8| {
            let mut memory = whole.clone();
            memory.resize(120, 0);
            memory[at] = byte;
            memory
        };
        assert_eq!(differs(&with(110, 0), 7, 100), None);
        assert_eq!(differs(&with(50, 0), 7, 50), Some(51), "bytes behind a hole");
        assert_eq!(differs(&with(50, whole[50] ^ 1), 7, 100), Some(50), "another byte");
        assert_eq!(differs(&with(99, 0), 7, 100), Some(99), "a byte that was there");
        assert_eq!(differs(&with(110, 1), 7, 100), Some(110), "a byte too many");
    }
}
