"""Models some of whose layers have a state for make_hf_models.py: the cases, and what their parameters and sizes are called in files."""

import functools

import numpy as np

# Classes of transformers by family.
CLASSES = {"lfm2": "Lfm2", "lfm2moe": "Lfm2Moe", "qwen3next": "Qwen3Next", "qwen35": "Qwen3_5", "qwen35moe": "Qwen3_5Moe",
           "granitehybrid": "GraniteMoeHybrid"}
# Those whose configuration is that of the text of a model that sees.
TEXT_CONFIGS = ("qwen35", "qwen35moe")
# Heads as wide as the hidden size leaves for each.
FIXED_HEADS = ("lfm2", "lfm2moe", "granitehybrid")
EPS_NAMES = dict.fromkeys(("lfm2", "lfm2moe"), "norm_eps")
KEEPS_NAME = ("qwen3next", "qwen35", "qwen35moe")
# Whose norms, but for those of results of scans, hold what is added to one.
ADDS_ONE = ("qwen3next", "qwen35", "qwen35moe")
# Whose heads of values stand tiled in files.
TILED = ("qwen35", "qwen35moe")
GLOBAL_NAMES = {"model.embedding_norm.weight": "token_embd_norm.weight"}
LAYER_NAMES = {
    "operator_norm": "attn_norm", "ffn_norm": "ffn_norm", "feed_forward.w1": "ffn_gate", "feed_forward.w3": "ffn_up",
    "feed_forward.w2": "ffn_down", "self_attn.out_proj": "attn_output", "self_attn.q_layernorm": "attn_q_norm",
    "self_attn.k_layernorm": "attn_k_norm", "conv.in_proj": "shortconv.in_proj", "conv.out_proj": "shortconv.out_proj",
    "linear_attn.norm": "ssm_norm"}
# Key heads, elements of each, heads of values, and elements of these; tokens that a convolution sees.
SCAN = {"linear_num_key_heads": 2, "linear_key_head_dim": 8, "linear_num_value_heads": 4, "linear_value_head_dim": 8,
        "linear_conv_kernel_dim": 4}
EXPERTS = {"num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 24, "shared_expert_intermediate_size": 40,
           "norm_topk_prob": True}
EXPERT_KEYS = {"expert_count": 6, "expert_used_count": 2, "expert_feed_forward_length": 24, "expert_shared_feed_forward_length": 40}


# A state space: heads, elements of each, rows of their matrices.
SPACE = {"mamba_n_heads": 8, "mamba_d_head": 8, "mamba_n_groups": 1, "mamba_d_state": 12, "mamba_d_conv": 4, "mamba_expand": 2,
         "mamba_chunk_size": 16}
SPACE_KEYS = {"ssm.conv_kernel": 4, "ssm.state_size": 12, "ssm.group_count": 1, "ssm.time_step_rank": 8, "ssm.inner_size": 64}
# Settings of the experts' family.
GRANITE = {"embedding_multiplier": 3.0, "residual_multiplier": 0.22, "attention_multiplier": 0.2, "logits_scaling": 4.0}
GRANITE_KEYS = {"embedding_scale": 3.0, "residual_scale": 0.22, "attention.scale": 0.2, "logit_scale": 4.0}


def scan_keys(scan):
    """Keys of the sizes of a scan."""
    return {"ssm.conv_kernel": scan["linear_conv_kernel_dim"], "ssm.state_size": scan["linear_key_head_dim"],
            "ssm.group_count": scan["linear_num_key_heads"], "ssm.time_step_rank": scan["linear_num_value_heads"],
            "ssm.inner_size": scan["linear_num_value_heads"] * scan["linear_value_head_dim"]}


def kinds(pattern, other):
    """Kinds of layers: `a` for attention."""
    return ["full_attention" if kind == "a" else other for kind in pattern]


def cases(case):
    """The cases, made by `case`."""
    short = functools.partial(case, theta=1e6)
    linear = functools.partial(case, head_dim=16, rotary=0.5, theta=1e6, eps=1e-6, layers=4)
    wide = {**SCAN, "linear_num_key_heads": 3, "linear_num_value_heads": 9, "linear_value_head_dim": 20, "linear_conv_kernel_dim": 3}
    return [
        short("lfm2-plain", "short convolutions, and attention in one of four layers", tied=True, layers=4,
              settings={"layer_types": kinds("ccac", "conv"), "block_auto_adjust_ff_dim": False},
              keys={"shortconv.l_cache": 3, "attention.head_count_kv": [0, 0, 2, 0]},
              without=({"layer_types": kinds("caac", "conv")},)),
        short("lfm2-taps", "convolutions over five tokens, in the last layer too; untied", heads=8, head_dim=4, layers=3,
              settings={"layer_types": kinds("acc", "conv"), "block_auto_adjust_ff_dim": False, "conv_L_cache": 5},
              keys={"shortconv.l_cache": 5, "attention.head_count_kv": [2, 0, 0]}, without=({"layer_types": kinds("aac", "conv")},)),
        short("lfm2moe-plain", "a dense layer, then experts by sigmoids with a bias for the choice", tied=True, layers=3,
              settings={"layer_types": kinds("cac", "conv"), "num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 24,
                        "num_dense_layers": 1, "use_expert_bias": True, "norm_topk_prob": True},
              keys={"shortconv.l_cache": 3, "attention.head_count_kv": [0, 2, 0], "expert_count": 6, "expert_used_count": 2,
                    "expert_feed_forward_length": 24, "leading_dense_block_count": 1, "expert_gating_func": 2},
              without=({"use_expert_bias": False}, {"norm_topk_prob": False})),
        linear("qwen3next-plain", "the gated delta rule in three of four layers, gated attention, experts with a shared one",
               settings={**SCAN, **EXPERTS, "layer_types": kinds("llla", "linear_attention"), "decoder_sparse_step": 1},
               keys={**scan_keys(SCAN), **EXPERT_KEYS}, without=({"norm_topk_prob": False},)),
        linear("qwen3next-wide", "three heads of values a key head, which are longer; every second layer has attention",
               settings={**wide, **EXPERTS, "layer_types": kinds("lala", "linear_attention"), "decoder_sparse_step": 1},
               keys={**scan_keys(wide), **EXPERT_KEYS, "full_attention_interval": 2}),
        linear("qwen35-plain", "dense; heads of values tiled in the file; listed layers", tied=True,
               settings={**SCAN, "layer_types": kinds("laal", "linear_attention")},
               keys={**scan_keys(SCAN), "attention.recurrent_layers": [True, False, False, True],
                     "rope.dimension_sections": [2, 1, 1, 0]}),
        linear("qwen35moe-wide", "three heads of values a key head, tiled; experts",
               settings={**wide, **{k: v for k, v in EXPERTS.items() if k != "norm_topk_prob"},
                         "layer_types": kinds("llla", "linear_attention")},
               keys={**scan_keys(wide), **EXPERT_KEYS, "full_attention_interval": 4, "rope.dimension_sections": [2, 1, 1, 0]}),
        case("granitehybrid-plain", "state spaces, and attention without positions; dense", tied=True, layers=3,
             settings={**SPACE, **GRANITE, "layer_types": ["mamba", "attention", "mamba"], "num_local_experts": 0,
                       "shared_intermediate_size": 44},
             keys={**SPACE_KEYS, **GRANITE_KEYS, "attention.head_count_kv": [0, 2, 0], "rope.scaling.finetuned": False},
             without=({"position_embedding_type": "rope"}, {"residual_multiplier": 1.0})),
        case("granitehybrid-experts", "positions; experts with a shared one", layers=3,
             settings={**SPACE, **GRANITE, "layer_types": ["mamba", "mamba", "attention"], "num_local_experts": 4,
                       "num_experts_per_tok": 2, "shared_intermediate_size": 40, "position_embedding_type": "rope"},
             keys={**SPACE_KEYS, **GRANITE_KEYS, "attention.head_count_kv": [0, 0, 2], "expert_count": 4, "expert_used_count": 2,
                   "expert_shared_feed_forward_length": 40}, without=({"position_embedding_type": None},)),
    ]


def draw(rng, name, shape):
    """Random values of a parameter of a state; none for one that other models have too."""
    values = rng.standard_normal(shape).astype(np.float32)
    if name.endswith("A_log"):
        return 0.7 * values - 1.0
    if name.endswith("dt_bias"):
        return 0.5 * values
    if name.endswith(".D"):
        return values
    if name.endswith("conv1d.bias"):
        return 0.3 * values
    if name.endswith(("conv.conv.weight", "conv1d.weight")):
        return 0.6 * values
    if name.endswith("expert_bias"):
        return 0.3 * values
    return None


def tile(case, values):
    """Puts blocks of heads of values from the order of their key heads into that of files, where these differ."""
    if case.arch not in TILED:
        return values
    keys = case.settings["linear_num_key_heads"]
    each = case.settings["linear_num_value_heads"] // keys
    blocks = values.reshape(keys, each, -1, *values.shape[1:])
    return np.ascontiguousarray(blocks.swapaxes(0, 1)).reshape(values.shape)


def tensors(case, part, values):
    """What becomes of the parameter `part` of a layer: names within the layer, and values; none for one that other models have too."""
    if part == "conv.conv.weight":
        return [("shortconv.conv.weight", values[:, 0])]
    if part == "feed_forward.gate.weight":
        return [("ffn_gate_inp.weight", values)]
    if part == "feed_forward.expert_bias":
        return [("exp_probs_b.bias", values)]
    if case.family == "granitehybrid":
        return space_tensors(case, part, values)
    if not part.startswith("linear_attn."):
        return None
    name, s = part.removeprefix("linear_attn."), case.settings
    heads, width = s["linear_num_key_heads"], s["linear_key_head_dim"]
    each = s["linear_num_value_heads"] // heads * s["linear_value_head_dim"]
    keys = 2 * heads * width

    def joined(rows):
        """Rows of queries, keys and values."""
        return np.concatenate([rows[:keys], tile(case, rows[keys:])])

    if name == "in_proj_qkvz.weight":
        parts = np.split(values.reshape(heads, -1, values.shape[1]), [width, 2 * width, 2 * width + each], axis=1)
        q, k, v, z = (part.reshape(-1, values.shape[1]) for part in parts)
        return [("attn_qkv.weight", np.concatenate([q, k, v])), ("attn_gate.weight", z)]
    return {
        "in_proj_ba.weight": lambda: [("ssm_ba.weight", values)],
        "in_proj_qkv.weight": lambda: [("attn_qkv.weight", joined(values))],
        "in_proj_z.weight": lambda: [("attn_gate.weight", tile(case, values))],
        "in_proj_b.weight": lambda: [("ssm_beta.weight", tile(case, values))],
        "in_proj_a.weight": lambda: [("ssm_alpha.weight", tile(case, values))],
        "conv1d.weight": lambda: [("ssm_conv1d.weight", joined(values[:, 0]))],
        "dt_bias": lambda: [("ssm_dt.bias", tile(case, values))],
        "A_log": lambda: [("ssm_a", -np.exp(tile(case, values)))],
        "norm.weight": lambda: [("ssm_norm.weight", values)],
        "out_proj.weight": lambda: [("ssm_out.weight", np.ascontiguousarray(tile(case, np.ascontiguousarray(values.T)).T))],
    }[name]()


def space_tensors(case, part, values):
    """The same of models with state spaces."""
    if part.startswith("shared_mlp.") and not case.settings["num_local_experts"]:
        if part == "shared_mlp.output_linear.weight":
            return [("ffn_down.weight", values)]
        gate, up = np.split(values, 2)
        return [("ffn_gate.weight", gate), ("ffn_up.weight", up)]
    return {
        "mamba.in_proj.weight": lambda: [("ssm_in.weight", values)],
        "mamba.conv1d.weight": lambda: [("ssm_conv1d.weight", values[:, 0])],
        "mamba.conv1d.bias": lambda: [("ssm_conv1d.bias", values)],
        "mamba.dt_bias": lambda: [("ssm_dt.bias", values)],
        "mamba.A_log": lambda: [("ssm_a", -np.exp(values)[:, None])],
        "mamba.D": lambda: [("ssm_d", values[:, None])],
        "mamba.norm.weight": lambda: [("ssm_norm.weight", values[None])],
        "mamba.out_proj.weight": lambda: [("ssm_out.weight", values)],
    }.get(part, lambda: None)()
