#!/usr/bin/env python3
"""Segno beside llama.cpp on the same GGUF files, interleaved, in one process a measurement.

    compare_llamacpp.py speed MODEL.gguf...     every row of the table in benches/results/cpu.md, medians, ratios, and whether the bar is met
    compare_llamacpp.py logits MODEL.gguf...    how far the engines' logits are from each other and from Segno's precise mode

Needs `pip install llama-cpp-python numpy` and `make` (SEGNO_LIBRARY names a library other than target/release/libsegno.so). The engines take turns, each turn a fresh process, so that
neither profits from a quiet moment; the figures still mean something only on a machine that does nothing else. A model's storage type is what
its name ends with (`NAME.TYPE.gguf`): Q4_K_M and Q8_0 get all rows, other types a prompt and a decode row (`--rows` chooses). Beside a row of
one sequence that decodes stands what each engine read of the file, as a share of what the same threads read from memory right after.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys
import time

from engines import LIBRARY, ROOT, LlamaCpp, Segno, read_bandwidth, token_ids

POSITIONS = 32
PROMPTS = 3
STEPS, BATCH_STEPS = 32, 16
SHORT, PROMPT, LONG = 128, 512, 2048
FIRST_PROMPT = 16
MEMORY_ALLOWANCE = 150e6
BANDWIDTH = "read bandwidth, GB/s"
# Rows of which a step reads the weights once, and little else.
LIMITED_BY_MEMORY = "decode", "decode, context 2048"

# Least ratio asked for, by row: for Q4_K_M, for Q8_0, for other types.
BARS = {
    "prompt 128": (1.45, 2.3, 1.0), "prompt 512": (1.45, 2.3, 1.0), "decode": (1.1, 1.1, 1.0), "decode, context 2048": (1.0, 1.0, 1.0),
    "decode, batch 4": (1.8, 1.8, 1.0), "decode, batch 8": (2.0, 2.0, 1.0), "load to first token, s": (1.5, 1.5, 1.0),
}
NO_AVX512_BARS = {"prompt 128": (1.2,) * 3, "prompt 512": (1.2,) * 3, "decode": (1.0,) * 3}


def bar(row, storage, no_avx512):
    bars = (NO_AVX512_BARS if no_avx512 else BARS).get(row)
    return bars and bars[{"Q4_K_M": 0, "Q8_0": 1}.get(storage, 2)]


def storage_type(path):
    return os.path.basename(path).removesuffix(".gguf").rpartition(".")[2]


def seconds(action, *args):
    start = time.perf_counter()
    action(*args)
    return time.perf_counter() - start


def measure_decode(engine):
    """The steps of `measure_short` alone."""
    return {"decode": measure_short(engine, prompts=1)["decode"]}


def measure_short(engine, prompts=PROMPTS):
    """A prompt of 128 tokens, and steps of the one sequence behind it."""
    engine.open_session(1, SHORT + STEPS + FIRST_PROMPT)
    engine.prompt(0, token_ids(FIRST_PROMPT))
    engine.steps(2, 1)
    times = []
    for _ in range(prompts):
        engine.truncate(0, 0)
        times.append(seconds(engine.prompt, 0, token_ids(SHORT)))
    engine.settle(1)
    decode = seconds(engine.steps, STEPS, 1)
    engine.close_session()
    return {"prompt 128": SHORT / statistics.median(times), "decode": STEPS / decode}


def measure_long(engine):
    """A prompt of 512 tokens, which then grows to 2048, and steps behind that."""
    engine.open_session(1, LONG + STEPS)
    prompt = seconds(engine.prompt, 0, token_ids(PROMPT))
    engine.prompt(0, token_ids(LONG - PROMPT, PROMPT))
    engine.settle(1)
    decode = seconds(engine.steps, BATCH_STEPS, 1)
    engine.close_session()
    return {"prompt 512": PROMPT / prompt, "decode, context 2048": BATCH_STEPS / decode}


def measure_batches(engine):
    """Steps of 4 and 8 sequences, each behind a prompt of its own of 128 tokens; tokens a second of all together."""
    engine.open_session(8, 8 * (SHORT + STEPS))
    rates = {}
    for first, batch in (0, 4), (4, 8):
        for index in range(first, batch):
            engine.prompt(index, token_ids(SHORT, 100 * index))
        engine.settle(batch)
        rates[f"decode, batch {batch}"] = batch * BATCH_STEPS / seconds(engine.steps, BATCH_STEPS, batch)
        for index in range(batch):
            engine.truncate(index, SHORT)
    engine.close_session()
    return rates


def measure_first(engine):
    """The rest of the way from a loaded model to its first token."""
    engine.open_session(1, LONG)
    engine.prompt(0, token_ids(FIRST_PROMPT))
    engine.steps(1, 1)


def measure_memory(engine, path):
    """Most memory of the process, pages of the mapped file included, and how much of that is neither file nor cache. In bytes."""
    engine.open_session(1, LONG)
    engine.prompt(0, token_ids(LONG - STEPS))
    engine.steps(STEPS, 1)
    with open("/proc/self/status") as status:
        peak = next(int(line.split()[1]) for line in status if line.startswith("VmHWM")) * 1024
    return {"peak": peak, "file": os.path.getsize(path), "kv": engine.kv_bytes() if isinstance(engine, Segno) else 0}


def run_once(o):
    """What a child process does: one kind of measurement of one engine."""
    kind, name, path = o.args
    start = time.perf_counter()
    if name == "segno":
        engine = Segno(path, o.threads, library=o.library, no_avx512=o.no_avx512)
    else:
        # The import is no part of loading a model.
        import llama_cpp  # noqa: F401
        start = time.perf_counter()
        engine = LlamaCpp(path, o.threads)
    if kind == "first":
        measure_first(engine)
        return {"load to first token, s": time.perf_counter() - start}
    if kind == "memory":
        return measure_memory(engine, path)
    rates = {"decode": measure_decode, "short": measure_short, "long": measure_long, "batches": measure_batches}[kind](engine)
    if any(row in rates for row in LIMITED_BY_MEMORY):
        rates[BANDWIDTH] = read_bandwidth(o.threads)
    return rates


def child(o, kind, engine, path):
    python = o.peer_python if engine == "llama" else sys.executable
    command = [python, os.path.abspath(__file__), "once", kind, engine, path, "--threads", str(o.threads), "--library", o.library]
    command += ["--no-avx512"] if o.no_avx512 else []
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}\n{done.stdout}{done.stderr}")
    return json.loads(done.stdout.strip().splitlines()[-1])


def kinds(o, path):
    if o.rows != "auto":
        return o.rows.split(",")
    full = storage_type(path) in ("Q4_K_M", "Q8_0")
    return ["short"] if not full else ["first", "short"] if o.no_avx512 else ["first", "short", "long", "batches"]


def compare_speed(o):
    print_conditions(o)
    print("| model | | Segno | llama.cpp | ratio | bar | | of the memory's |\n|---|---|---|---|---|---|---|---|", flush=True)
    missed = 0
    for path in o.args:
        runs = {"segno": [], "llama": []}
        for kind in kinds(o, path):
            for turn in range(o.runs):
                # Who begins changes, so that neither always runs on the warmer machine.
                for engine in list(runs)[::1 if turn % 2 == 0 else -1]:
                    runs[engine].append(child(o, kind, engine, path))
        missed += print_rows(o, path, runs)
    for path in o.args:
        if o.rows == "auto" and storage_type(path) == "Q4_K_M" and not o.no_avx512:
            missed += print_memory(o, path)
    print(f"\nload average at the end: {os.getloadavg()[0]:.1f}")
    return missed


def print_conditions(o):
    def output(*command):
        return subprocess.run(command, cwd=ROOT, capture_output=True, text=True).stdout.strip()
    with open("/proc/cpuinfo") as info:
        lines = [line.partition(":")[2].strip() for line in info if line.startswith(("model name", "flags"))]
    extensions = [name for name in ("avx2", "avx_vnni", "avx512f", "avx512_vnni") if name in lines[1].split()]
    commit = output("git", "rev-parse", "--short", "HEAD") + (" with changes" if output("git", "status", "--porcelain") else "")
    print(f"Machine: {lines[0]}, {os.cpu_count()} processors ({', '.join(extensions)}); load average at the start: {os.getloadavg()[0]:.1f}")
    print(f"Segno at {commit}{', without AVX-512' if o.no_avx512 else ''}; {describe_peer(o)}")
    print(f"{o.threads} threads, medians of {o.runs}, tokens/s unless said otherwise\n")


def describe_peer(o):
    command = [o.peer_python, "-c", "import engines; print(engines.LlamaCpp.describe())"]
    return subprocess.run(command, cwd=os.path.join(ROOT, "benches"), capture_output=True, text=True, check=True).stdout.strip()


def print_rows(o, path, runs):
    """The rows of one model; how many bars are missed."""
    missed, storage = 0, storage_type(path)
    for row in dict.fromkeys(row for run in runs["segno"] for row in run if row != BANDWIDTH):
        ours, theirs = (statistics.median(run[row] for run in runs[engine] if row in run) for engine in ("segno", "llama"))
        is_time = row.endswith(", s")
        ratio, least = theirs / ours if is_time else ours / theirs, bar(row, storage, o.no_avx512)
        missed += bool(least and ratio < least)
        verdict = "" if not least else "met" if ratio >= least else "missed"
        figure = "{:.3f}" if is_time else "{:.1f}"
        name = os.path.basename(path).removesuffix(".gguf")
        print(f"| {name} | {row} | {figure.format(ours)} | {figure.format(theirs)} | {ratio:.2f} | {least or ''} | {verdict} "
              f"| {shares(row, path, runs)} |", flush=True)
    return missed


def shares(row, path, runs):
    """What each engine read of the file, beside the read bandwidth of the same moments."""
    if row not in LIMITED_BY_MEMORY:
        return ""
    def of(engine):
        return [run for run in runs[engine] if row in run]
    ours, theirs = (statistics.median(run[row] * os.path.getsize(path) / 1e9 / run[BANDWIDTH] for run in of(engine)) for engine in ("segno", "llama"))
    bandwidth = [run[BANDWIDTH] for engine in runs for run in of(engine)]
    return f"{min(bandwidth):.0f} to {max(bandwidth):.0f} GB/s: {ours:.0%}, {theirs:.0%}"


def print_memory(o, path):
    ours, theirs = (child(o, "memory", engine, path) for engine in ("segno", "llama"))
    limit = ours["file"] + ours["kv"] + MEMORY_ALLOWANCE
    met = ours["peak"] <= limit
    name = os.path.basename(path).removesuffix(".gguf")
    print(f"| {name} | peak memory, {LONG} tokens, MB | {ours['peak'] / 1e6:.0f} | {theirs['peak'] / 1e6:.0f} | {theirs['peak'] / ours['peak']:.2f} "
          f"| at most {limit / 1e6:.0f} | {'met' if met else 'missed'} | |", flush=True)
    return not met


def logits_of(engine, tokens):
    """Logits after every token, one token a call."""
    import numpy as np
    engine.open_session(1, 2 * len(tokens))
    rows = []
    for token in tokens:
        engine.prompt(0, [token])
        rows.append(engine.logits())
    return np.stack(rows)


def distance(rows, reference):
    """Relative L2 of each row, and the mean Kullback-Leibler divergence."""
    import numpy as np
    rows, reference = rows.astype(np.float64), reference.astype(np.float64)
    l2 = np.linalg.norm(rows - reference, axis=1) / np.linalg.norm(reference, axis=1)

    def log_softmax(x):
        x = x - x.max(axis=1, keepdims=True)
        return x - np.log(np.exp(x).sum(axis=1, keepdims=True))
    p, q = log_softmax(reference), log_softmax(rows)
    return l2, (np.exp(p) * (p - q)).sum(axis=1).mean()


def lost_margin(rows, reference):
    """Largest gap between the two best logits of the reference among the rows whose best token differs."""
    import numpy as np
    best, top = reference.argmax(axis=1), np.sort(reference, axis=1)
    lost = rows.argmax(axis=1) != best
    return float((top[:, -1] - top[:, -2])[lost].max(initial=0.0))


def compare_logits(o):
    import numpy as np
    print(f"{'model':32} {'default/precise':>17} {'KL':>8} {'lost':>6} {'llama/precise':>15} {'KL':>8} {'default/llama':>15}")
    tokens = token_ids(POSITIONS)
    for path in o.args:
        precise = logits_of(Segno(path, o.threads, library=o.library, precise=True), tokens)
        default = logits_of(Segno(path, o.threads, library=o.library, no_avx512=o.no_avx512), tokens)
        llama = logits_of(LlamaCpp(path, o.threads), tokens)
        ours, our_kl = distance(default, precise)
        theirs, their_kl = distance(llama, precise)
        between, _ = distance(default, llama)
        print(f"{os.path.basename(path):32} {ours.max():8.4f} {np.median(ours):8.4f} {our_kl:8.1e} {lost_margin(default, precise):6.3f} "
              f"{theirs.max():7.4f} {np.median(theirs):7.4f} {their_kl:8.1e} {between.max():7.4f} {np.median(between):7.4f}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["speed", "logits", "once"])
    parser.add_argument("args", nargs="+")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--rows", default="auto", help="some of first,short,decode,long,batches; short has a prompt too")
    parser.add_argument("--no-avx512", action="store_true", help="Segno without 512-bit instructions; other bars")
    parser.add_argument("--peer-python", default=sys.executable, help="a Python that has another build of llama-cpp-python")
    parser.add_argument("--library", default=LIBRARY, help="libsegno.so")
    o = parser.parse_args()
    if o.what == "once":
        print(json.dumps(run_once(o)))
    elif o.what == "logits":
        compare_logits(o)
    else:
        sys.exit(1 if compare_speed(o) else 0)


if __name__ == "__main__":
    main()
