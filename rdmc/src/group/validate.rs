//! Checks of a group's configuration: whether it is valid, and whether all members have the same one.

use crate::config::{CallError, GroupConfig};
use crate::schedule::{Algorithm, Schedule};
use core::net::IpAddr;

/// Returns a hash of everything on which all members have to agree. It protects against mistakes, not against
/// attackers.
pub(super) fn config_hash(config: &GroupConfig) -> u64 {
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    let mut add = |bytes: &[u8]| {
        for byte in bytes {
            hash = (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        }
    };
    add(config.algorithm.name().as_bytes());
    add(&config.block_bytes.to_be_bytes());
    add(&config.max_in_flight.to_be_bytes());
    add(&(config.members.len() as u32).to_be_bytes());
    let octets = |ip: &IpAddr| match ip {
        IpAddr::V4(ip) => ip.to_ipv6_mapped().octets(),
        IpAddr::V6(ip) => ip.octets(),
    };
    for member in &config.members {
        add(&octets(member));
    }
    if let Some(switch) = config.switch.filter(|_| config.algorithm == Algorithm::InNetwork) {
        add(&octets(&switch.address));
        add(&switch.port.to_be_bytes());
    }
    if let Algorithm::Hybrid(racks) = &config.algorithm {
        for node in 0..racks.nodes() as u32 {
            add(&racks.rack(node).to_be_bytes());
        }
    }
    hash
}

/// Checks a group's configuration. Returns the index of this member.
pub(crate) fn check(config: &GroupConfig, own: IpAddr) -> Result<u32, CallError> {
    let members = &config.members;
    Schedule::new(config.algorithm.clone(), members.len() as u32, 1)?;
    let mut seen = std::collections::BTreeSet::new();
    for member in members {
        if !seen.insert(*member) {
            return Err(CallError::Twice(*member));
        }
        if member.is_ipv4() != own.is_ipv4() {
            return Err(CallError::Family(*member));
        }
    }
    if !(1..=GroupConfig::MAX_BLOCK).contains(&config.block_bytes) {
        return Err(CallError::Block(config.block_bytes));
    }
    if !(1..=GroupConfig::MAX_IN_FLIGHT).contains(&config.max_in_flight) {
        return Err(CallError::InFlight(config.max_in_flight));
    }
    if config.algorithm == Algorithm::InNetwork {
        if config.switch.is_none() {
            return Err(CallError::NoSwitch);
        }
        if !(1..=0xffff).contains(&config.number) {
            return Err(CallError::Number(config.number));
        }
    }
    let index = members.iter().position(|member| *member == own).ok_or(CallError::NotAMember(own))?;
    Ok(index as u32)
}
