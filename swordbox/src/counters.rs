//! Counters of Swordbox, in addition to those of its bridge.

use switch::counters::{Counter, Gauge};
use switch::metrics;

metrics! {
    /// Counters of a [`Swordbox`](crate::Swordbox).
    #[derive(Debug, Default)]
    pub struct Counters {
        /// Connections whose two queue pairs were identified
        pub paired: Counter [connections],
        /// Connections identified by messages of the connection manager
        pub paired_by_cm: Counter [connections],
        /// Connections that became translated: the PSNs of their two sides may differ
        pub diverged: Counter [connections],
        /// Connections forgotten: disconnected, or idle for too long
        pub forgotten: Counter [connections],
        /// Packets of connections that found no free table entry
        pub untracked: Counter [packets],
        /// Damaged frames dropped: malformed, or of an untracked connection with a wrong ICRC
        pub damaged: Counter [frames],
        /// Packets dropped because their translated connection ended, possibly before a restart
        pub ended: Counter [packets],
        /// Packets whose PSN is outside the window of the connection that they name
        pub strays: Counter [packets],
        /// Client-owned connections that became shared QPs
        pub shared_qps: Counter [connections as lanes],
        /// Shared QPs given up
        pub shared_qps_lost: Counter [connections as lanes_lost],
        /// Shared QPs returned because a request of their owner did not complete
        pub shared_qps_returned: Counter [connections as lanes_left],
        /// Switch-owned QPs opened
        pub switch_owned_qps: Counter [connections as own_lanes],
        /// Switch-owned QPs closed or lost
        pub switch_owned_qps_lost: Counter [connections as own_lanes_lost],
        /// Keys that the server refused on a switch-owned QP
        pub keys_refused: Counter [keys],
        /// Operations forwarded on a shared QP
        pub remapped: Counter [operations],
        /// Atomics forwarded as WRITEs
        pub decided: Counter [operations],
        /// Failing CAS answered by the switch
        pub answered: Counter [operations],
        /// Values learnt from the server's responses
        pub learnt: Counter [values],
        /// Packets that may have written to a cached line without taking its shared QP
        pub detours: Counter [packets],
        /// Packets dropped until the resolved operations on the same words complete
        pub delayed: Counter [packets],
        /// Frames held until they can be forwarded
        pub waited: Counter [frames],
        /// Frames that found no free slot to be held; the switch NAKs them later
        pub overflowed: Counter [frames],
        /// Responses generated for operations that the server acknowledged
        pub acks: Counter [packets],
        /// Acknowledgements of the server that covered several operations
        pub coalesced: Counter [packets],
        /// NAKs generated
        pub naks: Counter [packets],
        /// Requests retransmitted by clients
        pub repeated: Counter [requests],
        /// Retransmitted requests answered by the switch
        pub replayed: Counter [requests],
        /// Retransmitted READs forwarded as new requests
        pub reread: Counter [requests],
        /// Operations retransmitted by the switch
        pub resent: Counter [operations],
        /// Requests out of order
        pub out_of_order: Counter [requests],
        /// Responses of the server that are duplicates or match no request
        pub stale: Counter [packets],
        /// Packets that do not come from the peer of their connection
        pub spoofed: Counter [packets],
        /// Atomics that cross the end of a table, or are misaligned
        pub misplaced: Counter [operations],
        /// Operations whose client has not proven the needed right on its own connection
        pub unproven: Counter [operations],
        /// CNPs forwarded to clients that use a shared QP
        pub cnps: Counter [packets],
        /// READs and CAS whose address was changed by steering
        pub steered: Counter [operations],
        /// READs whose address was changed by steering
        pub steered_reads: Counter [operations],
        /// Steered CAS, and CAS that others depend on, that failed because the cached state was stale
        pub stale_tails: Counter [operations],
        /// Responses withheld until the node that they depend on was linked
        pub withheld: Counter [packets],
        /// CAS that others depend on, retransmitted by the switch
        pub mended: Counter [operations],
        /// Times at which the cached state of a server's data structures was discarded because all connections
        /// that had reached that memory were silent and a newer one was acknowledged: the server may have
        /// restarted
        pub structures_forgotten: Counter [times],
        /// Connections ended because the node that their responses waited for was never linked
        pub abandoned: Counter [connections],
        /// Table entries in use
        pub usage: Usage,
    }
}

metrics! {
    /// Table entries in use, as of the last tick.
    #[derive(Debug, Default)]
    pub struct Usage {
        /// Tracked connections
        pub connections: Gauge [connections as "usage.connections" / connections],
        /// Connections that are shared QPs at present
        pub shared_qps: Gauge [connections as "usage.lanes" / lanes_now],
        /// Cached lines with tracked words
        pub lines: Gauge [lines as "usage.lines" / lines],
        /// Frames that are held until they can be forwarded
        pub held: Gauge [frames as "usage.held" / held],
    }
}

impl Usage {
    pub(crate) fn set(&self, [connections, shared_qps, lines, held]: [usize; 4]) {
        self.connections.set(connections as u64);
        self.shared_qps.set(shared_qps as u64);
        self.lines.set(lines as u64);
        self.held.set(held as u64);
    }
}
