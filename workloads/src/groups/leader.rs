//! A leader: requests its groups from the switch, and executes the script of each.

use super::replica::ReplicaApp;
use super::workload::{Groups, Kind, LIST, Op, REPLICA_PORT, SWITCH_PORT, SharedGroups, pattern, seed_of};
use core::cell::Cell;
use core::net::IpAddr;
use core::sync::atomic::Ordering::Relaxed;
use p4ce::wire::{GroupRequest, Refusal, Region, Replicas};
use rnic::cm::{Conn, Event as CmEvent, PortSpace, service_id_of};
use rnic::{Completion, ConnParam, Cq, Data, Operation, QpInit, Remote, Rnic, SendRequest, Status};
use rocev2::Qpn;
use sim::{App, Host};
use std::collections::BTreeMap;
use std::sync::Arc;
use switch::Nanos;

/// State or result of a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Requested from the switch
    Requested,
    /// In use
    Open,
    /// Finished: all operations were acknowledged
    Done,
    /// Rejected by the switch
    Refused(Option<Refusal>),
    /// The connection failed or could not be established
    Failed(String),
}

#[derive(Debug)]
struct Session {
    qpn: Qpn,
    conn: Option<Conn>,
    seed: u64,
    script: Vec<Op>,
    rkey: u32,
    posted: usize,
    done: usize,
    /// Number of acknowledged operations that were checked
    checked: Cell<usize>,
    outcome: Outcome,
}

/// The application of a leader.
#[derive(Debug)]
pub struct LeaderApp {
    groups: Groups,
    seed: u64,
    own_ip: IpAddr,
    switch: IpAddr,
    replicas: Vec<IpAddr>,
    shared: Arc<SharedGroups>,
    cq: Option<Cq>,
    sessions: Vec<Session>,
    by_qpn: BTreeMap<u32, usize>,
}

impl LeaderApp {
    pub(super) fn new(
        groups: Groups,
        seed: u64,
        own_ip: IpAddr,
        switch: IpAddr,
        replicas: Vec<IpAddr>,
        shared: Arc<SharedGroups>,
    ) -> Self {
        Self {
            groups,
            seed,
            own_ip,
            switch,
            replicas,
            shared,
            cq: None,
            sessions: Vec::new(),
            by_qpn: BTreeMap::new(),
        }
    }

    /// Returns the state of each group.
    pub fn outcomes(&self) -> impl Iterator<Item = &Outcome> {
        self.sessions.iter().map(|session| &session.outcome)
    }

    /// Returns the leader's address and queue pair for each group, the state of the group, and whether one of
    /// these replicas has revoked the right to write.
    pub fn outcomes_and_rights<'a>(
        &'a self,
        replicas: &'a [&Host<ReplicaApp>],
    ) -> impl Iterator<Item = ((IpAddr, Qpn), &'a Outcome, bool)> {
        let revoked = |seed| replicas.iter().any(|replica| replica.app.has_revoked(seed));
        let end = move |session: &Session| (self.own_ip, session.qpn);
        self.sessions.iter().map(move |session| (end(session), &session.outcome, revoked(session.seed)))
    }

    /// Returns the number of acknowledged operations of all groups.
    pub fn done(&self) -> u64 {
        self.sessions.iter().map(|session| session.done as u64).sum()
    }

    fn quorum(&self) -> usize {
        match self.groups.quorum {
            0 => self.replicas.len().div_ceil(2),
            quorum => quorum.into(),
        }
    }

    /// Checks the operations that were acknowledged since the last call. Reports the first one that no quorum
    /// of these replicas holds, or held when they crashed.
    pub fn check(&self, replicas: &[&Host<ReplicaApp>]) -> Option<String> {
        let quorum = self.quorum();
        for session in &self.sessions {
            for op in &session.script[session.checked.get()..session.done] {
                let holds = |replica: &&&Host<ReplicaApp>| replica.app.holds(session.seed, None, op);
                let holders = replicas.iter().filter(holds).count();
                if holders < quorum {
                    return Some(format!(
                        "{op:?} is acknowledged without a quorum: held by {holders} of {quorum}"
                    ));
                }
            }
            session.checked.set(session.done);
        }
        None
    }

    /// Reports an operation that a replica of this group lacks although the switch counts it as held there.
    /// `replicas` are all replicas that the leader names, in this order.
    pub fn check_group(&self, group: &p4ce::Group, replicas: &[&Host<ReplicaApp>]) -> Option<String> {
        let (config, leader) = (group.config(), group.config().leader);
        let session = &self.sessions[*self.by_qpn.get(&leader.remote_qp.get())?];
        (0..).zip(&config.replicas).find_map(|(member, replica)| {
            let mut packets = group.gather().acked(member)?.distance(leader.first) + 1;
            let complete = session.script.iter().take_while(|op| {
                packets -= op.len.div_ceil(self.groups.mtu.bytes() as u32).max(1) as i32;
                packets >= 0
            });
            let at = self.replicas.iter().position(|ip| *ip == replica.peer.remote)?;
            let app = &replicas[at].app;
            let mut missing =
                complete.filter(|op| !app.holds(session.seed, Some(replica.peer.remote_qp), op));
            missing
                .next()
                .map(|op| format!("replica {at} is taken to hold {op:?} by the switch, but does not hold it"))
        })
    }

    /// Returns whether this is the leader of a group.
    pub fn leads(&self, group: &p4ce::Group) -> bool {
        group.config().leader.remote == self.own_ip
    }

    fn open(&mut self, nic: &mut Rnic, number: usize, now: Nanos) -> Option<()> {
        let cq = self.cq?;
        let seed = seed_of(self.seed, self.own_ip, number as u16);
        let pd = nic.alloc_pd();
        let init = QpInit::rc(pd, cq, self.groups.depth.max(1) as usize, 1);
        let qpn = nic.create_qp(init).ok()?;
        let request = |replicas| GroupRequest {
            replicas,
            quorum: self.groups.quorum,
            port: REPLICA_PORT,
            outvote: self.groups.outvote,
        };
        // More replicas than a request has space for are named by the number of a list.
        let listed = request(Replicas::Listed(self.replicas.clone())).to_bytes();
        let mut private_data = listed.or_else(|_| request(Replicas::Configured(LIST)).to_bytes()).ok()?;
        if (number as u32).checked_rem(self.groups.other_versions) == Some(0) {
            // The version follows two bytes of magic.
            private_data[2] += 1;
        }
        let param = ConnParam {
            private_data,
            src_port: number as u16,
            ack_timeout: self.groups.timeout,
            retry_count: self.groups.retry_count,
            flow_control: true,
            ..ConnParam::default()
        };
        let conn = nic.connect(qpn, self.switch, service_id_of(PortSpace::Tcp, SWITCH_PORT), param, now).ok();
        self.by_qpn.insert(qpn.get(), number);
        self.sessions.push(Session {
            qpn,
            conn,
            seed,
            script: self.groups.script(seed),
            rkey: 0,
            posted: 0,
            done: 0,
            checked: Cell::new(0),
            outcome: Outcome::Requested,
        });
        Some(())
    }

    fn on_cm(&mut self, nic: &mut Rnic, event: &CmEvent) {
        let conn = event.conn();
        let Some(number) = self.sessions.iter().position(|session| session.conn == Some(conn)) else {
            return;
        };
        let session = &mut self.sessions[number];
        match event {
            CmEvent::Replied { reply, .. } => match Region::from_private_data(&reply.private_data) {
                Some(region) if region.va() == 0 => {
                    session.rkey = region.rkey();
                    session.outcome = Outcome::Open;
                    self.post(nic, number);
                }
                _ => self.finish(number, Outcome::Failed("the switch's reply names no memory".into())),
            },
            CmEvent::Rejected { private_data, .. } => {
                let refusal = Refusal::from_bytes(private_data);
                self.finish(number, Outcome::Refused(refusal));
            }
            event if event.is_last() => self.finish(number, Outcome::Failed(format!("{event:?}"))),
            _ => {}
        }
    }

    fn finish(&mut self, number: usize, outcome: Outcome) {
        let session = &mut self.sessions[number];
        if matches!(session.outcome, Outcome::Requested | Outcome::Open) {
            session.outcome = outcome;
            self.shared.done.fetch_add(1, Relaxed);
        }
    }

    fn post(&mut self, nic: &mut Rnic, number: usize) {
        let depth = self.groups.depth.max(1) as usize;
        let session = &mut self.sessions[number];
        while session.outcome == Outcome::Open
            && session.posted < session.script.len()
            && session.posted - session.done < depth
        {
            let op = session.script[session.posted];
            let len = op.len as usize;
            let remote = Remote { va: op.at, rkey: session.rkey };
            let (operation, bytes) = match op.kind {
                Kind::Write => (Operation::Write(remote), pattern(session.seed, op.at, len)),
                Kind::WriteImm => {
                    (Operation::WriteImm(remote, op.messages), pattern(session.seed, op.at, len))
                }
                Kind::Send => (Operation::Send, pattern(!session.seed, op.messages.into(), len)),
            };
            let request = SendRequest::new(session.posted as u64, operation, Data::Inline(bytes));
            if let Err(error) = nic.post_send(session.qpn, request) {
                self.finish(number, Outcome::Failed(error.to_string()));
                return;
            }
            session.posted += 1;
        }
        if session.done == session.script.len() {
            self.finish(number, Outcome::Done);
        }
    }

    fn on_completion(&mut self, nic: &mut Rnic, done: &Completion) {
        let Some(number) = self.by_qpn.get(&done.qpn.get()).copied() else { return };
        let session = &mut self.sessions[number];
        if done.status != Status::Success {
            self.finish(number, Outcome::Failed(format!("{:?}", done.status)));
        } else if done.id == session.done as u64 {
            session.done += 1;
            self.shared.check_needed.store(true, Relaxed);
            self.post(nic, number);
        } else {
            let wrong = format!("operation {} completed, but operation {} is next", done.id, session.done);
            self.shared.report(wrong);
        }
    }

    /// Disconnects all groups.
    pub fn disconnect(&mut self, nic: &mut Rnic, now: Nanos) {
        for session in &self.sessions {
            if let Some(conn) = session.conn {
                // Fails for groups that are over.
                _ = nic.disconnect(conn, &[], now);
            }
        }
    }
}

impl App for LeaderApp {
    fn start(&mut self, nic: &mut Rnic, now: Nanos) {
        // A leader that restarts after a crash gives up its groups.
        if !self.sessions.is_empty() {
            for number in 0..self.sessions.len() {
                self.finish(number, Outcome::Failed("the leader crashed".into()));
            }
            return;
        }
        self.cq = nic.create_cq(1 << 12).ok();
        for number in 0..self.groups.groups as usize {
            self.open(nic, number, now);
        }
    }

    fn run(&mut self, nic: &mut Rnic, _now: Nanos) {
        while let Some(event) = nic.poll_cm_event() {
            self.on_cm(nic, &event);
        }
        if let Some(cq) = self.cq {
            while let Some(done) = nic.poll_cq(cq) {
                self.on_completion(nic, &done);
            }
        }
        while nic.poll_event().is_some() {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rnic::{CompletionOpcode, Interface};

    #[test]
    fn completions_out_of_order_are_reported() {
        let (own_ip, switch) = ([10, 0, 0, 1].into(), [10, 0, 0, 2].into());
        let mut nic =
            Rnic::new(rnic::Config::new(Interface::new(rocev2::ethernet::MacAddr([2; 6]), own_ip, 24)));
        let shared = Arc::new(SharedGroups::default());
        let mut leader =
            LeaderApp::new(Groups::default(), 1, own_ip, switch, vec![[10, 0, 0, 3].into()], shared.clone());
        leader.start(&mut nic, Nanos::ZERO);
        let mut complete = |id| {
            let qpn = leader.sessions[0].qpn;
            let opcode = CompletionOpcode::Write;
            let (status, len) = (Status::Success, 0);
            let done = Completion {
                id,
                qpn,
                status,
                opcode,
                len,
                immediate: None,
                invalidated: None,
                from: None,
                solicited: false,
            };
            leader.on_completion(&mut nic, &done);
        };
        complete(0);
        assert_eq!(shared.wrong(), None);
        complete(2);
        assert_eq!(shared.wrong(), Some("operation 2 completed, but operation 1 is next"));
    }
}
