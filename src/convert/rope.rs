//! Rotation in `config.json`: base and scaling as metadata, Llama 3's scaling as divisors of the frequencies.
//!
//! Newer files have everything in `rope_parameters`, perhaps one map for each kind of layer; older ones have `rope_theta`,
//! `rope_local_base_freq` and `rope_scaling`.

use super::config::Config;
use super::family::PARTIAL;
use super::gemma4;
use crate::arch::mixtures::HUNYUAN_MOE;
use crate::arch::rope::Divisors;
use crate::arch::spec::{HUNYUAN_DENSE, RopeRule};
use crate::elementary;
use crate::error::{Error, Excerpt, Result, reserve};
use crate::format::{Builder, Item};

/// Sets what the rotation of the model is made of; returns the divisors of its frequencies. `dims` elements of a head rotate.
pub fn read(config: &Config, dims: usize, out: &mut Builder) -> Result<Divisors> {
    let parameters = config.get("rope_parameters").or_else(|| config.get("rope_scaling"));
    let (all, local) = match parameters.filter(|parameters| parameters.get("full_attention").is_some()) {
        Some(both) => (both.get("full_attention"), both.get("sliding_attention")),
        None => (parameters, None),
    };
    let base = match all.and_then(|all| all.get("rope_theta")) {
        Some(base) => config.positive("rope_theta", base)?,
        None => match config.number("global_rope_theta")? {
            Some(base) => base,
            None => config.number("rope_theta")?.unwrap_or(10_000.0),
        },
    };
    out.set_f32(&config.key("rope.freq_base"), base as f32)?;
    read_local(config, local, base, out)?;
    let is_gemma4 = gemma4::is_of(&config.family.arch);
    let Some(all) = all else {
        if config.family.arch.rope_rule == RopeRule::Unrounded {
            return Err(config.bad("rope_parameters", "is missing, which models of the family need"));
        }
        return if is_gemma4 { gemma4::divisors(config, gemma4::SHARE, dims) } else { Ok(Divisors::default()) };
    };
    let scaling = Scaling { config, parameters: all };
    match scaling.kind()? {
        "default" if is_gemma4 => gemma4::divisors(config, 1.0, dims),
        "default" | "none" => Ok(Divisors::default()),
        "linear" => {
            out.set_text(&config.key("rope.scaling.type"), "linear")?;
            out.set_f32(&config.key("rope.scaling.factor"), scaling.required("factor")? as f32)?;
            Ok(Divisors::default())
        }
        "yarn" => scaling.yarn(out).map(|()| Divisors::default()),
        "llama3" => Ok(Divisors { all: Some(scaling.divisors(base, dims)?), long: None }),
        "longrope" => scaling.long(dims, out),
        "proportional" if is_gemma4 && scaling.number("factor")?.is_none_or(|factor| factor == 1.0) => {
            gemma4::divisors(config, scaling.number(PARTIAL)?.unwrap_or(1.0), dims)
        }
        "dynamic" if [HUNYUAN_DENSE.name, HUNYUAN_MOE.name].contains(&config.family.arch.name) => {
            out.set_f32(&config.key("rope.scaling.alpha"), scaling.required("alpha")? as f32)?;
            Ok(Divisors::default())
        }
        other => {
            let other = Excerpt(other.as_bytes());
            Err(Error::Unsupported(format!("rope scaling `{other}` of config.json is not supported")))
        }
    }
}

/// The rotation of local layers, which is never scaled.
fn read_local(config: &Config, local: Option<Item>, base: f64, out: &mut Builder) -> Result<()> {
    let own = local.and_then(|local| local.get("rope_theta"));
    let own = own.map(|own| config.positive("rope_theta", own)).transpose()?;
    if let Some(local) = local {
        let kind = Scaling { config, parameters: local }.kind()?;
        let rule = config.family.arch.rope_rule;
        let differs = rule == RopeRule::LocalUnscaled && own.is_some_and(|own| own != base);
        if kind != "default" || differs || !matches!(rule, RopeRule::LocalBase | RopeRule::LocalUnscaled) {
            return Err(config.bad("rope_parameters", "rotates local layers in a way that the family does not"));
        }
    }
    if config.family.arch.rope_rule == RopeRule::LocalBase {
        let own = own.or(config.number("rope_local_base_freq")?).or(config.number("local_rope_theta")?);
        let own = own.unwrap_or(10_000.0);
        out.set_f32(&config.key("rope.freq_base_swa"), own as f32)?;
    }
    Ok(())
}

struct Scaling<'a> {
    config: &'a Config<'a>,
    parameters: Item<'a>,
}

impl<'a> Scaling<'a> {
    fn kind(&self) -> Result<&'a str> {
        let kind = self.parameters.get("rope_type").or_else(|| self.parameters.get("type"));
        let text = |kind: Item<'a>| kind.text().ok_or_else(|| self.config.bad("rope_type", "is no text"));
        kind.map_or(Ok("default"), text)
    }

    fn number(&self, name: &str) -> Result<Option<f64>> {
        self.parameters.get(name).map(|value| self.config.positive(name, value)).transpose()
    }

    fn required(&self, name: &str) -> Result<f64> {
        self.number(name)?.ok_or_else(|| self.config.bad(name, "is missing, which the scaling of the rotation needs"))
    }

    /// Tokens of the context that the model was trained on first.
    fn original_context(&self) -> Result<f64> {
        let name = "original_max_position_embeddings";
        match self.number(name)?.or(self.config.number(name)?) {
            Some(context) => Ok(context),
            None => self.config.required("max_position_embeddings"),
        }
    }

    /// Peng et al., "YaRN". The file's factor on cosine and sine takes the place of the formula's, metadata has what multiplies that.
    fn yarn(&self, out: &mut Builder) -> Result<()> {
        let (arch, rounds) = (self.config.family.arch, self.parameters.get("truncate").and_then(Item::flag));
        let rounds = rounds.unwrap_or(true);
        if rounds == (arch.rope_rule == RopeRule::Unrounded) {
            let name = arch.name;
            let problem = format!("yarn whose `truncate` is {rounds} is not supported for models of `{name}`");
            return Err(Error::Unsupported(problem));
        }
        let key = |name: &str| self.config.key(&format!("rope.scaling.{name}"));
        let original = self.original_context()?;
        let factor = match self.number("factor")? {
            Some(factor) => factor,
            None => self.config.required("max_position_embeddings")? / original,
        };
        out.set_text(&key("type"), "yarn")?;
        out.set_f32(&key("factor"), factor as f32)?;
        out.set_unsigned(&key("original_context_length"), original as u64)?;
        let magnitude = |scale: f64| if factor > 1.0 { 0.1 * scale * elementary::ln(factor) + 1.0 } else { 1.0 };
        if let Some(factor) = self.number("llama_4_scaling_beta")? {
            out.set_f32(&self.config.key("attention.temperature_scale"), factor as f32)?;
        }
        if let Some(all) = self.number("mscale_all_dim")?.filter(|_| self.config.family.arch.is_latent) {
            return self.yarn_of_latent(all, magnitude, out);
        }
        let own = |own: f64, out: &mut Builder| out.set_f32(&key("attn_factor"), (own / magnitude(1.0)) as f32);
        match (self.number("attention_factor")?, self.number("mscale")?, self.number("mscale_all_dim")?) {
            (Some(factor), ..) => own(factor, out)?,
            (None, Some(1.0), Some(all)) => out.set_f32(&key("yarn_log_multiplier"), all as f32)?,
            (None, Some(scale), Some(all)) => own(magnitude(scale) / magnitude(all), out)?,
            _ => {}
        }
        self.betas(out)
    }

    /// The same for latent attention, in whose scale a part of the factor is; metadata has a tenth of the multiplier that tells of it.
    fn yarn_of_latent(&self, all: f64, magnitude: impl Fn(f64) -> f64, out: &mut Builder) -> Result<()> {
        let key = |name: &str| self.config.key(&format!("rope.scaling.{name}"));
        out.set_f32(&key("yarn_log_multiplier"), (0.1 * all) as f32)?;
        let own = match (self.number("attention_factor")?, self.number("mscale")?) {
            (Some(own), _) => own,
            (None, Some(scale)) => magnitude(scale) / magnitude(all),
            (None, None) => magnitude(1.0),
        };
        if own != 1.0 {
            out.set_f32(&key("attn_factor"), own as f32)?;
        }
        self.betas(out)
    }

    fn betas(&self, out: &mut Builder) -> Result<()> {
        for name in ["beta_fast", "beta_slow"] {
            if let Some(beta) = self.number(name)? {
                out.set_f32(&self.config.key(&format!("rope.scaling.yarn_{name}")), beta as f32)?;
            }
        }
        Ok(())
    }

    /// LongRoPE: factors for short and for long sequences, and one on cosine and sine that grows with the context.
    fn long(&self, dims: usize, out: &mut Builder) -> Result<Divisors> {
        let longest = self.config.required("max_position_embeddings")?;
        // The configuration's own context comes first here.
        let name = "original_max_position_embeddings";
        let original = match self.config.number(name)? {
            Some(context) => context,
            None => self.number(name)?.unwrap_or(longest),
        };
        let growth = self.number("factor")?.unwrap_or(longest / original);
        let magnitude = match self.number("attention_factor")? {
            Some(own) => own,
            None if growth <= 1.0 => 1.0,
            None => (1.0 + elementary::ln(growth) / elementary::ln(original)).sqrt(),
        };
        out.set_text(&self.config.key("rope.scaling.type"), "longrope")?;
        out.set_unsigned(&self.config.key("rope.scaling.original_context_length"), original as u64)?;
        out.set_f32(&self.config.key("rope.scaling.attn_factor"), magnitude as f32)?;
        Ok(Divisors {
            all: Some(self.list("short_factor", dims / 2)?),
            long: Some(self.list("long_factor", dims / 2)?),
        })
    }

    /// A list of `count` positive numbers.
    fn list(&self, name: &str, count: usize) -> Result<Vec<f32>> {
        let bad = || self.config.bad(name, &format!("does not list {count} numbers"));
        let mut elements = self.parameters.get(name).and_then(Item::elements).ok_or_else(bad)?;
        let mut list = reserve(count, "rope frequencies")?;
        for _ in 0..count {
            list.push(self.config.positive(name, elements.next().ok_or_else(bad)?)? as f32);
        }
        if elements.next().is_none() { Ok(list) } else { Err(bad()) }
    }

    /// Llama 3: frequencies that turn often within the first context stay, those that turn rarely are divided by the factor, a blend lies
    /// between.
    fn divisors(&self, base: f64, dims: usize) -> Result<Vec<f32>> {
        let (factor, context) = (self.required("factor")?, self.original_context()?);
        let (low, high) = (self.required("low_freq_factor")?, self.required("high_freq_factor")?);
        if low >= high {
            return Err(self.config.bad("low_freq_factor", &format!("is {low}, it must be less than {high}")));
        }
        let mut divisors = reserve(dims / 2, "rope frequencies")?;
        for pair in 0..dims / 2 {
            let wave = 2.0 * std::f64::consts::PI * elementary::pow(base, 2.0 * pair as f64 / dims as f64);
            let share = ((context / wave - low) / (high - low)).clamp(0.0, 1.0);
            divisors.push((1.0 / ((1.0 - share) / factor + share)) as f32);
        }
        Ok(divisors)
    }
}
