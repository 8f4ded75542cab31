//! Two controllers of a network, with their store in three servers of etcd.

use super::nodes::Rack;
use super::{Files, Running, states, topology};
use crate::commands::text;
use onepipe::Timestamp;
use serde_json::Value;
use std::time::Duration;
use understudy_tests::etcd::Etcd;
use understudy_tests::processes::Signal;

/// Returns the files of the next controller of a network.
fn files_of(etcd: &Etcd) -> Files {
    let mut files = Files::new(1000);
    let servers: Vec<_> = etcd.urls().iter().map(|url| format!("\"{url}\"")).collect();
    files.store = format!("{{ etcd = [{}] }}", servers.join(", "));
    files.listen("127.0.0.1:0");
    files
}

fn kill(controller: Running) {
    controller.process.signal(Signal::KILL);
    drop(controller.process.finish());
}

/// Returns the times that processes were given for the failure of process `of`.
fn times_of(rack: &Rack, of: u32) -> Vec<Timestamp> {
    let cases = [1, 2, 3].map(|id| rack.notices(id).into_values().flatten().collect::<Vec<_>>());
    cases.into_iter().flatten().filter(|(id, _)| *id == of).map(|(_, time)| time).collect()
}

#[test]
fn the_next_controller_decides_the_same_when_the_leader_and_a_server_of_etcd_are_killed() {
    let Some(mut etcd) = Etcd::start(3) else { return };
    let [one, two] = [files_of(&etcd), files_of(&etcd)];
    let first = one.start();
    let status = one.wait(first.address, "the first leads", |status| status["term"] == 1);
    let second = two.start();
    let addresses = [first.address, second.address];
    let rack = Rack::start(&one.network(&addresses, topology(&status)), &[1, 2, 3]);
    one.wait(addresses[0], "all join", |status| states(status) == ["member"; 3]);
    assert_eq!(two.status(addresses[1])["term"], 0, "the second one waits");

    // The decision is stored, and the callbacks have not returned.
    rack.set_calls_back(false);
    let output = one.ask(&["fail", "2"], addresses[0], "secret");
    assert!(output.status.success(), "{}", text(&output.stderr));
    let decided: Value = serde_json::from_slice(&output.stdout).unwrap();
    let time = decided["time_ns"].as_u64().unwrap();
    etcd.kill(0);
    kill(first);
    let status = two.wait(addresses[1], "the second leads", |status| status["term"] == 2);
    assert_eq!(states(&status), ["member", "failed", "member"], "{status}");
    assert_eq!((&status["members"][1]["time_ns"], &status["members"][1]["case"]), (&time.into(), &1.into()));
    rack.set_calls_back(true);
    let is_closed = |status: &Value| status["cases"].as_array().unwrap().is_empty();
    two.wait(addresses[1], "the case is closed", is_closed);
    for id in [1, 3] {
        assert_eq!(rack.notices(id), [(1, vec![(2, Timestamp::new(time))])].into(), "process {id}");
    }

    // A process dies, and the leader at some moment of that decision.
    etcd.restart(0);
    let first = one.start();
    rack.kill(3);
    let moment = 150 + u64::from(std::process::id() % 150);
    std::thread::sleep(Duration::from_millis(moment));
    kill(second);
    let status = one.wait(first.address, "process 3 fails", |status| {
        status["term"] == 3 && states(status) == ["member", "failed", "failed"] && is_closed(status)
    });
    let time = Timestamp::new(status["members"][2]["time_ns"].as_u64().unwrap());
    println!("killed after {moment} ms: {status}");
    assert_eq!(times_of(&rack, 3), [time], "only process 1 is left, and has one notice");
    let barrier = rack.barrier(1);
    one.wait(first.address, "the other one goes on", |_| rack.barrier(1) > barrier);
}
