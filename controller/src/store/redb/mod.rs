//! A store in one file, which one program has open at a time.
//!
//! The file is that of a database (`redb`), whose transactions are atomic and durable whenever the program is
//! killed. It is created under another name and then linked, so a file of this name is always complete: one
//! that is cut or empty is damaged, and is never replaced.

use super::{Change, MAX_CHANGES, Records, Store, StoreError, Term};
use ::redb::{Builder, Database, DatabaseError, Error, ReadableTable, TableDefinition};
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::time::Duration;

const RECORDS: TableDefinition<'_, &[u8], &[u8]> = TableDefinition::new("records");
const META: TableDefinition<'_, &str, u64> = TableDefinition::new("meta");
/// Network of the store
const NETWORK: &str = "network";
/// The last term
const TERM: &str = "term";
/// Number of writes, by which it is found out whether one whose result was an error was applied
const WRITES: &str = "writes";

type Open = Box<dyn Fn(&Path) -> Result<Database, DatabaseError> + Send>;

/// Store in one file.
pub struct RedbStore {
    path: PathBuf,
    network: u64,
    open: Open,
    /// `None` after an input or output error: the next use opens the file again
    database: Option<Database>,
    term: Option<Term>,
}

impl core::fmt::Debug for RedbStore {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("RedbStore")
            .field("path", &self.path)
            .field("term", &self.term)
            .finish_non_exhaustive()
    }
}

impl RedbStore {
    /// Opens the file of a network; creates it if there is none.
    ///
    /// # Errors
    /// [`StoreError::Locked`], [`StoreError::Torn`], [`StoreError::Full`], [`StoreError::OtherNetwork`], or
    /// [`StoreError::Unavailable`] with the operating system's reason.
    pub fn open(path: &Path, network: u64) -> Result<Self, StoreError> {
        if !path.try_exists().map_err(|error| classify(path, &error.into()))? {
            create(path, network)?;
        }
        Self::with(path, network, Box::new(|path| builder().open(path)))
    }

    fn with(path: &Path, network: u64, open: Open) -> Result<Self, StoreError> {
        let mut store = Self { path: path.into(), network, open, database: None, term: None };
        store.database()?;
        Ok(store)
    }

    /// Returns the database; opens and checks it if it is not open.
    fn database(&mut self) -> Result<&Database, StoreError> {
        if self.database.is_none() {
            let database = guarded(&self.path, || Ok((self.open)(&self.path)?))?;
            let found = guarded(&self.path, || meta(&database, NETWORK))?;
            if found != self.network {
                return Err(StoreError::OtherNetwork { found, own: self.network });
            }
            self.database = Some(database);
        }
        Ok(self.database.as_ref().expect("just opened"))
    }

    /// Runs a transaction. After an error the file is opened again, and `done` tells whether the transaction
    /// was applied all the same.
    fn transaction<T>(
        &mut self,
        run: impl FnOnce(&Database) -> Result<T, Error>,
        done: impl FnOnce(&Database) -> Result<Option<T>, Error>,
    ) -> Result<T, StoreError> {
        let path = self.path.clone();
        let database = self.database()?;
        let error = match guarded(&path, || run(database)) {
            Ok(value) => return Ok(value),
            Err(error) => error,
        };
        self.database = None;
        match self.database().and_then(|database| guarded(&path, || done(database))) {
            Ok(Some(value)) => Ok(value),
            Ok(None) => Err(error),
            Err(StoreError::Full) if error == StoreError::Full => {
                Err(StoreError::Unknown("no space is left".into()))
            }
            Err(other) => Err(StoreError::Unknown(format!("{error}; then {other}"))),
        }
    }
}

impl Store for RedbStore {
    fn campaign(&mut self, _wait: Duration) -> Result<Option<(Term, Records)>, StoreError> {
        self.term = None;
        let last = {
            let path = self.path.clone();
            let database = self.database()?;
            guarded(&path, || meta(database, TERM))?
        };
        let term = last + 1;
        let number = Term(u32::try_from(term).map_err(|_| StoreError::Torn(format!("term {last}")))?);
        let run = |database: &Database| {
            let transaction = database.begin_write()?;
            transaction.open_table(META)?.insert(TERM, term)?;
            transaction.commit()?;
            records(database)
        };
        let done = |database: &Database| {
            if meta(database, TERM)? == term { records(database).map(Some) } else { Ok(None) }
        };
        let records = self.transaction(run, done)?;
        self.term = Some(number);
        Ok(Some((number, records)))
    }

    fn write(&mut self, term: Term, changes: &[Change]) -> Result<(), StoreError> {
        assert!(changes.len() <= MAX_CHANGES, "{} changes in one write", changes.len());
        if self.term != Some(term) {
            return Err(StoreError::OtherTerm);
        }
        let path = self.path.clone();
        let database = self.database()?;
        let (stored, writes) = guarded(&path, || Ok((meta(database, TERM)?, meta(database, WRITES)?)))?;
        if stored != u64::from(term.0) {
            self.term = None;
            return Err(StoreError::OtherTerm);
        }
        let run = |database: &Database| {
            let transaction = database.begin_write()?;
            {
                let mut records = transaction.open_table(RECORDS)?;
                for change in changes {
                    match change {
                        Change::Put(key, value) => drop(records.insert(&key[..], &value[..])?),
                        Change::Delete(key) => drop(records.remove(&key[..])?),
                    }
                }
                transaction.open_table(META)?.insert(WRITES, writes + 1)?;
            }
            Ok(transaction.commit()?)
        };
        let done = |database: &Database| {
            let applied = meta(database, TERM)? == u64::from(term.0) && meta(database, WRITES)? == writes + 1;
            Ok(applied.then_some(()))
        };
        self.transaction(run, done)
    }

    fn leads(&self) -> bool {
        self.term.is_some()
    }
}

fn builder() -> Builder {
    let mut builder = Builder::new();
    builder.set_cache_size(4 << 20).set_check_integrity_on_open(true);
    builder
}

/// Creates the file of a network, unless another program is faster.
fn create(path: &Path, network: u64) -> Result<(), StoreError> {
    let mut temporary = path.as_os_str().to_owned();
    temporary.push(format!(".{}.new", std::process::id()));
    let temporary = PathBuf::from(temporary);
    let result = guarded(path, || {
        let database = builder().create(&temporary)?;
        let transaction = database.begin_write()?;
        {
            let mut meta = transaction.open_table(META)?;
            meta.insert(NETWORK, network)?;
            meta.insert(TERM, 0)?;
            meta.insert(WRITES, 0)?;
            transaction.open_table(RECORDS)?;
        }
        transaction.commit()?;
        database.close()?;
        match std::fs::hard_link(&temporary, path) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error.into()),
            _ => {}
        }
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        Ok(std::fs::File::open(folder)?.sync_all()?)
    });
    // A temporary file that stays is of no harm.
    drop(std::fs::remove_file(&temporary));
    result
}

fn meta(database: &Database, key: &str) -> Result<u64, Error> {
    use ::redb::ReadableDatabase;
    let missing = || Error::Corrupted(format!("it has no value {key}"));
    Ok(database.begin_read()?.open_table(META)?.get(key)?.ok_or_else(missing)?.value())
}

fn records(database: &Database) -> Result<Records, Error> {
    use ::redb::ReadableDatabase;
    let table = database.begin_read()?.open_table(RECORDS)?;
    let mut records = Records::new();
    for entry in table.iter()? {
        let (key, value) = entry?;
        records.insert(key.value().into(), value.value().into());
    }
    Ok(records)
}

/// Runs an operation on the file. A panic is that of a database whose file is damaged in a way that it does
/// not check for.
fn guarded<T>(path: &Path, run: impl FnOnce() -> Result<T, Error>) -> Result<T, StoreError> {
    match catch_unwind(AssertUnwindSafe(run)) {
        Ok(result) => result.map_err(|error| classify(path, &error)),
        Err(_) => Err(StoreError::Torn(format!("{} cannot be read as a database", path.display()))),
    }
}

fn classify(path: &Path, error: &Error) -> StoreError {
    match error {
        Error::DatabaseAlreadyOpen => StoreError::Locked(path.into()),
        Error::Io(error) => match error.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded | io::ErrorKind::FileTooLarge => {
                StoreError::Full
            }
            io::ErrorKind::InvalidData | io::ErrorKind::UnexpectedEof => {
                StoreError::Torn(format!("{}: {error}", path.display()))
            }
            _ => StoreError::Unavailable(format!("{}: {error}", path.display())),
        },
        Error::PreviousIo => StoreError::Unavailable(format!("{}: {error}", path.display())),
        _ => StoreError::Torn(format!("{}: {error}", path.display())),
    }
}

#[cfg(test)]
mod tests;
