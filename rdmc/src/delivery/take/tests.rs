use super::*;
use crate::delivery::note::PART;
use rnic::Interface;
use rocev2::ethernet::MacAddr;

const ROOT: IpAddr = IpAddr::V4(core::net::Ipv4Addr::new(10, 0, 0, 1));
const OWN: IpAddr = IpAddr::V4(core::net::Ipv4Addr::new(10, 0, 0, 2));
const LONG: &str = "a name of more than thirty-two bytes, which takes several notes.iso";
const NOW: Nanos = Nanos::ZERO;

fn receiver(max_memory: u64) -> (Rnic, Take) {
    let mut nic = Rnic::new(rnic::Config::new(Interface::new(MacAddr([2, 0, 0, 0, 0, 2]), OWN, 24)));
    let config = TakeConfig { from: ROOT, patience: Nanos::from_secs(1), max_memory };
    let mut take = Take::new(Config::new(OWN), config);
    take.start(&mut nic, NOW).expect("room for a node");
    (nic, take)
}

/// The notes of an offer, as a root tells them
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
    let parts = (0..).step_by(PART).zip(name.as_bytes().chunks(PART)).map(|(at, bytes)| {
        let mut part = [0; PART];
        part[..bytes.len()].copy_from_slice(bytes);
        Note::Name { at, len: bytes.len() as u8, part }
    });
    let member = |place, ip| Note::Member { round, place, rack: 0, ip };
    parts.chain([Note::Offer(terms), member(0, ROOT), member(1, OWN)]).collect()
}

fn hear(nic: &mut Rnic, take: &mut Take, notes: &[Note]) {
    for note in notes {
        take.on_note(nic, *note, NOW);
    }
}

/// Another receiver has refused while this one's disk begins, so there is a second round. The disk answers between any two
/// of the offer's notes, or before or behind all of them.
#[test]
fn an_offer_is_taken_whenever_the_disk_has_begun() {
    let second = offer(LONG, 2, |_| {});
    for at in 0..=second.len() {
        let (mut nic, mut take) = receiver(TakeConfig::MEMORY);
        hear(&mut nic, &mut take, &offer(LONG, 1, |_| {}));
        assert_eq!(take.offered().map(|offer| offer.name).as_deref(), Some(LONG));
        hear(&mut nic, &mut take, &second[..at]);
        take.accept(&mut nic, NOW);
        hear(&mut nic, &mut take, &second[at..]);
        assert_eq!(take.outcome(), None, "accepted before note {at}");
        hear(&mut nic, &mut take, &[Note::Start { round: 2, first: 0 }]);
        assert_eq!((take.outcome(), take.stage), (None, Stage::Receiving), "accepted before note {at}");
    }
}

/// A root that begins an offer again from its name takes back what it has said of the one before.
#[test]
fn an_offer_that_is_cut_short_by_another_one_is_forgotten() {
    for at in 1..offer(LONG, 1, |_| {}).len() {
        let (mut nic, mut take) = receiver(TakeConfig::MEMORY);
        hear(&mut nic, &mut take, &offer(LONG, 1, |_| {})[..at]);
        hear(&mut nic, &mut take, &offer("another", 2, |_| {}));
        assert_eq!(take.offered().map(|offer| offer.name).as_deref(), Some("another"), "{at}");
    }
}

#[test]
fn a_later_round_of_another_object_breaks_the_protocol() {
    let violation = Some(Err(TakeError::Violation(ROOT)));
    let others = [
        offer("another name", 2, |_| {}),
        offer(LONG, 2, |terms| terms.len = 11),
        offer(LONG, 2, |terms| terms.segment = 8),
        offer(LONG, 1, |_| {}),
    ];
    for other in others {
        let (mut nic, mut take) = receiver(TakeConfig::MEMORY);
        hear(&mut nic, &mut take, &offer(LONG, 1, |_| {}));
        take.accept(&mut nic, NOW);
        hear(&mut nic, &mut take, &other);
        assert_eq!(take.outcome().copied(), violation);
    }
    // Notes that belong to no offer, or do not fit the one they belong to
    let of_none = [Note::Offer(match offer(LONG, 1, |_| {})[3] {
        Note::Offer(terms) => terms,
        note => panic!("{note:?}"),
    })];
    let twice = [&offer("x", 1, |_| {})[..2], &offer("x", 1, |_| {})[1..]].concat();
    let gap = [offer(LONG, 1, |_| {})[1]];
    for notes in [&of_none[..], &twice, &gap, &offer("x", 1, |terms| terms.window = 0)] {
        let (mut nic, mut take) = receiver(TakeConfig::MEMORY);
        hear(&mut nic, &mut take, notes);
        assert_eq!(take.outcome().copied(), violation, "{notes:?}");
    }
}

#[test]
fn segments_beyond_the_memory_are_refused() {
    for (segment, window, memory) in
        [(100, 4, 899), (u32::MAX, 4, TakeConfig::MEMORY), (4, u32::MAX, 1 << 30)]
    {
        let (mut nic, mut take) = receiver(memory);
        let large = |terms: &mut Terms| (terms.segment, terms.window) = (segment, window);
        hear(&mut nic, &mut take, &offer(LONG, 1, large));
        assert_eq!(take.outcome().copied(), Some(Err(TakeError::Refused(Refusal::Memory))));
    }
    let (mut nic, mut take) = receiver(900);
    hear(&mut nic, &mut take, &offer(LONG, 1, |terms| terms.segment = 100));
    assert!(take.offered().is_some());
}

#[test]
fn an_offer_to_be_copied_by_a_switch_is_complete_with_the_switch() {
    let (mut nic, mut take) = receiver(TakeConfig::MEMORY);
    let mut notes = offer("x", 1, |terms| terms.algorithm = 4);
    let switch = SwitchAddress { address: [10, 0, 0, 254].into(), port: 18_515 };
    notes.push(Note::Switch { round: 1, switch });
    let (last, rest) = notes.split_last().expect("notes");
    hear(&mut nic, &mut take, rest);
    assert_eq!(take.offered(), None);
    hear(&mut nic, &mut take, &[*last]);
    assert!(take.offered().is_some());
    take.accept(&mut nic, NOW);
    hear(&mut nic, &mut take, &[Note::Start { round: 1, first: 0 }]);
    assert_eq!((take.outcome(), take.stage), (None, Stage::Receiving));
}
