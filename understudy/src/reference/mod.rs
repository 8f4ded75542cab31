//! The page docs/json.md: the exit codes of all commands, and the fields of what they print as JSON, from the
//! declarations of both.
//!
//! The form of an output is that of the type that is serialised ([`schemars`]); the meaning of a field is its
//! documentation, that of a metric the help and the unit that the counter declares.

mod page;

use schemars::generate::SchemaSettings;
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde_json::{Map, Value, json};
use std::path::Path;
use switch::metrics::{Group, Metrics};

/// Compares a page of the docs with what the declarations make of it. With UPDATE in the environment, writes the page.
pub(crate) fn assert_is_written(name: &str, page: String) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs").join(name);
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(&path, page).unwrap();
        return;
    }
    let written = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        written == page,
        "docs/{name} is out of date; run UPDATE=1 cargo test -p understudy --bin understudy reference"
    );
}

/// Part of a function in the closing report.
pub(crate) enum Part {
    /// The report of all functions that forward
    Forwarding,
    /// A section of that report, named after the function
    Section(Schema),
    /// A report of its own
    Whole(Schema),
}

/// Returns the form of a type's serialised values.
pub(crate) fn schema<T: JsonSchema>() -> Schema {
    let mut settings = SchemaSettings::draft2020_12().for_serialize();
    settings.inline_subschemas = true;
    settings.into_generator().into_root_schema_for::<T>()
}

/// Returns the form of the values of a struct's metrics in the closing report.
pub(crate) fn metrics<M: Metrics>(_: &mut SchemaGenerator) -> Schema {
    of_groups(&[M::GROUP], |_| true)
}

/// Returns the form of the values of two structs' metrics together.
pub(crate) fn metrics2<A: Metrics, B: Metrics>(_: &mut SchemaGenerator) -> Schema {
    of_groups(&[A::GROUP, B::GROUP], |_| true)
}

/// Returns the form of the values of three structs' metrics together.
pub(crate) fn metrics3<A: Metrics, B: Metrics, C: Metrics>(_: &mut SchemaGenerator) -> Schema {
    of_groups(&[A::GROUP, B::GROUP, C::GROUP], |_| true)
}

/// Returns the form of the values of those of a struct's metrics that have these names.
pub(crate) fn chosen_metrics<M: Metrics>(names: &[&str]) -> Schema {
    let schema = of_groups(&[M::GROUP], |name| names.contains(&name));
    let known = schema.get("properties").and_then(Value::as_object).map_or(0, Map::len);
    assert_eq!(known, names.len(), "each of {names:?} is a metric");
    schema
}

/// Returns the form of the values of a struct's metrics without those that have these names.
pub(crate) fn other_metrics<M: Metrics>(names: &[&str]) -> Schema {
    of_groups(&[M::GROUP], |name| !names.contains(&name))
}

fn of_groups(groups: &[Group], selects: impl Fn(&str) -> bool) -> Schema {
    let mut root = json!({ "type": "object", "properties": {}, "required": [] });
    for metric in groups.iter().flat_map(Group::metrics) {
        let Some(path) = metric.reported.filter(|path| selects(path)) else { continue };
        let mut sections = path.split('.');
        let name = sections.next_back().unwrap_or_default();
        let object = sections.fold(&mut root, |object, section| {
            add(object, section, json!({ "type": "object", "properties": {}, "required": [] }));
            &mut object["properties"][section]
        });
        add(object, name, json!({ "type": "integer", "x-unit": metric.unit, "description": metric.help }));
    }
    Schema::try_from(root).expect("an object is a schema")
}

/// Adds a property that is always there, unless it exists.
fn add(object: &mut Value, name: &str, property: Value) {
    if object["properties"].get(name).is_none() {
        object["properties"][name] = property;
        object["required"].as_array_mut().expect("a list").push(name.into());
    }
}
