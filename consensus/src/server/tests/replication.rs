//! Replication by a leader, with loss of the leader or of a follower.

use super::{HEARTBEAT, Net, one_is_behind};
use crate::follower::{Follower, Stage};
use crate::{Config, Decided, Layout, Membership, ProposeError, SnapshotError};
use switch::Nanos;

#[test]
fn all_servers_deliver_the_same_entries() {
    let mut net = Net::begun(|_| {});
    net.propose_and_decide(5, 48);
    net.run_heartbeats(2);
    let expected: Vec<_> = (0..5).map(|n| Decided::Entry { index: n.into(), value: vec![n; 48] }).collect();
    assert_eq!(net.delivered, vec![expected; 3]);
}

#[test]
fn an_entry_carries_the_number_decided_before_it() {
    // Of one packet, and of three
    for len in [48, 2500] {
        let mut net = Net::begun(|config| config.layout = Layout::new(32, len, 1000));
        net.propose_and_decide(20, len);
        // No heartbeat has passed.
        assert_eq!([net.delivered[1].len(), net.delivered[2].len()], [19, 19], "{len} bytes");
    }
}

#[test]
fn a_value_held_by_the_leader_alone_is_not_decided() {
    let mut net = Net::begun(|_| {});
    net.partitioned = vec![1, 2];
    net.propose(0, b"a value").unwrap();
    net.run_heartbeats(5);
    assert_eq!((net.servers[0].decided(), net.delivered[0].len()), (0, 0));
    // One other server is a majority together with the leader.
    net.partitioned = vec![2];
    net.run_heartbeats(5);
    assert_eq!((net.servers[0].decided(), net.delivered[0].len(), net.delivered[1].len()), (1, 1, 1));
}

#[test]
fn the_only_server_of_a_group_decides_alone() {
    let mut net = Net::new(1, |_| {});
    net.servers[0].bootstrap().unwrap();
    net.run_heartbeats(40);
    net.propose(0, b"a value").unwrap();
    net.run_heartbeats(1);
    assert_eq!(net.delivered[0], [Decided::Entry { index: 0, value: b"a value".to_vec() }]);
    assert_eq!(net.servers[0].entry_value(&net.nics[0], 0), Some(&b"a value"[..]));
    assert_eq!(net.servers[0].entry_value(&net.nics[0], 1), None);
}

#[test]
fn proposals_are_limited_by_the_window() {
    let mut net = Net::begun(|config| config.window = 3);
    for round in 0..3 {
        for n in 0..3 {
            assert_eq!(net.propose(0, b"a value"), Ok(3 * round + n));
        }
        assert_eq!(net.propose(0, b"a value"), Err(ProposeError::Busy));
        net.run_heartbeats(2);
    }
}

#[test]
fn the_length_of_a_value_is_limited() {
    let mut net = Net::begun(|_| {});
    assert_eq!(net.propose(0, &[1; 49]), Err(ProposeError::TooLong));
    assert_eq!(net.propose(0, &[1; 48]), Ok(0));
    assert_eq!(net.propose(1, &[1; 48]), Err(ProposeError::NotLeader));
}

#[test]
fn no_entry_is_overwritten_before_all_followers_have_applied_it() {
    let mut net = Net::begun(|config| config.window = 100);
    for round in 0..3 {
        for n in 0..8 {
            assert_eq!(net.propose(0, &[n]), Ok(8 * round + u64::from(n)));
        }
        assert_eq!(net.propose(0, b"a value"), Err(ProposeError::Busy));
        // The entries are held and decided, but a heartbeat has to report that they were applied.
        net.deliver_all();
        assert_eq!(net.servers[0].decided(), 8 * round + 8);
        assert_eq!(net.propose(0, b"a value"), Err(ProposeError::Busy));
        net.run_heartbeats(3);
    }
}

#[test]
fn a_leader_without_a_majority_takes_no_values_and_gives_up() {
    let mut net = Net::begun(|_| {});
    net.partitioned = vec![1, 2];
    net.run_heartbeats(14);
    assert!(net.servers[0].is_leader(), "it waits for the followers");
    assert_eq!(net.propose(0, b"a value"), Err(ProposeError::Busy));
    net.run_heartbeats(10);
    assert_eq!(net.propose(0, b"a value"), Err(ProposeError::NotLeader));
    net.partitioned = vec![2];
    net.run_heartbeats(250);
    assert_eq!(net.propose(0, b"a value"), Ok(0));
    // A leader that is established for long does not wait.
    net.partitioned = vec![1, 2];
    net.run_heartbeats(18);
    assert_eq!(net.propose(0, b"a value"), Err(ProposeError::NotLeader));
}

#[test]
fn a_follower_that_needs_a_snapshot_does_not_count_towards_a_majority() {
    let mut net = one_lacks_a_snapshot(|_| {});
    net.partitioned = vec![1];
    net.run_until("alone", |net| !net.servers[0].is_leader());
}

#[test]
fn an_idle_leader_sends_one_read_and_one_check_per_server_and_heartbeat() {
    let mut net = Net::begun(|_| {});
    net.propose_and_decide(3, 40);
    net.run_heartbeats(5);
    // Two READs and two WRITEs, and responses to two READs
    assert_eq!(sent_in(&mut net, 10), 60);
    // Also after it has admitted one of them
    net.restart(2);
    net.run_heartbeats(60);
    assert_eq!(net.servers[2].membership(), Membership::Member);
    assert_eq!(sent_in(&mut net, 10), 60);
}

/// Returns the number of frames that the first server sends during `beats` heartbeats.
fn sent_in(net: &mut Net, beats: u64) -> u64 {
    let before = net.nics[0].counters().sent;
    net.run_heartbeats(beats);
    net.nics[0].counters().sent - before
}

#[test]
fn a_leader_has_one_check_outstanding_per_server() {
    let mut net = Net::begun(|_| {});
    net.partitioned = vec![2];
    net.run_heartbeats(1);
    // To server 1: READs, WRITEs and responses. To server 2: a READ and a WRITE, six times each
    assert_eq!(sent_in(&mut net, 8), 3 * 8 + 2 * 6);
}

#[test]
fn a_server_becomes_a_member_by_one_write() {
    let mut net = Net::begun(|_| {});
    net.propose_and_decide(3, 40);
    net.run_heartbeats(2);
    net.restart(2);
    net.run_until("up to date", |net| net.delivered[2].len() == 3);
    // Server 1 confirms while server 2 does not receive its admission.
    net.partitioned = vec![1];
    net.run_heartbeats(1);
    net.partitioned = vec![2];
    net.run_heartbeats(2);
    let admitted = net.servers[0].follower(2, |follower| (follower.admitted, follower.is_member));
    assert_eq!(admitted, Some((true, false)));
    assert_eq!(sent_in(&mut net, 5), 24);
}

/// Restarts server 2, while server 1 receives nothing for `unreachable_for` from each heartbeat on. Returns
/// when server 2 is up to date.
fn one_confirms_late(ack_timeout: u8, unreachable_for: Nanos) -> Net {
    let mut net = Net::begun(|config| config.ack_timeout = ack_timeout);
    net.propose_and_decide(3, 40);
    net.run_heartbeats(2);
    net.restart(2);
    net.run_for(Nanos::from_micros(90));
    while net.delivered[2].is_empty() {
        confirm_late(&mut net, unreachable_for);
    }
    assert_eq!(net.servers[2].membership(), Membership::Blank);
    net
}

/// Runs for a heartbeat, from shortly before it. Frames that server 1 does not receive are retransmitted.
fn confirm_late(net: &mut Net, unreachable_for: Nanos) {
    let shortly = Nanos::from_micros(10);
    net.partitioned = vec![1];
    net.run_for(shortly + unreachable_for);
    net.partitioned.clear();
    net.run_for(HEARTBEAT.since(shortly + unreachable_for));
}

#[test]
fn a_check_posted_before_a_server_was_up_to_date_does_not_confirm_it() {
    // Requests are retransmitted after 33, 66 and 98 us.
    let mut net = one_confirms_late(3, Nanos::from_micros(50));
    net.partitioned = vec![1];
    net.run_heartbeats(1);
    assert!(net.servers[0].is_leader());
    assert_eq!(net.servers[2].membership(), Membership::Blank);
}

#[test]
fn a_confirmation_that_takes_longer_than_a_heartbeat_counts() {
    // Requests are retransmitted after 131 us.
    let unreachable_for = Nanos::from_micros(10);
    let mut net = one_confirms_late(5, unreachable_for);
    for _ in 0..6 {
        confirm_late(&mut net, unreachable_for);
    }
    assert_eq!(net.servers[2].membership(), Membership::Member);
}

#[test]
fn a_server_with_a_snapshot_is_admitted_after_a_later_confirmation() {
    let mut net = one_lacks_a_snapshot(|_| {});
    net.partitioned = vec![2];
    net.run_heartbeats(30);
    net.partitioned.clear();
    net.restart(2);
    net.run_heartbeats(40);
    assert!(net.servers[0].wants_snapshot());
    net.partitioned = vec![1];
    net.give_snapshot(b"state").unwrap();
    net.run_heartbeats(3);
    assert_eq!((net.delivered[2].len(), net.servers[2].membership()), (1, Membership::Blank));
    net.partitioned.clear();
    net.run_heartbeats(3);
    assert_eq!(net.servers[2].membership(), Membership::Member);
}

#[test]
fn logs_are_read_again_when_a_permission_is_lost_before_agreement() {
    let mut net = Net::new(5, |_| {});
    net.run_heartbeats(3);
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
    server.on_follower_lost(nic, lost, qpn, net.now);
    server.drop_qp(nic, qpn);
    // Until a third server has granted permission, nothing is read. The completion of the earlier READ
    // arrives, and does not count.
    net.partitioned = (1..5).filter(|server| ![lost, other].contains(server)).collect();
    net.deliver_all();
    assert_eq!(net.servers[0].follower(other, |follower| follower.stage), Some(Stage::Granted));
    net.partitioned.clear();
    net.run_heartbeats(40);
    assert!(net.servers[0].is_leader());
}

#[test]
fn a_returning_server_gets_the_entries_that_it_lacks() {
    let mut net = Net::begun(|_| {});
    net.partitioned = vec![2];
    net.run_heartbeats(20);
    net.propose_and_decide(5, 40);
    assert_eq!((net.delivered[1].len(), net.delivered[2].len()), (4, 0));
    net.partitioned.clear();
    net.run_heartbeats(40);
    assert_eq!(net.delivered[2], net.delivered[0]);
}

/// Returns three servers of which one lacks entries that the log no longer holds: it needs a snapshot.
fn one_lacks_a_snapshot(tune: impl FnOnce(&mut Config)) -> Net {
    let mut net = Net::begun(tune);
    assert_eq!(net.give_snapshot(b"state"), Err(SnapshotError::NotNeeded));
    net.partitioned = vec![2];
    net.run_heartbeats(20);
    for _ in 0..3 {
        net.propose_and_decide(5, 40);
        net.run_heartbeats(3);
    }
    assert!(!net.servers[0].wants_snapshot());
    net.partitioned.clear();
    net.run_heartbeats(40);
    assert!(net.servers[0].wants_snapshot() && !net.servers[1].wants_snapshot());
    net
}

#[test]
fn a_snapshot_replaces_entries_that_the_log_no_longer_holds() {
    let mut net = one_lacks_a_snapshot(|_| {});
    let state: Vec<u8> = (0..1000).map(|at| (at % 251) as u8).collect();
    assert_eq!(net.give_snapshot(&[0; 1001]), Err(SnapshotError::TooLong));
    assert_eq!(net.give_snapshot(&state), Ok(()));
    assert!(!net.servers[0].wants_snapshot());
    net.run_heartbeats(3);
    assert_eq!(net.delivered[2], [Decided::Snapshot { next: 15, state }]);
    net.propose_and_decide(5, 40);
    net.run_heartbeats(3);
    assert_eq!(net.delivered[2][1..], net.delivered[0][15..]);
}

#[test]
fn a_leader_can_provide_a_snapshot_that_it_just_installed() {
    let mut net = one_lacks_a_snapshot(|_| {});
    let taken = net.servers[0].polled;
    net.servers[0].valid_from = taken;
    assert_eq!(net.give_snapshot(b"state"), Ok(()));
    net.run_heartbeats(3);
    assert_eq!(net.delivered[2], [Decided::Snapshot { next: taken, state: b"state".to_vec() }]);
}

#[test]
fn a_snapshot_that_ends_before_the_log_starts_is_too_old() {
    let mut net = one_lacks_a_snapshot(|_| {});
    // The application has polled only the first six entries, and the next ones have left the log.
    let taken = core::mem::replace(&mut net.servers[0].polled, 6);
    assert_eq!(net.give_snapshot(b"state"), Err(SnapshotError::TooOld));
    assert!(net.servers[0].wants_snapshot(), "a newer snapshot is needed");
    // Log entries below an installed snapshot are older than it.
    let valid_from = core::mem::replace(&mut net.servers[0].valid_from, taken);
    net.servers[0].polled = taken - 1;
    assert_eq!(net.give_snapshot(b"state"), Err(SnapshotError::TooOld));
    net.servers[0].valid_from = valid_from;
    net.servers[0].polled = taken - 8;
    assert_eq!(net.give_snapshot(b"state"), Ok(()));
    net.run_heartbeats(3);
    assert_eq!(net.delivered[2].len(), 9);
    assert_eq!(net.delivered[2][1..], net.delivered[0][7..]);
}

#[test]
fn a_restarted_server_becomes_a_member_with_a_snapshot() {
    let mut net = one_lacks_a_snapshot(|_| {});
    assert_eq!(net.give_snapshot(b"state"), Ok(()));
    net.run_heartbeats(3);
    net.propose_and_decide(2, 40);
    net.restart(2);
    net.run_heartbeats(60);
    // The entries after the snapshot are still in the log.
    assert!(!net.servers[0].wants_snapshot());
    assert_eq!((net.servers[2].membership(), net.servers[2].waits_for()), (Membership::Member, None));
    assert_eq!(net.delivered[2].len(), 3);
    assert_eq!(net.delivered[2][0], Decided::Snapshot { next: 15, state: b"state".to_vec() });
    assert_eq!(net.delivered[2][1..], net.delivered[0][15..]);
}

#[test]
fn the_next_server_leads_until_the_first_returns() {
    let mut net = Net::begun(|_| {});
    net.propose_and_decide(3, 40);
    net.run_heartbeats(1);
    let term = net.servers[0].term();
    net.partitioned = vec![0];
    net.run_heartbeats(100);
    assert!(net.servers[1].is_leader() && net.servers[1].term() > term);
    assert_eq!([1, 2].map(|at: usize| net.servers[at].leader()), [Some(1); 2]);
    assert_eq!(net.propose(1, b"of the second"), Ok(3));
    net.run_heartbeats(2);
    net.partitioned.clear();
    net.run_heartbeats(150);
    assert!(net.servers[0].is_leader() && !net.servers[1].is_leader());
    assert_eq!([0, 1, 2].map(|at: usize| net.servers[at].leader()), [Some(0); 3]);
    assert_eq!(net.propose(0, b"of the first"), Ok(4));
    net.run_heartbeats(2);
    let own = Decided::Entry { index: 3, value: b"of the second".to_vec() };
    assert!(
        net.delivered
            .iter()
            .all(|delivered| delivered.len() == 5 && delivered[3] == own && *delivered == net.delivered[0])
    );
}

#[test]
fn a_new_leader_takes_over_a_full_log_of_undecided_entries() {
    let mut net = Net::begun(|config| config.window = 100);
    for n in 0..8 {
        net.propose(0, &[n]).unwrap();
    }
    net.deliver_all();
    assert_eq!((net.servers[0].decided(), net.delivered[1].len(), net.delivered[2].len()), (8, 0, 0));
    net.partitioned = vec![0];
    net.run_heartbeats(100);
    assert!(net.servers[1].is_leader());
    assert_eq!((&net.delivered[1], &net.delivered[2]), (&net.delivered[0], &net.delivered[0]));
}

#[test]
fn a_server_that_needs_a_snapshot_does_not_lead_before_it_has_one() {
    let mut net = one_is_behind();
    assert!([2, 3, 4].iter().all(|at: &usize| net.delivered[*at].len() == 9));
    assert!(net.servers[2].wants_snapshot());
    net.servers[2].provide_snapshot(&mut net.nics[2], b"state", net.now).unwrap();
    net.run_heartbeats(3);
    assert_eq!(net.delivered[1], [Decided::Snapshot { next: 9, state: b"state".to_vec() }]);
    net.run_heartbeats(100);
    assert_eq!(net.servers[1].membership(), Membership::Member);
    assert!(net.servers[1].is_leader());
}

#[test]
fn a_follower_that_lacks_a_whole_log_gets_it_at_once() {
    let mut net = Net::begun(|config| config.layout = Layout::new(256, 8, 1000));
    net.propose_and_decide(240, 8);
    net.run_heartbeats(2);
    net.restart(2);
    net.run_until("written to", |net| !net.delivered[2].is_empty());
    net.deliver_all();
    assert!(net.servers[0].is_leader());
    assert_eq!((net.delivered[2].len(), &net.delivered[2]), (240, &net.delivered[0]));
}

#[test]
fn requests_are_retried_retry_count_times() {
    for (retry_count, expected) in [(1, Err(ProposeError::Busy)), (6, Ok(0))] {
        let mut net = Net::begun(|config| config.retry_count = retry_count);
        net.partitioned = vec![1, 2];
        net.run_heartbeats(8);
        assert_eq!(net.propose(0, b"a value"), expected, "{retry_count} retries");
    }
}
