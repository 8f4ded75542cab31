//! Critical sections like those of Sherman: a client takes a lock by `CmpSwap`, reads the page, then posts
//! the WRITE of the page and the release of the lock back to back, without waiting for the first.

use super::end::{Context, End, Purpose, Request, Section};
use super::fill;
use super::linear::Action;
use rnic::Operation;

impl End {
    /// Starts a critical section.
    pub(super) fn begin_section(&mut self, context: &mut Context<'_>) {
        let page = self.rng.below(context.config.pages.into()) as usize;
        self.try_lock(Section { page, id: 0, tries: context.config.tries }, context);
    }

    fn try_lock(&mut self, section: Section, context: &mut Context<'_>) {
        let section =
            Section { id: context.history.unique_value(), tries: section.tries.saturating_sub(1), ..section };
        context.history.counts.tries += 1;
        let (conn_id, word) = (self.conn_id, context.config.words as usize + section.page);
        let action = Action::CompareSwap { compare: 0, swap: section.id };
        let recorded = context.history.post(self.memory_id, word, conn_id, false, action);
        let at = self.word_at(word);
        let request = Request {
            operation: Operation::CompareSwap { at, compare: 0, swap: section.id },
            data: Vec::new(),
            fetch: 8,
            signaled: true,
            fence: false,
            purpose: Purpose::Lock(recorded),
        };
        self.section = Some(section);
        self.submit(request, context);
    }

    /// Handles the result of the `CmpSwap` on the lock, which held `found`.
    pub(super) fn on_lock(&mut self, found: u64, context: &mut Context<'_>) {
        let Some(section) = self.section else { return };
        if found != 0 {
            if section.tries > 0 {
                self.try_lock(section, context);
            } else {
                self.section = None;
            }
            return;
        }
        context.history.lock(self.memory_id, section.page, section.id);
        let operation = Operation::Read(self.page_at(section.page, context.config));
        let fetch = context.config.page_size as usize;
        let purpose = Purpose::Page;
        self.submit(
            Request { operation, data: Vec::new(), fetch, signaled: true, fence: false, purpose },
            context,
        );
    }

    /// Handles the contents of the page: checks them, then posts the WRITE and the release.
    pub(super) fn on_page(&mut self, found: &[u8], context: &mut Context<'_>) {
        let Some(section) = self.section.take() else { return };
        let (conn_id, page, id) = (self.conn_id, section.page, section.id);
        let newest = context.history.page(self.memory_id, page);
        let expected = fill(newest, found.len());
        if let Some(byte) = found.iter().zip(&expected).position(|(is, was)| is != was) {
            context.history.fail(|| {
                format!(
                    "connection {conn_id}: section {id:#x} holds the lock of page {page}, \
                     which differs from what section {newest:#x} wrote from byte {byte} on"
                )
            });
        }
        let operation = Operation::Write(self.page_at(page, context.config));
        let data = fill(id, context.config.page_size as usize);
        let signaled = self.rng.below(2) == 0;
        let purpose = Purpose::WritePage;
        self.submit(Request { operation, data, fetch: 0, signaled, fence: false, purpose }, context);
        self.unlock(section, context);
        context.history.unlock(self.memory_id, page, id);
    }

    fn unlock(&mut self, section: Section, context: &mut Context<'_>) {
        let (conn_id, word) = (self.conn_id, context.config.words as usize + section.page);
        let at = self.word_at(word);
        let by_swap = self.rng.below(3) == 0;
        let action =
            if by_swap { Action::CompareSwap { compare: section.id, swap: 0 } } else { Action::Write(0) };
        let recorded = context.history.post(self.memory_id, word, conn_id, false, action);
        let request = if by_swap {
            Request {
                operation: Operation::CompareSwap { at, compare: section.id, swap: 0 },
                data: Vec::new(),
                fetch: 8,
                signaled: true,
                fence: false,
                purpose: Purpose::Unlock(recorded, Some(section.id)),
            }
        } else {
            Request {
                operation: Operation::Write(at),
                data: 0u64.to_le_bytes().to_vec(),
                fetch: 0,
                signaled: true,
                fence: false,
                purpose: Purpose::Unlock(recorded, None),
            }
        };
        self.submit(request, context);
    }
}
