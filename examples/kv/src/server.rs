//! `kv server`: DPDK, a software NIC on its port, the replica on that NIC, and the control plane with its
//! clients.

use crate::control::ReplicaControl;
use crate::replica::Replica;
use crate::tcp;
use clap::Args;
use consensus::{Config as ServerConfig, Layout, SwitchAddress};
use core::net::{IpAddr, SocketAddr};
use dataplane::config::{Config, Device, Eal, Idle, Memory, OnLinkLoss, Port, Workers};
use dataplane::{Runtime, Stop};
use miette::{IntoDiagnostic as _, WrapErr as _, miette};
use p4ce::Secret;
use rnic::{Config as NicConfig, HostFunction, Interface, Rnic};
use rocev2::ethernet::MacAddr;
use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher as _, Hasher as _};
use std::net::TcpListener;
use std::path::PathBuf;
use switch::Nanos;
use tracing::info;

/// Number of log entries by which one server may be ahead of another, and which a new leader reads
const SLOTS: u64 = 256;
/// Number of commands that are proposed and not yet decided
const WINDOW: u64 = 64;
/// Bytes of an entry in addition to key and value
const ENTRY_OVERHEAD: usize = 48;
/// Retry count of the NIC
const RETRY_COUNT: u8 = 6;
/// Minimum length of a secret, in bytes
const MIN_SECRET_LEN: usize = 16;
/// Port on which servers listen for each other, in `rdma_cm`'s TCP port space
const PORT: u16 = 7000;

/// Run a server of the store
#[derive(Args)]
pub(crate) struct ServerArgs {
    /// Number of this server, from 0
    #[arg(long)]
    id: u8,
    /// NIC addresses of all servers, in the same order everywhere
    #[arg(long, value_name = "IP,IP,...", value_delimiter = ',', required = true)]
    rdma: Vec<IpAddr>,
    /// Client addresses of all servers, in the same order
    #[arg(long, value_name = "IP:PORT,...", value_delimiter = ',', required = true)]
    tcp: Vec<SocketAddr>,
    #[command(flatten)]
    device: DeviceArgs,
    /// Prefix length of the NIC's address
    #[arg(long, value_name = "BITS", default_value_t = 24)]
    prefix: u8,
    /// Address of the switch that replicates, if any ([p4ce] of understudy)
    #[arg(long, value_name = "IP:PORT")]
    through: Option<SocketAddr>,
    /// File with a secret that all servers and the switch share; hosts without it are refused. Its first line
    /// is used, which has to have 16 bytes or more
    #[arg(long, value_name = "FILE")]
    secret_file: Option<PathBuf>,
    /// Time between two heartbeats; a leader that misses 14 of them is replaced
    #[arg(long, value_name = "MS", default_value_t = 5.0)]
    heartbeat_ms: f64,
    /// CPU that the worker has to itself; without it, the worker sleeps when it is idle
    #[arg(long)]
    cpu: Option<usize>,
    /// Maximum length of a key and its value together, in bytes; has to be the same at all servers
    #[arg(long, value_name = "BYTES", default_value_t = 1024)]
    max_value: usize,
    /// Maximum size of all keys and values together, in megabytes; has to be the same at all servers
    #[arg(long, value_name = "MB", default_value_t = 16)]
    max_state_mb: usize,
}

#[derive(Args)]
#[group(required = true)]
struct DeviceArgs {
    /// Socket and number of an understudy memif port with role "server"
    #[arg(long, value_name = "SOCKET:NUMBER", value_parser = memif)]
    memif: Option<Device>,
    /// Network interface for the server's exclusive use (AF_PACKET; needs root)
    #[arg(long, value_name = "NAME")]
    interface: Option<String>,
}

fn memif(text: &str) -> Result<Device, String> {
    let (socket, id) = text.rsplit_once(':').ok_or("no port number; write SOCKET:NUMBER")?;
    let id = id.parse().map_err(|_| format!("{id:?} is not a number; write SOCKET:NUMBER"))?;
    Ok(Device::Memif { socket: PathBuf::from(socket), id, server: false, peer_uid: None })
}

impl ServerArgs {
    fn check(&self) -> miette::Result<()> {
        if self.rdma.len() != self.tcp.len() {
            return Err(miette!(
                "--rdma names {} servers and --tcp {}; write as many addresses in both",
                self.rdma.len(),
                self.tcp.len()
            ));
        }
        if usize::from(self.id) >= self.rdma.len() {
            return Err(miette!(
                "--id is {}, but --rdma names {} servers; write a number below that",
                self.id,
                self.rdma.len()
            ));
        }
        if !(0.05..=10_000.0).contains(&self.heartbeat_ms) {
            return Err(miette!("--heartbeat-ms is out of range; write 0.05 to 10000"));
        }
        if !(1..=1 << 16).contains(&self.max_value) || !(1..=1024).contains(&self.max_state_mb) {
            return Err(miette!(
                "--max-value or --max-state-mb is out of range; write 1 to 65536 and 1 to 1024"
            ));
        }
        Ok(())
    }

    /// Reads the secret, if a file is configured.
    fn secret(&self) -> miette::Result<Option<Secret>> {
        let Some(path) = &self.secret_file else { return Ok(None) };
        let text = std::fs::read_to_string(path)
            .into_diagnostic()
            .wrap_err(format!("cannot read --secret-file {}", path.display()))?;
        let line = text.lines().next().unwrap_or_default().trim();
        if line.len() < MIN_SECRET_LEN {
            return Err(miette!(
                help = "write the output of `openssl rand -hex 32`, the same at all servers and the switch",
                "the first line of {} has {} bytes; {MIN_SECRET_LEN} are required",
                path.display(),
                line.len()
            ));
        }
        Ok(Some(Secret::new(line)))
    }

    fn own_address(&self) -> IpAddr {
        self.rdma[usize::from(self.id)]
    }

    /// Returns the configuration of the replica.
    fn consensus(&self, secret: Option<Secret>) -> ServerConfig {
        let heartbeat = Nanos((self.heartbeat_ms * 1e6) as u64);
        // An acknowledgement may take as long as a heartbeat.
        let ack_timeout = (1..31).find(|n| 4096 << n >= heartbeat.0).unwrap_or(31);
        ServerConfig {
            id: self.id,
            servers: self.rdma.clone(),
            port: PORT,
            layout: Layout::new(SLOTS, self.max_value + ENTRY_OVERHEAD, self.max_state_mb << 20),
            heartbeat,
            window: WINDOW,
            ack_timeout,
            retry_count: RETRY_COUNT,
            switch: self.through.map(|at| SwitchAddress { address: at.ip(), port: at.port() }),
            incarnation: random_u64(),
            secret,
            bug: None,
        }
    }

    fn runtime(&self) -> Config {
        let interface = self.device.interface.clone().map(|interface| Device::AfPacket { interface });
        let device = self.device.memif.clone().or(interface).expect("clap requires one of the two");
        let idle = if self.cpu.is_some() { Idle::Spin } else { Idle::Sleep };
        Config {
            eal: Eal {
                memory: Memory::Ordinary { mb: 64 },
                file_prefix: None,
                telemetry: false,
                extra: Vec::new(),
            },
            ports: vec![Port {
                name: "eth".into(),
                device,
                mtu: 1500,
                rx_queues: 1,
                descriptors: 1024,
                buffers: 8191,
                share_from: None,
            }],
            workers: Workers { cpus: vec![self.cpu], idle, handoff_ring: 64, control_queue: 1024 },
            on_link_loss: OnLinkLoss::Wait,
        }
    }

    /// Returns the NIC for a port with this MAC address.
    fn nic(&self, port: [u8; 6]) -> Rnic {
        let mac = match (self.own_address(), &self.device.memif) {
            // A memif port has no MAC address of its own. The address is derived from the IP address, so that
            // it stays the same after a restart.
            (IpAddr::V4(ip), Some(_)) => {
                let [a, b, c, d] = ip.octets();
                [2, 0, a, b, c, d]
            }
            _ => port,
        };
        let interface = Interface::new(MacAddr(mac), self.own_address(), self.prefix);
        Rnic::new(NicConfig { seed: random_u64(), ..NicConfig::new(interface) })
    }
}

/// Returns a random number.
pub(crate) fn random_u64() -> u64 {
    RandomState::new().build_hasher().finish()
}

/// Runs the server until a signal ends it.
pub(crate) fn run(args: &ServerArgs) -> miette::Result<()> {
    args.check()?;
    let secret = args.secret()?;
    let stop = Stop::new();
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
        signal_hook::flag::register(signal, stop.flag()).into_diagnostic()?;
    }
    let at = args.tcp[usize::from(args.id)];
    let listener =
        TcpListener::bind(at).into_diagnostic().wrap_err(format!("cannot serve clients at {at}"))?;
    let mut runtime = Runtime::start(args.runtime()).map_err(|error| {
        let log = error.log.trim().lines().last().unwrap_or_default().to_owned();
        miette!(help = format!("{}\n{log}", error.remedy), "{error}")
    })?;
    let mac = runtime.ports().next().map_or([0; 6], |port| port.mac);
    let (mut control, request_sender, responses) = ReplicaControl::new();
    let replica = Replica::new(args.consensus(secret), responses);
    tcp::serve(listener, request_sender, args.tcp.clone());
    info!("Server {} of {} is ready at {at}. Ctrl-C ends it.", args.id, args.rdma.len());
    info!(
        "The store is empty, and waits for a leader. Run `kv bootstrap` to begin a new group, and `kv info` to see what it waits for."
    );
    runtime.run(vec![HostFunction::new(args.nic(mac), replica)], &mut control, &stop);
    Ok(())
}
