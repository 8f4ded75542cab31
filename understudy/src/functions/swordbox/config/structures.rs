//! Reads the data structures in a server's memory that Swordbox knows: stores of lists, and tables of locks.

use super::{Servers, WORD_LEN, aligned, words};
use settings::declare::{Kind, Type, whole};
use settings::report::Problem;
use settings::tree::Table;
use swordbox::steering::{HEADER, ListsConfig, LocksConfig, Structure};

settings::table! {
    /// Store of lists: for each key a list of nodes, each of which is a version
    pub(crate) enum ListsKeys "[[swordbox.server.lists]]";
    /// First address, a multiple of 8
    va: u64 = whole(0..=u64::MAX) => required() example(0x10000);
    /// Length of the memory
    bytes: u64 = whole(WORD_LEN..=u64::MAX).unit("bytes") => required() example(4096);
    /// Keys of the store
    keys: u32 = whole(1..=u32::MAX as u64 - 1) => required() example(1000);
    /// Size of a node, a multiple of 8
    node_bytes: u64 = Type::new(Kind::Whole(HEADER as u64 + WORD_LEN, 1 << 20), |value| aligned(value, value.whole()?)).unit("bytes") => required() example(128);
    /// Nodes at the beginning that are the first ones of keys 0, 1, ...
    firsts: u64 = whole(0..=u32::MAX as u64) => optional("as many as `keys`") example(1000);
    /// Nodes whose key is cached
    remembered: usize = whole(1..=1 << 32) => optional("3 times `keys`") example(3000);
    /// Keys whose last node is cached
    tracked: usize = whole(1..=1 << 31) => optional("as many as `keys`") example(1000);
    /// Appends that make a key hot, so that it is cached
    hot: u32 = whole(1..=u32::MAX as u64) => default(1);
}

settings::table! {
    /// Table of locks
    pub(crate) enum LocksKeys "[[swordbox.server.locks]]";
    /// First address, a multiple of 8
    va: u64 = whole(0..=u64::MAX) => required() example(0x10000);
    /// Length of the memory
    bytes: u64 = whole(WORD_LEN..=u64::MAX).unit("bytes") => required() example(4096);
    /// Key of the memory
    rkey: u32 = whole(0..=u32::MAX as u64) => optional("any key") example(0x1234);
    /// Bytes from one lock to the next, a multiple of 8
    stride: u64 = Type::new(Kind::Whole(WORD_LEN, 1 << 30), |value| aligned(value, value.whole()?)).unit("bytes") => default(8);
}

/// Largest number of structures of a server, which a byte numbers
const MAX_STRUCTURES: usize = 255;

pub(super) fn read(table: &Table<'_>) -> Option<Vec<Structure>> {
    let (lists, locks) = (table.tables(Servers::lists), table.tables(Servers::locks));
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

fn lists(table: Table<'_>) -> Option<Structure> {
    let nodes = table.value(ListsKeys::va).and_then(|va| words(&va, &table.value(ListsKeys::bytes)?));
    let (keys, node_len) = (table.read(ListsKeys::keys), table.spanned(ListsKeys::node_bytes));
    if let (Some(nodes), Some(node_len)) = (&nodes, &node_len)
        && (nodes.end - nodes.start) / node_len.get_ref() >= u64::from(u32::MAX)
    {
        let problem = Problem::at(node_len.span(), "the store has more nodes than 32 bits can count");
        let help = "declare parts of the region as separate stores";
        table.problems().add(problem.label("too small").help(help));
    }
    let default = keys.unwrap_or(1) as usize;
    let first_nodes = table.read(ListsKeys::firsts).unwrap_or(default as u64);
    let cached_nodes = table.read(ListsKeys::remembered).unwrap_or(default * 3);
    let tracked_keys = table.read(ListsKeys::tracked).unwrap_or(default);
    let hot = table.read(ListsKeys::hot);
    table.finish();
    Some(Structure::Lists(ListsConfig {
        keys: keys?.into(),
        node_len: node_len?.into_inner() as usize,
        nodes: nodes?,
        first_nodes,
        cached_nodes,
        tracked_keys,
        hot,
    }))
}

fn locks(table: Table<'_>) -> Option<Structure> {
    let range = table.value(LocksKeys::va).and_then(|va| words(&va, &table.value(LocksKeys::bytes)?));
    let (rkey, stride) = (table.read(LocksKeys::rkey), table.read(LocksKeys::stride));
    table.finish();
    Some(Structure::Locks(LocksConfig { range: range?, rkey, stride }))
}
