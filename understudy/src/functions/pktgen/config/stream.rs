//! Reads a stream: `[[pktgen.stream]]`.

use core::net::IpAddr;
use core::ops::Range;
use onepipe::OnePipe;
use pktgen::profile::{HostAddress, MAX_OUTSTANDING, MAX_QPS, MAX_SLOTS, RemoteMemory, STAMP_LEN};
use pktgen::{Choice, Rate, Stream, Unit, Verb};
use rocev2::ethernet::MacAddr;
use rocev2::ipv4::Ipv4;
use rocev2::ipv6::Ipv6;
use rocev2::udp::Udp;
use rocev2::{Bth, Psn, Qpn};
use settings::address::ip;
use settings::address::station;
use settings::report::Problem;
use settings::tree::{Table, Value};
use switch::{Nanos, Probability};

/// Longest name of a stream, in characters, so that reports fit on a line
const MAX_NAME: usize = 32;
/// Longest message, in bytes (IB 9.4.1)
const MAX_SIZE: u64 = 1 << 30;
const VERBS: [&str; 8] =
    ["write", "send", "read", "compare_swap", "fetch_add", "ack", "onepipe_message", "onepipe_beacon"];

/// Verbs that access an address in memory
const MEMORY_VERBS: &[&str] = &["write", "read", "compare_swap", "fetch_add"];
/// Keys that only some verbs use: key, example, verbs
const VERB_KEYS: [(&str, &str, &[&str]); 7] = [
    ("coalesce", "8", &["ack"]),
    ("ack_every", "1", &["write", "send"]),
    ("va", "0x7f0000000000", MEMORY_VERBS),
    ("rkey", "0x1000", MEMORY_VERBS),
    ("slots", "4096", MEMORY_VERBS),
    ("slot", "\"uniform\"", MEMORY_VERBS),
    ("mtu", "1024", &["write", "send", "read", "onepipe_message"]),
];

/// Stream, and the spans of its keys.
pub(super) struct ReadStream {
    pub(super) spans: Spans,
    pub(super) stream: Stream,
}

/// Spans of keys in the file. An absent key has the span of the table's header.
pub(super) struct Spans {
    pub(super) header: Range<usize>,
    pub(super) latency: Option<Range<usize>>,
    dst: Option<Range<usize>>,
    qpn: Option<Range<usize>>,
    size: Option<Range<usize>>,
    outstanding: Option<Range<usize>>,
    coalesce: Option<Range<usize>>,
    malformed: Option<Range<usize>>,
}

impl Spans {
    pub(super) fn qpn(&self) -> Range<usize> {
        self.qpn.clone().unwrap_or_else(|| self.header.clone())
    }

    pub(super) fn dst(&self) -> Range<usize> {
        self.dst.clone().unwrap_or_else(|| self.header.clone())
    }

    pub(super) fn size(&self) -> Range<usize> {
        self.size.clone().unwrap_or_else(|| self.header.clone())
    }

    /// Returns the span of the key that determines how many PSNs a message takes.
    pub(super) fn step(&self) -> Range<usize> {
        self.coalesce.clone().unwrap_or_else(|| self.size())
    }

    pub(super) fn malformed(&self) -> Range<usize> {
        self.malformed.clone().unwrap_or_else(|| self.header.clone())
    }

    pub(super) fn outstanding(&self) -> Range<usize> {
        self.outstanding.clone().unwrap_or_else(|| self.header.clone())
    }
}

pub(super) fn read(
    table: Table<'_>,
    index: usize,
    received: bool,
    mtu_of_port: Option<u16>,
    names: &mut Vec<(String, Range<usize>)>,
) -> Option<ReadStream> {
    let header = table.problem("").span.unwrap_or_default();
    let name = name(&table, index, &header, names);
    let verb = verb(&table);
    let (src, dst) = (host(&table, "src", "\"10.0.0.1\""), host(&table, "dst", "\"10.0.0.2\""));
    let src_mac = mac(&table, "src_mac", "\"02:00:00:00:00:01\"", MacAddr([2, 0, 0, 0, 0, 1]));
    let dst_mac = mac(&table, "dst_mac", "\"02:00:00:00:00:02\"", MacAddr([2, 0, 0, 0, 0, 2]));
    let span = |key, example| table.get(key, example).map(|value| value.span());
    let spans = Spans {
        qpn: span("first_qpn", "0x100"),
        size: span("size", "64"),
        latency: span("latency", "true"),
        dst: span("dst", "\"10.0.0.2\""),
        outstanding: span("outstanding", "16"),
        coalesce: span("coalesce", "8"),
        malformed: span("malformed", "0.01"),
        header,
    };
    let default_qpn = 0x100 + 0x1000 * index as u64;
    let first_qpn = table.number("first_qpn", 2..=0xff_fffe, default_qpn) as u32;
    let qps = table.number("qps", 1..=MAX_QPS.into(), 1) as u32;
    let pick = choice(&table, "pick");
    let sizes = sizes(&table, verb);
    let mtu = mtu(&table);
    let memory = memory(&table);
    let first_psn = table.spanned_number("first_psn", 0..=0xff_ffff, 0);
    let rate =
        table.get("rate", "{ packets_per_s = 1_000_000 }").map_or(Some(Rate::Max), |value| rate(&value));
    let burst = table.spanned_number("burst", 1..=256, 32);
    let packets = table.spanned_number("packets", 1..=1 << 48, 1_000_000);
    let ack_every = table.number("ack_every", 0..=u32::MAX.into(), 1) as u32;
    let outstanding = table.spanned_number("outstanding", 1..=MAX_OUTSTANDING.into(), 16);
    let timeout = Nanos::from_micros(table.number("timeout_us", 1..=60_000_000, 10_000));
    let latency = table.get("latency", "true").map(|value| value.boolean());
    let malformed = table.get("malformed", "0.01").map_or(Some(0.0), |value| value.fraction(0.0..=1.0));
    if let (Some(verb), Some(sizes), Some(mtu), Some(limit), Some(dst)) =
        (verb, &sizes, mtu, mtu_of_port, dst)
    {
        check_mtu(&table, verb, sizes, mtu, limit, dst);
    }
    table.finish();
    let (verb, sizes, mtu) = (verb?, sizes?, mtu?);
    let has_stamp_room = verb.has_payload() && sizes.iter().all(|size| *size >= STAMP_LEN as u32);
    let stream = Stream {
        name: name?,
        verb,
        src: HostAddress { mac: src_mac?, ip: src? },
        dst: HostAddress { mac: dst_mac?, ip: dst? },
        first_qpn: Qpn::new(first_qpn),
        qps,
        pick: pick?,
        sizes,
        mtu,
        memory: memory?,
        first_psn: first_psn.map(|psn| Psn::new(psn.into_inner() as u32)),
        rate: rate?,
        burst: burst.map(|n| n.into_inner() as u16),
        packets: packets.map(toml::Spanned::into_inner),
        ack_every,
        outstanding: outstanding.map(|n| n.into_inner() as u16),
        timeout,
        stamp: match latency {
            Some(enabled) => enabled?,
            None => has_stamp_room && received,
        },
        malformed: Probability::new(malformed?)?,
    };
    Some(ReadStream { spans, stream })
}

fn name(
    table: &Table<'_>,
    index: usize,
    header: &Range<usize>,
    names: &mut Vec<(String, Range<usize>)>,
) -> Option<String> {
    let given = table.get("name", "\"writes\"");
    let (name, span) = match &given {
        None => (format!("stream {}", index + 1), header.clone()),
        Some(value) => (value.text()?.to_owned(), value.span()),
    };
    if name.chars().count() > MAX_NAME || name.chars().any(char::is_control) {
        let problem = Problem::at(span, "`name` of a stream is too long, or has control characters")
            .label("not a valid name");
        table
            .problems()
            .add(problem.help(format!("write up to {MAX_NAME} characters, such as `name = \"writes\"`")));
        return None;
    }
    if let Some((_, first)) = names.iter().find(|(other, _)| *other == name) {
        let problem = Problem::at(span, format!("two streams have the name `{name}`")).label("again");
        let problem = problem.also(first.clone(), "first here");
        table.problems().add(problem.help("give each stream its own name, by which reports separate them"));
        return None;
    }
    names.push((name.clone(), span));
    Some(name)
}

fn verb(table: &Table<'_>) -> Option<Verb> {
    let given = table.require("verb", "\"write\"")?;
    let coalesce = table.spanned_number("coalesce", 1..=1 << 16, 8);
    let word = given.word(&VERBS)?;
    check_verb_keys(table, word, &given);
    Some(match word {
        "write" => Verb::Write,
        "send" => Verb::Send,
        "read" => Verb::Read,
        "compare_swap" => Verb::CompareSwap,
        "fetch_add" => Verb::FetchAdd,
        "ack" => Verb::Ack { coalesce: coalesce.map_or(1, |n| n.into_inner() as u32) },
        "onepipe_message" => Verb::OnePipeMessage,
        _ => Verb::OnePipeBeacon,
    })
}

/// Reports keys that the verb does not use.
fn check_verb_keys(table: &Table<'_>, verb: &str, given: &Value<'_>) {
    for (key, example, verbs) in VERB_KEYS.into_iter().filter(|(.., verbs)| !verbs.contains(&verb)) {
        let Some(value) = table.get(key, example) else { continue };
        let message = format!("`{key}` is not valid for `verb = \"{verb}\"`");
        let problem = Problem::at(value.key_span(), message).label(format!("for {}", quoted(verbs)));
        let problem = problem.also(given.span(), "the verb");
        let instead =
            if let [only] = verbs { format!(", or write `verb = \"{only}\"`") } else { String::new() };
        table.problems().add(problem.help(format!("remove it{instead}")));
    }
    if let (Some(value), None) = (table.get("timeout_us", "10_000"), table.get("outstanding", "16")) {
        let problem = Problem::at(value.key_span(), "`timeout_us` needs `outstanding`");
        let problem = problem.label("no request waits");
        table
            .problems()
            .add(problem.help("remove it, or set the number of requests that wait: `outstanding = 16`"));
    }
}

/// Returns words in quotes, as a sentence lists them.
fn quoted(all: &[&str]) -> String {
    let quoted: Vec<_> = all.iter().map(|word| format!("`{word}`")).collect();
    match quoted.as_slice() {
        [most @ .., last] if !most.is_empty() => format!("{} and {last}", most.join(", ")),
        _ => quoted.concat(),
    }
}

fn host(table: &Table<'_>, key: &'static str, example: &'static str) -> Option<IpAddr> {
    table.require(key, example).and_then(|value| ip(&value))
}

fn mac(table: &Table<'_>, key: &'static str, example: &'static str, default: MacAddr) -> Option<MacAddr> {
    table.get(key, example).map_or(Some(default), |value| station(&value))
}

/// Reads `"turn"`, `"uniform"` or `{ zipf = 0.99 }`. The default is `"turn"`.
fn choice(table: &Table<'_>, key: &'static str) -> Option<Choice> {
    let Some(value) = table.get(key, "\"uniform\"") else { return Some(Choice::RoundRobin) };
    if value.text_if_any().is_some() {
        return Some(if value.word(&["turn", "uniform"])? == "turn" {
            Choice::RoundRobin
        } else {
            Choice::Uniform
        });
    }
    let table = value.clone().with_example("{ zipf = 0.99 }").table(value.name())?;
    let exponent = table.require("zipf", "0.99").and_then(|value| value.fraction(0.0..=10.0));
    table.finish();
    Some(Choice::Zipf { thousandths: (exponent? * 1000.0).round() as u32 })
}

fn sizes(table: &Table<'_>, verb: Option<Verb>) -> Option<Vec<u32>> {
    let given = table.get("size", "64");
    let has_size = verb.is_none_or(|verb| verb.has_payload() || verb == Verb::Read);
    match (given, has_size) {
        (None, false) => Some(Vec::new()),
        (None, true) => Some(vec![64]),
        (Some(value), false) => {
            let name = verb.map_or("", Verb::name);
            let problem =
                Problem::at(value.key_span(), format!("`size` is not valid for `verb = \"{name}\"`"));
            value.add(problem.label("this verb has one size").help("remove it"));
            None
        }
        (Some(value), true) => {
            let sizes = value.one_or_list();
            let sizes: Option<Vec<_>> =
                sizes.iter().map(|value| value.number(0..=MAX_SIZE, 64).map(|size| size as u32)).collect();
            let sizes = sizes?;
            if sizes.is_empty() {
                value.add(
                    value
                        .problem("`size` is empty")
                        .label("no size")
                        .help("write a size, such as `size = 64`"),
                );
                return None;
            }
            Some(sizes)
        }
    }
}

fn mtu(table: &Table<'_>) -> Option<u16> {
    let Some(value) = table.get("mtu", "1024") else { return Some(1024) };
    let mtu = value.number(256..=4096, 1024)?;
    if !mtu.is_power_of_two() {
        let problem = value.problem(format!("{mtu} is not a path MTU")).label("not defined by InfiniBand");
        value.add(problem.help("write 256, 512, 1024, 2048 or 4096; a port with MTU 1500 carries 1024"));
        return None;
    }
    Some(mtu as u16)
}

fn memory(table: &Table<'_>) -> Option<RemoteMemory> {
    let va = table
        .get("va", "0x7f0000000000")
        .map_or(Some(0x7f00_0000_0000), |value| value.number(0..=u64::MAX, 0));
    let rkey = table.number("rkey", 0..=u32::MAX.into(), 0x1000) as u32;
    let slots = table.number("slots", 1..=MAX_SLOTS.into(), 1) as u32;
    let choice = choice(table, "slot");
    Some(RemoteMemory { va: va?, rkey, slots, choice: choice? })
}

/// Reads `"max"`, `{ packets_per_s = N }`, `{ bits_per_s = N }`, or a ramp, which has `[from, to]` and
/// `over_s`.
fn rate(value: &Value<'_>) -> Option<Rate> {
    if value.text_if_any().is_some() {
        return value.word(&["max"]).map(|_| Rate::Max);
    }
    let table = value.clone().with_example("{ packets_per_s = 1_000_000 }").table("`rate`")?;
    let packets = table.get("packets_per_s", "1_000_000");
    let bits = table.get("bits_per_s", "10_000_000_000");
    let over = table.get("over_s", "10");
    table.finish();
    let (unit, given) = match (packets, bits) {
        (Some(packets), None) => (Unit::Packets, packets),
        (None, Some(bits)) => (Unit::Bits, bits),
        (packets, _) => {
            let what = if packets.is_some() { "two rates" } else { "no rate" };
            let problem = value.problem(format!("`rate` has {what}")).label("exactly one is needed");
            value.add(problem.help("write `rate = { packets_per_s = 1_000_000 }`, `{ bits_per_s = 10_000_000_000 }` or `\"max\"`"));
            return None;
        }
    };
    let number = |value: &Value<'_>, min| value.number(min..=Rate::FASTEST, 1_000_000);
    let Some(list) = given.list_if_any() else {
        if let Some(over) = over {
            let problem = Problem::at(over.key_span(), "`over_s` needs two rates").label("only one rate");
            over.add(
                problem.help("write two rates, such as `packets_per_s = [1_000, 1_000_000]`, or remove it"),
            );
            return None;
        }
        return Some(Rate::Steady { unit, per_second: number(&given, 1)? });
    };
    let ([from, to], Some(over)) = (list.as_slice(), over) else {
        let problem =
            given.problem("a ramp needs two rates and `over_s`").label("not `[from, to]` with `over_s`");
        given.add(problem.help("write `rate = { packets_per_s = [1_000, 1_000_000], over_s = 10 }`"));
        return None;
    };
    let (from, to, over) = (number(from, 0), number(to, 1), over.fraction(0.001..=3600.0));
    Some(Rate::Ramp { unit, from: from?, to: to?, over: Nanos((over? * 1e9) as u64) })
}

/// Reports packets that exceed the port's MTU.
fn check_mtu(table: &Table<'_>, verb: Verb, sizes: &[u32], mtu: u16, limit: u16, dst: IpAddr) {
    const ICRC: usize = 4;
    let ip = if dst.is_ipv4() { Ipv4::LEN } else { Ipv6::LEN };
    let longest = sizes.iter().copied().max().unwrap_or(0).min(mtu.into()) as usize;
    let payload = longest.next_multiple_of(4);
    let rest = match verb {
        Verb::Write => 16 + payload,
        // A response has a shorter header than its request, and carries the payload.
        Verb::Read => (4 + payload).max(16),
        Verb::Send => payload,
        Verb::CompareSwap | Verb::FetchAdd => 28,
        Verb::Ack { .. } => 4,
        Verb::OnePipeMessage | Verb::OnePipeBeacon => 8 + OnePipe::LEN + payload,
    };
    let packet = ip + Udp::LEN + Bth::LEN + rest + ICRC;
    if packet > usize::from(limit) {
        let value = table.get("mtu", "1024").or_else(|| table.get("size", "64"));
        let message = format!("packets of {packet} bytes do not fit the port's MTU of {limit}");
        let problem = match value {
            Some(value) => value.problem(message),
            None => table.problem(message),
        };
        let help = format!("write `mtu = {packet}` for the port, or a smaller `mtu` or `size` here");
        table.problems().add(problem.label("too long").help(help));
    }
}
