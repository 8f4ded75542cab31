//! The time: the TSC, as nanoseconds since the worker's start.

use switch::Nanos;

/// Reads the time stamp counter.
#[inline]
pub(crate) fn cycles() -> u64 {
    // SAFETY: reads a counter; needs nothing.
    unsafe { dpdk_sys::rte_get_tsc_cycles() }
}

/// Turns cycles into nanoseconds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock {
    origin: u64,
    /// Nanoseconds a cycle, with 32 binary places
    scale: u64,
}

impl Clock {
    /// A clock that starts now. The EAL has to be up: it measures the counter's rate.
    pub(crate) fn start() -> Self {
        Self { origin: cycles(), scale: ((1_000_000_000u128 << 32) / u128::from(hz())) as u64 }
    }

    #[inline]
    pub(crate) fn nanos(&self, cycles: u64) -> Nanos {
        let since = cycles.wrapping_sub(self.origin);
        Nanos(((u128::from(since) * u128::from(self.scale)) >> 32) as u64)
    }
}

/// Cycles a second.
pub(crate) fn hz() -> u64 {
    // SAFETY: reads a variable of the EAL's; 0 before its start, which `max` makes harmless.
    unsafe { dpdk_sys::rte_get_tsc_hz() }.max(1)
}
