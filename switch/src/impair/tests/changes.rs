//! Rules that change during a run.

use super::*;
use proptest::prelude::*;
use std::collections::BTreeMap;

fn named(name: &str, action: Action) -> Rule {
    Rule { name: name.into(), ..rule(action) }
}

/// Instances of some workers, and their control plane.
struct Plane {
    instances: Vec<Impair>,
    rules: Rules,
}

impl Plane {
    fn new(config: &Config, workers: usize) -> Self {
        let instances: Vec<_> = (0..workers).map(|worker| Impair::new(config, worker)).collect();
        let rules = Rules::of(config, &instances);
        Self { instances, rules }
    }

    /// Changes the rules, which all instances adopt.
    fn change(&mut self, rules: Vec<Rule>, restart: &[&str]) {
        let restart: Vec<_> = restart.iter().map(|name| (*name).to_owned()).collect();
        let commands = self.rules.replace(rules, &restart);
        assert_eq!(commands.len(), self.instances.len());
        for (instance, command) in self.instances.iter_mut().zip(commands) {
            instance.on_command(command, Nanos::ZERO);
            let adopted = instance.poll_event().expect("an answer to each change");
            assert_eq!(adopted.version(), self.rules.version());
            self.rules.retire(adopted);
        }
    }

    /// Returns the counts of a current rule, of all workers: matched, acted, unable.
    fn counts(&self, name: &str) -> (u64, u64, u64) {
        let (_, counters) = self.rules.iter().find(|(rule, _)| rule.name == name).expect("the rule");
        let sum = |count: fn(&RuleCounters) -> u64| counters.iter().map(|counters| count(counters)).sum();
        (sum(|c| c.matched.get()), sum(|c| c.acted.get()), sum(|c| c.unable.get()))
    }

    fn removed(&self, action: &str) -> (u64, u64) {
        let found = self.rules.removed().find(|(name, _)| *name == action);
        found.map_or((0, 0), |(_, counters)| (counters.matched, counters.acted))
    }
}

#[test]
fn other_rules_do_not_change_the_choices_and_counts_of_a_rule() {
    let lose = Rule { share: Probability::new(0.1).unwrap(), skip: 3, ..named("lose", Action::Drop) };
    let mark = named("mark", Action::Mark { force: true });
    let mut still = Plane::new(&config(vec![lose.clone()]), 1);
    let expected = dropped(&mut still.instances[0], 0..3000);
    let mut plane = Plane::new(&config(vec![lose.clone()]), 1);
    let mut missing = dropped(&mut plane.instances[0], 0..1000);
    plane.change(vec![mark.clone(), lose.clone()], &[]);
    missing.extend(dropped(&mut plane.instances[0], 1000..2000));
    plane.change(vec![lose, mark], &[]);
    plane.change(vec![plane.rules.config().rules[0].clone()], &[]);
    missing.extend(dropped(&mut plane.instances[0], 2000..3000));
    assert_eq!(missing, expected);
    assert_eq!(plane.counts("lose"), (3000, expected.len() as u64, 0));
    // `mark` came first at first, and then behind `lose`, when no packet arrived.
    assert_eq!(plane.removed("mark"), (1000, 1000));
}

#[test]
fn a_changed_share_continues_random_choices_and_counters() {
    let lose = |share| Rule { share: Probability::new(share).unwrap(), ..named("lose", Action::Drop) };
    let mut plane = Plane::new(&config(vec![lose(0.0)]), 1);
    assert_eq!(dropped(&mut plane.instances[0], 0..500), []);
    plane.change(vec![lose(0.3)], &[]);
    let missing = dropped(&mut plane.instances[0], 500..1500);
    let mut whole = Plane::new(&config(vec![lose(0.3)]), 1);
    let expected: Vec<_> = dropped(&mut whole.instances[0], 0..1500);
    assert_eq!(missing, expected.into_iter().filter(|psn| *psn >= 500).collect::<Vec<_>>());
    plane.change(vec![lose(0.0)], &[]);
    assert_eq!(dropped(&mut plane.instances[0], 1500..2000), []);
    assert_eq!(plane.counts("lose"), (2000, missing.len() as u64, 0));
}

#[test]
fn limits_restart_only_when_they_are_set() {
    let lose = |times| Rule { times, ..named("lose", Action::Drop) };
    let mut plane = Plane::new(&config(vec![lose(2)]), 1);
    assert_eq!(dropped(&mut plane.instances[0], 0..5), [0, 1]);
    plane.change(vec![lose(2)], &[]);
    assert_eq!(dropped(&mut plane.instances[0], 0..5), []);
    plane.change(vec![lose(2)], &["lose"]);
    assert_eq!(dropped(&mut plane.instances[0], 0..5), [0, 1]);
    plane.change(vec![lose(1)], &[]);
    assert_eq!(dropped(&mut plane.instances[0], 0..5), [0]);
    assert_eq!(plane.counts("lose"), (20, 5, 0));
}

#[test]
fn another_action_has_counters_of_its_own() {
    let mut plane = Plane::new(&config(vec![named("it", Action::Drop)]), 2);
    for instance in &mut plane.instances {
        dropped(instance, 0..3);
    }
    plane.change(vec![named("it", Action::Mark { force: true })], &[]);
    assert_eq!((plane.counts("it"), plane.removed("drop")), ((0, 0, 0), (6, 6)));
    plane.change(vec![], &[]);
    plane.change(vec![named("it", Action::Drop)], &[]);
    assert_eq!((plane.counts("it"), plane.removed("drop")), ((0, 0, 0), (6, 6)));
}

#[test]
fn held_frames_leave_when_they_were_due_though_their_rule_is_gone() {
    let delay = named("late", Action::Delay { by: Nanos(100), jitter: Nanos::ZERO });
    let reorder = Action::Reorder { behind: 2, at_most: Nanos(1000) };
    let mut plane = Plane::new(&config(vec![]), 1);
    plane.change(vec![delay.clone()], &[]);
    assert_eq!(run(&mut plane.instances[0], &PacketSpec::psn(0), 0).0, Verdict::Consume);
    plane.change(vec![named("behind", reorder)], &[]);
    assert_eq!(run(&mut plane.instances[0], &PacketSpec::psn(1), 0).0, Verdict::Consume);
    plane.change(vec![], &[]);
    assert_eq!(plane.instances[0].counters().held_now(), 2);
    assert_eq!(psns(&run(&mut plane.instances[0], &PacketSpec::psn(2), 10).1), [2]);
    assert_eq!(psns(&run(&mut plane.instances[0], &PacketSpec::psn(3), 20).1), [3]);
    assert_eq!(psns(&tick(&mut plane.instances[0], 20, 9)), [1], "two packets have overtaken it");
    assert_eq!(psns(&tick(&mut plane.instances[0], 99, 9)), []);
    assert_eq!(psns(&tick(&mut plane.instances[0], 100, 9)), [0]);
    // The slots stay, and a rule that needs them again uses them.
    plane.change(vec![delay], &[]);
    assert_eq!(run(&mut plane.instances[0], &PacketSpec::psn(4), 200).0, Verdict::Consume);
    assert_eq!(psns(&tick(&mut plane.instances[0], 300, 9)), [4]);
}

#[test]
fn offsets_count_from_the_first_packet_after_the_first_rule_with_one() {
    let psn_offset = Some(PsnRange { first: Psn::new(1), last: Psn::new(1) });
    let second = Rule { matching: Match { psn_offset, ..Match::default() }, ..named("second", Action::Drop) };
    let other = Rule { name: "other".into(), ..second.clone() };
    let mut plane = Plane::new(&config(vec![]), 1);
    plane.rules = plane.rules.salted(9);
    assert_eq!(dropped(&mut plane.instances[0], 0..10), []);
    plane.change(vec![second.clone()], &[]);
    assert_eq!(dropped(&mut plane.instances[0], 10..13), [11]);
    plane.change(vec![second, other.clone()], &[]);
    assert_eq!(dropped(&mut plane.instances[0], 11..13), [11], "known flows continue");
    plane.change(vec![], &[]);
    plane.change(vec![other], &[]);
    assert_eq!(dropped(&mut plane.instances[0], 20..23), [21]);
}

/// Step of a random run.
#[derive(Clone, Debug)]
enum Step {
    /// A packet arrives at this port, this many ns later.
    Packet { port: u16, after: u64 },
    /// The timer is due, with room for this many frames.
    Timer { after: u64, room: usize },
    /// These of the rules apply from now on.
    Change { rules: Vec<(usize, u64)> },
}

/// Rules of a random run, with their shares in percent
fn menu() -> Vec<Rule> {
    vec![
        named("drop", Action::Drop),
        named("copy", Action::Duplicate { copies: 2 }),
        named("payload", Action::Corrupt(Field::Payload)),
        named("icrc", Action::Corrupt(Field::Icrc)),
        named("mark", Action::Mark { force: true }),
        named("delay", Action::Delay { by: Nanos(50), jitter: Nanos(100) }),
        named("reorder", Action::Reorder { behind: 2, at_most: Nanos(300) }),
        // The same name with another action
        named("drop", Action::Delay { by: Nanos(20), jitter: Nanos(0) }),
    ]
}

fn step() -> impl Strategy<Value = Step> {
    let rules = proptest::collection::vec((0..menu().len(), 0..=100u64), 0..5);
    prop_oneof![
        8 => (0..2u16, 0..60u64).prop_map(|(port, after)| Step::Packet { port, after }),
        2 => (0..200u64, 0..4usize).prop_map(|(after, room)| Step::Timer { after, room }),
        1 => rules.prop_map(|rules| Step::Change { rules }),
    ]
}

/// Runs the steps. Every frame is accounted for exactly once: it leaves once, or once more for each copy that a
/// rule made, or a rule dropped it; and it differs only if a rule changed it. Returns what is wrong.
fn play(steps: &[Step], loses_held_frames: bool) -> Result<(), String> {
    let mut plane = Plane::new(&Config { held: 3, ..config(vec![]) }, 1);
    plane.instances[0].loses_held_frames = loses_held_frames;
    let mut now = Nanos(1);
    let mut sent: BTreeMap<u32, Vec<(Vec<u8>, PortId)>> = BTreeMap::new();
    // Copies expected of each packet, whether rules changed it, and its output port
    let mut expected: Vec<(usize, bool, PortId)> = Vec::new();
    let (mut drops, mut copies) = (0, 0);
    let take = |frames: Vec<(Vec<u8>, PortId)>, sent: &mut BTreeMap<u32, Vec<(Vec<u8>, PortId)>>| {
        for (frame, port) in frames {
            let psn = u32::from_be_bytes([0, frame[51], frame[52], frame[53]]);
            sent.entry(psn).or_default().push((frame, port));
        }
    };
    let timer = |plane: &mut Plane, now: Nanos, room: usize| {
        let mut out = FrameCollector::with_room(room);
        plane.instances[0].on_timer(now, &mut out);
        out.frames.into_iter().map(|(frame, port)| (frame.bytes().to_vec(), port)).collect::<Vec<_>>()
    };
    let acted = |plane: &Plane, names: &[&str]| -> u64 {
        let rules = plane.rules.iter().filter(|(rule, _)| names.contains(&rule.action.name()));
        rules.flat_map(|(_, counters)| counters).map(|counters| counters.acted.get()).sum()
    };
    for step in steps {
        match step {
            Step::Packet { port, after } => {
                now = now + Nanos(*after);
                let psn = expected.len() as u32;
                let before = (acted(&plane, &["duplicate"]), acted(&plane, &["corrupt", "mark"]));
                let (verdict, frames) =
                    run_frame(&mut plane.instances[0], &PacketSpec::psn(psn), PortId(*port), now);
                let made = 2 * (acted(&plane, &["duplicate"]) - before.0) as usize;
                let changed = acted(&plane, &["corrupt", "mark"]) > before.1;
                let kept = usize::from(!matches!(verdict, Verdict::Drop(_)));
                drops += 1 - kept as u64;
                copies += made as u64 / 2;
                expected.push((kept + made, changed, PortId(1 - port)));
                take(frames, &mut sent);
            }
            Step::Timer { after, room } => {
                now = now + Nanos(*after);
                take(timer(&mut plane, now, *room), &mut sent);
            }
            Step::Change { rules } => {
                let menu = menu();
                let mut chosen: Vec<Rule> = Vec::new();
                for &(index, percent) in rules {
                    let rule = Rule { share: Probability::percent(percent), ..menu[index].clone() };
                    if chosen.iter().all(|other| other.name != rule.name) {
                        chosen.push(rule);
                    }
                }
                plane.change(chosen, &[]);
            }
        }
    }
    while let Some(at) = plane.instances[0].next_timer() {
        now = now.max(at);
        take(timer(&mut plane, now, usize::MAX), &mut sent);
    }
    for (psn, (count, changed, port)) in (0..).zip(&expected) {
        let frames = sent.remove(&psn).unwrap_or_default();
        if frames.len() != *count {
            return Err(format!("packet {psn} left {} times instead of {count}", frames.len()));
        }
        if frames.iter().any(|(_, to)| to != port) {
            return Err(format!("packet {psn} left through another port"));
        }
        if !changed && frames.iter().any(|(frame, _)| *frame != PacketSpec::psn(psn)) {
            return Err(format!("no rule changed packet {psn}, but it differs"));
        }
    }
    let counted = |action| acted(&plane, &[action]) + plane.removed(action).1;
    if (counted("drop"), counted("duplicate")) != (drops, copies) {
        return Err(format!("{drops} drops, {copies} duplications: counted otherwise by the rules"));
    }
    match sent.len() {
        0 => Ok(()),
        _ => Err("packets left that had not arrived".into()),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1000, ..ProptestConfig::default() })]
    #[test]
    fn every_frame_is_accounted_for_once_whatever_rules_change(steps in proptest::collection::vec(step(), 0..120)) {
        prop_assert_eq!(play(&steps, false), Ok(()));
    }
}

/// Planted bug: adopting new rules loses the frames that are held back.
#[test]
fn planted_loss_of_held_frames_is_found() {
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    let steps = proptest::collection::vec(step(), 0..120);
    let result = runner.run(&steps, |steps| {
        prop_assert_eq!(play(&steps, true), Ok(()));
        Ok(())
    });
    let error = result.expect_err("the bug is found").to_string();
    assert!(error.contains("left 0 times instead of 1"), "{error}");
}
