//! A table of packets: a description of each, the frame, and the expected result of forwarding it. Tests
//! check the verdicts, benchmarks measure the cost.

use rocev2::ethernet::{Ethernet, MacAddr, VlanTag, ethertype};
use rocev2::ipv4::Ipv4;
use rocev2::ipv6::Ipv6;
use rocev2::repr::{Ip, Repr};
use rocev2::{Bth, Fault, Opcode, Psn, Qpn};

/// A row of the table.
pub struct Row {
    /// Description of the frame
    pub description: String,
    /// The frame
    pub frame: Vec<u8>,
    /// The fault of the frame, if any
    pub fault: Option<Fault>,
    /// Its opcode, if it parses as a RoCEv2 packet
    pub opcode: Option<Opcode>,
}

/// Offset of the IPv4 header of an untagged frame
const L3: usize = Ethernet::LEN;
/// Offset of its UDP header
const UDP: usize = L3 + 20;
/// Offset of its BTH
const BTH: usize = UDP + 8;

/// Returns a packet with this opcode, with correct checksums. `payload` is ignored if the opcode has none.
pub fn packet(opcode: Opcode, v6: bool, tags: usize, payload: &[u8]) -> Vec<u8> {
    let kind = if v6 { ethertype::IPV6 } else { ethertype::IPV4 };
    let outer = if tags == 0 { kind } else { ethertype::VLAN };
    let ethernet = Ethernet {
        dst: MacAddr([2, 0, 0, 0, 0, 1]),
        src: MacAddr([2, 0, 0, 0, 0, 2]),
        ethertype: outer.into(),
    };
    let ip = if v6 {
        Ip::V6(Ipv6 { src: [0xfd; 16], dst: [0xfc; 16], ..Ipv6::default() }, &[])
    } else {
        Ip::V4(Ipv4 { src: [10, 0, 0, 1], dst: [10, 0, 0, 2], ..Ipv4::default() }, &[])
    };
    let mut repr = Repr::new(ethernet, ip, Bth::new(opcode, Qpn::new(0x11), Psn::new(0xff_ffff)));
    for (n, tag) in repr.tags.iter_mut().take(tags).enumerate() {
        let following = if n + 1 == tags { kind } else { ethertype::VLAN };
        *tag = VlanTag { tci: (0x6000 | n as u16).into(), ethertype: following.into() };
    }
    repr.tag_count = tags;
    if opcode.info().is_some_and(|info| info.payload) {
        repr.payload = payload;
    }
    let mut frame = vec![0xa5; repr.frame_len() + 3];
    let len = repr.build(&mut frame).expect("room for the frame and its padding");
    frame.truncate(len);
    frame
}

/// Returns the table, which contains every fault.
pub fn table() -> Vec<Row> {
    let mut rows = Vec::new();
    for &opcode in Opcode::KNOWN {
        for (v6, tags) in [(false, 0), (true, 0), (false, 1), (true, 2)] {
            let description = format!("{opcode}, {}, {tags} tags", if v6 { "IPv6" } else { "IPv4" });
            let frame = packet(opcode, v6, tags, &[0x5a; 77]);
            rows.push(Row { description, frame, fault: None, opcode: Some(opcode) });
        }
    }
    rows.extend(faults());
    rows
}

fn faults() -> Vec<Row> {
    let good = || packet(Opcode::RC_WRITE_ONLY, false, 0, &[0x5a; 64]);
    // After a change of the IPv4 header, its checksum is corrected, because a wrong one would be reported
    // first.
    let with_header = |change: &dyn Fn(&mut Vec<u8>)| {
        let mut frame = good();
        change(&mut frame);
        frame[L3 + 10..L3 + 12].fill(0);
        let sum = rocev2::checksum::Sum::default().add(&frame[L3..L3 + 20]).checksum();
        frame[L3 + 10..L3 + 12].copy_from_slice(&sum.to_be_bytes());
        frame
    };
    let with = |at: usize, value: u8| {
        let mut frame = good();
        frame[at] = value;
        frame
    };
    let row = |description: &str, frame: Vec<u8>, fault: Fault| Row {
        description: description.into(),
        frame,
        fault: Some(fault),
        opcode: None,
    };
    let parses = |description: &str, frame: Vec<u8>, fault: Fault| Row {
        opcode: Some(Opcode::RC_WRITE_ONLY),
        ..row(description, frame, fault)
    };
    let mut rows: Vec<_> = [0, 13, L3 + 19, BTH - 1, good().len() - 1]
        .into_iter()
        .map(|len| row(&format!("cut to {len} bytes"), good()[..len].to_vec(), Fault::Truncated))
        .collect();
    rows.extend([
        row("IP version 5", with(L3, 0x55), Fault::IpHeader),
        row("IPv4 header of 16 bytes", with(L3, 0x44), Fault::IpHeader),
        row("IP length without room for a BTH", with_header(&|f| f[L3 + 2..L3 + 4].fill(0)), Fault::IpLength),
        row("wrong IPv4 header checksum", with(L3 + 10, 0x11), Fault::IpChecksum),
        row("first of several fragments", with_header(&|f| f[L3 + 6] = 0x20), Fault::Fragment),
        row("UDP length exceeds the IP length", with(UDP + 5, 0xff), Fault::UdpLength),
        parses("wrong UDP checksum", with(UDP + 7, 0x01), Fault::UdpChecksum),
        row("transport version 1", with(BTH + 1, 0x41), Fault::TransportVersion),
        row("a reserved opcode", with(BTH, 0x15), Fault::UnknownOpcode),
        row("a manufacturer's opcode", with(BTH, 0xc5), Fault::UnknownOpcode),
        row("an acknowledgement with a payload", with(BTH, Opcode::RC_ACKNOWLEDGE.0), Fault::OpcodeLength),
        row(
            "more padding than payload",
            {
                let mut frame = packet(Opcode::RC_SEND_ONLY, false, 0, &[]);
                frame[BTH + 1] |= 0x30;
                frame
            },
            Fault::Unaligned,
        ),
        row("a payload of 4,100 bytes", packet(Opcode::RC_SEND_ONLY, false, 0, &[0; 4100]), Fault::Oversized),
        parses("a flipped bit in the payload", with(BTH + 40, 0x5b), Fault::Icrc),
    ]);
    rows
}
