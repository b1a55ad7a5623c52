//! The memory behind the pages of one session. Values lie as [`Layout`] says; the keys of a head's run lie across, element 0 of every
//! position first, so that attention has a key in each lane and adds no lanes up.

use super::attention::MAX_HEAD_DIM;
use super::simd::{Kernels, KvRun};
use crate::backend::{KvType, Limits};
use crate::error::{Error, Result, filled};
use crate::kv::{Layout, PAGE_TOKENS, Side};
use half::f16;
use std::ops::Range;

/// Keys and values of all pages.
pub struct Cache {
    elements: Elements,
    layout: Layout,
    page_elements: usize,
}

enum Elements {
    F16(Vec<f16>),
    F32(Vec<f32>),
}

/// Bytes of a cache for `limits`.
pub fn bytes(layout: &Layout, limits: &Limits) -> Result<u64> {
    Ok((elements(layout, limits)? as u64).saturating_mul(element_bytes(limits.kv_type)))
}

fn element_bytes(kv_type: KvType) -> u64 {
    match kv_type {
        KvType::F16 => 2,
        KvType::F32 => 4,
    }
}

fn elements(layout: &Layout, limits: &Limits) -> Result<usize> {
    let count = layout.page_elements().and_then(|page| page.checked_mul(limits.pages));
    count.ok_or_else(|| Error::out_of_memory("the kv cache", usize::MAX))
}

impl Cache {
    /// A zeroed cache. Every page is touched, so that no step waits for the system to provide memory.
    pub fn new(layout: Layout, limits: &Limits) -> Result<Cache> {
        let count = elements(&layout, limits)?;
        let elements = match limits.kv_type {
            KvType::F16 => Elements::F16(filled(count, f16::ZERO, "the kv cache")?),
            KvType::F32 => Elements::F32(filled(count, 0.0, "the kv cache")?),
        };
        Ok(Cache { elements, layout, page_elements: count / limits.pages.max(1) })
    }

    /// All keys of a head's run in `page`: element 0 of every position, then element 1.
    pub fn keys(&self, page: u32, layer: usize, head: usize) -> KvRun<'_> {
        self.run(self.start(page, layer, Side::Keys, head), PAGE_TOKENS)
    }

    /// The values of a head at some positions of `page`, one after the other.
    pub fn values(&self, page: u32, layer: usize, head: usize, slots: Range<usize>) -> KvRun<'_> {
        debug_assert!(slots.end <= PAGE_TOKENS);
        let start = self.start(page, layer, Side::Values, head) + slots.start * self.layout.head_dim;
        self.run(start, slots.len())
    }

    fn start(&self, page: u32, layer: usize, side: Side, head: usize) -> usize {
        page as usize * self.page_elements + self.layout.run(layer, side, head)
    }

    fn run(&self, start: usize, count: usize) -> KvRun<'_> {
        let range = start..start + count * self.layout.head_dim;
        match &self.elements {
            Elements::F16(values) => KvRun::F16(&values[range]),
            Elements::F32(values) => KvRun::F32(&values[range]),
        }
    }

    /// Writes one token's keys or values, all heads one after the other, at `slot` of `page`.
    pub fn store(&mut self, page: u32, layer: usize, side: Side, slot: usize, heads: &[f32], kernels: &Kernels) {
        let head_dim = self.layout.head_dim;
        for (head, values) in heads.chunks_exact(head_dim).enumerate() {
            let start = self.start(page, layer, side, head);
            let range = start..start + PAGE_TOKENS * head_dim;
            match &mut self.elements {
                Elements::F16(cache) => {
                    let mut halves = [f16::ZERO; MAX_HEAD_DIM];
                    kernels.to_f16(values, &mut halves[..head_dim]);
                    place(&halves[..head_dim], side, slot, &mut cache[range]);
                }
                Elements::F32(cache) => place(values, side, slot, &mut cache[range]),
            }
        }
    }

    /// Copies one page over another.
    pub fn copy_page(&mut self, from: u32, to: u32) {
        let source = from as usize * self.page_elements..(from as usize + 1) * self.page_elements;
        let target = to as usize * self.page_elements;
        match &mut self.elements {
            Elements::F16(values) => values.copy_within(source, target),
            Elements::F32(values) => values.copy_within(source, target),
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
