//! What a worker does in a turn in which there was nothing to do.

use crate::config::Idle;
use core::time::Duration;
use switch::Nanos;

/// Empty turns before a worker gives its CPU away: a burst that is under way comes within a few
const SPINS: u32 = 32;
/// Idle for less than this, a worker that may sleep only yields: to be woken again costs more than it says, and pings took
/// three to eight times as long without
const AWAKE: Nanos = Nanos::from_micros(50);
/// Longest sleep
const SLEEP: Nanos = Nanos::from_micros(100);
/// Shortest sleep worth the two system calls that it costs
const NAP: Nanos = Nanos::from_micros(5);

/// What is to be done
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rest {
    Spin,
    Yield,
    Sleep(Nanos),
}

/// How a worker idles, and for how long it has.
#[derive(Debug)]
pub(crate) struct Idler {
    policy: Idle,
    /// Empty turns in a row, as far as they are counted
    empty: u32,
    /// When the worker had something to do last
    busy: Nanos,
}

impl Idler {
    pub(crate) fn new(policy: Idle) -> Self {
        Self { policy, empty: 0, busy: Nanos::ZERO }
    }

    /// There was something to do.
    #[inline]
    pub(crate) fn worked(&mut self) {
        self.empty = 0;
    }

    /// There was nothing to do; whether time has passed here. `due` says when something will be to do, and `None` forbids
    /// sleep.
    #[inline]
    pub(crate) fn idle(&mut self, now: Nanos, due: impl FnOnce() -> Option<Nanos>) -> bool {
        let rests = self.policy != Idle::Spin;
        if rests {
            self.rest(now, due);
        }
        rests
    }

    #[cold]
    fn rest(&mut self, now: Nanos, due: impl FnOnce() -> Option<Nanos>) {
        match self.choose(now, due) {
            Rest::Spin => core::hint::spin_loop(),
            Rest::Yield => std::thread::yield_now(),
            Rest::Sleep(time) => std::thread::sleep(Duration::from_nanos(time.0)),
        }
    }

    fn choose(&mut self, now: Nanos, due: impl FnOnce() -> Option<Nanos>) -> Rest {
        if self.empty == 0 {
            self.busy = now;
        }
        if self.empty < SPINS {
            self.empty += 1;
            return Rest::Spin;
        }
        let idle = now.since(self.busy);
        if self.policy == Idle::Yield || idle < AWAKE {
            return Rest::Yield;
        }
        // The longer nothing has come, the longer nothing may come.
        let due = due().map_or(Nanos::ZERO, |at| at.since(now));
        let time = Nanos(idle.0 / 4).min(SLEEP).min(due);
        if time < NAP { Rest::Yield } else { Rest::Sleep(time) }
    }
}

/// Has the kernel wake this thread when it asked to be woken: by default it takes 50 us more, to save energy.
pub(crate) fn wake_on_time() {
    // SAFETY: sets a number of the calling thread's.
    unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1) };
}

#[cfg(test)]
mod tests {
    use super::*;

    fn us(us: u64) -> Nanos {
        Nanos::from_micros(us)
    }

    fn idle_for(policy: Idle, time: Nanos, due: Option<Nanos>) -> Rest {
        let mut idler = Idler::new(policy);
        for _ in 0..SPINS {
            assert_eq!(idler.choose(us(1000), || due), Rest::Spin);
        }
        idler.choose(us(1000) + time, || due)
    }

    #[test]
    fn it_yields_after_some_empty_turns() {
        assert_eq!(idle_for(Idle::Yield, us(0), None), Rest::Yield);
        assert_eq!(idle_for(Idle::Yield, us(1_000_000), Some(us(9_000_000))), Rest::Yield);
        let mut idler = Idler::new(Idle::Yield);
        for _ in 0..10 * SPINS {
            assert_eq!(idler.choose(us(1), || None), Rest::Spin);
            idler.worked();
        }
    }

    #[test]
    fn it_sleeps_longer_and_longer_but_not_past_what_is_due() {
        let never = Some(Nanos(u64::MAX));
        assert_eq!(idle_for(Idle::Sleep, us(49), never), Rest::Yield);
        assert_eq!(idle_for(Idle::Sleep, us(80), never), Rest::Sleep(us(20)));
        assert_eq!(idle_for(Idle::Sleep, us(80_000), never), Rest::Sleep(SLEEP));
        assert_eq!(idle_for(Idle::Sleep, us(80), Some(us(1090))), Rest::Sleep(us(10)));
        assert_eq!(idle_for(Idle::Sleep, us(80), Some(us(1081))), Rest::Yield);
        assert_eq!(idle_for(Idle::Sleep, us(80), Some(us(3))), Rest::Yield, "it is due already");
        assert_eq!(idle_for(Idle::Sleep, us(80), None), Rest::Yield);
    }
}
