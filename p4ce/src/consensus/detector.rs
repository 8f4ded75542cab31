//! Who is alive (paper III, after Mu): every server counts up a word of its memory, the others read it by RDMA READ. One
//! whose word grows gains trust, one whose word stands still loses it, faster than it would be gained by chance; between
//! two bounds its reputation stays as it is, so that one late READ changes no leader.

/// Trust that a server can have at most, and has at first
const MOST: u8 = 15;
/// What a word that has grown is worth
const GAIN: u8 = 3;
/// A server below this is dead, ...
const DEAD_BELOW: u8 = 2;
/// ... until it has at least this again
const ALIVE_FROM: u8 = 6;

/// What is thought of one server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Reputation {
    /// The word that was read last
    heartbeat: Option<u64>,
    trust: u8,
    alive: bool,
}

/// What one server thinks of all.
#[derive(Clone, Debug)]
pub struct Detector {
    own: u8,
    servers: Vec<Reputation>,
}

impl Detector {
    /// Server `own` of `servers`; all are thought to be alive.
    pub fn new(own: u8, servers: usize) -> Self {
        let unknown = Reputation { heartbeat: None, trust: MOST, alive: true };
        Self { own, servers: vec![unknown; servers] }
    }

    /// A server's word was read, or it could not be read.
    pub fn on_read(&mut self, server: u8, heartbeat: Option<u64>) {
        let Some(reputation) = self.servers.get_mut(usize::from(server)) else { return };
        let grown = heartbeat.is_some() && heartbeat != reputation.heartbeat;
        reputation.heartbeat = heartbeat.or(reputation.heartbeat);
        reputation.trust =
            if grown { (reputation.trust + GAIN).min(MOST) } else { reputation.trust.saturating_sub(1) };
        if reputation.trust < DEAD_BELOW {
            reputation.alive = false;
        } else if reputation.trust >= ALIVE_FROM {
            reputation.alive = true;
        }
    }

    /// Whether a server is thought to be alive; oneself is.
    pub fn is_alive(&self, server: u8) -> bool {
        server == self.own || self.servers.get(usize::from(server)).is_some_and(|server| server.alive)
    }

    /// Who should lead: the live server with the lowest number, of those that can
    pub fn leader(&self, can: impl Fn(u8) -> bool) -> u8 {
        (0..self.own).find(|server| self.is_alive(*server) && can(*server)).unwrap_or(self.own)
    }

    /// READs without a sign of life after which a trusted server is thought to be dead
    pub const PATIENCE: u32 = (MOST - DEAD_BELOW + 1) as u32;
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
        // The first READ showed a word that was new.
        detector.on_read(0, None);
        assert_eq!((detector.leader(|_| true), detector.is_alive(0)), (1, false));
        for _ in 0..Detector::PATIENCE {
            detector.on_read(1, None);
        }
        assert_eq!(detector.leader(|_| true), 2, "oneself");
        assert_eq!(Detector::new(2, 4).leader(|server| server != 0), 1);
        assert!(detector.is_alive(2) && detector.is_alive(3));
    }

    #[test]
    fn a_server_without_a_sign_of_life_is_dead_after_the_last_read_of_patience() {
        let mut detector = Detector::new(1, 2);
        detector.on_read(0, Some(1));
        for read in 1..Detector::PATIENCE {
            detector.on_read(0, None);
            assert!(detector.is_alive(0), "after {read} READs");
        }
        detector.on_read(0, None);
        assert!(!detector.is_alive(0));
        // And stays it when there are more.
        detector.on_read(0, None);
        assert!(!detector.is_alive(0));
    }

    #[test]
    fn one_that_comes_back_has_to_earn_it() {
        let mut detector = Detector::new(1, 2);
        for _ in 0..20 {
            detector.on_read(0, None);
        }
        assert!(!detector.is_alive(0));
        detector.on_read(0, Some(1));
        assert!(!detector.is_alive(0), "once is chance");
        detector.on_read(0, Some(2));
        assert!(detector.is_alive(0));
        // Every second READ is late: it stays what it is.
        for beat in 3..100 {
            detector.on_read(0, Some(beat / 2));
            assert!(detector.is_alive(0));
        }
    }
}
