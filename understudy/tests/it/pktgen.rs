//! `understudy pktgen` on DPDK's virtual devices: a dissector reads what it sends, its counts add up, and
//! errors are reported.

use crate::commands::{file, text, understudy};
use crate::common::json_page::assert_is_on_the_page;
use crate::common::machine::Machine;
use serde_json::Value;
use std::path::Path;
use std::process::Output;
use understudy_tests::processes::{Process, Signal, command};

fn report(output: &Output) -> Value {
    let report: Value = serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|error| panic!("{error}: {}\n{}", text(&output.stdout), text(&output.stderr)));
    let is_of_check = report.get("ok").is_some();
    let command = if is_of_check {
        "`understudy check --json`"
    } else {
        "Closing report of `understudy pktgen --json`"
    };
    assert_is_on_the_page(command, &report);
    report
}

const HOSTS: &str = "src = \"10.0.0.1\"\ndst = \"10.0.0.2\"\n";

/// Returns streams of every verb, with `packets` packets each.
fn every_verb(packets: u32) -> String {
    let verbs = [
        ("write", "size = [64, 3000]"),
        ("send", "size = [1, 1500]\nlatency = false"),
        ("read", "size = 4096"),
        ("compare_swap", ""),
        ("fetch_add", "slots = 4"),
        ("ack", "coalesce = 3"),
        ("onepipe_message", "size = 100"),
        ("onepipe_beacon", ""),
    ];
    let stream = |(verb, lines): (&str, &str)| {
        format!(
            "[[pktgen.stream]]\nname = \"{verb}\"\nverb = \"{verb}\"\n{lines}\n{HOSTS}qps = 5\npackets = {packets}\n\
             rate = {{ packets_per_s = 100_000 }}\n"
        )
    };
    verbs.into_iter().map(stream).collect()
}

#[test]
fn sent_packets_decode_without_errors() {
    let folder = tempfile::tempdir().unwrap();
    let (config, capture) = (folder.path().join("my.toml"), folder.path().join("out.pcap"));
    let content = format!(
        "[[port]]\nname = \"out\"\npcap = {{ tx = \"{}\" }}\n[pktgen]\nsend = \"out\"\ncatch_up_ms = 10_000\n{}",
        capture.display(),
        every_verb(40)
    );
    // The rate does not matter here.
    std::fs::write(&config, content.replace("rate = { packets_per_s = 100_000 }\n", "")).unwrap();
    let run = understudy(&["pktgen", config.to_str().unwrap(), "--json"]);
    let sent = report(&run);
    assert!(run.status.success(), "{sent}");
    assert!(sent["streams"].as_array().unwrap().iter().all(|stream| stream["sent"] == 40), "{sent}");
    assert_eq!(sent["streams"][0]["arrived"], Value::Null, "nothing was received, so arrivals are unknown");

    let decoded = understudy(&["decode", capture.to_str().unwrap(), "--json"]);
    let lines: Vec<Value> =
        text(&decoded.stdout).lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let packets: Vec<_> = lines.iter().filter(|line| line.get("opcode").is_some()).collect();
    assert_eq!(
        packets.len(),
        8 * 40,
        "{}",
        text(&decoded.stdout).lines().take(3).collect::<Vec<_>>().join("\n")
    );
    assert!(packets.iter().all(|packet| packet["icrc"] == "ok"), "{}", packets[0]);
    tshark_agrees(&capture, 8 * 40);
}

/// Checks that Wireshark dissects each packet as RoCEv2, without malformed parts, errors or warnings, and
/// finds the ICRC in its place. (Wireshark does not compute the ICRC; `understudy decode` does, which is
/// compared with real captures.)
fn tshark_agrees(capture: &Path, packets: usize) {
    // Wireshark's severity of a note
    const NOTE: u32 = 0x0040_0000;
    let fields = [
        "infiniband.bth.opcode",
        "infiniband.invariant.crc",
        "_ws.malformed",
        "_ws.expert.severity",
        "_ws.expert.message",
        "frame.len",
    ];
    // By default, it interprets payloads of SENDs by their first bytes.
    let mut tshark = command("tshark");
    tshark.args(["--disable-protocol", "rpcordma", "-T", "fields", "-r"]).arg(capture);
    for field in fields {
        tshark.args(["-e", field]);
    }
    let output =
        tshark.output().expect("cannot run tshark; install Debian's package tshark (scripts/deps.sh test)");
    let shown = text(&output.stdout);
    assert_eq!(shown.lines().count(), packets, "{}", text(&output.stderr));
    for line in shown.lines() {
        let fields: Vec<_> = line.split('\t').collect();
        assert!(!fields[0].is_empty() && fields[1].starts_with("0x") && fields[2].is_empty(), "{line}");
        let severities = fields[3].split(',').filter(|word| !word.is_empty());
        for severity in severities.map(|word| word.parse::<u32>().expect("the severity is a number")) {
            assert!(severity <= NOTE, "{line}");
        }
    }
}

#[test]
fn a_ring_returns_every_packet_and_the_counts_add_up() {
    a_ring_returns_every_packet(&["\"any\""]);
}

/// Each worker has a send queue, and the receive queue at which it arrives. Some streams are at one of them.
#[test]
fn workers_share_the_streams_and_the_counts_add_up() {
    a_ring_returns_every_packet(&["\"any\"", "\"any\""]);
}

/// Ctrl-C ends sending at both workers, and the run when all has arrived.
#[test]
fn a_signal_ends_all_workers() {
    let (_folder, config) = file(&format!(
        "[runtime]\nworkers = [\"any\", \"any\"]\n[[port]]\nname = \"loop\"\nring = {{}}\nrx_queues = 2\n\
         [pktgen]\nsend = \"loop\"\nreceive = \"loop\"\n[[pktgen.stream]]\nverb = \"write\"\n{HOSTS}qps = 8\n\
         rate = {{ packets_per_s = 2_000 }}\n"
    ));
    let mut program = command(env!("CARGO_BIN_EXE_understudy"));
    program.args(["pktgen", &config, "--live", "0.05", "--json"]).stdout(std::process::Stdio::piped());
    let mut generator = Process::start(program);
    let mut lines = std::io::BufRead::lines(std::io::BufReader::new(generator.stdout.take().unwrap()));
    let mut next = || lines.next().map(|line| serde_json::from_str::<Value>(&line.unwrap()).unwrap());
    loop {
        let line = next().expect("another line");
        assert_is_on_the_page("Lines of `--live` with `[pktgen]`", &line);
        if line["received"].as_u64() >= Some(20) {
            break;
        }
    }
    generator.signal(Signal::INT);
    let report = std::iter::from_fn(next).last().unwrap();
    generator.wait().unwrap();
    // A busy machine may miss the rate.
    assert!(!report["spoiled"].to_string().contains("cut_short"), "{report}");
    let stream = &report["streams"][0];
    assert_eq!(
        (&stream["sent"], &report["adds_up"]),
        (&stream["arrived"]["received"], &true.into()),
        "{report}"
    );
}

/// One worker polls a queue whose packets belong to both. At the wrong worker, a packet would be of no stream.
#[test]
fn packets_find_the_worker_of_their_queue_pair() {
    let folder = tempfile::tempdir().unwrap();
    let capture = folder.path().join("sent.pcap");
    let streams = format!(
        "[[pktgen.stream]]\nverb = \"write\"\nsize = 64\n{HOSTS}qps = 10\nfirst_psn = 7\npackets = 400\nlatency = false\n"
    );
    let (_folder, sender) = file(&format!(
        "[[port]]\nname = \"out\"\npcap = {{ tx = \"{}\" }}\n[pktgen]\nsend = \"out\"\n{streams}",
        capture.display()
    ));
    assert!(understudy(&["pktgen", &sender, "--json"]).status.success());
    // The capture is played to a generator that sends the same packets elsewhere.
    let (_folder, receiver) = file(&format!(
        "[runtime]\nworkers = [\"any\", \"any\"]\n[[port]]\nname = \"in\"\npcap = {{ rx = [\"{}\"] }}\n\
         [[port]]\nname = \"out\"\nnull = {{ size = 64 }}\n[pktgen]\nsend = \"out\"\nreceive = \"in\"\n{streams}",
        capture.display()
    ));
    let run = report(&understudy(&["pktgen", &receiver, "--json"]));
    assert_eq!(run["adds_up"], true, "{run}");
    let stream = &run["streams"][0];
    let arrived: u64 =
        ["received", "unexpected"].iter().map(|name| stream["arrived"][name].as_u64().unwrap()).sum();
    assert_eq!((stream["sent"].as_u64(), arrived), (Some(400), 400), "{run}");
}

/// Runs streams of every verb through a ring with a queue for each worker.
fn a_ring_returns_every_packet(workers: &[&str]) {
    let (count, workers) = (workers.len(), workers.join(", "));
    let (_folder, config) = file(&format!(
        "[runtime]\nworkers = [{workers}]\n[[port]]\nname = \"loop\"\nring = {{}}\nrx_queues = {count}\n[pktgen]\nsend = \"loop\"\nreceive = \"loop\"\nrespond = true\n{}",
        every_verb(500)
            .replace("\"fetch_add\"\nslots", "\"fetch_add\"\noutstanding = 4\ntimeout_us = 10_000_000\nslots")
            // However long the worker is kept from its CPU, what is due of 10 ms and the responses fit into the ring.
            .replace("100_000 }", "2_000 }")
    ));
    let histograms = tempfile::tempdir().unwrap();
    let run = understudy(&["pktgen", &config, "--json", "--hgrm", histograms.path().to_str().unwrap()]);
    let report = report(&run);
    assert_eq!(report["adds_up"], true, "{report}");
    for stream in report["streams"].as_array().unwrap() {
        let arrived = &stream["arrived"];
        assert_eq!((&stream["sent"], &arrived["received"]), (&500.into(), &500.into()), "{stream}");
        for nothing in ["lost", "unseen", "reordered", "duplicates", "stale", "unexpected"] {
            assert_eq!(arrived[nothing], 0, "{nothing} of {stream}");
        }
    }
    assert_eq!(report["malformed"], serde_json::json!([]));
    let requests = &report["streams"][4]["answers"]["requests"];
    assert_eq!((&requests["answered"], &requests["unanswered"]), (&500.into(), &0.into()), "{report}");
    for name in ["write.latency.hgrm", "fetch_add.round-trip.hgrm"] {
        let histogram = std::fs::read_to_string(histograms.path().join(name)).unwrap();
        assert!(histogram.contains("1/(1-Percentile)") && histogram.contains("#[Max"), "{histogram}");
    }
    let shown = text(&understudy(&["pktgen", &config]).stdout);
    for words in [
        "sent = received + lost + unseen",
        "round trip",
        "Requests = answered",
        "4000 packets sent by 8 streams",
    ] {
        assert!(shown.contains(words), "{words:?} is missing in\n{shown}");
    }
}

#[test]
fn a_folder_that_cannot_hold_histograms_is_reported() {
    let loop_config = |verb: &str| {
        format!(
            "[[port]]\nname = \"loop\"\nring = {{}}\n[pktgen]\nsend = \"loop\"\nreceive = \"loop\"\n\
             [[pktgen.stream]]\nname = \"x\"\nverb = \"{verb}\"\n{HOSTS}packets = 100\n"
        )
    };
    let (folder, config) = file(&loop_config("write"));
    // The folder's path is that of a file: the run ends before anything is sent.
    let run = understudy(&["pktgen", &config, "--json", "--hgrm", &format!("{config}/x")]);
    let printed = text(&run.stderr);
    assert_eq!((run.status.code(), run.stdout.len()), (Some(1), 0), "{printed}");
    assert!(printed.contains("cannot write histograms to") && !printed.contains("is ready"), "{printed}");
    // A folder has the name of a histogram: the report is printed before the error.
    let histograms = folder.path().join("histograms");
    std::fs::create_dir_all(histograms.join("x.latency.hgrm")).unwrap();
    let histograms = histograms.to_str().unwrap();
    let run = understudy(&["pktgen", &config, "--json", "--hgrm", histograms]);
    assert_eq!((run.status.code(), &report(&run)["streams"][0]["sent"]), (Some(1), &100.into()));
    assert!(text(&run.stderr).contains("cannot write histograms to"), "{}", text(&run.stderr));
    // A stream without latency
    let (_folder, config) = file(&loop_config("ack"));
    let run = understudy(&["pktgen", &config, "--hgrm", histograms]);
    assert!(run.status.success(), "{}", text(&run.stdout));
    assert!(text(&run.stderr).contains("No latency was measured"), "{}", text(&run.stderr));
}

#[test]
fn a_rate_that_no_port_reaches_is_reported() {
    let (_folder, config) = file(&format!(
        "[[port]]\nname = \"out\"\nnull = {{}}\n[pktgen]\nsend = \"out\"\nduration_s = 0.3\n[[pktgen.stream]]\nname = \"too fast\"\n\
         verb = \"write\"\n{HOSTS}rate = {{ packets_per_s = 1_000_000_000 }}\n"
    ));
    let run = understudy(&["pktgen", &config, "--json"]);
    let report = report(&run);
    assert_eq!(run.status.code(), Some(1), "{report}");
    let invalid_runs = &report["spoiled"][0];
    assert_eq!(invalid_runs["reason"], "rate_not_reached", "{report}");
    assert!(report["streams"][0]["forfeited"].as_u64().unwrap() > 0 && report["adds_up"] == true, "{report}");
    let part = report["streams"][0]["part_of_rate"].as_f64().unwrap();
    assert!(part > 0.0 && part < 0.9, "{report}");
    let shown = text(&understudy(&["pktgen", &config]).stdout);
    assert!(shown.contains("SPOILED (rate_not_reached): stream too fast sent"), "{shown}");

    // The same with a limited number of packets, and with requests that wait for responses
    for (lines, advice) in [
        ("packets = 100_000", "a faster port"),
        (
            "outstanding = 1\npackets = 300\ntimeout_us = 1_000",
            "no response was received; set `respond = true`",
        ),
    ] {
        let (_folder, config) = file(&format!(
            "[[port]]\nname = \"out\"\nnull = {{}}\n[pktgen]\nsend = \"out\"\n[[pktgen.stream]]\nverb = \"write\"\n{HOSTS}\
             rate = {{ packets_per_s = 1_000_000_000 }}\n{lines}\n"
        ));
        let run = understudy(&["pktgen", &config]);
        let shown = text(&run.stdout);
        assert_eq!(run.status.code(), Some(1), "{shown}");
        assert!(shown.contains("SPOILED (rate_not_reached)") && shown.contains(advice), "{shown}");
    }
}

#[test]
fn malformed_packets_are_reported_as_sent() {
    let (_folder, config) = file(&format!(
        "[[port]]\nname = \"out\"\nnull = {{}}\n[pktgen]\nsend = \"out\"\nduration_s = 0.05\n\
         [[pktgen.stream]]\nverb = \"write\"\n{HOSTS}malformed = 1.0\n"
    ));
    let shown = text(&understudy(&["pktgen", &config]).stdout);
    let last = shown.lines().last().unwrap();
    assert!(!last.starts_with('0') && last.contains(" of them malformed, sent by 1 stream, in"), "{shown}");
    // As fast as possible, without a responder
    let (_folder, config) = file(&format!(
        "[[port]]\nname = \"out\"\nnull = {{}}\n[pktgen]\nsend = \"out\"\nduration_s = 0.05\ndrain_ms = 1\n\
         [[pktgen.stream]]\nverb = \"write\"\n{HOSTS}outstanding = 1\n"
    ));
    let shown = text(&understudy(&["pktgen", &config]).stdout);
    assert!(shown.contains("\nstream 1: no response was received; set `respond = true`"), "{shown}");
}

/// The whole response to a READ has to fit into the port's queue at once.
#[test]
fn responses_that_do_not_fit_the_queue_invalidate_the_run() {
    let (_folder, config) = file(&format!(
        "[[port]]\nname = \"loop\"\nring = {{}}\n[pktgen]\nsend = \"loop\"\nreceive = \"loop\"\nrespond = true\n\
         [[pktgen.stream]]\nname = \"reads\"\nverb = \"read\"\nsize = 262_144\n{HOSTS}packets = 100\n"
    ));
    let run = understudy(&["pktgen", &config, "--json"]);
    let report = report(&run);
    assert_eq!(run.status.code(), Some(1), "{report}");
    let invalid_runs = report["spoiled"].as_array().unwrap();
    assert!(invalid_runs.iter().any(|invalid| invalid["reason"] == "unable_to_answer"), "{report}");
    assert_eq!(report["adds_up"], true, "{report}");
}

#[test]
fn configuration_errors_are_reported_with_a_remedy() {
    let ports = "[[port]]\nname = \"out\"\nring = {}\n[pktgen]\nsend = \"out\"\n";
    let one = format!("[[pktgen.stream]]\nverb = \"write\"\n{HOSTS}");
    let cases = [
        (
            format!("{one}first_qpn = 7\nqps = 3\n{one}first_qpn = 9"),
            "both use queue pair 0x9 of 10.0.0.2: their PSNs collide",
            "write `first_qpn = 0xa` here",
        ),
        (
            format!("{one}size = 7\nlatency = true"),
            "does not fit into a payload of 7",
            "write `size = 8` or more for `stream 1`",
        ),
        (
            format!("{one}size = 4000\nmtu = 4096"),
            "do not fit the port's MTU of 1500",
            "write `mtu = 4060` for the port",
        ),
        (
            format!("{one}rate = {{ packets_per_s = [1, 2] }}"),
            "a ramp needs two rates and `over_s`",
            "over_s = 10",
        ),
        (format!("{one}rate = {{}}"), "`rate` has no rate", "packets_per_s"),
        (format!("{one}coalesce = 3"), "`coalesce` is not valid for `verb = \"write\"`", "verb = \"ack\""),
        (
            format!("{one}outstanding = 4\nack_every = 9"),
            "never requests an acknowledgement",
            "ack_every = 1",
        ),
        (
            format!("{one}name = \"x\"\n{one}first_qpn = 8000\nname = \"x\""),
            "two streams have the name `x`",
            "its own name",
        ),
        (
            one.replace("\"write\"", "\"fetch_add\"") + "size = 8",
            "`size` is not valid for `verb = \"fetch_add\"`",
            "remove it",
        ),
        (
            one.replace("dst = \"10.0.0.2\"", "dst = \"fd00::2\""),
            "different versions of IP",
            "of the same IP version",
        ),
        (one.replace("\"write\"", "\"wrote\""), "`verb` cannot be `wrote`", "did you mean `write`?"),
        (
            one.replace("\"write\"", "\"ack\"") + "coalesce = 10_000",
            "1536 packets of a queue pair, of 10000 PSNs each, take half of all PSNs",
            "a smaller `coalesce`",
        ),
        (
            one.replace("\"write\"", "\"read\"") + "size = 16_777_216",
            "of 16384 PSNs each, take half of all PSNs",
            "a smaller READ",
        ),
        (
            format!("respond = true\nreceive = \"out\"\n{one}size = 8192\nmtu = 1024\noutstanding = 256"),
            "2048 packets of a queue pair are outstanding at once, but `window` covers only 1024",
            "write `window = 2048`",
        ),
        (
            format!("{one}malformed = 1.0\npackets = 7"),
            "do not count towards `packets` = 7: the run would never end",
            "replace `packets` by `duration_s`",
        ),
        (String::new(), "[pktgen] has no stream", "[[pktgen.stream]]"),
    ];
    for (streams, message, help) in cases {
        let (_folder, path) = file(&format!("{ports}{streams}\n"));
        let output = understudy(&["check", &path, "--json"]);
        let report = report(&output);
        assert_eq!(
            (output.status.code(), &report["ok"]),
            (Some(2), &Value::Bool(false)),
            "{streams}: {report}"
        );
        let errors = report["errors"].as_array().unwrap();
        let found = errors.iter().any(|error| {
            error["message"].as_str().unwrap().contains(message)
                && error["help"].as_str().unwrap().contains(help)
        });
        assert!(found && errors.len() == 1, "{message:?} and {help:?} in {report}");
    }
    let (_folder, path) = file(&format!("{ports}respond = true\n{one}"));
    let shown = text(&understudy(&["check", &path]).stderr);
    assert!(shown.contains("`respond` needs `receive`"), "{shown}");
}

#[test]
fn workers_without_work_or_send_queue_are_refused() {
    let two = "[runtime]\nworkers = [\"any\", \"any\"]\n";
    let zipf = "qps = 9\npick = { zipf = 0.99 }\n";
    // With one worker, 1,536 packets are in flight.
    let acks = "qps = 9\ncoalesce = 4000\n";
    for (ports, lines, message, help) in [
        (RING, "qps = 9", "port `out` has 1 send queue for 2 workers", "write `rx_queues = 2` for that port"),
        (
            NULL,
            "qps = 1",
            "the streams give 1 of 2 workers something to send",
            "list 1 CPU in `workers`, or raise `qps`",
        ),
        (NULL, zipf, "the streams give 1 of 2 workers", "`stream 1` is at one worker, because Zipf's law"),
        (NULL, acks, "2592 packets of a queue pair, of 4000 PSNs each, take half of all PSNs", "fewer PSNs"),
        (TAP, "qps = 9", "port `out` has 1 send queue for 2 workers", "or use another device"),
    ] {
        let verb = if lines == acks { "ack" } else { "write" };
        let (_folder, path) =
            file(&format!("{two}{ports}[[pktgen.stream]]\nverb = \"{verb}\"\n{HOSTS}{lines}\n"));
        let report = report(&understudy(&["check", &path, "--json"]));
        let errors = report["errors"].as_array().unwrap();
        assert_eq!(errors.len(), 1, "{report}");
        assert!(errors[0]["message"].as_str().unwrap().contains(message), "{report}");
        assert!(errors[0]["help"].as_str().unwrap().contains(help), "{report}");
    }
}

const NULL: &str = "[[port]]\nname = \"out\"\nnull = { size = 64 }\n[pktgen]\nsend = \"out\"\n";
const TAP: &str = "[[port]]\nname = \"out\"\ntap = { interface = \"us-gen\" }\n[pktgen]\nsend = \"out\"\n";
const RING: &str = "[[port]]\nname = \"out\"\nring = {}\n[pktgen]\nsend = \"out\"\n";

#[test]
fn keys_that_a_verb_does_not_allow_are_reported_with_a_remedy() {
    let one = format!("[[pktgen.stream]]\nverb = \"write\"\n{HOSTS}");
    let cases = [
        (
            one.replace("\"write\"", "\"read\"") + "latency = true",
            "read has no payload that could carry the time",
            "`outstanding` measures the round trip",
        ),
        (
            one.replace("\"write\"", "\"ack\"") + "latency = true",
            "ack has no payload that could carry the time",
            "remove `latency`",
        ),
        (
            one.replace("dst = \"10.0.0.2\"", "dst = \"10.0.0.1\""),
            "source and destination are both 10.0.0.1",
            "its own address",
        ),
        (format!("{one}timeout_us = 9"), "`timeout_us` needs `outstanding`", "outstanding = 16"),
    ];
    for (stream, message, help) in cases {
        let (_folder, path) = file(&format!("{RING}{stream}\n"));
        let report = report(&understudy(&["check", &path, "--json"]));
        let errors = report["errors"].as_array().unwrap();
        let has = |key: &str, words| errors[0][key].as_str().unwrap().contains(words);
        assert!(errors.len() == 1 && has("message", message) && has("help", help), "{message:?} in {report}");
    }
}

/// Tests each key that is not valid for all verbs with each verb.
#[test]
fn keys_are_refused_for_exactly_the_verbs_without_them() {
    const MEMORY_VERBS: &[&str] = &["write", "read", "compare_swap", "fetch_add"];
    let keys: [(&str, &[&str]); 7] = [
        ("coalesce = 2\n", &["ack"]),
        ("ack_every = 2\n", &["write", "send"]),
        ("va = 4096\n", MEMORY_VERBS),
        ("rkey = 1\n", MEMORY_VERBS),
        ("slots = 2\n", MEMORY_VERBS),
        ("slot = \"uniform\"\n", MEMORY_VERBS),
        ("mtu = 512\n", &["write", "send", "read", "onepipe_message"]),
    ];
    let mut valid_config = RING.to_owned();
    for verb in
        ["write", "send", "read", "compare_swap", "fetch_add", "ack", "onepipe_message", "onepipe_beacon"]
    {
        let stream = format!("[[pktgen.stream]]\nverb = \"{verb}\"\n{HOSTS}");
        let lines = |fit: bool| keys.iter().filter(move |key| key.1.contains(&verb) == fit).map(|key| key.0);
        valid_config.push_str(&stream);
        valid_config.extend(lines(true));
        let (_folder, path) = file(&(format!("{RING}{stream}") + &lines(false).collect::<String>()));
        let report = report(&understudy(&["check", &path, "--json"]));
        let errors = report["errors"].as_array().unwrap();
        let printed = format!("is not valid for `verb = \"{verb}\"`");
        assert_eq!(errors.len(), lines(false).count(), "{report}");
        assert!(
            errors.iter().all(|error| error["message"].as_str().unwrap().ends_with(&printed)),
            "{report}"
        );
    }
    let (_folder, path) = file(&valid_config);
    let shown = understudy(&["check", &path]);
    assert!(shown.status.success(), "{}", text(&shown.stderr));
    assert!(text(&shown.stdout).contains("MB for the state of queue pairs"), "{}", text(&shown.stdout));
}

/// The peer of a memif port is killed during the run.
#[test]
fn a_port_that_goes_down_invalidates_the_run() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, role: &str, rest: &str| {
        let path = folder.path().join(name);
        let port =
            format!("[[port]]\nname = \"wire\"\nmemif = {{ socket = \"wire.sock\", role = \"{role}\" }}\n");
        std::fs::write(&path, format!("[runtime]\nidle = \"sleep\"\n{port}{rest}")).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let mirror = write("mirror.toml", "server", "[forward]\npairs = [[\"wire\", \"wire\"]]\n");
    let stream = format!("[[pktgen.stream]]\nverb = \"write\"\n{HOSTS}rate = {{ packets_per_s = 20_000 }}\n");
    let config =
        write("my.toml", "client", &format!("[pktgen]\nsend = \"wire\"\nreceive = \"wire\"\n{stream}"));
    let start = |arguments: &[&str]| {
        let mut program = command(env!("CARGO_BIN_EXE_understudy"));
        program.args(arguments).stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped());
        Process::start(program)
    };
    let mut mirror = start(&["run", &mirror]);
    let mut generator = start(&["pktgen", &config, "--live", "0.05", "--json"]);
    // The mirror is killed when the first packets have come back.
    let mut lines = std::io::BufRead::lines(std::io::BufReader::new(generator.stdout.take().unwrap()));
    let mut next = || lines.next().map(|line| serde_json::from_str::<Value>(&line.unwrap()).unwrap());
    loop {
        let line = next().expect("another line");
        let fields = ["sent", "received", "lost", "unseen", "duplicates"];
        let [_, received, ..] = fields.map(|key| line[key].as_u64().expect(key));
        assert!(line["seconds"].is_number() && line["sent_per_s"].is_number(), "{line}");
        if received > 0 {
            break;
        }
    }
    mirror.kill().unwrap();
    mirror.wait().unwrap();
    let lost_its_peer = std::io::BufRead::lines(std::io::BufReader::new(generator.stderr.take().unwrap()))
        .map(Result::unwrap)
        .find(|line| line.contains("has lost its peer"));
    assert!(lost_its_peer.is_some());
    generator.signal(Signal::INT);
    let mut report = Value::Null;
    while let Some(line) = next() {
        report = line;
    }
    assert_eq!(generator.wait().unwrap().code(), Some(1));
    let invalid_runs: Vec<_> = report["spoiled"]
        .as_array()
        .unwrap()
        .iter()
        .map(|invalid| invalid["reason"].as_str().unwrap())
        .collect();
    assert!(invalid_runs.contains(&"port_down"), "{report}");
    assert_eq!(report["adds_up"], true, "{report}");
    let stream = &report["streams"][0];
    assert!(stream["arrived"]["received"].as_u64().unwrap() > 0, "{report}");
}

/// A memif port whose peer never comes: the wait ends with the duration or a signal, and the report has the cause.
#[test]
fn a_run_without_its_peer_ends_in_time_and_names_the_cause() {
    let folder = tempfile::tempdir().unwrap();
    for (role, cause) in [("client", "no process listened on"), ("server", "no process connected to")] {
        let config = folder.path().join("my.toml");
        let port =
            format!("[[port]]\nname = \"out\"\nmemif = {{ socket = \"gone.sock\", role = \"{role}\" }}\n");
        let stream = format!("[[pktgen.stream]]\nverb = \"write\"\n{HOSTS}");
        std::fs::write(&config, format!("{port}[pktgen]\nsend = \"out\"\nreceive = \"out\"\n{stream}"))
            .unwrap();
        for command in ["pktgen --for 2", "pktgen"] {
            let machine = Machine::ready(command, &config);
            machine.wait_for("Waiting for the peer of `out`.", 1);
            if command == "pktgen" {
                machine.signal(Signal::HUP);
            }
            let (succeeded, report) = machine.end();
            let report: Value = serde_json::from_str(&report).unwrap();
            let spoiled = report["spoiled"].as_array().unwrap();
            assert!(!succeeded && spoiled.len() == 1 && spoiled[0]["reason"] == "no_peer", "{report}");
            assert!(spoiled[0]["what"].as_str().unwrap().contains(cause), "{report}");
        }
    }
}
