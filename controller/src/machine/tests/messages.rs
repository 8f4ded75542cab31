//! Recalls, recovery, forwarding, and messages that are refused.

use super::nodes::NETWORK;
use super::world::{Planted, World};
use crate::machine::{Alarm, Bug, NodeKey};
use crate::record::MemberState;
use onepipe::ProcessId;
use onepipe::control::{Incarnation, Message, Reason, StoredRecall};

fn process(id: u32) -> NodeKey {
    NodeKey::Process(ProcessId(id))
}

fn settled() -> World {
    let mut world = World::new(5, &[2, 1], 1, None);
    world.steps(3_000).expect("no fault");
    world.check_settled().expect("all have joined");
    world
}

fn last(world: &World, id: u32, is: impl Fn(&Message) -> bool) -> Option<&Message> {
    world.inbox.get(&process(id))?.iter().rfind(|message| is(message))
}

#[test]
fn a_failed_process_gets_what_it_has_missed() {
    let mut world = settled();
    world.keeps_memory = true;
    world.fail(1);
    world.steps(1_500).expect("one failure");
    let (incarnation, state) = world.member(1);
    assert_eq!(state, MemberState::Failed);
    let recall = |first| StoredRecall { to: ProcessId(1), incarnation, time: None, first, last: first + 1 };
    world.tell(
        process(2),
        Message::StoreRecalls { batch: 9, recalls: (0..250).map(|n| recall(4 * n)).collect() },
    );
    while last(&world, 2, |message| *message == Message::RecallsStored { batch: 9 }).is_none() {
        world.step().expect("no fault");
        let answer = last(&world, 2, |message| matches!(message, Message::RecallsStored { .. }));
        assert!(answer.is_none() || world.recalls() == 250, "stored before it was acknowledged");
    }
    // It holds a message that no barrier has passed yet.
    let held_max = world.now().add(100_000);
    world.tell(process(1), Message::Recover { case_done: 0, held_max: Some(held_max), barrier: None });
    let is_reply = |message: &Message| matches!(message, Message::RecoverReply { .. });
    world.steps(60).expect("no fault");
    assert_eq!(last(&world, 1, is_reply), None, "before barriers have passed what it holds");
    world.steps(3_000).expect("no fault");
    let Some(Message::RecoverReply { page: 0, last: true, until, notices, recalls }) =
        last(&world, 1, is_reply)
    else {
        panic!("no reply in one page: {:?}", world.inbox[&process(1)].last());
    };
    let until = until.expect("there are members");
    assert!(!until.precedes(held_max), "{until:?} is behind {held_max:?}");
    assert_eq!(notices.iter().map(|notice| notice.case).collect::<Vec<_>>(), [1]);
    assert_eq!(notices[0].failed[0].id, ProcessId(1));
    let expected: Vec<_> = (0..250).map(|n| (2, 4 * n)).collect();
    assert_eq!(recalls.iter().map(|recall| (recall.from.0, recall.first)).collect::<Vec<_>>(), expected);
    // One write does not delete all recalls: the process repeats its message.
    for _ in 0..3 {
        world.tell(process(1), Message::Recovered {});
        world.steps(300).expect("no fault");
    }
    assert_eq!((world.member(1).1, world.recalls()), (MemberState::Gone, 0));
    world.restart(1);
    world.steps(4_000).expect("no fault");
    assert!(world.member(1).0 > incarnation);
    world.check_settled().expect("it has joined again");
}

#[test]
fn processes_are_admitted_after_times_near_the_clock() {
    // Also the first one, when no barrier is known: a timestamp of 0 may lie in the future.
    let world = settled();
    for id in 1..=3 {
        let Some(&Message::Admitted { after }) =
            last(&world, id, |message| matches!(message, Message::Admitted { .. }))
        else {
            panic!("process {id} was not admitted");
        };
        let ahead = after.expect("a time near the clock").distance(world.now());
        assert!((-10_000_000..0).contains(&ahead), "process {id}: {ahead} ns");
    }
}

#[test]
fn a_process_that_has_not_failed_recovers_nothing() {
    let mut world = settled();
    world.tell(process(1), Message::Recover { case_done: 0, held_max: None, barrier: None });
    world.steps(300).expect("no fault");
    let refused = Message::Refused { reason: Reason::Forgotten };
    assert!(last(&world, 1, |message| *message == refused).is_some());
}

#[test]
fn frames_are_carried_to_members_only() {
    let mut world = settled();
    let (sender, receiver) = (world.member(1).0, world.member(3).0);
    let forward =
        |incarnation, len| Message::Forward { to: ProcessId(3), incarnation, frames: vec![vec![7; len]] };
    world.tell(process(1), forward(receiver, 50));
    world.tell(process(1), forward(Incarnation(receiver.0 + 1), 50));
    world.steps(500).expect("no fault");
    let carried = Message::Forwarded { from: ProcessId(1), incarnation: sender, frames: vec![vec![7; 50]] };
    assert!(last(&world, 3, |message| *message == carried).is_some());
    let refused = Message::NotMember { id: ProcessId(3), incarnation: Incarnation(receiver.0 + 1) };
    assert!(last(&world, 1, |message| *message == refused).is_some());
    // Of more than the window only a part is carried, until the receiver answers.
    for _ in 0..6 {
        world.tell(process(1), forward(receiver, 60_000));
    }
    world.steps(2_000).expect("no fault");
    let large = |message: &&Message| matches!(message, Message::Forwarded { frames, .. } if frames[0].len() == 60_000);
    assert_eq!(world.inbox[&process(3)].iter().filter(large).count(), 4);
    assert_eq!(world.cases(), 0, "the receiver has answered");
}

#[test]
fn bad_registrations_are_refused_by_name() {
    let mut world = settled();
    let register = |id, topology| Message::Register {
        id: ProcessId(id),
        boot: [0xee; 16],
        address: [0; 16],
        topology,
        clock: None,
    };
    let rep = |switch| Message::RegisterRep {
        switch,
        seat: 0,
        boot: [0xee; 16],
        address: [0; 16],
        topology: NETWORK + 1,
    };
    world.tell(process(1), register(1, NETWORK));
    world.tell(process(1), register(1, NETWORK + 1));
    world.tell(NodeKey::Rep(0, 0), rep(0));
    assert_eq!(
        world.alarms,
        [
            Alarm::Living(ProcessId(1)),
            Alarm::OtherTopology(process(1)),
            Alarm::OtherTopology(NodeKey::Rep(0, 0)),
        ]
    );
    world.steps(1_000).expect("no fault");
    let refused = |reason| last(&world, 1, |message| *message == Message::Refused { reason }).is_some();
    assert!(refused(Reason::Living) && refused(Reason::OtherTopology));
    world.check_settled().expect("nothing has changed");
}

#[test]
fn a_time_far_ahead_of_the_clock_is_refused() {
    let mut world = settled();
    let Some(Message::Desired { version, .. }) =
        last(&world, 1, |message| matches!(message, Message::Desired { .. }))
    else {
        panic!("process 1 has received no desired state");
    };
    let barrier = Some(world.now().add(3_600_000_000_000));
    let message = Message::DesiredAck { version: *version, barrier, silent: true, quiet: 1 };
    world.tell(process(1), message);
    assert!(matches!(world.alarms[..], [Alarm::Ahead(node, _)] if node == process(1)), "{:?}", world.alarms);
    world.steps(1_000).expect("no fault");
    assert_eq!(world.cases(), 0, "its silence is not believed either");
}

#[test]
fn a_process_that_is_declared_failed_during_a_write_fails_after_it() {
    let mut world = World::new(5, &[2, 2], 1, None);
    world.steps(3_000).expect("no fault");
    world.check_settled().expect("all have joined");
    world.keeps_memory = true;
    world.fail(1);
    let written = (0..3_000).find(|_| {
        world.step().expect("one failure");
        world.is_deciding()
    });
    written.expect("a decision is being written");
    world.fail(2);
    world.steps(6_000).expect("two failures");
    let failed: Vec<_> = world.failures().into_iter().map(|(id, _)| id.0).collect();
    assert_eq!(failed, [1, 2]);
}

/// Returns the numbers of writes for a failure, and of those with recalls, where all members have a recall to store.
fn writes_of_a_failure(seed: u64, planted: Option<Planted>) -> (usize, usize) {
    let mut world = World::new(seed, &[3, 3], 1, planted);
    world.steps(10_000).expect("no fault");
    world.check_settled().expect("all have joined");
    (world.keeps_memory, world.stores_recalls, world.store_takes) = (true, true, 600_000);
    let (all, recalls) = world.writes();
    world.kill_process(1);
    world.steps(12_000).expect("one failure");
    assert_eq!((world.failures().len(), world.recalls()), (1, 5), "each member has stored its recall");
    let after = world.writes();
    (after.0 - all, after.1 - recalls)
}

#[test]
fn recalls_of_several_members_are_stored_in_one_write() {
    let all = |planted| -> Vec<_> { (0..20).map(|seed| writes_of_a_failure(seed, planted)).collect() };
    // The decision, the recalls, the end of the callbacks, the departure of the links. Members that answer later
    // than a write takes need one more.
    let writes = all(None);
    assert!(writes.iter().all(|&(all, recalls)| all == 3 + recalls && recalls <= 3), "{writes:?}");
    let once = |writes: &[(usize, usize)]| writes.iter().filter(|&&writes| writes == (4, 1)).count();
    let one_by_one = all(Some(Planted::Controller(Bug::RecallsOneByOne)));
    assert!(once(&writes) >= 4 && once(&one_by_one) == 0, "{writes:?}, one by one: {one_by_one:?}");
    assert!(one_by_one.iter().any(|&(_, recalls)| recalls > 3), "{one_by_one:?}");
}
