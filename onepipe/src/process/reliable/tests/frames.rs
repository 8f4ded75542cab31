//! Single frames and calls.

use super::super::super::tests::{TOR, frame, peer};
use super::super::super::{Bug, Peer, Process, ProcessId, Refusal, SendError};
use super::super::{Error, Event, Failed, Failure, Member, MemberError, StoredRecall, ToController};
use crate::header::{OnePipe, OnePipeOpcode, Timestamp};
use crate::reliable::{RecallBody, RecallResult, ReliableAckBody};
use rocev2::{Packet, Psn, Qpn};
use switch::Nanos;
use zerocopy::{FromBytes, IntoBytes};

mod cases;

const GRANT: u32 = 4096;

fn member(id: u8, incarnation: u32) -> Member {
    let qpn = Qpn::new(0x40 + u32::from(id) + 0x100 * (incarnation - 1));
    Member { id: ProcessId(id.into()), incarnation, qpn, grant: GRANT }
}

fn failed(id: u8, case: u64, timestamp: Timestamp) -> Failed {
    Failed { case, process: ProcessId(id.into()), incarnation: 1, timestamp }
}

/// Process 0, whose peers are played by the test.
struct Endpoint {
    process: Process,
    now: Nanos,
}

impl Endpoint {
    /// Creates a process that is not a member.
    fn new(bug: Option<Bug>) -> Self {
        let mut config = super::config(0, 4);
        (config.max_members, config.reliable_buffer, config.bug) = (4, 4 * GRANT as usize, bug);
        let mut process = Process::new(config).unwrap();
        let now = Nanos::from_micros(10);
        process.on_timer(now);
        Self { process, now }
    }

    /// Creates a member, to which its peers have granted windows.
    fn member() -> Self {
        let mut endpoint = Self::new(None);
        let members = [1, 2, 3].map(|id| member(id, 1));
        endpoint.process.join(1, &members, endpoint.now).unwrap();
        endpoint.process.admit(endpoint.time(0), endpoint.now).unwrap();
        assert_eq!(endpoint.events(), [Event::Admitted { incarnation: 1 }]);
        for id in 1..4 {
            endpoint.acknowledge(id, 0, GRANT).unwrap();
        }
        endpoint.sent();
        endpoint
    }

    /// Returns the time of 1Pipe's clock plus some nanoseconds.
    fn time(&self, plus: u64) -> Timestamp {
        super::config(0, 4).clock.add(self.now.0 + plus)
    }

    fn receive(&mut self, from: u8, header: &OnePipe, payload: &[u8]) -> Result<(), Refusal> {
        self.receive_from(peer(false, from), header, payload)
    }

    fn receive_from(&mut self, from: Peer, header: &OnePipe, payload: &[u8]) -> Result<(), Refusal> {
        self.process.on_frame(&frame(from, peer(false, 0), header, payload), self.now)
    }

    fn beacon(&mut self, barrier: Timestamp, commit: Timestamp) -> Result<(), Refusal> {
        let mut header = OnePipe::new(OnePipeOpcode::BEACON, self.time(0), Psn::ZERO);
        header.set_barrier(Some(barrier));
        header.set_commit(Some(commit));
        self.receive(TOR, &header, &[])
    }

    fn data(&mut self, from: u8, psn: u32, time: Timestamp, payload: &[u8]) -> Result<(), Refusal> {
        let mut header = OnePipe::new(OnePipeOpcode::RELIABLE_DATA, time, Psn::new(psn));
        header.set_barrier(None);
        header.set_first(true);
        header.set_end_of_message(true);
        self.receive(from, &header, payload)
    }

    fn acknowledge(&mut self, from: u8, next: u32, window: u32) -> Result<(), Refusal> {
        let next = Psn::new(next);
        let header = OnePipe::new(OnePipeOpcode::RELIABLE_ACK, self.time(0), next.sub(1));
        let mut body = ReliableAckBody::default();
        body.window = window.into();
        body.set_next(next);
        self.receive(from, &header, body.as_bytes())
    }

    fn recall(&mut self, from: u8, psn: u32, time: Timestamp) -> Result<(), Refusal> {
        let psn = Psn::new(psn);
        let header = OnePipe::new(OnePipeOpcode::RECALL, time, psn);
        self.receive(from, &header, RecallBody::recall(psn, psn, true).as_bytes())
    }

    /// Returns what the process sends now: receiver, header, and what is behind it.
    fn sent(&mut self) -> Vec<(u8, OnePipe, Vec<u8>)> {
        let mut frame = Vec::new();
        let mut all = Vec::new();
        while self.process.poll_transmit(self.now, &mut frame) {
            let packet = Packet::parse(&frame).unwrap();
            let (header, rest) = OnePipe::read_from_prefix(packet.payload()).unwrap();
            all.push((packet.ethernet().dst.0[5], header, rest.to_vec()));
        }
        all
    }

    /// Returns what the process sends of this kind.
    fn sent_of(&mut self, opcode: OnePipeOpcode) -> Vec<(u8, OnePipe, Vec<u8>)> {
        self.sent().into_iter().filter(|(_, header, _)| header.opcode() == opcode).collect()
    }

    /// Returns the commit value in the next beacon.
    fn commit(&mut self) -> Option<Timestamp> {
        self.process.beacons.request();
        self.sent_of(OnePipeOpcode::BEACON)[0].1.commit()
    }

    fn send(&mut self, messages: &[(u32, &[u8])]) -> Result<(), Error> {
        let messages: Vec<_> = messages.iter().map(|&(to, text)| (ProcessId(to), text)).collect();
        self.process.reliable_send(self.now, &messages).map(|_| ())
    }

    fn events(&mut self) -> Vec<Event> {
        core::iter::from_fn(|| self.process.poll_reliable_event()).collect()
    }

    fn answers(&mut self) -> Vec<ToController> {
        core::iter::from_fn(|| self.process.poll_to_controller()).collect()
    }
}

#[test]
fn process_that_has_not_joined_refuses_the_service() {
    let mut endpoint = Endpoint::new(None);
    assert_eq!(endpoint.commit(), None, "beacons carry no commit value");
    assert_eq!(endpoint.send(&[(1, b"x")]), Err(Error::NotAdmitted));
    assert_eq!((endpoint.process.recv(), endpoint.process.reliable_recv()), (Err(Error::NotAdmitted), None));
    let time = endpoint.time(0);
    assert_eq!(endpoint.data(1, 0, time, b"x"), Err(Refusal::NotAdmitted));
    for opcode in 5..9 {
        let header = OnePipe::new(OnePipeOpcode(opcode), time, Psn::ZERO);
        assert_eq!(endpoint.receive(1, &header, &[0; 32]), Err(Refusal::NotAdmitted), "opcode {opcode}");
    }
    assert_eq!(endpoint.process.notice_failed(&[failed(1, 0, time)], endpoint.now), Err(MemberError::State));
    assert_eq!(endpoint.process.admit(time, endpoint.now), Err(MemberError::State));
    endpoint.process.join(1, &[member(1, 1)], endpoint.now).unwrap();
    assert_eq!(endpoint.commit(), Some(endpoint.time((1 << 48) - 1)), "it has nothing to decide");
    assert_eq!(endpoint.send(&[(1, b"x")]), Err(Error::NotAdmitted), "it has only joined");
    assert_eq!(endpoint.process.join(1, &[], endpoint.now), Err(MemberError::State));
    endpoint.process.admit(time, endpoint.now).unwrap();
    assert_eq!(endpoint.send(&[(2, b"x")]), Err(Error::NotMember(ProcessId(2))));
    assert_eq!(endpoint.send(&[(9, b"x")]), Err(SendError::Unknown(ProcessId(9)).into()));
    assert_eq!(endpoint.send(&[]), Err(SendError::Empty.into()));
    let too_large = SendError::TooLarge { dst: ProcessId(1), cost: 4900 + 22 * 64, window: GRANT as usize };
    assert_eq!(endpoint.send(&[(1, &[0; 4900])]), Err(too_large.into()));
}

#[test]
fn invalid_shares_of_the_buffer_are_refused_by_name() {
    for (members, buffer, why) in [
        (3, 1 << 20, "max_members = 3 is not more than the 3 peers; set at least 4"),
        (0, 1 << 20, "max_members = 0 is not more than the 3 peers; set at least 4"),
        (4, 4 * 4095, "reliable_buffer / max_members is 4095 bytes; set the two so that it is at least 4096"),
        (4, 4 << 29, "reliable_buffer / max_members is 536870912 bytes; set the two"),
    ] {
        let mut config = super::config(0, 4);
        (config.max_members, config.reliable_buffer) = (members, buffer);
        let mut process = Process::new(config).expect("the best-effort service needs no shares");
        let refused = process.join(1, &[], Nanos::ZERO).unwrap_err();
        assert!(refused.to_string().contains(why), "{refused}");
        assert_eq!(process.recv(), Err(Error::NotAdmitted));
    }
}

#[test]
fn commit_value_waits_for_every_acknowledgement_and_leaves_at_once() {
    let mut endpoint = Endpoint::member();
    endpoint.send(&[(1, b"one"), (2, b"two"), (0, b"own")]).unwrap();
    let sent = endpoint.sent();
    let time = sent[0].1.timestamp();
    assert!(
        sent.iter().all(|(_, header, _)| header.timestamp() == time && header.barrier().is_none()),
        "{sent:?}"
    );
    assert_eq!(sent.iter().map(|(to, ..)| *to).collect::<Vec<_>>(), [1, 2]);
    endpoint.now = endpoint.now + Nanos(1500);
    assert_eq!(endpoint.commit(), Some(time.add((1 << 48) - 1)));
    endpoint.acknowledge(2, 1, GRANT).unwrap();
    assert_eq!(endpoint.commit(), Some(time.add((1 << 48) - 1)), "one receiver is missing");
    endpoint.acknowledge(1, 1, GRANT).unwrap();
    let beacons = endpoint.sent_of(OnePipeOpcode::BEACON);
    assert_eq!(beacons[0].1.commit(), Some(endpoint.time((1 << 48) - 1)), "the beacon leaves at once");
    assert_eq!(endpoint.events(), [], "its own commit barrier has not reached it");
    assert_eq!(endpoint.process.reliable_recv(), None);
    endpoint.beacon(time, time).unwrap();
    assert!(
        matches!(endpoint.events()[..], [Event::Settled { timestamp, failed: 0, .. }] if timestamp == Some(time))
    );
    assert_eq!(endpoint.process.reliable_recv().unwrap().payload, b"own");
    assert_eq!((endpoint.process.unsettled_reliable(), endpoint.process.held_reliable()), (0, 0));
}

#[test]
fn scattering_is_stamped_when_only_its_last_packets_are_left() {
    let mut endpoint = Endpoint::member();
    endpoint.send(&[(1, &[7; 500]), (2, b"two")]).unwrap();
    let sent = endpoint.sent_of(OnePipeOpcode::RELIABLE_DATA);
    assert_eq!(sent.len(), 2, "two of three packets for process 1");
    assert!(sent.iter().all(|(to, header, _)| *to == 1 && header.timestamp_follows()));
    endpoint.acknowledge(1, 1, GRANT).unwrap();
    assert_eq!(endpoint.sent_of(OnePipeOpcode::RELIABLE_DATA).len(), 0, "one is not acknowledged");
    endpoint.acknowledge(1, 2, GRANT).unwrap();
    let last = endpoint.sent_of(OnePipeOpcode::RELIABLE_DATA);
    assert_eq!(last.iter().map(|(to, ..)| *to).collect::<Vec<_>>(), [1, 2]);
    assert!(last.iter().all(|(_, header, _)| !header.timestamp_follows()));
}

#[test]
fn packets_are_repeated_until_they_are_acknowledged() {
    let mut endpoint = Endpoint::member();
    endpoint.send(&[(1, b"one")]).unwrap();
    let first = endpoint.sent_of(OnePipeOpcode::RELIABLE_DATA);
    let mut repeated = 0;
    for _ in 0..20 {
        endpoint.now = endpoint.now + Nanos::from_millis(1);
        endpoint.process.on_timer(endpoint.now);
        for again in endpoint.sent_of(OnePipeOpcode::RELIABLE_DATA) {
            assert_eq!(again, first[0], "the same PSN, timestamp and payload");
            repeated += 1;
        }
    }
    assert!(repeated >= 15, "{repeated}");
    endpoint.acknowledge(1, 1, GRANT).unwrap();
    endpoint.now = endpoint.now + Nanos::from_millis(9);
    endpoint.process.on_timer(endpoint.now);
    assert_eq!(endpoint.sent_of(OnePipeOpcode::RELIABLE_DATA), []);
}

#[test]
fn receiver_without_a_window_is_probed() {
    let mut endpoint = Endpoint::member();
    endpoint.acknowledge(1, 0, GRANT).unwrap();
    endpoint.process.member_up(member(2, 2)).unwrap();
    endpoint.send(&[(2, b"x")]).unwrap();
    let is_probe = |frames: &[(u8, OnePipe, Vec<u8>)]| {
        frames.iter().any(|(to, header, _)| *to == 2 && header.opcode() == OnePipeOpcode::RELIABLE_PROBE)
    };
    assert!(is_probe(&endpoint.sent()), "it has not granted a window");
    endpoint.now = endpoint.now + Nanos::from_millis(2);
    endpoint.process.on_timer(endpoint.now);
    assert!(is_probe(&endpoint.sent()), "the probe or its answer was lost");
    // A probe is answered at once.
    let probe = OnePipe::new(OnePipeOpcode::RELIABLE_PROBE, endpoint.time(0), Psn::ZERO);
    endpoint.receive(1, &probe, &[]).unwrap();
    let answer = endpoint.sent_of(OnePipeOpcode::RELIABLE_ACK);
    let (body, _) = ReliableAckBody::read_from_prefix(&answer[0].2).unwrap();
    assert_eq!((answer[0].0, body.window.get()), (1, GRANT));
}

/// Two services: a best-effort message that arrives between the preparation and the commit of a reliable one.
#[test]
fn best_effort_message_waits_for_an_earlier_reliable_one() {
    for bug in [None, Some(Bug::UnmergedReads)] {
        let mut endpoint = Endpoint::new(bug);
        endpoint.process.join(1, &[1, 2].map(|id| member(id, 1)), endpoint.now).unwrap();
        endpoint.process.admit(endpoint.time(0), endpoint.now).unwrap();
        let (prepared, sent) = (endpoint.time(10), endpoint.time(12));
        endpoint.data(1, 0, prepared, b"reliable").unwrap();
        let mut header = OnePipe::new(OnePipeOpcode::DATA, sent, Psn::ZERO);
        header.set_first(true);
        header.set_end_of_message(true);
        endpoint.receive(2, &header, b"best effort").unwrap();
        endpoint.now = endpoint.now + Nanos(100);
        endpoint.beacon(sent.add(3), prepared.add((1 << 48) - 1)).unwrap();
        let first = endpoint.process.recv().unwrap();
        assert_eq!(first.is_some(), bug.is_some(), "the reliable message is not committed");
        if bug.is_none() {
            endpoint.beacon(sent.add(3), sent).unwrap();
            let next = |endpoint: &mut Endpoint| endpoint.process.recv().unwrap().unwrap().payload;
            assert_eq!(next(&mut endpoint), b"reliable");
            assert_eq!(next(&mut endpoint), b"best effort");
            assert_eq!(endpoint.process.recv(), Ok(None));
        }
    }
}

#[test]
fn receiver_refuses_by_name_what_no_correct_sender_sends() {
    let mut endpoint = Endpoint::member();
    let time = endpoint.time(10);
    assert_eq!(endpoint.data(1, 64, time, b"x"), Err(Refusal::Window), "more packets than were granted");
    for psn in 0..14 {
        assert_eq!(endpoint.data(1, psn, time.add(psn.into()), &[0; 220]), Ok(()));
    }
    assert_eq!(endpoint.data(1, 14, time.add(14), &[0; 220]), Err(Refusal::Window), "more bytes");
    assert_eq!(endpoint.data(1, 3, time.add(3), &[0; 220]), Err(Refusal::Duplicate));
    assert_eq!(endpoint.data(2, 0, endpoint.time(11_000_000), b"x"), Err(Refusal::Ahead));
    endpoint.now = endpoint.now + Nanos(1000);
    endpoint.beacon(time, time).unwrap();
    assert_eq!(endpoint.data(2, 0, time, b"x"), Err(Refusal::BelowCommit));
    assert_eq!(endpoint.data(2, 0, time.add(1), b"x"), Ok(()), "it may lie right above the commit barrier");
    let header = OnePipe::new(OnePipeOpcode::RECALL, time, Psn::new(3));
    assert_eq!(endpoint.receive(1, &header, &[0; 7]), Err(Refusal::NoHeader));
    let backward = RecallBody::recall(Psn::new(4), Psn::new(3), true);
    assert_eq!(endpoint.receive(1, &header, backward.as_bytes()), Err(Refusal::Recall));
    let unknown = OnePipe::new(OnePipeOpcode::RECALL_ACK, time, Psn::new(3));
    let answer = RecallBody::recall(Psn::new(3), Psn::new(3), true).answer(RecallResult::Dropped);
    assert_eq!(endpoint.receive(1, &unknown, answer.as_bytes()), Err(Refusal::Answer), "no recall was sent");
    assert_eq!(endpoint.acknowledge(1, 5, GRANT), Err(Refusal::Answer), "nothing was sent");
    assert_eq!(endpoint.process.held_reliable(), 14 * (220 + 64) + 65);
}

#[test]
fn recalled_message_is_never_delivered_and_every_recall_is_answered() {
    let mut endpoint = Endpoint::member();
    let (kept, recalled, early) = (endpoint.time(10), endpoint.time(20), endpoint.time(30));
    endpoint.data(1, 0, kept, b"kept").unwrap();
    endpoint.data(1, 1, recalled, b"recalled").unwrap();
    let results = |endpoint: &mut Endpoint| {
        let answers = endpoint.sent_of(OnePipeOpcode::RECALL_ACK);
        let result =
            |(_, _, body): &(u8, OnePipe, Vec<u8>)| RecallBody::read_from_prefix(body).unwrap().0.result();
        answers.iter().map(result).collect::<Vec<_>>()
    };
    for (psn, time) in [(1, recalled), (1, recalled), (2, early)] {
        endpoint.recall(1, psn, time).unwrap();
    }
    let [dropped, was_not_there] = [RecallResult::Dropped, RecallResult::WasNotThere].map(Some);
    assert_eq!(results(&mut endpoint), [dropped, was_not_there, was_not_there]);
    assert_eq!(endpoint.data(1, 2, early, b"early"), Err(Refusal::Duplicate), "it arrives after its recall");
    endpoint.now = endpoint.now + Nanos(1000);
    endpoint.beacon(early, early).unwrap();
    assert_eq!(endpoint.process.reliable_recv().unwrap().payload, b"kept");
    assert_eq!((endpoint.process.reliable_recv(), endpoint.process.held_reliable()), (None, 0));
    endpoint.recall(1, 0, kept).unwrap();
    assert_eq!(results(&mut endpoint), [Some(RecallResult::Delivered)]);
}

#[test]
fn failure_of_a_receiver_recalls_what_it_has_not_acknowledged() {
    let mut endpoint = Endpoint::member();
    endpoint.send(&[(1, b"a"), (2, b"b"), (0, b"own")]).unwrap();
    endpoint.send(&[(2, b"c"), (3, b"d")]).unwrap();
    let sent = endpoint.sent_of(OnePipeOpcode::RELIABLE_DATA);
    let time = sent[0].1.timestamp();
    endpoint.acknowledge(2, 2, GRANT).unwrap();
    endpoint.process.notice_failed(&[failed(1, 7, time)], endpoint.now).unwrap();
    let stored = StoredRecall {
        sender: ProcessId(0),
        receiver: ProcessId(1),
        incarnation: 1,
        timestamp: time.nanos(),
        packets: (0, 0),
    };
    assert_eq!(endpoint.answers(), [ToController::StoreRecall(stored), ToController::Noticed { case: 7 }]);
    let recalls = endpoint.sent_of(OnePipeOpcode::RECALL);
    assert_eq!(
        (recalls.len(), recalls[0].0, recalls[0].1.timestamp()),
        (1, 2, time),
        "process 2 has acknowledged"
    );
    assert_eq!(endpoint.acknowledge(1, 1, GRANT), Err(Refusal::OtherIncarnation), "it is too late");
    assert_eq!(endpoint.data(1, 0, time, b"x"), Err(Refusal::OtherIncarnation));
    assert_eq!(endpoint.process.held_reliable(), 0, "its own message is dropped");
    // Neither the answer nor its loss is the end: the recall is repeated.
    endpoint.now = endpoint.now + Nanos::from_millis(1);
    endpoint.process.on_timer(endpoint.now);
    assert_eq!(endpoint.sent_of(OnePipeOpcode::RECALL), recalls);
    let (body, _) = RecallBody::read_from_prefix(&recalls[0].2).unwrap();
    endpoint
        .receive(2, &OnePipe::new(OnePipeOpcode::RECALL_ACK, time, recalls[0].1.psn()), body.as_bytes())
        .unwrap();
    assert_eq!((endpoint.events(), endpoint.commit()), (vec![Event::Stalled], Some(time.add((1 << 48) - 1))));
    assert!(endpoint.process.recall_stored(&stored, endpoint.now));
    assert!(!endpoint.process.recall_stored(&stored, endpoint.now), "it is answered already");
    let reasons = endpoint.events().into_iter().filter_map(|event| match event {
        Event::SendFailed { dst, why, .. } => Some((dst.0, why)),
        _ => None,
    });
    let mut reasons = reasons.collect::<Vec<_>>();
    reasons.sort_by_key(|reason| reason.0);
    assert_eq!(reasons, [(0, Failure::Recalled), (1, Failure::Dead), (2, Failure::Recalled)]);
}

/// What was sent of a scattering that has no timestamp yet is recalled, too: the packets behind it would wait
/// for the missing ones for ever.
#[test]
fn scattering_without_a_timestamp_is_recalled() {
    let mut endpoint = Endpoint::member();
    endpoint.send(&[(1, b"a"), (2, &[7; 500])]).unwrap();
    endpoint.send(&[(2, b"next")]).unwrap();
    assert_eq!(endpoint.sent_of(OnePipeOpcode::RELIABLE_DATA).len(), 2);
    let before = endpoint.commit();
    let notice = failed(1, 0, endpoint.time(0));
    endpoint.process.notice_failed(&[notice], endpoint.now).unwrap();
    assert_eq!(endpoint.answers(), [ToController::Noticed { case: 0 }], "it cannot have the whole run");
    let sent = endpoint.sent();
    let recall = sent.iter().find(|(_, header, _)| header.opcode() == OnePipeOpcode::RECALL).unwrap();
    let (body, _) = RecallBody::read_from_prefix(&recall.2).unwrap();
    assert_eq!((body.packets(), body.is_stamped()), ((Psn::new(0), Psn::new(1)), Some(false)));
    let next = sent.iter().find(|(_, header, _)| header.opcode() == OnePipeOpcode::RELIABLE_DATA).unwrap();
    assert_eq!((next.1.psn(), &next.2[..4]), (Psn::new(2), &b"next"[..]));
    assert_eq!(
        endpoint.commit(),
        before.map(|_| next.1.timestamp().add((1 << 48) - 1)),
        "only that is not decided"
    );
}

#[test]
fn frames_of_an_earlier_incarnation_are_refused() {
    let mut endpoint = Endpoint::member();
    let time = endpoint.time(10);
    endpoint.data(1, 0, time, b"old").unwrap();
    endpoint.process.notice_failed(&[failed(1, 0, time)], endpoint.now).unwrap();
    assert_eq!(
        endpoint.process.member_up(member(1, 1)),
        Err(MemberError::Old { process: ProcessId(1), incarnation: 1 })
    );
    let taken = Member { qpn: peer(false, 1).qpn, ..member(2, 2) };
    assert_eq!(endpoint.process.member_up(taken), Ok(true), "another address");
    assert_eq!(endpoint.process.member_up(member(1, 2)), Ok(true));
    assert_eq!(endpoint.process.member_up(member(1, 2)), Ok(false), "it is known");
    assert_eq!(endpoint.data(1, 0, time.add(5), b"x"), Err(Refusal::UnknownSource));
    let present = Peer { qpn: member(1, 2).qpn, ..peer(false, 1) };
    let mut header = OnePipe::new(OnePipeOpcode::RELIABLE_DATA, time.add(7), Psn::ZERO);
    header.set_first(true);
    assert_eq!(endpoint.receive_from(present, &header, b"new"), Ok(()));
    endpoint.now = endpoint.now + Nanos(1000);
    endpoint.beacon(time.add(9), time.add(9)).unwrap();
    let received: Vec<_> =
        core::iter::from_fn(|| endpoint.process.reliable_recv()).map(|message| message.payload).collect();
    assert_eq!(received, [b"old".to_vec(), b"new".to_vec()], "what is at or below T_P is delivered");
}

#[test]
fn excluded_process_sends_nothing_and_recovers_what_was_committed() {
    let mut endpoint = Endpoint::member();
    let [own, one, two, three] = [5, 10, 20, 30].map(|plus| endpoint.time(plus));
    endpoint.send(&[(1, b"x"), (0, b"own")]).unwrap();
    endpoint.data(1, 0, one, b"one").unwrap();
    endpoint.data(2, 0, two, b"two").unwrap();
    endpoint.data(3, 0, three, b"three").unwrap();
    endpoint.sent();
    endpoint.now = endpoint.now + Nanos(1000);
    assert_eq!(endpoint.process.fence(own.add((1 << 48) - 9)), Some(three));
    assert_eq!(endpoint.send(&[(1, b"x")]), Err(Error::Fenced));
    assert!(matches!(
        endpoint.events()[..],
        [
            Event::SendFailed { why: Failure::Fenced, .. },
            Event::SendFailed { why: Failure::Fenced, .. },
            Event::Settled { failed: 2, .. },
            Event::Fenced { .. },
        ]
    ));
    assert_eq!(endpoint.commit(), None);
    assert_eq!(endpoint.data(1, 1, three, b"x"), Err(Refusal::NotAdmitted));
    endpoint.beacon(three, three).unwrap();
    assert_eq!(endpoint.process.reliable_recv(), None, "commit barriers do not count any more");
    let recalled = StoredRecall {
        sender: ProcessId(1),
        receiver: ProcessId(0),
        incarnation: 1,
        timestamp: one.nanos(),
        packets: (0, 0),
    };
    let own_failure = Failed { timestamp: own.add((1 << 48) - 9), ..failed(0, 4, own) };
    let dead = [failed(3, 5, two), own_failure];
    assert!(endpoint.process.recover(Some(three), &dead, &[recalled], endpoint.now));
    let received: Vec<_> =
        core::iter::from_fn(|| endpoint.process.reliable_recv()).map(|message| message.payload).collect();
    assert_eq!(received, [b"two".to_vec()], "one was recalled, three discarded, as was its own");
    assert_eq!(endpoint.process.held_reliable(), 0);
    let mut member = Endpoint::member();
    assert!(!member.process.recover(Some(three), &[], &[], member.now), "it is not excluded");
}

#[test]
fn commit_barrier_on_hold_does_not_rise() {
    let mut endpoint = Endpoint::member();
    let time = endpoint.time(10);
    endpoint.data(1, 0, time, b"x").unwrap();
    endpoint.now = endpoint.now + Nanos(1000);
    assert_eq!(endpoint.process.hold(true), None);
    endpoint.beacon(time, time).unwrap();
    assert_eq!((endpoint.process.reliable_recv(), endpoint.process.delivered_up_to()), (None, None));
    endpoint.process.hold(false);
    endpoint.beacon(time, time).unwrap();
    assert_eq!(
        (endpoint.process.reliable_recv().is_some(), endpoint.process.delivered_up_to()),
        (true, Some(time))
    );
}

#[test]
fn commit_barrier_that_stands_still_is_reported_once() {
    let mut endpoint = Endpoint::member();
    for _ in 0..100 {
        endpoint.now = endpoint.now + Nanos::from_micros(3);
        endpoint.process.on_timer(endpoint.now);
        endpoint.sent();
    }
    assert_eq!(endpoint.events(), [Event::Stalled]);
    let time = endpoint.time(0);
    endpoint.beacon(time, time).unwrap();
    assert_eq!(endpoint.events(), [Event::Recovered]);
}

#[test]
fn leaving_fails_what_is_not_settled() {
    let mut endpoint = Endpoint::member();
    endpoint.send(&[(1, b"x")]).unwrap();
    endpoint.process.leave();
    assert!(matches!(
        endpoint.events()[..],
        [Event::SendFailed { why: Failure::Left, .. }, Event::Settled { failed: 1, .. }]
    ));
    assert_eq!(endpoint.send(&[(1, b"x")]), Err(SendError::Left.into()));
    assert_eq!(endpoint.commit(), None);
}

#[test]
fn member_that_leaves_fails_nothing() {
    let mut endpoint = Endpoint::member();
    let time = endpoint.time(10);
    endpoint.data(1, 0, time, b"last").unwrap();
    endpoint.send(&[(1, b"x")]).unwrap();
    endpoint.sent();
    let leaving = |endpoint: &mut Endpoint| endpoint.process.member_leaving(ProcessId(1), 1);
    assert_eq!(leaving(&mut endpoint), Ok(false), "a scattering to it is not decided");
    assert_eq!(endpoint.send(&[(1, b"y")]), Err(Error::NotMember(ProcessId(1))));
    endpoint.acknowledge(1, 1, GRANT).unwrap();
    assert_eq!(leaving(&mut endpoint), Ok(true));
    endpoint.process.member_left(ProcessId(1), 1).unwrap();
    assert_eq!(endpoint.data(1, 1, time.add(1), b"x"), Err(Refusal::OtherIncarnation));
    endpoint.now = endpoint.now + Nanos(1000);
    let commit = endpoint.time(0);
    endpoint.beacon(commit, commit).unwrap();
    assert_eq!(endpoint.process.reliable_recv().unwrap().payload, b"last");
    assert!(matches!(endpoint.events()[..], [Event::Settled { failed: 0, .. }]));
    // This process drains in the same way.
    assert!(endpoint.process.drain() && !endpoint.process.drain());
    assert_eq!(endpoint.send(&[(2, b"x")]), Err(SendError::Left.into()));
    assert_eq!(endpoint.data(2, 0, endpoint.time(5), b"x"), Ok(()), "it still receives");
    assert!(endpoint.commit().is_some());
}

#[test]
fn timestamps_are_later_than_the_time_of_admission() {
    let mut endpoint = Endpoint::new(None);
    endpoint.process.join(1, &[member(1, 1)], endpoint.now).unwrap();
    let after = endpoint.time(5_000);
    endpoint.process.admit(after, endpoint.now).unwrap();
    endpoint.acknowledge(1, 0, GRANT).unwrap();
    endpoint.send(&[(1, b"x")]).unwrap();
    let sent = endpoint.sent_of(OnePipeOpcode::RELIABLE_DATA);
    assert!(after.precedes(sent[0].1.timestamp()), "{}", sent[0].1);
}
