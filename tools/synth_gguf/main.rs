//! Writes a GGUF model of a well-known shape with random, well-scaled weights: an input for benchmarks, here and in other
//! engines. It says nothing sensible as text; its vocabulary has the size and the kind of the family's, and made-up words.
//!
//! `cargo run --release --example synth_gguf -- llama-3.2-1b Q4_K_M model.gguf`
//!
//! The type is a mix or any storage type. Mixes are those that llama-quantize makes: Q4_K_M, Q5_K_M, Q2_K_S, and Q2_K_MIX, which it calls Q2_K.
//! MXFP4_MOE has experts of MXFP4 and Q8_0 for the rest. A storage type, Q2_K among them, is that of every matrix, as llama-quantize makes files only
//! with `--pure`. Rows that are no whole number of blocks become Q8_0, where llama-quantize takes fewer bits. `llama-3.2-1b-short` has the layers of
//! the whole model, but fewer of them and fewer tokens, for comparing many types.
//!
//! With `flat` behind the path all logits are the same, so that a head is always right, however tokens are drawn; it takes the time of any other.
//! With a number behind the path, a block behind the layers predicts a further token, and is right so many times of 100 (`predictor`). With `next`
//! and a number the model itself says the next token of the vocabulary so many times of 100, for a draft model that is right as often.

mod eagle;
mod gemma4;
mod header;
mod predictor;
mod shape;
mod shapes;
mod tensor;
#[cfg(test)]
mod tests;
mod vocabulary;

use gemma4::GLOBAL_HEAD;
use header::Header;
use predictor::Says;
use segno::quant::DType;
use segno::quant::synthetic::Random;
use shape::{Experts, Latent, Norms, Recurrent, Shape};
use shapes::SHAPES;
use std::fs::File;
use std::io::{BufWriter, Result, Write};
use tensor::{ALIGNMENT, Content, FIRST_SEED, Tensor};

/// Which matrices of a file are finer than most.
#[derive(Clone, Copy, PartialEq)]
enum Rule {
    /// None.
    Pure,
    /// llama-quantize's Q2_K.
    TwoBits,
    /// llama-quantize's Q2_K_S.
    TwoBitsSmall,
    /// llama-quantize's Q4_K_M and Q5_K_M.
    Medium,
    /// llama-quantize's MXFP4_MOE.
    Experts,
}

/// Storage types of a file, after `llama_tensor_get_type` of llama.cpp.
struct Mix {
    rule: Rule,
    /// The type of most matrices.
    base: DType,
    file_type: u32,
}

impl Mix {
    /// The type of the head, and of the embedding where that is the head too.
    fn head(&self) -> DType {
        if matches!(self.rule, Rule::Pure | Rule::Experts) { self.base } else { DType::Q6_K }
    }

    /// The type of a matrix of a layer.
    fn part(&self, part: &str, layer: usize, shape: &Shape) -> DType {
        let (first, last) = (shape.layers / 8, 7 * shape.layers / 8);
        let keeps_more = layer < first || layer >= last || (layer - first) % 3 == 2;
        let many_heads_share = shape.heads / shape.kv_heads >= 4;
        // Tables of experts are as fine as the one block of others.
        let part = part.strip_suffix("_shexp").unwrap_or(part);
        let (part, is_table) = part.strip_suffix("_exps").map_or((part, false), |part| (part, true));
        match (self.rule, part) {
            (Rule::Experts, _) if is_table => DType::MXFP4,
            (Rule::TwoBits | Rule::TwoBitsSmall, "attn_v") if many_heads_share => DType::Q4_K,
            (Rule::TwoBits, "attn_v" | "attn_output" | "ffn_down") => DType::Q3_K,
            (Rule::TwoBitsSmall, "ffn_down") if layer < first => DType::Q4_K,
            (Rule::Medium, "attn_v" | "ffn_down") if keeps_more => DType::Q6_K,
            _ => self.base,
        }
    }
}

fn mix(name: &str) -> Option<Mix> {
    let (rule, base) = match name {
        "Q2_K_MIX" => (Rule::TwoBits, DType::Q2_K),
        "Q2_K_S" => (Rule::TwoBitsSmall, DType::Q2_K),
        "Q4_K_M" => (Rule::Medium, DType::Q4_K),
        "Q5_K_M" => (Rule::Medium, DType::Q5_K),
        "MXFP4_MOE" => (Rule::Experts, DType::Q8_0),
        _ => (Rule::Pure, DType::ALL.into_iter().find(|dtype| dtype.name() == name)?),
    };
    // ggml's numbers of file types; readers only show them.
    let file_type = match name {
        "F32" => 0,
        "F16" => 1,
        "Q4_0" => 2,
        "Q4_1" => 3,
        "Q8_0" => 7,
        "Q5_0" => 8,
        "Q5_1" => 9,
        "Q2_K_MIX" => 10,
        "Q4_K_M" => 15,
        "Q5_K_M" => 17,
        "Q6_K" => 18,
        "Q2_K_S" => 21,
        "IQ4_NL" => 25,
        "IQ4_XS" => 30,
        "BF16" => 32,
        "MXFP4_MOE" => 38,
        _ => 1024,
    };
    Some(Mix { rule, base, file_type })
}

struct Model<'a> {
    shape: &'a Shape,
    mix: Mix,
    tensors: Vec<Tensor>,
    says: Says,
}

impl Model<'_> {
    fn matrix(&mut self, name: String, rows: usize, cols: usize, dtype: DType, spread: f32) {
        self.table(name, &[cols, rows], dtype, spread);
    }

    /// A matrix, or one for each expert.
    fn table(&mut self, name: String, dims: &[usize], dtype: DType, spread: f32) {
        let whole = |dtype: &DType| dims[0].is_multiple_of(dtype.block_len());
        let dtype = [dtype, DType::Q8_0, DType::F16].into_iter().find(whole).unwrap_or(DType::F16);
        self.tensors.push(Tensor { name, dims: dims.to_vec(), dtype, content: Content::Drawn { mean: 0.0, spread } });
    }

    fn vector(&mut self, name: String, len: usize, mean: f32, spread: f32) {
        self.tensors.push(Tensor {
            name,
            dims: vec![len],
            dtype: DType::F32,
            content: Content::Drawn { mean, spread },
        });
    }

    /// A matrix of a layer, of the type that the mix gives it.
    fn part(&mut self, layer: usize, part: &str, rows: usize, cols: usize, spread: f32) {
        let dtype = self.mix.part(part, layer, self.shape);
        self.matrix(format!("blk.{layer}.{part}.weight"), rows, cols, dtype, spread);
    }

    fn layer(&mut self, index: usize) {
        if let Some(sizes) = self.shape.gemma4 {
            return self.gemma4_layer(index, &sizes);
        }
        let Shape { hidden, heads, kv_heads, head_dim, feed_forward, arch, .. } = *self.shape;
        let Shape { head_norms, norms, fused, experts, sinks, .. } = *self.shape;
        let named = |part: &str| format!("blk.{index}.{part}");
        let (queries, keys) = (heads * head_dim, kv_heads * head_dim);
        let spread = |cols: usize| 1.0 / (cols as f32).sqrt();
        if norms != Norms::After {
            self.vector(named("attn_norm.weight"), hidden, 1.0, 0.05);
        }
        // The block that predicts has attention.
        let is_layer = index < self.shape.layers;
        let recurrent = self.shape.recurrent.filter(|recurrent| is_layer && !recurrent.attends(index));
        let has_gate = matches!(self.shape.recurrent, Some(Recurrent::DeltaNet { .. }));
        if let Some(recurrent) = recurrent {
            self.recurrent(index, &recurrent);
        } else if let Some(latent) = self.shape.latent {
            self.latent(index, &latent);
        } else if fused {
            self.part(index, "attn_qkv", queries + 2 * keys, hidden, spread(hidden));
        } else {
            self.part(index, "attn_q", if has_gate { 2 * queries } else { queries }, hidden, spread(hidden));
            self.part(index, "attn_k", keys, hidden, spread(hidden));
            self.part(index, "attn_v", keys, hidden, spread(hidden));
        }
        if ["qwen2", "seed_oss"].contains(&arch) || sinks {
            for (part, len) in [("q", queries), ("k", keys), ("v", keys)] {
                self.vector(named(&format!("attn_{part}.bias")), len, 0.0, 0.1);
            }
        }
        if sinks {
            self.vector(named("attn_output.bias"), hidden, 0.0, 0.1);
            self.vector(named("attn_sinks.weight"), heads, 0.0, 1.0);
        }
        if head_norms && recurrent.is_none() {
            for (part, row) in [("q", queries), ("k", keys)] {
                let len = if ["olmoe", "olmo2"].contains(&arch) { row } else { head_dim };
                self.vector(named(&format!("attn_{part}_norm.weight")), len, 1.0, 0.05);
            }
        }
        if recurrent.is_none() {
            self.part(index, "attn_output", hidden, queries, 0.3 * spread(queries));
        }
        let norms: &[&str] = match norms {
            Norms::Around => &["post_attention_norm", "ffn_norm", "post_ffw_norm"],
            Norms::After => &["post_attention_norm", "post_ffw_norm"],
            Norms::Parallel => &[],
            Norms::Before if sinks || has_gate || arch == "seed_oss" => &["post_attention_norm"],
            Norms::Before => &["ffn_norm"],
        };
        norms.iter().for_each(|norm| self.vector(named(&format!("{norm}.weight")), hidden, 1.0, 0.05));
        if let Some(experts) = experts.filter(|_| index >= self.shape.dense_layers) {
            return self.experts(index, &experts);
        }
        if self.shape.plain {
            self.plain_biases(index);
            self.part(index, "ffn_up", feed_forward, hidden, spread(hidden));
        } else if fused {
            self.part(index, "ffn_up", 2 * feed_forward, hidden, spread(hidden));
        } else {
            self.part(index, "ffn_gate", feed_forward, hidden, spread(hidden));
            self.part(index, "ffn_up", feed_forward, hidden, spread(hidden));
        }
        self.part(index, "ffn_down", hidden, feed_forward, 0.5 * spread(feed_forward));
    }

    /// Biases of all that a layer without a gate has.
    fn plain_biases(&mut self, index: usize) {
        let Shape { hidden, heads, kv_heads, head_dim, feed_forward, .. } = *self.shape;
        for (part, len) in [
            ("attn_norm", hidden),
            ("attn_q", heads * head_dim),
            ("attn_k", kv_heads * head_dim),
            ("attn_v", kv_heads * head_dim),
            ("attn_output", hidden),
            ("ffn_norm", hidden),
            ("ffn_up", feed_forward),
            ("ffn_down", hidden),
        ] {
            self.vector(format!("blk.{index}.{part}.bias"), len, 0.0, 0.1);
        }
    }

    /// What a layer without attention has in its place.
    fn recurrent(&mut self, index: usize, recurrent: &Recurrent) {
        let hidden = self.shape.hidden;
        let spread = |cols: usize| 1.0 / (cols as f32).sqrt();
        let named = |part: &str| format!("blk.{index}.{part}");
        match *recurrent {
            Recurrent::ShortConvolution { .. } => {
                self.part(index, "shortconv.in_proj", 3 * hidden, hidden, spread(hidden));
                self.table(named("shortconv.conv.weight"), &[3, hidden], DType::F32, 0.6);
                self.part(index, "shortconv.out_proj", hidden, hidden, 0.3 * spread(hidden));
            }
            Recurrent::DeltaNet { key_heads, value_heads, dim } => {
                let (channels, width) = ((2 * key_heads + value_heads) * dim, value_heads * dim);
                self.part(index, "attn_qkv", channels, hidden, spread(hidden));
                self.part(index, "attn_gate", width, hidden, spread(hidden));
                self.part(index, "ssm_beta", value_heads, hidden, spread(hidden));
                self.part(index, "ssm_alpha", value_heads, hidden, spread(hidden));
                self.table(named("ssm_conv1d.weight"), &[4, channels], DType::F32, 0.5);
                self.vector(named("ssm_dt.bias"), value_heads, 0.0, 0.3);
                self.vector(named("ssm_a"), value_heads, -1.0, 0.1);
                self.vector(named("ssm_norm.weight"), dim, 1.0, 0.05);
                self.part(index, "ssm_out", hidden, width, 0.3 * spread(width));
            }
        }
    }

    /// The projections of latent attention, but that of its result.
    fn latent(&mut self, index: usize, latent: &Latent) {
        let Shape { hidden, heads, head_dim, rope_dims, .. } = *self.shape;
        let &Latent { rank, plain } = latent;
        let spread = |cols: usize| 1.0 / (cols as f32).sqrt();
        self.part(index, "attn_q", heads * (plain + rope_dims), hidden, spread(hidden));
        self.part(index, "attn_kv_a_mqa", rank + rope_dims, hidden, spread(hidden));
        self.vector(format!("blk.{index}.attn_kv_a_norm.weight"), rank, 1.0, 0.05);
        for (part, cols, rows) in [("attn_k_b", plain, rank), ("attn_v_b", rank, head_dim)] {
            let dtype = self.mix.part(part, index, self.shape);
            self.table(format!("blk.{index}.{part}.weight"), &[cols, rows, heads], dtype, spread(rank));
        }
    }

    /// The router of a layer, and its tables of experts.
    fn experts(&mut self, index: usize, experts: &Experts) {
        let (hidden, Experts { count, feed_forward: width, .. }) = (self.shape.hidden, *experts);
        let spread = 1.0 / (hidden as f32).sqrt();
        let router = format!("blk.{index}.ffn_gate_inp");
        self.table(format!("{router}.weight"), &[hidden, count], DType::F32, 2.0 * spread);
        if self.shape.sinks {
            self.vector(format!("{router}.bias"), count, 0.0, 0.1);
        }
        let down = 0.5 / (width as f32).sqrt();
        for (part, cols, rows, spread) in
            [("gate", hidden, width, spread), ("up", hidden, width, spread), ("down", width, hidden, down)]
        {
            let part = format!("ffn_{part}_exps");
            let dtype = self.mix.part(&part, index, self.shape);
            self.table(format!("blk.{index}.{part}.weight"), &[cols, rows, count], dtype, spread);
            if self.shape.sinks {
                self.table(format!("blk.{index}.{part}.bias"), &[rows, count], DType::F32, 0.1);
            }
        }
        let shared = self.shape.shared_feed_forward;
        if shared > 0 {
            self.part(index, "ffn_gate_shexp", shared, hidden, spread);
            self.part(index, "ffn_up_shexp", shared, hidden, spread);
            self.part(index, "ffn_down_shexp", hidden, shared, 0.5 / (shared as f32).sqrt());
            if self.shape.recurrent.is_some() {
                self.vector(format!("blk.{index}.ffn_gate_inp_shexp.weight"), hidden, 0.0, spread);
            }
        }
    }

    fn collect(&mut self) {
        match self.shape.head_of {
            Some(head) => self.head(&head),
            None => self.model(),
        }
        if self.says == Says::Flat {
            let heads = self.tensors.iter_mut().filter(|tensor| tensor.name == "output.weight");
            heads.for_each(|head| head.content = Content::Drawn { mean: 0.0, spread: 0.0 });
        }
    }

    fn model(&mut self) {
        let Shape { hidden, vocab, tied, layers, .. } = *self.shape;
        let embedding = if tied { self.mix.head() } else { self.mix.base };
        self.matrix("token_embd.weight".into(), vocab, hidden, embedding, 0.05);
        if let Some(sizes) = self.shape.gemma4 {
            self.gemma4_embeddings(&sizes);
        }
        (0..layers).for_each(|index| self.layer(index));
        let is_short = matches!(self.shape.recurrent, Some(Recurrent::ShortConvolution { .. }));
        let norm = if is_short { "token_embd_norm.weight" } else { "output_norm.weight" };
        self.vector(norm.into(), hidden, 1.0, 0.05);
        if self.shape.plain {
            self.vector("output_norm.bias".into(), hidden, 0.0, 0.1);
        }
        if !tied {
            self.matrix("output.weight".into(), vocab, hidden, self.mix.head(), 1.0 / (hidden as f32).sqrt());
        }
        match self.says {
            Says::Predicted(right) => self.predictor(right),
            Says::Next(right) => self.counts(right),
            Says::Anything | Says::Flat => {}
        }
    }

    fn write(&self, out: &mut impl Write) -> Result<()> {
        let mut header = Header::default();
        self.write_metadata(&mut header);
        let entries = header.entries;
        let mut offset = 0usize;
        for tensor in &self.tensors {
            header.string(&tensor.name).u32(tensor.dims.len() as u32);
            for &dim in &tensor.dims {
                header.u64(dim as u64);
            }
            header.u32(tensor.type_id()).u64(offset as u64);
            offset = (offset + tensor.bytes()).next_multiple_of(ALIGNMENT);
        }
        let mut front = Header::default();
        front.bytes.extend(b"GGUF");
        front.u32(3).u64(self.tensors.len() as u64).u64(entries);
        front.bytes.append(&mut header.bytes);
        front.bytes.resize(front.bytes.len().next_multiple_of(ALIGNMENT), 0);
        out.write_all(&front.bytes)?;
        let mut random = Random::new(FIRST_SEED);
        let first = self.tensors.first();
        self.tensors.iter().try_for_each(|tensor| tensor.write(first, &mut random, out))
    }

    fn write_metadata(&self, header: &mut Header) {
        let shape = self.shape;
        let key = |name: &str| format!("{}.{name}", shape.arch);
        let whole_head = if shape.gemma4.is_some() { GLOBAL_HEAD } else { shape.head_dim };
        header.text("general.architecture", shape.arch).text("general.name", &format!("synthetic {}", shape.name));
        header.number("general.file_type", self.mix.file_type).number("general.quantization_version", 2);
        for (name, value) in [
            ("block_count", shape.layers + usize::from(self.says.has_block())),
            ("embedding_length", shape.hidden),
            ("feed_forward_length", shape.feed_forward),
            ("attention.head_count", shape.heads),
            ("attention.key_length", shape.latent.map_or(whole_head, |latent| latent.rank + shape.rope_dims)),
            ("attention.value_length", shape.latent.map_or(whole_head, |latent| latent.rank)),
            ("rope.dimension_count", shape.rope_dims),
            ("vocab_size", shape.vocab),
        ] {
            header.number(&key(name), value as u32);
        }
        header.number(&key("context_length"), shape.context);
        header.float(&key("rope.freq_base"), shape.rope_base);
        header.float(&key("attention.layer_norm_rms_epsilon"), shape.norm_eps);
        if let Some(experts) = &shape.experts {
            header.number(&key("expert_count"), experts.count as u32);
            header.number(&key("expert_used_count"), experts.chosen as u32);
            header.number(&key("expert_feed_forward_length"), experts.feed_forward as u32);
        }
        if let Some(Latent { rank, plain }) = shape.latent {
            header.number(&key("attention.kv_lora_rank"), rank as u32).text(&key("rope.scaling.type"), "yarn");
            header.number(&key("attention.key_length_mla"), (plain + shape.rope_dims) as u32);
            header.number(&key("attention.value_length_mla"), shape.head_dim as u32);
        }
        if self.says.has_block() {
            header.number(&key("nextn_predict_layers"), 1);
        }
        self.write_layers(header);
        if shape.head_of.is_some() {
            self.write_head(header);
        }
        if shape.sinks {
            header.text(&key("rope.scaling.type"), "yarn").float(&key("rope.scaling.factor"), 32.0);
            header.number(&key("rope.scaling.original_context_length"), 4096);
        }
        if !shape.rope_sections.is_empty() {
            header.numbers(&key("rope.dimension_sections"), shape.rope_sections);
        }
        shape.numbers.iter().for_each(|&(name, value)| _ = header.number(&key(name), value));
        shape.floats.iter().for_each(|&(name, value)| _ = header.float(&key(name), value));
        vocabulary::write(if shape.arch.starts_with("qwen") { "qwen2" } else { "llama-bpe" }, shape.vocab, header);
    }
}

impl Model<'_> {
    /// What differs by layer, and the sizes of layers without attention.
    fn write_layers(&self, header: &mut Header) {
        let shape = self.shape;
        let key = |name: &str| format!("{}.{name}", shape.arch);
        let kv_heads = key("attention.head_count_kv");
        if let Some(sizes) = &shape.gemma4 {
            return self.write_gemma4(sizes, header);
        }
        match shape.recurrent {
            Some(recurrent @ Recurrent::ShortConvolution { .. }) => {
                let of = |layer| if recurrent.attends(layer) { shape.kv_heads as u32 } else { 0 };
                header.numbers(&kv_heads, &(0..shape.layers).map(of).collect::<Vec<u32>>());
            }
            _ => _ = header.number(&kv_heads, shape.kv_heads as u32),
        }
        if let Some(Recurrent::DeltaNet { key_heads, value_heads, dim }) = shape.recurrent {
            for (name, value) in [
                ("ssm.conv_kernel", 4),
                ("ssm.state_size", dim),
                ("ssm.group_count", key_heads),
                ("ssm.time_step_rank", value_heads),
                ("ssm.inner_size", value_heads * dim),
            ] {
                header.number(&key(name), value as u32);
            }
            if shape.experts.is_some() {
                header.number(&key("expert_shared_feed_forward_length"), shape.shared_feed_forward as u32);
            }
        }
    }
}

fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let found = match args.as_slice() {
        [shape, types, path, words @ ..] => SHAPES
            .iter()
            .find(|known| known.name == shape)
            .zip(mix(types))
            .zip(Says::parse(words))
            .map(|found| (found, path)),
        _ => None,
    };
    let Some((((shape, mix), says), path)) = found else {
        let shapes: Vec<_> = SHAPES.iter().map(|shape| shape.name).collect();
        let types: Vec<_> = DType::ALL.iter().map(|dtype| dtype.name()).collect();
        eprintln!("usage: synth_gguf SHAPE TYPE OUT.gguf [RIGHT | next RIGHT | flat]\nshapes: {}", shapes.join(", "));
        eprintln!(
            "types, mixed as llama-quantize does: Q4_K_M, Q5_K_M, MXFP4_MOE, Q2_K_S, Q2_K_MIX (which it calls Q2_K)"
        );
        eprintln!("types, one for every matrix, as with --pure: {}", types.join(", "));
        std::process::exit(2);
    };
    let mut model = Model { shape, mix, tensors: Vec::new(), says };
    model.collect();
    let mut out = BufWriter::with_capacity(1 << 20, File::create(path)?);
    model.write(&mut out)?;
    out.flush()
}
