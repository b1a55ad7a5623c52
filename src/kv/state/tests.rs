//! Random walks over slots whose records hold the tokens that they are the state of.

use super::*;

/// Slots whose tokens are known, and what passes have put into each record.
struct World {
    states: States,
    contents: Vec<Option<Vec<u32>>>,
    tokens: Vec<Vec<u32>>,
    /// A linear congruence.
    random: u64,
}

impl World {
    fn new(slots: usize, marks: usize, seed: u64) -> World {
        World {
            states: States::new(slots, marks, true).unwrap(),
            contents: vec![None; records(slots, marks, true)],
            tokens: vec![Vec::new(); slots],
            random: seed,
        }
    }

    fn bits(&mut self) -> u32 {
        self.random = self.random.wrapping_mul(0x5851_F42D_4C95_7F2D).wrapping_add(0x1405_7B7E_F767_814F);
        (self.random >> 33) as u32
    }

    fn below(&mut self, end: usize) -> usize {
        self.bits() as usize % end
    }

    /// The tokens behind which the state in a record is.
    fn content(&self, record: Option<u32>) -> Vec<u32> {
        record.map_or(Vec::new(), |record| self.contents[record as usize].clone().unwrap())
    }

    /// A pass of several slots, each with so many rows, that ends well or does not.
    fn pass(&mut self, parts: &[(usize, usize)], is_good: bool) {
        for &(slot, rows) in parts {
            self.states.plan(slot, rows, true);
        }
        let mut written = Vec::new();
        for &(slot, rows) in parts {
            let Move { from, to, before } = self.states.moves()[slot];
            assert_eq!(self.content(from), self.tokens[slot][..self.states.length(slot)]);
            let added = (0..rows).map(|_| self.bits()).collect::<Vec<_>>();
            let start = self.states.length(slot);
            self.tokens[slot].truncate(start);
            self.tokens[slot].extend(added);
            for (record, less) in [(Some(to), 0), (before, 1)] {
                let Some(record) = record else { continue };
                assert!(!written.contains(&record), "two writers of a record");
                written.push(record);
                let end = self.tokens[slot].len() - less;
                self.contents[record as usize] = Some(self.tokens[slot][..end].to_vec());
            }
            if !is_good {
                self.tokens[slot].truncate(start);
            }
        }
        for &(slot, _) in parts {
            let end = self.tokens[slot].len();
            if is_good {
                self.states.commit(slot, end);
            } else {
                self.states.abandon(slot);
            }
        }
        self.check();
    }

    /// A pass of one slot whose last rows are guesses, of which the first `right` rows are right, one at least.
    fn guess(&mut self, slot: usize, rows: usize, right: usize) {
        let start = self.states.length(slot);
        assert_eq!(self.tokens[slot].len(), start);
        self.states.plan(slot, rows, false);
        let Move { from, to, before } = self.states.moves()[slot];
        assert_eq!(self.content(from), self.tokens[slot]);
        let rows_of: Vec<u32> = (0..rows).map(|_| self.bits()).collect();
        for (record, less) in [(Some(to), 0), (before, 1)] {
            let Some(record) = record else { continue };
            let end = [&self.tokens[slot][..], &rows_of[..rows - less]].concat();
            self.contents[record as usize] = Some(end);
        }
        self.tokens[slot].extend(&rows_of[..right]);
        let reached = self.states.commit(slot, start + right);
        assert_eq!(reached, if right + 1 >= rows { start + right } else { start });
        // One of these is there to go back to, if the host wants none of the guesses.
        assert!(rows == 1 || self.states.nearest(slot, start) == start);
        self.tokens[slot].truncate(reached);
        self.check();
    }

    /// Every snapshot of every slot holds what its slot has evaluated.
    fn check(&self) {
        for (slot, tokens) in self.states.slots.iter().zip(&self.tokens) {
            for found in slot.current.iter().chain(&slot.previous).chain(&slot.marks) {
                assert_eq!(self.content(Some(found.record)), tokens[..found.length]);
            }
        }
        assert!(self.states.marks() <= self.states.most_marks);
    }
}

#[test]
fn every_snapshot_holds_what_its_sequence_has_evaluated() {
    for (seed, (slots, marks)) in [(1, 1), (3, 1), (2, 5), (5, 9)].into_iter().enumerate() {
        let mut world = World::new(slots, marks, seed as u64 + 1);
        for _ in 0..3000 {
            let slot = world.below(slots);
            let length = world.states.length(slot);
            match world.below(12) {
                0..6 => {
                    let mut parts = Vec::new();
                    for slot in 0..slots {
                        if world.below(3) > 0 {
                            parts.push((slot, [1, 1, 1, 2, 40][world.below(5)]));
                        }
                    }
                    let is_good = world.below(5) > 0;
                    world.pass(&parts, is_good);
                }
                6 => {
                    let to = world.below(length + 1);
                    let found = world.states.nearest(slot, to);
                    assert_eq!(world.states.cut(slot, to), found);
                    world.tokens[slot].truncate(to);
                }
                7 => {
                    let most = world.below(length + 1);
                    let found = world.states.nearest(slot, most);
                    assert_eq!(world.states.rewind(slot, most), found);
                    // The next pass gives other tokens here, so the marks behind do not hold them.
                    world.states.cut(slot, found);
                    world.tokens[slot].truncate(found);
                }
                8 => world.states.mark(slot, length),
                9..11 => {
                    let rows = 1 + world.below(8);
                    let right = 1 + world.below(rows);
                    // What is behind the state would be evaluated first.
                    world.tokens[slot].truncate(length);
                    world.states.cut(slot, length);
                    world.guess(slot, rows, right);
                }
                _ => {
                    let to = world.below(slots);
                    if to != slot {
                        world.states.fork(slot, to);
                        world.tokens[to] = world.tokens[slot].clone();
                    }
                }
            }
            world.check();
        }
        (0..slots).for_each(|slot| world.states.clear(slot));
        assert!(world.states.records.iter().all(|record| record.users == 0 && record.marked == 0));
    }
}

#[test]
fn the_last_token_can_be_evaluated_again_after_every_pass() {
    let mut world = World::new(2, 2, 7);
    for rows in [1, 40, 1, 1, 300, 2, 1] {
        world.pass(&[(0, rows), (1, 3)], true);
        let length = world.states.length(0);
        assert_eq!(world.states.nearest(0, length - 1), length - 1);
    }
}

#[test]
fn the_oldest_marks_go_first_and_few_stand_close() {
    let mut world = World::new(1, 5, 9);
    for _ in 0..7 {
        world.pass(&[(0, 100)], true);
    }
    let at = |world: &World, most: usize| world.states.nearest(0, most);
    assert_eq!([at(&world, 698), at(&world, 598), at(&world, 398), at(&world, 298)], [599, 499, 299, 0]);
    // Many short passes take the place of one older mark.
    for _ in 0..15 {
        world.pass(&[(0, 2)], true);
    }
    assert_eq!([at(&world, 728), at(&world, 698), at(&world, 598), at(&world, 498)], [699, 599, 499, 399]);
    // A turn now and then leaves a mark behind each.
    let mut world = World::new(1, 9, 9);
    (0..4).for_each(|_| world.pass(&[(0, 20)], true));
    assert_eq!([at(&world, 78), at(&world, 58), at(&world, 38), at(&world, 18)], [59, 39, 19, 0]);
}

#[test]
fn marks_of_the_host_stay_where_they_are() {
    let mut world = World::new(2, 3, 11);
    world.pass(&[(0, 10)], true);
    world.states.mark(0, 10);
    assert_eq!(world.states.nearest(0, 9), 9);
    world.pass(&[(0, 1)], true);
    // The last token is not evaluated yet.
    world.states.mark(0, 12);
    world.pass(&[(0, 5)], true);
    assert_eq!([world.states.nearest(0, 14), world.states.nearest(0, 10)], [11, 9]);
    world.states.fork(0, 1);
    world.tokens[1] = world.tokens[0].clone();
    world.states.clear(0);
    world.tokens[0].clear();
    assert_eq!(world.states.cut(1, 12), 11);
}
