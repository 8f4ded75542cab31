use super::*;
use crate::{Class, Packet, classify};
use proptest::prelude::*;

/// Frames whose ICRC was computed by hardware or an independent program.
fn reference_frames() -> Vec<(&'static str, Vec<u8>)> {
    let bytes = |hex: &str| -> Vec<u8> {
        let digits: Vec<u8> = hex.bytes().filter(u8::is_ascii_hexdigit).collect();
        digits.chunks(2).map(|d| u8::from_str_radix(core::str::from_utf8(d).unwrap(), 16).unwrap()).collect()
    };
    // The vectors do not include the IPv4 header checksum, which the ICRC does not cover; it is filled in
    // below.
    let mut frames = vec![
        (
            "ACK of a ConnectX NIC",
            bytes(
                "000000000000 000000000000 0800
                 4502 0030 2a2b 4000 4011 0000 c0a8010c c0a8010d cf15 12b7 001c 0000
                 1140 ffff 00006ca9 00000c71 0d000001 dc978442",
            ),
        ),
        (
            "CNP of a ConnectX-4 Lx NIC",
            bytes(
                "000000000000 000000000000 0800
                 45c2 003c 718c 4000 4011 0000 0a001101 0a001201 0000 12b7 0028 0000
                 8100 ffff 40000118 00000000 00000000000000000000000000000000 82fd002a",
            ),
        ),
        (
            "UC SEND of two bytes' padding, with a UDP checksum and an ECN mark",
            bytes(
                "248a07a8fa22 248a07a8fa22 0800
                 4501 0040 0478 4000 4011 0000 c0a80007 c0a80007 c000 12b7 002c aca2
                 2460 ffff 000000d3 00cf1710 4630818be28935d90e9a95505401be885e500000 78f353f3",
            ),
        ),
    ];
    for (_, frame) in &mut frames {
        let checksum = crate::checksum::Sum::default().add(&frame[14..34]).checksum();
        frame[24..26].copy_from_slice(&checksum.to_be_bytes());
    }
    frames
}

fn layout(frame: &[u8]) -> Layout {
    match classify(frame) {
        Class::Roce(layout) => layout,
        other => panic!("{other:?}"),
    }
}

#[test]
fn icrc_agrees_with_hardware() {
    for (name, frame) in reference_frames() {
        assert!(Packet::parse(&frame).expect(name).verify_icrc(), "{name}");
    }
}

/// Computes the ICRC byte by byte from the text of the specification; shares no code with the module.
fn reference_icrc(frame: &[u8], layout: Layout) -> u32 {
    let mut bytes = frame[layout.l3()..layout.icrc()].to_vec();
    let udp = layout.udp() - layout.l3();
    if layout.is_ipv6() {
        bytes[0] |= 0x0f;
        for at in [1, 2, 3, 7] {
            bytes[at] = 0xff;
        }
    } else {
        for at in [1, 8, 10, 11] {
            bytes[at] = 0xff;
        }
    }
    for at in [udp + 6, udp + 7, udp + 12] {
        bytes[at] = 0xff;
    }
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&[0xff; 8]);
    hasher.update(&bytes);
    hasher.finalize()
}

#[test]
fn masked_fields_do_not_change_the_icrc() {
    for (name, mut frame) in reference_frames() {
        let layout = layout(&frame);
        let expected = compute(&frame, &layout);
        // TOS with ECN, TTL, header checksum, UDP checksum, and FECN, BECN and the reserved bits
        for at in [15, 22, 24, 25, 40, 41, 42 + crate::Bth::MASKED_BYTE] {
            for value in [0x00, 0x40, 0x80, 0x3f, 0xff] {
                frame[at] = value;
                assert_eq!(compute(&frame, &layout), expected, "{name}, byte {at} = {value:#x}");
            }
        }
        for at in [14 + 4, 14 + 6, 26, 33, 34, 38, 42 + 1, 42 + 5, 42 + 8, layout.icrc() - 1] {
            frame[at] ^= 0x20;
            assert_ne!(compute(&frame, &layout), expected, "{name}, byte {at} is covered");
            frame[at] ^= 0x20;
        }
    }
}

/// Returns a WRITE Only with this payload that is valid but for its ICRC.
fn write_frame(v6: bool, options: usize, payload: &[u8]) -> Vec<u8> {
    tagged_write_frame(0, v6, options, payload)
}

/// Returns such a WRITE Only with this number of VLAN tags.
fn tagged_write_frame(tags: usize, v6: bool, options: usize, payload: &[u8]) -> Vec<u8> {
    let udp_len = 8 + 12 + 16 + payload.len() + 4;
    let mut frame = vec![0x02; 12];
    frame.extend([0x81, 0x00, 0x60, 0x2a].repeat(tags));
    let l3 = frame.len() + 2;
    if v6 {
        frame.extend([0x86, 0xdd, 0x6a, 0x51, 0x23, 0x45]);
        frame.extend(((udp_len + options) as u16).to_be_bytes());
        frame.extend([if options == 0 { 17 } else { 60 }, 63]);
        frame.extend([0x20; 32]);
        if options != 0 {
            frame.extend([17, (options / 8 - 1) as u8]);
            frame.extend(vec![0x5a; options - 2]);
        }
    } else {
        frame.extend([0x08, 0x00, 0x45 + (options / 4) as u8, 0x02]);
        frame.extend(((20 + options + udp_len) as u16).to_be_bytes());
        frame.extend([0x12, 0x34, 0x40, 0x00, 63, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
        frame.extend(vec![1; options]);
        let checksum = crate::checksum::Sum::default().add(&frame[l3..l3 + 20 + options]).checksum();
        frame[l3 + 10..l3 + 12].copy_from_slice(&checksum.to_be_bytes());
    }
    frame.extend([0xc1, 0x23, 0x12, 0xb7]);
    frame.extend((udp_len as u16).to_be_bytes());
    frame.extend([0, 0, 0x0a, 0x40, 0xff, 0xff, 0xc5, 0, 0, 0x11, 0x80, 0xaa, 0xbb, 0xcc]);
    frame.extend([7; 16]);
    frame.extend(payload);
    frame.extend([0; 4]);
    frame
}

proptest! {
    #[test]
    fn icrc_agrees_with_the_specification(
        tags in 0usize..3,
        v6: bool,
        options in 0usize..3,
        words in proptest::collection::vec(any::<u32>(), 0..1025),
    ) {
        let payload: Vec<u8> = words.iter().flat_map(|w| w.to_le_bytes()).collect();
        let frame = tagged_write_frame(tags, v6, options * 8, &payload);
        let layout = layout(&frame);
        prop_assert_eq!(compute(&frame, &layout), reference_icrc(&frame, layout));
    }

    #[test]
    fn icrc_of_any_bytes_is_the_crc_of_the_masked_bytes(packet in proptest::collection::vec(any::<u8>(), 0..10_000), v6: bool) {
        let (masks, udp) = if v6 { (&IPV6_MASKS, Ipv6::LEN) } else { (&IPV4_MASKS, Ipv4::LEN) };
        let masked: Vec<u8> =
            packet.iter().zip(masks.iter().chain(core::iter::repeat(&0))).map(|(byte, mask)| byte | mask).collect();
        prop_assert_eq!(!table::update(!0, &masked), crc32fast::hash(&masked));
        prop_assert_eq!(!table::update_masked(!0, &packet, masks), crc32fast::hash(&masked));
        let mut expected = crc32fast::Hasher::new();
        expected.update(&[0xff; 8]);
        expected.update(&masked);
        let expected = expected.finalize();
        prop_assert_eq!(compute_for(&packet, v6, udp), expected);
        prop_assert_eq!(compute_in_pieces(&packet, masks), expected);
        prop_assert_eq!(!table::update_masked(AFTER_LINK_HEADER, &packet, masks), expected);
    }

    #[test]
    fn carry_less_and_table_products_agree(a: u32, b: u32, c: u32, d: u32) {
        let expected = table::multiply(a, b) ^ table::multiply(c, d);
        prop_assert_eq!(table::multiply(a, 1 << 31), a, "product with x^0");
        #[cfg(target_arch = "x86_64")]
        {
            let sum = clmul::multiply([(a, b)]).unwrap() ^ clmul::multiply([(c, d)]).unwrap();
            prop_assert_eq!(clmul::multiply([(a, b), (c, d)]), Some(sum));
            prop_assert_eq!(clmul::reduce_product(sum).unwrap(), expected);
            // Reducing a reduced value does not change it.
            prop_assert_eq!(clmul::reduce_product(u64::from(expected) << 32).unwrap(), expected);
        }
    }

    #[test]
    fn end_equals_the_sum_of_its_words(word: u32, follow in 28usize..POWERS - 4, bytes: [u8; 24]) {
        prop_assert_eq!(end(word, follow, &bytes), end_by_words(word, follow, &bytes));
    }

    #[test]
    fn icrc_of_parts_equals_that_of_the_packet(head: [u32; HEAD], behind: [u8; 40]) {
        fn both<const N: usize>(head: [u32; HEAD], behind: &[u8; 40]) -> (u32, u32) {
            let behind = behind.first_chunk::<N>().unwrap();
            let packet: Vec<u8> = head.iter().flat_map(|w| w.to_le_bytes()).chain(*behind).collect();
            (of_parts(head, behind), compute_for(&packet, false, Ipv4::LEN))
        }
        let made = [both::<0>, both::<4>, both::<8>, both::<12>, both::<16>, both::<24>, both::<28>, both::<40>];
        for (found, expected) in made.map(|made| made(head, &behind)) {
            prop_assert_eq!(found, expected);
        }
    }

    #[test]
    fn change_of_head_equals_the_difference_of_icrcs(
        old: [u32; HEAD],
        new: [u32; HEAD],
        behind in proptest::collection::vec(any::<u32>(), 1..1100),
    ) {
        let icrc = |head: [u32; HEAD]| {
            let packet: Vec<u8> = head.iter().chain(&behind).flat_map(|word| word.to_le_bytes()).collect();
            compute_for(&packet, false, Ipv4::LEN)
        };
        let xor = core::array::from_fn(|n| old[n] ^ new[n]);
        prop_assert_eq!(icrc(old) ^ icrc(new), change_of_head(xor, 4 * behind.len()));
    }

    #[test]
    fn changed_words_correct_the_icrc(
        v6: bool,
        words in proptest::collection::vec(any::<u32>(), 0..1100),
        changes in proptest::collection::vec((any::<u32>(), any::<prop::sample::Index>()), 0..20),
    ) {
        let payload: Vec<u8> = words.iter().flat_map(|w| w.to_le_bytes()).take(4096).collect();
        let mut frame = write_frame(v6, 0, &payload);
        let layout = layout(&frame);
        let before = compute(&frame, &layout);
        let (mut summed, mut weighted) = (Changes::new(), Changes::new());
        let first = layout.bth() + 8; // the ICRC covers the PSN and everything behind it
        for (xor, index) in changes {
            let at = first + index.index(layout.icrc() - first - 3);
            let new = u32::from_le_bytes(frame[at..at + 4].try_into().unwrap()) ^ xor;
            frame[at..at + 4].copy_from_slice(&new.to_le_bytes());
            summed.add_word(xor, layout.icrc() - at - 4);
            weighted.add_weighted(xor, Weight::of(layout.icrc() - at - 4));
        }
        prop_assert_eq!(before ^ summed.effect(), reference_icrc(&frame, layout));
        prop_assert_eq!(weighted.effect(), summed.effect());
    }
}

#[test]
fn powers_beyond_the_table_are_right() {
    let mut slow = 1 << 31;
    for n in 0..3 * POWERS {
        assert_eq!(power(n), slow, "{n}");
        slow = table::append_zero_byte(slow);
    }
}
