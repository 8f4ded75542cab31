//! Log agreement at the start of a leadership: one log, from the leader's own and those of a majority.

use super::config::Config;
use super::log::{DECIDED, Entry, Layout, Term};
use super::resources::{LOG_VA, Resources, log_scratch};
use rnic::{Data, Rnic, Sge};

/// Returns the bytes of an entry of the local log, for a WRITE.
pub(super) fn local_entry_data(
    nic: &Rnic,
    resources: &Resources,
    layout: &Layout,
    index: u64,
) -> Option<Data> {
    let len = layout.stored_len(index, nic.bytes(resources.log.0))? as u32;
    Some(Data::Memory(Sge { mr: resources.log.1, va: LOG_VA + layout.at(index) as u64, len }))
}

/// Stores an entry in the local log.
pub(super) fn store_entry(nic: &mut Rnic, resources: &Resources, layout: &Layout, entry: &Entry<'_>) {
    let mut bytes = Vec::new();
    if layout.encode(entry, &mut bytes).is_some() {
        let at = layout.at(entry.index);
        nic.bytes_mut(resources.log.0)[at..at + bytes.len()].copy_from_slice(&bytes);
    }
}

/// A log that was read
pub(super) struct Log {
    pub(super) server: u8,
    /// Number of entries that its server has applied, and the index from which the entries below are known to
    /// be the decided ones
    pub(super) applied: u64,
    pub(super) valid_from: u64,
}

/// Brings the local log, of which `applied` entries were applied, into agreement with the logs in `read`.
/// Returns the index of the first free entry, and the number of decided entries. Returns `None` if a decided
/// entry is in none of these logs, or if the result exceeds the capacity of a log.
pub(super) fn agree_on_log(
    nic: &mut Rnic,
    config: &Config,
    resources: &Resources,
    read: &[Log],
    applied: u64,
    term: Term,
) -> Option<(u64, u64)> {
    let layout = config.layout;
    let mut chosen: Vec<(u64, u64, Vec<u8>)> = Vec::new();
    let (own, scratch) = (nic.bytes(resources.log.0), nic.bytes(resources.scratch.0));
    let others: Vec<_> = read.iter().map(|log| (log, log_scratch(config, scratch, log.server))).collect();
    let max_applied = read.iter().map(|log| log.applied).fold(applied, u64::max);
    for index in applied..max_applied {
        // A server that applied an entry without a snapshot held the decided value, and may still hold it.
        let mut holders = others.iter().filter(|(log, _)| (log.valid_from..log.applied).contains(&index));
        let entry = holders.find_map(|(_, bytes)| layout.entry(index, bytes))?;
        chosen.push((index, entry.decided, entry.value.to_vec()));
    }
    let mut next = max_applied;
    loop {
        let logs = others.iter().map(|(_, bytes)| *bytes).chain([own]);
        let entries = logs.filter_map(|log| layout.entry(next, log));
        let Some(latest) = entries.max_by_key(|entry| entry.term) else { break };
        chosen.push((next, latest.decided, latest.value.to_vec()));
        next += 1;
    }
    if next - applied > layout.slots() {
        return None;
    }
    // All of these entries are proposed again in this term.
    for (index, decided, value) in chosen {
        store_entry(nic, resources, &layout, &Entry { index, term, decided, value: &value });
    }
    nic.bytes_mut(resources.log.0)[DECIDED..][..8].copy_from_slice(&max_applied.to_le_bytes());
    Some((next, max_applied))
}
