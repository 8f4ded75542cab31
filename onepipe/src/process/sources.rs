//! Sources of the commit barrier: the incarnations of the link's other end that the controller has named
//! (1Pipe, section 5.2).

use core::net::IpAddr;
use rocev2::Qpn;

use super::config::Config;

/// What a beacon counts for, by its source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Takes {
    Nothing,
    /// The best-effort barrier alone
    BestEffort,
    Both,
}

/// Sources whose commit barriers count. Before the controller has named any, it is the end of the link.
#[derive(Clone, Debug, Default)]
pub(super) struct Sources {
    named: Option<Box<[(IpAddr, Qpn)]>>,
    /// Number of beacons of these sources, by end of the link
    heard: [u64; 2],
}

impl Sources {
    /// Sets the sources. Returns whether they have changed.
    pub(super) fn set(&mut self, sources: Vec<(IpAddr, Qpn)>) -> bool {
        let is_new = self.named.as_deref() != Some(&sources);
        self.named = Some(sources.into());
        is_new
    }

    /// Returns whether a source at this address is named, or none has been named yet.
    pub(super) fn is_at(&self, address: IpAddr) -> bool {
        self.named.as_ref().is_none_or(|named| named.iter().any(|&(at, _)| at == address))
    }

    /// Returns the number of beacons that have come from them, by end of the link.
    pub(super) const fn heard(&self) -> [u64; 2] {
        self.heard
    }

    /// Returns what a beacon counts for, by the configured ends of the link.
    #[inline]
    pub(super) fn classify(&mut self, config: &Config, source: (IpAddr, Qpn)) -> Takes {
        match self.classify_of_end(0, (config.tor.address, config.tor.qpn), source) {
            Takes::Nothing => self.classify_of_standby(config, source),
            takes => takes,
        }
    }

    /// Returns what a beacon counts for that neither the first end nor a named source has sent.
    #[cold]
    fn classify_of_standby(&mut self, config: &Config, source: (IpAddr, Qpn)) -> Takes {
        let Some(standby) = &config.standby else { return Takes::Nothing };
        self.classify_of_end(1, (standby.address, standby.qpn), source)
    }

    /// Returns what a beacon counts for, by one end of the link.
    #[inline]
    fn classify_of_end(&mut self, number: usize, end: (IpAddr, Qpn), source: (IpAddr, Qpn)) -> Takes {
        match &self.named {
            None if source == end => Takes::Both,
            Some(named) if named.contains(&source) && source.0 == end.0 => {
                self.heard[number] += 1;
                Takes::Both
            }
            Some(_) if source == end => Takes::BestEffort,
            _ => Takes::Nothing,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{BeaconPeer, Peer, ProcessId};
    use super::*;
    use rocev2::ethernet::MacAddr;

    #[test]
    fn named_sources_alone_carry_commit_barriers() {
        let source = |n: u8, qpn| (IpAddr::from([10, 0, 0, n]), Qpn::new(qpn));
        let mut sources = Sources::default();
        let end = source(1, 2);
        let peer = |(address, qpn)| BeaconPeer { mac: MacAddr([2; 6]), address, qpn, detour: Vec::new() };
        let own = Peer { id: ProcessId(1), mac: MacAddr([2; 6]), address: end.0, qpn: end.1 };
        let mut config = Config::new(own, peer(end));
        assert_eq!(sources.classify(&config, end), Takes::Both);
        assert_eq!(sources.classify(&config, source(1, 3)), Takes::Nothing);
        assert_eq!(sources.classify(&config, source(2, 2)), Takes::Nothing);
        config.standby = Some(peer(source(2, 2)));
        assert_eq!(sources.classify(&config, source(2, 2)), Takes::Both, "the switch's standby");
        assert_eq!(sources.classify(&config, source(2, 3)), Takes::Nothing);
        assert!(sources.set(vec![source(1, 7)]) && !sources.set(vec![source(1, 7)]));
        assert_eq!((sources.classify(&config, end), sources.heard()), (Takes::BestEffort, [0; 2]));
        assert_eq!((sources.classify(&config, source(1, 7)), sources.heard()), (Takes::Both, [1, 0]));
        assert_eq!(sources.classify(&config, source(2, 7)), Takes::Nothing, "another address");
        assert!(sources.set(Vec::new()));
        assert_eq!(sources.classify(&config, end), Takes::BestEffort, "none is named");
        assert_eq!(sources.classify(&config, source(2, 2)), Takes::BestEffort);
        assert!(!sources.is_at(source(1, 0).0));
        sources.set(vec![source(1, 7), source(2, 8)]);
        assert_eq!(sources.classify(&config, source(2, 8)), Takes::Both);
        assert_eq!((sources.heard(), sources.is_at(source(2, 0).0)), ([1, 1], true));
    }
}
