//! `understudy rdmc receive`: receives a file from `understudy rdmc send`.

use super::partial_file::PartialFile;
use super::send::hex;
use super::transfer::{ExitReason, Progress, Timing, TransferArgs, failed, node_config, run_transfer};
use crate::output::print;
use ::rdmc::delivery::{DIGEST, ObjectReceiver, Offer, ReceiverConfig, ReceiverError, Refusal};
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
    /// Limit on memory for segments, in MB; a transfer needs about nine of the sender's segments, which have
    /// 16 MB by default
    #[arg(long, value_name = "MB", default_value_t = ReceiverConfig::MEMORY >> 20, value_parser = clap::value_parser!(u64).range(1..=1 << 20))]
    memory_mb: u64,
    #[command(flatten)]
    transfer: TransferArgs,
}

/// Request to the writer thread.
enum DiskRequest {
    Begin(Offer),
    Segment(Vec<u8>),
    Compare([u8; DIGEST]),
}

/// Result from the writer thread.
enum DiskResult {
    Begun,
    Written,
    /// The file has its final name
    Stored(PathBuf, u64),
    Differs,
    Failed(Refusal, String),
}

/// Reason why the transfer failed.
enum ReceiveError {
    Delivery(ReceiverError),
    File(String),
}

type Outcome = Result<(PathBuf, u64, [u8; DIGEST]), ReceiveError>;

struct ReceiveApp {
    delivery: ObjectReceiver,
    disk: Sender<DiskRequest>,
    done: Receiver<DiskResult>,
    /// Requests to the writer that are not done yet
    pending: u32,
    begun: bool,
    compared: bool,
    segment_bytes: u64,
    timing: Timing,
    stored: Option<(PathBuf, u64, [u8; DIGEST])>,
    digest: [u8; DIGEST],
    progress: Arc<Progress<Outcome>>,
}

impl ReceiveApp {
    fn send_to_disk(&mut self, request: DiskRequest) {
        // A writer that has ended has reported its error.
        if self.disk.send(request).is_ok() {
            self.pending += 1;
        }
    }

    fn on_done(&mut self, nic: &mut Rnic, done: DiskResult, now: Nanos) {
        self.pending -= 1;
        match done {
            DiskResult::Begun => self.delivery.accept(nic, now),
            DiskResult::Written => {
                let total = self.progress.total.load(Ordering::Relaxed);
                let bytes = self.progress.bytes.load(Ordering::Relaxed) + self.segment_bytes;
                self.progress.bytes.store(bytes.min(total), Ordering::Relaxed);
                self.delivery.segment_written(nic);
            }
            DiskResult::Stored(path, len) => {
                self.stored = Some((path, len, self.digest));
                self.delivery.report_comparison(nic, true);
            }
            DiskResult::Differs => self.delivery.report_comparison(nic, false),
            DiskResult::Failed(refusal, what) => {
                self.progress.end(Err(ReceiveError::File(what)));
                self.delivery.refuse(nic, refusal, now);
            }
        }
    }
}

impl App for ReceiveApp {
    fn start(&mut self, nic: &mut Rnic, now: Nanos) {
        if let Err(error) = self.delivery.start(nic, now) {
            self.progress.end(Err(ReceiveError::Delivery(error)));
            self.progress.done.store(true, Ordering::Relaxed);
        }
    }

    fn run(&mut self, nic: &mut Rnic, now: Nanos) {
        self.timing.set_last_run(now);
        self.delivery.run(nic, now);
        if self.progress.stopping.load(Ordering::Relaxed) {
            self.progress
                .end(Err(ReceiveError::File("interrupted before the whole file was received".into())));
            self.delivery.refuse(nic, Refusal::Stopped, now);
        }
        while let Ok(done) = self.done.try_recv() {
            self.on_done(nic, done, now);
            self.delivery.run(nic, now);
        }
        if let Some(offer) = self.delivery.offered().filter(|_| !self.begun) {
            self.begun = true;
            self.segment_bytes = offer.segment_bytes.into();
            self.progress.total.store(offer.len, Ordering::Relaxed);
            self.send_to_disk(DiskRequest::Begin(offer));
        }
        while let Some(bytes) = self.delivery.poll_segment() {
            self.send_to_disk(DiskRequest::Segment(bytes));
        }
        if let Some(digest) = self.delivery.digest_to_compare().filter(|_| !self.compared) {
            (self.compared, self.digest) = (true, digest);
            self.send_to_disk(DiskRequest::Compare(digest));
        }
        if let Some(outcome) = self.delivery.outcome() {
            let outcome = match (outcome, self.stored.take()) {
                (_, Some(stored)) => Some(Ok(stored)),
                (Err(error), None) => Some(Err(ReceiveError::Delivery(*error))),
                // The error was reported before.
                (Ok(()), None) => None,
            };
            if let Some(outcome) = outcome {
                self.progress.end(outcome);
            }
            if self.timing.is_done(self.delivery.all_acknowledged(), now) {
                self.progress.done.store(true, Ordering::Relaxed);
            }
        }
    }

    fn next_timer(&self) -> Option<Nanos> {
        let look = self.timing.next(self.pending > 0);
        Some(self.delivery.next_timer().map_or(look, |at| at.min(look)))
    }
}

/// Returns the file name that the sender offers, unless it would lead to another folder.
fn file_name(offer: &Offer) -> Option<&str> {
    let name = offer.name.as_str();
    let is_plain = Path::new(name).file_name().is_some_and(|plain| plain == name);
    // Control characters are not allowed in names.
    (is_plain && !name.contains(char::is_control)).then_some(name)
}

/// Bytes written between two waits for the disk. So what is reported to the sender as written is on the disk
/// except for this much, and the last sync does not exceed the sender's timeout.
const SYNC_INTERVAL: u64 = 16 << 20;

/// The file while it is being written.
struct IncompleteFile {
    part: PartialFile,
    path: PathBuf,
    hash: Sha256,
    len: u64,
    /// Bytes since the last sync
    unsynced: u64,
}

impl IncompleteFile {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        self.part.write_all(bytes)?;
        self.hash.update(bytes);
        self.len += bytes.len() as u64;
        self.unsynced += bytes.len() as u64;
        if self.unsynced >= SYNC_INTERVAL {
            self.part.file()?.sync_data()?;
            self.unsynced = 0;
        }
        Ok(())
    }
}

fn create_file(into: &Path, offer: &Offer) -> Result<IncompleteFile, (Refusal, String)> {
    let Some(name) = file_name(offer) else {
        return Err((Refusal::Name, format!("the sender's file name {:?} is not valid", offer.name)));
    };
    let path = into.join(name);
    let display = path.display();
    if path.symlink_metadata().is_ok() {
        return Err((Refusal::Exists, format!("{display} exists already; remove it, or use another --into")));
    }
    let cannot = |error: std::io::Error| (Refusal::Write, format!("{}: {error}", into.display()));
    let part = PartialFile::create(into).map_err(cannot)?;
    let file = part.file().map_err(cannot)?;
    let space = rustix::fs::fstatvfs(file).map_err(|error| cannot(error.into()))?;
    let free = space.f_bavail.saturating_mul(space.f_frsize);
    if free < offer.len {
        let what = format!("{} has {free} bytes free, but the file has {}", into.display(), offer.len);
        return Err((Refusal::NoSpace, what));
    }
    Ok(IncompleteFile { part, path, hash: Sha256::new(), len: 0, unsynced: 0 })
}

/// Writes received segments. An incomplete file is removed when this function returns.
fn writer(into: &Path, requests: &Receiver<DiskRequest>, done: &Sender<DiskResult>) {
    let mut part: Option<IncompleteFile> = None;
    for request in requests {
        let result = match (request, &mut part) {
            (DiskRequest::Begin(offer), _) => match create_file(into, &offer) {
                Ok(begun) => {
                    part = Some(begun);
                    DiskResult::Begun
                }
                Err((refusal, what)) => DiskResult::Failed(refusal, what),
            },
            (DiskRequest::Segment(bytes), Some(part)) => match part.write(&bytes) {
                Ok(()) => DiskResult::Written,
                Err(error) => write_error(&part.path, &error),
            },
            (DiskRequest::Compare(digest), Some(_)) => {
                part.take().map_or(DiskResult::Differs, |part| store(part, digest))
            }
            (_, None) => DiskResult::Failed(Refusal::Write, "the file is closed".into()),
        };
        if done.send(result).is_err() {
            break;
        }
    }
}

/// Gives the file its final name if its digest matches.
fn store(incomplete: IncompleteFile, digest: [u8; DIGEST]) -> DiskResult {
    let IncompleteFile { part, path, hash, len, .. } = incomplete;
    if <[u8; DIGEST]>::from(hash.finalize()) != digest {
        return DiskResult::Differs;
    }
    let synced = part.file().and_then(File::sync_all);
    // A file that another process has created meanwhile is not replaced.
    let named = synced.and_then(|()| part.persist(&path));
    // The folder has to be synced, too, because it holds the name.
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    match named.and_then(|()| File::open(folder)?.sync_all()) {
        Ok(()) => DiskResult::Stored(path, len),
        Err(error) => write_error(&path, &error),
    }
}

fn write_error(path: &Path, error: &Error) -> DiskResult {
    let no_space = matches!(error.kind(), ErrorKind::StorageFull | ErrorKind::QuotaExceeded);
    let refusal = if no_space { Refusal::NoSpace } else { Refusal::Write };
    DiskResult::Failed(refusal, format!("{}: {error}", path.display()))
}

impl Args {
    fn receive(&self) -> Result<(PathBuf, u64, [u8; DIGEST]), ExitReason> {
        if !self.into.is_dir() {
            return Err(ExitReason::InvalidArgument(format!(
                "{} is not a directory; create it, or use another --into",
                self.into.display()
            )));
        }
        let patience = self.transfer.patience()?;
        let (runtime, host, own) = self.transfer.host(self.from)?;
        if own == self.from {
            return Err(ExitReason::InvalidArgument(format!(
                "{own} is this host's own address; --from is the sender's"
            )));
        }
        let delivery = ObjectReceiver::new(
            node_config(own, patience),
            ReceiverConfig { from: self.from, patience, max_memory: self.memory_mb << 20 },
        );
        let progress = Progress::new();
        let ((disk, requests), (results, done)) = (unbounded(), unbounded());
        let into = self.into.clone();
        let writer_thread = thread::spawn(move || writer(&into, &requests, &results));
        let app = ReceiveApp {
            delivery,
            disk,
            done,
            pending: 0,
            begun: false,
            compared: false,
            segment_bytes: 0,
            timing: Timing::default(),
            stored: None,
            digest: [0; DIGEST],
            progress: Arc::clone(&progress),
        };
        let outcome = run_transfer(runtime, &host, app, &progress, "receiving");
        // When the worker ends, it drops its end of the channel: the writer ends, and an incomplete file is
        // removed.
        writer_thread.join().map_err(|_| failed(&"the writer thread panicked"))?;
        match outcome? {
            Some(Ok(stored)) => Ok(stored),
            Some(Err(ReceiveError::Delivery(error))) => Err(failed(&error)),
            Some(Err(ReceiveError::File(what))) => Err(failed(&what)),
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
        Err(reason) => reason.report(),
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
    fn written(into: &Path, requests: Vec<DiskRequest>) -> Vec<DiskResult> {
        let ((disk, queued), (results, done)) = (unbounded(), unbounded());
        for request in requests {
            disk.send(request).unwrap();
        }
        drop(disk);
        writer(into, &queued, &results);
        drop(results);
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
        let requests = |digest| {
            let parts = [b"abcd".to_vec(), b"efg".to_vec()].map(DiskRequest::Segment);
            let mut all = vec![DiskRequest::Begin(offer("it", 7))];
            all.extend(parts);
            all.push(DiskRequest::Compare(digest));
            all
        };
        let wrong = written(into, requests([1; DIGEST]));
        assert!(matches!(wrong.last(), Some(DiskResult::Differs)));
        assert_eq!(entries(into), 0, "no file is left");
        let mut cut = requests(digest);
        cut.truncate(3);
        assert!(matches!(written(into, cut).last(), Some(DiskResult::Written)));
        assert_eq!(entries(into), 0, "no file is left");
        let right = written(into, requests(digest));
        assert!(matches!(right.last(), Some(DiskResult::Stored(path, 7)) if *path == into.join("it")));
        assert_eq!(std::fs::read(into.join("it")).unwrap(), b"abcdefg");
        // The file has the mode of any new file.
        let mode = |name: &str| std::fs::metadata(into.join(name)).unwrap().permissions().mode();
        std::fs::write(into.join("another"), "").unwrap();
        assert_eq!(mode("it"), mode("another"));
        std::fs::remove_file(into.join("another")).unwrap();
        let again = written(into, vec![DiskRequest::Begin(offer("it", 7))]);
        assert!(matches!(again[..], [DiskResult::Failed(Refusal::Exists, _)]));
        assert_eq!(entries(into), 1);
    }

    #[test]
    fn files_that_cannot_be_written_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let refusal = |into: &Path, offer: Offer| match written(into, vec![DiskRequest::Begin(offer)])[..] {
            [DiskResult::Failed(refusal, _)] => Some(refusal),
            _ => None,
        };
        for name in ["", ".", "..", "a/b", "/etc/passwd", "../x", "a/", "a\0b", "a\nb", "a\u{1b}[2Jb"] {
            assert_eq!(refusal(folder.path(), offer(name, 7)), Some(Refusal::Name), "{name:?}");
        }
        assert_eq!(refusal(folder.path(), offer("it", u64::MAX)), Some(Refusal::NoSpace));
        let full = write_error(Path::new("it"), &ErrorKind::StorageFull.into());
        assert!(matches!(full, DiskResult::Failed(Refusal::NoSpace, _)));
        assert_eq!(refusal(&folder.path().join("no"), offer("it", 7)), Some(Refusal::Write));
        assert_eq!(entries(folder.path()), 0);
    }
}
