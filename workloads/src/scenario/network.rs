//! Scenarios: networks, faults, and how a seed draws their numbers.

use super::number::NumberRange;
use super::spec::Work;
use core::net::IpAddr;
use switch::Rng;

/// A network, the workload of its hosts, and faults.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scenario {
    /// Time by which everything has to be done (ns of the world)
    pub limit: NumberRange,
    /// Hosts with a NIC
    pub hosts: Vec<HostSpec>,
    /// Switches
    pub switches: Vec<SwitchSpec>,
    /// Links between hosts and switches
    pub links: Vec<LinkSpec>,
    /// Workload of the hosts
    pub work: Work,
    /// Faults and their times
    pub faults: Vec<FaultSpec>,
}

/// A host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostSpec {
    /// Its name
    pub name: String,
    /// IP address and prefix length
    pub address: (IpAddr, u8),
    /// Offset of its clock (ns); positive is ahead
    pub clock_offset: NumberRange,
    /// Drift of its clock (parts per billion); positive is fast
    pub clock_drift: NumberRange,
    /// Packets in flight per connection at most
    pub window: NumberRange,
    /// When it acknowledges
    pub ack: AckSpec,
    /// Whether it announces end-to-end credits
    pub credits: NumberRange,
    /// Whether it limits its rate by DCQCN
    pub dcqcn: NumberRange,
    /// Whether it keeps no results of old READs and atomics, as soft-RoCE does not
    pub forgetful: NumberRange,
}

/// When a host acknowledges.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AckSpec {
    /// One of the others, drawn by the seed
    Any,
    /// Every packet
    EveryPacket,
    /// When the requester requests it
    OnRequest,
    /// Coalesced
    Every {
        /// Number of packets after which it acknowledges
        packets: u32,
        /// Time after which it acknowledges (ns)
        time: u64,
    },
}

/// A link; see [`Link`](sim::Link). Times in nanoseconds, shares in billionths.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LinkSpec {
    /// Names of the nodes at its ends
    pub ends: [String; 2],
    /// Bits per second
    pub rate: NumberRange,
    /// Propagation delay
    pub delay: NumberRange,
    /// Upper bound of the random extra delay
    pub jitter: NumberRange,
    /// Share of lost frames
    pub loss: NumberRange,
    /// Share of duplicated frames
    pub duplicate: NumberRange,
    /// Share of reordered frames
    pub reorder: NumberRange,
    /// Upper bound of a reordered frame's extra delay
    pub reorder_by: NumberRange,
    /// Share of corrupted frames
    pub corrupt: NumberRange,
    /// Longest IP packet (bytes)
    pub mtu: NumberRange,
    /// Capacity of the send queue (bytes)
    pub queue: NumberRange,
    /// ECN marking by queue length
    pub ecn: Option<EcnSpec>,
}

/// See [`Ecn`](sim::Ecn).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EcnSpec {
    /// Queue length below which nothing is marked (bytes)
    pub min: NumberRange,
    /// Queue length from which on everything is marked (bytes)
    pub max: NumberRange,
    /// Share that is marked just below `max` (billionths)
    pub share: NumberRange,
}

/// A switch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SwitchSpec {
    /// Its name
    pub name: String,
    /// Its function
    pub kind: SwitchKind,
}

/// Function of a switch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SwitchKind {
    /// Learning bridge
    Bridge,
    /// Learning bridge that also replicates what leaders of groups write
    P4ce {
        /// IP address for requests of groups, and prefix length
        address: (IpAddr, u8),
        /// Time after which a silent replica that owes acknowledgements is excluded (ns); 0 for never
        silent_after: NumberRange,
    },
}

/// A fault at a time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FaultSpec {
    /// Time of the fault (ns of the world)
    pub at: NumberRange,
    /// The fault
    pub kind: FaultKind,
    /// Duration (ns); for ever if `None`. Ignored for clocks
    pub lasts: Option<NumberRange>,
}

/// Kind of a fault.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FaultKind {
    /// A host or switch goes down
    Crash(String),
    /// A node is suspended
    Pause(String),
    /// All links between these nodes and all others are cut
    Partition(Vec<String>),
    /// Frames from these nodes to all others are lost on the links between them; frames in the other
    /// direction arrive
    Mute(Vec<String>),
    /// Two hosts do not receive each other's frames on any path; all other hosts reach both
    PartitionPair([String; 2]),
    /// A link carries only IP packets of up to this many bytes
    Mtu([String; 2], NumberRange),
    /// An outsider, connected to a switch, sends this many rounds of forged packets: requests and responses,
    /// from its own and from hosts' addresses
    Outsider(String, NumberRange),
    /// Two hosts at the same switch exchange their ports there, and announce it
    Swap([String; 2]),
    /// A host uses other UDP source ports from now on, chosen by this salt (0 to 65,535)
    Rehash(String, NumberRange),
    /// A clock jumps (ns)
    ClockStep(String, NumberRange),
    /// Drift of a clock (parts per billion)
    ClockDrift(String, NumberRange),
}

impl Scenario {
    /// Returns the scenario of one seed, in which all numbers are drawn.
    #[must_use]
    pub fn drawn(&self, seed: u64) -> Self {
        let mut drawn = self.clone();
        let mut streams = 0u64..;
        // Each part has its own random stream, so that removing a part does not change the draws of the
        // others.
        let mut stream = || Rng::stream(seed, 0x7363_0000 + streams.next().unwrap_or(0));
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

    /// Returns whether this node is a bridge, which has no state that matters.
    fn is_bridge(&self, node: &str) -> bool {
        self.switches.iter().any(|switch| switch.name == node && switch.kind == SwitchKind::Bridge)
    }

    /// Returns whether operations may fail: a host or a P4CE switch crashes, rights are revoked, or retries
    /// are limited.
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
    /// Returns a host with an exact clock and a typical NIC.
    pub fn new(name: &str, address: IpAddr, prefix: u8) -> Self {
        Self {
            name: name.into(),
            address: (address, prefix),
            clock_offset: NumberRange::fixed(0),
            clock_drift: NumberRange::fixed(0),
            window: NumberRange::fixed(256),
            ack: AckSpec::OnRequest,
            credits: NumberRange::fixed(0),
            dcqcn: NumberRange::fixed(0),
            forgetful: NumberRange::fixed(0),
        }
    }

    fn draw(&mut self, rng: &mut Rng) {
        for number in [
            &mut self.clock_offset,
            &mut self.clock_drift,
            &mut self.window,
            &mut self.credits,
            &mut self.dcqcn,
        ] {
            number.draw(rng);
        }
        if self.ack == AckSpec::Any {
            let every = AckSpec::Every { packets: 4, time: 20_000 };
            self.ack = *rng.pick(&[AckSpec::EveryPacket, AckSpec::OnRequest, every]);
        }
        self.forgetful.draw(rng);
    }
}

impl LinkSpec {
    /// Returns a link with the parameters of [`Link::default`](sim::Link::default).
    pub fn new(a: &str, b: &str) -> Self {
        Self {
            ends: [a.into(), b.into()],
            rate: NumberRange::fixed(100_000_000_000),
            delay: NumberRange::fixed(1_000),
            jitter: NumberRange::fixed(0),
            loss: NumberRange::fixed(0),
            duplicate: NumberRange::fixed(0),
            reorder: NumberRange::fixed(0),
            reorder_by: NumberRange::fixed(20_000),
            corrupt: NumberRange::fixed(0),
            mtu: NumberRange::fixed(1500),
            queue: NumberRange::fixed(1 << 20),
            ecn: None,
        }
    }

    /// Returns whether the link is between these two nodes.
    pub fn joins(&self, [a, b]: &[String; 2]) -> bool {
        self.ends == [a.as_str(), b] || self.ends == [b.as_str(), a]
    }

    fn draw(&mut self, rng: &mut Rng) {
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
            number.draw(rng);
        }
        if let Some(ecn) = &mut self.ecn {
            for number in [&mut ecn.min, &mut ecn.max, &mut ecn.share] {
                number.draw(rng);
            }
        }
    }
}

impl FaultSpec {
    fn draw(&mut self, rng: &mut Rng) {
        self.at.draw(rng);
        if let Some(lasts) = &mut self.lasts {
            lasts.draw(rng);
        }
        match &mut self.kind {
            FaultKind::ClockStep(_, number)
            | FaultKind::Rehash(_, number)
            | FaultKind::ClockDrift(_, number)
            | FaultKind::Mtu(_, number)
            | FaultKind::Outsider(_, number) => number.draw(rng),
            FaultKind::Crash(_)
            | FaultKind::Pause(_)
            | FaultKind::Partition(_)
            | FaultKind::Mute(_)
            | FaultKind::PartitionPair(_)
            | FaultKind::Swap(_) => {}
        }
    }
}
