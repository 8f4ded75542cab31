//! Reads the table `match`: the packets that a rule applies to.

use core::net::IpAddr;
use rocev2::{Opcode, Psn, Qpn};
use settings::declare::{Kind, Type, other, special};
use settings::port::Ports;
use settings::tree::Value;
use settings::words::{closest, one_of};
use switch::impair::{IpPrefix, Match, Operations, PsnRange};

/// Largest 24-bit number
const MAX_24: u64 = 0xff_ffff;

settings::table! {
    /// Packets that a rule applies to: those that match every key
    pub(crate) enum Keys "`match`";
    /// Classes or names of opcodes, or their numbers: one or a list
    opcode: Operations = other("opcode, or list of opcodes", operations) => optional("any") example("rc_write_only");
    /// Destination queue pairs: one or a list
    qpn: Vec<Qpn> = Type::new(Kind::Wholes(0, MAX_24), qpns) => optional("any") example(0x11);
    /// Source address, or its network
    src: IpPrefix = other("IP address, or prefix", network) => optional("any") example("10.0.0.1");
    /// Destination address, or its network
    dst: IpPrefix = other("IP address, or prefix", network) => optional("any") example("10.0.0.0/24");
    /// Port at which the packets arrive
    port: () = special("name of a port") => optional("any") example("host-a");
    /// PSN, or a range, which may wrap
    psn: PsnRange = other("number, or `\"first-last\"`", |value| psns(value, true)) => optional("any") example("100-200");
    /// PSN, counted from the first one of the queue pair, or a range
    psn_offset: PsnRange = other("number, or `\"first-last\"`", |value| psns(value, false)) => optional("any") example("0-10");
}

pub(super) fn read(value: &Value<'_>, ports: &Ports) -> Option<Match> {
    let table = value.inline()?;
    let matching = Match {
        operations: table.read(Keys::opcode),
        qpns: table.read(Keys::qpn).unwrap_or_default(),
        src: table.read(Keys::src),
        dst: table.read(Keys::dst),
        port: table.value(Keys::port).and_then(|value| ports.find(&value)),
        psn: table.read(Keys::psn),
        psn_offset: table.read(Keys::psn_offset),
    };
    table.finish();
    Some(matching)
}

/// Returns the elements of a list, which may not be empty, or the single value.
fn elements<'a>(value: &Value<'a>) -> Option<Vec<Value<'a>>> {
    let elements = value.one_or_list();
    if elements.is_empty() {
        let problem = value.problem(format!("{} is empty, so no packet matches", value.name()));
        value.add(
            problem.label("empty").help(format!("remove it, or list at least one value{}", value.such_as())),
        );
        return None;
    }
    Some(elements)
}

fn operations(value: &Value<'_>) -> Option<Operations> {
    let sets: Vec<_> = elements(value)?.iter().map(operation).collect();
    sets.into_iter().try_fold(Operations::default(), |all, set| Some(all.and(set?)))
}

/// Reads a class of opcodes, the name of an opcode, or its number.
fn operation(value: &Value<'_>) -> Option<Operations> {
    let opcode = |opcode: &Opcode| Some((opcode.info()?.constant.to_lowercase(), *opcode));
    let known: Vec<_> = Opcode::KNOWN.iter().filter_map(opcode).collect();
    let help = format!(
        "write {}, or an opcode such as `rc_write_only`, `ud_send_only_imm` or 0x0a",
        one_of(Operations::CLASSES)
    );
    if let Some(text) = value.text_if_any() {
        let named = known.iter().find(|(name, _)| name == text).map(|(_, opcode)| Operations::only(*opcode));
        let found = Operations::class(text).or(named);
        if found.is_none() {
            let opcodes = known.iter().map(|(name, _)| name.as_str());
            let close = closest(text, Operations::CLASSES.into_iter().chain(opcodes));
            let close = close.map(|close| format!("did you mean `{close}`? ")).unwrap_or_default();
            let problem = value.problem(format!("there is no opcode `{text}`")).label("not an opcode");
            value.add(problem.help(format!("{close}{help}")));
        }
        return found;
    }
    let number = Opcode(value.whole_in(0..=255, "0x0a")? as u8);
    if number.info().is_none() {
        let problem = value.problem(format!("there is no opcode {:#04x} in RoCEv2", number.0));
        value.add(problem.label("neither RC, UC, UD nor CNP").help(help));
        return None;
    }
    Some(Operations::only(number))
}

fn qpns(value: &Value<'_>) -> Option<Vec<Qpn>> {
    let qpns: Vec<_> = elements(value)?.iter().map(|element| element.whole_like("17")).collect();
    qpns.into_iter().map(|qpn| Some(Qpn::new(qpn? as u32))).collect()
}

/// Reads an address, or a network in CIDR notation.
fn network(value: &Value<'_>) -> Option<IpPrefix> {
    let text = value.text()?;
    let parsed = match text.split_once('/') {
        None => text.parse().ok().map(|address: IpAddr| (address, None)),
        Some((address, prefix)) => address.parse().ok().zip(prefix.parse().ok().map(Some)),
    };
    let network = parsed.and_then(|(address, prefix)| match prefix {
        None => Some(IpPrefix::host(address)),
        Some(prefix) => IpPrefix::new(address, prefix),
    });
    let (Some(network), Some((address, prefix))) = (network, parsed) else {
        let problem =
            value.problem(format!("`{text}` is neither an address nor a network")).label("not an address");
        value.add(
            problem.help(format!("write an address, or a network with its prefix length{}", value.such_as())),
        );
        return None;
    };
    let first = network.first();
    if let (Some(prefix), true) = (prefix, first != address) {
        let problem = value.problem(format!("{address} is not the first address of its network"));
        value.add(
            problem.label("a host's address with a prefix length").help(format!(
                "write `\"{first}/{prefix}\"` for the network, or `\"{address}\"` for the host"
            )),
        );
        return None;
    }
    Some(network)
}

/// Reads a number, or a range of numbers, which may wrap around 2^24 if `wraps` is true.
fn psns(value: &Value<'_>, wraps: bool) -> Option<PsnRange> {
    let Some(text) = value.text_if_any() else {
        let psn = Psn::new(value.whole_in(0..=MAX_24, "100")? as u32);
        return Some(PsnRange { first: psn, last: psn });
    };
    let number = |text: &str| {
        let text = text.trim();
        let number = match text.strip_prefix("0x") {
            Some(digits) => u32::from_str_radix(digits, 16).ok(),
            None => text.parse().ok(),
        };
        number.filter(|&number| u64::from(number) <= MAX_24)
    };
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    let Some((first, last)) = number(first).zip(number(last)) else {
        let problem =
            value.problem(format!("{} cannot be `{text}`", value.name())).label("not a range of PSNs");
        let help = format!("write a number from 0 to {MAX_24}, or two joined by `-`{}", value.such_as());
        value.add(problem.help(help));
        return None;
    };
    if last < first && !wraps {
        let problem = value
            .problem(format!("the range {} ends before it begins", value.name()))
            .label("an empty range");
        value.add(problem.help(format!("write the smaller number first: `\"{last}-{first}\"`")));
        return None;
    }
    Some(PsnRange { first: Psn::new(first), last: Psn::new(last) })
}
