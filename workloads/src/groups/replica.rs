//! A replica: memory for each group that it joins, and receive requests for the group's messages.

use super::workload::{Groups, Kind, Op, REPLICA_PORT, SharedGroups, pattern, seed_of};
use p4ce::wire::{MemberRequest, Region};
use rnic::cm::{Conn, Event as CmEvent, PortSpace};
use rnic::{
    Access, Buffer, Completion, ConnParam, Cq, Event, Modify, Mr, Pd, QpInit, RecvRequest, Rnic, Sge, Status,
};
use rocev2::Qpn;
use rocev2::cm::RejReason;
use sim::App;
use std::collections::BTreeMap;
use std::sync::Arc;
use switch::Nanos;

const MEMORY_VA: u64 = 0x7000_0000_0000;
const RECEIVE_VA: u64 = 0x1000;

/// Reaction of a replica to the switch's requests to join a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum JoinReply {
    /// Accepts
    #[default]
    Accept,
    /// Rejects
    Reject,
    /// Accepts, but announces no memory
    NoMemory,
    /// Accepts, and announces one byte of memory more than the other replicas
    ExtraByte,
}

/// State of a replica in one group.
#[derive(Debug)]
struct Membership {
    qpn: Qpn,
    /// Seed of the group
    seed: u64,
    memory: Buffer,
    receives: (Buffer, Mr),
    script: Vec<Op>,
    /// Number of messages received
    messages: u32,
    /// Number of contiguous bytes written from the beginning of the memory
    written: u64,
    /// Whether the connection is established or being established
    open: bool,
    /// Whether the right to write was revoked; `written` is final then
    revoked: bool,
}

/// The application of a replica.
#[derive(Debug)]
pub struct ReplicaApp {
    groups: Groups,
    seed: u64,
    shared: Arc<SharedGroups>,
    resources: Option<(Pd, Cq)>,
    joined: BTreeMap<Conn, Membership>,
    /// Groups that it was in when it crashed, with their memory's state
    before_crash: Vec<Membership>,
    /// Reaction to requests to join
    pub join_reply: JoinReply,
    /// Revokes the right to write from one group as soon as the group has written this number of bytes
    pub revoke_after: Option<u64>,
}

impl ReplicaApp {
    /// Creates a replica, which may join any group.
    pub fn new(groups: Groups, seed: u64, shared: Arc<SharedGroups>) -> Self {
        Self {
            groups,
            seed,
            shared,
            resources: None,
            joined: BTreeMap::new(),
            before_crash: Vec::new(),
            join_reply: JoinReply::Accept,
            revoke_after: None,
        }
    }

    /// Returns whether this replica has revoked the right to write from the group with this seed.
    pub(super) fn has_revoked(&self, seed: u64) -> bool {
        self.joined.values().chain(&self.before_crash).any(|joined| joined.seed == seed && joined.revoked)
    }

    /// Revokes the right to write from a group that has written enough.
    fn revoke(&mut self, nic: &mut Rnic) {
        let Some(after) = self.revoke_after else { return };
        let Some(joined) = self.joined.values_mut().find(|joined| joined.open && joined.written >= after)
        else {
            return;
        };
        self.revoke_after = None;
        joined.revoked = nic.modify_qp(joined.qpn, Modify::Access(Access::LOCAL_READ)).is_ok();
    }

    /// Disconnects a queue pair that failed because of the revocation, in case the switch lost the NAK.
    fn on_event(&mut self, nic: &mut Rnic, event: &Event, now: Nanos) {
        let Event::QpError(qpn) = event else { return };
        let of = |(_, joined): &(&Conn, &Membership)| joined.qpn == *qpn && joined.revoked;
        let conn = self.joined.iter().find(of).map(|(conn, _)| *conn);
        // Before the RTU the connection is not established and has to be rejected instead; or it is over.
        if let Some(conn) = conn.filter(|conn| nic.disconnect(*conn, &[], now).is_err()) {
            _ = nic.reject(conn, RejReason::CONSUMER, &[], now);
        }
    }

    /// Returns the number of groups that this replica is in.
    pub fn open(&self) -> usize {
        self.joined.values().filter(|joined| joined.open).count()
    }

    fn on_cm(&mut self, nic: &mut Rnic, event: &CmEvent, now: Nanos) {
        let conn = event.conn();
        match event {
            CmEvent::Requested { request, .. } => {
                let member = MemberRequest::from_bytes(&request.private_data);
                let member = member.filter(|_| self.join_reply != JoinReply::Reject);
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
        let size = self.groups.memory(seed) + u64::from(self.join_reply == JoinReply::ExtraByte);
        let (memory, mr) = nic.register_new(pd, size as usize, MEMORY_VA, Access::ALL).ok()?;
        let (count, each) = (self.groups.receives, self.groups.max_size.max(1));
        let receives = nic.register_new(pd, (count * each) as usize, RECEIVE_VA, Access::ALL).ok()?;
        let announced = if self.join_reply == JoinReply::NoMemory { 0 } else { size };
        let param = ConnParam {
            private_data: Region::new(MEMORY_VA, mr.0, announced).to_bytes(),
            min_rnr_timer: rocev2::aeth::RnrTimer(1),
            flow_control: true,
            ..ConnParam::default()
        };
        let qpn = nic.accept_new(conn, QpInit::rc(pd, cq, 1, count.max(1) as usize), param, now).ok()?;
        let script = self.groups.script(seed);
        let joined = Membership {
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
        for slot in 0..count {
            self.post(nic, &joined, slot.into());
        }
        self.joined.insert(conn, joined);
        Some(())
    }

    fn post(&self, nic: &mut Rnic, joined: &Membership, slot: u64) {
        let each = self.groups.max_size.max(1);
        let data = Sge { mr: joined.receives.1, va: RECEIVE_VA + slot * u64::from(each), len: each };
        // Fails for a queue pair in the error state.
        _ = nic.post_recv(joined.qpn, RecvRequest { id: slot, data: Some(data) });
    }

    fn on_completion(&mut self, nic: &mut Rnic, done: &Completion) {
        let each = self.groups.max_size.max(1) as usize;
        let Some(joined) = self.joined.values_mut().find(|joined| joined.qpn == done.qpn) else { return };
        if done.status != Status::Success {
            return;
        }
        // Messages arrive in the order of the script.
        let op = joined.script.iter().filter(|op| op.kind != Kind::Write).nth(joined.messages as usize);
        joined.messages += 1;
        let bytes = &nic.bytes(joined.receives.0)[done.id as usize * each..];
        let expected = op.is_some_and(|op| match op.kind {
            Kind::Send => {
                done.len == op.len
                    && bytes[..op.len as usize] == pattern(!joined.seed, op.messages.into(), op.len as usize)
            }
            Kind::WriteImm | Kind::Write => done.immediate == Some(op.messages),
        });
        if !expected {
            let wrong = format!("message {} should be {op:?}, but arrived as {done:?}", joined.messages - 1);
            self.shared.report(wrong);
            return;
        }
        let qpn = done.qpn;
        if let Some(joined) = self.joined.values().find(|joined| joined.qpn == qpn) {
            self.post(nic, joined, done.id);
        }
    }

    /// Returns whether this replica holds an operation of a group, or held it when it crashed; a message
    /// counts only with all messages before it. `qpn` selects one connection: a replica may have joined a
    /// group twice if the switch crashed in between.
    pub(super) fn holds(&self, seed: u64, qpn: Option<Qpn>, op: &Op) -> bool {
        let all = self.joined.values().chain(&self.before_crash);
        all.filter(|joined| joined.seed == seed && qpn.is_none_or(|qpn| joined.qpn == qpn)).any(|joined| {
            let written = joined.written >= op.at + u64::from(op.len);
            match op.kind {
                Kind::Write => written,
                Kind::WriteImm => written && joined.messages > op.messages,
                Kind::Send => joined.messages > op.messages,
            }
        })
    }

    /// Reports a byte of memory that differs from what its group wrote.
    pub fn check_memory(&self, nic: &Rnic) -> Option<String> {
        self.joined.values().find_map(|joined| {
            let at = differs(nic.bytes(joined.memory), joined.seed, joined.written as usize)?;
            Some(format!(
                "queue pair {}: byte {at} of the memory differs from what the leader wrote",
                joined.qpn
            ))
        })
    }
}

/// Returns the offset of the first wrong byte of a group's memory: the first `written` bytes have to be the
/// group's, all others zero.
fn differs(memory: &[u8], seed: u64, written: usize) -> Option<usize> {
    let expected = pattern(seed, 0, written).into_iter().chain(core::iter::repeat(0));
    memory.iter().zip(expected).position(|(is, expected)| *is != expected)
}

impl App for ReplicaApp {
    fn start(&mut self, nic: &mut Rnic, _now: Nanos) {
        let pd = nic.alloc_pd();
        self.resources = nic.create_cq(1 << 12).ok().map(|cq| (pd, cq));
        self.before_crash.extend(core::mem::take(&mut self.joined).into_values());
        // Cannot fail: the port of a new NIC is free.
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
    fn differs_finds_holes_and_wrong_bytes() {
        let whole = pattern(7, 0, 100);
        let with = |at: usize, byte: u8| {
            let mut memory = whole.clone();
            memory.resize(120, 0);
            memory[at] = byte;
            memory
        };
        assert_eq!(differs(&with(110, 0), 7, 100), None);
        assert_eq!(differs(&with(50, 0), 7, 50), Some(51), "bytes after a hole");
        assert_eq!(differs(&with(50, whole[50] ^ 1), 7, 100), Some(50), "a wrong byte");
        assert_eq!(differs(&with(99, 0), 7, 100), Some(99), "a byte missing at the end");
        assert_eq!(differs(&with(110, 1), 7, 100), Some(110), "a byte too much");
    }
}
