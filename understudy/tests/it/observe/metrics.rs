//! Prometheus: metrics parse, only grow, and include every name in the dashboard.

use super::*;

/// Parses metrics by name and labels. Asserts the rules of the format: each metric has a HELP and a TYPE line
/// before its values, its values are contiguous, and no series occurs twice.
fn parse(text: &str) -> BTreeMap<String, f64> {
    let mut series = BTreeMap::new();
    let mut heads = BTreeSet::new();
    let mut name = "";
    let plain = |name: &str| name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
    let mut lines = text.lines().peekable();
    while let Some(line) = lines.next() {
        if let Some(help) = line.strip_prefix("# HELP ") {
            name = help.split(' ').next().unwrap();
            assert!(heads.insert(name) && plain(name), "{line}");
            let kind = lines.next().and_then(|line| line.strip_prefix("# TYPE ")).unwrap();
            let kind = kind.strip_prefix(name).unwrap().trim();
            assert!(["counter", "gauge", "summary"].contains(&kind), "{line}");
            assert_eq!(kind == "counter", name.ends_with("_total"), "{name}");
            continue;
        }
        let (key, value) = line.rsplit_once(' ').unwrap();
        let base = key.split('{').next().unwrap();
        assert!(
            base == name || base.strip_suffix("_count") == Some(name),
            "{line} is in the block of {name}"
        );
        if let Some(labels) = key.strip_prefix(base).filter(|labels| !labels.is_empty()) {
            let labels = labels.strip_prefix('{').and_then(|labels| labels.strip_suffix('}')).unwrap();
            for label in labels.split("\",") {
                let (label, value) = label.split_once("=\"").unwrap();
                assert!(plain(label) && !value.contains('\n'), "{line}");
            }
        }
        assert!(series.insert(key.to_owned(), value.parse().unwrap()).is_none(), "{line} occurs twice");
    }
    series
}

fn http(address: &str, request: &str) -> (String, String) {
    let mut stream = TcpStream::connect(address).unwrap();
    write!(stream, "{request} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n").unwrap();
    let mut response = String::new();
    stream.read_to_string(&mut response).unwrap();
    let (head, body) = response.split_once("\r\n\r\n").unwrap();
    assert!(!head.to_ascii_lowercase().contains("transfer-encoding"), "{head}");
    (head.to_owned(), body.to_owned())
}

/// Returns the address of the metrics that an instance has printed.
fn address(instance: &Machine) -> String {
    let printed = instance.printed();
    let at = printed.split("http://").nth(1).unwrap_or_else(|| panic!("{printed}"));
    at.split('/').next().unwrap().to_owned()
}

#[test]
fn metrics_parse_and_only_grow() {
    let test_folder = TestFolder::new();
    let config = test_folder.config(true, &format!("prometheus = \"127.0.0.1:0\"\n{PAIR}"));
    let instance = Machine::ready("run", &config);
    let address = address(&instance);
    assert!(!instance.printed().contains("warning"), "{}", instance.printed());
    let scrape = || {
        let (head, body) = http(&address, "GET /metrics");
        assert!(head.starts_with("HTTP/1.1 200") && head.contains("text/plain; version=0.0.4"), "{head}");
        parse(&body)
    };
    let received = "understudy_port_received_frames_total{port=\"left\"}";
    let first = scrape();
    let began = Instant::now();
    let second = loop {
        let second = scrape();
        if second[received] > first[received] {
            break second;
        }
        assert!(began.elapsed() < DEADLINE);
    };
    for (key, before) in first.iter().filter(|(key, _)| key.contains("_total")) {
        assert!(second[key] >= *before, "{key}: {before}, then {}", second[key]);
    }
    for key in [
        "understudy_dropped_frames_total{reason=\"port_full\"}",
        "understudy_worker_busy_seconds_total{worker=\"0\"}",
        "understudy_forward_roce_frames_total",
        "understudy_opcode_frames_total{opcode=\"RC CmpSwap\"}",
        "understudy_uptime_seconds",
    ] {
        assert!(second.contains_key(key), "{key} is missing in {second:?}");
    }
    assert!(
        second
            .keys()
            .any(|key| key.starts_with("understudy_queue_pair_frames_total{host=\"10.0.0.1\",qpn=\"0x"))
    );
    assert!(http(&address, "GET /").0.starts_with("HTTP/1.1 404"));
    assert!(http(&address, "POST /metrics").0.starts_with("HTTP/1.1 405"));
    // Malformed requests do no harm.
    let printed = |request: &str| {
        let mut stream = TcpStream::connect(&address).unwrap();
        // The server may respond and close the connection before the whole request is sent.
        _ = stream.write_all(request.as_bytes());
        let mut response = String::new();
        _ = stream.read_to_string(&mut response);
        response.split(' ').nth(1).unwrap_or_default().to_owned()
    };
    for length in ["100000000000000", "18446744073709551615", "-1"] {
        assert_eq!(printed(&format!("GET /metrics HTTP/1.1\r\nContent-Length: {length}\r\n\r\n")), "200");
    }
    assert_eq!(printed(&format!("GET /{}", "a".repeat(4096 - 4))), "400", "a request head that is too long");
    let silent: Vec<_> = (0..16).map(|_| TcpStream::connect(&address).unwrap()).collect();
    assert_eq!(printed("GET /metrics HTTP/1.1\r\n\r\n"), "503", "the most connections are open");
    drop(silent);
    let began = Instant::now();
    while printed("GET /metrics HTTP/1.1\r\n\r\n") != "200" {
        assert!(began.elapsed() < DEADLINE);
    }
    // Every metric of the dashboard exists here, or belongs to another function.
    dashboard(&second);
    alerts(&second);
    instance.interrupt();
}

/// Checks the names in the dashboard's expressions.
fn dashboard(series: &BTreeMap<String, f64>) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../configs/grafana/understudy.json");
    let text = fs::read_to_string(path).unwrap();
    let dashboard: Value = serde_json::from_str(&text).unwrap();
    let there: BTreeSet<_> = series.keys().map(|key| key.split('{').next().unwrap()).collect();
    let mut named = 0;
    for panel in dashboard["panels"].as_array().unwrap() {
        for target in panel["targets"].as_array().into_iter().flatten() {
            let expression = target["expr"].as_str().unwrap();
            let words = expression.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
            for name in words.filter(|word| word.starts_with("understudy_")) {
                // Metrics of functions other than `forward` are covered by those functions' tests.
                let of_other_functions = [
                    "understudy_group_requests_total",
                    "understudy_group_responses_total",
                    "understudy_latency_seconds",
                    "understudy_stream_sent_total",
                    "understudy_stream_received_total",
                    "understudy_stream_lost",
                ];
                assert!(
                    there.contains(name) || of_other_functions.contains(&name),
                    "{name} of {}",
                    panel["title"]
                );
                named += 1;
            }
        }
    }
    assert!(named >= 10, "{named}");
}

#[test]
fn a_public_address_is_printed_with_a_warning() {
    let test_folder = TestFolder::new();
    let config = test_folder.config(false, &format!("prometheus = \"0.0.0.0:0\"\n{PAIR}"));
    let instance = Machine::ready("run", &config);
    assert!(
        instance.printed().contains("warning: every host that reaches 0.0.0.0:"),
        "{}",
        instance.printed()
    );
    instance.interrupt();
}

#[test]
fn latencies_of_a_generator_are_exported_as_metrics() {
    let test_folder = TestFolder::new();
    let config = test_folder.write(
        "pktgen.toml",
        "[[port]]\nname = \"loop\"\nring = {}\n[observe]\nsocket = \"top.sock\"\nprometheus = \"127.0.0.1:0\"\n\
         [pktgen]\nsend = \"loop\"\nreceive = \"loop\"\n[[pktgen.stream]]\nname = \"writes\"\nverb = \"write\"\nsize = 64\n\
         src = \"10.0.0.1\"\ndst = \"10.0.0.2\"\nrate = { packets_per_s = 10_000 }\nlatency = true\n",
    );
    let instance = Machine::ready("pktgen", &config);
    let seen = top_until(&config, |seen| {
        seen["latencies"].as_array().unwrap().iter().any(|latency| latency["count"].as_u64() > Some(100))
    });
    assert_eq!(seen["latencies"][0]["name"], "writes latency");
    let streams = table(&seen, "stream");
    for count in ["sent", "received"] {
        let at = streams["counts"].as_array().unwrap().iter().position(|name| name == count).unwrap();
        assert!(streams["rows"][0]["counts"][at].as_u64() > Some(100), "{count}: {streams}");
    }
    let (_, body) = http(&address(&instance), "GET /metrics");
    let series = parse(&body);
    assert!(series["understudy_latency_seconds{of=\"writes latency\",quantile=\"0.5\"}"] > 0.0, "{series:?}");
    assert!(series["understudy_latency_seconds_count{of=\"writes latency\"}"] > 100.0, "{series:?}");
    assert!(series["understudy_stream_sent_total{stream=\"writes\"}"] > 100.0, "{series:?}");
    assert!(series["understudy_stream_received_total{stream=\"writes\"}"] > 100.0, "{series:?}");
    assert!(series["understudy_stream_lost{stream=\"writes\"}"] < 1.0, "{series:?}");
    assert!(series.contains_key("understudy_stream_unseen{stream=\"writes\"}"), "{series:?}");
    assert!(body.contains("# TYPE understudy_stream_lost gauge"), "{body}");
    for count in ["stale", "unexpected", "reflected", "responses", "naks", "forfeited"] {
        assert!(
            series.contains_key(&format!("understudy_stream_{count}_total{{stream=\"writes\"}}")),
            "{series:?}"
        );
    }
}

/// Returns the path of a file of `configs/prometheus`.
fn rules(name: &str) -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../configs/prometheus").join(name)
}

/// Checks the names in the alert rules' expressions. The name of a function's metric is a pattern.
fn alerts(series: &BTreeMap<String, f64>) {
    let text = fs::read_to_string(rules("understudy.rules.yml")).unwrap();
    let there: BTreeSet<_> = series.keys().map(|key| key.split('{').next().unwrap()).collect();
    let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let mut named = 0;
    for line in text.lines().filter(|line| !line.trim_start().starts_with('#')) {
        for (at, _) in line.match_indices("understudy_") {
            let before = line[..at].chars().next_back();
            let name = line[at..].replace("[a-z0-9]+", "forward");
            let name: String = name.chars().take_while(|c| is_word(*c)).collect();
            // The rest are names of recorded series.
            if before != Some(':') {
                assert!(there.contains(&*name), "{name} of {line}");
                named += 1;
            }
        }
    }
    assert!(named >= 12, "{named}");
}

/// Without promtool (Debian's package prometheus), only the names in the rules are checked
/// (`metrics_parse_and_only_grow`).
#[test]
fn alert_rules_pass_promtool() {
    let run = |arguments: [&str; 2], file: &str| {
        std::process::Command::new("promtool").args(arguments).arg(rules(file)).output()
    };
    for (arguments, file) in
        [(["check", "rules"], "understudy.rules.yml"), (["test", "rules"], "understudy.test.yml")]
    {
        match run(arguments, file) {
            Ok(output) => {
                let printed = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
                assert!(output.status.success(), "{printed}");
            }
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) => panic!("promtool: {error}"),
        }
    }
}
