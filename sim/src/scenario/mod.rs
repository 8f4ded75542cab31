//! Scenarios: a network, what its hosts do, and what happens to them. Every number may be a range, from which the seed
//! draws, so that one scenario is as many worlds as there are seeds.

mod faults;
mod parts;
mod run;
mod shrink;
mod spec;
mod text;
mod work;

pub use run::{CaptureTo, HostReport, LinkReport, Outcome, Planted, SwitchReport, run};
pub use shrink::{Shrunk, shrink};
pub use spec::{GroupsSpec, VerbsSpec, Work};
pub use text::to_toml;

use core::net::IpAddr;
use switch::Chance;

/// A number, or a range from which the seed draws one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Between {
    /// The least
    pub low: i64,
    /// The greatest
    pub high: i64,
}

impl Between {
    /// No range.
    pub const fn just(value: i64) -> Self {
        Self { low: value, high: value }
    }

    /// The number, once it is drawn
    pub const fn value(self) -> i64 {
        self.low
    }

    /// Yes or no, once it is drawn: 1 or 0
    pub const fn is_true(self) -> bool {
        self.low != 0
    }

    fn draw(&mut self, chance: &mut Chance) {
        let span = self.high.abs_diff(self.low);
        *self = Self::just(self.low.saturating_add_unsigned(chance.between(0, span)));
    }
}

/// A network, what its hosts do, and what happens to them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scenario {
    /// When everything has to be done (nanoseconds of the world)
    pub limit: Between,
    /// Hosts with a NIC
    pub hosts: Vec<HostSpec>,
    /// Switches
    pub switches: Vec<SwitchSpec>,
    /// What joins them
    pub links: Vec<LinkSpec>,
    /// What the hosts do
    pub work: Work,
    /// What happens when
    pub faults: Vec<FaultSpec>,
}

/// A host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostSpec {
    /// Its name
    pub name: String,
    /// Its address and the length of its network's prefix
    pub address: (IpAddr, u8),
    /// How far its clock is ahead (nanoseconds)
    pub clock_offset: Between,
    /// How much too fast it runs (billionths)
    pub clock_drift: Between,
    /// Packets under way on a connection
    pub window: Between,
    /// When it acknowledges
    pub ack: AckSpec,
    /// Whether it announces credits
    pub credits: Between,
    /// Whether it slows down by DCQCN
    pub dcqcn: Between,
    /// Whether it forgets old READs and atomics, as soft-RoCE does
    pub forgetful: Between,
}

/// When a host acknowledges.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AckSpec {
    /// One of the others, as the seed has it
    Any,
    /// Every packet
    EveryPacket,
    /// When asked to
    OnRequest,
    /// Coalesced
    Every {
        /// Acknowledgements owed
        packets: u32,
        /// Nanoseconds
        time: u64,
    },
}

/// A link; see [`Link`](crate::Link). Times in nanoseconds, shares in billionths.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LinkSpec {
    /// Names of the nodes at its ends
    pub ends: [String; 2],
    /// Bits a second
    pub rate: Between,
    /// Delay
    pub delay: Between,
    /// Jitter
    pub jitter: Between,
    /// Loss
    pub loss: Between,
    /// Duplication
    pub duplicate: Between,
    /// Reordering
    pub reorder: Between,
    /// By how much
    pub reorder_by: Between,
    /// Corruption
    pub corrupt: Between,
    /// Longest IP packet
    pub mtu: Between,
    /// Bytes
    pub queue: Between,
    /// Marks by the length of the queue
    pub ecn: Option<EcnSpec>,
}

/// See [`Ecn`](crate::Ecn).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EcnSpec {
    /// Bytes
    pub min: Between,
    /// Bytes
    pub max: Between,
    /// Billionths
    pub share: Between,
}

/// A switch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SwitchSpec {
    /// Its name
    pub name: String,
    /// What it does
    pub kind: SwitchKind,
}

/// What a switch does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SwitchKind {
    /// It is a learning bridge.
    Bridge,
    /// It is that, and replicates what the leaders of groups write.
    P4ce {
        /// The address at which it is asked for groups, and the length of its network's prefix
        address: (IpAddr, u8),
        /// For how long a replica that owes acknowledgements is silent until it is excluded (nanoseconds); 0 for ever
        silent_after: Between,
    },
}

/// Something that happens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FaultSpec {
    /// When (nanoseconds of the world)
    pub at: Between,
    /// What
    pub kind: FaultKind,
    /// For how long (nanoseconds); for ever if not said. Of no use to clocks.
    pub lasts: Option<Between>,
}

/// What happens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FaultKind {
    /// A host or switch goes down.
    Crash(String),
    /// It does nothing.
    Pause(String),
    /// All links between these nodes and the others are cut.
    Partition(Vec<String>),
    /// What these nodes send to the others is lost, on all links between them; what the others send arrives.
    Mute(Vec<String>),
    /// Two hosts do not receive what the other one sends, on whatever way; others reach both.
    Part([String; 2]),
    /// A link carries IP packets of up to this many bytes only.
    Mtu([String; 2], Between),
    /// At a switch, a host that is no party sends so many packets: requests and answers, as itself and as others.
    Stranger(String, Between),
    /// Two hosts at the same switch change their ports there, and say so.
    Swap([String; 2]),
    /// A host's packets have other UDP source ports from now on, which this number decides (0 to 65,535).
    Rehash(String, Between),
    /// A clock jumps (nanoseconds).
    ClockStep(String, Between),
    /// A clock runs too fast (billionths).
    ClockDrift(String, Between),
}

impl Scenario {
    /// The world of a seed: no number is a range any more.
    #[must_use]
    pub fn drawn(&self, seed: u64) -> Self {
        let mut drawn = self.clone();
        let mut streams = 0u64..;
        // A stream for each part, so that a part that is left out does not change the others.
        let mut stream = || Chance::stream(seed, 0x7363_0000 + streams.next().unwrap_or(0));
        drawn.limit.draw(&mut stream());
        drawn.work.draw(&mut stream());
        for host in &mut drawn.hosts {
            host.draw(&mut stream());
        }
        for link in &mut drawn.links {
            link.draw(&mut stream());
        }
        for fault in &mut drawn.faults {
            fault.draw(&mut stream());
        }
        for switch in &mut drawn.switches {
            if let SwitchKind::P4ce { silent_after, .. } = &mut switch.kind {
                silent_after.draw(&mut stream());
            }
        }
        drawn
    }

    /// Whether this is a switch that forgets nothing that matters.
    fn is_bridge(&self, node: &str) -> bool {
        self.switches.iter().any(|switch| switch.name == node && switch.kind == SwitchKind::Bridge)
    }

    /// Whether operations may fail: a host forgets what it knew, rights are taken away, or tries come to an end.
    pub fn may_fail(&self) -> bool {
        !self.work.never_gives_up()
            || self.work.revokes()
            || self
                .faults
                .iter()
                .any(|fault| matches!(&fault.kind, FaultKind::Crash(node) if !self.is_bridge(node)))
    }
}

impl HostSpec {
    /// A host with an exact clock and a NIC as most are.
    pub fn new(name: &str, address: IpAddr, prefix: u8) -> Self {
        Self {
            name: name.into(),
            address: (address, prefix),
            clock_offset: Between::just(0),
            clock_drift: Between::just(0),
            window: Between::just(256),
            ack: AckSpec::OnRequest,
            credits: Between::just(0),
            dcqcn: Between::just(0),
            forgetful: Between::just(0),
        }
    }

    fn draw(&mut self, chance: &mut Chance) {
        for number in [
            &mut self.clock_offset,
            &mut self.clock_drift,
            &mut self.window,
            &mut self.credits,
            &mut self.dcqcn,
        ] {
            number.draw(chance);
        }
        if self.ack == AckSpec::Any {
            let every = AckSpec::Every { packets: 4, time: 20_000 };
            self.ack = *chance.pick(&[AckSpec::EveryPacket, AckSpec::OnRequest, every]);
        }
        self.forgetful.draw(chance);
    }
}

impl LinkSpec {
    /// A link as [`Link::default`](crate::Link::default) says.
    pub fn new(a: &str, b: &str) -> Self {
        Self {
            ends: [a.into(), b.into()],
            rate: Between::just(100_000_000_000),
            delay: Between::just(1_000),
            jitter: Between::just(0),
            loss: Between::just(0),
            duplicate: Between::just(0),
            reorder: Between::just(0),
            reorder_by: Between::just(20_000),
            corrupt: Between::just(0),
            mtu: Between::just(1500),
            queue: Between::just(1 << 20),
            ecn: None,
        }
    }

    /// Returns whether the link is between these two nodes.
    pub fn joins(&self, [a, b]: &[String; 2]) -> bool {
        self.ends == [a.as_str(), b] || self.ends == [b.as_str(), a]
    }

    fn draw(&mut self, chance: &mut Chance) {
        for number in [
            &mut self.rate,
            &mut self.delay,
            &mut self.jitter,
            &mut self.loss,
            &mut self.duplicate,
            &mut self.reorder,
            &mut self.reorder_by,
            &mut self.corrupt,
            &mut self.mtu,
            &mut self.queue,
        ] {
            number.draw(chance);
        }
        if let Some(ecn) = &mut self.ecn {
            for number in [&mut ecn.min, &mut ecn.max, &mut ecn.share] {
                number.draw(chance);
            }
        }
    }
}

impl FaultSpec {
    fn draw(&mut self, chance: &mut Chance) {
        self.at.draw(chance);
        if let Some(lasts) = &mut self.lasts {
            lasts.draw(chance);
        }
        match &mut self.kind {
            FaultKind::ClockStep(_, number)
            | FaultKind::Rehash(_, number)
            | FaultKind::ClockDrift(_, number)
            | FaultKind::Mtu(_, number)
            | FaultKind::Stranger(_, number) => number.draw(chance),
            FaultKind::Crash(_)
            | FaultKind::Pause(_)
            | FaultKind::Partition(_)
            | FaultKind::Mute(_)
            | FaultKind::Part(_)
            | FaultKind::Swap(_) => {}
        }
    }
}
