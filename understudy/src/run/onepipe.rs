//! 1Pipe's switch: its data plane on a worker; on this thread its clock, its neighbours' questions, an eye on its links, and its
//! part of the report.

mod told;

pub(super) use told::OnePipeReport;

use super::report::Report;
use super::tunnel::Front;
use super::{Until, by_chance, forward, now};
use crate::config::OnePipeConfig;
use crate::observe::Told;
use dataplane::{Control, ControlOutput, Live, Mbuf, Runtime, Stop};
use representative::{Command, Event, Gauges, Lagging, LinkId, LinkState, Representative, View, Watch};
use rnic::{Endpoint, Interface, cm};
use rocev2::ethernet::MacAddr;
use std::io::Write as _;
use std::sync::Arc;
use std::time::{Duration, Instant};
use switch::{Frame as _, Function, Nanos, PortId};

/// How often the worker is told what time it is, and asked how its links are. Between two times it goes by the time stamp
/// counter, which is off by microseconds after so long at most
const LOOK_EVERY: Duration = Duration::from_millis(10);
/// Lines a second about links at most; counters have the rest
const LINES_A_SECOND: u32 = 20;

/// The representative of a configuration, on a switch whose first port has this MAC address.
fn switch(config: &OnePipeConfig, port_mac: MacAddr) -> representative::Config {
    let mac = config.mac.unwrap_or(port_mac);
    representative::Config { mac, clock: config.clock.now(), ..config.switch.clone() }
}

/// The control plane.
struct Plane<'a> {
    config: &'a OnePipeConfig,
    began: Instant,
    looked: Option<Instant>,
    /// Who is asked for the switch's addresses, and who refuses to connect
    endpoint: Endpoint,
    frame: Vec<u8>,
    gauges: Arc<Gauges>,
    /// As the links were when they were last looked at
    view: Option<View>,
    watch: Option<Watch>,
    /// Links that held a barrier and lagged
    lagging: u64,
    /// Lines said in the second that began then
    said: (Instant, u32),
    live: Option<Lines<'a>>,
}

/// A line of JSON every now and then
struct Lines<'a> {
    every: Duration,
    next: Instant,
    counters: &'a representative::Counters,
}

impl Plane<'_> {
    fn nanos(&self) -> Nanos {
        Nanos(self.began.elapsed().as_nanos() as u64)
    }

    /// What a link is called: its place in the configuration and its name
    fn name(&self, LinkId(number): LinkId) -> String {
        format!("Link {number} ({})", self.config.names[usize::from(number)])
    }

    /// Says something, unless too much was said already.
    fn say(&mut self, what: impl FnOnce() -> String) {
        let now = now();
        if now.duration_since(self.said.0) >= Duration::from_secs(1) {
            self.said = (now, 0);
        }
        self.said.1 += 1;
        match self.said.1 {
            ..=LINES_A_SECOND => eprintln!("{}", what()),
            line if line == LINES_A_SECOND + 1 => {
                eprintln!("More happens to links than can be said; the report counts it.");
            }
            _ => {}
        }
    }

    /// Looks at the links as they were shown, and asks for them to be shown again.
    fn look<F: Function<Command = Command>>(&mut self, out: &mut ControlOutput<'_, F>) {
        self.view = self.gauges.read().or(self.view.take());
        let now = self.nanos();
        let lagging: Vec<Lagging> = match (&mut self.watch, &self.view) {
            (Some(watch), Some(view)) => watch.look(view, now).collect(),
            _ => Vec::new(),
        };
        for Lagging { link, state, lag } in lagging {
            self.lagging += 1;
            let name = self.name(link);
            self.say(|| match state {
                LinkState::Waiting => {
                    format!("{name} has told no barrier for {} us, and everybody waits for its first.", lag.0 / 1_000)
                }
                _ => format!(
                    "{name} holds the barrier, {} us behind the others: is its clock synchronised, and its path free?",
                    lag.0 / 1_000
                ),
            });
        }
        // What the queue has no room for is told the next time.
        _ = out.command(0, Command::Show);
        _ = out.command(0, Command::Clock(self.config.clock.now()));
    }

    fn print_line(&mut self) {
        let now = now();
        let Some(lines) = self.live.as_mut().filter(|lines| lines.next <= now) else { return };
        lines.next = now + lines.every;
        let report = told::told(self.config, lines.counters, self.view.as_ref(), self.lagging);
        let seconds = self.began.elapsed().as_secs_f64();
        // A reader that has gone away does not end the switch.
        _ = writeln!(std::io::stdout(), "{}", serde_json::json!({ "seconds": seconds, "onepipe": report }));
    }
}

impl<F: Function<Command = Command, Event = Event>> Control<F> for Plane<'_> {
    fn on_event(&mut self, _worker: usize, event: Event, _out: &mut ControlOutput<'_, F>) {
        match event {
            Event::Dead(link, _) => {
                let name = self.name(link);
                let silent =
                    self.config.switch.beacon_interval.0 * u64::from(self.config.switch.dead_after_intervals);
                self.say(|| {
                    format!("{name} is dead: silent for {} us. The others go on without it.", silent / 1_000)
                });
            }
            Event::Left(link, _) => {
                let name = self.name(link);
                self.say(|| format!("{name} has left: its neighbour says that nothing comes on it."));
            }
            Event::Joined(link) => {
                let name = self.name(link);
                self.say(|| format!("{name} takes part again."));
            }
        }
    }

    fn on_punt(&mut self, _worker: usize, frame: Mbuf, port: PortId, out: &mut ControlOutput<'_, F>) {
        let now = self.nanos();
        self.endpoint.on_frame(frame.bytes(), now);
        while self.endpoint.poll_transmit(now, &mut self.frame) {
            // What finds no room is lost, as on a wire: whoever waits for it asks again.
            if let Ok(frame) = out.make(&self.frame) {
                drop(out.send(0, frame, port));
            }
        }
    }

    fn on_tick(&mut self, _live: &Live<'_>, out: &mut ControlOutput<'_, F>) -> bool {
        let now = now();
        if self.looked.is_none_or(|looked| now.duration_since(looked) >= LOOK_EVERY) {
            self.looked = Some(now);
            let nanos = self.nanos();
            if self.endpoint.next_timer().is_some_and(|at| at <= nanos) {
                self.endpoint.on_timer(nanos);
            }
            self.look(out);
            self.print_line();
        }
        true
    }
}

pub(super) fn run(
    runtime: &mut Runtime,
    config: &OnePipeConfig,
    front: &Front<'_>,
    live: Option<Duration>,
    until: Until,
    stop: &Stop,
) -> Result<Report, miette::Report> {
    let switch = switch(config, front.port_mac);
    let interface = Interface {
        mac: switch.mac,
        addresses: config.addresses.clone(),
        gateways: Vec::new(),
        vlan: None,
        neighbours: Vec::new(),
    };
    let counted_qps = switch.forward.counted_qps;
    let function = Representative::new(switch)
        .map_err(|error| miette::miette!("[onepipe] cannot be: {error}"))?
        .salted(by_chance());
    let (counters, bridged) = (function.counters(), function.forward_counters());
    let began = now();
    let mut plane = Plane {
        config,
        began,
        looked: None,
        endpoint: Endpoint::new(interface, cm::Config::default(), by_chance()),
        frame: Vec::new(),
        gauges: function.gauges(),
        view: None,
        watch: config.lag_alarm.map(Watch::new),
        lagging: 0,
        said: (began, 0),
        live: live.map(|every| Lines { every, next: began + every, counters: &counters }),
    };
    let tell = |plane: &Plane<'_>| {
        let of_bridge = Told::forwarded(core::slice::from_ref(&bridged));
        told::told(config, &counters, plane.view.as_ref(), plane.lagging).observed(of_bridge)
    };
    let (outcome, seconds, tunnel) = front.run_until(runtime, vec![function], &mut plane, tell, until, stop);
    let report = forward::report(runtime, &outcome, &[bridged], counted_qps, seconds);
    let view = plane.gauges.read().or(plane.view);
    let onepipe = told::told(config, &counters, view.as_ref(), plane.lagging);
    Ok(Report { onepipe: Some(onepipe), tunnel, ..report })
}
