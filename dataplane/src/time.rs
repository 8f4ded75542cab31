//! Time: TSC cycles, converted to nanoseconds since the start of a run.

use switch::Nanos;

/// Reads the time stamp counter.
#[inline]
pub(crate) fn cycles() -> u64 {
    // SAFETY: reads a counter; there are no preconditions.
    unsafe { dpdk_sys::rte_get_tsc_cycles() }
}

/// Converts TSC cycles to nanoseconds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock {
    origin: u64,
    /// Nanoseconds per cycle, as a fixed-point number with 32 fractional bits
    scale: u64,
}

impl Clock {
    /// Returns a clock that starts now. The EAL has to be initialised, because it measures the TSC frequency.
    pub(crate) fn start() -> Self {
        Self { origin: cycles(), scale: ((1_000_000_000u128 << 32) / u128::from(hz())) as u64 }
    }

    #[inline]
    pub(crate) fn nanos(&self, cycles: u64) -> Nanos {
        let since = cycles.wrapping_sub(self.origin);
        Nanos(((u128::from(since) * u128::from(self.scale)) >> 32) as u64)
    }
}

/// Returns the TSC frequency, in Hz.
pub(crate) fn hz() -> u64 {
    // SAFETY: reads a variable of the EAL, which is 0 before its start; `max` avoids a division by zero.
    unsafe { dpdk_sys::rte_get_tsc_hz() }.max(1)
}
