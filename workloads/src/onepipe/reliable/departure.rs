//! Processes that leave in order, and start again as new ones.

use super::host::Host;
use switch::Nanos;

/// Number of beacons with which a process announces that nothing follows
const FINAL_BEACONS: u64 = 8;

/// Stage of a process's departure.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Departure {
    /// It stays.
    #[default]
    None,
    /// It waits until the controller agrees, and its application has received all.
    Agreeing,
    /// It announces that nothing follows, until it has sent this number of beacons.
    Announcing(u64),
    /// It has ended.
    Ended,
}

impl Departure {
    /// Returns whether its process sends no more.
    pub(super) fn has_begun(self) -> bool {
        self != Self::None
    }
}

impl Host {
    /// Starts to leave.
    pub(super) fn leave(&mut self, now: Nanos) {
        if !self.departure.has_begun() {
            self.departure = Departure::Agreeing;
            self.member.leave(&mut self.process, now);
            self.after(now);
        }
    }

    /// Takes the departure to its next stage.
    pub(super) fn advance_departure(&mut self) {
        let sent = self.process.counters().beacons_sent.get();
        match self.departure {
            Departure::Agreeing if self.member.may_end(&self.process) => {
                // One that has failed meanwhile does not recover, and one that was not admitted has sent nothing.
                let left = self.member.incarnation();
                self.life().left = left;
                self.process.leave();
                self.departure = Departure::Announcing(sent + FINAL_BEACONS);
            }
            Departure::Announcing(until) if sent >= until => self.departure = Departure::Ended,
            _ => {}
        }
    }
}
