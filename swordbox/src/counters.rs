//! What a Swordbox counts, beside what its bridge does.

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
            /// Every counter by name.
            pub fn all(&self) -> impl Iterator<Item = (&'static str, u64)> {
                [$((stringify!($name), self.$name.get()),)*].into_iter()
            }
        }
    };
}

counters! {
    /// Connections whose two directions are known to belong together
    paired,
    /// Of those, by the connection manager
    paired_by_cm,
    /// Connections whose two sides came to differ
    diverged,
    /// Connections forgotten: disconnected, or silent for too long
    forgotten,
    /// Packets of connections that found no place in the table
    untracked,
    /// Frames that were refused because they were damaged: malformed, or not of a connection that is tracked and with a wrong ICRC
    damaged,
    /// Packets of connections that ended while their sides differed, or with an earlier life
    ended,
    /// Packets whose PSNs are none of the connection that they name
    strays,
    /// Connections of clients that were shared
    lanes,
    /// Shared connections given up
    lanes_lost,
    /// Shared connections that were left because their owners had begun something that did not end
    lanes_left,
    /// Lanes of the switch's own that were opened
    own_lanes,
    /// Of those, closed or lost
    own_lanes_lost,
    /// Keys that were not good on a lane of the switch's own
    keys_refused,
    /// Operations that left on a shared connection
    remapped,
    /// Atomics that left as WRITEs
    decided,
    /// Failed CAS answered at once
    answered,
    /// Values learnt from the server's answers
    learnt,
    /// Packets that wrote to a tracked word on another way than its shared connection
    detours,
    /// Packets dropped until what was decided for their words is done
    delayed,
    /// Packets that waited for their turn
    waited,
    /// Packets that found no place to wait; their clients are asked for them again
    overflowed,
    /// Acknowledgements made here
    acks,
    /// Acknowledgements of the server that covered several operations
    coalesced,
    /// NAKs made here
    naks,
    /// Requests that their clients repeated
    repeated,
    /// Repeated requests answered from here
    replayed,
    /// Repeated READs that went to the server as new requests
    reread,
    /// Operations sent again from here
    resent,
    /// Requests out of order
    out_of_order,
    /// Responses of the server that say nothing new, or that nobody waits for
    stale,
    /// Packets that do not come from their connection's other side
    spoofed,
    /// Atomics that cross the end of a table, or are not aligned
    misplaced,
    /// Operations with a key that their clients had not used on their own connection yet
    unproven,
    /// CNPs passed to clients on a shared connection
    cnps,
    /// Packets steered: READs and CAS that went to another place than they said
    steered,
    /// Of those, READs
    steered_reads,
    /// CAS that were steered, or that others depended on, and that did not succeed: what was known was not true
    stale_tails,
    /// Answers that waited until what they tell of was part of its data structure
    withheld,
    /// CAS that others depended on, and that were sent again from here
    mended,
    /// Times at which a server's data structures were forgotten, as all connections that knew them had fallen silent and a newer
    /// one was acknowledged: the server may have restarted
    structures_forgotten,
    /// Connections ended because what their answers waited for never came
    abandoned,
}

impl Counters {
    /// Connections, shared connections, cached lines and waiting frames a moment ago.
    pub fn usage(&self) -> [u64; 4] {
        self.usage.each_ref().map(Counter::get)
    }

    pub(crate) fn set_usage(&self, usage: [usize; 4]) {
        for (counter, value) in self.usage.iter().zip(usage) {
            counter.add((value as u64).wrapping_sub(counter.get()));
        }
    }
}
