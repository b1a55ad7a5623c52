"""How fast texts become vectors beside llama.cpp, on the CPU.

usage: python benches/compare_embeddings.py [--threads N] [--rounds N] [--texts N] [--tokens N,N...] [--rows N] [--mean] MODEL.gguf...

Both engines make vectors of the same texts in turns, in passes of up to `--rows` tokens; medians and their ratio are printed, and the least cosine
between the vectors of the two. Needs llama-cpp-python and numpy. Figures mean something only on a machine that does nothing else.
"""
import argparse
import ctypes as C
import os
import statistics
import sys
import time

import numpy as np

from engines import LlamaCpp, Segno, SessionOpts, token_ids


class EmbedOpts(C.Structure):
    _fields_ = [("struct_size", C.c_uint32), ("flags", C.c_uint32), ("pooling", C.c_int32), ("reserved", C.c_uint32), ("rest", C.c_uint64 * 16)]


class SegnoEmbeddings(Segno):
    def open(self, tokens, rows, is_mean):
        opts, self.session = SessionOpts(), C.c_void_p()
        self.lib.segno_session_opts_init(C.byref(opts), C.c_size_t(C.sizeof(opts)))
        opts.max_seqs, opts.max_prefill, opts.kv_tokens = max(rows // tokens, 1), rows, max(rows, tokens) + 64 * max(rows // tokens, 1)
        self.check(self.lib.segno_session_create(self.model, C.byref(opts), C.byref(self.session), C.byref(self.err)))
        self.opts = EmbedOpts()
        self.lib.segno_embed_opts_init(C.byref(self.opts), C.c_size_t(C.sizeof(self.opts)))
        if is_mean:
            self.opts.pooling = 2

    def take(self, texts):
        ids = [token for text in texts for token in text]
        self.tokens, self.lengths = (C.c_int32 * len(ids))(*ids), (C.c_size_t * len(texts))(*map(len, texts))
        dims = self.call(None, 0)
        self.out = np.empty((len(texts), dims), np.float32)

    def call(self, out, cap):
        dims = C.c_size_t()
        self.check(self.lib.segno_embed(self.session, self.tokens, self.lengths, C.c_size_t(len(self.lengths)), C.byref(self.opts), out,
                                        C.c_size_t(cap), C.byref(dims), C.byref(self.err)))
        return dims.value

    def embed(self):
        self.call(self.out.ctypes.data_as(C.POINTER(C.c_float)), self.out.size)
        return self.out


class LlamaCppEmbeddings(LlamaCpp):
    def open(self, tokens, rows, is_mean):
        self.rows, self.most = rows, max(rows // tokens, 1)
        params = self.lib.llama_context_default_params()
        params.n_ctx, params.n_seq_max, params.n_batch, params.n_ubatch = tokens * self.most, self.most, rows, rows
        params.n_threads = params.n_threads_batch = self.threads
        params.embeddings = True
        if is_mean:
            params.pooling_type = self.lib.LLAMA_POOLING_TYPE_MEAN
        self.ctx = self.lib.llama_init_from_model(self.model, params)
        if not self.ctx:
            sys.exit("llama.cpp cannot make a context")
        self.memory = self.lib.llama_get_memory(self.ctx)
        self.dims = self.lib.llama_model_n_embd(self.model)

    def take(self, texts):
        """Fills the batches of all passes, which is not measured."""
        self.batches = []
        for start in range(0, len(texts), self.most):
            batch, row = self.lib.llama_batch_init(self.rows, 0, 1), 0
            for seq, text in enumerate(texts[start:start + self.most]):
                for position, token in enumerate(text):
                    batch.token[row], batch.pos[row], batch.n_seq_id[row], batch.logits[row] = token, position, 1, True
                    batch.seq_id[row][0] = seq
                    row += 1
            batch.n_tokens = row
            self.batches.append((batch, seq + 1))

    def embed(self):
        return np.concatenate([self.embed_pass(*batch) for batch in self.batches])

    def embed_pass(self, batch, texts):
        if self.memory:
            self.lib.llama_memory_clear(self.memory, True)
        if self.lib.llama_decode(self.ctx, batch) != 0:
            sys.exit("llama_decode failed")
        vectors = np.stack([np.ctypeslib.as_array(self.lib.llama_get_embeddings_seq(self.ctx, seq), (self.dims,)) for seq in range(texts)])
        return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)

    def close_session(self):
        for batch, _ in self.batches:
            self.lib.llama_batch_free(batch)
        self.lib.llama_free(self.ctx)


def compare(path, options):
    segno, llama = SegnoEmbeddings(path, options.threads), LlamaCppEmbeddings(path, options.threads)
    for tokens in options.tokens:
        texts = [token_ids(tokens, 7 * index) for index in range(options.texts)]
        for engine in (segno, llama):
            engine.open(tokens, options.rows, options.mean)
            engine.take(texts)
        seconds = {segno: [], llama: []}
        vectors = {}
        for turn in range(options.rounds + 1):
            for engine in (segno, llama):
                start = time.perf_counter()
                vectors[engine] = engine.embed()
                # The first turn warms up.
                seconds[engine] += [time.perf_counter() - start] * (turn > 0)
        ours, theirs = (statistics.median(seconds[engine]) for engine in (segno, llama))
        ratio = statistics.median(b / a for a, b in zip(seconds[segno], seconds[llama]))
        cosine = float((vectors[segno] * vectors[llama]).sum(1).min())
        print(f"{os.path.basename(path)}: {options.texts} texts of {tokens} tokens: {options.texts / ours:.1f} texts/s, "
              f"llama.cpp {options.texts / theirs:.1f}: {ratio:.2f} times, cosine {cosine:.5f}", flush=True)
        segno.close_session()
        llama.close_session()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("models", nargs="+")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--texts", type=int, default=16)
    parser.add_argument("--rows", type=int, default=512)
    parser.add_argument("--tokens", type=lambda text: [int(part) for part in text.split(",")], default=[32, 128, 512])
    parser.add_argument("--mean", action="store_true", help="pool by the mean, for models that do not say how they are pooled")
    options = parser.parse_args()
    print(LlamaCpp.describe())
    for path in options.models:
        compare(path, options)


main()
