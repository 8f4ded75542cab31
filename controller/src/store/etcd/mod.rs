//! A store in etcd, which the controllers of a network share.
//!
//! The leader holds the key `PREFIX/leader`, which lives as long as the leader's lease. The transaction that
//! creates it raises `PREFIX/term`, and the records (`PREFIX/records/`) are read as of the revision of this
//! transaction. Each write is one transaction, which compares the revision that created the leader's key, and
//! the term. So a write that is late, or whose leader was paused, changes nothing once another leader has been
//! chosen, whatever any clock shows.
//!
//! The client (`etcd-client`) needs tokio: one thread has a runtime, and no other part of the program uses it.

mod bug;
mod election;
mod keeper;
mod servers;

pub use bug::Bug;

use super::{Change, MAX_CHANGES, Records, Store, StoreError, Term};
use election::{Election, Won};
use etcd_client::{Compare, CompareOp, Txn, TxnOp};
use keeper::Keeper;
use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tokio::runtime::{Builder, Handle};
use tokio::sync::oneshot;

/// Where and how the records are stored in etcd.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EtcdConfig {
    /// URLs of the servers, such as `http://10.9.0.1:2379`; at least one
    pub servers: Vec<String>,
    /// Beginning of all keys. Each network has its own, and none is below another's
    pub prefix: String,
    /// Time for which a leader leads without a word from it; etcd rounds it up to seconds
    pub lease: Duration,
}

#[allow(clippy::disallowed_methods, reason = "a lease ends by the clock of its holder")]
fn now() -> Instant {
    Instant::now()
}

/// Leadership of this store.
#[derive(Debug)]
struct Office {
    term: Term,
    /// Revision that created the leader's key
    created: i64,
    keeper: Keeper,
}

/// Store in etcd.
pub struct EtcdStore {
    election: Arc<Election>,
    runtime: Handle,
    /// Ends the thread
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
    office: Option<Office>,
    bug: Option<Bug>,
}

impl core::fmt::Debug for EtcdStore {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("EtcdStore").field("office", &self.office).finish_non_exhaustive()
    }
}

impl EtcdStore {
    /// Returns the store of a network. Servers that do not answer are no error: the next campaign asks again.
    ///
    /// # Errors
    /// [`StoreError::OtherNetwork`] or [`StoreError::Torn`] if etcd answers so, and
    /// [`StoreError::Unavailable`] if the operating system refuses a thread.
    ///
    /// # Panics
    /// If there is no server.
    pub fn open(config: &EtcdConfig, network: u64) -> Result<Self, StoreError> {
        let election = Arc::new(Election::new(config, network));
        let (stop, stopped) = oneshot::channel::<()>();
        let (runtime, thread) = spawn(stopped).map_err(|error| StoreError::Unavailable(error.to_string()))?;
        let store =
            Self { election, runtime, stop: Some(stop), thread: Some(thread), office: None, bug: None };
        let election = Arc::clone(&store.election);
        match store.run(async move { election.look().await.map(drop) }) {
            Ok(()) | Err(StoreError::Unavailable(_)) => Ok(store),
            Err(error) => Err(error),
        }
    }

    /// Plants a bug. It is active only with debug assertions.
    pub fn plant(&mut self, bug: Bug) {
        self.bug = Some(bug);
    }

    /// Runs a future on the runtime, and waits for its result.
    fn run<T: Send + 'static>(
        &self,
        future: impl Future<Output = Result<T, StoreError>> + Send + 'static,
    ) -> Result<T, StoreError> {
        let (sender, result) = mpsc::sync_channel(1);
        self.runtime.spawn(async move {
            // The receiver waits below.
            drop(sender.send(future.await));
        });
        result
            .recv()
            .unwrap_or_else(|_| Err(StoreError::Unavailable("the thread of etcd's client has ended".into())))
    }

    /// Gives up leadership, and its lease if a server answers; otherwise the lease ends by itself.
    fn resign(&mut self) {
        let Some(office) = self.office.take() else { return };
        let lease = office.keeper.stop();
        let election = Arc::clone(&self.election);
        // Leadership has ended for this store in any case.
        drop(self.run(async move {
            election.revoke(lease).await;
            Ok(())
        }));
    }

    fn transaction(&self, office: &Office, changes: &[Change]) -> Txn {
        let keys = &self.election.keys;
        // etcd refuses a transaction with two operations on one key.
        let mut last = BTreeMap::new();
        for change in changes {
            let (Change::Put(key, _) | Change::Delete(key)) = change;
            last.insert(key, change);
        }
        let operation = |change: &Change| match change {
            Change::Put(key, value) => TxnOp::put(keys.record(key), value.clone(), None),
            Change::Delete(key) => TxnOp::delete(keys.record(key), None),
        };
        let operations: Vec<_> = last.into_values().map(operation).collect();
        if cfg!(debug_assertions) && self.bug == Some(Bug::UncomparedWrite) {
            return Txn::new().and_then(operations);
        }
        let compares = [
            Compare::create_revision(&*keys.leader, CompareOp::Equal, office.created),
            Compare::value(&*keys.term, CompareOp::Equal, office.term.to_string()),
        ];
        Txn::new().when(compares).and_then(operations)
    }
}

impl Store for EtcdStore {
    fn campaign(&mut self, wait: Duration) -> Result<Option<(Term, Records)>, StoreError> {
        self.resign();
        let election = Arc::clone(&self.election);
        let won = self.run(async move { Election::campaign(&election, wait).await })?;
        Ok(won.map(|Won { term, created, keeper, records }| {
            self.office = Some(Office { term, created, keeper });
            (term, records)
        }))
    }

    fn write(&mut self, term: Term, changes: &[Change]) -> Result<(), StoreError> {
        assert!(changes.len() <= MAX_CHANGES, "{} changes in one write", changes.len());
        let Some(office) = self.office.as_ref().filter(|office| office.term == term) else {
            return Err(StoreError::OtherTerm);
        };
        let transaction = self.transaction(office, changes);
        let election = Arc::clone(&self.election);
        let applied = self.run(async move { election.write(transaction).await })?;
        if !applied {
            self.resign();
            return Err(StoreError::OtherTerm);
        }
        Ok(())
    }

    fn leads(&self) -> bool {
        self.office.as_ref().is_some_and(|office| office.keeper.until().is_some_and(|until| now() < until))
    }
}

impl Drop for EtcdStore {
    fn drop(&mut self) {
        self.resign();
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // A panic of the thread has been printed.
            drop(thread.join());
        }
    }
}

/// Starts the thread with the runtime. It ends when the other end of the channel is dropped.
fn spawn(stopped: oneshot::Receiver<()>) -> io::Result<(Handle, JoinHandle<()>)> {
    let runtime = Builder::new_current_thread().enable_io().enable_time().build()?;
    let handle = runtime.handle().clone();
    let thread = std::thread::Builder::new().name("etcd".into()).spawn(move || {
        // An error is the end of the other end.
        drop(runtime.block_on(stopped));
        runtime.shutdown_background();
    })?;
    Ok((handle, thread))
}

#[cfg(test)]
pub(in crate::store) mod tests;
