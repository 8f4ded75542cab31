//! Values of declared metrics, as reports, snapshots and exporters show them.

use core::fmt::Write as _;
use serde::ser::{Serialize, Serializer};
use serde_json::Map;
use switch::metrics::{Group, Kind, Metric, Metrics};

/// Metrics and their values. Serialised as a map of the metrics of the closing report, with a map for each of
/// its sections.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Values(Vec<(&'static Metric, u64)>);

impl Values {
    /// Returns the values of one struct.
    pub(crate) fn of<M: Metrics>(counters: &M) -> Self {
        Self(M::GROUP.metrics().zip(counters.values()).collect())
    }

    /// Returns the values of several structs together, such as those of all workers.
    pub(crate) fn total<'a, M: Metrics + 'a>(all: impl IntoIterator<Item = &'a M>) -> Self {
        let mut total: Vec<_> = M::GROUP.metrics().map(|metric| (metric, 0)).collect();
        for counters in all {
            for ((metric, total), value) in total.iter_mut().zip(counters.values()) {
                *total = if metric.kind == Kind::Maximum { value.max(*total) } else { *total + value };
            }
        }
        Self(total)
    }

    /// Returns the values of one item of which several workers have counters: sums of counters, and the largest
    /// of other values.
    pub(crate) fn of_item<'a, M: Metrics + 'a>(all: impl IntoIterator<Item = &'a M>) -> Self {
        let mut total: Vec<_> = M::GROUP.metrics().map(|metric| (metric, 0)).collect();
        for counters in all {
            for ((metric, total), value) in total.iter_mut().zip(counters.values()) {
                *total = if metric.kind == Kind::Counter { *total + value } else { value.max(*total) };
            }
        }
        Self(total)
    }

    /// Returns these values with those that `replace` returns for their names and values.
    pub(crate) fn replaced(mut self, replace: impl Fn(&str, u64) -> u64) -> Self {
        for (metric, value) in &mut self.0 {
            *value = replace(metric.observed.unwrap_or_default(), *value);
        }
        self
    }

    /// Returns those without the first `count` metrics.
    pub(crate) fn without_first(mut self, count: usize) -> Self {
        self.0.drain(..count.min(self.0.len()));
        self
    }

    /// Returns these values, followed by others.
    pub(crate) fn and(mut self, other: Self) -> Self {
        self.0.extend(other.0);
        self
    }

    /// Returns the names and values of the closing report.
    pub(crate) fn reported(&self) -> impl Iterator<Item = (&'static str, u64)> {
        self.0.iter().filter_map(|(metric, value)| Some((metric.reported?, *value)))
    }

    /// Returns the value with this name in the closing report; zero if there is none.
    pub(crate) fn get(&self, name: &str) -> u64 {
        self.reported().find(|(known, _)| *known == name).map_or(0, |(_, value)| value)
    }

    /// Returns those of the closing report that are not zero.
    pub(crate) fn nonzero(&self) -> impl Iterator<Item = (&'static str, u64)> {
        self.reported().filter(|(_, value)| *value > 0)
    }

    /// Returns the metrics of snapshots, with names and values.
    pub(crate) fn observed(&self) -> impl Iterator<Item = (&'static Metric, &'static str, u64)> {
        self.0.iter().filter_map(|(metric, value)| Some((*metric, metric.observed?, *value)))
    }

    /// Returns those that only grow.
    pub(crate) fn counters(mut self) -> Self {
        self.0.retain(|(metric, _)| metric.kind == Kind::Counter);
        self
    }

    /// Returns those in this section of the closing report, without its subsections, by their names in it.
    pub(crate) fn section(&self, path: &str) -> impl Iterator<Item = (&'static str, u64)> {
        let names = move |name: &'static str| name.strip_prefix(path)?.strip_prefix('.');
        self.reported()
            .filter_map(move |(name, value)| Some((names(name)?, value)))
            .filter(|(name, _)| !name.contains('.'))
    }

    /// Returns the values of the closing report.
    pub(crate) fn numbers(&self) -> Vec<u64> {
        self.reported().map(|(_, value)| value).collect()
    }

    /// Appends a line for each value of the closing report that is not zero: a title, the help, the value.
    pub(crate) fn notes(&self, title: &str, text: &mut String) {
        for (metric, value) in self.0.iter().filter(|(metric, value)| *value > 0 && metric.reported.is_some())
        {
            // Writing to a string does not fail.
            _ = writeln!(text, "{title}{}: {value}", metric.help);
        }
    }
}

impl Serialize for Values {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut root = Map::new();
        for (path, value) in self.reported() {
            let mut sections = path.split('.');
            let name = sections.next_back().unwrap_or_default();
            let section = sections.fold(&mut root, |map, section| {
                let section = map.entry(section).or_insert_with(|| Map::new().into());
                section.as_object_mut().expect("the name of a section is not that of a metric")
            });
            section.insert(name.into(), value.into());
        }
        root.serialize(serializer)
    }
}

/// Returns the headings of a table: `words`, and the names that a group's metrics have in the closing report.
pub(crate) fn headings<'a>(words: &[&'a str], group: &Group) -> Vec<&'a str> {
    let names = group.metrics().filter_map(|metric| metric.reported);
    words.iter().copied().chain(names).collect()
}
