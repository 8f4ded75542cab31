//! Findings in words: what happened, and what to try next.

use super::finding::{Detail, Ends, Finding, Kind};
use core::net::IpAddr;
use rocev2::Qpn;

/// A finding in words.
pub(super) struct Words {
    /// What happened, in one line without a full stop
    pub title: String,
    /// Explanation in sentences; says what the capture cannot show
    pub explanation: String,
    /// What to try next
    pub next: &'static str,
}

/// Returns `count` with a noun, in the plural unless it is 1.
pub(super) fn plural(count: u64, noun: &str) -> String {
    if count == 1 { format!("1 {noun}") } else { format!("{count} {noun}s") }
}

/// Returns one end of a connection in words.
pub(super) fn end((address, qpn): (IpAddr, Option<Qpn>)) -> String {
    qpn.map_or_else(|| address.to_string(), |qpn| format!("{address} qp {qpn}"))
}

const CABLES: &str = "compare the drop and error counters of each port on this path (`ethtool -S`, the switch's port and PFC counters); \
     RoCE needs a lossless class or congestion control";
const UNKNOWN_PATH: &str =
    "capture at the responder's port, too: whether the packet arrives there decides which of the two it is";

/// Puts a finding into words.
pub(super) fn words(finding: &Finding) -> Words {
    let (a, b) = hosts(finding.ends);
    let group = [losses, refusals, unanswered, lengths, setup, other];
    let found = group.iter().find_map(|words| words(finding, &a, &b));
    let (title, explanation, next) = found.expect("every kind of finding has words; a test checks it");
    // Parts that say nothing leave spaces.
    let explanation = explanation.split_whitespace().collect::<Vec<_>>().join(" ");
    Words { title, explanation, next }
}

fn hosts(ends: Option<Ends>) -> (String, String) {
    ends.map_or_else(
        || ("one host".into(), "another".into()),
        |ends| (ends.requester.0.to_string(), ends.responder.0.to_string()),
    )
}

type Text = (String, String, &'static str);

/// Returns the PSNs of the first event.
fn first(finding: &Finding) -> String {
    match finding.detail {
        Detail::Psns { from, len: 1 } => format!("The first is PSN {from}."),
        Detail::Psns { from, len } => {
            format!("The first are PSN {from} to {}.", from.add(len.saturating_sub(1)))
        }
        _ => String::new(),
    }
}

fn losses(finding: &Finding, a: &str, b: &str) -> Option<Text> {
    let (count, first) = (finding.count, first(finding));
    Some(match finding.kind {
        Kind::RequestLostBefore => (
            format!("{} lost before the capture point, on the way from {a}", plural(count, "request packet")),
            format!(
                "{a} sent PSNs that did not arrive here, and sent them again after a NAK of {b} or a time-out. {first}"
            ),
            CABLES,
        ),
        Kind::RequestLostBehind => (
            format!("{} lost behind the capture point, on the way to {b}", plural(count, "request packet")),
            format!(
                "The packets were seen here, and {b} reported by a NAK (PSN sequence error) that they did not arrive; each NAK names only the first packet of a loss. {first}"
            ),
            CABLES,
        ),
        Kind::ResponseLostBefore => (
            format!(
                "{} lost before the capture point, on the way from {b}",
                plural(count, "response packet")
            ),
            format!(
                "{b} responded to later requests, but no response to a READ or an atomic before them was seen here. Either the responses were lost between {b} and the capture point, or the capture missed them; a repeated request means that they were lost. {first}"
            ),
            CABLES,
        ),
        Kind::ResponseLostBehind => (
            format!("{} lost behind the capture point, on the way to {a}", plural(count, "response")),
            format!(
                "{a} repeated requests whose response had been seen here. Either the response was lost between the capture point and {a}, or {a}'s ACK time-out is shorter than the round-trip time. {first}"
            ),
            "compare the drop counters of the ports between the capture point and the requester; if there are no drops, raise the requester's ACK time-out (`timeout` of ibv_modify_qp)",
        ),
        Kind::RequestOrResponseLost => (
            format!("{} after a time-out", plural(count, "retransmission")),
            format!(
                "{a} sent packets again without a NAK or a response having been seen here. Either a request was lost between the capture point and {b}, or its response was lost between {b} and the capture point."
            ),
            UNKNOWN_PATH,
        ),
        Kind::EarlyRetransmission => (
            format!("{} of packets that were not lost", plural(count, "retransmission")),
            format!(
                "{a} sent packets again before the responses to the first ones passed here, and {b} responded to each. {a}'s ACK time-out is shorter than the round-trip time, or {b} was slow to respond."
            ),
            "raise the requester's ACK time-out (`timeout` of ibv_modify_qp), or find out what delays the responder (CPU, paused queues)",
        ),
        Kind::Missing => (
            format!("{} missing in the capture", plural(count, "packet")),
            format!(
                "{b} neither acknowledged nor refused them in this capture. Either they were lost between {a} and the capture point, or the capture missed them. {first}"
            ),
            "look at the capture's own drop count (tcpdump prints \"packets dropped by kernel\"), then at the ports between the requester and the capture point",
        ),
        Kind::CaptureLost => (
            format!("{} missed by the capture", plural(count, "packet")),
            format!(
                "{b} acknowledged packets that are not in the capture. Either the capture dropped them, or they took another path. {first}"
            ),
            "enlarge the capture's buffer (`tcpdump -B`), or capture the other link of a bond, too",
        ),
        Kind::DroppedHere => (
            format!("{} dropped by this instance", plural(count, "packet")),
            format!("The instance received the packets and dropped them: {}.", name(finding)),
            "look up the reason in `understudy top --once`, which explains each",
        ),
        _ => return None,
    })
}

/// Returns a detail's name in words.
fn name(finding: &Finding) -> String {
    match finding.detail {
        Detail::Named { name, .. } => name.replace('_', " "),
        _ => "unknown".into(),
    }
}

/// Returns the refused request in words.
fn request(finding: &Finding) -> String {
    let Detail::Refused { psn, opcode, access, code } = finding.detail else { return String::new() };
    let what = match (opcode, access) {
        (Some(opcode), Some(access)) => format!(
            "The request with PSN {psn} is {opcode}, or a later packet of its message: R_Key {:#x}, address {:#x}, {} bytes",
            access.rkey, access.va, access.len
        ),
        (Some(opcode), None) => format!("The request with PSN {psn} is {opcode}"),
        (None, _) => format!("The request with PSN {psn} is not in the capture"),
    };
    format!("{what}. The NAK's code is {code}.")
}

fn refusals(finding: &Finding, a: &str, b: &str) -> Option<Text> {
    let (count, request) = (finding.count, request(finding));
    let naks = |what: &str| format!("{} from {b}: {what}", plural(count, "NAK"));
    Some(match finding.kind {
        Kind::AccessError => (
            naks("remote access error"),
            format!(
                "{b} refused an access to its memory, and the connection is in the error state. {request} Either the key is not valid (any more), or it does not cover the whole range, or it does not permit the operation."
            ),
            "compare address and length with the region registered at the responder, its access flags (IBV_ACCESS_REMOTE_WRITE, _READ, _ATOMIC), and those of its queue pair",
        ),
        Kind::InvalidRequest => (
            naks("invalid request"),
            format!(
                "{b} does not accept the request, and the connection is in the error state. {request} Either the message is longer than the posted receive buffer, or the operation is not enabled at the queue pair, or there are more READs and atomics at once than max_dest_rd_atomic, or an atomic's address is not aligned."
            ),
            "compare the message's length with the responder's receive buffers, and qp_access_flags and max_dest_rd_atomic with the requests",
        ),
        Kind::OperationalError => (
            naks("remote operational error"),
            format!(
                "{b} could not complete the request, and the connection is in the error state. {request} soft-RoCE sends this code also for a message that is longer than its receive buffer."
            ),
            "look at the responder's completions and kernel log; compare the message's length with its receive buffers",
        ),
        Kind::OtherNak => (
            naks("reserved code"),
            format!("The specification does not assign this code. {request}"),
            "look for a firmware update of the responder's NIC",
        ),
        Kind::SequenceError => (
            naks("PSN sequence error"),
            format!(
                "{b} reported missing requests of {a}. The requests are not in the capture, so it does not show where they were lost."
            ),
            "capture both directions",
        ),
        Kind::NakUnheeded => (
            format!("{a} did not repeat what a NAK asked for"),
            format!(
                "{} Either the NAK was lost between the capture point and {a}, or {a} has ended the connection.",
                first(finding)
            ),
            "look at the requester's completions; IBV_WC_RETRY_EXC_ERR means that responses did not reach it",
        ),
        Kind::RnrNak | Kind::RnrExhausted => rnr(finding, a, b),
        _ => return None,
    })
}

fn rnr(finding: &Finding, a: &str, b: &str) -> Text {
    let wait = match finding.detail {
        Detail::Rnr { psn, us } => format!(" The first is for PSN {psn} and asks for a pause of {us} us."),
        _ => String::new(),
    };
    if finding.kind == Kind::RnrExhausted {
        (
            format!("{a} stopped after RNR NAKs"),
            format!(
                "The last RNR NAK of {b} was followed by no further attempt: {a} has probably used up its RNR retries (IBV_WC_RNR_RETRY_EXC_ERR)."
            ),
            "post receive buffers at the responder before the requester sends; `rnr_retry` = 7 retries without limit",
        )
    } else {
        (
            format!("{} (receiver not ready) from {b}", plural(finding.count, "RNR NAK")),
            format!(
                "{b} had no receive buffer for SENDs or WRITEs with immediate; nothing was lost in the network.{wait}"
            ),
            "post more receive buffers at the responder, or post them earlier; a shared receive queue needs a higher limit",
        )
    }
}

fn unanswered(finding: &Finding, a: &str, b: &str) -> Option<Text> {
    let count = finding.count;
    Some(match finding.kind {
        Kind::NoResponse => {
            let explanation = match finding.detail {
                Detail::Time { ns } => format!(
                    "Requests that ask for a response have waited {:.1} s for it when the capture ends.",
                    ns as f64 / 1e9
                ),
                _ => format!(
                    "{a} repeated requests ({}), and no response to this queue pair's requests was seen.",
                    plural(count, "time-out")
                ),
            };
            (
                format!("no response from {b}"),
                format!(
                    "{explanation} Either the queue pair does not exist, is in the error state or expects another address (GID) or VLAN, or the requests do not reach {b}, or the responses do not pass the capture point."
                ),
                "check that the responder's queue pair is in RTS with this peer's QPN and GID (`rdma resource show qp`); compare the GIDs' types and VLANs at both ends (`show_gids`); capture at the responder",
            )
        }
        Kind::MtuBlackHole => {
            let (seen, expected) = mtu(finding);
            (
                format!("packets with {seen} bytes of payload are not acknowledged, shorter ones are"),
                format!(
                    "{a} repeats packets with {seen} bytes without success; the longest that {b} acknowledged have {expected}. Probably a link behind the capture point has a smaller MTU, or {b}'s path MTU is smaller."
                ),
                "compare the MTU of every link on the path with path MTU + 74 bytes (IPv4 58), with `ping -M do -s SIZE`; lower the path MTU of the queue pair",
            )
        }
        Kind::RetransmissionStorm => {
            let Detail::Storm { packets, repeated, retries, most } = finding.detail else { return None };
            (
                format!("{repeated} of {packets} request packets are retransmissions"),
                format!(
                    "{a} went back {}; the most often that it began with the same packet in a row is {most}. Each lost packet makes a go-back-N requester repeat all that it had sent behind it.",
                    plural(retries, "time")
                ),
                "remove the cause (the other findings of this connection); a smaller send queue or congestion control (DCQCN) makes each loss cheaper",
            )
        }
        Kind::OneDirection => (
            format!("no response of {b} is in the capture"),
            format!(
                "There are {} to this queue pair and no response. The requests are not repeated, so {b} probably responds on a path that was not captured; what it acknowledged is not known.",
                plural(count, "request packet")
            ),
            "capture both directions",
        ),
        Kind::Reordered => (
            format!("{} out of order", plural(count, "packet")),
            format!(
                "Packets from {a} were seen behind later ones, and were not sent again. Either the network reorders, or the capture does."
            ),
            "hash flows by their UDP source port rather than by packet; order the capture with `reordercap`",
        ),
        _ => return None,
    })
}

/// Returns the lengths of a detail.
fn mtu(finding: &Finding) -> (u32, u32) {
    match finding.detail {
        Detail::Mtu { seen, expected } => (seen, expected),
        _ => (0, 0),
    }
}

fn lengths(finding: &Finding, a: &str, b: &str) -> Option<Text> {
    let (count, (seen, expected)) = (finding.count, mtu(finding));
    Some(match finding.kind {
        Kind::MtuExceeded => (
            format!("{} of a length that does not match the path MTU", plural(count, "packet")),
            format!(
                "{a} sent a packet with {seen} bytes of payload on a connection with a path MTU of {expected} bytes. First and Middle packets have exactly the path MTU, others at most; {b} refuses anything else."
            ),
            "set the same path MTU (256, 512, 1024, 2048 or 4096) at both queue pairs",
        ),
        Kind::MtuDiffers => (
            format!("the ends use different path MTUs: {seen} and {expected} bytes"),
            format!(
                "{a} sends packets of {seen} bytes, {b} of {expected} bytes. A receiver with the smaller path MTU may refuse the longer packets."
            ),
            "set the same path MTU at both queue pairs",
        ),
        Kind::Fragmented => (
            format!("{} in IP fragments", plural(count, "packet")),
            format!(
                "A router on the way from {a} divided packets that are longer than its link's MTU. RoCEv2 packets are never put together again."
            ),
            "raise the MTU of every link above path MTU + 74 bytes, or lower the path MTU of the queue pairs",
        ),
        Kind::BadIcrc => (
            format!("{} with a wrong ICRC", plural(count, "packet")),
            format!(
                "{b} drops such packets without a NAK. Either they were damaged on the way from {a}, or a device changed them without computing the ICRC again."
            ),
            "look for bad cables and for devices that rewrite IP headers; the ICRC covers addresses, but neither TTL nor DSCP and ECN",
        ),
        Kind::Malformed => (
            format!("{}: {}", plural(count, "malformed packet"), name(finding)),
            format!("{b} drops packets from {a} that break a rule of the format."),
            "`understudy decode FILE` shows what is wrong with each",
        ),
        _ => return None,
    })
}

/// Returns how long and how often a message waited in vain.
fn waited(finding: &Finding) -> String {
    match finding.detail {
        Detail::Time { ns } => {
            format!("It was sent {}, in {:.1} s.", plural(finding.count, "time"), ns as f64 / 1e9)
        }
        _ => String::new(),
    }
}

fn setup(finding: &Finding, a: &str, b: &str) -> Option<Text> {
    let (waited, name) = (waited(finding), name(finding));
    Some(match finding.kind {
        Kind::CmNoReply => (
            format!("no reply of {b} to a connection request (REQ)"),
            format!(
                "{waited} Either the REQ did not reach {b}, or its communication manager does not respond, or its reply did not pass the capture point."
            ),
            "check that rdma_cm is loaded at the server, that its GID is of type RoCE v2 and in the same VLAN, and that no firewall drops UDP port 4791",
        ),
        Kind::CmNoRtu => (
            format!("connection without RTU of {a}"),
            format!(
                "{b} replied (REP), and {a} neither confirmed (RTU) nor used the connection. {waited} Either the REP or the RTU was lost, or the client has ended."
            ),
            "look at the client's log; capture at the client to see whether the REP arrives",
        ),
        Kind::CmRejected => rejected(finding, a, b, &name),
        Kind::CmNoDrep => (
            "disconnection without reply (DREQ without DREP)".into(),
            format!("{waited} Either the other end has ended already, or messages were lost."),
            "nothing, unless queue pairs remain in use at one end (`rdma resource show qp`)",
        ),
        Kind::SidrNoReply => (
            format!("no reply of {b} to the resolution of a service ID (SIDR_REQ)"),
            waited,
            "check that the server listens on this port, with RDMA_PS_UDP",
        ),
        Kind::SidrRejected => (
            format!("{b} refused the resolution of a service ID: {name}"),
            format!("{a} asked for a service that {b} does not offer now."),
            "check that the server listens on this port, with RDMA_PS_UDP",
        ),
        _ => return None,
    })
}

fn rejected(finding: &Finding, a: &str, b: &str, name: &str) -> Text {
    let number = if let Detail::Named { number, .. } = finding.detail { number } else { 0 };
    let (explanation, next) = match number {
        8 => (
            "no application listens for the requested service ID (the port of rdma_cm)",
            "start the server, and compare the port",
        ),
        28 => (
            "the application itself rejected",
            "look at the log of the application; its private data may have a reason",
        ),
        10 => (
            "the queue pair of the request is still in use in an earlier connection",
            "wait for the end of the earlier connection's time-wait state, and end queue pairs with rdma_disconnect",
        ),
        26 => ("the path MTU of the request is not supported", "lower the MTU of the client's interface"),
        12 | 18 => (
            "the request names a GID that the server does not accept",
            "compare the GID index and its type at both ends (`show_gids`)",
        ),
        4 => (
            "the sender of the REJ has waited in vain for a message",
            "look for lost messages of the communication manager",
        ),
        3 | 1 => (
            "the server has no resources for another connection",
            "raise the server's limits: backlog of rdma_listen, queue pairs, memory locks (ulimit -l)",
        ),
        _ => ("see table 111 of the InfiniBand specification", "look at the logs of both applications"),
    };
    (
        format!("connection between {a} and {b} rejected: {name} (reason {number})"),
        format!("The REJ says: {explanation}."),
        next,
    )
}

fn other(finding: &Finding, a: &str, b: &str) -> Option<Text> {
    let count = finding.count;
    Some(match finding.kind {
        Kind::RoceV1 => (
            format!("{} of RoCE version 1", plural(count, "frame")),
            "Frames with EtherType 0x8915 do not pass routers, and a peer with a version 2 GID ignores them. Both ends of a connection need GIDs of the same version.".into(),
            "select a GID index of type RoCE v2 (`show_gids`, `cma_roce_mode`, `-x` of perftest)",
        ),
        Kind::GidMismatch => (
            "a connection request names other GIDs than its addresses".into(),
            format!("The primary path of the REQ from {a} to {b} has a GID that is not the IP address of the packet. The connection's packets will have the addresses of these GIDs."),
            "compare the GID index of the client's port with the address that it should use (`show_gids`)",
        ),
        Kind::GidUnexpected => {
            let peer = match finding.detail {
                Detail::Address { address } => address.to_string(),
                _ => "another host".into(),
            };
            (
                format!("packets to {b} from another address than its peer's"),
                format!("The communication manager connected this queue pair of {b} with {peer}, and {a} sends to it. Responders drop packets from another address than their peer's without a response (soft-RoCE always does): the sender uses another GID index than it announced, or an address translator is in between; or the number is of another connection, whose end the capture does not show."),
                "compare the GID indexes of both ends (`show_gids`), and whether a host has several addresses in this network",
            )
        }
        Kind::CeWithoutCnp => (
            format!("{} with Congestion Experienced, and no CNP from {b}", plural(count, "packet")),
            format!("Switches marked packets from {a}, and {b} sent no congestion notification here within 1 ms. Either {b} does not do so (soft-RoCE does not), or its CNPs take another path or are lost; {a} does not slow down."),
            "enable RoCE congestion control at the receiver for this priority (mlx5: `cma_roce_tos`, ecn/roce_np/enable), and let the network carry CNPs",
        ),
        Kind::CnpWithoutCe => (
            format!("{} from {b}, for packets that are not marked here", plural(count, "CNP")),
            format!("Packets from {a} are marked behind the capture point: a queue between here and {b} is congested, and {a} is asked to slow down."),
            "look at the queues of the switches between the capture point and the responder",
        ),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::diagnose::finding::Severity;

    #[test]
    fn every_kind_has_words() {
        for kind in Kind::ALL {
            let detail = if *kind == Kind::RetransmissionStorm {
                Detail::Storm { packets: 4, repeated: 1, retries: 1, most: 1 }
            } else {
                Detail::None
            };
            let finding = Finding {
                kind: *kind,
                severity: Severity::Error,
                ends: None,
                events: 1,
                count: 2,
                packets: Vec::new(),
                last: None,
                detail,
            };
            let words = words(&finding);
            assert!(!words.title.is_empty() && !words.title.ends_with('.') && !words.next.is_empty());
            assert!(!words.explanation.contains("  "), "{}", words.explanation);
        }
    }
}
