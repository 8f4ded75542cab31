//! Salt of all hash tables whose keys come from packets.

use super::Swordbox;
use switch::table::Salt;

impl Swordbox {
    /// Salts the tables of connections, hosts, cached lines, nodes, keys of data structures, and stations.
    /// The seed has to be random where hosts are not trusted (see [`Salt::new`]); simulations do not call
    /// this.
    #[must_use]
    pub fn salted(mut self, seed: u64) -> Self {
        let salt = Salt::new(seed);
        self.forward = self.forward.salted(seed);
        self.connections.set_salt(salt);
        self.lines.set_salt(salt);
        self.sources.set_salt(salt);
        self.steering.set_salt(salt);
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::steering::{ListsConfig, Structure};
    use crate::{Config, Server};
    use switch::forward;

    #[test]
    fn salting_replaces_the_fixed_salt_of_every_table() {
        let lists = Structure::Lists(ListsConfig::new(16, 64, 0..4096));
        let server = Server { structures: vec![lists], ..Server::new([10, 0, 0, 1].into()) };
        let config = Config {
            connections: 4,
            lines: 4,
            appends: 4,
            servers: vec![server],
            ..Config::new(forward::Config::bridge(2, 4))
        };
        let unsalted = |swordbox: &Swordbox| {
            let Swordbox { connections, lines, sources, steering, .. } = swordbox;
            let tables = format!("{connections:?} {lines:?} {sources:?} {steering:?}");
            tables.matches(&format!("{:?}", Salt::FIXED)).count()
        };
        let swordbox = Swordbox::new(config);
        assert_eq!(unsalted(&swordbox), 7);
        assert_eq!(unsalted(&swordbox.salted(7)), 0);
    }
}
