//! Reading a TOML file and reporting all of its problems. A [`Table`] records which keys were requested, so
//! that the remaining keys are reported as unknown; a [`Value`] carries its position. Reading an invalid
//! value records a [`Problem`] and returns `None`, as for a missing value, and reading continues: one run
//! reports everything.

use crate::report::Problem;
use crate::words::{all_of, closest, one_of};
use core::cell::{Cell, RefCell};
use core::ops::{Range, RangeInclusive};
use toml::Spanned;
use toml::de::{DeString, DeTable, DeValue};

/// Name of the root table
const ROOT: &str = "";

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

struct UnknownKey {
    table: String,
    key: String,
    span: Range<usize>,
    is_table: bool,
}

impl Problems {
    /// Records a problem.
    pub fn add(&self, problem: Problem) {
        self.found.borrow_mut().push(problem);
    }

    /// Returns whether any problem was found so far.
    pub fn any(&self) -> bool {
        !self.found.borrow().is_empty()
    }

    /// Adds the tables, with their keys, of functions that the file does not configure.
    pub fn add_known_tables(&self, other: Self) {
        self.unconfigured.borrow_mut().extend(other.known.into_inner());
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

/// A table of the file, or a table with default values only if the file does not contain it.
pub struct Table<'a> {
    /// Name in messages, such as `[runtime]`
    name: String,
    /// Byte range of the header, or of the whole of an inline table
    span: Option<Range<usize>>,
    entries: Option<&'a DeTable<'a>>,
    requested: RefCell<Vec<&'static str>>,
    problems: &'a Problems,
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
        let requested = RefCell::default();
        Self { name: name.to_owned(), span, entries, requested, problems, finished: Cell::new(false) }
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

    /// Returns the value of a key. `example` is a valid value, for messages.
    pub fn get(&self, key: &'static str, example: &'a str) -> Option<Value<'a>> {
        let mut requested = self.requested.borrow_mut();
        if !requested.contains(&key) {
            requested.push(key);
        }
        let (name, value) = self.entries?.get_key_value(key)?;
        Some(Value {
            name: format!("`{key}`"),
            key: Some((key, name.span())),
            example,
            span: value.span(),
            parsed: value.get_ref(),
            problems: self.problems,
        })
    }

    /// Returns the value of a required key, and reports a missing key.
    pub fn require(&self, key: &'static str, example: &'a str) -> Option<Value<'a>> {
        let value = self.get(key, example);
        if value.is_none() {
            self.problems.add(
                self.problem(format!("{} has no `{key}`", self.name))
                    .label(format!("`{key}` is missing"))
                    .help(format!("add `{key} = {example}`")),
            );
        }
        value
    }

    /// Returns a number, or `default` if the key is missing or its value is invalid.
    pub fn number(&self, key: &'static str, range: RangeInclusive<u64>, default: u64) -> u64 {
        self.spanned_number(key, range, default).map_or(default, Spanned::into_inner)
    }

    /// Returns a number with its byte range.
    pub fn spanned_number(
        &self,
        key: &'static str,
        range: RangeInclusive<u64>,
        example: u64,
    ) -> Option<Spanned<u64>> {
        let value = self.get(key, "")?;
        let span = value.span();
        Some(Spanned::new(span, value.number(range, example)?))
    }

    /// Returns a power of two, or `default` if the key is missing or its value is invalid.
    pub fn power_of_two(&self, key: &'static str, range: RangeInclusive<u64>, default: u64) -> u64 {
        let Some(number) = self.spanned_number(key, range.clone(), default) else { return default };
        let span = number.span();
        let number = number.into_inner();
        if !number.is_power_of_two() {
            let above = number.next_power_of_two();
            let near: Vec<_> =
                [above / 2, above].into_iter().filter(|n| range.contains(n)).map(|n| n.to_string()).collect();
            self.problems.add(
                Problem::at(span, format!("`{key}` has to be a power of two, but is {number}"))
                    .label("not a power of two")
                    .help(format!("the nearest are {}", all_of(near))),
            );
            return default;
        }
        number
    }

    /// Returns a boolean, or `default` if the key is missing or its value is invalid.
    pub fn boolean(&self, key: &'static str, default: bool) -> bool {
        let example = if default { "false" } else { "true" };
        self.get(key, example).and_then(|value| value.boolean()).unwrap_or(default)
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

    /// Ends reading and reports keys that were not requested.
    pub fn finish(self) {
        self.finished.set(true);
        let requested = self.requested.take();
        for (key, value) in self.entries.into_iter().flatten() {
            if !requested.contains(&key.get_ref().as_ref()) {
                self.problems.unknown.borrow_mut().push(UnknownKey {
                    table: self.name.clone(),
                    key: key.get_ref().to_string(),
                    span: key.span(),
                    is_table: is_table(value.get_ref()),
                });
            }
        }
        let mut known = self.problems.known.borrow_mut();
        if known.iter().all(|(name, _)| *name != self.name) {
            known.push((self.name.clone(), requested));
        }
    }
}

impl Drop for Table<'_> {
    fn drop(&mut self) {
        debug_assert!(self.finished.get() || std::thread::panicking(), "{} was not finished", self.name);
    }
}

/// A value of the file.
#[derive(Clone)]
pub struct Value<'a> {
    /// Name in messages, such as `` `mtu` ``
    name: String,
    /// Key and its byte range; `None` for an element of a list
    key: Option<(&'static str, Range<usize>)>,
    example: &'a str,
    span: Range<usize>,
    parsed: &'a DeValue<'a>,
    problems: &'a Problems,
}

impl<'a> Value<'a> {
    /// Name in messages
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Byte range of the value
    pub fn span(&self) -> Range<usize> {
        self.span.clone()
    }

    /// Byte range of the key, or of the value if it has no key
    pub fn key_span(&self) -> Range<usize> {
        self.key.as_ref().map_or_else(|| self.span(), |(_, span)| span.clone())
    }

    /// Replaces the example for messages.
    #[must_use]
    pub fn with_example(self, example: &'a str) -> Self {
        Self { example, ..self }
    }

    /// Returns a new problem of this value.
    pub fn problem(&self, message: impl Into<String>) -> Problem {
        Problem::at(self.span(), message)
    }

    /// Records a problem.
    pub fn add(&self, problem: Problem) {
        self.problems.add(problem);
    }

    /// Returns `, such as` and the example, or nothing if there is no example.
    pub fn such_as(&self) -> String {
        if self.example.is_empty() {
            String::new()
        } else {
            format!(", such as {}", self.with_key(self.example))
        }
    }

    /// Returns `value` as it would be written with the key, if there is one.
    fn with_key(&self, value: &str) -> String {
        match self.key {
            Some((key, _)) => format!("`{key} = {value}`"),
            None => format!("`{value}`"),
        }
    }

    fn wrong_type(&self, wanted: &str, help: String) {
        let found = kind(self.parsed);
        self.add(
            self.problem(format!("{} has to be {wanted}, and is {found}", self.name))
                .label(format!("this is {found}"))
                .help(help),
        );
    }

    /// Returns an integer in `range`.
    pub fn number(&self, range: RangeInclusive<u64>, example: u64) -> Option<u64> {
        let example = example.to_string();
        let Some(integer) = self.parsed.as_integer() else {
            let quoted = self.parsed.as_str().filter(|text| text.parse::<u64>().is_ok());
            self.wrong_type(
                "a whole number",
                match quoted {
                    Some(number) => format!("leave out the quotes: {}", self.with_key(number)),
                    None => format!("write a number such as {}", self.with_key(&example)),
                },
            );
            return None;
        };
        let number = u64::from_str_radix(integer.as_str(), integer.radix()).ok();
        if number.is_none_or(|number| !range.contains(&number)) {
            let (first, last) = range.into_inner();
            self.add(
                self.problem(format!("{} cannot be {integer}", self.name)).label("out of range").help(
                    format!("write a number from {first} to {last}, such as {}", self.with_key(&example)),
                ),
            );
            return None;
        }
        number
    }

    /// Returns a number with or without a fraction in `range`.
    pub fn fraction(&self, range: RangeInclusive<f64>) -> Option<f64> {
        let written = match self.parsed {
            DeValue::Float(float) => float.as_str(),
            DeValue::Integer(integer) if integer.radix() == 10 => integer.as_str(),
            _ => {
                let quoted = self.parsed.as_str().filter(|text| text.parse::<f64>().is_ok());
                self.wrong_type(
                    "a number",
                    match quoted {
                        Some(number) => format!("leave out the quotes: {}", self.with_key(number)),
                        None => format!("write a number such as {}", self.with_key(self.example)),
                    },
                );
                return None;
            }
        };
        let number = written.parse().ok().filter(|number| range.contains(number));
        if number.is_none() {
            let (first, last) = range.into_inner();
            self.add(
                self.problem(format!("{} cannot be {written}", self.name))
                    .label("out of range")
                    .help(format!("write a number from {first} to {last}{}", self.such_as())),
            );
        }
        number
    }

    /// Returns a boolean.
    pub fn boolean(&self) -> Option<bool> {
        let boolean = self.parsed.as_bool();
        if boolean.is_none() {
            let example = match self.parsed.as_str() {
                Some(text @ ("true" | "false")) => text,
                _ => self.example,
            };
            self.wrong_type(
                "`true` or `false`",
                format!("write `true` or `false` without quotes: {}", self.with_key(example)),
            );
        }
        boolean
    }

    /// Returns the value if it is a boolean; reports no problem otherwise.
    pub fn boolean_if_any(&self) -> Option<bool> {
        self.parsed.as_bool()
    }

    /// Returns whether the value is an integer.
    pub fn is_number(&self) -> bool {
        self.parsed.as_integer().is_some()
    }

    /// Returns the elements of a list, or the value itself if it is not a list.
    pub fn one_or_list(&self) -> Vec<Self> {
        self.list_if_any().unwrap_or_else(|| vec![self.clone()])
    }

    /// Returns a non-empty string.
    pub fn text(&self) -> Option<&'a str> {
        let help = format!("write a string in quotes{}", self.such_as());
        match self.parsed.as_str() {
            Some("") => {
                self.add(self.problem(format!("{} is empty", self.name)).label("empty").help(help));
                None
            }
            None => {
                let help = match self.parsed {
                    DeValue::Integer(number) => {
                        format!("put it in quotes: {}", self.with_key(&format!("\"{number}\"")))
                    }
                    _ => help,
                };
                self.wrong_type("a string in quotes", help);
                None
            }
            text => text,
        }
    }

    /// Returns the value if it is a string; reports no problem otherwise.
    pub fn text_if_any(&self) -> Option<&'a str> {
        self.parsed.as_str()
    }

    /// Returns the one of `words` that the value equals.
    pub fn word(&self, words: &[&'static str]) -> Option<&'static str> {
        let text = self.text()?;
        let known = words.iter().find(|word| **word == text).copied();
        if known.is_none() {
            let close = closest(text, words.iter().copied());
            let close = close.map(|close| format!("did you mean `{close}`? ")).unwrap_or_default();
            self.add(
                self.problem(format!("{} cannot be `{text}`", self.name))
                    .label("not a valid value")
                    .help(format!("{close}it can be {}", one_of(words))),
            );
        }
        known
    }

    /// Returns the elements of a list.
    pub fn list(&self) -> Option<Vec<Self>> {
        let list = self.list_if_any();
        if list.is_none() {
            self.wrong_type("a list", format!("write a list in brackets{}", self.such_as()));
        }
        list
    }

    /// Returns the elements if the value is a list; reports no problem otherwise.
    pub fn list_if_any(&self) -> Option<Vec<Self>> {
        let element = |value: &'a Spanned<DeValue<'a>>| Self {
            name: if self.key.is_some() { format!("an element of {}", self.name) } else { self.name.clone() },
            key: None,
            example: "",
            span: value.span(),
            parsed: value.get_ref(),
            ..self.clone()
        };
        Some(self.parsed.as_array()?.iter().map(element).collect())
    }

    /// Returns the value as a table, whose name in messages is `name`.
    pub fn table(&self, name: &str) -> Option<Table<'a>> {
        let Some(entries) = self.parsed.as_table() else {
            self.wrong_type("a table", format!("write a table in braces{}", self.such_as()));
            return None;
        };
        Some(Table::new(name, Some(self.span()), Some(entries), self.problems))
    }
}

/// Returns a table of the root, or an empty one if it is missing; `None` if the value is not a table.
pub fn section<'a>(root: &Table<'a>, key: &'static str) -> Option<Table<'a>> {
    let Some(value) = root.get(key, "") else { return Some(absent(key, root.problems)) };
    let name = header(key);
    if let Some(entries) = value.parsed.as_table() {
        return Some(Table::new(&name, Some(value.span()), Some(entries), root.problems));
    }
    root.problems.add(
        Problem::at(value.key_span(), format!("`{key}` has to be a table, and is {}", kind(value.parsed)))
            .label(format!("this is {}", kind(value.parsed)))
            .help(format!("begin it with the line `{name}`, in single brackets, and write its keys below")),
    );
    None
}

/// Returns an empty table in place of a missing table of the root.
pub fn absent<'a>(key: &str, problems: &'a Problems) -> Table<'a> {
    Table::new(&header(key), None, None, problems)
}

/// Returns the tables of an array of tables of the root; empty if it is missing, `None` if the value is
/// something else.
pub fn sections<'a>(root: &Table<'a>, key: &'static str) -> Option<Vec<Table<'a>>> {
    subsections(root, key, &header(key))
}

/// Returns the tables of an array of tables in any table; each element begins with the line `name`.
pub fn subsections<'a>(table: &Table<'a>, key: &'static str, name: &str) -> Option<Vec<Table<'a>>> {
    let Some(value) = table.get(key, "") else { return Some(Vec::new()) };
    let list = value.parsed.as_array().map(|list| list.iter().map(|v| (v.span(), v.get_ref().as_table())));
    let tables: Option<Vec<_>> =
        list.and_then(|list| list.map(|(span, table)| Some((span, table?))).collect());
    let Some(tables) = tables else {
        table.problems.add(
            Problem::at(value.key_span(), format!("`{key}` has to be a list of tables"))
                .label(format!("{}, not a list of tables", kind(value.parsed)))
                .help(format!(
                    "begin each with the line `{name}`, in double brackets, and write its keys below"
                )),
        );
        return None;
    };
    let element = |(span, entries)| Table::new(name, Some(span), Some(entries), table.problems);
    Some(tables.into_iter().map(element).collect())
}

/// Returns whether a value is a table or an array of tables.
fn is_table(value: &DeValue<'_>) -> bool {
    value.is_table()
        || value.as_array().is_some_and(|list| list.iter().any(|value| value.get_ref().is_table()))
}

/// Returns the kind of a value, for messages.
fn kind(value: &DeValue<'_>) -> &'static str {
    match value {
        DeValue::String(_) => "a string",
        DeValue::Integer(_) => "a whole number",
        DeValue::Float(_) => "a number with a fraction",
        DeValue::Boolean(_) => "`true` or `false`",
        DeValue::Datetime(_) => "a date or time",
        DeValue::Array(_) => "a list",
        DeValue::Table(_) => "a table",
    }
}
