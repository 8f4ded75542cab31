//! What a process hears of commit barriers: those of its switch never go back, also if the representative restarts
//! with empty registers.

use crate::onepipe::host::unwrap;
use onepipe::control::Source;
use onepipe::{OnePipe, OnePipeOpcode};
use rocev2::{Packet, Qpn};
use switch::Nanos;

/// Commit barriers that a process has heard.
#[derive(Clone, Debug, Default)]
pub(super) struct Tap {
    /// Queue pairs from which the process takes commit barriers
    sources: Vec<Qpn>,
    /// Highest commit barrier that was heard, unwrapped
    heard: u64,
    /// What the process knew of it when it was given the present sources
    floor: u64,
}

impl Tap {
    /// The process takes commit barriers from these sources from now on, and has delivered up to `barrier`, unwrapped.
    pub(super) fn listen_to(&mut self, sources: &[Source], barrier: u64) {
        let sources: Vec<_> = sources.iter().map(|source| source.qpn).collect();
        if sources != self.sources {
            (self.sources, self.floor) = (sources, self.heard.min(barrier));
        }
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
        let source = packet.deth().map(rocev2::deth::Deth::src_qp).filter(|qpn| self.sources.contains(qpn));
        let (Some(commit), Some(source)) = (header.and_then(OnePipe::commit), source) else { return Ok(()) };
        let commit = unwrap(commit, now);
        if commit < self.floor {
            return Err(format!("its switch commits {commit} from {source}, and {} before", self.floor));
        }
        self.heard = self.heard.max(commit);
        Ok(())
    }
}
