//! Servers of etcd for tests, and a proxy in front of one.

use super::*;
use core::ops::{Deref, DerefMut};
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use understudy_tests::etcd::Etcd;

/// Servers of etcd.
pub(in crate::store) struct Cluster(Etcd);

impl Cluster {
    /// Starts servers; returns `None`, with a line of output, if etcd is not installed.
    pub(in crate::store) fn start(count: usize) -> Option<Self> {
        Etcd::start(count).map(Self)
    }

    /// Returns the settings of a store.
    pub(in crate::store) fn config(&self, lease_ms: u64) -> EtcdConfig {
        let lease = Duration::from_millis(lease_ms);
        EtcdConfig { servers: self.0.urls(), prefix: "/1pipe".into(), lease }
    }
}

impl Deref for Cluster {
    type Target = Etcd;

    fn deref(&self) -> &Etcd {
        &self.0
    }
}

impl DerefMut for Cluster {
    fn deref_mut(&mut self) -> &mut Etcd {
        &mut self.0
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
