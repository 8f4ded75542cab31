//! Reads `pairs`: ports joined two by two, for functions that are a bump in the wire.

use core::ops::Range;
use settings::port::Ports;
use settings::report::Problem;
use settings::tree::Value;
use switch::PortId;

/// Returns an example of `pairs` with the first two ports.
pub(in crate::functions) fn example_pairs(ports: &Ports) -> String {
    let mut names: Vec<_> = ports.names().collect();
    names.dedup();
    match names.as_slice() {
        [a, b, ..] => format!("[[\"{a}\", \"{b}\"]]"),
        [a] => format!("[[\"{a}\", \"{a}\"]]"),
        [] => "[[\"host-a\", \"host-b\"]]".into(),
    }
}

/// Reads the list of pairs. `in_two_help` is the advice for a port that is in two of them.
pub(in crate::functions) fn read(
    value: &Value<'_>,
    ports: &Ports,
    in_two_help: &str,
) -> Option<Vec<(PortId, PortId)>> {
    let list = value.list()?;
    if !list.is_empty() && list.iter().all(|element| element.text_if_any().is_some()) {
        let problem = value.problem("`pairs` has to be a list of pairs").label("a list of names");
        value.add(problem.help(format!("put brackets around each pair: {}", corrected_pairs(value, ports))));
        return None;
    }
    // For each port, the span of its name in a pair
    let mut spans: Vec<Option<Range<usize>>> = vec![None; ports.list.len()];
    let pairs: Vec<_> =
        list.iter().filter_map(|element| pair(element, value, ports, &mut spans, in_two_help)).collect();
    if pairs.len() < list.len() {
        // A pair that could not be read may name a port that seems to be in no pair.
        return None;
    }
    for (index, port) in ports.list.iter().enumerate() {
        let Some(name) = port.name.as_ref().filter(|_| spans[index].is_none()) else { continue };
        let shown = name.get_ref();
        if ports.names().position(|other| other == shown) != Some(index) {
            continue; // two ports of the same name, which is reported elsewhere
        }
        let problem = Problem::at(name.span(), format!("port `{shown}` is in no pair"));
        value.add(problem.label("not joined").also(value.key_span(), "the pairs").help(format!(
            "add a pair with it to `pairs`, such as `[\"{shown}\", \"{shown}\"]` to reflect frames, or \
             remove the port"
        )));
    }
    Some(pairs)
}

/// Reads a pair, and records the spans of its ports in `spans`.
fn pair(
    element: &Value<'_>,
    pairs: &Value<'_>,
    ports: &Ports,
    spans: &mut [Option<Range<usize>>],
    in_two_help: &str,
) -> Option<(PortId, PortId)> {
    let ends = element.list_if_any();
    let Some([a, b]) = ends.as_deref() else {
        let problem = element.problem("an element of `pairs` has to be a pair of ports").label("not a pair");
        let example = corrected_pairs(pairs, ports);
        element.add(
            problem.help(format!("write two names in brackets, and brackets around all pairs: {example}")),
        );
        return None;
    };
    let (first, second) = (ports.find(a), ports.find(b));
    // A port that is paired with itself reflects, and counts once.
    let second_use = second.filter(|_| second != first);
    for (port, end) in [(first, a), (second_use, b)] {
        let Some(port) = port else { continue };
        if let Some(first_use) = spans[port.index()].replace(end.span()) {
            let name = end.text_if_any().unwrap_or_default();
            let problem = end.problem(format!("port `{name}` is in two pairs"));
            end.add(problem.label("again").also(first_use, "first here").help(in_two_help));
        }
    }
    Some((first?, second?))
}

/// Returns `pairs` as it may have been meant: with brackets around a single pair, or with the first two
/// ports.
fn corrected_pairs(value: &Value<'_>, ports: &Ports) -> String {
    let names: Vec<_> =
        value.list_if_any().unwrap_or_default().iter().filter_map(Value::text_if_any).collect();
    match names.as_slice() {
        [a, b] => format!("`pairs = [[\"{a}\", \"{b}\"]]`"),
        _ => format!("`pairs = {}`", example_pairs(ports)),
    }
}
