"""Checks with llama.cpp that saved models are what they were: each source (a GGUF file or a folder) is loaded and written by segno_model_save, llama.cpp
loads the result, and both engines must make the same tokens of texts and go on with the same greedy tokens.

Usage: python3 benches/check_saved.py SOURCE...   (needs llama-cpp-python 0.3.36; `SEGNO_LIBRARY` names another library than that of
target/release). Prints a line for each text, and fails where tokens differ.
"""
import ctypes as C
import os
import sys
import tempfile

from engines import LlamaCpp, Segno

TEXTS = ["Once upon a time, there was a little girl.", "  The 3 numbers are:\n\t12345, 3.14 and 1,000.", "It's a caf\u00e9, isn't it? \u4f60\u597d"]
TOKENS = 24


def fetch(call, kind):
    """Calls twice: for the size, then for the elements."""
    size = C.c_size_t()
    call(None, C.c_size_t(0), C.byref(size))
    buffer = (kind * max(size.value, 1))()
    call(buffer, size, C.byref(size))
    return list(buffer[:size.value])


def segno_tokens(engine, text):
    raw = text.encode()
    return fetch(lambda buf, cap, count: engine.check_size(engine.lib.segno_tokenize(
        engine.model, raw, C.c_size_t(len(raw)), C.c_uint32(1), buf, cap, count, C.byref(engine.err))), C.c_int32)


def llama_tokens(engine, text):
    raw = text.encode()
    buffer = (C.c_int32 * 4096)()
    vocab = engine.lib.llama_model_get_vocab(engine.model)
    count = engine.lib.llama_tokenize(vocab, raw, len(raw), buffer, len(buffer), True, False)
    return list(buffer[:count])


def greedy(engine, tokens):
    """Tokens of largest logits, each evaluated in turn."""
    engine.open_session(1, 512)
    engine.prompt(0, tokens)
    out = []
    for _ in range(TOKENS):
        out.append(int(engine.logits().argmax()))
        engine.prompt(0, out[-1:])
    engine.close_session()
    return out


class Saving(Segno):
    """The C API, with a call that saves."""

    def check_size(self, status):
        too_small = -3
        return status if status == too_small else self.check(status)

    def save(self, path):
        self.check(self.lib.segno_model_save(self.model, path.encode(), None, C.byref(self.err)))


def main():
    threads, differing = os.cpu_count(), 0
    for source in sys.argv[1:]:
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "saved.gguf")
            Saving(source, threads).save(path)
            ours, theirs = Saving(path, threads), LlamaCpp(path, threads)
            for text in TEXTS:
                tokens = segno_tokens(ours, text)
                same_tokens = tokens == llama_tokens(theirs, text)
                same_greedy = greedy(ours, tokens) == greedy(theirs, tokens)
                differing += not (same_tokens and same_greedy)
                print(f"{source}: {text!r}: {len(tokens)} tokens {'equal' if same_tokens else 'DIFFER'}, "
                      f"{TOKENS} greedy tokens {'equal' if same_greedy else 'DIFFER'}", flush=True)
    sys.exit(differing > 0)


if __name__ == "__main__":
    main()
