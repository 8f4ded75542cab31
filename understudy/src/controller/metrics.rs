//! Metrics of a controller: for its closing report, `understudy top` and Prometheus.

use super::operator::{member_state, rep_state};
use crate::observe::{FunctionMetrics, Row, Table, Values};
use ::controller::record::MemberState;
use ::controller::server::Snapshot;
use management::{Counts, Reason};
use switch::metrics::Metrics as _;

switch::metrics! {
    /// State and counts of a controller.
    #[derive(Debug)]
    pub(super) struct Metrics {
        pub(super) snapshot: Snapshot,
        pub(super) connections: Counts,
    }
    also {
        /// Term in which the controller leads, 0 if it does not
        Gauge term [number as _ / term] = |metrics| metrics.snapshot.term.into(),
        /// Members of the reliable service
        Gauge members [processes as _ / members] = |metrics| metrics.count(MemberState::Member),
        /// Processes that join
        Gauge joining [processes as _ / joining] = |metrics| metrics.count(MemberState::Joining),
        /// Processes that have failed, and have not joined again
        Gauge failed_now [processes as _ / failed_now] = |metrics| metrics.count(MemberState::Failed),
        /// Representatives that have an incarnation
        Gauge representatives [switches as _ / representatives] = |metrics| metrics.snapshot.reps.len() as u64,
        /// Nodes that are connected
        Gauge connected [nodes as _ / connected] = |metrics| metrics.snapshot.connected,
        /// Cases that are not closed
        Gauge open_cases [cases as _ / open_cases] = |metrics| metrics.snapshot.open_cases,
        /// Whether a failure is suspected and not decided: 1 or 0
        Gauge suspicion [number as _ / suspicion] = |metrics| metrics.snapshot.suspects.into(),
        /// Links whose keepers hear nothing
        Gauge silent_links [links as _ / silent_links] = |metrics| metrics.snapshot.silent_links,
        /// Processes that failed
        Counter failed [processes] = |metrics| metrics.snapshot.machine.failed,
        /// Processes that left without a failure
        Counter left [processes] = |metrics| metrics.snapshot.machine.left,
        /// Suspicions that ended because all links spoke again
        Counter thawed [suspicions] = |metrics| metrics.snapshot.machine.thawed,
        /// Frames carried between processes of which one does not hear the other
        Counter forwarded [frames] = |metrics| metrics.snapshot.machine.forwarded,
        /// Frames that were not carried, because too many were under way
        Counter forward_refused [frames] = |metrics| metrics.snapshot.machine.forward_refused,
        /// Messages of other incarnations, and answers to nothing
        Counter ignored [messages] = |metrics| metrics.snapshot.machine.ignored,
        /// Writes to the store
        Counter writes [writes] = |metrics| metrics.snapshot.counts.writes,
        /// Errors of the store
        Counter store_errors [writes] = |metrics| metrics.snapshot.counts.store_errors,
        /// Alarms
        Counter alarms [alarms] = |metrics| metrics.snapshot.counts.alarms,
        /// Messages that are none of the protocol, or of another version
        Counter undecodable [messages] = |metrics| metrics.snapshot.counts.undecodable,
        /// Messages in the name of another node
        Counter other_name [messages] = |metrics| metrics.snapshot.counts.other_name,
        /// Messages that were too long to be sent
        Counter too_long [messages] = |metrics| metrics.snapshot.counts.too_long,
        /// Requests of operators
        Counter requests [requests] = |metrics| metrics.snapshot.counts.requests,
        /// Requests of operators that were refused
        Counter requests_refused [requests] = |metrics| metrics.snapshot.counts.requests_refused,
        /// Connections that were accepted
        Counter accepted [connections] = |metrics| metrics.connections.accepted,
        /// Connections whose handshake has succeeded
        Counter opened [connections] = |metrics| metrics.connections.opened,
        /// Messages received
        Counter received [messages] = |metrics| metrics.connections.received,
        /// Messages sent
        Counter sent [messages] = |metrics| metrics.connections.sent,
    }
}

switch::metrics! {
    /// A process.
    #[derive(Debug)]
    struct Member of member by [process] with [state, connected] {
        number: u32,
    }
    also {
        /// Incarnation of a process
        Gauge incarnation [number as _ / incarnation] = |member| member.number.into(),
    }
}

switch::metrics! {
    /// The representative of a switch.
    #[derive(Debug)]
    struct Representative of representative by [switch] with [state, connected] {
        number: u32,
    }
    also {
        /// Incarnation of a representative
        Gauge incarnation [number as _ / incarnation] = |representative| representative.number.into(),
    }
}

switch::metrics! {
    /// Connections that ended for a reason.
    #[derive(Debug)]
    struct Ended of ended by [reason] {
        /// Connections of nodes and operators that ended or were refused
        connections: u64 [connections as _ / connections],
    }
}

/// All metrics
#[cfg(test)]
pub(crate) const GROUPS: [switch::metrics::Group; 4] =
    [Metrics::GROUP, Member::GROUP, Representative::GROUP, Ended::GROUP];

impl Metrics {
    fn count(&self, state: MemberState) -> u64 {
        self.snapshot.processes.iter().filter(|member| member.state == state).count() as u64
    }

    /// Returns how many connections ended, by reason, where any did.
    pub(super) fn ended(&self) -> impl Iterator<Item = (&'static str, u64)> {
        Reason::NAMES.into_iter().zip(self.connections.ended).filter(|(_, count)| *count > 0)
    }

    /// Returns what `understudy top` and Prometheus show.
    pub(super) fn observed(&self) -> FunctionMetrics {
        let connected = |is: bool| if is { "yes" } else { "no" };
        let members = self.snapshot.processes.iter().map(|member| {
            let cells =
                [member.id.to_string().as_str(), member_state(member.state), connected(member.connected)]
                    .map(str::to_owned);
            Row::of(cells, &Values::of(&Member { number: member.incarnation.0 }))
        });
        let reps = self.snapshot.reps.iter().map(|rep| {
            let standby = if rep.seat == 0 { "" } else { " standby" };
            let name = format!("{}{standby}", rep.switch);
            let cells = [name.as_str(), rep_state(rep.state), connected(rep.connected)].map(str::to_owned);
            Row::of(cells, &Values::of(&Representative { number: rep.incarnation.0 }))
        });
        let ended =
            self.ended().map(|(reason, connections)| Row::of([reason], &Values::of(&Ended { connections })));
        FunctionMetrics::default()
            .values(&Values::of(self))
            .table(Table::of(&Member::GROUP, members))
            .table(Table::of(&Representative::GROUP, reps))
            .table(Table::of(&Ended::GROUP, ended))
    }
}
