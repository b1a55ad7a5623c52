//! States of layers in a saved sequence: its marks, the oldest first, then the states that it goes on from. Each stands behind the number of its
//! tokens and its kind, in the blocks that a record has.

use super::limits::MAX_MARKS;
use super::saved::{Reader, Writer};
use super::saved_header::{Header, bad};
use super::session::Session;
use crate::error::{Error, Result, filled};
use crate::kv::state::{Kept, Shape};
use crate::speculate;
use std::sync::atomic::{AtomicBool, Ordering};

/// What memory is for.
const WHAT: &str = "states of a saved sequence";
/// Kinds of states: a mark, and one that the host has set.
const MARK: u64 = 1;
const BY_HOST: u64 = 2;
/// Tokens that the states may lack of what is evaluated: as many as there are drafts in a pass.
const MOST_BEHIND: u64 = speculate::MAX_DRAFTS as u64;

/// The states of a sequence that are saved.
pub struct SavedStates {
    marks: Vec<Kept>,
    last: [Option<Kept>; 2],
}

impl SavedStates {
    /// Those of a slot.
    pub fn of(session: &Session, slot: usize) -> Result<SavedStates> {
        let Some(states) = &session.states else { return Ok(SavedStates { marks: Vec::new(), last: [None; 2] }) };
        Ok(SavedStates { marks: states.marks_of(slot)?, last: states.last(slot) })
    }

    /// The header of a sequence with these.
    pub fn counted(&self, header: Header) -> Header {
        let (marks, states) = (self.marks.len() as u32, self.last.iter().flatten().count() as u32);
        Header { marks, states, ..header }
    }

    /// Gives them out.
    pub fn write(&self, session: &mut Session, cancel: &AtomicBool, writer: &mut Writer) -> Result<()> {
        let mut bytes = filled(state_bytes(session), 0u8, WHAT)?;
        for state in self.marks.iter().chain(self.last.iter().flatten()) {
            go_on(cancel)?;
            session.runner.read_record(state.record, &mut bytes)?;
            let kind = u64::from(state.is_mark) * MARK + u64::from(state.is_mark && state.by_host) * BY_HOST;
            writer.put(&(state.length as u64).to_le_bytes())?;
            writer.put(&kind.to_le_bytes())?;
            writer.put(&bytes)?;
        }
        Ok(())
    }
}

/// Refuses numbers of states that cannot be.
pub fn check(session: &Session, header: &Header) -> Result<()> {
    let (most, marks) = if session.states.is_some() { (2, MAX_MARKS as u32) } else { (0, 0) };
    if header.states > most || (most > 0 && header.states == 0 && header.evaluated > MOST_BEHIND) {
        return Err(bad(&format!("it has {} states, the model's layers keep {most}", header.states)));
    }
    if header.marks > marks {
        return Err(bad(&format!("it has {} marks, {marks} are possible", header.marks)));
    }
    Ok(())
}

/// Fills the states of an empty slot, and its marks as far as there is room for more: the oldest are left out. On failure some are filled.
pub fn read(
    session: &mut Session,
    slot: usize,
    header: &Header,
    cancel: &AtomicBool,
    reader: &mut Reader,
) -> Result<()> {
    let mut bytes = filled(state_bytes(session), 0u8, WHAT)?;
    let room = session.states.as_ref().map_or(0, |states| states.room_for_marks());
    for left in (0..header.marks as usize).rev() {
        let (length, kind) = read_one(cancel, reader, &mut bytes)?;
        if length == 0 || length > header.evaluated || kind & MARK == 0 {
            return Err(bad("it has a mark where there cannot be one"));
        }
        if let Some(states) = session.states.as_mut().filter(|_| left < room) {
            let record = states.adopt_mark(slot, length as usize, kind & BY_HOST != 0);
            session.runner.write_record(record, &bytes)?;
        }
    }
    let mut end = None;
    for left in (0..u64::from(header.states)).rev() {
        let (length, kind) = read_one(cancel, reader, &mut bytes)?;
        let last = length.checked_add(left).filter(|&last| length > 0 && last <= header.evaluated);
        let is_right = |&last: &u64| header.evaluated - last <= MOST_BEHIND && *end.get_or_insert(last) == last;
        if last.filter(is_right).is_none() {
            return Err(bad("its states are of other tokens"));
        }
        let states = session.states.as_mut().expect("the header was checked against the model");
        let record = states.adopt(slot, length as usize);
        if kind & MARK != 0 {
            states.mark_adopted(slot, kind & BY_HOST != 0);
        }
        session.runner.write_record(record, &bytes)?;
    }
    Ok(())
}

/// The next state: the number of its tokens, and its kind.
fn read_one(cancel: &AtomicBool, reader: &mut Reader, bytes: &mut [u8]) -> Result<(u64, u64)> {
    go_on(cancel)?;
    let mut numbers = [[0; 8]; 2];
    reader.fill(numbers.as_flattened_mut())?;
    let [length, kind] = numbers.map(u64::from_le_bytes);
    if ![0, MARK, MARK | BY_HOST].contains(&kind) {
        return Err(bad(&format!("it has a state of the unknown kind {kind}")));
    }
    reader.fill(bytes)?;
    Ok((length, kind))
}

fn go_on(cancel: &AtomicBool) -> Result<()> {
    if cancel.load(Ordering::Relaxed) { Err(Error::Cancelled) } else { Ok(()) }
}

/// Bytes of all states of a sequence at one place; 0 for models without.
fn state_bytes(session: &Session) -> usize {
    let elements: usize = session.model().program().states.iter().map(Shape::elements).sum();
    elements * size_of::<f32>()
}
