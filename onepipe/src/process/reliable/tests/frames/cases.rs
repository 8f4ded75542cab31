//! Cases: answers to notices, and callbacks.

use super::*;

#[test]
fn a_case_with_several_failed_processes_is_one_notice() {
    let mut endpoint = Endpoint::member();
    endpoint.send(&[(1, b"a"), (2, b"b"), (3, b"c")]).unwrap();
    let time = endpoint.sent_of(OnePipeOpcode::RELIABLE_DATA)[0].1.timestamp();
    endpoint.acknowledge(3, 1, GRANT).unwrap();
    // Process 9 is not in the table of peers.
    let all = [failed(1, 4, time), failed(2, 4, time), failed(9, 4, time)];
    endpoint.process.notice_failed(&all, endpoint.now).unwrap();
    let answers = endpoint.answers();
    let stored = answers.iter().filter_map(|answer| match answer {
        ToController::StoreRecall(recall) => Some(*recall),
        _ => None,
    });
    let mut receivers = stored.collect::<Vec<_>>();
    receivers.sort_unstable();
    receivers.dedup();
    assert_eq!(receivers.iter().map(|recall| recall.receiver.0).collect::<Vec<_>>(), [1, 2]);
    for recall in &receivers {
        assert!(endpoint.process.recall_stored(recall, endpoint.now));
    }
    let recall = endpoint.sent_of(OnePipeOpcode::RECALL);
    let answer = OnePipe::new(OnePipeOpcode::RECALL_ACK, time, recall[0].1.psn());
    assert_eq!((recall.len(), recall[0].0), (1, 3), "process 3 has acknowledged, and has to drop it");
    endpoint.receive(3, &answer, &recall[0].2).unwrap();
    let called = endpoint.events().into_iter().filter_map(|event| match event {
        Event::ProcessFailed(failed) => Some(failed.process.0),
        _ => None,
    });
    assert_eq!(called.collect::<Vec<_>>(), [1, 2, 9]);
    endpoint.answers();
    for id in [2, 9] {
        assert!(endpoint.process.callback_done(4, ProcessId(id)));
    }
    assert_eq!(endpoint.answers(), [], "one callback has not returned");
    assert!(endpoint.process.callback_done(4, ProcessId(1)));
    assert_eq!(endpoint.answers(), [ToController::Completed { case: 4 }]);
}

#[test]
fn notices_are_answered_again_and_callbacks_are_called_once_in_order() {
    let mut endpoint = Endpoint::member();
    endpoint.send(&[(1, b"a"), (2, b"b")]).unwrap();
    let time = endpoint.sent_of(OnePipeOpcode::RELIABLE_DATA)[0].1.timestamp();
    let [first, second] = [failed(1, 1, time), failed(3, 2, time)];
    for failed in [first, second, first] {
        endpoint.process.notice_failed(&[failed], endpoint.now).unwrap();
    }
    let answers = endpoint.answers();
    let noticed = |case| ToController::Noticed { case };
    assert_eq!(answers[1..], [noticed(1), noticed(2), noticed(1)], "case 2 waits for case 1");
    assert_eq!((endpoint.events(), endpoint.process.callback_done(2, ProcessId(3))), (vec![], false));
    // The other receiver fails as well: the controller stores its recall, too.
    endpoint.process.notice_failed(&[failed(2, 3, time)], endpoint.now).unwrap();
    let stored: Vec<_> = answers.iter().copied().chain(endpoint.answers()).collect();
    for message in stored {
        if let ToController::StoreRecall(recall) = message {
            assert!(endpoint.process.recall_stored(&recall, endpoint.now), "{recall:?}");
        }
    }
    let called: Vec<_> = endpoint
        .events()
        .into_iter()
        .filter_map(|event| match event {
            Event::ProcessFailed(failed) => Some(failed.case),
            _ => None,
        })
        .collect();
    assert_eq!(called, [1, 2, 3]);
    endpoint.answers();
    assert!(!endpoint.process.callback_done(1, ProcessId(3)), "another process's");
    let dead = ProcessId(1);
    assert!(endpoint.process.callback_done(1, dead) && !endpoint.process.callback_done(1, dead));
    assert_eq!(endpoint.process.cases_completed(), 1);
    for failed in [first, second] {
        endpoint.process.notice_failed(&[failed], endpoint.now).unwrap();
    }
    let completed = ToController::Completed { case: 1 };
    assert_eq!(endpoint.answers(), [completed, completed, ToController::Recalled { case: 2 }]);
    assert_eq!(endpoint.process.members(), []);
}
