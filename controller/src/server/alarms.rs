//! Alarms for the operator: a line in the log, and a list with counts.

use crate::operator::AlarmStatus;
use std::collections::BTreeMap;
use switch::Nanos;
use tracing::{error, warn};

/// Alarms that are kept; then the one that has not happened for the longest time is forgotten
const KEPT: usize = 64;
/// Time for which an alarm of the same kind is not printed again
const QUIET: Nanos = Nanos::from_secs(10);

/// How urgent an alarm is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Urgency {
    /// Something is refused, and the controller goes on
    Warning,
    /// Nothing is decided, or a guarantee is lost
    Error,
}

#[derive(Debug)]
struct Kept {
    text: String,
    count: u64,
    /// Time since the Unix epoch, in nanoseconds
    at: u64,
    printed: Nanos,
}

/// Alarms by kind.
#[derive(Debug, Default)]
pub(super) struct Alarms(BTreeMap<String, Kept>);

impl Alarms {
    /// Counts an alarm of a kind, and prints it if none of this kind was printed recently.
    pub(super) fn raise(&mut self, kind: String, text: String, urgency: Urgency, now: Nanos, clock: u64) {
        let is_new = !self.0.contains_key(&kind);
        if is_new && self.0.len() == KEPT {
            let oldest = self.0.iter().min_by_key(|(_, kept)| kept.at).map(|(kind, _)| kind.clone());
            oldest.map(|kind| self.0.remove(&kind));
        }
        let kept =
            self.0.entry(kind).or_insert(Kept { text: String::new(), count: 0, at: 0, printed: Nanos::ZERO });
        kept.count += 1;
        (kept.text, kept.at) = (text, clock);
        if is_new || now.since(kept.printed) >= QUIET {
            kept.printed = now;
            match urgency {
                Urgency::Warning => warn!("{}", kept.text),
                Urgency::Error => error!("{}", kept.text),
            }
        }
    }

    /// Returns the alarms, the latest one last.
    pub(super) fn status(&self) -> Vec<AlarmStatus> {
        let status = |kept: &Kept| AlarmStatus { text: kept.text.clone(), count: kept.count, at: kept.at };
        let mut alarms: Vec<_> = self.0.values().map(status).collect();
        alarms.sort_by_key(|alarm| alarm.at);
        alarms
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn alarms_are_counted_by_kind_and_limited() {
        let mut alarms = Alarms::default();
        for n in 0..100_u64 {
            alarms.raise(format!("kind {n}"), format!("text {n}"), Urgency::Warning, Nanos(n), n);
            alarms.raise("always".into(), format!("now {n}"), Urgency::Error, Nanos(n), n);
        }
        let status = alarms.status();
        assert_eq!(status.len(), KEPT);
        let always = status.iter().find(|alarm| alarm.text == "now 99").unwrap();
        assert_eq!((always.count, always.at), (100, 99));
        assert!(status.is_sorted_by_key(|alarm| alarm.at));
        assert!(status.iter().all(|alarm| alarm.at >= 36), "the oldest ones are forgotten");
    }
}
