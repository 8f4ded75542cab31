//! State of the screen, and the effect of keys.

use super::rates::{Rates, View};
use crate::observe::{Lost, Snapshot};
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

/// The state of the screen.
#[derive(Default)]
pub(super) struct App {
    rates: Rates,
    /// The view on the screen; while paused, not the latest one
    pub(super) view: Option<View>,
    pub(super) paused: bool,
    /// Reason why there is no new snapshot
    pub(super) lost: Option<String>,
    /// Name of the selected table; an index would not do, because tables come and go
    chosen: Option<String>,
    /// Counter by which the table is sorted
    pub(super) sorted_by: usize,
    /// First row on the screen
    pub(super) from: usize,
}

impl App {
    /// Adds a snapshot, or the reason why there is none.
    pub(super) fn see(&mut self, seen: Result<Snapshot, Lost>) {
        match seen {
            Ok(snapshot) => {
                self.lost = None;
                self.rates.add(snapshot);
                if !self.paused {
                    self.view = self.rates.view();
                }
            }
            Err(lost) => self.lost = Some(lost.to_string()),
        }
    }

    /// Returns the index of the selected table in the view.
    pub(super) fn tab(&self) -> usize {
        let tables = self.view.iter().flat_map(|view| &view.tables);
        tables
            .enumerate()
            .find(|(_, table)| Some(&table.name) == self.chosen.as_ref())
            .map_or(0, |(at, _)| at)
    }

    /// Handles a key. Returns `false` if the key ends the program.
    pub(super) fn on_key(&mut self, key: KeyEvent) -> bool {
        let tables = self.view.as_ref().map_or(0, |view| view.tables.len());
        let tab = self.tab();
        let shown = self.view.as_ref().and_then(|view| view.tables.get(tab));
        let (counts, rows) = shown.map_or((0, 0), |table| (table.counts.len(), table.rows.len()));
        match key.code {
            KeyCode::Char('q') | KeyCode::Esc => return false,
            KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => return false,
            KeyCode::Char('p' | ' ') => {
                self.paused = !self.paused;
                if !self.paused {
                    self.view = self.rates.view();
                }
            }
            KeyCode::Tab if tables > 0 => self.choose((tab + 1) % tables),
            KeyCode::BackTab if tables > 0 => self.choose((tab + tables - 1) % tables),
            KeyCode::Right if counts > 0 => self.sorted_by = (self.sorted_by.min(counts - 1) + 1) % counts,
            KeyCode::Left if counts > 0 => {
                self.sorted_by = (self.sorted_by.min(counts - 1) + counts - 1) % counts;
            }
            KeyCode::Down => self.from = (self.from + 1).min(rows.saturating_sub(1)),
            KeyCode::Up => self.from = self.from.saturating_sub(1),
            KeyCode::PageDown => self.from = (self.from + 10).min(rows.saturating_sub(1)),
            KeyCode::PageUp => self.from = self.from.saturating_sub(10),
            KeyCode::Home => self.from = 0,
            KeyCode::End => self.from = rows.saturating_sub(1),
            _ => {}
        }
        true
    }

    fn choose(&mut self, tab: usize) {
        self.chosen = self.view.as_ref().and_then(|view| Some(view.tables.get(tab)?.name.clone()));
        (self.sorted_by, self.from) = (0, 0);
    }
}
