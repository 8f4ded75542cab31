//! Two peers send arbitrary input to a member of RDMC's groups, on connections that are open, closed and
//! opened again: messages, blocks with any immediate data, words, or nothing. The node does not panic. It
//! does not hold more resources because of peers than its groups can use. Completed messages have their
//! announced lengths. When its groups are over, it has released all resources.

use core::net::IpAddr;
use rdmc::{Algorithm, Config, Event, GroupConfig, MessageMemory, Node};
use rnic::cm::{Conn, Event as CmEvent, PortSpace};
use rnic::{
    Access, Buffer, CompletionOpcode, ConnParam, Cq, Data, Interface, Modify, Mr, Operation, Path, PathMtu,
    Pd, QpInit, ReadyToReceive, ReadyToSend, RecvRequest, Remote, Rnic, SendRequest, Sge, Status,
};
use rocev2::aeth::RnrTimer;
use rocev2::ethernet::MacAddr;
use rocev2::{Psn, Qpn};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use switch::Nanos;

/// Between the peers' addresses, so that it requests a connection from one peer, and accepts one from the
/// other
const OWN: u8 = 2;
const PEERS: [u8; 2] = [1, 3];
/// Bytes of a message between nodes
const LEN: usize = 48;
const HELLO: [u8; 4] = [b'R', b'D', 2, 0];
const BLOCK: u32 = 64;
/// The longest message for which there is memory
const MAX_MESSAGE: u32 = 4096;
const GROUPS: [u32; 2] = [7, 8];
const CONNECTIONS: usize = 8;
const VA: u64 = 0x10_0000;

fn ip(n: u8) -> IpAddr {
    [10, 0, 0, n].into()
}

fn nic(n: u8) -> Rnic {
    let mut interface = Interface::new(MacAddr([2, 0, 0, 0, 0, n]), ip(n), 24);
    interface.neighbours =
        (1..=3).filter(|&m| m != n).map(|m| (ip(m), MacAddr([2, 0, 0, 0, 0, m]))).collect();
    Rnic::new(rnic::Config { max_qps: 32, max_regions: 64, seed: n.into(), ..rnic::Config::new(interface) })
}

/// Announcement of the node when it created a group
#[derive(Clone, Copy)]
struct Announced {
    agreement: u64,
    end: Option<(Qpn, Psn, Remote)>,
}

/// A peer that sends arbitrary messages.
struct Peer {
    own: u8,
    nic: Rnic,
    pd: Pd,
    cq: Cq,
    room: (Buffer, Mr),
    /// Connection for messages, which may still be in the process of being established
    connection: Option<(Qpn, Conn)>,
    /// Queue pair for blocks, by group
    blocks: BTreeMap<u32, Qpn>,
    announced: BTreeMap<u32, Announced>,
    /// Whether all frames to the peer are lost, and all that it sends
    drops_received: bool,
    drops_sent: bool,
}

impl Peer {
    fn new(own: u8) -> Self {
        let mut nic = nic(own);
        let pd = nic.alloc_pd();
        let cq = nic.create_cq(1 << 14).unwrap();
        let room = nic.register_new(pd, 64 * LEN, VA, Access::ALL).unwrap();
        nic.listen(PortSpace::Tcp, Config::PORT).unwrap();
        let (blocks, announced) = (BTreeMap::new(), BTreeMap::new());
        Self {
            own,
            nic,
            pd,
            cq,
            room,
            connection: None,
            blocks,
            announced,
            drops_received: false,
            drops_sent: false,
        }
    }

    fn queue_pair(&self) -> QpInit {
        QpInit::rc(self.pd, self.cq, 1024, 32)
    }

    fn receive_all(&mut self, qpn: Qpn) {
        for id in 0..32 {
            let sge = Sge { mr: self.room.1, va: VA + id * LEN as u64, len: LEN as u32 };
            _ = self.nic.post_recv(qpn, RecvRequest { id, data: Some(sge) });
        }
    }

    fn disconnect(&mut self, now: Nanos) {
        if let Some((qpn, conn)) = self.connection.take() {
            _ = self.nic.disconnect(conn, &[], now);
            _ = self.nic.destroy_qp(qpn);
        }
    }

    /// Requests a connection as a node does, or with other private data.
    fn connect(&mut self, hello: &[u8], now: Nanos) {
        self.disconnect(now);
        let param = ConnParam { private_data: hello.to_vec(), ..ConnParam::default() };
        let connected = self.nic.connect_new(self.queue_pair(), (ip(OWN), Config::PORT), param, now);
        self.connection = connected.ok();
        if let Some((qpn, _)) = self.connection {
            self.receive_all(qpn);
        }
    }

    /// Handles the peer's own events: accepts connections, and records what the node announces about groups.
    fn run(&mut self, now: Nanos) {
        while let Some(event) = self.nic.poll_cm_event() {
            let conn = event.conn();
            if let CmEvent::Requested { .. } = event {
                self.disconnect(now);
                if let Ok(qpn) = self.nic.accept_new(conn, self.queue_pair(), ConnParam::default(), now) {
                    self.receive_all(qpn);
                    self.connection = Some((qpn, conn));
                }
            } else if event.is_last() && self.connection.is_some_and(|(_, own)| own == conn) {
                self.disconnect(now);
            }
        }
        while let Some(done) = self.nic.poll_cq(self.cq) {
            let is_own_connection = self.connection.is_some_and(|(qpn, _)| qpn == done.qpn);
            if done.opcode != CompletionOpcode::Recv || done.status != Status::Success || !is_own_connection {
                continue;
            }
            assert_eq!(done.len as usize, LEN);
            let at = done.id as usize * LEN;
            let bytes: [u8; LEN] = self.nic.bytes(self.room.0)[at..at + LEN].try_into().unwrap();
            assert_eq!(bytes[..3], HELLO[..3]);
            let word = |at: usize| u32::from_be_bytes(bytes[at..at + 4].try_into().unwrap());
            let long = |at: usize| u64::from(word(at)) << 32 | u64::from(word(at + 4));
            if bytes[3] == 1 {
                let end = (Qpn::new(word(36)), Psn::new(word(40)), Remote { va: long(24), rkey: word(32) });
                let end = (word(36) != 0).then_some(end);
                self.announced.insert(word(4), Announced { agreement: long(16), end });
            }
            let sge = Sge { mr: self.room.1, va: VA + at as u64, len: LEN as u32 };
            _ = self.nic.post_recv(done.qpn, RecvRequest { id: done.id, data: Some(sge) });
        }
        while self.nic.poll_event().is_some() {}
    }

    fn send(&mut self, bytes: &[u8]) {
        if let Some((qpn, _)) = self.connection {
            _ = self.nic.post_send(qpn, SendRequest::new(0, Operation::Send, Data::Inline(bytes.to_vec())));
        }
    }

    /// Sends a message about a group, in the format of nodes.
    fn message(&mut self, kind: u8, group: u32, value: u64, rest: &[u8]) {
        let mut bytes = [0; LEN];
        bytes[..3].copy_from_slice(&HELLO[..3]);
        bytes[3] = kind;
        bytes[4..8].copy_from_slice(&group.to_be_bytes());
        bytes[8..16].copy_from_slice(&value.to_be_bytes());
        let len = rest.len().min(LEN - 16);
        bytes[16..16 + len].copy_from_slice(&rest[..len]);
        self.send(&bytes);
    }

    /// Announces that it has created a group, possibly with errors, and connects its queue pair for blocks.
    fn create(&mut self, group: u32, incarnation: u8, how: u8) {
        let Some(announced) = self.announced.get(&group).copied() else { return };
        if let Some(before) = self.blocks.remove(&group) {
            _ = self.nic.destroy_qp(before);
        }
        let mut rest = [0; 32];
        rest[..8].copy_from_slice(&(announced.agreement ^ u64::from(how & 0x40 != 0)).to_be_bytes());
        // The peer has a queue pair where one is expected, or not.
        let end = announced.end.filter(|_| how & 0x20 == 0);
        let is_wanted = end.is_some() || how & 0x10 != 0;
        let qpn = if is_wanted { self.nic.create_qp(self.queue_pair()).ok() } else { None };
        if let Some(qpn) = qpn {
            let psn = Psn::new(0xff_fff0);
            let va = if how & 8 == 0 { VA + 40 * LEN as u64 } else { u64::MAX - 4 };
            let mtu = if how & 4 == 0 { 1024u32 } else { how.into() };
            rest[8..16].copy_from_slice(&va.to_be_bytes());
            rest[16..20].copy_from_slice(&self.room.1.0.to_be_bytes());
            rest[20..24].copy_from_slice(&qpn.get().to_be_bytes());
            rest[24..28].copy_from_slice(&psn.get().to_be_bytes());
            rest[28..].copy_from_slice(&mtu.to_be_bytes());
            if let Some((dest_qp, sq_psn, _)) = end {
                let rtr = ReadyToReceive {
                    path: Path::new(ip(self.own), ip(OWN)),
                    dest_qp,
                    mtu: PathMtu::B1024,
                    rq_psn: psn,
                    max_dest_rd_atomic: 0,
                    min_rnr_timer: RnrTimer(1),
                };
                let rts = ReadyToSend {
                    sq_psn,
                    max_rd_atomic: 0,
                    timeout: 8,
                    retry_count: 2,
                    rnr_retry: 1,
                    flow_control: false,
                };
                let access = Access::ALL;
                for modify in [Modify::Init { access, qkey: 0 }, Modify::Rtr(rtr), Modify::Rts(rts)] {
                    self.nic.modify_qp(qpn, modify).unwrap();
                }
                self.receive_all(qpn);
            }
            self.blocks.insert(group, qpn);
        }
        self.message(1, group, incarnation.into(), &rest);
    }

    /// Posts an operation on a connection for blocks.
    fn block(&mut self, group: u32, operation: Operation, bytes: &[u8]) {
        if let Some(qpn) = self.blocks.get(&group) {
            let data = Data::Inline(bytes.to_vec());
            _ = self.nic.post_send(*qpn, SendRequest::new(1, operation, data));
        }
    }

    /// Returns the address to which this peer writes the number of blocks for which it is ready.
    fn word(&self, group: u32) -> Option<Remote> {
        self.announced.get(&group)?.end.map(|(_, _, at)| at)
    }
}

/// Memory that the node's application has lent to the node, and completed messages.
#[derive(Default)]
struct LentMemory {
    buffers: BTreeMap<u32, (Buffer, u32)>,
    complete: u64,
}

struct Host {
    nic: Rnic,
    node: Node,
    peers: [Peer; 2],
    now: Nanos,
    lent: Arc<Mutex<LentMemory>>,
    members: Vec<u8>,
    algorithm: Algorithm,
    /// Number of calls of the application
    calls: usize,
}

impl Host {
    fn new(how: u8) -> Self {
        let mut own = nic(OWN);
        let mut node = Node::new(Config {
            connections: CONNECTIONS,
            links: 4,
            ack_timeout: 8,
            retry_count: 3,
            create_timeout: Nanos::from_millis(50),
            probe_every: Nanos::from_millis(5),
            dead_after: Nanos::from_millis(30),
            attempt: Nanos::from_millis(2),
            seed: how.into(),
            ..Config::new(ip(OWN))
        });
        node.start(&mut own).unwrap();
        let members = [&[2, 1, 3][..], &[1, 2, 3], &[3, 2], &[1, 3, 2]][usize::from(how & 3)].to_vec();
        let all = [Algorithm::Pipeline, Algorithm::Chain, Algorithm::Tree, Algorithm::Sequential];
        let algorithm = all[usize::from(how >> 2 & 3)].clone();
        let peers = PEERS.map(Peer::new);
        let (now, lent) = (Nanos::ZERO, Arc::default());
        let mut host = Self { nic: own, node, peers, now, lent, members, algorithm, calls: 0 };
        // In most inputs, connections are open and a group is being created.
        if how & 16 == 0 {
            host.call(0, 0, 0);
            host.peers[1].connect(&HELLO, Nanos::ZERO);
            host.deliver_all();
        }
        host
    }

    /// Makes a call of the application.
    fn call(&mut self, what: u8, a: u8, b: u8) {
        self.calls += 1;
        let group = GROUPS[usize::from(a & 1)];
        let Self { nic, node, lent, now, .. } = self;
        let now = *now;
        match what % 7 {
            0 => {
                let config = GroupConfig {
                    algorithm: self.algorithm.clone(),
                    block_bytes: BLOCK,
                    max_in_flight: 1 + u32::from(a >> 1 & 3),
                    ..GroupConfig::new(group, self.members.iter().map(|n| ip(*n)).collect())
                };
                let (pd, lent_buffers) = (node.pd().unwrap(), Arc::clone(lent));
                let incoming = move |nic: &mut Rnic, len: u32| {
                    assert!(len > 0);
                    if len > MAX_MESSAGE {
                        return None;
                    }
                    let (buffer, mr) = nic.register_new(pd, len as usize, VA, Access::LOCAL_WRITE).ok()?;
                    lent_buffers.lock().unwrap().buffers.insert(mr.0, (buffer, len));
                    // An application may pass a wrong address of its memory.
                    Some(MessageMemory { mr, va: if len == 99 { VA + 1 } else { VA } })
                };
                let lent = Arc::clone(lent);
                let complete = move |nic: &mut Rnic, memory: MessageMemory, len: u32| {
                    let mut lent = lent.lock().unwrap();
                    lent.complete += 1;
                    assert_eq!(nic.region(memory.mr).map(|region| region.len), Some(len.into()));
                    release(nic, &mut lent, memory);
                };
                _ = node.create_group(nic, config, Box::new(incoming), Box::new(complete), now);
            }
            1 => {
                let len = 1 + u32::from(b) * 3;
                let made = nic.register_new(node.pd().unwrap(), len as usize, VA, Access::LOCAL_READ);
                let Ok((buffer, mr)) = made else { return };
                let memory = MessageMemory { mr, va: VA };
                let mut lent = lent.lock().unwrap();
                lent.buffers.insert(mr.0, (buffer, len));
                if node.send(nic, group, memory, len).is_err() {
                    release(nic, &mut lent, memory);
                }
            }
            2 => _ = node.destroy_group(group),
            3 => _ = node.abandon_group(nic, group, now),
            4 => _ = node.request_link(nic, ip(PEERS[usize::from(b & 1)]), now),
            5 => node.release_link(ip(PEERS[usize::from(b & 1)])),
            _ => _ = node.send_note(nic, ip(PEERS[usize::from(b & 1)]), [a; Node::NOTE]),
        }
    }

    /// Delivers all frames immediately.
    fn deliver_all(&mut self) {
        let mut frame = Vec::new();
        for _ in 0..200 {
            let mut moved = false;
            self.run();
            while self.nic.poll_transmit(self.now, &mut frame) {
                moved = true;
                if let Some(peer) =
                    self.peers.iter_mut().find(|peer| peer.own == frame[5] && !peer.drops_received)
                {
                    peer.nic.on_frame(&frame, self.now);
                }
            }
            for n in 0..self.peers.len() {
                self.peers[n].run(self.now);
                while self.peers[n].nic.poll_transmit(self.now, &mut frame) {
                    moved = true;
                    if frame[5] == OWN && !self.peers[n].drops_sent {
                        self.nic.on_frame(&frame, self.now);
                        self.run();
                    }
                }
            }
            if !moved {
                break;
            }
        }
        self.run();
    }

    fn run(&mut self) {
        self.node.run(&mut self.nic, self.now);
        while let Some(event) = self.node.poll_event() {
            if let Event::Failed { unfinished, missing_members, .. } = event {
                assert!(missing_members.len() < self.members.len());
                let mut lent = self.lent.lock().unwrap();
                for memory in unfinished {
                    release(&mut self.nic, &mut lent, memory);
                }
            }
        }
    }

    fn pass(&mut self, time: Nanos) {
        self.now = self.now + time;
        if self.nic.next_timer().is_some_and(|at| at <= self.now) {
            self.nic.on_timer(self.now);
        }
        for peer in &mut self.peers {
            if peer.nic.next_timer().is_some_and(|at| at <= self.now) {
                peer.nic.on_timer(self.now);
            }
        }
        self.deliver_all();
    }

    fn step(&mut self, [kind, selector, a, b]: [u8; 4], bytes: &[u8]) {
        let group = GROUPS[usize::from(selector >> 1 & 1)];
        let now = self.now;
        let peer = &mut self.peers[usize::from(selector & 1)];
        // Mostly small numbers, because others are invalid anyway
        let value = if selector & 0x80 == 0 { u64::from(b) } else { u64::from_be_bytes([b; 8]) };
        match kind & 15 {
            0 => peer.send(bytes),
            1 => peer.message(b % 12, group, value, bytes),
            2 | 3 => peer.create(group, b & 3, if kind & 16 == 0 { 0 } else { a }),
            4 => peer.message(2, group, 0, &[]),
            5 => peer.message(4 + a % 3, group, value, &[]),
            6 => peer.message(3, group, u64::from(a % 11) << 32 | value & 0xffff_ffff, &[]),
            7 => (0..a).for_each(|_| peer.message(7, group, 0, &[])),
            8 | 9 => {
                // A message of some blocks, or of any length
                let total =
                    if selector & 0x40 == 0 { u32::from(a) } else { u32::from_be_bytes([a, b, a, b]) };
                let len = if kind & 16 == 0 { total.min(BLOCK) } else { u32::from(b) };
                peer.block(group, Operation::SendImm(total), &vec![b; len as usize]);
            }
            10 => {
                let at = peer.word(group).unwrap_or(Remote { va: 0, rkey: 0 });
                let operation = [
                    Operation::Send,
                    Operation::SendInvalidate(at.rkey),
                    Operation::WriteImm(at, a.into()),
                    Operation::Write(Remote { va: at.va.wrapping_add_signed(i64::from(b as i8)), ..at }),
                ];
                peer.block(
                    group,
                    operation[usize::from(a & 3)],
                    &bytes[..bytes.len().min(usize::from(a >> 2))],
                );
            }
            11 => {
                // This many blocks, the last of which is for any message or for a certain one
                if let Some(at) = peer.word(group) {
                    let word = value << 24 | u64::from(a & 3);
                    peer.block(group, Operation::Write(at), &word.to_be_bytes());
                }
            }
            12 => return self.pass(Nanos(u64::from(b) << (a % 20))),
            13 => self.call(a, selector >> 1, b),
            14 => match a & 3 {
                0 => peer.disconnect(now),
                1 => peer.connect(&HELLO, now),
                2 => peer.connect(bytes, now),
                _ => {
                    if let Some(qpn) = peer.blocks.remove(&group) {
                        _ = peer.nic.destroy_qp(qpn);
                    }
                }
            },
            _ => (peer.drops_received, peer.drops_sent) = (a & 1 != 0, a & 2 != 0),
        }
        self.deliver_all();
    }

    fn check(&self) {
        let (held, links) = (self.nic.resource_counts(), self.node.resource_counts());
        assert!(links.queue_pairs <= 8 && self.node.ready_words_in_use() <= CONNECTIONS);
        assert!(held.queue_pairs <= links.queue_pairs + CONNECTIONS, "{held:?}");
        let messages = self.lent.lock().unwrap().buffers.len();
        assert!(held.regions <= links.regions + GROUPS.len() + messages, "{held:?} with {messages} messages");
        // Messages that no call of the application causes: groups are created, open or end, and notes
        assert!(
            self.node.queued_messages() <= 16 + 8 * self.calls,
            "{} messages wait after {} calls",
            self.node.queued_messages(),
            self.calls
        );
    }

    /// Ends all groups, and checks that nothing is left.
    fn end(&mut self) {
        for group in GROUPS {
            _ = self.node.abandon_group(&mut self.nic, group, self.now);
        }
        self.run();
        assert!(self.lent.lock().unwrap().buffers.is_empty(), "memory of messages was not returned");
        assert_eq!(self.node.ready_words_in_use(), 0);
        assert_eq!(self.nic.resource_counts(), self.node.resource_counts());
    }
}

fn release(nic: &mut Rnic, lent: &mut LentMemory, memory: MessageMemory) {
    let (buffer, _) =
        lent.buffers.remove(&memory.mr.0).expect("the memory was lent, and has not been returned");
    nic.deregister(memory.mr).unwrap();
    nic.free(buffer).unwrap();
}

/// Runs one input.
pub(crate) fn run(input: &[u8]) {
    let Some((&how, mut rest)) = input.split_first() else { return };
    let mut host = Host::new(how);
    let mut steps = 0;
    while let Some((&step, after)) = rest.split_first_chunk() {
        let payload_len = match step[0] & 15 {
            0 | 14 => LEN,
            1 | 10 => 32,
            _ => 0,
        };
        let (bytes, after) = after.split_at(payload_len.min(after.len()));
        rest = after;
        host.step(step, bytes);
        host.check();
        steps += 1;
        if steps == 400 {
            break;
        }
    }
    host.end();
}
