//! perftest's server: what its clients (ib_write_bw and the others) need at the other end.

mod exchange;
#[cfg(test)]
mod tests;

use super::service::{Place, ServiceRow, VA};
use super::tcp::{SocketHandle, Tcp};
use exchange::{DONE, Exchange, Keys, Said, mtu_answer};
use rnic::{
    Completed, Completion, Cq, Data, Modify, Operation, Path, PathMtu, Pd, ReadyToReceive, ReadyToSend,
    Remote, Rnic, SendRequest, Transport,
};
use rocev2::aeth::RnrTimer;
use rocev2::{Packet, Psn, Qpn};
use std::collections::BTreeMap;
use switch::{Chance, Nanos};

/// Receives that are posted at once: on UC, which nobody slows down, more than come before they are looked at
const RECEIVES: usize = 512;
/// Requests of either kind at once, where there are no receives
const DEPTH: usize = 16;
/// READs and atomics that a client may have outstanding
const READS: u8 = 16;
/// 67 ms, perftest's own
const ACK_TIMEOUT: u8 = 14;
/// For ever: whether the client is still there is seen on TCP.
const RNR_RETRY: u8 = 7;

/// A server as the configuration has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PerftestConfig {
    pub(crate) test: Test,
    pub(crate) port: u16,
    /// Bytes of a message at most
    pub(crate) size: u32,
    pub(crate) transport: Transport,
}

impl PerftestConfig {
    pub(crate) const NAME: &'static str = "perftest_server";
}

/// The test of the clients. It is not part of what they say.
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
    /// Every test, with the end of its program's name
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

    /// Whether the client sends messages; in the other tests it needs nothing but memory.
    pub(crate) const fn sends(self) -> bool {
        matches!(self, Self::SendBw | Self::SendLat)
    }

    /// Whether there is such a test on UC, which has neither READs nor atomics
    pub(crate) const fn is_on_uc(self) -> bool {
        matches!(self, Self::WriteBw | Self::WriteLat) || self.sends()
    }

    pub(crate) fn name(self) -> &'static str {
        Self::ALL.into_iter().find(|(_, test)| *test == self).map_or("", |(name, _)| name)
    }
}

/// The servers of a host, and the TCP that they share.
pub(super) struct Servers {
    tcp: Tcp,
    servers: Vec<Server>,
}

impl Servers {
    /// None, if there is none.
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
        let server = |config: &PerftestConfig| Server {
            config: *config,
            pd,
            cq,
            listening: tcp.listen(config.port),
            clients: Vec::new(),
            pairs: BTreeMap::new(),
            written: None,
            chance: Chance::stream(nic.config().seed, config.port.into()),
            row: ServiceRow { service: PerftestConfig::NAME, port: config.port, ..ServiceRow::default() },
        };
        let servers = configs.iter().map(server).collect();
        Ok(Some(Self { tcp, servers }))
    }

    pub(super) fn rows(&self) -> impl Iterator<Item = &ServiceRow> {
        self.servers.iter().map(|server| &server.row)
    }

    /// Takes a frame if it is TCP, or looks at it before the NIC gets it; says whether it took it.
    pub(super) fn on_frame(&mut self, nic: &Rnic, frame: &[u8]) -> bool {
        if self.tcp.on_frame(frame) {
            return true;
        }
        for server in self.servers.iter_mut().filter(|server| server.config.test == Test::WriteLat) {
            server.watch(nic, frame);
        }
        false
    }

    pub(super) fn on_completion(&mut self, nic: &mut Rnic, completion: &Completion) {
        let server = self.servers.iter_mut().find(|server| server.pairs.contains_key(&completion.qpn.get()));
        if let Some(server) = server {
            server.on_completion(nic, &mut self.tcp, completion);
        }
    }

    pub(super) fn serve(&mut self, nic: &mut Rnic, now: Nanos) {
        for server in &mut self.servers {
            server.write_back(nic);
        }
        if self.tcp.poll(now) {
            for server in &mut self.servers {
                server.serve(nic, &mut self.tcp);
            }
            // What was said goes out.
            self.tcp.poll(now);
        }
    }

    pub(super) fn poll_transmit(&mut self, frame: &mut Vec<u8>) -> bool {
        self.tcp.poll_transmit(frame)
    }

    pub(super) fn next_timer(&self) -> Option<Nanos> {
        self.tcp.next_timer()
    }
}

/// A queue pair of a client's.
struct Pair {
    place: Place,
    ours: Keys,
    theirs: Keys,
    written: Written,
}

/// Where the client WRITEs, in ib_write_lat: it says so with each, and waits until as much is written to its own memory.
#[derive(Clone, Copy, Default)]
struct Written {
    at: u64,
    len: u32,
    /// What stood last in the last byte, which is another one each time
    last: u8,
}

/// A client: a connection, and the queue pairs that it was told of.
struct Client {
    socket: SocketHandle,
    exchange: Exchange,
    mtu: PathMtu,
    /// By the client's numbers
    qps: BTreeMap<u32, Qpn>,
    spoke: bool,
}

/// How it goes on with a client.
enum Next {
    Wait,
    /// The client has all that it wanted.
    Finished,
    /// Something is wrong.
    Failed(String),
    /// Somebody came and went.
    Gone,
}

/// One server.
struct Server {
    config: PerftestConfig,
    pd: Pd,
    cq: Cq,
    listening: SocketHandle,
    clients: Vec<Client>,
    /// By our numbers
    pairs: BTreeMap<u32, Pair>,
    /// The queue pair that a WRITE has just come to
    written: Option<Qpn>,
    chance: Chance,
    row: ServiceRow,
}

impl Server {
    fn serve(&mut self, nic: &mut Rnic, tcp: &mut Tcp) {
        while let Some(socket) = tcp.accept(&mut self.listening) {
            self.clients.push(Client {
                socket,
                exchange: Exchange::new(),
                mtu: nic.config().mtu,
                qps: BTreeMap::new(),
                spoke: false,
            });
        }
        let mut clients = core::mem::take(&mut self.clients);
        clients.retain_mut(|client| {
            let next = self.attend(client, nic, tcp);
            self.follow(client, next, nic, tcp)
        });
        self.clients = clients;
    }

    /// Answers what the client has said.
    fn attend(&mut self, client: &mut Client, nic: &mut Rnic, tcp: &mut Tcp) -> Next {
        tcp.read(client.socket, client.exchange.inbox());
        loop {
            let said = match client.exchange.next() {
                Ok(Some(said)) => said,
                Ok(None) => break,
                Err(what) => return Next::Failed(what),
            };
            client.spoke = true;
            let answer = match said {
                Said::Same(bytes) => bytes,
                Said::Mtu(theirs) => {
                    let ours = nic.config().mtu;
                    client.mtu = ours.min(theirs);
                    mtu_answer(ours).to_vec()
                }
                Said::Keys(theirs) => match self.pair(client, theirs, nic) {
                    Ok(ours) => ours.to_bytes(),
                    Err(what) => return Next::Failed(what),
                },
                Said::Done => {
                    // Nobody waits for it.
                    tcp.write(client.socket, DONE);
                    return Next::Finished;
                }
            };
            if !tcp.write(client.socket, &answer) {
                return Next::Failed("the client takes no answers".into());
            }
        }
        if !tcp.has_ended(client.socket) {
            Next::Wait
        } else if !client.spoke {
            Next::Gone
        } else if self.config.test == Test::WriteLat && client.exchange.is_between_messages() {
            Next::Finished
        } else {
            Next::Failed("the client left in the middle".into())
        }
    }

    /// Whether the client stays
    fn follow(&mut self, client: &Client, next: Next, nic: &mut Rnic, tcp: &mut Tcp) -> bool {
        let pairs = client.qps.len() as u64;
        match next {
            Next::Wait => return true,
            Next::Gone => tcp.abort(client.socket),
            Next::Finished => {
                tcp.close(client.socket);
                self.row.finished += pairs;
                if let Some((size, messages)) = client.exchange.reported {
                    self.row.operations += messages;
                    self.row.bytes = self.row.bytes.saturating_add(messages.saturating_mul(size));
                }
            }
            Next::Failed(what) => {
                tcp.abort(client.socket);
                if pairs == 0 {
                    self.row.refused += 1;
                } else {
                    self.row.failed += pairs;
                }
                self.row.error.get_or_insert(what);
            }
        }
        for qpn in client.qps.values() {
            if let Some(pair) = self.pairs.remove(&qpn.get()) {
                pair.place.destroy(nic);
            }
        }
        false
    }

    /// Our queue pair for the client's, which is made when it is first told.
    fn pair(&mut self, client: &mut Client, theirs: Keys, nic: &mut Rnic) -> Result<Keys, String> {
        if let Some(pair) = client.qps.get(&theirs.qpn).and_then(|qpn| self.pairs.get(&qpn.get())) {
            return Ok(pair.ours);
        }
        let src = nic.config().interface.source_for(theirs.address);
        let src = src.ok_or_else(|| format!("no address of the family of {}", theirs.address))?;
        let (bytes, depth) = match self.config.test {
            // What is written back lies behind what is written.
            Test::WriteLat => (2 * self.config.size as usize, DEPTH),
            test if test.sends() => (self.config.size as usize, RECEIVES),
            _ => (self.config.size as usize, DEPTH),
        };
        let place = Place::new(nic, self.pd, self.cq, self.config.transport, bytes, depth)
            .map_err(|error| format!("no room for a connection: {error}"))?;
        let ours = Keys {
            reads: READS,
            qpn: place.qpn.get(),
            psn: Psn::new(self.chance.bits() as u32).get(),
            rkey: place.mr.0,
            va: VA,
            address: src,
        };
        if let Err(error) = connect(nic, &place, &ours, &theirs, client.mtu) {
            place.destroy(nic);
            return Err(error.to_string());
        }
        if self.config.test.sends() {
            for _ in 0..RECEIVES {
                place.receive(nic, 0, self.config.size);
            }
        }
        self.row.connections += 1;
        client.qps.insert(theirs.qpn, place.qpn);
        self.pairs.insert(place.qpn.get(), Pair { place, ours, theirs, written: Written::default() });
        Ok(ours)
    }

    fn on_completion(&mut self, nic: &mut Rnic, tcp: &mut Tcp, completion: &Completion) {
        let Some(pair) = self.pairs.get(&completion.qpn.get()) else { return };
        match completion.status {
            rnic::Status::Success => {}
            rnic::Status::Flushed => return,
            status => {
                let what = format!("{:?} failed: {status:?}", completion.of);
                return self.fail(completion.qpn, what, nic, tcp);
            }
        }
        self.row.operations += 1;
        self.row.bytes += u64::from(completion.len);
        if completion.of == Completed::Recv {
            pair.place.receive(nic, 0, self.config.size);
            if self.config.test == Test::SendLat {
                let data = match completion.len {
                    0 => Data::None,
                    len => Data::Memory(pair.place.sge(0, len)),
                };
                // If the queue pair has failed meanwhile, a completion says so.
                _ = nic.post_send(completion.qpn, SendRequest::new(0, Operation::Send, data));
            }
        }
    }

    /// A queue pair has failed, and with it its client.
    fn fail(&mut self, qpn: Qpn, what: String, nic: &mut Rnic, tcp: &mut Tcp) {
        let whose = self.clients.iter().position(|client| client.qps.values().any(|own| *own == qpn));
        if let Some(index) = whose {
            let client = self.clients.swap_remove(index);
            self.follow(&client, Next::Failed(what), nic, tcp);
        }
    }

    /// Notes where a WRITE goes, before it is there.
    fn watch(&mut self, nic: &Rnic, frame: &[u8]) {
        let Some(packet) = Packet::parse(frame) else { return };
        let qpn = packet.bth().dest_qp();
        let Some(pair) = self.pairs.get_mut(&qpn.get()) else { return };
        if let Some(reth) = packet.reth() {
            let (at, len) = (reth.va.get().wrapping_sub(VA), reth.len.get());
            let fits = at.checked_add(len.into()).is_some_and(|end| end <= self.config.size.into());
            if fits && len > 0 && (pair.written.at, pair.written.len) != (at, len) {
                let last = nic.bytes(pair.place.buffer)[at as usize + len as usize - 1];
                pair.written = Written { at, len, last };
            }
        }
        self.written = Some(qpn);
    }

    /// Answers a WRITE whose last byte has come with one of the same length and last byte.
    fn write_back(&mut self, nic: &mut Rnic) {
        let Some(qpn) = self.written.take() else { return };
        let Some(pair) = self.pairs.get_mut(&qpn.get()) else { return };
        let Written { at, len, last } = pair.written;
        if len == 0 {
            return;
        }
        let size = self.config.size as usize;
        let end = at as usize + len as usize - 1;
        let memory = nic.bytes_mut(pair.place.buffer);
        if memory[end] == last {
            return;
        }
        pair.written.last = memory[end];
        memory[size + end] = memory[end];
        let to = Remote { va: pair.theirs.va, rkey: pair.theirs.rkey };
        let data = Data::Memory(pair.place.sge(size as u64 + at, len));
        // If the queue pair has failed meanwhile, a completion says so.
        _ = nic.post_send(qpn, SendRequest::new(0, Operation::Write(to), data));
    }
}

/// Connects a queue pair by hand: no CM takes part.
fn connect(
    nic: &mut Rnic,
    place: &Place,
    ours: &Keys,
    theirs: &Keys,
    mtu: PathMtu,
) -> Result<(), rnic::QpError> {
    let receive = ReadyToReceive {
        path: Path::new(ours.address, theirs.address),
        dest_qp: Qpn::new(theirs.qpn),
        mtu,
        rq_psn: Psn::new(theirs.psn),
        max_dest_rd_atomic: READS,
        min_rnr_timer: RnrTimer(12),
    };
    let send = ReadyToSend {
        sq_psn: Psn::new(ours.psn),
        max_rd_atomic: theirs.reads.min(READS),
        timeout: ACK_TIMEOUT,
        retry_count: ReadyToSend::NO_LIMIT,
        rnr_retry: RNR_RETRY,
        flow_control: false,
    };
    nic.modify_qp(place.qpn, Modify::Rtr(receive))?;
    nic.modify_qp(place.qpn, Modify::Rts(send))
}
