//! What a packet will need, told before its turn comes, so that it is in the cache by then.

use crate::function::{NO_SERVER, Swordbox};
use core::net::{IpAddr, Ipv4Addr};
use rocev2::ethernet::{Ethernet, ethertype};
use rocev2::ipv4::Ipv4;
use rocev2::udp::Udp;
use rocev2::{Bth, Opcode, Psn, Qpn};
use switch::forward::counters::HostQp;

/// Where most packets have their IP header, BTH and what follows: without tags, IPv4 without options
const IP: usize = Ethernet::LEN;
const BTH: usize = IP + Ipv4::LEN + Udp::LEN;
const BEHIND: usize = BTH + Bth::LEN;
/// With so many queue pairs or fewer, what is needed of them is in the cache as it is
const FEW: usize = 4096;
/// Operations that take a lane before the one that is foreseen
const AHEAD: u32 = 1;

/// Has the first cache line of an element fetched, if there is one.
#[inline]
fn element<T>(of: &[T], id: u32, fetch: impl Fn(*const u8)) {
    if let Some(element) = of.get(id as usize) {
        fetch(core::ptr::from_ref(element).cast());
    }
}

/// What a glance tells of a frame of the shape that most have.
struct Glance<'a> {
    head: &'a [u8; BEHIND + 4],
    key: HostQp,
    host: Ipv4Addr,
    /// The first eight bytes behind the BTH, if it is a request that can take a lane: the address
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
    /// Has fetched where the search for what a frame names begins.
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

    /// Has what will be needed for a frame fetched, as far as a glance tells.
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
        // A response: to whoever has the operation under way that it answers. What leads there is in use all the time.
        let Some(end) = self.ends.get(id as usize) else { return };
        let Some(flow) = self.flows.get(end.peer as usize) else { return };
        let Some(lane) = self.lanes.get(flow.lane as usize) else { return };
        let entry = lane.entry(Psn::new(word(head, BTH + 8)));
        element(&self.ends, entry.to, &fetch);
        element(&self.flows, entry.flow, &fetch);
    }
}
