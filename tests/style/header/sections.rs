//! The sections of `include/segno.h`, in the order in which a host uses them.

/// One section.
pub struct Section {
    pub title: &'static str,
    /// What its nouns are; lines of plain text.
    pub text: &'static str,
    /// Files of `src/ffi` whose declarations it holds.
    pub files: &'static [&'static str],
}

pub const SECTIONS: [Section; 19] = [
    Section {
        title: "Library",
        text: "Every call answers a segno_status. The numbers of the library and of its ABI tell a host what it runs with:\nsegno_ctx_create compares the ABI.",
        files: &["status", "version"],
    },
    Section {
        title: "Errors",
        text: "A segno_error is what a failed call leaves behind: the status, a message of one line for people, and the item of a list\nthat it concerns. The caller frees it.",
        files: &["error"],
    },
    Section {
        title: "Contexts",
        text: "A segno_ctx is one device in use: the threads that compute, or a GPU with its streams, and the log. A process has one for\neach device that it uses. Models are loaded into it, and keep it alive.",
        files: &["ctx"],
    },
    Section {
        title: "Devices",
        text: "What this machine has, before a context is made on one: device 0 is the processor, those behind it are GPUs.",
        files: &["device"],
    },
    Section {
        title: "Models",
        text: "A segno_model is what a file or folder holds, on the device of its context: weights, tokenizer, chat template, metadata. It\nnever changes once it is loaded, so any number of threads and sessions share it.",
        files: &["model"],
    },
    Section {
        title: "Text",
        text: "Tokens of a text and text of tokens. A segno_text turns a stream of tokens into text that may be shown: whole characters\nonly, and nothing that may be the beginning of a stop string.",
        files: &["text"],
    },
    Section {
        title: "Chat",
        text: "A conversation as JSON becomes the text that a model was trained on, by the model's template or another one.",
        files: &["chat"],
    },
    Section {
        title: "Replies",
        text: "A segno_reply tells what the tokens of an assistant mean, whatever way its family writes: reasoning, content, and calls of tools\nwith arguments as JSON.",
        files: &["reply"],
    },
    Section {
        title: "Sessions",
        text: "A segno_session is everything that changes while a model runs: the cache of keys and values, and the buffers of a pass. All of\nits memory is taken when it is created; steps take none.",
        files: &["session"],
    },
    Section {
        title: "Sequences",
        text: "A sequence is one text of a session, named by a number: the tokens so far, what is cached of them, and how the next one is\nchosen. It is opened, fed, forked, cut back and closed; forks share what they have in common.",
        files: &["seq"],
    },
    Section {
        title: "Decoding",
        text: "One token a call for one sequence, or for many in one pass. Queued prompts are evaluated on the way.",
        files: &["decode"],
    },
    Section {
        title: "Embeddings",
        text: "Vectors of texts, to be compared with each other: by models that were made for that, and by any other.",
        files: &["embed"],
    },
    Section {
        title: "Frame loops",
        text: "Steps that a host does not wait for: it submits one, draws its frame, and polls. A budget in microseconds bounds the slices of long\nprompts. One thread of the host is enough.",
        files: &["submit"],
    },
    Section {
        title: "Saved sequences",
        text: "A sequence outlives its session as bytes: what a host keeps of a game or a conversation goes on where it stopped, with the same\ntokens, without its prompt being evaluated again.",
        files: &["saved"],
    },
    Section {
        title: "Grammars",
        text: "A segno_grammar says which tokens may follow, so that a text is JSON of a schema, or what an expression or rules describe. It is\ncompiled once for a model, and given to any number of sequences.",
        files: &["grammar"],
    },
    Section {
        title: "Adapters",
        text: "A segno_adapter changes what a model says (LoRA) and leaves its weights alone. Several are loaded beside one model, chosen and\nscaled for each sequence, and mixed in one pass.",
        files: &["adapter"],
    },
    Section {
        title: "Tools",
        text: "A grammar of replies that call tools: what the model's family writes, with arguments that meet the schemas of the tools.",
        files: &["tools"],
    },
    Section {
        title: "Conversations",
        text: "A segno_chat holds the messages of a conversation and answers them in a sequence of its own: a message, then steps until the\nreply is over. What the cache has of earlier turns is kept.",
        files: &["conversation", "turn", "chat_submit"],
    },
    Section {
        title: "Plans",
        text: "What a model and a session would take, from the header of a file or the configuration of a folder alone.",
        files: &["plan"],
    },
];
