//! Departures of this process and of others.

use super::*;
use crate::control::Message::{Leave, Leaving, LeavingAck, Left, MayLeave};

/// Takes the request that was sent, if any: the number of the answer after which all is delivered.
fn request(sent: Vec<Message>) -> Option<u64> {
    let mut requests = sent.into_iter().filter_map(|message| match message {
        Leave { delivered, .. } => Some(delivered),
        _ => None,
    });
    let first = requests.next();
    assert_eq!(requests.next(), None, "one at a time");
    first
}

#[test]
fn a_process_leaves_when_its_scatterings_are_decided_and_it_has_delivered_all() {
    let mut node = Node::admitted();
    let sent = node.send(&[1]);
    let held = data(0, node.time(100));
    node.frame((2, qpn_of(2)), QPN, &held, b"held").unwrap();
    node.member.leave(&mut node.process, node.now);
    assert_eq!(request(node.sent()), None, "its scattering is not acknowledged");
    let refused = node.process.reliable_send(node.now, &[(ProcessId(1), b"late")]);
    assert_eq!(refused, Err(reliable::Error::Send(crate::process::SendError::Left)));
    node.acknowledge(1, 1).unwrap();
    node.beacon(SOURCE, sent).unwrap();
    assert_eq!(request(node.sent_after(Nanos::from_millis(1))), Some(0));
    assert_eq!(request(node.sent_after(Nanos::from_millis(2))), Some(0), "repeated");
    node.give(MayLeave { number: 7 }).unwrap();
    assert_eq!(request(node.sent_after(Nanos::from_millis(1))), Some(0), "it holds a message");
    node.beacon(SOURCE, node.time(0)).unwrap();
    assert_eq!(request(node.sent_after(Nanos::from_millis(2))), Some(7));
    node.give(MayLeave { number: 9 }).unwrap();
    assert_eq!(request(node.sent()), Some(9), "a leader that has asked all again");
    assert!(!node.member.has_left());
    let of_another = Left { id: ProcessId(0), incarnation: Incarnation(4) };
    assert_eq!(node.give(of_another), Err(Refused::Unexpected));
    node.give(Left { id: ProcessId(0), incarnation: INCARNATION }).unwrap();
    assert!(node.member.has_left() && !node.member.may_end(&node.process), "a message is not received");
    assert_eq!(node.process.reliable_recv().map(|message| message.payload), Some(b"held".to_vec()));
    assert!(node.member.may_end(&node.process));
    assert_eq!(node.sent_after(Nanos::from_millis(9)), []);
    assert_eq!(node.give(Message::Ping { number: 1 }), Err(Refused::Unexpected));
}

#[test]
fn a_process_that_is_no_member_leaves_at_once() {
    let mut node = Node::new();
    node.member.leave(&mut node.process, node.now);
    assert!(node.member.has_left(), "no controller is connected");
    assert_eq!(node.welcome(INCARNATION, &[]), Err(Refused::Unexpected));
    let mut node = Node::admitted();
    node.member.leave(&mut node.process, node.now);
    node.give(Message::YouFailed { case: 3, time: node.time(0) }).unwrap();
    assert!(node.member.has_left(), "it does not join again");
}

#[test]
fn a_process_that_has_asked_to_join_waits_for_the_answer() {
    for answer in [Message::Wait { reason: Reason::Case, of: 2 }, Message::Refused { reason: Reason::Living }]
    {
        let mut node = Node::new();
        node.member.on_connected(&mut node.process, node.now);
        node.member.leave(&mut node.process, node.now);
        node.sent();
        assert!(!node.member.has_left());
        let sent = node.sent_after(Nanos::from_millis(9));
        assert!(matches!(sent[..], [Message::Register { .. }]), "it may have been granted: {sent:?}");
        node.give_as(3, Incarnation(0), answer).unwrap();
        assert!(node.member.has_left());
    }
    let mut node = Node::new();
    node.member.on_connected(&mut node.process, node.now);
    node.member.leave(&mut node.process, node.now);
    node.welcome(INCARNATION, &[announced(1)]).unwrap();
    assert!(!node.member.has_left());
    assert_eq!(request(node.sent_after(Nanos::from_millis(1))), Some(0), "others know it");
    node.give(Message::Admitted { after: None }).unwrap();
    assert_eq!(node.events(), [], "it does not send");
}

#[test]
fn callbacks_of_a_process_that_leaves_count_as_returned() {
    let mut node = Node::admitted();
    node.give(Message::Notice { case: 3, failed: vec![failed(1, node.time(0))] }).unwrap();
    assert!(!node.sent().contains(&Message::Completed { case: 3 }));
    node.member.leave(&mut node.process, node.now);
    assert!(node.sent().contains(&Message::Completed { case: 3 }));
    node.give(Message::Notice { case: 4, failed: vec![failed(2, node.time(0))] }).unwrap();
    assert!(node.sent().contains(&Message::Completed { case: 4 }));
}

#[test]
fn a_member_that_leaves_is_acknowledged_when_all_to_it_is_decided() {
    let mut node = Node::admitted();
    node.send(&[1, 2]);
    let (id, incarnation) = (ProcessId(1), Incarnation(1));
    let ack = LeavingAck { id, incarnation };
    node.give(Leaving { id, incarnation }).unwrap();
    node.acknowledge(1, 1).unwrap();
    assert!(!node.sent_after(Nanos::from_millis(1)).contains(&ack), "process 2 may yet fail");
    assert_eq!(node.process.members(), [ProcessId(2)]);
    let refused = node.process.reliable_send(node.now, &[(id, b"late")]);
    assert_eq!(refused, Err(reliable::Error::NotMember(id)));
    node.acknowledge(2, 1).unwrap();
    assert!(node.sent_after(Nanos::from_millis(1)).contains(&ack));
    node.give(Leaving { id, incarnation }).unwrap();
    assert_eq!(node.sent(), [ack], "the request is repeated");
    // What it has sent is delivered, also after it has left.
    let message = data(0, node.time(100));
    node.frame((1, qpn_of(1)), QPN, &message, b"last").unwrap();
    node.give(Left { id, incarnation }).unwrap();
    node.now = node.now + Nanos(1_000);
    node.beacon(SOURCE, node.time(0)).unwrap();
    assert_eq!(node.process.reliable_recv().map(|message| message.payload), Some(b"last".to_vec()));
    let late = Message::MemberUp { peer: announced(1) };
    assert_eq!(node.give(late), Err(Refused::Member), "this incarnation has left");
    let next = Peer { incarnation: Incarnation(2), ..announced(1) };
    node.give(Message::MemberUp { peer: next }).unwrap();
    assert_eq!(node.process.members(), [1, 2].map(ProcessId));
    let own = Leaving { id: ProcessId(0), incarnation: INCARNATION };
    assert_eq!(node.give(own), Err(Refused::Unexpected));
    assert_eq!(node.give(MayLeave { number: 1 }), Err(Refused::Unexpected), "it does not leave");
}
