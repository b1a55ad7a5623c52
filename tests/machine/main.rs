//! What depends on the machine: the kernels of every instruction set that it has, and what the library asks of the operating system. So it runs on
//! every system that has tests.

mod kernels;

// With the unit tests that stand there, which need nothing else of the library.
#[path = "../../src/os/mod.rs"]
#[allow(dead_code)]
mod os;
#[path = "../../src/sync/threads.rs"]
#[allow(dead_code)]
mod threads;
