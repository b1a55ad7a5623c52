//! Evaluates the expressions of a template.

use super::arguments::Arguments;
use super::budget::failure;
use super::clock;
use super::filters;
use super::interpreter::Interpreter;
use super::methods;
use super::operators;
use super::predicates;
use super::scope::Scope;
use super::show::display;
use super::value::{Function, Key, VALUES, Value, gathered, insert};
use crate::error::{Error, Excerpt, Result, copied_text, extend, push};
use indexmap::IndexMap;
use minijinja::machinery::ast::{BinOpKind, Call, CallArg, Compare, Const, Expr, Filter, Slice, UnaryOpKind};
use std::cell::RefCell;
use std::rc::Rc;

/// Longest `range`.
const MAX_RANGE: i128 = 100_000;

impl<'t> Interpreter<'t> {
    /// The value of `expression`.
    pub(super) fn evaluate(&mut self, expression: &'t Expr<'t>, scope: &Rc<Scope<'t>>) -> Result<Value> {
        self.budget.enter()?;
        let value = self.value_of(expression, scope);
        self.budget.leave();
        value
    }

    fn value_of(&mut self, expression: &'t Expr<'t>, scope: &Rc<Scope<'t>>) -> Result<Value> {
        match expression {
            Expr::Var(name) => Ok(self.look_up(name.id, scope)),
            Expr::Const(constant) => self.constant(constant),
            Expr::List(list) => {
                let values = self.evaluate_all(&list.items, scope)?;
                Value::list(self.budget, values)
            }
            Expr::Tuple(tuple) => {
                let values = self.evaluate_all(&tuple.items, scope)?;
                Value::tuple(self.budget, values)
            }
            Expr::Map(map) => {
                let mut entries = IndexMap::new();
                for (key, value) in map.keys.iter().zip(&map.values) {
                    let key = Key::new(self.evaluate(key, scope)?)?;
                    insert(&mut entries, key, self.evaluate(value, scope)?)?;
                }
                Value::map(self.budget, entries)
            }
            Expr::UnaryOp(unary) => {
                let value = self.evaluate(&unary.expr, scope)?;
                match unary.op {
                    UnaryOpKind::Not => Ok(Value::Bool(!value.is_true())),
                    UnaryOpKind::Neg => operators::negate(&value),
                }
            }
            Expr::BinOp(binary) => {
                let left = self.evaluate(&binary.left, scope)?;
                match binary.op {
                    BinOpKind::ScAnd if !left.is_true() => return Ok(left),
                    BinOpKind::ScOr if left.is_true() => return Ok(left),
                    _ => {}
                }
                let right = self.evaluate(&binary.right, scope)?;
                match binary.op {
                    BinOpKind::ScAnd | BinOpKind::ScOr => Ok(right),
                    op => operators::binary(self.budget, op, &left, &right),
                }
            }
            Expr::Compare(comparison) => self.compare(comparison, scope),
            Expr::IfExpr(choice) => match (self.evaluate(&choice.test_expr, scope)?.is_true(), &choice.false_expr) {
                (true, _) => self.evaluate(&choice.true_expr, scope),
                (false, Some(otherwise)) => self.evaluate(otherwise, scope),
                (false, None) => Ok(Value::Undefined("the inline if is false and has no else".into())),
            },
            Expr::Filter(_) => self.filtered(expression, None, scope),
            Expr::Test(test) => {
                let value = self.evaluate(&test.expr, scope)?;
                let arguments = self.arguments(&test.args, scope)?;
                predicates::holds(self.budget, test.name, &value, &arguments).map(Value::Bool)
            }
            Expr::GetAttr(attribute) => operators::attribute(&self.evaluate(&attribute.expr, scope)?, attribute.name),
            Expr::GetItem(item) => {
                let value = self.evaluate(&item.expr, scope)?;
                let subscript = self.evaluate(&item.subscript_expr, scope)?;
                operators::item(self.budget, &value, &subscript)
            }
            Expr::Slice(slice) => self.slice(slice, scope),
            Expr::Call(call) => self.call(call, None, scope),
        }
    }

    fn look_up(&self, name: &str, scope: &Scope<'t>) -> Value {
        let function = || {
            Some(Value::Function(match name {
                "range" => Function::Range,
                "dict" => Function::Dict,
                "namespace" => Function::Namespace,
                "raise_exception" => Function::RaiseException,
                "strftime_now" => Function::StrftimeNow,
                _ => return None,
            }))
        };
        let found = scope.get(name).or_else(|| self.context.get(name).cloned()).or_else(function);
        found.unwrap_or_else(|| Value::Undefined(format!("'{}' is undefined", Excerpt(name.as_bytes())).into()))
    }

    fn constant(&mut self, constant: &'t Const) -> Result<Value> {
        let key = std::ptr::from_ref(constant);
        if let Some(value) = self.constants.get(&key) {
            return Ok(value.clone());
        }
        let literal = &constant.value;
        let value = if let Some(text) = literal.as_str() {
            Value::text(self.budget, text)?
        } else if literal.is_none() {
            Value::None
        } else if literal.kind() == minijinja::value::ValueKind::Bool {
            Value::Bool(literal.is_true())
        } else if let (true, Ok(number)) = (literal.is_integer(), i128::try_from(literal.clone())) {
            Value::Int(number)
        } else if let Ok(number) = f64::try_from(literal.clone()) {
            Value::Float(number)
        } else {
            return failure(format!("unsupported literal {literal}"));
        };
        self.constants.try_reserve(1).map_err(|_| Error::out_of_memory(VALUES, size_of::<Value>()))?;
        self.constants.insert(key, value.clone());
        Ok(value)
    }

    fn evaluate_all(&mut self, expressions: &'t [Expr<'t>], scope: &Rc<Scope<'t>>) -> Result<Vec<Value>> {
        gathered(expressions.iter().map(|expression| self.evaluate(expression, scope)))
    }

    fn compare(&mut self, comparison: &'t Compare<'t>, scope: &Rc<Scope<'t>>) -> Result<Value> {
        let mut left = self.evaluate(&comparison.expr, scope)?;
        for step in &comparison.ops {
            let right = self.evaluate(&step.expr, scope)?;
            if !operators::compare(self.budget, step.op, &left, &right)? {
                return Ok(Value::Bool(false));
            }
            left = right;
        }
        Ok(Value::Bool(true))
    }

    fn slice(&mut self, slice: &'t Slice<'t>, scope: &Rc<Scope<'t>>) -> Result<Value> {
        let value = self.evaluate(&slice.expr, scope)?;
        let mut bound = |bound: &'t Option<Expr<'t>>| match bound {
            Some(expression) => self.evaluate(expression, scope),
            None => Ok(Value::None),
        };
        let (start, stop, step) = (bound(&slice.start)?, bound(&slice.stop)?, bound(&slice.step)?);
        operators::slice(self.budget, &value, [&start, &stop, &step])
    }

    /// A chain of filters; `base` stands in for the value of the innermost when that has none.
    pub(super) fn filtered(
        &mut self,
        expression: &'t Expr<'t>,
        base: Option<Value>,
        scope: &Rc<Scope<'t>>,
    ) -> Result<Value> {
        let mut chain: Vec<&'t Filter<'t>> = Vec::new();
        let mut inner = Some(expression);
        while let Some(Expr::Filter(filter)) = inner {
            self.budget.spend(1)?;
            push(&mut chain, filter, VALUES)?;
            inner = filter.expr.as_ref();
        }
        let mut value = match (inner, base) {
            (Some(expression), _) => self.evaluate(expression, scope)?,
            (None, Some(base)) => base,
            (None, None) => return failure("a filter without a value"),
        };
        for filter in chain.into_iter().rev() {
            let arguments = self.arguments(&filter.args, scope)?;
            value = filters::apply(self.budget, filter.name, &value, &arguments)?;
        }
        Ok(value)
    }

    fn arguments(&mut self, given: &'t [CallArg<'t>], scope: &Rc<Scope<'t>>) -> Result<Arguments> {
        let mut arguments = Arguments::default();
        for argument in given {
            match argument {
                CallArg::Pos(expression) => {
                    push(&mut arguments.positional, self.evaluate(expression, scope)?, VALUES)?;
                }
                CallArg::Kwarg(name, expression) => {
                    let value = self.evaluate(expression, scope)?;
                    push(&mut arguments.named, (copied_text(name, VALUES)?, value), VALUES)?;
                }
                CallArg::PosSplat(expression) => {
                    let values = self.evaluate(expression, scope)?.iterate(self.budget)?;
                    self.budget.take_items(values.len())?;
                    extend(&mut arguments.positional, &values, VALUES)?;
                }
                CallArg::KwargSplat(expression) => match self.evaluate(expression, scope)? {
                    Value::Map(map) => {
                        self.budget.take_items(map.len())?;
                        for (key, value) in map.iter() {
                            let name = display(self.budget, &key.0)?;
                            push(&mut arguments.named, (name, value.clone()), VALUES)?;
                        }
                    }
                    other => return failure(format!("argument after ** must be a mapping, not {}", other.type_name())),
                },
            }
        }
        Ok(arguments)
    }

    /// Calls something; `caller` is the body of a call block.
    pub(super) fn call(&mut self, call: &'t Call<'t>, caller: Option<Value>, scope: &Rc<Scope<'t>>) -> Result<Value> {
        let callee = self.evaluate(&call.expr, scope)?;
        let mut arguments = self.arguments(&call.args, scope)?;
        if let Some(caller) = caller {
            push(&mut arguments.named, ("caller".to_owned(), caller), VALUES)?;
        }
        match &callee {
            Value::Macro(number) => self.call_macro(*number, arguments),
            Value::Method(method) => methods::call(self.budget, &method.0, &method.1, &arguments),
            Value::Loop(current) => self.recurse(current, arguments.required(0, "iterable")?),
            Value::Function(function) => self.call_function(*function, arguments),
            other => {
                other.defined()?;
                failure(format!("'{}' object is not callable", other.type_name()))
            }
        }
    }

    fn call_function(&mut self, function: Function, arguments: Arguments) -> Result<Value> {
        match function {
            Function::Range => self.range(&arguments),
            Function::Dict => self.entries(arguments).and_then(|entries| Value::map(self.budget, entries)),
            Function::Namespace => {
                let entries = self.entries(arguments)?;
                self.budget.take_items(2 * entries.len())?;
                let namespace = Rc::new(RefCell::new(entries));
                push(&mut self.namespaces, Rc::clone(&namespace), VALUES)?;
                Ok(Value::Namespace(namespace))
            }
            Function::RaiseException => failure(display(self.budget, arguments.required(0, "message")?)?),
            Function::StrftimeNow => {
                let text = clock::strftime(self.now, arguments.text(0, "format")?)?;
                Value::text(self.budget, &text)
            }
        }
    }

    /// The entries that `dict` and `namespace` begin with.
    fn entries(&self, arguments: Arguments) -> Result<IndexMap<Key, Value>> {
        let mut entries = IndexMap::new();
        match arguments.positional.first() {
            Some(Value::Map(map)) => {
                self.budget.take_items(2 * map.len())?;
                for (key, value) in map.iter() {
                    insert(&mut entries, key.clone(), value.clone())?;
                }
            }
            Some(other) => return failure(format!("a dictionary is needed, not {}", other.type_name())),
            None => {}
        }
        for (name, value) in arguments.named {
            insert(&mut entries, Key(Value::Text(name.into())), value)?;
        }
        Ok(entries)
    }

    fn range(&self, arguments: &Arguments) -> Result<Value> {
        let bound = |index: usize| match arguments.positional.get(index) {
            None => Ok(None),
            Some(value) => match value.as_int() {
                Some(number) => Ok(Some(number)),
                None => failure(format!("'{}' object is not an integer", value.type_name())),
            },
        };
        let (first, second, step) = (bound(0)?, bound(1)?, bound(2)?.unwrap_or(1));
        let Some(first) = first else { return failure("range expected at least 1 argument, got 0") };
        let (start, stop) = second.map_or((0, first), |second| (first, second));
        if step == 0 {
            return failure("range() arg 3 must not be zero");
        }
        let length = stop.saturating_sub(start).checked_div(step).unwrap_or(0);
        if length > MAX_RANGE {
            return failure(format!("range of {length} numbers, at most {MAX_RANGE} are supported"));
        }
        let mut values = Vec::new();
        let mut at = start;
        while if step > 0 { at < stop } else { at > stop } {
            push(&mut values, Value::Int(at), VALUES)?;
            at = at.saturating_add(step);
        }
        Value::list(self.budget, values)
    }
}
