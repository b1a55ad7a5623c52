"""Writes tests/golden/text/json: small tokenizers as `tokenizers` saves them, and the ids that it gives to texts.

NAME.json is a tokenizer.json of the kind that a family of models has; ids.json holds for each of them the ids of each text of
make_text.py, without special tokens and with them, and what the ids are as text.

    venv/bin/pip install tokenizers==0.23.3 sentencepiece==0.2.3
    venv/bin/python tests/golden/make_tokenizers.py
"""

import json
import pathlib

from make_text import TEXTS
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

OUT = pathlib.Path(__file__).parent / "text" / "json"
SPACE = "\u2581"
SPECIALS = ["<unk>", "<s>", "</s>"]

QWEN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
LLAMA3 = QWEN.replace(r"|\p{N}|", r"|\p{N}{1,3}|")
POSSESSIVE = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s*[\r\n]+|\s+(?!\S)|\s+")


def split(pattern, behavior="isolated", invert=False):
    return pre_tokenizers.Split(Regex(pattern), behavior, invert)


def byte_level(steps, normalizer=None, ignore_merges=False, use_regex=False):
    tokenizer = Tokenizer(models.BPE(ignore_merges=ignore_merges))
    tokenizer.normalizer = normalizer
    last = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=use_regex)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*steps, last]) if steps else last
    tokenizer.decoder = decoders.ByteLevel()
    train(tokenizer, initial=sorted(pre_tokenizers.ByteLevel.alphabet()))
    return tokenizer


def escaped(normalizer, pre_tokenizer, bytes_too=True):
    """With U+2581 for spaces, and tokens of bytes for what the vocabulary lacks."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=bytes_too))
    tokenizer.normalizer, tokenizer.pre_tokenizer = normalizer, pre_tokenizer
    tokens = SPECIALS + ([f"<0x{byte:02X}>" for byte in range(256)] if bytes_too else [])
    train(tokenizer, tokens, limit=60)
    # Training calls all of them special.
    saved = json.loads(tokenizer.to_str())
    saved["added_tokens"] = [token for token in saved["added_tokens"] if token["content"] in SPECIALS]
    return Tokenizer.from_str(json.dumps(saved))


def train(tokenizer, tokens=(), initial=(), limit=1000):
    trainer = trainers.BpeTrainer(
        vocab_size=len(tokens) + len(initial) + 220, special_tokens=list(tokens), initial_alphabet=list(initial),
        limit_alphabet=limit, show_progress=False)
    tokenizer.train_from_iterator(TEXTS * 2, trainer)


def escape(prepend):
    replace = normalizers.Replace(" ", SPACE)
    return normalizers.Sequence([normalizers.Prepend(SPACE), replace]) if prepend else replace


def with_begin(tokenizer, name="<s>", end=None):
    """Puts tokens around a text."""
    for token in filter(None, [name, end]):
        if tokenizer.token_to_id(token) is None:
            tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False)])
    ids = [(token, tokenizer.token_to_id(token)) for token in filter(None, [name, end])]
    single = f"{name} $A" + (f" {end}" if end else "")
    template = processors.TemplateProcessing(single=single, pair="$A $B", special_tokens=ids)
    levels = [processors.ByteLevel(trim_offsets=False)] if isinstance(tokenizer.decoder, decoders.ByteLevel) else []
    tokenizer.post_processor = processors.Sequence([*levels, template])
    return tokenizer


def with_added(tokenizer):
    """Tokens that are cut out of text whole."""
    tokenizer.add_special_tokens([AddedToken("<|user|>", special=True, normalized=False)])
    tokenizer.add_tokens([
        AddedToken("[brackets]", normalized=False, lstrip=True), AddedToken("#include", normalized=False),
        AddedToken("two", normalized=False, rstrip=True)])
    return tokenizer


def tokenizers():
    yield "gpt2", byte_level([], use_regex=True)
    yield "qwen", with_added(byte_level([split(QWEN)], normalizers.NFC()))
    yield "llama3", with_begin(with_added(byte_level([split(LLAMA3)], ignore_merges=True)))
    yield "possessive", with_begin(byte_level([split(POSSESSIVE, "removed", True)]), end="</s>")
    yield "starcoder", byte_level([pre_tokenizers.Digits(individual_digits=True)], use_regex=True)
    yield "llama2", with_begin(escaped(escape(True), None))
    yield "first", with_begin(with_added(escaped(None, pre_tokenizers.Metaspace(SPACE, "first", False))))
    yield "always", escaped(None, pre_tokenizers.Metaspace(SPACE, "always", True))
    yield "gemma", with_begin(escaped(escape(False), pre_tokenizers.Split(" ", "merged_with_previous")))
    yield "unknown", with_begin(escaped(escape(True), None, bytes_too=False))


def main():
    OUT.mkdir(exist_ok=True)
    ids = {"texts": TEXTS, "ids": {}}
    for name, tokenizer in tokenizers():
        (OUT / f"{name}.json").write_text(json.dumps(json.loads(tokenizer.to_str()), ensure_ascii=False))
        plain = [tokenizer.encode(text, add_special_tokens=False).ids for text in TEXTS]
        special = [tokenizer.encode(text).ids for text in TEXTS]
        ids["ids"][name] = {"plain": plain, "special": special}
        print(name, tokenizer.get_vocab_size(), sum(map(len, plain)))
    (OUT / "ids.json").write_text(json.dumps(ids, ensure_ascii=False, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
