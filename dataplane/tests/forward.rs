//! Forwarding on virtual devices, without privileges or huge pages.

mod common;

use common::{Looks, UntilIdle, capture, config, play, port};
use dataplane::config::Device;
use dataplane::{Outcome, Passive, Runtime, Stop};
use switch::drop::FaultSet;
use switch::forward::config::Topology;
use switch::forward::{Config, Forward};
use switch::{DropReason, PortId};
use understudy_tests::captures::frames;

fn pairs(ports: u16, pairs: &[(u16, u16)]) -> Config {
    Config {
        ports,
        topology: Topology::Pairs(pairs.iter().map(|&(a, b)| (PortId(a), PortId(b))).collect()),
        drop: FaultSet::NONE,
        verify_icrc: true,
        verify_udp_checksum: true,
        counted_qps: 16,
    }
}

fn run(runtime: &mut Runtime, function: &Config, workers: usize) -> Outcome {
    let functions = (0..workers).map(|_| Forward::new(function)).collect();
    runtime.run(functions, &mut UntilIdle::new(Passive), &Stop::new())
}

fn sum(outcome: &Outcome, count: impl Fn(&dataplane::counters::WorkerCounters) -> u64) -> u64 {
    outcome.workers.iter().map(|worker| count(worker)).sum()
}

#[test]
fn a_replay_is_identical_to_the_bit() {
    let dir = tempfile::tempdir().unwrap();
    let (input, output) = (capture("rc_write_loss.pcap"), dir.path().join("out.pcap"));
    let ports = vec![
        port("in", play(&input, None)),
        port("out", Device::Pcap { rx: vec![], tx: Some(output.clone()), infinite: false }),
    ];
    let mut runtime = Runtime::start(config(ports, 1)).unwrap();
    let outcome = run(&mut runtime, &pairs(2, &[(0, 1)]), 1);
    drop(runtime);
    let (sent, came) = (frames(&input), frames(&output));
    assert_eq!(came, sent);
    let bytes: usize = sent.iter().map(Vec::len).sum();
    let worker = &outcome.workers[0];
    assert_eq!(worker.ports[0].rx.get(), (sent.len() as u64, bytes as u64));
    assert_eq!(worker.ports[1].tx.get(), (sent.len() as u64, bytes as u64));
    assert!(worker.drops.iter().all(|count| count.get() == 0));
    assert!(worker.busy_cycles.get() > 0 && worker.busy_turns.get() <= worker.turns.get());
}

#[test]
fn workers_hand_frames_to_the_owner_of_the_port() {
    let dir = tempfile::tempdir().unwrap();
    let output = dir.path().join("out.pcap");
    // Each of three workers polls a port; the fourth port has one send queue, and so one owner.
    let inputs = ["rc_send_64.pcap", "rc_write_64.pcap", "rc_read_4096.pcap"].map(capture);
    let mut ports: Vec<_> = inputs.iter().map(|file| port("in", play(file, None))).collect();
    ports.push(port("out", Device::Pcap { rx: vec![], tx: Some(output.clone()), infinite: false }));
    let mut runtime = Runtime::start(config(ports, 3)).unwrap();
    // Every input forwards to the output; pairs name the output once each, the last wins the way back.
    let outcome = run(&mut runtime, &pairs(4, &[(0, 3), (1, 3), (2, 3)]), 3);
    drop(runtime);
    let came = frames(&output);
    let expected: usize = inputs.iter().map(|file| frames(file).len()).sum();
    assert_eq!(came.len(), expected);
    assert!(sum(&outcome, |w| w.handed_off.get()) > 0);
    assert_eq!(sum(&outcome, |w| w.ports[3].tx.frames.get()), expected as u64);
    // Order within each input is kept.
    for file in &inputs {
        let sent = frames(file);
        let subsequence: Vec<_> = came.iter().filter(|frame| sent.contains(frame)).collect();
        assert_eq!(subsequence, sent.iter().collect::<Vec<_>>(), "{}", file.display());
    }
}

#[test]
fn frames_longer_than_a_buffer_are_oversized() {
    // damaged.pcap has frames beyond 8 kB; these buffers hold 2 kB.
    let mut input = port("in", play(&capture("damaged.pcap"), None));
    input.mtu = 1500;
    let dir = tempfile::tempdir().unwrap();
    let output = Device::Pcap { rx: vec![], tx: Some(dir.path().join("out.pcap")), infinite: false };
    let mut runtime = Runtime::start(config(vec![input, port("out", output)], 1)).unwrap();
    let mut function = pairs(2, &[(0, 1)]);
    function.drop = FaultSet::ALL;
    let outcome = run(&mut runtime, &function, 1);
    let long = frames(&capture("damaged.pcap")).iter().filter(|frame| frame.len() > 2100).count() as u64;
    assert!(long > 0);
    let oversized = outcome.workers[0].drops[DropReason::Malformed(rocev2::Fault::Oversized).index()].get();
    assert!(oversized >= long, "{oversized} of {long}");
}

#[test]
fn a_signal_to_stop_ends_an_endless_run() {
    let ports = vec![port("a", Device::Null { size: 64, copy: false }), port("b", Device::Ring)];
    let mut runtime = Runtime::start(config(ports, 1)).unwrap();
    let stop = Stop::new();
    stop.stop();
    let outcome = runtime.run(vec![Forward::new(&pairs(2, &[(0, 1)]))], &mut Passive, &stop);
    let worker = &outcome.workers[0];
    let (received, sent) = (worker.received(), worker.ports.iter().map(|p| p.tx.frames.get()).sum::<u64>());
    let dropped: u64 = worker.drops.iter().map(switch::counters::Counter::get).sum();
    assert_eq!(received, sent + dropped, "every frame is accounted for");
}

/// Every frame received was sent, dropped with a reason, or still lay in a ring that the port itself holds.
fn all_accounted_for(outcome: &Outcome) -> bool {
    let dropped = sum(outcome, |w| w.drops.iter().map(switch::counters::Counter::get).sum());
    let received: u64 = outcome.workers.iter().map(|w| w.received()).sum();
    received == sum(outcome, |w| w.ports.iter().map(|p| p.tx.frames.get()).sum()) + dropped
}

#[test]
fn a_port_that_takes_no_more_drops_and_counts() {
    // What comes out of the ring goes into it again, and ever more comes from the other port.
    let ports = vec![port("source", Device::Null { size: 64, copy: false }), port("ring", Device::Ring)];
    let mut config = config(ports, 1);
    config.ports[0].buffers = 8191;
    let mut runtime = Runtime::start(config).unwrap();
    let function = pairs(2, &[(0, 1), (1, 1)]);
    let outcome = runtime.run(vec![Forward::new(&function)], &mut Looks(50), &Stop::new());
    assert!(outcome.workers[0].drops[DropReason::PortFull.index()].get() > 0);
    assert!(all_accounted_for(&outcome));
}

#[test]
fn a_full_hand_off_ring_drops_and_counts() {
    let source = || port("source", Device::Null { size: 64, copy: false });
    // One send queue, which the first worker owns; the second hands over what it receives.
    let sink = port("sink", play(&capture("rc_send_64.pcap"), None));
    let mut config = config(vec![source(), source(), sink], 2);
    config.workers.handoff_ring = 1;
    let mut runtime = Runtime::start(config).unwrap();
    let function = pairs(3, &[(0, 2), (1, 2)]);
    let functions = vec![Forward::new(&function), Forward::new(&function)];
    let outcome = runtime.run(functions, &mut Looks(50), &Stop::new());
    assert!(sum(&outcome, |w| w.drops[DropReason::HandoffFull.index()].get()) > 0);
    assert!(all_accounted_for(&outcome));
}
