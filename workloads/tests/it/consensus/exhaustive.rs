//! Exhaustive test with three servers and entries of three packets. The leader is lost after every single
//! packet that it writes, in each state that the servers had before. Moments in which all servers hold the
//! same bytes, and have promised and applied the same, count as one. Every other moment is played to its end.

use super::{candidate, links_of, run_for_frames};
use sim::{Fault, Host};
use std::collections::BTreeSet;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use switch::Nanos;
use workloads::consensus::{Cluster, ClusterConfig, Proposer};

/// Bytes of a value. With its header and its seal, it takes three packets of the path MTU.
const SIZE: usize = 2500;
/// Entries that a log holds at once
const SLOTS: u64 = 4;
/// Entries that are decided before the first leader is lost. Every slot then holds an entry that the next one
/// overwrites.
const INITIAL_ENTRIES: u64 = SLOTS + 2;
/// Frames after which a leader has decided values of its own
const MAX_FRAMES: u64 = 160;
/// Share of the first changes that are played unless `DEPTH` is set: one in this number
const STRIDE: usize = 5;
/// Time by which there is another candidate
const ELECTION_LIMIT: Nanos = Nanos::from_millis(8);

/// What happens to one leader.
#[derive(Clone, Copy, Debug)]
struct Step {
    /// A server that does not receive from the leader
    unreachable: Option<usize>,
    /// Frames that the leader has sent when it is lost
    frames: u64,
    /// Whether it crashes and loses its memory; otherwise it is cut off.
    crashes: bool,
    /// Whether the previous leader is back from the start; otherwise it is back when this leader is lost.
    previous_is_back: bool,
}

/// Changes the cluster's configuration.
type Tune = fn(&mut ClusterConfig);

/// A cluster in the middle of a play
struct Play {
    net: Cluster,
    lost_leader: Option<(usize, bool)>,
    crashed: bool,
}

impl Play {
    /// Builds a cluster in which server 0 leads and will propose more values.
    fn new(tune: Tune) -> Self {
        let mut config = ClusterConfig {
            sizes: (SIZE, SIZE),
            slots: SLOTS,
            window: 2,
            max_proposals: INITIAL_ENTRIES,
            snapshot: 3000,
            ..ClusterConfig::default()
        };
        tune(&mut config);
        let mut net = Cluster::new(&config);
        net.run_until(Nanos::from_millis(6));
        assert_eq!((net.entries(), candidate(&net)), (INITIAL_ENTRIES, Some(0)));
        Self { net, lost_leader: None, crashed: false }
    }

    fn fault(&mut self, fault: Fault) {
        let now = self.net.world.now();
        self.net.world.schedule(now, fault);
        self.net.run_until(now);
    }

    /// Brings the server back that was lost.
    fn bring_back(&mut self) {
        if let Some((server, crashed)) = self.lost_leader.take() {
            let links = links_of(&self.net, &[server]);
            let node = self.net.servers[server];
            self.fault(if crashed { Fault::Restart(node) } else { Fault::Heal(links) });
        }
    }

    /// Applies what happens before the leader of this step is lost. Returns that leader.
    fn begin(&mut self, step: &Step) -> usize {
        let leader = candidate(&self.net).expect("a server has promised itself");
        if step.previous_is_back {
            self.bring_back();
        }
        if let Some(unreachable) = step.unreachable {
            let links = links_of(&self.net, &[unreachable]);
            self.fault(Fault::Cut(links));
        }
        if self.lost_leader.is_none() && !step.previous_is_back {
            self.net.propose_more(2);
        }
        leader
    }

    /// Plays a step until there is another candidate. Returns false if there is none.
    fn step(&mut self, step: &Step) -> bool {
        let leader = self.begin(step);
        let end = self.net.world.now() + ELECTION_LIMIT;
        run_for_frames(&mut self.net, leader, step.frames, end);
        let links = links_of(&self.net, &[leader]);
        let fault = if step.crashes { Fault::Crash(self.net.servers[leader]) } else { Fault::Cut(links) };
        self.fault(fault);
        if let Some(unreachable) = step.unreachable {
            let links = links_of(&self.net, &[unreachable]);
            self.fault(Fault::Heal(links));
        }
        self.bring_back();
        self.lost_leader = Some((leader, step.crashes));
        self.crashed |= step.crashes;
        let end = self.net.world.now() + ELECTION_LIMIT;
        let changed = |net: &Cluster| candidate(net).is_some_and(|next| next != leader);
        while !changed(&self.net) && self.net.step(end) {}
        changed(&self.net)
    }

    /// Hashes what all servers hold, have promised and have applied.
    fn state(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        for node in &self.net.servers {
            let host = self.net.world.node::<Host<Proposer>>(*node);
            let server = host.app.server();
            let status = format!("{:?}{:?}", server.membership(), self.net.world.is_down(*node));
            (server.term().0, host.app.next(), server.is_leader(), status).hash(&mut hasher);
            server.slots(&host.nic).hash(&mut hasher);
        }
        hasher.finish()
    }

    /// Brings all servers back, and checks that decided values stay and every server catches up.
    fn finish(mut self) -> Result<(), String> {
        self.bring_back();
        let mark = self.net.mark();
        self.net.propose_more(4);
        // A NIC whose ARP request was lost while its link was cut repeats it after half a second.
        let end = self.net.world.now() + Nanos::from_millis(1500);
        let mut at = self.net.world.now();
        while !self.net.lagging(&mark).is_empty() && at < end {
            at = at + Nanos::from_micros(100);
            self.net.run_until(at);
        }
        self.net.check()?;
        let lagging = self.net.lagging(&mark);
        if lagging.is_empty() { Ok(()) } else { Err(format!("servers {lagging:?} have not caught up")) }
    }
}

fn play(tune: Tune, steps: &[Step]) -> Option<Play> {
    let mut play = Play::new(tune);
    steps.iter().all(|step| play.step(step)).then_some(play)
}

/// Returns the moments of the step after `steps` of which each leaves the servers in another state.
fn moments(tune: Tune, steps: &[Step], next: Step) -> Vec<Step> {
    let Some(mut play) = play(tune, steps) else { return Vec::new() };
    let leader = play.begin(&next);
    let end = play.net.world.now() + ELECTION_LIMIT;
    let (mut seen, mut moments) = (BTreeSet::new(), Vec::new());
    for frames in 0..MAX_FRAMES {
        if seen.insert(play.state()) {
            moments.push(Step { frames, ..next });
        }
        run_for_frames(&mut play.net, leader, 1, end);
    }
    moments
}

/// Returns all steps that can follow `steps`.
fn next_steps(tune: Tune, steps: &[Step]) -> Vec<Step> {
    let has_crashed = steps.iter().any(|step| step.crashes);
    let mut all = Vec::new();
    for unreachable in [None, Some(1), Some(2)] {
        for (crashes, previous_is_back) in [(false, false), (true, false), (false, true), (true, true)] {
            // At most one of three servers loses its memory, and no server is lost before the first step.
            let possible = !(crashes && has_crashed || previous_is_back && steps.is_empty());
            // With one server lost and another that does not receive from the candidate, the candidate gets
            // no vote.
            let votes = steps.is_empty() || unreachable.is_none() || previous_is_back;
            if possible && votes {
                all.extend(moments(tune, steps, Step { unreachable, frames: 0, crashes, previous_is_back }));
            }
        }
    }
    all
}

/// Plays all sequences of `depth` changes of leader that begin with `steps`, of every `stride`-th next one. Returns how
/// many there are.
fn all_changes(tune: Tune, steps: &mut Vec<Step>, depth: usize, stride: usize) -> Result<u64, String> {
    let mut count = 0;
    for step in next_steps(tune, steps).into_iter().step_by(stride) {
        steps.push(step);
        if steps.len() < depth {
            count += all_changes(tune, steps, depth, 1)?;
        } else if let Some(play) = play(tune, steps) {
            count += 1;
            play.finish().map_err(|wrong| format!("{wrong}, after {steps:?}"))?;
        }
        steps.pop();
    }
    Ok(count)
}

/// Plays two changes in sequence, of which the first is one in [`STRIDE`], or as many as `DEPTH` states, with every first
/// one. 3 takes some minutes in a release build.
#[test]
fn losing_the_leader_after_any_packet_loses_no_decided_value() {
    let wanted = std::env::var("DEPTH").ok().and_then(|value| value.parse().ok());
    let (depth, stride) = wanted.map_or((2, STRIDE), |depth| (depth, 1));
    let count = all_changes(|_| {}, &mut Vec::new(), depth, stride).unwrap_or_else(|wrong| panic!("{wrong}"));
    println!("{count} changes of leader");
    assert!(count > 150, "{count}");
}

#[cfg(debug_assertions)]
#[test]
fn planted_torn_entries_are_found() {
    let plant: Tune = |config| config.bug = Some(consensus::Bug::TornEntry);
    let wrong = all_changes(plant, &mut Vec::new(), 2, 1).expect_err("a torn entry was not found");
    println!("{wrong}");
}
