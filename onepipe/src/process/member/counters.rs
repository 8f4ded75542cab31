//! Counters of a member.

use switch::counters::Counter;
use switch::{metrics, reasons};

metrics! {
    /// Counters of a process's membership, which the thread that runs it increments and any thread reads.
    #[derive(Debug, Default)]
    pub struct Counters {
        /// Messages of controllers accepted
        pub taken: Counter [messages],
        /// Messages for controllers
        pub sent: Counter [messages],
        /// Times at which the process has recovered after it had failed
        pub recoveries: Counter [times],
        refused: [Counter; Refused::ALL.len()],
    }
}

impl Counters {
    /// Returns how often a message was refused for this reason.
    pub fn refused(&self, why: Refused) -> u64 {
        self.refused[why as usize].get()
    }

    #[cold]
    pub(super) fn refuse(&self, why: Refused) {
        self.refused[why as usize].add(1);
    }
}

reasons! {
    /// Reason why a message of a controller was refused. Each reason is covered by a test.
    #[derive(thiserror::Error)]
    pub enum Refused counted as "refused_" [messages] {
        /// An earlier term than one seen: another controller leads.
        #[error("an earlier term of the controller")]
        OldTerm = "old_term",
        /// For another incarnation of this process
        #[error("for another incarnation of this process")]
        OtherIncarnation = "other_incarnation",
        /// An incarnation for an earlier process of the same number
        #[error("for an earlier process of this number")]
        OtherBoot = "other_boot",
        /// An earlier state than the present one
        #[error("an earlier state than the present one")]
        OldVersion = "old_version",
        /// A kind of message, or an answer, that was not expected
        #[error("not expected")]
        Unexpected = "unexpected",
        /// A member, or a notice, that the process refuses
        #[error("a member that this process refuses")]
        Member = "member",
        /// A page of a reply whose earlier pages are missing, or of a reply to an earlier request
        #[error("a page of another reply")]
        Page = "page",
    }
}
