//! Swordbox's part of the report.

use crate::functions::report::Section;
use crate::observe::Values;
use crate::output::{row, section};
use core::fmt::Write as _;
use serde::Serialize;
use std::collections::BTreeMap;
use std::sync::Arc;
use swordbox::{Counters, Usage};

/// Connections of memory servers, and results of their operations.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(super) struct SwordboxReport {
    /// Layers that were on at the end
    pub(super) layers: String,
    #[serde(flatten)]
    #[cfg_attr(
        test,
        schemars(
            schema_with = "crate::reference::metrics3::<Counters, swordbox::ConnectCounters, super::run::JournalCounters>"
        )
    )]
    pub(super) counts: Values,
    #[serde(flatten)]
    #[cfg_attr(test, schemars(schema_with = "crate::reference::metrics::<Usage>"))]
    pub(super) usage: Values,
    /// Memory of full tables, in bytes
    pub(super) memory_bytes: BTreeMap<&'static str, usize>,
    /// Counters of each worker
    #[serde(skip)]
    pub(super) counters: Vec<Arc<Counters>>,
}

impl Section for SwordboxReport {
    const KEY: &'static str = "swordbox";

    fn text(&self, text: &mut String) {
        let counted = self.counts.nonzero().map(|(name, count)| row(&[name], &[count]));
        section(text, "Swordbox", &["what", "count"], 1, counted);
        let sum = |gauge: fn(&Usage) -> u64| -> u64 {
            self.counters.iter().map(|counters| gauge(&counters.usage)).sum()
        };
        _ = writeln!(
            text,
            "Layers: {}. At the end: {} connections, {} of them shared; {} lines with tracked words; {} held frames",
            self.layers,
            sum(|usage| usage.connections.get()),
            sum(|usage| usage.shared_qps.get()),
            sum(|usage| usage.lines.get()),
            sum(|usage| usage.held.get())
        );
    }
}
