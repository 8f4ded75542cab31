//! Fuzz targets: everything that reads bytes from other hosts, fed with arbitrary input.
//!
//! A target is a function of one input that panics when something is wrong. `make fuzz` runs the targets under libFuzzer
//! (`fuzz/libfuzzer`), which mutates inputs towards new coverage; `make test` runs each with its first inputs and some
//! deterministic mutations of those ([`corpus`]).

#![forbid(unsafe_code)]

pub mod corpus;

mod classify;
mod cm;
mod decode;
mod forward;
mod impair;
mod management;
mod p4ce;
mod process;
mod rdmc;
mod rnic;
mod swordbox;
mod tunnel;

/// Entry point of a target. Panics if the input shows a defect.
pub type Run = fn(&[u8]);

/// Every target, by name
pub const TARGETS: [(&str, Run); 12] = [
    ("classify", classify::run),
    ("cm", cm::run),
    ("decode", decode::run),
    ("forward", forward::run),
    ("impair", impair::run),
    ("management", management::run),
    ("p4ce", p4ce::run),
    ("process", process::run),
    ("rdmc", rdmc::run),
    ("rnic", rnic::run),
    ("swordbox", swordbox::run),
    ("tunnel", tunnel::run),
];

/// Returns the entry point of the target of this name.
pub fn target(name: &str) -> Option<Run> {
    TARGETS.iter().find(|(target, _)| *target == name).map(|(_, run)| *run)
}

#[cfg(test)]
mod tests;
