//! Attention of a batch: which rows and heads are computed together, and what each row sees. `attention` computes it.

use super::attention::{MAX_QUERIES, Queries, SET, Scores, Source, attend};
use super::cache::Cache;
use super::pool::Grid;
use super::runner::{CpuRunner, Pass};
use super::tiles::for_each_row;
use crate::backend::{KvType, Row};
use crate::error::Result;
use crate::kv::{HeadSizes, q8};
use crate::plan::op::{AttentionKind, AttentionMask};
use crate::plan::{Op, Program, ValueId};

/// Batch rows from which on attention takes several at once.
const PROMPT_ROWS: usize = 16;
/// Batch rows of a tile of attention then.
const ATTENTION_ROWS: usize = 8;

impl Pass<'_> {
    /// Mixes the values that each row sees.
    pub(super) fn attention(&mut self, kind: AttentionKind, queries: ValueId, out: ValueId) -> Result<()> {
        let (rows, width) = (self.rows_of(out), self.runner.program.values[out.0].width);
        let sizes = self.runner.program.kv.of(kind.layer);
        let HeadSizes { head_dim, value_dim, .. } = sizes;
        let stride = self.runner.program.values[queries.0].width;
        if self.cache().rotates() {
            self.rotate(queries, head_dim)?;
        }
        let mut buffer = self.runner.take(out);
        let (runner, batch, lent) = (&*self.runner, self.batch, self.lent);
        let cache = lent.unwrap_or(&runner.cache);
        let tables = batch.tables_of(cache.reach(kind.layer));
        let (tile_rows, heads) = attention_tile(rows, &sizes, runner.pool.threads());
        let grid = Grid::new(&mut buffer[..rows * width], width, tile_rows, heads * value_dim);
        let (sees_ahead, own) = (kind.mask == AttentionMask::Bidirectional, kind.mask != AttentionMask::Borrowed);
        let result = self.turn.for_each_tile(&[grid], self.cancel, |_, mut tile| {
            let (mut row, first_head) = (tile.first_row(), tile.first_col() / value_dim);
            for rows in batch.rows[row..row + tile.rows()].chunk_by(|a, b| a.slot == b.slot) {
                let pages = tables.of(rows[0].slot as usize);
                let head = first_head / sizes.group();
                let source = Source { cache, pages, layer: kind.layer, head };
                let values = &runner.queries(queries, cache.rotates(), row, rows.len())[first_head * head_dim..];
                let sinks = kind.sinks.map(|id| &runner.program.vectors[id.0][first_head..][..heads]);
                let window = kind.window.unwrap_or(usize::MAX);
                let ahead = if sees_ahead { behind_last(&batch.rows[row..]) } else { 0 };
                let scores = Scores { scale: kind.scale, ahead, own, window, softcap: kind.softcap, sinks };
                let queries = Queries { rows, values, stride, head_dim, value_dim, scores };
                let first = row - tile.first_row();
                attend(runner.kernels, &source, &queries, &mut tile, first);
                row += rows.len();
            }
        });
        self.runner.give_back(out, buffer);
        result
    }

    /// The cache that attention reads.
    fn cache(&self) -> &Cache {
        self.lent.unwrap_or(&self.runner.cache)
    }

    /// Rotates the heads of queries as the keys in the cache are, in a copy.
    fn rotate(&mut self, queries: ValueId, head_dim: usize) -> Result<()> {
        let (rows, width) = (self.rows_of(queries), self.runner.program.values[queries.0].width);
        let mut rotated = std::mem::take(&mut self.runner.rotated);
        let runner = &*self.runner;
        let f = |row: usize, out: &mut [f32]| {
            out.copy_from_slice(runner.row(queries, row));
            runner.kernels.rotate(out, q8::rotated(head_dim));
        };
        let result = for_each_row(&mut self.turn, &mut rotated[..rows * width], width, width, self.cancel, f);
        self.runner.rotated = rotated;
        result
    }
}

impl CpuRunner {
    /// The rows `first..first + count` of queries, rotated or as they are.
    fn queries(&self, id: ValueId, rotated: bool, first: usize, count: usize) -> &[f32] {
        let width = self.program.values[id.0].width;
        match rotated {
            true => &self.rotated[first * width..(first + count) * width],
            false => self.rows(id, first, count),
        }
    }
}

/// Elements of the widest queries of a row that a cache of this type asks to be rotated.
pub(super) fn rotated_width(program: &Program, kv_type: KvType) -> usize {
    let widths = program.all_ops().map(|op| match op {
        Op::Attention { queries, .. } if kv_type == KvType::Q8 => program.values[queries.0].width,
        _ => 0,
    });
    widths.max().unwrap_or(0)
}

/// One behind the last position of the sequence to which the first of `rows` belongs.
fn behind_last(rows: &[Row]) -> usize {
    let same = rows.iter().take_while(|row| row.slot == rows[0].slot);
    same.last().map_or(0, |row| row.position as usize + 1)
}

/// Batch rows and heads of a tile of attention. The rows of a prompt share what is read, single rows are shared out; heads that share a
/// key-value head are divided where there are too many for a tile, or too few tiles for the threads.
fn attention_tile(rows: usize, sizes: &HeadSizes, threads: usize) -> (usize, usize) {
    let group = sizes.group();
    let parts = |most: usize| {
        let parts = group.div_ceil(most.max(1));
        group / (parts..=group).find(|&parts| group.is_multiple_of(parts)).unwrap_or(group)
    };
    if rows >= PROMPT_ROWS {
        let heads = parts(MAX_QUERIES / ATTENTION_ROWS);
        return ((MAX_QUERIES / heads).clamp(1, ATTENTION_ROWS), heads);
    }
    let wanted = (2 * threads).div_ceil(rows.max(1) * sizes.kv_heads);
    (1, parts((group / wanted).max(SET)))
}
