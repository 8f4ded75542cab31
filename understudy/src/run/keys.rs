//! Names the keys in which two versions of a configuration differ.

use toml::{Table, Value};

/// Returns the keys whose values differ, as in `runtime.workers` and `port.a.mtu`: of an array of tables, each table is
/// known by its `name`, or by its position. A table that only one of the texts has is one key.
pub(super) fn changed(before: &str, after: &str) -> Vec<String> {
    let parsed = |text: &str| text.parse::<Table>().unwrap_or_default();
    let mut changed = Vec::new();
    compare_tables("", &parsed(before), &parsed(after), &mut changed);
    changed
}

fn compare_tables(path: &str, before: &Table, after: &Table, changed: &mut Vec<String>) {
    let added = after.iter().filter(|(key, _)| !before.contains_key(*key));
    for (key, _) in before.iter().chain(added) {
        let path = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
        compare(path, before.get(key), after.get(key), changed);
    }
}

fn compare(path: String, before: Option<&Value>, after: Option<&Value>, changed: &mut Vec<String>) {
    match (before, after) {
        (before, after) if before == after => {}
        (Some(Value::Table(before)), Some(Value::Table(after))) => {
            compare_tables(&path, before, after, changed);
        }
        (Some(Value::Array(before)), Some(Value::Array(after))) if is_named(before) && is_named(after) => {
            compare_tables(&path, &by_name(before), &by_name(after), changed);
        }
        _ => changed.push(path),
    }
}

fn name(value: &Value) -> Option<&str> {
    value.get("name")?.as_str()
}

/// Returns whether these are tables with names.
fn is_named(values: &[Value]) -> bool {
    values.iter().all(|value| name(value).is_some())
}

fn by_name(values: &[Value]) -> Table {
    values.iter().filter_map(|value| Some((name(value)?.to_owned(), value.clone()))).collect()
}

/// Returns whether a key is one of these, or below one. In those, names of tables are left out.
pub(super) fn is_one_of(key: &str, keys: &[&str]) -> bool {
    let parts: Vec<_> = key.split('.').collect();
    keys.iter().any(|wanted| {
        let mut parts = parts.iter();
        wanted.split('.').all(|part| parts.any(|other| *other == part))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const BEFORE: &str = "[runtime]\nworkers = [1]\n[[port]]\nname = \"a\"\nring = {}\n[[port]]\nname = \"b\"\nring = {}\n\
                          [impair]\npairs = [[\"a\", \"b\"]]\n[[impair.rule]]\nname = \"x\"\nshare = 0.5\n";

    #[test]
    fn keys_that_differ_are_named() {
        for (from, to, expected) in [
            ("", "", &[][..]),
            ("[1]", "[1, 2]", &["runtime.workers"]),
            ("workers = [1]", "workers = [ 1 ] # one", &[]),
            ("[runtime]\nworkers = [1]\n", "", &["runtime"]),
            ("\"b\"\nring = {}", "\"b\"\nring = {}\nmtu = 9000", &["port.b.mtu"]),
            ("name = \"b\"", "name = \"c\"", &["port.b", "port.c"]),
            ("0.5", "0.25", &["impair.rule.x.share"]),
            ("name = \"x\"\n", "", &["impair.rule"]),
            ("[impair]", "[observe]\nsocket = \"s\"\n[impair]", &["observe"]),
        ] {
            let after = BEFORE.replacen(from, to, 1);
            assert_eq!(changed(BEFORE, &after), expected, "{from:?} {to:?}");
        }
    }

    #[test]
    fn a_key_below_one_is_found_with_and_without_names() {
        for (key, expected) in [
            ("impair.rule", true),
            ("impair.rule.x.share", true),
            ("impair.pairs", false),
            ("pktgen.stream.big.rate.packets_per_s", true),
            ("pktgen.stream.big.size", false),
            ("pktgen.stream.big", false),
        ] {
            assert_eq!(is_one_of(key, &["impair.rule", "pktgen.stream.rate"]), expected, "{key}");
        }
    }
}
