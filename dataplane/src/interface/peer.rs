//! The other end of a veth, which may be in another network namespace.

use super::ethtool::Offloads;
use super::netlink::Netlink;
use rustix::net::netdevice::index_to_name;
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use std::fs::{self, File};
use std::os::fd::AsFd as _;
use std::os::unix::fs::MetadataExt as _;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::{io, thread};

/// Folder of the namespaces that `ip netns` names
const NAMED: &str = "/run/netns";

/// The other end of a veth.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Index in its namespace
    pub index: u32,
    /// Namespace
    pub namespace: Namespace,
    /// Name and offloads, if this process may enter the namespace
    pub state: Option<(String, Offloads)>,
}

/// Network namespace of an interface, as seen by this process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Namespace {
    /// That of this process
    Own,
    /// One with a name for `ip netns`
    Named(String),
    /// That of a process
    Process(u32),
    /// One that this process cannot see
    Unknown,
}

impl Peer {
    /// Examines the interface with this index, which is in the namespace with the number `id`, or in this one.
    pub(super) fn find(index: u32, id: Option<i32>, netlink: &Netlink) -> Self {
        let Some(id) = id else {
            return Self { index, namespace: Namespace::Own, state: examine(index).ok() };
        };
        let Some((namespace, file)) = find_namespace(id, netlink) else {
            return Self { index, namespace: Namespace::Unknown, state: None };
        };
        // A thread can be in another namespace than its process.
        let inside = thread::spawn(move || {
            move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network))?;
            examine(index)
        });
        let state = inside.join().ok().and_then(Result::ok);
        Self { index, namespace, state }
    }
}

/// Returns the name and the offloads of an interface in the namespace of the calling thread.
fn examine(index: u32) -> io::Result<(String, Offloads)> {
    let name = index_to_name(UnixDatagram::unbound()?, index)?;
    let offloads = Offloads::query(&name)?;
    Ok((name, offloads))
}

/// Finds the namespace for which this one has the number `id`: one with a name, or that of a process.
fn find_namespace(id: i32, netlink: &Netlink) -> Option<(Namespace, File)> {
    let is_it = |path: &Path| {
        let file = File::open(path).ok()?;
        (netlink.namespace_id(&file).ok()? == Some(id)).then_some(file)
    };
    for path in entries(NAMED) {
        if let (Some(file), Some(name)) = (is_it(&path), path.file_name()) {
            return Some((Namespace::Named(name.to_string_lossy().into_owned()), file));
        }
    }
    // Most processes share a namespace, which is asked about once.
    let mut seen = Vec::new();
    for process in entries("/proc") {
        let Some(pid) = process.file_name().and_then(|name| name.to_str()?.parse().ok()) else { continue };
        let path = process.join("ns/net");
        let Ok(inode) = fs::metadata(&path).map(|file| file.ino()) else { continue };
        if seen.contains(&inode) {
            continue;
        }
        seen.push(inode);
        if let Some(file) = is_it(&path) {
            return Some((Namespace::Process(pid), file));
        }
    }
    None
}

fn entries(folder: &str) -> impl Iterator<Item = PathBuf> {
    fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path())
}
