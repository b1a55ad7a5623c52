//! Everything that a template can do with values, by kind and name, for tests that go through all of it.

use super::attributes::{
    FLOAT_METHODS, INTEGER_METHODS, LIST_METHODS, LOOP_METHODS, MAP_METHODS, MARKUP_METHODS, TEXT_METHODS, VIEW_METHODS,
};
use super::filters::FILTERS;
use super::operators::{POWERS, PRODUCTS, SUMS};
use super::predicates::{COMPARISONS, TESTS};
use super::value::FUNCTIONS;

/// How an operation is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// `value | name(arguments)`
    Filter,
    /// `value is name(arguments)`
    Test,
    /// `name(arguments)`
    Function,
    /// `value.name(arguments)`
    Method,
    /// `loop.name(arguments)`
    LoopMethod,
    /// `left name right`
    Operator,
    /// `name value`
    Prefix,
}

/// Operators between two values that are neither arithmetic nor comparisons.
const OTHERS: [&str; 5] = ["and", "in", "not in", "or", "~"];
/// Operators before a value.
const PREFIXES: [&str; 2] = ["-", "not"];

/// All operations: the tables that the evaluator itself looks them up in.
pub fn operations() -> Vec<(Kind, &'static str)> {
    let is_name = |name: &&str| name.starts_with(char::is_alphabetic);
    let (names, signs): (Vec<&str>, Vec<&str>) = COMPARISONS.iter().map(|(name, _)| *name).partition(is_name);
    let arithmetic = SUMS.iter().chain(&PRODUCTS).chain(&POWERS).map(|(sign, _)| *sign);
    let methods = TEXT_METHODS.iter().chain(&MARKUP_METHODS).chain(&LIST_METHODS).chain(&MAP_METHODS);
    let methods = methods.chain(&VIEW_METHODS).chain(&INTEGER_METHODS).chain(&FLOAT_METHODS);
    let mut all: Vec<(Kind, &'static str)> = Vec::new();
    all.extend(FILTERS.iter().map(|(name, ..)| (Kind::Filter, *name)));
    all.extend(TESTS.iter().map(|(name, ..)| (Kind::Test, *name)));
    all.extend(names.into_iter().map(|name| (Kind::Test, name)));
    all.extend(FUNCTIONS.iter().map(|(name, ..)| (Kind::Function, *name)));
    all.extend(methods.map(|name| (Kind::Method, *name)));
    all.extend(LOOP_METHODS.iter().map(|name| (Kind::LoopMethod, *name)));
    all.extend(arithmetic.chain(signs).chain(OTHERS).map(|sign| (Kind::Operator, sign)));
    all.extend(PREFIXES.iter().map(|name| (Kind::Prefix, *name)));
    all.sort_unstable();
    all.dedup();
    all
}
