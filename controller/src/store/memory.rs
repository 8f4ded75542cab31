//! A store in memory that several controllers share, with faults, for tests and the simulator.

use super::{Change, MAX_CHANGES, Records, Store, StoreError, Term, apply};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

/// What goes wrong at a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Fault {
    /// The term ends just before the write
    Deposed,
    /// No space is left
    Full,
    /// The write is too large for the store
    TooLarge,
    /// The store does not answer; nothing is applied
    Unavailable,
    /// The answer is lost; the changes are applied. To the next leader this is a crash after the write
    LostAnswer,
    /// The request is lost, and its writer cannot tell. To the next leader this is a crash before the write
    LostRequest,
}

impl Fault {
    /// The faults that pass without an operator
    pub const ALL: [Self; 5] =
        [Self::Deposed, Self::Full, Self::Unavailable, Self::LostAnswer, Self::LostRequest];
}

#[derive(Debug, Default)]
struct Shared {
    term: Term,
    records: Records,
    /// What goes wrong at the next writes; `None`: nothing
    faults: VecDeque<Option<Fault>>,
    /// All writes that were applied, with their terms
    log: Vec<(Term, Vec<Change>)>,
    torn: bool,
}

/// One controller's access to a store in memory. Its clones are those of other controllers.
#[derive(Debug, Default)]
pub struct MemoryStore {
    shared: Arc<Mutex<Shared>>,
    term: Term,
}

impl Clone for MemoryStore {
    fn clone(&self) -> Self {
        Self { shared: Arc::clone(&self.shared), term: Term(0) }
    }
}

impl MemoryStore {
    fn shared(&self) -> MutexGuard<'_, Shared> {
        self.shared.lock().expect("no holder of the lock panics")
    }

    /// Sets what goes wrong at the next writes, in order.
    pub fn inject(&self, faults: impl IntoIterator<Item = Option<Fault>>) {
        self.shared().faults.extend(faults);
    }

    /// Forgets what was set to go wrong.
    pub fn clear_faults(&self) {
        self.shared().faults.clear();
    }

    /// Damages the store: no controller can lead until [`repair`](Self::repair).
    pub fn tear(&self) {
        self.shared().torn = true;
    }

    /// Undoes [`tear`](Self::tear).
    pub fn repair(&self) {
        self.shared().torn = false;
    }

    /// Returns all records.
    pub fn records(&self) -> Records {
        self.shared().records.clone()
    }

    /// Returns all writes that were applied, in order, with their terms.
    pub fn log(&self) -> Vec<(Term, Vec<Change>)> {
        self.shared().log.clone()
    }
}

impl Store for MemoryStore {
    fn campaign(&mut self, _wait: Duration) -> Result<Option<(Term, Records)>, StoreError> {
        let mut shared = self.shared.lock().expect("no holder of the lock panics");
        if shared.torn {
            return Err(StoreError::Torn("a test has damaged it".into()));
        }
        shared.term.0 += 1;
        self.term = shared.term;
        Ok(Some((shared.term, shared.records.clone())))
    }

    fn write(&mut self, term: Term, changes: &[Change]) -> Result<(), StoreError> {
        assert!(changes.len() <= MAX_CHANGES, "{} changes in one write", changes.len());
        let own = self.term;
        let mut shared = self.shared();
        let fault = shared.faults.pop_front().flatten();
        if fault == Some(Fault::Deposed) {
            shared.term.0 += 1;
        }
        if [shared.term, own] != [term; 2] || term == Term(0) {
            return Err(StoreError::OtherTerm);
        }
        match fault {
            Some(Fault::Full) => return Err(StoreError::Full),
            Some(Fault::TooLarge) => return Err(StoreError::TooLarge("a fault".into())),
            Some(Fault::Unavailable) => return Err(StoreError::Unavailable("no answer".into())),
            Some(Fault::LostRequest) => return Err(StoreError::Unknown("no answer".into())),
            Some(Fault::LostAnswer | Fault::Deposed) | None => {}
        }
        apply(&mut shared.records, changes);
        shared.log.push((term, changes.to_vec()));
        if fault == Some(Fault::LostAnswer) { Err(StoreError::Unknown("no answer".into())) } else { Ok(()) }
    }

    fn leads(&self) -> bool {
        self.term != Term(0) && self.shared().term == self.term
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put(value: u8) -> [Change; 1] {
        [Change::Put(vec![1], vec![value])]
    }

    fn lead(store: &mut MemoryStore) -> (Term, Records) {
        store.campaign(Duration::ZERO).expect("not torn").expect("one always wins")
    }

    #[test]
    fn a_clone_that_leads_ends_the_term_of_another() {
        let mut old = MemoryStore::default();
        let mut new = old.clone();
        let (first, _) = lead(&mut old);
        lead(&mut new);
        assert!(!old.leads() && new.leads());
        assert_eq!(old.write(first, &put(2)), Err(StoreError::OtherTerm));
        assert!(new.records().is_empty() && new.log().is_empty());
    }

    #[test]
    fn each_fault_applies_all_or_nothing() {
        let applied = |fault| {
            let mut store = MemoryStore::default();
            let (term, _) = lead(&mut store);
            store.inject([Some(fault), None]);
            let result = store.write(term, &put(1));
            (result.expect_err("a fault"), !store.records().is_empty(), store.write(term, &put(2)).is_ok())
        };
        let lost = || StoreError::Unknown("no answer".into());
        assert_eq!(applied(Fault::Deposed), (StoreError::OtherTerm, false, false));
        assert_eq!(applied(Fault::Full), (StoreError::Full, false, true));
        assert_eq!(applied(Fault::TooLarge), (StoreError::TooLarge("a fault".into()), false, true));
        assert_eq!(applied(Fault::Unavailable), (StoreError::Unavailable("no answer".into()), false, true));
        assert_eq!(applied(Fault::LostAnswer), (lost(), true, true));
        assert_eq!(applied(Fault::LostRequest), (lost(), false, true));
    }

    #[test]
    fn a_torn_store_has_no_leader() {
        let mut store = MemoryStore::default();
        store.tear();
        assert!(matches!(store.campaign(Duration::ZERO), Err(StoreError::Torn(_))));
        store.repair();
        lead(&mut store);
    }
}
