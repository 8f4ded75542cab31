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
use settings::declare::{
    Key, Kind, Type, boolean, ip, mac, micros, number, or_inline, special, whole, wholes, words,
};
use settings::report::Problem;
use settings::tree::{Table, Value};
use settings::words::all_of;
use switch::{Nanos, Probability};

/// Longest name of a stream, in characters, so that reports fit on a line
const MAX_NAME: usize = 32;
/// Longest message, in bytes (IB 9.4.1)
const MAX_SIZE: u64 = 1 << 30;

/// Verbs that access an address in memory
const MEMORY_VERBS: &[Verb] = &[Verb::Write, Verb::Read, Verb::CompareSwap, Verb::FetchAdd];
/// Verbs whose packets depend on the path MTU
const LONG_VERBS: &[Verb] = &[Verb::Write, Verb::Send, Verb::Read, Verb::OnePipeMessage];
/// Verb `ack` before `coalesce` is read
const ACK: Verb = Verb::Ack { coalesce: 1 };

settings::table! {
    /// Stream of packets from one host to another
    pub(crate) enum Keys "[[pktgen.stream]]";
    /// Name in reports
    name: () = special("string of up to 32 characters") => optional("`stream` and its number") example("writes");
    /// What is sent
    verb: Verb = words(&[
        ("write", Verb::Write),
        ("send", Verb::Send),
        ("read", Verb::Read),
        ("compare_swap", Verb::CompareSwap),
        ("fetch_add", Verb::FetchAdd),
        ("ack", ACK),
        ("onepipe_message", Verb::OnePipeMessage),
        ("onepipe_beacon", Verb::OnePipeBeacon),
    ]) => required() example("write");
    /// PSNs that one acknowledgement covers, for `ack`
    coalesce: u32 = whole(1..=1 << 16) => default(1) example(8);
    /// Address of the sender
    src: IpAddr = ip() => required() example("10.0.0.1");
    /// Address of the receiver
    dst: IpAddr = ip() => required() example("10.0.0.2");
    /// MAC address of the sender
    src_mac: MacAddr = mac() => default("02:00:00:00:00:01");
    /// MAC address of the receiver
    dst_mac: MacAddr = mac() => default("02:00:00:00:00:02");
    /// First destination queue pair
    first_qpn: u32 = whole(2..=0xff_fffe) => optional("0x100, and 0x1000 more for each stream before") example(0x100);
    /// Destination queue pairs
    qps: u32 = whole(1..=MAX_QPS as u64) => default(1);
    /// Choice of the queue pair of a message: in turn, at random, or by Zipf's law
    pick: Choice = or_inline("`\"turn\"`, `\"uniform\"`", &ZipfKeys::TABLE, choice) => default("turn") example("uniform");
    /// Sizes of messages, in turn; one or a list
    size: () = wholes(0..=MAX_SIZE).unit("bytes") => default(64);
    /// Path MTU: 256, 512, 1024, 2048 or 4096
    mtu: u16 = Type::new(Kind::Whole(256, 4096), mtu).unit("bytes") => default(1024);
    /// First address in the receiver's memory
    va: u64 = whole(0..=u64::MAX) => default(0x7f0000000000);
    /// Key of the receiver's memory
    rkey: u32 = whole(0..=u32::MAX as u64) => default(0x1000);
    /// Consecutive slots of the memory that messages access, each as long as the longest message
    slots: u32 = whole(1..=MAX_SLOTS as u64) => default(1) example(4096);
    /// Choice of the slot, as `pick`
    slot: Choice = or_inline("`\"turn\"`, `\"uniform\"`", &ZipfKeys::TABLE, choice) => default("turn") example("uniform");
    /// First PSN of each queue pair
    first_psn: u32 = whole(0..=0xff_ffff) => optional("drawn from the seed") example(0);
    /// Rate
    rate: Rate = or_inline("`\"max\"`", &RateKeys::TABLE, rate) => default("max") example({ packets_per_s = 1_000_000 });
    /// Packets of a burst
    burst: u16 = whole(1..=256).unit("packets") => optional("what the rate earns in 10 us, at most 32") example(32);
    /// Packets to send, without malformed ones
    packets: u64 = whole(1..=1 << 48) => optional("no end") example(1000000);
    /// Messages of a queue pair of which the last requests an acknowledgement; 0 means none
    ack_every: u32 = whole(0..=u32::MAX as u64) => default(1);
    /// Most outstanding requests of a queue pair: with that many, the next one waits for a response
    outstanding: u16 = whole(1..=MAX_OUTSTANDING as u64) => optional("the stream does not wait") example(16);
    /// Time after which a request that waits is given up
    timeout_us: Nanos = micros(1..=60_000_000) => default(10_000);
    /// Whether payloads begin with the time of sending, by which the receiver measures latency
    latency: bool = boolean() => optional("if there is room and a receiver") example(true);
    /// Share of packets that are malformed
    malformed: f64 = number(0.0..=1.0) => default(0) example(0.01);
}

settings::table! {
    /// Choice by Zipf's law
    pub(crate) enum ZipfKeys "`pick`";
    /// Exponent
    zipf: f64 = number(0.0..=10.0) => required() example(0.99);
}

settings::table! {
    /// Rate of a stream: exactly one of the first two; a list `[from, to]` is a ramp, which needs `over_s`
    pub(crate) enum RateKeys "`rate`";
    /// Packets in a second
    packets_per_s: () = wholes(0..=Rate::FASTEST) => optional("the other rate") example(1_000_000);
    /// Bits in a second, without preamble and gap
    bits_per_s: () = wholes(0..=Rate::FASTEST) => optional("the other rate") example(10_000_000_000);
    /// Duration of a ramp
    over_s: f64 = number(0.001..=3600.0).unit("s") => optional("the rate is steady") example(10);
}

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
    let before = table.problems().count();
    let name = name(&table, index, &header, names);
    let verb = verb(&table);
    let (src, dst) = (table.read(Keys::src), table.read(Keys::dst));
    let spans = Spans {
        qpn: table.span_of(Keys::first_qpn),
        size: table.span_of(Keys::size),
        latency: table.span_of(Keys::latency),
        dst: table.span_of(Keys::dst),
        outstanding: table.span_of(Keys::outstanding),
        coalesce: table.span_of(Keys::coalesce),
        malformed: table.span_of(Keys::malformed),
        header,
    };
    let first_qpn = table.read(Keys::first_qpn).unwrap_or(0x100 + 0x1000 * index as u32);
    let (sizes, mtu) = (sizes(&table, verb), table.read(Keys::mtu));
    let latency = table.read(Keys::latency);
    if let (Some(verb), Some(sizes), Some(limit), Some(dst)) = (verb, &sizes, mtu_of_port, dst)
        && table.problems().count() == before
    {
        check_mtu(&table, verb, sizes, mtu, limit, dst);
    }
    let memory = RemoteMemory {
        va: table.read(Keys::va),
        rkey: table.read(Keys::rkey),
        slots: table.read(Keys::slots),
        choice: table.read(Keys::slot),
    };
    let (src_mac, dst_mac) = (table.read(Keys::src_mac), table.read(Keys::dst_mac));
    let (qps, pick, burst) = (table.read(Keys::qps), table.read(Keys::pick), table.read(Keys::burst));
    let (rate, packets) = (table.read(Keys::rate), table.read(Keys::packets));
    let (ack_every, outstanding) = (table.read(Keys::ack_every), table.read(Keys::outstanding));
    let (first_psn, timeout) = (table.read(Keys::first_psn), table.read(Keys::timeout_us));
    let malformed = Probability::new(table.read(Keys::malformed));
    table.finish();
    let (verb, sizes) = (verb?, sizes?);
    let has_stamp_room = verb.has_payload() && sizes.iter().all(|size| *size >= STAMP_LEN as u32);
    let stream = Stream {
        name: name?,
        verb,
        src: HostAddress { mac: src_mac, ip: src? },
        dst: HostAddress { mac: dst_mac, ip: dst? },
        first_qpn: Qpn::new(first_qpn),
        qps,
        pick,
        sizes,
        mtu,
        memory,
        first_psn: first_psn.map(Psn::new),
        rate,
        burst,
        packets,
        ack_every,
        outstanding,
        timeout,
        stamp: latency.unwrap_or(has_stamp_room && received),
        malformed: malformed?,
    };
    Some(ReadStream { spans, stream })
}

fn name(
    table: &Table<'_>,
    index: usize,
    header: &Range<usize>,
    names: &mut Vec<(String, Range<usize>)>,
) -> Option<String> {
    let given = table.value(Keys::name);
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
    let (given, coalesce) = (table.value(Keys::verb), table.read(Keys::coalesce));
    let verb = table.read(Keys::verb)?;
    let check = Applicable { table, verb, given: given?.span() };
    check.report(Keys::coalesce, &[ACK]);
    check.report(Keys::ack_every, &[Verb::Write, Verb::Send]);
    check.report(Keys::va, MEMORY_VERBS);
    check.report(Keys::rkey, MEMORY_VERBS);
    check.report(Keys::slots, MEMORY_VERBS);
    check.report(Keys::slot, MEMORY_VERBS);
    check.report(Keys::mtu, LONG_VERBS);
    if let (Some(value), None) = (table.value(Keys::timeout_us), table.value(Keys::outstanding)) {
        let problem = Problem::at(value.key_span(), "`timeout_us` needs `outstanding`");
        let problem = problem.label("no request waits");
        value.add(problem.help("remove it, or set the number of requests that wait: `outstanding = 16`"));
    }
    Some(if verb == ACK { Verb::Ack { coalesce } } else { verb })
}

/// Check of keys that only some verbs use
struct Applicable<'a> {
    table: &'a Table<'a>,
    verb: Verb,
    /// Byte range of the verb
    given: Range<usize>,
}

impl Applicable<'_> {
    /// Reports a key that is valid only for other verbs.
    fn report<T, P>(&self, key: Key<T, P>, verbs: &[Verb]) {
        let Some(value) = self.table.value(key).filter(|_| !verbs.contains(&self.verb)) else { return };
        let names: Vec<_> = verbs.iter().map(|verb| verb.name()).collect();
        let message = format!("{} is not valid for `verb = \"{}\"`", value.name(), self.verb.name());
        let problem = Problem::at(value.key_span(), message).label(format!("for {}", all_of(&names)));
        let instead = match names.as_slice() {
            [only] => format!(", or write `verb = \"{only}\"`"),
            _ => String::new(),
        };
        value.add(problem.also(self.given.clone(), "the verb").help(format!("remove it{instead}")));
    }
}

/// Reads `"turn"`, `"uniform"` or `{ zipf = 0.99 }`.
fn choice(value: &Value<'_>) -> Option<Choice> {
    if value.text_if_any().is_some() {
        let word = value.word(&["turn", "uniform"])?;
        return Some(if word == "turn" { Choice::RoundRobin } else { Choice::Uniform });
    }
    let table = value.clone().with_example("{ zipf = 0.99 }").table(value.name())?;
    let exponent = table.read(ZipfKeys::zipf);
    table.finish();
    Some(Choice::Zipf { thousandths: (exponent? * 1000.0).round() as u32 })
}

fn sizes(table: &Table<'_>, verb: Option<Verb>) -> Option<Vec<u32>> {
    let given = table.value(Keys::size);
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
            let sizes = value.one_or_list().into_iter();
            let sizes: Vec<_> =
                sizes.map(|value| Some(value.whole_like("64")? as u32)).collect::<Option<_>>()?;
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

fn mtu(value: &Value<'_>) -> Option<u16> {
    let mtu = value.whole()?;
    if !mtu.is_power_of_two() {
        let problem = value.problem(format!("{mtu} is not a path MTU")).label("not defined by InfiniBand");
        value.add(problem.help("write 256, 512, 1024, 2048 or 4096; a port with MTU 1500 carries 1024"));
        return None;
    }
    Some(mtu as u16)
}

/// Reads `"max"`, `{ packets_per_s = N }`, `{ bits_per_s = N }`, or a ramp, which has `[from, to]` and
/// `over_s`.
fn rate(value: &Value<'_>) -> Option<Rate> {
    if value.text_if_any().is_some() {
        return value.word(&["max"]).map(|_| Rate::Max);
    }
    let table = value.clone().with_example("{ packets_per_s = 1_000_000 }").inline()?;
    let (packets, bits) = (table.value(RateKeys::packets_per_s), table.value(RateKeys::bits_per_s));
    let over = table.value(RateKeys::over_s);
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
    let number = |value: &Value<'_>, min| value.whole_in(min..=Rate::FASTEST, "1000000");
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
    let (from, to, over) = (number(from, 0), number(to, 1), over.fraction());
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
        let value = table.value(Keys::mtu).or_else(|| table.value(Keys::size));
        let message = format!("packets of {packet} bytes do not fit the port's MTU of {limit}");
        let problem = match value {
            Some(value) => value.problem(message),
            None => table.problem(message),
        };
        let help = format!("write `mtu = {packet}` for the port, or a smaller `mtu` or `size` here");
        table.problems().add(problem.label("too long").help(help));
    }
}
