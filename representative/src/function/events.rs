//! Changes of links that the control plane has not taken yet. They are states of the links, so that none is
//! lost, however many links change at once.

use super::Event;
use crate::config::LinkId;
use crate::view::LinkState;
use std::collections::VecDeque;

/// Changes of a link, in the order in which they are reported
#[derive(Clone, Copy, Debug, Default)]
struct Changes {
    /// Departure of the link
    gone: Option<LinkState>,
    /// Return of the link after its departure
    joined: bool,
    is_queued: bool,
}

/// Changes of all links.
#[derive(Debug)]
pub(super) struct Unreported {
    links: Box<[Changes]>,
    /// Links with changes, each once
    queue: VecDeque<u16>,
}

impl Unreported {
    /// Creates the state of this number of links, none of which has changed.
    pub(super) fn new(links: usize) -> Self {
        Self { links: vec![Changes::default(); links].into(), queue: VecDeque::with_capacity(links) }
    }

    fn change(&mut self, link: u16, change: impl FnOnce(&mut Changes)) {
        let changes = &mut self.links[usize::from(link)];
        change(changes);
        if !core::mem::replace(&mut changes.is_queued, true) {
            self.queue.push_back(link);
        }
    }

    /// Reports that a link takes no part any more. A return that was not taken is void.
    pub(super) fn report_gone(&mut self, link: u16, state: LinkState) {
        self.change(link, |changes| (changes.gone, changes.joined) = (Some(state), false));
    }

    /// Reports that a link takes part again.
    pub(super) fn report_joined(&mut self, link: u16) {
        self.change(link, |changes| changes.joined = true);
    }

    /// Removes and returns the next event.
    pub(super) fn pop(&mut self) -> Option<Event> {
        let &number = self.queue.front()?;
        let (link, changes) = (LinkId(number), &mut self.links[usize::from(number)]);
        let event = if let Some(state) = changes.gone.take() {
            match state {
                LinkState::Left => Event::Left(link),
                LinkState::Evicted => Event::Evicted(link),
                LinkState::Dead | LinkState::Alive | LinkState::Waiting => Event::Dead(link),
            }
        } else {
            changes.joined = false;
            Event::Joined(link)
        };
        if !changes.joined {
            changes.is_queued = false;
            self.queue.pop_front();
        }
        Some(event)
    }
}
