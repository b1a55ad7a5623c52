//! Heads that draft by vectors between a model's layers: their logits and vectors against plain code, and what they are refused for.

use crate::common::assistants::program_of;
use crate::common::eagle::{
    KNOWN, VOCAB, WIDTH, from_plain_code, golden, head, model, model_path, open, path, run, runner,
    with_the_models_logits,
};
use crate::common::gguf::parsed;
use crate::common::passes::precise;
use crate::common::predictors::file_at;
use segno::backend::{Hidden, cpu};
use segno::error::Error;
use segno::plan::eagle::{over, telling};
use segno::plan::{Op, Program};

/// Largest relative L2 distance in precise mode with an F32 cache.
const PRECISE: f64 = 2e-5;

#[test]
fn drafts_are_those_of_plain_code() {
    for (name, logits) in [("plain", KNOWN), ("own", VOCAB)] {
        let worst = from_plain_code(&precise(), name, logits);
        println!("{name}: {worst:.2e} from plain code");
        assert!(worst <= PRECISE, "{name}: {worst:.2e}");
    }
}

/// What a pass of the model gives beside the vectors does not depend on whether it makes them.
#[test]
fn logits_are_those_of_the_model_alone() {
    let tokens = golden("own", VOCAB).tokens;
    for precise in [true, false] {
        let options = cpu::Options { threads: 2, precise, allow_avx512: true, gives_way: false };
        let backend = cpu::Cpu::new(&options).unwrap();
        let logits = [model(), telling(&model(), &head("own")).unwrap()].map(|program| {
            let mut runner = runner(&backend, program, Hidden::None);
            run(&mut *runner, &tokens, 0, true);
            runner.logits(0).to_vec()
        });
        assert!(logits[0] == logits[1]);
    }
}

#[test]
fn models_that_do_not_suit_are_refused_by_name() {
    let refused =
        |head: &Program, model: &Program| match (over(head, model), telling(head, model), telling(model, head)) {
            (Err(Error::Unsupported(over)), Err(Error::Unsupported(_)), Err(Error::Unsupported(telling))) => {
                [over, telling]
            }
            other => panic!("{other:?}"),
        };
    let other = |name: &str| program_of(&open(&model_path().with_file_name(name))).0;
    let [own, lent] = [head("own"), head("plain")];
    assert!(over(&model(), &model()).unwrap_err().to_string().contains("reads no vectors"));
    assert!(refused(&own, &own)[0].contains("makes no text"));
    assert!(refused(&own, &other("llama-ratio1.gguf"))[0].contains("layers that the model lacks"));
    let mut narrow = head("plain");
    narrow.fusion.as_mut().unwrap().width = 31;
    assert!(telling(&model(), &narrow).unwrap_err().to_string().contains("another size"));
    let mut few = model();
    let Some(&Op::MatMul { matrix, out, .. }) = few.ops.last() else { panic!("the head comes last") };
    (few.matrices[matrix.0].rows, few.values[out.0].width) = (60, 60);
    assert!(over(&lent, &few).unwrap_err().to_string().contains("tokens that the model lacks"));
}

/// Of a file that lists no layers they are an early one, one in the middle and a late one of the model.
#[test]
fn the_usual_layers_are_read_where_none_are_listed() {
    let ops = |layers: Option<[u32; 3]>| {
        let mut file = file_at(&path("plain"));
        file.entries.retain(|(key, _)| key != "eagle3.target_layers");
        if let Some(layers) = layers {
            file.set("eagle3.target_layers", layers);
        }
        telling(&model(), &program_of(&parsed(&file.bytes())).0).unwrap().ops
    };
    assert!(ops(None) == ops(Some([2, 1, 0])) && ops(None) != ops(Some([2, 0, 1])));
    let mut few = head("plain");
    few.fusion.as_mut().unwrap().layers = None;
    let two = program_of(&open(&model_path().with_file_name("llama-ratio1.gguf"))).0;
    assert!(telling(&two, &few).unwrap_err().to_string().contains("layers that the model lacks"));
}

/// A head without a matrix for logits takes the model's.
#[test]
fn logits_are_made_by_the_models_matrix_where_there_is_none() {
    let tokens = golden("plain", KNOWN).tokens;
    let programs = with_the_models_logits().map(|file| program_of(&parsed(&file.bytes())).0);
    assert_eq!(programs.each_ref().map(|program| program.logits_width()), [0, VOCAB]);
    assert_eq!(programs.each_ref().map(|program| program.vocab()), [VOCAB; 2]);
    let logits = programs.map(|head| {
        let over = over(&head, &model()).unwrap();
        assert_eq!((over.vocab(), over.logits_width(), over.given_width()), (VOCAB, VOCAB, WIDTH));
        let mut runner = runner(&precise(), over, Hidden::Outputs);
        (0..tokens.len()).for_each(|row| runner.given(row).fill(0.1 + row as f32 / 16.0));
        run(&mut *runner, &tokens, 0, true);
        [runner.logits(0).to_vec(), runner.hidden(0).to_vec()]
    });
    assert!(logits[0] == logits[1] && logits[0][0].iter().any(|&logit| logit != logits[0][0][0]));
    let mut small = file_at(&path("own"));
    small.tensors.retain(|tensor| tensor.name != "output.weight");
    let refused = over(&program_of(&parsed(&small.bytes())).0, &model()).unwrap_err();
    assert!(refused.to_string().contains("another size"), "{refused}");
}

#[test]
fn its_sizes_are_those_of_its_file() {
    for (name, width, logits) in [("plain", 2 * WIDTH, KNOWN), ("own", 24, VOCAB)] {
        let program = head(name);
        assert_eq!((program.vocab(), program.logits_width(), program.given_width()), (VOCAB, logits, width), "{name}");
        assert!(program.only_drafts() && !model().only_drafts());
        let joined = over(&program, &model()).unwrap();
        assert_eq!((joined.vocab(), joined.logits_width()), (VOCAB, logits), "{name}");
        assert_eq!(joined.given_width(), if name == "own" { 24 } else { WIDTH });
        assert_eq!(telling(&model(), &program).unwrap().layers.len(), 4, "{name}");
    }
}
