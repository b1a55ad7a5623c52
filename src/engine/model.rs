//! A model: immutable weights on a device, with tokenizer and metadata.

use super::context::{Context, LogLevel};
use crate::arch::{Arch, Hparams};
use crate::backend::Prepared;
use crate::error::{Error, Result};
use crate::format::{Data, Gguf, Metadata, Progress};
use crate::plan::{Program, build::build};
use crate::text::chat::ChatOptions;
use crate::text::{self, Tokenizer};
use std::path::Path;
use std::sync::Arc;

/// How a conversation is rendered.
#[derive(Clone, Copy, Debug, Default)]
pub struct Chat<'a> {
    /// In place of the model's own template.
    pub template: Option<&'a str>,
    /// End with the beginning of the assistant's next turn.
    pub add_generation_prompt: bool,
    /// A JSON array of tools.
    pub tools_json: Option<&'a [u8]>,
    /// A JSON object of further variables.
    pub vars_json: Option<&'a [u8]>,
    /// Unix seconds that the template sees as the present; 0 is the clock.
    pub now: i64,
}

/// Weights on a device, shared by any number of sessions.
pub struct Model {
    context: Arc<Context>,
    arch: Arch,
    hparams: Hparams,
    metadata: Metadata,
    tokenizer: Option<Arc<Tokenizer>>,
    program: Arc<Program>,
    prepared: Arc<dyn Prepared>,
}

/// What a file's header says: everything about a model but its weights on a device.
pub(super) struct Header {
    pub(super) arch: Arch,
    pub(super) hparams: Hparams,
    pub(super) program: Program,
}

impl Header {
    /// Reads the family, the sizes and the forward pass; refuses what the library lacks.
    pub(super) fn read(gguf: &Gguf) -> Result<Header> {
        let (metadata, key) = (gguf.metadata(), "general.architecture");
        let arch = Arch::find(metadata.required(key, metadata.text(key)?)?)?;
        let hparams = Hparams::read(metadata, &arch)?;
        let program = build(gguf, &arch, &hparams)?;
        Ok(Header { arch, hparams, program })
    }
}

impl Model {
    /// Loads the GGUF file at `path`: mapped, or read when `map` is false. `progress` runs on this thread, and hears 1 at the end.
    pub fn load(context: &Arc<Context>, path: &Path, map: bool, progress: &mut Progress) -> Result<Model> {
        Model::from_gguf(context, Gguf::open(path, map, progress)?, progress)
    }

    /// Loads a GGUF file from a copy of its bytes, with progress as above.
    pub fn load_buffer(context: &Arc<Context>, bytes: &[u8], progress: &mut Progress) -> Result<Model> {
        Model::from_gguf(context, Gguf::parse(Data::copy(bytes, progress)?)?, progress)
    }

    fn from_gguf(context: &Arc<Context>, gguf: Gguf, progress: &mut Progress) -> Result<Model> {
        let Header { arch, hparams, program } = Header::read(&gguf)?;
        let program = Arc::new(program);
        let tokenizer = Tokenizer::from_metadata(gguf.metadata())?;
        check_vocabulary(tokenizer.as_ref(), program.vocab())?;
        gguf.populate(progress)?;
        let prepared = context.backend().prepare(Arc::clone(&program))?;
        let (context, metadata) = (Arc::clone(context), gguf.into_metadata());
        let model = Model { context, arch, hparams, metadata, tokenizer: tokenizer.map(Arc::new), program, prepared };
        progress(1.0)?;
        model.log_summary();
        Ok(model)
    }

    fn log_summary(&self) {
        let (arch, layers, vocab) = (self.arch.name, self.hparams.layers, self.program.vocab());
        let mib = self.program.weight_bytes() >> 20;
        self.context.log(LogLevel::Info, format_args!("model: {arch}, {layers} layers, vocabulary {vocab}, {mib} MiB"));
    }

    /// The context that it was loaded in.
    pub fn context(&self) -> &Arc<Context> {
        &self.context
    }

    /// Its family.
    pub fn arch(&self) -> &Arch {
        &self.arch
    }

    /// Its sizes.
    pub fn hparams(&self) -> &Hparams {
        &self.hparams
    }

    /// Key-value pairs of its file.
    pub fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    /// Its forward pass.
    pub fn program(&self) -> &Program {
        &self.program
    }

    /// The program on its device.
    pub fn prepared(&self) -> &Arc<dyn Prepared> {
        &self.prepared
    }

    /// Number of tokens.
    pub fn vocab(&self) -> usize {
        self.program.vocab()
    }

    /// Number of weights.
    pub fn parameters(&self) -> u64 {
        let matrices: u64 = self.program.matrices.iter().map(|w| w.rows as u64 * w.cols as u64).sum();
        matrices + self.program.vectors.iter().map(|v| v.len() as u64).sum::<u64>()
    }

    /// Its tokenizer, or the error that the file has none.
    pub fn tokenizer(&self) -> Result<&Arc<Tokenizer>> {
        self.tokenizer.as_ref().ok_or_else(|| Error::Unsupported("the model file holds no tokenizer".into()))
    }

    /// Renders a conversation, an array of messages as JSON, with the model's chat template or that of `chat`.
    pub fn render_chat(&self, messages_json: &[u8], chat: &Chat) -> Result<String> {
        let (bos, eos) = (self.token_text(Tokenizer::bos)?, self.token_text(Tokenizer::eos)?);
        let options = ChatOptions {
            add_generation_prompt: chat.add_generation_prompt,
            tools_json: chat.tools_json,
            vars_json: chat.vars_json,
            now: chat.now,
            bos: &bos,
            eos: &eos,
        };
        let key = "tokenizer.chat_template";
        let template = match chat.template {
            Some(template) => template,
            None => self.metadata.text(key)?.ok_or_else(|| Error::NotFound("the model has no chat template".into()))?,
        };
        text::chat::render(template, messages_json, &options)
    }

    /// Name of one of the tokenizer's tokens, "" when there is none.
    fn token_text(&self, find: fn(&Tokenizer) -> Option<i32>) -> Result<String> {
        let token = self.tokenizer.as_ref().and_then(|tokenizer| Some((tokenizer, find(tokenizer)?)));
        token.map_or(Ok(String::new()), |(tokenizer, token)| tokenizer.name(token))
    }

    /// Whether `token` ends generation by the rules of the vocabulary.
    pub fn is_eog(&self, token: i32) -> bool {
        self.tokenizer.as_ref().is_some_and(|tokenizer| tokenizer.is_eog(token))
    }
}

/// A tokenizer that knows more tokens than the embedding has rows could name tokens that cannot be evaluated.
fn check_vocabulary(tokenizer: Option<&Tokenizer>, rows: usize) -> Result<()> {
    match tokenizer.map(Tokenizer::vocab_size) {
        Some(tokens) if tokens > rows => {
            Err(Error::Format(format!("the vocabulary has {tokens} tokens, the embedding has {rows} rows")))
        }
        _ => Ok(()),
    }
}
