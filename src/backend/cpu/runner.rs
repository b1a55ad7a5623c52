//! Runs lowered steps over a batch.
//!
//! Every buffer has one owner, [`CpuRunner`], and is reserved when the session is made. A step whose output has few elements runs on the
//! calling thread; the others are shared out as tiles.

use super::adapting::{self, Adapting};
use super::aligned::Aligned;
use super::attending::rotated_width;
use super::cache::Cache;
use super::experts::Sorted;
use super::gather::Copies;
use super::lower::{Lowered, MAX_GROUP, Product, Step};
use super::norms::{norm_heads, normalize, normalize_groups};
use super::pool::{Grid, Pool, Turn};
use super::recurrent::{self, States};
use super::rotation::Angles;
use super::simd::{Form, Kernels, Matrix, Q8_LEN, Q8Block};
use super::tiles::{TILE_ROWS, for_each_row, tile_weights};
use crate::backend::{Batch, Exchange, Give, Hidden, Limits, Runner, Scaled, Stage, not_lent};
use crate::elementary;
use crate::error::{Error, Result, filled, push};
use crate::kv::{PAGE_TOKENS, Reach, Side};
use crate::plan::op::{Index, Rows};
use crate::plan::{MatrixId, Op, Program, ValueId};
use crate::quant::reference;
use half::bf16;
use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// One session's buffers.
pub struct CpuRunner {
    pub(super) program: Arc<Program>,
    lowered: Arc<Lowered>,
    pub(super) kernels: &'static Kernels,
    pub(super) pool: Arc<Pool>,
    buffers: Vec<Aligned<f32>>,
    pub(super) quantized: Vec<Q8Block>,
    pub(super) rounded: Aligned<bf16>,
    /// Queries of one attention, where the cache rotates.
    pub(super) rotated: Aligned<f32>,
    pub(super) sorted: Sorted,
    pub(super) copies: Copies,
    angles: Vec<Angles>,
    pub(super) cache: Cache,
    pub(super) states: States,
    pub(super) adapting: Adapting,
    /// What rows bring along.
    given: Vec<f32>,
    hidden: Hidden,
    /// Most rows of a batch.
    rows: usize,
}

/// Bytes of a runner's buffers, the cache not counted.
pub fn arena_bytes(program: &Program, lowered: &Lowered, limits: &Limits) -> u64 {
    let floats: usize = lowered.placement.buffers.iter().map(|b| b.width * row_limit(b.rows, limits)).sum();
    let angles: usize = program.ropes.iter().map(|rope| limits.rows * rope.dims()).sum();
    let blocks = limits.rows * lowered.quantized_width / Q8_LEN;
    let rounded = limits.rows * lowered.rounded_width;
    let rotated = limits.rows * (rotated_width(program, limits.kv_type) + program.given_width());
    let converted = blocks * size_of::<Q8Block>() + rounded * size_of::<bf16>();
    let gathered = Sorted::bytes(&lowered.gathered, limits) + Copies::bytes(&lowered.gathered, limits);
    let gathered = gathered + adapting::bytes(program, limits);
    ((floats + angles + rotated) * size_of::<f32>() + converted + gathered + recurrent::arena_bytes(program, limits))
        as u64
}

fn row_limit(rows: Rows, limits: &Limits) -> usize {
    match rows {
        Rows::Batch => limits.rows,
        Rows::Outputs => limits.outputs,
        Rows::Chosen(_) => unreachable!("buffers count the experts of a row as one"),
    }
}

impl CpuRunner {
    /// Reserves everything that batches within `limits` need.
    pub fn new(
        program: Arc<Program>,
        lowered: Arc<Lowered>,
        kernels: &'static Kernels,
        pool: Arc<Pool>,
        limits: &Limits,
    ) -> Result<CpuRunner> {
        let what = "buffers of the forward pass";
        let mut buffers = Vec::new();
        for buffer in &lowered.placement.buffers {
            buffers.push(Aligned::filled(buffer.width.saturating_mul(row_limit(buffer.rows, limits)), 0.0, what)?);
        }
        let mut angles = Vec::new();
        for rope in &program.ropes {
            push(&mut angles, Angles::new(rope, limits)?, what)?;
        }
        let blocks = limits.rows.saturating_mul(lowered.quantized_width / Q8_LEN);
        let rotated = rotated_width(&program, limits.kv_type);
        Ok(CpuRunner {
            quantized: filled(blocks, Q8Block::default(), what)?,
            rounded: Aligned::filled(limits.rows.saturating_mul(lowered.rounded_width), bf16::ZERO, what)?,
            rotated: Aligned::filled(limits.rows.saturating_mul(rotated), 0.0, what)?,
            sorted: Sorted::new(&lowered.gathered, limits)?,
            copies: Copies::new(&lowered.gathered, limits)?,
            angles,
            cache: Cache::new(&program, limits)?,
            states: States::new(&program, limits)?,
            adapting: Adapting::new(&program, limits)?,
            given: filled(limits.rows.saturating_mul(program.given_width()), 0.0, what)?,
            hidden: limits.hidden,
            rows: limits.rows,
            program,
            lowered,
            kernels,
            pool,
            buffers,
        })
    }
}

impl CpuRunner {
    /// Runs `steps`, and the `last` ones behind them; whether values hold the rows of outputs alone then. Unless it `selects`, all rows go on. There
    /// may be a cache that is read in place of the own one.
    fn run_steps(
        &mut self,
        [steps, last]: [&[Step]; 2],
        selects: bool,
        lent: Option<&Cache>,
        batch: &Batch,
        cancel: &AtomicBool,
    ) -> Result<bool> {
        self.begin(batch);
        let pool = Arc::clone(&self.pool);
        let mut pass = Pass { lent, ..self.pass(batch, cancel, pool.enter(cancel)?, None) };
        let all = steps.iter().chain(last).filter(|step| selects || !matches!(step, Step::Select(_)));
        all.into_iter().try_for_each(|step| pass.run_step(step))?;
        Ok(pass.selected)
    }

    fn run_all(&mut self, lent: Option<&Cache>, batch: &Batch, cancel: &AtomicBool) -> Result<()> {
        let lowered = Arc::clone(&self.lowered);
        // Their values lie beside what leads to logits, as if they came behind it.
        let wanted = self.hidden != Hidden::None && self.program.features.is_none();
        let hidden: &[Step] = if wanted { &lowered.embedding } else { &[] };
        self.run_steps([&lowered.steps, hidden], self.hidden != Hidden::Rows, lent, batch, cancel).map(|_| ())
    }

    /// What depends on the rows of a pass alone.
    fn begin(&mut self, batch: &Batch) {
        let CpuRunner { program, angles, .. } = self;
        program.ropes.iter().zip(angles).for_each(|(rope, angles)| angles.compute(rope, batch.rows));
        self.sorted.forget();
    }

    fn pass<'a>(
        &'a mut self,
        batch: &'a Batch<'a>,
        cancel: &'a AtomicBool,
        turn: Turn<'a>,
        exchange: Option<&'a mut dyn Exchange>,
    ) -> Pass<'a> {
        let adapts = self.adapting.concerns(batch.rows);
        Pass { runner: self, batch, cancel, turn, exchange, lent: None, selected: false, adapts }
    }

    /// Row `row` of a value.
    pub(super) fn row(&self, id: ValueId, row: usize) -> &[f32] {
        self.rows(id, row, 1)
    }

    /// The rows `first..first + count` of a value.
    pub(super) fn rows(&self, id: ValueId, first: usize, count: usize) -> &[f32] {
        let width = self.program.values[id.0].width;
        &self.buffers[self.lowered.placement.buffer_of[id.0]][first * width..(first + count) * width]
    }

    /// Takes the buffer of a value out, so that it can be written while other values are read; to be given back.
    pub(super) fn take(&mut self, id: ValueId) -> Aligned<f32> {
        std::mem::take(&mut self.buffers[self.lowered.placement.buffer_of[id.0]])
    }

    pub(super) fn give_back(&mut self, id: ValueId, buffer: Aligned<f32>) {
        self.buffers[self.lowered.placement.buffer_of[id.0]] = buffer;
    }
}

impl Runner for CpuRunner {
    fn run(&mut self, batch: &Batch, cancel: &AtomicBool) -> Result<()> {
        self.run_all(None, batch, cancel)
    }

    fn lend(&self) -> Option<&dyn Any> {
        Some(&self.cache)
    }

    fn run_over(&mut self, lent: &dyn Any, batch: &Batch, cancel: &AtomicBool) -> Result<()> {
        match lent.downcast_ref() {
            Some(cache) => self.run_all(Some(cache), batch, cancel),
            None => Err(not_lent()),
        }
    }

    fn run_stage(
        &mut self,
        stage: usize,
        batch: &Batch,
        cancel: &AtomicBool,
        exchange: &mut dyn Exchange,
    ) -> Result<()> {
        if stage == 0 {
            self.begin(batch);
        }
        let lowered = Arc::clone(&self.lowered);
        let end = lowered.stages.get(stage + 1).copied().unwrap_or(lowered.steps.len());
        let steps = &lowered.steps[lowered.stages[stage]..end];
        if steps.is_empty() {
            return Ok(());
        }
        let pool = Arc::clone(&self.pool);
        let mut pass = self.pass(batch, cancel, pool.enter(cancel)?, Some(exchange));
        steps.iter().try_for_each(|step| pass.run_step(step))
    }

    fn embed(&mut self, batch: &Batch, stage: Stage, cancel: &AtomicBool, give: Give) -> Result<()> {
        let lowered = Arc::clone(&self.lowered);
        let steps = [&lowered.steps[..lowered.shared], &lowered.embedding[..]];
        let selected = self.run_steps(steps, true, None, batch, cancel)?;
        let value = stage.value(&self.program).expect("only a program that makes them is asked for vectors");
        for (index, &row) in batch.outputs.iter().enumerate() {
            give(index, self.row(value, if selected { index } else { row as usize }));
        }
        Ok(())
    }

    fn given(&mut self, row: usize) -> &mut [f32] {
        let width = self.program.given_width();
        &mut self.given[row * width..][..width]
    }

    fn hidden(&self, index: usize) -> &[f32] {
        self.program.hidden().map_or(&[], |hidden| self.row(hidden, index))
    }

    fn logits(&self, index: usize) -> &[f32] {
        self.row(self.program.logits.expect("only a program with logits is run for them"), index)
    }

    fn adapt_within(&mut self, ranks: usize) -> Result<()> {
        self.adapting.grow(self.rows, ranks)
    }

    fn adapt(&mut self, slot: usize, adapters: Vec<Scaled>) -> Result<()> {
        self.adapting.set(slot, adapters);
        Ok(())
    }

    fn copy_page(&mut self, reach: Reach, from: u32, to: u32) {
        self.cache.copy_page(reach, from, to);
    }

    fn read_page(&mut self, reach: Reach, page: u32, out: &mut [u8]) -> Result<()> {
        self.cache.read_page(reach, page, out);
        Ok(())
    }

    fn write_page(&mut self, reach: Reach, page: u32, bytes: &[u8]) -> Result<()> {
        self.cache.write_page(reach, page, bytes);
        Ok(())
    }

    fn read_record(&mut self, record: u32, out: &mut [u8]) -> Result<()> {
        self.states.read(record, out);
        Ok(())
    }

    fn write_record(&mut self, record: u32, bytes: &[u8]) -> Result<()> {
        self.states.write(record, bytes);
        Ok(())
    }
}

/// One run over one batch.
pub(super) struct Pass<'a> {
    pub(super) runner: &'a mut CpuRunner,
    pub(super) batch: &'a Batch<'a>,
    pub(super) cancel: &'a AtomicBool,
    pub(super) turn: Turn<'a>,
    /// What goes to the other half of a program, and comes from there.
    pub(super) exchange: Option<&'a mut dyn Exchange>,
    /// The cache of another runner that attention reads in place of the own one.
    pub(super) lent: Option<&'a Cache>,
    /// Whether values hold the rows of outputs alone.
    pub(super) selected: bool,
    /// Whether some rows have adapters.
    pub(super) adapts: bool,
}

impl Pass<'_> {
    fn run_step(&mut self, step: &Step) -> Result<()> {
        if self.cancel.load(Ordering::Relaxed) {
            return Err(Error::Cancelled);
        }
        match step {
            Step::Plain(op) => self.run_op(op),
            Step::Select(values) => {
                self.select(values);
                Ok(())
            }
            Step::Convert { x, form: Form::Bf16 } => self.round(*x),
            Step::Convert { x, .. } => self.quantize(*x),
            Step::MatMuls { x, form, products } => self.multiply(*x, *form, products),
            Step::Experts { x, form, choice, products } => self.multiply_experts(*x, *form, *choice, products),
            Step::Heads(product) => self.multiply_heads(product),
        }
    }

    fn run_op(&mut self, op: &Op) -> Result<()> {
        match *op {
            Op::Embed { table, index, out } => self.embed(table, index, out),
            Op::Given { out } => self.write_rows(out, |runner, row, out| {
                out.copy_from_slice(&runner.given[row * out.len()..][..out.len()]);
            }),
            Op::Scale { x, factor } => self.write_rows(x, |runner, _, x| runner.kernels.scale(x, factor)),
            Op::Norm { x, norm, out } => {
                self.write_rows(out, |runner, row, out| normalize(runner, norm, runner.row(x, row), out))
            }
            Op::GroupNorm { x, groups, norm, out } => {
                self.write_rows(out, |runner, row, out| normalize_groups(runner, norm, groups, runner.row(x, row), out))
            }
            Op::JoinHeads { x, part, y, out } => self.join_heads(x, part, y, out),
            Op::TakeHeads { x, part, out } => self.take_heads(x, part, out),
            Op::HeadNorm { x, head_dim, norm } => {
                self.write_rows(x, |runner, _, heads| norm_heads(runner, norm, head_dim, heads))
            }
            Op::Rope { x, head_dim, table } => self.write_rows(x, |runner, row, heads| {
                let (rope, angles) = (&runner.program.ropes[table.0], &runner.angles[table.0]);
                angles.rotate(rope, runner.kernels, row, head_dim, heads);
            }),
            Op::Temperature { x, factor, period } => self.scale_by_position(x, factor, period),
            Op::StoreKv { layer, keys, values } => self.store(layer, keys, values),
            Op::Attention { kind, queries, out } => self.attention(kind, queries, out),
            Op::Convolve(ref convolution) => self.convolve(convolution),
            Op::Scan(ref scan) => self.scan(scan),
            Op::Gate { kind, gate, up } => {
                self.write_rows(gate, |runner, row, gate| runner.kernels.gate(kind, gate, runner.row(up, row)))
            }
            Op::Activate { kind, x } => self.write_rows(x, |runner, _, x| runner.kernels.activate(kind, x)),
            Op::Add { x, y } => self.write_rows(x, |runner, row, x| runner.kernels.add(x, runner.row(y, row))),
            Op::Mul { x, y } => self.write_rows(x, |runner, row, x| runner.kernels.mul(x, runner.row(y, row))),
            Op::MulSigmoid { x, gate } => self.multiply_by_sigmoid(x, gate),
            Op::Route { logits, routing, choice } => self.route(logits, &routing, choice),
            Op::WeightedSum { x, choice, out } => self.weighted_sum(x, choice, out),
            Op::Softcap { x, cap } => self.write_rows(x, |runner, _, x| runner.kernels.softcap(x, cap)),
            Op::SelectRows { x, out } => {
                let (outputs, selected) = (self.batch.outputs, self.selected);
                let from = |row: usize| if selected { row } else { outputs[row] as usize };
                self.write_rows(out, |runner, row, out| out.copy_from_slice(runner.row(x, from(row))))
            }
            Op::Send { x, by } => {
                self.send(x, by);
                Ok(())
            }
            Op::Receive { out, by, .. } => self.receive(out, by),
            Op::MatMul { .. } | Op::ExpertMatMul(_) | Op::HeadMatMul { .. } => {
                unreachable!("lowering turns every multiplication into a step of its own")
            }
        }
    }

    pub(super) fn rows_of(&self, id: ValueId) -> usize {
        let batch = if self.selected { self.batch.outputs.len() } else { self.batch.rows.len() };
        match self.runner.program.values[id.0].rows {
            Rows::Batch => batch,
            Rows::Outputs => self.batch.outputs.len(),
            Rows::Chosen(choice) => batch * self.runner.program.chosen(choice),
        }
    }

    /// Moves the rows of outputs to the front of `values`.
    fn select(&mut self, values: &[ValueId]) {
        let outputs = self.batch.outputs;
        self.selected = outputs.len() < self.batch.rows.len();
        self.runner.sorted.forget();
        for &id in values.iter().filter(|_| self.selected) {
            let width = self.runner.program.values[id.0].width;
            let mut buffer = self.runner.take(id);
            for (to, from) in outputs.iter().map(|output| *output as usize).enumerate() {
                buffer.copy_within(from * width..(from + 1) * width, to * width);
            }
            self.runner.give_back(id, buffer);
        }
    }

    /// Calls `f(runner, row, out)` for every row of the value `out`; the other values can be read from the runner.
    pub(super) fn write_rows(&mut self, out: ValueId, f: impl Fn(&CpuRunner, usize, &mut [f32]) + Sync) -> Result<()> {
        let (rows, width) = (self.rows_of(out), self.runner.program.values[out.0].width);
        let mut buffer = self.runner.take(out);
        let runner = &*self.runner;
        let f = |row: usize, out: &mut [f32]| f(runner, row, out);
        let result = for_each_row(&mut self.turn, &mut buffer[..rows * width], width, width, self.cancel, f);
        self.runner.give_back(out, buffer);
        result
    }

    fn embed(&mut self, table: MatrixId, index: Index, out: ValueId) -> Result<()> {
        let (rows, adapts) = (self.batch.rows, self.adapts && index == Index::Token);
        self.write_rows(out, |runner, row, out| {
            let weight = &runner.program.matrices[table.0];
            let row_bytes = weight.bytes.len() / weight.rows;
            let found = match index {
                Index::Token => rows[row].token,
                Index::Position => rows[row].position,
                Index::First => 0,
            };
            let start = found as usize * row_bytes;
            reference::decode(weight.dtype, &weight.bytes[start..start + row_bytes], out);
            if adapts {
                runner.add_to_token(table, &rows[row], out);
            }
        })
    }

    fn scale_by_position(&mut self, x: ValueId, factor: f32, period: u32) -> Result<()> {
        let rows = self.batch.rows;
        self.write_rows(x, |runner, row, x| {
            let passed = f64::from(rows[row].position / period);
            let scale = 1.0 + f64::from(factor) * elementary::ln(1.0 + passed);
            runner.kernels.scale(x, scale as f32);
        })
    }

    fn store(&mut self, layer: usize, keys: ValueId, values: ValueId) -> Result<()> {
        let tables = self.batch.tables_of(self.runner.cache.reach(layer));
        for (side, id) in [(Side::Keys, keys), (Side::Values, values)] {
            let buffer = self.runner.take(id);
            let heads = buffer.chunks_exact(self.runner.program.values[id.0].width);
            for (row, heads) in self.batch.rows.iter().zip(heads) {
                let position = row.position as usize;
                let page = tables.of(row.slot as usize)[position / PAGE_TOKENS];
                self.runner.cache.store(page, layer, side, position % PAGE_TOKENS, heads, self.runner.kernels);
            }
            self.runner.give_back(id, buffer);
        }
        Ok(())
    }

    fn multiply(&mut self, x: ValueId, form: Form, products: &[Product]) -> Result<()> {
        let (rows, sums) = (self.rows_of(x), self.adapter_sums(x, products)?);
        let mut buffers: [Aligned<f32>; MAX_GROUP] = Default::default();
        products.iter().zip(&mut buffers).for_each(|(product, buffer)| *buffer = self.runner.take(product.out));
        let runner = &*self.runner;
        let mut slots = buffers.iter_mut();
        let grids: [Grid<f32>; MAX_GROUP] = std::array::from_fn(|index| {
            let buffer = slots.next().expect("one slot a grid");
            let width = products.get(index).map_or(1, |product| runner.program.matrices[product.matrix.0].rows);
            let used = if index < products.len() { rows * width } else { 0 };
            Grid::new(&mut buffer[..used], width, TILE_ROWS, tile_weights(width, form, runner.pool.threads()))
        });
        let result = self.turn.for_each_tile(&grids, self.cancel, |index, mut tile| {
            let product = &products[index];
            let weight = &runner.program.matrices[product.matrix.0];
            let matrix = Matrix::new(weight.dtype, &weight.bytes, weight.rows, weight.cols);
            let matrix = matrix.expect("the program holds whole matrices");
            let input = runner.input(x, form, tile.first_row(), tile.rows());
            runner.kernels.matmul(&matrix, &input, &mut tile);
            if let Some(bias) = product.bias {
                let cols = tile.first_col()..tile.first_col() + tile.cols();
                let bias = &runner.program.vectors[bias.0][cols];
                (0..tile.rows()).for_each(|row| runner.kernels.add(tile.row_mut(row), bias));
            }
            if let Some(sums) = &sums {
                runner.add_adapters(products, index, sums, &mut tile);
            }
        });
        products.iter().zip(buffers).for_each(|(product, buffer)| self.runner.give_back(product.out, buffer));
        result
    }
}
