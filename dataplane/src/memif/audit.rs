//! Validation of the messages that a memif peer sends on the control channel.
//!
//! DPDK 22.11's driver uses a peer's values without checks: the region of a ring is an index into an array,
//! and the offset of a ring is added to the region's address. It maps a region without checking that the file
//! cannot shrink; a worker that accesses memory beyond the end of a shrunk file is killed by SIGBUS. Each
//! message is therefore validated here before the driver gets it. What a peer later writes into the shared
//! rings does not pass through the control channel and is used without checks: peers are trusted.
//!
//! Offsets and limits are those of the memif protocol, version 2.0, as in DPDK's `drivers/net/memif/memif.h`.

use super::socket::{ACK, ADD_REGION, ADD_RING, CONNECT, CONNECTED, DISCONNECT, HELLO, Message};
use rustix::fs::{OFlags, SealFlags, fcntl_get_seals, fcntl_getfl, fcntl_setfl, fstat};
use std::os::fd::OwnedFd;

/// Maximum number of regions that the driver supports
const MAX_REGIONS: usize = 256;
/// Maximum ring size, as a power of two
const MAX_LOG2_RING: u8 = 14;
/// Length of a ring's header, and of a descriptor, in bytes
const RING_HEADER: u64 = 128;
const DESCRIPTOR: u64 = 16;
/// Flag of a ring in the direction from client to server
const FROM_CLIENT: u16 = 1;

/// The reason why a message is not forwarded.
pub(super) type Refusal = String;

/// Validation state of one peer.
#[derive(Debug)]
pub(super) struct Audit {
    /// Number of queues of this port in each direction, each of which needs a ring
    queues: u16,
    stage: Stage,
}

#[derive(Debug)]
enum Stage {
    /// The client announces regions, by their sizes in bytes, and rings. `rings` counts those to the client,
    /// then those from it
    Announcing { regions: Vec<u64>, rings: [u16; 2] },
    /// The server has to send HELLO
    AwaitHello,
    /// The server responds to our client's messages
    AwaitConnected,
    /// The connection is agreed; only DISCONNECT may follow
    Connected,
}

impl Audit {
    /// Validates a client whose `INIT` was accepted.
    pub(super) fn of_client(queues: u16) -> Self {
        Self { queues, stage: Stage::Announcing { regions: Vec::new(), rings: [0; 2] } }
    }

    /// Validates a server to which our client has connected.
    pub(super) fn of_server(queues: u16) -> Self {
        Self { queues, stage: Stage::AwaitHello }
    }

    /// Checks the peer's next message.
    ///
    /// # Errors
    /// The reason, if the message is invalid. It must not be forwarded to the driver.
    pub(super) fn check(&mut self, message: &Message) -> Result<(), Refusal> {
        let kind = message.kind();
        let descriptor = message.descriptor();
        if descriptor.is_some() != matches!(kind, ADD_REGION | ADD_RING) {
            return Err(format!(
                "message {kind} carries {} descriptor",
                if descriptor.is_some() { "a" } else { "no" }
            ));
        }
        match (&mut self.stage, kind) {
            (_, DISCONNECT) | (Stage::Announcing { .. } | Stage::AwaitConnected, ACK) => {}
            (Stage::Announcing { regions, rings }, ADD_REGION | ADD_RING) => {
                let descriptor = descriptor.expect("checked above");
                if kind == ADD_REGION {
                    regions.push(region(message, descriptor, regions.len())?);
                } else {
                    ring(message, descriptor, regions, rings)?;
                }
            }
            (Stage::Announcing { rings, .. }, CONNECT) => {
                if *rings != [self.queues; 2] {
                    let [to, from] = rings;
                    return Err(format!(
                        "{from} rings from the client and {to} to it, but this port needs {0} and {0}",
                        self.queues
                    ));
                }
                self.stage = Stage::Connected;
            }
            (Stage::AwaitHello, HELLO) => {
                // Highest ring indices, which begin with 0
                for (name, at) in [("to", 40), ("from", 42)] {
                    let rings = u32::from(message.u16(at)) + 1;
                    if rings < self.queues.into() {
                        return Err(format!(
                            "the server supports {rings} rings {name} it, but this port needs {}",
                            self.queues
                        ));
                    }
                }
                self.stage = Stage::AwaitConnected;
            }
            (Stage::AwaitConnected, CONNECTED) => self.stage = Stage::Connected,
            _ => return Err(format!("message {kind} is not expected in this state")),
        }
        Ok(())
    }
}

/// Validates an announced region and returns its size in bytes.
fn region(message: &Message, file: &OwnedFd, known: usize) -> Result<u64, Refusal> {
    let (index, size) = (usize::from(message.u16(2)), message.u64(4));
    if index != known || index >= MAX_REGIONS {
        return Err(format!("region {index} is not the next one ({known}), or exceeds the limit"));
    }
    let stat = fstat(file).map_err(|error| format!("region {index} is not a file: {error}"))?;
    let has = u64::try_from(stat.st_size).unwrap_or(0);
    if size == 0 || size > has {
        return Err(format!("region {index} is announced with {size} bytes, but its file has {has}"));
    }
    if !fcntl_get_seals(file).is_ok_and(|seals| seals.contains(SealFlags::SHRINK)) {
        return Err(format!("region {index} is not sealed against shrinking (F_SEAL_SHRINK)"));
    }
    Ok(size)
}

fn ring(message: &Message, event: &OwnedFd, regions: &[u64], rings: &mut [u16; 2]) -> Result<(), Refusal> {
    let [flags, index, region] = [2, 4, 6].map(|at| message.u16(at));
    let (offset, log2) = (u64::from(message.u32(8)), message.u8(12));
    let count = &mut rings[usize::from(flags & FROM_CLIENT)];
    if index != *count {
        return Err(format!("ring {index} is not the next one of its direction ({count})"));
    }
    let Some(size) = regions.get(usize::from(region)) else {
        return Err(format!("ring {index} is in region {region}, which was not announced"));
    };
    if log2 > MAX_LOG2_RING {
        return Err(format!("ring {index} has 2^{log2} entries, above 2^{MAX_LOG2_RING}"));
    }
    if offset % DESCRIPTOR != 0 || offset + RING_HEADER + (DESCRIPTOR << log2) > *size {
        return Err(format!(
            "ring {index} of 2^{log2} entries at {offset} does not fit into the {size} bytes of region {region}"
        ));
    }
    // The driver reads and writes the event descriptor in a worker, which must not block.
    let set = fcntl_getfl(event).and_then(|flags| fcntl_setfl(event, flags | OFlags::NONBLOCK));
    set.map_err(|error| format!("the event descriptor of ring {index} is not usable: {error}"))?;
    *count += 1;
    Ok(())
}

#[cfg(test)]
mod tests;
