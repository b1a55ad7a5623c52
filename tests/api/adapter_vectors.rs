//! Embeddings with adapters: the vectors of weights into which they are merged, by the adapters of the call and no others.

use crate::adapter_rules::{PROMPT, World, logits, world};
use crate::common::adapters::{Form, Lora, farthest};
use crate::common::embeddings::{cases, embed_opts, with};
use crate::common::{Ctx, Folder, greedy};
use segno::ffi::embed::segno_embed_opts;
use segno::ffi::status::*;
use std::ptr::null;

#[test]
fn vectors_have_the_adapters_of_their_call_and_no_others() {
    let World { model, adapters, .. } = &world("llama-ratio4");
    let session = model.session_f32();
    let (texts, plain) = ([&PROMPT[..], &PROMPT[2..5]], embed_opts());
    let vectors = session.vectors(&texts, &plain);
    let seq = session.open(&greedy()).unwrap();
    session.adapt(seq, &[(&adapters[0], 1.0)]).unwrap();
    session.prefill(seq, &PROMPT).unwrap();
    let before = logits(&session, seq);
    assert_eq!(session.vectors(&texts, &plain), vectors, "a sequence's adapters are its own");
    let handles = [adapters[1].0.cast_const(), adapters[0].0.cast_const()];
    let changed = session.vectors(&texts, &with(&handles, &[0.5, 1.0]));
    assert_ne!(changed, vectors);
    assert_eq!(session.vectors(&texts[1..], &with(&handles, &[0.5, 1.0])), changed[1..], "alone");
    assert_eq!(session.vectors(&texts, &with(&handles, &[0.0, 0.0])), vectors);
    assert_eq!(session.vectors(&texts, &plain), vectors, "nothing of them stays");
    assert_eq!(logits(&session, seq), before);
    let stranger = world("llama-ratio4");
    let foreign = [handles[0], stranger.adapters[0].0.cast_const()];
    let wrong = |opts: segno_embed_opts, status: segno_status, part: &str| {
        let failed = session.embed(&texts, &opts).unwrap_err();
        assert_eq!((failed.status, failed.item), (status, -1), "{}", failed.message);
        assert!(failed.message.contains(part), "{}", failed.message);
    };
    wrong(with(&foreign, &[1.0; 2]), SEGNO_E_INVALID_ARGUMENT, "`adapters[1]` was loaded for another model");
    wrong(with(&handles, &[1.0, f32::NAN]), SEGNO_E_INVALID_ARGUMENT, "a finite number is needed");
    wrong(with(&[handles[0]; 65], &[1.0; 65]), SEGNO_E_INVALID_ARGUMENT, "at most 64");
    wrong(with(&[handles[0], null()], &[1.0; 2]), SEGNO_E_NULL_POINTER, "`adapter` must not be NULL");
    assert_eq!(session.vectors(&texts, &plain), vectors);
}

#[test]
fn vectors_are_those_of_merged_weights() {
    let folder = Folder::new("adapter-vectors");
    for case in cases() {
        let base = std::fs::read(&case.file).unwrap();
        let lora = Lora::whole(&base, Form::new(6, 5), |name| !name.contains("output"));
        lora.file().write(&folder.join("adapter.gguf"));
        let mut merged = base.clone();
        lora.merge_into(&mut merged, 0.7);
        let model = Ctx::precise().load_buffer(&base).unwrap();
        let adapter = model.adapter(&folder.join("adapter.gguf")).unwrap();
        let session = model.session_f32();
        let found = session.vectors(&case.texts(), &with(&[adapter.0.cast_const()], &[0.7]));
        let expected = Ctx::precise().load_buffer(&merged).unwrap().session_f32().vectors(&case.texts(), &embed_opts());
        let off = farthest(&found.concat(), &expected.concat());
        let change = farthest(&found.concat(), &session.vectors(&case.texts(), &embed_opts()).concat());
        println!("{}: {} tensors, off by {off:.1e}, changed by {change:.1e}", case.name, lora.pairs.len());
        assert!(off <= 1e-3 && change >= 1e-2, "{}: off by {off:e}, changed by {change:e}", case.name);
    }
}
