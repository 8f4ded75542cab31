//! Steering: a request that names a place which a data structure has moved on from goes to where it belongs now. Of the
//! request only the virtual address changes; it stays on its connection, and the server decides what becomes of it
//! (docs/swordbox-steering.md).
//!
//! What a switch has to know of a data structure for that is a [`Knowledge`]. There are two: [`Lists`], a store of
//! append-only lists as Clover is one, whose last nodes are known here, and [`Locks`], a table of locks as Sherman has it,
//! which is not steered at all but says which words are worth to be resolved here.

mod incarnation;
mod links;
mod lists;
mod locks;
mod path;
mod withheld;

pub use lists::{Lists, ListsConfig};
pub use locks::{Locks, LocksConfig};

use crate::config::Config;
use incarnation::Incarnation;
pub(crate) use incarnation::Lifetime;
use links::Links;
pub(crate) use links::Ticket;
use switch::table::Salt;
use withheld::Withheld;

/// A CAS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cas {
    /// The word's address
    pub va: u64,
    /// The key by which it is reached
    pub rkey: u32,
    /// What is expected
    pub compare: u64,
    /// What is to be put there
    pub swap: u64,
}

/// What a CAS does to a structure of nodes: it makes a node part of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Append {
    /// Where the CAS goes now
    pub va: u64,
    /// The node that it links the new one to
    pub to: u64,
    /// The new node
    pub node: u64,
    /// Whose nodes these are, by a number of the structure's
    pub key: u64,
    /// The key by which both are reached
    pub rkey: u32,
    /// It was chosen here what the new node is linked to, because that is the last one
    pub steered: bool,
}

/// What is known of a data structure in a server's memory.
///
/// Nothing that it says is trusted to be true for ever: a CAS that goes to a wrong place finds that out there and fails, and
/// a READ finds a node that has a next one. What it says must be true *of the structure*: a place that it sends a request
/// to belongs to the same list, whether or not it is the last one by then.
pub trait Knowledge {
    /// Whether what lies at this address may be of interest: WRITEs, CAS and READs of other places are not asked about.
    fn covers(&self, va: u64) -> bool;

    /// A WRITE to `va` that begins with these bytes is on its way.
    fn on_write(&mut self, va: u64, bytes: &[u8]);

    /// The same, and it may be refused, as its queue pair may be of an earlier incarnation of the server: it makes doubtful
    /// what it contradicts, and teaches nothing.
    fn on_doubtful_write(&mut self, va: u64, bytes: &[u8]);

    /// A CAS comes by. If it appends a node: what it does, and where it goes now. The node is known to be written if
    /// `written`; `followed` says that others have been appended to it already, by a CAS that failed before. With
    /// `steer` unset, it goes where it says.
    fn on_cas(&mut self, cas: &Cas, written: bool, followed: bool, steer: bool) -> Option<Append>;

    /// A READ of `len` bytes comes by; the node that it goes to now, if it is a READ of a node at all.
    fn on_read(&mut self, va: u64, rkey: u32, len: u32) -> Option<u64>;

    /// A READ of a node, which went there, was answered with these bytes.
    fn on_found(&mut self, node: u64, bytes: &[u8]);

    /// A node is part of the structure. `followed` says that others are on their way to be appended to it.
    fn on_published(&mut self, append: &Append, followed: bool);

    /// What is known of whose nodes these are turned out not to be true, or is not sure any more.
    fn doubt(&mut self, key: u64);

    /// Operations may have passed unseen: which nodes are the last ones is not known any more.
    fn forget(&mut self);

    /// The server has restarted, and the memory has other contents: nothing is known any more.
    fn forget_all(&mut self);

    /// Whether this is a word that many clients operate on, of which everything is worth to be known.
    fn is_word(&self, va: u64, rkey: u32) -> bool;
}

/// A data structure of a server, as it is configured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Structure {
    /// A store of lists
    Lists(ListsConfig),
    /// A table of locks
    Locks(LocksConfig),
}

/// What is known of one.
#[derive(Debug)]
pub enum Known {
    /// A store of lists
    Lists(Box<Lists>),
    /// A table of locks
    Locks(Locks),
}

impl Known {
    /// Nothing is known yet but where it is.
    pub fn new(structure: &Structure) -> Self {
        match structure {
            Structure::Lists(config) => Self::Lists(Box::new(Lists::new(config.clone()))),
            Structure::Locks(config) => Self::Locks(Locks::new(config.clone())),
        }
    }
}

macro_rules! each {
    ($self:ident, $known:ident => $what:expr) => {
        match $self {
            Known::Lists($known) => $what,
            Known::Locks($known) => $what,
        }
    };
}

impl Knowledge for Known {
    #[inline]
    fn covers(&self, va: u64) -> bool {
        each!(self, known => known.covers(va))
    }

    fn on_write(&mut self, va: u64, bytes: &[u8]) {
        each!(self, known => known.on_write(va, bytes));
    }

    fn on_doubtful_write(&mut self, va: u64, bytes: &[u8]) {
        each!(self, known => known.on_doubtful_write(va, bytes));
    }

    fn on_cas(&mut self, cas: &Cas, written: bool, followed: bool, steer: bool) -> Option<Append> {
        each!(self, known => known.on_cas(cas, written, followed, steer))
    }

    fn on_read(&mut self, va: u64, rkey: u32, len: u32) -> Option<u64> {
        each!(self, known => known.on_read(va, rkey, len))
    }

    fn on_found(&mut self, node: u64, bytes: &[u8]) {
        each!(self, known => known.on_found(node, bytes));
    }

    fn on_published(&mut self, append: &Append, followed: bool) {
        each!(self, known => known.on_published(append, followed));
    }

    fn doubt(&mut self, key: u64) {
        each!(self, known => known.doubt(key));
    }

    fn forget(&mut self) {
        each!(self, known => known.forget());
    }

    fn forget_all(&mut self) {
        each!(self, known => known.forget_all());
    }

    fn is_word(&self, va: u64, rkey: u32) -> bool {
        each!(self, known => known.is_word(va, rkey))
    }
}

/// What a Swordbox knows of its servers' data structures, and what depends on what.
#[derive(Debug)]
pub(crate) struct Steering {
    /// By server and structure
    pub known: Vec<Vec<Known>>,
    /// The memory that it is of
    pub incarnations: Vec<Vec<Incarnation>>,
    /// Nodes that may not be part of their structure yet
    pub links: Links,
    /// Answers that tell of such nodes
    pub withheld: Withheld,
    /// A node became part of its structure since this was last looked at: answers may go on
    pub published: bool,
}

impl Steering {
    pub(crate) fn new(config: &Config) -> Self {
        let known: Vec<Vec<_>> =
            config.servers.iter().map(|server| server.structures.iter().map(Known::new).collect()).collect();
        let steers = known.iter().flatten().any(|known| matches!(known, Known::Lists(_)));
        let (appends, withheld) = if steers { (config.appends, config.withheld) } else { (0, 0) };
        Self {
            incarnations: known.iter().map(|known| vec![Incarnation::default(); known.len()]).collect(),
            links: Links::with_capacity(appends, known.len()),
            known,
            withheld: Withheld::with_capacity(withheld),
            published: false,
        }
    }

    /// Salts the tables of nodes and of structures' keys.
    pub(crate) fn set_salt(&mut self, salt: Salt) {
        self.links.set_salt(salt);
        for known in self.known.iter_mut().flatten() {
            if let Known::Lists(lists) = known {
                lists.set_salt(salt);
            }
        }
    }

    /// What this configuration takes at most.
    pub(crate) fn bytes(config: &Config) -> usize {
        let structures = config.servers.iter().flat_map(|server| &server.structures);
        let lists = structures.filter_map(|structure| match structure {
            Structure::Lists(lists) => Some(Lists::bytes(lists)),
            Structure::Locks(_) => None,
        });
        let mut lists = lists.peekable();
        if lists.peek().is_none() {
            return 0;
        }
        lists.sum::<usize>() + Links::bytes(config.appends) + Withheld::bytes(config.withheld)
    }

    /// What is known of the structure at this address, and its number
    #[inline]
    pub(crate) fn at(&mut self, server: u8, va: u64) -> Option<(u8, &mut Known)> {
        let known = self.known.get_mut(usize::from(server))?.iter_mut();
        known.zip(0u8..).find(|(known, _)| known.covers(va)).map(|(known, number)| (number, known))
    }

    /// Whether a server has anything that requests are steered in
    pub(crate) fn steers(&self, server: u8) -> bool {
        let known = self.known.get(usize::from(server));
        known.is_some_and(|known| known.iter().any(|known| matches!(known, Known::Lists(_))))
    }

    /// Whether a word is declared as one that many clients operate on.
    pub(crate) fn is_word(&self, server: u8, va: u64, rkey: u32) -> bool {
        let known = self.known.get(usize::from(server));
        known.is_some_and(|known| known.iter().any(|known| known.is_word(va, rkey)))
    }

    /// Nothing has to be looked after.
    pub(crate) fn is_quiet(&self) -> bool {
        self.links.is_empty() && self.withheld.is_empty()
    }

    pub(crate) fn forget(&mut self) {
        self.known.iter_mut().flatten().for_each(Knowledge::forget);
    }
}
