//! The exchange between perftest's client and server over TCP, as version 4.5 does it (Debian 12; its version
//! string is "6.06").
//!
//! Each step is a message of the client and a response of the same length:
//!
//! | bytes | contents |
//! |---|---|
//! | 16 | version, text, padded with zeros |
//! | 4 | size of the buffer that a test cycles through (4096 bytes), big-endian; both sides use the greater |
//! | 4 | length of a cache line (64 bytes), likewise |
//! | 2 | path MTU: a digit (1 for 256 to 5 for 4096) and a zero; both sides use the smaller |
//! | 108 | a queue pair ([`QpInfo`]), repeatedly (see below) |
//! | 5 times 8 | after ib_write_bw, ib_read_bw and ib_atomic_bw: message size in bytes, messages, and three rates as floating-point numbers; big-endian |
//! | 108 | the first queue pair: the test is over |
//! | 5 | "done" and a zero, sent by both sides without waiting for the other |
//!
//! Queue pairs are announced one by one: all of them before they are connected (ib_write_lat, ib_read_lat and
//! ib_atomic_lat begin with the first one twice), and all of them again to be printed. In between, and before
//! each part of a test, the client announces the first one as a barrier. The first announcement of a queue
//! pair requests that the server creates and connects a queue pair for it. The response is the same in each
//! case: the server's queue pair that belongs to the client's. So the server does not need the number of
//! queue pairs or barriers in advance. The first byte of the next message tells its type: text, or a number,
//! which begins with a zero. ib_write_lat ends by closing the connection.

use core::net::{IpAddr, Ipv6Addr};
use rnic::PathMtu;

/// Oldest version that uses this exchange
const MIN_VERSION: f32 = 5.70;
const VERSION_LEN: usize = 16;
const NUMBER_LEN: usize = 4;
const MTU_LEN: usize = 2;
const REPORT_NUMBER_LEN: usize = 8;
/// Numbers in a report
const REPORT_NUMBERS: usize = 5;
pub(super) const DONE: &[u8] = b"done\0";

/// A queue pair as one side announces it to the other.
///
/// It is sent as text, each number in hexadecimal and with leading zeros: LID (4 digits), outstanding READs
/// and atomics (4), QPN (6), first PSN (6), key (8) and address (16) of its memory, the 16 bytes of the GID,
/// and the number of a shared receive queue (8), each followed by a colon; then a zero byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct QpInfo {
    pub(super) reads: u8,
    pub(super) qpn: u32,
    pub(super) psn: u32,
    pub(super) rkey: u32,
    pub(super) va: u64,
    pub(super) address: IpAddr,
}

impl QpInfo {
    pub(super) const LEN: usize = 108;
    /// Count of the numbers in the text
    const NUMBERS: usize = 6 + 16 + 1;

    pub(super) fn parse(bytes: &[u8]) -> Option<Self> {
        let text = str::from_utf8(bytes).ok()?.strip_suffix(":\0")?;
        let numbers: Vec<u64> =
            text.split(':').map(|number| u64::from_str_radix(number, 16)).collect::<Result<_, _>>().ok()?;
        let numbers: [u64; Self::NUMBERS] = numbers.try_into().ok()?;
        let [_lid, reads, qpn, psn, rkey, va, gid @ .., _srqn] = numbers;
        let gid: [u8; 16] = gid.map(|byte| byte as u8);
        Some(Self {
            reads: reads.try_into().unwrap_or(u8::MAX),
            qpn: qpn.try_into().ok()?,
            psn: psn.try_into().ok()?,
            rkey: rkey.try_into().ok()?,
            va,
            address: Ipv6Addr::from(gid).to_canonical(),
        })
    }

    pub(super) fn to_bytes(self) -> Vec<u8> {
        let Self { reads, qpn, psn, rkey, va, address } = self;
        let gid = match address {
            IpAddr::V4(ip) => ip.to_ipv6_mapped(),
            IpAddr::V6(ip) => ip,
        };
        let gid = gid.octets().map(|byte| format!("{byte:02x}:")).concat();
        format!("0000:{reads:04x}:{qpn:06x}:{psn:06x}:{rkey:08x}:{va:016x}:{gid}00000000:\0").into_bytes()
    }
}

/// A message of the client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Message {
    /// Message that the server echoes
    Echo(Vec<u8>),
    Mtu(PathMtu),
    QpInfo(QpInfo),
    /// End of the test
    Done,
}

/// Position of the client in the exchange.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Version,
    CycleBuffer,
    CacheLine,
    Mtu,
    /// Queue pairs, a report, or the end
    Test,
    /// Report of which this many numbers have been received
    Report(usize),
}

/// The client's side of the exchange, as the server follows it.
#[derive(Debug)]
pub(super) struct Exchange {
    stage: Stage,
    received: Vec<u8>,
    /// Message size in bytes and number of messages, as the client reports them
    pub(super) reported: Option<(u64, u64)>,
}

impl Exchange {
    pub(super) fn new() -> Self {
        Self { stage: Stage::Version, received: Vec::new(), reported: None }
    }

    /// Returns the buffer to which received bytes are to be appended.
    pub(super) fn inbox(&mut self) -> &mut Vec<u8> {
        &mut self.received
    }

    /// Returns the client's next message, or `None` if it is still incomplete.
    pub(super) fn next(&mut self) -> Result<Option<Message>, String> {
        let (len, stage) = match self.stage {
            Stage::Version => (VERSION_LEN, Stage::CycleBuffer),
            Stage::CycleBuffer => (NUMBER_LEN, Stage::CacheLine),
            Stage::CacheLine => (NUMBER_LEN, Stage::Mtu),
            Stage::Mtu => (MTU_LEN, Stage::Test),
            // A LID has four digits, so "done" cannot be the beginning of a queue pair.
            Stage::Test if self.received.starts_with(DONE) => (DONE.len(), Stage::Test),
            Stage::Test => match self.received.first() {
                Some(0) => (REPORT_NUMBER_LEN, Stage::Report(1)),
                _ => (QpInfo::LEN, Stage::Test),
            },
            Stage::Report(REPORT_NUMBERS) => {
                self.stage = Stage::Test;
                return self.next();
            }
            Stage::Report(n) => (REPORT_NUMBER_LEN, Stage::Report(n + 1)),
        };
        if self.received.len() < len {
            return Ok(None);
        }
        let message: Vec<u8> = self.received.drain(..len).collect();
        let from = core::mem::replace(&mut self.stage, stage);
        self.parse_message(from, message).map(Some)
    }

    fn parse_message(&mut self, stage: Stage, message: Vec<u8>) -> Result<Message, String> {
        match stage {
            Stage::Version => {
                let text = str::from_utf8(&message).ok().map(|text| text.trim_end_matches('\0'));
                let version: Option<f32> = text.and_then(|text| text.parse().ok());
                match version {
                    Some(version) if version >= MIN_VERSION => Ok(Message::Echo(message)),
                    Some(version) => Err(format!(
                        "perftest version {version} of the client is too old; use {MIN_VERSION:.2} or later"
                    )),
                    None => Err("the client is not a perftest client".into()),
                }
            }
            Stage::Mtu => {
                let mtu = PathMtu::ALL.into_iter().zip(b'1'..).find(|(_, digit)| *digit == message[0]);
                mtu.map(|(mtu, _)| Message::Mtu(mtu))
                    .ok_or_else(|| "the client sent an unknown path MTU".into())
            }
            Stage::Test if message == DONE => Ok(Message::Done),
            Stage::Test if message.len() == QpInfo::LEN => {
                let info = QpInfo::parse(&message).map(Message::QpInfo);
                info.ok_or_else(|| {
                    format!("invalid queue pair from the client: {}", String::from_utf8_lossy(&message))
                })
            }
            Stage::Test | Stage::Report(_) => {
                let number = message.as_slice().try_into().map_or(0, u64::from_be_bytes);
                match (stage, &mut self.reported) {
                    (Stage::Test, reported) => *reported = Some((number, 0)),
                    (Stage::Report(1), Some((_, messages))) => *messages = number,
                    _ => {}
                }
                Ok(Message::Echo(message))
            }
            Stage::CycleBuffer | Stage::CacheLine => Ok(Message::Echo(message)),
        }
    }
}

/// Returns the response to the client's path MTU, which is this side's path MTU.
pub(super) fn mtu_response(mtu: PathMtu) -> [u8; MTU_LEN] {
    [b'1' + mtu as u8, 0]
}
