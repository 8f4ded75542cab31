//! Packet and error counters of a NIC.

use switch::metrics;

metrics! {
    /// Counters of a NIC since its creation.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
    pub struct Counters {
        /// Frames sent
        pub sent: u64 [frames],
        /// Frames received
        pub received: u64 [frames],
        /// RoCEv2 packets received that do not parse
        pub malformed: u64 [packets],
        /// Packets with a wrong ICRC
        pub icrc_errors: u64 [packets],
        /// Packets and frames for another host, by MAC address, IP address or VLAN
        pub not_for_us: u64 [frames],
        /// Packets for a queue pair that does not exist or does not receive, or from a host that is not its peer
        pub no_qp: u64 [packets],
        /// Duplicate requests
        pub duplicates: u64 [requests],
        /// Duplicate READs and atomics dropped because the responder no longer remembers the original
        pub forgotten: u64 [packets],
        /// Requests ahead of the expected PSN
        pub out_of_sequence: u64 [packets],
        /// NAKs sent, including RNR NAKs
        pub naks_sent: u64 [packets],
        /// NAKs received, including RNR NAKs
        pub naks_received: u64 [packets],
        /// RNR NAKs sent
        pub rnr_naks_sent: u64 [packets],
        /// Request packets retransmitted
        pub retransmitted: u64 [packets],
        /// Acknowledgement timeouts
        pub timeouts: u64 [times],
        /// Queue pairs that failed because a request's retries were exhausted
        pub retries_exceeded: u64 [connections],
        /// Lost responses that a later response revealed
        pub lost_responses: u64 [packets],
        /// Acknowledgements and responses dropped for a reserved AETH syndrome
        pub reserved_syndromes: u64 [packets],
        /// Acknowledgements and responses that match no outstanding request
        pub stale_responses: u64 [packets],
        /// Datagrams and unreliable messages dropped: no receive posted, too long, wrong `Q_Key`, a gap in the
        /// PSNs, or a destination that does not resolve
        pub unreliable_dropped: u64 [packets],
        /// Completions put into completion queues. Some are generated while a packet is sent: UC and UD sends
        /// complete when their last packet leaves
        pub completions: u64,
        /// CNPs sent
        pub cnps_sent: u64 [packets],
        /// CNPs received
        pub cnps_received: u64 [packets],
        /// Packets received with the ECN codepoint CE
        pub ce_marked: u64 [packets],
    }
}
