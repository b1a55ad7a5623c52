//! Parses the expressions of a template, by Jinja's precedence.

use super::budget::{Budget, failure};
use super::heap::Text;
use super::integer;
use super::lexer::{Kind, unescaped};
use super::operators::{POWERS, PRODUCTS, SUMS};
use super::parser::Parser;
use super::tree::{BinOpKind, CallArguments, CompareOpKind, Expression, ExpressionId, Form};
use super::value::{VALUES, Value};
use crate::error::{Error, Excerpt, Result, push};

/// Names that stand for values and cannot be assigned to.
const LITERALS: [(&str, Value); 6] = [
    ("true", Value::Bool(true)),
    ("True", Value::Bool(true)),
    ("false", Value::Bool(false)),
    ("False", Value::Bool(false)),
    ("none", Value::None),
    ("None", Value::None),
];

fn literal(name: &str) -> Option<Value> {
    LITERALS.iter().find(|(other, _)| *other == name).map(|(_, value)| value.clone())
}

impl<'s> Parser<'s> {
    fn form(&mut self, line: u32, form: Form<'s>) -> Result<ExpressionId> {
        let id = ExpressionId(self.tree.expressions.len() as u32);
        push(&mut self.tree.expressions, Expression { line, form }, VALUES)?;
        Ok(id)
    }

    /// One expression.
    pub(super) fn expression(&mut self) -> Result<ExpressionId> {
        self.deeper(Self::choice)
    }

    /// An expression, or several with commas between them, which make a tuple. `chooses`: whether `a if b else c` may stand
    /// there. `ends`: what ends a tuple beside the end of the tag and a closing bracket.
    pub(super) fn tuple(&mut self, chooses: bool, ends: &[Kind]) -> Result<ExpressionId> {
        let parse = |this: &mut Self| if chooses { this.choice() } else { this.either() };
        self.tuple_of(ends, false, |this| this.deeper(parse))
    }

    fn tuple_of(
        &mut self,
        ends: &[Kind],
        may_be_empty: bool,
        parse: impl Fn(&mut Self) -> Result<ExpressionId>,
    ) -> Result<ExpressionId> {
        let line = self.current.line;
        let (mut items, mut is_tuple) = (Vec::new(), false);
        loop {
            let at_end = matches!(self.current.kind, Kind::PrintEnd | Kind::BlockEnd | Kind::Sign(")"));
            if at_end || ends.contains(&self.current.kind) {
                break;
            }
            push(&mut items, parse(self)?, VALUES)?;
            if !self.skip(Kind::Sign(","))? {
                break;
            }
            is_tuple = true;
        }
        match items[..] {
            [only] if !is_tuple => Ok(only),
            [] if !may_be_empty => failure(format!("expected an expression, found {}", self.current.kind)),
            _ => self.form(line, Form::Tuple(items)),
        }
    }

    /// What an assignment goes to; `with_namespace`: whether that may be an attribute of a namespace.
    pub(super) fn target(&mut self, ends: &[Kind], with_namespace: bool) -> Result<ExpressionId> {
        let target = self.tuple_of(ends, false, |this| {
            let Kind::Name(name) = this.current.kind else { return this.primary() };
            if !with_namespace || this.ahead()?.kind != Kind::Sign(".") || literal(name).is_some() {
                return this.primary();
            }
            let line = this.advance()?.line;
            this.advance()?;
            let attribute = this.name()?;
            this.form(line, Form::NamespaceItem(name, attribute))
        })?;
        self.assignable(target)?;
        Ok(target)
    }

    fn assignable(&self, target: ExpressionId) -> Result<()> {
        match &self.tree.expression(target).form {
            Form::Name(_) | Form::NamespaceItem(..) => Ok(()),
            Form::Tuple(items) => items.iter().try_for_each(|&item| self.assignable(item)),
            _ => failure("cannot assign to this expression"),
        }
    }

    /// Whether a target has the name in it.
    pub(super) fn assigns(&self, target: ExpressionId, name: &str) -> bool {
        match &self.tree.expression(target).form {
            Form::Name(other) => *other == name,
            Form::Tuple(items) => items.iter().any(|&item| self.assigns(item, name)),
            _ => false,
        }
    }

    /// A name that is assigned to.
    pub(super) fn plain_target(&mut self) -> Result<&'s str> {
        let name = self.name()?;
        if literal(name).is_some() { failure(format!("cannot assign to '{name}'")) } else { Ok(name) }
    }

    fn choice(&mut self) -> Result<ExpressionId> {
        let mut line = self.current.line;
        let mut value = self.either()?;
        while self.skip(Kind::Name("if"))? {
            let test = self.either()?;
            let no = if self.skip(Kind::Name("else"))? { Some(self.deeper(Self::choice)?) } else { None };
            value = self.form(line, Form::Choice { test, yes: value, no })?;
            line = self.current.line;
        }
        Ok(value)
    }

    fn either(&mut self) -> Result<ExpressionId> {
        let line = self.current.line;
        let mut left = self.both()?;
        while self.skip(Kind::Name("or"))? {
            let right = self.both()?;
            left = self.form(line, Form::Or(left, right))?;
        }
        Ok(left)
    }

    fn both(&mut self) -> Result<ExpressionId> {
        let line = self.current.line;
        let mut left = self.negation()?;
        while self.skip(Kind::Name("and"))? {
            let right = self.negation()?;
            left = self.form(line, Form::And(left, right))?;
        }
        Ok(left)
    }

    fn negation(&mut self) -> Result<ExpressionId> {
        let line = self.current.line;
        if self.skip(Kind::Name("not"))? {
            let value = self.deeper(Self::negation)?;
            return self.form(line, Form::Not(value));
        }
        self.comparison()
    }

    fn comparison(&mut self) -> Result<ExpressionId> {
        let line = self.current.line;
        let first = self.sum()?;
        let mut others = Vec::new();
        loop {
            let is_not_in = self.is(Kind::Name("not")) && self.ahead()?.kind == Kind::Name("in");
            let comparison = match self.current.kind {
                Kind::Sign("==") => CompareOpKind::Eq,
                Kind::Sign("!=") => CompareOpKind::Ne,
                Kind::Sign("<") => CompareOpKind::Lt,
                Kind::Sign("<=") => CompareOpKind::Lte,
                Kind::Sign(">") => CompareOpKind::Gt,
                Kind::Sign(">=") => CompareOpKind::Gte,
                Kind::Name("in") => CompareOpKind::In,
                Kind::Name("not") if is_not_in => {
                    self.advance()?;
                    CompareOpKind::NotIn
                }
                _ => break,
            };
            self.advance()?;
            let other = self.sum()?;
            push(&mut others, (comparison, other), VALUES)?;
        }
        if others.is_empty() { Ok(first) } else { self.form(line, Form::Compare(first, others)) }
    }

    /// A chain of operators that bind alike, from the left.
    fn chain(
        &mut self,
        operators: &[(&str, BinOpKind)],
        part: impl Fn(&mut Self) -> Result<ExpressionId>,
    ) -> Result<ExpressionId> {
        let line = self.current.line;
        let mut left = part(self)?;
        while let Kind::Sign(sign) = self.current.kind
            && let Some(&(_, operator)) = operators.iter().find(|(other, _)| *other == sign)
        {
            self.advance()?;
            let right = part(self)?;
            left = self.form(line, Form::Binary(operator, left, right))?;
        }
        Ok(left)
    }

    fn sum(&mut self) -> Result<ExpressionId> {
        self.chain(&SUMS, Self::concatenation)
    }

    fn concatenation(&mut self) -> Result<ExpressionId> {
        let line = self.current.line;
        let first = self.product()?;
        if !self.is(Kind::Sign("~")) {
            return Ok(first);
        }
        let mut parts = Vec::new();
        push(&mut parts, first, VALUES)?;
        while self.skip(Kind::Sign("~"))? {
            push(&mut parts, self.product()?, VALUES)?;
        }
        self.form(line, Form::Concat(parts))
    }

    fn product(&mut self) -> Result<ExpressionId> {
        self.chain(&PRODUCTS, |this| this.chain(&POWERS, |this| this.unary(true)))
    }

    /// Signs before a value, the value, and what follows it; a sign binds tighter than a filter.
    fn unary(&mut self, with_filters: bool) -> Result<ExpressionId> {
        let line = self.current.line;
        let value = if self.skip(Kind::Sign("-"))? {
            let value = self.deeper(|this| this.unary(false))?;
            self.form(line, Form::Negative(value))?
        } else if self.skip(Kind::Sign("+"))? {
            let value = self.deeper(|this| this.unary(false))?;
            self.form(line, Form::Positive(value))?
        } else {
            self.primary()?
        };
        let value = self.postfix(value)?;
        if with_filters { self.filters(value) } else { Ok(value) }
    }

    fn primary(&mut self) -> Result<ExpressionId> {
        let line = self.current.line;
        let form = match self.current.kind {
            Kind::Name(name) => {
                self.advance()?;
                self.uses.varargs |= name == "varargs";
                self.uses.kwargs |= name == "kwargs";
                self.uses.caller |= name == "caller";
                literal(name).map_or(Form::Name(name), Form::Constant)
            }
            Kind::Text(_) => Form::Constant(self.text()?),
            Kind::Integer(digits) => {
                self.advance()?;
                Form::Constant(integer(&self.budget, digits)?)
            }
            Kind::Float(digits) => {
                self.advance()?;
                let number = digits.replace('_', "").parse();
                Form::Constant(Value::Float(number.map_err(|_| Error::Template(format!("bad number {digits}")))?))
            }
            Kind::Sign("(") => {
                self.advance()?;
                let inner = self.tuple_of(&[], true, Self::expression)?;
                self.expect(Kind::Sign(")"))?;
                return Ok(inner);
            }
            Kind::Sign("[") => {
                self.advance()?;
                let mut items = Vec::new();
                self.separated("]", |this| push(&mut items, this.expression()?, VALUES))?;
                Form::List(items)
            }
            Kind::Sign("{") => {
                self.advance()?;
                let mut entries = Vec::new();
                self.separated("}", |this| {
                    let key = this.expression()?;
                    this.expect(Kind::Sign(":"))?;
                    push(&mut entries, (key, this.expression()?), VALUES)
                })?;
                Form::Map(entries)
            }
            other => return failure(format!("unexpected {other}")),
        };
        self.form(line, form)
    }

    /// Parts with commas between them and perhaps at their end, up to the bracket that closes them.
    fn separated(&mut self, close: &'static str, mut part: impl FnMut(&mut Self) -> Result<()>) -> Result<()> {
        while !self.is(Kind::Sign(close)) {
            part(self)?;
            if !self.skip(Kind::Sign(","))? {
                break;
            }
        }
        self.expect(Kind::Sign(close))
    }

    /// A text literal; several in a row are one.
    fn text(&mut self) -> Result<Value> {
        let mut text = Text::new(&self.budget);
        while let Kind::Text(part) = self.current.kind {
            text.push(&unescaped(part)?)?;
            self.advance()?;
        }
        Ok(text.value())
    }

    fn postfix(&mut self, mut value: ExpressionId) -> Result<ExpressionId> {
        loop {
            let line = self.current.line;
            let form = match self.current.kind {
                Kind::Sign(".") => {
                    self.advance()?;
                    match self.current.kind {
                        Kind::Name(name) => {
                            self.advance()?;
                            Form::Attribute(value, name)
                        }
                        Kind::Integer(_) => Form::Item(value, self.primary()?),
                        other => return failure(format!("expected a name or number behind '.', found {other}")),
                    }
                }
                Kind::Sign("[") => {
                    self.advance()?;
                    let mut subscripts = Vec::new();
                    while !self.is(Kind::Sign("]")) {
                        if !subscripts.is_empty() {
                            self.expect(Kind::Sign(","))?;
                        }
                        push(&mut subscripts, self.subscript()?, VALUES)?;
                    }
                    self.advance()?;
                    match subscripts[..] {
                        [only] => Form::Item(value, only),
                        _ => Form::Item(value, self.form(line, Form::Tuple(subscripts))?),
                    }
                }
                Kind::Sign("(") => Form::Call(value, self.call_arguments()?),
                _ => return Ok(value),
            };
            value = self.form(line, form)?;
        }
    }

    fn subscript(&mut self) -> Result<ExpressionId> {
        let line = self.current.line;
        let mut bounds = [None; 3];
        if !self.is(Kind::Sign(":")) {
            let first = self.expression()?;
            if !self.is(Kind::Sign(":")) {
                return Ok(first);
            }
            bounds[0] = Some(first);
        }
        for bound in &mut bounds[1..] {
            let more = self.skip(Kind::Sign(":"))?;
            let ends = matches!(self.current.kind, Kind::Sign(":" | "]" | ","));
            *bound = if more && !ends { Some(self.expression()?) } else { None };
        }
        self.form(line, Form::Slice(bounds))
    }

    fn filters(&mut self, mut value: ExpressionId) -> Result<ExpressionId> {
        loop {
            let line = self.current.line;
            value = match self.current.kind {
                Kind::Sign("|") => self.filter(Some(value), false)?,
                Kind::Name("is") => self.test(value)?,
                Kind::Sign("(") => {
                    let arguments = self.call_arguments()?;
                    self.form(line, Form::Call(value, arguments))?
                }
                _ => return Ok(value),
            };
        }
    }

    /// A chain of filters; `inline`: the first has no `|`.
    pub(super) fn filter(&mut self, mut value: Option<ExpressionId>, inline: bool) -> Result<ExpressionId> {
        let mut first = inline;
        loop {
            if !std::mem::take(&mut first) {
                self.expect(Kind::Sign("|"))?;
            }
            let line = self.current.line;
            let name = self.dotted_name()?;
            let arguments = if self.is(Kind::Sign("(")) { self.call_arguments()? } else { CallArguments::default() };
            let filter = self.form(line, Form::Filter(value, name, arguments))?;
            if !self.is(Kind::Sign("|")) {
                return Ok(filter);
            }
            value = Some(filter);
        }
    }

    /// The name of a filter or test. None of those that there are has a dot, so one name stands for all that have.
    fn dotted_name(&mut self) -> Result<&'s str> {
        let mut name = self.name()?;
        while self.skip(Kind::Sign("."))? {
            self.name()?;
            name = "a.b";
        }
        Ok(name)
    }

    fn test(&mut self, value: ExpressionId) -> Result<ExpressionId> {
        let line = self.advance()?.line;
        let negated = self.skip(Kind::Name("not"))?;
        let name = self.dotted_name()?;
        let mut arguments = CallArguments::default();
        match self.current.kind {
            Kind::Sign("(") => arguments = self.call_arguments()?,
            Kind::Name("else" | "or" | "and") => {}
            Kind::Name("is") => return failure("tests with 'is' cannot follow each other"),
            Kind::Name(_) | Kind::Text(_) | Kind::Integer(_) | Kind::Float(_) | Kind::Sign("[" | "{") => {
                let argument = self.deeper(|this| {
                    let argument = this.primary()?;
                    this.postfix(argument)
                })?;
                push(&mut arguments.positional, argument, VALUES)?;
            }
            _ => {}
        }
        let test = self.form(line, Form::Test(value, name, arguments))?;
        if negated { self.form(line, Form::Not(test)) } else { Ok(test) }
    }

    /// Arguments in parentheses: by place, by name, `*values`, `**entries`.
    fn call_arguments(&mut self) -> Result<CallArguments<'s>> {
        let mut arguments = CallArguments::default();
        self.expect(Kind::Sign("("))?;
        self.separated(")", |this| {
            let closed = arguments.entries.is_some();
            if this.skip(Kind::Sign("*"))? {
                let values = this.expression()?;
                return if closed || arguments.values.replace(values).is_some() { misplaced() } else { Ok(()) };
            }
            if this.skip(Kind::Sign("**"))? {
                let entries = this.expression()?;
                return if arguments.entries.replace(entries).is_some() { misplaced() } else { Ok(()) };
            }
            if let Kind::Name(name) = this.current.kind
                && this.ahead()?.kind == Kind::Sign("=")
            {
                this.advance()?;
                this.advance()?;
                let value = this.expression()?;
                let repeated = arguments.named.iter().any(|(other, _)| *other == name);
                return if closed || repeated {
                    misplaced()
                } else {
                    push(&mut arguments.named, (name, value), VALUES)
                };
            }
            let value = this.expression()?;
            let closed = closed || arguments.values.is_some() || !arguments.named.is_empty();
            if closed { misplaced() } else { push(&mut arguments.positional, value, VALUES) }
        })?;
        Ok(arguments)
    }
}

fn misplaced<T>() -> Result<T> {
    failure(
        "arguments of a call stand in the wrong order or twice: by place, then by name, then *values, then **entries",
    )
}

fn integer(budget: &Budget, digits: &str) -> Result<Value> {
    let plain = digits.replace('_', "");
    let (radix, number) = match plain.get(..2) {
        Some("0b" | "0B") => (2, &plain[2..]),
        Some("0o" | "0O") => (8, &plain[2..]),
        Some("0x" | "0X") => (16, &plain[2..]),
        _ => (10, &plain[..]),
    };
    let parsed = integer::parsed(budget, number, radix, false)?;
    parsed.map_or_else(|| integer::too_large(format_args!("the number {}", Excerpt(digits.as_bytes()))), Ok)
}
