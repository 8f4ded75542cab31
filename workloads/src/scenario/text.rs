//! Scenarios as TOML files.

use super::{AckSpec, FaultKind, GroupsSpec, NumberRange, Scenario, SwitchKind, VerbsSpec, Work};
use core::fmt::Write as _;
use rnic::ReadyToSend;

/// Returns a scenario as a TOML file; parsing the file yields the same scenario.
pub fn to_toml(scenario: &Scenario) -> String {
    let mut text = Text::default();
    text.line("[sim]");
    text.scaled("limit_ms", scenario.limit, 1e6);
    for host in &scenario.hosts {
        text.line("\n[[host]]");
        text.quoted("name", &host.name);
        text.quoted("address", &format!("{}/{}", host.address.0, host.address.1));
        text.scaled("clock_offset_us", host.clock_offset, 1e3);
        text.scaled("clock_drift_ppm", host.clock_drift, 1e3);
        text.scaled("window", host.window, 1.0);
        match host.ack {
            AckSpec::Any => text.quoted("ack", "any"),
            AckSpec::EveryPacket => text.quoted("ack", "every-packet"),
            AckSpec::OnRequest => text.quoted("ack", "on-request"),
            AckSpec::Every { packets, time } => {
                text.line(&format!("ack = {{ packets = {packets}, time_us = {} }}", time as f64 / 1e3));
            }
        }
        text.flag("credits", host.credits);
        text.flag("dcqcn", host.dcqcn);
        text.flag("forgetful", host.forgetful);
    }
    for switch in &scenario.switches {
        text.line("\n[[switch]]");
        text.quoted("name", &switch.name);
        if let SwitchKind::P4ce { address, silent_after } = switch.kind {
            text.quoted("function", "p4ce");
            text.quoted("address", &format!("{}/{}", address.0, address.1));
            text.scaled("silent_after_us", silent_after, 1e3);
        }
    }
    for link in &scenario.links {
        text.line("\n[[link]]");
        text.line(&format!("ends = {:?}", link.ends));
        text.scaled("rate_gbps", link.rate, 1e9);
        text.scaled("delay_us", link.delay, 1e3);
        text.scaled("jitter_us", link.jitter, 1e3);
        text.scaled("loss", link.loss, 1e9);
        text.scaled("duplicate", link.duplicate, 1e9);
        text.scaled("reorder", link.reorder, 1e9);
        text.scaled("reorder_by_us", link.reorder_by, 1e3);
        text.scaled("corrupt", link.corrupt, 1e9);
        text.scaled("mtu", link.mtu, 1.0);
        text.scaled("queue", link.queue, 1.0);
        if let Some(ecn) = &link.ecn {
            let [min, max] = [ecn.min, ecn.max].map(|number| value(number, 1.0));
            text.line(&format!("ecn = {{ min = {min}, max = {max}, share = {} }}", value(ecn.share, 1e9)));
        }
    }
    match &scenario.work {
        Work::Verbs(verbs) => text.verbs(verbs),
        Work::Groups(groups) => text.groups(groups),
    }
    for fault in &scenario.faults {
        text.line("\n[[fault]]");
        text.scaled("at_us", fault.at, 1e3);
        match &fault.kind {
            FaultKind::Crash(node) => text.quoted("crash", node),
            FaultKind::Pause(node) => text.quoted("pause", node),
            FaultKind::Partition(names) => text.line(&format!("partition = {names:?}")),
            FaultKind::Mute(names) => text.line(&format!("mute = {names:?}")),
            FaultKind::PartitionPair(hosts) => text.line(&format!("part = {hosts:?}")),
            FaultKind::Mtu(ends, mtu) => {
                text.line(&format!("link = {ends:?}"));
                text.scaled("mtu", *mtu, 1.0);
            }
            FaultKind::Outsider(switch, rounds) => {
                text.quoted("stranger", switch);
                text.scaled("lies", *rounds, 1.0);
            }
            FaultKind::Swap(hosts) => text.line(&format!("swap = {hosts:?}")),
            FaultKind::Rehash(node, salt) => {
                text.quoted("rehash", node);
                text.scaled("salt", *salt, 1.0);
            }
            FaultKind::ClockStep(node, by) => {
                text.quoted("clock", node);
                text.scaled("step_us", *by, 1e3);
            }
            FaultKind::ClockDrift(node, by) => {
                text.quoted("clock", node);
                text.scaled("drift_ppm", *by, 1e3);
            }
        }
        if let Some(lasts) = fault.lasts {
            text.scaled("for_us", lasts, 1e3);
        }
    }
    text.0
}

/// Returns a number, or the bounds of a range, in multiples of `unit`.
fn value(between: NumberRange, unit: f64) -> String {
    let [low, high] = [between.low, between.high].map(|number| number as f64 / unit);
    if between.low == between.high { format!("{low}") } else { format!("[{low}, {high}]") }
}

#[derive(Default)]
struct Text(String);

impl Text {
    fn line(&mut self, line: &str) {
        self.0.push_str(line);
        self.0.push('\n');
    }

    fn quoted(&mut self, key: &str, value: &str) {
        // Writing to a string cannot fail.
        _ = writeln!(self.0, "{key} = {value:?}");
    }

    fn flag(&mut self, key: &str, flag: NumberRange) {
        if flag.low == flag.high {
            self.line(&format!("{key} = {}", flag.is_true()));
        } else {
            self.quoted(key, "any");
        }
    }

    fn scaled(&mut self, key: &str, between: NumberRange, unit: f64) {
        self.line(&format!("{key} = {}", value(between, unit)));
    }

    fn verbs(&mut self, verbs: &VerbsSpec) {
        self.line("\n[verbs]");
        let names: Vec<_> = verbs.verbs.iter().map(|verb| verb.name()).collect();
        self.line(&format!("verbs = {names:?}"));
        self.scaled("connections", verbs.connections, 1.0);
        self.scaled("unreliable", verbs.unreliable, 1.0);
        self.scaled("operations", verbs.operations, 1.0);
        self.scaled("depth", verbs.depth, 1.0);
        self.scaled("max_size", verbs.max_size, 1.0);
        self.mtu(verbs.mtu_log2);
        self.scaled("timeout", verbs.timeout, 1.0);
        self.retry_count(verbs.retry_count);
        self.scaled("receives", verbs.receives, 1.0);
        self.scaled("repost_us", verbs.repost_us, 1.0);
        self.scaled("rnr_timer", verbs.rnr_timer, 1.0);
        self.scaled("max_rd_atomic", verbs.max_rd_atomic, 1.0);
        self.scaled("words", verbs.words, 1.0);
        self.flag("srq", verbs.srq);
        self.flag("flow_control", verbs.flow_control);
        self.flag("background_reads", verbs.background_reads);
        self.scaled("revoke_us", verbs.revoke_us, 1.0);
    }

    fn groups(&mut self, groups: &GroupsSpec) {
        self.line("\n[groups]");
        self.line(&format!("leaders = {:?}", groups.leaders));
        self.scaled("groups", groups.groups, 1.0);
        self.scaled("operations", groups.operations, 1.0);
        self.scaled("depth", groups.depth, 1.0);
        self.scaled("max_size", groups.max_size, 1.0);
        self.mtu(groups.mtu_log2);
        self.scaled("timeout", groups.timeout, 1.0);
        self.retry_count(groups.retry_count);
        self.scaled("quorum", groups.quorum, 1.0);
        self.flag("outvote", groups.outvote);
        self.scaled("receives", groups.receives, 1.0);
        self.scaled("messages", groups.messages, 1.0);
    }

    fn mtu(&mut self, log2: NumberRange) {
        self.scaled("mtu", NumberRange { low: 1 << log2.low, high: 1 << log2.high }, 1.0);
    }

    fn retry_count(&mut self, count: NumberRange) {
        if count == NumberRange::fixed(ReadyToSend::NO_LIMIT.into()) {
            self.quoted("retry_count", "unlimited");
        } else {
            self.scaled("retry_count", count, 1.0);
        }
    }
}
