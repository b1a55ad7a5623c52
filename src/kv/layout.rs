//! Where keys and values lie: `[page][layer][keys or values][kv head][slot][element]`.
//!
//! A page holds [`PAGE_TOKENS`] positions of one sequence in every layer, so that sharing and copying handle one block; the
//! keys of a head lie together, so that attention streams. How a device orders a head's run inside is its own business: the CPU keeps keys as
//! `[element][slot]`.

use crate::error::{Result, filled};

/// Positions of a page.
pub const PAGE_TOKENS: usize = 32;

/// Keys or values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// Keys.
    Keys,
    /// Values.
    Values,
}

/// Shape of one model's cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Layers with attention.
    pub layers: usize,
    /// Query heads of a layer.
    pub heads: usize,
    /// Key-value heads of a layer.
    pub kv_heads: usize,
    /// Elements of a head of keys, and of queries.
    pub head_dim: usize,
    /// Elements of a head of values.
    pub value_dim: usize,
}

impl Layout {
    /// The layout of a model with these sizes, whose values are as long as its keys.
    pub fn new(layers: usize, heads: usize, kv_heads: usize, head_dim: usize) -> Layout {
        Layout { layers, heads, kv_heads, head_dim, value_dim: head_dim }
    }

    /// The same for values of another length.
    pub fn with_values(self, value_dim: usize) -> Layout {
        Layout { value_dim, ..self }
    }

    /// Elements of a head's key or value.
    pub fn dim(&self, side: Side) -> usize {
        match side {
            Side::Keys => self.head_dim,
            Side::Values => self.value_dim,
        }
    }

    /// Query heads that share one key-value head.
    pub fn group(&self) -> usize {
        self.heads / self.kv_heads
    }

    /// The same for another number of layers.
    pub fn with_layers(self, layers: usize) -> Layout {
        Layout { layers, ..self }
    }

    /// Elements of one page, or `None` on overflow.
    pub fn page_elements(&self) -> Option<usize> {
        let dims = self.head_dim + self.value_dim;
        self.layers.checked_mul(self.kv_heads)?.checked_mul(dims * PAGE_TOKENS)
    }

    /// Index of the first element of a head's run of [`PAGE_TOKENS`] keys or values, in elements from the start of the page.
    pub fn run(&self, layer: usize, side: Side, head: usize) -> usize {
        debug_assert!(layer < self.layers && head < self.kv_heads);
        let of_layers = layer * (self.head_dim + self.value_dim) * self.kv_heads;
        let before = match side {
            Side::Keys => head * self.head_dim,
            Side::Values => self.kv_heads * self.head_dim + head * self.value_dim,
        };
        (of_layers + before) * PAGE_TOKENS
    }
}

/// Pages that `tokens` positions need.
pub fn pages_for(tokens: usize) -> usize {
    tokens.div_ceil(PAGE_TOKENS)
}

/// How far back a layer sees, which is the cache that its keys and values are in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// To the beginning.
    Whole,
    /// As far as a window.
    Window,
}

/// Bounds on what the layers with a window keep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WindowLimits {
    /// Positions that a token sees, its own the last of them.
    pub window: usize,
    /// Pages of each sequence, enough for every pass: [`pages_of_window`].
    pub pages_each: usize,
}

impl WindowLimits {
    /// The first position that a token at `position` sees.
    pub fn first_seen(&self, position: usize) -> usize {
        (position + 1).saturating_sub(self.window)
    }
}

/// Pages that hold a `window` and the positions of a pass of at most `rows` rows of a sequence, wherever in a page they begin.
pub fn pages_of_window(window: usize, rows: usize) -> usize {
    pages_for(window.saturating_add(rows)) + 1
}

/// The two caches of a session, one for the layers that see everything and one for those that see a window, where that has pages of its own: their
/// shapes, and the layers' places in them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stores {
    whole: Layout,
    windows: Layout,
    places: Vec<(Reach, usize)>,
}

impl Stores {
    /// Puts the layers of `kv` that `windows` names into the cache of those that see a window.
    pub fn new(kv: Layout, windows: impl Iterator<Item = usize>) -> Result<Stores> {
        let mut places = filled(kv.layers, (Reach::Whole, 0), "the kv cache")?;
        windows.for_each(|layer| places[layer].0 = Reach::Window);
        let mut counts = (0, 0);
        for (reach, number) in &mut places {
            let count = if *reach == Reach::Whole { &mut counts.0 } else { &mut counts.1 };
            *number = *count;
            *count += 1;
        }
        Ok(Stores { whole: kv.with_layers(counts.0), windows: kv.with_layers(counts.1), places })
    }

    /// The cache of a layer, and its number there.
    pub fn place(&self, layer: usize) -> (Reach, usize) {
        self.places[layer]
    }

    /// The shape of a cache; one without layers has no elements.
    pub fn layout(&self, reach: Reach) -> &Layout {
        match reach {
            Reach::Whole => &self.whole,
            Reach::Window => &self.windows,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layers_are_numbered_in_their_caches() {
        let stores = Stores::new(Layout::new(5, 4, 2, 64), [0, 1, 3].into_iter()).unwrap();
        let places = [0, 1, 2, 3, 4].map(|layer| stores.place(layer));
        use Reach::{Whole, Window};
        assert_eq!(places, [(Window, 0), (Window, 1), (Whole, 0), (Window, 2), (Whole, 1)]);
        assert_eq!((stores.layout(Whole).layers, stores.layout(Window).layers), (2, 3));
        let all = Stores::new(Layout::new(2, 4, 2, 64), [].into_iter()).unwrap();
        assert_eq!((all.layout(Whole).layers, all.layout(Window).page_elements()), (2, Some(0)));
    }
}
