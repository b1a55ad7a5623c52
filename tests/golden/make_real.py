"""Writes tests/golden/real.json: what llama.cpp makes of the models that `make models` fetches.

For each model: ids of texts, rendered conversations (with Jinja2, as the template is Jinja), the logarithms of the probabilities of the
likeliest tokens after each of the first tokens of a text, and greedy continuations.

Usage: python3 tests/golden/make_real.py   (after `make models`; needs llama-cpp-python 0.3.36, jinja2, numpy)
"""

import json
import random
from pathlib import Path

import llama_cpp
import numpy as np
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

ROOT = Path(__file__).resolve().parents[2]
MODELS = ["smollm2-135m-instruct", "gemma-3-270m"]
TEXTS, POSITIONS, LIKELIEST, CONTINUED = 300, 200, 16, 48
# Ranges of characters that texts are drawn from, beside sentences of the documents.
SCRIPTS = [(0x20, 0x7E), (0xA0, 0x17F), (0x370, 0x3FF), (0x400, 0x4FF), (0x5D0, 0x5EA), (0x620, 0x64A), (0x900, 0x97F), (0xE00, 0xE5B),
           (0x3040, 0x30FF), (0x4E00, 0x4FFF), (0xAC00, 0xAD00), (0x1F600, 0x1F64F)]
CHATS = [
    [{"role": "user", "content": "Hello!"}],
    [{"role": "system", "content": "Answer in one word."}, {"role": "user", "content": "What is the capital of France?"}],
    [{"role": "user", "content": "One\ntwo"}, {"role": "assistant", "content": "Three."}, {"role": "user", "content": "  And four? "}],
]
PROMPTS = ["The capital of France is", "Once upon a time", "def fibonacci(n):\n", "Water boils at", "Die Hauptstadt von Italien ist"]


def texts():
    """Sentences of the documents, and random strings."""
    rng = random.Random(0)
    lines = [line.strip() for name in ("README.md", "SECURITY.md") for line in (ROOT / name).read_text().splitlines()]
    found = [line[:200] for line in lines if len(line) > 20][: TEXTS // 2]
    while len(found) < TEXTS:
        low, high = rng.choice(SCRIPTS)
        pick = lambda: chr(rng.randint(low, high)) if rng.random() < 0.8 else rng.choice(" \n\t  .,'9")
        found.append("".join(pick() for _ in range(rng.randint(1, 40))))
    return found


def rendered(llama):
    source = llama.metadata.get("tokenizer.chat_template")
    if source is None:
        return None
    env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
    piece = lambda token: llama._model.token_get_text(token) if token >= 0 else ""
    names = {"bos_token": piece(llama.token_bos()), "eos_token": piece(llama.token_eos()), "add_generation_prompt": True}
    return [env.from_string(source).render(messages=chat, **names) for chat in CHATS]


def likeliest(llama, ids):
    """For each position the likeliest next tokens, and the natural logarithms of their probabilities."""
    llama.reset()
    llama.eval(ids)
    rows = np.array(llama.scores[: len(ids)], np.float64)
    top = rows.max(axis=1, keepdims=True)
    rows -= top + np.log(np.exp(rows - top).sum(axis=1, keepdims=True))
    order = np.argsort(-rows, axis=1)[:, :LIKELIEST]
    return [[[int(token), round(float(row[token]), 4)] for token in best] for row, best in zip(rows, order)]


def continuations(llama):
    made = []
    for prompt in PROMPTS:
        ids = llama.tokenize(prompt.encode(), add_bos=True, special=False)
        llama.reset()
        made.append([token for token, _ in zip(llama.generate(ids, temp=0.0, repeat_penalty=1.0), range(CONTINUED))])
    return made


def case(name, found):
    llama = llama_cpp.Llama(str(ROOT / f".models/{name}.gguf"), n_ctx=512, logits_all=True, verbose=False, n_threads=2)
    long = llama.tokenize("\n".join(found[:20]).encode(), add_bos=True, special=False)[:POSITIONS]
    return {
        "name": name,
        "ids": [llama.tokenize(text.encode(), add_bos=False, special=False) for text in found],
        "chats": rendered(llama),
        "tokens": long,
        "likeliest": likeliest(llama, long),
        "continuations": continuations(llama),
    }


def main():
    found = texts()
    cases = [case(name, found) for name in MODELS]
    out = {"made_with": f"llama-cpp-python {llama_cpp.__version__}", "texts": found, "conversations": CHATS, "prompts": PROMPTS, "cases": cases}
    path = ROOT / "tests/golden/real.json"
    path.write_text(json.dumps(out, ensure_ascii=False, separators=(",", ":")) + "\n")
    print(f"{path.stat().st_size} bytes")


if __name__ == "__main__":
    main()
