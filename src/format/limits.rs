//! What a file may declare at most. A file beyond a limit is refused where that number is read, before anything is built from it.
//!
//! Each limit is a few times what the largest public models have, so that it meets absurd files alone. README.md lists them.

/// Bytes of metadata and tensor directory together; public files have up to 16 MB.
pub const HEADER_BYTES: usize = 128 << 20;
/// Metadata entries, and arrays within arrays; public files have about 60.
pub const METADATA_VALUES: usize = 1 << 16;
/// Tensors of one file; public ones have up to 2,000.
pub const TENSORS: usize = 1 << 16;
/// Bytes of a token's text as it stands in the file; MPT's longest token takes 1,024.
pub const TOKEN_BYTES: usize = 4096;
/// Tokens, which are the rows of the embedding; XLM-V has 901,629.
pub const VOCAB: usize = 1 << 21;
/// Layers; Llama 3.1 405B has 126.
pub const LAYERS: usize = 1024;
/// Elements of a token's vector between layers; Llama 3.1 405B has 16,384.
pub const HIDDEN: usize = 1 << 17;
/// Elements between the halves of a feed-forward block; Falcon 180B has 59,392.
pub const FEED_FORWARD: usize = 1 << 20;
/// Experts of a layer; Qwen3-Next has 512.
pub const EXPERTS: usize = 1024;
/// Experts that a row has; public models have up to 10.
pub const CHOSEN: usize = 64;
/// Query heads of a layer, and key-value heads; Falcon 180B has 232.
pub const HEADS: usize = 1024;
/// Rows of a matrix of a state; Mamba 2 has 128 or 256.
pub const STATE: usize = 1 << 12;
/// Tokens of the longest sequence; Llama 4 Scout has 10,485,760.
pub const CONTEXT: usize = 1 << 24;
/// Rank of an adapter's matrices; public ones have up to 256.
pub const ADAPTER_RANK: usize = 1 << 12;
/// Bytes of the header of a safetensors file; public ones have up to 0.3 MB.
pub const SAFETENSORS_HEADER_BYTES: usize = 16 << 20;
/// Files of a folder's weights; public folders have up to 200.
pub const SHARDS: usize = 4096;
/// Bytes of a configuration; public ones have up to 40 kB.
pub const CONFIG_BYTES: usize = 4 << 20;
/// Bytes of `tokenizer.json`; Gemma 3's has 33 MB.
pub const TOKENIZER_BYTES: usize = 64 << 20;
