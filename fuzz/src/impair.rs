//! Sends arbitrary frames through all impairments at once. Only frames that a rule drops are lost, delayed
//! frames are sent in the end, and a second run has the same result.

use rocev2::Psn;
use switch::impair::{Action, Config, Field, Impair, Match, Operations, PsnRange, Rule};
use switch::memory::{FrameCollector, run_frame};
use switch::{Frame, Function, Nanos, PortId, Probability, Verdict};

fn rules(share: Probability) -> Vec<Rule> {
    let rule = |name: &str, matching, action| Rule {
        name: name.into(),
        matching,
        share,
        skip: 0,
        times: u64::MAX,
        action,
    };
    let all = Match::default;
    let psn_offset = Some(PsnRange { first: Psn::ZERO, last: Psn::new(9) });
    vec![
        rule("drop", Match { operations: Operations::class("ack"), ..all() }, Action::Drop),
        rule("mark", all(), Action::Mark { force: true }),
        rule("copy", Match { psn_offset, ..all() }, Action::Duplicate { copies: 2 }),
        rule("payload", all(), Action::Corrupt(Field::Payload)),
        rule("header", all(), Action::Corrupt(Field::Header)),
        rule("icrc", all(), Action::Corrupt(Field::Icrc)),
        rule("delay", all(), Action::Delay { by: Nanos(10), jitter: Nanos(90) }),
        rule("reorder", all(), Action::Reorder { behind: 2, at_most: Nanos(50) }),
    ]
}

/// Returns all frames that leave, in order.
fn play(share: Probability, mut rest: &[u8]) -> Vec<(Vec<u8>, PortId)> {
    let mut impair = Impair::new(
        &Config {
            ports: 2,
            pairs: vec![(PortId(0), PortId(1))],
            seed: 1,
            held: 3,
            frame_len: 200,
            flows: 2,
            counted_qps: 0,
            health: false,
            rules: rules(share),
        },
        0,
    );
    let (mut now, mut sent, mut received, mut dropped) = (Nanos::ZERO, Vec::new(), 0, 0);
    while let Some((&[how, len], after)) = rest.split_first_chunk() {
        let (frame, after) = after.split_at(usize::from(len).min(after.len()));
        rest = after;
        now = now + Nanos(u64::from(how >> 1));
        let (verdict, frames) = run_frame(&mut impair, frame, PortId(u16::from(how & 1)), now);
        sent.extend(frames);
        received += 1;
        dropped += u64::from(matches!(verdict, Verdict::Drop(_)));
        tick(&mut impair, now, usize::from(how & 3), &mut sent);
    }
    // Frames that are held back become due.
    while let Some(at) = impair.next_timer() {
        assert!(at.since(now) <= Nanos(2_000), "a frame is held for more than 2 us");
        now = now.max(at);
        tick(&mut impair, now, usize::MAX, &mut sent);
    }
    let counters = impair.counters();
    let acted: Vec<_> = impair.rule_counters().map(|counters| counters.acted.get()).collect();
    let copies = 2 * acted[2];
    assert_eq!((counters.held_now(), acted[0]), (0, dropped));
    assert_eq!(sent.len() as u64, received - dropped + copies);
    sent
}

fn tick(impair: &mut Impair, now: Nanos, room: usize, sent: &mut Vec<(Vec<u8>, PortId)>) {
    let mut out = FrameCollector::with_room(room);
    impair.on_timer(now, &mut out);
    sent.extend(out.frames.into_iter().map(|(frame, port)| (frame.bytes().to_vec(), port)));
}

/// Runs one input.
pub(crate) fn run(input: &[u8]) {
    let Some((&share, rest)) = input.split_first() else { return };
    let share = Probability::percent(u64::from(share % 101));
    assert!(play(share, rest) == play(share, rest));
}
