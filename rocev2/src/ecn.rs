//! Explicit congestion notification (RFC 3168): the low two bits of the traffic class. The ICRC does not cover them.

use crate::checksum::Sum;
use crate::ipv4::Ipv4;
use crate::ipv6::Ipv6;

/// Congestion experienced
const CE: u8 = 3;

/// Marks the IP packet at the start of `ip` with "congestion experienced", as a switch does whose queue is long, and puts
/// the checksum right. Only packets that say they are ECN-capable are marked, unless by `force`. True if it was marked.
pub fn mark(ip: &mut [u8], force: bool) -> bool {
    let marks = |ecn: u8| matches!(ecn, 1 | 2) || (force && ecn != CE);
    match ip.first().map(|byte| byte >> 4) {
        Some(4) if ip.len() >= Ipv4::LEN => {
            let len = usize::from(ip[0] & 15) * 4;
            if !marks(ip[1] & 3) || ip.len() < len {
                return false;
            }
            ip[1] |= CE;
            ip[10..12].fill(0);
            let sum = Sum::default().add(&ip[..len]).checksum();
            ip[10..12].copy_from_slice(&sum.to_be_bytes());
            true
        }
        // The traffic class stands across the first two bytes.
        Some(6) if ip.len() >= Ipv6::LEN => {
            if !marks(ip[1] >> 4 & 3) {
                return false;
            }
            ip[1] |= CE << 4;
            true
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_capable() {
        for ecn in 0..4u8 {
            let mut v4 = vec![0x45, 0x50 | ecn, 0, 20, 0, 0, 0x40, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2];
            let mut v6 = vec![0; 40];
            (v6[0], v6[1]) = (0x65, ecn << 4 | 0x0a);
            let capable = matches!(ecn, 1 | 2);
            assert_eq!([mark(&mut v4, false), mark(&mut v6, false)], [capable; 2], "{ecn}");
            if capable {
                assert_eq!((v4[1], v6[0], v6[1]), (0x53, 0x65, 0x3a));
                assert_eq!(Sum::default().add(&v4).folded(), 0xffff);
            }
            assert_eq!([mark(&mut v4, true), mark(&mut v6, true)], [ecn == 0; 2]);
        }
        assert!(!mark(&mut [], true) && !mark(&mut [0x45; 19], true) && !mark(&mut [0x65; 39], true));
        assert!(!mark(&mut [0x4f; 40], true), "options that are not there");
    }
}
