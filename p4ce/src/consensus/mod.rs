//! Consensus on top of replicated writes, with the protocol that the paper takes from Mu (III): the parts that need no
//! network.

pub mod detector;
pub mod log;

pub use detector::Detector;
pub use log::{Entry, Layout, Term};
