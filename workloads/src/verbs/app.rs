//! The application of a host: its ends of connections, and the memory that they share.

use super::end::{
    Atomic, Connection, Context, End, LANDING_VA, Memory, PATTERN_VA, PeerMemory, RECEIVE_VA, TARGET_VA,
    WORDS_VA,
};
use super::unreliable::Unreliable;
use super::workload::{Shared, Verb, Verbs};
use core::sync::atomic::Ordering::Relaxed;
use rnic::{
    Access, Buffer, Completion, CompletionOpcode, Cq, Modify, Mr, Pd, QpInit, ReadyToSend, RecvRequest, Rnic,
    Sge, Srq, Status, Transport,
};
use rocev2::Qpn;
use sim::{App, Host};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use switch::{Nanos, Rng};

/// Capacity of the completion queue
const COMPLETIONS: usize = 1 << 16;

/// Objects created on the NIC by the first end.
#[derive(Debug)]
struct Resources {
    pd: Pd,
    cq: Cq,
    pattern: Mr,
    words: (Buffer, Mr),
    shared_receives: Option<(Srq, Receives)>,
}

/// Receive requests with the memory of each.
#[derive(Clone, Copy, Debug)]
struct Receives {
    buffer: Buffer,
    mr: Mr,
    count: u32,
    size: u32,
}

impl Receives {
    fn new(nic: &mut Rnic, pd: Pd, verbs: &Verbs) -> Self {
        let (count, size) = (verbs.receives, verbs.max_size);
        let (buffer, mr) = memory(nic, pd, vec![0; count as usize * size as usize], RECEIVE_VA);
        Self { buffer, mr, count, size }
    }

    fn request(&self, slot: u32) -> RecvRequest {
        let va = RECEIVE_VA + u64::from(slot) * u64::from(self.size);
        RecvRequest { id: slot.into(), data: Some(Sge { mr: self.mr, va, len: self.size }) }
    }

    fn bytes<'a>(&self, nic: &'a Rnic, slot: u64, len: u32) -> &'a [u8] {
        let len = len.min(self.size) as usize;
        &nic.bytes(self.buffer)[slot as usize * self.size as usize..][..len]
    }
}

/// The part of one host in the workload.
#[derive(Debug)]
pub struct VerbsApp {
    verbs: Verbs,
    shared: Arc<Shared>,
    pattern: Arc<[u8]>,
    may_fail: bool,
    resources: Option<Resources>,
    ends: Vec<End>,
    /// UC ends by queue pair number, with the receive requests of each
    unreliable: BTreeMap<u32, (Unreliable, Receives)>,
    receives: Vec<Option<Receives>>,
    by_qpn: BTreeMap<u32, usize>,
    /// Atomics on other hosts' words, by host
    atomics: Vec<Vec<Atomic>>,
    /// Receive requests to be posted again: due time and serial number, then the end and the slot
    reposts: BTreeMap<(Nanos, u64), (usize, u32)>,
    repost_count: u64,
    rng: Rng,
    wrong: Option<String>,
    ready_ends: VecDeque<usize>,
    /// When access rights are to be revoked
    revoke_at: Option<Nanos>,
    revoked: Option<Revoked>,
    /// Number of the connection whose rights were revoked
    revoked_connection: Option<u64>,
}

/// Memory to which the other end's access was revoked.
#[derive(Debug)]
struct Revoked {
    target: Buffer,
    /// Contents at that time
    contents: Vec<u8>,
    /// Memory registered at the same address afterwards, whose key no other host has
    replacement: Option<Buffer>,
}

impl VerbsApp {
    pub(super) fn new(
        verbs: &Verbs,
        seed: u64,
        host: usize,
        pattern: Arc<[u8]>,
        shared: Arc<Shared>,
        may_fail: bool,
    ) -> Self {
        Self {
            verbs: verbs.clone(),
            shared,
            pattern,
            may_fail,
            resources: None,
            ends: Vec::new(),
            unreliable: BTreeMap::new(),
            receives: Vec::new(),
            by_qpn: BTreeMap::new(),
            atomics: Vec::new(),
            reposts: BTreeMap::new(),
            repost_count: 0,
            rng: Rng::stream(seed, 0x7265_7600 + host as u64),
            wrong: None,
            ready_ends: VecDeque::new(),
            revoke_at: None,
            revoked: None,
            revoked_connection: None,
        }
    }

    /// Returns the first violation, if any.
    pub fn wrong(&self) -> Option<&str> {
        self.wrong.as_deref()
    }

    /// Returns the number of completed operations, in the order of [`Verb::ALL`].
    pub fn totals(&self) -> [u64; Verb::ALL.len()] {
        self.ends.iter().fold([0; Verb::ALL.len()], |mut sum, end| {
            sum.iter_mut().zip(end.totals).for_each(|(sum, n)| *sum += n);
            sum
        })
    }

    /// Returns the number of ends whose connection has failed.
    pub fn broken(&self) -> usize {
        self.ends.iter().filter(|end| end.is_broken()).count()
    }

    pub(super) fn ends(&self) -> &[End] {
        &self.ends
    }

    pub(super) fn words(&self) -> u32 {
        self.verbs.words
    }

    /// Returns the value of a word of this host.
    pub(super) fn word(&self, nic: &Rnic, word: u32) -> u64 {
        let Some(resources) = &self.resources else { return 0 };
        let bytes = &nic.bytes(resources.words.0)[word as usize * 8..];
        bytes.first_chunk().map_or(0, |word| u64::from_le_bytes(*word))
    }

    /// Returns the atomics of this host on the words of `host`.
    pub(super) fn atomics_of(&self, host: usize) -> &[Atomic] {
        self.atomics.get(host).map_or(&[], Vec::as_slice)
    }

    /// Reports completions that are left over.
    pub(super) fn check_left_over(&self, nic: &Rnic) -> Option<String> {
        let resources = self.resources.as_ref()?;
        nic.cq_has_completions(resources.cq)
            .then(|| "completions are left in the queue at the end".to_owned())
    }

    fn resources(&mut self, nic: &mut Rnic) -> (Pd, Cq, Mr, Mr, Option<Srq>) {
        let resources = self.resources.get_or_insert_with(|| {
            let pd = nic.alloc_pd();
            let cq = nic.create_cq(COMPLETIONS).expect("the NIC has room for a completion queue");
            let pattern = memory(nic, pd, self.pattern.to_vec(), PATTERN_VA).1;
            let words = memory(nic, pd, vec![0; self.verbs.words as usize * 8], WORDS_VA);
            let shared_receives = self.verbs.srq.then(|| {
                let count = self.verbs.receives as usize;
                (
                    nic.create_srq(count).expect("the NIC has room for a shared receive queue"),
                    Receives::new(nic, pd, &self.verbs),
                )
            });
            Resources { pd, cq, pattern, words, shared_receives }
        });
        let srq = resources.shared_receives.map(|(srq, _)| srq);
        (resources.pd, resources.cq, resources.pattern, resources.words.1, srq)
    }

    /// Creates a queue pair. Returns its number and the keys for the other end.
    pub(super) fn add_end(&mut self, nic: &mut Rnic, connection: Connection) -> (Qpn, PeerMemory) {
        let peer_host = connection.peer_host;
        let (pd, cq, pattern, words, srq) = self.resources(nic);
        let verbs = &self.verbs;
        let qpn = queue_pair(nic, Transport::Rc, pd, cq, srq, verbs);
        let (target, target_mr) = memory(nic, pd, vec![0; verbs.max_size as usize], TARGET_VA);
        let landing = vec![0; verbs.depth as usize * verbs.max_size.max(8) as usize];
        let landing = memory(nic, pd, landing, LANDING_VA);
        let own = Memory { pattern, target: (target, target_mr), landing };
        self.receives.push(if srq.is_none() { Some(Receives::new(nic, pd, verbs)) } else { None });
        self.by_qpn.insert(qpn.get(), self.ends.len());
        self.ends.push(End::new(verbs, qpn, own, connection));
        if self.atomics.len() <= peer_host {
            self.atomics.resize(peer_host + 1, Vec::new());
        }
        self.shared.ends.fetch_add(1, Relaxed);
        (qpn, PeerMemory { target: target_mr, words })
    }

    /// Creates a queue pair of an unreliable connection. Returns its number and the keys for the other end.
    pub(super) fn add_unreliable(&mut self, nic: &mut Rnic, seeds: [u64; 2]) -> (Qpn, PeerMemory) {
        let (pd, cq, pattern, words, _) = self.resources(nic);
        let verbs = &self.verbs;
        let qpn = queue_pair(nic, Transport::Uc, pd, cq, None, verbs);
        let (target, target_mr) = memory(nic, pd, vec![0; verbs.max_size as usize], TARGET_VA);
        let end = Unreliable::new(verbs, qpn, seeds, pattern, target);
        self.unreliable.insert(qpn.get(), (end, Receives::new(nic, pd, verbs)));
        self.shared.ends.fetch_add(1, Relaxed);
        (qpn, PeerMemory { target: target_mr, words })
    }

    pub(super) fn connected(&mut self, qpn: Qpn, peer: PeerMemory) {
        if let Some((end, _)) = self.unreliable.get_mut(&qpn.get()) {
            end.connect(peer);
            return;
        }
        let end = self.by_qpn[&qpn.get()];
        self.ends[end].connect(peer);
    }

    /// Posts the receive requests and the first requests.
    pub(super) fn begin(&mut self, nic: &mut Rnic, now: Nanos) {
        if let Some(Resources { shared_receives: Some((_, receives)), .. }) = &self.resources {
            for slot in 0..receives.count {
                self.repost(nic, 0, slot);
            }
        }
        for end in 0..self.ends.len() {
            if let Some(receives) = self.receives[end] {
                for slot in 0..receives.count {
                    self.repost(nic, end, slot);
                }
            }
            self.ready_ends.push_back(end);
        }
        for (end, receives) in self.unreliable.values() {
            for slot in 0..receives.count {
                nic.post_recv(end.qpn, receives.request(slot))
                    .expect("a new queue pair has room for its receive requests");
            }
        }
        if self.verbs.revoke_us > 0 {
            self.revoke_at = Some(now + Nanos(self.rng.below(u64::from(self.verbs.revoke_us) * 1000)));
        }
        self.run(nic, now);
    }

    /// Revokes the access of the other end of one connection: deregisters the region and registers another
    /// one at the same address, or removes all remote access from the queue pair.
    fn revoke(&mut self, nic: &mut Rnic) {
        let (Some(resources), false) = (&self.resources, self.ends.is_empty()) else { return };
        let end = &self.ends[self.rng.below(self.ends.len() as u64) as usize];
        let (target, mr) = (end.target(), end.target_mr());
        let contents = nic.bytes(target).to_vec();
        let replacement = if self.rng.below(2) == 0 {
            nic.deregister(mr).expect("the region is registered");
            Some(memory(nic, resources.pd, vec![0; contents.len()], TARGET_VA).0)
        } else {
            // Fails if the queue pair is in the error state, which grants no access either.
            _ = nic.modify_qp(end.qpn, Modify::Access(Access::LOCAL_READ));
            None
        };
        self.revoked_connection = Some(end.connection);
        self.revoked = Some(Revoked { target, contents, replacement });
    }

    /// Reports a change of memory after the access to it was revoked.
    pub(super) fn check_revoked(&self, nic: &Rnic) -> Option<String> {
        let revoked = self.revoked.as_ref()?;
        let untouched =
            revoked.replacement.is_none_or(|buffer| nic.bytes(buffer).iter().all(|byte| *byte == 0));
        if !untouched {
            return Some("memory that replaced a deregistered region was written to".to_owned());
        }
        (nic.bytes(revoked.target) != revoked.contents)
            .then(|| "memory was written to after the right to it was taken away".to_owned())
    }

    /// Reports a connection that failed without a cause: neither revoked rights nor a limit of retries.
    pub(super) fn check_failures(&self, apps: &[&Host<Self>]) -> Option<String> {
        let limited = self.verbs.retry_count != ReadyToSend::NO_LIMIT;
        let is_explained = |end: &End| {
            let refused =
                [self, &apps[end.peer_host].app].map(|app| app.revoked_connection == Some(end.connection));
            end.failed.is_none_or(|status| explains(status, limited, refused))
        };
        let end = self.ends.iter().find(|end| !is_explained(end))?;
        Some(format!(
            "queue pair {}: failed with {:?}: nothing that happened explains this status",
            end.qpn, end.failed
        ))
    }

    fn receives(&self, end: usize) -> Option<Receives> {
        let shared = self.resources.as_ref().and_then(|resources| resources.shared_receives);
        self.receives.get(end).copied().flatten().or(shared.map(|(_, receives)| receives))
    }

    fn repost(&mut self, nic: &mut Rnic, end: usize, slot: u32) {
        let Some(receives) = self.receives(end) else { return };
        let request = receives.request(slot);
        let shared = self.resources.as_ref().and_then(|resources| resources.shared_receives);
        let result = match shared {
            Some((srq, _)) => nic.post_srq_recv(srq, request),
            None => nic.post_recv(self.ends[end].qpn, request),
        };
        if let Err(error) = result
            && !self.may_fail
        {
            self.fail(format!("a receive request cannot be posted: {error}"));
        }
    }

    fn fail(&mut self, wrong: String) {
        self.shared.wrong.store(true, Relaxed);
        self.wrong.get_or_insert(wrong);
    }

    /// Handles a completion of an unreliable connection. Posts a used receive request again at once.
    fn on_unreliable(&mut self, nic: &mut Rnic, completion: &Completion) -> Result<(), String> {
        let Some((end, receives)) = self.unreliable.get_mut(&completion.qpn.get()) else { return Ok(()) };
        if !matches!(completion.opcode, CompletionOpcode::Recv | CompletionOpcode::RecvWriteImm) {
            return end.on_sent(completion);
        }
        let bytes = receives.bytes(nic, completion.id, completion.len);
        end.on_received(completion, bytes, nic, &self.pattern)?;
        if end.has_failed {
            return Ok(());
        }
        let request = receives.request(completion.id as u32);
        nic.post_recv(end.qpn, request)
            .map_err(|error| format!("a receive request cannot be posted: {error}"))
    }

    /// Posts requests of the unreliable connections, and counts those that are finished.
    fn run_unreliable(&mut self, nic: &mut Rnic) {
        let mut wrong = None;
        for (end, _) in self.unreliable.values_mut().filter(|(end, _)| !end.counted) {
            wrong = end.post(nic, &self.pattern).err().or(wrong);
            if end.is_done() {
                end.counted = true;
                self.shared.done.fetch_add(1, Relaxed);
            }
        }
        if let Some(wrong) = wrong {
            self.fail(wrong);
        }
    }

    fn on_completion(&mut self, nic: &mut Rnic, completion: &Completion, now: Nanos) {
        if let Err(wrong) = self.on_unreliable(nic, completion) {
            self.fail(format!("queue pair {}: {wrong}", completion.qpn));
        }
        let Some(&number) = self.by_qpn.get(&completion.qpn.get()) else { return };
        let receives = self.receives(number);
        let end = &mut self.ends[number];
        let mut context = Context {
            nic,
            shared: &self.shared,
            pattern: &self.pattern,
            atomics: &mut self.atomics[end.peer_host],
            may_fail: self.may_fail,
        };
        let is_receive = matches!(completion.opcode, CompletionOpcode::Recv | CompletionOpcode::RecvWriteImm);
        let result = if is_receive {
            let bytes =
                receives.map(|receives| receives.bytes(context.nic, completion.id, completion.len).to_vec());
            end.on_received(completion, &bytes.unwrap_or_default(), &mut context)
        } else {
            end.on_sent(completion, &mut context)
        };
        let qpn = end.qpn;
        if let Err(wrong) = result {
            self.fail(format!("queue pair {qpn}: {wrong}"));
        }
        // A failed queue pair would flush its own receive requests at once.
        let is_shared = self.receives.get(number).is_some_and(Option::is_none);
        if is_receive && (is_shared || completion.status == Status::Success) {
            let after = Nanos(self.rng.below(u64::from(self.verbs.repost_us) * 1000 + 1));
            if after == Nanos::ZERO {
                self.repost(nic, number, completion.id as u32);
            } else {
                self.repost_count += 1;
                self.reposts.insert((now + after, self.repost_count), (number, completion.id as u32));
            }
        }
        self.ready_ends.push_back(number);
    }
}

/// Returns whether a queue pair may fail with this status if retries are limited, or if its own end or the
/// other end has revoked access rights.
const fn explains(status: Status, limited: bool, [own, other]: [bool; 2]) -> bool {
    match status {
        Status::RetryExceeded => limited,
        // The other end requested an access that was revoked here.
        Status::Flushed => own,
        Status::RemoteAccess | Status::RemoteInvalidRequest => other,
        _ => false,
    }
}

/// Creates a queue pair with all access rights.
fn queue_pair(nic: &mut Rnic, transport: Transport, pd: Pd, cq: Cq, srq: Option<Srq>, verbs: &Verbs) -> Qpn {
    let init = QpInit {
        transport,
        pd,
        send_cq: cq,
        recv_cq: cq,
        srq,
        max_send: verbs.depth as usize,
        max_recv: verbs.receives as usize,
    };
    let qpn = nic.create_qp(init).expect("the NIC has room for a queue pair");
    nic.modify_qp(qpn, Modify::Init { access: Access::ALL, qkey: 0 })
        .expect("a new queue pair can be initialized");
    qpn
}

impl App for VerbsApp {
    fn start(&mut self, _nic: &mut Rnic, _now: Nanos) {
        // No connection survives a crash; the other ends detect that by themselves.
        self.by_qpn.clear();
        self.unreliable.clear();
        self.resources = None;
        (self.revoke_at, self.revoked) = (None, None);
        self.reposts.clear();
        self.ready_ends.extend(0..self.ends.len());
    }

    fn crash(&mut self, _nic: &Rnic) {
        for end in &self.ends {
            end.set_broken();
        }
        for (end, _) in self.unreliable.values_mut() {
            end.has_failed = true;
            // Counted here, because the host may never restart.
            if !core::mem::replace(&mut end.counted, true) {
                self.shared.done.fetch_add(1, Relaxed);
            }
        }
    }

    fn run(&mut self, nic: &mut Rnic, now: Nanos) {
        while let Some(due) = self.reposts.first_entry().filter(|entry| entry.key().0 <= now) {
            let (end, slot) = due.remove();
            self.repost(nic, end, slot);
        }
        if self.revoke_at.is_some_and(|at| at <= now) {
            self.revoke_at = None;
            self.revoke(nic);
        }
        if let Some(cq) = self.resources.as_ref().map(|resources| resources.cq) {
            while let Some(completion) = nic.poll_cq(cq) {
                self.on_completion(nic, &completion, now);
            }
        }
        while nic.poll_event().is_some() {}
        self.run_unreliable(nic);
        while let Some(number) = self.ready_ends.pop_front() {
            let end = &mut self.ends[number];
            let mut context = Context {
                nic,
                shared: &self.shared,
                pattern: &self.pattern,
                atomics: &mut self.atomics[end.peer_host],
                may_fail: self.may_fail,
            };
            let result = end.post(&mut context);
            if end.is_done() && !end.counted {
                end.mark_finished();
                self.shared.done.fetch_add(1, Relaxed);
            }
            if let Err(wrong) = result {
                self.fail(wrong);
            }
        }
    }

    fn next_timer(&self) -> Option<Nanos> {
        let repost = self.reposts.first_key_value().map(|((at, _), _)| *at);
        [repost, self.revoke_at].into_iter().flatten().min()
    }
}

impl End {
    /// Reports a difference between the model and the memory of the other host that this end wrote to.
    pub(super) fn check_memory(&self, other: &Rnic, others: &VerbsApp, number: usize) -> Option<String> {
        let theirs =
            others.ends.iter().find(|end| end.peer_host == number && end.connection == self.connection)?;
        self.check_target(other.bytes(theirs.target()))
    }
}

impl VerbsApp {
    /// Finishes the ends of connections whose other end has failed.
    pub fn notify_broken(&mut self, nic: &mut Rnic, now: Nanos) {
        for (number, end) in self.ends.iter().enumerate() {
            if end.is_broken() && !end.counted {
                self.ready_ends.push_back(number);
            }
        }
        self.run(nic, now);
    }
}

/// Allocates a buffer, and registers a region on all of it.
fn memory(nic: &mut Rnic, pd: rnic::Pd, bytes: Vec<u8>, va: u64) -> (rnic::Buffer, rnic::Mr) {
    let len = bytes.len();
    let buffer = nic.alloc(bytes).expect("the NIC has room for a buffer");
    (buffer, nic.register(pd, buffer, 0..len, va, Access::ALL).expect("the NIC has room for a region"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_revocations_and_retry_limits_explain_failures() {
        assert!(explains(Status::RetryExceeded, true, [false; 2]));
        assert!(!explains(Status::RetryExceeded, false, [true; 2]));
        for refusal in [Status::RemoteAccess, Status::RemoteInvalidRequest] {
            assert!(explains(refusal, false, [false, true]));
            assert!(!explains(refusal, true, [true, false]));
        }
        assert!(explains(Status::Flushed, false, [true, false]));
        assert!(!explains(Status::Flushed, true, [false, true]));
        for status in
            [Status::BadResponse, Status::RemoteOperation, Status::LocalProtection, Status::LocalLength]
        {
            assert!(!explains(status, true, [true; 2]));
        }
    }
}
