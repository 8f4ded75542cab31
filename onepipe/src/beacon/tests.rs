use super::*;
use crate::header::{OnePipeOpcode, Timestamp};
use proptest::prelude::*;
use rocev2::ethernet::{MacAddr, ethertype};
use rocev2::repr::{Ip, Repr};
use rocev2::{Class, Qpn, classify};

fn layout(frame: &[u8]) -> Layout {
    match classify(frame) {
        Class::Roce(layout) => layout,
        other => panic!("{other:?}"),
    }
}

/// Builds a beacon of one link from the given values of all fields that change.
fn beacon(
    v6: bool,
    write: bool,
    id: u16,
    psns: [u32; 2],
    header: OnePipe,
    change: impl Fn(&mut Repr<'_>),
) -> Vec<u8> {
    let kind = if v6 { ethertype::IPV6 } else { ethertype::IPV4 };
    let ethernet = Ethernet { dst: MacAddr([2; 6]), src: MacAddr([4; 6]), ethertype: kind.into() };
    let ip = if v6 {
        Ip::V6(Ipv6 { src: [0x31; 16], dst: [0x32; 16], ..Ipv6::default() }, &[])
    } else {
        Ip::V4(Ipv4 { id: id.into(), src: [10, 0, 0, 1], dst: [10, 0, 0, 2], ..Ipv4::default() }, &[])
    };
    let opcode = if write { Opcode::UC_WRITE_ONLY } else { Opcode::UD_SEND_ONLY };
    let mut bth = Bth::new(opcode, Qpn::new(0x77), Psn::new(psns[0]));
    bth.set_ack_req(psns[0] & 1 << 24 != 0);
    let mut repr = Repr::new(ethernet, ip, bth);
    let mut wire = [0; OnePipe::LEN];
    wire.copy_from_slice(header.as_bytes());
    wire[OnePipe::PSN_WORD + 1..][..3].copy_from_slice(&Psn::new(psns[1]).to_wire());
    repr.payload = &wire;
    repr.extended.deth = Deth::new(OnePipe::QKEY, Qpn::new(0x11));
    repr.extended.reth = Reth { va: 0x7000.into(), rkey: 5.into(), len: 24.into() };
    change(&mut repr);
    let mut frame = vec![0; repr.frame_len() + 8];
    let len = repr.build(&mut frame).unwrap();
    frame.truncate(len);
    frame
}

fn header(times: [u64; 3]) -> OnePipe {
    let [timestamp, barrier, commit] = times.map(Timestamp::new);
    let mut header = OnePipe::new(OnePipeOpcode::BEACON, timestamp, Psn::ZERO);
    header.set_barrier((barrier.nanos() % 5 > 0).then_some(barrier));
    header.set_commit((commit.nanos() % 3 > 0).then_some(commit));
    header
}

proptest! {
    #[test]
    fn beacons_like_a_checked_one_are_recognised(
        v6: bool,
        write: bool,
        ids: [u16; 2],
        psns in [[0u32..1 << 24, 0u32..1 << 24], [0u32..1 << 24, 0u32..1 << 24]],
        times: [[u64; 3]; 2],
        ack: bool,
    ) {
        let [first, second] = [0, 1].map(|n| {
            let psns = [psns[n][0] | u32::from(ack) << 24, psns[n][1]];
            beacon(v6, write, ids[n], psns, header(times[n]), |_| ())
        });
        let known = ExpectedBeacon::new(&first, layout(&first)).expect("a beacon");
        for frame in [&first, &second] {
            let packet = Packet::new(frame, layout(frame));
            prop_assert!(packet.verify_icrc());
            prop_assert_eq!(known.read(frame), OnePipe::of(&packet));
            prop_assert_eq!(layout(frame), layout(&first));
        }
    }

    /// Whichever bytes of a beacon are damaged: a frame that `ExpectedBeacon::read` accepts would have been accepted
    /// by the full check, too, with the same result.
    #[test]
    fn a_frame_that_differs_elsewhere_is_rejected(
        v6: bool,
        write: bool,
        times: [[u64; 3]; 2],
        damage in prop::collection::vec((0usize..130, 1u8..), 1..4),
        right: bool,
        cut in 0usize..200,
    ) {
        let first = beacon(v6, write, 1, [2, 3], header(times[0]), |_| ());
        let known = ExpectedBeacon::new(&first, layout(&first)).expect("a beacon");
        let mut frame = beacon(v6, write, 1, [2, 3], header(times[1]), |_| ());
        for (at, by) in damage {
            let at = at % frame.len();
            frame[at] ^= by;
        }
        if let (true, Class::Roce(layout)) = (right, classify(&frame)) {
            // A sender that corrects the ICRC
            let icrc = icrc::compute(&frame, &layout);
            frame[layout.icrc()..layout.end()].copy_from_slice(&icrc.to_le_bytes());
        }
        if cut < 12 {
            frame.truncate(frame.len().saturating_sub(cut));
        }
        if let Some(header) = known.read(&frame) {
            prop_assert_eq!(layout(&frame), layout(&first));
            let packet = Packet::new(&frame, layout(&first));
            prop_assert!(packet.verify_icrc());
            prop_assert_eq!(OnePipe::of(&packet), Some(header));
            let (before, after) = (Packet::new(&first, layout(&first)), packet);
            prop_assert_eq!(after.ethernet(), before.ethernet());
            prop_assert_eq!((after.src(), after.dst(), after.udp()), (before.src(), before.dst(), before.udp()));
            prop_assert_eq!((after.bth().dest_qp(), after.deth(), after.reth()), (before.bth().dest_qp(), before.deth(), before.reth()));
            prop_assert_eq!((header.opcode(), header.version), (OnePipeOpcode::BEACON, OnePipe::VERSION));
        }
    }

    #[test]
    fn filled_template_equals_a_built_beacon(
        v6: bool,
        write: bool,
        psns in [0u32..1 << 24, 0u32..1 << 24, 0u32..1 << 24],
        times: [[u64; 3]; 2],
        nothing_follows: bool,
        ack: bool,
    ) {
        let [a, b, new] = psns;
        let mut frame = beacon(v6, write, 9, [a | u32::from(ack) << 24, b], header(times[0]), |_| ());
        let template = Template::new(&frame, layout(&frame)).expect("a beacon");
        let mut header = header(times[1]);
        header.set_nothing_follows(nothing_follows);
        let contents = BeaconHeader::new(&header);
        for psn in [new, new + 1] {
            template.fill(&mut frame, Psn::new(psn), &contents);
            let psns = [psn & 0xff_ffff | u32::from(ack) << 24, psn];
            prop_assert_eq!(&frame, &beacon(v6, write, 9, psns, header, |_| ()));
        }
    }
}

#[test]
fn frames_with_tags_options_or_other_payloads_have_no_template() {
    let frame = |change: fn(&mut Repr<'_>)| beacon(false, false, 1, [2, 3], header([1, 2, 4]), change);
    let plain = frame(|_| ());
    assert!(Template::new(&plain, layout(&plain)).is_some());
    let rejected: [fn(&mut Repr<'_>); 6] = [
        |repr| repr.payload = &[7; 28],
        |repr| repr.payload = &[7; 20],
        |repr| (repr.payload, repr.padding) = (&[7; 22], &[0; 2]),
        |repr| repr.trailer = &[0; 3],
        |repr| repr.tag_count = 1,
        |repr| repr.bth.set_opcode(Opcode::UC_SEND_ONLY),
    ];
    for (n, change) in rejected.into_iter().enumerate() {
        let mut frame = frame(change);
        if n == 4 {
            frame[12..14].copy_from_slice(&[0x81, 0]);
            frame[16..18].copy_from_slice(&[8, 0]);
        }
        assert!(Template::new(&frame, layout(&frame)).is_none(), "{n}");
    }
    let mut with_checksum = plain;
    with_checksum[40] = 1;
    assert!(Template::new(&with_checksum, layout(&with_checksum)).is_none(), "a UDP checksum");
}
