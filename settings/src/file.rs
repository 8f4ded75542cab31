//! A file as a whole.

use crate::report::{Problem, Report};
use crate::tree::Problems;
use crate::{capture, syntax};
use std::path::Path;
use toml::de::DeTable;

/// The text of a file
pub fn text_of(path: &Path) -> Result<String, Report> {
    let text = match std::fs::read(path) {
        Ok(bytes) => bytes,
        Err(error) => return Err(unreadable(path, &error)),
    };
    match String::from_utf8(text) {
        Ok(text) => Ok(text),
        Err(error) => {
            let (shown, valid) = (path.display(), error.utf8_error().valid_up_to());
            let problem = Problem::of_file(format!("{shown} is not a text: byte {valid} is not UTF-8"));
            Err(Report::new(path, "", vec![problem.help("save it in UTF-8; is it the right file?")]))
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

/// Reads a text, with everything that is wrong with it.
pub fn parsed<T>(
    path: &Path,
    text: &str,
    read: impl FnOnce(&DeTable<'_>, &Problems) -> Option<T>,
) -> Result<T, Report> {
    let (root, errors) = DeTable::parse_recoverable(text);
    if !errors.is_empty() {
        // What a broken line meant can only be guessed, and the rest would be judged by the guess.
        return Err(Report::new(path, text, syntax::problems(text, &errors)));
    }
    let problems = Problems::default();
    let config = read(root.get_ref(), &problems);
    match (config, problems.into_found()) {
        (Some(config), found) if found.is_empty() => Ok(config),
        (_, found) => Err(Report::new(path, text, found)),
    }
}
