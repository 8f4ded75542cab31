//! Draws the shared QPs of a run.

use crate::drawn;
use rnic::Interface;
use rnic::cm::{PortSpace, service_id_of};
use rocev2::ethernet::MacAddr;
use switch::{Nanos, Rng};
use swordbox::{Config, Server, SwitchOwnedQps};
use workloads::words;

/// Shared QPs that the switch itself connects to each server
const OWN_SHARED_QPS: usize = 2;
/// A shared connection without a response for this long is given up.
const DEAD_AFTER: Nanos = Nanos::from_millis(100);

/// Returns the time without a response after which a shared connection is given up.
pub(super) fn dead_after(config: &words::Config) -> Nanos {
    let mut rng = Rng::stream(config.seed, 0x6465_6164);
    match () {
        // Before all words have been requested on a dead shared QP
        () if config.same_keys_after_restart => Nanos::from_millis(rng.between(2, 20)),
        // Until then, all connections that need the shared QP fail to reconnect.
        () if config.may_fail && drawn::partition_rng(config.seed).is_some() => {
            Nanos::from_millis(rng.between(2, 6))
        }
        () => DEAD_AFTER,
    }
}

/// Draws whether the switch has shared QPs of its own, and how servers respond to its connection requests.
/// Draws also a connection whose SENDs wait for a receive buffer for longer than any other operation may
/// take.
pub(super) fn draw_shared_qps(config: &words::Config) -> (words::Config, Option<words::SwitchConnection>) {
    let mut rng = Rng::stream(config.seed, 0x6c61_6e65);
    let shared_qp = match rng.below(8) {
        0..4 => Some(words::SwitchConnection::Good),
        4 => Some(words::SwitchConnection::OtherDomain),
        5 => Some(words::SwitchConnection::Refused),
        _ => None,
    };
    let begin_at = if shared_qp.is_some() && rng.below(2) == 0 { Nanos::from_millis(1) } else { Nanos::ZERO };
    let starve = (rng.below(8) == 0).then(|| DEAD_AFTER + DEAD_AFTER);
    let config = words::Config {
        begin_at,
        starve,
        switch_connections: OWN_SHARED_QPS,
        shares_fate: true,
        // The switch's clock may be slow by 1 %.
        forwarded_for: Nanos(dead_after(config).0 / 100 * 101),
        ..config.clone()
    };
    if starve.is_some() && shared_qp.is_none() && rng.below(2) == 0 {
        // The owner of a shared QP that all connections need waits for a receive buffer.
        let words = words::Config { words: 1, local_words: config.local_words.min(1), ..config };
        return (words::Config { sections: 0, mix: [8, 0, 0, 0, 0, 0, 0, 0, 1], ..words }, shared_qp);
    }
    (config, shared_qp)
}

/// Adds the configuration of the switch's own shared QPs.
pub(super) fn configure_own_shared_qps(
    config: Config,
    shared_qp: Option<words::SwitchConnection>,
    v6: bool,
    seed: u64,
) -> Config {
    let Some(shared_qp) = shared_qp else { return config };
    // A lost ARP request is repeated half a second later, when most runs are over. So only a quarter of the
    // seeds resolve addresses.
    let resolves_addresses = seed.is_multiple_of(4);
    let servers = config.servers.iter().map(|server| server.host);
    let neighbours = servers.zip(0u8..).map(|(host, n)| (host, MacAddr([2, 0, 0, 1, 0, n])));
    let neighbours = if resolves_addresses { Vec::new() } else { neighbours.collect() };
    let (address, prefix) =
        if v6 { ([0xfd00, 0, 0, 0, 0, 0, 0, 0xffff].into(), 64) } else { ([10, 0, 255, 254].into(), 16) };
    let connect = SwitchOwnedQps {
        service: service_id_of(PortSpace::Tcp, words::PORT),
        private_data: shared_qp.private_data().to_vec(),
        qps: OWN_SHARED_QPS,
    };
    let servers = config.servers.into_iter();
    let servers = servers.map(|server| Server { connect: Some(connect.clone()), ..server }).collect();
    let interface =
        Some(Interface { neighbours, ..Interface::new(MacAddr([2, 0, 0, 0, 0, 0xfe]), address, prefix) });
    Config { servers, interface, ..config }
}
