//! `config.json` as the metadata that a converter writes into a GGUF file. A setting that would change the result and is not understood
//! is refused by name.

use super::eagle;
use super::family::{BIDIRECTIONAL, EMBEDDING_GEMMA, Family, PARTIAL, PREDICTING};
use super::fused::{Fused, Layout};
use super::gemma4;
use super::hybrid;
use super::latent;
use super::multipliers::{self, Multipliers};
use super::names::Heads;
use super::recurrent;
use super::rope;
use crate::arch::hybrids::FALCON_H1;
use crate::arch::rope::Divisors;
use crate::arch::spec::{Activation, AttentionMask, AttentionScale, RopeRule, WindowRule};
use crate::error::{Error, Excerpt, Result, filled};
use crate::format::{Builder, Item, ScalarKind, limits};

/// The file.
pub const CONFIG: &str = "config.json";

/// A configuration whose family is known.
pub struct Config<'a> {
    /// The whole file.
    whole: Item<'a>,
    /// The map with the sizes of the language model, which may be the same.
    text: Item<'a>,
    /// Its family.
    pub family: Family,
    /// What each layer has, in families that list it.
    pub blocks: Option<Vec<hybrid::Block>>,
}

/// What the rest of a folder needs of its configuration.
pub struct Sizes {
    /// Query heads of a layer.
    heads: u64,
    /// Key-value heads of a layer.
    kv_heads: u64,
    /// Whether the file says that the output head is the embedding, or that it is not.
    pub is_tied: Option<bool>,
    /// Divisors of the rope frequencies.
    pub divisors: Divisors,
    /// Rows and columns of a block of 8-bit floats that have a scale.
    pub scaled: Option<[u64; 2]>,
    /// Sizes of layers with a state.
    pub state: Option<recurrent::Sizes>,
    /// How projections of all experts stand.
    pub fused: Fused,
    /// The same of state spaces.
    pub space: Option<hybrid::Space>,
    /// What matrices are multiplied by.
    pub multipliers: Multipliers,
}

impl Sizes {
    /// Heads of a projection.
    pub fn heads(&self, heads: Heads) -> u64 {
        match heads {
            Heads::Query => self.heads,
            Heads::Key => self.kv_heads,
        }
    }
}

/// Puts null in the place of every `Infinity`, which Python writes and JSON does not have: a bound that is no bound.
pub fn without_infinities(json: &mut [u8]) {
    let (name, null) = (b"Infinity", b"null    ");
    let (mut at, mut is_text) = (0, false);
    while at < json.len() {
        match json[at] {
            b'"' => is_text = !is_text,
            b'\\' if is_text => at += 1,
            _ if !is_text && json[at..].starts_with(name) => json[at..][..null.len()].copy_from_slice(null),
            _ => {}
        }
        at += 1;
    }
}

/// Number of layers.
pub const LAYERS: &str = "num_hidden_layers";

/// Sizes and their metadata keys, without the family's name.
const SIZES: [(&str, &str); 4] = [
    ("max_position_embeddings", "context_length"),
    ("hidden_size", "embedding_length"),
    (LAYERS, "block_count"),
    ("intermediate_size", "feed_forward_length"),
];

/// Settings that change the result in a way no family here knows, with what changes nothing.
const NEUTRAL: [(&str, f64); 22] = [
    ("attn_logit_softcapping", 0.0),
    ("final_logit_softcapping", 0.0),
    ("embedding_multiplier", 1.0),
    ("residual_multiplier", 1.0),
    ("attention_multiplier", 0.0),
    ("logits_scaling", 1.0),
    ("logit_scale", 1.0),
    ("clip_qkv", 0.0),
    ("num_experts", 0.0),
    ("num_local_experts", 0.0),
    ("n_routed_experts", 0.0),
    (PREDICTING, 0.0),
    (BIDIRECTIONAL, 0.0),
    ("is_encoder_decoder", 0.0),
    ("is_decoder", 0.0),
    ("add_cross_attention", 0.0),
    ("use_mrope", 0.0),
    ("prenorm", 0.0),
    ("parallel_block", 0.0),
    ("use_rms_norm", 0.0),
    ("rotary_emb_interleaved", 0.0),
    ("rotary_scaling_factor", 1.0),
];

impl<'a> Config<'a> {
    /// Finds the family that `config.json` names.
    pub fn new(whole: Item<'a>) -> Result<Config<'a>> {
        if let Some((family, text)) = eagle::find(whole)? {
            return Ok(Config { whole, text, family, blocks: None });
        }
        let kind = whole.get("model_type").and_then(Item::text);
        let kind = kind.ok_or_else(|| Error::Format("config.json: `model_type` is missing or no text".into()))?;
        // A model that also sees images keeps the sizes of its language model apart.
        let text = whole.get("text_config").unwrap_or(whole);
        let sees_ahead = text.get(BIDIRECTIONAL).and_then(Item::flag) == Some(true);
        let family =
            if kind == EMBEDDING_GEMMA.model_type && sees_ahead { EMBEDDING_GEMMA } else { Family::find(kind)? };
        let mut config = Config { whole, text, family, blocks: None };
        if let Some(blocks) = hybrid::blocks(&config)? {
            config.family = hybrid::family(&config, &blocks)?;
            config.blocks = Some(blocks);
        }
        Ok(config)
    }

    /// Writes all metadata of the architecture; so many blocks behind the layers predict further tokens.
    pub fn convert(&self, predicting: u64, out: &mut Builder) -> Result<Sizes> {
        self.refuse_unknown()?;
        hybrid::check(self)?;
        out.set_text("general.architecture", self.family.arch.name)?;
        for (name, key) in SIZES {
            // Files count those blocks among the layers.
            let more = if name == LAYERS { predicting } else { 0 };
            self.set(out, key, self.size(name)?.saturating_add(more))?;
        }
        if predicting > 0 {
            self.set(out, "nextn_predict_layers", predicting)?;
        }
        let (hidden, heads) = (self.size("hidden_size")?, self.size("num_attention_heads")?);
        self.set(out, "attention.head_count", heads)?;
        let (kv_heads, rotated) = match self.family.arch {
            arch if arch.is_latent => (1, latent::convert(self, out)?),
            arch if gemma4::is_of(&arch) => gemma4::convert(self, out)?,
            _ => self.heads(hidden, heads, out)?,
        };
        self.set(out, "rope.dimension_count", rotated)?;
        let eps = self.required(self.family.norm_eps())? as f32;
        out.set_f32(&self.key(self.family.arch.norm.eps_key()), eps)?;
        for (name, key) in self.family.settings {
            if let Some(value) = self.number(name)? {
                out.set_f32(&self.key(key), value as f32)?;
            }
        }
        if let Some(experts) = self.family.experts.filter(|_| self.family.arch.mixture.is_some()) {
            experts.convert(self, out)?;
        }
        eagle::convert(self, out)?;
        self.window(out)?;
        let dims = usize::try_from(rotated).ok().filter(|&dims| dims <= limits::HIDDEN);
        let dims =
            dims.ok_or_else(|| Error::Format(format!("config.json: heads of which {rotated} elements rotate")))?;
        let space = hybrid::convert(self, out)?;
        Ok(Sizes {
            heads,
            kv_heads,
            is_tied: self.get("tie_word_embeddings").and_then(Item::flag),
            divisors: rope::read(self, dims, out)?,
            scaled: self.scaled()?,
            state: recurrent::convert(self, predicting, out)?,
            fused: Fused::of(self)?,
            multipliers: Multipliers::read(self, space.as_ref())?,
            space,
        })
    }

    /// Writes the sizes of heads; returns the key-value heads of a layer, and how many elements of one rotate.
    fn heads(&self, hidden: u64, heads: u64, out: &mut Builder) -> Result<(u64, u64)> {
        let kv_heads = if self.has("num_key_value_heads") { self.size("num_key_value_heads")? } else { heads };
        let head_dim = match self.has("head_dim") {
            true => self.size("head_dim")?,
            false if hidden.is_multiple_of(heads) => hidden / heads,
            false => {
                return Err(self.bad("num_attention_heads", &format!("is {heads}, which does not divide {hidden}")));
            }
        };
        self.set(out, "attention.head_count_kv", kv_heads)?;
        for key in ["attention.key_length", "attention.value_length"] {
            self.set(out, key, head_dim)?;
        }
        self.check_attention(head_dim, hidden / heads)?;
        Ok((kv_heads, self.rotated(head_dim)?))
    }

    /// Blocks behind the layers that predict further tokens, as the file says, in families that are known to have them.
    pub fn predicting(&self) -> Result<u64> {
        let Some(name) = self.family.predicting else { return Ok(0) };
        if self.number(name)?.is_some() { self.size(name) } else { Ok(0) }
    }

    /// How many leading elements of a head rotate.
    fn rotated(&self, head_dim: u64) -> Result<u64> {
        if let Some(dims) = self.get("rotary_dim").filter(|_| self.family.arch.name == "minimax-m2") {
            return Ok(self.positive("rotary_dim", dims)? as u64);
        }
        let parameters = self.get("rope_parameters").or_else(|| self.get("rope_scaling"));
        let share = match parameters.and_then(|parameters| parameters.get(PARTIAL)) {
            Some(share) => self.positive(PARTIAL, share)?,
            None => self.required(PARTIAL)?,
        };
        let is_known = share == 1.0
            || matches!(self.family.arch.name, "phi3" | "glm4" | "glm4moe" | "minimax-m2")
            || self.family.arch.recurrence.is_some();
        if !is_known || share > 1.0 {
            return Err(Error::Unsupported(format!("`{PARTIAL}` of config.json is {share}, which is not supported")));
        }
        Ok((head_dim as f64 * share) as u64)
    }

    /// The metadata key of `name`.
    pub fn key(&self, name: &str) -> String {
        format!("{}.{name}", self.family.arch.name)
    }

    /// Sets the size `name` of the metadata.
    pub fn set(&self, out: &mut Builder, name: &str, size: u64) -> Result<()> {
        out.set_unsigned(&self.key(name), size)
    }

    /// A setting that is there and not null.
    pub fn get(&self, name: &str) -> Option<Item<'a>> {
        self.member(name).filter(|value| !value.is_null())
    }

    fn member(&self, name: &str) -> Option<Item<'a>> {
        let own = |name: &str| self.text.member(name).or_else(|| self.whole.member(name));
        let alias = || self.family.aliases.iter().find(|(known, _)| *known == name);
        own(name).or_else(|| own(alias()?.1))
    }

    /// A positive number, by the family's default where the file leaves it out; none where it is null or 0.
    pub fn number(&self, name: &str) -> Result<Option<f64>> {
        match self.member(name) {
            None if name == LAYERS => Ok(self.blocks.as_ref().map(|blocks| blocks.len() as f64)),
            None => Ok(self.family.default_of(name)),
            Some(value) if value.is_null() || value.number() == Some(0.0) => Ok(None),
            Some(value) => self.positive(name, value).map(Some),
        }
    }

    /// A positive number that must be there.
    pub fn required(&self, name: &str) -> Result<f64> {
        self.number(name)?.ok_or_else(|| self.bad(name, "is missing"))
    }

    /// The number `value`, which `name` has.
    pub fn positive(&self, name: &str, value: Item) -> Result<f64> {
        let number = value.number().filter(|number| *number > 0.0 && *number <= f64::from(f32::MAX));
        number.ok_or_else(|| self.bad(name, &format!("is {value}, it must be a positive number")))
    }

    /// The error for a setting that is there but unusable.
    pub fn bad(&self, name: &str, problem: &str) -> Error {
        Error::Format(format!("config.json: `{name}` {problem}"))
    }

    fn has(&self, name: &str) -> bool {
        self.get(name).is_some() || self.family.default_of(name).is_some()
    }

    /// A whole number that must be there.
    pub fn size(&self, name: &str) -> Result<u64> {
        let number = self.required(name)?;
        let size = Some(number as u64).filter(|&size| size as f64 == number && u32::try_from(size).is_ok());
        size.ok_or_else(|| self.bad(name, &format!("is {number}, it must be a whole number below 2^32")))
    }

    /// The same up to a limit that keeps products of such numbers small.
    pub fn bounded(&self, name: &str) -> Result<u64> {
        let (value, most) = (self.size(name)?, limits::FEED_FORWARD as u64);
        let problem = || self.bad(name, &format!("is {value}, at most {most} are supported"));
        if value <= most { Ok(value) } else { Err(problem()) }
    }

    fn refuse_unknown(&self) -> Result<()> {
        let sizes = self.family.experts.map_or(&[][..], |experts| experts.sizes);
        let settings = self.family.settings.iter().chain(sizes).map(|(used, _)| *used);
        let used = |name: &str| settings.clone().chain(self.family.predicting).any(|used| used == name);
        let is_factor = |name: &str| name == multipliers::EMBEDDING && self.family.arch.name == FALCON_H1.name;
        let sees_ahead = |name: &str| name == BIDIRECTIONAL && self.family.arch.mask == AttentionMask::Bidirectional;
        let (gate, limit) = match self.family.arch.activation {
            Activation::ClampedSilu { limit, .. } => (Activation::Silu, f64::from(limit)),
            other => (other, 0.0),
        };
        let neutral = NEUTRAL.into_iter().chain([("swiglu_limit", limit)]);
        let is_known = |name: &str| used(name) || sees_ahead(name) || is_factor(name);
        for (name, neutral) in neutral.filter(|(name, _)| !is_known(name)) {
            let Some(value) = self.get(name) else { continue };
            // What is said of images alone does not matter to text.
            let is_idle = name == BIDIRECTIONAL && value.text() == Some("vision");
            if value.flag() != Some(false) && value.number() != Some(neutral) && !is_idle {
                return Err(Error::Unsupported(format!("`{name}` of config.json is {value}, which is not supported")));
            }
        }
        let positions = if self.family.model_type == hybrid::GRANITE_4 { &["rope", "nope"][..] } else { &["absolute"] };
        let is_other = |kind: Item| kind.text().is_none_or(|kind| !positions.contains(&kind));
        if self.get("position_embedding_type").is_some_and(is_other) {
            return Err(Error::Unsupported("`position_embedding_type` of config.json is not supported".into()));
        }
        let named = match self.get("hidden_activation").or_else(|| self.get("hidden_act")).map(|name| name.text()) {
            None => Some(gate),
            Some(Some("silu" | "swish")) => Some(Activation::Silu),
            Some(Some("gelu_pytorch_tanh" | "gelu_new")) => Some(Activation::GeluTanh),
            Some(Some("gelu")) => Some(Activation::GeluErf),
            Some(_) => None,
        };
        if named != Some(gate) {
            let kind = self.family.model_type;
            return Err(Error::Unsupported(format!("`hidden_act` of config.json is not the one of `{kind}` models")));
        }
        self.check_rotating_layers()
    }

    /// Which layers rotate follows from the family; a file may say the same in its own words.
    fn check_rotating_layers(&self) -> Result<()> {
        let period = match self.family.arch.rope_rule {
            RopeRule::SkipEvery(period) => period,
            _ => usize::MAX,
        };
        let said = self.get("no_rope_layer_interval").map(|said| said.unsigned() == Some(period as u64));
        let layers = self.get("no_rope_layers").and_then(Item::elements);
        let as_expected = |(index, rotates): (usize, Item)| {
            rotates.unsigned() == Some(u64::from(!(index + 1).is_multiple_of(period)))
        };
        // A list beats the interval.
        let agrees = layers.map(|layers| layers.enumerate().all(as_expected)).or(said).unwrap_or(true);
        if agrees { Ok(()) } else { Err(Error::Unsupported("`no_rope_layers` of config.json is not supported".into())) }
    }

    /// The scale of attention follows from the sizes; Gemma names the size that it follows from.
    fn check_attention(&self, head_dim: u64, wide: u64) -> Result<()> {
        let Some(named) = self.number("query_pre_attn_scalar")? else { return Ok(()) };
        let layers = self.size(LAYERS)?;
        let is_wide = matches!(self.family.arch.attention_scale, AttentionScale::WideAt(at) if at as u64 == layers);
        let expected = if is_wide { wide } else { head_dim };
        if named == expected as f64 {
            return Ok(());
        }
        let problem = format!("`query_pre_attn_scalar` of config.json is {named}, only {expected} is supported");
        Err(Error::Unsupported(problem))
    }

    /// Writes the sliding window, and which layers have it.
    fn window(&self, out: &mut Builder) -> Result<()> {
        let name = self.family.window();
        let Some(_) = self.number(name)? else { return Ok(()) };
        if self.get("use_sliding_window").and_then(Item::flag) == Some(false) {
            return Ok(());
        }
        let local = self.local_layers()?;
        if !local.contains(&1) {
            return Ok(());
        }
        self.set(out, "attention.sliding_window", self.size(name)?)?;
        match self.family.arch.window {
            WindowRule::EndsContext => Ok(()),
            WindowRule::LocalLayers { .. } | WindowRule::GlobalFirst { .. } => {
                out.set_scalars(&self.key("attention.sliding_window_pattern"), ScalarKind::Bool, &local)
            }
        }
    }

    /// How many layers there are.
    pub fn layers(&self) -> Result<usize> {
        let (layers, most) = (self.size(LAYERS)?, limits::LAYERS);
        let count = usize::try_from(layers).ok().filter(|&count| count <= most);
        count.ok_or_else(|| self.bad(LAYERS, &format!("is {layers}, at most {most} are supported")))
    }

    /// 1 for each layer of the kind `marked`, and 0 for each that sees everything, where the file lists the kinds of layers.
    pub fn listed_layers(&self, marked: &str) -> Result<Option<Vec<u8>>> {
        let (count, Some(listed)) = (self.layers()?, self.get("layer_types")) else { return Ok(None) };
        let bad = || self.bad("layer_types", &format!("does not list the kinds of {count} layers"));
        let mut listed = listed.elements().ok_or_else(bad)?;
        let mut kinds = filled(count, 1, "sizes of the layers")?;
        for kind in &mut kinds {
            *kind = match listed.next().and_then(Item::text) {
                Some("full_attention") => 0,
                Some(name) if name == marked => 1,
                _ => return Err(bad()),
            };
        }
        if listed.next().is_none() { Ok(Some(kinds)) } else { Err(bad()) }
    }

    /// 1 for each layer that has the window: by the file's list or pattern, or else by the family's.
    pub fn local_layers(&self) -> Result<Vec<u8>> {
        if let Some(local) = self.listed_layers("sliding_attention")? {
            return Ok(local);
        }
        let mut local = filled(self.layers()?, 1, "sizes of the layers")?;
        let (period, first) = match self.family.arch.window {
            WindowRule::EndsContext => return Ok(local),
            WindowRule::LocalLayers { period } => (period, 1),
            WindowRule::GlobalFirst { period } => (period, 0),
        };
        let pattern = self.get("sliding_window_pattern").or_else(|| self.get("global_attn_every_n_layers"));
        let letters = pattern.and_then(Item::text).filter(|letters| !letters.is_empty()).map(str::as_bytes);
        let period = match pattern {
            Some(pattern) if letters.is_none() => pattern.unsigned().filter(|&period| period > 0).ok_or_else(|| {
                self.bad("sliding_window_pattern", &format!("is {pattern}, it must be a positive number or letters"))
            })?,
            _ => period as u64,
        };
        for (index, is_local) in local.iter_mut().enumerate() {
            *is_local = match letters {
                Some(letters) => letters[index % letters.len()] == b'L',
                None => !(index as u64 + first).is_multiple_of(period),
            }
            .into();
        }
        Ok(local)
    }

    /// The blocks of 8-bit floats that have a scale, if the weights are such.
    fn scaled(&self) -> Result<Option<[u64; 2]>> {
        let Some(config) = self.get("quantization_config") else { return Ok(None) };
        let method = config.get("quant_method").and_then(Item::text).unwrap_or("unknown");
        let mut sizes = config.get("weight_block_size").and_then(Item::elements).into_iter().flatten();
        let mut size = || sizes.next().and_then(Item::unsigned).filter(|size| (1..=1 << 20).contains(size));
        match (method, size(), size()) {
            ("fp8", Some(rows), Some(cols)) => Ok(Some([rows, cols])),
            // Names tell which tensors are.
            ("mxfp4", ..) if self.family.experts.is_some_and(|experts| experts.layout == Layout::Turns) => Ok(None),
            ("fp8", ..) => {
                Err(Error::Unsupported("fp8 weights without blocks (`weight_block_size`) are not supported".into()))
            }
            (other, ..) => {
                let other = Excerpt(other.as_bytes());
                let advice = "load the folder of the unquantized model, or a gguf file";
                Err(Error::Unsupported(format!("weights quantized by `{other}` are not supported: {advice}")))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn infinities_outside_texts_become_null() {
        for (text, expected) in [
            (r#"{"a": [0.0, Infinity]}"#, r#"{"a": [0.0, null    ]}"#),
            (
                r#"{"Infinity": "\"Infinity", "b": "\\", "c": Infinity}"#,
                r#"{"Infinity": "\"Infinity", "b": "\\", "c": null    }"#,
            ),
            (r#"["Infinity"#, r#"["Infinity"#),
            ("\"\\", "\"\\"),
            ("Infinit", "Infinit"),
        ] {
            let mut bytes = text.as_bytes().to_vec();
            without_infinities(&mut bytes);
            assert_eq!(bytes, expected.as_bytes(), "{text}");
        }
    }
}
