//! Second end of a link, where the neighbouring switch has a standby.

use super::expected::Expected;
use super::outgoing::Announcement;
use super::{LatestTime, Representative};
use crate::beacon::Template;
use crate::bug::Bug;
use crate::config::{Config, Link};
use crate::half::{DOWN, UP};
use onepipe::OnePipe;
use onepipe::ends::{self, Ends};
use rocev2::{Opcode, Qpn};
use switch::{Nanos, Output, PortId, Verdict};

/// State of a link whose other end is two nodes.
#[derive(Debug)]
pub(super) struct Standby {
    /// Beacon to the second node
    pub(super) beacon: Template,
    /// Expected beacon of each node
    pub(super) expected: [Expected; 2],
    /// Time of the second node's clock, as the one of the first node in the link's state
    pub(super) last_beacon: LatestTime,
    ends: Ends,
}

impl Standby {
    /// Returns the state of all links with two ends, by link; an empty list if there is none.
    pub(super) fn all(config: &Config) -> Box<[Option<Box<Self>>]> {
        if config.links.iter().all(|link| link.standby.is_none()) {
            return Box::default();
        }
        let links = (config.first_qp.get()..).zip(&config.links);
        links.map(|(qpn, link)| Self::of(config, link, Qpn::new(qpn))).collect()
    }

    /// Returns the state of a link whose local queue pair is `qpn`, if it has a second end.
    fn of(config: &Config, link: &Link, qpn: Qpn) -> Option<Box<Self>> {
        let link = link.to_standby()?;
        let bug = match config.bug {
            Some(Bug::RemovedIgnored) => Some(ends::Bug::RemovedIgnored),
            Some(Bug::MinimumOfEnds) => Some(ends::Bug::MinimumOfEnds),
            Some(Bug::MaximumOfRemoved) => Some(ends::Bug::MaximumOfRemoved),
            _ => None,
        };
        Some(Box::new(Self {
            beacon: Template::new(config, &link, qpn),
            expected: [Expected::new(link.port), Expected::new(link.port)],
            last_beacon: LatestTime::default(),
            ends: Ends::new(config.dead_after_intervals.into(), bug),
        }))
    }
}

impl Representative {
    /// Returns the state of a link's second end, if it has one.
    #[inline]
    fn standby(&mut self, link: usize) -> Option<&mut Standby> {
        self.standbys.get_mut(link)?.as_deref_mut()
    }

    /// Returns the time of the last beacon of an end.
    #[inline]
    pub(super) fn last_beacon_of(&mut self, link: usize, end: u8) -> &mut LatestTime {
        if end > 0
            && let Some(Some(standby)) = self.standbys.get_mut(link)
        {
            return &mut standby.last_beacon;
        }
        &mut self.links[link].last_beacon
    }

    /// Handles an expected beacon of one of two ends.
    #[cold]
    #[inline(never)]
    pub(super) fn on_expected_of_two(
        &mut self,
        link: usize,
        frame: &[u8],
        port: PortId,
        now: Nanos,
    ) -> Option<Verdict> {
        let both = &self.standbys.get(link)?.as_ref()?.expected;
        let read = |(end, expected): (u8, &'_ Expected)| {
            let template = expected.template(port)?;
            Some((end, template.read(frame)?, template.layout(), expected.source()))
        };
        let (end, header, layout, source) = (0..).zip(both).find_map(read)?;
        self.forward.count_admitted(frame, layout, port, now);
        Some(self.on_beacon_of_two((link, end), header, layout.opcode(), source, now))
    }

    /// Handles a beacon of one of two ends, which has passed all checks. Links with one end never call this.
    #[cold]
    #[inline(never)]
    pub(super) fn on_beacon_of_two(
        &mut self,
        (link, end): (usize, u8),
        header: &OnePipe,
        opcode: Opcode,
        source: Option<Qpn>,
        now: Nanos,
    ) -> Verdict {
        self.take_beacon((link, end), header, opcode, source, now, |function| {
            let word = function.of_both_ends(link, end, *header)?;
            Some((word.barrier(), word.nothing_follows()))
        })
    }

    /// Returns a beacon of one end of a link as if the link had one end, or `None` if it is stale.
    fn of_both_ends(&mut self, link: usize, end: u8, header: OnePipe) -> Option<OnePipe> {
        let (ticks, half) = (self.ticks, self.links[link].input.0);
        let Some(standby) = self.standby(link) else { return Some(header) };
        let word = standby.ends.on_beacon(end.into(), header, ticks).ok()?;
        let doubts = standby.ends.is_doubted();
        self.halves[half].doubts |= doubts;
        Some(word)
    }

    /// Sends beacons to the second ends of links. Returns their number. One that cannot be sent is lost, as in the
    /// network.
    #[cold]
    pub(super) fn send_to_standbys<O: Output>(
        &mut self,
        announcements: &[Announcement; 2],
        out: &mut O,
    ) -> u64 {
        let muting = self.commit.as_deref().filter(|commit| commit.mutes_any());
        let mut sent = 0;
        for (number, standby) in self.standbys.iter_mut().enumerate() {
            let (Some(standby), link) = (standby, &self.links[number]) else { continue };
            let announcement = &announcements[link.output];
            if !announcement.is_due_for(link) {
                continue;
            }
            match standby.beacon.send(announcement.contents_for(number, 1, muting), out) {
                Ok(()) => sent += 1,
                Err(_) => self.counters.unsent.add(1),
            }
        }
        sent
    }

    /// Checks whether the halves still doubt any of their links.
    #[cold]
    pub(super) fn check_doubts(&mut self) {
        for half in [UP, DOWN] {
            let mut links = self.links.iter().zip(&self.standbys).filter(|(link, _)| link.input.0 == half);
            self.halves[half].doubts =
                links.any(|(_, standby)| standby.as_ref().is_some_and(|standby| standby.ends.is_doubted()));
        }
    }

    /// Returns whether timestamps below a half's barrier may follow, as another representative of this switch
    /// may know. The upper half is an input of the lower one.
    pub(super) fn has_removed(&self, half: usize) -> bool {
        let doubts = |half: usize| self.halves[half].doubts && !self.config.has_bug(Bug::DoubtIgnored);
        let others = |half: usize| self.workers.as_ref().is_some_and(|workers| workers.misses(half));
        let has = |half: usize| self.halves[half].barrier.misses() || doubts(half) || others(half);
        has(half) || half == DOWN && has(UP) && !self.config.has_bug(Bug::LowerHalfTrusts)
    }
}
