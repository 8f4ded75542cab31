//! What a process is asked for.

use core::net::IpAddr;
use rocev2::Qpn;
use rocev2::ethernet::MacAddr;
use rocev2::onepipe::{OnePipe, Timestamp};
use switch::Nanos;
use switch::tunnel::{self, EntranceError};

use super::ProcessId;
use crate::config::Detour;

/// The longest message, in bytes
pub const MAX_MESSAGE: usize = 16 << 20;
/// What a packet takes of a window beside its bytes: what it costs a receiver to keep a small one
pub const PACKET_COST: usize = 64;
/// Packets that may be under way to one receiver: a quarter of all PSNs
const MAX_PACKETS: usize = 1 << 22;

/// Configuration of a [`Process`](super::Process).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Itself
    pub own: Peer,
    /// Whom it sends messages to and takes them from
    pub peers: Vec<Peer>,
    /// Who keeps the barrier of its link: the ToR switch, or its representative. Beacons go there and come from there
    pub tor: Beacons,
    /// Whether messages come with the barrier of the link, as they do from a
    /// [chip](crate::Incarnation::Chip). Others leave what their sender wrote, which says nothing of this link
    pub barriers_in_messages: bool,
    /// The `Q_Key` of 1Pipe's datagrams
    pub qkey: u32,
    /// 1Pipe header and data of a packet, in bytes: the path MTU, 256 to 4,096
    pub mtu: usize,
    /// DSCP of everything that is sent, in its place of the traffic class, as the representative's beacons have it (FACTS
    /// C-49). Its ECN bits are set here
    pub traffic_class: u8,
    /// Hops that a packet may take
    pub hop_limit: u8,
    /// Time between beacons, 1 us to 1 ms; one of the whole network
    pub beacon_interval: Nanos,
    /// Bytes of messages that have not been sent, at most
    pub send_buffer: usize,
    /// Messages of which the application has not learned what became of them, at most
    pub max_unsettled: usize,
    /// Bytes that this process keeps for one sender until the application has taken them, at most; also what it takes the
    /// others to keep for it before they have said so. [`PACKET_COST`] is added to each packet's. A longer message
    /// cannot be sent
    pub receive_window: u32,
    /// Bytes that it keeps for all of them at most, counted alike
    pub receive_buffer: usize,
    /// Bytes under way to one receiver at first (section 6.1: DCTCP), counted alike
    pub initial_window: u32,
    /// A message has failed if nothing was heard of it for so long
    pub timeout: Nanos,
    /// What has arrived is acknowledged after so long at the latest
    pub ack_delay: Nanos,
    /// or once this many messages have
    pub ack_every: u32,
    /// A message or barrier that is ahead of the clock by more than this is refused: clocks that are synchronised differ by
    /// microseconds
    pub ahead_max: Nanos,
    /// 1Pipe's time when the runner's is 0. [`Process::set_clock`](super::Process::set_clock) corrects it
    pub clock: Timestamp,
    /// First PSNs are drawn from it
    pub seed: u64,
    /// A planted bug, to see whether it is found
    #[cfg(debug_assertions)]
    pub bug: Option<crate::Bug>,
}

/// A process, as others know it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Its number, one of the whole network: equal timestamps are ordered by it
    pub id: ProcessId,
    /// The MAC address that frames for it have: its own, or the next hop's
    pub mac: MacAddr,
    /// Its IP address
    pub address: IpAddr,
    /// Its queue pair
    pub qpn: Qpn,
}

/// The other end of a process's link, as far as beacons go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Beacons {
    /// The MAC address that beacons are sent to
    pub mac: MacAddr,
    /// The IP address. Beacons from others are refused
    pub address: IpAddr,
    /// The queue pair
    pub qpn: Qpn,
    /// Switches at which beacons get onto the link, where routes would not lead them over it: of one whose own host stands for
    /// its switch, that switch (section 6.2.3)
    pub detour: Detour,
}

impl Config {
    /// As the paper has it where it says so: beacons every 3 us, best effort. No peers yet, and no chip at the other end of the link.
    pub fn new(own: Peer, tor: Beacons) -> Self {
        Self {
            own,
            peers: Vec::new(),
            tor,
            barriers_in_messages: false,
            qkey: OnePipe::QKEY,
            mtu: 1024,
            traffic_class: 0,
            hop_limit: 64,
            beacon_interval: Nanos::from_micros(3),
            send_buffer: 64 << 20,
            max_unsettled: 1 << 16,
            receive_window: 18 << 20,
            receive_buffer: 256 << 20,
            initial_window: 64 << 10,
            timeout: Nanos::from_millis(1),
            ack_delay: Nanos::from_micros(3),
            ack_every: 16,
            ahead_max: Nanos::from_millis(10),
            clock: Timestamp::default(),
            seed: 0,
            #[cfg(debug_assertions)]
            bug: None,
        }
    }

    /// Data of a packet at most
    pub(super) const fn fragment(&self) -> usize {
        self.mtu - OnePipe::LEN
    }

    /// The tunnels of its detour, each from where the one before ends
    pub(super) fn tunnels(&self) -> Vec<(IpAddr, IpAddr)> {
        let ends = &self.tor.detour;
        core::iter::once(self.own.address).chain(ends.iter().copied()).zip(ends.iter().copied()).collect()
    }

    /// Whether this can be, as far as a look at it tells.
    pub(super) fn check(&self) -> Result<(), ConfigError> {
        if !(256..=rocev2::MAX_PAYLOAD).contains(&self.mtu) || !self.mtu.is_multiple_of(4) {
            return Err(ConfigError::Mtu(self.mtu));
        }
        if !(Nanos::from_micros(1)..=Nanos::from_millis(1)).contains(&self.beacon_interval) {
            return Err(ConfigError::Interval(self.beacon_interval));
        }
        let packet = self.fragment() + PACKET_COST;
        for (name, bytes) in [
            ("receive_window", self.receive_window as usize),
            ("receive_buffer", self.receive_buffer),
            ("initial_window", self.initial_window as usize),
        ] {
            if bytes < packet {
                return Err(ConfigError::Window { name, bytes, packet });
            }
        }
        let (window, most) = (self.receive_window, MAX_PACKETS * PACKET_COST);
        if window as usize > most {
            return Err(ConfigError::TooManyPackets { window, most });
        }
        tunnel::check(&self.tunnels()).map_err(ConfigError::Detour)?;
        if self.timeout <= self.ack_delay {
            return Err(ConfigError::Timeout { timeout: self.timeout, ack_delay: self.ack_delay });
        }
        Ok(())
    }
}

/// A configuration that cannot be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// The MTU is none
    #[error("an MTU of {0} bytes; it has to be a multiple of four between 256 and 4096")]
    Mtu(usize),
    /// The beacon interval is out of range
    #[error("a beacon interval of {} ns; it has to lie between 1 us and 1 ms", .0.0)]
    Interval(Nanos),
    /// A window that not even a packet fits into
    #[error("{name} is {bytes} bytes, and a packet takes {packet}")]
    Window {
        /// Which
        name: &'static str,
        /// How large it is
        bytes: usize,
        /// How large it has to be
        packet: usize,
    },
    /// A window of more packets than PSNs can tell apart
    #[error(
        "receive_window is {window} bytes, which may be more packets than PSNs can tell apart; {most} are the most"
    )]
    TooManyPackets {
        /// How large it is
        window: u32,
        /// How large it may be
        most: usize,
    },
    /// Every message would fail before it could be acknowledged
    #[error("messages fail after {} ns, and are acknowledged after {} ns", .timeout.0, .ack_delay.0)]
    Timeout {
        /// The one
        timeout: Nanos,
        /// The other
        ack_delay: Nanos,
    },
    /// Two processes have one number, or one address and queue pair
    #[error("process {0} stands in the table twice, by its number or by its address and queue pair")]
    Twice(ProcessId),
    /// An IPv4 address where its own is IPv6, or the other way round
    #[error("{0} is of another IP version than the process's own address")]
    Family(IpAddr),
    /// The detour of its beacons leads through addresses of two IP versions
    #[error("the detour of its beacons cannot be: {0}")]
    Detour(EntranceError),
}
