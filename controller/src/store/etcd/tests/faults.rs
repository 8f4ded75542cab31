//! Faults drawn by a seed, and an oracle that sees the history in etcd.

use super::*;
use etcd_client::{Client, GetOptions, WatchOptions};
use switch::Rng;

const KEY: [u8; 1] = [1];

/// One attempt to write.
struct Attempt {
    term: Term,
    number: u64,
    result: Result<(), StoreError>,
}

/// One event in the history of the keys.
#[derive(Debug)]
enum Event {
    Term(u32),
    Write(u32, u64),
}

/// Reads the history of the keys from a server itself.
fn history(cluster: &Cluster) -> Vec<Event> {
    let url = cluster.config(LEASE_MS).servers;
    let runtime = Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let mut client = Client::connect(url, None).await.expect("a URL");
        let options = GetOptions::new().with_prefix();
        // The servers may still choose a leader.
        let last = loop {
            match client.get("/1pipe/", Some(options.clone())).await {
                Ok(last) => break last,
                Err(_) => tokio::time::sleep(std::time::Duration::from_millis(50)).await,
            }
        };
        let last = last.header().expect("a header").revision();
        // The last event of all, so that the watch knows its end.
        let end = client.put("/1pipe/end", "", None).await.expect("a majority lives");
        assert!(end.header().expect("a header").revision() > last);
        let options = WatchOptions::new().with_prefix().with_start_revision(1);
        let mut watch = client.watch("/1pipe/", Some(options)).await.expect("a watch");
        let mut events = Vec::new();
        loop {
            let response = watch.message().await.expect("a majority lives").expect("it goes on");
            for event in response.events() {
                let pair = event.kv().expect("a key");
                let text = || String::from_utf8(pair.value().into()).expect("text");
                match pair.key() {
                    b"/1pipe/end" => return events,
                    b"/1pipe/term" => events.push(Event::Term(text().parse().expect("a term"))),
                    b"/1pipe/records/\x01" => {
                        let text = text();
                        let (term, number) = text.split_once(' ').expect("two numbers");
                        events.push(Event::Write(term.parse().expect("it"), number.parse().expect("it")));
                    }
                    _ => {}
                }
            }
        }
    })
}

/// Compares what writers were given as results with the history; returns what is wrong.
fn judge(events: &[Event], attempts: &[Attempt], led: &[(Term, Option<u64>)]) -> Result<(), String> {
    let (mut term, mut last) = (0, None);
    let mut applied = Vec::new();
    let mut led = led.iter().peekable();
    for event in events {
        match *event {
            Event::Term(next) if next <= term => return Err(format!("term {next} after {term}")),
            Event::Term(next) => {
                term = next;
                if let Some((_, seen)) = led.next_if(|(led, _)| led.0 == next)
                    && *seen != last
                {
                    return Err(format!("term {next} began with {seen:?} instead of {last:?}"));
                }
            }
            Event::Write(of, number) => {
                if of != term {
                    return Err(format!("write {number} of term {of} in term {term}"));
                }
                applied.push(number);
                last = Some(number);
            }
        }
    }
    if led.next().is_some() {
        return Err("a term that was led is missing".into());
    }
    // Attempts were made one after the other: their numbers rise in any linear history.
    if !applied.is_sorted_by(|a, b| a < b) {
        return Err(format!("writes in another order: {applied:?}"));
    }
    for Attempt { term, number, result } in attempts {
        let is_applied = applied.binary_search(number).is_ok();
        if matches!(result, Err(StoreError::Unknown(_))) {
            continue;
        }
        if result.is_ok() != is_applied {
            return Err(format!("write {number} of term {term}: {result:?}, applied: {is_applied}"));
        }
    }
    Ok(())
}

/// Two controllers, each behind proxies of its own, and what they have done.
struct World {
    cluster: Cluster,
    proxies: Vec<Vec<Proxy>>,
    stores: Vec<EtcdStore>,
    terms: Vec<Option<Term>>,
    attempts: Vec<Attempt>,
    led: Vec<(Term, Option<u64>)>,
    number: u64,
    /// The server that is dead or stopped
    faulty: Option<(usize, bool)>,
}

impl World {
    fn new(cluster: Cluster, bug: Option<Bug>) -> Self {
        let proxies = [(); 2].map(|()| (0..3).map(|n| Proxy::start(cluster.port(n))).collect::<Vec<_>>());
        let proxies = Vec::from(proxies);
        let open = |proxies: &Vec<Proxy>| {
            let servers = proxies.iter().map(Proxy::url).collect();
            let config = EtcdConfig { servers, ..cluster.config(LEASE_MS) };
            let mut store = EtcdStore::open(&config, NETWORK).expect("reachable");
            store.bug = bug;
            store
        };
        let stores = proxies.iter().map(open).collect();
        let (terms, attempts, led) = (vec![None; 2], Vec::new(), Vec::new());
        Self { cluster, proxies, stores, terms, attempts, led, number: 0, faulty: None }
    }

    fn campaign(&mut self, n: usize) {
        if let Ok(Some((term, records))) = self.stores[n].campaign(Duration::from_millis(100)) {
            let last = records.get(&KEY[..]).map(|value| {
                let text = str::from_utf8(value).expect("text");
                text.split_once(' ').expect("two numbers").1.parse().expect("a number")
            });
            self.terms[n] = Some(term);
            self.led.push((term, last));
        }
    }

    /// Writes, whatever the own clock shows.
    fn write(&mut self, n: usize) {
        let Some(term) = self.terms[n] else { return };
        self.number += 1;
        let value = format!("{term} {}", self.number).into_bytes();
        let result = self.stores[n].write(term, &[Change::Put(KEY.into(), value)]);
        if matches!(result, Err(StoreError::OtherTerm | StoreError::Unknown(_))) {
            self.terms[n] = None;
        }
        self.attempts.push(Attempt { term, number: self.number, result });
    }

    fn hold(&self, n: usize, requests: bool, answers: bool) {
        for proxy in &self.proxies[n] {
            proxy.hold_requests(requests);
            proxy.hold_answers(answers);
        }
    }

    /// Repairs a faulty server, or kills or stops one.
    fn disturb_servers(&mut self, rng: &mut Rng) {
        match self.faulty.take() {
            Some((server, true)) => self.cluster.restart(server),
            Some((server, false)) => self.cluster.server(server).signal(Signal::CONT),
            None => {
                let (server, dies) = (rng.below(3) as usize, (rng.below(2) == 0));
                if dies {
                    self.cluster.kill(server);
                } else {
                    self.cluster.server(server).signal(Signal::STOP);
                }
                self.faulty = Some((server, dies));
            }
        }
    }

    fn step(&mut self, rng: &mut Rng) {
        let n = rng.below(2) as usize;
        match rng.below(16) {
            0 => self.disturb_servers(rng),
            1 => self.hold(n, true, rng.below(2) == 0),
            2 => self.hold(n, false, true),
            // A pause beyond the lease, in which the other controller may lead
            3 => {
                self.hold(n, true, true);
                std::thread::sleep(Duration::from_millis(LEASE_MS + 1000));
                self.campaign(1 - n);
                self.write(1 - n);
                self.hold(n, false, false);
            }
            4..7 => self.hold(n, false, false),
            _ if self.terms[n].is_none() => self.campaign(n),
            _ => self.write(n),
        }
    }

    /// Ends all faults, and judges.
    fn finish(mut self) -> Result<(usize, usize), String> {
        if self.faulty.is_some() {
            self.disturb_servers(&mut Rng::new(0));
        }
        (0..2).for_each(|n| self.hold(n, false, false));
        drop(std::mem::take(&mut self.stores));
        wait_until("a majority", || {
            let store = EtcdStore::open(&self.cluster.config(LEASE_MS), NETWORK).expect("this network");
            let election = Arc::clone(&store.election);
            store.run(async move { election.look().await.map(drop) }).is_ok()
        });
        judge(&history(&self.cluster), &self.attempts, &self.led)?;
        let stored = self.attempts.iter().filter(|attempt| attempt.result.is_ok()).count();
        Ok((self.led.len(), stored))
    }
}

fn run(seed: u64, steps: usize, bug: Option<Bug>) -> Option<Result<(usize, usize), String>> {
    let mut world = World::new(Cluster::start(3)?, bug);
    let mut rng = Rng::new(seed);
    world.campaign(0);
    (0..steps).for_each(|_| world.step(&mut rng));
    Some(world.finish())
}

#[test]
fn writes_are_linear_and_terms_end_under_drawn_faults() {
    let seeds = std::env::var("SEEDS").ok().and_then(|text| text.parse().ok()).unwrap_or(2);
    for seed in 1..=seeds {
        let Some(result) = run(seed, 60, None) else { return };
        let (terms, stored) = result.unwrap_or_else(|wrong| panic!("seed {seed}: {wrong}"));
        println!("seed {seed}: {terms} terms, {stored} writes");
        assert!(terms >= 1 && stored >= 1, "seed {seed}: {terms} terms, {stored} writes");
    }
}

#[test]
fn a_write_that_compares_nothing_is_found() {
    if !cfg!(debug_assertions) {
        return;
    }
    for seed in 1..=10 {
        match run(seed, 60, Some(Bug::UncomparedWrite)) {
            None => return,
            Some(Err(wrong)) => return println!("seed {seed}: {wrong}"),
            Some(Ok(_)) => {}
        }
    }
    panic!("10 seeds do not find it");
}
