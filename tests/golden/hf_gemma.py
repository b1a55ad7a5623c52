"""Gemma 4 for make_hf_models.py: the cases, and what their parameters and sizes are called in files."""

import functools

import numpy as np

# Classes of transformers by family.
CLASSES = {"gemma4": "Gemma4"}
GLOBAL_NAMES = {
    "model.embed_tokens_per_layer.weight": "per_layer_token_embd.weight",
    "model.per_layer_model_projection.weight": "per_layer_model_proj.weight",
    "model.per_layer_projection_norm.weight": "per_layer_proj_norm.weight"}
LAYER_NAMES = {
    "post_feedforward_layernorm_1": "post_ffw_norm_1", "post_feedforward_layernorm_2": "post_ffw_norm_2",
    "pre_feedforward_layernorm_2": "pre_ffw_norm_2", "per_layer_input_gate": "inp_gate", "per_layer_projection": "proj",
    "post_per_layer_input_norm": "post_norm"}
# Elements of a head of layers that see everything, and the share of them that rotates.
GLOBAL_HEAD = 32
ROTATED = 0.25


def kinds(pattern):
    """Kinds of layers: `l` for local."""
    return ["sliding_attention" if kind == "l" else "full_attention" for kind in pattern]


def cases(case):
    """The cases, made by `case`."""
    case = functools.partial(case, head_dim=16, theta=1e6, eps=1e-6)
    settings = {"global_head_dim": GLOBAL_HEAD, "final_logit_softcapping": 9.0}
    small = {"hidden_size_per_layer_input": 8, "vocab_size_per_layer_input": 131, "num_kv_shared_layers": 3, "use_double_wide_mlp": True}
    large = {"hidden_size_per_layer_input": 0, "num_kv_shared_layers": 0, "attention_k_eq_v": True, "num_global_key_value_heads": 1,
             "enable_moe_block": True, "num_experts": 6, "top_k_experts": 2, "moe_intermediate_size": 24}
    return [
        case("gemma4-small", "embeddings for each layer; the last three layers read keys of others and have wider blocks", tied=True, layers=6,
             tokens=256, settings={**settings, **small, "sliding_window": 9, "layer_types": kinds("llgllg")},
             keys={"attention.sliding_window": 9, "attention.sliding_window_pattern": [True, True, False, True, True, False],
                   "attention.shared_kv_layers": 3, "embedding_length_per_layer_input": 8, "final_logit_softcapping": 9.0,
                   "feed_forward_length": [44, 44, 44, 88, 88, 88]},
             without=({"sliding_window": 300}, {"final_logit_softcapping": None})),
        case("gemma4-experts", "experts beside a dense block; layers that see everything have fewer keys, which are values too", layers=4,
             settings={**settings, **large, "sliding_window": 7, "layer_types": kinds("lglg")},
             keys={"attention.sliding_window": 7, "attention.sliding_window_pattern": [True, False, True, False],
                   "attention.shared_kv_layers": 0, "embedding_length_per_layer_input": 0, "final_logit_softcapping": 9.0,
                   "attention.head_count_kv": [2, 1, 2, 1], "expert_count": 6, "expert_used_count": 2, "expert_feed_forward_length": 24},
             without=({"sliding_window": 300}, {"final_logit_softcapping": None})),
    ]


def rope(settings, local_theta=10000.0):
    """Rotations of both kinds of layers, `settings` those of all."""
    whole = {**settings, "rope_type": "proportional", "partial_rotary_factor": ROTATED}
    return {"full_attention": whole, "sliding_attention": {"rope_type": "default", "rope_theta": local_theta}}


def draw(rng, name, shape):
    """Random values of a parameter; none for one that other models have too."""
    if not any(part in name for part in ("layer_scalar", "router.", "layernorm_")):
        return None
    values = rng.standard_normal(shape).astype(np.float32)
    return 2.0 / np.sqrt(shape[-1]) * values if name.endswith("router.proj.weight") else 1.0 + 0.3 * values


def tensors(case, part, values):
    """What becomes of the parameter `part` of a layer: names within the layer, and values; none for one that other models have too."""
    name = {
        "layer_scalar": "layer_output_scale.weight", "router.scale": "ffn_gate_inp.scale", "router.proj.weight": "ffn_gate_inp.weight",
        "router.per_expert_scale": "ffn_down_exps.scale", "experts.gate_up_proj": "ffn_gate_up_exps.weight",
        "experts.down_proj": "ffn_down_exps.weight"}.get(part)
    return [(name, values)] if case.family in CLASSES and name else None


def more_tensors(case):
    """Tensors that are no parameters: the factors of rotations, and keys of layers that read others', which published files have."""
    pairs = GLOBAL_HEAD // 2
    rotated = int(pairs * ROTATED)
    yield "rope_freqs.weight", np.array([1.0] * rotated + [1e30] * (pairs - rotated), np.float32)
    if case.keys["attention.shared_kv_layers"]:
        width = case.kv_heads * case.head_dim
        yield "blk.4.attn_k.weight", np.ones((width, case.hidden), np.float32)
        yield "blk.4.attn_v.weight", np.ones((width, case.hidden), np.float32)
        yield "blk.4.attn_k_norm.weight", np.ones(case.head_dim, np.float32)


def add_heads(writer, case):
    """Writes the sizes of heads."""
    if "attention.head_count_kv" not in case.keys:
        writer.add_head_count_kv(case.kv_heads)
    for add in (writer.add_key_length, writer.add_value_length, writer.add_rope_dimension_count):
        add(GLOBAL_HEAD)
    for add in (writer.add_key_length_swa, writer.add_value_length_swa, writer.add_rope_dimension_count_swa):
        add(case.head_dim)
    writer.add_rope_freq_base_swa(10000.0)
