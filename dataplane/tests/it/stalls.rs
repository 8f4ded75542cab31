//! Frames that a port does not accept when they are offered. The test replaces the send function of the
//! port's driver.

use crate::common::{config, port};
use core::ffi::c_void;
use dataplane::config::Device;
use dataplane::counters::WorkerCounters;
use dataplane::{ControlHandler, ControlOutput, Live, Mbuf, Outcome, Runtime, Stop};
use dpdk_sys::rte_mbuf;
use std::sync::{Arc, Mutex};
use switch::{Function, Nanos, Output, PortId, Verdict};
use understudy_tests::alone;

const OUT: PortId = PortId(0);
/// Length of each frame, in bytes
const LEN: usize = 64;

/// A driver that accepts a chosen number of frames.
struct Driver {
    /// Returns the number of offered frames that the port accepts
    accepts: fn(&Driver) -> usize,
    /// Number of frames in each offer, and the worker's iterations until then
    offers: Vec<(usize, u64)>,
    /// First byte of each accepted frame
    accepted: Vec<u8>,
    /// The worker's counters; set at the control plane's first tick
    counters: Option<Arc<WorkerCounters>>,
}

static DRIVER: Mutex<Option<Driver>> = Mutex::new(None);

/// Calls `by` with the driver.
fn driver<R>(by: impl FnOnce(&mut Driver) -> R) -> R {
    by(DRIVER.lock().unwrap().as_mut().expect("the driver exists as long as the runtime"))
}

unsafe extern "C" fn send(_queue: *mut c_void, frames: *mut *mut rte_mbuf, len: u16) -> u16 {
    driver(|driver| {
        let turns = driver.counters.as_ref().map_or(0, |counters| counters.turns.get());
        driver.offers.push((usize::from(len), turns));
        let accepted = (driver.accepts)(driver).min(usize::from(len));
        for at in 0..accepted {
            // SAFETY: `frames` has `len` frames, and the driver owns those that it accepts.
            unsafe {
                let frame = *frames.add(at);
                let bytes = (*frame).buf_addr.cast::<u8>().add(usize::from((*frame).data_off));
                driver.accepted.push(*bytes);
                dpdk_sys::rte_pktmbuf_free(frame);
            }
        }
        accepted as u16
    })
}

/// Sends this number of frames in its first iteration. The first byte of each is its number.
struct Sends(u8);

impl Function for Sends {
    type Command = ();
    type Event = ();

    fn receives_from(&self, _: PortId) -> bool {
        false
    }

    fn on_frame<O: Output>(&mut self, _: &mut O::Frame, _: PortId, _: Nanos, _: &mut O) -> Verdict {
        unreachable!("no frame is received")
    }

    fn on_timer<O: Output>(&mut self, _: Nanos, out: &mut O) {
        for number in 0..core::mem::take(&mut self.0) {
            let frame = out.make_from(&[number; LEN]).expect("a buffer");
            out.send(frame, OUT).expect("room");
        }
    }

    fn next_timer(&self) -> Option<Nanos> {
        (self.0 > 0).then_some(Nanos::ZERO)
    }

    fn on_command(&mut self, (): (), _: Nanos) {}

    fn poll_event(&mut self) -> Option<()> {
        None
    }
}

/// Ends the run when a condition on the driver is met.
struct Until(fn(&Driver) -> bool);

impl ControlHandler<Sends> for Until {
    fn on_event(&mut self, _: usize, (): (), _: &mut ControlOutput<'_, Sends>) {}

    fn on_punt(&mut self, _: usize, _: Mbuf, _: PortId, _: &mut ControlOutput<'_, Sends>) {}

    fn on_tick(&mut self, live: &Live<'_>, _: &mut ControlOutput<'_, Sends>) -> bool {
        driver(|driver| {
            driver.counters.get_or_insert_with(|| Arc::clone(&live.workers()[0]));
            !(self.0)(driver)
        })
    }
}

/// Sends `count` frames through a driver that accepts `takes` of each offer. Returns the driver, and the
/// result of the run.
fn run(count: u8, accepts: fn(&Driver) -> usize, until: fn(&Driver) -> bool) -> (Driver, Outcome) {
    let mut runtime = Runtime::start(config(vec![port("out", Device::Ring)], 1)).unwrap();
    *DRIVER.lock().unwrap() =
        Some(Driver { accepts, offers: Vec::new(), accepted: Vec::new(), counters: None });
    // SAFETY: the port is started, and no worker runs yet.
    unsafe { dpdk_sys::rte_eth_fp_ops[0].tx_pkt_burst = Some(send) };
    let outcome = runtime.run(vec![Sends(count)], &mut Until(until), &Stop::new());
    (DRIVER.lock().unwrap().take().expect("only this function takes it"), outcome)
}

/// Asserts that all frames were sent, in order, and counted.
fn assert_all_left(count: u8, driver: &Driver, outcome: &Outcome) {
    assert_eq!(driver.accepted, (0..count).collect::<Vec<_>>());
    let worker = &outcome.workers[0];
    assert_eq!(worker.ports[0].tx.get(), (u64::from(count), u64::from(count) * LEN as u64));
    assert!(worker.drops.iter().all(|count| count.get() == 0));
}

#[test]
fn waiting_frames_are_offered_after_each_burst_and_each_iteration() {
    alone!();
    // No frame of the first four offers, then a few frames at a time
    let accepts = |driver: &Driver| if driver.offers.len() <= 4 { 0 } else { 7 };
    let (driver, outcome) = run(100, accepts, |driver| driver.accepted.len() == 100);
    let offers: Vec<_> = driver.offers.iter().map(|(len, _)| *len).collect();
    let expected: Vec<_> = [32, 64, 96, 100].into_iter().chain((0..=100).rev().step_by(7)).collect();
    assert_eq!(offers, expected);
    assert_all_left(100, &driver, &outcome);
}

#[test]
fn ending_worker_offers_waiting_frames_once_more() {
    alone!();
    // In the first offer that is not the only one since the worker's last iteration, which then was its last
    let accepts = |driver: &Driver| match driver.offers[..] {
        [.., (_, before), (all, now)] if driver.counters.is_some() && before == now => all,
        _ => 0,
    };
    let (driver, outcome) = run(20, accepts, |driver| !driver.offers.is_empty());
    assert_all_left(20, &driver, &outcome);
}
