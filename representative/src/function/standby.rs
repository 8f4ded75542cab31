//! Second end of a link, where the neighbouring switch has a standby.

use super::Representative;
use super::expected::Expected;
use crate::beacon::Template;
use crate::bug::Bug;
use crate::config::{Config, Link};
use crate::half::{DOWN, UP};
use onepipe::OnePipe;
use onepipe::ends::{self, Ends, Stale};
use rocev2::Qpn;

/// State of a link whose other end is two nodes.
#[derive(Debug)]
pub(super) struct Standby {
    /// Beacon to the second node
    pub(super) beacon: Template,
    /// Expected beacon of the second node
    pub(super) expected: Expected,
    ends: Ends,
}

impl Standby {
    /// Returns the state of a link whose local queue pair is `qpn`, if it has a second end.
    pub(super) fn of(config: &Config, link: &Link, qpn: Qpn) -> Option<Box<Self>> {
        let link = link.to_standby()?;
        let bug = if config.has_bug(Bug::RemovedIgnored) {
            Some(ends::Bug::RemovedIgnored)
        } else {
            config.has_bug(Bug::MinimumOfEnds).then_some(ends::Bug::MinimumOfEnds)
        };
        Some(Box::new(Self {
            beacon: Template::new(config, &link, qpn),
            expected: Expected::new(link.port),
            ends: Ends::new(config.dead_after_intervals.into(), bug),
        }))
    }
}

impl Representative {
    /// Returns a beacon of one end of a link as if the link had one end.
    #[inline]
    pub(super) fn of_both_ends(&mut self, link: usize, end: u8, header: OnePipe) -> Result<OnePipe, Stale> {
        let link = &mut self.links[link];
        let Some(standby) = &mut link.standby else { return Ok(header) };
        let word = standby.ends.on_beacon(end.into(), header, self.ticks)?;
        self.halves[link.input.0].doubts |= standby.ends.is_doubted();
        Ok(word)
    }

    /// Checks whether a half still doubts any of its links.
    #[cold]
    pub(super) fn check_doubts(&mut self, half: usize) {
        let mut links = self.links.iter().filter(|link| link.input.0 == half);
        let is_doubted =
            |link: &super::LinkEnds| link.standby.as_ref().is_some_and(|standby| standby.ends.is_doubted());
        self.halves[half].doubts = links.any(is_doubted);
    }

    /// Returns whether timestamps below a half's barrier may follow, as another representative of this switch
    /// may know. The upper half is an input of the lower one.
    pub(super) fn has_removed(&self, half: usize) -> bool {
        let has = |half: usize| self.halves[half].barrier.misses() || self.halves[half].doubts;
        has(half) || half == DOWN && has(UP)
    }
}
