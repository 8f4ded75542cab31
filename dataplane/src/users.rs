//! Counts of the threads that use something shared: a port is stopped when no worker uses it, and a worker ends when no other one
//! can hand over frames and it has handled those that were handed over.

use core::sync::atomic::{AtomicUsize, Ordering};

/// Atomic counter; loom's in tests, which play every order of the threads' steps.
pub(crate) trait Count {
    fn subtract_one(&self);
    fn get(&self) -> usize;
}

/// Implements [`Count`] with the same memory orderings for the atomic of the program and for that of loom.
macro_rules! count {
    ($atomic:ty) => {
        impl Count for $atomic {
            fn subtract_one(&self) {
                self.fetch_sub(1, Ordering::SeqCst);
            }

            fn get(&self) -> usize {
                self.load(Ordering::SeqCst)
            }
        }
    };
}

count!(AtomicUsize);

/// State of the hand-off rings after a turn of a worker that is about to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Turn {
    /// All that was handed over before this turn has been handled
    Empty,
    /// Something is left
    Busy,
    /// The time limit has passed: what is left stays in the rings
    Late,
}

/// Count of the threads that use something.
#[derive(Debug, Default)]
pub(crate) struct Users<C = AtomicUsize>(C);

impl Users {
    pub(crate) const fn new(count: usize) -> Self {
        Self(AtomicUsize::new(count))
    }
}

impl<C: Count> Users<C> {
    /// Calls `give_up`, then counts the thread out: a thread that reads the lower count sees what `give_up` has done.
    pub(crate) fn leave(&self, give_up: impl FnOnce()) {
        give_up();
        self.0.subtract_one();
    }

    /// Returns the number of threads that still use it.
    pub(crate) fn count(&self) -> usize {
        self.0.get()
    }

    /// Counts out a thread that hands over nothing more, and calls `turn` until all that other threads have handed over to it is
    /// handled, or until `turn` returns [`Turn::Late`].
    pub(crate) fn drain(&self, mut turn: impl FnMut() -> Turn) {
        self.leave(|| {});
        loop {
            // In this order: frames of threads that are counted out here are in the rings by the next turn.
            let is_alone = self.count() == 0;
            match turn() {
                Turn::Late => break,
                Turn::Empty if is_alone => break,
                Turn::Empty | Turn::Busy => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use loom::cell::UnsafeCell;
    use loom::sync::atomic::AtomicUsize as Shared;
    use loom::sync::{Arc, Mutex};
    use loom::thread;

    count!(Shared);

    type Ring = Arc<Mutex<Vec<u32>>>;

    fn take(ring: &Ring) -> Turn {
        ring.lock().unwrap().clear();
        // Loom plays other threads here.
        thread::yield_now();
        Turn::Empty
    }

    /// Plays every order of two workers that hand over something to each other and end, and checks that all of it was handled.
    fn workers_end(end: fn(&Users<Shared>, &Ring)) {
        loom::model(move || {
            let users = Arc::new(Users(Shared::new(2)));
            let rings: [Ring; 2] = core::array::from_fn(|_| Arc::default());
            let worker = |own: usize| {
                let (users, own, other) = (users.clone(), rings[own].clone(), rings[1 - own].clone());
                move || {
                    other.lock().unwrap().push(1);
                    end(&users, &own);
                }
            };
            let second = thread::spawn(worker(1));
            worker(0)();
            second.join().unwrap();
            assert!(rings.iter().all(|ring| ring.lock().unwrap().is_empty()), "something is left in a ring");
        });
    }

    #[test]
    fn workers_that_end_handle_all_that_was_handed_over() {
        workers_end(|users, ring| users.drain(|| take(ring)));
    }

    /// The planted bug: the count is read after the turn.
    #[test]
    #[should_panic(expected = "something is left in a ring")]
    fn planted_end_after_a_turn_that_came_too_early_is_found() {
        workers_end(|users, ring| {
            users.leave(|| {});
            loop {
                let turn = take(ring);
                if users.count() == 0 && turn == Turn::Empty {
                    break;
                }
            }
        });
    }

    /// Plays every order of two workers that leave a port and of the thread that then stops it.
    fn port_is_stopped(leave: fn(&Users<Shared>, &dyn Fn())) {
        loom::model(move || {
            let users = Arc::new(Users(Shared::new(2)));
            let port = Arc::new(UnsafeCell::new(0));
            let worker = || {
                let (users, port) = (users.clone(), port.clone());
                // Frames that wait for the port leave or are dropped: it is read.
                move || leave(&users, &|| port.with(|_| {}))
            };
            let workers = [thread::spawn(worker()), thread::spawn(worker())];
            while users.count() > 0 {
                thread::yield_now();
            }
            // Loom panics if a worker is not known to be done with it.
            port.with_mut(|_| {});
            for worker in workers {
                worker.join().unwrap();
            }
        });
    }

    #[test]
    fn port_is_stopped_when_all_workers_have_left_it() {
        port_is_stopped(|users, give_up| users.leave(give_up));
    }

    /// The planted bug: a worker is counted out before it has given the port up.
    #[test]
    #[should_panic(expected = "Causality violation")]
    fn planted_departure_before_a_port_is_given_up_is_found() {
        port_is_stopped(|users, give_up| {
            users.leave(|| {});
            give_up();
        });
    }

    /// On real threads, for ThreadSanitizer: the port is memory that workers read and that is written when all have left it.
    #[test]
    fn real_port_is_stopped_when_all_workers_have_left_it() {
        struct Port(core::cell::UnsafeCell<u64>);
        // SAFETY: a reader has left `users`, and the writer has seen that, before it is written.
        unsafe impl Sync for Port {}
        for _ in 0..1000 {
            let (users, port) = (super::Users::new(2), Port(0.into()));
            let port = &port;
            std::thread::scope(|scope| {
                for _ in 0..2 {
                    scope.spawn(|| {
                        // SAFETY: nothing writes it before this thread has left.
                        users.leave(|| assert_eq!(unsafe { *port.0.get() }, 0));
                    });
                }
                while users.count() > 0 {
                    std::thread::yield_now();
                }
                // SAFETY: both threads have left.
                unsafe { *port.0.get() = 1 };
            });
        }
    }

    #[test]
    fn real_workers_that_end_handle_all_that_was_handed_over() {
        const FRAMES: usize = 8;
        for _ in 0..1000 {
            let users = super::Users::new(2);
            let rings = [0, 1].map(|_| rtrb::RingBuffer::<Box<usize>>::new(FRAMES));
            let [(to_second, of_second), (to_first, of_first)] = rings;
            let worker = |mut other: rtrb::Producer<_>, mut own: rtrb::Consumer<Box<usize>>| {
                let users = &users;
                move || {
                    for frame in 0..FRAMES {
                        other.push(Box::new(frame)).expect("room");
                    }
                    let mut handled = 0;
                    users.drain(|| {
                        while own.pop().is_ok_and(|frame| *frame == handled) {
                            handled += 1;
                        }
                        Turn::Empty
                    });
                    handled
                }
            };
            let handled = std::thread::scope(|scope| {
                [scope.spawn(worker(to_second, of_first)), scope.spawn(worker(to_first, of_second))]
                    .map(|worker| worker.join().unwrap())
            });
            assert_eq!(handled, [FRAMES; 2]);
        }
    }
}
