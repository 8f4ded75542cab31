//! Numbers of errors and of failures, and their messages.

use core::ffi::{CStr, c_char, c_int};
use onepipe_host::{Failure, ReliableError, SendError, reliable};

/// `enum onepipe_error`
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Error {
    Config,
    Start,
    Empty,
    Unknown,
    Dead,
    TooLong,
    TooLarge,
    TooMuch,
    Full,
    Left,
    TooSmall,
    Busy,
    Argument,
    NoController,
    Merged,
    NotMerged,
    NotAdmitted,
    Fenced,
    NotMember,
}

impl Error {
    /// All errors, each with its name in C and its message; the first one is -1.
    const ALL: [(Self, &'static str, &'static CStr); 19] = [
        (Self::Config, "ONEPIPE_CONFIG", c"invalid configuration"),
        (Self::Start, "ONEPIPE_START", c"DPDK, the port or a thread failed to start"),
        (Self::Empty, "ONEPIPE_EMPTY", c"the scattering has no messages"),
        (Self::Unknown, "ONEPIPE_UNKNOWN", c"the process is not among the peers"),
        (Self::Dead, "ONEPIPE_DEAD", c"a receiver has failed"),
        (Self::TooLong, "ONEPIPE_TOO_LONG", c"a message is longer than 16 MiB"),
        (Self::TooLarge, "ONEPIPE_TOO_LARGE", c"the messages for one receiver never fit into its window"),
        (Self::TooMuch, "ONEPIPE_TOO_MUCH", c"the scattering never fits into the send buffer"),
        (Self::Full, "ONEPIPE_FULL", c"no room now; receive, and try again"),
        (Self::Left, "ONEPIPE_LEFT", c"this process has left"),
        (Self::TooSmall, "ONEPIPE_TOO_SMALL", c"the message is longer than the buffer"),
        (Self::Busy, "ONEPIPE_BUSY", c"another thread is receiving"),
        (Self::Argument, "ONEPIPE_ARGUMENT", c"a null pointer, or a path that is not UTF-8"),
        (Self::NoController, "ONEPIPE_NO_CONTROLLER", c"the configuration has no [controller]"),
        (Self::Merged, "ONEPIPE_MERGED", c"[controller] has merged = true; use onepipe_recv"),
        (Self::NotMerged, "ONEPIPE_NOT_MERGED", c"[controller] has merged = false; receive each service"),
        (Self::NotAdmitted, "ONEPIPE_NOT_ADMITTED", c"the controller has not admitted this process"),
        (Self::Fenced, "ONEPIPE_FENCED", c"this process has failed, as the controller has decided"),
        (Self::NotMember, "ONEPIPE_NOT_MEMBER", c"a receiver is not a member of the reliable service"),
    ];

    pub(crate) const fn number(self) -> c_int {
        -1 - self as c_int
    }
}

impl From<SendError> for Error {
    fn from(error: SendError) -> Self {
        match error {
            SendError::Empty => Self::Empty,
            SendError::Unknown(_) => Self::Unknown,
            SendError::Dead(_) => Self::Dead,
            SendError::TooLong { .. } => Self::TooLong,
            SendError::TooLarge { .. } => Self::TooLarge,
            SendError::TooMuch { .. } => Self::TooMuch,
            SendError::Full => Self::Full,
            SendError::Left => Self::Left,
        }
    }
}

impl From<ReliableError> for Error {
    fn from(error: ReliableError) -> Self {
        match error {
            ReliableError::NoController => Self::NoController,
            ReliableError::Merged => Self::Merged,
            ReliableError::NotMerged => Self::NotMerged,
            ReliableError::Service(reliable::Error::NotAdmitted) => Self::NotAdmitted,
            ReliableError::Service(reliable::Error::Fenced) => Self::Fenced,
            ReliableError::Service(reliable::Error::NotMember(_)) => Self::NotMember,
            ReliableError::Service(reliable::Error::Send(error)) => error.into(),
        }
    }
}

/// Reasons of best effort in `enum onepipe_failure`, in its order; the first one is 1
const FAILURES: [(Failure, &str, &CStr); 6] = [
    (Failure::Lost, "ONEPIPE_FAILED_LOST", c"lost in the network"),
    (Failure::Late, "ONEPIPE_FAILED_LATE", c"arrived too late"),
    (Failure::NoRoom, "ONEPIPE_FAILED_NO_ROOM", c"no room at the receiver"),
    (Failure::NotAcknowledged, "ONEPIPE_FAILED_NOT_ACKNOWLEDGED", c"not acknowledged in time"),
    (Failure::Dead, "ONEPIPE_FAILED_DEAD", c"the receiver has failed"),
    (Failure::Left, "ONEPIPE_FAILED_LEFT", c"this process has left"),
];

/// Reasons that only the reliable service has, which follow
const RELIABLE_FAILURES: [(reliable::Failure, &str, &CStr); 3] = [
    (
        reliable::Failure::Recalled,
        "ONEPIPE_FAILED_RECALLED",
        c"recalled, as another receiver of its scattering has failed",
    ),
    (reliable::Failure::Fenced, "ONEPIPE_FAILED_FENCED", c"this process was excluded"),
    (
        reliable::Failure::NotAdmitted,
        "ONEPIPE_FAILED_NOT_ADMITTED",
        c"a receiver, or this process, was no member",
    ),
];

pub(crate) fn reliable_failure_number(why: reliable::Failure) -> c_int {
    match why {
        reliable::Failure::Dead => failure_number(Failure::Dead),
        reliable::Failure::Left => failure_number(Failure::Left),
        why => {
            let at = RELIABLE_FAILURES.iter().position(|(failure, ..)| *failure == why);
            at.map_or(0, |at| (FAILURES.len() + at) as c_int + 1)
        }
    }
}

pub(crate) fn failure_number(why: Failure) -> c_int {
    FAILURES.iter().position(|(failure, ..)| *failure == why).map_or(0, |at| at as c_int + 1)
}

fn error_text(error: c_int) -> &'static CStr {
    let found = usize::try_from(-1 - i64::from(error)).ok().and_then(|at| Error::ALL.get(at));
    if error == 0 { c"no error" } else { found.map_or(c"no such error", |(.., text)| *text) }
}

fn failure_text(failure: c_int) -> &'static CStr {
    let texts = FAILURES.iter().map(|(.., text)| *text);
    let mut texts = texts.chain(RELIABLE_FAILURES.iter().map(|(.., text)| *text));
    let found = usize::try_from(i64::from(failure) - 1).ok().and_then(|at| texts.nth(at));
    found.unwrap_or(c"no such failure")
}

/// Returns the message of an error number; see `onepipe.h`.
#[unsafe(no_mangle)]
pub extern "C" fn onepipe_strerror(error: c_int) -> *const c_char {
    error_text(error).as_ptr()
}

/// Returns the message of a failure number; see `onepipe.h`.
#[unsafe(no_mangle)]
pub extern "C" fn onepipe_strfailure(failure: c_int) -> *const c_char {
    failure_text(failure).as_ptr()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    const HEADER: &str = include_str!("../include/onepipe.h");

    /// The header has these numbers, and no others.
    #[test]
    fn header_has_the_same_numbers() {
        let listed = HEADER.lines().filter_map(|line| {
            let (name, rest) = line.trim().split_once(" = ")?;
            let number: c_int = rest.split([',', ' ']).next()?.parse().ok()?;
            Some((name, number))
        });
        let listed: BTreeMap<&str, c_int> = listed.collect();
        let errors = Error::ALL.iter().map(|(error, name, _)| (*name, error.number()));
        let failures = FAILURES.iter().map(|(failure, name, _)| (*name, failure_number(*failure)));
        let reliable = RELIABLE_FAILURES.iter();
        let reliable = reliable.map(|(failure, name, _)| (*name, reliable_failure_number(*failure)));
        let events = crate::event::EVENTS.into_iter();
        let others = reliable.chain(events).chain([("ONEPIPE_OK", 0)]);
        let ours: BTreeMap<_, _> = errors.chain(failures).chain(others).collect();
        assert_eq!(listed, ours);
        // The alias of a renamed constant, for programs that use the previous name
        assert!(HEADER.contains("ONEPIPE_FAILED_NO_ANSWER = ONEPIPE_FAILED_NOT_ACKNOWLEDGED"));
    }

    /// The header declares every function defined here, with the same number of arguments, and no others.
    #[test]
    fn header_has_the_same_functions() {
        let sources = [
            include_str!("lib.rs"),
            include_str!("error.rs"),
            include_str!("event.rs"),
            include_str!("receive.rs"),
            include_str!("reliable.rs"),
        ]
        .concat();
        let functions = |text: &str, before: &str| -> BTreeMap<String, usize> {
            let arguments = |text: &str| {
                let list = text.split(')').next().unwrap_or_default();
                let list: Vec<_> = list.split(',').map(str::trim).collect();
                list.iter().filter(|argument| !argument.is_empty() && **argument != "void").count()
            };
            let found = text.match_indices(before).filter_map(|(at, _)| {
                let (name, rest) = text[at + before.len()..].split_once('(')?;
                (name.starts_with("onepipe_") && !name.contains(char::is_whitespace))
                    .then(|| (name.to_owned(), arguments(rest)))
            });
            found.collect()
        };
        let ours = functions(&sources, "extern \"C\" fn ");
        // Declarations begin at the start of a line, and the name follows a type.
        let mut declared = BTreeMap::new();
        for kind in ["int ", "void ", "size_t ", "uint64_t ", "const char *"] {
            let begun = format!("\n{kind}");
            declared.extend(functions(HEADER, &begun));
        }
        assert!(ours.len() >= 9, "{ours:?}");
        assert_eq!(declared, ours);
    }

    #[test]
    fn all_numbers_have_messages() {
        for (at, (error, ..)) in (0..).zip(Error::ALL) {
            assert_eq!(error.number(), -1 - at);
        }
        for number in -25..25 {
            assert_eq!(error_text(number) == c"no such error", !(-19..=0).contains(&number), "{number}");
            assert_eq!(failure_text(number) == c"no such failure", !(1..=9).contains(&number), "{number}");
        }
    }
}
