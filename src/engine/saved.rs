//! A sequence outside of its session: its tokens, its keys and values and the way it draws, as bytes that go to a host or come from one.
//!
//! Behind the header stand the adapters that it has ([`super::saved_adapters`]), the sampler's lists, the tokens, the grammar if it follows one, and
//! page by page the keys and values of the layers that see everything, then of those that see a window; of a page that is not full no more than
//! is. Marks and states of layers follow ([`super::saved_states`]). Numbers are little-endian, and the positions of a head stand one after the other,
//! whatever the device keeps (`Layout` has the order). A checksum of all of it stands at the end.

use super::saved_adapters;
use super::saved_grammar::SavedGrammar;
use super::saved_header::{CHECK_BYTES, HEADER_BYTES, Header, bad};
use super::saved_states::{self, SavedStates};
use super::sequence::Sequence;
use super::session::Session;
use crate::error::{Error, Result, filled, reserve};
use crate::format::replace;
use crate::kv::layout::pages_for;
use crate::kv::{HeadSizes, PAGE_TOKENS, Reach, Side};
use crate::os;
use crate::sample;
use std::io::{ErrorKind, Read, Write};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use twox_hash::XxHash3_128;

/// Where bytes go.
pub type Sink<'a> = dyn FnMut(&[u8]) -> Result<()> + 'a;
/// Where bytes come from: fills as much as it can of what it is given, and tells how much; 0 is the end.
pub type Source<'a> = dyn FnMut(&mut [u8]) -> Result<usize> + 'a;

/// What memory is for.
const WHAT: &str = "a saved sequence";
/// Bytes of a list that are brought on their way at once.
const PIECE_BYTES: usize = 1 << 20;
/// Most entries of each of a sampler's lists: more than any vocabulary has tokens.
const MOST_ENTRIES: u32 = 1 << 24;

impl Session {
    /// Gives out all of a sequence that [`Session::restore`] needs. It stays as it is.
    pub fn save(&mut self, id: i32, cancel: &AtomicBool, sink: &mut Sink) -> Result<()> {
        let slot = self.slot(id)?;
        // What was drawn ahead is drawn again, and a grammar must stand behind the tokens that are written.
        self.sequence_mut(slot).forget_ahead();
        self.sequence_mut(slot).constraint.iter_mut().try_for_each(|constraint| constraint.catch_up())?;
        self.settle(slot);
        let sequence = self.sequence(slot);
        let first = self.paging.first(slot);
        let states = SavedStates::of(self, slot)?;
        let header = Header::of(sequence, self.model.fingerprint()?, self.limits.kv_type, first);
        let mut writer = Writer { hash: XxHash3_128::new(), sink };
        writer.put(&states.counted(header).encode())?;
        if !sequence.adapters.is_empty() {
            saved_adapters::write(&sequence.adapters, &self.model, &mut writer)?;
        }
        writer.put_all(&sequence.sampler.bias, |&(token, bias)| {
            (token as u32 as u64 | (bias.to_bits() as u64) << 32).to_le_bytes()
        })?;
        writer.put_all(&sequence.sampler.stop_tokens, |token| token.to_le_bytes())?;
        writer.put_all(&sequence.tokens, |token| token.to_le_bytes())?;
        sequence.constraint.iter().try_for_each(|constraint| SavedGrammar::write(constraint, &mut writer))?;
        let evaluated = sequence.evaluated;
        let mut pages = Pages::new(self, evaluated, first)?;
        for page in 0..pages_for(evaluated) {
            if cancel.load(Ordering::Relaxed) {
                return Err(Error::Cancelled);
            }
            pages.fetch(self, slot, page)?;
            writer.put(pages.gather(page))?;
        }
        states.write(self, cancel, &mut writer)?;
        let check = writer.hash.finish_128();
        (writer.sink)(&check.to_le_bytes())
    }

    /// Opens a sequence that [`Session::save`] has given out, of a session of the same model and type of cache. It goes on as it would have gone on
    /// there, or draws by `sampler`. When anything is wrong there is no sequence.
    pub fn restore(
        &mut self,
        sampler: Option<sample::Options>,
        cancel: &AtomicBool,
        source: &mut Source,
    ) -> Result<i32> {
        let (slot, id) = (self.free_slot()?, self.next_id()?);
        let mut reader = Reader { hash: XxHash3_128::new(), source, bytes: 0 };
        let mut bytes = [0; HEADER_BYTES];
        reader.fill(&mut bytes)?;
        let mut header = Header::decode(bytes)?;
        self.check(&header)?;
        let adapters = if header.has_adapters { saved_adapters::read(&self.model, &mut reader)? } else { Vec::new() };
        let mut sequence = self.read_sequence(id, &mut header, sampler, &mut reader)?;
        let grammar =
            if header.has_grammar { Some(SavedGrammar::read(sequence.tokens.len(), &mut reader)?) } else { None };
        let result = self.adapt(slot, &adapters).and_then(|()| {
            let evaluated = self.read_pages(slot, &header, cancel, &mut reader)?;
            // Only what the checksum has approved is compiled.
            let walk = grammar.map(|grammar| grammar.resume(&self.model, &sequence.tokens, cancel)).transpose()?;
            (sequence.evaluated, sequence.constraint) = (evaluated, walk.map(Box::new));
            sequence.adapters = adapters;
            if let Some(states) = &self.states {
                sequence.go_back(states.length(slot), self.most_drafts);
            }
            Ok(())
        });
        if let Err(error) = result {
            self.paging.shrink(slot, 0);
            self.states.iter_mut().for_each(|states| states.clear(slot));
            self.drop_adapters(slot);
            return Err(error);
        }
        self.occupy(slot, sequence);
        Ok(id)
    }

    /// Writes a sequence to the file at `path`, which appears, or takes the place of another, when it is whole.
    pub fn save_file(&mut self, id: i32, path: &Path, cancel: &AtomicBool) -> Result<()> {
        // Before there is a file.
        self.slot(id)?;
        replace(path, &mut |_| Ok(()), |file, refused, _| {
            self.save(id, cancel, &mut |bytes| file.write_all(bytes).map_err(refused))
        })
    }

    /// Opens the sequence that the file at `path` holds, and nothing else.
    pub fn restore_file(&mut self, path: &Path, sampler: Option<sample::Options>, cancel: &AtomicBool) -> Result<i32> {
        let refused = |source| Error::Io { path: path.display().to_string(), source };
        let mut file = os::open(path).map_err(refused)?;
        let id = self.restore(sampler, cancel, &mut |bytes| loop {
            match file.read(bytes) {
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                read => break read.map_err(refused),
            }
        })?;
        if file.read(&mut [0]).map_err(refused)? > 0 {
            self.close(id)?;
            return Err(bad("the file goes on behind its end"));
        }
        Ok(id)
    }

    /// Refuses what is of another model or cache, and numbers that cannot be.
    fn check(&self, header: &Header) -> Result<()> {
        if header.model != self.model.fingerprint()? {
            return Err(Error::InvalidArgument("this saved sequence is of another model".into()));
        }
        if header.kv_type != self.limits.kv_type {
            let (saved, here) = (header.kv_type, self.limits.kv_type);
            let problem = format!("this saved sequence has a cache of {saved:?}, this session one of {here:?}");
            return Err(Error::InvalidArgument(problem));
        }
        let context = self.model.hparams().context;
        if header.tokens > context as u64 {
            return Err(bad(&format!("it has {} tokens, the model's context holds {context}", header.tokens)));
        }
        if header.evaluated > header.tokens || header.first > pages_for(header.evaluated as usize) as u64 {
            return Err(bad("it has more keys than tokens"));
        }
        if header.first > 0 && self.model.program().window().is_none() {
            return Err(bad("it lacks keys of layers that see everything"));
        }
        saved_states::check(self, header)?;
        if header.biases > MOST_ENTRIES || header.stops > MOST_ENTRIES {
            return Err(bad("the lists of its sampler are too long"));
        }
        Ok(())
    }

    /// The lists and the tokens.
    fn read_sequence(
        &self,
        id: i32,
        header: &mut Header,
        sampler: Option<sample::Options>,
        reader: &mut Reader,
    ) -> Result<Sequence> {
        let bias = reader.take_all(header.biases as usize, |bytes: [u8; 8]| {
            let pair = u64::from_le_bytes(bytes);
            (pair as u32 as i32, f32::from_bits((pair >> 32) as u32))
        })?;
        let stop_tokens = reader.take_all(header.stops as usize, i32::from_le_bytes)?;
        let tokens = reader.take_all(header.tokens as usize, i32::from_le_bytes)?;
        let (vocab, given) = (self.model.vocab(), sampler.is_some());
        if tokens.iter().any(|&token| token < 0 || token as usize >= vocab) {
            return Err(bad("it has a token that is not in the vocabulary"));
        }
        let saved = sample::Options { bias, stop_tokens, ..header.sampler.copied()? };
        saved.validate(vocab).map_err(|error| bad(&format!("its sampler's {error}")))?;
        let sampler = sampler.unwrap_or(saved);
        sampler.validate(vocab)?;
        let mut sequence = self.new_sequence(id, self.history.max(tokens.len() + 1), sample::Options::defaults())?;
        match given {
            true => sequence.set_sampler(sampler),
            false => sequence.resume_sampler(sampler, header.random_seed),
        }
        sequence.tokens.extend_from_slice(&tokens);
        Ok(sequence)
    }

    /// Takes pages for the slot and fills them; how many positions they hold, which are none where the session's layers with a window see further
    /// back than what was saved. On failure pages may be taken.
    fn read_pages(&mut self, slot: usize, header: &Header, cancel: &AtomicBool, reader: &mut Reader) -> Result<usize> {
        let (evaluated, first) = (header.evaluated as usize, header.first as usize);
        let mut pages = Pages::new(self, evaluated, first)?;
        let kept = self.paging.place(slot, evaluated, first).map_err(|needed| self.kv_full(needed))?;
        // The first token that is evaluated next: the last one is, where the queue is empty.
        let next = if header.evaluated < header.tokens { evaluated } else { evaluated.saturating_sub(1) };
        let lacks_windows = first > 0 && (self.limits.windows.is_none() || !self.paging.reaches(slot, next));
        for page in 0..pages_for(evaluated) {
            if cancel.load(Ordering::Relaxed) {
                return Err(Error::Cancelled);
            }
            reader.fill(pages.chunk(page))?;
            pages.scatter(page);
            pages.store(self, slot, page, kept)?;
        }
        saved_states::read(self, slot, header, cancel, reader)?;
        let found = reader.hash.finish_128();
        let mut check = [0; CHECK_BYTES];
        reader.fill(&mut check)?;
        if check != found.to_le_bytes() {
            return Err(bad("its checksum is wrong"));
        }
        if lacks_windows {
            self.paging.shrink(slot, 0);
            self.states.iter_mut().for_each(|states| states.clear(slot));
            return Ok(0);
        }
        Ok(evaluated)
    }
}

/// A layer's keys and values in a page.
struct Part {
    reach: Reach,
    /// Where they begin, in bytes.
    start: usize,
    /// In elements of the cache.
    sizes: HeadSizes,
}

/// A page on its way: as the device has it, and as it is saved.
struct Pages {
    /// The layers that see everything, and those that see a window.
    parts: [Vec<Part>; 2],
    element: usize,
    /// Positions that are evaluated.
    evaluated: usize,
    /// The first page that layers with a window have.
    first: usize,
    /// The page in the cache of the layers that see so far.
    whole: Vec<u8>,
    window: Vec<u8>,
    saved: Vec<u8>,
}

impl Pages {
    fn new(session: &Session, evaluated: usize, first: usize) -> Result<Pages> {
        let (program, element) = (session.model.program(), session.limits.kv_type.bytes());
        let stores = session.limits.stores(program)?;
        let mut parts = [reserve(program.kv.count(), WHAT)?, reserve(program.kv.count(), WHAT)?];
        for layer in 0..program.kv.count() {
            let sees_window = program.attentions().any(|kind| kind.layer == layer && kind.window.is_some());
            let (reach, number) = stores.place(layer);
            let start = stores.layout(reach).run(number, Side::Keys, 0) * element;
            let sizes = stores.layout(reach).of(number);
            parts[usize::from(sees_window)].push(Part { reach, start, sizes });
        }
        let page = |reach| {
            let bytes = stores.layout(reach).page_elements().and_then(|elements| elements.checked_mul(element));
            filled(bytes.ok_or_else(|| Error::out_of_memory(WHAT, usize::MAX))?, 0u8, WHAT)
        };
        let (whole, window) = (page(Reach::Whole)?, page(Reach::Window)?);
        let saved = filled(whole.len() + window.len(), 0u8, WHAT)?;
        Ok(Pages { parts, element, evaluated, first, whole, window, saved })
    }

    /// Positions of a page that are evaluated.
    fn slots(&self, page: usize) -> usize {
        (self.evaluated - page * PAGE_TOKENS).min(PAGE_TOKENS)
    }

    /// The layers that are saved of a page.
    fn of(parts: &[Vec<Part>; 2], first: usize, page: usize) -> impl Iterator<Item = &Part> {
        let [whole, window] = parts;
        whole.iter().chain(window.iter().filter(move |_| page >= first))
    }

    /// Room for what is saved of a page.
    fn chunk(&mut self, page: usize) -> &mut [u8] {
        let elements = Pages::of(&self.parts, self.first, page).map(|part| part.sizes.position_elements());
        let len = elements.sum::<usize>() * self.slots(page) * self.element;
        &mut self.saved[..len]
    }

    /// Gets a page from the device.
    fn fetch(&mut self, session: &mut Session, slot: usize, page: usize) -> Result<()> {
        for (reach, bytes) in [(Reach::Whole, &mut self.whole), (Reach::Window, &mut self.window)] {
            if !bytes.is_empty() && (reach == Reach::Whole || page >= self.first) {
                session.runner.read_page(reach, session.paging.pages_of(slot, reach)[page], bytes)?;
            }
        }
        Ok(())
    }

    /// Gives a page to the device, in the cache of windows only from the page `kept` on.
    fn store(&self, session: &mut Session, slot: usize, page: usize, kept: usize) -> Result<()> {
        for (reach, bytes) in [(Reach::Whole, &self.whole), (Reach::Window, &self.window)] {
            if !bytes.is_empty() && (reach == Reach::Whole || page >= kept) {
                session.runner.write_page(reach, session.paging.pages_of(slot, reach)[page], bytes)?;
            }
        }
        Ok(())
    }

    /// What is saved of the page that was fetched.
    fn gather(&mut self, page: usize) -> &[u8] {
        let (slots, element, mut at) = (self.slots(page), self.element, 0);
        for part in Pages::of(&self.parts, self.first, page) {
            let from = if part.reach == Reach::Whole { &self.whole } else { &self.window };
            for (run, bytes) in runs(part, slots, element) {
                self.saved[at..][..bytes].copy_from_slice(&from[run..][..bytes]);
                at += bytes;
            }
        }
        &self.saved[..at]
    }

    /// Puts what is saved of a page where the device wants it, zeros for positions that are not evaluated.
    fn scatter(&mut self, page: usize) {
        let (slots, element, mut at) = (self.slots(page), self.element, 0);
        if slots < PAGE_TOKENS || page < self.first {
            self.whole.fill(0);
            self.window.fill(0);
        }
        for part in Pages::of(&self.parts, self.first, page) {
            let to = if part.reach == Reach::Whole { &mut self.whole } else { &mut self.window };
            for (run, bytes) in runs(part, slots, element) {
                to[run..][..bytes].copy_from_slice(&self.saved[at..][..bytes]);
                at += bytes;
            }
        }
    }
}

/// Where the first `slots` positions of each head's keys and values begin in a page, and their bytes.
fn runs(part: &Part, slots: usize, element: usize) -> impl Iterator<Item = (usize, usize)> {
    let HeadSizes { kv_heads, head_dim, value_dim, .. } = part.sizes;
    let (start, values) = (part.start, kv_heads * head_dim * PAGE_TOKENS * element);
    let run = move |first: usize, dim: usize| {
        (0..kv_heads).map(move |head| (first + head * dim * PAGE_TOKENS * element, slots * dim * element))
    };
    run(start, head_dim).chain(run(start + values, value_dim))
}

/// Bytes on their way out, and the checksum of those that have gone.
pub struct Writer<'a, 's> {
    hash: XxHash3_128,
    sink: &'a mut Sink<'s>,
}

impl Writer<'_, '_> {
    /// Gives out some bytes.
    pub fn put(&mut self, bytes: &[u8]) -> Result<()> {
        self.hash.write(bytes);
        if bytes.is_empty() { Ok(()) } else { (self.sink)(bytes) }
    }

    /// Gives out values, each as `bytes` has it.
    pub fn put_all<T, const N: usize>(&mut self, values: &[T], bytes: impl Fn(&T) -> [u8; N]) -> Result<()> {
        let mut piece = reserve(values.len().saturating_mul(N).min(PIECE_BYTES), WHAT)?;
        for values in values.chunks(PIECE_BYTES / N) {
            piece.clear();
            values.iter().for_each(|value| piece.extend_from_slice(&bytes(value)));
            self.put(&piece)?;
        }
        Ok(())
    }
}

/// Bytes on their way in, and the checksum of those that have come.
pub struct Reader<'a, 's> {
    hash: XxHash3_128,
    source: &'a mut Source<'s>,
    bytes: u64,
}

impl Reader<'_, '_> {
    /// Fills `out`.
    pub fn fill(&mut self, out: &mut [u8]) -> Result<()> {
        let mut at = 0;
        while at < out.len() {
            match (self.source)(&mut out[at..])? {
                0 => return Err(bad(&format!("it ends after {} bytes", self.bytes + at as u64))),
                count => at += count,
            }
        }
        self.bytes += at as u64;
        self.hash.write(out);
        Ok(())
    }

    /// `count` values; memory is taken as they come.
    pub fn take_all<T: Clone, const N: usize>(&mut self, count: usize, value: impl Fn([u8; N]) -> T) -> Result<Vec<T>> {
        let mut values = Vec::new();
        let mut piece = filled(count.saturating_mul(N).min(PIECE_BYTES / N * N), 0u8, WHAT)?;
        while values.len() < count {
            let wanted = (count - values.len()).min(PIECE_BYTES / N);
            self.fill(&mut piece[..wanted * N])?;
            crate::error::grow(&mut values, wanted, WHAT)?;
            values.extend(piece[..wanted * N].as_chunks::<N>().0.iter().map(|&bytes| value(bytes)));
        }
        Ok(values)
    }
}
