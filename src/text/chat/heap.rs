//! Memory of values: texts, lists and dictionaries that pay as they grow, and give back when they are dropped.

use super::budget::{Budget, Hold, block_bytes};
use super::key::Key;
use super::value::{VALUES, Value};
use crate::error::{self, Result};
use indexmap::IndexMap;
use std::cmp::Ordering;
use std::hash::{Hash, Hasher};
use std::ops::{Deref, DerefMut};
use std::rc::Rc;

/// Units of work for writing a piece of text, beside those for its bytes.
const PIECE_UNITS: usize = 10;
/// Bytes of text that are copied, or of memory that is taken for text, in a unit of work.
const BYTES_A_UNIT: usize = 16;
/// Room of a container that begins to grow.
const FIRST_ROOM: usize = 4;
/// Units of work for a new entry of a dictionary: its hash, and its share of growing.
const ENTRY_UNITS: usize = 128;

/// The room of a container that must hold `needed`, in elements: doubled, so that growing takes linear time.
fn room_for(needed: usize, room: usize) -> usize {
    needed.max(room.saturating_mul(2)).max(FIRST_ROOM)
}

/// Text that values share, with the memory it has paid for. The empty text holds none.
#[derive(Clone, Default)]
pub(super) struct Str {
    held: Option<Rc<Held>>,
    /// Whether it counts as HTML, so that what joins it is escaped.
    markup: bool,
}

struct Held {
    text: String,
    _hold: Hold,
}

impl Str {
    /// Pays for and makes a copy of `text`.
    pub(super) fn of(budget: &Budget, text: &str) -> Result<Str> {
        let mut copy = Text::new(budget);
        copy.push(text)?;
        Ok(copy.finish())
    }

    /// Whether the text counts as HTML.
    pub(super) fn is_markup(&self) -> bool {
        self.markup
    }

    /// The same text, which counts as HTML.
    pub(super) fn marked(self) -> Str {
        Str { markup: true, ..self }
    }
}

impl Deref for Str {
    type Target = str;

    fn deref(&self) -> &str {
        self.held.as_ref().map_or("", |held| &held.text)
    }
}

impl PartialEq for Str {
    fn eq(&self, other: &Str) -> bool {
        **self == **other
    }
}

impl Eq for Str {}

impl PartialOrd for Str {
    fn partial_cmp(&self, other: &Str) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Str {
    fn cmp(&self, other: &Str) -> Ordering {
        (**self).cmp(&**other)
    }
}

impl Hash for Str {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (**self).hash(state);
    }
}

/// Text under construction.
pub(super) struct Text {
    text: String,
    room: usize,
    hold: Hold,
}

impl Text {
    /// No text yet.
    pub(super) fn new(budget: &Budget) -> Text {
        Text { text: String::new(), room: 0, hold: Hold::new(budget) }
    }

    /// No text yet, and room for `bytes` of it.
    pub(super) fn with_room(budget: &Budget, bytes: usize) -> Result<Text> {
        let mut text = Text::new(budget);
        text.grow(bytes)?;
        Ok(text)
    }

    /// Appends `part`.
    pub(super) fn push(&mut self, part: &str) -> Result<()> {
        self.budget().work(part.len() / BYTES_A_UNIT + PIECE_UNITS)?;
        self.grow(part.len())?;
        self.text.push_str(part);
        Ok(())
    }

    /// Appends a character.
    pub(super) fn push_char(&mut self, c: char) -> Result<()> {
        self.push(c.encode_utf8(&mut [0; 4]))
    }

    /// Appends `part` `count` times.
    pub(super) fn repeat(&mut self, part: &str, count: usize) -> Result<()> {
        let bytes = part.len().saturating_mul(count);
        if bytes == 0 {
            return Ok(());
        }
        self.grow(bytes)?;
        self.budget().work(bytes / BYTES_A_UNIT + PIECE_UNITS)?;
        let start = self.text.len();
        self.text.push_str(part);
        // What is there is copied behind itself, twice as much each time.
        loop {
            let missing = start + bytes - self.text.len();
            if missing == 0 {
                return Ok(());
            }
            let end = start + missing.min(self.text.len() - start);
            self.text.extend_from_within(start..end);
        }
    }

    fn grow(&mut self, more: usize) -> Result<()> {
        let needed = self.text.len().saturating_add(more);
        if needed <= self.room {
            return Ok(());
        }
        let room = if self.room == 0 { needed } else { room_for(needed, self.room) };
        self.hold.resize(0)?;
        self.hold.block(room)?;
        self.hold.counted::<Held>()?;
        self.budget().work(room / BYTES_A_UNIT)?;
        let len = self.text.len();
        error::room(room, VALUES, || self.text.try_reserve_exact(room - len))?;
        self.room = room;
        Ok(())
    }

    /// The text.
    pub(super) fn finish(self) -> Str {
        let Text { text, hold, .. } = self;
        if text.is_empty() {
            Str::default()
        } else {
            Str { held: Some(Rc::new(Held { text, _hold: hold })), markup: false }
        }
    }

    /// The text as a value.
    pub(super) fn value(self) -> Value {
        Value::Text(self.finish())
    }

    /// Who pays.
    pub(super) fn budget(&self) -> &Budget {
        self.hold.budget()
    }
}

/// A list under construction, of values or of anything else that an operation must remember.
pub(super) struct Buffer<T> {
    items: Vec<T>,
    room: usize,
    hold: Hold,
}

impl<T> Buffer<T> {
    /// An empty one.
    pub(super) fn new(budget: &Budget) -> Buffer<T> {
        Buffer { items: Vec::new(), room: 0, hold: Hold::new(budget) }
    }

    /// All items of an iterator.
    pub(super) fn of(budget: &Budget, items: impl IntoIterator<Item = T>) -> Result<Buffer<T>> {
        Buffer::gathered(budget, items.into_iter().map(Ok))
    }

    /// All items of an iterator, or its first error.
    pub(super) fn gathered(budget: &Budget, items: impl IntoIterator<Item = Result<T>>) -> Result<Buffer<T>> {
        let items = items.into_iter();
        let mut all = Buffer::new(budget);
        all.grow_to(items.size_hint().0)?;
        for item in items {
            all.push(item?)?;
        }
        Ok(all)
    }

    /// Appends `item`.
    pub(super) fn push(&mut self, item: T) -> Result<()> {
        self.hold.budget().work(size_of::<T>())?;
        if self.items.len() == self.room {
            self.grow_to(room_for(self.room + 1, self.room))?;
        }
        self.items.push(item);
        Ok(())
    }

    fn grow_to(&mut self, room: usize) -> Result<()> {
        let bytes = room.saturating_mul(size_of::<T>());
        self.hold.resize(block_bytes(bytes))?;
        let len = self.items.len();
        error::room(bytes, VALUES, || self.items.try_reserve_exact(room.saturating_sub(len)))?;
        self.room = room;
        Ok(())
    }

    /// Takes the last item away.
    pub(super) fn pop(&mut self) -> Option<T> {
        self.items.pop()
    }

    /// Takes away the item at `index`.
    pub(super) fn remove(&mut self, index: usize) -> T {
        self.items.remove(index)
    }

    /// What it has paid.
    pub(super) fn hold_mut(&mut self) -> &mut Hold {
        &mut self.hold
    }
}

impl<T> Deref for Buffer<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        &self.items
    }
}

impl<T> DerefMut for Buffer<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        &mut self.items
    }
}

impl<T> IntoIterator for Buffer<T> {
    type Item = T;
    type IntoIter = Drain<T>;

    fn into_iter(self) -> Drain<T> {
        Drain { items: self.items.into_iter(), _hold: self.hold }
    }
}

/// The items of a [`Buffer`], one after the other.
pub(super) struct Drain<T> {
    items: std::vec::IntoIter<T>,
    _hold: Hold,
}

impl<T> Iterator for Drain<T> {
    type Item = T;

    fn next(&mut self) -> Option<T> {
        self.items.next()
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.items.size_hint()
    }
}

impl<T> ExactSizeIterator for Drain<T> {}

/// The entries of a dictionary, in order of insertion.
pub(super) struct Entries {
    map: IndexMap<Key, Value>,
    room: usize,
    hold: Hold,
}

impl Entries {
    /// No entries yet.
    pub(super) fn new(budget: &Budget) -> Entries {
        Entries { map: IndexMap::new(), room: 0, hold: Hold::new(budget) }
    }

    /// Adds an entry, or replaces the value of its key.
    pub(super) fn insert(&mut self, key: Key, value: Value) -> Result<()> {
        self.hold.budget().work(ENTRY_UNITS)?;
        if self.map.len() == self.room {
            let room = room_for(self.room + 1, self.room);
            // An entry with its hash, and places of a table that is never fuller than seven eighths.
            let entry = size_of::<(usize, Key, Value)>();
            self.hold.resize(block_bytes(room.saturating_mul(entry)))?;
            self.hold.block(room.next_power_of_two().saturating_mul(2 * (size_of::<usize>() + 1)))?;
            let more = room - self.map.len();
            error::room(room.saturating_mul(entry), VALUES, || self.map.try_reserve_exact(more))?;
            self.room = room;
        }
        self.map.insert(key, value);
        Ok(())
    }

    /// What it has paid.
    pub(super) fn hold_mut(&mut self) -> &mut Hold {
        &mut self.hold
    }
}

impl Deref for Entries {
    type Target = IndexMap<Key, Value>;

    fn deref(&self) -> &IndexMap<Key, Value> {
        &self.map
    }
}
