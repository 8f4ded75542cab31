use super::*;
use crate::system::now;
use management::{ConnectionId, Server, ServerConfig, ServerEvent};
use onepipe::OnePipe;
use onepipe::control::{Incarnation, Message};
use onepipe_host::file::controller::Controllers;
use representative::config::{BeaconForm, Incarnation as Place, Link, Pace, Registers, Side};
use rocev2::Qpn;
use rocev2::ethernet::MacAddr;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;
use switch::{PortId, forward};

const TOPOLOGY: u64 = 5;
const OWN: Incarnation = Incarnation(9);
/// Longest wait for something that happens at once on an idle machine
const LONG: Duration = Duration::from_secs(20);

fn representative() -> representative::Config {
    let link = Link {
        side: Side::Below,
        port: PortId(0),
        mac: MacAddr([2, 0, 0, 0, 0, 1]),
        address: [10, 0, 0, 1].into(),
        detour: Vec::new(),
        qpn: Qpn::new(0x11),
        beacon: BeaconForm::Datagram,
        standby: None,
    };
    representative::Config {
        forward: forward::Config::bridge(1, 16),
        incarnation: Place::Host,
        pace: Pace::Passing,
        mac: MacAddr([2; 6]),
        addresses: vec![[10, 0, 0, 9].into()],
        qkey: OnePipe::QKEY,
        first_qp: Qpn::new(0x100),
        registers: Registers { va: 0, rkey: 1 },
        beacon_interval: Nanos(3_000),
        dead_after_intervals: 10,
        fail_after_intervals: Some(10),
        join_window: Nanos(100_000),
        evict_after: Nanos::ZERO,
        layer: 1,
        ahead_max: Nanos::from_millis(1),
        clock_source: onepipe::ClockSource::Host,
        clock: onepipe::Timestamp::new(1_000_000),
        traffic_class: 0,
        links: vec![link],
        declares: true,
        bug: None,
    }
}

/// A controller on the loopback interface that answers by hand.
struct Controller {
    server: Server,
    events: Receiver<ServerEvent>,
}

impl Controller {
    fn start() -> Self {
        let (sender, events) = channel();
        let listen = "127.0.0.1:0".parse().unwrap();
        let config = ServerConfig { listen, secret: None, topology: TOPOLOGY, max_connections: 4 };
        let server = Server::start(&config, move |event| drop(sender.send(event))).unwrap();
        Self { server, events }
    }

    /// Waits for a message of the node.
    fn message(&self, driver: &mut KeeperDriver) -> (ConnectionId, Envelope) {
        let until = now() + LONG;
        while now() < until {
            driver.receive(Nanos(1));
            match self.events.recv_timeout(Duration::from_millis(5)) {
                Ok(ServerEvent::Message(from, bytes)) => return (from, Envelope::decode(&bytes).unwrap()),
                Ok(ServerEvent::Connected(_, peer, _)) => assert_eq!(peer, Peer::Switch(3, 1)),
                Ok(other) => panic!("{other:?}"),
                Err(_) => {}
            }
        }
        panic!("no message");
    }

    fn send(&self, to: ConnectionId, message: Message) {
        let incarnation = if matches!(message, Message::WelcomeRep { .. }) { Incarnation(0) } else { OWN };
        let envelope = Envelope { term: 2, incarnation, message };
        self.server.send(to, &envelope.encode().unwrap());
    }
}

fn wait(driver: &mut KeeperDriver, until: impl Fn(&KeeperDriver) -> bool) {
    let end = now() + LONG;
    while !until(driver) {
        assert!(now() < end, "{:?}", driver.status());
        driver.receive(Nanos(1));
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn switch_registers_with_a_controller_and_answers_it() {
    let controller = Controller::start();
    let config = ControllerConfig {
        controllers: Controllers {
            addresses: vec![controller.server.address()],
            secret_file: None,
            topology: TOPOLOGY,
        },
        switch: 3,
        seat: 1,
    };
    let mut driver = KeeperDriver::start(&config, representative()).unwrap();
    let (node, Envelope { message, .. }) = controller.message(&mut driver);
    let Message::RegisterRep { switch: 3, seat: 1, boot, topology: TOPOLOGY, .. } = message else {
        panic!("{message:?}")
    };
    assert!(boot != [0; 16] && driver.keeper.poll_command().is_none());
    controller.send(node, Message::WelcomeRep { boot, incarnation: OWN, first_qp: Qpn::new(0x7000) });
    controller.server.send(node, b"no message of the protocol");
    wait(&mut driver, |driver| driver.status().refused == 1);
    let status = driver.status();
    assert_eq!((status.connected, status.status.incarnation, status.status.term), (1, OWN, 2));
    assert!(matches!(driver.keeper.poll_command(), Some(Command::Introduce(_))));
    controller.send(node, Message::Ping { number: 4 });
    let (_, answer) = controller.message(&mut driver);
    assert_eq!(answer, Envelope { term: 2, incarnation: OWN, message: Message::Pong { number: 4 } });
    drop(controller);
    wait(&mut driver, |driver| driver.status().connected == 0);
}

#[test]
fn controller_elsewhere_needs_a_secret_that_can_be_read() {
    let start = |secret_file| {
        let addresses = vec!["10.9.0.1:7070".parse().unwrap()];
        let config = ControllerConfig {
            controllers: Controllers { addresses, secret_file, topology: TOPOLOGY },
            switch: 3,
            seat: 1,
        };
        KeeperDriver::start(&config, representative()).err().expect("it is refused").to_string()
    };
    let missing = start(Some("/nonexistent/secret".into()));
    assert!(missing.starts_with("[controller]: cannot read the secret /nonexistent/secret"), "{missing}");
    assert!(start(None).contains("there is no secret"));
}
