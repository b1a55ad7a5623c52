"""Writes tests/golden/assistant: a small random assistant of the model hf/gemma4-small.gguf, and the drafts that Hugging Face transformers makes with it.

gemma4.gguf is the assistant in F32, named and laid out as llama.cpp's converter does it; folder is the same as transformers saves it. drafts.json holds
the lengths of texts for which it drafts, and the tokens that it is given in the rounds of each: the last token of the text, and the guesses. drafts.f32
holds for each of these rounds its logits and the vector that stands for the guess, little-endian singles (float32, eager attention).

A layer that sees a window sees here what the model would see of it at the position of the row, the row itself apart; what transformers' cache holds
differs by a key from version to version.

Usage: python3 tests/golden/make_assistant.py   (on a CPU; needs torch 2.15.0, transformers 5.17.0, gguf 0.19.0, numpy 2.4.6)
"""

import json
import shutil

import gguf
import hf_gemma
import make_hf_models as models
import numpy as np
import torch
import transformers

OUT = models.OUT.parent / "assistant"
BACKBONE = "gemma4-small"
SEED = 77
HIDDEN, FEED_FORWARD, HEADS, LAYERS = 24, 40, 8, "llg"
LENGTHS = [2, 3, 8, 9, 20, 33, 40]
ROUNDS = 4


def assistant_of(case, backbone):
    """The assistant in evaluation mode, with heads of keys like those of `backbone`, which is the model of `case`."""
    text = dict(
        vocab_size=case.vocab, hidden_size=HIDDEN, intermediate_size=FEED_FORWARD, num_hidden_layers=len(LAYERS),
        num_attention_heads=HEADS, num_key_value_heads=case.kv_heads, head_dim=case.head_dim,
        global_head_dim=hf_gemma.GLOBAL_HEAD, sliding_window=backbone.sliding_window, layer_types=hf_gemma.kinds(LAYERS),
        rope_parameters=backbone.rope_parameters, max_position_embeddings=models.CONTEXT, rms_norm_eps=case.eps,
        final_logit_softcapping=backbone.final_logit_softcapping, hidden_size_per_layer_input=0, vocab_size_per_layer_input=0,
        num_kv_shared_layers=len(LAYERS), use_double_wide_mlp=False, enable_moe_block=False, tie_word_embeddings=True, pad_token_id=None)
    config = transformers.Gemma4AssistantConfig(text_config=transformers.Gemma4TextConfig(**text), backbone_hidden_size=case.hidden)
    config._attn_implementation = "eager"
    model = transformers.Gemma4AssistantForCausalLM(config).float().eval()
    rng = np.random.default_rng(SEED)
    with torch.no_grad():
        for name, weight in sorted(models.parameters_of(model)):
            weight.copy_(torch.from_numpy(models.draw(rng, case, name, tuple(weight.shape)).astype(np.float32)))
    return model


def drafts(model, assistant, tokens):
    """The tokens of each round, and its logits and vectors."""
    with torch.no_grad():
        out = model(torch.tensor([tokens[:-1]]), output_hidden_states=True, return_shared_kv_states=True, use_cache=False)
    window = model.config.sliding_window - 1
    states = dict(out.shared_kv_states)
    states["sliding_attention"] = tuple(part[:, :, -window:] for part in states["sliding_attention"])
    vector, token, given, results = out.hidden_states[-1][:, -1:], tokens[-1], [], []
    for _ in range(ROUNDS):
        embedding = model.get_input_embeddings()(torch.tensor([[token]]))
        with torch.no_grad():
            guess = assistant(inputs_embeds=torch.cat([embedding, vector], -1), position_ids=torch.tensor([[len(tokens) - 1]]),
                              shared_kv_states=states)
        given.append(token)
        results.append(np.concatenate([guess.logits[0, 0].numpy(), guess.last_hidden_state[0, 0].numpy()]))
        token, vector = int(guess.logits[0, 0].argmax()), guess.last_hidden_state
    return given, results


def file_name(case, name):
    """GGUF name of a parameter."""
    own = {"pre_projection.weight": "nextn.pre_projection.weight", "post_projection.weight": "nextn.post_projection.weight"}
    if name in own:
        return own[name]
    if name.endswith("layer_scalar"):
        return f"blk.{name.split('.')[2]}.layer_output_scale.weight"
    return models.file_name(case, name)


def write(case, model):
    config, arch = model.config.text_config, "gemma4-assistant"
    writer = gguf.GGUFWriter(OUT / "gemma4.gguf", arch)
    writer.add_name("assistant")
    writer.add_file_type(gguf.LlamaFileType.ALL_F32)
    writer.add_vocab_size(case.vocab)
    writer.add_context_length(models.CONTEXT)
    writer.add_embedding_length(HIDDEN)
    writer.add_embedding_length_out(model.config.backbone_hidden_size)
    writer.add_block_count(len(LAYERS))
    writer.add_nextn_predict_layers(len(LAYERS))
    writer.add_feed_forward_length(FEED_FORWARD)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(case.kv_heads)
    writer.add_layer_norm_rms_eps(case.eps)
    for add in (writer.add_key_length, writer.add_value_length, writer.add_rope_dimension_count):
        add(hf_gemma.GLOBAL_HEAD)
    for add in (writer.add_key_length_swa, writer.add_value_length_swa, writer.add_rope_dimension_count_swa):
        add(case.head_dim)
    writer.add_rope_freq_base(config.rope_parameters["full_attention"]["rope_theta"])
    writer.add_rope_freq_base_swa(config.rope_parameters["sliding_attention"]["rope_theta"])
    writer.add_sliding_window(config.sliding_window)
    writer.add_sliding_window_pattern([kind == "l" for kind in LAYERS])
    writer.add_uint32(f"{arch}.attention.shared_kv_layers", len(LAYERS))
    writer.add_uint32(f"{arch}.embedding_length_per_layer_input", 0)
    writer.add_final_logit_softcapping(config.final_logit_softcapping)
    writer.add_tokenizer_model("no_vocab")
    for name, weight in models.parameters_of(model):
        writer.add_tensor(file_name(case, name), weight.detach().numpy())
    pairs = hf_gemma.GLOBAL_HEAD // 2
    turning = int(pairs * hf_gemma.ROTATED)
    writer.add_tensor("rope_freqs.weight", np.array([1.0] * turning + [1e30] * (pairs - turning), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def main():
    torch.use_deterministic_algorithms(True)
    OUT.mkdir(exist_ok=True)
    seed, case = next((seed, case) for seed, case in enumerate(models.CASES, 1) if case.name == BACKBONE)
    backbone = models.model_of(case, seed)
    prompt = json.loads((models.OUT / "index.json").read_text())["prompt"]
    tokens = [token % case.vocab for token in prompt[:max(LENGTHS)]]
    known = np.fromfile(models.OUT / f"{BACKBONE}.f32", "<f4").reshape(-1, case.vocab)[:len(tokens)]
    assert np.abs(models.logits_of(backbone, tokens) - known).max() < 1e-4, "the model is not that of the file"
    assistant = assistant_of(case, backbone.config)
    made = [drafts(backbone, assistant, tokens[:length]) for length in LENGTHS]
    np.array([row for _, rows in made for row in rows], "<f4").tofile(OUT / "drafts.f32")
    texts = [{"length": length, "given": given} for length, (given, _) in zip(LENGTHS, made)]
    (OUT / "drafts.json").write_text(json.dumps({"tokens": tokens, "texts": texts}) + "\n")
    write(case, assistant)
    shutil.rmtree(OUT / "folder", ignore_errors=True)
    assistant.save_pretrained(OUT / "folder")
    (OUT / "folder" / "generation_config.json").unlink(missing_ok=True)
    print([given for given, _ in made])


if __name__ == "__main__":
    main()
