//! Three servers in the simulator. Each run is reproducible, including its crashes.

use super::*;
use crate::command::{Once, Operation};
use consensus::Layout;
use core::net::IpAddr;
use crossbeam_channel::{Receiver, unbounded};
use rnic::{Config as NicConfig, Interface};
use rocev2::ethernet::MacAddr;
use sim::{Clock, Fault, Host, Link, NodeId, Switch, World};
use switch::forward::{Config as ForwardConfig, Forward};
use switch::{Nanos, Rng};

const MAX_VALUE: usize = 100;

struct Net {
    world: World,
    servers: Vec<NodeId>,
    responses: Vec<Receiver<(Ticket, Response)>>,
    next: Ticket,
}

fn ip(n: u8) -> IpAddr {
    [10, 0, 0, n + 1].into()
}

impl Net {
    fn new(seed: u64) -> Self {
        let mut world = World::new(seed);
        let bridge = Switch::new(|| Forward::new(&ForwardConfig::bridge(3, 16)));
        let bridge = world.add("bridge", bridge, Clock::default());
        let (mut servers, mut responses) = (Vec::new(), Vec::new());
        for n in 0..3 {
            let interface = Interface::new(MacAddr([2, 0, 0, 0, 0, n]), ip(n), 24);
            let mut nic = NicConfig::new(interface);
            nic.seed = seed ^ u64::from(n) << 8;
            let config = Config {
                id: n,
                servers: (0..3).map(ip).collect(),
                port: 7000,
                layout: Layout::new(16, MAX_VALUE, 1 << 16),
                heartbeat: Nanos::from_micros(100),
                window: 8,
                ack_timeout: 5,
                retry_count: 6,
                switch: None,
                incarnation: seed << 8 | u64::from(n),
                secret: None,
                bug: None,
            };
            let (sender, receiver) = unbounded();
            let host = Host::new(move || Rnic::new(nic.clone()), Replica::new(config, sender));
            servers.push(world.add(&format!("server {n}"), host, Clock::default()));
            responses.push(receiver);
        }
        for server in &servers {
            world.connect(*server, bridge, Link::default());
        }
        let mut net = Self { world, servers, responses, next: 0 };
        net.run_for(Nanos::from_millis(2));
        assert_eq!(net.bootstrap(0), Some(Response::Bootstrapped(Ok(()))));
        net
    }

    fn bootstrap(&mut self, server: usize) -> Option<Response> {
        self.next += 1;
        let ticket = self.next;
        self.world.with(self.servers[server], |host: &mut Host<Replica>, _| host.app.bootstrap(ticket));
        self.response(server, ticket, Nanos::from_millis(1))
    }

    fn run_for(&mut self, time: Nanos) {
        let until = self.world.now() + time;
        self.world.run_until(until);
    }

    fn replica(&self, server: usize) -> &Replica {
        &self.world.node::<Host<Replica>>(self.servers[server]).app
    }

    fn submit(&mut self, server: usize, command: Command) -> Ticket {
        self.next += 1;
        let ticket = self.next;
        self.world.with(self.servers[server], |host: &mut Host<Replica>, _| host.app.submit(ticket, command));
        ticket
    }

    /// Returns the result of a request, if there is one in time.
    fn response(&mut self, server: usize, ticket: Ticket, time: Nanos) -> Option<Response> {
        let until = self.world.now() + time;
        loop {
            let mut responses = self.responses[server].try_iter();
            if let Some((_, response)) = responses.find(|(of, _)| *of == ticket) {
                return Some(response);
            }
            if self.world.now() >= until {
                return None;
            }
            self.run_for(Nanos::from_micros(50));
        }
    }

    fn call(&mut self, server: usize, command: Command) -> Option<Response> {
        let ticket = self.submit(server, command);
        self.response(server, ticket, Nanos::from_millis(50))
    }

    /// Executes a command at the leader, with retries.
    fn execute_with_retries(&mut self, mut server: usize, command: &Command) -> Outcome {
        for _ in 0..1000 {
            match self.call(server, command.clone()) {
                Some(Response::Applied(outcome)) => return outcome,
                Some(Response::NotLeader(Some(leader))) => server = usize::from(leader),
                _ => server = (server + 1) % 3,
            }
            self.run_for(Nanos::from_micros(100));
        }
        panic!("no server has executed the command");
    }

    fn after(&self, time: Nanos) -> Nanos {
        self.world.now() + time
    }
}

fn command(operation: Operation, key: &str) -> Command {
    Command { operation, key: key.into(), once: None }
}

fn incr(number: u64) -> Command {
    Command { once: Some(Once { client: 1, number }), ..command(Operation::Incr, "n") }
}

#[test]
fn the_leader_serves_and_followers_name_it() {
    let mut net = Net::new(1);
    net.run_for(Nanos::from_millis(10));
    assert_eq!(net.call(1, incr(1)), Some(Response::NotLeader(Some(0))));
    assert_eq!(net.call(0, incr(1)), Some(Response::Applied(Outcome::Number(1))));
    let found = Outcome::Found(Some(b"1".to_vec()));
    assert_eq!(net.call(0, command(Operation::Get, "n")), Some(Response::Applied(found)));
    let long = command(Operation::Set(vec![0; MAX_VALUE]), "n");
    let most = net.replica(0).config.layout.max_value();
    assert_eq!(net.call(0, long), Some(Response::TooLong(most)));
    net.run_for(Nanos::from_millis(1));
    assert_eq!(net.replica(2).store, net.replica(0).store);
}

#[test]
fn more_requests_than_the_window_are_applied_in_order() {
    let mut net = Net::new(1);
    net.run_for(Nanos::from_millis(10));
    let tickets: Vec<_> = (0..100).map(|_| net.submit(0, command(Operation::Incr, "n"))).collect();
    net.run_for(Nanos::from_millis(20));
    let responses: Vec<_> = net.responses[0].try_iter().collect();
    let expected = (1..).map(|n| Response::Applied(Outcome::Number(n)));
    assert_eq!(
        responses,
        tickets.into_iter().zip(expected).collect::<Vec<_>>(),
        "results are not in the order of requests"
    );
}

#[test]
fn a_leader_that_loses_the_leadership_reports_an_unknown_outcome() {
    let mut net = Net::new(1);
    net.run_for(Nanos::from_millis(10));
    let link = net.world.links().next().unwrap();
    let now = net.world.now();
    net.world.schedule(now, Fault::Cut(vec![link]));
    assert_eq!(net.call(0, incr(1)), Some(Response::Unknown));
    assert_eq!(net.call(0, incr(2)), Some(Response::NotLeader(None)));
    // The other servers have neither of the commands.
    assert_eq!(net.execute_with_retries(1, &incr(2)), Outcome::Number(1));
    let now = net.world.now();
    net.world.schedule(now, Fault::Heal(vec![link]));
    net.run_for(Nanos::from_millis(50));
    assert_eq!(net.replica(0).store, net.replica(1).store);
    assert!(net.replica(0).pending.is_empty());
}

#[test]
fn a_server_that_lost_its_memory_gets_a_snapshot() {
    let mut net = Net::new(1);
    net.run_for(Nanos::from_millis(10));
    for server in [2, 0] {
        let (now, later) = (net.world.now(), net.after(Nanos::from_millis(10)));
        net.world.schedule(now, Fault::Crash(net.servers[server]));
        net.world.schedule(later, Fault::Restart(net.servers[server]));
        net.run_for(Nanos::from_millis(9));
        // More entries than the log holds
        for n in 0..40 {
            let set = command(Operation::Set(vec![server as u8, n]), &n.to_string());
            assert_eq!(net.execute_with_retries(1, &set), Outcome::Done);
        }
        net.run_for(Nanos::from_millis(60));
        let replica = net.replica(server);
        assert_eq!((replica.server.membership(), replica.store.keys()), (Membership::Member, 40));
        assert_eq!(replica.store, net.replica(1).store);
    }
    assert!(net.replica(0).server.is_leader());
}

/// Seeds in `cargo test`; `FROM=1000 SEEDS=30` runs others, as `make soak` does.
const SEEDS: u64 = 4;

#[test]
fn a_retried_command_is_executed_once_whichever_server_crashes() {
    let number = |name, default| std::env::var(name).map_or(default, |text| text.parse().expect("a number"));
    let (from, seeds) = (number("FROM", 1), number("SEEDS", SEEDS));
    for seed in from..from + seeds {
        let mut net = Net::new(seed);
        let mut rng = Rng::new(seed);
        let mut at = Nanos::from_millis(10);
        let until = Nanos::from_millis(400);
        while at < until {
            let server = net.servers[rng.below(3) as usize];
            let down = Nanos::from_micros(rng.between(100, 20_000));
            net.world.schedule(at, Fault::Crash(server));
            net.world.schedule(at + down, Fault::Restart(server));
            // If two servers lost their memory at once, there would be no majority.
            at = at + down + Nanos::from_micros(rng.between(30_000, 60_000));
        }
        let (mut server, mut done) = (0, 0);
        while net.world.now() < until || done == 0 {
            let ticket = net.submit(server, incr(done + 1));
            match net.response(server, ticket, Nanos::from_millis(5)) {
                Some(Response::Applied(outcome)) => {
                    done += 1;
                    assert_eq!(outcome, Outcome::Number(done as i64), "seed {seed}");
                }
                Some(Response::NotLeader(Some(leader))) => server = usize::from(leader),
                _ => server = (server + 1) % 3,
            }
            net.run_for(Nanos::from_micros(20));
        }
        assert!(done > 300, "seed {seed}: {done}");
    }
}

#[test]
fn servers_that_all_restart_wait_for_the_operator() {
    let mut net = Net::new(1);
    net.run_for(Nanos::from_millis(10));
    assert_eq!(net.execute_with_retries(0, &incr(1)), Outcome::Number(1));
    assert_eq!(net.bootstrap(1), Some(Response::Bootstrapped(Err(BootstrapError::Member))));
    let (now, later) = (net.world.now(), net.after(Nanos::from_millis(1)));
    for server in net.servers.clone() {
        net.world.schedule(now, Fault::Crash(server));
        net.world.schedule(later, Fault::Restart(server));
    }
    net.run_for(Nanos::from_millis(100));
    for server in 0..3 {
        assert_eq!(net.replica(server).server.waits_for(), Some(WaitReason::Bootstrap));
        assert_eq!(
            net.call(server, incr(2)),
            Some(Response::NotLeader(None)),
            "a blank server executed a command"
        );
    }
    assert_eq!(net.bootstrap(2), Some(Response::Bootstrapped(Ok(()))));
    assert_eq!(net.execute_with_retries(0, &incr(1)), Outcome::Number(1), "the new group has to begin empty");
}
