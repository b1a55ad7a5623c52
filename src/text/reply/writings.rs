//! How families of models write calls: data alone, one or more for a family.

use super::formats::Mark::*;
use super::formats::Part::{
    Arguments, Id as CallId, Key as KeyName, Mark as M, May, MayMark, Name as FunctionName, Number, Other, Quoted,
    Text, Type, Value as ArgumentValue,
};
use super::formats::{Notation, Writing};

pub(super) const HARMONY: Writing = Writing { call: &[Arguments, M(CallEnd)], several: false, ..Writing::JSON };

pub(super) const GEMMA4: Writing = Writing {
    call: &[M(Call), Text("call:"), FunctionName, Arguments, M(CallEnd)],
    notation: Notation::Gemma,
    ..Writing::JSON
};

pub(super) const DSML: Writing = Writing {
    open: &[M(Section), Text("\n")],
    call: &[M(Name), FunctionName, M(NameEnd), Text("\n"), Arguments, May("\n"), M(CallEnd), Text("\n")],
    close: &[M(SectionEnd)],
    notation: Notation::Tagged,
    texts: &[&[M(Key), KeyName, M(KeyEnd), Text("true"), M(Value), ArgumentValue, M(ValueEnd), Text("\n")]],
    value: &[M(Key), KeyName, M(KeyEnd), Text("false"), M(Value), ArgumentValue, M(ValueEnd), Text("\n")],
    ..Writing::JSON
};

pub(super) const DEEPSEEK_FENCED: Writing = Writing {
    open: &[M(Section)],
    call: &[
        M(Call),
        Text("function"),
        M(Body),
        FunctionName,
        Text("\n```json\n"),
        Arguments,
        Text("\n```"),
        M(CallEnd),
    ],
    between: &[Text("\n")],
    close: &[M(SectionEnd)],
    ..Writing::JSON
};

pub(super) const DEEPSEEK: Writing = Writing {
    open: &[M(Section)],
    call: &[M(Call), FunctionName, M(Body), Arguments, M(CallEnd)],
    close: &[M(SectionEnd)],
    ..Writing::JSON
};

pub(super) const KIMI_K2: Writing = Writing {
    open: &[M(Section)],
    call: &[M(Call), Text("functions."), FunctionName, Text(":"), Number, M(Body), Arguments, M(CallEnd)],
    close: &[M(SectionEnd)],
    ..Writing::JSON
};

pub(super) const KIMI_K3: Writing = Writing {
    open: &[M(Section)],
    call: &[M(Name), FunctionName, M(NameEnd), Number, Text("\"<|sep|>"), Arguments, M(CallEnd)],
    close: &[M(SectionEnd)],
    notation: Notation::Tagged,
    texts: &[&[M(Key), KeyName, M(KeyEnd), Text("string"), M(Value), ArgumentValue, M(ValueEnd)]],
    value: &[M(Key), KeyName, M(KeyEnd), Type, M(Value), ArgumentValue, M(ValueEnd)],
    ..Writing::JSON
};

pub(super) const MINIMAX_M2: Writing = Writing {
    open: &[M(Section), Text("\n")],
    call: &[M(Name), FunctionName, M(NameEnd), Text("\n"), Arguments, M(CallEnd), Text("\n")],
    close: &[M(SectionEnd)],
    notation: Notation::Tagged,
    texts: &[&[M(Key), KeyName, M(KeyEnd), ArgumentValue, M(ValueEnd), Text("\n")]],
    value: &[M(Key), KeyName, M(KeyEnd), ArgumentValue, M(ValueEnd), Text("\n")],
    ..Writing::JSON
};

pub(super) const HUNYUAN: Writing = Writing {
    open: &[M(Section), Text("\n")],
    call: &[M(Name), FunctionName, M(NameEnd), Text("\n"), Arguments, M(CallEnd), Text("\n")],
    close: &[M(SectionEnd)],
    notation: Notation::Tagged,
    texts: &[&[M(Key), KeyName, M(KeyEnd), Text("\n"), M(Value), ArgumentValue, M(ValueEnd), Text("\n")]],
    value: &[M(Key), KeyName, M(KeyEnd), Text("\n"), M(Value), ArgumentValue, M(ValueEnd), Text("\n")],
    ..Writing::JSON
};

pub(super) const GLM4: Writing = Writing {
    call: &[M(Name), FunctionName, May("\n"), Arguments, M(CallEnd)],
    between: &[May("\n")],
    notation: Notation::Tagged,
    texts: &[&[M(Key), KeyName, M(KeyEnd), May("\n"), M(Value), ArgumentValue, M(ValueEnd), May("\n")]],
    value: &[M(Key), KeyName, M(KeyEnd), May("\n"), M(Value), ArgumentValue, M(ValueEnd), May("\n")],
    ..Writing::JSON
};

pub(super) const QWEN3_CODER: Writing = Writing {
    call: &[
        M(Section),
        Text("\n"),
        M(Name),
        FunctionName,
        M(NameEnd),
        Text("\n"),
        Arguments,
        M(CallEnd),
        Text("\n"),
        M(SectionEnd),
    ],
    between: &[Text("\n")],
    notation: Notation::Tagged,
    texts: &[&[M(Key), KeyName, M(KeyEnd), Text("\n"), ArgumentValue, Text("\n"), M(ValueEnd), Text("\n")]],
    value: &[M(Key), KeyName, M(KeyEnd), Text("\n"), ArgumentValue, Text("\n"), M(ValueEnd), Text("\n")],
    ..Writing::JSON
};

pub(super) const MINICPM5: Writing = Writing {
    call: &[M(Name), FunctionName, M(NameEnd), Arguments, M(CallEnd)],
    between: &[Text("\n")],
    notation: Notation::TaggedPython,
    texts: &[
        &[M(Key), KeyName, M(KeyEnd), ArgumentValue, M(ValueEnd)],
        &[M(Key), KeyName, Other(KeyEnd), ArgumentValue, Other(ValueEnd)],
    ],
    value: &[M(Key), KeyName, M(KeyEnd), ArgumentValue, M(ValueEnd)],
    ..Writing::JSON
};

pub(super) const LFM2: Writing = Writing {
    open: &[M(Call), Text("[")],
    call: &[FunctionName, Text("("), Arguments, Text(")")],
    between: &[Text(", ")],
    close: &[Text("]"), M(CallEnd)],
    notation: Notation::Python,
    ..Writing::JSON
};

pub(super) const COHERE: Writing = Writing {
    open: &[M(Call), Text("[\n    ")],
    call: &[
        Text("{\"tool_call_id\": \""),
        Number,
        Text("\", \"tool_name\": "),
        Quoted,
        Text(", \"parameters\": "),
        Arguments,
        Text("}"),
    ],
    between: &[Text(",\n    ")],
    close: &[Text("\n]"), M(CallEnd)],
    ..Writing::JSON
};

pub(super) const GIGACHAT: Writing = Writing {
    call: &[M(Call), Text("{\"name\": "), Quoted, Text(", \"arguments\": "), Arguments, Text("}")],
    several: false,
    ..Writing::JSON
};

pub(super) const FUNCTIONARY: Writing = Writing { call: &[FunctionName, Text("\n"), Arguments], ..Writing::JSON };

pub(super) const MISTRAL_ID: Writing =
    Writing { call: &[M(Call), FunctionName, M(Id), CallId, M(Body), Arguments], ..Writing::JSON };

pub(super) const MISTRAL_ARGS: Writing =
    Writing { call: &[M(Call), FunctionName, M(Body), Arguments], ..Writing::JSON };

pub(super) const MISTRAL_LIST: Writing = Writing {
    open: &[M(Call), May(" "), Text("[")],
    call: &[
        Text("{\"name\": "),
        Quoted,
        Text(", \"arguments\": "),
        Arguments,
        Text(", \"id\": \""),
        CallId,
        Text("\"}"),
    ],
    between: &[Text(", ")],
    close: &[Text("]")],
    ..Writing::JSON
};

pub(super) const NEMOTRON: Writing = Writing {
    open: &[M(Call), Text("[")],
    call: &[Text("{\"name\": "), Quoted, Text(", \"arguments\": "), Arguments, Text("}")],
    between: &[Text(", ")],
    close: &[Text("]"), M(CallEnd)],
    ..Writing::JSON
};

pub(super) const FIREFUNCTION: Writing = Writing {
    open: &[M(Call)],
    call: &[Text("{\"name\": "), Quoted, Text(", \"arguments\": "), Arguments, Text("}")],
    between: &[Text(", ")],
    close: &[Text("]")],
    ..Writing::JSON
};

pub(super) const HERMES: Writing = Writing {
    call: &[M(Call), Text("\n{\"name\": "), Quoted, Text(", \"arguments\": "), Arguments, Text("}\n"), M(CallEnd)],
    between: &[Text("\n")],
    ..Writing::JSON
};

pub(super) const LLAMA3: Writing = Writing {
    call: &[MayMark(Call), Text("{\"name\": "), Quoted, Text(", \"parameters\": "), Arguments, Text("}")],
    several: false,
    ..Writing::JSON
};
