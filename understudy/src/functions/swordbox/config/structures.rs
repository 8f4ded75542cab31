//! Reads the data structures in a server's memory that Swordbox knows: stores of lists, and tables of locks.

use super::{WORD_LEN, aligned, range};
use core::ops::Range;
use settings::tree::{Table, subsections};
use swordbox::steering::{HEADER, ListsConfig, LocksConfig, Structure};

const LISTS: &str = "[[swordbox.server.lists]]";
const LOCKS: &str = "[[swordbox.server.locks]]";
/// Largest number of structures of a server, which a byte numbers
const MAX_STRUCTURES: usize = 255;

pub(super) fn read(table: &Table<'_>) -> Option<Vec<Structure>> {
    let lists = subsections(table, "lists", LISTS);
    let locks = subsections(table, "locks", LOCKS);
    let (lists, locks) = (lists?, locks?);
    let too_many = lists.iter().chain(&locks).nth(MAX_STRUCTURES).map(|first| {
        let problem = first.problem(format!("a server has more than {MAX_STRUCTURES} structures"));
        problem.label("the first one too many").help("declare adjacent structures of one kind as one")
    });
    if let Some(problem) = too_many {
        table.problems().add(problem);
    }
    let lists: Vec<_> = lists.into_iter().map(self::lists).collect();
    let locks: Vec<_> = locks.into_iter().map(self::locks).collect();
    lists.into_iter().chain(locks).collect()
}

/// Reads the range of a structure, which is required.
fn required_range(table: &Table<'_>) -> Option<Range<u64>> {
    let va = table.require("va", "0x10000")?;
    range(table, &va, WORD_LEN)
}

fn lists(table: Table<'_>) -> Option<Structure> {
    let nodes = required_range(&table);
    let keys =
        table.require("keys", "1000").and_then(|value| value.number(1..=u64::from(u32::MAX) - 1, 1000));
    let node_len = table.require("node_bytes", "128").and_then(|value| {
        let node_len = aligned(&value, value.number(HEADER as u64 + WORD_LEN..=1 << 20, 128)?)?;
        if let Some(nodes) = &nodes
            && (nodes.end - nodes.start) / node_len >= u64::from(u32::MAX)
        {
            let problem = value.problem("the store has more nodes than 32 bits can count").label("too small");
            value.add(problem.help("declare parts of the region as separate stores"));
            return None;
        }
        Some(node_len as usize)
    });
    let default = keys.unwrap_or(1);
    let first_nodes = table.number("firsts", 0..=u64::from(u32::MAX), default);
    let cached_nodes = table.number("remembered", 1..=1 << 32, default * 3) as usize;
    let tracked_keys = table.number("tracked", 1..=1 << 31, default) as usize;
    let hot = table.number("hot", 1..=u64::from(u32::MAX), 1) as u32;
    table.finish();
    Some(Structure::Lists(ListsConfig {
        keys: keys?,
        node_len: node_len?,
        nodes: nodes?,
        first_nodes,
        cached_nodes,
        tracked_keys,
        hot,
    }))
}

fn locks(table: Table<'_>) -> Option<Structure> {
    let range = required_range(&table);
    let rkey = table.spanned_number("rkey", 0..=u32::MAX.into(), 0x1234).map(|rkey| rkey.into_inner() as u32);
    let stride = super::stride(&table);
    table.finish();
    Some(Structure::Locks(LocksConfig { range: range?, rkey, stride: stride? }))
}
