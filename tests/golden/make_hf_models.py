"""Writes tests/golden/hf: small random models of every family and the logits that Hugging Face transformers computes for them.

NAME.gguf is a model in F32, named and laid out as llama.cpp's converter does it; NAME.f32 holds its logits after each
token of its prompt, little-endian singles, one row a token (float32, eager attention). index.json holds the prompt and
the cases, configs.json the config.json of each. Weights are drawn wide enough that attention is far from uniform, and each setting is
seen to matter. folders/NAME is the model as transformers saves it, for the cases in FOLDERS; with a path as argument nothing but the folders
of all cases is written, there.

Usage: python3 tests/golden/make_hf_models.py [FOLDERS]   (on a CPU; needs torch 2.15.0, transformers 5.17.0, gguf 0.19.0, numpy 2.4.6)
"""

import dataclasses
import json
import math
import shutil
import sys
from pathlib import Path

import gguf
import hf_gemma
import hf_latent
import hf_mixtures
import hf_recurrent
import hf_spaces
import numpy as np
import torch
import transformers

OUT = Path(__file__).resolve().parent / "hf"
TOKENS = 40
CONTEXT = 256
MOST_BYTES = 16_000_000
# Cases whose folders are kept, and the largest size of their files; a smaller one means several.
FOLDERS = {"llama-llama3": "1GB", "gemma2-plain": "60KB", "gemma4-small": "1GB"}
# Largest change of a logit that a setting must cause, or the case shows nothing.
LEAST_EFFECT = 0.1

LINEAR = {"rope_type": "linear", "factor": 4.0}
LLAMA3 = {
    "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
# The file's factor multiplies what YaRN's own formula gives; transformers' setting replaces it.
YARN_TUNED = {
    "rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 32,
    "attn_factor": 1.25, "beta_fast": 1.5, "beta_slow": 0.1}
OPTIONAL = ("attn_factor", "beta_fast", "beta_slow", "truncate", "mscale_all_dim")


@dataclasses.dataclass
class Case:
    """Sizes and settings of one model."""

    name: str
    note: str
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 8
    hidden: int = 32
    feed_forward: int = 44
    layers: int = 2
    vocab: int = 131
    # Tokens of the prompt.
    tokens: int = TOKENS
    tied: bool = False
    bias: bool = False
    # Share of a head that rotates.
    rotary: float = 1.0
    theta: float = 10000.0
    eps: float = 1e-5
    scaling: dict = dataclasses.field(default_factory=dict)
    # What stands for the scaling in a model without it.
    unscaled: dict = dataclasses.field(default_factory=dict)
    # Further settings of the configuration in transformers, and what they are called in the file, without the family's name.
    settings: dict = dataclasses.field(default_factory=dict)
    keys: dict = dataclasses.field(default_factory=dict)
    # For each thing that must matter, the settings of a model without it.
    without: tuple = ()

    @property
    def family(self):
        return self.name.split("-")[0]

    @property
    def arch(self):
        """Name of the family in GGUF files."""
        return {"mistral": "llama", "olmo3": "olmo2", "ernie": "ernie4_5", "seed": "seed_oss", "hunyuan": "hunyuan-dense",
                "embeddinggemma": "gemma-embedding", **hf_mixtures.ARCHS, **hf_latent.ARCHS, **hf_spaces.ARCHS}.get(self.family, self.family)

    @property
    def rotated(self):
        """Elements of a head that rotate."""
        return int(self.head_dim * self.rotary)


CASES = [
    Case("llama-ratio1", "as many key-value heads as heads", kv_heads=4),
    Case("llama-ratio4", "four heads a key-value head; tied head; heads wider than the hidden size", heads=8, tied=True),
    Case("llama-single", "all heads on one key-value head; odd feed-forward size", kv_heads=1, head_dim=16, feed_forward=172),
    Case("llama-wide", "heads of 64 elements; odd vocabulary of 97", heads=2, kv_heads=1, head_dim=64, vocab=97),
    Case("llama-bias", "biases on the four projections of attention", bias=True),
    Case("llama-linear", "linear rope scaling; rope base 500000", kv_heads=1, theta=500000.0, head_dim=16, scaling=LINEAR),
    Case("llama-llama3", "Llama 3 rope scaling as a tensor", head_dim=16, tied=True, scaling=LLAMA3),
    Case("llama-yarn", "YaRN rope scaling", head_dim=16, scaling=YARN),
    Case("llama-yarntuned", "YaRN with its own attention factor and betas", head_dim=16, scaling=YARN_TUNED),
    Case("mistral-plain", "three layers; rope base 1000000; no sliding window", layers=3, theta=1e6, head_dim=16),
    Case("qwen2-tied", "biases on query, key and value; one key-value head", kv_heads=1, tied=True, theta=1e6, eps=1e-6),
    Case("qwen2-yarn", "YaRN over halves of a head; untied", heads=2, kv_heads=2, head_dim=16, theta=1e6, scaling=YARN),
    Case("qwen3-tied", "norms of query and key; heads wider than the hidden size", heads=8, head_dim=16, theta=1e6, tied=True),
    Case("qwen3-yarn", "one key-value head of 64; three layers", heads=2, kv_heads=1, head_dim=64, layers=3, scaling=YARN),
    Case("qwen3-linear", "odd feed-forward size; untied", head_dim=16, kv_heads=4, feed_forward=172, eps=1e-6, scaling=LINEAR),
    Case("gemma2-plain", "norms before and after blocks, both caps, every other layer sees 9 tokens", head_dim=16, layers=3, tied=True,
         settings={"sliding_window": 9, "attn_logit_softcapping": 6.0, "final_logit_softcapping": 11.0, "query_pre_attn_scalar": 16},
         keys={"attention.sliding_window": 9, "attn_logit_softcapping": 6.0, "final_logit_softcapping": 11.0},
         without=({"sliding_window": 40}, {"attn_logit_softcapping": None}, {"final_logit_softcapping": None})),
    Case("gemma3-plain", "five local layers to a global one, each kind with its rope base", head_dim=16, layers=7, tied=True, theta=1e6,
         settings={"sliding_window": 7, "query_pre_attn_scalar": 16}, keys={"attention.sliding_window": 7},
         without=({"sliding_window": 40},)),
    Case("gemma3-listed", "local layers by a list; linear scaling of global ones; untied; local base 500", head_dim=16, layers=3, theta=1e6,
         scaling=LINEAR,
         settings={"sliding_window": 12, "query_pre_attn_scalar": 16, "final_logit_softcapping": 9.0, "local_theta": 500.0,
                   "layer_types": ["full_attention", "sliding_attention", "full_attention"]},
         keys={"attention.sliding_window": 12, "attention.sliding_window_pattern": [False, True, False], "rope.freq_base_swa": 500.0,
               "final_logit_softcapping": 9.0},
         without=({"sliding_window": 40}, {"local_theta": 10000.0}, {"final_logit_softcapping": None})),
    Case("olmo2-plain", "norms after blocks alone; queries and keys normalized over whole rows", head_dim=8, theta=5e5),
    Case("olmo3-yarn", "three local layers of four, which are not scaled", head_dim=8, layers=4, theta=5e5, scaling=YARN,
         settings={"sliding_window": 8}, keys={"attention.sliding_window": 8}, without=({"sliding_window": 40},)),
    Case("exaone4-plain", "without a window: all layers rotate", head_dim=8, theta=1e6, tied=True, settings={"sliding_window": None,
         "layer_types": ["full_attention"] * 2}),
    Case("exaone4-window", "three local layers of four; the global one does not rotate", head_dim=8, layers=4, theta=1e6,
         settings={"sliding_window": 8}, keys={"attention.sliding_window": 8, "attention.sliding_window_pattern": 4},
         without=({"sliding_window": 40},)),
    Case("granite-plain", "its four factors", head_dim=8, tied=True, theta=1e4,
         settings={"embedding_multiplier": 3.0, "residual_multiplier": 0.22, "attention_multiplier": 0.2, "logits_scaling": 4.0},
         keys={"embedding_scale": 3.0, "residual_scale": 0.22, "attention.scale": 0.2, "logit_scale": 4.0},
         without=({"embedding_multiplier": 1.0}, {"residual_multiplier": 1.0}, {"attention_multiplier": 8 ** -0.5},
                  {"logits_scaling": 1.0})),
    Case("smollm3-plain", "every fourth layer does not rotate", head_dim=8, layers=5, tied=True, theta=5e4,
         without=({"no_rope_layers": [1] * 5},)),
    Case("seed-plain", "biases of projections; the norm before the feed-forward block has another name", head_dim=16, theta=1e6),
    Case("ernie-plain", "neighbours rotate in transformers too", head_dim=16, kv_heads=1, tied=True, theta=5e5),
    Case("mistral3-plain", "YaRN whose factor the weights hold; queries grow every 16 positions", head_dim=16, theta=1e6,
         scaling={"rope_type": "yarn", "factor": 16.0, "original_max_position_embeddings": 16, "mscale": 1.0, "mscale_all_dim": 1.0,
                  "llama_4_scaling_beta": 0.4},
         unscaled={"original_max_position_embeddings": 16, "llama_4_scaling_beta": 0.0},
         keys={"attention.temperature_scale": 0.4, "rope.scaling.yarn_log_multiplier": 1.0}),
    Case("phi3-long", "fused projections; three quarters of a head rotate, by the long factors", heads=2, head_dim=16, rotary=0.75,
         settings={"sliding_window": None, "original_max_position_embeddings": 32},
         scaling={"rope_type": "longrope", "factor": 4.0, "original_max_position_embeddings": 32,
         "short_factor": [1.0, 1.1, 1.3, 1.7, 2.0, 2.4], "long_factor": [1.2, 2.0, 3.5, 6.0, 9.0, 12.0]}),
    Case("phi3-short", "the short factors, as no sequence is longer", heads=2, head_dim=16, rotary=0.75, tied=True,
         settings={"sliding_window": None, "original_max_position_embeddings": 256},
         scaling={"rope_type": "longrope", "factor": 4.0, "original_max_position_embeddings": 256,
         "short_factor": [1.0, 1.1, 1.3, 1.7, 2.0, 2.4], "long_factor": [1.2, 2.0, 3.5, 6.0, 9.0, 12.0]}),
    Case("glm4-plain", "norms before and after blocks; half a head rotates; a fused gate; biases of queries, keys and values", head_dim=16,
         rotary=0.5, settings={"attention_bias": True}, without=({"attention_bias": False},)),
    Case("cohere2-plain", "both blocks read one layer norm; three local layers of four, which alone rotate; logits are scaled", head_dim=8,
         layers=4, tied=True, theta=5e4, settings={"sliding_window": 8, "logit_scale": 0.25},
         keys={"attention.sliding_window": 8, "logit_scale": 0.25}, without=({"sliding_window": 40}, {"logit_scale": 1.0})),
    Case("hunyuan-plain", "queries and keys are normalized after they were rotated", head_dim=16, tied=True,
         scaling={"rope_type": "dynamic", "alpha": 50.0, "factor": 1.0}, keys={"rope.scaling.alpha": 50.0}),
    Case("qwen3vl-text", "text of a model that sees: three equal positions a token", heads=8, head_dim=16, theta=1e6, tied=True,
         keys={"rope.dimension_sections": [3, 3, 2, 0], "n_deepstack_layers": 1}),
    Case("starcoder2-plain", "layer norms, biases everywhere, no gate", theta=1e5, tied=True,
         settings={"sliding_window": None, "use_bias": True}, without=({"use_bias": False},)),
    Case("llama-fedbias", "biases on the three projections of the feed-forward block", settings={"mlp_bias": True},
         without=({"mlp_bias": False},)),
]
CASES += hf_mixtures.cases(Case) + hf_latent.cases(Case) + hf_recurrent.cases(Case) + hf_gemma.cases(Case) + hf_spaces.cases(Case)


# Families whose heads are as wide as the hidden size leaves for each.
FIXED_HEADS = ("qwen2", "phi3", "cohere2", "starcoder2") + hf_mixtures.FIXED_HEADS + hf_recurrent.FIXED_HEADS

# The model in transformers.


def rope_parameters(case):
    scaling = dict(case.scaling)
    if (attn_factor := scaling.pop("attn_factor", None)) is not None:
        scaling["attention_factor"] = attn_factor * (0.1 * math.log(scaling["factor"]) + 1.0)
    partial = {"partial_rotary_factor": case.rotary} if case.rotary != 1.0 else {}
    return {"rope_type": "default", **scaling, **partial, "rope_theta": case.theta}


def config_of(case):
    """The configuration, and the class of the model."""
    prefix = {
        "llama": "Llama", "mistral": "Mistral", "qwen2": "Qwen2", "qwen3": "Qwen3", "gemma2": "Gemma2", "gemma3": "Gemma3",
        "embeddinggemma": "Gemma3", "olmo2": "Olmo2", "olmo3": "Olmo3", "exaone4": "Exaone4", "granite": "Granite", "smollm3": "SmolLM3", "seed": "SeedOss",
        "ernie": "Ernie4_5", "mistral3": "Ministral3", "phi3": "Phi3", "glm4": "Glm4", "cohere2": "Cohere2",
        "hunyuan": "HunYuanDenseV1", "qwen3vl": "Qwen3VL", "starcoder2": "Starcoder2", **hf_mixtures.CLASSES, **hf_latent.CLASSES, **hf_recurrent.CLASSES,
        **hf_gemma.CLASSES, **hf_spaces.CLASSES}
    prefix = prefix[case.family]
    settings = {
        "vocab_size": case.vocab, "hidden_size": case.hidden, "intermediate_size": case.feed_forward,
        "num_hidden_layers": case.layers, "num_attention_heads": case.heads, "num_key_value_heads": case.kv_heads,
        "max_position_embeddings": CONTEXT, "tie_word_embeddings": case.tied,
        "rope_parameters": rope_parameters(case), "attn_implementation": "eager", "pad_token_id": None}
    settings[{"cohere2": "layer_norm_eps", "starcoder2": "norm_epsilon", **hf_recurrent.EPS_NAMES, **hf_spaces.EPS_NAMES}.get(case.family, "rms_norm_eps")] = case.eps
    if case.family in FIXED_HEADS:
        assert case.head_dim == case.hidden // case.heads
    else:
        settings["head_dim"] = case.head_dim
    if case.family == "llama":
        settings["attention_bias"] = case.bias
    if case.family == "mistral":
        settings["sliding_window"] = None
    settings.update(case.settings)
    if case.family in ("gemma3", "embeddinggemma", "olmo3"):
        local = {"rope_type": "default", "rope_theta": settings.pop("local_theta", case.theta if case.family == "olmo3" else 10000.0)}
        settings["rope_parameters"] = {"full_attention": settings["rope_parameters"], "sliding_attention": local}
    if case.family in hf_gemma.CLASSES:
        settings["rope_parameters"] = hf_gemma.rope(settings["rope_parameters"])
    if case.family in ("qwen3vl", "qwen3vlmoe"):
        settings["rope_parameters"]["mrope_section"] = case.keys["rope.dimension_sections"][:3]
        vision = {"depth": 1, "hidden_size": 8, "intermediate_size": 8, "num_heads": 1, "out_hidden_size": case.hidden,
                  "deepstack_visual_indexes": [0], "num_position_embeddings": 4}
        tied = settings.pop("tie_word_embeddings")
        config = getattr(transformers, prefix + "Config")(text_config=settings, vision_config=vision, tie_word_embeddings=tied)
        return config, getattr(transformers, prefix + "ForConditionalGeneration")
    is_text = case.family in ("gemma3", "embeddinggemma", *hf_recurrent.TEXT_CONFIGS, *hf_gemma.CLASSES)
    config = getattr(transformers, prefix + ("TextConfig" if is_text else "Config"))(**settings)
    return config, getattr(transformers, prefix + "ForCausalLM")


def draw(rng, case, name, shape):
    """Random values of the parameter `name`."""
    if name.endswith(hf_mixtures.DRAWN):
        # Two experts of equal score must not tell apart the groups that they are in.
        twin = 1 if case.settings.get("topk_method") == "group_limited_greedy" else -1
        return hf_mixtures.draw(rng, name, shape, twin)
    for part in (hf_recurrent, hf_gemma, hf_spaces):
        if (own := part.draw(rng, name, shape)) is not None:
            return own
    values = rng.standard_normal(shape).astype(np.float32)
    if name.endswith("norm.weight") and case.arch in hf_recurrent.ADDS_ONE and "linear_attn" not in name:
        return 0.3 * values
    if name.endswith("norm.weight"):
        return 1.0 + 0.3 * values
    if name.endswith(".bias"):
        return 0.5 * values
    if "embed_tokens" in name:
        return 0.7 * values
    gain = 2.0 if any(part in name for part in ("lm_head", "q_proj", "k_proj", "qkv_proj", "q_b_proj")) else 1.0
    return gain / math.sqrt(shape[-1]) * values


def parameters_of(model):
    """Names and values of all that is not in the code, biases for the choice of experts and factors of layers included."""
    yield from model.named_parameters()
    known = {name for name, _ in model.named_parameters()}
    kinds = ("e_score_correction_bias", "expert_bias", "layer_scalar")
    yield from (named for named in model.named_buffers() if named[0].endswith(kinds) and named[0] not in known)


def model_of(case, seed):
    """A model in evaluation mode with weights drawn by `seed`, the same for any rope settings."""
    config, kind = config_of(case)
    model = kind(config).float().eval()
    rng = np.random.default_rng(seed)
    with torch.no_grad():
        for name, weight in sorted(parameters_of(model)):
            weight.copy_(torch.from_numpy(draw(rng, case, name, tuple(weight.shape)).astype(np.float32)))
    return model


def logits_of(model, prompt):
    with torch.no_grad():
        return model(torch.tensor([prompt])).logits[0].float().numpy()


# The model as a file.

GLOBAL_NAMES = {
    "model.embed_tokens.weight": "token_embd.weight", "model.norm.weight": "output_norm.weight", "model.norm.bias": "output_norm.bias",
    "lm_head.weight": "output.weight", **hf_recurrent.GLOBAL_NAMES, **hf_gemma.GLOBAL_NAMES,
    **hf_spaces.GLOBAL_NAMES}
LAYER_NAMES = {
    "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm", "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm", "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down", "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm", "post_self_attn_layernorm": "post_attention_norm", "post_mlp_layernorm": "post_ffw_norm",
    "self_attn.query_layernorm": "attn_q_norm", "self_attn.key_layernorm": "attn_k_norm", "self_attn.qkv_proj": "attn_qkv",
    "mlp.gate_up_proj": "ffn_up", "mlp.c_fc": "ffn_up", "mlp.c_proj": "ffn_down", **hf_latent.LAYER_NAMES, **hf_recurrent.LAYER_NAMES,
    **hf_gemma.LAYER_NAMES, **hf_spaces.LAYER_NAMES}
# Where the norm that follows the attention keeps its own name.
KEEPS_NAME = ("gemma2", "gemma3", "gemma4", "gemma-embedding", "olmo2", "exaone4", "seed_oss", "gpt-oss", "glm4moe", *hf_recurrent.KEEPS_NAME)
# Whose rows of queries and keys the converter reorders.
REORDERED = ("llama", "granite", "smollm3", "mistral3", "granitemoe", "granitehybrid")


def file_name(case, name):
    """GGUF name of a parameter."""
    if name in GLOBAL_NAMES:
        return GLOBAL_NAMES[name]
    _, _, index, rest = name.split(".", 3)
    part, kind = rest.rsplit(".", 1)
    own = part == "post_attention_layernorm" and case.arch in KEEPS_NAME
    return f"blk.{index}.{'post_attention_norm' if own else LAYER_NAMES[part]}.{kind}"


def interleave_halves(rows, heads):
    """Reorders the rows of every head from halves that rotate together to neighbours that do."""
    halves = rows.reshape(heads, 2, -1, *rows.shape[1:])
    return np.ascontiguousarray(halves.swapaxes(1, 2)).reshape(rows.shape)


def tensors_of(case, model):
    """GGUF names and values in the file's row order."""
    for name, weight in parameters_of(model):
        if ".visual." in name:
            continue
        name, values = name.replace(".language_model.", "."), hf_spaces.folded(case, name, weight.detach().numpy())
        if case.arch in REORDERED and "q_proj" in name:
            values = interleave_halves(values, case.heads)
        if case.arch in REORDERED and "k_proj" in name:
            values = interleave_halves(values, case.kv_heads)
        adds_one = case.arch in ("gemma2", "gemma3", "gemma-embedding") or (case.arch in hf_recurrent.ADDS_ONE and "linear_attn" not in name)
        if adds_one and name.endswith("norm.weight"):
            values = values + 1.0
        layer, part = (name.split(".", 3) + ["", ""])[2:4]
        others = None
        for own in (hf_spaces, hf_gemma, hf_recurrent, hf_mixtures, hf_latent):
            others = others or own.tensors(case, part, values)
        if others is None:
            yield file_name(case, name), values
        else:
            yield from ((f"blk.{layer}.{name}", np.ascontiguousarray(values)) for name, values in others)
    if case.family in hf_gemma.CLASSES:
        yield from hf_gemma.more_tensors(case)
    if case.scaling.get("rope_type") == "llama3":
        yield "rope_freqs.weight", llama3_divisors(case)
    if case.scaling.get("rope_type") == "longrope":
        for kind in ("short", "long"):
            yield f"rope_factors_{kind}.weight", np.array(case.scaling[f"{kind}_factor"], np.float32)


def llama3_divisors(case):
    """What Llama 3 scaling divides each frequency by: 1 for short waves, the factor for long ones, a blend between."""
    s = case.scaling
    waves = 2 * np.pi * case.theta ** (np.arange(0, case.head_dim, 2) / case.head_dim)
    turns = s["original_max_position_embeddings"] / waves
    low, high = s["low_freq_factor"], s["high_freq_factor"]
    share = np.clip((turns - low) / (high - low), 0, 1)
    return (1 / ((1 - share) / s["factor"] + share)).astype(np.float32)


def add_rope(writer, case, model):
    writer.add_rope_freq_base(case.theta)
    s = case.scaling
    if s.get("rope_type") == "longrope":
        writer.add_rope_scaling_orig_ctx_len(s["original_max_position_embeddings"])
        writer.add_rope_scaling_attn_factors(model.model.rotary_emb.attention_scaling)
    if s.get("rope_type") not in ("linear", "yarn"):
        return
    writer.add_rope_scaling_type(gguf.RopeScalingType(s["rope_type"]))
    writer.add_rope_scaling_factor(s["factor"])
    if s["rope_type"] == "yarn":
        writer.add_rope_scaling_orig_ctx_len(s["original_max_position_embeddings"])
    if "attn_factor" in s:
        writer.add_rope_scaling_attn_factors(s["attn_factor"])
    if "beta_fast" in s:
        writer.add_rope_scaling_yarn_beta_fast(s["beta_fast"])
        writer.add_rope_scaling_yarn_beta_slow(s["beta_slow"])


def add_heads(writer, case):
    if case.family in hf_latent.CLASSES:
        return hf_latent.add_heads(writer, case)
    if case.family in hf_gemma.CLASSES:
        return hf_gemma.add_heads(writer, case)
    if "attention.head_count_kv" not in case.keys:
        writer.add_head_count_kv(case.kv_heads)
    if case.family not in FIXED_HEADS:
        writer.add_key_length(case.head_dim)
        writer.add_value_length(case.head_dim)
    if case.arch == "llama" or case.rotary != 1.0:
        writer.add_rope_dimension_count(case.rotated)


def add_keys(writer, case):
    for key, value in case.keys.items():
        key = f"{case.arch}.{key}"
        if isinstance(value, list):
            writer.add_array(key, value)
        elif isinstance(value, bool):
            writer.add_bool(key, value)
        else:
            (writer.add_float32 if isinstance(value, float) else writer.add_uint32)(key, value)


def writer_of(case, model, path):
    """What writes the file, and has its metadata."""
    writer = gguf.GGUFWriter(path, case.arch)
    writer.add_name(case.name)
    writer.add_file_type(gguf.LlamaFileType.ALL_F32)
    writer.add_vocab_size(case.vocab)
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(case.hidden)
    writer.add_block_count(case.layers)
    if "feed_forward_length" not in case.keys:
        writer.add_feed_forward_length(case.feed_forward)
    writer.add_head_count(case.heads)
    (writer.add_layer_norm_eps if case.family in ("cohere2", "starcoder2") else writer.add_layer_norm_rms_eps)(case.eps)
    add_heads(writer, case)
    add_rope(writer, case, model)
    add_keys(writer, case)
    writer.add_tokenizer_model("no_vocab")
    return writer


def write(case, model):
    writer = writer_of(case, model, OUT / f"{case.name}.gguf")
    for name, values in tensors_of(case, model):
        writer.add_tensor(name, values)
    finish(writer)


def finish(writer):
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def variants(case):
    """The case without each of its settings: all of the scaling, each optional part of it, another base, or what it names itself."""
    for settings in case.without:
        yield dataclasses.replace(case, settings={**case.settings, **settings})
    if case.scaling:
        yield dataclasses.replace(case, scaling=case.unscaled)
    elif case.theta != 10000.0:
        yield dataclasses.replace(case, theta=10000.0)
    for key in (key for key in OPTIONAL if key in case.scaling):
        yield dataclasses.replace(case, scaling={name: v for name, v in case.scaling.items() if name != key})


def make(case, seed, prompt):
    """Writes one case; returns its entry in the index."""
    prompt = [token % case.vocab for token in prompt[:case.tokens]]
    model = model_of(case, seed)
    logits = logits_of(model, prompt)
    effects = [np.abs(logits - logits_of(model_of(other, seed), prompt)).max() for other in variants(case)]
    assert all(effect > LEAST_EFFECT for effect in effects), (case.name, effects)
    write(case, model)
    logits.astype("<f4").tofile(OUT / f"{case.name}.f32")
    print(f"{case.name}: logits up to {np.abs(logits).max():.1f}, {[round(float(e), 2) for e in effects]} without a setting")
    return {"name": case.name, "arch": case.arch, "vocab": case.vocab, "tokens": case.tokens, "note": case.note}


def save_folder(case, model, folder, file_size="1GB"):
    """Writes the model as transformers does; returns its config.json."""
    shutil.rmtree(folder, ignore_errors=True)
    model.save_pretrained(folder, max_shard_size=file_size)
    (folder / "generation_config.json").unlink(missing_ok=True)
    return json.loads((folder / "config.json").read_text())


def save_folders(out):
    for seed, case in enumerate(CASES, 1):
        save_folder(case, model_of(case, seed), out / case.name)


def save_configs():
    configs = {}
    for seed, case in enumerate(CASES, 1):
        if case.family in hf_mixtures.NO_FOLDERS:
            continue
        folder = OUT / "folders" / case.name
        configs[case.name] = save_folder(case, model_of(case, seed), folder, FOLDERS.get(case.name, "1GB"))
        if case.name not in FOLDERS:
            shutil.rmtree(folder)
    (OUT / "configs.json").write_text(json.dumps(configs, indent=1) + "\n")


def main():
    if len(sys.argv) > 1:
        return save_folders(Path(sys.argv[1]))
    torch.use_deterministic_algorithms(True)
    OUT.mkdir(exist_ok=True)
    prompt = np.random.default_rng(0).integers(0, 97, CONTEXT).tolist()
    cases = [make(case, seed, prompt) for seed, case in enumerate(CASES, 1)]
    made_with = {"torch": torch.__version__.split("+")[0], "transformers": transformers.__version__}
    index = {"made_with": made_with, "prompt": prompt, "cases": cases}
    (OUT / "index.json").write_text(json.dumps(index, indent=1) + "\n")
    save_configs()
    size = sum(path.stat().st_size for path in OUT.rglob("*") if path.is_file())
    assert size < MOST_BYTES, size
    print(f"{len(cases)} cases, {size} bytes")


if __name__ == "__main__":
    main()
