//! What a process hears of commit barriers: those of its switch never go back, also if a representative restarts
//! with empty registers. Of two representatives, one may state less than the other one has.

use crate::onepipe::host::unwrap;
use onepipe::control::Source;
use onepipe::{OnePipe, OnePipeOpcode};
use rocev2::{Packet, Qpn};
use switch::Nanos;

/// Commit barriers that a process has heard.
#[derive(Clone, Debug, Default)]
pub(super) struct Tap {
    /// Queue pairs from which the process takes commit barriers, each with what the process knew of them when it was
    /// given this one
    sources: Vec<(Qpn, u64)>,
    /// Highest commit barrier that was heard, unwrapped
    heard: u64,
}

impl Tap {
    /// The process takes commit barriers from these sources from now on, and has delivered up to `barrier`, unwrapped.
    pub(super) fn listen_to(&mut self, sources: &[Source], barrier: u64) {
        let known = self.heard.min(barrier);
        let floor = |qpn| self.sources.iter().find(|(of, _)| *of == qpn).map_or(known, |&(_, floor)| floor);
        self.sources = sources.iter().map(|source| (source.qpn, floor(source.qpn))).collect();
    }

    /// Looks at a frame before the process does.
    ///
    /// # Errors
    /// A commit barrier from one incarnation of the switch's representative is below what the process has heard
    /// from an earlier one, and has delivered up to.
    pub(super) fn on_frame(&mut self, frame: &[u8], now: Nanos) -> Result<(), String> {
        if self.sources.is_empty() {
            return Ok(());
        }
        let Some(packet) = Packet::parse(frame) else { return Ok(()) };
        let header = OnePipe::of(&packet).filter(|header| header.opcode() == OnePipeOpcode::BEACON);
        let qpn = packet.deth().map(rocev2::deth::Deth::src_qp);
        let source = self.sources.iter().find(|(of, _)| qpn == Some(*of));
        let (Some(commit), Some((qpn, floor))) = (header.and_then(OnePipe::commit), source) else {
            return Ok(());
        };
        let commit = unwrap(commit, now);
        if commit < *floor {
            return Err(format!("its switch commits {commit} from {qpn}, and {floor} before"));
        }
        self.heard = self.heard.max(commit);
        Ok(())
    }
}
