//! Text of the page.

use super::{Part, assert_is_written, schema};
use crate::{check, controller, decode, diagnose, doctor, exit, functions, observe, rdmc, sim, trace};
use core::fmt::Write as _;
use schemars::Schema;
use serde_json::Value;

const HEAD: &str = "# Exit codes and JSON

What scripts rely on. Exit codes and fields keep their meaning from version to version; fields are added, not \
renamed.

The program's own definitions are the origin of this page: `UPDATE=1 cargo test -p understudy --bin understudy \
reference` writes it, and a test fails if the page differs. `understudy COMMAND --help` and the manual pages end \
with the same exit codes.

## Exit codes

101 is the code of a panic, which is a bug of understudy: please report it. A program that a signal ends has no \
code of its own, but SIGINT and SIGTERM are handled: a run then ends with its report and the code that it has \
anyway.

";

const FIELDS: &str = "
## Fields

Each object is printed on one line. `a.b` is the field `b` of the object `a`, `a[]` an element of the list `a`, \
and `a.*` a value of the map `a`, whose keys are not fixed. \"Or null\": the field is there, without a value. \
\"May be missing\": the field is left out if it does not apply. Names ending in `_s`, `_us` and `_ns` are times \
in seconds, microseconds and nanoseconds, `_per_s` are rates, `seconds` are seconds; a unit in brackets is what \
an integer counts. Integers have up to 64 bits: a parser that reads them as floating-point numbers loses the \
last digits of identifiers and times.

`--log off` keeps events away from standard error; standard output has the JSON only.
";

const MISSING: &str = "
## Not on this page

The JSON of `understudy demo`, and of `understudy bench consensus`, and of `swordbox` and `onepipe` with \
`--simulated`, has the rows of their tables, whose columns name the fields. The results of `bench paper` are \
described in [The papers' figures](results.md). `understudy plan` writes files for switches (`sonic.json`) in \
the formats of those.
";

/// Appends a section with a table of the fields of an output.
fn section(page: &mut String, title: &str, text: &str, schema: &Schema) {
    _ = writeln!(page, "\n### {title}\n\n{text}\n\n| field | type | meaning |\n|---|---|---|");
    let mut rows = Vec::new();
    fields(schema.as_value(), "", &mut rows);
    for Row { path, kind, optional, meaning } in rows {
        let optional = if optional { "; may be missing" } else { "" };
        _ = writeln!(page, "| `{path}` | {kind}{optional} | {meaning} |");
    }
}

struct Row {
    path: String,
    kind: String,
    optional: bool,
    meaning: String,
}

/// Appends a row for each field of an object.
fn fields(object: &Value, path: &str, rows: &mut Vec<Row>) {
    let required = |name: &str| {
        object["required"].as_array().is_some_and(|all| all.iter().any(|required| required == name))
    };
    for (name, property) in object["properties"].as_object().into_iter().flatten() {
        let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
        field(property, &path, !required(name), rows);
    }
    if let Some(value) = map_values(object) {
        field(value, &if path.is_empty() { "*".into() } else { format!("{path}.*") }, false, rows);
    }
    let of_variants = variants(object).map(|variant| {
        let mut rows = Vec::new();
        fields(variant, path, &mut rows);
        // A variant that is one field is described in place of the field.
        if let Some(first) = rows.first_mut().filter(|first| first.meaning.is_empty()) {
            first.meaning = description(variant);
        }
        rows
    });
    rows.extend(merged(&of_variants.collect::<Vec<_>>()));
}

/// Returns one row for each field of any variant of an object. It may be missing unless all variants have it.
fn merged(variants: &[Vec<Row>]) -> Vec<Row> {
    let mut merged: Vec<Row> = Vec::new();
    for row in variants.iter().flatten() {
        match merged.iter_mut().find(|known| known.path == row.path) {
            Some(known) if known.meaning != row.meaning => _ = write!(known.meaning, ", {}", row.meaning),
            Some(_) => {}
            None => {
                let has =
                    |rows: &Vec<Row>| rows.iter().any(|other| other.path == row.path && !other.optional);
                let Row { path, kind, meaning, .. } = row;
                let optional = !variants.iter().all(has);
                merged.push(Row {
                    path: path.clone(),
                    kind: kind.clone(),
                    optional,
                    meaning: meaning.clone(),
                });
            }
        }
    }
    merged
}

/// Returns the form of the values of a map, whose keys are names or numbers.
fn map_values(object: &Value) -> Option<&Value> {
    let by_name = object.get("additionalProperties").filter(|value| value.is_object());
    by_name.or_else(|| object["patternProperties"].as_object()?.values().next())
}

/// Returns the forms of which a value has one, without null.
fn variants(schema: &Value) -> impl Iterator<Item = &Value> {
    let all = ["anyOf", "oneOf"].into_iter().filter_map(|name| schema[name].as_array()).flatten();
    all.filter(|variant| variant["type"] != "null")
}

fn is_nullable(schema: &Value) -> bool {
    let is_null = |kind: &Value| {
        kind == "null" || kind.as_array().is_some_and(|all| all.iter().any(|kind| kind == "null"))
    };
    is_null(&schema["type"]) || schema["anyOf"].as_array().is_some_and(|all| all.iter().any(is_nullable))
}

/// Returns the type of a value in words.
fn kind(schema: &Value) -> String {
    let types = match &schema["type"] {
        Value::Array(all) => all.iter().filter_map(Value::as_str).find(|kind| *kind != "null"),
        other => other.as_str(),
    };
    let words = match types {
        Some("array") => match plain_items(schema) {
            Some(items) => return format!("list of {}s", kind(items)),
            None => "list",
        },
        Some("number") => "number",
        Some("object") if map_values(schema).is_some() => "map",
        Some(other) => other,
        None => {
            let mut all: Vec<_> = variants(schema).map(kind).collect();
            all.sort();
            all.dedup();
            return all.join(" or ");
        }
    };
    match schema["x-unit"].as_str() {
        Some(unit) => format!("{words} ({unit})"),
        None => words.into(),
    }
}

/// Returns the documentation of a field or a value.
fn description(schema: &Value) -> String {
    let text = schema["description"].as_str().unwrap_or_default();
    text.replace(['\n', '|'], " ").replace("`None`", "null")
}

/// Appends the row of a field, and those of what it contains.
fn field(schema: &Value, path: &str, optional: bool, rows: &mut Vec<Row>) {
    let mut kind = kind(schema);
    // What is left out when there is no value is null only if that has a meaning of its own.
    if is_nullable(schema) && (!optional || schema["x-null"] == true) {
        kind += " or null";
    }
    let mut meaning = description(schema);
    let choices = choices(schema);
    if !choices.is_empty() {
        let separator = if meaning.is_empty() { "" } else { ": " };
        _ = write!(meaning, "{separator}{}", choices.join(", "));
    }
    rows.push(Row { path: path.into(), kind, optional, meaning });
    inner(schema, path, rows);
}

/// Appends the rows of what a value contains.
fn inner(schema: &Value, path: &str, rows: &mut Vec<Row>) {
    fields(schema, path, rows);
    if let Some(items) =
        schema.get("items").filter(|items| items.is_object() && plain_items(schema).is_none())
    {
        inner(items, &format!("{path}[]"), rows);
    }
    for (index, item) in schema["prefixItems"].as_array().into_iter().flatten().enumerate() {
        field(item, &format!("{path}[{index}]"), false, rows);
    }
    for variant in variants(schema).filter(|variant| variant.get("items").is_some()) {
        inner(variant, path, rows);
    }
}

/// Returns the form of the elements of a list of plain values.
fn plain_items(list: &Value) -> Option<&Value> {
    let items = list.get("items").filter(|items| items.is_object())?;
    let has_parts = ["properties", "prefixItems", "items"].into_iter().any(|name| items.get(name).is_some());
    (!has_parts && variants(items).next().is_none()).then_some(items)
}

/// Returns the values that a text may have, each with its meaning.
fn choices(schema: &Value) -> Vec<String> {
    let name = |value: &Value| value.as_str().map(|value| format!("`{value}`"));
    let plain = schema["enum"].as_array().into_iter().flatten().filter_map(name);
    let own = schema.get("const").and_then(name).map(|value| match description(schema).as_str() {
        "" => value,
        meaning => format!("{value} ({meaning})"),
    });
    own.into_iter().chain(plain).chain(variants(schema).flat_map(choices)).collect()
}

fn page() -> String {
    let mut page = HEAD.to_owned() + &exit::markdown() + FIELDS;
    section(
        &mut page,
        "Closing report of `understudy run --json`",
        "Functions that forward frames have these fields, and a section with the name of the function, below; `tunnel` if there \
         are tunnels in front of it.",
        &functions::report_json(),
    );
    for (key, (part, _)) in functions::json() {
        if let Part::Section(schema) = part {
            let title = format!("Section `{key}` of the closing report");
            section(&mut page, &title, &format!("With `[{key}]`."), &schema);
        }
    }
    let tunnels = functions::tunnel::json();
    section(&mut page, "Section `tunnel` of the closing report", "With `[tunnel]`.", &tunnels);
    for (key, (part, live)) in functions::json() {
        let command = match key {
            "nic" => "`understudy host --json`",
            "consensus" => "`understudy host --json` with `[consensus]`",
            "process" => "`understudy process --json`, and its lines of `--live`",
            "pktgen" => "`understudy pktgen --json`",
            _ => "`understudy run --json`",
        };
        if let Part::Whole(schema) = part {
            section(&mut page, &format!("Closing report of {command}"), &format!("With `[{key}]`."), &schema);
        }
        if let Some(schema) = live {
            section(
                &mut page,
                &format!("Lines of `--live` with `[{key}]`"),
                "One object at each interval.",
                &schema,
            );
        }
    }
    commands(&mut page);
    page + MISSING
}

/// Appends the sections of the other commands.
fn commands(page: &mut String) {
    let text = "One object per RoCEv2 packet; what could not be read is null.";
    section(page, "`understudy decode --json`", text, &schema::<decode::JsonLine<decode::PacketFields>>());
    let text = "Other frames, with `--all`.";
    section(
        page,
        "`understudy decode --json --all`",
        text,
        &schema::<decode::JsonLine<decode::OtherFrame>>(),
    );
    let text = "One object per input. The fields of `detail` depend on the kind of finding; \
                [Observability](observe.md#understudy-diagnose) lists the kinds.";
    section(page, "`understudy diagnose --json`", text, &schema::<diagnose::JsonReport<'_>>());
    let text = "One object.";
    section(page, "`understudy check --json`", text, &schema::<check::Verdict<'_>>());
    section(page, "`understudy doctor --json`", text, &schema::<doctor::Findings>());
    section(page, "`understudy sim --json`", "One seed.", &schema::<sim::One>());
    let text = "Several seeds, with `--seeds` or `--for`.";
    section(page, "`understudy sim --seeds N --json`", text, &schema::<sim::Sweep>());
    let text = "State of a running instance.";
    section(page, "`understudy top --json`", text, &schema::<observe::Snapshot>());
    let text = "One object per traced packet. A part that is a frame has the fields of the next table, too.";
    section(page, "`understudy trace --json`", text, &schema::<observe::TraceRecord>());
    let text = "Those of RoCEv2 packets; another frame has `roce` (false) and `other` (a short description) in place of those \
                behind `frame_len`.";
    section(page, "Fields of frames in `parts[]`", text, &schema::<trace::FrameFields>());
    let text = "One object, when all tests are complete or interrupted.";
    section(page, "`understudy bench rfc2544 --json`", text, &schema::<bench::rfc2544::Report>());
    let text = "Also of the other benchmarks that compare programs on the same frames.";
    section(page, "`understudy bench peers --json`", text, &schema::<bench::compare::Comparison>());
    let text = "The rules of a running instance.";
    section(page, "`understudy impair --json`", text, &schema::<observe::steer::RulesState>());
    let text = "The rates of a running generator.";
    section(page, "`understudy rate --json`", text, &schema::<observe::steer::RatesState>());
    let text = "One object, when all receivers have the file or are lost.";
    section(page, "`understudy rdmc send --json`", text, &schema::<rdmc::Sent>());
    let text = "One object.";
    section(page, "`understudy rdmc schedule --json`", text, &schema::<rdmc::Printed>());
    let text = "Closing report.";
    section(page, "`understudy controller --json`", text, &schema::<controller::ClosingReport>());
    let text = "State of a running controller.";
    section(page, "`understudy controller status --json`", text, &schema::<controller::StatusJson>());
    let text = "The decision.";
    section(page, "`understudy controller fail --json`", text, &schema::<controller::FailJson>());
    let text = "When the representative has left.";
    section(page, "`understudy controller drain --json`", text, &schema::<controller::DrainJson>());
}

/// With UPDATE in the environment, rewrites the page instead of comparing it.
#[test]
fn the_page_of_exit_codes_and_json_matches_the_declarations() {
    assert_is_written("json.md", page());
}

#[test]
fn a_function_has_lines_of_live_if_the_page_does() {
    let on_the_page = functions::json().filter(|(_, (_, live))| live.is_some()).map(|(key, _)| key);
    assert!(on_the_page.eq(functions::live_tables()));
}
