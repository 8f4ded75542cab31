//! Receiving by either service (1Pipe, Table 1).

use crate::error::Error;
use crate::{OnePipe, ReceiveState};
use core::ffi::{c_int, c_void};
use core::time::Duration;
use onepipe_host::{Message, ProcessId, Receiver, Timestamp};

/// Destination of a received message
struct Target {
    timestamp: *mut u64,
    src: *mut u32,
    buffer: *mut c_void,
    capacity: usize,
    len: *mut usize,
}

impl Target {
    /// Writes a message to the caller's variables, or only its length if the buffer is too small.
    fn put(&self, timestamp: Timestamp, src: ProcessId, payload: &[u8]) -> Result<(), Error> {
        // SAFETY: pointers that are not null have room for what the header states; the buffer's capacity was
        // checked.
        unsafe {
            if !self.len.is_null() {
                self.len.write(payload.len());
            }
            if payload.len() > self.capacity || self.buffer.is_null() && !payload.is_empty() {
                return Err(Error::TooSmall);
            }
            if !self.timestamp.is_null() {
                self.timestamp.write(timestamp.nanos());
            }
            if !self.src.is_null() {
                self.src.write(src.0);
            }
            if !payload.is_empty() {
                self.buffer.cast::<u8>().copy_from_nonoverlapping(payload.as_ptr(), payload.len());
            }
        }
        Ok(())
    }

    /// Writes the waiting message, which remains if the buffer is too small. Returns what the call returns.
    fn put_waiting(&self, waiting: &mut Option<Message>, has_ended: bool) -> Result<c_int, Error> {
        match waiting {
            Some(message) => self.put(message.timestamp, message.src, &message.payload)?,
            None if has_ended => return Err(Error::Left),
            None => return Ok(0),
        }
        *waiting = None;
        Ok(1)
    }
}

/// What a call receives
#[derive(Clone, Copy, PartialEq, Eq)]
enum Service {
    BestEffort,
    Reliable,
    Merged,
}

impl Service {
    /// Waits for the next message.
    fn next(self, receiver: &mut Receiver, timeout: Duration) -> Result<Option<Message>, Error> {
        match self {
            Self::BestEffort => Ok(receiver.recv_timeout(timeout)),
            Self::Reliable => receiver.reliable_recv_timeout(timeout).map_err(Error::from),
            Self::Merged => receiver.merged_recv_timeout(timeout).map_err(Error::from),
        }
    }
}

/// Receives the next message, and waits for it for up to `timeout_us` microseconds. Returns what the call
/// returns, an error as well.
///
/// # Safety
/// The pointers are as the header requires.
unsafe fn receive(
    endpoint: *mut OnePipe,
    service: Service,
    timeout_us: u64,
    target: &Target,
) -> Result<c_int, Error> {
    // SAFETY: null, or from `onepipe_init`.
    let endpoint = unsafe { endpoint.as_ref() }.ok_or(Error::Argument)?;
    let mut receiving = endpoint.receiving()?;
    let ReceiveState { receiver, waiting, reliable_waiting } = &mut *receiving;
    let waiting = if service == Service::BestEffort { waiting } else { reliable_waiting };
    if service == Service::BestEffort && waiting.is_none() {
        // A short message that has been delivered is copied directly from the ring.
        let put = receiver.unreliable_recv_with(|timestamp, src, payload| {
            let too_small = |_| Message { timestamp, src, payload: payload.to_vec() };
            target.put(timestamp, src, payload).map_err(too_small)
        });
        match put {
            Some(Ok(())) => return Ok(1),
            Some(Err(message)) => *waiting = Some(message),
            None => {}
        }
    }
    if waiting.is_none() {
        *waiting = service.next(receiver, Duration::from_micros(timeout_us))?;
    }
    // Messages that were delivered before the endpoint ended can still be received.
    let has_ended = endpoint.handle.has_ended();
    if waiting.is_none() && has_ended {
        *waiting = service.next(receiver, Duration::ZERO)?;
    }
    target.put_waiting(waiting, has_ended)
}

/// Receives the next message; see `onepipe.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn onepipe_unreliable_recv(
    endpoint: *mut OnePipe,
    timeout_us: u64,
    timestamp: *mut u64,
    src: *mut u32,
    buffer: *mut c_void,
    capacity: usize,
    len: *mut usize,
) -> c_int {
    let target = Target { timestamp, src, buffer, capacity, len };
    // SAFETY: as the header requires.
    let received = unsafe { receive(endpoint, Service::BestEffort, timeout_us, &target) };
    received.unwrap_or_else(Error::number)
}

/// Receives the next reliable message; see `onepipe.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn onepipe_reliable_recv(
    endpoint: *mut OnePipe,
    timeout_us: u64,
    timestamp: *mut u64,
    src: *mut u32,
    buffer: *mut c_void,
    capacity: usize,
    len: *mut usize,
) -> c_int {
    let target = Target { timestamp, src, buffer, capacity, len };
    // SAFETY: as the header requires.
    let received = unsafe { receive(endpoint, Service::Reliable, timeout_us, &target) };
    received.unwrap_or_else(Error::number)
}

/// Receives the next message of either service; see `onepipe.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn onepipe_recv(
    endpoint: *mut OnePipe,
    timeout_us: u64,
    timestamp: *mut u64,
    src: *mut u32,
    buffer: *mut c_void,
    capacity: usize,
    len: *mut usize,
) -> c_int {
    let target = Target { timestamp, src, buffer, capacity, len };
    // SAFETY: as the header requires.
    let received = unsafe { receive(endpoint, Service::Merged, timeout_us, &target) };
    received.unwrap_or_else(Error::number)
}
