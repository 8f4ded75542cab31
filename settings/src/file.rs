//! Reading whole files.

use crate::report::{Problem, Report};
use crate::tree::Problems;
use crate::{capture, syntax};
use std::path::Path;
use toml::de::DeTable;

/// Returns the text of a file.
///
/// # Errors
/// A [`Report`] if the file cannot be read or is not UTF-8.
pub fn text_of(path: &Path) -> Result<String, Report> {
    let text = match std::fs::read(path) {
        Ok(bytes) => bytes,
        Err(error) => return Err(unreadable(path, &error)),
    };
    match String::from_utf8(text) {
        Ok(text) => Ok(text),
        Err(error) => {
            let (shown, valid) = (path.display(), error.utf8_error().valid_up_to());
            let problem = Problem::of_file(format!(
                "{shown} is not UTF-8 text: the first invalid byte is at offset {valid}"
            ));
            Err(Report::new(path, "", vec![problem.help("save it as UTF-8, or name another file")]))
        }
    }
}

fn unreadable(path: &Path, error: &std::io::Error) -> Report {
    let help = match error.kind() {
        std::io::ErrorKind::NotFound => "correct the path; examples are in the folder configs/",
        std::io::ErrorKind::PermissionDenied => "allow it to be read, or run as its owner",
        _ => "name a TOML file; examples are in the folder configs/",
    };
    let problem = Problem::of_file(format!("{}: {}", path.display(), capture::plain(error)));
    Report::new(path, "", vec![problem.help(help)])
}

/// Parses a text and reads it with `read`.
///
/// # Errors
/// A [`Report`] with all problems found.
pub fn parsed<T>(
    path: &Path,
    text: &str,
    read: impl FnOnce(&DeTable<'_>, &Problems) -> Option<T>,
) -> Result<T, Report> {
    let (root, errors) = DeTable::parse_recoverable(text);
    if !errors.is_empty() {
        // The meaning of a broken line can only be guessed; checking the remainder by that guess would
        // mislead.
        return Err(Report::new(path, text, syntax::problems(text, &errors)));
    }
    let problems = Problems::default();
    let config = read(root.get_ref(), &problems);
    match (config, problems.into_found()) {
        (Some(config), found) if found.is_empty() => Ok(config),
        (_, found) => Err(Report::new(path, text, found)),
    }
}
