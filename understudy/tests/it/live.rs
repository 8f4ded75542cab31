//! Processes joined by memif. Any of them is killed without notice and started again; the other processes
//! survive, and accept it again.

use crate::common::json_page::assert_is_on_the_page;
use crate::common::machine::Machine;
use serde_json::Value;
use std::path::PathBuf;
use std::thread;
use std::time::Duration;
use tempfile::TempDir;

/// A bridge with two ports, and the hosts at them.
struct Rack {
    folder: TempDir,
}

impl Rack {
    fn new() -> Self {
        Self { folder: tempfile::tempdir().unwrap() }
    }

    fn config(&self, name: &str, text: &str) -> PathBuf {
        let path = self.folder.path().join(name);
        std::fs::write(&path, format!("[runtime]\nidle = \"sleep\"\n{text}")).unwrap();
        path
    }

    fn bridge(&self) -> Machine {
        let port = |name, id| {
            format!(
                "[[port]]\nname = \"{name}\"\nmemif = {{ socket = \"rack.sock\", id = {id}, role = \"server\" }}\n"
            )
        };
        let text = port("one", 1) + &port("two", 2) + "[forward]\nmac_table = {}\n";
        Machine::start("run", &self.config("bridge.toml", &text))
    }

    fn host(&self, id: u32, service: &str) -> Machine {
        let text = format!(
            "[[port]]\nname = \"eth\"\nmemif = {{ socket = \"rack.sock\", id = {id}, role = \"client\" }}\n\
             [nic]\naddresses = [\"10.0.0.{id}/24\"]\n[[nic.service]]\n{service}\n"
        );
        Machine::start("host", &self.config(&format!("host-{id}.toml"), &text))
    }

    fn server(&self) -> Machine {
        self.host(1, "kind = \"rping_server\"")
    }

    fn client(&self, count: u32) -> Machine {
        self.host(2, &format!("kind = \"rping_client\"\nserver = \"10.0.0.1\"\ncount = {count}\nsize = 3000"))
    }

    /// Runs a client until its pings succeed. The remains of a killed client may refuse it once or twice.
    fn ping(&self) {
        for _ in 0..10 {
            let (succeeded, report) = self.client(20).end();
            let report: Value = serde_json::from_str(&report).unwrap();
            assert_is_on_the_page("Closing report of `understudy host --json`", &report);
            let service = &report["services"][0];
            if succeeded {
                assert_eq!(service["finished"], 1, "{report}");
                assert_eq!(service["bytes"], 20 * 3000, "the data of all pings: {report}");
                return;
            }
            assert_eq!(service["refused"], 1, "{report}");
        }
        panic!("no client succeeded in 10 attempts");
    }
}

const UP: &str = "has its peer";
const DOWN: &str = "has lost its peer";

#[test]
fn hosts_reconnect_to_a_bridge_that_was_killed() {
    let rack = Rack::new();
    // The server waits for its bridge.
    let server = rack.server();
    server.wait_for("is ready", 1);
    let mut bridge = rack.bridge();
    server.wait_for(UP, 1);
    rack.ping();
    for kills in 1..=2 {
        bridge.kill();
        server.wait_for(DOWN, kills);
        assert!(
            rack.folder.path().join("rack.sock").exists(),
            "the killed bridge has left its socket, which must not be in the way"
        );
        bridge = rack.bridge();
        server.wait_for(UP, kills + 1);
        rack.ping();
    }
    // A second bridge does not replace one that is running.
    let other = rack.bridge();
    other.wait_for("another process listens", 1);
    assert!(!other.end().0);
    rack.ping();
}

#[test]
fn a_bridge_accepts_a_host_again_after_it_was_killed() {
    let rack = Rack::new();
    let bridge = rack.bridge();
    let mut server = rack.server();
    bridge.wait_for("Port one has its peer", 1);
    rack.ping();
    server.kill();
    bridge.wait_for("Port one has lost its peer", 1);
    server = rack.server();
    bridge.wait_for("Port one has its peer", 2);
    rack.ping();
    // The client is killed before it has its peer, while it connects, and during its pings.
    for moment in ["is ready", UP, "in its pings"] {
        let client = rack.client(0);
        if moment == "in its pings" {
            client.wait_for(UP, 1);
            // The client does not report its pings. Whatever their progress is, the test has to pass.
            thread::sleep(Duration::from_millis(100));
        } else {
            client.wait_for(moment, 1);
        }
        // The client may also have ended by itself, refused because of the previous one.
        drop(client);
    }
    rack.ping();
    server.kill();
    bridge.kill();
}
