//! The switch of the tests' rack. It does what `understudy run configs/memif/p4ce.toml` does: it is a bridge
//! of memif ports that replicates for leaders that request it.

#![forbid(unsafe_code)]

use dataplane::config::{Config, Device, Eal, Idle, Memory, OnLinkLoss, Port, Workers};
use dataplane::{ControlPlane, Runtime, Stop};
use p4ce::{Control, ControlConfig, P4ce};
use rnic::Interface;
use rocev2::ethernet::MacAddr;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::path::PathBuf;
use switch::Nanos;
use switch::forward::Config as ForwardConfig;
use tracing::info;

const PORTS: u32 = 3;

fn main() {
    let Some(socket) = std::env::args_os().nth(1) else {
        eprintln!("usage: kv-rack SOCKET");
        std::process::exit(2);
    };
    tracing_subscriber::fmt()
        .without_time()
        .with_target(false)
        .with_writer(std::io::stderr)
        .with_ansi(false)
        .init();
    let socket = PathBuf::from(socket);
    let port = |id| Port {
        name: format!("server-{id}"),
        device: Device::Memif { socket: socket.clone(), id, server: true, peer_uid: None },
        mtu: 1500,
        rx_queues: 1,
        descriptors: 1024,
        buffers: 4095,
        share_from: None,
    };
    let stop = Stop::new();
    signal_hook::flag::register(signal_hook::consts::SIGTERM, stop.flag()).expect("SIGTERM can be caught");
    let mut runtime = Runtime::start(Config {
        eal: Eal {
            memory: Memory::Ordinary { mb: 128 },
            file_prefix: None,
            telemetry: false,
            extra: Vec::new(),
        },
        ports: (0..PORTS).map(port).collect(),
        workers: Workers { cpus: vec![None], idle: Idle::Sleep, handoff_ring: 64, control_queue: 1024 },
        on_link_loss: OnLinkLoss::Wait,
    })
    .expect("DPDK starts");
    let (mac, address) = (MacAddr([2, 0, 0, 0, 0, 254]), [10, 0, 0, 254].into());
    let switch = P4ce::new(p4ce::Config {
        forward: ForwardConfig::bridge(PORTS as u16, 64),
        mac,
        addresses: vec![address],
        groups: 16,
        queue_pairs: 64,
        workers: 1,
        silent_after: Nanos::from_millis(500),
        bug: None,
    })
    .salted(RandomState::new().build_hasher().finish());
    let control = Control::new(ControlConfig {
        interface: Interface::new(mac, address, 24),
        port: 18515,
        groups: 16,
        queue_pairs: 64,
        workers: 1,
        max_replicas: 8,
        lists: [].into(),
        limits: p4ce::Limits::default(),
        secret: None,
        setup_timeout: Nanos::from_millis(3000),
        max_lag: p4ce::gather::MAX_LAG,
        seed: std::process::id().into(),
        first_psn: None,
    });
    info!("The rack is ready.");
    runtime.run(vec![switch], &mut ControlPlane::new(control), &stop);
}
