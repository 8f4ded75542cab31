//! A workload for P4CE's groups: leaders open groups through the switch and write. After each acknowledgement
//! the memory of the replicas is inspected. The checks:
//!
//! * the operations of a leader complete in order;
//! * a quorum holds each operation at the moment at which its leader receives the acknowledgement; a replica
//!   that crashed counts with what it held then;
//! * a replica's memory is what its leader wrote up to some byte, and zero after it;
//! * at the end each replica that is still in a group holds what the switch takes it to hold;
//! * messages arrive at each replica in order, each at most once.

pub mod audit;
mod leader;
mod replica;
mod workload;

pub use leader::{LeaderApp, Outcome};
pub use replica::{JoinReply, ReplicaApp};
pub use workload::{Groups, LIST, REPLICA_PORT, SWITCH_PORT, SharedGroups};

use core::net::IpAddr;
use core::sync::atomic::Ordering::Relaxed;
use p4ce::{Control, P4ce};
use sim::Host;
use std::sync::Arc;

/// Reports an operation that a replica of an open group lacks although the switch counts it as held there.
/// `replicas` are all replicas that the leaders name, in this order.
pub fn check_open(
    control: &Control,
    functions: &[&P4ce],
    leaders: &[&Host<LeaderApp>],
    replicas: &[&Host<ReplicaApp>],
) -> Option<String> {
    control.groups().filter_map(|status| functions[status.worker].group(status.id)).find_map(|group| {
        let leader = leaders.iter().find(|leader| leader.app.leads(group))?;
        leader.app.check_group(group, replicas)
    })
}

/// Creates the application of a leader whose groups have these replicas.
pub fn leader(
    groups: &Groups,
    seed: u64,
    own: IpAddr,
    switch: IpAddr,
    replicas: &[IpAddr],
    shared: &Arc<SharedGroups>,
) -> LeaderApp {
    shared.groups.fetch_add(groups.groups.into(), Relaxed);
    LeaderApp::new(groups.clone(), seed, own, switch, replicas.to_vec(), shared.clone())
}
