mod cluster;
mod faults;

pub(in crate::store) use cluster::Cluster;

use super::*;
use cluster::Proxy;
use etcd_client::Client;
use std::io::{BufRead, BufReader};
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, Ordering};
use understudy_tests::processes::{Process, Signal, command};

const NETWORK: u64 = 0x1234;
/// Lease in tests, in milliseconds. etcd grants 2 s at least
const LEASE_MS: u64 = 2000;
/// Longest time for which a test waits
const PATIENCE: Duration = Duration::from_secs(60);

fn put(key: u8, value: &[u8]) -> Change {
    Change::Put(vec![key], value.into())
}

/// Campaigns until it leads.
fn lead(store: &mut EtcdStore) -> (Term, Records) {
    let start = now();
    loop {
        if let Ok(Some(led)) = store.campaign(Duration::from_millis(200)) {
            return led;
        }
        assert!(start.elapsed() < PATIENCE, "no leader");
    }
}

fn wait_until(what: &str, mut is: impl FnMut() -> bool) {
    let start = now();
    while !is() {
        assert!(start.elapsed() < PATIENCE, "{what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn a_clean_end_lets_the_next_controller_lead_at_once() {
    let Some(cluster) = Cluster::start(1) else { return };
    // Longer than the test waits
    let config = cluster.config(60_000);
    let mut first = EtcdStore::open(&config, NETWORK).expect("reachable");
    let mut second = EtcdStore::open(&config, NETWORK).expect("reachable");
    let (term, _) = lead(&mut first);
    assert_eq!(second.campaign(Duration::from_millis(100)).map(|led| led.is_some()), Ok(false));
    first.write(term, &[put(1, b"a")]).expect("leads");
    drop(first);
    let led = second.campaign(Duration::from_secs(5)).expect("reachable").expect("the only one");
    assert_eq!(led, (Term(term.0 + 1), Records::from([(vec![1], b"a".to_vec())])));
}

#[test]
fn etcd_that_is_gone_is_no_error_at_the_start() {
    let config = EtcdConfig {
        servers: vec!["http://127.0.0.1:1".into()],
        prefix: "/1pipe".into(),
        lease: Duration::from_millis(LEASE_MS),
    };
    let mut store = EtcdStore::open(&config, NETWORK).expect("it may come later");
    let error = store.campaign(Duration::ZERO).expect_err("nothing listens there");
    assert!(matches!(&error, StoreError::Unavailable(text) if text.contains("127.0.0.1:1")), "{error}");
}

#[test]
fn a_write_that_is_too_large_is_refused_by_name() {
    let Some(cluster) = Cluster::start(1) else { return };
    let mut store = EtcdStore::open(&cluster.config(LEASE_MS), NETWORK).expect("reachable");
    let (term, _) = lead(&mut store);
    // etcd refuses the first itself, and its gRPC the second.
    for megabytes in [2, 8] {
        let error = store.write(term, &[put(1, &vec![7; megabytes << 20])]).expect_err("too large");
        assert!(matches!(error, StoreError::TooLarge(_)), "{megabytes} MB: {error}");
    }
    store.write(term, &[put(1, b"a")]).expect("still leads");
    drop(store);
    let mut store = EtcdStore::open(&cluster.config(LEASE_MS), NETWORK).expect("reachable");
    assert_eq!(lead(&mut store).1, Records::from([(vec![1], b"a".to_vec())]));
}

/// Compacts the history in etcd up to now, after a further revision.
async fn compact(url: &str) {
    let mut client = Client::connect([url], None).await.expect("a URL");
    let put = client.put("/other", "", None).await.expect("it lives");
    client.compact(put.header().expect("a header").revision(), None).await.expect("not compacted yet");
}

#[test]
fn records_are_read_again_if_etcd_compacts_meanwhile() {
    let Some(cluster) = Cluster::start(1) else { return };
    let config = cluster.config(LEASE_MS);
    let mut store = EtcdStore::open(&config, NETWORK).expect("reachable");
    let (term, _) = lead(&mut store);
    let mut expected = Records::new();
    for first in 0..10 {
        let change = |second| Change::Put(vec![first, second], vec![second; 10]);
        let changes: Vec<_> = (0..MAX_CHANGES as u8).map(change).collect();
        store.write(term, &changes).expect("leads");
        crate::store::apply(&mut expected, &changes);
    }
    let created = store.office.as_ref().expect("leads").created;
    let (election, url) = (Arc::clone(&store.election), config.servers[0].clone());
    let records = store.run(async move {
        compact(&url).await;
        election.records(created).await
    });
    assert_eq!(records, Ok(Some(expected.clone())));
    // The leader whose key was created by another revision has been replaced.
    let election = Arc::clone(&store.election);
    assert_eq!(store.run(async move { election.records(created - 1).await }), Ok(None));
    // Compactions that never end
    let (stop, url) = (Arc::new(AtomicBool::new(false)), config.servers[0].clone());
    let stopped = Arc::clone(&stop);
    store.runtime.spawn(async move {
        while !stopped.load(Ordering::Relaxed) {
            compact(&url).await;
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    });
    for _ in 0..20 {
        let mut next = EtcdStore::open(&config, NETWORK).expect("reachable");
        store.resign();
        assert_eq!(next.campaign(PATIENCE).expect("reachable").expect("the only one").1, expected);
    }
    stop.store(true, Ordering::Relaxed);
}

#[test]
fn one_dead_server_loses_nothing_and_two_end_the_leadership() {
    let Some(mut cluster) = Cluster::start(3) else { return };
    let mut store = EtcdStore::open(&cluster.config(LEASE_MS), NETWORK).expect("reachable");
    let (term, _) = lead(&mut store);
    store.write(term, &[put(1, b"a")]).expect("leads");
    cluster.kill(0);
    let (term, records) = lead(&mut store);
    assert_eq!(records, Records::from([(vec![1], b"a".to_vec())]));
    store.write(term, &[put(2, b"b")]).expect("two of three are a majority");
    cluster.kill(1);
    wait_until("the lease ends by the own clock", || !store.leads());
    let error = store.write(term, &[put(3, b"c")]).expect_err("no majority");
    assert!(matches!(error, StoreError::Unknown(_)), "{error}");
    let error = store.campaign(Duration::ZERO).expect_err("no majority");
    assert!(matches!(error, StoreError::Unavailable(_)), "{error}");
    cluster.restart(0);
    cluster.restart(1);
    let (later, mut records) = lead(&mut store);
    assert!(later > term);
    // Whether a write without an answer was applied is known to the next term.
    records.remove(&vec![3]);
    assert_eq!(records, Records::from([(vec![1], b"a".to_vec()), (vec![2], b"b".to_vec())]));
    store.write(later, &[put(4, b"d")]).expect("leads again");
}

#[test]
fn a_write_whose_answer_is_lost_is_unknown_and_the_next_term_has_it() {
    let Some(cluster) = Cluster::start(1) else { return };
    let proxy = Proxy::start(cluster.port(0));
    let config = EtcdConfig { servers: vec![proxy.url()], ..cluster.config(LEASE_MS) };
    let mut store = EtcdStore::open(&config, NETWORK).expect("reachable");
    let (term, _) = lead(&mut store);
    store.write(term, &[put(1, b"a")]).expect("leads");
    proxy.hold_answers(true);
    let error = store.write(term, &[put(1, b"b")]).expect_err("no answer");
    assert!(matches!(error, StoreError::Unknown(_)), "{error}");
    proxy.hold_answers(false);
    let (later, records) = lead(&mut store);
    assert!(later > term);
    assert_eq!(records, Records::from([(vec![1], b"b".to_vec())]));
}

/// The child of the tests below: leads, and writes a number for each line of its input.
fn child(url: &str) -> ! {
    let config = EtcdConfig {
        servers: vec![url.into()],
        prefix: "/1pipe".into(),
        lease: Duration::from_millis(LEASE_MS),
    };
    let mut store = EtcdStore::open(&config, NETWORK).expect("reachable");
    let (term, _) = lead(&mut store);
    println!("leads {term}");
    for (number, _) in std::io::stdin().lines().enumerate() {
        println!("wrote {:?}", store.write(term, &[put(1, &[number as u8])]));
    }
    std::process::exit(0)
}

#[test]
fn a_paused_leader_writes_nothing_and_a_killed_one_is_replaced() {
    use std::io::Write;
    const VARIABLE: &str = "CONTROLLER_TEST_ETCD";
    if let Ok(url) = std::env::var(VARIABLE) {
        child(&url);
    }
    let Some(cluster) = Cluster::start(1) else { return };
    let name = "store::etcd::tests::a_paused_leader_writes_nothing_and_a_killed_one_is_replaced";
    let spawn = || {
        let mut own = command(std::env::current_exe().expect("this program"));
        own.args(["--exact", name, "--nocapture"]).env(VARIABLE, &cluster.urls()[0]);
        own.stdin(Stdio::piped()).stdout(Stdio::piped());
        Process::start(own)
    };
    let mut paused = spawn();
    let mut lines = BufReader::new(paused.stdout.take().expect("piped")).lines();
    let mut next = |word: &str| {
        lines
            .by_ref()
            .map(|line| line.expect("text"))
            .find_map(|line| line.find(word).map(|at| line[at + word.len()..].to_owned()))
    };
    next("leads ").expect("it leads");
    let mut input = paused.stdin.take().expect("piped");
    writeln!(input).expect("it runs");
    assert_eq!(next("wrote ").as_deref(), Some("Ok(())"));
    paused.signal(Signal::STOP);
    let mut store = EtcdStore::open(&cluster.config(LEASE_MS), NETWORK).expect("reachable");
    let (term, records) = lead(&mut store);
    assert_eq!(records, Records::from([(vec![1], vec![0])]));
    writeln!(input).expect("a pipe takes it");
    paused.signal(Signal::CONT);
    assert_eq!(next("wrote ").as_deref(), Some("Err(OtherTerm)"));
    store.write(term, &[put(2, b"b")]).expect("still leads");
    drop((input, store));
    paused.wait().expect("it ends");

    let mut killed = spawn();
    let lines = BufReader::new(killed.stdout.take().expect("piped")).lines();
    assert!(lines.map_while(Result::ok).any(|line| line.contains("leads ")));
    killed.kill().expect("it runs");
    killed.wait().expect("killed");
    let mut store = EtcdStore::open(&cluster.config(LEASE_MS), NETWORK).expect("reachable");
    let (last, records) = lead(&mut store);
    assert!(last.0 >= term.0 + 2, "{last}");
    assert_eq!(records, Records::from([(vec![1], vec![0]), (vec![2], b"b".to_vec())]));
}
