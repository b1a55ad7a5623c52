//! How a page of a cache of 8 bits lies on the device: of a head's run the multiples of its positions come first, one position after the other, then
//! the scales, those of a block for all positions after those of the block before, so that kernels copy either in whole lines. Outside of the device
//! the scales of each head stand behind its multiples ([`q8`]). Pages of floats are the same everywhere.

use super::sizes::Sizes;
use crate::backend::KvType;
use crate::error::{Result, filled};
use crate::kv::{Layout, PAGE_TOKENS, Reach, q8};
use std::borrow::Cow;
use std::iter::repeat_n;

/// Bytes of a scale.
const SCALE: usize = 2;

/// Turns a page that came from the device into the form that it has elsewhere.
pub fn from_device(sizes: &Sizes, reach: Reach, page: &mut [u8]) -> Result<()> {
    if sizes.kv_type != KvType::Q8 {
        return Ok(());
    }
    let layout = sizes.stores.layout(reach);
    let longest = runs(layout).map(run_bytes).max().unwrap_or(0);
    let mut copy = filled(longest, 0, "a page of the kv cache")?;
    let mut rest = page;
    for dim in runs(layout) {
        let (run, behind) = std::mem::take(&mut rest).split_at_mut(run_bytes(dim));
        copy[..run.len()].copy_from_slice(run);
        head_by_head(&copy[..run.len()], dim, run);
        rest = behind;
    }
    Ok(())
}

/// The form that a page has on the device.
pub fn to_device<'a>(sizes: &Sizes, reach: Reach, page: &'a [u8]) -> Result<Cow<'a, [u8]>> {
    if sizes.kv_type != KvType::Q8 {
        return Ok(Cow::Borrowed(page));
    }
    let mut out = filled(page.len(), 0, "a page of the kv cache")?;
    let (mut from, mut to) = (page, &mut out[..]);
    for dim in runs(sizes.stores.layout(reach)) {
        let (run, behind) = from.split_at(run_bytes(dim));
        let (place, places) = std::mem::take(&mut to).split_at_mut(run.len());
        scales_last(run, dim, place);
        (from, to) = (behind, places);
    }
    Ok(Cow::Owned(out))
}

/// The elements of a head of each run of a page, in the order of the runs.
fn runs(layout: &Layout) -> impl Iterator<Item = usize> + '_ {
    layout.all().flat_map(|sizes| {
        let of = |bytes| repeat_n(q8::elements(bytes), sizes.kv_heads);
        of(sizes.head_dim).chain(of(sizes.value_dim))
    })
}

fn run_bytes(dim: usize) -> usize {
    PAGE_TOKENS * q8::bytes(dim)
}

/// Where the scale of a block is among those of a run on the device.
fn scale_at(block: usize, slot: usize) -> usize {
    SCALE * (block * PAGE_TOKENS + slot)
}

/// A run as the device has it, with the scales of each head behind its multiples.
fn head_by_head(run: &[u8], dim: usize, out: &mut [u8]) {
    let (multiples, scales) = run.split_at(PAGE_TOKENS * dim);
    for (slot, head) in out.chunks_exact_mut(q8::bytes(dim)).enumerate() {
        let (own, own_scales) = head.split_at_mut(dim);
        own.copy_from_slice(&multiples[slot * dim..][..dim]);
        for (block, scale) in own_scales.chunks_exact_mut(SCALE).enumerate() {
            scale.copy_from_slice(&scales[scale_at(block, slot)..][..SCALE]);
        }
    }
}

/// The other way.
fn scales_last(run: &[u8], dim: usize, out: &mut [u8]) {
    let (multiples, scales) = out.split_at_mut(PAGE_TOKENS * dim);
    for (slot, head) in run.chunks_exact(q8::bytes(dim)).enumerate() {
        let (own, own_scales) = head.split_at(dim);
        multiples[slot * dim..][..dim].copy_from_slice(own);
        for (block, scale) in own_scales.chunks_exact(SCALE).enumerate() {
            scales[scale_at(block, slot)..][..SCALE].copy_from_slice(scale);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_comes_back_as_it_went() {
        for dim in [2, 48, 64, 80, 96, 128, 256, 512] {
            let host: Vec<u8> = (0..run_bytes(dim)).map(|i| (i * 31 % 251) as u8).collect();
            let (mut device, mut back) = (vec![0; host.len()], vec![0; host.len()]);
            scales_last(&host, dim, &mut device);
            head_by_head(&device, dim, &mut back);
            assert!(host == back && host != device, "heads of {dim}");
            // The last byte of position 5, and the first byte of its last scale.
            let (bytes, last) = (q8::bytes(dim), dim.div_ceil(32) - 1);
            assert_eq!(device[5 * dim + dim - 1], host[5 * bytes + dim - 1], "heads of {dim}");
            assert_eq!(device[32 * dim + 2 * (32 * last + 5)], host[5 * bytes + dim + 2 * last], "heads of {dim}");
        }
    }
}
