//! Hostile adapters: small LoRA files, each changed in a way that matters, end in an error or in an adapter that a sequence can have. No panic, no
//! crash, in time and within memory as models are (`files`).

use crate::common::adapters::{Form, Lora};
use crate::common::gguf::Shape;
use crate::common::mixture::mixture;
use crate::common::{Ctx, Folder, Model, greedy};
use crate::dice::Dice;
use crate::gguf::{F32, File, Tensor, Value};
use crate::host::orderly;
use crate::mutation;
use segno::quant::DType;
use std::time::{Duration, Instant};

/// Of each model.
const CASES: usize = 2_500;
const LONGEST: Duration = Duration::from_secs(2);

/// A file of the hostile kind that says what `lora` is.
fn file_of(lora: &Lora) -> File {
    let texts = [("general.architecture", &*lora.family), ("general.type", "adapter"), ("adapter.type", "lora")];
    let mut file = File {
        magic: *b"GGUF",
        version: 3,
        alignment: 32,
        said_entries: None,
        said_tensors: None,
        entries: Vec::new(),
        tensors: Vec::new(),
    };
    texts.into_iter().for_each(|(key, text)| file.set(key, Value::text(text)));
    file.set("adapter.lora.alpha", Value::Scalar { type_id: F32, bytes: lora.alpha.to_le_bytes().to_vec() });
    for tensor in lora.file().tensors {
        let crate::common::gguf::Content::Bytes(data) = tensor.content else { unreachable!() };
        let (name, dims, type_id) = (tensor.name.into_bytes(), tensor.dims, tensor.type_id);
        file.tensors.push(Tensor { name, dims, said_rank: None, type_id, said_offset: None, data });
    }
    file
}

/// Whether the file became an adapter.
fn use_adapter(model: &Model, folder: &Folder, bytes: &[u8]) -> bool {
    let path = folder.join("case.gguf");
    std::fs::write(&path, bytes).unwrap();
    let Some(adapter) = orderly(model.adapter(&path)) else { return false };
    let session = model.session(|opts| (opts.max_seqs, opts.kv_tokens, opts.max_prefill) = (2, 64, 7)).unwrap();
    let seqs = [1.0, -0.5].map(|scale| {
        let seq = session.open(&greedy()).unwrap();
        orderly(session.adapt(seq, &[(&adapter, scale), (&adapter, 1.0)])).expect("an adapter can be set");
        session.append(seq, &[5, 6, 7, 8, 9, 10, 11, 12, 13]).unwrap();
        seq
    });
    for _ in 0..4 {
        // Weights that are no numbers make logits that are none, of which no token can be drawn.
        orderly(session.batch(&seqs).2);
    }
    true
}

#[test]
fn changed_adapters_load_or_are_refused() {
    check_all(&Shape::small().file().bytes(), |name| !name.contains("ffn"));
    // Tables of experts, the embedding and the head.
    check_all(&mixture(DType::Q8_0).bytes(), |name| name.contains("exps") || !name.contains("blk"));
}

/// Changed adapters of a model, of the tensors that `of` takes.
fn check_all(base: &[u8], of: impl Fn(&str) -> bool + Copy) {
    let folder = Folder::new("hostile-adapters");
    let model = Ctx::new(|opts| opts.n_threads = 1).unwrap().load_buffer(base).unwrap();
    let forms = [DType::F32, DType::F16, DType::BF16, DType::Q8_0].map(|dtype| Form { dtype, ..Form::new(3, 3) });
    let files = forms.map(|form| file_of(&Lora::whole(base, form, of)));
    let (mut refused, mut slowest) = (0, Duration::ZERO);
    for case in 0..CASES {
        let mut dice = Dice::new(case as u64);
        let bytes = mutation::mutate(&files[case % files.len()], &mut dice);
        let start = Instant::now();
        refused += usize::from(!use_adapter(&model, &folder, &bytes));
        slowest = slowest.max(start.elapsed());
    }
    println!("{CASES} cases: {refused} refused; slowest {slowest:?}");
    assert!(refused > CASES / 4 && refused < 9 * CASES / 10, "the cases prove little: {refused} refused");
    assert!(slowest < 5 * LONGEST, "{slowest:?}");
    for file in &files {
        let whole = file.to_bytes();
        assert!(use_adapter(&model, &folder, &whole));
        for cut in (0..whole.len()).step_by(257) {
            assert!(!use_adapter(&model, &folder, &whole[..cut]), "{cut} bytes of {}", whole.len());
        }
    }
}
