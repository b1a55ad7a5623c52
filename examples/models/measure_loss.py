#!/usr/bin/env python3
"""Measures the loss of `shakespeare.gguf` on text, in float64 with NumPy, from the file alone.

    python3 measure_loss.py shakespeare.gguf TEXT [--characters N]

TEXT is tinyshakespeare.txt; its last 10 % are the validation text, of which the first N characters are scored (all, when not
said). Prints the total in nats by the number of characters. Written apart from the training code, as a check on it: tokens come
from the vocabulary and merges in the file, weights from its Q8_0 blocks.

Needs gguf 0.19, numpy 2, tokenizers 0.23.
"""

import argparse

import gguf
import numpy as np
from tokenizers import Tokenizer, decoders, models, pre_tokenizers


class Model:
    """A model of the family `llama`, its weights decoded to float64."""

    def __init__(self, path):
        reader = gguf.GGUFReader(path)
        self.meta = {name: field.contents() for name, field in reader.fields.items()}
        self.weights = {t.name: gguf.quants.dequantize(t.data, t.tensor_type).astype(np.float64) for t in reader.tensors}
        self.heads = self.meta["llama.attention.head_count"]
        self.kv_heads = self.meta["llama.attention.head_count_kv"]
        self.eps = self.meta["llama.attention.layer_norm_rms_epsilon"]
        self.context = self.meta["llama.context_length"]
        dim = self.meta["llama.rope.dimension_count"]
        frequencies = self.meta["llama.rope.freq_base"] ** (-np.arange(0, dim, 2) / dim)
        angles = np.arange(self.context)[:, None, None] * frequencies
        self.turns = np.exp(1j * angles)

    def tokenizer(self):
        """Byte-level BPE from the tokens and merges of the file."""
        vocab = {token: i for i, token in enumerate(self.meta["tokenizer.ggml.tokens"])}
        merges = [tuple(pair.split(" ")) for pair in self.meta["tokenizer.ggml.merges"]]
        tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges))
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = decoders.ByteLevel()
        return tokenizer

    def norm(self, x, name):
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + self.eps) * self.weights[name]

    def project(self, x, name):
        return x @ self.weights[name].T

    def turn(self, x):
        """Rotates neighbouring elements of `[positions, heads, dim]`, as complex numbers."""
        pairs = (x[..., 0::2] + 1j * x[..., 1::2]) * self.turns[: len(x)]
        return np.stack((pairs.real, pairs.imag), -1).reshape(x.shape)

    def attention(self, x, layer):
        rows = len(x)
        q, k, v = (self.project(x, f"{layer}.attn_{part}.weight") for part in "qkv")
        q = self.turn(q.reshape(rows, self.heads, -1))
        k = self.turn(k.reshape(rows, self.kv_heads, -1)).repeat(self.heads // self.kv_heads, 1)
        v = v.reshape(rows, self.kv_heads, -1).repeat(self.heads // self.kv_heads, 1)
        scores = np.einsum("qhd,khd->hqk", q, k) / np.sqrt(q.shape[-1])
        scores[:, np.triu(np.ones((rows, rows), bool), 1)] = -np.inf
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        weights /= weights.sum(-1, keepdims=True)
        mixed = np.einsum("hqk,khd->qhd", weights, v).reshape(rows, -1)
        return self.project(mixed, f"{layer}.attn_output.weight")

    def feed_forward(self, x, layer):
        gate = self.project(x, f"{layer}.ffn_gate.weight")
        up = self.project(x, f"{layer}.ffn_up.weight")
        return self.project(gate / (1 + np.exp(-gate)) * up, f"{layer}.ffn_down.weight")

    def logits(self, ids):
        """Logits `[len(ids), vocab]`."""
        x = self.weights["token_embd.weight"][ids]
        for i in range(self.meta["llama.block_count"]):
            layer = f"blk.{i}"
            x = x + self.attention(self.norm(x, f"{layer}.attn_norm.weight"), layer)
            x = x + self.feed_forward(self.norm(x, f"{layer}.ffn_norm.weight"), layer)
        head = self.weights.get("output.weight", self.weights["token_embd.weight"])
        return self.norm(x, "output_norm.weight") @ head.T


def total_nats(model, ids):
    """Loss of `ids`, each scored once: windows of a context begin with the begin token, and their second half counts."""
    half, begin, total = model.context // 2, model.meta["tokenizer.ggml.bos_token_id"], 0.0
    for first in range(0, len(ids), half):
        before = [begin] + ids[max(0, first - half + 1) : first]
        scored = ids[first : first + half]
        logits = model.logits(before + scored[:-1])[-len(scored) :]
        top = logits.max(-1)
        norms = top + np.log(np.exp(logits - top[:, None]).sum(-1))
        total += (norms - logits[np.arange(len(scored)), scored]).sum()
    return total


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("model")
    parser.add_argument("text")
    parser.add_argument("--characters", type=int)
    args = parser.parse_args()
    with open(args.text, encoding="utf-8", newline="") as file:
        text = file.read()
    text = text[len(text) * 9 // 10 :][: args.characters]
    model = Model(args.model)
    tokenizer = model.tokenizer()
    ids = tokenizer.encode(text).ids
    assert tokenizer.decode(ids) == text
    print(f"{total_nats(model, ids) / len(text):.4f} nats a character; {len(text)} characters, {len(ids)} tokens")


if __name__ == "__main__":
    main()
