//! How families of models write what they reason, say and call: data alone, a row a family.

use super::formats::{Format, Layout, Mark};
use super::writings::*;

const PLAIN: Format = Format {
    name: "plain",
    signs: &[],
    layout: Layout::None,
    marks: &[],
    lines: false,
    call_ends_thinking: false,
    rethinks: false,
    writings: &[],
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
        writings: &[("", HARMONY)],
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
        writings: &[("", GEMMA4)],
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
        writings: &[("", DSML)],
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
        writings: &[("```json", DEEPSEEK_FENCED), ("", DEEPSEEK)],
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
        writings: &[("", KIMI_K2)],
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
        writings: &[("", KIMI_K3)],
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
        writings: &[("", MINIMAX_M2)],
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
        writings: &[("", HUNYUAN)],
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
        writings: &[("", GLM4)],
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
        writings: &[("", QWEN3_CODER)],
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
        writings: &[("", MINICPM5)],
        ..PLAIN
    },
    Format {
        name: "lfm2",
        signs: &[&["<|tool_call_start|>"]],
        layout: Layout::Python,
        marks: &[TAGS[0], TAGS[1], (Call, "<|tool_call_start|>"), (CallEnd, "<|tool_call_end|>")],
        writings: &[("", LFM2)],
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
        writings: &[("", COHERE)],
        ..PLAIN
    },
    Format {
        name: "gigachat",
        signs: &[&["<|function_call|>"]],
        layout: Layout::Object,
        marks: &[(Call, "<|function_call|>")],
        writings: &[("", GIGACHAT)],
        ..PLAIN
    },
    Format {
        name: "functionary",
        signs: &[&["'>>>"], &[">>>all"], &[">>>'"]],
        layout: Layout::Recipient,
        marks: &[(Message, ">>>")],
        writings: &[("", FUNCTIONARY)],
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
        writings: &[("[CALL_ID]", MISTRAL_ID), ("[ARGS]", MISTRAL_ARGS), ("", MISTRAL_LIST)],
        ..PLAIN
    },
    Format {
        name: "nemotron",
        signs: &[&["<TOOLCALL>"]],
        layout: Layout::Object,
        marks: &[TAGS[0], TAGS[1], (Call, "<TOOLCALL>"), (CallEnd, "</TOOLCALL>"), (Idle, "<SPECIAL_12>")],
        writings: &[("", NEMOTRON)],
        ..PLAIN
    },
    Format {
        name: "firefunction",
        signs: &[&["functools["]],
        layout: Layout::Object,
        marks: &[(Call, "functools[")],
        writings: &[("", FIREFUNCTION)],
        ..PLAIN
    },
    Format {
        name: "hermes",
        signs: &[&["<tool_call>"]],
        layout: Layout::Object,
        marks: &[TAGS[0], TAGS[1], (Call, "<tool_call>"), (CallEnd, "</tool_call>")],
        writings: &[("", HERMES)],
        ..PLAIN
    },
    Format {
        name: "llama3",
        signs: &[&["<|python_tag|>"], &["\"parameters\": ", "ipython"]],
        layout: Layout::Bare,
        marks: &[(Call, "<|python_tag|>")],
        writings: &[("", LLAMA3)],
        ..PLAIN
    },
    Format { name: "think", signs: &[&["<think>"], &["</think>"]], marks: &TAGS, ..PLAIN },
    PLAIN,
];
