//! Kinds of Hugging Face folders: which family of [`crate::arch`] a `model_type` is, and what its files have another way.

use super::experts::{self, Settings};
use super::names::Change;
use super::recurrent::INTERVAL;
use crate::arch::eagle::EAGLE3;
use crate::arch::encoders::{BERT, GEMMA_EMBEDDING, MODERN_BERT, NOMIC_BERT};
use crate::arch::hybrids::{FALCON_H1, GRANITEHYBRID, LFM2, LFM2MOE, NEMOTRON_H, QWEN3NEXT, QWEN35, QWEN35MOE};
use crate::arch::mixtures::{
    DEEPSEEK2, ERNIE4_5_MOE, GEMMA4, GEMMA4_ASSISTANT, GLM4MOE, GPT_OSS, GRANITEMOE, HUNYUAN_MOE, MINIMAX_M2, OLMOE,
    QWEN2MOE, QWEN3MOE, QWEN3VLMOE,
};
use crate::arch::spec::{
    Arch, COHERE2, ERNIE4_5, EXAONE4, GEMMA2, GEMMA3, GLM4, GRANITE, HUNYUAN_DENSE, LLAMA, MISTRAL3, NormKind, OLMO2,
    PHI3, QWEN2, QWEN3, QWEN3VL, SEED_OSS, SMOLLM3, STARCODER2,
};
use crate::error::{Error, Excerpt, Result};

/// One `model_type`.
#[derive(Clone, Copy, Debug)]
pub struct Family {
    /// Its name in `config.json`.
    pub model_type: &'static str,
    /// The layers that it has.
    pub arch: Arch,
    /// Whether rows of queries and keys stand as halves that rotate together, where GGUF files have neighbours.
    pub has_halves: bool,
    /// Whether weights of norms are stored less one.
    pub norms_less_one: bool,
    /// What is said of experts, in families that have them.
    pub experts: Option<Settings>,
    /// The number of blocks behind the layers that predict further tokens, in families that may have them.
    pub predicting: Option<&'static str>,
    /// Settings that files of the family leave out, with what they are then.
    pub defaults: &'static [(&'static str, f64)],
    /// What some settings are called in other files of the family.
    pub aliases: &'static [(&'static str, &'static str)],
    /// Further settings that change what a model computes, and their metadata keys without the family's name.
    pub settings: &'static [(&'static str, &'static str)],
}

const PLAIN: Family = Family {
    model_type: "llama",
    arch: LLAMA,
    has_halves: true,
    norms_less_one: false,
    experts: None,
    predicting: None,
    defaults: &[],
    aliases: &[],
    settings: &[],
};
const HALVES: Family = Family { has_halves: false, ..PLAIN };

/// What some settings are called.
const WINDOW: &str = "sliding_window";
const LOCAL_ATTENTION: &str = "local_attention";
/// Whether tokens see all of their text.
pub const BIDIRECTIONAL: &str = "use_bidirectional_attention";
/// How many blocks behind the layers predict further tokens.
pub const PREDICTING: &str = "num_nextn_predict_layers";
/// Share of a head that rotates.
pub const PARTIAL: &str = "partial_rotary_factor";

const FAMILIES: [Family; 57] = [
    PLAIN,
    Family { model_type: "mistral", defaults: &[(WINDOW, 4096.0)], ..PLAIN },
    Family { model_type: "qwen2", arch: QWEN2, ..HALVES },
    Family { model_type: "qwen3", arch: QWEN3, defaults: &[("head_dim", 128.0)], ..HALVES },
    Family {
        model_type: "gemma2",
        arch: GEMMA2,
        norms_less_one: true,
        defaults: &[(WINDOW, 4096.0), ("head_dim", 256.0), ("query_pre_attn_scalar", 256.0)],
        settings: &[
            ("attn_logit_softcapping", "attn_logit_softcapping"),
            ("final_logit_softcapping", "final_logit_softcapping"),
        ],
        ..HALVES
    },
    GEMMA3_TEXT,
    Family { model_type: "gemma3", ..GEMMA3_TEXT },
    GEMMA4_TEXT,
    Family { model_type: "gemma4", ..GEMMA4_TEXT },
    Family { model_type: "gemma4_unified_text", ..GEMMA4_TEXT },
    Family { model_type: "gemma4_unified", ..GEMMA4_TEXT },
    GEMMA4_ASSISTANT_FOLDER,
    Family { model_type: "gemma4_unified_assistant", ..GEMMA4_ASSISTANT_FOLDER },
    Family { model_type: "olmo2", arch: OLMO2, defaults: &[("rms_norm_eps", 1e-5)], ..HALVES },
    Family {
        model_type: "olmo3",
        arch: OLMO2,
        defaults: &[(WINDOW, 4096.0), ("rms_norm_eps", 1e-5), ("rope_theta", 500_000.0)],
        ..HALVES
    },
    Family { model_type: "exaone4", arch: EXAONE4, defaults: &[(WINDOW, 4096.0), ("rms_norm_eps", 1e-5)], ..HALVES },
    GRANITE_FOLDER,
    Family { model_type: "granitemoe", arch: GRANITEMOE, experts: Some(experts::MIXTRAL), ..GRANITE_FOLDER },
    Family { model_type: "smollm3", arch: SMOLLM3, defaults: &[("rope_theta", 2_000_000.0)], ..PLAIN },
    Family { model_type: "seed_oss", arch: SEED_OSS, defaults: &[("head_dim", 128.0)], ..HALVES },
    Family {
        model_type: "ernie4_5",
        arch: ERNIE4_5,
        defaults: &[("head_dim", 128.0), ("rms_norm_eps", 1e-5), ("rope_theta", 500_000.0)],
        ..HALVES
    },
    MINISTRAL3,
    Family { model_type: "mistral3", ..MINISTRAL3 },
    Family { model_type: "phi3", arch: PHI3, defaults: &[("rms_norm_eps", 1e-5)], ..HALVES },
    Family {
        model_type: "glm4",
        arch: GLM4,
        defaults: &[("head_dim", 128.0), ("rms_norm_eps", 1.5625e-7), (PARTIAL, 0.5)],
        ..HALVES
    },
    Family {
        model_type: "cohere2",
        arch: COHERE2,
        defaults: &[(WINDOW, 4096.0), ("layer_norm_eps", 1e-5), ("logit_scale", 0.0625)],
        settings: &[("logit_scale", "logit_scale")],
        ..HALVES
    },
    Family { model_type: "hunyuan_v1_dense", arch: HUNYUAN_DENSE, defaults: &[("rms_norm_eps", 1e-5)], ..HALVES },
    Family {
        model_type: "qwen3_vl",
        arch: QWEN3VL,
        defaults: &[("head_dim", 128.0), ("rope_theta", 5_000_000.0)],
        ..HALVES
    },
    Family {
        model_type: "mixtral",
        experts: Some(experts::MIXTRAL),
        defaults: &[("rms_norm_eps", 1e-5), ("rope_theta", 1e6)],
        ..PLAIN
    },
    Family { model_type: "qwen2_moe", arch: QWEN2MOE, experts: Some(experts::QWEN), ..HALVES },
    Family { model_type: "qwen3_moe", arch: QWEN3MOE, experts: Some(experts::QWEN), ..HALVES },
    Family {
        model_type: "qwen3_vl_moe",
        arch: QWEN3VLMOE,
        experts: Some(experts::QWEN_VL),
        defaults: &[("rope_theta", 500_000.0), ("intermediate_size", 5632.0)],
        ..HALVES
    },
    Family {
        model_type: "gpt_oss",
        arch: GPT_OSS,
        experts: Some(experts::GPT_OSS),
        defaults: &[(WINDOW, 128.0), ("head_dim", 64.0), ("rms_norm_eps", 1e-5), ("rope_theta", 150_000.0)],
        ..HALVES
    },
    Family {
        model_type: "olmoe",
        arch: OLMOE,
        experts: Some(experts::QWEN),
        defaults: &[("rms_norm_eps", 1e-5)],
        ..HALVES
    },
    Family {
        model_type: "glm4_moe",
        arch: GLM4MOE,
        experts: Some(experts::GLM4),
        predicting: Some(PREDICTING),
        defaults: &[("head_dim", 128.0), ("rms_norm_eps", 1e-5), (PARTIAL, 0.5)],
        ..HALVES
    },
    Family {
        model_type: "ernie4_5_moe",
        arch: ERNIE4_5_MOE,
        experts: Some(experts::ERNIE),
        defaults: &[("rms_norm_eps", 1e-5), ("rope_theta", 500_000.0)],
        ..HALVES
    },
    Family {
        model_type: "hunyuan_v1_moe",
        arch: HUNYUAN_MOE,
        experts: Some(experts::HUNYUAN),
        defaults: &[("rms_norm_eps", 1e-5)],
        ..HALVES
    },
    Family { model_type: "minimax_m2", arch: MINIMAX_M2, experts: Some(experts::MIXTRAL), ..HALVES },
    Family { model_type: "deepseek_v2", experts: Some(experts::DEEPSEEK2), ..DEEPSEEK_V3 },
    DEEPSEEK_V3,
    Family { model_type: "kimi_k2", ..DEEPSEEK_V3 },
    Family { model_type: "glm4_moe_lite", defaults: &[("rms_norm_eps", 1e-5)], ..DEEPSEEK_V3 },
    Family { model_type: "youtu", arch: DEEPSEEK2, ..HALVES },
    QWEN3_5,
    Family { model_type: "qwen3_5_text", ..QWEN3_5 },
    QWEN3_5_MOE,
    Family { model_type: "qwen3_5_moe_text", ..QWEN3_5_MOE },
    Family {
        model_type: "qwen3_next",
        arch: QWEN3NEXT,
        predicting: Some(PREDICTING),
        // Its configuration does not tell of its block.
        defaults: &[
            ("head_dim", 256.0),
            (PARTIAL, 0.25),
            (INTERVAL, 4.0),
            ("intermediate_size", 5632.0),
            (PREDICTING, 1.0),
        ],
        ..QWEN3_5_MOE
    },
    LFM2_FOLDER,
    Family { model_type: "lfm2_moe", arch: LFM2MOE, experts: Some(experts::LFM2), ..LFM2_FOLDER },
    Family { model_type: "granitemoehybrid", arch: GRANITEHYBRID, experts: Some(experts::GRANITE), ..GRANITE_FOLDER },
    Family {
        model_type: "falcon_h1",
        arch: FALCON_H1,
        defaults: &[("rms_norm_eps", 1e-5), ("mamba_expand", 2.0), ("mamba_d_conv", 4.0), ("mamba_n_groups", 1.0)],
        ..HALVES
    },
    Family {
        model_type: "nemotron_h",
        arch: NEMOTRON_H,
        experts: Some(experts::NEMOTRON),
        predicting: Some(PREDICTING),
        defaults: &[("layer_norm_epsilon", 1e-5), ("head_dim", 128.0)],
        aliases: &NEMOTRON_NAMES,
        ..HALVES
    },
    Family { model_type: "starcoder2", arch: STARCODER2, defaults: &[("norm_epsilon", 1e-5)], ..HALVES },
    Family { model_type: "bert", arch: BERT, defaults: &[("layer_norm_eps", 1e-12)], ..HALVES },
    Family {
        model_type: "nomic_bert",
        arch: NOMIC_BERT,
        defaults: &[("layer_norm_eps", 1e-12), ("rope_theta", 1000.0)],
        aliases: &NOMIC_NAMES,
        ..HALVES
    },
    Family {
        model_type: "modernbert",
        arch: MODERN_BERT,
        defaults: &[("norm_eps", 1e-5), (LOCAL_ATTENTION, 128.0), ("rope_theta", 160_000.0)],
        ..HALVES
    },
];

/// LFM 2 and 2.5.
const LFM2_FOLDER: Family = Family {
    model_type: "lfm2",
    arch: LFM2,
    defaults: &[
        ("norm_eps", 1e-5),
        ("rope_theta", 1_000_000.0),
        ("conv_L_cache", 3.0),
        ("block_ffn_dim_multiplier", 1.0),
        ("block_multiple_of", 256.0),
    ],
    aliases: &[("intermediate_size", "block_ff_dim"), ("tie_word_embeddings", "tie_embedding")],
    ..HALVES
};

/// What the sizes of state spaces, and of heads, are called in the files of Nemotron H.
const NEMOTRON_NAMES: [(&str, &str); 6] = [
    ("mamba_n_heads", "mamba_num_heads"),
    ("mamba_d_head", "mamba_head_dim"),
    ("mamba_n_groups", "n_groups"),
    ("mamba_d_state", "ssm_state_size"),
    ("mamba_d_conv", "conv_kernel"),
    ("head_dim", "attention_head_dim"),
];

/// What settings are called in the files of Nomic Embed.
const NOMIC_NAMES: [(&str, &str); 8] = [
    ("hidden_size", "n_embd"),
    ("num_attention_heads", "n_head"),
    ("num_hidden_layers", "n_layer"),
    ("intermediate_size", "n_inner"),
    ("max_position_embeddings", "n_positions"),
    ("layer_norm_eps", "layer_norm_epsilon"),
    ("rope_theta", "rotary_emb_base"),
    (PARTIAL, "rotary_emb_fraction"),
];

/// Gemma 3 whose tokens see all of their text.
pub const EMBEDDING_GEMMA: Family = Family { arch: GEMMA_EMBEDDING, settings: &[], ..GEMMA3_TEXT };

/// DeepSeek V3 and R1, and models with the same layers.
const DEEPSEEK_V3: Family = Family {
    model_type: "deepseek_v3",
    arch: DEEPSEEK2,
    experts: Some(experts::DEEPSEEK3),
    predicting: Some(PREDICTING),
    ..HALVES
};

/// Qwen 3.5 and later, alone or as the text part of a model that sees.
const QWEN3_5: Family = Family {
    model_type: "qwen3_5",
    arch: QWEN35,
    norms_less_one: true,
    predicting: Some("mtp_num_hidden_layers"),
    defaults: &[("head_dim", 256.0), (PARTIAL, 0.25), (INTERVAL, 4.0)],
    ..HALVES
};

/// The same with experts in all layers, so that the size of other blocks means nothing.
const QWEN3_5_MOE: Family = Family {
    model_type: "qwen3_5_moe",
    arch: QWEN35MOE,
    experts: Some(experts::QWEN_NEXT),
    defaults: &[("head_dim", 256.0), (PARTIAL, 0.25), (INTERVAL, 4.0), ("intermediate_size", 5632.0)],
    ..QWEN3_5
};

/// Granite 3 and 4.
const GRANITE_FOLDER: Family = Family {
    model_type: "granite",
    arch: GRANITE,
    defaults: &[("attention_multiplier", 1.0), ("mamba_expand", 2.0), ("mamba_d_conv", 4.0), ("mamba_n_groups", 1.0)],
    settings: &[
        ("embedding_multiplier", "embedding_scale"),
        ("residual_multiplier", "residual_scale"),
        ("attention_multiplier", "attention.scale"),
        ("logits_scaling", "logit_scale"),
    ],
    ..PLAIN
};

/// Ministral and later models, alone or as the text part of a model that sees.
const MINISTRAL3: Family =
    Family { model_type: "ministral3", arch: MISTRAL3, defaults: &[("rms_norm_eps", 1e-5)], ..PLAIN };

/// Its first files leave out most of what the class has by default.
const GEMMA3_TEXT: Family = Family {
    model_type: "gemma3_text",
    arch: GEMMA3,
    norms_less_one: true,
    defaults: &[
        (WINDOW, 4096.0),
        ("head_dim", 256.0),
        ("query_pre_attn_scalar", 256.0),
        ("num_attention_heads", 8.0),
        ("num_key_value_heads", 4.0),
        ("max_position_embeddings", 131_072.0),
        ("rope_theta", 1_000_000.0),
        ("rope_local_base_freq", 10_000.0),
    ],
    settings: &[("final_logit_softcapping", "final_logit_softcapping")],
    ..HALVES
};

/// Gemma 4, alone or as the text part of a model that sees and hears.
const GEMMA4_TEXT: Family = Family {
    model_type: "gemma4_text",
    arch: GEMMA4,
    experts: Some(experts::GEMMA4),
    defaults: &[
        (WINDOW, 512.0),
        ("head_dim", 256.0),
        ("global_head_dim", 512.0),
        ("num_attention_heads", 8.0),
        ("num_key_value_heads", 4.0),
        ("max_position_embeddings", 131_072.0),
        ("rope_theta", 1_000_000.0),
    ],
    settings: &[("final_logit_softcapping", "final_logit_softcapping")],
    ..HALVES
};

/// What drafts for Gemma 4, of whose layers it has a few.
const GEMMA4_ASSISTANT_FOLDER: Family =
    Family { model_type: "gemma4_assistant", arch: GEMMA4_ASSISTANT, experts: None, ..GEMMA4_TEXT };

/// Heads that draft for another model, of one layer of Llama's.
pub const HEAD_OF_MODEL: Family = Family { model_type: "eagle3", arch: EAGLE3, experts: None, ..PLAIN };

/// Settings that all families have when nothing is said.
const DEFAULTS: [(&str, f64); 3] = [("rms_norm_eps", 1e-6), ("rope_theta", 10_000.0), (PARTIAL, 1.0)];

impl Family {
    /// The family that a configuration names.
    pub fn find(model_type: &str) -> Result<Family> {
        FAMILIES.into_iter().find(|family| family.model_type == model_type).ok_or_else(|| {
            let known: Vec<_> = FAMILIES.iter().map(|family| family.model_type).collect();
            let (name, known) = (Excerpt(model_type.as_bytes()), known.join(", "));
            Error::Unsupported(format!("model_type `{name}` of config.json is not supported; supported: {known}"))
        })
    }

    /// Whether what is called `post_attention_layernorm` is the norm of the attention's result.
    pub fn names_result(&self) -> bool {
        self.arch.norms.has_after() && self.model_type != "glm4"
    }

    /// What becomes of the elements of weights of norms.
    pub fn change_of_norms(&self) -> Change {
        if self.norms_less_one { Change::LessOne } else { Change::None }
    }

    /// The setting that is added to the mean square or the variance in every norm.
    pub fn norm_eps(&self) -> &'static str {
        match (self.arch.norm, self.model_type) {
            (NormKind::Rms, "lfm2" | "lfm2_moe") => "norm_eps",
            (NormKind::Rms, "nemotron_h") => "layer_norm_epsilon",
            (NormKind::Rms, _) => "rms_norm_eps",
            (NormKind::Layer, "starcoder2") => "norm_epsilon",
            (NormKind::Layer, "modernbert") => "norm_eps",
            (NormKind::Layer, _) => "layer_norm_eps",
        }
    }

    /// The setting that is the window of local layers.
    pub fn window(&self) -> &'static str {
        if self.model_type == "modernbert" { LOCAL_ATTENTION } else { WINDOW }
    }

    /// What a setting is where a configuration leaves it out.
    pub fn default_of(&self, name: &str) -> Option<f64> {
        self.defaults.iter().chain(&DEFAULTS).find(|(other, _)| *other == name).map(|(_, value)| *value)
    }
}
