//! Describes what `[swordbox]` would run.

use super::SwordboxConfig;
use crate::functions::forward::summary::{counted, forwarding_mode};
use dataplane::config::Port;
use swordbox::steering::Structure;
use swordbox::{Config, MemoryBounds, Server};

pub(super) fn lines(config: &SwordboxConfig, ports: &[Port]) -> Vec<(&'static str, String)> {
    let switch = &config.switch;
    let journal = match &config.journal {
        Some(path) => format!("connections whose sides differ are recorded in {}", path.display()),
        None => "the sides of a connection never differ".into(),
    };
    let mut lines = vec![
        ("swordbox", forwarding_mode(&switch.forward.mode, ports)),
        ("", journal),
        ("", memory(config)),
        counted(switch.forward.counted_qps, switch.forward.health),
    ];
    let worker = |n: usize| match config.workers {
        1 => String::new(),
        workers => format!(", at worker {}", n % workers),
    };
    let servers = switch.servers.iter().enumerate();
    lines.extend(servers.map(|(n, server)| ("server", self::server(server) + &worker(n))));
    lines
}

fn memory(config: &SwordboxConfig) -> String {
    let Config { connections, in_flight, lines, held, .. } = &config.switch;
    let mb = |bytes: usize| bytes.div_ceil(1 << 20);
    let bytes: MemoryBounds = config.switch.memory(config.workers);
    let each = if config.workers > 1 { "at each worker, " } else { "" };
    format!(
        "{each}up to {connections} connections ({} MB), {in_flight} operations in flight on a shared one ({} MB \
         in all), {lines} cached lines of words ({} MB), {held} held frames ({} MB); {} MB for steering",
        mb(bytes.connections),
        mb(bytes.in_flight),
        mb(bytes.lines),
        mb(bytes.held),
        mb(bytes.structures)
    )
}

fn server(server: &Server) -> String {
    let Server {
        host,
        tables,
        structures,
        never_cached: never,
        detect_after: detect,
        client_owned_qps: lanes,
        path_mtu: _,
        rd_atomic,
        share,
        connect,
    } = server;
    let lists = structures.iter().filter(|structure| matches!(structure, Structure::Lists(_))).count();
    let locks = structures.len() - lists;
    let steered = match lists {
        0 => String::new(),
        count => format!("; {count} stores of lists"),
    };
    let words = match (tables.len() + locks, detect) {
        (0, 0) => "no words".into(),
        (tables, 0) => format!("words of {tables} tables"),
        (0, detect) => format!("words after {detect} atomics"),
        (tables, detect) => format!("words of {tables} tables, and others after {detect} atomics"),
    };
    if !share {
        return format!("{host}: its connections are not shared (`share` is false){steered}");
    }
    let never = match never.len() {
        0 => String::new(),
        count => format!(", except for {count} ranges"),
    };
    let own_qps = match connect {
        Some(own_qps) => format!("{} shared connections of the switch's own, or ", own_qps.qps),
        None => String::new(),
    };
    format!(
        "{host}: {words}{never}, on {own_qps}up to {lanes} shared connections, {rd_atomic} READs and atomics \
         in flight on each{steered}"
    )
}

/// Returns notes about valid settings that may not be intended.
pub(super) fn notes(config: &SwordboxConfig) -> Vec<String> {
    let switch = &config.switch;
    let mut notes = Vec::new();
    if switch.servers.len() < config.workers {
        notes.push(format!(
            "each server belongs to one worker: of {} workers, {} handle the frames of no server, and only forward others",
            config.workers,
            config.workers - switch.servers.len()
        ));
    }
    if switch.layers.remap {
        let unshared = switch.servers.iter().filter(|server| {
            let words = |structure: &Structure| matches!(structure, Structure::Locks(_));
            server.share
                && server.tables.is_empty()
                && !server.structures.iter().any(words)
                && server.detect_after == 0
        });
        notes.extend(unshared.map(|server| {
            format!(
                "server {}: no connections are shared without a [[swordbox.server.table]] and with \
                 `detect` 0",
                server.host
            )
        }));
    }
    notes
}
