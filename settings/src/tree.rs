//! Reading a TOML file with all of its mistakes: a [`Table`] knows which of its keys were asked for, so that what is left
//! over is reported, and a [`Value`] knows where it stands. Reading what is wrong records a [`Problem`] and gives
//! `None`, like reading what is not there, and the reading goes on: one run shows everything.

use crate::report::Problem;
use crate::words::{all_of, meant, one_of};
use core::cell::{Cell, RefCell};
use core::ops::{Range, RangeInclusive};
use toml::Spanned;
use toml::de::{DeString, DeTable, DeValue};

/// What the keys outside of any table stand in.
const ROOT: &str = "";

/// What was found wrong so far.
#[derive(Default)]
pub struct Problems {
    found: RefCell<Vec<Problem>>,
    unknown: RefCell<Vec<UnknownKey>>,
    /// Tables that were read, with the keys that they have
    known: RefCell<Vec<(String, Vec<&'static str>)>>,
    /// Those of functions that the file does not have
    others: RefCell<Vec<(String, Vec<&'static str>)>>,
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

    /// Whether anything was found so far
    pub fn are_there(&self) -> bool {
        !self.found.borrow().is_empty()
    }

    /// Learns which keys tables of functions have that are not there.
    pub fn know_tables_of(&self, other: Self) {
        self.others.borrow_mut().extend(other.known.into_inner());
    }

    /// Everything that was found. Keys that are unknown where they stand may belong into another table, so they are
    /// judged when all tables have been read.
    pub fn into_found(self) -> Vec<Problem> {
        let (mut known, others) = (self.known.into_inner(), self.others.into_inner());
        let in_file = known.len();
        known.extend(others);
        let mut found = self.found.into_inner();
        found.extend(self.unknown.into_inner().iter().map(|unknown| unknown.explain(&known, in_file)));
        found
    }
}

impl UnknownKey {
    /// Of the tables that are known, so many are in the file. The others are functions': what stands below a function or a
    /// port is not meant for them.
    fn explain(&self, known: &[(String, Vec<&'static str>)], in_file: usize) -> Problem {
        let Self { table, key, span, .. } = self;
        let keys: &[&str] = known.iter().find(|(name, _)| name == table).map_or(&[], |(_, keys)| keys);
        let at_top = table == ROOT || (table.starts_with('[') && !table.starts_with("[["));
        let candidates = if at_top { known } else { &known[..in_file] };
        let other = |name: &str| name != table && name != ROOT;
        let elsewhere = candidates.iter().find(|(name, keys)| other(name) && keys.contains(&key.as_str()));
        let close = meant(key, keys.iter().copied());
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
            let place = elsewhere.map_or(tables, |(table, _)| format!("`{table}`"));
            return Problem::at(span.clone(), format!("`{key}` stands outside of any table"))
                .label("belongs to no table")
                .help(format!("move it below the line {place}"));
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

/// Keys of the root that are lists of tables
const LISTS: [&str; 5] = ["port", "host", "switch", "link", "fault"];

/// The line that begins a table of the root, such as `[runtime]`.
pub fn header(key: &str) -> String {
    if LISTS.contains(&key) { format!("[[{key}]]") } else { format!("[{key}]") }
}

/// A table of the file, or one that is not there and has nothing but defaults.
pub struct Table<'a> {
    /// What messages call it, such as `[runtime]`
    name: String,
    /// Its header, or the whole of an inline table
    span: Option<Range<usize>>,
    entries: Option<&'a DeTable<'a>>,
    asked: RefCell<Vec<&'static str>>,
    problems: &'a Problems,
    /// Whether it was read to its end; a table that is dropped before would hide its unknown keys
    finished: Cell<bool>,
}

impl<'a> Table<'a> {
    /// The table of the whole file
    pub fn root(entries: &'a DeTable<'a>, problems: &'a Problems) -> Self {
        Self::new(ROOT, None, Some(entries), problems)
    }

    fn new(
        name: &str,
        span: Option<Range<usize>>,
        entries: Option<&'a DeTable<'a>>,
        problems: &'a Problems,
    ) -> Self {
        let asked = RefCell::default();
        Self { name: name.to_owned(), span, entries, asked, problems, finished: Cell::new(false) }
    }

    /// What messages call it
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Where problems go
    pub fn problems(&self) -> &'a Problems {
        self.problems
    }

    /// Begins a problem with this table: at its header, or of the file if it has none
    pub fn problem(&self, message: impl Into<String>) -> Problem {
        match &self.span {
            Some(span) => Problem::at(span.clone(), message),
            None => Problem::of_file(message),
        }
    }

    /// The value of a key. `example` is a value that may be written there, for messages.
    pub fn get(&self, key: &'static str, example: &'a str) -> Option<Value<'a>> {
        let mut asked = self.asked.borrow_mut();
        if !asked.contains(&key) {
            asked.push(key);
        }
        let (name, value) = self.entries?.get_key_value(key)?;
        Some(Value {
            name: format!("`{key}`"),
            key: Some((key, name.span())),
            example,
            span: value.span(),
            is: value.get_ref(),
            problems: self.problems,
        })
    }

    /// The value of a key that has to be there
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

    /// A number, or `default` where there is none (or a wrong one)
    pub fn number(&self, key: &'static str, range: RangeInclusive<u64>, default: u64) -> u64 {
        self.spanned_number(key, range, default).map_or(default, Spanned::into_inner)
    }

    /// A number and its place
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

    /// A power of two
    pub fn power_of_two(&self, key: &'static str, range: RangeInclusive<u64>, default: u64) -> u64 {
        let Some(number) = self.spanned_number(key, range.clone(), default) else { return default };
        let span = number.span();
        let number = number.into_inner();
        if !number.is_power_of_two() {
            let above = number.next_power_of_two();
            let near: Vec<_> =
                [above / 2, above].into_iter().filter(|n| range.contains(n)).map(|n| n.to_string()).collect();
            self.problems.add(
                Problem::at(span, format!("`{key}` has to be a power of two, and {number} is none"))
                    .label("not a power of two")
                    .help(format!("the nearest are {}", all_of(near))),
            );
            return default;
        }
        number
    }

    /// `true` or `false`
    pub fn boolean(&self, key: &'static str, default: bool) -> bool {
        let example = if default { "false" } else { "true" };
        self.get(key, example).and_then(|value| value.boolean()).unwrap_or(default)
    }

    /// Whether there is a table in it that nobody asked for, so far
    pub fn has_unknown_tables(&self) -> bool {
        let asked = self.asked.borrow();
        let unknown = |(key, value): (&Spanned<DeString<'_>>, &Spanned<DeValue<'_>>)| {
            is_table(value.get_ref()) && !asked.contains(&key.get_ref().as_ref())
        };
        self.entries.into_iter().flatten().any(unknown)
    }

    /// Reads no further, and judges no keys: which there are was not to be known.
    pub fn forget(self) {
        self.finished.set(true);
    }

    /// Reads no further: keys that nobody asked for are reported.
    pub fn finish(self) {
        self.finished.set(true);
        let asked = self.asked.take();
        for (key, value) in self.entries.into_iter().flatten() {
            if !asked.contains(&key.get_ref().as_ref()) {
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
            known.push((self.name.clone(), asked));
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
    /// What messages call it, such as `` `mtu` ``
    name: String,
    /// Its key and where that stands, unless it is an element of a list
    key: Option<(&'static str, Range<usize>)>,
    example: &'a str,
    span: Range<usize>,
    is: &'a DeValue<'a>,
    problems: &'a Problems,
}

impl<'a> Value<'a> {
    /// What messages call it
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The bytes of the value
    pub fn span(&self) -> Range<usize> {
        self.span.clone()
    }

    /// The bytes of its key; of the value, if it has none
    pub fn key_span(&self) -> Range<usize> {
        self.key.as_ref().map_or_else(|| self.span(), |(_, span)| span.clone())
    }

    /// The same value, with another example for messages
    #[must_use]
    pub fn like(self, example: &'a str) -> Self {
        Self { example, ..self }
    }

    /// Begins a problem with this value
    pub fn problem(&self, message: impl Into<String>) -> Problem {
        Problem::at(self.span(), message)
    }

    /// Records a problem
    pub fn add(&self, problem: Problem) {
        self.problems.add(problem);
    }

    /// `, such as` and an example, if there is one
    pub fn such_as(&self) -> String {
        if self.example.is_empty() {
            String::new()
        } else {
            format!(", such as {}", self.with_key(self.example))
        }
    }

    /// The value as it would be written with its key, if it has one
    fn with_key(&self, value: &str) -> String {
        match self.key {
            Some((key, _)) => format!("`{key} = {value}`"),
            None => format!("`{value}`"),
        }
    }

    fn wrong_type(&self, wanted: &str, help: String) {
        let is = kind(self.is);
        self.add(
            self.problem(format!("{} has to be {wanted}, and is {is}", self.name))
                .label(format!("this is {is}"))
                .help(help),
        );
    }

    /// A whole number
    pub fn number(&self, range: RangeInclusive<u64>, example: u64) -> Option<u64> {
        let example = example.to_string();
        let Some(integer) = self.is.as_integer() else {
            let quoted = self.is.as_str().filter(|text| text.parse::<u64>().is_ok());
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

    /// A number with or without a fraction
    pub fn fraction(&self, range: RangeInclusive<f64>) -> Option<f64> {
        let written = match self.is {
            DeValue::Float(float) => float.as_str(),
            DeValue::Integer(integer) if integer.radix() == 10 => integer.as_str(),
            _ => {
                let quoted = self.is.as_str().filter(|text| text.parse::<f64>().is_ok());
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

    /// `true` or `false`
    pub fn boolean(&self) -> Option<bool> {
        let boolean = self.is.as_bool();
        if boolean.is_none() {
            let example = match self.is.as_str() {
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

    /// `true` or `false`, if it is that; nothing is wrong if it is not
    pub fn boolean_if_any(&self) -> Option<bool> {
        self.is.as_bool()
    }

    /// Whether it is a whole number
    pub fn is_number(&self) -> bool {
        self.is.as_integer().is_some()
    }

    /// The elements of a list, or the value itself if it is none
    pub fn one_or_list(&self) -> Vec<Self> {
        self.list_if_any().unwrap_or_else(|| vec![self.clone()])
    }

    /// A string that is not empty
    pub fn text(&self) -> Option<&'a str> {
        let help = format!("write a string in quotes{}", self.such_as());
        match self.is.as_str() {
            Some("") => {
                self.add(self.problem(format!("{} is empty", self.name)).label("empty").help(help));
                None
            }
            None => {
                let help = match self.is {
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

    /// The string, if it is one; nothing is wrong if it is not
    pub fn text_if_any(&self) -> Option<&'a str> {
        self.is.as_str()
    }

    /// One of a few words
    pub fn word(&self, words: &[&'static str]) -> Option<&'static str> {
        let text = self.text()?;
        let known = words.iter().find(|word| **word == text).copied();
        if known.is_none() {
            let close = meant(text, words.iter().copied());
            let close = close.map(|close| format!("did you mean `{close}`? ")).unwrap_or_default();
            self.add(
                self.problem(format!("{} cannot be `{text}`", self.name))
                    .label("not a word that is known here")
                    .help(format!("{close}it can be {}", one_of(words))),
            );
        }
        known
    }

    /// A list
    pub fn list(&self) -> Option<Vec<Self>> {
        let list = self.list_if_any();
        if list.is_none() {
            self.wrong_type("a list", format!("write a list in brackets{}", self.such_as()));
        }
        list
    }

    /// The elements, if it is a list; nothing is wrong if it is not
    pub fn list_if_any(&self) -> Option<Vec<Self>> {
        let element = |value: &'a Spanned<DeValue<'a>>| Self {
            name: if self.key.is_some() { format!("an element of {}", self.name) } else { self.name.clone() },
            key: None,
            example: "",
            span: value.span(),
            is: value.get_ref(),
            ..self.clone()
        };
        Some(self.is.as_array()?.iter().map(element).collect())
    }

    /// A table; messages call it `name`
    pub fn table(&self, name: &str) -> Option<Table<'a>> {
        let Some(entries) = self.is.as_table() else {
            self.wrong_type("a table", format!("write a table in braces{}", self.such_as()));
            return None;
        };
        Some(Table::new(name, Some(self.span()), Some(entries), self.problems))
    }
}

/// A table of the root, or one without keys if it was left out; `None` if something else stands there.
pub fn section<'a>(root: &Table<'a>, key: &'static str) -> Option<Table<'a>> {
    let Some(value) = root.get(key, "") else { return Some(absent(key, root.problems)) };
    let name = header(key);
    if let Some(entries) = value.is.as_table() {
        return Some(Table::new(&name, Some(value.span()), Some(entries), root.problems));
    }
    root.problems.add(
        Problem::at(value.key_span(), format!("`{key}` has to be a table, and is {}", kind(value.is)))
            .label(format!("this is {}", kind(value.is)))
            .help(format!("begin it with the line `{name}`, in single brackets, and write its keys below")),
    );
    None
}

/// A table of the root that was left out.
pub fn absent<'a>(key: &str, problems: &'a Problems) -> Table<'a> {
    Table::new(&header(key), None, None, problems)
}

/// The tables of a list of tables of the root; none if it is not there, and `None` if it is something else.
pub fn sections<'a>(root: &Table<'a>, key: &'static str) -> Option<Vec<Table<'a>>> {
    subsections(root, key, &header(key))
}

/// The same for a list in any table, of which each element begins with the line `name`.
pub fn subsections<'a>(table: &Table<'a>, key: &'static str, name: &str) -> Option<Vec<Table<'a>>> {
    let Some(value) = table.get(key, "") else { return Some(Vec::new()) };
    let list = value.is.as_array().map(|list| list.iter().map(|v| (v.span(), v.get_ref().as_table())));
    let tables: Option<Vec<_>> =
        list.and_then(|list| list.map(|(span, table)| Some((span, table?))).collect());
    let Some(tables) = tables else {
        table.problems.add(
            Problem::at(value.key_span(), format!("`{key}` has to be a list of tables"))
                .label(format!("{}, not a list of tables", kind(value.is)))
                .help(format!(
                    "begin each with the line `{name}`, in double brackets, and write its keys below"
                )),
        );
        return None;
    };
    let element = |(span, entries)| Table::new(name, Some(span), Some(entries), table.problems);
    Some(tables.into_iter().map(element).collect())
}

/// Whether it is a table or a list of them.
fn is_table(value: &DeValue<'_>) -> bool {
    value.is_table()
        || value.as_array().is_some_and(|list| list.iter().any(|value| value.get_ref().is_table()))
}

/// What a value is, in words.
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
