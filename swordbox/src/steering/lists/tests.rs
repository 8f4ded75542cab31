use super::*;

const VA: u64 = 0x7000_0000_0000;
const LEN: u64 = 128;

fn va(node: u64) -> u64 {
    VA + node * LEN
}

fn lists(change: impl FnOnce(&mut ListsConfig)) -> Lists {
    let mut config =
        ListsConfig { cached_nodes: 64, ..ListsConfig::new(8, LEN as usize, VA..VA + 1000 * LEN) };
    change(&mut config);
    Lists::new(config)
}

fn write(lists: &mut Lists, node: u64, key: u64) {
    let mut bytes = vec![0; LEN as usize];
    bytes[KEY..KEY + 8].copy_from_slice(&key.to_le_bytes());
    lists.on_write(va(node), &bytes);
}

fn cas_of(to: u64, node: u64) -> Cas {
    Cas { va: va(to), rkey: 7, compare: 0, swap: va(node) }
}

/// Appends a node to another, as a client's CAS. Returns the append with its actual predecessor.
fn cas(lists: &mut Lists, to: u64, node: u64) -> Append {
    lists.on_cas(&cas_of(to, node), true, false, true).unwrap()
}

/// Appends a node successfully. Returns the number of its actual predecessor.
fn append(lists: &mut Lists, to: u64, node: u64) -> u64 {
    let append = cas(lists, to, node);
    lists.on_linked(&append, false);
    (append.to - VA) / LEN
}

/// Returns the node that a READ is forwarded to, if that differs or is known to be current.
fn read(lists: &mut Lists, node: u64) -> Option<u64> {
    let to = lists.on_read(va(node), 7, LEN as u32).map(|to| (to - VA) / LEN);
    to.filter(|to| {
        *to != node
            || lists.tails.iter().any(|tail| tail.value.node == va(node) && tail.value.ready)
                && lists.tracked() > 0
    })
}

#[test]
fn stale_cas_and_reads_are_redirected_to_the_last_node() {
    let mut lists = lists(|_| {});
    for node in 10..20 {
        write(&mut lists, node, 3);
    }
    assert_eq!(read(&mut lists, 3), None, "the last node is unknown");
    assert_eq!(append(&mut lists, 3, 10), 3);
    assert_eq!(read(&mut lists, 3), Some(10));
    assert_eq!(append(&mut lists, 3, 11), 10);
    // The next node is appended behind it before its response arrives.
    let next = cas(&mut lists, 3, 12);
    assert_eq!((next.va, next.to, next.node, next.key), (va(11) + NEXT as u64, va(11), va(12), 3));
    assert!(next.steered);
    assert_eq!(append(&mut lists, 10, 13), 12);
    for node in [3, 10, 11, 12, 13] {
        assert_eq!(read(&mut lists, node), Some(13));
    }
    assert_eq!(lists.tracked(), 1);
    assert_eq!(read(&mut lists, 4), None, "node 4 belongs to another key");
}

#[test]
fn uncertain_requests_are_not_steered() {
    let mut lists = lists(|_| {});
    for node in 10..20 {
        write(&mut lists, node, 3);
    }
    write(&mut lists, 20, 4);
    append(&mut lists, 3, 10);
    // Another incarnation of the memory
    let other = Cas { rkey: 8, ..cas_of(3, 11) };
    assert!(!lists.on_cas(&other, true, false, true).unwrap().steered);
    assert_eq!(lists.on_read(va(3), 8, LEN as u32), Some(va(3)));
    // CAS that append no node
    for (to, swap, compare) in [(va(3) + 8, va(11), 0), (va(3), va(11), 1), (va(3), va(11) + 8, 0)] {
        let cas = Cas { va: to, rkey: 7, compare, swap };
        assert_eq!(lists.on_cas(&cas, true, false, true), None, "{cas:x?}");
    }
    assert_eq!(lists.on_cas(&cas_of(3, 20), true, false, true), None, "the node belongs to another key");
    assert_eq!(lists.on_cas(&cas_of(31, 30), true, false, true), None, "the nodes were never written");
    assert_eq!(lists.on_cas(&cas_of(11, 11), true, false, true), None, "a node cannot be appended to itself");
    // A READ of the word alone does not include the key; a READ of two nodes is not a READ of a node.
    assert_eq!(lists.on_read(va(3), 7, 8), None);
    assert_eq!(lists.on_read(va(3), 7, 2 * LEN as u32), None);
    assert_eq!(lists.on_read(va(3) + 8, 7, 64), None);
    assert_eq!(lists.on_read(va(1000), 7, 64), None);
    // A node that may not be written yet becomes the last one only when it is linked.
    let ahead = lists.on_cas(&cas_of(3, 11), false, false, true).unwrap();
    assert_eq!(ahead.to, va(10));
    assert_eq!((read(&mut lists, 3), cas(&mut lists, 10, 12).steered), (None, false));
    lists.on_linked(&ahead, false);
    assert_eq!(read(&mut lists, 3), Some(11));
    lists.invalidate(3);
    assert_eq!((read(&mut lists, 3), lists.tracked()), (None, 0));
    append(&mut lists, 11, 13);
    assert_eq!(read(&mut lists, 3), Some(13));
    lists.forget();
    assert_eq!((read(&mut lists, 3), lists.tracked()), (None, 0));
}

#[test]
fn without_write_steering_the_last_node_follows_successful_cas() {
    let mut lists = lists(|_| {});
    for node in 10..20 {
        write(&mut lists, node, 3);
    }
    append(&mut lists, 3, 10);
    let next = lists.on_cas(&cas_of(10, 11), true, false, false).unwrap();
    assert!(!next.steered && read(&mut lists, 3) == Some(10));
    lists.on_linked(&next, false);
    assert_eq!(read(&mut lists, 3), Some(11));
}

#[test]
fn a_read_that_shows_a_successor_updates_the_last_node() {
    let mut lists = lists(|_| {});
    write(&mut lists, 10, 3);
    append(&mut lists, 3, 10);
    let mut found = vec![0; LEN as usize];
    found[KEY..KEY + 8].copy_from_slice(&3u64.to_le_bytes());
    lists.on_read_response(va(10), &found);
    assert_eq!(read(&mut lists, 3), Some(10));
    found[NEXT..NEXT + 8].copy_from_slice(&va(50).to_le_bytes());
    lists.on_read_response(va(3), &found);
    assert_eq!(read(&mut lists, 3), Some(10), "an older node always has a successor");
    lists.on_read_response(va(10), &found);
    assert_eq!((read(&mut lists, 3), read(&mut lists, 50)), (Some(50), Some(50)));
    found[NEXT..NEXT + 8].copy_from_slice(&1u64.to_le_bytes());
    lists.on_read_response(va(50), &found);
    assert_eq!(read(&mut lists, 3), None, "the address is not that of a node");
}

#[test]
fn a_rewritten_node_is_not_the_last_one() {
    let mut lists = lists(|_| {});
    write(&mut lists, 10, 3);
    append(&mut lists, 3, 10);
    write(&mut lists, 10, 5);
    assert_eq!((read(&mut lists, 3), read(&mut lists, 10)), (None, None));
}

#[test]
fn only_first_nodes_are_known_after_forget_all() {
    let mut lists = lists(|config| config.tracked_keys = 1);
    for node in 10..12 {
        write(&mut lists, node, 3);
    }
    append(&mut lists, 3, 10);
    assert_eq!((read(&mut lists, 3), lists.tracked()), (Some(10), 1));
    lists.forget_all();
    assert_eq!((read(&mut lists, 3), read(&mut lists, 10), lists.tracked()), (None, None, 0));
    assert_eq!(lists.on_cas(&cas_of(10, 11), true, false, true), None, "the keys of the nodes are unknown");
    // Another key takes the entry of the tracked one.
    write(&mut lists, 11, 4);
    assert_eq!(append(&mut lists, 4, 11), 4);
    assert_eq!((read(&mut lists, 4), lists.tracked()), (Some(11), 1));
}

#[test]
fn unverified_writes_add_no_state_and_invalidate_what_they_contradict() {
    let mut lists = lists(|_| {});
    write(&mut lists, 10, 3);
    append(&mut lists, 3, 10);
    let mut bytes = vec![0; LEN as usize];
    bytes[KEY..KEY + 8].copy_from_slice(&5u64.to_le_bytes());
    lists.on_unverified_write(va(11), &bytes);
    assert_eq!(lists.on_cas(&cas_of(50, 11), true, false, true), None, "the nodes are unknown");
    lists.on_unverified_write(va(10), &bytes);
    assert_eq!((read(&mut lists, 3), read(&mut lists, 10)), (None, None));
}

#[test]
fn old_nodes_are_evicted_but_first_nodes_are_not() {
    let mut lists = lists(|config| config.cached_nodes = 4);
    for node in 10..20 {
        write(&mut lists, node, 3);
    }
    append(&mut lists, 3, 19);
    let known: Vec<_> = (0..20).filter(|node| read(&mut lists, *node).is_some()).collect();
    assert_eq!(known, [3, 14, 15, 16, 17, 18, 19], "one set of seven nodes, and the first node");
    // A node that is still read stays in the table.
    for node in 20..26 {
        write(&mut lists, node, 3);
        assert_eq!(read(&mut lists, 14), Some(19));
    }
    assert_eq!(read(&mut lists, 18), None);
    // The response of a READ of an unknown node shows the key of that node and of the next one.
    let mut found = vec![0; LEN as usize];
    found[KEY..KEY + 8].copy_from_slice(&3u64.to_le_bytes());
    found[NEXT..NEXT + 8].copy_from_slice(&va(11).to_le_bytes());
    assert_eq!(lists.on_read(va(10), 7, LEN as u32), Some(va(10)));
    lists.on_read_response(va(10), &found);
    assert_eq!((read(&mut lists, 10), read(&mut lists, 11)), (Some(19), Some(19)));
    let mut lists = self::lists(|config| config.first_nodes = 0);
    write(&mut lists, 10, 3);
    assert_eq!(read(&mut lists, 3), None);
    append(&mut lists, 3, 10);
    assert_eq!(read(&mut lists, 3), Some(10), "the CAS shows the key");
}

#[test]
fn hot_keys_replace_colder_ones() {
    let mut lists = lists(|config| (config.tracked_keys, config.hot) = (2, 3));
    let mut next = 20;
    let mut times = |lists: &mut Lists, key: u64, times: u64| {
        for _ in 0..times {
            write(lists, next, key);
            append(lists, key, next);
            next += 1;
        }
    };
    times(&mut lists, 1, 2);
    assert_eq!(lists.tracked(), 0, "the key is not hot yet");
    times(&mut lists, 1, 10);
    times(&mut lists, 2, 5);
    assert!(lists.tail_of(1).is_some() && lists.tail_of(2).is_some());
    times(&mut lists, 3, 4);
    assert!(lists.tail_of(3).is_none(), "key 3 is no hotter than the cached keys");
    times(&mut lists, 3, 4);
    assert!(lists.tail_of(3).is_some() && lists.tail_of(1).is_some() && lists.tail_of(2).is_none());
    assert_eq!(lists.tracked(), 2);
}
