//! Two NICs and a link between them, in virtual time.

use crate::wire::{PathHeaderFields, PathHeaders};
use crate::*;
use core::cmp::Reverse;
use rocev2::aeth::RnrTimer;
use rocev2::ethernet::MacAddr;
use rocev2::{Packet, Psn, Qpn};
use std::collections::BinaryHeap;
use switch::{Nanos, Probability, Rng};

/// Virtual address of the first byte of every region
pub(super) const VA: u64 = 0x10_0000;
const DELAY: u64 = 1_000;

/// One end of a connection.
#[derive(Clone, Copy, Debug)]
pub(super) struct End {
    pub(super) cq: Cq,
    pub(super) qpn: Qpn,
    pub(super) buffer: Buffer,
    pub(super) mr: Mr,
}

impl End {
    pub(super) fn sge(&self, at: u64, len: u32) -> Sge {
        Sge { mr: self.mr, va: VA + at, len }
    }

    pub(super) fn remote(&self, at: u64) -> Remote {
        Remote { va: VA + at, rkey: self.mr.0 }
    }
}

/// Attributes of the queue pairs.
#[derive(Clone, Copy, Debug)]
pub(super) struct Setup {
    pub(super) transport: Transport,
    pub(super) mtu: PathMtu,
    pub(super) psn: Psn,
    pub(super) timeout: u8,
    pub(super) retry_count: u8,
    pub(super) rnr_retry: u8,
    pub(super) max_rd_atomic: u8,
    pub(super) flow_control: bool,
    pub(super) memory: usize,
}

impl Default for Setup {
    fn default() -> Self {
        Self {
            transport: Transport::Rc,
            mtu: PathMtu::B1024,
            psn: Psn::new(0xff_fff0),
            timeout: 5,
            retry_count: 7,
            rnr_retry: 7,
            max_rd_atomic: 4,
            flow_control: false,
            memory: 1 << 16,
        }
    }
}

impl Setup {
    /// Moves a new queue pair to RTS.
    pub(super) fn make_ready(&self, nic: &mut Rnic, qpn: Qpn, dest_qp: Qpn, path: Path) {
        let rtr = ReadyToReceive {
            path,
            dest_qp,
            mtu: self.mtu,
            rq_psn: self.psn,
            max_dest_rd_atomic: self.max_rd_atomic,
            min_rnr_timer: RnrTimer(1),
        };
        let rts = ReadyToSend {
            sq_psn: self.psn,
            max_rd_atomic: self.max_rd_atomic,
            timeout: self.timeout,
            retry_count: self.retry_count,
            rnr_retry: self.rnr_retry,
            flow_control: self.flow_control,
        };
        for modify in [Modify::Init { access: Access::ALL, qkey: 7 }, Modify::Rtr(rtr), Modify::Rts(rts)] {
            nic.modify_qp(qpn, modify).unwrap();
        }
    }
}

type Arrival = (Nanos, u64, usize, Vec<u8>);

pub(super) struct Pair {
    pub(super) nics: [Rnic; 2],
    /// Arrival, sequence number, receiver, frame
    link: BinaryHeap<Reverse<Arrival>>,
    sent: u64,
    pub(super) now: Nanos,
    pub(super) rng: Rng,
    /// Probability of each fault of a frame: loss, duplication, delay, corruption
    pub(super) fault_rate: Probability,
    /// A rule that drops packets; its second argument is the number of frames sent
    pub(super) drop_rule: Option<fn(&Packet<'_>, u64) -> bool>,
    /// Every frame that arrived, with its receiver
    pub(super) seen: Vec<(usize, Vec<u8>)>,
}

pub(super) fn address(nic: usize) -> core::net::IpAddr {
    [[10, 0, 0, 1], [10, 0, 0, 2]][nic].into()
}

pub(super) fn config(nic: usize) -> Config {
    let mac = MacAddr([2, 0, 0, 0, 0, nic as u8 + 1]);
    Config { seed: nic as u64, ..Config::new(Interface::new(mac, address(nic), 24)) }
}

impl Pair {
    pub(super) fn new(seed: u64, configs: [Config; 2]) -> Self {
        Self {
            nics: configs.map(Rnic::new),
            link: BinaryHeap::new(),
            sent: 0,
            now: Nanos::ZERO,
            rng: Rng::new(seed),
            fault_rate: Probability::NEVER,
            drop_rule: None,
            seen: Vec::new(),
        }
    }

    /// Returns two NICs and a connection between them.
    pub(super) fn connected(setup: Setup) -> (Self, [End; 2]) {
        let mut pair = Self::new(1, [config(0), config(1)]);
        let ends = pair.connect(setup);
        (pair, ends)
    }

    pub(super) fn connect(&mut self, setup: Setup) -> [End; 2] {
        let ends = [0, 1].map(|nic| {
            let nic = &mut self.nics[nic];
            let pd = nic.alloc_pd();
            let cq = nic.create_cq(1 << 16).unwrap();
            let (buffer, mr) = nic.register_new(pd, setup.memory, VA, Access::ALL).unwrap();
            let init = QpInit {
                transport: setup.transport,
                pd,
                send_cq: cq,
                recv_cq: cq,
                srq: None,
                max_send: 1 << 12,
                max_recv: 1 << 12,
            };
            End { cq, qpn: nic.create_qp(init).unwrap(), buffer, mr }
        });
        for nic in [0, 1] {
            let path = Path::new(address(nic), address(1 - nic));
            setup.make_ready(&mut self.nics[nic], ends[nic].qpn, ends[1 - nic].qpn, path);
        }
        ends
    }

    pub(super) fn post(&mut self, nic: usize, qpn: Qpn, id: u64, operation: Operation, data: Data) {
        self.nics[nic].post_send(qpn, SendRequest::new(id, operation, data)).unwrap();
    }

    /// Executes a WRITE of 0 bytes each way, so that both NICs have resolved each other's MAC address.
    pub(super) fn resolve_neighbours(&mut self, ends: &[End; 2]) {
        for nic in [0, 1] {
            self.post(nic, ends[nic].qpn, 0, Operation::Write(ends[1 - nic].remote(0)), Data::None);
        }
        self.run();
        for nic in [0, 1] {
            assert_eq!(self.statuses(nic, &ends[nic]), [(0, Status::Success)]);
        }
    }

    /// Returns all packets that a NIC sends now, without putting them on the link: the test delivers or drops
    /// them.
    pub(super) fn frames(&mut self, nic: usize) -> Vec<Vec<u8>> {
        let (mut frame, mut packets) = (Vec::new(), Vec::new());
        while self.nics[nic].poll_transmit(self.now, &mut frame) {
            if Packet::parse(&frame).is_some() {
                packets.push(frame.clone());
            } else {
                // ARP frames are delivered directly.
                self.nics[1 - nic].on_frame(&frame, self.now);
            }
        }
        packets
    }

    /// Delivers frames to a NIC now.
    pub(super) fn deliver(&mut self, to: usize, frames: &[Vec<u8>]) {
        for frame in frames {
            self.nics[to].on_frame(frame, self.now);
        }
    }

    /// Returns the headers of packets from the other NIC to this one, for forged packets.
    pub(super) fn path_headers(&self, to: usize) -> PathHeaders {
        let [src_mac, dst_mac] = [1 - to, to].map(|nic| self.nics[nic].config().interface.mac);
        let (src, dst) = (address(1 - to), address(to));
        let (vlan, traffic_class, hop_limit, src_port) = (None, 0, 64, 0xc000);
        PathHeaders::new(&PathHeaderFields {
            src_mac,
            dst_mac,
            vlan,
            src,
            dst,
            traffic_class,
            hop_limit,
            src_port,
        })
        .unwrap()
    }

    fn transmit(&mut self, to: usize, mut frame: Vec<u8>) {
        self.sent += 1;
        let taken = self
            .drop_rule
            .is_some_and(|rule| Packet::parse(&frame).is_some_and(|packet| rule(&packet, self.sent)));
        let [lost, again, late, corrupted] = [(); 4].map(|()| self.rng.happens(self.fault_rate));
        if taken || lost {
            return;
        }
        if corrupted {
            let at = self.rng.below(frame.len() as u64) as usize;
            frame[at] ^= 1 << self.rng.below(8);
        }
        for _ in 0..=u8::from(again) {
            let extra = if late || again { self.rng.below(50 * DELAY) } else { 0 };
            self.sent += 1;
            let at = self.now + Nanos(DELAY + extra);
            self.link.push(Reverse((at, self.sent, to, frame.clone())));
        }
    }

    /// Lets the NICs send, and advances to the next event, unless it is after `until`. Returns false if there
    /// is none.
    pub(super) fn step(&mut self, until: Nanos) -> bool {
        for nic in [0, 1] {
            let mut frame = Vec::new();
            while self.nics[nic].poll_transmit(self.now, &mut frame) {
                self.transmit(1 - nic, frame.clone());
            }
        }
        let arrival = self.link.peek().map(|Reverse((at, ..))| *at);
        let timers = [0, 1].map(|nic| self.nics[nic].next_timer());
        let Some(next) = timers.into_iter().chain([arrival]).flatten().min() else { return false };
        if next > until {
            self.now = until;
            return false;
        }
        self.now = self.now.max(next);
        for nic in [0, 1] {
            if self.nics[nic].next_timer().is_some_and(|at| at <= self.now) {
                self.nics[nic].on_timer(self.now);
            }
        }
        while self.link.peek().is_some_and(|Reverse((at, ..))| *at <= self.now) {
            let Some(Reverse((_, _, to, frame))) = self.link.pop() else { break };
            self.nics[to].on_frame(&frame, self.now);
            self.seen.push((to, frame));
        }
        true
    }

    /// Runs until no event is left, or for `span`.
    pub(super) fn run_for(&mut self, span: Nanos) {
        let until = self.now + span;
        while self.step(until) {}
    }

    /// Runs until no event is left, or for one second.
    pub(super) fn run(&mut self) {
        self.run_for(Nanos::from_secs(1));
    }

    pub(super) fn completions(&mut self, nic: usize, end: &End) -> Vec<Completion> {
        core::iter::from_fn(|| self.nics[nic].poll_cq(end.cq)).collect()
    }

    /// Returns the work request IDs and statuses of all completions.
    pub(super) fn statuses(&mut self, nic: usize, end: &End) -> Vec<(u64, Status)> {
        self.completions(nic, end).iter().map(|completion| (completion.id, completion.status)).collect()
    }
}
