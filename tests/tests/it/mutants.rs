//! The lists of mutants that `make mutants` applies, or skips as equivalent, match the current code.

use std::path::Path;

/// Returns the file and the quoted text of each entry of a list.
fn entries(list: &str, key: &str, text: &str) -> Vec<(String, String)> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(list);
    let read = std::fs::read_to_string(path).unwrap().parse::<toml::Table>().unwrap();
    let of = |entry: &toml::Value, key: &str| entry[key].as_str().unwrap().to_owned();
    read[key].as_array().unwrap().iter().map(|entry| (of(entry, "file"), of(entry, text))).collect()
}

/// Returns how often `text` occurs in a file of the repository.
fn count(file: &str, text: &str) -> usize {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(file);
    std::fs::read_to_string(&path).unwrap_or_else(|why| panic!("{file}: {why}")).matches(text).count()
}

#[test]
fn every_mutant_applies_to_one_place_in_the_code() {
    for (file, text) in entries("mutants.toml", "mutant", "from") {
        assert_eq!(count(&file, &text), 1, "{file}: {text}");
    }
}

#[test]
fn every_equivalent_mutant_quotes_an_existing_line() {
    for (file, line) in entries("equivalent.toml", "equivalent", "line") {
        assert!(count(&file, &line) > 0, "{file}: {line}");
    }
}
