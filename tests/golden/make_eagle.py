"""Writes tests/golden/eagle: two small random heads that draft for the model hf/mistral-plain.gguf by vectors between its layers (EAGLE-3), and what
they give, computed in float64 by the plain code below.

Both are there as folders too: `plain` with the names that the trainers of EAGLE-3 write, `own` as Speculators writes it.

NAME.gguf is a head in F32, named and laid out as llama.cpp's converter does it. `plain` embeds by the model's table and knows some of its tokens, `own`
has a table of its own, vectors of another size, and both norms that files may ask for. drafts.json holds the tokens of a text, the lengths of its
beginnings for which each head drafts, and the tokens that it is given in the rounds of each: the last one of the beginning, and the guesses. NAME.f32
holds for each of these rounds the logits and the vector that stands for the guess, little-endian singles.

A row of a head stands for a token, at the position of the one before it. It reads the token's embedding, and the model's vectors of the one before it: what
layers of the file's list read, or the last one gives, in the order of the list, brought to one vector.

Usage: python3 tests/golden/make_eagle.py   (on a CPU; needs torch 2.15.0, transformers 5.17.0, gguf 0.19.0, numpy 2.4.6)
"""

import dataclasses
import json

import gguf
import make_hf_models as models
import numpy as np
import safetensors.torch
import torch

OUT = models.OUT.parent / "eagle"
MODEL = "mistral-plain"
LENGTHS = [2, 3, 8, 9, 20, 33, 40]
ROUNDS = 4
DRAWN = np.float32


@dataclasses.dataclass
class Head:
    """Sizes and settings of a head."""

    name: str
    layers: tuple
    hidden: int = 32
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 8
    feed_forward: int = 44
    # Tokens that it knows; none: all.
    known: int | None = None
    has_table: bool = False
    norm_before_fc: bool = False
    norm_before_residual: bool = False
    theta: float = 10000.0
    eps: float = 1e-5


HEADS = [
    Head("plain", (2, 0, 1), known=50),
    Head("own", (0, 3, 2), hidden=24, kv_heads=1, head_dim=16, theta=500.0, has_table=True, norm_before_fc=True, norm_before_residual=True),
]


def weights_of(head, case, seed):
    """Weights by their names in the file, with rows of queries and keys whose halves rotate together."""
    rng = np.random.default_rng(seed)
    hidden, joined, rows = head.hidden, len(head.layers) * case.hidden, head.known or case.vocab
    query, key = head.heads * head.head_dim, head.kv_heads * head.head_dim
    shapes = {
        "fc": (hidden, joined), "blk.0.attn_q": (query, 2 * hidden), "blk.0.attn_k": (key, 2 * hidden), "blk.0.attn_v": (key, 2 * hidden),
        "blk.0.attn_output": (hidden, query), "blk.0.ffn_gate": (head.feed_forward, hidden), "blk.0.ffn_up": (head.feed_forward, hidden),
        "blk.0.ffn_down": (hidden, head.feed_forward), "output": (rows, hidden)}
    weights = {name: rng.standard_normal(shape) / np.sqrt(shape[1]) * (2 if name in ("output", "blk.0.attn_q") else 1)
               for name, shape in shapes.items()}
    norms = {"blk.0.attn_norm": hidden, "blk.0.attn_norm_2": hidden, "blk.0.ffn_norm": hidden, "output_norm": hidden}
    if head.norm_before_fc:
        norms["enc.output_norm"] = joined
    weights.update({name: 1 + 0.3 * rng.standard_normal(width) for name, width in norms.items()})
    if head.has_table:
        weights["token_embd"] = rng.standard_normal((case.vocab, hidden))
    weights = {name: values.astype(DRAWN) for name, values in weights.items()}
    tokens = np.sort(rng.permutation(case.vocab)[:head.known]) if head.known else None
    return weights, tokens


def normalized(x, weight, eps):
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * weight


def rotated(x, theta):
    """`x` of shape (positions, heads, elements), the first half of a head with the second."""
    half = x.shape[-1] // 2
    angles = np.arange(len(x))[:, None, None] * theta ** (-np.arange(half) / half)
    a, b = x[..., :half], x[..., half:]
    return np.concatenate([a * np.cos(angles) - b * np.sin(angles), a * np.sin(angles) + b * np.cos(angles)], -1)


def run(head, w, embeddings, given):
    """The logits of the last row and its vector, from the embeddings of all rows and the vectors that they bring along."""
    def heads(x, count):
        return x.reshape(len(x), count, head.head_dim)
    normed = normalized(given, w["blk.0.attn_norm_2"], head.eps)
    both = np.concatenate([normalized(embeddings, w["blk.0.attn_norm"], head.eps), normed], -1)
    query, key = (rotated(heads(both @ w[f"blk.0.attn_{part}"].T, count), head.theta)
                  for part, count in (("q", head.heads), ("k", head.kv_heads)))
    value = heads(both @ w["blk.0.attn_v"].T, head.kv_heads)
    shared = head.heads // head.kv_heads
    mixed = []
    for index in range(head.heads):
        scores = key[:, index // shared] @ query[-1, index] / np.sqrt(head.head_dim)
        shares = np.exp(scores - scores.max())
        mixed.append(shares / shares.sum() @ value[:, index // shared])
    hidden = (normed if head.norm_before_residual else given)[-1] + w["blk.0.attn_output"] @ np.concatenate(mixed)
    x = normalized(hidden, w["blk.0.ffn_norm"], head.eps)
    gate = w["blk.0.ffn_gate"] @ x
    hidden = hidden + w["blk.0.ffn_down"] @ (gate / (1 + np.exp(-gate)) * (w["blk.0.ffn_up"] @ x))
    return w["output"] @ normalized(hidden, w["output_norm"], head.eps), hidden


def model_of(case, tokens):
    """The model of `case`, with the weights of its file."""
    config, kind = models.config_of(case)
    model = kind(config).float().eval()
    stored = {tensor.name: tensor.data for tensor in gguf.GGUFReader(models.OUT / f"{case.name}.gguf").tensors}
    with torch.no_grad():
        for name, weight in model.named_parameters():
            values = stored[models.file_name(case, name)]
            for part, count in (("q_proj", case.heads), ("k_proj", case.kv_heads)):
                if part in name:
                    values = values.reshape(count, -1, 2, values.shape[-1]).swapaxes(1, 2).reshape(values.shape)
            weight.copy_(torch.from_numpy(np.array(values)))
    known = np.fromfile(models.OUT / f"{case.name}.f32", "<f4").reshape(-1, case.vocab)[:len(tokens)]
    assert np.abs(models.logits_of(model, tokens) - known).max() < 1e-4, "the model is not that of the file"
    return model


def vectors_of(model, tokens):
    """What each layer reads of each token, and behind them what the last one gives."""
    kept = []
    modules = [*model.model.layers, model.model.norm]
    hooks = [module.register_forward_pre_hook(lambda _, x: kept.append(x[0][0].numpy())) for module in modules]
    with torch.no_grad():
        model(torch.tensor([tokens]))
    for hook in hooks:
        hook.remove()
    return kept


def drafts(head, w, known, table, features, tokens):
    """The tokens of each round, and its logits and vectors."""
    embeddings, given = [table[token] for token in tokens[1:]], list(features[:len(tokens) - 1])
    listed, rows, token = [], [], tokens[-1]
    for _ in range(ROUNDS):
        logits, vector = run(head, w, np.array(embeddings), np.array(given))
        listed.append(int(token))
        rows.append(np.concatenate([logits, vector]))
        best = int(logits.argmax())
        token = int(known[best]) if known is not None else best
        embeddings.append(table[token])
        given.append(vector)
    return listed, rows


def write(head, case, weights, known):
    arch = "eagle3"
    writer = gguf.GGUFWriter(OUT / f"{head.name}.gguf", arch)
    writer.add_name(head.name)
    writer.add_file_type(gguf.LlamaFileType.ALL_F32)
    writer.add_vocab_size(case.vocab)
    writer.add_context_length(models.CONTEXT)
    writer.add_embedding_length(head.hidden)
    writer.add_block_count(1)
    writer.add_feed_forward_length(head.feed_forward)
    writer.add_head_count(head.heads)
    writer.add_head_count_kv(head.kv_heads)
    for add in (writer.add_key_length, writer.add_value_length, writer.add_rope_dimension_count):
        add(head.head_dim)
    writer.add_layer_norm_rms_eps(head.eps)
    writer.add_rope_freq_base(head.theta)
    writer.add_array(f"{arch}.target_layers", list(head.layers))
    writer.add_uint32(f"{arch}.target_hidden_size", case.hidden)
    writer.add_bool(f"{arch}.norm_before_residual", head.norm_before_residual)
    writer.add_bool(f"{arch}.norm_before_fc", head.norm_before_fc)
    writer.add_tokenizer_model("no_vocab")
    for name, values in weights.items():
        for part, count in (("attn_q", head.heads), ("attn_k", head.kv_heads)):
            if name.endswith(part):
                values = models.interleave_halves(values, count)
        writer.add_tensor(f"{name}.weight", np.ascontiguousarray(values))
    if known is not None:
        writer.add_tensor("d2t", known.astype(np.int64))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def save_folder(head, case, weights, known):
    """Writes the head as a folder, with the sizes of its layer in a map of their own where it has a table."""
    layer = {
        "model_type": "llama", "hidden_size": head.hidden, "intermediate_size": head.feed_forward, "num_hidden_layers": 1,
        "num_attention_heads": head.heads, "num_key_value_heads": head.kv_heads, "head_dim": head.head_dim, "vocab_size": case.vocab,
        "max_position_embeddings": models.CONTEXT, "rms_norm_eps": head.eps, "rope_theta": head.theta, "hidden_act": "silu",
        "tie_word_embeddings": False}
    own = {
        "draft_vocab_size": head.known or case.vocab, "target_hidden_size": case.hidden, "eagle_aux_hidden_state_layer_ids": list(head.layers),
        "norm_before_residual": head.norm_before_residual, "norm_before_fc": head.norm_before_fc}
    if head.has_table:
        config, prefix = {"architectures": ["Eagle3Speculator"], "speculators_model_type": "eagle3", "transformer_layer_config": layer, **own}, "layers.0."
    else:
        config, prefix = {"architectures": ["LlamaForCausalLMEagle3"], **layer, **own}, "midlayer."
    names = {
        "attn_norm": "input_layernorm", "attn_norm_2": "hidden_norm", "ffn_norm": "post_attention_layernorm", "attn_q": "self_attn.q_proj",
        "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj", "ffn_gate": "mlp.gate_proj",
        "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj"}
    ends = {"fc": "fc", "output": "lm_head", "output_norm": "norm", "enc.output_norm": "input_norm", "token_embd": "embed_tokens"}
    tensors = {f"{ends[name] if name in ends else prefix + names[name.removeprefix('blk.0.')]}.weight": torch.from_numpy(values)
               for name, values in weights.items()}
    if known is not None:
        tensors["d2t"] = torch.from_numpy(known - np.arange(len(known)))
        tensors["t2d"] = torch.from_numpy(np.isin(np.arange(case.vocab), known))
    folder = OUT / head.name
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    safetensors.torch.save_file(tensors, folder / "model.safetensors")


def main():
    OUT.mkdir(exist_ok=True)
    case = next(case for case in models.CASES if case.name == MODEL)
    prompt = json.loads((models.OUT / "index.json").read_text())["prompt"]
    tokens = [token % case.vocab for token in prompt[:max(LENGTHS)]]
    model = model_of(case, tokens)
    read = vectors_of(model, tokens)
    listed = {}
    for number, head in enumerate(HEADS, 91):
        weights, known = weights_of(head, case, number)
        w = {name: values.astype(np.float64) for name, values in weights.items()}
        table = w.get("token_embd", model.get_input_embeddings().weight.detach().numpy().astype(np.float64))
        joined = np.concatenate([read[layer] for layer in head.layers], -1).astype(np.float64)
        if head.norm_before_fc:
            joined = normalized(joined, w["enc.output_norm"], head.eps)
        made = [drafts(head, w, known, table, joined @ w["fc"].T, tokens[:length]) for length in LENGTHS]
        np.array([row for _, rows in made for row in rows], "<f4").tofile(OUT / f"{head.name}.f32")
        listed[head.name] = [{"length": length, "given": given} for length, (given, _) in zip(LENGTHS, made)]
        write(head, case, weights, known)
        save_folder(head, case, weights, known)
        print(head.name, [given for given, _ in made])
    (OUT / "drafts.json").write_text(json.dumps({"tokens": tokens, "heads": listed}) + "\n")


if __name__ == "__main__":
    main()
