#!/usr/bin/env python3
"""Trains the demo model and writes it as `shakespeare.gguf`.

    python3 train_shakespeare.py TEXT [--out shakespeare.gguf] [--select] [--set NAME=VALUE ...]

TEXT is tinyshakespeare.txt. The first 90 % of its characters train, the last 10 % are the validation text, which decides
nothing: the recipe was chosen on the split of `--select`, which trains on the first 80 % and measures on the next 10 %.

Needs torch 2.11, tokenizers 0.23, gguf 0.19, numpy 2, and one CUDA GPU (a CPU works and takes days). README.md beside this
file says what comes out; `measure_loss.py` reads the file back without any of this code.
"""

import argparse
import dataclasses
import json
import math
import sys
import time

import gguf
import torch
import torch.nn.functional as F
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import nn

END_OF_TEXT = "<|endoftext|>"
ROPE_BASE = 10000.0
NORM_EPS = 1e-5
MODEL_URL = "https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt"


@dataclasses.dataclass
class Recipe:
    """Everything that decides the result. `--set` changes a field."""

    vocab: int = 1024
    context: int = 512
    hidden: int = 256
    layers: int = 6
    heads: int = 8
    kv_heads: int = 4
    feed_forward: int = 672
    batch: int = 32
    rate: float = 1e-3
    weight_decay: float = 3.0
    # Share of the windows that BPE-dropout (Provilkov et al., 2020) cuts into tokens, and its rate.
    noisy: float = 0.75
    noise: float = 0.1
    noisy_copies: int = 32
    # Models of the same shape, whose averaged predictions the written model learns (Hinton et al., 2015).
    teachers: int = 6
    teacher_dropout: float = 0.3
    teacher_steps: int = 1500
    dropout: float = 0.1
    steps: int = 2400
    seed: int = 1

    def of_teacher(self, index):
        """The recipe of teacher `index`."""
        seed = self.seed + 1 + index
        return dataclasses.replace(self, dropout=self.teacher_dropout, steps=self.teacher_steps, seed=seed)


# Model: the Llama architecture, rotating neighbouring elements, as files of the family `llama` expect.


def rotate(x, cos, sin):
    even, odd = x[..., 0::2], x[..., 1::2]
    return torch.stack((even * cos - odd * sin, even * sin + odd * cos), -1).flatten(-2)


class Attention(nn.Module):
    def __init__(self, r):
        super().__init__()
        self.heads, self.kv_heads, self.dim, self.dropout = r.heads, r.kv_heads, r.hidden // r.heads, r.dropout
        self.q = nn.Linear(r.hidden, r.hidden, bias=False)
        self.k = nn.Linear(r.hidden, r.kv_heads * self.dim, bias=False)
        self.v = nn.Linear(r.hidden, r.kv_heads * self.dim, bias=False)
        self.output = nn.Linear(r.hidden, r.hidden, bias=False)

    def forward(self, x, cos, sin):
        split = lambda y, heads: y.unflatten(-1, (heads, self.dim)).transpose(1, 2)
        share = lambda y: y.repeat_interleave(self.heads // self.kv_heads, dim=1)
        q = rotate(split(self.q(x), self.heads), cos, sin)
        k = rotate(split(self.k(x), self.kv_heads), cos, sin)
        v = split(self.v(x), self.kv_heads)
        dropout = self.dropout if self.training else 0.0
        y = F.scaled_dot_product_attention(q, share(k), share(v), is_causal=True, dropout_p=dropout)
        return self.output(y.transpose(1, 2).flatten(-2))


class FeedForward(nn.Module):
    def __init__(self, r):
        super().__init__()
        self.gate = nn.Linear(r.hidden, r.feed_forward, bias=False)
        self.up = nn.Linear(r.hidden, r.feed_forward, bias=False)
        self.down = nn.Linear(r.feed_forward, r.hidden, bias=False)

    def forward(self, x):
        return self.down(F.silu(self.gate(x)) * self.up(x))


class Layer(nn.Module):
    def __init__(self, r):
        super().__init__()
        self.attention_norm, self.attention = nn.RMSNorm(r.hidden, eps=NORM_EPS), Attention(r)
        self.feed_forward_norm, self.feed_forward = nn.RMSNorm(r.hidden, eps=NORM_EPS), FeedForward(r)
        self.dropout = nn.Dropout(r.dropout)

    def forward(self, x, cos, sin):
        x = x + self.dropout(self.attention(self.attention_norm(x), cos, sin))
        return x + self.dropout(self.feed_forward(self.feed_forward_norm(x)))


class Transformer(nn.Module):
    """Token ids `[batch, length]` to logits `[batch, length, vocab]`; the embedding is also the output head."""

    def __init__(self, r):
        super().__init__()
        self.embedding = nn.Embedding(r.vocab, r.hidden)
        self.dropout = nn.Dropout(r.dropout)
        self.layers = nn.ModuleList(Layer(r) for _ in range(r.layers))
        self.norm = nn.RMSNorm(r.hidden, eps=NORM_EPS)
        dim = r.hidden // r.heads
        frequencies = ROPE_BASE ** (-torch.arange(0, dim, 2, dtype=torch.float64) / dim)
        angles = torch.arange(r.context, dtype=torch.float64)[:, None] * frequencies
        self.register_buffer("cos", angles.cos().float(), persistent=False)
        self.register_buffer("sin", angles.sin().float(), persistent=False)
        for name, weight in self.named_parameters():
            if weight.ndim == 2:
                depth = math.sqrt(2 * r.layers) if name.endswith(("output.weight", "down.weight")) else 1.0
                nn.init.normal_(weight, std=0.02 / depth)

    def forward(self, ids):
        cos, sin = self.cos[: ids.shape[1]], self.sin[: ids.shape[1]]
        x = self.dropout(self.embedding(ids))
        for layer in self.layers:
            x = layer(x, cos, sin)
        return F.linear(self.norm(x), self.embedding.weight)


# Text: a byte-level BPE vocabulary, and windows of tokens to train on.


def train_tokenizer(text, vocab):
    """Byte-level BPE with GPT-2's splitting; every byte has a token, so any text can be encoded."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(
        vocab_size=vocab, special_tokens=[END_OF_TEXT], initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator([text], trainer)
    return tokenizer


def encode_noisy(tokenizer, text, rate, copies):
    """Token ids of `copies` random segmentations of `text`."""
    noisy = Tokenizer.from_str(tokenizer.to_str())
    noisy.model.dropout = rate
    return [encoding.ids for _ in range(0, copies, 8) for encoding in noisy.encode_batch([text] * min(8, copies))]


class Windows:
    """Windows of `length` tokens from encodings of one text. Half begin at a random speech, half at a random line."""

    def __init__(self, encodings, newline, length, device):
        lines, speeches, begin = [], [], 0
        for ids in map(torch.tensor, encodings):
            after = (ids[:-length] == newline).nonzero().flatten() + 1
            lines.append(begin + after)
            speeches.append(begin + after[ids[after - 2] == newline])
            begin += len(ids)
        self.ids = torch.cat([torch.tensor(ids) for ids in encodings]).to(device)
        self.starts = [torch.cat(lines).to(device), torch.cat(speeches).to(device)]
        self.offsets = torch.arange(length, device=device)

    def draw(self, count):
        halves = (count // 2, count - count // 2)
        picks = [s[torch.randint(len(s), (n,), device=s.device)] for s, n in zip(self.starts, halves)]
        return self.ids[torch.cat(picks)[:, None] + self.offsets]


class Batches:
    """Training batches. Plain windows begin with the end-of-text token and noisy ones do not, so a model tells them apart."""

    def __init__(self, tokenizer, text, r, device):
        newline = tokenizer.token_to_id("Ċ")
        self.noisy_rows = round(r.batch * r.noisy)
        self.plain_rows = r.batch - self.noisy_rows
        self.begin = torch.full((self.plain_rows, 1), tokenizer.token_to_id(END_OF_TEXT), device=device)
        self.plain = Windows([tokenizer.encode(text).ids], newline, r.context, device)
        if self.noisy_rows:
            encodings = encode_noisy(tokenizer, text, r.noise, r.noisy_copies)
            self.noisy = Windows(encodings, newline, r.context + 1, device)

    def draw(self):
        """Inputs and targets, each `[batch, context]`."""
        rows = torch.cat((self.begin, self.plain.draw(self.plain_rows)), 1)
        if self.noisy_rows:
            rows = torch.cat((rows, self.noisy.draw(self.noisy_rows)))
        return rows[:, :-1], rows[:, 1:]


# Training and measuring.


def optimizer_of(model, r):
    matrices = [w for w in model.parameters() if w.ndim == 2]
    vectors = [w for w in model.parameters() if w.ndim == 1]
    groups = [{"params": matrices, "weight_decay": r.weight_decay}, {"params": vectors, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=r.rate, betas=(0.9, 0.98), fused=True)


def schedule(step, steps):
    """Share of the learning rate: a linear rise over 3 % of the steps, then a cosine to zero."""
    warm = max(1, steps * 3 // 100)
    if step < warm:
        return (step + 1) / warm
    return 0.5 + 0.5 * math.cos(math.pi * (step - warm) / (steps - warm))


def mean_prediction(teachers, ids):
    """Average of the teachers' probabilities, one row a token."""
    with torch.no_grad():
        sums = sum(F.softmax(teacher(ids).float(), -1) for teacher in teachers)
        return (sums / len(teachers)).flatten(0, 1)


def fast(model):
    """The model, compiled where that pays."""
    return torch.compile(model) if next(model.parameters()).is_cuda else model


def train(r, batches, device, report, teachers=()):
    """A model trained on the text, or on the predictions of `teachers`. `report(model)` gives a figure to print."""
    torch.manual_seed(r.seed)
    model = Transformer(r).to(device)
    run, optimizer = fast(model), optimizer_of(model, r)
    began, every = time.time(), max(1, r.steps // 4)
    for step in range(r.steps):
        for group in optimizer.param_groups:
            group["lr"] = r.rate * schedule(step, r.steps)
        inputs, targets = batches.draw()
        with torch.autocast(device, torch.bfloat16):
            wanted = mean_prediction(teachers, inputs) if teachers else targets.flatten()
            loss = F.cross_entropy(run(inputs).float().flatten(0, 1), wanted)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if (step + 1) % every == 0:
            print(f"seed {r.seed} step {step + 1} train {loss.item():.3f} a token, {report(model)}, "
                  f"{time.time() - began:.0f} s", file=sys.stderr, flush=True)
    return model.eval()


def scored_windows(ids, begin, context):
    """Rows of `context` tokens and their targets that together score each of `ids` once.

    A row holds `begin`, tokens that only give context, and up to `context / 2` scored tokens. Targets that do not count are
    -100; padding follows the scored tokens, so it changes nothing.
    """
    stride, rows, targets = context // 2, [], []
    for first in range(0, len(ids), stride):
        scored = ids[first : first + stride]
        before = [begin] + ids[max(0, first - stride + 1) : first]
        padding = context - len(before) - len(scored)
        rows.append(before + scored + [begin] * padding)
        targets.append([-100] * (len(before) - 1) + scored + [-100] * (padding + 1))
    return torch.tensor(rows), torch.tensor(targets)


@torch.no_grad()
def nats_per_character(model, tokenizer, text, context, device):
    """Loss over the whole of `text`, by its number of characters."""
    training, total = model.training, 0.0
    model.eval()
    windows = scored_windows(tokenizer.encode(text).ids, tokenizer.token_to_id(END_OF_TEXT), context)
    for rows, targets in zip(*(part.to(device).split(32) for part in windows)):
        total += F.cross_entropy(model(rows).double().flatten(0, 1), targets.flatten(), reduction="sum").item()
    model.train(training)
    return total / len(text)


@torch.no_grad()
def sample(model, tokenizer, prompt, count, context, device, temperature=0.8):
    """`prompt` and `count` sampled tokens, as text."""
    ids = [tokenizer.token_to_id(END_OF_TEXT)] + tokenizer.encode(prompt).ids
    for _ in range(count):
        logits = model(torch.tensor([ids[-context:]], device=device))[0, -1].float()
        ids.append(torch.multinomial(F.softmax(logits / temperature, -1), 1).item())
    return tokenizer.decode(ids)


# Writing.


def tensors_of(model):
    """GGUF name and weights of every tensor, in file order."""
    yield "token_embd.weight", model.embedding.weight
    for i, layer in enumerate(model.layers):
        parts = {
            "attn_norm": layer.attention_norm, "attn_q": layer.attention.q, "attn_k": layer.attention.k,
            "attn_v": layer.attention.v, "attn_output": layer.attention.output, "ffn_norm": layer.feed_forward_norm,
            "ffn_gate": layer.feed_forward.gate, "ffn_up": layer.feed_forward.up, "ffn_down": layer.feed_forward.down}
        for name, module in parts.items():
            yield f"blk.{i}.{name}.weight", module.weight
    yield "output_norm.weight", model.norm.weight


def add_metadata(writer, r):
    writer.add_name("Segno Shakespeare")
    writer.add_description("A demo model trained on tinyshakespeare (public domain)")
    writer.add_source_url(MODEL_URL)
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_Q8_0)
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
    writer.add_vocab_size(r.vocab)
    writer.add_context_length(r.context)
    writer.add_embedding_length(r.hidden)
    writer.add_block_count(r.layers)
    writer.add_feed_forward_length(r.feed_forward)
    writer.add_head_count(r.heads)
    writer.add_head_count_kv(r.kv_heads)
    writer.add_rope_dimension_count(r.hidden // r.heads)
    writer.add_rope_freq_base(ROPE_BASE)
    writer.add_layer_norm_rms_eps(NORM_EPS)


def add_tokenizer(writer, tokenizer):
    merges = json.loads(tokenizer.to_str())["model"]["merges"]
    tokens = [tokenizer.id_to_token(i) for i in range(tokenizer.get_vocab_size())]
    control, normal = gguf.TokenType.CONTROL, gguf.TokenType.NORMAL
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types([control if token == END_OF_TEXT else normal for token in tokens])
    writer.add_token_merges([" ".join(pair) for pair in merges])
    writer.add_bos_token_id(tokenizer.token_to_id(END_OF_TEXT))
    writer.add_eos_token_id(tokenizer.token_to_id(END_OF_TEXT))
    writer.add_add_bos_token(True)
    writer.add_add_eos_token(False)


@torch.no_grad()
def write(path, model, tokenizer, r):
    """Writes matrices as Q8_0 and vectors as F32, and leaves the rounded weights in `model`."""
    writer = gguf.GGUFWriter(path, "llama")
    add_metadata(writer, r)
    add_tokenizer(writer, tokenizer)
    for name, weight in tensors_of(model):
        values = weight.detach().float().cpu().numpy()
        if weight.ndim == 1:
            writer.add_tensor(name, values)
            continue
        kind = gguf.GGMLQuantizationType.Q8_0
        rounded = gguf.quants.quantize(values, kind)
        writer.add_tensor(name, rounded, raw_dtype=kind)
        weight.copy_(torch.from_numpy(gguf.quants.dequantize(rounded, kind)))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def options():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("text")
    parser.add_argument("--out", default="shakespeare.gguf")
    parser.add_argument("--select", action="store_true", help="train on the first 80 %%, measure on the next 10 %%")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="change a field of the recipe")
    args = parser.parse_args()
    kinds = {field.name: field.type for field in dataclasses.fields(Recipe)}
    changes = dict(change.split("=", 1) for change in args.set)
    recipe = Recipe(**{name: kinds[name](value) for name, value in changes.items()})
    return args, recipe


def split(text, select):
    """The part to train on, and the part to measure."""
    ends = (8, 9) if select else (9, 10)
    first, last = (len(text) * tenths // 10 for tenths in ends)
    return text[:first], text[first:last]


def main():
    args, r = options()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.set_float32_matmul_precision("high")
    with open(args.text, encoding="utf-8", newline="") as file:
        training, held_out = split(file.read(), args.select)
    tokenizer = train_tokenizer(training, r.vocab)
    batches = Batches(tokenizer, training, r, device)
    measure = lambda model: nats_per_character(model, tokenizer, held_out, r.context, device)
    report = lambda model: f"held out {measure(model):.4f} a character"
    teachers = [fast(train(r.of_teacher(i), batches, device, report)) for i in range(r.teachers)]
    model = train(r, batches, device, report, teachers)
    before = measure(model)
    write(args.out, model, tokenizer, r)
    print(f"{sum(w.numel() for w in model.parameters())} parameters; nats a character: {before:.4f} as trained, "
          f"{measure(model):.4f} as written; {len(held_out)} characters")
    for prompt in ("ROMEO:\n", "First Citizen:\n", ""):
        print("-" * 40 + "\n" + sample(model, tokenizer, prompt, 300, r.context, device))


if __name__ == "__main__":
    main()
