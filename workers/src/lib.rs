//! The packet path of the program: the main function of a worker's thread for each switch function.
//!
//! A worker is generic over its function, and so are the functions' handlers, over the driver's buffers. They are
//! compiled here, in one unit (`codegen-units = 1` in `Cargo.toml`) without the command line: in `understudy`,
//! which is compiled in several units at a time, a function of one unit is not inlined in another one, and a worker
//! would take up to 80 % more instructions for a packet.

#![forbid(unsafe_code)]

use dataplane::{Stopwatch, WorkerThread, run_worker};
use switch::tunnel::Tunnel;

macro_rules! mains {
    ($($(#[$attribute:meta])* $name:ident: $function:ty;)*) => {
        $(
            $(#[$attribute])*
            #[inline(never)]
            pub fn $name(thread: WorkerThread<'_, $function>) {
                run_worker(thread);
            }
        )*
    };
}

mains! {
    /// `[forward]`
    forward: switch::forward::Forward;
    /// `[forward]` behind `[tunnel]`
    tunnelled_forward: Tunnel<switch::forward::Forward>;
    /// `[impair]`
    impair: switch::impair::Impair;
    /// `[onepipe]`
    representative: representative::Representative;
    /// `[onepipe]` behind `[tunnel]`
    tunnelled_representative: Tunnel<representative::Representative>;
    /// `[p4ce]`
    p4ce: p4ce::P4ce;
    /// `[pktgen]`
    pktgen: pktgen::Pktgen;
    /// `[swordbox]`
    swordbox: swordbox::Swordbox;
    /// Load of `understudy bench health`
    health_load: bench::health::Advancing;
    /// Load of `understudy bench onepipe` and `bench workers`
    onepipe_load: Stopwatch<representative::Representative>;
    /// Load of `understudy bench swordbox`
    swordbox_load: bench::swordbox::load::Replay;
}
