//! perftest's server side: the peer of its clients (ib_write_bw, ib_send_lat and so on).

mod exchange;
#[cfg(test)]
pub(super) mod tests;

use super::service::ServiceRow;
use super::session::{SessionQp, VA};
use super::tcp::{Listener, SocketHandle, Tcp};
use core::net::IpAddr;
use exchange::{DONE, Exchange, Message, QpInfo, mtu_response};
use rnic::{
    Completion, CompletionOpcode, Cq, Data, Modify, Operation, Path, PathMtu, Pd, ReadyToReceive,
    ReadyToSend, Remote, Rnic, SendRequest, Transport,
};
use rocev2::aeth::RnrTimer;
use rocev2::{Psn, Qpn};
use std::collections::BTreeMap;
use switch::{Nanos, Rng};

/// Receives posted at once. UC has no flow control, so these have to cover all messages that arrive between
/// two polls.
const RECEIVES: usize = 512;
/// Depth of the send and receive queues, in tests without receives
const DEPTH: usize = 16;
/// READs and atomics that a client may have outstanding
const MAX_READS: u8 = 16;
/// Buffer, in bytes, through which consecutive small messages cycle
const CYCLE_BUFFER_LEN: usize = 4096;
/// Local ACK timeout of 67 ms, as perftest sets it
const ACK_TIMEOUT: u8 = 14;
/// Unlimited RNR retries: TCP shows whether the client is still there.
const RNR_RETRY: u8 = 7;
/// Number of times that a client of ib_write_lat, which has one queue pair, announces it before the test
/// begins
const ANNOUNCEMENTS_BEFORE_WRITES: u32 = 4;

/// Configuration of a perftest server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PerftestConfig {
    pub(crate) test: Test,
    pub(crate) port: u16,
    /// Largest message in bytes; in ib_write_lat, the exact message size
    pub(crate) size: u32,
    pub(crate) transport: Transport,
}

impl PerftestConfig {
    pub(crate) const NAME: &'static str = "perftest_server";
}

/// Test that the clients run. Clients do not announce it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Test {
    WriteBw,
    ReadBw,
    SendBw,
    AtomicBw,
    WriteLat,
    ReadLat,
    SendLat,
    AtomicLat,
}

impl Test {
    /// All tests, each with the suffix of its program's name
    pub(crate) const ALL: [(&'static str, Self); 8] = [
        ("write_bw", Self::WriteBw),
        ("read_bw", Self::ReadBw),
        ("send_bw", Self::SendBw),
        ("atomic_bw", Self::AtomicBw),
        ("write_lat", Self::WriteLat),
        ("read_lat", Self::ReadLat),
        ("send_lat", Self::SendLat),
        ("atomic_lat", Self::AtomicLat),
    ];

    /// Returns whether the client sends messages. In the other tests it only needs memory.
    pub(crate) const fn sends(self) -> bool {
        matches!(self, Self::SendBw | Self::SendLat)
    }

    /// Returns whether the test exists on UC, which has neither READs nor atomics.
    pub(crate) const fn is_on_uc(self) -> bool {
        matches!(self, Self::WriteBw | Self::WriteLat) || self.sends()
    }

    pub(crate) fn name(self) -> &'static str {
        Self::ALL.into_iter().find(|(_, test)| *test == self).map_or("", |(name, _)| name)
    }
}

/// The perftest servers of a host, and the TCP stack that they share.
pub(super) struct Servers {
    tcp: Tcp,
    servers: Vec<Server>,
}

impl Servers {
    /// Returns `None` if `configs` is empty.
    pub(super) fn new(
        configs: &[PerftestConfig],
        nic: &Rnic,
        pd: Pd,
        cq: Cq,
    ) -> Result<Option<Self>, String> {
        if configs.is_empty() {
            return Ok(None);
        }
        let mut tcp = Tcp::new(&nic.config().interface, nic.config().seed)?;
        // The quota limits a peer to half of the NIC's queue pairs over all servers.
        let quota = (nic.config().max_qps / 2 / configs.len()).max(1);
        let server = |config: &PerftestConfig| Server {
            config: *config,
            quota,
            usage: BTreeMap::new(),
            pd,
            cq,
            listener: tcp.listen(config.port),
            clients: Vec::new(),
            pairs: BTreeMap::new(),
            rng: Rng::stream(nic.config().seed, config.port.into()),
            row: ServiceRow { service: PerftestConfig::NAME, port: config.port, ..ServiceRow::default() },
        };
        let servers = configs.iter().map(server).collect();
        Ok(Some(Self { tcp, servers }))
    }

    pub(super) fn rows(&self) -> impl Iterator<Item = &ServiceRow> {
        self.servers.iter().map(|server| &server.row)
    }

    /// Returns the TCP segments dropped.
    pub(super) fn tcp_dropped(&self) -> u64 {
        self.tcp.dropped()
    }

    /// Processes a frame if it is TCP for this host, and returns whether it is.
    pub(super) fn on_frame(&mut self, frame: &[u8]) -> bool {
        self.tcp.on_frame(frame)
    }

    pub(super) fn on_completion(&mut self, nic: &mut Rnic, completion: &Completion) {
        let server = self.servers.iter_mut().find(|server| server.pairs.contains_key(&completion.qpn.get()));
        if let Some(server) = server {
            server.on_completion(nic, &mut self.tcp, completion);
        }
    }

    pub(super) fn serve(&mut self, nic: &mut Rnic, now: Nanos) {
        for server in self.servers.iter_mut().filter(|server| server.config.test == Test::WriteLat) {
            server.respond_to_writes(nic);
        }
        if self.tcp.poll(now) {
            for server in &mut self.servers {
                server.serve(nic, &mut self.tcp);
            }
            // Sends what the servers have written.
            self.tcp.poll(now);
        }
    }

    pub(super) fn poll_transmit(&mut self, frame: &mut Vec<u8>) -> bool {
        self.tcp.poll_transmit(frame)
    }

    pub(super) fn wants_to_transmit(&self) -> bool {
        self.tcp.wants_to_transmit()
    }

    pub(super) fn next_timer(&self) -> Option<Nanos> {
        self.tcp.next_timer()
    }
}

/// A queue pair of this server, connected to one of a client.
struct Pair {
    qp: SessionQp,
    local: QpInfo,
    remote: QpInfo,
    /// WRITEs that were sent, in ib_write_lat: the last byte of each is its number, and the client responds
    /// with the same number
    writes: u64,
}

/// A client: its connection, and the queue pairs that it announced.
struct Client {
    socket: SocketHandle,
    peer: IpAddr,
    exchange: Exchange,
    mtu: PathMtu,
    /// Queue pairs of this server, by the QPN of the client's
    qps: BTreeMap<u32, Qpn>,
    has_sent: bool,
    /// Announcements of queue pairs received so far
    announcements: u32,
}

/// State of a client after its messages were processed.
enum ClientState {
    Wait,
    /// The client has finished its test.
    Finished,
    /// The client failed, for this reason.
    Failed(String),
    /// The client closed its connection before its first message.
    Closed,
}

/// Resources of a server that one peer uses.
#[derive(Clone, Copy, Default)]
struct PeerUsage {
    clients: usize,
    pairs: usize,
}

/// One perftest server.
struct Server {
    config: PerftestConfig,
    pd: Pd,
    cq: Cq,
    listener: Listener,
    /// Clients, and queue pairs, that one peer may have
    quota: usize,
    /// Clients and queue pairs that each peer has, by address
    usage: BTreeMap<IpAddr, PeerUsage>,
    clients: Vec<Client>,
    /// By QPN of this server
    pairs: BTreeMap<u32, Pair>,
    rng: Rng,
    row: ServiceRow,
}

impl Server {
    fn serve(&mut self, nic: &mut Rnic, tcp: &mut Tcp) {
        while self.clients.len() < nic.config().max_qps
            && let Some((socket, peer)) = tcp.accept(&mut self.listener)
        {
            let usage = self.usage.entry(peer).or_default();
            if usage.clients >= self.quota {
                tcp.abort(socket);
                self.row.refused += 1;
                let limit = self.quota;
                self.row.error.get_or_insert_with(|| {
                    format!("more than {limit} connections from {peer}; raise max_qps")
                });
                continue;
            }
            usage.clients += 1;
            self.clients.push(Client {
                socket,
                peer,
                exchange: Exchange::new(),
                mtu: nic.config().mtu,
                qps: BTreeMap::new(),
                has_sent: false,
                announcements: 0,
            });
        }
        tcp.keep_listening(&mut self.listener);
        let mut clients = core::mem::take(&mut self.clients);
        clients.retain_mut(|client| {
            let state = self.process_messages(client, nic, tcp);
            self.apply(client, state, nic, tcp)
        });
        self.clients = clients;
    }

    /// Responds to the client's messages.
    fn process_messages(&mut self, client: &mut Client, nic: &mut Rnic, tcp: &mut Tcp) -> ClientState {
        tcp.read(client.socket, client.exchange.inbox());
        loop {
            let message = match client.exchange.next() {
                Ok(Some(message)) => message,
                Ok(None) => break,
                Err(what) => return ClientState::Failed(what),
            };
            client.has_sent = true;
            let response = match message {
                Message::Echo(bytes) => bytes,
                Message::Mtu(remote) => {
                    let local = nic.config().mtu;
                    client.mtu = local.min(remote);
                    mtu_response(local).to_vec()
                }
                Message::QpInfo(remote) => {
                    let local = match self.pair(client, remote, nic) {
                        Ok(local) => local.to_bytes(),
                        Err(what) => return ClientState::Failed(what),
                    };
                    client.announcements += 1;
                    if self.config.test == Test::WriteLat
                        && client.announcements == ANNOUNCEMENTS_BEFORE_WRITES
                    {
                        self.start_writes(client, nic);
                    }
                    local
                }
                Message::Done => {
                    // The client does not wait for this message.
                    tcp.write(client.socket, DONE);
                    return ClientState::Finished;
                }
            };
            if !tcp.write(client.socket, &response) {
                return ClientState::Failed("the client does not read the responses".into());
            }
        }
        if !tcp.has_ended(client.socket) {
            ClientState::Wait
        } else if !client.has_sent {
            ClientState::Closed
        } else if self.config.test == Test::WriteLat && self.has_responded(client) {
            // The client does not announce the number of WRITEs, so the server sends one more than the client
            // expects.
            ClientState::Finished
        } else {
            ClientState::Failed("the client disconnected before its test was over".into())
        }
    }

    /// Applies `next` and returns whether the client stays.
    fn apply(&mut self, client: &Client, state: ClientState, nic: &mut Rnic, tcp: &mut Tcp) -> bool {
        let pairs = client.qps.len() as u64;
        match state {
            ClientState::Wait => return true,
            ClientState::Closed => tcp.abort(client.socket),
            ClientState::Finished => {
                tcp.close(client.socket);
                self.row.finished += pairs;
                if let Some((size, messages)) = client.exchange.reported {
                    self.row.operations = self.row.operations.saturating_add(messages);
                    self.row.bytes = self.row.bytes.saturating_add(messages.saturating_mul(size));
                }
            }
            ClientState::Failed(what) => {
                tcp.abort(client.socket);
                if pairs == 0 {
                    self.row.refused += 1;
                } else {
                    self.row.failed += pairs;
                }
                self.row.error.get_or_insert(what);
            }
        }
        if let Some(usage) = self.usage.get_mut(&client.peer) {
            usage.clients -= 1;
            usage.pairs -= client.qps.len();
            if usage.clients == 0 {
                self.usage.remove(&client.peer);
            }
        }
        for qpn in client.qps.values() {
            if let Some(pair) = self.pairs.remove(&qpn.get()) {
                pair.qp.destroy(nic);
            }
        }
        false
    }

    /// Returns this server's queue pair for the client's, which is created at the first announcement.
    fn pair(&mut self, client: &mut Client, remote: QpInfo, nic: &mut Rnic) -> Result<QpInfo, String> {
        if let Some(pair) = client.qps.get(&remote.qpn).and_then(|qpn| self.pairs.get(&qpn.get())) {
            return Ok(pair.local);
        }
        if self.usage.get(&client.peer).is_some_and(|usage| usage.pairs >= self.quota) {
            return Err(format!("more than {} queue pairs for {}; raise max_qps", self.quota, client.peer));
        }
        let src = nic.config().interface.source_for(remote.address);
        let src =
            src.ok_or_else(|| format!("the host has no address of the family of {}", remote.address))?;
        let (bytes, depth) = match self.config.test {
            // The server's own WRITEs are sent from behind the buffer for the client's.
            Test::WriteLat => (2 * self.config.size as usize, DEPTH),
            test if test.sends() => (self.config.size as usize, RECEIVES),
            _ => ((self.config.size as usize).max(CYCLE_BUFFER_LEN), DEPTH),
        };
        let qp = SessionQp::new(nic, self.pd, self.cq, self.config.transport, bytes, depth)
            .map_err(|error| format!("no resources for a connection: {error}"))?;
        let local = QpInfo {
            reads: MAX_READS,
            qpn: qp.qpn.get(),
            psn: Psn::new(self.rng.bits() as u32).get(),
            rkey: qp.mr.0,
            va: VA,
            address: src,
        };
        if let Err(error) = connect(nic, &qp, &local, &remote, client.mtu) {
            qp.destroy(nic);
            return Err(error.to_string());
        }
        if self.config.test.sends() {
            for _ in 0..RECEIVES {
                qp.receive(nic, 0, self.config.size);
            }
        }
        self.row.connections += 1;
        client.qps.insert(remote.qpn, qp.qpn);
        self.usage.entry(client.peer).or_default().pairs += 1;
        self.pairs.insert(qp.qpn.get(), Pair { qp, local, remote, writes: 0 });
        Ok(local)
    }

    fn on_completion(&mut self, nic: &mut Rnic, tcp: &mut Tcp, completion: &Completion) {
        let Some(pair) = self.pairs.get(&completion.qpn.get()) else { return };
        match completion.status {
            rnic::Status::Success => {}
            rnic::Status::Flushed => return,
            status => {
                let what = format!("{:?} failed: {status:?}", completion.opcode);
                return self.fail_client(completion.qpn, what, nic, tcp);
            }
        }
        self.row.operations = self.row.operations.saturating_add(1);
        self.row.bytes = self.row.bytes.saturating_add(completion.len.into());
        if completion.opcode == CompletionOpcode::Recv {
            pair.qp.receive(nic, 0, self.config.size);
            if self.config.test == Test::SendLat {
                let data = match completion.len {
                    0 => Data::None,
                    len => Data::Memory(pair.qp.sge(0, len)),
                };
                // If the queue pair has failed meanwhile, a completion reports it.
                _ = nic.post_send(completion.qpn, SendRequest::new(0, Operation::Send, data));
            }
        }
    }

    /// Ends the client of a queue pair that failed.
    fn fail_client(&mut self, qpn: Qpn, what: String, nic: &mut Rnic, tcp: &mut Tcp) {
        let position = self.clients.iter().position(|client| client.qps.values().any(|own| *own == qpn));
        if let Some(index) = position {
            let client = self.clients.swap_remove(index);
            self.apply(&client, ClientState::Failed(what), nic, tcp);
        }
    }

    /// Sends the first WRITE of ib_write_lat, in which the server begins and the client waits for its memory
    /// to change.
    fn start_writes(&mut self, client: &Client, nic: &mut Rnic) {
        for qpn in client.qps.values() {
            if let Some(pair) = self.pairs.get_mut(&qpn.get()) {
                pair.write(self.config.size, nic);
            }
        }
    }

    /// Returns whether the client has responded to a WRITE on each queue pair.
    fn has_responded(&self, client: &Client) -> bool {
        let writes = |qpn: &Qpn| self.pairs.get(&qpn.get()).map_or(0, |pair| pair.writes);
        !client.qps.is_empty() && client.qps.values().all(|qpn| writes(qpn) > 1)
    }

    /// Responds to each WRITE of a client whose last byte has arrived.
    fn respond_to_writes(&mut self, nic: &mut Rnic) {
        let last = self.config.size as usize - 1;
        for pair in self.pairs.values_mut() {
            if pair.writes > 0 && nic.bytes(pair.qp.buffer)[last] == pair.writes as u8 {
                pair.write(self.config.size, nic);
            }
        }
    }
}

impl Pair {
    /// Posts the next WRITE of ib_write_lat. Its data is behind the buffer for the client's WRITEs.
    fn write(&mut self, size: u32, nic: &mut Rnic) {
        self.writes += 1;
        nic.bytes_mut(self.qp.buffer)[2 * size as usize - 1] = self.writes as u8;
        let to = Remote { va: self.remote.va, rkey: self.remote.rkey };
        let data = Data::Memory(self.qp.sge(size.into(), size));
        // If the queue pair has failed meanwhile, a completion reports it.
        _ = nic.post_send(self.qp.qpn, SendRequest::new(0, Operation::Write(to), data));
    }
}

/// Connects a queue pair directly, without the communication manager.
fn connect(
    nic: &mut Rnic,
    qp: &SessionQp,
    local: &QpInfo,
    remote: &QpInfo,
    mtu: PathMtu,
) -> Result<(), rnic::QpError> {
    let receive = ReadyToReceive {
        path: Path::new(local.address, remote.address),
        dest_qp: Qpn::new(remote.qpn),
        mtu,
        rq_psn: Psn::new(remote.psn),
        max_dest_rd_atomic: MAX_READS,
        min_rnr_timer: RnrTimer(12),
    };
    let send = ReadyToSend {
        sq_psn: Psn::new(local.psn),
        max_rd_atomic: remote.reads.min(MAX_READS),
        timeout: ACK_TIMEOUT,
        retry_count: ReadyToSend::NO_LIMIT,
        rnr_retry: RNR_RETRY,
        flow_control: false,
    };
    nic.modify_qp(qp.qpn, Modify::Rtr(receive))?;
    nic.modify_qp(qp.qpn, Modify::Rts(send))
}
