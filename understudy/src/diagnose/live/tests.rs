//! Connections of the simulator through a lossy instance whose trace is diagnosed, over many seeds.

use super::*;
use crate::observe::Hex;
use rnic::{Interface, Rnic};
use rocev2::ethernet::MacAddr;
use sim::{Clock, Host, Link, Switch, World};
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex};
use switch::impair::{Action, Adopted, Command, Config, Impair, Match, Rule};
use switch::{Frame, Function, Nanos, Output, PortId, Probability, Verdict};
use workloads::verbs::{self, Verbs};

/// An impairing instance, and what a trace of all its packets reports.
struct Traced {
    impair: Impair,
    records: Arc<Mutex<Vec<TraceRecord>>>,
}

impl Function for Traced {
    type Command = Command;
    type Event = Adopted;

    fn on_frame<O: Output>(
        &mut self,
        frame: &mut O::Frame,
        port: PortId,
        now: Nanos,
        out: &mut O,
    ) -> Verdict {
        let copy = |frame: &O::Frame| (frame.bytes().len() as u32, Hex(frame.bytes().to_vec()));
        let (len, bytes) = copy(frame);
        let received = Part::In { port: port.0, len, bytes };
        let verdict = self.impair.on_frame(frame, port, now, out);
        let (len, bytes) = copy(frame);
        let result = match verdict {
            Verdict::Forward(port) => Part::Out { port: port.0, len, bytes },
            Verdict::Drop(reason) => Part::Dropped { reason: reason.name().into() },
            Verdict::Punt => Part::Punted,
            Verdict::Consume => Part::Consumed,
        };
        let mut records = self.records.lock().unwrap();
        let number = records.len() as u64 + 1;
        records.push(TraceRecord {
            number,
            worker: 0,
            time_ns: now.0,
            parts: vec![received, result],
            left_out: 0,
        });
        verdict
    }

    fn on_timer<O: Output>(&mut self, now: Nanos, out: &mut O) {
        self.impair.on_timer(now, out);
    }

    fn next_timer(&self) -> Option<Nanos> {
        self.impair.next_timer()
    }

    fn on_command(&mut self, command: Command, now: Nanos) {
        self.impair.on_command(command, now);
    }

    fn poll_event(&mut self) -> Option<Adopted> {
        self.impair.poll_event()
    }
}

/// Runs two hosts that use every verb through an instance that loses packets, and diagnoses its trace. Returns the
/// findings with their counts, and how many packets the instance dropped.
fn run(seed: u64, loss: f64) -> (BTreeMap<&'static str, u64>, u64) {
    let rule = Rule {
        name: "lose".into(),
        matching: Match::default(),
        share: Probability::new(loss).unwrap(),
        skip: 0,
        times: u64::MAX,
        action: Action::Drop,
    };
    let config = Config {
        ports: 2,
        pairs: vec![(PortId(0), PortId(1))],
        seed,
        held: 1,
        frame_len: 1600,
        flows: 1,
        counted_qps: 0,
        health: false,
        rules: vec![rule],
    };
    let records = Arc::new(Mutex::new(Vec::new()));
    let mut world = World::new(seed);
    let log = Arc::clone(&records);
    let make = move || Traced { impair: Impair::new(&config, 0), records: Arc::clone(&log) };
    let wire = world.add("wire", Switch::new(make), Clock::default());
    let work = Verbs { connections: 2, operations: 40, timeout: 14, ..Verbs::default() };
    let (apps, _) = verbs::apps(&work, seed, 2, false);
    let mut hosts: Vec<(sim::NodeId, IpAddr)> = Vec::new();
    for (number, app) in (1..).zip(apps) {
        let address = IpAddr::from([10, 0, 0, number]);
        let interface = Interface::new(MacAddr([2, 0, 0, 0, 0, number]), address, 24);
        let nic = rnic::Config { seed: seed ^ u64::from(number), ..rnic::Config::new(interface) };
        let host = Host::new(move || Rnic::new(nic.clone()), app);
        let node = world.add(&format!("host-{number}"), host, Clock::default());
        world.connect(node, wire, Link::default());
        hosts.push((node, address));
    }
    verbs::connect(&mut world, &hosts, &work, seed);
    verbs::begin(&mut world, &hosts);
    world.run_until(sim::EPOCH + Nanos::from_secs(600));
    assert_eq!(verbs::check(&world, &hosts), None, "seed {seed}");
    let traced = &world.node::<Switch<Traced>>(wire).functions[0];
    let dropped = traced.impair.rule_counters().map(|counters| counters.acted.get()).sum();
    let mut analysis = Analysis::default();
    for record in records.lock().unwrap().iter() {
        take(&mut analysis, record);
    }
    let mut found = BTreeMap::new();
    for finding in without_unseen(analysis.finish(), 0).findings {
        *found.entry(finding.kind.name()).or_default() += finding.count;
    }
    (found, dropped)
}

#[test]
fn losses_of_a_running_instance_are_found_here_and_nowhere_else() {
    let slow = ["rnr_nak", "retransmission_storm", "early_retransmission"];
    // What was dropped here is lost behind the place where it was received.
    let behind = ["request_lost_behind", "response_lost_behind", "request_or_response_lost"];
    let mut all = 0;
    for seed in 1..=20 {
        let (clean, dropped) = run(seed, 0.0);
        assert!(dropped == 0 && clean.keys().all(|kind| slow.contains(kind)), "seed {seed}: {clean:?}");
        let (lossy, dropped) = run(seed, 0.03);
        assert_eq!(lossy.get("dropped_here").copied().unwrap_or(0), dropped, "seed {seed}: {lossy:?}");
        let known = |kind: &&str| *kind == "dropped_here" || slow.contains(kind) || behind.contains(kind);
        assert!(lossy.keys().all(known), "seed {seed}: {lossy:?}");
        all += dropped;
    }
    assert!(all > 100, "{all}");
}
