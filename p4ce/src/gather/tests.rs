use super::*;
use proptest::prelude::*;

const FIRST: Psn = Psn::new(0xff_fffe);

fn gather(count: usize, quorum: usize) -> Gather {
    let mut gather = Gather::new(count, quorum, false, FIRST);
    for n in 0..10 {
        assert_eq!(gather.on_request(FIRST.add(n), true), None);
    }
    gather
}

fn ack(credit: u8, msn: u32) -> Aeth {
    Aeth::new(Syndrome::Ack(Credit(credit)), Msn::new(msn))
}

fn nak(code: NakCode, msn: u32) -> Aeth {
    Aeth::new(Syndrome::Nak(code), Msn::new(msn))
}

fn rnr(timer: u8, msn: u32) -> Aeth {
    Aeth::new(Syndrome::RnrNak(RnrTimer(timer)), Msn::new(msn))
}

fn respond(n: u32, aeth: Aeth) -> GatherResult {
    GatherResult::Respond(LeaderResponse { psn: FIRST.add(n), aeth })
}

#[test]
fn the_leader_gets_one_acknowledgement_when_a_quorum_holds_a_packet() {
    let mut gather = gather(4, 2);
    assert_eq!(gather.on_response(0, FIRST.add(3), ack(31, 4)), GatherResult::Absorbed);
    assert_eq!(gather.on_response(0, FIRST.add(3), ack(31, 4)), GatherResult::Absorbed, "a duplicate");
    // Replica 1 holds less: the frontier is its PSN, with its MSN.
    assert_eq!(gather.on_response(1, FIRST.add(1), ack(31, 2)), respond(1, ack(31, 2)));
    assert_eq!(gather.on_response(2, FIRST.add(1), ack(31, 2)), GatherResult::Absorbed);
    // Replica 1 overtakes replica 0: the frontier is what replica 0 holds.
    assert_eq!(gather.on_response(1, FIRST.add(8), ack(31, 9)), respond(3, ack(31, 4)));
    assert_eq!(gather.frontier(), FIRST.add(3));
}

#[test]
fn acknowledgements_of_unsent_or_old_packets_are_stale() {
    let mut gather = gather(2, 1);
    assert_eq!(gather.on_response(0, FIRST.add(10), ack(31, 1)), GatherResult::Stale);
    assert_eq!(gather.on_response(0, FIRST.add(4), ack(31, 5)), respond(4, ack(31, 5)));
    assert_eq!(gather.on_response(0, FIRST.add(3), ack(31, 4)), GatherResult::Stale);
    assert_eq!(gather.on_response(5, FIRST, ack(31, 1)), GatherResult::Stale, "not a member");
    assert_eq!(
        gather.on_response(0, FIRST.add(5), Aeth::new(Syndrome::Reserved(0x40), Msn::ZERO)),
        GatherResult::Stale
    );
}

#[test]
fn a_retransmission_gets_the_acknowledgement_again() {
    let mut gather = gather(2, 2);
    for member in [0, 1] {
        gather.on_response(member, FIRST.add(5), ack(31, 6));
    }
    let response = Some(LeaderResponse { psn: FIRST.add(5), aeth: ack(31, 6) });
    assert_eq!(gather.on_request(FIRST.add(2), true), response);
    assert_eq!(gather.on_request(FIRST.add(2), false), None, "no AckReq");
    assert_eq!(gather.on_request(FIRST.add(6), true), None, "no quorum holds the packet");
}

#[test]
fn a_nak_is_limited_to_the_frontier() {
    let mut gather = gather(2, 2);
    let missing = |msn| nak(NakCode::PSN_SEQUENCE_ERROR, msn);
    gather.on_response(0, FIRST.add(2), ack(31, 3));
    // Replica 0 holds all packets before 7; replica 1 has not responded.
    assert_eq!(gather.on_response(0, FIRST.add(7), missing(7)), respond(0, missing(0)));
    // A quorum now holds the packet that the first NAK named. The leader may not go back to it, so the NAK
    // for the next missing packet is passed on,
    assert_eq!(gather.on_response(1, FIRST.add(4), missing(4)), respond(4, missing(4)));
    // and has to be followed before another one is passed on.
    assert_eq!(gather.on_response(1, FIRST.add(4), missing(4)), GatherResult::Absorbed);
    assert_eq!(gather.on_request(FIRST, true), Some(LeaderResponse { psn: FIRST.add(3), aeth: ack(31, 4) }));
    assert_eq!(gather.on_response(1, FIRST.add(6), missing(6)), respond(6, missing(6)));
    assert_eq!(gather.on_response(0, FIRST.add(8), missing(8)), GatherResult::Absorbed);
}

#[test]
fn fatal_naks_are_passed_on_at_once() {
    let mut gather = gather(3, 2);
    gather.on_response(0, FIRST.add(2), ack(31, 3));
    gather.on_response(1, FIRST.add(2), ack(31, 3));
    let refused = nak(NakCode::REMOTE_ACCESS_ERROR, 3);
    assert_eq!(
        gather.on_response(2, FIRST.add(5), refused),
        respond(3, refused),
        "it alone holds the packets before 5"
    );
    assert_eq!(gather.refuse(FIRST.add(9), NakCode::INVALID_REQUEST).psn, FIRST.add(3));
    assert_eq!(gather.refuse(FIRST.add(1), NakCode::INVALID_REQUEST).psn, FIRST.add(1));
}

#[test]
fn a_quorum_outvotes_a_minority_on_request() {
    let mut gather = Gather::new(3, 2, true, FIRST);
    for n in 0..10 {
        gather.on_request(FIRST.add(n), true);
    }
    for member in [0, 1] {
        gather.on_response(member, FIRST.add(5), ack(31, 6));
    }
    let missing = nak(NakCode::PSN_SEQUENCE_ERROR, 2);
    assert_eq!(gather.on_response(2, FIRST.add(2), missing), GatherResult::Absorbed);
    assert_eq!(gather.on_response(2, FIRST.add(2), rnr(3, 2)), GatherResult::Absorbed);
    // The NAK of a packet that no quorum holds yet is passed on.
    let missing = nak(NakCode::PSN_SEQUENCE_ERROR, 6);
    assert_eq!(gather.on_response(0, FIRST.add(6), missing), respond(6, missing));
    // A replica that fails permanently is not needed.
    let refused = nak(NakCode::REMOTE_OPERATIONAL_ERROR, 2);
    assert_eq!(gather.on_response(2, FIRST.add(2), refused), GatherResult::Failed(None));
}

/// A NAK acknowledges everything before its PSN, also if the replica is then excluded (seed 5000273 of
/// workloads/tests/it/groups.rs).
#[test]
fn an_outvoted_fatal_nak_still_acknowledges_earlier_packets() {
    let mut gather = Gather::new(3, 2, true, FIRST);
    for n in 0..10 {
        gather.on_request(FIRST.add(n), true);
    }
    gather.on_response(0, FIRST.add(5), ack(31, 6));
    let refused = nak(NakCode::INVALID_REQUEST, 3);
    let GatherResult::Failed(Some(response)) = gather.on_response(1, FIRST.add(3), refused) else {
        panic!("no acknowledgement for the leader");
    };
    assert_eq!(response.psn, FIRST.add(2));
    assert!(matches!(response.aeth.kind(), Syndrome::Ack(_)));
    // The leader does not go back to packets that were acknowledged.
    let missing = nak(NakCode::PSN_SEQUENCE_ERROR, 2);
    assert_eq!(gather.on_response(2, FIRST.add(1), missing), GatherResult::Absorbed);
    gather.exclude(2);
    let refused = nak(NakCode::REMOTE_OPERATIONAL_ERROR, 6);
    assert_eq!(
        gather.on_response(1, FIRST.add(6), refused),
        respond(6, refused),
        "the replica is needed now"
    );
}

#[test]
fn the_longest_rnr_timer_is_passed_on() {
    let mut gather = gather(3, 2);
    assert_eq!(gather.on_response(0, FIRST.add(1), rnr(2, 1)), respond(0, rnr(2, 0)));
    assert_eq!(
        gather.on_response(1, FIRST.add(1), rnr(1, 1)),
        respond(1, rnr(2, 1)),
        "shorter, but the frontier moved, and the leader has to wait before the next packet"
    );
    assert_eq!(gather.on_response(2, FIRST.add(1), rnr(9, 1)), respond(1, rnr(9, 1)));
    // Timer code 0 is the longest.
    assert_eq!(gather.on_response(1, FIRST.add(1), rnr(0, 1)), respond(1, rnr(0, 1)));
    assert_eq!(gather.on_response(1, FIRST.add(1), rnr(0, 1)), GatherResult::Absorbed);
    gather.on_request(FIRST.add(1), true);
    assert_eq!(
        gather.on_response(1, FIRST.add(1), rnr(0, 1)),
        respond(1, rnr(0, 1)),
        "the leader has retried"
    );
}

#[test]
fn credits_count_from_the_leaders_msn() {
    let mut gather = gather(2, 1);
    // Four credits after message 3: up to message 7.
    assert_eq!(gather.on_response(0, FIRST.add(2), ack(4, 3)), respond(2, ack(4, 3)));
    // Replica 1 is behind, with two credits after message 1: up to 3, so no credits counted from 3. That
    // causes no message by itself,
    assert_eq!(gather.on_response(1, FIRST, ack(2, 1)), GatherResult::Absorbed);
    assert_eq!(gather.on_response(0, FIRST.add(3), ack(4, 4)), respond(3, ack(0, 4)));
    // but new credits after zero do.
    assert_eq!(gather.on_response(1, FIRST.add(1), ack(6, 2)), respond(3, ack(4, 4)));
    // Without a limit there are unlimited credits.
    assert_eq!(gather.on_response(1, FIRST.add(2), ack(31, 3)), GatherResult::Absorbed);
    assert_eq!(gather.on_response(0, FIRST.add(4), ack(31, 5)), respond(4, ack(31, 5)));
}

#[test]
fn exclusion_and_quorum_changes_keep_the_frontier() {
    let mut gather = gather(4, 3);
    for (member, n) in [(0, 8), (1, 6), (2, 4), (3, 2)] {
        gather.on_response(member, FIRST.add(n), ack(31, n + 1));
    }
    assert_eq!(gather.frontier(), FIRST.add(4));
    gather.exclude(2);
    assert_eq!((gather.members(), gather.acked(2)), (3, None));
    assert_eq!(gather.frontier(), FIRST.add(4), "the frontier does not go back");
    assert_eq!(gather.on_response(2, FIRST.add(9), ack(31, 10)), GatherResult::Stale);
    assert_eq!(gather.on_response(3, FIRST.add(5), ack(31, 6)), respond(5, ack(31, 6)));
    assert_eq!(gather.set_quorum(2), Some(LeaderResponse { psn: FIRST.add(6), aeth: ack(31, 7) }));
    gather.exclude(0);
    assert!(gather.is_possible());
    gather.exclude(1);
    assert!(!gather.is_possible());
    assert_eq!(gather.on_response(3, FIRST.add(9), ack(31, 10)), GatherResult::Absorbed);
}

#[test]
fn next_is_the_psn_after_the_newest_sent() {
    let mut gather = gather(3, 2);
    assert_eq!(gather.next(), FIRST.add(10));
    gather.on_request(FIRST.add(4), true);
    assert_eq!(gather.next(), FIRST.add(10), "a retransmission");
    gather.on_request(FIRST.add(14), true);
    assert_eq!(gather.next(), FIRST.add(15), "packets before it were lost");
}

#[test]
fn acked_is_the_newest_psn_of_a_replica() {
    let mut gather = gather(3, 2);
    gather.on_response(1, FIRST.add(4), ack(31, 5));
    assert_eq!([gather.acked(0), gather.acked(1)], [Some(FIRST.sub(1)), Some(FIRST.add(4))]);
    assert_eq!((gather.acked(3), gather.acked(MAX_MEMBERS)), (None, None), "not members");
}

#[test]
fn the_quorum_is_clamped_to_the_replicas() {
    let mut gather = gather(4, 3);
    assert_eq!(gather.quorum(), 3);
    for (wanted, set) in [(0, 1), (2, 2), (5, 4)] {
        gather.set_quorum(wanted);
        assert_eq!(gather.quorum(), set);
    }
}

#[test]
fn a_nak_is_passed_on_again_only_after_the_leader_has_gone_back() {
    let missing = nak(NakCode::PSN_SEQUENCE_ERROR, 3);
    for refusal in [missing, rnr(3, 3)] {
        let mut gather = gather(2, 2);
        gather.on_response(0, FIRST.add(2), ack(31, 3));
        assert_eq!(gather.on_response(1, FIRST.add(3), refusal), respond(3, refusal));
        gather.on_request(FIRST.add(4), false);
        gather.on_request(FIRST.add(12), false);
        assert_eq!(
            gather.on_response(1, FIRST.add(3), refusal),
            GatherResult::Absorbed,
            "it has not gone back to 3"
        );
        gather.on_request(FIRST.add(3), false);
        assert_eq!(gather.on_response(1, FIRST.add(3), refusal), respond(3, refusal));
    }
}

#[test]
fn a_duplicate_acknowledgement_does_not_reset_the_rnr_timer() {
    let mut gather = gather(3, 2);
    assert_eq!(gather.on_response(0, FIRST.add(1), rnr(9, 1)), respond(0, rnr(9, 0)));
    assert_eq!(gather.on_response(0, FIRST, ack(31, 1)), GatherResult::Absorbed);
    assert_eq!(
        gather.on_response(1, FIRST.add(1), rnr(2, 1)),
        respond(1, rnr(9, 1)),
        "replica 0 needs longer"
    );
}

#[test]
fn replicas_without_progress_are_found() {
    let mut gather = gather(3, 1);
    let after = Nanos::from_millis(10);
    let at = Nanos::from_millis;
    gather.on_response(0, FIRST.add(5), ack(31, 6));
    assert_eq!(gather.find_stalled(at(100), after), None, "first check");
    gather.on_response(1, FIRST.add(1), ack(31, 2));
    assert_eq!(gather.find_stalled(at(110), after), Some(2));
    gather.exclude(2);
    assert_eq!(gather.find_stalled(at(115), after), None, "it has made progress");
    assert_eq!(gather.find_stalled(at(120), after), Some(1));
}

/// A step of the model, in which each replica holds packets in order.
#[derive(Clone, Copy, Debug)]
enum Step {
    /// The leader sends its next packet, or goes back by this number of packets first.
    Send(u32),
    /// A packet arrives at a replica, `back` packets before the newest.
    Arrive { replica: usize, back: u32 },
    /// A response of a replica arrives at the switch, `old` responses before its newest, perhaps as a
    /// duplicate.
    Respond { replica: usize, old: usize },
    /// A replica is excluded.
    Exclude(usize),
}

fn step(count: usize) -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (0u32..4).prop_map(Step::Send),
        8 => (0..count, 0u32..6).prop_map(|(replica, back)| Step::Arrive { replica, back }),
        8 => (0..count, 0usize..5).prop_map(|(replica, old)| Step::Respond { replica, old }),
        1 => (0..count).prop_map(Step::Exclude),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]
    /// With any loss, delay, duplication and reordering, a quorum holds everything that the leader may take
    /// for acknowledged.
    #[test]
    fn nothing_is_acknowledged_that_no_quorum_holds(
        count in 1usize..6,
        quorum in 1usize..6,
        outvote: bool,
        first in prop_oneof![Just(0xff_fff0u32), Just(0), any::<u32>()],
        steps in (1usize..6).prop_flat_map(|count| prop::collection::vec(step(count), 0..200)),
    ) {
        let quorum = quorum.min(count);
        let first = Psn::new(first);
        let mut gather = Gather::new(count, quorum, outvote, first);
        // Per replica, counted from the first packet: number of packets held, and responses sent; number of
        // packets sent.
        let mut held = vec![0u32; count];
        let mut responses: Vec<Vec<(Psn, Aeth)>> = vec![vec![]; count];
        let (mut sent, mut at) = (0u32, 0u32);
        // Number of packets that the leader takes for acknowledged
        let mut acknowledged = 0u32;
        for step in steps {
            let response = match step {
                Step::Send(back) => {
                    at = if back == 0 { at } else { at.saturating_sub(back).max(acknowledged) };
                    let psn = first.add(at);
                    at += 1;
                    sent = sent.max(at);
                    gather.on_request(psn, true)
                }
                Step::Arrive { replica, back } if replica < count && sent > 0 => {
                    let arrived = (sent - 1).saturating_sub(back);
                    if arrived == held[replica] {
                        held[replica] += 1;
                    }
                    // A duplicate is acknowledged up to the newest PSN; a gap causes a NAK.
                    let (psn, aeth) = if arrived > held[replica] {
                        (first.add(held[replica]), nak(NakCode::PSN_SEQUENCE_ERROR, held[replica]))
                    } else {
                        (first.add(held[replica]).sub(1), ack(31, held[replica]))
                    };
                    responses[replica].push((psn, aeth));
                    None
                }
                Step::Respond { replica, old } if replica < count && !responses[replica].is_empty() => {
                    let all = &responses[replica];
                    let (psn, aeth) = all[all.len() - 1 - old.min(all.len() - 1)];
                    match gather.on_response(replica, psn, aeth) {
                        GatherResult::Respond(response) => Some(response),
                        _ => None,
                    }
                }
                Step::Exclude(replica) if replica < count => {
                    gather.exclude(replica);
                    None
                }
                _ => None,
            };
            if let Some(LeaderResponse { psn, aeth }) = response {
                let covered = match aeth.kind() {
                    Syndrome::Ack(_) => psn.add(1),
                    _ => psn,
                };
                let covered = u32::try_from(covered.distance(first)).expect("not before the first");
                let holders = held.iter().filter(|held| **held >= covered).count();
                prop_assert!(holders >= quorum, "{covered} packets acknowledged, held by {holders} of {quorum}: {held:?}");
                acknowledged = acknowledged.max(covered);
                if !matches!(aeth.kind(), Syndrome::Ack(_)) {
                    at = covered;
                }
            }
        }
    }
}

/// A leader that receives the acknowledgement of a packet does not go back to it, so an earlier NAK of that
/// packet must not suppress later ones.
#[test]
fn a_nak_of_an_acknowledged_packet_does_not_suppress_later_naks() {
    let missing = |msn| nak(NakCode::PSN_SEQUENCE_ERROR, msn);
    for (first, later) in [(missing(0), missing(501)), (rnr(3, 0), rnr(3, 501))] {
        let mut gather = gather(3, 2);
        assert_eq!(gather.on_response(0, FIRST, first), respond(0, first));
        // Replicas 1 and 2 hold the packet, and the leader learns that before it has gone back, or the NAK
        // was lost.
        gather.on_response(1, FIRST.add(5), ack(31, 6));
        assert_eq!(gather.on_response(2, FIRST.add(5), ack(31, 6)), respond(5, ack(31, 6)));
        for n in 10..1000 {
            gather.on_request(FIRST.add(n), true);
        }
        for member in [1, 2] {
            gather.on_response(member, FIRST.add(500), ack(31, 501));
        }
        assert_eq!(gather.on_response(1, FIRST.add(501), later), respond(501, later));
        assert_eq!(gather.on_response(2, FIRST.add(501), later), GatherResult::Absorbed, "passed on once");
    }
}

/// Beyond the limit, an acknowledgement could belong to a later packet: PSNs have 24 bits.
#[test]
fn the_configured_lag_is_clamped() {
    let mut gather = gather(3, 1).with_max_lag(u32::MAX);
    for n in 10..=MAX_LAG {
        gather.on_request(FIRST.add(n), false);
    }
    gather.on_response(0, FIRST.add(MAX_LAG - 1), ack(31, 1));
    assert_eq!(gather.take_dropped(), None);
    gather.on_response(0, FIRST.add(MAX_LAG), ack(31, 2));
    assert!(gather.take_dropped().is_some());
}

#[test]
fn a_replica_beyond_the_lag_is_dropped_and_reported_once() {
    let mut gather = gather(3, 1).with_max_lag(4);
    assert_eq!(gather.on_response(0, FIRST.add(3), ack(31, 4)), respond(3, ack(31, 4)));
    assert_eq!(gather.take_dropped(), None, "4 packets behind");
    gather.on_response(1, FIRST, ack(31, 1));
    gather.on_response(0, FIRST.add(4), ack(31, 5));
    assert_eq!((gather.take_dropped(), gather.take_dropped()), (Some(2), None));
    assert_eq!((gather.members(), gather.acked(2)), (2, None));
    gather.on_response(0, FIRST.add(9), ack(31, 10));
    assert_eq!((gather.take_dropped(), gather.take_dropped()), (Some(1), None));
}

/// A packet with an arbitrary PSN is forged in the leader's name, and a response in a replica's.
#[test]
fn an_acknowledgement_after_a_request_far_ahead_is_stale() {
    let first = Psn::new(0xff_fff0);
    for ahead in [1, 64, 65, 70_000, 1 << 22] {
        let mut gather = Gather::new(2, 1, false, first);
        gather.on_request(first.add(ahead), true);
        assert_eq!(gather.next(), if ahead <= 64 { first.add(ahead + 1) } else { first }, "{ahead}");
        let result = gather.on_response(0, first.add(ahead), ack(31, 0));
        assert_eq!(result == GatherResult::Stale, ahead > 64, "{ahead}");
    }
}

#[test]
fn only_outstanding_psns_may_be_refused() {
    let first = Psn::new(0xff_fffe);
    let mut gather = Gather::new(1, 1, false, first);
    for n in 0..4 {
        gather.on_request(first.add(n), true);
    }
    gather.on_response(0, first.add(1), ack(31, 0));
    let outstanding: Vec<_> = (0..8).filter(|n| gather.is_outstanding(first.add(*n))).collect();
    assert_eq!(outstanding, [2, 3, 4], "the sent packets after the frontier, and the next one");
    assert!(!gather.is_outstanding(first.sub(1)) && !gather.is_outstanding(first.add(1 << 22)));
}
