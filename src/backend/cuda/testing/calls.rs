//! The calls of the driver that a thread makes, by name.

use std::cell::RefCell;
use std::mem::ManuallyDrop;

thread_local! {
    /// Names of this thread's driver calls, while somebody listens.
    // Without a destructor, for which the first call of a thread would take memory that has no way to fail.
    static HEARD: RefCell<Option<ManuallyDrop<Vec<&'static str>>>> = const { RefCell::new(None) };
}

/// Runs `f`, and tells which calls of the driver this thread made meanwhile, in order.
pub fn calls_of<T>(f: impl FnOnce() -> T) -> (T, Vec<&'static str>) {
    let before = HEARD.replace(Some(ManuallyDrop::new(Vec::new())));
    let value = f();
    let heard = HEARD.replace(before).map(ManuallyDrop::into_inner);
    (value, heard.unwrap_or_default())
}

/// Notes a driver call, for [`calls_of`].
pub fn hear(call: &'static str) {
    // A thread that ends has no list any more.
    _ = HEARD.try_with(|heard| heard.borrow_mut().as_mut().map(|heard| heard.push(call)));
}
