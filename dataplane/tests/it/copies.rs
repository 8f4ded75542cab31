//! Many copies of one frame, on virtual devices.

use crate::common::{config, port};
use dataplane::config::{Device, Port};
use dataplane::{ControlHandler, ControlOutput, Live, Mbuf, Outcome, Runtime, Stop};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use switch::{Function, Nanos, Output, PortId, Verdict};
use understudy_tests::alone;
use understudy_tests::captures::frames;

const OUT: PortId = PortId(0);

/// Sends frames once, and reports when it is done.
struct Sends<S> {
    job: Option<S>,
    done: Arc<AtomicBool>,
}

/// Ends the run when everything was sent. Waiting frames are offered to the ports once more.
struct UntilDone(Arc<AtomicBool>);

impl<S: Job> ControlHandler<Sends<S>> for UntilDone {
    fn on_event(&mut self, _: usize, (): (), _: &mut ControlOutput<'_, Sends<S>>) {}

    fn on_punt(&mut self, _: usize, _: Mbuf, _: PortId, _: &mut ControlOutput<'_, Sends<S>>) {}

    fn on_tick(&mut self, _: &Live<'_>, _: &mut ControlOutput<'_, Sends<S>>) -> bool {
        !self.0.load(Ordering::SeqCst)
    }
}

/// Sends through one port.
fn run<S: Job>(out: Port, job: S) -> Outcome {
    let done = Arc::<AtomicBool>::default();
    let sends = Sends { job: Some(job), done: Arc::clone(&done) };
    let mut runtime = Runtime::start(config(vec![out], 1)).unwrap();
    runtime.run(vec![sends], &mut UntilDone(done), &Stop::new())
}

/// What to send
trait Job: Send {
    fn send<O: Output>(self, out: &mut O);
}

impl<S: Job> Function for Sends<S> {
    type Command = ();
    type Event = ();

    fn receives_from(&self, _port: PortId) -> bool {
        false
    }

    fn on_frame<O: Output>(&mut self, _: &mut O::Frame, _: PortId, _: Nanos, _: &mut O) -> Verdict {
        unreachable!("no frame is received")
    }

    fn on_timer<O: Output>(&mut self, _now: Nanos, out: &mut O) {
        if let Some(job) = self.job.take() {
            job.send(out);
            self.done.store(true, Ordering::SeqCst);
        }
    }

    fn next_timer(&self) -> Option<Nanos> {
        self.job.is_some().then_some(Nanos::ZERO)
    }

    fn on_command(&mut self, (): (), _now: Nanos) {}

    fn poll_event(&mut self) -> Option<()> {
        None
    }
}

/// Frame lengths around the size of a copied chunk, and numbers of copies around a burst
const LENS: [usize; 10] = [14, 31, 32, 33, 64, 138, 255, 256, 257, 3000];
const COUNTS: [usize; 6] = [1, 2, 31, 32, 33, 100];

/// Returns frame `number`, of `len` bytes.
fn numbered(len: usize, number: u32) -> Vec<u8> {
    let mut frame: Vec<u8> = (0..len).map(|at| at as u8).collect();
    frame[..4].copy_from_slice(&number.to_be_bytes());
    frame[len - 1] = number as u8;
    frame
}

/// A number of copies, and before them one frame that is sent separately
struct Numbered {
    len: usize,
    count: usize,
}

impl Job for Vec<Numbered> {
    fn send<O: Output>(self, out: &mut O) {
        let mut numbers = 0..;
        for Numbered { len, count } in self {
            let mut next = || numbered(len, numbers.next().expect("the range has no end"));
            let single = out.make_from(&next()).expect("a buffer");
            out.send(single, OUT).expect("room");
            let finish = |copy: &mut [u8]| {
                assert_eq!(copy[4..len - 1], numbered(len, 0)[4..len - 1]);
                copy.copy_from_slice(&next());
            };
            assert_eq!(out.send_copies(&numbered(len, 7), count, OUT, finish), count);
        }
    }
}

#[test]
fn copies_leave_in_order_as_they_were_finished() {
    alone!();
    let dir = tempfile::tempdir().unwrap();
    let output = dir.path().join("out.pcap");
    let record = Device::Pcap { rx: vec![], tx: Some(output.clone()), infinite: false };
    let all = || LENS.into_iter().flat_map(|len| COUNTS.map(|count| Numbered { len, count }));
    let outcome = run(port("out", record), all().collect::<Vec<_>>());
    let lens = all().flat_map(|Numbered { len, count }| core::iter::repeat_n(len, count + 1));
    let expected: Vec<_> = lens.zip(0..).map(|(len, number)| numbered(len, number)).collect();
    assert_eq!(frames(&output), expected);
    let worker = &outcome.workers[0];
    let bytes: usize = expected.iter().map(Vec::len).sum();
    assert_eq!(worker.ports[0].tx.get(), (expected.len() as u64, bytes as u64));
    assert_eq!(worker.made.get(), expected.len() as u64);
}

/// Requests more copies than possible, twice; stores the numbers of frames made, and of calls of `finish`.
struct TooMany(Arc<Mutex<Vec<usize>>>);

impl Job for TooMany {
    fn send<O: Output>(self, out: &mut O) {
        let mut finished = 0;
        // No buffer is long enough, and none is lost.
        let mut made = vec![out.send_copies(&[0; 20_000], 1_000, OUT, |_| finished += 1)];
        for _ in 0..2 {
            made.push(out.send_copies(&[0; 100], 3_000, OUT, |_| finished += 1));
        }
        made.push(finished);
        *self.0.lock().unwrap() = made;
    }
}

/// Runs with a pool of `buffers` buffers. Returns the stored counts, and the numbers of sent and dropped
/// frames.
fn request_too_many(buffers: u32) -> (Vec<usize>, u64, u64) {
    let ring = Port { buffers, ..port("out", Device::Ring) };
    let results = Arc::default();
    let outcome = run(ring, TooMany(Arc::clone(&results)));
    let worker = &outcome.workers[0];
    let dropped = worker.drops.iter().map(switch::counters::Counter::get).sum::<u64>();
    let (made, sent) = (worker.made.get(), worker.ports[0].tx.frames.get());
    assert_eq!(made, sent + dropped, "every frame made was sent or dropped");
    // Each frame has 100 bytes, including those that the port accepted before the end of an iteration.
    assert_eq!(worker.ports[0].tx.get(), (sent, 100 * sent));
    (results.lock().unwrap().clone(), sent, dropped)
}

#[test]
fn pool_that_runs_out_gives_all_its_buffers() {
    alone!();
    assert_eq!(request_too_many(400), (vec![0, 400, 0, 400], 400, 0));
}

#[test]
fn frames_that_a_full_port_does_not_accept_are_dropped_and_counted() {
    alone!();
    let (results, sent, dropped) = request_too_many(4_095);
    assert_eq!(results, [0, 3_000, 3_000, 6_000]);
    // The ring accepts 1,023 frames at once; how many of the returned ones it accepts again depends on
    // timing.
    assert!(sent >= 1_000 && dropped > 0, "{sent} sent, {dropped} dropped");
}

/// Fills a port's queue. Stores the room before each frame.
struct Fill(Arc<Mutex<Vec<usize>>>);

impl Job for Fill {
    fn send<O: Output>(self, out: &mut O) {
        let mut rooms = Vec::new();
        for _ in 0..20 {
            rooms.push(out.room(OUT));
            let frame = out.make_from(&[0; 64]).expect("a buffer");
            out.send(frame, OUT).expect("room");
        }
        *self.0.lock().unwrap() = rooms;
    }
}

#[test]
fn room_of_a_port_excludes_frames_that_wait_for_it() {
    alone!();
    let rooms = Arc::default();
    run(port("out", Device::Ring), Fill(Arc::clone(&rooms)));
    let rooms = rooms.lock().unwrap().clone();
    // Less than a burst waits until the end of the iteration.
    let expected: Vec<_> = (0..20).map(|sent| dataplane::TX_QUEUE - sent).collect();
    assert_eq!(rooms, expected);
}
