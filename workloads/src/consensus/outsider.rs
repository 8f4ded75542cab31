//! A host outside of the group that requests all kinds of connections: as an observing server, as a candidate
//! in any term, as the switch on behalf of any server, and groups of the switch. Its requests are well-formed
//! and come from its own address.

use core::net::IpAddr;
use p4ce::wire::{GroupRequest, MemberRequest, Replicas};
use rnic::cm::Event as CmEvent;
use rnic::{ConnParam, QpInit, Rnic};
use rnic::{Cq, Pd};
use sim::App;
use switch::{Nanos, Rng};

/// The application of the host.
#[derive(Debug)]
pub struct Outsider {
    rng: Rng,
    servers: Vec<IpAddr>,
    /// Port of the servers
    port: u16,
    /// Address and port of the switch
    switch: (IpAddr, u16),
    /// Identifier of the servers' group, which is no secret
    group: u64,
    /// Time between two requests
    every: Nanos,
    next_request_at: Nanos,
    resources: Option<(Pd, Cq)>,
    /// Number of requests sent
    pub requests: u64,
    /// Number of connections that servers have accepted
    pub granted: u64,
}

impl Outsider {
    pub(super) fn new(
        seed: u64,
        servers: Vec<IpAddr>,
        switch: (IpAddr, u16),
        group: u64,
        every: Nanos,
    ) -> Self {
        Self {
            rng: Rng::stream(seed, 0x7374),
            servers,
            port: super::proposer::SERVERS_PORT,
            switch,
            group,
            every,
            next_request_at: Nanos::ZERO,
            resources: None,
            requests: 0,
            granted: 0,
        }
    }

    /// Returns the encoded hello of a server other than `target`.
    fn hello(&mut self, target: u64) -> Vec<u8> {
        let others: Vec<u64> = (0..self.servers.len() as u64).filter(|server| *server != target).collect();
        let server = others[self.rng.below(others.len() as u64) as usize];
        let write = self.rng.below(4) > 0;
        let round = match self.rng.below(4) {
            0 => u64::MAX >> 24,
            1 => (1 << 39) - 1,
            2 => self.rng.below(1 << 20),
            _ => self.rng.below(50),
        };
        let term = round << 24 | self.rng.below(1 << 16) << 8 | server;
        let mut hello = b"C4".to_vec();
        hello.extend([2, if write { 2 } else { 1 }, server as u8, 0, 0, 0]);
        hello.extend(term.to_be_bytes());
        hello.extend(self.group.to_be_bytes());
        hello
    }

    /// Changes the version in one of eight requests' private data; it follows two bytes of magic.
    fn change_version_sometimes(&mut self, mut private_data: Vec<u8>) -> Vec<u8> {
        if let Some(version) = private_data.get_mut(2).filter(|_| self.rng.below(8) == 0) {
            *version = version.wrapping_add(self.rng.between(1, 255) as u8);
        }
        private_data
    }

    fn send_request(&mut self, nic: &mut Rnic, now: Nanos) {
        let Some((pd, cq)) = self.resources else { return };
        let target = self.rng.below(self.servers.len() as u64);
        let mut to = (self.servers[target as usize], self.port);
        let private_data = match self.rng.below(8) {
            0 => {
                let leader = self.servers[self.rng.below(self.servers.len() as u64) as usize];
                MemberRequest { leader, port: 1 }.to_bytes()
            }
            1 => {
                to = self.switch;
                let request = GroupRequest {
                    replicas: Replicas::Listed(self.servers.clone()),
                    quorum: 1,
                    port: self.port,
                    outvote: false,
                };
                request.to_bytes().unwrap_or_default()
            }
            _ => self.hello(target),
        };
        let private_data = self.change_version_sometimes(private_data);
        let param = ConnParam { private_data, ..ConnParam::default() };
        if nic.connect_new(QpInit::rc(pd, cq, 1, 1), to, param, now).is_ok() {
            self.requests += 1;
        }
    }
}

impl App for Outsider {
    fn start(&mut self, nic: &mut Rnic, now: Nanos) {
        self.resources = nic.create_cq(1024).ok().map(|cq| (nic.alloc_pd(), cq));
        self.next_request_at = now + self.every;
    }

    fn run(&mut self, nic: &mut Rnic, now: Nanos) {
        while let Some(event) = nic.poll_cm_event() {
            self.granted += u64::from(matches!(event, CmEvent::Replied { .. }));
        }
        if now >= self.next_request_at {
            self.next_request_at = now + self.every;
            self.send_request(nic, now);
        }
    }

    fn next_timer(&self) -> Option<Nanos> {
        Some(self.next_request_at)
    }
}
