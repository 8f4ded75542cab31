//! The P4CE demonstration with real processes. Only conditions are checked that do not depend on the load of
//! the machine.

use serde_json::Value;
use std::path::Path;
use understudy_tests::processes;

/// Most packets of the leader, in either direction, per heartbeat of three servers: READs of the two other
/// servers and their responses, the same in the other direction, what is decided, and whether they still
/// follow
const HEARTBEAT: f64 = 14.0;
/// Share of packets that are retransmitted in an interval, on a busy machine
const RETRANSMITTED: f64 = 0.3;

fn float(value: &Value) -> f64 {
    value.as_f64().unwrap_or_else(|| panic!("{value} is not a number"))
}

/// Returns the fewest packets per value in an interval of a run, without those that may be heartbeats, and
/// the most. The effects of a busy machine (retransmissions, late replicas) do not occur in all intervals;
/// the packets that each value needs do.
fn packets(run: &Value, key: &str, heartbeat_s: f64) -> (f64, f64) {
    let intervals = run["intervals"].as_array().unwrap();
    assert!(!intervals.is_empty(), "{run}");
    intervals.iter().fold((f64::INFINITY, 0.0), |(fewest, most): (f64, f64), interval| {
        let beats = float(&interval["seconds"]) / heartbeat_s + 1.0;
        let packets = float(&interval[key]);
        let without = packets - HEARTBEAT * beats / float(&interval["decided"]);
        (fewest.min(without), most.max(packets))
    })
}

#[test]
fn servers_agree_and_the_switch_saves_packets() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let results = folder.path().join("found.json");
    let output = processes::command(root.join("scripts/demo-p4ce.py"))
        .args(["--quick", "--understudy", env!("CARGO_BIN_EXE_understudy"), "--json"])
        .arg(&results)
        .output()
        .unwrap();
    let printed = String::from_utf8_lossy(&output.stdout);
    // The demonstration fails when servers disagree, or when nothing is decided any more or a killed process
    // does not come back.
    assert!(output.status.success(), "{printed}\n{}", String::from_utf8_lossy(&output.stderr));
    println!("{printed}");
    let results: Value = serde_json::from_slice(&std::fs::read(results).unwrap()).unwrap();
    let heartbeat_s = float(&results["heartbeat_us"]) / 1e6;
    let measured = results["measured"].as_array().unwrap();
    assert_eq!(measured.len(), 2);
    for (run, (through, copies)) in measured.iter().zip([(false, 2.0), (true, 1.0)]) {
        assert_eq!(run["switch"], through);
        for key in ["packets_out", "packets_in"] {
            let (least, most) = packets(run, key, heartbeat_s);
            assert!(least <= copies * (1.0 + RETRANSMITTED), "{key}: {least} to {most} in {run}");
            // Each value is written once per copy. Acknowledgements may be coalesced, and a replica that is
            // late is not written to for a while.
            assert!(most >= copies * 0.7, "{key}: {least} to {most} in {run}");
        }
        assert!(run["compared"].as_u64() > Some(0), "{run}");
    }
    let killed = results["killed"].as_array().unwrap();
    let names = |run: &Value| -> Vec<String> {
        let killed = run["killed"].as_array().unwrap().iter();
        killed.map(|each| each["what"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(names(&killed[0]), ["a replica", "the leader", "the P4CE switch"]);
    assert_eq!(names(&killed[1]), ["a replica", "the leader"]);
    for run in killed {
        assert!(run["compared"].as_u64() > Some(0), "{run}");
    }
    let headline = printed.trim_end().lines().last().unwrap();
    let sent = |run: &Value| format!("{:.2}", float(&run["packets_out"]));
    let [without, through] = [&measured[0], &measured[1]].map(sent);
    let expected =
        format!("the leader sends {through} packets per value with the P4CE switch instead of {without}");
    assert!(headline.starts_with("2 replicas: ") && headline.contains(&expected), "{headline}");
}
