//! False majorities: with a server that has lost its memory, and with an entry of an earlier term.
//!
//! A leader that finds an entry of an earlier term at a server may not count it there until an entry of its
//! own term follows it: a leader of a term in between may have another value in its slot (Raft, section
//! 5.4.2).

use super::links_of;
use consensus::{Membership, WaitReason};
use sim::Fault;
use switch::Nanos;
use workloads::consensus::{Cluster, ClusterConfig};

/// Time by which a connected majority has a leader
const ELECTION_LIMIT: Nanos = Nanos::from_millis(60);
const SERVERS: usize = 5;

struct Play {
    net: Cluster,
    /// Servers that are cut off
    cut_off_servers: Vec<usize>,
}

impl Play {
    /// Builds a cluster in which server 0 leads and has decided all wanted values.
    fn new(tune: impl FnOnce(&mut ClusterConfig)) -> Self {
        let mut config =
            ClusterConfig { servers: SERVERS as u8, max_proposals: 3, window: 1, ..ClusterConfig::default() };
        tune(&mut config);
        let mut net = Cluster::new(&config);
        net.run_until(Nanos::from_millis(8));
        assert_eq!(net.entries(), 3);
        Self { net, cut_off_servers: Vec::new() }
    }

    /// Cuts the given servers off, and reconnects all others.
    fn cut_off(&mut self, cut_off_servers: &[usize]) {
        let now = self.net.world.now();
        let heal = links_of(&self.net, &self.cut_off_servers);
        let cut = links_of(&self.net, cut_off_servers);
        self.net.world.schedule(now, Fault::Cut(cut));
        self.net.world.schedule(now, Fault::Heal(heal));
        self.cut_off_servers = cut_off_servers.to_vec();
        self.net.run_until(now);
    }

    /// Runs until a connected server leads in a later term than any server had promised before. Returns it,
    /// or `None` if there is none in time.
    fn elect(&mut self) -> Option<usize> {
        let term = |net: &Cluster, server: usize| net.app(server).server().term();
        let before = (0..self.net.servers.len()).map(|server| term(&self.net, server)).max();
        let end = self.net.world.now() + ELECTION_LIMIT;
        loop {
            let leads = |server: &usize| {
                self.net.app(*server).server().is_leader() && Some(term(&self.net, *server)) > before
            };
            let leader = (0..self.net.servers.len())
                .find(|server| !self.cut_off_servers.contains(server) && leads(server));
            if leader.is_some() || !self.net.step(end) {
                return leader;
            }
        }
    }
}

/// Plays the schedule of Raft's figure 8: server `first` gets the entry of the first leader, server `second`
/// that of the third one. Returns whether the third leader is the first one again and a server in between had
/// another value.
fn play(tune: impl FnOnce(&mut ClusterConfig), first: usize, second: usize) -> Result<bool, String> {
    let mut play = Play::new(tune);
    // Server 0 proposes, and only server `first` receives it.
    let unreachable: Vec<_> = (1..SERVERS).filter(|server| *server != first).collect();
    play.cut_off(&unreachable);
    play.net.propose_more(1);
    play.net.run_until(play.net.world.now() + Nanos::from_micros(150));
    assert_eq!(play.net.entries(), 3, "the entry was decided without a majority");
    // Another server leads, proposes another value for that slot, and is cut off before any server receives
    // it.
    play.cut_off(&[0, first]);
    let between = play.elect().ok_or("the majority has no leader")?;
    if between == second {
        return Ok(false);
    }
    // Server 0 leads again, with the server that has its entry and one that does not, and decides.
    let is_other = |server: &usize| ![first, second, between].contains(server);
    let other: Vec<_> = (1..SERVERS).filter(is_other).collect();
    play.cut_off(&[between, other[0]]);
    let again = play.elect().ok_or("the majority has no leader again")?;
    let end = play.net.world.now() + Nanos::from_millis(5);
    while play.net.entries() == 3 && play.net.step(end) {}
    let decided = play.net.entries();
    if decided == 3 {
        return Err(format!("server {again} leads, but decides nothing"));
    }
    // A majority in which one server has the entry, and another one the other value
    play.cut_off(&[0, second]);
    play.elect().ok_or("the last majority has no leader")?;
    play.net.run_until(play.net.world.now() + Nanos::from_millis(5));
    play.net.check().map(|()| again == 0)
}

/// Two of three servers decide entries that the third does not receive. One of the two restarts with empty
/// memory, and the other is cut off. The third server and the blank one are not a majority.
fn play_blank(tune: impl FnOnce(&mut ClusterConfig)) -> Result<(), String> {
    let mut play = Play::new(|config| {
        config.servers = 3;
        tune(config);
    });
    play.cut_off(&[2]);
    play.net.propose_more(2);
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

/// A leader brings a server up to date that has restarted with empty memory, and all other servers restart
/// before it is admitted. All servers are then blank, but this one holds entries. The operator bootstraps the
/// group; `restarts` states whether that server is restarted before. Returns how often the group was
/// bootstrapped.
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
    assert_eq!((net.app(2).next(), net.app(2).server().membership()), (3, Membership::Blank));
    crash(net, &[0, 1]);
    net.run_until(net.world.now() + Nanos::from_millis(20));
    if restarts {
        assert!(net.apps().all(|app| app.server().waits_for() == Some(WaitReason::Restart(2))));
        crash(net, &[2]);
    }
    net.bootstrap(0);
    net.propose_more(5);
    net.run_until(net.world.now() + Nanos::from_millis(30));
    net.check()?;
    Ok(net.bootstrap_count())
}

#[test]
fn a_group_is_bootstrapped_only_if_no_server_holds_entries_of_another_group() {
    assert_eq!(
        play_lost_group(|_| {}, false),
        Ok(1),
        "a bootstrap command was executed over existing entries"
    );
    assert_eq!(play_lost_group(|_| {}, true), Ok(2));
}

#[cfg(debug_assertions)]
#[test]
fn planted_bootstrap_over_entries_is_found() {
    let plant = |config: &mut ClusterConfig| config.bug = Some(consensus::Bug::BootstrapsOverEntries);
    let wrong = play_lost_group(plant, false);
    let wrong = wrong.expect_err("a bootstrap over existing entries was not found");
    println!("{wrong}");
    assert!(wrong.contains("differs from the decided entries"), "{wrong}");
}

#[test]
fn a_blank_server_is_not_part_of_a_majority() {
    assert_eq!(play_blank(|_| {}), Ok(()));
}

#[cfg(debug_assertions)]
#[test]
fn planted_count_of_a_blank_server_is_found() {
    let wrong = play_blank(|config| config.bug = Some(consensus::Bug::CountsBlank));
    let wrong = wrong.expect_err("a blank server that counts for a majority was not found");
    println!("{wrong}");
    assert!(wrong.contains("is decided at"), "{wrong}");
}

/// Plays all choices of the two servers. Returns how many of the plays reached the intended schedule.
fn play_all(tune: fn(&mut ClusterConfig)) -> Result<u32, String> {
    let mut count = 0;
    for first in 1..SERVERS {
        for second in (1..SERVERS).filter(|second| *second != first) {
            let is_intended =
                play(tune, first, second).map_err(|wrong| format!("{first} {second}: {wrong}"))?;
            count += u32::from(is_intended);
        }
    }
    Ok(count)
}

#[test]
fn an_entry_of_an_earlier_term_is_not_decided_by_counting_replicas() {
    let count = play_all(|_| {}).unwrap_or_else(|wrong| panic!("{wrong}"));
    println!("{count} plays reached the schedule");
    assert!(count >= 2, "{count}");
}

#[cfg(debug_assertions)]
#[test]
fn planted_decision_of_an_old_term_is_found() {
    let wrong = play_all(|config| config.bug = Some(consensus::Bug::OldTermByCount));
    let wrong = wrong.expect_err("a decision of an entry of an old term was not found");
    println!("{wrong}");
    assert!(wrong.contains("is decided at"), "{wrong}");
}
