//! Names and what they stand for, one scope inside another.

use super::value::{VALUES, Value};
use crate::error::{Error, Result};
use hashbrown::HashMap;
use std::cell::RefCell;
use std::rc::Rc;

/// The names of one block; macros keep the scope that they were made in.
pub(super) struct Scope<'t> {
    names: RefCell<HashMap<&'t str, Value>>,
    parent: Option<Rc<Scope<'t>>>,
}

impl<'t> Scope<'t> {
    /// The outermost scope.
    pub(super) fn root() -> Rc<Scope<'t>> {
        Rc::new(Scope { names: RefCell::default(), parent: None })
    }

    /// A scope inside `parent`.
    pub(super) fn inside(parent: &Rc<Scope<'t>>) -> Rc<Scope<'t>> {
        Rc::new(Scope { names: RefCell::default(), parent: Some(Rc::clone(parent)) })
    }

    /// Sets a name in this scope.
    pub(super) fn set(&self, name: &'t str, value: Value) -> Result<()> {
        let mut names = self.names.borrow_mut();
        let bytes = (names.len() + 1).saturating_mul(size_of::<(&str, Value)>());
        names.try_reserve(1).map_err(|_| Error::out_of_memory(VALUES, bytes))?;
        names.insert(name, value);
        Ok(())
    }

    /// What the name stands for here.
    pub(super) fn get(&self, name: &str) -> Option<Value> {
        let mut scope = self;
        loop {
            if let Some(value) = scope.names.borrow().get(name) {
                return Some(value.clone());
            }
            scope = scope.parent.as_deref()?;
        }
    }
}
