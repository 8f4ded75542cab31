//! Client of a DPDK process's telemetry socket: the same counters, read in the same way, from every program
//! that is compared.

use serde_json::Value;
use socket2::{Domain, SockAddr, Socket, Type};
use std::io::{self, Read as _, Write as _};
use std::path::PathBuf;
use std::time::Duration;

/// Frames that count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CountedFrames {
    /// Sent frames
    Sent,
    /// Received frames
    Received,
}

/// Connection to the telemetry socket of the process with this file prefix.
pub(crate) struct Telemetry(Socket);

/// Longest reply, a datagram, in bytes (DPDK's `MAX_OUTPUT_LEN`).
const MAX_REPLY: usize = 16 * 1024;

impl Telemetry {
    /// Connects to the socket. Fails until the process has opened it.
    pub(crate) fn connect(file_prefix: &str) -> io::Result<Self> {
        let socket = Socket::new(Domain::UNIX, Type::SEQPACKET, None)?;
        socket.set_read_timeout(Some(Duration::from_secs(2)))?;
        socket.connect(&SockAddr::unix(
            runtime_dir().join("dpdk").join(file_prefix).join("dpdk_telemetry.v2"),
        )?)?;
        let mut telemetry = Self(socket);
        telemetry.receive()?; // the greeting, with the version
        Ok(telemetry)
    }

    fn receive(&mut self) -> io::Result<Value> {
        let mut reply = vec![0; MAX_REPLY];
        let len = self.0.read(&mut reply)?;
        serde_json::from_slice(&reply[..len]).map_err(io::Error::other)
    }

    /// Returns the frames that all ports have sent or received.
    pub(crate) fn frames(&mut self, counts: CountedFrames) -> io::Result<u64> {
        let counter = match counts {
            CountedFrames::Sent => "opackets",
            CountedFrames::Received => "ipackets",
        };
        let ports = self.ask("/ethdev/list")?;
        let missing = |what: &str, reply: &Value| io::Error::other(format!("no {what} in {reply}"));
        let mut frames = 0;
        for port in ports["/ethdev/list"].as_array().ok_or_else(|| missing("ports", &ports))? {
            let stats = self.ask(&format!("/ethdev/stats,{port}"))?;
            frames += stats["/ethdev/stats"][counter].as_u64().ok_or_else(|| missing("counter", &stats))?;
        }
        Ok(frames)
    }

    fn ask(&mut self, command: &str) -> io::Result<Value> {
        self.0.write_all(command.as_bytes())?;
        self.receive()
    }
}

/// Returns the folder in which DPDK puts the files of its processes.
fn runtime_dir() -> PathBuf {
    let root =
        std::fs::metadata("/proc/self").is_ok_and(|own| std::os::unix::fs::MetadataExt::uid(&own) == 0);
    if root {
        return "/var/run".into();
    }
    std::env::var_os("XDG_RUNTIME_DIR").map_or_else(|| "/tmp".into(), PathBuf::from)
}
