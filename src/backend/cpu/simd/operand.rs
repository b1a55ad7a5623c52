//! What kernels work on: weight matrices, activations as floats or int8 blocks, runs of cached keys and values.

use crate::kv::q8;
use crate::quant::DType;
use half::{bf16, f16};

/// Values in a [`Q8Block`].
pub const Q8_LEN: usize = 32;

/// A weight matrix as it lies in the file: row-major, each row whole blocks of its type, at any address.
#[derive(Clone, Copy)]
pub struct Matrix<'a> {
    dtype: DType,
    bytes: &'a [u8],
    rows: usize,
    cols: usize,
    row_bytes: usize,
}

impl<'a> Matrix<'a> {
    /// `None` unless `bytes` is exactly `rows` rows of `cols` values of type `dtype`.
    pub fn new(dtype: DType, bytes: &'a [u8], rows: usize, cols: usize) -> Option<Self> {
        let row_bytes = usize::try_from(dtype.row_bytes(cols as u64)?).ok()?;
        (row_bytes.checked_mul(rows)? == bytes.len()).then_some(Matrix { dtype, bytes, rows, cols, row_bytes })
    }

    /// How the values are stored.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Number of rows: outputs of a product.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Number of columns: values of one activation row.
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// The stored bytes of the rows from `first` on, `count` of them.
    pub(super) fn bytes_of_rows(&self, first: usize, count: usize) -> &'a [u8] {
        &self.bytes[first * self.row_bytes..][..count * self.row_bytes]
    }

    /// Bytes of one row.
    pub(super) fn row_bytes(&self) -> usize {
        self.row_bytes
    }
}

/// In which form a product reads activations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// [`Input::F32`]
    F32,
    /// [`Input::Q8`]
    Q8,
    /// [`Input::Bf16`]
    Bf16,
}

/// Activation rows of a product, one after the other.
#[derive(Clone, Copy)]
pub enum Input<'a> {
    /// As floats; every weight type takes them. Blocks of integers are then decoded: exact, and slow.
    F32 {
        /// `rows * cols` values.
        values: &'a [f32],
    },
    /// As int8 blocks, for the weight types of which [`super::Kernels::form`] says so.
    Q8 {
        /// `rows * cols / 32` blocks.
        blocks: &'a [Q8Block],
    },
    /// Rounded to BF16, for weights of that type.
    Bf16 {
        /// `rows * cols` values.
        values: &'a [bf16],
    },
}

/// 32 activations as int8 with one scale: value i is about `q[i] * scale`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Q8Block {
    /// The values in units of the scale, -127 to 127. Kernels take -128 too, but then their results may differ.
    pub q: [i8; Q8_LEN],
    /// Size of a unit.
    pub scale: f32,
    /// Sums of the first and of the last 16 of `q`; weights that are not centred at zero need them.
    pub sums: [i16; 2],
}

/// Consecutive rows of cached keys or values of one head.
#[derive(Clone, Copy)]
pub enum KvRun<'a> {
    /// In half precision.
    F16(&'a [f16]),
    /// In single precision.
    F32(&'a [f32]),
    /// In the bytes of [`q8`], each head of its own.
    Q8(&'a [u8]),
}

impl<'a> KvRun<'a> {
    /// Whether there are just `count` rows of `dim` elements.
    pub fn holds(&self, count: usize, dim: usize) -> bool {
        match self {
            KvRun::F16(x) => x.len() == count * dim,
            KvRun::F32(x) => x.len() == count * dim,
            KvRun::Q8(x) => x.len() == count * q8::bytes(dim),
        }
    }

    pub(super) fn bytes(&self) -> &'a [u8] {
        match self {
            KvRun::F16(x) => bytes(x),
            KvRun::F32(x) => bytes(x),
            KvRun::Q8(x) => x,
        }
    }
}

/// Rows of a matrix of floats.
#[derive(Clone, Copy)]
pub enum FloatRun<'a> {
    /// In half precision.
    F16(&'a [f16]),
    /// In single precision.
    F32(&'a [f32]),
}

impl<'a> FloatRun<'a> {
    /// Elements.
    pub fn len(&self) -> usize {
        match self {
            FloatRun::F16(x) => x.len(),
            FloatRun::F32(x) => x.len(),
        }
    }

    pub(super) fn bytes(&self) -> &'a [u8] {
        match self {
            FloatRun::F16(x) => bytes(x),
            FloatRun::F32(x) => bytes(x),
        }
    }
}

/// A number without padding.
pub(super) trait Plain {}
impl Plain for f32 {}
impl Plain for f16 {}
impl Plain for bf16 {}

/// The bytes of numbers.
pub(super) fn bytes<T: Plain>(x: &[T]) -> &[u8] {
    // SAFETY: plain numbers are initialised bytes throughout, and the slice is borrowed for as long.
    unsafe { std::slice::from_raw_parts(x.as_ptr().cast(), size_of_val(x)) }
}

/// What a row of linear attention reads beside the state.
#[derive(Clone, Copy)]
pub struct ScanRow<'a> {
    /// An element for each row of the matrix.
    pub query: &'a [f32],
    /// The same.
    pub key: &'a [f32],
    /// An element for each column.
    pub value: &'a [f32],
    /// Factor on the matrix.
    pub kept: f32,
    /// Factor on what enters.
    pub strength: f32,
    /// Whether what the matrix knows of the key is taken off the value first.
    pub is_delta: bool,
    /// Factor on the value that is added to the result.
    pub skip: Option<f32>,
}
