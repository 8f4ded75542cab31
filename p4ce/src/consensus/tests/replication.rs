//! What a leader writes, and what becomes of it when the leader or a follower is gone.

use super::{HEARTBEAT, Net, one_is_behind};
use crate::consensus::follower::{Follower, Stage};
use crate::consensus::{Config, Decided, Layout, ProposeError, SnapshotError, Standing};
use switch::Nanos;

#[test]
fn all_servers_are_told_the_same() {
    let mut net = Net::begun(|_| {});
    net.decide(5, 48);
    net.beats(2);
    let expected: Vec<_> = (0..5).map(|n| Decided::Entry { index: n.into(), value: vec![n; 48] }).collect();
    assert_eq!(net.told, vec![expected; 3]);
}

#[test]
fn an_entry_says_what_was_decided_before_it() {
    // Of one packet, and of three
    for len in [48, 2500] {
        let mut net = Net::begun(|config| config.layout = Layout::new(32, len, 1000));
        net.decide(20, len);
        // No heartbeat has passed.
        assert_eq!([net.told[1].len(), net.told[2].len()], [19, 19], "{len} bytes");
    }
}

#[test]
fn a_value_that_the_leader_alone_holds_is_not_decided() {
    let mut net = Net::begun(|_| {});
    net.away = vec![1, 2];
    net.propose(0, b"a value").unwrap();
    net.beats(5);
    assert_eq!((net.servers[0].decided(), net.told[0].len()), (0, 0));
    // One other is a majority with it.
    net.away = vec![2];
    net.beats(5);
    assert_eq!((net.servers[0].decided(), net.told[0].len(), net.told[1].len()), (1, 1, 1));
}

#[test]
fn a_server_that_is_alone_in_its_group_decides_by_itself() {
    let mut net = Net::new(1, |_| {});
    net.servers[0].bootstrap().unwrap();
    net.beats(40);
    net.propose(0, b"a value").unwrap();
    net.beats(1);
    assert_eq!(net.told[0], [Decided::Entry { index: 0, value: b"a value".to_vec() }]);
    assert_eq!(net.servers[0].holds(&net.nics[0], 0), Some(&b"a value"[..]));
    assert_eq!(net.servers[0].holds(&net.nics[0], 1), None);
}

#[test]
fn no_more_values_are_under_way_than_the_window_allows() {
    let mut net = Net::begun(|config| config.window = 3);
    for round in 0..3 {
        for n in 0..3 {
            assert_eq!(net.propose(0, b"a value"), Ok(3 * round + n));
        }
        assert_eq!(net.propose(0, b"a value"), Err(ProposeError::Busy));
        net.beats(2);
    }
}

#[test]
fn a_value_is_as_long_as_an_entry_can_be() {
    let mut net = Net::begun(|_| {});
    assert_eq!(net.propose(0, &[1; 49]), Err(ProposeError::TooLong));
    assert_eq!(net.propose(0, &[1; 48]), Ok(0));
    assert_eq!(net.propose(1, &[1; 48]), Err(ProposeError::NotLeader));
}

#[test]
fn no_entry_is_written_over_that_a_follower_has_not_taken() {
    let mut net = Net::begun(|config| config.window = 100);
    for round in 0..3 {
        for n in 0..8 {
            assert_eq!(net.propose(0, &[n]), Ok(8 * round + u64::from(n)));
        }
        assert_eq!(net.propose(0, b"a value"), Err(ProposeError::Busy));
        // It is held, and decided, and a heartbeat has to say that it was taken.
        net.deliver_all();
        assert_eq!(net.servers[0].decided(), 8 * round + 8);
        assert_eq!(net.propose(0, b"a value"), Err(ProposeError::Busy));
        net.beats(3);
    }
}

#[test]
fn a_leader_that_a_majority_does_not_follow_takes_no_values_and_gives_up() {
    let mut net = Net::begun(|_| {});
    net.away = vec![1, 2];
    net.beats(14);
    assert!(net.servers[0].leads(), "it waits for them");
    assert_eq!(net.propose(0, b"a value"), Err(ProposeError::Busy));
    net.beats(10);
    assert_eq!(net.propose(0, b"a value"), Err(ProposeError::NotLeader));
    net.away = vec![2];
    net.beats(250);
    assert_eq!(net.propose(0, b"a value"), Ok(0));
    // Long in office, it does not wait.
    net.away = vec![1, 2];
    net.beats(18);
    assert_eq!(net.propose(0, b"a value"), Err(ProposeError::NotLeader));
}

#[test]
fn a_follower_that_lacks_a_snapshot_is_no_part_of_a_majority() {
    let mut net = one_lacks_a_snapshot(|_| {});
    net.away = vec![1];
    net.run_until("alone", |net| !net.servers[0].leads());
}

#[test]
fn an_idle_leader_reads_and_asks_each_server_once_a_heartbeat() {
    let mut net = Net::begun(|_| {});
    net.decide(3, 40);
    net.beats(5);
    // Two READs and two WRITEs, and answers to two READs
    assert_eq!(sent_in(&mut net, 10), 60);
    // Also when it has admitted one of them
    net.restart(2);
    net.beats(60);
    assert_eq!(net.servers[2].standing(), Standing::Member);
    assert_eq!(sent_in(&mut net, 10), 60);
}

/// Returns the number of frames that the first server sends during `beats` heartbeats.
fn sent_in(net: &mut Net, beats: u64) -> u64 {
    let before = net.nics[0].counters().sent;
    net.beats(beats);
    net.nics[0].counters().sent - before
}

#[test]
fn a_leader_asks_a_server_once_until_it_answers() {
    let mut net = Net::begun(|_| {});
    net.away = vec![2];
    net.beats(1);
    // To server 1: READs, WRITEs and answers. To the other one: a READ and a WRITE, six times each
    assert_eq!(sent_in(&mut net, 8), 3 * 8 + 2 * 6);
}

#[test]
fn a_leader_makes_a_server_a_member_by_one_write() {
    let mut net = Net::begun(|_| {});
    net.decide(3, 40);
    net.beats(2);
    net.restart(2);
    net.run_until("up to date", |net| net.told[2].len() == 3);
    // Server 1 confirms when the other one does not hear that it is a member.
    net.away = vec![1];
    net.beats(1);
    net.away = vec![2];
    net.beats(2);
    let admitted = net.servers[0].follower(2, |follower| (follower.admitted, follower.is_member));
    assert_eq!(admitted, Some((true, false)));
    assert_eq!(sent_in(&mut net, 5), 24);
}

/// Restarts server 2, while server 1 hears nothing from each heartbeat on for so long. Returns when server 2 is up to date.
fn one_confirms_late(ack_timeout: u8, deaf: Nanos) -> Net {
    let mut net = Net::begun(|config| config.ack_timeout = ack_timeout);
    net.decide(3, 40);
    net.beats(2);
    net.restart(2);
    net.pass(Nanos::from_micros(90));
    while net.told[2].is_empty() {
        confirm_late(&mut net, deaf);
    }
    assert_eq!(net.servers[2].standing(), Standing::Blank);
    net
}

/// A heartbeat, from shortly before it. What server 1 does not hear is repeated.
fn confirm_late(net: &mut Net, deaf: Nanos) {
    let shortly = Nanos::from_micros(10);
    net.away = vec![1];
    net.pass(shortly + deaf);
    net.away.clear();
    net.pass(HEARTBEAT.since(shortly + deaf));
}

#[test]
fn a_member_that_was_asked_before_a_server_was_up_to_date_does_not_confirm_it() {
    // Requests are repeated after 33, 66 and 98 us.
    let mut net = one_confirms_late(3, Nanos::from_micros(50));
    net.away = vec![1];
    net.beats(1);
    assert!(net.servers[0].leads());
    assert_eq!(net.servers[2].standing(), Standing::Blank);
}

#[test]
fn a_member_that_confirms_later_than_a_heartbeat_admits_a_server() {
    // Requests are repeated after 131 us.
    let deaf = Nanos::from_micros(10);
    let mut net = one_confirms_late(5, deaf);
    for _ in 0..6 {
        confirm_late(&mut net, deaf);
    }
    assert_eq!(net.servers[2].standing(), Standing::Member);
}

#[test]
fn a_server_that_gets_a_snapshot_is_admitted_when_a_member_confirms_after_that() {
    let mut net = one_lacks_a_snapshot(|_| {});
    net.away = vec![2];
    net.beats(30);
    net.away.clear();
    net.restart(2);
    net.beats(40);
    assert!(net.servers[0].wants_snapshot());
    net.away = vec![1];
    net.give_snapshot(b"state").unwrap();
    net.beats(3);
    assert_eq!((net.told[2].len(), net.servers[2].standing()), (1, Standing::Blank));
    net.away.clear();
    net.beats(3);
    assert_eq!(net.servers[2].standing(), Standing::Member);
}

#[test]
fn logs_are_read_again_when_a_permission_is_lost_before_there_is_a_leader() {
    let mut net = Net::new(5, |_| {});
    net.beats(3);
    net.servers[1].bootstrap().unwrap();
    let reading = |net: &Net| -> Vec<u8> {
        let Some(leadership) = &net.servers[0].leadership else { return Vec::new() };
        let reads = |follower: &Follower| matches!(follower.stage, Stage::Reading | Stage::Read);
        (0..).zip(&leadership.followers).filter(|(_, one)| reads(one)).map(|(server, _)| server).collect()
    };
    net.run_until("reading", |net| reading(net).len() == 2);
    let [lost, other] = reading(&net)[..] else { unreachable!() };
    let (server, nic) = (&mut net.servers[0], &mut net.nics[0]);
    let qpn = server.follower(lost, |follower| follower.link.unwrap().qpn).unwrap();
    server.follower_lost(nic, lost, qpn, net.now);
    server.drop_qp(nic, qpn);
    // Until a third one has given permission, nothing is read; the answer to the READ of before comes, and does not count.
    net.away = (1..5).filter(|server| ![lost, other].contains(server)).collect();
    net.deliver_all();
    assert_eq!(net.servers[0].follower(other, |follower| follower.stage), Some(Stage::Granted));
    net.away.clear();
    net.beats(40);
    assert!(net.servers[0].leads());
}

#[test]
fn a_server_that_lacks_entries_gets_them_when_it_is_back() {
    let mut net = Net::begun(|_| {});
    net.away = vec![2];
    net.beats(20);
    net.decide(5, 40);
    assert_eq!((net.told[1].len(), net.told[2].len()), (4, 0));
    net.away.clear();
    net.beats(40);
    assert_eq!(net.told[2], net.told[0]);
}

/// One server of three has not taken what the log holds no more: it needs a snapshot.
fn one_lacks_a_snapshot(tune: impl FnOnce(&mut Config)) -> Net {
    let mut net = Net::begun(tune);
    assert_eq!(net.give_snapshot(b"state"), Err(SnapshotError::NotWanted));
    net.away = vec![2];
    net.beats(20);
    for _ in 0..3 {
        net.decide(5, 40);
        net.beats(3);
    }
    assert!(!net.servers[0].wants_snapshot());
    net.away.clear();
    net.beats(40);
    assert!(net.servers[0].wants_snapshot() && !net.servers[1].wants_snapshot());
    net
}

#[test]
fn a_snapshot_stands_for_the_entries_that_a_log_does_not_hold() {
    let mut net = one_lacks_a_snapshot(|_| {});
    let state: Vec<u8> = (0..1000).map(|at| (at % 251) as u8).collect();
    assert_eq!(net.give_snapshot(&[0; 1001]), Err(SnapshotError::TooLong));
    assert_eq!(net.give_snapshot(&state), Ok(()));
    assert!(!net.servers[0].wants_snapshot());
    net.beats(3);
    assert_eq!(net.told[2], [Decided::Snapshot { next: 15, state }]);
    net.decide(5, 40);
    net.beats(3);
    assert_eq!(net.told[2][1..], net.told[0][15..]);
}

#[test]
fn a_leader_gives_the_snapshot_that_it_has_just_installed() {
    let mut net = one_lacks_a_snapshot(|_| {});
    let taken = net.servers[0].taken;
    net.servers[0].vouched = taken;
    assert_eq!(net.give_snapshot(b"state"), Ok(()));
    net.beats(3);
    assert_eq!(net.told[2], [Decided::Snapshot { next: taken, state: b"state".to_vec() }]);
}

#[test]
fn a_snapshot_of_less_than_the_log_still_holds_is_too_old() {
    let mut net = one_lacks_a_snapshot(|_| {});
    // The application has not taken any entry yet: the first ones have left the log.
    let taken = core::mem::replace(&mut net.servers[0].taken, 6);
    assert_eq!(net.give_snapshot(b"state"), Err(SnapshotError::TooOld));
    assert!(net.servers[0].wants_snapshot(), "of what was decided since");
    // Entries below a snapshot that it has installed are from before that.
    let vouched = core::mem::replace(&mut net.servers[0].vouched, taken);
    net.servers[0].taken = taken - 1;
    assert_eq!(net.give_snapshot(b"state"), Err(SnapshotError::TooOld));
    net.servers[0].vouched = vouched;
    net.servers[0].taken = taken - 8;
    assert_eq!(net.give_snapshot(b"state"), Ok(()));
    net.beats(3);
    assert_eq!(net.told[2].len(), 9);
    assert_eq!(net.told[2][1..], net.told[0][7..]);
}

#[test]
fn a_snapshot_makes_a_server_that_forgot_everything_a_member_too() {
    let mut net = one_lacks_a_snapshot(|_| {});
    assert_eq!(net.give_snapshot(b"state"), Ok(()));
    net.beats(3);
    net.decide(2, 40);
    net.restart(2);
    net.beats(60);
    // The entries behind the snapshot are still there.
    assert!(!net.servers[0].wants_snapshot());
    assert_eq!((net.servers[2].standing(), net.servers[2].waits_for()), (Standing::Member, None));
    assert_eq!(net.told[2].len(), 3);
    assert_eq!(net.told[2][0], Decided::Snapshot { next: 15, state: b"state".to_vec() });
    assert_eq!(net.told[2][1..], net.told[0][15..]);
}

#[test]
fn the_next_server_leads_when_the_first_is_gone_until_it_is_back() {
    let mut net = Net::begun(|_| {});
    net.decide(3, 40);
    net.beats(1);
    let term = net.servers[0].term();
    net.away = vec![0];
    net.beats(100);
    assert!(net.servers[1].leads() && net.servers[1].term() > term);
    assert_eq!([1, 2].map(|at: usize| net.servers[at].leader()), [Some(1); 2]);
    assert_eq!(net.propose(1, b"of the second"), Ok(3));
    net.beats(2);
    net.away.clear();
    net.beats(150);
    assert!(net.servers[0].leads() && !net.servers[1].leads());
    assert_eq!([0, 1, 2].map(|at: usize| net.servers[at].leader()), [Some(0); 3]);
    assert_eq!(net.propose(0, b"of the first"), Ok(4));
    net.beats(2);
    let own = Decided::Entry { index: 3, value: b"of the second".to_vec() };
    assert!(net.told.iter().all(|told| told.len() == 5 && told[3] == own && *told == net.told[0]));
}

#[test]
fn a_new_leader_takes_over_a_log_that_is_full_of_what_is_not_known_to_be_decided() {
    let mut net = Net::begun(|config| config.window = 100);
    for n in 0..8 {
        net.propose(0, &[n]).unwrap();
    }
    net.deliver_all();
    assert_eq!((net.servers[0].decided(), net.told[1].len(), net.told[2].len()), (8, 0, 0));
    net.away = vec![0];
    net.beats(100);
    assert!(net.servers[1].leads());
    assert_eq!((&net.told[1], &net.told[2]), (&net.told[0], &net.told[0]));
}

#[test]
fn a_server_whose_log_cannot_hold_what_it_lacks_does_not_lead_before_it_has_got_it() {
    let mut net = one_is_behind();
    assert!([2, 3, 4].iter().all(|at: &usize| net.told[*at].len() == 9));
    assert!(net.servers[2].wants_snapshot());
    net.servers[2].give_snapshot(&mut net.nics[2], b"state", net.now).unwrap();
    net.beats(3);
    assert_eq!(net.told[1], [Decided::Snapshot { next: 9, state: b"state".to_vec() }]);
    net.beats(100);
    assert_eq!(net.servers[1].standing(), Standing::Member);
    assert!(net.servers[1].leads());
}

#[test]
fn a_follower_that_lacks_a_whole_log_gets_it_at_once() {
    let mut net = Net::begun(|config| config.layout = Layout::new(256, 8, 1000));
    net.decide(240, 8);
    net.beats(2);
    net.restart(2);
    net.run_until("written to", |net| !net.told[2].is_empty());
    net.deliver_all();
    assert!(net.servers[0].leads());
    assert_eq!((net.told[2].len(), &net.told[2]), (240, &net.told[0]));
}

#[test]
fn a_leader_repeats_requests_as_often_as_it_is_told_to() {
    for (retry_count, expected) in [(1, Err(ProposeError::Busy)), (6, Ok(0))] {
        let mut net = Net::begun(|config| config.retry_count = retry_count);
        net.away = vec![1, 2];
        net.beats(8);
        assert_eq!(net.propose(0, b"a value"), expected, "{retry_count} repetitions");
    }
}
