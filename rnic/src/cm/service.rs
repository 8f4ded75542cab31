//! Service ids of `rdma_cm`'s port spaces (IB annex A11.2.2).

/// A port space: what a port number belongs to. The number is the IP protocol whose ports the space is named after.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum PortSpace {
    /// Connected services: `RDMA_PS_TCP`
    Tcp = 0x06,
    /// Datagram services, resolved by SIDR: `RDMA_PS_UDP`
    Udp = 0x11,
}

/// The service ids of IP port spaces: this, then the protocol (8 bits), then the port (16)
const IP_SERVICE: u64 = 0x0000_0000_0100_0000;

/// The service id of a port (IB A11.2.2).
pub const fn service_id_of(space: PortSpace, port: u16) -> u64 {
    IP_SERVICE | (space as u64) << 16 | port as u64
}

/// The port that a service id means; `None` for one of another kind.
pub const fn port_of(service_id: u64) -> Option<(PortSpace, u16)> {
    let space = match service_id >> 16 {
        0x0106 => PortSpace::Tcp,
        0x0111 => PortSpace::Udp,
        _ => return None,
    };
    Some((space, service_id as u16))
}
