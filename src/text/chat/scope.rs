//! Names and what they stand for, one scope inside another.

use super::budget::{Budget, Hold};
use super::value::{VALUES, Value};
use crate::error::{Result, room};
use hashbrown::HashMap;
use std::cell::RefCell;
use std::rc::Rc;

/// Units of work for looking a name up in one scope, beside those for the bytes of the name.
const LOOK_UNITS: usize = 32;
/// What a name of a scope is counted as: its place in a table that may be half empty, in bytes.
const NAME_BYTES: usize = 2 * size_of::<(&str, Value)>() + 32;

/// The names of one block; macros keep the scope that they were made in.
pub(super) struct Scope<'t> {
    names: RefCell<Names<'t>>,
    parent: Option<Rc<Scope<'t>>>,
}

struct Names<'t> {
    values: HashMap<&'t str, Value>,
    hold: Hold,
}

impl<'t> Scope<'t> {
    /// The outermost scope.
    pub(super) fn root(budget: &Budget) -> Result<Rc<Scope<'t>>> {
        Scope::with_parent(budget, None)
    }

    /// A scope inside `parent`.
    pub(super) fn inside(parent: &Rc<Scope<'t>>) -> Result<Rc<Scope<'t>>> {
        let budget = parent.names.borrow().hold.budget().clone();
        Scope::with_parent(&budget, Some(Rc::clone(parent)))
    }

    fn with_parent(budget: &Budget, parent: Option<Rc<Scope<'t>>>) -> Result<Rc<Scope<'t>>> {
        let mut hold = Hold::new(budget);
        hold.counted::<Scope>()?;
        Ok(Rc::new(Scope { names: RefCell::new(Names { values: HashMap::new(), hold }), parent }))
    }

    /// Sets a name in this scope.
    pub(super) fn set(&self, name: &'t str, value: Value) -> Result<()> {
        let mut names = self.names.borrow_mut();
        names.hold.budget().work(name.len() + LOOK_UNITS)?;
        room(NAME_BYTES, VALUES, || names.values.try_reserve(1))?;
        if names.values.insert(name, value).is_none() {
            names.hold.block(NAME_BYTES)?;
        }
        Ok(())
    }

    /// What the name stands for here.
    pub(super) fn get(&self, name: &str) -> Result<Option<Value>> {
        let mut scope = self;
        loop {
            let names = scope.names.borrow();
            names.hold.budget().work(name.len() + LOOK_UNITS)?;
            if let Some(value) = names.values.get(name) {
                return Ok(Some(value.clone()));
            }
            drop(names);
            let Some(parent) = scope.parent.as_deref() else { return Ok(None) };
            scope = parent;
        }
    }
}
