"""Writes tests/golden/hf: small random models of every family and the logits that Hugging Face transformers computes for them.

NAME.gguf is a model in F32, named and laid out as llama.cpp's converter does it; NAME.f32 holds its logits after each
token of the prompt, little-endian singles, one row a token (float32, eager attention). index.json holds the prompt and
the cases. Weights are drawn wide enough that attention is far from uniform, and each rope setting is seen to matter.

Usage: python3 tests/golden/make_hf_models.py   (on a CPU; needs torch 2.11.0, transformers 5.17.0, gguf 0.19.0, numpy 2.4.6)
"""

import dataclasses
import json
import math
from pathlib import Path

import gguf
import numpy as np
import torch
import transformers

OUT = Path(__file__).resolve().parent / "hf"
TOKENS = 40
CONTEXT = 256
MOST_BYTES = 3_000_000
# Largest change of a logit that a rope setting must cause, or the case shows nothing.
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
OPTIONAL = ("attn_factor", "beta_fast", "beta_slow")


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
    tied: bool = False
    bias: bool = False
    theta: float = 10000.0
    eps: float = 1e-5
    scaling: dict = dataclasses.field(default_factory=dict)

    @property
    def family(self):
        return self.name.split("-")[0]

    @property
    def arch(self):
        """Name of the family in GGUF files."""
        return "llama" if self.family == "mistral" else self.family


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
]


# The model in transformers.


def rope_parameters(case):
    scaling = dict(case.scaling)
    if (attn_factor := scaling.pop("attn_factor", None)) is not None:
        scaling["attention_factor"] = attn_factor * (0.1 * math.log(scaling["factor"]) + 1.0)
    return {"rope_type": "default", **scaling, "rope_theta": case.theta}


def config_of(case):
    """The configuration, and the class of the model."""
    prefix = {"llama": "Llama", "mistral": "Mistral", "qwen2": "Qwen2", "qwen3": "Qwen3"}[case.family]
    settings = {
        "vocab_size": case.vocab, "hidden_size": case.hidden, "intermediate_size": case.feed_forward,
        "num_hidden_layers": case.layers, "num_attention_heads": case.heads, "num_key_value_heads": case.kv_heads,
        "max_position_embeddings": CONTEXT, "rms_norm_eps": case.eps, "tie_word_embeddings": case.tied,
        "rope_parameters": rope_parameters(case), "attn_implementation": "eager"}
    if case.family == "qwen2":
        assert case.head_dim == case.hidden // case.heads
    else:
        settings["head_dim"] = case.head_dim
    if case.family == "llama":
        settings["attention_bias"] = case.bias
    if case.family == "mistral":
        settings["sliding_window"] = None
    config = getattr(transformers, prefix + "Config")(**settings)
    return config, getattr(transformers, prefix + "ForCausalLM")


def draw(rng, name, shape):
    """Random values of the parameter `name`."""
    values = rng.standard_normal(shape).astype(np.float32)
    if name.endswith("norm.weight"):
        return 1.0 + 0.3 * values
    if name.endswith(".bias"):
        return 0.5 * values
    if "embed_tokens" in name:
        return 0.7 * values
    gain = 2.0 if "lm_head" in name or "q_proj" in name or "k_proj" in name else 1.0
    return gain / math.sqrt(shape[-1]) * values


def model_of(case, seed):
    """A model in evaluation mode with weights drawn by `seed`, the same for any rope settings."""
    config, kind = config_of(case)
    model = kind(config).float().eval()
    rng = np.random.default_rng(seed)
    with torch.no_grad():
        for name, weight in sorted(model.named_parameters()):
            weight.copy_(torch.from_numpy(draw(rng, name, tuple(weight.shape)).astype(np.float32)))
    return model


def logits_of(model, prompt):
    with torch.no_grad():
        return model(torch.tensor([prompt])).logits[0].float().numpy()


# The model as a file.

GLOBAL_NAMES = {
    "model.embed_tokens.weight": "token_embd.weight", "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight"}
LAYER_NAMES = {
    "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm", "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm", "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down"}


def file_name(name):
    """GGUF name of a parameter."""
    if name in GLOBAL_NAMES:
        return GLOBAL_NAMES[name]
    _, _, index, rest = name.split(".", 3)
    part, kind = rest.rsplit(".", 1)
    return f"blk.{index}.{LAYER_NAMES[part]}.{kind}"


def interleave_halves(rows, heads):
    """Reorders the rows of every head from halves that rotate together to neighbours that do."""
    halves = rows.reshape(heads, 2, -1, *rows.shape[1:])
    return np.ascontiguousarray(halves.swapaxes(1, 2)).reshape(rows.shape)


def tensors_of(case, model):
    """GGUF names and values in the file's row order."""
    for name, weight in model.named_parameters():
        values = weight.detach().numpy()
        if case.arch == "llama" and "q_proj" in name:
            values = interleave_halves(values, case.heads)
        if case.arch == "llama" and "k_proj" in name:
            values = interleave_halves(values, case.kv_heads)
        yield file_name(name), values
    if case.scaling.get("rope_type") == "llama3":
        yield "rope_freqs.weight", llama3_divisors(case)


def llama3_divisors(case):
    """What Llama 3 scaling divides each frequency by: 1 for short waves, the factor for long ones, a blend between."""
    s = case.scaling
    waves = 2 * np.pi * case.theta ** (np.arange(0, case.head_dim, 2) / case.head_dim)
    turns = s["original_max_position_embeddings"] / waves
    low, high = s["low_freq_factor"], s["high_freq_factor"]
    share = np.clip((turns - low) / (high - low), 0, 1)
    return (1 / ((1 - share) / s["factor"] + share)).astype(np.float32)


def add_rope(writer, case):
    writer.add_rope_freq_base(case.theta)
    s = case.scaling
    if s.get("rope_type") not in ("linear", "yarn"):
        return
    writer.add_rope_scaling_type(gguf.RopeScalingType(s["rope_type"]))
    writer.add_rope_scaling_factor(s["factor"])
    if s["rope_type"] == "yarn":
        writer.add_rope_scaling_orig_ctx_len(s["original_max_position_embeddings"])
    if "attn_factor" in s:
        writer.add_rope_scaling_attn_factors(s["attn_factor"])
        writer.add_rope_scaling_yarn_beta_fast(s["beta_fast"])
        writer.add_rope_scaling_yarn_beta_slow(s["beta_slow"])


def write(case, model):
    writer = gguf.GGUFWriter(OUT / f"{case.name}.gguf", case.arch)
    writer.add_name(case.name)
    writer.add_file_type(gguf.LlamaFileType.ALL_F32)
    writer.add_vocab_size(case.vocab)
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(case.hidden)
    writer.add_block_count(case.layers)
    writer.add_feed_forward_length(case.feed_forward)
    writer.add_head_count(case.heads)
    writer.add_head_count_kv(case.kv_heads)
    writer.add_layer_norm_rms_eps(case.eps)
    if case.family != "qwen2":
        writer.add_key_length(case.head_dim)
        writer.add_value_length(case.head_dim)
    if case.arch == "llama":
        writer.add_rope_dimension_count(case.head_dim)
    add_rope(writer, case)
    writer.add_tokenizer_model("no_vocab")
    for name, values in tensors_of(case, model):
        writer.add_tensor(name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def variants(case):
    """The case without its rope settings: all of the scaling, each optional part of it, or another base."""
    if case.scaling:
        yield dataclasses.replace(case, scaling={})
    elif case.theta != 10000.0:
        yield dataclasses.replace(case, theta=10000.0)
    for key in (key for key in OPTIONAL if key in case.scaling):
        yield dataclasses.replace(case, scaling={name: v for name, v in case.scaling.items() if name != key})


def make(case, seed, prompt):
    """Writes one case; returns its entry in the index."""
    prompt = [token % case.vocab for token in prompt]
    model = model_of(case, seed)
    logits = logits_of(model, prompt)
    effects = [np.abs(logits - logits_of(model_of(other, seed), prompt)).max() for other in variants(case)]
    assert all(effect > LEAST_EFFECT for effect in effects), (case.name, effects)
    write(case, model)
    logits.astype("<f4").tofile(OUT / f"{case.name}.f32")
    print(f"{case.name}: logits up to {np.abs(logits).max():.1f}, {[round(float(e), 2) for e in effects]} without a rope setting")
    return {"name": case.name, "arch": case.arch, "vocab": case.vocab, "note": case.note}


def main():
    torch.use_deterministic_algorithms(True)
    OUT.mkdir(exist_ok=True)
    prompt = np.random.default_rng(0).integers(0, 97, TOKENS).tolist()
    cases = [make(case, seed, prompt) for seed, case in enumerate(CASES, 1)]
    made_with = {"torch": torch.__version__.split("+")[0], "transformers": transformers.__version__}
    index = {"made_with": made_with, "prompt": prompt, "cases": cases}
    (OUT / "index.json").write_text(json.dumps(index, indent=1) + "\n")
    size = sum(path.stat().st_size for path in OUT.iterdir())
    assert size < MOST_BYTES, size
    print(f"{len(cases)} cases, {size} bytes")


if __name__ == "__main__":
    main()
