//! The sending side of the workload.

use super::Args;
use onepipe_host::{Endpoint, Handle, ProcessId, ReliableError, SendError, reliable};
use std::time::Instant;

/// Length of a message's number, in bytes
const NUMBER_LEN: usize = 8;
/// Maximum number of scatterings per turn, because messages have to be received as well
const SENDS_PER_TURN: u64 = 64;

/// Scatterings that are sent, at a rate.
pub(super) struct Workload<'a> {
    args: &'a Args,
    to: &'a [ProcessId],
    payload: Vec<u8>,
    /// Time of the first scattering
    began: Option<Instant>,
    sent: u64,
    settled: u64,
}

/// Returns whether a process may send its first scattering.
fn may_begin(args: &Args, to: &[ProcessId], handle: &Handle) -> bool {
    if args.reliable {
        handle.is_admitted() && to.iter().all(|&id| handle.is_member(id))
    } else {
        handle.is_open()
    }
}

impl<'a> Workload<'a> {
    pub(super) fn new(args: &'a Args, to: &'a [ProcessId]) -> Self {
        Self { args, to, payload: vec![0x5a; args.size as usize], began: None, sent: 0, settled: 0 }
    }

    /// Returns the number of scatterings sent.
    pub(super) const fn sent(&self) -> u64 {
        self.sent
    }

    /// Counts a scattering whose result is known.
    pub(super) const fn settle(&mut self) {
        self.settled += 1;
    }

    /// Sends the scatterings that are due and fit. Returns whether any was sent.
    ///
    /// # Errors
    /// The endpoint refuses them for good.
    pub(super) fn send(&mut self, endpoint: &mut Endpoint, now: Instant) -> Result<bool, ReliableError> {
        if self.began.is_none() && !may_begin(self.args, self.to, endpoint.handle()) {
            return Ok(false);
        }
        let before = self.sent;
        let began = *self.began.get_or_insert(now);
        let due = match self.args.rate {
            Some(rate) => (now.duration_since(began).as_secs_f64() * rate) as u64 + 1,
            None => u64::MAX,
        };
        let limit = self.args.send.min(self.sent + SENDS_PER_TURN);
        while self.sent < limit.min(due) && self.send_one(endpoint)? {
            self.sent += 1;
        }
        Ok(self.sent > before)
    }

    /// Sends a scattering. Returns whether there was room, and a receiver.
    fn send_one(&mut self, endpoint: &mut Endpoint) -> Result<bool, ReliableError> {
        self.payload[..NUMBER_LEN].copy_from_slice(&self.sent.to_be_bytes());
        let payload = &self.payload[..];
        let result = if self.args.reliable {
            let handle = endpoint.handle();
            let members = self.to.iter().filter(|&&id| handle.is_member(id));
            let messages: Vec<_> = members.map(|&dst| (dst, payload)).collect();
            if messages.is_empty() {
                return Ok(false);
            }
            endpoint.reliable_send(&messages)
        } else if let &[dst] = self.to {
            endpoint.unreliable_send(&[(dst, payload)]).map_err(refused)
        } else {
            let messages: Vec<_> = self.to.iter().map(|&dst| (dst, payload)).collect();
            endpoint.unreliable_send(&messages).map_err(refused)
        };
        match result {
            Ok(_) => Ok(true),
            Err(ReliableError::Service(
                reliable::Error::Send(SendError::Full) | reliable::Error::NotAdmitted,
            )) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Returns whether everything that was expected has been received, and all scatterings are settled.
    pub(super) fn is_done(&self, received: u64) -> bool {
        self.args.expect.is_some_and(|expected| {
            received >= expected && self.sent == self.args.send && self.settled == self.sent
        })
    }
}

fn refused(error: SendError) -> ReliableError {
    ReliableError::Service(reliable::Error::Send(error))
}
