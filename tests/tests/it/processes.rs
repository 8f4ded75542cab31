//! Child processes that tests start end with the test.

use rustix::fs::{CWD, Mode, mkfifoat};
use std::fs::OpenOptions;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::process::Stdio;
use understudy_tests::processes::{Process, Signal, command};

/// Environment variable with the path of the FIFO on which the child of the killed test process waits. It is
/// set only in that process.
const FIFO_VARIABLE: &str = "PROCESSES_QUEUE";

/// Acts as a test that never ends. Its child prints a line, then waits for a line from the FIFO, after which
/// it prints that it has survived.
fn wait_to_be_killed(fifo: String) {
    let start = move || {
        let mut child = command("sh");
        child.args(["-c", r#"read word; echo "$word"; read line < "$0"; echo survived"#]).arg(fifo);
        Process::start({
            child.stdin(Stdio::piped());
            child
        })
    };
    // The thread that requested the process ends before the process does.
    let mut child = std::thread::spawn(start).join().unwrap();
    child.stdin.take().unwrap().write_all(b"ready\n").unwrap();
    child.wait().unwrap();
}

#[test]
fn child_of_a_killed_test_process_ends() {
    if let Ok(fifo) = std::env::var(FIFO_VARIABLE) {
        return wait_to_be_killed(fifo);
    }
    let folder = tempfile::tempdir().unwrap();
    let fifo = folder.path().join("queue");
    mkfifoat(CWD, &fifo, Mode::RUSR | Mode::WUSR).unwrap();
    let mut test = command(std::env::current_exe().unwrap());
    test.args(["--exact", "processes::child_of_a_killed_test_process_ends", "--nocapture"])
        .env(FIFO_VARIABLE, &fifo);
    test.stdout(Stdio::piped());
    let mut test = Process::start(test);
    let mut output = BufReader::new(test.stdout.take().unwrap());
    let mut line = String::new();
    while !line.ends_with("ready\n") {
        line.clear();
        assert!(
            output.read_line(&mut line).unwrap() > 0,
            "the test process ended before its child was ready"
        );
    }
    test.signal(Signal::KILL);
    test.wait().unwrap();
    // A child that is not about to be killed gets this line, whenever it opens the FIFO: a FIFO that is open
    // for reading and writing keeps the line (fifo(7)).
    let mut fifo = OpenOptions::new().read(true).write(true).open(&fifo).unwrap();
    fifo.write_all(b"go on\n").unwrap();
    let mut rest = String::new();
    // The read ends when every process with this standard output has ended, killed or after the line.
    output.read_to_string(&mut rest).unwrap();
    assert!(!rest.contains("survived"), "{rest}");
}

#[test]
fn a_process_is_killed_when_dropped() {
    let mut child = command("cat");
    child.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = Process::start(child);
    let (input, mut output) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
    drop(child);
    assert_eq!(output.read(&mut [0]).unwrap(), 0);
    drop(input);
}
