"""Writes tests/golden/quant: random blocks of every storage type, their values, and the unpacked grids.

NAME.raw holds blocks, NAME.f32 their values as little-endian singles, grids.i8 the entries of all grids in the order
of GRIDS. The `gguf` package decodes all types but Q1_0, which is decoded here.

Usage: python tests/golden/make_quant.py   (needs gguf 0.19 and numpy)
"""

from pathlib import Path

import gguf
import gguf.quants as quants
import numpy as np
from gguf import GGMLQuantizationType as T

OUT = Path(__file__).resolve().parent / "quant"
TYPES = (
    "F32 F16 BF16 Q4_0 Q4_1 Q5_0 Q5_1 Q8_0 Q2_K Q3_K Q4_K Q5_K Q6_K IQ1_S IQ1_M IQ2_XXS IQ2_XS IQ2_S "
    "IQ3_XXS IQ3_S IQ4_NL IQ4_XS TQ1_0 TQ2_0 MXFP4 NVFP4 Q1_0"
).split()
GRIDS = [quants.IQ1_S, quants.IQ2_XXS, quants.IQ2_XS, quants.IQ2_S, quants.IQ3_XXS, quants.IQ3_S]
# Byte offsets of the half-precision scales in a block.
HALVES = {
    **dict.fromkeys("Q4_0 Q5_0 Q8_0 IQ1_S IQ2_XXS IQ2_XS IQ2_S IQ3_XXS IQ3_S IQ4_NL IQ4_XS Q1_0".split(), [0]),
    **dict.fromkeys("Q4_1 Q5_1 Q4_K Q5_K".split(), [0, 2]),
    **{"Q2_K": [80, 82], "Q3_K": [108], "Q6_K": [208], "TQ1_0": [52], "TQ2_0": [64]},
}


def random_blocks(rng, name, count):
    """Blocks of random bits, the last with every bit set. Half-precision scales of the others are finite."""
    raw = rng.integers(0, 256, (count, gguf.GGML_QUANT_SIZES[T[name]][1]), np.uint8)
    for at in HALVES.get(name, []):
        raw[:, at : at + 2] = rng.normal(0, 0.1, (count, 1)).astype("<f2").view(np.uint8)
    if name == "IQ1_M":  # The half's top nibble ends the block: clear the highest exponent bit.
        raw[:, -1] &= 0xBF
    if name == "MXFP4":  # The codes of subnormal and of the smallest normal scales.
        raw[:3, 0] = [0, 1, 2]
    if name == "NVFP4":  # Every code of a scale.
        raw[:, :4] = np.arange(256).reshape(64, 4)
    else:
        raw[-1] = 0xFF
    return raw


def values(name, raw):
    """What the blocks mean."""
    if name == "Q1_0":
        d = raw[:, :2].copy().view("<f2").astype(np.float32)
        return np.where(np.unpackbits(raw[:, 2:], axis=1, bitorder="little") == 1, d, -d)
    return quants.dequantize(raw, T[name])


def main():
    OUT.mkdir(exist_ok=True)
    rng = np.random.default_rng(1)
    np.seterr(over="ignore", invalid="ignore")
    for name in TYPES:
        count = 64 if name == "NVFP4" else max(4, 256 // gguf.GGML_QUANT_SIZES[T[name]][0])
        raw = random_blocks(rng, name, count)
        (OUT / f"{name}.raw").write_bytes(raw.tobytes())
        (OUT / f"{name}.f32").write_bytes(values(name, raw).astype("<f4").tobytes())
    for source in GRIDS:
        source.init_grid()
    (OUT / "grids.i8").write_bytes(b"".join(source.grid.astype(np.int8).tobytes() for source in GRIDS))


main()
