//! An endpoint on a ring device as a member of the reliable service. The test plays the controller, and the
//! endpoint's switch is the endpoint itself.

use super::ring::{OWN, UNREACHABLE, config, wait_for};
use management::{ConnectionId, Server, ServerConfig, ServerEvent};
use onepipe::control::{self, Envelope, Incarnation, Message, Source};
use onepipe::process::member::to_wire;
use onepipe_host::file::controller::Controllers;
use onepipe_host::reliable::{Error, Event};
use onepipe_host::{Clock, Controller, Endpoint, InitError, ReliableError, SendError};
use rocev2::Qpn;
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use understudy_tests::alone;

const TOPOLOGY: u64 = 77;
const INCARNATION: Incarnation = Incarnation(5);
const QPN: Qpn = Qpn::new(0x500);

fn settings(server: &Server, is_merged: bool) -> Controller {
    Controller {
        controllers: Controllers { addresses: vec![server.address()], secret_file: None, topology: TOPOLOGY },
        // The machine may be busy with other work for a while.
        fail_after: 1_000_000,
        is_merged,
        reliable_buffer: 1 << 20,
        max_members: 4,
    }
}

/// The controller: its server, and what it receives.
struct Played {
    server: Server,
    events: Receiver<ServerEvent>,
}

impl Played {
    fn new() -> Self {
        let (sender, events) = channel();
        let listen = "127.0.0.1:0".parse().unwrap();
        let config = ServerConfig { listen, secret: None, topology: TOPOLOGY, max_connections: 4 };
        let server = Server::start(&config, move |event| _ = sender.send(event)).unwrap();
        Self { server, events }
    }

    /// Returns the next message that `wanted` accepts, and its connection.
    fn wait(&self, what: &str, wanted: impl Fn(&Envelope) -> bool) -> (ConnectionId, Envelope) {
        wait_for(what, || match self.events.try_recv().ok()? {
            ServerEvent::Message(from, bytes) => {
                let envelope = Envelope::decode(&bytes).unwrap();
                wanted(&envelope).then_some((from, envelope))
            }
            _ => None,
        })
    }

    fn send(&self, to: ConnectionId, message: Message) {
        let envelope = Envelope { term: 1, incarnation: INCARNATION, message };
        self.server.send(to, &envelope.encode().unwrap());
    }

    /// Admits the process when it registers.
    fn admit(&self) -> ConnectionId {
        let register = |envelope: &Envelope| matches!(envelope.message, Message::Register { .. });
        let (from, envelope) = self.wait("a registration", register);
        let Message::Register { id, boot, address, topology, clock } = envelope.message else {
            unreachable!()
        };
        assert!(clock.is_some(), "its clock is compared with the controller's");
        assert_eq!((id, topology, address), (OWN, TOPOLOGY, to_wire([10, 0, 0, 1].into())));
        self.send(from, Message::Welcome { boot, incarnation: INCARNATION, qpn: QPN, members: Vec::new() });
        let sources = vec![Source { address, qpn: QPN }];
        self.send(from, Message::Desired { version: 1, held: false, sources });
        self.send(from, Message::Admitted { after: None });
        from
    }
}

/// Returns the next event but those of a barrier that stands still, as the machine may be busy.
fn next_event(endpoint: &mut Endpoint) -> Option<Event> {
    let event = endpoint.poll_reliable_event().unwrap()?;
    (!matches!(event, Event::Stalled | Event::Recovered)).then_some(event)
}

#[test]
fn a_member_sends_receives_and_is_called_back() {
    alone!();
    let played = Played::new();
    let mut config = config();
    config.process.controller = Some(settings(&played.server, false));
    config.process.process.max_members = 4;
    config.process.process.reliable_buffer = 1 << 20;
    let mut endpoint = Endpoint::init(config).unwrap();
    let early = endpoint.reliable_send(&[(OWN, b"early")]);
    assert_eq!(early, Err(ReliableError::Service(Error::NotAdmitted)));
    assert_eq!(endpoint.recv(), Err(ReliableError::NotMerged));
    let node = played.admit();
    wait_for("the admission", || endpoint.handle().is_admitted().then_some(()));
    let event = wait_for("the event", || next_event(&mut endpoint));
    assert_eq!(event, Event::Admitted { incarnation: INCARNATION.0 });
    let number = endpoint.reliable_send(&[(OWN, b"one"), (OWN, b"two")]).unwrap();
    for expected in [b"one", b"two"] {
        let message = wait_for("a message", || endpoint.reliable_recv().unwrap());
        assert_eq!((message.src, &message.payload[..]), (OWN, &expected[..]));
        assert!(message.timestamp.precedes(endpoint.timestamp()));
    }
    let settled = wait_for("the result", || next_event(&mut endpoint));
    assert!(
        matches!(settled, Event::Settled { scattering, failed: 0, .. } if scattering == number),
        "{settled:?}"
    );
    // A receiver that is no member, and one that is not in the table.
    endpoint.reliable_send(&[(UNREACHABLE, b"x")]).unwrap();
    let failed = wait_for("the failure", || next_event(&mut endpoint));
    assert!(matches!(failed, Event::SendFailed { dst: UNREACHABLE, .. }), "{failed:?}");
    let unknown = endpoint.reliable_send(&[(onepipe_host::ProcessId(9), b"x")]);
    let expected = SendError::Unknown(onepipe_host::ProcessId(9));
    assert_eq!(unknown, Err(ReliableError::Service(Error::Send(expected))));
    // A member that joins, until it fails.
    assert!(endpoint.handle().is_member(OWN) && !endpoint.handle().is_member(UNREACHABLE));
    let (incarnation, address) = (Incarnation(1), to_wire([10, 0, 0, 3].into()));
    let peer = control::Peer { id: UNREACHABLE, incarnation, qpn: Qpn::new(0x600), address };
    played.send(node, Message::MemberUp { peer });
    wait_for("the member", || endpoint.handle().is_member(UNREACHABLE).then_some(()));
    assert!(endpoint.handle().member_counters().unwrap().taken.get() >= 4);
    // A failure: the controller hears of the callback when it has returned.
    let called = Arc::<Mutex<Vec<_>>>::default();
    let calls = Arc::clone(&called);
    endpoint.proc_fail_callback(move |failed| calls.lock().unwrap().push(failed.process)).unwrap();
    let failed =
        control::Failed { id: UNREACHABLE, incarnation: Incarnation(1), time: Clock::Realtime.now() };
    played.send(node, Message::Notice { case: 3, failed: vec![failed] });
    played.wait("the recalls", |envelope| envelope.message == Message::Recalled { case: 3 });
    assert_eq!(*called.lock().unwrap(), [], "the application has not received");
    wait_for("the callback", || {
        _ = endpoint.reliable_recv().unwrap();
        (!called.lock().unwrap().is_empty()).then_some(())
    });
    played.wait("the completion", |envelope| envelope.message == Message::Completed { case: 3 });
    assert_eq!(*called.lock().unwrap(), [UNREACHABLE]);
    assert!(!endpoint.handle().is_member(UNREACHABLE));
    // The process itself fails.
    played.send(node, Message::YouFailed { case: 4, time: Clock::Realtime.now() });
    wait_for("the exclusion", || (!endpoint.handle().is_admitted()).then_some(()));
    played.wait("the recovery", |envelope| matches!(envelope.message, Message::Recover { .. }));
    // Receiving with a timeout.
    let (_, mut receiver) = endpoint.split();
    let short = core::time::Duration::from_millis(1);
    assert_eq!(receiver.reliable_recv_timeout(short), Ok(None));
    assert_eq!(receiver.merged_recv_timeout(short), Err(ReliableError::NotMerged));
    receiver.handle().exit();
}

#[test]
fn merged_order_has_the_messages_of_both_services() {
    alone!();
    let played = Played::new();
    let mut config = config();
    config.process.controller = Some(settings(&played.server, true));
    (config.process.process.max_members, config.process.process.reliable_buffer) = (4, 1 << 20);
    let mut endpoint = Endpoint::init(config).unwrap();
    assert_eq!(endpoint.reliable_recv(), Err(ReliableError::Merged));
    let node = played.admit();
    wait_for("the admission", || endpoint.handle().is_admitted().then_some(()));
    for n in 0..20u8 {
        let payload = [n];
        let messages = [(OWN, &payload[..])];
        if n % 2 == 0 {
            endpoint.reliable_send(&messages).unwrap();
        } else {
            endpoint.unreliable_send(&messages).unwrap();
        }
        // The next one is later, whichever service sends it.
        let message = wait_for("a message", || endpoint.recv().unwrap());
        assert_eq!(message.payload, [n]);
    }
    assert_eq!(endpoint.unreliable_recv(), None);
    leave(&played, node, endpoint);
}

/// Ends an endpoint: it leaves in agreement with the controller.
fn leave(played: &Played, node: ConnectionId, endpoint: Endpoint) {
    std::thread::scope(|scope| {
        let end = scope.spawn(|| endpoint.exit());
        let wait = |number: u64| {
            let is_request = |envelope: &Envelope| matches!(envelope.message, Message::Leave { delivered, .. } if delivered == number);
            played.wait("the request to leave", is_request);
        };
        wait(0);
        played.send(node, Message::MayLeave { number: 3 });
        wait(3);
        assert!(!end.is_finished(), "it waits for the answer");
        played.send(node, Message::Left { id: OWN, incarnation: INCARNATION });
        end.join().unwrap();
    });
}

#[test]
fn without_a_controller_the_service_is_refused_by_name() {
    alone!();
    let mut endpoint = Endpoint::init(config()).unwrap();
    let refused = ReliableError::NoController;
    assert_eq!(endpoint.reliable_send(&[(OWN, b"x")]), Err(refused));
    assert_eq!((endpoint.reliable_recv(), endpoint.recv()), (Err(refused), Err(refused)));
    assert_eq!(endpoint.poll_reliable_event(), Err(refused));
    assert_eq!(endpoint.proc_fail_callback(drop), Err(refused));
    assert!(refused.to_string().contains("write [controller]"));
    endpoint.exit();
}

#[test]
fn controllers_on_other_machines_need_a_secret() {
    alone!();
    let played = Played::new();
    let mut config = config();
    let mut elsewhere = settings(&played.server, false);
    elsewhere.controllers.addresses = vec!["192.0.2.1:7070".parse().unwrap()];
    config.process.controller = Some(elsewhere);
    (config.process.process.max_members, config.process.process.reliable_buffer) = (4, 1 << 20);
    let error = Endpoint::init(config).err().expect("refused");
    assert!(matches!(&error, InitError::Controller(why) if why.contains("loopback")), "{error}");
}
