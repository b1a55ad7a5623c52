//! Evaluates the expressions of a template.

use super::arguments::Arguments;
use super::arithmetic;
use super::budget::{ARGUMENT_UNITS, OUTPUT_BYTES, exceeded, failure};
use super::clock;
use super::filters;
use super::heap::{Buffer, Entries, Str};
use super::interpreter::{Escaping, Interpreter};
use super::key::Key;
use super::lazy::{Cycler, Joiner, Range};
use super::methods;
use super::operators;
use super::predicates;
use super::references;
use super::scope::Scope;
use super::show::display;
use super::tree::{CallArguments, CompareOpKind, ExpressionId, Form};
use super::value::{Function, Value};
use crate::error::{Excerpt, Result};
use std::rc::Rc;

impl<'t> Interpreter<'t> {
    /// The value of an expression.
    pub(super) fn evaluate(&mut self, id: ExpressionId, scope: &Rc<Scope<'t>>) -> Result<Value> {
        let expression = self.tree.expression(id);
        let _level = self.budget.enter()?;
        let value = self.value_of(id, &expression.form, scope);
        if value.is_err() {
            self.failed_line.get_or_insert(expression.line);
        }
        value
    }

    fn value_of(&mut self, id: ExpressionId, form: &'t Form<'t>, scope: &Rc<Scope<'t>>) -> Result<Value> {
        match form {
            Form::Name(name) => self.look_up(name, scope),
            Form::Constant(value) => Ok(value.clone()),
            Form::List(items) => {
                let values = self.evaluate_all(items, scope)?;
                Value::list(values)
            }
            Form::Tuple(items) => {
                let values = self.evaluate_all(items, scope)?;
                Value::tuple(values)
            }
            Form::Map(pairs) => {
                let mut entries = Entries::new(self.budget);
                for &(key, value) in pairs {
                    let key = Key::new(self.budget, self.evaluate(key, scope)?)?;
                    entries.insert(key, self.evaluate(value, scope)?)?;
                }
                Value::map(entries)
            }
            Form::Not(value) => Ok(Value::Bool(!self.evaluate(*value, scope)?.is_true())),
            Form::Negative(value) => arithmetic::negate(self.budget, &self.evaluate(*value, scope)?),
            Form::Positive(value) => arithmetic::posit(&self.evaluate(*value, scope)?),
            Form::And(left, right) => match self.evaluate(*left, scope)? {
                left if left.is_true() => self.evaluate(*right, scope),
                left => Ok(left),
            },
            Form::Or(left, right) => match self.evaluate(*left, scope)? {
                left if left.is_true() => Ok(left),
                _ => self.evaluate(*right, scope),
            },
            Form::Binary(operator, left, right) => {
                let (left, right) = (self.evaluate(*left, scope)?, self.evaluate(*right, scope)?);
                operators::binary(self.budget, *operator, &left, &right)
            }
            Form::Concat(parts) => {
                let parts = self.evaluate_all(parts, scope)?;
                let html = self.escaping == Escaping::Always && parts.iter().any(Value::is_markup);
                operators::concat(self.budget, &parts, html)
            }
            Form::Compare(first, others) => self.compare(*first, others, scope),
            Form::Choice { test, yes, no } => match (self.evaluate(*test, scope)?.is_true(), no) {
                (true, _) => self.evaluate(*yes, scope),
                (false, Some(no)) => self.evaluate(*no, scope),
                (false, None) => Value::undefined(self.budget, format_args!("the inline if is false and has no else")),
            },
            Form::Filter(..) => self.filtered(id, None, scope),
            Form::Test(value, name, arguments) => {
                let value = self.evaluate(*value, scope)?;
                let arguments = self.arguments(arguments, scope)?;
                predicates::holds(self.budget, name, &value, &arguments).map(Value::Bool)
            }
            Form::Attribute(value, name) => {
                let value = self.evaluate(*value, scope)?;
                let reference = references::attribute(self.budget, self.tree, &value, name);
                reference.unwrap_or_else(|| operators::attribute(self.budget, &value, name))
            }
            Form::Item(value, subscript) => self.item(*value, *subscript, scope),
            Form::Call(callee, arguments) => self.call(*callee, arguments, None, scope),
            Form::Slice(_) | Form::NamespaceItem(..) => failure("a slice is no value"),
        }
    }

    /// `value[subscript]`
    fn item(&mut self, value: ExpressionId, subscript: ExpressionId, scope: &Rc<Scope<'t>>) -> Result<Value> {
        let value = self.evaluate(value, scope)?;
        if let Form::Slice(bounds) = &self.tree.expression(subscript).form {
            return self.slice(&value, bounds, scope);
        }
        let subscript = self.evaluate(subscript, scope)?;
        if let Some(name) = subscript.as_str()
            && let Some(reference) = references::attribute(self.budget, self.tree, &value, name)
        {
            return reference;
        }
        operators::item(self.budget, &value, &subscript)
    }

    /// What a name stands for.
    pub(super) fn look_up(&self, name: &str, scope: &Scope<'t>) -> Result<Value> {
        if let Some(value) = scope.get(name)? {
            return Ok(value);
        }
        self.budget.work(name.len())?;
        if name == "self" {
            return Ok(Value::Template);
        }
        if let Some(value) = self.context.get(name) {
            return Ok(value.clone());
        }
        match Function::named(name) {
            Some(function) => Ok(Value::Function(function)),
            None => Value::undefined(self.budget, format_args!("'{}' is undefined", Excerpt(name.as_bytes()))),
        }
    }

    fn evaluate_all(&mut self, expressions: &'t [ExpressionId], scope: &Rc<Scope<'t>>) -> Result<Buffer<Value>> {
        Buffer::gathered(self.budget, expressions.iter().map(|&expression| self.evaluate(expression, scope)))
    }

    fn compare(
        &mut self,
        first: ExpressionId,
        others: &'t [(CompareOpKind, ExpressionId)],
        scope: &Rc<Scope<'t>>,
    ) -> Result<Value> {
        let mut left = self.evaluate(first, scope)?;
        for &(comparison, right) in others {
            let right = self.evaluate(right, scope)?;
            if !operators::compare(self.budget, comparison, &left, &right)? {
                return Ok(Value::Bool(false));
            }
            left = right;
        }
        Ok(Value::Bool(true))
    }

    fn slice(&mut self, value: &Value, bounds: &'t [Option<ExpressionId>; 3], scope: &Rc<Scope<'t>>) -> Result<Value> {
        let mut bound = |bound: Option<ExpressionId>| match bound {
            Some(expression) => self.evaluate(expression, scope),
            None => Ok(Value::None),
        };
        let (start, stop, step) = (bound(bounds[0])?, bound(bounds[1])?, bound(bounds[2])?);
        operators::slice(self.budget, value, [&start, &stop, &step])
    }

    /// A chain of filters; `base` stands in for the value of the innermost when that has none.
    pub(super) fn filtered(&mut self, id: ExpressionId, base: Option<Value>, scope: &Rc<Scope<'t>>) -> Result<Value> {
        let mut chain = Buffer::new(self.budget);
        let mut inner = Some(id);
        while let Some(id) = inner
            && let Form::Filter(value, name, arguments) = &self.tree.expression(id).form
        {
            self.budget.spend(1)?;
            chain.push((*name, arguments))?;
            inner = *value;
        }
        let mut value = match (inner, base) {
            (Some(expression), _) => self.evaluate(expression, scope)?,
            (None, Some(base)) => base,
            (None, None) => return failure("a filter without a value"),
        };
        for &(name, arguments) in chain.iter().rev() {
            let arguments = self.arguments(arguments, scope)?;
            value = filters::apply(self.budget, name, &value, &arguments)?;
        }
        Ok(value)
    }

    fn arguments(&mut self, given: &'t CallArguments<'t>, scope: &Rc<Scope<'t>>) -> Result<Arguments> {
        let positional = self.evaluate_all(&given.positional, scope)?;
        let mut arguments = Arguments { positional, named: Buffer::new(self.budget), escapes: self.escapes };
        for &(name, expression) in &given.named {
            let value = self.evaluate(expression, scope)?;
            arguments.named.push((Str::of(self.budget, name)?, value))?;
        }
        if let Some(expression) = given.values {
            let values = self.evaluate(expression, scope)?.iterate(self.budget)?;
            values.iter().try_for_each(|value| arguments.positional.push(value.clone()))?;
        }
        match given.entries.map(|expression| self.evaluate(expression, scope)).transpose()? {
            None => {}
            Some(Value::Map(map)) => {
                for (key, value) in map.iter() {
                    let Value::Text(name) = &key.0 else { return failure("keywords must be strings") };
                    if given.named.iter().any(|(other, _)| *other == &**name) {
                        let name = Excerpt(name.as_bytes());
                        return failure(format!("got multiple values for keyword argument '{name}'"));
                    }
                    self.budget.work(given.named.len() * ARGUMENT_UNITS)?;
                    arguments.named.push((name.clone(), value.clone()))?;
                }
            }
            Some(other) => return failure(format!("argument after ** must be a mapping, not {}", other.type_name())),
        }
        Ok(arguments)
    }

    /// Calls something; `caller` is the body of a call block.
    pub(super) fn call(
        &mut self,
        callee: ExpressionId,
        arguments: &'t CallArguments<'t>,
        caller: Option<Value>,
        scope: &Rc<Scope<'t>>,
    ) -> Result<Value> {
        let callee = self.evaluate(callee, scope)?;
        let mut arguments = self.arguments(arguments, scope)?;
        if let Some(caller) = caller {
            arguments.named.push((Str::of(self.budget, "caller")?, caller))?;
        }
        match &callee {
            Value::Macro(declared) => self.call_macro(declared.number, arguments),
            Value::Block(_) if arguments.values().next().is_some() => failure("a block takes no arguments"),
            Value::Block(place) => self.call_block_reference(*place),
            Value::Method(method) => methods::call(self.budget, &method.of, method.name, &arguments),
            Value::Loop(current) => self.recurse(current, arguments.required(0, "iterable")?),
            Value::Function(function) => self.call_function(*function, arguments),
            Value::Joiner(joiner) => Ok(joiner.call()),
            other => {
                other.defined()?;
                failure(format!("'{}' object is not callable", other.type_name()))
            }
        }
    }

    fn call_function(&mut self, function: Function, arguments: Arguments) -> Result<Value> {
        self.budget.call(function.cost(), &Value::None, &arguments)?;
        match function {
            Function::Range => self.range(&arguments),
            Function::Dict => self.entries(arguments).and_then(Value::map),
            Function::Namespace => {
                let namespace = Value::namespace(self.budget, self.entries(arguments)?)?;
                self.namespaces.push(Rc::clone(&namespace))?;
                Ok(Value::Namespace(namespace))
            }
            Function::Cycler => Cycler::value(self.budget, arguments.positional),
            Function::Joiner => {
                let comma = || Value::text(self.budget, ", ");
                Joiner::value(self.budget, arguments.get(0, "sep").cloned().map_or_else(comma, Ok)?)
            }
            Function::RaiseException => {
                let message = display(self.budget, arguments.required(0, "message")?)?;
                if message.len() > OUTPUT_BYTES {
                    return exceeded("output", format_args!("{OUTPUT_BYTES} bytes"));
                }
                self.raised = true;
                failure(&*message)
            }
            Function::Lipsum => failure("lipsum() would write another text each time, which no chat template may"),
            Function::StrftimeNow => clock::strftime(self.budget, self.now, arguments.text(0, "format")?),
        }
    }

    /// The entries that `dict` and `namespace` begin with: those of a dictionary, or pairs, and what is given by name.
    fn entries(&self, arguments: Arguments) -> Result<Entries> {
        let mut entries = Entries::new(self.budget);
        match arguments.positional.first() {
            _ if arguments.positional.len() > 1 => {
                return failure(format!("dict expected at most 1 argument, got {}", arguments.positional.len()));
            }
            Some(Value::Map(map)) => {
                for (key, value) in map.iter() {
                    entries.insert(Key::new(self.budget, key.0.clone())?, value.clone())?;
                }
            }
            Some(pairs) => {
                for pair in pairs.iterate(self.budget)?.iter() {
                    let [key, value] = &pair.iterate(self.budget)?[..] else {
                        return failure("dict needs pairs of a key and a value");
                    };
                    entries.insert(Key::new(self.budget, key.clone())?, value.clone())?;
                }
            }
            None => {}
        }
        for (name, value) in arguments.named {
            entries.insert(Key::new(self.budget, Value::Text(name))?, value)?;
        }
        Ok(entries)
    }

    fn range(&self, arguments: &Arguments) -> Result<Value> {
        let bound = |index: usize| match arguments.positional.get(index) {
            None => Ok(None),
            Some(value) => match value.as_int() {
                Some(number) => Ok(Some(number)),
                None if matches!(value, Value::Large(_)) => failure("a range goes to numbers of 128 bits at most"),
                None => failure(format!("'{}' object is not an integer", value.type_name())),
            },
        };
        let (first, second, step) = (bound(0)?, bound(1)?, bound(2)?.unwrap_or(1));
        let given = arguments.positional.len();
        let Some(first) = first.filter(|_| given <= 3 && arguments.named.is_empty()) else {
            return failure(format!("range takes 1 to 3 numbers, {given} were given, and no names"));
        };
        let (start, stop) = second.map_or((0, first), |second| (first, second));
        Range::value(self.budget, start, stop, step)
    }
}
