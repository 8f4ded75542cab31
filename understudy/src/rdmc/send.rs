//! `understudy rdmc send`: sends a file to many hosts.

use super::schedule::{Kind, copies_note};
use super::transfer::{ExitReason, Progress, Timing, TransferArgs, failed, node_config, run_transfer};
use crate::config;
use crate::output::print;
use ::rdmc::delivery::{DIGEST, DeliveryReport, ObjectSender, SenderConfig, SenderError};
use ::rdmc::{Algorithm, Racks, SwitchAddress, switch_fanout};
use core::fmt::Write as _;
use core::net::{IpAddr, SocketAddr};
use core::sync::atomic::Ordering;
use crossbeam_channel::{Receiver, Sender, unbounded};
use rnic::{App, Rnic};
use rustix::time::{ClockId, clock_gettime};
use serde::Serialize;
use sha2::{Digest as _, Sha256};
use std::fs::{File, Metadata};
use std::os::unix::fs::{FileExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::thread;
use std::time::Duration;
use switch::Nanos;
use tracing::info;

/// Send a file to many hosts that run `understudy rdmc receive`
///
/// Receivers relay blocks to each other. If one fails, the others continue from where they were and get the
/// whole file.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// File to send
    file: PathBuf,
    /// Addresses of the receivers
    #[arg(long, value_name = "IP,IP,...", value_delimiter = ',', required = true)]
    to: Vec<IpAddr>,
    #[command(flatten)]
    transfer: TransferArgs,
    /// Algorithm that distributes the blocks
    #[arg(long, value_enum, default_value_t = Kind::Pipeline)]
    algorithm: Kind,
    /// Size of a block in bytes [default: 1 MB, or the size of the file if that is less]
    #[arg(long, value_name = "BYTES")]
    block_bytes: Option<u32>,
    /// Blocks of a segment: receivers need memory for segments, and at most one segment is sent again after a
    /// failure
    #[arg(long, value_name = "BLOCKS", default_value_t = 16)]
    segment_blocks: u32,
    /// For `--algorithm hybrid`: the network, as for `understudy plan`; hosts at the same switch form a rack
    #[arg(long, value_name = "TOPOLOGY.toml", required_if_eq("algorithm", "hybrid"))]
    topology: Option<PathBuf>,
    /// For `--algorithm in-network`: the P4CE switch that copies
    #[arg(long, value_name = "IP:PORT", required_if_eq("algorithm", "in-network"))]
    switch: Option<SocketAddr>,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

/// Request to the reader thread.
enum ReadRequest {
    Segment(u64, u32),
    Digest,
}

/// Result from the reader thread.
enum ReadResult {
    Segment(u64, Vec<u8>),
    Digest([u8; DIGEST]),
    Failed(String),
}

/// Reason why the transfer failed.
enum SendError {
    Delivery(SenderError),
    File(String),
}

type Outcome = Result<DeliveryReport, SendError>;

struct SendApp {
    delivery: ObjectSender,
    wanted: Sender<ReadRequest>,
    read: Receiver<ReadResult>,
    read_pending: bool,
    segment_bytes: u64,
    timing: Timing,
    progress: Arc<Progress<Outcome>>,
}

impl SendApp {
    fn on_read(&mut self, nic: &mut Rnic, read: ReadResult, now: Nanos) {
        self.read_pending = false;
        match read {
            // After a failure, a different segment may be needed by now.
            ReadResult::Segment(number, bytes) if self.delivery.next_segment() == Some(number) => {
                self.delivery.send_segment(nic, bytes);
            }
            ReadResult::Segment(..) => {}
            ReadResult::Digest(digest) => self.delivery.send_digest(nic, digest),
            ReadResult::Failed(what) => {
                self.progress.end(Err(SendError::File(what)));
                self.delivery.stop(nic, now);
            }
        }
    }
}

impl App for SendApp {
    fn start(&mut self, nic: &mut Rnic, now: Nanos) {
        if let Err(error) = self.delivery.start(nic, now) {
            self.progress.end(Err(SendError::Delivery(error)));
            self.progress.done.store(true, Ordering::Relaxed);
        }
    }

    fn run(&mut self, nic: &mut Rnic, now: Nanos) {
        self.timing.set_last_run(now);
        self.delivery.run(nic, now);
        if self.progress.stopping.load(Ordering::Relaxed) {
            self.delivery.stop(nic, now);
        }
        while let Ok(read) = self.read.try_recv() {
            self.on_read(nic, read, now);
            self.delivery.run(nic, now);
        }
        if !self.read_pending {
            let segment =
                self.delivery.next_segment().map(|n| ReadRequest::Segment(n, self.delivery.segment_len(n)));
            let wanted = segment.or_else(|| self.delivery.needs_digest().then_some(ReadRequest::Digest));
            // A reader that has ended has reported its error.
            self.read_pending = wanted.is_some_and(|wanted| self.wanted.send(wanted).is_ok());
        }
        let written = self.delivery.written().saturating_mul(self.segment_bytes);
        self.progress
            .bytes
            .store(written.min(self.progress.total.load(Ordering::Relaxed)), Ordering::Relaxed);
        if let Some(outcome) = self.delivery.outcome() {
            self.progress.end(outcome.clone().map_err(SendError::Delivery));
            if self.timing.is_done(self.delivery.all_acknowledged(), now) {
                self.progress.done.store(true, Ordering::Relaxed);
            }
        }
    }

    fn next_timer(&self) -> Option<Nanos> {
        let look = self.timing.next(self.read_pending);
        Some(self.delivery.next_timer().map_or(look, |at| at.min(look)))
    }
}

/// Identity of a file's contents: inode, length, and times of the last changes. Equal as long as no process
/// writes to the file, except for writes through a mapping that have not reached the file's times.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Version {
    inode: (u64, u64),
    len: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

impl Version {
    fn of(metadata: &Metadata) -> Self {
        Self {
            inode: (metadata.dev(), metadata.ino()),
            len: metadata.len(),
            modified: (metadata.mtime(), metadata.mtime_nsec()),
            changed: (metadata.ctime(), metadata.ctime_nsec()),
        }
    }

    /// Returns the version of a file from which every later change differs. The kernel's clock for file times
    /// advances in steps of up to 10 ms, so this waits until the clock is later than the last change. It
    /// waits for a tenth of a second at most, because the times of a file server are those of another clock.
    fn settled(file: &File) -> std::io::Result<Self> {
        let mut attempts = 100;
        loop {
            let clock = clock_gettime(ClockId::RealtimeCoarse);
            let version = Self::of(&file.metadata()?);
            attempts -= 1;
            if version.changed < (clock.tv_sec, clock.tv_nsec) || attempts == 0 {
                return Ok(version);
            }
            thread::sleep(Duration::from_millis(1));
        }
    }
}

/// The file to send.
struct Source {
    file: File,
    path: PathBuf,
    version: Version,
}

impl Source {
    /// Returns an error if the segments that were read may belong to different versions of the file.
    fn check(&self) -> Result<(), String> {
        let path = self.path.display();
        let now = std::fs::metadata(&self.path).map_err(|error| format!("{path}: {error}"))?;
        if Version::of(&now) == self.version {
            Ok(())
        } else {
            Err(format!("{path} was changed or replaced while it was sent; send it again"))
        }
    }
}

/// Reads the requested segments, and computes the digest from the first read of each.
fn reader(
    source: &Source,
    segment_bytes: u64,
    wanted: &Receiver<ReadRequest>,
    read: &Sender<ReadResult>,
) -> [u8; DIGEST] {
    let (mut hash, mut hashed) = (Sha256::new(), 0);
    let file = &source.file;
    for request in wanted {
        let result = match request {
            ReadRequest::Digest => match source.check() {
                Ok(()) => ReadResult::Digest(hash.clone().finalize().into()),
                Err(what) => ReadResult::Failed(what),
            },
            ReadRequest::Segment(number, len) => {
                let mut bytes = vec![0; len as usize];
                match file.read_exact_at(&mut bytes, number * segment_bytes) {
                    Ok(()) => {
                        if number == hashed {
                            hash.update(&bytes);
                            hashed += 1;
                        }
                        ReadResult::Segment(number, bytes)
                    }
                    Err(error) => ReadResult::Failed(format!("cannot read the file: {error}")),
                }
            }
        };
        if read.send(result).is_err() {
            break;
        }
    }
    hash.finalize().into()
}

impl Args {
    /// Returns the racks of this host and of the receivers: hosts with the same first switch form a rack.
    fn racks(&self, own: IpAddr) -> Result<Racks, ExitReason> {
        let path = self.topology.as_ref();
        let path = path.ok_or_else(|| {
            ExitReason::InvalidArgument("--algorithm hybrid needs racks; add --topology".into())
        })?;
        let network = config::load_topology(path).map_err(|report| ExitReason::Config(Box::new(report)))?;
        let rack = |ip: &IpAddr| {
            let host = network.topology.hosts.iter().find(|host| host.address == *ip);
            let switch = host.and_then(|host| host.switches.first());
            switch.ok_or_else(|| {
                ExitReason::InvalidArgument(format!("{} has no host with the address {ip}", path.display()))
            })
        };
        let racks = core::iter::once(&own).chain(&self.to).map(rack).collect::<Result<Vec<_>, _>>()?;
        Racks::new(&racks).map_err(|error| ExitReason::InvalidArgument(error.to_string()))
    }

    fn config(&self, len: u64, own: IpAddr) -> Result<SenderConfig, ExitReason> {
        let name = self.file.file_name();
        let name = name.ok_or_else(|| {
            ExitReason::InvalidArgument(format!("{} is not a regular file", self.file.display()))
        })?;
        let name = name.to_str().map(String::from).ok_or_else(|| {
            ExitReason::InvalidArgument(format!(
                "the file name {} is not UTF-8; rename the file",
                self.file.display()
            ))
        })?;
        let mut config = SenderConfig::new(self.to.clone(), name, len);
        config.block_bytes = self.block_bytes.unwrap_or(config.block_bytes);
        config.segment_bytes = config
            .block_bytes
            .checked_mul(self.segment_blocks)
            .filter(|bytes| *bytes <= 1 << 30)
            .ok_or_else(|| {
                ExitReason::InvalidArgument(
                    "a segment is larger than 1 GB; use fewer --segment-blocks or smaller --block-bytes"
                        .into(),
                )
            })?;
        config.algorithm = self.algorithm.algorithm(|| self.racks(own))?;
        config.patience = self.transfer.patience()?;
        Ok(config)
    }

    fn send(&self) -> Result<(DeliveryReport, u64, f64, [u8; DIGEST]), ExitReason> {
        let unreadable =
            |error: std::io::Error| ExitReason::InvalidArgument(format!("{}: {error}", self.file.display()));
        // Opening a pipe must not wait for a writer. Pipes are rejected below.
        let nonblocking = rustix::fs::OFlags::NONBLOCK.bits() as i32;
        let file =
            File::options().read(true).custom_flags(nonblocking).open(&self.file).map_err(unreadable)?;
        let metadata = file.metadata().map_err(unreadable)?;
        if !metadata.is_file() {
            return Err(ExitReason::InvalidArgument(format!(
                "{} is not a regular file",
                self.file.display()
            )));
        }
        let version = Version::settled(&file).map_err(unreadable)?;
        let len = version.len;
        let first = self.to.first().copied().ok_or_else(|| {
            ExitReason::InvalidArgument("there are no receivers; add addresses to --to".into())
        })?;
        let (runtime, host, own) = self.transfer.host(first)?;
        let config = self.config(len, own)?;
        let times = self.to.len().div_ceil(switch_fanout(self.to.iter().all(IpAddr::is_ipv4)));
        if config.algorithm == Algorithm::InNetwork && times > 1 {
            info!("{}", copies_note(times, self.to.iter().all(IpAddr::is_ipv4)));
        }
        let switch = self.switch.map(|at| SwitchAddress { address: at.ip(), port: at.port() });
        let config = SenderConfig { switch, ..config };
        let node = node_config(own, config.patience);
        let segment_bytes = config.segment_bytes.into();
        let delivery = ObjectSender::new(node, config)
            .map_err(|error| ExitReason::InvalidArgument(error.to_string()))?;
        let progress = Progress::new();
        progress.total.store(len, Ordering::Relaxed);
        let ((wanted, requests), (results, read)) = (unbounded(), unbounded());
        let source = Source { file, path: self.file.clone(), version };
        let reader_thread = thread::spawn(move || reader(&source, segment_bytes, &requests, &results));
        let app = SendApp {
            delivery,
            wanted,
            read,
            read_pending: false,
            segment_bytes,
            timing: Timing::default(),
            progress: Arc::clone(&progress),
        };
        let began = crate::system::now();
        let outcome = run_transfer(runtime, &host, app, &progress, "sending")?;
        let seconds = began.elapsed().as_secs_f64();
        let digest = reader_thread.join().map_err(|_| failed(&"the reader thread panicked"))?;
        match outcome {
            Some(Ok(outcome)) => Ok((outcome, len, seconds, digest)),
            Some(Err(SendError::Delivery(SenderError::AllReceiversLost(lost)))) => {
                let mut what = String::from("no receiver has the file:");
                for (ip, why) in lost {
                    _ = write!(what, "\n{ip} {why}");
                }
                Err(failed(&what))
            }
            Some(Err(SendError::Delivery(error))) => Err(failed(&error)),
            Some(Err(SendError::File(what))) => Err(failed(&what)),
            None => Err(failed(&"interrupted before every receiver had the file")),
        }
    }
}

/// Result of `--json`. Fields are added, not renamed.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Sent {
    /// Length of the file
    bytes: u64,
    /// Time from the start to the last receiver's response
    seconds: f64,
    /// SHA-256 of the file, in hexadecimal digits
    sha256: String,
    /// Receivers that have the whole file
    stored: Vec<IpAddr>,
    /// Receivers that do not have it
    lost: Vec<LostReceiver>,
    /// Rounds of the transfer, each with one group: one, and one more after each loss of receivers
    rounds: u32,
    /// Algorithm by which blocks were sent at the end
    algorithm: &'static str,
}

#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct LostReceiver {
    receiver: IpAddr,
    /// Reason in words
    why: String,
}

pub(crate) fn run(args: &Args) -> ExitCode {
    let (report, len, seconds, digest) = match args.send() {
        Ok(sent) => sent,
        Err(reason) => return reason.report(),
    };
    let code = if report.lost.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE };
    let sum = hex(&digest);
    if args.json {
        let lost = report.lost.iter().map(|(ip, why)| LostReceiver { receiver: *ip, why: why.to_string() });
        let sent = Sent {
            bytes: len,
            seconds,
            sha256: sum,
            lost: lost.collect(),
            rounds: report.rounds,
            algorithm: report.algorithm.name(),
            stored: report.stored,
        };
        let json = serde_json::to_string(&sent).expect("numbers and text always serialise");
        return print(&format!("{json}\n"), code);
    }
    let rate = len as f64 / seconds / 1e6;
    let mut text = format!(
        "{} of {} receivers have {} ({len} bytes) after {seconds:.2} s, {rate:.1} MB/s each\nSHA-256 {sum}\n",
        report.stored.len(),
        report.stored.len() + report.lost.len(),
        args.file.display(),
    );
    for (ip, why) in report.lost {
        _ = writeln!(text, "{ip} {why}");
    }
    if args.algorithm == Kind::InNetwork && report.algorithm != Algorithm::InNetwork {
        _ = writeln!(
            text,
            "The switch did not copy: the blocks were sent by the {}",
            report.algorithm.name()
        );
    }
    print(&text, code)
}

pub(super) fn hex(digest: &[u8]) -> String {
    digest.iter().fold(String::new(), |mut text, byte| {
        // Writing to a string does not fail.
        _ = write!(text, "{byte:02x}");
        text
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::io::{Seek as _, SeekFrom, Write as _};
    use std::path::Path;

    /// Change by another process while the file is read.
    #[derive(Clone, Copy, Debug)]
    enum Change {
        /// Writes a byte, possibly the same as before, at this offset
        Overwrite(u64, u8),
        Append,
        Truncate(u64),
        /// Replaces the file by another one with the same bytes
        Replace,
        Remove,
    }

    fn make(path: &Path, change: Change, bytes: &[u8]) {
        let open = || File::options().write(true).open(path).unwrap();
        match change {
            Change::Overwrite(at, byte) => {
                let mut file = open();
                file.seek(SeekFrom::Start(at % bytes.len() as u64)).unwrap();
                file.write_all(&[byte]).unwrap();
            }
            Change::Append => File::options().append(true).open(path).unwrap().write_all(b"x").unwrap(),
            Change::Truncate(len) => open().set_len(len % bytes.len() as u64).unwrap(),
            Change::Replace => {
                let other = path.with_extension("new");
                std::fs::write(&other, bytes).unwrap();
                std::fs::rename(other, path).unwrap();
            }
            Change::Remove => std::fs::remove_file(path).unwrap(),
        }
    }

    fn change() -> impl Strategy<Value = Option<Change>> {
        prop_oneof![
            Just(None),
            (any::<u64>(), any::<u8>()).prop_map(|(at, byte)| Some(Change::Overwrite(at, byte))),
            Just(Some(Change::Append)),
            any::<u64>().prop_map(|len| Some(Change::Truncate(len))),
            Just(Some(Change::Replace)),
            Just(Some(Change::Remove)),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        /// There is no digest if the file changes between any two reads, even right after it was created.
        #[test]
        fn a_file_that_changes_while_it_is_sent_gets_no_digest(
            bytes in prop::collection::vec(any::<u8>(), 1..40),
            change in change(),
            moment in 0_usize..12,
        ) {
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("object");
            std::fs::write(&path, &bytes).unwrap();
            let file = File::open(&path).unwrap();
            let version = Version::settled(&file).unwrap();
            let source = Source { file, path: path.clone(), version };
            let ((wanted, requests), (results, read)) =
                (crossbeam_channel::bounded(0), crossbeam_channel::bounded(0));
            let reader_thread = thread::spawn(move || reader(&source, 4, &requests, &results));
            let lens = bytes.chunks(4).map(<[u8]>::len);
            let segments = (0..).zip(lens).map(|(n, len)| ReadRequest::Segment(n, len as u32));
            let all: Vec<ReadRequest> = segments.chain([ReadRequest::Digest]).collect();
            let moment = moment % all.len();
            let mut last = None;
            for (step, wants) in all.into_iter().enumerate() {
                if let Some(change) = change.filter(|_| step == moment) {
                    make(&path, change, &bytes);
                }
                wanted.send(wants).unwrap();
                last = Some(read.recv().unwrap());
            }
            drop(wanted);
            reader_thread.join().unwrap();
            match last {
                Some(ReadResult::Digest(digest)) => {
                    prop_assert!(change.is_none(), "{change:?} before read {moment} of {} bytes", bytes.len());
                    prop_assert_eq!(digest, <[u8; DIGEST]>::from(Sha256::digest(&bytes)));
                }
                Some(ReadResult::Failed(_)) => prop_assert!(change.is_some()),
                _ => prop_assert!(false, "neither a digest nor a failure"),
            }
        }
    }
}
