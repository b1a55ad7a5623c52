//! Folders of models with experts: their settings as metadata, the names of their tensors, and the tables that are made of tensors of single experts.

use super::config::Config;
use super::elements::Elements;
use super::fused::{Layout, Projection};
use super::mxfp4;
use super::names::{Role, Rows};
use crate::arch::names::layer;
use crate::error::{Error, Result, copied_text, push, room};
use crate::format::safetensors::Stored;
use crate::format::{Builder, Item, limits};
use std::collections::HashMap;

/// How a kind of folders with experts says what their metadata says.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Sizes and their metadata keys without the family's name; the first that is there counts for each key.
    pub sizes: &'static [(&'static str, &'static str)],
    /// Whether weights are divided by their sum where nothing is said.
    pub normalizes: bool,
    /// How tensors of all experts stand.
    pub layout: Layout,
}

/// The number of experts, and how many a row has, as most folders call them.
const COUNT: (&str, &str) = ("num_experts", "expert_count");
const LOCAL: (&str, &str) = ("num_local_experts", "expert_count");
const USED: (&str, &str) = ("num_experts_per_tok", "expert_used_count");
const WIDTH: (&str, &str) = ("moe_intermediate_size", "expert_feed_forward_length");
const SHARED_WIDTH: &str = "expert_shared_feed_forward_length";

pub const MIXTRAL: Settings = Settings { sizes: &[LOCAL, USED], normalizes: true, layout: Layout::Halves };
pub const GRANITE: Settings = Settings {
    sizes: &[LOCAL, USED, ("shared_intermediate_size", SHARED_WIDTH)],
    normalizes: true,
    layout: Layout::Halves,
};
pub const LFM2: Settings = Settings {
    sizes: &[COUNT, USED, WIDTH, ("num_dense_layers", "leading_dense_block_count")],
    normalizes: true,
    layout: Layout::Halves,
};
pub const NEMOTRON: Settings = Settings {
    sizes: &[
        ("n_routed_experts", "expert_count"),
        USED,
        WIDTH,
        ("moe_shared_expert_intermediate_size", SHARED_WIDTH),
        ("n_shared_experts", "expert_shared_count"),
        ("n_group", "expert_group_count"),
        ("topk_group", "expert_group_used_count"),
        ("moe_latent_size", "moe_latent_size"),
    ],
    normalizes: true,
    layout: Layout::Halves,
};
pub const QWEN: Settings = Settings {
    sizes: &[COUNT, LOCAL, USED, WIDTH, ("shared_expert_intermediate_size", SHARED_WIDTH)],
    normalizes: false,
    ..MIXTRAL
};
pub const QWEN_NEXT: Settings = Settings { normalizes: true, ..QWEN };
pub const QWEN_VL: Settings = Settings { layout: Layout::Either, ..QWEN_NEXT };
pub const GPT_OSS: Settings = Settings {
    sizes: &[
        LOCAL,
        COUNT,
        USED,
        ("experts_per_token", "expert_used_count"),
        ("intermediate_size", "expert_feed_forward_length"),
    ],
    normalizes: false,
    layout: Layout::Turns,
};
pub const GLM4: Settings = Settings {
    sizes: &[
        ("n_routed_experts", "expert_count"),
        USED,
        WIDTH,
        ("n_shared_experts", "expert_shared_count"),
        ("first_k_dense_replace", "leading_dense_block_count"),
        ("n_group", "expert_group_count"),
        ("topk_group", "expert_group_used_count"),
    ],
    ..MIXTRAL
};
pub const DEEPSEEK2: Settings = Settings { normalizes: false, ..GLM4 };
pub const DEEPSEEK3: Settings = GLM4;
pub const ERNIE: Settings = Settings {
    sizes: &[
        ("moe_num_experts", "expert_count"),
        ("moe_k", "expert_used_count"),
        WIDTH,
        ("moe_num_shared_experts", "expert_shared_count"),
        ("moe_layer_start_index", "leading_dense_block_count"),
        ("moe_layer_interval", "interleave_moe_layer_step"),
    ],
    ..MIXTRAL
};
pub const HUNYUAN: Settings =
    Settings { sizes: &[COUNT, ("moe_topk", "expert_used_count"), ("intermediate_size", SHARED_WIDTH)], ..MIXTRAL };

pub const GEMMA4: Settings = Settings { sizes: &[COUNT, ("top_k_experts", "expert_used_count"), WIDTH], ..MIXTRAL };

/// Settings by which some layers have no experts in ways that metadata cannot tell, with what changes nothing.
const EVERY_LAYER: [(&str, u64); 1] = [("decoder_sparse_step", 1)];

impl Settings {
    /// Writes the metadata of the experts.
    pub fn convert(&self, config: &Config, out: &mut Builder) -> Result<()> {
        let mut last = "";
        // Groups stand for nothing where the best of all experts are chosen.
        let is_greedy = config.get("topk_method").and_then(Item::text) == Some("greedy");
        let is_idle = |key: &str| is_greedy && key.starts_with("expert_group");
        for &(name, key) in self.sizes {
            let Some(value) = config.get(name).filter(|_| key != last && !is_idle(key)) else { continue };
            let bad = || config.bad(name, &format!("is {value}, it must be a whole number below 2^32"));
            out.set_unsigned(&config.key(key), uniform(value).filter(|&size| size >> 32 == 0).ok_or_else(bad)?)?;
            last = key;
        }
        let normalizes = config.get("norm_topk_prob").and_then(Item::flag).unwrap_or(self.normalizes);
        out.set_bool(&config.key("expert_weights_norm"), normalizes)?;
        if let Some(scale) = config.number("routed_scaling_factor")? {
            out.set_f32(&config.key("expert_weights_scale"), scale as f32)?;
        }
        match config.get("scoring_func").map(|score| score.text()) {
            None => {}
            Some(Some("softmax")) => out.set_unsigned(&config.key("expert_gating_func"), 1)?,
            Some(Some("sigmoid")) => out.set_unsigned(&config.key("expert_gating_func"), 2)?,
            Some(_) => return Err(Error::Unsupported("`scoring_func` of config.json is not supported".into())),
        }
        if let Some(kinds) = config.get("mlp_layer_types").and_then(Item::elements) {
            self.leading(config, kinds, out)?;
        }
        self.check(config)
    }

    /// Writes how many layers at the beginning have no experts, from a list of the kinds of all.
    fn leading<'a>(&self, config: &Config, kinds: impl Iterator<Item = Item<'a>>, out: &mut Builder) -> Result<()> {
        let (mut leading, mut layers) = (0, 0);
        for kind in kinds {
            match kind.text() {
                Some("dense") if leading == layers => leading += 1,
                Some("sparse") => {}
                _ => return Err(Error::Unsupported("`mlp_layer_types` of config.json is not supported".into())),
            }
            layers += 1;
        }
        out.set_unsigned(&config.key("leading_dense_block_count"), leading)
    }

    /// Refuses models whose layers differ in ways that metadata cannot tell.
    fn check(&self, config: &Config) -> Result<()> {
        let unknown = |name: &str| Err(Error::Unsupported(format!("`{name}` of config.json is not supported")));
        for (name, neutral) in EVERY_LAYER {
            if config.get(name).is_some_and(|value| value.unsigned() != Some(neutral)) {
                return unknown(name);
            }
        }
        if config.get("mlp_only_layers").and_then(Item::elements).is_some_and(|mut layers| layers.next().is_some()) {
            return unknown("mlp_only_layers");
        }
        let end = config.get("moe_layer_end_index").and_then(Item::number).unwrap_or(-1.0);
        if end >= 0.0 && end + 1.0 < config.required("num_hidden_layers")? {
            return unknown("moe_layer_end_index");
        }
        Ok(())
    }
}

/// A number, or that of which a list has nothing but.
fn uniform(value: Item) -> Option<u64> {
    let Some(mut elements) = value.elements() else { return value.unsigned() };
    let first = elements.next()?.unsigned()?;
    elements.all(|element| element.unsigned() == Some(first)).then_some(first)
}

/// What becomes of tensors that hold a projection of all experts.
fn of_all(part: &str, layout: Layout) -> Option<Role> {
    let part = of_experts(part)?;
    let (part, kind) = match layout {
        Layout::Turns => match part.strip_suffix("_bias") {
            Some(part) => (part, "bias"),
            None => (part.strip_suffix(mxfp4::BLOCKS).unwrap_or(part), "weight"),
        },
        _ => (part, "weight"),
    };
    let role = |name: &str, projection| Role {
        name: format!("{name}.{kind}"),
        rows: Rows::OfExperts(projection),
        ..Role::default()
    };
    match part {
        "gate_up_proj" => {
            let up = Some(Box::new(role(layer::EXPERT_UP, Projection::Up)));
            Some(Role { and: up, ..role(layer::EXPERT_GATE, Projection::Gate) })
        }
        "down_proj" => Some(role(layer::EXPERT_DOWN, Projection::Down)),
        // Where there are no gates.
        "up_proj" => Some(Role { name: format!("{}.{kind}", layer::EXPERT_UP), ..Role::default() }),
        _ => None,
    }
}

/// A part of a layer that only models with experts have, by its name within the layer, as its role has; `layout` is that of tensors of all experts.
pub fn role(part: &str, layout: Layout) -> Option<Role> {
    if let Some(role) = of_all(part, layout) {
        return Some(role);
    }
    let role = |name: &str| Role { name: name.into(), ..Role::default() };
    let table = |name| Some(role(name));
    match part {
        "mlp.gate.weight"
        | "mlp.router.weight"
        | "mlp.gate.wg.weight"
        | "block_sparse_moe.gate.weight"
        | "block_sparse_moe.router.layer.weight"
        | "block_sparse_moe.router.weight"
        | "feed_forward.gate.weight"
        | "mixer.gate.weight"
        | "router.proj.weight" => return table("ffn_gate_inp.weight"),
        "router.scale" => return table("ffn_gate_inp.scale"),
        "router.per_expert_scale" => return table("ffn_down_exps.scale"),
        "mlp.router.bias" => return table("ffn_gate_inp.bias"),
        "experts.gate_up_proj" => return table("ffn_gate_up_exps.weight"),
        "experts.down_proj" => return table("ffn_down_exps.weight"),
        "mlp.gate.e_score_correction_bias"
        | "mixer.gate.e_score_correction_bias"
        | "feed_forward.expert_bias"
        | "mlp.moe_statics.e_score_correction_bias"
        | "block_sparse_moe.e_score_correction_bias" => return table("exp_probs_b.bias"),
        "mlp.shared_expert_gate.weight" => return table("ffn_gate_inp_shexp.weight"),
        "block_sparse_moe.input_linear.weight" => return table("ffn_gate_up_exps.weight"),
        "block_sparse_moe.output_linear.weight" => return table("ffn_down_exps.weight"),
        _ => {}
    }
    let shared = ["mlp.shared_expert.", "mlp.shared_experts.", "mlp.shared_mlp."];
    if let Some(part) = shared.iter().find_map(|prefix| part.strip_prefix(prefix)) {
        return match part {
            "gate_proj.weight" => table("ffn_gate_shexp.weight"),
            "up_proj.weight" => table("ffn_up_shexp.weight"),
            "down_proj.weight" => table("ffn_down_shexp.weight"),
            _ => None,
        };
    }
    let part = of_experts(part)?;
    let (number, part) = part.split_once('.')?;
    let number = number.parse::<u32>().ok().filter(|parsed| parsed.to_string() == number)?;
    let name = match part {
        "gate_proj.weight" | "w1.weight" => "ffn_gate_exps.weight",
        "up_proj.weight" | "w3.weight" => "ffn_up_exps.weight",
        "down_proj.weight" | "w2.weight" => "ffn_down_exps.weight",
        _ => return None,
    };
    Some(Role { expert: Some(number), ..role(name) })
}

/// What names of tensors of experts begin with.
const OF_EXPERTS: [&str; 4] = ["mlp.experts.", "block_sparse_moe.experts.", "feed_forward.experts.", "mixer.experts."];

fn of_experts(part: &str) -> Option<&str> {
    OF_EXPERTS.iter().find_map(|prefix| part.strip_prefix(prefix))
}

/// What the memory of the tables' directory is for.
const TABLES: &str = "the tensor directory";

/// Tables of experts on their way, in the order of their first tensors.
#[derive(Default)]
pub struct Tables {
    tables: Vec<Table>,
    by_name: HashMap<String, usize>,
}

/// The tensors of one projection of all experts, of any order.
pub struct Table {
    /// Its name in a GGUF file.
    pub name: String,
    parts: Vec<Part>,
}

/// One expert's tensor.
#[derive(Clone, Debug)]
pub struct Part {
    expert: u32,
    /// Where it lies.
    pub stored: Stored,
    /// How.
    pub elements: Elements,
}

impl Tables {
    /// Adds the tensor of an expert to the table `name`.
    pub fn add(&mut self, name: &str, expert: u32, stored: &Stored, elements: Elements) -> Result<()> {
        if expert as usize >= limits::EXPERTS {
            let (name, most) = (&stored.name, limits::EXPERTS);
            return Err(Error::Format(format!("tensor `{name}` is of expert {expert}, at most {most} are supported")));
        }
        let index = match self.by_name.get(name) {
            Some(&index) => index,
            None => {
                room(size_of::<(String, usize)>(), TABLES, || self.by_name.try_reserve(1))?;
                self.by_name.insert(copied_text(name, TABLES)?, self.tables.len());
                push(&mut self.tables, Table { name: copied_text(name, TABLES)?, parts: Vec::new() }, TABLES)?;
                self.tables.len() - 1
            }
        };
        push(&mut self.tables[index].parts, Part { expert, stored: stored.clone(), elements }, TABLES)
    }

    /// The tables.
    pub fn into_tables(self) -> Vec<Table> {
        self.tables
    }
}

impl Table {
    /// The tensors by the numbers of their experts, which are all there and alike.
    pub fn into_parts(mut self) -> Result<Vec<Part>> {
        self.parts.sort_unstable_by_key(|part| part.expert);
        let first = &self.parts[0];
        for (number, part) in self.parts.iter().enumerate() {
            let name = &part.stored.name;
            if part.expert as usize != number {
                return Err(Error::Format(format!("tensor `{name}` is there, but none of expert {number}")));
            }
            let Stored { shape, type_name, .. } = &part.stored;
            if (shape, *type_name) != (&first.stored.shape, first.stored.type_name) {
                let other = &first.stored.name;
                let problem = format!("tensor `{name}` of shape {shape:?} in {type_name} is not like `{other}`");
                return Err(Error::Format(problem));
            }
        }
        Ok(self.parts)
    }
}
