//! Every storage type in a whole model: random, well-scaled weights, two layers, through the C API; the default mode against the
//! precise one, and mixed types in one file.

use crate::common::distance::distance;
use crate::common::gguf::File;
use crate::common::random::file;
use crate::common::{Ctx, Model, greedy};
use segno::ffi::device::SEGNO_DEVICE_CPU;
use segno::quant::DType;

const POSITIONS: usize = 40;

fn logits(model: &Model, precise: bool) -> Vec<Vec<f32>> {
    let session = if precise { model.session_f32() } else { model.session(|_| ()).unwrap() };
    let seq = session.open(&greedy()).unwrap();
    let rows = (0..POSITIONS).map(|i| {
        session.append(seq, &[(i * 37 % 301) as i32]).unwrap();
        session.logits(seq).unwrap()
    });
    rows.collect()
}

fn assert_close(name: &str, file: &File) {
    let bytes = file.bytes();
    let precise = Ctx::precise().load_buffer(&bytes).unwrap();
    let default = Ctx::new(|opts| opts.device = SEGNO_DEVICE_CPU).unwrap().load_buffer(&bytes).unwrap();
    let (rows, expected) = (logits(&default, false), logits(&precise, true));
    let distances: Vec<_> = rows.iter().zip(&expected).map(|(row, expected)| distance(row, expected)).collect();
    let worst = distances.iter().map(|distance| distance.relative_l2).fold(0.0, f64::max);
    let divergence = distances.iter().map(|distance| distance.divergence).sum::<f64>() / rows.len() as f64;
    println!("{name}: relative L2 at most {worst:.1e}, mean divergence {divergence:.1e}");
    assert!(worst <= 4e-2 && divergence <= 1e-3, "{name}");
}

#[test]
fn every_type_runs_close_to_the_precise_mode() {
    for dtype in DType::ALL {
        assert_close(dtype.name(), &file(|_| dtype));
    }
}

#[test]
fn types_may_be_mixed_head_and_embedding_included() {
    let mixed = file(|name| match name {
        "token_embd.weight" => DType::IQ4_NL,
        "output.weight" => DType::Q6_K,
        name if name.contains("attn_v") => DType::F16,
        name if name.contains("attn_k") => DType::Q5_0,
        name if name.contains("ffn_down") => DType::Q2_K,
        _ => DType::Q4_K,
    });
    assert_close("mixed", &mixed);
}
