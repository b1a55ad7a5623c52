//! Speculation by a head that reads vectors between the model's layers, through the C API: tokens and outcomes are those of a session that drafts
//! nothing.

use crate::common::drafts::*;
use crate::common::eagle::{VOCAB, WIDTH, alike, loaded_alike, model_path, path, walks, with_the_models_logits};
use crate::common::embeddings::embed_opts;
use crate::common::gguf::{Content, File};
use crate::common::greedy;
use crate::common::predictors::{file_at, planned};
use segno::ffi::session::*;

#[test]
fn tokens_are_those_without_drafts() {
    let ctx = one_thread();
    let (drafted, accepted) = walks(&ctx);
    assert_mixed(drafted, accepted);
}

#[test]
fn a_head_that_thinks_as_the_model_is_right() {
    let ctx = one_thread();
    let [model, head] = loaded_alike(&ctx);
    let mut drawn = greedy();
    (drawn.temperature, drawn.seed) = (1.0, 5);
    assert_right(&model, &head, &drawn);
}

/// Drafts of a head that takes the model's matrix for logits are those of one that has it.
#[test]
fn a_head_may_be_without_logits_of_its_own() {
    let ctx = one_thread();
    let model = ctx.load(&model_path()).unwrap();
    let counts = with_the_models_logits().map(|file| {
        let head = ctx.load_buffer(&file.bytes()).unwrap();
        let drafting = Drafting { speculation: DRAFTED, most: 3, draft: Some(&head), ..PLAIN };
        let counts = walk(&model, drafting, 512, 7, tokens());
        let session = session(&model, drafting, 512);
        let memory = session.memory();
        assert!(memory.host_arena > 0 && memory.host_weights > 0);
        counts
    });
    assert!(counts[0] == counts[1] && counts[0].0 > 0, "{counts:?}");
}

#[test]
fn memory_and_plan_count_the_head() {
    let ctx = one_thread();
    let (model, head) = (ctx.load(&model_path()).unwrap(), ctx.load(&path("plain")).unwrap());
    let drafting = |draft| Drafting { speculation: SEGNO_SPECULATION_AUTO, most: 0, draft, ..PLAIN };
    let [alone, both] = [None, Some(&head)].map(|draft| session(&model, drafting(draft), 512).memory());
    // A cache of one layer beside three, of as many heads of half the size; 33 vectors of each of 4 sequences; logits of all tokens.
    assert!(both.host_kv > alone.host_kv && both.host_kv < alone.host_kv * 3 / 2);
    let least = alone.host_arena + (4 * 33 * WIDTH as u64 + VOCAB as u64) * 4;
    assert!(both.host_arena >= least, "{} beside {}", both.host_arena, alone.host_arena);
    let file = std::fs::metadata(path("plain")).unwrap().len();
    assert!((file * 3 / 4..file).contains(&(both.host_weights - alone.host_weights)));
    let plan = planned(&ctx, &model_path(), |opts| {
        (opts.max_prefill, opts.speculation, opts.draft) = (24, SEGNO_SPECULATION_AUTO, head.0);
    });
    assert_eq!((plan.host_kv, plan.host_arena), (both.host_kv, both.host_arena));
    // The head is loaded already.
    assert_eq!(plan.host_weights, alone.host_weights);
}

#[test]
fn embeddings_beside_drafts_are_those_of_the_model() {
    let ctx = one_thread();
    let (model, head) = (ctx.load(&model_path()).unwrap(), ctx.load(&path("own")).unwrap());
    let drafting = |draft| Drafting { speculation: SEGNO_SPECULATION_AUTO, most: 0, draft, ..PLAIN };
    let [alone, both] = [None, Some(&head)].map(|draft| {
        let session = session(&model, drafting(draft), 512);
        session.embed(&[&[3, 5, 7][..], &[9; 20]], &embed_opts()).unwrap()
    });
    assert!(alone == both);
}

#[test]
fn what_a_head_cannot_do_is_refused_by_name() {
    let ctx = one_thread();
    let [head, own] = ["plain", "own"].map(|name| ctx.load(&path(name)).unwrap());
    assert_refused(&head, None, "only drafts for another one");
    assert_refused(&head, Some(&head), "only drafts for another one");
    assert_refused(&load(&ctx, "llama-wide"), Some(&head), "tokens that the model lacks");
    assert_refused(&load(&ctx, "llama-ratio1"), Some(&own), "layers that the model lacks");
    assert_refused(&load(&ctx, "starcoder2-plain"), Some(&own), "layers that the model lacks");
}

/// The model's tokens are the head's, whether that says what they are or not; other special ones are those of another model.
#[test]
fn a_head_may_be_without_a_tokenizer() {
    let ctx = one_thread();
    let named = |mut file: File, special: &str| {
        let mut tokens: Vec<String> = (0..VOCAB).map(|token| format!("t{token}")).collect();
        tokens[1] = special.into();
        let kinds: Vec<u32> = (0..VOCAB).map(|token| [2, 3].get(token).copied().unwrap_or(1)).collect();
        file.set("tokenizer.ggml.model", "llama")
            .set("tokenizer.ggml.scores", vec![0f32; VOCAB])
            .set("tokenizer.ggml.token_type", kinds)
            .set("tokenizer.ggml.tokens", tokens.iter().map(String::as_str).collect::<Vec<_>>());
        ctx.load_buffer(&file.bytes()).unwrap()
    };
    let [model, head] = alike();
    let [bare, same, other] = [ctx.load_buffer(&head.bytes()).unwrap(), named(head.clone(), "<s>"), named(head, "<x>")];
    let model = named(model, "<s>");
    assert_right(&model, &bare, &greedy());
    assert_right(&model, &same, &greedy());
    assert_refused(&model, Some(&other), "other special tokens");
}

/// What a file of a head may have wrong, and how it is refused.
#[test]
fn files_that_are_wrong_are_refused_by_name() {
    let ctx = one_thread();
    let refused = |change: &dyn Fn(&mut File), words: &str| {
        let mut file = file_at(&path("plain"));
        change(&mut file);
        let message = ctx.load_buffer(&file.bytes()).err().unwrap().message;
        assert!(message.contains(words), "{message}");
    };
    for name in ["fc.weight", "output.weight", "blk.0.attn_norm_2.weight"] {
        refused(&|file| file.tensors.retain(|tensor| tensor.name != name), name);
    }
    let own = file_at(&path("own"));
    for rows in [VOCAB - 1, VOCAB + 1] {
        let mut file = own.clone();
        let table = file.tensor("token_embd.weight");
        table.dims[1] = rows as u64;
        table.content = Content::Bytes(vec![0; 4 * 24 * rows]);
        let message = ctx.load_buffer(&file.bytes()).err().unwrap().message;
        assert!(message.contains("logits of 131 tokens"), "{message}");
    }
    refused(&|file| file.tensor("d2t").type_id = 0, "not as 64-bit integers");
    refused(&|file| file.tensor("d2t").dims = vec![49], "d2t");
    refused(&|file| _ = file.set("eagle3.vocab_size", 40u32), "names the token");
    refused(&|file| _ = file.set("eagle3.block_count", 2u32), "one layer");
    refused(&|file| _ = file.set("eagle3.target_hidden_size", 31u32), "fc.weight");
    refused(&|file| _ = file.set("eagle3.target_hidden_size", 0u32), "target_hidden_size");
    refused(&|file| _ = file.set("eagle3.norm_before_fc", true), "enc.output_norm");
}
