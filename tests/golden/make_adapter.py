"""Writes examples/models/shakespeare-lora.gguf: an adapter of random numbers for the bundled model, in the layout of
llama.cpp's convert_lora_to_gguf.py. It was trained on nothing: tests and examples need a file that changes what the model says.

    python3 tests/golden/make_adapter.py
"""

import random
import re
import struct
from pathlib import Path

MODELS = Path(__file__).resolve().parents[2] / "examples/models"
RANK, ALPHA, SPREAD = 4, 8.0, 0.1
TEXT, F32 = 8, 6
HALF = 1  # ggml's number of F16


def shapes(model: bytes) -> dict[str, tuple[int, int]]:
    """Inputs and outputs of the projections of queries and values, from the tensor directory."""
    found = {}
    for match in re.finditer(rb"blk\.\d+\.attn_[qv]\.weight", model):
        rank, inputs, outputs = struct.unpack_from("<IQQ", model, match.end())
        assert rank == 2
        found[match.group().decode()] = (inputs, outputs)
    return found


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value)) + value.encode()


def main() -> None:
    model = (MODELS / "shakespeare.gguf").read_bytes()
    numbers = random.Random(1)
    entries = [text("general.architecture") + struct.pack("<I", TEXT) + text("llama")]
    entries += [text("general.type") + struct.pack("<I", TEXT) + text("adapter")]
    entries += [text("adapter.type") + struct.pack("<I", TEXT) + text("lora")]
    entries += [text("adapter.lora.alpha") + struct.pack("<If", F32, ALPHA)]
    directory, data = b"", b""
    tensors = 0
    for name, (inputs, outputs) in shapes(model).items():
        for end, dims, spread in (("lora_a", (inputs, RANK), inputs**-0.5), ("lora_b", (RANK, outputs), SPREAD * RANK**-0.5)):
            data += bytes(-len(data) % 32)
            directory += text(f"{name}.{end}") + struct.pack("<IQQIQ", 2, *dims, HALF, len(data))
            data += struct.pack(f"<{dims[0] * dims[1]}e", *(numbers.gauss(0, spread) for _ in range(dims[0] * dims[1])))
            tensors += 1
    header = b"GGUF" + struct.pack("<IQQ", 3, tensors, len(entries)) + b"".join(entries) + directory
    header += bytes(-len(header) % 32)
    (MODELS / "shakespeare-lora.gguf").write_bytes(header + data)


if __name__ == "__main__":
    main()
