//! Reports that no other test compares with docs/json.md: those of functions that other tests run through a script, and
//! outputs of commands without a report.

use crate::common::json_page::{assert_is_on_the_page, assert_report_is_on_the_page};
use serde_json::Value;
use understudy_tests::processes;

/// Runs the program in a folder with this file. Returns the lines of JSON that it prints.
fn lines(words: &[&str], config: &str) -> Vec<Value> {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("my.toml"), config).unwrap();
    let program = processes::command(env!("CARGO_BIN_EXE_understudy"));
    let output = { program }.args(words).current_dir(folder.path()).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

const PORT: &str = "[[port]]\nname = \"eth\"\nring = {}\n";

#[test]
fn a_p4ce_switch_reports_what_the_page_has() {
    let config = format!("{PORT}[p4ce]\naddresses = [\"10.0.0.254/24\"]\n");
    let reports = lines(&["run", "my.toml", "--for", "0.1", "--json"], &config);
    assert_eq!(assert_report_is_on_the_page(&reports[0]), ["p4ce"]);
}

#[test]
fn a_server_of_consensus_reports_what_the_page_has() {
    let config = format!(
        "{PORT}[nic]\naddresses = [\"10.0.0.1/24\"]\n\
         [consensus]\nid = 0\nservers = [\"10.0.0.1\", \"10.0.0.2\", \"10.0.0.3\"]\n"
    );
    let reports = lines(&["host", "my.toml", "--for", "0.5", "--live", "0.1", "--json"], &config);
    let (last, live) = reports.split_last().unwrap();
    assert_is_on_the_page("Closing report of `understudy host --json` with `[consensus]`", last);
    assert!(!live.is_empty(), "no line of --live");
    for line in live {
        assert_is_on_the_page("Lines of `--live` with `[consensus]`", line);
    }
}

#[test]
fn a_schedule_has_the_fields_of_the_page() {
    let schedule = lines(&["rdmc", "schedule", "-n", "8", "-k", "3", "--json"], "");
    assert_is_on_the_page("`understudy rdmc schedule --json`", &schedule[0]);
}
