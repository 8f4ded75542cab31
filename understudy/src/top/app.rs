//! State of the screen, and the effect of keys.

use super::rates::{Rates, View};
use crate::observe::{ClientError, Snapshot};
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

/// The state of the screen.
#[derive(Default)]
pub(super) struct App {
    rates: Rates,
    /// The view on the screen; while paused, not the latest one
    pub(super) view: Option<View>,
    pub(super) paused: bool,
    /// Reason why there is no new snapshot
    pub(super) error: Option<String>,
    /// Name of the selected table; an index would not do, because tables come and go
    selected: Option<String>,
    /// Counter by which the table is sorted
    pub(super) sorted_by: usize,
    /// First row on the screen
    pub(super) first_row: usize,
}

impl App {
    /// Adds a snapshot, or the reason why there is none.
    pub(super) fn update(&mut self, result: Result<Snapshot, ClientError>) {
        match result {
            Ok(snapshot) => {
                self.error = None;
                self.rates.add(snapshot);
                if !self.paused {
                    self.view = self.rates.view();
                }
            }
            Err(error) => self.error = Some(error.to_string()),
        }
    }

    /// Returns the index of the selected table in the view.
    pub(super) fn tab(&self) -> usize {
        let tables = self.view.iter().flat_map(|view| &view.tables);
        tables
            .enumerate()
            .find(|(_, table)| Some(&table.name) == self.selected.as_ref())
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
            KeyCode::Tab if tables > 0 => self.select((tab + 1) % tables),
            KeyCode::BackTab if tables > 0 => self.select((tab + tables - 1) % tables),
            KeyCode::Right if counts > 0 => self.sorted_by = (self.sorted_by.min(counts - 1) + 1) % counts,
            KeyCode::Left if counts > 0 => {
                self.sorted_by = (self.sorted_by.min(counts - 1) + counts - 1) % counts;
            }
            KeyCode::Down => self.first_row = (self.first_row + 1).min(rows.saturating_sub(1)),
            KeyCode::Up => self.first_row = self.first_row.saturating_sub(1),
            KeyCode::PageDown => self.first_row = (self.first_row + 10).min(rows.saturating_sub(1)),
            KeyCode::PageUp => self.first_row = self.first_row.saturating_sub(10),
            KeyCode::Home => self.first_row = 0,
            KeyCode::End => self.first_row = rows.saturating_sub(1),
            _ => {}
        }
        true
    }

    fn select(&mut self, tab: usize) {
        self.selected = self.view.as_ref().and_then(|view| Some(view.tables.get(tab)?.name.clone()));
        (self.sorted_by, self.first_row) = (0, 0);
    }
}
