//! Layers with a state in place of keys and values, by the gated delta rule: their sizes as metadata, what their tensors are called, and in which
//! order their rows go. In folders the heads of values stand by their key heads; in files of Qwen 3.5 and later all first ones of key heads come
//! first, then all second ones.

use super::config::Config;
use super::names::{Change, Role, Rows};
use super::order::{HeadRows, Order, Tiles};
use crate::arch::names::layer;
use crate::arch::recurrent::{Recurrence, ValueHeads};
use crate::arch::spec::Arch;
use crate::error::{Error, Result, filled};
use crate::format::{Builder, Item, ScalarKind};

/// Sizes of such layers.
#[derive(Clone, Copy, Debug)]
pub struct Sizes {
    /// Heads of queries and keys, and elements of each.
    key_heads: u64,
    key_dim: u64,
    /// Heads of values of each key head, and elements of each.
    each: u64,
    value_dim: u64,
}

/// Which rows, or columns, of a tensor are heads of such a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// Rows of queries and keys, then those of values.
    Joined,
    /// Rows of values alone.
    Values,
    /// A row for each head of values.
    Gates,
    /// Columns of values.
    Columns,
    /// Of each key head rows of queries, keys, values and gates: all but the gates.
    ByKeyHead,
    /// Those gates.
    GatesByKeyHead,
}

impl Part {
    /// Whether only matrices have it, which become others with fewer rows.
    pub fn is_of_matrix(self) -> bool {
        matches!(self, Part::ByKeyHead | Part::GatesByKeyHead)
    }
}

/// Where a configuration does not list the kinds of layers, one of so many has attention.
pub const INTERVAL: &str = "full_attention_interval";

/// Writes the sizes, and which of the layers have attention, where so many blocks behind them predict further tokens and have it too; none for
/// families without such layers.
pub fn convert(config: &Config, predicting: u64, out: &mut Builder) -> Result<Option<Sizes>> {
    let Some(Recurrence::DeltaNet(_)) = config.family.arch.recurrence else { return Ok(None) };
    if config.get("attn_output_gate").and_then(Item::flag) == Some(false) {
        return Err(Error::Unsupported("`attn_output_gate` of config.json is false, which is not supported".into()));
    }
    let heads = |name: &str| config.bounded(name);
    let (key_heads, key_dim) = (heads("linear_num_key_heads")?, heads("linear_key_head_dim")?);
    let (value_heads, value_dim) = (heads("linear_num_value_heads")?, heads("linear_value_head_dim")?);
    if !value_heads.is_multiple_of(key_heads) {
        let problem = format!("is {key_heads}, which does not divide {value_heads} heads of values");
        return Err(config.bad("linear_num_key_heads", &problem));
    }
    for (key, size) in [
        ("ssm.conv_kernel", config.size("linear_conv_kernel_dim")?),
        ("ssm.state_size", key_dim),
        ("ssm.group_count", key_heads),
        ("ssm.time_step_rank", value_heads),
        ("ssm.inner_size", value_heads * value_dim),
    ] {
        config.set(out, key, size)?;
    }
    kinds(config, predicting, out)?;
    sections(config, out)?;
    Ok(Some(Sizes { key_heads, key_dim, each: value_heads / key_heads, value_dim }))
}

/// Writes which layers have attention: by an interval, where that says it.
fn kinds(config: &Config, predicting: u64, out: &mut Builder) -> Result<()> {
    let (layers, interval) = (config.layers()?, config.size(INTERVAL)?);
    let Some(recurrent) = config.listed_layers("linear_attention")? else {
        return out.set_unsigned(&config.key(INTERVAL), interval);
    };
    let first = recurrent.iter().position(|&is| is == 0).unwrap_or(layers) + 1;
    if recurrent.iter().enumerate().all(|(index, &is)| (is == 0) == (index + 1).is_multiple_of(first)) {
        return out.set_unsigned(&config.key(INTERVAL), first as u64);
    }
    let mut blocks = filled(layers + predicting as usize, 0, "sizes of the layers")?;
    blocks[..layers].copy_from_slice(&recurrent);
    out.set_scalars(&config.key("attention.recurrent_layers"), ScalarKind::Bool, &blocks)
}

/// Writes how many pairs of a head turn by each of the three positions that images have, which are the same for text; only files of some families
/// tell.
fn sections(config: &Config, out: &mut Builder) -> Result<()> {
    if config.family.arch.recurrence != Some(Recurrence::DeltaNet(ValueHeads::Tiled)) {
        return Ok(());
    }
    let name = "mrope_section";
    let listed = config.get("rope_parameters").and_then(|parameters| parameters.get(name)).and_then(Item::elements);
    let mut sections = [11, 11, 10, 0];
    for (section, listed) in sections.iter_mut().zip(listed.into_iter().flatten()) {
        let size = listed.unsigned().and_then(|size| u32::try_from(size).ok());
        *section = size.ok_or_else(|| config.bad(name, &format!("has {listed}, which is no size")))?;
    }
    let bytes = sections.map(u32::to_le_bytes);
    out.set_scalars(&config.key("rope.dimension_sections"), ScalarKind::U32, bytes.as_flattened())
}

/// What a tensor of such a layer is, by its name within the layer without `linear_attn.`; names are those within a layer.
pub fn role(part: &str, arch: &Arch) -> Option<Role> {
    let Some(Recurrence::DeltaNet(heads)) = arch.recurrence else { return None };
    let tiled = |part| if heads == ValueHeads::Tiled { Rows::State(part) } else { Rows::All };
    let weight = |name: &str, rows| Role { name: format!("{name}.weight"), rows, ..Role::default() };
    let plain = |name: &str, rows, change| Role { name: name.into(), rows, change, ..Role::default() };
    Some(match part {
        "in_proj_qkvz.weight" => Role {
            and: Some(Box::new(weight(layer::SCAN_GATE, Rows::State(Part::GatesByKeyHead)))),
            ..weight(layer::QKV, Rows::State(Part::ByKeyHead))
        },
        "in_proj_ba.weight" => weight(layer::SCAN_GATES, Rows::All),
        "in_proj_qkv.weight" => weight(layer::QKV, tiled(Part::Joined)),
        "in_proj_z.weight" => weight(layer::SCAN_GATE, tiled(Part::Values)),
        "in_proj_b.weight" => weight(layer::SCAN_STRENGTH, tiled(Part::Gates)),
        "in_proj_a.weight" => weight(layer::SCAN_DECAY, tiled(Part::Gates)),
        "conv1d.weight" => weight(layer::SCAN_CONVOLUTION, tiled(Part::Joined)),
        "dt_bias" => plain(layer::SCAN_STEP, tiled(Part::Gates), Change::None),
        "A_log" => plain(layer::SCAN_RATE, tiled(Part::Gates), Change::Rate),
        "norm.weight" => weight(layer::SCAN_NORM, Rows::All),
        "out_proj.weight" => weight(layer::SCAN_OUT, tiled(Part::Columns)),
        _ => return None,
    })
}

impl Sizes {
    /// The order of `part` of the tensor `name`, of `rows` rows of `cols` elements.
    pub fn order(&self, part: Part, [rows, cols]: [u64; 2], name: &str) -> Result<Order> {
        let Sizes { key_heads, key_dim, each, value_dim } = *self;
        let (keys, values) = (2 * key_heads * key_dim, each * value_dim);
        let tiles = |first, size| Tiles { first, groups: key_heads, each, size };
        let by_head = 2 * (key_dim + values);
        let (order, expected) = match part {
            Part::Joined => (Order::Tiled(tiles(keys, value_dim)), keys + key_heads * values),
            Part::Values => (Order::Tiled(tiles(0, value_dim)), key_heads * values),
            Part::Gates => (Order::Tiled(tiles(0, 1)), key_heads * each),
            Part::Columns => (Order::Columns(tiles(0, value_dim)), key_heads * values),
            Part::ByKeyHead => (Order::ByKeyHead { heads: key_heads, keys: key_dim, values }, key_heads * by_head),
            Part::GatesByKeyHead => {
                let first = by_head - values;
                (Order::Part(HeadRows { each: by_head, first, count: values }), key_heads * by_head)
            }
        };
        let (found, what) = if part == Part::Columns { (cols, "columns") } else { (rows, "rows") };
        if found == expected {
            return Ok(order);
        }
        Err(Error::Format(format!("tensor `{name}` has {found} {what}, expected {expected}")))
    }
}
