"""Makes the goldens of the text tests with public tokenizers: tests/golden/text/*.json.

    python3 -m venv venv && venv/bin/pip install tokenizers==0.23.3 sentencepiece==0.2.3
    venv/bin/python tests/golden/make_text.py

splits.json         how each pre-tokenizer cuts each text, by its published definition in `tokenizers`
byte_pair.json      a small byte-level vocabulary with merges across words, and the ids of each text by pre-tokenizer
sentencepiece.json  small SentencePiece models with their flags, and the ids of each text
"""

import io
import json
import pathlib

import sentencepiece
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from tokenizers.pre_tokenizers import ByteLevel, Digits, Punctuation, Sequence, Split

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
]

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


PRE_TOKENIZERS = {
    "gpt-2": [gpt2()],
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
    "tiny_aya": split(r"\d{1,3}(?=(?:\d{3})*\b)", GPT4O),
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


SPECIALS = ["<|begin|>", "<|end_of_text|>", "<|end_of_text|>x"]
USER_DEFINED = ["   ", "<tool>"]
WITH_SPECIALS = [
    "<|begin|>Hello<|end_of_text|>",
    "a<|end_of_text|>xy<|end_of_text|> z",
    "<tool>   <|begin|>    <tool",
    "<|begin|><|begin|>",
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
        ids[name] = [tokenizer.encode(text).ids for text in TEXTS]
        tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in SPECIALS])
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
    buffer = io.BytesIO()
    sentences = iter(line for text in TEXTS for line in text.splitlines() if line.isascii() and line.strip())
    sentencepiece.SentencePieceTrainer.train(sentence_iterator=sentences, model_writer=buffer, **settings)
    return settings, sentencepiece.SentencePieceProcessor(model_proto=buffer.getvalue())


def kind(model, token):
    """The number of the token's kind in a GGUF file."""
    if model.is_unknown(token):
        return 2
    if model.is_control(token):
        return 3
    if model.is_byte(token):
        return 6
    return 5 if model.is_unused(token) else 1


def make_sentencepiece():
    cases = {}
    for name, options in SENTENCEPIECE_MODELS.items():
        settings, model = train_sentencepiece(options)
        symbols = settings.get("user_defined_symbols", [])
        size = model.get_piece_size()
        pieces = [model.id_to_piece(token) for token in range(size)]
        cases[name] = {
            "tokens": [piece.replace("▁", " ") if piece in symbols else piece for piece in pieces],
            "scores": [model.get_score(token) for token in range(size)],
            "kinds": [4 if pieces[token] in symbols else kind(model, token) for token in range(size)],
            "add_space_prefix": settings["add_dummy_prefix"],
            "remove_extra_whitespaces": settings["remove_extra_whitespaces"],
            "ids": [model.encode(text) for text in TEXTS],
        }
    write("sentencepiece.json", {"texts": TEXTS, "models": cases})


if __name__ == "__main__":
    OUT.mkdir(exist_ok=True)
    make_splits()
    make_byte_pairs()
    make_sentencepiece()
