//! Keeps the lease of a leader alive.

use super::now;
use super::servers::{Failure, Servers};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tokio::task::JoinHandle;

/// A lease, and the task that keeps it alive.
#[derive(Debug)]
pub(super) struct Keeper {
    lease: i64,
    until: Arc<Until>,
    task: JoinHandle<()>,
}

/// Time until which the lease lasts by the own clock, counted from before the request that granted or renewed
/// it was sent; `None`: it has ended.
#[derive(Debug)]
struct Until(Mutex<Option<Instant>>);

impl Until {
    fn get(&self) -> Option<Instant> {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set(&self, until: Option<Instant>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = until;
    }
}

impl Keeper {
    /// Starts the task. The lease was requested at `sent`, and lasts for `length` at least.
    pub(super) fn start(servers: Arc<Servers>, lease: i64, sent: Instant, length: Duration) -> Self {
        let until = Arc::new(Until(Mutex::new(Some(sent + length))));
        let task = tokio::spawn(keep(servers, lease, length, Arc::clone(&until)));
        Self { lease, until, task }
    }

    /// Returns when the lease may end.
    pub(super) fn until(&self) -> Option<Instant> {
        self.until.get()
    }

    /// Ends the task. Returns the lease, which ends by itself if it is not revoked.
    pub(super) fn stop(self) -> i64 {
        self.lease
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Renews the lease each third of its length, until it has ended.
async fn keep(servers: Arc<Servers>, lease: i64, length: Duration, until: Arc<Until>) {
    loop {
        tokio::time::sleep(length / 3).await;
        loop {
            let sent = now();
            if until.get().is_none_or(|until| until <= sent) {
                return until.set(None);
            }
            let renewed = servers
                .request(length / 3, async |client| client.lease_keep_alive(lease).await.map(drop))
                .await;
            match renewed {
                Ok(()) => break until.set(Some(sent + length)),
                Err(Failure::NoLease) => return until.set(None),
                Err(Failure::Refused(_) | Failure::Compacted(_) | Failure::Unanswered(_)) => {
                    tokio::time::sleep(length / 20).await;
                }
            }
        }
    }
}
