//! Clusters: an operation that leaves a value, all operations that find this value, and recursively the
//! operations that find what those leave. If every value is left by one operation only, a cluster is
//! contiguous in any order that explains the history.

use super::items::{Effect, Item};
use std::collections::BTreeMap;

/// No cluster, or the end of the list
pub(super) const NONE: u32 = u32::MAX;

/// The clusters of a history, and which of their items remain.
#[derive(Debug)]
pub(super) struct Clusters {
    /// Cluster of each item
    pub(super) of: Vec<u32>,
    /// Number of remaining items
    remaining: Vec<u32>,
    /// Earliest completion of the cluster's items: operations posted after it come after the cluster
    pub(super) first_return: Vec<u64>,
    /// Latest posting time of the cluster's items
    last_invoke: Vec<u64>,
    /// Number of remaining items of other clusters that have to precede an item of this one
    waits: Vec<u32>,
    /// Linked list of the clusters with remaining items, by `first_return`; the entry after the last cluster
    /// is the head
    next: Vec<u32>,
    prev: Vec<u32>,
}

impl Clusters {
    /// Builds the clusters of items in which each value is left by at most one.
    pub(super) fn new(items: &[Item], first: u64) -> Self {
        let mut writer: BTreeMap<u64, u32> = BTreeMap::new();
        for (number, item) in items.iter().enumerate() {
            if let Some(value) = item.leaves() {
                // A value that several items leave does not identify one of them.
                writer.entry(value).and_modify(|writer| *writer = NONE).or_insert(number as u32);
            }
        }
        // No item leaves the initial value; the items that find it form a cluster, too.
        let start = items.len() as u32;
        writer.entry(first).and_modify(|writer| *writer = NONE).or_insert(start);
        let mut parent: Vec<u32> = (0..=start).collect();
        for (number, item) in items.iter().enumerate() {
            let writer = item.finds().and_then(|value| writer.get(&value)).copied().unwrap_or(NONE);
            if writer != NONE {
                let (a, b) = (root(&mut parent, number as u32), root(&mut parent, writer));
                parent[a as usize] = b;
            }
        }
        let of: Vec<u32> = (0..start).map(|item| root(&mut parent, item)).collect();
        let count = items.len() + 1;
        let mut clusters = Self {
            of,
            remaining: vec![0; count],
            first_return: vec![u64::MAX; count],
            last_invoke: vec![0; count],
            waits: vec![0; count],
            next: vec![NONE; count + 1],
            prev: vec![NONE; count + 1],
        };
        for (number, item) in items.iter().enumerate() {
            let cluster = clusters.of[number] as usize;
            clusters.remaining[cluster] += 1;
            clusters.first_return[cluster] = clusters.first_return[cluster].min(item.returned);
            clusters.last_invoke[cluster] = clusters.last_invoke[cluster].max(item.invoked);
            for after in others(item, &clusters.of, cluster as u32) {
                clusters.waits[after as usize] += 1;
            }
        }
        let mut order: Vec<u32> = (0..count as u32).filter(|c| clusters.remaining[*c as usize] > 0).collect();
        order.sort_by_key(|cluster| clusters.first_return[*cluster as usize]);
        let mut last = count as u32;
        for cluster in order {
            (clusters.next[last as usize], clusters.prev[cluster as usize]) = (cluster, last);
            last = cluster;
        }
        (clusters.next[last as usize], clusters.prev[count]) = (count as u32, last);
        clusters
    }

    /// Removes an item.
    pub(super) fn take(&mut self, number: u32, item: &Item) {
        let cluster = self.of[number as usize];
        for other in others(item, &self.of, cluster) {
            self.waits[other as usize] -= 1;
        }
        self.remaining[cluster as usize] -= 1;
        if self.remaining[cluster as usize] == 0 {
            let (prev, next) = (self.prev[cluster as usize], self.next[cluster as usize]);
            (self.next[prev as usize], self.prev[next as usize]) = (next, prev);
        }
    }

    /// Restores the item that was removed last.
    pub(super) fn put_back(&mut self, number: u32, item: &Item) {
        let cluster = self.of[number as usize];
        if self.remaining[cluster as usize] == 0 {
            let (prev, next) = (self.prev[cluster as usize], self.next[cluster as usize]);
            (self.next[prev as usize], self.prev[next as usize]) = (cluster, cluster);
        }
        self.remaining[cluster as usize] += 1;
        for other in others(item, &self.of, cluster) {
            self.waits[other as usize] += 1;
        }
    }

    /// Returns whether no other cluster has to precede this one.
    pub(super) fn may_come_next(&self, cluster: u32) -> bool {
        let head = self.next.len() as u32 - 1;
        let mut earliest = self.next[head as usize];
        if earliest == cluster {
            earliest = self.next[cluster as usize];
        }
        let returned = if earliest == head { u64::MAX } else { self.first_return[earliest as usize] };
        self.waits[cluster as usize] == 0 && self.last_invoke[cluster as usize] <= returned
    }
}

/// Returns the other clusters that wait for an item. None wait for an item that may be placed anywhere.
fn others<'a>(item: &'a Item, of: &'a [u32], cluster: u32) -> impl Iterator<Item = u32> + 'a {
    let after = if matches!(item.effect, Effect::Unseen(_)) { &[] } else { &item.after[..] };
    after.iter().map(|after| of[*after as usize]).filter(move |other| *other != cluster)
}

fn root(parent: &mut [u32], item: u32) -> u32 {
    let mut item = item;
    while parent[item as usize] != item {
        parent[item as usize] = parent[parent[item as usize] as usize];
        item = parent[item as usize];
    }
    item
}
