//! Swordbox's part of the report.

use crate::functions::report::Section;
use crate::output::{row, section};
use core::fmt::Write as _;
use serde::Serialize;
use std::collections::BTreeMap;

/// Connections of memory servers, and results of their operations.
#[derive(Serialize)]
pub(super) struct SwordboxReport {
    /// Layers that were on at the end
    pub(super) layers: String,
    /// Counters by name
    #[serde(flatten)]
    pub(super) counters: serde_json::Map<String, serde_json::Value>,
    /// Connections that could not be written to the journal
    pub(super) unwritten: u64,
    /// Table entries in use at the end
    pub(super) usage: BTreeMap<&'static str, u64>,
    /// Memory of full tables, in bytes
    pub(super) memory_bytes: BTreeMap<&'static str, usize>,
}

impl Section for SwordboxReport {
    const KEY: &'static str = "swordbox";

    fn text(&self, text: &mut String) {
        let counted = self.counters.iter().filter_map(|(name, count)| Some((name, count.as_u64()?)));
        let counted = counted.filter(|(_, count)| *count > 0).map(|(name, count)| row(&[name], &[count]));
        section(text, "Swordbox", &["what", "count"], 1, counted);
        let used = |what| self.usage.get(what).copied().unwrap_or(0);
        _ = writeln!(
            text,
            "Layers: {}. At the end: {} connections, {} of them shared; {} lines with tracked words; {} held frames",
            self.layers,
            used("connections"),
            used("lanes"),
            used("lines"),
            used("held")
        );
        if self.unwritten > 0 {
            _ = writeln!(text, "{} connections could not be written to the journal", self.unwritten);
        }
    }
}
