use super::*;
use crate::memif::socket::INIT;
use proptest::prelude::*;
use rustix::fs::{MemfdFlags, fcntl_add_seals, ftruncate, memfd_create};

const QUEUES: u16 = 2;
const REGION: u64 = 1 << 20;

fn memory(bytes: u64, seals: SealFlags) -> OwnedFd {
    let file = memfd_create("region", MemfdFlags::ALLOW_SEALING | MemfdFlags::CLOEXEC).unwrap();
    ftruncate(&file, bytes).unwrap();
    fcntl_add_seals(&file, seals).unwrap();
    file
}

fn event() -> OwnedFd {
    std::io::pipe().unwrap().0.into()
}

fn add_region(index: u16, size: u64, file: OwnedFd) -> Message {
    let body = [&index.to_ne_bytes()[..], &size.to_ne_bytes()].concat();
    Message::new(ADD_REGION, &body, Some(file))
}

fn add_ring([flags, index, region]: [u16; 3], offset: u32, log2: u8) -> Message {
    let mut body: Vec<u8> = [flags, index, region].iter().flat_map(|field| field.to_ne_bytes()).collect();
    body.extend(offset.to_ne_bytes());
    body.push(log2);
    Message::new(ADD_RING, &body, Some(event()))
}

fn message_of(kind: u16) -> Message {
    Message::new(kind, &[], None)
}

fn hello(rings: u16) -> Message {
    let mut body = [0; 126];
    body[38..40].copy_from_slice(&(rings - 1).to_ne_bytes());
    body[40..42].copy_from_slice(&(rings - 1).to_ne_bytes());
    Message::new(HELLO, &body, None)
}

/// Returns the messages of a valid client after its `INIT`.
fn valid_client() -> Vec<Message> {
    let mut messages = vec![add_region(0, REGION, memory(REGION, SealFlags::SHRINK))];
    for flags in [FROM_CLIENT, 0] {
        messages.extend((0..QUEUES).map(|n| {
            let slot = u32::from(n + flags * QUEUES);
            add_ring([flags, n, 0], slot * (128 + 16 * 1024), 10)
        }));
    }
    messages.push(message_of(CONNECT));
    messages
}

fn accepted(mut audit: Audit, messages: &[Message]) -> Result<(), String> {
    messages.iter().try_for_each(|message| audit.check(message))
}

fn refusal(messages: &[Message]) -> String {
    accepted(Audit::of_client(QUEUES), messages).unwrap_err()
}

#[test]
fn valid_peers_are_accepted() {
    accepted(Audit::of_client(QUEUES), &valid_client()).unwrap();
    let server =
        [hello(256), message_of(ACK), message_of(ACK), message_of(CONNECTED), message_of(DISCONNECT)];
    accepted(Audit::of_server(QUEUES), &server).unwrap();
}

#[test]
fn region_that_can_shrink_or_is_too_short_is_refused() {
    let sealed = SealFlags::SHRINK;
    let cases = [
        (add_region(0, REGION, memory(REGION, SealFlags::GROW)), "is not sealed"),
        (add_region(0, REGION + 1, memory(REGION, sealed)), "is announced with"),
        (add_region(0, 0, memory(REGION, sealed)), "is announced with 0 bytes"),
        (add_region(0, u64::MAX, memory(REGION, sealed)), "is announced with"),
        (add_region(1, REGION, memory(REGION, sealed)), "is not the next one"),
        (add_region(0, REGION, tempfile::tempfile().unwrap().into()), "is announced with"),
        (Message::new(ADD_REGION, &[0; 10], None), "carries no descriptor"),
    ];
    for (message, expected) in cases {
        let reason = refusal(&[message]);
        assert!(reason.contains(expected), "{reason}");
    }
}

#[test]
fn ring_outside_its_region_is_refused() {
    let max_offset = (REGION - 128 - 16 * 1024) as u32;
    let cases = [
        ([FROM_CLIENT, 0, 1], 0, 10, "was not announced"),
        ([FROM_CLIENT, 0, u16::MAX], 0, 10, "was not announced"),
        ([FROM_CLIENT, 0, 0], max_offset + 16, 10, "does not fit"),
        ([FROM_CLIENT, 0, 0], u32::MAX - 15, 10, "does not fit"),
        ([FROM_CLIENT, 0, 0], 8, 10, "does not fit"),
        ([FROM_CLIENT, 0, 0], 0, 15, "above 2^14"),
        ([FROM_CLIENT, 0, 0], 0, 255, "above 2^14"),
        ([0, 1, 0], 0, 10, "is not the next one"),
    ];
    for (fields, offset, log2, expected) in cases {
        let region = add_region(0, REGION, memory(REGION, SealFlags::SHRINK));
        let reason = refusal(&[region, add_ring(fields, offset, log2)]);
        assert!(reason.contains(expected), "{reason}");
    }
    let region = add_region(0, REGION, memory(REGION, SealFlags::SHRINK));
    accepted(Audit::of_client(1), &[region, add_ring([FROM_CLIENT, 0, 0], max_offset, 10)]).unwrap();
}

#[test]
fn peer_with_fewer_rings_than_queues_is_refused() {
    // The driver would use the previous peer's ring for the missing queue.
    let region = add_region(0, REGION, memory(REGION, SealFlags::SHRINK));
    let reason = refusal(&[region, add_ring([FROM_CLIENT, 0, 0], 0, 10), message_of(CONNECT)]);
    assert_eq!(reason, "1 rings from the client and 0 to it, but this port needs 2 and 2");
    let reason = accepted(Audit::of_server(QUEUES), &[hello(1)]).unwrap_err();
    assert_eq!(reason, "the server supports 1 rings to it, but this port needs 2");
}

#[test]
fn messages_in_the_wrong_state_are_refused() {
    let mut late = valid_client();
    late.push(add_ring([0, QUEUES, 0], 0, 10));
    assert_eq!(refusal(&late), "message 5 is not expected in this state");
    for kind in [HELLO, CONNECTED, INIT, 0, 9, u16::MAX] {
        assert!(refusal(&[message_of(kind)]).contains("is not expected in this state"));
    }
    let server = |messages: &[Message]| accepted(Audit::of_server(QUEUES), messages).unwrap_err();
    assert_eq!(server(&[message_of(CONNECTED)]), "message 7 is not expected in this state");
    assert_eq!(server(&[hello(9), hello(9)]), "message 2 is not expected in this state");
    let region = || add_region(0, REGION, memory(REGION, SealFlags::SHRINK));
    assert_eq!(server(&[hello(9), region()]), "message 4 is not expected in this state");
    let extra = Message::new(DISCONNECT, &[], Some(event()));
    assert_eq!(server(&[extra]), "message 8 carries a descriptor");
}

#[test]
fn event_descriptor_of_a_ring_is_made_non_blocking() {
    let region = add_region(0, REGION, memory(REGION, SealFlags::SHRINK));
    let ring = add_ring([FROM_CLIENT, 0, 0], 0, 10);
    accepted(Audit::of_client(1), &[region]).unwrap();
    let mut rings = [0; 2];
    super::ring(&ring, ring.descriptor().unwrap(), &[REGION], &mut rings).unwrap();
    assert!(fcntl_getfl(ring.descriptor().unwrap()).unwrap().contains(OFlags::NONBLOCK));
}

/// Model of DPDK's driver, which uses the messages that it receives without further checks.
#[derive(Default)]
struct Driver {
    regions: Vec<(u64, OwnedFd)>,
    rings: [Vec<(u16, u32, u8)>; 2],
    connected: bool,
}

impl Driver {
    fn receive(&mut self, message: &Message) {
        match message.kind() {
            ADD_REGION => {
                let file = message.descriptor().expect("the driver maps it").try_clone().unwrap();
                self.regions.push((message.u64(4), file));
            }
            ADD_RING => {
                let direction = usize::from(message.u16(2) & FROM_CLIENT);
                let (index, ring) = (message.u16(4), (message.u16(6), message.u32(8), message.u8(12)));
                assert_eq!(
                    usize::from(index),
                    self.rings[direction].len(),
                    "a ring was set twice or skipped"
                );
                self.rings[direction].push(ring);
            }
            CONNECT => self.connected = true,
            _ => {}
        }
        if self.connected {
            self.assert_rings_are_mapped();
        }
    }

    /// Asserts that every byte of each ring is within its region's file, which cannot shrink.
    fn assert_rings_are_mapped(&self) {
        for rings in &self.rings {
            assert_eq!(rings.len(), usize::from(QUEUES), "a queue without a ring");
            for &(region, offset, log2) in rings {
                let (size, file) = &self.regions[usize::from(region)];
                let end = u64::from(offset) + 128 + (16u64 << log2);
                assert!(end <= *size && *size <= fstat(file).unwrap().st_size as u64);
                assert!(ftruncate(file, end - 1).is_err(), "the file can shrink below the ring");
            }
        }
    }
}

/// A message of a client, before encoding
#[derive(Clone, Debug)]
enum ClientMessage {
    Region { index: u16, size: u64, file: u64, sealed: bool },
    Ring { fields: [u16; 3], offset: u32, log2: u8 },
    Plain(u16),
}

impl ClientMessage {
    fn message(&self) -> Message {
        match *self {
            Self::Region { index, size, file, sealed } => {
                let seals = if sealed { SealFlags::SHRINK } else { SealFlags::GROW };
                add_region(index, size, memory(file, seals))
            }
            Self::Ring { fields, offset, log2 } => add_ring(fields, offset, log2),
            Self::Plain(kind) => message_of(kind),
        }
    }

    /// Changes one field.
    fn mutate(&mut self, what: u8, value: u64) {
        // Mostly values near a limit, where mistakes are likely
        let number = match value % 4 {
            0 => value >> 2,
            1 => (value >> 2) % 4,
            2 => (value >> 2) % 32,
            _ => REGION - RING_HEADER - (DESCRIPTOR << 10) + 16 * ((value >> 2) % 5) - 32,
        };
        match self {
            Self::Region { index, size, file, sealed } => match what % 4 {
                0 => *index = number as u16,
                1 => *size = number,
                2 => *file = number % (2 * REGION),
                _ => *sealed = !*sealed,
            },
            Self::Ring { fields, offset, log2 } => match what % 5 {
                3 => *offset = number as u32,
                4 => *log2 = number as u8,
                field => fields[usize::from(field)] = number as u16,
            },
            Self::Plain(kind) => *kind = number as u16,
        }
    }
}

/// Generates the messages of a valid client, some of which are changed, left out, duplicated or swapped.
fn client() -> impl Strategy<Value = Vec<ClientMessage>> {
    let mut valid = vec![ClientMessage::Region { index: 0, size: REGION, file: REGION, sealed: true }];
    for flags in [FROM_CLIENT, 0] {
        valid.extend((0..QUEUES).map(|n| {
            let slot = u32::from(n + flags * QUEUES);
            ClientMessage::Ring { fields: [flags, n, 0], offset: slot * (128 + 16 * 1024), log2: 10 }
        }));
    }
    valid.push(ClientMessage::Plain(CONNECT));
    let faults =
        proptest::collection::vec((0..8_u8, any::<prop::sample::Index>(), any::<u8>(), any::<u64>()), 0..3);
    faults.prop_map(move |faults| {
        let mut messages = valid.clone();
        for (how, at, what, value) in faults {
            let at = at.index(messages.len());
            match how {
                0 if messages.len() > 1 => drop(messages.remove(at)),
                1 => messages.insert(at, messages[at].clone()),
                2 => {
                    let other = value as usize % messages.len();
                    messages.swap(at, other);
                }
                _ => messages[at].mutate(what, value),
            }
        }
        messages
    })
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, cases: 4_000, ..ProptestConfig::default() })]

    #[test]
    fn no_client_makes_the_driver_access_memory_outside_of_its_files(messages in client()) {
        let (mut audit, mut driver) = (Audit::of_client(QUEUES), Driver::default());
        for message in messages.iter().map(ClientMessage::message) {
            if audit.check(&message).is_err() {
                break;
            }
            driver.receive(&message);
        }
    }
}
