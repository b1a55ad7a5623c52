//! Link settings of the shared library: its SONAME follows the ABI number, and it stays mapped until the process ends.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libsegno.so.0");
    // Worker threads may still be leaving when a host closes the library.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
}
