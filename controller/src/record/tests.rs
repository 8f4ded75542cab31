use super::*;
use crate::store::Records;
use proptest::prelude::*;

fn member() -> impl Strategy<Value = MemberRecord> {
    let state = prop::sample::select(MemberState::ALL);
    (state, any::<([u8; 16], [u8; 16], u32)>(), any::<(u64, u64, u64, u64, u32)>()).prop_map(
        |(state, (boot, address, qpn), (joined, time, case, delivered, recalls))| MemberRecord {
            state,
            qpn: Qpn::new(qpn & 0xff_ffff),
            boot,
            address,
            joined,
            since: joined ^ 1,
            time,
            case,
            delivered,
            recalls,
        },
    )
}

fn case() -> impl Strategy<Value = CaseRecord> {
    let numbers = || prop::collection::vec(any::<u32>(), 0..5);
    let ids = || prop::collection::vec(any::<u32>().prop_map(ProcessId), 0..5);
    let failed = any::<(u32, u32, u64, u64)>().prop_map(|(id, incarnation, time, delivered)| FailedMember {
        id: ProcessId(id),
        incarnation: Incarnation(incarnation),
        time,
        delivered,
    });
    let failed = prop::collection::vec(failed, 0..4);
    let stage = prop::sample::select(Stage::ALL);
    (stage, failed, numbers(), numbers(), numbers(), ids(), ids(), any::<u64>()).prop_map(
        |(stage, failed, dead, frozen, muted, held, unfenced, at)| CaseRecord {
            stage,
            failed,
            dead,
            fence: FenceRecord { frozen, muted, held },
            unfenced,
            at,
        },
    )
}

fn key() -> impl Strategy<Value = Key> {
    let number = || prop_oneof![0u32..3, any::<u32>()];
    prop_oneof![
        Just(Key::Next),
        (number(), number()).prop_map(|(id, n)| Key::Member(ProcessId(id), Incarnation(n))),
        (any::<u16>(), 0u8..2, number()).prop_map(|(switch, seat, n)| Key::Rep(switch, seat, Incarnation(n))),
        any::<u64>().prop_map(Key::Case),
        number().prop_map(Key::Link),
        (number(), number(), number(), number(), 0u32..1 << 24).prop_map(|(a, b, c, d, first)| {
            Key::Recall(ProcessId(a), Incarnation(b), ProcessId(c), Incarnation(d), first)
        }),
    ]
}

fn stored<V: Value>(value: &V, key: Key) -> Vec<u8> {
    match value.put_at(key) {
        Change::Put(_, bytes) => bytes,
        Change::Delete(_) => unreachable!("put_at puts"),
    }
}

#[test]
fn bytes_of_a_record_stay_those_of_its_format() {
    let next = NextRecord { incarnation: Incarnation(2), case: 3, qpn: Qpn::new(0x104) };
    assert_eq!(stored(&next, Key::Next), [1, 2, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 3, 0, 0, 1, 4]);
    let link = LinkRecord { state: LinkState::Absent };
    assert_eq!(stored(&link, Key::Link(7)), [5, 2, 2]);
    assert_eq!(Key::Link(7).to_bytes(), [5, 0, 0, 0, 7]);
    assert_eq!(Key::Member(ProcessId(1), Incarnation(2)).to_bytes(), [2, 0, 0, 0, 1, 0, 0, 0, 2]);
    assert_eq!(Key::Rep(4, 1, Incarnation(2)).to_bytes(), [3, 0, 4, 1, 0, 0, 0, 2]);
}

#[test]
fn bad_records_are_all_named() {
    let good = stored(&LinkRecord { state: LinkState::Relied }, Key::Link(1));
    let with = |at: usize, value| {
        let mut bytes = good.clone();
        bytes[at] = value;
        bytes
    };
    let cases = [
        (Key::Link(1).to_bytes(), with(0, 2), "2 is not a value of the field kind of record"),
        (Key::Link(2).to_bytes(), with(1, 9), "9 is not a value of the field format of record"),
        (Key::Link(3).to_bytes(), with(2, 3), "3 is not a value of the field LinkState"),
        (Key::Link(4).to_bytes(), vec![5], "the bytes end inside a field"),
        (Key::Link(5).to_bytes(), [&good[..], &[0]].concat(), "1 bytes are left behind the last field"),
        (vec![5, 0], good.clone(), "the bytes end inside a field"),
        (vec![77], good.clone(), "77 is not a value of the field kind of key"),
    ];
    let records: Records = cases.iter().map(|(key, value, _)| (key.clone(), value.clone())).collect();
    let bad = Image::load(&records).expect_err("all are bad");
    assert_eq!(bad.len(), cases.len());
    for (key, _, text) in cases {
        let found = bad.iter().find(|bad| bad.key == key).expect("named");
        assert_eq!(found.error.to_string(), text);
    }
}

/// Returns the record of a representative as a program with format 1 has written it.
fn rep_of_format_1(state: RepState, switch: u16, incarnation: u32) -> (Vec<u8>, Vec<u8>) {
    let key = [&[3][..], &switch.to_be_bytes(), &incarnation.to_be_bytes()].concat();
    let qpn = [0, 0, 0x12, 0x34];
    let floors = [&7u64.to_be_bytes()[..], &8u64.to_be_bytes()].concat();
    (key, [&[3, 1, state as u8][..], &[5; 16], &[6; 16], &qpn, &floors].concat())
}

#[test]
fn representatives_of_format_1_have_seat_0() {
    let link = (Key::Link(7).to_bytes(), vec![5, 1, 2]);
    let mut records: Records = [rep_of_format_1(RepState::Active, 4, 9), link].into();
    let image = Image::load(&records).expect("an earlier format");
    let (incarnation, rep) = image.rep(4, 0).expect("it is there");
    assert_eq!((incarnation, rep.state, rep.first_qp), (Incarnation(9), RepState::Active, Qpn::new(0x1234)));
    assert_eq!((rep.boot, rep.address, rep.up, rep.down), ([5; 16], [6; 16], 7, 8));
    assert_eq!(image.links, [(7, LinkState::Absent)].into());
    // What is written later about the same incarnation counts, whatever the order of the keys.
    for incarnation in [9, 0xff00_0009] {
        records.extend([rep_of_format_1(RepState::Active, 4, incarnation)]);
        let retired = RepRecord { state: RepState::Retired, ..rep.clone() };
        let changes = [retired.put_at(Key::Rep(4, 0, Incarnation(incarnation)))];
        crate::store::apply(&mut records, &changes);
        let image = Image::load(&records).expect("both formats");
        assert_eq!(image.reps[&(4, 0, Incarnation(incarnation))], retired);
    }
}

#[test]
fn the_last_incarnation_is_the_present_one() {
    let mut image = Image::default();
    let rep = |up| RepRecord {
        state: RepState::Active,
        boot: [0; 16],
        address: [0; 16],
        first_qp: Qpn::new(1),
        up,
        down: 0,
    };
    let changes: Vec<_> = [(3, 9), (4, 5), (3, 2)]
        .map(|(switch, n)| rep(n).put_at(Key::Rep(switch, 0, Incarnation(n as u32))))
        .into();
    image.apply(&changes);
    assert_eq!(image.rep(3, 0).map(|(n, rep)| (n, rep.up)), Some((Incarnation(9), 9)));
    assert_eq!((image.rep(5, 0), image.rep(3, 1)), (None, None));
}

proptest! {
    #[test]
    fn members_and_cases_survive(member in member(), case in case()) {
        let key = Key::Member(ProcessId(1), Incarnation(1));
        prop_assert_eq!(MemberRecord::read(&stored(&member, key)), Ok(member));
        prop_assert_eq!(CaseRecord::read(&stored(&case, Key::Case(1))), Ok(case));
    }

    #[test]
    fn keys_survive_and_sort_as_their_bytes(a in key(), b in key()) {
        prop_assert_eq!(Key::parse(&a.to_bytes()), Ok(a));
        prop_assert_eq!(a.cmp(&b), a.to_bytes().cmp(&b.to_bytes()));
    }

    #[test]
    fn damaged_records_are_refused_or_are_values(case in case(), at: prop::sample::Index, value: u8, cut: prop::sample::Index) {
        let mut bytes = stored(&case, Key::Case(1));
        let at = at.index(bytes.len());
        bytes[at] = value;
        // Byte 1 is the format; a record of an earlier one is written in today's.
        if let Ok(read) = CaseRecord::read(&bytes)
            && at != 1
        {
            prop_assert_eq!(stored(&read, Key::Case(1)), bytes.clone());
        }
        let cut = cut.index(bytes.len());
        prop_assert!(CaseRecord::read(&bytes[..cut]).is_err(), "a record cut at {cut} is refused");
    }

    #[test]
    fn changes_lead_to_what_is_read_back(steps in prop::collection::vec((0u32..4, 0u32..3, member(), any::<bool>()), 0..20)) {
        let (mut image, mut records) = (Image::default(), Records::new());
        for (id, incarnation, member, delete) in steps {
            let key = Key::Member(ProcessId(id), Incarnation(incarnation));
            let recall = Key::Recall(ProcessId(id), Incarnation(incarnation), ProcessId(9), Incarnation(9), id);
            let changes = if delete {
                vec![key.delete(), recall.delete()]
            } else {
                vec![member.put_at(key), RecallRecord { time: member.time, last: 3 }.put_at(recall)]
            };
            image.apply(&changes);
            crate::store::apply(&mut records, &changes);
        }
        prop_assert_eq!(Image::load(&records), Ok(image));
    }
}

#[test]
fn one_record_makes_processes_fail() {
    let mut image = Image::default();
    let key = Key::Member(ProcessId(1), Incarnation(2));
    let member = MemberRecord {
        state: MemberState::Member,
        qpn: Qpn::new(1),
        boot: [0; 16],
        address: [0; 16],
        joined: 5,
        since: 1,
        time: 0,
        case: 0,
        delivered: 0,
        recalls: 0,
    };
    let failed = FailedMember { id: ProcessId(1), incarnation: Incarnation(2), time: 9, delivered: 7 };
    let case = CaseRecord {
        stage: Stage::Decided,
        failed: vec![failed],
        dead: Vec::new(),
        fence: FenceRecord { frozen: Vec::new(), muted: Vec::new(), held: Vec::new() },
        unfenced: Vec::new(),
        at: 0,
    };
    let mut records = Records::new();
    let changes = [member.put_at(key), case.put_at(Key::Case(3))];
    image.apply(&changes);
    crate::store::apply(&mut records, &changes);
    let (_, found) = image.member(ProcessId(1)).expect("it is there");
    assert_eq!((found.state, found.time, found.case, found.delivered), (MemberState::Failed, 9, 3, 7));
    assert_eq!(Image::load(&records), Ok(image.clone()));
    let gone = [MemberRecord { state: MemberState::Gone, ..found.clone() }.put_at(key)];
    image.apply(&gone);
    crate::store::apply(&mut records, &gone);
    assert_eq!(image.member(ProcessId(1)).map(|(_, member)| member.state), Some(MemberState::Gone));
    assert_eq!(Image::load(&records), Ok(image));
}
