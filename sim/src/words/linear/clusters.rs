//! Clusters: a value that one operation leaves, all that find it, and in turn what those leave. Where every value is left
//! once, a cluster stands together in any order that explains the history, and clusters follow each other whole.

use super::items::{Effect, Item};
use std::collections::BTreeMap;

/// No cluster, or the end of the list
pub(super) const NONE: u32 = u32::MAX;

/// The clusters of a history.
#[derive(Debug)]
pub(super) struct Clusters {
    /// By item
    pub(super) of: Vec<u32>,
    /// Items that are not done
    left: Vec<u32>,
    /// The moment at which the first of its items had completed: all that was posted later comes later
    pub(super) first_return: Vec<u64>,
    /// The moment at which the last of its items was posted
    last_invoke: Vec<u64>,
    /// Items of other clusters that have to come before one of its own, and are not done
    waits: Vec<u32>,
    /// Those with something left, by `first_return`; the entry behind the last cluster is the list's head
    next: Vec<u32>,
    prev: Vec<u32>,
}

impl Clusters {
    /// The clusters of items, where each value has one that may leave it.
    pub(super) fn new(items: &[Item], first: u64) -> Self {
        let mut writer: BTreeMap<u64, u32> = BTreeMap::new();
        for (number, item) in items.iter().enumerate() {
            if let Some(value) = item.leaves() {
                // Of a value that several leave nobody knows whose it is.
                writer.entry(value).and_modify(|writer| *writer = NONE).or_insert(number as u32);
            }
        }
        // What holds at first is left by nobody: those that find it belong together like others.
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
            left: vec![0; count],
            first_return: vec![u64::MAX; count],
            last_invoke: vec![0; count],
            waits: vec![0; count],
            next: vec![NONE; count + 1],
            prev: vec![NONE; count + 1],
        };
        for (number, item) in items.iter().enumerate() {
            let cluster = clusters.of[number] as usize;
            clusters.left[cluster] += 1;
            clusters.first_return[cluster] = clusters.first_return[cluster].min(item.returned);
            clusters.last_invoke[cluster] = clusters.last_invoke[cluster].max(item.invoked);
            for after in others(item, &clusters.of, cluster as u32) {
                clusters.waits[after as usize] += 1;
            }
        }
        let mut order: Vec<u32> = (0..count as u32).filter(|c| clusters.left[*c as usize] > 0).collect();
        order.sort_by_key(|cluster| clusters.first_return[*cluster as usize]);
        let mut last = count as u32;
        for cluster in order {
            (clusters.next[last as usize], clusters.prev[cluster as usize]) = (cluster, last);
            last = cluster;
        }
        (clusters.next[last as usize], clusters.prev[count]) = (count as u32, last);
        clusters
    }

    /// An item is done.
    pub(super) fn take(&mut self, number: u32, item: &Item) {
        let cluster = self.of[number as usize];
        for other in others(item, &self.of, cluster) {
            self.waits[other as usize] -= 1;
        }
        self.left[cluster as usize] -= 1;
        if self.left[cluster as usize] == 0 {
            let (prev, next) = (self.prev[cluster as usize], self.next[cluster as usize]);
            (self.next[prev as usize], self.prev[next as usize]) = (next, prev);
        }
    }

    /// The item that was taken last is not done after all.
    pub(super) fn put_back(&mut self, number: u32, item: &Item) {
        let cluster = self.of[number as usize];
        if self.left[cluster as usize] == 0 {
            let (prev, next) = (self.prev[cluster as usize], self.next[cluster as usize]);
            (self.next[prev as usize], self.prev[next as usize]) = (cluster, cluster);
        }
        self.left[cluster as usize] += 1;
        for other in others(item, &self.of, cluster) {
            self.waits[other as usize] += 1;
        }
    }

    /// Whether no other cluster has to come before this one.
    pub(super) fn may_come(&self, cluster: u32) -> bool {
        let head = self.next.len() as u32 - 1;
        let mut earliest = self.next[head as usize];
        if earliest == cluster {
            earliest = self.next[cluster as usize];
        }
        let returned = if earliest == head { u64::MAX } else { self.first_return[earliest as usize] };
        self.waits[cluster as usize] == 0 && self.last_invoke[cluster as usize] <= returned
    }
}

/// The other clusters that wait for an item. What may stand anywhere makes none wait.
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
