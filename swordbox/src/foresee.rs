//! Prefetch: loads the state that a packet will need into the CPU cache before the packet is handled.

use crate::function::{NO_SERVER, Swordbox};
use core::net::{IpAddr, Ipv4Addr};
use rocev2::ethernet::{Ethernet, ethertype};
use rocev2::ipv4::Ipv4;
use rocev2::udp::Udp;
use rocev2::{Bth, Opcode, Psn, Qpn};
use switch::forward::counters::HostQp;

/// Offsets of the IP header, the BTH and the bytes behind it in an untagged IPv4 packet without options
const IP: usize = Ethernet::LEN;
const BTH: usize = IP + Ipv4::LEN + Udp::LEN;
const BEHIND: usize = BTH + Bth::LEN;
/// Number of endpoints up to which their state stays in the cache without prefetching
const FEW: usize = 4096;
/// Number of operations expected on the shared QP before the one that is prefetched for
const AHEAD: u32 = 1;

/// Prefetches the first cache line of an element, if it exists.
#[inline]
fn element<T>(of: &[T], id: u32, fetch: impl Fn(*const u8)) {
    if let Some(element) = of.get(id as usize) {
        fetch(core::ptr::from_ref(element).cast());
    }
}

/// Fields of an untagged IPv4 packet without options.
struct Glance<'a> {
    head: &'a [u8; BEHIND + 4],
    key: HostQp,
    host: Ipv4Addr,
    /// Virtual address (first eight bytes behind the BTH) of a request that may use a shared QP
    va: Option<u64>,
}

impl<'a> Glance<'a> {
    #[inline]
    fn at(bytes: &'a [u8]) -> Option<Self> {
        let head = bytes.first_chunk()?;
        if head[12..14] != ethertype::IPV4.to_be_bytes() {
            return None;
        }
        let host = Ipv4Addr::from(word(head, IP + 16));
        let key = HostQp::new(IpAddr::V4(host), Qpn::new(word(head, BTH + 4)));
        let shares = matches!(
            Opcode(head[BTH]),
            Opcode::RC_COMPARE_SWAP | Opcode::RC_FETCH_ADD | Opcode::RC_WRITE_ONLY
        );
        let va = bytes.get(BEHIND..).and_then(|bytes| bytes.first_chunk()).filter(|_| shares);
        Some(Self { head, key, host, va: va.map(|va| u64::from_be_bytes(*va)) })
    }
}

#[inline]
fn word(head: &[u8; BEHIND + 4], at: usize) -> u32 {
    u32::from_be_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]])
}

impl Swordbox {
    /// Prefetches the table slots at which the lookups for a frame begin.
    #[inline]
    pub(crate) fn look_far_ahead(&self, bytes: &[u8], fetch: impl Fn(*const u8)) {
        let Some(glance) = Glance::at(bytes) else { return };
        fetch(self.index.home_of(&glance.key));
        if let Some(va) = glance.va
            && self.ends.len() > FEW
        {
            fetch(self.lines.home_of(self.server_of(glance.host.to_ipv6_mapped().to_bits()), va));
        }
    }

    /// Prefetches the entries that a frame will need, guessed from the table slots.
    #[inline]
    pub(crate) fn look_ahead(&self, bytes: &[u8], fetch: impl Fn(*const u8)) {
        if self.ends.len() <= FEW {
            return;
        }
        let Some(Glance { head, key, host, va }) = Glance::at(bytes) else { return };
        let id = self.index.likely(&key);
        fetch(self.index.place_of(id));
        let server = self.server_of(host.to_ipv6_mapped().to_bits());
        if server != NO_SERVER {
            element(&self.ends, id, &fetch);
            element(&self.flows, id, &fetch);
            if let Some(va) = va {
                let lane = self.lines.foresee(server, va, &fetch);
                if let Some(lane) = self.lanes.get(lane as usize)
                    && let Some(owner) = self.flows.get(lane.owner as usize)
                {
                    let psn = owner.own_next.add(AHEAD);
                    fetch(core::ptr::from_ref(lane.entry(psn)).cast());
                    fetch(core::ptr::from_ref(lane.payload(psn)).cast());
                }
            }
            return;
        }
        // A response: prefetch the client of the operation that it answers. The entries that lead there are
        // in constant use.
        let Some(end) = self.ends.get(id as usize) else { return };
        let Some(flow) = self.flows.get(end.peer as usize) else { return };
        let Some(lane) = self.lanes.get(flow.lane as usize) else { return };
        let entry = lane.entry(Psn::new(word(head, BTH + 8)));
        element(&self.ends, entry.to, &fetch);
        element(&self.flows, entry.flow, &fetch);
    }
}
