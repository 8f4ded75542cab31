//! Problems of a file, collected while its tables are read.

use crate::report::Problem;
use crate::spec::TableSpec;
use crate::words::{all_of, closest, one_of};
use core::cell::RefCell;
use core::ops::Range;

/// Name of the root table
pub(crate) const ROOT: &str = "";

/// Problems found so far.
#[derive(Default)]
pub struct Problems {
    found: RefCell<Vec<Problem>>,
    unknown: RefCell<Vec<UnknownKey>>,
    /// Tables that were read, with their keys
    known: RefCell<Vec<(String, Vec<&'static str>)>>,
    /// Tables of functions that the file does not configure, with their keys
    unconfigured: RefCell<Vec<(String, Vec<&'static str>)>>,
}

/// A key that its table does not have.
pub(crate) struct UnknownKey {
    pub(crate) table: String,
    pub(crate) key: String,
    pub(crate) span: Range<usize>,
    pub(crate) is_table: bool,
}

impl Problems {
    /// Records a problem.
    pub fn add(&self, problem: Problem) {
        self.found.borrow_mut().push(problem);
    }

    /// Returns the number of problems found so far.
    pub fn count(&self) -> usize {
        self.found.borrow().len()
    }

    /// Returns whether any problem was found so far.
    pub fn any(&self) -> bool {
        !self.found.borrow().is_empty()
    }

    /// Adds the table of a function that the file does not configure, to recognise its keys elsewhere.
    pub fn add_absent(&self, table: &TableSpec) {
        self.unconfigured.borrow_mut().push((table.header.to_owned(), table.names()));
    }

    /// Records a key that its table does not have.
    pub(crate) fn add_unknown(&self, key: UnknownKey) {
        self.unknown.borrow_mut().push(key);
    }

    /// Records a table that was read, with the keys that it takes.
    pub(crate) fn add_read(&self, table: &str, keys: Vec<&'static str>) {
        let mut known = self.known.borrow_mut();
        if known.iter().all(|(name, _)| name != table) {
            known.push((table.to_owned(), keys));
        }
    }

    /// Returns all problems. Unknown keys are evaluated here, when all tables have been read, because they
    /// may belong to another table.
    pub fn into_found(self) -> Vec<Problem> {
        let (mut known, unconfigured) = (self.known.into_inner(), self.unconfigured.into_inner());
        let in_file = known.len();
        known.extend(unconfigured);
        let mut found = self.found.into_inner();
        found.extend(self.unknown.into_inner().iter().map(|unknown| unknown.explain(&known, in_file)));
        found
    }
}

impl UnknownKey {
    /// Returns the problem. The first `in_file` of the known tables are in the file; the others belong to
    /// functions, and keys below a function or a port are not meant for them.
    fn explain(&self, known: &[(String, Vec<&'static str>)], in_file: usize) -> Problem {
        let Self { table, key, span, .. } = self;
        let keys: &[&str] = known.iter().find(|(name, _)| name == table).map_or(&[], |(_, keys)| keys);
        let at_top = table == ROOT || (table.starts_with('[') && !table.starts_with("[["));
        let candidates = if at_top { known } else { &known[..in_file] };
        let other = |name: &str| name != table && name != ROOT;
        let elsewhere = candidates.iter().find(|(name, keys)| other(name) && keys.contains(&key.as_str()));
        let close = closest(key, keys.iter().copied());
        if table == ROOT {
            let tables = one_of(keys.iter().map(|table| header(table)));
            if self.is_table {
                let meant =
                    close.map(|close| format!("did you mean `{}`? ", header(close))).unwrap_or_default();
                return Problem::at(span.clone(), format!("there is no table `{key}`"))
                    .label("no such table")
                    .help(format!(
                        "{meant}the tables are {}",
                        all_of(keys.iter().map(|table| header(table)))
                    ));
            }
            let header_line = elsewhere.map_or(tables, |(table, _)| format!("`{table}`"));
            return Problem::at(span.clone(), format!("`{key}` stands outside of any table"))
                .label("not in a table")
                .help(format!("move it below the line {header_line}"));
        }
        let problem = Problem::at(span.clone(), format!("there is no key `{key}` in {table}"))
            .label(format!("not a key of {table}"));
        let keys = match keys {
            [] => format!("{table} takes no keys"),
            keys => format!("{table} takes {}", all_of(keys)),
        };
        match (elsewhere, close) {
            (Some((other, _)), _) => problem.help(format!("`{key}` belongs to {other}: move it there")),
            (None, Some(close)) => problem.help(format!("did you mean `{close}`? {keys}")),
            (None, None) => problem.help(keys),
        }
    }
}

/// Keys of the root that are arrays of tables
const LISTS: [&str; 5] = ["port", "host", "switch", "link", "fault"];

/// Returns the line that begins a table of the root, such as `[runtime]`.
pub fn header(key: &str) -> String {
    if LISTS.contains(&key) { format!("[[{key}]]") } else { format!("[{key}]") }
}
