//! Layers of tiny models that are more, or less, than attention and a feed-forward block: those with states, of one block, and of encoders.

use super::*;

impl Builder<'_> {
    pub(super) fn state_space(&mut self, index: usize) {
        let hidden = self.recipe.hidden;
        let name = |part: &str| format!("blk.{index}.{part}");
        let (width, keys) = (VALUE_HEADS * STATE, 2 * self.key_heads() * STATE);
        self.matrix(&name("ssm_in.weight"), hidden, 2 * width + keys + VALUE_HEADS);
        self.tensor(&name("ssm_conv1d.weight"), &[TAPS, width + keys], F32);
        self.vector(&name("ssm_conv1d.bias"), width + keys);
        self.vector(&name("ssm_dt.bias"), VALUE_HEADS);
        self.tensor(&name("ssm_d"), &[1, VALUE_HEADS], F32);
        self.tensor(&name("ssm_norm.weight"), &[width / self.key_heads(), self.key_heads()], F32);
        self.matrix(&name("ssm_out.weight"), width, hidden);
        self.tensor(&name("ssm_a"), &[1, VALUE_HEADS], F32);
        self.falling();
    }

    /// No rate is positive: those of the last tensor fall.
    pub(super) fn falling(&mut self) {
        let data = &mut self.file.tensors.last_mut().expect("just added").data;
        data.as_chunks_mut::<4>().0.iter_mut().for_each(|rate| *rate = (-0.5f32).to_le_bytes());
    }

    /// A layer of one block: a state space, attention, or experts of shorter rows, which have no gate.
    pub(super) fn one_block(&mut self, index: usize) {
        let name = |part: &str| format!("blk.{index}.{part}");
        match index % 3 {
            0 => self.state_space(index),
            1 => self.attention(index),
            _ => {
                self.tensor(&name("ffn_gate_inp.weight"), &[self.recipe.hidden, EXPERTS], F32);
                self.vector(&name("exp_probs_b.bias"), EXPERTS);
                self.matrix(&name("ffn_latent_down.weight"), self.recipe.hidden, HEAD_DIM);
                self.table(&name("ffn_up_exps.weight"), &[HEAD_DIM, FEED_FORWARD, EXPERTS]);
                self.table(&name("ffn_down_exps.weight"), &[FEED_FORWARD, HEAD_DIM, EXPERTS]);
                self.matrix(&name("ffn_latent_up.weight"), HEAD_DIM, self.recipe.hidden);
            }
        }
    }

    /// What a layer without attention has in its place.
    pub(super) fn recurrent(&mut self, index: usize) {
        let (hidden, arch) = (self.recipe.hidden, self.recipe.arch);
        let name = |part: &str| format!("blk.{index}.{part}");
        if arch == "lfm2" {
            self.matrix(&name("shortconv.in_proj.weight"), hidden, 3 * hidden);
            self.tensor(&name("shortconv.conv.weight"), &[TAPS, hidden], F32);
            return self.matrix(&name("shortconv.out_proj.weight"), hidden, hidden);
        }
        let (width, channels) = (VALUE_HEADS * STATE, 2 * KEY_HEADS * STATE + VALUE_HEADS * STATE);
        self.matrix(&name("attn_qkv.weight"), hidden, channels);
        self.matrix(&name("attn_gate.weight"), hidden, width);
        if arch == "qwen35" {
            self.matrix(&name("ssm_beta.weight"), hidden, VALUE_HEADS);
            self.matrix(&name("ssm_alpha.weight"), hidden, VALUE_HEADS);
        } else {
            self.matrix(&name("ssm_ba.weight"), hidden, 2 * VALUE_HEADS);
        }
        self.tensor(&name("ssm_conv1d.weight"), &[TAPS, channels], F32);
        self.vector(&name("ssm_dt.bias"), VALUE_HEADS);
        self.vector(&name("ssm_a"), VALUE_HEADS);
        self.falling();
        self.vector(&name("ssm_norm.weight"), STATE);
        self.matrix(&name("ssm_out.weight"), width, hidden);
    }

    /// What is added to embeddings, their norm, and a classifier.
    pub(super) fn ends_of_encoder(&mut self) {
        let hidden = self.recipe.hidden;
        self.matrix("position_embd.weight", hidden, 64);
        self.matrix("token_types.weight", hidden, 2);
        for name in ["token_embd_norm.weight", "token_embd_norm.bias"] {
            self.vector(name, hidden);
        }
        self.matrix("cls.weight", hidden, hidden);
        self.matrix("cls.output.weight", hidden, 1);
        self.file.set("bert.attention.layer_norm_epsilon", Value::f32(1e-5));
        self.file.set("bert.pooling_type", Value::u32(2));
    }

    pub(super) fn encoder_layer(&mut self, index: usize) {
        let (hidden, inner) = (self.recipe.hidden, HEADS * HEAD_DIM);
        let name = |part: &str, kind: &str| format!("blk.{index}.{part}.{kind}");
        for (part, cols, rows) in [
            ("attn_q", hidden, inner),
            ("attn_k", hidden, HEAD_DIM),
            ("attn_v", hidden, HEAD_DIM),
            ("attn_output", inner, hidden),
            ("ffn_up", hidden, FEED_FORWARD),
            ("ffn_down", FEED_FORWARD, hidden),
        ] {
            self.matrix(&name(part, "weight"), cols, rows);
            self.vector(&name(part, "bias"), rows);
        }
        for (part, kind) in
            ["attn_output_norm", "layer_output_norm"].iter().flat_map(|part| [(part, "weight"), (part, "bias")])
        {
            self.vector(&name(part, kind), hidden);
        }
    }
}
