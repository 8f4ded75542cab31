//! A controller with clients on the loopback interface, and a store that refuses.

use super::*;
use crate::graph::Layout;
use crate::operator::{Answer, Request, Status};
use crate::record::RepState;
use crate::store::{Fault, MemoryStore};
use management::{Client, ClientConfig, ClientEvent, Peer};
use onepipe::ProcessId;
use onepipe::control::{Envelope, Incarnation, Message, Reason};
use std::sync::mpsc;
use std::time::{Duration, Instant};
use switch::Nanos;

const NETWORK: u64 = 5;
/// Longest time for which a test waits
const PATIENCE: Duration = Duration::from_secs(30);

#[allow(clippy::disallowed_methods, reason = "the time for which a test waits")]
fn now() -> Instant {
    Instant::now()
}

fn start(store: &MemoryStore) -> Controller {
    let processes = [0, 1].map(|id| Some(ProcessId(id))).to_vec();
    let graph = Graph::new(&[Layout { processes, ..Layout::default() }]);
    let machine = machine::Config {
        network: NETWORK,
        gather: Nanos::from_micros(30),
        respond_within: Nanos::from_millis(20),
        reconnect_within: Nanos::from_millis(20),
        ahead_max: Nanos::from_millis(10),
        behind_max: Some(Nanos::from_millis(20)),
        max_recalls: 100,
    };
    let config = Config { listen: "127.0.0.1:0".parse().unwrap(), secret: None, machine };
    Controller::start(graph, &config, Box::new(store.clone())).unwrap()
}

struct Node {
    client: Client,
    events: mpsc::Receiver<ClientEvent>,
}

impl Node {
    fn connect(controller: &Controller, peer: Peer) -> Self {
        let (sender, events) = mpsc::channel();
        let config =
            ClientConfig { controllers: vec![controller.address()], secret: None, peer, topology: NETWORK };
        let client = Client::start(config, move |event| drop(sender.send(event))).unwrap();
        let node = Self { client, events };
        assert!(matches!(node.events.recv_timeout(PATIENCE), Ok(ClientEvent::Connected(_))));
        node
    }

    fn send(&self, message: Message) {
        let envelope = Envelope { term: 0, incarnation: Incarnation(0), message };
        self.client.send(&envelope.encode().unwrap());
    }

    /// Returns the next message.
    fn next(&self) -> Vec<u8> {
        match self.events.recv_timeout(PATIENCE) {
            Ok(ClientEvent::Message(message)) => message,
            other => panic!("{other:?}"),
        }
    }

    /// Repeats a message until there is an answer.
    fn ask(&self, message: &Message) -> Envelope {
        for _ in 0..300 {
            self.send(message.clone());
            if let Ok(ClientEvent::Message(bytes)) = self.events.recv_timeout(Duration::from_millis(100)) {
                return Envelope::decode(&bytes).unwrap();
            }
        }
        panic!("no answer to {message:?}");
    }

    /// Registers a representative. Returns its welcome.
    fn welcome(&self) -> Envelope {
        for _ in 0..300 {
            let answer = self.ask(&register_rep());
            if let Message::WelcomeRep { boot, .. } = answer.message {
                assert_eq!(boot, [1; 16]);
                return answer;
            }
        }
        panic!("no welcome");
    }

    fn request(&self, request: &Request) -> Vec<Answer> {
        self.client.send(&request.encode());
        let mut answers = Vec::new();
        loop {
            answers.push(Answer::decode(&self.next()).unwrap());
            if let Some(Answer::Done | Answer::Refused(_)) = answers.last() {
                return answers;
            }
        }
    }

    fn status(&self) -> Status {
        Status::of(self.request(&Request::Status)).unwrap()
    }

    /// Asks for the state until it is as expected.
    fn wait(&self, what: &str, is: impl Fn(&Status) -> bool) -> Status {
        let start = now();
        loop {
            let status = self.status();
            if is(&status) {
                return status;
            }
            assert!(start.elapsed() < PATIENCE, "{what}: {status:?}");
            // What is waited for leads to no event at an operator.
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// Waits for counts, as a snapshot is some time old.
fn wait_for_counts(controller: &Controller, are: impl Fn(&Counts) -> bool) {
    let start = now();
    loop {
        let counts = controller.snapshot().counts;
        if are(&counts) {
            return;
        }
        assert!(start.elapsed() < PATIENCE, "{counts:?}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn has_alarm(status: &Status, text: &str) -> bool {
    status.alarms.iter().any(|alarm| alarm.text.contains(text))
}

fn register_rep() -> Message {
    Message::RegisterRep { switch: 0, seat: 0, boot: [1; 16], address: [1; 16], topology: NETWORK }
}

#[test]
fn a_full_store_raises_an_alarm_and_decides_nothing_until_there_is_room() {
    let store = MemoryStore::default();
    store.inject([Some(Fault::Full); 10]);
    let controller = start(&store);
    let operator = Node::connect(&controller, Peer::Operator);
    operator.wait("leads", |status| status.summary.term == 1);
    let rep = Node::connect(&controller, Peer::Switch(0, 0));
    rep.send(register_rep());
    let status = operator.wait("alarm", |status| has_alarm(status, "no space is left for the store"));
    assert!(status.reps.is_empty(), "{status:?}");
    rep.welcome();
    let status = operator.status();
    assert_eq!(status.reps.len(), 1);
    wait_for_counts(&controller, |counts| counts.store_errors >= 10);
}

#[test]
fn a_damaged_store_raises_an_alarm_and_nothing_is_decided() {
    let store = MemoryStore::default();
    store.tear();
    let controller = start(&store);
    let operator = Node::connect(&controller, Peer::Operator);
    let status = operator.wait("alarm", |status| has_alarm(status, "the store is damaged"));
    assert_eq!(status.summary.term, 0);
    let answers = operator.request(&Request::Fail(ProcessId(0)));
    assert!(matches!(&answers[..], [Answer::Refused(why)] if why.contains("does not lead")), "{answers:?}");
    store.repair();
    operator.wait("leads after the repair", |status| status.summary.term == 1);
}

#[test]
fn a_deposed_controller_campaigns_again_and_keeps_what_was_stored() {
    let store = MemoryStore::default();
    let controller = start(&store);
    let operator = Node::connect(&controller, Peer::Operator);
    let rep = Node::connect(&controller, Peer::Switch(0, 0));
    let welcome = rep.welcome();
    // Another controller leads, and ends.
    assert!(store.clone().campaign(Duration::ZERO).unwrap().is_some());
    let process = Node::connect(&controller, Peer::Process(1));
    process.send(Message::Register {
        id: ProcessId(1),
        boot: [2; 16],
        address: [2; 16],
        topology: NETWORK,
        clock: None,
    });
    operator.wait("a later term", |status| status.summary.term == 3);
    let status = operator.wait("the representative", |status| status.reps.len() == 1);
    assert_eq!(status.reps[0].incarnation, welcome.incarnation);
    assert!(matches!(status.reps[0].state, RepState::Configuring | RepState::Active), "{status:?}");
}

#[test]
fn unknown_nodes_other_topologies_and_other_names_are_refused_by_name() {
    let controller = start(&MemoryStore::default());
    let operator = Node::connect(&controller, Peer::Operator);
    operator.wait("leads", |status| status.summary.term == 1);
    let register = |id, topology| Message::Register {
        id: ProcessId(id),
        boot: [3; 16],
        address: [3; 16],
        topology,
        clock: None,
    };
    let stranger = Node::connect(&controller, Peer::Process(99));
    let answer = stranger.ask(&register(99, NETWORK)).message;
    assert_eq!(answer, Message::Refused { reason: Reason::Unknown });
    let process = Node::connect(&controller, Peer::Process(0));
    let answer = process.ask(&register(0, NETWORK + 1)).message;
    assert_eq!(answer, Message::Refused { reason: Reason::OtherTopology });
    // The message of another node, and bytes that are no message.
    process.send(register(1, NETWORK));
    process.client.send(b"\x07no message");
    let status = operator.wait("all alarms", |status| {
        has_alarm(status, "process 99 is not in the topology")
            && has_alarm(status, "process 0 has another topology")
            && has_alarm(status, "process 0 registers with another number")
            && has_alarm(status, "message of process 0 refused: version 7 of the control protocol")
    });
    assert!(status.members.is_empty(), "{status:?}");
    let answers = operator.request(&Request::Fail(ProcessId(1)));
    assert!(matches!(&answers[..], [Answer::Refused(why)] if why.contains("process 1 is not a member")));
    operator.client.send(b"?!");
    let answer = Answer::decode(&operator.next()).unwrap();
    assert!(matches!(&answer, Answer::Refused(why) if why.contains("version 63")), "{answer:?}");
    wait_for_counts(&controller, |counts| {
        (counts.undecodable, counts.other_name, counts.requests_refused) == (1, 1, 2)
    });
}

#[test]
fn a_controller_that_stops_leaves_its_store_to_the_next() {
    let store = MemoryStore::default();
    let mut first = start(&store);
    let rep = Node::connect(&first, Peer::Switch(0, 0));
    let welcome = rep.welcome();
    assert_eq!(welcome.term, 1);
    drop(rep);
    first.stop();
    assert!(!first.is_running());
    let second = start(&store);
    let rep = Node::connect(&second, Peer::Switch(0, 0));
    let again = rep.welcome();
    assert_eq!((again.term, again.incarnation), (2, welcome.incarnation));
}
