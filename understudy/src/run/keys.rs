//! Names the keys in which two versions of a configuration differ.

use toml::{Table, Value};

/// A key whose values differ.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Key {
    /// The key, as in `runtime.workers` and `port.a.mtu`: a table of an array is known by its `name`
    pub(super) name: String,
    /// The same without names of tables, as in `port.mtu`
    path: String,
}

impl Key {
    fn below(&self, key: &str) -> Self {
        let joined =
            |parent: &str| if parent.is_empty() { key.to_owned() } else { format!("{parent}.{key}") };
        Self { name: joined(&self.name), path: joined(&self.path) }
    }

    /// Returns whether it is one of these keys, or below one.
    pub(super) fn is_one_of(&self, keys: &[&str]) -> bool {
        let is_in = |key: &&str| {
            self.path.strip_prefix(*key).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
        };
        keys.iter().any(is_in)
    }
}

/// Returns the keys whose values differ. A table that only one of the texts has is one key, and so is an array whose
/// tables are in another order.
pub(super) fn changed(before: &str, after: &str) -> Vec<Key> {
    let parsed = |text: &str| text.parse::<Table>().unwrap_or_default();
    let mut changed = Vec::new();
    let root = Key { name: String::new(), path: String::new() };
    compare_tables(&root, &parsed(before), &parsed(after), &mut changed);
    changed
}

fn compare_tables(parent: &Key, before: &Table, after: &Table, changed: &mut Vec<Key>) {
    let added = after.iter().filter(|(key, _)| !before.contains_key(*key));
    for (key, _) in before.iter().chain(added) {
        compare(parent.below(key), before.get(key), after.get(key), changed);
    }
}

fn compare(key: Key, before: Option<&Value>, after: Option<&Value>, changed: &mut Vec<Key>) {
    match (before, after) {
        (before, after) if before == after => {}
        (Some(Value::Table(before)), Some(Value::Table(after))) => {
            compare_tables(&key, before, after, changed);
        }
        (Some(Value::Array(before)), Some(Value::Array(after))) => match (names(before), names(after)) {
            (Some(old), Some(new)) => compare_named(key, (&old, before), (&new, after), changed),
            _ => changed.push(key),
        },
        _ => changed.push(key),
    }
}

/// Compares arrays of tables with names.
fn compare_named(
    key: Key,
    (old, before): (&[&str], &[Value]),
    (new, after): (&[&str], &[Value]),
    changed: &mut Vec<Key>,
) {
    let number = changed.len();
    let find = |names: &[&str], name: &str| names.iter().position(|other| *other == name);
    let added = new.iter().filter(|name| find(old, name).is_none());
    for name in old.iter().chain(added) {
        let (before, after) = (find(old, name).map(|at| &before[at]), find(new, name).map(|at| &after[at]));
        let key = Key { name: format!("{}.{name}", key.name), path: key.path.clone() };
        compare(key, before, after, changed);
    }
    if old != new && changed.len() == number {
        changed.push(key);
    }
}

/// Returns the names of tables, if all have one.
fn names(values: &[Value]) -> Option<Vec<&str>> {
    values.iter().map(|value| value.get("name")?.as_str()).collect()
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
            (
                "[[port]]\nname = \"a\"\nring = {}\n[[port]]\nname = \"b\"\n",
                "[[port]]\nname = \"b\"\nring = {}\n[[port]]\nname = \"a\"\n",
                &["port"],
            ),
        ] {
            let after = BEFORE.replacen(from, to, 1);
            let names: Vec<_> = changed(BEFORE, &after).into_iter().map(|key| key.name).collect();
            assert_eq!(names, expected, "{from:?} {to:?}");
        }
    }

    #[test]
    fn names_of_tables_are_no_parts_of_a_path() {
        let text = |rate: u32, size: u32| {
            format!(
                "[[pktgen.stream]]\nname = \"rate\"\nsize = {size}\nrate = {{ packets_per_s = {rate} }}\n"
            )
        };
        for (after, expected) in [
            (text(2, 1), &[("pktgen.stream.rate.rate.packets_per_s", true)][..]),
            (text(1, 2), &[("pktgen.stream.rate.size", false)]),
            (String::new(), &[("pktgen", false)]),
        ] {
            let found = changed(&text(1, 1), &after);
            let found: Vec<_> = found
                .iter()
                .map(|key| (&*key.name, key.is_one_of(&["impair.rule", "pktgen.stream.rate"])))
                .collect();
            assert_eq!(found, expected);
        }
    }
}
