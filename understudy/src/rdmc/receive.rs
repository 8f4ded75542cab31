//! `understudy rdmc receive`: a file from `understudy rdmc send`.

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
/// The file has its name when it is complete, and its SHA-256 is the sender's; before that, and if it fails, there is nothing
/// under that name. Ends when it has come.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The sender
    #[arg(long, value_name = "IP")]
    from: IpAddr,
    /// The folder that it is put into
    #[arg(long, value_name = "DIR", default_value = ".")]
    into: PathBuf,
    /// Memory for segments at most: about nine of the sender's, which has 16 MB in each if it is not told otherwise
    #[arg(long, value_name = "MB", default_value_t = TakeConfig::MEMORY >> 20, value_parser = clap::value_parser!(u64).range(1..=1 << 20))]
    memory_mb: u64,
    #[command(flatten)]
    on: On,
}

/// What is to be done with the file.
enum ToDisk {
    Begin(Offer),
    Segment(Vec<u8>),
    Compare([u8; DIGEST]),
}

/// What was done.
enum Done {
    Begun,
    Written,
    /// It has its name
    Stored(PathBuf, u64),
    Differs,
    Failed(Refusal, String),
}

/// Why it did not work.
enum Wrong {
    Taken(TakeError),
    File(String),
}

type Outcome = Result<(PathBuf, u64, [u8; DIGEST]), Wrong>;

struct Taker {
    take: Take,
    disk: Sender<ToDisk>,
    done: Receiver<Done>,
    /// Things given to the disk and not done
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
        // A writer that has ended has said why.
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
            self.shown.end(Err(Wrong::File("it was stopped before the file had come".into())));
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
                // Told before
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

/// The name that a file gets: the sender's, if that is no way to another folder
fn name_of(offer: &Offer) -> Option<&str> {
    let name = offer.name.as_str();
    let is_plain = Path::new(name).file_name().is_some_and(|plain| plain == name);
    // What steers a terminal is no name.
    (is_plain && !name.contains(char::is_control)).then_some(name)
}

/// Bytes that are written before the disk is waited for. So what the sender hears is written is on the disk but for this, and
/// the end of the file takes no longer than the sender waits.
const SYNC: u64 = 16 << 20;

/// The file while it is written.
struct Incomplete {
    part: Part,
    path: PathBuf,
    hash: Sha256,
    len: u64,
    /// Of these, the disk was not waited for
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
        return Err((Refusal::Name, format!("{:?} is no name of a file", offer.name)));
    };
    let path = into.join(name);
    let shown = path.display();
    if path.symlink_metadata().is_ok() {
        return Err((Refusal::Exists, format!("{shown} exists already")));
    }
    let cannot = |error: std::io::Error| (Refusal::Write, format!("{}: {error}", into.display()));
    let part = Part::create(into).map_err(cannot)?;
    let file = part.file().map_err(cannot)?;
    let space = rustix::fs::fstatvfs(file).map_err(|error| cannot(error.into()))?;
    let free = space.f_bavail.saturating_mul(space.f_frsize);
    if free < offer.len {
        let what = format!("{} has {free} bytes left, the file has {}", into.display(), offer.len);
        return Err((Refusal::NoSpace, what));
    }
    Ok(Incomplete { part, path, hash: Sha256::new(), len: 0, unsynced: 0 })
}

/// Writes what has come. What is left of a file that is not complete goes with this.
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

/// Gives the file its name if it is what was sent.
fn store(incomplete: Incomplete, digest: [u8; DIGEST]) -> Done {
    let Incomplete { part, path, hash, len, .. } = incomplete;
    if <[u8; DIGEST]>::from(hash.finalize()) != digest {
        return Done::Differs;
    }
    let synced = part.file().and_then(File::sync_all);
    // Nothing is pushed aside that has come there meanwhile.
    let named = synced.and_then(|()| part.name(&path));
    // The name is in the folder.
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
            return Err(Ended::Wrong(format!("{} is no folder", self.into.display())));
        }
        let patience = self.on.patience()?;
        let (runtime, host, own) = self.on.host(self.from)?;
        if own == self.from {
            return Err(Ended::Wrong(format!("{own} is this host's own address")));
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
        // With the worker its end of the channel is gone: the writer ends, and an incomplete file with it.
        writes.join().map_err(|_| failed(&"the writer has failed"))?;
        match outcome? {
            Some(Ok(stored)) => Ok(stored),
            Some(Err(Wrong::Taken(error))) => Err(failed(&error)),
            Some(Err(Wrong::File(what))) => Err(failed(&what)),
            None => Err(failed(&"it was stopped before the file had come")),
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

    /// What the writer says to these
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
    fn a_file_has_its_name_when_it_is_right() {
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
        assert_eq!(entries(into), 0, "nothing is left of it");
        let mut cut = todo(digest);
        cut.truncate(3);
        assert!(matches!(written(into, cut).last(), Some(Done::Written)));
        assert_eq!(entries(into), 0, "nothing is left of it");
        let right = written(into, todo(digest));
        assert!(matches!(right.last(), Some(Done::Stored(path, 7)) if *path == into.join("it")));
        assert_eq!(std::fs::read(into.join("it")).unwrap(), b"abcdefg");
        // It may be read by whom any new file may be read by.
        let mode = |name: &str| std::fs::metadata(into.join(name)).unwrap().permissions().mode();
        std::fs::write(into.join("another"), "").unwrap();
        assert_eq!(mode("it"), mode("another"));
        std::fs::remove_file(into.join("another")).unwrap();
        let again = written(into, vec![ToDisk::Begin(offer("it", 7))]);
        assert!(matches!(again[..], [Done::Failed(Refusal::Exists, _)]));
        assert_eq!(entries(into), 1);
    }

    #[test]
    fn what_cannot_be_written_is_refused() {
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
