//! The memory behind the pages of one session.

use super::simd::{Kernels, KvRun};
use crate::backend::{KvType, Limits};
use crate::error::{Error, Result, filled};
use crate::kv::{Layout, PAGE_TOKENS, Side};
use half::f16;

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

    /// The first `count` keys or values of a head's run in `page`.
    pub fn run(&self, page: u32, layer: usize, side: Side, head: usize, count: usize) -> KvRun<'_> {
        debug_assert!(count <= PAGE_TOKENS);
        let start = page as usize * self.page_elements + self.layout.run(layer, side, head);
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
            let run = page as usize * self.page_elements + self.layout.run(layer, side, head);
            let range = run + slot * head_dim..run + (slot + 1) * head_dim;
            match &mut self.elements {
                Elements::F16(cache) => kernels.to_f16(values, &mut cache[range]),
                Elements::F32(cache) => cache[range].copy_from_slice(values),
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
