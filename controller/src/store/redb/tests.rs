use super::*;
use ::redb::StorageBackend;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::FileExt;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

const NETWORK: u64 = 0x1234;

fn lead(store: &mut RedbStore) -> (Term, Records) {
    store.campaign(Duration::ZERO).expect("no fault").expect("the only one")
}

fn put(key: u8, value: &[u8]) -> Change {
    Change::Put(vec![key], value.into())
}

fn folder() -> tempfile::TempDir {
    tempfile::tempdir().expect("a folder for a test")
}

#[test]
fn no_temporary_file_stays() {
    let folder = folder();
    drop(RedbStore::open(&folder.path().join("store"), NETWORK).expect("created"));
    assert_eq!(std::fs::read_dir(folder.path()).expect("readable").count(), 1);
}

#[test]
fn a_second_controller_is_refused_while_the_file_is_open() {
    let folder = folder();
    let path = folder.path().join("store");
    let store = RedbStore::open(&path, NETWORK).expect("created");
    let error = RedbStore::open(&path, NETWORK).expect_err("open");
    assert_eq!(error, StoreError::Locked(path.clone()));
    assert!(error.to_string().contains("stop that controller"), "{error}");
    drop(store);
    RedbStore::open(&path, NETWORK).expect("free again");
}

#[test]
fn a_folder_that_is_missing_is_named() {
    let error = RedbStore::open(Path::new("/nonexistent/store"), NETWORK).expect_err("no folder");
    assert!(
        matches!(&error, StoreError::Unavailable(text) if text.contains("/nonexistent/store")),
        "{error}"
    );
}

/// Returns the bytes of a store with some records.
fn sample(path: &Path) -> Vec<u8> {
    let mut store = RedbStore::open(path, NETWORK).expect("created");
    let (term, _) = lead(&mut store);
    for n in 0..50 {
        store.write(term, &[put(n, &[n; 300])]).expect("leads");
    }
    drop(store);
    std::fs::read(path).expect("readable")
}

#[test]
fn a_torn_file_is_refused_and_kept() {
    let folder = folder();
    let path = folder.path().join("store");
    let whole = sample(&path);
    let torn = |bytes: &[u8]| {
        std::fs::write(&path, bytes).expect("writable");
        let error = RedbStore::open(&path, NETWORK).expect_err("torn");
        assert!(matches!(error, StoreError::Torn(_)), "{error:?}");
        assert_eq!(std::fs::read(&path).expect("readable").len(), bytes.len(), "it is kept");
    };
    torn(b"");
    torn(&whole[..100]);
    torn(&whole[..whole.len() / 2]);
    torn(b"another file, which is long enough to be mistaken for one unless its first bytes are checked");
    torn(&[&[0; 64][..], &whole[64..]].concat());
}

#[test]
fn damaged_bytes_are_noticed_or_of_no_consequence() {
    let folder = folder();
    let path = folder.path().join("store");
    let whole = sample(&path);
    let open = |bytes: &[u8]| {
        std::fs::write(&path, bytes).expect("writable");
        let mut store = RedbStore::open(&path, NETWORK)?;
        store.campaign(Duration::ZERO).map(|led| led.expect("the only one").1)
    };
    let right = open(&whole).expect("whole");
    // Bytes that are part of a value: 300 equal bytes.
    let at = whole.windows(300).position(|bytes| bytes.iter().all(|&byte| byte == 33)).expect("value 33");
    let mut damaged = whole.clone();
    damaged[at + 100] ^= 0x10;
    let mut refused = 0;
    match open(&damaged) {
        Err(StoreError::Torn(_)) => refused += 1,
        other => assert_eq!(other.as_ref(), Ok(&right), "a value was changed silently"),
    }
    for n in 0..60 {
        let mut damaged = whole.clone();
        let at = n * whole.len() / 60 + n;
        damaged[at % whole.len()] ^= 0x5a;
        match open(&damaged) {
            Err(StoreError::Torn(_) | StoreError::OtherNetwork { .. }) => refused += 1,
            other => assert_eq!(other.as_ref(), Ok(&right), "byte {at}"),
        }
    }
    assert!(refused > 0, "some byte matters");
}

/// A file with a largest length, as on a full disk.
#[derive(Debug)]
struct Limited {
    file: File,
    limit: Arc<AtomicU64>,
}

impl StorageBackend for Limited {
    fn len(&self) -> io::Result<u64> {
        Ok(self.file.metadata()?.len())
    }
    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.file.read_exact_at(out, offset)
    }
    fn set_len(&self, len: u64) -> io::Result<()> {
        if len > self.limit.load(Ordering::Relaxed) {
            return Err(io::Error::from(io::ErrorKind::StorageFull));
        }
        self.file.set_len(len)
    }
    fn sync_data(&self) -> io::Result<()> {
        self.file.sync_data()
    }
    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.file.write_all_at(data, offset)
    }
}

#[test]
fn a_full_disk_applies_nothing_and_goes_on_when_there_is_space() {
    let folder = folder();
    let path = folder.path().join("store");
    drop(RedbStore::open(&path, NETWORK).expect("created"));
    let limit = Arc::new(AtomicU64::new(u64::MAX));
    let backend_limit = Arc::clone(&limit);
    let open = move |path: &Path| {
        let file = File::options().read(true).write(true).open(path)?;
        builder().create_with_backend(Limited { file, limit: Arc::clone(&backend_limit) })
    };
    let mut store = RedbStore::with(&path, NETWORK, Box::new(open)).expect("there");
    let (term, _) = lead(&mut store);
    store.write(term, &[put(1, b"before")]).expect("space");
    limit.store(std::fs::metadata(&path).expect("there").len(), Ordering::Relaxed);
    let large: Vec<_> = (0..50).map(|n| put(n, &vec![n; 100_000])).collect();
    assert_eq!(store.write(term, &large), Err(StoreError::Full));
    store.write(term, &[put(2, b"small")]).expect("a small write has room");
    limit.store(u64::MAX, Ordering::Relaxed);
    let records = super::records(store.database().expect("open")).expect("readable");
    assert_eq!(records, Records::from([(vec![1], b"before".to_vec()), (vec![2], b"small".to_vec())]));
    store.write(term, &large).expect("the same term, with space");
}

/// The child of the test below: writes pairs of equal numbers, and prints each number when it is stored.
fn child(path: &Path) -> ! {
    let mut store = RedbStore::open(path, NETWORK).expect("free");
    let (term, records) = lead(&mut store);
    let mut number =
        records.get(&vec![1]).map_or(0, |bytes| u32::from_be_bytes(bytes[..4].try_into().unwrap()));
    loop {
        number += 1;
        let value = [&number.to_be_bytes()[..], &[number as u8; 200]].concat();
        store.write(term, &[put(1, &value), put(2, &value)]).expect("leads");
        println!("stored {number}");
    }
}

#[test]
fn what_was_acknowledged_survives_kill_9() {
    const VARIABLE: &str = "CONTROLLER_TEST_STORE";
    if let Some(path) = std::env::var_os(VARIABLE) {
        child(Path::new(&path));
    }
    let folder = folder();
    let path = folder.path().join("store");
    let mut acknowledged = 0;
    for round in 0..12 {
        let name = "store::redb::tests::what_was_acknowledged_survives_kill_9";
        let mut process = Command::new(std::env::current_exe().expect("this program"))
            .args(["--exact", name, "--nocapture"])
            .env(VARIABLE, &path)
            .stdout(Stdio::piped())
            .spawn()
            .expect("it runs");
        let lines = BufReader::new(process.stdout.take().expect("piped")).lines();
        let mut lines = lines.map(|line| line.expect("text"));
        let stored = |line: String| line.rsplit_once("stored ").and_then(|(_, n)| n.parse::<u32>().ok());
        // A different number of writes each round, and then whatever the kill meets.
        for _ in 0..=round {
            acknowledged = lines.by_ref().find_map(stored).expect("it writes until it is killed");
        }
        process.kill().expect("it runs");
        acknowledged = lines.filter_map(stored).last().unwrap_or(acknowledged);
        process.wait().expect("killed");
        let mut store = RedbStore::open(&path, NETWORK).expect("usable after a kill");
        let (_, records) = lead(&mut store);
        let [a, b] = [1, 2].map(|key| records[&vec![key]].clone());
        assert_eq!(a, b, "both changes of a write, or none");
        let found = u32::from_be_bytes(a[..4].try_into().expect("four bytes"));
        assert!(found == acknowledged || found == acknowledged + 1, "{found}, acknowledged {acknowledged}");
    }
}
