//! Sends arbitrary packets and frames to a 1Pipe process that sends, while its clock is set and time passes.
//! The process does not panic. It delivers in order and never ahead of its clock, does not break the barriers
//! that it has announced on its link, and stays within its buffers. Its messages to each peer leave once, in
//! the order of the calls, whether buffered or sent at once, and with consecutive PSNs. Each scattering has
//! its own timestamp, and is settled once.

use onepipe::process::{BeaconPeer, Config, Event, Message, Peer, Process, ProcessId, Scattering};
use onepipe::{AckBody, ClockSample, NakBody, OnePipe, OnePipeOpcode, Timestamp};
use rocev2::deth::Deth;
use rocev2::ethernet::MacAddr;
use rocev2::path_headers::{PathHeaderFields, PathHeaders};
use rocev2::{Bth, Opcode, Packet, Psn, Qpn};
use std::collections::BTreeSet;
use switch::Nanos;
use zerocopy::{FromBytes, IntoBytes};

const PEERS: u8 = 3;
const TOR: u8 = 9;
const CLOCK: Timestamp = Timestamp::new((1 << 48) - 20_000);
const BUFFER: usize = 3000;

fn peer(n: u8) -> Peer {
    let mac = MacAddr([2, 0, 0, 0, 0, n]);
    Peer { id: ProcessId(n.into()), mac, address: [10, 0, 0, n].into(), qpn: Qpn::new(64 + u32::from(n)) }
}

struct Host {
    process: Process,
    now: Nanos,
    /// Next PSN from each peer, and the latest PSN sent to it
    psns: [(Psn, Psn); PEERS as usize + 1],
    /// Peers to which a message was sent, with the last scattering of which a first packet was sent
    #[expect(clippy::option_option, reason = "no packet yet, or a packet with no scattering before it")]
    last_scatterings: [Option<Option<u64>>; PEERS as usize + 1],
    /// Timestamp and number of the last scattering that left, if its packets identify it
    last_stamped: Option<(Timestamp, u64)>,
    /// Number of scatterings that the process has accepted
    accepted: u64,
    last_barrier: Option<Timestamp>,
    delivered: Option<(Timestamp, ProcessId)>,
    open: BTreeSet<Scattering>,
}

impl Host {
    fn new(how: u8) -> Self {
        let Peer { mac, address, qpn, .. } = peer(TOR);
        let mut config = Config::new(peer(0), BeaconPeer { mac, address, qpn, detour: Vec::new() });
        config.peers = (1..=PEERS).map(peer).collect();
        config.mtu = 256;
        config.declares = how & 1 != 0;
        config.clock = CLOCK;
        config.clock_error = Nanos::ZERO;
        (config.receive_window, config.receive_buffer) = (2000, BUFFER);
        (config.initial_window, config.send_buffer, config.max_unsettled) = (1000, BUFFER, 40);
        let process = Process::new(config).unwrap();
        let psns = [(Psn::new(0xff_fff8), Psn::ZERO); PEERS as usize + 1];
        Self {
            process,
            now: Nanos::ZERO,
            psns,
            last_scatterings: [None; PEERS as usize + 1],
            last_stamped: None,
            accepted: 0,
            last_barrier: None,
            delivered: None,
            open: BTreeSet::new(),
        }
    }

    /// Records a scattering that the process has accepted. They are numbered consecutively.
    fn record_accepted(&mut self, scattering: Scattering) {
        assert_eq!(scattering.0, self.accepted);
        self.accepted += 1;
        assert!(self.open.insert(scattering));
    }

    /// Returns the payload of a message of the next scattering. It begins with the scattering's number if
    /// there is room.
    fn message_text(&self, len: usize, fill: u8) -> Vec<u8> {
        let mut message_text = vec![fill; len];
        if let Some(number) = message_text.first_chunk_mut() {
            *number = self.accepted.to_be_bytes();
        }
        message_text
    }

    fn deliver(&mut self, from: u8, header: &OnePipe, payload: &[u8]) {
        let ends = PathHeaderFields {
            src_mac: peer(from).mac,
            dst_mac: peer(0).mac,
            vlan: None,
            src: peer(from).address,
            dst: peer(0).address,
            traffic_class: header.psn().get() as u8 & 3,
            hop_limit: 1,
            src_port: 0xc000,
        };
        let bth = Bth::new(Opcode::UD_SEND_ONLY, peer(0).qpn, Psn::ZERO);
        let deth = Deth::new(OnePipe::QKEY, peer(from).qpn);
        let mut frame = Vec::new();
        PathHeaders::new(&ends).unwrap().emit(
            &mut frame,
            bth,
            &[deth.as_bytes(), header.as_bytes()],
            payload,
        );
        _ = self.process.on_frame(&frame, self.now);
    }

    fn step(&mut self, [kind, a, b, c]: [u8; 4], bytes: &[u8]) {
        let clock = self.process.timestamp(self.now);
        let near =
            |by: u8, unit: i64| Timestamp::new(clock.nanos().wrapping_add_signed(i64::from(by as i8) * unit));
        let from = 1 + a % PEERS;
        let psns = &mut self.psns[usize::from(from)];
        match kind & 7 {
            0 | 1 => {
                // Mostly the next PSN
                let by = if kind & 1 == 0 { 0 } else { i32::from(b as i8) };
                let psn = psns.0.add(by as u32 & 0xff_ffff);
                psns.0 = psn.add(1);
                let mut header = OnePipe::new(OnePipeOpcode::DATA, near(c, 40), psn);
                header.set_first(kind & 8 == 0);
                header.set_end_of_message(kind & 16 == 0);
                header.set_timestamp_follows(kind & 32 != 0);
                self.deliver(from, &header, &bytes[..bytes.len().min(usize::from(a))]);
            }
            2 => {
                let psn = psns.1.add(b as i8 as u32 & 0xff_ffff);
                let header = OnePipe::new(OnePipeOpcode::ACK, clock, psn);
                let mut arrivals = [0; AckBody::LEN];
                let len = bytes.len().min(28);
                arrivals[..len].copy_from_slice(&bytes[..len]);
                let mut arrivals = AckBody::read_from_bytes(&arrivals).unwrap();
                arrivals.set_next(psn.add(c as i8 as u32 & 0xff_ffff));
                self.deliver(from, &header, arrivals.as_bytes());
            }
            3 => {
                let header = OnePipe::new(OnePipeOpcode::NAK, clock, psns.1.sub(b.into()));
                self.deliver(from, &header, NakBody::new(c).as_bytes());
            }
            4 => {
                let mut header = OnePipe::new(OnePipeOpcode::BEACON, near(b, 100), Psn::ZERO);
                if c & 1 != 0 {
                    header.declare(c & 2 != 0, c & 4 != 0);
                }
                self.deliver(TOR, &header, &[]);
            }
            5 if a & 32 != 0 => {
                // To itself, to a peer, or to an unknown process
                let (dst, message_text) =
                    (ProcessId((a & 7).into()), self.message_text(usize::from(b) * 2, c));
                let mut frame = vec![c; usize::from(a)];
                match self.process.send_at_once(self.now, dst, &message_text, &mut frame) {
                    Some(scattering) => {
                        self.record_accepted(scattering);
                        assert_eq!(self.check_sent(&frame), Some(OnePipeOpcode::DATA));
                    }
                    None if a & 64 != 0 => {
                        if let Ok(scattering) =
                            self.process.unreliable_send(self.now, &[(dst, &message_text)])
                        {
                            self.record_accepted(scattering);
                        }
                    }
                    None => {}
                }
            }
            5 => {
                let message_text = self.message_text(usize::from(b) * 4, c);
                let all = (0..=PEERS).filter(|n| a >> n & 1 != 0).chain((a & 16 != 0).then_some(a & 3));
                let messages: Vec<_> = all.map(|n| (ProcessId(n.into()), &message_text[..])).collect();
                if let Ok(scattering) = self.process.unreliable_send(self.now, &messages) {
                    self.record_accepted(scattering);
                }
            }
            6 => self.now = self.now + Nanos(u64::from(b) << (c % 16)),
            _ if a.is_multiple_of(4) => {
                self.process.set_clock(ClockSample::at(near(b, 1000), self.now), self.now);
            }
            _ if a & 3 == 1 => _ = self.process.set_alive(ProcessId((b % 5).into()), c & 1 != 0, self.now),
            _ => _ = self.process.on_frame(bytes, self.now),
        }
    }

    /// Checks a frame that leaves. Returns its opcode, unless it is a beacon.
    fn check_sent(&mut self, frame: &[u8]) -> Option<OnePipeOpcode> {
        let packet = Packet::parse(frame).unwrap();
        assert!(packet.verify_icrc());
        let header = OnePipe::of(&packet).unwrap();
        if header.opcode() == OnePipeOpcode::DATA {
            assert!(self.last_barrier.is_none_or(|last_barrier| !header.timestamp().precedes(last_barrier)));
            let to = usize::from(packet.ethernet().dst.0[5]);
            let last_scatterings = &mut self.last_scatterings[to];
            assert!(
                last_scatterings.is_none() || header.psn() == self.psns[to].1.add(1),
                "a PSN was skipped or used twice"
            );
            self.psns[to].1 = header.psn();
            let before = last_scatterings.get_or_insert(None);
            let payload = &packet.payload()[OnePipe::LEN..];
            if let (true, Some(number)) = (header.first(), payload.first_chunk()) {
                let number = u64::from_be_bytes(*number);
                assert!(
                    number < self.accepted && before.replace(number).is_none_or(|before| before < number)
                );
                let (time, of) = (header.timestamp(), (header.timestamp(), number));
                if !header.timestamp_follows()
                    && let Some((before, scattering)) = self.last_stamped.replace(of)
                {
                    assert!(before.precedes(time) || before == time && scattering == number);
                }
            }
        }
        if let Some(barrier) = header.barrier() {
            assert!(self.last_barrier.is_none_or(|last_barrier| !barrier.precedes(last_barrier)));
            self.last_barrier = Some(barrier);
        }
        (header.opcode() != OnePipeOpcode::BEACON).then(|| header.opcode())
    }

    fn check(&mut self, mut sends: u8) {
        if self.process.next_timer().is_some_and(|at| at <= self.now) {
            self.process.on_timer(self.now);
        }
        let mut frame = Vec::new();
        while sends > 0 && self.process.poll_transmit(self.now, &mut frame) {
            sends -= 1;
            self.check_sent(&frame);
        }
        let (unsent, kept) = self.process.buffered();
        assert!(unsent <= BUFFER && kept <= BUFFER);
        if sends & 1 == 0 {
            while let Some(Message { timestamp, src, .. }) = self.process.unreliable_recv() {
                let clock = self.process.timestamp(self.now);
                assert!(timestamp.precedes(clock));
                if let Some((before, sender)) = self.delivered.replace((timestamp, src)) {
                    assert!(before.precedes(timestamp) || before == timestamp && sender <= src);
                }
            }
        }
        while let Some(event) = self.process.poll_event() {
            match event {
                Event::Settled { scattering, .. } => assert!(self.open.remove(&scattering)),
                Event::SendFailed { scattering, .. } => assert!(self.open.contains(&scattering)),
                Event::Stalled { .. } | Event::Recovered { .. } => {}
            }
        }
    }
}

/// Runs one input.
pub(crate) fn run(input: &[u8]) {
    let Some((&how, mut rest)) = input.split_first() else { return };
    let mut host = Host::new(how);
    while let Some((&step, after)) = rest.split_first_chunk() {
        // Only frames need more than 12 bytes.
        let len = if step[0] & 7 == 7 { usize::from(step[1]) } else { 12 };
        let (bytes, after) = after.split_at(len.min(after.len()));
        rest = after;
        host.step(step, bytes);
        host.check(step[0] >> 6 | step[3] >> 5);
    }
    host.process.leave();
    host.check(255);
    assert!(host.open.is_empty(), "{:?}", host.open);
}
