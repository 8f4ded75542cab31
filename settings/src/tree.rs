//! Reading a TOML file and reporting all of its problems. A [`Table`] records which keys were requested, so
//! that the remaining keys are reported as unknown; a [`Value`] carries its position. Reading an invalid
//! value records a [`Problem`] and returns `None`, as for a missing value, and reading continues: one run
//! reports everything.

pub use crate::problems::{Problems, header};
pub use crate::value::Value;

use crate::declare::{Absent, Key, Kind, Optional, Presence, Spec, TableSpec};
use crate::problems::{ROOT, UnknownKey};
use crate::report::Problem;
use crate::value::kind;
use core::cell::{Cell, RefCell};
use core::ops::Range;
use toml::Spanned;
use toml::de::{DeString, DeTable, DeValue};

/// A table of the file, or a table with default values only if the file does not contain it.
pub struct Table<'a> {
    /// Name in messages, such as `[runtime]`
    name: String,
    /// Byte range of the header, or of the whole of an inline table
    span: Option<Range<usize>>,
    entries: Option<&'a DeTable<'a>>,
    requested: RefCell<Vec<&'static str>>,
    problems: &'a Problems,
    /// Declaration of the table; the root has none
    spec: Option<&'static TableSpec>,
    /// Whether `finish` or `discard` was called; dropping a table before would hide its unknown keys
    finished: Cell<bool>,
}

impl<'a> Table<'a> {
    /// Returns the root table of the file.
    pub fn root(entries: &'a DeTable<'a>, problems: &'a Problems) -> Self {
        Self::new(ROOT, None, Some(entries), problems)
    }

    fn new(
        name: &str,
        span: Option<Range<usize>>,
        entries: Option<&'a DeTable<'a>>,
        problems: &'a Problems,
    ) -> Self {
        let (requested, finished) = (RefCell::default(), Cell::new(false));
        Self { name: name.to_owned(), span, entries, requested, problems, spec: None, finished }
    }

    /// Name in messages
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Where problems are recorded
    pub fn problems(&self) -> &'a Problems {
        self.problems
    }

    /// Returns a new problem of this table: at its header, or of the file if the table has none.
    pub fn problem(&self, message: impl Into<String>) -> Problem {
        match &self.span {
            Some(span) => Problem::at(span.clone(), message),
            None => Problem::of_file(message),
        }
    }

    /// Returns the value of a declared key. Reports a missing key that is required, once.
    pub fn value<T, P>(&self, key: Key<T, P>) -> Option<Value<'a>> {
        let Spec { name, kind, absent, .. } = key.spec;
        let example = match (kind, absent) {
            // Writing a boolean changes it.
            (Kind::Boolean, Absent::Default("true")) => "false",
            (Kind::Boolean, Absent::Default(_)) => "true",
            _ => key.spec.example,
        };
        let is_first = !self.requested.borrow().contains(&name);
        let value = self.get(name, example).map(|value| Value { kind, ..value });
        if value.is_none() && is_first && absent == Absent::Required {
            self.report_missing(name, example);
        }
        value
    }

    /// Reports that an optional key is missing, in a table whose other keys require it.
    pub fn require_here<T>(&self, key: Key<T, Optional>) {
        if self.value(key).is_none() {
            self.report_missing(key.spec.name, key.spec.example);
        }
    }

    fn report_missing(&self, name: &str, example: &str) {
        self.problems.add(
            self.problem(format!("{} has no `{name}`", self.name))
                .label(format!("`{name}` is missing"))
                .help(format!("add `{name} = {example}`")),
        );
    }

    /// Reads a declared key: its value, or its default if it is missing or invalid.
    pub fn read<T, P: Presence>(&self, key: Key<T, P>) -> P::Output<T> {
        P::output(self.value(key).and_then(|value| key.parse(&value)), || key.default_value())
    }

    /// Reads a declared key with its byte range; `None` if it is missing or invalid.
    pub fn spanned<T, P>(&self, key: Key<T, P>) -> Option<Spanned<T>> {
        let value = self.value(key)?;
        Some(Spanned::new(value.span(), key.parse(&value)?))
    }

    /// Returns the byte range of a declared key's value.
    pub fn span_of<T, P>(&self, key: Key<T, P>) -> Option<Range<usize>> {
        self.value(key).map(|value| value.span())
    }

    /// Returns a table of the root, or an empty one if it is missing; `None` if the value is not a table.
    pub fn section(&self, spec: &'static TableSpec) -> Option<Self> {
        let key = spec.key();
        let Some(value) = self.get(key, "") else { return Some(Self::absent(spec, self.problems)) };
        if let Some(entries) = value.parsed.as_table() {
            let table = Self::new(spec.header, Some(value.span()), Some(entries), self.problems);
            return Some(table.declared(spec));
        }
        let found = kind(value.parsed);
        let problem = Problem::at(value.key_span(), format!("`{key}` has to be a table, and is {found}"));
        let begin = format!("begin it with the line `{}`", spec.header);
        self.problems.add(
            problem
                .label(format!("this is {found}"))
                .help(format!("{begin}, in single brackets, and write its keys below")),
        );
        None
    }

    /// Returns a table of the root that may be missing; `None` if it is, or if the value is not a table.
    pub fn optional_section(&self, spec: &'static TableSpec) -> Option<Self> {
        if self.has(spec) {
            return self.section(spec);
        }
        self.problems.add_absent(spec);
        None
    }

    /// Sets the declaration.
    fn declared(mut self, spec: impl Into<Option<&'static TableSpec>>) -> Self {
        self.spec = spec.into();
        self
    }

    /// Returns an empty table in place of a missing one.
    pub fn absent(spec: &'static TableSpec, problems: &'a Problems) -> Self {
        Self::new(spec.header, None, None, problems).declared(spec)
    }

    /// Returns the tables of an array of tables of the root; empty if it is missing, `None` if the value is
    /// something else.
    pub fn sections(&self, spec: &'static TableSpec) -> Option<Vec<Self>> {
        self.array(spec.key(), spec.header, spec)
    }

    /// Returns the tables of an array of tables, each of which begins with the line `header`.
    fn array(&self, key: &'static str, header: &str, spec: &'static TableSpec) -> Option<Vec<Self>> {
        let Some(value) = self.get(key, "") else { return Some(Vec::new()) };
        let list = value.parsed.as_array().into_iter().flatten();
        let tables: Option<Vec<_>> = list.map(|v| Some((v.span(), v.get_ref().as_table()?))).collect();
        let Some(tables) = tables.filter(|_| value.parsed.is_array()) else {
            self.problems.add(
                Problem::at(value.key_span(), format!("`{key}` has to be a list of tables"))
                    .label(format!("{}, not a list of tables", kind(value.parsed)))
                    .help(format!(
                        "begin each with the line `{header}`, in double brackets, and write its keys below"
                    )),
            );
            return None;
        };
        let table = |(span, entries)| Self::new(header, Some(span), Some(entries), self.problems);
        Some(tables.into_iter().map(|found| table(found).declared(spec)).collect())
    }

    /// Returns the tables of a declared key, each with its header; empty if there are none, `None` if the value
    /// is something else.
    pub fn tables<P>(&self, key: Key<(), P>) -> Option<Vec<Self>> {
        let Kind::Tables(spec) = key.spec.kind else { return Some(Vec::new()) };
        self.array(key.spec.name, spec.header, spec)
    }

    /// Returns the tables of a declared key, each of which begins with the line `header`.
    pub fn tables_named<P>(&self, key: Key<(), P>, header: &str) -> Option<Vec<Self>> {
        let Kind::Tables(spec) = key.spec.kind else { return Some(Vec::new()) };
        self.array(key.spec.name, header, spec)
    }

    /// Returns whether the root has a table.
    pub fn has(&self, spec: &'static TableSpec) -> bool {
        self.header_span(spec).is_some()
    }

    /// Returns the byte range of the key in the header of a table of the root, if it is there.
    pub fn header_span(&self, spec: &'static TableSpec) -> Option<Range<usize>> {
        self.get(spec.key(), "").map(|value| value.key_span())
    }

    /// Returns the table in braces of a declared key.
    pub fn inline<T, P>(&self, key: Key<T, P>) -> Option<Self> {
        self.value(key)?.inline()
    }

    /// Returns the value of a key. `example` is a valid value, for messages.
    fn get(&self, key: &'static str, example: &'a str) -> Option<Value<'a>> {
        let mut requested = self.requested.borrow_mut();
        if !requested.contains(&key) {
            requested.push(key);
        }
        let (name, value) = self.entries?.get_key_value(key)?;
        Some(Value {
            name: format!("`{key}`"),
            key: Some((key, name.span())),
            example,
            kind: Kind::Other(""),
            span: value.span(),
            parsed: value.get_ref(),
            problems: self.problems,
        })
    }

    /// Returns whether the table contains a table that was not requested so far.
    pub fn has_unknown_tables(&self) -> bool {
        let requested = self.requested.borrow();
        let unknown = |(key, value): (&Spanned<DeString<'_>>, &Spanned<DeValue<'_>>)| {
            is_table(value.get_ref()) && !requested.contains(&key.get_ref().as_ref())
        };
        self.entries.into_iter().flatten().any(unknown)
    }

    /// Ends reading without reporting unknown keys, for tables whose valid keys could not be determined.
    pub fn discard(self) {
        self.finished.set(true);
    }

    /// Ends reading and reports keys that are not declared.
    pub fn finish(self) {
        let keys = match self.spec {
            Some(spec) => spec.names(),
            None => self.requested.take(),
        };
        self.finish_with(keys);
    }

    /// Ends reading and reports keys that were not read, for tables in which one key determines the others.
    pub fn finish_read(self) {
        let mut keys = self.requested.take();
        if let Some(spec) = self.spec {
            let declared = spec.names();
            keys.sort_by_key(|name| declared.iter().position(|key| key == name));
        }
        self.finish_with(keys);
    }

    /// Ends reading and reports keys other than these.
    fn finish_with(self, keys: Vec<&'static str>) {
        self.finished.set(true);
        for (key, value) in self.entries.into_iter().flatten() {
            if !keys.contains(&key.get_ref().as_ref()) {
                self.problems.add_unknown(UnknownKey {
                    table: self.name.clone(),
                    key: key.get_ref().to_string(),
                    span: key.span(),
                    is_table: is_table(value.get_ref()),
                });
            }
        }
        self.problems.add_read(&self.name, keys);
    }
}

impl<'a> Value<'a> {
    /// Returns the table that the key declares.
    const fn declared_table(&self) -> Option<&'static TableSpec> {
        match self.kind {
            Kind::Table(spec, _) | Kind::List(spec) | Kind::Tables(spec) => Some(spec),
            _ => None,
        }
    }

    /// Returns the value as a table in braces, as its key declares it.
    pub fn inline(&self) -> Option<Table<'a>> {
        self.table(self.declared_table().map_or(&self.name, |spec| spec.header))
    }

    /// Returns the value as a table, whose name in messages is `name`.
    pub fn table(&self, name: &str) -> Option<Table<'a>> {
        let Some(entries) = self.parsed.as_table() else {
            self.wrong_type("a table", format!("write a table in braces{}", self.such_as()));
            return None;
        };
        let table = Table::new(name, Some(self.span()), Some(entries), self.problems);
        Some(table.declared(self.declared_table()))
    }
}

impl Drop for Table<'_> {
    fn drop(&mut self) {
        debug_assert!(self.finished.get() || std::thread::panicking(), "{} was not finished", self.name);
    }
}

/// Returns whether a value is a table or an array of tables.
fn is_table(value: &DeValue<'_>) -> bool {
    value.is_table()
        || value.as_array().is_some_and(|list| list.iter().any(|value| value.get_ref().is_table()))
}
