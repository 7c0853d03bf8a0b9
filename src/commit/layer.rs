use tower_layer::Layer;

use super::Commit;

/// Wraps a stack in [`Commit`]. See the [module's documentation](super).
///
/// It holds no handle to a source: the same stack serves any source, two of them, or none.
#[derive(Clone, Copy, Debug, Default)]
pub struct CommitLayer {
    _private: (),
}

impl CommitLayer {
    /// A layer; there is nothing to set.
    pub const fn new() -> Self {
        CommitLayer { _private: () }
    }
}

impl<S> Layer<S> for CommitLayer {
    type Service = Commit<S>;

    fn layer(&self, inner: S) -> Self::Service {
        Commit::new(inner)
    }
}
