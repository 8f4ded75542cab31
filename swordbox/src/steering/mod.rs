//! Steering: a request that refers to an outdated location in a data structure is redirected to the current
//! one. Only the request's virtual address changes. It stays on its connection, and the server decides its
//! result (docs/swordbox-steering.md).
//!
//! The state that the switch caches of a data structure is a [`StructureCache`]. There are two
//! implementations. [`Lists`] is a store of append-only lists such as Clover, of which the last nodes are
//! cached. [`Locks`] is a table of locks such as Sherman's, which is not steered; it declares the words that
//! are worth tracking.

mod incarnation;
mod links;
mod lists;
mod locks;
mod withheld;

pub use lists::{HEADER, KEY, Lists, ListsConfig, NEXT};
pub use locks::{Locks, LocksConfig};

use incarnation::Incarnation;
pub(crate) use incarnation::Lifetime;
use links::Links;
pub(crate) use links::{State, Ticket};
use switch::table::Salt;
pub(crate) use withheld::{Slot, Withheld};

/// A compare-and-swap request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cas {
    /// Virtual address of the word
    pub va: u64,
    /// R_Key
    pub rkey: u32,
    /// Expected value
    pub compare: u64,
    /// New value
    pub swap: u64,
}

/// Append of a node to a data structure by a CAS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Append {
    /// Virtual address that the CAS is forwarded to
    pub va: u64,
    /// Node that the new node is appended to
    pub to: u64,
    /// New node
    pub node: u64,
    /// The structure's key (index of a list) that both nodes belong to
    pub key: u64,
    /// R_Key of both nodes
    pub rkey: u32,
    /// Whether the switch chose `to`, because it is the last node
    pub steered: bool,
}

/// Cached state of a data structure in a server's memory.
///
/// The state need not be current. A CAS that is redirected to an outdated node fails at the server, and a
/// READ finds that its node has a successor. But a redirection has to be *valid for the structure*: the node
/// belongs to the same list, whether or not it is still the last one.
pub trait StructureCache {
    /// Returns whether an address is in the structure. The other methods are called for WRITEs, CAS and READs
    /// of such addresses only.
    fn covers(&self, va: u64) -> bool;

    /// Notes a WRITE to `va` whose payload begins with `bytes`.
    fn on_write(&mut self, va: u64, bytes: &[u8]);

    /// Notes a WRITE that the server may refuse, because its queue pair may belong to a previous incarnation
    /// of the server. It invalidates state that it contradicts, and adds none.
    fn on_unverified_write(&mut self, va: u64, bytes: &[u8]);

    /// Handles a CAS. Returns its effect and its address if it appends a node. `written` states that the
    /// node's WRITE has completed. `followed` states that other nodes were already appended to this node, by
    /// CAS behind one that failed. Without `steer` the address is not changed.
    fn on_cas(&mut self, cas: &Cas, written: bool, followed: bool, steer: bool) -> Option<Append>;

    /// Handles a READ of `len` bytes. Returns the node that it is forwarded to, or `None` if it is no READ of
    /// a node.
    fn on_read(&mut self, va: u64, rkey: u32, len: u32) -> Option<u64>;

    /// Notes the response `bytes` to a READ of a node.
    fn on_read_response(&mut self, node: u64, bytes: &[u8]);

    /// Notes that a node is linked into the structure. `followed` states that other nodes are pending behind
    /// it.
    fn on_linked(&mut self, append: &Append, followed: bool);

    /// Invalidates the state of a key, which turned out to be stale or is uncertain.
    fn invalidate(&mut self, key: u64);

    /// Forgets the last nodes of all keys, because operations may have passed unseen.
    fn forget(&mut self);

    /// Forgets everything, because the server has restarted with different memory.
    fn forget_all(&mut self);

    /// Returns whether this is a contended word, of which all operations should be tracked.
    fn is_contended_word(&self, va: u64, rkey: u32) -> bool;
}

/// Configuration of a data structure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Structure {
    /// Store of lists
    Lists(ListsConfig),
    /// Table of locks
    Locks(LocksConfig),
}

/// Cached state of a data structure, by kind.
#[derive(Debug)]
pub enum AnyCache {
    /// Store of lists
    Lists(Box<Lists>),
    /// Table of locks
    Locks(Locks),
}

impl AnyCache {
    /// Returns the empty state of a structure.
    pub fn new(structure: &Structure) -> Self {
        match structure {
            Structure::Lists(config) => Self::Lists(Box::new(Lists::new(config.clone()))),
            Structure::Locks(config) => Self::Locks(Locks::new(config.clone())),
        }
    }

    /// Returns the number of keys whose last node is known.
    pub fn tracked(&self) -> usize {
        match self {
            Self::Lists(lists) => lists.tracked(),
            Self::Locks(_) => 0,
        }
    }
}

macro_rules! each {
    ($self:ident, $cache:ident => $what:expr) => {
        match $self {
            AnyCache::Lists($cache) => $what,
            AnyCache::Locks($cache) => $what,
        }
    };
}

impl StructureCache for AnyCache {
    #[inline]
    fn covers(&self, va: u64) -> bool {
        each!(self, cache => cache.covers(va))
    }

    fn on_write(&mut self, va: u64, bytes: &[u8]) {
        each!(self, cache => cache.on_write(va, bytes));
    }

    fn on_unverified_write(&mut self, va: u64, bytes: &[u8]) {
        each!(self, cache => cache.on_unverified_write(va, bytes));
    }

    fn on_cas(&mut self, cas: &Cas, written: bool, followed: bool, steer: bool) -> Option<Append> {
        each!(self, cache => cache.on_cas(cas, written, followed, steer))
    }

    fn on_read(&mut self, va: u64, rkey: u32, len: u32) -> Option<u64> {
        each!(self, cache => cache.on_read(va, rkey, len))
    }

    fn on_read_response(&mut self, node: u64, bytes: &[u8]) {
        each!(self, cache => cache.on_read_response(node, bytes));
    }

    fn on_linked(&mut self, append: &Append, followed: bool) {
        each!(self, cache => cache.on_linked(append, followed));
    }

    fn invalidate(&mut self, key: u64) {
        each!(self, cache => cache.invalidate(key));
    }

    fn forget(&mut self) {
        each!(self, cache => cache.forget());
    }

    fn forget_all(&mut self) {
        each!(self, cache => cache.forget_all());
    }

    fn is_contended_word(&self, va: u64, rkey: u32) -> bool {
        each!(self, cache => cache.is_contended_word(va, rkey))
    }
}

/// Cached state of all data structures, and the dependencies between nodes.
#[derive(Debug)]
pub(crate) struct Steering {
    /// By server and structure
    pub caches: Vec<Vec<AnyCache>>,
    /// Incarnation of the memory that the state belongs to
    pub incarnations: Vec<Vec<Incarnation>>,
    /// Pending nodes, which may not be linked into their structure yet
    pub links: Links,
    /// Responses that depend on pending nodes
    pub withheld: Withheld,
    /// Whether a node was linked since `release` last ran: responses may be released
    pub linked: bool,
}

impl Steering {
    /// Returns the empty state of the servers' structures, with room for this number of pending nodes and
    /// of withheld responses.
    pub(crate) fn new<'a>(
        servers: impl Iterator<Item = &'a [Structure]>,
        appends: usize,
        withheld: usize,
    ) -> Self {
        let caches: Vec<Vec<_>> =
            servers.map(|structures| structures.iter().map(AnyCache::new).collect()).collect();
        let steers = caches.iter().flatten().any(|cache| matches!(cache, AnyCache::Lists(_)));
        let (appends, withheld) = if steers { (appends, withheld) } else { (0, 0) };
        Self {
            incarnations: caches.iter().map(|cache| vec![Incarnation::default(); cache.len()]).collect(),
            links: Links::with_capacity(appends, caches.len()),
            caches,
            withheld: Withheld::with_capacity(withheld),
            linked: false,
        }
    }

    /// Salts the tables of nodes and of keys.
    pub(crate) fn set_salt(&mut self, salt: Salt) {
        self.links.set_salt(salt);
        for cache in self.caches.iter_mut().flatten() {
            if let AnyCache::Lists(lists) = cache {
                lists.set_salt(salt);
            }
        }
    }

    /// Returns the maximum memory in bytes for these structures, pending nodes and withheld responses.
    pub(crate) fn bytes<'a>(
        structures: impl Iterator<Item = &'a Structure>,
        appends: usize,
        withheld: usize,
    ) -> usize {
        let lists = structures.filter_map(|structure| match structure {
            Structure::Lists(lists) => Some(Lists::bytes(lists)),
            Structure::Locks(_) => None,
        });
        let mut lists = lists.peekable();
        if lists.peek().is_none() {
            return 0;
        }
        lists.sum::<usize>() + Links::bytes(appends) + Withheld::bytes(withheld)
    }

    /// Returns the index and the state of the structure at this address.
    #[inline]
    pub(crate) fn at(&mut self, server: u8, va: u64) -> Option<(u8, &mut AnyCache)> {
        let caches = self.caches.get_mut(usize::from(server))?.iter_mut();
        caches.zip(0u8..).find(|(cache, _)| cache.covers(va)).map(|(cache, number)| (number, cache))
    }

    /// Returns whether a server has a structure whose requests are steered.
    pub(crate) fn steers(&self, server: u8) -> bool {
        let caches = self.caches.get(usize::from(server));
        caches.is_some_and(|caches| caches.iter().any(|cache| matches!(cache, AnyCache::Lists(_))))
    }

    /// Returns whether a word is declared as contended.
    pub(crate) fn is_contended_word(&self, server: u8, va: u64, rkey: u32) -> bool {
        let caches = self.caches.get(usize::from(server));
        caches.is_some_and(|caches| caches.iter().any(|cache| cache.is_contended_word(va, rkey)))
    }

    /// Returns whether no node is pending and no response is withheld.
    pub(crate) fn is_idle(&self) -> bool {
        self.links.is_empty() && self.withheld.is_empty()
    }

    pub(crate) fn forget(&mut self) {
        self.caches.iter_mut().flatten().for_each(StructureCache::forget);
    }
}
