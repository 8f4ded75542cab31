//! What declarations of keys say to readers: the reference page, commented example files, and the values that
//! a file sets.

use crate::declare::{Absent, Declared, Kind, Spec, TableSpec};
use crate::words::all_of;
use core::fmt::Write;
use toml::de::DeTable;

/// Widest line of an example file and of a summary, in characters
const WIDTH: usize = 100;

/// Returns the text of a doc comment as one line.
fn line(help: &str) -> String {
    help.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Describes the values that a key takes, with their range and unit.
pub fn values(key: &dyn Declared) -> String {
    let Spec { kind, unit, .. } = key.spec();
    let text = match *kind {
        Kind::Whole(first, last) => format!("whole number{}", range(first, last, u64::MAX)),
        Kind::PowerOfTwo(first, last) => format!("power of two{}", range(first, last, u64::MAX)),
        Kind::Wholes(first, last) => {
            format!("whole number or list of them{}", range(first, last, u64::MAX))
        }
        Kind::Number(first, last) => format!("number{}", range(first, last, f64::MAX)),
        Kind::Drawn(first, last) => format!("number or `[least, greatest]`{}", range(first, last, f64::MAX)),
        Kind::Boolean => "`true` or `false`".into(),
        Kind::Word => {
            let words: Vec<_> = key.words().iter().map(|word| format!("`\"{word}\"`")).collect();
            words.join(", ")
        }
        Kind::Other(what) => what.into(),
        Kind::Table(_, "") => "table in braces".into(),
        Kind::Table(_, what) => format!("{what}, or a table in braces"),
        Kind::List(_) => "list of tables in braces".into(),
        Kind::Tables(_) => "tables".into(),
    };
    if unit.is_empty() { text } else { format!("{text}, in {unit}") }
}

/// Describes a range; `most` is the largest number of the type, which needs no mention.
fn range<T: Copy + PartialEq + core::fmt::Display>(first: T, last: T, most: T) -> String {
    if last == most { String::new() } else { format!(" from {first} to {last}") }
}

/// Describes what a missing key means.
fn absence(spec: &Spec) -> String {
    match spec.absent {
        Absent::Default(value) => format!("default `{value}`"),
        Absent::Optional(meaning) => format!("without it: {meaning}"),
        Absent::Required => "required".into(),
    }
}

/// Returns the table that a key declares in place of its value.
const fn inner(spec: &Spec) -> Option<&'static TableSpec> {
    match spec.kind {
        Kind::Table(table, _) | Kind::List(table) => Some(table),
        _ => None,
    }
}

/// Returns the tables that have headers of their own below this table.
fn headed(table: &'static TableSpec) -> impl Iterator<Item = (&'static TableSpec, &'static Spec)> {
    table.all_keys().filter_map(|key| match key.spec().kind {
        Kind::Tables(below) => Some((below, key.spec())),
        _ => None,
    })
}

/// Appends a section of the reference page for a table, with those below it.
pub fn section(page: &mut String, table: &'static TableSpec) {
    let level = if table.header.starts_with('`') || table.header.contains('.') { "####" } else { "###" };
    let header = table.header.trim_matches('`');
    let _ = write!(page, "\n{level} `{header}`\n\n{}.", line(table.help));
    let (keys, base) = table.documented_keys();
    if let Some(base) = base {
        let _ = write!(
            page,
            " It also takes the keys of `{}`: {}.",
            base.header.trim_matches('`'),
            all_of(base.names())
        );
    }
    page.push('\n');
    if !keys.is_empty() {
        page.push_str("\n| key | value | if missing | meaning |\n|---|---|---|---|\n");
    }
    for key in &keys {
        let spec = key.spec();
        let absent = match spec.absent {
            Absent::Default(value) => format!("`{value}`"),
            Absent::Optional(meaning) => meaning.into(),
            Absent::Required => "invalid".into(),
        };
        let row = format!("{} | {absent} | {}", values(*key), line(spec.help));
        let _ = writeln!(page, "| `{}` | {} |", spec.name, row);
    }
    let mut below: Vec<&TableSpec> = Vec::new();
    for key in keys {
        let found = match key.spec().kind {
            Kind::Tables(found) => Some(found),
            _ => inner(key.spec()),
        };
        if let Some(found) = found
            && below.iter().all(|known| known.header != found.header)
        {
            below.push(found);
            section(page, found);
        }
    }
}

/// Appends a table to an example file. Keys that are neither required nor in `chosen` are commented out, and
/// so is the whole table if `active` is false.
pub fn example(file: &mut String, table: &'static TableSpec, active: bool, chosen: &[&str]) {
    let off = |active: bool| if active { "" } else { "#" };
    comment(file, "# ", &format!("{}.", line(table.help)));
    let _ = writeln!(file, "{}{}\n", off(active), table.header);
    for key in table.all_keys() {
        let spec = key.spec();
        if matches!(spec.kind, Kind::Tables(_)) {
            continue;
        }
        comment(file, "# ", &format!("{} ({}; {})", line(spec.help), values(key), absence(spec)));
        keys_in_braces(file, spec, "#     ");
        let active = active && (spec.absent == Absent::Required || chosen.contains(&spec.name));
        let value = match spec.absent {
            Absent::Default(default) if !active => default,
            _ => spec.example,
        };
        let _ = writeln!(file, "{}{} = {value}\n", off(active), spec.name);
    }
    for (below, spec) in headed(table) {
        let active = active && (spec.absent == Absent::Required || chosen.contains(&spec.name));
        example(file, below, active, &[]);
    }
}

/// Appends a line for each key of the table in braces that a key takes.
fn keys_in_braces(file: &mut String, spec: &Spec, indent: &str) {
    for key in inner(spec).into_iter().flat_map(TableSpec::all_keys) {
        let spec = key.spec();
        comment(
            file,
            indent,
            &format!("`{}`: {} ({}; {})", spec.name, line(spec.help), values(key), absence(spec)),
        );
        let deeper = format!("{indent}    ");
        keys_in_braces(file, spec, &deeper);
        if let Kind::Tables(below) = spec.kind {
            for key in below.all_keys() {
                comment(file, &deeper, &format!("`{}`: {}", key.spec().name, line(key.spec().help)));
            }
        }
    }
}

/// Appends a comment, in lines that begin with `start`.
fn comment(file: &mut String, start: &str, text: &str) {
    for row in wrapped(text.split(' '), " ", WIDTH - start.len()) {
        let _ = writeln!(file, "{start}{row}");
    }
}

/// Joins words to lines of at most `width` characters.
fn wrapped<'a>(words: impl Iterator<Item = &'a str>, separator: &str, width: usize) -> Vec<String> {
    let mut rows: Vec<String> = Vec::new();
    for word in words {
        match rows.last_mut() {
            Some(row) if row.len() + separator.len() + word.len() <= width => {
                row.push_str(separator);
                row.push_str(word);
            }
            _ => rows.push(word.to_owned()),
        }
    }
    rows
}

/// Describes the values of a table's keys as lines: those that the file sets, and the defaults of the others.
/// Tables below it are left out, and what refers to ports, and the value of `secret`.
pub fn set_values(root: &DeTable<'_>, text: &str, table: &'static TableSpec) -> Vec<String> {
    let entries = root.get(table.key()).and_then(|value| value.get_ref().as_table());
    let value = |key: &'static dyn Declared| {
        let Spec { name, kind, absent, unit, .. } = *key.spec();
        let written = entries.and_then(|entries| text.get(entries.get(name)?.span()));
        let value = match (written, absent) {
            (Some(_), _) if name == "secret" => "given",
            (Some(written), _) if written.lines().count() == 1 => written,
            (None, Absent::Default(default)) => default,
            _ => return None,
        };
        match kind {
            Kind::Table(_, "") | Kind::List(_) | Kind::Tables(_) => return None,
            Kind::Other(what) if what.contains("port") => return None,
            _ => {}
        }
        let unit = if unit.is_empty() || name.ends_with(unit) { String::new() } else { format!(" {unit}") };
        Some(format!("{name} {value}{unit}"))
    };
    let values: Vec<_> = table.all_keys().filter_map(value).collect();
    wrapped(values.iter().map(String::as_str), "; ", WIDTH)
}
