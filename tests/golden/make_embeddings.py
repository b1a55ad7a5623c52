"""Writes tests/golden/embeddings: small random models that make embeddings, and the vectors that transformers computes with them.

NAME.gguf is a model in F32, named and laid out as llama.cpp's converter does it. NAME.f32 holds little-endian singles: the vectors of all tokens of
the texts of index.json, one text after the other, as the last norm gives them (float32, eager attention), and behind them the vector of each text, as
sentence-transformers has it: pooled as the case says, sent through the dense layers where there are some, divided by its length; of rerankers
the scores of each text. folders/NAME is the same model as transformers and sentence-transformers save it, but for rerankers. For each setting of a case that must matter, the vectors without it are seen to differ.

Usage: python3 tests/golden/make_embeddings.py   (on a CPU; needs torch 2.15.0, transformers 5.17.0, gguf 0.19.0, numpy 2.4.6, safetensors 0.8.0)
"""

import dataclasses
import json
import shutil
from pathlib import Path

import gguf
import make_hf_models as hf
import numpy as np
import torch
import transformers
from safetensors.numpy import save_file

OUT = Path(__file__).resolve().parent / "embeddings"
POOLINGS = {"mean": 1, "first": 2, "last": 3, "rank": 4}
# Words whose logits a reranker compares.
ANSWERS = [17, 4]
LENGTHS = [5, 1, 40, 17, 33]
MOST_BYTES = 2_500_000
# Least distance of a text's vector that a setting must cause, or the case shows nothing.
LEAST_EFFECT = 0.02


@dataclasses.dataclass
class Case:
    """A model: one of those that make logits too, or an encoder."""

    name: str
    pooling: str
    decoder: hf.Case = None
    # Class of an encoder, its settings, and what they are called in the file.
    kind: str = ""
    arch: str = ""
    settings: dict = dataclasses.field(default_factory=dict)
    keys: dict = dataclasses.field(default_factory=dict)
    # Widths of the dense layers behind pooling.
    dense: tuple = ()
    # Classes of a reranker.
    classes: int = 0
    without: tuple = ()
    vocab: int = 131
    hidden: int = 32


SIZES = {"vocab_size": 131, "hidden_size": 32, "num_attention_heads": 4, "intermediate_size": 44, "pad_token_id": 0, "attn_implementation": "eager"}
CASES = [
    Case("qwen3-last", "last", hf.Case("qwen3-last", "", heads=8, head_dim=16, theta=1e6, tied=True, keys={"pooling_type": 3})),
    Case("llama-mean", "mean", hf.Case("llama-mean", "", head_dim=16, tied=True, keys={"pooling_type": 1})),
    Case("embeddinggemma-dense", "mean",
         hf.Case("embeddinggemma-dense", "", head_dim=16, layers=7, tied=True, theta=1e6,
                 settings={"sliding_window": 12, "query_pre_attn_scalar": 16, "use_bidirectional_attention": True},
                 keys={"attention.sliding_window": 12, "pooling_type": 1, "dense_2_feat_in": 32, "dense_2_feat_out": 64,
                       "dense_3_feat_in": 64, "dense_3_feat_out": 24},
                 without=({"sliding_window": 80}, {"use_bidirectional_attention": False})), dense=(64, 24)),
    Case("bert-mean", "mean", kind="Bert", arch="bert",
         settings={**SIZES, "num_hidden_layers": 2, "max_position_embeddings": 64},
         keys={"attention.layer_norm_epsilon": 1e-12}, without=({"hidden_act": "relu"},)),
    Case("bert-first", "first", kind="Bert", arch="bert",
         settings={**SIZES, "num_hidden_layers": 1, "max_position_embeddings": 48, "type_vocab_size": 1, "layer_norm_eps": 1e-5},
         keys={"attention.layer_norm_epsilon": 1e-5}),
    Case("bert-rank", "rank", kind="Roberta", arch="bert", classes=3,
         settings={**SIZES, "num_hidden_layers": 2, "max_position_embeddings": 66, "type_vocab_size": 1, "num_labels": 3, "pad_token_id": 1,
                   "layer_norm_eps": 1e-5},
         keys={"attention.layer_norm_epsilon": 1e-5}),
    Case("qwen3-rank", "rank", hf.Case("qwen3-rank", "", heads=8, head_dim=16, theta=1e6, tied=True, keys={"pooling_type": 4}), classes=2),
    Case("nomic-mean", "mean", kind="NomicBert", arch="nomic-bert",
         settings={**SIZES, "num_hidden_layers": 2, "max_position_embeddings": 256},
         keys={"attention.layer_norm_epsilon": 1e-12, "rope.freq_base": 1000.0}),
    Case("modern-first", "first", kind="ModernBert", arch="modern-bert",
         settings={**SIZES, "num_hidden_layers": 5, "max_position_embeddings": 256, "local_attention": 12, "bos_token_id": 2,
                   "cls_token_id": 2, "eos_token_id": 3, "sep_token_id": 3},
         keys={"attention.layer_norm_epsilon": 1e-5, "attention.sliding_window": 12, "attention.sliding_window_pattern": 3,
               "rope.freq_base": 160000.0, "rope.freq_base_swa": 10000.0},
         without=({"local_attention": 160}, {"rope_parameters": {"full_attention": {"rope_type": "default", "rope_theta": 10000.0}, "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0}}})),
]

BERT_NAMES = {
    "attention.self.query": "attn_q", "attention.self.key": "attn_k", "attention.self.value": "attn_v",
    "attention.output.dense": "attn_output", "attention.output.LayerNorm": "attn_output_norm", "intermediate.dense": "ffn_up",
    "output.dense": "ffn_down", "output.LayerNorm": "layer_output_norm", "post_attention_layernorm": "attn_output_norm",
    "post_mlp_layernorm": "layer_output_norm", "self_attn.o_proj": "attn_output", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down", "attn_norm": "attn_norm", "attn.Wqkv": "attn_qkv", "attn.Wo": "attn_output", "mlp_norm": "ffn_norm",
    "mlp.Wi": "ffn_up", "mlp.Wo": "ffn_down"}
GLOBAL_NAMES = {
    "embeddings.word_embeddings.weight": "token_embd.weight", "embeddings.position_embeddings.weight": "position_embd.weight",
    "embeddings.token_type_embeddings.weight": "token_types.weight", "embeddings.LayerNorm.weight": "token_embd_norm.weight",
    "embeddings.LayerNorm.bias": "token_embd_norm.bias", "embeddings.tok_embeddings.weight": "token_embd.weight",
    "classifier.dense.weight": "cls.weight", "classifier.dense.bias": "cls.bias", "classifier.out_proj.weight": "cls.output.weight",
    "classifier.out_proj.bias": "cls.output.bias", "embeddings.norm.weight": "token_embd_norm.weight", "final_norm.weight": "output_norm.weight"}


def draw(rng, name, shape):
    values = rng.standard_normal(shape).astype(np.float32)
    if "norm" in name.lower() and name.endswith("weight"):
        return 1.0 + 0.3 * values
    if name.endswith("bias"):
        return 0.5 * values
    if "embeddings" in name:
        return 0.7 * values
    gain = 2.0 if any(part in name for part in ("query", "key", "q_proj", "k_proj", "Wqkv")) else 1.0
    return gain / np.sqrt(shape[-1]) * values


def encoder(case, seed, settings):
    config = getattr(transformers, case.kind + "Config")(**settings)
    extra = {"add_pooling_layer": False} if case.kind in ("Bert", "NomicBert") else {}
    model = getattr(transformers, case.kind + ("ForSequenceClassification" if case.classes else "Model"))(config, **extra).float().eval()
    rng = np.random.default_rng(seed)
    with torch.no_grad():
        for name, weight in sorted(model.named_parameters()):
            weight.copy_(torch.from_numpy(draw(rng, name, tuple(weight.shape)).astype(np.float32)))
    return model


def base_model(case, seed):
    """The model without its head, and the same without each of its settings."""
    if case.decoder is None:
        others = [encoder(case, seed, {**case.settings, **settings}) for settings in case.without]
        return encoder(case, seed, case.settings), others
    others = [hf.model_of(dataclasses.replace(case.decoder, settings={**case.decoder.settings, **settings}), seed).model
              for settings in case.decoder.without]
    return hf.model_of(case.decoder, seed).model, others


def tokens_of(model, texts):
    with torch.no_grad():
        return [model(torch.tensor([text])).last_hidden_state[0].float().numpy() for text in texts]


def scores_of(case, seed, texts):
    """What a reranker says of each text."""
    with torch.no_grad():
        if case.decoder is None:
            model = encoder(case, seed, case.settings)
            return np.stack([model(torch.tensor([text])).logits[0].numpy() for text in texts])
        model = hf.model_of(case.decoder, seed)
        logits = [model(torch.tensor([text])).logits[0, -1, ANSWERS].double() for text in texts]
        return torch.stack(logits).softmax(1).float().numpy()


def pooled(case, vectors, dense):
    rows = {"mean": lambda v: v.astype(np.float64).mean(0), "first": lambda v: v[0], "last": lambda v: v[-1]}[case.pooling]
    found = np.stack([rows(v).astype(np.float64) for v in vectors])
    for weight in dense:
        found = found @ weight.T.astype(np.float64)
    return (found / np.linalg.norm(found, axis=1, keepdims=True)).astype(np.float32)


def write_encoder(case, model):
    writer = gguf.GGUFWriter(OUT / f"{case.name}.gguf", case.arch)
    settings = case.settings
    writer.add_name(case.name)
    writer.add_file_type(gguf.LlamaFileType.ALL_F32)
    # Positions of RoBERTa begin behind that of padding.
    skipped = 2 if case.kind == "Roberta" else 0
    writer.add_context_length(settings["max_position_embeddings"] - skipped)
    writer.add_embedding_length(case.hidden)
    writer.add_block_count(settings["num_hidden_layers"])
    writer.add_feed_forward_length(settings["intermediate_size"])
    writer.add_head_count(settings["num_attention_heads"])
    writer.add_causal_attention(False)
    for key, value in {**case.keys, "pooling_type": POOLINGS[case.pooling]}.items():
        (writer.add_float32 if isinstance(value, float) else writer.add_uint32)(f"{case.arch}.{key}", value)
    writer.add_tokenizer_model("no_vocab")
    for name, values in encoder_tensors(model):
        writer.add_tensor(name, values[skipped:] if name == "position_embd.weight" else values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def encoder_tensors(model):
    weights = {name.removeprefix("roberta."): weight.detach().numpy() for name, weight in model.named_parameters()}
    for name, values in weights.items():
        if name in GLOBAL_NAMES:
            yield GLOBAL_NAMES[name], values
            continue
        index, rest = name.removeprefix("encoder.").removeprefix("layer.").removeprefix("layers.").split(".", 1)
        part, kind = rest.rsplit(".", 1)
        if part in ("self_attn.k_proj", "self_attn.v_proj"):
            continue
        if part == "self_attn.q_proj":
            # Files of the family have one projection for all three.
            parts = [weights[name.replace("q_proj", other)] for other in ("q_proj", "k_proj", "v_proj")]
            yield f"blk.{index}.attn_qkv.{kind}", np.concatenate(parts)
            continue
        yield f"blk.{index}.{BERT_NAMES[part]}.{kind}", values


def write_decoder(case, model, dense):
    inner, tensors = case.decoder, hf.tensors_of
    hf.OUT = OUT
    more = [(f"dense_{number}.weight", weight) for number, weight in enumerate(dense, 2)]
    if case.classes:
        more.append(("cls.output.weight", model.lm_head.weight.detach().numpy()[ANSWERS]))
    hf.tensors_of = lambda inner, model: [*tensors(inner, model), *more]
    hf.write(inner, model)
    hf.tensors_of = tensors


def save_folder(case, model, dense):
    folder = OUT / "folders" / case.name
    shutil.rmtree(folder, ignore_errors=True)
    model.save_pretrained(folder)
    (folder / "generation_config.json").unlink(missing_ok=True)
    modules = [("", "Transformer"), ("1_Pooling", "Pooling")] + [(f"{number}_Dense", "Dense") for number, _ in enumerate(dense, 2)]
    modules.append((f"{len(modules)}_Normalize", "Normalize"))
    listed = [{"idx": index, "name": str(index), "path": path, "type": f"sentence_transformers.models.{kind}"}
              for index, (path, kind) in enumerate(modules)]
    (folder / "modules.json").write_text(json.dumps(listed, indent=1) + "\n")
    (folder / "1_Pooling").mkdir()
    modes = {"cls_token": "first", "mean_tokens": "mean", "lasttoken": "last", "max_tokens": "max"}
    settings = {f"pooling_mode_{mode}": name == case.pooling for mode, name in modes.items()}
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({"word_embedding_dimension": case.hidden, **settings}, indent=1) + "\n")
    for number, weight in enumerate(dense, 2):
        path = folder / f"{number}_Dense"
        path.mkdir()
        config = {"in_features": weight.shape[1], "out_features": weight.shape[0], "bias": False,
                  "activation_function": "torch.nn.modules.linear.Identity"}
        (path / "config.json").write_text(json.dumps(config, indent=1) + "\n")
        save_file({"linear.weight": weight}, path / "model.safetensors")


def make(case, seed, texts):
    model, others = base_model(case, seed)
    whole = model
    model = getattr(model, "roberta", model)
    rng, dense, width = np.random.default_rng(1000 + seed), [], case.hidden
    for out in case.dense:
        dense.append((rng.standard_normal((out, width)) / np.sqrt(width)).astype(np.float32))
        width = out
    vectors = tokens_of(model, texts)
    found = scores_of(case, seed, texts) if case.classes else pooled(case, vectors, dense)
    effects = [np.abs(found - pooled(case, tokens_of(other, texts), dense)).max() for other in others]
    assert all(effect > LEAST_EFFECT for effect in effects), (case.name, effects)
    if case.decoder is None:
        write_encoder(case, whole)
    else:
        write_decoder(case, hf.model_of(case.decoder, seed), dense)
    np.concatenate([np.concatenate(vectors).ravel(), found.ravel()]).astype("<f4").tofile(OUT / f"{case.name}.f32")
    if not case.classes:
        save_folder(case, model, dense)
    print(f"{case.name}: {[round(float(effect), 3) for effect in effects]} without a setting")
    return {"name": case.name, "pooling": case.pooling, "hidden": case.hidden, "dims": case.classes or width}


def main():
    torch.use_deterministic_algorithms(True)
    OUT.mkdir(exist_ok=True)
    rng = np.random.default_rng(0)
    texts = [rng.integers(4, 131, length).tolist() for length in LENGTHS]
    cases = [make(case, seed, texts) for seed, case in enumerate(CASES, 1)]
    made_with = {"torch": torch.__version__.split("+")[0], "transformers": transformers.__version__}
    (OUT / "index.json").write_text(json.dumps({"made_with": made_with, "texts": texts, "cases": cases}) + "\n")
    size = sum(path.stat().st_size for path in OUT.rglob("*") if path.is_file())
    assert size < MOST_BYTES, size
    print(f"{len(cases)} cases, {size} bytes")


if __name__ == "__main__":
    main()
