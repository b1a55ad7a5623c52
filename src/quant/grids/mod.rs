//! Constant tables of the formats that store indices: grids of neighbouring magnitudes, and lists of levels.
//!
//! The numbers are part of the formats, as ggml defines them. A grid entry is one integer whose byte j (lowest first)
//! is value j, so that a kernel fetches an entry with one load. The grids are kept packed in `packed.rs`, which
//! `tests/golden/make_grids.py` writes, and are unpacked by the compiler.

mod packed;

/// Grid of IQ1_S and IQ1_M: 8 values of -1, 0 or 1 an entry, as signed bytes.
pub static IQ1: [u64; 2048] = eight(&packed::IQ1, [-1, 0, 1]);
/// Grid of IQ2_XXS: 8 magnitudes an entry.
pub static IQ2_XXS: [u64; 256] = eight(&packed::IQ2_XXS, IQ2_LEVELS);
/// Grid of IQ2_XS: 8 magnitudes an entry.
pub static IQ2_XS: [u64; 512] = eight(&packed::IQ2_XS, IQ2_LEVELS);
/// Grid of IQ2_S: 8 magnitudes an entry.
pub static IQ2_S: [u64; 1024] = eight(&packed::IQ2_S, IQ2_LEVELS);
/// Grid of IQ3_XXS: 4 magnitudes an entry.
pub static IQ3_XXS: [u32; 256] = four(&packed::IQ3_XXS, [4, 12, 20, 28, 36, 44, 52, 62]);
/// Grid of IQ3_S: 4 magnitudes an entry.
pub static IQ3_S: [u32; 512] = four(&packed::IQ3_S, [1, 3, 5, 7, 9, 11, 13, 15]);

/// Levels of IQ4_NL and IQ4_XS.
pub static IQ4_LEVELS: [i8; 16] = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];
/// E2M1 numbers by their code, doubled.
pub static FP4_LEVELS: [i8; 16] = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12];

const IQ2_LEVELS: [i8; 3] = [8, 25, 43];

/// Unpacks entries of 8 level numbers of 2 bits.
const fn eight<const N: usize>(packed: &[u16; N], levels: [i8; 3]) -> [u64; N] {
    let mut grid = [0; N];
    let mut i = 0;
    while i < N {
        let mut j = 0;
        while j < 8 {
            let level = levels[(packed[i] >> (2 * j) & 3) as usize];
            grid[i] |= (level as u8 as u64) << (8 * j);
            j += 1;
        }
        i += 1;
    }
    grid
}

/// Unpacks entries of 4 level numbers of 3 bits.
const fn four<const N: usize>(packed: &[u16; N], levels: [u8; 8]) -> [u32; N] {
    let mut grid = [0; N];
    let mut i = 0;
    while i < N {
        let mut j = 0;
        while j < 4 {
            let level = levels[(packed[i] >> (3 * j) & 7) as usize];
            grid[i] |= (level as u32) << (8 * j);
            j += 1;
        }
        i += 1;
    }
    grid
}
