//! What the table keeps of the routes, so that the next run knows whether its own are others.

/// What the writes of a run go by, and how long they may still land once it is gone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RouteFingerprint {
    /// A hash of the routes; zeros where there were none, or several sets of them.
    pub routes: [u8; 16],
    pub bound_ms: u64,
}

impl RouteFingerprint {
    /// Writes that go by either may land.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        let routes = if self.routes == other.routes { self.routes } else { Self::default().routes };
        Self { routes, bound_ms: self.bound_ms.max(other.bound_ms) }
    }
}
