//! Models that draft by the keys of another one: their logits and vectors against those of transformers, and the cache that they read.

use crate::common::assistants::{
    VOCAB, assert_alone, distance_of_drafts, model_path, own_keys_unseen, path, program_of,
};
use crate::common::eagle::open;
use crate::common::passes::precise;
use segno::arch::Hparams;
use segno::error::Error;
use segno::plan::{Op, Program, assistant};
use std::path::Path;

/// Largest relative L2 distance in precise mode with an F32 cache.
const PRECISE: f64 = 2e-5;

#[test]
fn drafts_are_those_of_transformers() {
    let worst = distance_of_drafts(&precise());
    println!("{worst:.2e} from transformers");
    assert!(worst <= PRECISE, "{worst:.2e}");
}

#[test]
fn rows_of_several_lengths_in_one_pass_are_those_of_each_alone() {
    assert_alone(&precise());
}

#[test]
fn a_row_sees_no_key_at_its_own_position_or_behind() {
    own_keys_unseen(&precise());
}

#[test]
fn models_that_do_not_suit_are_refused_by_name() {
    let (backbone, own) = (open(&model_path()), open(&path()));
    let ((model, hparams), (assistant, _)) = (program_of(&backbone), program_of(&own));
    let refused =
        |assistant: &Program, model: &Program| match assistant::over(assistant, model, hparams.embedding_scale) {
            Err(Error::Unsupported(problem)) => problem,
            other => panic!("{other:?}"),
        };
    assert!(refused(&model, &model).contains("keys and values of its own"));
    assert!(refused(&assistant, &assistant).contains("makes no text"));
    let other = |name: &str| program_of(&open(&model_path().with_file_name(name))).0;
    assert!(refused(&assistant, &other("llama-ratio1.gguf")).contains("no layer has the keys"));
    assert!(refused(&assistant, &other("gemma3-plain.gguf")).contains("no layer has the keys"));
    let mut wide = program_of(&own).0;
    wide.values[0].width += 2;
    assert!(refused(&wide, &model).contains("another size"));
    let narrow = |path: &Path| {
        let mut program = program_of(&open(path)).0;
        for op in &mut program.ops {
            if let Op::Attention { kind, .. } = op {
                kind.window = kind.window.map(|_| 1);
            }
        }
        program
    };
    assert!(refused(&narrow(&path()), &narrow(&model_path())).contains("before it sees a key"));
}

#[test]
fn its_sizes_are_those_of_its_file() {
    let (program, Hparams { layers, backbone, predicting_blocks, .. }) = program_of(&open(&path()));
    assert_eq!((layers, backbone, predicting_blocks), (3, Some(32), 0));
    assert_eq!((program.vocab(), program.given_width(), program.window()), (VOCAB, 64, Some(9)));
    assert!(program.borrows_keys() && !program_of(&open(&model_path())).0.borrows_keys());
}
