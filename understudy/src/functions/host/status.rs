//! State of a host, as other threads see it.

use super::service::ServiceRow;
use crate::observe::Values;
use std::sync::{Arc, Mutex, PoisonError};

switch::metrics! {
    /// State of a worker's part of a host.
    #[derive(Clone, Debug, Default)]
    pub(crate) struct HostStatus {
        pub(crate) counters: rnic::Counters,
        /// Messages, frames and notices of the communication manager and of neighbour discovery dropped because their queue
        /// was full
        pub(crate) control_dropped: u64 [frames],
        /// TCP segments dropped because a queue was full or too many peers had connections
        pub(crate) tcp_dropped: u64 [segments],
        pub(crate) services: Vec<ServiceRow>,
    }
}

/// State of all workers together.
#[derive(Clone, Debug, Default)]
pub(super) struct Total {
    /// Counters of the NIC, and of frames dropped because a queue was full
    pub(super) nic: Values,
    pub(super) services: Vec<ServiceRow>,
}

impl Total {
    /// Returns the sum over all workers.
    pub(super) fn of(workers: &[Arc<Mutex<HostStatus>>]) -> Self {
        let copy =
            |status: &Arc<Mutex<HostStatus>>| status.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let workers: Vec<HostStatus> = workers.iter().map(copy).collect();
        let nic = Values::total(workers.iter().map(|status| &status.counters)).and(Values::total(&workers));
        // A worker that has not published yet has no services.
        let mut of_workers = workers.iter().map(|status| &status.services).filter(|rows| !rows.is_empty());
        let mut services = of_workers.next().cloned().unwrap_or_default();
        for rows in of_workers {
            services.iter_mut().zip(rows).for_each(|(sum, row)| sum.add(row));
        }
        Self { nic, services }
    }
}
