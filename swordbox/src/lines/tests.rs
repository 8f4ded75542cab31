use super::*;
use proptest::prelude::*;

const NOW: Nanos = Nanos(1_000);
const SETTLE: Nanos = Nanos(100);
const RKEY: u32 = 7;

/// Returns a table for `capacity` lines of two servers.
fn lines(capacity: usize) -> Lines {
    Lines::with_capacity(capacity, 2)
}

fn make(lines: &mut Lines, server: u8, va: u64) -> Id {
    lines.make(server, va, RKEY, 0, Nanos::ZERO).unwrap()
}

/// Adds lines of server 0 at these addresses whose first word is known.
fn known(lines: &mut Lines, vas: &[u64]) -> Vec<Id> {
    let ids: Vec<_> = vas.iter().map(|va| make(lines, 0, *va)).collect();
    for id in &ids {
        lines.get_mut(*id).set(0, 5);
    }
    ids
}

/// Returns whether the first word of each line is known.
fn are_known(lines: &Lines, ids: &[Id]) -> Vec<bool> {
    ids.iter().map(|id| lines.get(*id).value(0).is_some()).collect()
}

#[test]
fn words_of_a_byte_range_are_those_that_it_overlaps() {
    for offset in 0..64u64 {
        let va = 0xffc0 + offset;
        assert_eq!((offset_of(va), word_of(va)), (offset as usize, offset as usize / 8));
        assert!(!in_one_line(va, 0));
        for len in 1..=64u64 {
            let end = offset + len;
            assert_eq!(in_one_line(va, len as usize), end <= 64, "{len} bytes at {offset}");
            if end <= 64 {
                let touched = (offset..end).fold(0u8, |words, byte| words | 1 << (byte / 8));
                assert_eq!(words_of(va, len as u8), touched, "{len} bytes at {offset}");
            }
        }
    }
}

proptest! {
    /// Known values equal those in memory. A word becomes known when it is set or written as a whole, and
    /// stays known.
    #[test]
    fn a_line_has_the_written_values(
        writes in proptest::collection::vec((0usize..64, 1usize..=64, any::<u8>(), any::<bool>()), 1..12),
        whole_words: bool,
    ) {
        let mut lines = lines(1);
        let id = make(&mut lines, 0, 0x40);
        let line = lines.get_mut(id);
        let (mut memory, mut is_known) = ([0u8; 64], [false; 8]);
        line.set(3, 9);
        memory[24..32].copy_from_slice(&9u64.to_le_bytes());
        is_known[3] = true;
        for (offset, len, first, learn) in writes {
            let unit = if whole_words { 8 } else { 1 };
            let offset = offset / unit * unit;
            let len = len.next_multiple_of(unit).min(64 - offset);
            let bytes: Vec<_> = (0..len).map(|n| first.wrapping_add(n as u8)).collect();
            line.write(offset, &bytes, learn);
            memory[offset..offset + len].copy_from_slice(&bytes);
            for (word, known) in is_known.iter_mut().enumerate() {
                *known |= learn && offset <= word * 8 && word * 8 + 8 <= offset + len;
            }
            for word in 0..8 {
                let value = u64::from_le_bytes(memory[word * 8..word * 8 + 8].try_into().unwrap());
                prop_assert_eq!(line.value(word), is_known[word].then_some(value));
            }
        }
        line.forget(3);
        prop_assert_eq!(line.value(3), None);
        prop_assert_eq!(line.value(2).is_some(), is_known[2]);
        line.forget_all();
        prop_assert!((0..8).all(|word| line.value(word).is_none()));
    }
}

#[test]
fn a_range_is_reached_if_all_of_its_words_are() {
    let mut lines = lines(1);
    let id = make(&mut lines, 0, 0);
    lines.get_mut(id).existing = 0b0110;
    let line = lines.get(id);
    assert!(line.exists(8, 16) && line.exists(23, 1));
    assert!(!line.exists(7, 2) && !line.exists(16, 9) && !line.exists(0, 8));
}

#[test]
fn a_line_learns_values_after_its_quiet_time_and_its_detours() {
    let mut lines = lines(1);
    let id = lines.make(0, 0, RKEY, 0, NOW).unwrap();
    let line = lines.get_mut(id);
    assert!(!line.may_learn(Nanos(NOW.0 - 1)) && line.may_learn(NOW));
    (line.detours_in_flight, line.detoured_until) = (1, Nanos(2_000));
    assert!(!line.may_learn(Nanos(1_999)) && line.may_learn(Nanos(2_000)));
    line.detours_in_flight = 0;
    assert!(line.may_learn(NOW));
}

#[test]
fn a_line_covers_64_bytes_of_one_server() {
    let mut lines = lines(8);
    assert_eq!((lines.len(), lines.find(0, 0x1000)), (0, None));
    let id = make(&mut lines, 0, 0x1008);
    assert_eq!([0x1000, 0x103f].map(|va| lines.find(0, va)), [Some(id); 2]);
    assert_eq!([lines.find(0, 0xfff), lines.find(0, 0x1040), lines.find(1, 0x1000)], [None; 3]);
    let others = [make(&mut lines, 0, 0x1040), make(&mut lines, 1, 0x1000)];
    assert!(!others.contains(&id) && others[0] != others[1] && lines.len() == 3);
}

#[test]
fn a_line_takes_132_bytes_beside_the_indices() {
    assert_eq!(Lines::bytes(1000) - 2 * Index::<LineKey>::bytes(1000), 1000 * (128 + 4));
}

#[test]
fn an_unused_line_is_evicted_when_the_table_is_full() {
    let mut lines = lines(3);
    let ids = known(&mut lines, &[0x1000, 0x1040, 0x2000]);
    lines.get_mut(ids[0]).in_flight = 1;
    lines.get_mut(ids[2]).detours_in_flight = 1;
    make(&mut lines, 0, 0x3000);
    assert_eq!([0x1000, 0x1040, 0x2000].map(|va| lines.find(0, va).is_some()), [true, false, true]);
    // One line of its block is left, and then none.
    assert!(lines.has_any(0, 0x1000, 0x1000));
    lines.get_mut(ids[0]).in_flight = 0;
    let new = lines.find(0, 0x3000).unwrap();
    lines.get_mut(new).in_flight = 1;
    make(&mut lines, 0, 0x4000);
    assert_eq!(lines.find(0, 0x1000), None);
    assert!(!lines.has_any(0, 0x1000, 0x1000) && lines.has_any(0, 0x2000, 0x1000));
    let newest = lines.find(0, 0x4000).unwrap();
    lines.get_mut(newest).detours_in_flight = 1;
    assert_eq!(lines.make(0, 0x5000, RKEY, 0, Nanos::ZERO), Err(Full), "all lines are in use");
    assert_eq!((lines.len(), lines.find(0, 0x5000)), (3, None));
}

#[test]
fn a_detour_invalidates_the_lines_that_it_touches() {
    let vas = [0x1000, 0x1040, 0x1fc0, 0x2000];
    for (va, len, left) in [
        (0x1000, 0, [true; 4]),
        (0xfff, 1, [true; 4]),
        (0xfc0, 0x41, [false, true, true, true]),
        (0x1000, 0x40, [false, true, true, true]),
        (0x103f, 2, [false, false, true, true]),
        (0x1040, 1, [true, false, true, true]),
        (0x1080, 0xf40, [true; 4]),
        (0x1041, 0xfbf, [true, false, false, true]),
        (0x1fff, 2, [true, true, false, false]),
        (0x1000, 64 << 12, [false; 4]),
    ] {
        let mut lines = lines(8);
        let ids = known(&mut lines, &vas);
        let other = make(&mut lines, 1, 0x1000);
        lines.get_mut(other).set(0, 1);
        assert_eq!(lines.detour(0, va, len, NOW, SETTLE), Ok(()));
        assert_eq!(are_known(&lines, &ids), left, "{len} bytes at {va:#x}");
        for (id, left) in ids.iter().zip(left) {
            let quiet_until = if left { Nanos::ZERO } else { Nanos(1_100) };
            assert_eq!((lines.get(*id).quiet_until, lines.get(*id).detours), (quiet_until, u32::from(!left)));
        }
        assert_eq!(are_known(&lines, &[other]), [true], "the line belongs to another server");
    }
}

#[test]
fn a_long_detour_is_applied_to_a_line_on_its_next_check() {
    let mut lines = lines(8);
    let ids = known(&mut lines, &[0x1000, 0x10_0000]);
    assert_eq!(lines.detour(0, 0x1000, 66 << 12, NOW, SETTLE), Ok(()));
    for id in &ids {
        assert!(!lines.is_up_to_date(*id));
        lines.apply_invalidations(*id);
        assert!(lines.is_up_to_date(*id));
    }
    assert_eq!(are_known(&lines, &ids), [false, true]);
    assert_eq!((lines.get(ids[0]).quiet_until, lines.get(ids[0]).detours), (Nanos(1_100), 1));
    assert_eq!(lines.detour_everywhere(0, NOW, SETTLE), Ok(()));
    lines.apply_invalidations(ids[1]);
    assert_eq!(are_known(&lines, &ids), [false, false]);
}

#[test]
fn a_detour_waits_for_resolved_operations_on_its_lines() {
    let mut lines = lines(8);
    let ids = known(&mut lines, &[0x1000, 0x1040]);
    lines.get_mut(ids[1]).shared_qp = 3;
    assert!(!lines.has_resolved(0, 0x1000, 0x80));
    let tag = lines.begin_resolved(ids[1]);
    assert!(
        lines.has_resolved(0, 0x107f, 1)
            && lines.has_resolved(0, 0x103f, 2)
            && lines.has_resolved(0, 0x1000, 0x80)
    );
    assert!(
        !lines.has_resolved(0, 0x1000, 0x40)
            && !lines.has_resolved(0, 0x1080, 0x40)
            && !lines.has_resolved(0, 0x1040, 0)
    );
    assert!(!lines.has_resolved(1, 0x1040, 8), "the line belongs to another server");
    assert!(lines.has_resolved(0, 0x8000, 0x1001), "the range is too long to check each line");
    assert!(!lines.has_resolved(0, 0x8000, 0x1000));
    assert_eq!(lines.detour(0, 0x1000, 0x40, NOW, SETTLE), Ok(()));
    assert_eq!(lines.detour(0, 0x1000, 0x41, NOW, SETTLE), Err(3));
    assert_eq!(lines.detour_everywhere(0, NOW, SETTLE), Err(NONE));
    lines.end_resolved(ids[1], tag);
    assert!(!lines.has_resolved(0, 0x1040, 8));
    assert_eq!(lines.detour(0, 0x1000, 0x41, NOW, SETTLE), Ok(()));
}

#[test]
fn ranges_are_searched_for_lines_by_block() {
    let mut lines = lines(8);
    assert!(!lines.has_any(0, 0, u64::MAX));
    make(&mut lines, 0, 0x5000);
    assert!(lines.has_any(0, 0x5000, 1) && lines.has_any(0, 0x4fff, 2) && lines.has_any(0, 0, 0x5001));
    assert!(
        !lines.has_any(0, 0x5000, 0)
            && !lines.has_any(0, 0x4000, 0x1000)
            && !lines.has_any(0, 0x6000, 0x1000)
    );
    assert!(!lines.has_any(1, 0x5000, 1), "the line belongs to another server");
    assert!(lines.has_any(0, 0, u64::MAX));
    // Up to 65 blocks are searched one by one. For longer ranges the hull of all lines decides.
    assert!(lines.has_any(0, 0x5000, 66 << 12) && lines.has_any(0, 0, 66 << 12));
    assert!(!lines.has_any(0, 0x6000, 65 << 12) && !lines.has_any(0, 0x10_0000, 66 << 12));
}

/// The range is between two lines.
#[test]
fn a_range_too_long_to_search_is_compared_with_the_hull_of_all_lines() {
    let mut lines = lines(8);
    make(&mut lines, 0, 0x1000_0000);
    make(&mut lines, 0, 0x2000_0000);
    assert!(!lines.has_any(0, 0x1800_0000, 8) && !lines.has_any(0, 0x1800_0000, 65 << 12));
    assert!(lines.has_any(0, 0x1800_0000, 66 << 12) && lines.has_any(0, 0x1800_0000, 67 << 12));
    assert!(!lines.has_any(0, 0, 66 << 12), "the range ends before the first line");
}

/// Operations on another line are being resolved.
#[test]
fn a_detour_waits_for_resolved_operations_on_other_lines_only_if_it_is_too_long_to_search() {
    let mut lines = lines(8);
    let ids = known(&mut lines, &[0x1000_0000, 0x2000_0000]);
    lines.begin_resolved(ids[1]);
    assert_eq!(lines.detour(0, 0x1000_0000, 65 << 12, NOW, SETTLE), Ok(()));
    assert_eq!(lines.detour(0, 0x1000_0000, 66 << 12, NOW, SETTLE), Err(NONE));
}

#[test]
fn a_prefetch_covers_the_line_and_its_lookup() {
    for number in 0..32u64 {
        let mut lines = lines(64);
        let va = (number << LINE_SHIFT) + 8;
        let id = make(&mut lines, 0, va);
        lines.get_mut(id).shared_qp = 9;
        let fetched = core::cell::RefCell::new(vec![]);
        assert_eq!(lines.prefetch(0, va, |at| fetched.borrow_mut().push(at)), 9);
        let line: *const Line = lines.get(id);
        assert_eq!(fetched.borrow()[1..], [line.cast::<u8>(), line.cast::<u8>().wrapping_add(64)]);
        assert_eq!(lines.home_of(0, va), lines.home_of(0, number << LINE_SHIFT));
    }
    let lines = lines(64);
    let homes: std::collections::HashSet<_> =
        (0..32u64).map(|number| lines.home_of(0, number << LINE_SHIFT)).collect();
    assert!(homes.len() > 1, "the lookups have different home slots");
}

#[test]
fn line_hashes_depend_on_number_and_server() {
    let hash = |server, number| LineKey { server, number }.hash();
    let salted = |server, number| LineKey { server, number }.salted(Salt::FIXED);
    let keys = || (0..4u8).flat_map(|server| (0..64).map(move |number| (server, number)));
    let count = |hash: &dyn Fn(u8, u64) -> u64| {
        keys().map(|(server, number)| hash(server, number)).collect::<std::collections::HashSet<_>>().len()
    };
    assert_eq!((count(&hash), count(&salted)), (256, 256));
}
