//! Damage to a file of any format.

use super::dice::Dice;

/// Changes bytes without regard to what they mean, half of the time in the first `head`: most of a file is weights, and damage matters before them.
pub fn damage(bytes: &mut Vec<u8>, head: usize, dice: &mut Dice) {
    if bytes.is_empty() {
        return;
    }
    let bound = if dice.one_in(2) { bytes.len().min(head) } else { bytes.len() };
    let at = dice.below(bound);
    match dice.below(6) {
        0 => bytes.truncate(at),
        1 => drop(bytes.drain(at..(at + 1 + dice.below(64)).min(bytes.len()))),
        2 => {
            let count = 1 + dice.below(64);
            let inserted = dice.bytes(count);
            bytes.splice(at..at, inserted);
        }
        3 => {
            let number = dice.number().to_le_bytes();
            bytes[at..].iter_mut().zip(number).for_each(|(byte, new)| *byte = new);
        }
        4 => bytes[at] ^= 1 << dice.below(8),
        _ => (0..1 + dice.below(16)).for_each(|_| {
            let at = dice.below(bound);
            bytes[at] = dice.byte();
        }),
    }
}
