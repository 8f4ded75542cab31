//! Claims on the interfaces of ports: two processes on one interface would both forward each of its frames.
//!
//! A claim is the name of an abstract Unix socket. Such names are visible to every user and in every mount
//! namespace, but only within the network namespace that the interface is in, and the kernel frees them when
//! the process ends in any way. A second socket names the process, so that a refusal can tell which one it is
//! without a connection to it.

use crate::config::{Device, Port};
use crate::error::Error;
use crate::port::rx_queues;
use rustix::net::netdevice;
use std::fs;
use std::io::{self, ErrorKind};
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Start of the names of all claims
const PREFIX: &str = "understudy/claim";

/// Claim of this process on a resource. Dropping it frees the resource.
#[derive(Debug)]
pub(crate) struct Claim {
    _name: UnixDatagram,
    _holder: Option<UnixDatagram>,
}

/// A process that holds a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Holder {
    /// Process ID in the PID namespace of that process
    pid: u32,
    /// Inode of the PID namespace
    namespace: u64,
    /// Time of the claim, in seconds since 1970
    since: u64,
}

/// Claims the devices of `ports` that only one process can use, for receive queues of `workers` workers.
///
/// # Errors
/// [`Error`] with the process that uses one of them.
pub(crate) fn claim(ports: &[Port], workers: usize) -> Result<Vec<Claim>, Error> {
    let mut claims = Vec::new();
    for port in ports {
        for resource in resources(port, workers) {
            claims.push(Claim::take(&resource).map_err(|error| refusal(port, &resource, &error))?);
        }
    }
    Ok(claims)
}

/// Returns the names of what a port uses alone. An interface is named by its number, because it can be renamed
/// and have several names. DPDK reports one that does not exist.
fn resources(port: &Port, workers: usize) -> Vec<String> {
    match &port.device {
        Device::AfPacket { interface } => {
            index(interface).map(|index| format!("interface/{index}")).into_iter().collect()
        }
        // Other processes may use other queues.
        Device::AfXdp { interface, start_queue } => {
            let queues = *start_queue..start_queue.saturating_add(rx_queues(port, workers));
            let of = |index| queues.map(move |queue| format!("interface/{index}/queue/{queue}"));
            index(interface).map(of).into_iter().flatten().collect()
        }
        // The interface is new. Another process may use its other end, as a port on an interface.
        Device::Tap { interface } => vec![format!("tap/{interface}")],
        Device::Pci { address, .. } => vec![format!("pci/{}", address.to_ascii_lowercase())],
        Device::Memif { .. }
        | Device::Vhost { .. }
        | Device::Ring
        | Device::Pcap { .. }
        | Device::Null { .. } => Vec::new(),
    }
}

/// Returns the number of an interface in the network namespace of this process.
fn index(interface: &str) -> Option<u32> {
    netdevice::name_to_index(UnixDatagram::unbound().ok()?, interface).ok()
}

impl Claim {
    fn take(resource: &str) -> io::Result<Self> {
        let name = bind(&format!("{PREFIX}/{resource}"))?;
        // A process without the second name still holds the claim.
        Ok(Self { _name: name, _holder: bind(&Holder::this().name(resource)).ok() })
    }
}

fn bind(name: &str) -> io::Result<UnixDatagram> {
    UnixDatagram::bind_addr(&SocketAddr::from_abstract_name(name)?)
}

impl Holder {
    fn this() -> Self {
        Self { pid: std::process::id(), namespace: pid_namespace(), since: unix_seconds() }
    }

    fn name(&self, resource: &str) -> String {
        let Self { pid, namespace, since } = self;
        format!("{PREFIX}/{resource}/by/{pid}/{namespace}/{since}")
    }

    /// Finds the holder of a claim in a list of Unix sockets in the format of `/proc/net/unix`.
    fn find(sockets: &str, resource: &str) -> Option<Self> {
        // The kernel prints the zero byte before an abstract name as `@`.
        let start = format!("@{PREFIX}/{resource}/by/");
        sockets.lines().find_map(|line| {
            let mut numbers = line.split_whitespace().last()?.strip_prefix(&start)?.split('/');
            let mut next = || numbers.next()?.parse::<u64>().ok();
            Some(Self { pid: u32::try_from(next()?).ok()?, namespace: next()?, since: next()? })
        })
    }

    /// Describes the process, with its command if this process can see it.
    fn describe(&self, now: u64) -> String {
        let Self { pid, .. } = self;
        let age = duration(now.saturating_sub(self.since));
        if self.namespace != pid_namespace() {
            return format!("process {pid} of another PID namespace (a container), for {age}");
        }
        let command = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let words = command.split(|byte| *byte == 0).filter(|word| !word.is_empty());
        let words: Vec<_> =
            words.map(|word| String::from_utf8_lossy(word).escape_debug().to_string()).collect();
        let command = if words.is_empty() { String::new() } else { format!(" (`{}`)", words.join(" ")) };
        let folder = fs::read_link(format!("/proc/{pid}/cwd")).ok();
        let folder =
            folder.map(|folder| format!(", started in {}", folder.display().to_string().escape_debug()));
        format!("process {pid}{command}{}, for {age}", folder.unwrap_or_default())
    }
}

/// Returns the identity of the PID namespace of this process, or 0 without `/proc`.
fn pid_namespace() -> u64 {
    fs::metadata("/proc/self/ns/pid").map_or(0, |file| file.ino())
}

#[allow(clippy::disallowed_methods, reason = "a claim has the time since which it is held")]
fn unix_seconds() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).as_ref().map_or(0, Duration::as_secs)
}

/// Formats a duration with its two largest units.
fn duration(seconds: u64) -> String {
    match seconds {
        0..60 => format!("{seconds} s"),
        60..3600 => format!("{} min {} s", seconds / 60, seconds % 60),
        3600..86400 => format!("{} h {} min", seconds / 3600, seconds / 60 % 60),
        _ => format!("{} d {} h", seconds / 86400, seconds / 3600 % 24),
    }
}

/// Explains why a port cannot have its device.
fn refusal(port: &Port, resource: &str, error: &io::Error) -> Error {
    let device = match &port.device {
        Device::AfXdp { interface, .. } => {
            let queue = resource.rsplit('/').next().unwrap_or_default();
            format!("queue {queue} of the interface `{interface}`")
        }
        Device::AfPacket { interface } | Device::Tap { interface } => format!("the interface `{interface}`"),
        _ => format!("the device {resource}"),
    };
    let name = &port.name;
    if error.kind() != ErrorKind::AddrInUse {
        return Error::new(
            format!("port `{name}`: {device} cannot be claimed: {error}"),
            "check that this process may create Unix sockets",
        );
    }
    let sockets = fs::read_to_string("/proc/thread-self/net/unix").unwrap_or_default();
    let holder = Holder::find(&sockets, resource);
    let process = holder.map_or("another process".into(), |holder| holder.describe(unix_seconds()));
    let end = holder
        .filter(|holder| holder.namespace == pid_namespace())
        .map_or("end that process".into(), |holder| format!("end that process (kill {})", holder.pid));
    Error::new(
        format!("port `{name}`: {device} is in use by {process}"),
        format!("{end}, or give this port another interface; both would forward each frame of this one"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn port(device: Device) -> Port {
        Port {
            name: "a".into(),
            device,
            mtu: 1500,
            rx_queues: 2,
            descriptors: 512,
            buffers: 64,
            share_from: None,
        }
    }

    fn tap(name: &str) -> Port {
        port(Device::Tap { interface: format!("{name}-{}", std::process::id() % 10_000) })
    }

    #[test]
    fn second_claim_is_refused_with_the_process_until_the_first_is_dropped() {
        let port = [tap("claim")];
        let first = claim(&port, 1).unwrap();
        let error = claim(&port, 1).unwrap_err();
        let pid = std::process::id();
        assert!(error.what.contains(&format!("is in use by process {pid} (`")), "{error}");
        assert!(error.what.contains("dataplane") && error.what.ends_with(" s"), "{error}");
        assert!(error.remedy.contains(&format!("(kill {pid})")), "{}", error.remedy);
        drop(first);
        claim(&port, 1).unwrap();
    }

    #[test]
    fn a_claim_that_fails_frees_those_before_it() {
        let (one, two) = (tap("one"), tap("two"));
        let held = claim(std::slice::from_ref(&two), 1).unwrap();
        claim(&[one.clone(), two], 1).unwrap_err();
        claim(&[one], 1).unwrap();
        drop(held);
    }

    #[test]
    fn interfaces_are_claimed_whole_or_by_queue() {
        let index = index("lo").expect("each network namespace has `lo`");
        let of = |device| resources(&port(device), 1);
        assert_eq!(of(Device::AfPacket { interface: "lo".into() }), [format!("interface/{index}")]);
        let queues = [3, 4].map(|queue| format!("interface/{index}/queue/{queue}"));
        assert_eq!(of(Device::AfXdp { interface: "lo".into(), start_queue: 3 }), queues);
        assert_eq!(of(Device::AfPacket { interface: "no-such".into() }), [""; 0]);
        let pci = Device::Pci { address: "0000:3B:00.0".into(), devargs: Vec::new() };
        assert_eq!(of(pci), ["pci/0000:3b:00.0"]);
        assert_eq!(of(Device::Ring), [""; 0]);
    }

    #[test]
    fn holder_is_found_among_other_sockets() {
        let holder = Holder { pid: 7, namespace: pid_namespace() + 1, since: 1_000 };
        let sockets = format!(
            "Num RefCount Protocol Flags Type St Inode Path\n\
             0: 2 0 0 2 1 11 @{PREFIX}/tap/a\n\
             0: 2 0 0 2 1 12 /run/x\n\
             0: 2 0 0 2 1 13 @{}\n\
             0: 2 0 0 2 1 14 @{}\n",
            Holder { pid: 8, ..holder }.name("tap/ab"),
            holder.name("tap/a"),
        );
        assert_eq!(Holder::find(&sockets, "tap/a"), Some(holder));
        assert_eq!(Holder::find(&sockets, "tap/b"), None);
        let text = holder.describe(1_000 + 90_000);
        assert_eq!(text, "process 7 of another PID namespace (a container), for 1 d 1 h");
    }

    #[test]
    fn durations_have_two_units() {
        let texts = [59, 61, 3_700, 100_000].map(duration);
        assert_eq!(texts, ["59 s", "1 min 1 s", "1 h 1 min", "1 d 3 h"]);
    }
}
