use super::*;
use crate::header::Timestamp;
use crate::process::ProcessId;
use proptest::prelude::*;

fn envelope(message: Message) -> Envelope {
    Envelope { term: 0x0102_0304_0506_0708, incarnation: Incarnation(9), message }
}

fn settings() -> impl Strategy<Value = Vec<LinkSetting>> {
    let source = any::<([u8; 16], u32)>()
        .prop_map(|(address, qpn)| Source { address, qpn: rocev2::Qpn::new(qpn & 0xff_ffff) });
    let sources = prop::collection::vec(source, 0..3);
    let setting = (any::<(u16, [bool; 4])>(), sources).prop_map(|((link, flags), sources)| {
        let [counted, frozen, muted, introduced] = flags;
        LinkSetting { link, counted, frozen, muted, introduced, sources }
    });
    prop::collection::vec(setting, 0..5)
}

#[test]
fn notice_has_these_bytes() {
    let failed =
        Failed { id: ProcessId(3), incarnation: Incarnation(5), time: Timestamp::new(0x0a0b_0c0d_0e0f) };
    let bytes = envelope(Message::Notice { case: 7, failed: vec![failed] }).encode().expect("short");
    let expected = [
        [2, 16, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8, 0, 0, 0, 9].as_slice(),
        &[0, 0, 0, 0, 0, 0, 0, 7, 0, 1],
        &[0, 0, 0, 3, 0, 0, 0, 5, 0x0a, 0x0b, 0x0c, 0x0d, 0x0e, 0x0f],
    ];
    assert_eq!(bytes, expected.concat());
}

#[test]
fn each_kind_is_refused_if_cut_and_if_longer() {
    for &(kind, name) in Message::KINDS {
        // Zeros are a valid message of every kind but those with a `Reason`, whose values start from 1.
        let mut bytes = [0; 200];
        (bytes[0], bytes[1]) = (VERSION, kind);
        bytes[16] = u8::from(name == "Wait" || name == "Refused");
        let lengths: Vec<_> = (0..200).filter(|&n| Envelope::decode(&bytes[..n]).is_ok()).collect();
        assert_eq!(lengths.len(), 1, "{name} has one length: {lengths:?}");
        let message = Envelope::decode(&bytes[..lengths[0]]).expect("just decoded");
        assert_eq!(message.encode().expect("short"), bytes[..lengths[0]], "{name}");
        let cut = Envelope::decode(&bytes[..lengths[0] - 1]);
        assert!(matches!(cut, Err(Refusal::Fields { error: WireError::Truncated, .. })), "{name}: {cut:?}");
        let longer = Envelope::decode(&bytes[..=lengths[0]]);
        assert!(
            matches!(longer, Err(Refusal::Fields { error: WireError::TooLong(1), .. })),
            "{name}: {longer:?}"
        );
    }
}

#[test]
fn refusals_name_what_is_wrong() {
    let good = envelope(Message::Ping { number: 1 }).encode().expect("short");
    let with = |at: usize, value| {
        let mut bytes = good.clone();
        bytes[at] = value;
        Envelope::decode(&bytes).expect_err("bad").to_string()
    };
    assert_eq!(with(0, 1), "version 1 of the control protocol; this program has version 2");
    assert_eq!(with(1, 200), "unknown kind of message 200");
    assert_eq!(with(3, 1), "reserved bits are not 0");
    let reason = [&[2, 3, 0, 0][..], &[0; 12], &[99]].concat();
    let error = Envelope::decode(&reason).expect_err("bad").to_string();
    assert_eq!(error, "message of kind 3: 99 is not a value of the field Reason");
    assert_eq!(Envelope::decode(&vec![1; MAX_LEN + 1]), Err(Refusal::Long(MAX_LEN + 1)));
    let long =
        Message::Forward { to: ProcessId(1), incarnation: Incarnation(1), frames: vec![vec![0; 40_000]; 2] };
    assert!(matches!(envelope(long).encode(), Err(Refusal::Long(_))));
}

#[test]
fn a_time_of_zero_is_not_none() {
    let zero = Some(Timestamp::default());
    let read = Option::<Timestamp>::parse(&zero.to_bytes()).expect("six bytes");
    assert_eq!(read, Some(Timestamp::new(u64::MAX)), "the nanosecond before");
    assert_eq!(Option::<Timestamp>::parse(&[0; 6]), Ok(None));
}

proptest! {
    #[test]
    fn configure_survives(term: u64, version: u64, links in settings()) {
        let floors = [None, Some(Timestamp::new(version | 1))];
        let message = Message::Configure { version, floors, links };
        let envelope = Envelope { term, incarnation: Incarnation(1), message };
        prop_assert_eq!(Envelope::decode(&envelope.encode().expect("short")), Ok(envelope));
    }

    #[test]
    fn any_bytes_are_refused_or_encode_to_themselves(kind in 0u8..40, mut bytes in prop::collection::vec(any::<u8>(), 0..120), small: bool) {
        if small {
            for byte in &mut bytes {
                *byte %= 3;
            }
        }
        let bytes = [&[VERSION, kind, 0, 0][..], &bytes].concat();
        if let Ok(envelope) = Envelope::decode(&bytes) {
            prop_assert_eq!(envelope.encode().expect("not longer"), bytes);
        }
    }
}
