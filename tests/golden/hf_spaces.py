"""Models with state spaces of several groups for make_hf_models.py: the cases, and what their parameters and sizes are called in files."""

import functools

import numpy as np

# Classes of transformers by family, and names of the families in GGUF files.
CLASSES = {"nemotronh": "NemotronH", "nemotronhmoe": "NemotronH", "falconh1": "FalconH1"}
ARCHS = {"nemotronh": "nemotron_h", "nemotronhmoe": "nemotron_h_moe", "falconh1": "falcon-h1"}
EPS_NAMES = dict.fromkeys(("nemotronh", "nemotronhmoe"), "layer_norm_epsilon")
GLOBAL_NAMES = {
    "model.embeddings.weight": "token_embd.weight", "model.norm_f.weight": "output_norm.weight",
    "model.final_layernorm.weight": "output_norm.weight"}
LAYER_NAMES = {
    "norm": "attn_norm", "mixer.q_proj": "attn_q", "mixer.k_proj": "attn_k", "mixer.v_proj": "attn_v", "mixer.o_proj": "attn_output",
    "mixer.up_proj": "ffn_up", "mixer.down_proj": "ffn_down", "mixer.gate": "ffn_gate_inp", "mixer.shared_experts.up_proj": "ffn_up_shexp",
    "mixer.shared_experts.down_proj": "ffn_down_shexp", "mixer.fc1_latent_proj": "ffn_latent_down", "mixer.fc2_latent_proj": "ffn_latent_up",
    "feed_forward.gate_proj": "ffn_gate", "feed_forward.up_proj": "ffn_up", "feed_forward.down_proj": "ffn_down"}
KINDS = {"s": "linear_attention", "a": "full_attention", "f": "mlp", "e": "moe"}

# Heads, elements of each, groups, rows of their matrices.
HEADS, WIDTH, GROUPS, STATE = 8, 8, 2, 12
SPACE = {"mamba_num_heads": HEADS, "mamba_head_dim": WIDTH, "n_groups": GROUPS, "ssm_state_size": STATE, "chunk_size": 16,
         # Steps have no least size in files.
         "time_step_min": 1e-12}
SPACE_KEYS = {"ssm.conv_kernel": 4, "ssm.state_size": STATE, "ssm.group_count": GROUPS, "ssm.time_step_rank": HEADS,
              "ssm.inner_size": HEADS * WIDTH}
EXPERTS = {"n_routed_experts": 6, "moe_intermediate_size": 24, "moe_shared_expert_intermediate_size": 40, "routed_scaling_factor": 1.7}
EXPERT_KEYS = {"expert_count": 6, "expert_feed_forward_length": 24, "expert_shared_feed_forward_length": 40, "expert_shared_count": 1,
               "expert_weights_scale": 1.7, "expert_group_count": 1}
FALCON = {"mamba_d_ssm": HEADS * WIDTH, "mamba_n_heads": HEADS, "mamba_d_head": WIDTH, "mamba_d_state": STATE, "mamba_chunk_size": 16}
FACTORS = {"lm_head_multiplier": 1.5, "embedding_multiplier": 2.0, "mlp_multipliers": [0.7, 1.4], "key_multiplier": 0.6,
           "attention_out_multiplier": 1.6, "attention_in_multiplier": 0.8, "ssm_multipliers": [0.7, 1.3, 0.6, 1.2, 0.5],
           "ssm_in_multiplier": 1.4, "ssm_out_multiplier": 0.7}


def cases(case):
    """The cases, made by `case`."""

    def nemotron(name, note, pattern, settings, keys, **more):
        layers, width = len(pattern), 24 if "e" in pattern else 44
        return case(name, note, head_dim=16, layers=layers,
                    settings={**SPACE, "layers_block_type": [KINDS[kind] for kind in pattern], **settings},
                    keys={**SPACE_KEYS, "attention.head_count_kv": [2 if kind == "a" else 0 for kind in pattern],
                          "feed_forward_length": [width if kind in "ef" else 0 for kind in pattern], **keys}, **more)

    falcon = functools.partial(case, head_dim=16, theta=1e6, layers=2)
    every = [{name: [1.0] * len(value) if isinstance(value, list) else 1.0} for name, value in FACTORS.items()]
    return [
        nemotron("nemotronh-plain", "a block a layer: state spaces of two groups, attention without positions, no gates", "sfasf", {}, {},
                 tokens=256),
        nemotron("nemotronhmoe-plain", "experts by sigmoids with a bias for the choice, and a shared one", "seae",
                 {**EXPERTS, "num_experts_per_tok": 2, "norm_topk_prob": True},
                 {**EXPERT_KEYS, "expert_used_count": 2, "expert_weights_norm": True},
                 without=({"norm_topk_prob": False}, {"routed_scaling_factor": 1.0})),
        nemotron("nemotronhmoe-latent", "experts of shorter rows; weights are not normalized", "ease",
                 {**EXPERTS, "num_experts_per_tok": 3, "norm_topk_prob": False, "moe_latent_size": 16},
                 {**EXPERT_KEYS, "expert_used_count": 3, "expert_weights_norm": False, "moe_latent_size": 16}, tokens=256),
        falcon("falconh1-plain", "attention beside a state space of two groups, which a norm follows; its factors are in the weights", tokens=256,
               settings={**FALCON, **FACTORS, "mamba_n_groups": GROUPS, "mamba_rms_norm": True, "mamba_norm_before_gate": False},
               keys=SPACE_KEYS, without=tuple(every)),
        falcon("falconh1-bare", "one group, no norm behind it; attention with one head of keys", kv_heads=1,
               settings={**FALCON, "mamba_n_groups": 1, "mamba_rms_norm": False}, keys={**SPACE_KEYS, "ssm.group_count": 1}),
    ]


def draw(rng, name, shape):
    """Random values of a parameter; none for one that other models have too."""
    if not name.endswith(("embeddings.weight", "norm_f.weight")):
        return None
    values = rng.standard_normal(shape).astype(np.float32)
    return 0.7 * values if name.endswith("embeddings.weight") else 1.0 + 0.3 * values


def folded(case, name, values):
    """The values of a parameter with the factors that files have in the weights."""
    s = case.settings
    if case.family != "falconh1" or "mlp_multipliers" not in s:
        return values
    if name.endswith("mamba.in_proj.weight"):
        inner, keys = HEADS * WIDTH, s["mamba_n_groups"] * STATE
        counts = [inner, inner, keys, keys, HEADS]
        return s["ssm_in_multiplier"] * values * np.repeat(np.array(s["ssm_multipliers"], np.float32), counts)[:, None]
    factors = {
        "down_proj": s["mlp_multipliers"][1], "gate_proj": s["mlp_multipliers"][0], "q_proj": s["attention_in_multiplier"],
        "k_proj": s["key_multiplier"] * s["attention_in_multiplier"], "v_proj": s["attention_in_multiplier"],
        "o_proj": s["attention_out_multiplier"], "out_proj": s["ssm_out_multiplier"], "lm_head": s["lm_head_multiplier"],
        "embed_tokens": s["embedding_multiplier"]}
    kind = name.split(".")[-2]
    return (np.float32(factors[kind]) * values).astype(np.float32) if kind in factors else values


def tensors(case, part, values):
    """What becomes of the parameter `part` of a layer: names within the layer, and values; none for one that other models have too."""
    if case.family not in CLASSES:
        return None
    name = part.removeprefix("mixer.").removeprefix("mamba.")
    if name == part:
        # The converter leaves out the end of this name.
        return [("ffn_norm", values)] if part == "pre_ff_layernorm.weight" else None
    made = {
        "in_proj.weight": lambda: ("ssm_in.weight", values),
        "conv1d.weight": lambda: ("ssm_conv1d.weight", values[:, 0]),
        "conv1d.bias": lambda: ("ssm_conv1d.bias", values),
        "dt_bias": lambda: ("ssm_dt.bias", values),
        "A_log": lambda: ("ssm_a", -np.exp(values)[:, None]),
        "D": lambda: ("ssm_d", values[:, None]),
        "norm.weight": lambda: ("ssm_norm.weight", values.reshape(case.keys["ssm.group_count"], -1)),
        "out_proj.weight": lambda: ("ssm_out.weight", values),
        "gate.e_score_correction_bias": lambda: ("exp_probs_b.bias", values),
        "experts.up_proj": lambda: ("ffn_up_exps.weight", values),
        "experts.down_proj": lambda: ("ffn_down_exps.weight", values),
    }.get(name)
    return made and [made()]
