//! Reading whole files.

use crate::report::{Problem, Report};
use crate::tree::Problems;
use crate::{capture, syntax};
use std::fs::File;
use std::io::{self, Read as _};
use std::path::Path;
use toml::de::DeTable;

/// Largest size of a configuration file, in bytes
const MAX_LEN: u64 = 16 << 20;

/// First bytes of other kinds of files, with their names and what to do instead
const OTHER_KINDS: [(&[u8], &str, &str); 7] = [
    (&[0xd4, 0xc3, 0xb2, 0xa1], "a capture", READ_CAPTURES),
    (&[0x4d, 0x3c, 0xb2, 0xa1], "a capture", READ_CAPTURES),
    (&[0xa1, 0xb2, 0xc3, 0xd4], "a capture", READ_CAPTURES),
    (&[0xa1, 0xb2, 0x3c, 0x4d], "a capture", READ_CAPTURES),
    (&[0x0a, 0x0d, 0x0d, 0x0a], "a capture", READ_CAPTURES),
    (b"\x7fELF", "a program", NAME_TOML),
    (&[0x1f, 0x8b], "compressed", "decompress it, or name another file"),
];
const READ_CAPTURES: &str =
    "use `understudy decode` or `understudy diagnose` for captures, or name a TOML file";
const NAME_TOML: &str = "name a TOML file; examples are in the folder configs/";

/// Returns the text of a file.
///
/// # Errors
/// A [`Report`] if the file cannot be read, or is of another kind.
pub fn text_of(path: &Path) -> Result<String, Report> {
    text_from(path, read(path).map_err(|error| unreadable(path, &error))?)
}

/// Returns the text of a file from its contents. `path` is what messages call it.
///
/// # Errors
/// Those of [`text_of`], except for a file that cannot be read.
pub fn text_from(path: &Path, bytes: Vec<u8>) -> Result<String, Report> {
    if let Some((kind, help)) = other_kind(&bytes) {
        let problem = Problem::of_file(format!("{} is {kind}, not a configuration", path.display()));
        return Err(Report::new(path, "", vec![problem.help(help)]));
    }
    match String::from_utf8(bytes) {
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

/// Reads a file, or its start if it is longer than a configuration.
fn read(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(path)?.take(MAX_LEN + 1).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Returns the kind of a file that cannot be a configuration, with a remedy.
fn other_kind(bytes: &[u8]) -> Option<(String, &'static str)> {
    let known = OTHER_KINDS.iter().find(|(start, ..)| bytes.starts_with(start));
    if let Some((_, kind, help)) = known {
        return Some(((*kind).into(), help));
    }
    if bytes.len() as u64 > MAX_LEN {
        return Some((format!("longer than {} MB", MAX_LEN >> 20), NAME_TOML));
    }
    bytes.contains(&0).then(|| ("a binary file".into(), NAME_TOML))
}

/// Returns one problem in place of those of a text that is mostly not TOML.
fn other_text(path: &Path, text: &str, problems: &[Problem]) -> Option<Problem> {
    let is_content = |line: &&str| !line.trim().is_empty() && !line.trim_start().starts_with('#');
    let lines = text.lines().filter(is_content).count();
    // A few invalid lines are mistakes in a configuration.
    if problems.len() < 4 || problems.len() * 2 < lines {
        return None;
    }
    let first = problems.iter().filter_map(|problem| problem.span.as_ref()).map(|span| span.start).min();
    let number = first.map_or(1, |at| text[..at].matches('\n').count() + 1);
    let problem = Problem::of_file(format!(
        "{} is not a configuration: {} of its {lines} lines are not TOML, the first is line {number}",
        path.display(),
        problems.len(),
    ));
    Some(problem.help(NAME_TOML))
}

fn unreadable(path: &Path, error: &std::io::Error) -> Report {
    let help = match error.kind() {
        std::io::ErrorKind::NotFound => "correct the path; examples are in the folder configs/",
        std::io::ErrorKind::PermissionDenied => "allow it to be read, or run as its owner",
        _ => NAME_TOML,
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
        let problems = syntax::problems(text, &errors);
        return Err(match other_text(path, text, &problems) {
            Some(problem) => Report::new(path, "", vec![problem]),
            None => Report::new(path, text, problems),
        });
    }
    let problems = Problems::default();
    let config = read(root.get_ref(), &problems);
    match (config, problems.into_found()) {
        (Some(config), found) if found.is_empty() => Ok(config),
        (_, found) => Err(Report::new(path, text, found)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the only message about a file with this content.
    fn message(content: &[u8]) -> String {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("my.toml");
        std::fs::write(&path, content).unwrap();
        let report = text_of(&path).and_then(|text| parsed(&path, &text, |_, _| Some(()))).unwrap_err();
        let messages: Vec<_> = report.findings().map(|finding| finding.message.to_owned()).collect();
        assert_eq!(messages.len(), 1, "{messages:?}");
        assert!(report.render().lines().count() < 8, "{}", report.render());
        messages[0].rsplit("my.toml ").next().unwrap().to_owned()
    }

    #[test]
    fn a_file_of_another_kind_is_one_problem() {
        let pcapng = [&[0x0a, 0x0d, 0x0d, 0x0a][..], &[0; 100]].concat();
        assert_eq!(message(&pcapng), "is a capture, not a configuration");
        assert_eq!(message(&[0xd4, 0xc3, 0xb2, 0xa1, 2, 0, 4, 0]), "is a capture, not a configuration");
        assert_eq!(message(b"\x7fELF\x02"), "is a program, not a configuration");
        assert_eq!(message(b"a = 1\n\0\n"), "is a binary file, not a configuration");
        assert_eq!(message(&vec![b'#'; MAX_LEN as usize + 1]), "is longer than 16 MB, not a configuration");
        let page = "# Title\n\nSome text.\nMore text.\n- a list\n- of two\n\n    cargo run\n";
        let expected = "is not a configuration: 5 of its 5 lines are not TOML, the first is line 3";
        assert_eq!(message(page.as_bytes()), expected);
    }

    #[test]
    fn mistakes_in_a_configuration_are_reported_one_by_one() {
        let text = "[a]\nb = \nc = 1\nd = \n[e]\nf = 1\ng = \n[h]\ni = \n";
        let report = parsed(Path::new("my.toml"), text, |_, _| Some(())).unwrap_err();
        assert_eq!(report.findings().count(), 4);
    }

    #[test]
    fn a_folder_is_reported_as_such() {
        let folder = tempfile::tempdir().unwrap();
        let report = text_of(folder.path()).unwrap_err().render();
        assert!(report.contains("Is a directory") || report.contains("is a directory"), "{report}");
    }
}
