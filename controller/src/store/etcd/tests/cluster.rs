//! Servers of etcd for tests, and a proxy in front of one.

use super::*;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::process::Child;
use std::sync::atomic::{AtomicBool, Ordering};
use tempfile::TempDir;

/// Servers of etcd on loopback, with ports and folders of their own.
pub(in crate::store) struct Cluster {
    folder: TempDir,
    /// Ports for clients and for the other servers
    ports: Vec<(u16, u16)>,
    servers: Vec<Option<Child>>,
}

/// Sends a signal to a process.
pub(super) fn signal(process: &Child, name: &str) {
    let id = process.id().to_string();
    let status = Command::new("kill").args(["-s", name, &id]).status().expect("kill runs");
    assert!(status.success(), "kill -s {name} {id}");
}

fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    listener.local_addr().expect("bound").port()
}

impl Cluster {
    /// Starts servers; returns `None`, with a line of output, if etcd is not installed.
    pub(in crate::store) fn start(count: usize) -> Option<Self> {
        if Command::new("etcd").arg("--version").stdout(Stdio::null()).status().is_err() {
            println!("etcd is not installed: nothing is tested with it; install etcd-server");
            return None;
        }
        let folder = tempfile::tempdir().expect("a folder for a test");
        let ports = (0..count).map(|_| (free_port(), free_port())).collect();
        let mut cluster = Self { folder, ports, servers: (0..count).map(|_| None).collect() };
        (0..count).for_each(|server| cluster.restart(server));
        let mut store = None;
        wait_until("the servers choose a leader", || {
            let opened = EtcdStore::open(&cluster.config(LEASE_MS), NETWORK).expect("no record yet");
            let looks = Arc::clone(&opened.election);
            let is_ready = opened.run(async move { looks.look().await.map(drop) }).is_ok();
            store = Some(opened);
            is_ready
        });
        Some(cluster)
    }

    pub(super) fn port(&self, server: usize) -> u16 {
        self.ports[server].0
    }

    /// Returns the settings of a store.
    pub(in crate::store) fn config(&self, lease_ms: u64) -> EtcdConfig {
        EtcdConfig {
            servers: self.ports.iter().map(|(port, _)| format!("http://127.0.0.1:{port}")).collect(),
            prefix: "/1pipe".into(),
            lease: Duration::from_millis(lease_ms),
        }
    }

    /// Starts a server that is not running, with what it has stored.
    pub(super) fn restart(&mut self, server: usize) {
        let url = |port: u16| format!("http://127.0.0.1:{port}");
        let peers = self.ports.iter().enumerate().map(|(n, (_, port))| format!("s{n}={}", url(*port)));
        let (client, peer) = self.ports[server];
        let (client, peer) = (url(client), url(peer));
        let folder = self.folder.path().join(format!("s{server}"));
        let log = std::fs::File::create(folder.with_extension("log")).expect("a log");
        let process = Command::new("etcd")
            .args(["--name", &format!("s{server}"), "--data-dir"])
            .arg(folder)
            .args(["--listen-client-urls", &client, "--advertise-client-urls", &client])
            .args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer])
            .args(["--initial-cluster", &peers.collect::<Vec<_>>().join(",")])
            .stdout(Stdio::null())
            .stderr(log)
            .spawn();
        self.servers[server] = Some(process.expect("etcd starts"));
    }

    /// Returns a server's process.
    pub(super) fn server(&self, server: usize) -> &Child {
        self.servers[server].as_ref().expect("it runs")
    }

    /// Kills a server.
    pub(super) fn kill(&mut self, server: usize) {
        if let Some(mut process) = self.servers[server].take() {
            process.kill().expect("it runs");
            process.wait().expect("killed");
        }
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        for process in self.servers.iter_mut().flatten() {
            // They may have ended.
            drop(process.kill());
            drop(process.wait());
        }
    }
}

/// A proxy that holds back what it carries, and delivers it later.
pub(super) struct Proxy {
    port: u16,
    holds_requests: Arc<AtomicBool>,
    holds_answers: Arc<AtomicBool>,
}

impl Proxy {
    pub(super) fn start(to: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let port = listener.local_addr().expect("bound").port();
        let [holds_requests, holds_answers] = [(); 2].map(|()| Arc::new(AtomicBool::new(false)));
        let holds = (Arc::clone(&holds_requests), Arc::clone(&holds_answers));
        // The thread ends with the test's process.
        std::thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                let Ok(server) = TcpStream::connect(("127.0.0.1", to)) else { continue };
                let copies = [
                    (client.try_clone(), server.try_clone(), Arc::clone(&holds.0)),
                    (Ok(server), Ok(client), Arc::clone(&holds.1)),
                ];
                for (from, to, holds) in copies {
                    let (from, to) = (from.expect("a socket"), to.expect("a socket"));
                    std::thread::spawn(move || carry(from, to, &holds));
                }
            }
        });
        Self { port, holds_requests, holds_answers }
    }

    pub(super) fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    /// Holds back requests, or delivers them.
    pub(super) fn hold_requests(&self, holds: bool) {
        self.holds_requests.store(holds, Ordering::Relaxed);
    }

    /// Holds back answers, or delivers them.
    pub(super) fn hold_answers(&self, holds: bool) {
        self.holds_answers.store(holds, Ordering::Relaxed);
    }
}

/// Carries bytes until an end closes.
fn carry(mut from: TcpStream, mut to: TcpStream, holds: &AtomicBool) {
    let mut buffer = [0; 16384];
    while let Ok(count @ 1..) = from.read(&mut buffer) {
        while holds.load(Ordering::Relaxed) {
            std::thread::sleep(Duration::from_millis(1));
        }
        if to.write_all(&buffer[..count]).is_err() {
            break;
        }
    }
    drop((from.shutdown(Shutdown::Both), to.shutdown(Shutdown::Both)));
}
