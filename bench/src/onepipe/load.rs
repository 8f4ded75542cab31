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
use representative::{Counters, Refusal, Representative};
use rocev2::deth::Deth;
use rocev2::ethernet::{Ethernet, MacAddr, ethertype};
use rocev2::ipv4::Ipv4;
use rocev2::repr::{Ip, Repr};
use rocev2::{Bth, Opcode, Psn, Qpn};
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

/// Traffic of a measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Load {
    /// Kind of traffic
    pub kind: Kind,
    /// Number of links
    pub links: u16,
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
    /// Returns the frames of the capture.
    pub fn frames(&self) -> Vec<Vec<u8>> {
        let links = usize::from(self.links);
        let rounds = FRAMES.div_ceil(links).next_power_of_two();
        let step = (1 << 48) / rounds as u64;
        let time = |round: usize| match self.kind {
            Kind::Messages => {
                step * (round / MESSAGES_PER_RUN * MESSAGES_PER_RUN) as u64
                    + MESSAGE_GAP_NS * (round % MESSAGES_PER_RUN) as u64
            }
            Kind::Beacons => step * round as u64,
        };
        let frame = |round: usize, link: u16, end: u8| {
            self.frame(self.kind, (link, end), Timestamp::new(time(round) + step / 2))
        };
        // A chip reads barriers in messages after a beacon that declares them. `dead_after_intervals` is large,
        // so the declaration stays valid.
        let declaring = if self.kind == Kind::Messages { self.links } else { 0 };
        let declarations =
            (0..declaring).map(|link| self.frame(Kind::Beacons, (link, 0), Timestamp::new(step / 4)));
        let senders =
            (0..self.links).flat_map(|link| (0..=u8::from(self.standby)).map(move |end| (link, end)));
        let rounds =
            (0..rounds).flat_map(|round| senders.clone().map(move |(link, end)| frame(round, link, end)));
        declarations.chain(rounds).collect()
    }

    fn frame(&self, kind: Kind, (link, end): (u16, u8), timestamp: Timestamp) -> Vec<u8> {
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
            side: if n < self.links.div_ceil(2) { Side::Below } else { Side::Above },
            port: PortId(0),
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
                mode: ForwardingMode::Pairs(vec![(PortId(0), PortId(0))]),
                ..forward::Config::bridge(1, 0)
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

    /// Creates the switch function for the traffic.
    ///
    /// # Panics
    /// Never: the configuration is valid.
    pub fn make(&self) -> Representative {
        Representative::new(self.config()).expect("a valid configuration")
    }

    /// Checks that the counters match the traffic, after `frames` frames.
    ///
    /// # Errors
    /// The counter that differs from the expected value.
    pub fn check(&self, counters: &Counters, frames: u64) -> Result<(), String> {
        if let Some(why) = Refusal::ALL.into_iter().find(|&why| counters.refused(why) > 0) {
            return Err(format!("{} refused: {}", counters.refused(why), why.name()));
        }
        let (accepted, beacons) = match self.kind {
            Kind::Messages => (counters.messages.get() + counters.datagrams.get(), 0),
            // With fewer links than a burst has frames, one beacon may answer several rounds.
            Kind::Beacons if self.links < 32 => (counters.datagrams.get(), frames / 8),
            Kind::Beacons => (counters.datagrams.get(), frames / 10 * 9),
        };
        if accepted != frames {
            return Err(format!("{accepted} of {frames} frames were accepted"));
        }
        if counters.beacons.get() < beacons || counters.dead.get() > 0 {
            return Err(format!("{} beacons were sent for {frames}", counters.beacons.get()));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use switch::Function;
    use switch::memory::{FrameCollector, run_frame};

    #[test]
    fn every_frame_raises_barriers_in_every_replay() {
        let loads = [
            (Kind::Messages, 1, 64, false),
            (Kind::Beacons, 8, 0, false),
            (Kind::Beacons, 64, 0, false),
            (Kind::Beacons, 64, 0, true),
        ];
        for (kind, links, payload, standby) in loads {
            let load = Load { kind, links, payload, standby };
            let (frames, mut function) = (load.frames(), load.make());
            let counters = function.counters();
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
}
