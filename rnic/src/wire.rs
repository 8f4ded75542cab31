//! Frame construction.

use rocev2::Qpn;
pub(crate) use rocev2::path_headers::{PathHeaderFields, PathHeaders};

/// Returns the UDP source port of a queue pair: 0xc000 or above, so that ECMP spreads queue pairs over paths
/// (IB A17.4.5).
pub(crate) fn src_port(local: Qpn, remote: Qpn) -> u16 {
    let mixed = switch::table::mix(u64::from(local.get()) << 24 | u64::from(remote.get()));
    0xc000 | (mixed as u16 & 0x3fff)
}
