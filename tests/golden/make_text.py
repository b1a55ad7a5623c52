"""Makes the goldens of the text tests with public tokenizers: tests/golden/text/*.json.

    python3 -m venv venv && venv/bin/pip install tokenizers==0.23.3 sentencepiece==0.2.3
    venv/bin/python tests/golden/make_text.py

splits.json         how each pre-tokenizer cuts each text, by its published definition in `tokenizers`
byte_pair.json      a small byte-level vocabulary with merges across words, and the ids of each text by pre-tokenizer
sentencepiece.json  small SentencePiece models with their flags, and the ids of each text
unigram.json        the same for unigram models, with ties as the library `tokenizers` has them; their character maps are in nmt_nfkc.charsmap and rules.charsmap
wordpiece.json      a small WordPiece vocabulary in GGUF's spelling under several rules, the ids of each text and what they decode to
bert.json           for each 1024 characters the hash of what BERT's rules make of them
"""

import io
import json
import pathlib
import random
import sys
import tempfile
import unicodedata

import sentencepiece
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from tokenizers.normalizers import NFC, BertNormalizer
from tokenizers.pre_tokenizers import BertPreTokenizer, ByteLevel, Digits, Punctuation, Sequence, Split
from tokenizers.processors import BertProcessing

OUT = pathlib.Path(__file__).parent / "text"

TEXTS = [
    "",
    " ",
    "  ",
    "   \t  ",
    "a",
    "The ferry leaves at nine; we'll be on it, won't we?",
    "WE'LL SEE WHO'S LATE: I'VE SAID I'D WAIT, HAVEN'T I",
    "it's 'quoted' and 'tis, y'all'd've known",
    "  two spaces, then   three,    four and\ttab\t\ttabs",
    "line one\nline two\n\nline four\r\nline five\r\n\r\n  indented\n    more  \n",
    "trailing spaces   \n   \n\n   x",
    "ends with spaces    ",
    "ends with lines\n\n\n",
    "1 12 123 1234 12345 123456 1234567 3.14159 1,000,000 0x1F 2nd 10km",
    "x1y22z333w4444 a1b2 7up 2024-07-26T12:00:00Z",
    "½ Ⅳ ² ٣٤٥ १२३४ １２３４５",
    "fn main() { let x = vec![1, 2]; println!(\"{:?}\", x); } // done",
    "<|user|>\n{\"key\": [true, null]}\n</s>",
    "https://example.org/a/b?c=d&e=f#g_h ~/.config ../up",
    "snake_case camelCase PascalCase HTTPServer kebab-case XMLHttpRequest iOS",
    "!!! ??? ... -- ++ == => <= && || $5 €7 £8 ¥9 @me #tag ^caret `tick` ~",
    "Ärger über Öl: naïve café, smørrebrød, žluťoučký kůň, İstanbul'da",
    "cafe\u0301 re\u0301sume\u0301 a\u0300b\u0301 \u0301lead",
    "Быстрая лиса прыгает; ещё 25 раз. Γρήγορη αλεπού ΑΒΓ'ς",
    "我们明天去北京。今天是2024年7月26日，你呢？",
    "カタカナとひらがなと漢字ー。ﾊﾝｶｸ 한국어 문장입니다 ㄱㄴㄷ ㄅㄆ",
    "नमस्ते दुनिया। ভালো থাকুন। สวัสดีครับ ກຂຄ ភាសាខ្មែរ မြန်မာ",
    "مرحبا بالعالم، كيف الحال؟ שלום עולם",
    "🦙🚀 👩‍👩‍👧‍👦 ❤️ 🇩🇪 ✅☑ →↑ ∑∫≈",
    "mixed漢字and字kana かnd русскийtext한글x",
    "\u00a0nbsp\u2003em\u3000ideographic\u200bzero\ufeffbom",
    "tab\tseparated\tvalues\r\n1\t2\t3\r\n",
    "a  b   c    d     e      f" + " " * 9 + "g" + " " * 17 + "h" + " " * 40 + "i" + " " * 700 + "j",
    "(parens) [brackets] {braces} «guillemets» “quotes” ‘single’ …ellipsis—dash –en",
    "IMGIMGABCDZ <sentinel:12> IMGIMGABCDEZ",
    "a.b,c;d:e!f?g/h\\i|j",
    "\n \n  \n\n x\n\ny \n z",
    "//comment\n/* block */\n#!/bin/sh\n\techo \"$1\"/\n",
    "1½ 10² 100³ 1000¹ ½1 ²10 1234½5678 12²34 x1½ 1½x 3¾km 12Ⅳ 123Ⅳ 1234①",
    "1234_ 1234a 1234é 1234e\u0301 12345漢 1234\u200d5678 1234\u200c 123456\u0301 1234. 1234, 1234\n1234",
    "٣٤٥٦½ १२३४² １２３４５a ٣٤٥٦ १२३४५६\u093c",
    "e\u0301 é a\u0323\u0302 a\u0302\u0323 \u212b \u2126 \u1100\u1161\u11a8 가\u11a8 \u0958 क\u093c \ufb1d ệ\u0301\u0323 \u0301x",
]

SCRIPTS = [(0x20, 0x7F), (0, 0x20), (0x80, 0x250), (0x300, 0x370), (0x370, 0x530), (0x590, 0x700), (0x900, 0x1200)]
SCRIPTS += [(0x1E00, 0x2100), (0x2000, 0x2070), (0x2500, 0x2600), (0x3000, 0x3400), (0x4E00, 0x5000), (0xAC00, 0xAD00)]
SCRIPTS += [(0xFB00, 0xFE00), (0xFE20, 0xFFF0), (0x1D400, 0x1D500), (0x1F300, 0x1F700), (0x20000, 0x20100)]


def make_random_texts(count, seed):
    """Texts of characters from all scripts, most of them with spaces and ASCII between."""
    source = random.Random(seed)

    def character():
        if source.random() < 0.4:
            return source.choice("  \u2581ae.'\u0301\u0323-ntT1")
        return chr(source.randrange(*source.choice(SCRIPTS)))

    return ["".join(character() for _ in range(source.randrange(1, 30))) for _ in range(count)]


RANDOM_TEXTS = make_random_texts(150, 1)

CONTRACTIONS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
LLAMA3 = CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|" + SPACES
QWEN2 = CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|" + SPACES
UPPER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"
LOWER = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"


def cased(upper=UPPER, lower=LOWER, suffix=CONTRACTIONS + "?"):
    lead = r"[^\r\n\p{L}\p{N}]?"
    return f"{lead}{upper}*{lower}+{suffix}|{lead}{upper}+{lower}*{suffix}"


GPT4O = cased() + r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|" + SPACES
PUNCTUATED = (
    r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|"""
    + SPACES
)
NOT_HAN = r"&&[^\p{Han}]]"


def split(*patterns):
    return [Split(Regex(pattern), "isolated") for pattern in patterns]


def gpt2():
    return ByteLevel(add_prefix_space=False, use_regex=True)


GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
TINY_AYA = [r"\d{1,3}(?=(?:\d{3})*\b)", GPT4O]

PRE_TOKENIZERS = {
    "default": split(r"[\p{P}\$\+<=>\^~\|]+", GPT2, r"\p{N}+", "[0-9][0-9][0-9]"),
    "gpt-2": [gpt2()],
    "mpt": [gpt2()],
    "roberta-bpe": [gpt2()],
    "llama-bpe": split(LLAMA3),
    "dbrx": split(LLAMA3),
    "minicpm5": split(r"\p{N}{1,3}", LLAMA3.replace("{1,3}", "+")),
    "qwen2": split(QWEN2),
    "qwen35": split(QWEN2.replace(r"?\p{L}+", r"?[\p{L}\p{M}]+").replace(r"[^\s\p{L}\p{N}]", r"[^\s\p{L}\p{M}\p{N}]")),
    "ufakzeka": split(QWEN2.replace(CONTRACTIONS + "|", "")),
    "laguna": split(r"[^\n]+|[\n]+", QWEN2),
    "jais-2": split(
        LLAMA3.replace(
            r"\s+(?!\S)|\s+",
            "|".join(rf"\s{{{n}}}(?!\S)" for n in (512, 256, 128, 64, 32, 16, 8, 4)) + r"|\s{1,2}(?!\S)|\s{1}",
        )
    ),
    "deepseek-coder": split("[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+")
    + [Digits(individual_digits=True)],
    "deepseek-v3": split(r"\p{N}{1,3}", "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+", PUNCTUATED),
    "spark2_5": split(
        r"\p{N}{1,3}",
        "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+",
        PUNCTUATED.replace(r"[\p{P}\p{S}]+[\r\n]*", r"[\p{P}\p{S}]+").replace(r"\s*[\r\n]+", r"[\r\n]"),
        r"\p{N}",
    ),
    "youtu": split(
        "[가-힣ㄱ-ㆎ]+|[！…“”‘’—：；，\u3001-\u303f\ufe30-\ufe4f]+|[ㄅ-ㄯ]+|[一-龥\u3040-\u30ff]+",
        GPT4O.replace("{1,3}", ""),
    ),
    "falcon": [Punctuation("contiguous"), gpt2()] + split("[0-9][0-9][0-9]"),
    "starcoder": [Digits(individual_digits=True), gpt2()],
    "command-r": [Digits(individual_digits=True), gpt2()],
    "bloom": split(r" ?[^(\s|.,!?…。，、।۔،)]+"),
    "viking": split(r" ?[^(\s|.,!?…。，、।۔،)]+") + [Digits(individual_digits=True)],
    "tekken": split(cased(suffix="") + r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|" + SPACES),
    "chameleon": split(
        "<sentinel:[0-9]+>",
        "(IMGIMG)((A|B|C|D|E|F|G|H|I){1,4})Z",
        r"([\t\n]|    |  )",
        r"\p{N}",
        r"[\p{P}!-/:-@\[-`{-~]",
    )
    + [gpt2()],
    "gpt-4o": split(GPT4O),
    "tiny_aya": split(*TINY_AYA),
    "cohere2moe": split(*TINY_AYA),
    "kimi-k2": split(
        r"[\p{Han}]+|"
        + cased(UPPER.replace("]", NOT_HAN), LOWER.replace("]", NOT_HAN))
        + r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|"
        + SPACES
    ),
    "superbpe": split(r"\p{N}+", r"(?=(\d{3})+(?!\d))"),
    "bailingmoe": split(
        r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+"
    ),
    "seed-coder": split(
        CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1}| ?[^\s\p{L}\p{N}\r\n]+|" + SPACES,
    ),
    "afmoe": split(
        r"\p{N}{1,3}(?=(?:\p{N}{3})*(?!\p{N}))",
        "[一-\u9fff㐀-\u4dbf\uf900-\ufaff\u3040-\u30ff･-ﾟ\u2f00-\u2fdf\u0e00-\u0eff\u1780-\u17ff\u1000-\u109f\uaa60-\uaa7f"
        "\ua9e0-\ua9ff\uac00-\ud7af\u1100-\u11ff]+",
        PUNCTUATED,
    ),
    "exaone-moe": split(
        CONTRACTIONS
        + r"|[^\r\n\p{L}\p{N}]?(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+"
    ),
}
IGNORING_MERGES = {"llama-bpe", "minicpm5", "youtu", "tekken"}
COMPOSING = {"mpt", "qwen2", "qwen35", "command-r", "tiny_aya", "cohere2moe"}
STRIPPING_MASK = {"roberta-bpe"}


def write(name, value):
    path = OUT / name
    path.write_text(json.dumps(value, ensure_ascii=False, separators=(",", ":")) + "\n", encoding="utf-8")
    print(path, path.stat().st_size)


def lengths(text, pieces):
    """Lengths in characters of the pieces that `pre_tokenize_str` gives, which leave nothing out."""
    ends = [end for _, (start, end) in pieces if end > start]
    assert not ends or ends[-1] == len(text), (text, pieces)
    return [end - start for start, end in zip([0] + ends, ends)]


def make_splits():
    splits = {}
    for name, steps in PRE_TOKENIZERS.items():
        sequence = Sequence(steps)
        splits[name] = [lengths(text, sequence.pre_tokenize_str(text)) for text in TEXTS]
    write("splits.json", {"texts": TEXTS, "splits": splits})


def byte_level(steps):
    """The steps, then the byte alphabet, which must come once and last."""
    plain = [step for step in steps if not isinstance(step, ByteLevel)]
    cuts_words = len(plain) < len(steps)
    return Sequence(plain + [ByteLevel(add_prefix_space=False, use_regex=cuts_words)])


def train_byte_pairs():
    """A vocabulary trained without words, so that merges cross every boundary that a pre-tokenizer may draw."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = ByteLevel(add_prefix_space=False, use_regex=False)
    trainer = trainers.BpeTrainer(
        vocab_size=900, min_frequency=2, initial_alphabet=ByteLevel.alphabet(), show_progress=False, max_token_length=12
    )
    tokenizer.train_from_iterator(TEXTS * 2, trainer)
    return json.loads(tokenizer.to_str())["model"]


SPECIALS = ["<|begin|>", "<|end_of_text|>", "<|end_of_text|>x", "<mask>"]
USER_DEFINED = ["   ", "<tool>"]
WITH_SPECIALS = [
    "<|begin|>Hello<|end_of_text|>",
    "a<|end_of_text|>xy<|end_of_text|> z",
    "<tool>   <|begin|>    <tool",
    "<|begin|><|begin|>",
    "a <mask> b \n\u3000<mask><mask> c<|begin|>  <mask>",
    "e\u0301<|begin|>\u0301e<tool>a\u030a",
]


def make_byte_pairs():
    model = train_byte_pairs()
    tokens = sorted(model["vocab"], key=model["vocab"].get)
    merges = [tuple(merge) for merge in model["merges"]]
    ids = {}
    with_specials = {}
    for name, steps in PRE_TOKENIZERS.items():
        bpe = models.BPE(model["vocab"], merges, ignore_merges=name in IGNORING_MERGES)
        tokenizer = Tokenizer(bpe)
        tokenizer.pre_tokenizer = byte_level(steps)
        if name in COMPOSING:
            tokenizer.normalizer = NFC()
        ids[name] = [tokenizer.encode(text).ids for text in TEXTS]
        strips = {"<mask>"} if name in STRIPPING_MASK else {}
        specials = [AddedToken(text, special=True, normalized=False, lstrip=text in strips) for text in SPECIALS]
        tokenizer.add_special_tokens(specials)
        tokenizer.add_tokens([AddedToken(text, normalized=False) for text in USER_DEFINED])
        with_specials[name] = [tokenizer.encode(text).ids for text in WITH_SPECIALS]
    write(
        "byte_pair.json",
        {
            "tokens": tokens,
            "merges": [" ".join(merge) for merge in merges],
            "special_tokens": SPECIALS,
            "user_defined": USER_DEFINED,
            "texts": TEXTS,
            "composing": sorted(COMPOSING),
            "texts_composed": [unicodedata.normalize("NFC", text) for text in TEXTS],
            "ids": ids,
            "texts_with_specials": WITH_SPECIALS,
            "ids_with_specials": with_specials,
        },
    )


SENTENCEPIECE_MODELS = {
    "plain": {},
    "no_prefix": {"add_dummy_prefix": False},
    "squeezing": {"remove_extra_whitespaces": True},
    "squeezing_no_prefix": {"remove_extra_whitespaces": True, "add_dummy_prefix": False},
    "no_bytes": {"byte_fallback": False, "vocab_size": 220},
    "across_words": {"split_by_whitespace": False},
    # With a space in front too, engines differ on what a user-defined symbol does to it.
    "user_defined": {"user_defined_symbols": ["<tool>", "wait", "▁▁▁"], "add_dummy_prefix": False},
}


def train_sentencepiece(options):
    settings = {
        "model_type": "bpe",
        "vocab_size": 480,
        "byte_fallback": True,
        "character_coverage": 0.98,
        "normalization_rule_name": "identity",
        "remove_extra_whitespaces": False,
        "add_dummy_prefix": True,
        "hard_vocab_limit": False,
        "minloglevel": 2,
    } | options
    if "normalization_rule_tsv" in settings:
        del settings["normalization_rule_name"]
    buffer = io.BytesIO()
    is_taken = str.isascii if settings["model_type"] == "bpe" else bool
    sentences = iter(line for text in TEXTS for line in text.splitlines() if is_taken(line) and line.strip())
    sentencepiece.SentencePieceTrainer.train(sentence_iterator=sentences, model_writer=buffer, **settings)
    return settings, buffer.getvalue(), sentencepiece.SentencePieceProcessor(model_proto=buffer.getvalue())


def kind(model, token):
    """The number of the token's kind in a GGUF file."""
    if model.is_unknown(token):
        return 2
    if model.is_control(token):
        return 3
    if model.is_byte(token):
        return 6
    return 5 if model.is_unused(token) else 1


def describe(settings, model, texts):
    """A model as a GGUF file has it, and the ids of `texts`."""
    symbols = settings.get("user_defined_symbols", [])
    size = model.get_piece_size()
    pieces = [model.id_to_piece(token) for token in range(size)]
    return {
        "tokens": [piece.replace("▁", " ") if piece in symbols else piece for piece in pieces],
        "scores": [model.get_score(token) for token in range(size)],
        "kinds": [4 if pieces[token] in symbols else kind(model, token) for token in range(size)],
        "add_space_prefix": settings["add_dummy_prefix"],
        "remove_extra_whitespaces": settings["remove_extra_whitespaces"],
        "ids": [model.encode(text) for text in texts],
    }


def make_sentencepiece():
    cases = {}
    for name, options in SENTENCEPIECE_MODELS.items():
        settings, _, model = train_sentencepiece(options)
        cases[name] = describe(settings, model, TEXTS)
    write("sentencepiece.json", {"texts": TEXTS, "models": cases})


NMT = {"normalization_rule_name": "nmt_nfkc", "remove_extra_whitespaces": True, "byte_fallback": False}
UNIGRAM_MODELS = {
    "plain": {},
    "no_prefix": {"add_dummy_prefix": False},
    "squeezing": {"remove_extra_whitespaces": True},
    "no_bytes": {"byte_fallback": False, "vocab_size": 600},
    "across_words": {"split_by_whitespace": False},
    "user_defined": {"user_defined_symbols": ["<tool>", "wait"], "add_dummy_prefix": False},
    "nmt_nfkc": NMT,
    "nmt_nfkc_bytes": NMT | {"byte_fallback": True},
    "rules": NMT | {"normalization_rule_tsv": True},
}
# What each text becomes under "rules"; longer ones go first, and texts of the map may be the beginnings of others.
RULES = {"\u3000": " ", "\t": " ", "\u0001": "", "\ufb01": "fi", "½": "1\u20442", "e": "ë", "e\u0301": "é", "e\u0301\u0301": "E"}
RULES |= {"１": "1", "\u0301": "", "ﷺ": "صلى الله", "ab": "b a", "🦙": "llama"}


def precompiled_charsmap(model):
    """The field of that name, 2 in the normalizer's message, which is field 3 of the model's."""

    def fields(message):
        at = 0
        while at < len(message):
            tag, at = varint(message, at)
            if tag & 7 == 5:
                at += 4
                continue
            size, at = varint(message, at)
            if tag & 7 == 2:
                yield tag >> 3, message[at : at + size]
                at += size

    def varint(message, at):
        value, shift = 0, 0
        while True:
            value |= (message[at] & 0x7F) << shift
            at, shift = at + 1, shift + 7
            if message[at - 1] < 0x80:
                return value, at

    normalizer = dict(fields(model))[3]
    return dict(fields(normalizer)).get(2, b"")


def settle_ties(settings, model, case, texts):
    """Replaces ids by those of the library `tokenizers`, which sums scores in 64 bits, where both add up to the same."""
    scores = case["scores"]
    unknown = min(score for score, kind in zip(scores, case["kinds"]) if kind == 1) - 10
    # That library would find control pieces in any text.
    name = lambda token: f"\0{token}" if case["kinds"][token] == 3 else model.id_to_piece(token)
    pieces = [name(token) for token in range(len(scores))]
    unigram = Tokenizer(models.Unigram(list(zip(pieces, scores)), unk_id=0, byte_fallback=settings["byte_fallback"]))
    if settings.get("split_by_whitespace", True):
        unigram.pre_tokenizer = Split(Regex("▁+[^▁]*"), "isolated")
    value = lambda ids: sum(unknown if token == 0 else scores[token] for token in ids)
    for index, text in enumerate(texts):
        ids = unigram.encode(model.normalize(text)).ids
        if ids != case["ids"][index] and not any(symbol in text for symbol in settings.get("user_defined_symbols", [])):
            assert abs(value(ids) - value(case["ids"][index])) < 1e-3, (text, ids, case["ids"][index])
            case["ids"][index] = ids


def make_unigram():
    cases = {}
    texts = TEXTS + RANDOM_TEXTS
    with tempfile.NamedTemporaryFile("w", suffix=".tsv") as table:
        codes = lambda text: " ".join(f"{ord(c):X}" for c in text)
        table.writelines(f"{codes(source)}\t{codes(target)}\n" for source, target in RULES.items())
        table.flush()
        for name, options in UNIGRAM_MODELS.items():
            options = {"vocab_size": 900} | options | {"model_type": "unigram"}
            if "normalization_rule_tsv" in options:
                options["normalization_rule_tsv"] = table.name
            settings, proto, model = train_sentencepiece(options)
            charsmap = precompiled_charsmap(proto)
            cases[name] = describe(settings, model, texts)
            settle_ties(settings, model, cases[name], texts)
            if charsmap:
                cases[name]["charsmap"] = "rules" if name == "rules" else "nmt_nfkc"
                (OUT / (cases[name]["charsmap"] + ".charsmap")).write_bytes(charsmap)
    write("unigram.json", {"texts": texts, "models": cases})


BERT_RULES = {
    "uncased": {"lowercase": True},
    "cased": {"lowercase": False},
    "accented": {"lowercase": True, "strip_accents": False},
    "stripped": {"lowercase": False, "strip_accents": True},
}
BERT_SPECIALS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


def phantom_space(token):
    """The spelling of a GGUF file: a word's beginning is marked, not what goes on."""
    if token in BERT_SPECIALS:
        return token
    return token[2:] if token.startswith("##") else "▁" + token


def make_wordpiece():
    texts = TEXTS + RANDOM_TEXTS + ["x" * 100, "x" * 101, "a▁▁b ▁ ▁a", "don't [CLS] stop[MASK]ping [SEP]x"]
    cases = {}
    for name, rules in BERT_RULES.items():
        tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
        tokenizer.normalizer = BertNormalizer(**rules)
        tokenizer.pre_tokenizer = BertPreTokenizer()
        trainer = trainers.WordPieceTrainer(
            vocab_size=900, min_frequency=1, limit_alphabet=300, special_tokens=BERT_SPECIALS, show_progress=False
        )
        tokenizer.train_from_iterator(TEXTS * 2 + ["▁ a▁▁b"], trainer)
        vocab = tokenizer.get_vocab()
        tokenizer.post_processor = BertProcessing(("[SEP]", vocab["[SEP]"]), ("[CLS]", vocab["[CLS]"]))
        tokenizer.decoder = decoders.WordPiece(cleanup=False)
        tokens = sorted(vocab, key=vocab.get)
        ids = [tokenizer.encode(text).ids for text in texts]
        cases[name] = {
            "rules": rules,
            "tokens": [phantom_space(token) for token in tokens],
            "kinds": [2 if token == "[UNK]" else 3 if token in BERT_SPECIALS else 1 for token in tokens],
            "ids": ids,
            "decoded": [tokenizer.decode(tokens, skip_special_tokens=True) for tokens in ids],
        }
    write("wordpiece.json", {"texts": texts, "vocabularies": cases})


def fnv(data):
    value = 0xCBF29CE484222325
    for byte in data:
        value = (value ^ byte) * 0x100000001B3 % (1 << 64)
    return f"{value:016x}"


# Unicode has decompositions for these since version 13; the library's tables are older.
NEWLY_DECOMPOSED = [0x105C9, 0x105E4, 0x11383, 0x11385, 0x1138E, 0x11391, 0x113C5, 0x113C7, 0x113C8, 0x11938]
NEWLY_DECOMPOSED += [*range(0x16121, 0x16129), *range(0x16D68, 0x16D6B)]


def ranges(codes):
    spans = []
    for code in codes:
        if spans and spans[-1][1] == code - 1:
            spans[-1][1] = code
        else:
            spans.append([code, code])
    return spans


def print_characters():
    """The tables of src/text/tokenizer/bert_characters.rs, as BERT's rules have them."""
    off = {"clean_text": False, "handle_chinese_chars": False, "strip_accents": False, "lowercase": False}
    becomes = lambda rule, text: BertNormalizer(**(off | {rule: True})).normalize_str(text)
    words = lambda text: [word for word, _ in BertPreTokenizer().pre_tokenize_str(text)]
    tests = {
        "REMOVED": lambda c: becomes("clean_text", f"a{c}b") == "ab",
        "MARKS": lambda c: becomes("strip_accents", f"a{c}b") == "ab",
        "PUNCTUATION": lambda c: words(f"a{c}b") == ["a", c, "b"],
        "IDEOGRAPHS": lambda c: becomes("handle_chinese_chars", f"a{c}b") != f"a{c}b",
    }
    for name, test in tests.items():
        codes = [code for code in range(0x110000) if not 0xD800 <= code < 0xE000 and test(chr(code))]
        print(name, ", ".join(f"(0x{first:x}, 0x{last:x})" for first, last in ranges(codes)))


def make_bert():
    normalizers = [BertNormalizer(**BERT_RULES[name]) for name in ("uncased", "cased")]
    words = BertPreTokenizer()
    hashes = []
    for start in range(0, 0x110000, 1024):
        characters = [chr(code) for code in range(start, start + 1024) if not 0xD800 <= code < 0xE000]
        characters = [character for character in characters if ord(character) not in NEWLY_DECOMPOSED]
        parts = []
        for character in characters:
            for normalizer in normalizers:
                text = normalizer.normalize_str(f"a{character}b")
                parts += [piece for piece, _ in words.pre_tokenize_str(text)]
        hashes.append(fnv("|".join(parts).encode()))
    write("bert.json", {"left_out": NEWLY_DECOMPOSED, "hashes": hashes})


if __name__ == "__main__":
    if sys.argv[1:] == ["characters"]:
        print_characters()
        sys.exit()
    OUT.mkdir(exist_ok=True)
    make_splits()
    make_byte_pairs()
    make_sentencepiece()
    make_unigram()
    make_wordpiece()
    make_bert()
