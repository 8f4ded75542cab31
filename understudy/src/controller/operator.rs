//! `understudy controller status`, `fail` and `drain`: requests to a running controller.

use super::At;
use crate::output::{print, print_error, printable, row, section};
use crate::system::now;
use ::controller::operator::{
    Answer, MemberStatus, Phase, Refusal, RepStatus, Request, Status, SuspicionStatus,
};
use ::controller::record::{MemberState, RepState, Stage};
use core::fmt::Write as _;
use crossbeam_channel::{Receiver, RecvTimeoutError, unbounded};
use management::{Client, ClientConfig, ClientEvent, Peer, Secret};
use onepipe::control::Incarnation;
use serde::Serialize;
use std::process::ExitCode;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Longest wait for an answer
const PATIENCE: Duration = Duration::from_secs(5);
/// Longest wait for a decision
const DECISION: Duration = Duration::from_secs(10);
/// Longest wait until a representative can leave, and has left
const DRAIN: Duration = Duration::from_secs(30);
/// Time between two looks at a decision
const LOOK: Duration = Duration::from_millis(50);

/// A connection to a controller.
struct Connection {
    client: Client,
    events: Receiver<ClientEvent>,
    at: String,
}

impl Connection {
    fn open(at: &At) -> Result<Self, String> {
        let secret = at.secret_file.as_deref().map(Secret::read).transpose();
        let secret = secret.map_err(|error| error.to_string())?;
        let config =
            ClientConfig { controllers: vec![at.address], secret, peer: Peer::Operator, topology: 0 };
        let (sender, events) = unbounded();
        let client = Client::start(config, move |event| drop(sender.send(event)));
        let client = client.map_err(|error| {
            // The client's text names `secret_file`, which is an option here.
            error.to_string().replace("write secret_file", "use --secret-file")
        })?;
        let connection = Self { client, events, at: at.address.to_string() };
        connection.wait(now() + PATIENCE, |event| matches!(event, ClientEvent::Connected(_)))?;
        Ok(connection)
    }

    fn wait(&self, until: Instant, which: impl Fn(&ClientEvent) -> bool) -> Result<ClientEvent, String> {
        loop {
            match self.events.recv_timeout(until.saturating_duration_since(now())) {
                Ok(event) if which(&event) => return Ok(event),
                Ok(ClientEvent::Disconnected(_, reason)) => {
                    return Err(format!("controller at {}: {reason}", self.at));
                }
                Ok(_) => {}
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {
                    return Err(format!(
                        "controller at {}: no answer within {} s; name the `listen` of its file with --at",
                        self.at,
                        PATIENCE.as_secs()
                    ));
                }
            }
        }
    }

    /// Returns all answers to a request.
    fn ask(&self, request: &Request) -> Result<Vec<Answer>, String> {
        self.client.send(&request.encode());
        let until = now() + PATIENCE;
        let mut answers = Vec::new();
        loop {
            let event = self.wait(until, |event| matches!(event, ClientEvent::Message(_)))?;
            let ClientEvent::Message(message) = event else { continue };
            let answer = Answer::decode(&message);
            match answer.map_err(|error: Refusal| format!("controller at {}: {error}", self.at))? {
                Answer::Done => return Ok(answers),
                Answer::Refused(why) => return Err(printable(&why)),
                answer => answers.push(answer),
            }
        }
    }

    fn status(&self) -> Result<Status, String> {
        let answers = self.ask(&Request::Status)?;
        Status::of(answers).ok_or_else(|| format!("controller at {}: an answer without a state", self.at))
    }

    /// Declares a process failed. Returns its state when that is decided.
    fn fail(&self, process: u32) -> Result<MemberStatus, String> {
        let process = onepipe::ProcessId(process);
        let until = now() + DECISION;
        self.ask(&Request::Fail(process))?;
        loop {
            let status = self.status()?;
            let member = status.members.into_iter().find(|member| member.id == process);
            let member = member.ok_or_else(|| format!("process {process} is gone"))?;
            match member.state {
                MemberState::Failed | MemberState::Gone => return Ok(member),
                MemberState::Left => return Err(format!("process {process} has left, without a failure")),
                MemberState::Joining | MemberState::Member => {}
            }
            if now() >= until {
                let waits = status.suspicion.map(|suspicion| suspicion.waits.join(", ")).unwrap_or_default();
                return Err(format!(
                    "process {process} is declared failed, and not decided within {} s: it waits for {}; see `status`",
                    DECISION.as_secs(),
                    if waits.is_empty() { "the store" } else { &waits }
                ));
            }
            std::thread::sleep(LOOK);
        }
    }

    /// Has the older representative of a switch end when the other one serves. Returns its incarnation when it has left.
    fn drain(&self, switch: u16) -> Result<Incarnation, String> {
        let of_switch = |rep: &RepStatus| rep.switch == switch && rep.state != RepState::Retired;
        let reps = self.status()?.reps.into_iter().filter(of_switch);
        let oldest = reps.min_by_key(|rep| (rep.state != RepState::Leaving, rep.incarnation));
        let incarnation =
            oldest.ok_or_else(|| format!("switch {switch} has no representative; see `status`"))?.incarnation;
        let until = now() + DRAIN;
        loop {
            let asked = self.ask(&Request::Drain(switch, incarnation));
            let rep = self.status()?.reps.into_iter().find(|rep| rep.incarnation == incarnation);
            // A later incarnation may have its seat already.
            match (rep.map(|rep| rep.state), asked) {
                (None | Some(RepState::Retired), Ok(_)) => return Ok(incarnation),
                (_, Err(why)) if now() >= until => {
                    return Err(format!(
                        "switch {switch} is not drained, and nothing has changed: {why}, for {} s",
                        DRAIN.as_secs()
                    ));
                }
                (_, Ok(_)) if now() >= until => {
                    return Err(format!(
                        "switch {switch}: incarnation {incarnation} leaves, and some neighbours have not acknowledged \
                         that within {} s; see `status`",
                        DRAIN.as_secs()
                    ));
                }
                _ => std::thread::sleep(LOOK),
            }
        }
    }
}

fn finish(result: Result<String, String>) -> ExitCode {
    match result {
        Ok(text) => print(&text, ExitCode::SUCCESS),
        Err(why) => {
            print_error(format_args!("understudy: {why}"));
            ExitCode::FAILURE
        }
    }
}

pub(super) fn status(at: &At) -> ExitCode {
    let status = Connection::open(at).and_then(|connection| connection.status());
    finish(status.map(|status| if at.json { line(&json(&status)) } else { text(&status) }))
}

pub(super) fn fail(process: u32, at: &At) -> ExitCode {
    let failed = Connection::open(at).and_then(|connection| connection.fail(process));
    finish(failed.map(|member| {
        let (case, time) = (member.case, member.time);
        if at.json {
            line(&FailJson { process, case, time_ns: time })
        } else {
            format!("Process {process} has failed in case {case}; its messages count up to {time} ns.\n")
        }
    }))
}

pub(super) fn drain(switch: u16, at: &At) -> ExitCode {
    let drained = Connection::open(at).and_then(|connection| connection.drain(switch));
    finish(drained.map(|incarnation| {
        if at.json {
            line(&DrainJson { switch, incarnation: incarnation.0 })
        } else {
            format!(
                "Switch {switch} is drained: its representative of incarnation {incarnation} has left, and the other one serves.\n"
            )
        }
    }))
}

pub(super) const fn member_state(state: MemberState) -> &'static str {
    match state {
        MemberState::Joining => "joining",
        MemberState::Member => "member",
        MemberState::Failed => "failed",
        MemberState::Gone => "gone",
        MemberState::Left => "left",
    }
}

pub(super) const fn rep_state(state: RepState) -> &'static str {
    match state {
        RepState::Registering => "registering",
        RepState::Configuring => "configuring",
        RepState::Active => "active",
        RepState::Retired => "retired",
        RepState::Leaving => "leaving",
    }
}

const fn stage(stage: Stage) -> &'static str {
    match stage {
        Stage::Decided => "decided",
        Stage::Completed => "completed",
        Stage::Resumed => "resumed",
    }
}

const fn phase(phase: Phase) -> &'static str {
    match phase {
        Phase::Gathering => "gathering",
        Phase::Fencing => "fencing",
        Phase::AwaitingPath => "awaiting_path",
        Phase::Writing => "writing",
    }
}

/// The state as JSON. Fields are added, not renamed.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct StatusJson {
    /// Term in which it leads; 0 if it does not lead
    term: u32,
    /// Hash of the topology, in hexadecimal digits
    network: String,
    /// Time since its start
    up_s: f64,
    /// Processes that failed since the start
    failed: u64,
    /// Suspicions that ended because all links spoke again
    thawed: u64,
    /// Last incarnation of each process
    members: Vec<MemberRow>,
    /// Last incarnation of each representative
    representatives: Vec<RepRow>,
    /// Cases that are not closed
    cases: Vec<CaseRow>,
    /// Failure that is not decided; null if there is none
    suspicion: Option<SuspicionRow>,
    /// Links whose keepers hear nothing
    silent: Vec<SilentRow>,
    /// What an operator has to know, the latest last
    alarms: Vec<AlarmRow>,
}

#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct MemberRow {
    process: u32,
    incarnation: u32,
    /// `joining`, `member`, `failed` and so on
    state: &'static str,
    connected: bool,
    /// Case in which it failed; 0 if none
    case: u64,
    /// Time up to which its messages count, since 1970; 0 if it has not failed
    time_ns: u64,
}

#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct RepRow {
    /// Place of the switch in the topology, from 0
    switch: u16,
    /// Which of the switch's representatives it is: 0, or 1 for the standby
    seat: u8,
    incarnation: u32,
    state: &'static str,
    connected: bool,
    /// Whether it has acknowledged the state that it has to have
    settled: bool,
}

#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct CaseRow {
    /// Number of the case
    case: u64,
    /// Progress
    stage: &'static str,
    /// Processes that failed
    failed: Vec<u32>,
    /// Processes whose answers are missing
    waits: Vec<u32>,
    /// Time of the decision, since 1970
    at_ns: u64,
}

#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct SuspicionRow {
    /// Progress
    phase: &'static str,
    /// Nodes that did not answer, or that an operator declared failed
    suspects: Vec<String>,
    /// Nodes whose answers are missing
    waits: Vec<String>,
}

#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct SilentRow {
    /// Node where the link begins
    from: String,
    /// Node where it ends
    to: String,
}

#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct AlarmRow {
    text: String,
    /// Times that it happened
    count: u64,
    /// Last time, since 1970
    at_ns: u64,
}

/// Result of `controller fail --json`.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct FailJson {
    process: u32,
    /// Case in which it failed
    case: u64,
    /// Time up to which its messages count, since 1970
    time_ns: u64,
}

/// Result of `controller drain --json`.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct DrainJson {
    /// Place of the switch in the topology, from 0
    switch: u16,
    /// Incarnation of the representative that has left
    incarnation: u32,
}

fn line(result: &impl Serialize) -> String {
    serde_json::to_string(result).expect("numbers and text always serialise") + "\n"
}

fn json(status: &Status) -> StatusJson {
    let summary = &status.summary;
    let numbers = |ids: &[onepipe::ProcessId]| ids.iter().map(|id| id.0).collect::<Vec<_>>();
    let member = |member: &MemberStatus| MemberRow {
        process: member.id.0,
        incarnation: member.incarnation.0,
        state: member_state(member.state),
        connected: member.connected,
        case: member.case,
        time_ns: member.time,
    };
    let rep = |rep: &RepStatus| RepRow {
        switch: rep.switch,
        seat: rep.seat,
        incarnation: rep.incarnation.0,
        state: rep_state(rep.state),
        connected: rep.connected,
        settled: rep.settled,
    };
    let cases = status.cases.iter().map(|case| CaseRow {
        case: case.case,
        stage: stage(case.stage),
        failed: numbers(&case.failed),
        waits: numbers(&case.waits),
        at_ns: case.at,
    });
    let suspicion = status.suspicion.as_ref().map(|suspicion| SuspicionRow {
        phase: phase(suspicion.phase),
        suspects: suspicion.suspects.clone(),
        waits: suspicion.waits.clone(),
    });
    let silent = status.silent.iter().map(|link| SilentRow { from: link.from.clone(), to: link.to.clone() });
    let alarms = status.alarms.iter().map(|alarm| AlarmRow {
        text: alarm.text.clone(),
        count: alarm.count,
        at_ns: alarm.at,
    });
    StatusJson {
        term: summary.term,
        network: format!("{:016x}", summary.network),
        up_s: summary.up_ns as f64 / 1e9,
        failed: summary.failed,
        thawed: summary.thawed,
        members: status.members.iter().map(member).collect(),
        representatives: status.reps.iter().map(rep).collect(),
        cases: cases.collect(),
        suspicion,
        silent: silent.collect(),
        alarms: alarms.collect(),
    }
}

fn yes(is: bool) -> &'static str {
    if is { "yes" } else { "no" }
}

/// Appends the tables of processes and representatives.
fn nodes(text: &mut String, status: &Status) {
    let members = status.members.iter().map(|member| {
        let time = if member.time == 0 { String::new() } else { member.time.to_string() };
        let words = [&member.id.to_string(), member_state(member.state), yes(member.connected), &time];
        row(&words, &[member.incarnation.0.into()])
    });
    let columns = ["process", "state", "connected", "counts up to (ns)", "incarnation"];
    section(text, "Processes", &columns, 4, members);
    let reps = status.reps.iter().map(|rep| {
        let state = rep_state(rep.state);
        let words =
            [&rep.switch.to_string(), &rep.seat.to_string(), state, yes(rep.connected), yes(rep.settled)];
        row(&words, &[rep.incarnation.0.into()])
    });
    let columns = ["switch", "seat", "state", "connected", "configured", "incarnation"];
    section(text, "Representatives", &columns, 5, reps);
}

fn text(status: &Status) -> String {
    let summary = &status.summary;
    let leads = match summary.term {
        0 => "does not lead".to_owned(),
        term => format!("leads in term {term}"),
    };
    let mut text = format!(
        "The controller of network {:016x} {leads}, and has run for {} s. Failed: {}, suspicions that ended: {}.\n\n",
        summary.network,
        summary.up_ns / 1_000_000_000,
        summary.failed,
        summary.thawed
    );
    nodes(&mut text, status);
    let list =
        |ids: &[onepipe::ProcessId]| ids.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
    let cases = status.cases.iter().map(|case| {
        row(&[&case.case.to_string(), stage(case.stage), &list(&case.failed), &list(&case.waits)], &[])
    });
    section(&mut text, "Open cases", &["case", "stage", "failed", "waits for"], 4, cases);
    if let Some(SuspicionStatus { phase: of, suspects, waits }) = &status.suspicion {
        let names = |names: &[String], none: &str| match names {
            [] => none.to_owned(),
            names => names.join(", "),
        };
        // Writing to a string does not fail.
        _ = writeln!(
            text,
            "Suspicion ({})\n suspected: {}\n waits for: {}\n",
            phase(*of),
            names(suspects, "links"),
            names(waits, "nothing")
        );
    }
    let silent = status.silent.iter().map(|link| row(&[&link.from, &link.to], &[]));
    section(&mut text, "Silent links", &["from", "to"], 2, silent);
    let clock = clock();
    let alarms = status.alarms.iter().map(|alarm| {
        let ago = clock.saturating_sub(alarm.at) / 1_000_000_000;
        row(&[&alarm.text], &[alarm.count, ago])
    });
    section(&mut text, "Alarms", &["alarm", "count", "last (s ago)"], 1, alarms);
    printable(&text)
}

/// Returns the time since the Unix epoch, in nanoseconds.
#[allow(clippy::disallowed_methods, reason = "alarms carry the time of day")]
fn clock() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos() as u64)
}
