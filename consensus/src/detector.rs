//! Failure detector (P4CE, section III, after Mu's pull-score): every server increments a word in its memory,
//! and the other servers read it by RDMA READ. A server whose word grows gains trust. A server whose word
//! does not change loses trust. The state changes at two different thresholds, so that one late READ does not
//! change the leader.

/// Maximum and initial trust of a server
const MAX_TRUST: u8 = 15;
/// Trust gained when the word has grown; each other READ costs 1
const GAIN: u8 = 3;
/// Trust below which a server is considered dead
const DEAD_BELOW: u8 = 2;
/// Trust from which on a dead server is considered alive again
const ALIVE_FROM: u8 = 6;

/// State of the detector for one server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Reputation {
    /// Word read last
    heartbeat: Option<u64>,
    trust: u8,
    alive: bool,
}

/// State of the detector for all servers.
#[derive(Clone, Debug)]
pub struct Detector {
    own: u8,
    servers: Vec<Reputation>,
}

impl Detector {
    /// Creates the detector of server `own` among `servers`; all count as alive.
    pub fn new(own: u8, servers: usize) -> Self {
        let unknown = Reputation { heartbeat: None, trust: MAX_TRUST, alive: true };
        Self { own, servers: vec![unknown; servers] }
    }

    /// Records the word read from a server, or `None` if it could not be read.
    pub fn on_read(&mut self, server: u8, heartbeat: Option<u64>) {
        let Some(reputation) = self.servers.get_mut(usize::from(server)) else { return };
        let grown = heartbeat.is_some() && heartbeat != reputation.heartbeat;
        reputation.heartbeat = heartbeat.or(reputation.heartbeat);
        reputation.trust =
            if grown { (reputation.trust + GAIN).min(MAX_TRUST) } else { reputation.trust.saturating_sub(1) };
        if reputation.trust < DEAD_BELOW {
            reputation.alive = false;
        } else if reputation.trust >= ALIVE_FROM {
            reputation.alive = true;
        }
    }

    /// Returns whether a server is considered alive; the server itself always is.
    pub fn is_alive(&self, server: u8) -> bool {
        server == self.own || self.servers.get(usize::from(server)).is_some_and(|server| server.alive)
    }

    /// Returns the server that should lead: the live one with the lowest number, among those for which `can`
    /// returns true.
    pub fn leader(&self, can: impl Fn(u8) -> bool) -> u8 {
        (0..self.own).find(|server| self.is_alive(*server) && can(*server)).unwrap_or(self.own)
    }

    /// READs without progress after which a server with maximum trust is considered dead
    pub const PATIENCE: u32 = (MAX_TRUST - DEAD_BELOW + 1) as u32;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_live_server_with_the_lowest_number_leads() {
        let mut detector = Detector::new(2, 4);
        assert_eq!(detector.leader(|_| true), 0);
        for beat in 0..Detector::PATIENCE {
            assert_eq!(detector.leader(|_| true), 0, "after {beat} READs");
            detector.on_read(0, Some(7 * u64::from(beat / 20)));
            detector.on_read(1, Some(beat.into()));
        }
        // The first READ counted as progress.
        detector.on_read(0, None);
        assert_eq!((detector.leader(|_| true), detector.is_alive(0)), (1, false));
        for _ in 0..Detector::PATIENCE {
            detector.on_read(1, None);
        }
        assert_eq!(detector.leader(|_| true), 2, "the server itself");
        assert_eq!(Detector::new(2, 4).leader(|server| server != 0), 1);
        assert!(detector.is_alive(2) && detector.is_alive(3));
    }

    #[test]
    fn a_server_without_progress_is_dead_after_patience_reads() {
        let mut detector = Detector::new(1, 2);
        detector.on_read(0, Some(1));
        for read in 1..Detector::PATIENCE {
            detector.on_read(0, None);
            assert!(detector.is_alive(0), "after {read} READs");
        }
        detector.on_read(0, None);
        assert!(!detector.is_alive(0));
        // It stays dead after further READs.
        detector.on_read(0, None);
        assert!(!detector.is_alive(0));
    }

    #[test]
    fn a_returning_server_is_alive_after_two_heartbeats() {
        let mut detector = Detector::new(1, 2);
        for _ in 0..20 {
            detector.on_read(0, None);
        }
        assert!(!detector.is_alive(0));
        detector.on_read(0, Some(1));
        assert!(!detector.is_alive(0), "one heartbeat is not enough");
        detector.on_read(0, Some(2));
        assert!(detector.is_alive(0));
        // Every second READ is late: the state does not change.
        for beat in 3..100 {
            detector.on_read(0, Some(beat / 2));
            assert!(detector.is_alive(0));
        }
    }
}
