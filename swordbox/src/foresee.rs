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
/// Operations that take a lane before the one that is foreseen
const AHEAD: u32 = 1;
/// Bytes of a cache line
const CACHE_LINE: usize = 64;

/// Has the first `lines` cache lines of an element fetched, if there is one.
#[inline]
fn element<T>(of: &[T], id: u32, lines: usize, fetch: impl Fn(*const u8)) {
    if let Some(element) = of.get(id as usize) {
        let at = core::ptr::from_ref(element).cast::<u8>();
        for line in 0..lines {
            fetch(at.wrapping_add(line * CACHE_LINE));
        }
    }
}

impl Swordbox {
    /// Has what will be needed for a frame fetched, as far as a glance tells.
    #[inline]
    pub(crate) fn look_ahead(&self, bytes: &[u8], fetch: impl Fn(*const u8)) {
        let Some(head) = bytes.first_chunk::<{ BEHIND + 4 }>() else { return };
        let word = |at: usize| u32::from_be_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
        if head[12..14] != ethertype::IPV4.to_be_bytes() {
            return;
        }
        let host = Ipv4Addr::from(word(IP + 16));
        let key = HostQp::new(IpAddr::V4(host), Qpn::new(word(BTH + 4)));
        let id = self.index.likely(&key);
        fetch(self.index.place_of(id));
        let server = self.server_of(host.to_ipv6_mapped().to_bits());
        if server != NO_SERVER {
            element(&self.ends, id, 2, &fetch);
            element(&self.flows, id, 2, &fetch);
            let opcode = Opcode(head[BTH]);
            if matches!(opcode, Opcode::RC_COMPARE_SWAP | Opcode::RC_FETCH_ADD | Opcode::RC_WRITE_ONLY)
                && let Some(va) = bytes.get(BEHIND..).and_then(|bytes| bytes.first_chunk())
            {
                let lane = self.lines.foresee(server, u64::from_be_bytes(*va), &fetch);
                if let Some(lane) = self.lanes.get(lane as usize)
                    && let Some(owner) = self.flows.get(lane.owner as usize)
                {
                    let entry = core::ptr::from_ref(lane.entry(owner.own_next.add(AHEAD))).cast::<u8>();
                    fetch(entry);
                    fetch(entry.wrapping_add(CACHE_LINE));
                }
            }
            return;
        }
        // A response: to whoever has the operation under way that it answers. What leads there is in use all the time.
        let Some(end) = self.ends.get(id as usize) else { return };
        let Some(flow) = self.flows.get(end.peer as usize) else { return };
        let Some(lane) = self.lanes.get(flow.lane as usize) else { return };
        let entry = lane.entry(Psn::new(word(BTH + 8)));
        element(&self.ends, entry.to, 2, &fetch);
        element(&self.flows, entry.flow, 2, &fetch);
    }
}
