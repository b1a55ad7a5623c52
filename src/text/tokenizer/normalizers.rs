//! Which models normalize text before they tokenize it, by the name of their pre-tokenizer: one table.
//!
//! A GGUF file does not say what its model's own library does to text first, and llama.cpp does nothing. The names of [`KNOWN`] do what
//! the source beside them shows; all others do nothing, as llama.cpp.

use super::parts::Normalizer;

/// What the models of some names do, and where that stands.
struct Known {
    names: &'static [&'static str],
    normalizer: Normalizer<'static>,
}

const fn composing(names: &'static [&'static str]) -> Known {
    Known { names, normalizer: Normalizer::Nfc }
}

const fn plain(names: &'static [&'static str]) -> Known {
    Known { names, normalizer: Normalizer::None }
}

/// Sources are classes of `transformers`, which make tokenizers from nothing but a vocabulary, and published tokenizer.json files.
#[rustfmt::skip]
static KNOWN: &[Known] = &[
    composing(&["qwen2"]),                             // Qwen2Tokenizer; tokenizer.json of Qwen3
    composing(&["f2llmv2"]),                           // a Qwen3 that was trained further
    composing(&["qwen35"]),                            // Qwen3_5Tokenizer
    composing(&["command-r", "tiny_aya", "cohere2moe"]), // CohereTokenizer, for `cohere` and `cohere2`
    composing(&["mpt"]),                               // GPTNeoXTokenizer; tokenizer.json of MPT
    composing(&["olmo"]),                              // GPTNeoXTokenizer, for `olmo` and `olmoe`
    composing(&["modern-bert"]),                       // tokenizer.json of ModernBERT
    composing(&["stablelm2"]),                         // the model's tokenization_arcade100k.py
    composing(&["hunyuan"]),                           // the model's tokenization_hy.py
    plain(&["gpt-2", "phi-2", "starcoder", "dbrx", "jais-2"]), // GPT2Tokenizer; tokenizer.json of GPT-2
    plain(&["roberta-bpe"]),                           // RobertaTokenizer
    plain(&["llama3", "llama-v3", "llama-bpe"]),       // tokenizer.json of Llama 3
    plain(&["smaug-bpe"]),                             // a Llama 3 that was trained further
    plain(&["gpt-4o"]),                                // tokenizer.json of GPT-4o and gpt-oss
    plain(&["deepseek-v3"]),                           // tokenizer.json of DeepSeek V3
    plain(&["gemma4"]),                                // GemmaTokenizer: spaces alone, which the vocabulary's spelling says
    plain(&["llama4", "kimi-k2", "tekken"]),           // tiktoken files, whose library has no normalizers
];

/// Names that no source was found for. Of `jina-v2-code` it is known that the model normalizes text, but not how.
#[cfg(test)]
#[rustfmt::skip]
const UNKNOWN: &[&str] = &[
    "a.x-4.0", "afmoe", "bailingmoe", "bailingmoe2", "bloom", "chameleon", "chatglm-bpe", "codeshell",
    "deepseek-coder", "deepseek-llm", "deepseek-r1-qwen", "default", "exaone", "exaone-moe", "exaone4", "falcon",
    "falcon-h1", "falcon3", "gigachat", "glm4", "gpt3-finnish", "granite-docling", "granite-embed-multi-311m",
    "granite-embed-multi-97m", "grok-2", "hunyuan-dense", "hy_v4", "jais", "jina-de", "jina-es", "jina-v1-en",
    "jina-v2-code", "jina-v2-de", "jina-v2-es", "jina-v5-nano", "joyai-llm", "kanana2", "kormo", "laguna", "lfm2",
    "llada-moe", "megrez", "mellum", "mellum2", "midm-2.0", "minerva-7b", "minicpm5", "minimax-m2", "pixtral",
    "poro-chat", "refact", "sarvam-moe", "seed-coder", "smollm", "solar-open", "spark2_5", "superbpe", "talkie",
    "trillion", "ufakzeka", "viking", "youtu",
];

/// What the models do whose files name the pre-tokenizer `name`.
pub(super) fn named(name: &str) -> Normalizer<'static> {
    KNOWN.iter().find(|known| known.names.contains(&name)).map_or(Normalizer::None, |known| known.normalizer)
}

#[cfg(test)]
mod tests {
    use super::{KNOWN, UNKNOWN};
    use crate::text::tokenizer::patterns::Family;

    #[test]
    fn every_name_of_a_pre_tokenizer_stands_in_one_list() {
        let known = || KNOWN.iter().flat_map(|known| known.names);
        let mut all: Vec<&str> = known().chain(UNKNOWN).copied().collect();
        let mut names: Vec<&str> = Family::names().collect();
        all.sort_unstable();
        names.sort_unstable();
        assert_eq!(all, names);
    }
}
