#!/usr/bin/env python3
"""Segno beside llama.cpp on the same GGUF files, in one process a measurement, interleaved.

    compare_llamacpp.py logits MODEL.gguf...    how far the engines' logits are from each other and from Segno's precise mode
    compare_llamacpp.py speed MODEL.gguf...     prompt and decode speed, medians, and the ratio

Needs `pip install llama-cpp-python numpy` and `make` (target/release/libsegno.so). Speed figures mean something only on a machine that
does nothing else: each engine runs in a process of its own, in turn.
"""
import argparse
import ctypes as C
import json
import os
import statistics
import subprocess
import sys
import time

import numpy as np

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
POSITIONS = 32


class CtxOpts(C.Structure):
    _fields_ = [("struct_size", C.c_uint32), ("device", C.c_int32), ("device_index", C.c_int32), ("n_threads", C.c_uint32),
                ("precision", C.c_int32), ("flags", C.c_uint32), ("log", C.c_void_p), ("log_user", C.c_void_p)]


class SessionOpts(C.Structure):
    _fields_ = [("struct_size", C.c_uint32), ("max_seqs", C.c_uint32), ("kv_tokens", C.c_uint64), ("max_prefill", C.c_uint32),
                ("kv_type", C.c_int32)]


def token_ids(count):
    return [(i * 37) % 1000 + 5 for i in range(count)]


class Segno:
    """One model, one session, through the C API."""

    CPU, PRECISE, KV_F32, NO_AVX512 = 1, 1, 1, 1

    def __init__(self, path, threads, precise=False, no_avx512=False, seqs=8):
        self.lib = C.CDLL(os.path.join(ROOT, "target/release/libsegno.so"))
        self.lib.segno_error_message.restype = C.c_char_p
        self.err = C.c_void_p()
        opts = CtxOpts()
        self.lib.segno_ctx_opts_init(C.byref(opts), C.c_size_t(C.sizeof(opts)))
        opts.device, opts.n_threads, opts.precision = self.CPU, threads, self.PRECISE if precise else 0
        opts.flags = self.NO_AVX512 if no_avx512 else 0
        ctx, model, session = C.c_void_p(), C.c_void_p(), C.c_void_p()
        self.check(self.lib.segno_ctx_create(C.c_uint32(0), C.byref(opts), C.byref(ctx), C.byref(self.err)))
        self.check(self.lib.segno_model_load(ctx, path.encode(), None, C.byref(model), C.byref(self.err)))
        opts = SessionOpts()
        self.lib.segno_session_opts_init(C.byref(opts), C.c_size_t(C.sizeof(opts)))
        opts.kv_tokens, opts.max_seqs, opts.kv_type = 4096, seqs, self.KV_F32 if precise else 0
        self.check(self.lib.segno_session_create(model, C.byref(opts), C.byref(session), C.byref(self.err)))
        self.session, self.seqs = session, []

    def check(self, status):
        if status < 0:
            sys.exit(self.lib.segno_error_message(self.err).decode())
        return status

    def open(self, tokens):
        seq, array = C.c_int32(), (C.c_int32 * len(tokens))(*tokens)
        self.check(self.lib.segno_seq_open(self.session, None, C.byref(seq), C.byref(self.err)))
        self.check(self.lib.segno_seq_prefill(self.session, seq, array, C.c_size_t(len(tokens)), C.byref(self.err)))
        return seq

    def append(self, seq, token):
        array = (C.c_int32 * 1)(token)
        self.check(self.lib.segno_seq_prefill(self.session, seq, array, C.c_size_t(1), C.byref(self.err)))

    def close(self, seq):
        self.check(self.lib.segno_seq_close(self.session, seq, C.byref(self.err)))

    def logits(self, seq):
        count = C.c_size_t()
        self.check(self.lib.segno_seq_logits(self.session, seq, None, C.c_size_t(0), C.byref(count), C.byref(self.err)))
        row = np.empty(count.value, np.float32)
        buf = row.ctypes.data_as(C.POINTER(C.c_float))
        self.check(self.lib.segno_seq_logits(self.session, seq, buf, count, C.byref(count), C.byref(self.err)))
        return row

    def logits_of(self, tokens):
        """Logits after every token, one token a call."""
        seq, rows = self.open(tokens[:1]), []
        rows.append(self.logits(seq))
        for token in tokens[1:]:
            self.append(seq, token)
            rows.append(self.logits(seq))
        return np.stack(rows)

    def measure(self, prompt, decode):
        start = time.perf_counter()
        seq = self.open(token_ids(prompt))
        middle = time.perf_counter()
        for i in range(decode):
            self.append(seq, 100 + i)
        end = time.perf_counter()
        self.close(seq)
        return prompt / (middle - start), decode / (end - middle)


class LlamaCpp:
    """The same through llama-cpp-python's low-level bindings."""

    def __init__(self, path, threads):
        import llama_cpp
        self.lib = llama_cpp
        self.lib.llama_backend_init()
        self.silent = llama_cpp.llama_log_callback(lambda level, text, user: None)
        llama_cpp.llama_log_set(self.silent, C.c_void_p(0))
        params = llama_cpp.llama_model_default_params()
        params.n_gpu_layers = 0
        self.model = llama_cpp.llama_model_load_from_file(path.encode(), params)
        params = llama_cpp.llama_context_default_params()
        params.n_ctx, params.n_batch, params.n_ubatch = 4096, 512, 512
        params.n_threads = params.n_threads_batch = threads
        self.ctx = llama_cpp.llama_init_from_model(self.model, params)
        self.vocab = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(self.model))

    def run(self, tokens):
        array = (self.lib.llama_token * len(tokens))(*tokens)
        if self.lib.llama_decode(self.ctx, self.lib.llama_batch_get_one(array, len(tokens))) != 0:
            sys.exit("llama_decode failed")
        self.lib.llama_synchronize(self.ctx)

    def clear(self):
        self.lib.llama_memory_clear(self.lib.llama_get_memory(self.ctx), True)

    def logits_of(self, tokens):
        self.clear()
        rows = []
        for token in tokens:
            self.run([token])
            rows.append(np.ctypeslib.as_array(self.lib.llama_get_logits_ith(self.ctx, -1), (self.vocab,)).copy())
        return np.stack(rows)

    def measure(self, prompt, decode):
        self.clear()
        start = time.perf_counter()
        self.run(token_ids(prompt))
        middle = time.perf_counter()
        for i in range(decode):
            self.run([100 + i])
        return prompt / (middle - start), decode / (time.perf_counter() - middle)


def distance(rows, reference):
    """Relative L2 of each row, and the mean Kullback-Leibler divergence."""
    rows, reference = rows.astype(np.float64), reference.astype(np.float64)
    l2 = np.linalg.norm(rows - reference, axis=1) / np.linalg.norm(reference, axis=1)

    def log_softmax(x):
        x = x - x.max(axis=1, keepdims=True)
        return x - np.log(np.exp(x).sum(axis=1, keepdims=True))
    p, q = log_softmax(reference), log_softmax(rows)
    return l2, (np.exp(p) * (p - q)).sum(axis=1).mean()


def lost_margin(rows, reference):
    """Largest gap between the two best logits of the reference among the rows whose best token differs."""
    best, top = reference.argmax(axis=1), np.sort(reference, axis=1)
    lost = rows.argmax(axis=1) != best
    return float((top[:, -1] - top[:, -2])[lost].max(initial=0.0))


def compare_logits(models, threads):
    print(f"{'model':32} {'default/precise':>17} {'KL':>8} {'lost':>6} {'llama/precise':>15} {'KL':>8} {'default/llama':>15}")
    tokens = token_ids(POSITIONS)
    for path in models:
        precise = Segno(path, threads, precise=True).logits_of(tokens)
        default = Segno(path, threads).logits_of(tokens)
        llama = LlamaCpp(path, threads).logits_of(tokens)
        ours, our_kl = distance(default, precise)
        theirs, their_kl = distance(llama, precise)
        between, _ = distance(default, llama)
        print(f"{os.path.basename(path):32} {ours.max():8.4f} {np.median(ours):8.4f} {our_kl:8.1e} {lost_margin(default, precise):6.3f} "
              f"{theirs.max():7.4f} {np.median(theirs):7.4f} {their_kl:8.1e} {between.max():7.4f} {np.median(between):7.4f}", flush=True)


def measure_once(engine, path, threads, prompt, decode, no_avx512):
    """Runs one engine in a process of its own; prompt and decode tokens a second."""
    command = [sys.executable, os.path.abspath(__file__), "once", engine, path, "--threads", str(threads), "--prompt", str(prompt),
               "--decode", str(decode)] + (["--no-avx512"] if no_avx512 else [])
    out = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return json.loads(out.strip().splitlines()[-1])


def compare_speed(models, o):
    print(f"{'model':32} {'prompt':>8} {'llama':>8} {'ratio':>6} {'decode':>8} {'llama':>8} {'ratio':>6}   tokens/s, medians of {o.runs}")
    for path in models:
        runs = {"segno": [], "llama": []}
        for _ in range(o.runs):
            for engine in runs:
                runs[engine].append(measure_once(engine, path, o.threads, o.prompt, o.decode, o.no_avx512))
        columns = []
        for kind in (0, 1):
            ours, theirs = (statistics.median(run[kind] for run in runs[engine]) for engine in runs)
            columns.append(f"{ours:8.1f} {theirs:8.1f} {ours / theirs:6.2f}")
        print(f"{os.path.basename(path):32} {' '.join(columns)}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["logits", "speed", "once"])
    parser.add_argument("args", nargs="+")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--prompt", type=int, default=128)
    parser.add_argument("--decode", type=int, default=32)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--no-avx512", action="store_true")
    o = parser.parse_args()
    if o.what == "logits":
        compare_logits(o.args, o.threads)
    elif o.what == "speed":
        compare_speed(o.args, o)
    else:
        engine, path = o.args
        runner = Segno(path, o.threads, no_avx512=o.no_avx512) if engine == "segno" else LlamaCpp(path, o.threads)
        runner.measure(16, 2)
        print(json.dumps(runner.measure(o.prompt, o.decode)))


if __name__ == "__main__":
    main()
