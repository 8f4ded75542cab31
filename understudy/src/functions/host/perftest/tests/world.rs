//! Servers in the simulator. The client sends the same messages as perftest's, in the same order.

use super::super::{Servers, Test, connect};
use super::*;
use crate::functions::host::service::ServiceRow;
use crate::functions::host::session::{SessionQp, VA};
use crate::functions::host::tcp::{SocketHandle, Tcp};
use crate::functions::host::tests::{node, rows, several_workers};
use crate::functions::host::{Host, HostConfig, PerftestConfig};
use rnic::{
    AckPolicy, CompletionOpcode, Cq, Data, Interface, Operation, RecvRequest, Remote, Rnic, SendRequest,
    Transport,
};
use rocev2::ethernet::MacAddr;
use sim::{Clock, Link, Node, NodeId, Ports, Workers, World};
use std::collections::VecDeque;
use switch::memory::{FrameCollector, MemoryFrame};
use switch::{Frame, Function as _, Nanos, PortId, Probability};

const SERVER: MacAddr = MacAddr([2, 0, 0, 0, 0, 9]);
const PORT: u16 = 18515;
const MESSAGES: usize = 20;

/// Next action of the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// Send these bytes and wait for a response of the same length.
    Send(&'static [u8]),
    /// Announce a queue pair.
    Announce(usize),
    /// Run the test.
    Work,
    /// Send "done" without waiting for a response.
    Done,
    Close,
}

/// Returns the steps of perftest's client in a test with `qps` queue pairs.
fn script(test: Test, qps: usize) -> VecDeque<Step> {
    let all = || (0..qps).map(Step::Announce);
    let one = || std::iter::once(Step::Announce(0));
    let start = [VERSION, b"\0\0\x10\0", b"\0\0\0@", b"3\0"].map(Step::Send);
    let bandwidth = [
        b"\0\0\0\0\0\0\0@",
        b"\0\0\0\0\0\0\0\x14",
        b"?\xff\0\0\0\0\0\0",
        b"?\xfe\0\0\0\0\0\0",
        b"?@\0\0\0\0\0\0",
    ];
    let report = bandwidth.map(|number| Step::Send(number));
    let steps: Vec<_> = match test {
        Test::WriteBw | Test::ReadBw | Test::AtomicBw => {
            let after = one().chain(report).chain(one()).chain([Step::Done]);
            all().chain(all()).chain(one()).chain([Step::Work]).chain(after).collect()
        }
        Test::SendBw | Test::SendLat => {
            let work = one().chain([Step::Work]).chain(one()).chain([Step::Done]);
            all().chain(one()).chain(all()).chain(work).collect()
        }
        Test::WriteLat => one().chain(all()).chain(all()).chain(one()).chain([Step::Work]).collect(),
        Test::ReadLat | Test::AtomicLat => {
            let work = [Step::Work].into_iter().chain(one()).chain([Step::Done]);
            one().chain(all()).chain(all()).chain(one()).chain(work).collect()
        }
    };
    start.into_iter().chain(steps).chain([Step::Close]).collect()
}

/// A queue pair of the client, and the server's once it was announced
struct Pair {
    qp: SessionQp,
    local: QpInfo,
    remote: Option<QpInfo>,
}

/// A model of perftest's client.
struct Client {
    nic: Rnic,
    cq: Cq,
    tcp: Tcp,
    server: IpAddr,
    test: Test,
    size: u32,
    socket: Option<SocketHandle>,
    pairs: Vec<Pair>,
    script: VecDeque<Step>,
    /// Whether the current step has begun
    begun: bool,
    inbox: Vec<u8>,
    /// Requests posted, requests completed, and messages or WRITEs received
    posted: usize,
    completed: usize,
    received_count: usize,
}

impl Client {
    fn new(case: &Case) -> Self {
        let (own, server): (IpAddr, IpAddr) = if case.ipv6 {
            ("fd00::1".parse().unwrap(), "fd00::9".parse().unwrap())
        } else {
            ([10, 0, 0, 1].into(), [10, 0, 0, 9].into())
        };
        let interface = Interface::new(MacAddr([2, 0, 0, 0, 0, 1]), own, if case.ipv6 { 64 } else { 24 });
        let tcp = Tcp::new(&interface, case.seed).unwrap();
        let mut nic = Rnic::new(rnic::Config::new(interface));
        let (pd, cq) = (nic.alloc_pd(), nic.create_cq(4096).unwrap());
        let pair = |n: usize| {
            let bytes = 2 * case.size as usize;
            let qp = SessionQp::new(&mut nic, pd, cq, case.transport, bytes, 2 * MESSAGES).unwrap();
            let (qpn, rkey, psn) = (qp.qpn.get(), qp.mr.0, 0xff_fff0 + n as u32);
            Pair { qp, local: QpInfo { reads: 16, qpn, psn, rkey, va: VA, address: own }, remote: None }
        };
        let pairs = (0..case.qps).map(pair).collect();
        Self {
            nic,
            cq,
            tcp,
            server,
            test: case.test,
            size: case.size,
            socket: None,
            pairs,
            script: script(case.test, case.qps),
            begun: false,
            inbox: Vec::new(),
            posted: 0,
            completed: 0,
            received_count: 0,
        }
    }

    fn run(&mut self, now: Nanos) {
        let server = (self.server, PORT);
        let socket = *self.socket.get_or_insert_with(|| self.tcp.connect(server, SERVER));
        self.tcp.poll(now);
        if self.script.is_empty() {
            return;
        }
        self.tcp.read(socket, &mut self.inbox);
        while let Some(completion) = self.nic.poll_cq(self.cq) {
            assert_eq!(completion.status, rnic::Status::Success, "{completion:?}");
            match completion.opcode {
                CompletionOpcode::Recv => self.received_count += 1,
                _ => self.completed += 1,
            }
        }
        while let Some(&step) = self.script.front() {
            if !self.begun {
                self.begun = self.begin(step, socket);
            }
            if !self.begun || !self.is_complete(step) {
                break;
            }
            self.begun = false;
            self.script.pop_front();
        }
        self.tcp.poll(now);
    }

    /// Begins a step. Returns `false` if it cannot begin yet.
    fn begin(&mut self, step: Step, socket: SocketHandle) -> bool {
        match step {
            Step::Send(bytes) => self.tcp.write(socket, bytes),
            Step::Announce(n) => {
                if self.test == Test::SendLat {
                    self.receive();
                }
                self.tcp.write(socket, &self.pairs[n].local.to_bytes())
            }
            Step::Work => {
                self.work();
                true
            }
            Step::Done => self.tcp.write(socket, DONE),
            Step::Close => {
                self.tcp.close(socket);
                true
            }
        }
    }

    fn is_complete(&mut self, step: Step) -> bool {
        match step {
            Step::Send(bytes) => {
                let complete = self.inbox.len() == bytes.len();
                if complete {
                    assert_eq!(self.inbox, bytes);
                    self.inbox.clear();
                }
                complete
            }
            Step::Announce(n) => {
                let complete = self.inbox.len() == QpInfo::LEN;
                if complete {
                    let remote = QpInfo::parse(&self.inbox).unwrap();
                    self.inbox.clear();
                    self.on_qp_info(n, remote);
                }
                complete
            }
            Step::Work if self.test == Test::SendLat || self.test == Test::WriteLat => {
                self.continue_ping_pong()
            }
            Step::Work => self.completed == MESSAGES * self.pairs.len(),
            Step::Done | Step::Close => true,
        }
    }

    fn on_qp_info(&mut self, n: usize, remote: QpInfo) {
        let pair = &mut self.pairs[n];
        match pair.remote {
            None => {
                connect(&mut self.nic, &pair.qp, &pair.local, &remote, PathMtu::B1024).unwrap();
                pair.remote = Some(remote);
            }
            Some(before) => assert_eq!(before, remote),
        }
    }

    fn receive(&mut self) {
        let qp = &self.pairs[0].qp;
        while self.nic.post_recv(qp.qpn, RecvRequest { id: 0, data: Some(qp.sge(0, self.size)) }).is_ok() {}
    }

    /// Posts one request.
    fn post(&mut self, n: usize) {
        self.posted += 1;
        let pair = &self.pairs[n];
        let remote = pair.remote.unwrap();
        let memory = Remote { va: remote.va, rkey: remote.rkey };
        let (operation, len) = match self.test {
            Test::WriteBw | Test::WriteLat => (Operation::Write(memory), self.size),
            Test::ReadBw | Test::ReadLat => (Operation::Read(memory), self.size),
            Test::SendBw | Test::SendLat => (Operation::Send, self.size),
            Test::AtomicBw | Test::AtomicLat => (Operation::FetchAdd { at: memory, add: 1 }, 8),
        };
        let data = Data::Memory(pair.qp.sge(self.size.into(), len));
        self.nic.post_send(pair.qp.qpn, SendRequest::new(0, operation, data)).unwrap();
    }

    fn work(&mut self) {
        match self.test {
            Test::WriteLat => {}
            Test::SendLat => self.post(0),
            _ => (0..self.pairs.len() * MESSAGES).for_each(|n| self.post(n / MESSAGES)),
        }
    }

    /// Continues a ping-pong test. Returns whether it is over.
    fn continue_ping_pong(&mut self) -> bool {
        let (buffer, size) = (self.pairs[0].qp.buffer, self.size as usize);
        if self.test == Test::WriteLat && self.received_count < MESSAGES {
            let next = self.received_count as u8 + 1;
            if self.nic.bytes(buffer)[size - 1] == next {
                self.received_count += 1;
                self.nic.bytes_mut(buffer)[2 * size - 1] = next;
                self.post(0);
            }
        } else if self.test == Test::SendLat
            && self.posted < MESSAGES
            && [self.received_count, self.completed] == [self.posted; 2]
        {
            self.post(0);
            self.receive();
        }
        self.received_count == MESSAGES && self.completed == MESSAGES
    }
}

impl Node for Client {
    fn on_frame(&mut self, frame: MemoryFrame, _port: PortId, now: Nanos, _out: &mut Ports<'_>) {
        if !self.tcp.on_frame(frame.bytes()) {
            self.nic.on_frame(frame.bytes(), now);
        }
        self.run(now);
    }

    fn on_timer(&mut self, now: Nanos, _out: &mut Ports<'_>) {
        self.nic.on_timer(now);
        self.run(now);
    }

    fn next_timer(&self) -> Option<Nanos> {
        [self.nic.next_timer(), self.tcp.next_timer()].into_iter().flatten().min()
    }

    fn poll_transmit(&mut self, _port: PortId, now: Nanos, frame: &mut Vec<u8>) -> bool {
        self.tcp.poll_transmit(frame) || self.nic.poll_transmit(now, frame)
    }

    fn start(&mut self, now: Nanos, _out: &mut Ports<'_>) {
        self.run(now);
    }
}

#[derive(Clone, Copy)]
struct Case {
    test: Test,
    qps: usize,
    size: u32,
    transport: Transport,
    ipv6: bool,
    seed: u64,
    link: Link,
    workers: Workers,
}

impl Case {
    fn new(test: Test) -> Self {
        let (transport, link) = (Transport::Rc, Link::default());
        Self { test, qps: 1, size: 64, transport, ipv6: false, seed: 1, link, workers: Workers::ONE }
    }

    fn server(&self) -> HostConfig {
        HostConfig {
            mac: Some(SERVER),
            addresses: vec![([10, 0, 0, 9].into(), 24), ("fd00::9".parse().unwrap(), 64)],
            gateways: Vec::new(),
            vlan: None,
            mtu: PathMtu::B1024,
            window: 64,
            ack: AckPolicy::OnRequest,
            credits: false,
            max_qps: 256,
            seed: Some(self.seed),
            services: Vec::new(),
            perftests: vec![PerftestConfig {
                test: self.test,
                port: PORT,
                size: self.size,
                transport: self.transport,
            }],
            workers: 1,
        }
    }

    /// Runs the world until the client has finished. Returns the server's report some time later.
    fn run(&self) -> ServiceRow {
        let mut world = World::new(self.seed);
        let server = world.add("server", node(self.server(), SERVER.0, self.workers), Clock::default());
        let client = world.add("client", Client::new(self), Clock::default());
        world.connect(server, client, self.link);
        let until = Nanos::from_secs(300);
        while !world.node::<Client>(client).script.is_empty() {
            let step = world.node::<Client>(client).script[0];
            assert!(world.step(until), "the client does not finish: {step:?}, {:?}", row(&world, server));
        }
        let after = world.now() + Nanos::from_secs(100);
        world.run_until(after);
        row(&world, server)
    }
}

fn row(world: &World, server: NodeId) -> ServiceRow {
    rows(world, server)[0].clone()
}

fn assert_finished(case: &Case) {
    let row = case.run();
    let done = (row.connections, row.finished, row.failed, row.refused, row.error.as_deref());
    let qps = case.qps as u64;
    assert_eq!(done, (qps, qps, 0, 0, None), "{:?}: {row:?}", case.test);
    let operations = match case.test {
        Test::ReadLat | Test::AtomicLat => 0..=0,
        // Whether the last message is acknowledged before the client disconnects depends on timing.
        Test::SendLat => 39..=40,
        Test::WriteLat => 19..=21,
        Test::SendBw => 20 * qps..=20 * qps,
        _ => 20..=20,
    };
    assert!(operations.contains(&row.operations), "{:?}: {row:?}", case.test);
}

#[test]
fn every_test_finishes() {
    for (_, test) in Test::ALL {
        assert_finished(&Case::new(test));
        assert_finished(&Case { ipv6: true, size: 5000, ..Case::new(test) });
    }
}

#[test]
fn tests_with_several_queue_pairs_finish() {
    for test in [Test::WriteBw, Test::ReadBw, Test::SendBw, Test::AtomicBw] {
        assert_finished(&Case { qps: 5, ..Case::new(test) });
    }
}

#[test]
fn tests_on_uc_finish() {
    for test in [Test::WriteBw, Test::SendBw, Test::WriteLat, Test::SendLat] {
        assert_finished(&Case { transport: Transport::Uc, size: 3000, ..Case::new(test) });
    }
}

#[test]
fn every_test_finishes_on_faulty_links() {
    for percent in [1, 5] {
        let share = Probability::percent(percent);
        let link = Link { loss: share, duplicate: share, reorder: share, corrupt: share, ..Link::default() };
        for (_, test) in Test::ALL {
            for seed in 1..=5 {
                assert_finished(&Case { size: 3000, link, seed, ..Case::new(test) });
            }
        }
    }
}

#[test]
fn every_test_finishes_on_several_workers() {
    for (seed, (_, test)) in (1..=16).zip(Test::ALL.into_iter().cycle()) {
        let (workers, ipv6) = (several_workers(seed), seed % 2 == 0);
        assert_finished(&Case { size: 3000, seed, workers, ipv6, ..Case::new(test) });
    }
}

#[test]
fn a_client_that_disconnects_early_is_a_failure() {
    let case = Case::new(Test::WriteBw);
    let mut world = World::new(1);
    let server = world.add("server", node(case.server(), SERVER.0, Workers::ONE), Clock::default());
    let mut leaving = Client::new(&case);
    leaving.script = script(case.test, 1).into_iter().take(5).chain([Step::Close]).collect();
    let client = world.add("client", leaving, Clock::default());
    world.connect(server, client, case.link);
    world.run_until(Nanos::from_secs(10));
    let row = row(&world, server);
    assert_eq!((row.connections, row.finished, row.failed), (1, 0, 1));
    assert_eq!(row.error.as_deref(), Some("the client disconnected before its test was over"));
}

/// A NIC and its perftest server, for TCP frames that the test makes
struct Harness {
    nic: Rnic,
    servers: Servers,
    now: Nanos,
}

impl Harness {
    fn new() -> Self {
        let interface = Interface::new(SERVER, [10, 0, 0, 9].into(), 24);
        let mut nic = Rnic::new(rnic::Config { max_qps: 8, ..rnic::Config::new(interface) });
        let (pd, cq) = (nic.alloc_pd(), nic.create_cq(64).unwrap());
        let config = Case::new(Test::WriteBw).server().perftests;
        let servers = Servers::new(&config, &nic, pd, cq).unwrap().unwrap();
        Self { nic, servers, now: Nanos(1) }
    }

    fn frame(&mut self, frame: &[u8]) {
        self.now = self.now + Nanos(1000);
        assert!(self.servers.on_frame(frame));
        self.servers.serve(&mut self.nic, self.now);
    }

    fn responses(&mut self) -> Vec<Vec<u8>> {
        let (mut frame, mut frames) = (Vec::new(), Vec::new());
        while self.servers.poll_transmit(&mut frame) {
            frames.push(frame.clone());
        }
        frames
    }
}

const SYN: u8 = 2;
const ACK: u8 = 16;

/// Returns a segment without data from a port of 10.0.0.`host`, whose MAC address ends in `mac`.
pub(in crate::functions::host) fn segment(
    host: u8,
    mac: u8,
    port: u16,
    flags: u8,
    seq: u32,
    ack: u32,
) -> Vec<u8> {
    let (src, dst) = ([10, 0, 0, host], [10, 0, 0, 9]);
    let mut tcp =
        [&port.to_be_bytes()[..], &PORT.to_be_bytes(), &seq.to_be_bytes(), &ack.to_be_bytes()].concat();
    tcp.extend([0x50, flags, 0xff, 0xff, 0, 0, 0, 0]);
    let sum = rocev2::checksum::Sum::default().add(&src).add(&dst).add_word(6).add_word(tcp.len() as u32);
    let checksum = sum.add(&tcp).checksum();
    tcp[16..18].copy_from_slice(&checksum.to_be_bytes());
    let mut ip =
        rocev2::ipv4::Ipv4 { protocol: 6, total_len: 40.into(), src, dst, ..rocev2::ipv4::Ipv4::default() };
    ip.fill_checksum(&[]);
    [&SERVER.0[..], &[2, 0, 0, 0, 0, mac], &[8, 0], zerocopy::IntoBytes::as_bytes(&ip), &tcp].concat()
}

/// Connects from a port of a host. Returns whether the server accepted the connection.
fn try_connect(harness: &mut Harness, host: u8, port: u16) -> bool {
    harness.responses();
    harness.frame(&segment(host, host, port, SYN, 1, 0));
    let Some(response) = harness.responses().pop().filter(|response| response[47] == SYN | ACK) else {
        return false;
    };
    let remote = u32::from_be_bytes(*response[38..].first_chunk().unwrap());
    harness.frame(&segment(host, host, port, ACK, 2, remote.wrapping_add(1)));
    true
}

#[test]
fn half_open_connections_do_not_block_other_peers() {
    let mut harness = Harness::new();
    for n in 0..1000 {
        harness.frame(&segment(7, 7, 1000 + n, SYN, 1, 0));
    }
    assert!(try_connect(&mut harness, 1, 40_000));
    assert_eq!(harness.servers.servers[0].clients.len(), 1);
}

#[test]
fn one_peer_cannot_use_all_connections() {
    let mut harness = Harness::new();
    for port in 0..20 {
        try_connect(&mut harness, 7, 40_000 + port);
    }
    assert_eq!(harness.servers.servers[0].clients.len(), 4, "half of eight");
    assert_eq!(harness.servers.servers[0].row.refused, 16);
    assert!(try_connect(&mut harness, 1, 40_000));
    assert_eq!(harness.servers.servers[0].clients.len(), 5);
}

#[test]
fn a_forged_frame_does_not_redirect_responses() {
    let mut harness = Harness::new();
    assert!(try_connect(&mut harness, 1, 40_000));
    // The right IP address, another host's MAC address, and no connection of its own
    harness.frame(&segment(1, 66, 1, ACK, 1, 1));
    let sent_to = |frames: Vec<Vec<u8>>| frames.iter().map(|frame| frame[5]).collect::<Vec<_>>();
    assert!(sent_to(harness.responses()).iter().all(|mac| *mac == 1));
    // Keep-alives of the connection
    harness.now = harness.now + Nanos::from_secs(11);
    harness.servers.serve(&mut harness.nic, harness.now);
    assert_eq!(sent_to(harness.responses()), [1]);
}

#[test]
fn queues_of_packets_that_cannot_leave_are_bounded() {
    let mut harness = Harness::new();
    for n in 0..10_000 {
        // Each is answered by a reset, because no socket listens at the port.
        let mut syn = segment(7, 7, n, ACK, 1, 1);
        syn.truncate(54);
        harness.frame(&syn);
    }
    let (responses, dropped) = (harness.responses().len(), harness.servers.tcp.dropped());
    assert!((1..=1024).contains(&responses), "{responses}");
    assert!(dropped >= 7000, "{dropped}");
}

/// Returns an ARP request for the host's address from neighbour number `n`.
pub(in crate::functions::host) fn arp_request(n: u16) -> Vec<u8> {
    let (mac, [high, low]) = ([2, 0, 1, 0, (n >> 8) as u8, n as u8], n.to_be_bytes());
    let mut frame =
        [&[0xff; 6][..], &mac, &[8, 6, 0, 1, 8, 0, 6, 4, 0, 1], &mac, &[10, 0, high, low]].concat();
    frame.extend([0, 0, 0, 0, 0, 0, 10, 0, 0, 9]);
    frame.resize(60, 0);
    frame
}

#[test]
fn a_host_counts_drops_while_its_port_is_blocked() {
    let mut host = Host::new(&Case::new(Test::WriteBw).server(), 0, SERVER.0).unwrap();
    let status = host.status();
    let mut port = FrameCollector::with_room(0);
    for n in 0..5000 {
        // Each segment is answered by a reset, because no process listens at the port.
        let now = Nanos(u64::from(n) * 1000);
        for frame in [segment(7, 7, n, ACK, 1, 1), arp_request(n)] {
            host.on_frame(&mut MemoryFrame::new(frame), PortId(0), now, &mut port);
        }
    }
    host.on_timer(Nanos::from_secs(1), &mut port);
    let status = status.lock().unwrap();
    assert!(
        status.tcp_dropped > 0 && status.control_dropped > 0,
        "{} and {}",
        status.tcp_dropped,
        status.control_dropped
    );
}
