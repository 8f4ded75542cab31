//! Servers that lost their memory, or lack more than the log holds: snapshots, and readmission as a member.
//!
//! A restarted server has lost its promises and its log. It grants permission, is brought up to date and
//! receives every entry, but counts neither towards a majority nor towards a decision. The leader makes it a
//! member after f other members have confirmed that they still follow: everything that the server may have
//! promised before, or that was decided with its vote, is then known to this leader (docs/p4ce.md has the
//! argument).

use super::Server;
use crate::follower::{Request, Stage};
use crate::log::{ADMITTED, CHECK, SNAPSHOT, SnapshotHead};
use crate::resources::LOG_VA;
use rnic::{Data, Rnic, Sge};

/// Length of the part of a snapshot that one WRITE carries, in bytes: a message has a 32-bit length. Tests
/// use a small value so that a short snapshot takes several WRITEs.
const PART: usize = if cfg!(test) { 300 } else { 1 << 30 };

/// Why a snapshot is not accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SnapshotError {
    /// The snapshot exceeds the snapshot area of the log
    #[error("the snapshot exceeds the limit; raise the layout's max_snapshot")]
    TooLong,
    /// No server needs a snapshot, or no longer
    #[error("no server needs a snapshot; check wants_snapshot first")]
    NotNeeded,
    /// Entries were decided since that the application has not applied
    #[error("the snapshot lacks decided entries; apply those of poll_decided first")]
    TooOld,
}

impl Server {
    /// Returns whether another server needs a snapshot of the application: its state after everything that
    /// [`poll_decided`](Self::poll_decided) has returned, and nothing else.
    pub fn wants_snapshot(&self) -> bool {
        self.leadership.as_ref().is_some_and(|leadership| {
            leadership.followers.iter().any(|follower| follower.stage == Stage::Wanting)
                // The previous snapshot has been sent to all servers that needed it.
                && !leadership.followers.iter().any(|follower| follower.loading)
        })
    }

    /// Provides a snapshot of the application, and sends it to the servers that need one.
    ///
    /// # Errors
    /// If no server needs it, or if it is too long or too old.
    pub fn provide_snapshot(
        &mut self,
        nic: &mut Rnic,
        state: &[u8],
        now: switch::Nanos,
    ) -> Result<(), SnapshotError> {
        if !self.wants_snapshot() {
            return Err(SnapshotError::NotNeeded);
        }
        let (layout, polled) = (self.config.layout, self.polled);
        let (Some(resources), Some(leadership)) = (&self.resources, &mut self.leadership) else {
            return Err(SnapshotError::NotNeeded);
        };
        let memory = nic.bytes_mut(resources.log.0);
        let lacks = |next: u64| (polled..next).any(|at| layout.entry(at, memory).is_none());
        if polled < self.valid_from || leadership.next.is_none_or(lacks) {
            return Err(SnapshotError::TooOld);
        }
        let area = memory[layout.log_len()..].get_mut(..state.len()).ok_or(SnapshotError::TooLong)?;
        area.copy_from_slice(state);
        leadership.snapshot = Some((polled, state.len()));
        for server in self.peers() {
            if self.follower(server, |follower| follower.stage == Stage::Wanting) == Some(true) {
                self.bring_up_to_date(nic, server, now);
            }
        }
        Ok(())
    }

    /// Writes the snapshot to a server, then the head that makes it valid.
    pub(super) fn send_snapshot(&mut self, nic: &mut Rnic, server: u8, next: u64, len: usize) {
        let Some(mr) = self.resources.as_ref().map(|resources| resources.log.1) else { return };
        self.follower(server, |follower| (follower.loading, follower.applied) = (true, next));
        let at = self.config.layout.log_len();
        let mut done = 0;
        while done < len {
            let part = (len - done).min(PART);
            let written = if self.config.has_bug(crate::config::Bug::SnapshotHole) { part / 2 } else { part };
            let data = Data::Memory(Sge { mr, va: LOG_VA + (at + done) as u64, len: written as u32 });
            self.write(nic, server, Request::Commit, at + done, data);
            done += part;
        }
        let head = Data::Inline(SnapshotHead { next, len }.to_bytes().to_vec());
        self.write(nic, server, Request::Snapshot, SNAPSHOT, head);
    }

    /// Posts a WRITE to every follower at every heartbeat, to confirm that its permission is still valid.
    /// Without it, the restart of a server that is written to only through the switch, or not at all, could
    /// go unnoticed.
    pub(super) fn admit(&mut self, nic: &mut Rnic) {
        let Some(leadership) = &mut self.leadership else { return };
        leadership.checks += 1;
        let round = leadership.checks;
        for server in self.peers() {
            let posts = self.follower(server, |follower| {
                if follower.stage == Stage::Active && !follower.is_member && follower.confirmed_from == 0 {
                    follower.confirmed_from = round;
                }
                // One WRITE at a time
                let posts =
                    follower.stage == Stage::Active && follower.check_completed >= follower.check_posted;
                if posts {
                    follower.check_posted = round;
                }
                posts
            });
            if posts == Some(true) {
                let word = Data::Inline(round.to_le_bytes().to_vec());
                self.write(nic, server, Request::Check(round), CHECK, word);
            }
        }
        self.admit_checked(nic);
    }

    /// Makes those servers members for which enough other members have confirmed.
    pub(super) fn admit_checked(&mut self, nic: &mut Rnic) {
        let Some(leadership) = &self.leadership else { return };
        let confirmed = |since: u64| {
            leadership
                .followers
                .iter()
                .filter(|other| other.counts() && other.check_completed >= since)
                .count()
        };
        let quorum = self.config.quorum();
        let due: Vec<(u8, u64)> = (0..)
            .zip(&leadership.followers)
            .filter(|(_, one)| one.stage == Stage::Active && !one.is_member && !one.admitted)
            .filter(|(_, one)| one.confirmed_from > 0 && confirmed(one.confirmed_from) >= quorum)
            .map(|(server, one)| (server, one.incarnation))
            .collect();
        for (server, incarnation) in due {
            // The WRITE follows all entries that exist.
            let word = Data::Inline(incarnation.to_le_bytes().to_vec());
            let posted = self.write(nic, server, Request::Admission, ADMITTED, word);
            self.follower(server, |follower| follower.admitted = posted);
        }
    }
}
