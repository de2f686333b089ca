//! What the table keeps of the routes, so that the next run knows whether its own routes differ.

/// The routes and bounds of a run's writes, and how long these writes may still land after the run has ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RouteFingerprint {
    /// A hash of the routes. Zeros where there were none, or where several sets were in use.
    pub routes: [u8; 16],
    pub bound_ms: u64,
}

impl RouteFingerprint {
    /// The terms where writes under either may still land.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        let routes = if self.routes == other.routes { self.routes } else { Self::default().routes };
        Self { routes, bound_ms: self.bound_ms.max(other.bound_ms) }
    }
}
