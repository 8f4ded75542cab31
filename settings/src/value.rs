//! Values of a file, with their positions.

use crate::problems::Problems;
use crate::report::Problem;
use crate::spec::{Absent, Kind, Spec};
use crate::words::{all_of, closest, one_of};
use core::ops::{Range, RangeInclusive};
use toml::Spanned;
use toml::de::DeValue;

/// A value of the file.
#[derive(Clone)]
pub struct Value<'a> {
    /// Name in messages, such as `` `mtu` ``
    pub(crate) name: String,
    /// Key and its byte range; `None` for an element of a list
    pub(crate) key: Option<(&'static str, Range<usize>)>,
    pub(crate) example: &'a str,
    pub(crate) kind: Kind,
    pub(crate) span: Range<usize>,
    pub(crate) parsed: &'a DeValue<'a>,
    pub(crate) problems: &'a Problems,
}

impl<'a> Value<'a> {
    /// Evaluates a key's default, as if it stood in the file. `None` if it is invalid.
    pub(crate) fn of_default<T>(spec: &Spec, read: impl FnOnce(&Value<'_>) -> Option<T>) -> Option<T> {
        let Absent::Default(text) = spec.absent else { return None };
        let parsed = DeValue::parse(text).ok()?;
        let problems = Problems::default();
        let (name, kind, span) = (format!("`{}`", spec.name), spec.kind, parsed.span());
        read(&Value {
            name,
            key: None,
            example: "",
            kind,
            span,
            parsed: parsed.get_ref(),
            problems: &problems,
        })
    }

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

    /// Replaces the range, by one that depends on other keys.
    #[must_use]
    pub fn with_kind(self, kind: Kind) -> Self {
        Self { kind, ..self }
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

    /// Records that the value is none of the wanted type.
    pub(crate) fn wrong_type(&self, wanted: &str, help: String) {
        let found = kind(self.parsed);
        self.add(
            self.problem(format!("{} has to be {wanted}, and is {found}", self.name))
                .label(format!("this is {found}"))
                .help(help),
        );
    }

    /// Returns an integer in `range`. `example` is a valid one, for messages.
    pub fn whole_in(&self, range: RangeInclusive<u64>, example: &str) -> Option<u64> {
        let Some(integer) = self.parsed.as_integer() else {
            let quoted = self.parsed.as_str().filter(|text| text.parse::<u64>().is_ok());
            self.wrong_type(
                "a whole number",
                match quoted {
                    Some(number) => format!("leave out the quotes: {}", self.with_key(number)),
                    None => format!("write a number such as {}", self.with_key(example)),
                },
            );
            return None;
        };
        let number = u64::from_str_radix(integer.as_str(), integer.radix()).ok();
        if number.is_none_or(|number| !range.contains(&number)) {
            let (first, last) = range.into_inner();
            self.add(
                self.problem(format!("{} cannot be {integer}", self.name)).label("out of range").help(
                    format!("write a number from {first} to {last}, such as {}", self.with_key(example)),
                ),
            );
            return None;
        }
        number
    }

    /// Returns an integer in the key's range.
    pub fn whole(&self) -> Option<u64> {
        self.whole_like(self.example)
    }

    /// Returns an integer in the key's range. `example` is a valid one, for messages.
    pub fn whole_like(&self, example: &str) -> Option<u64> {
        match self.kind {
            Kind::Whole(first, last) | Kind::PowerOfTwo(first, last) | Kind::Wholes(first, last) => {
                self.whole_in(first..=last, example)
            }
            _ => self.whole_in(0..=u64::MAX, example),
        }
    }

    /// Returns a power of two in the key's range.
    pub fn power_of_two(&self) -> Option<u64> {
        let number = self.whole()?;
        let Kind::PowerOfTwo(first, last) = self.kind else { return Some(number) };
        if number.is_power_of_two() {
            return Some(number);
        }
        let above = number.next_power_of_two();
        let near = [above / 2, above].into_iter().filter(|near| (first..=last).contains(near));
        let near: Vec<_> = near.map(|near| near.to_string()).collect();
        self.add(
            self.problem(format!("{} has to be a power of two, but is {number}", self.name))
                .label("not a power of two")
                .help(format!("the nearest are {}", all_of(near))),
        );
        None
    }

    /// Returns a number with or without a fraction in the key's range.
    pub fn fraction(&self) -> Option<f64> {
        match self.kind {
            Kind::Number(first, last) | Kind::Drawn(first, last) => self.fraction_in(first..=last),
            _ => self.fraction_in(f64::MIN..=f64::MAX),
        }
    }

    /// Reads each element of a list with `read`. `None` if one is invalid.
    pub fn list_of<T>(&self, read: impl FnMut(&Self) -> Option<T>) -> Option<Vec<T>> {
        // All elements are read, so that the problems of each are reported.
        let elements: Vec<_> = self.list()?.iter().map(read).collect();
        elements.into_iter().collect()
    }

    /// Returns a number with or without a fraction in `range`.
    fn fraction_in(&self, range: RangeInclusive<f64>) -> Option<f64> {
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
            let such_as = if matches!(self.kind, Kind::Drawn(..)) { String::new() } else { self.such_as() };
            self.add(
                self.problem(format!("{} cannot be {written}", self.name))
                    .label("out of range")
                    .help(format!("write a number from {first} to {last}{such_as}")),
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
            // The only element of the list's example is one for each element.
            example: match self.kind {
                Kind::List(_) => self.example.trim_start_matches('[').trim_end_matches(']'),
                _ => "",
            },
            span: value.span(),
            parsed: value.get_ref(),
            ..self.clone()
        };
        Some(self.parsed.as_array()?.iter().map(element).collect())
    }
}

/// Returns the kind of a value, for messages.
pub(crate) fn kind(value: &DeValue<'_>) -> &'static str {
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
