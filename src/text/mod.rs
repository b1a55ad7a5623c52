//! Text in and out: tokenizers, chat templates, streaming detokenization.
