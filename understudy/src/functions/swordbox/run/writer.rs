//! The journal's own thread, so that the control thread never waits for a disk.
//!
//! Orders to add and remove connections go to the thread in sequence. The thread takes all orders that have
//! arrived meanwhile as one batch, and syncs once for all of them. A connection may be used when the thread
//! reports that it is on the disk.

use std::collections::BTreeMap;
use std::io;
use std::sync::mpsc::{Receiver, Sender, SyncSender, TryRecvError, channel, sync_channel};
use std::thread::{self, JoinHandle};
use swordbox::Connection;

/// Capacity of the queue of orders to the disk
const QUEUE_LEN: usize = 65_536;
/// Largest number of orders that are written together
const MAX_BATCH: usize = 4_096;

/// A change of the journal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Order {
    /// The two sides of this connection are about to differ
    Add(Connection),
    /// This connection is over
    Remove(Connection),
}

/// Handle of the journal's thread.
pub(super) struct Writer {
    /// `None` once the thread is to end
    orders: Option<SyncSender<Order>>,
    written: Receiver<(Connection, bool)>,
    thread: Option<JoinHandle<()>>,
    /// Number of the last addition of each connection that is neither over nor on the disk
    latest: BTreeMap<Connection, u64>,
    /// Additions that were ordered, and that were completed
    ordered: u64,
    completed: u64,
}

impl Writer {
    /// Starts the thread. `write` writes orders to the disk, and returns whether it succeeded.
    ///
    /// # Errors
    /// Fails if the system cannot create a thread.
    pub(super) fn start(write: impl FnMut(&[Order]) -> bool + Send + 'static) -> io::Result<Self> {
        let (orders, received) = sync_channel(QUEUE_LEN);
        let (back, written) = channel();
        let thread =
            thread::Builder::new().name("journal".into()).spawn(move || run(&received, &back, write))?;
        Ok(Self {
            orders: Some(orders),
            written,
            thread: Some(thread),
            latest: BTreeMap::new(),
            ordered: 0,
            completed: 0,
        })
    }

    /// Orders the addition of a connection. Returns `false`, without an order, if the queue is full.
    pub(super) fn add(&mut self, connection: Connection) -> bool {
        let ordered = self.send(Order::Add(connection));
        if ordered {
            self.ordered += 1;
            self.latest.insert(connection, self.ordered);
        }
        ordered
    }

    /// Orders the removal of a connection. A lost removal is harmless.
    pub(super) fn remove(&mut self, connection: Connection) {
        self.latest.remove(&connection);
        self.send(Order::Remove(connection));
    }

    fn send(&self, order: Order) -> bool {
        self.orders.as_ref().is_some_and(|orders| orders.try_send(order).is_ok())
    }

    /// Returns the next connection that is on the disk (`true`) or could not be written (`false`). Skips an
    /// addition if the connection was over meanwhile. If the same connection was added again, only its latest
    /// addition counts.
    pub(super) fn poll(&mut self) -> Option<(Connection, bool)> {
        loop {
            let (connection, success) = self.written.try_recv().ok()?;
            self.completed += 1;
            if self.latest.get(&connection) == Some(&self.completed) {
                self.latest.remove(&connection);
                return Some((connection, success));
            }
        }
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        // Queued orders are still written.
        self.orders = None;
        if let Some(thread) = self.thread.take() {
            // A panic of the thread has been printed.
            _ = thread.join();
        }
    }
}

fn run(orders: &Receiver<Order>, back: &Sender<(Connection, bool)>, mut write: impl FnMut(&[Order]) -> bool) {
    let mut batch = Vec::new();
    while let Ok(first) = orders.recv() {
        batch.clear();
        batch.push(first);
        while batch.len() < MAX_BATCH {
            match orders.try_recv() {
                Ok(order) => batch.push(order),
                Err(TryRecvError::Empty | TryRecvError::Disconnected) => break,
            }
        }
        let success = write(&batch);
        for order in &batch {
            if let Order::Add(connection) = order {
                // An instance that ends does not wait for the result.
                _ = back.send((*connection, success));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rocev2::Qpn;

    fn connection(n: u32) -> Connection {
        Connection {
            server: ([10, 0, 0, 9].into(), Qpn::new(1)),
            client: ([10, 0, 0, 1].into(), Qpn::new(n)),
        }
    }

    /// Returns a writer with a controlled disk: each batch is received from the second value, and its result
    /// is sent to the third.
    fn controlled() -> (Writer, Receiver<Vec<Order>>, SyncSender<bool>) {
        let (took, taken) = channel();
        let (go, result) = sync_channel(0);
        let writer = Writer::start(move |orders: &[Order]| {
            took.send(orders.to_vec()).unwrap();
            result.recv().unwrap_or(true)
        });
        (writer.unwrap(), taken, go)
    }

    fn wait(writer: &mut Writer) -> (Connection, bool) {
        loop {
            if let Some(result) = writer.poll() {
                return result;
            }
            thread::yield_now();
        }
    }

    #[test]
    fn additions_share_one_write_and_are_reported_after_it() {
        let (mut writer, taken, go) = controlled();
        assert!(writer.add(connection(1)));
        assert_eq!(taken.recv().unwrap(), [Order::Add(connection(1))]);
        // The disk is busy, but the control thread does not wait for it.
        for n in 2..=100 {
            assert!(writer.add(connection(n)));
        }
        assert_eq!(writer.poll(), None);
        go.send(true).unwrap();
        assert_eq!(wait(&mut writer), (connection(1), true));
        assert_eq!(taken.recv().unwrap().len(), 99);
        assert_eq!(writer.poll(), None);
        go.send(false).unwrap();
        for n in 2..=100 {
            assert_eq!(wait(&mut writer), (connection(n), false));
        }
    }

    #[test]
    fn a_connection_that_is_over_meanwhile_is_not_reported() {
        let (mut writer, taken, go) = controlled();
        writer.add(connection(1));
        taken.recv().unwrap();
        writer.remove(connection(1));
        writer.add(connection(2));
        // Added again: only its second addition counts, which comes after the removal.
        writer.add(connection(1));
        go.send(true).unwrap();
        let rest = [Order::Remove(connection(1)), Order::Add(connection(2)), Order::Add(connection(1))];
        assert_eq!(taken.recv().unwrap(), rest);
        assert_eq!(writer.poll(), None);
        go.send(true).unwrap();
        assert_eq!([wait(&mut writer), wait(&mut writer)], [(connection(2), true), (connection(1), true)]);
        drop(go);
    }

    #[test]
    fn queued_orders_are_bounded_and_written_at_the_end() {
        let (mut writer, taken, go) = controlled();
        writer.add(connection(0));
        taken.recv().unwrap();
        let most = 2 * QUEUE_LEN as u32;
        let accepted = (1..most).take_while(|n| writer.add(connection(*n))).count();
        assert_eq!(accepted, QUEUE_LEN);
        drop(go);
        drop(writer);
        assert_eq!(taken.iter().map(|batch| batch.len()).sum::<usize>(), QUEUE_LEN);
    }
}
