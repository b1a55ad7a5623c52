//! Slices of prompts: how many rows a step may give them, so that it ends in time.
//!
//! A session learns what its passes take by the number of their rows, prompts and single tokens alike (`speculate::Costs`). A step within a budget
//! gets as many rows of prompts as are expected to end in time beside those of single tokens; where nothing is known yet it begins with one, and
//! the number grows as passes are measured.

use super::session::Session;
use std::time::Duration;

impl Session {
    /// Rows of prompts that a step of these sequences may have: what a pass takes, which is more where no stream waits for it, or within `budget` as
    /// many as are expected to end in time, and at least one, so that every prompt comes to its end.
    pub(super) fn prompt_rows_within(&self, ids: &[i32], budget: Option<Duration>) -> usize {
        let runs = |&id: &i32| self.slot(id).is_ok_and(|slot| !self.sequence(slot).has_prompt());
        let most = if ids.iter().any(runs) { self.max_prefill() } else { self.max_prompt() };
        let Some(budget) = budget else { return most };
        let single: usize = ids.iter().map(|&id| self.single_rows(id)).sum();
        let rows = self.costs.rows_within(budget.as_nanos() as f64, single + most);
        rows.saturating_sub(single).clamp(1, most)
    }

    /// Rows that a pass has for a sequence whose prompt is evaluated: its last token, drafts behind it, and what its states lack before it.
    fn single_rows(&self, id: i32) -> usize {
        match self.slot(id) {
            Ok(slot) if !self.sequence(slot).has_prompt() => {
                let drafter = self.sequence(slot).drafter.as_ref();
                self.sequence(slot).pending().count + drafter.map_or(0, |drafter| drafter.evaluated().len())
            }
            _ => 0,
        }
    }
}
