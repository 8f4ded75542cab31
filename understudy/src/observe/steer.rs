//! Requests that change a running function: rules of `[impair]`, rates of `[pktgen]`, layers of `[swordbox]`. They come
//! from the socket of observers, or from a newer version of the configuration. A function that can be changed takes
//! their queue (`Run::take_steering`); for any other one they are refused.

use crossbeam_channel::{Receiver, Sender, TryRecvError};
use serde::{Deserialize, Serialize};
use std::time::Duration;
use swordbox::Layers;

/// Time within which all workers have to adopt a change, shorter than a client waits for a response
pub(crate) const ADOPTION_TIMEOUT: Duration = Duration::from_secs(3);

/// A request about the rules of `[impair]`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "do")]
pub(crate) enum RulesRequest {
    /// The current rules
    List,
    /// Adds a rule with these keys and values, at the end or before another one
    Add { keys: Vec<(String, String)>, before: Option<String> },
    /// Sets keys of a rule; an empty value removes the key
    Set { rule: String, keys: Vec<(String, String)> },
    /// Removes rules
    Remove { rules: Vec<String> },
    /// Replaces all rules by those of a file. `origin` is its name in messages
    Apply { origin: String, text: String },
}

/// The rules of `[impair]`: the response to each [`RulesRequest`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct RulesState {
    pub(crate) rules: Vec<RuleState>,
    /// Number of workers
    pub(crate) workers: usize,
    /// Workers that have not adopted these rules yet
    pub(crate) waiting: Vec<usize>,
}

impl RulesState {
    /// Returns the names of the rules.
    pub(crate) fn names(&self) -> String {
        let names: Vec<_> = self.rules.iter().map(|rule| rule.name.as_str()).collect();
        if names.is_empty() { "none".into() } else { names.join(", ") }
    }
}

/// A rule and its counters, of all workers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct RuleState {
    pub(crate) name: String,
    /// Description in a sentence
    pub(crate) text: String,
    /// The rule as in a configuration
    pub(crate) toml: String,
    /// Packets that the rule matched
    pub(crate) matched: u64,
    /// Packets on which it acted
    pub(crate) acted: u64,
    /// Packets on which it could not act
    pub(crate) unable: u64,
}

/// A request about the rates of `[pktgen]`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "do")]
pub(crate) enum RatesRequest {
    /// The current rates
    List,
    /// Sets rates of streams, all or none; of every stream, if the name is `None`
    Set { rates: Vec<(Option<String>, String)> },
}

/// The rates of `[pktgen]`: the response to each [`RatesRequest`].
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct RatesState {
    pub(crate) streams: Vec<StreamState>,
    /// Rate of the device that sends, in bits a second, if it states one
    pub(crate) device_bits_per_s: Option<u64>,
}

impl RatesState {
    /// Returns the rate of each stream.
    pub(crate) fn text(&self) -> String {
        let streams = self.streams.iter().map(|stream| format!("{} of `{}`", stream.rate, stream.name));
        streams.collect::<Vec<_>>().join(", ")
    }
}

/// A stream and its rate.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct StreamState {
    pub(crate) name: String,
    /// Rate, as a request states it
    pub(crate) rate: String,
    /// Packets sent
    pub(crate) sent: u64,
    /// Time during which the stream sent
    pub(crate) sending_s: f64,
}

/// A request to the function.
#[derive(Debug)]
pub(crate) enum Steering {
    Rules(RulesRequest, Sender<Result<RulesState, SteerError>>),
    Rates(RatesRequest, Sender<Result<RatesState, SteerError>>),
    /// Only from a configuration
    Layers(Layers, Sender<Result<Layers, SteerError>>),
}

/// Longest queue of requests
const MAX_REQUESTS: usize = 64;

/// Returns the two ends of a queue of requests.
pub(crate) fn queue() -> (Sender<Steering>, Receiver<Steering>) {
    crossbeam_channel::bounded(MAX_REQUESTS)
}

/// Refuses all requests in the queue of a function that cannot be changed.
pub(crate) fn refuse_all(queue: &Receiver<Steering>, function: &str) {
    queue.try_iter().for_each(|request| request.refuse(function));
}

/// A request that a newer version of a configuration makes, and its outcome.
pub(crate) struct Change {
    request: Steering,
    outcome: Box<dyn FnMut() -> Option<Result<String, SteerError>>>,
}

impl Change {
    /// Returns the request that `request` makes of the channel for its response. `describe` returns what is in effect
    /// after it, for a line of the log.
    pub(crate) fn new<T: 'static>(
        request: impl FnOnce(Sender<Result<T, SteerError>>) -> Steering,
        describe: impl Fn(&T) -> String + 'static,
    ) -> Self {
        let (response, received) = crossbeam_channel::bounded::<Result<T, SteerError>>(1);
        let outcome = move || match received.try_recv() {
            Ok(outcome) => Some(outcome.map(|state| describe(&state))),
            Err(TryRecvError::Empty) => None,
            Err(TryRecvError::Disconnected) => Some(Err(SteerError::Ending)),
        };
        Self { request: request(response), outcome: Box::new(outcome) }
    }

    /// Puts the request into the queue of the function. Returns its outcome, or the change if the
    /// queue is full.
    pub(crate) fn send(self, queue: &Sender<Steering>) -> Result<Outcome, Self> {
        match queue.try_send(self.request) {
            Ok(()) => Ok(Outcome(self.outcome)),
            Err(error) => Err(Self { request: error.into_inner(), outcome: self.outcome }),
        }
    }
}

/// Outcome of a change that was requested.
pub(crate) struct Outcome(Box<dyn FnMut() -> Option<Result<String, SteerError>>>);

impl Outcome {
    /// Returns the outcome if it is known: a description of what is in effect, or an error.
    pub(crate) fn poll(&mut self) -> Option<Result<String, SteerError>> {
        (self.0)()
    }
}

impl Steering {
    /// Refuses a request for another function than `[function]`.
    pub(crate) fn refuse(self, function: &str) {
        // A requester that has given up needs no response.
        match self {
            Self::Rules(_, response) => drop(
                response.send(Err(SteerError::OtherFunction { table: "impair", running: function.into() })),
            ),
            Self::Rates(_, response) => drop(
                response.send(Err(SteerError::OtherFunction { table: "pktgen", running: function.into() })),
            ),
            Self::Layers(_, response) => drop(
                response.send(Err(SteerError::OtherFunction { table: "swordbox", running: function.into() })),
            ),
        }
    }
}

/// Reason why a change is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum SteerError {
    /// The instance runs another function
    #[error("this instance runs [{running}], not [{table}]; connect to one with [{table}]")]
    OtherFunction { table: &'static str, running: String },
    /// The change is not valid, and nothing was changed; a text for users
    #[error("{0}")]
    Invalid(String),
    /// Earlier changes were not adopted in time, and this one was not begun
    #[error(
        "{} an earlier change within {} s, and this one was not begun: try again, or restart the \
         instance if the worker is stopped", have_not_adopted(.waiting), ADOPTION_TIMEOUT.as_secs()
    )]
    Busy { waiting: Vec<usize> },
    /// Some workers have not adopted the change in time
    #[error(
        "{} the change within {} s: stopped, or without time on the CPU; it takes effect there when that changes, and \
         already has on other workers (`list` shows what is missing)",
        have_not_adopted(.waiting), ADOPTION_TIMEOUT.as_secs()
    )]
    Late { waiting: Vec<usize> },
    /// The run is over
    #[error("the instance is shutting down")]
    Ending,
}

impl SteerError {
    /// Returns the reason as one word, for programs.
    pub(super) const fn name(&self) -> &'static str {
        match self {
            Self::OtherFunction { .. } => "other_function",
            Self::Invalid(_) => "invalid",
            Self::Busy { .. } => "busy",
            Self::Late { .. } => "late",
            Self::Ending => "ending",
        }
    }
}

/// Returns the beginning of a sentence about workers.
fn have_not_adopted(workers: &[usize]) -> String {
    let names: Vec<_> = workers.iter().map(usize::to_string).collect();
    match names.as_slice() {
        [one] => format!("worker {one} has not adopted"),
        _ => format!("workers {} have not adopted", names.join(", ")),
    }
}
