//! How families of models write what they reason, say and call: data alone.
//!
//! A format is a list of markers, each with its role, and a layout, which tells what stands between them. It is chosen by what a chat template
//! contains, or by its name. A marker is a run of special tokens and characters as the model's vocabulary has it.

use crate::error::{Error, Result};

/// What a marker means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mark {
    /// Reasoning begins.
    Think,
    /// Reasoning ends.
    ThinkEnd,
    /// Nothing: it stands before or behind content.
    Idle,
    /// Calls begin.
    Section,
    /// Calls end.
    SectionEnd,
    /// A call begins.
    Call,
    /// A call ends.
    CallEnd,
    /// The name of a function begins, and with it a call.
    Name,
    /// The name ends.
    NameEnd,
    /// The arguments begin, or what is said in a message.
    Body,
    /// The id of a call begins.
    Id,
    /// The name of an argument begins.
    Key,
    /// It ends.
    KeyEnd,
    /// The value of an argument begins; without such a marker it does where the name ends.
    Value,
    /// The value ends.
    ValueEnd,
    /// A string begins or ends.
    Quote,
    /// The channel of a message follows.
    Channel,
    /// A message begins.
    Message,
    /// A message ends.
    MessageEnd,
    /// The type of the content follows.
    Constrain,
}

/// How a call is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Layout {
    /// There are no calls.
    None,
    /// An object of JSON with name and arguments, or a list of such; also `name[ARGS]{...}` where there is a marker [`Mark::Body`].
    Object,
    /// The same without a marker before it, where the reply begins with it and tools were given.
    Bare,
    /// The name up to [`Mark::Body`], then the arguments as JSON.
    Headed,
    /// Each argument by itself: text as it is, everything else as JSON.
    Tagged,
    /// Calls of Python in a list.
    Python,
    /// `call:NAME` and Gemma's notation of values.
    Gemma,
    /// Messages with a header, which tells channel and recipient.
    Harmony,
    /// The recipient on a line of its own, `all` for content.
    Recipient,
}

/// A way to write replies.
#[derive(Debug)]
pub(super) struct Format {
    /// What hosts call it.
    pub(super) name: &'static str,
    /// What a template of it contains: all of one of these.
    signs: &'static [&'static [&'static str]],
    pub(super) layout: Layout,
    pub(super) marks: &'static [(Mark, &'static str)],
    /// Whether a line feed stands before and behind each value.
    pub(super) lines: bool,
    /// Whether a call ends reasoning that has not been ended.
    pub(super) call_ends_thinking: bool,
    /// Whether there may be reasoning behind content.
    pub(super) rethinks: bool,
}

const PLAIN: Format = Format {
    name: "plain",
    signs: &[],
    layout: Layout::None,
    marks: &[],
    lines: false,
    call_ends_thinking: false,
    rethinks: false,
};

use Mark::*;

const TAGS: [(Mark, &str); 2] = [(Think, "<think>"), (ThinkEnd, "</think>")];

/// All formats, those that are told by rarer signs first.
pub(super) const FORMATS: &[Format] = &[
    Format {
        name: "harmony",
        signs: &[&["<|channel|>", "<|message|>", "<|start|>"]],
        layout: Layout::Harmony,
        marks: &[
            (Message, "<|start|>"),
            (Channel, "<|channel|>"),
            (Constrain, "<|constrain|>"),
            (Body, "<|message|>"),
            (MessageEnd, "<|end|>"),
            (MessageEnd, "<|return|>"),
            (CallEnd, "<|call|>"),
        ],
        rethinks: true,
        ..PLAIN
    },
    Format {
        name: "gemma4",
        signs: &[&["<|tool_call>", "<|channel>"]],
        layout: Layout::Gemma,
        marks: &[
            (Think, "<|channel>thought\n"),
            (ThinkEnd, "<channel|>"),
            (Call, "<|tool_call>"),
            (CallEnd, "<tool_call|>"),
            (Quote, "<|\"|>"),
        ],
        rethinks: true,
        ..PLAIN
    },
    Format {
        name: "dsml",
        signs: &[&["｜DSML｜"]],
        layout: Layout::Tagged,
        marks: &[
            TAGS[0],
            TAGS[1],
            (Section, "<｜DSML｜tool_calls>"),
            (Section, "<｜DSML｜function_calls>"),
            (Name, "<｜DSML｜invoke name=\""),
            (NameEnd, "\">"),
            (Key, "<｜DSML｜parameter name=\""),
            (KeyEnd, "\" string=\""),
            (Value, "\">"),
            (ValueEnd, "</｜DSML｜parameter>"),
            (CallEnd, "</｜DSML｜invoke>"),
            (SectionEnd, "</｜DSML｜tool_calls>"),
            (SectionEnd, "</｜DSML｜function_calls>"),
        ],
        ..PLAIN
    },
    Format {
        name: "deepseek",
        signs: &[&["<｜tool▁calls▁begin｜>"]],
        layout: Layout::Headed,
        marks: &[
            TAGS[0],
            TAGS[1],
            (Section, "<｜tool▁calls▁begin｜>"),
            (SectionEnd, "<｜tool▁calls▁end｜>"),
            (Call, "<｜tool▁call▁begin｜>"),
            (Body, "<｜tool▁sep｜>"),
            (CallEnd, "<｜tool▁call▁end｜>"),
        ],
        ..PLAIN
    },
    Format {
        name: "kimi-k2",
        signs: &[&["<|tool_calls_section_begin|>"]],
        layout: Layout::Headed,
        marks: &[
            TAGS[0],
            TAGS[1],
            (Section, "<|tool_calls_section_begin|>"),
            (SectionEnd, "<|tool_calls_section_end|>"),
            (Call, "<|tool_call_begin|>"),
            (Body, "<|tool_call_argument_begin|>"),
            (CallEnd, "<|tool_call_end|>"),
        ],
        ..PLAIN
    },
    Format {
        name: "kimi-k3",
        signs: &[&["<|open|>", "<|close|>", "<|sep|>"]],
        layout: Layout::Tagged,
        marks: &[
            (Think, "<|open|>think<|sep|>"),
            (ThinkEnd, "<|close|>think<|sep|>"),
            (Idle, "<|open|>response<|sep|>"),
            (Idle, "<|close|>response<|sep|>"),
            (Idle, "<|close|>message<|sep|>"),
            (Section, "<|open|>tools<|sep|>"),
            (Name, "<|open|>call tool=\""),
            (NameEnd, "\" index=\""),
            (Key, "<|open|>argument key=\""),
            (KeyEnd, "\" type=\""),
            (Value, "\"<|sep|>"),
            (ValueEnd, "<|close|>argument<|sep|>"),
            (CallEnd, "<|close|>call<|sep|>"),
            (SectionEnd, "<|close|>tools<|sep|>"),
        ],
        ..PLAIN
    },
    Format {
        name: "minimax-m2",
        signs: &[&["minimax:tool_call"]],
        layout: Layout::Tagged,
        marks: &[
            TAGS[0],
            TAGS[1],
            (Section, "<minimax:tool_call>"),
            (Name, "<invoke name=\""),
            (NameEnd, "\">"),
            (Key, "<parameter name=\""),
            (KeyEnd, "\">"),
            (ValueEnd, "</parameter>"),
            (CallEnd, "</invoke>"),
            (SectionEnd, "</minimax:tool_call>"),
        ],
        ..PLAIN
    },
    Format {
        name: "hunyuan",
        signs: &[&["<tool_call{}>", ":opensource"]],
        layout: Layout::Tagged,
        marks: &[
            (Think, "<think:opensource>"),
            (ThinkEnd, "</think:opensource>"),
            (Section, "<tool_calls:opensource>"),
            (Name, "<tool_call:opensource>"),
            (NameEnd, "<tool_sep:opensource>"),
            (Key, "<arg_key:opensource>"),
            (KeyEnd, "</arg_key:opensource>"),
            (Value, "<arg_value:opensource>"),
            (ValueEnd, "</arg_value:opensource>"),
            (CallEnd, "</tool_call:opensource>"),
            (SectionEnd, "</tool_calls:opensource>"),
        ],
        ..PLAIN
    },
    Format {
        name: "glm4",
        signs: &[&["<arg_key>", "<tool_call>"]],
        layout: Layout::Tagged,
        marks: &[
            TAGS[0],
            TAGS[1],
            (Name, "<tool_call>"),
            (NameEnd, "\n"),
            (Key, "<arg_key>"),
            (KeyEnd, "</arg_key>"),
            (Value, "<arg_value>"),
            (ValueEnd, "</arg_value>"),
            (CallEnd, "</tool_call>"),
        ],
        ..PLAIN
    },
    Format {
        name: "qwen3-coder",
        signs: &[&["<function=", "<parameter="]],
        layout: Layout::Tagged,
        marks: &[
            TAGS[0],
            TAGS[1],
            (Section, "<tool_call>"),
            (Name, "<function="),
            (NameEnd, ">"),
            (Key, "<parameter="),
            (KeyEnd, ">"),
            (ValueEnd, "</parameter>"),
            (CallEnd, "</function>"),
            (SectionEnd, "</tool_call>"),
        ],
        lines: true,
        call_ends_thinking: true,
        ..PLAIN
    },
    Format {
        name: "minicpm5",
        signs: &[&["<function name=", "<param name="]],
        layout: Layout::Tagged,
        marks: &[
            TAGS[0],
            TAGS[1],
            (Name, "<function name=\""),
            (NameEnd, "\">"),
            (Key, "<param name=\""),
            (KeyEnd, "\">"),
            (KeyEnd, "\"><![CDATA["),
            (ValueEnd, "</param>"),
            (ValueEnd, "]]></param>"),
            (CallEnd, "</function>"),
        ],
        ..PLAIN
    },
    Format {
        name: "lfm2",
        signs: &[&["<|tool_call_start|>"]],
        layout: Layout::Python,
        marks: &[TAGS[0], TAGS[1], (Call, "<|tool_call_start|>"), (CallEnd, "<|tool_call_end|>")],
        ..PLAIN
    },
    Format {
        name: "cohere",
        signs: &[&["<|START_ACTION|>"]],
        layout: Layout::Object,
        marks: &[
            (Think, "<|START_THINKING|>"),
            (ThinkEnd, "<|END_THINKING|>"),
            (Idle, "<|START_RESPONSE|>"),
            (Idle, "<|END_RESPONSE|>"),
            (Idle, "<|START_TEXT|>"),
            (Idle, "<|END_TEXT|>"),
            (Call, "<|START_ACTION|>"),
            (CallEnd, "<|END_ACTION|>"),
        ],
        ..PLAIN
    },
    Format {
        name: "gigachat",
        signs: &[&["<|function_call|>"]],
        layout: Layout::Object,
        marks: &[(Call, "<|function_call|>")],
        ..PLAIN
    },
    Format {
        name: "functionary",
        signs: &[&["'>>>"], &[">>>all"], &[">>>'"]],
        layout: Layout::Recipient,
        marks: &[(Message, ">>>")],
        ..PLAIN
    },
    Format {
        name: "mistral",
        signs: &[&["[TOOL_CALLS]"]],
        layout: Layout::Object,
        marks: &[
            (Think, "[THINK]"),
            (ThinkEnd, "[/THINK]"),
            (Call, "[TOOL_CALLS]"),
            (Id, "[CALL_ID]"),
            (Body, "[ARGS]"),
        ],
        ..PLAIN
    },
    Format {
        name: "nemotron",
        signs: &[&["<TOOLCALL>"]],
        layout: Layout::Object,
        marks: &[TAGS[0], TAGS[1], (Call, "<TOOLCALL>"), (CallEnd, "</TOOLCALL>"), (Idle, "<SPECIAL_12>")],
        ..PLAIN
    },
    Format {
        name: "firefunction",
        signs: &[&["functools["]],
        layout: Layout::Object,
        marks: &[(Call, "functools[")],
        ..PLAIN
    },
    Format {
        name: "hermes",
        signs: &[&["<tool_call>"]],
        layout: Layout::Object,
        marks: &[TAGS[0], TAGS[1], (Call, "<tool_call>"), (CallEnd, "</tool_call>")],
        ..PLAIN
    },
    Format {
        name: "llama3",
        signs: &[&["<|python_tag|>"], &["\"parameters\": ", "ipython"]],
        layout: Layout::Bare,
        marks: &[(Call, "<|python_tag|>")],
        ..PLAIN
    },
    Format { name: "think", signs: &[&["<think>"], &["</think>"]], marks: &TAGS, ..PLAIN },
    PLAIN,
];

impl Format {
    /// The format of a chat template, by what the template contains.
    pub(super) fn of_template(template: &str) -> &'static Format {
        let has = |signs: &&'static [&'static str]| signs.iter().all(|sign| template.contains(sign));
        FORMATS.iter().find(|format| format.signs.iter().any(has)).unwrap_or(&FORMATS[FORMATS.len() - 1])
    }

    /// The format that hosts call `name`.
    pub(super) fn named(name: &str) -> Result<&'static Format> {
        FORMATS.iter().find(|format| format.name == name).ok_or_else(|| {
            let names: Vec<&str> = FORMATS.iter().map(|format| format.name).collect();
            let name = crate::error::Excerpt(name.as_bytes());
            Error::NotFound(format!("there is no reply format `{name}`; choose one of {}", names.join(", ")))
        })
    }
}
