//! What is wrong with a template before it runs: filters and tests that do not exist.
//!
//! As in Jinja, one that stands in a conditional statement or expression is found when it is used, so that a template may ask
//! whether there is such a filter; a loop, macro or block in there begins anew.

use super::budget::failure;
use super::filters;
use super::predicates;
use super::tree::{Action, Body, CallArguments, ExpressionId, Form, Macro, StatementId, Tree};
use super::value::{VALUES, Value};
use crate::error::{Result, push};

/// What is still to be looked at, and whether it stands under a condition.
#[derive(Clone, Copy)]
enum Part {
    Statement(StatementId, bool),
    Expression(ExpressionId, bool),
}

struct Check<'t, 's> {
    tree: &'t Tree<'s>,
    /// A list instead of recursion: a tree may be as deep as its source is long.
    left: Vec<Part>,
}

/// An error for the first filter or test that there is none of, with its line.
pub(super) fn check(tree: &Tree) -> Result<()> {
    let mut check = Check { tree, left: Vec::new() };
    check.body(&tree.body, false)?;
    while let Some(part) = check.left.pop() {
        match part {
            Part::Statement(statement, may_lack) => check.statement(statement, may_lack)?,
            Part::Expression(expression, may_lack) => check.expression(expression, may_lack)?,
        }
    }
    Ok(())
}

impl Check<'_, '_> {
    fn body(&mut self, body: &Body, may_lack: bool) -> Result<()> {
        body.iter().rev().try_for_each(|&statement| push(&mut self.left, Part::Statement(statement, may_lack), VALUES))
    }

    fn values(&mut self, values: impl IntoIterator<Item = ExpressionId>, may_lack: bool) -> Result<()> {
        values.into_iter().try_for_each(|value| push(&mut self.left, Part::Expression(value, may_lack), VALUES))
    }

    fn macro_body(&mut self, declaration: &Macro) -> Result<()> {
        self.body(&declaration.body, false)?;
        self.values(declaration.parameters.iter().filter_map(|(_, default)| *default), false)
    }

    fn statement(&mut self, id: StatementId, may_lack: bool) -> Result<()> {
        match &self.tree.statement(id).action {
            Action::Print(value) | Action::Set(_, value) => self.values([*value], may_lack),
            Action::If { branches, otherwise } => {
                self.body(otherwise, true)?;
                branches.iter().rev().try_for_each(|(test, body)| {
                    self.body(body, true)?;
                    self.values([*test], true)
                })
            }
            Action::For(statement) => {
                self.body(&statement.otherwise, false)?;
                self.body(&statement.body, false)?;
                self.values(statement.condition, false)?;
                self.values([statement.values], may_lack)
            }
            Action::SetBlock(_, filter, body) => {
                self.values(*filter, false)?;
                self.body(body, false)
            }
            Action::With(assignments, body) => {
                self.body(body, false)?;
                self.values(assignments.iter().map(|(_, value)| *value), may_lack)
            }
            Action::Filter(value, body) | Action::Autoescape(value, body) => {
                self.values([*value], false)?;
                self.body(body, false)
            }
            Action::Macro(declaration) => self.macro_body(declaration),
            Action::CallBlock(call, declaration) => {
                self.macro_body(declaration)?;
                self.values([*call], may_lack)
            }
            Action::Block { body, .. } | Action::Generation(body) => self.body(body, false),
            Action::Text(_) | Action::Break | Action::Continue | Action::OtherTemplate => Ok(()),
        }
    }

    fn arguments(&mut self, arguments: &CallArguments, may_lack: bool) -> Result<()> {
        let CallArguments { positional, named, values, entries } = arguments;
        self.values(positional.iter().copied(), may_lack)?;
        self.values(named.iter().map(|(_, value)| *value), may_lack)?;
        self.values(values.iter().chain(entries).copied(), may_lack)
    }

    /// Whether an expression that needs no variable for it is true.
    fn known_truth(&self, id: ExpressionId) -> Option<bool> {
        match &self.tree.expression(id).form {
            Form::Constant(value) => Some(value.is_true()),
            Form::Test(value, what @ ("filter" | "test"), _) => match &self.tree.expression(*value).form {
                Form::Constant(Value::Text(name)) if *what == "filter" => Some(filters::exists(name)),
                Form::Constant(Value::Text(name)) => Some(predicates::exists(name)),
                _ => None,
            },
            _ => None,
        }
    }

    fn expression(&mut self, id: ExpressionId, may_lack: bool) -> Result<()> {
        let expression = self.tree.expression(id);
        let exists = |what: &str, name: &str, exists: bool| {
            if exists || may_lack {
                Ok(())
            } else {
                failure(format!("line {}: no {what} named '{name}'", expression.line))
            }
        };
        match &expression.form {
            Form::Filter(value, name, arguments) => {
                exists("filter", name, filters::exists(name))?;
                self.arguments(arguments, may_lack)?;
                self.values(*value, may_lack)
            }
            Form::Test(value, name, arguments) => {
                exists("test", name, predicates::exists(name))?;
                self.arguments(arguments, may_lack)?;
                self.values([*value], may_lack)
            }
            Form::Choice { test, yes, no } => self.values([*test, *yes].into_iter().chain(*no), true),
            // What is decided without variables is decided before anything is looked up.
            Form::And(left, _) if self.known_truth(*left) == Some(false) => self.values([*left], may_lack),
            Form::Or(left, _) if self.known_truth(*left) == Some(true) => self.values([*left], may_lack),
            Form::And(left, right) | Form::Or(left, right) | Form::Binary(_, left, right) | Form::Item(left, right) => {
                self.values([*right, *left], may_lack)
            }
            Form::List(items) | Form::Tuple(items) | Form::Concat(items) => {
                self.values(items.iter().copied(), may_lack)
            }
            Form::Map(pairs) => self.values(pairs.iter().flat_map(|&(key, value)| [key, value]), may_lack),
            Form::Not(value) | Form::Negative(value) | Form::Positive(value) | Form::Attribute(value, _) => {
                self.values([*value], may_lack)
            }
            Form::Compare(first, others) => {
                self.values(others.iter().map(|(_, other)| *other).chain([*first]), may_lack)
            }
            Form::Slice(bounds) => self.values(bounds.iter().flatten().copied(), may_lack),
            Form::Call(value, arguments) => {
                self.arguments(arguments, may_lack)?;
                self.values([*value], may_lack)
            }
            Form::Name(_) | Form::Constant(_) | Form::NamespaceItem(..) => Ok(()),
        }
    }
}
