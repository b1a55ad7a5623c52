//! What kernels take: the structs of `kernels/`, field by field. Addresses are those of device memory, as plain numbers.

use super::catalogue::DeviceType;

/// A device address; 0 where a kernel expects NULL.
pub type Address = u64;

/// Most rotations of a program.
pub const MOST_ROPES: usize = 4;

/// Most products of a launch: of a single row, and of more.
pub const MOST_SEGMENTS: usize = 6;
/// See [`MOST_SEGMENTS`].
pub const FEW_SEGMENTS: usize = 3;

/// Most products with the matrices of experts in a launch.
pub const EXPERT_TABLES: usize = 2;

/// Most values that one launch gives to the host, or takes from there.
pub const MOST_EXCHANGED: usize = 3;

/// Most values that one launch convolves.
pub const MOST_PARTS: usize = 3;

/// Where a row has no stretch, and a stretch no record.
pub const NONE: u32 = u32::MAX;

/// Which row of a table stands for a row of the batch, by the numbers that `kernels/step/embed.cu` has for it.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[repr(u32)]
pub enum TableRow {
    /// That of its token.
    #[default]
    Token = 0,
    /// That of its position.
    Position = 1,
    /// The first.
    First = 2,
}

/// What a router makes of logits, by the numbers that `kernels/experts/route.cuh` has for it.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[repr(u32)]
pub enum RouteScore {
    /// Softmax of all.
    #[default]
    Softmax = 0,
    /// Sigmoid of each.
    Sigmoid = 1,
    /// Softmax of the chosen.
    ChosenSoftmax = 2,
}

macro_rules! args {
    ($($(#[$doc:meta])* $name:ident { $($field:ident: $kind:ty),* $(,)? })*) => {$(
        $(#[$doc])*
        #[allow(missing_docs)] // The kernels say what the fields are.
        #[repr(C)]
        #[derive(Clone, Copy, Debug, Default, PartialEq)]
        pub struct $name { $(pub $field: $kind),* }
    )*};
}

args! {
    /// Rows and outputs of a launch, padding included, splits of attention, and whether tokens are drawn.
    Shape { rows: u32, outputs: u32, splits: u32, draws: u32 }
    /// One token to evaluate.
    Row { token: u32, position: u32, slot: u32, stretch: u32 }
    /// Rows of one sequence in a pass, and the records of layers' states that they go on from and leave.
    Stretch { first: u32, count: u32, from: u32, to: u32, before: u32, pad: [u32; 3] }
    /// The records of a session, of so many elements each.
    Records { data: Address, elements: u64 }
    /// A changed entry of the page tables.
    TableUpdate { index: u32, page: u32 }
    /// A weight matrix in its slices.
    Matrix { data: Address, row_bytes: u32, slice_bytes: u32, dtype: DeviceType, rows: u32, cols: u32, pad: u32 }
    /// Activations, with the 8-bit form where one is wanted, or without `meta` 16-bit floats in place of both, and factors of the rows
    /// where a norm left some.
    Activation { x: Address, q: Address, meta: Address, factors: Address }
    /// The angles of a rotation: those of a position, and cosines and sines of every row. Without `half_dims` there is no such rotation.
    Angles { frequencies: Address, cos: Address, sin: Address, half_dims: u32, magnitude: f32 }
    StepArgs {
        host_rows: Address, host_outputs: Address, host_updates: Address, host_header: Address, host_draws: Address, rows: Address,
        outputs: Address, tables: Address, serial: Address, best: Address, draws: Address, host_stretches: Address, stretches: Address,
        most_stretches: u32, ahead: u32, angles: [Angles; MOST_ROPES], embedding: Matrix, embedded: Address,
    }
    /// Rows of a table, decoded.
    EmbedArgs { table: Matrix, rows: Address, out: Address, row: TableRow, pad: u32 }
    SelectArgs { x: Address, outputs: Address, out: Address, width: u32, pad: u32 }
    /// Without `selected`, all rows of `x` are taken.
    NormArgs { x: Address, weight: Address, out: Activation, width: u32, eps: f32, selected: Address }
    /// A norm whose result is there as such, added to `sum` where that is not 0, or multiplied by the activation of `gate`. Where parts of a row are
    /// `grouped`, each has weights of its own. With `then_weight` the sum is normalized again, by the root of the mean square, and added to
    /// `then_sum`. All that is multiplied by `scale`.
    NormalizeArgs {
        x: Address, weight: Address, bias: Address, sum: Address, gate: Address, out: Activation, width: u32, eps: f32, centered: u32,
        factor: f32, unit: Sigmoid, grouped: u32, scale: f32,
        then_weight: Address, then_sum: Address, then_factor: f32, then_eps: f32,
    }
    /// What is done element by element with `x`, in place; `y`, in rows of `y_stride` elements, and all but `rows` and `width` are the operation's.
    ElementwiseArgs {
        x: Activation, y: Address, rows: Address, width: u32, a: f32, b: f32, period: u32, y_stride: u32, pad: u32, gate: Address, sum: Address,
    }
    RopeArgs { x: Address, cos: Address, sin: Address, heads: u32, head_dim: u32, half_dims: u32, pairs: u32 }
    /// The activation `x / (1 + exp(-x (linear + cubic x^2)))`.
    Sigmoid { linear: f32, cubic: f32 }
    /// One product of a multiplication.
    Segment { matrix: Matrix, bias: Address, out: Address, first_tile: u32, adds: f32 }
    MatmulArgs { x: Activation, cols: u32, count: u32, tiles: u32, on_outputs: u32, segments: [Segment; FEW_SEGMENTS] }
    /// Products of heads with rows of their own: as many elements of each as the matrix has columns give `width` outputs. Where `kept`
    /// elements of the head are to stand before them, heads of the result have both.
    HeadMatmulArgs {
        x: Address, out: Activation, matrix: Matrix, heads: u32, each: u32, first: u32, width: u32, kept_first: u32, kept: u32,
        on_outputs: u32, pad: u32,
    }
    /// Products of many rows on tensor cores, with what stands behind them.
    TensorArgs {
        x: Activation, gated: Activation, unit: Sigmoid, cols: u32, count: u32, on_outputs: u32, f16_row_bytes: u32,
        segments: [Segment; FEW_SEGMENTS],
    }
    /// Products of one row or a few, with what stands before and after them.
    MatvecArgs {
        x: Activation, norm: Address, gated: Activation, unit: Sigmoid, best: Address, eps: f32, cols: u32, count: u32, rows_a_warp: u32,
        stage_bytes: u32, stages: u32, units: u32, batch: u32, segments: [Segment; MOST_SEGMENTS],
    }
    /// How experts are chosen for rows; without groups their counts are 1, else the `best` of each, one or two, rank it.
    RouteArgs {
        logits: Address, bias: Address, choice: Address, scale: f32, experts: u32, chosen: u32, groups: u32, kept: u32,
        score: RouteScore, normalizes: u32, best: u32,
    }
    /// A norm, the product of its result with a router's matrix, and the choice by that; and its product with a matrix of one row, if there is one.
    RouterArgs {
        x: Address, weight: Address, out: Activation, matrix: Matrix, bias: Address, logits: Address, arrived: Address, eps: f32,
        width: u32, gate: Matrix, gate_out: Address, route: RouteArgs,
    }
    /// Pairs of rows and experts in the order of experts, and tiles of at most `widths[0]` of one; from `rows[i]` rows on of `widths[i + 1]`.
    OrderArgs {
        choice: Address, order: Address, tiles: Address, count: Address, experts: u32, chosen: u32, widths: [u32; 3], rows: [u32; 2], pad: u32,
    }
    /// Pairs of one expert that are multiplied together, as the kernel that sorts them writes it.
    ExpertTile { expert: u32, first: u32, count: u32, pad: u32 }
    /// The rows of one projection of all experts. `added` is added to the outputs of pairs, where it is not 0.
    ExpertTable { matrix: Matrix, scale: Address, bias: Address, each: u32, first: u32, added: Address }
    /// Products of rows with the matrices of their experts; without `order` each pair by itself.
    ExpertArgs {
        x: Activation, choice: Address, order: Address, tiles: Address, count: Address, table: ExpertTable, out: Address, chosen: u32,
        width: u32, on_pairs: u32, pad: u32,
    }
    /// What is made of two of them; clamped, the activation has the slope of the sigmoid and the limit.
    GatedUnit { activation: Sigmoid, is_clamped: u32, pad: u32 }
    /// Products of sorted pairs, or with `gated` the unit of both tables. Grouped GEMV may begin beside the launch of a unit of the same pairs
    /// (`is_early`), and sorts few pairs by itself, if it has their choice.
    ExpertGemmArgs {
        x: Activation, gated: Activation, order: Address, tiles: Address, count: Address, tables: [ExpertTable; EXPERT_TABLES], out: Address,
        unit: GatedUnit, cols: u32, chosen: u32, width: u32, on_pairs: u32, is_early: u32, pad: u32, choice: Address,
    }
    /// Words with a flag that is made of the step's number and of the launch's `turn` in it; no address for none.
    Flagged { words: Address, serial: Address, turn: u32, pad: u32 }
    /// The gated unit of two of them, and of the two matrices of the expert that every row has, unless its width is 0. The sum behind it may find
    /// the choice early (`told`).
    ExpertUnitArgs {
        x: Activation, out: Activation, choice: Address, gate: ExpertTable, up: ExpertTable, unit: GatedUnit, chosen: u32, width: u32,
        shared_out: Activation, shared_gate: ExpertTable, shared_up: ExpertTable, shared_width: u32, eps: f32, norm: Address, route: RouteArgs,
        told: Flagged,
    }
    /// The weighted sum of one of them over the experts of a row, and of the expert that every row has, where there is one; that by the sigmoid of a
    /// gate, if it has one. So many `parts` of a block's warps share the experts of an output. It may begin beside the launch of the unit
    /// (`is_early`), which tells it the choice where it makes that (`told`).
    ExpertSumArgs {
        x: Activation, choice: Address, out: Address, table: ExpertTable, chosen: u32, width: u32, adds: f32, parts: u32,
        shared_x: Activation, shared: Matrix, shared_gate: Address, is_early: u32, pad: u32, told: Flagged,
    }
    /// The weighted sum over a row's experts, and with `norm` that of the result.
    WeightedSumArgs {
        x: Address, choice: Address, out: Activation, width: u32, chosen: u32, adds: f32, eps: f32, norm: Address, normed: Activation,
    }
    /// Without `k` and `v` the keys and values of the rows are in the cache already.
    HeadsArgs {
        q: Address, k: Address, v: Address, q_norm: Address, k_norm: Address, v_norm: Address, cos: Address, sin: Address,
        rows: Address, tables: Address, cache: Address, page_elements: u64, keys: u64, values: u64, table_stride: u32, heads: u32,
        kv_heads: u32, head_dim: u32, half_dims: u32, pairs: u32, cache_f32: u32, eps: f32, value_dim: u32, pad: u32,
    }
    /// Without `ended`, another launch merges the parts. Scores are powers of two: products of queries and keys times `scale`, or with a `cap` that
    /// many times the hyperbolic tangent of that. Without `floats` nothing reads the results but products of their 8-bit blocks, if they have any.
    AttentionArgs {
        heads: HeadsArgs, mixed: Address, states: Address, ended: Address, out: Activation, sinks: Address, scale: f32,
        cap: f32, window: u32, width: u32, follows: u32, floats: u32,
    }
    /// The convolution of a value.
    ConvolutionArgs { x: Address, weight: Address, bias: Address, state: u64 }
    /// A value that is convolved, with what stands behind that.
    ConvolvePart {
        convolution: ConvolutionArgs, norm: Address, out: Address, width: u32, tile: u32, first_block: u32,
        eps: f32, activates: u32, pad: u32,
    }
    ConvolveArgs {
        rows: Address, stretches: Address, records: Records, taps: u32, count: u32, rows_each: u32,
        pad: u32, parts: [ConvolvePart; MOST_PARTS],
    }
    ScanArgs {
        queries: Address, keys: Address, values: Address, decay: Address, strength: Address, bias: Address, rate: Address,
        skip: Address, out: Address, stretches: Address, records: Records, state: u64, heads: u32, key_heads: u32, key_dim: u32,
        value_dim: u32, is_tiled: u32, pad: u32,
    }
    /// A step of a layer with a state, from the convolutions to the gated unit behind the norm of the result.
    RecurrentStepArgs {
        queries: ConvolutionArgs, keys: ConvolutionArgs, values: ConvolutionArgs, query_norm: Address, key_norm: Address, decay: Address,
        strength: Address, bias: Address, rate: Address, skip: Address, norm: Address, gate: Address, out: Activation, stretches: Address,
        records: Records, state: u64, unit: Sigmoid, heads: u32, key_heads: u32, key_dim: u32, value_dim: u32, is_tiled: u32, taps: u32,
        query_eps: f32, key_eps: f32, norm_eps: f32, pad: u32,
    }
    /// Heads of `count` elements of those of a value, and of those of another one behind them, of `width` elements together.
    CopyHeadsArgs { x: Address, y: Address, out: Address, each: u32, first: u32, count: u32, y_each: u32, width: u32, pad: u32 }
    /// Rows of values on their way to the host, or from there; with `flags` it is told, or waited for, that they are there.
    ExchangeArgs {
        own: [Address; MOST_EXCHANGED], shared: [Address; MOST_EXCHANGED], flags: Address, serial: Address, widths: [u32; MOST_EXCHANGED],
        count: u32, part: u32, pad: u32,
    }
    ArgmaxArgs {
        logits: Address, best: Address, serial: Address, host_tokens: Address, vocab: u32, has_vectors: u32,
    }
    /// How the token of an output is drawn.
    Draw {
        seed: u64, position: u64, least: f64, temperature: f32, top_p: f32, typical_p: f32, repeat: f32, frequency: f32,
        presence: f32, top_k: u32, changes: u32,
    }
    /// A bias, or the penalties for `count` occurrences.
    Adjustment { token: u32, count: u32, bias: f32 }
    SampleArgs {
        logits: Address, draws: Address, host_starts: Address, host_adjustments: Address, host_masks: Address, host_masked: Address,
        kept: Address, groups: Address, maxima: Address, counters: Address, serial: Address, host_tokens: Address, vocab: u32, parts: u32,
        most_adjustments: u32, has_vectors: u32,
    }
    /// What an adapter adds to the products of a matrix: A, and B turned.
    AdapterPair { down: Address, up: Address, rank: u32, down_type: DeviceType, up_type: DeviceType, factor: f32 }
    /// An adapter of a sequence: its pair of every matrix, and its scale. One without pairs ends the adapters of a slot.
    AdapterEntry { pairs: Address, scale: f32, pad: u32 }
    /// A matrix of a launch that adapters change. What they add is multiplied by `adds`; with 0 it takes the place of what is in `out`.
    AdaptedMatrix { out: Address, matrix: u32, width: u32, first_tile: u32, adds: f32 }
    /// What adapters add to the products of a launch. Without `outputs`, `x` has a row for each of the batch. With `norm`, the weights of an RMS
    /// norm, what counts is the norm of a row of `x`, which goes to `normed` too if that is somewhere.
    AdapterArgs {
        x: Activation, rows: Address, outputs: Address, entries: Address, sums: Address, norm: Address, cols: u32, ranks: u32, most: u32,
        count: u32, eps: f32, pad: u32, normed: Activation,
        matrices: [AdaptedMatrix; MOST_SEGMENTS],
    }
    /// What of a table of experts a product reads: `each` outputs an expert in the table, of which its own begin with `first`.
    AdaptedTable { scale: Address, each: u32, first: u32 }
    /// What adapters add to products of rows with the matrices of their experts; sums and outputs are of pairs.
    ExpertAdapterArgs {
        own: AdapterArgs, choice: Address, chosen: u32, on_pairs: u32, tables: [AdaptedTable; EXPERT_TABLES],
    }
    RepackArgs { raw: Address, out: Matrix, first: u64, count: u64, block_bytes: u32, block_groups: u32 }
}

/// The arguments of one launch.
#[allow(missing_docs)] // Named as the structs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Args {
    Step(StepArgs),
    Embed(EmbedArgs),
    Select(SelectArgs),
    Norm(NormArgs),
    Normalize(NormalizeArgs),
    Elementwise(ElementwiseArgs),
    Rope(RopeArgs),
    Matmul(MatmulArgs),
    HeadMatmul(HeadMatmulArgs),
    Tensor(TensorArgs),
    Matvec(MatvecArgs),
    Route(RouteArgs),
    Router(RouterArgs),
    Order(OrderArgs),
    Expert(ExpertArgs),
    ExpertGemm(ExpertGemmArgs),
    ExpertUnit(ExpertUnitArgs),
    ExpertSum(ExpertSumArgs),
    WeightedSum(WeightedSumArgs),
    Convolve(ConvolveArgs),
    RecurrentStep(RecurrentStepArgs),
    Scan(ScanArgs),
    CopyHeads(CopyHeadsArgs),
    Exchange(ExchangeArgs),
    Heads(HeadsArgs),
    Attention(AttentionArgs),
    Argmax(ArgmaxArgs),
    Sample(SampleArgs),
    Adapter(AdapterArgs),
    ExpertAdapter(ExpertAdapterArgs),
}

impl Args {
    /// The activations that the launch writes and that may have a form for products.
    pub fn written(&self) -> impl Iterator<Item = &Activation> {
        let second = match self {
            Args::ExpertUnit(args) => Some(&args.shared_out),
            Args::WeightedSum(args) => Some(&args.normed),
            _ => None,
        };
        self.first_written().into_iter().chain(second).filter(|written| written.x != 0)
    }

    fn first_written(&self) -> Option<&Activation> {
        let written = match self {
            Args::Norm(args) => &args.out,
            Args::Router(args) => &args.out,
            Args::Normalize(args) => &args.out,
            Args::Elementwise(args) => &args.x,
            Args::Tensor(args) => &args.gated,
            Args::Matvec(args) => &args.gated,
            Args::Attention(args) => &args.out,
            Args::HeadMatmul(args) => &args.out,
            Args::WeightedSum(args) => &args.out,
            Args::ExpertGemm(args) => &args.gated,
            Args::ExpertUnit(args) => &args.out,
            Args::RecurrentStep(args) => &args.out,
            Args::Adapter(args) => &args.normed,
            _ => return None,
        };
        Some(written)
    }

    /// Address of the struct, for the driver to copy.
    pub fn pointer(&self) -> *const std::ffi::c_void {
        match self {
            Args::Step(args) => std::ptr::from_ref(args).cast(),
            Args::Embed(args) => std::ptr::from_ref(args).cast(),
            Args::Select(args) => std::ptr::from_ref(args).cast(),
            Args::Norm(args) => std::ptr::from_ref(args).cast(),
            Args::Normalize(args) => std::ptr::from_ref(args).cast(),
            Args::Elementwise(args) => std::ptr::from_ref(args).cast(),
            Args::Rope(args) => std::ptr::from_ref(args).cast(),
            Args::Matmul(args) => std::ptr::from_ref(args).cast(),
            Args::HeadMatmul(args) => std::ptr::from_ref(args).cast(),
            Args::Tensor(args) => std::ptr::from_ref(args).cast(),
            Args::Matvec(args) => std::ptr::from_ref(args).cast(),
            Args::Router(args) => std::ptr::from_ref(args).cast(),
            Args::Route(args) => std::ptr::from_ref(args).cast(),
            Args::Order(args) => std::ptr::from_ref(args).cast(),
            Args::Expert(args) => std::ptr::from_ref(args).cast(),
            Args::ExpertGemm(args) => std::ptr::from_ref(args).cast(),
            Args::ExpertUnit(args) => std::ptr::from_ref(args).cast(),
            Args::ExpertSum(args) => std::ptr::from_ref(args).cast(),
            Args::WeightedSum(args) => std::ptr::from_ref(args).cast(),
            Args::Convolve(args) => std::ptr::from_ref(args).cast(),
            Args::RecurrentStep(args) => std::ptr::from_ref(args).cast(),
            Args::Scan(args) => std::ptr::from_ref(args).cast(),
            Args::CopyHeads(args) => std::ptr::from_ref(args).cast(),
            Args::Exchange(args) => std::ptr::from_ref(args).cast(),
            Args::Heads(args) => std::ptr::from_ref(args).cast(),
            Args::Attention(args) => std::ptr::from_ref(args).cast(),
            Args::Argmax(args) => std::ptr::from_ref(args).cast(),
            Args::Sample(args) => std::ptr::from_ref(args).cast(),
            Args::Adapter(args) => std::ptr::from_ref(args).cast(),
            Args::ExpertAdapter(args) => std::ptr::from_ref(args).cast(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scores_have_the_numbers_that_the_kernels_expect() {
        let numbers = [RouteScore::Softmax, RouteScore::Sigmoid, RouteScore::ChosenSoftmax].map(|score| score as u32);
        assert_eq!(numbers, [0, 1, 2]);
    }

    #[test]
    fn rows_of_tables_have_the_numbers_that_the_kernels_expect() {
        let numbers = [TableRow::Token, TableRow::Position, TableRow::First].map(|row| row as u32);
        assert_eq!(numbers, [0, 1, 2]);
    }

    #[test]
    fn structs_have_the_sizes_that_the_kernels_expect() {
        assert_eq!([size_of::<Shape>(), size_of::<Row>(), size_of::<Matrix>(), size_of::<Segment>()], [16, 16, 32, 56]);
        assert_eq!([size_of::<StepArgs>(), size_of::<SelectArgs>(), size_of::<Stretch>()], [280, 32, 32]);
        assert_eq!(size_of::<EmbedArgs>(), 56);
        assert_eq!([size_of::<NormArgs>(), size_of::<NormalizeArgs>(), size_of::<MatmulArgs>()], [64, 128, 216]);
        assert_eq!([size_of::<ElementwiseArgs>(), size_of::<RopeArgs>()], [88, 40]);
        assert_eq!([size_of::<MatvecArgs>(), size_of::<TensorArgs>(), size_of::<AttentionArgs>()], [456, 256, 240]);
        assert_eq!([size_of::<Draw>(), size_of::<Adjustment>(), size_of::<SampleArgs>()], [56, 12, 112]);
        assert_eq!([size_of::<HeadsArgs>(), size_of::<ArgmaxArgs>(), size_of::<HeadMatmulArgs>()], [152, 40, 104]);
        assert_eq!(size_of::<RepackArgs>(), 64);
        assert_eq!([size_of::<AdapterPair>(), size_of::<AdapterEntry>()], [32, 16]);
        assert_eq!([size_of::<AdaptedMatrix>(), size_of::<AdapterArgs>()], [24, 272]);
        assert_eq!([size_of::<AdaptedTable>(), size_of::<ExpertAdapterArgs>()], [16, 320]);
        assert_eq!([size_of::<ConvolveArgs>(), size_of::<ScanArgs>(), size_of::<CopyHeadsArgs>()], [264, 128, 48]);
        assert_eq!([size_of::<RecurrentStepArgs>(), size_of::<ExchangeArgs>()], [280, 88]);
        assert_eq!(
            [size_of::<RouteArgs>(), size_of::<RouterArgs>(), size_of::<OrderArgs>(), size_of::<ExpertArgs>()],
            [56, 208, 64, 152]
        );
        assert_eq!([size_of::<ExpertTable>(), size_of::<ExpertTile>(), size_of::<WeightedSumArgs>()], [64, 16, 104]);
        assert_eq!(
            [size_of::<ExpertGemmArgs>(), size_of::<ExpertUnitArgs>(), size_of::<ExpertSumArgs>()],
            [272, 480, 232]
        );
    }
}
