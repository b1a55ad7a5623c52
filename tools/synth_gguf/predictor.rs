//! Files whose next token is known: with a block behind the layers that predicts a further token, as files with `nextn_predict_layers` have it, right
//! as often as asked; and models that count through their vocabulary, of which one can draft for another.
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

/// What a model makes of a text.
#[derive(Clone, Copy, PartialEq)]
pub enum Says {
    /// What its random weights do.
    Anything,
    /// All tokens alike.
    Flat,
    /// A token that depends on the one before alone, and a block behind the layers predicts it so many times of 100.
    Predicted(u32),
    /// The token behind the last one in the vocabulary so many times of 100, else the one behind that.
    Next(u32),
}

impl Says {
    /// What words behind the path ask for.
    pub fn parse(words: &[String]) -> Option<Says> {
        let number = |text: &String| text.parse().ok().filter(|&right| right <= 100);
        match words {
            [] => Some(Says::Anything),
            [word] if word == "flat" => Some(Says::Flat),
            [right] => number(right).map(Says::Predicted),
            [word, right] if word == "next" => number(right).map(Says::Next),
            _ => None,
        }
    }

    pub fn has_block(self) -> bool {
        matches!(self, Says::Predicted(_))
    }
}

impl Model<'_> {
    /// Adds the block, which is right so many times of 100; behind everything else.
    pub fn predictor(&mut self, right: u32) {
        let (layers, hidden) = (self.shape.layers, self.shape.hidden);
        self.layer(layers);
        self.still();
        let named = |part: &str| format!("blk.{layers}.nextn.{part}.weight");
        let (dims, dtype) = (vec![2 * hidden, hidden], DType::Q8_0);
        self.tensors.push(Tensor { name: named("eh_proj"), dims, dtype, content: Content::Diagonal });
        self.tensors.push(Tensor::of_values(&named("enorm"), vec![1.0; hidden]));
        self.vector(named("hnorm"), hidden, 1.0, 0.05);
        let (dims, dtype) = (self.tensors[0].dims.clone(), self.tensors[0].dtype);
        let content = Content::LikeFirst { behind: 0, others: 100 - right };
        self.tensors.push(Tensor { name: named("embed_tokens"), dims, dtype, content });
    }

    /// Lets the model say the token behind the last one so many times of 100. Its head has the rows of the embedding, each one place further, so both
    /// are of the head's type.
    pub fn counts(&mut self, right: u32) {
        self.still();
        self.tensors[0].dtype = self.mix.head();
        let (dims, dtype) = (self.tensors[0].dims.clone(), self.tensors[0].dtype);
        let (name, content) = ("output.weight".to_string(), Content::LikeFirst { behind: 1, others: 100 - right });
        self.tensors.retain(|tensor| tensor.name != name);
        self.tensors.push(Tensor { name, dims, dtype, content });
    }

    /// Lets no layer add anything.
    fn still(&mut self) {
        for tensor in self.tensors.iter_mut().filter(|tensor| ENDS.iter().any(|end| tensor.name.ends_with(end))) {
            tensor.content = Content::Drawn { mean: 0.0, spread: 0.0 };
        }
    }
}
