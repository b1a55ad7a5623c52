//! A block behind the layers that predicts a further token, as files with `nextn_predict_layers` have it, right as often as asked.
//!
//! For that no layer adds anything to the embedding: the matrices that end its halves are zeros, of which as many bytes are read. So a token depends
//! on the one before it alone, and a block whose projection hands on the embedding guesses as the model does. It has an embedding of its own, in
//! which some rows are those of other tokens: behind such a token it guesses wrong.

use super::Model;
use super::tensor::{Content, Tensor};
use segno::quant::DType;

/// What ends the halves of layers.
const ENDS: [&str; 5] =
    ["attn_output.weight", "ssm_out.weight", "ffn_down.weight", "ffn_down_exps.weight", "ffn_down_shexp.weight"];

impl Model<'_> {
    /// Adds the block, which is right so many times of 100; behind everything else.
    pub fn predictor(&mut self, right: u32) {
        let (layers, hidden) = (self.shape.layers, self.shape.hidden);
        self.layer(layers);
        for tensor in self.tensors.iter_mut().filter(|tensor| ENDS.iter().any(|end| tensor.name.ends_with(end))) {
            tensor.content = Content::Drawn { mean: 0.0, spread: 0.0 };
        }
        let named = |part: &str| format!("blk.{layers}.nextn.{part}.weight");
        let (dims, dtype) = (vec![2 * hidden, hidden], DType::Q8_0);
        self.tensors.push(Tensor { name: named("eh_proj"), dims, dtype, content: Content::Diagonal });
        self.tensors.push(Tensor::of_values(&named("enorm"), vec![1.0; hidden]));
        self.vector(named("hnorm"), hidden, 1.0, 0.05);
        let (dims, dtype) = (self.tensors[0].dims.clone(), self.tensors[0].dtype);
        let content = Content::LikeFirst { others: 100 - right };
        self.tensors.push(Tensor { name: named("embed_tokens"), dims, dtype, content });
    }
}
