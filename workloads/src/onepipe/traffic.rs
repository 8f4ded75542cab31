//! Packets on a host's link, as the host records them to explain failed messages.

use core::net::IpAddr;
use onepipe::{AckBody, NakBody, OnePipe, OnePipeOpcode, Timestamp};
use rocev2::{Packet, Psn};
use std::collections::BTreeMap;
use switch::Nanos;
use zerocopy::FromBytes as _;

/// Contents of a response.
#[derive(Clone, Copy, Debug)]
enum Contents {
    /// ACK, with a bitmap: bit n is set if the receiver has accepted the run that ends n packets before the
    /// response's PSN
    Accepted(u128),
    /// NAK: the receiver has refused the packet, for this reason
    Refused(u8),
}

/// Distance of two PSNs beyond which they are of different incarnations of their sender
const ONE_INCARNATION: u32 = 1 << 16;

/// An ACK or a NAK.
#[derive(Clone, Copy, Debug)]
pub(super) struct Response {
    pub(super) psn: Psn,
    contents: Contents,
    pub(super) at: Nanos,
}

impl Response {
    pub(super) fn read(header: &OnePipe, payload: &[u8], at: Nanos) -> Option<Self> {
        let contents = match header.opcode() {
            OnePipeOpcode::ACK => {
                Contents::Accepted(AckBody::read_from_prefix(payload).ok()?.0.accepted.get())
            }
            OnePipeOpcode::NAK => Contents::Refused(NakBody::read_from_prefix(payload).ok()?.0.reason),
            _ => return None,
        };
        Some(Self { psn: header.psn(), contents, at })
    }

    /// Returns whether this is an ACK of the whole run. Of a run that was not sent completely, every ACK for
    /// its last packet or a later one of the same incarnation of the sender counts.
    pub(super) fn acknowledges(&self, run: &Run) -> bool {
        let (Contents::Accepted(accepted), Ok(before)) =
            (self.contents, u32::try_from(self.psn.distance(run.last())))
        else {
            return false;
        };
        !run.complete && before <= ONE_INCARNATION || accepted.checked_shr(before).unwrap_or(0) & 1 == 1
    }

    /// Returns whether this is a NAK for one of the packets because the buffer was full.
    pub(super) fn has_no_room(&self, packets: &[Psn]) -> bool {
        matches!(self.contents, Contents::Refused(NakBody::NO_ROOM)) && packets.contains(&self.psn)
    }
}

#[derive(Clone, Copy, Debug)]
pub(super) struct DataSent {
    pub(super) to: usize,
    pub(super) psn: Psn,
    pub(super) at: Nanos,
    /// Number of the first message, in the first packet of a run
    pub(super) message: Option<u64>,
    pub(super) last: bool,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct DataReceived {
    pub(super) at: Nanos,
    pub(super) time: Timestamp,
    /// Highest barrier on the host's link before the packet arrived
    pub(super) barrier: Option<Timestamp>,
    pub(super) late: bool,
    /// Whether a later packet of this sender arrived as its very first one: the receiver starts there
    pub(super) overtaken: bool,
}

/// Packets on a host's link.
#[derive(Debug, Default)]
pub(super) struct Traffic {
    pub(super) sent: Vec<DataSent>,
    /// First arrivals, by sender and PSN
    pub(super) received: BTreeMap<(usize, u32), DataReceived>,
    /// First PSN that arrived from each incarnation of each sender
    first: BTreeMap<usize, Vec<Psn>>,
    /// The host's time when a beacon last announced that nothing follows, which lifts the barrier above all
    /// later messages
    lifted: Option<Timestamp>,
    pub(super) responses_sent: Vec<(usize, Response)>,
    pub(super) responses_received: Vec<(usize, Response)>,
}

/// Returns the number of the host with an address.
pub(super) fn host_of(ip: IpAddr) -> Option<usize> {
    let IpAddr::V4(ip) = ip else { return None };
    let [10, 0, high, low] = ip.octets() else { return None };
    Some(u16::from_be_bytes([high, low]).into())
}

impl Traffic {
    /// Records a packet that the host sends.
    pub(super) fn on_sent(&mut self, packet: &Packet<'_>, header: &OnePipe, at: Nanos) {
        let (Some(to), payload) = (host_of(packet.dst()), &packet.payload()[OnePipe::LEN..]) else { return };
        if header.opcode() == OnePipeOpcode::DATA {
            let number = payload.first_chunk().map(|bytes| u32::from_be_bytes(*bytes).into());
            let message = number.filter(|_| header.first());
            let last = !header.timestamp_follows();
            self.sent.push(DataSent { to, psn: header.psn(), at, message, last });
        } else if let Some(response) = Response::read(header, payload, at) {
            self.responses_sent.push((to, response));
        }
    }

    /// Forgets which packet of each sender came first: the receiver has restarted.
    pub(super) fn forget_senders(&mut self) {
        self.first.clear();
    }

    /// Records that the switch has announced that nothing follows.
    pub(super) fn on_nothing_follows(&mut self, time: Timestamp) {
        self.lifted = Some(time);
    }

    /// Returns whether a later packet of this sender came first.
    fn is_overtaken(&mut self, from: usize, psn: Psn) -> bool {
        let firsts = self.first.entry(from).or_default();
        // A sender that has restarted draws its PSNs anew.
        let same = |first: &&Psn| psn.distance(**first).unsigned_abs() <= ONE_INCARNATION;
        let Some(first) = firsts.iter().find(same) else {
            firsts.push(psn);
            return false;
        };
        psn.precedes(*first)
    }

    /// Records a packet that arrives intact. A receiver that has just started does not accept an early one.
    pub(super) fn on_received(
        &mut self,
        packet: &Packet<'_>,
        header: &OnePipe,
        barrier: Option<Timestamp>,
        is_early: bool,
        at: Nanos,
    ) {
        let (Some(from), payload) = (host_of(packet.src()), &packet.payload()[OnePipe::LEN..]) else {
            return;
        };
        if header.opcode() == OnePipeOpcode::DATA {
            let overtaken = !is_early && self.is_overtaken(from, header.psn());
            let below = |barrier: Option<Timestamp>| {
                barrier.is_some_and(|barrier| header.timestamp().precedes(barrier))
            };
            let late = below(barrier) || below(self.lifted);
            let received = DataReceived { at, time: header.timestamp(), barrier, late, overtaken };
            self.received.entry((from, header.psn().get())).or_insert(received);
        } else if let Some(response) = Response::read(header, payload, at) {
            self.responses_received.push((from, response));
        }
    }

    /// Returns the packets of each run, by receiver and scattering. `scattering_of` returns the scattering of
    /// a message.
    pub(super) fn runs(&self, scattering_of: impl Fn(u64) -> u64) -> BTreeMap<(usize, u64), Run> {
        let (mut runs, mut open) = (BTreeMap::new(), BTreeMap::new());
        for packet in &self.sent {
            if let Some(message) = packet.message {
                open.insert(packet.to, scattering_of(message));
            }
            let Some(&scattering) = open.get(&packet.to) else { continue };
            let run: &mut Run = runs.entry((packet.to, scattering)).or_default();
            run.packets.push((packet.psn, packet.at));
            run.complete |= packet.last;
        }
        runs
    }
}

/// Packets of a run that were sent: the messages of one scattering for one receiver
#[derive(Clone, Debug, Default)]
pub(super) struct Run {
    pub(super) packets: Vec<(Psn, Nanos)>,
    pub(super) complete: bool,
}

impl Run {
    pub(super) fn last(&self) -> Psn {
        self.packets.last().map_or(Psn::ZERO, |(psn, _)| *psn)
    }
}
