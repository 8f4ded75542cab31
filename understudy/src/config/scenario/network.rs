//! The nodes of a scenario by their names, and whether they can reach one another.

use crate::config::report::Problem;
use crate::config::tree::{Problems, Table, Value};
use crate::config::words;
use core::ops::Range;
use sim::scenario::HostSpec;
use std::collections::BTreeMap;

/// Names of hosts and switches, and where they stand
#[derive(Default)]
pub(in crate::config) struct Names {
    pub(in crate::config) all: BTreeMap<String, Range<usize>>,
}

impl Names {
    pub(in crate::config) fn take(&mut self, table: &Table<'_>) -> Option<String> {
        let value = table.require("name", "\"a\"")?;
        let name = value.text()?.to_owned();
        if let Some(first) = self.all.get(&name) {
            let problem = value.problem(format!("there are two nodes named `{name}`")).label("again");
            value.add(
                problem.also(first.clone(), "first here").help("give each host and switch its own name"),
            );
            return None;
        }
        self.all.insert(name.clone(), value.span());
        Some(name)
    }

    pub(super) fn known(&self, value: &Value<'_>) -> Option<String> {
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

/// What is joined so far.
pub(super) struct Network<'a> {
    pub(super) names: &'a Names,
    /// The part of the network that a node belongs to, by a node of it
    part: BTreeMap<String, String>,
    links: BTreeMap<String, usize>,
    /// The ends of a link were not understood: what has no link may have that one
    pub(super) unclear: bool,
}

impl<'a> Network<'a> {
    pub(super) fn new(names: &'a Names) -> Self {
        let part = names.all.keys().map(|name| (name.clone(), name.clone())).collect();
        Self { names, part, links: BTreeMap::new(), unclear: false }
    }

    /// False if both were joined already.
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
            if links > 1 || links == 0 && !self.unclear {
                let span = self.names.all[&host.name].clone();
                problems.add(
                    Problem::at(span, format!("host `{}` has {links} links, and needs one", host.name))
                        .label("one port, one link")
                        .help("join hosts to a `[[switch]]`, or two hosts to each other"),
                );
            }
        }
        let Some((first, rest)) = hosts.split_first() else { return };
        for host in rest {
            let apart = self.part.get(&host.name) != self.part.get(&first.name);
            if apart
                && !self.unclear
                && self.links.contains_key(&host.name)
                && self.links.contains_key(&first.name)
            {
                let span = self.names.all[&host.name].clone();
                problems.add(
                    Problem::at(span, format!("nothing joins `{}` and `{}`", first.name, host.name))
                        .label("in a part of the network of its own")
                        .help("add a `[[link]]` between the parts"),
                );
            }
            if host.address.0.is_ipv4() != first.address.0.is_ipv4() {
                let span = self.names.all[&host.name].clone();
                problems.add(
                    Problem::at(
                        span,
                        format!("`{}` and `{}` cannot speak to each other", first.name, host.name),
                    )
                    .label("an address of another family")
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
                        .label("the same again")
                        .help("give each host its own `address`"),
                );
            }
        }
    }
}
