//! Each message of the protocol, and each message that is refused. The simulation with real controllers is in the
//! crate `controller`.

#![allow(clippy::cloned_ref_to_slice_refs, reason = "expected messages are lists")]

use super::*;
use crate::control::{Peer, Source};
use crate::datagram::Template;
use crate::header::{OnePipe, OnePipeOpcode};
use crate::process::reliable::Event as ReliableEvent;
use crate::process::tests::{TOR, peer};
use crate::process::{Refusal, reliable};
use crate::reliable::ReliableAckBody;
use rocev2::path_headers::{PathHeaderFields, PathHeaders};
use rocev2::{Packet, Psn, Qpn};
use zerocopy::{FromBytes, IntoBytes};

mod leaving;
mod recovery;

const BOOT: Boot = [9; 16];
const INCARNATION: Incarnation = Incarnation(5);
const QPN: Qpn = Qpn::new(0x500);
const GRANT: u32 = 4096;
/// First queue pair of the representative's present incarnation
const SOURCE: Qpn = Qpn::new(0x700);

/// Process 0 and its member; the test plays the controller, the switch and the peers.
struct Node {
    process: Process,
    member: Member,
    now: Nanos,
    term: u64,
}

fn qpn_of(id: u8) -> Qpn {
    Qpn::new(0x600 + u32::from(id))
}

fn announced(id: u8) -> Peer {
    let address = to_wire(peer(false, id).address);
    Peer { id: ProcessId(id.into()), incarnation: Incarnation(1), qpn: qpn_of(id), address }
}

fn failed(id: u32, time: Timestamp) -> control::Failed {
    control::Failed { id: ProcessId(id), incarnation: Incarnation(1), time }
}

impl Node {
    fn new() -> Self {
        Self::with_clock(1 << 40)
    }

    fn with_clock(time: u64) -> Self {
        let mut config = reliable_config();
        config.clock = Timestamp::new(time);
        let mut process = Process::new(config).unwrap();
        let now = Nanos::from_micros(10);
        process.on_timer(now);
        let mut settings = Config::new(BOOT, 77);
        settings.repeat = (Nanos::from_millis(1), Nanos::from_millis(4));
        let member = Member::new(settings, &process).unwrap();
        Self { process, member, now, term: 3 }
    }

    /// Returns a member whose peers 1 and 2 have granted windows.
    fn admitted() -> Self {
        let mut node = Self::new();
        node.welcome(INCARNATION, &[announced(1), announced(2)]).unwrap();
        node.give(Message::Admitted { after: Some(node.time(0)) }).unwrap();
        let source = Source { address: to_wire(peer(false, TOR).address), qpn: SOURCE };
        node.give(Message::Desired { version: 1, held: false, sources: vec![source] }).unwrap();
        for id in [1, 2] {
            node.acknowledge(id, 0).unwrap();
        }
        assert_eq!(node.events(), [ReliableEvent::Admitted { incarnation: INCARNATION.0 }]);
        node.sent();
        node.frames();
        node
    }

    fn time(&self, plus: u64) -> Timestamp {
        Timestamp::new((1 << 40) + self.now.0 + plus)
    }

    fn give_as(&mut self, term: u64, incarnation: Incarnation, message: Message) -> Result<(), Refused> {
        let envelope = Envelope { term, incarnation, message };
        self.member.on_envelope(&envelope, &mut self.process, self.now)
    }

    fn give(&mut self, message: Message) -> Result<(), Refused> {
        self.give_as(self.term, self.member.incarnation, message)
    }

    fn welcome(&mut self, incarnation: Incarnation, members: &[Peer]) -> Result<(), Refused> {
        let message = Message::Welcome { boot: BOOT, incarnation, qpn: QPN, members: members.to_vec() };
        self.give_as(self.term, incarnation, message)
    }

    fn sent(&mut self) -> Vec<Message> {
        let poll = || self.member.poll_envelope(&mut self.process, self.now);
        core::iter::from_fn(poll).map(|envelope| envelope.message).collect()
    }

    /// Returns what is sent after some time, in which nothing is answered.
    fn sent_after(&mut self, time: Nanos) -> Vec<Message> {
        self.now = self.now + time;
        self.member.on_timer(&mut self.process, self.now);
        self.sent()
    }

    fn events(&mut self) -> Vec<ReliableEvent> {
        core::iter::from_fn(|| self.process.poll_reliable_event()).collect()
    }

    /// Returns what the process sends: source and destination queue pair, and the header.
    fn frames(&mut self) -> Vec<(Qpn, Qpn, OnePipe)> {
        let mut frame = Vec::new();
        let mut all = Vec::new();
        while self.process.poll_transmit(self.now, &mut frame) {
            let packet = Packet::parse(&frame).unwrap();
            let header = *OnePipe::of(&packet).unwrap();
            all.push((packet.deth().unwrap().src_qp(), packet.bth().dest_qp(), header));
        }
        all
    }

    fn frame(&mut self, from: (u8, Qpn), to: Qpn, header: &OnePipe, payload: &[u8]) -> Result<(), Refusal> {
        let (src, own) = (peer(false, from.0), peer(false, 0));
        let route = PathHeaders::new(&PathHeaderFields {
            src_mac: src.mac,
            dst_mac: own.mac,
            vlan: None,
            src: src.address,
            dst: own.address,
            traffic_class: 0,
            hop_limit: 1,
            src_port: 0xc000,
        });
        let mut frame = Vec::new();
        Template::new(route.unwrap(), to, OnePipe::QKEY, from.1).emit(&mut frame, header, payload);
        self.process.on_frame(&frame, self.now)
    }

    fn acknowledge(&mut self, from: u8, next: u32) -> Result<(), Refusal> {
        let header = OnePipe::new(OnePipeOpcode::RELIABLE_ACK, self.time(0), Psn::new(next).sub(1));
        let mut body = ReliableAckBody::default();
        body.window = GRANT.into();
        body.set_next(Psn::new(next));
        self.frame((from, qpn_of(from)), QPN, &header, body.as_bytes())
    }

    /// A beacon of the switch arrives.
    fn beacon(&mut self, source: Qpn, commit: Timestamp) -> Result<(), Refusal> {
        let mut header = OnePipe::new(OnePipeOpcode::BEACON, self.time(0), Psn::ZERO);
        header.set_barrier(Some(self.time(0)));
        header.set_commit(Some(commit));
        let own = peer(false, 0).qpn;
        self.frame((TOR, source), own, &header, &[])
    }

    fn send(&mut self, to: &[u32]) -> Timestamp {
        let messages: Vec<_> = to.iter().map(|&id| (ProcessId(id), &b"message"[..])).collect();
        self.process.reliable_send(self.now, &messages).unwrap();
        let data = |(_, _, header): &(Qpn, Qpn, OnePipe)| header.opcode() == OnePipeOpcode::RELIABLE_DATA;
        self.frames().into_iter().find(data).unwrap().2.timestamp()
    }
}

fn data(psn: u32, time: Timestamp) -> OnePipe {
    let mut header = OnePipe::new(OnePipeOpcode::RELIABLE_DATA, time, Psn::new(psn));
    header.set_barrier(None);
    header.set_first(true);
    header.set_end_of_message(true);
    header
}

fn reliable_config() -> crate::process::Config {
    let mut config = crate::process::tests::config(0, 4, false);
    (config.max_members, config.reliable_buffer) = (4, 4 * GRANT as usize);
    config
}

/// A clock in each half of the range: a timestamp of 0 would be ahead of one of them.
#[test]
fn admission_without_earlier_messages_leaves_the_clock() {
    for time in [1 << 40, 3 << 46] {
        let mut node = Node::with_clock(time);
        node.welcome(INCARNATION, &[announced(1)]).unwrap();
        node.give(Message::Admitted { after: None }).unwrap();
        assert_eq!(node.events(), [ReliableEvent::Admitted { incarnation: INCARNATION.0 }]);
        let later = node.process.timestamp(node.now + Nanos::from_micros(5));
        assert!(later.distance(Timestamp::new(time + node.now.0 + 5_000)).abs() < 1_000, "{later}");
    }
}

#[test]
fn register_is_repeated_until_welcome() {
    let mut node = Node::new();
    let address = to_wire(peer(false, 0).address);
    let check = |sent: Vec<Message>, now: Nanos| {
        let [Message::Register { id: ProcessId(0), boot: BOOT, address: from, topology: 77, clock }] =
            sent[..]
        else {
            panic!("{sent:?}");
        };
        let off = clock.map(|clock| clock.distance(Timestamp::new((1 << 40) + now.0)));
        assert!(from == address && off.is_some_and(|off| off.abs() < 1_000), "{off:?}");
    };
    node.member.on_connected(&mut node.process, node.now);
    check(node.sent(), node.now);
    assert_eq!(node.member.next_timer(), node.now + Nanos::from_millis(1));
    assert_eq!(node.sent_after(Nanos(999_999)), []);
    check(node.sent_after(Nanos(1)), node.now);
    check(node.sent_after(Nanos::from_millis(2)), node.now);
    node.member.on_connected(&mut node.process, node.now);
    // Another controller has connected.
    check(node.sent(), node.now);
    let other = Message::Welcome { boot: [8; 16], incarnation: INCARNATION, qpn: QPN, members: Vec::new() };
    assert_eq!(node.give_as(3, INCARNATION, other), Err(Refused::OtherBoot));
    assert_eq!(node.member.incarnation(), None);
    node.welcome(INCARNATION, &[]).unwrap();
    assert_eq!(node.member.incarnation(), Some(5));
    assert!(
        !node.sent_after(Nanos::from_millis(9)).iter().any(|sent| matches!(sent, Message::Register { .. }))
    );
}

#[test]
fn wait_and_refused_are_reported_once_each() {
    let mut node = Node::new();
    let wait = Message::Wait { reason: Reason::Case, of: 2 };
    // Of the incarnation of this process's predecessor.
    for _ in 0..2 {
        node.give_as(3, Incarnation(2), wait.clone()).unwrap();
    }
    node.give_as(3, Incarnation(0), Message::Refused { reason: Reason::OtherTopology }).unwrap();
    let events: Vec<_> = core::iter::from_fn(|| node.member.poll_event()).collect();
    assert_eq!(events, [Event::Waits(Reason::Case, 2), Event::Refused(Reason::OtherTopology)]);
    assert_eq!(node.give_as(2, Incarnation(0), wait), Err(Refused::OldTerm));
}

#[test]
fn reliable_frames_and_beacons_leave_from_the_incarnations_queue_pair() {
    let mut node = Node::admitted();
    node.process.unreliable_send(node.now, &[(ProcessId(1), b"best effort")]).unwrap();
    node.process.reliable_send(node.now, &[(ProcessId(1), b"reliable")]).unwrap();
    node.now = node.now + Nanos::from_micros(3);
    node.process.on_timer(node.now);
    let frames = node.frames();
    let of = |opcode: OnePipeOpcode| {
        let frame = frames.iter().find(|(_, _, header)| header.opcode() == opcode);
        frame.map(|&(from, to, _)| (from, to)).unwrap()
    };
    assert_eq!(of(OnePipeOpcode::DATA), (peer(false, 0).qpn, peer(false, 1).qpn), "needs no controller");
    assert_eq!(of(OnePipeOpcode::RELIABLE_DATA), (QPN, qpn_of(1)));
    assert_eq!(of(OnePipeOpcode::BEACON).0, QPN);
}

#[test]
fn reliable_frames_of_and_to_other_incarnations_are_refused() {
    let mut node = Node::admitted();
    let header = data(0, node.time(0));
    let (own, configured) = (qpn_of(1), peer(false, 1).qpn);
    assert_eq!(node.frame((1, configured), QPN, &header, b"x"), Err(Refusal::UnknownSource));
    assert_eq!(
        node.frame((1, own), peer(false, 0).qpn, &header, b"x"),
        Err(Refusal::OtherIncarnation),
        "to no incarnation"
    );
    assert_eq!(
        node.frame((1, own), Qpn::new(0x4ff), &header, b"x"),
        Err(Refusal::NotOurs),
        "to an earlier one"
    );
    assert_eq!(node.frame((1, own), QPN, &header, b"x"), Ok(()));
    assert_eq!(node.process.held_reliable(), 1 + 64);
    let best_effort = OnePipe::new(OnePipeOpcode::DATA, node.time(0), Psn::ZERO);
    assert_eq!(node.frame((1, own), QPN, &best_effort, b"x"), Err(Refusal::UnknownSource));
}

#[test]
fn other_incarnations_are_refused() {
    let mut node = Node::admitted();
    let ping = Message::Ping { number: 4 };
    assert_eq!(node.give_as(3, Incarnation(4), ping.clone()), Err(Refused::OtherIncarnation));
    assert_eq!(node.give_as(2, INCARNATION, ping.clone()), Err(Refused::OldTerm));
    assert_eq!(node.sent(), []);
    assert_eq!(node.give_as(4, INCARNATION, ping), Ok(()));
    let envelope = node.member.poll_envelope(&mut node.process, node.now).unwrap();
    let expected = Envelope { term: 4, incarnation: INCARNATION, message: Message::Pong { number: 4 } };
    assert_eq!(envelope, expected, "it carries the highest term");
    node.term = 4;
    assert_eq!(
        node.welcome(Incarnation(6), &[]),
        Err(Refused::OtherIncarnation),
        "it has one that has not failed"
    );
    assert_eq!(node.welcome(INCARNATION, &[announced(3)]), Ok(()), "the members of the present one");
    assert_eq!(node.process.members(), [1, 2, 3].map(ProcessId));
    let configure = Message::Configure { version: 9, floors: [None; 2], links: Vec::new() };
    assert_eq!(node.give(configure), Err(Refused::Unexpected), "that is for a representative");
    let counters = node.member.counters();
    assert_eq!((counters.refused(Refused::OldTerm), counters.refused(Refused::OtherIncarnation)), (1, 2));
}

#[test]
fn members_are_accepted_before_they_are_acknowledged() {
    let mut node = Node::admitted();
    let up = |peer: Peer| Message::MemberUp { peer };
    for _ in 0..2 {
        node.give(up(announced(3))).unwrap();
    }
    let ack = Message::MemberAck { id: ProcessId(3), incarnation: Incarnation(1), barrier: None };
    assert_eq!(node.sent(), [ack.clone(), ack]);
    let header = data(0, node.time(0));
    node.frame((3, qpn_of(3)), QPN, &header, b"x").unwrap();
    // Bad ones
    let reports = |node: &mut Node| core::iter::from_fn(|| node.member.poll_event()).collect::<Vec<_>>();
    let unknown = Peer { id: ProcessId(9), ..announced(3) };
    assert_eq!(node.give(up(unknown)), Err(Refused::Member));
    assert_eq!(reports(&mut node), [Event::Member(MemberError::Unknown(ProcessId(9)))]);
    let (registered, configured) = (peer(false, 2).address, peer(false, 3).address);
    let moved = Peer { address: to_wire(registered), incarnation: Incarnation(2), ..announced(3) };
    assert_eq!(node.give(up(moved)), Err(Refused::Member));
    assert_eq!(reports(&mut node), [Event::OtherAddress { process: ProcessId(3), registered, configured }]);
    assert_eq!(node.give(up(announced(0))), Err(Refused::Unexpected), "itself");
    node.give(Message::Notice { case: 1, failed: vec![failed(3, node.time(0))] }).unwrap();
    node.sent();
    assert_eq!(node.give(up(announced(3))), Err(Refused::Member), "a late message: it has failed");
    assert_eq!((node.sent(), reports(&mut node)), (vec![], vec![]));
}

#[test]
fn commit_barriers_count_from_the_named_sources_alone() {
    let mut node = Node::admitted();
    let time = node.time(0);
    node.frame((1, qpn_of(1)), QPN, &data(0, time), b"x").unwrap();
    node.now = node.now + Nanos(100);
    let tor = peer(false, TOR).qpn;
    node.beacon(tor, time).unwrap();
    assert_eq!(node.process.delivered_up_to(), None);
    assert_eq!(node.process.barriers().0, Some(node.time(0)), "the best-effort barrier counts");
    assert_eq!(node.beacon(Qpn::new(0x6ff), time), Err(Refusal::WrongSource));
    node.beacon(SOURCE, time).unwrap();
    assert_eq!(node.process.delivered_up_to(), Some(time));
    assert!(node.process.reliable_recv().is_some());
}

#[test]
fn a_barrier_that_is_held_stands_still() {
    let mut node = Node::admitted();
    let (first, later) = (node.time(0), node.time(50));
    node.now = node.now + Nanos(100);
    node.beacon(SOURCE, first).unwrap();
    let source = Source { address: to_wire(peer(false, TOR).address), qpn: SOURCE };
    let desired = |version, held| Message::Desired { version, held, sources: vec![source.clone()] };
    node.give(desired(7, true)).unwrap();
    // The link is checked at the next tick.
    let ack =
        |version, barrier| Message::DesiredAck { version, barrier: Some(barrier), silent: true, quiet: 1 };
    assert_eq!(node.sent(), [ack(7, first)]);
    node.beacon(SOURCE, later).unwrap();
    assert_eq!(node.process.delivered_up_to(), Some(first));
    assert_eq!(node.give(desired(6, false)), Err(Refused::OldVersion));
    node.give(desired(7, true)).unwrap();
    assert_eq!(node.sent(), [ack(7, first)], "a repeated state is answered again");
    node.give(desired(8, false)).unwrap();
    node.beacon(SOURCE, later).unwrap();
    assert_eq!((node.sent(), node.process.delivered_up_to()), (vec![ack(8, first)], Some(later)));
}

#[test]
fn silence_is_reported_until_it_is_acknowledged() {
    let mut node = Node::admitted();
    let report = |number, silent| Message::Report {
        number,
        links: vec![control::LinkValue { link: 0, caught: true, silent, quiet: silent.into(), raw: None }],
    };
    let reports = |sent: Vec<Message>| {
        sent.into_iter().filter(|sent| matches!(sent, Message::Report { .. })).collect::<Vec<_>>()
    };
    let tick = Nanos(2 * 3_000);
    assert_eq!(reports(node.sent_after(Nanos(0))), [report(1, true)], "it is not heard yet");
    node.give(Message::ReportAck { number: 1 }).unwrap();
    assert_eq!(reports(node.sent_after(tick)), []);
    node.beacon(SOURCE, node.time(0)).unwrap();
    assert_eq!(reports(node.sent_after(tick)), [report(2, false)]);
    node.give(Message::ReportAck { number: 2 }).unwrap();
    // A program that sleeps for long hears nothing then, and counts one tick.
    assert_eq!(reports(node.sent_after(Nanos::from_millis(50))), []);
    for _ in 0..3 {
        assert_eq!(reports(node.sent_after(tick)), []);
    }
    assert_eq!(reports(node.sent_after(tick)), [report(3, true)], "five ticks of two intervals");
    assert_eq!(node.give(Message::ReportAck { number: 2 }), Err(Refused::Unexpected), "of another report");
    assert_eq!(reports(node.sent_after(Nanos::from_millis(1))), [report(3, true)]);
    node.beacon(SOURCE, node.time(0)).unwrap();
    assert_eq!(reports(node.sent_after(tick)), [report(4, false)]);
    node.give(Message::ReportAck { number: 4 }).unwrap();
    for _ in 0..9 {
        node.beacon(SOURCE, node.time(0)).unwrap();
        assert_eq!(reports(node.sent_after(Nanos::from_millis(5))), []);
    }
}

#[test]
fn a_notice_is_answered_step_by_step() {
    let mut node = Node::admitted();
    let time = node.send(&[1, 2]);
    let notice = Message::Notice { case: 4, failed: vec![failed(1, node.time(0))] };
    node.give(notice.clone()).unwrap();
    let recalls = vec![control::StoredRecall {
        to: ProcessId(1),
        incarnation: Incarnation(1),
        time: Some(time),
        first: 0,
        last: 0,
    }];
    let store = Message::StoreRecalls { batch: 1, recalls };
    let noticed = Message::Noticed { case: 4 };
    assert_eq!(node.sent(), [noticed.clone(), store.clone()]);
    let repeated = node.sent_after(Nanos::from_millis(1));
    assert!(repeated.contains(&store) && repeated.contains(&noticed), "{repeated:?}");
    assert_eq!(node.give(Message::RecallsStored { batch: 2 }), Err(Refused::Unexpected));
    node.give(Message::RecallsStored { batch: 1 }).unwrap();
    assert_eq!(node.sent(), [], "process 2 has not answered its recall");
    node.process.on_timer(node.now);
    let recall = node.frames().into_iter().find(|frame| frame.2.opcode() == OnePipeOpcode::RECALL).unwrap().2;
    let body = crate::reliable::RecallBody::recall(Psn::ZERO, Psn::ZERO, true);
    let header = OnePipe::new(OnePipeOpcode::RECALL_ACK, time, recall.psn());
    node.frame((2, qpn_of(2)), QPN, &header, body.as_bytes()).unwrap();
    assert_eq!(node.sent(), [Message::Recalled { case: 4 }]);
    let called =
        |event: &ReliableEvent| matches!(event, ReliableEvent::ProcessFailed(failed) if failed.case == 4);
    assert_eq!(node.events().iter().filter(|event| called(event)).count(), 1);
    node.give(notice.clone()).unwrap();
    assert_eq!(node.sent(), [Message::Recalled { case: 4 }], "the callback has not returned");
    assert!(node.process.callback_done(4, ProcessId(1)));
    let completed = Message::Completed { case: 4 };
    assert_eq!(node.sent(), [completed.clone()]);
    node.give(notice).unwrap();
    assert_eq!(node.sent(), [completed.clone()]);
    let mut times = 0;
    for _ in 0..100 {
        times += node.sent_after(Nanos::from_millis(4)).iter().filter(|&sent| *sent == completed).count();
    }
    assert!((3..10).contains(&times), "repeated {times} times, then on request");
    assert_eq!(node.give(Message::Notice { case: 5, failed: Vec::new() }), Err(Refused::Unexpected));
    let own = control::Failed { id: ProcessId(0), incarnation: INCARNATION, time };
    assert_eq!(node.give(Message::Notice { case: 5, failed: vec![own] }), Err(Refused::Unexpected));
}

#[test]
fn a_member_answers_with_its_clock() {
    let mut node = Node::admitted();
    node.now = node.now + Nanos(7_000);
    node.give(Message::AskClock { number: 5 }).unwrap();
    let sent = node.sent();
    let [Message::Clock { number: 5, clock }] = sent[..] else { panic!("{sent:?}") };
    let now = node.time(0);
    assert!((0..1_000).contains(&clock.distance(now)), "{clock:?} at {now:?}");
}

#[test]
fn progress_names_the_barrier_and_who_does_not_answer() {
    let mut node = Node::admitted();
    let time = node.time(0);
    node.now = node.now + Nanos(100);
    node.beacon(SOURCE, time).unwrap();
    node.give(Message::Progress {}).unwrap();
    assert_eq!(node.sent(), [Message::ProgressReply { barrier: Some(time), waits: Vec::new() }]);
    node.send(&[1]);
    silence(&mut node);
    node.give(Message::Progress {}).unwrap();
    let replies = node.sent();
    let waits = vec![ProcessId(1)];
    assert!(replies.contains(&Message::ProgressReply { barrier: Some(time), waits }), "{replies:?}");
}

/// Lets time-outs pass in which no peer answers.
fn silence(node: &mut Node) {
    for _ in 0..20 {
        node.now = node.now + Nanos::from_micros(500);
        node.process.on_timer(node.now);
        node.frames();
    }
}

fn read(frame: &[u8]) -> OnePipe {
    OnePipe::read_from_prefix(frame).unwrap().0
}

fn forwarded(sent: &[Message]) -> Vec<Vec<u8>> {
    let frames = sent.iter().filter_map(|sent| match sent {
        Message::Forward { to: ProcessId(1), incarnation: Incarnation(1), frames } => Some(frames.clone()),
        _ => None,
    });
    frames.flatten().collect()
}

#[test]
fn frames_for_a_member_that_does_not_answer_are_carried_until_it_answers() {
    let mut node = Node::admitted();
    node.send(&[1, 2]);
    node.acknowledge(2, 1).unwrap();
    assert_eq!(forwarded(&node.sent_after(Nanos::from_millis(1))), Vec::<Vec<u8>>::new());
    silence(&mut node);
    let frames = forwarded(&node.sent_after(Nanos::from_millis(1)));
    assert!(!frames.is_empty() && frames.iter().all(|frame| read(frame).psn() == Psn::ZERO), "{frames:?}");
    // The answer through the controller commits, and frames are still carried.
    let mut body = ReliableAckBody::default();
    body.window = GRANT.into();
    body.set_next(Psn::new(1));
    let ack = OnePipe::new(OnePipeOpcode::RELIABLE_ACK, node.time(0), Psn::ZERO);
    let answer = [ack.as_bytes(), body.as_bytes()].concat();
    let carried = |incarnation, frame: &[u8]| Message::Forwarded {
        from: ProcessId(1),
        incarnation: Incarnation(incarnation),
        frames: vec![frame.to_vec()],
    };
    node.give(carried(2, &answer)).unwrap();
    assert_eq!(node.process.counters().refused(Refusal::OtherIncarnation), 1);
    node.give(carried(1, &answer[..3])).unwrap();
    assert_eq!(node.process.counters().refused(Refusal::NoHeader), 1);
    node.give(carried(1, &answer)).unwrap();
    assert_eq!(node.process.counters().relays_taken.get(), 1);
    node.send(&[1]);
    assert_eq!(forwarded(&node.sent_after(Nanos::ZERO)).len(), 1, "they leave at once");
    // A direct answer ends it.
    node.acknowledge(1, 2).unwrap();
    node.send(&[1]);
    assert_eq!(forwarded(&node.sent_after(Nanos::from_millis(1))).len(), 0);
}

#[test]
fn what_is_carried_is_answered_through_the_controller() {
    let mut node = Node::admitted();
    let frame = [data(0, node.time(0)).as_bytes(), b"x"].concat();
    let message = Message::Forwarded { from: ProcessId(1), incarnation: Incarnation(1), frames: vec![frame] };
    // The last direct frame was long ago.
    node.now = node.now + Nanos::from_millis(9);
    node.give(message.clone()).unwrap();
    assert_eq!(node.process.held_reliable(), 1 + 64);
    let is_ack = |(_, to, header): &(Qpn, Qpn, OnePipe)| {
        (*to, header.opcode()) == (qpn_of(1), OnePipeOpcode::RELIABLE_ACK)
    };
    assert_eq!(node.frames().iter().filter(|frame| is_ack(frame)).count(), 0);
    let frames = forwarded(&node.sent_after(Nanos::from_millis(1)));
    assert_eq!(read(&frames[0]).opcode(), OnePipeOpcode::RELIABLE_ACK);
    assert_eq!(frames.len(), 1);
    node.give(Message::NotMember { id: ProcessId(1), incarnation: Incarnation(1) }).unwrap();
    let unknown = Message::NotMember { id: ProcessId(1), incarnation: Incarnation(2) };
    assert_eq!(node.give(unknown), Err(Refused::Unexpected));
    node.send(&[1]);
    silence(&mut node);
    assert_eq!(
        forwarded(&node.sent_after(Nanos::from_millis(1))).len(),
        0,
        "the controller does not carry them"
    );
}

#[test]
fn a_process_that_has_left_registers_no_more() {
    let mut node = Node::new();
    node.process.leave();
    node.member.on_connected(&mut node.process, node.now);
    assert_eq!(node.sent_after(Nanos::from_millis(9)), []);
    assert_eq!(node.welcome(INCARNATION, &[]), Err(Refused::Member));
}

#[test]
fn invalid_shares_of_the_buffer_are_refused_at_the_start() {
    let mut config = reliable_config();
    config.max_members = 3;
    let process = Process::new(config).unwrap();
    let error = Member::new(Config::new(BOOT, 77), &process).unwrap_err();
    assert!(error.to_string().contains("max_members = 3"), "{error}");
    let mut process = Process::new(reliable_config()).unwrap();
    let twice = [reliable::Member { id: ProcessId(1), incarnation: 1, qpn: qpn_of(1), grant: GRANT }];
    process.join_as(1, QPN, &twice, Nanos(0)).unwrap();
    assert_eq!(process.join_as(2, QPN, &twice, Nanos(0)), Err(MemberError::State), "it has not failed");
}
