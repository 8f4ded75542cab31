//! Servers of etcd for tests.

use crate::processes::{Process, command};
use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::process::Stdio;
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// Longest time until servers have chosen a leader
const PATIENCE: Duration = Duration::from_secs(60);

/// Servers of etcd on loopback, with ports and folders of their own.
pub struct Etcd {
    folder: TempDir,
    /// Ports for clients and for the other servers
    ports: Vec<(u16, u16)>,
    servers: Vec<Option<Process>>,
}

fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    listener.local_addr().expect("bound").port()
}

impl Etcd {
    /// Starts servers, and waits until they have a leader; returns `None`, with a line of output, if etcd is not
    /// installed.
    ///
    /// # Panics
    /// If they do not start.
    pub fn start(count: usize) -> Option<Self> {
        let version = command("etcd").arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
        if !version.is_ok_and(|status| status.success()) {
            println!("etcd is not installed: nothing is tested with it; install etcd-server");
            return None;
        }
        let folder = tempfile::tempdir().expect("a folder for a test");
        let ports = (0..count).map(|_| (free_port(), free_port())).collect();
        let mut etcd = Self { folder, ports, servers: (0..count).map(|_| None).collect() };
        (0..count).for_each(|server| etcd.restart(server));
        #[allow(clippy::disallowed_methods, reason = "the test waits for processes")]
        let start = Instant::now();
        while !etcd.has_leader() {
            assert!(start.elapsed() < PATIENCE, "the servers choose no leader");
            std::thread::sleep(Duration::from_millis(20));
        }
        Some(etcd)
    }

    /// Returns whether the first server answers that a majority does.
    fn has_leader(&self) -> bool {
        let ask = || {
            let mut stream = TcpStream::connect(("127.0.0.1", self.port(0)))?;
            stream.write_all(b"GET /health HTTP/1.0\r\n\r\n")?;
            let mut answer = String::new();
            stream.read_to_string(&mut answer).map(|_| answer)
        };
        ask().is_ok_and(|answer| answer.contains("\"health\":\"true\""))
    }

    /// Returns the port of a server for clients.
    pub fn port(&self, server: usize) -> u16 {
        self.ports[server].0
    }

    /// Returns the URLs for clients.
    pub fn urls(&self) -> Vec<String> {
        self.ports.iter().map(|(port, _)| format!("http://127.0.0.1:{port}")).collect()
    }

    /// Starts a server that is not running, with what it has stored.
    ///
    /// # Panics
    /// If it cannot be started.
    pub fn restart(&mut self, server: usize) {
        let url = |port: u16| format!("http://127.0.0.1:{port}");
        let peers = self.ports.iter().enumerate().map(|(n, (_, port))| format!("s{n}={}", url(*port)));
        let (client, peer) = self.ports[server];
        let (client, peer) = (url(client), url(peer));
        let folder = self.folder.path().join(format!("s{server}"));
        let log = std::fs::File::create(folder.with_extension("log")).expect("a log");
        let mut etcd = command("etcd");
        etcd.args(["--name", &format!("s{server}"), "--data-dir"])
            .arg(folder)
            .args(["--listen-client-urls", &client, "--advertise-client-urls", &client])
            .args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer])
            .args(["--initial-cluster", &peers.collect::<Vec<_>>().join(",")])
            .stdout(Stdio::null())
            .stderr(log);
        self.servers[server] = Some(Process::start(etcd));
    }

    /// Returns the process of a server.
    ///
    /// # Panics
    /// If it was killed.
    pub fn server(&self, server: usize) -> &Process {
        self.servers[server].as_ref().expect("it runs")
    }

    /// Kills a server.
    pub fn kill(&mut self, server: usize) {
        self.servers[server] = None;
    }
}
