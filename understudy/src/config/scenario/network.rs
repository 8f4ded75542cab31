//! Nodes of a scenario by name, and whether they can reach one another.

use crate::config::report::Problem;
use crate::config::tree::{Problems, Table, Value};
use crate::config::words;
use core::ops::Range;
use settings::declare::{Key, Required};
use std::collections::BTreeMap;
use workloads::scenario::HostSpec;

/// Names of hosts and switches, with their spans in the file
#[derive(Default)]
pub(in crate::config) struct Names {
    pub(in crate::config) all: BTreeMap<String, Range<usize>>,
}

impl Names {
    pub(in crate::config) fn read_name(
        &mut self,
        table: &Table<'_>,
        key: Key<(), Required>,
    ) -> Option<String> {
        let value = table.value(key)?;
        let name = value.text()?.to_owned();
        if let Some(first) = self.all.get(&name) {
            let problem = value.problem(format!("two nodes have the name `{name}`")).label("again");
            value.add(
                problem.also(first.clone(), "first here").help("give each host and switch its own name"),
            );
            return None;
        }
        self.all.insert(name.clone(), value.span());
        Some(name)
    }

    pub(super) fn resolve(&self, value: &Value<'_>) -> Option<String> {
        let name = value.text()?;
        if self.all.contains_key(name) {
            return Some(name.to_owned());
        }
        let names = words::one_of(self.all.keys());
        value.add(
            value.problem(format!("there is no host or switch `{name}`")).label("no such node").help(
                if names.is_empty() { "add a `[[host]]`".into() } else { format!("it can be {names}") },
            ),
        );
        None
    }
}

/// Nodes that are joined so far.
pub(super) struct Network<'a> {
    pub(super) names: &'a Names,
    /// Connected part of the network to which each node belongs, named after one node of the part
    part: BTreeMap<String, String>,
    links: BTreeMap<String, usize>,
    /// The ends of some link could not be read: a node without a link may have that one
    pub(super) incomplete: bool,
}

impl<'a> Network<'a> {
    pub(super) fn new(names: &'a Names) -> Self {
        let part = names.all.keys().map(|name| (name.clone(), name.clone())).collect();
        Self { names, part, links: BTreeMap::new(), incomplete: false }
    }

    /// Joins two nodes. Returns false if they were already connected.
    pub(super) fn join(&mut self, a: &str, b: &str) -> bool {
        for end in [a, b] {
            *self.links.entry(end.to_owned()).or_default() += 1;
        }
        let (Some(first), Some(second)) = (self.part.get(a).cloned(), self.part.get(b).cloned()) else {
            return true;
        };
        for part in self.part.values_mut().filter(|part| **part == second) {
            part.clone_from(&first);
        }
        first != second
    }

    pub(super) fn check(&self, hosts: &[HostSpec], problems: &Problems) {
        for host in hosts {
            let links = self.links.get(&host.name).copied().unwrap_or(0);
            if links > 1 || links == 0 && !self.incomplete {
                let span = self.names.all[&host.name].clone();
                problems.add(
                    Problem::at(
                        span,
                        format!("host `{}` has {links} links, but needs exactly one", host.name),
                    )
                    .label("a host has one port")
                    .help("join hosts to a `[[switch]]`, or two hosts to each other"),
                );
            }
        }
        let Some((first, rest)) = hosts.split_first() else { return };
        for host in rest {
            let separate = self.part.get(&host.name) != self.part.get(&first.name);
            if separate
                && !self.incomplete
                && self.links.contains_key(&host.name)
                && self.links.contains_key(&first.name)
            {
                let span = self.names.all[&host.name].clone();
                problems.add(
                    Problem::at(span, format!("no path joins `{}` and `{}`", first.name, host.name))
                        .label("in a separate part of the network")
                        .help("add a `[[link]]` between the parts"),
                );
            }
            if host.address.0.is_ipv4() != first.address.0.is_ipv4() {
                let span = self.names.all[&host.name].clone();
                problems.add(
                    Problem::at(
                        span,
                        format!(
                            "`{}` and `{}` have addresses of different IP versions",
                            first.name, host.name
                        ),
                    )
                    .label("another IP version")
                    .help("give all hosts IPv4 addresses, or all IPv6 addresses"),
                );
            }
            let same = |other: &&HostSpec| other.name != host.name && other.address.0 == host.address.0;
            if let Some(other) = hosts.iter().find(same)
                && other.name < host.name
            {
                let span = self.names.all[&host.name].clone();
                problems.add(
                    Problem::at(span, format!("`{}` and `{}` have the same address", other.name, host.name))
                        .label("the same address")
                        .help("give each host its own `address`"),
                );
            }
        }
    }
}
