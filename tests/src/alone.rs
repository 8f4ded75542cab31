//! Tests that each need a process of their own, such as those that start an EAL (DPDK allows one per
//! process).

use crate::processes::{Process, command};
use std::fs::File;
use std::io::{Read as _, Seek as _, SeekFrom};
use std::time::Duration;
use std::{env, thread};

/// Environment variable with the name of the test for which a process was started
const ALONE: &str = "UNDERSTUDY_TEST_ALONE";
/// Set by cargo-nextest, which starts a process per test
const NEXTEST: &str = "NEXTEST_EXECUTION_MODE";
const POLL: Duration = Duration::from_millis(5);
/// Polls before a test is killed: a minute
const POLLS: u32 = 12_000;

/// Runs the rest of a test in a process of its own: the first line of a test that starts an EAL or depends on the process ID.
#[macro_export]
macro_rules! alone {
    () => {
        fn this() {}
        if $crate::alone::has_run(std::any::type_name_of_val(&this)) {
            return;
        }
    };
}

/// Starts this test program again for one test, and waits for it. In that process, returns false without
/// starting another one. `path` is that of an item inside the test function.
///
/// # Panics
/// If the test fails, or has not ended after a minute; the message has what it printed.
#[doc(hidden)]
pub fn has_run(path: &str) -> bool {
    let (_, path) = path.split_once("::").expect("a path has a crate");
    let (test, _) = path.rsplit_once("::").expect("a path ends with the item in the test");
    if env::var_os(NEXTEST).is_some() || env::var_os(ALONE).is_some_and(|alone| alone == test) {
        return false;
    }
    let mut output = tempfile::tempfile().expect("a temporary file");
    let file = |output: &File| output.try_clone().expect("a second descriptor");
    let mut program = command(env::current_exe().expect("a path of this program"));
    program
        .args(["--exact", test, "--nocapture"])
        .env(ALONE, test)
        .stdout(file(&output))
        .stderr(file(&output));
    let mut child = Process::start(program);
    let mut polls = 0..POLLS;
    let status = loop {
        match child.try_wait().expect("the child has not been waited for") {
            None if polls.next().is_some() => thread::sleep(POLL),
            status => break status,
        }
    };
    drop(child);
    let mut printed = String::new();
    output
        .seek(SeekFrom::Start(0))
        .and_then(|_| output.read_to_string(&mut printed))
        .expect("a readable file");
    match status {
        Some(status) => assert!(status.success() && printed.contains("1 passed"), "{status}\n{printed}"),
        None => panic!("killed after a minute\n{printed}"),
    }
    true
}
