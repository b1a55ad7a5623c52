"""Segno and llama.cpp behind one small interface, for `compare_llamacpp.py`: load a model, open a session, evaluate prompts, take steps.

Sequences are numbered from 0 to `seqs - 1`. Nothing is imported that the measured engine does not need, so that the memory of the process is
the engine's.
"""
import ctypes as C
import os
import sys
import threading
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
LIBRARY = os.environ.get("SEGNO_LIBRARY", os.path.join(ROOT, "target/release/libsegno.so"))


def read_bandwidth(threads, size=1 << 28, passes=6):
    """GB/s that threads read together: the best of several passes of the C library's comparison of equal halves of memory that no cache holds."""
    libc = C.CDLL(None)
    buffer = (C.c_char * size)()
    C.memset(buffer, 1, size)
    share = size // threads

    def seconds():
        halves = [(C.byref(buffer, i * share), C.byref(buffer, i * share + share // 2), C.c_size_t(share // 2)) for i in range(threads)]
        parts = [threading.Thread(target=libc.memcmp, args=half) for half in halves]
        start = time.perf_counter()
        for part in parts:
            part.start()
        for part in parts:
            part.join()
        return time.perf_counter() - start
    return share * threads / min(seconds() for _ in range(passes)) / 1e9


def token_ids(count, first=0):
    return [((first + i) * 37) % 1000 + 5 for i in range(count)]


class CtxOpts(C.Structure):
    _fields_ = [("struct_size", C.c_uint32), ("device", C.c_int32), ("device_index", C.c_int32), ("n_threads", C.c_uint32),
                ("precision", C.c_int32), ("flags", C.c_uint32), ("log", C.c_void_p), ("log_user", C.c_void_p)]


class SessionOpts(C.Structure):
    _fields_ = [("struct_size", C.c_uint32), ("max_seqs", C.c_uint32), ("kv_tokens", C.c_uint64), ("max_prefill", C.c_uint32),
                ("kv_type", C.c_int32)]


class SamplerOpts(C.Structure):
    """The beginning of the struct, and room for the rest, which keeps its defaults."""
    _fields_ = [("struct_size", C.c_uint32), ("flags", C.c_uint32), ("temperature", C.c_float), ("rest", C.c_uint64 * 32)]


class Memory(C.Structure):
    _fields_ = [("struct_size", C.c_uint32), ("reserved", C.c_uint32), ("host_weights", C.c_uint64), ("host_kv", C.c_uint64),
                ("host_arena", C.c_uint64)]


class Segno:
    """The C API."""

    CPU, PRECISE, KV_F32, NO_AVX512, IGNORE_EOG = 1, 1, 1, 1, 1

    def __init__(self, path, threads, library=LIBRARY, precise=False, no_avx512=False):
        self.lib = C.CDLL(library)
        self.lib.segno_error_message.restype = C.c_char_p
        self.err, self.precise = C.c_void_p(), precise
        opts = CtxOpts()
        self.lib.segno_ctx_opts_init(C.byref(opts), C.c_size_t(C.sizeof(opts)))
        opts.device, opts.n_threads, opts.precision = self.CPU, threads, self.PRECISE if precise else 0
        opts.flags = self.NO_AVX512 if no_avx512 else 0
        ctx, self.model = C.c_void_p(), C.c_void_p()
        self.check(self.lib.segno_ctx_create(C.c_uint32(0), C.byref(opts), C.byref(ctx), C.byref(self.err)))
        self.check(self.lib.segno_model_load(ctx, path.encode(), None, C.byref(self.model), C.byref(self.err)))

    def check(self, status):
        if status < 0:
            sys.exit(self.lib.segno_error_message(self.err).decode())
        return status

    def open_session(self, seqs, tokens):
        """Room for `tokens` tokens in all."""
        opts, session = SessionOpts(), C.c_void_p()
        self.lib.segno_session_opts_init(C.byref(opts), C.c_size_t(C.sizeof(opts)))
        opts.kv_tokens, opts.max_seqs, opts.kv_type = tokens, seqs, self.KV_F32 if self.precise else 0
        self.check(self.lib.segno_session_create(self.model, C.byref(opts), C.byref(session), C.byref(self.err)))
        self.session, self.seqs = session, [C.c_int32() for _ in range(seqs)]
        sampler = SamplerOpts()
        self.lib.segno_sampler_opts_init(C.byref(sampler), C.c_size_t(C.sizeof(sampler)))
        sampler.temperature, sampler.flags = 0.0, self.IGNORE_EOG
        for seq in self.seqs:
            self.check(self.lib.segno_seq_open(session, C.byref(sampler), C.byref(seq), C.byref(self.err)))

    def close_session(self):
        self.lib.segno_session_free(self.session)

    def prompt(self, index, tokens):
        """Evaluates tokens at the end of a sequence."""
        array = (C.c_int32 * len(tokens))(*tokens)
        self.check(self.lib.segno_seq_prefill(self.session, self.seqs[index], array, C.c_size_t(len(tokens)), C.byref(self.err)))

    def steps(self, count, batch):
        """`count` steps of the first `batch` sequences, tokens chosen greedily. The first token comes from the prompt's logits."""
        seqs = (C.c_int32 * batch)(*(seq.value for seq in self.seqs[:batch]))
        tokens, statuses = (C.c_int32 * batch)(), (C.c_int32 * batch)()
        for _ in range(count):
            self.check(self.lib.segno_decode_batch(self.session, seqs, C.c_size_t(batch), tokens, statuses, C.byref(self.err)))

    def settle(self, batch):
        """Takes the step that only chooses a token, the first one after a prompt."""
        self.steps(1, batch)

    def truncate(self, index, length):
        self.check(self.lib.segno_seq_truncate(self.session, self.seqs[index], C.c_size_t(length), C.byref(self.err)))

    def logits(self):
        """Of the last token of sequence 0."""
        import numpy as np
        seq, count = self.seqs[0], C.c_size_t()
        self.check(self.lib.segno_seq_logits(self.session, seq, None, C.c_size_t(0), C.byref(count), C.byref(self.err)))
        row = np.empty(count.value, np.float32)
        buf = row.ctypes.data_as(C.POINTER(C.c_float))
        self.check(self.lib.segno_seq_logits(self.session, seq, buf, count, C.byref(count), C.byref(self.err)))
        return row

    def kv_bytes(self):
        memory = Memory()
        self.check(self.lib.segno_session_memory(self.session, C.byref(memory), C.c_size_t(C.sizeof(memory)), C.byref(self.err)))
        return memory.host_kv


class LlamaCpp:
    """llama-cpp-python's low-level bindings."""

    MAX_BATCH = 512

    def __init__(self, path, threads):
        import llama_cpp
        self.lib, self.threads = llama_cpp, threads
        llama_cpp.llama_backend_init()
        self.silent = llama_cpp.llama_log_callback(lambda level, text, user: None)
        llama_cpp.llama_log_set(self.silent, C.c_void_p(0))
        params = llama_cpp.llama_model_default_params()
        params.n_gpu_layers = 0
        self.model = llama_cpp.llama_model_load_from_file(path.encode(), params)
        if not self.model:
            sys.exit(f"llama.cpp cannot load {path}")
        self.vocab = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(self.model))

    @staticmethod
    def describe():
        """Version, and what the library was built for."""
        import llama_cpp
        return f"llama-cpp-python {llama_cpp.__version__}: {llama_cpp.llama_print_system_info().decode().strip(' |')}"

    def open_session(self, seqs, tokens):
        params = self.lib.llama_context_default_params()
        # Every sequence has a stream of its own, of an equal share of the tokens.
        params.n_ctx, params.n_seq_max, params.n_batch, params.n_ubatch = tokens, seqs, self.MAX_BATCH, self.MAX_BATCH
        params.n_threads = params.n_threads_batch = self.threads
        self.ctx = self.lib.llama_init_from_model(self.model, params)
        if not self.ctx:
            sys.exit("llama.cpp cannot make a context")
        self.memory = self.lib.llama_get_memory(self.ctx)
        self.batch = self.lib.llama_batch_init(self.MAX_BATCH, 0, 1)
        self.lengths = [0] * seqs

    def close_session(self):
        self.lib.llama_batch_free(self.batch)
        self.lib.llama_free(self.ctx)

    def decode(self, rows):
        """`rows`: sequence, token, whether its logits are wanted."""
        batch = self.batch
        batch.n_tokens = len(rows)
        for i, (seq, token, wanted) in enumerate(rows):
            batch.token[i], batch.pos[i], batch.n_seq_id[i], batch.logits[i] = token, self.lengths[seq], 1, wanted
            batch.seq_id[i][0] = seq
            self.lengths[seq] += 1
        if self.lib.llama_decode(self.ctx, batch) != 0:
            sys.exit("llama_decode failed")
        self.lib.llama_synchronize(self.ctx)

    def prompt(self, index, tokens):
        for start in range(0, len(tokens), self.MAX_BATCH):
            part = tokens[start:start + self.MAX_BATCH]
            self.decode([(index, token, start + i + 1 == len(tokens)) for i, token in enumerate(part)])

    def steps(self, count, batch):
        """`count` steps of the first `batch` sequences, with given tokens: what choosing them costs is not counted."""
        for step in range(count):
            self.decode([(seq, 100 + step, True) for seq in range(batch)])

    def settle(self, batch):
        """A prompt leaves nothing to do."""

    def truncate(self, index, length):
        self.lib.llama_memory_seq_rm(self.memory, index, length, -1)
        self.lengths[index] = length

    def logits(self):
        import numpy as np
        return np.ctypeslib.as_array(self.lib.llama_get_logits_ith(self.ctx, -1), (self.vocab,)).copy()
