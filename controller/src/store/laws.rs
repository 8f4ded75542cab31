//! What every store does: each test runs with the store in memory, in a file and in etcd.

use super::*;
use tempfile::TempDir;

const NETWORK: u64 = 0x1234;
/// Longest wait for leadership
const PATIENCE: Duration = Duration::from_secs(10);

type Open = Box<dyn Fn(u64) -> Result<Box<dyn Store>, StoreError>>;

/// A place where stores of the same records are opened, one after the other.
struct Place {
    name: &'static str,
    /// Whether the place knows its network
    knows_network: bool,
    open: Open,
    /// Kept until the test ends
    _folder: Option<TempDir>,
}

impl Place {
    fn memory() -> Self {
        let shared = MemoryStore::default();
        let open = move |_| Ok(Box::new(shared.clone()) as Box<dyn Store>);
        Self { name: "memory", knows_network: false, open: Box::new(open), _folder: None }
    }

    fn file() -> Self {
        let folder = tempfile::tempdir().expect("a folder for a test");
        let path = folder.path().join("store");
        let open = move |network| Ok(Box::new(RedbStore::open(&path, network)?) as Box<dyn Store>);
        Self { name: "file", knows_network: true, open: Box::new(open), _folder: Some(folder) }
    }

    #[cfg(feature = "etcd")]
    fn etcd() -> Option<Self> {
        let cluster = etcd::tests::Cluster::start(1)?;
        let open =
            move |network| Ok(Box::new(EtcdStore::open(&cluster.config(2000), network)?) as Box<dyn Store>);
        Some(Self { name: "etcd", knows_network: true, open: Box::new(open), _folder: None })
    }

    #[cfg(not(feature = "etcd"))]
    fn etcd() -> Option<Self> {
        println!("built without the feature etcd: nothing is tested with it");
        None
    }

    /// Returns the places, each without records.
    fn all() -> Vec<Self> {
        [Self::memory(), Self::file()].into_iter().chain(Self::etcd()).collect()
    }

    fn open(&self) -> Box<dyn Store> {
        (self.open)(NETWORK).unwrap_or_else(|error| panic!("{}: {error}", self.name))
    }
}

fn lead(store: &mut dyn Store) -> (Term, Records) {
    store.campaign(PATIENCE).expect("no fault").expect("no other controller leads")
}

fn put(key: u8, value: &[u8]) -> Change {
    Change::Put(vec![key], value.into())
}

#[test]
fn records_stay_and_terms_rise() {
    for place in Place::all() {
        let mut store = place.open();
        assert!(!store.leads(), "{}", place.name);
        assert_eq!(store.write(Term(0), &[put(3, b"d")]), Err(StoreError::OtherTerm), "{}", place.name);
        let (first, records) = lead(&mut *store);
        assert!(store.leads() && records.is_empty(), "{}", place.name);
        store.write(first, &[put(1, b"a"), put(2, b"b")]).expect("leads");
        store.write(first, &[Change::Delete(vec![1]), put(2, b"c"), Change::Delete(vec![9])]).expect("leads");
        store.write(first, &[]).expect("nothing to do");
        drop(store);
        let mut store = place.open();
        let early = store.write(first, &[put(3, b"d")]);
        let (second, records) = lead(&mut *store);
        assert!(second > first, "{}", place.name);
        assert_eq!(early, Err(StoreError::OtherTerm), "{}", place.name);
        assert_eq!(records, Records::from([(vec![2], b"c".to_vec())]), "{}", place.name);
    }
}

#[test]
fn an_old_term_writes_nothing() {
    for place in Place::all() {
        let mut store = place.open();
        let (first, _) = lead(&mut *store);
        store.write(first, &[put(1, b"a")]).expect("leads");
        let (second, records) = lead(&mut *store);
        assert!(second > first, "{}", place.name);
        assert_eq!(records, Records::from([(vec![1], b"a".to_vec())]), "{}", place.name);
        assert_eq!(store.write(first, &[put(1, b"b")]), Err(StoreError::OtherTerm), "{}", place.name);
        store.write(second, &[put(2, b"c")]).expect("the present term");
        let (_, records) = lead(&mut *store);
        let expected = [(vec![1], b"a".to_vec()), (vec![2], b"c".to_vec())];
        assert_eq!(records, Records::from(expected), "{}", place.name);
    }
}

#[test]
fn a_write_applies_its_changes_in_order() {
    for place in Place::all() {
        let mut store = place.open();
        let (term, _) = lead(&mut *store);
        let changes = [
            put(1, b"a"),
            put(1, b"b"),
            put(2, b"c"),
            Change::Delete(vec![2]),
            Change::Delete(vec![3]),
            put(3, b""),
        ];
        store.write(term, &changes).expect("several changes of a key");
        let largest: Vec<_> = (0..MAX_CHANGES).map(|n| put(100 + n as u8, &[n as u8; 3000])).collect();
        store.write(term, &largest).expect("the most changes");
        let share = MAX_BYTES / MAX_CHANGES - put(0, b"").size();
        let largest: Vec<_> = (0..MAX_CHANGES).map(|n| put(100 + n as u8, &vec![n as u8; share])).collect();
        store.write(term, &largest).expect("the largest write");
        let mut expected = Records::new();
        apply(&mut expected, &changes);
        apply(&mut expected, &largest);
        assert_eq!(lead(&mut *store).1, expected, "{}", place.name);
    }
}

#[test]
fn all_records_are_read_however_many_there_are() {
    for place in Place::all() {
        let mut store = place.open();
        let (term, _) = lead(&mut *store);
        let mut expected = Records::new();
        for first in 0..10_u8 {
            let change = |second: u8| Change::Put(vec![first, 255, second], vec![second; usize::from(first)]);
            let changes: Vec<_> = (0..MAX_CHANGES as u8).map(change).collect();
            store.write(term, &changes).expect("leads");
            apply(&mut expected, &changes);
        }
        assert_eq!(lead(&mut *store).1, expected, "{}", place.name);
    }
}

#[test]
fn a_store_of_another_network_is_refused() {
    for place in Place::all().into_iter().filter(|place| place.knows_network) {
        lead(&mut *place.open());
        let error = (place.open)(7).map(|_| ()).expect_err("another network");
        assert_eq!(error, StoreError::OtherNetwork { found: NETWORK, own: 7 }, "{}", place.name);
        lead(&mut *place.open());
    }
}
