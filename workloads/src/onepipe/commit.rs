//! Commit barriers of hosts: hosts write them into their beacons, the [`Controller`] lets representatives
//! count and freeze links, and the oracle looks at what arrives at hosts (1Pipe, section 5.2).

mod controller;
mod oracle;

pub use controller::{Controller, Counts};

use super::addresses::Addresses;
use super::host::unwrap;
use onepipe::{OnePipe, OnePipeOpcode, Timestamp};
use rocev2::rewrite::Rewriter;
use rocev2::{Packet, Qpn};
use switch::{Nanos, Rng};

/// Queue pair of an incarnation of a host, from which its beacons leave.
pub(super) fn queue_pair_of(host: usize, incarnation: usize) -> Qpn {
    Qpn::new((0x4000 + host * 64 + incarnation % 64) as u32)
}

/// A commit barrier in a beacon that a host sent or received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Seen {
    /// Time of the host's clock
    at: Nanos,
    /// Commit barrier, unwrapped
    commit: u64,
    /// Queue pair of the beacon's sender
    qpn: Qpn,
}

/// Commit barriers of a host.
#[derive(Debug)]
pub(super) struct Commits {
    host: usize,
    lag: Nanos,
    rng: Rng,
    sent: Vec<Seen>,
    received: Vec<Seen>,
}

impl Commits {
    pub(super) fn new(host: usize, lag: Nanos, rng: Rng) -> Self {
        Self { host, lag, rng, sent: Vec::new(), received: Vec::new() }
    }

    /// Writes a commit barrier into a beacon that the host sends: its clock minus a drawn time, never back;
    /// and the queue pair of its incarnation.
    pub(super) fn write(&mut self, frame: &mut [u8], clock: u64, incarnation: usize, now: Nanos) {
        let Some(packet) = Packet::parse(frame) else { return };
        let Some(&header) = OnePipe::of(&packet) else { return };
        if header.opcode() != OnePipeOpcode::BEACON || header.nothing_follows() {
            return;
        }
        let layout = packet.layout();
        let last = self.sent.last().map_or(0, |seen| seen.commit);
        let commit = (clock - self.rng.below(self.lag.0 + 1)).max(last);
        let qpn = queue_pair_of(self.host, incarnation);
        self.sent.push(Seen { at: now, commit, qpn });
        onepipe::stamp(frame, layout, header.barrier(), Some(Timestamp::new(commit)))
            .expect("a beacon has barriers");
        let mut rewriter = Rewriter::new(frame, layout);
        rewriter.set_src_qp(qpn).expect("a beacon is a datagram");
        rewriter.finish();
    }

    /// Records the commit barrier in a beacon.
    pub(super) fn on_received(&mut self, packet: &Packet<'_>, header: &OnePipe, now: Nanos) {
        if let (Some(commit), Some(deth)) = (header.commit(), packet.deth()) {
            self.received.push(Seen { at: now, commit: unwrap(commit, now), qpn: deth.src_qp() });
        }
    }
}

/// Makes a beacon of any incarnation of a host's switch one that the process accepts: the process of a host
/// here takes no part in the reliable service, and knows one queue pair.
pub(super) fn as_of_any_incarnation(frame: &mut [u8], tor: &Addresses) {
    let Some(packet) = Packet::parse(frame) else { return };
    let is_beacon = OnePipe::of(&packet).is_some_and(|header| header.opcode() == OnePipeOpcode::BEACON);
    if !is_beacon || packet.src() != tor.ip || packet.deth().is_none() {
        return;
    }
    let layout = packet.layout();
    let mut rewriter = Rewriter::new(frame, layout);
    rewriter.set_src_qp(tor.qpn).expect("a datagram");
    rewriter.finish();
}
