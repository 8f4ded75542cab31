//! MAC and IP addresses as configuration values.

use crate::value::Value;
use core::net::IpAddr;
use core::ops::Range;
use rocev2::ethernet::MacAddr;

/// Reads the MAC address of a single station.
pub fn station(value: &Value<'_>) -> Option<MacAddr> {
    let text = value.text()?;
    let Ok(mac) = text.parse::<MacAddr>() else {
        let problem = value.problem(format!("`{text}` is not a MAC address")).label("not six bytes");
        value
            .add(problem.help("write six bytes in hexadecimal with colons, such as `\"52:54:00:00:00:01\"`"));
        return None;
    };
    if mac.is_group() {
        let problem = value.problem(format!("{mac} is a group address, which belongs to no single station"));
        value.add(problem.label("a group address").help(
            "give the address of one station: the first byte of such an address is even, as in `52:54:00:00:00:01`",
        ));
        return None;
    }
    Some(mac)
}

/// Reads an IP address with a prefix length.
pub fn address(value: &Value<'_>) -> Option<(IpAddr, u8)> {
    let text = value.text()?;
    let parsed = text.split_once('/').and_then(|(ip, prefix)| {
        let (ip, prefix): (IpAddr, u8) = (ip.parse().ok()?, prefix.parse().ok()?);
        (prefix <= if ip.is_ipv4() { 32 } else { 128 }).then_some((ip, prefix))
    });
    if parsed.is_none() {
        let problem = value.problem(format!("`{text}` is not an IP address with a prefix length"));
        value.add(problem.label("not an address").help("write `\"10.0.0.1/24\"` or `\"fd00::1/64\"`"));
    }
    let (ip, _) = parsed?;
    if ip.is_multicast() {
        let problem = value.problem(format!("{ip} is not an address of a host"));
        value.add(
            problem
                .label("a multicast address")
                .help("write the host's address and its subnet's prefix length, such as `10.0.0.1/24`"),
        );
        return None;
    }
    parsed
}

/// Reads an IP address.
pub fn ip(value: &Value<'_>) -> Option<IpAddr> {
    let text = value.text()?;
    let ip = text.parse().ok();
    if ip.is_none() {
        let problem = value.problem(format!("`{text}` is not an IP address")).label("not an address");
        value.add(problem.help("write an address such as `\"10.0.0.1\"` or `\"fd00::1\"`"));
    }
    ip
}

/// Reads a node's own addresses with the lengths of their prefixes, of which there is at least one; `remedy` is the advice for an empty list.
pub fn own_addresses(value: &Value<'_>, remedy: &str) -> Option<Vec<(IpAddr, u8)>> {
    let mut known: Vec<(IpAddr, Range<usize>)> = Vec::new();
    let addresses = value.list_of(|element| {
        let (ip, prefix) = address(element)?;
        if let Some((_, first)) = known.iter().find(|(other, _)| *other == ip) {
            let problem = element.problem(format!("`addresses` lists {ip} twice")).label("again");
            element.add(problem.also(first.clone(), "first here").help("remove one of the two"));
        }
        known.push((ip, element.span()));
        Some((ip, prefix))
    })?;
    if addresses.is_empty() {
        value.add(value.problem("`addresses` is empty").label("no address").help(remedy));
    }
    Some(addresses)
}
