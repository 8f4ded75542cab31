//! Rates of a running generator that change.
#![allow(clippy::disallowed_methods, reason = "the tests wait for other processes, with a timeout")]

use crate::common::json_page::assert_is_on_the_page;
use crate::common::machine::{DEADLINE, Machine};
use serde_json::Value;
use std::io::Read as _;
use std::process::{Output, Stdio};
use std::time::Instant;
use understudy_tests::processes::{self, Process, Signal, command};

fn understudy(arguments: &[&str]) -> Output {
    processes::command(env!("CARGO_BIN_EXE_understudy")).args(arguments).output().unwrap()
}

const PROFILE: &str = "[runtime]\nidle = \"sleep\"\n[[port]]\nname = \"loop\"\nring = {}\n[observe]\nsocket = \"gen.sock\"\n\
    [pktgen]\nsend = \"loop\"\nreceive = \"loop\"\ncatch_up_ms = 10_000\n\
    [[pktgen.stream]]\nname = \"writes\"\nverb = \"write\"\nsrc = \"10.0.0.1\"\ndst = \"10.0.0.2\"\nrate = { packets_per_s = 1_000 }\n\
    [[pktgen.stream]]\nname = \"sends\"\nverb = \"send\"\nsrc = \"10.0.0.1\"\ndst = \"10.0.0.2\"\nrate = { packets_per_s = 500 }\n";

#[test]
fn the_report_has_what_was_sent_at_each_rate() {
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("gen.toml");
    std::fs::write(&config, PROFILE).unwrap();
    let mut child = command(env!("CARGO_BIN_EXE_understudy"));
    child.args(["pktgen", "--json", config.to_str().unwrap()]).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut generator = Process::start(child);
    let began = Instant::now();
    let rate =
        |arguments: &[&str]| understudy(&[&["rate", "--json", config.to_str().unwrap()], arguments].concat());
    let state = |output: Output| -> Value {
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let state = serde_json::from_slice(&output.stdout).unwrap();
        assert_is_on_the_page("`understudy rate --json`", &state);
        state
    };
    // Waits until a stream has sent this many packets.
    let sent = |stream: usize, packets: u64| loop {
        let output = rate(&[]);
        if let Ok(state) = serde_json::from_slice::<Value>(&output.stdout)
            && state["streams"][stream]["sent"].as_u64() >= Some(packets)
        {
            return state["streams"][stream]["sent"].as_u64().unwrap();
        }
        assert!(began.elapsed() < DEADLINE, "{}", String::from_utf8_lossy(&output.stderr));
    };
    let before = sent(0, 100);
    let changed = state(rate(&["writes=20kpps"]));
    assert_eq!(
        (&changed["streams"][0]["rate"], &changed["streams"][1]["rate"]),
        (&"20000pps".into(), &"500pps".into())
    );
    sent(0, before + 2000);
    // A wrong rate changes nothing, and neither do those beside it.
    let refused = rate(&["sends=7pps", "writes=fast"]);
    let error = String::from_utf8(refused.stderr).unwrap();
    assert!(
        refused.status.code() == Some(1) && error.contains("`fast` is not a rate; write `max`, or 1 to"),
        "{error}"
    );
    assert_eq!(state(rate(&[]))["streams"][1]["rate"], "500pps");
    let slow = state(rate(&["writes=1Mbps"]))["streams"][0]["sent"].as_u64().unwrap();
    sent(0, slow + 50);
    generator.signal(Signal::INT);
    let mut report = String::new();
    generator.stdout.take().unwrap().read_to_string(&mut report).unwrap();
    generator.wait().unwrap();
    let report: Value = serde_json::from_str(&report).unwrap();
    assert_eq!(report["adds_up"], true, "{report}");
    let (writes, sends) = (&report["streams"][0], &report["streams"][1]);
    assert_eq!((&writes["arrived"]["lost"], &writes["arrived"]["received"]), (&0.into(), &writes["sent"]));
    assert!(sends["rates"].is_null(), "{sends}");
    let rates = writes["rates"].as_array().unwrap();
    let texts: Vec<_> = rates.iter().map(|rate| rate["rate"].as_str().unwrap()).collect();
    assert_eq!(texts, ["1000pps", "20000pps", "1000000bps"]);
    // The parts of the run add up to the whole, whatever the times were.
    let number = |value: &Value, key: &str| value[key].as_f64().unwrap();
    let packets: f64 = rates.iter().map(|rate| number(rate, "sending_s") * number(rate, "sent_per_s")).sum();
    let seconds: f64 = rates.iter().map(|rate| number(rate, "sending_s")).sum();
    assert!((packets - number(writes, "sent")).abs() < 1.0, "{packets}: {writes}");
    assert!((seconds - number(writes, "sending_s")).abs() < 1e-6, "{seconds}: {writes}");
    assert!((packets / seconds - number(writes, "sent_per_s")).abs() < 1.0);
    assert!(number(&rates[1], "sent_per_s") > 5.0 * number(&rates[0], "sent_per_s"), "{writes}");
    assert_eq!(writes["latency"], Value::Null);
    assert_eq!(writes["arrived"]["latency"]["count"], writes["sent"]);
}

#[test]
fn an_instance_without_a_generator_refuses_rates() {
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("wire.toml");
    let text = "[[port]]\nname = \"x\"\nring = {}\n[observe]\nsocket = \"wire.sock\"\n[impair]\npairs = [[\"x\", \"x\"]]\n";
    std::fs::write(&config, text).unwrap();
    let instance = Machine::ready("run", &config);
    let refused = understudy(&["rate", config.to_str().unwrap(), "1Mpps"]);
    let error = String::from_utf8(refused.stderr).unwrap();
    assert!(error.contains("this instance runs [impair], not [pktgen]"), "{error}");
    instance.interrupt();
}
