//! Output to the terminal.

use crate::log;
use comfy_table::{Cell, CellAlignment, Table, presets};
use core::fmt::Write as _;
use std::fmt::Display;
use std::io::{ErrorKind, Write};
use std::process::ExitCode;

/// Prints `text` to standard output and returns `code`. A closed pipe (`| head`) is not an error.
pub(crate) fn print(text: &str, code: ExitCode) -> ExitCode {
    let mut stdout = std::io::stdout().lock();
    match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => ExitCode::FAILURE,
        _ => code,
    }
}

/// Prints the error that ends a command to standard error, whatever `--log` says. A closed pipe is not an error.
pub(crate) fn print_error(text: impl Display) {
    let mut text = text.to_string();
    if log::is_journal() {
        text = log::journal_error(&text);
    }
    _ = writeln!(std::io::stderr(), "{}", text.trim_end());
}

/// Returns whether `c` is a control character that acts on a terminal. Line ends and tabs are harmless.
fn acts_on_terminal(c: char) -> bool {
    c.is_control() && !matches!(c, '\n' | '\t')
}

/// Returns `text`, which another program produced, with terminal control characters escaped, such as
/// `\u{1b}`.
pub(crate) fn printable(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        if acts_on_terminal(c) {
            escaped.extend(c.escape_unicode());
        } else {
            escaped.push(c);
        }
    }
    escaped
}

/// Returns `text`, which is JSON, with the terminal control characters in its strings escaped.
pub(crate) fn printable_json(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    let mut rest = text.chars();
    while let Some(c) = rest.next() {
        let escape = (c == '\\').then(|| rest.clone().next()).flatten();
        let code = || u32::from_str_radix(rest.as_str().get(1..5)?, 16).ok().and_then(char::from_u32);
        match escape {
            // The string then contains the escape as text.
            Some('u') if code().is_some_and(acts_on_terminal) => escaped.push_str("\\\\"),
            Some('b' | 'f' | 'r') => escaped.push_str("\\\\"),
            Some(other) => {
                rest.next();
                escaped.extend([c, other]);
            }
            None if acts_on_terminal(c) => escaped.extend(c.escape_unicode().filter(|c| *c != '\\')),
            None => escaped.push(c),
        }
    }
    escaped
}

/// Returns a row of a table for [`section`].
pub(crate) fn row(words: &[&str], numbers: &[u64]) -> Vec<Cell> {
    let words = words.iter().map(Cell::new);
    let numbers = numbers.iter().map(|n| Cell::new(n).set_alignment(CellAlignment::Right));
    words.chain(numbers).collect()
}

/// Appends a titled table, in which the first `words` columns are left-aligned and the others right-aligned.
/// Appends nothing if there are no rows.
pub(crate) fn section(
    text: &mut String,
    title: &str,
    columns: &[&str],
    words: usize,
    rows: impl IntoIterator<Item = Vec<Cell>>,
) {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_header(columns.iter().enumerate().map(|(at, name)| {
        let alignment = if at < words { CellAlignment::Left } else { CellAlignment::Right };
        Cell::new(name).set_alignment(alignment)
    }));
    table.add_rows(rows);
    if table.is_empty() {
        return;
    }
    _ = writeln!(text, "{title}");
    for line in table.lines() {
        _ = writeln!(text, " {}", line.trim_end());
    }
    text.push('\n');
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_from_another_program_are_escaped() {
        assert_eq!(printable("a\u{1b}[2Jb\u{9b}c\td\ne é"), "a\\u{1b}[2Jb\\u{9b}c\td\ne é");
        for text in ["a\u{1b}[2Jb", "\u{9b}31m", "\r\u{8}\u{7f}", "plain \"é\" \\ \\u001b \n\t"] {
            let json = serde_json::to_string(&[text]).unwrap();
            let [escaped] = serde_json::from_str::<[String; 1]>(&printable_json(&json)).unwrap();
            assert!(!escaped.contains(acts_on_terminal), "{escaped:?}");
            assert!(text.contains(acts_on_terminal) || escaped == text, "{escaped:?}");
        }
    }
}
