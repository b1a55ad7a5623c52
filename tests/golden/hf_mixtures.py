"""Models with experts for make_hf_models.py: the cases, and what their parameters are called in files."""

import functools

import numpy as np

# Classes of transformers by family, and names of the families in GGUF files.
CLASSES = {
    "mixtral": "Mixtral", "qwen3moe": "Qwen3Moe", "qwen2moe": "Qwen2Moe", "olmoe": "Olmoe", "gptoss": "GptOss", "glm4moe": "Glm4Moe",
    "granitemoe": "GraniteMoe", "graniteshared": "GraniteMoeShared", "erniemoe": "Ernie4_5_Moe", "hunyuanmoe": "HunYuanMoEV1",
    "minimax": "MiniMaxM2", "qwen3vlmoe": "Qwen3VLMoe"}
ARCHS = {
    "mixtral": "llama", "gptoss": "gpt-oss", "graniteshared": "granitemoe", "erniemoe": "ernie4_5-moe", "hunyuanmoe": "hunyuan-moe",
    "minimax": "minimax-m2"}
# Families whose heads are as wide as the hidden size leaves for each.
FIXED_HEADS = ("qwen2moe", "olmoe", "granitemoe", "graniteshared")
# Families whose folders are not compared with files.
NO_FOLDERS = ("granitemoe", "graniteshared")
# What parameters end with whose values are drawn here.
DRAWN = ("sinks", "proj_bias", "e_score_correction_bias", "mlp.gate.weight", "router.weight", "gate.wg.weight", "experts.gate_up_proj",
         "experts.down_proj")

GRANITE = {"embedding_multiplier": 3.0, "residual_multiplier": 0.22, "attention_multiplier": 0.2, "logits_scaling": 4.0}
GRANITE_KEYS = {"embedding_scale": 3.0, "residual_scale": 0.22, "attention.scale": 0.2, "logit_scale": 4.0}


def cases(case):
    """The cases, made by `case`."""
    case = functools.partial(case, feed_forward=20)
    return [
        case("mixtral-plain", "four experts, two a row; as a llama", settings={"num_local_experts": 4, "sliding_window": None},
             keys={"expert_count": 4, "expert_used_count": 2}),
        case("qwen3moe-plain", "six narrow experts; weights are normalized", head_dim=16, theta=1e6, layers=3,
             settings={"num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 24, "norm_topk_prob": True},
             keys={"expert_count": 6, "expert_used_count": 2, "expert_feed_forward_length": 24}, without=({"norm_topk_prob": False},)),
        case("qwen3moe-fused", "eight experts of a row of eight; gate and up in one tensor", head_dim=16, tied=True,
             settings={"num_experts": 8, "num_experts_per_tok": 8, "moe_intermediate_size": 20, "norm_topk_prob": True},
             keys={"expert_count": 8, "expert_used_count": 8, "expert_feed_forward_length": 20}),
        case("qwen2moe-plain", "a shared expert behind a sigmoid; weights are not normalized", theta=1e6,
             settings={"num_experts": 6, "num_experts_per_tok": 3, "moe_intermediate_size": 24, "shared_expert_intermediate_size": 40,
                       "norm_topk_prob": False},
             keys={"expert_count": 6, "expert_used_count": 3, "expert_feed_forward_length": 24, "expert_shared_feed_forward_length": 40},
             without=({"norm_topk_prob": True},)),
        case("olmoe-plain", "queries and keys normalized over whole rows", settings={"num_experts": 8, "num_experts_per_tok": 3},
             keys={"expert_count": 8, "expert_used_count": 3}),
        case("gptoss-plain", "sinks, biases everywhere, clamped gates, YaRN that is not rounded, every other layer sees 9 tokens", head_dim=16,
             layers=3, theta=150000.0,
             scaling={"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64, "beta_fast": 1.5, "beta_slow": 0.1,
                      "truncate": False},
             settings={"num_local_experts": 5, "num_experts_per_tok": 2, "sliding_window": 9,
                       "layer_types": ["sliding_attention", "full_attention", "sliding_attention"]},
             keys={"expert_count": 5, "expert_used_count": 2, "attention.sliding_window": 9}, without=({"sliding_window": 40},)),
        case("glm4moe-plain", "a dense layer, then groups of experts with a bias for the choice, a shared one; norms of query and key", head_dim=16,
             rotary=0.5, layers=3, theta=1e6,
             settings={"n_routed_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 24, "first_k_dense_replace": 1, "n_group": 4,
                       "topk_group": 2, "use_qk_norm": True, "norm_topk_prob": True, "routed_scaling_factor": 1.7, "n_shared_experts": 2,
                       "attention_bias": True},
             keys={"expert_count": 8, "expert_used_count": 3, "expert_feed_forward_length": 24, "leading_dense_block_count": 1,
                   "expert_group_count": 4, "expert_group_used_count": 2, "expert_weights_norm": True, "expert_weights_scale": 1.7,
                   "expert_shared_count": 2, "expert_gating_func": 2},
             without=({"n_group": 1, "topk_group": 1}, {"norm_topk_prob": False}, {"routed_scaling_factor": 1.0},
                      {"attention_bias": False})),
        case("granitemoe-plain", "its four factors", tied=True, settings={"num_local_experts": 4, "num_experts_per_tok": 2, **GRANITE},
             keys={"expert_count": 4, "expert_used_count": 2, **GRANITE_KEYS}),
        case("graniteshared-plain", "a shared expert", tied=True,
             settings={"num_local_experts": 4, "num_experts_per_tok": 2, "shared_intermediate_size": 40, **GRANITE},
             keys={"expert_count": 4, "expert_used_count": 2, "expert_shared_feed_forward_length": 40, **GRANITE_KEYS}),
        case("erniemoe-plain", "of three layers the second has experts; a bias that gives one all rows and one none", head_dim=16,
             layers=3, tied=True, theta=5e5,
             settings={"moe_num_experts": 6, "moe_k": 2, "moe_intermediate_size": 24, "moe_num_shared_experts": 2,
                       "moe_layer_start_index": 1, "moe_layer_interval": 2, "moe_layer_end_index": 2},
             keys={"expert_count": 6, "expert_used_count": 2, "expert_feed_forward_length": 24, "expert_shared_feed_forward_length": 48,
                   "leading_dense_block_count": 1, "interleave_moe_layer_step": 2}),
        case("hunyuanmoe-plain", "a shared expert; queries and keys are normalized after they were rotated", head_dim=16, tied=True,
             scaling={"rope_type": "dynamic", "alpha": 50.0, "factor": 1.0},
             settings={"num_experts": 4, "moe_topk": 2},
             keys={"expert_count": 4, "expert_used_count": 2, "expert_shared_feed_forward_length": 20, "rope.scaling.alpha": 50.0}),
        case("minimax-plain", "sigmoids with a bias for the choice; whole rows are normalized, half a head rotates", head_dim=16, rotary=0.5,
             theta=5e6, settings={"num_local_experts": 6, "num_experts_per_tok": 2},
             keys={"expert_count": 6, "expert_used_count": 2, "expert_gating_func": 2}),
        case("qwen3vlmoe-text", "text of a model that sees", head_dim=16, theta=1e6, tied=True,
             settings={"num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 24},
             keys={"expert_count": 6, "expert_used_count": 2, "expert_feed_forward_length": 24, "rope.dimension_sections": [3, 3, 2, 0],
                   "n_deepstack_layers": 1}),
    ]


def draw(rng, name, shape, twin):
    """Random values of the parameter or buffer `name`, which ends as one of DRAWN; the expert `twin` is the same as the first."""
    values = rng.standard_normal(shape).astype(np.float32)
    if name.endswith("sinks"):
        return 2.0 * values
    if name.endswith("e_score_correction_bias"):
        # One expert gets every row, and one gets none.
        values *= 0.1
        values.reshape(-1)[1], values.reshape(-1)[2] = 3.0, -3.0
        return values
    # Two experts have the same score; they are the same, because transformers takes either.
    values[twin] = values[0]
    if name.endswith("proj_bias"):
        return 0.5 * values
    gain = 1.0 if "experts" in name else 2.0
    return gain / np.sqrt(shape[-1]) * values


ROUTERS = ("mlp.gate.weight", "mlp.router.weight", "block_sparse_moe.router.weight", "mlp.gate.wg.weight")
SHARED = ("mlp.shared_expert.", "mlp.shared_experts.", "mlp.shared_mlp.")


def tensors(case, part, values):
    """What becomes of the parameter `part` of a layer with experts: names within the layer, and values; none for another one."""
    fused = case.name.endswith("fused")
    if part in ROUTERS:
        return [("ffn_gate_inp.weight", values)]
    if part == "mlp.router.bias":
        return [("ffn_gate_inp.bias", values)]
    if part.endswith("e_score_correction_bias"):
        return [("exp_probs_b.bias", values.reshape(-1))]
    if part == "self_attn.sinks":
        return [("attn_sinks.weight", values)]
    if part == "mlp.shared_expert_gate.weight":
        return [("ffn_gate_inp_shexp.weight", values.reshape(-1))]
    if part == "shared_mlp.input_linear.weight":
        gate, up = np.split(values, 2)
        return [("ffn_gate_shexp.weight", gate), ("ffn_up_shexp.weight", up)]
    if part == "shared_mlp.output_linear.weight":
        return [("ffn_down_shexp.weight", values)]
    for prefix in SHARED:
        if part.startswith(prefix):
            kind = part[len(prefix):].split("_")[0]
            return [(f"ffn_{kind}_shexp.weight", values)]
    if ".experts." not in part:
        return None
    part = part.split(".")[-1]
    if case.family == "gptoss":
        # Inputs before outputs, and gate and up in turn.
        halves = {"gate": values[..., 0::2], "up": values[..., 1::2]} if part.startswith("gate_up") else {"down": values}
        if part.endswith("bias"):
            return [(f"ffn_{kind}_exps.bias", half) for kind, half in halves.items()]
        return [(f"ffn_{kind}_exps.weight", half.swapaxes(1, 2)) for kind, half in halves.items()]
    if part == "down_proj":
        return [("ffn_down_exps.weight", values)]
    assert part == "gate_up_proj", part
    if fused:
        return [("ffn_gate_up_exps.weight", values)]
    gate, up = np.split(values, 2, axis=1)
    return [("ffn_gate_exps.weight", gate), ("ffn_up_exps.weight", up)]
