//! `understudy rdmc receive`: receives a file from `understudy rdmc send`.

use super::carry::{Ended, On, Pace, Shown, carry, failed, node};
use super::part::Part;
use super::send::hex;
use crate::output::print;
use ::rdmc::delivery::{DIGEST, Offer, Refusal, Take, TakeConfig, TakeError};
use core::net::IpAddr;
use core::sync::atomic::Ordering;
use crossbeam_channel::{Receiver, Sender, unbounded};
use rnic::{App, Rnic};
use sha2::{Digest as _, Sha256};
use std::fs::File;
use std::io::{Error, ErrorKind};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::thread;
use switch::Nanos;

/// Receive a file from a host that runs `understudy rdmc send`
///
/// The file gets its name when it is complete and its SHA-256 matches the sender's. Before that, and if the
/// transfer fails, no file of that name exists. Ends when the file has been received.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Address of the sender
    #[arg(long, value_name = "IP")]
    from: IpAddr,
    /// Folder in which to store the file
    #[arg(long, value_name = "DIR", default_value = ".")]
    into: PathBuf,
    /// Limit on memory for segments, in MB; a transfer needs about nine of the sender's segments, which have 16 MB
    /// by default
    #[arg(long, value_name = "MB", default_value_t = TakeConfig::MEMORY >> 20, value_parser = clap::value_parser!(u64).range(1..=1 << 20))]
    memory_mb: u64,
    #[command(flatten)]
    on: On,
}

/// Request to the writer thread.
enum ToDisk {
    Begin(Offer),
    Segment(Vec<u8>),
    Compare([u8; DIGEST]),
}

/// Result from the writer thread.
enum Done {
    Begun,
    Written,
    /// The file has its final name
    Stored(PathBuf, u64),
    Differs,
    Failed(Refusal, String),
}

/// Reason why the transfer failed.
enum Wrong {
    Taken(TakeError),
    File(String),
}

type Outcome = Result<(PathBuf, u64, [u8; DIGEST]), Wrong>;

struct Taker {
    take: Take,
    disk: Sender<ToDisk>,
    done: Receiver<Done>,
    /// Requests to the writer that are not done yet
    pending: u32,
    begun: bool,
    compared: bool,
    segment_bytes: u64,
    pace: Pace,
    stored: Option<(PathBuf, u64, [u8; DIGEST])>,
    digest: [u8; DIGEST],
    shown: Arc<Shown<Outcome>>,
}

impl Taker {
    fn ask(&mut self, what: ToDisk) {
        // A writer that has ended has reported its error.
        if self.disk.send(what).is_ok() {
            self.pending += 1;
        }
    }

    fn on_done(&mut self, nic: &mut Rnic, done: Done, now: Nanos) {
        self.pending -= 1;
        match done {
            Done::Begun => self.take.accept(nic, now),
            Done::Written => {
                let of = self.shown.of.load(Ordering::Relaxed);
                let bytes = self.shown.bytes.load(Ordering::Relaxed) + self.segment_bytes;
                self.shown.bytes.store(bytes.min(of), Ordering::Relaxed);
                self.take.written(nic);
            }
            Done::Stored(path, len) => {
                self.stored = Some((path, len, self.digest));
                self.take.compared(nic, true);
            }
            Done::Differs => self.take.compared(nic, false),
            Done::Failed(refusal, what) => {
                self.shown.end(Err(Wrong::File(what)));
                self.take.refuse(nic, refusal, now);
            }
        }
    }
}

impl App for Taker {
    fn start(&mut self, nic: &mut Rnic, now: Nanos) {
        if let Err(error) = self.take.start(nic, now) {
            self.shown.end(Err(Wrong::Taken(error)));
            self.shown.done.store(true, Ordering::Relaxed);
        }
    }

    fn run(&mut self, nic: &mut Rnic, now: Nanos) {
        self.pace.ran(now);
        self.take.run(nic, now);
        if self.shown.stopping.load(Ordering::Relaxed) {
            self.shown.end(Err(Wrong::File("interrupted before the whole file was received".into())));
            self.take.refuse(nic, Refusal::Stopped, now);
        }
        while let Ok(done) = self.done.try_recv() {
            self.on_done(nic, done, now);
            self.take.run(nic, now);
        }
        if let Some(offer) = self.take.offered().filter(|_| !self.begun) {
            self.begun = true;
            self.segment_bytes = offer.segment_bytes.into();
            self.shown.of.store(offer.len, Ordering::Relaxed);
            self.ask(ToDisk::Begin(offer));
        }
        while let Some(bytes) = self.take.poll_segment() {
            self.ask(ToDisk::Segment(bytes));
        }
        if let Some(digest) = self.take.wants_comparison().filter(|_| !self.compared) {
            (self.compared, self.digest) = (true, digest);
            self.ask(ToDisk::Compare(digest));
        }
        if let Some(outcome) = self.take.outcome() {
            let outcome = match (outcome, self.stored.take()) {
                (_, Some(stored)) => Some(Ok(stored)),
                (Err(error), None) => Some(Err(Wrong::Taken(*error))),
                // The error was reported before.
                (Ok(()), None) => None,
            };
            if let Some(outcome) = outcome {
                self.shown.end(outcome);
            }
            if self.pace.is_done(self.take.is_heard(), now) {
                self.shown.done.store(true, Ordering::Relaxed);
            }
        }
    }

    fn next_timer(&self) -> Option<Nanos> {
        let look = self.pace.next(self.pending > 0);
        Some(self.take.next_timer().map_or(look, |at| at.min(look)))
    }
}

/// Returns the file name that the sender offers, unless it would lead to another folder.
fn name_of(offer: &Offer) -> Option<&str> {
    let name = offer.name.as_str();
    let is_plain = Path::new(name).file_name().is_some_and(|plain| plain == name);
    // Control characters are not allowed in names.
    (is_plain && !name.contains(char::is_control)).then_some(name)
}

/// Bytes written between two waits for the disk. So what is reported to the sender as written is on the disk
/// except for this much, and the last sync does not exceed the sender's timeout.
const SYNC: u64 = 16 << 20;

/// The file while it is being written.
struct Incomplete {
    part: Part,
    path: PathBuf,
    hash: Sha256,
    len: u64,
    /// Bytes since the last sync
    unsynced: u64,
}

impl Incomplete {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        self.part.write_all(bytes)?;
        self.hash.update(bytes);
        self.len += bytes.len() as u64;
        self.unsynced += bytes.len() as u64;
        if self.unsynced >= SYNC {
            self.part.file()?.sync_data()?;
            self.unsynced = 0;
        }
        Ok(())
    }
}

fn begin(into: &Path, offer: &Offer) -> Result<Incomplete, (Refusal, String)> {
    let Some(name) = name_of(offer) else {
        return Err((Refusal::Name, format!("the sender's file name {:?} is not valid", offer.name)));
    };
    let path = into.join(name);
    let shown = path.display();
    if path.symlink_metadata().is_ok() {
        return Err((Refusal::Exists, format!("{shown} exists already; remove it, or use another --into")));
    }
    let cannot = |error: std::io::Error| (Refusal::Write, format!("{}: {error}", into.display()));
    let part = Part::create(into).map_err(cannot)?;
    let file = part.file().map_err(cannot)?;
    let space = rustix::fs::fstatvfs(file).map_err(|error| cannot(error.into()))?;
    let free = space.f_bavail.saturating_mul(space.f_frsize);
    if free < offer.len {
        let what = format!("{} has {free} bytes free, but the file has {}", into.display(), offer.len);
        return Err((Refusal::NoSpace, what));
    }
    Ok(Incomplete { part, path, hash: Sha256::new(), len: 0, unsynced: 0 })
}

/// Writes received segments. An incomplete file is removed when this function returns.
fn writer(into: &Path, todo: &Receiver<ToDisk>, done: &Sender<Done>) {
    let mut part: Option<Incomplete> = None;
    for one in todo {
        let answer = match (one, &mut part) {
            (ToDisk::Begin(offer), _) => match begin(into, &offer) {
                Ok(begun) => {
                    part = Some(begun);
                    Done::Begun
                }
                Err((refusal, what)) => Done::Failed(refusal, what),
            },
            (ToDisk::Segment(bytes), Some(part)) => match part.write(&bytes) {
                Ok(()) => Done::Written,
                Err(error) => not_written(&part.path, &error),
            },
            (ToDisk::Compare(digest), Some(_)) => {
                part.take().map_or(Done::Differs, |part| store(part, digest))
            }
            (_, None) => Done::Failed(Refusal::Write, "the file is closed".into()),
        };
        if done.send(answer).is_err() {
            break;
        }
    }
}

/// Gives the file its final name if its digest matches.
fn store(incomplete: Incomplete, digest: [u8; DIGEST]) -> Done {
    let Incomplete { part, path, hash, len, .. } = incomplete;
    if <[u8; DIGEST]>::from(hash.finalize()) != digest {
        return Done::Differs;
    }
    let synced = part.file().and_then(File::sync_all);
    // A file that another process has created meanwhile is not replaced.
    let named = synced.and_then(|()| part.name(&path));
    // The folder has to be synced, too, because it holds the name.
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    match named.and_then(|()| File::open(folder)?.sync_all()) {
        Ok(()) => Done::Stored(path, len),
        Err(error) => not_written(&path, &error),
    }
}

fn not_written(path: &Path, error: &Error) -> Done {
    let no_space = matches!(error.kind(), ErrorKind::StorageFull | ErrorKind::QuotaExceeded);
    let refusal = if no_space { Refusal::NoSpace } else { Refusal::Write };
    Done::Failed(refusal, format!("{}: {error}", path.display()))
}

impl Args {
    fn receive(&self) -> Result<(PathBuf, u64, [u8; DIGEST]), Ended> {
        if !self.into.is_dir() {
            return Err(Ended::Wrong(format!(
                "{} is not a directory; create it, or use another --into",
                self.into.display()
            )));
        }
        let patience = self.on.patience()?;
        let (runtime, host, own) = self.on.host(self.from)?;
        if own == self.from {
            return Err(Ended::Wrong(format!("{own} is this host's own address; --from is the sender's")));
        }
        let take = Take::new(
            node(own, patience),
            TakeConfig { from: self.from, patience, max_memory: self.memory_mb << 20 },
        );
        let shown = Shown::new();
        let ((disk, todo), (says, done)) = (unbounded(), unbounded());
        let into = self.into.clone();
        let writes = thread::spawn(move || writer(&into, &todo, &says));
        let taker = Taker {
            take,
            disk,
            done,
            pending: 0,
            begun: false,
            compared: false,
            segment_bytes: 0,
            pace: Pace::default(),
            stored: None,
            digest: [0; DIGEST],
            shown: Arc::clone(&shown),
        };
        let outcome = carry(runtime, &host, taker, &shown, "receiving");
        // When the worker ends, it drops its end of the channel: the writer ends, and an incomplete file is
        // removed.
        writes.join().map_err(|_| failed(&"the writer thread panicked"))?;
        match outcome? {
            Some(Ok(stored)) => Ok(stored),
            Some(Err(Wrong::Taken(error))) => Err(failed(&error)),
            Some(Err(Wrong::File(what))) => Err(failed(&what)),
            None => Err(failed(&"interrupted before the whole file was received")),
        }
    }
}

pub(crate) fn run(args: &Args) -> ExitCode {
    match args.receive() {
        Ok((path, len, digest)) => {
            let text = format!("{}: {len} bytes, SHA-256 {}\n", path.display(), hex(&digest));
            print(&text, ExitCode::SUCCESS)
        }
        Err(ended) => ended.say(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt as _;

    fn offer(name: &str, len: u64) -> Offer {
        Offer { name: name.into(), len, segment_bytes: 4 }
    }

    /// Returns the writer's results for these requests.
    fn written(into: &Path, todo: Vec<ToDisk>) -> Vec<Done> {
        let ((disk, hears), (says, done)) = (unbounded(), unbounded());
        for one in todo {
            disk.send(one).unwrap();
        }
        drop(disk);
        writer(into, &hears, &says);
        drop(says);
        done.iter().collect()
    }

    fn entries(folder: &Path) -> usize {
        std::fs::read_dir(folder).unwrap().count()
    }

    #[test]
    fn a_file_gets_its_name_only_if_it_is_complete_and_its_digest_matches() {
        let folder = tempfile::tempdir().unwrap();
        let into = folder.path();
        let digest: [u8; DIGEST] = Sha256::digest(b"abcdefg").into();
        let todo = |digest| {
            let parts = [b"abcd".to_vec(), b"efg".to_vec()].map(ToDisk::Segment);
            let mut all = vec![ToDisk::Begin(offer("it", 7))];
            all.extend(parts);
            all.push(ToDisk::Compare(digest));
            all
        };
        let wrong = written(into, todo([1; DIGEST]));
        assert!(matches!(wrong.last(), Some(Done::Differs)));
        assert_eq!(entries(into), 0, "no file is left");
        let mut cut = todo(digest);
        cut.truncate(3);
        assert!(matches!(written(into, cut).last(), Some(Done::Written)));
        assert_eq!(entries(into), 0, "no file is left");
        let right = written(into, todo(digest));
        assert!(matches!(right.last(), Some(Done::Stored(path, 7)) if *path == into.join("it")));
        assert_eq!(std::fs::read(into.join("it")).unwrap(), b"abcdefg");
        // The file has the mode of any new file.
        let mode = |name: &str| std::fs::metadata(into.join(name)).unwrap().permissions().mode();
        std::fs::write(into.join("another"), "").unwrap();
        assert_eq!(mode("it"), mode("another"));
        std::fs::remove_file(into.join("another")).unwrap();
        let again = written(into, vec![ToDisk::Begin(offer("it", 7))]);
        assert!(matches!(again[..], [Done::Failed(Refusal::Exists, _)]));
        assert_eq!(entries(into), 1);
    }

    #[test]
    fn files_that_cannot_be_written_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let refusal = |into: &Path, offer: Offer| match written(into, vec![ToDisk::Begin(offer)])[..] {
            [Done::Failed(refusal, _)] => Some(refusal),
            _ => None,
        };
        for name in ["", ".", "..", "a/b", "/etc/passwd", "../x", "a/", "a\0b", "a\nb", "a\u{1b}[2Jb"] {
            assert_eq!(refusal(folder.path(), offer(name, 7)), Some(Refusal::Name), "{name:?}");
        }
        assert_eq!(refusal(folder.path(), offer("it", u64::MAX)), Some(Refusal::NoSpace));
        let full = not_written(Path::new("it"), &ErrorKind::StorageFull.into());
        assert!(matches!(full, Done::Failed(Refusal::NoSpace, _)));
        assert_eq!(refusal(&folder.path().join("no"), offer("it", 7)), Some(Refusal::Write));
        assert_eq!(entries(folder.path()), 0);
    }
}
