"""Writes tests/golden/text/json: small tokenizers as `tokenizers` saves them, and the ids that it gives to texts.

NAME.json is a tokenizer.json of the kind that a family of models has; ids.json holds for each of them the ids of each text of
make_text.py, without special tokens and with them. Character maps stand in these files as the names of the `.charsmap` files beside them.
Training does not give the same file twice, so a file that is there stays: remove it to have it made anew.

    venv/bin/pip install tokenizers==0.23.3 sentencepiece==0.2.3
    venv/bin/python tests/golden/make_tokenizers.py
"""

import base64
import json
import pathlib
import struct

import make_text
from make_text import BERT_SPECIALS
from sentencepiece import SentencePieceNormalizer
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

OUT = pathlib.Path(__file__).parent / "text" / "json"
TRAINING = make_text.TEXTS
TEXTS = TRAINING + ["a\u2581\u2581b \u2581 \u2581a x\u3000\u2581y\u2581", "\u2028one\u00a0two\u2003\u2003three\x85 \t"]
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
    tokenizer.train_from_iterator(TRAINING * 2, trainer)


def escape(prepend):
    replace = normalizers.Replace(" ", SPACE)
    return normalizers.Sequence([normalizers.Prepend(SPACE), replace]) if prepend else replace


def with_begin(tokenizer, name="<s>", end=None):
    """Puts tokens around a text."""
    for token in filter(None, [name, end]):
        if tokenizer.token_to_id(token) is None:
            tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False)])
    ids = [(token, tokenizer.token_to_id(token)) for token in filter(None, [name, end])]
    single = " ".join(filter(None, [name, "$A", end]))
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


def harmony(tokenizer):
    """The special tokens of gpt-oss."""
    names = ["startoftext", "endoftext", "return", "constrain", "channel", "start", "end", "message", "call"]
    tokenizer.add_special_tokens([AddedToken(f"<|{name}|>", special=True, normalized=False) for name in names])
    return tokenizer


def unigram(normalizer, pre_tokenizer, specials=("<pad>", "</s>", "<unk>"), byte_fallback=False):
    """A unigram model that was trained with the steps it is used with."""
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer, tokenizer.pre_tokenizer = normalizer, pre_tokenizer
    bytes_too = [f"<0x{byte:02X}>" for byte in range(256)] if byte_fallback else []
    trainer = trainers.UnigramTrainer(
        vocab_size=700 + len(bytes_too), special_tokens=[*specials, *bytes_too], unk_token="<unk>", show_progress=False, max_piece_length=8)
    tokenizer.train_from_iterator(TRAINING * 4, trainer)
    saved = json.loads(tokenizer.to_str())
    saved["added_tokens"] = [token for token in saved["added_tokens"] if token["content"] in specials]
    saved["model"]["byte_fallback"] = byte_fallback
    # As in files, where scores have 32 bits.
    saved["model"]["vocab"] = [[text, struct.unpack("f", struct.pack("f", score))[0]] for text, score in saved["model"]["vocab"]]
    return Tokenizer.from_str(json.dumps(saved))


def precompiled(name):
    return normalizers.Precompiled((OUT.parent / f"{name}.charsmap").read_bytes())


def sentencepiece(charsmap, content, strip):
    """The normalizer that transformers makes of a SentencePiece model's."""
    stripping = [normalizers.Strip(left=False, right=True)] if strip else []
    mapping = [precompiled(charsmap)] if charsmap else []
    return normalizers.Sequence([*mapping, *stripping, normalizers.Replace(Regex(" {2,}"), content)])


def wordpiece(**rules):
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer, tokenizer.pre_tokenizer = normalizers.BertNormalizer(**rules), pre_tokenizers.BertPreTokenizer()
    trainer = trainers.WordPieceTrainer(
        vocab_size=500, min_frequency=1, limit_alphabet=200, special_tokens=BERT_SPECIALS, show_progress=False)
    tokenizer.train_from_iterator(TRAINING[:30] * 2, trainer)
    tokenizer.decoder = decoders.WordPiece(cleanup=False)
    return with_begin(tokenizer, "[CLS]", "[SEP]")


ALWAYS = pre_tokenizers.Metaspace(SPACE, "always", True)
WORDS = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), ALWAYS])
KINDS = {
    "gpt2": lambda: byte_level([], use_regex=True),
    "qwen": lambda: with_added(byte_level([split(QWEN)], normalizers.NFC())),
    "llama3": lambda: with_begin(with_added(byte_level([split(LLAMA3)], ignore_merges=True))),
    "possessive": lambda: with_begin(byte_level([split(POSSESSIVE, "removed", True)]), end="</s>"),
    "harmony": lambda: harmony(byte_level([split(make_text.GPT4O)])),
    "starcoder": lambda: byte_level([pre_tokenizers.Digits(individual_digits=True)], use_regex=True),
    "punctuation": lambda: byte_level([pre_tokenizers.Punctuation(), pre_tokenizers.Digits(individual_digits=False)]),
    "falcon": lambda: byte_level([pre_tokenizers.Punctuation("contiguous"), pre_tokenizers.Digits(individual_digits=True)], use_regex=True),
    "empty": lambda: byte_level([split(r"[0-9]*|\s*[a-z]*")]),
    "llama2": lambda: with_begin(escaped(escape(True), None)),
    "first": lambda: with_begin(with_added(escaped(None, pre_tokenizers.Metaspace(SPACE, "first", False)))),
    "always": lambda: escaped(None, pre_tokenizers.Metaspace(SPACE, "always", True)),
    "gemma": lambda: with_begin(escaped(escape(False), pre_tokenizers.Split(" ", "merged_with_previous"))),
    "t5": lambda: with_begin(unigram(precompiled("nmt_nfkc"), WORDS), None, "</s>"),
    "spm": lambda: with_added(unigram(sentencepiece("nmt_nfkc", SPACE, True), ALWAYS)),
    "spm_first": lambda: with_added(unigram(sentencepiece(None, SPACE, True), pre_tokenizers.Metaspace(SPACE, "first", True))),
    "spm_runs": lambda: unigram(sentencepiece("nmt_nfkc", " ", False), ALWAYS),
    "unigram_words": lambda: unigram(None, WORDS),
    "unigram_bytes": lambda: with_begin(unigram(escape(True), None, SPECIALS, True)),
    "unigram_digits": lambda: unigram(
        normalizers.NFC(), pre_tokenizers.Sequence([pre_tokenizers.Metaspace(SPACE, "first", False), pre_tokenizers.Digits(True)])),
    "wordpiece": lambda: wordpiece(lowercase=True),
    "wordpiece_cased": lambda: with_added(wordpiece(lowercase=False, strip_accents=True)),
    "unknown": lambda: with_begin(escaped(escape(True), None, bytes_too=False)),
}


def maps():
    """The character maps in base64, and their names."""
    return [(base64.b64encode(path.read_bytes()).decode(), path.stem) for path in OUT.parent.glob("*.charsmap")]


def kept(name, make):
    """The tokenizer of the file, which is made if it is not there."""
    path = OUT / f"{name}.json"
    if not path.exists():
        saved = json.dumps(json.loads(make().to_str()), ensure_ascii=False)
        for charsmap, stem in maps():
            saved = saved.replace(charsmap, stem)
        path.write_text(saved)
    saved = path.read_text()
    for charsmap, stem in maps():
        saved = saved.replace(f'"precompiled_charsmap": "{stem}"', f'"precompiled_charsmap": "{charsmap}"')
    return Tokenizer.from_str(saved), "nmt_nfkc" if '"precompiled_charsmap": "nmt_nfkc"' in path.read_text() else None


def mapped(text, charsmap):
    """`text`, or what SentencePiece makes of it where its map means something else to `tokenizers`: there the shortest match of a grapheme of
    up to five bytes stands for all of it."""
    if charsmap != "nmt_nfkc":
        return text
    plain = {"add_dummy_prefix": False, "escape_whitespaces": False, "remove_extra_whitespaces": False}
    wanted = SentencePieceNormalizer(rule_name=charsmap, **plain).normalize(text)
    found = precompiled(charsmap).normalize_str(text)
    assert precompiled(charsmap).normalize_str(wanted) == wanted
    return text if found == wanted else wanted


def main():
    OUT.mkdir(exist_ok=True)
    ids = {"texts": TEXTS, "ids": {}}
    for name, make in KINDS.items():
        tokenizer, charsmap = kept(name, make)
        texts = [mapped(text, charsmap) for text in TEXTS]
        plain = [tokenizer.encode(text, add_special_tokens=False).ids for text in texts]
        special = [tokenizer.encode(text).ids for text in texts]
        ids["ids"][name] = {"plain": plain, "special": special}
        print(name, tokenizer.get_vocab_size(), sum(map(len, plain)), sum(a != b for a, b in zip(texts, TEXTS)))
    (OUT / "ids.json").write_text(json.dumps(ids, ensure_ascii=False, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
