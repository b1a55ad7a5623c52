//! Families some of whose layers have a short convolution or a state space: which layers those are, their sizes as metadata, and what their tensors
//! are called. Layers by the gated delta rule are those of [`super::recurrent`].

use super::config::{Config, LAYERS};
use super::family::Family;
use super::fused::Projection;
use super::names::{Change, Form, Role, Rows};
use crate::arch::Arch;
use crate::arch::hybrids::{FALCON_H1, LFM2, LFM2MOE, NEMOTRON_H};
use crate::arch::names::{global, layer};
use crate::arch::recurrent::Recurrence;
use crate::arch::spec::Blocks;
use crate::error::{Error, Excerpt, Result, filled, push, reserve};
use crate::format::safetensors::Stored;
use crate::format::{Builder, Item, ScalarKind, limits};

/// What a layer has, beside which there may be a feed-forward block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Block {
    /// Attention.
    Attention,
    /// A short convolution or a state space.
    State,
    /// A feed-forward block alone.
    Dense,
    /// Experts alone.
    Experts,
}

/// Sizes of the state spaces of a model.
#[derive(Clone, Copy, Debug)]
pub struct Space {
    /// Groups of heads.
    pub groups: u64,
    /// Elements of all heads.
    pub inner: u64,
    /// Elements of the keys of all groups.
    pub keys: u64,
}

impl Space {
    /// The sizes of the vector `stored` as a row for each group.
    pub fn groups(&self, stored: &Stored) -> Result<Vec<u64>> {
        let (count, groups) = (stored.shape[0], self.groups);
        if count.is_multiple_of(groups) {
            return Ok(vec![count / groups, groups]);
        }
        let name = &stored.name;
        Err(Error::Format(format!("tensor `{name}` has {count} elements, which {groups} groups do not divide")))
    }
}

/// The model type of Granite 4.
pub const GRANITE_4: &str = "granitemoehybrid";
/// What the memory is for.
const SIZES: &str = "sizes of the layers";
/// Where the kinds of layers may stand; the first that is there counts.
const LISTS: [&str; 3] = ["layer_types", "layers_block_type", "hybrid_override_pattern"];
/// The same in older files of LFM 2: the numbers of layers with attention.
const ATTENDING: &str = "full_attn_idxs";
/// Width of the blocks of a model, and of those beside its experts.
const WIDTH: &str = "intermediate_size";
const SHARED_WIDTH: &str = "shared_intermediate_size";
const EXPERT_WIDTH: &str = "moe_intermediate_size";
/// Heads of a state space.
const HEADS: &str = "mamba_n_heads";
/// How many experts Granite has.
const LOCAL_EXPERTS: &str = "num_local_experts";

/// What each layer has, in families whose layers differ and say so.
pub fn blocks(config: &Config) -> Result<Option<Vec<Block>>> {
    let arch = &config.family.arch;
    if !arch.recurrence.is_some_and(Recurrence::is_counted) || arch.blocks == Blocks::TwoWithState {
        return Ok(None);
    }
    let listed = LISTS.iter().find_map(|name| Some((*name, config.get(name)?)));
    let Some((name, listed)) = listed else {
        let attending = config.get(ATTENDING).filter(|_| arch.name == LFM2.name).and_then(Item::elements);
        let attending = attending.ok_or_else(|| config.bad(LISTS[0], "is missing"))?;
        return by_number(config, attending).map(Some);
    };
    let (pattern, mut at) = (listed.text(), 0);
    let mut kinds = listed.elements().into_iter().flatten();
    let mut next = || {
        let Some(pattern) = pattern else { return kinds.next().map(|kind| kind.text().unwrap_or_default()) };
        let rest = &pattern[at..];
        let letter = &rest[..rest.chars().next()?.len_utf8()];
        at += letter.len();
        Some(letter)
    };
    let mut blocks = Vec::new();
    while let Some(kind) = next() {
        let Some(block) = block(&config.family, kind) else {
            let (kind, family) = (Excerpt(kind.as_bytes()), config.family.model_type);
            return Err(config.bad(name, &format!("has `{kind}`, which is no kind of layers of `{family}` models")));
        };
        push(&mut blocks, block, SIZES)?;
    }
    // Nemotron may tell the number by the list alone.
    let (found, most) = (blocks.len(), limits::LAYERS);
    let expected = if config.get(LAYERS).is_some() { config.layers()? } else { found.clamp(1, most) };
    if found == expected {
        return Ok(Some(blocks));
    }
    Err(config.bad(name, &format!("has {found} layers, expected {expected}")))
}

/// The blocks of layers of which those with attention have numbers.
fn by_number<'a>(config: &Config, attending: impl Iterator<Item = Item<'a>>) -> Result<Vec<Block>> {
    let mut blocks = filled(config.layers()?, Block::State, SIZES)?;
    for number in attending {
        let layer = number.unsigned().and_then(|number| blocks.get_mut(usize::try_from(number).ok()?));
        let layer = layer.ok_or_else(|| config.bad(ATTENDING, &format!("has {number}, which is no layer")))?;
        *layer = Block::Attention;
    }
    Ok(blocks)
}

/// What a layer has that a list calls `kind`, or a pattern by its letter.
fn block(family: &Family, kind: &str) -> Option<Block> {
    let is_short = family.arch.recurrence == Some(Recurrence::ShortConvolution);
    let is_alone = family.arch.blocks == Blocks::One;
    Some(match kind {
        "full_attention" | "attention" => Block::Attention,
        "linear_attention" => Block::State,
        "conv" if is_short => Block::State,
        "mamba" if !is_short => Block::State,
        "*" if is_alone => Block::Attention,
        "M" if is_alone => Block::State,
        "mlp" | "-" if is_alone => Block::Dense,
        "moe" | "E" if is_alone => Block::Experts,
        _ => return None,
    })
}

/// The family of a model with these `blocks`, as its files tell it.
pub fn family(config: &Config, blocks: &[Block]) -> Result<Family> {
    let (family, has) = (config.family, |block| blocks.contains(&block));
    let (is_granite, is_nemotron) = (family.model_type == GRANITE_4, family.arch.name == NEMOTRON_H.name);
    if is_nemotron && has(Block::Experts) && has(Block::Dense) {
        let problem = "layers with experts beside layers with another block (`mlp`) are not supported";
        return Err(Error::Unsupported(format!("config.json: {problem}")));
    }
    let name = match (is_granite && !has(Block::State), has_experts(config)) {
        (true, true) => "granitemoe",
        (true, false) => "granite",
        _ if is_nemotron && has(Block::Experts) => "nemotron_h_moe",
        _ => family.arch.name,
    };
    // Of Granite, the blocks that experts share are all that there are where a model has no experts.
    let is_dense = is_granite && !has_experts(config);
    Ok(Family { arch: Arch::find(name)?, experts: family.experts.filter(|_| !is_dense), ..family })
}

fn has_experts(config: &Config) -> bool {
    config.get(LOCAL_EXPERTS).and_then(Item::number).is_some_and(|count| count > 0.0)
}

/// Settings that are off in every known model, and change what is computed.
const FLAGS: [&str; 4] = ["conv_bias", "mamba_proj_bias", "projectors_bias", "use_bias"];
/// The same of what has factors in Falcon H1.
const FLAGS_OF_FACTORS: [&str; 2] = ["attention_bias", "mlp_bias"];
/// The window of attention, whether a norm stands before its gate, and the bounds of steps.
const WINDOW: &str = "sliding_window";
const NORM_FIRST: &str = "mamba_norm_before_gate";
const STEPS: &str = "time_step_limit";
/// Texts that settings must have if they are there.
const TEXTS: [(&str, &str); 2] = [("mlp_hidden_act", "relu2"), ("mamba_hidden_act", "silu")];

/// Refuses what changes the result and is not known.
pub fn check(config: &Config) -> Result<()> {
    if !config.family.arch.recurrence.is_some_and(Recurrence::is_counted) {
        return Ok(());
    }
    let has_window = config.number(WINDOW)?.is_some();
    match unknown(config).or(has_window.then_some(WINDOW)) {
        None => Ok(()),
        Some(name) => Err(Error::Unsupported(format!("`{name}` of config.json is not supported"))),
    }
}

/// A setting that changes the result and is not known.
fn unknown(config: &Config) -> Option<&'static str> {
    let flag = |name: &str| config.get(name).and_then(Item::flag);
    let of_factors = if config.family.arch.name == FALCON_H1.name { &FLAGS_OF_FACTORS[..] } else { &[] };
    let on = FLAGS.iter().chain(of_factors).find(|name| flag(name) == Some(true));
    let other = || TEXTS.iter().find(|(name, known)| config.get(name).is_some_and(|is| is.text() != Some(known)));
    if let Some(name) = on.or_else(|| Some(&other()?.0)) {
        return Some(name);
    }
    // A norm follows its gate unless something else is said.
    if flag("mamba_rms_norm") == Some(true) && flag(NORM_FIRST) != Some(false) {
        return Some(NORM_FIRST);
    }
    let mut bounds = config.get(STEPS)?.elements();
    let mut bound = || bounds.as_mut().and_then(Iterator::next).and_then(Item::number);
    // What is no number is infinite.
    let is_idle = (bound(), bound()) == (Some(0.0), None);
    (!is_idle).then_some(STEPS)
}

/// Writes the sizes of such layers, and which they are; none for families without state spaces.
pub fn convert(config: &Config, out: &mut Builder) -> Result<Option<Space>> {
    let arch = &config.family.arch;
    if config.family.model_type == GRANITE_4 {
        granite(config, out)?;
    }
    let Some(kind) = arch.recurrence.filter(|kind| kind.is_counted()) else { return Ok(None) };
    if let Some(blocks) = &config.blocks {
        heads(config, blocks, out)?;
        if arch.blocks == Blocks::One {
            widths(config, blocks, out)?;
        }
    }
    if kind == Recurrence::StateSpace {
        return space(config, out).map(Some);
    }
    config.set(out, "shortconv.l_cache", config.size("conv_L_cache")?)?;
    if arch.name == LFM2MOE.name {
        // Sigmoids.
        config.set(out, "expert_gating_func", 2)?;
    } else {
        config.set(out, "feed_forward_length", adjusted(config)?)?;
    }
    Ok(None)
}

/// Writes the key-value heads of every layer, 0 for those without attention.
fn heads(config: &Config, blocks: &[Block], out: &mut Builder) -> Result<()> {
    let name = "num_key_value_heads";
    let heads = if config.get(name).is_some() { config.size(name)? } else { config.size("num_attention_heads")? };
    let of_block = |block: &Block| if *block == Block::Attention { heads } else { 0 };
    by_layer(config, "attention.head_count_kv", blocks.iter().map(of_block), out)
}

/// Writes the widths of feed-forward blocks, 0 for layers with another block.
fn widths(config: &Config, blocks: &[Block], out: &mut Builder) -> Result<()> {
    let width = |block, name| if blocks.contains(&block) { config.size(name) } else { Ok(0) };
    let (dense, experts) = (width(Block::Dense, WIDTH)?, width(Block::Experts, EXPERT_WIDTH)?);
    let of_block = |block: &Block| match block {
        Block::Dense => dense,
        Block::Experts => experts,
        Block::Attention | Block::State => 0,
    };
    by_layer(config, "feed_forward_length", blocks.iter().map(of_block), out)
}

/// Writes a size of every layer, each below 2^32.
fn by_layer(config: &Config, key: &str, sizes: impl ExactSizeIterator<Item = u64>, out: &mut Builder) -> Result<()> {
    let mut bytes = reserve(sizes.len() * size_of::<u32>(), SIZES)?;
    sizes.for_each(|size| bytes.extend((size as u32).to_le_bytes()));
    out.set_scalars(&config.key(key), ScalarKind::U32, &bytes)
}

/// Writes whether positions rotate, and the width of blocks, which are the shared ones where there are no others.
fn granite(config: &Config, out: &mut Builder) -> Result<()> {
    let rotates = config.get("position_embedding_type").and_then(Item::text) == Some("rope");
    out.set_bool(&config.key("rope.scaling.finetuned"), rotates)?;
    if has_experts(config) {
        return Ok(());
    }
    config.set(out, "feed_forward_length", config.size(SHARED_WIDTH)?)
}

/// The width of the blocks of LFM 2, which may be told as that of a block without a gate.
fn adjusted(config: &Config) -> Result<u64> {
    let width = config.size(WIDTH)?;
    if config.get("block_auto_adjust_ff_dim").and_then(Item::flag) == Some(false) {
        return Ok(width);
    }
    let width = 2 * width / 3;
    let Some(factor) = config.number("block_ffn_dim_multiplier")? else { return Ok(width) };
    let multiple = config.size("block_multiple_of")?;
    Ok(((factor * width as f64) as u64).div_ceil(multiple).saturating_mul(multiple))
}

/// Writes the sizes of state spaces.
fn space(config: &Config, out: &mut Builder) -> Result<Space> {
    let mut sizes = [0; 4];
    for (size, name) in sizes.iter_mut().zip([HEADS, "mamba_n_groups", "mamba_d_state", "mamba_d_conv"]) {
        *size = config.bounded(name)?;
    }
    let [heads, groups, state, taps] = sizes;
    // The size of a head may be the text `auto`.
    let name = "mamba_d_head";
    let told = config.get(name).is_some_and(|value| value.text() != Some("auto"));
    let own = if told { Some(heads * config.bounded(name)?) } else { None };
    let inner = match own {
        _ if config.get("mamba_d_ssm").is_some() => config.bounded("mamba_d_ssm")?,
        Some(own) => own,
        None => config.bounded("mamba_expand")? * config.bounded("hidden_size")?,
    };
    if !inner.is_multiple_of(heads) || own.is_some_and(|own| own != inner) {
        return Err(config.bad(HEADS, &format!("is {heads}, which does not divide {inner} elements evenly")));
    }
    for (key, size) in [
        ("ssm.conv_kernel", taps),
        ("ssm.state_size", state),
        ("ssm.group_count", groups),
        ("ssm.time_step_rank", heads),
        ("ssm.inner_size", inner),
    ] {
        config.set(out, key, size)?;
    }
    Ok(Space { groups, inner, keys: groups * state })
}

/// Names within a layer, and those of files.
type Names = &'static [(&'static str, &'static str)];

const LFM2_NAMES: Names = &[
    ("operator_norm.weight", "attn_norm.weight"),
    ("ffn_norm.weight", "ffn_norm.weight"),
    ("self_attn.q_layernorm.weight", "attn_q_norm.weight"),
    ("self_attn.k_layernorm.weight", "attn_k_norm.weight"),
    ("self_attn.out_proj.weight", "attn_output.weight"),
    ("conv.in_proj.weight", "shortconv.in_proj.weight"),
    ("conv.conv.weight", "shortconv.conv.weight"),
    ("conv.out_proj.weight", "shortconv.out_proj.weight"),
    ("feed_forward.w1.weight", "ffn_gate.weight"),
    ("feed_forward.w3.weight", "ffn_up.weight"),
    ("feed_forward.w2.weight", "ffn_down.weight"),
];
const FALCON_NAMES: Names = &[
    ("feed_forward.gate_proj.weight", "ffn_gate.weight"),
    ("feed_forward.up_proj.weight", "ffn_up.weight"),
    ("feed_forward.down_proj.weight", "ffn_down.weight"),
    // Files have this name without its end.
    ("pre_ff_layernorm.weight", layer::FEED_FORWARD_NORM),
];
const NEMOTRON_NAMES: Names = &[
    ("norm.weight", "attn_norm.weight"),
    ("mixer.q_proj.weight", "attn_q.weight"),
    ("mixer.k_proj.weight", "attn_k.weight"),
    ("mixer.v_proj.weight", "attn_v.weight"),
    ("mixer.o_proj.weight", "attn_output.weight"),
    ("mixer.up_proj.weight", "ffn_up.weight"),
    ("mixer.down_proj.weight", "ffn_down.weight"),
    ("mixer.shared_experts.up_proj.weight", "ffn_up_shexp.weight"),
    ("mixer.shared_experts.down_proj.weight", "ffn_down_shexp.weight"),
    ("mixer.fc1_latent_proj.weight", "ffn_latent_down.weight"),
    ("mixer.fc2_latent_proj.weight", "ffn_latent_up.weight"),
];
/// Those of a state space.
const SPACE_NAMES: Names = &[
    ("in_proj.weight", "ssm_in.weight"),
    ("conv1d.weight", "ssm_conv1d.weight"),
    ("conv1d.bias", "ssm_conv1d.bias"),
    ("dt_bias", layer::SCAN_STEP),
    ("A_log", layer::SCAN_RATE),
    ("D", layer::SPACE_SKIP),
    ("norm.weight", SPACE_NORM),
    ("out_proj.weight", "ssm_out.weight"),
];
const SPACE_NORM: &str = "ssm_norm.weight";

/// What a tensor outside the layers is.
pub fn global_role(name: &str, family: &Family) -> Option<&'static str> {
    match (name, family.model_type) {
        ("embedding_norm.weight", "lfm2" | "lfm2_moe") => Some("token_embd_norm.weight"),
        ("final_layernorm.weight", "falcon_h1") | ("norm_f.weight", "nemotron_h") => Some("output_norm.weight"),
        ("embeddings.weight", "nemotron_h") => Some(global::EMBEDDING),
        _ => None,
    }
}

/// What a tensor of a layer is, by its name there; none for one that other families have too.
pub fn role(part: &str, family: &Family) -> Option<Role> {
    let (names, prefix) = match family.model_type {
        "lfm2" | "lfm2_moe" => (LFM2_NAMES, "conv."),
        "falcon_h1" => (FALCON_NAMES, "mamba."),
        "nemotron_h" => (NEMOTRON_NAMES, "mixer."),
        GRANITE_4 => (&[][..], "mamba."),
        _ => return None,
    };
    if family.model_type == GRANITE_4
        && let Some(role) = granite_role(part, family)
    {
        return Some(role);
    }
    let found = |names: Names, part: &str| names.iter().find(|(own, _)| *own == part).map(|(_, name)| *name);
    let of_space = || found(SPACE_NAMES, part.strip_prefix(prefix)?);
    let name = found(names, part).or_else(of_space)?;
    let (change, form) = match name {
        layer::SCAN_RATE => (Change::Rate, Form::Column),
        layer::SPACE_SKIP => (Change::None, Form::Column),
        SPACE_NORM => (Change::None, Form::Groups),
        _ => (Change::None, Form::Vector),
    };
    Some(Role { name: name.into(), change, form, ..Role::default() })
}

/// The same of the blocks of Granite 4, whose halves stand as one. The shared ones are all that there are where a model has no experts.
fn granite_role(part: &str, family: &Family) -> Option<Role> {
    let half = |is_second| Rows::Half { is_second };
    let (names, rows) = match (part, family.experts.is_none()) {
        ("shared_mlp.input_linear.weight", true) => (["ffn_gate", "ffn_up"], [half(false), half(true)]),
        ("shared_mlp.input_linear.weight", false) => (["ffn_gate_shexp", "ffn_up_shexp"], [half(false), half(true)]),
        ("block_sparse_moe.input_linear.weight", _) => {
            (["ffn_gate_exps", "ffn_up_exps"], [Projection::Gate, Projection::Up].map(Rows::OfExperts))
        }
        ("shared_mlp.output_linear.weight", true) => (["ffn_down", ""], [Rows::All; 2]),
        ("shared_mlp.output_linear.weight", false) => (["ffn_down_shexp", ""], [Rows::All; 2]),
        _ => return None,
    };
    let role = |at: usize| Role { name: format!("{}.weight", names[at]), rows: rows[at], ..Role::default() };
    let and = (!names[1].is_empty()).then(|| Box::new(role(1)));
    Some(Role { and, ..role(0) })
}
