//! Runs the statements of a template.
//!
//! Expressions are in the sibling module. An error says the line of what failed, and which message was being written.

use super::arguments::Arguments;
use super::budget::{ARGUMENT_UNITS, Budget, OUTPUT_BYTES, exceeded, failure};
use super::heap::{Buffer, Entries, Str, Text};
use super::key::Key;
use super::markup::{escaped, marked};
use super::references::MacroValue;
use super::scope::Scope;
use super::show::{display, push_display};
use super::tree::{Action, Body, ExpressionId, ForLoop, Form, Macro, StatementId, Tree};
use super::value::{Items, Loop, Namespace, VALUES, Value};
use crate::error::{Error, Excerpt, Result, grow_text};
use std::rc::Rc;

/// The state of one rendering.
pub(super) struct Interpreter<'t> {
    pub(super) tree: &'t Tree<'t>,
    pub(super) budget: &'t Budget,
    pub(super) context: &'t Entries,
    pub(super) now: i64,
    pub(super) namespaces: Buffer<Rc<Namespace>>,
    pub(super) macros: Buffer<MacroDefinition<'t>>,
    /// Whether `raise_exception` was called, whose text stays as it is.
    pub(super) raised: bool,
    /// Where the error came about.
    pub(super) failed_line: Option<u32>,
    failed_message: Option<usize>,
    root: Rc<Scope<'t>>,
    recursive_loops: Buffer<(&'t ForLoop, Rc<Scope<'t>>, Escaping)>,
    output: String,
    captures: Buffer<Text>,
    /// Whether filters and macros that run now make HTML.
    pub(super) escapes: bool,
    /// Whether what stands here is escaped when it is written.
    pub(super) escaping: Escaping,
}

/// Whether texts are escaped where they are written in the source.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Escaping {
    Never,
    Always,
    /// As [`Interpreter::escapes`] says.
    AsItRuns,
}

/// A macro with the scope it was made in.
pub(super) struct MacroDefinition<'t> {
    declaration: &'t Macro<'t>,
    scope: Rc<Scope<'t>>,
    escaping: Escaping,
}

/// Where to go on after a statement.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Flow {
    Next,
    Continue,
    Break,
}

impl Drop for Interpreter<'_> {
    /// Namespaces may hold each other, in circles or in long chains.
    fn drop(&mut self) {
        for namespace in self.namespaces.iter() {
            drop(namespace.entries.replace(Entries::new(self.budget)));
        }
    }
}

impl<'t> Interpreter<'t> {
    /// A rendering of `tree` with the variables of `context` at the moment `now`.
    pub(super) fn new(
        tree: &'t Tree<'t>,
        budget: &'t Budget,
        context: &'t Entries,
        now: i64,
    ) -> Result<Interpreter<'t>> {
        Ok(Interpreter {
            tree,
            budget,
            context,
            now,
            namespaces: Buffer::new(budget),
            macros: Buffer::new(budget),
            raised: false,
            failed_line: None,
            failed_message: None,
            root: Scope::root(budget)?,
            recursive_loops: Buffer::new(budget),
            output: String::new(),
            captures: Buffer::new(budget),
            escapes: false,
            escaping: Escaping::Never,
        })
    }

    /// Renders the template.
    pub(super) fn render(mut self) -> Result<String> {
        let root = Rc::clone(&self.root);
        match self.block(&self.tree.body, &root) {
            Ok(_) => Ok(std::mem::take(&mut self.output)),
            Err(Error::Template(message)) if !self.raised => failure(self.located(&message)),
            Err(error) => Err(error),
        }
    }

    /// An error's text with its place before it.
    fn located(&self, message: &str) -> String {
        let message = message.replace('\n', " ");
        match (self.failed_line, self.failed_message) {
            (Some(line), Some(index)) => format!("line {line}, at messages[{index}]: {message}"),
            (Some(line), None) => format!("line {line}: {message}"),
            (None, _) => message,
        }
    }

    fn emit(&mut self, text: &str) -> Result<()> {
        match self.captures.last_mut() {
            Some(capture) => capture.push(text),
            None if self.output.len() + text.len() > OUTPUT_BYTES => {
                exceeded("output", format_args!("{OUTPUT_BYTES} bytes"))
            }
            None => {
                self.budget.work(text.len())?;
                grow_text(&mut self.output, text.len(), VALUES)?;
                self.output.push_str(text);
                Ok(())
            }
        }
    }

    fn emit_value(&mut self, value: &Value) -> Result<()> {
        if let Value::Text(text) = value {
            return self.emit(text);
        }
        let mut shown = Text::new(self.budget);
        push_display(&mut shown, value)?;
        self.emit(&shown.finish())
    }

    /// What `body` writes.
    fn captured(&mut self, body: impl FnOnce(&mut Self) -> Result<()>) -> Result<Value> {
        self.captures.push(Text::new(self.budget))?;
        let result = body(self);
        let text = self.captures.pop().map(Text::finish).unwrap_or_default();
        result.map(|()| Value::Text(text))
    }

    fn block(&mut self, body: &'t Body, scope: &Rc<Scope<'t>>) -> Result<Flow> {
        for &statement in body {
            let flow = self.statement(statement, scope)?;
            if flow != Flow::Next {
                return Ok(flow);
            }
        }
        Ok(Flow::Next)
    }

    fn statement(&mut self, id: StatementId, scope: &Rc<Scope<'t>>) -> Result<Flow> {
        let statement = self.tree.statement(id);
        let _level = self.budget.enter()?;
        let flow = self.run(&statement.action, scope);
        if flow.is_err() {
            self.failed_line.get_or_insert(statement.line);
        }
        flow
    }

    fn run(&mut self, action: &'t Action<'t>, scope: &Rc<Scope<'t>>) -> Result<Flow> {
        match action {
            Action::Text(text) => self.emit(text)?,
            Action::Print(expression) => {
                let value = self.evaluate(*expression, scope)?;
                let value = if self.writes_html() { Value::Text(escaped(self.budget, &value)?) } else { value };
                self.emit_value(&value)?;
            }
            Action::If { branches, otherwise } => {
                for (condition, body) in branches {
                    if self.evaluate(*condition, scope)?.is_true() {
                        return self.block(body, scope);
                    }
                }
                return self.block(otherwise, scope);
            }
            Action::For(statement) => self.for_loop(statement, scope)?,
            Action::Set(target, expression) => {
                let value = self.evaluate(*expression, scope)?;
                self.assign(*target, value, scope)?;
            }
            Action::SetBlock(target, filter, body) => {
                let text = self.captured(|this| this.block(body, &Scope::inside(scope)?).map(drop))?;
                let value = match filter {
                    Some(filter) => self.filtered(*filter, Some(text), scope)?,
                    None => text,
                };
                let value = if self.escapes { Value::Text(display(self.budget, &value)?.marked()) } else { value };
                self.assign(*target, value, scope)?;
            }
            Action::With(assignments, body) => return self.with_block(assignments, body, scope),
            Action::Filter(filter, body) => {
                let text = self.captured(|this| this.block(body, &Scope::inside(scope)?).map(drop))?;
                let text = if self.writes_html() { marked(self.budget, text)? } else { text };
                let filtered = self.filtered(*filter, Some(text), scope)?;
                self.emit_value(&filtered)?;
            }
            Action::Macro(declaration) => {
                let value = self.define(declaration, scope)?;
                scope.set(declaration.name.unwrap_or_default(), value)?;
            }
            Action::CallBlock(call, body) => self.call_block(*call, body, scope)?,
            Action::Block { scoped, required, body } => {
                let outer = if *scoped { Rc::clone(scope) } else { Rc::clone(&self.root) };
                self.named_block(*required, body, &outer)?;
            }
            Action::Autoescape(value, body) => return self.autoescape(*value, body, scope),
            Action::Generation(body) => drop(self.block(body, &Scope::inside(scope)?)?),
            Action::Continue => return Ok(Flow::Continue),
            Action::Break => return Ok(Flow::Break),
            Action::OtherTemplate => return failure("there are no other templates to extend, include or import"),
        }
        Ok(Flow::Next)
    }

    /// Writes a block, which is compiled apart from what is around it.
    fn named_block(&mut self, required: bool, body: &'t Body, outer: &Rc<Scope<'t>>) -> Result<()> {
        if required {
            return failure("a required block is not filled");
        }
        let inner = Scope::inside(outer)?;
        self.written_as(Escaping::Never, |this| this.block(body, &inner).map(drop))
    }

    /// What the block at `place` writes, as `self.name()` gives it.
    pub(super) fn call_block_reference(&mut self, place: usize) -> Result<Value> {
        let Action::Block { required, body, .. } = &self.tree.statement(self.tree.blocks[place].1).action else {
            return failure("there is no such block");
        };
        let root = Rc::clone(&self.root);
        let text = self.captured(|this| this.named_block(*required, body, &root))?;
        if self.escapes { marked(self.budget, text) } else { Ok(text) }
    }

    fn autoescape(&mut self, value: ExpressionId, body: &'t Body, scope: &Rc<Scope<'t>>) -> Result<Flow> {
        let escapes = self.evaluate(value, scope)?.is_true();
        let escaping = match (&self.tree.expression(value).form, escapes) {
            (Form::Constant(_), true) => Escaping::Always,
            (Form::Constant(_), false) => Escaping::Never,
            _ => Escaping::AsItRuns,
        };
        let inner = Scope::inside(scope)?;
        let before = std::mem::replace(&mut self.escapes, escapes);
        let flow = self.written_as(escaping, |this| this.block(body, &inner));
        self.escapes = before;
        flow
    }

    /// Runs what stands where texts are escaped so.
    fn written_as<T>(&mut self, escaping: Escaping, run: impl FnOnce(&mut Self) -> T) -> T {
        let before = std::mem::replace(&mut self.escaping, escaping);
        let result = run(self);
        self.escaping = before;
        result
    }

    fn writes_html(&self) -> bool {
        match self.escaping {
            Escaping::Never => false,
            Escaping::Always => true,
            Escaping::AsItRuns => self.escapes,
        }
    }

    fn with_block(
        &mut self,
        assignments: &'t [(ExpressionId, ExpressionId)],
        body: &'t Body,
        scope: &Rc<Scope<'t>>,
    ) -> Result<Flow> {
        let inner = Scope::inside(scope)?;
        for &(target, expression) in assignments {
            let value = self.evaluate(expression, scope)?;
            self.assign(target, value, &inner)?;
        }
        self.block(body, &inner)
    }

    /// Assigns to a name, to several at once, or to an attribute of a namespace.
    fn assign(&mut self, target: ExpressionId, value: Value, scope: &Rc<Scope<'t>>) -> Result<()> {
        let targets = match &self.tree.expression(target).form {
            Form::Name(name) => return scope.set(name, value),
            Form::NamespaceItem(name, attribute) => {
                let Value::Namespace(namespace) = self.look_up(name, scope)? else {
                    return failure("cannot assign attribute on non-namespace object");
                };
                return namespace.entries.borrow_mut().insert(Key::text(self.budget, attribute)?, value);
            }
            Form::Tuple(targets) => targets,
            _ => return failure("cannot assign to this expression"),
        };
        let values = value.iterate(self.budget)?;
        if values.len() != targets.len() {
            return failure(format!("cannot unpack {} values into {} names", values.len(), targets.len()));
        }
        targets.iter().zip(values.iter()).try_for_each(|(&target, value)| self.assign(target, value.clone(), scope))
    }

    fn for_loop(&mut self, statement: &'t ForLoop, scope: &Rc<Scope<'t>>) -> Result<()> {
        let values = self.evaluate(statement.values, scope)?;
        let mut recursive = None;
        if statement.recursive {
            recursive = Some(self.recursive_loops.len());
            self.recursive_loops.push((statement, Rc::clone(scope), self.escaping))?;
        }
        self.go_through(statement, &values, scope, recursive, 0)
    }

    /// One more level of a recursive loop; what it writes is the value.
    pub(super) fn recurse(&mut self, current: &Loop, values: &Value) -> Result<Value> {
        let Some(number) = current.recursive else { return failure("the loop is not recursive") };
        let (statement, scope, escaping) = &self.recursive_loops[number];
        let (statement, scope, escaping) = (*statement, Rc::clone(scope), *escaping);
        self.written_as(escaping, |this| {
            let depth = current.depth + 1;
            let text = this.captured(|this| this.go_through(statement, values, &scope, Some(number), depth))?;
            if this.writes_html() { marked(this.budget, text) } else { Ok(text) }
        })
    }

    fn go_through(
        &mut self,
        statement: &'t ForLoop,
        values: &Value,
        scope: &Rc<Scope<'t>>,
        recursive: Option<usize>,
        depth: usize,
    ) -> Result<()> {
        let mut items = values.iterate(self.budget)?;
        if let Some(condition) = statement.condition {
            items = self.filter_items(&items, statement.target, condition, scope)?;
        }
        if items.is_empty() {
            return self.block(&statement.otherwise, &Scope::inside(scope)?).map(drop);
        }
        let current = Loop::new(self.budget, Rc::clone(&items), recursive, depth)?;
        for (index, item) in items.iter().enumerate() {
            self.budget.spend(1)?;
            current.index.set(index);
            let inner = Scope::inside(scope)?;
            self.assign(statement.target, item.clone(), &inner)?;
            inner.set("loop", Value::Loop(Rc::clone(&current)))?;
            match self.block(&statement.body, &inner) {
                Ok(Flow::Break) => {
                    if let (Value::Generator(generator), None) = (values, statement.condition) {
                        generator.put_back(&items, index + 1);
                    }
                    break;
                }
                Ok(_) => {}
                Err(error) => {
                    self.note_message(item);
                    return Err(error);
                }
            }
        }
        Ok(())
    }

    /// Notes which message an error is about, when `item` is one.
    fn note_message(&mut self, item: &Value) {
        let (Value::Map(item), Some(Value::List(messages))) = (item, self.context.get("messages")) else { return };
        let index = messages.iter().position(|other| matches!(other, Value::Map(other) if Rc::ptr_eq(item, other)));
        self.failed_message = self.failed_message.or(index);
    }

    fn filter_items(
        &mut self,
        items: &Items,
        target: ExpressionId,
        condition: ExpressionId,
        scope: &Rc<Scope<'t>>,
    ) -> Result<Rc<Items>> {
        let mut kept = Buffer::new(self.budget);
        for item in items.iter() {
            let inner = Scope::inside(scope)?;
            self.assign(target, item.clone(), &inner)?;
            if self.evaluate(condition, &inner)?.is_true() {
                kept.push(item.clone())?;
            }
        }
        Items::new(kept)
    }

    fn define(&mut self, declaration: &'t Macro<'t>, scope: &Rc<Scope<'t>>) -> Result<Value> {
        self.macros.push(MacroDefinition { declaration, scope: Rc::clone(scope), escaping: self.escaping })?;
        MacroValue::value(self.budget, self.macros.len() - 1, declaration)
    }

    fn call_block(&mut self, call: ExpressionId, body: &'t Macro<'t>, scope: &Rc<Scope<'t>>) -> Result<()> {
        let Form::Call(callee, arguments) = &self.tree.expression(call).form else {
            return failure("a call block needs a call");
        };
        let caller = self.define(body, scope)?;
        let value = self.call(*callee, arguments, Some(caller), scope)?;
        self.emit_value(&value)
    }

    /// Calls the macro `number`; what it writes is the value.
    pub(super) fn call_macro(&mut self, number: usize, mut arguments: Arguments) -> Result<Value> {
        let (declaration, escaping) = (self.macros[number].declaration, self.macros[number].escaping);
        let scope = Scope::inside(&self.macros[number].scope)?;
        let mut positional = std::mem::replace(&mut arguments.positional, Buffer::new(self.budget)).into_iter();
        for &(name, default) in &declaration.parameters {
            self.budget.work(arguments.named.len().saturating_mul(ARGUMENT_UNITS))?;
            let by_name = arguments.named.iter().position(|(given, _)| **given == *name);
            let given = positional.next().or_else(|| by_name.map(|at| arguments.named.remove(at).1));
            let value = match (given, default) {
                (Some(value), _) => value,
                (None, Some(default)) => self.evaluate(default, &scope)?,
                (None, None) => {
                    let name = Excerpt(name.as_bytes());
                    Value::undefined(self.budget, format_args!("parameter '{name}' was not provided"))?
                }
            };
            scope.set(name, value)?;
        }
        self.bind_rest(declaration, Buffer::of(self.budget, positional)?, arguments.named, &scope)?;
        let text =
            self.written_as(escaping, |this| this.captured(|this| this.block(&declaration.body, &scope).map(drop)))?;
        if self.escapes { marked(self.budget, text) } else { Ok(text) }
    }

    /// Binds what a call gives beyond the parameters of a macro, which must use the names that stand for that.
    fn bind_rest(
        &mut self,
        declaration: &'t Macro<'t>,
        positional: Buffer<Value>,
        mut named: Buffer<(Str, Value)>,
        scope: &Rc<Scope<'t>>,
    ) -> Result<()> {
        let name = Excerpt(declaration.name.unwrap_or("caller").as_bytes());
        if declaration.uses.caller && !declaration.has_parameter("caller") {
            let caller = named.iter().position(|(name, _)| &**name == "caller").map(|at| named.remove(at).1);
            let missing = || Value::undefined(self.budget, format_args!("no caller defined"));
            scope.set("caller", caller.map_or_else(missing, Ok)?)?;
        }
        if declaration.uses.kwargs {
            let mut rest = Entries::new(self.budget);
            for (name, value) in std::mem::replace(&mut named, Buffer::new(self.budget)) {
                rest.insert(Key::new(self.budget, Value::Text(name))?, value)?;
            }
            scope.set("kwargs", Value::map(rest)?)?;
        }
        if let Some((other, _)) = named.first() {
            let other = Excerpt(other.as_bytes());
            return failure(format!("macro '{name}' takes no keyword argument '{other}'"));
        }
        if declaration.uses.varargs {
            scope.set("varargs", Value::tuple(positional)?)?;
        } else if !positional.is_empty() {
            let most = declaration.parameters.len();
            return failure(format!("macro '{name}' takes not more than {most} argument(s)"));
        }
        Ok(())
    }
}
