//! Drawn versions of a configuration, and a function that takes time, is busy, or refuses: what is in effect follows from
//! the last version, whichever were read before it.

use super::*;
use crate::run::source::load_file;
use crate::system::now;
use proptest::prelude::*;
use std::cell::RefCell;
use std::fs;
use swordbox::Layers;
use tempfile::TempDir;
use understudy_tests::etcd_stand_in::{Fault, StandIn};

const DEADLINE: Duration = Duration::from_secs(40);
const LAYERS: [(&str, Layers); 3] = [
    ("", Layers::PASS),
    ("\"remap\"", Layers { remap: true, ..Layers::PASS }),
    ("\"remap\", \"cas_to_write\"", Layers::CAS_TO_WRITE),
];

/// How a version differs from that of the start, beside its layers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Difference {
    Nothing,
    /// It is not TOML
    Broken,
    /// It is for another command
    Unsuitable,
    /// It has another function
    Function,
    /// Another key of the function
    Held,
    /// Another key of a port
    Port,
    /// Another table
    Runtime,
    Observe,
    /// A comment
    Words,
}

const DIFFERENCES: [Difference; 9] = [
    Difference::Nothing,
    Difference::Broken,
    Difference::Unsuitable,
    Difference::Function,
    Difference::Held,
    Difference::Port,
    Difference::Runtime,
    Difference::Observe,
    Difference::Words,
];

/// What the function does with a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reaction {
    Follows,
    FollowsLate,
    IsBusy,
    Refuses,
}

const REACTIONS: [Reaction; 4] =
    [Reaction::Follows, Reaction::FollowsLate, Reaction::IsBusy, Reaction::Refuses];

fn text(layers: usize, difference: Difference) -> String {
    let port = |name: &str| format!("[[port]]\nname = \"{name}\"\nring = {{}}\n");
    let descriptors = if difference == Difference::Port { "descriptors = 1024\n" } else { "" };
    let mut text = format!("{}{}{descriptors}", port("a"), port("b"));
    text += match difference {
        Difference::Runtime => "[runtime]\ncontrol_queue = 64\n",
        Difference::Observe => "[observe]\nsocket = \"observe.sock\"\n",
        Difference::Words => "# A comment\n",
        Difference::Broken => "[runtime\n",
        _ => "",
    };
    match difference {
        Difference::Function => return text + "[forward]\npairs = [[\"a\", \"b\"]]\n",
        Difference::Unsuitable => return text + "[process]\nid = 1\n",
        _ => {}
    }
    let held = if difference == Difference::Held { "held = 7\n" } else { "" };
    let server = "[[swordbox.server]]\nhost = \"10.0.0.9\"\n";
    text + &format!(
        "[swordbox]\npairs = [[\"a\", \"b\"]]\njournal = \"j\"\nlayers = [{}]\n{held}{server}",
        LAYERS[layers].0
    )
}

/// Returns the configuration in a file, which lives as long as the test.
fn loaded(path: &Path) -> &'static Loaded {
    let loaded = load_file(path, &|_: &Config| Ok(())).unwrap_or_else(|(text, _)| panic!("{text}"));
    Box::leak(Box::new(loaded))
}

/// A function, and the follower of its configuration.
struct Instance {
    folder: TempDir,
    hangup: Arc<AtomicBool>,
    follower: RefCell<Follower<'static>>,
    steer: Sender<Steering>,
    requests: Receiver<Steering>,
    layers: Layers,
}

impl Instance {
    fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("my.toml");
        fs::write(&path, text(0, Difference::Nothing)).unwrap();
        let (hangup, demand) = (Arc::new(AtomicBool::new(false)), |_: &Config| Ok(()));
        let source = Source::File(path.clone());
        let reloads = Some(Arc::clone(&hangup));
        let follower = Follower::new(source, loaded(&path), None, Arc::new(demand), reloads, None);
        let (steer, requests) = crate::observe::steer::queue();
        Self { folder, hangup, follower: follower.into(), steer, requests, layers: LAYERS[0].1 }
    }

    /// Makes the follower read a version, and waits until it has an outcome. Returns whether the function refused it.
    fn read(&mut self, text: &str, reaction: Reaction, delay: u32) -> bool {
        fs::write(self.folder.path().join("my.toml"), text).unwrap();
        self.hangup.store(true, Ordering::Relaxed);
        let follower = self.follower.get_mut();
        let (versions, began) = (follower.state.versions, now());
        let (mut ticks, mut is_refused) = (0, false);
        let mut waiting = Vec::new();
        while follower.state.versions == versions {
            assert!(began.elapsed() < DEADLINE);
            follower.on_tick(&self.steer);
            waiting.extend(self.requests.try_iter().map(|request| (request, ticks + delay)));
            while let Some((request, _)) = waiting.pop_if(|(_, at)| *at <= ticks) {
                let Steering::Layers(layers, response) = request else { panic!("{request:?}") };
                let missing = vec![1];
                let answer = match reaction {
                    Reaction::IsBusy if ticks < 8 => Err(SteerError::Busy { waiting: missing }),
                    Reaction::Follows | Reaction::IsBusy => Ok(layers),
                    Reaction::FollowsLate => Err(SteerError::Late { waiting: missing }),
                    Reaction::Refuses => Err(SteerError::Invalid("no".into())),
                };
                is_refused = reaction == Reaction::Refuses;
                if answer.is_ok() || reaction == Reaction::FollowsLate {
                    self.layers = layers;
                }
                response.send(answer).unwrap();
            }
            ticks += 1;
            thread::yield_now();
        }
        is_refused
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn what_is_in_effect_follows_from_the_last_version(
        versions in prop::collection::vec(
            (0..LAYERS.len(), prop::sample::select(&DIFFERENCES[..]), prop::sample::select(&REACTIONS[..]), 0_u32..4),
            1..10,
        ),
    ) {
        let mut instance = Instance::start();
        for (layers, difference, reaction, delay) in versions {
            let before = instance.layers;
            let is_refused = instance.read(&text(layers, difference), reaction, delay);
            let state = instance.follower.get_mut().state.clone();
            let is_valid = !matches!(difference, Difference::Broken | Difference::Unsuitable);
            let can_follow = is_valid && !matches!(difference, Difference::Function | Difference::Held | Difference::Port);
            let wanted = LAYERS[layers].1;
            let expected = if can_follow && !is_refused { wanted } else { before };
            prop_assert_eq!(instance.layers, expected);
            prop_assert_eq!(is_refused, can_follow && reaction == Reaction::Refuses && wanted != before);
            prop_assert_eq!(state.is_refused, !is_valid || is_refused);
            let is_complete = matches!(difference, Difference::Nothing | Difference::Words);
            if !state.is_refused {
                prop_assert_eq!(state.needs_restart, !is_complete);
                let hash = short_hash(&text(layers, difference));
                prop_assert_eq!(state.hash == hash, is_complete);
            }
        }
        // The configuration of the start ends everything.
        instance.read(&text(0, Difference::Nothing), Reaction::Follows, 0);
        let state = &instance.follower.get_mut().state;
        prop_assert_eq!(instance.layers, LAYERS[0].1);
        prop_assert!(!state.is_refused && !state.needs_restart);
        prop_assert_eq!(state.hash, short_hash(&text(0, Difference::Nothing)));
    }
}

#[test]
fn keys_that_need_a_restart_are_named() {
    for (layers, difference, expected) in [
        (0, Difference::Nothing, &[][..]),
        (1, Difference::Port, &["port.b.descriptors", "swordbox.layers"]),
        (1, Difference::Runtime, &["runtime"]),
        (1, Difference::Held, &["swordbox.held", "swordbox.layers"]),
        (0, Difference::Held, &["swordbox.held"]),
        (0, Difference::Function, &["swordbox", "forward"]),
    ] {
        let instance = Instance::start();
        let follower = instance.follower.borrow();
        let follows = !matches!(difference, Difference::Port | Difference::Held | Difference::Function);
        if difference != Difference::Nothing {
            assert_eq!(follower.restart_keys(&text(layers, difference), follows), expected, "{difference:?}");
        }
    }
}

/// A configuration is cached when etcd has answered ten seconds after it took effect, and never before.
#[test]
fn only_a_configuration_that_leaves_etcd_within_reach_is_cached() {
    const KEY: &str = "/understudy/rack1";
    let folder = tempfile::tempdir().unwrap();
    let cached = folder.path().join("cache.toml");
    let initial = text(1, Difference::Nothing);
    let server = StandIn::start(KEY);
    server.put(Some(&initial));
    let address: crate::etcd::Address = server.address().parse().unwrap();
    let reader = Reader::start(address.clone()).unwrap();
    let demand: Arc<Demand> = Arc::new(|_: &Config| Ok(()));
    let source = Source::Etcd(address);
    let parsed = source::parse(&source.origin(), Path::new(""), initial.clone().into(), &*demand);
    let (config, text_of_start) = parsed.unwrap();
    let loaded = Loaded { config, text: text_of_start, revision: Some(2), is_refused: false };
    let mut follower = Follower::new(source, &loaded, Some(reader), demand, None, Some(&cached));
    let (steer, requests) = crate::observe::steer::queue();
    let tick_until = |follower: &mut Follower<'_>, is_done: &dyn Fn(&Follower<'_>) -> bool| {
        let began = now();
        while !is_done(follower) {
            assert!(began.elapsed() < DEADLINE);
            follower.on_tick(&steer);
            thread::sleep(Duration::from_millis(1));
        }
    };
    // Before the first turn, the ports may not be open.
    assert_eq!(follower.cache.as_ref().unwrap().unwritten.as_ref().unwrap().2, None);
    // The first value is that of the start, so nothing changes.
    tick_until(&mut follower, &|follower| follower.state.versions > 0);
    let answered = |follower: &Follower<'_>| follower.reader.as_ref().unwrap().answered_at();
    let before = answered(&follower);
    let set_age = |follower: &mut Follower<'_>, age: Duration| {
        follower.cache.as_mut().unwrap().unwritten.as_mut().unwrap().2 = now().checked_sub(age);
    };
    // etcd answers, and the configuration is new.
    follower.reader.as_ref().unwrap().read_now();
    tick_until(&mut follower, &|follower| answered(follower) > before);
    assert!(!cached.exists() && !follower.state.is_cached);
    // The configuration is old, and etcd has not answered since.
    server.set_fault(Some(Fault::Closes));
    follower.reader.as_ref().unwrap().read_now();
    tick_until(&mut follower, &|follower| follower.reader.as_ref().unwrap().error().is_some());
    set_age(&mut follower, CACHED_AFTER);
    let began = now();
    tick_until(&mut follower, &|_| began.elapsed() > Duration::from_millis(50));
    assert!(!cached.exists() && !follower.state.is_cached);
    // It is old, and etcd answers.
    server.set_fault(None);
    follower.reader.as_ref().unwrap().read_now();
    tick_until(&mut follower, &|follower| follower.state.is_cached);
    assert_eq!(cache::read(&cached, KEY), Ok(Some(initial)));
    // The next version that is in effect replaces it in time.
    server.put(Some(&(text(1, Difference::Nothing) + "# more\n")));
    follower.reader.as_ref().unwrap().read_now();
    tick_until(&mut follower, &|follower| follower.text.ends_with("# more\n"));
    assert!(!follower.state.is_cached);
    // One that needs a restart does not: the one before stays in effect, and is written.
    server.put(Some(&text(1, Difference::Held)));
    follower.reader.as_ref().unwrap().read_now();
    tick_until(&mut follower, &|follower| follower.state.needs_restart);
    set_age(&mut follower, CACHED_AFTER);
    follower.reader.as_ref().unwrap().read_now();
    tick_until(&mut follower, &|follower| follower.state.is_cached);
    assert_eq!(cache::read(&cached, KEY), Ok(Some(text(1, Difference::Nothing) + "# more\n")));
    // Of a version that is in effect in part, neither it nor the one before is written.
    server.put(Some(&text(2, Difference::Runtime)));
    follower.reader.as_ref().unwrap().read_now();
    let respond = |follower: &mut Follower<'_>| {
        follower.on_tick(&steer);
        if let Ok(Steering::Layers(layers, response)) = requests.try_recv() {
            response.send(Ok(layers)).unwrap();
        }
    };
    while follower.state.is_cached {
        respond(&mut follower);
    }
    assert!(follower.state.needs_restart && follower.cache.as_ref().unwrap().unwritten.is_none());
    // A write that fails is repeated.
    follower.cache.as_mut().unwrap().path = folder.path().join("none/cache.toml");
    let whole = text(2, Difference::Nothing);
    server.put(Some(&whole));
    follower.reader.as_ref().unwrap().read_now();
    tick_until(&mut follower, &|follower| !follower.state.needs_restart);
    set_age(&mut follower, CACHED_AFTER);
    follower.reader.as_ref().unwrap().read_now();
    tick_until(&mut follower, &|follower| follower.cache.as_ref().unwrap().has_failed);
    assert!(!follower.state.is_cached);
    follower.cache.as_mut().unwrap().path.clone_from(&cached);
    set_age(&mut follower, CACHED_AFTER);
    follower.reader.as_ref().unwrap().read_now();
    tick_until(&mut follower, &|follower| follower.state.is_cached);
    assert_eq!(cache::read(&cached, KEY), Ok(Some(whole)));
}

/// A ramp cannot be requested, so a return to one needs a restart.
#[test]
fn a_ramp_of_the_generator_does_not_take_effect_in_a_run() {
    let config = |rate: &str| {
        let ports = "[[port]]\nname = \"a\"\nring = {}\n[pktgen]\nsend = \"a\"\nreceive = \"a\"\n";
        let stream = "[[pktgen.stream]]\nname = \"writes\"\nverb = \"write\"\nsrc = \"10.0.0.1\"\ndst = \"10.0.0.2\"\n";
        let text = format!("{ports}{stream}rate = {rate}\n");
        crate::config::parse(&text, "my.toml", Path::new(""))
            .unwrap_or_else(|report| panic!("{}", report.render()))
    };
    let [steady, fast, ramp] =
        ["{ packets_per_s = 5 }", "{ bits_per_s = 5_000_000 }", "{ packets_per_s = [1, 9], over_s = 2 }"]
            .map(config);
    for (from, to, follows) in [(&steady, &fast, true), (&ramp, &steady, true), (&steady, &ramp, false)] {
        let mut function = from.function.clone();
        let change = function.follow(&to.function, &to.runtime.ports);
        assert_eq!((change.is_some(), function == to.function), (follows, follows));
    }
}
