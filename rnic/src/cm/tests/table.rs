//! State transition tables: the effect of each message in each state.

use super::*;
use crate::cm::wire::{self, MessageType};
use rocev2::cm::{Drep, Dreq, Kind, MadHeader, Mra, Rej, Rep, Req, Rtu, emit};
use std::fmt::Write as _;
use zerocopy::{FromZeros, Immutable, IntoBytes};

/// The remote side's ID of the connection, and its queue pair
const REMOTE_ID: u32 = 0x77;
const REMOTE_QP: Qpn = Qpn::new(0x99);
const LOCAL_QP: Qpn = Qpn::new(0x11);

fn mad(kind: Kind, body: &(impl IntoBytes + Immutable)) -> [u8; MAD_LEN] {
    let mut mad = [0; MAD_LEN];
    emit(&MadHeader::new(kind, 5), body, &mut mad);
    mad
}

fn req() -> [u8; MAD_LEN] {
    let mut req = Req::zeroed();
    req.local_comm_id = REMOTE_ID.into();
    req.service_id = SERVICE.into();
    req.set_qpn(REMOTE_QP);
    req.mtu_rnr = 3 << 4;
    req.timeout_retries = 20 << 3;
    req.cm_retries_srq = 15 << 4;
    mad(Kind::Req, &req)
}

fn rep(conn: Conn) -> [u8; MAD_LEN] {
    let mut rep = Rep::zeroed();
    rep.local_comm_id = REMOTE_ID.into();
    rep.remote_comm_id = conn.comm_id().into();
    rep.set_qpn(REMOTE_QP);
    mad(Kind::Rep, &rep)
}

macro_rules! with_ids {
    ($type:ident, $conn:expr) => {{
        let mut message = $type::new_zeroed();
        message.local_comm_id = REMOTE_ID.into();
        message.remote_comm_id = $conn.comm_id().into();
        message
    }};
}

fn mra(conn: Conn, message_type: MessageType) -> [u8; MAD_LEN] {
    let mut mra = with_ids!(Mra, conn);
    mra.acknowledged = (message_type as u8) << 6;
    mra.service_timeout = 20 << 3;
    mad(Kind::Mra, &mra)
}

fn rtu(conn: Conn) -> [u8; MAD_LEN] {
    mad(Kind::Rtu, &with_ids!(Rtu, conn))
}

fn drep(conn: Conn) -> [u8; MAD_LEN] {
    mad(Kind::Drep, &with_ids!(Drep, conn))
}

fn dreq(conn: Conn, qpn: Qpn) -> [u8; MAD_LEN] {
    let mut dreq = with_ids!(Dreq, conn);
    dreq.set_remote_qpn(qpn);
    mad(Kind::Dreq, &dreq)
}

fn rej(conn: Conn, message_type: MessageType, theirs: u32) -> [u8; MAD_LEN] {
    let mut rej = Rej::of_req(theirs, conn.comm_id(), RejReason::CONSUMER);
    rej.rejected = (message_type as u8) << 6;
    mad(Kind::Rej, &rej)
}

/// Returns a connection in this state.
fn at(state: State, active: bool) -> (Cm, Conn) {
    let mut cm = cm(1);
    cm.listen(SERVICE).unwrap();
    let conn = if active {
        cm.connect(&request(LOCAL_QP.get()), T0).unwrap()
    } else {
        cm.on_mad(A_TO_B, &req(), T0);
        event(&mut cm).conn()
    };
    let steps: &[&dyn Fn(&mut Cm)] = if active {
        &[
            &|cm| cm.on_mad(A_TO_B, &mra(conn, MessageType::Req), T0),
            &|cm| cm.on_mad(A_TO_B, &rep(conn), T0),
            &|cm| cm.delay(conn, 20).unwrap(),
            &|cm| cm.confirm(conn, &[]).unwrap(),
            &|cm| cm.disconnect(conn, &[], T0).unwrap(),
            &|cm| cm.on_mad(A_TO_B, &drep(conn), T0),
        ]
    } else {
        &[
            &|cm| cm.delay(conn, 20).unwrap(),
            &|cm| cm.accept(conn, &answer(LOCAL_QP.get()), T0).unwrap(),
            &|cm| cm.on_mad(A_TO_B, &mra(conn, MessageType::Rep), T0),
            &|cm| cm.on_mad(A_TO_B, &rtu(conn), T0),
            &|cm| cm.disconnect(conn, &[], T0).unwrap(),
            &|cm| cm.on_mad(A_TO_B, &drep(conn), T0),
        ]
    };
    for step in steps {
        if cm.state(conn) == Some(state) {
            break;
        }
        step(&mut cm);
    }
    assert_eq!(cm.state(conn), Some(state));
    names(&mut cm);
    events(&mut cm);
    (cm, conn)
}

fn event_name(event: &Event) -> &'static str {
    match event {
        Event::Requested { .. } => "Requested",
        Event::Replied { .. } => "Replied",
        Event::Established { .. } => "Established",
        Event::Rejected { .. } => "Rejected",
        Event::Disconnecting { .. } => "Disconnecting",
        Event::Disconnected { .. } => "Disconnected",
        Event::Unreachable { .. } => "Unreachable",
    }
}

/// A message of the table, with its name.
type Row = (&'static str, fn(Conn) -> [u8; MAD_LEN]);

const MESSAGES: [Row; 13] = [
    ("REQ", |_| req()),
    ("REQ, other PSN", |_| {
        let mut mad = req();
        mad[24 + 46] = 1;
        mad
    }),
    ("MRA of REQ", |conn| mra(conn, MessageType::Req)),
    ("MRA of REP", |conn| mra(conn, MessageType::Rep)),
    ("REJ of REQ", |conn| rej(conn, MessageType::Req, 0)),
    ("REJ of REP", |conn| rej(conn, MessageType::Rep, REMOTE_ID)),
    ("REJ of none", |conn| rej(conn, MessageType::Other, REMOTE_ID)),
    ("REP", rep),
    ("RTU", rtu),
    ("DREQ", |conn| dreq(conn, LOCAL_QP)),
    ("DREQ, other QP", |conn| dreq(conn, Qpn::new(0x12))),
    ("DREP", drep),
    ("LAP", |conn| mad(Kind::Lap, &with_ids!(Rtu, conn))),
];

/// Returns whether the active or the passive side can be in this state.
fn possible(state: State, active: bool) -> bool {
    let passive_only =
        matches!(state, State::ReqReceived | State::MraReqSent | State::RepSent | State::MraRepReceived);
    let active_only =
        matches!(state, State::ReqSent | State::MraReqReceived | State::RepReceived | State::MraRepSent);
    !if active { passive_only } else { active_only }
}

/// Renders the table of effects. Messages without an effect are omitted.
fn table(active: bool) -> String {
    let mut table = String::new();
    for state in State::ALL {
        if !possible(state, active) {
            continue;
        }
        writeln!(table, "{state:?}").unwrap();
        for (name, message) in MESSAGES {
            let (mut cm, conn) = at(state, active);
            cm.on_mad(A_TO_B, &message(conn), T0);
            let (sent, events) = (names(&mut cm), events(&mut cm));
            let events: Vec<_> = events.iter().map(event_name).collect();
            let after = cm.state(conn).unwrap();
            if after == state && sent.is_empty() && events.is_empty() {
                continue;
            }
            let after = if after == state { "=".to_owned() } else { format!("{after:?}") };
            write!(table, "  {name}: {after}").unwrap();
            if !sent.is_empty() {
                write!(table, "; sends {}", sent.join(", ")).unwrap();
            }
            if !events.is_empty() {
                write!(table, "; reports {}", events.join(", ")).unwrap();
            }
            table.push('\n');
        }
    }
    table
}

#[test]
fn messages_to_the_active_side_have_the_effects_in_active_txt() {
    assert_eq!(table(true), include_str!("active.txt"));
}

#[test]
fn messages_to_the_passive_side_have_the_effects_in_passive_txt() {
    assert_eq!(table(false), include_str!("passive.txt"));
}

#[test]
fn calls_fail_by_state_only() {
    for active in [true, false] {
        for state in State::ALL {
            if !possible(state, active) {
                continue;
            }
            let (mut cm, conn) = at(state, active);
            let calls = [
                ("accept", cm.accept(conn, &answer(1), T0)),
                ("confirm", cm.confirm(conn, &[])),
                ("disconnect", cm.disconnect(conn, &[], T0)),
                ("delay", cm.delay(conn, 5)),
            ];
            for (name, result) in calls {
                assert!(!matches!(result, Err(CallError::Unknown | CallError::PrivateData { .. })), "{name}");
            }
        }
    }
}

#[test]
fn spans_are_powers_of_two_times_4096_ns() {
    assert_eq!(wire::span(0), Nanos(4096));
    assert_eq!(wire::span(20), Nanos(4_294_967_296));
    assert_eq!(wire::span(31), Nanos(4096 << 31));
}
