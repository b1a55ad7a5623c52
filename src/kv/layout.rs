//! Where keys and values lie: `[page][layer][keys or values][kv head][slot][element]`. Layers may differ in their heads and in the elements of these.
//!
//! A page holds [`PAGE_TOKENS`] positions of one sequence in every layer, so that sharing and copying handle one block; the
//! keys of a head lie together, so that attention streams. How a device orders a head's run inside is its own business: the CPU keeps keys as
//! `[element][slot]`.

use crate::error::{Result, collected, filled};

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

/// The attention heads of a layer, and their sizes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeadSizes {
    /// Query heads.
    pub heads: usize,
    /// Key-value heads.
    pub kv_heads: usize,
    /// Elements of a head of keys, and of queries.
    pub head_dim: usize,
    /// Elements of a head of values.
    pub value_dim: usize,
}

impl HeadSizes {
    /// Heads whose values are as long as their keys.
    #[cfg(feature = "testing")]
    pub fn new(heads: usize, kv_heads: usize, head_dim: usize) -> HeadSizes {
        HeadSizes { heads, kv_heads, head_dim, value_dim: head_dim }
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

    /// Elements that a position takes.
    pub fn position_elements(&self) -> usize {
        self.kv_heads * (self.head_dim + self.value_dim)
    }
}

/// Shape of one model's cache: the heads of every layer with attention, which may differ.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Of each layer also the elements that a position takes in those before it.
    layers: Vec<(HeadSizes, usize)>,
    position_elements: usize,
}

impl Layout {
    /// The layout of a model with these layers.
    pub fn new(layers: impl IntoIterator<Item = HeadSizes>) -> Result<Layout> {
        let mut position_elements = 0usize;
        let with_start = |sizes: HeadSizes| {
            let start = position_elements;
            position_elements = start.saturating_add(sizes.position_elements());
            (sizes, start)
        };
        let layers = collected(layers.into_iter().map(with_start), "the kv cache")?;
        Ok(Layout { layers, position_elements })
    }

    /// How many layers there are.
    pub fn count(&self) -> usize {
        self.layers.len()
    }

    /// The heads of a layer.
    pub fn of(&self, layer: usize) -> HeadSizes {
        self.layers[layer].0
    }

    /// The heads of all layers.
    pub fn all(&self) -> impl Iterator<Item = HeadSizes> + '_ {
        self.layers.iter().map(|(sizes, _)| *sizes)
    }

    /// Elements of one page, or `None` on overflow.
    pub fn page_elements(&self) -> Option<usize> {
        self.position_elements.checked_mul(PAGE_TOKENS)
    }

    /// Index of the first element of a head's run of [`PAGE_TOKENS`] keys or values, in elements from the start of the page.
    pub fn run(&self, layer: usize, side: Side, head: usize) -> usize {
        let (HeadSizes { kv_heads, head_dim, value_dim, .. }, start) = self.layers[layer];
        // Layers of the other half of a program have none.
        debug_assert!(head < kv_heads.max(1));
        let before = match side {
            Side::Keys => head * head_dim,
            Side::Values => kv_heads * head_dim + head * value_dim,
        };
        (start + before) * PAGE_TOKENS
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
    pub fn new(kv: &Layout, windows: impl Iterator<Item = usize>) -> Result<Stores> {
        let mut places = filled(kv.count(), (Reach::Whole, 0), "the kv cache")?;
        windows.for_each(|layer| places[layer].0 = Reach::Window);
        let mut counts = (0, 0);
        for (reach, number) in &mut places {
            let count = if *reach == Reach::Whole { &mut counts.0 } else { &mut counts.1 };
            *number = *count;
            *count += 1;
        }
        let of = |wanted| {
            let here = kv.all().zip(&places).filter(move |(_, (reach, _))| *reach == wanted);
            Layout::new(here.map(|(sizes, _)| sizes))
        };
        Ok(Stores { whole: of(Reach::Whole)?, windows: of(Reach::Window)?, places })
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
        let uniform = |layers| Layout::new(vec![HeadSizes::new(4, 2, 64); layers]).unwrap();
        let stores = Stores::new(&uniform(5), [0, 1, 3].into_iter()).unwrap();
        let places = [0, 1, 2, 3, 4].map(|layer| stores.place(layer));
        use Reach::{Whole, Window};
        assert_eq!(places, [(Window, 0), (Window, 1), (Whole, 0), (Window, 2), (Whole, 1)]);
        assert_eq!((stores.layout(Whole).count(), stores.layout(Window).count()), (2, 3));
        let all = Stores::new(&uniform(2), [].into_iter()).unwrap();
        assert_eq!((all.layout(Whole).count(), all.layout(Window).page_elements()), (2, Some(0)));
    }

    #[test]
    fn runs_of_layers_that_differ_fill_a_page_without_a_gap() {
        let long = HeadSizes { value_dim: 24, ..HeadSizes::new(6, 3, 32) };
        let layout = Layout::new([HeadSizes::new(4, 2, 8), long, HeadSizes::new(2, 1, 2)]).unwrap();
        let mut end = 0;
        for layer in 0..layout.count() {
            let sizes = layout.of(layer);
            for side in [Side::Keys, Side::Values] {
                for head in 0..sizes.kv_heads {
                    assert_eq!(layout.run(layer, side, head), end, "layer {layer}, {side:?}, head {head}");
                    end += sizes.dim(side) * PAGE_TOKENS;
                }
            }
        }
        assert_eq!(layout.page_elements(), Some(end));
        let stores = Stores::new(&layout, [0, 2].into_iter()).unwrap();
        assert_eq!(stores.layout(Reach::Whole).all().collect::<Vec<_>>(), [long]);
        assert_eq!(stores.layout(Reach::Window).run(1, Side::Keys, 0), 32 * PAGE_TOKENS);
    }
}
