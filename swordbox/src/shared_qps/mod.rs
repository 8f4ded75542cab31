//! All shared QPs, and what is known about their servers.

mod keys;
mod shared_qp;

pub(crate) use shared_qp::{Entry, LONGEST_WRITE, Operation, Probe, ServerRequest, SharedQp};

use crate::config::Config;
use crate::{Id, NONE};
use core::ops::{Index, IndexMut};
use keys::RefusedKeys;
use rocev2::Psn;
use std::collections::HashSet;
use switch::Nanos;
use switch::table::mix;

/// Number of retransmissions without an answer from which on a server may have restarted
pub(crate) const SUSPECT_TRIES: u32 = 2;

/// State of a server that concerns its shared QPs.
#[derive(Debug, Default)]
struct Server {
    /// Last time at which the server accepted a connection through the connection manager
    connected: Nanos,
    /// Keys refused on switch-owned QPs
    refused: RefusedKeys,
}

/// All shared QPs.
#[derive(Debug)]
pub(crate) struct SharedQps {
    all: Vec<SharedQp>,
    servers: Box<[Server]>,
    /// Operations in flight on all of them
    in_flight: usize,
    /// Switch-owned QPs with a probe that is pending or in flight
    probing: usize,
}

impl Index<Id> for SharedQps {
    type Output = SharedQp;

    #[inline]
    fn index(&self, id: Id) -> &SharedQp {
        &self.all[id as usize]
    }
}

impl IndexMut<Id> for SharedQps {
    #[inline]
    fn index_mut(&mut self, id: Id) -> &mut SharedQp {
        &mut self.all[id as usize]
    }
}

impl SharedQps {
    /// Returns the unused shared QPs of `config`'s servers.
    pub(crate) fn new(config: &Config) -> Self {
        let own: HashSet<Id> = config.switch_owned_qps().map(|(shared_qp, _)| shared_qp).collect();
        let counts = config.servers.iter().map(|server| {
            let own = server.connect.as_ref().filter(|_| config.interface.is_some());
            own.map_or(0, |own| own.qps) + server.client_owned_qps
        });
        let servers = counts.zip(0u8..).flat_map(|(count, server)| core::iter::repeat_n(server, count));
        let all = servers
            .zip(0..)
            .map(|(server, number)| SharedQp::new(server, own.contains(&number), config.in_flight));
        Self {
            all: all.collect(),
            servers: config.servers.iter().map(|_| Server::default()).collect(),
            in_flight: 0,
            probing: 0,
        }
    }

    pub(crate) fn ids(&self) -> core::ops::Range<Id> {
        0..self.all.len() as Id
    }

    /// Returns a shared QP; `None` for [`NONE`].
    #[inline]
    pub(crate) fn get(&self, id: Id) -> Option<&SharedQp> {
        self.all.get(id as usize)
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, id: Id) -> Option<&mut SharedQp> {
        self.all.get_mut(id as usize)
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut SharedQp> {
        self.all.iter_mut()
    }

    /// Returns the number of QPs in use.
    pub(crate) fn in_use(&self) -> usize {
        self.all.iter().filter(|shared_qp| shared_qp.owner != NONE).count()
    }

    /// Returns whether no operation and no probe is pending or in flight.
    pub(crate) fn is_idle(&self) -> bool {
        self.in_flight == 0 && self.probing == 0
    }

    /// Counts one more operation in flight, and makes room for its entry. The QP must not be full.
    #[inline]
    pub(crate) fn begin(&mut self, id: Id, psn: Psn, is_atomic: bool, now: Nanos) -> &mut SharedQp {
        self.in_flight += 1;
        let shared_qp = &mut self.all[id as usize];
        shared_qp.begin(psn, is_atomic, now);
        shared_qp
    }

    /// Removes the oldest operation in flight. Returns the QP's owner, the operation and its PSN.
    #[expect(clippy::inline_always, reason = "the caller uses the entry's fields at once")]
    #[inline(always)]
    pub(crate) fn complete(&mut self, id: Id) -> (Id, &Entry, Psn) {
        self.in_flight -= 1;
        let shared_qp = &mut self.all[id as usize];
        let psn = shared_qp.complete();
        (shared_qp.owner, shared_qp.entry(psn), psn)
    }

    /// Makes a QP unused. Returns its owner, and the first PSN and the number of the operations that were in
    /// flight, whose entries stay until the QP is used again.
    pub(crate) fn close(&mut self, id: Id) -> (Id, Psn, u32) {
        _ = self.end_probe(id);
        let (owner, first, count) = self.all[id as usize].close();
        self.in_flight -= count as usize;
        (owner, first, count)
    }

    /// Schedules a probe of a key, or of the QP itself if `word` is `None`. Returns whether none was
    /// scheduled before.
    pub(crate) fn begin_probe(&mut self, id: Id, word: Option<(u64, u32)>, now: Nanos) -> bool {
        let begins = self.all[id as usize].begin_probe(word, now);
        self.probing += usize::from(begins);
        begins
    }

    /// Removes the probe of a QP, if it has one.
    pub(crate) fn end_probe(&mut self, id: Id) -> Option<Probe> {
        let probe = self.all[id as usize].end_probe();
        self.probing -= usize::from(probe.is_some());
        probe
    }

    /// Notes that a server accepts a new connection. Returns false if there is no such server.
    pub(crate) fn note_connected(&mut self, server: u8, now: Nanos) -> bool {
        let server = self.servers.get_mut(usize::from(server));
        server.map(|server| server.connected = now).is_some()
    }

    /// Returns whether a server may have restarted: it accepts new connections, and has not answered on this
    /// QP since, despite retransmissions. Waiting requests move to another QP if this one is given up.
    #[inline]
    pub(crate) fn may_have_restarted(&self, shared_qp: &SharedQp) -> bool {
        shared_qp.tries >= SUSPECT_TRIES && self.has_newer_connections(shared_qp)
    }

    /// Returns whether the server has accepted connections since its last acknowledgement on this QP.
    #[inline]
    pub(crate) fn has_newer_connections(&self, shared_qp: &SharedQp) -> bool {
        self.servers[usize::from(shared_qp.server)].connected > shared_qp.progress_at
    }

    /// Notes that a key does not work on switch-owned QPs, so that operations with it use other connections
    /// for some time. Returns whether the QP is one.
    pub(crate) fn refuse_key(&mut self, id: Id, rkey: u32, now: Nanos) -> bool {
        let SharedQp { server, is_switch_owned, .. } = self.all[id as usize];
        if is_switch_owned {
            self.servers[usize::from(server)].refused.add(rkey, now);
        }
        is_switch_owned
    }

    /// Returns whether a server has recently refused a key on a switch-owned QP.
    pub(crate) fn has_refused(&self, server: u8, rkey: u32, now: Nanos) -> bool {
        self.servers[usize::from(server)].refused.has(rkey, now)
    }

    /// Returns one of the matching QPs, selected by the line at `va`.
    pub(crate) fn nth(&self, va: u64, fits: impl Fn(&SharedQp) -> bool) -> Option<Id> {
        let all = || self.all.iter().zip(0..).filter(|(shared_qp, _)| fits(shared_qp));
        let nth = (mix(va >> 6) as usize).checked_rem(all().count())?;
        all().nth(nth).map(|(_, number)| number)
    }

    /// Returns a QP of a server that is unused and may be a client's connection.
    pub(crate) fn unused(&self, server: u8) -> Option<Id> {
        let fits = |shared_qp: &SharedQp| {
            shared_qp.server == server && shared_qp.owner == NONE && !shared_qp.is_switch_owned
        };
        self.all.iter().position(fits).map(|at| at as Id)
    }

    /// Returns the busy QP of a server with the oldest acknowledgement. A request that waits for all resolved
    /// operations waits for that one.
    pub(crate) fn slowest(&self, server: u8) -> Option<Id> {
        let all = self.all.iter().zip(0..);
        let busy = all.filter(|(shared_qp, _)| shared_qp.server == server && shared_qp.in_flight() > 0);
        busy.min_by_key(|(shared_qp, _)| shared_qp.progress_at).map(|(_, number)| number)
    }
}
