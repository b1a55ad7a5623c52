//! The memory behind the pages of one session: a store for the layers that see everything, and one for those that see a window where that is
//! smaller. Values lie as [`Layout`] says; the keys of a head's run lie across, element 0 of every
//! position first, so that attention has a key in each lane and adds no lanes up.

use super::attention::MAX_HEAD_DIM;
use super::simd::{Kernels, KvRun};
use crate::backend::{KvType, Limits};
use crate::error::{Error, Result, filled};
use crate::kv::{Layout, PAGE_TOKENS, Reach, Side, Stores, q8};
use crate::plan::Program;
use half::f16;
use std::ops::Range;

/// Keys and values of all layers.
pub struct Cache {
    whole: Store,
    windows: Store,
    layers: Stores,
}

/// Keys and values of some layers, of all pages.
struct Store {
    elements: Elements,
    layout: Layout,
    page_elements: usize,
}

enum Elements {
    F16(Vec<f16>),
    F32(Vec<f32>),
    /// The bytes of heads, each as an element: those of keys lie across like floats, scales included.
    Q8(Vec<u8>),
}

/// Bytes of a cache of `program` for `limits`.
pub fn bytes(program: &Program, limits: &Limits) -> Result<u64> {
    let stores = limits.stores(program)?;
    let count = |reach| elements(stores.layout(reach), limits.own_pages(program, reach));
    let elements = count(Reach::Whole)? as u64 + count(Reach::Window)? as u64;
    Ok(elements.saturating_mul(limits.kv_type.bytes() as u64))
}

fn elements(layout: &Layout, pages: usize) -> Result<usize> {
    let count = layout.page_elements().and_then(|page| page.checked_mul(pages));
    count.ok_or_else(|| Error::out_of_memory("the kv cache", usize::MAX))
}

impl Cache {
    /// A zeroed cache for `program`. Every page is touched, so that no step waits for the system to provide memory.
    pub fn new(program: &Program, limits: &Limits) -> Result<Cache> {
        Cache::of_layers(limits.stores(program)?, limits.kv_type, |reach| limits.own_pages(program, reach))
    }

    /// The same for the layers in `stores`, with so many pages for each reach.
    pub fn of_layers(layers: Stores, kv_type: KvType, pages: impl Fn(Reach) -> usize) -> Result<Cache> {
        let store = |reach| Store::new(layers.layout(reach).clone(), pages(reach), kv_type);
        Ok(Cache { whole: store(Reach::Whole)?, windows: store(Reach::Window)?, layers })
    }

    /// Whether heads are rotated as they are stored ([`q8`]).
    pub fn rotates(&self) -> bool {
        matches!(self.whole.elements, Elements::Q8(_))
    }

    /// How far back the pages of `layer` reach.
    pub fn reach(&self, layer: usize) -> Reach {
        self.layers.place(layer).0
    }

    /// The store of a layer, and its number there.
    fn place(&self, layer: usize) -> (&Store, usize) {
        let (reach, number) = self.layers.place(layer);
        match reach {
            Reach::Whole => (&self.whole, number),
            Reach::Window => (&self.windows, number),
        }
    }

    fn store_mut(&mut self, reach: Reach) -> &mut Store {
        match reach {
            Reach::Whole => &mut self.whole,
            Reach::Window => &mut self.windows,
        }
    }

    /// All keys of a head's run in `page`: element 0 of every position, then element 1.
    pub fn keys(&self, page: u32, layer: usize, head: usize) -> KvRun<'_> {
        let (store, layer) = self.place(layer);
        store.run(store.start(page, layer, Side::Keys, head), PAGE_TOKENS * store.layout.of(layer).head_dim)
    }

    /// The values of a head at some positions of `page`, one after the other.
    pub fn values(&self, page: u32, layer: usize, head: usize, slots: Range<usize>) -> KvRun<'_> {
        debug_assert!(slots.end <= PAGE_TOKENS);
        let (store, layer) = self.place(layer);
        let dim = store.layout.of(layer).value_dim;
        store.run(store.start(page, layer, Side::Values, head) + slots.start * dim, slots.len() * dim)
    }

    /// Writes one token's keys or values, all heads one after the other, at `slot` of `page`.
    pub fn store(&mut self, page: u32, layer: usize, side: Side, slot: usize, heads: &[f32], kernels: &Kernels) {
        let (reach, number) = self.layers.place(layer);
        self.store_mut(reach).write(page, number, side, slot, heads, kernels);
    }

    /// Copies one page of a store over another.
    pub fn copy_page(&mut self, reach: Reach, from: u32, to: u32) {
        self.store_mut(reach).copy_page(from, to);
    }

    /// Gives out a page of a store, with the keys of a head one after the other as its values are.
    pub fn read_page(&self, reach: Reach, page: u32, out: &mut [u8]) {
        match reach {
            Reach::Whole => self.whole.read_page(page, out),
            Reach::Window => self.windows.read_page(page, out),
        }
    }

    /// Takes in a page of a store, in the same order.
    pub fn write_page(&mut self, reach: Reach, page: u32, bytes: &[u8]) {
        self.store_mut(reach).write_page(page, bytes);
    }
}

impl Store {
    fn new(layout: Layout, pages: usize, kv_type: KvType) -> Result<Store> {
        let count = elements(&layout, pages)?;
        let elements = match kv_type {
            KvType::F16 => Elements::F16(filled(count, f16::ZERO, "the kv cache")?),
            KvType::F32 => Elements::F32(filled(count, 0.0, "the kv cache")?),
            KvType::Q8 => Elements::Q8(filled(count, 0, "the kv cache")?),
        };
        Ok(Store { elements, layout, page_elements: count / pages.max(1) })
    }

    fn start(&self, page: u32, layer: usize, side: Side, head: usize) -> usize {
        page as usize * self.page_elements + self.layout.run(layer, side, head)
    }

    fn run(&self, start: usize, count: usize) -> KvRun<'_> {
        let range = start..start + count;
        match &self.elements {
            Elements::F16(values) => KvRun::F16(&values[range]),
            Elements::F32(values) => KvRun::F32(&values[range]),
            Elements::Q8(bytes) => KvRun::Q8(&bytes[range]),
        }
    }

    fn write(&mut self, page: u32, layer: usize, side: Side, slot: usize, heads: &[f32], kernels: &Kernels) {
        let sizes = self.layout.of(layer);
        for (head, values) in heads.chunks_exact(heads.len() / sizes.kv_heads).enumerate() {
            let (start, dim) = (self.start(page, layer, side, head), values.len());
            let range = start..start + PAGE_TOKENS * sizes.dim(side);
            match &mut self.elements {
                Elements::F16(cache) => {
                    let mut halves = [f16::ZERO; MAX_HEAD_DIM];
                    kernels.to_f16(values, &mut halves[..dim]);
                    place(&halves[..dim], side, slot, &mut cache[range]);
                }
                Elements::F32(cache) => place(values, side, slot, &mut cache[range]),
                Elements::Q8(cache) => {
                    let (mut rotated, mut bytes) = ([0.0; MAX_HEAD_DIM], [0; q8::bytes(MAX_HEAD_DIM)]);
                    let (rotated, bytes) = (&mut rotated[..dim], &mut bytes[..q8::bytes(dim)]);
                    rotated.copy_from_slice(values);
                    kernels.rotate(rotated, q8::rotated(dim));
                    kernels.encode_head(rotated, bytes);
                    place(bytes, side, slot, &mut cache[range]);
                }
            }
        }
    }

    fn page(&self, page: u32) -> Range<usize> {
        let start = page as usize * self.page_elements;
        start..start + self.page_elements
    }

    fn read_page(&self, page: u32, out: &mut [u8]) {
        match &self.elements {
            Elements::F16(values) => give_out(&self.layout, &values[self.page(page)], out, f16::to_le_bytes),
            Elements::F32(values) => give_out(&self.layout, &values[self.page(page)], out, f32::to_le_bytes),
            Elements::Q8(bytes) => give_out(&self.layout, &bytes[self.page(page)], out, u8::to_le_bytes),
        }
    }

    fn write_page(&mut self, page: u32, bytes: &[u8]) {
        let range = self.page(page);
        match &mut self.elements {
            Elements::F16(values) => take_in(&self.layout, &mut values[range], bytes, f16::from_le_bytes),
            Elements::F32(values) => take_in(&self.layout, &mut values[range], bytes, f32::from_le_bytes),
            Elements::Q8(cache) => take_in(&self.layout, &mut cache[range], bytes, u8::from_le_bytes),
        }
    }

    fn copy_page(&mut self, from: u32, to: u32) {
        let (source, target) = (self.page(from), self.page(to).start);
        match &mut self.elements {
            Elements::F16(values) => values.copy_within(source, target),
            Elements::F32(values) => values.copy_within(source, target),
            Elements::Q8(bytes) => bytes.copy_within(source, target),
        }
    }
}

/// Writes the key or value of one position into its head's run.
fn place<T: Copy>(values: &[T], side: Side, slot: usize, run: &mut [T]) {
    match side {
        Side::Keys => {
            run[slot..].iter_mut().step_by(PAGE_TOKENS).zip(values).for_each(|(place, value)| *place = *value)
        }
        Side::Values => run[slot * values.len()..][..values.len()].copy_from_slice(values),
    }
}

/// The runs of a page in their order: whose keys or values, and how many elements a position has.
fn runs(layout: &Layout) -> impl Iterator<Item = (Side, usize)> + '_ {
    layout.all().flat_map(|sizes| {
        let of = move |side| std::iter::repeat_n((side, sizes.dim(side)), sizes.kv_heads);
        of(Side::Keys).chain(of(Side::Values))
    })
}

/// Writes the elements of a page as bytes, keys turned so that those of a position stand together.
fn give_out<T: Copy, const N: usize>(layout: &Layout, mut page: &[T], out: &mut [u8], bytes: fn(T) -> [u8; N]) {
    assert_eq!(page.len() * N, out.len());
    let (mut out, _) = out.as_chunks_mut::<N>();
    for (side, dim) in runs(layout) {
        let (run, rest) = page.split_at(dim * PAGE_TOKENS);
        let (places, behind) = std::mem::take(&mut out).split_at_mut(run.len());
        match side {
            Side::Keys => {
                for (slot, key) in places.chunks_exact_mut(dim).enumerate() {
                    key.iter_mut()
                        .zip(run[slot..].iter().step_by(PAGE_TOKENS))
                        .for_each(|(to, &from)| *to = bytes(from));
                }
            }
            Side::Values => places.iter_mut().zip(run).for_each(|(to, &from)| *to = bytes(from)),
        }
        (page, out) = (rest, behind);
    }
}

/// The other way.
fn take_in<T: Copy, const N: usize>(layout: &Layout, mut page: &mut [T], bytes: &[u8], value: fn([u8; N]) -> T) {
    assert_eq!(page.len() * N, bytes.len());
    let (mut bytes, _) = bytes.as_chunks::<N>();
    for (side, dim) in runs(layout) {
        let (run, rest) = std::mem::take(&mut page).split_at_mut(dim * PAGE_TOKENS);
        let (given, behind) = bytes.split_at(run.len());
        match side {
            Side::Keys => {
                for (slot, key) in given.chunks_exact(dim).enumerate() {
                    run[slot..].iter_mut().step_by(PAGE_TOKENS).zip(key).for_each(|(to, &from)| *to = value(from));
                }
            }
            Side::Values => run.iter_mut().zip(given).for_each(|(to, &from)| *to = value(from)),
        }
        (page, bytes) = (rest, behind);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kv::HeadSizes;

    #[test]
    fn a_page_is_copied_whole_and_no_other_is_touched() {
        let layout = Layout::new([HeadSizes::new(2, 1, 4), HeadSizes::new(4, 2, 6)]).unwrap();
        for kv_type in [KvType::F16, KvType::F32, KvType::Q8] {
            let mut cache = Store::new(layout.clone(), 4, kv_type).unwrap();
            // Small whole numbers, which every type holds exactly.
            let number = |index: usize| (index % 251) as f32;
            match &mut cache.elements {
                Elements::F16(all) => all.iter_mut().enumerate().for_each(|(i, x)| *x = f16::from_f32(number(i))),
                Elements::F32(all) => all.iter_mut().enumerate().for_each(|(i, x)| *x = number(i)),
                Elements::Q8(all) => all.iter_mut().enumerate().for_each(|(i, x)| *x = number(i) as u8),
            }
            cache.copy_page(3, 1);
            let found: Vec<f32> = match &cache.elements {
                Elements::F16(all) => all.iter().map(|x| x.to_f32()).collect(),
                Elements::F32(all) => all.clone(),
                Elements::Q8(all) => all.iter().map(|&x| f32::from(x)).collect(),
            };
            let page = cache.page_elements;
            let expected = |index: usize| number(if index / page == 1 { index + 2 * page } else { index });
            assert!(found.iter().enumerate().all(|(index, &value)| value == expected(index)), "{kv_type:?}");
        }
    }
}
