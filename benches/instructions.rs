//! Calls of one product and nothing else, for those who count instructions (benches/count_neon.sh):
//!
//! `instructions TYPE KERNELS TOKENS REPEATS` multiplies [`ROWS`] rows of [`COLS`] weights of a type with `TOKENS` activation rows, `REPEATS`
//! times, by the kernels of a name. Two runs with other `REPEATS` differ by the calls alone.

use half::bf16;
use segno::backend::cpu::pool::TileMut;
use segno::backend::cpu::simd::{Form, Input, Matrix, Q8_LEN, Q8Block, available};
use segno::quant::DType;
use segno::quant::synthetic::{self, Random};
use std::env;

const ROWS: usize = 16;
const COLS: usize = 1024;

fn main() {
    let arguments: Vec<String> = env::args().skip(1).filter(|argument| argument != "--bench").collect();
    let [dtype, name, tokens, repeats] = &arguments[..] else {
        println!("usage: instructions TYPE KERNELS TOKENS REPEATS; {} weights", ROWS * COLS);
        return;
    };
    let dtype = DType::ALL.into_iter().find(|known| known.to_string() == *dtype).expect("a storage type");
    let kernels = available().into_iter().find(|kernels| kernels.name == name).expect("kernels that run here");
    let [tokens, repeats]: [usize; 2] = [tokens, repeats].map(|text| text.parse().expect("a number"));
    let mut random = Random::new(1);
    let bytes = synthetic::blocks(dtype, ROWS * COLS / dtype.block_len(), &mut random);
    let floats = random.uniforms(tokens * COLS);
    let mut blocks = vec![Q8Block::default(); floats.len() / Q8_LEN];
    kernels.quantize(&floats, &mut blocks);
    let rounded: Vec<bf16> = floats.iter().copied().map(bf16::from_f32).collect();
    let matrix = Matrix::new(dtype, &bytes, ROWS, COLS).expect("the bytes are whole rows");
    let input = match kernels.form(dtype) {
        Form::F32 => Input::F32 { values: &floats },
        Form::Q8 => Input::Q8 { blocks: &blocks },
        Form::Bf16 => Input::Bf16 { values: &rounded },
    };
    let mut out = vec![0.0; tokens * ROWS];
    for _ in 0..repeats {
        kernels.matmul(&matrix, &input, &mut TileMut::whole(&mut out, ROWS));
    }
}
