"""Writes tests/golden/mxfp4: a small gpt-oss whose experts have 4-bit floats (MXFP4), as OpenAI's folders hold it, as a GGUF file, and its logits.

folder/ has config.json and model.safetensors with experts as blocks and scales, model.gguf the same values in ggml's blocks, logits.f32 what
transformers computes of the values in float32 after each token of the prompt of tests/golden/hf/index.json. That the folder means these values is
checked with transformers' own reader of such blocks.

Usage: python3 tests/golden/make_mxfp4.py   (with what make_hf_models.py needs)
"""

import json
from pathlib import Path

import gguf
import make_hf_models as hf
import numpy as np
import torch
from safetensors.torch import load_file, save_file
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

OUT = Path(__file__).resolve().parent / "mxfp4"
BLOCK = 32
LEVELS = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], np.float32)
EXPERTS = {"gate_up_proj": ("ffn_gate_exps.weight", "ffn_up_exps.weight"), "down_proj": ("ffn_down_exps.weight",)}
CASE = hf.Case(
    "gptoss-mxfp4", "", head_dim=16, hidden=64, feed_forward=96, theta=150000.0,
    scaling={"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64, "beta_fast": 1.5, "beta_slow": 0.1, "truncate": False},
    settings={"num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 9},
    keys={"expert_count": 4, "expert_used_count": 2, "attention.sliding_window": 9})


def coded(values):
    """Codes of the nearest levels and the exponents of scales; rows are multiples of 32 long."""
    blocks = values.reshape(*values.shape[:-1], -1, BLOCK)
    scales = np.floor(np.log2(np.abs(blocks).max(-1))).astype(np.int32) - 2
    parts = blocks / np.exp2(scales)[..., None]
    codes = np.abs(parts[..., None] - LEVELS).argmin(-1).astype(np.uint8)
    # Both zeros occur.
    return np.where((codes == 0) & (parts < 0), 8, codes).astype(np.uint8), (scales + 127).astype(np.uint8)


def decoded(codes, scales):
    values = LEVELS[codes] * np.exp2(scales.astype(np.float32) - 127)[..., None]
    return values.reshape(*values.shape[:-2], -1)


def in_ggml(codes, scales):
    """Blocks of a scale and 16 bytes, whose low bits are the first half of the values."""
    low, high = np.split(codes, 2, axis=-1)
    blocks = np.concatenate([scales[..., None], low | high << 4], axis=-1)
    return blocks.reshape(*blocks.shape[:-2], -1)


def as_published(codes):
    """Two neighbours in a byte."""
    return np.ascontiguousarray(codes[..., 0::2] | codes[..., 1::2] << 4)


def quantize(model):
    """Lets experts have values of 4 bits; returns codes and scales, outputs before inputs, by the names of parameters."""
    experts = {}
    for name, weight in model.named_parameters():
        if name.split(".")[-1] in EXPERTS:
            codes, scales = experts[name] = coded(weight.detach().numpy().swapaxes(1, 2))
            with torch.no_grad():
                weight.copy_(torch.from_numpy(decoded(codes, scales).swapaxes(1, 2).copy()))
    return experts


def write_folder(model, experts):
    folder = OUT / "folder"
    hf.save_folder(CASE, model, folder)
    tensors = load_file(folder / "model.safetensors")
    for name, (codes, scales) in experts.items():
        blocks, scales = torch.from_numpy(as_published(codes)), torch.from_numpy(np.ascontiguousarray(scales))
        assert torch.equal(convert_moe_packed_tensors(blocks, scales, dtype=torch.float32), tensors.pop(name))
        tensors |= {f"{name}_blocks": blocks, f"{name}_scales": scales}
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    # As OpenAI writes the same.
    rope = config.pop("rope_parameters")
    config |= {"rope_theta": rope.pop("rope_theta"), "rope_scaling": rope, "experts_per_token": 2, "swiglu_limit": 7.0, "initial_context_length": 64,
               "quantization_config": {"modules_to_not_convert": ["model.layers.*.self_attn", "lm_head"], "quant_method": "mxfp4"}}
    (folder / "config.json").write_text(json.dumps(config, indent=1) + "\n")


def write_file(model, experts):
    raw = {}
    for name, (codes, scales) in experts.items():
        layer, names = name.split(".")[2], EXPERTS[name.split(".")[-1]]
        for first, part in enumerate(names):
            raw[f"blk.{layer}.{part}"] = in_ggml(codes[:, first::len(names)], scales[:, first::len(names)])
    writer = hf.writer_of(CASE, model, OUT / "model.gguf")
    for name, values in hf.tensors_of(CASE, model):
        if name in raw:
            writer.add_tensor(name, raw[name], raw_dtype=gguf.GGMLQuantizationType.MXFP4)
        else:
            writer.add_tensor(name, values)
    hf.finish(writer)


def main():
    torch.use_deterministic_algorithms(True)
    OUT.mkdir(exist_ok=True)
    prompt = json.loads((hf.OUT / "index.json").read_text())["prompt"][:CASE.tokens]
    model = hf.model_of(CASE, 1)
    experts = quantize(model)
    hf.logits_of(model, prompt).astype("<f4").tofile(OUT / "logits.f32")
    write_file(model, experts)
    write_folder(model, experts)


if __name__ == "__main__":
    main()
