"""Models with latent attention for make_hf_models.py: the cases, and what their parameters and sizes are called in files."""

import functools

import numpy as np

# Classes of transformers by family.
CLASSES = {"deepseekv2": "DeepseekV2", "deepseekv3": "DeepseekV3", "glm4lite": "Glm4MoeLite", "youtu": "Youtu"}
ARCHS = dict.fromkeys(CLASSES, "deepseek2")
# The projection from the vector to keys and values of all heads, which files hold in two parts.
KV_B = "self_attn.kv_b_proj.weight"
LAYER_NAMES = {
    "self_attn.q_a_proj": "attn_q_a", "self_attn.q_a_layernorm": "attn_q_a_norm", "self_attn.q_b_proj": "attn_q_b",
    "self_attn.kv_a_proj_with_mqa": "attn_kv_a_mqa", "self_attn.kv_a_layernorm": "attn_kv_a_norm"}
# Elements of the shared key, of the rest of a head of queries, of a head of values, and of the vector.
ROTATED, PLAIN, VALUE, RANK = 6, 10, 8, 20
SIZES = {"qk_rope_head_dim": ROTATED, "qk_nope_head_dim": PLAIN, "v_head_dim": VALUE, "kv_lora_rank": RANK, "q_lora_rank": 18}
EXPERTS = {"n_routed_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 24, "n_shared_experts": 2}
EXPERT_KEYS = {"expert_count": 8, "expert_used_count": 3, "expert_feed_forward_length": 24, "expert_shared_count": 2,
               "leading_dense_block_count": 1}


def yarn(mscale):
    """YaRN whose factor is in the scale of attention."""
    return {"rope_type": "yarn", "factor": 16.0, "original_max_position_embeddings": 16, "mscale": mscale, "mscale_all_dim": mscale}


def cases(case):
    """The cases, made by `case`."""
    case = functools.partial(case, feed_forward=44, kv_heads=4, head_dim=ROTATED)
    lite = {**SIZES, "q_lora_rank": None, **EXPERTS, "first_k_dense_replace": 1, "topk_method": "greedy", "norm_topk_prob": False}
    groups = {"n_group": 4, "topk_group": 2}
    group_keys = {"expert_group_count": 4, "expert_group_used_count": 2}
    return [
        case("deepseekv2-lite", "queries from the input; a dense layer, then softmax scores that are not normalized; YaRN", layers=3,
             scaling=yarn(0.707), settings=lite, keys={**EXPERT_KEYS, "expert_weights_norm": False,
             "rope.scaling.yarn_log_multiplier": 0.0707}),
        case("deepseekv2-groups", "queries from a vector; groups of experts by their best", layers=2,
             settings={**lite, "q_lora_rank": 18, **groups, "topk_method": "group_limited_greedy", "routed_scaling_factor": 3.0},
             keys={**EXPERT_KEYS, **group_keys, "expert_weights_norm": False, "expert_weights_scale": 3.0, "expert_gating_func": 1},
             without=({"topk_method": "greedy"}, {"routed_scaling_factor": 1.0})),
        case("deepseekv3-plain", "sigmoids, groups by their two best, a bias for the choice; YaRN", layers=3, scaling=yarn(1.0),
             settings={**SIZES, **EXPERTS, **groups, "first_k_dense_replace": 1, "norm_topk_prob": True, "routed_scaling_factor": 2.5,
                       "num_mtp_layers": 0},
             keys={**EXPERT_KEYS, **group_keys, "expert_weights_norm": True, "expert_weights_scale": 2.5, "expert_gating_func": 2,
                   "rope.scaling.yarn_log_multiplier": 0.1},
             without=({"n_group": 1, "topk_group": 1}, {"norm_topk_prob": False}, {"routed_scaling_factor": 1.0})),
        case("glm4lite-plain", "the norms of vectors add less than those of layers", layers=2, theta=1e6, eps=1e-2,
             settings={**SIZES, **EXPERTS, "n_group": 1, "topk_group": 1, "norm_topk_prob": True, "routed_scaling_factor": 1.8},
             keys={**EXPERT_KEYS, "expert_group_count": 1, "expert_group_used_count": 1, "expert_weights_norm": True,
                   "expert_weights_scale": 1.8}, without=({"routed_scaling_factor": 1.0},)),
        case("youtu-plain", "no experts", layers=2, tied=True, theta=1.6e6, settings=SIZES,
             keys={"leading_dense_block_count": 2, "expert_feed_forward_length": 44, "expert_shared_count": 0}),
    ]


def add_heads(writer, case):
    """Sizes of heads: those of the one key-value head, and what they would be without the vector."""
    writer.add_head_count_kv(1)
    writer.add_key_length(RANK + ROTATED)
    writer.add_value_length(RANK)
    writer.add_key_length_mla(PLAIN + ROTATED)
    writer.add_value_length_mla(VALUE)
    writer.add_kv_lora_rank(RANK)
    if case.settings["q_lora_rank"] is not None:
        writer.add_q_lora_rank(case.settings["q_lora_rank"])
    writer.add_rope_dimension_count(ROTATED)


def tensors(case, part, values):
    """What becomes of the parameter `part` of a layer: names within the layer, and values; none for one that other models have too."""
    if part != KV_B:
        return None
    heads = values.reshape(case.heads, PLAIN + VALUE, RANK)
    return [("attn_k_b.weight", heads[:, :PLAIN].swapaxes(1, 2)), ("attn_v_b.weight", heads[:, PLAIN:])]
