//! What a session on a GPU reserves: buckets and tiers of its graphs, bytes, and the place of everything in its arena.

use super::adapting;
use super::args::{Angles, Draw, ExpertTile, MOST_ROPES, Records, Row, SampleArgs, Shape, StepArgs, Stretch};
use super::draws;
use super::lower::adapters::AdapterPlaces;
use super::lower::experts::most_experts;
use super::lower::lists::Lists;
use super::lower::uses::{PassOps, Uses};
use super::lower::{Addresses, FormPlace, LayerCache, OrderPlace, f16, lower, lower_drafts, told};
use super::memory::Places;
use super::select::Device;
use super::select::attention::splits;
use super::select::experts::GROUPED_TILES;
use super::{vectors, weights};
use crate::backend::{Hidden, KvType, Limits};
use crate::error::{Error, Result, collected, filled};
use crate::kv::{HeadSizes, PAGE_TOKENS, Reach, Side, Stores, state};
use crate::plan::Program;
use crate::plan::memory::{Placement, place};
use crate::plan::op::{Embedding, Rows};

/// Each tier of context has so many times the splits of the one before.
const TIER_GROWTH: usize = 8;
/// Device memory that the driver keeps for a graph and for each of its nodes, as seen with driver 580.
const GRAPH_BYTES: usize = 32 << 10;
const NODE_BYTES: usize = 2304;
/// Bytes that the records of states are aligned to.
const RECORD_ALIGNMENT: usize = 256;
/// Most rows of a value, which grids have along their second axis.
const MOST_GRID_ROWS: usize = 65535;
/// Elements of vectors that are brought to the host at a time, at most, where logits take no more.
const VECTORS_AT_ONCE: usize = 512 << 10;
/// Names of the parts of the arena that outlive a step.
pub const PAGE_TABLES: &str = "page tables";
pub const COUNTERS: &str = "counters";

/// What a session reserves.
pub struct Sizes {
    pub rows: usize,
    pub outputs: usize,
    pub kv_type: KvType,
    /// Which rows leave a vector beside logits, and its elements.
    pub hidden: Hidden,
    pub hidden_width: usize,
    /// Bytes of the cache of layers that see everything; that of the others comes behind it.
    whole_bytes: usize,
    /// Where the first record of states is, from the first byte of the caches.
    first_record: usize,
    /// Where in a record each state begins, in elements, and where the last one ends.
    starts: Vec<usize>,
    pub stores: Stores,
    pub buckets: Vec<usize>,
    /// Rows and outputs of the steps whose rows may follow each other in a sequence, fewer before more.
    pub drafted: Vec<(usize, usize)>,
    pub tiers: Vec<usize>,
}

impl Sizes {
    pub fn new(program: &Program, limits: &Limits) -> Result<Sizes> {
        let outputs = limits.outputs.next_power_of_two();
        let stores = limits.stores(program)?;
        let most = splits(limits.pages * PAGE_TOKENS).max(1);
        let mut tiers: Vec<usize> =
            std::iter::successors(Some(1), |tier| Some(tier * TIER_GROWTH)).take_while(|&tier| tier < most).collect();
        tiers.push(most);
        let mut buckets: Vec<usize> = (0..=outputs.ilog2()).map(|power| 1 << power).collect();
        if program.logits.is_none() {
            // There are no steps.
            (tiers, buckets) = (Vec::new(), Vec::new());
        }
        let rows = limits.rows.max(outputs);
        check_rows(program, rows)?;
        let drafted = drafted(limits, &buckets)?;
        let starts = state::starts(&program.states)?;
        let mut sizes = Sizes {
            rows,
            outputs,
            kv_type: limits.kv_type,
            hidden: limits.hidden,
            hidden_width: vectors::hidden_width(program, limits),
            whole_bytes: 0,
            first_record: 0,
            starts,
            stores,
            buckets,
            drafted,
            tiers,
        };
        let cache = |reach| if program.borrows_keys() { Ok(0) } else { sizes.bytes_of(reach, limits) };
        let (whole, window) = (cache(Reach::Whole)?, cache(Reach::Window)?);
        sizes.whole_bytes = whole;
        let caches = whole.checked_add(window);
        let first = caches.and_then(|bytes| bytes.checked_next_multiple_of(RECORD_ALIGNMENT));
        let ends = |&first: &usize| {
            sizes.record_bytes().checked_mul(limits.records).is_some_and(|all| all.checked_add(first).is_some())
        };
        let first = first.filter(ends);
        sizes.first_record = first.ok_or_else(|| Error::out_of_memory("states of layers", usize::MAX))?;
        Ok(sizes)
    }

    /// Bytes of a cache, which has one page more than the limits: padded rows write there.
    fn bytes_of(&self, reach: Reach, limits: &Limits) -> Result<usize> {
        let bytes = self.page_bytes(reach).and_then(|bytes| bytes.checked_mul(limits.pages_of(reach) + 1));
        bytes.ok_or_else(|| Error::out_of_memory("the kv cache", usize::MAX))
    }

    /// Bytes of a page of a cache; 0 where no layer is in it, none where they are too many.
    fn page_bytes(&self, reach: Reach) -> Option<usize> {
        self.stores.layout(reach).page_elements()?.checked_mul(self.kv_type.bytes())
    }

    /// Whether layers that see a window have a cache of their own, and page tables behind the others.
    pub fn has_windows(&self) -> bool {
        self.stores.layout(Reach::Window).count() > 0
    }

    /// Entries of the page tables of all slots, that of padded rows included, in both caches.
    pub fn table_entries(&self, limits: &Limits) -> usize {
        let entries = (self.outputs + 1).saturating_mul(limits.pages + 1);
        entries.saturating_mul(1 + usize::from(self.has_windows()))
    }

    /// Where a page of a cache lies, from the first byte of both, and its bytes.
    pub fn page(&self, reach: Reach, page: u32) -> (usize, usize) {
        let bytes = self.page_bytes(reach).unwrap_or(0);
        let first = if reach == Reach::Whole { 0 } else { self.whole_bytes };
        (first + page as usize * bytes, bytes)
    }

    /// Where every layer's keys and values are, in caches from `cache` on, with page tables of so many entries from `tables` on.
    fn layers(&self, program: &Program, cache: u64, tables: u64, entries: usize) -> Result<Vec<LayerCache>> {
        let place = |layer| {
            let (reach, number) = self.stores.place(layer);
            let layout = self.stores.layout(reach);
            let run = |side| layout.run(number, side, 0) as u64;
            LayerCache {
                tables: if reach == Reach::Whole { tables } else { tables + 4 * entries as u64 },
                cache: cache + self.page(reach, 0).0 as u64,
                page_elements: layout.page_elements().unwrap_or(0) as u64,
                keys: run(Side::Keys),
                values: run(Side::Values),
            }
        };
        collected((0..program.kv.count()).map(place), "a list of launches")
    }

    /// Shapes of the graphs, in their order: the tiers of each bucket for the highest logits, then for drawn tokens.
    pub fn shapes(&self) -> impl Iterator<Item = Shape> + '_ {
        self.shapes_of(self.buckets.iter().map(|&bucket| (bucket, bucket)))
    }

    /// The same of steps whose rows may follow each other.
    pub fn drafted_shapes(&self) -> impl Iterator<Item = Shape> + '_ {
        self.shapes_of(self.drafted.iter().copied())
    }

    /// Most rows of a step.
    pub fn step_rows(&self) -> usize {
        self.drafted.iter().map(|&(rows, _)| rows).fold(self.outputs, usize::max)
    }

    fn shapes_of<'a>(
        &'a self,
        steps: impl Iterator<Item = (usize, usize)> + Clone + 'a,
    ) -> impl Iterator<Item = Shape> + 'a {
        let shape = |(rows, outputs): (usize, usize), tier: usize, draws: u32| Shape {
            rows: rows as u32,
            outputs: outputs as u32,
            splits: tier as u32,
            draws,
        };
        let tiers = move |draws, step| self.tiers.iter().map(move |&tier| shape(step, tier, draws));
        (0..2).flat_map(move |draws| steps.clone().flat_map(move |step| tiers(draws, step)))
    }

    /// Floats that the host reads of a pass at a time: all logits, or some of the vectors, of one row at least.
    pub fn results(&self, program: &Program) -> Result<usize> {
        let widths = program.embedding.iter().flat_map(Embedding::ends).map(|end| program.values[end.0].width);
        let widest = widths.max().unwrap_or(0);
        let vectors = widest.saturating_mul(self.rows).min(VECTORS_AT_ONCE).max(widest);
        let logits = self.outputs.checked_mul(program.logits_width());
        logits.map(|logits| logits.max(vectors)).ok_or_else(|| Error::out_of_memory("logits", usize::MAX))
    }

    /// Floats of the vectors that the rows of a pass bring along and leave.
    pub fn vectors(&self, program: &Program) -> Result<usize> {
        vectors::floats(self.rows, program.given_width().saturating_add(self.hidden_width))
    }

    /// Most sequences of a pass, where layers have states.
    pub fn stretches(&self) -> usize {
        if self.record_bytes() > 0 { self.outputs } else { 0 }
    }

    /// Bytes of both caches, and of the records of states behind them.
    pub fn kv_bytes(&self, limits: &Limits) -> usize {
        let records = self.record_bytes().saturating_mul(limits.records);
        self.first_record.saturating_add(records)
    }

    /// Where a record is, from the first byte of the caches, and its bytes.
    pub fn record(&self, record: u32) -> (usize, usize) {
        let bytes = self.record_bytes();
        (self.first_record + record as usize * bytes, bytes)
    }

    /// Bytes of a record; 0 where no layer has a state.
    pub fn record_bytes(&self) -> usize {
        self.starts.last().map_or(0, |end| end.saturating_mul(size_of::<f32>()))
    }
}

/// Rows and outputs of the steps whose rows may follow each other: as many of both where passes have drafts, and more rows where a draft model has
/// missed some, within those of any pass.
fn drafted(limits: &Limits, buckets: &[usize]) -> Result<Vec<(usize, usize)>> {
    let equal = buckets.iter().filter(|&&bucket| limits.have_drafts() && bucket > 1).map(|&bucket| (bucket, bucket));
    let most = if limits.behind > 1 { limits.behind.next_power_of_two() } else { 0 };
    let times = || std::iter::successors(Some(2), |times| Some(times * 2)).take_while(move |&times| times <= most);
    let behind = buckets.iter().flat_map(|&bucket| times().map(move |times| (times * bucket, bucket)));
    let mut drafted = collected(equal.chain(behind.filter(|&(rows, _)| rows <= limits.rows)), "a list of launches")?;
    drafted.sort_unstable();
    Ok(drafted)
}

/// Refuses passes of more rows than a grid has.
fn check_rows(program: &Program, rows: usize) -> Result<()> {
    let chosen = most_experts(program).map_or(1, |(chosen, _)| chosen);
    if rows.saturating_mul(chosen) > MOST_GRID_ROWS {
        return Err(Error::Unsupported(format!(
            "passes of {rows} tokens with {chosen} experts each: the cuda kernels take {} tokens at most; lower max_prefill",
            MOST_GRID_ROWS / chosen
        )));
    }
    Ok(())
}

/// Device bytes of a session.
pub struct Needs {
    pub cache: u64,
    pub arena: u64,
    pub graphs: u64,
    pub adapters: AdapterNeeds,
}

/// What adapters add to that, beside their matrices; nothing where there is room for no rank. A session that has none yet lacks the graphs, and one
/// whose adapters change some matrices alone has smaller ones.
#[derive(Default)]
pub struct AdapterNeeds {
    pub arena: u64,
    pub graphs: u64,
}

impl Needs {
    /// What a session within `limits` takes; `fast` rounds the values that products of several rows read.
    pub fn new(program: &Program, limits: &Limits, fast: bool) -> Result<Needs> {
        let (sizes, placement) = (Sizes::new(program, limits)?, place(program)?);
        // No address is 0, so that nothing counts as absent.
        let mut places = Places::new(1 << 20);
        let mut addresses = arrange(program, &placement, limits, &sizes, fast, 1 << 20, &mut places)?;
        (addresses.matrices, addresses.vectors, _) = weights::place(program, &mut Places::new(1 << 20))?;
        addresses.device = Device::LARGEST;
        addresses.hidden = u64::from(sizes.hidden != Hidden::None) << 20;
        let mut graphs = graph_bytes(&lower(program, &placement, &addresses)?, sizes.shapes());
        if !sizes.drafted.is_empty() {
            graphs += graph_bytes(&lower_drafts(program, &placement, &addresses)?, sizes.drafted_shapes());
        }
        let mut adapters = AdapterNeeds::default();
        if limits.ranks > 0 {
            let mut own = Places::new(1 << 20);
            addresses.adapters = AdapterPlaces {
                changed: filled(program.matrices.len(), true, "a list of launches")?,
                entries: own.take(adapting::entries_bytes(&sizes)),
                sums: own.take(AdapterPlaces::sums_bytes(program, sizes.rows, limits.ranks)),
                ranks: limits.ranks as u32,
            };
            let graphs = graph_bytes(&lower(program, &placement, &addresses)?, sizes.shapes());
            adapters = AdapterNeeds { arena: own.bytes() as u64, graphs };
        }
        let (cache, arena) = (sizes.kv_bytes(limits) as u64, places.bytes() as u64);
        Ok(Needs { cache, arena, graphs, adapters })
    }

    pub fn all(&self) -> u64 {
        let adapters = self.adapters.arena.saturating_add(self.adapters.graphs);
        self.cache.saturating_add(self.arena).saturating_add(self.graphs).saturating_add(adapters)
    }
}

/// Bytes of the graphs of these lists for such shapes.
fn graph_bytes(lists: &Lists, shapes: impl Iterator<Item = Shape>) -> u64 {
    let nodes = |shape: &Shape| lists.of(shape).iter().filter(|launch| launch.runs(shape)).count();
    shapes.map(|shape| GRAPH_BYTES + nodes(&shape) * NODE_BYTES).sum::<usize>() as u64
}

/// Places for the forms of values that products read: 8-bit ones, and where `fast` says so those of 16-bit floats. Passes may leave vectors of rows.
fn forms(program: &Program, rows: usize, (fast, leaves): (bool, bool), places: &mut Places) -> Result<Vec<FormPlace>> {
    let passes = [PassOps::of_logits(program, leaves)?, PassOps::of_embeddings(program)?];
    // Passes of both kinds have the same places.
    let all = || passes.iter().flatten().map(|pass| &pass.uses);
    let count = all().map(Uses::places).max().unwrap_or(0);
    let mut forms = filled(count, FormPlace::default(), "a list of launches")?;
    for (index, form) in forms.iter_mut().enumerate() {
        let quantized = all().map(|uses| uses.widest_quantized(program, index)).max().unwrap_or(0).saturating_mul(rows);
        form.q = places.named("8-bit values", quantized);
        form.meta = places.named("scales of 8-bit values", quantized / 32 * 8);
        if fast {
            form.f16 = f16::place(all().map(|uses| uses.widest_f16(program, index)).max().unwrap_or(0), rows, places);
        }
    }
    Ok(forms)
}

/// Places for the order of the pairs of rows and experts, if the program has any.
fn order(program: &Program, rows: usize, places: &mut Places) -> OrderPlace {
    let Some((chosen, experts)) = most_experts(program) else { return OrderPlace::default() };
    let pairs = rows * chosen;
    // Of the narrowest ones there are the most.
    let tiles = pairs / GROUPED_TILES.widths[0] as usize + experts.min(pairs);
    OrderPlace {
        pairs: places.named("order of experts", 4 * pairs),
        tiles: places.named("tiles of experts", tiles * size_of::<ExpertTile>()),
        count: places.named("tiles of experts", 4),
    }
}

/// Cosines and sines of every rotation of the program.
fn angles(program: &Program, rows: usize, places: &mut Places) -> [Angles; MOST_ROPES] {
    let mut all = [Angles::default(); MOST_ROPES];
    for (rope, angles) in program.ropes.iter().zip(&mut all) {
        let half_dims = rope.dims() / 2;
        *angles = Angles {
            frequencies: 0,
            cos: places.named("cosines", rows * half_dims * 4),
            sin: places.named("sines", rows * half_dims * 4),
            half_dims: half_dims as u32,
            magnitude: rope.magnitude,
        };
    }
    all
}

/// Gives everything in the arena its place; the caches lie from `cache` on.
pub fn arrange(
    program: &Program,
    placement: &Placement,
    limits: &Limits,
    sizes: &Sizes,
    fast: bool,
    cache: u64,
    places: &mut Places,
) -> Result<Addresses> {
    let rows = sizes.rows;
    let count = |kind| if kind == Rows::Batch { rows } else { sizes.outputs };
    let buffers = placement
        .buffers
        .iter()
        .map(|b| places.named("values", b.width.saturating_mul(count(b.rows)).saturating_mul(4)))
        .collect();
    let most = sizes.tiers.last().copied().unwrap_or(1);
    let most_of = |size: fn(HeadSizes) -> usize| program.kv.all().map(size).max().unwrap_or(0);
    let (heads, elements) = (most_of(|sizes| sizes.heads), most_of(|sizes| sizes.heads * sizes.value_dim));
    let splits = rows.max(sizes.step_rows().saturating_mul(most));
    let entries = (sizes.outputs + 1).saturating_mul(limits.pages + 1);
    let step = StepArgs {
        rows: places.named("rows", rows * size_of::<Row>()),
        outputs: places.named("outputs", sizes.outputs * 4),
        tables: places.named(PAGE_TABLES, sizes.table_entries(limits).saturating_mul(4)),
        serial: places.named("serial", 4),
        best: places.named("highest logits", sizes.outputs * 8),
        draws: places.named("sampler options", sizes.outputs * size_of::<Draw>()),
        stretches: places.named("stretches", sizes.stretches() * size_of::<Stretch>()),
        most_stretches: sizes.stretches() as u32,
        angles: angles(program, rows, places),
        ..StepArgs::default()
    };
    let parts = sizes.outputs.saturating_mul(draws::parts(program.logits_width()));
    let sample = SampleArgs {
        kept: places.named("candidates", parts.saturating_mul(draws::SLOTS * 8)),
        groups: places.named(COUNTERS, sizes.outputs * draws::GROUP_BYTES),
        maxima: places.named(COUNTERS, parts.saturating_mul(draws::STRETCHES * 4)),
        counters: places.named(COUNTERS, 8),
        ..SampleArgs::default()
    };
    Ok(Addresses {
        sample,
        buffers,
        forms: forms(program, rows, (fast, sizes.hidden != Hidden::None), places)?,
        order: order(program, rows, places),
        told: told::place(program, places),
        factors: places.named("factors of norms", rows * 4),
        mixed: places.named("parts of attention", splits.saturating_mul(elements * 4)),
        states: places.named("sums of attention", splits.saturating_mul(heads * 8)),
        routed: places.named(COUNTERS, sizes.step_rows() * 4),
        ended: places.named(COUNTERS, sizes.step_rows() * heads * 4),
        layers: sizes.layers(program, cache, step.tables, entries)?,
        records: Records {
            data: cache + sizes.record(0).0 as u64,
            elements: (sizes.record_bytes() / size_of::<f32>()) as u64,
        },
        state_starts: collected(sizes.starts.iter().map(|&start| start as u64), "a list of launches")?,
        kv_type: limits.kv_type,
        step,
        table_stride: limits.pages as u32 + 1,
        ..Addresses::default()
    })
}
