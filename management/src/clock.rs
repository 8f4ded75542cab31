//! The clock of the threads, and random numbers of the operating system.

use rustix::rand::GetRandomFlags;
use std::io;
use std::time::Instant;
use switch::Nanos;

/// Monotonic clock that starts at 0.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock(Instant);

#[allow(clippy::disallowed_methods, reason = "the threads read the clock, connections do not")]
impl Clock {
    pub(crate) fn start() -> Self {
        Self(Instant::now())
    }

    pub(crate) fn now(self) -> Nanos {
        Nanos(Instant::now().duration_since(self.0).as_nanos() as u64)
    }
}

/// Returns a random number of the operating system.
///
/// # Errors
/// The operating system has none.
pub(crate) fn random() -> io::Result<[u8; 32]> {
    let mut bytes = [0; 32];
    let mut filled = 0;
    while filled < bytes.len() {
        match rustix::rand::getrandom(&mut bytes[filled..], GetRandomFlags::empty()) {
            Ok(count) => filled += count,
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(bytes)
}
