//! A model: immutable weights on a device, with tokenizer and metadata.

use super::adapter::Known;
use super::context::{Context, LogLevel};
use super::dividing::{self, Runs};
use super::header::{Header, OrReason, Predictor, stored_bytes};
use super::origin::Origin;
use crate::arch::{Arch, Hparams, names::Idle};
use crate::backend::{Backend, Prepared};
use crate::convert::{self, Folder, Making, TokenizerFiles, Workshop};
use crate::error::{Count, Error, Progress, Result, backed, share};
use crate::format::{Data, Gguf, Metadata, TensorInfo};
use crate::grammar::{self, Grammar};
use crate::plan::Program;
use crate::quant::DType;
use crate::text::chat::{ChatOptions, StandIns};
use crate::text::reply::{CallOptions, Choice, Start};
use crate::text::{self, Reply, ReplyOptions, Tokenizer};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

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

/// A conversation as a model sees it.
pub struct Prompt {
    /// Its tokens.
    pub tokens: Vec<i32>,
    /// The rendered text, in which names of special tokens are the template's own: characters of such names that messages have are private ones.
    pub text: String,
}

/// Weights on a device, shared by any number of sessions.
pub struct Model {
    context: Arc<Context>,
    arch: Arch,
    hparams: Hparams,
    metadata: Metadata,
    /// What the metadata lacks of the tokenizer, where that comes from the files of a folder.
    described: Option<Metadata>,
    /// The tensors of the file, or of the file that a folder is presented as.
    tensors: Vec<TensorInfo>,
    /// How it was loaded.
    origin: Origin,
    tokenizer: Option<Arc<Tokenizer>>,
    /// The tokens as grammars see them, from the first grammar on.
    vocabulary: Mutex<Option<Arc<grammar::Vocabulary>>>,
    program: Arc<Program>,
    backend: Arc<dyn Backend>,
    prepared: Arc<dyn Prepared>,
    /// What guesses a token further ahead.
    predictor: OrReason<Predictor>,
    /// Bytes of weights that lie in a mapped file and are read there.
    mapped: u64,
    /// What tells it from others, from the first saved sequence on.
    fingerprint: OnceLock<u128>,
    /// What it knows of its adapters.
    adapters: Mutex<Vec<Known>>,
}

/// What the memory of weights is for, in messages.
const WEIGHTS: &str = "the weights of the model";

/// How a model is loaded.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Whether files are mapped, or read.
    pub map: bool,
    /// The type that matrices of floats become, if they become another one.
    pub quantize: Option<DType>,
    /// Bytes of a GPU's memory that it may take, with a session of the usual size beside it; 0 for those that are free.
    pub device_memory: u64,
}

/// Opens the file or folder at `path`. A file that is not mapped is read at once, if there is room for it.
pub(super) fn open(context: &Context, path: &Path, options: &Options, progress: &mut Progress) -> Result<Folder> {
    if path.is_dir() {
        return quantized(convert::open(path, options.map, progress)?, options);
    }
    if !options.map {
        context.require_memory(Gguf::bytes_on_disk(path), WEIGHTS)?;
    }
    quantized(Folder::of_file(Gguf::open(path, options.map, progress)?)?, options)
}

/// What is to be made of a file or folder that was opened.
fn quantized(mut folder: Folder, options: &Options) -> Result<Folder> {
    let Some(dtype) = options.quantize else { return Ok(folder) };
    folder.gguf.check_apart(stored_bytes)?;
    match folder.quantize(dtype) {
        Ok(()) => Ok(folder),
        Err(error) => Err(folder.gguf.blamed(error)),
    }
}

/// How far a load has come when a part of it ends: the files are open or read, the tokenizer is built, all pages are in memory. What is
/// left is the device's.
struct Phases {
    files: f32,
    tokenizer: f32,
    pages: f32,
}

const MAPPED: Phases = Phases { files: 0.05, tokenizer: 0.2, pages: 0.7 };
const READ: Phases = Phases { files: 0.6, tokenizer: 0.7, pages: 0.7 };
/// Only the end of a load is 1.
const UPLOADED: f32 = 0.99;
/// The same when the bytes of a file are copied.
const COPIED: f32 = 0.55;

impl Model {
    /// Loads the GGUF file or folder at `path`. `progress` runs on this thread, and hears 1 once, at the end.
    pub fn load(context: &Arc<Context>, path: &Path, options: &Options, progress: &mut Progress) -> Result<Model> {
        let phases = if options.map { MAPPED } else { READ };
        let folder = open(context, path, options, &mut share(progress, 0.0, phases.files))?;
        let origin = Origin::new(path.is_dir(), options.map, options);
        Model::from_folder(context, folder, origin, &phases, progress)
    }

    /// Loads a GGUF file from a copy of its bytes, with progress as above; whether files are mapped does not matter.
    pub fn load_buffer(
        context: &Arc<Context>,
        bytes: &[u8],
        options: &Options,
        progress: &mut Progress,
    ) -> Result<Model> {
        context.require_memory(bytes.len() as u64, WEIGHTS)?;
        let data = Data::copy(bytes, &mut share(progress, 0.0, COPIED))?;
        let gguf = Gguf::parse(data, &mut share(progress, COPIED, READ.files))?;
        let origin = Origin::new(false, false, options);
        let folder = quantized(Folder::of_file(gguf)?, options)?;
        Model::from_folder(context, folder, origin, &READ, progress)
    }

    fn from_folder(
        context: &Arc<Context>,
        folder: Folder,
        origin: Origin,
        phases: &Phases,
        progress: &mut Progress,
    ) -> Result<Model> {
        let mut header = Header::read(&folder)?;
        let Folder { gguf, makings, tokenizer, media, lacking } = folder;
        let announces = lacking.is_some() || header.hparams.predicting_blocks > 0;
        let length = header.hparams.context;
        let Runs { backend, refused, .. } = dividing::choose(context, &header.program, length, origin.device_memory)?;
        refused.map_or(Ok(()), Err)?;
        header.suit(&gguf, &*backend);
        let Header { arch, hparams, mut program, predictor } = header;
        program.idle[Idle::Media as usize] += media;
        let program = Arc::new(program);
        let rows = program.vocab();
        let (tokenizer, described) =
            read_tokenizer(&gguf, tokenizer, rows, &mut share(progress, phases.files, phases.tokenizer))?;
        check_vocabulary(tokenizer.as_ref(), program.vocab()).map_err(|error| gguf.blamed(error))?;
        let made: u64 = makings.iter().map(Making::bytes).sum();
        let in_place = program.weight_bytes().saturating_sub(made);
        let mapped = if origin.is_mapped { backend.weights_on_host(&program)?.min(in_place) } else { 0 };
        context.require_memory(mapped.saturating_add(made), WEIGHTS)?;
        let populated = phases.tokenizer + (phases.pages - phases.tokenizer) * if made == 0 { 1.0 } else { 0.4 };
        gguf.populate(&mut share(progress, phases.tokenizer, populated))?;
        let encode = |dtype, values: &[f32], out: &mut [u8]| context.kernels().encode(dtype, values, out);
        let workshop = Workshop { threads: context.load_threads(), encode: &encode };
        convert::run(&makings, &workshop, &mut share(progress, populated, phases.pages))?;
        let prepared = backend.prepare(Arc::clone(&program), &mut share(progress, phases.pages, UPLOADED))?;
        let predictor = match predictor {
            Ok(own) => Ok(Predictor::new(own, &program, hparams.layers, &*backend)?),
            Err(reason) => Err(reason),
        };
        let (metadata, tensors) = kept(gguf)?;
        let (context, tokenizer) = (Arc::clone(context), tokenizer.map(Arc::new));
        let model = Model {
            context,
            arch,
            hparams,
            metadata,
            described,
            tensors,
            origin,
            tokenizer,
            vocabulary: Mutex::new(None),
            program,
            backend,
            prepared,
            predictor,
            mapped,
            fingerprint: OnceLock::new(),
            adapters: Mutex::new(Vec::new()),
        };
        progress(1.0)?;
        model.log_summary(announces);
        Ok(model)
    }

    /// Logs what it is, and where it or its configuration `announces` a predictor what became of that.
    fn log_summary(&self, announces: bool) {
        let (arch, layers) = (self.arch.name, Count(self.hparams.layers, "layer"));
        let vocab = self.program.vocab();
        let mib = self.program.weight_bytes() >> 20;
        self.context.log(LogLevel::Info, format_args!("model: {arch}, {layers}, vocabulary {vocab}, {mib} MiB"));
        for kind in Idle::ALL.into_iter().filter(|&kind| self.program.idle[kind as usize] > 0) {
            let (count, what) = (Count(self.program.idle[kind as usize], "tensor"), kind.description());
            self.context.log(LogLevel::Info, format_args!("{count} of the file not used: {what}"));
        }
        match &self.predictor {
            Ok(_) => self.context.log(LogLevel::Info, format_args!("the model predicts a further token (MTP)")),
            Err(reason) if announces => {
                self.context.log(LogLevel::Info, format_args!("no speculation by the model itself (MTP): {reason}"));
            }
            Err(_) => {}
        }
        if self.tokenizer.as_ref().is_some_and(|tokenizer| !tokenizer.names_words()) {
            let warning = "the file has no tokenizer.ggml.pre: text is cut into words by the pre-tokenizer `default`, which may not be \
                           the model's; convert the model anew if its answers are poor";
            self.context.log(LogLevel::Warn, format_args!("{warning}"));
        }
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

    /// What the metadata lacks of the tokenizer, where that comes from the files of a folder.
    pub(super) fn described(&self) -> Option<&Metadata> {
        self.described.as_ref()
    }

    /// Where its fingerprint is kept.
    pub(super) fn known_fingerprint(&self) -> &OnceLock<u128> {
        &self.fingerprint
    }

    /// What it knows of its adapters.
    pub(super) fn adapters(&self) -> MutexGuard<'_, Vec<Known>> {
        self.adapters.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The tensors of its file.
    pub(super) fn tensors(&self) -> &[TensorInfo] {
        &self.tensors
    }

    /// Where it comes from.
    pub(super) fn origin(&self) -> Origin {
        self.origin
    }

    /// Its forward pass.
    pub fn program(&self) -> &Program {
        &self.program
    }

    /// The same, for those that outlive the model.
    pub(super) fn shared_program(&self) -> Arc<Program> {
        Arc::clone(&self.program)
    }

    /// The device that runs it.
    pub(super) fn backend(&self) -> &dyn Backend {
        &*self.backend
    }

    /// The program on its device.
    pub fn prepared(&self) -> &Arc<dyn Prepared> {
        &self.prepared
    }

    /// What guesses a token further ahead, or why nothing does.
    pub(super) fn predictor(&self) -> std::result::Result<&Predictor, &str> {
        self.predictor.as_ref().map_err(String::as_str)
    }

    /// Bytes of its weights that lie in a mapped file and are read there: memory that its sessions need, and that others may have used meanwhile.
    pub(super) fn mapped(&self) -> u64 {
        self.mapped
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

    /// Compiles a grammar for its tokens. The first one waits until the tokens are in order for that.
    pub fn compile(&self, form: &grammar::Form) -> Result<Grammar> {
        Grammar::compile(&self.vocabulary_of_grammars()?, form)
    }

    /// Compiles a grammar of what replies may hold that call tools, and gives the token behind which it begins, if it does not begin at once.
    /// They are read as [`Model::open_reply`] says.
    pub fn compile_calls(
        &self,
        chat: &Chat,
        format: Option<&str>,
        prompt: Option<&str>,
        (choice, parallel): (Choice, bool),
    ) -> Result<(Grammar, Option<i32>)> {
        let (vocabulary, tokenizer) = (self.vocabulary_of_grammars()?, self.tokenizer()?);
        self.with_reply(chat, format, prompt, |reply| {
            Grammar::of_calls(&vocabulary, tokenizer, &CallOptions { reply, choice, parallel })
        })
    }

    /// Where in its format a reply begins, which is read as [`Model::open_reply`] says.
    pub fn reply_start(&self, chat: &Chat, format: Option<&str>, prompt: Option<&str>) -> Result<Start> {
        self.with_reply(chat, format, prompt, |reply| reply.start())
    }

    /// Its tokens as grammars see them.
    fn vocabulary_of_grammars(&self) -> Result<Arc<grammar::Vocabulary>> {
        let tokenizer = self.tokenizer()?;
        let mut vocabulary = self.vocabulary.lock().unwrap_or_else(PoisonError::into_inner);
        let made = vocabulary.take().map_or_else(|| grammar::Vocabulary::of(tokenizer).map(Arc::new), Ok)?;
        Ok(Arc::clone(vocabulary.insert(made)))
    }

    /// Whether `grammar` was compiled for its tokens.
    pub(super) fn made(&self, grammar: &Grammar) -> bool {
        let vocabulary = self.vocabulary.lock().unwrap_or_else(PoisonError::into_inner);
        vocabulary.as_ref().is_some_and(|vocabulary| Arc::ptr_eq(vocabulary, grammar.vocabulary()))
    }

    /// The tokens that end generation by the rules of the vocabulary.
    pub fn eog_tokens(&self) -> &[i32] {
        self.tokenizer.as_ref().map_or(&[], |tokenizer| tokenizer.eog_tokens())
    }

    /// Renders a conversation, an array of messages as JSON, with the model's chat template or that of `chat`.
    pub fn render_chat(&self, messages_json: &[u8], chat: &Chat) -> Result<String> {
        self.render_with(messages_json, chat, None)
    }

    /// A conversation, rendered likewise, as tokens, in which texts of messages never become special tokens.
    pub fn tokenize_chat(&self, messages_json: &[u8], chat: &Chat) -> Result<Prompt> {
        let tokenizer = self.tokenizer()?;
        let text = |json: Option<&'_ [u8]>| String::from_utf8_lossy(json.unwrap_or_default()).into_owned();
        let bytes = [Some(messages_json), chat.tools_json, chat.vars_json]
            .into_iter()
            .flatten()
            .map(<[u8]>::len)
            .sum::<usize>();
        let _backing = backed(bytes.saturating_mul(4), "a chat template")?;
        let texts = [text(Some(messages_json)), text(chat.tools_json), text(chat.vars_json)];
        let template = self.template(chat)?.unwrap_or_default();
        let stand_ins = StandIns::new(tokenizer.marks(), &[&texts[0], &texts[1], &texts[2], template])?;
        let text = self.render_with(messages_json, chat, Some(&stand_ins))?;
        Ok(Prompt { tokens: tokenizer.encode_rendered(&text, &stand_ins)?, text })
    }

    fn render_with(&self, messages_json: &[u8], chat: &Chat, stand_ins: Option<&StandIns>) -> Result<String> {
        let (bos, eos) = (self.token_text(Tokenizer::bos)?, self.token_text(Tokenizer::eos)?);
        let options = ChatOptions {
            add_generation_prompt: chat.add_generation_prompt,
            tools_json: chat.tools_json,
            vars_json: chat.vars_json,
            now: chat.now,
            bos: &bos,
            eos: &eos,
            stand_ins,
            ..ChatOptions::default()
        };
        let template = self.template(chat)?.ok_or_else(|| Error::NotFound("the model has no chat template".into()))?;
        text::chat::render(template, messages_json, &options)
    }

    /// The chat template that `chat` asks for.
    pub(super) fn template<'a>(&'a self, chat: &Chat<'a>) -> Result<Option<&'a str>> {
        if chat.template.is_some() { Ok(chat.template) } else { self.metadata.text("tokenizer.chat_template") }
    }

    /// Reads replies in the format called `format`, or in that of the template that `chat` asks for. They follow `prompt`, or else what the template
    /// makes of one short message. `stops` are texts that end the content of one.
    pub fn open_reply(
        &self,
        chat: &Chat,
        format: Option<&str>,
        prompt: Option<&str>,
        stops: Vec<Vec<u8>>,
    ) -> Result<Reply> {
        self.with_reply(chat, format, prompt, |options| Reply::new(Arc::clone(self.tokenizer()?), &options, stops))
    }

    /// How a reply is read, for `body`.
    fn with_reply<T>(
        &self,
        chat: &Chat,
        format: Option<&str>,
        prompt: Option<&str>,
        body: impl FnOnce(ReplyOptions) -> Result<T>,
    ) -> Result<T> {
        let template = self.template(chat)?;
        let made = match (prompt, template) {
            (None, Some(_)) => {
                let chat = Chat { add_generation_prompt: true, ..*chat };
                self.render_chat(br#"[{"role":"user","content":"?"}]"#, &chat)?
            }
            _ => String::new(),
        };
        body(ReplyOptions {
            format,
            template: template.unwrap_or_default(),
            prompt: prompt.unwrap_or(&made),
            tools_json: chat.tools_json,
            calls_before: 0,
        })
    }

    /// Name of one of the tokenizer's tokens, "" when there is none.
    fn token_text(&self, find: fn(&Tokenizer) -> Option<i32>) -> Result<String> {
        let token = self.tokenizer.as_ref().and_then(|tokenizer| Some((tokenizer, find(tokenizer)?)));
        token.map_or(Ok(String::new()), |(tokenizer, token)| tokenizer.name(token))
    }
}

/// What a model keeps of its file: tensors that are used as copies must not keep all of a file in memory that was read.
fn kept(gguf: Gguf) -> Result<(Metadata, Vec<TensorInfo>)> {
    let (metadata, mut tensors) = gguf.into_contents();
    for tensor in tensors.iter_mut().filter(|tensor| tensor.dims.len() == 1) {
        if let Some(len) = stored_bytes(tensor).and_then(|len| usize::try_from(len).ok()) {
            tensor.detach(len)?;
        }
    }
    Ok((metadata, tensors))
}

/// A tokenizer, and what is known of it that stands in no metadata.
type Read = (Option<Tokenizer>, Option<Metadata>);

/// The tokenizer by the files of a folder, or by the metadata of a file. The embedding has `rows` rows.
fn read_tokenizer(gguf: &Gguf, files: Option<TokenizerFiles>, rows: usize, progress: &mut Progress) -> Result<Read> {
    let Some(TokenizerFiles { tokenizer, config, ends }) = files else {
        let tokenizer = Tokenizer::read(gguf.metadata(), progress).map_err(|error| gguf.blamed(error))?;
        return Ok((tokenizer, None));
    };
    let files = text::tokenizer::json::Files { tokenizer: &tokenizer, config: config.as_ref(), ends: &ends };
    let (tokenizer, described) = Tokenizer::from_json(&files, rows, progress)?;
    Ok((Some(tokenizer), Some(described)))
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
