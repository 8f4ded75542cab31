//! Queue pairs, as all workers together have counted them.

use super::snapshot::{ROWS, Row, Table, busiest};
use super::values::Values;
use core::cmp::Reverse;
use core::net::IpAddr;
use rocev2::Qpn;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use switch::forward::Counters;
use switch::forward::counters::QpCounter;

/// A queue pair.
pub(crate) struct CountedQp<'a> {
    pub(crate) host: IpAddr,
    pub(crate) qpn: Qpn,
    pub(crate) frames: u64,
    pub(crate) bytes: u64,
    /// Gaps, retransmissions, NAKs and RNR NAKs together; without gaps if the queue pair is split
    pub(crate) faults: u64,
    /// Whether several workers received parts of the same packets, so that gaps are not known
    pub(crate) split: bool,
    /// Counters of each worker that has some
    first: QpCounter<'a>,
    others: Vec<QpCounter<'a>>,
}

/// Metrics that are not known of a split queue pair
const UNKNOWN_IF_SPLIT: [&str; 2] = ["psn_gaps", "reordered"];

impl<'a> CountedQp<'a> {
    fn of(first: QpCounter<'a>, others: Vec<QpCounter<'a>>) -> Self {
        let all = || core::iter::once(&first).chain(&others);
        let sum = |count: &dyn Fn(&QpCounter<'_>) -> u64| all().map(count).sum::<u64>();
        let health = |count: &dyn Fn(&switch::forward::health::Health) -> u64| {
            sum(&|qp| qp.health.map_or(0, |health| count(&health.packets)))
        };
        let split = others.iter().any(|other| first.shares_sequence_with(other));
        let gaps = if split { health(&|health| health.psn_gaps.get()) } else { 0 };
        Self {
            host: first.host,
            qpn: first.qpn,
            frames: sum(&|qp| qp.packets.frames.get()),
            bytes: sum(&|qp| qp.packets.bytes.get()),
            faults: health(&switch::forward::health::Health::faults).saturating_sub(gaps),
            split,
            first,
            others,
        }
    }

    /// Returns the values of all metrics.
    pub(crate) fn values(&self) -> Values {
        let values = Values::of_item(core::iter::once(&self.first).chain(&self.others));
        if !self.split {
            return values;
        }
        values.replaced(|name, value| match name {
            "faults" => self.faults,
            _ if UNKNOWN_IF_SPLIT.contains(&name) => 0,
            _ => value,
        })
    }

    fn row(&self) -> Row {
        Row {
            queue_pairs: vec![(Some(self.host), self.qpn.get())],
            ..Row::of([self.host.to_string(), format!("{:#x}", self.qpn.get())], &self.values())
        }
    }
}

/// Returns the queue pairs of all workers, unsorted.
pub(crate) fn queue_pairs(counters: &[Arc<Counters>]) -> impl Iterator<Item = CountedQp<'_>> {
    let (one, several) = match counters {
        [one] => (Some(one), HashMap::new()),
        several => (None, by_queue_pair(several)),
    };
    let one = one.into_iter().flat_map(|one| one.qps.iter());
    let several = several.into_values().map(|(first, others)| CountedQp::of(first, others));
    one.map(|qp| CountedQp::of(qp, Vec::new())).chain(several)
}

/// Counters of a queue pair by the workers that have some
type Parts<'a> = (QpCounter<'a>, Vec<QpCounter<'a>>);

fn by_queue_pair(counters: &[Arc<Counters>]) -> HashMap<(IpAddr, Qpn), Parts<'_>> {
    let mut all = HashMap::<_, Parts<'_>>::new();
    for qp in counters.iter().flat_map(|counters| counters.qps.iter()) {
        all.entry((qp.host, qp.qpn))
            .and_modify(|(_, others)| others.push(qp))
            .or_insert_with(|| (qp, Vec::new()));
    }
    all
}

/// Returns the table of packets by destination queue pair: the half of its rows with the most faults, if they
/// have any, and the busiest of the rest.
pub(super) fn table(counters: &[Arc<Counters>]) -> Table {
    let key = |qp: &CountedQp<'_>| (qp.host, qp.qpn.get());
    let traffic = |qp: &CountedQp<'_>| Reverse((qp.frames, qp.bytes));
    let ill = queue_pairs(counters).filter(|qp| qp.faults > 0);
    let (mut rows, _) = busiest(ill, |a, b| {
        let order = |qp: &CountedQp<'_>| (Reverse(qp.faults), traffic(qp), key(qp));
        order(a).cmp(&order(b))
    });
    rows.truncate(ROWS / 2);
    let shown: HashSet<_> = rows.iter().map(key).collect();
    let rest = queue_pairs(counters).filter(|qp| !shown.contains(&key(qp)));
    let order = |qp: &CountedQp<'_>| (traffic(qp), key(qp));
    let (mut busy, mut more) = busiest(rest, |a, b| order(a).cmp(&order(b)));
    let room = ROWS - rows.len();
    more += busy.len().saturating_sub(room);
    busy.truncate(room);
    rows.extend(busy);
    Table::of_busiest(&QpCounter::GROUP, (rows, more), |qp| qp.row())
}
