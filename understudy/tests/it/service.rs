//! The program as a service of systemd: the messages to the service manager, and SIGHUP.
#![allow(clippy::disallowed_methods, reason = "the tests wait for other processes, with a timeout")]

use crate::commands::configs;
use crate::common::machine::DEADLINE;
use crate::hangup::{NIC, PKTGEN, RING};
use std::fs;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::thread;
use std::time::{Duration, Instant};
use tempfile::TempDir;
use understudy_tests::processes::{Process, Signal, command};

const FORWARD: &str = "[forward]\npairs = [[\"a\", \"a\"]]\n";

/// A service, and the socket of its manager.
struct Service {
    folder: TempDir,
    manager: UnixDatagram,
    process: Process,
    is_generator: bool,
}

impl Service {
    /// Starts a service whose manager wants four messages in `watchdog_us`.
    fn start(subcommand: &str, config: &str, watchdog_us: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("notify");
        let manager = UnixDatagram::bind(&socket).unwrap();
        manager.set_read_timeout(Some(DEADLINE)).unwrap();
        let path = folder.path().join("my.toml");
        fs::write(&path, config).unwrap();
        let log = fs::File::create(folder.path().join("log")).unwrap();
        let mut program = command(env!("CARGO_BIN_EXE_understudy"));
        program.arg(subcommand).arg(&path).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(log);
        program.env("NOTIFY_SOCKET", &socket).env("WATCHDOG_USEC", watchdog_us).env_remove("WATCHDOG_PID");
        Self { folder, manager, process: Process::start(program), is_generator: config.contains("[pktgen]") }
    }

    fn config(&self) -> PathBuf {
        self.folder.path().join("my.toml")
    }

    /// Returns the next message to the manager.
    fn message(&self) -> String {
        let mut text = [0; 256];
        let length = self.manager.recv(&mut text).expect("a message arrives");
        String::from_utf8(text[..length].to_vec()).unwrap()
    }

    /// Sends SIGHUP, and waits until the log has a text.
    fn reload(&self, text: &str) {
        self.process.signal(Signal::HUP);
        wait_for(&self.folder.path().join("log"), text);
    }

    /// Ends the service, and returns the messages until its end.
    fn end(self) -> Vec<String> {
        self.process.signal(Signal::TERM);
        let code = self.process.finish().status.code();
        // That of the generator is 1 if its rate was not reached.
        assert!(code == Some(0) || self.is_generator && code == Some(1), "{code:?}");
        self.manager.set_nonblocking(true).unwrap();
        let mut messages = Vec::new();
        let mut text = [0; 256];
        while let Ok(length) = self.manager.recv(&mut text) {
            messages.push(String::from_utf8(text[..length].to_vec()).unwrap());
        }
        messages
    }
}

fn wait_for(file: &Path, text: &str) {
    let began = Instant::now();
    loop {
        let printed = fs::read_to_string(file).unwrap();
        if printed.contains(text) {
            return;
        }
        assert!(began.elapsed() < DEADLINE, "{printed}");
        thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn the_manager_learns_of_readiness_turns_and_the_end() {
    let topology = configs().join("onepipe/testbed.toml");
    let controller = format!(
        "[controller]\nlisten = \"127.0.0.1:0\"\ntopology = {topology:?}\nstore = {{ file = \"store.redb\" }}\n"
    );
    let ring = |function| format!("{RING}{function}");
    for (subcommand, config) in
        [("run", ring(FORWARD)), ("host", ring(NIC)), ("pktgen", ring(PKTGEN)), ("controller", controller)]
    {
        let service = Service::start(subcommand, &config, "2000000");
        let ready = service.message();
        assert!(ready.starts_with("READY=1\nSTATUS=ready "), "{subcommand}: {ready}");
        assert_eq!(service.message(), "WATCHDOG=1\n", "{subcommand}");
        assert_eq!(service.message(), "WATCHDOG=1\n", "{subcommand}");
        assert_eq!(service.end().last().map(String::as_str), Some("STOPPING=1\n"), "{subcommand}");
    }
}

#[test]
fn a_service_goes_on_at_sighup_and_reports_what_changed() {
    for function in [FORWARD, PKTGEN] {
        let initial = format!("{RING}{function}");
        let service = Service::start("run", &initial, "40000");
        assert!(service.message().starts_with("READY=1"));
        // A manager that is busy receives nothing more, and the control thread must not wait for it.
        let other = UnixDatagram::unbound().unwrap();
        other.set_nonblocking(true).unwrap();
        while other.send_to(b"X=1", service.folder.path().join("notify")).is_ok() {}
        service.reload("my.toml: nothing has changed.");
        fs::write(service.config(), initial.replace("[runtime]", "[runtime]\ncontrol_queue = 64")).unwrap();
        service.reload("my.toml: `runtime.control_queue` takes effect when the instance is started again.");
        fs::write(service.config(), initial.replace("name", "nome")).unwrap();
        service.reload("`nome`");
        service.end();
    }
}
