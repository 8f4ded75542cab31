//! The thread of the store, which carries out one job after the other.

use crate::machine::WriteId;
use crate::store::{Change, Records, Store, StoreError, Term};
use crossbeam_channel::{Receiver, RecvTimeoutError, Sender};
use std::io;
use std::thread::JoinHandle;
use std::time::Duration;

/// Longest wait for leadership, and time between two looks at it
const LOOK: Duration = Duration::from_millis(200);

/// What the store has to do.
pub(super) enum Job {
    /// Become the leader, or find out that another controller leads
    Campaign,
    Write(WriteId, Term, Vec<Change>),
}

/// What the store has done.
pub(super) enum Stored {
    /// `None`: another controller leads
    Campaigned(Result<Option<(Term, Records)>, StoreError>),
    Written(WriteId, Result<(), StoreError>),
    /// The leadership is lost
    Deposed,
}

/// Starts the thread. It ends when no more jobs can come.
pub(super) fn spawn(
    mut store: Box<dyn Store>,
    jobs: Receiver<Job>,
    done: Sender<Stored>,
) -> io::Result<JoinHandle<()>> {
    std::thread::Builder::new().name("store".into()).spawn(move || {
        let mut leads = false;
        loop {
            let result = match jobs.recv_timeout(LOOK) {
                Ok(Job::Campaign) => {
                    let result = store.campaign(LOOK);
                    leads = matches!(result, Ok(Some(_)));
                    Stored::Campaigned(result)
                }
                Ok(Job::Write(id, term, changes)) => {
                    let result = store.write(term, &changes);
                    // The write will be tried again, so that the thread may never be idle.
                    let is_over =
                        matches!(result, Err(StoreError::Unavailable(_))) && leads && !store.leads();
                    if done.send(Stored::Written(id, result)).is_err() {
                        return;
                    }
                    if !is_over {
                        continue;
                    }
                    leads = false;
                    Stored::Deposed
                }
                Err(RecvTimeoutError::Timeout) if leads && !store.leads() => {
                    leads = false;
                    Stored::Deposed
                }
                Err(RecvTimeoutError::Timeout) => continue,
                Err(RecvTimeoutError::Disconnected) => return,
            };
            if done.send(result).is_err() {
                return;
            }
        }
    })
}
