use super::*;
use proptest::prelude::*;

/// Links 0 and 1 feed the upper half; 2, 3 and the path between the halves the lower one.
const PLACES: [(usize, usize); 4] = [(UP, 0), (UP, 1), (DOWN, 1), (DOWN, 2)];
const FAIL_AFTER: u64 = 10;
const SOURCE: u32 = 7;

fn at(nanos: u64) -> Timestamp {
    Timestamp::new(nanos)
}

fn commit() -> Commit {
    Commit::new(PLACES.into_iter(), (DOWN, 0), FAIL_AFTER, None)
}

fn setting(link: u16, counted: bool) -> Setting {
    Setting {
        link,
        counted,
        frozen: false,
        muted: [false; 2],
        introduced: true,
        sources: vec![(0, Qpn::new(SOURCE))],
    }
}

fn state(floors: [u64; 2], links: Vec<Setting>) -> Configuration {
    let floors = floors.map(|floor| (floor != 0).then(|| at(floor)));
    Configuration { version: 1, floors, links, outputs: [None; 2], values: Vec::new() }
}

fn beacon(commit: &mut Commit, link: usize, time: u64) -> Source {
    commit.on_beacon(link, Some((0, Qpn::new(SOURCE))), Some(at(time)))
}

fn value(link: u16, caught: bool, silent: bool, raw: u64) -> LinkValue {
    LinkValue { link, caught, silent, quiet: silent.into(), raw: (raw != 0).then(|| at(raw)) }
}

fn changes(commit: &mut Commit) -> Vec<LinkValue> {
    core::iter::from_fn(|| commit.poll_change()).collect()
}

#[test]
fn no_input_counts_below_its_floor() {
    let mut commit = commit();
    let mut wanted = state([100, 0], vec![setting(0, true), setting(1, true)]);
    commit.configure(&mut wanted);
    assert_eq!(wanted.values, [value(0, false, false, 0), value(1, false, false, 0)]);
    beacon(&mut commit, 0, 120);
    assert_eq!(changes(&mut commit), [value(0, true, false, 120)]);
    beacon(&mut commit, 1, 99);
    assert_eq!((commit.output(UP), changes(&mut commit)), (None, vec![]));
    beacon(&mut commit, 1, 100);
    assert_eq!((commit.output(UP), changes(&mut commit)), (Some(at(100)), vec![value(1, true, false, 100)]));
    beacon(&mut commit, 1, 130);
    assert_eq!(commit.output(UP), Some(at(120)));
    // An input that counts again waits for the output, or for what it had if that is more.
    commit.configure(&mut state([100, 0], vec![setting(1, false)]));
    beacon(&mut commit, 0, 200);
    assert_eq!(commit.output(UP), Some(at(200)));
    let mut again = state([100, 0], vec![setting(1, true)]);
    commit.configure(&mut again);
    assert_eq!(again.values, [value(1, false, false, 130)]);
    beacon(&mut commit, 0, 300);
    assert_eq!(commit.output(UP), Some(at(200)), "it waits");
    beacon(&mut commit, 1, 250);
    assert_eq!(commit.output(UP), Some(at(250)));
}

#[test]
fn silence_is_counted_from_when_a_link_counts() {
    let mut commit = commit();
    for _ in 0..20 {
        commit.tick(at(5));
    }
    commit.configure(&mut state([0; 2], (0..4).map(|link| setting(link, link != 3)).collect()));
    beacon(&mut commit, 0, 50);
    changes(&mut commit);
    let mut silent = Vec::new();
    for tick in 1..=20 {
        commit.tick(at(5));
        beacon(&mut commit, 2, 60);
        commit.on_beacon(0, Some((0, Qpn::new(SOURCE + 1))), Some(at(90)));
        silent.extend(changes(&mut commit).into_iter().map(|value| (tick, value)));
    }
    silent.sort_by_key(|(_, value)| value.link);
    let [(first, a), (second, b)] = &silent[..] else { panic!("{silent:?}") };
    assert_eq!([a, b], [&value(0, true, true, 50), &value(1, true, true, 0)]);
    let within = FAIL_AFTER + 1..=FAIL_AFTER + CHECKED_WITHIN as u64;
    assert!(within.contains(first) && within.contains(second), "{silent:?}");
    // A link that speaks again is reported, also if it does not count any more.
    beacon(&mut commit, 1, 55);
    assert_eq!(changes(&mut commit), [value(1, true, false, 55)]);
    commit.configure(&mut state([0; 2], vec![setting(0, false)]));
    assert_eq!(commit.on_beacon(0, Some((0, Qpn::new(SOURCE + 1))), None), Source::Known);
    assert_eq!(changes(&mut commit), [], "of another incarnation");
    beacon(&mut commit, 0, 100);
    assert_eq!(changes(&mut commit), [value(0, false, false, 50)]);
    for _ in 0..20 {
        commit.tick(at(5));
    }
    let again: Vec<_> = changes(&mut commit).into_iter().filter(|value| value.link == 0).collect();
    assert_eq!(again, [value(0, false, true, 50)]);
}

/// The controller lets a link count when it is heard: it does not have to find out by a failure that it is dead.
#[test]
fn a_link_that_does_not_count_is_silent_until_its_source_is_heard() {
    let mut commit = commit();
    let mut wanted = state([0; 2], vec![setting(0, false), Setting { sources: vec![], ..setting(1, false) }]);
    commit.configure(&mut wanted);
    assert_eq!(wanted.values, [value(0, false, true, 0), value(1, false, false, 0)], "no source, no silence");
    commit.on_beacon(0, Some((0, Qpn::new(SOURCE + 1))), Some(at(90)));
    assert_eq!(changes(&mut commit), [], "of another incarnation");
    beacon(&mut commit, 0, 50);
    assert_eq!(changes(&mut commit), [value(0, false, false, 0)], "its values do not count");
    let mut same = state([0; 2], vec![setting(0, false)]);
    commit.configure(&mut same);
    assert_eq!(same.values, [value(0, false, false, 0)]);
    let next = Setting { sources: vec![(0, Qpn::new(SOURCE + 1))], ..setting(0, false) };
    let mut replaced = state([0; 2], vec![next]);
    commit.configure(&mut replaced);
    assert_eq!(replaced.values, [value(0, false, true, 0)], "another incarnation has to be heard");
}

#[test]
fn change_is_returned_once_with_the_last_state() {
    let mut commit = commit();
    commit.configure(&mut state([100, 0], vec![setting(0, true)]));
    for _ in 0..20 {
        commit.tick(at(5));
    }
    beacon(&mut commit, 0, 150);
    assert_eq!(changes(&mut commit), [value(0, true, false, 150)]);
}

#[test]
fn unknown_links_of_a_state_are_left_out() {
    let mut commit = commit();
    let mut wanted = state([0; 2], vec![setting(4, true), setting(LOOPBACK, true)]);
    commit.configure(&mut wanted);
    assert_eq!(wanted.values, [value(LOOPBACK, true, false, 0)]);
}

/// Something that happens to the registers.
#[derive(Clone, Debug)]
enum Act {
    /// A beacon, by how much its commit barrier is after or before the present time, and whether it is of the
    /// named incarnation
    Beacon(usize, i64, bool),
    /// Settings of some links: counted, frozen; and by how much floors are ahead of the present time
    Configure(Vec<(u16, bool, bool)>, i64),
    Tick,
}

fn act() -> impl Strategy<Value = Act> {
    let link = prop::sample::select(vec![0u16, 1, 2, 3, LOOPBACK]);
    let settings = prop::collection::vec((link, prop::bool::weighted(0.7), prop::bool::weighted(0.3)), 0..6);
    prop_oneof![
        10 => (0usize..4, -200i64..200, prop::bool::weighted(0.9)).prop_map(|(a, b, c)| Act::Beacon(a, b, c)),
        3 => (settings, -300i64..300).prop_map(|(links, by)| Act::Configure(links, by)),
        2 => Just(Act::Tick),
    ]
}

/// Input of the reference implementation, which is that of the controller's test nodes.
#[derive(Clone, Copy, Debug, Default)]
struct Model {
    counted: bool,
    frozen: bool,
    caught: bool,
    floor: i128,
    raw: i128,
}

/// Reference implementation: unwrapped integers, and a minimum over all inputs every time.
#[derive(Debug, Default)]
struct Models {
    inputs: [Model; 5],
    outputs: [i128; 2],
}

impl Models {
    fn half(input: usize) -> usize {
        usize::from(input >= 2)
    }

    fn accept(&mut self, input: usize, time: i128) {
        let model = &mut self.inputs[input];
        if model.counted && !model.frozen {
            model.raw = model.raw.max(time);
            model.caught |= model.raw >= model.floor;
        }
        self.rise();
    }

    fn rise(&mut self) {
        for half in 0..2 {
            let counted = || {
                let of_half = self.inputs.iter().enumerate().filter(|(input, _)| Self::half(*input) == half);
                of_half.map(|(_, model)| model).filter(|model| model.counted)
            };
            if counted().all(|model| model.caught)
                && let Some(least) = counted().map(|model| model.raw).min()
            {
                self.outputs[half] = self.outputs[half].max(least);
            }
        }
    }

    fn loop_back(&mut self) {
        if self.outputs[0] != 0 {
            self.accept(4, self.outputs[0]);
        }
    }

    fn set(&mut self, input: usize, (counted, frozen): (bool, bool), floors: [i128; 2]) {
        let output = self.outputs[Self::half(input)];
        let model = &mut self.inputs[input];
        if counted && !model.counted {
            model.floor = floors[Self::half(input)].max(output);
            model.caught = model.raw >= model.floor;
        }
        (model.counted, model.frozen) = (counted, frozen);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]
    #[test]
    fn registers_equal_those_of_the_reference_implementation(
        start in 1i128..1 << 48,
        acts in prop::collection::vec(act(), 0..200),
    ) {
        let mut time = start + (1 << 60);
        let wire = |time: i128| Timestamp::new(time as u64);
        let (mut commit, mut models) = (commit(), Models::default());
        for act in acts {
            time += 50;
            match act {
                Act::Beacon(link, by, named) => {
                    let value = time + i128::from(by);
                    let source = Qpn::new(if named { SOURCE } else { SOURCE + 1 });
                    let result = commit.on_beacon(link, Some((0, source)), Some(wire(value)));
                    let refused = !named && models.inputs[link].counted;
                    prop_assert_eq!(result, if refused { Source::Unknown } else { Source::Known });
                    if named {
                        models.accept(link, value);
                        models.loop_back();
                    }
                }
                Act::Configure(links, by) => {
                    let floors = [time + i128::from(by), time - i128::from(by)];
                    let settings = links.iter().map(|&(link, counted, frozen)| {
                        Setting { frozen, ..setting(link, counted) }
                    });
                    let mut wanted = Configuration {
                        floors: floors.map(|floor| Some(wire(floor))),
                        ..state([0; 2], settings.collect())
                    };
                    commit.configure(&mut wanted);
                    for &(link, counted, frozen) in &links {
                        models.set(usize::from(link).min(4), (counted, frozen), floors);
                    }
                    models.rise();
                    models.loop_back();
                    for answer in &wanted.values {
                        let model = &models.inputs[usize::from(answer.link).min(4)];
                        let raw = (model.raw != 0).then(|| wire(model.raw));
                        prop_assert_eq!((answer.raw, answer.caught), (raw, model.counted && model.caught));
                    }
                    let outputs = models.outputs.map(|output| (output != 0).then(|| wire(output)));
                    prop_assert_eq!(wanted.outputs, outputs);
                }
                Act::Tick => commit.tick(wire(time)),
            }
            let outputs = models.outputs.map(|output| (output != 0).then(|| wire(output)));
            prop_assert_eq!([UP, DOWN].map(|half| commit.output(half)), outputs);
        }
    }
}

/// Takes a beacon of the named queue pair from the other end of the link.
fn from_other_end(bug: Option<Bug>) -> (Source, Option<Timestamp>) {
    let mut commit = Commit::new(PLACES.into_iter(), (DOWN, 0), FAIL_AFTER, bug);
    commit.configure(&mut state([0; 2], vec![setting(0, true)]));
    let source = commit.on_beacon(0, Some((1, Qpn::new(SOURCE))), Some(at(50)));
    (source, commit.output(UP))
}

#[test]
fn queue_pair_is_a_source_at_its_end_alone() {
    assert_eq!(from_other_end(None), (Source::Unknown, None));
    // Both ends may be named; the register is their maximum.
    let mut commit = commit();
    let sources = vec![(0, Qpn::new(SOURCE)), (1, Qpn::new(SOURCE + 1))];
    commit.configure(&mut state([0; 2], vec![Setting { sources, ..setting(0, true) }]));
    let mut from = |end, qpn, time| commit.on_beacon(0, Some((end, Qpn::new(qpn))), Some(at(time)));
    assert_eq!(
        [from(0, SOURCE, 60), from(1, SOURCE + 1, 55), from(1, SOURCE, 90)],
        [Source::Known, Source::Known, Source::Unknown]
    );
    assert_eq!(commit.output(UP), Some(at(60)));
}

#[cfg(debug_assertions)]
#[test]
fn source_at_any_end_is_found() {
    assert_ne!(from_other_end(Some(Bug::OtherEnd)), (Source::Unknown, None));
}

#[test]
fn each_source_of_a_link_is_heard_or_not() {
    let mut commit = commit();
    let both = |counted| Setting {
        sources: vec![(0, Qpn::new(SOURCE)), (1, Qpn::new(SOURCE + 1))],
        ..setting(0, counted)
    };
    let quiet = |commit: &mut Commit, setting| {
        let mut wanted = state([0; 2], vec![setting]);
        commit.configure(&mut wanted);
        (wanted.values[0].silent, wanted.values[0].quiet)
    };
    assert_eq!(quiet(&mut commit, both(false)), (true, 3), "none is heard before the link counts");
    beacon(&mut commit, 0, 50);
    assert_eq!(quiet(&mut commit, both(false)), (false, 2));
    assert_eq!(quiet(&mut commit, both(true)), (false, 0), "silence begins when it counts");
    changes(&mut commit);
    for _ in 0..20 {
        commit.tick(at(5));
        beacon(&mut commit, 0, 50);
    }
    let value = |quiet| LinkValue { quiet, ..value(0, true, false, 50) };
    assert_eq!(changes(&mut commit), [value(2)]);
    // A source that stays is heard for as long as before, also if the other one is replaced.
    let other = vec![(0, Qpn::new(SOURCE)), (1, Qpn::new(SOURCE + 2))];
    assert_eq!(quiet(&mut commit, Setting { sources: other, ..setting(0, true) }), (false, 0));
    commit.on_beacon(0, Some((1, Qpn::new(SOURCE + 2))), None);
    assert_eq!(
        quiet(&mut commit, setting(0, true)),
        (false, 0),
        "one that is not named any more is not missed"
    );
    for _ in 0..20 {
        commit.tick(at(5));
    }
    assert_eq!(quiet(&mut commit, setting(0, true)), (true, 1));
    let replaced = Setting { sources: vec![(0, Qpn::new(SOURCE + 3))], ..setting(0, true) };
    assert_eq!(quiet(&mut commit, replaced), (true, 1), "a silent link stays silent until it is heard");
}
