//! Which methods values have, and which attributes are kept from templates.

use super::lazy::Part;
use super::value::Value;

/// Methods of texts.
pub(super) const TEXT_METHODS: [&str; 46] = [
    "capitalize",
    "casefold",
    "center",
    "count",
    "endswith",
    "expandtabs",
    "find",
    "format",
    "format_map",
    "index",
    "isalnum",
    "isalpha",
    "isascii",
    "isdecimal",
    "isdigit",
    "isidentifier",
    "islower",
    "isnumeric",
    "isprintable",
    "isspace",
    "istitle",
    "isupper",
    "join",
    "ljust",
    "lower",
    "lstrip",
    "maketrans",
    "partition",
    "removeprefix",
    "removesuffix",
    "replace",
    "rfind",
    "rindex",
    "rjust",
    "rpartition",
    "rsplit",
    "rstrip",
    "split",
    "splitlines",
    "startswith",
    "strip",
    "swapcase",
    "title",
    "translate",
    "upper",
    "zfill",
];
/// Methods of lists; tuples have all but `copy`.
pub(super) const LIST_METHODS: [&str; 3] = ["copy", "count", "index"];
/// Methods of texts that count as HTML, beside those of all texts.
pub(super) const MARKUP_METHODS: [&str; 3] = ["escape", "striptags", "unescape"];
/// Methods of dictionaries.
pub(super) const MAP_METHODS: [&str; 6] = ["copy", "fromkeys", "get", "items", "keys", "values"];
/// Methods of the keys and entries of dictionaries.
pub(super) const VIEW_METHODS: [&str; 1] = ["isdisjoint"];
/// Methods of ranges.
pub(super) const RANGE_METHODS: [&str; 2] = ["count", "index"];
/// Methods of cyclers.
pub(super) const CYCLER_METHODS: [&str; 2] = ["next", "reset"];
/// Methods of integers and booleans.
pub(super) const INTEGER_METHODS: [&str; 4] = ["as_integer_ratio", "bit_count", "bit_length", "conjugate"];
/// Methods of floats.
pub(super) const FLOAT_METHODS: [&str; 4] = ["as_integer_ratio", "conjugate", "hex", "is_integer"];
/// Methods of the `loop` variable.
pub(super) const LOOP_METHODS: [&str; 2] = ["changed", "cycle"];
const CHANGING_LIST_METHODS: [&str; 8] = ["append", "clear", "extend", "insert", "pop", "remove", "reverse", "sort"];
const CHANGING_MAP_METHODS: [&str; 5] = ["clear", "pop", "popitem", "setdefault", "update"];

/// The method of `value` called `name`.
pub(super) fn find(value: &Value, name: &str) -> Option<&'static str> {
    let methods: &[&'static str] = match value {
        Value::Text(text) if text.is_markup() && MARKUP_METHODS.contains(&name) => &MARKUP_METHODS,
        Value::Text(_) => &TEXT_METHODS,
        Value::List(_) => &LIST_METHODS,
        Value::Tuple(_) => &LIST_METHODS[1..],
        Value::Map(_) => &MAP_METHODS,
        Value::Loop(_) => &LOOP_METHODS,
        Value::Range(_) => &RANGE_METHODS,
        Value::Cycler(_) => &CYCLER_METHODS,
        Value::View(view) if view.part != Part::Values => &VIEW_METHODS,
        Value::Bool(_) | Value::Int(_) | Value::Large(_) => &INTEGER_METHODS,
        Value::Float(_) => &FLOAT_METHODS,
        _ => &[],
    };
    methods.iter().find(|&&method| method == name).copied()
}

/// Whether the sandbox keeps templates from the attribute: it changes its object, or is not meant for them.
pub(super) fn is_unsafe(value: &Value, name: &str) -> bool {
    match value {
        Value::List(_) if CHANGING_LIST_METHODS.contains(&name) => true,
        Value::Map(_) if CHANGING_MAP_METHODS.contains(&name) => true,
        Value::Map(_) | Value::Namespace(_) => false,
        _ => name.starts_with('_'),
    }
}
