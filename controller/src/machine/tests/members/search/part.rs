//! Parts of a state: shared by the states that have not changed them, with a digest of their contents.

use std::fmt::Debug;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::rc::Rc;

/// Returns the digest of a value.
pub(super) fn digest(value: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}

/// Returns a value's state as text, without its counters, on which nothing depends and which copies share.
fn text(value: &impl Debug) -> String {
    const COUNTERS: &str = "Counters {";
    let all = format!("{value:?}");
    let mut kept = String::with_capacity(all.len());
    let mut rest = &all[..];
    while let Some(at) = rest.find(COUNTERS) {
        kept.push_str(&rest[..at]);
        rest = &rest[at + COUNTERS.len()..];
        let mut depth = 1;
        let end = rest.find(|c| {
            depth += i32::from(c == '{') - i32::from(c == '}');
            depth == 0
        });
        rest = &rest[end.map_or(rest.len(), |end| end + 1)..];
    }
    kept + rest
}

/// Part of a state.
#[derive(Clone)]
pub(super) struct Part<T> {
    value: Rc<T>,
    digest: Option<u64>,
}

impl<T: Clone + Debug> Part<T> {
    pub(super) fn new(value: T) -> Self {
        Self { value: Rc::new(value), digest: None }
    }

    pub(super) fn get(&self) -> &T {
        &self.value
    }

    /// Returns the part to be changed; other states keep theirs.
    pub(super) fn edit(&mut self) -> &mut T {
        self.digest = None;
        Rc::make_mut(&mut self.value)
    }

    /// Returns a digest of everything on which the part's behaviour depends.
    pub(super) fn digest(&mut self) -> u64 {
        *self.digest.get_or_insert_with(|| digest(&text(&*self.value)))
    }
}

#[test]
fn text_has_no_counters() {
    #[derive(Debug)]
    #[allow(dead_code, reason = "printed")]
    struct Counters {
        of: Option<Box<Counters>>,
    }
    let counters = Counters { of: Some(Box::new(Counters { of: None })) };
    assert_eq!(text(&(1, counters, 2)), "(1, , 2)");
}
