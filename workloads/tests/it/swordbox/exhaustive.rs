//! Plays every order of deliveries of two clients, one word and a server that restarts.
//!
//! An order differs from the usual one in a stretch of DEPTH successive choices, wherever that stretch
//! begins. Within the stretch, the first frame of any link may be delivered next, the server may restart, and
//! a client that detects the restart may reconnect. The usual order is that of links of equal latency. Of
//! orders that differ only in the sequence of two independent choices, only one is played (sleep sets;
//! Godefroid, "Partial-Order Methods", LNCS 1032, chapter 5).

mod history;
mod hosts;
mod play;

use play::{Choice, Options, Play, Totals};
use std::collections::BTreeSet;

/// Length of the stretch if orders have no further kinds of choices, unless `DEPTH` is set
const DEPTH: usize = 4;

/// Steps from one restart to the next where there is time for some of them only
const STRIDE: usize = 8;

/// A point at which there are several choices.
struct Node {
    choices: Vec<Choice>,
    /// Index of the choice that is played
    at: usize,
    /// Choices that lead to orders which are played elsewhere
    asleep: Vec<Choice>,
}

impl Node {
    fn chosen(&self) -> Choice {
        self.choices[self.at]
    }

    /// Returns the choices after the one being played that lead to orders which are played elsewhere.
    fn asleep_behind(&self) -> Vec<Choice> {
        let tried = self.asleep.iter().chain(&self.choices[..self.at]);
        tried.copied().filter(|other| other.is_independent_of(self.chosen())).collect()
    }
}

/// Exploration of all orders, and its results
struct Explorer {
    options: Options,
    depth: usize,
    /// Whether every order is played, including those that differ only in the sequence of independent choices
    plays_all: bool,
    orders: u64,
    totals: Totals,
    /// Digests of the histories
    histories: BTreeSet<u64>,
}

impl Explorer {
    fn new(options: Options, depth: usize) -> Self {
        let (totals, histories) = (Totals::default(), BTreeSet::new());
        Self { options, depth, plays_all: false, orders: 0, totals, histories }
    }

    /// Plays every order.
    fn explore(mut self) -> Result<Self, String> {
        let usual = self.begin(usize::MAX);
        let end = usual.steps();
        self.finish(usual)?;
        for from in self.options.restart_at.map_or(0, |at| at + 1)..=end {
            self.explore_from(from)?;
        }
        Ok(self)
    }

    /// Plays the first `from` steps in the usual order, or until the run is over.
    fn begin(&self, from: usize) -> Play {
        let mut play = Play::new(self.options);
        while play.steps() < from && !play.is_over() {
            play.step(play.usual());
        }
        play
    }

    /// Plays every order whose stretch begins at step `from`.
    fn explore_from(&mut self, from: usize) -> Result<(), String> {
        let mut path: Vec<Node> = Vec::new();
        loop {
            let mut play = self.begin(from);
            for node in &path {
                play.step(node.chosen());
            }
            if self.extend(&mut path, &mut play) {
                self.finish(play).map_err(|wrong| {
                    let chosen: Vec<_> = path.iter().map(Node::chosen).collect();
                    format!("{wrong}\nafter {from} steps as usual and {chosen:?}, with {:?}", self.options)
                })?;
            }
            while path.last().is_some_and(|node| node.at + 1 == node.choices.len()) {
                path.pop();
            }
            match path.last_mut() {
                Some(node) => node.at += 1,
                None => return Ok(()),
            }
        }
    }

    /// Makes the first choice wherever there are several, up to the depth. Returns false if all orders from
    /// there on are played elsewhere.
    fn extend(&self, path: &mut Vec<Node>, play: &mut Play) -> bool {
        while path.len() < self.depth {
            let asleep = match path.last() {
                _ if self.plays_all => Vec::new(),
                // An order that begins with the usual choice is played by a stretch that begins one step
                // later.
                None => vec![play.usual()],
                Some(node) => node.asleep_behind(),
            };
            let mut choices = play.choices();
            choices.retain(|choice| !asleep.contains(choice));
            let Some(first) = choices.first().copied() else { return false };
            path.push(Node { choices, at: 0, asleep });
            play.step(first);
        }
        true
    }

    fn finish(&mut self, play: Play) -> Result<(), String> {
        let (totals, digest) = play.finish()?;
        self.orders += 1;
        self.totals.add(&totals);
        self.histories.insert(digest);
        Ok(())
    }
}

/// Returns `DEPTH` from the environment, or the default, less `less`, because further kinds of choices
/// multiply the orders.
fn depth(less: usize) -> usize {
    let depth = std::env::var("DEPTH").ok().and_then(|value| value.parse().ok()).unwrap_or(DEPTH);
    depth.saturating_sub(less).max(1)
}

/// Plays every order, and checks that there are more than `least`.
fn play(options: Options, depth: usize, least: u64) {
    let explored = Explorer::new(options, depth).explore().unwrap_or_else(|wrong| panic!("{wrong}"));
    let (orders, histories) = (explored.orders, explored.histories.len());
    println!("depth {depth}: {orders} orders, {histories} histories, {:?}", explored.totals);
    assert!(orders > least && explored.totals.decided > 0, "{orders} orders, {:?}", explored.totals);
}

#[test]
fn every_order_around_a_restart_is_linearizable() {
    play(Options::default(), depth(0), 1000);
}

#[test]
fn every_order_with_the_same_queue_pair_numbers_after_a_restart_is_linearizable() {
    play(Options { same_numbers: true, ..Options::default() }, depth(1), 500);
}

#[test]
fn every_order_with_frames_that_stay_in_flight_is_linearizable() {
    play(Options { waits: 1, ..Options::default() }, depth(2), 300);
}

#[test]
fn every_order_with_a_lost_duplicated_or_overtaken_frame_is_linearizable() {
    play(Options { faults: 1, ..Options::default() }, depth(3), 500);
}

/// In a sequence of long WRITEs, packets in the middle are retransmitted after the other client has used the
/// word.
#[test]
fn every_order_of_long_writes_with_lost_frames_is_linearizable() {
    play(Options { faults: 1, long: true, ..Options::default() }, depth(3), 200);
}

/// The restart occurs at any step, and the stretch begins anywhere after it.
#[test]
fn every_order_after_every_restart_is_linearizable() {
    let depth = depth(4);
    let stride = if depth > 1 { 1 } else { STRIDE };
    let mut orders = 0;
    for restart_at in (0..).step_by(stride) {
        let options = Options { restart_at: Some(restart_at), ..Options::default() };
        let explored = Explorer::new(options, depth).explore().unwrap_or_else(|wrong| panic!("{wrong}"));
        orders += explored.orders;
        if explored.totals.restarted == 0 {
            println!("depth {depth}: {} restarts, {orders} orders", restart_at / stride);
            break;
        }
    }
    assert!(orders > 1000, "{orders}");
}

#[test]
fn omitted_orders_add_no_histories() {
    for options in [Options::default(), Options { faults: 1, waits: 1, ..Options::default() }] {
        let depth = if options.faults > 0 { 1 } else { 3 };
        let explore = |plays_all| {
            let explorer = Explorer { plays_all, ..Explorer::new(options, depth) };
            explorer.explore().unwrap_or_else(|wrong| panic!("{wrong}"))
        };
        let (all, some) = (explore(true), explore(false));
        println!("{} of {} orders", some.orders, all.orders);
        assert!(some.orders < all.orders);
        assert_eq!(all.histories.len(), some.histories.len());
        assert!(all.histories == some.histories);
    }
}

/// Checks that an order shows the planted bug, and prints the first violation found.
#[cfg(debug_assertions)]
fn find(tune: fn(swordbox::Config) -> swordbox::Config, options: Options) {
    let shallow = |depth| Explorer::new(Options { tune, ..options }, depth).explore().err();
    let wrong = (1..=5).find_map(shallow).expect("no order shows the planted bug");
    println!("{wrong}");
}

#[cfg(debug_assertions)]
#[test]
fn planted_words_kept_after_a_restart_are_found() {
    let tune = |config| swordbox::Config { bug: Some(swordbox::Bug::KeptWord), ..config };
    find(tune, Options::default());
}

#[cfg(debug_assertions)]
#[test]
fn planted_stale_words_are_found() {
    let tune = |config| swordbox::Config { bug: Some(swordbox::Bug::StaleWord), ..config };
    find(tune, Options::default());
}

#[cfg(debug_assertions)]
#[test]
fn planted_operations_of_a_dead_client_are_found() {
    let tune = |config| swordbox::Config { bug: Some(swordbox::Bug::DeadClient), ..config };
    find(tune, Options::default());
}

#[cfg(debug_assertions)]
#[test]
fn planted_double_decisions_are_found() {
    let tune = |config| swordbox::Config { bug: Some(swordbox::Bug::ResolvedTwice), ..config };
    find(tune, Options { faults: 1, ..Options::default() });
}

#[cfg(debug_assertions)]
#[test]
fn planted_confusion_with_an_earlier_message_is_found() {
    let tune = |config| swordbox::Config { bug: Some(swordbox::Bug::EarlierMessage), ..config };
    find(tune, Options { faults: 1, long: true, ..Options::default() });
}
