//! Idle handling of a worker.

use crate::config::Idle;
use core::time::Duration;
use switch::Nanos;

/// Number of empty iterations before a worker yields: the next frames of a burst in progress arrive within a
/// few iterations
const SPINS: u32 = 32;
/// Idle time below which a worker with `Idle::Sleep` yields instead of sleeping: a sleep lasts longer than
/// requested, and pings took three to eight times as long without this limit
const MIN_IDLE: Nanos = Nanos::from_micros(50);
/// Maximum sleep
const MAX_SLEEP: Nanos = Nanos::from_micros(100);
/// Minimum sleep, below which the two system calls cost more than it saves
const MIN_SLEEP: Nanos = Nanos::from_micros(5);

/// Action of an idle worker
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Action {
    Spin,
    Yield,
    Sleep(Nanos),
}

/// Idle strategy of a worker and its state.
#[derive(Debug)]
pub(crate) struct Idler {
    policy: Idle,
    /// Number of consecutive empty iterations, saturated at `SPINS`
    empty: u32,
    /// Time of the last iteration with work
    busy: Nanos,
}

impl Idler {
    pub(crate) fn new(policy: Idle) -> Self {
        Self { policy, empty: 0, busy: Nanos::ZERO }
    }

    /// Records an iteration with work.
    #[inline]
    pub(crate) fn worked(&mut self) {
        self.empty = 0;
    }

    /// Records an iteration without work, and yields or sleeps. Returns whether time has passed. `due`
    /// returns the time of the next work; `None` forbids sleeping.
    #[inline]
    pub(crate) fn idle(&mut self, now: Nanos, due: impl FnOnce() -> Option<Nanos>) -> bool {
        let acts = self.policy != Idle::Spin;
        if acts {
            self.act(now, due);
        }
        acts
    }

    #[cold]
    fn act(&mut self, now: Nanos, due: impl FnOnce() -> Option<Nanos>) {
        match self.choose(now, due) {
            Action::Spin => core::hint::spin_loop(),
            Action::Yield => std::thread::yield_now(),
            Action::Sleep(time) => std::thread::sleep(Duration::from_nanos(time.0)),
        }
    }

    fn choose(&mut self, now: Nanos, due: impl FnOnce() -> Option<Nanos>) -> Action {
        if self.empty == 0 {
            self.busy = now;
        }
        if self.empty < SPINS {
            self.empty += 1;
            return Action::Spin;
        }
        let idle = now.since(self.busy);
        if self.policy == Idle::Yield || idle < MIN_IDLE {
            return Action::Yield;
        }
        // The longer the worker has been idle, the longer it sleeps.
        let due = due().map_or(Nanos::ZERO, |at| at.since(now));
        let time = Nanos(idle.0 / 4).min(MAX_SLEEP).min(due);
        if time < MIN_SLEEP { Action::Yield } else { Action::Sleep(time) }
    }
}

/// Sets this thread's timer slack to 1 ns. By default the kernel wakes a thread up to 50 us late to save
/// energy.
pub(crate) fn wake_on_time() {
    // SAFETY: sets an attribute of the calling thread.
    unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1) };
}

#[cfg(test)]
mod tests {
    use super::*;

    fn us(us: u64) -> Nanos {
        Nanos::from_micros(us)
    }

    fn idle_for(policy: Idle, time: Nanos, due: Option<Nanos>) -> Action {
        let mut idler = Idler::new(policy);
        for _ in 0..SPINS {
            assert_eq!(idler.choose(us(1000), || due), Action::Spin);
        }
        idler.choose(us(1000) + time, || due)
    }

    #[test]
    fn worker_yields_after_some_empty_iterations() {
        assert_eq!(idle_for(Idle::Yield, us(0), None), Action::Yield);
        assert_eq!(idle_for(Idle::Yield, us(1_000_000), Some(us(9_000_000))), Action::Yield);
        let mut idler = Idler::new(Idle::Yield);
        for _ in 0..10 * SPINS {
            assert_eq!(idler.choose(us(1), || None), Action::Spin);
            idler.worked();
        }
    }

    #[test]
    fn sleeps_grow_and_end_before_the_next_timer() {
        let never = Some(Nanos(u64::MAX));
        assert_eq!(idle_for(Idle::Sleep, us(49), never), Action::Yield);
        assert_eq!(idle_for(Idle::Sleep, us(80), never), Action::Sleep(us(20)));
        assert_eq!(idle_for(Idle::Sleep, us(80_000), never), Action::Sleep(MAX_SLEEP));
        assert_eq!(idle_for(Idle::Sleep, us(80), Some(us(1090))), Action::Sleep(us(10)));
        assert_eq!(idle_for(Idle::Sleep, us(80), Some(us(1081))), Action::Yield);
        assert_eq!(idle_for(Idle::Sleep, us(80), Some(us(3))), Action::Yield, "the timer is due already");
        assert_eq!(idle_for(Idle::Sleep, us(80), None), Action::Yield);
    }
}
