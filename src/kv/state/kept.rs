//! States of a sequence that leave its session with it, or come from another: those that it goes on from, and its marks.

use super::{Slot, Snapshot, States};
use crate::error::{Result, reserve};

/// A state of a sequence that is saved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kept {
    /// Tokens behind which it is.
    pub length: usize,
    /// Where it lies.
    pub record: u32,
    /// Whether it is a mark.
    pub is_mark: bool,
    /// Whether the host has set that.
    pub by_host: bool,
}

impl States {
    /// What a slot has beside the states that it goes on from: marks, the oldest first.
    pub fn marks_of(&self, slot: usize) -> Result<Vec<Kept>> {
        let Slot { marks, .. } = &self.slots[slot];
        let mut kept = reserve(marks.len(), "marks")?;
        let last = self.last(slot);
        let others = marks.iter().filter(|mark| !last.iter().flatten().any(|last| last.record == mark.record));
        kept.extend(others.map(|mark| mark.kept(true)));
        kept.sort_unstable_by_key(|kept: &Kept| self.records[kept.record as usize].marked);
        Ok(kept)
    }

    /// The states that a slot goes on from: that of the token before its last one, if it is there, and that of its last token.
    pub fn last(&self, slot: usize) -> [Option<Kept>; 2] {
        let &Slot { current, previous, ref marks, .. } = &self.slots[slot];
        let previous = previous.filter(|previous| current.is_some_and(|current| previous.length + 1 == current.length));
        [previous, current].map(|snapshot| {
            let snapshot = snapshot?;
            let mark = marks.iter().find(|mark| mark.record == snapshot.record);
            Some(mark.map_or(snapshot.kept(false), |mark| mark.kept(true)))
        })
    }

    /// How many more marks there is room for.
    pub fn room_for_marks(&self) -> usize {
        self.most_marks.saturating_sub(self.marks())
    }

    /// A record for a mark of a slot behind `length` tokens, which the caller fills; only while there is room for marks.
    pub fn adopt_mark(&mut self, slot: usize, length: usize, by_host: bool) -> u32 {
        let record = self.take();
        self.records[record as usize].is_open = false;
        self.list_as_mark(slot, Snapshot { length, record, by_host });
        record
    }

    /// A record for the state of a slot behind `length` tokens, which the caller fills; that of the token before is adopted first, if at all.
    pub fn adopt(&mut self, slot: usize, length: usize) -> u32 {
        let record = self.take();
        self.records[record as usize].is_open = false;
        let Slot { current, previous, .. } = &mut self.slots[slot];
        *previous = current.replace(Snapshot { length, record, by_host: false });
        record
    }

    /// Makes the state that was adopted last a mark too, where there is room for one.
    pub fn mark_adopted(&mut self, slot: usize, by_host: bool) {
        let Some(current) = self.slots[slot].current.filter(|_| self.room_for_marks() > 0) else { return };
        self.records[current.record as usize].users += 1;
        self.list_as_mark(slot, Snapshot { by_host, ..current });
    }

    /// Lists a mark as the newest of all.
    pub(super) fn list_as_mark(&mut self, slot: usize, mark: Snapshot) {
        self.clock += 1;
        self.records[mark.record as usize].marked = self.clock;
        self.list(slot, mark);
    }
}

impl Snapshot {
    fn kept(&self, is_mark: bool) -> Kept {
        let &Snapshot { length, record, by_host } = self;
        Kept { length, record, is_mark, by_host }
    }
}
