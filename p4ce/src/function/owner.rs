//! Which worker owns a packet: the one that has its destination queue pair's slot.

use rocev2::Qpn;

/// Returns the worker that has a queue pair of the switch, and all others of the same group: each worker has the
/// queue pairs of some consecutive slots. `queue_pairs` is a power of two.
#[inline]
pub(crate) const fn worker_of(qpn: Qpn, queue_pairs: usize, workers: usize) -> usize {
    ((qpn.get() as usize & (queue_pairs - 1)) * workers) >> queue_pairs.trailing_zeros()
}

#[cfg(test)]
mod tests {
    use super::super::tests::{OWN, packet, peer};
    use super::super::{Config, P4ce};
    use super::*;
    use rocev2::ethernet::{MacAddr, VlanTag, ethertype};
    use rocev2::repr::{Ip, Repr};
    use rocev2::{Opcode, Psn};
    use switch::forward;
    use switch::memory::MemoryFrame;
    use switch::{Function, Nanos, PortId};

    fn owner(frame: &[u8], workers: usize) -> Option<usize> {
        let function = P4ce::new(Config {
            forward: forward::Config::bridge(6, 16),
            mac: OWN,
            addresses: vec![],
            groups: 8,
            queue_pairs: 64,
            workers,
            silent_after: Nanos::ZERO,
            bug: None,
        });
        function.owner(&MemoryFrame::new(frame.to_vec()), PortId(0))
    }

    #[test]
    fn a_packet_belongs_to_the_worker_of_its_queue_pair_whatever_its_headers_are() {
        let tagged = |repr: &mut Repr<'_>| {
            repr.tags[0] = VlanTag { tci: 7.into(), ethertype: repr.ethernet.ethertype };
            (repr.ethernet.ethertype, repr.tag_count) = (ethertype::VLAN.into(), 1);
        };
        let with_options = |repr: &mut Repr<'_>| {
            if let Ip::V4(header, options) = &mut repr.ip {
                (header.version_ihl, *options) = (0x46, &[1; 4]);
            }
        };
        let plain = |_: &mut Repr<'_>| {};
        let changes: [&dyn Fn(&mut Repr<'_>); 3] = [&plain, &tagged, &with_options];
        for (workers, slot) in [(1, 9), (2, 31), (2, 32), (3, 21), (3, 22), (3, 63), (4, 47), (4, 48)] {
            for (v6, change) in [false, true].into_iter().flat_map(|v6| changes.map(|change| (v6, change))) {
                let qpn = Qpn::new(64 * 5 + slot);
                let frame = packet(v6, 1, Opcode::RC_ACKNOWLEDGE, qpn, Psn::new(1), change);
                assert_eq!(owner(&frame, workers), Some(slot as usize * workers / 64));
            }
        }
    }

    #[test]
    fn frames_for_the_bridge_and_the_control_plane_have_no_owner() {
        let qpn = peer(false, 1).local_qp;
        let mut frame = packet(false, 1, Opcode::RC_ACKNOWLEDGE, qpn, Psn::new(1), |_| {});
        assert!(owner(&frame, 2).is_some());
        let gsi = packet(false, 1, Opcode::UD_SEND_ONLY, Qpn::GSI, Psn::new(1), |_| {});
        assert_eq!(owner(&gsi, 2), None);
        for len in 0..frame.len().min(54) {
            assert_eq!(owner(&frame[..len], 2), None, "{len} bytes");
        }
        frame[..6].copy_from_slice(&MacAddr([2, 0, 0, 0, 1, 2]).0);
        assert_eq!(owner(&frame, 2), None);
        let mut arp = [&OWN.0[..], &[2, 0, 0, 0, 1, 1, 8, 6]].concat();
        arp.resize(60, 0);
        assert_eq!(owner(&arp, 2), None);
    }
}
