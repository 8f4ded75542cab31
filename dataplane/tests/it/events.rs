//! Events of several workers, which share one queue to the control plane.

use crate::common::{config, port};
use dataplane::config::Device;
use dataplane::{ControlHandler, ControlOutput, Live, Mbuf, Runtime, Stop};
use switch::{DropReason, Function, Nanos, Output, PortId, Verdict};
use understudy_tests::alone;

/// Events of each worker
const EVENTS: u64 = 5_000;
const WORKERS: usize = 3;

/// Generates numbered events as fast as they are taken.
#[derive(Default)]
struct Numbering(u64);

impl Function for Numbering {
    type Command = ();
    type Event = u64;

    fn on_frame<O: Output>(
        &mut self,
        _frame: &mut O::Frame,
        _port: PortId,
        _now: Nanos,
        _out: &mut O,
    ) -> Verdict {
        Verdict::Drop(DropReason::SamePort)
    }

    fn on_timer<O: Output>(&mut self, _now: Nanos, _out: &mut O) {}

    fn next_timer(&self) -> Option<Nanos> {
        None
    }

    fn on_command(&mut self, (): (), _now: Nanos) {}

    fn poll_event(&mut self) -> Option<u64> {
        (self.0 < EVENTS).then(|| {
            self.0 += 1;
            self.0
        })
    }
}

/// Number of the last event of each worker
#[derive(Default)]
struct InOrder([u64; WORKERS]);

impl ControlHandler<Numbering> for &mut InOrder {
    fn on_event(&mut self, worker: usize, event: u64, _out: &mut ControlOutput<'_, Numbering>) {
        assert_eq!(event, self.0[worker] + 1, "an event of worker {worker} was lost");
        self.0[worker] = event;
    }

    fn on_punt(&mut self, _: usize, _: Mbuf, _: PortId, _: &mut ControlOutput<'_, Numbering>) {}

    fn on_tick(&mut self, _: &Live<'_>, _: &mut ControlOutput<'_, Numbering>) -> bool {
        self.0 != [EVENTS; WORKERS]
    }
}

#[test]
fn no_event_is_lost_when_the_queue_to_the_control_plane_is_short() {
    alone!();
    let source = |name: &str| port(name, Device::Null { size: 64, copy: false });
    let mut config = config(vec![source("one"), source("two"), source("three")], WORKERS);
    config.workers.control_queue = 2;
    let mut runtime = Runtime::start(config).unwrap();
    let functions = (0..WORKERS).map(|_| Numbering::default()).collect();
    let mut all = InOrder::default();
    runtime.run(functions, &mut &mut all, &Stop::new());
    assert_eq!(all.0, [EVENTS; WORKERS]);
}
