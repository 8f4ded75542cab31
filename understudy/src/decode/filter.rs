//! Selection of packets by opcode and by host, for `understudy decode` and `understudy trace`.

use super::dissect::Roce;
use core::net::IpAddr;
use rocev2::Opcode;

/// Filter of packets; an empty one selects all.
#[derive(Clone, Debug, Default, clap::Args)]
pub(crate) struct OpcodeFilter {
    /// Show only packets with this opcode: a number, or part of a name, such as WRITE, "READ Request" or
    /// Acknowledge. May be repeated
    #[arg(long = "opcode", value_name = "OPCODE", value_parser = parse_opcodes)]
    opcodes: Vec<Opcodes>,
}

/// The opcodes that one argument selects.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Opcodes(Vec<Opcode>);

fn parse_opcodes(text: &str) -> Result<Opcodes, String> {
    let number = match text.strip_prefix("0x") {
        Some(digits) => u8::from_str_radix(digits, 16).ok(),
        None => text.parse().ok(),
    };
    if let Some(number) = number {
        return Ok(Opcodes(vec![Opcode(number)]));
    }
    let wanted = text.to_ascii_lowercase().replace('_', " ");
    let matches = |opcode: &Opcode| opcode.name().to_ascii_lowercase().contains(&wanted);
    let matching: Vec<_> = Opcode::KNOWN.iter().copied().filter(matches).collect();
    if matching.is_empty() || wanted.trim().is_empty() {
        return Err("no opcode has this in its name; write a number (0x0a) or part of a name, such as \
                    \"RDMA WRITE\", READ, SEND, CmpSwap, FetchAdd, Acknowledge or CNP"
            .into());
    }
    Ok(Opcodes(matching))
}

impl OpcodeFilter {
    /// Returns whether the filter selects every packet.
    pub(crate) fn is_empty(&self) -> bool {
        self.opcodes.is_empty()
    }

    /// Returns whether a packet is selected.
    pub(crate) fn matches(&self, packet: &Roce<'_>) -> bool {
        let opcode = packet.bth.as_ref().map(rocev2::Bth::opcode);
        let selected = |opcode| self.opcodes.iter().any(|opcodes| opcodes.0.contains(&opcode));
        self.is_empty() || opcode.is_some_and(selected)
    }
}

/// Returns whether a packet is from or to this host; true for no host.
pub(super) fn concerns(packet: &Roce<'_>, host: Option<IpAddr>) -> bool {
    host.is_none_or(|host| packet.addresses.0 == host || packet.addresses.1 == host)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn opcodes_are_selected_by_number_and_by_part_of_a_name() {
        assert_eq!(parse_opcodes("0x11"), Ok(Opcodes(vec![Opcode::RC_ACKNOWLEDGE])));
        assert_eq!(parse_opcodes("17"), Ok(Opcodes(vec![Opcode::RC_ACKNOWLEDGE])));
        assert_eq!(
            parse_opcodes("read_request"),
            Ok(Opcodes(vec![Opcode::RC_READ_REQUEST])),
            "case and underscores do not matter"
        );
        assert_eq!(parse_opcodes("WRITE Only").unwrap().0.len(), 4, "RC and UC, with and without immediate");
        for wrong in ["", " ", "WRITTEN", "256", "0x100"] {
            assert!(parse_opcodes(wrong).is_err(), "{wrong}");
        }
    }
}
