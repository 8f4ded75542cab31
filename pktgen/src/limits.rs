//! Limits of a profile.

/// Largest number of streams: each is checked in each turn of the worker
pub const MAX_STREAMS: usize = 64;
/// Largest number of queue pairs of all streams
pub const MAX_QPS: u32 = 1 << 20;
/// Largest number of slots of a stream's memory
pub const MAX_SLOTS: u32 = 1 << 20;
/// Largest number of outstanding requests of a queue pair
pub const MAX_OUTSTANDING: u16 = 256;
/// Largest READ response that the responder sends, in packets: the response leaves in one turn and needs that
/// much room in the port's queue
pub const MAX_RESPONSE_PACKETS: u32 = 256;
/// Length of the time stamp in a payload, in bytes
pub const STAMP_LEN: usize = 8;
/// Largest window, in packets
pub const MAX_WINDOW: u32 = 1 << 16;
