//! A host of 1Pipe's best-effort service, as far as barriers go: no windows, no congestion control, no acknowledgements.

use super::{At, BEACON_INTERVAL as T, CLOCK, HOST_QP, host_at};
use crate::node::{Node, Ports};
use core::net::IpAddr;
use rocev2::deth::Deth;
use rocev2::ethernet::{Ethernet, ethertype};
use rocev2::ipv4::Ipv4;
use rocev2::onepipe::{OnePipe, OnePipeOpcode, Timestamp};
use rocev2::repr::{Ip, Repr};
use rocev2::{Bth, Opcode, Packet, Psn};
use std::collections::{BTreeMap, BTreeSet};
use switch::memory::MemoryFrame;
use switch::{Chance, Frame, Nanos, Output, PortId};
use zerocopy::IntoBytes;

/// A message at its receiver: its timestamp on a line that does not wrap, its sender, and its sender's number for it. The
/// order of delivery
pub type Message = (u64, usize, u64);

/// A host: sends scatterings when it likes and beacons at instants, and delivers below the barrier.
pub struct Host {
    own: usize,
    place: Place,
    chance: Chance,
    next_message: Nanos,
    next_beacon: Nanos,
    /// The latest timestamp given to anything
    stamped: u64,
    sent: u64,
    barrier: Option<Timestamp>,
    /// When the barrier last rose
    rose: Option<Nanos>,
    /// What waits for the barrier
    pub waiting: BTreeSet<Message>,
    /// What was delivered
    pub delivered: Vec<Message>,
    /// From sending to delivery, all together, in nanoseconds
    pub took_ns: u64,
    /// The longest time in which the barrier did not rise
    pub stall: Nanos,
    /// Messages that were refused, as their time was past, by sender: the barrier was too high for them
    pub late: BTreeMap<usize, u64>,
    /// Barriers that went back
    pub went_back: u64,
    /// Barriers ahead of the host's own clock: what is below might be delivered before it could have been caused
    pub ahead: u64,
}

/// Where a host is, and what it does.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    /// How many hosts there are
    pub(super) hosts: usize,
    /// Where its beacons go
    pub(super) tor: At,
    /// Scatterings are this far apart on average
    pub(super) every: Nanos,
    /// and none are sent from then on
    pub(super) until: Nanos,
    /// Whether messages carry the barrier of the link
    pub(super) barriers_in_messages: bool,
}

/// 1Pipe's time without its wrap
pub(super) fn true_time(now: Nanos) -> u64 {
    (1 << 48) + CLOCK.nanos() + now.0
}

/// The time near `now` that a timestamp means
fn unwrap(timestamp: Timestamp, now: Nanos) -> u64 {
    let now = true_time(now);
    now.wrapping_add_signed(timestamp.distance(Timestamp::new(now)))
}

impl Host {
    pub(super) fn new(own: usize, place: Place, seed: u64) -> Self {
        Self {
            own,
            place,
            chance: Chance::stream(seed, 1 << 32 | own as u64),
            next_message: Nanos::ZERO,
            next_beacon: Nanos::ZERO,
            stamped: 0,
            sent: 0,
            barrier: None,
            rose: None,
            waiting: BTreeSet::new(),
            delivered: Vec::new(),
            took_ns: 0,
            stall: Nanos::ZERO,
            late: BTreeMap::new(),
            went_back: 0,
            ahead: 0,
        }
    }

    /// Which host it is
    pub fn number(&self) -> usize {
        self.own
    }

    /// A timestamp: the clock, unless it was set back.
    fn stamp(&mut self, now: Nanos) -> Timestamp {
        self.stamped = self.stamped.max(true_time(now));
        Timestamp::new(self.stamped)
    }

    fn send(&self, to: At, header: OnePipe, text: &[u8], out: &mut Ports<'_>) {
        let own = host_at(self.own);
        let ethernet = Ethernet { dst: to.mac, src: own.mac, ethertype: ethertype::IPV4.into() };
        let ip = Ipv4 { src: own.ip.octets(), dst: to.ip.octets(), ..Ipv4::default() };
        let mut repr =
            Repr::new(ethernet, Ip::V4(ip, &[]), Bth::new(Opcode::UD_SEND_ONLY, to.qpn, Psn::ZERO));
        repr.extended.deth = Deth::new(OnePipe::QKEY, HOST_QP);
        let payload = [header.as_bytes(), text].concat();
        repr.payload = &payload;
        let mut frame = vec![0; repr.frame_len() + 4];
        let len = repr.build(&mut frame).unwrap();
        frame.truncate(len);
        out.send(MemoryFrame::new(frame), PortId(0)).expect("room in the queue");
    }

    fn deliver(&mut self, now: Nanos) {
        let Some(barrier) = self.barrier.map(|barrier| unwrap(barrier, now)) else { return };
        while let Some(&message) = self.waiting.first()
            && message.0 < barrier
        {
            self.waiting.pop_first();
            self.took_ns += true_time(now).saturating_sub(message.0);
            self.delivered.push(message);
        }
    }
}

impl Node for Host {
    fn on_frame(&mut self, frame: MemoryFrame, _port: PortId, now: Nanos, _out: &mut Ports<'_>) {
        let Some(packet) = Packet::parse(frame.bytes()) else { return };
        if !packet.verify_icrc() || packet.ethernet().dst != host_at(self.own).mac {
            return;
        }
        let header = packet.onepipe().expect("nothing else is sent");
        let message = header.opcode() == OnePipeOpcode::DATA;
        if message {
            let ns = unwrap(header.timestamp(), now);
            let late = self.barrier.is_some_and(|barrier| header.timestamp().precedes(barrier));
            let [.., a, b, c, d] = *packet.payload() else { unreachable!("a number") };
            let IpAddr::V4(ip) = packet.src() else { unreachable!("IPv4 alone") };
            let [.., high, low] = ip.octets();
            let sender = usize::from(u16::from_be_bytes([high, low]));
            if late {
                *self.late.entry(sender).or_default() += 1;
            } else {
                self.waiting.insert((ns, sender, u32::from_be_bytes([a, b, c, d]).into()));
            }
        }
        if let Some(barrier) = header.barrier()
            && (self.place.barriers_in_messages || !message)
        {
            self.went_back += u64::from(self.barrier.is_some_and(|before| barrier.precedes(before)));
            // Nobody delivers what is not past by its own clock (causality).
            self.ahead += u64::from(unwrap(barrier, now) > self.stamped.max(true_time(now)));
            if self.barrier.is_none_or(|before| before.precedes(barrier)) {
                self.stall = self.stall.max(now.since(self.rose.unwrap_or(now)));
                self.rose = Some(now);
            }
            self.barrier = Some(barrier);
        }
        self.deliver(now);
    }

    fn on_timer(&mut self, now: Nanos, out: &mut Ports<'_>) {
        if self.next_beacon <= now {
            let stamp = self.stamp(now);
            self.send(self.place.tor, OnePipe::new(OnePipeOpcode::BEACON, stamp, Psn::ZERO), &[], out);
            let time = CLOCK.add(now.0).nanos();
            self.next_beacon = now + Nanos((T.0 - time % T.0).min((1 << 48) - time));
        }
        if self.next_message <= now && now < self.place.until {
            // A scattering: one timestamp
            let stamp = self.stamp(now);
            for _ in 0..self.chance.between(1, 3) {
                let to = self.chance.below(self.place.hosts as u64) as usize;
                if to != self.own {
                    let header = OnePipe::new(OnePipeOpcode::DATA, stamp, Psn::ZERO);
                    self.send(host_at(to), header, &(self.sent as u32).to_be_bytes(), out);
                    self.sent += 1;
                }
            }
            self.next_message = now + Nanos(self.chance.between(1, 2 * self.place.every.0));
        }
    }

    fn next_timer(&self) -> Option<Nanos> {
        Some(if self.next_message < self.place.until {
            self.next_beacon.min(self.next_message)
        } else {
            self.next_beacon
        })
    }

    fn start(&mut self, now: Nanos, _out: &mut Ports<'_>) {
        // Not all at once
        self.next_message = now + Nanos(self.chance.below(2 * self.place.every.0));
        self.next_beacon = now;
    }
}
