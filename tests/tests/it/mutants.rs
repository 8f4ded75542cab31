//! The lists of changes that `make mutants` makes, or passes over, are of the code as it is.

use std::path::Path;

/// Returns the entries of a list, with the file and the text that each names.
fn entries(list: &str, key: &str, text: &str) -> Vec<(String, String)> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(list);
    let read = std::fs::read_to_string(path).unwrap().parse::<toml::Table>().unwrap();
    let of = |entry: &toml::Value, key: &str| entry[key].as_str().unwrap().to_owned();
    read[key].as_array().unwrap().iter().map(|entry| (of(entry, "file"), of(entry, text))).collect()
}

/// Returns how often a text stands in a file of the repository.
fn count(file: &str, text: &str) -> usize {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(file);
    std::fs::read_to_string(&path).unwrap_or_else(|why| panic!("{file}: {why}")).matches(text).count()
}

#[test]
fn changes_can_be_made() {
    for (file, text) in entries("mutants.toml", "mutant", "from") {
        assert_eq!(count(&file, &text), 1, "{file}: {text}");
    }
}

#[test]
fn equivalents_are_of_lines_that_exist() {
    for (file, line) in entries("equivalent.toml", "equivalent", "line") {
        assert!(count(&file, &line) > 0, "{file}: {line}");
    }
}
