"""Writes tests/golden/encode: values, and the blocks that ggml's reference quantization makes of them.

values.f32 holds little-endian singles in rows of 256; NAME.raw the blocks of all rows. The blocks come from ggml-quants.c, as the sdist of
llama-cpp-python 0.3.36 has it in vendor/llama.cpp/ggml, compiled without fused operations. stub.c defines the functions that the file asks
for and these ones never call (ggml_abort, ggml_row_size, ggml_type_name, ggml_type_size):

    cc -O2 -ffp-contract=off -fPIC -shared -Iinclude -Isrc src/ggml-quants.c stub.c -o libggml-quants.so -lm

Usage: python3 tests/golden/make_encode.py libggml-quants.so [ROWS FOLDER]   (needs numpy; with a folder that many rows are written there)
"""

import ctypes
import sys
from pathlib import Path

import numpy as np

OUT = Path(__file__).resolve().parent / "encode"
ROWS = 48
# Bytes of 256 values.
TYPES = {
    "Q8_0": 8 * 34, "Q4_0": 8 * 18, "Q4_1": 8 * 20, "Q5_0": 8 * 22, "Q5_1": 8 * 24, "Q4_K": 144, "Q5_K": 176, "Q6_K": 210}


def draw(rng, rows):
    """Rows as weights are, and odd ones: few values, one large one, all of one sign, of very different sizes, constant, tiny, zero."""
    kinds = [
        lambda: rng.normal(0, 0.02, 256), lambda: rng.standard_t(3, 256) * 0.01, lambda: rng.uniform(-1, 1, 256),
        lambda: rng.choice([-0.5, 0.0, 0.25], 256), lambda: np.where(np.arange(256) == 77, 5.0, rng.normal(0, 0.01, 256)),
        lambda: np.abs(rng.normal(0, 1, 256)), lambda: -np.abs(rng.normal(0, 1, 256)),
        lambda: rng.normal(0, 1, 256) * 10.0 ** rng.integers(-6, 3, 8).repeat(32), lambda: np.full(256, rng.normal()),
        lambda: rng.normal(0, 1e-18, 256), lambda: np.zeros(256), lambda: rng.normal(0.3, 0.05, 256),
        lambda: np.round(rng.normal(0, 20, 256)) / 16, lambda: rng.laplace(0, 0.05, 256)]
    return np.stack([kinds[row % len(kinds)]() for row in range(rows)]).astype("<f4")


def main():
    ggml = ctypes.CDLL(sys.argv[1])
    rows, out = (int(sys.argv[2]), Path(sys.argv[3])) if len(sys.argv) > 2 else (ROWS, OUT)
    out.mkdir(exist_ok=True)
    values = draw(np.random.default_rng(rows), rows)
    values.tofile(out / "values.f32")
    for name, size in TYPES.items():
        blocks = ctypes.create_string_buffer(rows * size)
        quantize = getattr(ggml, f"quantize_row_{name.lower().replace('_k', '_K')}_ref")
        quantize(values.ctypes.data_as(ctypes.c_void_p), blocks, ctypes.c_int64(values.size))
        (out / f"{name}.raw").write_bytes(blocks.raw)


main()
