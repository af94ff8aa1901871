//! The memory and work that a projector takes.

use crate::convert::Projector;
use crate::fuser::Module;
use crate::matrix::{Linear, Matrix};
use crate::shape::Part;
use crate::simplified::Network;

impl Projector {
    /// Bytes of its weights in memory.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        let weights = |sizes: WeightSizes| sizes.matrices + sizes.others;
        size_of::<f32>() * self.parts().map(|(_, _, sizes)| weights(sizes)).sum::<usize>()
    }

    /// Floating-point operations of the matrix products for one token, its keys or its values.
    /// Layers whose gate is closed have none.
    #[must_use]
    pub fn flop_per_token(&self, part: Part) -> u64 {
        let products = |layer: usize| {
            let part = self.parts().find(|(other, of, _)| (*other, *of) == (layer, part));
            part.map_or(0, |(.., sizes)| 2 * sizes.matrices as u64)
        };
        match self {
            Self::Simplified(projector) => (0..projector.layers()).map(products).sum(),
            Self::Full(fuser) => {
                let open = fuser.map().iter().filter(|map| fuser.module(**map, part).is_open());
                open.map(|map| products(map.module)).sum()
            }
        }
    }

    /// Returns whether the gate of a module is open: otherwise the target's rows stay. A simplified
    /// projector has no gate that closes.
    ///
    /// # Panics
    /// When a full projector has no such module.
    #[must_use]
    pub fn is_open(&self, module: usize, part: Part) -> bool {
        match self {
            Self::Simplified(_) => true,
            Self::Full(fuser) => fuser.modules[module][part as usize].is_open(),
        }
    }

    /// Modules, or layers of a simplified projector.
    #[must_use]
    pub fn modules(&self) -> usize {
        match self {
            Self::Simplified(projector) => projector.layers(),
            Self::Full(fuser) => fuser.modules.len(),
        }
    }

    /// Elements of a row of the source, between the matrices, and of a row of the target.
    #[must_use]
    pub fn shape(&self) -> [usize; 3] {
        let (source, target) = self.dims();
        let hidden = match self {
            Self::Simplified(projector) => projector.hidden_dim(),
            Self::Full(fuser) => fuser.hidden_dim(),
        };
        [source, hidden, target]
    }

    /// The sizes of each module and part.
    fn parts(&self) -> impl Iterator<Item = (usize, Part, WeightSizes)> + '_ {
        let part = move |module: usize, part: Part| {
            let sizes = match self {
                Self::Simplified(projector) => {
                    WeightSizes::of_network(projector.network(module, part))
                }
                Self::Full(fuser) => WeightSizes::of_module(&fuser.modules[module][part as usize]),
            };
            (module, part, sizes)
        };
        (0..self.modules()).flat_map(move |module| Part::ALL.map(|of| part(module, of)))
    }
}

/// Weights of one module and part.
#[derive(Clone, Copy, Default)]
struct WeightSizes {
    matrices: usize,
    /// Biases, norms and the gate.
    others: usize,
}

impl WeightSizes {
    fn of_network(network: &Network) -> Self {
        let linears = [&network.input, &network.hidden, &network.output];
        Self { matrices: 0, others: 1 }.with_linears(&linears)
    }

    fn of_module(module: &Module) -> Self {
        let linears = [&module.input, &module.output, &module.head];
        let sizes = Self { matrices: 0, others: 1 }.with_linears(&linears);
        let blocks = module.shared.iter().chain(&module.projection).chain(&module.scalar);
        blocks
            .fold(sizes, |sizes, block| sizes.with(&block.w1, 0).with(&block.w2, block.norm.len()))
    }

    fn with_linears(self, linears: &[&Linear]) -> Self {
        linears.iter().fold(self, |sizes, linear| sizes.with(&linear.matrix, linear.bias.len()))
    }

    fn with(self, matrix: &Matrix, others: usize) -> Self {
        let matrices = self.matrices + matrix.weights().len();
        Self { matrices, others: self.others + others }
    }
}
