//! Bounded queue from any thread to the thread of the sockets.

use crate::poller::Waker;
use std::collections::{BTreeSet, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

/// Bytes that may wait in a mailbox
const MAX_BYTES: usize = 64 << 20;

#[derive(Debug)]
struct Content<K> {
    items: VecDeque<Item<K>>,
    bytes: usize,
    /// Connections for which there was no room
    overflowed: BTreeSet<K>,
}

/// What the thread of the sockets has to do.
#[derive(Debug)]
pub(crate) enum Item<K> {
    Send(K, Box<[u8]>),
    Close(K),
}

/// What has gathered in a mailbox.
#[derive(Debug)]
pub(crate) struct Delivery<K> {
    /// Connections that have lost a message
    pub(crate) overflowed: BTreeSet<K>,
    pub(crate) items: VecDeque<Item<K>>,
}

#[derive(Debug)]
pub(crate) struct Mailbox<K> {
    content: Mutex<Content<K>>,
    stopped: AtomicBool,
    waker: Waker,
}

impl<K: Copy + Ord> Mailbox<K> {
    pub(crate) fn new(waker: Waker) -> Self {
        let content = Content { items: VecDeque::new(), bytes: 0, overflowed: BTreeSet::new() };
        Self { content: Mutex::new(content), stopped: AtomicBool::new(false), waker }
    }

    /// Adds a message, or notes that one was lost.
    pub(crate) fn send(&self, to: K, message: &[u8]) {
        self.with(|content| {
            if content.bytes + message.len() > MAX_BYTES {
                content.overflowed.insert(to);
            } else {
                content.bytes += message.len();
                content.items.push_back(Item::Send(to, message.into()));
            }
        });
    }

    pub(crate) fn close(&self, to: K) {
        self.with(|content| content.items.push_back(Item::Close(to)));
    }

    fn with(&self, change: impl FnOnce(&mut Content<K>)) {
        let was_empty = {
            // A panic of another thread leaves no half-done change.
            let mut content = self.content.lock().unwrap_or_else(PoisonError::into_inner);
            let was_empty = content.items.is_empty() && content.overflowed.is_empty();
            change(&mut content);
            was_empty
        };
        if was_empty {
            self.waker.wake();
        }
    }

    pub(crate) fn take(&self) -> Delivery<K> {
        let mut content = self.content.lock().unwrap_or_else(PoisonError::into_inner);
        content.bytes = 0;
        Delivery {
            overflowed: std::mem::take(&mut content.overflowed),
            items: std::mem::take(&mut content.items),
        }
    }

    pub(crate) fn stop(&self) {
        self.stopped.store(true, Ordering::Release);
        self.waker.wake();
    }

    pub(crate) fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::Acquire)
    }
}
