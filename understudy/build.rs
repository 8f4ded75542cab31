//! Passes the commit of a release build to the program, which prints it with `--version`.

use std::path::Path;
use std::process::Command;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    // Other builds would compile the program again after every commit.
    if std::env::var("PROFILE").as_deref() != Ok("release") {
        return;
    }
    // Sources without their history have no commit, and the repository above them is another one.
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    if !root.join(".git").exists() {
        return;
    }
    let git = |arguments: &[&str]| {
        let output = Command::new("git").arg("-C").arg(&root).args(arguments).output().ok()?;
        let text = String::from_utf8(output.stdout).ok()?;
        output.status.success().then(|| text.trim().to_owned()).filter(|text| !text.is_empty())
    };
    // Git writes a line into this file when another commit is checked out or made.
    let log = git(&["rev-parse", "--path-format=absolute", "--git-path", "logs/HEAD"]);
    // Without this file, later builds would name an old commit.
    let Some(log) = log.filter(|log| Path::new(log).exists()) else { return };
    println!("cargo::rerun-if-changed={log}");
    if let Some(commit) = git(&["rev-parse", "--short=12", "HEAD"]) {
        println!("cargo::rustc-env=UNDERSTUDY_COMMIT={commit}");
    }
}
