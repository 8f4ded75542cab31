//! Changes of rules on workers that are late, full or stopped, and for several clients.

use super::*;
use crate::config::tests::{PORTS, read};
use crate::functions::FunctionConfig;
use crossbeam_channel::{TryRecvError, bounded};
use std::time::Duration;
use switch::memory::run_frame;
use switch::{DropReason, Function as _, Nanos, Verdict};
use understudy_tests::packets;

/// Workers with a queue of one command each, and clients.
struct Network {
    control: ImpairControl,
    workers: Vec<Impair>,
    queues: Vec<VecDeque<Command>>,
    requests: Sender<Steering>,
    now: Instant,
}

type Received = Receiver<Result<RulesState, SteerError>>;

fn keys(keys: &[(&str, &str)]) -> Vec<(String, String)> {
    keys.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
}

fn add(name: &str) -> RulesRequest {
    RulesRequest::Add { keys: keys(&[("name", name), ("action", "drop")]), before: None }
}

impl Network {
    fn new(workers: usize, rules: &str) -> Self {
        let config = read(&format!("{PORTS}[impair]\npairs = [[\"a\", \"b\"]]\n{rules}"));
        let FunctionConfig::Impair(impair) = config.function else { panic!("[impair]") };
        let instances: Vec<_> = (0..workers).map(|worker| Impair::new(&impair, worker)).collect();
        let (requests, received) = bounded(64);
        let rules = Rules::of(&impair, &instances);
        Self {
            control: ImpairControl::new(rules, &config.runtime.ports, Some(received)),
            queues: instances.iter().map(|_| VecDeque::new()).collect(),
            workers: instances,
            requests,
            now: now(),
        }
    }

    fn ask(&self, request: RulesRequest) -> Received {
        let (response, received) = bounded(1);
        self.requests.send(Steering::Rules(request, response)).unwrap();
        received
    }

    /// Lets the control plane run, `ms` later.
    fn poll(&mut self, ms: u64) {
        self.now += Duration::from_millis(ms);
        let queues = &mut self.queues;
        self.control.poll(self.now, |worker, command| {
            if queues[worker].is_empty() {
                queues[worker].push_back(command);
                return Ok(());
            }
            Err(command)
        });
    }

    /// Lets a worker run.
    fn turn(&mut self, worker: usize) {
        while let Some(command) = self.queues[worker].pop_front() {
            self.workers[worker].on_command(command, Nanos::ZERO);
        }
        while let Some(event) = self.workers[worker].poll_event() {
            self.control.adopted(worker, event);
        }
    }

    /// Returns the names of the rules that a worker applies, by the counters of its packet.
    fn drops(&mut self, worker: usize) -> bool {
        let frame = packets::packet(rocev2::Opcode::RC_WRITE_ONLY, false, 0, &[1; 64]);
        run_frame(&mut self.workers[worker], &frame, PortId(0), Nanos::ZERO).0
            == Verdict::Drop(DropReason::Impaired)
    }
}

fn names(state: &RulesState) -> Vec<&str> {
    state.rules.iter().map(|rule| rule.name.as_str()).collect()
}

#[test]
fn the_response_waits_for_every_worker() {
    let mut network = Network::new(2, "");
    let response = network.ask(add("lose"));
    network.poll(0);
    network.turn(0);
    network.poll(1);
    assert_eq!(response.try_recv(), Err(TryRecvError::Empty));
    assert!(network.drops(0) && !network.drops(1));
    let list = network.ask(RulesRequest::List);
    network.poll(1);
    let state = list.try_recv().unwrap().unwrap();
    assert_eq!((names(&state), &state.waiting[..], state.workers), (vec!["lose"], &[1][..], 2));
    network.turn(1);
    network.poll(1);
    let state = response.try_recv().unwrap().unwrap();
    assert!(names(&state) == ["lose"] && state.waiting.is_empty() && network.drops(1), "{state:?}");
}

#[test]
fn a_command_waits_for_room_in_the_workers_queue() {
    let mut network = Network::new(2, "");
    // An earlier command, such as one for the trace, fills the queue of worker 1.
    let stuck =
        Rules::of(network.control.rules.config(), &network.workers[..1]).replace(Vec::new(), &[]).remove(0);
    network.queues[1].push_back(stuck);
    let response = network.ask(add("lose"));
    network.poll(0);
    assert!(network.control.change.as_ref().unwrap().unsent[1].is_some());
    network.queues[1].clear();
    network.poll(1);
    network.turn(0);
    network.turn(1);
    network.poll(1);
    assert_eq!(names(&response.try_recv().unwrap().unwrap()), ["lose"]);
}

#[test]
fn a_stopped_worker_is_named_and_adopts_the_rules_later() {
    let mut network = Network::new(3, "");
    let (first, second) = (network.ask(add("lose")), network.ask(add("other")));
    network.poll(0);
    network.turn(1);
    network.poll(2999);
    assert_eq!(first.try_recv(), Err(TryRecvError::Empty));
    network.poll(1);
    assert_eq!(first.try_recv(), Ok(Err(SteerError::Late { waiting: vec![0, 2] })));
    assert_eq!(second.try_recv(), Ok(Err(SteerError::Busy { waiting: vec![0, 2] })));
    let text = SteerError::Late { waiting: vec![0, 2] }.to_string();
    assert!(text.starts_with("workers 0, 2 have not adopted the change within 3 s"), "{text}");
    let text = SteerError::Busy { waiting: vec![1] }.to_string();
    assert!(text.starts_with("worker 1 has not adopted an earlier change within 3 s"), "{text}");
    // The workers run again; then the next change is possible.
    let third = network.ask(add("third"));
    network.poll(1);
    for worker in [0, 2, 0, 1, 2] {
        network.turn(worker);
        network.poll(1);
    }
    assert_eq!(names(&third.try_recv().unwrap().unwrap()), ["lose", "third"]);
    assert!((0..3).all(|worker| network.drops(worker)));
}

#[test]
fn two_clients_at_once_are_served_in_turn() {
    let mut network = Network::new(1, "");
    let both = [network.ask(add("one")), network.ask(add("two"))];
    let again = network.ask(add("one"));
    for _ in 0..3 {
        network.poll(1);
        network.turn(0);
    }
    network.poll(1);
    let states = both.map(|response| response.try_recv().unwrap().unwrap());
    assert_eq!((names(&states[0]), names(&states[1])), (vec!["one"], vec!["one", "two"]));
    let Err(SteerError::Invalid(why)) = again.try_recv().unwrap() else { panic!("the name is taken") };
    assert!(why.contains("there is a rule `one` already"), "{why}");
}

#[test]
fn a_client_that_gives_up_and_an_instance_that_ends_harm_nobody() {
    let mut network = Network::new(1, "");
    drop(network.ask(add("one")));
    let waiting = network.ask(add("two"));
    network.poll(1);
    network.turn(0);
    network.poll(1);
    assert!(network.drops(0));
    drop(network.control);
    assert_eq!(waiting.recv(), Err(crossbeam_channel::RecvError));
}

#[test]
fn rules_that_are_not_valid_leave_the_old_ones() {
    let mut network = Network::new(1, "[[impair.rule]]\nname = \"lose\"\naction = \"drop\"\n");
    let apply = |text: &str| RulesRequest::Apply { origin: "new.toml".into(), text: text.into() };
    let set = |rule: &str, key: &str, value: &str| RulesRequest::Set {
        rule: rule.into(),
        keys: keys(&[(key, value)]),
    };
    for (request, expected) in [
        (apply("[[impair.rule]]\naction = \"drop\"\n[[impair.rule]]\naction = \"delay\"\n"), "delay_us"),
        (apply("[[impair.rule]\n"), "new.toml"),
        (set("lose", "shar", "0.1"), "did you mean `share`"),
        (set("lose", "name", "won"), "the name of a rule cannot be changed"),
        (set("los", "share", "0.1"), "there is no rule `los`; did you mean `lose`? the rules are `lose`"),
        (
            RulesRequest::Remove { rules: vec!["lose".into(), "win".into()] },
            "there is no rule `win`; there are none",
        ),
        (
            RulesRequest::Add { keys: keys(&[("action", "drop")]), before: Some("win".into()) },
            "there is no rule `win`",
        ),
        (RulesRequest::Add { keys: keys(&[("action", "lose")]), before: None }, "action"),
    ] {
        let response = network.ask(request);
        network.poll(1);
        let Err(SteerError::Invalid(why)) = response.try_recv().unwrap() else { panic!("not valid") };
        assert!(why.contains(expected), "{why}");
        assert!(network.queues[0].is_empty() && network.drops(0));
    }
    // Another function's request is refused, too.
    let (response, received) = bounded(1);
    network.requests.send(Steering::Rates(crate::observe::steer::RatesRequest::List, response)).unwrap();
    network.poll(1);
    let why = received.try_recv().unwrap().unwrap_err().to_string();
    assert_eq!(why, "this instance runs [impair], not [pktgen]; connect to one with [pktgen]");
}

#[test]
fn rules_are_added_in_place_and_get_numbers_that_are_not_used_again() {
    let mut network = Network::new(1, "[[impair.rule]]\naction = \"drop\"\n");
    let mut ask = |request| {
        let response = network.ask(request);
        network.poll(1);
        network.turn(0);
        network.poll(1);
        response.try_recv().unwrap().unwrap()
    };
    let add = |before: Option<&str>| RulesRequest::Add {
        keys: keys(&[("action", "mark"), ("match.opcode", "write")]),
        before: before.map(Into::into),
    };
    assert_eq!(names(&ask(add(None))), ["rule 1", "rule 2"]);
    assert_eq!(names(&ask(add(Some("rule 2")))), ["rule 1", "rule 3", "rule 2"]);
    let state = ask(RulesRequest::Remove { rules: vec!["rule 3".into(), "rule 1".into()] });
    assert_eq!(names(&state), ["rule 2"]);
    let state = ask(add(None));
    assert_eq!(names(&state), ["rule 2", "rule 4"]);
    // What `list` prints can be applied.
    let text: String = state.rules.iter().map(|rule| rule.toml.as_str()).collect();
    let applied = ask(RulesRequest::Apply { origin: "list".into(), text });
    assert_eq!(applied, state);
}
