//! What a NIC counts.

/// Counters of a NIC since it was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Counters {
    /// Frames sent
    pub sent: u64,
    /// Frames received
    pub received: u64,
    /// RoCEv2 packets received that do not parse
    pub malformed: u64,
    /// Packets with a wrong ICRC
    pub icrc_errors: u64,
    /// Packets and frames for somebody else
    pub not_for_us: u64,
    /// Packets for no queue pair, or one that does not receive, or from another host than its peer
    pub no_qp: u64,
    /// Requests that came again
    pub duplicates: u64,
    /// Duplicates of READs and atomics that were dropped because they are forgotten
    pub forgotten: u64,
    /// Requests that came too early
    pub out_of_sequence: u64,
    /// NAKs sent, RNR NAKs among them
    pub naks_sent: u64,
    /// NAKs received, RNR NAKs among them
    pub naks_received: u64,
    /// RNR NAKs sent
    pub rnr_naks_sent: u64,
    /// Request packets sent again
    pub retransmitted: u64,
    /// Times an acknowledgement did not come in time
    pub timeouts: u64,
    /// Queue pairs that failed because a request's retries were used up
    pub retries_exceeded: u64,
    /// Responses that were lost, as what followed told
    pub lost_responses: u64,
    /// Acknowledgements and responses with a syndrome that is reserved, dropped
    pub reserved_syndromes: u64,
    /// Acknowledgements and responses that nobody waits for
    pub stale_responses: u64,
    /// Datagrams and unreliable messages dropped: no receive posted, too long, a wrong `Q_Key`, a gap, nobody at the
    /// address that they go to
    pub unreliable_dropped: u64,
    /// Completions put into queues. Some come about while a packet is sent: what UC and UD send is complete when it has
    /// left
    pub completions: u64,
    /// CNPs sent
    pub cnps_sent: u64,
    /// CNPs received
    pub cnps_received: u64,
    /// Packets received with the mark of congestion
    pub ce_marked: u64,
}
