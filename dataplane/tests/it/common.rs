//! Configurations and captures for tests on virtual devices. Each test runs in a process of its own
//! (nextest), because a process has only one EAL.

use dataplane::config::{Config, Device, Eal, Idle, Memory, OnLinkLoss, Port, Workers};
use dataplane::{ControlHandler, ControlOutput, Live};
use std::path::Path;
use switch::Function;

pub(crate) use understudy_tests::captures::path as capture;

pub(crate) fn port(name: &str, device: Device) -> Port {
    Port {
        name: name.into(),
        device,
        mtu: 9000,
        rx_queues: 0,
        descriptors: 256,
        buffers: 2047,
        share_from: None,
    }
}

pub(crate) fn play(file: &Path, to: Option<&Path>) -> Device {
    Device::Pcap { rx: vec![file.into()], tx: to.map(Into::into), infinite: false }
}

/// Returns a configuration without privileges, huge pages or files, with this number of workers.
pub(crate) fn config(ports: Vec<Port>, workers: usize) -> Config {
    Config {
        eal: Eal {
            memory: Memory::Ordinary { mb: 128 },
            file_prefix: None,
            telemetry: false,
            extra: Vec::new(),
        },
        ports,
        workers: Workers {
            cpus: vec![None; workers],
            idle: Idle::Spin,
            handoff_ring: 1024,
            control_queue: 256,
        },
        on_link_loss: OnLinkLoss::Wait,
    }
}

/// Ends the run when no frame was received during this many ticks.
pub(crate) struct UntilIdle<C> {
    pub inner: C,
    last: u64,
    idle_ticks: u32,
}

impl<C> UntilIdle<C> {
    const TICKS: u32 = 100;

    pub(crate) fn new(inner: C) -> Self {
        Self { inner, last: 0, idle_ticks: 0 }
    }
}

impl<F: Function, C: ControlHandler<F>> ControlHandler<F> for UntilIdle<C> {
    fn on_event(&mut self, worker: usize, event: F::Event, out: &mut ControlOutput<'_, F>) {
        self.inner.on_event(worker, event, out);
    }

    fn on_punt(
        &mut self,
        worker: usize,
        frame: dataplane::Mbuf,
        port: switch::PortId,
        out: &mut ControlOutput<'_, F>,
    ) {
        self.inner.on_punt(worker, frame, port, out);
    }

    fn on_tick(&mut self, live: &Live<'_>, out: &mut ControlOutput<'_, F>) -> bool {
        let received = live.workers().iter().map(|worker| worker.received()).sum();
        self.idle_ticks = if received == self.last { self.idle_ticks + 1 } else { 0 };
        self.last = received;
        self.inner.on_tick(live, out) && self.idle_ticks < Self::TICKS
    }
}

/// Ends the run after this many ticks, for ports that never become idle.
pub(crate) struct Ticks(pub(crate) u32);

impl<F: Function> ControlHandler<F> for Ticks {
    fn on_event(&mut self, _worker: usize, _event: F::Event, _out: &mut ControlOutput<'_, F>) {}

    fn on_punt(&mut self, _: usize, _: dataplane::Mbuf, _: switch::PortId, _: &mut ControlOutput<'_, F>) {}

    fn on_tick(&mut self, _live: &Live<'_>, _out: &mut ControlOutput<'_, F>) -> bool {
        self.0 = self.0.saturating_sub(1);
        self.0 > 0
    }
}
