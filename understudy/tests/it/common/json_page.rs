//! Compares what the program prints as JSON with docs/json.md, which is written from the types that are serialised: an
//! output has exactly the fields on the page.

use serde_json::Value;
use std::collections::BTreeMap;
use std::path::Path;

/// Title of the report of functions that forward
const RUN: &str = "Closing report of `understudy run --json`";

/// Fields of an output by path, and whether each may be missing.
type Fields = BTreeMap<String, bool>;

/// Returns the fields in the page's section with this title.
fn section(title: &str) -> Option<Fields> {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/json.md");
    let page = std::fs::read_to_string(page).unwrap();
    let (_, section) = page.split_once(&format!("\n### {title}\n"))?;
    let section = section.split_once("\n#").map_or(section, |(section, _)| section);
    let rows = section.lines().filter_map(|line| line.strip_prefix("| `")?.split_once("` | "));
    let may_be_missing =
        |row: &str| row.split(" | ").next().is_some_and(|kind| kind.ends_with("may be missing"));
    Some(rows.map(|(path, row)| (path.to_owned(), may_be_missing(row))).collect())
}

/// Asserts that the fields of an output are those in the page's section with this title.
pub(crate) fn assert_is_on_the_page(title: &str, output: &Value) {
    let fields = section(title).unwrap_or_else(|| panic!("docs/json.md has no section {title}"));
    compare(&fields, "", output, title);
}

/// Asserts that the fields of a closing report of a function that forwards are those on the page, with those of the
/// sections that it has. Returns the names of these.
pub(crate) fn assert_report_is_on_the_page(report: &Value) -> Vec<String> {
    let mut base = report.clone();
    let mut names = Vec::new();
    for (name, value) in report.as_object().unwrap() {
        if let Some(fields) = section(&format!("Section `{name}` of the closing report")) {
            compare(&fields, "", value, name);
            base.as_object_mut().unwrap().remove(name);
            names.push(name.clone());
        }
    }
    assert_is_on_the_page(RUN, &base);
    names
}

fn compare(fields: &Fields, path: &str, value: &Value, title: &str) {
    match value {
        Value::Object(object) => {
            let prefix = if path.is_empty() { String::new() } else { format!("{path}.") };
            let any = format!("{prefix}*");
            for (name, value) in object {
                let own = format!("{prefix}{name}");
                let field = [&own, &any].into_iter().find(|path| fields.contains_key(*path));
                let field = field.unwrap_or_else(|| panic!("{title}: {own} is not in docs/json.md"));
                compare(fields, field, value, title);
            }
            let is_child = |path: &str| {
                path.strip_prefix(&prefix)
                    .is_some_and(|name| !name.is_empty() && !name.contains(['.', '[', '*']))
            };
            for (path, may_be_missing) in fields.iter().filter(|(path, _)| is_child(path)) {
                let name = &path[prefix.len()..];
                assert!(*may_be_missing || object.contains_key(name), "{title}: docs/json.md has {path}");
            }
        }
        Value::Array(all) => {
            for (index, value) in all.iter().enumerate() {
                let own = format!("{path}[{index}]");
                let path = if fields.contains_key(&own) { own } else { format!("{path}[]") };
                compare(fields, &path, value, title);
            }
        }
        _ => {}
    }
}

#[test]
fn an_output_and_the_page_have_to_have_the_same_fields() {
    let check = |output: &str| {
        let output = serde_json::from_str(output).unwrap();
        std::panic::catch_unwind(|| assert_is_on_the_page("`understudy check --json`", &output)).is_ok()
    };
    let error = r#"{"line": 1, "column": 1, "message": "", "help": ""}"#;
    assert!(
        check(r#"{"ok": true, "errors": []}"#) && check(&format!(r#"{{"ok": false, "errors": [{error}]}}"#))
    );
    assert!(!check(r#"{"ok": true, "errors": [], "new": 1}"#), "a field that is not on the page");
    assert!(!check(r#"{"ok": true}"#), "a field that is only on the page");
    assert!(!check(r#"{"ok": false, "errors": [{"line": 1}]}"#), "the same in a list");
}
