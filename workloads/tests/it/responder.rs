//! A server whose NIC has processing costs: its rates match the measured ones, and requests of a connection
//! execute in order.

use sim::{Costs, Link};
use std::collections::VecDeque;
use switch::Nanos;
use workloads::clients::{ServerMemory, Start, Stopped, Thread, Verbs};
use workloads::rack::{Rack, RackConfig, forward};

const HOST_VA: u64 = 0x1000_0000;
const DEVICE_VA: u64 = 0x2000_0000;
const LEN: usize = 1 << 20;

#[derive(Clone, Copy, Debug)]
enum Verb {
    Write,
    Read,
    CompareSwap,
    FetchAdd,
}

/// The load: the verb and target of all requests, and the number of queue pairs.
#[derive(Clone, Copy, Debug)]
struct Flood {
    verb: Verb,
    device: bool,
    /// Whether all queue pairs use the same word, or each one its own
    one_word: bool,
    queue_pairs: usize,
    depth: usize,
}

type PendingRequest = core::pin::Pin<Box<dyn Future<Output = Result<(), Stopped>> + Send>>;

fn post(verbs: &Verbs, verb: Verb, at: rnic::Remote) -> PendingRequest {
    match verb {
        Verb::Write => Box::pin(verbs.write(at, vec![1; 8])),
        Verb::Read => {
            let read = verbs.read(at, 8);
            Box::pin(async { read.await.map(|_| ()) })
        }
        Verb::CompareSwap => {
            let swap = verbs.compare_swap(at, 0, 0);
            Box::pin(async { swap.await.map(|_| ()) })
        }
        Verb::FetchAdd => {
            let add = verbs.fetch_add(at, 1);
            Box::pin(async { add.await.map(|_| ()) })
        }
    }
}

impl Flood {
    fn thread(self, start: Start) -> Thread {
        Box::pin(async move {
            let region = start.regions[usize::from(self.device)];
            let at = region.at(if self.one_word { 0 } else { start.number as u64 * 64 });
            let mut pending = VecDeque::new();
            loop {
                while pending.len() < self.depth {
                    pending.push_back(post(&start.verbs, self.verb, at));
                }
                if let Some(first) = pending.pop_front() {
                    first.await?;
                }
            }
        })
    }

    fn rack(self, costs: Option<Costs>) -> Rack<impl FnMut(Start) -> Thread> {
        let config = RackConfig {
            machines: 1,
            threads: self.queue_pairs,
            costs,
            // Only the server limits the rate.
            link: Link { rate_bps: 0, delay: Nanos(100), ..Link::default() },
            ..RackConfig::default()
        };
        let memory = vec![ServerMemory::zeroed(HOST_VA, LEN), ServerMemory::zeroed(DEVICE_VA, LEN)];
        Rack::new(config, memory, forward(1), |_| move |start| self.thread(start))
    }

    fn rate_mops(self) -> f64 {
        let costs = Costs::connect_x5(Some(DEVICE_VA..DEVICE_VA + LEN as u64));
        let mut rack = self.rack(Some(costs));
        let span = Nanos::from_micros(400);
        let outcome = rack.measure(Nanos::from_millis(1), span).unwrap();
        outcome.tally.requests() as f64 * 1000.0 / span.0 as f64
    }
}

#[track_caller]
fn expect(flood: Flood, mops: f64) {
    let measured = flood.rate_mops();
    assert!((measured / mops - 1.0).abs() < 0.02, "{flood:?}: {measured:.2} M/s, expected {mops}");
}

#[test]
fn requests_to_one_word_run_at_the_measured_rate() {
    for (device, cas, write) in [(false, 2.93, 18.26), (true, 8.97, 22.14)] {
        let flood = Flood { verb: Verb::CompareSwap, device, one_word: true, queue_pairs: 32, depth: 1 };
        expect(flood, cas);
        expect(Flood { depth: 8, ..flood }, cas);
        expect(Flood { verb: Verb::FetchAdd, ..flood }, cas);
        expect(Flood { verb: Verb::Write, queue_pairs: 1, depth: 100, ..flood }, write);
        // A second connection does not raise the rate.
        expect(Flood { verb: Verb::Write, depth: 4, ..flood }, write);
    }
}

#[test]
fn requests_to_many_words_run_at_the_measured_rates() {
    let one = Flood { verb: Verb::FetchAdd, device: false, one_word: false, queue_pairs: 1, depth: 16 };
    expect(one, 2.7);
    expect(Flood { queue_pairs: 10, ..one }, 27.0);
    let many = Flood { queue_pairs: 360, depth: 2, ..one };
    expect(many, 55.0);
    expect(Flood { verb: Verb::Write, ..many }, 103.6);
    expect(Flood { verb: Verb::Read, ..many }, 84.5);
}

#[test]
fn without_costs_the_server_takes_no_time() {
    let flood = Flood { verb: Verb::CompareSwap, device: false, one_word: true, queue_pairs: 32, depth: 1 };
    let mut rack = flood.rack(None);
    let outcome = rack.measure(Nanos::from_millis(1), Nanos::from_micros(400)).unwrap();
    // A request and its response pass four links of 100 ns.
    assert_eq!(outcome.tally.requests(), 32 * 1000);
    assert_eq!(rack.server().executed(), None);
}
