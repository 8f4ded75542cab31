//! `understudy trace`: packets as they arrive and as they leave.

use super::*;
use crate::common::json_page::assert_is_on_the_page;
use understudy_tests::processes::{self, Process, Signal, command};

const HOP: &str = "02:00:00:00:00:01";

/// Writes the configuration of a router between two ports, and a capture whose CASes are for it. Returns its
/// path, and the CASes' destination QPN.
fn router(test_folder: &TestFolder) -> (PathBuf, u32) {
    let frames = captures::frames(&captures::path(CAPTURE));
    // The destination address follows Ethernet and IPv4, the BTH follows UDP.
    let request = frames.iter().find(|frame| frame[42] == 0x13).unwrap();
    let mac: Vec<_> = request[..6].iter().map(|byte| format!("{byte:02x}")).collect();
    let qpn = u32::from_be_bytes([0, request[47], request[48], request[49]]);
    let rest = format!(
        "[forward.routes]\nmac = \"{}\"\n[[forward.routes.to]]\nprefix = \"10.0.0.0/24\"\n\
         via = [{{ port = \"right\", mac = \"{HOP}\" }}]\n",
        mac.join(":")
    );
    (test_folder.config(true, &rest), qpn)
}

fn bytes(part: &Value) -> Vec<u8> {
    let text = part["bytes"].as_str().unwrap();
    (0..text.len()).step_by(2).map(|at| u8::from_str_radix(&text[at..at + 2], 16).unwrap()).collect()
}

/// Asserts that the fields of a packet are those on the page about JSON.
fn compare_with_the_page(packet: &Value) {
    let mut record = packet.clone();
    for part in record["parts"].as_array_mut().unwrap() {
        // What the trace has of the part itself, and what the command adds to it.
        let (own, added) =
            core::mem::take(part.as_object_mut().unwrap()).into_iter().partition::<serde_json::Map<_, _>, _>(
                |(name, _)| ["what", "port", "len", "bytes"].contains(&&**name),
            );
        *part = own.into();
        assert_is_on_the_page("Fields of frames in `parts[]`", &added.into());
    }
    assert_is_on_the_page("`understudy trace --json`", &record);
}

#[test]
fn packets_are_shown_as_they_arrive_and_as_they_leave() {
    let test_folder = TestFolder::new();
    let (config, qpn) = router(&test_folder);
    let instance = Machine::ready("run", &config);
    let (config, file) = (config.to_str().unwrap(), test_folder.path("trace.pcapng"));
    let qp = format!("{qpn:#x}");
    let trace = |more: &[&str]| {
        let output = understudy(&[&["trace", config, "--count", "20"], more].concat());
        let error = String::from_utf8(output.stderr).unwrap();
        // No packet is missed, because the ring has room for the first ones.
        // Each line begins with its time.
        let lines: Vec<_> = error.lines().filter_map(|line| Some(line.split_once(' ')?.1)).collect();
        let expected = ["Watching. Ctrl-C ends it.", "20 packets"];
        assert!(output.status.success() && lines == expected, "{error}");
        String::from_utf8(output.stdout).unwrap()
    };
    let lines = trace(&["--qp", &qp, "--host", "10.0.0.1", "--json", "--pcapng", file.to_str().unwrap()]);
    let hop = [2, 0, 0, 0, 0, 1];
    let mut times = Vec::new();
    for (at, line) in lines.lines().enumerate() {
        let packet: Value = serde_json::from_str(line).unwrap();
        compare_with_the_page(&packet);
        assert_eq!(packet["number"], at as u64 + 1);
        times.push(packet["time_ns"].as_u64().unwrap());
        let parts = packet["parts"].as_array().unwrap();
        let part_kinds: Vec<_> = parts.iter().map(|part| part["what"].as_str().unwrap()).collect();
        assert_eq!(part_kinds, ["in", "out"], "{packet}");
        assert_eq!((&parts[0]["port"], &parts[1]["port"]), (&0.into(), &1.into()));
        assert_eq!((&parts[0]["port_name"], &parts[1]["port_name"]), (&"left".into(), &"right".into()));
        assert_eq!((&parts[0]["opcode"], &parts[1]["ttl"]), (&19.into(), &63.into()));
        let (before, after) = (bytes(&parts[0]), bytes(&parts[1]));
        // The packet arrives with the router's address as destination, and leaves with it as source, to the
        // next hop, with a lower TTL.
        assert!(after[..6] == hop && after[6..12] == before[..6], "{packet}");
        assert_eq!(after[22], before[22] - 1);
        assert_eq!(u32::from_be_bytes([0, before[47], before[48], before[49]]), qpn);
        assert_eq!(
            after[42..],
            before[42..],
            "the transport headers, the payload and the ICRC must not change"
        );
    }
    assert!(times.len() == 20 && times.is_sorted(), "{times:?}");

    let text = trace(&["--qp", &qp, "--host", "10.0.0.1"]);
    let first: Vec<_> = text.lines().take(2).collect();
    assert!(
        first[0].starts_with("     1     0.000000  left   in   10.0.0.2 > 10.0.0.1  RC CmpSwap"),
        "{text}"
    );
    assert!(first[1].trim_start().starts_with("right  out  10.0.0.2 > 10.0.0.1  RC CmpSwap"), "{text}");

    // Filters count what they show; fewer bytes are kept on request.
    let arguments = ["--qp", &qp, "--opcode", "CmpSwap", "--json", "--snaplen", "60", "--count", "20"];
    let lines = understudy(&[&["trace", config][..], &arguments].concat());
    let lines = String::from_utf8(lines.stdout).unwrap();
    assert_eq!(lines.lines().count(), 20);
    for line in lines.lines() {
        let packet: Value = serde_json::from_str(line).unwrap();
        assert_eq!((bytes(&packet["parts"][0]).len(), &packet["parts"][0]["icrc"]), (60, &"ok".into()));
    }
    let refused = understudy(&["trace", config, "--qp", &qp, "--snaplen", "65536"]);
    let error = String::from_utf8(refused.stderr).unwrap();
    assert!(refused.status.code() == Some(2) && error.contains("at most 65535, or 0 for whole"), "{error}");

    // Packets for another station are dropped, and shown as dropped.
    let response =
        captures::frames(&captures::path(CAPTURE)).into_iter().find(|frame| frame[42] == 0x12).unwrap();
    let other = u32::from_be_bytes([0, response[47], response[48], response[49]]).to_string();
    let text = trace(&["--qp", &other, "--host", "10.0.0.2"]);
    assert!(text.lines().nth(1).unwrap().ends_with("dropped: other station"), "{text}");
    let diagnosis = understudy(&["diagnose", "--at", config, "--qp", &other, "--for", "0.2", "--json"]);
    let found: Value = serde_json::from_slice(&diagnosis.stdout).unwrap();
    assert_eq!(diagnosis.status.code(), Some(1), "{found}");
    assert_eq!(found["findings"][0]["kind"], "dropped_here", "{found}");
    // Without a queue pair, both directions are seen.
    let diagnosis = understudy(&["diagnose", "--at", config, "--for", "0.2", "--json"]);
    let found: Value = serde_json::from_slice(&diagnosis.stdout).unwrap();
    let drops =
        found["findings"].as_array().unwrap().iter().find(|one| one["kind"] == "dropped_here").unwrap();
    assert!(drops["count"].as_u64().unwrap() * 3 < found["packets"].as_u64().unwrap() * 2, "{found}");
    assert!(
        found["findings"].as_array().unwrap().iter().all(|one| one["kind"] != "one_direction"),
        "{found}"
    );

    // A trace with an invalid filter is refused. The counters are not affected.
    let refused = understudy(&["trace", config, "--group", "3"]);
    let error = String::from_utf8(refused.stderr).unwrap();
    assert!(
        !refused.status.success() && error.contains("there is no group 3: this instance has none"),
        "{error}"
    );
    let report = instance.interrupt();
    let port = |port: usize, count: &str| report["ports"][port][count].as_u64().unwrap();
    let drops: u64 =
        report["drops"].as_array().unwrap().iter().map(|drop| drop["frames"].as_u64().unwrap()).sum();
    assert_eq!(port(0, "rx_frames"), port(1, "tx_frames") + drops);

    let decoded = understudy(&["decode", "--json", file.to_str().unwrap()]);
    assert!(decoded.status.success());
    let decoded = String::from_utf8(decoded.stdout).unwrap();
    assert_eq!(decoded.lines().count(), 40, "{decoded}");
    for line in decoded.lines() {
        let packet: Value = serde_json::from_str(line).unwrap();
        assert_eq!((&packet["icrc"], &packet["dest_qp"]), (&"ok".into(), &qpn.into()));
        let time = packet["time"].as_f64().unwrap() * 1e9;
        assert!(time > times[0] as f64 - 1e3 && time < times[19] as f64 + 1e3, "{time} is not in {times:?}");
    }
    let names = fs::read(&file).unwrap();
    for name in ["left-in", "left-out", "right-in", "right-out"] {
        assert!(names.windows(name.len()).any(|window| window == name.as_bytes()), "{name}");
    }
}

/// Long packets are copied as a whole on request, and their ICRC is then checked.
#[test]
fn whole_packets_are_shown_on_request() {
    let test_folder = TestFolder::new();
    let text = format!(
        "[[port]]\nname = \"left\"\nmtu = 9000\npcap = {{ rx = \"{}\", infinite = true }}\n\
         [[port]]\nname = \"right\"\nmtu = 9000\npcap = {{ tx = \"/dev/null\" }}\n\
         [observe]\nsocket = \"top.sock\"\n{PAIR}",
        captures::path("vlan_rc_write_4096.pcap").display()
    );
    let config = test_folder.write("my.toml", &text);
    let instance = Machine::ready("run", &config);
    let trace = |more: &[&str]| -> Vec<Value> {
        let arguments = ["trace", config.to_str().unwrap(), "--all", "--count", "60", "--json"];
        let output = understudy(&[&arguments, more].concat());
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let lines = String::from_utf8(output.stdout).unwrap();
        let packets = lines.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        packets.flat_map(|packet| packet["parts"].as_array().unwrap().clone()).collect()
    };
    let whole = trace(&["--snaplen", "0"]);
    assert!(whole.iter().any(|part| part["frame_len"].as_u64() > Some(1000)));
    for part in &whole {
        assert_eq!(
            (bytes(part).len() as u64, &part["icrc"]),
            (part["frame_len"].as_u64().unwrap(), &"ok".into())
        );
    }
    let start = trace(&[]);
    assert!(
        start.iter().all(|part| bytes(part).len() as u64 == part["frame_len"].as_u64().unwrap().min(256))
    );
    // All packets of both directions are traced, and those of one host are.
    let sources = |parts: &[Value]| parts.iter().map(|part| part["src"].to_string()).collect::<BTreeSet<_>>();
    assert_eq!(sources(&whole).len(), 2);
    let host = whole[0]["src"].as_str().unwrap();
    let parts = trace(&["--host", host]);
    assert!(
        parts.iter().all(|part| part["src"] == host || part["dst"] == host) && sources(&parts).len() == 2
    );
    instance.interrupt();
}

/// Two ports play captures forever, with a worker for each.
#[test]
fn each_workers_packets_are_shown_in_order() {
    let test_folder = TestFolder::new();
    let (_, qpn) = router(&test_folder);
    let port = |name: &str| {
        let capture = captures::path(CAPTURE);
        format!(
            "[[port]]\nname = \"{name}\"\nmtu = 9000\npcap = {{ rx = \"{}\", infinite = true }}\n",
            capture.display()
        )
    };
    let text = format!(
        "[runtime]\nworkers = [\"any\", \"any\"]\n{}{}[observe]\nsocket = \"top.sock\"\n{PAIR}",
        port("left"),
        port("right")
    );
    let config = test_folder.write("two.toml", &text);
    let instance = Machine::ready("run", &config);
    let began = Instant::now();
    let mut workers = BTreeSet::new();
    // The kernel may share its CPUs between the workers in any way.
    while workers.len() < 2 {
        assert!(began.elapsed() < DEADLINE, "{workers:?}");
        let qp = qpn.to_string();
        let trace = understudy(&["trace", config.to_str().unwrap(), "--json", "--count", "500", "--qp", &qp]);
        let mut last = BTreeMap::new();
        for (at, line) in String::from_utf8(trace.stdout).unwrap().lines().enumerate() {
            let packet: Value = serde_json::from_str(line).unwrap();
            assert_eq!((&packet["number"], &packet["left_out"]), (&(at as u64 + 1).into(), &0.into()));
            let (worker, time) = (packet["worker"].as_u64().unwrap(), packet["time_ns"].as_u64().unwrap());
            let before = last.insert(worker, time).unwrap_or(0);
            assert!(before <= time, "worker {worker}: {time} after {before}");
        }
        assert!(!last.is_empty(), "{}", String::from_utf8_lossy(&trace.stderr));
        workers.extend(last.into_keys());
    }
    instance.interrupt();
}

#[test]
fn there_is_one_trace_at_a_time() {
    let test_folder = TestFolder::new();
    let (config, qpn) = router(&test_folder);
    let instance = Machine::ready("run", &config);
    let qp = qpn.to_string();
    let config = config.to_str().unwrap();
    // A trace of a queue pair without packets starts, and waits.
    let mut waiting = command(env!("CARGO_BIN_EXE_understudy"));
    waiting.args(["trace", config, "--qp", "0xabcdef"]).stderr(Stdio::piped());
    let mut waiting = Process::start(waiting);
    let mut stderr = BufReader::new(waiting.stderr.take().unwrap());
    let mut printed = String::new();
    stderr.read_line(&mut printed).unwrap();
    assert!(printed.contains(" Watching."), "{printed}");
    let second = understudy(&["trace", config, "--qp", &qp, "--count", "1"]);
    let error = String::from_utf8(second.stderr).unwrap();
    assert!(!second.status.success());
    assert!(error.contains("another trace is running"), "{error}");
    // An interrupted trace prints its count.
    waiting.signal(Signal::INT);
    let mut printed = String::new();
    stderr.read_to_string(&mut printed).unwrap();
    assert!(waiting.wait().unwrap().success() && printed.ends_with(" 0 packets\n"), "{printed}");
    // Then another trace can start.
    let began = Instant::now();
    while !understudy(&["trace", config, "--qp", &qp, "--count", "1"]).status.success() {
        assert!(began.elapsed() < DEADLINE);
    }
    // A trace ends when its instance ends.
    let mut left = command(env!("CARGO_BIN_EXE_understudy"));
    left.args(["trace", config, "--qp", &qp]).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut left = Process::start(left);
    let mut stderr = BufReader::new(left.stderr.take().unwrap());
    let mut printed = String::new();
    stderr.read_line(&mut printed).unwrap();
    assert!(printed.contains(" Watching."), "{printed}");
    instance.interrupt();
    stderr.read_to_string(&mut printed).unwrap();
    left.wait().unwrap();
    assert!(printed.contains(" packets") || printed.contains("stopped responding"), "{printed}");
}

/// Starts three servers, a bridge and a P4CE switch, each as a process.
fn consensus(test_folder: &TestFolder) -> Vec<Machine> {
    let runtime = "[runtime]\nidle = \"sleep\"\n";
    let port = |name: &str, id: u32, role: &str| {
        format!(
            "[[port]]\nname = \"{name}\"\nmemif = {{ socket = \"rack.sock\", id = {id}, role = \"{role}\" }}\n"
        )
    };
    let ports: String = (0..4).map(|n| port(&format!("p{n}"), n, "server")).collect();
    let bridge = test_folder.write("bridge.toml", &format!("{runtime}{ports}[forward]\nmac_table = {{}}\n"));
    let switch = port("rack", 3, "client")
        + "[p4ce]\nmac = \"02:00:00:00:00:fe\"\naddresses = [\"10.0.0.254/24\"]\n[observe]\nsocket = \"switch.sock\"\n";
    let switch = test_folder.write("switch.toml", &format!("{runtime}{switch}"));
    let server = |n: u32| {
        let text = port("eth", n, "client");
        let text = format!(
            "{runtime}{text}[nic]\naddresses = [\"10.0.0.{}/24\"]\nmac = \"02:00:00:00:00:0{}\"\n[consensus]\nid = {n}\n\
             servers = [\"10.0.0.1\", \"10.0.0.2\", \"10.0.0.3\"]\nswitch = \"10.0.0.254\"\nheartbeat_us = 20000\n\
             propose = {{ size = 64 }}\n[observe]\nsocket = \"server-{n}.sock\"\n",
            n + 1,
            n + 1
        );
        test_folder.write(&format!("server-{n}.toml"), &text)
    };
    let mut all = vec![Machine::ready("run", &bridge), Machine::ready("run", &switch)];
    let command = |n| if n == 0 { "host --bootstrap" } else { "host" };
    all.extend((0..3).map(|n| Machine::ready(command(n), &server(n))));
    all
}

#[test]
fn a_groups_packets_are_shown_with_all_their_copies() {
    let test_folder = TestFolder::new();
    let _all = consensus(&test_folder);
    let switch = test_folder.path("switch.toml");
    let began = Instant::now();
    let (group, packet) = loop {
        assert!(began.elapsed() < DEADLINE, "{}", top(&switch));
        let seen = top(&switch);
        let tables = seen["tables"].as_array().unwrap();
        let Some(groups) = tables.iter().find(|table| table["name"] == "group") else { continue };
        let row = &groups["rows"][0];
        if row["counts"][0].as_u64() < Some(100) || row["counts"][2].as_u64() < Some(100) {
            continue;
        }
        // The group may end at any time, and another one begin.
        let id = row["cells"][0].as_str().unwrap();
        // A trace of a group that has ended waits until the timeout ends it.
        let trace = ["trace", switch.to_str().unwrap(), "--json", "--count", "50", "--group", id];
        let program = env!("CARGO_BIN_EXE_understudy");
        let output = processes::command("timeout")
            .args(["-s", "INT", "5", "setpriv", "--pdeathsig", "KILL", "--", program])
            .args(trace)
            .output()
            .unwrap();
        let lines = String::from_utf8(output.stdout).unwrap();
        let packets = lines.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        let part_kinds = |packet: &Value| -> Vec<String> {
            packet["parts"]
                .as_array()
                .unwrap()
                .iter()
                .map(|part| part["what"].as_str().unwrap().into())
                .collect()
        };
        let scattered = |packet: &Value| {
            part_kinds(packet) == ["in", "out", "out"] && bytes(&packet["parts"][0])[42] == 0x0a
        };
        if let Some(packet) = packets.into_iter().find(scattered) {
            break (row.clone(), packet);
        }
    };
    let parts: Vec<_> = packet["parts"].as_array().unwrap().iter().map(bytes).collect();
    let to =
        |frame: &[u8]| (frame[30..34].to_vec(), u32::from_be_bytes([0, frame[47], frame[48], frame[49]]));
    let (leaders, one, other) = (to(&parts[0]), to(&parts[1]), to(&parts[2]));
    assert_eq!(leaders.0, [10, 0, 0, 254]);
    // To each replica, with that replica's own queue pair
    let pairs: Vec<_> = group["queue_pairs"].as_array().unwrap().iter().collect();
    for (host, qpn) in [&leaders, &one, &other] {
        let host = format!("{}.{}.{}.{}", host[0], host[1], host[2], host[3]);
        assert!(pairs.iter().any(|pair| pair[0] == host && pair[1] == *qpn), "{host} {qpn} in {group}");
    }
    assert!(one.0 != other.0 && one.0 != leaders.0, "{packet}");
    // The counters that a server reports of itself
    let server = top_until(&test_folder.path("server-0.toml"), |seen| {
        seen["counters"]
            .as_array()
            .unwrap()
            .iter()
            .any(|counter| counter["name"] == "decided" && counter["value"].as_u64() > Some(0))
    });
    assert_eq!(server["instance"]["function"], "consensus");
}
