//! Whether atomics on a word can be explained by one order, in which each happened at one moment between its request
//! and its completion (linearizable; Herlihy and Wing 1990).
//!
//! Every successful operation adds something here: a `FetchAdd` of a positive number, or a `CmpSwap` to a value above
//! the compared one. So the values that the word had only grow, each stands for one moment, and the order is known from
//! the values that were fetched.

/// An atomic operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Atomic {
    /// Which word
    pub(super) word: u32,
    /// The moment of the request
    pub(super) requested: u64,
    /// The moment of the completion and the value fetched; `None` if it failed, so that it may have happened or not
    pub(super) done: Option<(u64, u64)>,
    /// For `CmpSwap`: the value compared
    pub(super) compare: Option<u64>,
    /// What it adds, if it does
    pub(super) add: u64,
}

impl Atomic {
    fn takes_effect(&self, original: u64) -> bool {
        self.compare.is_none_or(|compare| compare == original)
    }
}

/// Checks the operations on one word, which held 0 at first and holds `last` now.
pub(super) fn check(ops: &[Atomic], last: u64) -> Result<(), String> {
    let known = |op: &&Atomic| op.done.is_some();
    let mut effective: Vec<(u64, &Atomic)> = ops
        .iter()
        .filter(known)
        .filter_map(|op| op.done.map(|(_, original)| (original, op)))
        .filter(|(original, op)| op.takes_effect(*original))
        .collect();
    effective.sort_by_key(|(original, _)| *original);
    // Those of which nobody knows may stand anywhere, once.
    let unknown: Vec<&Atomic> = ops.iter().filter(|op| op.done.is_none()).collect();
    let mut values = vec![0];
    let mut value = 0;
    for (original, op) in &effective {
        if *original != value && (unknown.is_empty() || *original < value) {
            return Err(format!("{op:?} fetched {original}, where the operations before it leave {value}"));
        }
        value = original + op.add;
        values.extend([*original, value]);
    }
    if value != last && (unknown.is_empty() || last < value) {
        return Err(format!("it holds {last}, and the operations leave {value}"));
    }
    values.push(last);
    if unknown.is_empty() {
        let stray = ops.iter().find(|op| op.done.is_some_and(|(_, original)| !values.contains(&original)));
        if let Some(op) = stray {
            return Err(format!("{op:?} fetched a value that the word never had"));
        }
    }
    check_order(ops)
}

/// What completed before another was requested has happened before it: it fetched a value that is not greater, and
/// smaller if it took effect.
fn check_order(ops: &[Atomic]) -> Result<(), String> {
    let mut by_request: Vec<&Atomic> = ops.iter().filter(|op| op.done.is_some()).collect();
    by_request.sort_by_key(|op| op.requested);
    let mut by_completion = by_request.clone();
    by_completion.sort_by_key(|op| op.done);
    // The least value that the word can have at the moment of each request
    let mut least: Option<(u64, &Atomic)> = None;
    let mut completed = by_completion.into_iter().peekable();
    for op in by_request {
        while let Some(before) =
            completed.next_if(|before| before.done.is_some_and(|(at, _)| at < op.requested))
        {
            let Some((_, original)) = before.done else { continue };
            let left = original + if before.takes_effect(original) { before.add } else { 0 };
            if least.is_none_or(|(value, _)| left > value) {
                least = Some((left, before));
            }
        }
        if let (Some((value, before)), Some((_, original))) = (least, op.done)
            && original < value
        {
            return Err(format!("{op:?} fetched what was there before {before:?}, which had completed"));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn add(requested: u64, completed: u64, original: u64, add: u64) -> Atomic {
        Atomic { word: 0, requested, done: Some((completed, original)), compare: None, add }
    }

    #[test]
    fn orders_that_can_be_and_cannot() {
        let swap =
            |at: u64, original, compare| Atomic { compare: Some(compare), ..add(at, at + 1, original, 5) };
        let fine = [add(0, 9, 0, 3), add(1, 2, 3, 4), swap(3, 7, 7), swap(10, 12, 7)];
        assert_eq!(check(&fine, 12), Ok(()));
        assert!(check(&fine, 13).unwrap_err().contains("it holds 13"), "executed twice");
        assert!(check(&[add(0, 1, 0, 3), add(2, 3, 0, 4)], 7).unwrap_err().contains("leave 3"), "lost");
        assert!(check(&[add(0, 1, 3, 4), add(2, 3, 0, 3)], 7).unwrap_err().contains("which had completed"));
        assert!(check(&[swap(0, 4, 7)], 0).unwrap_err().contains("never had"));
        // A failed one may have happened.
        let failed = Atomic { done: None, ..add(0, 0, 0, 100) };
        for last in [3, 103] {
            assert_eq!(check(&[add(0, 1, 0, 3), failed], last), Ok(()));
        }
        assert_eq!(check(&[failed, add(1, 2, 100, 1)], 101), Ok(()));
        assert!(check(&[failed, add(1, 2, 100, 1)], 100).is_err());
    }
}
