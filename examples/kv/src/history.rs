//! Linearizability of what several clients observed of the keys that they share (Herlihy and Wing 1990):
//! whether there is one order of all operations on a key in which each takes effect at one moment between its
//! request and its response.
//!
//! No search is needed. No value is written twice, so a register is checked by the zones of its values
//! (Gibbons and Korach, "Testing shared memories", SIAM J. Comput. 1997, section 4). Each response of a
//! counter states the operation's position in the order. An operation without a response may have taken
//! effect at any time after its request, or never.

use std::collections::BTreeMap;

/// Time span of an operation, in nanoseconds of one clock for all clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Span {
    /// Time of its request
    pub(crate) began: u64,
    /// Time of its response; `None` if the outcome is unknown
    pub(crate) ended: Option<u64>,
}

impl Span {
    /// Returns the latest moment at which the operation may have taken effect.
    const fn latest(self) -> u64 {
        match self.ended {
            Some(ended) => ended,
            None => u64::MAX,
        }
    }
}

/// An operation on a shared key, with its result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Operation {
    /// SET of a register to a value that no other SET writes
    Write(u64),
    /// GET of a register; 0 if there was no such key
    Read(u64),
    /// INCR of a counter: the result, or `None` if the outcome is unknown
    Increment(Option<u64>),
    /// GET of a counter; 0 if there was no such key
    Count(u64),
}

/// All operations on one key: a register or a counter.
#[derive(Clone, Debug, Default)]
pub(crate) struct History(Vec<(Operation, Span)>);

impl History {
    /// Adds an operation.
    pub(crate) fn add(&mut self, operation: Operation, span: Span) {
        self.0.push((operation, span));
    }

    /// Adds the operations of another client on the same key.
    pub(crate) fn extend(&mut self, other: Self) {
        self.0.extend(other.0);
    }

    /// Returns the number of operations.
    pub(crate) const fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns the number of operations whose outcome is unknown.
    pub(crate) fn unknown(&self) -> usize {
        self.0.iter().filter(|(_, span)| span.ended.is_none()).count()
    }

    /// Checks that the operations on the key are linearizable.
    ///
    /// # Errors
    /// The first operations found that no order explains.
    pub(crate) fn check(&self) -> Result<(), String> {
        self.check_register()?;
        self.check_counter()
    }

    /// Checks the SETs and GETs of a register. All operations on one value are contiguous in the order. If
    /// one of them ends before another begins, the register holds the value in between (a forward zone), and
    /// no two such zones overlap. If not, there is a moment that all of them include (a backward zone), and
    /// it must not lie in a forward zone.
    fn check_register(&self) -> Result<(), String> {
        let zones = self.zones()?;
        let (mut forward, backward): (Vec<_>, Vec<_>) =
            zones.into_iter().partition(|(_, zone)| zone.first_ended < zone.last_began);
        forward.sort_by_key(|(_, zone)| zone.first_ended);
        for pair in forward.windows(2) {
            let [(one, first), (other, second)] = [pair[0], pair[1]];
            if second.first_ended < first.last_began {
                return Err(format!("the register held {one} {first}, and {other} {second}"));
            }
        }
        for (value, zone) in backward {
            // The last of the forward zones that begin before the backward zone ends
            let at = forward.partition_point(|(_, other)| other.first_ended < zone.last_began);
            if let Some((other, around)) = forward[..at].last()
                && zone.first_ended < around.last_began
            {
                let [from, until] = [zone.last_began, zone.first_ended].map(seconds);
                return Err(format!(
                    "the register held {value} between {from} and {until}, but {other} {around}"
                ));
            }
        }
        Ok(())
    }

    /// Returns the zone of each value of a register. A SET without a response counts if its value was read.
    fn zones(&self) -> Result<BTreeMap<u64, Zone>, String> {
        let mut writes = BTreeMap::from([(0, Span { began: 0, ended: Some(0) })]);
        for (operation, span) in &self.0 {
            if let Operation::Write(value) = operation
                && writes.insert(*value, *span).is_some()
            {
                return Err(format!("{value} was written twice"));
            }
        }
        let zone = |(value, span): (&u64, &Span)| {
            (*value, Zone { last_began: span.began, first_ended: span.latest() })
        };
        let mut zones: BTreeMap<_, _> = writes.iter().map(zone).collect();
        let mut was_read = Vec::new();
        for (operation, span) in &self.0 {
            let Operation::Read(value) = operation else { continue };
            let (began, ended) = (seconds(span.began), seconds(span.latest()));
            let Some(zone) = zones.get_mut(value) else {
                return Err(format!("a GET from {began} to {ended} found {value}, which was never written"));
            };
            if span.latest() < writes[value].began {
                let later = seconds(writes[value].began);
                return Err(format!(
                    "a GET from {began} to {ended} found {value}, which was written after {later}"
                ));
            }
            zone.last_began = zone.last_began.max(span.began);
            zone.first_ended = zone.first_ended.min(span.latest());
            was_read.push(*value);
        }
        was_read.sort_unstable();
        zones.retain(|value, _| writes[value].ended.is_some() || was_read.binary_search(value).is_ok());
        Ok(zones)
    }

    /// Checks the INCRs and GETs of a counter: for each number, the INCR that produced it, and then the GETs
    /// that returned it, each at the earliest moment that the operations before it allow. A number that no
    /// INCR returned was produced by the earliest remaining INCR without a response.
    fn check_counter(&self) -> Result<(), String> {
        let Steps { mut increments_by_number, mut reads_by_number, mut increments_without_response, last } =
            self.steps()?;
        increments_without_response.sort_by_key(|span| core::cmp::Reverse(span.began));
        let mut earliest = 0;
        for number in 0..=last {
            if number > 0 {
                let Some(span) =
                    increments_by_number.remove(&number).or_else(|| increments_without_response.pop())
                else {
                    return Err(format!("no INCR made the counter {number}, but it became {last}"));
                };
                earliest = after(earliest, span, &format!("the INCR to {number}"))?;
            }
            let reads = reads_by_number.remove(&number).unwrap_or_default();
            for span in &reads {
                after(earliest, *span, &format!("the GET of {number}"))?;
            }
            earliest = reads.iter().map(|span| span.began).fold(earliest, u64::max);
        }
        Ok(())
    }

    /// Groups the operations on a counter by the number that they returned.
    fn steps(&self) -> Result<Steps, String> {
        let mut steps = Steps::default();
        let mut sent = 0;
        for (operation, span) in &self.0 {
            match operation {
                Operation::Increment(Some(number)) => {
                    if steps.increments_by_number.insert(*number, *span).is_some() {
                        return Err(format!("two INCRs returned {number}"));
                    }
                    (sent, steps.last) = (sent + 1, steps.last.max(*number));
                }
                Operation::Increment(None) => {
                    steps.increments_without_response.push(*span);
                    sent += 1;
                }
                Operation::Count(number) => {
                    steps.reads_by_number.entry(*number).or_default().push(*span);
                    steps.last = steps.last.max(*number);
                }
                Operation::Write(_) | Operation::Read(_) => {}
            }
        }
        if steps.increments_by_number.contains_key(&0) {
            return Err("an INCR returned 0".into());
        }
        if steps.last > sent {
            return Err(format!("the counter became {} by {sent} INCRs", steps.last));
        }
        Ok(steps)
    }
}

/// Operations on a counter
#[derive(Default)]
struct Steps {
    /// INCRs, by the number that each returned
    increments_by_number: BTreeMap<u64, Span>,
    /// GETs, by the number that they returned
    reads_by_number: BTreeMap<u64, Vec<Span>>,
    /// INCRs without a response
    increments_without_response: Vec<Span>,
    /// The largest number returned
    last: u64,
}

/// Returns the earliest moment at which an operation takes effect that comes after `earliest`.
///
/// # Errors
/// If the operation ended before that.
fn after(earliest: u64, span: Span, what: &str) -> Result<u64, String> {
    if span.latest() < earliest {
        let [ended, earliest] = [span.latest(), earliest].map(seconds);
        return Err(format!(
            "{what} ended at {ended}, but comes after an operation that began at {earliest}"
        ));
    }
    Ok(earliest.max(span.began))
}

/// Range of the operations on one value of a register
#[derive(Clone, Copy)]
struct Zone {
    last_began: u64,
    first_ended: u64,
}

impl core::fmt::Display for Zone {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "from {} to {}", seconds(self.first_ended), seconds(self.last_began))
    }
}

fn seconds(nanos: u64) -> String {
    format!("{:.6} s", nanos as f64 / 1e9)
}

#[cfg(test)]
mod tests {
    use super::Operation::{Count, Increment, Read, Write};
    use super::*;
    use proptest::prelude::*;
    use workloads::words::linear::{self, Action, Done, Op, Rules};

    /// Checks a history of operations, each with its begin and end, which is `u64::MAX` if there was no
    /// response.
    fn check(operations: &[(Operation, u64, u64)]) -> Result<(), String> {
        let mut history = History::default();
        for (operation, began, ended) in operations {
            let ended = Some(*ended).filter(|ended| *ended != u64::MAX);
            history.add(*operation, Span { began: *began, ended });
        }
        history.check()
    }

    fn assert_wrong(operations: &[(Operation, u64, u64)], why: &str) {
        let wrong = check(operations).unwrap_err();
        assert!(wrong.contains(why), "{wrong}");
    }

    const UNKNOWN: u64 = u64::MAX;

    #[test]
    fn reads_during_a_write_may_find_either_value() {
        let writes = [(Write(1), 10, 20), (Write(2), 15, 30)];
        let with = |reads: &[(Operation, u64, u64)]| [&writes[..], reads].concat();
        assert_eq!(check(&with(&[(Read(0), 1, 12), (Read(1), 17, 18), (Read(2), 31, 32)])), Ok(()));
        // The order of the two writes is undetermined.
        assert_eq!(check(&with(&[(Read(1), 40, 50)])), Ok(()));
    }

    #[test]
    fn stale_reads_are_found() {
        assert_wrong(&[(Write(1), 1, 2), (Write(2), 3, 4), (Read(1), 5, 6)], "the register held 2 between");
        assert_wrong(&[(Write(1), 1, 2), (Read(0), 3, 4)], "the register held 1 between");
        // Two reads between which a concurrent write appears to be undone
        let writes = [(Write(1), 1, 2), (Write(2), 3, 9)];
        assert_wrong(&[&writes[..], &[(Read(2), 4, 5), (Read(1), 6, 7)]].concat(), "the register held");
        assert_wrong(&[(Increment(Some(1)), 1, 2), (Count(0), 3, 4)], "the INCR to 1 ended");
    }

    #[test]
    fn lost_updates_are_found() {
        // An acknowledged SET that is lost
        let writes = [(Write(1), 1, 2), (Read(1), 3, 4), (Write(2), 5, 6)];
        assert_wrong(&[&writes[..], &[(Read(1), 7, 8)]].concat(), "the register held 2 between");
        // Two INCRs that both found 0
        assert_wrong(&[(Increment(Some(1)), 1, 4), (Increment(Some(1)), 2, 5)], "two INCRs returned 1");
        assert_wrong(
            &[(Increment(Some(1)), 1, 2), (Increment(Some(2)), 3, 4), (Count(1), 5, 6)],
            "the INCR to 2 ended",
        );
    }

    #[test]
    fn reads_before_the_write_and_of_unwritten_values_are_found() {
        assert_wrong(&[(Read(1), 1, 2), (Write(1), 3, 4)], "written after");
        assert_wrong(&[(Read(3), 1, 2)], "never written");
        assert_wrong(&[(Increment(Some(2)), 1, 2)], "became 2 by 1");
        assert_wrong(
            &[(Increment(Some(3)), 1, 2), (Increment(Some(1)), 3, 4), (Increment(None), 1, UNKNOWN)],
            "the INCR to 3 ended",
        );
    }

    #[test]
    fn an_increment_that_is_executed_twice_is_found() {
        assert_wrong(&[(Increment(Some(1)), 1, 2), (Increment(Some(3)), 3, 4)], "became 3 by 2");
        assert_wrong(&[(Increment(Some(1)), 1, 2), (Count(2), 3, 4)], "became 2 by 1");
    }

    #[test]
    fn an_operation_with_an_unknown_outcome_may_take_effect_at_any_time_or_never() {
        let first = (Write(1), 1, 2);
        let unknown = (Write(2), 3, UNKNOWN);
        assert_eq!(check(&[first, unknown, (Read(1), 50, 60)]), Ok(()));
        assert_eq!(check(&[first, unknown, (Read(1), 50, 60), (Read(2), 70, 80)]), Ok(()));
        assert_wrong(&[first, unknown, (Read(2), 50, 60), (Read(1), 70, 80)], "the register held");
        assert_wrong(&[unknown, (Read(2), 1, 2)], "written after");
        let increments = [(Increment(Some(1)), 1, 2), (Increment(None), 3, UNKNOWN)];
        let with = |more: &[(Operation, u64, u64)]| check(&[&increments[..], more].concat());
        assert_eq!(with(&[(Increment(Some(2)), 5, 6)]), Ok(()));
        assert_eq!(with(&[(Increment(Some(3)), 5, 6)]), Ok(()));
        assert_eq!(with(&[(Count(1), 5, 6), (Increment(Some(3)), 7, 8)]), Ok(()));
        assert!(with(&[(Increment(Some(4)), 5, 6)]).is_err());
        assert!(with(&[(Count(2), 1, 2)]).is_err(), "the INCR had not begun");
    }

    /// Returns whether the simulator's search over all orders finds one that explains the operations.
    fn is_explained(operations: &[(Operation, Span)]) -> bool {
        let op = |(connection, (operation, span)): (usize, &(Operation, Span))| {
            let done = |fetched| span.ended.map(|at| Done { at, fetched });
            let (action, done) = match *operation {
                Write(value) => (Action::Write(value), done(0)),
                Read(value) | Count(value) => (Action::Read, done(value)),
                Increment(value) => {
                    (Action::FetchAdd(1), value.and_then(|value| done(value.wrapping_sub(1))))
                }
            };
            Op {
                connection: connection as u32,
                invoked: span.began,
                done,
                until: u64::MAX,
                fence: true,
                action,
            }
        };
        let ops: Vec<_> = operations.iter().enumerate().map(op).collect();
        linear::check(&ops, 0, None, Rules::default()).is_ok()
    }

    /// A drawn operation: whether it reads; its begin, and the durations until it takes effect and then until
    /// it ends; whether there is a response; and the error of the response
    type Drawn = (bool, u64, u64, u64, bool, u64);

    fn drawn() -> impl Strategy<Value = Vec<Drawn>> {
        let off = prop_oneof![12 => Just(0), 1 => 1..3u64];
        let one = (any::<bool>(), 0..60u64, 0..20u64, 0..20u64, prop::bool::weighted(0.8), off);
        prop::collection::vec(one, 1..12)
    }

    /// Executes the operations on a key in the order in which they take effect, with errors in some
    /// responses. No two moments are equal.
    fn history(drawn: &[Drawn], is_counter: bool) -> Vec<(Operation, Span)> {
        let count = drawn.len() as u64;
        let mut order: Vec<_> = (0..drawn.len()).collect();
        order.sort_by_key(|index| (drawn[*index].1 + drawn[*index].2, *index));
        let (mut value, mut out) = (0, Vec::new());
        for index in order {
            let (reads, began, first, second, is_answered, off) = drawn[index];
            let number = index as u64;
            let span = Span {
                began: 1 + began * 2 * count + number,
                ended: is_answered.then_some(1 + ((began + first + second) * 2 + 1) * count + number),
            };
            // Some operations without a response never take effect.
            let happens = is_answered || off == 0;
            let operation = match (is_counter, reads) {
                (false, true) => Read(value.max(off) - off),
                (true, true) => Count(value + off),
                (false, false) => {
                    value = if happens { number + 1 } else { value };
                    Write(number + 1)
                }
                (true, false) => {
                    value += u64::from(happens);
                    Increment(is_answered.then_some(value + off))
                }
            };
            if is_answered || !reads {
                out.push((operation, span));
            }
        }
        out
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(3000))]
        #[test]
        fn the_verdict_agrees_with_a_search_over_all_orders(drawn in drawn(), is_counter: bool) {
            let operations = history(&drawn, is_counter);
            let verdict = History(operations.clone()).check();
            prop_assert_eq!(verdict.is_ok(), is_explained(&operations), "{:?}: {:?}", operations, verdict);
        }
    }
}
