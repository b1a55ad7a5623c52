//! Tiny models, valid to the last byte: every family, both kinds of vocabulary, every storage type, every GGUF version.

mod layers;

use super::gguf::{self, File, Tensor, Value};
use super::keys::{LAYER_SIZES, STATE_SIZES};
use segno::quant::DType;
use segno::quant::DType::*;
use segno::quant::synthetic::{Random, blocks};

/// What a model is made of.
struct Recipe {
    arch: &'static str,
    version: u32,
    hidden: usize,
    layers: usize,
    vocabulary: Vocabulary,
    /// Taken in turn by the matrices whose rows are whole blocks of the type.
    types: &'static [DType],
    /// An output head of its own, biases, and scaled positions.
    rich: bool,
}

#[derive(Clone, Copy)]
enum Vocabulary {
    SentencePiece,
    BytePair(&'static str),
    None,
}

const HEADS: usize = 2;
const HEAD_DIM: usize = 16;
const FEED_FORWARD: usize = 32;
const EXPERTS: usize = 4;
/// Key heads of a scan, heads of values, elements of each, and rows that a convolution sees.
const KEY_HEADS: usize = 1;
const VALUE_HEADS: usize = 2;
const STATE: usize = 8;
const TAPS: usize = 3;
/// Elements of a head of layers that see a window, and of the embedding of a token for each layer.
const LOCAL_DIM: usize = 8;
const EMBEDDING: usize = 4;
/// What drafts for the one of `gemma4`, whose vectors have so many elements.
pub const ASSISTANT: &str = "gemma4-assistant";
const BACKBONE: usize = 32;
/// What drafts for the first of `llama`, by vectors of so many elements.
pub const HEAD: &str = "eagle3";
const FEATURES: usize = 32;
const TEMPLATE: &str = "{% for m in messages %}<s>{{ m.role }}: {{ m.content | trim }}</s>{% endfor %}\
    {% if add_generation_prompt %}<s>assistant:{% endif %}";

const RECIPES: [Recipe; 21] = [
    recipe("llama", 3, FEATURES, Vocabulary::SentencePiece, &[F32]),
    recipe("llama", 3, 64, Vocabulary::BytePair("gpt-2"), &[F16, BF16, Q8_0, Q4_0, F32]),
    recipe("llama", 3, 256, Vocabulary::SentencePiece, &[Q4_K, Q6_K, Q2_K, Q3_K, Q5_K, Q8_0]),
    recipe("qwen2", 3, 32, Vocabulary::BytePair("qwen2"), &[Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, IQ4_NL, MXFP4]),
    recipe("qwen3", 2, 64, Vocabulary::BytePair("llama-bpe"), &[NVFP4, MXFP4, F16, Q8_0]),
    recipe("llama", 3, 256, Vocabulary::None, &[IQ1_S, IQ1_M, IQ2_XXS, IQ2_XS, IQ2_S, IQ3_XXS, IQ3_S]),
    recipe("qwen3", 3, 256, Vocabulary::BytePair("qwen2"), &[IQ4_XS, TQ1_0, TQ2_0, Q1_0, Q4_K, Q6_K]),
    Recipe { rich: true, ..recipe("llama", 1, 32, Vocabulary::SentencePiece, &[F32, F16]) },
    recipe("qwen3moe", 3, 64, Vocabulary::BytePair("qwen2"), &[Q8_0, MXFP4, F16]),
    recipe("glm4moe", 3, 32, Vocabulary::SentencePiece, &[F32, Q4_0, BF16]),
    Recipe { rich: true, layers: 2, ..recipe("qwen2", 3, 32, Vocabulary::BytePair("gpt-2"), &[Q8_0, F32]) },
    Recipe { layers: 2, ..recipe("lfm2", 3, 32, Vocabulary::BytePair("gpt-2"), &[F32, Q8_0]) },
    Recipe { layers: 2, ..recipe("qwen35", 3, 32, Vocabulary::BytePair("qwen2"), &[Q8_0, F32]) },
    Recipe { layers: 2, ..recipe("qwen3next", 3, 64, Vocabulary::SentencePiece, &[F16, Q8_0]) },
    Recipe { layers: 3, ..recipe("nemotron_h_moe", 3, 32, Vocabulary::BytePair("gpt-2"), &[Q8_0, F32, Q4_0]) },
    Recipe { layers: 2, ..recipe("falcon-h1", 3, 32, Vocabulary::BytePair("gpt-2"), &[F32, Q8_0]) },
    Recipe { layers: 3, ..recipe("gemma4", 3, BACKBONE, Vocabulary::SentencePiece, &[F32, Q8_0, F16]) },
    Recipe { layers: 2, ..recipe(ASSISTANT, 3, 64, Vocabulary::SentencePiece, &[Q8_0, F32]) },
    recipe(HEAD, 3, FEATURES, Vocabulary::SentencePiece, &[F32, Q8_0]),
    Recipe { layers: 2, ..recipe("bert", 3, 32, Vocabulary::SentencePiece, &[F32, Q8_0]) },
    recipe("gemma-embedding", 3, 64, Vocabulary::SentencePiece, &[Q8_0, F16]),
];

const fn recipe(
    arch: &'static str,
    version: u32,
    hidden: usize,
    vocabulary: Vocabulary,
    types: &'static [DType],
) -> Recipe {
    Recipe { arch, version, hidden, layers: 1, vocabulary, types, rich: false }
}

/// The models for which the assistant and the head draft.
pub fn backbones() -> [File; 2] {
    ["gemma4", "llama"].map(|arch| {
        let made = RECIPES.iter().zip(1..).find(|(recipe, _)| recipe.arch == arch);
        made.map(|(recipe, seed)| Builder::new(recipe, seed).build()).expect("it is among them")
    })
}

/// All models.
pub fn all() -> Vec<File> {
    RECIPES.iter().zip(1..).map(|(recipe, seed)| Builder::new(recipe, seed).build()).collect()
}

struct Builder<'a> {
    recipe: &'a Recipe,
    random: Random,
    matrices: usize,
    file: File,
}

impl<'a> Builder<'a> {
    fn new(recipe: &'a Recipe, seed: u64) -> Builder<'a> {
        let file = File {
            magic: *b"GGUF",
            version: recipe.version,
            alignment: 32,
            said_entries: None,
            said_tensors: None,
            entries: Vec::new(),
            tensors: Vec::new(),
        };
        Builder { recipe, random: Random::new(seed), matrices: 0, file }
    }

    fn build(mut self) -> File {
        self.sizes();
        let tokens = match self.recipe.vocabulary {
            Vocabulary::SentencePiece => self.sentencepiece(),
            Vocabulary::BytePair(name) => self.byte_pair(name),
            Vocabulary::None => 40,
        };
        match self.recipe.arch {
            HEAD => self.ends_of_head(tokens),
            _ => self.matrix("token_embd.weight", self.recipe.hidden, tokens),
        }
        if self.recipe.arch == "gemma4" {
            let width = EMBEDDING * self.recipe.layers;
            self.matrix("per_layer_token_embd.weight", width, tokens);
            self.matrix("per_layer_model_proj.weight", self.recipe.hidden, width);
            self.vector("per_layer_proj_norm.weight", EMBEDDING);
            self.vector("rope_freqs.weight", HEAD_DIM / 2);
        }
        if self.recipe.arch == ASSISTANT {
            self.matrix("nextn.pre_projection.weight", 2 * BACKBONE, self.recipe.hidden);
            self.matrix("nextn.post_projection.weight", self.recipe.hidden, BACKBONE);
            self.vector("rope_freqs.weight", HEAD_DIM / 2);
        }
        for layer in 0..self.recipe.layers {
            self.layer(layer);
        }
        let last = if self.recipe.arch == "lfm2" { "token_embd_norm.weight" } else { "output_norm.weight" };
        match self.recipe.arch {
            "bert" => self.ends_of_encoder(),
            _ => self.vector(last, self.recipe.hidden),
        }
        if self.recipe.arch == "gemma-embedding" {
            self.matrix("dense_2.weight", self.recipe.hidden, FEED_FORWARD);
            self.matrix("dense_3.weight", FEED_FORWARD, HEAD_DIM);
        }
        if self.recipe.rich {
            self.matrix("output.weight", self.recipe.hidden, tokens);
            self.vector("rope_freqs.weight", HEAD_DIM / 2);
        }
        self.file
    }

    /// What a head has that embeds by the model's table and knows every other one of so many tokens.
    fn ends_of_head(&mut self, tokens: usize) {
        self.matrix("fc.weight", 2 * FEATURES, self.recipe.hidden);
        self.matrix("output.weight", self.recipe.hidden, tokens / 2);
        let data = (0..tokens as i64 / 2).flat_map(|token| (2 * token).to_le_bytes()).collect();
        let (name, dims) = (b"d2t".to_vec(), vec![tokens as u64 / 2]);
        self.file.tensors.push(Tensor { name, dims, said_rank: None, type_id: 27, said_offset: None, data });
        let layers = Value::array(gguf::U32, [1, 0].map(Value::u32));
        for (key, value) in [
            ("vocab_size", Value::u32(tokens as u32)),
            ("target_hidden_size", Value::u32(FEATURES as u32)),
            ("target_layers", layers),
        ] {
            self.file.set(&format!("{HEAD}.{key}"), value);
        }
    }

    fn sizes(&mut self) {
        let arch = self.recipe.arch;
        self.file.set("general.architecture", Value::text(arch));
        self.file.set("general.name", Value::text("tiny"));
        let numbers = [
            ("context_length", 64),
            ("embedding_length", self.recipe.hidden),
            ("block_count", self.recipe.layers),
            ("feed_forward_length", FEED_FORWARD),
            ("attention.head_count", HEADS),
            ("attention.head_count_kv", 1),
            ("attention.key_length", HEAD_DIM),
            ("attention.value_length", HEAD_DIM),
            ("rope.dimension_count", HEAD_DIM),
        ];
        for (name, number) in numbers {
            self.file.set(&format!("{arch}.{name}"), Value::u32(number as u32));
        }
        self.file.set(&format!("{arch}.attention.layer_norm_rms_epsilon"), Value::f32(1e-5));
        self.file.set(&format!("{arch}.rope.freq_base"), Value::f32(10_000.0));
        if arch == "gemma-embedding" {
            self.file.set("gemma-embedding.attention.sliding_window", Value::u32(4));
        }
        if self.has_states() {
            self.states();
        }
        if self.has_two_heads() {
            let (sharing, embedding) = if arch == ASSISTANT { (self.recipe.layers, 0) } else { (1, EMBEDDING) };
            let numbers = [7, LOCAL_DIM, LOCAL_DIM, LOCAL_DIM, sharing, embedding];
            for (name, number) in LAYER_SIZES.into_iter().zip(numbers) {
                self.file.set(&format!("{arch}.{name}"), Value::u32(number as u32));
            }
            let local = (0..self.recipe.layers).map(|layer| Value::bool(layer % 2 == 0));
            self.file.set(&format!("{arch}.attention.sliding_window_pattern"), Value::array(gguf::BOOL, local));
        }
        if arch == ASSISTANT {
            self.file.set(&format!("{arch}.embedding_length_out"), Value::u32(BACKBONE as u32));
            self.file.set(&format!("{arch}.nextn_predict_layers"), Value::u32(self.recipe.layers as u32));
        }
        if arch == "gemma4" {
            for (key, number) in [("count", EXPERTS), ("used_count", 2), ("feed_forward_length", FEED_FORWARD)] {
                self.file.set(&format!("{arch}.expert_{key}"), Value::u32(number as u32));
            }
        }
        if self.recipe.rich {
            self.file.set("general.alignment", Value::u32(32));
            self.file.set(&format!("{arch}.rope.scaling.type"), Value::text("yarn"));
            self.file.set(&format!("{arch}.rope.scaling.factor"), Value::f32(4.0));
            self.file.set(&format!("{arch}.rope.scaling.original_context_length"), Value::u32(32));
        }
    }

    /// Sizes of a family some of whose layers have a state: of each two layers the second has attention.
    fn states(&mut self) {
        let arch = self.recipe.arch;
        let numbers = [TAPS, TAPS, STATE, self.key_heads(), VALUE_HEADS, VALUE_HEADS * STATE, 2];
        for (name, number) in
            STATE_SIZES.into_iter().zip(numbers).filter(|(name, _)| name.starts_with("shortconv") == (arch == "lfm2"))
        {
            self.file.set(&format!("{arch}.{name}"), Value::u32(number as u32));
        }
        if arch == "nemotron_h_moe" {
            for (name, of) in [("attention.head_count_kv", [0, 1, 0]), ("feed_forward_length", [0, 0, FEED_FORWARD])] {
                let key = format!("{arch}.{name}");
                self.file.entries.retain(|entry| entry.key != key.as_bytes());
                self.file.set(&key, Value::array(gguf::U32, of.map(|number| Value::u32(number as u32))));
            }
            for (key, number) in [("count", EXPERTS), ("used_count", 2), ("feed_forward_length", FEED_FORWARD)] {
                self.file.set(&format!("{arch}.expert_{key}"), Value::u32(number as u32));
            }
            self.file.set("nemotron_h_moe.moe_latent_size", Value::u32(HEAD_DIM as u32));
        }
        if arch == "lfm2" {
            let counts = (0..self.recipe.layers).map(|layer| Value::u32((layer % 2) as u32));
            self.file.entries.retain(|entry| entry.key != b"lfm2.attention.head_count_kv");
            self.file.set("lfm2.attention.head_count_kv", Value::array(gguf::U32, counts));
        }
    }

    fn sentencepiece(&mut self) -> usize {
        let mut tokens: Vec<String> = ["<unk>", "<s>", "</s>", "<0x0A>", "<0xC3>", "<0xA9>"].map(String::from).to_vec();
        let special = tokens.len();
        tokens.extend(('a'..='z').map(String::from));
        tokens.extend(["\u{2581}", "th", "he", "the", "\u{2581}the", "\u{2581}t", "er", "in"].map(String::from));
        let kinds = (0..tokens.len()).map(|at| if at < special { [2, 3, 3, 6, 6, 6][at] } else { 1 });
        self.file.set("tokenizer.ggml.model", Value::text("llama"));
        self.file.set("tokenizer.ggml.tokens", Value::array(gguf::TEXT, tokens.iter().map(Value::text)));
        self.file.set(
            "tokenizer.ggml.scores",
            Value::array(gguf::F32, (0..tokens.len()).map(|at| Value::f32(-(at as f32)))),
        );
        self.file.set("tokenizer.ggml.token_type", Value::array(gguf::I32, kinds.map(Value::i32)));
        self.file.set("tokenizer.ggml.bos_token_id", Value::u32(1));
        self.file.set("tokenizer.ggml.eos_token_id", Value::u32(2));
        self.file.set("tokenizer.ggml.add_bos_token", Value::bool(true));
        self.file.set("tokenizer.chat_template", Value::text(TEMPLATE));
        tokens.len()
    }

    fn byte_pair(&mut self, name: &str) -> usize {
        let mut tokens: Vec<String> = ('!'..='~').map(String::from).collect();
        tokens.extend(["\u{120}", "\u{10a}", "th", "he", "the", "\u{120}the", "\u{120}t"].map(String::from));
        tokens.extend(["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<tool>"].map(String::from));
        let count = tokens.len();
        let kinds = (0..count).map(|at| if at + 1 == count { 4 } else { 1 + 2 * i32::from(at + 4 >= count) });
        let merges = ["t h", "h e", "th e", "\u{120} t", "\u{120} the"];
        self.file.set("tokenizer.ggml.model", Value::text("gpt2"));
        self.file.set("tokenizer.ggml.pre", Value::text(name));
        self.file.set("tokenizer.ggml.tokens", Value::array(gguf::TEXT, tokens.iter().map(Value::text)));
        self.file.set("tokenizer.ggml.token_type", Value::array(gguf::I32, kinds.map(Value::i32)));
        self.file.set("tokenizer.ggml.merges", Value::array(gguf::TEXT, merges.map(Value::text)));
        self.file.set("tokenizer.ggml.eos_token_id", Value::u32(count as u32 - 2));
        self.file.set("tokenizer.chat_template", Value::text(TEMPLATE));
        count
    }

    /// Whether layers that see a window have heads of another size than the others.
    fn has_two_heads(&self) -> bool {
        matches!(self.recipe.arch, "gemma4" | ASSISTANT)
    }

    fn has_states(&self) -> bool {
        matches!(self.recipe.arch, "lfm2" | "qwen35" | "qwen3next") || self.has_spaces()
    }

    /// Whether states are those of state spaces of two groups.
    fn has_spaces(&self) -> bool {
        matches!(self.recipe.arch, "nemotron_h_moe" | "falcon-h1")
    }

    fn key_heads(&self) -> usize {
        if self.has_spaces() { 2 * KEY_HEADS } else { KEY_HEADS }
    }

    fn layer(&mut self, index: usize) {
        if self.recipe.arch == "bert" {
            return self.encoder_layer(index);
        }
        let name = |part: &str| format!("blk.{index}.{part}");
        self.vector(&name("attn_norm.weight"), self.recipe.hidden);
        match self.recipe.arch {
            "nemotron_h_moe" => return self.one_block(index),
            "falcon-h1" => {
                self.state_space(index);
                self.attention(index);
                return self.feed_forward(index);
            }
            _ => {}
        }
        if self.has_states() && index.is_multiple_of(2) {
            self.recurrent(index)
        } else {
            self.attention(index)
        }
        self.feed_forward(index);
    }

    fn attention(&mut self, index: usize) {
        let (hidden, arch) = (self.recipe.hidden, self.recipe.arch);
        let name = |part: &str| format!("blk.{index}.{part}");
        let gates = if matches!(arch, "qwen35" | "qwen3next") { 2 } else { 1 };
        let dim = if self.has_two_heads() && index.is_multiple_of(2) { LOCAL_DIM } else { HEAD_DIM };
        let read = if arch == HEAD { 2 * hidden } else { hidden };
        if arch == HEAD {
            self.vector(&name("attn_norm_2.weight"), hidden);
        }
        if arch == ASSISTANT {
            self.matrix(&name("attn_q.weight"), hidden, HEADS * dim);
            self.vector(&name("attn_q_norm.weight"), dim);
            return self.matrix(&name("attn_output.weight"), HEADS * dim, hidden);
        }
        for (part, rows) in [("attn_q", gates * HEADS * dim), ("attn_k", dim), ("attn_v", dim)] {
            // Values may be keys.
            if arch == "gemma4" && (index, part) == (1, "attn_v") {
                continue;
            }
            self.matrix(&name(&format!("{part}.weight")), read, rows);
            if self.recipe.arch == "qwen2" || self.recipe.rich {
                self.vector(&name(&format!("{part}.bias")), rows);
            }
        }
        if arch.starts_with("qwen3") || matches!(arch, "lfm2" | "gemma4" | "gemma-embedding") {
            self.vector(&name("attn_q_norm.weight"), dim);
            self.vector(&name("attn_k_norm.weight"), dim);
        }
        self.matrix(&name("attn_output.weight"), HEADS * dim, hidden);
    }

    fn feed_forward(&mut self, index: usize) {
        let (hidden, arch) = (self.recipe.hidden, self.recipe.arch);
        let name = |part: &str| format!("blk.{index}.{part}");
        if arch.ends_with("moe") {
            return self.experts(index);
        }
        if arch == "gemma4" {
            self.beside(index);
        }
        let renamed = matches!(arch, "qwen35" | "qwen3next");
        let norm = match arch {
            _ if renamed => "post_attention_norm.weight",
            "falcon-h1" => "ffn_norm",
            _ => "ffn_norm.weight",
        };
        self.vector(&name(norm), hidden);
        if matches!(arch, "gemma-embedding" | ASSISTANT) {
            self.vector(&name("post_attention_norm.weight"), hidden);
            self.vector(&name("post_ffw_norm.weight"), hidden);
        }
        self.matrix(&name("ffn_gate.weight"), hidden, FEED_FORWARD);
        self.matrix(&name("ffn_up.weight"), hidden, FEED_FORWARD);
        self.matrix(&name("ffn_down.weight"), FEED_FORWARD, hidden);
    }

    /// What Gemma 4 has beside a dense block: norms, experts, and the embedding of the layer.
    fn beside(&mut self, index: usize) {
        let hidden = self.recipe.hidden;
        let name = |part: &str| format!("blk.{index}.{part}");
        for part in [
            "post_attention_norm",
            "post_ffw_norm",
            "post_ffw_norm_1",
            "pre_ffw_norm_2",
            "post_ffw_norm_2",
            "post_norm",
        ] {
            self.vector(&name(&format!("{part}.weight")), hidden);
        }
        self.tensor(&name("ffn_gate_inp.weight"), &[hidden, EXPERTS], F32);
        self.vector(&name("ffn_gate_inp.scale"), hidden);
        self.table(&name("ffn_gate_up_exps.weight"), &[hidden, 2 * FEED_FORWARD, EXPERTS]);
        self.table(&name("ffn_down_exps.weight"), &[FEED_FORWARD, hidden, EXPERTS]);
        self.vector(&name("ffn_down_exps.scale"), EXPERTS);
        self.matrix(&name("inp_gate.weight"), hidden, EMBEDDING);
        self.matrix(&name("proj.weight"), EMBEDDING, hidden);
        self.vector(&name("layer_output_scale.weight"), 1);
    }

    /// The norm, router and tables of a layer with experts; `glm4moe` has a bias for the choice and a shared expert beside them.
    fn experts(&mut self, index: usize) {
        let (hidden, arch) = (self.recipe.hidden, self.recipe.arch);
        let name = |part: &str| format!("blk.{index}.{part}");
        let has_shared = arch == "glm4moe";
        self.vector(&name(if has_shared { "post_attention_norm.weight" } else { "ffn_norm.weight" }), hidden);
        for (key, number) in [("count", EXPERTS), ("used_count", 2), ("feed_forward_length", FEED_FORWARD)] {
            self.file.set(&format!("{arch}.expert_{key}"), Value::u32(number as u32));
        }
        self.tensor(&name("ffn_gate_inp.weight"), &[hidden, EXPERTS], F32);
        for (part, cols, rows) in
            [("gate", hidden, FEED_FORWARD), ("up", hidden, FEED_FORWARD), ("down", FEED_FORWARD, hidden)]
        {
            self.table(&name(&format!("ffn_{part}_exps.weight")), &[cols, rows, EXPERTS]);
            if has_shared {
                self.matrix(&name(&format!("ffn_{part}_shexp.weight")), cols, rows);
            }
        }
        if has_shared {
            self.vector(&name("exp_probs_b.bias"), EXPERTS);
            for (key, number) in [("shared_count", 1), ("group_count", 2), ("group_used_count", 1)] {
                self.file.set(&format!("{arch}.expert_{key}"), Value::u32(number));
            }
        }
    }

    fn matrix(&mut self, name: &str, cols: usize, rows: usize) {
        self.table(name, &[cols, rows]);
    }

    fn table(&mut self, name: &str, dims: &[usize]) {
        let cols = dims[0];
        let turns = (0..self.recipe.types.len())
            .map(|turn| self.recipe.types[(self.matrices + turn) % self.recipe.types.len()]);
        let dtype = turns.into_iter().find(|dtype| cols.is_multiple_of(dtype.block_len())).unwrap_or(F32);
        self.matrices += 1;
        self.tensor(name, dims, dtype);
    }

    fn vector(&mut self, name: &str, len: usize) {
        self.tensor(name, &[len], F32);
        // Norms and divisors around one.
        let data = &mut self.file.tensors.last_mut().expect("just added").data;
        for value in data.as_chunks_mut::<4>().0 {
            *value = (1.0 + 0.25 * f32::from_le_bytes(*value)).to_le_bytes();
        }
    }

    fn tensor(&mut self, name: &str, dims: &[usize], dtype: DType) {
        let count = dims.iter().product::<usize>() / dtype.block_len();
        self.file.tensors.push(Tensor {
            name: name.into(),
            dims: dims.iter().map(|&dim| dim as u64).collect(),
            said_rank: None,
            type_id: type_id(dtype),
            said_offset: None,
            data: blocks(dtype, count, &mut self.random),
        });
    }
}

/// The number of a storage type in a file.
fn type_id(dtype: DType) -> u32 {
    (0..64).find(|&id| DType::from_ggml(id) == Some(dtype)).expect("every type has a number below 64")
}
