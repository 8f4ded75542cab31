//! Commented example files: `understudy check --example NAME`.

use crate::config::RFC2544;
use crate::functions::{FUNCTIONS, consensus, tunnel};
use crate::observe;
use settings::TABLES;
use settings::declare::TableSpec;
use settings::reference::example;

/// Tables of an example beside `[runtime]`, `[[port]]` and `[observe]`
struct Example {
    tables: Vec<&'static TableSpec>,
    /// Ports, which the keys' examples name
    ports: &'static [&'static str],
    /// Keys that are written although they are not required
    chosen: &'static [&'static str],
}

/// Returns the names of the examples.
pub(super) fn names() -> Vec<&'static str> {
    let beside = [consensus::TABLE, tunnel::TABLE, RFC2544];
    FUNCTIONS.iter().map(|function| function.spec).chain(beside).map(TableSpec::key).collect()
}

fn find(name: &str) -> Option<Example> {
    let function = |key: &str| FUNCTIONS.iter().map(|function| function.spec).find(|spec| spec.key() == key);
    let tables = match name {
        "consensus" => vec![function("nic")?, consensus::TABLE],
        "tunnel" => vec![function("forward")?, tunnel::TABLE],
        "rfc2544" => vec![RFC2544],
        _ => vec![function(name)?],
    };
    let ports: &[&str] = match name {
        "nic" | "process" | "consensus" => &["host-a"],
        "pktgen" | "rfc2544" => &["out", "in"],
        _ => &["host-a", "host-b"],
    };
    let chosen: &[&str] = match name {
        "swordbox" | "onepipe" => &["mac_table"],
        _ => &["pairs", "next_hops"],
    };
    Some(Example { tables, ports, chosen })
}

/// Returns an example with every key; those that are not needed are commented out, at their defaults.
pub(super) fn file(name: &str) -> Option<String> {
    let Example { tables, ports, chosen } = find(name)?;
    let [runtime, port] = TABLES;
    let mut file = String::from("# Keys that are commented out have the value that is shown, or none.\n\n");
    example(&mut file, runtime, false, &[]);
    for (index, name) in ports.iter().enumerate() {
        let device = format!("name = \"{name}\"\naf_packet = {{ interface = \"eth{}\" }}\n\n", index + 1);
        if index > 0 {
            file += &[port.header, "\n", &device].concat();
            continue;
        }
        let mut first = String::new();
        example(&mut first, port, true, &["af_packet"]);
        file += &first.replace("name = \"host-a\"", &format!("name = \"{name}\""));
    }
    for table in tables {
        example(&mut file, table, true, chosen);
    }
    if name != "process" && name != "rfc2544" {
        example(&mut file, &observe::Keys::TABLE, false, &[]);
    }
    // A server has one of the addresses in `servers`.
    Some(if name == "consensus" { file.replace("10.0.0.2/24", "10.0.0.1/24") } else { file })
}
