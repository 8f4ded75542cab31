//! The path to the control plane and back, and full queues.

use crate::common::{UntilIdle, capture, config, play, port};
use dataplane::config::Device;
use dataplane::{ControlHandler, ControlOutput, Live, Mbuf, Runtime, Stop};
use switch::{DropReason, Frame as _, Function, Nanos, Output, PortId, Verdict};
use understudy_tests::alone;
use understudy_tests::captures::frames;

/// Punts every frame, generates an event for every third, and arms a timer.
#[derive(Default)]
struct Punting {
    seen: u64,
    reported: u64,
    timers: u64,
    timer: Nanos,
    commanded: u64,
}

impl Function for Punting {
    type Command = u64;
    /// Number of frames, number of timers, sum of commands
    type Event = (u64, u64, u64);

    fn on_frame<O: Output>(
        &mut self,
        frame: &mut O::Frame,
        port: PortId,
        _now: Nanos,
        out: &mut O,
    ) -> Verdict {
        self.seen += 1;
        // A generated frame, and a copy that grows at both ends.
        let made = out.make(60).expect("a buffer");
        assert_eq!((made.bytes(), made.is_whole()), (&[0; 60][..], true));
        let mut copy = out.copy(frame).expect("a buffer");
        let len = frame.bytes().len();
        copy.prepend(20).unwrap();
        copy.resize(len + 28).unwrap();
        assert_eq!((&copy.bytes()[20..20 + len], &copy.bytes()[..20]), (frame.bytes(), &[0; 20][..]));
        assert_eq!(copy.bytes()[20 + len..], [0; 8]);
        copy.strip(20);
        copy.resize(len).unwrap();
        assert_eq!(copy.bytes(), frame.bytes());
        assert!(copy.prepend(10_000).is_err() && copy.resize(100_000).is_err());
        out.send(copy, PortId(1 - port.0)).expect("room");
        Verdict::Punt
    }

    fn on_timer<O: Output>(&mut self, now: Nanos, _out: &mut O) {
        self.timers += 1;
        self.timer = now + Nanos::from_millis(1);
    }

    fn next_timer(&self) -> Option<Nanos> {
        Some(self.timer)
    }

    fn on_command(&mut self, command: u64, _now: Nanos) {
        self.commanded += command;
    }

    fn poll_event(&mut self) -> Option<(u64, u64, u64)> {
        (self.reported < self.seen / 3).then(|| {
            self.reported += 1;
            (self.seen, self.timers, self.commanded)
        })
    }
}

/// Keeps punted frames.
#[derive(Default)]
struct Keeper(Vec<(Mbuf, Vec<u8>)>);

impl ControlHandler<Punting> for &mut Keeper {
    fn on_event(&mut self, _: usize, _: (u64, u64, u64), _: &mut ControlOutput<'_, Punting>) {}

    fn on_punt(&mut self, _: usize, frame: Mbuf, _: PortId, _: &mut ControlOutput<'_, Punting>) {
        let bytes = frame.bytes().to_vec();
        self.0.push((frame, bytes));
    }

    fn on_tick(&mut self, _: &Live<'_>, _: &mut ControlOutput<'_, Punting>) -> bool {
        true
    }
}

#[test]
fn punted_frame_outlives_the_runtime() {
    alone!();
    let dir = tempfile::tempdir().unwrap();
    let file = capture("rc_send_64.pcap");
    let out = Device::Pcap { rx: vec![], tx: Some(dir.path().join("out.pcap")), infinite: false };
    let mut runtime =
        Runtime::start(config(vec![port("in", play(&file, None)), port("out", out)], 1)).unwrap();
    let mut keeper = Keeper::default();
    runtime.run(vec![Punting::default()], &mut UntilIdle::new(&mut keeper), &Stop::new());
    drop(runtime);
    assert!(!keeper.0.is_empty());
    for (frame, bytes) in &keeper.0 {
        assert_eq!(frame.bytes(), bytes);
    }
}

/// Sends each punted frame on, and responds to each event with a command.
#[derive(Default)]
struct Relay {
    punted: u64,
    events: u64,
    last: (u64, u64, u64),
}

impl ControlHandler<Punting> for &mut Relay {
    fn on_event(&mut self, worker: usize, event: (u64, u64, u64), out: &mut ControlOutput<'_, Punting>) {
        self.events += 1;
        self.last = event;
        _ = out.command(worker, 1);
    }

    fn on_punt(&mut self, worker: usize, frame: Mbuf, port: PortId, out: &mut ControlOutput<'_, Punting>) {
        self.punted += 1;
        assert_eq!(port, PortId(0));
        out.send(worker, frame, PortId(1)).expect("the worker keeps up");
    }

    fn on_tick(&mut self, live: &Live<'_>, _out: &mut ControlOutput<'_, Punting>) -> bool {
        assert_eq!((live.workers().len(), live.device_counters().len()), (1, 2));
        true
    }
}

#[test]
fn punted_frames_are_sent_by_the_control_plane() {
    alone!();
    let dir = tempfile::tempdir().unwrap();
    let (input, output) = (capture("rc_send_64.pcap"), dir.path().join("out.pcap"));
    let out = Device::Pcap { rx: vec![], tx: Some(output.clone()), infinite: false };
    let mut runtime =
        Runtime::start(config(vec![port("in", play(&input, None)), port("out", out)], 1)).unwrap();
    let mut relay = Relay::default();
    let outcome = runtime.run(vec![Punting::default()], &mut UntilIdle::new(&mut relay), &Stop::new());
    drop(runtime);
    let sent = frames(&input);
    let count = sent.len() as u64;
    assert_eq!((relay.punted, relay.events), (count, count / 3));
    // An event of a frame comes before the frame itself, which is punted.
    assert_eq!(relay.last.0, count / 3 * 3);
    assert!(relay.last.1 >= 1, "the first timer fires at the start");
    let worker = &outcome.workers[0];
    assert_eq!((worker.punted.get(), worker.made.get()), (count, count));
    // Each frame twice: its copy, and the frame itself by way of the control plane.
    let mut received_frames = frames(&output);
    let mut expected = [sent.clone(), sent].concat();
    received_frames.sort();
    expected.sort();
    assert_eq!(received_frames, expected);
}

/// Ignores all events and frames, slowly.
struct SlowConsumer;

impl ControlHandler<Punting> for SlowConsumer {
    fn on_event(&mut self, _: usize, _: (u64, u64, u64), _: &mut ControlOutput<'_, Punting>) {}

    fn on_punt(&mut self, _: usize, _: Mbuf, _: PortId, _: &mut ControlOutput<'_, Punting>) {
        // Slower than the frames arrive.
        std::thread::yield_now();
    }

    fn on_tick(&mut self, _: &Live<'_>, _: &mut ControlOutput<'_, Punting>) -> bool {
        true
    }
}

#[test]
fn full_queue_to_the_control_plane_drops_and_counts() {
    alone!();
    let out = Device::Null { size: 64, copy: false };
    let mut config =
        config(vec![port("in", play(&capture("rc_write_loss.pcap"), None)), port("out", out)], 1);
    config.ports.truncate(1);
    config.ports.push(port("out", Device::Ring));
    config.workers.control_queue = 1;
    let mut runtime = Runtime::start(config).unwrap();
    let outcome =
        runtime.run(vec![Punting::default()], &mut UntilIdle::new(Limited(SlowConsumer, 0)), &Stop::new());
    let worker = &outcome.workers[0];
    let lost = worker.drops[DropReason::ControlFull.index()].get();
    assert!(lost > 0);
    assert_eq!(worker.punted.get() + lost, worker.received());
}

/// Ends after some ticks, because the ring returns the frames sent to it forever.
struct Limited<C>(C, u32);

impl<C: ControlHandler<Punting>> ControlHandler<Punting> for Limited<C> {
    fn on_event(&mut self, worker: usize, event: (u64, u64, u64), out: &mut ControlOutput<'_, Punting>) {
        self.0.on_event(worker, event, out);
    }

    fn on_punt(&mut self, worker: usize, frame: Mbuf, port: PortId, out: &mut ControlOutput<'_, Punting>) {
        self.0.on_punt(worker, frame, port, out);
    }

    fn on_tick(&mut self, live: &Live<'_>, out: &mut ControlOutput<'_, Punting>) -> bool {
        self.1 += 1;
        self.1 < 50 && self.0.on_tick(live, out)
    }
}

/// Panics at its first frame.
struct Panics;

impl Function for Panics {
    type Command = ();
    type Event = ();

    fn on_frame<O: Output>(&mut self, _: &mut O::Frame, _: PortId, _: Nanos, _: &mut O) -> Verdict {
        panic!("a bug in a function")
    }
    fn on_timer<O: Output>(&mut self, _: Nanos, _: &mut O) {}
    fn next_timer(&self) -> Option<Nanos> {
        None
    }
    fn on_command(&mut self, (): (), _: Nanos) {}
    fn poll_event(&mut self) -> Option<()> {
        None
    }
}

#[test]
fn panic_of_a_worker_ends_the_run() {
    alone!();
    let ports = vec![port("in", play(&capture("rc_send_64.pcap"), None)), port("out", Device::Ring)];
    let mut runtime = Runtime::start(config(ports, 1)).unwrap();
    let run =
        std::panic::AssertUnwindSafe(|| runtime.run(vec![Panics], &mut dataplane::NoControl, &Stop::new()));
    assert!(std::panic::catch_unwind(run).is_err(), "the caller gets the panic and does not wait for ever");
}

/// Reports each command with a time that the worker has read after it.
#[derive(Default)]
struct TimeReporter {
    /// Time in the command, and number of timers since it
    received: Option<(Nanos, u32)>,
    event: Option<(Nanos, Nanos)>,
}

impl Function for TimeReporter {
    type Command = Nanos;
    /// Time in the command, and the worker's
    type Event = (Nanos, Nanos);

    fn on_frame<O: Output>(&mut self, _: &mut O::Frame, _: PortId, _: Nanos, _: &mut O) -> Verdict {
        Verdict::Consume
    }

    fn on_timer<O: Output>(&mut self, now: Nanos, _: &mut O) {
        let Some((sent, timers)) = &mut self.received else { return };
        *timers += 1;
        // The first timer has the time of the turn in which the command arrived, which is read earlier.
        if *timers == 2 {
            self.event = Some((*sent, now));
            self.received = None;
        }
    }

    fn next_timer(&self) -> Option<Nanos> {
        Some(Nanos::ZERO)
    }

    fn on_command(&mut self, sent: Nanos, _: Nanos) {
        self.received = Some((sent, 0));
    }

    fn poll_event(&mut self) -> Option<(Nanos, Nanos)> {
        self.event.take()
    }
}

/// Compares the control plane's time with the worker's.
#[derive(Default)]
struct TimeComparison {
    began: Nanos,
    asked: bool,
    compared: u32,
}

impl ControlHandler<TimeReporter> for TimeComparison {
    fn on_event(
        &mut self,
        _: usize,
        (sent, worker): (Nanos, Nanos),
        out: &mut ControlOutput<'_, TimeReporter>,
    ) {
        let now = out.now();
        assert!(self.began <= sent && sent <= worker && worker <= now, "{sent:?} {worker:?} {now:?}");
        self.asked = false;
        self.compared += 1;
    }

    fn on_punt(&mut self, _: usize, _: Mbuf, _: PortId, _: &mut ControlOutput<'_, TimeReporter>) {}

    fn on_tick(&mut self, _: &Live<'_>, out: &mut ControlOutput<'_, TimeReporter>) -> bool {
        let continues = self.compared < 10;
        if continues && !self.asked {
            self.asked = out.command(0, out.now()).is_ok();
        }
        continues
    }
}

#[test]
fn control_plane_has_the_time_of_the_workers() {
    alone!();
    let mut runtime = Runtime::start(config(vec![port("ring", Device::Ring)], 1)).unwrap();
    let began = runtime.now();
    // If the control plane, the worker and the runtime had clocks of their own, they would differ by this.
    let pause = Nanos::from_millis(20);
    std::thread::sleep(std::time::Duration::from_nanos(pause.0));
    let mut control = TimeComparison { began: began + pause, ..TimeComparison::default() };
    runtime.run(vec![TimeReporter::default()], &mut control, &Stop::new());
    assert_eq!(control.compared, 10);
}
