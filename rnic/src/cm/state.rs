//! States of a connection.

/// State of a connection (IB 12.9.7, figures 138 and 139).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum State {
    /// Active side: REQ sent.
    ReqSent,
    /// Active side: MRA received for the REQ ("REP Wait").
    MraReqReceived,
    /// Active side: REP received, not confirmed by the owner yet.
    RepReceived,
    /// Active side: REP received, and MRA sent for it.
    MraRepSent,
    /// Passive side: REQ received, not accepted by the owner yet.
    ReqReceived,
    /// Passive side: REQ received, and MRA sent for it.
    MraReqSent,
    /// Passive side: REP sent.
    RepSent,
    /// Passive side: MRA received for the REP.
    MraRepReceived,
    /// The connection is established.
    Established,
    /// DREQ sent.
    DreqSent,
    /// The connection is closed, and remembered for a while.
    TimeWait,
}

impl State {
    /// Every state.
    pub const ALL: [Self; 11] = [
        Self::ReqSent,
        Self::MraReqReceived,
        Self::RepReceived,
        Self::MraRepSent,
        Self::ReqReceived,
        Self::MraReqSent,
        Self::RepSent,
        Self::MraRepReceived,
        Self::Established,
        Self::DreqSent,
        Self::TimeWait,
    ];
}
