//! Tests of several problems at once, and of how they are shown.

use super::{FORWARD, PORTS, folder, problems_in, read_in, runtime};
use crate::config::port::Ports;
use crate::config::tree::{Problems, Table};
use crate::config::{load, port};
use crate::functions::{FUNCTIONS, FunctionConfig, FunctionTable, read_one_of};
use miette::MietteHandlerOpts;
use settings::declare::whole;
use settings::{Problem, Report};
use std::fs;
use std::path::Path;
use toml::de::DeTable;

#[test]
fn everything_is_reported_in_one_go() {
    let text = r#"
[runtime]
workers = [9]
memory_mb = "64"
hugepage = true

[[port]]
name = "a"
mtu = 70000
tap = "us0"

[[port]]
name = "a"
descriptors = 500
tap = { interface = "us1", speed = 10 }

[forward]
pairs = [["a", "c"]]
drop = ["icrc"]
"#;
    let lines: Vec<_> = problems_in(folder().path(), text).into_iter().map(|(line, ..)| line).collect();
    assert_eq!(lines, [3, 4, 5, 9, 10, 13, 14, 15, 18, 19]);
}

#[test]
fn one_slip_gives_one_problem() {
    // Each of these would cause further problems if the parser used the values that it guesses.
    let without_names = PORTS.replace("name = \"b\"", "name = 5");
    for text in [
        [&without_names, FORWARD].concat(),
        [PORTS, "[forwrad]\npairs = [[\"a\", \"b\"]]"].concat(),
        ["[port]\nname = \"a\"\nring = {}", FORWARD].concat(),
        [PORTS, "[forward]\npairs = [[\"a\", \"bee\"]]"].concat(),
        runtime("workers = [\"all\"]"),
        runtime("memory_mb = true"),
        [PORTS, "[[forward]]\npairs = [[\"a\", \"b\"]]"].concat(),
    ] {
        assert_eq!(problems_in(folder().path(), &text).len(), 1, "{text}");
    }
}

#[test]
fn a_path_is_not_divided_between_lines() {
    let path = format!("/run/under-study/{}.sock", "a-long/name".repeat(12));
    let problem = Problem::of_file(format!("the socket `{path}` is in use")).help(format!("remove {path}"));
    let report = Report::new(Path::new("test.toml"), "", vec![problem]);
    let shown = report.render_plain();
    assert_eq!(shown.matches(&path).count(), 2, "{shown}");
}

#[test]
fn a_problem_fits_80_columns() {
    let text = runtime("")
        .replace("name = \"b\"", "name = \"a\"\nmtuu = 9000")
        .replace("\"a\", \"b\"", "\"a\", \"a\"");
    let report = read_in(folder().path(), &text).unwrap_err();
    let options = || MietteHandlerOpts::new().width(80).color(false).unicode(true).terminal_links(false);
    let expected = r#"  × two ports are called `a`
   ╭─[test.toml:8:8]
 4 │ [[port]]
 5 │ name = "a"
   ·        ─┬─
   ·         ╰── first here
 6 │ ring = {}
 7 │ [[port]]
 8 │ name = "a"
   ·        ─┬─
   ·         ╰── again
 9 │ mtuu = 9000
   ╰────
  help: give each port a name of its own

  × there is no key `mtuu` in [[port]]
    ╭─[test.toml:9:1]
  8 │ name = "a"
  9 │ mtuu = 9000
    · ──┬─
    ·   ╰── not a key of [[port]]
 10 │ ring = {}
    ╰────
  help: did you mean `mtu`? [[port]] takes `name`, `mtu`, `rx_queues`,
        `descriptors`, `buffers`, `pci`, `mlx5`, `af_packet`, `af_xdp`, `tap`,
        `memif`, `vhost`, `ring`, `pcap`, `null` and `devargs`

test.toml cannot be used: 2 things are wrong
"#;
    let shown = report.rendered_by(options().force_graphical(true));
    assert_eq!(shown, expected, "shown:\n{shown}");
    // As an error of the program, the report has the same text.
    let whole = format!("{:?}", miette::Report::new(report));
    assert!(whole.contains("two ports are called") && whole.contains("did you mean"), "{whole}");
}

#[test]
fn columns_count_characters() {
    let text = runtime("file_prefix = \"ünder\"; x");
    let report = read_in(folder().path(), &text).unwrap_err();
    let place = report.findings().next().unwrap().position;
    assert_eq!((place.line, place.column), (2, 22));
}

#[test]
fn unreadable_files_are_reported() {
    let folder = folder();
    let path = folder.path().join("binary.toml");
    fs::write(&path, b"a = \xff").unwrap();
    for (path, message, help) in [
        (
            Path::new("gone.toml"),
            "gone.toml: no such file or directory".to_owned(),
            "correct the path; examples are in the folder configs/",
        ),
        (
            folder.path(),
            format!("{}: is a directory", folder.path().display()),
            "name a TOML file; examples are in the folder configs/",
        ),
        (
            &path,
            format!("{} is not UTF-8 text: the first invalid byte is at offset 4", path.display()),
            "save it as UTF-8, or name another file",
        ),
    ] {
        let report = load(path).unwrap_err();
        let found: Vec<_> = report.findings().map(|f| (f.position.line, f.message, f.help)).collect();
        assert_eq!(found, [(1, message.as_str(), help)]);
        assert!(!report.render().contains("cannot be used"), "the message names the file exactly once");
    }
}

settings::table! {
    /// A future function
    pub(crate) enum LaterKeys "[later]";
    /// A key of it
    keys: u8 = whole(0..=9) => default(1);
}

/// Reader of a future function, which accepts any port.
const LATER: FunctionTable = FunctionTable {
    spec: &LaterKeys::TABLE,
    read: |table: &Table<'_>, _: &Ports| {
        table.read(LaterKeys::keys);
        None::<FunctionConfig>
    },
};

fn problems_with(functions: &[FunctionTable], text: &str) -> Vec<(String, String)> {
    let (root, problems) = (DeTable::parse(text).unwrap(), Problems::default());
    let table = Table::root(root.get_ref(), &problems);
    let ports = port::read(&table, Path::new(""));
    read_one_of(functions, &table, &ports);
    table.finish();
    problems.into_found().into_iter().map(|problem| (problem.message, problem.help)).collect()
}

#[test]
fn a_file_has_exactly_one_function() {
    let functions = [FUNCTIONS[0], LATER];
    let problem = |message: &str, help: &str| vec![(message.to_owned(), help.to_owned())];
    assert_eq!(
        problems_with(&functions, &[PORTS, FORWARD, "[later]\n"].concat()),
        problem("the file has two functions", "keep one, and run another instance for the other")
    );
    assert_eq!(
        problems_with(&functions, PORTS),
        problem(
            "no table defines what happens to frames",
            "add a function, such as\n\n[forward]\npairs = [[\"a\", \"b\"]]\n\nit can be `[forward]` or \
             `[later]`; configs/ has an example of each"
        )
    );
    // A misplaced key of an absent function is recognised.
    assert_eq!(
        problems_with(&functions, &[PORTS, FORWARD, "keys = 3\n"].concat()),
        problem("there is no key `keys` in [forward]", "`keys` belongs to [later]: move it there")
    );
}
