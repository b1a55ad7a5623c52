//! Runs the statements of a template.
//!
//! The parser is minijinja's; the evaluator is ours because nothing bounds the memory of theirs: one `~` doubles a text,
//! forty fill any machine, and a failed allocation aborts the host. Expressions are in the sibling module.

use super::arguments::Arguments;
use super::budget::{Budget, OUTPUT_BYTES, Text, exceeded, failure};
use super::scope::Scope;
use super::show::push_display;
use super::value::{Items, Key, Loop, VALUES, Value, insert};
use crate::error::{Error, Excerpt, Result, collected, push};
use hashbrown::HashMap;
use indexmap::IndexMap;
use minijinja::machinery::ast::{CallBlock, Const, Expr, ForLoop, Macro, SetBlock, Stmt, WithBlock};
use std::cell::{Cell, RefCell};
use std::rc::Rc;

/// The state of one rendering.
pub(super) struct Interpreter<'t> {
    pub(super) budget: &'t Budget,
    pub(super) context: &'t IndexMap<Key, Value>,
    pub(super) now: i64,
    pub(super) constants: HashMap<*const Const, Value>,
    pub(super) namespaces: Vec<Rc<RefCell<IndexMap<Key, Value>>>>,
    pub(super) macros: Vec<MacroDefinition<'t>>,
    recursive_loops: Vec<(&'t ForLoop<'t>, Rc<Scope<'t>>)>,
    output: String,
    captures: Vec<Text<'t>>,
}

/// A macro with the scope it was made in.
pub(super) struct MacroDefinition<'t> {
    declaration: &'t Macro<'t>,
    scope: Rc<Scope<'t>>,
}

/// What a scope that is kept is counted as.
const SCOPE_BYTES: usize = 1_024;

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
        for namespace in &self.namespaces {
            let entries = std::mem::take(&mut *namespace.borrow_mut());
            drop(entries);
        }
    }
}

impl<'t> Interpreter<'t> {
    /// A rendering with the variables of `context` at the moment `now`.
    pub(super) fn new(budget: &'t Budget, context: &'t IndexMap<Key, Value>, now: i64) -> Interpreter<'t> {
        Interpreter {
            budget,
            context,
            now,
            constants: HashMap::new(),
            namespaces: Vec::new(),
            macros: Vec::new(),
            recursive_loops: Vec::new(),
            output: String::new(),
            captures: Vec::new(),
        }
    }

    /// Renders `template`.
    pub(super) fn render(mut self, template: &'t Stmt<'t>) -> Result<String> {
        self.statement(template, &Scope::root())?;
        Ok(std::mem::take(&mut self.output))
    }

    fn emit(&mut self, text: &str) -> Result<()> {
        match self.captures.last_mut() {
            Some(capture) => capture.push(text),
            None if self.output.len() + text.len() > OUTPUT_BYTES => {
                exceeded("output", format_args!("{OUTPUT_BYTES} bytes"))
            }
            None => {
                self.budget.scan(text.len())?;
                self.output.try_reserve(text.len()).map_err(|_| Error::out_of_memory(VALUES, text.len()))?;
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
        push(&mut self.captures, Text::new(self.budget), VALUES)?;
        let result = body(self);
        let text = self.captures.pop().map(Text::finish).unwrap_or_default();
        result.map(|()| Value::Text(text.into()))
    }

    fn block(&mut self, body: &'t [Stmt<'t>], scope: &Rc<Scope<'t>>) -> Result<Flow> {
        for statement in body {
            let flow = self.statement(statement, scope)?;
            if flow != Flow::Next {
                return Ok(flow);
            }
        }
        Ok(Flow::Next)
    }

    fn statement(&mut self, statement: &'t Stmt<'t>, scope: &Rc<Scope<'t>>) -> Result<Flow> {
        self.budget.enter()?;
        let flow = self.run(statement, scope);
        self.budget.leave();
        flow
    }

    fn run(&mut self, statement: &'t Stmt<'t>, scope: &Rc<Scope<'t>>) -> Result<Flow> {
        match statement {
            Stmt::Template(template) => return self.block(&template.children, scope),
            Stmt::EmitRaw(raw) => self.emit(raw.raw)?,
            Stmt::EmitExpr(emit) => {
                let value = self.evaluate(&emit.expr, scope)?;
                self.emit_value(&value)?;
            }
            Stmt::IfCond(condition) => {
                let holds = self.evaluate(&condition.expr, scope)?.is_true();
                return self.block(if holds { &condition.true_body } else { &condition.false_body }, scope);
            }
            Stmt::ForLoop(statement) => self.for_loop(statement, scope)?,
            Stmt::Set(set) => {
                let value = self.evaluate(&set.expr, scope)?;
                self.assign(&set.target, value, scope)?;
            }
            Stmt::SetBlock(set) => self.set_block(set, scope)?,
            Stmt::WithBlock(with) => return self.with_block(with, scope),
            Stmt::AutoEscape(inner) => return self.block(&inner.body, scope),
            Stmt::FilterBlock(inner) => {
                let text = self.captured(|this| this.block(&inner.body, &Scope::inside(scope)).map(drop))?;
                let filtered = self.filtered(&inner.filter, Some(text), scope)?;
                self.emit_value(&filtered)?;
            }
            Stmt::Macro(declaration) => {
                let value = self.define(declaration, scope)?;
                scope.set(declaration.name, value)?;
            }
            Stmt::CallBlock(call) => self.call_block(call, scope)?,
            Stmt::Do(statement) => drop(self.call(&statement.call, None, scope)?),
            Stmt::Continue(_) => return Ok(Flow::Continue),
            Stmt::Break(_) => return Ok(Flow::Break),
        }
        Ok(Flow::Next)
    }

    fn set_block(&mut self, set: &'t SetBlock<'t>, scope: &Rc<Scope<'t>>) -> Result<()> {
        let text = self.captured(|this| this.block(&set.body, &Scope::inside(scope)).map(drop))?;
        let value = match &set.filter {
            Some(filter) => self.filtered(filter, Some(text), scope)?,
            None => text,
        };
        self.assign(&set.target, value, scope)
    }

    fn with_block(&mut self, with: &'t WithBlock<'t>, scope: &Rc<Scope<'t>>) -> Result<Flow> {
        let inner = Scope::inside(scope);
        for (target, expression) in &with.assignments {
            let value = self.evaluate(expression, scope)?;
            self.assign(target, value, &inner)?;
        }
        self.block(&with.body, &inner)
    }

    /// Assigns to a name, to several at once, or to an attribute of a namespace.
    fn assign(&mut self, target: &'t Expr<'t>, value: Value, scope: &Rc<Scope<'t>>) -> Result<()> {
        let targets = match target {
            Expr::Var(name) => {
                return scope.set(name.id, value);
            }
            Expr::GetAttr(attribute) => {
                let Value::Namespace(namespace) = self.evaluate(&attribute.expr, scope)? else {
                    return failure("cannot assign attribute on non-namespace object");
                };
                return insert(&mut namespace.borrow_mut(), Key::text(attribute.name)?, value);
            }
            Expr::Tuple(tuple) => &tuple.items,
            Expr::List(list) => &list.items,
            _ => return failure("cannot assign to this expression"),
        };
        let values = value.iterate(self.budget)?;
        if values.len() != targets.len() {
            return failure(format!("cannot unpack {} values into {} names", values.len(), targets.len()));
        }
        targets.iter().zip(values.iter()).try_for_each(|(target, value)| self.assign(target, value.clone(), scope))
    }

    fn for_loop(&mut self, statement: &'t ForLoop<'t>, scope: &Rc<Scope<'t>>) -> Result<()> {
        let values = self.evaluate(&statement.iter, scope)?;
        let mut recursive = None;
        if statement.recursive {
            self.budget.take(SCOPE_BYTES)?;
            recursive = Some(self.recursive_loops.len());
            push(&mut self.recursive_loops, (statement, Rc::clone(scope)), VALUES)?;
        }
        self.go_through(statement, &values, scope, recursive, 0)
    }

    /// One more level of a recursive loop; what it writes is the value.
    pub(super) fn recurse(&mut self, current: &Loop, values: &Value) -> Result<Value> {
        let Some(number) = current.recursive else { return failure("the loop is not recursive") };
        let (statement, scope) = (self.recursive_loops[number].0, Rc::clone(&self.recursive_loops[number].1));
        self.captured(|this| this.go_through(statement, values, &scope, Some(number), current.depth + 1))
    }

    fn go_through(
        &mut self,
        statement: &'t ForLoop<'t>,
        values: &Value,
        scope: &Rc<Scope<'t>>,
        recursive: Option<usize>,
        depth: usize,
    ) -> Result<()> {
        let mut items = values.iterate(self.budget)?;
        if let Some(condition) = &statement.filter_expr {
            items = self.filter_items(&items, &statement.target, condition, scope)?;
        }
        if items.is_empty() {
            return self.block(&statement.else_body, &Scope::inside(scope)).map(drop);
        }
        let current =
            Loop { items: Rc::clone(&items), index: Cell::new(0), depth, recursive, last_changed: RefCell::new(None) };
        let current = Rc::new(current);
        for (index, item) in items.iter().enumerate() {
            self.budget.spend(1)?;
            current.index.set(index);
            let inner = Scope::inside(scope);
            self.assign(&statement.target, item.clone(), &inner)?;
            inner.set("loop", Value::Loop(Rc::clone(&current)))?;
            if self.block(&statement.body, &inner)? == Flow::Break {
                break;
            }
        }
        Ok(())
    }

    fn filter_items(
        &mut self,
        items: &Items,
        target: &'t Expr<'t>,
        condition: &'t Expr<'t>,
        scope: &Rc<Scope<'t>>,
    ) -> Result<Rc<Items>> {
        let mut kept = Vec::new();
        for item in items.iter() {
            let inner = Scope::inside(scope);
            self.assign(target, item.clone(), &inner)?;
            if self.evaluate(condition, &inner)?.is_true() {
                push(&mut kept, item.clone(), VALUES)?;
            }
        }
        Items::new(self.budget, kept)
    }

    fn define(&mut self, declaration: &'t Macro<'t>, scope: &Rc<Scope<'t>>) -> Result<Value> {
        self.budget.take(SCOPE_BYTES)?;
        push(&mut self.macros, MacroDefinition { declaration, scope: Rc::clone(scope) }, VALUES)?;
        Ok(Value::Macro(self.macros.len() - 1))
    }

    fn call_block(&mut self, call: &'t CallBlock<'t>, scope: &Rc<Scope<'t>>) -> Result<()> {
        let caller = self.define(&call.macro_decl, scope)?;
        let value = self.call(&call.call, Some(caller), scope)?;
        self.emit_value(&value)
    }

    /// Calls the macro `number`; what it writes is the value.
    pub(super) fn call_macro(&mut self, number: usize, mut arguments: Arguments) -> Result<Value> {
        let declaration = self.macros[number].declaration;
        let scope = Scope::inside(&self.macros[number].scope);
        self.budget.take_items(declaration.args.len())?;
        let mut positional = std::mem::take(&mut arguments.positional).into_iter();
        let without_default = declaration.args.len() - declaration.defaults.len();
        for (index, parameter) in declaration.args.iter().enumerate() {
            let Expr::Var(name) = parameter else { return failure("the parameters of a macro must be names") };
            let by_name = arguments.named.iter().position(|(given, _)| given == name.id);
            let given = positional.next().or_else(|| by_name.map(|at| arguments.named.remove(at).1));
            let default = index.checked_sub(without_default).and_then(|index| declaration.defaults.get(index));
            let value = match (given, default) {
                (Some(value), _) => value,
                (None, Some(default)) => self.evaluate(default, &scope)?,
                (None, None) => {
                    let name = Excerpt(name.id.as_bytes());
                    Value::Undefined(format!("parameter '{name}' was not provided").into())
                }
            };
            scope.set(name.id, value)?;
        }
        if let Some(at) = arguments.named.iter().position(|(name, _)| name == "caller") {
            scope.set("caller", arguments.named.remove(at).1)?;
        }
        scope.set("varargs", Value::tuple(self.budget, collected(positional, VALUES)?)?)?;
        let mut rest = IndexMap::new();
        for (name, value) in arguments.named {
            insert(&mut rest, Key(Value::Text(name.into())), value)?;
        }
        scope.set("kwargs", Value::map(self.budget, rest)?)?;
        self.captured(|this| this.block(&declaration.body, &scope).map(drop))
    }
}
