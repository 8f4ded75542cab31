//! Findings: what went wrong on a queue pair, with the packets that show it.

use super::packet::{Access, FlowKey, Sight};
use core::net::IpAddr;
use rocev2::{Opcode, Psn, Qpn};
use std::collections::HashMap;

/// Severity of a finding, the worst first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, serde::Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub(crate) enum Severity {
    /// Data was lost, or an operation or a connection failed
    Error,
    /// Operations take longer than they have to
    Warning,
    /// A property of the capture or of the traffic that explains other findings
    Note,
}

macro_rules! kinds {
    ($($kind:ident $name:literal $severity:ident, $doc:literal;)*) => {
        /// Kind of a finding.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub(crate) enum Kind {
            $(#[doc = $doc] $kind,)*
        }

        impl Kind {
            /// Every kind.
            #[cfg(test)]
            pub(crate) const ALL: &'static [Self] = &[$(Self::$kind,)*];

            /// Returns the name used in JSON.
            pub(crate) const fn name(self) -> &'static str {
                match self { $(Self::$kind => $name,)* }
            }

            pub(crate) const fn severity(self) -> Severity {
                match self { $(Self::$kind => Severity::$severity,)* }
            }
        }
    };
}

kinds! {
    RequestLostBefore "request_lost_before" Error, "Requests lost between requester and capture point";
    RequestLostBehind "request_lost_behind" Error, "Requests lost between capture point and responder";
    ResponseLostBefore "response_lost_before" Error, "Responses lost between responder and capture point";
    ResponseLostBehind "response_lost_behind" Error, "Responses lost between capture point and requester";
    RequestOrResponseLost "request_or_response_lost" Error, "Retransmission after a time-out";
    Missing "missing" Error, "PSNs that are not in the capture, of which no more is known";
    DroppedHere "dropped_here" Error, "Packets that the observed instance dropped";
    NoResponse "no_response" Error, "Requests to which nothing responds";
    MtuBlackHole "mtu_black_hole" Error, "Only long packets are not acknowledged";
    AccessError "access_error" Error, "NAK: remote access error";
    InvalidRequest "invalid_request" Error, "NAK: invalid request";
    OperationalError "operational_error" Error, "NAK: remote operational error";
    OtherNak "other_nak" Error, "NAK with a reserved code";
    SequenceError "sequence_error" Error, "NAK: PSN sequence error, without the requests";
    NakUnheeded "nak_unheeded" Error, "NAK after which nothing was retransmitted";
    RnrExhausted "rnr_exhausted" Error, "RNR NAKs until the requester gave up";
    MtuExceeded "mtu_exceeded" Error, "Payload longer than the path MTU";
    MtuDiffers "mtu_differs" Warning, "The two ends use different path MTUs";
    Fragmented "fragmented" Error, "RoCEv2 packets in IP fragments";
    BadIcrc "bad_icrc" Error, "Wrong ICRC";
    Malformed "malformed" Error, "Packets that break a rule of the format";
    RoceV1 "roce_v1" Warning, "RoCE version 1 packets";
    GidMismatch "gid_mismatch" Warning, "A REQ's GIDs are not the addresses of its packet";
    GidUnexpected "gid_unexpected" Warning, "Packets from an address that is not that of the queue pair's peer";
    CmNoReply "cm_no_reply" Error, "REQ without REP";
    CmNoRtu "cm_no_rtu" Error, "REP without RTU";
    CmRejected "cm_rejected" Error, "REJ";
    CmNoDrep "cm_no_drep" Warning, "DREQ without DREP";
    SidrNoReply "sidr_no_reply" Error, "SIDR_REQ without SIDR_REP";
    SidrRejected "sidr_rejected" Error, "SIDR_REP with an error";
    EarlyRetransmission "early_retransmission" Warning, "Retransmissions of packets that were not lost";
    RnrNak "rnr_nak" Warning, "RNR NAK";
    RetransmissionStorm "retransmission_storm" Warning, "Many packets are sent more than once";
    CeWithoutCnp "ce_without_cnp" Warning, "CE marks to which no CNP responds";
    CnpWithoutCe "cnp_without_ce" Note, "CNPs for packets that are not marked here";
    CaptureLost "capture_lost" Note, "Packets that the capture missed";
    OneDirection "one_direction" Note, "Only requests are in the capture";
    Reordered "reordered" Note, "Packets in another order than they were sent";
}

/// What an event says besides its kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Detail {
    None,
    /// Numbers of the first lost packet and of the packets lost with it
    Psns {
        from: Psn,
        len: u32,
    },
    /// Request that the responder refused
    Refused {
        psn: Psn,
        opcode: Option<Opcode>,
        access: Option<Access>,
        code: u8,
    },
    /// RNR timer in microseconds
    Rnr {
        psn: Psn,
        us: u32,
    },
    /// Packets sent in all, packets sent again, and the most often that one packet was sent again in a row
    Storm {
        packets: u64,
        repeated: u64,
        retries: u64,
        most: u32,
    },
    /// Path MTUs or payload lengths, in bytes
    Mtu {
        seen: u32,
        expected: u32,
    },
    /// A reason, by name
    Named {
        number: u32,
        name: &'static str,
    },
    /// Time in nanoseconds
    Time {
        ns: u64,
    },
    /// Address that was expected
    Address {
        address: IpAddr,
    },
}

/// Something that a tracker noticed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Event {
    pub kind: Kind,
    /// Packets concerned
    pub count: u64,
    /// Packets that show it
    pub sights: [Option<Sight>; 2],
    pub detail: Detail,
}

impl Event {
    pub(crate) fn new(kind: Kind, count: u64, sight: Sight, detail: Detail) -> Self {
        Self { kind, count, sights: [Some(sight), None], detail }
    }

    #[must_use]
    pub(crate) fn and(mut self, sight: Sight) -> Self {
        self.sights[1] = Some(sight);
        self
    }
}

/// The two ends of a connection. A QPN is `None` if the capture does not show it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Ends {
    pub requester: (IpAddr, Option<Qpn>),
    pub responder: (IpAddr, Option<Qpn>),
}

impl Ends {
    pub(crate) fn of(key: FlowKey, requester: Option<Qpn>) -> Self {
        Self { requester: (key.src, requester), responder: (key.dst, Some(key.qpn)) }
    }
}

/// Count of packets that a finding names
pub(crate) const NAMED_PACKETS: usize = 6;
/// Maximum count of findings; further ones are counted
const MAX_FINDINGS: usize = 4096;

/// All events of one kind on one connection.
#[derive(Clone, Debug)]
pub(crate) struct Finding {
    pub kind: Kind,
    pub severity: Severity,
    pub ends: Option<Ends>,
    /// Times that it happened
    pub events: u64,
    /// Packets concerned
    pub count: u64,
    /// First packets that show it
    pub packets: Vec<Sight>,
    /// Last packet that shows it
    pub last: Option<Sight>,
    /// Detail of the first event
    pub detail: Detail,
}

/// Findings of an analysis, in bounded memory.
#[derive(Debug, Default)]
pub(crate) struct Findings {
    by_place: HashMap<(Kind, Option<Ends>), Finding>,
    /// Events that found no room
    pub omitted: u64,
}

impl Findings {
    /// Adds an event at a connection, or at none.
    pub(crate) fn add(&mut self, ends: Option<Ends>, event: Event) {
        let place = (event.kind, ends);
        if self.by_place.len() >= MAX_FINDINGS && !self.by_place.contains_key(&place) {
            self.omitted += 1;
            return;
        }
        let finding = self.by_place.entry(place).or_insert_with(|| Finding {
            kind: event.kind,
            severity: event.kind.severity(),
            ends,
            events: 0,
            count: 0,
            packets: Vec::new(),
            last: None,
            detail: event.detail,
        });
        finding.events += 1;
        finding.count += event.count;
        for sight in event.sights.into_iter().flatten() {
            if finding.packets.len() < NAMED_PACKETS && !finding.packets.contains(&sight) {
                finding.packets.push(sight);
            }
            finding.last = Some(sight);
        }
    }

    /// Returns the findings by severity, then by their first packet. Those of a connection whose requester
    /// became known only later are merged by `requester`.
    pub(crate) fn sorted(self, requester: impl Fn(FlowKey) -> Option<Qpn>) -> Vec<Finding> {
        let mut merged: HashMap<(Kind, Option<Ends>), Finding> = HashMap::new();
        let mut all: Vec<_> = self.by_place.into_values().collect();
        all.sort_by_key(|finding| finding.packets.first().map(|sight| sight.number));
        for mut finding in all {
            if let Some(ends) = &mut finding.ends
                && ends.requester.1.is_none()
                && let Some(qpn) = ends.responder.1
            {
                let key = FlowKey { src: ends.requester.0, dst: ends.responder.0, qpn };
                ends.requester.1 = requester(key);
            }
            match merged.entry((finding.kind, finding.ends)) {
                std::collections::hash_map::Entry::Vacant(entry) => _ = entry.insert(finding),
                std::collections::hash_map::Entry::Occupied(mut entry) => {
                    let first = entry.get_mut();
                    first.events += finding.events;
                    first.count += finding.count;
                    first.packets.extend(finding.packets);
                    first.packets.truncate(NAMED_PACKETS);
                    first.last = finding.last.or(first.last);
                }
            }
        }
        let mut all: Vec<_> = merged.into_values().collect();
        all.sort_by_key(|finding| {
            let first = finding.packets.first().map_or(0, |sight| sight.number);
            // A storm has a cause, which comes first.
            let storm = finding.kind == Kind::RetransmissionStorm;
            (finding.severity, storm, first, finding.kind, finding.ends)
        });
        all
    }
}
