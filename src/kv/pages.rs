//! Allocation, sharing and release of pages, and the page table of every sequence slot.
//!
//! Holds numbers only; the memory behind a page belongs to the backend. Everything is reserved when a session is made, and no
//! operation here allocates.

use crate::error::{Result, filled, reserve};

/// Reference counts of all pages of a session.
#[derive(Debug)]
pub struct Pages {
    holders: Vec<u32>,
    free: Vec<u32>,
}

impl Pages {
    /// `count` free pages.
    pub fn new(count: usize) -> Result<Pages> {
        let holders = filled(count, 0, "page counts")?;
        let mut free = reserve(count, "page numbers")?;
        free.extend((0..count as u32).rev());
        Ok(Pages { holders, free })
    }

    /// Pages that nobody holds.
    pub fn free(&self) -> usize {
        self.free.len()
    }

    /// All pages.
    pub fn total(&self) -> usize {
        self.holders.len()
    }

    fn take(&mut self) -> Option<u32> {
        let page = self.free.pop()?;
        self.holders[page as usize] = 1;
        Some(page)
    }

    fn share(&mut self, page: u32) {
        self.holders[page as usize] += 1;
    }

    fn release(&mut self, page: u32) {
        let holders = &mut self.holders[page as usize];
        *holders -= 1;
        if *holders == 0 {
            self.free.push(page);
        }
    }
}

/// A page that must be copied before its new holder writes to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageCopy {
    /// Page to read.
    pub from: u32,
    /// Page to overwrite.
    pub to: u32,
}

/// The page tables of all sequence slots. The last page of a table is never shared, so that writing the positions that follow,
/// or the last one again, touches nobody else. A table may lack its first pages, whose entries mean nothing then.
#[derive(Debug)]
pub struct Tables {
    entries: Vec<u32>,
    /// Pages before which a slot holds none.
    firsts: Vec<usize>,
    lengths: Vec<usize>,
    stride: usize,
}

impl Tables {
    /// Empty tables for `slots` sequences of at most `pages_each` pages.
    pub fn new(slots: usize, pages_each: usize) -> Result<Tables> {
        let what = "page tables";
        let entries = filled(slots.saturating_mul(pages_each), 0, what)?;
        Ok(Tables { entries, firsts: filled(slots, 0, what)?, lengths: filled(slots, 0, what)?, stride: pages_each })
    }

    /// Index of the first page that a slot holds.
    pub fn first(&self, slot: usize) -> usize {
        self.firsts[slot]
    }

    /// Pages of a slot, in order of position.
    pub fn of(&self, slot: usize) -> &[u32] {
        &self.entries[slot * self.stride..][..self.lengths[slot]]
    }

    /// Lets the table of an empty slot begin at the page `first`, as if it had given up those before.
    pub fn begin(&mut self, slot: usize, first: usize) {
        debug_assert!(self.lengths[slot] == 0 && first <= self.stride);
        (self.firsts[slot], self.lengths[slot]) = (first, first);
    }

    /// Grows a slot to `count` pages; `false`, and nothing changed, when the pool or the table has too few.
    pub fn grow(&mut self, slot: usize, count: usize, pages: &mut Pages) -> bool {
        let more = count.saturating_sub(self.lengths[slot]);
        if more > pages.free() || count > self.stride {
            return false;
        }
        for _ in 0..more {
            let page = pages.take().expect("the free pages were counted");
            self.entries[slot * self.stride + self.lengths[slot]] = page;
            self.lengths[slot] += 1;
        }
        true
    }

    /// Cuts a slot to `count` pages without regard to the rule on last pages: for undoing [`Tables::grow`].
    pub fn shrink(&mut self, slot: usize, count: usize, pages: &mut Pages) {
        while self.lengths[slot] > count {
            self.lengths[slot] -= 1;
            if self.lengths[slot] >= self.firsts[slot] {
                pages.release(self.entries[slot * self.stride + self.lengths[slot]]);
            }
        }
        self.firsts[slot] = self.firsts[slot].min(self.lengths[slot]);
    }

    /// Gives up the pages of a slot before the one at `first`.
    pub fn drop_front(&mut self, slot: usize, first: usize, pages: &mut Pages) {
        while self.firsts[slot] < first.min(self.lengths[slot]) {
            pages.release(self.entries[slot * self.stride + self.firsts[slot]]);
            self.firsts[slot] += 1;
        }
    }

    /// Cuts a slot to `count` pages; the copy to make when the new last page was shared.
    pub fn truncate(&mut self, slot: usize, count: usize, pages: &mut Pages) -> Option<PageCopy> {
        self.shrink(slot, count, pages);
        let last = self.lengths[slot].checked_sub(1).filter(|&last| last >= self.firsts[slot])?;
        let entry = slot * self.stride + last;
        let from = self.entries[entry];
        if pages.holders[from as usize] == 1 {
            return None;
        }
        // The old last page was this slot's alone, so cutting it off has freed at least one.
        let to = pages.take().expect("a page was freed");
        pages.release(from);
        self.entries[entry] = to;
        Some(PageCopy { from, to })
    }

    /// Gives the empty slot `to` the pages of `from`, all shared but the last, which must be copied. `Err` holds the number of
    /// missing pages.
    pub fn fork(&mut self, from: usize, to: usize, pages: &mut Pages) -> Result<Option<PageCopy>, usize> {
        debug_assert_eq!(self.lengths[to], 0);
        let first = self.firsts[from];
        let Some(last) = self.lengths[from].checked_sub(1).filter(|&last| last >= first) else { return Ok(None) };
        let fresh = pages.take().ok_or(1usize)?;
        let (source, target) = (from * self.stride, to * self.stride);
        self.firsts[to] = first;
        for index in first..last {
            let page = self.entries[source + index];
            pages.share(page);
            self.entries[target + index] = page;
        }
        self.entries[target + last] = fresh;
        self.lengths[to] = last + 1;
        Ok(Some(PageCopy { from: self.entries[source + last], to: fresh }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pool(pages: usize, slots: usize) -> (Pages, Tables) {
        (Pages::new(pages).unwrap(), Tables::new(slots, pages).unwrap())
    }

    #[test]
    fn growing_beyond_the_pool_changes_nothing() {
        let (mut pages, mut tables) = pool(3, 2);
        assert!(tables.grow(0, 2, &mut pages));
        assert!(!tables.grow(1, 2, &mut pages));
        assert_eq!((tables.of(1).len(), pages.free()), (0, 1));
    }

    #[test]
    fn a_table_never_grows_into_the_next() {
        let (mut pages, mut tables) = (Pages::new(8).unwrap(), Tables::new(2, 2).unwrap());
        assert!(tables.grow(1, 2, &mut pages));
        let of_second = tables.of(1).to_vec();
        assert!(!tables.grow(0, 3, &mut pages));
        assert!(tables.grow(0, 2, &mut pages) && !tables.grow(0, 3, &mut pages));
        assert_eq!((tables.of(0).len(), tables.of(1), pages.free()), (2, &of_second[..], 4));
    }

    #[test]
    fn a_fork_shares_all_but_the_last_page() {
        let (mut pages, mut tables) = pool(4, 2);
        assert!(tables.grow(0, 3, &mut pages));
        let copy = tables.fork(0, 1, &mut pages).unwrap().unwrap();
        assert_eq!(tables.of(0)[..2], tables.of(1)[..2]);
        assert_eq!((copy.from, copy.to), (tables.of(0)[2], tables.of(1)[2]));
        assert_ne!(copy.from, copy.to);
        assert_eq!(pages.free(), 0);
        tables.shrink(0, 0, &mut pages);
        assert_eq!(pages.free(), 1);
        tables.shrink(1, 0, &mut pages);
        assert_eq!(pages.free(), 4);
    }

    #[test]
    fn a_table_without_its_first_pages_gives_back_and_shares_what_it_holds() {
        let (mut pages, mut tables) = pool(6, 2);
        assert!(tables.grow(0, 4, &mut pages));
        tables.drop_front(0, 2, &mut pages);
        tables.drop_front(0, 1, &mut pages);
        assert_eq!((tables.first(0), tables.of(0).len(), pages.free()), (2, 4, 4));
        tables.fork(0, 1, &mut pages).unwrap().unwrap();
        assert_eq!((tables.first(1), tables.of(1)[2], pages.free()), (2, tables.of(0)[2], 3));
        assert_eq!(tables.truncate(0, 3, &mut pages).unwrap().from, tables.of(1)[2]);
        tables.drop_front(1, 9, &mut pages);
        assert_eq!((tables.first(1), pages.free()), (4, 5));
        assert_eq!(tables.truncate(1, 4, &mut pages), None, "no page is held that could be shared");
        tables.shrink(0, 0, &mut pages);
        tables.shrink(1, 0, &mut pages);
        assert_eq!((tables.first(0), tables.first(1), pages.free()), (0, 0, 6));
        assert!(tables.grow(1, 6, &mut pages));
    }

    #[test]
    fn truncating_into_a_shared_page_copies_it() {
        let (mut pages, mut tables) = pool(4, 2);
        assert!(tables.grow(0, 3, &mut pages));
        tables.fork(0, 1, &mut pages).unwrap();
        let copy = tables.truncate(1, 1, &mut pages).unwrap();
        assert_eq!(copy.from, tables.of(0)[0]);
        assert_eq!(copy.to, tables.of(1)[0]);
        assert_eq!(tables.truncate(0, 1, &mut pages), None);
        assert_eq!(pages.free(), 2);
    }

    #[test]
    fn a_fork_without_a_free_page_takes_nothing() {
        let (mut pages, mut tables) = pool(2, 2);
        assert!(tables.grow(0, 2, &mut pages));
        assert_eq!(tables.fork(0, 1, &mut pages), Err(1));
        assert!(tables.of(1).is_empty());
        assert_eq!(pages.holders, [1, 1]);
    }
}
