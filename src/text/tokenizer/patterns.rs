//! The pre-tokenizers that `tokenizer.ggml.pre` names: constant tables.
//!
//! The patterns are those that the models' own tokenizer files publish. Where these end in `\s+(?!\S)|\s+`, the table has
//! `\s+` and a [`Spaces`]; where they count digits from the right by look-ahead, a [`Rule::DigitGroups`].

use super::parts::{Alphabet, WholeWords};

/// One step of a pre-tokenizer.
#[derive(Clone, Copy, Debug)]
pub enum Rule<'a> {
    /// Cuts out every match.
    Pattern(&'a str, Spaces),
    /// Cuts every match, a run of digits, into groups of three counted from its right end.
    DigitGroups(&'a str, Groups),
}

/// Which of the groups of a run of digits are cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Groups {
    /// All, so that what is beside the run is cut off too.
    All,
    /// As `All`, but a run that a word goes on behind stays as it is.
    AllAtWordEnd,
    /// A cut before each group of three and no other: a shorter one stays with what is before the run, the last with what
    /// follows.
    BeforeThrees,
}

/// What becomes of a match that is white space alone and stands before other text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Spaces {
    /// It stays whole.
    Whole,
    /// Its last character goes to what follows.
    Ahead,
    /// As `Ahead`, unless it ends a line: the pattern takes line ends first.
    AheadInLine,
    /// As `AheadInLine`, and the rest is cut into powers of two up to 512, the largest first.
    Doubling,
}

/// What a name of a pre-tokenizer stands for.
#[derive(Debug)]
pub(super) struct Family {
    names: &'static [&'static str],
    /// How words are cut.
    pub(super) rules: &'static [Rule<'static>],
    /// Which words skip merging.
    pub(super) whole_words: WholeWords,
    /// Spelling of the normal tokens.
    pub(super) alphabet: Alphabet,
    /// Whether a begin token is added where the file does not say.
    pub(super) add_bos: bool,
    /// Whether `<mask>` swallows the white space before it.
    pub(super) mask_strips: bool,
}

impl Family {
    /// The family of files that name none.
    pub(super) fn of_old_files() -> &'static Family {
        &FAMILIES[0]
    }

    /// All of them.
    pub(super) fn all() -> &'static [Family] {
        FAMILIES
    }

    /// Its names.
    pub(super) fn own_names(&self) -> &'static [&'static str] {
        self.names
    }

    /// All names.
    #[cfg(test)]
    pub(super) fn names() -> impl Iterator<Item = &'static str> {
        FAMILIES.iter().flat_map(|family| family.names.iter().copied())
    }

    /// The family that `name` belongs to.
    pub(super) fn named(name: &str) -> Option<&'static Family> {
        FAMILIES.iter().find(|family| family.names.contains(&name))
    }
}

const PLAIN: Family = Family {
    names: &[],
    rules: &[],
    whole_words: WholeWords::Never,
    alphabet: Alphabet::ByteLevel,
    add_bos: false,
    mask_strips: false,
};

static FAMILIES: &[Family] = &[
    Family { names: &["default"], rules: DEFAULT, ..PLAIN },
    Family {
        names: &[
            "gpt-2",
            "phi-2",
            "jais",
            "trillion",
            "granite-docling",
            "gigachat",
            "a.x-4.0",
            "mellum",
            "exaone4",
            "jina-es",
            "jina-de",
            "mpt",
            "olmo",
            "modern-bert",
        ],
        rules: GPT2,
        ..PLAIN
    },
    Family {
        names: &["roberta-bpe", "jina-v1-en", "jina-v2-code", "jina-v2-es", "jina-v2-de"],
        rules: GPT2,
        mask_strips: true,
        ..PLAIN
    },
    Family {
        names: &[
            "llama3",
            "llama-v3",
            "llama-bpe",
            "falcon3",
            "falcon-h1",
            "pixtral",
            "midm-2.0",
            "lfm2",
            "jina-v5-nano",
        ],
        rules: LLAMA3,
        whole_words: WholeWords::Always,
        add_bos: true,
        ..PLAIN
    },
    Family { names: &["dbrx", "smaug-bpe", "glm4", "chatglm-bpe"], rules: LLAMA3, ..PLAIN },
    Family { names: &["minicpm5"], rules: MINICPM5, whole_words: WholeWords::Always, ..PLAIN },
    Family {
        names: &[
            "qwen2",
            "f2llmv2",
            "stablelm2",
            "hunyuan",
            "deepseek-r1-qwen",
            "kormo",
            "megrez",
            "solar-open",
            "grok-2",
        ],
        rules: QWEN2,
        ..PLAIN
    },
    Family { names: &["qwen35"], rules: QWEN35, ..PLAIN },
    Family { names: &["ufakzeka"], rules: UFAKZEKA, ..PLAIN },
    Family { names: &["laguna"], rules: LAGUNA, ..PLAIN },
    Family { names: &["jais-2"], rules: JAIS2, ..PLAIN },
    Family { names: &["deepseek-llm"], rules: DEEPSEEK_LLM, ..PLAIN },
    Family { names: &["deepseek-coder"], rules: DEEPSEEK_CODER, ..PLAIN },
    Family { names: &["deepseek-v3", "hunyuan-dense", "hy_v4", "joyai-llm"], rules: DEEPSEEK_V3, ..PLAIN },
    Family { names: &["spark2_5"], rules: SPARK, ..PLAIN },
    Family { names: &["youtu"], rules: YOUTU, whole_words: WholeWords::Always, ..PLAIN },
    Family { names: &["falcon"], rules: FALCON, ..PLAIN },
    Family {
        names: &["starcoder", "command-r", "refact", "smollm", "codeshell", "exaone", "minerva-7b", "mellum2"],
        rules: STARCODER,
        ..PLAIN
    },
    Family { names: &["poro-chat", "bloom", "gpt3-finnish"], rules: BLOOM, ..PLAIN },
    Family { names: &["viking"], rules: VIKING, ..PLAIN },
    Family { names: &["tekken"], rules: TEKKEN, whole_words: WholeWords::Always, add_bos: true, ..PLAIN },
    Family { names: &["chameleon"], rules: CHAMELEON, add_bos: true, ..PLAIN },
    Family { names: &["gpt-4o", "llama4", "kanana2", "talkie", "minimax-m2"], rules: GPT4O, ..PLAIN },
    Family { names: &["granite-embed-multi-97m"], rules: GPT4O, whole_words: WholeWords::Always, ..PLAIN },
    Family { names: &["tiny_aya", "cohere2moe"], rules: TINY_AYA, ..PLAIN },
    Family { names: &["kimi-k2"], rules: KIMI_K2, ..PLAIN },
    Family { names: &["superbpe"], rules: SUPERBPE, ..PLAIN },
    Family { names: &["bailingmoe", "bailingmoe2", "llada-moe"], rules: BAILING, ..PLAIN },
    Family { names: &["seed-coder"], rules: SEED_CODER, ..PLAIN },
    Family { names: &["afmoe"], rules: AFMOE, ..PLAIN },
    Family { names: &["exaone-moe"], rules: EXAONE_MOE, ..PLAIN },
    Family {
        names: &["gemma4", "granite-embed-multi-311m"],
        rules: LINES,
        whole_words: WholeWords::LineFeeds,
        alphabet: Alphabet::Escaped,
        add_bos: true,
        ..PLAIN
    },
    Family { names: &["sarvam-moe"], rules: LINES, alphabet: Alphabet::Escaped, ..PLAIN },
];

const GPT2_WORDS: Rule<'static> =
    Rule::Pattern(r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+", Spaces::Ahead);
const QWEN2_WORDS: Rule<'static> = Rule::Pattern(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+",
    Spaces::AheadInLine,
);
const LINE_WORDS: Rule<'static> = Rule::Pattern(r"[^\n]+|[\n]+", Spaces::Whole);
const DIGIT: Rule<'static> = Rule::Pattern(r"\p{N}", Spaces::Whole);
const THREE_DIGITS: Rule<'static> = Rule::Pattern(r"\p{N}{1,3}", Spaces::Whole);
const THREE_ASCII_DIGITS: Rule<'static> = Rule::Pattern("[0-9][0-9][0-9]", Spaces::Whole);
const CHINESE_AND_KANA: Rule<'static> = Rule::Pattern(r"[一-龥\x{3040}-ヿ]+", Spaces::Whole);
const CHINESE_AND_HANGUL: Rule<'static> = Rule::Pattern(r"[\x{800}-龥가-\x{d7ff}]+", Spaces::Whole);
const LINE_END: Rule<'static> = Rule::Pattern(r"[\r\n]", Spaces::Whole);
const DEEPSEEK_V3_WORDS: Rule<'static> = Rule::Pattern(
    r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+"##,
    Spaces::AheadInLine,
);
const GPT4O_WORDS: Rule<'static> = Rule::Pattern(
    concat!(
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
        r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
        r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+"
    ),
    Spaces::AheadInLine,
);

const DEFAULT: &[Rule<'static>] = &[
    Rule::Pattern(r"[\p{P}\$\+<=>\^~\|]+", Spaces::Whole),
    GPT2_WORDS,
    Rule::Pattern(r"\p{N}+", Spaces::Whole),
    THREE_ASCII_DIGITS,
];
const GPT2: &[Rule<'static>] = &[GPT2_WORDS];
const LLAMA3: &[Rule<'static>] = &[Rule::Pattern(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+",
    Spaces::AheadInLine,
)];
const MINICPM5: &[Rule<'static>] = &[
    THREE_DIGITS,
    Rule::Pattern(
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}+| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+",
        Spaces::AheadInLine,
    ),
];
const QWEN2: &[Rule<'static>] = &[QWEN2_WORDS];
const QWEN35: &[Rule<'static>] = &[Rule::Pattern(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+",
    Spaces::AheadInLine,
)];
const UFAKZEKA: &[Rule<'static>] =
    &[Rule::Pattern(r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+", Spaces::AheadInLine)];
const LAGUNA: &[Rule<'static>] = &[LINE_WORDS, QWEN2_WORDS];
const JAIS2: &[Rule<'static>] = &[Rule::Pattern(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+",
    Spaces::Doubling,
)];
const DEEPSEEK_LLM: &[Rule<'static>] = &[
    LINE_END,
    Rule::Pattern(
        concat!(
            r"\s?[A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚḀ-ἕἘ-Ἕἠ-ὅὈ-Ὅὐ-ὗὙὛὝ",
            r"\x{1f5f}-\x{1f7d}ᾀ-ᾴᾶ-ᾼ\x{1fbe}ῂ-ῄῆ-ῌ\x{1fd0}-\x{1fd3}\x{1fd6}-\x{1fdb}ῠ-Ῥῲ-ῴῶ-ῼℂℇℊ-ℓℕℙ-ℝℤ\x{2126}ℨ\x{212a}-ℭ",
            r"ℯ-ℴℹℼ-ℿⅅ-ⅉⅎↃↄⰀ-ⱻⱾ-ⳤⳫ-ⳮⳲⳳꙀ-ꙭꚀ-ꚛꜢ-ꝯꝱ-ꞇꞋ-ꞎꭰ-ꮿﬀ-ﬆﬓ-ﬗＡ-Ｚａ-ｚ𐐀-𐑏𐒰-𐓓𐓘-𐓻𐲀-𐲲𐳀-𐳲𑢠-𑣟𞤀-𞥃]+"
        ),
        Spaces::Whole,
    ),
    Rule::Pattern(r"\s?[!-/:-~！-／：-～‘-‟\x{3000}-。]+", Spaces::Whole),
    Rule::Pattern(r"\s+$", Spaces::Whole),
    CHINESE_AND_HANGUL,
    Rule::Pattern(r"\p{N}+", Spaces::Whole),
];
const DEEPSEEK_CODER: &[Rule<'static>] = &[
    LINE_END,
    Rule::Pattern(r"\s?\p{L}+", Spaces::Whole),
    Rule::Pattern(r"\s?\p{P}+", Spaces::Whole),
    CHINESE_AND_HANGUL,
    DIGIT,
];
const DEEPSEEK_V3: &[Rule<'static>] = &[THREE_DIGITS, CHINESE_AND_KANA, DEEPSEEK_V3_WORDS];
const SPARK: &[Rule<'static>] = &[
    THREE_DIGITS,
    CHINESE_AND_KANA,
    Rule::Pattern(
        r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+|[\r\n]|\s+"##,
        Spaces::Ahead,
    ),
    DIGIT,
];
const YOUTU: &[Rule<'static>] = &[
    Rule::Pattern(
        r"[가-힣ㄱ-ㆎ]+|[！…“”‘’—：；，\x{3001}-\x{303f}\x{fe30}-\x{fe4f}]+|[ㄅ-ㄯ]+|[一-龥\x{3040}-ヿ]+",
        Spaces::Whole,
    ),
    Rule::Pattern(
        concat!(
            r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
            r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
            r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+"
        ),
        Spaces::AheadInLine,
    ),
];
const FALCON: &[Rule<'static>] =
    &[Rule::Pattern(r"[\p{P}\$\+<=>\^~\|`]+", Spaces::Whole), GPT2_WORDS, THREE_ASCII_DIGITS];
const STARCODER: &[Rule<'static>] = &[DIGIT, GPT2_WORDS];
const BLOOM_WORDS: Rule<'static> = Rule::Pattern(r" ?[^(\s|.,!?…。，、।۔،)]+", Spaces::Whole);
const BLOOM: &[Rule<'static>] = &[BLOOM_WORDS];
const VIKING: &[Rule<'static>] = &[BLOOM_WORDS, DIGIT];
const TEKKEN: &[Rule<'static>] = &[Rule::Pattern(
    concat!(
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+",
        r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*",
        r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+"
    ),
    Spaces::AheadInLine,
)];
const CHAMELEON: &[Rule<'static>] = &[
    Rule::Pattern("<sentinel:[0-9]+>", Spaces::Whole),
    Rule::Pattern("IMGIMG[A-I]{1,4}Z", Spaces::Whole),
    Rule::Pattern(r"[\t\n]|    |  ", Spaces::Whole),
    DIGIT,
    Rule::Pattern(r"[\p{P}!-/:-@\[-`{-~]", Spaces::Whole),
    GPT2_WORDS,
];
const GPT4O: &[Rule<'static>] = &[GPT4O_WORDS];
const TINY_AYA: &[Rule<'static>] = &[Rule::DigitGroups(r"\d+", Groups::AllAtWordEnd), GPT4O_WORDS];
const KIMI_K2: &[Rule<'static>] = &[Rule::Pattern(
    concat!(
        r"\p{Han}+",
        r"|[^\r\n\p{L}\p{N}]?[[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]&&[^\p{Han}]]*[[\p{Ll}\p{Lm}\p{Lo}\p{M}]&&[^\p{Han}]]+",
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
        r"|[^\r\n\p{L}\p{N}]?[[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]&&[^\p{Han}]]+[[\p{Ll}\p{Lm}\p{Lo}\p{M}]&&[^\p{Han}]]*",
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
        r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+"
    ),
    Spaces::AheadInLine,
)];
const SUPERBPE: &[Rule<'static>] =
    &[Rule::Pattern(r"\p{N}+", Spaces::Whole), Rule::DigitGroups(r"\d+", Groups::BeforeThrees)];
const BAILING: &[Rule<'static>] = &[Rule::Pattern(
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]|\s+",
    Spaces::AheadInLine,
)];
const SEED_CODER: &[Rule<'static>] = &[Rule::Pattern(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1}| ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+|\s+",
    Spaces::AheadInLine,
)];
const AFMOE: &[Rule<'static>] = &[
    Rule::DigitGroups(r"\p{N}+", Groups::All),
    Rule::Pattern(
        concat!(
            r"[一-\x{9fff}㐀-䶿\x{f900}-\x{faff}\x{3040}-ヿ･-ﾟ\x{2f00}-\x{2fdf}\x{e00}-\x{eff}\x{1780}-\x{17ff}\x{1000}-\x{109f}",
            r"\x{aa60}-\x{aa7f}\x{a9e0}-\x{a9ff}가-\x{d7af}\x{1100}-\x{11ff}]+"
        ),
        Spaces::Whole,
    ),
    DEEPSEEK_V3_WORDS,
];
const EXAONE_MOE: &[Rule<'static>] = &[Rule::Pattern(
    concat!(
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+",
        r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+"
    ),
    Spaces::AheadInLine,
)];
const LINES: &[Rule<'static>] = &[LINE_WORDS];

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn every_name_belongs_to_one_family_whose_rules_compile() {
        let mut seen = HashSet::new();
        for family in FAMILIES {
            assert!(!family.rules.is_empty());
            super::super::pretokenizer::Pretokenizer::new(family.rules).unwrap();
            for name in family.names {
                assert!(seen.insert(name), "{name} is in two families");
                assert!(std::ptr::eq(Family::named(name).unwrap(), family));
            }
        }
        assert!(Family::named("no-such-name").is_none());
    }
}
