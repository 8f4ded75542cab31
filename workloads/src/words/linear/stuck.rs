//! Explanation of a search that found no order.

use super::items::Item;
use super::op::Op;

/// State of the search where it got furthest.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub(super) struct Stuck {
    pub(super) value: u64,
    pub(super) done: usize,
    /// Latest operations of the partial order
    pub(super) latest: Vec<u32>,
    /// Operation that has to come next
    pub(super) next: Option<u32>,
    /// Set if no operation wrote the value that `next` found
    pub(super) unwritten: bool,
}

impl Stuck {
    pub(super) fn describe(&self, ops: &[Op], items: &[Item]) -> String {
        let name = |item: &u32| match (items[*item as usize].op, items[*item as usize].finds()) {
            (Some(op), _) => format!("\n    {}", ops[op]),
            (None, found) => format!("\n    the memory at the end: {:#x}", found.unwrap_or_default()),
        };
        let next: String = self.next.iter().map(name).collect();
        if self.unwritten {
            return format!("no operation wrote the value that this one found:{next}");
        }
        let latest: String = self.latest.iter().map(name).collect();
        let (done, all, value) = (self.done, items.len(), self.value);
        format!(
            "{done} of {all} operations can be explained; the last of them are:{latest}\n  \
             the word then holds {value:#x}, which contradicts the next operation:{next}"
        )
    }
}
