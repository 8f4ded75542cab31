//! Initial image of a tree, and verification of a final one.

use super::node::{FANOUT, NODE_LEN, Node, NotANode};
use super::{BUMP, FIRST_NODE, ROOT};
use crate::clients::verbs::word;

/// Initial number of keys per node: the fill level that random insertions lead to in the long run
const FILLED: usize = FANOUT * 7 / 10;

/// Returns the initial length in bytes of a tree with this number of keys.
pub fn image_len(keys: usize) -> usize {
    let (mut nodes, mut level) = (0, keys.div_ceil(FILLED).max(1));
    loop {
        nodes += level;
        if level == 1 {
            return FIRST_NODE as usize + nodes * NODE_LEN;
        }
        level = level.div_ceil(FILLED);
    }
}

/// Writes a tree of these entries, in ascending order of their keys, to zeroed memory that clients see at
/// `va`.
///
/// # Panics
/// If the memory is too short.
pub fn build(memory: &mut [u8], va: u64, entries: &[(u64, u64)]) {
    let mut offset = FIRST_NODE as usize;
    let chunks = |entries: &[(u64, u64)]| entries.chunks(FILLED).map(<[_]>::to_vec).collect::<Vec<_>>();
    let mut groups = if entries.is_empty() { vec![Vec::new()] } else { chunks(entries) };
    for level in 0.. {
        // First keys of the groups, and addresses of their nodes
        let mut above = Vec::new();
        for (n, group) in groups.iter().enumerate() {
            let low = if n == 0 { 0 } else { group[0].0 };
            let mut node = Node { low, ..Node::empty(level) };
            if let Some(next) = groups.get(n + 1) {
                (node.high, node.sibling) = (next[0].0, va + (offset + NODE_LEN) as u64);
            }
            node.entries.clone_from(group);
            if level > 0 {
                node.leftmost = node.entries.remove(0).1;
            }
            memory[offset..offset + NODE_LEN].copy_from_slice(&node.to_bytes());
            above.push((low, va + offset as u64));
            offset += NODE_LEN;
        }
        if above.len() == 1 {
            memory[ROOT as usize..][..8].copy_from_slice(&above[0].1.to_le_bytes());
            memory[BUMP as usize..][..8].copy_from_slice(&(offset as u64).to_le_bytes());
            return;
        }
        groups = chunks(&above);
    }
}

/// Returns all keys and values of a tree that no client is writing to.
///
/// # Errors
/// The description of an inconsistency: nodes that overlap or leave gaps, keys outside of their nodes, or
/// invalid children.
pub fn walk(memory: &[u8], va: u64) -> Result<Vec<(u64, u64)>, String> {
    let node = |at: u64| {
        let offset = at.checked_sub(va).map(|offset| offset as usize);
        let bytes = offset.and_then(|offset| memory.get(offset..offset + NODE_LEN));
        let bytes = bytes.ok_or_else(|| format!("no node at {at:#x}"))?;
        Node::from_bytes(bytes).map_err(|not: NotANode| format!("invalid node at {at:#x}: {not:?}"))
    };
    let mut first_at = word(memory, ROOT as usize);
    let mut entries = Vec::new();
    let mut level = node(first_at)?.level;
    loop {
        let mut at = first_at;
        let mut low = 0;
        loop {
            let this = node(at)?;
            if (this.level, this.low) != (level, low) {
                return Err(format!(
                    "node {at:#x} has level {} and begins at key {:#x}, expected level {level} and key {low:#x}",
                    this.level, this.low
                ));
            }
            let within = this.entries.iter().all(|(key, _)| (this.low..this.high).contains(key));
            if !within || !this.entries.is_sorted_by(|one, other| one.0 < other.0) {
                return Err(format!(
                    "the keys of the node at {at:#x} are out of range or not in order: {this:x?}"
                ));
            }
            if level == 0 {
                entries.extend(&this.entries);
            }
            // A child that its parent does not have yet is reached through its left neighbour. The children
            // that the parent has begin at their keys.
            let leftmost = (this.low, this.leftmost);
            for (key, child) in this.entries.iter().chain([&leftmost]) {
                if level > 0 && node(*child)?.low != *key {
                    return Err(format!(
                        "the child {child:#x} of node {at:#x} does not begin at key {key:#x}"
                    ));
                }
            }
            if this.sibling == 0 {
                break;
            }
            (low, at) = (this.high, this.sibling);
        }
        if level == 0 {
            return Ok(entries);
        }
        first_at = node(first_at)?.leftmost;
        level -= 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_built_tree_has_its_entries() {
        for keys in [0, 1, 41, 42, 43, 42 * 42, 42 * 42 + 1, 100_000] {
            let entries: Vec<_> = (0..keys as u64).map(|n| (n * 3 + 1, n)).collect();
            let mut memory = vec![0; image_len(keys)];
            build(&mut memory, 0x7000_0000, &entries);
            assert_eq!(word(&memory, BUMP as usize), memory.len() as u64, "the image is fully allocated");
            assert_eq!(walk(&memory, 0x7000_0000), Ok(entries), "{keys}");
        }
    }

    #[test]
    fn walking_a_broken_tree_fails() {
        let entries: Vec<_> = (0..200).map(|n| (n, n)).collect();
        let mut memory = vec![0; image_len(200)];
        build(&mut memory, 0, &entries);
        let first = FIRST_NODE as usize;
        let mut broken = memory.clone();
        broken[first + 48] = 99;
        assert!(walk(&broken, 0).unwrap_err().contains("not in order"));
        let mut broken = memory.clone();
        broken[first + 24] += 1;
        assert!(walk(&broken, 0).unwrap_err().contains("has level 0 and begins at"));
        memory[first] += 1;
        assert!(walk(&memory, 0).unwrap_err().contains("Torn"));
    }
}
