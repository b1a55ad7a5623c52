//! The pages of a session's sequences: in the cache of the layers that see everything before a token, and, where that is smaller, in a cache of
//! its own for the layers that see a window.
//!
//! Such a layer needs the positions of its window and those that a pass evaluates. A sequence has a fixed number of pages for them and gives
//! up its oldest only when the next pass needs room, so that a host can mostly go back by as much as a pass without evaluating anything again.

use super::layout::{PAGE_TOKENS, Reach, WindowLimits, pages_for};
use super::pages::{PageCopy, Pages, Tables};
use crate::error::Result;

/// Pages and page tables of all sequence slots.
#[derive(Debug)]
pub struct Paging {
    whole: Pool,
    windows: Option<(WindowLimits, Pool)>,
}

#[derive(Debug)]
struct Pool {
    pages: Pages,
    tables: Tables,
}

impl Pool {
    fn new(slots: usize, pages: usize, pages_each: usize) -> Result<Pool> {
        Ok(Pool { pages: Pages::new(pages)?, tables: Tables::new(slots, pages_each)? })
    }
}

/// The pages that must be copied, each in its cache, before their new holder writes to them.
pub type Copies = [Option<(Reach, PageCopy)>; 2];

impl Paging {
    /// No pages for `slots` sequences of at most `pages_each` pages, out of `pages`; `windows` where some layers keep no more than that.
    pub fn new(slots: usize, pages: usize, pages_each: usize, windows: Option<WindowLimits>) -> Result<Paging> {
        let windows = match windows {
            Some(limits) => Some((limits, Pool::new(slots, slots * limits.pages_each, pages_each)?)),
            None => None,
        };
        Ok(Paging { whole: Pool::new(slots, pages, pages_each)?, windows })
    }

    /// The pages of the layers that see everything.
    pub fn pages(&self) -> &Pages {
        &self.whole.pages
    }

    /// The tables of the layers that see everything.
    pub fn tables(&self) -> &Tables {
        &self.whole.tables
    }

    /// The tables of the layers that see a window, where they have their own.
    pub fn window_tables(&self) -> Option<&Tables> {
        self.windows.as_ref().map(|(_, pool)| &pool.tables)
    }

    /// How many pages a slot has in the cache of everything.
    pub fn count(&self, slot: usize) -> usize {
        self.whole.tables.of(slot).len()
    }

    /// Makes room for `tokens` positions of a slot where everything is kept; else the number of pages that it takes, with nothing changed.
    pub fn grow(&mut self, slot: usize, tokens: usize) -> Result<(), usize> {
        let count = pages_for(tokens);
        let has_grown = self.whole.tables.grow(slot, count, &mut self.whole.pages);
        if has_grown { Ok(()) } else { Err(count - self.count(slot)) }
    }

    /// Makes room for a pass that evaluates the positions from `start` to `end` where a window is kept: gives up what lies before its first
    /// token's window, as far as that is needed.
    pub fn slide(&mut self, slot: usize, start: usize, end: usize) {
        let Some((limits, Pool { pages, tables })) = &mut self.windows else { return };
        let (first, count) = (tables.first(slot), tables.of(slot).len().max(pages_for(end)));
        let excess = (count - first).saturating_sub(limits.pages_each);
        tables.drop_front(slot, first + excess, pages);
        let has_grown = tables.grow(slot, count, pages);
        debug_assert!(has_grown && tables.first(slot) * PAGE_TOKENS <= limits.first_seen(start));
    }

    /// Gives an empty slot pages for `tokens` positions, where a window is kept those from the page `first` on and no more than a slot may have;
    /// else the number of pages that are missing, with nothing changed. Returns the first page where a window is kept.
    pub fn place(&mut self, slot: usize, tokens: usize, first: usize) -> Result<usize, usize> {
        self.grow(slot, tokens)?;
        let count = pages_for(tokens);
        let Some((limits, Pool { pages, tables })) = &mut self.windows else { return Ok(0) };
        let first = first.max(count.saturating_sub(limits.pages_each)).min(count);
        tables.begin(slot, first);
        let has_grown = tables.grow(slot, count, pages);
        debug_assert!(has_grown, "every slot has its pages");
        Ok(first)
    }

    /// The pages of a slot in a cache, in order of position; those before [`Paging::first`] mean nothing.
    pub fn pages_of(&self, slot: usize, reach: Reach) -> &[u32] {
        match (reach, &self.windows) {
            (Reach::Window, Some((_, pool))) => pool.tables.of(slot),
            _ => self.whole.tables.of(slot),
        }
    }

    /// The first page that a slot still has where a window is kept.
    pub fn first(&self, slot: usize) -> usize {
        self.windows.as_ref().map_or(0, |(_, pool)| pool.tables.first(slot))
    }

    /// Whether the slot still has all that a token at `position` sees.
    pub fn reaches(&self, slot: usize, position: usize) -> bool {
        let seen = |(limits, pool): &(WindowLimits, Pool)| {
            pool.tables.first(slot) * PAGE_TOKENS <= limits.first_seen(position)
        };
        self.windows.as_ref().is_none_or(seen)
    }

    /// Cuts a slot to `count` pages without regard to the rule on last pages: for undoing [`Paging::grow`] and [`Paging::slide`].
    pub fn shrink(&mut self, slot: usize, count: usize) {
        self.pools().for_each(|(_, Pool { pages, tables })| tables.shrink(slot, count, pages));
    }

    /// Cuts a slot to `count` pages; the copies to make where the new last page was shared.
    pub fn truncate(&mut self, slot: usize, count: usize) -> Copies {
        let mut copies = [None; 2];
        for ((reach, Pool { pages, tables }), copy) in self.pools().zip(&mut copies) {
            *copy = tables.truncate(slot, count, pages).map(|copy| (reach, copy));
        }
        copies
    }

    /// Gives the empty slot `to` the pages of `from`, all shared but the last ones, which must be copied. `Err` holds the number of missing
    /// pages.
    pub fn fork(&mut self, from: usize, to: usize) -> Result<Copies, usize> {
        let mut copies = [None; 2];
        for ((reach, Pool { pages, tables }), copy) in self.pools().zip(&mut copies) {
            // Where windows are kept, every slot has its pages, so that only the first pool can lack some.
            *copy = tables.fork(from, to, pages)?.map(|copy| (reach, copy));
        }
        Ok(copies)
    }

    fn pools(&mut self) -> impl Iterator<Item = (Reach, &mut Pool)> {
        let windows = self.windows.as_mut().map(|(_, pool)| (Reach::Window, pool));
        [(Reach::Whole, &mut self.whole)].into_iter().chain(windows)
    }
}

#[cfg(test)]
mod tests {
    use super::super::layout::pages_of_window;
    use super::*;

    /// Two slots of 20 pages, with windows of 40 positions and passes of 50 rows.
    fn paging() -> Paging {
        let windows = WindowLimits { window: 40, pages_each: pages_of_window(40, 50) };
        assert_eq!(windows.pages_each, 4);
        Paging::new(2, 40, 20, Some(windows)).unwrap()
    }

    fn pass(paging: &mut Paging, slot: usize, start: usize, end: usize) {
        paging.grow(slot, end).unwrap();
        paging.slide(slot, start, end);
    }

    /// The first page and one behind the last that a slot has where a window is kept.
    fn held(paging: &Paging, slot: usize) -> (usize, usize) {
        let tables = paging.window_tables().unwrap();
        (tables.first(slot), tables.of(slot).len())
    }

    #[test]
    fn pages_are_given_up_only_when_a_pass_needs_room() {
        let mut paging = paging();
        pass(&mut paging, 0, 0, 50);
        pass(&mut paging, 0, 50, 100);
        assert_eq!((held(&paging, 0), paging.count(0)), ((0, 4), 4));
        pass(&mut paging, 0, 100, 128);
        assert!(paging.reaches(0, 0));
        pass(&mut paging, 0, 128, 129);
        assert_eq!(held(&paging, 0), (1, 5));
        assert!(paging.reaches(0, 71) && !paging.reaches(0, 70));
        for position in 129..640 {
            pass(&mut paging, 0, position, position + 1);
            assert!(paging.reaches(0, position - 50));
        }
        assert_eq!((held(&paging, 0), paging.count(0)), ((16, 20), 20));
        assert_eq!(paging.grow(0, 641), Err(1));
    }

    #[test]
    fn passes_of_any_length_find_what_they_see() {
        let mut paging = paging();
        let (mut at, mut rows) = (0, 1);
        while at + rows <= 640 {
            pass(&mut paging, 1, at, at + rows);
            (at, rows) = (at + rows, rows * 7 % 50 + 1);
        }
        let (first, count) = held(&paging, 1);
        assert_eq!((count, count - first), (at.div_ceil(32), 4));
    }

    #[test]
    fn forks_and_cuts_hold_the_same_in_both_caches() {
        let mut paging = paging();
        pass(&mut paging, 0, 0, 50);
        pass(&mut paging, 0, 50, 100);
        pass(&mut paging, 0, 100, 150);
        let copies = paging.fork(0, 1).unwrap().map(Option::unwrap);
        assert_eq!(copies.map(|(reach, _)| reach), [Reach::Whole, Reach::Window]);
        assert_eq!(held(&paging, 1), held(&paging, 0));
        for position in 150..300 {
            for slot in [0, 1] {
                pass(&mut paging, slot, position, position + 1);
            }
        }
        let copies = paging.truncate(1, pages_for(260));
        assert_eq!((copies, held(&paging, 1)), ([None; 2], (6, 9)));
        paging.shrink(1, 0);
        paging.shrink(0, 0);
        let windows = paging.windows.as_ref().unwrap();
        assert_eq!((paging.pages().free(), windows.1.pages.free(), held(&paging, 1)), (40, 8, (0, 0)));
    }
}
