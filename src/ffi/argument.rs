//! Arguments of exported functions: pointers, strings, buffers and sized structs, checked once here.

use crate::error::{Error, Result};
use std::ffi::{CStr, c_char};
use std::mem::MaybeUninit;
use std::path::Path;
use std::ptr::NonNull;

/// A place for one result; written only on success.
#[derive(Clone, Copy)]
pub(super) struct Out<T>(NonNull<T>);

impl<T> Out<T> {
    /// The place at `pointer`, which must not be NULL.
    pub(super) fn new(pointer: *mut T, name: &'static str) -> Result<Out<T>> {
        NonNull::new(pointer).map(Out).ok_or(Error::NullPointer(name))
    }

    /// Writes the result.
    pub(super) fn set(self, value: T) {
        // SAFETY: the host passes a place for one value of this type, as the header says.
        unsafe { self.0.write(value) }
    }
}

/// A buffer of the host's, and where the size needed goes.
pub(super) struct Buffer<T> {
    start: *mut T,
    capacity: usize,
    len: Out<usize>,
}

impl<T: Copy> Buffer<T> {
    /// The buffer of `capacity` elements at `start`; NULL is a buffer of none. `names` are those of `start` and `len`.
    pub(super) fn new(start: *mut T, capacity: usize, len: *mut usize, names: [&'static str; 2]) -> Result<Buffer<T>> {
        if start.is_null() && capacity > 0 {
            return Err(Error::NullPointer(names[0]));
        }
        Ok(Buffer { start, capacity, len: Out::new(len, names[1])? })
    }

    /// Whether the host asks for the size only.
    pub(super) fn is_query(&self) -> bool {
        self.start.is_null()
    }

    /// Tells the size needed, and fails if it does not fit.
    pub(super) fn require(&self, needed: usize) -> Result<()> {
        self.len.set(needed);
        if needed <= self.capacity {
            return Ok(());
        }
        Err(Error::BufferTooSmall { needed, given: self.capacity })
    }

    /// Gives out `values`, or, when there is no buffer, their number.
    pub(super) fn fill(&self, values: &[T]) -> Result<()> {
        if self.is_query() {
            self.len.set(values.len());
            return Ok(());
        }
        self.require(values.len())?;
        // SAFETY: the buffer holds at least as many elements, and is not the source, which the library owns.
        unsafe { std::ptr::copy_nonoverlapping(values.as_ptr(), self.start, values.len()) };
        Ok(())
    }
}

/// `len` elements at `pointer`; NULL is allowed when there are none.
pub(super) fn slice<'a, T>(pointer: *const T, len: usize, name: &'static str) -> Result<&'a [T]> {
    if len == 0 {
        return Ok(&[]);
    }
    if pointer.is_null() {
        return Err(Error::NullPointer(name));
    }
    check_len::<T>(len, name)?;
    // SAFETY: the host passes `len` elements, as the header says, and the size fits the address space.
    Ok(unsafe { std::slice::from_raw_parts(pointer, len) })
}

/// As [`slice()`], for elements that the call writes. They must be initialised: pointers to plain numbers only.
pub(super) fn slice_mut<'a, T: Copy>(
    pointer: *mut T,
    len: usize,
    name: &'static str,
) -> Result<&'a mut [MaybeUninit<T>]> {
    if len == 0 {
        return Ok(&mut []);
    }
    if pointer.is_null() {
        return Err(Error::NullPointer(name));
    }
    check_len::<T>(len, name)?;
    // SAFETY: the host passes room for `len` elements that nobody else uses during the call, as the header says.
    Ok(unsafe { std::slice::from_raw_parts_mut(pointer.cast(), len) })
}

fn check_len<T>(len: usize, name: &'static str) -> Result<()> {
    let fits = len.checked_mul(size_of::<T>()).is_some_and(|bytes| bytes <= isize::MAX as usize);
    if fits { Ok(()) } else { Err(Error::InvalidArgument(format!("`{name}` cannot have {len} elements"))) }
}

/// A NUL-terminated UTF-8 string.
pub(super) fn text<'a>(pointer: *const c_char, name: &'static str) -> Result<&'a str> {
    if pointer.is_null() {
        return Err(Error::NullPointer(name));
    }
    // SAFETY: the host passes a NUL-terminated string, as the header says.
    let bytes = unsafe { CStr::from_ptr(pointer) };
    bytes
        .to_str()
        .map_err(|error| Error::InvalidArgument(format!("`{name}` is not valid utf-8 at byte {}", error.valid_up_to())))
}

/// The same, where NULL is none.
pub(super) fn optional_name<'a>(pointer: *const c_char, name: &'static str) -> Result<Option<&'a str>> {
    if pointer.is_null() { Ok(None) } else { text(pointer, name).map(Some) }
}

/// The path of a file.
pub(super) fn path<'a>(pointer: *const c_char, name: &'static str) -> Result<&'a Path> {
    match text(pointer, name)? {
        "" => Err(Error::InvalidArgument(format!("`{name}` is empty; pass the path of a file"))),
        path => Ok(Path::new(path)),
    }
}

/// Refuses `flags` that hold others than `known`; `what` they are of is for the message.
pub(super) fn known_flags(flags: u32, known: u32, what: &str) -> Result<()> {
    match flags & !known {
        0 => Ok(()),
        unknown => Err(Error::InvalidArgument(format!("unknown {what} flags {unknown:#x}"))),
    }
}

/// Refuses a reserved field that is set.
pub(super) fn check_reserved(reserved: impl Into<u64>) -> Result<()> {
    match reserved.into() {
        0 => Ok(()),
        reserved => Err(Error::InvalidArgument(format!("reserved is {reserved}, must be 0"))),
    }
}

/// A struct of plain numbers and pointers that begins with its own size, so that it can grow at its end.
///
/// # Safety
/// `repr(C)`, first field `u32 struct_size`, no padding, and every bit pattern of zeros valid.
pub(super) unsafe trait SizedStruct: Copy {}

const SIZE_BYTES: usize = size_of::<u32>();
/// No version of a sized struct is larger, as the header says: a size beyond comes from memory that nobody has filled, and reading so many
/// bytes, or writing them, would leave the host's struct by far. The largest of today has 216 bytes, and fields come singly.
const MAX_SIZE: usize = 1024;

/// Options that the host passes: defaults where `pointer` is NULL, and for every field behind the end of the host's struct. A
/// larger struct must have zeros where this library knows no field; one that ends within a field would leave half a pointer.
pub(super) fn options<T: SizedStruct>(pointer: *const T, defaults: T, name: &'static str) -> Result<T> {
    if pointer.is_null() {
        return Ok(defaults);
    }
    // SAFETY: every sized struct begins with its size.
    let size = unsafe { pointer.cast::<u32>().read() } as usize;
    if size == 0 || size > MAX_SIZE || !size.is_multiple_of(align_of::<T>()) {
        return Err(Error::InvalidArgument(format!("`{name}` has struct_size {size}; fill it with its init function")));
    }
    let bytes = slice(pointer.cast::<u8>(), size, name)?;
    let known = size.min(size_of::<T>());
    if let Some(at) = bytes[known..].iter().position(|&byte| byte != 0) {
        let at = known + at;
        return Err(Error::Unsupported(format!("`{name}` sets a field at byte {at} that this library does not know")));
    }
    let mut value = defaults;
    // SAFETY: at most the size of the value is copied, and its bytes have no invalid patterns.
    unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), (&raw mut value).cast::<u8>(), known) };
    Ok(value)
}

/// Writes `value` into the host's struct of `size` bytes: what fits of it, zeros behind it.
pub(super) fn write_sized<T: SizedStruct>(pointer: *mut T, size: usize, value: &T, name: &'static str) -> Result<()> {
    if pointer.is_null() {
        return Err(Error::NullPointer(name));
    }
    if !(SIZE_BYTES..=MAX_SIZE).contains(&size) {
        let message = format!("`size` of `{name}` is {size}, {SIZE_BYTES} to {MAX_SIZE} are possible; pass its sizeof");
        return Err(Error::InvalidArgument(message));
    }
    let out = slice_mut(pointer.cast::<u8>(), size, name)?;
    let struct_size = size as u32;
    // SAFETY: a sized struct has no padding, so all its bytes are initialised.
    let bytes = unsafe { std::slice::from_raw_parts((&raw const *value).cast::<u8>(), size_of::<T>()) };
    for (index, place) in out.iter_mut().enumerate() {
        place.write(bytes.get(index).copied().unwrap_or(0));
    }
    for (place, byte) in out.iter_mut().zip(struct_size.to_ne_bytes()) {
        place.write(byte);
    }
    Ok(())
}

/// `text` as a NUL-terminated array, cut at a character.
pub(super) fn chars<const N: usize>(text: &str) -> [c_char; N] {
    let mut array = [0; N];
    let mut len = text.len().min(N - 1);
    while !text.is_char_boundary(len) {
        len -= 1;
    }
    array.iter_mut().zip(&text.as_bytes()[..len]).for_each(|(place, &byte)| *place = byte as c_char);
    array
}
