//! The state of layers that see the tokens before them through something of fixed size: which record of memory holds that of which sequence,
//! and after how many tokens. What a record holds is the program's business, where it lies the device's.
//!
//! A record is never changed once a pass has filled it: a pass reads the record of a sequence and writes another, so that one that fails or is
//! cancelled leaves everything as it was, forks share records, and going back means to read an older one. A state cannot be cut, so a
//! sequence goes back to a snapshot, a record kept from before, and evaluates the tokens behind it again. There is always one of
//! a token less where that can be had, because the last token is evaluated again where its logits are gone; and there are
//! marks, which passes over several tokens set near their ends, and the host where it likes.
//!
//! A pass may end with guesses at tokens to come. It fills the state behind the last of them and that behind the one before; where fewer were
//! right, its slot stays at the state that the pass began with, and evaluates again what was right.
//!
//! Two records a slot suffice for every pass, three where passes have guesses; marks have as many more. Nothing here allocates after [`States::new`].

pub use kept::Kept;

use crate::error::{Error, Result, filled, reserve};

mod kept;

/// What a part of a program keeps of a sequence. All its elements are f32; before the first token they are zeros.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// The last rows of a value, the oldest first.
    Rows {
        /// How many.
        count: usize,
        /// Elements of each.
        width: usize,
    },
    /// A matrix for each head.
    Matrices {
        /// Heads.
        heads: usize,
        /// Rows of each matrix.
        rows: usize,
        /// Columns of each matrix.
        cols: usize,
    },
}

/// Columns of matrices, and elements of states, are kept in whole blocks of so many.
pub const BLOCK: usize = 16;

impl Shape {
    /// Elements that a record has for it, those included that fill the blocks.
    pub fn elements(&self) -> usize {
        let elements = match *self {
            Shape::Rows { count, width } => count.saturating_mul(width),
            Shape::Matrices { heads, rows, cols } => {
                heads.saturating_mul(rows).saturating_mul(cols.div_ceil(BLOCK).saturating_mul(BLOCK))
            }
        };
        elements.div_ceil(BLOCK).saturating_mul(BLOCK)
    }
}

/// Where in a record each state of these shapes begins, in elements, and where the last one ends.
pub fn starts(shapes: &[Shape]) -> Result<Vec<usize>> {
    let what = "states of layers";
    let mut starts = reserve(shapes.len() + 1, what)?;
    starts.push(0usize);
    for shape in shapes {
        let end = starts[starts.len() - 1].checked_add(shape.elements());
        starts.push(end.filter(|&end| end < usize::MAX).ok_or_else(|| Error::out_of_memory(what, usize::MAX))?);
    }
    Ok(starts)
}

/// Which records the pass of a sequence reads and writes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Move {
    /// The state before its first row; none where that is the beginning.
    pub from: Option<u32>,
    /// Receives the state behind its last row.
    pub to: u32,
    /// Receives the state before its last row, where that is wanted.
    pub before: Option<u32>,
}

/// Tokens between two marks of a sequence that are close enough to do without one that a pass has set between them.
const APART: usize = 32;
/// Marks where a host does not say how many: this, and one for each sequence.
const DEFAULT_MARKS: usize = 4;

/// How many marks a session of so many sequences keeps where its host does not say.
pub fn default_marks(slots: usize) -> usize {
    slots + DEFAULT_MARKS
}

/// How many records so many slots and marks need, in a session whose passes have guesses or have none.
pub fn records(slots: usize, marks: usize, guesses: bool) -> usize {
    slots.saturating_mul(if guesses { 3 } else { 2 }).saturating_add(marks)
}

/// A record that holds the state behind the first `length` tokens of a sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Snapshot {
    length: usize,
    record: u32,
    by_host: bool,
}

/// What a record is used for.
#[derive(Clone, Copy, Debug, Default)]
struct Record {
    /// Places that name it.
    users: u32,
    /// When it became a mark; 0 where it is none.
    marked: u64,
    /// Whether a pass that has not ended fills it.
    is_open: bool,
}

/// The states of one sequence.
#[derive(Debug, Default)]
struct Slot {
    current: Option<Snapshot>,
    /// One token before `current`, or where a pass with guesses began.
    previous: Option<Snapshot>,
    marks: Vec<Snapshot>,
    /// Of a pass that has not ended.
    moving: Option<Moving>,
}

/// What a pass that has not ended does to a slot.
#[derive(Clone, Copy, Debug)]
struct Moving {
    moved: Move,
    /// Tokens behind which `moved.to` is.
    end: usize,
    /// Whether `moved.before` becomes a mark.
    marks: bool,
}

/// The records of a session.
#[derive(Debug)]
pub struct States {
    records: Vec<Record>,
    slots: Vec<Slot>,
    most_marks: usize,
    clock: u64,
    moves: Vec<Move>,
}

impl States {
    /// Records for `slots` sequences and `marks` snapshots of them, at least one; with room for guesses, where passes have some.
    pub fn new(slots: usize, marks: usize, guesses: bool) -> Result<States> {
        let what = "states of layers";
        let mut all = reserve(slots, what)?;
        for _ in 0..slots {
            all.push(Slot { marks: reserve(marks, what)?, ..Slot::default() });
        }
        let records = filled(records(slots, marks, guesses), Record::default(), what)?;
        Ok(States { records, slots: all, most_marks: marks, clock: 0, moves: filled(slots, Move::default(), what)? })
    }

    /// Bytes that [`States::new`] reserves at most, for so many records.
    pub fn bytes(slots: usize, records: usize) -> usize {
        records * size_of::<Record>() + slots * (records * size_of::<Snapshot>() + size_of::<Slot>())
    }

    /// The moves of the pass that is planned, by slot.
    pub fn moves(&self) -> &[Move] {
        &self.moves
    }

    /// Tokens of a slot behind which its state is.
    pub fn length(&self, slot: usize) -> usize {
        self.slots[slot].current.map_or(0, |current| current.length)
    }

    /// The most tokens, `most` of them or fewer, behind which the state of a slot is kept; 0 is the beginning.
    pub fn nearest(&self, slot: usize, most: usize) -> usize {
        self.best(slot, most).map_or(0, |found| found.length)
    }

    /// Plans a pass of the next `rows` tokens of a slot, one at least. Several end with guesses, or, if they are of a prompt, leave a mark.
    pub fn plan(&mut self, slot: usize, rows: usize, is_prompt: bool) {
        let end = self.length(slot) + rows;
        if let Some(previous) = self.slots[slot].previous.take() {
            self.release(previous.record);
        }
        let to = self.take();
        let before = match rows {
            1 => None,
            _ if is_prompt => self.take_mark(slot, end - 1),
            _ => Some(self.take()),
        };
        let from = self.slots[slot].current.map(|current| current.record);
        self.moves[slot] = Move { from, to, before };
        self.slots[slot].moving = Some(Moving { moved: self.moves[slot], end, marks: is_prompt });
    }

    /// Notes that the pass has ended well, and that its rows are right up to the first `right` tokens; does nothing for a slot that had no part in
    /// it. How many tokens the slot's state is behind now.
    pub fn commit(&mut self, slot: usize, right: usize) -> usize {
        let Some(Moving { moved, end, marks }) = self.slots[slot].moving.take() else { return self.length(slot) };
        let Move { to, before, .. } = moved;
        let found = match end - right {
            0 => Some(to),
            1 => before,
            _ => None,
        };
        for record in [Some(to), before].into_iter().flatten() {
            self.records[record as usize].is_open = false;
            if found != Some(record) && !marks {
                self.release(record);
            }
        }
        let Some(record) = found else { return self.length(slot) };
        let snapshot = |length, record| Snapshot { length, record, by_host: false };
        let old = self.slots[slot].current.replace(snapshot(right, record));
        let mark = before.filter(|_| marks).map(|record| snapshot(end - 1, record));
        if let Some(mark) = mark {
            self.slots[slot].previous = Some(mark);
            self.records[mark.record as usize].users += 1;
            self.list(slot, mark);
        }
        if let Some(old) = old {
            let is_next = old.length + 1 == right || (before.is_some() && !marks);
            if is_next && mark.is_none() {
                self.slots[slot].previous = Some(old);
            } else {
                self.release(old.record);
            }
        }
        right
    }

    /// Forgets a pass that did not end well.
    pub fn abandon(&mut self, slot: usize) {
        let Some(Moving { moved: Move { to, before, .. }, .. }) = self.slots[slot].moving.take() else { return };
        [Some(to), before].into_iter().flatten().for_each(|record| self.release(record));
    }

    /// Gives the empty slot `to` the states of `from`.
    pub fn fork(&mut self, from: usize, to: usize) {
        self.clear(to);
        let mut target = std::mem::take(&mut self.slots[to]);
        let source = &self.slots[from];
        (target.current, target.previous) = (source.current, source.previous);
        target.marks.extend_from_slice(&source.marks);
        for snapshot in target.current.iter().chain(&target.previous).chain(&target.marks) {
            self.records[snapshot.record as usize].users += 1;
        }
        self.slots[to] = target;
    }

    /// Gives up all states of a slot, which is at its beginning then.
    pub fn clear(&mut self, slot: usize) {
        self.cut(slot, 0);
    }

    /// Keeps what belongs to the first `length` tokens of a slot, and goes back to the last state among them; its number of tokens.
    pub fn cut(&mut self, slot: usize, length: usize) -> usize {
        self.rewind(slot, length);
        let mut marks = std::mem::take(&mut self.slots[slot].marks);
        marks.retain(|mark| {
            let stays = mark.length <= length && length > 0;
            if !stays {
                self.release(mark.record);
            }
            stays
        });
        self.slots[slot].marks = marks;
        self.length(slot)
    }

    /// Goes back to the last state of a slot behind `most` tokens or fewer; its number of tokens.
    pub fn rewind(&mut self, slot: usize, most: usize) -> usize {
        if self.length(slot) > most {
            let found = self.best(slot, most);
            found.iter().for_each(|found| self.records[found.record as usize].users += 1);
            let Slot { current, previous, .. } = &mut self.slots[slot];
            let old = [std::mem::replace(current, found), previous.take()];
            old.into_iter().flatten().for_each(|old| self.release(old.record));
        }
        self.length(slot)
    }

    /// Marks the last state of a slot behind fewer than `length` tokens, which is where evaluating the last of these again begins.
    pub fn mark(&mut self, slot: usize, length: usize) {
        let Slot { current, previous, .. } = &self.slots[slot];
        let Some(found) = current.iter().chain(previous).find(|found| found.length < length).copied() else { return };
        let index = found.record as usize;
        if self.records[index].marked == 0 && self.marks() >= self.most_marks {
            self.give_up_oldest();
        }
        self.records[index].users += 1;
        self.list_as_mark(slot, Snapshot { by_host: true, ..found });
    }

    /// The last snapshot of a slot behind `most` tokens or fewer.
    fn best(&self, slot: usize, most: usize) -> Option<Snapshot> {
        let Slot { current, previous, marks, .. } = &self.slots[slot];
        let all = current.iter().chain(previous).chain(marks);
        all.filter(|found| found.length <= most).max_by_key(|found| found.length).copied()
    }

    /// Adds a mark to those of its slot, in the place of one of the same length.
    fn list(&mut self, slot: usize, mark: Snapshot) {
        let marks = &mut self.slots[slot].marks;
        match marks.iter_mut().find(|known| known.length == mark.length) {
            Some(known) => {
                let by_host = mark.by_host || known.by_host;
                let old = std::mem::replace(known, Snapshot { by_host, ..mark });
                self.release(old.record);
            }
            None => marks.push(mark),
        }
    }

    /// A record for the state behind `length` tokens of a slot, as a mark; none while passes fill all that there may be.
    fn take_mark(&mut self, slot: usize, length: usize) -> Option<u32> {
        if let Some(near) = self.needless(slot, length) {
            let record = self.slots[slot].marks.swap_remove(near).record;
            self.release(record);
        }
        if self.marks() >= self.most_marks && !self.give_up_oldest() {
            return None;
        }
        let record = self.take();
        self.clock += 1;
        self.records[record as usize].marked = self.clock;
        Some(record)
    }

    /// The mark that a pass has set last before `length`, where those around it lie close enough to each other without; or the one there.
    fn needless(&self, slot: usize, length: usize) -> Option<usize> {
        let marks = &self.slots[slot].marks;
        let before =
            |end: usize| (0..marks.len()).filter(move |&at| marks[at].length < end).max_by_key(|&at| marks[at].length);
        let there = (0..marks.len()).find(|&at| marks[at].length == length);
        let last = there.or_else(|| {
            let last = before(length)?;
            let start = before(marks[last].length).map_or(0, |at| marks[at].length);
            (length - start < APART).then_some(last)
        });
        last.filter(|&at| !marks[at].by_host)
    }

    fn marks(&self) -> usize {
        self.records.iter().filter(|record| record.marked > 0).count()
    }

    /// Makes the oldest mark none; whether there was one.
    fn give_up_oldest(&mut self) -> bool {
        let marked = self.records.iter().enumerate().filter(|(_, record)| record.marked > 0 && !record.is_open);
        let Some((oldest, _)) = marked.min_by_key(|(_, record)| record.marked) else { return false };
        for slot in 0..self.slots.len() {
            let marks = &mut self.slots[slot].marks;
            if let Some(at) = marks.iter().position(|mark| mark.record as usize == oldest) {
                marks.swap_remove(at);
                self.release(oldest as u32);
            }
        }
        self.records[oldest].marked = 0;
        true
    }

    /// A record that nobody uses, for a pass to fill. There is one: of those that are no marks, every slot has two at most, and one
    /// that asks has given one of them up. One that asks for a second, for guesses, has a third.
    fn take(&mut self) -> u32 {
        let free = self.records.iter().position(|record| record.users == 0);
        let free = free.expect("two records a slot, and those of marks, suffice");
        self.records[free] = Record { users: 1, marked: 0, is_open: true };
        free as u32
    }

    fn release(&mut self, record: u32) {
        let record = &mut self.records[record as usize];
        record.users -= 1;
        if record.users == 0 {
            *record = Record::default();
        }
    }
}

#[cfg(test)]
mod tests;
