//! Conversion of whole objects.

use core::num::NonZeroUsize;
use core::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use crate::dtype::{Rounding, load, store};
use crate::error::ConvertError;
use crate::fuser::{Fuser, LayerMap, Scratch};
use crate::shape::{KvFormat, Part};
use crate::simplified::Simplified;

/// Tokens that one step converts. More would not make products faster, and take more memory.
const TILE: usize = 512;

/// The weights of a pair of models.
#[derive(Clone, Debug, PartialEq)]
pub enum Projector {
    /// From the source's cache alone.
    Simplified(Simplified),
    /// From the caches of both models.
    Full(Fuser),
}

impl From<Simplified> for Projector {
    fn from(simplified: Simplified) -> Self {
        Self::Simplified(simplified)
    }
}

impl From<Fuser> for Projector {
    fn from(fuser: Fuser) -> Self {
        Self::Full(fuser)
    }
}

impl Projector {
    pub(crate) fn dims(&self) -> (usize, usize) {
        match self {
            Self::Simplified(projector) => (projector.source_dim(), projector.target_dim()),
            Self::Full(fuser) => (fuser.source_dim(), fuser.target_dim()),
        }
    }

    /// Layers that the models must have at least.
    fn layers(&self) -> (usize, usize) {
        match self {
            Self::Simplified(projector) => (projector.layers(), projector.layers()),
            Self::Full(fuser) => {
                let most = |of: fn(&LayerMap) -> usize| fuser.map().iter().map(of).max();
                (
                    most(|map| map.source).map_or(0, |layer| layer + 1),
                    most(|map| map.target).map_or(0, |layer| layer + 1),
                )
            }
        }
    }
}

/// Converts objects of one model into objects of another.
///
/// It can be shared by threads; each conversion has buffers of its own, of
/// [`scratch_bytes`](Self::scratch_bytes) for each of its threads.
#[derive(Clone, Debug)]
pub struct Converter {
    projector: Arc<Projector>,
    source: KvFormat,
    target: KvFormat,
    rounding: Rounding,
    threads: NonZeroUsize,
}

impl Converter {
    /// A converter between these formats, on one thread.
    ///
    /// # Errors
    /// The projector does not fit the formats: [`ConvertError::Dim`], [`ConvertError::Layers`].
    pub fn new(
        projector: impl Into<Arc<Projector>>,
        source: KvFormat,
        target: KvFormat,
    ) -> Result<Self, ConvertError> {
        let projector = projector.into();
        let (dims, layers) = (projector.dims(), projector.layers());
        for (side, given, expected) in
            [("source", source.dim, dims.0), ("target", target.dim, dims.1)]
        {
            if given != expected {
                return Err(ConvertError::Dim { side, given, expected });
            }
        }
        let is_simplified = matches!(*projector, Projector::Simplified(_));
        if source.layers < layers.0 {
            let (given, expected) = (source.layers, layers.0);
            return Err(ConvertError::Layers { side: "source", given, expected });
        }
        if target.layers < layers.1 || (is_simplified && target.layers != layers.1) {
            let (given, expected) = (target.layers, layers.1);
            return Err(ConvertError::Layers { side: "target", given, expected });
        }
        let (rounding, threads) = (Rounding::default(), NonZeroUsize::MIN);
        Ok(Self { projector, source, target, rounding, threads })
    }

    /// How results lose bits.
    #[must_use]
    pub const fn rounding(mut self, rounding: Rounding) -> Self {
        self.rounding = rounding;
        self
    }

    /// The threads that share a conversion, the caller's among them.
    #[must_use]
    pub const fn threads(mut self, threads: NonZeroUsize) -> Self {
        self.threads = threads;
        self
    }

    /// The weights.
    #[must_use]
    pub const fn projector(&self) -> &Arc<Projector> {
        &self.projector
    }

    /// Returns the length of the result for a source object of this length.
    ///
    /// # Errors
    /// [`ConvertError::Length`] when it is not a whole number of tokens.
    pub fn output_len(&self, source_len: usize) -> Result<usize, ConvertError> {
        let tokens = self.source.tokens(source_len)?;
        let too_long =
            ConvertError::Length { len: source_len, token_bytes: self.source.token_bytes() };
        self.target.bytes(tokens).ok_or(too_long)
    }

    /// Bytes of the buffers of each thread, at most.
    #[must_use]
    pub fn scratch_bytes(&self) -> usize {
        Sizes::of(&self.projector).sum() * TILE * size_of::<f32>()
    }

    /// Returns how many tokens a source object of this length has.
    ///
    /// # Errors
    /// [`ConvertError::Length`] when it is not a whole number of tokens.
    pub fn tokens(&self, source_len: usize) -> Result<usize, ConvertError> {
        self.source.tokens(source_len)
    }

    /// Converts an object into `out`. A full projector needs the target model's own object of
    /// the same tokens.
    ///
    /// # Errors
    /// The objects do not fit each other or the formats, an element is not finite, or a result does
    /// not fit its type. `out` has any content then and must not be used.
    pub fn convert(
        &self,
        part: Part,
        source: &[u8],
        target: Option<&[u8]>,
        out: &mut [u8],
    ) -> Result<(), ConvertError> {
        let tokens = self.source.tokens(source.len())?;
        let expected = self.output_len(source.len())?;
        if out.len() != expected {
            return Err(ConvertError::Output { expected, len: out.len() });
        }
        let steps = match (&*self.projector, target) {
            (Projector::Simplified(projector), None) => {
                let skipped = self.source.layers - projector.layers();
                let step =
                    |layer| LayerMap { target: layer, source: skipped + layer, module: layer };
                (0..projector.layers()).map(step).collect()
            }
            (Projector::Simplified(_), Some(_)) => return Err(ConvertError::NoTarget),
            (Projector::Full(_), None) => return Err(ConvertError::NeedsTarget),
            (Projector::Full(fuser), Some(target)) => {
                let target_tokens = self.target.tokens(target.len())?;
                if target_tokens != tokens {
                    return Err(ConvertError::Tokens { source_tokens: tokens, target_tokens });
                }
                // What no module changes stays.
                out.copy_from_slice(target);
                let is_open = |map: &LayerMap| fuser.module(*map, part).is_open();
                fuser.map().iter().copied().filter(is_open).collect()
            }
        };
        let work = Work {
            converter: self,
            part,
            tokens,
            source,
            target,
            steps,
            next: AtomicUsize::new(0),
            outcome: Mutex::new((out, Ok(()))),
        };
        thread::scope(|scope| {
            let helpers = (self.threads.get() - 1).min(work.len().saturating_sub(1));
            for _ in 0..helpers {
                // Without a thread the others do its part.
                let _ = thread::Builder::new()
                    .name("mc-c2c".to_owned())
                    .spawn_scoped(scope, || work.run());
            }
            work.run();
        });
        work.outcome.into_inner().unwrap_or_else(PoisonError::into_inner).1
    }
}

/// One conversion, which threads share: steps of one layer and one tile of tokens each.
struct Work<'a> {
    converter: &'a Converter,
    part: Part,
    tokens: usize,
    source: &'a [u8],
    target: Option<&'a [u8]>,
    steps: Vec<LayerMap>,
    next: AtomicUsize,
    /// The output, and the first error. Locked only to store rows.
    outcome: Mutex<(&'a mut [u8], Result<(), ConvertError>)>,
}

impl Work<'_> {
    fn len(&self) -> usize {
        self.steps.len() * self.tokens.div_ceil(TILE)
    }

    /// Does steps until none is left or one failed.
    fn run(&self) {
        let mut buffers = Buffers::new(&self.converter.projector, self.tokens.min(TILE));
        loop {
            let number = self.next.fetch_add(1, Ordering::Relaxed);
            if number >= self.len() {
                return;
            }
            // Layer after layer, so that a step finds the weights of the last one in the cache.
            let tiles = self.tokens.div_ceil(TILE);
            let (step, tile) = (self.steps[number / tiles], number % tiles);
            let tokens = tile * TILE..self.tokens.min((tile + 1) * TILE);
            let done = self.step(step, tokens, &mut buffers);
            if let Err(error) = done {
                self.next.store(self.len(), Ordering::Relaxed);
                let mut outcome = self.outcome.lock().unwrap_or_else(PoisonError::into_inner);
                if outcome.1.is_ok() {
                    outcome.1 = Err(error);
                }
                return;
            }
        }
    }

    fn step(
        &self,
        map: LayerMap,
        tokens: Range<usize>,
        buffers: &mut Buffers,
    ) -> Result<(), ConvertError> {
        let Converter { projector, source, target, rounding, .. } = self.converter;
        let Buffers { sizes, source: from, target: own, shared, other, normed, inner, heads, out } =
            buffers;
        let count = tokens.len();
        let from = &mut from[..count * sizes.source];
        self.load_rows(source, self.source, map.source, &tokens, from)
            .ok_or(ConvertError::NotFinite { side: "source", layer: map.source })?;
        let out = &mut out[..count * sizes.target];
        let shared = &mut shared[..count * sizes.hidden];
        let other = &mut other[..count * sizes.hidden];
        match (&**projector, self.target) {
            (Projector::Simplified(projector), _) => {
                projector.network(map.module, self.part).run(from, shared, other, out);
            }
            (Projector::Full(fuser), target_bytes) => {
                let own = &mut own[..count * sizes.target];
                self.load_rows(target, target_bytes.unwrap_or_default(), map.target, &tokens, own)
                    .ok_or(ConvertError::NotFinite { side: "target", layer: map.target })?;
                let normed = &mut normed[..count * sizes.hidden];
                let heads = &mut heads[..count * sizes.heads];
                let scratch = Scratch { shared, own: other, normed, inner, heads };
                fuser.module(map, self.part).run(from, own, scratch, out);
            }
        }
        let mut outcome = self.outcome.lock().unwrap_or_else(PoisonError::into_inner);
        let mut fit = true;
        for (token, row) in tokens.zip(out.chunks_exact(sizes.target)) {
            let at = target.offset(self.tokens, token, map.target);
            fit &= store(target.dtype, *rounding, row, &mut outcome.0[at..at + target.row()]);
        }
        let overflow = ConvertError::Overflow { layer: map.target, dtype: target.dtype };
        fit.then_some(()).ok_or(overflow)
    }

    /// Reads the rows of one layer; `None` when an element is not finite.
    fn load_rows(
        &self,
        format: &KvFormat,
        object: &[u8],
        layer: usize,
        tokens: &Range<usize>,
        rows: &mut [f32],
    ) -> Option<()> {
        let mut finite = true;
        for (token, row) in tokens.clone().zip(rows.chunks_exact_mut(format.dim)) {
            let at = format.offset(self.tokens, token, layer);
            finite &= load(format.dtype, &object[at..at + format.row()], row);
        }
        finite.then_some(())
    }
}

/// Elements of each buffer for one token.
#[derive(Clone, Copy, Debug)]
struct Sizes {
    source: usize,
    target: usize,
    /// Elements of the target model's rows, if they are an input.
    own: usize,
    hidden: usize,
    /// The hidden dimension if there are norms.
    normed: usize,
    inner: usize,
    heads: usize,
}

impl Sizes {
    fn of(projector: &Projector) -> Self {
        let (source, target) = projector.dims();
        match projector {
            Projector::Simplified(projector) => {
                let hidden = projector.hidden_dim();
                Self { source, target, own: 0, hidden, normed: 0, inner: 0, heads: 0 }
            }
            Projector::Full(fuser) => {
                let hidden = fuser.hidden_dim();
                let (inner, heads) = (fuser.widest_block(), fuser.target_heads);
                Self { source, target, own: target, hidden, normed: hidden, inner, heads }
            }
        }
    }

    const fn sum(self) -> usize {
        let Self { source, target, own, hidden, normed, inner, heads } = self;
        source + target + own + 2 * hidden + normed + inner + heads
    }
}

/// The buffers of a thread.
struct Buffers {
    sizes: Sizes,
    source: Vec<f32>,
    target: Vec<f32>,
    shared: Vec<f32>,
    other: Vec<f32>,
    normed: Vec<f32>,
    inner: Vec<f32>,
    heads: Vec<f32>,
    out: Vec<f32>,
}

impl Buffers {
    fn new(projector: &Projector, tokens: usize) -> Self {
        let sizes = Sizes::of(projector);
        let rows = |elements: usize| vec![0.0; elements * tokens];
        Self {
            sizes,
            source: rows(sizes.source),
            target: rows(sizes.own),
            shared: rows(sizes.hidden),
            other: rows(sizes.hidden),
            normed: rows(sizes.normed),
            inner: rows(sizes.inner),
            heads: rows(sizes.heads),
            out: rows(sizes.target),
        }
    }
}
