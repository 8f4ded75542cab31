//! A process that has failed and recovers.

use super::*;
use crate::control::{MissedNotice, Recall};
use crate::process::reliable::Failure;

/// Fails a process that holds three messages of process 1 and has sent one. Returns their times.
fn failed_node() -> (Node, [Timestamp; 3]) {
    let mut node = Node::admitted();
    node.send(&[1]);
    let times = [0, 10, 20].map(|plus| node.time(plus));
    for (psn, time) in (0..).zip(times) {
        let header = data(psn, time);
        node.frame((1, qpn_of(1)), QPN, &header, &[psn as u8]).unwrap();
    }
    node.now = node.now + Nanos(1_000);
    node.sent();
    node.give(Message::YouFailed { case: 8, time: node.time(0) }).unwrap();
    (node, times)
}

fn reply(
    page: u16,
    last: bool,
    until: Timestamp,
    notices: Vec<MissedNotice>,
    recalls: Vec<Recall>,
) -> Message {
    Message::RecoverReply { page, last, until: Some(until), notices, recalls }
}

#[test]
fn a_failed_process_recovers_and_joins_again() {
    let (mut node, times) = failed_node();
    let recover = Message::Recover { case_done: 0, held_max: Some(times[2]), barrier: None };
    assert_eq!(node.sent(), [recover.clone()]);
    assert_eq!(node.sent_after(Nanos::from_millis(1)), [recover]);
    assert_eq!(node.member.incarnation(), None);
    let events = node.events();
    assert!(
        events.iter().any(|event| matches!(event, ReliableEvent::SendFailed { why: Failure::Fenced, .. })),
        "{events:?}"
    );
    let notice = MissedNotice { case: 8, failed: vec![failed(1, times[1])] };
    let recall =
        Recall { from: ProcessId(1), incarnation: Incarnation(1), time: Some(times[0]), first: 0, last: 0 };
    let until = node.time(0);
    assert_eq!(
        node.give(reply(0, true, times[1], Vec::new(), Vec::new())),
        Err(Refused::Page),
        "to an earlier request, about less than it holds"
    );
    assert_eq!(
        node.give(reply(1, true, until, Vec::new(), vec![])),
        Err(Refused::Page),
        "the first is missing"
    );
    node.give(reply(0, false, until, vec![notice], Vec::new())).unwrap();
    assert_eq!(node.process.reliable_recv(), None);
    assert_eq!(
        node.give_as(4, INCARNATION, reply(1, true, until, vec![], vec![])),
        Err(Refused::Page),
        "of another reply"
    );
    node.term = 4;
    let notice = MissedNotice { case: 8, failed: vec![failed(1, times[1])] };
    node.give(reply(0, false, until, vec![notice], Vec::new())).unwrap();
    node.give(reply(1, true, until, Vec::new(), vec![recall])).unwrap();
    assert_eq!(node.sent(), [Message::Recovered {}]);
    let sent = node.sent_after(Nanos::from_millis(1));
    assert!(matches!(sent[..], [Message::Register { boot: BOOT, .. }]), "{sent:?}");
    // A late welcome of the failed incarnation, and a new one.
    assert_eq!(node.welcome(INCARNATION, &[]), Err(Refused::OtherIncarnation));
    node.welcome(Incarnation(6), &[announced(2)]).unwrap();
    node.give(Message::Admitted { after: Some(until) }).unwrap();
    let received: Vec<_> = core::iter::from_fn(|| node.process.reliable_recv()).collect();
    let payloads: Vec<_> = received.iter().map(|message| &message.payload[..]).collect();
    assert_eq!(payloads, [[1]], "one was recalled, the last one discarded");
    assert_eq!((node.process.held_reliable(), node.process.members()), (0, vec![ProcessId(2)]));
    assert!(node.events().contains(&ReliableEvent::Admitted { incarnation: 6 }));
    let header = data(3, node.time(0));
    assert_eq!(node.frame((1, qpn_of(1)), QPN, &header, b"x"), Err(Refusal::OtherIncarnation));
}

#[test]
fn a_failed_process_whose_record_is_gone_drops_what_it_holds() {
    let (mut node, _) = failed_node();
    node.sent();
    assert_eq!(node.give(Message::Refused { reason: Reason::Living }), Err(Refused::Unexpected));
    node.give(Message::Refused { reason: Reason::Forgotten }).unwrap();
    assert_eq!(node.member.poll_event(), Some(Event::Refused(Reason::Forgotten)));
    assert_eq!(node.sent(), [Message::Recovered {}]);
    node.welcome(Incarnation(6), &[announced(2)]).unwrap();
    assert_eq!((node.process.reliable_recv(), node.process.held_reliable()), (None, 0));
}

#[test]
fn a_failure_before_the_welcome_is_answered_with_nothing_to_recover() {
    let mut node = Node::new();
    let failed = Message::YouFailed { case: 1, time: node.time(0) };
    assert_eq!(node.give_as(3, Incarnation(0), failed.clone()), Err(Refused::OtherIncarnation));
    node.give_as(3, Incarnation(7), failed).unwrap();
    let envelope = node.member.poll_envelope(&mut node.process, node.now).unwrap();
    assert_eq!(envelope, Envelope { term: 3, incarnation: Incarnation(7), message: Message::Recovered {} });
    assert_eq!(node.member.incarnation(), None);
}
