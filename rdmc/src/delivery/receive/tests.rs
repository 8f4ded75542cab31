use super::*;
use crate::delivery::note::NAME_PART_LEN;
use rnic::Interface;
use rocev2::ethernet::MacAddr;

const ROOT: IpAddr = IpAddr::V4(core::net::Ipv4Addr::new(10, 0, 0, 1));
const OWN: IpAddr = IpAddr::V4(core::net::Ipv4Addr::new(10, 0, 0, 2));
const LONG: &str = "a name of more than thirty-two bytes, which takes several notes.iso";
const NOW: Nanos = Nanos::ZERO;

fn new_receiver(max_memory: u64) -> (Rnic, ObjectReceiver) {
    let mut nic = Rnic::new(rnic::Config::new(Interface::new(MacAddr([2, 0, 0, 0, 0, 2]), OWN, 24)));
    let config = ReceiverConfig { from: ROOT, patience: Nanos::from_secs(1), max_memory };
    let mut receiver = ObjectReceiver::new(Config::new(OWN), config);
    receiver.start(&mut nic, NOW).expect("the NIC has room for a node");
    (nic, receiver)
}

/// Returns the notes of an offer, in the order of a root.
fn offer(name: &str, round: u32, change: impl FnOnce(&mut Terms)) -> Vec<Note> {
    let mut terms = Terms {
        round,
        members: 2,
        len: 10,
        segment: 4,
        block: 4,
        window: 4,
        algorithm: 3,
        name_len: name.len() as u8,
    };
    change(&mut terms);
    let parts = (0..).step_by(NAME_PART_LEN).zip(name.as_bytes().chunks(NAME_PART_LEN)).map(|(at, bytes)| {
        let mut part = [0; NAME_PART_LEN];
        part[..bytes.len()].copy_from_slice(bytes);
        Note::Name { at, len: bytes.len() as u8, part }
    });
    let member = |index, ip| Note::Member { round, index, rack: 0, ip };
    parts.chain([Note::Offer(terms), member(0, ROOT), member(1, OWN)]).collect()
}

fn receive_notes(nic: &mut Rnic, receiver: &mut ObjectReceiver, notes: &[Note]) {
    for note in notes {
        receiver.on_note(nic, *note, NOW);
    }
}

/// Another receiver has refused while this receiver's disk is slow to start, so there is a second round. The
/// application accepts between any two notes of the second offer, or before or after all of them.
#[test]
fn second_offer_may_be_accepted_between_any_two_notes() {
    let second = offer(LONG, 2, |_| {});
    for at in 0..=second.len() {
        let (mut nic, mut receiver) = new_receiver(ReceiverConfig::MEMORY);
        receive_notes(&mut nic, &mut receiver, &offer(LONG, 1, |_| {}));
        assert_eq!(receiver.offered().map(|offer| offer.name).as_deref(), Some(LONG));
        receive_notes(&mut nic, &mut receiver, &second[..at]);
        receiver.accept(&mut nic, NOW);
        receive_notes(&mut nic, &mut receiver, &second[at..]);
        assert_eq!(receiver.outcome(), None, "accepted before note {at}");
        receive_notes(&mut nic, &mut receiver, &[Note::Start { round: 2, first: 0 }]);
        assert_eq!(
            (receiver.outcome(), receiver.stage),
            (None, Stage::Receiving),
            "accepted before note {at}"
        );
    }
}

/// A root that begins a new offer withdraws the one that was incomplete.
#[test]
fn incomplete_offer_is_replaced_by_the_next_one() {
    for at in 1..offer(LONG, 1, |_| {}).len() {
        let (mut nic, mut receiver) = new_receiver(ReceiverConfig::MEMORY);
        receive_notes(&mut nic, &mut receiver, &offer(LONG, 1, |_| {})[..at]);
        receive_notes(&mut nic, &mut receiver, &offer("another", 2, |_| {}));
        assert_eq!(receiver.offered().map(|offer| offer.name).as_deref(), Some("another"), "{at}");
    }
}

#[test]
fn later_round_of_another_object_is_a_violation() {
    let violation = Some(Err(ReceiverError::Violation(ROOT)));
    let others = [
        offer("another name", 2, |_| {}),
        offer(LONG, 2, |terms| terms.len = 11),
        offer(LONG, 2, |terms| terms.segment = 8),
        offer(LONG, 1, |_| {}),
    ];
    for other in others {
        let (mut nic, mut receiver) = new_receiver(ReceiverConfig::MEMORY);
        receive_notes(&mut nic, &mut receiver, &offer(LONG, 1, |_| {}));
        receiver.accept(&mut nic, NOW);
        receive_notes(&mut nic, &mut receiver, &other);
        assert_eq!(receiver.outcome().copied(), violation);
    }
    // Notes that belong to no offer, or do not fit the offer to which they belong.
    let without_offer = [Note::Offer(match offer(LONG, 1, |_| {})[3] {
        Note::Offer(terms) => terms,
        note => panic!("{note:?}"),
    })];
    let repeated = [&offer("x", 1, |_| {})[..2], &offer("x", 1, |_| {})[1..]].concat();
    let gap = [offer(LONG, 1, |_| {})[1]];
    for notes in [&without_offer[..], &repeated, &gap, &offer("x", 1, |terms| terms.window = 0)] {
        let (mut nic, mut receiver) = new_receiver(ReceiverConfig::MEMORY);
        receive_notes(&mut nic, &mut receiver, notes);
        assert_eq!(receiver.outcome().copied(), violation, "{notes:?}");
    }
}

#[test]
fn offer_beyond_the_memory_limit_is_refused() {
    for (segment, window, memory) in
        [(100, 4, 899), (u32::MAX, 4, ReceiverConfig::MEMORY), (4, u32::MAX, 1 << 30)]
    {
        let (mut nic, mut receiver) = new_receiver(memory);
        let large = |terms: &mut Terms| (terms.segment, terms.window) = (segment, window);
        receive_notes(&mut nic, &mut receiver, &offer(LONG, 1, large));
        assert_eq!(receiver.outcome().copied(), Some(Err(ReceiverError::Refused(Refusal::Memory))));
    }
    let (mut nic, mut receiver) = new_receiver(900);
    receive_notes(&mut nic, &mut receiver, &offer(LONG, 1, |terms| terms.segment = 100));
    assert!(receiver.offered().is_some());
}

#[test]
fn in_network_offer_is_incomplete_without_the_switch() {
    let (mut nic, mut receiver) = new_receiver(ReceiverConfig::MEMORY);
    let mut notes = offer("x", 1, |terms| terms.algorithm = 4);
    let switch = SwitchAddress { address: [10, 0, 0, 254].into(), port: 18_515 };
    notes.push(Note::Switch { round: 1, switch });
    let (last, rest) = notes.split_last().expect("notes");
    receive_notes(&mut nic, &mut receiver, rest);
    assert_eq!(receiver.offered(), None);
    receive_notes(&mut nic, &mut receiver, &[*last]);
    assert!(receiver.offered().is_some());
    receiver.accept(&mut nic, NOW);
    receive_notes(&mut nic, &mut receiver, &[Note::Start { round: 1, first: 0 }]);
    assert_eq!((receiver.outcome(), receiver.stage), (None, Stage::Receiving));
}
