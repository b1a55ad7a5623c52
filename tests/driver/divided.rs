//! The use of a model that a GPU shares with the host, under the stand-in of the driver.

use crate::common;
use crate::common::embeddings::embed_opts;
use crate::common::{Ctx, Failed, Watch, greedy, model_opts};
use segno::ffi::model::segno_model_opts;

/// The use of a model of which the host does a part.
pub fn divided(ctx: &Ctx) -> Result<(), Failed> {
    let path = common::root().join("tests/golden/hf/qwen3moe-plain.gguf");
    let mut watch = Watch::default();
    let whole = ctx.plan(&path, &segno_model_opts { device_memory: u64::MAX, ..model_opts(0, &mut watch) })?;
    let most = whole.device_weights + whole.device_kv + whole.device_arena + whole.device_graphs - 1;
    let opts = segno_model_opts { device_memory: most, ..model_opts(0, &mut watch) };
    assert!(ctx.plan(&path, &opts)?.host_expert_layers > 0);
    let model = ctx.load_with(&path, &opts)?.1;
    let session = model.session(|opts| (opts.max_seqs, opts.kv_tokens) = (2, 128))?;
    let seq = session.open(&greedy())?;
    session.append(seq, &[5; 40])?;
    (0..3).try_for_each(|_| session.step(seq).map(|_| ()))?;
    session.embed(&[&[5; 40], &[6]], &embed_opts()).map(|_| ())
}
