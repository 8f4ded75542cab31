//! Tunnel termination: removes the outer header of packets that are addressed to a tunnel endpoint of the
//! switch and carry another IP packet (RFC 2003, RFC 2473, RFC 4213), and forwards the inner packet. 1Pipe's
//! detours require it of every switch (Li et al., SIGCOMM 2021, section 6.2.3): beacons have to cross the
//! link that they describe, whatever path routing would choose.
//!
//! [`Tunnel`] wraps any [`Function`], which gets the packet as if it had never been encapsulated.

mod config;
mod counters;
mod encapsulate;
mod header;

pub use config::{Config, InnerForwarding};
pub use counters::{Counters, Refusal};
pub use encapsulate::{EncapsulationError, check_tunnels, encapsulation_headers};

use crate::{DropReason, Frame, Function, Nanos, Output, PortId, Verdict};
use core::net::IpAddr;
use header::{Family, Header};
use rocev2::ethernet::{Ethernet, MacAddr, VlanTag, ethertype};
use rocev2::packet::MAX_TAGS;
use std::sync::Arc;

/// Maximum count of nested IP headers of a received packet: from the representative to the switch, from there
/// to the switch across the link, and to the neighbour's representative.
const MAX_HEADERS: usize = 3;

/// A function behind tunnel termination.
pub struct Tunnel<F> {
    termination: Termination,
    /// The function that forwards
    pub function: F,
}

/// State of tunnel termination.
struct Termination {
    mac: MacAddr,
    /// Sorted, as are `sources` and `next_hops`
    ends: Box<[IpAddr]>,
    sources: Box<[IpAddr]>,
    next_hops: Option<Box<[(IpAddr, MacAddr)]>>,
    counters: Arc<Counters>,
}

/// The changes to a frame whose tunnel ends here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Decapsulation {
    /// Offset and length of the outer header
    at: usize,
    len: usize,
    inner: Header,
    /// New ECN field of the inner header
    ecn: u8,
}

impl<F: Function> Tunnel<F> {
    /// Puts tunnel termination in front of `function`.
    pub fn new(config: &Config, function: F) -> Self {
        const { assert!(!F::HAS_OWNERS, "the owner of a frame within a tunnel is not known before its end") };
        let sorted = |addresses: &[IpAddr]| {
            let mut addresses = addresses.to_vec();
            addresses.sort_unstable();
            addresses.into_boxed_slice()
        };
        let next_hops = match &config.inner_forwarding {
            InnerForwarding::Function => None,
            InnerForwarding::NextHops(hops) => {
                let mut hops = hops.clone();
                hops.sort_by_key(|&(address, _)| address);
                Some(hops.into())
            }
        };
        let termination = Termination {
            mac: config.mac,
            ends: sorted(&config.endpoints),
            sources: sorted(&config.sources),
            next_hops,
            counters: Arc::default(),
        };
        Self { termination, function }
    }

    /// Returns the counters, which the instance continues to update.
    pub fn counters(&self) -> Arc<Counters> {
        Arc::clone(&self.termination.counters)
    }
}

impl Termination {
    /// Removes the outer header of a frame whose tunnel ends here. Other frames pass unchanged.
    #[inline]
    fn process(&self, frame: &mut impl Frame) -> Result<(), Refusal> {
        // Like a router, it accepts only frames that are addressed to its MAC address.
        if frame.bytes().first_chunk() != Some(&self.mac.0) {
            return Ok(());
        }
        self.terminate(frame)
    }

    fn terminate(&self, frame: &mut impl Frame) -> Result<(), Refusal> {
        let Some(decapsulation) = self.inspect(frame.bytes(), frame.is_whole())? else { return Ok(()) };
        let next = self.next_hop(&decapsulation)?;
        let Decapsulation { at, len, inner, ecn } = decapsulation;
        let bytes = frame.bytes_mut();
        let (ethernet, ip) = bytes.split_at_mut(at);
        ethernet[at - 2..].copy_from_slice(&inner.family.ethertype().to_be_bytes());
        inner.family.set_ecn(&mut ip[len..], ecn);
        if let Some(next) = next {
            ethernet[..6].copy_from_slice(&next.0);
            ethernet[6..12].copy_from_slice(&self.mac.0);
            inner.family.spend_hop(&mut ip[len..]);
        }
        bytes.copy_within(..at, len);
        frame.strip(len);
        self.counters.terminated.count(frame.bytes().len());
        Ok(())
    }

    /// Returns the changes to a frame, or `None` if no tunnel ends here.
    fn inspect(&self, bytes: &[u8], is_whole: bool) -> Result<Option<Decapsulation>, Refusal> {
        let Some((at, family)) = network_layer(bytes) else { return Ok(None) };
        let ip = &bytes[at..];
        let Some(outer) = Header::read(ip, family) else { return Ok(None) };
        let Some(inner_family) = Family::of_protocol(outer.protocol) else { return Ok(None) };
        if self.ends.binary_search(&outer.dst).is_err() {
            return Ok(None);
        }
        if !is_whole {
            return Err(Refusal::OuterLength);
        }
        if !(outer.len..=ip.len()).contains(&outer.total) {
            return Err(Refusal::OuterLength);
        }
        if !outer.is_checksum_right(ip) {
            return Err(Refusal::OuterChecksum);
        }
        if outer.is_fragment {
            return Err(Refusal::Fragment);
        }
        if self.sources.binary_search(&outer.src).is_err() {
            return Err(Refusal::Source);
        }
        let carried = &ip[outer.len..outer.total];
        let inner = Header::read(carried, inner_family).ok_or(Refusal::Inner)?;
        if !(inner.len..=carried.len()).contains(&inner.total) || !inner.is_checksum_right(carried) {
            return Err(Refusal::Inner);
        }
        self.check_nesting(carried, inner)?;
        if inner.hops == 0 {
            return Err(Refusal::Expired);
        }
        let ecn = ecn_of(inner.ecn, outer.ecn).ok_or(Refusal::Congested)?;
        Ok(Some(Decapsulation { at, len: outer.len, inner, ecn }))
    }

    /// Checks that the packet ends in no further tunnel of this switch, and has no more nested headers than a
    /// detour needs. Otherwise a packet could be sent in circles.
    fn check_nesting(&self, mut packet: &[u8], mut header: Header) -> Result<(), Refusal> {
        for number in 2..=MAX_HEADERS {
            if self.ends.binary_search(&header.dst).is_ok() {
                return Err(Refusal::Returning);
            }
            let Some(family) = Family::of_protocol(header.protocol) else { break };
            if number == MAX_HEADERS {
                return Err(Refusal::TooDeep);
            }
            packet = &packet[header.len..];
            header = Header::read(packet, family).ok_or(Refusal::Inner)?;
        }
        Ok(())
    }

    /// Returns the MAC address of the inner packet's next hop, or `None` if the function behind routes.
    fn next_hop(&self, decapsulation: &Decapsulation) -> Result<Option<MacAddr>, Refusal> {
        let Some(hops) = &self.next_hops else { return Ok(None) };
        if decapsulation.inner.hops < 2 {
            return Err(Refusal::Expired);
        }
        let position = hops.binary_search_by_key(&decapsulation.inner.dst, |&(address, _)| address);
        Ok(Some(hops[position.map_err(|_| Refusal::NoNextHop)?].1))
    }
}

/// Returns offset and version of the IP header behind the Ethernet header and its tags.
fn network_layer(bytes: &[u8]) -> Option<(usize, Family)> {
    let mut at = Ethernet::LEN;
    for _ in 0..=MAX_TAGS {
        let kind = u16::from_be_bytes(*bytes.get(at - 2..at)?.first_chunk()?);
        if !ethertype::is_tag(kind) {
            return Some((at, Family::of_ethertype(kind)?));
        }
        at += VlanTag::LEN;
    }
    None
}

/// Returns the ECN field of a decapsulated packet (RFC 6040, section 4.2), or `None` if the packet has to be
/// dropped because a queue marked a packet whose sender is not ECN-capable.
fn ecn_of(inner: u8, outer: u8) -> Option<u8> {
    const NOT_CAPABLE: u8 = 0;
    const CAPABLE_1: u8 = 1;
    const EXPERIENCED: u8 = 3;
    match (inner, outer) {
        (NOT_CAPABLE, EXPERIENCED) => None,
        (NOT_CAPABLE, _) => Some(NOT_CAPABLE),
        (EXPERIENCED, _) | (_, EXPERIENCED) => Some(EXPERIENCED),
        (_, CAPABLE_1) => Some(CAPABLE_1),
        (inner, _) => Some(inner),
    }
}

impl<F: Function> Function for Tunnel<F> {
    type Command = F::Command;
    type Event = F::Event;

    fn receives_from(&self, port: PortId) -> bool {
        self.function.receives_from(port)
    }

    #[inline]
    fn on_frame<O: Output>(
        &mut self,
        frame: &mut O::Frame,
        port: PortId,
        now: Nanos,
        out: &mut O,
    ) -> Verdict {
        match self.termination.process(frame) {
            Ok(()) => self.function.on_frame(frame, port, now, out),
            Err(reason) => {
                self.termination.counters.refuse(reason);
                Verdict::Drop(DropReason::from(reason))
            }
        }
    }

    #[inline]
    fn prefetch_table(&self, frame: &impl Frame, fetch: impl Fn(*const u8)) {
        self.function.prefetch_table(frame, fetch);
    }

    #[inline]
    fn prefetch_state(&self, frame: &impl Frame, fetch: impl Fn(*const u8)) {
        self.function.prefetch_state(frame, fetch);
    }

    fn on_timer<O: Output>(&mut self, now: Nanos, out: &mut O) {
        self.function.on_timer(now, out);
    }

    #[inline]
    fn next_timer(&self) -> Option<Nanos> {
        self.function.next_timer()
    }

    fn on_command(&mut self, command: F::Command, now: Nanos) {
        self.function.on_command(command, now);
    }

    fn poll_event(&mut self) -> Option<F::Event> {
        self.function.poll_event()
    }
}

#[cfg(test)]
mod tests;
