//! Version, ABI number and capabilities.

use super::argument::text;
use super::guard::guard_value;
use std::ffi::c_char;

/// Version of the header, packed as MAJOR << 16 | MINOR << 8 | PATCH.
pub const SEGNO_VERSION_NUMBER: u32 = 0x0000_0100;
/// Number of the ABI that the header describes; pass it to `segno_ctx_create`.
pub const SEGNO_ABI_VERSION: u32 = 0;

/// Version of the library at run time, packed as `SEGNO_VERSION_NUMBER`.
///
/// Any thread. Since 0.1.
#[unsafe(no_mangle)]
pub extern "C" fn segno_version_number() -> u32 {
    guard_value(0, || SEGNO_VERSION_NUMBER)
}

/// Version of the library at run time, for example "0.1.0"; a static string.
///
/// Any thread. Since 0.1.
#[unsafe(no_mangle)]
pub extern "C" fn segno_version_string() -> *const c_char {
    const VERSION: &str = match cfg!(feature = "testing") {
        true => concat!(env!("CARGO_PKG_VERSION"), "+testing\0"),
        false => concat!(env!("CARGO_PKG_VERSION"), "\0"),
    };
    guard_value(std::ptr::null(), || VERSION.as_ptr().cast())
}

/// Number of the ABI that the library has at run time.
///
/// Any thread. Since 0.1.
#[unsafe(no_mangle)]
pub extern "C" fn segno_abi_version() -> u32 {
    guard_value(0, || SEGNO_ABI_VERSION)
}

/// Whether a capability is compiled in and usable on this machine now: 1 or 0.
///
/// `name` is "cuda", "avx2", "avx512", "neon", "neondot" or "neoni8mm"; NULL and unknown names give 0. Any thread. Since 0.1.
#[unsafe(no_mangle)]
pub extern "C" fn segno_has_feature(name: *const c_char) -> i32 {
    guard_value(0, || match text(name, "name") {
        Ok(name) => i32::from(crate::engine::device::has_feature(name)),
        Err(_) => 0,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_packed_version_equals_the_package_version() {
        let parts: Vec<u32> = env!("CARGO_PKG_VERSION").split('.').map(|part| part.parse().unwrap()).collect();
        assert_eq!(SEGNO_VERSION_NUMBER, parts[0] << 16 | parts[1] << 8 | parts[2]);
    }
}
