//! Service IDs of `rdma_cm`'s port spaces (IB annex A11.2.2).

/// A port space. Its value is the IP protocol number of the protocol after which the space is named.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum PortSpace {
    /// Connected services: `RDMA_PS_TCP`
    Tcp = 0x06,
    /// Datagram services, resolved by SIDR: `RDMA_PS_UDP`
    Udp = 0x11,
}

/// Prefix of the service IDs of IP port spaces, followed by the protocol (8 bits) and the port (16 bits)
const IP_SERVICE: u64 = 0x0000_0000_0100_0000;

/// Returns the service ID of a port (IB A11.2.2).
pub const fn service_id_of(space: PortSpace, port: u16) -> u64 {
    IP_SERVICE | (space as u64) << 16 | port as u64
}

/// Returns the port of a service ID; `None` for an ID outside of the port spaces.
pub const fn port_of(service_id: u64) -> Option<(PortSpace, u16)> {
    let space = match service_id >> 16 {
        0x0106 => PortSpace::Tcp,
        0x0111 => PortSpace::Udp,
        _ => return None,
    };
    Some((space, service_id as u16))
}
