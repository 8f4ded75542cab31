//! Changes of a queue pair by its owner: state, attributes and receive requests.

use super::{Modify, Qp, QpContext, QpError, State, Transport};
use crate::queue::{CompletionQueue, Cq, RecvRequest};

impl QpContext<'_> {
    /// Changes the state or the attributes. Fails if the state does not allow it, or the path is not local.
    pub(crate) fn modify(&mut self, modify: Modify) -> Result<(), QpError> {
        self.check_modify(&modify)?;
        let qp = &mut *self.qp;
        match modify {
            Modify::Init { access, qkey } => (qp.access, qp.qkey, qp.state) = (access, qkey, State::Init),
            Modify::Access(access) => qp.access = access,
            Modify::Rtr(ready) => {
                (qp.state, qp.event_reported) = (State::Rtr, false);
                (qp.path, qp.path_headers) = (Some(ready.path), None);
                (qp.peer_qpn, qp.mtu) = (ready.dest_qp, ready.mtu);
                qp.resp.make_ready(&ready);
            }
            Modify::Rts(ready) => {
                qp.req.make_ready(&ready, qp.state == State::Rtr);
                qp.state = State::Rts;
            }
            Modify::Resume => qp.state = State::Rts,
            Modify::Sqd => (qp.state, qp.event_reported) = (State::Sqd, false),
            Modify::Error => self.enter_error(),
            // The round-robin queue and the timer heap may still hold its slot; both check it when its turn
            // comes.
            Modify::Reset => *qp = Qp::new(qp.qpn, qp.init),
        }
        Ok(())
    }

    fn check_modify(&self, modify: &Modify) -> Result<(), QpError> {
        let state = self.qp.state;
        let allowed = match modify {
            Modify::Init { .. } => state.leads_to(State::Init),
            Modify::Rtr(_) => state.leads_to(State::Rtr),
            Modify::Rts(_) => state.leads_to(State::Rts),
            Modify::Resume => state == State::Sqd,
            Modify::Sqd => state.leads_to(State::Sqd),
            Modify::Error => state.leads_to(State::Error),
            Modify::Reset => state.leads_to(State::Reset),
            Modify::Access(_) => !matches!(state, State::Reset | State::Error),
        };
        if !allowed {
            return Err(QpError::State(state));
        }
        match modify {
            Modify::Rtr(ready)
                if self.qp.init.transport != Transport::Ud
                    && !self.config.interface.is_local(&ready.path) =>
            {
                Err(QpError::Path)
            }
            _ => Ok(()),
        }
    }

    /// Queues a receive request. Returns whether an acknowledgement has to announce it.
    pub(crate) fn post_recv(&mut self, request: RecvRequest) -> Result<bool, QpError> {
        let qp = &mut *self.qp;
        if qp.init.srq.is_some() {
            return Err(QpError::Queue);
        }
        if qp.state == State::Reset {
            return Err(QpError::State(qp.state));
        }
        qp.recv.push(request).map_err(|switch::Full| QpError::Full)?;
        Ok(self.config.credits && qp.state.receives() && qp.resp.announce_credits())
    }

    /// Moves the queue pair to the error state if a completion queue lost its completions (IB 11.6.3.2).
    /// Returns whether it did.
    pub(crate) fn fail_overrun(&mut self) -> bool {
        let has_overrun = |cq: Cq| self.cqs.get(cq.0).is_some_and(CompletionQueue::has_overrun);
        let lost = has_overrun(self.qp.init.send_cq) || has_overrun(self.qp.init.recv_cq);
        let fails = lost && !matches!(self.qp.state, State::Error | State::Reset);
        if fails {
            self.enter_error();
            self.report_error();
        }
        fails
    }
}
