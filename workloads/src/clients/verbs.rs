//! RDMA verbs for a client's thread: a call posts a request and returns its result as a future.

use super::account::SharedAccount;
use core::future::Future;
use core::pin::Pin;
use core::task::{Context, Poll};
use rnic::{Operation, QpError, Remote, Status};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use switch::Nanos;

/// Reason why a thread ended early.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Stopped {
    /// A request failed, and with it the connection.
    #[error("request failed with status {0:?}; the connection is in error")]
    Failed(Status),
    /// A request could not be posted.
    #[error("cannot post a request: {0}")]
    Post(#[from] QpError),
    /// The server is unreachable, has refused, or has ended the connection.
    #[error("no connection to the server: it is unreachable, has refused, or has disconnected")]
    Disconnected,
    /// The server's regions do not fit the program.
    #[error("the server's regions do not fit the program")]
    Regions,
    /// The server's memory is exhausted.
    #[error("the server's memory is exhausted")]
    Full,
    /// The memory has contents that no client writes.
    #[error("the server's memory has invalid contents: {0}")]
    Corrupt(&'static str),
}

/// A request that was not yet posted to the NIC.
#[derive(Debug)]
pub(super) struct Posted {
    pub(super) id: u64,
    pub(super) operation: Operation,
    /// Payload of a WRITE
    pub(super) bytes: Vec<u8>,
    /// Number of bytes that a READ or an atomic fetches
    pub(super) fetches: u32,
    /// Whether a successful request generates a completion
    pub(super) signaled: bool,
}

/// Fetched bytes: empty for a WRITE, the eight previous bytes for an atomic
type Fetched = Result<Vec<u8>, Stopped>;

/// State shared by a thread and its connection.
#[derive(Debug, Default)]
pub(super) struct Mailbox {
    pub(super) now: Nanos,
    next: u64,
    pub(super) posted: VecDeque<Posted>,
    /// Requests that are awaited, and the results that have arrived
    awaited: BTreeSet<u64>,
    results: BTreeMap<u64, Vec<u8>>,
    /// Set when no more results will arrive
    stopped: Option<Stopped>,
    /// Time at which the thread continues without a completion
    pub(super) wake_at: Option<Nanos>,
}

impl Mailbox {
    /// Completes a request, and stores the fetched bytes if the request is awaited.
    pub(super) fn end(&mut self, id: u64, fetched: &[u8]) {
        if self.awaited.remove(&id) {
            self.results.insert(id, fetched.to_vec());
        }
    }

    pub(super) fn stop(&mut self, why: Stopped) {
        self.stopped.get_or_insert(why);
    }

    pub(super) fn stopped(&self) -> Option<Stopped> {
        self.stopped
    }
}

/// A thread's interface to its connection. A call posts its request at once, whether or not the returned
/// future is awaited. Requests are executed in the order in which they are posted.
#[derive(Clone, Debug)]
pub struct Verbs {
    mailbox: Arc<Mutex<Mailbox>>,
    account: SharedAccount,
}

impl Verbs {
    pub(super) fn new(account: SharedAccount) -> Self {
        Self { mailbox: Arc::default(), account }
    }

    pub(super) fn mailbox(&self) -> MutexGuard<'_, Mailbox> {
        self.mailbox.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the account in which operations are counted.
    pub fn account(&self) -> &SharedAccount {
        &self.account
    }

    /// Returns the time of the host's clock.
    pub fn now(&self) -> Nanos {
        self.mailbox().now
    }

    fn post(&self, operation: Operation, bytes: Vec<u8>, fetches: u32, signaled: bool) -> u64 {
        let mut mailbox = self.mailbox();
        mailbox.next += 1;
        let id = mailbox.next;
        if signaled {
            mailbox.awaited.insert(id);
        }
        mailbox.posted.push_back(Posted { id, operation, bytes, fetches, signaled });
        id
    }

    fn wait(&self, operation: Operation, bytes: Vec<u8>, fetches: u32) -> Wait {
        let id = self.post(operation, bytes, fetches, true);
        Wait { mailbox: Arc::clone(&self.mailbox), id }
    }

    /// Posts an RDMA READ of `len` bytes.
    pub fn read(&self, from: Remote, len: u32) -> impl Future<Output = Fetched> + Send + use<> {
        self.wait(Operation::Read(from), Vec::new(), len)
    }

    /// Posts an RDMA READ of a word.
    pub fn read_word(&self, from: Remote) -> impl Future<Output = Result<u64, Stopped>> + Send + use<> {
        let wait = self.wait(Operation::Read(from), Vec::new(), 8);
        async move { wait.await.map(|bytes| word(&bytes, 0)) }
    }

    /// Posts an RDMA WRITE.
    pub fn write(
        &self,
        to: Remote,
        bytes: Vec<u8>,
    ) -> impl Future<Output = Result<(), Stopped>> + Send + use<> {
        let wait = self.wait(Operation::Write(to), bytes, 0);
        async move { wait.await.map(|_| ()) }
    }

    /// Posts an RDMA WRITE without a future. The completion of a later request shows that it is complete.
    pub fn write_ahead(&self, to: Remote, bytes: Vec<u8>) {
        self.post(Operation::Write(to), bytes, 0, false);
    }

    /// Posts a `CmpSwap`; the result is the previous word.
    pub fn compare_swap(
        &self,
        at: Remote,
        compare: u64,
        swap: u64,
    ) -> impl Future<Output = Result<u64, Stopped>> + Send + use<> {
        let wait = self.wait(Operation::CompareSwap { at, compare, swap }, Vec::new(), 8);
        async move { wait.await.map(|bytes| word(&bytes, 0)) }
    }

    /// Posts a `FetchAdd`; the result is the previous word.
    pub fn fetch_add(
        &self,
        at: Remote,
        add: u64,
    ) -> impl Future<Output = Result<u64, Stopped>> + Send + use<> {
        let wait = self.wait(Operation::FetchAdd { at, add }, Vec::new(), 8);
        async move { wait.await.map(|bytes| word(&bytes, 0)) }
    }

    /// Waits for a time span.
    pub fn sleep(&self, span: Nanos) -> impl Future<Output = ()> + Send + use<> {
        let until = self.now() + span;
        Sleep { mailbox: Arc::clone(&self.mailbox), until }
    }
}

/// Returns the little-endian word at an offset; 0 if the bytes end before.
pub(super) fn word(bytes: &[u8], at: usize) -> u64 {
    bytes.get(at..).and_then(<[u8]>::first_chunk).map_or(0, |word| u64::from_le_bytes(*word))
}

/// Future that is ready when a request has completed.
struct Wait {
    mailbox: Arc<Mutex<Mailbox>>,
    id: u64,
}

impl Future for Wait {
    type Output = Fetched;

    fn poll(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Fetched> {
        let mut mailbox = self.mailbox.lock().unwrap_or_else(PoisonError::into_inner);
        match (mailbox.results.remove(&self.id), mailbox.stopped) {
            (Some(fetched), _) => Poll::Ready(Ok(fetched)),
            (None, Some(why)) => Poll::Ready(Err(why)),
            (None, None) => Poll::Pending,
        }
    }
}

impl Drop for Wait {
    fn drop(&mut self) {
        let mut mailbox = self.mailbox.lock().unwrap_or_else(PoisonError::into_inner);
        mailbox.awaited.remove(&self.id);
        mailbox.results.remove(&self.id);
    }
}

/// Future that is ready at a point in time.
struct Sleep {
    mailbox: Arc<Mutex<Mailbox>>,
    until: Nanos,
}

impl Future for Sleep {
    type Output = ();

    fn poll(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<()> {
        let mut mailbox = self.mailbox.lock().unwrap_or_else(PoisonError::into_inner);
        if mailbox.now >= self.until || mailbox.stopped.is_some() {
            return Poll::Ready(());
        }
        mailbox.wake_at = Some(mailbox.wake_at.map_or(self.until, |at| at.min(self.until)));
        Poll::Pending
    }
}
