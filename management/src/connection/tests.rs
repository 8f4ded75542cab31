//! Both ends of connections, byte by byte.

use super::*;
use proptest::prelude::*;

const TOPOLOGY: u64 = 0x1234_5678_9abc_def0;
const NOW: Nanos = Nanos::from_secs(100);

fn identity(secret: &str) -> Identity {
    let secret = (!secret.is_empty()).then(|| Secret::new(secret.as_bytes()).unwrap());
    Identity { secret, topology: TOPOLOGY }
}

const SECRET: &str = "a secret of sixteen bytes or more";

struct Pair {
    node: Connection,
    controller: Connection,
}

/// Returns everything that an end has to send.
fn output(of: &mut Connection) -> Vec<u8> {
    let bytes = of.output().to_vec();
    of.consume(bytes.len());
    bytes
}

fn messages(of: &mut Connection) -> Vec<Vec<u8>> {
    let events = std::iter::from_fn(|| of.poll_event());
    events
        .filter_map(|event| match event {
            Event::Message(message) => Some(message),
            Event::Open(_) => None,
        })
        .collect()
}

impl Pair {
    fn new(node: Identity, controller: Identity, random: u8) -> Self {
        Self {
            node: Connection::node(node, Peer::Process(7), [random; 32], NOW),
            controller: Connection::controller(controller, [random + 100; 32], NOW),
        }
    }

    /// Carries bytes until no end has any. Returns the errors of node and controller.
    fn run(&mut self) -> [Option<Reason>; 2] {
        while !self.node.output().is_empty() || !self.controller.output().is_empty() {
            let bytes = output(&mut self.node);
            _ = self.controller.on_bytes(&bytes, NOW);
            let bytes = output(&mut self.controller);
            _ = self.node.on_bytes(&bytes, NOW);
        }
        [self.node.ended(), self.controller.ended()]
    }

    fn open(random: u8) -> Self {
        let mut pair = Self::new(identity(SECRET), identity(SECRET), random);
        assert_eq!(pair.run(), [None; 2]);
        assert!(pair.node.is_open() && pair.controller.is_open());
        assert_eq!(pair.node.poll_event(), Some(Event::Open(Peer::Process(7))));
        assert_eq!(pair.controller.poll_event(), Some(Event::Open(Peer::Process(7))));
        pair
    }

    /// Returns the frame of a message of the node.
    fn frame(&mut self, message: &[u8]) -> Vec<u8> {
        self.node.send(message, NOW).unwrap();
        output(&mut self.node)
    }
}

#[test]
fn messages_of_all_lengths_arrive_in_both_directions() {
    for secret in [SECRET, ""] {
        let mut pair = Pair::new(identity(secret), identity(secret), 1);
        pair.run();
        for len in [0, 1, 31, 1000, MAX_MESSAGE] {
            let message = vec![len as u8; len];
            pair.node.send(&message, NOW).unwrap();
            pair.controller.send(&message, NOW).unwrap();
            assert_eq!(pair.run(), [None; 2]);
            assert_eq!(messages(&mut pair.node), std::slice::from_ref(&message));
            assert_eq!(messages(&mut pair.controller), [message]);
        }
    }
}

#[test]
fn every_changed_bit_of_a_handshake_is_refused() {
    let mut pair = Pair::new(identity(SECRET), identity(SECRET), 1);
    let hello = output(&mut pair.node);
    let controller = pair.controller.clone();
    pair.controller.on_bytes(&hello, NOW).unwrap();
    let answer = output(&mut pair.controller);
    for bit in 0..hello.len() * 8 {
        let mut changed = hello.clone();
        changed[bit / 8] ^= 1 << (bit % 8);
        let mut controller = controller.clone();
        assert!(controller.on_bytes(&changed, NOW).is_err(), "bit {bit} of the node's hello");
        let mut changed = answer.clone();
        changed[bit / 8] ^= 1 << (bit % 8);
        let mut node = pair.node.clone();
        assert!(node.on_bytes(&changed, NOW).is_err(), "bit {bit} of the controller's hello");
    }
    pair.node.on_bytes(&answer, NOW).unwrap();
    let finish = output(&mut pair.node);
    for bit in 0..finish.len() * 8 {
        let mut changed = finish.clone();
        changed[bit / 8] ^= 1 << (bit % 8);
        let mut controller = pair.controller.clone();
        assert!(controller.on_bytes(&changed, NOW).is_err(), "bit {bit} of the proof");
        assert_eq!(controller.poll_event(), None);
    }
    assert!(pair.controller.on_bytes(&finish, NOW).is_ok() && pair.controller.is_open());
}

#[test]
fn every_changed_bit_of_a_frame_is_refused() {
    let mut pair = Pair::open(1);
    let frame = pair.frame(b"message");
    for bit in 0..frame.len() * 8 {
        let mut changed = frame.clone();
        changed[bit / 8] ^= 1 << (bit % 8);
        let mut controller = pair.controller.clone();
        let result = controller.on_bytes(&changed, NOW);
        // A greater length waits for more bytes, and then for a tag.
        let waits = bit < 32 && result.is_ok();
        assert!(result.is_err() || waits, "bit {bit}");
        if waits {
            let result = controller.on_bytes(&vec![0; MAX_MESSAGE + 100], NOW);
            assert_eq!(result, Err(Reason::Tag), "bit {bit}");
        }
        assert_eq!(messages(&mut controller), [b""; 0]);
    }
}

#[test]
fn repeated_reordered_reflected_and_foreign_frames_are_refused() {
    let mut pair = Pair::open(1);
    let [first, second] = [b"first", b"other"].map(|message| pair.frame(message));
    let foreign = Pair::open(2).frame(b"first");
    let fresh = pair.controller.clone();
    for frames in [&[&first, &first][..], &[&second, &first], &[&second], &[&foreign]] {
        let mut controller = fresh.clone();
        let result = frames.iter().try_for_each(|frame| controller.on_bytes(frame, NOW));
        assert_eq!(result, Err(Reason::Tag));
    }
    assert_eq!(pair.node.on_bytes(&first, NOW), Err(Reason::Tag), "reflected");
    pair.controller.on_bytes(&first, NOW).unwrap();
    pair.controller.on_bytes(&second, NOW).unwrap();
    assert_eq!(messages(&mut pair.controller), [b"first", b"other"]);
}

#[test]
fn a_recorded_node_cannot_be_played_again() {
    let mut pair = Pair::new(identity(SECRET), identity(SECRET), 1);
    let mut recorded = output(&mut pair.node);
    pair.controller.on_bytes(&recorded, NOW).unwrap();
    pair.node.on_bytes(&output(&mut pair.controller), NOW).unwrap();
    recorded.extend(output(&mut pair.node));
    recorded.extend(pair.frame(b"message"));
    let mut controller = Connection::controller(identity(SECRET), [9; 32], NOW);
    assert_eq!(controller.on_bytes(&recorded, NOW), Err(Reason::Tag));
    assert_eq!(controller.poll_event(), None);
}

#[test]
fn a_hello_that_comes_back_is_refused() {
    let mut pair = Pair::new(identity(SECRET), identity(SECRET), 1);
    let hello = output(&mut pair.node);
    assert_eq!(pair.node.on_bytes(&hello, NOW), Err(Reason::SameSide));
    pair.controller.on_bytes(&hello, NOW).unwrap();
    let answer = output(&mut pair.controller);
    let mut other = Connection::controller(identity(SECRET), [9; 32], NOW);
    assert_eq!(other.on_bytes(&answer, NOW), Err(Reason::SameSide));
}

#[test]
fn ends_that_do_not_fit_name_the_reason_on_both_sides() {
    let other = Identity { topology: 5, ..identity(SECRET) };
    let found = |found, own| Reason::Topology { found, own };
    for (node, controller, at_node, at_controller) in [
        (identity(SECRET), identity("another secret of 16 bytes"), Reason::WrongSecret, Reason::WrongSecret),
        (identity(SECRET), identity(""), Reason::NoSecret, Reason::SecretMissing),
        (identity(""), identity(SECRET), Reason::SecretMissing, Reason::NoSecret),
        (other.clone(), identity(SECRET), found(TOPOLOGY, 5), found(5, TOPOLOGY)),
    ] {
        let mut pair = Pair::new(node, controller, 1);
        assert_eq!(pair.run(), [Some(at_node), Some(at_controller)]);
        assert!(pair.node.poll_event().is_none() && pair.controller.poll_event().is_none());
    }
    // An operator needs no topology.
    let mut operator = Connection::node(Identity { topology: 0, ..other }, Peer::Operator, [3; 32], NOW);
    let mut controller = Connection::controller(identity(SECRET), [4; 32], NOW);
    controller.on_bytes(&output(&mut operator), NOW).unwrap();
    operator.on_bytes(&output(&mut controller), NOW).unwrap();
    controller.on_bytes(&output(&mut operator), NOW).unwrap();
    assert!(operator.is_open());
    assert_eq!(controller.poll_event(), Some(Event::Open(Peer::Operator)));
}

#[test]
fn another_version_protocol_or_peer_is_refused_by_name() {
    let hello = output(&mut Connection::node(identity(SECRET), Peer::Process(1), [1; 32], NOW));
    for (at, byte, reason) in [
        (0, b'G', Reason::NotHello),
        (9, 1, Reason::Version(1)),
        (10, 2, Reason::SameSide),
        (10, 3, Reason::SameSide),
        (11, 2, Reason::Reserved),
        (12, 1, Reason::Reserved),
        (13, 3, Reason::UnknownPeer(3)),
        (14, 1, Reason::Reserved),
        (15, 1, Reason::Reserved),
        (23, 1, Reason::Reserved),
    ] {
        let mut changed = hello.clone();
        changed[at] = byte;
        let mut controller = Connection::controller(identity(SECRET), [2; 32], NOW);
        assert_eq!(controller.on_bytes(&changed, NOW), Err(reason), "byte {at}");
        // Bytes that come late change nothing.
        assert_eq!(controller.on_bytes(&hello, NOW), Err(reason));
    }
    // The first wrong byte is enough, and the start of another version.
    let mut controller = Connection::controller(identity(SECRET), [2; 32], NOW);
    assert_eq!(controller.on_bytes(b"1PIPE-MN\x00\x01", NOW), Err(Reason::Version(1)));
    let mut node = Connection::node(identity(SECRET), Peer::Process(1), [1; 32], NOW);
    assert_eq!(node.on_bytes(b"1P", NOW), Ok(()));
    assert_eq!(node.on_bytes(b"X", NOW), Err(Reason::NotHello));
    // A controller of another version answers with its own.
    let mut node = Connection::node(identity(SECRET), Peer::Process(1), [1; 32], NOW);
    assert_eq!(node.on_bytes(b"1PIPE-MN\x00\x03\x02\x00\x01", NOW), Err(Reason::Version(3)));
}

#[test]
fn a_frame_of_64_kib_and_one_byte_is_refused() {
    let mut pair = Pair::open(1);
    let mut long = 65_537_u32.to_be_bytes().to_vec();
    assert_eq!(pair.controller.clone().on_bytes(&long, NOW), Err(Reason::TooLong(65_537)));
    long.extend(vec![0; 70_000]);
    assert_eq!(pair.controller.on_bytes(&long, NOW), Err(Reason::TooLong(65_537)));
    let message = vec![0; MAX_MESSAGE + 1];
    let sent = std::panic::catch_unwind(move || pair.node.send(&message, NOW));
    assert!(sent.is_err(), "send takes no such message");
}

#[test]
fn nothing_but_the_proof_is_taken_before_it() {
    let mut pair = Pair::new(identity(SECRET), identity(SECRET), 1);
    pair.controller.on_bytes(&output(&mut pair.node), NOW).unwrap();
    // A long frame is not even buffered.
    let frame = [&1000_u32.to_be_bytes()[..], &[1]].concat();
    assert_eq!(pair.controller.clone().on_bytes(&frame, NOW), Err(Reason::TooLong(1000)));
    let mut other = Direction::both(identity(SECRET).secret.as_ref(), &[0; 96], &[0; 96], None);
    let mut finish = Vec::new();
    other[0].seal(Kind::Finish, &[], &mut finish);
    assert_eq!(pair.controller.clone().on_bytes(&finish, NOW), Err(Reason::Tag));
    // The right keys, but no proof.
    pair.node.on_bytes(&output(&mut pair.controller), NOW).unwrap();
    let mut alive = Vec::new();
    let mut keys = pair.node.directions.clone().unwrap();
    keys[0] = pair.controller.directions.clone().unwrap()[1].clone();
    keys[0].seal(Kind::Alive, &[], &mut alive);
    assert_eq!(pair.controller.on_bytes(&alive, NOW), Err(Reason::Frame(Kind::Alive as u8)));
}

#[test]
fn unknown_kinds_of_frames_and_reasons_are_refused() {
    let mut pair = Pair::open(1);
    let keys = pair.controller.directions.clone().unwrap();
    for (kind, content, reason) in [
        (Kind::Finish, &b""[..], Reason::Frame(3)),
        (Kind::Alive, b"x", Reason::Frame(2)),
        (Kind::Close, b"", Reason::Frame(4)),
        (Kind::Close, &[77], Reason::Unknown(77)),
    ] {
        let mut frame = Vec::new();
        keys.clone()[1].seal(kind, content, &mut frame);
        assert_eq!(pair.controller.clone().on_bytes(&frame, NOW), Err(reason));
    }
    pair.controller.close(Reason::Connected);
    assert_eq!(pair.run(), [Some(Reason::Connected); 2]);
}

#[test]
fn a_handshake_and_an_idle_peer_have_limited_time() {
    let after = |span: Nanos| NOW + span;
    let mut node = Connection::node(identity(SECRET), Peer::Process(1), [1; 32], NOW);
    assert_eq!(node.next_timer(), Some(after(HANDSHAKE_TIME)));
    assert_eq!(node.on_timer(Nanos(after(HANDSHAKE_TIME).0 - 1)), Ok(()));
    assert_eq!(node.on_timer(after(HANDSHAKE_TIME)), Err(Reason::HandshakeTime));
    assert_eq!(node.next_timer(), None);

    let mut pair = Pair::open(1);
    let mut now = NOW;
    while now < after(Nanos::from_secs(60)) {
        now = pair.node.next_timer().unwrap().min(pair.controller.next_timer().unwrap());
        for end in [&mut pair.node, &mut pair.controller] {
            end.on_timer(now).unwrap();
        }
        let bytes = output(&mut pair.node);
        pair.controller.on_bytes(&bytes, now).unwrap();
        let bytes = output(&mut pair.controller);
        pair.node.on_bytes(&bytes, now).unwrap();
    }
    // Nothing arrives any more.
    let heard = now;
    let error = loop {
        now = pair.node.next_timer().unwrap();
        if let Err(error) = pair.node.on_timer(now) {
            break error;
        }
    };
    assert_eq!((error, now), (Reason::Silent, heard + DEAD_AFTER));
    // What was not sent does not grow.
    assert!(pair.node.output().len() < 100);
}

#[test]
fn a_peer_that_takes_nothing_is_disconnected() {
    let mut pair = Pair::open(1);
    let long = vec![0; 60_000];
    let sent = (0..1000).take_while(|_| pair.controller.send(&long, NOW).is_ok()).count();
    assert_eq!(sent, MAX_QUEUED / 60_037);
    assert_eq!(pair.controller.ended(), Some(Reason::Slow));
}

proptest! {
    /// However the bytes are cut, the same messages arrive; what is cut off is missing, and nothing else.
    #[test]
    fn cuts_change_nothing(cuts in prop::collection::vec(1_usize..200, 1..40), lost in 0_usize..700) {
        let mut pair = Pair::open(1);
        let sent: Vec<Vec<u8>> = (0..6).map(|n| vec![n; usize::from(n) * 20]).collect();
        let bytes: Vec<_> = sent.iter().flat_map(|message| pair.frame(message)).collect();
        let mut rest = &bytes[..bytes.len().saturating_sub(lost)];
        let arrived = rest.len();
        for cut in cuts.iter().cycle() {
            if rest.is_empty() {
                break;
            }
            let (now, later) = rest.split_at((*cut).min(rest.len()));
            pair.controller.on_bytes(now, NOW).unwrap();
            rest = later;
        }
        let mut end = 0;
        let whole = sent.iter().take_while(|message| {
            end += message.len() + frame::OVERHEAD;
            end <= arrived
        });
        let whole: Vec<_> = whole.cloned().collect();
        prop_assert_eq!(messages(&mut pair.controller), whole);
    }

    /// Bytes behind a valid frame end the connection, and the frame stays delivered.
    #[test]
    fn bytes_behind_a_frame_are_refused(more in prop::collection::vec(any::<u8>(), 100..300)) {
        let mut pair = Pair::open(1);
        let mut bytes = pair.frame(b"message");
        bytes.extend(&more);
        let result = pair.controller.on_bytes(&bytes, NOW);
        let len = u32::from_be_bytes(*more.first_chunk().unwrap()) as usize;
        let waits = len <= MAX_MESSAGE && len + frame::OVERHEAD > more.len();
        prop_assert_eq!(result.is_ok(), waits);
        prop_assert_eq!(messages(&mut pair.controller), [b"message"]);
    }
}
