"""Writes src/quant/grids/packed.rs: the grids of the i-quants, taken from the `gguf` package.

Usage: python tests/golden/make_grids.py   (needs gguf 0.19 and numpy)
"""

from pathlib import Path

import gguf.quants as quants
import numpy as np

OUT = Path(__file__).resolve().parents[2] / "src" / "quant" / "grids" / "packed.rs"
HEADER = """//! Packed grids of the i-quants. Written by `tests/golden/make_grids.py`; do not edit.
//!
//! An entry holds the level numbers of its values, value 0 in the lowest bits: 8 numbers of 2 bits in hexadecimal,
//! or 4 numbers of 3 bits in octal. [`super`] gives the levels and unpacks.
"""
GRIDS = [
    # name, source class, how a number is written
    ("IQ1", quants.IQ1_S, "0x{:04x}"),
    ("IQ2_XXS", quants.IQ2_XXS, "0x{:04x}"),
    ("IQ2_XS", quants.IQ2_XS, "0x{:04x}"),
    ("IQ2_S", quants.IQ2_S, "0x{:04x}"),
    ("IQ3_XXS", quants.IQ3_XXS, "0o{:04o}"),
    ("IQ3_S", quants.IQ3_S, "0o{:04o}"),
]
PER_LINE = 14


def packed(source):
    """Entries of a grid as integers made of level numbers."""
    source.init_grid()
    entries = source.grid.reshape(source.grid_shape)
    levels = np.searchsorted(source.grid_map, entries)
    bits = 2 if len(source.grid_map) == 3 else 3
    return (levels << (bits * np.arange(entries.shape[1]))).sum(axis=1)


def table(name, source, style):
    """One constant of the file."""
    numbers = [style.format(entry) for entry in packed(source)]
    lines = [numbers[i : i + PER_LINE] for i in range(0, len(numbers), PER_LINE)]
    body = "".join("    " + ", ".join(line) + ",\n" for line in lines)
    doc = f"/// {len(numbers)} entries of {source.grid_shape[1]} values."
    return f"\n{doc}\n#[rustfmt::skip]\npub(super) const {name}: [u16; {len(numbers)}] = [\n{body}];\n"


OUT.write_text(HEADER + "".join(table(*grid) for grid in GRIDS))
