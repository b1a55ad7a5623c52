//! Parses the statements of a template; expressions are in the sibling module.

use super::budget::{Budget, failure};
use super::lexer::{Kind, Lexer, Token};
use super::tree::{Action, Body, ExpressionId, ForLoop, Form, Macro, Statement, StatementId, Tree, Uses};
use super::value::VALUES;
use crate::error::{Error, Result, push};

/// Deepest nesting of brackets, operators before a value, and blocks.
const DEPTH: usize = 500;

/// Goes through the tokens of a source and makes a tree of them.
pub(super) struct Parser<'s> {
    /// Who pays for literals.
    pub(super) budget: Budget,
    lexer: Lexer<'s>,
    /// The token that is looked at.
    pub(super) current: Token<'s>,
    ahead: Option<Token<'s>>,
    pub(super) tree: Tree<'s>,
    depth: usize,
    /// Loops around here that `break` and `continue` may end.
    loops: usize,
    /// Names that the innermost macro has used.
    pub(super) uses: Uses,
}

/// The tree of `source`, or an error that begins with the line.
pub(super) fn parse<'s>(budget: &Budget, source: &'s str) -> Result<Tree<'s>> {
    let current = Token { kind: Kind::End, line: 1 };
    let mut parser = Parser {
        budget: budget.clone(),
        lexer: Lexer::new(source),
        current,
        ahead: None,
        tree: Tree::default(),
        depth: 0,
        loops: 0,
        uses: Uses::default(),
    };
    let parsed = parser.advance().and_then(|_| parser.body(&[]));
    match parsed {
        Ok(body) => {
            parser.tree.body = body;
            Ok(parser.tree)
        }
        Err(Error::Template(message)) => failure(format!("line {}: {message}", parser.current.line)),
        Err(error) => Err(error),
    }
}

impl<'s> Parser<'s> {
    /// Goes on to the next token; the one before is the result.
    pub(super) fn advance(&mut self) -> Result<Token<'s>> {
        let next = match self.ahead.take() {
            Some(token) => token,
            None => self.lex()?,
        };
        Ok(std::mem::replace(&mut self.current, next))
    }

    /// The token after the current one.
    pub(super) fn ahead(&mut self) -> Result<Token<'s>> {
        match self.ahead {
            Some(token) => Ok(token),
            None => {
                let token = self.lex()?;
                Ok(*self.ahead.insert(token))
            }
        }
    }

    fn lex(&mut self) -> Result<Token<'s>> {
        let token = self.lexer.next();
        if token.is_err() {
            self.current.line = self.lexer.line();
        }
        token
    }

    /// Whether the current token is `kind`.
    pub(super) fn is(&self, kind: Kind) -> bool {
        self.current.kind == kind
    }

    /// Goes over the current token if it is `kind`.
    pub(super) fn skip(&mut self, kind: Kind) -> Result<bool> {
        let found = self.is(kind);
        if found {
            self.advance()?;
        }
        Ok(found)
    }

    /// Goes over the current token, which must be `kind`.
    pub(super) fn expect(&mut self, kind: Kind) -> Result<()> {
        if self.skip(kind)? { Ok(()) } else { failure(format!("expected {kind}, found {}", self.current.kind)) }
    }

    /// Goes over a name.
    pub(super) fn name(&mut self) -> Result<&'s str> {
        let Kind::Name(name) = self.current.kind else {
            return failure(format!("expected a name, found {}", self.current.kind));
        };
        self.advance()?;
        Ok(name)
    }

    /// Parses what is one level deeper.
    pub(super) fn deeper<T>(&mut self, parse: impl FnOnce(&mut Self) -> Result<T>) -> Result<T> {
        if self.depth == DEPTH {
            return super::budget::exceeded("nesting", format_args!("{DEPTH} levels in its source"));
        }
        self.depth += 1;
        let parsed = parse(self);
        self.depth -= 1;
        parsed
    }

    fn add(&mut self, line: u32, action: Action<'s>) -> Result<StatementId> {
        let id = StatementId(self.tree.statements.len() as u32);
        push(&mut self.tree.statements, Statement { line, action }, VALUES)?;
        Ok(id)
    }

    /// Statements up to a tag with one of the names in `ends`, which becomes the current token; without names, to the end.
    fn body(&mut self, ends: &[&str]) -> Result<Body> {
        let mut body = Body::new();
        loop {
            let Token { kind, line } = self.current;
            match kind {
                Kind::End if ends.is_empty() => return Ok(body),
                Kind::End => {
                    return failure(format!("unexpected end of the template, '{}' is missing", ends.join("' or '")));
                }
                Kind::Data(text) => {
                    self.advance()?;
                    let text = self.add(line, Action::Text(text))?;
                    push(&mut body, text, VALUES)?;
                }
                Kind::PrintBegin => {
                    self.advance()?;
                    let value = self.tuple(true, &[])?;
                    self.expect(Kind::PrintEnd)?;
                    let print = self.add(line, Action::Print(value))?;
                    push(&mut body, print, VALUES)?;
                }
                _ => {
                    self.advance()?;
                    if matches!(self.current.kind, Kind::Name(name) if ends.contains(&name)) {
                        return Ok(body);
                    }
                    self.deeper(|this| this.statement(&mut body))?;
                    self.expect(Kind::BlockEnd)?;
                }
            }
        }
    }

    /// The inside of a block up to its end tag; that tag's name is the current token.
    fn block_until(&mut self, ends: &[&str]) -> Result<Body> {
        self.skip(Kind::Sign(":"))?;
        self.expect(Kind::BlockEnd)?;
        self.body(ends)
    }

    /// The inside of a block and the name of its end tag.
    fn block(&mut self, end: &str) -> Result<Body> {
        let body = self.block_until(&[end])?;
        self.advance()?;
        Ok(body)
    }

    fn statement(&mut self, body: &mut Body) -> Result<()> {
        let line = self.current.line;
        let Kind::Name(tag) = self.current.kind else {
            return failure(format!("expected the name of a tag, found {}", self.current.kind));
        };
        self.advance()?;
        let action = match tag {
            "for" => self.for_loop()?,
            "if" => self.condition()?,
            "set" => self.set()?,
            "with" => self.with()?,
            "macro" => Action::Macro(self.macro_definition()?),
            "call" => self.call_block()?,
            "filter" => Action::Filter(self.filter(None, true)?, self.block("endfilter")?),
            "block" => {
                let block = self.named_block(line)?;
                return push(body, block, VALUES);
            }
            "autoescape" => Action::Autoescape(self.expression()?, self.block("endautoescape")?),
            "generation" => Action::Generation(self.unlooped(|this| this.block("endgeneration"))?),
            "break" | "continue" if self.loops == 0 => return failure(format!("'{tag}' outside of a loop")),
            "break" => Action::Break,
            "continue" => Action::Continue,
            "print" => return self.print(line, body),
            "extends" | "include" | "import" | "from" => {
                self.expression()?;
                while !self.is(Kind::BlockEnd) && !self.is(Kind::End) {
                    self.advance()?;
                }
                Action::OtherTemplate
            }
            _ => return failure(format!("unknown tag '{}'", crate::error::Excerpt(tag.as_bytes()))),
        };
        let statement = self.add(line, action)?;
        push(body, statement, VALUES)
    }

    /// Parses what the loops around it do not reach: the body of a macro.
    fn unlooped<T>(&mut self, parse: impl FnOnce(&mut Self) -> Result<T>) -> Result<T> {
        let loops = std::mem::take(&mut self.loops);
        let parsed = parse(self);
        self.loops = loops;
        parsed
    }

    fn for_loop(&mut self) -> Result<Action<'s>> {
        let target = self.target(&[Kind::Name("in")], false)?;
        if self.assigns(target, "loop") {
            return failure("cannot assign to 'loop', the special variable of a loop");
        }
        self.expect(Kind::Name("in"))?;
        let values = self.tuple(false, &[Kind::Name("recursive")])?;
        let condition = if self.skip(Kind::Name("if"))? { Some(self.expression()?) } else { None };
        let recursive = self.skip(Kind::Name("recursive"))?;
        self.loops += 1;
        let body = self.block_until(&["endfor", "else"])?;
        self.loops -= 1;
        let otherwise = if self.is(Kind::Name("else")) {
            self.advance()?;
            self.block("endfor")?
        } else {
            self.advance()?;
            Body::new()
        };
        Ok(Action::For(ForLoop { target, values, condition, recursive, body, otherwise }))
    }

    fn condition(&mut self) -> Result<Action<'s>> {
        let (mut branches, mut otherwise) = (Vec::new(), Body::new());
        loop {
            let test = self.tuple(false, &[])?;
            let body = self.block_until(&["elif", "else", "endif"])?;
            push(&mut branches, (test, body), VALUES)?;
            match self.advance()?.kind {
                Kind::Name("elif") => {}
                Kind::Name("else") => {
                    otherwise = self.block("endif")?;
                    break;
                }
                _ => break,
            }
        }
        Ok(Action::If { branches, otherwise })
    }

    fn set(&mut self) -> Result<Action<'s>> {
        let target = self.target(&[], true)?;
        if self.skip(Kind::Sign("="))? {
            return Ok(Action::Set(target, self.tuple(true, &[])?));
        }
        let filter = if self.is(Kind::Sign("|")) { Some(self.filter(None, false)?) } else { None };
        Ok(Action::SetBlock(target, filter, self.block("endset")?))
    }

    fn with(&mut self) -> Result<Action<'s>> {
        let mut assignments = Vec::new();
        while !self.is(Kind::BlockEnd) {
            if !assignments.is_empty() {
                self.expect(Kind::Sign(","))?;
            }
            let target = self.target(&[], false)?;
            self.expect(Kind::Sign("="))?;
            push(&mut assignments, (target, self.expression()?), VALUES)?;
        }
        Ok(Action::With(assignments, self.block("endwith")?))
    }

    fn macro_definition(&mut self) -> Result<Macro<'s>> {
        let name = self.plain_target()?;
        let parameters = self.parameters()?;
        self.macro_body(Some(name), parameters, "endmacro")
    }

    fn macro_body(
        &mut self,
        name: Option<&'s str>,
        parameters: Vec<(&'s str, Option<ExpressionId>)>,
        end: &str,
    ) -> Result<Macro<'s>> {
        let around = std::mem::take(&mut self.uses);
        let body = self.unlooped(|this| this.block(end))?;
        let mut declaration = Macro { name, parameters, body, uses: self.uses };
        // What a macro inside uses, this one is asked for too.
        self.uses = self.uses.or(around);
        let lacks_default = declaration.parameters.contains(&("caller", None));
        if declaration.uses.caller && lacks_default {
            return failure("the parameter 'caller' of a macro that uses it needs a default");
        }
        declaration.uses.kwargs &= !declaration.has_parameter("kwargs");
        declaration.uses.varargs &= !declaration.has_parameter("varargs");
        Ok(declaration)
    }

    fn parameters(&mut self) -> Result<Vec<(&'s str, Option<ExpressionId>)>> {
        let mut parameters: Vec<(&'s str, Option<ExpressionId>)> = Vec::new();
        self.expect(Kind::Sign("("))?;
        while !self.is(Kind::Sign(")")) {
            if !parameters.is_empty() {
                self.expect(Kind::Sign(","))?;
            }
            let name = self.plain_target()?;
            let default = if self.skip(Kind::Sign("="))? { Some(self.expression()?) } else { None };
            if default.is_none() && parameters.last().is_some_and(|(_, default)| default.is_some()) {
                return failure("a parameter without a default follows one with a default");
            }
            if parameters.iter().any(|(other, _)| *other == name) {
                return failure(format!("the parameter '{name}' is there twice"));
            }
            push(&mut parameters, (name, default), VALUES)?;
        }
        self.advance()?;
        Ok(parameters)
    }

    fn call_block(&mut self) -> Result<Action<'s>> {
        let parameters = if self.is(Kind::Sign("(")) { self.parameters()? } else { Vec::new() };
        let call = self.expression()?;
        if !matches!(self.tree.expression(call).form, Form::Call(..)) {
            return failure("a call block needs a call");
        }
        Ok(Action::CallBlock(call, self.macro_body(None, parameters, "endcall")?))
    }

    fn named_block(&mut self, line: u32) -> Result<StatementId> {
        let name = self.name()?;
        if self.tree.blocks.iter().any(|(other, _)| *other == name) {
            return failure(format!("block '{name}' is defined twice"));
        }
        let place = self.tree.blocks.len();
        push(&mut self.tree.blocks, (name, StatementId(0)), VALUES)?;
        let scoped = self.skip(Kind::Name("scoped"))?;
        let required = self.skip(Kind::Name("required"))?;
        let body = self.unlooped(|this| this.block("endblock"))?;
        self.skip(Kind::Name(name))?;
        let block = self.add(line, Action::Block { scoped, required, body })?;
        self.tree.blocks[place].1 = block;
        Ok(block)
    }

    fn print(&mut self, line: u32, body: &mut Body) -> Result<()> {
        let mut first = true;
        while !self.is(Kind::BlockEnd) {
            if !std::mem::take(&mut first) {
                self.expect(Kind::Sign(","))?;
            }
            let value = self.expression()?;
            let print = self.add(line, Action::Print(value))?;
            push(body, print, VALUES)?;
        }
        Ok(())
    }
}
