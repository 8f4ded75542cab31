//! Counts of the threads that use a shared resource: a port is stopped when no worker uses it, and a worker
//! ends when no other worker can hand off frames any more and it has handled those that were handed off.

use core::sync::atomic::{AtomicUsize, Ordering};

/// An atomic counter. In tests it is loom's, which explores every interleaving of the threads.
pub(crate) trait Count {
    fn subtract_one(&self);
    fn get(&self) -> usize;
}

/// Implements [`Count`] with the same memory orderings for the program's atomic and for loom's.
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

/// State of the hand-off rings after an iteration of a worker that is about to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DrainState {
    /// All frames that were handed off before this iteration have been handled
    Empty,
    /// Frames are left
    Busy,
    /// The time limit has passed; frames that are left stay in the rings
    Late,
}

/// Number of the threads that use a resource.
#[derive(Debug, Default)]
pub(crate) struct Users<C = AtomicUsize>(C);

impl Users {
    pub(crate) const fn new(count: usize) -> Self {
        Self(AtomicUsize::new(count))
    }
}

impl<C: Count> Users<C> {
    /// Calls `give_up`, then decrements the count: a thread that reads the lower count observes the effects
    /// of `give_up`.
    pub(crate) fn leave(&self, give_up: impl FnOnce()) {
        give_up();
        self.0.subtract_one();
    }

    /// Returns the number of threads that still use the resource.
    pub(crate) fn count(&self) -> usize {
        self.0.get()
    }

    /// Leaves as a thread that hands off nothing more. Then calls `turn` until all frames that other threads
    /// have handed off are handled, or until `turn` returns [`DrainState::Late`].
    pub(crate) fn drain(&self, mut turn: impl FnMut() -> DrainState) {
        self.leave(|| {});
        loop {
            // The order matters: frames of threads that have left by now are in the rings before the next
            // iteration.
            let is_alone = self.count() == 0;
            match turn() {
                DrainState::Late => break,
                DrainState::Empty if is_alone => break,
                DrainState::Empty | DrainState::Busy => {}
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

    fn take(ring: &Ring) -> DrainState {
        ring.lock().unwrap().clear();
        // A scheduling point for loom.
        thread::yield_now();
        DrainState::Empty
    }

    /// Explores every interleaving of two workers that hand off a frame to each other and end, and asserts
    /// that all frames were handled.
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
            assert!(rings.iter().all(|ring| ring.lock().unwrap().is_empty()), "a frame is left in a ring");
        });
    }

    #[test]
    fn ending_workers_handle_all_frames_that_were_handed_off() {
        workers_end(|users, ring| users.drain(|| take(ring)));
    }

    /// Planted bug: the count is read after the iteration.
    #[test]
    #[should_panic(expected = "a frame is left in a ring")]
    fn planted_reading_of_the_count_after_the_iteration_is_found() {
        workers_end(|users, ring| {
            users.leave(|| {});
            loop {
                let turn = take(ring);
                if users.count() == 0 && turn == DrainState::Empty {
                    break;
                }
            }
        });
    }

    /// Explores every interleaving of two workers that leave a port and the thread that then stops it.
    fn port_is_stopped(leave: fn(&Users<Shared>, &dyn Fn())) {
        loom::model(move || {
            let users = Arc::new(Users(Shared::new(2)));
            let port = Arc::new(UnsafeCell::new(0));
            let worker = || {
                let (users, port) = (users.clone(), port.clone());
                // Waiting frames are sent or dropped, which reads the port.
                move || leave(&users, &|| port.with(|_| {}))
            };
            let workers = [thread::spawn(worker()), thread::spawn(worker())];
            while users.count() > 0 {
                thread::yield_now();
            }
            // Loom panics if a worker may still use the port.
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

    /// Planted bug: a worker leaves before it has released the port.
    #[test]
    #[should_panic(expected = "Causality violation")]
    fn planted_leaving_before_releasing_the_port_is_found() {
        port_is_stopped(|users, give_up| {
            users.leave(|| {});
            give_up();
        });
    }

    /// On real threads, for ThreadSanitizer: the port is memory that workers read, and that is written when
    /// all have left.
    #[test]
    fn real_port_is_stopped_when_all_workers_have_left_it() {
        struct Port(core::cell::UnsafeCell<u64>);
        // SAFETY: the writer writes only after it has seen that every reader has left `users`.
        unsafe impl Sync for Port {}
        for _ in 0..1000 {
            let (users, port) = (super::Users::new(2), Port(0.into()));
            let port = &port;
            std::thread::scope(|scope| {
                for _ in 0..2 {
                    scope.spawn(|| {
                        // SAFETY: nothing writes the port before this thread has left.
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
    fn real_ending_workers_handle_all_frames_that_were_handed_off() {
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
                        DrainState::Empty
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
