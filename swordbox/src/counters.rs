//! Counters of Swordbox, in addition to those of its bridge.

use switch::counters::Counter;

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// Counters of a [`Swordbox`](crate::Swordbox).
        #[derive(Debug, Default)]
        pub struct Counters {
            $($(#[$doc])* pub $name: Counter,)*
            usage: [Counter; 4],
        }

        impl Counters {
            /// Returns the name and value of every counter.
            pub fn all(&self) -> impl Iterator<Item = (&'static str, u64)> {
                [$((stringify!($name), self.$name.get()),)*].into_iter()
            }
        }
    };
}

counters! {
    /// Connections whose two queue pairs were identified
    paired,
    /// Of those, by messages of the connection manager
    paired_by_cm,
    /// Connections that became translated: the PSNs of their two sides may differ
    diverged,
    /// Connections forgotten: disconnected, or idle for too long
    forgotten,
    /// Packets of connections that found no free table entry
    untracked,
    /// Damaged frames dropped: malformed, or of an untracked connection with a wrong ICRC
    damaged,
    /// Packets dropped because their translated connection ended, possibly before a restart
    ended,
    /// Packets whose PSN is outside the window of the connection that they name
    strays,
    /// Client-owned connections that became shared QPs
    lanes,
    /// Shared QPs given up
    lanes_lost,
    /// Shared QPs returned because a request of their owner did not complete
    lanes_left,
    /// Switch-owned QPs opened
    own_lanes,
    /// Switch-owned QPs closed or lost
    own_lanes_lost,
    /// Keys that the server refused on a switch-owned QP
    keys_refused,
    /// Operations forwarded on a shared QP
    remapped,
    /// Atomics forwarded as WRITEs
    decided,
    /// Failing CAS answered by the switch
    answered,
    /// Values learnt from the server's responses
    learnt,
    /// Packets that may have written to a cached line without taking its shared QP
    detours,
    /// Packets dropped until the resolved operations on the same words complete
    delayed,
    /// Frames held until they can be forwarded
    waited,
    /// Frames that found no free slot to be held; the switch NAKs them later
    overflowed,
    /// Responses generated for operations that the server acknowledged
    acks,
    /// Acknowledgements of the server that covered several operations
    coalesced,
    /// NAKs generated
    naks,
    /// Requests retransmitted by clients
    repeated,
    /// Retransmitted requests answered by the switch
    replayed,
    /// Retransmitted READs forwarded as new requests
    reread,
    /// Operations retransmitted by the switch
    resent,
    /// Requests out of order
    out_of_order,
    /// Responses of the server that are duplicates or match no request
    stale,
    /// Packets that do not come from the peer of their connection
    spoofed,
    /// Atomics that cross the end of a table, or are misaligned
    misplaced,
    /// Operations whose client has not proven the needed right on its own connection
    unproven,
    /// CNPs forwarded to clients that use a shared QP
    cnps,
    /// READs and CAS whose address was changed by steering
    steered,
    /// Of those, READs
    steered_reads,
    /// Steered CAS, and CAS that others depend on, that failed because the cached state was stale
    stale_tails,
    /// Responses withheld until the node that they depend on was linked
    withheld,
    /// CAS that others depend on, retransmitted by the switch
    mended,
    /// Times at which the cached state of a server's data structures was discarded because all connections
    /// that had reached that memory were silent and a newer one was acknowledged: the server may have
    /// restarted
    structures_forgotten,
    /// Connections ended because the node that their responses waited for was never linked
    abandoned,
}

impl Counters {
    /// Returns the number of connections, shared QPs, cached lines and held frames, as of the last tick.
    pub fn usage(&self) -> [u64; 4] {
        self.usage.each_ref().map(Counter::get)
    }

    pub(crate) fn set_usage(&self, usage: [usize; 4]) {
        for (counter, value) in self.usage.iter().zip(usage) {
            counter.add((value as u64).wrapping_sub(counter.get()));
        }
    }
}
