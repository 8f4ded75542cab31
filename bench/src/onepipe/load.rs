//! Synthetic 1Pipe traffic that can be played repeatedly.
//!
//! Timestamps wrap at 48 bits, and the capture wraps with them: they increase from each frame, or round of
//! beacons, to the next, and from the last to the first as well, so that every message raises its link's
//! register, however often the capture is played. Messages are `MESSAGE_GAP_NS` apart, with a jump every
//! `MESSAGES_PER_RUN`, without which one capture would not cover the 48 bits; rounds of beacons are an
//! equal part of the 48 bits apart.

use clap::ValueEnum;
use core::fmt;
use core::net::{IpAddr, Ipv4Addr};
use onepipe::{OnePipe, OnePipeOpcode, Timestamp};
use representative::config::{BeaconForm, Config, End, Incarnation, Link, Pace, Registers, Side};
use representative::{Counters, Refusal, Representative, SharedWords};
use rocev2::deth::Deth;
use rocev2::ethernet::{Ethernet, MacAddr, ethertype};
use rocev2::ipv4::Ipv4;
use rocev2::repr::{Ip, Repr};
use rocev2::{Bth, Opcode, Psn, Qpn};
use std::sync::Arc;
use switch::forward::config::ForwardingMode;
use switch::{Nanos, PortId, forward};
use zerocopy::IntoBytes;

/// Frames of a capture: few enough for the caches, and enough that the barriers, which are unwrapped to 64
/// bits, do not overflow before the capture was played 65,535 times
const FRAMES: usize = 4096;
const OWN: MacAddr = MacAddr([2, 0, 0, 0, 0, 1]);
const PEER: MacAddr = MacAddr([2, 0, 0, 0, 0, 2]);
const OWN_IP: Ipv4Addr = Ipv4Addr::new(198, 18, 0, 1);
const FIRST_QP: Qpn = Qpn::new(0x100);
/// Messages from one jump of time to the next, and nanoseconds from a message to the next: 20 million a
/// second
const MESSAGES_PER_RUN: usize = 128;
const MESSAGE_GAP_NS: u64 = 50;
/// Beacon interval with messages. With beacons it is `INTERVAL_PER_LINK_NS` times the number of links, so
/// that a round takes about one interval
const INTERVAL: Nanos = Nanos::from_micros(3);
const INTERVAL_PER_LINK_NS: u64 = 100;

/// Kind of traffic.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Kind {
    /// Best-effort messages through a chip, which reflects them
    Messages,
    /// Beacons of each link in turn, to a host; it sends each link a beacon when it has received one of every
    /// link
    Beacons,
}

/// Ports of a switch whose traffic is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Ports {
    /// One port with all links, which reflects messages
    One,
    /// Four ports with a link each, which reflect messages: each is received and sent by the same worker
    Four,
    /// Four ports with a link each. Two of them send to each other, so that half of all messages are received by one worker
    /// and sent by another, if there are two
    Crossed,
}

impl Ports {
    const fn count(self) -> u16 {
        match self {
            Self::One => 1,
            Self::Four | Self::Crossed => 4,
        }
    }

    fn pairs(self) -> Vec<(PortId, PortId)> {
        let crossed = if self == Self::Crossed { 2 } else { 0 };
        let reflecting = (crossed..self.count()).map(|port| (PortId(port), PortId(port)));
        (crossed > 0).then_some((PortId(0), PortId(1))).into_iter().chain(reflecting).collect()
    }
}

/// Traffic of a measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Load {
    /// Kind of traffic
    pub kind: Kind,
    /// Number of links, distributed over the ports round-robin
    pub links: u16,
    /// Ports, and where messages leave
    pub ports: Ports,
    /// Bytes behind a message's header
    pub payload: usize,
    /// Whether each link's other end is a switch with a standby, which sends and gets beacons as well
    pub standby: bool,
}

impl fmt::Display for Load {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.kind {
            Kind::Messages => write!(f, "messages of {} B", self.payload),
            Kind::Beacons => write!(f, "beacons of {} links", self.links),
        }
    }
}

/// Returns the address of the first or second end of a link.
fn address(link: u16, end: u8) -> Ipv4Addr {
    let [high, low] = link.to_be_bytes();
    Ipv4Addr::new(10, 1 + end, high, low)
}

impl Load {
    /// Returns the frames of each port's capture.
    pub fn captures(&self) -> Vec<Vec<Vec<u8>>> {
        (0..self.ports.count()).map(|port| self.frames(port)).collect()
    }

    fn frames(&self, port: u16) -> Vec<Vec<u8>> {
        let links = (port..self.links).step_by(self.ports.count().into());
        let rounds = FRAMES.div_ceil(links.len()).next_power_of_two();
        let step = (1 << 48) / rounds as u64;
        let time = |round: usize| match self.kind {
            Kind::Messages => {
                step * (round / MESSAGES_PER_RUN * MESSAGES_PER_RUN) as u64
                    + MESSAGE_GAP_NS * (round % MESSAGES_PER_RUN) as u64
            }
            Kind::Beacons => step * round as u64,
        };
        let frame = |round: usize, link: u16, end: u8| {
            self.build(self.kind, (link, end), Timestamp::new(time(round) + step / 2))
        };
        // A chip reads barriers in messages after a beacon that declares them. `dead_after_intervals` is large,
        // so the declaration stays valid.
        let declaring = if self.kind == Kind::Messages { links.len() } else { 0 };
        let declare = |link| self.build(Kind::Beacons, (link, 0), Timestamp::new(step / 4));
        let declarations = links.clone().take(declaring).map(declare);
        let senders = links.flat_map(|link| (0..=u8::from(self.standby)).map(move |end| (link, end)));
        let rounds =
            (0..rounds).flat_map(|round| senders.clone().map(move |(link, end)| frame(round, link, end)));
        declarations.chain(rounds).collect()
    }

    fn build(&self, kind: Kind, (link, end): (u16, u8), timestamp: Timestamp) -> Vec<u8> {
        let (opcode, dst, dst_ip, qpn) = match kind {
            Kind::Messages => (OnePipeOpcode::DATA, PEER, Ipv4Addr::new(10, 2, 0, 1), Qpn::new(0x99)),
            Kind::Beacons => (OnePipeOpcode::BEACON, OWN, OWN_IP, Qpn::new(FIRST_QP.get() + u32::from(link))),
        };
        let ethernet = Ethernet { dst, src: PEER, ethertype: ethertype::IPV4.into() };
        let ip = Ipv4 { src: address(link, end).octets(), dst: dst_ip.octets(), ..Ipv4::default() };
        let mut repr = Repr::new(ethernet, Ip::V4(ip, &[]), Bth::new(Opcode::UD_SEND_ONLY, qpn, Psn::ZERO));
        repr.extended.deth = Deth::new(OnePipe::QKEY, Qpn::new(0x11));
        let mut header = OnePipe::new(opcode, timestamp, Psn::ZERO);
        if kind == Kind::Beacons {
            header.declare(true, true);
        }
        let message = if kind == Kind::Messages { self.payload } else { 0 };
        let payload = [header.as_bytes(), &vec![0x5a; message]].concat();
        repr.payload = &payload;
        let mut frame = vec![0; repr.frame_len()];
        repr.build(&mut frame).expect("a frame of the right length");
        frame
    }

    /// Returns the configuration of the switch that handles the traffic.
    pub fn config(&self) -> Config {
        let link = |n: u16| Link {
            // A switch refuses messages that go up again.
            side: if self.kind == Kind::Messages || n < self.links.div_ceil(2) {
                Side::Below
            } else {
                Side::Above
            },
            port: PortId(n % self.ports.count()),
            mac: PEER,
            address: IpAddr::V4(address(n, 0)),
            detour: Vec::new(),
            qpn: Qpn::new(0x11),
            beacon: BeaconForm::Datagram,
            standby: self.standby.then(|| End {
                mac: PEER,
                address: IpAddr::V4(address(n, 1)),
                detour: Vec::new(),
                qpn: Qpn::new(0x11),
                beacon: BeaconForm::Datagram,
            }),
        };
        Config {
            forward: forward::Config {
                mode: ForwardingMode::Pairs(self.ports.pairs()),
                ..forward::Config::bridge(self.ports.count(), 0)
            },
            incarnation: match self.kind {
                Kind::Messages => Incarnation::Chip,
                Kind::Beacons => Incarnation::Host,
            },
            pace: Pace::Passing,
            mac: OWN,
            addresses: vec![OWN_IP.into()],
            qkey: OnePipe::QKEY,
            first_qp: FIRST_QP,
            registers: Registers { va: 0, rkey: 0 },
            beacon_interval: match self.kind {
                Kind::Messages => INTERVAL,
                Kind::Beacons => {
                    Nanos((INTERVAL_PER_LINK_NS * u64::from(self.links)).clamp(1_000, 1_000_000))
                }
            },
            dead_after_intervals: 1_000_000_000,
            fail_after_intervals: None,
            join_window: Nanos::from_secs(1 << 20),
            // The capture's timestamps are unrelated to the clock.
            ahead_max: Nanos(u64::MAX),
            clock_source: onepipe::ClockSource::Host,
            clock: Timestamp::default(),
            traffic_class: 0,
            links: (0..self.links).map(link).collect(),
            evict_after: Nanos::ZERO,
            layer: 1,
            declares: true,
            bug: None,
        }
    }

    /// Creates the switch function of each worker for the traffic.
    ///
    /// # Panics
    /// If there are several workers, and the traffic is beacons or several links share a port.
    pub fn make(&self, workers: usize) -> Vec<Representative> {
        let config = self.config();
        let shared = SharedWords::new(&config, workers);
        (0..workers)
            .map(|worker| {
                Representative::on_worker(config.clone(), worker, &shared).expect("a valid configuration")
            })
            .collect()
    }

    /// Checks that the counters of all workers match the traffic, after `frames` frames.
    ///
    /// # Errors
    /// The counter that differs from the expected value.
    pub fn check(&self, counters: &[Arc<Counters>], frames: u64) -> Result<(), String> {
        let sum = |count: &dyn Fn(&Counters) -> u64| counters.iter().map(|own| count(own)).sum::<u64>();
        for why in Refusal::ALL {
            let refused = sum(&|counters| counters.refused(why));
            if refused > 0 {
                return Err(format!("{refused} refused: {}", why.name()));
            }
        }
        let datagrams = sum(&|counters| counters.datagrams.get());
        let (accepted, beacons) = match self.kind {
            Kind::Messages => (sum(&|counters| counters.messages.get()) + datagrams, 0),
            // With fewer links than a burst has frames, one beacon may answer several rounds.
            Kind::Beacons if self.links < 32 => (datagrams, frames / 8),
            Kind::Beacons => (datagrams, frames / 10 * 9),
        };
        if accepted != frames {
            return Err(format!("{accepted} of {frames} frames were accepted"));
        }
        let sent = sum(&|counters| counters.beacons.get());
        if sent < beacons || sum(&|counters| counters.dead.get()) > 0 {
            return Err(format!("{sent} beacons were sent for {frames}"));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use switch::memory::{FrameCollector, MemoryFrame, run_frame};
    use switch::{Function, Verdict};

    #[test]
    fn every_frame_raises_barriers_in_every_replay() {
        let loads = [
            (Kind::Messages, 1, 64, false),
            (Kind::Beacons, 8, 0, false),
            (Kind::Beacons, 64, 0, false),
            (Kind::Beacons, 64, 0, true),
        ];
        for (kind, links, payload, standby) in loads {
            let load = Load { kind, links, ports: Ports::One, payload, standby };
            let (frames, mut function) = (load.captures().remove(0), load.make(1).remove(0));
            let counters = [function.counters()];
            let mut before = function.barriers(Side::Below).0;
            let mut now = Nanos::ZERO;
            for _ in 0..3 {
                for round in frames.chunks(usize::from(links) << usize::from(standby)) {
                    for frame in round {
                        run_frame(&mut function, frame, PortId(0), now);
                    }
                    let after = function.barriers(Side::Below).0.expect("every link has sent a timestamp");
                    assert!(
                        before.is_none_or(|before| before.precedes(after)),
                        "the barrier rises with each round"
                    );
                    before = Some(after);
                    function.on_timer(now, &mut FrameCollector::with_room(2048));
                    now = now + Nanos(100);
                }
            }
            let played = 3 * frames.len() as u64;
            assert_eq!(load.check(&counters, played), Ok(()));
            assert!(load.check(&counters, played + 1).is_err());
        }
    }

    #[test]
    fn half_of_the_messages_cross_between_two_workers() {
        for (ports, expected) in [(Ports::Four, 0), (Ports::Crossed, 2)] {
            let load = Load { kind: Kind::Messages, links: 4, ports, payload: 64, standby: false };
            let mut workers = load.make(2);
            let counters: Vec<_> = workers.iter().map(Representative::counters).collect();
            let (mut crossed, mut frames) = (0, 0);
            for (port, capture) in (0..).map(PortId).zip(load.captures()) {
                let receiver = workers[0].receiver(port);
                let mut out = PortId(u16::MAX);
                for frame in &capture {
                    frames += 1;
                    let (verdict, mut sent) = run_frame(&mut workers[receiver], frame, port, Nanos::ZERO);
                    let Verdict::Forward(to) = verdict else { continue };
                    out = to;
                    let sender = workers[0].sender(out);
                    if sender != receiver {
                        let mut frame = MemoryFrame::new(sent.remove(0).0);
                        workers[sender].on_handoff(&mut frame, out, Nanos::ZERO);
                    }
                }
                crossed += usize::from(workers[0].sender(out) != receiver);
            }
            assert_eq!((crossed, load.check(&counters, frames)), (expected, Ok(())), "{ports:?}");
        }
    }
}
