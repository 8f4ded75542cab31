//! Majorities that are none: of a server that has lost its memory, and of an entry of an earlier term.
//!
//! A leader that finds an entry of an earlier term at a server may not count it there before its own term stands in it: a leader
//! of a term between the two may have another value in its place (Raft, section 5.4.2).

use super::links_of;
use p4ce::consensus::{Standing, Waiting};
use sim::Fault;
use sim::consensus::{Cluster, ClusterConfig};
use switch::Nanos;

/// By when a majority that is connected has a leader
const ELECTED: Nanos = Nanos::from_millis(60);
const SERVERS: usize = 5;

struct Play {
    net: Cluster,
    /// Servers that are cut off
    away: Vec<usize>,
}

impl Play {
    /// Server 0 leads, and has decided all that was wanted.
    fn new(tune: impl FnOnce(&mut ClusterConfig)) -> Self {
        let mut config =
            ClusterConfig { servers: SERVERS as u8, wanted: 3, window: 1, ..ClusterConfig::default() };
        tune(&mut config);
        let mut net = Cluster::new(&config);
        net.run_until(Nanos::from_millis(8));
        assert_eq!(net.entries(), 3);
        Self { net, away: Vec::new() }
    }

    /// Cuts these servers off, and connects all others.
    fn cut_off(&mut self, away: &[usize]) {
        let now = self.net.world.now();
        let heal = links_of(&self.net, &self.away);
        let cut = links_of(&self.net, away);
        self.net.world.schedule(now, Fault::Cut(cut));
        self.net.world.schedule(now, Fault::Heal(heal));
        self.away = away.to_vec();
        self.net.run_until(now);
    }

    /// Runs until a server that is connected leads in a later term than any server has promised before.
    fn elect(&mut self) -> Option<usize> {
        let term = |net: &Cluster, server: usize| net.app(server).server().term();
        let before = (0..self.net.servers.len()).map(|server| term(&self.net, server)).max();
        let end = self.net.world.now() + ELECTED;
        loop {
            let leads = |server: &usize| {
                self.net.app(*server).server().leads() && Some(term(&self.net, *server)) > before
            };
            let leader =
                (0..self.net.servers.len()).find(|server| !self.away.contains(server) && leads(server));
            if leader.is_some() || !self.net.step(end) {
                return leader;
            }
        }
    }
}

/// Plays it: `first` gets the entry of the first leader, `second` that of the third one. Returns whether the third leader is the
/// first one again, and a server between had another value.
fn play(tune: impl FnOnce(&mut ClusterConfig), first: usize, second: usize) -> Result<bool, String> {
    let mut play = Play::new(tune);
    // Server 0 proposes, and one server hears it.
    let deaf: Vec<_> = (1..SERVERS).filter(|server| *server != first).collect();
    play.cut_off(&deaf);
    play.net.want(1);
    play.net.run_until(play.net.world.now() + Nanos::from_micros(150));
    assert_eq!(play.net.entries(), 3, "one server is no majority");
    // Another server leads, proposes another value in that place, and is cut off before any server hears it.
    play.cut_off(&[0, first]);
    let between = play.elect().ok_or("the majority has no leader")?;
    if between == second {
        return Ok(false);
    }
    // Server 0 leads again, with the one that has its entry and one that has not, and decides.
    let is_other = |server: &usize| ![first, second, between].contains(server);
    let other: Vec<_> = (1..SERVERS).filter(is_other).collect();
    play.cut_off(&[between, other[0]]);
    let again = play.elect().ok_or("the majority has no leader again")?;
    let end = play.net.world.now() + Nanos::from_millis(5);
    while play.net.entries() == 3 && play.net.step(end) {}
    let decided = play.net.entries();
    if decided == 3 {
        return Err(format!("server {again} leads, and decides nothing"));
    }
    // A majority in which one server has the entry, and one the other value
    play.cut_off(&[0, second]);
    play.elect().ok_or("the last majority has no leader")?;
    play.net.run_until(play.net.world.now() + Nanos::from_millis(5));
    play.net.check().map(|()| again == 0)
}

/// Two of three servers decide what the third does not hear; one of the two restarts with empty memory, and the other is cut off.
/// The third and the blank one are no majority.
fn play_blank(tune: impl FnOnce(&mut ClusterConfig)) -> Result<(), String> {
    let mut play = Play::new(|config| {
        config.servers = 3;
        tune(config);
    });
    play.cut_off(&[2]);
    play.net.want(2);
    play.net.run_until(play.net.world.now() + Nanos::from_millis(1));
    assert_eq!(play.net.entries(), 5);
    let (now, blank) = (play.net.world.now(), play.net.servers[1]);
    play.net.world.schedule(now, Fault::Crash(blank));
    play.net.world.schedule(now + Nanos::from_micros(100), Fault::Restart(blank));
    play.cut_off(&[0]);
    let leader = play.elect();
    play.net.run_until(play.net.world.now() + Nanos::from_millis(5));
    play.net.check()?;
    if leader.is_some() { Err(format!("server {leader:?} leads without a majority")) } else { Ok(()) }
}

/// A leader brings a server up to date that has restarted with empty memory, and all others restart before it is admitted: all are
/// blank, and this one is not empty. The operator begins the group; `restarts` says whether that server is restarted before.
fn play_lost_group(tune: impl FnOnce(&mut ClusterConfig), restarts: bool) -> Result<u64, String> {
    let mut play = Play::new(|config| {
        config.servers = 3;
        tune(config);
    });
    let crash = |net: &mut Cluster, servers: &[usize]| {
        let now = net.world.now();
        for node in servers.iter().map(|server| net.servers[*server]) {
            net.world.schedule(now, Fault::Crash(node));
            net.world.schedule(now + Nanos::from_micros(100), Fault::Restart(node));
        }
        net.run_until(now + Nanos::from_micros(100));
    };
    let net = &mut play.net;
    crash(net, &[2]);
    let end = net.world.now() + Nanos::from_millis(60);
    while net.app(2).next() < 3 && net.step(end) {}
    assert_eq!((net.app(2).next(), net.app(2).server().standing()), (3, Standing::Blank));
    crash(net, &[0, 1]);
    net.run_until(net.world.now() + Nanos::from_millis(20));
    if restarts {
        assert!(net.apps().all(|app| app.server().waits_for() == Some(Waiting::Restart(2))));
        crash(net, &[2]);
    }
    net.bootstrap(0);
    net.want(5);
    net.run_until(net.world.now() + Nanos::from_millis(30));
    net.check()?;
    Ok(net.beginnings())
}

#[test]
fn a_group_begins_when_no_server_holds_entries_of_another() {
    assert_eq!(play_lost_group(|_| {}, false), Ok(1), "the word is not obeyed");
    assert_eq!(play_lost_group(|_| {}, true), Ok(2));
}

#[cfg(debug_assertions)]
#[test]
fn a_planted_beginning_over_entries_is_found() {
    let plant = |config: &mut ClusterConfig| config.bug = Some(p4ce::consensus::Bug::BeginsOverEntries);
    let wrong = play_lost_group(plant, false);
    let wrong = wrong.expect_err("a beginning over entries was not found");
    println!("{wrong}");
    assert!(wrong.contains("differs from the decided entries"), "{wrong}");
}

#[test]
fn a_blank_server_is_no_part_of_a_majority() {
    assert_eq!(play_blank(|_| {}), Ok(()));
}

#[cfg(debug_assertions)]
#[test]
fn a_planted_count_of_a_blank_server_is_found() {
    let wrong = play_blank(|config| config.bug = Some(p4ce::consensus::Bug::CountsBlank));
    let wrong = wrong.expect_err("a count of a blank server was not found");
    println!("{wrong}");
    assert!(wrong.contains("is decided at"), "{wrong}");
}

/// Plays all choices of servers: how many plays were what they are for.
fn play_all(tune: fn(&mut ClusterConfig)) -> Result<u32, String> {
    let mut count = 0;
    for first in 1..SERVERS {
        for second in (1..SERVERS).filter(|second| *second != first) {
            let is_it = play(tune, first, second).map_err(|wrong| format!("{first} {second}: {wrong}"))?;
            count += u32::from(is_it);
        }
    }
    Ok(count)
}

#[test]
fn an_entry_of_an_earlier_term_is_not_decided_by_count() {
    let count = play_all(|_| {}).unwrap_or_else(|wrong| panic!("{wrong}"));
    println!("{count} plays");
    assert!(count >= 2, "{count}");
}

#[cfg(debug_assertions)]
#[test]
fn a_planted_old_term_by_count_is_found() {
    let wrong = play_all(|config| config.bug = Some(p4ce::consensus::Bug::OldTermByCount));
    let wrong = wrong.expect_err("a count of an old term was not found");
    println!("{wrong}");
    assert!(wrong.contains("is decided at"), "{wrong}");
}
