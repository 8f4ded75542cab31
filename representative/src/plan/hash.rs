//! Hash of a topology, by which nodes and controllers of different topologies refuse each other.

use super::topology::{Host, Link, Switch, Topology};
use core::net::IpAddr;

/// Version of the form that is hashed
const FORM: &[u8] = b"1pipe topology 1";

/// Canonical form: fixed-size fields, and texts behind their lengths.
struct Form(blake3::Hasher);

impl Form {
    fn number(&mut self, number: u64) {
        self.0.update(&number.to_be_bytes());
    }

    fn optional(&mut self, number: Option<u64>) {
        self.number(number.is_some().into());
        self.number(number.unwrap_or(0));
    }

    fn text(&mut self, text: &str) {
        self.number(text.len() as u64);
        self.0.update(text.as_bytes());
    }

    fn address(&mut self, address: IpAddr) {
        let address = match address {
            IpAddr::V4(address) => address.to_ipv6_mapped(),
            IpAddr::V6(address) => address,
        };
        self.0.update(&address.octets());
    }

    fn switch(&mut self, switch: &Switch) {
        self.text(&switch.name);
        self.optional(switch.layer.map(u64::from));
    }

    fn host(&mut self, host: &Host) {
        self.text(&host.name);
        self.optional(host.id.map(|id| id.0.into()));
        self.address(host.address);
        self.number(host.messages.into());
        self.number(host.switches.len() as u64);
        host.switches.iter().for_each(|&switch| self.number(switch as u64));
    }

    fn link(&mut self, link: &Link) {
        link.ends.iter().for_each(|&end| self.number(end as u64));
    }
}

impl Topology {
    /// Returns a hash of what the routing graph and its numbers depend on: switches, hosts with their processes'
    /// numbers and addresses, and links, in their order. Never 0.
    pub fn hash(&self) -> u64 {
        let mut form = Form(blake3::Hasher::new());
        form.0.update(FORM);
        form.number(self.switches.len() as u64);
        self.switches.iter().for_each(|switch| form.switch(switch));
        form.number(self.hosts.len() as u64);
        self.hosts.iter().for_each(|host| form.host(host));
        form.number(self.links.len() as u64);
        self.links.iter().for_each(|link| form.link(link));
        let hash = form.0.finalize();
        u64::from_be_bytes(*hash.as_bytes().first_chunk().expect("32 bytes")).max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use onepipe::ProcessId;
    use rocev2::ethernet::MacAddr;

    fn topology() -> Topology {
        let switch = |name: &str| Switch { name: name.into(), ..Switch::default() };
        let host = |name: &str, id| Host {
            name: name.into(),
            id: Some(ProcessId(id)),
            address: [10, 0, 0, id as u8].into(),
            prefix: 24,
            mac: MacAddr([2, 0, 0, 0, 0, id as u8]),
            switches: vec![0],
            messages: true,
            represents: true,
        };
        Topology {
            switches: vec![switch("a"), switch("b")],
            hosts: vec![host("h1", 1), host("h2", 2)],
            links: vec![Link { ends: [0, 1], cost: 1 }],
            ..Topology::default()
        }
    }

    #[test]
    fn the_hash_depends_on_what_the_graph_depends_on_and_on_nothing_else() {
        let own = topology().hash();
        let changes: [fn(&mut Topology); 10] = [
            |topology| topology.switches[0].name = "c".into(),
            |topology| topology.switches[0].layer = Some(0),
            |topology| topology.hosts[0].name = "h".into(),
            |topology| topology.hosts[0].id = Some(ProcessId(3)),
            |topology| topology.hosts[0].id = None,
            |topology| topology.hosts[0].address = [10, 0, 0, 9].into(),
            |topology| topology.hosts[0].messages = false,
            |topology| topology.hosts[0].switches = vec![0, 1],
            |topology| topology.hosts.swap(0, 1),
            |topology| topology.links[0].ends = [1, 0],
        ];
        let mut hashes = vec![own];
        for change in changes {
            let mut other = topology();
            change(&mut other);
            assert!(!hashes.contains(&other.hash()), "{other:?}");
            hashes.push(other.hash());
        }
        let mut alike = topology();
        alike.settings.dead_after_intervals += 1;
        alike.hosts[0].represents = false;
        alike.links[0].cost = 2;
        assert_eq!(alike.hash(), own);
    }

    #[test]
    fn names_do_not_run_into_each_other() {
        let (mut one, mut other) = (topology(), topology());
        (one.switches[0].name, one.switches[1].name) = ("ab".into(), "c".into());
        (other.switches[0].name, other.switches[1].name) = ("a".into(), "bc".into());
        assert_ne!(one.hash(), other.hash());
    }
}
