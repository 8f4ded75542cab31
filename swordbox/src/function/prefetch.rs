//! Prefetch: loads the state that a packet will need into the CPU cache before the packet is handled.

use super::Swordbox;
use crate::address::NO_SERVER;
use core::net::{IpAddr, Ipv4Addr};
use rocev2::ethernet::{Ethernet, ethertype};
use rocev2::ipv4::Ipv4;
use rocev2::udp::Udp;
use rocev2::{Bth, Opcode, Psn, Qpn};
use switch::forward::counters::HostQp;

/// Offsets of the IP header, the BTH and the bytes behind it in an untagged IPv4 packet without options
const IP: usize = Ethernet::LEN;
const BTH: usize = IP + Ipv4::LEN + Udp::LEN;
const WINDOW: usize = BTH + Bth::LEN;
/// Number of endpoints up to which their state stays in the cache without prefetching
const FEW: u32 = 4096;
/// Number of operations expected on the shared QP before the one that is prefetched for
const AHEAD: u32 = 1;

/// Fields of an untagged IPv4 packet without options.
struct PacketHead<'a> {
    head: &'a [u8; WINDOW + 4],
    key: HostQp,
    host: Ipv4Addr,
    /// Virtual address (first eight bytes behind the BTH) of a request that may use a shared QP
    va: Option<u64>,
}

impl<'a> PacketHead<'a> {
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
        let va = bytes.get(WINDOW..).and_then(|bytes| bytes.first_chunk()).filter(|_| shares);
        Some(Self { head, key, host, va: va.map(|va| u64::from_be_bytes(*va)) })
    }
}

#[inline]
fn word(head: &[u8; WINDOW + 4], at: usize) -> u32 {
    u32::from_be_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]])
}

impl Swordbox {
    /// Prefetches the table slots at which the lookups for a frame begin.
    #[inline]
    pub(crate) fn prefetch_lookups(&self, bytes: &[u8], fetch: impl Fn(*const u8)) {
        let Some(packet_head) = PacketHead::at(bytes) else { return };
        self.connections.prefetch_slot(&packet_head.key, &fetch);
        if let Some(va) = packet_head.va
            && self.connections.ids() > FEW
        {
            fetch(
                self.lines
                    .home_of(self.connections.server_of(packet_head.host.to_ipv6_mapped().to_bits()), va),
            );
        }
    }

    /// Prefetches the entries that a frame will need, guessed from the table slots.
    #[inline]
    pub(crate) fn prefetch_entries(&self, bytes: &[u8], fetch: impl Fn(*const u8)) {
        if self.connections.ids() <= FEW {
            return;
        }
        let Some(PacketHead { head, key, host, va }) = PacketHead::at(bytes) else { return };
        let id = self.connections.prefetch_key(&key, &fetch);
        let server = self.connections.server_of(host.to_ipv6_mapped().to_bits());
        if server != NO_SERVER {
            self.connections.prefetch_endpoint(id, &fetch);
            self.connections.prefetch_flow(id, &fetch);
            if let Some(va) = va {
                let shared_qp = self.lines.prefetch(server, va, &fetch);
                if let Some(shared_qp) = self.shared_qps.get(shared_qp)
                    && let Some(owner) = self.connections.get_flow(shared_qp.owner)
                {
                    let psn = owner.translation.next().add(AHEAD);
                    fetch(core::ptr::from_ref(shared_qp.entry(psn)).cast());
                    fetch(core::ptr::from_ref(shared_qp.payload(psn)).cast());
                }
            }
            return;
        }
        // A response: prefetch the client of the operation that it answers. The entries that lead there are
        // in constant use.
        let Some(end) = self.connections.get_endpoint(id) else { return };
        let Some(flow) = self.connections.get_flow(end.peer()) else { return };
        let Some(shared_qp) = self.shared_qps.get(flow.shared_qp) else { return };
        let entry = shared_qp.entry(Psn::new(word(head, BTH + 8)));
        self.connections.prefetch_endpoint(entry.to, &fetch);
        self.connections.prefetch_flow(entry.flow, &fetch);
    }
}
