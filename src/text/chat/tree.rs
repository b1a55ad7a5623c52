//! The parsed form of a template: expressions and statements in two lists, which name each other by their places.
//!
//! So the depth of a tree costs no stack when it is freed, and all of its memory can be refused.

use super::value::Value;

/// Place of an expression in [`Tree::expressions`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ExpressionId(pub(super) u32);

/// Place of a statement in [`Tree::statements`].
#[derive(Clone, Copy, Debug)]
pub(super) struct StatementId(pub(super) u32);

/// Statements one after another.
pub(super) type Body = Vec<StatementId>;

/// A template.
#[derive(Default)]
pub(super) struct Tree<'s> {
    /// Every expression.
    pub(super) expressions: Vec<Expression<'s>>,
    /// Every statement.
    pub(super) statements: Vec<Statement<'s>>,
    /// What the template consists of.
    pub(super) body: Body,
    /// The blocks by their names, each with its statement.
    pub(super) blocks: Vec<(&'s str, StatementId)>,
}

/// An expression with the line that it begins on.
pub(super) struct Expression<'s> {
    pub(super) line: u32,
    pub(super) form: Form<'s>,
}

/// What an expression is.
pub(super) enum Form<'s> {
    /// A variable.
    Name(&'s str),
    /// A literal.
    Constant(Value),
    /// `[a, b]`
    List(Vec<ExpressionId>),
    /// `(a, b)`
    Tuple(Vec<ExpressionId>),
    /// `{a: b}`
    Map(Vec<(ExpressionId, ExpressionId)>),
    /// `not a`
    Not(ExpressionId),
    /// `-a`
    Negative(ExpressionId),
    /// `+a`
    Positive(ExpressionId),
    /// `a and b`
    And(ExpressionId, ExpressionId),
    /// `a or b`
    Or(ExpressionId, ExpressionId),
    /// Arithmetic.
    Binary(BinOpKind, ExpressionId, ExpressionId),
    /// `a ~ b ~ c`
    Concat(Vec<ExpressionId>),
    /// `a < b < c`
    Compare(ExpressionId, Vec<(CompareOpKind, ExpressionId)>),
    /// `yes if test else no`
    Choice {
        /// What decides.
        test: ExpressionId,
        /// The value when it holds.
        yes: ExpressionId,
        /// The value otherwise.
        no: Option<ExpressionId>,
    },
    /// `value|name(arguments)`; the innermost filter of a filter block has no value.
    Filter(Option<ExpressionId>, &'s str, CallArguments<'s>),
    /// `value is name(arguments)`
    Test(ExpressionId, &'s str, CallArguments<'s>),
    /// `value.name`
    Attribute(ExpressionId, &'s str),
    /// `value[subscript]`
    Item(ExpressionId, ExpressionId),
    /// `start:stop:step` as a subscript.
    Slice([Option<ExpressionId>; 3]),
    /// `value(arguments)`
    Call(ExpressionId, CallArguments<'s>),
    /// `name.attribute` as the target of an assignment.
    NamespaceItem(&'s str, &'s str),
}

/// The arguments of a call as written.
#[derive(Default)]
pub(super) struct CallArguments<'s> {
    /// By place.
    pub(super) positional: Vec<ExpressionId>,
    /// By name.
    pub(super) named: Vec<(&'s str, ExpressionId)>,
    /// `*values`
    pub(super) values: Option<ExpressionId>,
    /// `**entries`
    pub(super) entries: Option<ExpressionId>,
}

/// Operators that evaluate both sides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BinOpKind {
    Add,
    Sub,
    Mul,
    Div,
    FloorDiv,
    Rem,
    Pow,
}

/// Comparisons.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CompareOpKind {
    Eq,
    Ne,
    Lt,
    Lte,
    Gt,
    Gte,
    In,
    NotIn,
}

/// A statement with the line that it begins on.
pub(super) struct Statement<'s> {
    pub(super) line: u32,
    pub(super) action: Action<'s>,
}

/// What a statement does.
pub(super) enum Action<'s> {
    /// Text outside of tags.
    Text(&'s str),
    /// `{{ value }}`
    Print(ExpressionId),
    /// `{% if %}` with its `elif`s.
    If {
        /// Conditions with what they guard.
        branches: Vec<(ExpressionId, Body)>,
        /// What `else` holds.
        otherwise: Body,
    },
    /// `{% for %}`
    For(ForLoop),
    /// `{% set target = value %}`
    Set(ExpressionId, ExpressionId),
    /// `{% set target | filter %}...{% endset %}`
    SetBlock(ExpressionId, Option<ExpressionId>, Body),
    /// `{% with target = value %}`
    With(Vec<(ExpressionId, ExpressionId)>, Body),
    /// `{% filter name %}`
    Filter(ExpressionId, Body),
    /// `{% macro %}`
    Macro(Macro<'s>),
    /// `{% call(parameters) macro() %}`: the call, and the body as a macro.
    CallBlock(ExpressionId, Macro<'s>),
    /// `{% block %}`; one that is scoped sees the variables around it.
    Block {
        /// Whether it sees the variables around it.
        scoped: bool,
        /// Whether another template would have to fill it.
        required: bool,
        /// What it holds.
        body: Body,
    },
    /// `{% autoescape %}`: whether what the body writes is escaped.
    Autoescape(ExpressionId, Body),
    /// `{% generation %}`, which only training looks at.
    Generation(Body),
    /// `{% break %}`
    Break,
    /// `{% continue %}`
    Continue,
    /// `{% include %}` and its kin: there are no other templates.
    OtherTemplate,
}

/// A `for` loop.
pub(super) struct ForLoop {
    /// What an item is assigned to.
    pub(super) target: ExpressionId,
    /// What is gone through.
    pub(super) values: ExpressionId,
    /// Which items count.
    pub(super) condition: Option<ExpressionId>,
    /// Whether `loop` can be called.
    pub(super) recursive: bool,
    /// What is done for each.
    pub(super) body: Body,
    /// What is done when there is none.
    pub(super) otherwise: Body,
}

/// A macro, or the body of a call block.
pub(super) struct Macro<'s> {
    /// Its name; the body of a call block has none.
    pub(super) name: Option<&'s str>,
    /// Its parameters with what they are when not given.
    pub(super) parameters: Vec<(&'s str, Option<ExpressionId>)>,
    /// What it writes.
    pub(super) body: Body,
    /// Which of the names that say more about a call the body has.
    pub(super) uses: Uses,
}

impl Macro<'_> {
    /// Whether it has a parameter called `name`.
    pub(super) fn has_parameter(&self, name: &str) -> bool {
        self.parameters.iter().any(|(other, _)| *other == name)
    }
}

/// The names in a macro that say more about its call: a call may give what they stand for.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Uses {
    pub(super) varargs: bool,
    pub(super) kwargs: bool,
    pub(super) caller: bool,
}

impl Uses {
    /// What either uses.
    pub(super) fn or(self, other: Uses) -> Uses {
        let (varargs, kwargs) = (self.varargs || other.varargs, self.kwargs || other.kwargs);
        Uses { varargs, kwargs, caller: self.caller || other.caller }
    }
}

impl<'s> Tree<'s> {
    /// The expression at a place.
    pub(super) fn expression(&self, id: ExpressionId) -> &Expression<'s> {
        &self.expressions[id.0 as usize]
    }

    /// The statement at a place.
    pub(super) fn statement(&self, id: StatementId) -> &Statement<'s> {
        &self.statements[id.0 as usize]
    }
}
