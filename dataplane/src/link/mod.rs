//! Links of ports: their states, and what the control thread does about changes.

mod interface;
mod netlink;
mod removal;

pub(crate) use interface::{Interface, KernelCounts, XdpSockets};
pub(crate) use netlink::Requests;
pub(crate) use removal::{is_requested, watch as watch_removal};

use crate::port::Port;
use crate::time::{Clock, cycles};
use netlink::{Event, Events};
use switch::{Nanos, PortId};

/// Interval at which links and counters are read that send no events, or whose events were lost
const INTERVAL: Nanos = Nanos::from_millis(100);

/// State of a port's link.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Link {
    /// Frames can be sent and received
    Up,
    /// The interface was set down
    #[default]
    Down,
    /// The interface is set up, but its other end is not, or there is no cable
    NoCarrier,
    /// The interface was removed, or moved to another network namespace; the port cannot use it again, even
    /// if there is one with the same name. Or the system requests the device, to remove it or to give it to
    /// another driver, and waits for it: the run ends
    Gone,
    /// The port waits for the process at its other end
    NoPeer,
}

impl Link {
    /// Returns whether frames can be sent and received.
    pub fn is_up(self) -> bool {
        self == Self::Up
    }

    /// Returns the state in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Up => "up",
            Self::Down => "down",
            Self::NoCarrier => "no_carrier",
            Self::Gone => "gone",
            Self::NoPeer => "no_peer",
        }
    }
}

/// A change of a port's link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LinkChange {
    /// The link has this state now
    Now(Link),
    /// There is an interface with the name of the one that is gone, which the port cannot use
    Recreated,
}

/// Interface of the monitor to the rest of the runtime.
pub(crate) trait LinkHooks {
    /// Returns the number of workers.
    fn workers(&self) -> usize;
    /// Tells a worker to send, or not to send, through a port. Returns `false` if its queue is full.
    fn send_through(&mut self, worker: usize, port: PortId, up: bool) -> bool;
    /// Reports that a port's link was up and is not up any more.
    fn on_link_loss(&mut self, port: usize);
    /// Reports a change of a port's link.
    fn on_link_change(&mut self, port: usize, change: &LinkChange);
}

/// Monitor of the links of all ports but those of memif, which have channels of their own.
pub(crate) struct LinkMonitor {
    /// `None` if the kernel refuses the socket; then changes are noticed after [`INTERVAL`]
    events: Option<Events>,
    ports: Vec<Option<Monitored>>,
    clock: Clock,
    next_read: Nanos,
}

/// A monitored port.
struct Monitored {
    link: Link,
    /// Whether the link has been up
    was_up: bool,
    /// Number of workers that know the current state
    notified: usize,
    recreated: bool,
}

impl LinkMonitor {
    /// Begins to monitor. Workers send through all ports until a command stops them.
    pub(crate) fn new(ports: &[Port], is_memif: impl Fn(usize) -> bool, workers: usize) -> Self {
        // Events before the first reading are not lost: the socket exists before that.
        let events = ports.iter().any(|port| port.interface().is_some()).then(Events::open);
        let monitored = |index| {
            (!is_memif(index)).then_some(Monitored {
                link: Link::Up,
                was_up: false,
                notified: workers,
                recreated: false,
            })
        };
        Self {
            events: events.and_then(Result::ok),
            ports: (0..ports.len()).map(monitored).collect(),
            clock: Clock::start(),
            next_read: Nanos(0),
        }
    }

    /// Handles changes since the last call, and tells the workers.
    pub(crate) fn tick(&mut self, ports: &[Port], hooks: &mut impl LinkHooks) {
        let mut events_lost = false;
        for event in self.events.as_ref().map(Events::poll).unwrap_or_default() {
            events_lost |= matches!(event, Event::Lost);
            self.on_event(ports, &event, hooks);
        }
        let now = self.clock.nanos(cycles());
        if events_lost || now >= self.next_read {
            self.next_read = now + INTERVAL;
            self.read(ports, hooks);
        }
        for (index, port) in self.ports.iter_mut().enumerate() {
            let Some(port) = port else { continue };
            // The link state that hardware reports does not keep frames from it: its driver knows better.
            let Some(interface) = ports[index].interface() else { continue };
            if port.notified == 0 && port.link.is_up() {
                interface.clear_errors();
            }
            while port.notified < hooks.workers()
                && hooks.send_through(port.notified, PortId(index as u16), port.link.is_up())
            {
                port.notified += 1;
            }
        }
    }

    /// Returns a port whose device the system requests, which ends the run.
    pub(crate) fn requested(&self, ports: &[Port]) -> Option<PortId> {
        let mut monitored = self.ports.iter().zip(ports);
        let is_requested = |(monitored, port): (&Option<Monitored>, &Port)| {
            port.interface().is_none()
                && monitored.as_ref().is_some_and(|monitored| monitored.link == Link::Gone)
        };
        monitored.position(is_requested).map(|index| PortId(index as u16))
    }

    fn on_event(&mut self, ports: &[Port], event: &Event, hooks: &mut impl LinkHooks) {
        for (index, port) in ports.iter().enumerate() {
            let Some(interface) = port.interface() else { continue };
            match event {
                Event::Changed(found) if interface.link() == Link::Gone => {
                    if found.name == interface.name() {
                        self.on_recreated(index, hooks);
                    }
                }
                Event::Changed(found) if found.index == interface.index() => {
                    interface.apply(found);
                }
                Event::Removed(removed) if *removed == interface.index() => {
                    interface.set_link(Link::Gone);
                }
                Event::Changed(_) | Event::Removed(_) | Event::Lost => continue,
            }
            self.update(index, interface.link(), hooks);
        }
    }

    /// Reads the links of all ports, and the counters that would overflow.
    fn read(&mut self, ports: &[Port], hooks: &mut impl LinkHooks) {
        for (index, port) in ports.iter().enumerate() {
            if let Some(interface) = port.interface() {
                interface.refresh_link();
                interface.counts();
            }
            self.update(index, port.link(), hooks);
        }
    }

    fn update(&mut self, index: usize, link: Link, hooks: &mut impl LinkHooks) {
        let Some(port) = &mut self.ports[index] else { return };
        if port.link != link {
            if port.link.is_up() != link.is_up() {
                port.notified = 0;
            }
            // A link that is not up at the start may still come up.
            if port.was_up && port.link.is_up() {
                hooks.on_link_loss(index);
            }
            port.link = link;
            hooks.on_link_change(index, &LinkChange::Now(link));
        }
        port.was_up |= link.is_up();
    }

    fn on_recreated(&mut self, index: usize, hooks: &mut impl LinkHooks) {
        if let Some(port) = &mut self.ports[index]
            && !core::mem::replace(&mut port.recreated, true)
        {
            hooks.on_link_change(index, &LinkChange::Recreated);
        }
    }
}
