//! Requests of an operator to a controller, and their answers, over a connection of the management network.
//!
//! ```text
//! 0   version, 3
//! 1   kind
//! 2.. fields of the kind, in the order of their declaration
//! ```
//!
//! Each request has one answer: any number of [`Answer`]s, of which the last one is [`Answer::Done`] or
//! [`Answer::Refused`].

use crate::record::{MemberState, RepState, Stage};
use onepipe::ProcessId;
use onepipe::control::{Incarnation, Wire, WireError};
use onepipe::{wire_enum, wire_structs};

/// Version of requests and answers
const VERSION: u8 = 3;
/// Entries of a list in one answer
const ENTRIES: usize = 250;
/// Longest text, in bytes
const TEXT: usize = 2000;

/// Request of an operator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    /// Asks for the controller's state
    Status,
    /// Declares a process failed
    Fail(ProcessId),
    /// Has an incarnation of a switch's representative end, if the switch's other one serves
    Drain(u16, Incarnation),
}

wire_enum! {
    /// Progress of a suspicion.
    pub enum Phase {
        /// Further reports may follow
        Gathering = 1,
        /// Nodes are waited for that have to let values stand still
        Fencing = 2,
        /// Some members are connected only by links that have not caught up yet
        AwaitingPath = 3,
        /// The decision is being stored
        Writing = 4,
    }
}

wire_structs! {
    /// Fields of [`Request::Drain`]
    struct DrainFields {
        switch: u16,
        incarnation: Incarnation,
    }

    /// State of the controller.
    pub struct Summary {
        /// Hash of the topology
        network: u64,
        /// Term in which it leads; 0 if it does not lead
        term: u32,
        /// Time since its start, in nanoseconds
        up_ns: u64,
        /// Suspicions that ended because all links spoke again
        thawed: u64,
        /// Processes that failed since the start
        failed: u64,
    }

    /// Last incarnation of a process.
    pub struct MemberStatus {
        /// Process
        id: ProcessId,
        /// Incarnation
        incarnation: Incarnation,
        /// State
        state: MemberState,
        /// Whether it is connected
        connected: bool,
        /// Case in which it failed; 0 if none
        case: u64,
        /// Time up to which its messages count, in nanoseconds since the Unix epoch; 0 if it has not failed
        time: u64,
    }

    /// Last incarnation of a representative.
    pub struct RepStatus {
        /// Switch
        switch: u16,
        /// Which of the switch's representatives it is: 0, or 1 for the standby
        seat: u8,
        /// Incarnation
        incarnation: Incarnation,
        /// State
        state: RepState,
        /// Whether it is connected
        connected: bool,
        /// Whether it has acknowledged the state that it has to have
        settled: bool,
    }

    /// A case that is not closed.
    pub struct CaseStatus {
        /// Number
        case: u64,
        /// Progress
        stage: Stage,
        /// Processes that failed
        failed: Vec<ProcessId>,
        /// Processes whose answers are missing
        waits: Vec<ProcessId>,
        /// Time of the decision, in nanoseconds since the Unix epoch
        at: u64,
    }

    /// A failure that is not decided.
    pub struct SuspicionStatus {
        /// Progress
        phase: Phase,
        /// Nodes that did not answer, or that an operator declared failed
        suspects: Vec<String>,
        /// Nodes whose answers are missing
        waits: Vec<String>,
    }

    /// A link whose keeper hears nothing.
    pub struct SilentLink {
        /// Where it begins
        from: String,
        /// Where it ends
        to: String,
    }

    /// Something that an operator has to know.
    pub struct AlarmStatus {
        /// What it is
        text: String,
        /// How often it happened
        count: u64,
        /// Last time, in nanoseconds since the Unix epoch
        at: u64,
    }
}

/// Part of an answer to a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// State of the controller
    Summary(Summary),
    /// Processes
    Members(Vec<MemberStatus>),
    /// Representatives
    Reps(Vec<RepStatus>),
    /// Open cases
    Cases(Vec<CaseStatus>),
    /// The present suspicion, if there is one
    Suspicion(Vec<SuspicionStatus>),
    /// Silent links
    Silent(Vec<SilentLink>),
    /// Alarms, the latest one last
    Alarms(Vec<AlarmStatus>),
    /// The request has been carried out
    Done,
    /// The request has not been carried out, for this reason
    Refused(String),
}

/// Bytes that are not a request or an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// Another version
    #[error("version {0} of the operator's requests; this program has version {VERSION}")]
    Version(u8),
    /// An unknown kind
    #[error("unknown kind of request or answer {0}")]
    Kind(u8),
    /// Fields that cannot be read
    #[error("request or answer: {0}")]
    Fields(WireError),
}

/// Returns the kind and the fields.
fn kind(bytes: &[u8]) -> Result<(u8, &[u8]), Refusal> {
    let (&[version, kind], fields) =
        bytes.split_first_chunk().ok_or(Refusal::Fields(WireError::Truncated))?;
    if version == VERSION { Ok((kind, fields)) } else { Err(Refusal::Version(version)) }
}

fn fields<T: Wire>(bytes: &[u8]) -> Result<T, Refusal> {
    T::parse(bytes).map_err(Refusal::Fields)
}

fn empty<T>(bytes: &[u8], value: T) -> Result<T, Refusal> {
    if bytes.is_empty() { Ok(value) } else { Err(Refusal::Fields(WireError::TooLong(bytes.len()))) }
}

impl Request {
    /// Returns the encoding.
    pub fn encode(&self) -> Vec<u8> {
        match self {
            Self::Status => vec![VERSION, 1],
            Self::Fail(process) => [&[VERSION, 2][..], &process.to_bytes()].concat(),
            Self::Drain(switch, incarnation) => {
                [&[VERSION, 3][..], &switch.to_bytes(), &incarnation.to_bytes()].concat()
            }
        }
    }

    /// Returns the request of an encoding.
    ///
    /// # Errors
    /// [`Refusal`] with the first thing that is wrong.
    pub fn decode(bytes: &[u8]) -> Result<Self, Refusal> {
        match kind(bytes)? {
            (1, rest) => empty(rest, Self::Status),
            (2, rest) => fields(rest).map(Self::Fail),
            (3, rest) => {
                fields(rest).map(|DrainFields { switch, incarnation }| Self::Drain(switch, incarnation))
            }
            (other, _) => Err(Refusal::Kind(other)),
        }
    }
}

impl Answer {
    /// Returns the encoding.
    pub fn encode(&self) -> Vec<u8> {
        let (kind, fields) = match self {
            Self::Summary(summary) => (1, summary.to_bytes()),
            Self::Members(members) => (2, members.to_bytes()),
            Self::Reps(reps) => (3, reps.to_bytes()),
            Self::Cases(cases) => (4, cases.to_bytes()),
            Self::Suspicion(suspicion) => (5, suspicion.to_bytes()),
            Self::Silent(silent) => (6, silent.to_bytes()),
            Self::Alarms(alarms) => (7, alarms.to_bytes()),
            Self::Done => (8, Vec::new()),
            Self::Refused(why) => (9, shortened(why).to_bytes()),
        };
        [&[VERSION, kind][..], &fields].concat()
    }

    /// Returns the answer of an encoding.
    ///
    /// # Errors
    /// [`Refusal`] with the first thing that is wrong.
    pub fn decode(bytes: &[u8]) -> Result<Self, Refusal> {
        match kind(bytes)? {
            (1, rest) => fields(rest).map(Self::Summary),
            (2, rest) => fields(rest).map(Self::Members),
            (3, rest) => fields(rest).map(Self::Reps),
            (4, rest) => fields(rest).map(Self::Cases),
            (5, rest) => fields(rest).map(Self::Suspicion),
            (6, rest) => fields(rest).map(Self::Silent),
            (7, rest) => fields(rest).map(Self::Alarms),
            (8, rest) => empty(rest, Self::Done),
            (9, rest) => fields(rest).map(Self::Refused),
            (other, _) => Err(Refusal::Kind(other)),
        }
    }
}

/// Returns a text without its end if it is too long.
fn shortened(text: &str) -> String {
    let end = (0..=text.len().min(TEXT)).rev().find(|&end| text.is_char_boundary(end)).unwrap_or(0);
    text[..end].to_owned()
}

/// State of a controller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Status {
    /// The controller
    pub summary: Summary,
    /// Processes
    pub members: Vec<MemberStatus>,
    /// Representatives
    pub reps: Vec<RepStatus>,
    /// Open cases
    pub cases: Vec<CaseStatus>,
    /// The present suspicion
    pub suspicion: Option<SuspicionStatus>,
    /// Silent links
    pub silent: Vec<SilentLink>,
    /// Alarms, the latest one last
    pub alarms: Vec<AlarmStatus>,
}

impl Status {
    /// Returns the answers to [`Request::Status`], each of which fits a message.
    pub fn answers(self) -> Vec<Answer> {
        fn parts<T: Clone>(list: &[T], of: fn(Vec<T>) -> Answer) -> impl Iterator<Item = Answer> {
            list.chunks(ENTRIES).map(move |part| of(part.to_vec()))
        }
        let mut alarms = self.alarms;
        for alarm in &mut alarms {
            alarm.text = shortened(&alarm.text);
        }
        let mut answers = vec![Answer::Summary(self.summary)];
        answers.extend(parts(&self.members, Answer::Members));
        answers.extend(parts(&self.reps, Answer::Reps));
        // Each has lists of processes and long texts.
        answers.extend(self.cases.into_iter().map(|case| Answer::Cases(vec![case])));
        answers.extend(self.suspicion.map(|suspicion| Answer::Suspicion(vec![suspicion])));
        answers.extend(parts(&self.silent, Answer::Silent));
        answers.extend(alarms.chunks(16).map(|part| Answer::Alarms(part.to_vec())));
        answers.push(Answer::Done);
        answers
    }

    /// Returns the state of all answers to a request; `None` without a summary.
    pub fn of(answers: impl IntoIterator<Item = Answer>) -> Option<Self> {
        let mut summary = None;
        let (mut members, mut reps, mut cases) = (Vec::new(), Vec::new(), Vec::new());
        let (mut suspicion, mut silent, mut alarms) = (None, Vec::new(), Vec::new());
        for answer in answers {
            match answer {
                Answer::Summary(of) => summary = Some(of),
                Answer::Members(more) => members.extend(more),
                Answer::Reps(more) => reps.extend(more),
                Answer::Cases(more) => cases.extend(more),
                Answer::Suspicion(of) => suspicion = of.into_iter().next(),
                Answer::Silent(more) => silent.extend(more),
                Answer::Alarms(more) => alarms.extend(more),
                Answer::Done | Answer::Refused(_) => {}
            }
        }
        Some(Self { summary: summary?, members, reps, cases, suspicion, silent, alarms })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status() -> Status {
        let member = |id| MemberStatus {
            id: ProcessId(id),
            incarnation: Incarnation(id + 1),
            state: MemberState::Member,
            connected: id.is_multiple_of(2),
            case: 0,
            time: 0,
        };
        let all: Vec<_> = (0..1_500).map(ProcessId).collect();
        let case = CaseStatus { case: 3, stage: Stage::Decided, failed: all.clone(), waits: all, at: 5 };
        Status {
            summary: Summary { network: 7, term: 2, up_ns: 3, thawed: 4, failed: 5 },
            members: (0..1_500).map(member).collect(),
            reps: Vec::new(),
            cases: vec![case; 3],
            suspicion: Some(SuspicionStatus {
                phase: Phase::Fencing,
                suspects: vec!["process 3".into()],
                waits: Vec::new(),
            }),
            silent: vec![SilentLink { from: "process 3".into(), to: "switch 1".into() }; 600],
            alarms: vec![AlarmStatus { text: "ä".repeat(1000), count: 1, at: 2 }; 40],
        }
    }

    #[test]
    fn the_state_of_a_large_network_fits_messages() {
        let answers = status().answers();
        assert_eq!(answers.last(), Some(&Answer::Done));
        let encoded: Vec<_> = answers.iter().map(Answer::encode).collect();
        assert!(encoded.iter().all(|bytes| bytes.len() <= management::MAX_MESSAGE));
        let decoded = encoded.iter().map(|bytes| Answer::decode(bytes).unwrap());
        assert_eq!(Status::of(decoded), Some(status()));
    }

    #[test]
    fn long_texts_are_cut_between_letters() {
        let answer = Answer::Refused("a".to_owned() + &"ä".repeat(2000));
        assert_eq!(Answer::decode(&answer.encode()), Ok(Answer::Refused("a".to_owned() + &"ä".repeat(999))));
    }

    #[test]
    fn cut_longer_and_unknown_requests_are_refused_by_name() {
        let fail = Request::Fail(ProcessId(7)).encode();
        assert_eq!(Request::decode(&fail), Ok(Request::Fail(ProcessId(7))));
        assert_eq!(Request::decode(&Request::Status.encode()), Ok(Request::Status));
        let drain = Request::Drain(3, Incarnation(9));
        assert_eq!(Request::decode(&drain.encode()), Ok(drain));
        for cut in 0..fail.len() {
            assert_eq!(Request::decode(&fail[..cut]), Err(Refusal::Fields(WireError::Truncated)), "{cut}");
        }
        let longer = [&fail[..], &[0]].concat();
        assert_eq!(Request::decode(&longer), Err(Refusal::Fields(WireError::TooLong(1))));
        assert_eq!(Request::decode(&[3, 1, 0]), Err(Refusal::Fields(WireError::TooLong(1))));
        assert_eq!(Request::decode(&[2, 1]), Err(Refusal::Version(2)));
        assert_eq!(Request::decode(&[3, 4]), Err(Refusal::Kind(4)));
        assert_eq!(Answer::decode(&[3, 10]), Err(Refusal::Kind(10)));
        assert_eq!(Answer::decode(&[3, 8, 0]), Err(Refusal::Fields(WireError::TooLong(1))));
    }
}
